"""Figures of generator_fidelity.py: histograms of every column, and dynamics error against distance.

    python benchmarks/figures.py fidelity results/name.json

writes `name-histograms.png` and `name-dynamics.png` to the folder of the file.
"""

from __future__ import annotations

import argparse
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from synther_replay.benchmarks.common.plotting import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    YELLOW,
    save_figure,
)
from synther_replay.benchmarks.fidelity.docs_tables import DATASET
from synther_replay.benchmarks.fidelity.tables import MIN_ROWS, ROUNDING_ERROR, title

COLOURS = {"real": ORANGE, "held-out": BLACK, "noise": VERMILLION}
_MODEL_COLOURS = (BLUE, GREEN, PURPLE, SKY_BLUE, YELLOW)
_COLUMNS = 6


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw both figures into the folder of the result file.

    Args:
        content: Content of the result file.
        path: Path of the result file.
    """
    draw_histograms(content, path.with_name(f"{path.stem}-histograms.png"))
    dynamics = path.with_name(f"{path.stem}-dynamics.png")
    if content["simulator"] is None:
        dynamics.unlink(missing_ok=True)  # a figure of an earlier result would contradict this one
    else:
        draw_dynamics(content, dynamics)


def draw_histograms(content: dict[str, Any], path: Path) -> None:
    """A panel per column: real rows as a filled histogram, each model as a line."""
    shown = {name: entry for name, entry in _measured(content).items() if name not in ("held-out", "noise")}
    colours, about = _colours(content), content["histogram"]
    lines = -(-len(about["columns"]) // _COLUMNS)
    figure, grid = plt.subplots(lines, _COLUMNS, figsize=(2.2 * _COLUMNS, 1.6 * lines + 0.6), layout="constrained")
    handles = {}
    for k, axis in enumerate(grid.flat):
        axis.set_visible(k < len(about["columns"]))
        if k >= len(about["columns"]):
            continue
        axis.set_title(about["columns"][k], fontsize="small")
        axis.set_yticks([])
        axis.tick_params(labelsize="x-small")
        low, high = about["spans"][k]
        edges = np.linspace(low, high, about["bins"] + 1)
        for name, entry in shown.items():
            share = np.array(entry["histogram"][k]) / max(1, sum(entry["histogram"][k]))
            real = name == "real"
            style = {"fill": real, "alpha": 0.6 if real else 1.0, "linewidth": 0 if real else 1.2}
            handles[name] = axis.stairs(share, edges, color=colours[name], **style)
    figure.legend([*handles.values()], [*map(title, handles)], loc="outside upper center", ncols=len(handles))
    save_figure(figure, path)


def draw_dynamics(content: dict[str, Any], path: Path) -> None:
    """Median and central 80 % of the squared error by distance, and the distribution of distances."""
    colours, lowest = _colours(content), []
    figure, (errors, distances) = plt.subplots(
        2, 1, figsize=(6, 5.5), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    for name, entry in _measured(content).items():
        bins = [part for part in entry["dynamics"]["bins"] if part["rows"] >= MIN_ROWS]
        if name == "real" or not bins:  # real rows are at distance 0
            continue
        where = [part["distance"]["median"] for part in bins]
        low, middle, high = ([part["next_observation_mse"][q] for part in bins] for q in ("p10", "median", "p90"))
        errors.plot(where, middle, color=colours[name], marker="o", markersize=3, label=title(name))
        errors.fill_between(where, low, high, color=colours[name], alpha=0.2, linewidth=0)
        lowest += [error for error in low if error > ROUNDING_ERROR]
        share = [part["rows"] / entry["dynamics"]["answered"] for part in bins]
        distances.plot(where, share, color=colours[name])
    for axis in (errors, distances):
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    errors.set_yscale("log")
    errors.set_ylim(bottom=min(lowest, default=ROUNDING_ERROR) / 2)
    errors.set_title(f"errors below {ROUNDING_ERROR:g} (rounding) are not shown", fontsize="small")
    errors.set_ylabel("squared error of the next observation")
    distances.set_ylabel("share of rows")
    distances.set_xlabel("distance to the nearest training row (standard deviations)")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    save_figure(figure, path)


def draw_for_docs(results: Path, out: Path) -> None:
    """Draw the figures of the documentation.

    Args:
        results: Folder of the published results.
        out: Output folder.
    """
    content = json.loads((results / "fidelity" / "main" / f"{DATASET}.json").read_text())
    draw(content, out / "fidelity.json")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options."""
    parser.add_argument("results", nargs="+", type=Path, help="result files of generator_fidelity.py")


def run(args: argparse.Namespace) -> None:
    """Draw the figures of each file."""
    for path in args.results:
        try:
            content = json.loads(path.read_text())
            if not (isinstance(content, dict) and "sources" in content):
                raise ValueError("missing key 'sources'")
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: expected a result of generator_fidelity.py: {error}") from error
        draw(content, path)


def _measured(content: dict[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in content["sources"].items() if "failed" not in entry}


def _colours(content: dict[str, Any]) -> dict[str, str]:
    spare = cycle(_MODEL_COLOURS)
    return {name: COLOURS.get(name) or next(spare) for name in content["sources"]}
