"""Floor 6, speak: one verb of the command line a file; `sim.cli` puts them together.

Most of it is options, what the help says of each, and checks that refuse a mistake before anything is computed.
"""
