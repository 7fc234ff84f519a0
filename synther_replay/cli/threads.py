"""Threads of PyTorch on a CPU."""

from __future__ import annotations

import os

import torch

from synther_replay.config import GeneratorConfig

_NARROW = 256  # up to this width, threads wait for each other longer than they compute


_ALL = torch.get_num_threads()


def choose_threads(config: GeneratorConfig, device: torch.device) -> None:
    """Use one thread for small networks on a CPU and all for others, unless ``OMP_NUM_THREADS`` says otherwise."""
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1 if config.width <= _NARROW else _ALL)
