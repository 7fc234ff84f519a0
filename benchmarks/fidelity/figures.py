"""Figures of generator_fidelity.py: histograms of every column, and the dynamics' error against the distance.

    python benchmarks/figures.py fidelity results/name.json

writes `name-histograms.png` and `name-dynamics.png` beside the file.
"""

from __future__ import annotations

import argparse
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt  # after the choice of the backend
import numpy as np

from synther_replay.benchmarks.common.files import writing
from synther_replay.benchmarks.fidelity.documented import DATASET
from synther_replay.benchmarks.fidelity.tables import FEW, title

matplotlib.use("Agg")

# the colours of Okabe and Ito, which colour-blind readers tell apart
COLOURS = {"real": "#E69F00", "held-out": "#000000", "noise": "#D55E00"}
_OTHER_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
_COLUMNS = 6
_ROUNDING = 1e-6  # squared errors below this come from float32


def draw(content: dict[str, Any], path: Path) -> None:
    """Both figures, named after the result at `path` and beside it.

    Args:
        content: The result.
        path: Of its file.
    """
    draw_histograms(content, path.with_name(f"{path.stem}-histograms.png"))
    dynamics = path.with_name(f"{path.stem}-dynamics.png")
    if content["simulator"] is None:
        dynamics.unlink(missing_ok=True)  # one of an earlier result would contradict this one
    else:
        draw_dynamics(content, dynamics)


def draw_histograms(content: dict[str, Any], path: Path) -> None:
    """A panel per column: the real rows filled, those of every model as a line."""
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
    _save(figure, path)


def draw_dynamics(content: dict[str, Any], path: Path) -> None:
    """Medians of the squared error against the distance, with the central 80 %, and the distances themselves."""
    colours, lowest = _colours(content), []
    figure, (errors, distances) = plt.subplots(
        2, 1, figsize=(6, 5.5), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    for name, entry in _measured(content).items():
        bins = [part for part in entry["dynamics"]["bins"] if part["rows"] >= FEW]
        if name == "real" or not bins:  # those are at distance 0, all of them
            continue
        where = [part["distance"]["median"] for part in bins]
        low, middle, high = ([part["next_observation_mse"][q] for part in bins] for q in ("p10", "median", "p90"))
        errors.plot(where, middle, color=colours[name], marker="o", markersize=3, label=title(name))
        errors.fill_between(where, low, high, color=colours[name], alpha=0.2, linewidth=0)
        lowest += [error for error in low if error > _ROUNDING]
        share = [part["rows"] / entry["dynamics"]["answered"] for part in bins]
        distances.plot(where, share, color=colours[name])
    for axis in (errors, distances):
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    errors.set_yscale("log")
    errors.set_ylim(bottom=min(lowest, default=_ROUNDING) / 2)  # without what is due to rounding, far below
    errors.set_title(f"errors below {_ROUNDING:g}, as by rounding, are not shown", fontsize="small")
    errors.set_ylabel("squared error of the next observation")
    distances.set_ylabel("share of rows")
    distances.set_xlabel("distance to the nearest row fitted to (standard deviations)")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    _save(figure, path)


def draw_documented(results: Path, out: Path) -> None:
    """The figures of the documents.

    Args:
        results: Folder of the published results.
        out: Folder to write to.
    """
    content = json.loads((results / "fidelity" / "main" / f"{DATASET}.json").read_text())
    draw(content, out / "fidelity.json")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command line."""
    parser.add_argument("results", nargs="+", type=Path, help="files that generator_fidelity.py wrote")


def run(args: argparse.Namespace) -> None:
    """Draw the figures of each file."""
    for path in args.results:
        try:
            content = json.loads(path.read_text())
            if not (isinstance(content, dict) and "sources" in content):
                raise ValueError("it names no sources")
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: expected a result of generator_fidelity.py: {error}") from error
        draw(content, path)


def _measured(content: dict[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in content["sources"].items() if "failed" not in entry}


def _colours(content: dict[str, Any]) -> dict[str, str]:
    spare = cycle(_OTHER_COLOURS)
    return {name: COLOURS.get(name) or next(spare) for name in content["sources"]}


def _save(figure: Any, path: Path) -> None:
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png")
    plt.close(figure)
