"""The rows that fidelity is measured on, and the simulator of their data set."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import DiffusionGenerator, Transitions, TransitionSpec
from synther_replay.benchmarks.data.hdf5 import validated
from synther_replay.benchmarks.data.registry import Dataset, load
from synther_replay.benchmarks.environments.parallel import EpisodeStream
from synther_replay.benchmarks.environments.simulators import Simulator, make_simulator, simulator_of


def read_dataset(name: str) -> Dataset:
    """Read a data set by a name that `data.registry.load` knows, or from an .npz file of transitions."""
    return _from_npz(Path(name).expanduser()) if name.endswith(".npz") else load(name)


def random_rows(task: str, count: int, seed: int) -> Transitions:
    """Transitions of a policy that acts at random in a task."""
    stream, rng = EpisodeStream(task, seed), np.random.default_rng(seed)
    environment = stream.environment
    observations = gym.spaces.Box(-np.inf, np.inf, (environment.observation_dim,))
    spec = TransitionSpec.from_spaces(observations, gym.spaces.Box(-1, 1, (environment.action_dim,)))
    rows = np.empty((count, spec.dim), np.float32)
    for row, action in zip(rows, rng.uniform(-1, 1, (count, environment.action_dim)).astype(np.float32), strict=True):
        now = stream.observation
        after = stream.step(action)
        row[:] = np.concatenate((now, action, [after.reward], after.observation, [after.terminated]))
    return Transitions(spec, torch.from_numpy(rows))


def draw(dataset: Dataset, count: int, seed: int, device: torch.device) -> tuple[Transitions, Transitions | None]:
    """Draw rows to fit to, and at most `count` other rows to hold out (None if fewer than two are left).

    Args:
        dataset: Data set to draw from, without replacement.
        count: Number of rows to fit to.
        seed: Random seed.
        device: Device of the rows.
    """
    least = DiffusionGenerator.min_rows
    if not least <= count <= len(dataset):
        raise ValueError(f"--rows: expected {least} to {len(dataset)} (the size of {dataset.name}), got {count}")
    order = np.random.default_rng(seed).permutation(len(dataset))
    everything = dataset.transitions()
    real, others = (everything[part].to(device) for part in (order[:count], order[count : 2 * count]))
    return real, others if len(others) > 1 else None


def choose_simulator(choice: str, dataset: Dataset) -> Simulator | None:
    """Build the simulator of a data set; None if there is none.

    Args:
        choice: Name of a simulator, "auto" to choose by the name of the data set, or "none".
        dataset: The data set; its columns must fit the simulator.
    """
    name: str | None = choice
    if choice == "auto":
        # an .npz file may name its task as "env"
        name = dataset.attributes.get("env") or simulator_of(dataset.name, official=dataset.origin == "official")
    if name in (None, "none"):
        return None
    simulator = make_simulator(str(name))
    found, expected = (
        f"{observations} columns of observations and {actions} of actions"
        for observations, actions in (
            (dataset.observations.shape[1], dataset.actions.shape[1]),
            (simulator.observation_dim, simulator.action_dim),
        )
    )
    if found != expected:
        raise ValueError(f"--simulator: {simulator.name}: got {found} from {dataset.name}, expected {expected}")
    return simulator


def description(dataset: Dataset, real: Transitions, held_out: Transitions | None) -> dict[str, Any]:
    """Data set and rows of a result, as JSON values; the fingerprint is a digest of the rows fitted to."""
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
        raise FileNotFoundError(f"{path}: file not found")
    try:
        with np.load(path) as file:
            arrays = {"terminals" if key == "terminated" else key: file[key] for key in file.files}
    except Exception as error:  # a damaged file makes NumPy raise errors of many kinds
        raise ValueError(f"{path}: cannot read the file as .npz: {error}") from error
    rows = validated(arrays, path)
    if "next_observations" not in rows:
        raise ValueError(f"{path}: missing next_observations")
    rows.setdefault("timeouts", np.zeros(len(rows["rewards"]), bool))  # required by Dataset, not used here
    attributes = {"env": str(arrays["env"])} if "env" in arrays else {}
    return Dataset(path.stem, "file", path, **rows, attributes=attributes, episode_returns=None)
