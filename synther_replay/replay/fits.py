"""How a refit fits: by a job of the generator, in place, or somewhere else; all have run, sample, commit and revert."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from types import SimpleNamespace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from synther_replay.common.trees import state_of
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.protocols import Generator, JobGenerator, Stateful
from synther_replay.relevance.guide import Guide, Plan

MakePlan = Plan | Callable[[], Plan] | None  # how generation is guided; None: not at all
_COUNTS = ("draws", "rejected")  # of the state of a generator; they only grow, so that no draw is repeated


@dataclass(frozen=True, eq=False)
class RefitResult:
    """What a refit made, as data: a process sends it back, and a checkpoint holds it.

    Attributes:
        fit: Return value of the generator's `fit`.
        rows: The generated rows, ``(n, dim)``, or ``(M, n, dim)`` of M runs.
        generator: State of the fitted generator.
        plan: How generation was guided; None: not at all.
        relevance: State of the guide after the refit; None if it did not change.
        fit_seconds: Time to fit.
        sample_seconds: Time to generate.
        warnings: Texts of the warnings that were given.
    """

    fit: Any
    rows: Tensor
    generator: dict[str, Any]
    plan: Plan | None
    relevance: dict[str, Any] | None
    fit_seconds: float
    sample_seconds: float
    warnings: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """All but the warnings as a tree of tensors and JSON values; of the fit report the fields of a dataclass."""
        fit: dict[str, Any] = {}
        if isinstance(self.fit, SimpleNamespace):  # it was loaded
            fit = vars(self.fit)
        elif is_dataclass(self.fit) and not isinstance(self.fit, type):
            fit = asdict(self.fit)
        return {
            "fit": {name: value for name, value in fit.items() if _is_plain(value)},
            "rows": self.rows,
            "generator": self.generator,
            "plan": None if self.plan is None else self.plan.state_dict(),
            "relevance": self.relevance,
            "fit_seconds": self.fit_seconds,
            "sample_seconds": self.sample_seconds,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RefitResult:
        """Inverse of `state_dict`."""
        rows = state["rows"]
        if not isinstance(rows, Tensor) or rows.ndim < 2 or not bool(rows.isfinite().all()):
            raise CheckpointError("state: pending: expected finite rows")
        plan = None if state["plan"] is None else Plan.from_state(state["plan"])
        fit = {name: tuple(value) if isinstance(value, list) else value for name, value in state["fit"].items()}
        return cls(**{**state, "fit": SimpleNamespace(**fit), "plan": plan})


def _is_plain(value: Any) -> bool:
    """Whether a value can be written to JSON: a number, a text, None, or several of them."""
    if isinstance(value, tuple | list):
        return all(isinstance(part, int | float | str | None) for part in value)
    return isinstance(value, int | float | str | None)


class DeferredFit:
    """Fit of a generator that keeps its model until the commit.

    Args:
        generator: The generator.
        real: Valid real transitions.
        options: Arguments of `JobGenerator.begin`.
        plan: How generation is guided, or a function that tells when the fit begins.
        is_later: Whether the fit begins in `run`; the transitions must not change until then.
    """

    def __init__(
        self, generator: JobGenerator, real: Transitions, options: dict[str, Any], plan: MakePlan, *, is_later: bool
    ) -> None:
        """Begin the fit, if it is not to begin later."""
        self._generator, self._real, self._options = generator, real, options
        self._make_plan = plan if callable(plan) else None
        self.plan = None if callable(plan) else plan
        self._job: Any = None
        self._is_taken = False
        if not is_later:
            self._begin()

    def _begin(self) -> Any:
        if self._make_plan is not None and self.plan is None:
            self.plan = self._make_plan()  # once, because it trains the relevance
        guided = {} if self.plan is None else {"condition": self.plan.condition}
        self._job = self._generator.begin(self._real, **self._options, **guided)
        if (rows := self._real.rows).is_cuda:  # they may be of another stream
            rows.record_stream(torch.cuda.current_stream(rows.device))
        del self._real  # the job has its own copy
        return self._job

    def run(self) -> Any:
        """Fit; the generator is unchanged."""
        return (self._job or self._begin()).run()

    def sample(self, rows: int) -> Transitions:
        """Generate rows with the fitted model."""
        draw = self._job.sample
        fresh: Transitions = draw(rows) if self.plan is None else self.plan.sample(draw, rows)
        return fresh

    def commit(self) -> None:
        """Make the fitted model that of the generator."""
        self._generator.commit(self._job)
        self._is_taken = True

    def revert(self) -> None:
        """Undo `commit`."""
        if self._is_taken:
            self._generator.revert(self._job)
            self._is_taken = False


class InPlaceFit:
    """Fit of a generator that has only `fit` and `sample`; its state is kept to undo it."""

    plan: Plan | None = None

    def __init__(self, generator: Generator, real: Transitions) -> None:
        """Keep both."""
        self._generator, self._real = generator, real
        self._before: dict[str, Any] | None = None

    def run(self) -> Any:
        """Fit the generator itself."""
        if isinstance(self._generator, Stateful):
            self._before = state_of(self._generator)
        return self._generator.fit(self._real)

    def sample(self, rows: int) -> Transitions:
        """Generate rows."""
        return self._generator.sample(rows)

    def commit(self) -> None:
        """Nothing is left to do."""

    def revert(self) -> None:
        """Restore the generator, if it has a state."""
        if self._before is not None and isinstance(self._generator, Stateful):
            self._generator.load_state_dict(self._before)


class ImportedFit:
    """Fit whose result comes from elsewhere: from a process or from a checkpoint.

    Args:
        spec: Layout of the rows.
        generator: The generator that takes the state of the result.
        guide: The guide that takes its own; None: generation is not guided.
        compute: Returns the result.
    """

    def __init__(
        self, spec: TransitionSpec, generator: Generator, guide: Guide | None, compute: Callable[[], RefitResult]
    ) -> None:
        """Keep the arguments."""
        self._spec, self._generator, self._guide, self._compute = spec, generator, guide, compute
        self._model = getattr(generator, "model", None)
        self.result: RefitResult | None = None
        self._before: list[tuple[Stateful, dict[str, Any]]] = []

    @property
    def plan(self) -> Plan | None:
        """How generation was guided; None: not at all, or not known yet."""
        return None if self.result is None else self.result.plan

    def run(self) -> Any:
        """Get the result."""
        self.result = self._compute()
        return self.result.fit

    def sample(self, rows: int) -> Transitions:
        """The rows of the result."""
        assert self.result is not None  # after run
        return Transitions(self._spec, self.result.rows)

    def commit(self) -> None:
        """Give generator and guide the states of the result.

        Raises:
            ValueError: The generator has got another model since the fit began.
        """
        assert self.result is not None and isinstance(self._generator, Stateful)  # after run
        if getattr(self._generator, "model", None) is not self._model:
            raise ValueError("job: another fit of the generator was committed or loaded since it began")
        self._take(self._generator, self.result.generator)
        if self._guide is not None and self.result.relevance is not None:
            self._take(self._guide, self.result.relevance)

    def _take(self, part: Stateful, state: dict[str, Any]) -> None:
        before = state_of(part)
        self._before.append((part, before))
        counts = {name: max(before[name], state[name]) for name in _COUNTS if name in before and name in state}
        part.load_state_dict(state | counts)

    def revert(self) -> None:
        """Undo `commit`."""
        while self._before:
            part, state = self._before.pop()
            part.load_state_dict(state)
        self._model = getattr(self._generator, "model", None)


Fit = DeferredFit | InPlaceFit | ImportedFit


def has_jobs(generator: Generator) -> TypeGuard[JobGenerator]:
    """Whether the jobs of a generator do what its `fit` and `sample` do; not if those were overridden without jobs."""

    def owner(name: str) -> type | None:
        return next((cls for cls in type(generator).__mro__ if name in vars(cls)), None)

    if not isinstance(generator, JobGenerator) or {"fit", "sample"} & getattr(generator, "__dict__", {}).keys():
        return False
    begin, *others = owner("begin"), owner("fit"), owner("sample")
    # A method without an owner belongs to another object, which a wrapper passes calls on to.
    return begin is not None and all(other is not None and issubclass(begin, other) for other in others)


def plan_of(
    guide: Guide | None,
    real: Transitions,
    steps: int,
    device: torch.device,
    is_over: Callable[[], bool] = lambda: False,
) -> MakePlan:
    """How a guide guides a refit: by a plan that it makes now, or by a function with which the job makes it.

    Args:
        guide: The guide; None: nothing does.
        real: Valid real transitions; they must not change if the plan is made later.
        steps: Environment steps.
        device: Device of the rows that the guide is given.
        is_over: See `Guide.plan`.
    """
    if guide is None:
        return None

    def plan() -> Plan:
        return guide.plan(real.to(device), steps, is_over)

    return plan if guide.is_planned_later else plan()


def takes_conditions(generator: Generator) -> bool:
    """Whether the fits of a generator are jobs that take conditions."""
    if not has_jobs(generator):
        return False
    options = inspect.signature(generator.begin).parameters
    return "condition" in options or any(option.kind is option.VAR_KEYWORD for option in options.values())
