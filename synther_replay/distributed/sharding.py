"""Generating rows in shards: files that do not depend on who makes them, where, when and how often.

Every shard has its own seeds, and takes its name only when it is complete. A shard that was lost with its worker is
made again, byte for byte.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import synther_replay
from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.data.transitions import Transitions
from synther_replay.distributed.worker import ray
from synther_replay.files import parquet, shards
from synther_replay.files.table import block_rows
from synther_replay.generator import DiffusionGenerator
from synther_replay.persistence.atomic import replacing

_MOST_THREADS = 16

Entry = dict[str, Any]
"""A finished shard, as in the manifest."""


@dataclass(frozen=True)
class ShardPlan:
    """How rows are divided.

    >>> [ShardPlan(10, 3, seed=0).size(shard) for shard in range(3)]
    [4, 3, 3]

    Attributes:
        rows: Number of rows in all.
        count: Number of shards.
        seed: Seed of the rows.
    """

    rows: int
    count: int
    seed: int

    def __post_init__(self) -> None:
        """Check that no shard is empty."""
        whole_number("shards", self.count)
        if self.count > self.rows:
            raise ValueError(f"shards: expected at most one per row, got {self.count} for {self.rows} rows")

    def size(self, shard: int) -> int:
        """Number of rows of a shard."""
        return self.rows // self.count + (shard < self.rows % self.count)

    def block_seed(self, shard: int, block: int) -> int:
        """Seed of a block of rows of a shard."""
        return derive_seed(self.seed, Stream.SHARDS, shard, block)


class ShardWriter:
    """Writes shards of a fitted generator.

    Args:
        model: File of the generator.
        folder: Where the shards are written; all nodes of a cluster must see it under this path. Entries of complete
            shards are in the folder ``entries`` beside it.
        plan: How rows are divided.
        about: What every file tells of its origin.
        device: Torch device.
        versions: `shard_versions` of the process that asks.

    Raises:
        RuntimeError: The versions here are others, and so would be the bytes.
    """

    def __init__(
        self,
        model: str,
        folder: str,
        plan: ShardPlan,
        about: Mapping[str, Any],
        device: str,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        """Load the generator."""
        if versions is not None and versions != (here := shard_versions()):
            raise RuntimeError(f"ray: a node has {here}, expected {dict(versions)} as where the command runs")
        self._generator = DiffusionGenerator.load(model, device=device)
        if self._generator.device.type == "cpu":
            torch.set_num_threads(1)  # wide layers sum in an order that depends on the number of threads
        self._folder, self._plan, self._about = Path(folder), plan, about
        self._stopped = threading.Event()

    def __call__(self, row: Mapping[str, Any]) -> list[Entry]:
        """Write the shards ``row["shards"]`` at once; returns their entries."""
        return list(self.write_all([int(shard) for shard in row["shards"]], threads=len(row["shards"])))

    def write_all(self, numbers: Iterable[int], *, threads: int) -> Generator[Entry, None, None]:
        """Write shards; entries come in any order.

        Args:
            numbers: Shards to write.
            threads: Shards that are written at once: one thread draws rows, others compress theirs and write.
        """
        if threads == 1:  # in this thread, where Ctrl-C need not wait for a block of rows
            yield from map(self.write, numbers)
            return
        pool = ThreadPoolExecutor(threads)
        try:
            for done in as_completed([pool.submit(self.write, shard) for shard in numbers]):
                yield done.result()
        finally:  # after an error or an interrupt nothing is begun any more, and what was begun ends soon
            self._stopped.set()
            pool.shutdown(cancel_futures=True)
            self._stopped.clear()

    def write(self, shard: int) -> Entry:
        """Write a shard, and its entry beside it; returns the entry."""
        file, rows = self._folder / shards.name_of(shard, self._plan.count), self._plan.size(shard)
        first = self._block(shard, 0)  # written twice would be generated twice

        def blocks() -> Iterator[Transitions]:
            yield first
            yield from (self._block(shard, number) for number in range(1, -(-rows // self._block_size)))

        parquet.write(file, rows, blocks, {**self._about, "shard": shard})
        entry = shards.describe(file, rows)
        _entry_file(file).parent.mkdir(exist_ok=True)
        with replacing(_entry_file(file)) as temporary:
            temporary.write_text(json.dumps(entry))
        return entry

    @property
    def _block_size(self) -> int:
        return block_rows(self._generator.spec.dim)

    def _block(self, shard: int, number: int) -> Transitions:
        if self._stopped.is_set():
            raise InterruptedError(f"shard {shard}: stopped")
        rows = min(self._block_size, self._plan.size(shard) - number * self._block_size)
        return self._generator.sample(rows, seed=self._plan.block_seed(shard, number))


def shard_versions() -> dict[str, str]:
    """Versions of what determines the bytes of a shard."""
    return {"synther_replay": synther_replay.__version__, "torch": torch.__version__}


def file_threads() -> int:
    """Files to compress or read at once; each takes a core and holds a block of rows."""
    return min(_MOST_THREADS, os.cpu_count() or 1)


def finished(folder: Path, plan: ShardPlan) -> dict[int, Entry]:
    """Entries of the shards in a folder that are complete and have the bytes that were written."""

    def entry_of(shard: int) -> Entry | None:
        file = folder / shards.name_of(shard, plan.count)
        try:
            entry: Entry = json.loads(_entry_file(file).read_text())
            return entry if entry == shards.describe(file, plan.size(shard)) else None
        except (OSError, ValueError):  # not there, or damaged: it is made again
            return None

    with ThreadPoolExecutor(file_threads()) as pool:
        found = enumerate(pool.map(entry_of, range(plan.count)))
        return {shard: entry for shard, entry in found if entry is not None}


def write_here(numbers: Iterable[int], *, threads: int = 1, **writer: Any) -> Generator[Entry, None, None]:
    """Write shards in this process; entries come in any order.

    Args:
        numbers: Shards to write.
        threads: Shards that are written at once.
        writer: Arguments of `ShardWriter`.
    """
    yield from ShardWriter(**writer).write_all(numbers, threads=threads)


def write_by_ray(
    numbers: Iterable[int], *, num_gpus: float, threads: int = 1, **writer: Any
) -> Generator[Entry, None, None]:
    """Write shards on all nodes of a cluster, by Ray Data; entries come in any order.

    Ray Data places the work, scales the number of its workers and repeats what was lost with one. It does not write the
    files: those of its `write_parquet` have random names and lengths, and remain when a command is killed.

    Args:
        numbers: Shards to write.
        num_gpus: GPUs of a worker.
        threads: Shards that a worker writes at once, at most; fewer if not every worker would have some.
        writer: Arguments of `ShardWriter`.

    Raises:
        FileNotFoundError: A node wrote a shard that cannot be seen here.
        RuntimeError: No node has a GPU, or so many.
    """
    asked = list(numbers)
    if not asked:
        return
    module, data = ray(), _quiet_ray_data()
    if not module.is_initialized():
        module.init(log_to_driver=False, logging_level=logging.WARNING)
    total = module.cluster_resources()
    if num_gpus > total.get("GPU", 0):
        raise RuntimeError(f"ray: a worker needs {num_gpus:g} GPU(s), the cluster has {total.get('GPU', 0):g}")
    most = max(1, int(total.get("GPU", 0) / num_gpus if num_gpus else total.get("CPU", 1)))
    size = max(1, min(threads, len(asked) // most))
    groups = [{"shards": asked[start : start + size]} for start in range(0, len(asked), size)]
    done = data.from_items(groups, override_num_blocks=len(groups)).flat_map(
        ShardWriter,
        fn_constructor_kwargs={**writer, "versions": shard_versions()},
        num_gpus=num_gpus or None,
        compute=data.ActorPoolStrategy(min_size=1, max_size=min(len(groups), most)),
    )
    for entry in done.iter_rows():
        if not (Path(writer["folder"]) / entry["file"]).is_file():
            raise FileNotFoundError(
                f"{writer['folder']}: a node wrote {entry['file']}, which is not here; all nodes must share this folder"
            )
        yield entry


def _quiet_ray_data() -> Any:
    """Import Ray Data without its progress bars and its advice to its own developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.data as data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        data.DataContext.get_current().enable_progress_bars = False
    return data


def _entry_file(file: Path) -> Path:
    return file.parent.with_name("entries") / f"{file.name}.json"
