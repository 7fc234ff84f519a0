"""LayerNormMlpPolicy: SAC's policy with layer norm in the critics."""

from __future__ import annotations

from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import SACPolicy
from torch import nn


class LayerNormMlpPolicy(SACPolicy):
    """SB3's `MlpPolicy` of SAC, with layer norm before each activation of the critics.

    It keeps critics from diverging at many updates per environment step. Arguments are those of `MlpPolicy`; the actor
    is unchanged. `SAC` takes the class, `FastSAC` also its name.
    """

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        """Build the critic of `MlpPolicy` and insert the layers."""
        critic = super().make_critic(features_extractor)
        for k, network in enumerate(critic.q_networks):
            *hidden, last = network
            layers = [part for layer in hidden for part in _with_norm(layer)]
            critic.q_networks[k] = nn.Sequential(*layers, last).to(self.device)
            setattr(critic, f"qf{k}", critic.q_networks[k])
        return critic


def _with_norm(layer: nn.Module) -> list[nn.Module]:
    return [layer, nn.LayerNorm(layer.out_features)] if isinstance(layer, nn.Linear) else [layer]
