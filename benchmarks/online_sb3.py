"""SAC in Stable-Baselines3 on a task of online_dmc.py: a check on our learner, and what the adapter gives its users.

    python benchmarks/online_sb3.py --env Hopper-v5 --seeds 8 --steps 30000
    python benchmarks/online_sb3.py --env Hopper-v5 --seeds 4 --steps 30000 --algo synther

write ``benchmarks/results/online/Hopper-v5/sb3-sac.json`` and ``sb3-synther.json``, to be held against ``sac.json`` and
``synther-fast.json`` beside them. `sac` is Stable-Baselines3's own, `sac20` our `FastSAC` with 20 updates per step and
`synther` the same with `SynthERBuffer`. Each seed has a process of its own. Two things differ from our learner by
design: in Stable-Baselines3 the actor learns by the smaller of two critics, in ours by their mean as in the REDQ code
base, and the initial weights have other scales. ``--policy-by mean`` and ``--init xavier`` take these differences away
for `sac` (``sb3-sac-mean-xavier.json``).
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core per seed

import gymnasium as gym
import numpy as np
import torch
from evaluation import mean_return
from policies import Policy
from reporting import origin, write_json
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from tasks import Task, agent_seed
from workers import worker_context

from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer
from synther_replay.checks import resolve_device, whole_number

RESULTS = Path(__file__).parent / "results" / "online"
_MANY: dict[str, Any] = {"gradient_steps": 20, "policy_delay": 20}
ALGORITHMS: dict[str, tuple[type[SAC], dict[str, Any]]] = {
    "sac": (SAC, {}),
    "sac20": (FastSAC, _MANY),
    "synther": (FastSAC, {**_MANY, "replay_buffer_class": SynthERBuffer}),
}


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


def run(
    task: Task,
    seed: int,
    *,
    steps: int,
    every: int,
    episodes: int,
    random_steps: int,
    algo: str = "sac",
    policy_by: str = "smaller",
    init: str = "torch",
    device: str = "cpu",
) -> dict[int, float]:
    """Train one agent; returns by step."""
    torch.set_num_threads(1)
    build, options = ALGORITHMS[algo]
    model = build(
        "MlpPolicy",
        gym.make(task.name),
        learning_starts=random_steps,
        target_entropy=task.target_entropy,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device=device,
        **options,
    )
    if init == "xavier":
        _begin_as_redq(model)
    if policy_by == "mean":
        model.critic.register_forward_hook(_mean_for_the_actor)
    evaluations = Evaluations(task.name, every, episodes, agent_seed(seed))
    model.learn(steps, callback=evaluations)
    return evaluations.returns


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
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        for name in ("seeds", "steps", "every", "episodes", "random_steps", "workers"):
            whole_number(name, getattr(args, name))
        args.device, args.task = resolve_device(args.device), Task.named(args.env)
        if args.env not in gym.registry:
            raise ValueError(f"env: expected a task of Gymnasium, got {args.env!r}")
        if args.algo != "sac" and (args.policy_by, args.init) != ("smaller", "torch"):
            raise ValueError(f"algo: only sac takes --policy-by and --init, got {args.algo}")
    except ValueError as error:
        parser.error(str(error))
    return args


def main() -> None:
    """Command line."""
    args, begun = parse(), time.monotonic()
    names = ("steps", "every", "episodes", "random_steps", "algo", "policy_by", "init")
    sizes = {**{name: getattr(args, name) for name in names}, "device": str(args.device)}
    seeds = range(args.seeds)
    with ProcessPoolExecutor(min(args.seeds, args.workers), mp_context=worker_context()) as pool:
        runs = [future.result() for future in [pool.submit(run, args.task, seed, **sizes) for seed in seeds]]
    curve = [{"step": step, "returns": [round(returns[step], 2) for returns in runs]} for step in runs[0]]
    unusual = [value for value in (args.policy_by, args.init) if value in ("mean", "xavier")]
    name, utd = "-".join((f"sb3-{args.algo}", *unusual)), ALGORITHMS[args.algo][1].get("gradient_steps", 1)
    result = {"env": args.env, "algo": name, "preset": None, "seeds": list(seeds), "utd": utd, "steps": args.steps}
    wall = {"total": round(time.monotonic() - begun, 2)}
    path = args.out / args.env / f"{name}.json"
    write_json(path, {**result, "curve": curve, "wall_seconds": wall, **origin(args.device)})
    for point in curve:
        print(f"{args.env} step {point['step']:,}: {np.mean(point['returns']):.1f} +- {np.std(point['returns']):.1f}")
    print(path)


if __name__ == "__main__":
    main()
