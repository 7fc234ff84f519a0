"""Markdown tables of generator_fidelity.py."""

from __future__ import annotations

from typing import Any

from synther_replay.benchmarks.common.formatting import markdown_table

NAMES = {"real": "real rows, training", "held-out": "real rows, held out", "noise": "real rows with noise"}
MIN_ROWS = 20  # fewest rows of a distance bin for which its median is shown
ROUNDING_ERROR = 1e-6  # smaller squared errors are rounding errors of float32


def tables(content: dict[str, Any]) -> str:
    """All tables with a legend.

    Args:
        content: Content of the result file.
    """
    sources = content["sources"]
    parts = [
        f"{content['dataset']} ({content['data']}): {content['rows']} of {content['set_rows']} rows used for "
        f"training, as many generated, {content['held_out_rows']} held out.",
        fidelity_table(sources),
        "Closer to training: share of rows, 0.5 without memorisation. Ratio: median distance to the training rows "
        "divided by that of held-out rows.",
        *verdict_tables(sources),
        compression_table(content),
    ]
    if content["simulator"] is None:
        return "\n\n".join([*parts, "Dynamics were not measured: no simulator for this data set."])
    parts += [
        f"Dynamics by {content['simulator']}: squared error of the next observation (mean over its columns) and the "
        "reward. Distance: from observation and action to the nearest training row, in standard deviations. Clipped: "
        "rows with a velocity at or near its bound, which do not determine the state. Noise: normal, with a tenth of "
        "each column's standard deviation, the same on both observations.",
        dynamics_table(sources),
        f"Median squared error of the next observation by distance, for bins of at least {MIN_ROWS} rows:",
        distance_table(sources),
    ]
    return "\n\n".join(parts)


def title(name: str) -> str:
    """Display name of a source."""
    return NAMES.get(name, name)


def fidelity_table(sources: dict[str, Any]) -> str:
    """Fidelity, memorisation and time, a row per source."""
    header = ("rows", "marginal", "worst column", "correlation", "closer to training", "ratio", "fit, s", "generate, s")
    lines = []
    for name, entry in sources.items():
        if "failed" in entry:
            lines.append([name, "failed", *[None] * 6])
        elif "marginal" in entry:
            memory = entry["memorisation"] or {}
            scores = entry["marginal"], min(entry["marginal_by_column"]), entry["correlation"]
            seconds = entry.get("fit_seconds"), entry.get("sample_seconds")
            lines.append([title(name), *scores, memory.get("share_closer"), memory.get("ratio"), *seconds])
    return markdown_table(header, lines)


def verdict_tables(sources: dict[str, Any]) -> list[str]:
    """Terminations, bounds and failures, a row per source; nothing for files without them."""
    header = ("rows", "terminated, real", "terminated", "out of bounds", "out of range", "columns failed", "worst")
    keys = "termination_rate_real", "termination_rate_synthetic", "out_of_bounds", "out_of_range"
    lines = []
    for name, entry in sources.items():
        if "failures" in entry:
            failed = sum(column["failure"] is not None for column in entry["columns"])
            lines.append([title(name), *(entry[key] for key in keys), failed, (entry["failures"] or [None])[0]])
    return [markdown_table(header, lines)] if lines else []


def compression_table(content: dict[str, Any]) -> str:
    """Numbers in the data divided by model parameters."""
    counts = {"training rows": ("rows", "fitted"), "whole set": ("set_rows", "whole_set")}
    lines = [
        [name, data, content[rows] * content["row_size"], entry["parameters"], entry["compression"][key]]
        for name, entry in content["sources"].items()
        if "compression" in entry
        for data, (rows, key) in counts.items()
    ]
    return markdown_table(("model", "data", "numbers", "parameters", "compression"), lines)


def dynamics_table(sources: dict[str, Any]) -> str:
    """Distances and errors, a row per source."""
    header = ("rows", "distance, 10 %", "median", "90 %", "next observation, median", "mean", "reward, median", "mean")
    lines = []
    for name, found in _dynamics(sources).items():
        distance, following, reward = (found.get(key, {}) for key in ("distance", "next_observation_mse", "reward_mse"))
        numbers = [distance.get(key) for key in ("p10", "median", "p90")]
        numbers += [part.get(key) for part in (following, reward) for key in ("median", "mean")]
        lines.append([title(name), *numbers, found["answered"], found["clipped"]])
    return markdown_table((*header, "answered", "clipped"), lines)


def distance_table(sources: dict[str, Any]) -> str:
    """Errors by distance, a column per source."""
    # Training rows are at distance 0.
    by_source = {
        name: {part["from"]: part for part in found["bins"] if part["rows"] >= MIN_ROWS}
        for name, found in _dynamics(sources).items()
        if name != "real"
    }
    intervals = {start: part["to"] for bins in by_source.values() for start, part in bins.items()}
    lines = []
    for start in sorted(intervals):
        parts = [bins.get(start) for bins in by_source.values()]
        cells = [part and part["next_observation_mse"]["median"] for part in parts]
        end = "" if intervals[start] is None else f"{intervals[start]:.3g}"
        lines.append([f"{start:.3g} to {end}", *cells])
    return markdown_table(("distance", *map(title, by_source)), lines)


def _dynamics(sources: dict[str, Any]) -> dict[str, Any]:
    return {name: entry["dynamics"] for name, entry in sources.items() if entry.get("dynamics")}
