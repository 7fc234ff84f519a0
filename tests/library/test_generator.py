"""DiffusionGenerator: fit, sample, save, load and error handling."""

from __future__ import annotations

import gc
import json
import math
import pickle
import random
import weakref
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from synther_replay.common.checks import resolve_device
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.diffusion import trainer as trainer_module
from synther_replay.diffusion.batches import HeldOutBatches
from synther_replay.errors import CheckpointError, DivergedError, GenerationError, NotFittedError
from synther_replay.generator import KIND, DiffusionGenerator
from synther_replay.metrics import fidelity
from synther_replay.model import fitted as fitted_module
from synther_replay.persistence.checkpoint import save_checkpoint

SPEC = TransitionSpec.from_spaces(spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (1,)))
QUICK = GeneratorConfig.tiny(
    width=16, depth=1, embedding=8, steps=30, refit_steps=20, batch_size=32, evaluate_every=10, sampling_steps=4
)


def make(seed: int = 0, *, spec: TransitionSpec = SPEC, stack: int = 1, **changes: Any) -> DiffusionGenerator:
    return DiffusionGenerator(spec, replace(QUICK, **changes), device="cpu", seed=seed, stack=stack)


def two_modes(n: int = 200, seed: int = 0) -> Transitions:
    """Observations around -2 (70 %) or 4 (30 %); only in the latter an action above 0.5 ends the episode."""
    rng = torch.Generator().manual_seed(seed)
    mode = (torch.rand(n, 1, generator=rng) < 0.3).float()
    observation = torch.randn(n, 2, generator=rng) * torch.tensor([0.3, 10.0]) + torch.cat((mode * 6 - 2, mode), 1)
    action = torch.rand(n, 1, generator=rng) * 2 - 1
    ended = ((mode > 0) & (action > 0.5)).float()
    return Transitions(
        SPEC, torch.cat((observation, action, observation[:, :1] * action, observation + 0.1 * action, ended), 1)
    )


def newly_fitted(seed: int = 0, **changes: Any) -> DiffusionGenerator:
    generator = make(seed, **changes)
    generator.fit(two_modes())
    return generator


@cache
def _pickled(seed: int, changes: tuple[tuple[str, Any], ...]) -> bytes:
    return pickle.dumps(newly_fitted(seed, **dict(changes)))


def fitted(seed: int = 0, **changes: Any) -> DiffusionGenerator:
    """A copy of its own of a generator that is fitted once."""
    return pickle.loads(_pickled(seed, tuple(changes.items())))  # type: ignore[no-any-return]


