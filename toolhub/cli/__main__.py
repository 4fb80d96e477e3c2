"""`python -m toolhub.cli` is the `toolhub` command."""

from toolhub.cli import main

if __name__ == "__main__":
    main()
