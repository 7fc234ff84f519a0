"""Training of a stack: convergence, determinism, and rollback on errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from synther_replay.diffusion import pace as pace_module
from synther_replay.diffusion import trainer as trainer_module
from synther_replay.diffusion.network import NetworkShape
from synther_replay.diffusion.trainer import StackTrainer, TrainingPlan
from synther_replay.errors import DivergedError

CPU = torch.device("cpu")
SHAPE = NetworkShape(dim=2, width=32, depth=2, embedding=16)
PLAN = TrainingPlan(
    steps=40,
    batch_size=32,
    learning_rate=3e-3,
    evaluate_every=20,
    patience=None,
    max_seconds=None,
    from_scratch=False,
)
CORRELATION = 0.95


def make(seed: int = 0, stack: int = 2, **options: Any) -> StackTrainer:
    return StackTrainer(SHAPE, stack, CPU, torch.float32, seed=seed, **options)


@cache
def trained_state() -> dict[str, Any]:
    trainer = make()
    trainer.fit(rows(), rows(seed=1), PLAN)
    return trainer.state_dict()


def trained() -> StackTrainer:
    """One with the state of a trainer that is fitted once."""
    trainer = make()
    trainer.load_state_dict(trained_state())
    return trainer


def rows(n: int = 100, seed: int = 0, stack: int = 2) -> Tensor:
    """Standard normal pairs of columns with the correlation above."""
    z = torch.randn(stack, n, 2, generator=torch.Generator().manual_seed(seed))
    return torch.stack((z[..., 0], CORRELATION * z[..., 0] + math.sqrt(1 - CORRELATION**2) * z[..., 1]), dim=-1)


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether two states agree bit for bit."""
    return one.keys() == two.keys() and all(
        torch.equal(value, two[name]) if isinstance(value, Tensor) else value == two[name]
        for name, value in one.items()
    )


def smallest_possible_loss() -> float:
    """Of the perfect denoiser of `rows`: the mean over noise levels and principal axes of l (s^2 + 1) / (l + s^2)."""
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weight = (-grid.square() / 2).exp()
    square = (1.2 * grid - 1.2).exp().square()
    axes = torch.tensor([[1 + CORRELATION], [1 - CORRELATION]], dtype=torch.float64)
    loss = (axes * (square + 1) / (axes + square)).mean(0)
    return float((loss * weight).sum() / weight.sum())


# --- learning


def test_it_learns_a_correlated_distribution_almost_perfectly() -> None:
    trainer, seen = make(), []
    plan = replace(PLAN, steps=600, batch_size=128, evaluate_every=100)
    result = trainer.fit(rows(4000), rows(4000, seed=1), plan, lambda *report: seen.append(report))
    assert [steps for steps, _, _ in seen] == [100, 200, 300, 400, 500, 600]
    assert result.steps == 600
    assert not result.stopped_early
    assert result.held_out_loss is not None
    assert sum(result.held_out_loss) / 2 == pytest.approx(seen[-1][2], abs=2e-3)  # each model's own best
    assert seen[-1][2] < seen[0][2]
    best = smallest_possible_loss()
    assert best == pytest.approx(0.797, abs=0.002)  # a model of mean and standard deviation only has 1.0
    assert result.loss == pytest.approx([best] * 2, rel=0.05)
    assert result.held_out_loss == pytest.approx([best] * 2, rel=0.12)  # of fewer draws, hence noisier


def test_the_reported_loss_of_a_model_is_its_own() -> None:
    data = rows()
    data[1] = 0.5  # a single point, learnt at once
    result = make().fit(data, data, replace(PLAN, steps=400, evaluate_every=200))
    assert result.held_out_loss is not None
    for losses in (result.loss, result.held_out_loss):
        assert losses[1] < 0.3 < 0.6 < losses[0]


def test_without_held_out_rows_there_is_no_held_out_loss() -> None:
    reports = []
    result = make().fit(rows(), None, PLAN, lambda *report: reports.append(report))
    assert result.held_out_loss is None
    assert [held_out for _, _, held_out in reports] == [None, None]


