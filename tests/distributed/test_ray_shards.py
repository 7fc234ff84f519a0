"""`synther upsample --engine ray` on a cluster whose workers are killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from small_cluster import CONFIG, SPEC, transitions

pytest.importorskip("ray")
pytest.importorskip("pyarrow")
pytest.importorskip("typer")

from synther_replay import DiffusionGenerator
from synther_replay.distributed.sharding import ShardPlan, ShardWriter, finished, write_by_ray, write_here
from synther_replay.files import read, shards, write

pytestmark = pytest.mark.slow
TINY = ("width=16", "depth=1", "embedding=8", "steps=20", "batch_size=32", "sampling_steps=2", "exact=False")
ROWS = 400_003


def upsample(data: Path, out: Path, *options: str, **environment: str) -> subprocess.Popen[bytes]:
    settings = [part for change in TINY for part in ("--set", change)]
    arguments = ["upsample", data, out, "--rows", ROWS, "--shards", 10, "--device", "cpu", *settings, *options]
    return subprocess.Popen(
        [sys.executable, "-m", "synther_replay", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
    )


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_the_bytes_are_those_of_one_process_whoever_is_killed(cluster, tmp_path):
    psutil = pytest.importorskip("psutil")
    data, here, there = tmp_path / "real.npz", tmp_path / "here", tmp_path / "there"
    write(data, transitions())
    command = upsample(data, there, "--engine", "ray", RAY_ADDRESS=cluster.address)
    while command.poll() is None and not list((tmp_path / "there.partial" / "entries").glob("part-*.json")):
        time.sleep(0.01)
    victims = [
        process
        for process in psutil.Process().children(recursive=True)  # the nodes of the cluster are, and so their workers
        if "MapWorker" in " ".join(process.cmdline())
    ]
    for process in victims:
        process.kill()
    assert victims
    _, errors = command.communicate()
    assert command.returncode == 0, errors.decode()
    command = upsample(data, here)
    _, errors = command.communicate()
    assert command.returncode == 0, errors.decode()
    assert digests(there) == digests(here)
    assert len(read(there)) == ROWS


def test_workers_that_write_several_shards_at_once_write_the_same_bytes(cluster, tmp_path):
    generator = DiffusionGenerator(SPEC, CONFIG, device="cpu")
    generator.fit(transitions())
    generator.save(tmp_path / "model")
    plan, made = ShardPlan(1_003, 30, seed=0), {}  # three for each of the ten cores
    for name, write_shards in (("here", write_here), ("there", partial(write_by_ray, num_gpus=0, threads=3))):
        folder = tmp_path / name / "shards"
        folder.mkdir(parents=True)
        writer = {"model": str(tmp_path / "model"), "folder": str(folder), "plan": plan, "about": {}, "device": "cpu"}
        entries = list(write_shards(range(30), **writer))
        assert sorted(entry["file"] for entry in entries) == [shards.name_of(shard, 30) for shard in range(30)]
        assert finished(folder, plan).keys() == set(range(30))
        made[name] = digests(folder)
    assert made["here"] == made["there"]


def test_a_cluster_without_so_many_gpus_is_an_error(cluster, tmp_path):
    with pytest.raises(RuntimeError, match=r"needs 2 GPU\(s\), the cluster has 0"):
        list(write_by_ray([0], num_gpus=2, model="x", folder=str(tmp_path), plan=ShardPlan(10, 1, 0), about={}))


def test_a_node_with_other_versions_is_refused():
    with pytest.raises(RuntimeError, match=r"expected \{'torch': '0'\}"):
        ShardWriter("x", ".", ShardPlan(10, 1, 0), {}, "cpu", {"torch": "0"})
