"""One agent of Stable-Baselines3: settings, construction, and training that can be stopped and resumed."""

from __future__ import annotations

import io
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from torch import Tensor

from synther_replay import RetrainSchedule
from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer
from synther_replay.adapters.sb3.policies import LayerNormMlpPolicy
from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.agents.networks.matmul import choose_precision
from synther_replay.benchmarks.agents.policy import Policy
from synther_replay.benchmarks.common.generator_settings import PRESETS, build_generator_config
from synther_replay.benchmarks.common.resumable import run_until, save_state, saved_state
from synther_replay.benchmarks.environments.tasks import Task, agent_seed
from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import derive_seed

KIND = "agent of Stable-Baselines3"
CHUNK = 500  # environment steps between two looks at the clock
POLICIES: dict[str, Any] = {"MlpPolicy": "MlpPolicy", "LayerNormMlpPolicy": LayerNormMlpPolicy}
_MANY: dict[str, Any] = {"gradient_steps": 20, "policy_delay": 20}
ALGORITHMS: dict[str, tuple[type[SAC], dict[str, Any]]] = {
    "sac": (SAC, {}),
    "sac20": (FastSAC, _MANY),
    "synther": (FastSAC, {**_MANY, "replay_buffer_class": SynthERBuffer}),
    "buffer": (SAC, {"replay_buffer_class": SynthERBuffer}),
}


def has_buffer(algo: str) -> bool:
    """Whether an algorithm has synthetic rows."""
    return "replay_buffer_class" in ALGORITHMS[algo][1]


@dataclass(frozen=True)
class Settings:
    """Everything that a result depends on; saved with it.

    Attributes:
        env: Name of the task.
        algo: One of `ALGORITHMS`.
        preset: Preset of generator and schedule; None for algorithms without a generator.
        policy: One of `POLICIES`.
        first_seed: Seed of the first agent; the others count up.
        seeds: Number of agents.
        steps: Environment steps per agent.
        every: Environment steps between evaluations.
        episodes: Episodes per evaluation.
        random_steps: Environment steps before training starts.
        policy_by: Value of the critics that the actor maximises, `smaller` or `mean`.
        init: Initialisation of the weights, `torch` or `xavier`.
        device: Device of the learner.
    """

    env: str
    algo: str = "sac"
    preset: str | None = None
    policy: str = "MlpPolicy"
    first_seed: int = 0
    seeds: int = 8
    steps: int = 30_000
    every: int = 5_000
    episodes: int = 10
    random_steps: int = 5_000
    policy_by: str = "smaller"
    init: str = "torch"
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Validate all values."""
        for name in ("seeds", "steps", "every", "episodes", "random_steps"):
            whole_number(name, getattr(self, name))
        whole_number("first_seed", self.first_seed, least=0)
        if has_buffer(self.algo) and self.preset not in PRESETS:
            raise ValueError(f"--preset: expected one of {', '.join(PRESETS)}, got {self.preset!r}")
        if not has_buffer(self.algo) and self.preset:
            raise ValueError(f"--preset requires --algo synther or buffer, got --algo {self.algo}")

    @property
    def name(self) -> str:
        """Algorithm and variant, used as file name."""
        variant = [value for value in (self.policy_by, self.init) if value in ("mean", "xavier")]
        layer_norm = "layernorm" if self.policy == "LayerNormMlpPolicy" else None
        return "-".join(part for part in (f"sb3-{self.algo}", self.preset, layer_norm, *variant) if part)

    @property
    def utd(self) -> int:
        """Critic updates per environment step."""
        return int(ALGORITHMS[self.algo][1].get("gradient_steps", 1))

    def buffer_options(self) -> dict[str, Any]:
        """Options of `SynthERBuffer`; without a time limit, so that results do not depend on the machine's speed."""
        schedule: RetrainSchedule = getattr(RetrainSchedule, str(self.preset))()
        return {"generator": build_generator_config(str(self.preset), {}), "schedule": schedule}

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, with the options of the generator if there is one."""
        values = {**asdict(self), "device": torch.device(self.device).type}
        for name in ("preset", "policy", "first_seed"):  # as in results from before there were others
            if values[name] == getattr(Settings, name):
                del values[name]
        if has_buffer(self.algo):
            options = self.buffer_options()
            values |= {"generator": options["generator"].to_json(), "schedule": asdict(options["schedule"])}
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read


@dataclass
class Progress:
    """What is known of one agent.

    Attributes:
        step: Environment steps so far.
        returns: Mean return by step of the evaluation.
        seconds: Wall time, over all processes that worked on it.
        resumed_at: Steps at which a process continued the work of another.
    """

    step: int = 0
    returns: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    resumed_at: list[int] = field(default_factory=list)


def train(
    settings: Settings,
    seed: int,
    checkpoint: Path,
    *,
    started: float,
    time_limit: float | None = None,
    checkpoint_every: float = 120.0,
) -> Progress:
    """Train one agent up to its last step or the time limit; resume from the checkpoint if it exists.

    Args:
        settings: Settings of the run.
        seed: Seed of the agent.
        checkpoint: Its file.
        started: `time.monotonic()` of the start of the command.
        time_limit: Seconds after which to save and stop.
        checkpoint_every: Seconds between checkpoints.
    """
    torch.set_num_threads(1)
    choose_precision(torch.device(settings.device))  # that of our learner
    progress, before = Progress(), 0.0
    if checkpoint.exists():
        state = saved_state(checkpoint, KIND, settings)
        before, known = state["seconds"], {int(step): value for step, value in state["returns"].items()}
        progress = Progress(state["step"], known, before, state["resumed_at"])
        if progress.step == settings.steps:
            return progress
        model = _loaded(settings, seed, progress.step, state)
        progress.resumed_at.append(progress.step)
    else:
        model = build(settings, seed)

    def finished() -> bool:
        return progress.step >= settings.steps

    def chunk() -> None:
        stops = [(progress.step // size + 1) * size for size in (CHUNK, settings.every)]
        model.learn(min(*stops, settings.steps) - progress.step, reset_num_timesteps=False)
        progress.step = model.num_timesteps
        if progress.step % settings.every == 0 or finished():
            value = mean_return(settings.env, policy_of(model), agent_seed(seed), settings.episodes)
            progress.returns[progress.step] = value
            spent = time.monotonic() - started
            label = f"{settings.env} {settings.name} seed {seed} step {progress.step:,}"
            print(f"{label}: return {value:.1f}, {before + spent:.0f} s", flush=True)

    def save() -> None:
        progress.seconds = before + time.monotonic() - started
        values = {**asdict(progress), "returns": {str(step): value for step, value in progress.returns.items()}}
        kept = {} if finished() else _saved(model)
        save_state(checkpoint, KIND, {"settings": settings.to_json(), **values, **kept})

    limits = {"time_limit": time_limit, "checkpoint_every": checkpoint_every}
    if run_until(chunk, save, finished, started=started, **limits):  # type: ignore[arg-type]
        save()  # the other agents may be stopped before their last step
    return progress


def build(settings: Settings, seed: int) -> SAC:
    """Create the model."""
    algorithm, options = ALGORITHMS[settings.algo]
    if has_buffer(settings.algo):
        options = {"replay_buffer_kwargs": settings.buffer_options(), **options}
    model = algorithm(
        POLICIES[settings.policy],
        gym.make(settings.env),
        buffer_size=settings.steps,
        learning_starts=settings.random_steps,
        target_entropy=Task.named(settings.env).target_entropy,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device=settings.device,
        **options,
    )
    if settings.init == "xavier":
        initialise_like_redq(model)
    _set_policy_loss(model, settings)
    return model


def policy_of(model: SAC) -> Policy:
    """Convert SB3's actor to the policy class of the evaluation."""
    first, _, second, _ = model.actor.latent_pi
    heads = (model.actor.mu, model.actor.log_std)

    def array(tensor: Tensor) -> np.ndarray:
        return tensor.detach().cpu().numpy().copy()

    return Policy(
        w1=np.concatenate([array(first.weight).T, array(first.bias)[None]]),
        w2=array(second.weight).T,
        w3=np.concatenate([array(head.weight).T for head in heads], 1),
        b2=array(second.bias)[None],
        b3=np.concatenate([array(head.bias) for head in heads])[None],
    )


