"""Pixel benchmark: BC and DrQ+BC on frames, and heads trained on real and on synthetic latents.

    python benchmarks/offline_pixels.py record --dataset walker-walk-medium
    python benchmarks/offline_pixels.py train latents heads --dataset walker-walk-medium --algo drqbc --seeds 0
    python benchmarks/offline_pixels.py evaluate --dataset walker-walk-medium --algo drqbc --seeds 0

Stages:
    record    episodes of state policies, as frames; needs OSMesa and no GPU
    train     an agent of images on the frames
    latents   a generator of the agent's latents
    heads     new heads on real and on synthetic latents
    evaluate  returns of all policies; needs OSMesa and no GPU

Each stage keeps its files in ``--work`` and continues there with the same command. Results are
``<work>/<dataset>/<algo>-<seed>.json``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.command_line import (
    add_generator_options,
    add_run_options,
    exit_with_error,
    setting,
)
from synther_replay.benchmarks.common.generator_settings import GENERATOR_PRESETS
from synther_replay.benchmarks.pixels.codec import CodecSettings
from synther_replay.benchmarks.pixels.evaluate import evaluate
from synther_replay.benchmarks.pixels.rendering import RenderSettings
from synther_replay.benchmarks.pixels.settings import (
    ALGORITHMS,
    HEADS,
    WORK,
    HeadSettings,
    LatentSettings,
    LearnerSettings,
    Places,
    RecordSettings,
)
from synther_replay.benchmarks.pixels.stages import Data, NotYetError, Run, prepare_device
from synther_replay.benchmarks.pixels.training import Limits
from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.errors import CheckpointError, DivergedError, GenerationError

os.environ.setdefault("OMP_NUM_THREADS", "1")  # there is one process per core

STAGES = ("record", "train", "latents", "heads", "evaluate")
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"preset": "offline", "updates": 100_000, "rows": 5_000_000},
    "cpu": {"preset": "tiny", "updates": 1_000, "rows": 50_000},
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--dataset", required=True, help="task and level, for example walker-walk-medium")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of all files (%(default)s)")
    recording = parser.add_argument_group("record")
    recording.add_argument("--episodes", type=int, default=200, help="number of episodes (200)")
    recording.add_argument("--steps", type=int, default=500, help="actions of an episode, at most (500)")
    recording.add_argument("--policies", type=Path, help="folder of the behaviour policies (those in benchmarks/data)")
    recording.add_argument("--render", action="append", default=[], metavar="NAME=VALUE", help="see RenderSettings")
    recording.add_argument("--codec", action="append", default=[], metavar="NAME=VALUE", help="see CodecSettings")
    learning = parser.add_argument_group("train, latents, heads, evaluate")
    learning.add_argument("--algo", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    learning.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the runs (0)")
    learning.add_argument("--updates", type=int, help="updates of agents (GPU: 100,000, CPU: 1,000)")
    learning.add_argument("--head-updates", type=int, help="updates of heads (as --updates)")
    learning.add_argument(
        "--learner", action="append", default=[], metavar="NAME=VALUE", help="override a hyper-parameter"
    )
    learning.add_argument("--data", nargs="+", default=list(HEADS), choices=HEADS, help="latents for heads (both)")
    learning.add_argument("--rows", type=int, help="synthetic latents (GPU: 5,000,000, CPU: 50,000)")
    add_generator_options(learning, GENERATOR_PRESETS, "generator preset (GPU: offline, CPU: tiny)")
    learning.add_argument("--returns", type=int, default=10, help="episodes of the evaluation (10)")
    add_run_options(parser)
    args = parser.parse_args()
    try:
        args.device = resolve_device(args.device)
        for name in ("returns", *(["workers"] if args.workers is not None else [])):
            whole_number(name, getattr(args, name))
        args.workers = args.workers or os.cpu_count() or 1
        args.deadline = None if args.time_limit is None else time.monotonic() + args.time_limit
        args.recording = record_settings(args)
        defaults = _DEFAULTS.get(args.device.type, _DEFAULTS["cpu"])
        for name, value in defaults.items():
            if getattr(args, name) is None:
                setattr(args, name, value)
        for algo in args.algo:
            for seed in args.seeds:
                learner_settings(args, algo, seed, args.updates)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    return args


def record_settings(args: argparse.Namespace) -> RecordSettings:
    """What the stage record makes."""
    task, _, level = args.dataset.rpartition("-")
    render = RenderSettings(**dict(setting(text, "--render") for text in args.render))
    codec = CodecSettings(**dict(setting(text, "--codec") for text in args.codec))
    return RecordSettings(task, level, args.episodes, args.steps, render=render, codec=codec)


def learner_settings(args: argparse.Namespace, algo: str, seed: int, updates: int) -> LearnerSettings:
    """Settings of one agent or its heads."""
    changes = dict(setting(text, "--learner") for text in args.learner)
    return LearnerSettings(**{"algo": algo, "updates": updates, "seed": seed, **changes})


def run_stages(args: argparse.Namespace) -> bool:
    """Run the stages in their order; returns whether all are finished."""
    if "record" in args.stages:
        from synther_replay.benchmarks.pixels.record import record  # lazy: needs MuJoCo, and the learners do not

        record(args.recording, work=args.work, policies=args.policies, workers=args.workers)
    finished = True
    if {"train", "latents", "heads"} & set(args.stages):
        finished = learn(args)
    if finished and "evaluate" in args.stages:
        for algo in args.algo:
            for seed in args.seeds:
                places = Places(args.work, args.dataset, algo, seed)
                evaluate(places, episodes=args.returns, workers=args.workers)
    return finished


def learn(args: argparse.Namespace) -> bool:
    """Run the stages train, latents and heads; returns whether all are finished."""
    prepare_device(args.device)
    data = None
    for algo in args.algo:
        for seed in args.seeds:
            agent = learner_settings(args, algo, seed, args.updates)
            heads = learner_settings(args, algo, seed, args.head_updates or args.updates)
            places = Places(args.work, args.dataset, algo, seed)
            data = data or Data(places.archive, agent, args.device)
            run = Run(places, agent, args.device, data)
            latents = LatentSettings(agent, args.preset, dict(setting(text) for text in args.set))
            limits = Limits(args.deadline, args.checkpoint_every)
            if "train" in args.stages and not run.train(limits):
                return False
            if "latents" in args.stages:
                run.fit_latents(latents)
            for kind in args.data if "heads" in args.stages else ():
                rows = args.rows if kind == "synthetic" else 0
                if not run.train_heads(HeadSettings(kind, heads, latents, rows), limits):
                    return False
    return True


def main() -> int:
    """Command line."""
    args = parse()
    try:
        if not run_stages(args):
            print("time limit reached; run the same command to resume")
    except (ValueError, OSError, ImportError, NotYetError, CheckpointError, DivergedError, GenerationError) as error:
        return exit_with_error(2, error)
    except KeyboardInterrupt:
        return exit_with_error(130, "interrupted; run the same command to resume")
    return 0


if __name__ == "__main__":
    sys.exit(main())
