"""The real transitions of a finished run as .npz files, which `generator_fidelity.py` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from synther_replay import Transitions
from synther_replay.benchmarks.common.files import writing


def save_rows(stem: Path, transitions: Transitions, first_seed: int) -> list[Path]:
    """Write ``<stem>-<seed>.npz`` for each agent.

    Args:
        stem: Folder, which is created, and beginning of the file names.
        transitions: Transitions ``(M, n)``, or ``(n,)`` of one agent.
        first_seed: Seed of the first agent.
    """
    spec, rows = transitions.spec, transitions.rows.cpu().numpy()
    paths = []
    for agent, own in enumerate(rows[None] if rows.ndim == 2 else rows):
        columns = {name: own[:, getattr(spec, name)] for name in ("observations", "actions", "next_observations")}
        paths.append(stem.with_name(f"{stem.name}-{first_seed + agent}.npz"))
        with writing(paths[-1]) as temporary, temporary.open("wb") as file:
            rewards, terminated = own[:, spec.rewards.start], own[:, spec.terminated.start] > 0.5
            np.savez(file, **columns, rewards=rewards, terminals=terminated)
    return paths
