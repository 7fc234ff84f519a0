"""Forwarding: a wrapper that passes on to the wrapped TorchRL buffer whatever it does not define."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer


class Forwarding:
    """Base of `SynthERReplayBuffer`: the part that concerns the real buffer alone.

    Attributes that a subclass annotates are its own. All others are set on the real buffer if that has them.
    """

    real: ReplayBuffer
    _own: ClassVar[frozenset[str]] = frozenset({"real"})

    def __init_subclass__(cls, **options: Any) -> None:
        """Collect the annotated attributes."""
        super().__init_subclass__(**options)
        cls._own = cls._own.union(vars(cls).get("__annotations__", ()))

    def __getattr__(self, name: str) -> Any:
        """Forward to the real buffer; methods that return the real buffer return this object instead."""
        if name.startswith("__") or "real" not in vars(self):
            raise AttributeError(name)
        value = getattr(self.real, name)
        if getattr(value, "__self__", None) is not self.real:
            return value

        @functools.wraps(value)
        def method(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            return self if result is self.real else result

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        """Set attributes that only the real buffer has on the real buffer."""
        own = name in self._own or hasattr(type(self), name)
        if not own and "real" in vars(self) and hasattr(self.real, name):
            setattr(self.real, name, value)
        else:
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """Number of real transitions."""
        return len(self.real)

    def __getitem__(self, index: Any) -> Any:
        """Return real transitions by index."""
        return self.real[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Overwrite real transitions."""
        self.real[index] = value

    def update_priority(self, index: Any, priority: Any) -> None:
        """Update the priorities of real rows; synthetic rows (index -1) are ignored."""
        first = index[0] if isinstance(index, tuple) else index
        if not isinstance(first, Tensor) or not first.ndim or bool((first >= 0).all()):
            self.real.update_priority(index, priority)
            return
        held = first >= 0 if isinstance(index, tuple) or first.ndim == 1 else (first >= 0).all(-1)
        if bool(held.any()):
            chosen = tuple(part[held] for part in index) if isinstance(index, tuple) else index[held]
            priority = torch.as_tensor(priority)
            self.real.update_priority(chosen, priority[held.to(priority.device)] if priority.ndim else priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Update the priorities of the real rows of a batch."""
        synthetic = data.get("is_synthetic", None)
        data = data if synthetic is None else data[~synthetic]
        if not data.ndim or len(data):
            self.real.update_tensordict_priority(data)
