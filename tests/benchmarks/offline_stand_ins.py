"""Small data sets, and stubs for an offline run without processes and with small networks."""

from dataclasses import replace
from functools import cache
from urllib.error import URLError

import numpy as np
import online_stand_ins
import pytest
from gymnasium.spaces import Box

pytest.importorskip("h5py")
pytest.importorskip("mujoco")
from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.data import download as dataset_files
from synther_replay.benchmarks.data.registry import write
from synther_replay.benchmarks.environments.tasks import make_environment
from synther_replay.benchmarks.offline import run as offline_run
from synther_replay.benchmarks.offline.settings import OfflineConfig

HOPPER, MAZE = "hopper-medium-regen", "maze2d-umaze-regen"
CHUNK, STEPS, EVERY = 12, 40, 16  # so that a run is saved in other places than it is judged
GENERATOR = {"width": 32, "depth": 1, "steps": 20, "batch_size": 32, "sampling_steps": 3}


def config(algo="td3bc", data="real", **changes):
    """A config that runs in a second."""
    values = {"dataset": HOPPER, "seeds": 2, "steps": STEPS, "episodes": 1, "evaluate_every": EVERY}
    if data != "real":
        values |= {"preset": "tiny", "rows": 96, "generator": GENERATOR}
    return OfflineConfig(algo=algo, data=data, **{**values, **changes})


@cache
def collected(task, rows):
    """Rows of random actions under D4RL's keys; episodes have at most 50 steps."""
    environment, rng = make_environment(task), np.random.default_rng(0)
    taken, length, here = [], 0, environment.reset(0)
    for k in range(rows):
        action = rng.uniform(-1, 1, environment.action_dim).astype(np.float32)
        after = environment.step(action)
        length += 1
        timeout = not after.terminated and length == 50
        taken.append((here, action, after.reward, after.observation, after.terminated, timeout))
        over = after.terminated or timeout
        here, length = (environment.reset(k + 1), 0) if over else (after.observation, length)
    keys = "observations", "actions", "rewards", "next_observations", "terminals", "timeouts"
    return {key: np.array(values) for key, values in zip(keys, zip(*taken, strict=True), strict=True)}


def collected_transitions(task, rows):
    """`collected` as transitions."""
    taken = collected(task, rows)
    sizes = taken["observations"].shape[1], taken["actions"].shape[1]
    spec = TransitionSpec.from_spaces(Box(-np.inf, np.inf, sizes[:1]), Box(-1, 1, sizes[1:]))
    keys = "observations", "actions", "rewards", "next_observations", "terminals"
    return Transitions.from_arrays(spec, *(taken[key] for key in keys))


def write_sets(folder, rows=200):
    """Write one set of each kind where `--folder` finds them."""
    for name, task in ((HOPPER, "Hopper-v5"), (MAZE, "maze2d-umaze")):
        write(folder / f"{name}.hdf5", collected(task, rows), {"command": "python make.py", "recipe": {"seed": 0}})
    return folder


def no_other_sets(monkeypatch, home):
    """Hide all data sets but those of the test."""
    for variable in ("D4RL_DATASET_DIR", "SYNTHER_REPLAY_DATASETS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))

    def unreachable(*_, **__):
        raise URLError("there is no network")

    monkeypatch.setattr(dataset_files, "urlopen", unreachable)


def install(monkeypatch):
    """Evaluate in this process, with short chunks and small networks."""
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    monkeypatch.setattr(offline_run, "Evaluator", online_stand_ins.Evaluator)
    monkeypatch.setitem(offline_run.CHUNK, "cpu", CHUNK)
    genuine = OfflineConfig._settings

    def small(self):
        return replace(genuine(self), hidden=16, batch_size=32, updates_per_call=4)

    monkeypatch.setattr(OfflineConfig, "_settings", small)
