"""Fidelity of generated rows: our generator, TVAE and CTGAN, fitted to the same rows of a data set.

    python benchmarks/generator_fidelity.py --dataset halfcheetah-medium-replay-regen --out fidelity.json

Each model is fitted to rows drawn from the data set and generates as many. Reported are marginal and correlation
scores, memorisation, seconds, compression, and dynamics error against distance to the data, with noisy real rows as a
baseline. Figures are written next to the JSON file. Finished measurements are kept: the same command, also with
another preset or other peers, adds the missing ones to the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from synther_replay.benchmarks.common.command_line import add_generator_options, exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.common.generator_settings import GENERATOR_PRESETS
from synther_replay.benchmarks.environments.simulators import SIMULATORS
from synther_replay.benchmarks.fidelity.run import draw_figures, measure, our_config, prepare
from synther_replay.benchmarks.fidelity.tables import tables
from synther_replay.benchmarks.peers.tabular import PEERS, package
from synther_replay.common.checks import resolve_device


def parse(arguments: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parse the command line; the parser is returned for later errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="a data set name as in offline_d4rl.py, or an .npz file")
    parser.add_argument("--rows", type=int, default=100_000, help="rows to fit to, and rows to generate (100,000)")
    add_generator_options(parser, GENERATOR_PRESETS, "generator preset (GPU: offline, CPU: tiny)")
    parser.add_argument("--peers", nargs="+", choices=(*PEERS, "none"), default=[*PEERS], help="models to compare with")
    parser.add_argument("--peer-epochs", type=int, help="training epochs of the peers (default: their package's)")
    parser.add_argument(
        "--simulator",
        choices=("auto", "none", *SIMULATORS),
        default="auto",
        help="simulator for the dynamics error (auto: by the name of the data set)",
    )
    parser.add_argument("--dynamics-rows", type=int, default=10_000, help="rows checked in the simulator (10,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of row selection, models and noise (0)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="JSON file to write or extend")
    args = parser.parse_args(arguments)
    for name in ("rows", "peer_epochs", "dynamics_rows"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a whole number of at least 1, got {value}")
    if args.seed < 0:
        parser.error(f"--seed: expected a whole number of at least 0, got {args.seed}")
    if "none" in args.peers and len(args.peers) > 1:
        parser.error(f"--peers: none cannot be combined with others, got {' '.join(args.peers)}")
    return parser, args


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser, args = parse(arguments)
    args.peers = [] if args.peers == ["none"] else args.peers
    if args.peers:
        try:
            package()
        except ImportError as error:
            print(f"{error}; continuing without them (as with --peers none)")
            args.peers = []
    try:
        device = resolve_device(args.device)
        args.our_config = our_config(args, device)
        measures, results = prepare(args, device)
        if args.out is not None:
            make_folder_of(args.out)
    except (ImportError, OSError, ValueError, TypeError) as error:  # TypeError: a --set value of the wrong type
        parser.error(str(error))
    failure = None
    try:
        measure(args, device, measures, results)
        if args.out is not None:
            draw_figures(results.content(), args.out)
    except OSError as error:  # for example a full disk; still print the tables, which may have taken hours
        failure = error
    print(tables(results.content()))
    if failure:
        sys.exit(exit_with_error(2, f"{failure}; run the same command again to add the missing measurements"))


if __name__ == "__main__":
    main()
