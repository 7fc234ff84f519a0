"""DQN of Stable-Baselines3 with and without synthetic rows, on tasks with discrete actions.

    python -m synther_replay.benchmarks.peers.sb3_dqn --env CartPole-v1 --seeds 5
    python -m synther_replay.benchmarks.peers.sb3_dqn --env CartPole-v1 --seeds 5 --algo synther-dqn
    python -m synther_replay.benchmarks.peers.sb3_dqn --env CartPole-v1 --seeds 5 --algo synther-dqn --updates 4

Writes ``results/online/discrete/CartPole-v1/dqn.json``, ``synther-dqn.json`` and ``synther-dqn-4x.json``. Each seed has
its own process. After a run that was stopped, the same command keeps the finished seeds and starts the others again.

The hyper-parameters are the tuned ones of rl_zoo3 and the same for both algorithms. A run with fewer steps than the
tuned one is its beginning: exploration ends at the same step. LunarLander-v3 needs ``gymnasium[box2d]``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from synther_replay import RetrainSchedule
from synther_replay.adapters.sb3 import SynthERBuffer
from synther_replay.benchmarks.common.command_line import add_run_options
from synther_replay.benchmarks.common.generator_settings import build_generator_config
from synther_replay.benchmarks.common.resumable import save_state, saved_state
from synther_replay.benchmarks.environments.tasks import agent_seed, environment_seed
from synther_replay.benchmarks.peers.sb3_agent import Progress
from synther_replay.benchmarks.peers.sb3_sac import run
from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.replay.mixing import check_real_ratio

KIND = "finished DQN of Stable-Baselines3"
RESULTS = Path("results", "online", "discrete")
ALGORITHMS = ("dqn", "synther-dqn")
PRESET = "tiny"  # of generator and schedule; the networks and runs are small
_EVALUATION = 78  # one key more than the seeds of training, so that the episodes never coincide


@dataclass(frozen=True)
class Tuned:
    """Hyper-parameters of a task that rl_zoo3 tuned; see `DQN` of Stable-Baselines3."""

    learning_rate: float
    batch_size: int
    buffer_size: int
    learning_starts: int
    target_update_interval: int
    train_freq: int
    gradient_steps: int
    exploration_steps: int
    exploration_final_eps: float
    steps: int


TUNED = {
    "CartPole-v1": Tuned(2.3e-3, 64, 100_000, 1_000, 10, 256, 128, 8_000, 0.04, 50_000),
    "LunarLander-v3": Tuned(6.3e-4, 128, 50_000, 0, 250, 4, 4, 12_000, 0.1, 100_000),
}


@dataclass(frozen=True)
class Settings:
    """Everything that a result depends on; saved with it.

    Attributes:
        env: Name of the task, one of `TUNED`.
        algo: One of `ALGORITHMS`.
        updates: Train so many times as often as tuned, with as many gradient steps each time.
        first_seed: Seed of the first agent; the others count up.
        seeds: Number of agents.
        steps: Environment steps per agent.
        every: Environment steps between evaluations.
        episodes: Episodes per evaluation.
        real_ratio: Share of real rows in each batch of `synther-dqn`.
        refit_every: Environment steps between two fits of the generator; the first comes after half as many.
        device: Device of the learner.
    """

    env: str
    algo: str = "dqn"
    updates: int = 1
    first_seed: int = 0
    seeds: int = 5
    steps: int = 50_000
    every: int = 2_500
    episodes: int = 10
    real_ratio: float = 0.5
    refit_every: int = 5_000
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Validate all values."""
        if self.env not in TUNED:
            raise ValueError(f"--env: expected one of {', '.join(TUNED)}, got {self.env!r}")
        for name in ("updates", "seeds", "steps", "every", "episodes"):
            whole_number(name, getattr(self, name))
        whole_number("first_seed", self.first_seed, least=0)
        whole_number("refit_every", self.refit_every, least=2)
        check_real_ratio(self.real_ratio)
        if TUNED[self.env].train_freq % self.updates:
            freq = TUNED[self.env].train_freq
            raise ValueError(f"--updates: expected a divisor of {freq} for {self.env}, got {self.updates}")

    @property
    def name(self) -> str:
        """Algorithm and variant, used as file name."""
        return self.algo if self.updates == 1 else f"{self.algo}-{self.updates}x"

    @property
    def preset(self) -> str | None:
        """Preset of the generator; None for plain DQN."""
        return PRESET if self.algo == "synther-dqn" else None

    @property
    def utd(self) -> float:
        """Gradient steps per environment step."""
        return self.updates * TUNED[self.env].gradient_steps / TUNED[self.env].train_freq

    def model_options(self) -> dict[str, Any]:
        """Arguments of `DQN`."""
        options = asdict(TUNED[self.env])
        options["train_freq"] //= self.updates
        options["exploration_fraction"] = min(1.0, options.pop("exploration_steps") / self.steps)
        del options["steps"]
        return options

    def buffer_options(self) -> dict[str, Any]:
        """Options of `SynthERBuffer`; without a time limit, so that results do not depend on the machine's speed."""
        schedule = RetrainSchedule.of({"preset": PRESET, "every": self.refit_every, "start": self.refit_every // 2})
        return {
            "generator": build_generator_config(PRESET, {}),
            "schedule": schedule,
            "real_ratio": self.real_ratio,
        }

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, with those of the model and of the generator if there is one."""
        values = {**asdict(self), "device": torch.device(self.device).type, "model": self.model_options()}
        if self.algo == "synther-dqn":
            options = self.buffer_options()
            values |= {"generator": options["generator"].to_json(), "schedule": asdict(options["schedule"])}
        else:
            del values["real_ratio"], values["refit_every"]
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read


def build(settings: Settings, seed: int) -> DQN:
    """Create the model."""
    options = settings.model_options()
    if settings.algo == "synther-dqn":
        options |= {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": settings.buffer_options()}
    networks = {"net_arch": [256, 256]}
    return DQN(
        "MlpPolicy", gym.make(settings.env), policy_kwargs=networks, seed=seed, device=settings.device, **options
    )


def mean_return(model: DQN, environments: list[gym.Env[Any, Any]], seed: int) -> float:
    """Mean return of the greedy policy, one episode in each environment; the same episodes at every call."""
    running = dict(enumerate(environments))
    observations = {k: env.reset(seed=environment_seed(seed, _EVALUATION, k))[0] for k, env in running.items()}
    total = 0.0
    while running:
        actions, _ = model.predict(np.stack([observations[k] for k in running]), deterministic=True)
        for (k, env), action in zip(list(running.items()), actions, strict=True):
            observations[k], reward, terminated, truncated, _ = env.step(int(action))
            total += float(reward)
            if terminated or truncated:
                del running[k]
    return total / len(environments)


class _Evaluation(BaseCallback):
    """Evaluates every so many steps; stops at the last one or the time limit.

    `learn` is called once, because the exploration rate follows the share of its steps that are over.
    """

    def __init__(self, settings: Settings, seed: int, progress: Progress, *, started: float, end: float) -> None:
        super().__init__()
        self._settings, self._seed, self._progress, self._started, self._end = settings, seed, progress, started, end
        self._environments = [gym.make(settings.env) for _ in range(settings.episodes)]

    def _on_step(self) -> bool:
        step, settings = self.num_timesteps, self._settings
        self._progress.step = step
        if step % settings.every == 0 or step == settings.steps:
            value = mean_return(self.model, self._environments, agent_seed(self._seed))  # type: ignore[arg-type]
            self._progress.returns[step] = value
            label = f"{settings.env} {settings.name} seed {self._seed} step {step:,}"
            print(f"{label}: return {value:.1f}, {time.monotonic() - self._started:.0f} s", flush=True)
        return step < settings.steps and time.monotonic() < self._end


def train(
    settings: Settings,
    seed: int,
    checkpoint: Path,
    *,
    started: float,
    time_limit: float | None = None,
) -> Progress:
    """Train one agent up to its last step or the time limit; an agent that has finished before is read.

    Args:
        settings: Settings of the run.
        seed: Seed of the agent.
        checkpoint: File of the finished agent.
        started: `time.monotonic()` of the start of the command.
        time_limit: Seconds after which to stop.
    """
    torch.set_num_threads(1)
    if checkpoint.exists():
        state = saved_state(checkpoint, KIND, settings)
        return Progress(state["step"], {int(k): value for k, value in state["returns"].items()}, state["seconds"])
    own, progress = time.monotonic(), Progress()
    end = float("inf") if time_limit is None else started + time_limit
    build(settings, seed).learn(settings.steps, _Evaluation(settings, seed, progress, started=started, end=end))
    progress.seconds = time.monotonic() - own
    if progress.step == settings.steps:  # the other agents may be stopped before their last step
        returns = {str(step): value for step, value in progress.returns.items()}
        save_state(checkpoint, KIND, {"settings": settings.to_json(), **asdict(progress), "returns": returns})
    return progress


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, choices=TUNED)
    parser.add_argument("--algo", default="dqn", choices=ALGORITHMS)
    parser.add_argument("--updates", type=int, default=1, help="train so many times as often as tuned (1)")
    parser.add_argument("--seeds", type=int, default=5, help="number of agents (5)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first agent; the others count up (0)")
    parser.add_argument("--steps", type=int, help="environment steps per agent (as tuned)")
    parser.add_argument("--every", type=int, default=2_500, help="environment steps between evaluations (2,500)")
    parser.add_argument("--episodes", type=int, default=10, help="episodes per evaluation (10)")
    parser.add_argument("--real-ratio", type=float, default=0.5, help="share of real rows in a batch (0.5)")
    parser.add_argument("--refit-every", type=int, default=5_000, help="steps between fits of the generator (5,000)")
    add_run_options(parser, checkpoints=False)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (%(default)s)")
    args = parser.parse_args()
    try:
        args.device = str(resolve_device(args.device))
        args.steps = TUNED[args.env].steps if args.steps is None else args.steps
        args.workers = os.cpu_count() or 1 if args.workers is None else args.workers
        args.settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
        whole_number("workers", args.workers)
        gym.make(args.env)
    except (ValueError, gym.error.DependencyNotInstalled) as error:
        parser.error(str(error))
    return args


def main() -> int:
    """Command line."""
    args = parse()
    return run(train, args.settings, args.out, args.workers, time_limit=args.time_limit)


if __name__ == "__main__":
    sys.exit(main())
