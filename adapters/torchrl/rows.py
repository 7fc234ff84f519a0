"""The real transitions in a TorchRL buffer: all of them to learn from, and some of them for a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer, TensorDictReplayBuffer, TensorStorage
from torchrl.data.replay_buffers.storages import _get_default_collate

from synther_replay.adapters.torchrl.layout import Key, Layout
from synther_replay.data.transitions import Transitions

Info = dict[str, Any]
Mixed = tuple[dict[Key, Tensor], Tensor, Info]  # entries, which rows are real, what the sampler tells of those


class RealEntries:
    """Reads a TorchRL buffer.

    Args:
        real: The buffer.
        layout: How its entries become rows.
    """

    def __init__(self, real: ReplayBuffer, layout: Layout) -> None:
        """Look at how the buffer draws its rows."""
        self.real, self.layout = real, layout
        self._tensors: dict[Key, Tensor] = {}
        # Where nothing stands between the storage and a batch, reading just the entries that are wanted is quicker than
        # `sample`. A buffer of another kind, or with options that change its rows, is asked itself.
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
        with locked(self.real):  # a collector may write meanwhile, in a thread of its own
            return Transitions(self.layout.spec, self.layout.rows(stored(self.real, slice(None))))

    def sample(self, count: int, entries: Sequence[Key]) -> tuple[dict[Key, Tensor], Info]:
        """Entries of `count` transitions by the buffer's own rule, and what its sampler tells of them."""
        if self._is_plain():
            with locked(self.real):
                index, info, held = self._draw(count)
                return {key: held[key].index_select(0, index) for key in entries}, info
        drawn = [self._ask(count, entries)]
        while (rows := sum(length(values) for values, _ in drawn)) < count and not self.real.sampler.ran_out:
            drawn.append(self._ask(count - rows, entries))  # what came was fetched ahead, when fewer were wanted
        values = {key: _join([values[key] for values, _ in drawn], count) for key in entries}
        return values, {key: _join([info[key] for _, info in drawn], count) for key in drawn[0][1]}

    def mix_rows(self, rows: Tensor, places: Tensor) -> Mixed | None:
        """As `mix_into`, from synthetic rows ``(size, dim)``, in few operations; None where data or device forbid it.

        Whole batches are read from the storage, of which the real places count. All numbers are joined before they are
        chosen from, and so are all flags: with tensors this small it is the number of operations that takes the time.
        """
        if not (self._is_plain() and self.layout.is_packed and self._storage_device() == places.device):
            return None
        numbers, flags = self.layout.number_keys, self.layout.flag_keys
        with locked(self.real):
            index, info, held = self._draw(len(places))
            size, places = len(rows), places[: len(index)]
            row_numbers = filled("index", index, places, size)
            is_real, readable = (row_numbers >= 0)[:, None], row_numbers.clamp(min=0)
            real = torch.cat([held[key].index_select(0, readable) for key in numbers], 1)
            raised = torch.cat([held[key].index_select(0, readable) for key in flags], 1).logical_and_(is_real)
        mixed = torch.where(is_real, real, rows[:, :-1])
        ended = raised[:, : self.layout.terminated_flags]  # these come first
        ended.logical_or_((rows[:, -1:] > 0.5).logical_and_(~is_real))
        # copies: entries that shared memory would look to autograd like one
        split: Any = torch.split_with_sizes_copy
        values: dict[Key, Tensor] = dict(zip(numbers, split(mixed, self.layout.number_widths, 1), strict=True))
        values |= zip(flags, split(raised, [1] * len(flags), 1), strict=True)
        others = {k: each(v, partial(filled, k, places=places, size=size)) for k, v in info.items() if k != "index"}
        return values, is_real[:, 0], {**others, "index": row_numbers}

    def mix_into(self, synthetic: dict[Key, Tensor], places: Tensor) -> Mixed:
        """A batch of synthetic entries with real ones at `places`; also which rows are real, bool, and the info.

        Fewer places are filled when the sampler runs out of rows: synthetic ones then keep the others.
        """
        size = length(synthetic)
        real, info = self.sample(len(places), list(synthetic))
        places = places[: length(real)]
        is_real = torch.zeros(size, dtype=torch.bool, device=places.device).index_fill_(0, places, True)
        info = {key: each(v, partial(filled, key, places=places, size=size)) for key, v in info.items()}
        mixed = {key: v.clone().index_copy_(0, places, real[key].to(v)) for key, v in synthetic.items()}
        return mixed, is_real, info

    def _ask(self, count: int, entries: Sequence[Key]) -> tuple[dict[Key, Tensor], Info]:
        with warnings.catch_warnings():  # half a batch has another size than the buffer was made for
            warnings.filterwarnings("ignore", message="Got conflicting batch_sizes")
            data, info = self.real.sample(count, return_info=True)
        return {key: data.get(key) for key in entries}, _with_axis(info)

    def _is_plain(self) -> bool:
        return self._plain and not len(self.real.transform) and not getattr(self.real, "_service_shutdown", False)

    def _held(self) -> dict[Key, Tensor]:
        """The tensors of the storage by key; kept, because looking nested keys up takes as long as reading rows."""
        data, probe = self.real.storage._storage, self.layout.keys.action
        if data.get(probe) is not self._tensors.get(probe):
            self._tensors = {key: data.get(key) for key in data.keys(True, True)}
        return self._tensors

    def _storage_device(self) -> torch.device:
        return self._held()[self.layout.keys.action].device

    def _draw(self, count: int) -> tuple[Tensor, Info, dict[Key, Tensor]]:
        """Indices on the device of the storage, what the sampler tells of them, and the tensors that they are of."""
        index, info = self.real.sampler.sample(self.real.storage, count)
        index = index.to(self._storage_device())
        return index, {**_with_axis(info), "index": index}, self._held()

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and deepcopy take along: not the tensors of the storage a second time."""
        return {**vars(self), "_tensors": {}}


@contextmanager
def locked(real: ReplayBuffer) -> Iterator[None]:
    """Keeps other threads and processes from writing to a buffer."""
    with real._replay_lock, real._write_lock:
        yield


def stored(real: ReplayBuffer, index: slice) -> TensorDictBase:
    """Data as they are stored, before any transform, ``(n,)``: a view, so of use while the buffer is locked."""
    data = real.storage[index]
    if isinstance(data, list | tuple):
        data = torch.stack(list(data))
    if not isinstance(data, TensorDictBase):
        raise TypeError(f"real: expected a buffer of TensorDicts, got one of {type(data).__name__}")
    return data.reshape(-1) if real.storage.ndim > 1 else data


def as_tensordict(values: dict[Key, Tensor], size: int, device: torch.device) -> TensorDict:
    """Entries ``(size, ...)`` as a TensorDict; built without its checks, which take longer than drawing the rows."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = (key,) if isinstance(key, str) else key
        inner = nested
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value if value.device == device else value.to(device)

    def unchecked(entries: dict[str, Any]) -> TensorDict:
        source = {name: unchecked(entry) if isinstance(entry, dict) else entry for name, entry in entries.items()}
        return TensorDict._new_unsafe(source=source, batch_size=torch.Size([size]), device=device)

    return unchecked(nested)


