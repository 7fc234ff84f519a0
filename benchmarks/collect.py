"""Collect replay data of a part-trained policy on a Gymnasium task, for the fidelity measurements.

The data set is what a replay buffer of a running agent looks like: every transition of a Stable-Baselines3 SAC
run, then rollouts of the stochastic policies it had on the way, an equal share from each checkpoint.

    python benchmarks/collect.py --env HalfCheetah-v5 --train-steps 80000 --rows 100000 --out .data/halfcheetah.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from reporting import make_folder_of, writing
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

Row = tuple[np.ndarray, np.ndarray, float, np.ndarray, bool]


class Checkpoints(BaseCallback):
    """Keeps a copy of the policy weights every `every` environment steps."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.weights: list[dict[str, torch.Tensor]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.weights.append({k: v.clone() for k, v in self.model.policy.state_dict().items()})
        return True


def rollout(model: SAC, env_name: str, count: int, seed: int) -> list[Row]:
    """`count` transitions of the stochastic policy, actions in the environment's own units."""
    env = gym.make(env_name)
    rows: list[Row] = []
    observation, _ = env.reset(seed=seed)
    while len(rows) < count:
        action, _ = model.predict(observation, deterministic=False)
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, float(reward), following, terminated))
        observation = env.reset()[0] if terminated or truncated else following
    return rows


def collect(env_name: str, train_steps: int, count: int, seed: int) -> dict[str, np.ndarray]:
    """Arrays `observations, actions, rewards, next_observations, terminated` with `count` rows each."""
    model = SAC("MlpPolicy", gym.make(env_name), seed=seed, learning_starts=5_000, device="cpu")
    checkpoints = Checkpoints(every=max(train_steps // 6, 1))
    model.learn(train_steps, callback=checkpoints)

    buffer = model.replay_buffer
    assert buffer is not None
    used = min(buffer.size(), count)
    ended = buffer.dones[:used, 0] * (1 - buffer.timeouts[:used, 0])
    arrays = {
        "observations": buffer.observations[:used, 0],
        # SB3 stores actions scaled to [-1, 1]
        "actions": model.policy.unscale_action(buffer.actions[:used, 0]),
        "rewards": buffer.rewards[:used, 0],
        "next_observations": buffer.next_observations[:used, 0],
        "terminated": ended > 0.5,
    }
    parts = [tuple(arrays.values())]
    for k, weights in enumerate(checkpoints.weights):
        missing = count - sum(len(p[2]) for p in parts)
        share = missing // (len(checkpoints.weights) - k)
        if share:
            model.policy.load_state_dict(weights)
            rows = rollout(model, env_name, share, seed + 1_000 + k)
            parts.append(tuple(np.stack(column) for column in zip(*rows, strict=True)))
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    dtypes = (np.float32, np.float32, np.float32, np.float32, np.bool_)
    return {name: c.astype(t) for name, c, t in zip(arrays, columns, dtypes, strict=True)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--train-steps", type=int, default=80_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        gym.make(args.env).close()
        make_folder_of(args.out)
    except (gym.error.Error, ImportError, ValueError) as error:
        parser.error(str(error))
    data = collect(args.env, args.train_steps, args.rows, args.seed)
    with writing(args.out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, env=args.env, **data)
    print(f"{len(data['rewards'])} rows of {args.env}, mean reward {data['rewards'].mean():.3f} -> {args.out}")


if __name__ == "__main__":
    main()