def test_models_of_a_stack_differ_before_and_after_training() -> None:
    trainer = make(stack=3)
    data = rows(stack=1).expand(3, -1, -1)
    for _ in range(2):
        for tensor in (trainer.weights(), trainer.frequencies):
            assert not torch.equal(tensor[0], tensor[1])
            assert not torch.equal(tensor[1], tensor[2])
        trainer.fit(data, None, PLAN)


def test_a_model_of_a_stack_learns_from_its_own_rows_only() -> None:
    one, two = make(), make()
    data = rows()
    other = data.clone()
    other[1] = -other[1] + 3
    one.fit(data, None, PLAN)
    two.fit(other, None, PLAN)
    torch.testing.assert_close(one.weights()[0], two.weights()[0])
    assert not torch.allclose(one.weights()[1], two.weights()[1])


def test_all_rows_take_part_in_training_and_no_others() -> None:
    trainer = make(stack=1)
    trainer.fit(rows(n=200, stack=1), None, PLAN)  # a CUDA buffer keeps these rows behind the next, smaller set
    seen: list[Tensor] = []
    corrupt = trainer_module.edm.corrupt

    def spy(x: Tensor, *rest: Any) -> Any:
        seen.append(x)
        return corrupt(x, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.edm, "corrupt", spy)
        trainer.fit(torch.arange(129.0)[None, :, None].expand(1, 129, 2) + 1000, None, replace(PLAN, steps=100))
    values = torch.cat([x[..., 0].flatten() for x in seen]) - 1000
    assert values.unique().tolist() == list(range(129))
    counts = values.long().bincount(minlength=129).double()
    assert counts.std() < 1.5 * counts.mean().sqrt()  # consistent with uniform draws


def test_ema_is_updated_once_per_block_and_forgets_the_initial_weights() -> None:
    trainer = make(average_every=5, average_decay=0.5)
    optimiser, averages, parameters = trainer.optimiser, [], []
    update = optimiser.update_average

    def spy(weight: Tensor) -> None:
        update(weight)
        averages.append(optimiser.average.clone())
        parameters.append(optimiser.parameters.clone())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimiser, "update_average", spy)
        for _ in range(2):
            average = optimiser.average.clone()
            averages.clear()
            parameters.clear()
            trainer.fit(rows(), None, replace(PLAN, steps=60))
            assert len(averages) == 12
            for updates in range(12):
                decay = min(0.5, (1 + updates) / (10 + updates))  # counted in this fit
                average = decay * average + (1 - decay) * parameters[updates]
                torch.testing.assert_close(averages[updates], average)
    assert torch.equal(trainer.weights(), optimiser.average)


def test_the_learning_rate_falls_by_a_cosine_in_every_fit() -> None:
    trainer, seen = make(), []
    for _ in range(2):
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            set_rates = trainer._set_rates

            def spy(*args: float, wrapped: Callable[..., None] = set_rates) -> None:
                wrapped(*args)
                seen.append(trainer.learning_rate.item())

            patch.setattr(trainer, "_set_rates", spy)
            trainer.fit(rows(), None, PLAN)
        assert seen == pytest.approx([3e-3 * 0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(4)])


# --- repetition


def test_two_trainers_of_one_seed_agree_exactly_and_of_two_seeds_differ() -> None:
    one, again, other = make(seed=7), make(seed=7), make(seed=8)
    results = [trainer.fit(rows(), rows(seed=1), PLAN) for trainer in (one, again, other)]
    assert same(one.state_dict(), again.state_dict())
    assert results[0] == results[1]
    assert not torch.equal(one.weights(), other.weights())
    assert not torch.equal(one.frequencies, other.frequencies)


def test_a_second_fit_draws_other_random_numbers() -> None:
    still = replace(PLAN, learning_rate=1e-30)  # weights do not change: losses differ only by the batches
    trainer = make()
    assert trainer.fit(rows(), None, still).loss != trainer.fit(rows(), None, still).loss


def test_held_out_losses_within_a_fit_differ_by_the_model_alone() -> None:
    still, seen = replace(PLAN, learning_rate=1e-30, steps=60), []
    trainer = make()
    trainer.optimiser.average.copy_(trainer.optimiser.parameters)
    trainer.fit(rows(), rows(seed=1), still, lambda *report: seen.append(report[2]))
    assert len(seen) == 3
    assert seen[1:] == pytest.approx(seen[:1] * 2, rel=1e-6)


