"""SyntheticReplayBuffer: one section for each of the eight guarantees of the design."""

import copy
import logging
import math
import pickle
import random
import signal
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from synther_replay import (
    DiffusionGenerator,
    DivergedError,
    GenerationError,
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.replay.latents import LatentBuffer

TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=8, steps=20, refit_steps=10, batch_size=32, sampling_steps=4)
RECOVERABLE = [DivergedError("nan"), GenerationError("none valid"), torch.OutOfMemoryError("full"), MemoryError("full")]


@pytest.fixture
def make(spec, fake):
    """Makes a buffer around a ring of 100 and a fake generator, refitted at 10 steps and every 10 more."""

    def build(generator=fake, *, real=None, every=10, rows=40, start=10, seed=0, **options):
        real = RingBuffer(spec, 100, seed=seed + 100, device="cpu") if real is None else real
        schedule = RetrainSchedule(every=every, rows=rows, start=start)
        return SyntheticReplayBuffer(real, generator, schedule=schedule, seed=seed, **options)

    return build


@pytest.fixture
def refitted(make, numbered):
    """Makes a buffer with 10 real rows and 40 synthetic ones."""

    def build(*args, **options):
        buffer = make(*args, **options)
        buffer.add(numbered(10))
        assert buffer.refit_or_warn() is not None
        return buffer

    return build


def is_real(batch):
    """Real rewards count up from 0, those of the fake generator are negative."""
    return batch.rewards >= 0


def raising(error):
    def hook():
        raise error

    return hook


def pendulum_like(spec, n=400, seed=0):
    """Rows with an angle on a circle, a speed and a constant; high speed terminates."""
    rng = torch.Generator().manual_seed(seed)
    angle, speed = torch.rand(2, n, generator=rng) * torch.tensor([[2 * math.pi], [8.0]])
    force = torch.randint(0, 3, (n,), generator=rng) if isinstance(spec.action_space, spaces.Discrete) else None
    action = force if force is not None else torch.rand(n, 1, generator=rng) * 4 - 2
    observations, next_observations = (
        {"state": torch.stack([(angle + step).cos(), (angle + step).sin(), speed], -1), "level": torch.full((n,), 2)}
        for step in (0.0, 0.1)
    )
    return Transitions.from_arrays(spec, observations, action, -speed, next_observations, speed > 7)


def pendulum_spec(action_space):
    bound = np.array([1, 1, 8], np.float32)
    observation_space = spaces.Dict(state=spaces.Box(-bound, bound), level=spaces.Discrete(5))
    return TransitionSpec.from_spaces(observation_space, action_space)


# --- 1. exact, shuffled split -----------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.integers(1, 70))
@settings(max_examples=60, deadline=None)
@example(0.0, 1)
@example(1.0, 1)
@example(0.5, 1)
@example(0.5, 3)
@example(0.3, 64)
def test_1_batch_holds_exactly_the_share_of_real_rows(spec, numbered, real_ratio, batch_size):
    class Generator:
        def fit(self, transitions):
            pass

        def sample(self, n):
            return Transitions(spec, numbered(n, first=-n).rows)

    real = RingBuffer(spec, 100, device="cpu")
    real.add(numbered(10))
    buffer = SyntheticReplayBuffer(
        real, Generator(), real_ratio=real_ratio, schedule=RetrainSchedule(every=10, rows=40, start=10)
    )
    for _ in range(3):
        batch = buffer.sample(batch_size)
        assert len(batch) == batch_size
        assert is_real(batch).sum() == round(real_ratio * batch_size)


def test_1_rows_are_whole_rows_of_their_source(refitted, numbered, spec):
    buffer = refitted()
    real, synthetic = numbered(10).rows, buffer.store.rows
    for _ in range(20):
        batch = buffer.sample(16)
        mask = is_real(batch)
        assert torch.equal(batch.rows[mask], real[batch.rewards[mask].long()])
        assert torch.equal(batch.rows[~mask], synthetic[batch.rows[~mask, 0].long()])


@pytest.mark.parametrize("real_ratio", [0.25, 0.5, 0.9])
def test_1_real_rows_are_at_every_place_equally_often(refitted, real_ratio):
    buffer = refitted(real_ratio=real_ratio)
    masks = torch.stack([is_real(buffer.sample(10)) for _ in range(2_000)])
    assert len(masks.unique(dim=0)) > 5
    counts = masks.sum(0)
    assert counts.min() > 0.9 * counts.float().mean()
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_1_consecutive_slices_of_one_large_batch_hold_their_share(refitted):
    batch = refitted().sample(20 * 256)
    shares = is_real(batch).view(20, 256).float().mean(1)
    assert shares.min() > 0.35
    assert shares.max() < 0.65


