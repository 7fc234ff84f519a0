"""Drives a checkout of the published SynthER code, so that it can be timed beside ours in the same run.

Only its diffusion is used. It imports an RL agent, a simulator and a logging service that take no part in that; where
these are not installed, empty stand-ins take their place. Needed for real: gin-config, einops, ema-pytorch,
accelerate, torchdiffeq.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_UNUSED = ("wandb", "d4rl", "gym", "gym.wrappers", "gym.wrappers.flatten_observation", "redq", "redq.algos")


def check_reference(checkout: Path) -> None:
    """Refuse a folder that is none of the published repository's."""
    if not (checkout / "synther" / "diffusion" / "elucidated_diffusion.py").is_file():
        raise ValueError(f"reference: {checkout} is not a checkout of the published SynthER code")


class PublishedDiffusion:
    """The published model and trainer in the configuration of the published online experiments.

    Args:
        checkout: Folder of the published repository.
        data: Rows to train on, ``(n, dim)``.
        steps: Length of its learning-rate schedule.
    """

    def __init__(self, checkout: Path, data: Tensor, *, steps: int = 100_000) -> None:
        """Import the published code and build its model, quietly."""
        check_reference(checkout)
        _stand_in_for_unused()
        sys.path.insert(0, str(checkout))
        try:
            from synther.diffusion.denoiser_network import ResidualMLPDenoiser
            from synther.diffusion.elucidated_diffusion import ElucidatedDiffusion, REDQTrainer
            from synther.diffusion.norm import normalizer_factory
        finally:
            sys.path.remove(str(checkout))
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
        """One of its training steps on a batch from the host, as its online loop makes them."""
        index = torch.randint(len(self._data), (256,))
        return float(self._trainer.train_on_batch(self._data[index], use_wandb=False))

    def sample(self, rows: int, steps: int = 128) -> Tensor:
        """Its sampler, in batches of at most 100K rows as it does."""
        model = self._trainer.ema.ema_model.eval()
        sizes = [min(100_000, rows - start) for start in range(0, rows, 100_000)]
        parts = [model.sample(n, num_sample_steps=steps, clamp=False, disable_tqdm=True).cpu() for n in sizes]
        return torch.cat(parts)


def _stand_in_for_unused() -> None:
    for name in (*_UNUSED, "redq.algos.core"):
        if name in sys.modules or _installed(name):
            continue
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)  # accelerate looks for it to see whether a logger is there
        for attribute in ("ReplayBuffer", "FlattenObservation", "Env"):
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
