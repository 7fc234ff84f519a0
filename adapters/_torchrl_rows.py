"""The real transitions in a TorchRL buffer: all of them to learn from, and some of them for a batch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer, TensorDictReplayBuffer, TensorStorage
from torchrl.data.replay_buffers.storages import _get_default_collate

from synther_replay.adapters._torchrl_layout import Key, Layout
from synther_replay.transitions import Transitions

Info = dict[str, Any]


class RealEntries:
    """Reads a TorchRL buffer.

    Args:
        real: The buffer.
        layout: How its entries become rows.
    """

    def __init__(self, real: ReplayBuffer, layout: Layout) -> None:
        """Look at how the buffer draws its rows."""
        self.real, self.layout = real, layout
        # Where nothing stands between the storage and a batch, reading just the entries that are wanted takes a third
        # of the time of `sample`. A buffer of another kind, or with options that change its rows, is asked itself.
        self._plain = (
            type(real)._sample in (ReplayBuffer._sample, TensorDictReplayBuffer._sample)
            and isinstance(real.storage, TensorStorage)
            and real.storage.ndim == 1
            and isinstance(real.storage._storage, TensorDictBase)
            and real._collate_fn is _get_default_collate(real.storage)
            and not real._prefetch
            and not getattr(real.writer, "tracks_generations", False)
        )

    def __len__(self) -> int:
        """Number of transitions held."""
        return len(self.real)

    def transitions(self) -> Transitions:
        """All transitions as they are stored, before any transform."""
        return Transitions(self.layout.spec, self.layout.rows(stored(self.real, slice(None))))

    def sample(self, count: int, entries: Sequence[Key]) -> tuple[dict[Key, Tensor], Info]:
        """Entries of `count` transitions by the buffer's own rule, and what its sampler tells of them."""
        real = self.real
        if self._plain and not len(real.transform):
            with real._replay_lock, real._write_lock:
                index, info = real.sampler.sample(real.storage, count)
                held = real.storage._storage
                there = index.to(held.device) if held.device is not None else index
                return {key: held.get(key).index_select(0, there) for key in entries}, {**info, "index": index}
        with warnings.catch_warnings():  # half a batch has another size than the buffer was made for
            warnings.filterwarnings("ignore", message="Got conflicting batch_sizes")
            data, info = real.sample(count, return_info=True)
        if len(data) > count:  # fetched ahead when all rows were real
            data, info = data[:count], {key: each(value, lambda v: v[:count]) for key, value in info.items()}
        return {key: data.get(key) for key in entries}, info


def stored(real: ReplayBuffer, index: slice) -> TensorDictBase:
    """Data as they are stored, before any transform, ``(n,)``."""
    data = real.storage[index]
    if isinstance(data, list | tuple):
        data = torch.stack(list(data))
    if not isinstance(data, TensorDictBase):
        raise TypeError(f"real: expected a buffer of TensorDicts, got one of {type(data).__name__}")
    return data.reshape(-1) if real.storage.ndim > 1 else data


def each(value: Any, function: Any) -> Any:
    """Apply to a tensor, or to every one of a tuple; anything else tells nothing of single rows."""
    if isinstance(value, tuple):
        return tuple(function(part) for part in value)
    return function(value) if isinstance(value, Tensor) and value.ndim else value