def assert_same_state(one: Any, two: Any) -> None:
    """Two trees of tensors and plain values agree bit for bit."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same_state(one[key], two[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one.nan_to_num(1e30), two.nan_to_num(1e30))
    else:
        assert one == two


def assert_same_future(one: DiffusionGenerator, two: DiffusionGenerator) -> None:
    """Two generators give the same rows now, and after the same fit, bit for bit."""
    assert torch.equal(one.sample(20).rows, two.sample(20).rows)
    assert one.fit(two_modes(250, seed=5)).losses == two.fit(two_modes(250, seed=5)).losses
    assert torch.equal(one.sample(20).rows, two.sample(20).rows)
    assert_same_state(one.state_dict(), two.state_dict())


# --- fit and sample


def test_sample_gives_as_many_rows_as_asked_for_on_its_device() -> None:
    generator = make()
    assert not generator.is_fitted
    generator.fit(two_modes())
    assert generator.is_fitted
    rows = generator.sample(7)
    assert isinstance(rows, Transitions)
    assert rows.spec == SPEC
    assert rows.rows.shape == (7, SPEC.dim)
    assert rows.rows.dtype == torch.float32
    assert rows.rows.device == generator.device == torch.device("cpu")
    assert rows.rows.isfinite().all()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_any_number_of_rows_is_drawn_in_chunks(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = fitted(chunk=64)
    decode, seen = generator.model.codec.decode_open, []
    monkeypatch.setattr(
        generator.model.codec, "decode_open", lambda codes: (seen.append(codes.shape[1]), decode(codes))[1]
    )
    assert len(generator.sample(n)) == n
    assert sum(seen) == n
    assert max(seen) <= 64


def test_the_report_describes_the_fit() -> None:
    report = make(held_out=0.2).fit(two_modes(200))
    assert (report.steps, report.rows, report.from_scratch, report.stopped_early) == (30, 200, True, False)
    assert report.losses == (report.loss,)
    assert report.held_out_loss is not None
    assert 0 < report.held_out_loss < 2
    assert report.seconds > 0


def test_few_rows_or_no_share_leave_nothing_held_out() -> None:
    assert make(held_out=0.05).fit(two_modes(200)).held_out_loss is None
    assert make(held_out=0.0).fit(two_modes(2000)).held_out_loss is None


@pytest.mark.slow
def test_fits_two_modes_their_bounds_and_terminations(outcome_steps: Callable[..., None]) -> None:
    outcome_steps(300)
    config = GeneratorConfig.tiny(steps=1000, sampling_steps=32)
    generator = DiffusionGenerator(SPEC, config, device="cpu")
    report = generator.fit(two_modes(4000))
    assert report.held_out_loss is not None
    assert report.held_out_loss < 0.55
    synthetic = generator.sample(4000)
    score = fidelity(two_modes(4000, seed=1), synthetic)
    assert score.marginal > 0.94
    assert score.correlation > 0.95
    first = synthetic.observations[:, 0]
    assert (first > 1).float().mean().item() == pytest.approx(0.3, abs=0.05)
    assert ((first > -0.5) & (first < 2.5)).float().mean() < 0.03  # few rows between the modes
    assert synthetic.terminated.float().mean().item() == pytest.approx(0.075, abs=0.03)
    assert (synthetic.terminated & (first < 1)).float().mean() < 0.002  # few rows between the modes
    step = synthetic.next_observations - synthetic.observations
    assert (step - 0.1 * synthetic.actions).abs().mean() < 0.05 * two_modes(4000).observations.std()


def test_the_same_seed_gives_the_same_rows_and_two_seeds_differ() -> None:
    one, again, other = newly_fitted(seed=1), newly_fitted(seed=1), fitted(seed=2)
    first = one.sample(20).rows
    assert torch.equal(first, again.sample(20).rows)
    assert not torch.equal(first, other.sample(20).rows)
    assert not torch.equal(first, one.sample(20).rows)  # a second sample holds new rows
    state = one.state_dict()
    state["seed"] = 3
    again.load_state_dict(state)
    assert not torch.equal(one.sample(20).rows, again.sample(20).rows)  # the same model, other draws
    assert_same_future(newly_fitted(seed=1), fitted(seed=1))


def test_rows_of_a_seed_of_their_own_do_not_depend_on_earlier_draws_and_do_not_change_later_ones() -> None:
    one, two = fitted(), fitted()
    first = one.sample(20, seed=7).rows
    one.sample(5)
    assert torch.equal(one.sample(20, seed=7).rows, first)
    assert not torch.equal(one.sample(20, seed=8).rows, first)
    two.sample(5)
    assert_same_future(one, two)
    with pytest.raises(ValueError, match="seed"):
        one.sample(20, seed=-1)


def test_fitting_does_not_depend_on_previous_sampling() -> None:
    one, two = fitted(), fitted()
    one.sample(100)
    one.fit(two_modes(seed=3))
    two.fit(two_modes(seed=3))
    assert_same_state(one.state_dict()["trainer"], two.state_dict()["trainer"])


def test_no_global_random_state_is_touched() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    generator = newly_fitted(held_out=0.2, eta=1.0)
    generator.fit(two_modes())
    generator.sample(50)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_global_seeds_play_no_part() -> None:
    rows = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        rows.append(newly_fitted().sample(20).rows)
    assert torch.equal(rows[0], rows[1])


def test_the_transitions_are_left_as_they_were() -> None:
    data = two_modes()
    before = data.rows.clone()
    fitted().fit(data)
    assert torch.equal(data.rows, before)


def test_sampled_rows_are_the_callers_own() -> None:
    generator = fitted()
    first = generator.sample(20)
    before = first.rows.clone()
    generator.sample(20)
    assert torch.equal(first.rows, before)


def test_bfloat16_works_on_a_cpu() -> None:
    rough, exact = fitted(precision="bf16").sample(500).rows, fitted().sample(500).rows
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    assert (rough - exact).abs().mean() < 0.1 * exact.std(0).mean()


def test_a_progress_bar_is_shown_only_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    generator = make()
    generator.fit(two_modes(), progress=False)
    generator.fit(two_modes())  # stdout of a test is not a terminal
    assert capsys.readouterr() == ("", "")
    generator.fit(two_modes(), progress=True)
    shown = capsys.readouterr()
    assert "fitting" in shown.err
    assert shown.out == ""


# --- budgets and starts


def test_a_later_fit_starts_warm_with_fewer_steps() -> None:
    generator = make()
    first, second = generator.fit(two_modes()), generator.fit(two_modes(300))
    assert (first.steps, first.from_scratch) == (30, True)
    assert (second.steps, second.from_scratch) == (20, False)
    assert generator.state_dict()["trainer"]["adam_steps"] == 50


def test_without_warm_start_every_fit_starts_from_nothing() -> None:
    one, two = make(warm_start=False), make(warm_start=False)
    one.fit(two_modes(seed=1))
    two.fit(two_modes(seed=2))
    reports = [generator.fit(two_modes(seed=3)) for generator in (one, two)]
    assert [(report.steps, report.from_scratch) for report in reports] == [(30, True)] * 2
    assert_same_state(one.state_dict(), two.state_dict())  # no trace of the previous fit


def test_a_warm_start_continues_from_the_previous_model() -> None:
    one, two = make(), make()
    one.fit(two_modes(seed=1))
    two.fit(two_modes(seed=2))
    for generator in (one, two):
        generator.fit(two_modes(seed=3))
    assert not torch.equal(one.sample(20).rows, two.sample(20).rows)


@pytest.mark.parametrize("warm_start", [True, False])
def test_the_start_can_be_chosen_in_a_call(warm_start: bool) -> None:
    generator = fitted(warm_start=warm_start)
    scratch = generator.fit(two_modes(), from_scratch=True)
    assert (scratch.steps, scratch.from_scratch) == (30, True)
    assert generator.state_dict()["trainer"]["adam_steps"] == 30
    warm = generator.fit(two_modes(), from_scratch=False)
    assert (warm.steps, warm.from_scratch) == (20, False)
    assert generator.state_dict()["trainer"]["adam_steps"] == 50


def test_steps_and_time_can_be_chosen_in_a_call() -> None:
    generator = make()
    assert generator.fit(two_modes(), steps=50).steps == 50
    report = generator.fit(two_modes(), steps=20_000, max_seconds=0.05)
    assert report.stopped_early
    assert report.steps < 10_000


def test_the_configured_time_limit_is_kept() -> None:
    assert make(steps=20_000, max_seconds=0.05).fit(two_modes()).stopped_early


def test_patience_stops_a_fit_that_no_longer_improves() -> None:
    hopeless = {"held_out": 0.2, "steps": 10_000, "learning_rate": 1e-30}
    report = make(**hopeless, patience=2).fit(two_modes())
    assert report.stopped_early
    assert report.steps < 500


def test_larger_batches_from_many_rows_on_reach_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synther_replay.config._LARGE_DATA_ROWS", 150)
    plans: list[Any] = []
    fit = trainer_module.StackTrainer.fit
    monkeypatch.setattr(
        trainer_module.StackTrainer, "fit", lambda self, *args: (plans.append(args[2]), fit(self, *args))[1]
    )
    generator = make(large_batch_size=48)
    generator.fit(two_modes(149))
    generator.fit(two_modes(150))
    assert [plan.batch_size for plan in plans] == [32, 48]


@pytest.mark.parametrize(
    "change",
    [
        {"width": 24},
        {"depth": 2},
        {"embedding": 16},
        {"fourier": 8},
        {"batch_size": 40},
        {"learning_rate": 2e-3},
        {"betas": (0.5, 0.99)},
        {"betas": (0.9, 0.9)},
        {"gradient_clip": 0.1},
        {"average_decay": 0.0},
        {"average_every": 5},
        {"noise_mean": -0.6},
        {"noise_std": 1.4},
        {"held_out": 0.2},
        {"unsquash_actions": True},
        {"exact": False},
        {"solver": "heun"},
        {"sampling_steps": 6},
        {"sigma_min": 0.05},
        {"sigma_max": 50.0},
        {"rho": 5.0},
        {"eta": 1.0},
        {"precision": "bf16"},
    ],
    ids=lambda change: "-".join(change),
)
def test_every_setting_takes_effect(change: dict[str, Any]) -> None:
    assert not torch.equal(fitted(**change).sample(20).rows, fitted().sample(20).rows)


@pytest.mark.slow
def test_values_that_were_clipped_are_generated_at_their_limit_when_so_configured() -> None:
    data = two_modes(2_000)
    data.rows[:, 1].clamp_(-5.0, 8.0)  # in a space without bounds
    shares = {}
    for find in (False, True):
        generator = make(find_limits=find, exact=False, **THOROUGH)
        generator.fit(data)
        found = generator.sample(2_000).rows[:, 1]
        shares[find] = [float((found == limit).float().mean()) for limit in (-5.0, 8.0)]
        assert bool(((found >= -5) & (found <= 8)).all()) == find
    expected = [float((data.rows[:, 1] == limit).float().mean()) for limit in (-5.0, 8.0)]
    assert all(wanted / 2 < share < wanted * 1.5 for share, wanted in zip(shares[True], expected, strict=True))
    assert shares[False] == [0, 0]


def test_rewards_are_left_as_they_are_when_so_configured() -> None:
    data = two_modes()
    for normalise in (True, False):
        generator = make(normalise_rewards=normalise, exact=False)
        generator.fit(data)
        codes = generator.model.codec.encode(data.rows[None])
        assert bool(torch.isclose(codes[0], data.rewards[:, None]).all(0).any()) is not normalise


# --- what generated rows look like

MIXED = TransitionSpec.from_spaces(
    spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2,), np.uint8),
            "place": spaces.Box(-5, 5, (2,)),
            "room": spaces.Discrete(5, start=2),
        }
    ),
    spaces.MultiDiscrete([3, 6]),
)


def mixed(n: int = 200, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)

    def observations() -> dict[str, np.ndarray]:
        place = rng.normal(size=(n, 2))
        place[:, 1] = 1.25  # never changes
        return {"image": rng.integers(0, 256, (n, 2)), "place": place, "room": rng.integers(2, 7, n)}

    ended = rng.random(n) < 0.3
    actions = rng.integers([0, 0], [3, 6], (n, 2))
    return Transitions.from_arrays(MIXED, observations(), actions, rng.normal(size=n), observations(), ended)


def test_generated_rows_respect_spaces_constants_and_terminals() -> None:
    generator = make(spec=MIXED)
    generator.fit(mixed())
    rows = generator.sample(2000)
    for observations in (rows.observations, rows.next_observations):
        assert {name: value.dtype for name, value in observations.items()} == {
            "image": torch.uint8,
            "place": torch.float32,
            "room": torch.int64,
        }
        assert observations["room"].unique().tolist() == [2, 3, 4, 5, 6]
        assert (observations["place"][:, 1] == 1.25).all()
        assert (observations["place"].abs() <= 5).all()
    images = rows.rows[:, :2]
    assert torch.equal(images, images.round())
    assert images.min() >= 0
    assert images.max() <= 255
    assert rows.actions.dtype == torch.int64
    assert [column.unique().tolist() for column in rows.actions.T] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert rows.rows[:, -1].unique().tolist() == [0.0, 1.0]
    assert generator.rejected == 0


THOROUGH: dict[str, Any] = {"width": 64, "depth": 2, "steps": 1_500, "batch_size": 256, "sampling_steps": 12}


def test_generated_actions_stay_within_their_bounds() -> None:
    data = two_modes()
    data.rows[:, 2] = data.rows[:, 2].sign()  # on the bounds: noise moves half of them outside
    generator = make()
    generator.fit(data)
    actions = generator.sample(500).actions
    assert actions.abs().max() == 1.0


@pytest.mark.slow
def test_dependencies_are_kept_in_rows_longer_than_the_embedding() -> None:
    spec = TransitionSpec.from_spaces(spaces.Box(-np.inf, np.inf, (12,)), spaces.Box(-1, 1, (1,)))
    rows = torch.randn(2_000, spec.dim, generator=torch.Generator().manual_seed(0))
    rows[:, spec.actions] = rows[:, spec.terminated] = 0.0
    rows[:, spec.next_observations] = rows[:, spec.observations]
    sizes: dict[str, Any] = {
        "width": 64,
        "depth": 2,
        "embedding": 16,
        "steps": 600,
        "batch_size": 128,
        "sampling_steps": 12,
    }

    def apart(*, squeeze_rows: bool) -> float:
        generator = make(spec=spec, squeeze_rows=squeeze_rows, consistent=False, evaluate_every=100, **sizes)
        generator.fit(Transitions(spec, rows))
        made = generator.sample(1_000).rows
        return float((made[:, spec.next_observations] - made[:, spec.observations]).std())

    assert apart(squeeze_rows=False) < 0.3 < 0.7 < apart(squeeze_rows=True)


def test_a_data_set_of_one_row_comes_back_as_it_is() -> None:
    row = two_modes().rows[:1]
    generator = make()
    generator.fit(Transitions(SPEC, row.expand(40, -1)))
    assert torch.equal(generator.sample(30).rows, row.expand(30, -1))


# --- stacks


def _stacked() -> Transitions:
    """Two runs with the same actions, whose observations lie around -50 and +50."""
    data = torch.stack((two_modes(seed=0).rows, two_modes(seed=1).rows))
    data[0, :, :2] -= 50
    data[1, :, :2] += 50
    return Transitions(SPEC, data)


def test_a_stack_learns_one_distribution_per_model() -> None:
    generator = make(stack=2, held_out=0.2)
    report = generator.fit(_stacked())
    assert len(report.losses) == 2
    assert report.losses[0] != report.losses[1]
    assert report.loss == pytest.approx(sum(report.losses) / 2)
    assert report.rows == 200
    rows = generator.sample(100)
    assert rows.rows.shape == (2, 100, SPEC.dim)
    assert len(rows) == 100
    assert rows.observations[0].mean() < -40
    assert rows.observations[1].mean() > 40
    standardised = [(part - part.mean(0)) / part.std(0) for part in rows.rows[..., :2]]
    assert not torch.allclose(standardised[0], standardised[1], atol=0.1)


def test_a_column_may_be_constant_for_one_model_of_a_stack_only() -> None:
    data = _stacked()
    data.rows[1, :, 0] = 7.0
    generator = make(stack=2)
    generator.fit(data)
    first = generator.sample(50).rows[..., 0]
    assert (first[1] == 7.0).all()
    assert first[0].std() > 0.1


def test_a_stack_of_one_takes_rows_with_and_without_its_axis() -> None:
    data = two_modes()
    one, two = make(), make()
    one.fit(data)
    two.fit(Transitions(SPEC, data.rows[None]))
    assert torch.equal(one.sample(10).rows, two.sample(10).rows)


# --- rejected rows


def _spoil(generator: DiffusionGenerator, bad: Callable[[int, int], list[tuple[int, int]]]) -> None:
    """Make codes of some rows NaN; ``bad(call, n)`` returns their (model, row) pairs."""
    draw, calls = generator._engine.sampler(0).draw, iter(range(10**9))

    def spoilt(n: int, seed: int, write: Callable[[int, Tensor], None], *condition: Any) -> None:
        places, codes = bad(next(calls), n), torch.empty(generator.stack, n, generator._engine.sampler(0).shape.dim)

        def keep(start: int, chunk: Tensor) -> None:
            codes[:, start : start + chunk.shape[1]] = chunk

        draw(n, seed, keep, *condition)
        for model, row in places:
            codes[model, row, 0] = math.nan
        write(0, codes)

    generator._engine.sampler(0).draw = spoilt  # type: ignore[method-assign]


def test_rejected_rows_are_counted_and_replaced_and_the_others_stay() -> None:
    generator, twin = fitted(exact=False), fitted(exact=False)
    _spoil(generator, lambda call, n: [[(0, 2), (0, 5), (0, 9)], [(0, 1)], []][call])
    rows, clean = generator.sample(10).rows, twin.sample(10).rows
    assert generator.rejected == 4
    assert twin.rejected == 0
    good = [0, 1, 3, 4, 6, 7, 8]
    assert torch.equal(rows[good], clean[good])
    assert rows.isfinite().all()
    assert len(rows.unique(dim=0)) == 10
    # The second draw (three rows) replaced two rows, the third (one row) the last.
    second, third = twin.sample(3).rows, twin.sample(1).rows
    assert torch.equal(rows[[2, 5, 9]], torch.stack((second[0], third[0], second[2])))


def test_rejected_rows_of_a_stack_are_replaced_model_by_model() -> None:
    generator, twin = make(stack=2, exact=False), make(stack=2, exact=False)
    for one in (generator, twin):
        one.fit(_stacked())
    _spoil(generator, lambda call, n: [(0, 4), (1, 0), (1, 3)] if call == 0 else [])
    rows, clean = generator.sample(6).rows, twin.sample(6).rows
    assert generator.rejected == 3
    assert torch.equal(rows[0, [0, 1, 2, 3, 5]], clean[0, [0, 1, 2, 3, 5]])
    assert torch.equal(rows[1, [1, 2, 4, 5]], clean[1, [1, 2, 4, 5]])
    assert rows[0, 4, 0] < -40
    assert rows[1, [0, 3], 0].min() > 40


def test_many_discrete_columns_can_be_generated() -> None:
    """Five values need three digits, which encode eight: with twenty columns most rows hold an invalid pattern."""
    spec = TransitionSpec.from_spaces(spaces.Box(-1, 1, (1,)), spaces.MultiDiscrete([5] * 20))
    rng = np.random.default_rng(0)
    n = 300
    data = Transitions.from_arrays(
        spec, rng.random((n, 1)), rng.integers(5, size=(n, 20)), rng.random(n), rng.random((n, 1)), np.zeros(n, bool)
    )
    generator = make(spec=spec)
    generator.fit(data)
    actions = generator.sample(500).actions
    assert actions.min() == 0
    assert actions.max() == 4


def test_when_all_rows_are_bad_generation_fails_with_a_number_and_a_later_one_can_succeed() -> None:
    generator = fitted()
    draw = generator._engine.sampler(0).draw
    _spoil(generator, lambda call, n: [(0, row) for row in range(n)])
    with pytest.raises(GenerationError, match="8 of 8 rows"):
        generator.sample(8)
    assert generator.rejected >= 8
    generator._engine.sampler(0).draw = draw  # type: ignore[method-assign]
    assert generator.sample(8).rows.isfinite().all()


def test_the_last_attempt_counts() -> None:
    generator = fitted()
    last = fitted_module._MAX_REDRAWS
    _spoil(generator, lambda call, n: [(0, 0)] if call < last else [])
    assert generator.sample(8).rows.isfinite().all()


def test_weights_that_are_not_finite_never_give_a_row() -> None:
    generator = fitted()
    generator.sample(1)  # loads the weights
    generator._engine.sampler(0).weights.fill_(math.nan)
    with pytest.raises(GenerationError):
        generator.sample(5)


# --- refusals


def test_sampling_before_fitting_is_refused() -> None:
    with pytest.raises(NotFittedError, match="fit"):
        make().sample(5)


@pytest.mark.parametrize("n", [0, -3, 2.0, "10", None])
def test_a_number_of_rows_that_is_none_is_refused_by_name(n: Any) -> None:
    generator, twin = fitted(), fitted()
    with pytest.raises((TypeError, ValueError), match=f"^n: .*{n!r}"):
        generator.sample(n)
    assert_same_future(generator, twin)


@pytest.mark.parametrize("integer", [np.int64, np.int32])
def test_numpy_integers_are_numbers_of_rows_and_seeds(integer: Any) -> None:
    assert len(fitted().sample(integer(5))) == 5
    assert torch.equal(newly_fitted(integer(3)).sample(5).rows, fitted(3).sample(5).rows)


def _with_nan() -> Transitions:
    data = two_modes()
    data.rows[3, 1], data.rows[8, 0] = math.nan, math.inf
    return data


OTHER = TransitionSpec.from_spaces(spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-2, 2, (1,)))


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (lambda: two_modes().rows, TypeError, "transitions: .*Tensor"),
        (lambda: None, TypeError, "transitions: .*NoneType"),
        (lambda: two_modes(31), ValueError, "transitions: .*at least 32 rows.*31"),
        (lambda: two_modes()[[]], ValueError, "transitions: .*at least 32 rows.*0"),
        (_with_nan, ValueError, "observations: 2 of 200 rows are non-finite"),
        (lambda: Transitions(OTHER, two_modes().rows), ValueError, "transitions: .*spec"),
        (_stacked, ValueError, r"transitions: .*\(1, n, 7\), got \(2, 200, 7\)"),
    ],
    ids=["tensor", "none", "too few", "empty", "not finite", "other spec", "other stack"],
)
def test_invalid_transitions_are_refused_and_change_nothing(
    bad: Callable[[], Any], error: type[Exception], message: str
) -> None:
    generator, twin = fitted(), fitted()
    with pytest.raises(error, match=message):
        generator.fit(bad())
    assert_same_future(generator, twin)


def test_a_stack_refuses_rows_of_one_run() -> None:
    with pytest.raises(ValueError, match=r"transitions: .*\(2, n, 7\), got \(1, 200, 7\)"):
        make(stack=2).fit(two_modes())


def test_thirty_two_rows_are_enough() -> None:
    assert make().fit(two_modes(32)).rows == 32


@pytest.mark.parametrize(
    ("argument", "value"), [("stack", 0), ("stack", -1), ("seed", -1), ("seed", 1.5), ("seed", "0")]
)
def test_bad_arguments_are_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{argument}: .*{value!r}"):
        DiffusionGenerator(SPEC, QUICK, device="cpu", **{argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [("stack", 2.0), ("stack", "2"), ("config", 3), ("config", "tyni"), ("spec", None), ("device", "gpu")],
)
def test_arguments_of_a_wrong_type_are_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{argument}: "):
        DiffusionGenerator(**{"spec": SPEC, "config": QUICK, "device": "cpu", argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [("steps", 0), ("steps", -5), ("steps", 2.5), ("steps", "9"), ("max_seconds", -1.0), ("max_seconds", math.nan)],
)
def test_a_bad_budget_is_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{argument}: "):
        make().fit(two_modes(), **{argument: value})


# --- accidents


def test_a_diverging_fit_leaves_the_generator_as_it_was() -> None:
    generator, twin = fitted(), fitted()
    config = generator.config
    generator.config = replace(config, learning_rate=1e30)
    with pytest.raises(DivergedError):
        generator.fit(two_modes(500, seed=9))
    with pytest.raises(DivergedError):
        generator.fit(two_modes(500, seed=9), from_scratch=True)
    generator.config = config
    assert_same_future(generator, twin)


def test_a_diverging_first_fit_leaves_it_unfitted() -> None:
    generator = make(learning_rate=1e30)
    with pytest.raises(DivergedError):
        generator.fit(two_modes())
    assert not generator.is_fitted
    with pytest.raises(NotFittedError):
        generator.sample(1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("from_scratch", [True, False])
def test_an_interrupted_fit_leaves_the_generator_as_it_was(
    error: type[BaseException], from_scratch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, twin = fitted(), fitted()
    step, calls = generator._engine.trainer(0).optimiser.step, iter(range(10**9))

    def accident(rates: Tensor) -> None:
        if next(calls) == 13:
            raise error
        step(rates)

    with monkeypatch.context() as patch:
        patch.setattr(generator._engine.trainer(0).optimiser, "step", accident)
        with pytest.raises(error):
            generator.fit(two_modes(500, seed=9), from_scratch=from_scratch)
    assert_same_future(generator, twin)


def test_a_fit_in_inference_mode_does_not_spoil_later_ones() -> None:
    generator = make()
    with torch.inference_mode():
        generator.fit(two_modes())
    generator.fit(two_modes())


# --- devices


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    assert DiffusionGenerator(SPEC).config == GeneratorConfig.tiny()


def test_auto_is_the_current_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda:1")
    assert resolve_device("cuda") == torch.device("cuda:1")
    assert resolve_device("cuda:0") == torch.device("cuda:0")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(ValueError, match="device: got 'cuda:2', but there are 2 GPUs"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("device", ["meta", "mps", "gpu", 3])
def test_devices_that_cannot_compute_here_are_refused(device: str) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("can compute here")
    if device == 3 and torch.cuda.device_count() > 3:
        pytest.skip("can compute here")
    with pytest.raises(ValueError, match=f"device: .*got '?{device}"):
        resolve_device(device)
    with pytest.raises(ValueError, match=f"device: .*got '?{device}"):
        DiffusionGenerator(SPEC, GeneratorConfig.tiny(), device=device)


def test_moving_to_the_same_device_changes_nothing() -> None:
    generator, twin = fitted(), fitted()
    assert generator.to("cpu") is generator
    assert_same_future(generator, twin)


def test_moving_rebuilds_the_models_and_keeps_everything() -> None:
    generator, twin = fitted(), fitted()
    generator.sample(3)
    twin.sample(3)
    generator.device = torch.device("meta")  # as if pickled on another machine
    generator.to("cpu")
    assert_same_future(generator, twin)


# --- saving and loading


@pytest.mark.parametrize("stack", [1, 2])
def test_a_loaded_generator_continues_exactly(stack: int, tmp_path: Path) -> None:
    generator = make(seed=5, stack=stack, held_out=0.2, betas=(0.8, 0.9))
    data = two_modes() if stack == 1 else _stacked()
    generator.fit(data)
    generator.sample(11)
    generator._draws.rejected = 3
    generator.save(tmp_path / "file")
    loaded = DiffusionGenerator.load(tmp_path / "file", device="cpu")
    assert (loaded.spec, loaded.config, loaded.seed) == (SPEC, generator.config, 5)
    assert (loaded.stack, loaded.rejected, loaded.is_fitted) == (stack, 3, True)
    assert_same_state(generator.state_dict(), loaded.state_dict())
    for _ in range(2):
        assert torch.equal(generator.sample(20).rows, loaded.sample(20).rows)
        reports = generator.fit(data), loaded.fit(data)
        assert reports[0].losses == reports[1].losses
        assert reports[0].held_out_loss == reports[1].held_out_loss
    assert_same_state(generator.state_dict(), loaded.state_dict())


def test_discrete_fields_survive_saving(tmp_path: Path) -> None:
    generator = make(spec=MIXED)
    generator.fit(mixed())
    generator.save(tmp_path / "file")
    loaded = DiffusionGenerator.load(tmp_path / "file", device="cpu")
    assert torch.equal(generator.sample(50).rows, loaded.sample(50).rows)
    assert generator.rejected == loaded.rejected


def test_an_unfitted_generator_can_be_saved(tmp_path: Path) -> None:
    make(seed=4).save(tmp_path / "file")
    loaded = DiffusionGenerator.load(tmp_path / "file", device="cpu")
    with pytest.raises(NotFittedError):
        loaded.sample(1)
    loaded.fit(two_modes())
    assert torch.equal(loaded.sample(10).rows, fitted(4).sample(10).rows)


def test_saving_changes_nothing_and_replaces_the_file(tmp_path: Path) -> None:
    generator, twin = fitted(), fitted()
    for _ in range(2):
        generator.save(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert_same_future(generator, twin)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    fitted().save(tmp_path / "file")
    return tmp_path / "file"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_refused(share: float, saved: Path) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=str(saved)):
        DiffusionGenerator.load(saved, device="cpu")


def test_a_file_with_one_wrong_byte_is_refused(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-100] ^= 1
    saved.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        DiffusionGenerator.load(saved, device="cpu")


def _rewrite(path: Path, **changes: str) -> None:
    """The same file with other entries in its header."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    save_file(load_file(path), path, metadata={**header, **changes})


