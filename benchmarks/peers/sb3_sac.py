"""SAC in Stable-Baselines3 on a task of online_dmc.py, to check our learner and the adapter.

    python -m synther_replay.benchmarks.peers.sb3_sac --env Hopper-v5 --seeds 8 --steps 30000
    python -m synther_replay.benchmarks.peers.sb3_sac --env Hopper-v5 --seeds 4 --steps 30000 --algo synther

Writes ``results/online/Hopper-v5/sb3-sac.json`` and ``sb3-synther-tiny.json`` (on a GPU ``sb3-synther-fast.json``), to
compare with ``sac.json`` and ``synther-fast.json`` of online_dmc.py. Each seed runs in its own process. A run that was
stopped, by ``--time-limit`` or Ctrl-C, resumes with the same command, with a new episode.

Algorithms:
    sac      SAC of Stable-Baselines3
    sac20    our FastSAC, 20 updates per environment step, the actor updated after the last
    synther  the same with SynthERBuffer
    buffer   SAC of Stable-Baselines3 with SynthERBuffer and nothing else changed

Two things differ from our learner by design. The actor of Stable-Baselines3 maximises the smaller of two critics; ours
maximises their mean, as in the REDQ code base. The initial weights have other scales. ``--policy-by mean`` and ``--init
xavier`` remove these differences (``sb3-sac-mean-xavier.json``).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import torch

from synther_replay.benchmarks.common.command_line import add_run_options, exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.common.formatting import mean_and_spread
from synther_replay.benchmarks.common.generator_settings import PRESETS
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.resumable import is_done, resume_hint, save_result
from synther_replay.benchmarks.environments.tasks import Task
from synther_replay.benchmarks.peers.sb3_agent import ALGORITHMS, POLICIES, Progress, Settings, has_buffer, train
from synther_replay.common.checks import resolve_device, whole_number

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core per seed

RESULTS = Path("results", "online")


class RunSettings(Protocol):
    """What is asked of the settings of a run."""

    @property
    def env(self) -> str:
        """Name of the task."""

    @property
    def name(self) -> str:
        """Algorithm and variant, used as file name."""

    @property
    def preset(self) -> str | None:
        """Preset of the generator; None without one."""

    @property
    def first_seed(self) -> int:
        """Seed of the first agent."""

    @property
    def seeds(self) -> int:
        """Number of agents."""

    @property
    def steps(self) -> int:
        """Environment steps per agent."""

    @property
    def utd(self) -> float:
        """Gradient steps per environment step."""

    @property
    def device(self) -> str:
        """Device of the learner."""

    def to_json(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON values."""


def checkpoints(path: Path, settings: RunSettings) -> dict[int, Path]:
    """Checkpoint of each seed, next to the result."""
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    return {seed: path.with_name(f".{path.stem}-{seed}.checkpoint") for seed in seeds}


def run_to_file(
    train: Callable[..., Progress], path: Path, settings: RunSettings, workers: int, **limits: Any
) -> list[Progress]:
    """Run `train` for all seeds in `workers` processes; write the result if all are finished."""
    started = time.monotonic()
    files = checkpoints(path, settings)
    with WorkerPool(min(settings.seeds, workers)) as pool:
        futures = [pool.submit(train, settings, seed, file, started=started, **limits) for seed, file in files.items()]
        agents = [future.result() for future in futures]
    if all(agent.step == settings.steps for agent in agents):
        result = result_of(settings, list(files), agents)
        save_result(path, {**result, **origin(torch.device(settings.device))})
        for file in files.values():
            file.unlink(missing_ok=True)
    return agents


def result_of(settings: RunSettings, seeds: list[int], agents: list[Progress]) -> dict[str, Any]:
    """The result as JSON values."""
    steps = sorted(agents[0].returns)
    curve = [{"step": step, "returns": [round(agent.returns[step], 2) for agent in agents]} for step in steps]
    return {
        "env": settings.env,
        "algo": settings.name,
        "preset": settings.preset,
        "seeds": seeds,
        "utd": settings.utd,
        "steps": settings.steps,
        "curve": curve,
        "resumed_at": [agent.resumed_at for agent in agents],
        "settings": settings.to_json(),
        "wall_seconds": {"total": round(max(agent.seconds for agent in agents), 2)},
    }


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="a Gymnasium task")
    parser.add_argument("--algo", default="sac", choices=ALGORITHMS)
    parser.add_argument("--preset", choices=PRESETS, help="generator and refit preset (GPU: fast, CPU: tiny)")
    parser.add_argument("--policy", default="MlpPolicy", choices=POLICIES, help="policy and critics (%(default)s)")
    parser.add_argument("--seeds", type=int, default=8, help="number of agents (8)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first agent; the others count up (0)")
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
    add_run_options(parser)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (%(default)s)")
    args = parser.parse_args()
    try:
        device = resolve_device(args.device)
        args.device = str(device)
        if has_buffer(args.algo) and args.preset is None:  # the defaults of `SynthERBuffer`
            args.preset = "fast" if device.type == "cuda" else "tiny"
        args.workers = os.cpu_count() or 1 if args.workers is None else args.workers
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
    limits = {"time_limit": args.time_limit, "checkpoint_every": args.checkpoint_every}
    return run(train, args.settings, args.out, args.workers, **limits)


def run(train: Callable[..., Progress], settings: RunSettings, out: Path, workers: int, **limits: Any) -> int:
    """Train all agents and report; returns the exit status.

    Args:
        train: Trains one agent, given settings, seed, its checkpoint, `started` and the limits.
        settings: Settings of the run.
        out: Folder of the results.
        workers: Number of processes.
        limits: Passed on to `train`.
    """
    path = out / settings.env / f"{settings.name}.json"
    try:
        if is_done(path, settings):
            print(f"{path}: already exists")
            return 0
        make_folder_of(path)
        agents = run_to_file(train, path, settings, workers, **limits)
    except (ValueError, OSError) as error:
        return exit_with_error(2, error)
    except KeyboardInterrupt:
        return exit_with_error(130, f"{path}: interrupted; {_hint(path, settings)}")
    except BrokenProcessPool:
        return exit_with_error(1, f"{path}: a worker process died; {_hint(path, settings)}")
    if not path.exists():
        reached = min(agent.step for agent in agents)
        print(f"stopped at step {reached:,} of {settings.steps:,}; run the same command to resume")
        return 0
    for step in sorted(agents[0].returns):
        returns = [agent.returns[step] for agent in agents]
        print(f"{settings.env} step {step:,}: {mean_and_spread(returns, 1)}")
    print(path)
    return 0


def _hint(path: Path, settings: RunSettings) -> str:
    files = list(checkpoints(path, settings).values())
    return resume_hint(next((file for file in files if file.exists()), files[0]))


if __name__ == "__main__":
    sys.exit(main())
