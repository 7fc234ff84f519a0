"""Speed of the library: training step, sampling, replay buffer, refit, metrics and adapters, next to other code.

    python benchmarks/throughput.py --corl path/to/CORL --out throughput.json
    python benchmarks/throughput.py --reference path/to/SynthER --out throughput-h200.json

Times exclude warm-up. The first call, which compiles kernels and captures graphs, is reported separately. On a CPU the
sizes are smaller and the `tiny` preset replaces the others.
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
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--reference", type=Path, help="checkout of the published SynthER code, to time it as well")
    parser.add_argument("--corl", type=Path, help="checkout of CORL, to compare its replay buffer with ours")
    parser.add_argument("--out", type=Path, help="JSON file to write")
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
