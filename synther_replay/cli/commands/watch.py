"""``synther watch``: the refits of a run on a page of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synther_replay.watching.server import WatchServer


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run directory of a RefitLog.")],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes any free one.")] = 8_765,
) -> None:
    """Show the refits and the latest report of a run in a browser, while it goes on or afterwards.

    Only programs on this machine can see the page, and it changes nothing. Ctrl-C ends it.

    Examples:
        synther watch runs/hopper
        synther watch runs/hopper --port 0
    """
    with WatchServer(run, port) as server:
        typer.echo(f"{run} at {server.url}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
