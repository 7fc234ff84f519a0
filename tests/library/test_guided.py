"""Guided generation in a buffer: what is generated, faults of a relevance, saving and loading."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import (
    DiffusionGenerator,
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.errors import CheckpointError
from synther_replay.options import SourceOptions
from synther_replay.relevance import Curiosity, Guidance, Reward
from synther_replay.relevance.guide import Guide, plan_for

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (1,)))
QUICK = GeneratorConfig.tiny(width=16, depth=1, steps=30, refit_steps=20, batch_size=32, sampling_steps=4)
LEARNT = GeneratorConfig.tiny(width=32, depth=2, steps=300, batch_size=128, sampling_steps=8)
SCHEDULE = RetrainSchedule(every=100, rows=300, start=100)


def rows(n: int = 200, seed: int = 0) -> Transitions:
    """Random rows; the reward is the first observation."""
    x = torch.randn(n, SPEC.dim, generator=torch.Generator().manual_seed(seed))
    x[:, SPEC.actions] = x[:, SPEC.actions].clamp(-1, 1)
    x[:, SPEC.rewards] = x[:, :1]
    x[:, SPEC.terminated] = 0
    return Transitions(SPEC, x)


def buffer(relevance: Any = None, config: GeneratorConfig = QUICK, seed: int = 0, **options: Any) -> Any:
    generator = DiffusionGenerator(SPEC, config, device="cpu", seed=seed)
    real = RingBuffer(SPEC, 5_000, device="cpu", seed=seed)
    return SyntheticReplayBuffer(
        real, generator, **{"schedule": SCHEDULE, "seed": seed, **options}, relevance=relevance
    )


def curious(seed: int = 0) -> Curiosity:
    return Curiosity(hidden=16, batch_size=16, seed=seed)


def run(own: Any, first: int, last: int) -> list[torch.Tensor]:
    """Add rows, refit where due and draw batches."""
    batches = []
    for step in range(first, last):
        own.add(rows(50, seed=step))
        batches.append(own.sample(32).rows.clone())
    return batches


# --- what is generated


@pytest.mark.parametrize(
    ("relevance", "low", "high"),
    [
        (None, -0.25, 0.25),
        (
            {"name": "reward", "guidance": 1},
            0.9,
            1.6,
        ),  # the mean of the highest quarter of a normal distribution is 1.27
        ("reward", 0.9, 3.0),
        ({"name": "reward", "share": 0.5}, 0.4, 1.5),
        ({"name": "reward", "share": 0.01}, -0.25, 0.25),
    ],
)
def test_guided_rows_are_relevant(relevance: Any, low: float, high: float):
    own = buffer(relevance, LEARNT)
    own.add(rows(1_000))
    own.refit(1_000)
    assert low < float(own.store.rows[:, SPEC.rewards.start].mean()) < high


def test_the_report_tells_how_a_refit_was_guided():
    reports: list[Any] = []
    own = buffer({"name": "reward", "top": 0.1, "share": 0.25}, on_refit=reports.append)
    own.add(rows())
    own.refit()
    real = rows().rewards
    assert reports[0].relevance.real == pytest.approx(float(real.mean()))
    assert reports[0].relevance.chosen == pytest.approx(float(real.topk(20).values.mean()))
    assert reports[0].relevance.share == 0.25
    assert own.last_refit is reports[0]


def test_without_relevance_nothing_is_different():
    one, two = buffer(), buffer(None)
    assert all(torch.equal(*pair) for pair in zip(run(one, 0, 5), run(two, 0, 5), strict=True))
    assert two.last_refit.relevance is None
    assert two.relevance is None
    assert two.generator.model.condition_dim == 0


def test_conditions_are_ranks_so_outliers_change_nothing():
    scores = torch.tensor([3.0, 1.0, 2.0, 2.0, -1e30])
    plan = plan_for(scores, Guidance("reward", top=0.6))
    assert plan.condition.tolist() == pytest.approx([0.9, 0.3, 0.6, 0.6, 0.1])
    assert plan.highest.tolist() == pytest.approx([0.9, 0.6, 0.6])
    assert torch.equal(plan_for(scores.clamp(min=0) ** 5, Guidance("reward")).condition, plan.condition)


def test_every_chosen_condition_is_generated_for_as_often_as_the_others():
    plan = plan_for(torch.arange(8.0), Guidance("reward", top=0.5, share=0.5))
    calls: list[Any] = []

    def draw(n: int, **options: Any) -> Transitions:
        calls.append((n, options))
        return rows(n)

    assert len(plan.sample(draw, 24)) == 24
    (guided, options), (rest, none) = calls
    assert (guided, rest, none) == (12, 12, {})
    assert options["condition"].unique(return_counts=True)[1].tolist() == [3, 3, 3, 3]
    assert options["guidance"] == 2.0


def test_runs_of_a_stack_have_ranks_of_their_own():
    plan = plan_for(torch.tensor([[1.0, 2.0], [20.0, 10.0]]), Guidance("reward", top=0.5))
    assert plan.condition.tolist() == [[0.25, 0.75], [0.75, 0.25]]
    assert plan.highest.shape == (2, 1)


def test_rare_rewards_are_aimed_at_and_not_the_many_zeros():
    scores = torch.zeros(2, 1_000)
    scores[0, :100], scores[1, :3] = 1.0, 1.0
    plan = plan_for(scores, Guidance("reward"))
    rewarded, few = (own.unique(return_counts=True) for own in plan.highest)
    assert [part.tolist() for part in rewarded] == [[pytest.approx(0.95)], [250]]
    assert few[1].tolist() == [247, 3]  # three rows are too few to learn a condition from


def test_equal_scores_guide_nothing():
    own = buffer(lambda transitions: torch.ones(len(transitions)))
    own.add(rows())
    assert own.refit().relevance.share == 0


def test_the_network_stays_when_a_refit_is_not_guided():
    scores = [lambda t: t.rewards, lambda t: t.rewards * 0, lambda t: t.rewards]
    own = buffer(lambda transitions: scores[own.refits](transitions))
    own.add(rows())
    assert [own.refit().fit.from_scratch for _ in scores] == [True, False, False]


def test_generate_is_guided_like_the_last_refit():
    own = buffer("reward", LEARNT)
    own.add(rows(1_000))
    own.refit(100)
    assert float(own.generate(500).rewards.mean()) > 0.7


def test_curiosity_learns_as_the_run_goes_on():
    own = buffer(curious())
    run(own, 0, 5)
    assert own.refits == 2
    assert own.relevance.state_dict()["model"]["updates"] == 200
    assert own.last_refit.relevance.chosen > own.last_refit.relevance.real


# --- jobs


class Recorded(Reward):
    """Counts how often it scored."""

    scored = 0

    def score(self, transitions: Transitions) -> torch.Tensor:
        self.scored += 1
        return super().score(transitions)


@pytest.mark.parametrize(("is_self_contained", "at_begin"), [(True, 0), (False, 1)])
def test_only_a_relevance_that_needs_nothing_else_is_left_to_the_job(is_self_contained: bool, at_begin: int):
    relevance = Recorded()
    relevance.is_self_contained = is_self_contained
    own = buffer(relevance)
    own.add(rows())
    job = own.begin()
    assert relevance.scored == at_begin
    own.commit(job)
    assert relevance.scored == 1
    assert own.last_refit.relevance.share == 1


def test_curiosity_is_trained_by_the_job_on_the_rows_of_its_begin(same: Any):
    one, two = buffer(curious()), buffer(curious())
    for own in (one, two):
        own.add(rows())
        own.refit()
        own.add(rows(seed=1))
    before = two.relevance.state_dict()
    one.refit()
    job = two.begin()
    assert same(two.relevance.state_dict(), before)
    two.add(rows(seed=2))
    thread = threading.Thread(target=job.run)
    thread.start()
    thread.join()
    two.commit(job)
    assert torch.equal(one.store.rows, two.store.rows)
    assert same(one._guide.state_dict(), two._guide.state_dict())


@pytest.mark.parametrize("overtake", ["clear", "load_state_dict", "refit"])
def test_curiosity_does_not_learn_from_a_job_that_was_overtaken(overtake: str, same: Any):
    own = buffer(curious())
    own.add(rows())
    own.refit()
    job = own.begin()
    getattr(own, overtake)(*([own.state_dict()] if overtake == "load_state_dict" else []))
    before = own.relevance.state_dict()
    assert job.run().relevance.share == 0
    assert same(own.relevance.state_dict(), before)
    with pytest.raises(ValueError, match="job"):
        own.commit(job)


def test_a_guided_job_that_is_dropped_is_over():
    own = buffer(curious())
    own.add(rows())
    job = own.begin()
    own.add(rows())
    assert own.refit_if_due() is None
    del job
    assert own.refit_if_due() is not None


def test_a_job_that_runs_again_does_not_train_the_relevance_again(monkeypatch: pytest.MonkeyPatch):
    own = buffer(curious())
    own.add(rows())
    job = own.begin()
    with monkeypatch.context() as patch:
        patch.setattr(own.generator, "begin", raises)
        with pytest.raises(RuntimeError, match="of the user"):
            job.run()
    own.commit(job)
    assert own.relevance.state_dict()["model"]["updates"] == 200


# --- faults


def raises(transitions: Transitions, **options: Any) -> Any:
    raise RuntimeError("of the user")


@pytest.mark.parametrize(
    ("relevance", "match"),
    [
        (raises, "of the user"),
        (lambda t: t.rewards * float("nan"), "finite"),
        (lambda t: t.rewards[1:], "shape"),
        (lambda t: t.rows, "shape"),
        (lambda t: "high", "numbers"),
        ("value", "attach"),
        ("return", "order"),
        (Curiosity(hidden=16, learning_rate=1e30), "nothing"),
    ],
)
def test_a_fault_costs_the_guidance_of_that_refit_and_nothing_else(relevance: Any, match: str):
    own = buffer(relevance)
    own.add(rows())
    with pytest.warns(RuntimeWarning, match=match) as caught:
        for _ in range(3):
            report = own.refit()
            assert report.relevance.share == 0
            assert len(own.store) == 300
    assert len(caught) == 1  # and again at the tenth time
    assert own.refits == 3


def test_guidance_comes_back_after_a_fault():
    own = buffer(lambda transitions: transitions.rewards if own.refits else raises(transitions))
    own.add(rows())
    with pytest.warns(RuntimeWarning, match="relevance"):
        own.refit()
    assert own.refit().relevance.share == 1


def test_a_function_that_writes_to_the_rows_does_not_change_what_is_fitted():
    real = rows()
    plan = Guide(Guidance.of(lambda t: t.rewards.mul_(0) + t.rows[:, 1]), 0).plan(real, len(real))
    assert plan.report.share == 1
    assert torch.equal(real.rows, rows().rows)


def test_unknown_names_are_refused_at_the_door():
    for make in (buffer, lambda name: SourceOptions(relevance=name)):
        with pytest.raises(ValueError, match="did you mean 'curiosity'"):
            make("curiousity")


def test_rows_in_random_order_are_refused_at_the_door():
    real = RingBuffer(SPEC, 100, device="cpu")
    real.is_ordered = False  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="order"):
        SyntheticReplayBuffer(real, "tiny", relevance="return", device="cpu")


def test_generators_that_take_no_conditions_are_refused_at_the_door():
    class Plain:
        def fit(self, transitions: Transitions) -> None: ...
        def sample(self, n: int) -> Transitions:
            return rows(n)

    with pytest.raises(TypeError, match="condition"):
        SyntheticReplayBuffer(RingBuffer(SPEC, 100, device="cpu"), Plain(), relevance="reward")


def test_a_failed_refit_keeps_the_plan_of_the_model():
    own = buffer("reward", on_refit=None)
    own.add(rows())
    own.refit()
    before = own._plan
    own.on_refit = lambda report: raises(rows())
    with pytest.raises(RuntimeError, match="of the user"):
        own.refit()
    assert own._plan is before


# --- saving and loading


@pytest.mark.parametrize("make", [curious, lambda seed=0: {"name": "reward", "share": 0.5}])
def test_a_restored_run_continues_exactly(make: Any, tmp_path: Path, same: Any):
    one = buffer(make())
    run(one, 0, 4)
    one.save(tmp_path / "c")
    two = buffer(make(seed=3), seed=9)
    two.load(tmp_path / "c")
    three = copy.deepcopy(one)
    expected = run(one, 4, 9)
    for other in (two, three):
        assert all(torch.equal(*pair) for pair in zip(run(other, 4, 9), expected, strict=True))
        assert same(other.state_dict(), one.state_dict())
        assert torch.equal(other.generate(50).rows, copy.deepcopy(one).generate(50).rows)


def test_the_relevance_of_a_file_must_be_the_same(tmp_path: Path, same: Any):
    one, two = buffer(curious()), buffer("reward")
    run(one, 0, 3)
    one.save(tmp_path / "c")
    before = two.state_dict()
    with pytest.raises(CheckpointError, match="Curiosity"):
        two.load(tmp_path / "c")
    assert same(two.state_dict(), before)


class Network(torch.nn.Module):
    """A relevance that is trained and whose `state_dict` returns the live tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def learn(self, transitions: Transitions, new_rows: int) -> None:
        with torch.no_grad():
            self.weight += 1

    def score(self, transitions: Transitions) -> torch.Tensor:
        return transitions.observations @ self.weight