def each(value: Any, function: Any) -> Any:
    """Apply to a tensor, or to every one of a tuple; anything else tells nothing of single rows."""
    if isinstance(value, tuple):
        return tuple(function(part) for part in value)
    return function(value) if isinstance(value, Tensor) else value


def length(values: dict[Key, Tensor]) -> int:
    """Rows in a batch."""
    return len(next(iter(values.values())))


def filled(name: str, real: Tensor, places: Tensor, size: int) -> Tensor:
    """What is known of the real rows at `places` among what holds for synthetic ones: index -1, weight 1."""
    filler = -1 if "index" in name else 1 if "weight" in name else 0
    whole = torch.full((size, *real.shape[1:]), filler, dtype=real.dtype, device=places.device)
    return whole.index_copy_(0, places, real.to(places.device))


def _with_axis(info: Info) -> Info:
    """TorchRL gives the weight of a single row without an axis."""
    return {k: v.reshape(1) if isinstance(v, Tensor) and not v.ndim else v for k, v in info.items()}


def _join(parts: list[Any], count: int) -> Any:
    """The first `count` rows of several draws of one entry."""
    if isinstance(parts[0], tuple):
        return tuple(_join(list(part), count) for part in zip(*parts, strict=True))
    if not isinstance(parts[0], Tensor):
        return parts[0]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]
