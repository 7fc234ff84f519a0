"""An online run on Pendulum: stopped, killed, with damaged files, and with seeds and refits that fail."""

import copy
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import online_stand_ins
import pytest
import torch

from synther_replay import DiffusionGenerator
from synther_replay.benchmarks.agents.policy import load_policies, policies_of
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.benchmarks.common.resumable import is_done
from synther_replay.benchmarks.online import actors as online_actors
from synther_replay.benchmarks.online import reporting
from synther_replay.benchmarks.online import results as online_results
from synther_replay.benchmarks.online import run as online_run
from synther_replay.benchmarks.online.run import OnlineRun, run_to_file
from synther_replay.benchmarks.online.settings import ALGORITHMS, Settings
from synther_replay.benchmarks.online.tables import time_table
from synther_replay.errors import CheckpointError, DivergedError, GenerationError
from synther_replay.relevance import Reward

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("error:the environments could not be restored exactly")]

CPU = torch.device("cpu")
STEPS = 260  # an episode of Pendulum is over after 200
EVALUATIONS = (60, 120, 180, STEPS)
SMALL = {"width": 32, "depth": 1, "steps": 20, "refit_steps": 10, "batch_size": 32, "sampling_steps": 3}


def settings(algo="synther", **changes):
    values = {"env": "Pendulum-v1", "algo": algo, "preset": None, "seeds": 2, "steps": STEPS, "utd": 1}
    values |= {"random_steps": 70, "episodes": 1}
    if algo == "synther":
        values |= {"preset": "tiny", "schedule": {"every": 80, "rows": 100}, "generator": SMALL}
    return Settings(**{**values, **changes})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    online_stand_ins.install(monkeypatch)
    monkeypatch.setattr(Settings, "evaluation_steps", lambda self: set(EVALUATIONS))


def run_through(checkpoint, of, device=CPU, **limits):
    """One call of the program: a new run, started or continued."""
    lines = []
    run = OnlineRun(of, device, lines.append)
    finished = run.run(checkpoint, **limits)
    run.lines = lines
    assert finished == run.finished
    return run


def outcome(run):
    """Everything that must not depend on stops."""
    result = {key: value for key, value in run.result().items() if key != "wall_seconds"}
    parts = {"learner": run.agents.learner, "replay": run.agents.replay}
    return copy.deepcopy({**result, **{name: part.state_dict() for name, part in parts.items()}})


@pytest.fixture(scope="module")
def undisturbed():
    """Outcomes of runs that nothing happened to, each made once."""
    made = {}

    def get(of, folder):
        key = json.dumps(of.to_json())
        if key not in made:
            made[key] = outcome(run_through(folder / "undisturbed", of))
        return made[key]

    return get


class Killed(Exception):
    """Stands for a signal."""


def kill_at(monkeypatch, step):
    """Let the next run break off in the middle of a step."""
    taken = []
    end_step = online_stand_ins.Environments.end_step

    def breaking(self):
        taken.append(1)
        if len(taken) == step:
            raise Killed
        return end_step(self)

    monkeypatch.setattr(online_stand_ins.Environments, "end_step", breaking)


def spoil_seed(monkeypatch, agent, step, **fields):
    """Let the environment of one agent become non-finite at a step of each run."""
    create = online_stand_ins.Environments.__init__

    def spoilt(self, *args, **options):
        create(self, *args, **options)
        stream = self.group.streams[agent]
        genuine, taken = stream.step, []

        def one_step(action):
            after = genuine(action)
            taken.append(1)
            return after._replace(**fields) if len(taken) == step else after

        stream.step = one_step

    monkeypatch.setattr(online_stand_ins.Environments, "__init__", spoilt)


