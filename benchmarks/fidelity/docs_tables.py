"""Generated tables of README and docs/results/fidelity.md, by name, from the published results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.fidelity.tables import ROUNDING_ERROR

DATASET = "halfcheetah-medium-replay-regen"
PAPER = {"SynthER": (0.989, 0.998), "TVAE": (0.942, 0.979), "CTGAN": (0.959, 0.981)}
"""Marginal and correlation reported by the paper on D4RL's own halfcheetah medium-replay."""
TITLES = {
    "held-out": "other real rows",
    "noise": "real rows with noise",
    "synther-offline": "`offline()`",
    "synther-paper": "`paper()`",
    "synther-fast": "`fast()`",
    "ctgan-epochs-100": "CTGAN, 100 epochs",
    "tvae": "TVAE",
}
_VARIANTS = {
    "synther-offline": "`offline()`",
    "synther-offline-unsquash_actions-False": "with `unsquash_actions=False`",
    "synther-offline-noise_mean--0.6-noise_std-1.4": "with `noise_mean=-0.6, noise_std=1.4`",
    "synther-offline-noise_mean-0.0-noise_std-1.4": "with `noise_mean=0.0, noise_std=1.4`",
    "synther-paper-solver-dpm_solver_2m-sampling_steps-24-sigma_min-0.005-sigma_max-20.0-rho-9.0-churn-0.0": (
        "`paper()` with the sampler of `offline()`"
    ),
}
_HEUN, _SOLVER = "heun, churn 80, sigma 0.002..80", "dpm_solver_2m, eta 0, sigma 0.005..20"
_SAMPLERS = {  # titles by prefix of the trained model, solver, steps and precision
    ("paper, fp32", _HEUN, 128, "fp32"): ("`paper()` in fp32", "stochastic Heun"),
    ("paper, bf16", _HEUN, 128, "bf16"): ("`paper()` in bf16", "stochastic Heun"),
    ("paper, bf16", _HEUN, 18, "bf16"): ("the same", "stochastic Heun"),
    ("paper, bf16", _SOLVER, 24, "bf16"): ("the same", "DPM-Solver++(2M)"),
    ("paper, bf16", _SOLVER, 12, "bf16"): ("the same", "DPM-Solver++(2M), as in `fast()`"),
    ("fast", _SOLVER, 24, "bf16"): ("`fast()` at width 1,024", "DPM-Solver++(2M)"),
}


def tables(results: Path) -> dict[str, str]:
    """Tables and sentences by name.

    Args:
        results: Folder of the published results.
    """
    main, variants = (_sources(results / "fidelity" / part / f"{DATASET}.json") for part in ("main", "variants"))
    samplers, terminations, random_terminations, long = (
        json.loads((results / "fidelity" / f"{name}.json").read_text())
        for name in ("samplers-h200", "terminations-h200", "terminations-random-cpu", "long-rows-h200")
    )
    return {
        "readme-fidelity": _sentence(main),
        "fidelity-main": _fidelity_table(main),
        "fidelity-dynamics": _dynamics(main),
        "fidelity-variants": _variants(variants),
        "fidelity-samplers": _samplers(samplers["table"]),
        "fidelity-terminations": _terminations(random_terminations["results"]),
        "fidelity-terminations-sets": _terminations(terminations["results"]),
        "fidelity-rare-rewards": _rare_rewards(results / "fidelity" / "rare-rewards"),
        "fidelity-long-rows": _long_rows(long["tasks"]),
        "fidelity-consistency": _consistency(results / "fidelity" / "consistency"),
        "fidelity-usefulness": _usefulness(results / "fidelity" / "usefulness"),
    }


def _sources(path: Path) -> dict[str, Any]:
    sources = json.loads(path.read_text())["sources"]
    return {name: entry for name, entry in sources.items() if "failed" not in entry}


def _sentence(sources: dict[str, Any]) -> str:
    ours, (marginal, correlation) = sources["synther-offline"], PAPER["SynthER"]
    return (
        f"On halfcheetah medium-replay (regenerated), `offline()` scores {ours['marginal']:.3f} in marginal and "
        f"{ours['correlation']:.3f} in correlation; the paper reports {marginal} and {correlation} on D4RL's own file."
    )


def _fidelity_table(sources: dict[str, Any]) -> str:
    """Marginal, correlation, memorisation and time, a row per source."""
    rows = []
    for name, title in TITLES.items():
        if name in sources:
            entry = sources[name]
            memory = entry["memorisation"] or {}
            closer = f"{memory['share_closer']:.2f}" if "share_closer" in memory else None
            rows.append([title, *_scores(entry), closer, _seconds(entry, "fit"), _seconds(entry, "sample")])
    rows += [
        [f"{name} in the paper, D4RL's own file", f"{marginal}", None, f"{correlation}", *[None] * 3]
        for name, (marginal, correlation) in PAPER.items()
    ]
    head = ("rows", "marginal", "worst column", "correlation", "closer to training", "fit, s", "100,000 rows, s")
    return markdown_table(head, rows)


def _error(value: float) -> str:
    return f"{value:.2g}" if value >= ROUNDING_ERROR else "0"


