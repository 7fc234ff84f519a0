"""Stable-Baselines3's SAC on Pendulum-v1 with and without synthetic replay: same seeds, steps and updates.

Prints returns during training, one line per refit and a final table. Plots learning curves and marginals.

    python examples/sb3_pendulum.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from plotting import draw_curves, draw_marginals
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

from synther_replay import GeneratorConfig, RetrainSchedule, Transitions
from synther_replay.adapters.sb3 import SynthERBuffer, SynthERCallback
from synther_replay.metrics import fidelity

# The options that add synthetic replay to a script.
SYNTHER: dict[str, Any] = {
    "replay_buffer_class": SynthERBuffer,
    "replay_buffer_kwargs": {
        "schedule": RetrainSchedule(start=400, every=400, rows=20_000),
        "generator": GeneratorConfig.tiny(steps=2_000),  # enough for three observations
    },
}
VARIANTS: dict[str, dict[str, Any]] = {"SAC": {}, "SAC + SynthER": SYNTHER}


def train(job: tuple[str, int], *, steps: int, updates: int, every: int) -> tuple[list[float], Any]:
    """Run one seed; return the returns after every `every` steps, and the final real and synthetic rows."""
    name, seed = job
    torch.set_num_threads(1)  # more threads are slower for small networks
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=1e-3,
        batch_size=128,
        gradient_steps=updates,
        learning_starts=200,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
        **VARIANTS[name],
    )
    test = gym.make("Pendulum-v1")
    callback = SynthERCallback(verbose=1) if name != "SAC" else None
    returns = []
    begun = time.monotonic()
    for _ in range(steps // every):
        model.learn(every, callback=callback, reset_num_timesteps=False)
        test.reset(seed=100)  # the same episodes in every evaluation
        returns.append(float(evaluate_policy(model, test, n_eval_episodes=5, warn=False)[0]))
        spent = time.monotonic() - begun
        print(
            f"{name:14} seed {seed}  step {model.num_timesteps:5}  return {returns[-1]:7.0f}  {spent:4.0f} s",
            flush=True,
        )
    source = getattr(model.replay_buffer, "source", None)
    rows = None if source is None or not len(source.store) else (source.real.transitions(), source.store.rows)
    return returns, rows


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_600, help="environment steps of each run")
    parser.add_argument("--updates", type=int, default=4, help="gradient steps per environment step")
    parser.add_argument("--every", type=int, default=200, help="environment steps between evaluations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs")
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="output folder of the figures")
    args = parser.parse_args()

    jobs = [(name, seed) for seed in range(args.seeds) for name in VARIANTS]
    run = partial(train, steps=args.steps, updates=args.updates, every=args.every)
    print(f"{len(jobs)} runs of {args.steps:,} steps with {args.updates} updates each, {args.jobs} at a time\n")
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        results = dict(zip(jobs, pool.imap(run, jobs), strict=True))
        pool.close()  # leaving `with` alone terminates the workers, which may leak semaphores
        pool.join()

    curves = {name: np.array([results[name, seed][0] for seed in range(args.seeds)]) for name in VARIANTS}
    steps = [args.every * (k + 1) for k in range(args.steps // args.every)]
    print("\n| steps | " + " | ".join(VARIANTS) + " |\n|---|" + "---|" * len(VARIANTS))
    for k, step in enumerate(steps):
        cells = [f"{returns[:, k].mean():.0f} +- {returns[:, k].std():.0f}" for returns in curves.values()]
        print(f"| {step} | " + " | ".join(cells) + " |")
    means = [f"{returns.mean():.0f}" for returns in curves.values()]
    print("| mean of the curve | " + " | ".join(means) + f" |\n\nmean +- standard deviation over {args.seeds} seeds")
    title = f"Pendulum-v1, SAC with {args.updates} updates per step"
    draw_curves(steps, curves, args.out / "curves.png", title)
    figures = [args.out / "curves.png"]

    rows = results["SAC + SynthER", 0][1]
    if rows is not None:
        real, synthetic = rows[0], Transitions(rows[0].spec, rows[1])
        print(f"\nfidelity of the synthetic transitions at the end of seed 0\n{fidelity(real, synthetic, warn=False)}")
        draw_marginals(real, synthetic, args.out / "marginals.png")
        figures.append(args.out / "marginals.png")
    print(f"\nfigures: {', '.join(map(str, figures))}")


if __name__ == "__main__":
    main()