def test_a_saved_state_of_a_module_does_not_change_later():
    own = buffer(Network())
    own.add(rows())
    state = own.state_dict()
    own.refit()
    assert state["relevance"]["relevance"]["weight"].tolist() == [0, 0]


def test_a_refused_load_leaves_a_module_as_it_was():
    own = buffer(Network())
    own.add(rows())
    own.refit()
    state = copy.deepcopy(own.state_dict())
    state["relevance"]["relevance"]["weight"] += 5
    state["plan"]["highest"] = torch.empty(0)
    with pytest.raises(CheckpointError, match="plan"):
        own.load_state_dict(state)
    assert own.relevance.weight.tolist() == [1, 1]


def test_guidance_can_be_switched_on_and_off_by_a_load(tmp_path: Path):
    plain, guided = buffer(), buffer(curious())
    for own, other in ((plain, guided), (guided, plain)):
        run(own, 0, 3)
        own.save(tmp_path / "c")
        other.load(tmp_path / "c")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            report = other.refit()
        assert (report.relevance is None) == (other is plain)


def test_pickles_do_not_hold_functions():
    own = pickle.loads(pickle.dumps(buffer(lambda transitions: transitions.rewards)))
    own.add(rows())
    with pytest.warns(RuntimeWarning, match="function"):
        own.refit()
    assert len(own.store) == 300


def test_objects_without_state_are_saved_by_name(tmp_path: Path):
    one, two = buffer(Reward()), buffer("reward")
    run(one, 0, 3)
    one.save(tmp_path / "c")
    two.load(tmp_path / "c")
    assert two.steps == one.steps


def test_the_seed_of_the_buffer_is_that_of_a_named_relevance():
    seeds = [buffer("curiosity", seed=seed).relevance.seed for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    own = buffer("curiosity")
    own.reseed(1)
    assert own.relevance.seed == seeds[2]


def test_a_new_meaning_of_the_rows_resets_the_relevance():
    own = buffer(curious())
    own.real.version = 0
    own._version = 0
    run(own, 0, 3)
    own.real.version = 1
    own.refit_if_due()
    starts = own.relevance.state_dict()["starts"]
    assert starts == 2


def test_a_guide_counts_rows_from_the_start_after_starting_over():
    guide = Guide(Guidance(Curiosity(hidden=8, batch_size=8)), 0)
    guide.plan(rows(), 200)
    guide.plan(rows(), 50)  # the real buffer was replaced
    assert guide.relevance.state_dict()["model"]["updates"] == 250
