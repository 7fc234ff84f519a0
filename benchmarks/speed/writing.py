"""What writing generated rows costs, by format: time, processor time and bytes.

    python -m synther_replay.benchmarks.speed.writing --out writing-cpu.json

The rows are correlated random ones with the columns of HalfCheetah. Every file is written to the disk (fsync), as by
`synther upsample`. The disk itself is measured with as many bytes as the largest file, without any computation.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.speed.suite import toy_transitions
from synther_replay.benchmarks.speed.upsampling import disk_speed
from synther_replay.data.transitions import Transitions
from synther_replay.files.table import SPEC, block_rows
from synther_replay.files.writing import write_blocks

FORMATS = {"Parquet": ".parquet", "HDF5": ".hdf5", "NumPy": ".npz"}


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a file (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="files of each format (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--note", help="what else the machine did, kept in the file")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    make_folder_of(args.out)
    device = torch.device("cpu")
    block = toy_transitions(min(args.rows, block_rows(toy_transitions(1, device).spec.dim)), device)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        formats = {
            name: [written(Path(folder, f"rows{suffix}"), block, args.rows) for _ in range(args.repeats)]
            for name, suffix in FORMATS.items()
        }
        largest = max(run["bytes"] for runs in formats.values() for run in runs)
        disk = disk_speed(Path(folder, "empty"), largest)
    found = {"rows": args.rows, "columns": block.spec.dim, "formats": formats, "disk_bytes_per_second": round(disk)}
    print(found)
    write_json(args.out, {"results": found, "note": args.note, **origin(device)})


def written(path: Path, block: Transitions, rows: int) -> dict[str, Any]:
    """Write a file that repeats a block; formats compress no further than a block. Returns seconds and bytes."""

    def blocks() -> Iterator[Transitions]:
        return (block[: rows - start] for start in range(0, rows, len(block)))

    wall, processor = time.perf_counter(), time.process_time()
    write_blocks(path, rows, blocks, {SPEC: block.spec.to_json()})
    run = {
        "seconds": round(time.perf_counter() - wall, 3),
        "processor_seconds": round(time.process_time() - processor, 3),
        "bytes": path.stat().st_size,
    }
    path.unlink()
    return run


if __name__ == "__main__":
    main()
