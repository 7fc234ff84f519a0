"""Stable-Baselines3's SAC on images, with synthetic replay in the latent space of a frozen encoder.

The buffer stores images. The encoder maps them to 32 numbers, the generator models these, and batches hold latents in
place of images, real and synthetic alike. The agent's feature extractor is the same encoder: it encodes images when the
agent acts and passes latents of a batch through.

    python examples/sb3_pixels.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from synther_replay.adapters.sb3 import SynthERBuffer, SynthERCallback

SIZE, LATENTS = 32, 32


class Dot(gym.Env[np.ndarray, np.ndarray]):
    """Push a bright dot to the centre of a 32 x 32 image; the reward is minus its distance."""

    observation_space = gym.spaces.Box(0, 255, (1, SIZE, SIZE), np.uint8)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the dot anywhere."""
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(-1, 1, 2), 0
        return self._image(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the dot by at most a tenth of the image."""
        self.place = np.clip(self.place + 0.2 * action, -1, 1)
        self.steps += 1
        return self._image(), -float(np.linalg.norm(self.place)), False, self.steps == 50, {}

    def _image(self) -> np.ndarray:
        line = np.linspace(-1, 1, SIZE)
        bump = [np.exp(-0.5 * ((line - x) / 0.15) ** 2) for x in self.place]
        return (255 * np.outer(*bump)).astype(np.uint8)[None]


class FrozenEncoder(nn.Module):
    """Random convolutions; any pretrained network can stand here. Change `version` whenever the weights change."""

    version = 0

    def __init__(self) -> None:
        """Draw the weights; they are never trained."""
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Conv2d(1, 8, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, LATENTS), nn.LayerNorm(LATENTS)
            )
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images ``(n, 1, 32, 32)`` as latents ``(n, 32)``."""
        latents: Tensor = self.layers(images.float() / 255)
        return latents


class ImagesOrLatents(BaseFeaturesExtractor):
    """Feature extractor of the agent: encodes images, passes latents through."""

    def __init__(self, observation_space: gym.Space[Any], encoder: FrozenEncoder) -> None:
        """Use the encoder of the buffer."""
        super().__init__(observation_space, LATENTS)
        # In a tuple, so that it is no submodule: SB3 moves the weights of a target network towards those of the network
        # in place, and weights that both share would shrink at every update.
        self.shared = (encoder,)

    def forward(self, observations: Tensor) -> Tensor:
        """Return latents ``(n, 32)``."""
        return observations if observations.ndim == 2 else self.shared[0](observations)


def make(seed: int = 0, **options: Any) -> SAC:
    """Make an agent whose buffer and policy share one encoder; `options` are those of the buffer."""
    encoder = FrozenEncoder()
    return SAC(
        "CnnPolicy",
        Dot(),
        seed=seed,
        buffer_size=20_000,
        learning_starts=200,
        gradient_steps=2,
        replay_buffer_class=SynthERBuffer,
        replay_buffer_kwargs={"encoder": encoder, **options},
        policy_kwargs={
            "features_extractor_class": ImagesOrLatents,
            "features_extractor_kwargs": {"encoder": encoder},
            "normalize_images": False,  # the encoder scales them
            "net_arch": [64, 64],
        },
        device="cpu",
    )


def main() -> None:
    """Train with and without synthetic rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps")
    parser.add_argument("--refit", type=int, default=1_000, help="environment steps between refits")
    options = parser.parse_args()
    for name, ratio in (("real rows only", 1.0), ("half synthetic", 0.5)):
        model = make(real_ratio=ratio, schedule={"every": options.refit, "start": options.refit, "rows": 10_000})
        model.learn(options.steps, callback=SynthERCallback(verbose=1))
        mean, deviation = evaluate_policy(model, Dot(), 10)
        print(f"{name}: return {mean:.1f} +- {deviation:.1f} after {options.steps} steps, {model.replay_buffer}")


if __name__ == "__main__":
    main()
