"""Colours and file output of the figures; importing this module selects matplotlib's Agg backend."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from synther_replay.benchmarks.common.files import writing

matplotlib.use("Agg")

# Colour-blind safe palette of Okabe and Ito.
BLACK, ORANGE, SKY_BLUE, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"


def save_figure(figure: Figure, path: Path, *, dpi: int = 130) -> None:
    """Write a figure in the format of the file name's suffix, and close it."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format=path.suffix[1:])
    plt.close(figure)