def _scores(entry: dict[str, Any]) -> list[str]:
    return [f"{score:.4f}" for score in (entry["marginal"], min(entry["marginal_by_column"]), entry["correlation"])]


def _seconds(entry: dict[str, Any], of: str) -> str | None:
    value = entry.get(f"{of}_seconds")
    return None if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _dynamics(sources: dict[str, Any]) -> str:
    rows = []
    for name, title in TITLES.items():
        if name in sources:
            found = sources[name]["dynamics"]
            medians = [found[key]["median"] for key in ("distance", "next_observation_mse", "reward_mse")]
            rows.append([title, *map(_error, medians)])
    return markdown_table(
        ("rows", "distance to the data", "error of the next observation", "error of the reward"), rows
    )


def _consistency(folder: Path) -> str:
    """Errors against the simulator with and without `consistent`, a row per task and generator."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        for name, entry in _sources(path).items():
            if "dynamics" in entry and name.startswith("synther"):
                setting = entry["settings"]["consistent"]
                errors = (entry["dynamics"][key]["median"] for key in ("next_observation_mse", "reward_mse"))
                rows.append([path.stem, setting, *map(_error, errors), *_scores(entry), _seconds(entry, "fit")])
    head = ("marginal", "worst column", "correlation", "fit, s")
    errors = ("error of the next observation", "error of the reward")
    return markdown_table(("task", "`consistent`", *errors, *head), rows)


def _usefulness(folder: Path) -> str:
    """Returns of agents that learnt from rows of each source, a row per task and source."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        machine = content["machine"]["accelerator"] or "CPU"
        for source, found in content["results"].items():
            own = ", ".join(f"{value:.0f}" for value in found["returns"])
            spread = mean_and_spread(found["returns"])
            rows.append([content["settings"]["env"], machine, f"`{source}`", spread, own])
    return markdown_table(("task", "machine", "other half of each batch", "return", "by seed"), rows)


def _variants(sources: dict[str, Any]) -> str:
    rows = []
    for name, title in _VARIANTS.items():
        if name in sources:
            entry = sources[name]
            error = entry["dynamics"]["next_observation_mse"]["median"]
            rows.append([title, *_scores(entry), f"{error:.2g}"])
    return markdown_table(
        ("generator", "marginal", "worst column", "correlation", "error of the next observation"), rows
    )


def _terminations(results: dict[str, Any]) -> str:
    """Rate, precision and recall of generated flags, a row per data set and generator."""
    rows = []
    for name, generators in results.items():
        for generator, found in generators.items():
            preset, _, exact = generator.partition(", ")
            shares = (f"{100 * found[key]:.2f} %" for key in ("real_rate", "rate"))
            agreement = (f"{found[key]:.1%}".replace("%", " %") for key in ("precision", "recall"))
            shown = name.removesuffix("-regen").removeprefix("random:")
            rows.append([shown, f"`{preset}({exact})`", *shares, *agreement])
    return markdown_table(("rows", "generator", "terminated, real", "terminated", "precision", "recall"), rows)


def _rare_rewards(folder: Path) -> str:
    """Precision and recall without and with rare outcomes, a row per task and number of rewarded real rows."""
    rows = []
    files = [json.loads(path.read_text())["results"] for path in sorted(folder.glob("*.json"))]
    for task, runs in (item for results in files for item in results.items()):
        for hits in dict.fromkeys(run["real"]["rewarded"] for run in runs):
            own = [run for run in runs if run["real"]["rewarded"] == hits]
            cells = (
                " / ".join(f"{run[kind][key]:.0%}".replace("%", " %") for run in own)
                for key in ("precision", "recall")
                for kind in ("drawn", "rare")
            )
            rows.append([task, hits, *cells])
    titles = (f"{name}, {kind}" for name in ("precision", "recall") for kind in ("drawn", "rare"))
    return markdown_table(("task", "rewarded real rows", *titles), rows)


def _long_rows(tasks: dict[str, Any]) -> str:
    """Scores of variants on long rows, a row per variant."""
    names = dict.fromkeys(name for task in tasks.values() for name in task["variants"])
    rows = []
    for name in names:
        found = [task["variants"].get(name) for task in tasks.values()]
        rows.append(
            [name, *(f"{one[key]:.3f}" if one else None for one in found for key in ("marginal", "correlation"))]
        )
    head = [f"{task}, {key}" for task in tasks for key in ("marginal", "correlation")]
    return markdown_table(("`fast()`", *head), rows)


def _samplers(entries: list[dict[str, Any]]) -> str:
    rows = []
    for (trained, solver, steps, precision), titles in _SAMPLERS.items():
        for entry in entries:
            same = (entry["solver"], entry["steps"], entry["precision"]) == (solver, steps, precision)
            if same and entry["trained"].startswith(trained):
                figures = f"{entry['marginal']:.4f}", f"{entry['correlation']:.4f}", f"{entry['seconds']:.2g}"
                rows.append([*titles, steps, precision, *figures])
    return markdown_table(("trained", "sampler", "steps", "precision", "marginal", "correlation", "seconds"), rows)