def test_a_rewritten_file_is_still_read(saved: Path) -> None:
    _rewrite(saved)  # the rewritten file itself is valid
    assert_same_future(DiffusionGenerator.load(saved, device="cpu"), fitted())


@pytest.mark.parametrize("version", ["4", "999", "next", ""])
def test_a_file_of_a_newer_version_is_refused(version: str, saved: Path) -> None:
    _rewrite(saved, version=version)
    with pytest.raises(CheckpointError, match=f"version {version!r}"):
        DiffusionGenerator.load(saved, device="cpu")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    text, archive, tensors, pickled = (tmp_path / name for name in ("text", "zip", "safetensors", "pickle"))
    text.write_text("not a checkpoint\n" * 100)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data", "x" * 1000)
    save_file({"weight": torch.ones(3)}, tensors)
    torch.save({"weight": torch.ones(3)}, pickled)
    for path in (text, archive, tensors, pickled, tmp_path / "missing", tmp_path):
        with pytest.raises(CheckpointError, match=str(path)):
            DiffusionGenerator.load(path, device="cpu")


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "file", "replay buffer", fitted().state_dict())
    with pytest.raises(CheckpointError, match="replay buffer"):
        DiffusionGenerator.load(tmp_path / "file", device="cpu")


@pytest.mark.parametrize("missing", ["spec", "config", "seed", "stack", "draws", "fitted", "codec", "trainer"])
def test_a_checkpoint_that_lacks_a_part_is_refused(missing: str, tmp_path: Path) -> None:
    state = fitted().state_dict()
    del state[missing]
    save_checkpoint(tmp_path / "file", KIND, state)
    with pytest.raises(CheckpointError, match=missing):
        DiffusionGenerator.load(tmp_path / "file", device="cpu")


