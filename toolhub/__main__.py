"""`python -m toolhub` is the command `toolhub`."""

from toolhub.cli import main

if __name__ == "__main__":
    main()
