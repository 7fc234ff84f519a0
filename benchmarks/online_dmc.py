"""Online reinforcement learning with and without synthetic replay: returns of many seeds from one command.

    python benchmarks/online_dmc.py --env cheetah-run --algo synther --preset fast --seeds 8 --steps 100000

writes ``results/online/cheetah-run/synther-fast.json``, from where one stands. Tasks are those of DeepMind Control
(``domain-task``) and Gymnasium. With ``--time-limit`` a run stops in time and the same command continues it.
Algorithms: sac (one update per environment step), sac20 (20), redq (20, ten critics), synther (SAC with 20 and batches
that are half synthetic).
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.command_line import PRESETS, REFIT, add_run_options, exit_with_error, setting
from synther_replay.benchmarks.common.resumable import checkpoint_beside, is_done, resume_hint
from synther_replay.benchmarks.environments.parallel import WorkerDiedError
from synther_replay.benchmarks.online.run import run_to_file
from synther_replay.benchmarks.online.settings import ALGORITHMS, Settings
from synther_replay.common.checks import resolve_device, whole_number

os.environ.setdefault("OMP_NUM_THREADS", "1")  # products are small, and there is a process for each core

RESULTS = Path("results", "online")  # not where the published ones are, which are of other seeds
# What one can wait for: a GPU runs eight seeds in minutes, a CPU one seed to where something can be seen.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"preset": "fast", "seeds": 8, "steps": 100_000},
    "cpu": {"preset": "tiny", "seeds": 1, "steps": 6_000},
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="task, such as cheetah-run or HalfCheetah-v5")
    parser.add_argument("--algo", required=True, choices=ALGORITHMS)
    parser.add_argument("--preset", choices=PRESETS, help="of the generator (fast on a GPU, tiny on a CPU)")
    parser.add_argument("--seeds", type=int, help="number of agents (8 on a GPU, 1 on a CPU)")
    parser.add_argument("--steps", type=int, help="environment steps of each (100,000 on a GPU, 6,000 on a CPU)")
    parser.add_argument("--utd", type=int, help="critic updates per environment step (as the algorithm says)")
    parser.add_argument("--first-seed", type=int, default=0, help="agents have this seed and the following ones")
    parser.add_argument("--random-steps", type=int, default=5_000, help="environment steps before anything is learnt")
    parser.add_argument("--episodes", type=int, default=10, help="per evaluation")
    parser.add_argument("--real-ratio", type=float, help="share of real rows in a batch (0.5)")
    parser.add_argument(
        "--refit-every", "--refresh-every", type=int, help="environment steps between refits (as the preset says)"
    )
    parser.add_argument("--rows", type=int, help="synthetic rows per refit (as the preset says)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the generator, any number of"
    )
    parser.add_argument("--tag", help="goes into the file name, for runs that differ from the preset")
    add_run_options(parser, uninterrupted=REFIT)
    parser.add_argument("--keep-policies", type=Path, help="folder for the policies of each evaluation (none are kept)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    try:
        args.device = resolve_device(args.device)
        args.settings = settings_of(args)
        if args.tag and Path(args.tag).name != args.tag:
            raise ValueError(f"tag: expected a part of a file's name, got {args.tag!r}")
        if args.workers is not None:
            whole_number("workers", args.workers)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    return args


def settings_of(args: argparse.Namespace) -> Settings:
    """The run that the command line asks for; what it leaves out is chosen for the device and the algorithm."""
    algorithm, kind = ALGORITHMS[args.algo], args.device.type
    if kind not in _DEFAULTS:
        raise ValueError(f"device: expected one of {', '.join(_DEFAULTS)}, got {kind}")
    if args.real_ratio is not None and not algorithm.synthetic:
        raise ValueError(f"real_ratio: {args.algo} has real rows only, got {args.real_ratio}")
    defaults = {**_DEFAULTS[kind], "utd": algorithm.utd}
    if not algorithm.synthetic:
        defaults["preset"] = None
    names = ("preset", "seeds", "steps", "utd", "random_steps", "episodes", "first_seed", "real_ratio")
    given = {name: getattr(args, name) for name in names}
    schedule = {"every": args.refit_every, "rows": args.rows}
    return Settings(
        env=args.env,
        algo=args.algo,
        schedule=_without_none(schedule),
        generator=dict(setting(text) for text in args.set),
        **{**defaults, **_without_none(given)},
    )


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def result_path(args: argparse.Namespace) -> Path:
    """Where the result goes."""
    name = "-".join(part for part in (args.settings.name, args.tag) if part)
    return Path(args.out) / args.settings.env / f"{name}.json"


def main() -> int:
    """Command line."""
    args = parse()
    settings, path = args.settings, result_path(args)
    limits = {name: getattr(args, name) for name in ("time_limit", "checkpoint_every", "workers")}
    if args.keep_policies:
        limits["keep_policies"] = args.keep_policies / settings.env / path.stem
    try:
        if is_done(path, settings):
            print(f"{path} is there already")
            return 0
        if args.device.type == "cpu":
            size = f"{settings.seeds} seed(s) to {settings.steps:,} steps"
            warnings.warn(f"no GPU: {size} on the CPU, which is slow", stacklevel=2)
        run = run_to_file(path, settings, args.device, **limits)
    except (ValueError, OSError) as error:
        return exit_with_error(2, error)
    except WorkerDiedError as error:
        return exit_with_error(1, f"{path}: {error}; {resume_hint(checkpoint_beside(path))}")
    except KeyboardInterrupt:
        return exit_with_error(130, f"{path}: was interrupted; {resume_hint(checkpoint_beside(path))}")
    if not run.finished:
        print(f"stopped at step {run.progress.step:,} of {settings.steps:,}; the same command goes on")
        return 0
    wall = run.progress.wall_seconds()
    share = (wall["fit"] + wall["generate"]) / wall["total"]
    print(f"{path}: {wall['total']:.0f} s, {share:.0%} of them for fitting and generating")
    return 0


if __name__ == "__main__":
    sys.exit(main())
