"""Online benchmark: SAC and REDQ with and without synthetic replay, all seeds in one process.

    python benchmarks/online_dmc.py --env cheetah-run --algo synther --preset fast --seeds 8 --steps 100000

Writes ``results/online/cheetah-run/synther-fast.json`` in the working directory. Tasks are those of DeepMind Control
(``domain-task``) and Gymnasium. A run that was stopped, by ``--time-limit`` or Ctrl-C, resumes with the same command.

Algorithms:
    sac      SAC, 1 update per environment step
    sac20    SAC, 20 updates per environment step
    redq     REDQ, 10 critics, 20 updates per environment step
    synther  sac20 with synthetic replay; half of each batch is synthetic

Critics (``--critic``):
    plain      two hidden layers, as published
    four       four plain critics, targets are the minimum of all
    layernorm  with layer norm before the activations
    pair       two critics, the first with layer norm
    steady     pair, with bounded targets, normalised observations, a low first temperature and partial resets
    features   with normalised features before the last layer
    cautious   four critics with layer norm, targets are the minimum of all
    wary       layer norm, more cautious targets where values promise more than the latest episodes gave
    ensemble   ten critics with layer norm
    residual   residual blocks, normalised observations, weight decay

Relevance (``--relevance``), with ``--algo synther``: rows are generated that are like the most relevant real ones.
    curiosity  error of a forward model that is trained on the real rows
    return     return of the row's episode
    reward     reward
    td_error   size of the TD error of the learner's critics
    value      value of the observation under the learner's critics and policy
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.agents.named_critics import CRITICS, PLAIN
from synther_replay.benchmarks.common.command_line import (
    REFIT_NOTE,
    add_generator_options,
    add_run_options,
    exit_with_error,
    setting,
)
from synther_replay.benchmarks.common.generator_settings import PRESETS
from synther_replay.benchmarks.common.resumable import checkpoint_path, is_done, resume_hint
from synther_replay.benchmarks.environments.parallel import WorkerDiedError
from synther_replay.benchmarks.online.rows import save_rows
from synther_replay.benchmarks.online.run import run_to_file
from synther_replay.benchmarks.online.settings import ALGORITHMS, Settings
from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.relevance.guidance import NAMES as RELEVANCES
from synther_replay.replay.background import REFIT_MODES

os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices are small, and there is one process per core

RESULTS = Path("results", "online")  # not benchmarks/results, which holds the published results
# Sizes that finish in minutes: eight seeds on a GPU; on a CPU one seed, for as many steps as show a rising return.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"preset": "fast", "seeds": 8, "steps": 100_000},
    "cpu": {"preset": "tiny", "seeds": 1, "steps": 6_000},
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="task, such as cheetah-run or HalfCheetah-v5")
    parser.add_argument("--algo", required=True, choices=ALGORITHMS)
    add_generator_options(parser, PRESETS, "generator and refit preset (GPU: fast, CPU: tiny)")
    parser.add_argument("--seeds", type=int, help="number of agents (GPU: 8, CPU: 1)")
    parser.add_argument("--steps", type=int, help="environment steps per agent (GPU: 100,000, CPU: 6,000)")
    parser.add_argument("--utd", type=int, help="critic updates per environment step (default: set by --algo)")
    parser.add_argument("--critic", default=PLAIN, metavar="NAME", help=f"one of {', '.join(CRITICS)} (%(default)s)")
    parser.add_argument(
        "--agent",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a hyper-parameter of the learner; can be repeated",
    )
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first agent; the others count up (0)")
    parser.add_argument(
        "--random-steps", type=int, default=5_000, help="environment steps with random actions before training (5,000)"
    )
    parser.add_argument("--episodes", type=int, default=10, help="episodes per evaluation (10)")
    parser.add_argument("--real-ratio", type=float, help="share of real rows in a batch (0.5)")
    parser.add_argument(
        "--refit-every", type=int, help="environment steps between refits of the generator (default: set by --preset)"
    )
    parser.add_argument("--first-refit", type=int, help="no refit before this environment step")
    parser.add_argument("--rows", type=int, help="synthetic rows per refit (default: set by --preset)")
    parser.add_argument(
        "--relevance", metavar="NAME", help=f"guide generation to relevant rows: one of {', '.join(RELEVANCES)}"
    )
    parser.add_argument(
        "--refit",
        choices=REFIT_MODES,
        default=REFIT_MODES[0],
        help="whether the learner waits for refits or goes on in the background (%(default)s)",
    )
    parser.add_argument("--lag", type=int, help="environment steps until rows of a refit in the background are taken")
    parser.add_argument("--guidance", type=float, help="weight of the relevance (2)")
    parser.add_argument("--top", type=float, help="share of real rows that count as relevant (0.25)")
    parser.add_argument("--guided-share", type=float, help="share of synthetic rows that are guided (1)")
    parser.add_argument("--tag", help="suffix of the file name, for runs that differ from the preset")
    add_run_options(parser, time_limit_note=REFIT_NOTE)
    parser.add_argument("--keep-policies", type=Path, help="folder to save the policies of each evaluation in")
    parser.add_argument("--keep-rows", type=Path, help="folder to save the real transitions of each agent in, as .npz")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (%(default)s)")
    args = parser.parse_args()
    try:
        args.device = resolve_device(args.device)
        args.settings = settings_of(args)
        if args.tag and Path(args.tag).name != args.tag:
            raise ValueError(f"--tag: expected part of a file name, got {args.tag!r}")
        if args.workers is not None:
            whole_number("workers", args.workers)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    return args


def settings_of(args: argparse.Namespace) -> Settings:
    """Settings of the run; defaults depend on the device and the algorithm."""
    algorithm, kind = ALGORITHMS[args.algo], args.device.type
    if kind not in _DEFAULTS:
        raise ValueError(f"--device: expected one of {', '.join(_DEFAULTS)}, got {kind}")
    if args.real_ratio is not None and not algorithm.synthetic:
        raise ValueError(f"--real-ratio: --algo {args.algo} uses real rows only, got {args.real_ratio}")
    defaults = {**_DEFAULTS[kind], "utd": algorithm.utd}
    if not algorithm.synthetic:
        defaults["preset"] = None
    names = ("critic", "preset", "seeds", "steps", "utd", "random_steps", "episodes", "first_seed", "real_ratio")
    names += ("refit", "lag")
    given = {name: getattr(args, name) for name in names}
    schedule = {"start": args.first_refit, "every": args.refit_every, "rows": args.rows}
    relevance = {"name": args.relevance, "top": args.top, "guidance": args.guidance, "share": args.guided_share}
    if args.relevance is None and _without_none(relevance):
        raise ValueError("--relevance: required with --top, --guidance and --guided-share")
    settings = Settings(
        env=args.env,
        algo=args.algo,
        schedule=_without_none(schedule),
        generator=dict(setting(text) for text in args.set),
        agent=dict(setting(text, "--agent") for text in args.agent),
        relevance=_without_none(relevance),
        **{**defaults, **_without_none(given)},
    )
    if settings.steps <= settings.random_steps:
        raise ValueError(
            f"--steps: expected more than the {settings.random_steps:,} steps without training (--random-steps), "
            f"got {settings.steps:,}"
        )
    return settings


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def result_path(args: argparse.Namespace) -> Path:
    """Path of the result file."""
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
            print(f"{path}: already exists")
            return 0
        if args.device.type == "cpu":
            size = f"{settings.seeds} seed(s) for {settings.steps:,} steps"
            warnings.warn(f"no GPU in use: running {size} on the CPU, which is slow", stacklevel=2)
        run = run_to_file(path, settings, args.device, **limits)
    except (ValueError, OSError) as error:
        return exit_with_error(2, error)
    except WorkerDiedError as error:
        return exit_with_error(1, f"{path}: {error}; {resume_hint(checkpoint_path(path))}")
    except KeyboardInterrupt:
        return exit_with_error(130, f"{path}: interrupted; {resume_hint(checkpoint_path(path))}")
    if not run.finished:
        print(f"stopped at step {run.progress.step:,} of {settings.steps:,}; run the same command to resume")
        return 0
    if args.keep_rows:
        try:
            stem = args.keep_rows / f"{settings.env}-{path.stem}"
            save_rows(stem, run.agents.replay.transitions(), settings.first_seed)
        except OSError as error:
            return exit_with_error(2, error)
    wall = run.progress.wall_seconds()
    share = (wall["fit"] + wall["generate"]) / wall["total"]
    waiting = "waiting for refits" if settings.in_background else "fitting and sampling the generator"
    print(f"{path}: finished in {wall['total']:.0f} s, {share:.1%} of it {waiting}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
