"""SyntheticSource: a generator that is refitted to real transitions on schedule, and the rows that it made."""

from __future__ import annotations

import copy
import logging
import os
import time
import warnings
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.common.seeding import derive_seed
from synther_replay.data.transitions import ROUNDING_OF_ACTIONS, Transitions, TransitionSpec
from synther_replay.errors import CheckpointError, DivergedError, GenerationError, is_out_of_memory
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint
from synther_replay.protocols import Generator, RealTransitions, Stateful
from synther_replay.replay.indices import ShuffleStream
from synther_replay.replay.mixing import check_real_ratio, split_batch
from synther_replay.replay.schedule import RetrainSchedule
from synther_replay.replay.store import SyntheticStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RefitReport:
    """What a refit did.

    Attributes:
        fit: What the generator's `fit` returned.
        rows: Rows generated.
        steps: Environment steps at that time.
        fit_seconds: Time to fit.
        sample_seconds: Time to generate and store.
    """

    fit: Any
    rows: int
    steps: int
    fit_seconds: float
    sample_seconds: float


class SyntheticSource:
    """The synthetic part of every batch, for whoever draws the real part by other means.

    `SyntheticReplayBuffer` is one with a real buffer of ours; the adapters hold one beside the buffer of a framework::

        source.steps += 1                        # for every real transition that was added
        if (drawn := source.draw(256)) is None:  # refits first when the schedule says so
            ...                                  # everything is real
        else:
            batch, places = drawn                # put real rows at those places of the synthetic batch

    One thread at a time: neither this nor its parts lock anything.

    Args:
        real: What the generator learns from: the methods of `RealTransitions`.
        generator: `DiffusionGenerator`, or anything with `fit` and `sample`.
        spec: Layout of the transitions; None takes that of the generator or of the real transitions.
        real_ratio: Share of each batch that is real; 1 is plain replay.
        capacity: Most synthetic rows to hold.
        schedule: When to refit and how many rows to generate; None as fits the generator's device.
        device: Where synthetic rows live; None takes that of the generator.
        seed: Of the sampling order.
    """

    kind = "synthetic source"  # what its files say that they hold
    _needs: Any = RealTransitions

    def __init__(
        self,
        real: RealTransitions,
        generator: Generator,
        *,
        spec: TransitionSpec | None = None,
        real_ratio: float = 0.5,
        capacity: int = 1_000_000,
        schedule: RetrainSchedule | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        """Check the parts and start with an empty store."""
        for name, part, protocol in (("real", real, self._needs), ("generator", generator, Generator)):
            if not isinstance(part, protocol):
                raise TypeError(f"{name}: expected the methods of {protocol.__name__}, got {type(part).__name__}")
        spec = spec or getattr(generator, "spec", None) or getattr(real, "spec", None)
        if not isinstance(spec, TransitionSpec):
            raise TypeError(f"spec: neither part has one, give it (got {spec!r})")
        for name, part in (("real", real), ("generator", generator)):
            if getattr(part, "spec", spec) != spec:
                raise ValueError(f"{name}: its spec differs from {spec.to_json()}")
        if getattr(generator, "stack", 1) != 1:
            raise ValueError(f"generator: a buffer takes one model, got a stack of {generator.stack}")  # type: ignore[attr-defined]
        if device is None:
            device = getattr(generator, "device", "cpu")
        self.real, self.generator, self.spec = real, generator, spec
        self.real_ratio = check_real_ratio(real_ratio)
        self.store = SyntheticStore(spec, capacity, resolve_device(device), seed=seed)
        if schedule is None:
            schedule = RetrainSchedule.fast() if self.device.type == "cuda" else RetrainSchedule.tiny()
        if not isinstance(schedule, RetrainSchedule):
            raise TypeError(f"schedule: expected a RetrainSchedule, got {schedule!r}")
        self.schedule = schedule
        self.steps = len(real)  # environment steps so far
        self.refits = 0
        self.last_refit: RefitReport | None = None
        self._last_attempt: int | None = None
        self._shuffles = ShuffleStream(derive_seed(seed, 12), self.device)

    @property
    def device(self) -> torch.device:
        """Where synthetic rows and batches live."""
        return self.store.device

    def __repr__(self) -> str:
        """Sizes and ratio."""
        return (
            f"{type(self).__name__}({len(self.real)} real, {len(self.store)} synthetic, "
            f"real_ratio={self.real_ratio}, refits={self.refits})"
        )

    def draw(self, batch_size: int) -> tuple[Transitions, Tensor] | None:
        """Synthetic rows for a whole batch and the places that real rows take in it; None while everything is real.

        There are exactly ``round(real_ratio * batch_size)`` places, all different and in random order. Real rows that
        overwrite synthetic ones at random places are cheaper than joining and shuffling.
        """
        batch_size = whole_number("batch_size", batch_size)  # a checkpoint will hold it, and no number of NumPy
        self.refit_if_due()
        real, synthetic = split_batch(batch_size, self.real_ratio, synthetic_available=len(self.store) > 0)
        if not synthetic:
            return None
        return Transitions(self.spec, self.store.sample(batch_size)), self._shuffles.draw(batch_size, real)

    def refit_if_due(self) -> RefitReport | None:
        """Refit if the schedule asks for it, synthetic rows are used at all, and there is enough to learn from."""
        if self.real_ratio == 1.0 or not self.schedule.is_due(self.steps, self._last_attempt):
            return None
        enough = len(self.real) >= max(1, getattr(self.generator, "min_rows", 1))
        return self.refit_or_warn() if enough else None

    def refit_or_warn(self) -> RefitReport | None:
        """`refit`, for the middle of a run: where that fails for want of luck or memory, warn and go on as before.

        A fit that diverges, runs out of memory or cannot fill the store ends in a warning and None; any other error,
        and an interrupt, is passed on.
        """
        try:
            return self.refit()
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, DivergedError | GenerationError) or is_out_of_memory(error)):
                raise
            warnings.warn(f"refit failed, {self._kept()}: {error}", RuntimeWarning, stacklevel=2)
            return None

    def refit(self, rows: int | None = None) -> RefitReport:
        """Refit the generator to the real transitions and replace the synthetic ones in one step.

        Whatever is raised, generator and store are as before.

        Args:
            rows: How many to generate, as far as the capacity allows; None as the schedule says.
        """
        self._last_attempt = self.steps
        before = _state_of(self.generator) if isinstance(self.generator, Stateful) else None
        try:
            begun = time.monotonic()
            learnt = self.real.transitions()
            self._check_actions(learnt)
            fit = self.generator.fit(learnt)
            fitted = time.monotonic()
            fresh = self.generate(min(rows or self.schedule.rows, self.store.capacity))
            self.store.replace(fresh)
        except BaseException as error:
            if before is not None and isinstance(self.generator, Stateful):
                rejected = getattr(self.generator, "rejected", None)
                self.generator.load_state_dict(before)
                if rejected is not None:  # what was rejected stays counted
                    self.generator.rejected = rejected  # type: ignore[attr-defined]
            logger.warning("refit ended by %s, %s", type(error).__name__, self._kept())
            raise
        self.refits += 1
        ended = time.monotonic()
        self.last_refit = RefitReport(fit, len(fresh), self.steps, fitted - begun, ended - fitted)
        logger.info("refit %d at step %d: %s", self.refits, self.steps, self.last_refit)
        return self.last_refit

    def start_over(self, steps: int = 0) -> None:
        """Begin anew with other real transitions: without synthetic rows, and with `steps` taken. The model is kept."""
        self.store.clear()
        self.steps, self._last_attempt = steps, None

    def generate(self, rows: int) -> Transitions:
        """New rows of the model as it is, checked: whatever the generator, only what could be real gets through."""
        fresh = self.generator.sample(rows)
        self._check_generated(fresh)
        return fresh

    def to(self, device: torch.device | str) -> Self:
        """Move synthetic rows and batches to another device, and the generator where it can move."""
        self.store.to(resolve_device(device))
        self._shuffles.to(self.device)
        if hasattr(self.generator, "to"):
            self.generator.to(self.device)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write generator, store, schedule and random state to one file; see `checkpoint`."""
        save_checkpoint(path, self.kind, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue exactly where it was saved, on any device.

        Raises:
            CheckpointError: The file is damaged, foreign, newer, or of other spaces or sizes; nothing is changed.
        """
        self.load_state_dict(load_checkpoint(path, self.kind))

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that the next calls depend on, the real transitions aside."""
        return {
            "spec": self.spec.to_json(),
            "generator": _state_of(stateful(self.generator, "generator")),
            "store": self.store.state_dict(),
            "real_ratio": self.real_ratio,
            "schedule": dict(vars(self.schedule)),
            "steps": self.steps,
            "refits": self.refits,
            "last_attempt": self._last_attempt,
            "shuffles": self._shuffles.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; a state that does not fit is refused and changes nothing."""
        parts = self._parts(state)
        before = {name: _state_of(part) for name, part in parts.items()}
        try:
            if state["spec"] != self.spec.to_json():
                raise CheckpointError(f"state: spec {state['spec']} differs from this buffer's, {self.spec.to_json()}")
            schedule, real_ratio = RetrainSchedule(**state["schedule"]), check_real_ratio(state["real_ratio"])
            steps, refits = (whole_number(name, state[name], least=0) for name in ("steps", "refits"))
            last = state["last_attempt"]
            last_attempt = None if last is None else whole_number("last_attempt", last, least=0)
            for name, part in parts.items():
                part.load_state_dict(state[name])
        except BaseException as error:
            for name, part in parts.items():
                part.load_state_dict(before[name])
            if isinstance(error, CheckpointError) or not isinstance(error, Exception):
                raise
            raise CheckpointError(f"state: it does not describe a buffer of this release ({error!r})") from error
        self.schedule, self.real_ratio = schedule, real_ratio
        self.steps, self.refits, self._last_attempt = steps, refits, last_attempt

    def _parts(self, state: dict[str, Any]) -> dict[str, Stateful]:
        """The parts that a state speaks of."""
        return {
            "generator": stateful(self.generator, "generator"),
            "store": self.store,
            "shuffles": self._shuffles,
        }

    def _kept(self) -> str:
        return f"keeping the previous model and {len(self.store)} synthetic rows"

    def _check_actions(self, real: Transitions) -> None:
        """Warn of those that cannot be learnt as they are: a model's own stay within the action space."""
        actions = real.rows[:, self.spec.actions]
        outside = self.spec.outside_action_space(actions, ROUNDING_OF_ACTIONS).any(-1)
        if bool(outside.any()):
            warnings.warn(
                f"real: {float(outside.float().mean()):.0%} of the actions lie outside of the action space, all are "
                f"from {float(actions.min()):g} to {float(actions.max()):g}; generated ones end at its bounds. That is "
                "right if the environment clips actions; else give the space that they have",
                RuntimeWarning,
                stacklevel=4,
            )

    def _check_generated(self, fresh: Transitions) -> None:
        if not isinstance(fresh, Transitions) or fresh.spec != self.spec or fresh.rows.ndim != 2:
            raise TypeError(
                f"generator: its sample gave no transitions of this buffer's spec, but {type(fresh).__name__}"
            )
        if not len(fresh):
            raise GenerationError("the generator gave no rows")
        try:
            fresh.check()
        except ValueError as error:
            raise GenerationError(f"the generator gave rows that are no transitions: {error}") from error
        if bool(self.spec.outside_action_space(fresh.rows[:, self.spec.actions]).any()):
            raise GenerationError("the generator gave actions outside the action space")


def _state_of(part: Stateful) -> dict[str, Any]:
    """A copy of a part's state; what a module of torch gives is its own tensors."""
    state = part.state_dict()
    return copy.deepcopy(state) if isinstance(part, torch.nn.Module) else state


def stateful(part: object, name: str) -> Stateful:
    """The part, if it can be saved."""
    if not isinstance(part, Stateful):
        raise TypeError(
            f"{name}: {type(part).__name__} has no state_dict and load_state_dict, so it cannot be saved"
            + ("; use include_real=False and save it by its own means" if name == "real" else "")
        )
    return part
