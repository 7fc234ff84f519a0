"""Recorded episodes with V-D4RL's fields, in one NumPy file with compressed frames.

The fields of V-D4RL's HDF5 files have a row per frame: `observation`, `action`, `reward`, `discount` and `step_type`.
Action and reward of a row are those that led to its frame, and 0 for the first frame of an episode. Here `observation`
is replaced by `frames`, the encoded episodes one after another, with the number of bytes and frames of each.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.benchmarks.common.files import writing
from synther_replay.benchmarks.pixels.codec import decode

FIRST, MID, LAST = 0, 1, 2  # values of step_type, as in dm_env
_ROWS = ("action", "reward", "discount", "step_type")
_EPISODES = ("frame_bytes", "lengths")
_ABOUT = "about"


@dataclass(frozen=True, eq=False)
class Archive:
    """Episodes; all arrays but `frames` have one row per frame or per episode.

    Attributes:
        frames: Encoded episodes, one after another, uint8.
        frame_bytes: Bytes of each encoded episode.
        lengths: Frames of each episode.
        action: Actions, ``(frames, A)``.
        reward: Rewards.
        discount: 0 where the task ended the episode, else 1.
        step_type: `FIRST`, `MID` or `LAST`.
        about: How the episodes were made, as JSON values.
    """

    frames: np.ndarray
    frame_bytes: np.ndarray
    lengths: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    step_type: np.ndarray
    about: dict[str, Any]

    @classmethod
    def of_episode(
        cls, content: bytes, actions: np.ndarray, rewards: np.ndarray, terminated: bool, about: dict[str, Any]
    ) -> Archive:
        """One episode of ``n`` actions ``(n, A)`` and rewards ``(n,)``, with ``n + 1`` encoded frames."""
        count = len(rewards) + 1
        step_type = np.full(count, MID, np.int8)
        step_type[0], step_type[-1] = FIRST, LAST
        return cls(
            frames=np.frombuffer(content, np.uint8),
            frame_bytes=np.array([len(content)], np.int64),
            lengths=np.array([count], np.int64),
            action=np.concatenate([np.zeros_like(actions[:1]), actions]),
            reward=np.concatenate([np.zeros(1, np.float32), rewards]),
            discount=np.where((step_type == LAST) & terminated, 0, 1).astype(np.float32),
            step_type=step_type,
            about=about,
        )

    @classmethod
    def joined(cls, parts: Sequence[Archive], about: dict[str, Any]) -> Archive:
        """All episodes of several archives."""
        names = ("frames", *_EPISODES, *_ROWS)
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}, about=about)

    @classmethod
    def read(cls, path: Path) -> Archive:
        """Read a file.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It is damaged or something else.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                content = {name: file[name] for name in ("frames", *_EPISODES, *_ROWS)}
                archive = cls(**content, about=json.loads(bytes(file[_ABOUT])))
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: not an archive of episodes, or damaged ({error!r})") from error
        archive._check(path)
        return archive

    def write(self, path: Path) -> None:
        """Write a file atomically."""
        arrays = {name: getattr(self, name) for name in ("frames", *_EPISODES, *_ROWS)}
        about = np.frombuffer(json.dumps(self.about).encode(), np.uint8)
        with writing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays, **{_ABOUT: about})

    def starts(self) -> np.ndarray:
        """Number of the first frame of each frame's episode, ``(frames,)``."""
        return np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)

    def returns(self) -> np.ndarray:
        """Return of each episode."""
        return np.add.reduceat(self.reward.astype(np.float64), np.cumsum(self.lengths) - self.lengths)

    def decoded(self, *, threads: int = 1) -> np.ndarray:
        """All frames, ``(frames, height, width, 3)``, uint8."""
        contents = [part.tobytes() for part in np.split(self.frames, np.cumsum(self.frame_bytes)[:-1])]
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(decode, contents)))

    def __len__(self) -> int:
        """Number of frames."""
        return int(self.lengths.sum())

    def _check(self, path: Path) -> None:
        """Raise ValueError if the arrays do not fit together."""
        sizes = {name: len(getattr(self, name)) for name in _ROWS}
        whole = len(self.frames) == self.frame_bytes.sum() and len(self.frame_bytes) == len(self.lengths) > 0
        if not whole or set(sizes.values()) != {len(self)} or (self.lengths < 2).any():
            frames = f"{len(self)} frames in {len(self.lengths)} episodes"
            raise ValueError(f"{path}: arrays do not fit together: {frames}, rows {sizes}")
