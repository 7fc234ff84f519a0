"""An offline run on Hopper and in a maze: to its end, stopped, killed, with damaged files and policies that fail."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import offline_stand_ins
import online_stand_ins
import pytest
import torch
from offline_stand_ins import GENERATOR, HOPPER, MAZE, STEPS, config

from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.agents.offline_base import OfflineLearner
from synther_replay.benchmarks.agents.policy import policies_of
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.common import provenance, resumable, timing
from synther_replay.benchmarks.common.resumable import is_done
from synther_replay.benchmarks.environments.tasks import agent_seed
from synther_replay.benchmarks.offline import run as offline_run
from synther_replay.benchmarks.offline.rows import DataSource
from synther_replay.benchmarks.offline.run import OfflineRun, run_to_file
from synther_replay.benchmarks.offline.settings import ALGORITHMS, OfflineConfig
from synther_replay.errors import CheckpointError
from synther_replay.persistence import checkpoint as checkpoints
from synther_replay.persistence import tensor_file

CPU = torch.device("cpu")
EVALUATIONS = [16, 32, STEPS]
STOPS = [12, 16, 24, 32, 36]  # where a chunk ends: every 12 updates, and where it is judged
BOTH = pytest.mark.parametrize("algo", ["td3bc", "iql"])
ALL = pytest.mark.parametrize("algo", list(ALGORITHMS))
KEYS = {"dataset", "algo", "data", "preset", "steps", "subsample", "augment", "worsen", "network", "precise"}
KEYS |= {"seeds", "origin"}
KEYS |= {"task", "timeouts_derived", "real_rows", "dataset_command", "dataset_digest", "made_on"}
KEYS |= {"curve", "final", "value_estimates", "wall_seconds", "settings"}
OF_GENERATOR = {"synthetic_rows", "fit_seconds", "generate_seconds", "fit_steps", "held_out_loss", "generator_commit"}
OF_GENERATOR |= {"terminals"}
TIMES = ("wall_seconds", "fit_seconds", "generate_seconds")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return offline_stand_ins.write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    offline_stand_ins.no_other_sets(monkeypatch, tmp_path)
    offline_stand_ins.install(monkeypatch)


@pytest.fixture
def run_through(folder):
    """One call of the program: a new run, started or continued."""

    def run(checkpoint, of, **limits):
        lines = []
        made = OfflineRun(of, DataSource(folder, CPU), lines.append)
        finished = made.run(checkpoint, **limits)
        made.lines = lines
        assert finished == made.finished
        return made

    return run


def outcome(run):
    """Everything that must not depend on stops."""
    result = {key: value for key, value in run.result().items() if key not in TIMES}
    return copy.deepcopy({**result, "learner": run.learner.state_dict(), "rows": run.rows.rows})


@pytest.fixture(scope="module")
def kept():
    return {}


@pytest.fixture
def undisturbed(kept, run_through, tmp_path):
    """Outcomes of runs that nothing happened to, each made once."""

    def get(of):
        key = json.dumps(of.to_json())
        if key not in kept:
            kept[key] = outcome(run_through(tmp_path / "undisturbed", of))
        return kept[key]

    return get


class Killed(Exception):
    """Stands for a signal."""


def after_learning(monkeypatch, act):
    """Call `act` with the learner and the number of its call whenever it has learnt."""
    calls, genuine = [], OfflineLearner.learn

    def learn(self):
        genuine(self)
        calls.append(1)
        act(self, len(calls))

    monkeypatch.setattr(OfflineLearner, "learn", learn)


def kill_at(monkeypatch, call):
    """Let the next run break off in the middle of a chunk."""

    def act(learner, count):
        if count == call:
            raise Killed

    after_learning(monkeypatch, act)


def spoil_policy(monkeypatch, agent, updates):
    """Let one agent's policy become non-finite."""

    def act(learner, count):
        if int(learner.updates) == updates:
            learner.policy.parameters[agent] = math.nan

    after_learning(monkeypatch, act)


