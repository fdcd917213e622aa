"""What users see, frozen: a change that should move nothing is compared with the answers from before it.

    python -m tests.frozen --compare             # against answers.json.gz, in about a minute and a half on two cores
    python -m tests.frozen --freeze              # write that file anew, after a change that moves answers on purpose
    python -m tests.frozen --compare --only rows --only searches
    python -m tests.frozen --freeze --with-shared /tmp/before.json.gz    # also tables and files that do not ship

Everything is asked through what users have: `estimate`, `simulate`, scenario files, published rows as `flopcast validate`
models them, and the command line. A commit that moves an answer says which and why.
"""
