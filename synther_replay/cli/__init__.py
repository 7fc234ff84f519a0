"""The command `synther`: upsample a data set, fit and sample a generator, look into files."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        import rich
        import typer
    except ImportError as error:
        sys.exit(f"synther: {error.name} is not installed; run: pip install 'synther-replay[cli]'")
    assert rich and typer
    from synther_replay.cli.app import run

    run()
