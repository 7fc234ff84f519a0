"""Online reinforcement learning with and without synthetic replay: returns of many seeds from one command.

    python benchmarks/online_dmc.py --env cheetah-run --algo synther --preset fast --seeds 8 --steps 100000

writes ``benchmarks/results/online/cheetah-run/synther-fast.json``. Tasks are those of DeepMind Control
(``domain-task``) and Gymnasium. With ``--time-limit`` a run stops in time and the same command continues it.
Algorithms: sac (one update per environment step), sac20 (20), redq (20, ten critics), synther (SAC with 20 and batches
that are half synthetic).
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the worker processes: each computes small products alone

import torch
from online_run import ALGORITHMS, PRESETS, OnlineRun, Settings, is_done
from reporting import origin, write_json

from synther_replay.checks import resolve_device, whole_number

RESULTS = Path(__file__).parent / "results" / "online"
# What one can wait for: a GPU runs eight seeds in minutes, a CPU one seed to where something can be seen.
_DEFAULTS = {"cuda": {"seeds": 8, "steps": 100_000}, "cpu": {"seeds": 1, "steps": 6_000}}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="task, such as cheetah-run or HalfCheetah-v5")
    parser.add_argument("--algo", required=True, help=", ".join(ALGORITHMS))
    parser.add_argument("--preset", help=f"of the generator: {', '.join(PRESETS)} (fast on a GPU, tiny on a CPU)")
    parser.add_argument("--seeds", type=int, help="number of agents (8 on a GPU, 1 on a CPU)")
    parser.add_argument("--steps", type=int, help="environment steps of each (100,000 on a GPU, 6,000 on a CPU)")
    parser.add_argument("--utd", type=int, help="critic updates per environment step (as the algorithm says)")
    parser.add_argument("--first-seed", type=int, default=0, help="agents have this seed and the following ones")
    parser.add_argument("--random-steps", type=int, default=5_000, help="environment steps before anything is learnt")
    parser.add_argument("--episodes", type=int, default=10, help="per evaluation")
    parser.add_argument("--real-ratio", type=float, default=0.5, help="share of real rows in a batch")
    parser.add_argument("--refresh-every", type=int, help="environment steps between refits (as the preset says)")
    parser.add_argument("--rows", type=int, help="synthetic rows per refit (as the preset says)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the generator, any number of"
    )
    parser.add_argument("--tag", help="goes into the file name, for runs that differ from the preset")
    parser.add_argument("--time-limit", type=float, help="seconds after which to save and stop")
    parser.add_argument("--checkpoint-every", type=float, default=300.0, help="seconds between saves on the way")
    parser.add_argument("--workers", type=int, help="cores for environments and evaluations (all)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    for name, known in (("algo", ALGORITHMS), ("preset", PRESETS)):
        value = getattr(args, name)
        if value is not None and value not in known:
            parser.error(f"--{name}: expected one of {', '.join(known)}, got {value!r}")
    try:
        args.settings = settings_of(args, resolve_device(args.device))
    except (ValueError, TypeError, RuntimeError) as error:
        parser.error(str(error))
    return args


def settings_of(args: argparse.Namespace, device: torch.device) -> Settings:
    """The run that the command line asks for; whatever cannot work is refused here."""
    algorithm, defaults = ALGORITHMS[args.algo], _DEFAULTS[device.type]
    preset = args.preset or ("fast" if device.type == "cuda" else "tiny")
    schedule = {"every": args.refresh_every, "rows": args.rows}
    settings = Settings(
        env=args.env,
        algo=args.algo,
        preset=preset if algorithm.synthetic else None,
        seeds=whole_number("seeds", args.seeds or defaults["seeds"]),
        steps=whole_number("steps", args.steps or defaults["steps"]),
        utd=whole_number("utd", args.utd or algorithm.utd),
        random_steps=whole_number("random_steps", args.random_steps),
        episodes=whole_number("episodes", args.episodes),
        first_seed=whole_number("first_seed", args.first_seed, least=0),
        real_ratio=args.real_ratio,
        schedule={name: value for name, value in schedule.items() if value is not None},
        generator=dict(_setting(text) for text in args.set),
    )
    if not algorithm.synthetic and (settings.schedule or settings.generator or args.preset):
        raise ValueError(f"algo: {args.algo} has no generator, so it takes no preset, schedule or settings of one")
    return settings


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"set: expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def result_path(args: argparse.Namespace) -> Path:
    """Where the result goes."""
    settings: Settings = args.settings
    name = "-".join(part for part in (settings.algo, settings.preset, args.tag) if part)
    return Path(args.out) / settings.env / f"{name}.json"


def main() -> int:
    """Command line."""
    args = parse()
    settings, path = args.settings, result_path(args)
    device = resolve_device(args.device)
    checkpoint = path.with_name(f".{path.stem}.checkpoint")
    try:
        if is_done(path, settings):
            print(f"{path} is there already")
            return 0
        if device.type == "cpu":
            warnings.warn(
                f"no GPU: {settings.seeds} seed(s) to {settings.steps:,} steps on the CPU, which is slow", stacklevel=2
            )
        torch.set_float32_matmul_precision("high")  # tensor cores
        run = OnlineRun(settings, device)
        limits = {"time_limit": args.time_limit, "checkpoint_every": args.checkpoint_every}
        finished = run.run(checkpoint, **limits, workers=args.workers)
    except ValueError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return 2
    if not finished:
        print(f"stopped at step {run.step:,} of {settings.steps:,}; the same command goes on")
        return 0
    write_json(path, {**run.result(), **origin(device)})
    checkpoint.unlink(missing_ok=True)
    total = run.seconds["total"]
    share = (run.seconds["fit"] + run.seconds["generate"]) / total
    print(f"{path}: {total:.0f} s, {share:.0%} of them for fitting and generating")
    return 0


if __name__ == "__main__":
    sys.exit(main())
