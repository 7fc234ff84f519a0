"""Runs the diffusion model and the agent of a checkout of the published SynthER code, to time them next to ours.

The code imports packages that are not used here (wandb, d4rl, gym); empty stubs replace those that are not installed.
Required packages: gin-config, einops, ema-pytorch, accelerate, torchdiffeq. The agent also requires redq, installed or
as a checkout of watchernyu/REDQ in ``synther/REDQ``, at the commit named in SynthER's ``requirements.txt``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

_UNUSED = ("wandb", "d4rl", "gym", "gym.wrappers", "gym.wrappers.flatten_observation")


def check_reference(checkout: Path) -> None:
    """Raise `ValueError` if a folder is not a checkout of the published code, or redq is missing."""
    expected = checkout / "synther" / "diffusion" / "elucidated_diffusion.py"
    if not expected.is_file():
        raise ValueError(f"--reference: {checkout} is not a checkout of the published SynthER code: no {expected}")
    with _importable(checkout):
        if not _installed("redq.algos.redq_sac"):
            raise ValueError(
                f"--reference: the agent requires redq, which is neither installed nor in "
                f"{checkout / 'synther' / 'REDQ'}"
            )


class PublishedDiffusion:
    """The published model and trainer in the configuration of the published online experiments.

    Args:
        checkout: Folder of the published repository.
        data: Rows to train on, ``(n, dim)``.
        steps: Length of its learning-rate schedule.
    """

    def __init__(self, checkout: Path, data: Tensor, *, steps: int = 100_000) -> None:
        """Import the published code and build its model, without its output."""
        check_reference(checkout)
        with _importable(checkout):
            _stub_unused()
            from synther.diffusion.denoiser_network import ResidualMLPDenoiser
            from synther.diffusion.elucidated_diffusion import ElucidatedDiffusion, REDQTrainer
            from synther.diffusion.norm import normalizer_factory
        network = ResidualMLPDenoiser(d_in=data.shape[1], dim_t=128, mlp_width=1024, num_layers=6, layer_norm=False)
        self._folder = tempfile.TemporaryDirectory()
        with contextlib.redirect_stdout(io.StringIO()):
            normaliser = normalizer_factory("standard", data.cpu(), skip_dims=[data.shape[1] - 1])
            model: Any = ElucidatedDiffusion(net=network, normalizer=normaliser, event_shape=[data.shape[1]])
            self._trainer = REDQTrainer(
                model,
                train_batch_size=256,
                train_lr=3e-4,
                lr_scheduler="cosine",
                train_num_steps=steps,
                save_and_sample_every=10**9,
                results_folder=self._folder.name,
            )
        self._data = data.cpu()

    def train_step(self) -> float:
        """One training step on a batch from the CPU, as in its online loop."""
        index = torch.randint(len(self._data), (256,))
        return float(self._trainer.train_on_batch(self._data[index], use_wandb=False))

    def sample(self, rows: int, steps: int = 128) -> Tensor:
        """Sample rows in batches of at most 100K, as the published code does."""
        model = self._trainer.ema.ema_model.eval()
        sizes = [min(100_000, rows - start) for start in range(0, rows, 100_000)]
        parts = [model.sample(n, num_sample_steps=steps, clamp=False, disable_tqdm=True).cpu() for n in sizes]
        return torch.cat(parts)


class PublishedAgent:
    """The published agent in the configuration of its online experiments, in Gymnasium's HalfCheetah.

    Half of each batch comes from a full buffer of synthetic rows, as after its first refit.

    Args:
        checkout: Folder of the published repository.
        data: Rows with the columns of HalfCheetah to fill both buffers with, ``(n, dim)``.
        device: Device of the agent.
        synthetic_rows: Size of the synthetic buffer.
    """

    def __init__(self, checkout: Path, data: Tensor, device: torch.device, *, synthetic_rows: int = 1_000_000) -> None:
        """Import the published code, build its agent and fill its buffers."""
        check_reference(checkout)
        with _importable(checkout):
            from synther.online.redq_rlpd_agent import REDQRLPDAgent
        self._env = gym.wrappers.ClipAction(gym.wrappers.RescaleAction(gym.make("HalfCheetah-v5"), -1.0, 1.0))
        sizes = self._env.observation_space.shape[0], self._env.action_space.shape[0]
        self.agent: Any = REDQRLPDAgent(
            synthetic_rows, 0.5, "HalfCheetah-v5", *sizes, 1.0, device, target_entropy="auto", num_Q=2
        )
        self._columns = np.split(data.cpu().numpy(), np.cumsum([sizes[0], sizes[1], 1, sizes[0]]), axis=1)
        self._fill(self.agent.replay_buffer, len(data))
        self._fill(self.agent.diffusion_buffer, synthetic_rows)
        self._observation, _ = self._env.reset(seed=0)

    def train(self) -> None:
        """The updates of one environment step: 20 of the critics, one of the policy."""
        self.agent.train(self)

    def store(self, **_: Any) -> None:
        """Stub of its logger: ignores the values."""

    def step(self) -> None:
        """One environment step: choose an action, step, and store the transition."""
        action = self.agent.get_exploration_action(self._observation, self._env)
        after, reward, terminated, truncated, _ = self._env.step(action)
        self.agent.store_data(self._observation, action, reward, after, terminated)
        self._observation = self._env.reset()[0] if terminated or truncated else after

    def insert(self, rows: int) -> None:
        """Insert synthetic rows one by one, as the published code does after a refit."""
        observations, actions, rewards, after, ends = (column[:rows] for column in self._columns)
        for row in zip(observations, actions, rewards[:, 0], after, ends[:, 0], strict=True):
            self.agent.diffusion_buffer.store(*row)

    def _fill(self, buffer: Any, rows: int) -> None:
        names = ("obs1_buf", "acts_buf", "rews_buf", "obs2_buf", "done_buf")
        for name, column in zip(names, self._columns, strict=True):
            target = getattr(buffer, name)
            target[:rows] = np.resize(column, (rows, *target.shape[1:]))
        buffer.size, buffer.ptr = rows, rows % buffer.max_size


@contextlib.contextmanager
def _importable(checkout: Path) -> Iterator[None]:
    folders = [str(checkout), str(checkout / "synther" / "REDQ")]
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)


def _stub_unused() -> None:
    for name in _UNUSED:
        if name in sys.modules or _installed(name):
            continue
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)  # accelerate checks it to detect loggers
        for attribute in ("FlattenObservation", "Env"):
            setattr(module, attribute, type(attribute, (), {}))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