def initialise_like_redq(model: SAC) -> None:
    """Redraw all weights: Xavier uniform, zero biases, targets equal to the critics."""
    for module in (*model.actor.modules(), *model.critic.modules()):
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.xavier_uniform_(module.weight)
            torch.nn.init.zeros_(module.bias)
    model.critic_target.load_state_dict(model.critic.state_dict())


def mean_q_for_actor(_: torch.nn.Module, inputs: tuple[Any, ...], values: tuple[Tensor, ...]) -> Any:
    """Forward hook: in the actor's update (where actions require a gradient), each critic returns the mean value."""
    if not inputs[1].requires_grad:
        return values
    return (torch.stack(values).mean(0),) * len(values)


def _set_policy_loss(model: SAC, settings: Settings) -> None:
    if settings.policy_by == "mean":
        model.critic.register_forward_hook(mean_q_for_actor)


def _saved(model: SAC) -> dict[str, Tensor]:
    """The model and its replay buffer, as SB3 saves them."""
    files = {"model": io.BytesIO(), "buffer": io.BytesIO()}
    model.save(files["model"])
    model.save_replay_buffer(files["buffer"])
    return {name: torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8) for name, file in files.items()}


def _loaded(settings: Settings, seed: int, step: int, state: dict[str, Any]) -> SAC:
    """The model of a checkpoint. It begins a new episode and new random streams, which SB3 does not save."""
    files = {name: io.BytesIO(state[name].numpy().tobytes()) for name in ("model", "buffer")}
    model = ALGORITHMS[settings.algo][0].load(files["model"], gym.make(settings.env), device=settings.device)
    model.load_replay_buffer(files["buffer"])
    model.set_random_seed(derive_seed(seed, step) % 2**32)
    _set_policy_loss(model, settings)
    return model
