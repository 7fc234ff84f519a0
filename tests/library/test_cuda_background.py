"""Refits in the background on a GPU: a thread with a stream of its own beside a learner that is busy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import (
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.common.acceleration import capture, capture_stream, refit_stream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (2,)))
SMALL = GeneratorConfig.fast(width=128, depth=2, embedding=32, steps=400, refit_steps=100, chunk=4_096)


def rows(seed: int, n: int = 500) -> Transitions:
    x = torch.randn(n, SPEC.dim, generator=torch.Generator().manual_seed(seed))
    x[..., SPEC.actions] = x[..., SPEC.actions].tanh()
    x[..., SPEC.terminated] = (x[..., :1] > 1.5).float()
    return Transitions(SPEC, x.cuda())


def buffer(**options: Any) -> SyntheticReplayBuffer:
    schedule = RetrainSchedule(every=2_000, rows=20_000, start=2_000)
    real = RingBuffer(SPEC, 20_000, device="cuda")
    return SyntheticReplayBuffer(real, SMALL, schedule=schedule, device="cuda", **options)


class Learner:
    """Keeps the GPU and its memory busy, with a captured graph, too."""

    def __init__(self) -> None:
        self.weights = torch.randn(512, 512, device="cuda")
        self.total = torch.zeros((), device="cuda", dtype=torch.float64)
        self.rng = torch.Generator("cuda").manual_seed(0)
        self.noise = torch.zeros(64, device="cuda")
        self.replay = self.captured()

    def captured(self) -> Any:
        return capture(lambda: self.noise.add_(torch.randn(64, generator=self.rng, device="cuda")), self.rng)

    def learn(self, batch: torch.Tensor) -> None:
        for size in (1_000, 5_000):
            scratch = torch.rand(size, 512, device="cuda")
            self.total += (scratch @ self.weights).double().abs().mean() * 0 + batch.double().sum()
        self.replay()


def run(own: SyntheticReplayBuffer, calls: int, first: int = 0) -> list[float]:
    learner, totals = Learner(), []
    for number in range(first, first + calls):
        own.add(rows(number))
        for _ in range(20):
            learner.learn(own.sample(256).rows)
        if number % 3 == 0:
            learner.replay = learner.captured()  # while a job may be under way
        totals.append(float(learner.total))
    return totals


def test_two_runs_agree_and_the_rows_are_those_of_inline_refits():
    one, two, inline = buffer(refit="background"), buffer(refit="background"), buffer(refit="inline")
    assert run(one, 11) == run(two, 11)
    assert one.refits == two.refits == 2
    run(inline, 8)
    assert torch.equal(one.store.rows, inline.store.rows)  # of the refit begun at step 4,000
    assert one.last_refit is not None and inline.last_refit is not None
    assert one.last_refit.fit.losses == inline.last_refit.fit.losses


@pytest.mark.parametrize("relevance", [None, "curiosity"])
def test_a_resumed_run_is_the_run(relevance: str | None, tmp_path: Path):
    whole, own, again = (buffer(refit="background", relevance=relevance) for _ in range(3))
    run(whole, 11)
    run(own, 5)
    own.save(tmp_path / "run")
    again.load(tmp_path / "run")
    run(again, 6, 5)
    assert torch.equal(whole.store.rows, again.store.rows)


def test_no_graph_is_captured_on_the_stream_of_refits():
    device = torch.device("cuda")
    own = refit_stream(device)
    assert all(capture_stream(device) != own for _ in range(100))  # PyTorch gives its 32 streams in turn
    assert any(torch.cuda.Stream(device) == own for _ in range(100))
