"""The offline benchmark: algorithms on real, synthetic and mixed rows of a data set, all seeds in one process.

    python benchmarks/offline_d4rl.py --dataset walker2d-medium-replay-regen --algo td3bc iql --data real synther

writes ``results/offline/<dataset>/<algo>-<data>.json`` for each pair of algorithm and data; synthetic rows
are generated once for all of them, and kept in ``--upsampled`` for other commands. Stopped by ``--time-limit`` or
otherwise, the same command goes on where it was.
Official data sets are found where D4RL keeps them, regenerated ones are made by make_datasets.py.
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
    GENERATOR_PRESETS,
    add_run_options,
    exit_with_error,
    folder,
    setting,
)
from synther_replay.benchmarks.common.resumable import checkpoint_beside, is_done, resume_hint
from synther_replay.benchmarks.data.download import regenerated_folder
from synther_replay.benchmarks.offline.rows import DataSource
from synther_replay.benchmarks.offline.run import run_to_file
from synther_replay.benchmarks.offline.settings import ALGORITHMS, DATA, NETWORKS, RESULTS, OfflineConfig
from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.errors import DivergedError, GenerationError, is_out_of_memory

os.environ.setdefault("OMP_NUM_THREADS", "1")  # products are small, and there is a process for each core
# What one can wait for.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"preset": "offline", "seeds": 8, "steps": 1_000_000},
    "cpu": {"preset": "tiny", "seeds": 1, "steps": 20_000, "rows": 100_000, "evaluate_every": 5_000},
}
# Options that not all data have a use for. They are no settings of the others, whose results do not depend on them.
_GENERATED = tuple(data for data in DATA if data != "real")
OPTION_APPLIES_TO = {**dict.fromkeys(("preset", "rows", "set"), _GENERATED), "real_ratio": ("mixed",)}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="such as walker2d-medium-replay-v2, or ...-regen")
    parser.add_argument("--algo", required=True, nargs="+", choices=ALGORITHMS)
    parser.add_argument(
        "--data",
        nargs="+",
        default=["real"],
        choices=DATA,
        help="real rows, synthetic ones, or half of each",
    )
    parser.add_argument(
        "--preset",
        choices=GENERATOR_PRESETS,
        help="of the generator (offline on a GPU, tiny on a CPU); some sets get more of it",
    )
    parser.add_argument(
        "--rows",
        type=int,
        help="synthetic rows (5,000,000 on a GPU, there in a mixture as many as real ones; 100,000 on a CPU)",
    )
    parser.add_argument("--real-ratio", type=float, help="share of real rows in a mixture (0.5)")
    parser.add_argument("--subsample", type=float, help="share of the data set to keep (all)")
    parser.add_argument("--augment", choices=AUGMENTATIONS, help="change batches as data augmentation does")
    parser.add_argument("--network", choices=NETWORKS, help="other networks and batches than the algorithm's own")
    parser.add_argument(
        "--precise",
        action="store_true",
        default=None,
        help="multiply agents' floats in full precision also on a GPU, where products take halves otherwise",
    )
    parser.add_argument("--seeds", type=int, help="number of agents (8 on a GPU, 1 on a CPU)")
    parser.add_argument(
        "--steps", type=int, help="updates of each (1,000,000 on a GPU, 20,000 on a CPU); CORL gives EDAC 3,000,000"
    )
    parser.add_argument(
        "--first-seed",
        type=int,
        help="of networks, batches, subsample and generator (0); agents share one stream of random numbers, so that a "
        "single one cannot be had again by itself",
    )
    parser.add_argument("--episodes", type=int, help="per evaluation (10, in mazes 100)")
    parser.add_argument("--evaluate-every", type=int, help="updates between two evaluations (50,000; on a CPU 5,000)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the generator, any number of"
    )
    add_run_options(parser, uninterrupted="the fit of a generator is not interrupted")
    parser.add_argument("--folder", type=folder, help="where to look for data sets first")
    parser.add_argument(
        "--upsampled",
        type=Path,
        default=regenerated_folder() / "upsampled",
        help="where synthetic rows are kept, some 200 bytes each, until you remove them (%(default)s)",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    try:
        args.device = resolve_device(args.device)
        args.configs = [config_of(args, algo, data) for data, algo in itertools.product(args.data, args.algo)]
        if args.workers is not None:
            whole_number("workers", args.workers)
        for name, takers in OPTION_APPLIES_TO.items():
            if getattr(args, name) not in (None, []) and not set(takers) & set(args.data):
                raise ValueError(f"{name}: {', '.join(takers)} data take it, got {', '.join(args.data)}")
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    return args


def config_of(args: argparse.Namespace, algo: str, data: str) -> OfflineConfig:
    """The run that the command line asks for; what it leaves out is chosen for the device."""
    kind = args.device.type
    if kind not in _DEFAULTS:
        raise ValueError(f"device: expected one of {', '.join(_DEFAULTS)}, got {kind}")
    of_data = ("preset", "rows", "real_ratio", "subsample", "augment")
    of_agents = ("network", "precise", "seeds", "steps", "first_seed", "episodes", "evaluate_every")
    given = {name: getattr(args, name) for name in of_data + of_agents}
    values = {**_DEFAULTS[kind], **{name: value for name, value in given.items() if value is not None}}
    values = {name: value for name, value in values.items() if data in OPTION_APPLIES_TO.get(name, DATA)}
    if data in OPTION_APPLIES_TO["set"]:
        values["generator"] = dict(setting(text) for text in args.set)
    return OfflineConfig(args.dataset, algo, data, **values)


def main() -> int:
    """Command line."""
    args = parse()
    begun = time.monotonic()
    runs = 0
    source = DataSource(args.folder, args.device, args.upsampled)
    if args.device.type == "cpu":
        warnings.warn("no GPU: this runs on the CPU, which is slow", stacklevel=2)
    for config in args.configs:
        path = args.out / config.dataset / f"{config.name}.json"
        left = None if args.time_limit is None else args.time_limit - (time.monotonic() - begun)
        try:
            if is_done(path, config):
                source.check_same(path, config)
                print(f"{path} is there already")
                continue
            if runs and left is not None and left <= 0:  # the first comes forward, however little time there is
                print(f"stopped before {config.name}; the same command goes on")
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
                2, f"no memory for {config.seeds} agents of {config.name}, fewer --seeds need less: {error}"
            )
        except KeyboardInterrupt:
            return exit_with_error(130, f"{path}: was interrupted; {resume_hint(checkpoint_beside(path))}")
        if not run.finished:
            print(f"stopped at update {run.updates:,} of {config.steps:,}; the same command goes on")
            break
        print(f"{path}: {run.result()['wall_seconds']['total']:.0f} s")
        del run
        gc.collect()  # captured graphs hold their memory
    return 0


if __name__ == "__main__":
    sys.exit(main())
