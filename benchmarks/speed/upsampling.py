"""What `synther upsample` takes on this machine: time, memory, how busy the GPU is, and how fast the disk.

    python -m synther_replay.benchmarks.speed.upsampling rows.npz --rows 1M 1M --to more.hdf5 --out upsampling.json

Each run is a command of its own, from its start to the end of its process, so that imports count too. With several
files of the real rows the first run warms the caches of kernels and disk. The disk is measured afterwards by writing as
many bytes as the last run wrote (at most 8 GiB) without any computation, in the same folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.common.checks import resolve_device

_MOST_BYTES = 8 * 2**30  # written to measure the disk
_BLOCK = 64 * 2**20
_EVERY = 0.5  # seconds between two looks at the GPU
_BUSY = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]


def main(argv: list[str] | None = None) -> None:
    """Run the commands and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", type=Path, help="file of real rows")
    parser.add_argument("--rows", nargs="+", default=["1M", "1M"], help="rows of each run")
    parser.add_argument("--to", default="more.hdf5", help="name of the file, or of the folder with --shards")
    parser.add_argument("--shards", type=int, help="number of shards")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--out", type=Path, default=Path("upsampling.json"))
    args = parser.parse_args(argv)
    device = resolve_device(args.device)
    make_folder_of(args.out)
    result: dict[str, Any] = {**origin(device), "preset": args.preset, "shards": args.shards, "runs": []}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        target = Path(folder, args.to)
        for rows in args.rows:
            remove(target)
            run = upsample(args, rows, target, looks_at_gpu=device.type == "cuda")
            result["runs"].append(run)
            print(json.dumps(run), flush=True)
            write_json(args.out, result)
        size = result["runs"][-1]["bytes"]
        remove(target)
        result["disk_bytes_per_second"] = disk_speed(Path(folder, "empty"), min(size, _MOST_BYTES))
    write_json(args.out, result)


def upsample(args: argparse.Namespace, rows: str, target: Path, *, looks_at_gpu: bool) -> dict[str, Any]:
    """Run the command once."""
    command = [sys.executable, "-m", "synther_replay", "upsample", str(args.real), str(target), "--rows", rows]
    command += ["--preset", args.preset, "--device", args.device, "--json"]
    command += [] if args.shards is None else ["--shards", str(args.shards)]
    looks = GpuLooks() if looks_at_gpu else None
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - begun
    told = json.loads(done.stdout)
    files = [path for path in (target.rglob("*") if target.is_dir() else [target]) if path.is_file()]
    return {
        "rows": told["rows"],
        "wall_seconds": seconds,
        # ru_maxrss is in KiB, and of the largest child so far: ascending runs show whether memory grows
        "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "bytes": sum(path.stat().st_size for path in files),
        "gpu_busy": None if looks is None else looks.stop(),
        **{name: told[name] for name in ("columns", "real_rows", "fit", "generate_seconds", "write_seconds")},
    }


class GpuLooks:
    """Asks the driver again and again how busy the GPU is."""

    def __init__(self) -> None:
        """Begin."""
        self._seen: list[tuple[float, float]] = []
        self._begun = time.perf_counter()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._end.wait(_EVERY):
            told = subprocess.run(_BUSY, capture_output=True, text=True, check=False).stdout.split()
            if told and told[0].isdigit():
                self._seen.append((time.perf_counter() - self._begun, int(told[0]) / 100))

    def stop(self) -> list[tuple[float, float]]:
        """Return pairs of seconds since the start and share of the last moments in which a kernel ran."""
        self._end.set()
        self._thread.join()
        return [(round(when, 2), share) for when, share in self._seen]


def disk_speed(path: Path, size: int) -> float:
    """Bytes per second of writing a file and waiting until the disk has it."""
    block = os.urandom(_BLOCK)
    begun = time.perf_counter()
    with path.open("wb") as file:
        for start in range(0, size, _BLOCK):
            file.write(block[: size - start])
        file.flush()
        os.fsync(file.fileno())
    return size / (time.perf_counter() - begun)


def remove(target: Path) -> None:
    """Remove a file or folder if it is there."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
