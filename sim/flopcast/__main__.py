"""`python -m flopcast`: the command line."""

from sim.__main__ import main

if __name__ == "__main__":
    main()
