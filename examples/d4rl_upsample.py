"""Upsample a raw file of D4RL.

Such a file has no next observations: the one of row i is the observation of row i + 1, except at the end of an episode.
`synther_replay.files` pairs rows by the rule of `d4rl.qlearning_dataset`, and writes generated transitions so that this
function reads them back whole. One command does the same:

    synther upsample hopper_medium-v2.hdf5 hopper_synthetic.hdf5 --rows 5M

    python examples/d4rl_upsample.py hopper_medium-v2.hdf5

Without a file, one is recorded in Pendulum-v1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import torch

from synther_replay import DiffusionGenerator
from synther_replay.files import open_file, read, write
from synther_replay.metrics import fidelity


def record(path: Path, rows: int, seed: int) -> None:
    """Record rows of random actions as D4RL's files have them."""
    env = gym.make("Pendulum-v1")
    env.action_space.seed(seed)
    data: dict[str, list] = {key: [] for key in ("observations", "actions", "rewards", "terminals", "timeouts")}
    observation, _ = env.reset(seed=seed)
    for _ in range(rows):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        for values, value in zip(data.values(), (observation, action, reward, terminated, truncated), strict=True):
            values.append(value)
        observation = env.reset()[0] if terminated or truncated else following
    with h5py.File(path, "w") as file:
        for key, values in data.items():
            file.create_dataset(key, data=np.array(values), compression="gzip")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a raw file of D4RL")
    parser.add_argument("--episode-steps", type=int, help="time limit of episodes, for files without timeouts")
    parser.add_argument("--real", type=int, default=4_000, help="rows to record without a file")
    parser.add_argument("--rows", type=int, default=20_000, help="transitions to generate")
    parser.add_argument("--steps", type=int, default=2_000, help="training steps of the generator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo_output/synthetic.hdf5"))
    args = parser.parse_args()

    torch.set_num_threads(1)  # more threads are slower for small networks
    args.out.parent.mkdir(parents=True, exist_ok=True)
    path = args.file or args.out.with_name("pendulum_raw.hdf5")
    if args.file is None:
        record(path, args.real, args.seed)

    file = open_file(path, episode_steps=args.episode_steps)
    real = file.read()
    print(f"{path.name}: {len(real):,} transitions in {file.rows:,} rows")

    generator = DiffusionGenerator(real.spec, "tiny", seed=args.seed)
    generator.fit(real, steps=args.steps)
    synthetic = generator.sample(args.rows)
    print(fidelity(real, synthetic, warn=False))

    write(args.out, synthetic, about={"source": path.name, "seed": args.seed})
    print(f"{args.out}: {len(read(args.out)):,} transitions read back by the rule of d4rl.qlearning_dataset")


if __name__ == "__main__":
    main()
