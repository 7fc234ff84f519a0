"""Consistency: next observations and rewards follow observation and action as closely as in the data.

A denoiser in the middle of its training draws plausible next observations that do not quite follow from observation and
action, and plausible rewards that do not quite follow from all three. Two small regressions, trained on the same rows,
predict the next observation from observation and action, and the reward from all three. Generated rows deviate from the
predictions by more than real ones that were held out. The excess is an error of the denoiser, so the deviations of each
column are shrunk until their mean size is that of the real ones. Randomness of the task, which no regression predicts,
keeps its size, and a regression that predicts badly changes little.

Everything is in codes, see `data.codec`. Columns with levels, atoms or limits stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.common.mlp import Shape
from synther_replay.common.regression import Regression
from synther_replay.common.seeding import generator_for
from synther_replay.data.codec import TransitionCodec
from synther_replay.errors import CheckpointError
from synther_replay.model.predicting import RealRows, fit_regression, new_regression

_WIDEST = 256  # units of the hidden layers, at most
_LARGEST = 10.0  # inputs are clipped: one outlier must not carry the prediction away
_ROWS_AT_ONCE = 16_384  # over all models; bounds the memory of the activations


class Columns(NamedTuple):
    """Numbers of the codes that take part."""

    known: Tensor  # observation and action, (k,)
    now: Tensor  # observation values whose next values are predicted, (c,)
    following: Tensor  # their next values, (c,)
    reward: Tensor  # the reward, (1,); (0,) if it is not continuous

    @classmethod
    def of(cls, codec: TransitionCodec) -> Columns:
        """Choose them for a fitted codec."""
        spec, values = codec.spec, codec.continuous_observations
        return cls(
            codec.layout.codes_of(spec.observations, spec.actions),
            codec.layout.plain_codes(values + spec.observations.start),
            codec.layout.plain_codes(values + spec.next_observations.start),
            codec.layout.codes_of(spec.rewards)[codec.continuous[spec.rewards]],
        )

    def shapes(self, width: int) -> tuple[Shape, Shape]:
        """Sizes of the regressions of the change of the observation and of the reward."""
        known, values = len(self.known), len(self.now)
        return Shape(known, width, values), Shape(known + values, width, len(self.reward))

    def changes(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the change of the observation."""
        return codes[..., self.known].clamp(-_LARGEST, _LARGEST), codes[..., self.following] - codes[..., self.now]

    def rewards(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the reward."""
        inputs = torch.cat((codes[..., self.known], codes[..., self.following]), dim=-1)
        return inputs.clamp(-_LARGEST, _LARGEST), codes[..., self.reward]


@dataclass(frozen=True, eq=False)
class Consistency:
    """M pairs of regressions, and how much of each deviation from them remains; immutable, `fit` makes a new one.

    Attributes:
        columns: The codes that take part.
        width: Units of the hidden layers.
        weights: Weights of the change of the observation, and of the reward, ``(M, P)`` each.
        remaining: Shares of the deviations, 0 to 1, ``(M, c + rewards)``.
    """

    columns: Columns
    width: int
    weights: tuple[Tensor, Tensor]
    remaining: Tensor

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        codes: Tensor,
        held_out: int,
        generated: Tensor,
        codec: TransitionCodec,
        *,
        width: int,
        steps: int,
        seed: int,
        previous: Consistency | None = None,
        regression: Callable[[Shape], Regression] | None = None,
    ) -> Consistency | None:
        """Train the regressions, and compare how far real and generated rows deviate.

        Args:
            codes: Codes of real rows, ``(M, n, code_dim)`` or with further columns.
            held_out: How many of the last ones are held out; 0: some are chosen here.
            generated: Codes of generated rows.
            codec: The codec of the codes.
            width: Units of the hidden layers; at most 256 are used.
            steps: Gradient steps of each regression, rounded up to multiples of 25.
            seed: Random seed; results are deterministic per device.
            previous: Where training starts, if its regressions have the same sizes.
            regression: Returns what trains a regression of a shape; it is restarted. None: a new one.

        Returns:
            None if no column takes part.

        Raises:
            DivergedError: A weight became non-finite.
        """
        columns, width = Columns.of(codec), min(width, _WIDEST)
        if not len(columns.now) and not len(columns.reward):
            return None
        rng = generator_for(codes.device, seed)
        rows = RealRows.of(codes, held_out, rng)
        starts = (None, None) if previous is None else previous.weights
        make = regression or partial(new_regression, stack=len(codes), device=codes.device)
        with torch.autocast(codes.device.type, enabled=False):
            dynamics, rewards = (
                fit_regression(rows, examples, shape, start, steps, rng, make)
                for examples, shape, start in zip(
                    (columns.changes, columns.rewards), columns.shapes(width), starts, strict=True
                )
            )
            found = cls(columns, width, (dynamics, rewards), codes.new_empty(0))
            real, own = (found._deviations(part).abs().mean(1) for part in (rows.held_out(), generated))
        return cls(columns, width, found.weights, (real / own.clamp(min=1e-12)).clamp(max=1))

    @torch.no_grad()
    def applied(self, codes: Tensor) -> Tensor:
        """Return a copy of codes ``(M, n, code_dim)`` whose deviations are shrunk."""
        codes = codes.clone()
        with torch.autocast(codes.device.type, enabled=False):
            for block in codes.split(max(1, _ROWS_AT_ONCE // len(codes)), dim=1):
                self._shrink(block)
        return codes

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""
        dynamics, rewards = (part.clone() for part in self.weights)
        return {"width": self.width, "dynamics": dynamics, "rewards": rewards, "remaining": self.remaining.clone()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, codec: TransitionCodec, device: torch.device) -> Consistency:
        """Inverse of `state_dict`, given a fitted codec.

        Raises:
            CheckpointError: Names, shapes or values are impossible.
        """
        names = ("dynamics", "rewards", "remaining")
        if set(state) != {"width", *names}:
            raise CheckpointError(f"state: consistency: expected width, {', '.join(names)}, got {sorted(state)}")
        columns, width = Columns.of(codec), state["width"]
        if not isinstance(width, int) or not 0 < width <= _WIDEST:
            raise CheckpointError(f"state: consistency: expected a width from 1 to {_WIDEST}, got {width!r}")
        sizes = [shape.parameters for shape in columns.shapes(width)]
        expected = {name: (stack, size) for name, size in zip(names, (*sizes, _deviating(columns)), strict=True)}
        found = {name: tuple(state[name].shape) for name in names}
        if found != expected:
            raise CheckpointError(f"state: consistency: got shapes {found}, expected {expected}")
        dynamics, rewards, remaining = (state[name].to(device, torch.float32, copy=True) for name in names)
        if not all(bool(part.isfinite().all()) for part in (dynamics, rewards)):
            raise CheckpointError("state: consistency: a weight is not finite")
        if not bool(((remaining >= 0) & (remaining <= 1)).all()):
            raise CheckpointError("state: consistency: a share is not between 0 and 1")
        return cls(columns, width, (dynamics, rewards), remaining)

    def _predicted(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions of the next values and of the reward, given all else."""
        shapes, columns = self.columns.shapes(self.width), self.columns
        change, reward = (
            shape.predict(weights, examples(codes)[0])
            for shape, weights, examples in zip(shapes, self.weights, (columns.changes, columns.rewards), strict=True)
        )
        return codes[..., columns.now] + change, reward

    def _deviations(self, codes: Tensor) -> Tensor:
        """Deviations of codes from their predictions, ``(M, n, c + rewards)``."""
        columns = self.columns
        following, reward = self._predicted(codes)
        return torch.cat((codes[..., columns.following] - following, codes[..., columns.reward] - reward), dim=-1)

    def _shrink(self, codes: Tensor) -> None:
        columns = self.columns
        values, rewards = self.remaining[:, None].split((len(columns.now), len(columns.reward)), dim=-1)
        following, reward = self._predicted(codes)
        deviation = rewards * (codes[..., columns.reward] - reward)
        codes[..., columns.following] = following.lerp(codes[..., columns.following], values)
        codes[..., columns.reward] = self._predicted(codes)[1] + deviation  # that of the next observation of now


def _deviating(columns: Columns) -> int:
    """Number of codes that can deviate."""
    return len(columns.now) + len(columns.reward)
