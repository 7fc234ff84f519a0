"""SynthERHerBuffer: hindsight experience replay with generated transitions.

Usage: ``SAC("MultiInputPolicy", env, replay_buffer_class=SynthERHerBuffer)``. Rows are relabelled first, then
modelled: the generator learns transitions with the goals that `HerReplayBuffer` gives them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
from torch import Tensor

from synther_replay.adapters.sb3.buffer import SynthERDictBuffer
from synther_replay.adapters.sb3.goals import ACHIEVED, GOAL, Goals
from synther_replay.adapters.sb3.rows import RealRows
from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.data.transitions import Transitions, TransitionSpec


class RelabelledRows(RealRows):
    """The transitions of complete episodes in a `HerReplayBuffer`, relabelled by its rules.

    Goals follow the seed of these rows.
    """

    is_ordered = False  # episodes cannot be found in them

    def __init__(self, buffer: Any, spec: TransitionSpec, seed: int, device: torch.device) -> None:
        """Start without rows."""
        super().__init__(buffer, spec, seed, device)
        self._seed = seed
        self._random = np.random.default_rng(derive_seed(seed, Stream.GOALS))
        self.goals = Goals(spec, buffer.observation_space)

    def reseed(self, seed: int) -> None:
        """Draw rows and goals in another order from now on."""
        super().reseed(seed)
        self._seed = seed
        self._random = np.random.default_rng(derive_seed(seed, Stream.GOALS))

    def __len__(self) -> int:
        """Number of transitions of complete episodes."""
        return int(np.count_nonzero(self.buffer.ep_length))

    def require(self) -> None:
        """Raise RuntimeError, as SB3 does, if there is no complete episode."""
        if not len(self):
            raise RuntimeError(
                "buffer has no complete episode: choose learning_starts greater than the length of an episode"
            )

    def sample(self, n: int, times: int = 1) -> Tensor:
        """Draw `n` relabelled rows uniformly with replacement, `times` times, ``(times * n, dim)``."""
        complete = np.flatnonzero(self.buffer.ep_length > 0)
        drawn = (self._indices.draw(n, len(complete)).cpu().numpy() for _ in range(times))
        return torch.cat([self._relabelled(complete[index], self._random) for index in drawn])

    def transitions(self) -> Transitions:
        """Return every transition once, with goals in the proportions of a batch; the same at every call.

        Once, because copies with other goals would be in training and held-out rows alike.
        """
        random = np.random.default_rng(derive_seed(self._seed, Stream.FITTED_GOALS, self.buffer.added))
        rows = self._relabelled(random.permutation(np.flatnonzero(self.buffer.ep_length > 0)), random)
        self._question_units(rows[:, self.spec.actions])
        return Transitions(self.spec, rows)

    def _relabelled(self, index: np.ndarray, random: np.random.Generator) -> Tensor:
        """Return rows by number; as in SB3, the first ones get virtual goals."""
        buffer = self.buffer
        position, environment = np.divmod(index, buffer.n_envs)
        virtual = int(buffer.her_ratio * len(index))
        parts = []
        buffer.goal_random = random
        try:
            if virtual:
                parts.append(buffer._get_virtual_samples(position[:virtual], environment[:virtual]))
            if virtual < len(index):
                parts.append(buffer._get_real_samples(position[virtual:], environment[virtual:]))
        finally:
            buffer.goal_random = None
        return torch.cat([self._rows_of(part) for part in parts])

    def _rows_of(self, batch: Any) -> Tensor:
        keys = [leaf.path[0] for leaf in self.spec.field("observations").leaves]
        parts = [
            *(batch.observations[key] for key in keys),
            batch.actions,
            batch.rewards,
            *(batch.next_observations[key] for key in keys),
            batch.dones,
        ]
        goal, achieved, *columns = (
            part.reshape(len(batch.rewards), -1).to(torch.float32)
            for part in (batch.observations[GOAL], batch.next_observations[ACHIEVED], *parts)
        )
        return torch.cat([*columns, self.goals.columns(goal, achieved)], 1)


class SynthERHerBuffer(SynthERDictBuffer, HerReplayBuffer):
    """SB3's `HerReplayBuffer` with generated transitions mixed into its batches.

    The generator is fitted to relabelled transitions of complete episodes. Synthetic rows have one goal, which is
    ``"desired_goal"`` of the observation and of the next one.

    Args:
        buffer_size: As in SB3.
        observation_space: As in SB3, with the keys ``observation``, ``achieved_goal`` and ``desired_goal``.
        action_space: As in SB3.
        env: The training environment, whose `compute_reward` is called; SB3 passes it.
        device: As in `SynthERBuffer`, but rows are relabelled on the CPU.
        n_envs: As in SB3.
        optimize_memory_usage: As in SB3, which does not support it here.
        handle_timeout_termination: As in SB3.
        n_sampled_goal: Number of virtual goals per real one.
        goal_selection_strategy: ``"future"``, ``"final"`` or ``"episode"``.
        copy_info_dict: Whether `compute_reward` gets the info of the transitions.
        **options: As in `SynthERBuffer`: ``real_ratio``, ``generator``, ``schedule``, ``synthetic_capacity``, ``seed``,
            ``scaled_actions``, ``on_refit``, ``relevance``, ``refit``, ``lag``.
    """

    has_goals = True
    _rows_type = RelabelledRows
    goal_random: np.random.Generator | None = None  # draws virtual goals; None: NumPy's global one, as in SB3

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **options: Any,
    ) -> None:
        """Check the arguments and create an empty buffer."""
        whole_number("n_sampled_goal", n_sampled_goal, least=0)
        names = [*KEY_TO_GOAL_STRATEGY, *GoalSelectionStrategy]
        if goal_selection_strategy not in names and str(goal_selection_strategy).lower() not in KEY_TO_GOAL_STRATEGY:
            raise ValueError(
                f"goal_selection_strategy: expected one of {list(KEY_TO_GOAL_STRATEGY)}, "
                f"got {goal_selection_strategy!r}"
            )
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            env=env,
            n_sampled_goal=n_sampled_goal,
            goal_selection_strategy=goal_selection_strategy,
            copy_info_dict=copy_info_dict,
            **options,
        )

    def reset(self) -> None:
        """Remove all real and synthetic rows; the generator keeps its model."""
        super().reset()
        for array in (self.ep_start, self.ep_length, self._current_ep_start):
            array[:] = 0

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle without the environment, as in SB3; `load_replay_buffer` sets it again."""
        state: dict[str, Any] = super().__getstate__()
        del state["env"]
        return state

    def _sample_goals(self, batch_indices: np.ndarray, env_indices: np.ndarray) -> np.ndarray:
        """Draw virtual goals by SB3's rules, from a generator of our own if there is one."""
        if self.goal_random is None:
            goals: np.ndarray = super()._sample_goals(batch_indices, env_indices)
            return goals
        start, length = (array[batch_indices, env_indices] for array in (self.ep_start, self.ep_length))
        first = (batch_indices - start) % self.buffer_size  # number of the transition in its episode
        if self.goal_selection_strategy is not GoalSelectionStrategy.FUTURE:
            first = length - 1 if self.goal_selection_strategy is GoalSelectionStrategy.FINAL else 0
        chosen = (start + self.goal_random.integers(first, length)) % self.buffer_size
        goals = self.next_observations[ACHIEVED][chosen, env_indices]
        return goals

    def _entries(self, rows: Tensor, field: str) -> dict[str, Tensor]:
        return {**super()._entries(rows, field), GOAL: self._entry(GOAL, self._real.goals.of(rows))}
