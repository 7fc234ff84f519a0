"""SAC in Stable-Baselines3 on a task of online_dmc.py, to check our learner and the adapter.

    python -m synther_replay.benchmarks.peers.sb3_sac --env Hopper-v5 --seeds 8 --steps 30000
    python -m synther_replay.benchmarks.peers.sb3_sac --env Hopper-v5 --seeds 4 --steps 30000 --algo synther

Writes ``results/online/Hopper-v5/sb3-sac.json`` and ``sb3-synther.json``, to compare with ``sac.json`` and
``synther-fast.json`` of online_dmc.py. Each seed runs in its own process.

Algorithms:
    sac      SAC of Stable-Baselines3
    sac20    our FastSAC, 20 updates per environment step
    synther  the same with SynthERBuffer

Two things differ from our learner by design. The actor of Stable-Baselines3 maximises the smaller of two critics; ours
maximises their mean, as in the REDQ code base. The initial weights have other scales. ``--policy-by mean`` and ``--init
xavier`` remove these differences for `sac` (``sb3-sac-mean-xavier.json``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer
from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.agents.policy import Policy
from synther_replay.benchmarks.common.command_line import exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.common.formatting import mean_and_spread
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.resumable import is_done, save_result
from synther_replay.benchmarks.environments.tasks import Task, agent_seed
from synther_replay.common.checks import resolve_device, whole_number

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core per seed

RESULTS = Path("results", "online")
_MANY: dict[str, Any] = {"gradient_steps": 20, "policy_delay": 20}
ALGORITHMS: dict[str, tuple[type[SAC], dict[str, Any]]] = {
    "sac": (SAC, {}),
    "sac20": (FastSAC, _MANY),
    "synther": (FastSAC, {**_MANY, "replay_buffer_class": SynthERBuffer}),
}


@dataclass(frozen=True)
class Settings:
    """Everything that a result depends on; saved with it.

    Attributes:
        env: Name of the task.
        algo: One of `ALGORITHMS`.
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
        if self.algo != "sac" and (self.policy_by, self.init) != ("smaller", "torch"):
            raise ValueError(f"--policy-by and --init require --algo sac, got --algo {self.algo}")

    @property
    def name(self) -> str:
        """Algorithm and variant, used as file name."""
        variant = [value for value in (self.policy_by, self.init) if value in ("mean", "xavier")]
        return "-".join((f"sb3-{self.algo}", *variant))

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, with the options of the generator if there is one."""
        kind = torch.device(self.device).type
        values = {**asdict(self), "device": kind}
        if self.algo == "synther":  # the defaults of `SynthERBuffer` on this device
            preset = "fast" if kind == "cuda" else "tiny"
            schedule = asdict(getattr(RetrainSchedule, preset)())
            values |= {"generator": getattr(GeneratorConfig, preset)().to_json(), "schedule": schedule}
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read


def policy_of(model: SAC) -> Policy:
    """Convert SB3's actor to the policy class of the evaluation."""
    first, _, second, _ = model.actor.latent_pi
    heads = (model.actor.mu, model.actor.log_std)

    def array(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().cpu().numpy().copy()

    return Policy(
        w1=np.concatenate([array(first.weight).T, array(first.bias)[None]]),
        w2=array(second.weight).T,
        w3=np.concatenate([array(head.weight).T for head in heads], 1),
        b2=array(second.bias)[None],
        b3=np.concatenate([array(head.bias) for head in heads])[None],
    )


class Evaluations(BaseCallback):
    """Evaluates the deterministic policy every `every` steps."""

    def __init__(self, task: str, every: int, episodes: int, seed: int) -> None:
        super().__init__()
        self.task, self.every, self.episodes, self.seed = task, every, episodes, seed
        self.returns: dict[int, float] = {}

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.returns[self.num_timesteps] = mean_return(self.task, policy_of(self.model), self.seed, self.episodes)
        return True


def _mean_q_for_actor(_: torch.nn.Module, inputs: tuple[Any, ...], values: tuple[torch.Tensor, ...]) -> Any:
    """Forward hook: in the actor's update (where actions require a gradient), each critic returns the mean value."""
    if not inputs[1].requires_grad:
        return values
    return (torch.stack(values).mean(0),) * len(values)


def _initialise_like_redq(model: SAC) -> None:
    """Redraw all weights: Xavier uniform, zero biases, targets equal to the critics."""
    for module in (*model.actor.modules(), *model.critic.modules()):
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.xavier_uniform_(module.weight)
            torch.nn.init.zeros_(module.bias)
    model.critic_target.load_state_dict(model.critic.state_dict())


def run(settings: Settings, seed: int) -> dict[int, float]:
    """Train one agent; returns by step."""
    torch.set_num_threads(1)
    build, options = ALGORITHMS[settings.algo]
    model = build(
        "MlpPolicy",
        gym.make(settings.env),
        learning_starts=settings.random_steps,
        target_entropy=Task.named(settings.env).target_entropy,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device=settings.device,
        **options,
    )
    if settings.init == "xavier":
        _initialise_like_redq(model)
    if settings.policy_by == "mean":
        model.critic.register_forward_hook(_mean_q_for_actor)
    evaluations = Evaluations(settings.env, settings.every, settings.episodes, agent_seed(seed))
    model.learn(settings.steps, callback=evaluations)
    return evaluations.returns


def run_to_file(path: Path, settings: Settings, workers: int) -> list[dict[str, Any]]:
    """Run all seeds in `workers` processes and write the result; returns its curve."""
    started = time.monotonic()
    seeds = range(settings.seeds)
    with WorkerPool(min(settings.seeds, workers)) as pool:
        runs = [future.result() for future in [pool.submit(run, settings, seed) for seed in seeds]]
    curve = [{"step": step, "returns": [round(returns[step], 2) for returns in runs]} for step in runs[0]]
    utd = ALGORITHMS[settings.algo][1].get("gradient_steps", 1)
    result = {"env": settings.env, "algo": settings.name, "preset": None, "seeds": list(seeds), "utd": utd}
    result |= {"steps": settings.steps, "curve": curve, "settings": settings.to_json()}
    result |= {"wall_seconds": {"total": round(time.monotonic() - started, 2)}}
    save_result(path, {**result, **origin(torch.device(settings.device))})
    return curve


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="a Gymnasium task")
    parser.add_argument("--algo", default="sac", choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, default=8, help="number of agents (8)")
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps per agent (30,000)")
    parser.add_argument("--every", type=int, default=5_000, help="environment steps between evaluations (5,000)")
    parser.add_argument("--episodes", type=int, default=10, help="episodes per evaluation (10)")
    parser.add_argument(
        "--random-steps", type=int, default=5_000, help="environment steps before training starts (5,000)"
    )
    parser.add_argument(
        "--policy-by",
        default="smaller",
        choices=("smaller", "mean"),
        help="value of the critics that the actor maximises (smaller)",
    )
    parser.add_argument("--init", default="torch", choices=("torch", "xavier"), help="weight initialisation (torch)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="parallel seeds (one per core)")
    parser.add_argument("--device", default="cpu", help="device of the learner (cpu)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (%(default)s)")
    args = parser.parse_args()
    try:
        args.device = str(resolve_device(args.device))
        args.settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
        whole_number("workers", args.workers)
        Task.named(args.env)
        if args.env not in gym.registry:
            raise ValueError(f"--env: expected a Gymnasium task, got {args.env!r}")
    except ValueError as error:
        parser.error(str(error))
    return args


def main() -> int:
    """Command line."""
    args = parse()
    settings = args.settings
    path = args.out / settings.env / f"{settings.name}.json"
    try:
        if is_done(path, settings):
            print(f"{path}: already exists")
            return 0
        make_folder_of(path)
        curve = run_to_file(path, settings, args.workers)
    except (ValueError, OSError) as error:
        return exit_with_error(2, error)
    except KeyboardInterrupt:
        return exit_with_error(130, f"{path}: interrupted; the file was not written")
    except BrokenProcessPool:
        return exit_with_error(1, f"{path}: a worker process died; the file was not written")
    for point in curve:
        print(f"{settings.env} step {point['step']:,}: {mean_and_spread(point['returns'], 1)}")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