def test_a_setting_of_a_later_release_is_refused(tmp_path: Path) -> None:
    state = fitted().state_dict()
    state["config"]["momentum"] = 0.5
    save_checkpoint(tmp_path / "file", KIND, state)
    with pytest.raises(CheckpointError, match="momentum"):
        DiffusionGenerator.load(tmp_path / "file", device="cpu")


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (lambda: make(spec=OTHER), "spec"),
        (lambda: make(stack=2), "stack"),
        (lambda: make(width=24), "network"),
        (lambda: make(depth=2), "network"),
    ],
    ids=["spec", "stack", "width", "depth"],
)
def test_a_state_of_another_generator_is_refused_and_changes_nothing(
    other: Callable[[], DiffusionGenerator], name: str
) -> None:
    generator, twin = fitted(), fitted()
    with pytest.raises(CheckpointError, match=f"state: {name}"):
        generator.load_state_dict(other().state_dict())
    assert_same_future(generator, twin)


def test_a_state_can_be_taken_over_by_a_generator_of_another_seed() -> None:
    generator = fitted(seed=1)
    generator.sample(4)
    other = fitted(seed=2)
    other.load_state_dict(generator.state_dict())
    assert_same_future(other, generator)


def test_a_state_is_a_copy() -> None:
    generator = fitted()
    state = generator.state_dict()
    before = json.dumps(_plain(state))
    generator.fit(two_modes(seed=8))
    generator.sample(3)
    assert json.dumps(_plain(state)) == before


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    return node.tolist() if isinstance(node, Tensor) else node


