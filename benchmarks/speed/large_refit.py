"""Time and memory of a warm refit to many real rows.

    python -m synther_replay.benchmarks.speed.large_refit --out large-refit-cpu.json

The rows are correlated random ones with the columns of HalfCheetah; neither time nor memory depends on the values.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

import torch

from synther_replay import DiffusionGenerator, GeneratorConfig
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.speed.suite import toy_transitions


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="real rows (%(default)s)")
    parser.add_argument("--preset", default="tiny", help="preset of the generator (%(default)s)")
    parser.add_argument("--steps", type=int, help="steps of every fit; default: those of the preset")
    parser.add_argument("--repeats", type=int, default=3, help="warm refits (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    make_folder_of(args.out)
    device = torch.device("cpu")
    real = toy_transitions(args.rows, device)
    changes = {} if args.steps is None else {"steps": args.steps, "refit_steps": args.steps}
    config = GeneratorConfig.of({"preset": args.preset, "max_seconds": None, "patience": None, **changes})
    generator = DiffusionGenerator(real.spec, config, device=device)
    before = resident_bytes()
    generator.fit(real, progress=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    refits = [generator.fit(real, progress=False) for _ in range(args.repeats)]
    matrix = real.rows.nbytes
    found = {
        "rows": args.rows,
        "preset": args.preset,
        "refit_steps": refits[0].steps,
        "refit_seconds": [round(report.seconds, 3) for report in refits],
        "matrix_bytes": matrix,
        "memory_of_matrix": round((peak - before) / matrix, 2),  # of the first fit, which takes as much
    }
    print(found)
    write_json(args.out, {"results": found, **origin(device)})


def resident_bytes() -> int:
    """Memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
