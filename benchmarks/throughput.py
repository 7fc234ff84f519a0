"""How fast the core is: training step, generation, buffer, refit, metrics, adapters; beside the peers at hand.

    python benchmarks/throughput.py --corl path/to/CORL --out benchmarks/results/throughput.json
    python benchmarks/throughput.py --reference path/to/SynthER --out benchmarks/results/throughput-h200.json

All times exclude warm-up (first calls compile and capture; that is reported on its own). On a CPU the sizes are
small and the `tiny` preset stands for the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.peers.published_synther import check_reference
from synther_replay.benchmarks.speed.adapters import check_corl
from synther_replay.benchmarks.speed.suite import measure
from synther_replay.common.checks import resolve_device


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--reference", type=Path, help="checkout of the published SynthER code, timed in the same run")
    parser.add_argument("--corl", type=Path, help="checkout of CORL, whose buffer is then compared with ours")
    parser.add_argument("--out", type=Path, help="JSON to write")
    args = parser.parse_args()
    try:
        device = resolve_device(args.device)
        if args.out:
            make_folder_of(args.out)
        if args.reference:
            check_reference(args.reference)
        if args.corl:
            check_corl(args.corl)
    except ValueError as error:
        parser.error(str(error))
    results = measure(device, args.reference, args.corl)
    rows = [[name, key, value] for name, entry in results.items() for key, value in entry.items()]
    print(markdown_table(("measurement", "figure", "value"), rows))
    if args.out:
        write_json(args.out, {"results": results, **origin(device)})


if __name__ == "__main__":
    main()