class TestRun:
    def test_learns_and_refits_when_it_should(self, tmp_path):
        run = run_through(tmp_path / "c", settings())
        result = run.result()
        assert [(fit["step"], fit["steps"]) for fit in result["fits"]] == [(80, 20), (160, 10), (240, 10)]
        assert [point["step"] for point in result["curve"]] == list(EVALUATIONS)
        assert len({point["returns"][0] for point in result["curve"]}) > 2  # it has learnt something in between
        assert run.agents.replay.count == STEPS
        assert run.agents.replay.has_synthetic
        assert int(run.agents.learner.environment_steps) == STEPS - 70
        assert not (tmp_path / "c").exists()

    def test_value_estimates_are_of_the_latest_steps_once_training_started(self, tmp_path, monkeypatch):
        monkeypatch.setattr(online_actors, "_LATEST", 32)  # the batch size here, so each counts once
        run = run_through(tmp_path / "c", settings())
        value_estimates = run.result()["value_estimates"]
        assert [each["step"] for each in value_estimates] == [step for step in EVALUATIONS if step > 70]
        latest = run.agents.replay.real[:, STEPS - 32 : STEPS, run.agents.spec.rewards.start]
        torch.testing.assert_close(torch.tensor(value_estimates[-1]["reward"]), latest.mean(1), rtol=0, atol=1e-4)
        assert all(0 < temperature < 1 for each in value_estimates for temperature in each["temperature"])

    @pytest.mark.parametrize("critic", ["layernorm", "residual"])
    def test_results_have_the_critic_and_who_left_the_range_of_values(self, tmp_path, monkeypatch, critic):
        for module in (online_run, reporting):
            monkeypatch.setattr(module, "out_of_range", lambda estimates: [0])
        run = run_through(tmp_path / "c", settings("sac", critic=critic))
        result = run.result()
        assert result["critic"] == result["settings"]["critic"] == critic
        for estimates in result["value_estimates"]:
            assert all(a <= b for a, b in zip(estimates["lowest"], estimates["highest"], strict=True))
            assert all(a < 0 < b for a, b in zip(estimates["least"], estimates["most"], strict=True))
        assert [each["seeds"] for each in result["diverged"]] == [[result["seeds"][0]]] * len(result["value_estimates"])
        assert sum("left the range" in line for line in run.lines) == len(result["value_estimates"])

    def test_values_far_above_what_followed_are_reported(self, tmp_path, monkeypatch):
        monkeypatch.setattr(reporting, "overestimating", lambda estimates: [1])
        run = run_through(tmp_path / "c", settings("sac", first_seed=5))
        estimates = run.result()["value_estimates"]
        assert all(excess > 0 for excess in estimates[0]["excess"])  # rewards are negative, values near 0
        assert sum("values of seed(s) 6 are far above" in line for line in run.lines) == len(estimates)

    def test_results_have_the_caution_of_the_targets(self, tmp_path):
        result = run_through(tmp_path / "c", settings("sac", critic="wary")).result()
        caution = [each["caution"] for each in result["value_estimates"]]
        assert caution == [[0.25] * 2, [0.5] * 2, [1.0] * 2]  # rewards are negative and the first values near 0

    def test_policies_of_each_evaluation_can_be_kept(self, tmp_path):
        run = run_through(tmp_path / "c", settings("sac"), keep_policies=tmp_path / "kept")
        files = {step: load_policies(tmp_path / "kept" / f"{step}.safetensors") for step in EVALUATIONS}
        assert len(list((tmp_path / "kept").iterdir())) == len(files)
        last = policies_of(run.agents.learner.policy_weights())
        for policy, kept in zip(last, files[STEPS], strict=True):
            np.testing.assert_array_equal(kept.layers["w2"], policy.layers["w2"].astype(np.float16))

    @pytest.mark.parametrize(("algo", "relevance"), [("sac", {}), ("synther", {}), ("synther", {"name": "curiosity"})])
    def test_warming_up_changes_nothing(self, algo, relevance, tmp_path, undisturbed, same, monkeypatch):
        genuine = OnlineRun._restore

        def enter(self, environments):
            genuine(self, environments)
            self.agents.warm_up()

        of = settings(algo, relevance=relevance)
        undisturbed(of, tmp_path)  # before it is changed
        monkeypatch.setattr(OnlineRun, "_restore", enter)
        assert same(outcome(run_through(tmp_path / "c", of)), undisturbed(of, tmp_path))

    def test_rows_are_what_happened(self, tmp_path):
        run = run_through(tmp_path / "c", settings("sac"))
        rows, spec = run.agents.replay.real, run.agents.spec
        here, led_to = rows[..., spec.observations], rows[..., spec.next_observations]
        follows = (here[:, 1:] == led_to[:, :-1]).all(-1)
        assert (~follows).nonzero().tolist() == [[0, 199], [1, 199]]  # only a new episode begins elsewhere
        assert not rows[..., spec.terminated].any()  # a time limit is no end
        assert rows[..., spec.actions].abs().max() <= 1
        assert len(rows[:, :70, spec.actions].unique()) == 140  # no random action comes twice
        assert (rows[..., spec.rewards] < 0).all()
        assert not torch.equal(rows[0], rows[1])

    def test_seeds_make_the_difference(self, tmp_path, undisturbed, same):
        one = undisturbed(settings("sac"), tmp_path)
        assert same(one, outcome(run_through(tmp_path / "c", settings("sac"))))
        other = outcome(run_through(tmp_path / "d", settings("sac", first_seed=1)))
        assert not same(one["replay"], other["replay"])
        assert (one["seeds"], other["seeds"]) == ([0, 1], [1, 2])

    @pytest.mark.parametrize("algo", ALGORITHMS)
    def test_has_the_networks_of_its_algorithm(self, algo):
        agents = OnlineRun(settings(algo), CPU).agents
        assert agents.learner.settings.critics == (10 if algo == "redq" else 2)
        assert (agents.generator is not None) == (algo == "synther")
        assert agents.replay.mixed.real_ratio == (0.5 if algo == "synther" else 1.0)

    def test_time_left_is_estimated_from_training_steps(self, monkeypatch):
        lines = []
        run = OnlineRun(settings("sac", random_steps=60), CPU, lines.append)
        # 60 s to compile and 20 s for the first steps, which say nothing of those to come, and then 0.4 s for each
        for step, total in ((60, 70.0), (110, 80.0), (160, 100.0), (210, 120.0)):
            run.progress.step, run.progress.seconds["start"] = step, 60.0
            monkeypatch.setattr(run.progress, "total_seconds", lambda total=total: total)
            run._collect(SimpleNamespace(collect=lambda wait, step=step: [step], results={step: [1.0, 3.0]}))
        seconds = [re.findall(r"(\d+) s\b", line) for line in lines]
        assert seconds == [["70"], ["80"], ["100", "40"], ["120", "20"]]  # elapsed, left

    def test_progress_has_the_returns(self):
        lines = []
        run = OnlineRun(settings("sac"), CPU, lines.append)
        run._collect(SimpleNamespace(collect=lambda wait: [60], results={60: [1.0, 3.0]}))
        (line,) = lines
        assert all(part in line for part in ("Pendulum-v1", "sac", "60", str(STEPS), "2.0 +- 1.4", "1.0", "3.0"))
        assert run.progress.curve == {60: [1.0, 3.0]}

    @pytest.mark.parametrize("name", ["curiosity", "reward", "return", "td_error", "value"])
    def test_generation_can_be_guided(self, name, tmp_path, recwarn):
        run = run_through(tmp_path / "c", settings(relevance={"name": name, "top": 0.1}))
        fits = [fit["relevance"] for fit in run.result()["fits"]]
        assert len(fits) == 3
        if name == "return":  # there is one episode at first
            assert fits[0]["share"] == 0
            fits = fits[2:]
        assert all(fit["share"] == 1 and fit["chosen"] > fit["real"] for fit in fits)
        assert not [warning for warning in recwarn if "relevance" in str(warning.message)]

    def test_one_agent_can_be_guided(self, tmp_path):
        run = run_through(tmp_path / "c", settings(relevance={"name": "td_error"}, seeds=1))
        assert all(fit["relevance"]["share"] == 1 for fit in run.result()["fits"])

    def test_a_relevance_that_fails_costs_the_guidance_of_a_refit(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Reward, "score", lambda self, real: real.rewards * float("nan"))
        with pytest.warns(RuntimeWarning, match="relevance") as caught:
            run = run_through(tmp_path / "c", settings(relevance={"name": "reward"}))
        assert len([warning for warning in caught if "relevance" in str(warning.message)]) == 1
        assert [fit["relevance"]["share"] for fit in run.result()["fits"]] == [0, 0, 0]

    def test_an_unknown_task_is_refused(self):
        with pytest.raises(ValueError, match="env: unknown task"):
            OnlineRun(settings(env="Pendulum-v99"), CPU)


