"""SynthERBuffer: a replay buffer for Stable-Baselines3.

Usage: ``SAC("MlpPolicy", env, replay_buffer_class=SynthERBuffer)``. It inherits storage and `add` from SB3's own
buffer; only `sample` differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from synther_replay.adapters.sb3.adoption import adopted
from synther_replay.adapters.sb3.batches import SynthERDictSamples, SynthERSamples, join_batches
from synther_replay.adapters.sb3.goals import split_goal
from synther_replay.adapters.sb3.latents import LatentRows
from synther_replay.adapters.sb3.rows import RealRows
from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.data.spec import DISCOUNT
from synther_replay.data.transitions import TransitionSpec
from synther_replay.options import (
    AdjustableOptions,
    GeneratorOption,
    RelevanceOption,
    ScheduleOption,
    SourceOptions,
    refuse_unknown,
)
from synther_replay.replay.latents import Latents
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.source import SyntheticSource


def transition_spec(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    scaled_actions: bool = True,
    n_steps: int = 1,
    goals: bool = False,
) -> TransitionSpec:
    """Return the spec of the transitions in a `SynthERBuffer`; needed to construct your own generator.

    Args:
        observation_space: Observation space of the environment.
        action_space: Action space of the environment.
        scaled_actions: Whether continuous actions are stored scaled to [-1, 1], as SB3's algorithms do.
        n_steps: Number of steps of a row; with more than 1, rows have the field ``discount``.
        goals: Whether it is the spec of a `SynthERHerBuffer`, whose rows have the goal as a field of its own.
    """
    if scaled_actions and isinstance(action_space, spaces.Box):
        action_space = spaces.Box(-1.0, 1.0, action_space.shape, np.float32)
    nested = observation_space.spaces.items() if isinstance(observation_space, spaces.Dict) else ()
    for key, space in nested:
        if isinstance(space, spaces.Dict | spaces.Tuple):
            raise TypeError(
                f"observation_space: Stable-Baselines3 does not support nested spaces, got {space} in {key!r}"
            )
    if isinstance(observation_space, spaces.Tuple):
        raise TypeError(
            f"observation_space: Stable-Baselines3 does not support Tuple observations, got {observation_space}"
        )
    if not goals:
        return TransitionSpec.from_spaces(observation_space, action_space, discount=n_steps > 1)
    without_goal, goal = split_goal(observation_space)
    return TransitionSpec.from_spaces(without_goal, action_space, extra=goal)


class SynthERBuffer(AdjustableOptions, NStepReplayBuffer):
    """SB3's replay buffer with generated transitions mixed into its batches.

    Pass options through ``replay_buffer_kwargs``. For `Dict` observations the constructor returns a
    `SynthERDictBuffer`.

    >>> from stable_baselines3 import SAC
    >>> options = dict(real_ratio=0.5, generator="tiny", schedule=dict(every=5_000, start=2_500))
    >>> model = SAC("MlpPolicy", "Pendulum-v1", replay_buffer_class=SynthERBuffer, replay_buffer_kwargs=options)
    >>> model.replay_buffer
    SynthERBuffer(0 real, 0 synthetic, real_ratio=0.5, refits=0)

    Args:
        buffer_size: As in SB3.
        observation_space: As in SB3.
        action_space: As in SB3.
        device: Device of the algorithm. On a GPU, a copy of the real rows is kept there, so that sampling needs no copy
            from the host. Call `refresh_mirror` if you modify the arrays other than by `add`.
        n_envs: Number of environments.
        optimize_memory_usage: Requires ``real_ratio=1``: it overwrites next observations that the generator needs.
        handle_timeout_termination: Whether episodes that end by a time limit count as not terminated.
        n_steps: Number of steps of a row, as in SB3's `NStepReplayBuffer`. The generator learns n-step rows;
            `discounts` of the batch holds the discount of each row, real or synthetic.
        gamma: Discount factor of the algorithm; only used with ``n_steps > 1``.
        real_ratio: Share of real rows in each batch; with 1 the buffer behaves exactly like SB3's own.
        generator: Settings, see `GeneratorConfig.of`: a `GeneratorConfig`, the name of a preset, or a mapping of
            fields. Or any object with `fit` and `sample`. None: `GeneratorConfig.fast()` on a GPU, `tiny()` on a CPU.
        schedule: When to refit and how many rows to generate, see `RetrainSchedule.of`: a `RetrainSchedule`, the steps
            between two refits, the name of a preset, or a mapping of fields. None: `RetrainSchedule.fast()` on a GPU,
            `tiny()` on a CPU.
        synthetic_capacity: Maximum number of synthetic rows.
        seed: Seed of generator, synthetic and real rows, see `SourceOptions`. None: the seed of the algorithm.
        scaled_actions: Set it to False if your own loop stores actions in the units of the environment.
        on_refit: Called with a `RefitReport` after every refit.
        relevance: What generation is guided by, see `Guidance.of`: ``"curiosity"``, ``"return"``, ``"reward"``,
            ``"td_error"`` and ``"value"`` of the model's critics, a mapping, or a function of transitions. None: not
            guided.
        refit: ``"inline"`` or ``"background"``, and `lag`, the steps until its rows are taken: see `SourceOptions`.
        lag: See `refit`.
        encoder: For images: a function from a tensor of observations ``(n, *shape)`` to latents ``(n, k)``, see
            `synther_replay.replay.latents`. Batches then hold latents in place of observations, and the agent's
            feature extractor must accept both.
    """

    latents: Latents | None = None
    has_goals = False  # whether the goal is a field of rows beside the observation
    _rows_type: type[RealRows] = RealRows

    def __new__(cls, buffer_size: int = 0, observation_space: Any = None, *_: Any, **__: Any) -> SynthERBuffer:
        """Select `SynthERDictBuffer` for Dict observations."""
        if isinstance(observation_space, spaces.Dict) and not issubclass(cls, DictReplayBuffer):
            if cls is not SynthERBuffer:
                raise TypeError(f"{cls.__name__}: a class for Dict observations must derive from SynthERDictBuffer")
            cls = SynthERDictBuffer
        return object.__new__(cls)

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        real_ratio: float = 0.5,
        generator: GeneratorOption = None,
        schedule: ScheduleOption = None,
        synthetic_capacity: int = 1_000_000,
        seed: int | None = None,
        scaled_actions: bool = True,
        on_refit: Callable[[RefitReport], object] | None = None,
        relevance: RelevanceOption = None,
        refit: str = "inline",
        lag: int | None = None,
        encoder: Callable[[Any], Tensor] | None = None,
        **storage: Any,
    ) -> None:
        """Check the arguments and create an empty buffer; `storage` goes to SB3's class."""
        written = SynthERBuffer if type(self) is SynthERDictBuffer else None
        device = _device(device)
        refuse_unknown(type(self), storage, named=written, elsewhere={"SynthERHerBuffer": HerReplayBuffer})
        if optimize_memory_usage and (real_ratio != 1.0 or encoder is not None):
            raise ValueError(
                "optimize_memory_usage: True requires real_ratio=1 and no encoder, because it overwrites next "
                f"observations that they need; got real_ratio={real_ratio!r}, encoder={encoder!r}"
            )
        if whole_number("n_steps", n_steps) > 1 and (
            optimize_memory_usage or isinstance(observation_space, spaces.Dict)
        ):
            raise ValueError(
                "n_steps: Stable-Baselines3 does not support n-step returns with Dict observations or "
                f"optimize_memory_usage; expected 1, got {n_steps!r}"
            )
        if not isinstance(gamma, float | int | np.floating) or not 0 <= gamma <= 1:
            raise ValueError(f"gamma: expected a number from 0 to 1, got {gamma!r}")
        if not isinstance(scaled_actions, bool):
            raise TypeError(f"scaled_actions: expected True or False, got {scaled_actions!r}")
        latents = None
        if encoder is not None:
            latents = Latents(encoder, observation_space, device)
        spec = transition_spec(
            observation_space if latents is None else latents.space,
            action_space,
            scaled_actions=scaled_actions,
            n_steps=n_steps,
            goals=self.has_goals,
        )
        options = SourceOptions(
            real_ratio=real_ratio,
            generator=generator,
            schedule=schedule,
            synthetic_capacity=synthetic_capacity,
            seed=seed,
            on_refit=on_refit,
            relevance=relevance,
            refit=refit,
            lag=lag,
        )
        # Skips the constructor of NStepReplayBuffer, which rejects optimize_memory_usage even for n_steps=1.
        super(NStepReplayBuffer, self).__init__(
            buffer_size,
            observation_space,
            action_space,
            device=device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
            **storage,
        )
        self.n_steps, self.gamma = n_steps, gamma
        self.added = 0  # calls of `add` so far
        self._counted = 0  # calls of `add` already counted in `source.steps`
        self._checked = False  # whether the shapes of added transitions were checked
        self.latents, self._made_with = latents, options.real_ratio
        rows_of = (self, spec, options.seed, self.device)
        self._real: RealRows = self._rows_type(*rows_of) if latents is None else LatentRows(latents, *rows_of)
        self.source: SyntheticSource = options.build(self._real, spec, self.device)

    @classmethod
    def from_buffer(
        cls, plain: ReplayBuffer, *, device: torch.device | str | None = None, **options: Any
    ) -> SynthERBuffer:
        """Make a buffer of the rows of a plain one.

        The rows are taken over, not copied: do not use the plain buffer any more. `load_replay_buffer` calls this if a
        file holds a plain buffer and the model was made with a `SynthERBuffer`.

        >>> from stable_baselines3.common.buffers import ReplayBuffer
        >>> plain = ReplayBuffer(100, spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,)))
        >>> SynthERBuffer.from_buffer(plain, generator="tiny", schedule=5_000)
        SynthERBuffer(0 real, 0 synthetic, real_ratio=0.5, refits=0)

        Args:
            plain: A `ReplayBuffer`, `DictReplayBuffer` or `NStepReplayBuffer`; for `SynthERHerBuffer` a
                `HerReplayBuffer`.
            device: None: the device of the plain buffer.
            **options: Options of this class, from `n_steps` on.

        Raises:
            TypeError: `plain` is none of these.
            ValueError: Its rows cannot be modelled: see `optimize_memory_usage`.
        """
        buffer: SynthERBuffer = adopted(cls, plain, device, options)
        return buffer

    def __repr__(self) -> str:
        """Sizes and ratio."""
        return repr(self.source).replace("SyntheticSource", type(self).__name__)

    @property
    def device(self) -> torch.device:
        """Device of batches; assigning a device moves the buffer there, which SB3's `load_replay_buffer` does."""
        return self._real.device if hasattr(self, "_real") else self._first_device

    @device.setter
    def device(self, device: torch.device | str) -> None:
        if hasattr(self, "source"):
            self.source.to(_device(device))
            self._real.to(self.source.device)
        else:  # called by SB3's constructor
            self._first_device: torch.device = _device(device)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Add one transition per environment, as in SB3.

        The shapes of the first call after construction or loading are checked: a loaded buffer may belong to another
        environment.
        """
        if not self._checked:
            self._check_shapes(obs, next_obs, action, reward)
            self._checked = True
        super().add(obs, next_obs, action, reward, done, infos)
        self.added += 1

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw a batch with ``round(real_ratio * batch_size)`` real rows; refit first if due.

        The batch is SB3's named tuple, whose attribute `is_synthetic`, bool ``(batch,)``, says which rows are
        synthetic. The normalisation of `env` is applied to real and synthetic rows.
        """
        self._count_steps()
        if self.source.real_ratio == 1.0 and self.latents is None:
            return self._samples_type()._make(super().sample(batch_size, env))
        drawn = self.source.draw(batch_size)
        if drawn is None:
            return self._as_samples(self._real.sample(batch_size), None, env)
        batch, places = drawn
        if len(places):
            batch.rows.index_copy_(0, places, self._real.sample(len(places)))
        return self._as_samples(batch.rows, places, env)

    def sample_batches(self, count: int, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Return the rows of `count` calls of `sample` in one batch; faster than the calls."""
        whole_number("count", count)
        overridden = type(self).sample not in (SynthERBuffer.sample, SynthERDictBuffer.sample)
        if overridden or (self.source.real_ratio == 1.0 and self.latents is None):
            return join_batches([self.sample(batch_size, env) for _ in range(count)])
        self._count_steps()
        drawn = [self.source.draw(batch_size) for _ in range(count)]
        mixed = [one for one in drawn if one is not None]  # all or none: only the first call can refit
        if not mixed:
            return self._as_samples(self._real.sample(batch_size, count), None, env)
        rows = torch.cat([batch.rows for batch, _ in mixed])
        places = torch.stack([places for _, places in mixed])
        if places.numel():
            places += torch.arange(0, len(rows), batch_size, device=self.device)[:, None]
            rows.index_copy_(0, places.view(-1), self._real.sample(places.shape[1], count))
        return self._as_samples(rows, places.view(-1), env)

    def reset(self) -> None:
        """Remove all real and synthetic rows; the generator keeps its model."""
        super().reset()
        self.source.clear()
        self._real.forget()

    def refresh_mirror(self) -> None:
        """Copy all real rows to the GPU again; call it after modifying the arrays other than by `add`."""
        self._real.forget()

    def _count_steps(self) -> None:
        """Update the step count of the source."""
        self.source.steps += (self.added - self._counted) * self.n_envs
        self._counted = self.added
        if self.source.real_ratio < 1.0 or self.latents is not None:
            self._real.require()

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        one_step = super(NStepReplayBuffer, self)._get_samples
        return one_step(batch_inds, env) if self.n_steps == 1 else super()._get_samples(batch_inds, env)

    def _as_samples(self, rows: Tensor, real_places: Tensor | None, env: VecNormalize | None) -> Any:
        """Convert rows ``(batch, dim)`` to SB3's named tuple; fields do not share memory."""
        spec = self.source.spec
        rewards = _copy(rows[:, spec.rewards])
        if env is not None:
            rewards = self.normalised_rewards(rewards, env)
        samples = self._samples_type()(
            observations=self._as_observations(rows, "observations", env),
            actions=_copy(rows[:, spec.actions], self.actions.dtype),
            next_observations=self._as_observations(rows, "next_observations", env),
            dones=_copy(rows[:, spec.terminated]),
            rewards=rewards,
            discounts=None if self.n_steps == 1 else _copy(rows[:, spec.field(DISCOUNT).columns]),
        )
        samples.real_places = real_places
        return samples

    def normalised_rewards(self, rewards: Tensor, env: VecNormalize) -> Tensor:
        """Normalise rewards; n-step returns by their average reward, so that clipping is the one of single rewards."""
        weight = sum(self.gamma**step for step in range(self.n_steps))
        return self._on_host(
            rewards, lambda values: (env.normalize_reward(values / weight) * weight).astype(np.float32)
        )

    def _samples_type(self) -> Any:
        return SynthERSamples

    def _as_observations(self, rows: Tensor, field: str, env: VecNormalize | None) -> Any:
        columns = rows[:, self.source.spec.field(field).columns]
        if self.latents is not None:
            return _copy(columns)
        observations = _copy(columns.reshape(-1, *self.obs_shape), self.observations.dtype)
        return observations if env is None else self._on_host(observations, env.normalize_obs)

    def _on_host(self, values: Tensor, normalise: Any) -> Tensor:
        """Apply a method of `VecNormalize`, which takes NumPy arrays."""
        return torch.as_tensor(normalise(values.cpu().numpy()), device=self.device)

    def _check_shapes(self, obs: Any, next_obs: Any, action: Any, reward: Any) -> None:
        """Check shapes, because NumPy would silently broadcast too few columns or environments."""
        if np.size(reward) != self.n_envs:
            raise ValueError(
                f"n_envs: got transitions of {np.size(reward)} environments, expected {self.n_envs}; use as many "
                "environments as the buffer was created with"
            )
        expected = [("action", action, self.actions)]
        for name, given in (("obs", obs), ("next_obs", next_obs)):
            if isinstance(self.observations, dict):
                given = given if isinstance(given, dict) else {}
                expected += [(f"{name}[{k!r}]", given.get(k, ()), held) for k, held in self.observations.items()]
            else:
                expected.append((name, given, self.observations))
        for name, given, held in expected:
            if np.size(given) != held[0].size:
                raise ValueError(
                    f"{name}: got shape {np.shape(given)}, expected {held.shape[1:]}; use the model with the "
                    "environment that the buffer was created with"
                )

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle; shapes are checked again after loading."""
        return {**vars(self), "_checked": False}


class SynthERDictBuffer(SynthERBuffer, DictReplayBuffer):
    """`SynthERBuffer` for Dict observations; constructed automatically by `SynthERBuffer`."""

    def _samples_type(self) -> Any:
        return SynthERDictSamples

    def _as_observations(self, rows: Tensor, field: str, env: VecNormalize | None) -> dict[str, Tensor]:
        observations = self._entries(rows, field)
        if env is None:
            return observations
        normalised = env.normalize_obs({key: values.cpu().numpy() for key, values in observations.items()})
        return {key: torch.as_tensor(values, device=self.device) for key, values in normalised.items()}

    def _entries(self, rows: Tensor, field: str) -> dict[str, Tensor]:
        """Return the entries of `observations` or `next_observations`."""
        columns_of = self.source.spec.field(field).leaf_columns()
        return {str(leaf.path[0]): self._entry(str(leaf.path[0]), rows[:, columns]) for leaf, columns in columns_of}

    def _entry(self, key: str, columns: Tensor) -> Tensor:
        return _copy(columns.reshape(-1, *self.obs_shape[key]), self.observations[key].dtype)


def _device(device: torch.device | str) -> torch.device:
    """Return the device that SB3 chooses; raise ValueError if it does not exist."""
    with contextlib.suppress(RuntimeError, TypeError):  # `resolve_device` says what is wrong
        device = get_device(device)
    return resolve_device(device)


def _copy(values: Tensor, dtype: Any = np.float32) -> Tensor:
    """Copy to the torch dtype that corresponds to a NumPy dtype."""
    kind = torch.float32 if dtype == np.float32 else torch.from_numpy(np.empty(0, dtype)).dtype
    return values.to(kind, copy=True, memory_format=torch.contiguous_format)
