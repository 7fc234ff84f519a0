"""The cache of synthetic rows: equal keys are reused, others are not."""

import os
from dataclasses import replace

import offline_stand_ins
import pytest
import torch
from offline_stand_ins import GENERATOR, HOPPER, MAZE, config

from synther_replay.adapters.corl import ReplayBuffer
from synther_replay.benchmarks.data.registry import load
from synther_replay.benchmarks.offline import upsampled
from synther_replay.benchmarks.offline.upsampled import Upsampled
from synther_replay.persistence.checkpoint import load_checkpoint

CPU = torch.device("cpu")
SYNTHETIC = config(data="synther", steps=100, evaluate_every=100)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = offline_stand_ins.write_sets(tmp_path_factory.mktemp("sets"))
    return {name: load(name, folder=folder) for name in (HOPPER, MAZE)}


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "deep" / "upsampled"


@pytest.fixture
def fits(monkeypatch):
    """How many rows were asked for, each time."""
    made, genuine = [], ReplayBuffer.upsample
    monkeypatch.setattr(ReplayBuffer, "upsample", lambda self, n: (made.append(n), genuine(self, n))[1])
    return made


def found_by_another(kept, dataset, of=SYNTHETIC):
    """What a new process would find."""
    transitions, about = Upsampled(kept, CPU).rows(of, dataset)
    return transitions.rows, about


def test_another_process_reads_rows_and_description_from_the_cache(sets, kept, fits):
    first, said = found_by_another(kept, sets[HOPPER])
    again, said_again = found_by_another(kept, sets[HOPPER], replace(SYNTHETIC, algo="iql", seeds=5))
    assert torch.equal(first, again)
    assert said == said_again
    assert fits == [96]
    assert [path.name.startswith(f"{HOPPER}-") for path in kept.iterdir()] == [True]


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": MAZE},
        {"first_seed": 1},
        {"rows": 64},
        {"preset": "fast"},
        {"generator": {**GENERATOR, "sampling_steps": 4}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_rows_are_generated_and_cached_separately(sets, kept, fits, changes):
    other = replace(SYNTHETIC, **changes)
    first, _ = found_by_another(kept, sets[HOPPER])
    found, _ = found_by_another(kept, sets[other.dataset], other)
    assert found.shape != first.shape or not torch.equal(found, first)
    assert len(fits) == len(list(kept.iterdir())) == 2


def test_the_code_is_that_of_library_and_adapter():
    files = upsampled._files()
    names = [f"{path.parent.name}/{path.name}" for path in files]
    assert {"corl/buffer.py", "diffusion/trainer.py", "synther_replay/generator.py", "offline/upsampled.py"} <= {*names}
    assert len(files) == len(set(files))


def test_rows_of_other_real_rows_or_other_code_are_not_taken(sets, kept, fits, monkeypatch):
    found_by_another(kept, sets[HOPPER])
    found_by_another(kept, sets[HOPPER].subsample(0.5, 0))
    assert len(fits) == 2
    monkeypatch.setattr(upsampled, "_code", lambda: "changed")
    found_by_another(kept, sets[HOPPER])
    assert len(fits) == 3


def test_a_damaged_file_warns_and_is_replaced(sets, kept, fits):
    first, _ = found_by_another(kept, sets[HOPPER])
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"is truncated .*generating the rows again"):
        again, _ = found_by_another(kept, sets[HOPPER])
    assert torch.equal(first, again)
    assert torch.equal(load_checkpoint(path, upsampled.KIND)["rows"], first.cpu())
    assert len(fits) == 2


def test_a_full_disk_warns_and_only_the_cache_is_lost(sets, kept, fits, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match=r"cannot cache .*No space left"):
        patch.setattr(os, "fsync", full)
        rows, _ = found_by_another(kept, sets[HOPPER])
    assert len(rows) == 96
    assert not list(kept.iterdir())
    assert torch.equal(found_by_another(kept, sets[HOPPER])[0], rows)


def test_nothing_is_cached_without_a_folder(sets, fits):
    rows = [found_by_another(None, sets[HOPPER])[0] for _ in range(2)]
    assert torch.equal(*rows)
    assert len(fits) == 2
