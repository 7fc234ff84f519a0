"""Inputs: what the classifier of outcomes is given, computed from the codes of rows when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from synther_replay.common.stacks import take_rows


class Inputs(NamedTuple):
    """Inputs of the classifier, computed from some rows of codes at a time: all of them would be a second matrix."""

    codes: Tensor  # (M, n, codes)
    features: Callable[[Tensor], Tensor]

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.features(self.codes[:, :0]).shape[2]

    def take(self, rows: Tensor) -> Tensor:
        """Inputs of the rows ``(M, k)``."""
        return self.features(take_rows(self.codes, rows))

    def of_model(self, model: int, rows: Tensor) -> Tensor:
        """Inputs of the rows ``(k,)`` of a model, ``(k, inputs)``."""
        return self.features(self.codes[model : model + 1, rows])[0]

    def split(self, size: int) -> Iterator[Tensor]:
        """Inputs of all rows, `size` at a time."""
        return (self.features(part) for part in self.codes.split(size, dim=1))
