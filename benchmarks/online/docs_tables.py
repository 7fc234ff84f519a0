"""Generated tables of README and docs/results/online.md, by name, from the published results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.environments.scores import TASKS
from synther_replay.benchmarks.online import agents_table, discrete, suite
from synther_replay.benchmarks.online.published import DMC_AGENTS, GYM_AGENTS, beside_ours, sources
from synther_replay.benchmarks.online.results import SUBJECT, Run, compare_runs, read_run, read_runs
from synther_replay.benchmarks.online.sections import sections
from synther_replay.benchmarks.online.tables import interval_cell, returns_cell, score_table

PUBLISHED = ("sac", "sac20", "redq", SUBJECT)
"""Algorithms of the main table."""
OTHER_SEEDS = f"{SUBJECT}-seeds-100"
TITLES = {
    "sac": "SAC",
    "sac20": "SAC, 20 updates",
    "redq": "REDQ",
    SUBJECT: "SynthER `fast()`",
    OTHER_SEEDS: "SynthER `fast()`, seeds 100-107",
    "synther-paper": "SynthER `paper()`",
    "sb3-sac": "SAC of Stable-Baselines3",
    "sb3-sac-mean-xavier": "SAC of Stable-Baselines3, REDQ's initial weights and policy loss",
    "sb3-buffer-tiny": "the same with `SynthERBuffer`, generator `tiny()`",
    "sb3-sac20": "`FastSAC`",
    "sb3-synther-fast": "`FastSAC` with `SynthERBuffer`",
    "sb3-synther-fast-mean-xavier": "the same, REDQ's initial weights and policy loss",
    f"{SUBJECT}-layernorm": "SynthER `fast()`, layer norm",
    "sb3-synther-fast-layernorm": "`FastSAC` with `SynthERBuffer`, `LayerNormMlpPolicy`",
}
STEP, EARLY_STEP = 100_000, 30_000
_STEPS = (EARLY_STEP, 60_000, STEP)  # of the comparison of versions
_ABLATION = {
    "base": "refit every 2,500 steps, 1,500 training steps, 24 sampling steps, 100,000 rows, r = 0.5",
    "every-5000": "refit every 5,000 steps",
    "every-10000": "refit every 10,000 steps, as in the paper",
    "steps-500": "500 training steps",
    "steps-4500": "4,500 training steps",
    "sampler-8": "8 sampling steps",
    "sampler-12": "12 sampling steps",
    "real-25": "r = 0.25",
    "real-75": "r = 0.75",
    "current": "`fast()`: 1,000 training steps, 12 sampling steps, 400,000 rows",
}


def tables(results: Path) -> dict[str, str]:
    """Tables by name.

    Args:
        results: Folder of the published results.
    """
    online, main = results / "online", results / "online" / "main"
    runs = read_runs(main, algorithms=PUBLISHED)
    whole = score_table(runs, STEP, compare_runs(runs, STEP), titles=TITLES)
    return {
        "readme-online": whole,
        "online-main": whole,
        "online-aggregate": _aggregate(runs),
        "online-seeds": _other_seeds(main),
        "online-paper": _early(main, "HalfCheetah-v5", ("sac20", "redq", OTHER_SEEDS, "synther-paper")),
        "online-published": _published(runs, suite.read_suite(online / "suite")),
        "online-versions": _versions(main),
        "online-ablation": _ablation(online / "ablation"),
        "online-agents": agents_table.table(online / "agents"),
        "online-guided": _guided(online / "guided"),
        "online-sb3": _stable_baselines(main),
        "online-tiny": _lengths_of_fits(online / "tiny"),
        "online-discrete": discrete.table(online / "discrete"),
        "goals-arm": _goals(online / "goals" / "arm.json"),
        **sections(online),
    }


def _goals(path: Path) -> str:
    """Success rates of `examples/sb3_her.py` over the steps, and their means."""
    found = json.loads(path.read_text(encoding="utf-8"))
    variants = list(dict.fromkeys(run["variant"] for run in found["runs"]))
    rates = [np.array([run["success"] for run in found["runs"] if run["variant"] == name]) for name in variants]
    every = found["settings"]["every"]
    rows = [
        [f"{every * (k + 1):,} steps", *(mean_and_spread(rate[:, k].tolist(), 2) for rate in rates)]
        for k in range(rates[0].shape[1])
    ]
    rows.append(["mean of the curve", *(mean_and_spread(rate.mean(1).tolist(), 2) for rate in rates)])
    return markdown_table(("success rate", *variants), rows)


def _aggregate(runs: Sequence[Run]) -> str:
    """Aggregates of the main table at other steps, and without the task with the largest difference."""
    without = [run for run in runs if run.task != "HalfCheetah-v5"]
    rows = []
    for title, those, step in (
        ("six tasks, 100,000 steps", runs, STEP),
        ("six tasks, 90,000 steps", runs, 90_000),
        ("six tasks, 80,000 steps", runs, 80_000),
        ("without HalfCheetah-v5, 100,000 steps", without, STEP),
    ):
        found = compare_runs(those, step)
        cells = (found.iqm.get("redq"), found.iqm.get(SUBJECT), found.improvement.get("redq"))
        rows.append([title, *map(interval_cell, cells)])
    head = (f"IQM, {TITLES['redq']}", f"IQM, {TITLES[SUBJECT]}", "probability that SynthER is better than REDQ")
    return markdown_table(("aggregated over", *head), rows)


def _other_seeds(main: Path) -> str:
    runs = read_runs(main, algorithms=("sac", "sac20", "redq", OTHER_SEEDS))
    return score_table(runs, STEP, compare_runs(runs, STEP, OTHER_SEEDS), titles=TITLES, subject=OTHER_SEEDS)


def _early(main: Path, task: str, names: Sequence[str]) -> str:
    """One task at 30,000 steps, a row per algorithm."""
    runs = read_runs(main, tasks=(task,), algorithms=names)
    rows = [[TITLES[run.algorithm], f"{run.returns.shape[0]}", returns_cell(run.at(EARLY_STEP))] for run in runs]
    return markdown_table((f"{task}, {EARLY_STEP:,} steps", "seeds", "return"), rows)


def _published(runs: Sequence[Run], suite_runs: Sequence[Run]) -> str:
    """What other agents have published, beside our runs, and the sources."""
    ours = {TITLES[SUBJECT]: [run for run in runs if run.algorithm == SUBJECT]}
    for kind in (suite.WITHOUT, suite.WITH):
        ours[f"agent of the suite, {kind}"] = [run for run in suite_runs if run.algorithm == kind and STEP in run.steps]
    tables = [beside_ours(agents, ours, STEP) for agents in (GYM_AGENTS, DMC_AGENTS)]
    return "\n\n".join((*tables, sources((*GYM_AGENTS, *DMC_AGENTS))))


def _versions(main: Path) -> str:
    """Runs of version 0.2 and of the current code on the same seeds."""
    rows = []
    for task in TASKS:
        for seeds, *names in (
            ("200 to 207", f"{SUBJECT}-before-exact", SUBJECT),
            ("100 to 107", OTHER_SEEDS, f"{OTHER_SEEDS}-exact"),
        ):
            paths = [main / task / f"{name}.json" for name in names]
            if all(path.is_file() for path in paths):
                before, after = map(read_run, paths)
                rows += [
                    [task, seeds, f"{step:,}", returns_cell(before.at(step)), returns_cell(after.at(step))]
                    for step in _STEPS
                ]
    return markdown_table(("task", "seeds", "steps", "version 0.2", "with `exact`"), rows)


def _guided(folder: Path) -> str:
    """Runs with and without guided generation, the latter first, and what each cost."""
    rows = []
    for path in sorted(folder.glob("*/*.json"), key=lambda path: (path.parent, len(path.stem))):
        run = read_run(path)
        used = sum(run.wall_seconds[part] for part in ("fit", "generate")) / run.wall_seconds["total"]
        agent = (run.task, run.agent, run.relevance or None, len(run.returns))
        rows.append([*agent, returns_cell(run.at(run.budget)), f"{used:.0%}"])
    return markdown_table(("task", "critics", "relevance", "seeds", "return", "time in generator"), rows)


def _stable_baselines(main: Path) -> str:
    """Runs in Stable-Baselines3, after those of our learner with as many updates and steps."""
    rows = []
    for task in TASKS:
        for utd, step, *names in (
            (1, EARLY_STEP, "sac", "sb3-sac", "sb3-buffer-tiny", "sb3-sac-mean-xavier"),
            (20, STEP, "sac20", "sb3-sac20"),
            (20, STEP, SUBJECT, "sb3-synther-fast", "sb3-synther-fast-mean-xavier"),
            (20, STEP, f"{SUBJECT}-layernorm", "sb3-synther-fast-layernorm"),
        ):
            found = [path for name in names if (path := main / task / f"{name}.json").is_file()]
            if any(path.stem.startswith("sb3-") for path in found):
                runs = [read_run(path) for path in found]
                rows += [
                    [task, TITLES[r.algorithm], utd, f"{step:,}", len(r.returns), returns_cell(r.at(step))]
                    for r in runs
                ]
    return markdown_table(("task", "agent", "updates per step", "steps", "seeds", "return"), rows)


def _lengths_of_fits(folder: Path) -> str:
    """Returns by the training steps of the generator's fits, those of real rows alone first."""
    rows = []
    for run in map(read_run, sorted(folder.glob("*/*.json"), key=lambda path: (path.parent.name, len(path.stem)))):
        generator = run.settings["generator"] if run.synthetic_share else {}
        lengths = [f"{generator[name]:,}" if generator else None for name in ("steps", "refit_steps")]
        rows.append([run.task, *lengths, len(run.returns), returns_cell(run.returns[:, -1])])
    return markdown_table(("task", "steps of the first fit", "of later ones", "seeds", "return"), rows)


def _ablation(folder: Path) -> str:
    """Returns by generator setting, a column per task."""
    tasks = [task for task in TASKS if (folder / task).is_dir()]
    rows = []
    for name, title in _ABLATION.items():
        paths = [folder / task / f"{name}.json" for task in tasks]
        rows.append(
            [title, *(returns_cell(read_run(path).at(EARLY_STEP)) if path.is_file() else None for path in paths)]
        )
    return markdown_table((f"8 seeds, {EARLY_STEP:,} steps", *tasks), rows)
