"""SyntheticReplayBuffer: a replay buffer that mixes real and generated transitions in every batch."""

from __future__ import annotations

import os
from typing import Any

from synther_replay.data.transitions import Transitions
from synther_replay.persistence.checkpoint import save_checkpoint
from synther_replay.protocols import RealBuffer, Stateful
from synther_replay.replay.batch import Batch
from synther_replay.replay.source import SyntheticSource
from synther_replay.replay.states import stateful


class SyntheticReplayBuffer(SyntheticSource):
    """Wraps a real buffer and mixes generated transitions into its batches.

    It is used like any replay buffer::

        buffer = SyntheticReplayBuffer(RingBuffer(spec, 1_000_000), DiffusionGenerator(spec))
        while training:
            buffer.add(observation, action, reward, next_observation, terminated)
            batch = buffer.sample(256)     # refits the generator first if a refit is due

    Several threads may add; one thread samples.

    Args:
        real: Buffer of real transitions: a `RingBuffer`, or any object with the methods of `RealBuffer`.
        generator: This and the other arguments: see `SyntheticSource`. What the adapters call `synthetic_capacity` is
            `capacity` here.
    """

    kind = "synthetic replay buffer"
    _needs = RealBuffer
    real: RealBuffer

    def __len__(self) -> int:
        """Number of real transitions."""
        return len(self.real)

    def add(self, *fields: Any, **extra: Any) -> None:
        """Add real transitions: one `Transitions`, or the fields that `Transitions.from_arrays` takes."""
        if len(fields) == 1 and isinstance(fields[0], Transitions) and not extra:
            transitions = fields[0]
            transitions.check()
        elif len(fields) == 5:
            transitions = Transitions.from_arrays(getattr(self.real, "input_spec", self.spec), *fields, **extra)
        else:
            raise TypeError(f"add: expected Transitions or five fields, got {len(fields)} arguments")
        with self._adding:
            self.real.add(transitions)
            self.steps += transitions.rows[..., 0].numel()

    def sample(self, batch_size: int) -> Batch:
        """Draw a shuffled batch with exactly ``round(real_ratio * batch_size)`` real rows; refit first if due.

        `is_synthetic` of the batch says which rows are synthetic.
        """
        drawn = self.draw(batch_size)
        real = batch_size if drawn is None else len(drawn[1])
        if real and not len(self.real):
            raise ValueError("buffer is empty: add transitions before sampling")
        if drawn is None:
            return Batch(self.spec, self.real.sample(batch_size).rows.to(self.device))
        batch, places = drawn
        if real:
            rows = self.real.sample(real).rows
            if rows.shape[0] != real:
                raise ValueError(f"real: sample({real}) returned {rows.shape[0]} rows, expected {real}")
            batch.rows.index_copy_(0, places, rows.to(self.device))
        return Batch(self.spec, batch.rows, places)

    def save(self, path: str | os.PathLike[str], *, include_real: bool = True) -> None:
        """Write a checkpoint: real rows, generator, store, schedule and random state in one file.

        Args:
            path: The file.
            include_real: Set it to False if you save the real buffer separately.
        """
        save_checkpoint(path, self.kind, self.state_dict(include_real=include_real))

    def state_dict(self, *, include_real: bool = True) -> dict[str, Any]:
        """Return a copy of the complete state."""
        state = super().state_dict()
        with self._adding:  # a thread may add: steps and rows belong together
            real = stateful(self.real, "real").state_dict() if include_real else None
            return {**state, "steps": self.steps, "real": real}

    def _parts(self, state: dict[str, Any]) -> dict[str, Stateful]:
        parts = super()._parts(state)
        if state.get("real", self) is not None:
            parts["real"] = stateful(self.real, "real")
        return parts