class TestResuming:
    @pytest.mark.parametrize(
        ("algo", "changes"),
        [
            ("synther", {}),
            ("redq", {}),
            ("synther", {"critic": "residual"}),
            ("sac20", {"critic": "wary"}),
            ("sac20", {"critic": "steady", "agent": {"reset_at": 60}}),
            ("synther", {"relevance": {"name": "curiosity", "share": 0.5}}),
            ("synther", {"relevance": {"name": "td_error"}, "critic": "residual"}),
        ],
    )
    def test_a_run_stopped_after_each_chunk_equals_an_uninterrupted_one(
        self, algo, changes, tmp_path, undisturbed, same
    ):
        of, stops = settings(algo, **changes), 0
        while not (run := run_through(tmp_path / "c", of, time_limit=0)).finished:
            stops += 1
            assert run.progress.step == stops * 50
            assert run.lines[-1] == f"checkpoint saved at step {stops * 50}"
        assert stops == 5
        assert same(outcome(run), undisturbed(of, tmp_path))

    def test_networks_are_reset_between_steps_of_a_chunk_but_not_while_actions_are_random(self, tmp_path, monkeypatch):
        reset, at = StackedSAC.reset, []

        def recorded(learner, step):
            at.append(step)
            reset(learner, step)

        monkeypatch.setattr(StackedSAC, "reset", recorded)
        run_through(tmp_path / "c", settings("sac", agent={"reset_at": 35}))
        assert at == [140]  # before 70 actions are random, at 70 nothing is learnt yet, 280 is after the last

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.usefixtures("precision_restored")  # the run chooses it
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"relevance": {"name": "curiosity"}},
            {"relevance": {"name": "td_error"}},
            {"critic": "steady", "agent": {"reset_at": 100}},
        ],
    )
    def test_on_a_gpu_a_stopped_run_equals_an_uninterrupted_one(self, changes, tmp_path, monkeypatch, same):
        online_stand_ins.install(monkeypatch, chunk=STEPS // 2)
        monkeypatch.setattr(online_stand_ins.online_actors, "Hyperparameters", Hyperparameters)  # so kernels are used
        gpu, of = torch.device("cuda", 0), settings(**changes)
        expected = outcome(run_through(tmp_path / "undisturbed", of, gpu))
        assert len({point["returns"][0] for point in expected["curve"]}) > 2  # it has learnt something in between
        stopped = run_through(tmp_path / "c", of, gpu, time_limit=0)
        assert stopped.progress.step == STEPS // 2
        assert stopped.agents.replay.has_synthetic
        assert type(stopped.agents.learner.critics).__name__ == "TritonCritics"
        assert same(outcome(run_through(tmp_path / "c", of, gpu)), expected)

    @pytest.mark.parametrize("algo", ["synther", "redq"])
    def test_a_killed_run_resumes_from_its_last_checkpoint(self, algo, tmp_path, undisturbed, same, monkeypatch):
        checkpoint = tmp_path / "c"
        run_through(checkpoint, settings(algo), time_limit=0)
        saved = checkpoint.read_bytes()
        with monkeypatch.context() as patch:
            kill_at(patch, 130)  # steps 50 to 180 are lost, a refit and two evaluations among them
            with pytest.raises(Killed):
                run_through(checkpoint, settings(algo))
        assert checkpoint.read_bytes() == saved
        run = run_through(checkpoint, settings(algo))
        assert run.lines[0] == "resumed at step 50"
        assert same(outcome(run), undisturbed(settings(algo), tmp_path))

    def test_a_run_killed_before_its_first_checkpoint_starts_over(self, tmp_path, undisturbed, same, monkeypatch):
        with monkeypatch.context() as patch:
            kill_at(patch, 20)
            with pytest.raises(Killed):
                run_through(tmp_path / "c", settings("sac"))
        assert not (tmp_path / "c").exists()
        run = run_through(tmp_path / "c", settings("sac"))
        assert same(outcome(run), undisturbed(settings("sac"), tmp_path))

    def test_checkpoints_do_not_change_the_result(self, tmp_path, undisturbed, same):
        run = run_through(tmp_path / "c", settings("sac"), checkpoint_every=0.0)
        saved = [line for line in run.lines if "saved" in line]
        assert saved == [f"checkpoint saved at step {k}" for k in range(50, 251, 50)]
        assert same(outcome(run), undisturbed(settings("sac"), tmp_path))

    def test_other_settings_are_refused_and_the_checkpoint_left_alone(self, tmp_path):
        checkpoint = tmp_path / "c"
        run_through(checkpoint, settings(), time_limit=0)
        saved = checkpoint.read_bytes()
        others = [settings(utd=2), settings(first_seed=7), settings(generator={**SMALL, "sampling_steps": 4})]
        for other in (*others, settings(steps=STEPS + 50), settings("sac")):
            with pytest.raises(ValueError, match="checkpoint has other settings"):
                run_through(checkpoint, other)
        assert checkpoint.read_bytes() == saved

    def test_settings_are_compared_as_json(self, tmp_path):
        of = settings(generator={**SMALL, "betas": (0.9, 0.95)})
        run_through(tmp_path / "c", of, time_limit=0)
        assert run_through(tmp_path / "c", of, time_limit=0).progress.step == 100

    @pytest.mark.parametrize("damage", ["empty", "half", "one byte", "other file"])
    def test_a_damaged_checkpoint_is_an_error_and_left_alone(self, damage, tmp_path):
        checkpoint = tmp_path / "c"
        run_through(checkpoint, settings("sac"), time_limit=0)
        content = checkpoint.read_bytes()
        place = len(content) // 2
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        contents = {"empty": b"", "half": content[:place], "one byte": flipped, "other file": b'{"settings": {}}'}
        checkpoint.write_bytes(contents[damage])
        with pytest.raises(CheckpointError, match=r"path: .*; remove the file to start over"):
            run_through(checkpoint, settings("sac"))
        assert checkpoint.read_bytes() == contents[damage]

    def test_a_full_disk_is_named_and_the_last_checkpoint_kept(self, tmp_path, full_disk):
        full_disk()
        with pytest.raises(OSError, match=r"c: cannot save the checkpoint .* start over"):
            run_through(tmp_path / "c", settings("sac"), time_limit=0)
        assert not list(tmp_path.iterdir())
        full_disk(full=False)
        run_through(tmp_path / "c", settings("sac"), time_limit=0)
        saved = (tmp_path / "c").read_bytes()
        full_disk()
        with pytest.raises(OSError, match=r"c: cannot save the checkpoint .* to resume from the last checkpoint"):
            run_through(tmp_path / "c", settings("sac"), time_limit=0)
        assert (tmp_path / "c").read_bytes() == saved

    def test_environments_that_cannot_be_restored_warn(self, tmp_path, monkeypatch):
        run_through(tmp_path / "c", settings("sac"), time_limit=0)
        create = online_stand_ins.Environments.__init__

        def elsewhere(self, *args, **options):
            create(self, *args, **options)
            replay_to = self.replay_to
            self.replay_to = lambda *where: replay_to(*where) + np.float32(0.25)

        monkeypatch.setattr(online_stand_ins.Environments, "__init__", elsewhere)
        with pytest.warns(UserWarning, match="could not be restored exactly"):
            run = run_through(tmp_path / "c", settings("sac"))
        rows, spec = run.agents.replay.real, run.agents.spec
        # what is stored is where the simulator says it was
        moved = rows[:, 50, spec.observations] - rows[:, 49, spec.next_observations]
        torch.testing.assert_close(moved, torch.full_like(moved, 0.25))

    def test_another_commit_warns_and_is_recorded(self, tmp_path, monkeypatch):
        run_through(tmp_path / "c", settings("sac"), time_limit=0)
        monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "def")
        with pytest.warns(UserWarning, match=r"started with .*abc.*, now .*def"):
            run_through(tmp_path / "c", settings("sac"), time_limit=0)
        run = run_through(tmp_path / "c", settings("sac"))
        assert [entry["commit"] for entry in run.result()["made_on"]] == ["abc", "def"]

    def test_wall_time_adds_up_over_sessions(self, tmp_path):
        first = run_through(tmp_path / "c", settings("sac"), time_limit=0)
        spent = first.progress.wall_seconds()
        second = run_through(tmp_path / "c", settings("sac")).progress.wall_seconds()
        assert second["total"] > first.progress.seconds["learner"]
        for name in ("start", "env", "learner"):
            assert second[name] > spent[name] > 0
        assert second["total"] >= sum(second[name] for name in ("env", "learner", "start", "evaluate"))


