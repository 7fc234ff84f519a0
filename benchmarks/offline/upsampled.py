"""Synthetic rows of a data set, generated once and cached on disk for all runs that share them.

With the paper's settings, fitting and sampling take as long as training an agent. A resumed run also needs the same
rows again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import synther_replay
from synther_replay import CheckpointError, Transitions
from synther_replay.adapters import corl
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.data.registry import Dataset
from synther_replay.benchmarks.offline.settings import OfflineConfig
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

KIND = "upsampled rows"


class Upsampled:
    """Generates synthetic rows, or reads them from the cache.

    Args:
        folder: Cache folder, about 200 bytes per row; None for no cache on disk.
        device: Device of the generator.
    """

    def __init__(self, folder: Path | None, device: torch.device) -> None:
        """Nothing is generated yet."""
        self.folder, self.device = folder, device
        self._last: tuple[dict[str, Any], Transitions, dict[str, Any]] | None = None  # only the last: rows are large

    def rows(self, config: OfflineConfig, dataset: Dataset) -> tuple[Transitions, dict[str, Any]]:
        """The synthetic rows of a config, and how they were made, as JSON values."""
        key = self._key(config, dataset)
        if self._last is None or self._last[0] != key:
            self._last = None  # frees its memory first
            path = self._path(config, key)
            found = self._read(path, key) or self._make(config, dataset, path, key)
            self._last = key, Transitions(dataset.spec(), found["rows"].to(self.device)), found["about"]
        return self._last[1], self._last[2]

    def _key(self, config: OfflineConfig, dataset: Dataset) -> dict[str, Any]:
        """Everything that the rows depend on."""
        return {
            "dataset": config.dataset,
            "real": dataset.digest(),
            "rows": config.synthetic_rows(len(dataset)),
            "seed": config.first_seed,
            "generator": json.loads(json.dumps(config.generator_config().to_json())),
            "device": self.device.type,
            "code": _code(),
        }

    def _path(self, config: OfflineConfig, key: dict[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / f"{config.dataset}-{_digest(json.dumps(key, sort_keys=True).encode())}.safetensors"

    def _read(self, path: Path | None, key: dict[str, Any]) -> dict[str, Any] | None:
        if path is None or not path.exists():
            return None
        try:
            found = load_checkpoint(path, KIND)
        except CheckpointError as error:
            warnings.warn(f"{error}; generating the rows again", stacklevel=2)
            return None
        return found if found["key"] == key else None

    def _make(self, config: OfflineConfig, dataset: Dataset, path: Path | None, key: dict[str, Any]) -> dict[str, Any]:
        """Fit and sample through the CORL adapter, as CORL's own scripts would."""
        sizes = dataset.observations.shape[1], dataset.actions.shape[1], len(dataset)
        max_action = float(max(1.0, np.abs(dataset.actions).max()))
        buffer = corl.ReplayBuffer(
            *sizes, self.device, generator=config.generator_config(), max_action=max_action, seed=config.first_seed
        )
        buffer.load_d4rl_dataset(dataset.to_qlearning())
        report = buffer.upsample(key["rows"])
        assert buffer.synthetic is not None
        about = {
            "fit_seconds": round(report.fit_seconds, 2),
            "generate_seconds": round(report.sample_seconds, 2),
            "fit_steps": report.fit.steps,
            "held_out_loss": report.fit.held_out_loss,
            "generator_commit": origin(self.device)["commit"],
        }
        made = {"key": key, "about": about, "rows": buffer.synthetic.rows}
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                save_checkpoint(path, KIND, made)
            except OSError as error:
                reason = error.__cause__ or error  # the cause does not repeat the path
                warnings.warn(
                    f"{path}: cannot cache the synthetic rows ({reason}); this run continues, the next one has to "
                    "generate them again",
                    stacklevel=2,
                )
        return made


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def _code() -> str:
    """Digest of the library's source code, so that rows of another version are not reused."""
    return _digest(b"".join(path.read_bytes() for path in _files()))


def _files() -> list[Path]:
    """Source files that affect the rows; in an editable install, adapters are outside the library's folder."""
    folders = {Path(str(module.__file__)).resolve().parent for module in (synther_replay, corl)}
    return sorted({path for folder in folders for path in folder.rglob("*.py")} | {Path(__file__).resolve()})
