"""Hindsight experience replay with and without synthetic rows, on a small goal task: same seeds, steps and updates.

The tip of an arm with two joints has to reach a goal; the reward is 0 near the goal and -1 elsewhere. Prints success
rates.

    python examples/sb3_her.py
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import SAC, HerReplayBuffer

from synther_replay.adapters.sb3 import SynthERHerBuffer

GENERATOR = {"preset": "tiny", "steps": 2_000}
SYNTHER = {"schedule": {"start": 500, "every": 500, "rows": 20_000}, "generator": GENERATOR}
VARIANTS: dict[str, dict[str, Any]] = {
    "HER": {"replay_buffer_class": HerReplayBuffer},
    "HER + SynthER": {"replay_buffer_class": SynthERHerBuffer, "replay_buffer_kwargs": SYNTHER},
}
EPISODE = 25  # steps
NEAR = 0.15  # distance to the goal that counts as a success


class Arm(gym.Env):
    """An arm with two joints in the plane; the action turns them, the goal is a place for its tip."""

    def __init__(self) -> None:
        """Set the spaces."""
        plane = spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            observation=spaces.Box(-1.0, 1.0, (4,), np.float32), achieved_goal=plane, desired_goal=plane
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Turn the joints anyhow; the goal is where the tip would be at other angles."""
        super().reset(seed=seed)
        self.angles, others = self.np_random.uniform(-np.pi, np.pi, (2, 2))
        self.goal = _tip(others)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> Any:
        """Turn the joints by at most 0.3."""
        self.angles = self.angles + 0.3 * np.clip(action, -1, 1)
        found = self._observe()
        reward = self.compute_reward(found["achieved_goal"], found["desired_goal"], {})
        return found, float(reward), False, False, {"is_success": bool(reward == 0)}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        """0 near the goal, otherwise -1."""
        near: np.ndarray = np.linalg.norm(achieved - desired, axis=-1) < NEAR
        return near.astype(np.float32) - 1.0

    def _observe(self) -> dict[str, np.ndarray]:
        joints = np.concatenate([np.cos(self.angles), np.sin(self.angles)])
        found = {"observation": joints, "achieved_goal": _tip(self.angles), "desired_goal": self.goal}
        return {key: value.astype(np.float32) for key, value in found.items()}


def _tip(angles: np.ndarray) -> np.ndarray:
    """Return the place of the tip of two links of length 1."""
    first, both = angles[0], angles[0] + angles[1]
    return np.array([np.cos(first) + np.cos(both), np.sin(first) + np.sin(both)])


def success_rate(model: SAC, episodes: int) -> float:
    """Return the share of episodes that end near the goal; the same episodes in every call."""
    env, reached = TimeLimit(Arm(), EPISODE), 0
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 + episode)
        ended, info = False, {}
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, _, _, ended, info = env.step(action)
        reached += info["is_success"]
    return reached / episodes


def train(job: tuple[str, int], *, steps: int, updates: int, every: int, episodes: int) -> dict[str, Any]:
    """Run one seed; return the success rates after every `every` steps."""
    name, seed = job
    torch.set_num_threads(1)  # more threads are slower for small networks
    model = SAC(
        "MultiInputPolicy",
        TimeLimit(Arm(), EPISODE),
        learning_rate=1e-3,
        batch_size=128,
        gamma=0.95,
        gradient_steps=updates,
        learning_starts=250,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
        **VARIANTS[name],
    )
    rates, begun = [], time.monotonic()
    for _ in range(steps // every):
        model.learn(every, reset_num_timesteps=False)
        rates.append(success_rate(model, episodes))
        spent = time.monotonic() - begun
        print(
            f"{name:14} seed {seed}  step {model.num_timesteps:5}  success {rates[-1]:.2f}  {spent:4.0f} s", flush=True
        )
    return {"variant": name, "seed": seed, "success": rates, "seconds": time.monotonic() - begun}


def _write(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Write all results so far."""
    from synther_replay.benchmarks.common.provenance import origin

    settings = {key: value for key, value in vars(args).items() if key != "json"}
    found = {**origin(torch.device("cpu")), "settings": settings, "synther": SYNTHER, "runs": runs}
    args.json.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_500, help="environment steps of each run")
    parser.add_argument("--updates", type=int, default=4, help="gradient steps per environment step")
    parser.add_argument("--every", type=int, default=250, help="environment steps between evaluations")
    parser.add_argument("--episodes", type=int, default=50, help="episodes of an evaluation")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs")
    parser.add_argument("--json", type=Path, help="file for all success rates, with machine, versions and command")
    args = parser.parse_args()

    jobs = [(name, seed) for seed in range(args.seeds) for name in VARIANTS]
    run = partial(train, steps=args.steps, updates=args.updates, every=args.every, episodes=args.episodes)
    runs: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for one in pool.imap(run, jobs):
            runs.append(one)
            if args.json:
                _write(args, runs)
        pool.close()  # leaving `with` alone terminates the workers, which may leak semaphores
        pool.join()

    curves = {name: np.array([one["success"] for one in runs if one["variant"] == name]) for name in VARIANTS}
    print("\n| steps | " + " | ".join(VARIANTS) + " |\n|---|" + "---|" * len(VARIANTS))
    for k in range(args.steps // args.every):
        cells = [f"{rates[:, k].mean():.2f} +- {rates[:, k].std():.2f}" for rates in curves.values()]
        print(f"| {args.every * (k + 1)} | " + " | ".join(cells) + " |")
    means = [f"{rates.mean():.2f} +- {rates.mean(1).std():.2f}" for rates in curves.values()]
    print("| mean of the curve | " + " | ".join(means) + f" |\n\nmean +- standard deviation over {args.seeds} seeds")


if __name__ == "__main__":
    main()
