"""SynthERMemory: a memory for the off-policy agents of skrl.

Usage: ``SynthERMemory(memory_size=100_000, num_envs=env.num_envs, device=env.device)`` in place of `RandomMemory`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from skrl.memories.torch import RandomMemory
from torch import Tensor

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.options import (
    AdjustableOptions,
    GeneratorOption,
    RelevanceOption,
    ScheduleOption,
    SourceOptions,
    refuse_unknown,
)
from synther_replay.replay.batch import synthetic_mask
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.source import SyntheticSource

_MARK = "is_synthetic"
_INDICES = "memory_index", "env_index", "filled"


class SynthERMemory(AdjustableOptions, RandomMemory):
    """skrl's `RandomMemory` with generated transitions mixed into its batches.

    For agents that store single transitions: SAC, TD3, DDPG, DQN and DDQN. Spaces are those that the agent creates its
    tensors with. Ask for the name ``"is_synthetic"`` to learn which rows are synthetic.

    >>> memory = SynthERMemory(memory_size=1_000, num_envs=4, device="cpu", generator="tiny", schedule=5_000)
    >>> memory
    SynthERMemory(0 real, 0 synthetic, real_ratio=0.5, refits=0)

    Args:
        real_ratio: Share of real rows in each batch; with 1 the memory behaves exactly like skrl's own.
        generator: Settings, see `GeneratorConfig.of`: a `GeneratorConfig`, the name of a preset, or a mapping of
            fields. Or any object with `fit` and `sample`. None: `GeneratorConfig.fast()` on a GPU, `tiny()` on a CPU.
        schedule: When to refit and how many rows to generate, see `RetrainSchedule.of`: a `RetrainSchedule`, the
            transitions between two refits, the name of a preset, or a mapping of fields. None:
            `RetrainSchedule.fast()` on a GPU, `tiny()` on a CPU.
        synthetic_capacity: Maximum number of synthetic rows.
        seed: Seed of generator and synthetic rows, see `SourceOptions`; skrl draws the real rows. None: the seed of
            skrl's `set_seed`, or the one last passed to `torch.manual_seed`.
        on_refit: Called with a `RefitReport` after every refit.
        relevance: What generation is guided by, see `Guidance.of`: ``"curiosity"``, ``"return"``, ``"reward"``, a
            mapping, or a function of transitions. None: not guided.
        refit: ``"inline"`` or ``"background"``, and `lag`, the steps until its rows are taken: see `SourceOptions`.
        lag: See `refit`.
        **memory: As in `RandomMemory`: ``memory_size``, ``num_envs``, ``device``, ``replacement``, ...

    Attributes:
        source: Generator, synthetic rows and schedule; None before the first transition.
    """

    def __init__(
        self,
        *,
        real_ratio: float = 0.5,
        generator: GeneratorOption = None,
        schedule: ScheduleOption = None,
        synthetic_capacity: int = 1_000_000,
        seed: int | None = None,
        on_refit: Callable[[RefitReport], object] | None = None,
        relevance: RelevanceOption = None,
        refit: str = "inline",
        lag: int | None = None,
        **memory: Any,
    ) -> None:
        """Check the arguments and create an empty memory."""
        refuse_unknown(type(self), memory)
        super().__init__(**memory)
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
        self._spaces: dict[str, spaces.Space[Any]] = {}
        self._names: tuple[str, ...] = ()  # tensors in the order of the columns of a row
        self._last: tuple[int, Tensor] | None = None  # size of the last mixed batch and places of its real rows
        self.source: SyntheticSource | None = None

    def __repr__(self) -> str:
        """Sizes and ratio."""
        synthetic, refits = (0, 0) if self.source is None else (len(self.source.store), self.source.refits)
        sizes = f"{len(self)} real, {synthetic} synthetic"
        return f"SynthERMemory({sizes}, real_ratio={self.real_ratio}, refits={refits})"

    def create_tensor(self, name: str, *, size: Any, **options: Any) -> bool:
        """Create a tensor, as in skrl; the spaces of observations, states and actions are remembered."""
        if isinstance(size, spaces.Space):
            self._spaces[name] = size
        return bool(super().create_tensor(name, size=size, **options))

    def add_samples(self, **tensors: Any) -> None:
        """Add transitions, as in skrl."""
        source = self._made_source()
        super().add_samples(**tensors)
        first = tensors.get("observations", next(iter(tensors.values())))
        source.steps += len(first) if first.ndim == 2 else 1

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[Tensor | None]]:
        """Draw a batch with ``round(real_ratio * batch_size)`` real rows; refit first if due.

        Args:
            names: Tensors to return, as in skrl; also ``"is_synthetic"``, bool ``(batch, 1)``.
            batch_size: Number of rows.
            mini_batches: Number of mini-batches that the rows are split into.
            sequence_length: Requires ``real_ratio=1`` if greater than 1: synthetic rows are single transitions.
        """
        drawn, self._last = None, None
        if self.real_ratio < 1.0:
            self._check_request(names, sequence_length)
            drawn = self._made_source().draw(batch_size)
        if drawn is None:
            sizes = {"batch_size": batch_size, "mini_batches": mini_batches, "sequence_length": sequence_length}
            batches: list[list[Tensor | None]] = super().sample(names, **sizes)
            return [self._marked(batch, names) for batch in batches] if _MARK in names else batches
        values = self._mixed(drawn[0].rows, drawn[1], marked=_MARK in names)
        if mini_batches == 1:
            return [[values.get(name) for name in names]]
        parts = {name: value.tensor_split(mini_batches) for name, value in values.items()}
        return [[parts[name][k] if name in parts else None for name in names] for k in range(mini_batches)]

    def get_sampling_indexes(self) -> Any:
        """Return the indices of the last batch, as in skrl; synthetic rows have none: -1."""
        if self._last is None:
            return super().get_sampling_indexes()
        size, places = self._last
        index = torch.full((size,), -1, device="cpu")
        if len(places):
            index[places.cpu()] = self.sampling_indexes
        return index

    def reset(self) -> None:
        """Remove all real and synthetic rows; the generator keeps its model."""
        super().reset()
        if self.source is not None:
            self.source.clear()

    @property
    def capacity(self) -> int:
        """Maximum number of real transitions."""
        return int(self.memory_size * self.num_envs)

    def transitions(self) -> Transitions:
        """Return all real transitions, the oldest first; the generator is fitted to them."""
        assert self.source is not None
        rows = torch.cat([self.tensors_view[name][: len(self)] for name in self._names], 1)
        oldest = self.memory_index * self.num_envs + self.env_index
        return Transitions(self.source.spec, (rows.roll(-oldest, 0) if self.filled else rows).to(torch.float32))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state, real and synthetic.

        skrl's checkpoints include it after ``agent.checkpoint_modules["memory"] = memory``.
        """
        return {
            "tensors": {name: tensor.clone() for name, tensor in self.tensors.items()},
            "indices": {name: getattr(self, name) for name in _INDICES},
            "source": None if self.source is None or self._is_plain else self.source.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; a mismatch raises `CheckpointError` and changes nothing.

        The agent must have created its tensors before.
        """
        shapes, expected = (
            {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
            for tensors in (state["tensors"], self.tensors)
        )
        if shapes and not expected:
            raise CheckpointError("state: the memory has no tensors yet; make the agent, which creates them, then load")
        if shapes != expected:
            raise CheckpointError(f"state: tensors: got {shapes}, expected {expected}")
        if state["source"] is not None:
            self._made_source().load_state_dict(state["source"])
        for name, tensor in state["tensors"].items():
            self.tensors[name].copy_(tensor)
        for name, value in state["indices"].items():
            setattr(self, name, value)
        if state["source"] is None and self.source is not None:  # its rows belong to other real rows
            self.source.start_over()
            self.source.steps = len(self)

    def _check_request(self, names: list[str], sequence_length: int) -> None:
        if sequence_length > 1:
            raise ValueError(
                f"sequence_length: synthetic rows are single transitions; got {sequence_length} with "
                f"real_ratio={self.real_ratio}, use real_ratio=1 for sequences"
            )
        if not len(self):
            raise ValueError("memory is empty: add transitions before sampling")
        unknown = [name for name in names if name in self.tensors and name not in self._names]
        if unknown:
            raise ValueError(
                f"names: synthetic rows have {list(self._names)}, got {unknown}; use real_ratio=1 for them"
            )

    def _mixed(self, rows: Tensor, places: Tensor, *, marked: bool) -> dict[str, Tensor]:
        """Overwrite synthetic rows at `places` with real ones; return tensors of their own memory by name."""
        if len(places):
            super().sample([], batch_size=len(places))  # draws indices by skrl's own rule
            places = places[: len(self.sampling_indexes)]  # without replacement, there may be too few
            index = self.sampling_indexes.to(rows.device)
            real = [self.tensors_view[name].index_select(0, index) for name in self._names]
            rows.index_copy_(0, places, torch.cat(real, 1).to(torch.float32))  # also flags and integers
        self._last = len(rows), places
        split: Any = torch.split_with_sizes_copy
        parts = split(rows, [self.tensors_view[name].shape[1] for name in self._names], 1)
        values = {name: part.to(self.tensors[name].dtype) for name, part in zip(self._names, parts, strict=True)}
        if marked:
            values[_MARK] = synthetic_mask(len(rows), places, rows.device)[:, None]
        return values

    def _marked(self, batch: list[Tensor | None], names: list[str]) -> list[Tensor | None]:
        """Mark no row of a real batch as synthetic."""
        size = next(len(part) for part in batch if part is not None)
        mark = torch.zeros(size, 1, dtype=torch.bool, device=self.device)
        return [mark if name == _MARK else part for name, part in zip(names, batch, strict=True)]

    def _made_source(self) -> SyntheticSource:
        """Return the source; the first call makes it of the tensors that the agent has created."""
        if self.source is None:
            observed = ["observations", *(["states"] if "states" in self.tensors else [])]
            following = [f"next_{name}" for name in observed]
            names = (*observed, "actions", "rewards", *following, "terminated")
            missing = [name for name in names if name not in self.tensors]
            missing += [name for name in (*observed, "actions") if name not in self._spaces and name not in missing]
            if missing:
                raise ValueError(
                    f"memory: expected the tensors of an off-policy agent, with spaces as sizes; got "
                    f"{self.get_tensor_names()}, missing {missing}"
                )
            seen = {name: _in_order_of_skrl(self._spaces[name]) for name in observed}
            spec = TransitionSpec.from_spaces(
                spaces.Dict(seen) if len(seen) > 1 else seen["observations"],
                _in_order_of_skrl(self._spaces["actions"]),
            )
            self._names = names
            self.source = self._options.build(self, spec, self.device)
        return self.source


def _in_order_of_skrl(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space with its entries in the order in which skrl flattens them: keys are sorted."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _in_order_of_skrl(space[key]) for key in sorted(space.keys())})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_in_order_of_skrl(part) for part in space])
    return space
