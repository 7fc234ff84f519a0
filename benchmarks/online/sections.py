"""Sections of docs/results/online.md that appear once they have results: the suite, its ablation, and scaling."""

from __future__ import annotations

from pathlib import Path

from synther_replay.benchmarks.online import suite, variants
from synther_replay.benchmarks.online.results import SUBJECT
from synther_replay.benchmarks.online.tables import SCALES

FIGURE = "suite.png"
_OF_SUITE = "suite/{task}/*.json"
_OF_SUBJECT = f"main/{{task}}/{SUBJECT}.json"
_OF_MAIN = ("main/{task}/sac20.json", _OF_SUBJECT)
_OF_AGENTS = "agents-100k/{task}/*.json"
_BESIDE = "Beside other agents, from `online/main` (on other seeds) and `online/agents-100k`:"


def sections(online: Path) -> dict[str, str]:
    """Whole sections by name; empty without results.

    Args:
        online: Folder of the published results of the online benchmark.
    """
    return {
        "online-suite": _section(
            "Twelve tasks",
            "One agent with and without synthetic rows on the six tasks above and six more. "
            f"{SCALES}\n\n![Learning curves of the suite](../assets/{FIGURE})",
            _suite(online / "suite"),
            "suite",
        ),
        "online-parts": _section(
            "What each part brings",
            "Critics, synthetic rows and [relevance](../guided-generation.md), with and without each other. With runs "
            "of the main table and of the suite.",
            variants.table(online / "parts", (*_OF_MAIN, _OF_SUITE)),
            "parts",
        ),
        "online-scaling": _section(
            "Updates per step and share of synthetic rows",
            "One agent with more or fewer updates, and with more or fewer synthetic rows. With runs of the suite.",
            variants.table(online / "scaling", (_OF_SUITE,)),
            "scaling",
        ),
    }


def _suite(folder: Path) -> str:
    """The suite, and its agents beside others on the same tasks."""
    table, beside = suite.table(suite.read_suite(folder)), variants.table(folder, (_OF_SUBJECT, _OF_AGENTS))
    return "\n\n".join((table, _BESIDE, beside)) if table else ""


def _section(title: str, text: str, table: str, group: str) -> str:
    if not table:
        return ""
    command = (
        f'python -m synther_replay.benchmarks.online.jobs {group} --each="OPTIONS OF THE AGENT" |\n'
        "  xargs -L 1 python benchmarks/online_dmc.py"
    )
    files = f"Files, with the command of each: `benchmarks/results/online/{group}/`"
    return "\n\n".join((f"## {title}", text, table, f"```sh\n{command}\n```", files))
