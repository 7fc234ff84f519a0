"""Trained policies: in NumPy, for worker processes without a GPU, and in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.squashed_gaussian import LOG_STD
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

KIND = "policies"


class Policy:
    """One agent's policy network in NumPy.

    Args:
        layers: Arrays with the names of `MlpShape.sizes`; the first bias is the row of `w1` after the inputs.
    """

    def __init__(self, **layers: np.ndarray) -> None:
        """Keep the arrays."""
        self.layers = layers

    def mean_action(self, observation: np.ndarray) -> np.ndarray:
        """The deterministic action, ``(A,)``."""
        out = self._outputs(observation)
        action: np.ndarray = np.tanh(out[: len(out) // 2])
        return action

    def sampled_action(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """A sampled action, ``(A,)``, with standard normal `noise` ``(A,)``."""
        out = self._outputs(observation)
        actions = len(noise)
        action: np.ndarray = np.tanh(out[:actions] + np.exp(out[actions:].clip(*LOG_STD)) * noise)
        return action

    def _outputs(self, observation: np.ndarray) -> np.ndarray:
        """Means and log-stds, ``(2A,)``."""
        layers, inputs, last = self.layers, len(observation), (len(self.layers) + 1) // 2
        hidden = np.maximum(observation @ layers["w1"][:inputs] + layers["w1"][inputs], 0)
        for k in range(2, last):
            hidden = np.maximum(hidden @ layers[f"w{k}"] + layers[f"b{k}"][0], 0)
        out: np.ndarray = hidden @ layers[f"w{last}"] + layers[f"b{last}"][0]
        return out


def policies_of(weights: Layers) -> list[Policy]:
    """One policy per agent from stacked weights on the CPU."""
    arrays = {name: np.ascontiguousarray(part.numpy()) for name, part in weights.items()}
    return [Policy(**{name: part[agent] for name, part in arrays.items()}) for agent in range(len(arrays["w1"]))]


def save_policies(path: Path, weights: Layers) -> None:
    """Write the policies of all agents to one file, in fp16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, KIND, {name: part.half() for name, part in weights.items()})


def load_policies(path: Path) -> list[Policy]:
    """Read the policies of a file, one per agent.

    Raises:
        CheckpointError: The file is damaged or holds something else.
    """
    state = load_checkpoint(path, KIND)
    return policies_of(Layers({name: part.to(torch.float32) for name, part in state.items()}))
