"""Stages train, latents and heads: an agent of images, a generator of its latents, and heads trained on latents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from synther_replay import DiffusionGenerator, Transitions
from synther_replay.benchmarks.agents.networks.matmul import choose_precision
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.resumable import is_done, save_result
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.benchmarks.pixels.archive import Archive
from synther_replay.benchmarks.pixels.dataset import PixelRows
from synther_replay.benchmarks.pixels.learners import Learner, latents_as_they_are
from synther_replay.benchmarks.pixels.networks import Agent
from synther_replay.benchmarks.pixels.settings import HeadSettings, LatentSettings, LearnerSettings, Places
from synther_replay.benchmarks.pixels.training import Limits, Training, load_weights, save_weights
from synther_replay.metrics import fidelity

_JUDGED = 100_000  # synthetic latents that are compared with the real ones


class NotYetError(LookupError):
    """An earlier stage is missing."""


@dataclass
class Run:
    """All that the stages of a run share.

    Args:
        places: Paths of its files.
        learner: Settings of the stage train.
        device: Where to compute.
        data: Loads the data set; shared by the runs on it.
    """

    places: Places
    learner: LearnerSettings
    device: torch.device
    data: Data

    def train(self, limits: Limits) -> bool:
        """Train an agent of images; returns whether it is finished."""
        path = self.places.trained
        if is_done(path, self.learner):
            return True
        rows = self.data.rows
        learner = Learner(rows.buffer.transitions().rows, rows.spec, rows.view, self.learner, of_images=True)
        training, agent = Training(path, self.learner, learner), learner.agent
        if not training.run(limits):
            return False
        save_weights(self.places.agent, agent)
        save_weights(self.places.policy("encoder"), agent.encoder, agent.trunk, half=True)
        save_weights(self.places.policy("pixels"), agent.head, half=True)
        training.write({"dataset": self.places.dataset, "frames": len(rows.stacks), "rows": len(rows.buffer)})
        return True

    def fit_latents(self, settings: LatentSettings) -> None:
        """Fit a generator to the latents of the trained agent."""
        path = self.places.latents
        if is_done(path, settings):
            return
        real = self.real_latents
        generator = DiffusionGenerator(real.spec, settings.config(), device=self.device, seed=self.learner.seed)
        fit = generator.fit(real)
        found = fidelity(real, generator.sample(min(_JUDGED, len(real))), warn=False, seed=self.learner.seed).to_json()
        generator.save(self.places.generator)
        names = ("marginal", "correlation", "marginal_baseline", "correlation_baseline")
        result: dict[str, Any] = {"dataset": self.places.dataset, "rows": len(real), "row_length": real.spec.dim}
        result |= {"fit_steps": fit.steps, "fit_seconds": round(fit.seconds, 2), "held_out_loss": fit.held_out_loss}
        result |= {"fidelity": {name: found[name] for name in names}}
        save_result(path, {"settings": settings.to_json(), **result, **origin(self.device)})

    def train_heads(self, settings: HeadSettings, limits: Limits) -> bool:
        """Train new heads on latents; returns whether it is finished."""
        path = self.places.heads(settings.data)
        if is_done(path, settings):
            return True
        rows = self.real_latents if settings.data == "real" else self._synthetic_latents(settings)
        learner = Learner(rows.rows, rows.spec, latents_as_they_are, settings.learner, of_images=False)
        training = Training(path, settings, learner)
        if not training.run(limits):
            return False
        save_weights(self.places.policy(settings.data), learner.agent.head, half=True)
        training.write({"dataset": self.places.dataset, "rows": len(rows)})
        return True

    @cached_property
    def real_latents(self) -> Transitions:
        """Latents of all real transitions."""
        self._need(self.places.trained, "train")
        agent = Agent(self.data.rows.spec.action_dim, self.learner.hidden, has_critic=self._has_critic, of_images=True)
        load_weights(self.places.agent, agent)
        return self.data.rows.latents(agent.to(self.device), self.learner.seed)

    def _synthetic_latents(self, settings: HeadSettings) -> Transitions:
        self._need(self.places.latents, "latents")
        generator = DiffusionGenerator.load(self.places.generator, device=self.device)
        rows = generator.sample(settings.rows, seed=self.learner.seed)
        synchronise(self.device)
        return rows

    @property
    def _has_critic(self) -> bool:
        return self.learner.algo == "drqbc"

    def _need(self, path: Path, stage: str) -> None:
        if not path.exists():
            raise NotYetError(f"{path}: missing; run the stage {stage} first")


class Data:
    """A data set, loaded when it is first needed.

    Args:
        path: The archive.
        settings: The n-step returns of the runs on it.
        device: Where it is kept.
    """

    def __init__(self, path: Path, settings: LearnerSettings, device: torch.device) -> None:
        """Nothing is loaded yet."""
        self.path, self.settings, self.device = path, settings, device

    @cached_property
    def rows(self) -> PixelRows:
        """The data set."""
        threads = os.cpu_count() or 1
        spans = {"n_step": self.settings.n_step, "gamma": self.settings.gamma}
        return PixelRows(Archive.read(self.path), **spans, device=self.device, threads=threads)


def prepare_device(device: torch.device) -> None:
    """Choose precision and deterministic convolutions for this process."""
    choose_precision(device)
    torch.backends.cudnn.deterministic = True
