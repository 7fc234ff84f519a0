"""TorchRL: ``SynthERReplayBuffer(any_replay_buffer, action_spec=env.action_spec)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer, ReplayBufferEnsemble, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SliceSampler, SliceSamplerWithoutReplacement

from synther_replay.adapters._torchrl_layout import Key, Layout, TransitionKeys
from synther_replay.adapters._torchrl_rows import RealEntries, as_tensordict, each, stored
from synther_replay.assembly import SourceOptions
from synther_replay.checkpoint import load_checkpoint
from synther_replay.config import GeneratorConfig
from synther_replay.protocols import Generator
from synther_replay.schedule import RetrainSchedule
from synther_replay.synthetic import SyntheticSource

_FILE = "synther.safetensors"  # beside the files of the real buffer


class SynthERReplayBuffer:
    """Wraps any TorchRL replay buffer of transitions and mixes generated ones into its batches.

    Batches hold the entries of a transition, the flags that the data has, what the real buffer tells of its rows
    (index, priority weight) and ``"is_synthetic"``, bool ``(batch,)``. Entries that are not modelled, such as log
    probabilities, are left out. Everything else is the real buffer's: what is not defined here is asked of it.

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
        real: Holds the real transitions; any storage, sampler and writer of single transitions.
        action_spec: `env.action_spec`: generated actions stay within it.
        observation_spec: `env.observation_spec`; needed for integer observations only.
        observation_keys: Entry or entries of the observation; those of the next one are below ``"next"``.
        action_key: Entry of the action.
        reward_key: Entry of the reward, below ``"next"``.
        terminated_key: Entry of the termination flag, below ``"next"``; never `done`, which counts time limits.
        device: Where generator, synthetic rows and batches live; None takes that of the real storage.
        real_ratio: Share of each batch that is real; with 1 it is the real buffer and nothing else.
        generator: `GeneratorConfig`, or a generator with `fit` and `sample`; None as fits the device.
        schedule: When to refit and how many rows to generate; None as fits the device.
        synthetic_capacity: Most synthetic rows to hold.
        seed: Of generator and sampling order; None follows `torch.manual_seed`.
    """

    def __init__(
        self,
        real: ReplayBuffer,
        *,
        action_spec: Any = None,
        observation_spec: Any = None,
        observation_keys: Key | Sequence[Key] = "observation",
        action_key: Key = "action",
        reward_key: Key = "reward",
        terminated_key: Key = "terminated",
        device: torch.device | str | None = None,
        real_ratio: float = 0.5,
        generator: GeneratorConfig | Generator | None = None,
        schedule: RetrainSchedule | None = None,
        synthetic_capacity: int = 1_000_000,
        seed: int | None = None,
    ) -> None:
        """Check everything that can be checked before there are data."""
        if not isinstance(real, ReplayBuffer):
            raise TypeError(f"real: expected a replay buffer of TorchRL, got {type(real).__name__}")
        self.real = real
        self.source: SyntheticSource | None = None  # made once there are data to tell the layout
        self._options = SourceOptions(real_ratio, generator, schedule, synthetic_capacity, seed)
        self._keys = TransitionKeys.of(observation_keys, action_key, reward_key, terminated_key)
        self._specs = (action_spec, observation_spec)
        self._wanted_device = device
        self._steps = len(real)  # transitions that the source has not counted
        self._entries: tuple[Key, ...] = ()  # of a batch
        self._checked = False
        if self.real_ratio == 1.0:
            return
        if action_spec is None:
            raise ValueError("action_spec: give env.action_spec, so that generated actions stay within their bounds")
        sliced = isinstance(real.sampler, SliceSampler | SliceSamplerWithoutReplacement)
        if sliced or isinstance(real, ReplayBufferEnsemble) or getattr(real, "_sample_unit", None) is not None:
            raise ValueError(
                "real: only buffers whose batches are single transitions in any order can be mixed with synthetic "
                f"ones, got {type(real).__name__} with {type(real.sampler).__name__}"
            )
        if len(real):
            self._make_source()

    @property
    def real_ratio(self) -> float:
        """Share of each batch that is real."""
        return self._options.real_ratio

    def __len__(self) -> int:
        """Number of real transitions."""
        return len(self.real)

    def __repr__(self) -> str:
        """Sizes and ratio."""
        synthetic = 0 if self.source is None else len(self.source.store)
        return (
            f"SynthERReplayBuffer({len(self)} real, {synthetic} synthetic, real_ratio={self.real_ratio}, {self.real})"
        )

    def __getattr__(self, name: str) -> Any:
        """What is not defined here is the real buffer's."""
        if name.startswith("__") or "real" not in vars(self):
            raise AttributeError(name)
        return getattr(self.real, name)

    def __getitem__(self, index: Any) -> Any:
        """Real transitions by index."""
        return self.real[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Overwrite real transitions."""
        self.real[index] = value

    def add(self, data: Any) -> Any:
        """Add one transition to the real buffer."""
        self._check(data)
        index = self.real.add(data)
        self._steps += 1
        return index

    def extend(self, data: Any, **options: Any) -> Any:
        """Add a batch of transitions to the real buffer."""
        self._check(data)
        index = self.real.extend(data, **options)
        self._steps += data.numel() if isinstance(data, TensorDictBase) else len(data)
        return index

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A shuffled batch with ``round(real_ratio * batch_size)`` real rows, after a refit if one is due.

        Synthetic rows go through the transforms of the real buffer, too.

        Args:
            batch_size: Rows; None for the batch size of the real buffer.
            return_info: Whether to return ``(batch, info)``; the index of a synthetic row is -1, its weight 1.
        """
        if self.real_ratio == 1.0:
            return self.real.sample(batch_size, return_info)
        batch_size = self.real.batch_size if batch_size is None else batch_size
        if batch_size is None:
            raise RuntimeError("batch_size: give it here, or to the constructor of the real buffer")
        source = self._make_source()
        self._count()
        drawn = source.draw(batch_size)
        if drawn is None:
            values, info = self._rows.sample(batch_size, self._batch_entries())
            return self._as_batch(values, torch.arange(_length(values)), info, return_info)
        batch, places = drawn
        synthetic = self._transformed(batch.rows)
        values, info = {key: synthetic[key] for key in self._batch_entries()}, {"index": places[:0]}
        if len(places):
            values, places, info = self._rows.mix_into(values, places)
        return self._as_batch(values, places, info, return_info)

    def __iter__(self) -> Iterator[Any]:
        """Batches, until the sampler of the real buffer has run out (most never do)."""
        if self.real.batch_size is None:
            raise RuntimeError("batch_size: to iterate, give it to the constructor of the real buffer")
        self.real.sampler.ran_out = False
        while not self.real.sampler.ran_out:
            yield self.sample()

    def update_priority(self, index: Any, priority: Any) -> None:
        """Update the priorities of real rows; synthetic ones, whose index is -1, have none."""
        first = index[0] if isinstance(index, tuple) else index
        if not isinstance(first, Tensor) or first.ndim == 0:
            self.real.update_priority(index, priority)
            return
        held = first >= 0 if isinstance(index, tuple) or first.ndim == 1 else (first >= 0).all(-1)
        chosen = tuple(part[held] for part in index) if isinstance(index, tuple) else index[held]
        priority = torch.as_tensor(priority)
        if held.any():
            self.real.update_priority(chosen, priority[held.to(priority.device)] if priority.ndim else priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Update the priorities of the real rows of a batch."""
        synthetic = data.get("is_synthetic", None)
        data = data if synthetic is None else data[~synthetic]
        if data.numel():
            self.real.update_tensordict_priority(data)

    def empty(self, *args: Any, **options: Any) -> None:
        """Empty the buffer, synthetic rows included; the generator keeps what it has learnt."""
        self.real.empty(*args, **options)
        if self.source is not None:
            self.source.store.clear()

    def append_transform(self, transform: Any, **options: Any) -> SynthERReplayBuffer:
        """Append a transform, applied once to every row of a batch."""
        self.real.append_transform(transform, **options)
        self._entries = ()
        return self

    def insert_transform(self, index: int, transform: Any, **options: Any) -> SynthERReplayBuffer:
        """Insert a transform, applied once to every row of a batch."""
        self.real.insert_transform(index, transform, **options)
        self._entries = ()
        return self

    def state_dict(self) -> dict[str, Any]:
        """State of the real buffer and of the synthetic part."""
        self._count()
        return {"real": self.real.state_dict(), "synthetic": self._synthetic_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._load(state["synthetic"], lambda: self.real.load_state_dict(state["real"]))

    def dumps(self, path: Any) -> None:
        """Write the real buffer as TorchRL does, and the synthetic part to a file beside it."""
        self.real.dumps(path)
        self._count()
        if self.source is not None:
            self.source.save(Path(path) / _FILE)

    def loads(self, path: Any) -> None:
        """Continue from `dumps`, or from what the real buffer alone has written."""
        file = Path(path) / _FILE
        synthetic = load_checkpoint(file, SyntheticSource.kind) if file.exists() else None
        self._load(synthetic, lambda: self.real.loads(path))

    save = dump = dumps
    load = loads

    def _load(self, synthetic: dict[str, Any] | None, load_real: Callable[[], None]) -> None:
        """The synthetic part first where there is one to hold it against: if it does not fit, nothing changes."""
        before = self._synthetic_state()
        if self.source is not None and synthetic is not None:
            self.source.load_state_dict(synthetic)
        try:
            load_real()
        except BaseException:
            if self.source is not None and before is not None:
                self.source.load_state_dict(before)
            raise
        if synthetic is not None and before is None and self.real_ratio < 1.0:
            self._make_source().load_state_dict(synthetic)
        self._steps = 0 if synthetic is not None else len(self.real)

    def _synthetic_state(self) -> dict[str, Any] | None:
        return None if self.source is None else self.source.state_dict()

    def _count(self) -> None:
        """Tell the source of the transitions that were added."""
        if self.source is not None:
            self.source.steps += self._steps
            self._steps = 0

    def _check(self, data: Any) -> None:
        """Before the first data get in; afterwards the storage sees to it that they are alike."""
        if not self._checked and self.real_ratio < 1.0:
            if not len(self.real.transform):  # else it is not what gets stored
                self._keys.check(data)
            self._checked = True

    def _make_source(self) -> SyntheticSource:
        if self.source is None:
            if not len(self.real):
                raise ValueError("buffer: it is empty, add transitions before sampling")
            self._layout = Layout(self._keys, stored(self.real, slice(0, 1)), *self._specs)
            self._rows = RealEntries(self.real, self._layout)
            device = self._wanted_device or getattr(self.real.storage, "device", None) or "cpu"
            self.source = self._options.build(self._rows, self._layout.spec, device)
            self.source.steps = 0
        return self.source

    def _transformed(self, rows: Tensor) -> dict[Any, Tensor]:
        """The entries of synthetic rows after the transforms of the real buffer."""
        values: dict[Any, Tensor] = self._layout.unpack(rows)
        if not len(self.real.transform):
            return values
        home = getattr(self.real.storage, "device", None) or rows.device  # where transforms keep their constants
        data = self.real.transform(as_tensordict(values, len(rows), rows.device).to(home)).to(rows.device)
        entries: dict[Any, Tensor] = {key: data.get(key) for key in data.keys(True, True)}
        return entries

    def _batch_entries(self) -> tuple[Key, ...]:
        """The entries that real and synthetic rows have in common; the same in every batch."""
        if not self._entries:
            synthetic = self._transformed(self._layout.rows(stored(self.real, slice(0, 1))))
            real = self.real[:1]
            self._entries = tuple(key for key in synthetic if real.get(key, None) is not None)
        return self._entries

    def _as_batch(self, values: dict[Key, Tensor], places: Tensor, info: dict[str, Any], return_info: bool) -> Any:
        """Entries, which of them are synthetic, and what is known of the real ones at `places`."""
        size = _length(values)
        device = self._make_source().device
        places = places.to(device)
        synthetic = torch.ones(size, dtype=torch.bool, device=device).index_fill_(0, places, 0)
        batch: dict[Any, Any] = {**values, "is_synthetic": synthetic}
        mixed = {key: each(value, lambda v, key=key: _filled(key, v, places, size)) for key, value in info.items()}
        if isinstance(self.real, TensorDictReplayBuffer):  # whose batches say where they come from
            for key, value in mixed.items():
                batch[key] = torch.stack(value, -1) if isinstance(value, tuple) else value
        data = as_tensordict(batch, size, device)
        return (data, mixed) if return_info else data


def _length(values: dict[Key, Tensor]) -> int:
    return len(next(iter(values.values())))


def _filled(name: str, real: Tensor, places: Tensor, size: int) -> Tensor:
    """What is known of the real rows among what holds for synthetic ones: index -1, weight 1."""
    filler = -1 if "index" in name else 1 if "weight" in name else 0
    filled = torch.full((size, *real.shape[1:]), filler, dtype=real.dtype, device=places.device)
    return filled.index_copy_(0, places[: len(real)], real.to(places.device))
