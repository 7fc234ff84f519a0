"""The setting `exact`: discrete values, possible transitions, and outcomes at their rate and place."""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from synther_replay.config import GeneratorConfig
from synther_replay.data.calibration import LEAST_ROWS
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError, DivergedError
from synther_replay.generator import KIND, DiffusionGenerator
from synther_replay.model import outcomes as outcomes_module
from synther_replay.model.outcomes import OutcomeModel
from synther_replay.persistence.checkpoint import save_checkpoint

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (2,)))
QUICK = GeneratorConfig.tiny(
    width=16, depth=1, embedding=8, steps=30, refit_steps=20, batch_size=32, evaluate_every=10, sampling_steps=4
)
# Rough, but enough for positions of a point mass.
ROUGH: dict[str, Any] = {"width": 64, "depth": 2, "embedding": 32, "steps": 200, "batch_size": 128, "sampling_steps": 8}
THOROUGH: dict[str, Any] = {"width": 64, "depth": 2, "steps": 1_500, "batch_size": 256, "sampling_steps": 12}


def make(seed: int = 0, *, spec: TransitionSpec = SPEC, stack: int = 1, **changes: Any) -> DiffusionGenerator:
    return DiffusionGenerator(spec, replace(QUICK, **changes), device="cpu", seed=seed, stack=stack)


Rule = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # positions and random numbers to rewards and terminations


