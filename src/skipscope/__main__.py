"""`python -m skipscope`: the command line, where the command itself is not on the path."""

from skipscope.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
