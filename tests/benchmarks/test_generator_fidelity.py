"""generator_fidelity.py on small data: measurements, result file, figures and errors."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")
from synther_replay import Transitions
from synther_replay.benchmarks import generator_fidelity as fidelity
from synther_replay.benchmarks.data.registry import write
from synther_replay.benchmarks.environments.simulators import make_simulator
from synther_replay.benchmarks.fidelity import run as fidelity_run
from synther_replay.benchmarks.fidelity.measures import BINS, RowMeasures
from synther_replay.benchmarks.fidelity.rows import draw, read_dataset

ROWS = 700
FIGURES = "synther_replay.benchmarks.fidelity.figures"
CPU = torch.device("cpu")
ORIGIN = {"machine", "versions", "command", "commit"}
DYNAMICS = {"asked", "clipped", "answered", "distance", "next_observation_mse", "reward_mse", "bins"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Transitions of one task in an .npz file."""
    simulator, rng = make_simulator("HalfCheetah-v5"), np.random.default_rng(0)
    observation, rows = np.zeros((1, 17), np.float32), []
    for _ in range(ROWS):
        action = rng.uniform(-1, 1, (1, 6)).astype(np.float32)
        following, reward = simulator(observation, action)
        rows.append((observation[0], action[0], np.float32(reward[0]), following[0].astype(np.float32), False))
        observation = following.astype(np.float32)
    names = ("observations", "actions", "rewards", "next_observations", "terminated")
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    path = tmp_path_factory.mktemp("data") / "some.npz"
    np.savez(path, env="HalfCheetah-v5", **columns)
    return path


@pytest.fixture
def run(data, tmp_path, monkeypatch):
    """Run the program on that file; keyword arguments override the options."""

    def main(figures=False, **changes):
        if not figures:  # drawing takes longer than everything else
            monkeypatch.setitem(sys.modules, FIGURES, None)
        usual = {"dataset": data, "rows": 300, "preset": "tiny", "set": "steps=20", "peers": "none"}
        usual |= {"dynamics-rows": 100, "device": "cpu", "out": tmp_path / "result.json"}
        chosen = {key: value for key, value in (usual | changes).items() if value is not None}
        fidelity.main([part for key, value in chosen.items() for part in (f"--{key}", *str(value).split(" "))])
        return json.loads((tmp_path / "result.json").read_text())

    return main


class Copies:
    """Fake peer that memorises its training rows."""

    settings: dict[str, str] = {"package": "none"}  # noqa: RUF012
    parameters = 100

    def __init__(self, name, **options):
        self.options = options

    def fit(self, transitions):
        self.seen = transitions

    def sample(self, n):
        return self.seen[:n]


class Broken(Copies):
    def fit(self, transitions):
        raise RuntimeError("no mixture could be fitted")


@pytest.fixture
def with_package(monkeypatch):
    """Pretend that the package of the peers is installed."""
    monkeypatch.setattr(fidelity, "package", lambda: None)


