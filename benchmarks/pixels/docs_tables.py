"""Generated table of docs/results/offline.md, from the published results: returns divided by 10, as in V-D4RL."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.resumable import differences
from synther_replay.benchmarks.common.statistics import mean_estimate
from synther_replay.benchmarks.pixels.settings import ALGORITHMS, LEVELS, POLICIES, TASKS

_TITLES = {"bc": "BC", "drqbc": "DrQ+BC"}
_ORDER = [f"{task}-{level}" for task in TASKS for level in LEVELS]
_PER_SCORE = 10  # an episode has at most 1,000 points of return


@dataclass(frozen=True)
class Cell:
    """Scores of one policy of all seeds on a data set, ``(seeds,)``."""

    dataset: str
    algo: str
    policy: str
    scores: np.ndarray


def tables(results: Path) -> dict[str, str]:
    """The table by its name; nothing where there is no result.

    Args:
        results: Folder of the published results.
    """
    cells = read_cells((results / "offline" / "pixels").glob("*/*.json"))
    return {"offline-pixels": table(cells)} if cells else {}


def read_cells(paths: Iterable[Path]) -> list[Cell]:
    """Read result files, one per seed.

    Raises:
        ValueError: A file is damaged, or two runs of an algorithm have different settings.
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    settings: dict[tuple[str, str], Any] = {}
    for path in sorted(paths):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            dataset, algo, own = content["dataset"], content["algo"], _common_settings(content)
            means = {name: _mean_score(part["returns"]) for name, part in content["policies"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: not a result of the pixel benchmark: {error!r}") from error
        for stage, values in own.items():  # a run may lack some stages
            if mismatch := differences(values, settings.setdefault((algo, stage), values)):
                raise ValueError(f"{path}: {stage}: other settings than the other runs of {algo} ({mismatch})")
        for name, mean in means.items():
            found.setdefault((dataset, algo, name), []).append(mean)
    return [Cell(*key, np.array(scores)) for key, scores in found.items()]


def table(cells: list[Cell]) -> str:
    """A row per algorithm and data set, and a mean per algorithm over the data sets that all policies have."""
    rows: list[list[Any]] = []
    for algo in ALGORITHMS:
        own = {(cell.dataset, cell.policy): cell.scores for cell in cells if cell.algo == algo}
        sets = sorted({name for name, _ in own}, key=lambda name: (_ORDER.index(name) if name in _ORDER else 99, name))
        for name in sets:
            rows.append([f"{_TITLES[algo]}, {name}", *(_cell([own.get((name, policy))]) for policy in POLICIES)])
        common = [name for name in sets if all((name, policy) in own for policy in POLICIES)]
        if len(common) > 1:
            means = (_cell([own[name, policy] for name in common]) for policy in POLICIES)
            rows.append([f"**{_TITLES[algo]}, mean of {len(common)} sets**", *means])
    return markdown_table(("score", *POLICIES.values()), rows)


def _cell(scores: list[np.ndarray | None]) -> str | None:
    """Mean, with its interval if all have several seeds; for one data set with spread and number of seeds."""
    known = [own for own in scores if own is not None]
    if not known:
        return None
    mean, least = mean_estimate(known), min(len(own) for own in known)
    interval = f"[{mean.low:.1f}, {mean.high:.1f}]" if least > 1 else ""  # one seed says nothing of others
    if len(known) > 1:
        return f"{mean.value:.1f} {interval}".strip()
    seeds = "1 seed" if least == 1 else f"{least} seeds"
    return f"{mean_and_spread(known[0].tolist(), 1)} {interval}".strip() + f" ({seeds})"


def _mean_score(returns: list[float | None]) -> float:
    """Mean over episodes; one whose simulation diverged scores 0."""
    return float(np.mean([value or 0.0 for value in returns])) / _PER_SCORE


def _common_settings(content: dict[str, Any]) -> dict[str, Any]:
    """Settings that all runs of an algorithm share, without seeds."""
    stages = {name: _without_seed(stage["settings"]) for name, stage in content["stages"].items()}
    return {"evaluation": content["settings"], **stages}


def _without_seed(settings: Any) -> Any:
    if not isinstance(settings, dict):
        return settings
    return {name: _without_seed(value) for name, value in settings.items() if name != "seed"}
