"""What is wrong with rows: real ones are reported and the generator gets the others, generated ones are refused."""

from __future__ import annotations

import logging

from synther_replay.common.notices import Notices
from synther_replay.data.cleaning import Faults, clean
from synther_replay.data.mismatch import mismatch
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import GenerationError
from synther_replay.protocols import RealTransitions

logger = logging.getLogger(__name__)

# Number of rows at the first look. With more rows it takes longer, and the first refit is near.
_FIRST_LOOK = range(256, 10_000)


class Examination:
    """Reads the real rows for a generator.

    Frameworks store whatever an environment returns. A warning tells the number and place of invalid rows: once, and
    again when there are ten times as many.
    """

    def __init__(self) -> None:
        """Start without any row seen."""
        self._looked = False
        self._notices = Notices()

    def usable(self, real: RealTransitions, least: int = 0) -> Transitions:
        """Return the real transitions without invalid rows (NaN, infinity), with actions clipped to their space.

        Raises:
            ValueError: There are fewer than `least` valid rows.
        """
        self._looked = True
        transitions = real.transitions()
        cleaned = clean(transitions)
        if (valid := len(cleaned.transitions)) < least:
            others = f" of {len(transitions):,} (invalid: {cleaned.invalid})" if cleaned.invalid.rows else ""
            raise ValueError(f"real: expected at least {least} valid rows to fit, got {valid}{others}")
        self._report_invalid(cleaned.invalid, len(transitions))
        self._report_outside(cleaned.outside, transitions)
        return cleaned.transitions

    def first_look(self, real: RealTransitions) -> None:
        """Examine the first rows, long before the first refit; called at every batch, it acts once."""
        if self._looked or (rows := len(real)) < _FIRST_LOOK.start:
            return
        self._looked = True
        if rows in _FIRST_LOOK:
            try:
                self.usable(real)
            except Exception:  # the refit will report it
                logger.info("the first %d real rows could not be examined", rows, exc_info=True)

    def _report_invalid(self, faults: Faults, rows: int) -> None:
        self._notices.warn(
            "invalid",
            faults.rows,
            f"real: {faults.rows:,} of {rows:,} rows have values that are NaN, infinite or not in their space "
            f"({faults}). The generator is fitted to the other rows",
            stacklevel=6,
        )

    def _report_outside(self, faults: Faults, transitions: Transitions) -> None:
        if not faults.rows:
            return
        actions = transitions.rows[:, transitions.spec.actions]
        actions = actions[actions.isfinite()]
        self._notices.warn(
            "outside",
            faults.rows,
            f"real: {faults.rows:,} of {len(transitions):,} rows have actions outside the action space ({faults}; "
            f"range {float(actions.min()):g} to {float(actions.max()):g}). The generator gets them clipped. "
            "This is right if the environment clips actions. Otherwise pass the space of the stored actions "
            "(Stable-Baselines3: scaled_actions=False if they are in the units of the environment)",
            stacklevel=6,
        )


def check_generated(spec: TransitionSpec, fresh: Transitions, count: int) -> None:
    """Raise an error unless a generator made `count` rows that are valid transitions of the spec."""
    if not isinstance(fresh, Transitions):
        raise TypeError(f"generator: sample returned {type(fresh).__name__}, expected Transitions")
    if fresh.spec != spec:
        raise TypeError(f"generator: sample returned transitions of another spec: {mismatch(fresh.spec, spec)}")
    if fresh.rows.ndim != 2:
        raise TypeError(f"generator: sample returned rows of shape {tuple(fresh.rows.shape)}, expected (n, {spec.dim})")
    if len(fresh) != count:
        raise GenerationError(f"generator: sample({count}) returned {len(fresh)} rows")
    try:
        fresh.check()
    except ValueError as error:
        raise GenerationError(f"generator: sample returned invalid rows: {error}") from error
    if bool(spec.outside_action_space(fresh.rows[:, spec.actions]).any()):
        raise GenerationError("generator: sample returned actions outside the action space")