class TestFailingSeeds:
    @pytest.mark.parametrize("fields", [{"reward": math.nan}, {"observation": np.full(3, np.inf, np.float32)}])
    def test_a_non_finite_seed_has_no_returns_from_then_on(self, fields, tmp_path, monkeypatch):
        spoil_seed(monkeypatch, agent=1, step=101, **fields)
        with pytest.warns(UserWarning, match="seed 4: .* became non-finite at step 100; stopped, the other"):
            run = run_through(tmp_path / "c", settings(first_seed=3))
        result = run.result()
        assert result["failed_at"] == [None, 100]
        assert [[value is None for value in point["returns"]] for point in result["curve"]] == [
            [False, False],
            [False, True],
            [False, True],
            [False, True],
        ]
        assert all(math.isfinite(point["returns"][0]) for point in result["curve"])
        assert [fit["step"] for fit in result["fits"]] == [80, 160, 240]
        rows = run.agents.replay.real
        assert torch.isfinite(rows).all()
        assert torch.isfinite(run.agents.replay.synthetic).all()
        assert not rows[1, 100:].any()
        assert rows[0].any(-1).all()
        json.dumps(result, allow_nan=False)

    def test_other_seeds_are_unaffected_by_a_failure(self, tmp_path, monkeypatch, undisturbed):
        expected = undisturbed(settings("sac"), tmp_path)  # before anything is spoilt: others read it too
        spoil_seed(monkeypatch, agent=1, step=101, reward=math.nan)
        with pytest.warns(UserWarning, match="became non-finite"):
            found = outcome(run_through(tmp_path / "c", settings("sac")))
        assert torch.equal(found["replay"]["real"][0], expected["replay"]["real"][0])
        assert [p["returns"][0] for p in found["curve"]] == [p["returns"][0] for p in expected["curve"]]

    def test_a_run_with_a_failed_seed_can_be_stopped_too(self, tmp_path, monkeypatch, same):
        def failing(step, name, **limits):
            with (
                monkeypatch.context() as patch,
                pytest.warns(UserWarning, match="seed 1: .* became non-finite at step 100"),
            ):
                spoil_seed(patch, agent=1, step=step, reward=math.nan)
                return run_through(tmp_path / name, settings(), **limits)

        expected = outcome(failing(101, "a"))
        for _ in range(2):
            run = run_through(tmp_path / "b", settings(), time_limit=0)
        failing(1, "b", time_limit=0)
        while not run.finished:
            run = run_through(tmp_path / "b", settings(), time_limit=0)
        assert same(outcome(run), expected)

    def test_a_non_finite_policy_fails_its_seed(self, tmp_path, monkeypatch):
        learn = online_stand_ins.online_actors.StackedSAC.learn

        def spoilt(self):
            learn(self)
            if int(self.environment_steps) == 50:
                self.policy.parameters[0] = math.nan

        monkeypatch.setattr(online_stand_ins.online_actors.StackedSAC, "learn", spoilt)
        with pytest.warns(UserWarning, match="seed 0: .* became non-finite at step 120"):
            run = run_through(tmp_path / "c", settings())
        result = run.result()
        assert result["failed_at"] == [120, None]
        # at step 120 the policy is lost already, though no action of it was taken
        assert [point["returns"][0] is None for point in result["curve"]] == [False, True, True, True]
        assert all(point["returns"][1] is not None for point in result["curve"])
        assert len(result["fits"]) == 3

    def test_a_run_whose_seeds_all_fail_reports_it_and_finishes(self, tmp_path, monkeypatch):
        spoil_seed(monkeypatch, agent=0, step=90, reward=math.nan)
        with pytest.warns(UserWarning, match="became non-finite"):
            run = run_through(tmp_path / "c", settings(seeds=1))
        assert any("return none (all seeds failed)" in line for line in run.lines)
        assert run.result()["curve"][-1] == {"step": STEPS, "returns": [None]}


