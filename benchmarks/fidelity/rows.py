"""The rows that the fidelity of generators is measured on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther_replay import DiffusionGenerator, Transitions
from synther_replay.benchmarks.data.hdf5 import checked
from synther_replay.benchmarks.data.registry import Dataset, load
from synther_replay.benchmarks.environments.simulators import Simulator, make_simulator, simulator_of


def read_set(name: str) -> Dataset:
    """A data set that `registry.load` knows, or an .npz file of transitions."""
    return _from_npz(Path(name).expanduser()) if name.endswith(".npz") else load(name)


def draw(dataset: Dataset, count: int, seed: int, device: torch.device) -> tuple[Transitions, Transitions | None]:
    """Rows to fit to, and as many others as there are, at most `count`; None where there are not even two.

    Args:
        dataset: To draw from, without replacement.
        count: Of the rows to fit to.
        seed: The same one gives the same rows.
        device: To put them on.
    """
    least = DiffusionGenerator.min_rows
    if not least <= count <= len(dataset):
        raise ValueError(f"rows: expected {least} to {len(dataset)}, the rows of {dataset.name}, got {count}")
    order = np.random.default_rng(seed).permutation(len(dataset))
    everything = dataset.transitions()
    real, others = (everything[part].to(device) for part in (order[:count], order[count : 2 * count]))
    return real, others if len(others) > 1 else None


def choose_simulator(choice: str, dataset: Dataset) -> Simulator | None:
    """What knows the dynamics of a set.

    Args:
        choice: A name, "auto" to go by the set's, or "none".
        dataset: That it must fit.
    """
    name: str | None = choice
    if choice == "auto":
        # an .npz file may name its task
        name = dataset.attributes.get("env") or simulator_of(dataset.name, official=dataset.origin == "official")
    if name in (None, "none"):
        return None
    simulator = make_simulator(str(name))
    has, needs = (
        f"{observations} columns of observations and {actions} of actions"
        for observations, actions in (
            (dataset.observations.shape[1], dataset.actions.shape[1]),
            (simulator.observation_dim, simulator.action_dim),
        )
    )
    if has != needs:
        raise ValueError(f"simulator: {simulator.name} needs {needs}, {dataset.name} has {has}")
    return simulator


def description(dataset: Dataset, real: Transitions, held_out: Transitions | None) -> dict[str, Any]:
    """Which rows a result is about, as JSON values; the fingerprint is that of the rows fitted to."""
    return {
        "dataset": dataset.name,
        "data": dataset.origin,
        "set_rows": len(dataset),
        "rows": len(real),
        "held_out_rows": 0 if held_out is None else len(held_out),
        "row_size": real.spec.dim,
        "fingerprint": hashlib.sha256(real.rows.cpu().numpy().tobytes()).hexdigest()[:16],
    }


def _from_npz(path: Path) -> Dataset:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with np.load(path) as file:
            arrays = {"terminals" if key == "terminated" else key: file[key] for key in file.files}
    except Exception as error:  # a damaged file makes NumPy raise errors of many kinds
        raise ValueError(f"{path}: cannot be read as NumPy's .npz: {error}") from error
    rows = checked(arrays, path)
    if "next_observations" not in rows:
        raise ValueError(f"{path}: there are no next_observations")
    rows.setdefault("timeouts", np.zeros(len(rows["rewards"]), bool))  # nothing here asks for them
    attributes = {"env": str(arrays["env"])} if "env" in arrays else {}
    return Dataset(path.stem, "file", path, **rows, attributes=attributes, episode_returns=None)
