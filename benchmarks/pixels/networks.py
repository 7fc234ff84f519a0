"""Networks of DrQ-v2: a convolutional encoder, trunks of 50 features for policy and critics, and heads on top.

An `Agent` sees either images or latents. Latents are the outputs of both trunks side by side; an agent of latents has
no encoder, and its trunks are the two halves.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from synther_replay.benchmarks.pixels.frames import STACK

FEATURES = 50
_CHANNELS = 32
_SIDE = 35  # of the encoder's last layer for images of 84 x 84


class Encoder(nn.Sequential):
    """Four convolutions; images in uint8 ``(B, 3 * STACK, 84, 84)`` to features ``(B, 39200)``."""

    outputs = _CHANNELS * _SIDE * _SIDE

    def __init__(self) -> None:
        """Build the layers."""
        strides = (2, 1, 1, 1)
        inputs = (3 * STACK, *[_CHANNELS] * 3)
        layers = [nn.Conv2d(i, _CHANNELS, 3, stride=s) for i, s in zip(inputs, strides, strict=True)]
        super().__init__(*(module for layer in layers for module in (layer, nn.ReLU())))

    def forward(self, images: Tensor) -> Tensor:
        """Features of a batch."""
        features: Tensor = super().forward(images / 255 - 0.5)
        return features.permute(0, 2, 3, 1).flatten(1)  # without a copy, as channels are last


class Trunk(nn.Sequential):
    """A layer to `FEATURES` values between -1 and 1."""

    def __init__(self, inputs: int) -> None:
        """Build the layers."""
        super().__init__(nn.Linear(inputs, FEATURES), nn.LayerNorm(FEATURES), nn.Tanh())

    def forward(self, encoded: Tensor) -> Tensor:
        """Features of a batch, ``(B, FEATURES)``."""
        with _reduced_precision(encoded.device):
            features: Tensor = super().forward(encoded)
        return features.float()


class LatentColumns(nn.Module):
    """The trunk of an agent of latents: `FEATURES` columns of them.

    Args:
        number: Which columns: 0 for the first ones.
    """

    def __init__(self, number: int) -> None:
        """Keep the columns."""
        super().__init__()
        self.columns = slice(number * FEATURES, (number + 1) * FEATURES)

    def forward(self, latents: Tensor) -> Tensor:
        """The columns."""
        return latents[:, self.columns]


def head(inputs: int, outputs: int, hidden: int) -> nn.Sequential:
    """Two hidden layers."""
    layers = (nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    return nn.Sequential(*layers)


class Critic(nn.Module):
    """A trunk and two heads.

    Args:
        trunk: Maps encoder outputs to features.
        action_dim: Length of an action.
        hidden: Units per layer.
    """

    def __init__(self, trunk: nn.Module, action_dim: int, hidden: int) -> None:
        """Build the heads."""
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(head(FEATURES + action_dim, 1, hidden) for _ in range(2))

    def forward(self, encoded: Tensor, actions: Tensor) -> Tensor:
        """Values of both heads, ``(2, B)``."""
        inputs = torch.cat((self.trunk(encoded), actions), 1)
        return torch.stack([own(inputs).squeeze(1) for own in self.heads])


class Agent(nn.Module):
    """Encoder, policy and, unless it only clones, critic.

    Args:
        action_dim: Length of an action.
        hidden: Units per layer of the heads.
        has_critic: Whether there is a critic.
        of_images: Whether it sees images; else latents.
        seed: Seed of the initial weights.
    """

    def __init__(self, action_dim: int, hidden: int, *, has_critic: bool, of_images: bool, seed: int = 0) -> None:
        """Draw the initial weights as DrQ-v2 does."""
        super().__init__()
        trunks = [Trunk(Encoder.outputs) if of_images else LatentColumns(k) for k in range(1 + has_critic)]
        self.encoder: nn.Module = Encoder() if of_images else nn.Identity()
        self.trunk: nn.Module = trunks[0]
        self.head = head(FEATURES, action_dim, hidden)
        self.critic = Critic(trunks[1], action_dim, hidden) if has_critic else None
        rng = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                gain = nn.init.calculate_gain("relu") if isinstance(module, nn.Conv2d) else 1.0
                nn.init.orthogonal_(module.weight, gain, generator=rng)
                nn.init.zeros_(module.bias)
        self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def encode(self, seen: Tensor) -> Tensor:
        """Outputs of the encoder; in bf16 on a GPU."""
        with _reduced_precision(seen.device):
            encoded: Tensor = self.encoder(seen)
        return encoded

    def actions(self, encoded: Tensor) -> Tensor:
        """Actions of the policy, without noise."""
        return torch.tanh(self.head(self.trunk(encoded)))

    def latents(self, seen: Tensor) -> Tensor:
        """Outputs of the policy's trunk and of the critic's, if there is one, side by side."""
        encoded = self.encode(seen)
        trunks = [self.trunk] if self.critic is None else [self.trunk, self.critic.trunk]
        return torch.cat([trunk(encoded) for trunk in trunks], 1)


def _reduced_precision(device: torch.device) -> torch.autocast:
    """Products in bf16 on a GPU. Casts are not cached, because a captured graph would keep those of its first call."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)
