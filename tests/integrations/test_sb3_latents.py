"""Images in Stable-Baselines3: the generator models the latents of an encoder."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
from stable_baselines3 import SAC

from synther_replay.adapters.sb3 import SynthERBuffer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import sb3_pixels

SMALL = {"width": 16, "depth": 1, "steps": 30, "refit_steps": 20, "batch_size": 32, "sampling_steps": 4}
IMAGES = spaces.Box(0, 255, (1, 6, 6), np.uint8)


class Means:
    """Encodes an image by the means of its rows, times its version."""

    def __init__(self) -> None:
        self.version, self.images, self.width = 1, 0, 6

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[1:] == (1, 6, 6)
        self.images += len(images)
        return images.float().mean(3)[:, 0, : self.width] / 255 * self.version


def buffer(encoder: Any, n: int = 80, **options: Any) -> SynthERBuffer:
    options = {"generator": SMALL, "schedule": {"every": 10_000, "rows": 100, "start": 50}, **options}
    made = SynthERBuffer(200, IMAGES, spaces.Box(-1, 1, (2,)), device="cpu", seed=0, encoder=encoder, **options)
    fill(made, n)
    return made


def fill(made: SynthERBuffer, n: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(n):
        images = rng.integers(0, 256, (2, 1, 1, 6, 6), np.uint8)
        made.add(images[0], images[1], rng.uniform(-1, 1, (1, 2)), rng.normal(size=1), np.zeros(1), [{}])


def agent() -> SAC:
    """The agent of the example, with earlier refits and fewer updates."""
    model = sb3_pixels.make(generator=SMALL, schedule={"every": 50, "rows": 300, "start": 50})
    model.learning_starts, model.gradient_steps = 60, 1
    return model


def test_an_agent_learns_from_images_with_synthetic_latents():
    model = agent()
    encoder = model.replay_buffer.latents.encoder
    before = [weight.clone() for weight in encoder.parameters()]
    model.learn(110)
    assert all(torch.equal(*pair) for pair in zip(before, encoder.parameters(), strict=True))
    assert model.replay_buffer.source.refits >= 1
    batch = model.replay_buffer.sample(32)
    assert batch.observations.shape == batch.next_observations.shape == (32, sb3_pixels.LATENTS)
    assert model.predict(sb3_pixels.Dot().reset(seed=0)[0])[0].shape == (2,)


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_real_rows_of_a_batch_are_encoded_whatever_the_ratio(ratio: float):
    encoder = Means()
    made = buffer(encoder, real_ratio=ratio)
    batch = made.sample(40)
    stored = encoder(torch.from_numpy(made.observations[:80, 0]))
    real = batch.observations[~batch.is_synthetic]
    assert len(real) == 40 * ratio
    assert all((row == stored).all(1).any() for row in real)


def test_every_image_is_encoded_once_per_version():
    encoder = Means()
    made = buffer(encoder)
    seen = encoder.images
    for _ in range(5):
        made.sample(40)
    assert encoder.images - seen == 2 * 80
    fill(made, 1)
    made.sample(40)
    assert encoder.images - seen == 2 * 81
    encoder.version = 2
    batch = made.sample(40)
    assert encoder.images - seen == 4 * 81
    assert made.source.refits == 2
    stored = encoder(torch.from_numpy(made.observations[:81, 0]))
    assert all((row == stored).all(1).any() for row in batch.observations[~batch.is_synthetic])


def test_a_saved_buffer_continues(tmp_path: Path):
    model = agent()
    model.learn(70)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = SAC.load(tmp_path / "model", env=sb3_pixels.Dot())
    again.load_replay_buffer(tmp_path / "buffer")
    assert again.replay_buffer.latents.encoder is again.replay_buffer_kwargs["encoder"]
    one, two = (m.replay_buffer.sample(20).observations for m in (model, again))
    torch.testing.assert_close(one, two)  # convolutions round differently in blocks of other sizes
    again.learn(10, reset_num_timesteps=False)


def test_an_encoder_for_dict_observations_is_refused():
    with pytest.raises(TypeError, match="encoder"):
        SynthERBuffer(10, spaces.Dict(a=IMAGES), spaces.Discrete(2), device="cpu", encoder=Means())


def test_an_encoder_needs_next_observations():
    with pytest.raises(ValueError, match="optimize_memory_usage"):
        buffer(Means(), real_ratio=1.0, optimize_memory_usage=True, handle_timeout_termination=False)


def test_reseeded_copies_draw_other_real_rows():
    made = buffer(Means(), real_ratio=1.0)
    other = pickle.loads(pickle.dumps(made))
    other.source.reseed(5)
    assert not torch.equal(made.sample(16).rewards, other.sample(16).rewards)


def test_the_hook_is_called_after_a_refit():
    reports: list[Any] = []
    made = buffer(Means(), on_refit=reports.append)
    made.sample(8)
    assert [report.steps for report in reports] == [80]
