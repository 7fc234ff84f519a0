"""The two figures of the examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

from synther_replay import Transitions

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the backend is set

PENDULUM = ("cos", "sin", "speed", "torque", "reward", "next cos", "next sin", "next speed")


def draw_marginals(real: Transitions, synthetic: Transitions, path: Path, names: Sequence[str] = PENDULUM) -> None:
    """Plot one histogram per column, real and synthetic."""
    figure, axes = plt.subplots(2, -(-len(names) // 2), figsize=(14, 6))
    for k, (name, axis) in enumerate(zip(names, axes.flat, strict=False)):
        values = [rows.rows[:, k].cpu().numpy() for rows in (real, synthetic)]
        bins = np.linspace(min(v.min() for v in values), max(v.max() for v in values), 50)
        axis.hist(values[0], bins, density=True, alpha=0.6, color="tab:orange", label=f"real ({len(real):,})")
        axis.hist(
            values[1], bins, density=True, histtype="step", color="tab:blue", label=f"synthetic ({len(synthetic):,})"
        )
        axis.set_title(name)
        axis.set_yticks([])
    axes.flat[0].legend()
    _save(figure, path)


def draw_curves(steps: Sequence[int], curves: Mapping[str, np.ndarray], path: Path, title: str) -> None:
    """Plot the mean return over seeds, with thin lines for single seeds; curves ``(seeds, steps)``."""
    figure, axis = plt.subplots(figsize=(8, 5))
    for (name, returns), colour in zip(curves.items(), ("tab:gray", "tab:blue", "tab:orange"), strict=False):
        axis.plot(steps, returns.T, color=colour, alpha=0.3, linewidth=0.8)
        axis.plot(steps, returns.mean(0), color=colour, linewidth=2.5, label=name)
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return of the deterministic policy")
    axis.set_title(title)
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)
    _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
