"""A drop-in `ReplayBuffer` for the single-file algorithms of CORL.

Replace the class `ReplayBuffer` of a CORL file by this import and add one line::

    from synther_replay.adapters.corl import ReplayBuffer

    replay_buffer = ReplayBuffer(state_dim, action_dim, config.buffer_size, config.device, seed=config.seed)
    replay_buffer.load_d4rl_dataset(dataset)
    replay_buffer.upsample(5_000_000)  # the added line

It works with every file whose buffer has `load_d4rl_dataset` and batches of five fields. Not supported: Cal-QL
(returns-to-go), ReBRAC (JAX, next actions) and Decision Transformer (sequences).
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Never

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from synther_replay.adapters.corl import d4rl
from synther_replay.common.checks import whole_number
from synther_replay.common.trees import on_cpu
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError, is_out_of_memory
from synther_replay.options import GeneratorOption, RelevanceOption, ScheduleOption, SourceOptions, refuse_unknown
from synther_replay.protocols import Generator
from synther_replay.replay.background import is_background
from synther_replay.replay.mixing import check_real_ratio
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.ring import RingBuffer
from synther_replay.replay.schedule import RetrainSchedule
from synther_replay.replay.source import SyntheticSource

_NEVER = RetrainSchedule(every=sys.maxsize, start=sys.maxsize)


class ReplayBuffer:
    """CORL's replay buffer with synthetic rows in its batches after `upsample`.

    Before `upsample`, and with ``real_ratio=1.0``, batches are identical to those of CORL's own buffer for the same
    state of `numpy.random`.

    >>> data = {"observations": np.random.rand(100, 3), "actions": np.random.rand(100, 1), "rewards": np.zeros(100)}
    >>> data |= {"next_observations": np.random.rand(100, 3), "terminals": np.zeros(100)}
    >>> buffer = ReplayBuffer(3, 1, 1_000, generator=GeneratorConfig.tiny(width=32, steps=20), max_action=1.0)
    >>> buffer.load_d4rl_dataset(data)
    >>> buffer.upsample(500).rows
    500
    >>> [tuple(part.shape) for part in buffer.sample(8)]
    [(8, 3), (8, 1), (8, 1), (8, 3), (8, 1)]

    Args:
        state_dim: Dimension of a state.
        action_dim: Dimension of an action.
        buffer_size: Maximum number of real transitions; memory is allocated as the buffer fills.
        device: Device of rows, generator and batches.
        real_ratio: Share of real rows in each batch. 0: only synthetic rows, as in the paper's offline results; 1: only
            real rows.
        generator: Settings, see `GeneratorConfig.of`: a `GeneratorConfig`, the name of a preset, or a mapping of
            fields. Or any object with `fit` and `sample`. None: on a GPU `GeneratorConfig.offline()`, or `fast()` if
            there is a schedule; on a CPU `tiny()`.
        schedule: When `sample` refits by itself while `add_transition` adds rows, see `RetrainSchedule.of`; None:
            never. Requires `max_action`.
        synthetic_capacity: Maximum number of synthetic rows; a refit briefly holds twice as many. None: no limit.
        max_action: Actions are in [-max_action, max_action]. None: the range of the real actions; if that range has
            changed, the next `upsample` trains a new model.
        seed: Seed of generator and synthetic rows, see `SourceOptions`; the real ones are drawn with `numpy.random`, as
            in CORL. None: the seed last passed to `torch.manual_seed`. Set it in CORL's files, which seed torch only
            after they load the data.
        on_refit: Called with a `RefitReport` after every refit.
        relevance: What generation is guided by, see `Guidance.of`: ``"curiosity"``, ``"return"``, ``"reward"``, a
            mapping, or a function of transitions. None: not guided.
        refit: How refits on schedule run, ``"inline"`` or ``"background"``, and `lag`, the steps until their rows are
            taken: see `SourceOptions`. `upsample` always waits.
        lag: See `refit`.
    """

    _told_of_real = False  # whether a batch was drawn, and told to be real if `upsample` was not called

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        buffer_size: int,
        device: torch.device | str = "cpu",
        *,
        real_ratio: float = 0.0,
        generator: GeneratorOption = None,
        schedule: ScheduleOption = None,
        synthetic_capacity: int | None = None,
        max_action: float | None = None,
        seed: int | None = None,
        on_refit: Callable[[RefitReport], object] | None = None,
        relevance: RelevanceOption = None,
        refit: str = "inline",
        lag: int | None = None,
        **unknown: Never,
    ) -> None:
        """Make an empty buffer."""
        refuse_unknown(type(self), unknown)
        self._shape = whole_number("state_dim", state_dim), whole_number("action_dim", action_dim)
        if max_action is not None and not (isinstance(max_action, Real) and 0 < max_action < math.inf):
            raise ValueError(f"max_action: expected a positive number, got {max_action!r}")
        self._max_action = max_action
        self._ring = RingBuffer(self._spec(math.inf), whole_number("buffer_size", buffer_size), device=device)
        if schedule is None and is_background(refit):
            raise ValueError(f"refit: {refit!r} requires a schedule, because upsample always waits")
        if schedule is None:
            generator = _fitted_once(generator, self._ring.device)
        self._options = SourceOptions(
            real_ratio=real_ratio,
            generator=generator,
            schedule=_NEVER if schedule is None else schedule,
            synthetic_capacity=sys.maxsize if synthetic_capacity is None else synthetic_capacity,
            seed=seed,
            on_refit=on_refit,
            relevance=relevance,
            refit=refit,
            lag=lag,
        )
        own = getattr(generator, "spec", None)
        if own is not None and (own.observation_dim, own.action_dim) != self._shape:
            raise ValueError(
                f"generator: got a spec with {own.observation_dim} state and {own.action_dim} action dimensions, "
                f"expected {state_dim} and {action_dim}"
            )
        if schedule is not None and own is None and max_action is None:
            raise ValueError("max_action: required with a schedule, because new actions may exceed the range so far")
        self._source: SyntheticSource | None = None
        if schedule is not None:
            self._source = self._source_for(self._ring.transitions())
        self._endless = False  # whether to regenerate the synthetic rows once all were drawn
        self._used = 0  # synthetic rows drawn since they were generated
        self._state_scale: tuple[Tensor, Tensor] | None = None
        self._reward_scale = 1.0, 0.0

    def __len__(self) -> int:
        """Number of real transitions."""
        return len(self._ring)

    def __repr__(self) -> str:
        """Sizes, ratio and device."""
        sizes = f"{len(self)} of {self._ring.capacity} real, {len(self._source.store) if self._source else 0} synthetic"
        return f"ReplayBuffer({sizes}, real_ratio={self.real_ratio}, device={str(self._ring.device)!r})"

    @property
    def real_ratio(self) -> float:
        """Share of real rows in each batch; can be set at any time, for example for online fine-tuning."""
        return self._options.real_ratio

    @real_ratio.setter
    def real_ratio(self, real_ratio: float) -> None:
        self._options = replace(self._options, real_ratio=check_real_ratio(real_ratio))
        if self._source is not None:
            self._source.real_ratio = self.real_ratio

    @property
    def synthetic(self) -> Transitions | None:
        """The synthetic rows without normalisation; None if there are none."""
        if self._source is None or not len(self._source.store):
            return None
        return Transitions(self._source.spec, self._source.store.rows)

    def load_d4rl_dataset(self, data: Mapping[str, Any]) -> None:
        """Load a data set in the format of `d4rl.qlearning_dataset` into the empty buffer.

        Args:
            data: ``observations`` and ``next_observations`` ``(n, state_dim)``, ``actions`` ``(n, action_dim)``,
                ``rewards`` and ``terminals`` ``(n,)`` or ``(n, 1)``.

        Raises:
            ValueError: The buffer is not empty or too small, or the data are invalid. Nothing is loaded.
        """
        if len(self):
            raise ValueError(f"buffer: expected an empty buffer, it holds {len(self)} transitions")
        transitions = self._checked(data)
        if len(transitions) > self._ring.capacity:
            raise ValueError(f"data: {len(transitions)} transitions exceed buffer_size={self._ring.capacity}")
        self._add(transitions)

    def add_transition(self, state: Any, action: Any, reward: Any, next_state: Any, done: Any) -> None:
        """Add one transition (online fine-tuning); a full buffer overwrites the oldest.

        Args:
            state: ``(state_dim,)``.
            action: ``(action_dim,)``.
            reward: A number.
            next_state: ``(state_dim,)``.
            done: Whether the task ended the episode; False at a time limit.
        """
        values = state, action, reward, next_state, done
        parts = [np.asarray(value, np.float32) for value in values]
        row = np.concatenate([part.reshape(-1) for part in parts])
        plain = [part.shape for part in parts] == [self._shape[:1], self._shape[1:], (), self._shape[:1], ()]
        if plain and self._max_action is None and np.isfinite(row).all() and row[-1] in (0, 1):
            self._add(Transitions(self._ring.spec, torch.from_numpy(row)[None]))
            return  # fast path without further checks
        self._add(self._checked({key: np.asarray(value)[None] for key, value in zip(d4rl.KEYS, values, strict=True)}))

    def sample(self, batch_size: int) -> list[Tensor]:
        """Draw a batch with exactly ``round(real_ratio * batch_size)`` real rows (all rows before `upsample`).

        Returns:
            ``[states, actions, rewards, next_states, dones]``, float32 on the device, rewards and dones ``(n, 1)``.
        """
        rows = self._draw(whole_number("batch_size", batch_size))
        # Copies, as in CORL: modifying one field in place must not invalidate the others for autograd.
        states, actions, rewards, next_states, dones = (
            part.clone(memory_format=torch.contiguous_format) for part in d4rl.split(self._ring.spec, rows)
        )
        if self._state_scale is not None:
            mean, std = self._state_scale
            states, next_states = (states - mean) / std, (next_states - mean) / std
        if self._reward_scale != (1.0, 0.0):
            rewards = rewards * self._reward_scale[0] + self._reward_scale[1]
        return [states, actions, rewards, next_states, dones]

    def upsample(self, n: int) -> RefitReport:
        """Fit the generator to the real rows and replace the synthetic rows by `n` new ones.

        If `n` exceeds `synthetic_capacity`, the buffer holds `synthetic_capacity` rows and regenerates all of them
        whenever that many rows have been drawn, without an upper limit.

        Raises:
            ValueError: There are no or too few real rows.
            DivergedError: The training loss became non-finite.
            GenerationError: The generator returned invalid rows.
            MemoryError: The rows do not fit into memory.

        After an error the buffer is unchanged.
        """
        n = whole_number("n", n)
        if not len(self):
            raise ValueError("buffer is empty: load a data set before upsampling")
        source = self._source_for(self._ring.transitions())
        try:
            report = source.refit(n)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            remedy = "set a smaller synthetic_capacity: rows are then regenerated when all were drawn"
            count = min(n, source.store.capacity)
            raise MemoryError(f"upsample: out of memory for {count} rows; {remedy}") from error
        self._source, self._endless, self._used = source, n > source.store.capacity, 0
        return report

    def normalise_states(self, mean: Any = None, std: Any = None, eps: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
        """Return states as ``(s - mean) / std`` from now on; stored and saved rows are not changed.

        Not needed if the data were normalised before loading, as in CORL's files.

        Args:
            mean: ``(state_dim,)`` or a number. None: the mean of the real rows.
            std: ``(state_dim,)`` or a number. None: the standard deviation of the real rows plus `eps`.
            eps: Avoids a division by zero for constant columns.

        Returns:
            The mean and std in use, each ``(state_dim,)``, for the environment wrapper.
        """
        if mean is None or std is None:
            if not len(self):
                raise ValueError("buffer is empty: load a data set, or pass mean and std")
            states = self._ring.transitions().rows[:, : self._shape[0]]
            measured_std, measured_mean = torch.std_mean(states, dim=0, correction=0)
            mean = measured_mean.cpu() if mean is None else mean
            std = (measured_std + eps).cpu() if std is None else std
        mean, std = self._per_column("mean", mean), self._per_column("std", std)
        if not (std > 0).all():
            raise ValueError(f"std: expected positive numbers, got {std}")
        self._state_scale = torch.tensor(mean, device=self._ring.device), torch.tensor(std, device=self._ring.device)
        return mean, std

    def normalise_rewards(self, scale: float = 1.0, shift: float = 0.0) -> None:
        """Return rewards as ``r * scale + shift`` from now on; stored and saved rows are not changed."""
        if not all(isinstance(value, Real) and math.isfinite(value) for value in (scale, shift)) or not scale:
            raise ValueError(f"scale and shift: expected finite numbers and no scale of 0, got {scale!r} and {shift!r}")
        self._reward_scale = float(scale), float(shift)

    def save(self, path: str | os.PathLike[str], rows: int | None = None) -> None:
        """Write synthetic rows to an ``.npz``, ``.hdf5`` or ``.h5`` file, atomically.

        An ``.npz`` file holds the arrays that `d4rl.qlearning_dataset` returns. An HDF5 file holds what that function
        reads: every transition takes two rows, the second of which has the next observation and a timeout.

        Args:
            path: The file.
            rows: None: the synthetic rows in memory. A number (HDF5 only): that many new rows, generated and written
                in blocks, so memory stays bounded.

        Raises:
            OSError: The file cannot be written, for example because the disk is full. The old file is unchanged.
        """
        file, source = d4rl.checked_path(path), self._source
        if rows is not None and file.suffix not in d4rl.HDF5:
            raise ValueError(f"rows: streaming needs an HDF5 file, got {file.name}; use .hdf5")
        if source is None or not (len(source.store) if rows is None else source.refits):
            raise ValueError("buffer has no synthetic rows to save: call upsample first")
        if rows is None:
            count, blocks = len(source.store), iter(source.store.rows.split(d4rl.BLOCK))
        else:
            count = whole_number("rows", rows)
            sizes = (min(d4rl.BLOCK, count - start) for start in range(0, count, d4rl.BLOCK))
            blocks = (source.generate(size).rows for size in sizes)
        d4rl.write(file, source.spec, count, blocks)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace the synthetic rows by those of a file in the format of `save`; nothing is fitted.

        HDF5 files without ``next_observations`` are read by the rule of `d4rl.qlearning_dataset`.

        Raises:
            CheckpointError: The file is damaged, or its rows do not match this buffer. Nothing is changed.
        """
        file, most = d4rl.checked_path(path), self._options.synthetic_capacity
        try:
            transitions = self._checked(d4rl.read(file))
            if len(transitions) > most:
                raise ValueError(f"{len(transitions)} rows exceed synthetic_capacity={most}")
        except (FileNotFoundError, ImportError, MemoryError):
            raise
        except Exception as error:  # NumPy, zip and HDF5 raise different errors for damaged files
            raise CheckpointError(f"path: cannot load {file}: {error}") from error
        source = self._source_for(transitions) if self._source is None else self._source
        source.store.replace(Transitions(source.spec, transitions.rows))
        self._source, self._endless = source, False

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy; tensors are on the CPU, so any machine can load them."""
        return {**vars(self), "_state_scale": on_cpu(self._state_scale)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; on the CPU if the device does not exist here."""
        vars(self).update(state)
        if self._state_scale is not None:
            mean, std = self._state_scale
            self._state_scale = mean.to(self._ring.device), std.to(self._ring.device)

    def _draw(self, batch_size: int) -> Tensor:
        """Draw the rows of a batch, ``(batch_size, dim)``; the caller owns them."""
        source, drawn = self._source, None
        if not self._told_of_real and self.real_ratio < 1 and self._options.schedule == _NEVER:
            self._tell_of_real_rows(0 if source is None else len(source.store))
        if source is not None:
            if self._endless and self._used >= len(source.store):
                self._regenerate(source)
            drawn = source.draw(batch_size)
        count = batch_size if drawn is None else len(drawn[1])
        self._used += batch_size - count
        if drawn is not None and not count:
            return drawn[0].rows
        if not len(self):
            raise ValueError("buffer is empty: load a data set before sampling")
        index = np.random.randint(0, len(self), size=count)  # the global random state, as in CORL's buffer
        real = self._ring.rows_at(torch.from_numpy(index).to(self._ring.device))
        return real if drawn is None else drawn[0].rows.index_copy_(0, drawn[1], real)

    def _tell_of_real_rows(self, synthetic: int) -> None:
        """Warn at the first batch if `upsample` was not called: an experiment without synthetic rows looks the same."""
        self._told_of_real = True
        if not synthetic:
            warnings.warn(
                "sample: all rows are real, because upsample was not called; set real_ratio=1 if that is meant",
                RuntimeWarning,
                stacklevel=4,
            )

    def _regenerate(self, source: SyntheticSource) -> None:
        """Replace the synthetic rows by new ones of the same model; keep them if that fails."""
        try:
            source.store.replace(source.generate(len(source.store)))
        except Exception as error:
            warnings.warn(
                f"generating new synthetic rows failed, keeping the previous {len(source.store)}: {error!r}",
                RuntimeWarning,
                stacklevel=4,
            )
        self._used = 0

    def _add(self, transitions: Transitions) -> None:
        self._ring.add(transitions)
        if self._source is not None:
            self._source.steps += len(transitions)

    def _checked(self, data: Mapping[str, Any]) -> Transitions:
        """Convert a data set to transitions and validate it."""
        transitions: Transitions = d4rl.pack(self._ring.spec, data)
        if self._max_action is not None:
            furthest = float(transitions.actions.abs().max())
            if furthest > np.float32(self._max_action):
                raise ValueError(f"actions: expected magnitudes up to max_action={self._max_action}, got {furthest}")
        return transitions

    def _per_column(self, name: str, values: Any) -> np.ndarray:
        """Broadcast to one finite number per state dimension, ``(state_dim,)``."""
        array = np.asarray(values, np.float32)
        if array.shape not in ((), self._shape[:1]) or not np.isfinite(array).all():
            raise ValueError(f"{name}: expected a finite number or {self._shape[0]} of them, got {values!r}")
        return np.broadcast_to(array, self._shape[:1]).copy()

    def _source_for(self, real: Transitions) -> SyntheticSource:
        """Return the current source, or a new one if the spec has changed."""
        spec = getattr(self._options.generator, "spec", None)
        if spec is None and self._max_action is not None:
            spec = self._spec(self._max_action)
        elif spec is None:
            actions = real.actions.cpu().numpy()
            spec = self._spec(actions.max(0), actions.min(0))
        if self._source is not None and self._source.spec == spec:
            return self._source
        capacity = None if self._options.schedule == _NEVER else self._ring.capacity
        return self._options.build(_Real(spec, self._ring, capacity), spec, self._ring.device)

    def _spec(self, high: Any, low: Any = None) -> TransitionSpec:
        states, actions = ((columns,) for columns in self._shape)
        high = np.broadcast_to(np.asarray(high, np.float32), actions)
        return TransitionSpec.from_spaces(
            Box(-np.inf, np.inf, states), Box(-high if low is None else low, high, actions)
        )


def _fitted_once(generator: GeneratorOption, device: torch.device) -> GeneratorOption:
    """The generator of a buffer that is fitted once: on a GPU, settings without a preset are those of `offline`."""
    if isinstance(generator, Generator) or device.type != "cuda":
        return generator
    return GeneratorConfig.of(generator, default="offline")


@dataclass(frozen=True)
class _Real:
    """The real rows with the spec of the generator."""

    spec: TransitionSpec
    ring: RingBuffer
    capacity: int | None = None  # None: no refit is expected, rows may be loaded
    gives_copies: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.ring)

    def transitions(self) -> Transitions:
        return Transitions(self.spec, self.ring.transitions().rows)
