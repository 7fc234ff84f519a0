"""Tests that need a GPU; skipped without one."""

import warnings
from dataclasses import replace

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
from synther_replay.common import regression
from synther_replay.diffusion import trainer as trainer_module
from synther_replay.metrics import fidelity
from synther_replay.relevance import Curiosity

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (2,)))
SMALL = GeneratorConfig.fast(width=128, depth=2, embedding=32, steps=400, refit_steps=50, chunk=4_096)
TRAINED = replace(SMALL, steps=3_000)  # for distributions that come out as asked


def transitions(n=5_000, stack=1, device="cuda"):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(stack, n, SPEC.dim, generator=rng)
    rows[..., SPEC.next_observations] = rows[..., SPEC.observations] * 0.9 + 0.2
    rows[..., SPEC.actions] = rows[..., SPEC.actions].tanh()
    rows[..., SPEC.terminated] = (rows[..., :1] > 1.5).float()
    return Transitions(SPEC, (rows[0] if stack == 1 else rows).to(device))


@pytest.mark.parametrize("exact", [False, True])
def test_same_seed_same_rows_and_other_seed_other_rows(exact):
    config = replace(SMALL, exact=exact)
    first, again, other = (DiffusionGenerator(SPEC, config, device="cuda", seed=s) for s in (1, 1, 2))
    for generator in (first, again, other):
        generator.fit(transitions(), steps=50)
    rows = [g.sample(6_000).rows for g in (first, again, other)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert not torch.equal(first.sample(6_000).rows, rows[0]), "a second call draws new rows"


@pytest.mark.parametrize("discrete", [False, True])
def test_nothing_is_used_that_pytorch_cannot_repeat(discrete):
    rows = transitions()
    if discrete:
        rows.rows.round_()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            generator = DiffusionGenerator(SPEC, replace(SMALL, exact=True), device="cuda")
            generator.fit(rows, steps=50, condition=rows.rewards)
            generator.sample(2_000, condition=rows.rewards[:2_000])
    finally:
        torch.use_deterministic_algorithms(False)
    texts = [str(warning.message) for warning in caught]
    # Matrix products repeat if CUBLAS_WORKSPACE_CONFIG is set, which must be done before the first of them.
    assert not [text for text in texts if "deterministic" in text and "CUBLAS" not in text]


@pytest.mark.parametrize("stack", [1, 3])
def test_captured_training_equals_plain_training(monkeypatch, stack):
    config = GeneratorConfig.fast(width=64, depth=2, embedding=32, precision="fp32")
    captured = DiffusionGenerator(SPEC, config, device="cuda", stack=stack)
    report = captured.fit(transitions(stack=stack), steps=40)
    monkeypatch.setattr(trainer_module, "capture", lambda function, rng: function)
    plain = DiffusionGenerator(SPEC, config, device="cuda", stack=stack)
    expected = plain.fit(transitions(stack=stack), steps=40)
    torch.testing.assert_close(captured.model.weights, plain.model.weights, rtol=1e-3, atol=1e-5)
    assert report.losses == pytest.approx(expected.losses, rel=1e-4)


@pytest.mark.parametrize("stack", [1, 3])
def test_captured_curiosity_equals_plain_curiosity_and_continues_exactly(monkeypatch, stack):
    captured, restored, plain = (Curiosity(hidden=64, seed=1) for _ in range(3))
    captured.learn(transitions(stack=stack), 60)
    restored.load_state_dict(captured.state_dict())
    for curiosity in (captured, restored):
        curiosity.learn(transitions(stack=stack), 60)
    scores = captured.score(transitions(stack=stack))
    assert torch.equal(restored.score(transitions(stack=stack)), scores)
    monkeypatch.setattr(regression, "capture", lambda function, rng: function)
    for _ in range(2):
        plain.learn(transitions(stack=stack), 60)
    torch.testing.assert_close(plain.score(transitions(stack=stack)), scores, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("stack", [1, 3])
def test_captured_regressions_equal_plain_ones_after_a_refit_too(monkeypatch, stack):
    found = []
    for is_captured in (True, False):
        if not is_captured:
            monkeypatch.setattr(regression, "capture", lambda function, rng: function)
        generator = DiffusionGenerator(SPEC, replace(SMALL, consistent=True), device="cuda", stack=stack, seed=1)
        for _ in range(2):
            generator.fit(transitions(stack=stack))
        found.append(generator.model.consistency)
    torch.testing.assert_close(found[0].remaining, found[1].remaining, rtol=0.05, atol=0.01)
    for captured, plain in zip(found[0].weights, found[1].weights, strict=True):
        torch.testing.assert_close(captured, plain, rtol=0.05, atol=0.01)


def test_a_guided_buffer_continues_exactly(tmp_path):
    def make(seed):
        real = RingBuffer(SPEC, 5_000, seed=seed)
        options = {"schedule": RetrainSchedule(every=500, rows=5_000, start=500), "seed": seed}
        relevance = {"name": "curiosity", "share": 0.5}
        return SyntheticReplayBuffer(real, SMALL, relevance=relevance, device="cuda", **options)

    def run(buffer, first, last):
        batches = []
        for part in range(first, last):
            buffer.add(transitions()[part * 250 : (part + 1) * 250])
            batches.append(buffer.sample(64).rows)
        return batches

    one, two = make(0), make(5)
    run(one, 0, 6)
    one.save(tmp_path / "buffer")
    two.load(tmp_path / "buffer")
    assert one.last_refit.relevance.share == 0.5
    assert all(torch.equal(*pair) for pair in zip(run(one, 6, 12), run(two, 6, 12), strict=True))


def test_bf16_learns_as_well_as_fp32():
    real = transitions(20_000)
    marginal = {}
    for precision in ("bf16", "fp32"):
        generator = DiffusionGenerator(
            SPEC, GeneratorConfig.fast(width=256, depth=3, precision=precision), device="cuda"
        )
        generator.fit(real, steps=3_000)
        marginal[precision] = fidelity(real, generator.sample(20_000)).marginal
    assert marginal["bf16"] > 0.97
    assert marginal["bf16"] == pytest.approx(marginal["fp32"], abs=0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_terminations_are_where_they_belong(precision, outcome_steps):
    outcome_steps(600, batch_size=512)
    config = GeneratorConfig.fast(width=256, depth=3, precision=precision)
    generator = DiffusionGenerator(SPEC, config, device="cuda")
    generator.fit(transitions(20_000), steps=3_000)
    rows = generator.sample(20_000)
    assert (rows.terminated == (rows.rows[:, 0] > 1.5)).float().mean() > 0.99


@pytest.mark.parametrize("stack", [1, 2])
def test_rewards_keep_their_levels_and_a_constant_bonus_goes_with_the_end(stack):
    data = transitions(stack=stack)
    ended = data.rows[..., -1] > 0.5
    generator = DiffusionGenerator(SPEC, SMALL, device="cuda", stack=stack)
    data.rows[..., SPEC.rewards.start][ended] = -50.0  # among continuous rewards
    generator.fit(data)
    made = generator.sample(5_000).rows
    assert torch.equal(made[..., SPEC.rewards.start] == -50, made[..., -1] == 1)
    data.rows[..., SPEC.rewards.start] = ended.float() - 1
    generator.fit(data)
    made = generator.sample(5_000).rows
    assert torch.equal(made[..., SPEC.rewards.start], made[..., -1] - 1)
    assert made[..., -1].mean().item() == pytest.approx(ended.float().mean().item(), rel=0.1)


def test_discrete_rows_are_drawn_from_a_table():
    data = transitions()
    data.rows.round_()
    data.rows[:, -1] = (data.rows[:, 0] > 1).float()
    generator = DiffusionGenerator(SPEC, SMALL, device="cuda")
    assert generator.fit(data).steps == 0
    rows = generator.sample(5_000).rows
    assert rows.device == data.rows.device
    assert {tuple(row) for row in rows.tolist()} <= {tuple(row) for row in data.rows.tolist()}


def test_a_growing_buffer_is_fitted_again_and_again():
    generator = DiffusionGenerator(SPEC, SMALL, device="cuda")
    for n in (1_000, 3_000, 9_000):
        report = generator.fit(transitions(n))
        assert np.isfinite(report.loss)
    assert report.steps == SMALL.refit_steps


def test_generating_more_rows_takes_little_more_memory_than_the_rows():
    generator = DiffusionGenerator(SPEC, SMALL, device="cuda")
    generator.fit(transitions(), steps=20)
    generator.sample(SMALL.chunk)
    few, many = 250_000, 1_000_000
    peaks = []
    for n in (few, many):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        generator.sample(n)
        peaks.append(torch.cuda.max_memory_reserved() - before)
    # Besides the rows there are some numbers per row, which match the outcomes to their shares.
    assert peaks[1] - peaks[0] < (many - few) * (4 * SPEC.dim + 200)


def test_a_run_moves_between_gpu_and_cpu(tmp_path):
    def make(device):
        generator = DiffusionGenerator(SPEC, SMALL, device=device)
        schedule = RetrainSchedule(every=10_000, rows=2_000, start=100)
        return SyntheticReplayBuffer(RingBuffer(SPEC, 9_000, device=device), generator, schedule=schedule)

    on_gpu = make("cuda")
    on_gpu.add(transitions())
    on_gpu.sample(64)
    on_gpu.save(tmp_path / "run")
    on_cpu = make("cpu")
    on_cpu.load(tmp_path / "run")
    for _ in range(40):  # the store and the order of rows are the same on either device
        assert torch.equal(on_gpu.sample(64).rows.cpu(), on_cpu.sample(64).rows)
    assert on_cpu.refit_or_warn() is not None
    back = make("cuda")
    on_cpu.save(tmp_path / "run")
    back.load(tmp_path / "run")
    assert torch.equal(back.sample(64).rows.cpu(), on_cpu.sample(64).rows)


def test_running_out_of_memory_keeps_model_and_store():
    real = RingBuffer(SPEC, 9_000, device="cuda")
    real.add(transitions())
    generator = DiffusionGenerator(SPEC, SMALL, device="cuda")
    buffer = SyntheticReplayBuffer(real, generator, schedule=RetrainSchedule(every=1, rows=1_000, start=1))
    buffer.refit_or_warn()
    rows, state = buffer.store.rows.clone(), generator.state_dict()
    buffer.schedule = RetrainSchedule(every=1, rows=10**9, start=1)
    buffer.store.capacity = 10**9
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4e9 / total))
    try:
        with pytest.warns(RuntimeWarning, match="kept the previous model"):
            assert buffer.refit_or_warn() is None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(buffer.store.rows, rows)
    for name, tensor in generator.state_dict()["trainer"].items():
        before = state["trainer"][name]
        assert torch.equal(tensor, before) if isinstance(tensor, torch.Tensor) else tensor == before
    assert len(buffer.sample(64)) == 64


@pytest.mark.parametrize("stack", [1, 2])
def test_conditions_are_learnt_and_followed(stack, outcome_steps):
    outcome_steps(600, batch_size=512)  # else rows of mistaken outcomes are replaced by others, and shares change
    real = transitions(stack=stack)
    generator = DiffusionGenerator(SPEC, TRAINED, device="cuda", stack=stack)
    generator.fit(real, condition=real.rows[..., 0])
    asked = torch.where(torch.arange(6_000, device="cuda") % 2 == 0, 1.0, -1.0).expand(stack, 6_000)
    for guidance, least in ((1.0, 0.8), (2.0, 0.85)):
        condition = asked if stack > 1 else asked[0]
        rows = generator.sample(6_000, condition=condition, guidance=guidance).rows
        assert ((rows[..., 0] > 0) == (asked > 0).view(rows.shape[:-1])).float().mean() > least
    assert abs((generator.sample(6_000).rows[..., 0] > 0).float().mean() - 0.5) < 0.05


def test_weighted_rows_come_as_often_as_they_weigh(outcome_steps):
    outcome_steps(600, batch_size=512)
    real = transitions()
    generator = DiffusionGenerator(SPEC, TRAINED, device="cuda")
    generator.fit(real, weights=torch.where(real.rows[:, 0] > 0, 9.0, 1.0))
    assert (generator.sample(6_000).rows[:, 0] > 0).float().mean() > 0.8
