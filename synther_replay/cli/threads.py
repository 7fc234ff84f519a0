"""Threads of PyTorch on a CPU."""

from __future__ import annotations

import os

import torch

from synther_replay.config import GeneratorConfig

_NARROW = 256  # up to this width, threads wait for each other longer than they compute


def choose_threads(config: GeneratorConfig, device: torch.device) -> None:
    """Use one thread for small networks on a CPU, unless ``OMP_NUM_THREADS`` says otherwise."""
    if device.type == "cpu" and config.width <= _NARROW and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
