"""Watchdog of the critics: whose values left the range that rewards and discount allow, and who overestimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synther_replay.benchmarks.agents.named_critics import PLAIN

_TOLERANCE = 0.1  # of the range, on both sides: critics that are not exact are not yet diverged
_MOST_EXCESS = 0.25  # of the range


def out_of_range(estimates: Mapping[str, Sequence[float]]) -> list[int]:
    """Agents whose critics have left the range, in the estimates of one evaluation; NaN counts as having left it."""
    found = []
    names = ("lowest", "highest", "least", "most")
    if any(name not in estimates for name in names):  # of a run that was started before there was a watchdog
        return []
    for agent, (lowest, highest, least, most) in enumerate(zip(*(estimates[name] for name in names), strict=True)):
        slack = _TOLERANCE * (most - least)
        if not (least - slack <= lowest and highest <= most + slack):
            found.append(agent)
    return found


def overestimating(estimates: Mapping[str, Sequence[float]]) -> list[int]:
    """Agents whose values are within the range, yet far above what followed on their latest transitions."""
    if "excess" not in estimates:  # of a run that was started before it was measured
        return []
    rows = zip(*(estimates[name] for name in ("excess", "least", "most")), strict=True)
    left = out_of_range(estimates)
    return [
        agent
        for agent, (excess, least, most) in enumerate(rows)
        if agent not in left and excess > _MOST_EXCESS * (most - least)
    ]


def advice(seeds: Sequence[int], critic: str) -> str:
    """A line of progress for seeds whose critics have left the range."""
    listed = ", ".join(map(str, seeds))
    return (
        f"values of seed(s) {listed} left the range that rewards and discount allow; critics diverge, "
        f"try {_remedy(critic)}"
    )


def advice_overestimating(seeds: Sequence[int], critic: str) -> str:
    """A line of progress for seeds whose values are far above what followed."""
    listed = ", ".join(map(str, seeds))
    return (
        f"values of seed(s) {listed} are far above the returns that followed on the latest steps; if they stay there, "
        f"try {_remedy(critic)}"
    )


def _remedy(critic: str) -> str:
    others = {PLAIN: "--critic steady, or ", "cautious": ""}
    return others.get(critic, "--critic cautious, or ") + "fewer updates per step (--utd)"
