"""Frames of an episode as an AVIF image sequence: AV1, with prediction between frames.

Lossless files take thousands of bytes per frame of 84 x 84, because sky and floor are textured. The lossy ones take
hundreds.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

_COLOURS = ("4:2:0", "4:4:4")


@dataclass(frozen=True)
class CodecSettings:
    """Settings of the encoder.

    Attributes:
        quality: 0 to 100. Even 100 rounds, because colours are converted.
        speed: 0 (slowest, smallest) to 10.
        colours: Chroma subsampling, "4:2:0" or "4:4:4".
    """

    quality: int = 60
    speed: int = 6
    colours: str = "4:4:4"

    def __post_init__(self) -> None:
        """Validate all values."""
        for name, most in (("quality", 100), ("speed", 10)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: expected 0 to {most}, got {getattr(self, name)!r}")
        if self.colours not in _COLOURS:
            raise ValueError(f"colours: expected one of {', '.join(_COLOURS)}, got {self.colours!r}")


def encode(frames: np.ndarray, settings: CodecSettings) -> bytes:
    """Encode frames ``(n, height, width, 3)``, uint8."""
    first, *others = [Image.fromarray(frame) for frame in frames]
    file = io.BytesIO()
    first.save(
        file,
        "AVIF",
        save_all=True,
        append_images=others,
        quality=settings.quality,
        speed=settings.speed,
        subsampling=settings.colours,
        max_threads=1,  # one process per core
    )
    return file.getvalue()


def decode(content: bytes) -> np.ndarray:
    """Inverse of `encode`, up to its losses."""
    with Image.open(io.BytesIO(content), formats=["AVIF"]) as image:
        frames = np.empty((getattr(image, "n_frames", 1), image.height, image.width, 3), np.uint8)
        for number in range(len(frames)):
            image.seek(number)
            frames[number] = np.asarray(image.convert("RGB"))
    return frames


def signal_to_noise(frames: np.ndarray, decoded: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB; infinite for equal frames."""
    error = np.square(frames.astype(np.float32) - decoded).mean()
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))
