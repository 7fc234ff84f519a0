"""The rows of offline runs: a data set, and synthetic rows made from it once for all runs that share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, load
from learners.augment import AUGMENTATIONS
from learners.rows import SharedRows
from offline_settings import Cell

from synther_replay import Transitions
from synther_replay.adapters.corl import ReplayBuffer

_EPISODE = 1_000  # steps, by which CORL multiplies normalised rewards


class DataSource:
    """Data sets that were loaded and rows that were generated, kept for the next run.

    Args:
        folder: Where data sets are looked for first.
        device: Where to fit, and where the rows go.
    """

    def __init__(self, folder: Path | None, device: torch.device) -> None:
        """Load nothing yet."""
        self.folder, self.device = folder, device
        self._whole: dict[str, Dataset] = {}
        self._made: tuple[Any, Transitions, dict[str, Any]] | None = None  # the last only: it is large

    def dataset(self, cell: Cell) -> Dataset:
        """The data set, or the part of it that is asked for."""
        whole = self._load(cell.dataset)
        return whole if cell.subsample is None else whole.subsample(cell.subsample, cell.first_seed)

    def rows(self, cell: Cell) -> tuple[SharedRows, dict[str, Any]]:
        """What the agents of a cell learn from, and what there is to say of how it was made."""
        dataset = self.dataset(cell)
        about: dict[str, Any] = {"origin": dataset.origin, "real_rows": len(dataset)}
        if "command" in dataset.attributes:
            about["dataset_command"] = dataset.attributes["command"]
        synthetic = None
        if cell.synthetic:
            synthetic, made = self._synthetic(cell, dataset)
            about |= {"synthetic_rows": len(synthetic), **made}
        rows = SharedRows(
            None if cell.data == "synther" else dataset.transitions(),
            synthetic,
            real_ratio=cell.real_ratio,
            scale_observations=cell.scales_observations,
            scale_like=dataset.transitions(),  # also where all rows are synthetic, as in the published code
            reward_scale=self._reward_scale(cell),
            augmentation=AUGMENTATIONS[cell.augment] if cell.augment else None,
            device=self.device,
        )
        return rows, about

    def _load(self, name: str) -> Dataset:
        if name not in self._whole:
            self._whole = {name: load(name, folder=self.folder)}
        return self._whole[name]

    def _synthetic(self, cell: Cell, dataset: Dataset) -> tuple[Transitions, dict[str, Any]]:
        """Upsample through the adapter that CORL's own files would use."""
        key = (cell.dataset, cell.subsample, cell.first_seed, cell.rows, cell.generator_config())
        if self._made is None or self._made[0] != key:
            self._made = None  # its memory first
            sizes = dataset.observations.shape[1], dataset.actions.shape[1], len(dataset)
            reach = float(max(1.0, np.abs(dataset.actions).max()))
            options: dict[str, Any] = {
                "generator": cell.generator_config(),
                "max_action": reach,
                "seed": cell.first_seed,
            }
            buffer = ReplayBuffer(*sizes, self.device, **options)
            buffer.load_d4rl_dataset(dataset.to_qlearning())
            report = buffer.upsample(cell.rows)
            assert buffer.synthetic is not None
            told = {
                "fit_seconds": round(report.fit_seconds, 2),
                "generate_seconds": round(report.sample_seconds, 2),
                "fit_steps": report.fit.steps,
                "held_out_loss": report.fit.held_out_loss,
            }
            self._made = key, Transitions(dataset.spec(), buffer.synthetic.rows), told
        return self._made[1], self._made[2]

    def _reward_scale(self, cell: Cell) -> float:
        if not cell.scales_rewards:
            return 1.0
        returns = self._load(cell.dataset).returns()
        span = float(returns.max() - returns.min()) if len(returns) else 0.0
        if not span:
            raise ValueError(f"dataset: {cell.dataset} has no two episodes of different return to scale rewards by")
        return _EPISODE / span
