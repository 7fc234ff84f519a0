"""Training batches come from the rows in use; held-out batches are fixed."""

import torch

from synther_replay.diffusion.batches import HeldOutBatches, draw_batches
from synther_replay.diffusion.edm import NoiseLevels
from synther_replay.diffusion.network import NetworkShape, initialise

SHAPE = NetworkShape(dim=2, width=16, depth=1, embedding=8, fourier=4)
SETTINGS = {"shape": SHAPE, "frequencies": torch.ones(2, 1, 2), "dtype": torch.float32, "levels": NoiseLevels()}


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def test_batches_have_the_sizes_of_the_network_and_come_from_rows_in_use():
    rows = torch.full((2, 10, 2), 1e6)
    rows[0, :4], rows[1, :4] = 3.0, -3.0
    inputs, features, targets = draw_batches(rows, 4, (5, 2, 64), rng=stream(), **SETTINGS)
    assert inputs.shape == (5, 2, 64, SHAPE.padded_dim)
    assert features.shape == (5, 2, 64, SHAPE.padded_features)
    assert targets.shape == (5, 2, 64, 2)
    assert inputs.abs().max() < 100, "rows past those in use were drawn"
    assert inputs[:, 0, :, :2].mean() > 1 > -1 > inputs[:, 1, :, :2].mean()


def test_held_out_loss_depends_on_the_weights_alone():
    rows = torch.randn(2, 30, 2, generator=stream(1))
    batches = HeldOutBatches(rows, 16, rng=stream(), **SETTINGS)
    weights = initialise(SHAPE, 2, stream(2))
    first = batches.loss(weights)
    assert first.shape == (2,)
    assert torch.equal(batches.loss(weights), first)
    assert torch.equal(HeldOutBatches(rows, 16, rng=stream(), **SETTINGS).loss(weights), first)
    assert not torch.equal(batches.loss(weights * 1.1), first)


def test_more_noise_leaves_less_of_the_rows():
    rows = torch.full((2, 10, 2), 3.0)
    some, much = (
        draw_batches(rows, 10, (1, 2, 512), rng=stream(), **{**SETTINGS, "levels": NoiseLevels(mean, 0.1)}).inputs
        for mean in (-3.0, 3.0)
    )
    assert some[..., :2].mean() > 2.5
    assert much[..., :2].mean().abs() < 0.5
