"""A fuzzer of the whole command line: damaged files and odd options through every verb.

    python -m tests.fuzz --seconds 300 --seed 1

Whatever comes in, a verb answers with finite numbers or refuses with a reason: no traceback, no hang, no more memory than
a laptop has, and an exit code that is documented. The same seed tries the same inputs.
"""
