"""``python -m synther_replay`` is the command ``synther``."""

from synther_replay.cli import main

if __name__ == "__main__":
    main()
