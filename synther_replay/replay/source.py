"""SyntheticSource: the synthetic part of batches, from a generator that is refitted to real transitions on schedule."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from synther_replay.common.checks import whole_number
from synther_replay.common.locking import Lock
from synther_replay.common.notices import Notices
from synther_replay.common.trees import on_cpu, state_of
from synther_replay.data.mismatch import mismatch
from synther_replay.data.transitions import Transitions
from synther_replay.errors import CheckpointError
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint
from synther_replay.protocols import Schedule, Stateful
from synther_replay.relevance.guide import Plan
from synther_replay.replay.examination import Examination
from synther_replay.replay.mixing import check_real_ratio, split_batch
from synther_replay.replay.scheduled_rows import ScheduledRows
from synther_replay.replay.states import stateful


class SyntheticSource(ScheduledRows):
    """Provides the synthetic part of every batch. The caller draws the real part.

    `SyntheticReplayBuffer` adds a real buffer to it. The framework adapters keep one next to the framework's buffer::

        source.steps += 1                        # for every real transition added
        if (drawn := source.draw(256)) is None:  # refits first if a refit is due
            ...                                  # the whole batch is real
        else:
            batch, places = drawn                # overwrite the rows at `places` with real rows

    One thread at a time may use it.

    Args:
        real: Real transitions that the generator is fitted to; any object with the methods of `RealTransitions`.
        generator: A `DiffusionGenerator`, or any object with `fit` and `sample`. Also a short form of
            `GeneratorConfig.of`, None for the default; or a function that makes a generator on a given device,
            ``make(device=...)``, which is called when the generator is first needed.
        spec: Layout of the transitions. None: the spec of the generator, or of the real transitions.
        real_ratio: Share of real rows in each batch; 1 is plain replay without refits.
        capacity: Maximum number of synthetic rows; the adapters call it `synthetic_capacity`.
        schedule: When to refit and how many rows to generate: a schedule or a short form of `RetrainSchedule.of`. None:
            `RetrainSchedule.fast()` on a GPU, `tiny()` on a CPU.
        device: Device of the synthetic rows. None: the generator's device; for a short form the GPU if there is one.
        seed: Seed of the sampling order, and of a generator that is made from a short form.
        on_refit: See `SourceOptions`.
        relevance: See `SourceOptions`.
        refit: See `SourceOptions`.
        lag: See `SourceOptions`.

    Attributes:
        steps: Environment steps so far.
        refits: Number of completed refits.
        last_refit: Report of the last completed refit, None before the first and after a load.
    """

    kind = "synthetic source"  # stored in checkpoint files

    def __repr__(self) -> str:
        """Sizes and ratio."""
        return (
            f"{type(self).__name__}({len(self.real)} real, {len(self.store)} synthetic, "
            f"real_ratio={self.real_ratio}, refits={self.refits})"
        )

    def draw(self, batch_size: int) -> tuple[Transitions, Tensor] | None:
        """Return a full synthetic batch and the positions to overwrite with real rows; None if the batch is all real.

        There are exactly ``round(real_ratio * batch_size)`` positions, distinct and in random order. Overwriting rows
        at random positions is cheaper than concatenating and shuffling. A due refit runs first.
        """
        batch_size = whole_number("batch_size", batch_size)  # as int: checkpoints cannot hold NumPy numbers
        self.refit_if_due()
        real, synthetic = split_batch(batch_size, self.real_ratio, synthetic_available=len(self.store) > 0)
        if not synthetic:
            return None
        return Transitions(self.spec, self.store.sample(batch_size)), self._shuffles.draw(batch_size, real)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: generator, store, schedule and random state in one file."""
        save_checkpoint(path, self.kind, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restore a checkpoint written by `save`, on any device; the run continues exactly.

        See `load_state_dict` for what must agree.

        Raises:
            CheckpointError: The file is damaged, not a checkpoint of this class, of a newer format version, or does not
                match this object. Nothing is changed.
        """
        self.load_state_dict(load_checkpoint(path, self.kind))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state without the real transitions."""
        pending = self._pending_state()  # first: it waits for the job, which may change the rest
        schedule = self.schedule
        is_saved = hasattr(schedule, "state_dict") and hasattr(schedule, "restored")
        return {
            "spec": self.spec.to_json(),
            "generator": state_of(stateful(self.generator, "generator")),
            "store": self.store.state_dict(),
            "real_ratio": self.real_ratio,
            "schedule": schedule.state_dict() if is_saved else None,  # type: ignore[attr-defined]
            "steps": self.steps,
            "refits": self.refits,
            "last_attempt": self._last_attempt,
            "generated_at": self._generated_at,
            "version": self._version,
            "is_stale": self._is_stale,
            "shuffles": self._shuffles.state_dict(),
            "relevance": None if self._guide is None else self._guide.state_dict(),
            "plan": None if self._plan is None else self._plan.state_dict(),
            "pending": pending,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; a mismatch raises `CheckpointError` and changes nothing.

        The ratio and the values of the schedule are those of the state, the class of the schedule stays. The spec, the
        fields of the schedule and the settings of the generator that give its weights their meaning must agree.
        """
        self._let_job_end()
        parts = self._parts(state)
        before, own = {name: state_of(part) for name, part in parts.items()}, dict(vars(self))
        try:
            if state["spec"] != self.spec.to_json():
                raise CheckpointError(f"state: {mismatch(state['spec'], self.spec)}")
            schedule = self._restored_schedule(state["schedule"])
            real_ratio = check_real_ratio(state["real_ratio"])
            steps, refits = (whole_number(name, state[name], least=0) for name in ("steps", "refits"))
            last_attempt = _step_or_none("last_attempt", state["last_attempt"])
            # Files of 0.2.0 lack it; there the last attempt stands in for the last successful one.
            generated_at = _step_or_none("generated_at", state.get("generated_at", last_attempt))
            for name, part in parts.items():
                part.load_state_dict(state[name])
            plan = state.get("plan")
            self._plan = None if plan is None or self._guide is None else Plan.from_state(plan)
            self.schedule, self.real_ratio = schedule, real_ratio
            self.steps, self.refits, self._last_attempt = steps, refits, last_attempt
            self._version, self._is_stale = state.get("version"), bool(state.get("is_stale"))
            self._identity = object()
            self._pending = self._restored_pending(state.get("pending"))
            self._generated_at, self.last_refit = generated_at, None  # the report belongs to the run before the load
        except BaseException as error:
            vars(self).update(own)
            for name, part in parts.items():
                part.load_state_dict(before[name])
            if isinstance(error, CheckpointError) or not isinstance(error, Exception):
                raise
            raise CheckpointError(f"state: not a valid {self.kind} of this version ({error!r})") from error
        if (dropped := own["_pending"]) is not None:
            dropped.drop()
            self._warn_of(RuntimeError("the result of this refit is discarded: a load came first"), dropped.job.steps)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the hook, which is often a function that pickle cannot hold."""
        pending = {"pending": on_cpu(self._pending_state()), "_pending": None}
        return {**vars(self), **pending, "on_refit": None, "_is_in_hook": False, "_job": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from pickle or deepcopy; fills in what 0.2.0 lacked."""
        late = {
            "on_refit": None,
            "_guide": None,
            "_plan": None,
            "_version": None,
            "_is_stale": False,
            "_job": None,
            "_adding": Lock(),
            "_examination": Examination(),
            "_failures": 0,
            "_reported": Notices(),
            "_in_background": False,
            "_lag": None,
            "_pending": None,
        }
        vars(self).update({**late, "_generated_at": state["_last_attempt"], **state})
        self._identity = object()
        for name in ("generator", "schedule"):
            if name in state:
                setattr(self, f"_{name}", vars(self).pop(name))
        self._pending = self._restored_pending(vars(self).pop("pending", None))

    def _parts(self, state: dict[str, Any]) -> dict[str, Stateful]:
        """The parts whose states are contained in `state`."""
        parts = {
            "generator": stateful(self.generator, "generator"),
            "store": self.store,
            "shuffles": self._shuffles,
        }
        if self._guide is not None and state.get("relevance") is not None:
            parts["relevance"] = self._guide
        return parts

    def _restored_schedule(self, state: dict[str, Any] | None) -> Schedule:
        restored = getattr(self.schedule, "restored", None)
        if (state is None) != (restored is None):
            raise CheckpointError(f"state: schedule: got {state}, expected that of {type(self.schedule).__name__}")
        return self.schedule if restored is None else restored(state)


def _step_or_none(name: str, value: Any) -> int | None:
    return None if value is None else whole_number(name, value, least=0)
