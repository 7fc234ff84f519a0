"""The rows of offline runs: real rows of a data set, synthetic rows, or both."""

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
from synther_replay.benchmarks.offline.worsened import worsened

DIGEST = "dataset_digest"  # result key for the digest of the whole data set
_EPISODE = 1_000  # steps; CORL multiplies normalised rewards by it


class DataSource:
    """Loads data sets and synthetic rows; caches the last of each for the next run.

    Args:
        folder: Folder to search for data sets first.
        device: Device of generator and rows.
        upsampled: Cache folder for synthetic rows; None for no cache on disk.
    """

    def __init__(self, folder: Path | None, device: torch.device, upsampled: Path | None = None) -> None:
        """Nothing is loaded yet."""
        self.folder, self.device = folder, device
        self._whole: dict[str, Dataset] = {}
        self._upsampled = Upsampled(upsampled, device)

    def dataset(self, config: OfflineConfig) -> Dataset:
        """The data set of a config, made worse and subsampled if the config asks for it."""
        whole = self._load(config.dataset)
        if config.worsen is not None:
            whole = worsened(whole, config.worsen, config.first_seed)
        return whole if config.subsample is None else whole.subsample(config.subsample, config.first_seed)

    def check_same(self, path: Path, config: OfflineConfig) -> None:
        """Raise `ValueError` if a finished result was made from other rows than the data set has now.

        Passes if the data set is not on disk.
        """
        try:
            found, expected = read_result(path).get(DIGEST), self._load(config.dataset).digest()
        except FileNotFoundError:
            return
        if found not in (None, expected):  # None: results of early versions have no digest
            raise ValueError(
                f"{path}: made from another version of {config.dataset} (got digest {found}, expected {expected}); "
                "remove the file or choose another --out"
            )

    def rows(self, config: OfflineConfig) -> tuple[SharedRows, dict[str, Any]]:
        """The rows that the agents of a config train on, and their description for the result, as JSON values."""
        dataset = self.dataset(config)
        about: dict[str, Any] = {
            "origin": dataset.origin,
            "timeouts_derived": dataset.timeouts_derived,
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
            scale_like=real,  # also for synthetic rows only, as in the published code
            reward_shift=config.reward_shift,
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
            raise ValueError(
                f"dataset: {config.dataset} needs two episodes with different returns to scale rewards, got "
                f"{len(returns)} with equal returns"
            )
        return _EPISODE / span
