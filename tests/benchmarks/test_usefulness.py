"""Rows of all sources, and SAC that learns from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from synther_replay import Transitions
from synther_replay.benchmarks.fidelity.rows import random_rows
from synther_replay.benchmarks.fidelity.usefulness import main, rows_of
from synther_replay.benchmarks.online.rows import save_rows

TASK = "InvertedPendulum-v5"


@pytest.fixture(scope="module")
def real() -> Transitions:
    return random_rows(TASK, 400, seed=0)


def stacked(real: Transitions) -> Transitions:
    return Transitions(real.spec, real.rows.expand(2, -1, -1))


def test_real_has_no_rows_of_its_own(real: Transitions) -> None:
    assert rows_of("real", stacked(real), 100, seed=0) is None


def test_again_draws_real_rows(real: Transitions) -> None:
    drawn = rows_of("again", stacked(real), 100, seed=0)
    assert drawn is not None
    assert drawn.rows.shape == (2, 100, real.spec.dim)
    known = {tuple(row) for row in real.rows.tolist()}
    assert all(tuple(row) in known for row in drawn.rows.flatten(0, 1).tolist())


@pytest.mark.parametrize("columns", ["observations", "actions", "rewards", "next_observations"])
def test_noise_changes_the_columns_that_it_names(real: Transitions, columns: str) -> None:
    plain, noisy = (rows_of(source, stacked(real), 2_000, seed=0) for source in ("again", f"noise {columns}=0.1"))
    assert plain is not None
    assert noisy is not None
    own, spec = getattr(real.spec, columns), real.spec
    others = torch.ones(spec.dim, dtype=torch.bool)
    others[own] = False
    assert torch.equal(plain.rows[..., others], noisy.rows[..., others])
    added = (noisy.rows - plain.rows)[..., own].std((0, 1))
    scale = 0.1 * real.rows[:, own].std(0)
    # Rewards of this task are constant, and clipping makes the noise of actions a little smaller.
    assert torch.allclose(added, scale, rtol=0.1, atol=1e-6)


def test_noise_in_both_keeps_the_change_of_the_observation(real: Transitions) -> None:
    plain, noisy = (rows_of(source, stacked(real), 500, seed=0) for source in ("again", "noise both=0.1"))
    assert plain is not None
    assert noisy is not None
    spec = real.spec
    before, after = (
        each.rows[..., spec.next_observations] - each.rows[..., spec.observations] for each in (plain, noisy)
    )
    assert torch.allclose(before, after, atol=1e-4)
    assert not torch.allclose(plain.rows[..., spec.observations], noisy.rows[..., spec.observations], atol=1e-3)


@pytest.mark.parametrize(
    "source", ["tiiny", "real observations=1", "noise colour=1", "again steps=3", "noise actions=much", ""]
)
def test_unknown_sources_are_refused(real: Transitions, source: str) -> None:
    with pytest.raises(ValueError, match=r"--sources: expected one of real, again, noise"):
        rows_of(source, stacked(real), 100, seed=0)


def test_the_command_measures_every_source(real: Transitions, tmp_path: Path) -> None:
    rows, out = save_rows(tmp_path / "rows", real, 0)[0], tmp_path / "usefulness.json"
    sources = ["real", "noise observations=0.1", "tiny steps=50 width=16"]
    sizes = ["--seeds", "2", "--updates", "40", "--synthetic", "300", "--episodes", "1", "--device", "cpu"]
    main(["--env", TASK, "--rows", str(rows), "--sources", *sources, *sizes, "--out", str(out)])
    written = json.loads(out.read_text())
    assert list(written["results"]) == sources
    for found in written["results"].values():
        assert len(found["returns"]) == 2
        assert all(math.isfinite(value) and value > 0 for value in found["returns"])
    assert {"command", "commit", "machine", "settings"} <= written.keys()


def test_a_bad_source_is_refused_before_any_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--env", TASK, "--rows", str(tmp_path / "missing.npz"), "--sources", "real", "tiny stepz=5"])
    assert "stepz" in capsys.readouterr().err


def test_rows_of_another_task_are_refused(
    real: Transitions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = save_rows(tmp_path / "rows", real, 0)[0]
    with pytest.raises(SystemExit):
        main(["--env", "Hopper-v5", "--rows", str(rows)])
    assert "columns of another task than Hopper-v5" in capsys.readouterr().err
