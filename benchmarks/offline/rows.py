"""The rows of offline runs: of a data set, of a generator that was fitted to it, or both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from synther_replay.benchmarks.agents.augment import AUGMENTATIONS
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.common.resumable import read_result
from synther_replay.benchmarks.data.registry import Dataset, load
from synther_replay.benchmarks.environments.terminals import terminal_counts
from synther_replay.benchmarks.offline.settings import OfflineConfig
from synther_replay.benchmarks.offline.upsampled import Upsampled

DIGEST = "dataset_digest"  # of the whole set, in results
_EPISODE = 1_000  # steps, by which CORL multiplies normalised rewards


class DataSource:
    """The data set that was loaded last, and the rows that were generated, kept for the next run.

    Args:
        folder: Where data sets are looked for first.
        device: Where to fit, and where the rows go.
        upsampled: Folder in which generated rows are kept; None to keep none.
    """

    def __init__(self, folder: Path | None, device: torch.device, upsampled: Path | None = None) -> None:
        """Load nothing yet."""
        self.folder, self.device = folder, device
        self._whole: dict[str, Dataset] = {}
        self._upsampled = Upsampled(upsampled, device)

    def dataset(self, config: OfflineConfig) -> Dataset:
        """The data set, or the part of it that is asked for."""
        whole = self._load(config.dataset)
        return whole if config.subsample is None else whole.subsample(config.subsample, config.first_seed)

    def check_same(self, path: Path, config: OfflineConfig) -> None:
        """Refuse a finished result of other data than there are now; where there are none, it stands for itself."""
        try:
            found, now = read_result(path).get(DIGEST), self._load(config.dataset).digest()
        except FileNotFoundError:
            return
        if found not in (None, now):  # results were without it once
            raise ValueError(f"{path} is of another {config.dataset}; remove it, or choose another --out")

    def rows(self, config: OfflineConfig) -> tuple[SharedRows, dict[str, Any]]:
        """What the agents of a config learn from, and what there is to say of how it was made."""
        dataset = self.dataset(config)
        about: dict[str, Any] = {
            "origin": dataset.origin,
            "timeouts_derived": dataset.timeouts_derived,  # which older results do not say
            "real_rows": len(dataset),
            DIGEST: self._load(config.dataset).digest(),
        }
        if "command" in dataset.attributes:
            about["dataset_command"] = dataset.attributes["command"]
        real, synthetic = dataset.transitions(), None
        if config.synthetic:
            synthetic, made = self._upsampled.rows(config, dataset)
            about |= {"synthetic_rows": len(synthetic), **made}
            kinds = {"real": real, "synthetic": synthetic}
            about["terminals"] = {kind: terminal_counts(config.task, rows) for kind, rows in kinds.items()}
        rows = SharedRows(
            real if config.data in ("real", "mixed") else None,
            synthetic,
            real_ratio=config.real_ratio,
            scale_observations=config.scales_observations,
            scale_like=real,  # also where all rows are synthetic, as in the published code
            reward_scale=self._reward_scale(config),
            augmentation=AUGMENTATIONS[config.augment] if config.augment else None,
            device=self.device,
        )
        return rows, about

    def _load(self, name: str) -> Dataset:
        if name not in self._whole:
            self._whole = {name: load(name, folder=self.folder)}
        return self._whole[name]

    def _reward_scale(self, config: OfflineConfig) -> float:
        if not config.scales_rewards:
            return 1.0
        returns = self._load(config.dataset).returns()
        span = float(returns.max() - returns.min()) if len(returns) else 0.0
        if not span:
            raise ValueError(f"dataset: {config.dataset} has no two episodes of different return to scale rewards by")
        return _EPISODE / span