def test_the_held_out_loss_is_that_of_the_averaged_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, seen = make(), []
    monkeypatch.setattr(trainer.optimiser, "update_average", lambda weight: None)
    trainer.fit(rows(), rows(seed=1), replace(PLAN, steps=60), lambda *report: seen.append(report[2]))
    assert seen[0] == seen[1] == seen[2]  # only the weights that are not averaged have moved


def test_continuing_from_a_state_equals_not_having_stopped() -> None:
    trainer = make(seed=3)
    trainer.fit(rows(), rows(seed=1), PLAN)
    continued = make(seed=3)
    state = trainer.state_dict()
    continued.load_state_dict(state)
    assert same(continued.state_dict(), state)
    assert torch.equal(continued.weights(), trainer.weights())
    results = [one.fit(rows(n=150, seed=2), rows(seed=1), PLAN) for one in (trainer, continued)]
    assert results[0] == results[1]
    assert same(trainer.state_dict(), continued.state_dict())
    assert not same(trainer.state_dict(), state)  # a state is a copy: later training leaves it alone


def test_a_state_of_other_shapes_is_refused_and_changes_nothing() -> None:
    trainer = make()
    before = trainer.state_dict()
    with pytest.raises(ValueError, match=r"parameters.*\(2, .*\(3, "):
        trainer.load_state_dict(make(stack=3).state_dict())
    assert same(trainer.state_dict(), before)


def test_training_touches_no_global_random_state() -> None:
    before = torch.get_rng_state()
    make().fit(rows(), rows(seed=1), PLAN)
    assert torch.equal(torch.get_rng_state(), before)


# --- starting over and growing


def test_from_scratch_resets_and_warm_start_continues() -> None:
    trainer = make()
    initial = trainer.state_dict()
    trainer.fit(rows(), None, PLAN)
    assert trainer.adam_steps == 40
    trainer.fit(rows(), None, PLAN)
    assert (trainer.adam_steps, trainer.starts) == (80, 0)
    trainer.fit(rows(), None, replace(PLAN, from_scratch=True, learning_rate=1e-30))
    assert (trainer.adam_steps, trainer.starts, trainer.fits) == (40, 1, 3)
    # The rate was too small to move anything, so what is left are the new initial weights and only new moments.
    assert trainer.optimiser.parameters.abs().max() <= 1
    assert not torch.equal(trainer.frequencies, initial["frequencies"])
    assert not torch.allclose(trainer.optimiser.parameters, initial["parameters"])
    twin = make()
    twin.fits = 2
    twin.reset()
    twin.fit(rows(), None, replace(PLAN, learning_rate=1e-30))
    assert same(trainer.state_dict(), twin.state_dict())


def test_the_first_fit_from_scratch_uses_the_first_weights() -> None:
    one, two = make(), make()
    one.fit(rows(), None, PLAN)
    two.fit(rows(), None, replace(PLAN, from_scratch=True))
    assert same(one.state_dict(), two.state_dict())


def test_data_may_grow_and_shrink_between_fits() -> None:
    trainer = make()
    for n in (10, 100, 101, 1000, 5):
        assert all(map(math.isfinite, trainer.fit(rows(n), rows(n), PLAN).loss))
    # The result does not depend on previously allocated memory.
    fresh = make()
    fresh.load_state_dict(trainer.state_dict())
    assert trainer.fit(rows(64), None, PLAN) == fresh.fit(rows(64), None, PLAN)
    assert same(trainer.state_dict(), fresh.state_dict())


def test_another_batch_size_takes_effect() -> None:
    trainer = make()
    trainer.fit(rows(), None, PLAN)
    twin = make()
    twin.load_state_dict(trainer.state_dict())
    larger = replace(PLAN, batch_size=64)
    assert trainer.fit(rows(), None, larger) == twin.fit(rows(), None, larger)
    assert same(trainer.state_dict(), twin.state_dict())


# --- stopping


def test_patience_stops_when_the_held_out_loss_no_longer_falls() -> None:
    hopeless = replace(PLAN, steps=1000, learning_rate=1e-30, evaluate_every=10, patience=3)
    result = make().fit(rows(), rows(seed=1), hopeless)
    assert result.stopped_early
    assert result.steps <= 10 * 10
    assert not make().fit(rows(), None, replace(hopeless, steps=100)).stopped_early


