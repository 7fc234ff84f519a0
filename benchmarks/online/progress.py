"""Progress of an online run: the part of its state that is neither networks nor transitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from synther_replay.benchmarks.common.formatting import finite
from synther_replay.benchmarks.common.timing import Stopwatch

CLOCKS = ("env", "learner", "fit", "generate", "evaluate", "start", "checkpoint")


class Progress(Stopwatch):
    """Steps, refits, failures and evaluations of M agents so far.

    Attributes:
        step: Environment steps of each agent.
        last_refit: Step of the last refit; None before the first.
        fits: Report of each refit.
        failed_at: Step at which each agent became non-finite; None for agents that did not.
        curve: Returns ``[M]`` of each evaluation, by step.
        value_estimates: Value estimates of each evaluation, by step and name ``[M]``.
        episodes: Number of the current episode, ``(M,)``.
        lengths: Steps of the current episode so far, ``(M,)``.
        made_on: Machines and commits that the run was made with, in order.
    """

    def __init__(self, agents: int) -> None:
        """Start now."""
        super().__init__(CLOCKS)
        self.step = 0
        self.last_refit: int | None = None
        self.fits: list[dict[str, Any]] = []
        self.failed_at: list[int | None] = [None] * agents
        self.curve: dict[int, list[float]] = {}
        self.value_estimates: dict[int, dict[str, list[float]]] = {}
        self.episodes = np.zeros(agents, np.int64)
        self.lengths = np.zeros(agents, np.int64)
        self.made_on: list[dict[str, Any]] = []

    def advance(self, episodes: np.ndarray, failed: np.ndarray) -> list[int]:
        """Count one step.

        Args:
            episodes: Number of the current episode after the step, ``(M,)``.
            failed: Whether each agent has failed so far, ``(M,)``.

        Returns:
            The agents that failed in this step.
        """
        new = [agent for agent in np.flatnonzero(failed).tolist() if self.failed_at[agent] is None]
        for agent in new:
            self.failed_at[agent] = self.step
        self.lengths = np.where(episodes > self.episodes, 0, self.lengths + 1)
        self.episodes = episodes.copy()
        self.step += 1
        return new

    def returns(self, step: int) -> list[float | None]:
        """Returns of one evaluation; None for agents that failed before or during it."""
        return self._rounded(step, self.curve[step], ".2f")

    def value_estimates_at(self, step: int) -> dict[str, list[float | None]]:
        """Value estimates of one evaluation; None for agents that failed before or during it."""
        return {name: self._rounded(step, values, ".5f") for name, values in self.value_estimates[step].items()}

    def _rounded(self, step: int, values: list[float], digits: str) -> list[float | None]:
        failed = (at is not None and at < step for at in self.failed_at)
        return [None if lost else finite(value, digits) for value, lost in zip(values, failed, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return {
            "step": self.step,
            "last_refit": self.last_refit,
            "fits": self.fits,
            "failed_at": self.failed_at,
            "curve": {str(step): returns for step, returns in self.curve.items()},
            "value_estimates": {str(step): estimates for step, estimates in self.value_estimates.items()},
            "seconds": self.wall_seconds(),
            "episodes": self.episodes.tolist(),
            "lengths": self.lengths.tolist(),
            "made_on": self.made_on,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self.step, self.last_refit = state["step"], state["last_refit"]
        self.fits, self.failed_at, self.made_on = state["fits"], state["failed_at"], state["made_on"]
        self.curve = {int(step): returns for step, returns in state["curve"].items()}
        self.value_estimates = {int(step): estimates for step, estimates in state.get("value_estimates", {}).items()}
        self.episodes, self.lengths = np.array(state["episodes"]), np.array(state["lengths"])
        self.continue_from(state["seconds"])