def test_a_result_has_all_measurements(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    pytest.importorskip("matplotlib")
    content = run(figures=True)
    assert set(content) > ORIGIN
    expected = {"dataset": "some", "data": "file", "set_rows": ROWS, "rows": 300, "held_out_rows": 300, "row_size": 42}
    assert {key: content[key] for key in expected} == expected
    assert content["simulator"] == "HalfCheetah-v5"
    assert list(content["sources"]) == ["real", "held-out", "noise", "synther-tiny-steps-20"]
    for name, entry in content["sources"].items():
        assert set(entry["dynamics"]) == DYNAMICS
        assert entry["dynamics"]["answered"] + entry["dynamics"]["clipped"] <= 100
        assert [sum(counts) for counts in entry["histogram"]] == [300] * 25
        assert set(entry["origin"]) == ORIGIN
        assert name == "real" or 0 < entry["marginal"] <= 1
    real, held_out, noise, ours = content["sources"].values()
    assert real["dynamics"]["distance"]["p90"] == 0
    assert real["dynamics"]["next_observation_mse"]["mean"] < 1e-8
    assert held_out["dynamics"]["distance"]["p10"] > 0
    assert held_out["dynamics"]["next_observation_mse"]["mean"] < 1e-8
    assert held_out["memorisation"] is None
    for entry in (noise, ours):
        assert entry["dynamics"]["next_observation_mse"]["median"] > 0.1
        assert set(entry["memorisation"]) == {
            "synthetic_distance",
            "held_out_distance",
            "ratio",
            "share_closer",
            "rejected",
        }
    assert noise["memorisation"]["share_closer"] > 0.9
    assert len(ours["marginal_by_column"]) == len(ours["columns"]) == 42
    assert ours["columns"][-1]["name"] == "terminated"
    assert any("closer to training" in reason for reason in noise["failures"])
    assert held_out["passed"]
    assert ours["settings"]["width"] == 128
    assert ours["steps"] == 20
    assert ours["fit_seconds"] > 0 < ours["sample_seconds"]
    assert ours["compression"]["fitted"] == pytest.approx(300 * 42 / ours["parameters"])
    assert ours["compression"]["whole_set"] == pytest.approx(ROWS * 42 / ours["parameters"])
    assert content["histogram"]["bins"] == BINS
    assert len(content["histogram"]["columns"]) == len(content["histogram"]["spans"]) == 25
    for name in ("histograms", "dynamics"):
        assert (tmp_path / f"result-{name}.png").read_bytes()[:4] == b"\x89PNG"
    text = capsys.readouterr().out
    for number in ("300 of 700", "300 held out", "| synther-tiny-steps-20 | whole set | 29400 |"):
        assert number in text
    assert any(line.startswith("| real rows") and "| 0 | 0 | 0 |" in line for line in text.splitlines())


def test_results_are_reused_and_extended(run, with_package, monkeypatch):
    first = run()
    monkeypatch.setattr(fidelity_run, "TabularPeer", Copies)
    monkeypatch.setattr(fidelity_run, "DiffusionGenerator", None)  # not called again
    second = run(peers="tvae", **{"peer-epochs": 2})
    assert list(second["sources"]) == [*first["sources"], "tvae-epochs-2"]
    assert {name: second["sources"][name] for name in first["sources"]} == first["sources"]
    copies = second["sources"]["tvae-epochs-2"]
    assert (copies["marginal"], copies["correlation"]) == (1, pytest.approx(1, abs=1e-9))
    assert copies["memorisation"]["share_closer"] == 1
    assert copies["compression"]["fitted"] == 126
    assert second["sources"].keys() == run(peers="tvae", **{"peer-epochs": 2})["sources"].keys()


@pytest.mark.slow
def test_two_runs_agree_and_two_seeds_do_not(run, tmp_path):
    results = []
    for seed in (0, 0, 1):
        results.append(run(seed=seed)["sources"]["synther-tiny-steps-20"])
        (tmp_path / "result.json").unlink()
    marginals = [result["marginal_by_column"] for result in results]
    assert marginals[0] == marginals[1] != marginals[2]
    assert results[0]["dynamics"] == results[1]["dynamics"]


def test_a_peer_that_fails_is_reported_and_tried_again(run, with_package, monkeypatch, capsys):
    monkeypatch.setattr(fidelity_run, "TabularPeer", Broken)
    content = run(peers="ctgan tvae")
    assert content["sources"]["ctgan"]["failed"] == "RuntimeError('no mixture could be fitted')"
    text = capsys.readouterr().out
    assert "ctgan failed: RuntimeError('no mixture could be fitted')" in text
    assert "| tvae | failed |" in text
    monkeypatch.setattr(fidelity_run, "TabularPeer", Copies)
    assert run(peers="ctgan")["sources"]["ctgan"]["marginal"] == 1


def test_peers_are_skipped_without_their_package(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctgan", None)
    assert "synther-tiny-steps-20" in run(peers=None)["sources"]
    assert "synther-replay[fidelity]'`: " in capsys.readouterr().out


def test_without_simulator_and_matplotlib(run, capsys, tmp_path):
    content = run(simulator="none", rows=ROWS)
    assert content["simulator"] is None
    assert content["held_out_rows"] == 0
    assert list(content["sources"]) == ["real", "noise", "synther-tiny-steps-20"]
    for name, entry in content["sources"].items():
        assert entry["dynamics"] is None
        assert name == "real" or entry["memorisation"] is None
    text = capsys.readouterr().out
    assert "no simulator" in text
    assert "figures not drawn" in text
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "halfcheetah-medum-regen"}, r"no halfcheetah-medum-regen.hdf5 .* did you mean halfcheetah-medium"),
        ({"dataset": "nothing.npz"}, "nothing.npz: file not found"),
        ({"rows": ROWS + 1}, "rows: expected 32 to 700 .*, got 701"),
        ({"rows": 31}, "rows: expected 32 to 700 .*, got 31"),
        ({"peers": "gan"}, "argument --peers: invalid choice: 'gan'"),
        ({"peers": "none tvae"}, "--peers: .* got none tvae"),
        ({"set": "stps=20"}, "stps"),
        ({"set": "width=7"}, "width: expected a multiple of 8"),
        ({"set": "width"}, "set: expected NAME=VALUE, got 'width'"),
        ({"peer-epochs": 0}, "--peer-epochs: expected a whole number of at least 1, got 0"),
        ({"seed": -1}, "--seed: expected a whole number of at least 0, got -1"),
        ({"simulator": "Hopper-v5"}, "Hopper-v5: got 17 .*, expected 11 columns of observations and 3 of actions"),
        ({"device": "abacus"}, "device: expected 'auto' or a torch device, got 'abacus'"),
    ],
)
def test_bad_input_is_refused(run, capsys, changes, message, tmp_path, monkeypatch):
    monkeypatch.setenv("SYNTHER_REPLAY_DATASETS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        run(**changes)
    captured = capsys.readouterr()
    assert not captured.out
    assert re.search(message, captured.err), captured.err
    assert not (tmp_path / "result.json").exists()


def test_on_a_full_disk_the_tables_are_printed(run, full_disk, capsys, tmp_path):
    run(set="steps=10")
    before = (tmp_path / "result.json").read_text()
    full_disk()
    with pytest.raises(SystemExit) as stopped:
        run()
    printed, errors = capsys.readouterr()
    assert stopped.value.code == 2
    assert "| synther-tiny-steps-20 | whole set | 29400 |" in printed
    assert "result.json: cannot write the file (No space left on device); run the same command again" in errors
    assert len(errors.splitlines()) == 1
    assert (tmp_path / "result.json").read_text() == before


@pytest.mark.slow
def test_write_error_of_a_figure_keeps_the_result(run, full_disk, capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    run()
    genuine = fidelity.draw_figures
    monkeypatch.setattr(fidelity, "draw_figures", lambda *given: (full_disk(), genuine(*given)))
    monkeypatch.delitem(sys.modules, FIGURES)
    with pytest.raises(SystemExit) as stopped:
        run(figures=True)
    assert stopped.value.code == 2
    assert "result-histograms.png: cannot write the file (No space left on device)" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_an_unwritable_path_is_refused_before_fitting(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(fidelity, "measure", lambda *_: pytest.fail("it fitted"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        run(out=tmp_path / "file" / "result.json")
    assert "--out: expected a writable folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(out=tmp_path)
    assert f"--out: expected a file, got the folder {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"curve": []}', "[1]", "[1"])
def test_figures_of_other_files_are_refused(capsys, tmp_path, text):
    pytest.importorskip("matplotlib")
    from synther_replay.benchmarks import figures

    (tmp_path / "other.json").write_text(text)
    with pytest.raises(SystemExit):
        figures.main(["fidelity", str(tmp_path / "other.json")])
    assert "other.json: expected a result of generator_fidelity.py: " in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


def test_a_result_of_other_settings_is_not_overwritten(run, capsys, tmp_path):
    out = tmp_path / "result.json"
    for text in ("{}", "[1", '{"sources": 3}'):
        out.write_text(text)
        with pytest.raises(SystemExit):
            run()
        assert "not a result file of this program" in capsys.readouterr().err
        assert out.read_text() == text
    out.unlink()
    run()
    before = out.read_text()
    with pytest.raises(SystemExit):
        run(rows=200)
    assert "(rows: got 300, expected 200)" in capsys.readouterr().err
    assert out.read_text() == before


def test_damaged_files_are_refused(data, tmp_path):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(data.read_bytes()[:5_000])
    with pytest.raises(ValueError, match=r"broken.npz: cannot read the file as .npz"):
        read_dataset(str(broken))
    with np.load(data) as file:
        arrays = dict(file.items())
    for missing, named in (("next_observations", "next_observations"), ("terminated", "terminals")):
        np.savez(broken, **{key: value for key, value in arrays.items() if key != missing})
        with pytest.raises(ValueError, match=f"missing {named}"):
            read_dataset(str(broken))
    arrays["rewards"][3] = np.nan
    np.savez(broken, **arrays)
    with pytest.raises(ValueError, match="1 of 700 rows are non-finite"):
        read_dataset(str(broken))


def test_training_and_held_out_rows_are_disjoint(data):
    dataset = read_dataset(str(data))
    real, held_out = draw(dataset, 500, 0, CPU)
    assert held_out is not None
    assert (len(real), len(held_out)) == (500, 200)
    both = torch.cat([real.rows, held_out.rows])
    assert len(both.unique(dim=0)) == ROWS
    assert draw(dataset, ROWS - 1, 0, CPU)[1] is None


def test_histograms_count_every_row_once(data):
    real, _ = draw(read_dataset(str(data)), 500, 0, CPU)
    measures = RowMeasures(real, None, None, dynamics_rows=1, seed=0)
    rows = real.rows.clone()
    rows[0, :] = 1e9  # beyond the last bin
    rows[1, 3] = torch.nan
    counts = np.array(measures.histogram(Transitions(real.spec, rows)))
    assert counts.shape == (25, BINS)
    assert (counts.sum(axis=1) == 499).all()
    assert list(measures.columns)[:2] == ["observation 0", "observation 1"]
    assert list(measures.columns)[-2:] == ["reward", "terminated"]
    low, high = measures.spans[-1]
    assert (low, high) == (-0.5, 0.5)  # no row terminated
    assert counts[-1, BINS // 2] == 498
    assert counts[-1, -1] == 1


def test_a_regenerated_set_is_found_by_its_name(run, tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    observations = rng.uniform([2.7, 1.0, -1.0, -1.0], [3.0, 3.0, 1.0, 1.0], (200, 4)).astype(np.float32)
    actions = rng.uniform(-1, 1, (200, 2)).astype(np.float32)
    following, rewards = make_simulator("maze2d-umaze")(observations, actions)
    arrays = {"observations": observations, "actions": actions, "rewards": rewards, "next_observations": following}
    flags = {"terminals": np.zeros(200, bool), "timeouts": np.zeros(200, bool)}
    about = {"command": "none", "recipe": "none"}
    write(tmp_path / "sets" / "maze2d-umaze-regen.hdf5", {**arrays, **flags}, about)
    monkeypatch.setenv("SYNTHER_REPLAY_DATASETS", str(tmp_path / "sets"))
    content = run(dataset="maze2d-umaze-regen", rows=100)
    assert (content["dataset"], content["data"]) == ("maze2d-umaze-regen", "regenerated")
    assert (content["set_rows"], content["held_out_rows"]) == (199, 99)
    assert content["simulator"] == "maze2d-umaze"
    assert content["sources"]["held-out"]["dynamics"]["next_observation_mse"]["mean"] < 1e-10