def goal(x: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Reward 1 at a goal, where the episode ends."""
    there = (x - 0.6).norm(dim=-1) < 0.35
    return there.float(), there


def costs(x: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Reward -1 but at the goal, which ends an episode every third time; a fall ends it, too."""
    there = (x - 0.6).norm(dim=-1) < 0.5
    return there.float() - 1, (there & (chance < 1 / 3)) | (x[..., 0] < -1)


def kitchen(x: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Reward 0 to 4, the number of conditions that are met; all of them end the episode."""
    met = (x > 0).sum(-1) + (x > 0.5).sum(-1)
    return met.float(), met == 4


def crash(x: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Continuous rewards, and -50 more when the episode ends."""
    ended = x[..., 0] < -0.9
    return x.sum(-1) - 50 * ended, ended


def points(rule: Rule = goal, n: int = 3_000, seed: int = 0, stack: int | None = None) -> Transitions:
    """Steps of a point mass from anywhere in a square."""
    rng = torch.Generator().manual_seed(seed)
    shape = (n,) if stack is None else (stack, n)
    before, action = (torch.rand(*shape, 2, generator=rng) * 2 - 1 for _ in range(2))
    after = before + 0.3 * action + 0.02 * torch.randn(*shape, 2, generator=rng)
    rewards, terminated = rule(after, torch.rand(*shape, generator=rng))
    return Transitions(
        SPEC, torch.cat((before, action, rewards[..., None], after, terminated[..., None].float()), dim=-1)
    )


def fitted(seed: int = 0, rule: Rule = goal, **changes: Any) -> DiffusionGenerator:
    generator = make(seed, **changes)
    generator.fit(points(rule, 300))
    return generator


def assert_same_future(one: DiffusionGenerator, two: DiffusionGenerator, *data: Transitions) -> None:
    """Two generators give the same rows now, and after the same fits, bit for bit."""
    for part in data:
        assert torch.equal(one.sample(200).rows, two.sample(200).rows)
        assert one.fit(part).losses == two.fit(part).losses
    assert torch.equal(one.sample(200).rows, two.sample(200).rows)


def chances_to_end(data: Transitions) -> dict[float, float]:
    """P(terminated | reward)."""
    return {r: float(data.terminated[data.rewards == r].float().mean()) for r in data.rewards.unique().tolist()}


# --- discrete tasks


@functools.cache
def discrete(task: str) -> tuple[Transitions, set[tuple[int, int, int]]]:
    """6,000 rows of a random policy, and the possible (s, a, s')."""
    env = gym.make(task, **({"map_name": "8x8"} if "Frozen" in task else {}))
    env.action_space.seed(0)
    state, _ = env.reset(seed=0)
    rows: list[tuple[Any, ...]] = []
    for _ in range(6_000):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((state, action, reward, after, terminated))
        state = env.reset()[0] if terminated or truncated else after
    spec = TransitionSpec.from_spaces(env.observation_space, env.action_space)
    table: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = env.unwrapped.P  # type: ignore[attr-defined]
    possible = {(s, a, t[1]) for s, actions in table.items() for a, all_t in actions.items() for t in all_t if t[0] > 0}
    return Transitions.from_arrays(spec, *map(np.array, zip(*rows, strict=True))), possible


def triples(data: Transitions) -> Counter[tuple[int, int, int]]:
    columns = (data.observations, data.actions, data.next_observations)
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


TASKS = ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"]


@pytest.mark.parametrize("task", TASKS)
def test_transitions_of_discrete_tasks_are_possible_and_come_as_often_as_in_the_data(task: str) -> None:
    """Regression: on CliffWalking 23 % of the generated transitions were impossible, and 9 of 147 never came."""
    real, possible = discrete(task)
    generator = DiffusionGenerator(real.spec, GeneratorConfig.tiny(), device="cpu")
    report = generator.fit(real)
    assert (report.steps, report.rows, report.held_out_loss, report.stopped_early) == (0, 6_000, None, False)
    synthetic = generator.sample(20_000)
    found, known = triples(synthetic), triples(real)
    assert found.keys() <= possible
    frequent = {triple: count / 6_000 for triple, count in known.items() if count >= 6}
    assert len(frequent) > 50
    covered = [found[triple] / 20_000 >= share / 2 for triple, share in frequent.items()]
    assert sum(covered) >= 0.95 * len(covered)
    assert set(synthetic.rewards.tolist()) <= set(real.rewards.tolist())
    for reward, chance in chances_to_end(synthetic).items():
        assert chance == pytest.approx(chances_to_end(real)[reward], abs=0.05)
    assert generator.rejected == 0


def test_a_discrete_task_in_floating_point_numbers_is_discrete_too() -> None:
    data = points(kitchen)
    data.rows[:, SPEC.observations], data.rows[:, SPEC.next_observations] = (
        (data.rows[:, columns] * 3).round() for columns in (SPEC.observations, SPEC.next_observations)
    )
    data.rows[:, SPEC.actions] = data.rows[:, SPEC.actions].sign()
    generator = make()
    assert generator.fit(data).steps == 0
    assert {tuple(row) for row in generator.sample(2_000).rows.tolist()} <= {tuple(row) for row in data.rows.tolist()}


def stacked(task: str) -> Transitions:
    real, _ = discrete(task)
    return Transitions(real.spec, torch.stack((real.rows[:1_000], real.rows[1_000:2_000])))


def test_models_of_a_stack_have_tables_of_their_own() -> None:
    data = stacked(TASKS[0])
    generator = make(spec=data.spec, stack=2)
    assert generator.fit(data).losses == (0.0, 0.0)
    rows = generator.sample(500).rows
    for own, real in zip(rows, data.rows, strict=True):
        assert {tuple(row) for row in own.tolist()} <= {tuple(row) for row in real.tolist()}
    assert not torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("stack", [1, 2])
def test_a_loaded_table_continues_exactly(stack: int, tmp_path: Path) -> None:
    data = discrete(TASKS[0])[0] if stack == 1 else stacked(TASKS[0])
    generator = make(seed=3, spec=data.spec, stack=stack)
    generator.fit(data)
    first = generator.sample(200).rows
    assert not torch.equal(first, generator.sample(200).rows)
    generator.save(tmp_path / "file")
    loaded = DiffusionGenerator.load(tmp_path / "file", device="cpu")
    assert loaded.is_fitted
    assert_same_future(generator, loaded, data[:500])
    other = make(seed=4, spec=data.spec, stack=stack)
    other.fit(data)
    assert not torch.equal(other.sample(200).rows, first)


def test_a_model_of_continuous_rows_after_a_table_starts_from_nothing() -> None:
    data, later = points(), points(seed=1)
    data.rows[:] = data.rows.round()
    generator, twin = make(), make()
    assert generator.fit(data).steps == 0
    report = generator.fit(later, from_scratch=False)
    assert (report.from_scratch, report.steps) == (True, 30)
    twin.fit(later)
    assert torch.equal(generator._engine.trainer(0).weights(), twin._engine.trainer(0).weights())
    assert len(generator.sample(500).rows.unique(dim=0)) > 400
    assert generator.fit(data).steps == 0  # and back
    assert set(generator.sample(500).rows.unique().tolist()) <= set(data.rows.unique().tolist())


def test_a_failed_fit_keeps_the_table() -> None:
    data = points()
    data.rows[:] = data.rows.round()
    generator, twin = make(), make()
    generator.fit(data)
    twin.fit(data)
    config = generator.config
    generator.config = replace(config, learning_rate=1e30)
    with pytest.raises(DivergedError):
        generator.fit(points())
    generator.config = config
    assert_same_future(generator, twin, data)


# --- sparse rewards


@pytest.mark.parametrize(
    ("rule", "stack"), [(goal, 1), (costs, 1), (kitchen, 1), (kitchen, 2)], ids=["01", "-10", "0-4", "0-4 stack"]
)
def test_rewards_stay_in_their_support_and_agree_with_terminations(
    rule: Rule, stack: int, outcome_steps: Callable[..., None]
) -> None:
    """Regression: of rewards of 0 to 4, no generated one was a whole number, and twice as many rows were terminated."""
    outcome_steps(150)
    data = points(rule, stack=stack)
    generator = make(stack=stack, **ROUGH)
    generator.fit(data)
    synthetic = generator.sample(4_000)
    for model in range(stack):
        real, made = (Transitions(SPEC, t.rows.reshape(stack, -1, SPEC.dim)[model]) for t in (data, synthetic))
        assert torch.isin(made.rewards, real.rewards).all()
        expected, found = chances_to_end(real), chances_to_end(made)
        assert found.keys() == expected.keys()
        for reward, chance in expected.items():
            assert found[reward] == pytest.approx(chance, abs=0.02)
            share = float((real.rewards == reward).float().mean())
            assert float((made.rewards == reward).float().mean()) == pytest.approx(share, rel=0.1, abs=1e-3)
        assert made.terminated.float().mean() == pytest.approx(float(real.terminated.float().mean()), rel=0.1)
        true, _ = rule(made.next_observations, torch.zeros(len(made)))
        assert float((made.rewards == true).float().mean()) > 0.5  # by chance: 0.24 of rewards 0 to 4


def test_the_papers_settings_keep_rewards_between_the_levels() -> None:
    config = GeneratorConfig.paper(width=16, depth=1, embedding=8, steps=30, batch_size=32, sampling_steps=4, churn=0.0)
    generator = DiffusionGenerator(SPEC, config, device="cpu")
    generator.fit(points(kitchen))
    rewards = generator.sample(500).rewards
    assert (rewards != rewards.round()).float().mean() > 0.9


def test_a_bonus_at_the_end_goes_with_the_end(outcome_steps: Callable[..., None]) -> None:
    outcome_steps(150, batch_size=128)
    data = points(crash)
    generator = make(**ROUGH)
    generator.fit(data)
    made = generator.sample(4_000)
    bonus = made.rewards < -25
    assert bool(bonus.any())
    assert torch.equal(bonus, made.terminated)
    assert made.terminated.float().mean() == pytest.approx(float(data.terminated.float().mean()), rel=0.1)
    for ended in (True, False):
        real, synthetic = (t.rewards[t.terminated == ended] for t in (data, made))
        assert synthetic.mean() == pytest.approx(float(real.mean()), abs=0.8)
        assert synthetic.std() == pytest.approx(float(real.std()), rel=0.3)


def test_observations_with_few_values_come_back_as_those() -> None:
    data = points(crash)
    data.rows[:, 0] = data.rows[:, 0].sign()
    data.rows[:, SPEC.next_observations.start] = (data.rows[:, 0] * 0.7).round(decimals=1)
    generator = make()
    assert generator.fit(data).steps == 30
    rows = generator.sample(1_000).rows
    for column in (0, SPEC.next_observations.start):
        assert torch.isin(rows[:, column], data.rows[:, column]).all()
        assert len(rows[:, column].unique()) == 2
    assert not torch.isin(rows[:, 1], data.rows[:, 1]).any()


def test_a_few_rows_are_not_repeated() -> None:
    data = points(crash, 40)
    generator = make()
    assert generator.fit(data).steps == 30
    assert not torch.isin(generator.sample(200).rows[:, :2], data.rows[:, :2]).any()


def test_large_rewards_keep_their_scale_without_normalisation() -> None:
    """Regression: rewards with a standard deviation of 300 came back with 5 % of it."""
    data = points(crash)
    data.rows[:, SPEC.terminated] = 0
    rewards = torch.randn(3_000, generator=torch.Generator().manual_seed(0)) * 300
    data.rows[:, SPEC.rewards.start] = rewards
    generator = make(normalise_rewards=False, **ROUGH)
    with pytest.warns(RuntimeWarning, match="normalise_rewards"):
        generator.fit(data)
    assert generator.sample(4_000).rewards.std() == pytest.approx(300, rel=0.2)


# --- terminations


def rare_ends(n: int = 4_000, share: float = 0.01) -> Transitions:
    """Terminated if the second next observation is among the lowest; no other column is informative."""
    data = points(crash, n)
    height = torch.randn(n, generator=torch.Generator().manual_seed(9))
    data.rows[:, SPEC.rewards.start] = data.rows[:, 0]
    data.rows[:, SPEC.next_observations.stop - 1] = height
    data.rows[:, SPEC.terminated.start] = (height < height.quantile(share)).float()
    return data


def rightly_ended(rows: Tensor, limit: float) -> tuple[float, float]:
    """Precision and recall of the terminations."""
    ended, low = rows[:, SPEC.terminated.start] > 0.5, rows[:, SPEC.next_observations.stop - 1] < limit
    right = float((ended & low).sum())
    return right / max(1, int(ended.sum())), right / max(1, int(low.sum()))


@pytest.mark.slow
def test_rare_terminations_are_where_they_belong(outcome_steps: Callable[..., None]) -> None:
    outcome_steps(600)
    data, stack = rare_ends(), 2
    limit = float(data.rows[:, SPEC.next_observations.stop - 1].quantile(0.01))
    generator = make(stack=stack, held_out=0.0, patience=None, **THOROUGH)
    generator.fit(Transitions(SPEC, data.rows.expand(stack, -1, -1)))
    for rows in generator.sample(20_000).rows:
        assert min(rightly_ended(rows, limit)) > 0.6
        assert float(rows[:, SPEC.terminated.start].mean()) == pytest.approx(0.01, abs=1e-3)


@pytest.mark.slow
def test_rare_terminations_of_the_denoiser_are_not() -> None:
    data = rare_ends()
    limit = float(data.rows[:, SPEC.next_observations.stop - 1].quantile(0.01))
    generator = make(exact=False, held_out=0.0, patience=None, **THOROUGH)
    generator.fit(data)
    assert min(rightly_ended(generator.sample(20_000).rows, limit)) < 0.3


def test_unpredictable_terminations_keep_their_rate() -> None:
    data = points(crash)
    chance = torch.rand(len(data), generator=torch.Generator().manual_seed(3))
    data.rows[:, SPEC.terminated.start] = (chance < 0.15).float()
    generator = make()
    generator.fit(data)
    rate = float(data.terminated.float().mean())
    assert float(generator.sample(10_000).terminated.float().mean()) == pytest.approx(rate, rel=0.1)


def test_outcomes_are_predicted_from_the_decoded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = fitted()
    draw, told_by = OutcomeModel._draw, []
    monkeypatch.setattr(
        OutcomeModel, "_draw", lambda own, seen, *rest: (told_by.append(seen), draw(own, seen, *rest))[1]
    )
    monkeypatch.setattr(outcomes_module, "copies_to_match", lambda *_: (torch.empty(0, dtype=torch.long),) * 2)
    rows = generator.sample(50).rows[None]
    assert torch.equal(torch.cat(told_by, 1), generator.model.codec.layout.features(generator.model.codec.encode(rows)))


def test_rows_that_are_drawn_again_have_outcomes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = fitted()
    decode, calls = generator.model.codec.decode_open, 0

    def with_invalid_rows(codes: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        rows, valid = decode(codes)
        if calls == 1:
            rows[:, ::2], valid[:, ::2] = math.nan, False
        return rows, valid

    monkeypatch.setattr(generator.model.codec, "decode_open", with_invalid_rows)
    rows = generator.sample(2_000).rows
    assert calls > 1
    assert rows.isfinite().all()
    for part in (rows[::2], rows[1::2]):
        assert part[:, -1].unique().tolist() == [0, 1]


def test_outcomes_of_one_model_may_be_constant_where_those_of_another_are_not() -> None:
    data = points(goal, 300, stack=2)
    data.rows[0, :, SPEC.terminated.start] = data.rows[0, :, SPEC.rewards.start] = 0.0
    generator = make(stack=2, precision="bf16")
    generator.fit(data)
    rows = generator.sample(2_000).rows
    assert (rows[0, :, [SPEC.rewards.start, SPEC.terminated.start]] == 0).all()
    assert 0 < rows[1, :, SPEC.terminated.start].mean() < 1


@pytest.mark.parametrize("rule", [goal, crash])
def test_outcomes_are_deterministic_per_seed_and_new_in_every_call(rule: Rule) -> None:
    one, other = (fitted(rule=rule) for _ in range(2))
    first = one.sample(2_000).rows
    assert 0 < first[:, -1].mean() < 1
    assert torch.equal(first, other.sample(2_000).rows)
    assert not torch.equal(first[:, -1], one.sample(2_000).rows[:, -1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rule", [goal, crash])
def test_default_dtype_and_device_play_no_part(rule: Rule, dtype: torch.dtype) -> None:
    data, generators = points(rule, LEAST_ROWS), [make(steps=5) for _ in range(2)]  # with calibration and consistency
    generators[0].fit(data)
    usual = generators[0].sample(100).rows
    torch.set_default_dtype(dtype)
    torch.set_default_device("meta")  # whatever is not asked for on a device fails
    try:
        generators[1].fit(data)
        rows = generators[1].sample(100).rows
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(rows, usual)


@pytest.mark.parametrize("rule", [goal, crash])
def test_autocast_and_inference_mode_play_no_part(rule: Rule) -> None:
    data, usual = points(rule, 300), fitted(rule=rule).sample(100).rows
    for context in (torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode()):
        generator = make()
        with context:
            generator.fit(data)
            assert torch.equal(generator.sample(100).rows, usual)
        generator.fit(data)


# --- refits


def test_a_refit_starts_from_the_last_outcome_model_unless_it_is_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[OutcomeModel | None] = []
    fit = OutcomeModel.fit.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        OutcomeModel, "fit", classmethod(lambda cls, *a, **k: (given.append(k["previous"]), fit(cls, *a, **k))[1])
    )
    generator = fitted()
    first = generator.model.outcomes
    generator.fit(points(n=300, seed=1))
    generator.fit(points(n=300, seed=1), from_scratch=True)
    assert given == [None, first, None]


def test_outcomes_may_come_and_go() -> None:
    generator = fitted(rule=goal)
    for rule in (kitchen, crash, lambda x, chance: (x[..., 0], chance < 0), goal):
        data = points(rule, 300)
        generator.fit(data)
        made = generator.sample(500)
        assert bool(made.terminated.any()) == bool(data.terminated.any())
        if rule in (kitchen, goal):
            assert torch.isin(made.rewards, data.rewards).all()


@pytest.mark.parametrize("from_scratch", [False, True])
def test_an_outcome_model_that_diverges_undoes_the_whole_fit(
    from_scratch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, twin = fitted(), fitted()
    with monkeypatch.context() as patch:
        for name in ("_LEARNING_RATE", "_REFIT_RATE"):
            patch.setattr(outcomes_module, name, 1e30)
        with pytest.raises(DivergedError, match="outcome model"):
            generator.fit(points(n=300, seed=1), from_scratch=from_scratch)
    assert_same_future(generator, twin, points(n=300, seed=2))


# --- states


@pytest.mark.parametrize("rule", [goal, kitchen, crash])
def test_a_loaded_generator_continues_exactly(rule: Rule, tmp_path: Path) -> None:
    generator = fitted(seed=5, rule=rule)
    generator.save(tmp_path / "file")
    loaded = DiffusionGenerator.load(tmp_path / "file", device="cpu")
    assert_same_future(generator, loaded, points(rule, 300, seed=1), points(goal, 300, seed=2))


def old_state(generator: DiffusionGenerator, **config: Any) -> dict[str, Any]:
    """The state as an earlier version wrote it."""
    state = generator.state_dict()
    for name in ("outcomes", "table"):
        assert state.pop(name) is None
    for name in ("levels", "terminal"):
        del state["codec"][name]
    for name in ("exact", "direct_rows"):
        del state["config"][name]
    return {**state, "config": {**state["config"], **config}, "ends": None}


@pytest.mark.parametrize("named", [{}, {"predict_terminated": False}])
def test_a_file_of_an_earlier_version_goes_on_as_before(named: dict[str, Any], tmp_path: Path) -> None:
    generator = fitted(rule=kitchen, exact=False, direct_rows=False)
    save_checkpoint(tmp_path / "old", KIND, old_state(generator, **named))
    loaded = DiffusionGenerator.load(tmp_path / "old", device="cpu")
    assert loaded.config == generator.config
    assert not torch.isin(loaded.sample(100).rewards, points(kitchen).rewards).any()
    generator.sample(100)
    assert_same_future(loaded, generator, points(kitchen, 300, seed=1))


def test_a_pickle_of_an_earlier_version_goes_on_as_before() -> None:
    generator, loaded = (
        fitted(rule=kitchen, exact=False, direct_rows=False),
        DiffusionGenerator.__new__(DiffusionGenerator),
    )
    config = copy.copy(generator.config)
    for name in ("exact", "direct_rows"):
        del vars(config)[name]
    loaded.__setstate__({**generator.__getstate__(), "config": config, "state": old_state(generator)})
    assert loaded.config == generator.config
    assert_same_future(loaded, generator, points(kitchen, 300, seed=1))


def test_a_file_of_an_earlier_version_with_predicted_terminations_is_refused(tmp_path: Path) -> None:
    generator = fitted(exact=False, direct_rows=False)
    save_checkpoint(tmp_path / "old", KIND, old_state(generator, predict_terminated=True))
    with pytest.raises(CheckpointError, match="predict_terminated"):
        DiffusionGenerator.load(tmp_path / "old", device="cpu")


@pytest.mark.parametrize("exact", [False, True])
def test_an_exact_state_is_not_taken_for_another(exact: bool) -> None:
    generator, twin = fitted(exact=exact), fitted(exact=exact)
    with pytest.raises(CheckpointError, match="exact"):
        generator.load_state_dict(fitted(exact=not exact).state_dict())
    assert_same_future(generator, twin)


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("outcomes", lambda own: {}),
        ("outcomes", lambda own: 3),
        ("outcomes", lambda own: {**own, "weights": own["weights"][:, 1:]}),
        ("outcomes", lambda own: {**own, "weights": 0.0}),
        ("outcomes", lambda own: {**own, "shares": own["shares"] * math.nan}),
        ("table", lambda own: {}),
        ("table", lambda own: {"rows": torch.zeros(1, 5, SPEC.dim + 1), "counts": torch.ones(1, 5)}),
        ("table", lambda own: {"rows": torch.zeros(1, 5, SPEC.dim), "counts": torch.zeros(1, 5)}),
        ("table", lambda own: {"rows": 1, "counts": 2}),
    ],
)
def test_a_state_with_damaged_outcomes_or_table_is_refused_and_changes_nothing(part: str, damage: Any) -> None:
    generator, twin, state = fitted(), fitted(), fitted(seed=1).state_dict()
    with pytest.raises(CheckpointError):
        generator.load_state_dict({**state, part: damage(state[part])})
    assert_same_future(generator, twin)