def test_the_parameters_of_one_model_are_counted() -> None:
    assert make(stack=3).parameters == make().parameters == QUICK.network(SPEC.dim).parameters


def test_the_best_model_is_kept_not_the_last() -> None:
    """Few rows: the held-out loss rises again (over-fitting)."""
    rng = torch.Generator().manual_seed(0)
    data = Transitions(SPEC, torch.rand(100, SPEC.dim, generator=rng))
    data.rows[:, -1] = 0
    generator = make(width=128, steps=1_500, held_out=0.3, evaluate_every=100, patience=None, learning_rate=3e-3)
    seen: list[tuple[float, Tensor]] = []
    measure = HeldOutBatches.loss

    def spy(batches: HeldOutBatches, weights: Tensor) -> Tensor:
        loss = measure(batches, weights)
        seen.append((loss.item(), weights.clone()))
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldOutBatches, "loss", spy)
        report = generator.fit(data)
    lowest, weights = min(seen, key=lambda pair: pair[0])
    assert seen[-1][0] > lowest
    assert report.held_out_loss == pytest.approx(lowest)
    assert torch.equal(generator._engine.trainer(0).weights(), weights)


def test_fractional_steps_are_rounded_up_to_blocks() -> None:
    assert [make().fit(two_modes(), steps=n).steps for n in (1, 10, 11, 25)] == [10, 10, 20, 30]


def test_a_first_fit_is_always_from_scratch() -> None:
    generator = make(steps=30, refit_steps=10)
    assert generator.fit(two_modes(), from_scratch=False).steps == 30


def test_a_dropped_generator_is_freed_at_once() -> None:
    """Regression: the trainer held a method of its own, so every model waited for the garbage collector."""
    generator = newly_fitted()
    generator.sample(10)
    generator.fit(two_modes(seed=1))
    trainer, sampler = generator._engine.trainer(0), generator._engine.sampler(0)
    parts = [generator, trainer, sampler, trainer.optimiser, trainer.optimiser.parameters, sampler.weights]
    alive = [weakref.ref(part) for part in parts]
    gc.disable()
    try:
        del generator, trainer, sampler, parts
        assert [ref() for ref in alive] == [None] * len(alive)
    finally:
        gc.enable()
