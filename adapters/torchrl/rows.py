"""RealEntries: reads the real transitions of a TorchRL buffer, and mixes them with synthetic ones in batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import (
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from torchrl.data.replay_buffers.samplers import SliceSampler, SliceSamplerWithoutReplacement
from torchrl.data.replay_buffers.storages import _get_default_collate

from synther_replay.adapters.torchrl.layout import Key, Layout
from synther_replay.adapters.torchrl.mirror import PackedMirror
from synther_replay.adapters.torchrl.mixing import Columns, mix
from synther_replay.data.transitions import Transitions
from synther_replay.replay.batch import synthetic_mask

Info = dict[str, Any]
Mixed = tuple[dict[Key, Tensor], Tensor, Info]  # entries, mask of synthetic rows, info of the sampler
# the same by column: numbers, flags, mask of synthetic rows, numbers of real rows
MixedColumns = tuple[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor]


class RealEntries:
    """Reads transitions from a TorchRL buffer, and makes batches of them and synthetic ones.

    Args:
        real: The buffer.
        layout: Layout of its entries.
    """

    _entries: tuple[Key, ...] = ()  # keys of a batch
    _entries_for: tuple[int, ...] = ()  # the transforms that these are valid for
    _empty_info: Info | None = None

    def __init__(self, real: ReplayBuffer, layout: Layout) -> None:
        """Determine whether rows can be read directly from the storage."""
        self.real, self.layout = real, layout
        self._tensors: dict[Key, Tensor] = {}
        self._numbers: list[Tensor] = []
        self._flags: list[Tensor] = []
        self._mirror: PackedMirror | None = None
        self._columns: Columns | None = None
        self._no_memory = False  # whether a mirror did not fit into memory
        # If nothing changes rows between storage and batch, reading only the required entries is faster than the
        # buffer's `sample`. All other buffers are sampled through `sample`.
        self._plain = (
            type(real)._sample in (ReplayBuffer._sample, TensorDictReplayBuffer._sample)
            and isinstance(real.storage, TensorStorage)
            and real.storage.ndim == 1
            and isinstance(real.storage._storage, TensorDictBase)
            and real._collate_fn is _get_default_collate(real.storage)
            and not real._prefetch
            and not getattr(real.writer, "tracks_generations", False)
        )

    @property
    def capacity(self) -> int | None:
        """Maximum number of transitions; None if the storage does not say it."""
        return getattr(self.real.storage, "max_size", None)

    def __len__(self) -> int:
        """Number of transitions held."""
        return len(self.real)

    def transitions(self) -> Transitions:
        """Return all stored transitions without transforms, the oldest first, so that no episode is split."""
        with locked(self.real):  # a collector may write in another thread
            rows = self.layout.rows(stored(self.real, slice(None)))
            oldest = oldest_row(self.real, len(rows))
            return Transitions(self.layout.spec, rows.roll(-oldest, 0) if oldest else rows)

    def sample(self, count: int, entries: Sequence[Key]) -> tuple[dict[Key, Tensor], Info]:
        """Draw the entries of `count` transitions by the buffer's own rule, with the info of its sampler."""
        if self._is_plain():
            with locked(self.real):
                index, info, held = self._draw(count)
                return {key: held[key].index_select(0, index) for key in entries}, info
        drawn = [self._sample(count, entries)]
        while (rows := sum(length(values) for values, _ in drawn)) < count and not self.real.sampler.ran_out:
            drawn.append(self._sample(count - rows, entries))  # a prefetched batch may be smaller
        values = {key: _join([values[key] for values, _ in drawn], count) for key in entries}
        return values, {key: _join([info[key] for _, info in drawn], count) for key in drawn[0][1]}

    def batch(self, count: int) -> tuple[dict[Key, Tensor], Info]:
        """Draw a batch of real rows, with the entries that synthetic ones have, too, and the info of the sampler."""
        return self.sample(count, self._batch_keys())

    def mixed(self, rows: Tensor, places: Tensor) -> Mixed:
        """Make a batch of synthetic rows ``(size, dim)`` with real ones at `places`; it may modify `rows`."""
        if len(places) and (mixed := self.mix_rows(rows, places)) is not None:
            return mixed
        synthetic = self._transformed(rows)
        values = {key: synthetic[key] for key in self._batch_keys()}
        if len(places):
            return self.mix_into(values, places)
        values = {key: value.clone() for key, value in values.items()}  # entries must not share memory
        every = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        return values, every, self._info_of_none(places, len(rows))

    def mix_rows(self, rows: Tensor, places: Tensor) -> Mixed | None:
        """Fast path of `mix_into` for synthetic rows ``(size, dim)``; None if layout or device do not allow it.

        Numbers are concatenated to one tensor ``(rows, columns)`` and flags to another ``(flags, rows)`` before they
        are mixed: with small tensors, the number of operations determines the time. It modifies `rows`.
        """
        if not (self._is_plain() and self.layout.is_packed and self._storage_device() == places.device):
            return None
        size = len(rows)
        with locked(self.real):
            index, info, _ = self._draw(len(places))
            places = places[: len(index)]
            mirror = self._current_mirror()
            if mirror is None:
                mixed = self._mixed_with_entries(rows, places, index)
            else:
                mixed = self._mixed_with_mirror(mirror, rows, places, index)
        numbers, flags, is_synthetic, row_numbers = mixed
        values: dict[Key, Tensor] = dict(zip(self.layout.number_keys, numbers, strict=True))
        values |= zip(self.layout.flag_keys, (flag.view(size, 1) for flag in flags), strict=True)
        others = {k: each(v, partial(filled, k, places=places, size=size)) for k, v in info.items() if k != "index"}
        return values, is_synthetic, {**others, "index": row_numbers}

    def _mixed_with_mirror(self, mirror: PackedMirror, rows: Tensor, places: Tensor, index: Tensor) -> MixedColumns:
        """Put the real rows of these numbers, from the mirror, at `places` of synthetic ones."""
        layout, size = self.layout, len(rows)
        if self._columns is None:
            self._columns = Columns.of(layout.number_widths, rows.device)
        real = mirror.current(len(self.real))
        flat, flags, row_numbers = mix(rows, places, index, *real, layout.terminated_flags, self._columns)
        parts = flat.split([size * width for width in layout.number_widths])
        # .data: separate version counters, so that modifying one entry does not invalidate the others for autograd
        numbers = [part.data.view(size, width) for part, width in zip(parts, layout.number_widths, strict=True)]
        *raised, is_synthetic = (flag.data for flag in flags.unbind())
        return numbers, raised, is_synthetic, row_numbers

    def _mixed_with_entries(self, rows: Tensor, places: Tensor, index: Tensor) -> MixedColumns:
        """Put the real rows of these numbers, from the entries of the storage, at `places` of synthetic ones."""
        layout, size = self.layout, len(rows)
        real_numbers, real_flags = self._gathered(index)
        split: Any = torch.split_with_sizes_copy
        numbers = split(rows[:, :-1].index_copy_(0, places, real_numbers), layout.number_widths, 1)
        flags = torch.zeros(len(self._flags), size, dtype=torch.bool, device=rows.device)
        flags[: layout.terminated_flags] = rows[:, -1]  # the termination flags come first
        # .data: see above
        raised = [flag.data for flag in flags.index_copy_(1, places, real_flags).unbind()]
        row_numbers = filled("index", index, places, size)
        return numbers, raised, row_numbers < 0, row_numbers

    def _gathered(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Read the numbers ``(n, columns)`` and flags ``(flags, n)`` of rows from the storage."""
        numbers = torch.cat([part.index_select(0, index) for part in self._numbers], 1)
        flags = torch.cat([flag.index_select(0, index) for flag in self._flags])
        return numbers, flags.view(len(self._flags), -1)

    def _current_mirror(self) -> PackedMirror | None:
        """Return the mirror of the present tensors, where one pays and fits into memory."""
        if not self._mirrors():
            return None
        if self._mirror is None or not self._mirror.mirrors(self._numbers):
            self._mirror = PackedMirror.or_none(self.real.storage, self._numbers, self._flags)
            self._no_memory = self._mirror is None
        return self._mirror

    def _mirrors(self) -> bool:
        """Return whether rows are read from a mirror; writes of other processes would not reach it."""
        return self._pays() and not self._no_memory and not getattr(self.real, "shared", False)

    def _pays(self) -> bool:
        return self._numbers[0].is_cuda

    def mix_into(self, synthetic: dict[Key, Tensor], places: Tensor) -> Mixed:
        """Put real entries at `places` of a synthetic batch; return entries, mask of synthetic rows and info.

        If the sampler runs out of rows, the remaining places stay synthetic.
        """
        size = length(synthetic)
        real, info = self.sample(len(places), list(synthetic))
        places = places[: length(real)]
        info = {key: each(v, partial(filled, key, places=places, size=size)) for key, v in info.items()}
        mixed = {key: v.clone().index_copy_(0, places, real[key].to(v)) for key, v in synthetic.items()}
        return mixed, synthetic_mask(size, places, places.device), info

    def _transformed(self, rows: Tensor) -> dict[Key, Tensor]:
        """Convert synthetic rows to entries and apply the transforms of the real buffer."""
        values: dict[Key, Tensor] = self.layout.unpack(rows)
        if not len(self.real.transform):
            return values
        home = getattr(self.real.storage, "device", None) or rows.device  # device of the constants of transforms
        data = as_tensordict(values, len(rows), rows.device).to(home)
        try:
            data = self.real.transform(data).to(rows.device)
        except KeyError as error:
            raise ValueError(
                f"transform: requires an entry that synthetic rows lack ({error}); they have {sorted(map(str, values))}"
            ) from error
        entries: dict[Key, Tensor] = {key: data.get(key) for key in data.keys(True, True)}
        return entries

    def _batch_keys(self) -> tuple[Key, ...]:
        """Return the keys that real and synthetic rows have in common."""
        transforms = tuple(map(id, self.real.transform))
        if not self._entries or self._entries_for != transforms:
            with locked(self.real):
                synthetic = self._transformed(self.layout.rows(stored(self.real, slice(0, 1))))
                real = self.real._collate_fn(self.real.storage[:1])
            real = self.real.transform(real.clone()) if transforms else real  # transforms may work in place
            self._entries = tuple(key for key in synthetic if real.get(key, None) is not None)
            self._entries_for = transforms
        return self._entries

    def _info_of_none(self, places: Tensor, size: int) -> Info:
        """Return the info of a batch without real rows; keys and dtypes are those of the sampler's info."""
        if self._empty_info is None:
            _, info = self.sample(1, self._batch_keys())
            self._empty_info = {key: each(value, lambda v: v[:0]) for key, value in info.items()}
        empty = self._empty_info
        return {key: each(v, partial(filled, key, places=places, size=size)) for key, v in empty.items()}

    def _sample(self, count: int, entries: Sequence[Key]) -> tuple[dict[Key, Tensor], Info]:
        with warnings.catch_warnings():  # the real part is smaller than the buffer's batch size
            warnings.filterwarnings("ignore", message="Got conflicting batch_sizes")
            data, info = self.real.sample(count, return_info=True)
        return {key: data.get(key) for key in entries}, _with_axis(info)

    def _is_plain(self) -> bool:
        return self._plain and not len(self.real.transform) and not getattr(self.real, "_service_shutdown", False)

    def _held(self) -> dict[Key, Tensor]:
        """Return the tensors of the storage by key; cached, because looking up nested keys is slow."""
        data, probe = self.real.storage._storage, self.layout.keys.action
        if data.get(probe) is not self._tensors.get(probe):
            self._tensors = {key: data.get(key) for key in data.keys(True, True)}
            if self.layout.is_packed:
                self._numbers = [self._tensors[key] for key in self.layout.number_keys]
                # without the last axis: selecting rows is then twice as fast
                self._flags = [self._tensors[key][:, 0] for key in self.layout.flag_keys]
        return self._tensors

    def _storage_device(self) -> torch.device:
        return self._held()[self.layout.keys.action].device

    def _draw(self, count: int) -> tuple[Tensor, Info, dict[Key, Tensor]]:
        """Draw indices on the device of the storage; return indices, info of the sampler and tensors by key."""
        index, info = self.real.sampler.sample(self.real.storage, count)
        index = index.to(self._storage_device())
        return index, {**_with_axis(info), "index": index}, self._held()

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the cached tensors and the mirror."""
        return {
            **vars(self),
            "_tensors": {},
            "_numbers": [],
            "_flags": [],
            "_mirror": None,
            "_columns": None,
            "_empty_info": None,
        }


@contextmanager
def locked(real: ReplayBuffer) -> Iterator[None]:
    """Lock the buffer against writes of other threads and processes."""
    with real._replay_lock, real._write_lock:
        yield


def stored(real: ReplayBuffer, index: slice) -> TensorDictBase:
    """Return stored data without transforms, ``(n,)``; a view, only valid while the buffer is locked."""
    data = real.storage[index]
    if isinstance(data, list | tuple):
        data = torch.stack(list(data))
    if not isinstance(data, TensorDictBase):
        raise TypeError(f"real: expected a buffer of TensorDicts, got one of {type(data).__name__}")
    return data.reshape(-1) if real.storage.ndim > 1 else data


def oldest_row(real: ReplayBuffer, rows: int) -> int:
    """Return the number of the oldest of all rows; 0 if they are not written in turn."""
    if not isinstance(real.writer, RoundRobinWriter) or not rows:
        return 0
    at_once = real.storage.shape[1:].numel() if real.storage.ndim > 1 else 1  # the cursor counts along the first axis
    return int(real.writer._cursor) * at_once % rows  # after the last row, until the storage is full


def storage_axes(real: ReplayBuffer) -> int:
    """Return the number of axes of the storage; 1 if the buffer is not initialised yet."""
    return int(real.storage.ndim) if getattr(real, "initialized", True) else 1


def written(real: ReplayBuffer) -> int | None:
    """Return the number of transitions ever written; None if the writer does not count them."""
    if getattr(real, "initialized", True) and real.storage.ndim == 1 and isinstance(real.writer, RoundRobinWriter):
        return int(real.write_count)
    return None


def check_sampler(real: ReplayBuffer) -> None:
    """Raise ValueError if batches are not independent single transitions."""
    sliced = isinstance(real.sampler, SliceSampler | SliceSamplerWithoutReplacement)
    if sliced or isinstance(real, ReplayBufferEnsemble) or getattr(real, "_sample_unit", None) is not None:
        raise ValueError(
            "real: expected a buffer that samples single transitions independently, "
            f"got {type(real).__name__} with {type(real.sampler).__name__}"
        )


def as_tensordict(values: dict[Key, Tensor], size: int, device: torch.device) -> TensorDict:
    """Make a TensorDict of entries ``(size, ...)``, without TensorDict's slow checks."""
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
    """Apply a function to a tensor or to all tensors of a tuple; return other values unchanged."""
    if isinstance(value, tuple):
        return tuple(function(part) for part in value)
    return function(value) if isinstance(value, Tensor) else value


def length(values: dict[Key, Tensor]) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(values.values())))


def filled(name: str, real: Tensor, places: Tensor, size: int) -> Tensor:
    """Extend the info of real rows at `places` to the batch; synthetic rows get index -1 and weight 1."""
    filler = -1 if "index" in name else 1 if "weight" in name else 0
    whole = torch.full((size, *real.shape[1:]), filler, dtype=real.dtype, device=places.device)
    return whole.index_copy_(0, places, real.to(places.device))


def _with_axis(info: Info) -> Info:
    """Add the batch axis that TorchRL omits for a single row."""
    return {k: v.reshape(1) if isinstance(v, Tensor) and not v.ndim else v for k, v in info.items()}


def _join(parts: list[Any], count: int) -> Any:
    """Concatenate several draws of one entry; return the first `count` rows."""
    if isinstance(parts[0], tuple):
        return tuple(_join(list(part), count) for part in zip(*parts, strict=True))
    if not isinstance(parts[0], Tensor):
        return parts[0]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]
