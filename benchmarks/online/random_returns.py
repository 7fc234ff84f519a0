"""Returns of a policy with uniform actions: the lower ends of score ranges that no publication states for our tasks.

    python -m synther_replay.benchmarks.online.random_returns --out benchmarks/results/online/random-returns.json

prints the mean of each task and writes all returns.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.common.command_line import exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.environments.tasks import Task
from synther_replay.common.checks import whole_number

TASKS = ("Ant-v4", "Ant-v5", "Humanoid-v4", "Humanoid-v5")


class RandomPolicy:
    """Uniform actions ``(action_dim,)`` in [-1, 1], in place of the mean action of a trained policy."""

    def __init__(self, action_dim: int, seed: int) -> None:
        """Draw all actions from one generator."""
        self.action_dim, self._generator = action_dim, np.random.default_rng(seed)

    def mean_action(self, observation: np.ndarray) -> np.ndarray:
        """The next action, whatever is observed."""
        return self._generator.uniform(-1, 1, self.action_dim).astype(np.float32)


def random_returns(task: str, episodes: int) -> list[float]:
    """Returns of `episodes` episodes with random actions, each with a seed of its own."""
    action_dim = Task.named(task).action_dim
    return [mean_return(task, RandomPolicy(action_dim, seed), seed, 1) for seed in range(episodes)]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=TASKS, help=f"tasks ({', '.join(TASKS)})")
    parser.add_argument("--episodes", type=int, default=200, help="episodes per task (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="result file")
    args = parser.parse_args()
    try:
        whole_number("--episodes", args.episodes)
        make_folder_of(args.out)
        returns = {task: random_returns(task, args.episodes) for task in args.envs}
        settings = {"envs": args.envs, "episodes": args.episodes}
        write_json(args.out, {"settings": settings, "returns": returns, **origin(torch.device("cpu"))})
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        return exit_with_error(2, error)
    for task, found in returns.items():
        print(f"{task}: {np.mean(found):.1f} +- {np.std(found) / np.sqrt(len(found)):.1f} (standard error)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