class TestFailingRefits:
    @pytest.mark.parametrize(
        "error",
        [DivergedError("loss is nan"), GenerationError("no rows"), MemoryError(), RuntimeError("a bug")],
    )
    def test_a_failed_refit_keeps_the_rows_and_the_run_continues(self, error, tmp_path, monkeypatch):
        begin, calls, kept = DiffusionGenerator.begin, [], []

        def second_fails(self, transitions, **options):
            calls.append(transitions.rows.shape[1])
            if len(calls) == 2:
                kept.append(run.agents.replay.synthetic.clone())
                raise error
            if len(calls) == 3:
                kept.append(run.agents.replay.synthetic.clone())
            return begin(self, transitions, **options)

        monkeypatch.setattr(DiffusionGenerator, "begin", second_fails)
        run = OnlineRun(settings(), CPU, lambda line: None)
        with pytest.warns(UserWarning, match="step 160 failed: .*keeping the previous synthetic rows"):
            assert run.run(tmp_path / "c")
        assert calls == [80, 160, 240]
        assert torch.equal(*kept)
        assert kept[0].any()
        assert [fit["step"] for fit in run.result()["fits"]] == [80, 240]

    def test_without_synthetic_rows_batches_are_real(self, tmp_path, monkeypatch):
        def fails(self, transitions, **options):
            raise DivergedError("loss is nan")

        monkeypatch.setattr(DiffusionGenerator, "begin", fails)
        with pytest.warns(UserWarning, match=r"step (80|160|240) failed"):
            run = run_through(tmp_path / "c", settings())
        assert run.result()["fits"] == []
        assert not run.agents.replay.has_synthetic
        assert all(value is not None for point in run.result()["curve"] for value in point["returns"])


