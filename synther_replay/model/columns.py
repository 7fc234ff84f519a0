"""Columns: the codes in which a transition follows from its observation and action."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.data.codec import TransitionCodec

_LARGEST = 10.0  # inputs are clipped: one outlier must not carry the prediction away


class Columns(NamedTuple):
    """Numbers of the codes that take part; columns with levels, atoms or limits do not."""

    known: Tensor  # observation and action, (k,)
    now: Tensor  # observation values whose next values are predicted, (c,)
    following: Tensor  # their next values, (c,)
    reward: Tensor  # the reward, (1,); (0,) if it is not continuous

    @classmethod
    def of(cls, codec: TransitionCodec) -> Columns:
        """Choose them for a fitted codec."""
        spec, values = codec.spec, codec.continuous_observations
        return cls(
            codec.codes_of(spec.observations, spec.actions),
            codec.plain_codes(values + spec.observations.start),
            codec.plain_codes(values + spec.next_observations.start),
            codec.codes_of(spec.rewards)[codec.continuous[spec.rewards]],
        )

    @property
    def predicted(self) -> int:
        """Number of codes that are predicted."""
        return len(self.now) + len(self.reward)

    def changes(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the change of the observation."""
        return codes[..., self.known].clamp(-_LARGEST, _LARGEST), codes[..., self.following] - codes[..., self.now]

    def rewards(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the reward."""
        inputs = torch.cat((codes[..., self.known], codes[..., self.following]), dim=-1)
        return inputs.clamp(-_LARGEST, _LARGEST), codes[..., self.reward]
