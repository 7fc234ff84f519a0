"""What a linear prediction from observation and action leaves of the next observation.

One step of control changes an observation little, and much of the change is linear in what was before. A generator is
off by some share of the spread of what it models. If that is the next observation as a whole, it can be off by several
times the change of a step. So only what the prediction leaves is modelled.

Its codes have the square root of its share of the whole as spread. That is a compromise, chosen by one trial on rows of
a few tasks: a spread of 1 came closer to the dynamics on some and further from them on others, the share itself helped
least where a step changes least. A likely reason: with 1 it must be found while observation and action, on which it
depends, are as uncertain as itself, and with its share at noise levels that training and sampling hardly visit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.standardisation import STATISTICS, Standardisation

# Generated observations and actions are themselves a little off. The regression counts with an error of 3 % of their
# spread, an assumption, or else it could rest on differences between columns that only real rows have.
_RIDGE = 1e-3
_FURTHEST = 5.0  # a code beyond counts as this in the regression, which one row must not decide
_ROWS_PER_INPUT = 20  # with fewer the regression fits chance, and nothing is predicted
_CHUNK = 65_536  # rows at a time; in double precision, because what is left can be a thousandth of the whole


class LinearPrediction:
    """Replaces the codes `targets`, of spread 1, by what a regression on the codes `inputs` leaves, and back.

    Args:
        inputs: Places of the codes of observation and action, ``(i,)``.
        targets: Places of the codes of the next observation, ``(t,)``.
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        """Take note of the places; `fit` finds the statistics."""
        self.inputs = inputs
        self.targets = targets
        self.statistics: dict[str, Tensor] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Of each statistic of a model."""
        row = (1, len(self.targets))
        return {"weights": (len(self.inputs), row[1]), **dict.fromkeys((*STATISTICS, "least", "most"), row)}

    def fit(self, codes: Tensor) -> None:
        """Find the statistics of codes ``(M, n, code_dim)``."""
        self.statistics = {"weights": self._regression(codes)}
        left = codes[..., self.targets] - self._predicted(codes)
        standardisation = Standardisation.of(left)
        standardisation = standardisation.times(standardisation.scale.clamp(max=1.0).sqrt())
        left = standardisation.to_codes(left)
        least, most = left.amin(1, keepdim=True), left.amax(1, keepdim=True)
        self.statistics |= {**vars(standardisation), "least": least, "most": most}

    def take_off(self, codes: Tensor) -> Tensor:
        """Codes with what is left in the place of the targets."""
        left = codes[..., self.targets] - self._predicted(codes)
        return codes.index_copy(-1, self.targets, self._standardisation.to_codes(left))

    def put_back(self, codes: Tensor) -> Tensor:
        """The inverse of `take_off`; nothing ends further from the prediction than was seen."""
        s = self.statistics
        left = self._standardisation.to_values(codes[..., self.targets].clamp(s["least"], s["most"]))
        return codes.index_copy(-1, self.targets, left + self._predicted(codes))

    def move_to(self, device: torch.device) -> None:
        """Take the places to another device; statistics come with `fit` or a state."""
        self.inputs, self.targets = self.inputs.to(device), self.targets.to(device)

    @property
    def _standardisation(self) -> Standardisation:
        return Standardisation.from_statistics(self.statistics)

    def _predicted(self, codes: Tensor) -> Tensor:
        weights = self.statistics["weights"]
        parts = codes.split(_CHUNK, dim=1)
        return torch.cat([(_tame(part[..., self.inputs]) @ weights).float() for part in parts], dim=1)

    def _regression(self, codes: Tensor) -> Tensor:
        """Weights ``(M, i, t)`` of the ridge regression."""
        stack, rows, _ = codes.shape
        i, both = len(self.inputs), torch.cat((self.inputs, self.targets))
        if rows < _ROWS_PER_INPUT * i:
            return codes.new_zeros(stack, i, len(self.targets), dtype=torch.float64)
        mean = codes.new_zeros(stack, 1, len(both), dtype=torch.float64)
        products = codes.new_zeros(stack, i, len(both), dtype=torch.float64)
        for part in codes.split(_CHUNK, dim=1):
            x = _tame(part[..., both])
            mean += x.sum(1, keepdim=True) / rows
            products += x[..., :i].mT @ x / rows
        covariance = products - mean[..., :i].mT @ mean
        among_inputs, with_targets = covariance[..., :i], covariance[..., i:]
        among_inputs.diagonal(dim1=1, dim2=2).add_(_RIDGE)
        weights: Tensor = torch.linalg.solve(among_inputs, with_targets)
        return weights


def _tame(codes: Tensor) -> Tensor:
    return codes.clamp(-_FURTHEST, _FURTHEST).double()
