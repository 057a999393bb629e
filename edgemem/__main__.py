"""`edgemem` and `python -m edgemem`. Ctrl-C ends them quietly, even while commands are imported."""

import sys


def main() -> None:
    """Runs the command line: the entry point of `edgemem`."""
    try:
        from edgemem.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
