"""How like the real rows the generated ones are: our generator, TVAE and CTGAN, fitted to the same rows.

    python benchmarks/generator_fidelity.py --dataset halfcheetah-medium-replay-regen --out fidelity.json

Each is fitted to rows drawn from the set and generates as many. Measured are marginal and correlation, memorisation,
seconds, compression, and the error in the dynamics against the distance to the data, which real rows with noise are
held against; the figures lie beside the file. What is finished is kept: the same command, also with another preset or
other peers, adds to the file what it does not hold yet.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from synther_replay.benchmarks.common.command_line import GENERATOR_PRESETS, exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.environments.simulators import SIMULATORS
from synther_replay.benchmarks.fidelity.run import draw_figures, measure, our_own, prepare
from synther_replay.benchmarks.fidelity.tables import tables
from synther_replay.benchmarks.peers.tabular import PEERS, package
from synther_replay.common.checks import resolve_device


def parse(arguments: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The command line, and a parser to complain about it with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dataset", required=True, help="a name that offline_d4rl.py knows, or an .npz file"
    )
    parser.add_argument("--rows", type=int, default=100_000, help="rows to fit to, and to generate")
    parser.add_argument(
        "--preset", choices=GENERATOR_PRESETS, help="of our generator; by default offline on a GPU, tiny on a CPU"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the preset to change, any number"
    )
    parser.add_argument("--peers", nargs="+", choices=(*PEERS, "none"), default=[*PEERS], help="other generators")
    parser.add_argument("--peer-epochs", type=int, help="epochs of theirs instead of their own, for a quick look")
    parser.add_argument("--simulator", choices=("auto", "none", *SIMULATORS), default="auto")
    parser.add_argument("--dynamics-rows", type=int, default=10_000, help="rows that the simulator is asked about")
    parser.add_argument("--seed", type=int, default=0, help="of the draw, the models and the noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON to write, or to add to")
    args = parser.parse_args(arguments)
    for name in ("rows", "peer_epochs", "dynamics_rows"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a whole number of at least 1, got {value}")
    if args.seed < 0:
        parser.error(f"--seed: expected a whole number of at least 0, got {args.seed}")
    if "none" in args.peers and len(args.peers) > 1:
        parser.error(f"--peers: expected none or others, got {' '.join(args.peers)}")
    return parser, args


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser, args = parse(arguments)
    args.peers = [] if args.peers == ["none"] else args.peers
    if args.peers:
        try:
            package()
        except ImportError as error:
            print(f"{error}; going on without them, as with --peers none")
            args.peers = []
    try:
        device = resolve_device(args.device)
        args.our_own = our_own(args, device)
        judge, results = prepare(args, device)
        if args.out is not None:
            make_folder_of(args.out)
    except (ImportError, OSError, ValueError, TypeError) as error:  # the last is for settings of another type
        parser.error(str(error))
    fault = None
    try:
        measure(args, device, judge, results)
        if args.out is not None:
            draw_figures(results.content(), args.out)
    except OSError as error:  # such as that of a full disk; what is measured may have taken hours, and is shown
        fault = error
    print(tables(results.content()))
    if fault:
        sys.exit(exit_with_error(2, f"{fault}; once it can be written, the same command adds what is missing"))


if __name__ == "__main__":
    main()
