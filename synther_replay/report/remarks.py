"""Remarks: what the verdict, which knows neither a simulator nor, usually, held-out rows, does not say."""

from __future__ import annotations

import math
from collections.abc import Iterator

from synther_replay.report.measures import Measures
from synther_replay.report.text import number, percent

_MANY_COPIES = 0.1  # share of exact copies, beyond that among other real rows
_FAR = 1.5  # median distance to the nearest real row, in those of other real rows; columns that go together lie near
_LARGE_ERROR = 0.01  # dynamics error, in shares of that of a constant guess


def remarks(measures: Measures) -> list[str]:
    """Each a sentence; none if there is nothing to say."""
    return [*_on_nearest(measures), *_on_dynamics(measures)]


def _on_nearest(measures: Measures) -> Iterator[str]:
    closest = measures.nearest
    if closest is None:
        return
    if closest.copies - closest.copies_baseline > _MANY_COPIES:
        yield (
            f"{percent(closest.copies)} of the synthetic rows equal a real row; of other real rows, "
            f"{percent(closest.copies_baseline)} do."
        )
    memory = closest.memorisation
    if memory.synthetic_distance > _FAR * memory.held_out_distance:
        yield (
            f"the median distance of a synthetic row to the nearest real row is {number(memory.synthetic_distance)}, "
            f"that of other real rows {number(memory.held_out_distance)}: columns go together that do not in the real "
            "rows, perhaps the next observation of another row."
        )


def _on_dynamics(measures: Measures) -> Iterator[str]:
    if measures.dynamics is None:
        return
    relative = measures.dynamics.next_observation.synthetic["median"] / (
        measures.dynamics.variance_next_observation or math.nan
    )
    if relative > _LARGE_ERROR:
        yield (
            f"in {measures.dynamics.simulator}, the squared error of a synthetic next observation is "
            f"{percent(relative)} of that of a constant guess."
        )