class TestRun:
    @pytest.mark.parametrize("data", ["real", "synther", "mixed"])
    @BOTH
    def test_trains_and_evaluates(self, algo, data, tmp_path, run_through):
        run = run_through(tmp_path / "c", config(algo, data))
        result = run.result()
        assert [point["step"] for point in result["curve"]] == EVALUATIONS
        assert len({point["returns"][0] for point in result["curve"]}) > 1  # it has learnt something in between
        assert [each["step"] for each in result["value_estimates"]] == EVALUATIONS
        assert result["value_estimates"][-1]["value"] == pytest.approx(
            run.learner.value_estimates()["value"].tolist(), rel=1e-4
        )
        assert int(run.learner.updates) == run.updates == STEPS
        assert not (tmp_path / "c").exists()
        assert result.keys() == (KEYS if data == "real" else KEYS | OF_GENERATOR)
        assert (result["task"], result["origin"], result["seeds"]) == ("Hopper-v5", "regenerated", [0, 1])
        assert result["settings"] == config(algo, data).to_json()
        assert (result["algo"], result["data"], result["steps"]) == (algo, data, STEPS)
        assert json.loads(json.dumps(result, allow_nan=False)) == result

    def test_scores_are_those_of_d4rl_and_the_last_are_final(self, tmp_path, run_through):
        result = run_through(tmp_path / "c", config()).result()
        for point in result["curve"]:
            expected = [100 * (value + 20.272305) / (3234.3 + 20.272305) for value in point["returns"]]
            assert point["scores"] == pytest.approx(expected, abs=0.006)
        assert result["final"] == result["curve"][-1]["scores"]
        assert result["final"] != result["curve"][0]["scores"]

    def test_each_seed_is_evaluated_with_its_policy(self, tmp_path, run_through):
        run = run_through(tmp_path / "c", config(first_seed=3, episodes=2))
        policies = policies_of(run.learner.policy_weights())
        expected = [mean_return("Hopper-v5", policies[agent], agent_seed(3 + agent), 2) for agent in range(2)]
        assert run.result()["curve"][-1]["returns"] == pytest.approx(expected, abs=0.006)
        assert run.result()["seeds"] == [3, 4]

    def test_a_maze_has_its_own_task_and_scores(self, tmp_path, run_through):
        run = run_through(tmp_path / "c", config(dataset=MAZE, data="mixed", seeds=1, steps=8))
        result = run.result()
        (policy,) = policies_of(run.learner.policy_weights())
        earned = mean_return("maze2d-umaze", policy, agent_seed(0), 1)
        assert result["task"] == "maze2d-umaze"
        assert result["curve"][-1]["returns"] == [earned]
        assert result["final"] == pytest.approx([100 * (earned - 23.85) / (161.86 - 23.85)], abs=0.006)

    @pytest.mark.parametrize(
        ("steps", "every", "expected"), [(32, 16, [16, 32]), (8, 16, [8]), (12, 4, [4, 8, 12]), (16, 16, [16])]
    )
    def test_evaluations_are_at_intervals_and_at_the_end(self, tmp_path, run_through, steps, every, expected):
        run = run_through(tmp_path / "c", config(steps=steps, evaluate_every=every, seeds=1))
        assert [point["step"] for point in run.result()["curve"]] == expected
        assert int(run.learner.updates) == steps

    @BOTH
    def test_seeds_make_the_difference(self, algo, tmp_path, run_through, undisturbed, same):
        one = undisturbed(config(algo))
        assert same(one, outcome(run_through(tmp_path / "c", config(algo))))
        other = outcome(run_through(tmp_path / "d", config(algo, first_seed=1)))
        assert same(one["rows"], other["rows"])
        assert not same(one["learner"], other["learner"])

    def test_each_call_has_its_own_random_stream(self, tmp_path, run_through, monkeypatch):
        drawn, genuine = [], offline_run.DataSource.rows

        def rows(self, of):
            found, about = genuine(self, of)
            draw = found.draw
            found.draw = lambda *size, rng: (drawn.append(rng.get_state().numpy().tobytes()), draw(*size, rng=rng))[1]
            return found, about

        monkeypatch.setattr(offline_run.DataSource, "rows", rows)
        run_through(tmp_path / "c", config())
        assert len(set(drawn)) == len(drawn) == STEPS // 4

    @ALL
    def test_neither_chunks_nor_evaluations_change_the_agents(self, algo, tmp_path, run_through, monkeypatch, same):
        one = run_through(tmp_path / "c", config(algo, seeds=1))
        monkeypatch.setitem(offline_run.CHUNK, "cpu", 20)
        other = run_through(tmp_path / "d", config(algo, seeds=1, evaluate_every=STEPS))
        assert same(one.learner.state_dict(), other.learner.state_dict())

    def test_it_reports_scores_and_time(self, tmp_path, run_through):
        run = run_through(tmp_path / "c", config(steps=16))
        (line,) = run.lines
        one, other = run.result()["final"]
        spread = f"{(one + other) / 2:.1f} +- {abs(one - other) / 2**0.5:.1f}"
        assert line.startswith(f"{HOPPER} td3bc-real update 16 of 16: score {spread}, ")
        assert line.endswith(" s elapsed, about 0 s left")

    @pytest.mark.parametrize(("workers", "expected"), [(1, 1), (2, 2), (64, 2)])
    def test_there_are_no_more_processes_than_seeds(self, tmp_path, run_through, monkeypatch, workers, expected):
        seen = []

        class Evaluator(online_stand_ins.Evaluator):
            def __init__(self, task, seeds, *, episodes, workers):
                seen.append((task, seeds, episodes, workers))
                super().__init__(task, seeds, episodes=episodes, workers=workers)

        monkeypatch.setattr(offline_run, "Evaluator", Evaluator)
        run_through(tmp_path / "c", config(steps=4), workers=workers)
        assert seen == [("Hopper-v5", [agent_seed(0), agent_seed(1)], 1, expected)]


