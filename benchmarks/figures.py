"""Figures and tables from result files.

    python benchmarks/figures.py online --results results/online
    python benchmarks/figures.py offline --results results/offline
    python benchmarks/figures.py fidelity results/fidelity.json
    python benchmarks/figures.py speed throughput.json
    python benchmarks/figures.py docs

The last command writes the generated tables of README.md and docs/, and the figures in docs/assets/, from the
published results. `docs --check` changes nothing and fails if a table is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from synther_replay.benchmarks.common.command_line import exit_with_error
from synther_replay.benchmarks.common.files import writing
from synther_replay.benchmarks.common.generated import fill, stale
from synther_replay.benchmarks.fidelity import docs_tables as fidelity_tables
from synther_replay.benchmarks.fidelity import figures as fidelity_figures
from synther_replay.benchmarks.offline import docs_tables as offline_tables
from synther_replay.benchmarks.offline import figures as offline_figures
from synther_replay.benchmarks.online import docs_tables as online_tables
from synther_replay.benchmarks.online import figures as online_figures
from synther_replay.benchmarks.pixels import docs_tables as pixel_tables
from synther_replay.benchmarks.speed import docs_tables as speed_tables

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks", "results")
ASSETS = Path("docs", "assets")


def docs_tables(results: Path) -> dict[str, str]:
    """All generated tables and sentences by name.

    Args:
        results: Folder of the published results.
    """
    found: dict[str, str] = {}
    for part in (online_tables, offline_tables, pixel_tables, fidelity_tables, speed_tables):
        found |= part.tables(results)
    return found


def pages(root: Path) -> list[Path]:
    """Pages that may have generated parts."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def run_docs(args: argparse.Namespace) -> int:
    """Write the generated parts of README.md and docs/, or list those out of date."""
    parts, differing = docs_tables(args.root / RESULTS), 0
    for page in pages(args.root):
        text = page.read_text(encoding="utf-8")
        old = stale(text, parts)
        differing += len(old)
        for name in old:
            print(f"{page.relative_to(args.root)}: {name}{' differs' if args.check else ''}")
        if old and not args.check:
            with writing(page) as path:
                path.write_text(fill(text, parts), encoding="utf-8")
    if args.check:
        return int(differing > 0)
    for part in (online_figures, offline_figures, fidelity_figures):
        part.draw_for_docs(args.root / RESULTS, args.root / ASSETS)
    return 0


def run_speed(args: argparse.Namespace) -> None:
    """Print the tables of result files of throughput.py."""
    for path in args.results:
        print(speed_tables.report(json.loads(path.read_text())), "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, part in (("online", online_figures), ("offline", offline_figures), ("fidelity", fidelity_figures)):
        command = commands.add_parser(name, description=part.__doc__, formatter_class=raw)
        part.add_options(command)
        command.set_defaults(run=part.run, parser=command)
    command = commands.add_parser("speed", description=run_speed.__doc__)
    command.add_argument("results", nargs="+", type=Path, help="result files of throughput.py")
    command.set_defaults(run=run_speed, parser=command)
    command = commands.add_parser("docs", description=run_docs.__doc__)
    command.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table is out of date")
    command.add_argument("--root", type=Path, default=ROOT, help="root of the checkout")
    command.set_defaults(run=run_docs, parser=command)
    args = parser.parse_args(arguments)
    try:
        return args.run(args) or 0
    except ValueError as error:
        args.parser.error(str(error))
    except OSError as error:
        return exit_with_error(2, error)


if __name__ == "__main__":
    sys.exit(main())