def test_1_rows_of_each_source_are_drawn_evenly(refitted):
    buffer = refitted()
    rows = torch.cat([buffer.sample(20).rows for _ in range(500)])
    mask = rows[:, buffer.spec.rewards.start] >= 0
    assert chisquare(rows[mask][:, buffer.spec.rewards.start].long().bincount(minlength=10).numpy()).pvalue > 1e-3
    assert chisquare(rows[~mask][:, 0].long().bincount(minlength=40).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_1_everything_is_real_until_there_are_synthetic_rows(make, numbered, fake, real_ratio):
    buffer = make(real_ratio=real_ratio, start=50)
    for k in range(4):
        buffer.add(numbered(10, 10 * k))
        assert is_real(buffer.sample(32)).all()
    assert fake.fits == 0
    buffer.add(numbered(10, 40))
    assert is_real(buffer.sample(32)).sum() == 32 * real_ratio


def test_1_changing_batch_sizes_keep_the_split(refitted):
    buffer = refitted()
    for batch_size in (4, 10, 4, 4, 256, 1, 4):
        assert is_real(buffer.sample(batch_size)).sum() == round(0.5 * batch_size)


def test_1_batches_may_be_kept_and_changed(refitted):
    spoilt, kept = refitted(), []
    plain = copy.deepcopy(spoilt)
    for _ in range(100):
        batch, expected = spoilt.sample(8), plain.sample(8)
        assert torch.equal(batch.rows, expected.rows)
        kept.append((batch.rows, batch.rows.fill_(7).clone()))
    assert all(torch.equal(rows, then) for rows, then in kept)


# --- when it is refitted ----------------------------------------------------------------------------------------------


def test_the_schedule_can_be_changed_during_a_run(make, numbered, fake):
    buffer = make(every=10, start=10)
    for schedule in (0, "often", {"evry": 5}, 7.5):
        with pytest.raises((TypeError, ValueError), match=r"schedule|every|evry"):
            buffer.schedule = schedule
    assert buffer.schedule.every == 10
    buffer.schedule = {"every": 25, "start": 30, "rows": 40}
    assert buffer.schedule == RetrainSchedule(every=25, rows=40, start=30)
    for _ in range(6):
        buffer.add(numbered(10))
        buffer.sample(4)
    assert fake.learnt == [30, 60]


def test_a_buffer_pickled_before_its_schedule_could_be_changed_keeps_it(make):
    buffer = make(every=15)
    state = buffer.__getstate__()
    state["schedule"] = state.pop("_schedule")
    old = object.__new__(type(buffer))
    old.__setstate__(state)
    assert old.schedule == buffer.schedule
    assert "schedule" not in vars(old)


def test_refits_follow_the_schedule(make, numbered, fake):
    buffer = make()
    refits = []
    for k in range(15):
        buffer.add(numbered(3, 3 * k))
        buffer.sample(4)
        if fake.fits > len(refits):
            refits.append(buffer.steps)
    assert refits == [12, 24, 36]
    assert fake.learnt == [12, 24, 36]
    assert buffer.refits == 3


def test_refit_happens_once_however_often_is_sampled(make, numbered, fake):
    buffer = make()
    buffer.add(numbered(50))
    for _ in range(30):
        buffer.sample(4)
    assert fake.fits == 1


def test_rows_of_the_last_refit_replace_all_earlier_ones(make, numbered):
    buffer = make()
    for k in range(1, 5):
        buffer.add(numbered(10, 10 * k))
        for _ in range(5):
            rewards = buffer.sample(16).rewards
            assert set(rewards[rewards < 0].tolist()) == {-k}


def test_steps_are_counted_in_transitions(make, numbered, spec):
    buffer = make()
    buffer.add([0, 0], 1, 0.5, [0, 0], False)
    buffer.add(np.zeros((4, 2)), np.ones(4), np.zeros(4), np.zeros((4, 2)), np.zeros(4, bool))
    buffer.add(numbered(3))
    buffer.add(Transitions(spec, numbered(6).rows.view(2, 3, -1)))
    assert buffer.steps == len(buffer) == 14
    buffer.add(numbered(100))
    assert (buffer.steps, len(buffer)) == (114, 100)


def test_real_buffer_that_is_already_filled_counts(make, numbered, spec, fake):
    real = RingBuffer(spec, 100, device="cpu")
    real.add(numbered(10))
    buffer = make(real=real)
    assert buffer.steps == 10
    buffer.sample(4)
    assert fake.fits == 1


def test_no_more_rows_are_generated_than_the_store_can_hold(refitted):
    assert len(refitted(rows=40, capacity=15).store) == 15
    assert len(refitted(rows=40, capacity=40).store) == 40
    assert len(refitted(rows=40).store) == 40


def test_refit_returns_and_logs_a_report(make, numbered, caplog):
    buffer = make()
    buffer.add(numbered(10))
    with caplog.at_level(logging.INFO, logger="synther_replay"):
        report = buffer.refit_or_warn()
    assert report is buffer.last_refit
    assert (report.fit, report.rows, report.steps) == ("fit 1", 40, 10)
    assert report.fit_seconds >= 0
    assert report.sample_seconds >= 0
    assert "refit 1 at step 10: fitted to 10 real rows" in caplog.text
    assert "generated 40 rows" in caplog.text
    assert buffer.refit_if_due() is None


def test_refit_waits_for_as_many_rows_as_the_generator_needs(make, numbered, spec):
    buffer = make(DiffusionGenerator(spec, TINY, device="cpu"), start=5, every=5)
    buffer.add(numbered(DiffusionGenerator.min_rows - 1))
    assert is_real(buffer.sample(8)).all()
    assert buffer.refits == 0
    buffer.add(numbered(1))
    buffer.sample(8)
    assert buffer.refits == 1


def test_a_real_buffer_that_never_holds_enough_rows_is_warned_of(make, spec):
    def ring(capacity):
        return RingBuffer(spec, capacity, device="cpu")

    few = "real: holds at most 31 transitions, and the generator needs at least 32"
    for real in (ring(31), LatentBuffer(ring(31), lambda observations: observations)):
        with pytest.warns(RuntimeWarning, match=few):
            make(TINY, real=real)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(TINY, real=ring(32))
        make(real=ring(31))  # the fake generator takes any number
        plain = make(TINY, real=ring(31), real_ratio=1.0)
    plain.real_ratio = 0.5
    with pytest.warns(RuntimeWarning, match=few):
        assert plain.generator is not None


def test_repr_shows_sizes(refitted):
    assert repr(refitted()) == "SyntheticReplayBuffer(10 real, 40 synthetic, real_ratio=0.5, refits=1)"


def test_any_object_with_the_methods_can_be_a_part(numbered, spec, fake):
    class ListBuffer:
        def __init__(self):
            self.parts = []

        def add(self, transitions):
            self.parts.append(transitions)

        def sample(self, n):
            return self.transitions()[torch.zeros(n, dtype=torch.long)]

        def transitions(self):
            return Transitions(spec, torch.cat([part.rows for part in self.parts]))

        def __len__(self):
            return sum(map(len, self.parts))

    buffer = SyntheticReplayBuffer(ListBuffer(), fake, schedule=RetrainSchedule(every=5, rows=8, start=5))
    buffer.add(numbered(5))
    batch = buffer.sample(8)
    assert batch.rewards[is_real(batch)].tolist() == [0.0] * 4


# --- 2. termination, 3. what generated rows are like ------------------------------------------------------------------

ACTION_SPACES = [spaces.Box(-2, 2, (1,)), spaces.Box(-0.1, 2, (1,), np.float64), spaces.Discrete(3)]


@pytest.fixture(scope="module", params=ACTION_SPACES, ids=str)
def pendulum_buffer(request):
    """A buffer with rows of a real diffusion model after a few training steps."""
    spec = pendulum_spec(request.param)
    generator = DiffusionGenerator(spec, GeneratorConfig.tiny(width=32, steps=100, sampling_steps=8), device="cpu")
    buffer = SyntheticReplayBuffer(
        RingBuffer(spec, 1_000, device="cpu"),
        generator,
        real_ratio=0.0,
        schedule=RetrainSchedule(every=400, rows=3_000, start=400),
    )
    buffer.add(pendulum_like(spec))
    leave = request.param is ACTION_SPACES[1]
    with (
        pytest.warns(RuntimeWarning, match=r"real: [\d,]+ of [\d,]+ rows .* outside the action space .*-1\.9")
        if leave
        else nullcontext()
    ):
        buffer.sample(1)
    return buffer


def test_2_generated_termination_is_never_fractional(pendulum_buffer):
    rows = pendulum_buffer.sample(3_000)
    flags = rows.rows[:, rows.spec.terminated]
    assert set(flags.unique().tolist()) == {0.0, 1.0}
    assert rows.terminated.dtype == torch.bool


@pytest.mark.parametrize("flag", [False, True])
def test_2_termination_that_never_varies_is_not_invented(flag):
    """Truncated episodes are stored as not terminated; a task with only time limits must not generate terminations."""
    spec = pendulum_spec(spaces.Discrete(3))
    generator = DiffusionGenerator(spec, TINY, device="cpu")
    buffer = SyntheticReplayBuffer(
        RingBuffer(spec, 1_000, device="cpu"),
        generator,
        real_ratio=0.0,
        schedule=RetrainSchedule(every=400, rows=500, start=400),
    )
    data = pendulum_like(spec)
    data.rows[:, spec.terminated] = float(flag)
    buffer.add(data)
    assert (buffer.sample(500).terminated == flag).all()
    assert buffer.refits == 1


def test_3_generated_actions_are_in_their_space(pendulum_buffer):
    space = pendulum_buffer.spec.action_space
    actions = pendulum_buffer.sample(2_000).actions.numpy()
    assert actions.dtype == space.dtype
    assert all(space.contains(action) for action in actions)
    assert len(np.unique(actions)) >= 3


def test_3_generated_rows_are_finite(pendulum_buffer):
    assert pendulum_buffer.sample(3_000).rows.isfinite().all()


def test_3_constant_fields_come_back_constant(pendulum_buffer):
    batch = pendulum_buffer.sample(3_000)
    for observations in (batch.observations, batch.next_observations):
        assert observations["level"].dtype == torch.int64
        assert observations["level"].unique().tolist() == [2]


def test_3_generated_observations_stay_within_their_bounds(pendulum_buffer):
    state = pendulum_buffer.sample(3_000).observations["state"]
    assert (state.abs() <= torch.tensor([1.0, 1.0, 8.0])).all()


def test_3_rejected_rows_are_counted(monkeypatch):
    spec = pendulum_spec(spaces.Discrete(3))
    generator = DiffusionGenerator(spec, TINY, device="cpu")
    generator.fit(pendulum_like(spec))
    draw, spoilt = generator._engine.sampler(0).draw, iter([True])

    def with_nan(n, seed, write, *condition):
        def spoil(start, codes):
            if next(spoilt, False):
                codes[0, :7, 0] = math.nan
            write(start, codes)

        draw(n, seed, spoil, *condition)

    monkeypatch.setattr(generator._engine.sampler(0), "draw", with_nan)
    rows = generator.sample(2_000)
    assert rows.rows.isfinite().all()
    assert set(rows.actions.unique().tolist()) <= {0, 1, 2}
    assert generator.rejected == 7


# --- 4. a refit completes or leaves everything as it was --------------------------------------------------------------


@pytest.mark.parametrize("when", ["during_fit", "during_sample"])
@pytest.mark.parametrize("error", RECOVERABLE, ids=lambda error: type(error).__name__)
def test_4_failed_refit_keeps_store_and_model_and_warns(refitted, fake, numbered, same, error, when):
    buffer = refitted()
    report = buffer.last_refit
    generator, store = fake.state_dict(), buffer.store.state_dict()
    setattr(fake, when, raising(error))
    buffer.add(numbered(10, 10))
    with pytest.warns(RuntimeWarning, match=f"kept the previous model and 40 synthetic rows.* {error}"):
        assert buffer.refit_if_due() is None
    assert fake.state_dict() == generator
    assert same(buffer.store.state_dict(), store)
    assert buffer.last_refit is report
    assert buffer.refits == 1
    assert set(buffer.sample(64).rewards.tolist()) <= {-1.0, *range(20)}


@pytest.mark.parametrize("when", ["during_fit", "during_sample"])
def test_4_failed_refit_is_tried_again_only_when_the_next_is_due(refitted, fake, numbered, when):
    buffer = refitted()
    setattr(fake, when, raising(DivergedError("nan")))
    buffer.add(numbered(10))
    with pytest.warns(RuntimeWarning, match=r"refit .*failed"):
        batch = buffer.sample(8)
    assert is_real(batch).sum() == 4
    setattr(fake, when, lambda: None)
    tries = len(fake.learnt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(9):
            buffer.add(numbered(1))
            buffer.sample(8)
    assert len(fake.learnt) == tries
    buffer.add(numbered(1))
    buffer.sample(8)
    assert len(fake.learnt) == tries + 1
    assert buffer.refits == 2


def test_4_first_refit_may_fail_too(make, fake, numbered):
    buffer = make(every=5)
    fake.during_fit = raising(torch.OutOfMemoryError("full"))
    buffer.add(numbered(10))
    with pytest.warns(RuntimeWarning, match="0 synthetic rows"):
        assert is_real(buffer.sample(32)).all()
    fake.during_fit = lambda: None
    buffer.add(numbered(5))
    assert is_real(buffer.sample(32)).sum() == 16


@pytest.mark.parametrize("when", ["during_fit", "during_sample"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), TypeError("a bug"), ValueError("bad rows")])
def test_4_interrupts_are_passed_on_and_bugs_reported_with_store_and_model_as_before(
    refitted, fake, numbered, same, caplog, error, when
):
    buffer = refitted()
    generator, store = fake.state_dict(), buffer.store.state_dict()
    setattr(fake, when, raising(error))
    buffer.add(numbered(10, 10))
    caplog.set_level(logging.INFO, logger="synther_replay")
    with (
        pytest.warns(RuntimeWarning, match=f"{type(error).__name__}: {error}")
        if isinstance(error, Exception)
        else pytest.raises(type(error))
    ):
        buffer.refit_if_due()
    assert fake.state_dict() == generator
    assert same(buffer.store.state_dict(), store)
    assert "kept the previous model and 40 synthetic rows" in caplog.text
    with pytest.raises(type(error)):
        buffer.refit()
    setattr(fake, when, lambda: None)
    assert is_real(buffer.sample(64)).sum() == 32
    is_interrupt = not isinstance(error, Exception)
    assert buffer.refits == 1 + is_interrupt  # an interrupted refit stays due, a failed one waits for the next
    buffer.add(numbered(10, 20))
    buffer.sample(8)
    assert buffer.refits == 2 + is_interrupt


def test_4_the_same_failure_is_not_reported_at_every_refit(refitted, fake, numbered):
    def failures(times, error):
        fake.during_fit = raising(error)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(times):
                buffer.add(numbered(10))
                buffer.sample(8)
        return len(caught)

    buffer = refitted()
    assert failures(9, torch.OutOfMemoryError("tried to allocate 20 MB")) == 1
    assert failures(8, torch.OutOfMemoryError("tried to allocate 30 MB")) == 1, "the tenth"
    assert failures(3, TypeError("a bug")) == 1, "another one"
    assert sum(failures(1, ValueError(f"got 0 of {rows:,} rows")) for rows in (900, 1_900)) == 1, "another number"
    fake.during_fit = lambda: None
    buffer.add(numbered(10))
    buffer.sample(8)
    assert buffer.refits == 2
    assert failures(3, TypeError("a bug")) == 1, "it had worked in between"


class Interrupted(DiffusionGenerator):
    """Raises at the end of one method on request."""

    interrupt_after = None

    def fit(self, *args, **options):
        report = super().fit(*args, **options)
        if self.interrupt_after == "fit":
            raise KeyboardInterrupt
        return report

    def sample(self, n):
        rows = super().sample(n)
        if self.interrupt_after == "sample":
            raise KeyboardInterrupt
        return rows


@pytest.mark.parametrize("method", ["fit", "sample"])
@pytest.mark.parametrize("first", [True, False], ids=["first refit", "later refit"])
def test_4_interrupt_leaves_a_diffusion_model_as_it_was(make, numbered, spec, same, method, first):
    generator = Interrupted(spec, TINY, device="cpu")
    buffer = make(generator, start=40)
    buffer.add(numbered(40))
    if not first:
        buffer.sample(8)
        buffer.add(numbered(10, 40))
    before, store = generator.state_dict(), buffer.store.state_dict()
    generator.interrupt_after = method
    with pytest.raises(KeyboardInterrupt):
        buffer.sample(8)
    assert same(generator.state_dict(), before)
    assert same(buffer.store.state_dict(), store)
    assert generator.is_fitted is not first
    generator.interrupt_after = None
    assert len(buffer.sample(8)) == 8
    assert buffer.refit_or_warn() is not None


def test_4_signal_in_the_middle_of_a_fit_leaves_a_diffusion_model_as_it_was(make, numbered, spec, same):
    generator = DiffusionGenerator(spec, TINY, device="cpu")
    buffer = make(generator, start=40)
    buffer.add(numbered(40))
    buffer.sample(8)
    before, store, rows = generator.state_dict(), buffer.store.state_dict(), copy.deepcopy(generator).sample(50).rows
    fit = generator.fit
    generator.fit = lambda transitions: fit(transitions, steps=10_000_000)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2, 5.0)  # again if something swallows the first
        with pytest.raises(KeyboardInterrupt):
            buffer.refit_or_warn()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert same(generator.state_dict(), before)
    assert same(buffer.store.state_dict(), store)
    assert torch.equal(generator.sample(50).rows, rows)
    assert len(buffer.sample(8)) == 8