class TestResuming:
    @pytest.mark.slow
    @pytest.mark.parametrize("data", ["real", "synther"])
    @ALL
    def test_a_run_stopped_after_each_chunk_equals_an_uninterrupted_one(
        self, algo, data, tmp_path, run_through, undisturbed, same
    ):
        for stop in STOPS:
            run = run_through(tmp_path / "c", config(algo, data), time_limit=0)
            assert (run.finished, run.updates) == (False, stop)
            assert run.lines[-1] == f"checkpoint saved at update {stop}"
        run = run_through(tmp_path / "c", config(algo, data), time_limit=0)
        assert run.finished
        assert same(outcome(run), undisturbed(config(algo, data)))

    @pytest.mark.parametrize("data", ["real", "synther"])
    @BOTH
    def test_a_killed_run_resumes_from_its_last_checkpoint(
        self, algo, data, tmp_path, run_through, undisturbed, same, monkeypatch
    ):
        checkpoint = tmp_path / "c"
        run_through(checkpoint, config(algo, data), time_limit=0)
        saved = checkpoint.read_bytes()
        with monkeypatch.context() as patch:
            kill_at(patch, 4)  # updates 12 to 28 are lost, an evaluation among them
            with pytest.raises(Killed):
                run_through(checkpoint, config(algo, data))
        assert checkpoint.read_bytes() == saved
        run = run_through(checkpoint, config(algo, data))
        assert run.lines[0] == "resumed at update 12"
        assert same(outcome(run), undisturbed(config(algo, data)))

    def test_a_run_killed_before_its_first_checkpoint_starts_over(
        self, tmp_path, run_through, undisturbed, same, monkeypatch
    ):
        with monkeypatch.context() as patch:
            kill_at(patch, 2)
            with pytest.raises(Killed):
                run_through(tmp_path / "c", config())
        assert not (tmp_path / "c").exists()
        assert same(outcome(run_through(tmp_path / "c", config())), undisturbed(config()))

    def test_checkpoints_do_not_change_the_result(self, tmp_path, run_through, undisturbed, same):
        run = run_through(tmp_path / "c", config(), checkpoint_every=0.0)
        assert [line for line in run.lines if "saved" in line] == [f"checkpoint saved at update {k}" for k in STOPS]
        assert same(outcome(run), undisturbed(config()))

    def test_checkpoints_have_the_requested_interval(self, tmp_path, run_through, monkeypatch):
        clock = SimpleNamespace(now=0.0)
        for module in (resumable, timing):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

        def a_second_later(learner, count):
            clock.now += 1

        after_learning(monkeypatch, a_second_later)
        run = run_through(tmp_path / "c", config(), checkpoint_every=3.5)
        # chunks end at seconds 3, 4, 6, 8, 9 and 10
        assert [line for line in run.lines if "saved" in line] == [
            "checkpoint saved at update 16",
            "checkpoint saved at update 32",
        ]

    def test_no_checkpoint_is_saved_before_the_interval(self, tmp_path, run_through):
        run = run_through(tmp_path / "c", config(), time_limit=1e6)
        assert not [line for line in run.lines if "saved" in line]

    def test_other_settings_are_refused_and_the_checkpoint_left_alone(self, tmp_path, run_through):
        checkpoint = tmp_path / "c"
        run_through(checkpoint, config(data="synther"), time_limit=0)
        saved = checkpoint.read_bytes()
        others = [{"first_seed": 7}, {"steps": STEPS + 4}, {"rows": 64}, {"generator": {**GENERATOR, "depth": 2}}]
        for other in (*(config(data="synther", **changes) for changes in others), config(), config("iql", "synther")):
            with pytest.raises(ValueError, match="checkpoint has other settings"):
                run_through(checkpoint, other)
        assert checkpoint.read_bytes() == saved

    @pytest.mark.parametrize("data", ["real", "synther"])
    def test_other_rows_are_refused_and_the_checkpoint_left_alone(self, data, tmp_path, run_through, monkeypatch):
        run_through(tmp_path / "c", config(data=data), time_limit=0)
        saved = (tmp_path / "c").read_bytes()
        genuine = SharedRows.__init__

        def slightly_other(self, *args, **options):
            genuine(self, *args, **options)
            self.rows[3, 1] += 1e-3

        monkeypatch.setattr(SharedRows, "__init__", slightly_other)
        with pytest.raises(ValueError, match="saved with other rows"):
            run_through(tmp_path / "c", config(data=data))
        assert (tmp_path / "c").read_bytes() == saved

    def test_another_commit_warns_and_is_recorded(self, tmp_path, run_through, monkeypatch):
        monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
        run_through(tmp_path / "c", config(), time_limit=0)
        monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "def")
        with pytest.warns(UserWarning, match=r"started with .*abc.*, now .*def"):
            run = run_through(tmp_path / "c", config())
        assert [entry["commit"] for entry in run.result()["made_on"]] == ["abc", "def"]

    def test_a_checkpoint_without_value_estimates_resumes(self, tmp_path, run_through):
        for _ in range(2):  # beyond the first evaluation
            run_through(tmp_path / "c", config(), time_limit=0)
        state = checkpoints.load_checkpoint(tmp_path / "c", offline_run.KIND)
        assert list(state.pop("value_estimates")) == [str(EVALUATIONS[0])]
        checkpoints.save_checkpoint(tmp_path / "c", offline_run.KIND, state)
        result = run_through(tmp_path / "c", config()).result()
        assert [each["step"] for each in result["value_estimates"]] == EVALUATIONS[1:]
        assert [point["step"] for point in result["curve"]] == EVALUATIONS

    def test_a_checkpoint_of_other_hyper_parameters_is_refused(self, tmp_path, run_through, monkeypatch):
        run_through(tmp_path / "c", config(), time_limit=0)
        settings = OfflineConfig._settings
        monkeypatch.setattr(OfflineConfig, "_settings", lambda self: replace(settings(self), alpha=1.0))
        with pytest.raises(ValueError, match="checkpoint has other settings"):
            run_through(tmp_path / "c", config())

    def test_settings_are_compared_as_json(self, tmp_path, run_through):
        of = config(data="synther", generator={**GENERATOR, "betas": (0.9, 0.95)})
        run_through(tmp_path / "c", of, time_limit=0)
        assert run_through(tmp_path / "c", of, time_limit=0).updates == STOPS[1]

    @pytest.mark.parametrize("damage", ["empty", "half", "one byte", "other file", "other kind"])
    def test_a_damaged_checkpoint_is_an_error_and_left_alone(self, damage, tmp_path, run_through):
        checkpoint = tmp_path / "c"
        run_through(checkpoint, config(), time_limit=0)
        content = checkpoint.read_bytes()
        place = len(content) // 2
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        checkpoints.save_checkpoint(tmp_path / "other", "online run", {"settings": config().to_json()})
        contents = {"empty": b"", "half": content[:place], "one byte": flipped, "other file": b'{"settings": {}}'}
        contents["other kind"] = (tmp_path / "other").read_bytes()
        checkpoint.write_bytes(contents[damage])
        with pytest.raises(CheckpointError, match=r"path: .*; remove the file to start over"):
            run_through(checkpoint, config())
        assert checkpoint.read_bytes() == contents[damage]

    def test_a_full_disk_is_named_and_the_last_checkpoint_kept(
        self, tmp_path, run_through, undisturbed, same, monkeypatch
    ):
        expected = undisturbed(config())
        checkpoint = tmp_path / "in" / "c"
        checkpoint.parent.mkdir()
        run_through(checkpoint, config(), time_limit=0)
        saved = checkpoint.read_bytes()

        def half(path, tensors, metadata):
            Path(path).write_bytes(b"half of it")
            raise OSError("No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(tensor_file, "write", half)
            told = r"in/c: cannot save the checkpoint \(No space left on device\); .* to resume"
            with pytest.raises(OSError, match=told):
                run_through(checkpoint, config(), time_limit=0)
        assert [path.name for path in checkpoint.parent.iterdir()] == ["c"]
        assert checkpoint.read_bytes() == saved
        assert same(outcome(run_through(checkpoint, config())), expected)

    def test_a_full_disk_keeps_nothing_where_nothing_was_saved(self, tmp_path, run_through, full_disk):
        full_disk()
        with pytest.raises(OSError, match=r"cannot save the checkpoint .* start over"):
            run_through(tmp_path / "c", config(), time_limit=0)
        assert not (tmp_path / "c").exists()

    def test_wall_time_adds_up_over_sessions(self, tmp_path, run_through):
        spent = run_through(tmp_path / "c", config(data="synther"), time_limit=0).watch.wall_seconds()
        second = run_through(tmp_path / "c", config(data="synther")).watch.wall_seconds()
        assert second["total"] > spent["total"]
        for name in ("data", "learner", "evaluate", "start"):
            assert second[name] > spent[name] > 0
        assert second["total"] >= sum(seconds for name, seconds in second.items() if name != "total")

    def test_the_time_limit_counts_from_the_resumption(self, tmp_path, run_through):
        """Not from where it was started: it would stop after each chunk for ever."""
        run_through(tmp_path / "c", config(), time_limit=0)
        state = checkpoints.load_checkpoint(tmp_path / "c", offline_run.KIND)
        state["seconds"]["total"] = 1e5
        checkpoints.save_checkpoint(tmp_path / "c", offline_run.KIND, state)
        run = run_through(tmp_path / "c", config(), time_limit=1e4, checkpoint_every=1e4)
        assert run.finished
        assert not [line for line in run.lines if "saved" in line]
        assert run.result()["wall_seconds"]["total"] > 1e5


class TestFailingPolicies:
    @BOTH
    def test_a_non_finite_policy_has_no_score_and_others_are_unaffected(
        self, algo, tmp_path, run_through, undisturbed, monkeypatch
    ):
        expected = undisturbed(config(algo))  # before anything is spoilt
        spoil_policy(monkeypatch, agent=0, updates=20)
        result = run_through(tmp_path / "c", config(algo)).result()
        for key in ("returns", "scores"):
            assert [point[key][0] is None for point in result["curve"]] == [False, True, True]
            assert [point[key][1] for point in result["curve"]] == [point[key][1] for point in expected["curve"]]
        assert result["final"][0] is None
        assert [each["value_of_own"][0] is None for each in result["value_estimates"]] == [False, True, True]
        json.dumps(result, allow_nan=False)

    def test_a_resumed_run_keeps_the_failure(self, tmp_path, run_through, monkeypatch, same):
        spoil_policy(monkeypatch, agent=0, updates=20)
        expected = run_through(tmp_path / "a", config())
        for _ in (*STOPS, STEPS):
            run = run_through(tmp_path / "b", config(), time_limit=0)
        assert same(outcome(run), outcome(expected))
        assert run.result()["final"][0] is None

    def test_a_run_whose_seeds_all_fail_reports_it_and_finishes(self, tmp_path, run_through, monkeypatch):
        spoil_policy(monkeypatch, agent=0, updates=4)
        run = run_through(tmp_path / "c", config(seeds=1))
        assert [": score none (all seeds failed), " in line for line in run.lines] == [True] * 3
        assert run.result()["final"] == [None]


@pytest.mark.parametrize("precise", [False, True])
def test_precision_is_that_of_the_agents_and_not_of_their_generator(precise, folder, monkeypatch):
    events, source = [], DataSource(folder, CPU)
    monkeypatch.setattr(offline_run, "choose_precision", lambda _, *, precise=False: events.append(precise))
    rows, of = source.rows, config(precise=precise)
    monkeypatch.setattr(source, "rows", lambda config: (events.append("rows"), rows(config))[1])
    learner = OfflineConfig.learner
    monkeypatch.setattr(OfflineConfig, "learner", lambda *args: (events.append("learner"), learner(*args))[1])
    OfflineRun(of, source)
    assert events == [False, "rows", precise, "learner"]


class TestToFile:
    @pytest.fixture
    def source(self, folder):
        return DataSource(folder, CPU)

    @pytest.mark.parametrize("data", ["real", "synther"])
    def test_a_run_stops_resumes_and_leaves_only_its_result(self, data, tmp_path, source, capsys):
        of = config(data=data, first_seed=5)
        path = tmp_path / "deep" / of.dataset / f"{of.name}.json"
        assert not run_to_file(path, of, source, time_limit=0).finished
        assert [p.name for p in path.parent.iterdir()] == [f".{of.name}.checkpoint"]
        run = run_to_file(path, of, source)
        assert run.finished
        assert [p.name for p in path.parent.iterdir()] == [path.name]
        assert is_done(path, of)
        content = json.loads(path.read_text())
        origin = {"machine", "versions", "command", "commit"}
        assert content.keys() == KEYS | origin | (OF_GENERATOR if data == "synther" else set())
        assert content["seeds"] == [5, 6]
        assert content["curve"] == run.result()["curve"]
        assert content["wall_seconds"].keys() == {"total", *offline_run.CLOCKS}
        assert "resumed at update 12" in capsys.readouterr().out

    def test_a_foreign_checkpoint_is_refused_before_fitting(self, tmp_path, source, monkeypatch):
        of = config(data="synther")
        path = tmp_path / f"{of.name}.json"
        run_to_file(path, of, source, time_limit=0)
        monkeypatch.setattr(DataSource, "rows", lambda *_: pytest.fail("it made rows"))
        with pytest.raises(ValueError, match="checkpoint has other settings"):
            run_to_file(path, config(data="synther", rows=64), source)
        checkpoint = tmp_path / f".{of.name}.checkpoint"
        checkpoint.write_bytes(b"damaged")
        with pytest.raises(CheckpointError, match="path: "):
            run_to_file(path, of, source)
        assert checkpoint.read_bytes() == b"damaged"

    def test_an_unwritable_path_is_refused_before_fitting(self, tmp_path, source, monkeypatch):
        monkeypatch.setattr(DataSource, "rows", lambda *_: pytest.fail("it made rows"))
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="--out: expected a writable folder"):
            run_to_file(tmp_path / "file" / "x" / "td3bc-real.json", config(), source)

    def test_a_folder_without_write_permission_is_refused(self, tmp_path, source, monkeypatch):
        monkeypatch.setattr(DataSource, "rows", lambda *_: pytest.fail("it made rows"))
        monkeypatch.setattr(provenance.os, "access", lambda *_: False)  # as it is for all but root
        with pytest.raises(ValueError, match=r"--out: expected a writable folder, got .*no write permission"):
            run_to_file(tmp_path / "td3bc-real.json", config(), source)

    def test_an_unwritable_result_is_printed_and_the_checkpoint_stays(self, tmp_path, source, full_disk, capsys):
        path, of = tmp_path / "td3bc-real.json", config()
        run_to_file(path, of, source, time_limit=0)
        told = r"td3bc-real\.json: cannot write the file .* printed to stdout; .* to resume from the last checkpoint"
        full_disk()
        with pytest.raises(OSError, match=told):
            run_to_file(path, of, source)
        printed = capsys.readouterr().out.splitlines()[-1]
        assert [p.name for p in tmp_path.iterdir()] == [".td3bc-real.checkpoint"]
        full_disk(full=False)
        run_to_file(path, of, source)
        found, expected = json.loads(printed), json.loads(path.read_text())
        assert found.keys() == expected.keys()
        assert found["curve"] == expected["curve"]
        path.write_text(printed)
        assert is_done(path, of)

    def test_the_error_does_not_claim_a_failed_print(self, tmp_path, source, full_disk, monkeypatch):
        def no_room(*_, **__):
            raise OSError("No space left on device")

        monkeypatch.setattr(resumable, "print", no_room, raising=False)
        full_disk()
        with pytest.raises(OSError, match=r"real\.json: cannot write the file \([^)]*\); free .* start over"):
            run_to_file(tmp_path / "td3bc-real.json", config(), source)

    def test_a_missing_data_set_leaves_no_folder(self, tmp_path, source):
        with pytest.raises(FileNotFoundError, match="hopper-random"):
            run_to_file(tmp_path / "deep" / "td3bc-real.json", config(dataset="hopper-random-regen"), source)
        assert not list(tmp_path.iterdir())
