"""Upsample a small set of transitions tenfold and measure the fidelity.

Collects transitions of Pendulum-v1 with a noisy controller, fits the generator, generates ten times as many rows,
prints their fidelity and plots the marginals.

    python examples/upsample.py
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from plotting import draw_marginals

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.metrics import fidelity


def collect(env: gym.Env, count: int, seed: int) -> Transitions:
    """Collect transitions of a noisy swing-up controller: pump energy below, balance above."""
    rng = np.random.default_rng(seed)
    rows = []
    observation, _ = env.reset(seed=seed)
    for _ in range(count):
        cos, sin, speed = observation
        upright = -10.0 * np.arctan2(sin, cos) - 2.0 * speed
        push = upright if cos > 0.8 else 2.0 * np.sign(speed)
        action = np.clip([push + rng.normal()], -2.0, 2.0).astype(np.float32)
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, reward, following, terminated))
        observation = env.reset()[0] if terminated or truncated else following
    spec = TransitionSpec.from_spaces(env.observation_space, env.action_space)
    return Transitions.from_arrays(spec, *(np.stack(column) for column in zip(*rows, strict=True)))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000, help="real transitions to collect")
    parser.add_argument("--steps", type=int, default=8_000, help="training steps of the generator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo_output/marginals.png"), help="output file of the figure")
    args = parser.parse_args()

    torch.set_num_threads(1)  # more threads are slower for small networks

    env = gym.make("Pendulum-v1")
    real = collect(env, args.rows, args.seed)
    fresh = collect(env, args.rows, args.seed + 1)
    print(f"collected {len(real):,} real transitions of Pendulum-v1")

    generator = DiffusionGenerator(real.spec, GeneratorConfig.tiny(), device="auto", seed=args.seed)
    report = generator.fit(real, steps=args.steps, progress=True)
    print(f"fitted {generator.parameters:,} parameters in {report.steps:,} steps and {report.seconds:.0f} s")

    begun = time.monotonic()
    synthetic = generator.sample(10 * len(real))
    print(f"generated {len(synthetic):,} transitions in {time.monotonic() - begun:.1f} s\n")

    print("fidelity of synthetic transitions")
    print(fidelity(real, synthetic, held_out=fresh, warn=False))
    print("\nfor reference: fidelity of new real transitions")
    print(fidelity(real, fresh, warn=False))

    figure = args.out if args.out.suffix else args.out.with_suffix(".png")
    draw_marginals(real, synthetic, figure)
    print(f"\nmarginals of real and synthetic transitions: {figure}")


if __name__ == "__main__":
    main()