@pytest.mark.parametrize("when", ["during_fit", "during_sample"])
def test_4_sampling_never_sees_half_a_refit(refitted, fake, numbered, when):
    buffer = refitted()
    buffer.sample(8)
    seen = []

    def look():
        batch = buffer.sample(40)
        seen.append((len(buffer.store), set(batch.rewards[~is_real(batch)].tolist())))

    setattr(fake, when, look)
    buffer.add(numbered(10, 10))
    buffer.sample(8)
    assert seen == [(40, {-1.0})]
    batch = buffer.sample(40)
    assert set(batch.rewards[~is_real(batch)].tolist()) == {-2.0}


def test_4_more_rows_than_asked_for_are_not_taken(refitted, fake, numbered, same):
    buffer = refitted(capacity=40)
    before, generator = buffer.store.state_dict(), fake.state_dict()
    sample = fake.sample
    fake.sample = lambda n: sample(n + 1)
    buffer.add(numbered(10, 10))
    with pytest.warns(RuntimeWarning, match="returned 41 rows"):
        buffer.sample(8)
    assert fake.state_dict() == generator
    assert same(buffer.store.rows, before["rows"])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_4_generated_rows_that_are_not_finite_are_not_taken(refitted, fake, numbered, same, spec, value):
    buffer = refitted()
    before = buffer.store.state_dict()

    def sample(n):
        rows = torch.zeros(n, spec.dim)
        rows[n // 2, 1] = value
        return Transitions(spec, rows)

    fake.sample = sample
    buffer.add(numbered(10, 10))
    with pytest.warns(RuntimeWarning, match="non-finite"):
        assert buffer.refit_if_due() is None
    assert same(buffer.store.state_dict(), before)


# --- 5. determinism ---------------------------------------------------------------------------------------------------


def run(buffer, numbered, steps=60):
    batches = []
    for k in range(steps):
        buffer.add(numbered(1, k))
        batches.append(buffer.sample(8 if k % 7 else 5).rows.clone())
    return batches


def diffusion_run(spec, numbered, seed):
    generator = DiffusionGenerator(spec, TINY, device="cpu", seed=seed)
    schedule = RetrainSchedule(every=10, rows=40, start=35)
    buffer = SyntheticReplayBuffer(
        RingBuffer(spec, 50, seed=seed, device="cpu"), generator, schedule=schedule, seed=seed
    )
    batches = run(buffer, numbered)
    assert buffer.refits == 3
    return batches


def test_5_same_seed_gives_the_same_batches(spec, numbered, same):
    assert same(diffusion_run(spec, numbered, 3), diffusion_run(spec, numbered, 3))


def test_5_another_seed_gives_other_batches(spec, numbered):
    first, second = (diffusion_run(spec, numbered, seed)[-20:] for seed in (3, 4))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_5_seed_of_the_buffer_decides_places_and_synthetic_rows(spec, numbered, fake):
    def masks_and_rows(seed):
        buffer = SyntheticReplayBuffer(
            RingBuffer(spec, 50, device="cpu"),
            copy.deepcopy(fake),
            schedule=RetrainSchedule(every=10, rows=40, start=10),
            seed=seed,
        )
        buffer.add(numbered(10))
        batches = [buffer.sample(16) for _ in range(5)]
        return torch.stack([is_real(b) for b in batches]), torch.stack([b.rows[:, 0] for b in batches])

    assert all(torch.equal(a, b) for a, b in zip(masks_and_rows(1), masks_and_rows(1), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(masks_and_rows(1), masks_and_rows(2), strict=True))


def test_5_real_and_synthetic_rows_are_drawn_independently(spec, fake, numbered):
    """All seeds are 0 by default: equal streams would pair each real row with one synthetic row."""
    buffer = SyntheticReplayBuffer(
        RingBuffer(spec, 40, device="cpu"), fake, schedule=RetrainSchedule(every=40, rows=40, start=40)
    )
    buffer.add(numbered(40))
    buffer.refit_or_warn()
    real = torch.cat([buffer.real.sample(500).rewards for _ in range(32)])
    synthetic = torch.cat([buffer.store.sample(500)[:, 0] for _ in range(32)])
    assert not torch.equal(real.long().bincount(minlength=40), synthetic.long().bincount(minlength=40))


def test_5_global_random_states_and_settings_are_left_alone(spec, numbered, tmp_path):
    def state():
        numpy_state = np.random.get_state()
        return (
            random.getstate(),
            (numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]),
            torch.get_rng_state().tolist(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
        )

    before = state()
    generator = DiffusionGenerator(spec, TINY, device="cpu")
    buffer = SyntheticReplayBuffer(
        RingBuffer(spec, 50, device="cpu"), generator, schedule=RetrainSchedule(every=10, rows=40, start=35)
    )
    run(buffer, numbered, 40)
    buffer.save(tmp_path / "buffer")
    buffer.load(tmp_path / "buffer")
    assert state() == before


def test_5_result_does_not_depend_on_the_global_seed(spec, numbered, same):
    random_state = torch.get_rng_state()
    try:
        torch.manual_seed(1)
        first = diffusion_run(spec, numbered, 3)
        torch.manual_seed(2)
        assert same(first, diffusion_run(spec, numbered, 3))
    finally:
        torch.set_rng_state(random_state)


# --- 6. save and load: test_buffer_checkpoint.py ----------------------------------------------------------------------


# --- 7. bad input -----------------------------------------------------------------------------------------------------

GOOD = {
    "observations": [0.1, 0.2],
    "actions": 1,
    "rewards": 0.5,
    "next_observations": [0.2, 0.3],
    "terminated": False,
}
BAD_FIELDS = [
    ("observations", [0.1, 0.2, 0.3], ValueError, r"observations: expected shape \(2,\), got \(3,\)"),
    ("observations", [[0.1, 0.2]], ValueError, "observations"),
    ("observations", [math.nan, 0.2], ValueError, "observations.*nan"),
    ("observations", [0.1, math.inf], ValueError, "observations.*inf"),
    ("observations", [1e300, 0.1], ValueError, "observations"),
    ("observations", ["a", "b"], TypeError, "observations"),
    ("observations", [1j, 0], TypeError, "observations"),
    ("observations", None, TypeError, "observations"),
    ("actions", [1], ValueError, "actions"),
    ("actions", 3, ValueError, "actions.*3"),
    ("actions", -1, ValueError, "actions.*-1"),
    ("actions", 0.5, ValueError, r"actions.*0\.5"),
    ("actions", math.nan, ValueError, "actions.*nan"),
    ("rewards", math.nan, ValueError, "rewards.*nan"),
    ("rewards", -math.inf, ValueError, "rewards.*-inf"),
    ("rewards", "high", TypeError, "rewards"),
    ("next_observations", [math.nan, 0.2], ValueError, "next_observations.*nan"),
    ("next_observations", 0.5, ValueError, "next_observations"),
    ("terminated", 0.5, ValueError, r"terminated.*0\.5"),
    ("terminated", math.nan, ValueError, "terminated.*nan"),
    ("terminated", [False], ValueError, "terminated"),
]


def test_7_good_input_is_taken(refitted):
    buffer = refitted()
    buffer.add(*GOOD.values())
    assert (len(buffer), buffer.steps) == (11, 11)


@pytest.mark.parametrize(("name", "value", "error", "message"), BAD_FIELDS)
def test_7_bad_field_is_refused_by_name_and_value(refitted, same, name, value, error, message):
    buffer = refitted()
    before = buffer.state_dict()
    with pytest.raises(error, match=message):
        buffer.add(*(GOOD | {name: value}).values())
    assert same(buffer.state_dict(), before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 3, 5])
def test_7_transitions_that_are_not_finite_are_refused(refitted, numbered, same, value, column):
    buffer = refitted()
    before = buffer.state_dict()
    bad = numbered(5)
    bad.rows[2, column] = value
    with pytest.raises(ValueError, match=f"{value}"):
        buffer.add(bad)
    assert same(buffer.state_dict(), before)


def test_7_transitions_of_another_spec_are_refused(refitted, same):
    buffer = refitted()
    before = buffer.state_dict()
    other = TransitionSpec.from_spaces(spaces.Box(-1, 2, (2,)), spaces.Discrete(3))
    with pytest.raises(ValueError, match=r"transitions: got spec .*, expected "):
        buffer.add(Transitions(other, torch.zeros(2, other.dim)))
    assert same(buffer.state_dict(), before)


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_7_other_numbers_of_fields_are_refused(refitted, same, count):
    buffer = refitted()
    before = buffer.state_dict()
    with pytest.raises(TypeError, match=f"got {count} arguments"):
        buffer.add(*[0.0] * count)
    assert same(buffer.state_dict(), before)


@pytest.mark.parametrize("real_ratio", [-0.1, 1.1, math.nan, math.inf])
def test_7_ratio_outside_its_range_is_refused(make, real_ratio):
    with pytest.raises(ValueError, match=f"real_ratio.*{real_ratio}"):
        make(real_ratio=real_ratio)


@pytest.mark.parametrize("capacity", [0, -5])
def test_7_capacity_below_one_is_refused(make, capacity):
    with pytest.raises(ValueError, match=f"capacity.*{capacity}"):
        make(capacity=capacity)


@pytest.mark.parametrize("batch_size", [0, -1])
@pytest.mark.parametrize("real_ratio", [0.0, 0.5, 1.0])
def test_7_batch_of_nothing_is_refused(make, numbered, batch_size, real_ratio):
    buffer = make(real_ratio=real_ratio)
    buffer.add(numbered(20))
    with pytest.raises(ValueError, match=f"batch_size.*{batch_size}"):
        buffer.sample(batch_size)


@pytest.mark.parametrize("real_ratio", [0.0, 0.5, 1.0])
def test_7_empty_buffer_cannot_be_sampled(make, real_ratio):
    with pytest.raises(ValueError, match="empty"):
        make(real_ratio=real_ratio).sample(4)


def test_7_parts_without_their_methods_are_refused_by_name(make, spec, fake):
    with pytest.raises(TypeError, match=r"real.*RealBuffer.*list"):
        make(real=[])
    with pytest.raises(TypeError, match=r"^generator: .*fast.* 3$"):
        make(3)


def test_7_missing_spec_is_asked_for(spec):
    class Real:
        def add(self, transitions): ...
        def sample(self, n): ...
        def transitions(self): ...
        def __len__(self):
            return 0

    class Generator:
        def fit(self, transitions): ...
        def sample(self, n): ...

    with pytest.raises(TypeError, match="spec"):
        SyntheticReplayBuffer(Real(), Generator())
    assert SyntheticReplayBuffer(Real(), Generator(), spec=spec).spec is spec


def test_7_parts_of_different_specs_are_refused(make, spec):
    other = TransitionSpec.from_spaces(spaces.Box(-1, 1, (5,)), spaces.Discrete(3))
    with pytest.raises(ValueError, match="spec"):
        make(DiffusionGenerator(other, TINY, device="cpu"))


def test_7_too_few_rows_to_fit_are_refused_by_number(make, numbered, spec, same):
    generator = DiffusionGenerator(spec, TINY, device="cpu")
    buffer = make(generator)
    buffer.add(numbered(31))
    before = generator.state_dict()
    with pytest.raises(ValueError, match=r"at least 32 .*31"):
        buffer.refit()
    with pytest.warns(RuntimeWarning, match=r"at least 32 .*31"):
        assert buffer.refit_or_warn() is None
    assert same(generator.state_dict(), before)
    assert len(buffer.store) == 0


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))], ids=str)
def test_7_space_that_is_not_supported_is_refused_by_name(space):
    with pytest.raises(TypeError, match=f"observation_space.*{type(space).__name__}"):
        TransitionSpec.from_spaces(space, spaces.Discrete(2))


