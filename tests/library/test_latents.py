"""Latents: an encoder between real rows and generator."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import GeneratorConfig, RingBuffer, SyntheticReplayBuffer, TransitionSpec
from synther_replay.replay.latents import LatentBuffer

IMAGES = gym.spaces.Box(0, 255, (6, 6), np.uint8)
SPEC = TransitionSpec.from_spaces(IMAGES, gym.spaces.Box(-1, 1, (1,)))
CONFIG = GeneratorConfig.tiny(width=16, depth=1, steps=30, refit_steps=20, batch_size=32, sampling_steps=4)


class Projection:
    """Encodes an image by four numbers; another version by others."""

    def __init__(self) -> None:
        self.version, self.calls, self.width = 0, 0, 4

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == torch.uint8
        self.calls += len(images)
        rng = torch.Generator().manual_seed(self.version)
        return images.flatten(1).float() / 255 @ torch.randn(36, self.width, generator=rng)


def buffer(encoder: Any = None, **options: Any) -> SyntheticReplayBuffer:
    real = LatentBuffer(RingBuffer(SPEC, 1_000, device="cpu"), encoder or Projection())
    return SyntheticReplayBuffer(real, CONFIG, schedule={"every": 10_000, "rows": 100, "start": 50}, **options)


def fill(made: SyntheticReplayBuffer, n: int = 60, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (2, n, 6, 6), np.uint8)
    made.add(images[0], rng.uniform(-1, 1, (n, 1)), rng.normal(size=n), images[1], np.zeros(n, bool))


def test_batches_hold_latents_of_real_and_synthetic_rows():
    made = buffer()
    fill(made)
    batch = made.sample(20)
    assert batch.observations.shape == batch.next_observations.shape == (20, 4)
    assert made.refits == 1
    made.real_ratio = 1.0
    real = made.sample(10)
    stored = made.real.transitions()
    assert all((row == stored.rows).all(1).any() for row in real.rows)


def test_another_version_of_the_encoder_drops_rows_and_model():
    encoder = Projection()
    made = buffer(encoder)
    fill(made)
    made.sample(20)
    before = made.store.rows
    encoder.version = 1
    made.sample(20)
    assert made.refits == 2
    assert made.last_refit is not None
    assert made.last_refit.fit.from_scratch
    assert made.store.rows is not before
    made.sample(20)
    assert made.refits == 2


def test_an_encoder_that_changes_its_width_is_an_error_and_changes_nothing():
    encoder = Projection()
    made = buffer(encoder)
    fill(made)
    made.sample(20)
    before = made.store.rows
    encoder.width = 5
    with pytest.raises(ValueError, match="encoder"):
        made.refit()
    assert made.store.rows is before
    made.add(made.real.real.transitions())
    with pytest.warns(RuntimeWarning, match="encoder"):
        made.refit_or_warn()


@pytest.mark.parametrize(
    "encoder",
    [
        3,
        Projection,
        torch.nn.Flatten,
        lambda: Projection(),
        lambda images: images.numpy(),
        lambda images: images[:, 0, 0],
        lambda images: images[None],
    ],
)
def test_bad_encoders_are_refused(encoder: Any):
    with pytest.raises((TypeError, ValueError), match=r"^encoder: "):
        LatentBuffer(RingBuffer(SPEC, 100, device="cpu"), encoder)


def test_a_version_of_another_type_is_refused():
    encoder: Any = Projection()
    encoder.version = 1.5
    with pytest.raises(TypeError, match="version"):
        LatentBuffer(RingBuffer(SPEC, 100, device="cpu"), encoder)


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_a_version_that_cannot_be_read_does_not_end_the_training(ratio: float):
    class Fading:
        fails = False

        @property
        def version(self) -> Any:
            return 1 / 0 if self.fails else 3

        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            return images[:, 0].float()

    encoder = Fading()
    made = buffer(encoder, real_ratio=ratio)
    fill(made)
    made.sample(20)
    encoder.fails = True
    with pytest.warns(RuntimeWarning, match="version"):
        assert made.real.version == 3
    assert len(made.sample(20)) == 20
    assert made.refits == (ratio < 1)


class Plain:
    """A buffer of real transitions that cannot be saved."""

    spec = SPEC

    def __init__(self) -> None:
        self.ring = RingBuffer(SPEC, 100, device="cpu")
        self.add, self.sample, self.transitions = self.ring.add, self.ring.sample, self.ring.transitions

    def __len__(self) -> int:
        return len(self.ring)


def test_a_buffer_that_cannot_be_saved_says_so():
    real = LatentBuffer(Plain(), Projection())
    with pytest.raises(TypeError, match="real: Plain cannot be saved"):
        real.state_dict()
    with pytest.raises(TypeError, match="real: Plain cannot be saved"):
        real.load_state_dict({})


def test_an_encoder_that_loses_rows_is_an_error():
    made = LatentBuffer(RingBuffer(SPEC, 100, device="cpu"), lambda images: images[:1, 0].float())
    with pytest.raises(ValueError, match="encoder"):
        made.latents(torch.zeros(3, 6, 6, dtype=torch.uint8))


def test_dict_observations_are_refused():
    spec = TransitionSpec.from_spaces(gym.spaces.Dict(a=IMAGES), gym.spaces.Discrete(2))
    with pytest.raises(TypeError, match="encoder"):
        LatentBuffer(RingBuffer(spec, 100, device="cpu"), Projection())


def test_a_saved_run_of_another_version_starts_over(tmp_path: Any):
    made = buffer()
    fill(made)
    made.sample(20)
    made.save(tmp_path / "file")
    same, other = buffer(), Projection()
    same.load(tmp_path / "file")
    assert torch.equal(same.sample(20).rows, made.sample(20).rows)
    other.version = 3
    changed = buffer(other)
    changed.load(tmp_path / "file")
    changed.sample(20)
    assert changed.refits == same.refits + 1
