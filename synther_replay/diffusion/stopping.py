"""Early stopping on the held-out loss, and the best weights so far."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class BestModels:
    """Keeps the state with the lowest held-out loss for each model of a stack.

    Args:
        state: Tensors of the models, ``(M, ...)`` each; `restore` writes to them in place.
        patience: Evaluations without improvement after which a model stops; None: never.
    """

    def __init__(self, state: dict[str, Tensor], patience: int | None) -> None:
        """Start with an infinite best loss."""
        self._state = state
        self._patience = math.inf if patience is None else patience
        self._kept = {name: tensor.clone() for name, tensor in state.items()}
        first = next(iter(state.values()))
        self.loss = torch.full((len(first),), torch.inf, dtype=torch.float32, device=first.device)
        self._lowest = self.loss.clone()  # without the loss before the first step
        self._since = torch.zeros(len(first), dtype=torch.long, device=first.device)

    def begin_with(self, loss: Tensor) -> None:
        """Record the held-out loss before the first step, ``(M,)``; weights that never improve on it are discarded.

        It does not count for patience: a fit starts at a high learning rate, which first increases the loss of a
        warm-started model.
        """
        self.loss = loss.clone()

    def measure(self, loss: Tensor) -> bool:
        """Record the current held-out loss of each model, ``(M,)``; return whether all have run out of patience.

        The best state of a model that has run out of patience is frozen, however long the others continue.
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
        """Restore the best state of each model."""
        for name, tensor in self._state.items():
            tensor.copy_(self._kept[name])