# --- invalid rows that a real buffer accepts --------------------------------------------------------------------------


@pytest.fixture
def dirty(spec, fake, numbered):
    """A buffer of 60 rows, added past the checks of `add`; two rewards are NaN, one observation is infinite."""
    learnt = []
    fake.fit = lambda transitions: learnt.append(transitions.rows.clone())
    buffer = SyntheticReplayBuffer(
        RingBuffer(spec, 1_000, device="cpu"), fake, schedule=RetrainSchedule(every=60, rows=40, start=60), seed=0
    )
    buffer.learnt = learnt

    def add(n, first=0, bad_rewards=(), bad_observations=()):
        rows = numbered(n, first).rows
        rows[list(bad_rewards), spec.rewards.start] = math.nan
        rows[list(bad_observations), 1] = math.inf
        buffer.real.add(Transitions(spec, rows))
        buffer.steps += n

    buffer.add_dirty = add
    return buffer


def test_a_refit_uses_the_valid_rows_and_names_the_others(dirty):
    dirty.add_dirty(60, bad_rewards=[7, 20], bad_observations=[20, 30])
    with pytest.warns(RuntimeWarning) as caught:
        dirty.sample(8)
    (text,) = (str(one.message) for one in caught)
    assert all(part in text for part in ("3 of 60", "reward", "row 7", "observation[1]", "row 20"))
    (rows,) = dirty.learnt
    assert len(rows) == 57
    assert rows.isfinite().all()
    assert dirty.refits == 1
    with pytest.raises(ValueError, match="rewards"):
        dirty.add([0, 0], 0, math.nan, [0, 0], False)


