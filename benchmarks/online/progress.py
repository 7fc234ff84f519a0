"""How far an online run has come: the part of its state that is neither networks nor transitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from synther_replay.benchmarks.common.timing import Stopwatch

CLOCKS = ("env", "learner", "fit", "generate", "evaluate", "start", "checkpoint")


class Progress(Stopwatch):
    """What M agents have done and shown so far.

    Attributes:
        step: Environment steps of each agent.
        last_refit: Step of the last one; None before the first.
        fits: What each refit reported.
        failed_at: For each agent the step at which it became non-finite; None for those that did not.
        curve: Returns ``[M]`` of each evaluation, by its step.
        value_estimates: What the agents thought then, by its name ``[M]``.
        episodes: Number of the running episode, ``(M,)``.
        lengths: Steps of the running episode so far, ``(M,)``.
        made_on: Machines and commits that the run was made with, the first one first.
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
        """Count one step, after which these episodes are running; returns the agents that failed in it."""
        new = [agent for agent in np.flatnonzero(failed).tolist() if self.failed_at[agent] is None]
        for agent in new:
            self.failed_at[agent] = self.step
        self.lengths = np.where(episodes > self.episodes, 0, self.lengths + 1)
        self.episodes = episodes.copy()
        self.step += 1
        return new

    def returns(self, step: int) -> list[float | None]:
        """Of one evaluation; None for agents that failed before it or in it."""
        return self._judged(step, self.curve[step], digits=2)

    def beliefs_at(self, step: int) -> dict[str, list[float | None]]:
        """Those of one evaluation, in the same way."""
        return {name: self._judged(step, values, digits=5) for name, values in self.value_estimates[step].items()}

    def _judged(self, step: int, values: list[float], digits: int) -> list[float | None]:
        def judged(value: float, failed: int | None) -> float | None:
            lost = (failed is not None and failed < step) or not math.isfinite(value)
            return None if lost else round(value, digits)

        return [judged(*pair) for pair in zip(values, self.failed_at, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "step": self.step,
            "last_refit": self.last_refit,
            "fits": self.fits,
            "failed_at": self.failed_at,
            "curve": {str(step): returns for step, returns in self.curve.items()},
            "value_estimates": {str(step): value_estimates for step, value_estimates in self.value_estimates.items()},
            "seconds": self.wall_seconds(),
            "episodes": self.episodes.tolist(),
            "lengths": self.lengths.tolist(),
            "made_on": self.made_on,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.step, self.last_refit = state["step"], state["last_refit"]
        self.fits, self.failed_at, self.made_on = state["fits"], state["failed_at"], state["made_on"]
        self.curve = {int(step): returns for step, returns in state["curve"].items()}
        self.value_estimates = {
            int(step): value_estimates for step, value_estimates in state.get("value_estimates", {}).items()
        }
        self.episodes, self.lengths = np.array(state["episodes"]), np.array(state["lengths"])
        self.continue_from(state["seconds"])
