"""Upsample a data set of Minari.

Records some episodes of Pendulum-v1 as a data set of Minari, fits the generator to it and writes generated transitions
as a second one. With an installed data set, one command does the same:

    synther upsample D4RL/pen/human-v2 minari:pen/synthetic-v0 --times 10

    python examples/minari_upsample.py
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import gymnasium as gym
import minari
import torch
from minari.data_collector import EpisodeBuffer

from synther_replay import DiffusionGenerator
from synther_replay.files import open_file, write
from synther_replay.metrics import fidelity

REAL, SYNTHETIC = "pendulum/random-v0", "pendulum/synthetic-v0"


def record(episodes: int, seed: int) -> None:
    """Record episodes of random actions."""
    env = gym.make("Pendulum-v1")
    env.action_space.seed(seed)
    buffers = [episode(env, seed + number) for number in range(episodes)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # author, code and further fields are optional
        minari.create_dataset_from_buffers(REAL, buffers, env=env, algorithm_name="random actions")


def episode(env: gym.Env, seed: int) -> EpisodeBuffer:
    """Record one episode."""
    observation, _ = env.reset(seed=seed)
    observations, steps = [observation], []
    ended = False
    while not ended:
        action = env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        steps.append((action, reward, terminated, truncated))
        ended = terminated or truncated
    actions, rewards, terminations, truncations = (list(column) for column in zip(*steps, strict=True))
    return EpisodeBuffer(
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
    )


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("demo_output/minari"), help="where the data sets are kept")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--rows", type=int, default=5_000, help="transitions to generate")
    parser.add_argument("--steps", type=int, default=2_000, help="training steps of the generator")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # more threads are slower for small networks
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ["MINARI_DATASETS_PATH"] = str(args.folder.resolve())
    if not (args.folder / REAL).exists():
        record(args.episodes, args.seed)

    file = open_file(REAL)
    real = file.read()
    print(f"{REAL}: {len(real):,} transitions, {file.spec.observation_space}, {file.spec.action_space}")

    generator = DiffusionGenerator(real.spec, "tiny", seed=args.seed)
    generator.fit(real, steps=args.steps)
    synthetic = generator.sample(args.rows)
    print(fidelity(real, synthetic, warn=False))

    write(f"minari:{SYNTHETIC}", synthetic, about={"source": REAL, "seed": args.seed})
    loaded = minari.load_dataset(SYNTHETIC)
    print(f"{SYNTHETIC}: {loaded.total_steps:,} steps in {loaded.total_episodes:,} episodes of one step")


if __name__ == "__main__":
    main()
