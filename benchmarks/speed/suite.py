"""The measurements of `throughput.py`: training step, sampling, replay buffer, refit and metrics of the library."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
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
from synther_replay.benchmarks.common.timing import seconds, synchronise
from synther_replay.benchmarks.peers.published_synther import PublishedAgent, PublishedDiffusion
from synther_replay.benchmarks.speed.adapters import overhead
from synther_replay.metrics import fidelity

BATCH = 256


def toy_transitions(rows: int, device: torch.device, *, stack: int = 1, seed: int = 0) -> Transitions:
    """Correlated random transitions with the columns of HalfCheetah; speed does not depend on the values."""
    box = gym.spaces.Box
    spec = TransitionSpec.from_spaces(box(-np.inf, np.inf, (17,), np.float64), box(-1, 1, (6,)))
    rng = torch.Generator(device).manual_seed(seed)
    x = torch.randn(stack, rows, spec.dim, generator=rng, device=device)
    x[..., spec.next_observations] = 0.9 * x[..., spec.observations] + 0.1 * x[..., spec.next_observations]
    x[..., spec.actions].clamp_(-1, 1)
    x[..., spec.terminated] = (x[..., spec.terminated] > 2.5).float()
    return Transitions(spec, x[0] if stack == 1 else x)


class Suite:
    """The measurements; each method adds an entry to `results`."""

    def __init__(self, device: torch.device, published: PublishedDiffusion | None) -> None:
        """Choose presets for the device."""
        self.device = device
        self.published = published
        self.large = device.type == "cuda"
        # Without outcome model and calibration, as the paper's: the first would be most of a short fit.
        self.paper = GeneratorConfig.paper() if self.large else GeneratorConfig.tiny(patience=None, exact=False)
        self.fast = GeneratorConfig.fast() if self.large else GeneratorConfig.tiny()
        self.fast_name = "fast" if self.large else "tiny"
        self.results: dict[str, dict[str, Any]] = {}

    def first_use(self) -> None:
        """Time of the first fit and the first sample, which compile kernels and capture graphs."""
        data = toy_transitions(10_000, self.device)
        generator = DiffusionGenerator(data.spec, self.fast, device=self.device)
        started = time.perf_counter()
        generator.fit(data, steps=10)
        fitted = time.perf_counter()
        generator.sample(1_000)
        synchronise(self.device)
        self.results["first use"] = {"fit_s": fitted - started, "sample_s": time.perf_counter() - fitted}

    def training_step(self, stack: int, batch: int = BATCH) -> None:
        """One training step of `stack` models: batch, noise, forward, backward, clipping, Adam, EMA."""
        steps = 4_000 if self.large else 100
        data = toy_transitions(100_000 if self.large else 5_000, self.device, stack=stack)
        config = replace(self.paper, batch_size=batch)
        generator = DiffusionGenerator(data.spec, config, device=self.device, stack=stack)
        generator.fit(data, steps=steps // 10)
        ours = generator.fit(data, steps=steps, from_scratch=False).seconds / steps
        entry: dict[str, Any] = {"ms": ours * 1e3, "parameters": generator.parameters}
        if self.published and batch == BATCH and stack == 1:
            step = self.published.train_step
            count = 200
            entry["published_ms"] = seconds(_repeat(step, count), self.device, repeats=3) / count * 1e3
            entry["ratio"] = entry["published_ms"] / entry["ms"]
        self.results[f"training step, M = {stack}, batch {batch}"] = entry

    def generation(self, name: str, config: GeneratorConfig) -> None:
        """Sampling of decoded transitions on the device, and peak memory."""
        rows = 1_000_000 if self.large else 20_000
        data = toy_transitions(50_000 if self.large else 5_000, self.device)
        generator = DiffusionGenerator(data.spec, config, device=self.device)
        generator.fit(data, steps=200)
        generator.sample(config.chunk)
        if self.large:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        entry: dict[str, Any] = {"rows": rows, "s": seconds(lambda: generator.sample(rows), self.device, warm_up=0)}
        if self.large:
            entry["peak_memory_gb"] = torch.cuda.max_memory_reserved() / 1e9
        if self.published and name == "paper":
            published = self.published
            part = rows // 10  # its batch size
            entry["published_s"] = 10 * seconds(lambda: published.sample(part), self.device, repeats=1)
            entry["published_note"] = f"10 x the time of {part} rows"
            entry["ratio"] = entry["published_s"] / entry["s"]
        self.results[f"generation, {name}"] = entry

    def conditions(self) -> None:
        """Cost of a condition and of weights: training step, and sampling with condition and with guidance."""
        steps, rows = (4_000, 1_000_000) if self.large else (100, 20_000)
        data = toy_transitions(50_000 if self.large else 5_000, self.device)
        condition = data.rewards
        config = replace(self.fast, patience=None)
        options: dict[str, dict[str, Any]] = {
            "plain": {},
            "conditioned": {"condition": condition},
            "weighted": {"weights": condition.abs()},
        }
        generators, step_ms = {}, {}
        for name, fit in options.items():
            generators[name] = DiffusionGenerator(data.spec, config, device=self.device)
            generators[name].fit(data, steps=steps // 10, **fit)
            times = [generators[name].fit(data, steps=steps, from_scratch=False, **fit).seconds for _ in range(3)]
            step_ms[name] = min(times) / steps * 1e3
        ways = {
            "plain": lambda: generators["plain"].sample(rows),
            "without": lambda: generators["conditioned"].sample(rows),
            "conditioned": lambda: generators["conditioned"].sample(rows, condition=1.0),
            "guided": lambda: generators["conditioned"].sample(rows, condition=1.0, guidance=2.0),
        }
        sample_s = {name: seconds(work, self.device, repeats=3) for name, work in ways.items()}
        entry = {f"{name}_step_ms": value for name, value in step_ms.items()}
        entry |= {f"{name}_sample_s": value for name, value in sample_s.items()}
        entry |= {f"{name}_step_ratio": step_ms[name] / step_ms["plain"] for name in ("conditioned", "weighted")}
        entry |= {f"{name}_sample_ratio": sample_s[name] / sample_s["plain"] for name in ("conditioned", "guided")}
        self.results[f"conditions, {self.fast_name}"] = entry

    def published_agent(self, agent: PublishedAgent) -> None:
        """The published agent: updates and acting per environment step, and insertion of synthetic rows."""
        calls, steps, rows = (25, 1_000, 20_000) if self.large else (2, 50, 1_000)
        learning = seconds(_repeat(agent.train, calls), self.device) / calls
        acting = seconds(_repeat(agent.step, steps), self.device) / steps
        inserting = seconds(lambda: agent.insert(rows), self.device) / rows * 1e6
        self.results["published agent"] = {
            "train_s": learning,
            "critic_updates_per_s": agent.agent.utd_ratio / learning,
            "environment_step_s": acting,
            "insert_1m_rows_s": inserting,
            "insert_note": f"scaled up from {rows} rows",
        }

    def metrics(self) -> None:
        """`fidelity` of 1M synthetic rows against 1M real rows."""
        rows = 1_000_000
        real, synthetic = (toy_transitions(rows, self.device, seed=seed) for seed in (0, 1))
        self.results["fidelity"] = {
            "rows": rows,
            "s": seconds(lambda: fidelity(real, synthetic), self.device, repeats=1, warm_up=int(self.large)),
        }

    def refit(self) -> None:
        """A refit of a replay buffer end to end (fit and sample), after a first refit as warm-up."""
        rows = (RetrainSchedule.fast() if self.large else RetrainSchedule.tiny()).rows
        data = toy_transitions(100_000 if self.large else 5_000, self.device)
        real = RingBuffer(data.spec, 1_000_000, device=self.device)
        real.add(data)
        config = replace(self.fast, patience=None)  # no early stopping, so that all of `refit_steps` are timed
        generator = DiffusionGenerator(data.spec, config, device=self.device)
        schedule = RetrainSchedule(every=2_500, rows=rows, start=1)
        buffer = SyntheticReplayBuffer(real, generator, schedule=schedule, device=self.device)
        buffer.refit_or_warn()
        total = seconds(buffer.refit, self.device, warm_up=0, repeats=3)
        report = buffer.last_refit
        assert report is not None
        self.results[f"refit, {self.fast_name}, warm"] = {
            "s": total,
            "fit_s": report.fit_seconds,
            "fit_steps": report.fit.steps,
            "sample_s": report.sample_seconds,
            "rows": rows,
        }
        self._buffer(buffer, data)

    def _buffer(self, buffer: SyntheticReplayBuffer, data: Transitions) -> None:
        """`add` of one transition, and `sample` against one `index_select` of as many rows from a tensor."""
        count = 2_000
        matrix, rng = data.rows.clone(), torch.Generator(self.device).manual_seed(0)

        def gather() -> torch.Tensor:
            index = torch.randint(len(matrix), (BATCH,), generator=rng, device=self.device)
            return matrix.index_select(0, index)

        one = np.split(data.rows[0].cpu().numpy(), [17, 23, 24, 41])
        fields = (one[0], one[1], one[2][0], one[3], False)
        buffer.schedule = RetrainSchedule(every=10**9, rows=1, start=10**9)
        alternate = [
            (
                seconds(_repeat(gather, count), self.device) / count * 1e6,
                seconds(_repeat(lambda: buffer.sample(BATCH), count), self.device) / count * 1e6,
            )
            for _ in range(3)
        ]
        plain, mixed = (float(np.median(column)) for column in zip(*alternate, strict=True))
        self.results["buffer, batch 256, r = 0.5"] = {
            "sample_us": mixed,
            "one_gather_us": plain,
            "ratio": mixed / plain,
            "add_us": seconds(_repeat(lambda: buffer.add(*fields), count), self.device) / count * 1e6,
        }


def _repeat(work: Callable[[], Any], count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            work()

    return run


def measure(device: torch.device, reference: Path | None, corl: Path | None = None) -> dict[str, dict[str, Any]]:
    """Run every measurement that the device and the installed packages allow."""
    published = None
    if reference is not None:
        published = PublishedDiffusion(reference, toy_transitions(100_000, torch.device("cpu")).rows)
    suite = Suite(device, published)
    suite.first_use()
    for stack in (1, 8) if suite.large else (1, 2):
        suite.training_step(stack)
    if suite.large:
        suite.training_step(1, batch=1024)
        suite.generation("paper", suite.paper)
    if reference is not None:
        suite.published_agent(PublishedAgent(reference, toy_transitions(100_000, torch.device("cpu")).rows, device))
    suite.generation(suite.fast_name, suite.fast)
    suite.conditions()
    suite.refit()
    suite.metrics()
    return suite.results | overhead(device, corl)