def test_invalid_rows_are_reported_again_when_there_are_ten_times_as_many(dirty):
    counts = []
    for bad in ([1], [1, 2, 3], [4], range(5), range(20), range(50)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dirty.add_dirty(60, bad_rewards=bad)
            dirty.sample(8)
        counts.append(len(caught))
    assert counts == [1, 0, 0, 1, 0, 0]  # 1, 4, 5, 10, 30 and 80 invalid rows
    assert dirty.refits == 6


def test_too_few_valid_rows_give_one_warning_and_no_refit(dirty, fake):
    fake.min_rows = 32
    dirty.add_dirty(60, bad_rewards=range(40))
    with pytest.warns(RuntimeWarning, match=r"at least 32 .* reward") as caught:
        dirty.sample(8)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            dirty.sample(8)
    assert dirty.learnt == []
    dirty.add_dirty(60, first=60)
    with pytest.warns(RuntimeWarning, match="40 of 120"):
        dirty.sample(8)
    assert dirty.refits == 1


def test_invalid_rows_are_reported_long_before_the_first_refit(dirty):
    dirty.schedule = RetrainSchedule(every=5_000, rows=40, start=5_000)
    dirty.add_dirty(100, bad_rewards=[3])
    dirty.sample(8)
    dirty.add_dirty(200, first=100)
    with pytest.warns(RuntimeWarning, match="1 of 300"):
        dirty.sample(8)
    assert dirty.refits == 0


def test_examining_the_first_rows_cannot_fail(dirty, monkeypatch):
    dirty.schedule = RetrainSchedule(every=5_000, rows=40, start=5_000)
    dirty.add_dirty(300)
    monkeypatch.setattr(dirty.real, "transitions", raising(RuntimeError("broken")))
    assert len(dirty.sample(8)) == 8


def test_actions_outside_their_space_reach_the_generator_clipped(fake):
    spec = pendulum_spec(spaces.Box(-1, 1, (1,)))
    learnt = []
    generator = type(fake)(spec)
    generator.fit = learnt.append
    buffer = SyntheticReplayBuffer(
        RingBuffer(spec, 400, device="cpu"), generator, schedule=RetrainSchedule(every=400, rows=10, start=400)
    )
    buffer.add(pendulum_like(spec))
    with pytest.warns(RuntimeWarning, match=r"action\[0\]"):
        buffer.sample(8)
    assert learnt[0].actions.abs().max() == 1.0
    assert buffer.real.transitions().actions.abs().max() > 1.5


# --- a generator that is made when it is needed -----------------------------------------------------------------------


def test_a_generator_may_be_made_later(make, spec, fake, numbered):
    made = []

    def generator(device):
        made.append(device)
        return fake

    plain = make(generator, real_ratio=1.0, spec=spec)
    plain.add(numbered(30))
    assert len(plain.sample(8)) == 8
    assert not made
    mixed = make(generator, spec=spec)
    mixed.add(numbered(30))
    mixed.sample(8)
    assert made == [torch.device("cpu")]
    assert mixed.generator is fake
    assert mixed.refits == 1


def test_a_function_that_makes_no_generator_is_refused(make, spec):
    with pytest.raises(TypeError, match="generator"):
        make(lambda device: 7, spec=spec).generator  # noqa: B018


@pytest.mark.parametrize("kind", ["class", "class method", "class method of a factory", "any options"])
def test_whatever_makes_a_generator_on_a_device_is_taken(make, spec, fake, kind):
    class Wrapper:  # has what the wrapped one has, and its class has none of it
        def __init__(self, device):
            self.device = device

        def __getattr__(self, name):
            return getattr(fake, name)

        @classmethod
        def on(cls, device):
            return cls(device)

    class Factory:
        @classmethod
        def make(cls, device):
            return fake

    makers = {"class": Wrapper, "class method": Wrapper.on, "class method of a factory": Factory.make}
    buffer = make(makers.get(kind, lambda **options: Wrapper(**options)), spec=spec)
    assert buffer.generator.fit == fake.fit


# --- the age of the synthetic rows ------------------------------------------------------------------------------------


def test_rows_are_never_of_negative_age(refitted, numbered, make):
    buffer, early = refitted(), make()
    assert (buffer.store_age, early.store_age) == (0, None)
    buffer.add(numbered(7))
    assert buffer.store_age == 7
    state = buffer.state_dict()
    buffer.add(numbered(30))
    buffer.sample(8)
    assert buffer.store_age == 0
    for other in (buffer, make()):
        other.load_state_dict(state)
        assert other.store_age == 7
    buffer.start_over()
    assert buffer.store_age is None


# --- 8. plain replay --------------------------------------------------------------------------------------------------


def test_8_ratio_of_one_is_the_real_buffer_alone(make, numbered, fake, spec):
    buffer, plain = make(real_ratio=1.0), RingBuffer(spec, 100, seed=100, device="cpu")
    for k in range(50):
        for one in (buffer, plain):
            one.add(numbered(3, 3 * k))
        assert torch.equal(buffer.sample(16).rows, plain.sample(16).rows)
        assert len(buffer) == len(plain)
    assert fake.learnt == []
    assert fake.drawn == 0
    assert len(buffer.store) == 0
    assert buffer.refit_if_due() is None


def test_8_ratio_of_one_needs_no_synthetic_rows_even_if_there_are_some(refitted, numbered, fake):
    buffer = refitted(real_ratio=1.0)  # explicit refit
    buffer.add(numbered(30))
    assert is_real(buffer.sample(64)).all()
    assert fake.fits == 1


# --- parts and circumstances ------------------------------------------------------------------------------------------


def test_copies_and_pickles_go_on_alike_and_apart():
    spec = pendulum_spec(spaces.Discrete(3))
    generator = DiffusionGenerator(spec, TINY, device="cpu")
    schedule = RetrainSchedule(every=50, rows=40, start=50)
    buffer = SyntheticReplayBuffer(RingBuffer(spec, 400, device="cpu"), generator, schedule=schedule)
    buffer.add(pendulum_like(spec))
    buffer.sample(16)
    others = [copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))]
    weights = generator._engine.trainer(0).weights().clone()
    for other in others:
        other.refit_or_warn()
        assert not torch.equal(other.generator._engine.trainer(0).weights(), weights)
    assert torch.equal(generator.model.weights, weights), "a copy that is fitted must not train the original"
    buffer.refit_or_warn()
    batch = buffer.sample(16).rows
    for other in others:
        assert torch.equal(other.sample(16).rows, batch)