def test_patience_counts_measurements_since_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([0.9, 0.8, 0.85, 0.7, 0.75, 0.72, 0.71, 0.6, 0.5, 0.4])
    trainer = make()
    monkeypatch.setattr(trainer_module.HeldOutBatches, "loss", lambda *_: torch.full((2,), next(losses)))
    result = trainer.fit(rows(), rows(seed=1), replace(PLAN, steps=100, evaluate_every=10, patience=3))
    assert (result.steps, result.stopped_early) == (70, True)


def test_stopping_early_at_the_very_end_is_not_early(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([0.5, 0.6, 0.7])
    trainer = make()
    monkeypatch.setattr(trainer_module.HeldOutBatches, "loss", lambda *_: torch.full((2,), next(losses)))
    result = trainer.fit(rows(), rows(seed=1), replace(PLAN, steps=30, evaluate_every=10, patience=2))
    assert (result.steps, result.stopped_early) == (30, False)


class Clock:
    """A clock that advances by the same time in every call."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


def test_a_time_limit_stops_and_anneals_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, rates = make(), []
    monkeypatch.setattr(pace_module, "time", Clock(1.0))
    set_rates = trainer._set_rates
    monkeypatch.setattr(trainer, "_set_rates", lambda *args: (rates.append(args[1]), set_rates(*args)))
    result = trainer.fit(rows(), rows(seed=1), replace(PLAN, steps=1_000_000, max_seconds=20.0))
    assert result.stopped_early
    assert result.steps == 200
    assert result.held_out_loss is not None
    assert rates == sorted(rates)
    assert rates[-1] > 0.9


def test_a_time_limit_that_does_not_bind_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the learning rate of the first block depended on the time it took."""
    limited, free, rates = make(), make(), []
    monkeypatch.setattr(pace_module, "time", Clock(0.1))
    set_rates = limited._set_rates
    monkeypatch.setattr(limited, "_set_rates", lambda *args: (rates.append(args[1]), set_rates(*args)))
    plan = replace(PLAN, max_seconds=1.0)  # takes 0.4 s of this clock
    assert limited.fit(rows(), rows(seed=1), plan) == free.fit(rows(), rows(seed=1), PLAN)
    assert rates == [0.0, 0.25, 0.5, 0.75]
    assert same(limited.state_dict(), free.state_dict())


@pytest.mark.parametrize(
    ("seconds_per_block", "max_seconds", "expected"),
    [(0.1, None, []), (2.0, None, ["INFO 20 s"]), (5.0, None, ["WARNING 50 s"]), (5.0, 40.0, ["WARNING 50 s 40 s"])],
)
def test_a_long_fit_says_once_how_long_it_will_take(
    seconds_per_block: float,
    max_seconds: float | None,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pace_module, "time", Clock(seconds_per_block))
    trainer = make()
    with caplog.at_level("INFO", logger=pace_module.logger.name):
        for _ in range(2):
            trainer.fit(rows(), None, replace(PLAN, steps=100, max_seconds=max_seconds))
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    announced = [(level, text) for level, text in said if "max_seconds" in text]
    assert len(announced) == len(expected)
    for (level, text), wanted in zip(announced, expected, strict=True):
        assert " ".join((level, *re.findall(r"\d+ s\b", text))) == wanted
    progress = [text for level, text in said if level == "INFO" and "step " in text]
    assert bool(progress) == bool(expected)


def test_a_real_time_limit_is_kept() -> None:
    result = make().fit(rows(), None, replace(PLAN, steps=20_000, max_seconds=0.1))
    assert result.stopped_early
    assert 0 < result.steps < 20_000


# --- accidents


def _assert_as_if_nothing_happened(trainer: StackTrainer, before: dict[str, Any]) -> None:
    assert same(trainer.state_dict(), before)
    assert torch.equal(trainer.optimiser.working, trainer.optimiser.parameters)
    twin = make()
    twin.load_state_dict(before)
    plan = replace(PLAN, steps=20, from_scratch=False)
    assert trainer.fit(rows(), rows(seed=1), plan) == twin.fit(rows(), rows(seed=1), plan)
    assert same(trainer.state_dict(), twin.state_dict())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.parametrize("from_scratch", [False, True])
@pytest.mark.parametrize("place", ["edm.squared_error", "backward", "forward"])
def test_an_accident_in_the_middle_of_a_step_changes_nothing(
    place: str, from_scratch: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trained()
    before, calls = trainer.state_dict(), 0
    owner, name = (trainer_module.edm, "squared_error") if "." in place else (trainer_module, place)
    original = getattr(owner, name)

    def accident(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 25:
            raise error("an accident")
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, accident)
        with pytest.raises(error, match="an accident"):
            trainer.fit(rows(n=500, seed=3), rows(seed=1), replace(PLAN, from_scratch=from_scratch))
    assert calls == 25
    _assert_as_if_nothing_happened(trainer, before)


def test_an_interrupt_in_the_callback_changes_nothing() -> None:
    trainer = make()
    trainer.fit(rows(), rows(seed=1), PLAN)
    before = trainer.state_dict()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(rows(), rows(seed=1), PLAN, interrupt)
    _assert_as_if_nothing_happened(trainer, before)


@pytest.mark.parametrize("where", ["training", "held out"])
def test_a_loss_that_is_not_finite_names_the_model_and_changes_nothing(where: str) -> None:
    trainer = make()
    trainer.fit(rows(), rows(seed=1), PLAN)
    before = trainer.state_dict()
    data, held_out = rows(seed=2), rows(seed=3)
    (data if where == "training" else held_out)[1] = math.nan
    with pytest.raises(DivergedError, match=r"model \[1\] of 2"):
        trainer.fit(data, held_out, PLAN)
    _assert_as_if_nothing_happened(trainer, before)


def test_a_learning_rate_that_explodes_is_a_divergence() -> None:
    trainer = make()
    before = trainer.state_dict()
    with pytest.raises(DivergedError):
        trainer.fit(rows(), None, replace(PLAN, learning_rate=1e30))
    _assert_as_if_nothing_happened(trainer, before)


@pytest.mark.parametrize("name", ["train", "held_out"])
@pytest.mark.parametrize("shape", [(1, 50, 2), (3, 50, 2), (2, 50, 1), (2, 50, 3), (2, 0, 2), (50, 2), (2, 2, 50, 2)])
def test_rows_of_another_shape_are_refused_by_name(name: str, shape: tuple[int, ...]) -> None:
    """Regression: rows of one model, or of one column, were silently used for all."""
    trainer = make()
    before = trainer.state_dict()
    arguments = {"train": rows(), "held_out": rows(seed=1), name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=f"{name}.*2, n, 2.*{shape[0]}, {shape[1]}"):
        trainer.fit(arguments["train"], arguments["held_out"], PLAN)
    _assert_as_if_nothing_happened(trainer, before)


def test_rows_that_require_gradients_can_be_fitted() -> None:
    """Regression: they failed, and so did every later fit, because the rows held in memory carried gradients on."""
    trainer, twin = make(), make()
    assert trainer.fit(rows().requires_grad_(), None, PLAN) == twin.fit(rows(), None, PLAN)
    assert not trainer.data.requires_grad


def test_bfloat16_trains_float32_weights() -> None:
    trainer = StackTrainer(SHAPE, 1, CPU, torch.bfloat16, seed=0)
    result = trainer.fit(rows(n=1000, stack=1), rows(n=1000, seed=1, stack=1), replace(PLAN, steps=200))
    assert result.held_out_loss is not None
    assert result.held_out_loss[0] < 0.95
    assert trainer.optimiser.parameters.dtype == torch.float32
    assert trainer.weights().dtype == torch.bfloat16


def test_a_fit_that_only_makes_it_worse_leaves_the_models_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    trainer.fit(rows(), rows(20, seed=1), PLAN)
    before = trainer.state_dict()
    losses = iter([1.0, 2.0, 3.0])  # before the first step, then at both measurements
    monkeypatch.setattr(trainer_module.HeldOutBatches, "loss", lambda *_: torch.full((2,), next(losses)))
    result = trainer.fit(rows(seed=5), rows(20, seed=1), PLAN)
    assert result.held_out_loss == (1.0, 1.0)
    for name in ("parameters", "average", "mean", "square"):
        assert torch.equal(trainer.state_dict()[name], before[name]), name
    assert torch.equal(trainer.optimiser.working, before["parameters"])
