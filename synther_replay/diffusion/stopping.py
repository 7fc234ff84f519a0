"""When to stop a fit early, and which of its models to keep."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class BestModels:
    """Remembers, for each model of a stack, the state with the lowest held-out loss.

    Args:
        state: Tensors of the models, ``(M, ...)`` each, that are kept and restored in place.
        patience: Measurements without improvement after which a model needs no more training; None: never.
    """

    def __init__(self, state: dict[str, Tensor], patience: int | None) -> None:
        """Know nothing yet."""
        self._state = state
        self._patience = math.inf if patience is None else patience
        self._kept = {name: tensor.clone() for name, tensor in state.items()}
        first = next(iter(state.values()))
        self.loss = torch.full((len(first),), torch.inf, dtype=torch.float32, device=first.device)
        self._lowest = self.loss.clone()  # in this fit
        self._since = torch.zeros(len(first), dtype=torch.long, device=first.device)

    def begin_with(self, loss: Tensor) -> None:
        """Take in the held-out loss before the first step, ``(M,)``: a fit that never gets below it is not kept.

        It does not count for patience. A fit begins with large steps that make a good model worse for a while.
        """
        self.loss = loss.clone()

    def measure(self, loss: Tensor) -> bool:
        """Take in the held-out loss of each model as it is now, ``(M,)``; whether all of them are out of patience.

        One that is out of it stays as it was, however long the others go on: models do not depend on each other.
        """
        patient = self._since < self._patience
        self._since = torch.where(patient & (loss < self._lowest), 0, self._since + 1)
        self._lowest = torch.minimum(self._lowest, loss)
        better = patient & (loss < self.loss)
        self.loss = torch.where(better, loss, self.loss)
        for name, tensor in self._state.items():
            choice = better.view(-1, *[1] * (tensor.ndim - 1))
            self._kept[name].copy_(torch.where(choice, tensor, self._kept[name]))
        return bool((self._since >= self._patience).all())

    def restore(self) -> None:
        """Go back to the best state of each model."""
        for name, tensor in self._state.items():
            tensor.copy_(self._kept[name])