def test_an_actor_in_inference_mode_does_not_spoil_the_learner():
    spec = pendulum_spec(spaces.Discrete(3))
    with torch.inference_mode():
        generator = DiffusionGenerator(spec, TINY, device="cpu")
        buffer = SyntheticReplayBuffer(
            RingBuffer(spec, 5_000, device="cpu"), generator, schedule=RetrainSchedule(50, 40, 50)
        )
        buffer.add(pendulum_like(spec))
        buffer.sample(16)
    buffer.add(pendulum_like(spec))
    buffer.sample(16)
    assert buffer.refits == 2


def test_autocast_and_another_default_type_change_nothing():
    spec = pendulum_spec(spaces.Discrete(3))
    data = pendulum_like(spec)

    def batch():
        generator = DiffusionGenerator(spec, TINY, device="cpu")
        buffer = SyntheticReplayBuffer(
            RingBuffer(spec, 5_000, device="cpu"), generator, schedule=RetrainSchedule(50, 40, 50)
        )
        buffer.add(data)
        return buffer.sample(16).rows

    expected = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(batch(), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(batch(), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_stack_is_refused_before_training():
    spec = pendulum_spec(spaces.Discrete(3))
    with pytest.raises(ValueError, match=r"generator: .*stack.* 2"):
        SyntheticReplayBuffer(
            RingBuffer(spec, 100, device="cpu"), DiffusionGenerator(spec, TINY, device="cpu", stack=2)
        )


def test_a_real_buffer_that_gives_too_few_rows_is_named(refitted, numbered, monkeypatch):
    buffer = refitted()
    sample = buffer.real.sample
    monkeypatch.setattr(buffer.real, "sample", lambda n: sample(n - 1))
    with pytest.raises(ValueError, match="real: sample"):
        buffer.sample(10)


def test_running_out_of_memory_on_a_cpu_is_survived(refitted, fake):
    buffer = refitted()

    def say(words):
        raise RuntimeError(f"[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: {words}: you tried to")

    for fail in (
        lambda: torch.empty(2**60),  # the message of torch depends on the machine
        lambda: say("can't allocate memory"),
        lambda: say("not enough memory"),
    ):
        fake.during_fit = fail
        with pytest.warns(RuntimeWarning, match=r"refit .*failed.*memory"):
            assert buffer.refit_or_warn() is None
    assert len(buffer.store) == 40


def test_a_batch_size_of_numpy_is_taken_and_can_be_saved(refitted, tmp_path):
    buffer = refitted()
    for ratio in (0.5, 1.0):
        buffer.real_ratio = ratio
        assert len(buffer.sample(np.int64(8))) == 8
        buffer.save(tmp_path / "buffer")
    with pytest.raises(TypeError, match=r"batch_size: expected a whole number, got 8\.0"):
        buffer.sample(8.0)


class OfTorch(torch.nn.Module):
    """A generator that is an nn.Module, whose `state_dict` holds the live tensors."""

    def __init__(self, spec):
        super().__init__()
        self.spec, self.fails = spec, False
        self.level = torch.nn.Parameter(torch.zeros(()))

    def fit(self, transitions):
        with torch.no_grad():
            self.level += 1
        if self.fails:
            raise KeyboardInterrupt

    def sample(self, n):
        return Transitions(self.spec, torch.zeros(n, self.spec.dim))


def test_a_module_is_as_before_when_its_fit_is_interrupted(refitted, spec):
    generator = OfTorch(spec)
    buffer = refitted(generator)
    generator.fails, state = True, buffer.state_dict()
    with pytest.raises(KeyboardInterrupt):
        buffer.refit_or_warn()
    assert generator.level == 1
    generator.fails = False
    buffer.refit_or_warn()
    assert (generator.level.item(), state["generator"]["level"].item()) == (2.0, 1.0)


def test_loading_in_inference_mode_does_not_spoil_the_learner(make, numbered, spec, tmp_path):
    buffer = make(DiffusionGenerator(spec, TINY, device="cpu"))
    buffer.add(numbered(40))
    buffer.sample(8)
    buffer.save(tmp_path / "buffer")
    with torch.inference_mode():
        buffer.load(tmp_path / "buffer")
        again = pickle.loads(pickle.dumps(buffer))
    for one in (buffer, again):
        one.add(numbered(1))
        for _ in range(4):  # batches gathered before the save, and new ones
            one.sample(8)


def test_two_batches_may_be_drawn_before_the_first_is_used_in_a_gradient(refitted):
    buffer = refitted()
    weight = torch.ones(buffer.spec.dim, requires_grad=True)
    first = buffer.sample(8)
    loss = (first.rows * weight).square().sum()
    buffer.sample(8)
    loss.backward()
    assert weight.grad is not None


def test_foreign_actions_outside_the_space_and_empty_answers_are_not_stored():
    spec = pendulum_spec(spaces.Box(-1, 1, (1,)))
    data = pendulum_like(spec)
    data.rows[:, spec.actions].clamp_(-1, 1)

    class Foreign:
        answer = data

        def fit(self, transitions):
            pass

        def sample(self, n):
            return self.answer[:n]

    foreign = Foreign()
    schedule = RetrainSchedule(every=50, rows=40, start=50)
    buffer = SyntheticReplayBuffer(RingBuffer(spec, 400, device="cpu"), foreign, spec=spec, schedule=schedule)
    buffer.add(data)
    buffer.refit_or_warn()
    rows = buffer.store.rows.clone()
    assert len(rows) == 40
    wild = Transitions(spec, data.rows.clone())
    wild.rows[3, spec.actions] = 5.0
    for answer, message in ((wild, "outside the action space"), (data[:0], "returned 0 rows")):
        foreign.answer = answer
        with pytest.warns(RuntimeWarning, match=message):
            assert buffer.refit_or_warn() is None
        assert torch.equal(buffer.store.rows, rows)


def test_rejected_rows_stay_counted_when_a_refit_fails(monkeypatch):
    spec = pendulum_spec(spaces.Discrete(3))
    generator = DiffusionGenerator(spec, TINY, device="cpu")
    buffer = SyntheticReplayBuffer(RingBuffer(spec, 400, device="cpu"), generator, schedule=RetrainSchedule(50, 40, 50))
    buffer.add(pendulum_like(spec))
    buffer.refit_or_warn()
    sampler = generator._engine.sampler(0)
    monkeypatch.setattr(sampler, "load", lambda weights, frequencies: sampler.weights.fill_(math.nan))
    with pytest.warns(RuntimeWarning, match="non-finite"):
        assert buffer.refit_or_warn() is None
    assert generator.rejected >= 40
