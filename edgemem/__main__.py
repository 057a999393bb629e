"""`python -m edgemem` is the command line."""

from edgemem.cli import main

if __name__ == "__main__":
    main()
