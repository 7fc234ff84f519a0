"""Buffers of Stable-Baselines3 become SynthER buffers: in `from_buffer`, and where a model loads one; how it saves one.

`load_replay_buffer` of SB3 puts whatever the file holds in place of the model's buffer. It asks neither the class that
the model was made with, nor the spaces, nor the buffer that it replaces. Left alone, a model of `SynthERBuffer` would
go on with plain replay or with the transitions of another task, and say nothing. `save_replay_buffer` opens the file
before the buffer waits for a refit in the background: an interrupt would leave an empty file. SB3 has no hooks there,
so the methods themselves are extended, for models of our buffers only.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import asdict
from typing import Any

import torch
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from synther_replay.generator import DiffusionGenerator
from synther_replay.relevance.function import WithFunctions
from synther_replay.relevance.guidance import Guidance
from synther_replay.replay.source import SyntheticSource

# Arguments of the constructor that only some buffers have.
_ARGUMENTS: dict[type, tuple[str, ...]] = {
    ReplayBuffer: (),
    DictReplayBuffer: (),
    NStepReplayBuffer: ("n_steps", "gamma"),
    HerReplayBuffer: ("env", "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"),
}
_CONTENTS = "observations", "next_observations", "actions", "rewards", "dones", "timeouts", "buffer_size", "pos", "full"
_EPISODES = "infos", "ep_start", "ep_length", "_current_ep_start"  # of HerReplayBuffer


def adopted(cls: type[Any], plain: Any, device: torch.device | str | None, options: dict[str, Any]) -> Any:
    """Make a buffer of our class `cls` of the rows of a plain one; see `SynthERBuffer.from_buffer`."""
    with_goals = issubclass(cls, HerReplayBuffer)
    expected = [kind for kind in _ARGUMENTS if (kind is HerReplayBuffer) == with_goals]
    if type(plain) not in expected:
        raise TypeError(
            f"plain: {cls.__name__} expects a {' or '.join(kind.__name__ for kind in expected)} of Stable-Baselines3, "
            f"got {type(plain).__name__}; a model that uses it must be made with its class as replay_buffer_class"
        )
    if plain.optimize_memory_usage and options.get("real_ratio") != 1.0:
        raise ValueError(
            "plain: it was made with optimize_memory_usage=True, which overwrites next observations that the generator "
            "needs; make the model with real_ratio=1, or collect the rows again without this option"
        )
    least = getattr(options.get("generator"), "min_rows", DiffusionGenerator.min_rows)
    buffer = cls(
        min(plain.buffer_size, least) * plain.n_envs,  # small, because its arrays are replaced
        plain.observation_space,
        plain.action_space,
        device=plain.device if device is None else device,
        n_envs=plain.n_envs,
        optimize_memory_usage=plain.optimize_memory_usage,
        handle_timeout_termination=plain.handle_timeout_termination,
        **{**{name: getattr(plain, name) for name in _ARGUMENTS[type(plain)]}, **options},
    )
    for name in (*_CONTENTS, *_EPISODES):
        if hasattr(plain, name):
            setattr(buffer, name, getattr(plain, name))
    buffer.added = plain.size()
    return buffer


def extend_files_of_buffers(ours: type[Any]) -> None:
    """Extend how off-policy algorithms load and save buffers, for models of the class `ours` and its subclasses."""
    load, save = OffPolicyAlgorithm.load_replay_buffer, OffPolicyAlgorithm.save_replay_buffer

    @functools.wraps(save)
    def save_replay_buffer(self: Any, *args: Any, **options: Any) -> None:
        if isinstance(getattr(self, "replay_buffer", None), ours):
            self.replay_buffer.source.wait_for_refit()
        save(self, *args, **options)

    @functools.wraps(load)
    def load_replay_buffer(self: Any, *args: Any, **options: Any) -> None:
        before: Any = getattr(self, "replay_buffer", None)  # it may have been deleted, to free its memory
        wanted: Any = self.replay_buffer_class
        load(self, *args, **options)
        loaded = self.replay_buffer
        if not isinstance(loaded, ours) and not issubclass(wanted or object, ours):
            return
        self.replay_buffer = before  # stays, if the loaded one is refused
        _check_origin(loaded, self)
        if isinstance(loaded, ours):
            if isinstance(before, ours) and before.real_ratio < 1.0 and loaded.real_ratio < 1.0:
                _tell_options(loaded.source, before.source)
            _give_functions(loaded, self.replay_buffer_kwargs)
        else:
            loaded = wanted.from_buffer(loaded, device=self.device, **self.replay_buffer_kwargs)
        self.replay_buffer = loaded

    OffPolicyAlgorithm.load_replay_buffer = load_replay_buffer
    OffPolicyAlgorithm.save_replay_buffer = save_replay_buffer


def _give_functions(loaded: Any, options: dict[str, Any]) -> None:
    """Give a buffer the functions of the model: files hold neither hook nor functions, and a copy of the encoder."""
    loaded.source.on_refit = options.get("on_refit")
    guidance = Guidance.of(options.get("relevance"))
    if guidance is not None and isinstance(loaded.source.relevance, WithFunctions):
        loaded.source.relevance.take_functions(guidance.relevance)
    if loaded.latents is not None and "encoder" in options:
        loaded.latents.encoder = options["encoder"]


def _check_origin(loaded: Any, model: Any) -> None:
    """Raise ValueError for a buffer of other spaces than those of the model, or of another number of environments."""
    for name in ("observation_space", "action_space", "n_envs"):
        held, expected = getattr(loaded, name), getattr(model, name)
        if held != expected:
            raise ValueError(
                f"load_replay_buffer: the file has {name}={held}, the model {expected}; the model keeps its buffer"
            )


def _tell_options(loaded: SyntheticSource, before: SyntheticSource) -> None:
    """Warn of options in a file that replace others of the model."""
    held, own = _options(loaded), _options(before)
    changed = [f"{name}={held[name]} (the model has {own[name]})" for name in held if held[name] != own.get(name)]
    if changed:
        warnings.warn(f"load_replay_buffer: the file's options are used: {', '.join(changed)}", stacklevel=3)


def _options(source: SyntheticSource) -> dict[str, Any]:
    config = source.generator.config if isinstance(source.generator, DiffusionGenerator) else None
    return {
        "real_ratio": source.real_ratio,
        "refit": source.refit_mode,
        "lag": source.lag,
        "synthetic_capacity": source.store.capacity,
        "schedule": source.schedule,
        **({} if config is None else {f"generator {name}": value for name, value in asdict(config).items()}),
    }
