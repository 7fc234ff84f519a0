"""SAC in Stable-Baselines3 on a task of online_dmc.py: a check on our learner, and what the adapter gives its users.

    python benchmarks/online_sb3.py --env Hopper-v5 --seeds 8 --steps 30000
    python benchmarks/online_sb3.py --env Hopper-v5 --seeds 4 --steps 30000 --algo synther

write ``results/online/Hopper-v5/sb3-sac.json`` and ``sb3-synther.json``, from where one stands, to be held against
``sac.json`` and ``synther-fast.json`` of online_dmc.py. `sac` is Stable-Baselines3's own, `sac20` our `FastSAC` with 20
updates per step and `synther` the same with `SynthERBuffer`. Each seed has a process of its own. Two things differ from
our learner by design: in Stable-Baselines3 the actor learns by the smaller of two critics, in ours by their mean as in
the REDQ code base, and the initial weights have other scales. ``--policy-by mean`` and ``--init xavier`` take these
differences away for `sac` (``sb3-sac-mean-xavier.json``).
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
    """Everything a result depends on; kept with it.

    Attributes:
        env: Name of the task.
        algo: One of `ALGORITHMS`.
        seeds: Number of agents.
        steps: Environment steps of each.
        every: Environment steps between evaluations.
        episodes: Per evaluation.
        random_steps: Environment steps before anything is learnt.
        policy_by: By which value of the critics the actor learns, `smaller` or `mean`.
        init: How weights are drawn, `torch` or `xavier`.
        device: Where to learn.
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
        """Refuse what cannot work, by name and value."""
        for name in ("seeds", "steps", "every", "episodes", "random_steps"):
            whole_number(name, getattr(self, name))
        if self.algo != "sac" and (self.policy_by, self.init) != ("smaller", "torch"):
            raise ValueError(f"algo: only sac takes --policy-by and --init, got {self.algo}")

    @property
    def name(self) -> str:
        """As files are named."""
        unusual = [value for value in (self.policy_by, self.init) if value in ("mean", "xavier")]
        return "-".join((f"sb3-{self.algo}", *unusual))

    def to_json(self) -> dict[str, Any]:
        """The settings as they come back from a file, with the generator's where there is one."""
        kind = torch.device(self.device).type
        values = {**asdict(self), "device": kind}
        if self.algo == "synther":  # what `SynthERBuffer` takes there by itself
            preset = "fast" if kind == "cuda" else "tiny"
            schedule = asdict(getattr(RetrainSchedule, preset)())
            values |= {"generator": getattr(GeneratorConfig, preset)().to_json(), "schedule": schedule}
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read


def policy_of(model: SAC) -> Policy:
    """SB3's actor as the evaluation takes it."""
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
    """Evaluates the deterministic policy every so many steps."""

    def __init__(self, task: str, every: int, episodes: int, seed: int) -> None:
        super().__init__()
        self.task, self.every, self.episodes, self.seed = task, every, episodes, seed
        self.returns: dict[int, float] = {}

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.returns[self.num_timesteps] = mean_return(self.task, policy_of(self.model), self.seed, self.episodes)
        return True


def _mean_for_the_actor(_: torch.nn.Module, asked: tuple[Any, ...], values: tuple[torch.Tensor, ...]) -> Any:
    """What critics say: where the actor asks, which is where actions have a gradient, each says the mean of all."""
    if not asked[1].requires_grad:
        return values
    return (torch.stack(values).mean(0),) * len(values)


def _begin_as_redq(model: SAC) -> None:
    """Draw all weights anew, Xavier uniform with biases of zero, targets alike."""
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
        _begin_as_redq(model)
    if settings.policy_by == "mean":
        model.critic.register_forward_hook(_mean_for_the_actor)
    evaluations = Evaluations(settings.env, settings.every, settings.episodes, agent_seed(seed))
    model.learn(settings.steps, callback=evaluations)
    return evaluations.returns


def run_to_file(path: Path, settings: Settings, workers: int) -> list[dict[str, Any]]:
    """Run all seeds, so many at a time, and write their result; returns its curve."""
    begun = time.monotonic()
    seeds = range(settings.seeds)
    with WorkerPool(min(settings.seeds, workers)) as pool:
        runs = [future.result() for future in [pool.submit(run, settings, seed) for seed in seeds]]
    curve = [{"step": step, "returns": [round(returns[step], 2) for returns in runs]} for step in runs[0]]
    utd = ALGORITHMS[settings.algo][1].get("gradient_steps", 1)
    result = {"env": settings.env, "algo": settings.name, "preset": None, "seeds": list(seeds), "utd": utd}
    result |= {"steps": settings.steps, "curve": curve, "settings": settings.to_json()}
    result |= {"wall_seconds": {"total": round(time.monotonic() - begun, 2)}}
    save_result(path, {**result, **origin(torch.device(settings.device))})
    return curve


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="a Gymnasium task")
    parser.add_argument("--algo", default="sac", choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--every", type=int, default=5_000, help="environment steps between evaluations")
    parser.add_argument("--episodes", type=int, default=10, help="per evaluation")
    parser.add_argument("--random-steps", type=int, default=5_000)
    parser.add_argument("--policy-by", default="smaller", choices=("smaller", "mean"), help="which value of critics")
    parser.add_argument("--init", default="torch", choices=("torch", "xavier"), help="how weights are drawn")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="seeds at a time (one per core)")
    parser.add_argument("--device", default="cpu", help="where to learn")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    try:
        args.device = str(resolve_device(args.device))
        args.settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
        whole_number("workers", args.workers)
        Task.named(args.env)
        if args.env not in gym.registry:
            raise ValueError(f"env: expected a task of Gymnasium, got {args.env!r}")
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
            print(f"{path} is there already")
            return 0
        make_folder_of(path)
        curve = run_to_file(path, settings, args.workers)
    except (ValueError, OSError) as error:
        return exit_with_error(2, error)
    except KeyboardInterrupt:
        return exit_with_error(130, f"{path}: was interrupted, nothing of it is written")
    except BrokenProcessPool:
        return exit_with_error(1, f"{path}: a process that learns has died, nothing of it is written")
    for point in curve:
        print(f"{settings.env} step {point['step']:,}: {mean_and_spread(point['returns'], 1)}")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
