"""Residuals: the denoiser models what a linear prediction leaves of next observations and rewards.

From one step to the next most values change by a small part of their range, and most of that follows from velocities
and actions linearly. A denoiser that draws the next value itself misses it by a few hundredths of the range, which can
be more than the whole change. One that draws the residual of a linear prediction misses by a few hundredths of the
residual. The prediction is part of the coding, as mean and scale are: it is undone exactly, so the denoiser can still
represent every distribution.

Everything is in codes, see `data.codec`. Columns with levels, atoms or limits stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.seeding import generator_for
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.standardisation import STATISTICS, Standardisation, plausible_range
from synther_replay.errors import CheckpointError
from synther_replay.model.columns import Columns

_SAMPLE = 65_536  # rows that the predictions are fitted to, over all models
_ROWS_PER_INPUT = 10  # fewer rows would be predicted better than new ones
_RIDGE = 1e-5  # of the number of rows; columns of the inputs can depend on each other
_SMALLEST = 1e-3  # scale of a residual: a column that the prediction tells exactly has none but rounding errors
_VALUES_AT_ONCE = 2**22  # inputs, over all models; bounds the memory


@dataclass(frozen=True, eq=False)
class Residuals:
    """M pairs of linear predictions, and the scale of what they leave; immutable.

    Attributes:
        columns: The codes that take part.
        changes: Coefficients of the change of the observation, the last ones constant, ``(M, k + 1, c)``.
        rewards: Those of the reward, ``(M, k + c + 1, rewards)``.
        scales: Standardisation of the residuals, ``(M, 1, c + rewards)``.
    """

    columns: Columns
    changes: Tensor
    rewards: Tensor
    scales: Standardisation

    @classmethod
    def fit(cls, codes: Tensor, codec: TransitionCodec, seed: int) -> Residuals | None:
        """Fit the predictions.

        Args:
            codes: Codes of real rows, ``(M, n, code_dim)`` or with further columns.
            codec: The codec of the codes.
            seed: Seed of the choice of rows, if there are many.

        Returns:
            None if no column takes part, or there are too few rows.
        """
        columns = Columns.of(codec)
        inputs = len(columns.known) + len(columns.now) + 1
        if not columns.predicted or codes.shape[1] < _ROWS_PER_INPUT * inputs:
            return None
        size = max(_SAMPLE // len(codes), _ROWS_PER_INPUT * inputs)
        if size < codes.shape[1]:
            rng = generator_for(codes.device, seed)
            codes = codes[:, torch.randint(codes.shape[1], (size,), generator=rng, device=codes.device)]
        with _exactly(codes):
            changes, rewards = (_coefficients(*part(codes)) for part in (columns.changes, columns.rewards))
            left = _left(codes, columns, changes, rewards)
            scales = Standardisation.of(left, plausible_range(left), (left.amin(1, True), left.amax(1, True)))
        return cls(columns, changes, rewards, _not_too_small(scales))

    def apply(self, codes: Tensor) -> Tensor:
        """Put residuals in the place of next observations and rewards in codes ``(M, n, ...)``, in place."""
        columns = self.columns
        every = torch.arange(columns.predicted, device=codes.device)
        with _exactly(codes):
            for block in self._blocks(codes):
                residuals = self.scales.to_codes(_left(block, columns, self.changes, self.rewards), every)
                block[..., columns.following], block[..., columns.reward] = self._parts(residuals)
        return codes

    def undo(self, codes: Tensor) -> Tensor:
        """Inverse of `apply`, in place."""
        columns = self.columns
        with _exactly(codes):
            for block in self._blocks(codes):
                residuals = torch.cat((block[..., columns.following], block[..., columns.reward]), dim=-1)
                values, rewards = self._parts(self.scales.to_values(residuals))
                change = _linear(columns.changes(block)[0], self.changes)
                block[..., columns.following] = block[..., columns.now] + change + values
                block[..., columns.reward] = _linear(columns.rewards(block)[0], self.rewards) + rewards
        return codes

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the state."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, codec: TransitionCodec, device: torch.device) -> Residuals:
        """Inverse of `state_dict`, given a fitted codec.

        Raises:
            CheckpointError: Names, shapes or values are impossible.
        """
        columns = Columns.of(codec)
        known, values, rewards = len(columns.known), len(columns.now), len(columns.reward)
        expected: dict[str, tuple[int, ...]] = {
            "changes": (stack, known + 1, values),
            "rewards": (stack, known + values + 1, rewards),
            **dict.fromkeys(STATISTICS, (stack, 1, values + rewards)),
        }
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if found != expected:
            raise CheckpointError(f"state: residuals: got shapes {found}, expected {expected}")
        tensors = {name: tensor.to(device, torch.float32, copy=True) for name, tensor in state.items()}
        # The ends beyond which codes are logarithmic can be infinite.
        finite = all(bool(tensors[name].isfinite().all()) for name in ("changes", "rewards", "mean", "scale"))
        if not finite or not bool((tensors["scale"] > 0).all()) or not bool((tensors["low"] <= tensors["high"]).all()):
            raise CheckpointError("state: residuals: a value is not finite, or a scale is not positive")
        return cls(columns, tensors["changes"], tensors["rewards"], Standardisation.from_statistics(tensors))

    def _tensors(self) -> dict[str, Tensor]:
        return {"changes": self.changes, "rewards": self.rewards, **vars(self.scales)}

    def _parts(self, residuals: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the next observation, and that of the reward."""
        values, rewards = residuals.split((len(self.columns.now), len(self.columns.reward)), dim=-1)
        return values, rewards

    def _blocks(self, codes: Tensor) -> Sequence[Tensor]:
        """Blocks of rows, as views."""
        blocks: Sequence[Tensor] = codes.split(max(1, _VALUES_AT_ONCE // (len(codes) * self.rewards.shape[1])), dim=1)
        return blocks


@contextmanager
def _exactly(codes: Tensor) -> Iterator[None]:
    """Without gradients and without the caller's autocast, which would round the predictions."""
    with torch.no_grad(), torch.autocast(codes.device.type, enabled=False):
        yield


def _left(codes: Tensor, columns: Columns, changes: Tensor, rewards: Tensor) -> Tensor:
    """What the predictions leave of next observation and reward, ``(M, n, c + rewards)``."""
    pairs = ((columns.changes(codes), changes), (columns.rewards(codes), rewards))
    return torch.cat([target - _linear(inputs, own) for (inputs, target), own in pairs], dim=-1)


def _linear(inputs: Tensor, coefficients: Tensor) -> Tensor:
    """Predictions ``(M, n, outputs)`` for inputs ``(M, n, k)`` and coefficients ``(M, k + 1, outputs)``."""
    return torch.baddbmm(coefficients[:, -1:], inputs, coefficients[:, :-1])


def _coefficients(inputs: Tensor, targets: Tensor) -> Tensor:
    """Coefficients ``(M, k + 1, outputs)`` of the smallest squared error, with a small ridge but for the constant."""
    x, y = inputs.double(), targets.double()
    centre, level = x.mean(1, True), y.mean(1, True)
    x, y = x - centre, y - level
    ridge = _RIDGE * x.shape[1] * torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
    slope = torch.linalg.solve(x.mT @ x + ridge, x.mT @ y)
    return torch.cat((slope, level - centre @ slope), dim=1).float()


def _not_too_small(scales: Standardisation) -> Standardisation:
    """Scales of at least `_SMALLEST`; the ends beyond which codes are logarithmic stay at the same values."""
    larger = scales.scale.clamp(min=_SMALLEST)
    change = scales.scale / larger
    return Standardisation(scales.mean, larger, scales.low * change, scales.high * change)