class TestToFile:
    @pytest.mark.parametrize("algo", ["sac", "synther"])
    def test_the_figures_read_the_result(self, algo, tmp_path):
        of = settings(algo, first_seed=5)
        path = tmp_path / "deep" / of.env / f"{of.name}.json"
        assert not run_to_file(path, of, CPU, time_limit=0).finished
        assert [p.name for p in path.parent.iterdir()] == [f".{of.name}.checkpoint"]
        run = run_to_file(path, of, CPU)
        assert run.finished
        assert [p.name for p in path.parent.iterdir()] == [path.name]
        assert is_done(path, of)
        read = online_results.read_run(path)
        assert (read.task, read.algorithm, read.budget) == (of.env, of.name, STEPS)
        assert read.steps.tolist() == list(EVALUATIONS)
        assert read.returns.shape == (2, len(EVALUATIONS))
        assert np.isfinite(read.returns).all()
        assert json.loads(path.read_text())["seeds"] == [5, 6]
        assert of.env in time_table([read])

    def test_a_failed_seed_is_read_as_one(self, tmp_path, monkeypatch):
        spoil_seed(monkeypatch, agent=0, step=130, reward=math.nan)
        of = settings("sac")
        with pytest.warns(UserWarning, match="became non-finite"):
            run_to_file(tmp_path / of.env / "sac.json", of, CPU)
        read = online_results.read_run(tmp_path / of.env / "sac.json")
        assert np.isnan(read.returns).tolist() == [[False, False, True, True], [False] * 4]

    def test_an_unwritable_path_is_refused_before_the_run(self, tmp_path, monkeypatch):
        monkeypatch.setattr(OnlineRun, "run", lambda *_, **__: pytest.fail("it ran"))
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="--out: expected a writable folder"):
            run_to_file(tmp_path / "file" / "x" / "sac.json", settings("sac"), CPU)


def test_a_ratio_of_one_learns_as_sac_with_the_same_updates(tmp_path, undisturbed):
    """With real rows only, refits may change the generator and nothing else."""
    of = replace(settings(), real_ratio=1.0)
    found, expected = outcome(run_through(tmp_path / "c", of)), undisturbed(settings("sac"), tmp_path)
    assert torch.equal(found["replay"]["real"], expected["replay"]["real"])
    assert found["curve"] == expected["curve"]
