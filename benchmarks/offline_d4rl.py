"""Offline benchmark: algorithms on real, synthetic and mixed rows of a data set, all seeds in one process.

    python benchmarks/offline_d4rl.py --dataset walker2d-medium-replay-regen --algo td3bc iql --data real synther

Writes ``results/offline/<dataset>/<algo>-<data>.json`` for each pair of algorithm and data. Synthetic rows are
generated once for all of them and kept in ``--upsampled`` for later commands. A run that was stopped, by
``--time-limit`` or Ctrl-C, resumes with the same command.

Official data sets (``-v2``) come from D4RL if it is installed, else from its folder, or are downloaded; regenerated
ones (``-regen``) are made by make_datasets.py.

    python benchmarks/offline_d4rl.py --official

runs TD3+BC and IQL on real and on synthetic rows of all data sets of the paper that D4RL or its folder has here, and
prints the scores beside the paper's. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.agents.augment import AUGMENTATIONS
from synther_replay.benchmarks.common.command_line import (
    add_generator_options,
    add_run_options,
    exit_with_error,
    folder,
    setting,
)
from synther_replay.benchmarks.common.generator_settings import GENERATOR_PRESETS
from synther_replay.benchmarks.common.resumable import checkpoint_path, is_done, resume_hint
from synther_replay.benchmarks.data.download import regenerated_folder
from synther_replay.benchmarks.offline import official
from synther_replay.benchmarks.offline.rows import DataSource
from synther_replay.benchmarks.offline.run import run_to_file
from synther_replay.benchmarks.offline.settings import ALGORITHMS, DATA, NETWORKS, RESULTS, OfflineConfig
from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.errors import DivergedError, GenerationError, is_out_of_memory

os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices are small, and there is one process per core
# Sizes that finish in reasonable time.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"preset": "offline", "seeds": 8, "steps": 1_000_000},
    "cpu": {"preset": "tiny", "seeds": 1, "steps": 20_000, "rows": 100_000, "evaluate_every": 5_000},
}
# Options that apply to some kinds of data only. The settings of the other kinds do not contain them.
_GENERATED = tuple(data for data in DATA if data != "real")
OPTION_APPLIES_TO = {**dict.fromkeys(("preset", "rows", "set"), _GENERATED), "real_ratio": ("mixed",)}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="for example walker2d-medium-replay-v2 or walker2d-medium-replay-regen")
    parser.add_argument("--algo", nargs="+", choices=ALGORITHMS)
    parser.add_argument(
        "--official",
        action="store_true",
        help="D4RL's own data sets that are here (or the one of --dataset), with td3bc and iql on real and synther "
        "unless said otherwise, and a table beside the paper's scores",
    )
    parser.add_argument(
        "--data",
        nargs="+",
        choices=DATA,
        help="real rows (default), synthetic rows (synther), or batches of both (mixed)",
    )
    add_generator_options(
        parser,
        GENERATOR_PRESETS,
        "generator preset (GPU: offline, CPU: tiny); some data sets get more training steps or a wider network",
    )
    parser.add_argument(
        "--rows",
        type=int,
        help="synthetic rows (GPU: 5,000,000, with --data mixed as many as real rows; CPU: 100,000)",
    )
    parser.add_argument("--real-ratio", type=float, help="share of real rows in a batch with --data mixed (0.5)")
    parser.add_argument("--subsample", type=float, help="share of the data set to keep (default: all of it)")
    parser.add_argument("--augment", choices=AUGMENTATIONS, help="data augmentation of batches of real rows")
    parser.add_argument(
        "--worsen",
        metavar="KIND=AMOUNT",
        help="make real rows worse in one way, to find what an algorithm cannot stand: starts, ends, rare-ends, blur "
        "or copies, see benchmarks/offline/worsened.py",
    )
    parser.add_argument("--network", choices=NETWORKS, help="network and batch size other than the algorithm's default")
    parser.add_argument(
        "--precise",
        action="store_true",
        default=None,
        help="train agents in fp32 on a GPU (default: matrix products in fp16)",
    )
    parser.add_argument("--seeds", type=int, help="number of agents (GPU: 8, CPU: 1)")
    parser.add_argument(
        "--steps", type=int, help="updates per agent (GPU: 1,000,000, CPU: 20,000); CORL trains EDAC for 3,000,000"
    )
    parser.add_argument(
        "--first-seed",
        type=int,
        help="seed of networks, batches, subsample and generator (0); all agents share one random stream, so a single "
        "seed cannot be reproduced alone",
    )
    parser.add_argument("--episodes", type=int, help="episodes per evaluation (10; mazes: 100)")
    parser.add_argument("--evaluate-every", type=int, help="updates between evaluations (GPU: 50,000, CPU: 5,000)")
    add_run_options(parser, time_limit_note="a running fit of the generator is finished first")
    parser.add_argument("--folder", type=folder, help="folder to search for data sets first")
    parser.add_argument(
        "--upsampled",
        type=Path,
        default=regenerated_folder() / "upsampled",
        help="cache folder for synthetic rows, about 200 bytes each, never cleaned (%(default)s)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (%(default)s)")
    args = parser.parse_args()
    try:
        args.device = resolve_device(args.device)
        names = chosen_sets(args)
        pairs = itertools.product(names, args.data, args.algo)
        args.configs = [config_of(args, name, algo, data) for name, data, algo in pairs]
        if args.workers is not None:
            whole_number("workers", args.workers)
        for name, kinds in OPTION_APPLIES_TO.items():
            if getattr(args, name) not in (None, []) and not set(kinds) & set(args.data):
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option}: requires --data {' or '.join(kinds)}, got --data {' '.join(args.data)}")
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    except FileNotFoundError as error:
        parser.exit(exit_with_error(2, error))
    return args


def chosen_sets(args: argparse.Namespace) -> list[str]:
    """Names of the data sets; sets the defaults of `algo` and `data`."""
    missing = [f"--{name}" for name in ("dataset", "algo") if not getattr(args, name)]
    if missing and not args.official:
        raise ValueError(f"the following arguments are required: {', '.join(missing)}")
    args.algo = args.algo or ["td3bc", "iql"]
    args.data = args.data or (["real", "synther"] if args.official else ["real"])
    if not args.official:
        return [args.dataset]
    if args.dataset and args.dataset not in official.NAMES:
        raise ValueError(f"--official: expected --dataset of {', '.join(official.NAMES)}, got {args.dataset}")
    found = official.available(args.folder)
    if args.dataset and args.dataset not in found:
        raise FileNotFoundError(f"--official: {args.dataset} is not among the files that are here: {', '.join(found)}")
    return [args.dataset] if args.dataset else found


def config_of(args: argparse.Namespace, dataset: str, algo: str, data: str) -> OfflineConfig:
    """Settings of one run; defaults depend on the device."""
    kind = args.device.type
    if kind not in _DEFAULTS:
        raise ValueError(f"--device: expected one of {', '.join(_DEFAULTS)}, got {kind}")
    data_options = ("preset", "rows", "real_ratio", "subsample", "augment", "worsen")
    agent_options = ("network", "precise", "seeds", "steps", "first_seed", "episodes", "evaluate_every")
    given = {name: getattr(args, name) for name in data_options + agent_options}
    values = {**_DEFAULTS[kind], **{name: value for name, value in given.items() if value is not None}}
    values = {name: value for name, value in values.items() if data in OPTION_APPLIES_TO.get(name, DATA)}
    if data in OPTION_APPLIES_TO["set"]:
        values["generator"] = dict(setting(text) for text in args.set)
    return OfflineConfig(dataset, algo, data, **values)


def main() -> int:
    """Command line."""
    args = parse()
    status = run_all(args)
    if args.official and not status:
        try:
            print(f"\n{official.table(args.out)}")
        except ValueError as error:  # nothing is finished, or results of other lengths are there, too
            return exit_with_error(2, f"no table: {error}")
    return status


def run_all(args: argparse.Namespace) -> int:
    """Make all runs; returns the exit status."""
    started = time.monotonic()
    runs = 0
    source = DataSource(args.folder, args.device, args.upsampled)
    if args.device.type == "cpu":
        warnings.warn("no GPU in use: running on the CPU, which is slow", stacklevel=2)
    for config in args.configs:
        path = args.out / config.dataset / f"{config.name}.json"
        left = None if args.time_limit is None else args.time_limit - (time.monotonic() - started)
        try:
            if is_done(path, config):
                source.check_same(path, config)
                print(f"{path}: already exists")
                continue
            if runs and left is not None and left <= 0:  # the first run always makes progress, however short the limit
                print(f"time limit reached before {config.name}; run the same command to resume")
                break
            limits = {"time_limit": left, "checkpoint_every": args.checkpoint_every, "workers": args.workers}
            run = run_to_file(path, config, source, **limits)
            runs += 1
        except (ValueError, OSError, ImportError, MemoryError, DivergedError, GenerationError) as error:
            return exit_with_error(2, error)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return exit_with_error(
                2, f"out of memory with {config.seeds} agents of {config.name}; use fewer --seeds: {error}"
            )
        except KeyboardInterrupt:
            return exit_with_error(130, f"{path}: interrupted; {resume_hint(checkpoint_path(path))}")
        if not run.finished:
            print(f"stopped at update {run.updates:,} of {config.steps:,}; run the same command to resume")
            break
        print(f"{path}: finished in {run.result()['wall_seconds']['total']:.0f} s")
        del run
        gc.collect()  # frees the GPU memory of captured graphs
    return 0


if __name__ == "__main__":
    sys.exit(main())
