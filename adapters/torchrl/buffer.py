"""SynthERReplayBuffer: wraps a TorchRL replay buffer.

Usage: ``SynthERReplayBuffer(replay_buffer, action_spec=env.action_spec)``.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, Never

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import RayReplayBuffer, ReplayBuffer, TensorDictReplayBuffer

from synther_replay.adapters.torchrl.forwarding import Forwarding
from synther_replay.adapters.torchrl.layout import Key, Layout, TransitionKeys, check_specs
from synther_replay.adapters.torchrl.rows import (
    RealEntries,
    as_tensordict,
    check_sampler,
    each,
    length,
    locked,
    storage_axes,
    stored,
    written,
)
from synther_replay.common.checks import resolve_device
from synther_replay.common.trees import on_cpu
from synther_replay.options import (
    AdjustableOptions,
    GeneratorOption,
    RelevanceOption,
    ScheduleOption,
    SourceOptions,
    refuse_unknown,
)
from synther_replay.persistence.checkpoint import load_checkpoint
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.source import SyntheticSource

_FILE = "synther.safetensors"  # written to the folder of the real buffer's files
_STATE = "_synther"  # key in the state of the real buffer


class SynthERReplayBuffer(AdjustableOptions, Forwarding):
    """Wraps a TorchRL replay buffer of transitions and mixes generated transitions into its batches.

    Batches hold the entries of a transition, the flags of the data, the info of the real buffer (index, priority
    weight) and ``"is_synthetic"``, bool ``(batch,)``. Entries that are not modelled, such as log-probabilities, are
    dropped. Attributes and methods that this class does not define are those of the real buffer. Direct writes to the
    real buffer, also by collectors in other processes, count towards refits (one-dimensional storage, round-robin
    writer).

    >>> from tensordict import TensorDict
    >>> from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer
    >>> real = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=32)
    >>> buffer = SynthERReplayBuffer(real, action_spec=Bounded(-1, 1, (1,)), real_ratio=0.5)
    >>> x, flag = torch.rand(100, 3), torch.zeros(100, 1, dtype=torch.bool)
    >>> following = {"observation": x, "reward": x[:, :1], "terminated": flag, "done": flag}
    >>> _ = buffer.extend(TensorDict({"observation": x, "action": x[:, :1], "next": following}, [100]))
    >>> buffer.sample()["next", "reward"].shape
    torch.Size([32, 1])

    Args:
        real: Buffer of real transitions, with any storage, sampler and writer of single transitions.
        action_spec: `env.action_spec`; generated actions stay within its bounds.
        observation_spec: `env.observation_spec`; only needed for integer observations.
        observation_keys: Key or keys of the observation; the next observation has the same keys under ``"next"``.
        action_key: Key of the action.
        reward_key: Key of the reward under ``"next"``.
        terminated_key: Key of the termination flag under ``"next"``; not `done`, which includes time limits.
        device: Device of generator, synthetic rows and batches. None: the device of the real storage.
        real_ratio: Share of real rows in each batch; with 1 the buffer behaves exactly like the real one.
        generator: Settings, see `GeneratorConfig.of`: a `GeneratorConfig`, the name of a preset, or a mapping of
            fields. Or any object with `fit` and `sample`. None: `GeneratorConfig.fast()` on a GPU, `tiny()` on a CPU.
        schedule: When to refit and how many rows to generate, see `RetrainSchedule.of`: a `RetrainSchedule`, the steps
            between two refits, the name of a preset, or a mapping of fields. None: `RetrainSchedule.fast()` on a GPU,
            `tiny()` on a CPU.
        synthetic_capacity: Maximum number of synthetic rows.
        seed: Seed of generator and synthetic rows, see `SourceOptions`; TorchRL draws the real rows. None: the seed
            last passed to `torch.manual_seed`.
        on_refit: Called with a `RefitReport` after every refit.
        relevance: What generation is guided by, see `Guidance.of`: ``"curiosity"``, ``"return"``, ``"reward"``, a
            mapping, or a function of transitions. None: not guided.
        refit: ``"inline"`` or ``"background"``, and `lag`, the steps until its rows are taken: see `SourceOptions`.
        lag: See `refit`.
    """

    # All attributes of this class; any other is one of the real buffer, see `Forwarding`.
    source: SyntheticSource | None
    _options: SourceOptions
    _keys: TransitionKeys
    _specs: tuple[Any, Any]
    _wanted_device: torch.device | str | None
    _added: int
    _counted: int
    _checked: bool
    _awaited: dict[str, Any] | None
    _iterator: Iterator[Any] | None
    _process: int
    _layout: Layout
    _rows: RealEntries

    def __init__(
        self,
        real: ReplayBuffer,
        *,
        action_spec: Any = None,
        observation_spec: Any = None,
        observation_keys: Key | Iterable[Key] = "observation",
        action_key: Key = "action",
        reward_key: Key = "reward",
        terminated_key: Key = "terminated",
        device: torch.device | str | None = None,
        real_ratio: float = 0.5,
        generator: GeneratorOption = None,
        schedule: ScheduleOption = None,
        synthetic_capacity: int = 1_000_000,
        seed: int | None = None,
        on_refit: Callable[[RefitReport], object] | None = None,
        relevance: RelevanceOption = None,
        refit: str = "inline",
        lag: int | None = None,
        **unknown: Never,
    ) -> None:
        """Check the arguments; the rest is checked when the first data arrive."""
        refuse_unknown(type(self), unknown)
        if not isinstance(real, ReplayBuffer):
            raise TypeError(f"real: expected a replay buffer of TorchRL, got {type(real).__name__}")
        if isinstance(real, RayReplayBuffer):
            raise TypeError(
                "real: a RayReplayBuffer hides its storage; put this buffer into it instead, "
                "RayReplayBuffer(replay_buffer_cls=HostedSynthERReplayBuffer)"
            )
        self.real = real
        self.source = None  # created with the first data, which determine the layout
        self._options = SourceOptions(
            real_ratio=real_ratio,
            generator=generator,
            schedule=schedule,
            synthetic_capacity=synthetic_capacity,
            seed=seed,
            on_refit=on_refit,
            relevance=relevance,
            refit=refit,
            lag=lag,
        )
        self._made_with = self._options.real_ratio
        self._keys = TransitionKeys.of(observation_keys, action_key, reward_key, terminated_key)
        self._specs = (action_spec, observation_spec)
        self._wanted_device = device
        self._added = 0  # transitions added through this object; never decreases, since other threads may add some
        self._counted = 0  # added transitions already counted in `source.steps`
        self._checked = False
        self._awaited = None  # loaded state of a source that cannot be created yet
        self._iterator = None
        self._process = os.getpid()  # synthetic rows are drawn in this one only
        if self.real_ratio < 1.0:
            check_specs(action_spec, observation_spec)
            if device is not None:
                resolve_device(device)
        if self.real_ratio < 1.0 and getattr(real, "initialized", True):
            check_sampler(self.real)
            self._counted = self._total() - len(real)
            if len(real):
                self._make_source()

    def __repr__(self) -> str:
        """Sizes and ratio."""
        synthetic = 0 if self.source is None else len(self.source.store)
        return (
            f"SynthERReplayBuffer({len(self)} real, {synthetic} synthetic, real_ratio={self.real_ratio}, {self.real})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the iterator of `next`; own tensors are on the CPU.

        A process that is started with the buffer, such as a collector's, writes to the same storage. It gets neither
        generator nor synthetic rows: there, only the real part can be used.
        """
        state = {**vars(self), "_iterator": None, "_awaited": on_cpu(self._awaited)}
        if get_spawning_popen() is None:
            return {**state, "_process": None}
        kept = self._options
        options = SourceOptions(real_ratio=self.real_ratio, synthetic_capacity=kept.synthetic_capacity, seed=kept.seed)
        state = {name: value for name, value in state.items() if name not in ("_layout", "_rows")}
        return {**state, "source": None, "_awaited": None, "_options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; an ordinary copy belongs to the process that it is restored in."""
        self.__dict__.update({**state, "_process": state.get("_process") or os.getpid()})

    def add(self, data: Any) -> Any:
        """Add one transition to the real buffer."""
        self._check(data)
        index = self.real.add(data)
        self._added += 1
        return index

    def extend(self, data: Any, **options: Any) -> Any:
        """Add a batch of transitions to the real buffer."""
        self._check(data)
        index = self.real.extend(data, **options)
        self._added += math.prod(data.shape) if isinstance(data, TensorDictBase) else len(data)
        return index

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """Draw a shuffled batch with ``round(real_ratio * batch_size)`` real rows; refit first if due.

        The transforms of the real buffer are applied to synthetic rows, too.

        Args:
            batch_size: Number of rows. None: the batch size of the real buffer.
            return_info: Whether to return ``(batch, info)``. Synthetic rows have index -1 and weight 1.
            include_info: As in `TensorDictReplayBuffer` (deprecated there).
        """
        if self._is_plain:
            options = {} if include_info is None else {"include_info": include_info}
            return self.real.sample(batch_size, return_info, **options)
        batch_size = self.real.batch_size if batch_size is None else batch_size
        if batch_size is None:
            raise RuntimeError("batch_size: required here or in the constructor of the real buffer")
        if os.getpid() != self._process:
            raise RuntimeError(
                "sample: this process was started with the buffer and can only write to it; sample in the process that "
                "made it, or make it with real_ratio=1"
            )
        check_sampler(self.real)  # it may have been replaced
        source = self._make_source()
        self._count()
        drawn = source.draw(batch_size)
        device = source.device
        if drawn is None:
            if not len(self.real):
                raise ValueError("buffer is empty: add transitions before sampling")
            values, info = self._rows.batch(batch_size)
            is_synthetic = torch.zeros(length(values), dtype=torch.bool, device=device)
        else:
            values, is_synthetic, info = self._rows.mixed(drawn[0].rows, drawn[1])
        info = {key: each(value, lambda v: v.to(device)) for key, value in info.items()}
        entries: dict[Any, Tensor] = {**values, "is_synthetic": is_synthetic}
        if include_info is not False and isinstance(self.real, TensorDictReplayBuffer):
            for key, value in info.items():  # its batches include the info
                entries[key] = torch.stack(value, -1) if isinstance(value, tuple) else value
        data = as_tensordict(entries, len(is_synthetic), device)
        return (data, info) if return_info else data

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches until the sampler of the real buffer runs out (most never do)."""
        return _batches(self)

    def next(self) -> Any:
        """Return the next batch of an iteration, or None at its end."""
        if self._iterator is None:
            self._iterator = _batches(weakref.proxy(self))  # a cycle would keep the memory of a dropped buffer
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    def empty(self, *args: Any, **options: Any) -> None:
        """Remove all real and synthetic rows; the generator keeps its model."""
        self._count()
        self.real.empty(*args, **options)
        self._counted = self._total()
        if self.source is not None:
            self.source.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the real buffer, with the state of the synthetic part under one additional key."""
        self._count()
        return {**self.real.state_dict(), _STATE: self._synthetic_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` of this class or of the real buffer alone."""
        self._load(state.get(_STATE), lambda: self.real.load_state_dict(state))

    def dumps(self, path: Any) -> None:
        """Write the real buffer with TorchRL's `dumps`, and the synthetic part to one more file in the folder."""
        self.real.dumps(path)
        self._count()
        file = Path(path) / _FILE
        if self.source is not None:
            self.source.save(file)
        else:
            file.unlink(missing_ok=True)  # of an earlier dump

    def loads(self, path: Any) -> None:
        """Load files written by `dumps` of this class or of the real buffer alone."""
        file = Path(path) / _FILE
        synthetic = load_checkpoint(file, SyntheticSource.kind) if file.exists() else None
        self._load(synthetic, lambda: self.real.loads(path))

    save = dump = dumps
    load = loads

    def _load(self, synthetic: dict[str, Any] | None, load_real: Callable[[], None]) -> None:
        """Load both parts. The synthetic part comes first if possible: a mismatch then changes nothing."""
        if len(self.real) and not self._is_plain:
            self._make_source()
        before, was_empty = self._synthetic_state(), not len(self.real)
        if self.source is not None and synthetic is not None:
            self.source.load_state_dict(synthetic)
        try:
            load_real()
            if self.source is None and synthetic is not None and not self._is_plain:
                self._awaited = synthetic  # kept until data determine the layout
                if len(self.real):
                    self._make_source()
        except BaseException:
            self._awaited = None
            if self.source is not None and before is not None:
                self.source.load_state_dict(before)
            elif was_empty:
                self.real.empty()
            raise
        self._counted = self._total()
        if synthetic is None:  # real rows only: the present synthetic rows do not belong to them
            self._counted -= len(self.real)
            if self.source is not None:
                self.source.start_over()

    def _synthetic_state(self) -> dict[str, Any] | None:
        return None if self.source is None else self.source.state_dict()

    def _count(self) -> None:
        """Update the step count of the source."""
        if self.source is not None:
            total = self._total()
            if total < self._counted:  # the real buffer itself was emptied
                self._counted = 0
            self.source.steps += total - self._counted
            self._counted = total

    def _total(self) -> int:
        """Return the number of transitions ever added, including direct writes to the real buffer (collectors).

        Direct writes are only counted by round-robin writers of one-dimensional storages.
        """
        counted = written(self.real)
        return self._added if counted is None else counted

    def _check(self, data: Any) -> None:
        """Check keys, shapes and types of the first data; the storage checks later data."""
        if self._checked or self._is_plain:
            return
        if not len(self.real.transform):  # a transform may change the keys
            first = data[0] if isinstance(data, list) and data else data
            self._keys.check(first)
            if not first.numel():
                return
            first = first if first.ndim and not isinstance(data, list) else first.unsqueeze(0)
            first = first.reshape(-1) if storage_axes(self.real) > 1 else first
            self._options.check(Layout(self._keys, first[:1], *self._specs).spec)
        self._checked = True

    def _make_source(self) -> SyntheticSource:
        if self.source is None:
            check_sampler(self.real)
            if not len(self.real):
                raise ValueError("buffer is empty: add transitions before sampling")
            with locked(self.real):
                layout = Layout(self._keys, stored(self.real, slice(0, 1)), *self._specs)
            rows = RealEntries(self.real, layout)
            device = self._wanted_device or getattr(self.real.storage, "device", None) or "cpu"
            source = self._options.build(rows, layout.spec, device)
            source.steps = 0
            # Includes rows that a buffer with delayed initialisation already had.
            self._counted = min(self._counted, self._total() - len(self.real))
            if self._awaited is not None:
                source.load_state_dict(self._awaited)
            self._layout, self._rows, self.source, self._awaited = layout, rows, source, None
        return self.source


def _batches(buffer: Any) -> Iterator[Any]:
    """Iterate over the batches of a `SynthERReplayBuffer`, or of a proxy of one."""
    real = buffer.real
    if buffer._is_plain:
        yield from real
        return
    if real.batch_size is None:
        raise RuntimeError("batch_size: iteration requires it in the constructor of the real buffer")
    if real.sampler.ran_out:
        real.sampler.ran_out = False
    while not real.sampler.ran_out or len(real._prefetch_queue):
        yield buffer.sample()
