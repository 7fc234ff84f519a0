"""Returns that other agents have published at 100,000 environment steps, to show beside ours.

Read from the result files or papers named by `source`; nothing here was run by us. Gymnasium tasks are of version 4.
An action repeat of 2 means half as many decisions in as many steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.online.results import Run


@dataclass(frozen=True)
class Published:
    """Mean returns of one agent.

    Attributes:
        name: Name of the agent.
        updates: Critic updates per environment step.
        seeds: Number of seeds; None: not stated.
        source: Where the figures are from.
        returns: Mean return by task.
        repeat: Environment steps per decision.
    """

    name: str
    updates: int
    seeds: int | None
    source: str
    returns: dict[str, float] = field(default_factory=dict)
    repeat: int = 1


_GYM = ("Ant-v4", "Humanoid-v4", "HalfCheetah-v4", "Walker2d-v4", "Hopper-v4")
_DMC = ("quadruped-walk", "reacher-hard", "finger-turn_hard", "hopper-hop", "cheetah-run")
_BASELINE = "DAVIAN-Robotics/SimbaV2, results/baseline"
_SCALING = "DAVIAN-Robotics/SimbaV2, results/scaling/utd"
_XQC = "danielpalenicek/xqc, results/xqc.csv"
_FLASH = "Holiday-Robot/FlashSAC, results/stateRL_cpusim"


def _gym(*returns: float) -> dict[str, float]:
    return dict(zip(_GYM, returns, strict=True))


def _dmc(*returns: float) -> dict[str, float]:
    return dict(zip(_DMC, returns, strict=True))


GYM_AGENTS = (
    Published("SAC", 1, 10, _BASELINE, _gym(747, 632, 6156, 690, 1103)),
    Published("DroQ", 20, 10, _BASELINE, _gym(1365, 1278, 7744, 2277, 1813)),
    Published("REDQ", 20, 10, _BASELINE, _gym(3287, 1319, 7823, 3459, 2750)),
    Published("CrossQ", 1, 10, _BASELINE, _gym(2299, 2603, 8112, 3914, 2764)),
    Published("MR.Q", 1, 10, _BASELINE, _gym(2801, 522, 7872, 3127, 2249)),
    Published("BRO", 10, 5, _BASELINE, _gym(1876, 830, 8330, 410, 1569)),
    Published("Simba", 8, 5, _SCALING, _gym(5219, 4505, 6467, 2749, 3116)),
    Published("SimbaV2", 8, 5, _SCALING, _gym(3942, 1825, 7505, 4488, 2927)),
    Published("XQC", 2, 10, _XQC, _gym(3018, 3265, 8597, 3612, 2828)),
    Published("FlashSAC", 1, 5, _FLASH, _gym(3196, 6138, 9815, 3299, 2121)),
)
DMC_AGENTS = (
    Published("SR-SAC", 128, 5, "D'Oro et al. 2023, as quoted", _dmc(336, 876, 757, 183, 455)),
    Published("MR.Q", 1, 10, _BASELINE, _dmc(884, 806, 230, 17, 648), repeat=2),
    Published("BRO", 10, 5, _BASELINE, _dmc(810, 889, 516, 172, 531), repeat=2),
    Published("Simba", 8, 5, _SCALING, _dmc(869, 911, 525, 201, 649), repeat=2),
    Published("SimbaV2", 8, 5, _SCALING, _dmc(906, 890, 533, 176, 602), repeat=2),
    Published("XQC", 2, 10, _XQC, _dmc(609, 937, 326, 4, 722), repeat=2),
    Published(
        "SynthER, published",
        20,
        None,
        "Lu et al. 2023, as quoted",
        {"quadruped-walk": 727, "reacher-hard": 839, "cheetah-run": 729},
    ),
    Published(
        "PGR",
        20,
        None,
        "Wang et al. 2025, as quoted",
        {"quadruped-walk": 928, "reacher-hard": 915, "cheetah-run": 817},
    ),
)


def beside_ours(agents: Sequence[Published], ours: Mapping[str, Sequence[Run]], step: int) -> str:
    """Table of published agents and, in the last rows, of our runs.

    Args:
        agents: Agents with returns on the same kind of tasks.
        ours: Our runs by title of their row. Where there is none of a task, one of another version of it is shown.
        step: Environment step of our returns.
    """
    tasks = list(dict.fromkeys(task for agent in agents for task in agent.returns))
    rows: list[list[object]] = [
        [agent.name, agent.updates, agent.repeat, agent.seeds, *(agent.returns.get(task) for task in tasks)]
        for agent in agents
    ]
    for title, runs in ours.items():
        own = {_name(run.task): run for run in runs} | {run.task: run for run in runs}
        found = [own.get(task, own.get(_name(task))) for task in tasks]
        shown = [run for run in found if run]
        if shown:
            cells = [f"**{np.nanmean(run.at(step)):.0f}**" if run else None for run in found]
            updates, seeds = _listed(run.utd for run in shown), _listed(len(run.returns) for run in shown)
            rows.append([title, updates, 1, seeds, *cells])
    return markdown_table(("agent", "updates", "action repeat", "seeds", *map(_name, tasks)), rows)


def sources(agents: Sequence[Published]) -> str:
    """One line per source, with its agents."""
    by_source: dict[str, list[str]] = {}
    for agent in agents:
        by_source.setdefault(agent.source, []).append(agent.name)
    return "\n".join(f"- {', '.join(dict.fromkeys(names))}: {source}" for source, names in by_source.items())


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _name(task: str) -> str:
    """A task without its version."""
    return re.sub(r"-v\d+$", "", task)
