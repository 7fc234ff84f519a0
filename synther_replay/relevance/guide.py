"""Guide: scores the real rows at every refit and chooses what to generate; no fault of a relevance ends a refit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import whole_number
from synther_replay.common.locking import Lock
from synther_replay.common.notices import Notices
from synther_replay.common.trees import state_of
from synther_replay.data.transitions import Transitions
from synther_replay.data.validation import as_tensor
from synther_replay.errors import CheckpointError
from synther_replay.protocols import Stateful
from synther_replay.relevance.guidance import Guidance
from synther_replay.relevance.protocol import Learner

_FEWEST = 0.01  # of the rows, that conditions are learnt from


@dataclass(frozen=True)
class GuidanceReport:
    """How a refit was guided; with the rows of several runs, means over all of them.

    Attributes:
        real: Mean score of the real rows.
        chosen: Mean score of the real rows whose conditions were generated for.
        share: Share of the generated rows that are guided; 0 if scores were missing or all equal.
    """

    real: float | None
    chosen: float | None
    share: float


@dataclass(frozen=True, eq=False)
class Plan:
    """What one refit fits to and generates.

    Attributes:
        condition: Condition of each real row, ``(n,)`` or ``(M, n)``; None after a load, which needs no fit.
        highest: The conditions to generate for, the highest first, ``(k,)`` or ``(M, k)``.
        guidance: Weight of the condition.
        report: Numbers for the report.
    """

    condition: Tensor | None
    highest: Tensor
    guidance: float
    report: GuidanceReport

    def state_dict(self) -> dict[str, Any]:
        """Return what `sample` needs."""
        return {"highest": self.highest.clone(), "guidance": self.guidance, "report": asdict(self.report)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Plan:
        """Inverse of `state_dict`."""
        highest = state["highest"].float()
        if not highest.numel() or not bool(highest.isfinite().all()):
            raise CheckpointError(f"state: plan: expected finite conditions, got shape {tuple(highest.shape)}")
        return cls(None, highest.clone(), float(state["guidance"]), GuidanceReport(**state["report"]))

    def sample(self, draw: Callable[..., Transitions], rows: int) -> Transitions:
        """Generate `rows` rows, the guided ones first.

        Args:
            draw: `DiffusionGenerator.sample`, or that of a job.
            rows: Number of rows.
        """
        guided = round(self.report.share * rows)
        parts = []
        if guided:
            # Each of the chosen conditions as often as the others: without chance there is no random state to save.
            place = torch.arange(guided, device=self.highest.device) * self.highest.shape[-1] // guided
            parts.append(draw(guided, condition=self.highest[..., place], guidance=self.guidance))
        if guided < rows:
            parts.append(draw(rows - guided))
        return parts[0] if len(parts) == 1 else Transitions(parts[0].spec, torch.cat([p.rows for p in parts], dim=-2))


class Guide:
    """Holds a relevance and plans refits with it.

    Args:
        guidance: The settings.
        seed: Seed of a relevance that is made from its name.

    Attributes:
        relevance: The relevance.
    """

    def __init__(self, guidance: Guidance, seed: int) -> None:
        """Make the relevance."""
        self.guidance, self.relevance = guidance, guidance.new_relevance(seed)
        self._seen = 0  # environment steps at the last plan
        self._planning = Lock()  # a job plans in its own thread
        self._failures, self._reported = 0, Notices()

    @property
    def is_planned_later(self) -> bool:
        """Whether a job may plan when it runs: the relevance depends on nothing but the rows and its own state."""
        return getattr(self.relevance, "is_self_contained", False) is True

    def plan(self, real: Transitions, steps: int, is_over: Callable[[], bool] = lambda: False) -> Plan:
        """Train the relevance, score the real rows and choose the conditions.

        Whatever goes wrong in the relevance is a warning, and the plan is then one without guidance.

        Args:
            real: Valid real transitions.
            steps: Environment steps so far.
            is_over: Whether the job that asks was overtaken: it will be refused, and the relevance must not learn then.
        """
        with self._planning:
            return _unguided(real) if is_over() else self._plan(real, steps)

    def _plan(self, real: Transitions, steps: int) -> Plan:
        new = steps - self._seen if steps >= self._seen else steps
        self._seen = steps
        try:
            seen = Transitions(real.spec, real.rows.clone())  # functions may write to it; the fit needs the real rows
            if isinstance(self.relevance, Learner):
                self.relevance.learn(seen, min(new, len(seen)))
            scores = _checked(self.relevance.score(seen), real)
        except Exception as error:
            self._warn(error, steps)
            return _unguided(real)
        self._failures, self._reported = 0, Notices()
        return plan_for(scores, self.guidance)

    def forget(self) -> None:
        """Start over, because the rows have got another meaning."""
        with self._planning:
            if hasattr(self.relevance, "reset"):
                self.relevance.reset()
            self._seen = 0

    def reseed(self, seed: int) -> None:
        """Continue with another seed, if the relevance has one."""
        with self._planning:
            if hasattr(self.relevance, "reseed"):
                self.relevance.reseed(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state; a relevance without `state_dict` has none."""
        with self._planning:
            own = state_of(self.relevance) if isinstance(self.relevance, Stateful) else None
            return {"name": type(self.relevance).__name__, "seen": self._seen, "relevance": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of the same relevance."""
        name, own = type(self.relevance).__name__, state["relevance"]
        if state["name"] != name or (own is not None) != isinstance(self.relevance, Stateful):
            raise CheckpointError(f"state: relevance: got {state['name']}, expected {name}")
        seen = whole_number("seen", state["seen"], least=0)
        with self._planning:
            if isinstance(self.relevance, Stateful):
                self.relevance.load_state_dict(own)
            self._seen = seen

    def _warn(self, error: Exception, steps: int) -> None:
        self._failures += 1
        text = f"relevance failed at step {steps}; this refit is not guided"
        self._reported.warn_of(error, self._failures, text, stacklevel=3)


def plan_for(scores: Tensor, guidance: Guidance) -> Plan:
    """Choose the conditions for valid scores, ``(n,)`` or ``(M, n)``."""
    scores = scores.double()
    if bool((scores == scores[..., :1]).all()):  # nothing to tell rows by
        plan = _unguided(scores)
        return replace(plan, report=replace(plan.report, real=float(scores.mean()), chosen=float(scores.mean())))
    condition = _ranks(scores)
    place = _highest(condition, guidance.top)
    report = GuidanceReport(float(scores.mean()), float(scores.gather(-1, place).mean()), guidance.share)
    return Plan(condition, condition.gather(-1, place), guidance.guidance, report)


def _highest(condition: Tensor, top: float) -> Tensor:
    """Numbers of the rows that count as relevant, the highest first, ``(k,)`` or ``(M, k)``.

    If the last ones are equal to rows that do not count, as rewards of zero often are, only those above them do, and
    they come more than once; unless they are very few, because a condition needs rows to be learnt from.
    """
    ordered, order = condition.sort(dim=-1, descending=True, stable=True)
    n = condition.shape[-1]
    count = max(1, int(top * n))
    last = ordered[..., count - 1 : count]
    above, up_to = (condition > last).sum(-1, keepdim=True), (condition >= last).sum(-1, keepdim=True)
    used = torch.where((up_to > count) & (above >= _FEWEST * n), above, count)
    return order.gather(-1, torch.arange(count, device=condition.device) * used // count)


def _checked(scores: Any, real: Transitions) -> Tensor:
    """Scores as a tensor on the device of the rows, ``(n,)`` or ``(M, n)``."""
    given, lead = as_tensor(scores, "relevance", real.rows.device), real.rows.shape[:-1]
    if given.shape != lead:
        raise ValueError(f"relevance: expected scores of shape {tuple(lead)}, got {tuple(given.shape)}")
    if not bool(given.isfinite().all()):
        raise ValueError(f"relevance: {int((~given.isfinite()).sum())} of {given.numel()} scores are not finite")
    return given.detach().to(real.rows.device)


def _ranks(scores: Tensor) -> Tensor:
    """Share of the rows below each score, in [0, 1]; equal scores have equal ranks.

    Conditions are ranks instead of scores for two reasons. Errors and returns have outliers, which would leave the
    other rows indistinguishable after standardisation. And scores drift, for example while a forward model learns,
    where a warm-started denoiser needs conditions that keep their meaning.
    """
    ordered = scores.contiguous().sort(dim=-1).values
    below, up_to = (torch.searchsorted(ordered, scores.contiguous(), right=right) for right in (False, True))
    return ((below + up_to).double() / (2 * scores.shape[-1])).float()


def _unguided(rows: Transitions | Tensor) -> Plan:
    """A plan without guidance: all conditions are equal, and rows are generated without any.

    A fit without conditions would be another network, from scratch now and again at the next refit.
    """
    like = rows.rows[..., 0] if isinstance(rows, Transitions) else rows
    condition = torch.full_like(like, 0.5, dtype=torch.float32)
    return Plan(condition, condition[..., :1], 1.0, GuidanceReport(None, None, 0.0))
