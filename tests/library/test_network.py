"""The network and its hand-written gradient against a plain PyTorch version."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.diffusion.network import (
    LIMITS,
    NetworkShape,
    Weights,
    backward,
    forward,
    forward_at_one_level,
    initialise,
)

Stream = Callable[[int], torch.Generator]

# Rows and features that need padding, and rows that need none; long rows, which enter the trunk directly.
SHAPES = [
    NetworkShape(dim=5, width=24, depth=3, embedding=16, fourier=4),
    NetworkShape(dim=8, width=16, depth=1, embedding=8, fourier=14),
    NetworkShape(dim=37, width=24, depth=2, embedding=32, fourier=4, direct=True),
    NetworkShape(dim=40, width=16, depth=1, embedding=8, fourier=14, direct=True),
]


def _weights(shape: NetworkShape, stack: int, rng: torch.Generator) -> Tensor:
    """Random parameters in float64, biases on a grid on which a running sum in float32 is exact."""
    flat = initialise(shape, stack, rng).double()
    gain = Weights.of(flat, shape).gain  # starts at zero
    gain.unflatten(-1, (len(LIMITS), -1))[..., : shape.dim].uniform_(-0.3, 0.3, generator=rng)
    for name, view in Weights.of(flat, shape)._asdict().items():
        if name.endswith("bias"):
            view.copy_((view * 2**12).round() / 2**12)
    return flat


def _inputs(shape: NetworkShape, stack: int, batch: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(stack, batch, shape.dim, generator=rng).double()
    features = torch.randn(stack, batch, 1 + shape.fourier, generator=rng).double()
    padded_features = F.pad(features, (0, shape.padded_features - features.shape[-1]))
    return F.pad(x, (0, shape.padded_dim - shape.dim)), padded_features


def _plain_network(w: dict[str, Tensor], x: Tensor, features: Tensor) -> Tensor:
    """The same network for one model, as its formula reads: ``(B, padded_dim)``."""
    s = F.silu(features @ w["time1"] + w["time1_bias"])
    z = s @ w["time2"] + w["embedding_bias"]
    direct = len(w["gain"]) > 0
    h = (z @ w["widen"] + x @ w["project"] if direct else (z + x @ w["project"]) @ w["widen"]) + w["trunk_bias"][0]
    for k in range(len(w["blocks"])):
        h = h + h.relu() @ w["blocks"][k] + w["trunk_bias"][k + 1]
    y = h.relu() @ w["out"] + w["out_bias"]
    if direct:
        wide, narrow = (s[:, : len(w["gain"])] @ w["gain"]).chunk(2, dim=1)
        y = y + wide * x.clamp(-3, 3) + narrow * x.clamp(-1, 1)
    return y


def _model(flat: Tensor, shape: NetworkShape, m: int) -> dict[str, Tensor]:
    """Separate, differentiable copies of the weights of model m."""
    views = Weights.of(flat, shape)._asdict()
    return {name: view[m].clone().requires_grad_() for name, view in views.items()}


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_backward_equal_autograd_of_the_plain_network(
    shape: NetworkShape, stack: int, stream: Stream
) -> None:
    rng = stream(stack)
    flat = _weights(shape, stack, rng)
    x, features = _inputs(shape, stack, 7, rng)
    d_y = F.pad(torch.randn(stack, 7, shape.dim, generator=rng).double(), (0, shape.padded_dim - shape.dim))
    weights = Weights.of(flat, shape)
    gradient = torch.full_like(flat, math.nan)  # previous values must be overwritten

    y, kept = forward(weights, x, features)
    assert kept is not None
    backward(weights, kept, d_y, Weights.of(gradient, shape))

    for m in range(stack):
        w = _model(flat, shape, m)
        expected = _plain_network(w, x[m], features[m])
        torch.testing.assert_close(y[m], expected, rtol=1e-12, atol=1e-12)
        expected.backward(d_y[m])
        for name, view in Weights.of(gradient, shape)._asdict().items():
            if not view.numel():
                continue
            assert w[name].grad.abs().max() > 0, name
            torch.testing.assert_close(view[m], w[name].grad, rtol=1e-11, atol=1e-12, msg=lambda text, n=name: n + text)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_of_a_stack_equals_the_same_model_alone(shape: NetworkShape, stream: Stream) -> None:
    rng = stream(0)
    flat = _weights(shape, 3, rng)
    x, features = _inputs(shape, 3, 6, rng)
    d_y = torch.randn(x.shape, generator=rng).double()
    together, kept = forward(Weights.of(flat, shape), x, features)
    gradient = torch.zeros_like(flat)
    assert kept is not None
    backward(Weights.of(flat, shape), kept, d_y, Weights.of(gradient, shape))
    for m in range(3):
        one = slice(m, m + 1)
        alone, kept = forward(Weights.of(flat[one], shape), x[one], features[one])
        gradient_alone = torch.zeros_like(flat[one])
        assert kept is not None
        backward(Weights.of(flat[one], shape), kept, d_y[one], Weights.of(gradient_alone, shape))
        torch.testing.assert_close(together[one], alone, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient[one], gradient_alone, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_noise_level_for_all_rows_equals_the_level_repeated(shape: NetworkShape, stream: Stream) -> None:
    rng = stream(0)
    weights = Weights.of(_weights(shape, 2, rng), shape)
    x, features = _inputs(shape, 2, 9, rng)
    shared = forward_at_one_level(weights, x, features[:, :1])
    repeated, _ = forward(weights, x, features[:, :1].expand_as(features).contiguous())
    torch.testing.assert_close(shared, repeated, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_leaves_inputs_and_weights_alone(shape: NetworkShape, stream: Stream) -> None:
    rng = stream(0)
    flat = _weights(shape, 2, rng)
    x, features = _inputs(shape, 2, 9, rng)
    before = flat.clone(), x.clone(), features.clone()
    forward(Weights.of(flat, shape), x, features)
    forward_at_one_level(Weights.of(flat, shape), x, features[:, :1])
    assert torch.equal(flat, before[0])
    assert torch.equal(x, before[1])
    assert torch.equal(features, before[2])


@pytest.mark.parametrize("shape", SHAPES[::2])
def test_padding_starts_at_zero_and_gets_no_gradient(shape: NetworkShape, stream: Stream) -> None:
    rng = stream(0)
    assert shape.padded_dim == shape.dim + 3
    assert shape.padded_features == 8
    flat = initialise(shape, 2, rng).double()
    x, features = _inputs(shape, 2, 7, rng)
    weights = Weights.of(flat, shape)
    y, kept = forward(weights, x, features)
    assert not y[..., shape.dim :].any()
    gradient = torch.full_like(flat, math.nan)
    d_y = F.pad(torch.randn(2, 7, shape.dim, generator=rng).double(), (0, 3))
    assert kept is not None
    backward(weights, kept, d_y, Weights.of(gradient, shape))
    for view in (weights, Weights.of(gradient, shape)):
        for padding in (
            view.time1[:, 1 + shape.fourier :],
            view.project[:, shape.dim :],
            view.out[..., shape.dim :],
            view.out_bias[..., shape.dim :],
        ):
            assert padding.numel() > 0
            assert not padding.any()
        assert not view.gain.unflatten(-1, (len(LIMITS), -1))[..., shape.dim :].any()


def test_the_published_network_has_its_six_and_a_half_million_parameters() -> None:
    parameters = NetworkShape(dim=42, width=1024, depth=6, embedding=128).parameters
    assert 6.45e6 < parameters < 6.55e6
    assert parameters == initialise(NetworkShape(dim=42), 1, torch.Generator()).shape[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_named_views_cover_the_flat_matrix_exactly_once(shape: NetworkShape) -> None:
    flat = torch.zeros(2, shape.parameters)
    views = Weights.of(flat, shape)._asdict()
    for name, view in views.items():
        assert view.shape == (2, *shape.sizes()[name])
        assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        view += 1
    assert torch.equal(flat, torch.ones_like(flat))


@pytest.mark.parametrize("width", [16, 64])
def test_the_cost_of_a_long_row_grows_with_its_codes_times_the_width(width: int) -> None:
    """Regression: with the square of its codes."""
    one, two = (NetworkShape(dim, width, 2, embedding=64, direct=True).parameters for dim in (1_000, 2_000))
    assert two - one < 1_000 * (2 * width + 40)


def test_gains_start_at_zero_and_let_a_narrow_trunk_reach_every_column(stream: Stream) -> None:
    shape, rng = NetworkShape(dim=64, width=8, depth=1, embedding=16, direct=True), stream(0)
    flat = initialise(shape, 1, rng)
    assert not Weights.of(flat, shape).gain.any()
    x, features = _inputs(shape, 1, 200, rng)
    flat = flat.double()
    ranks = []
    for gain in (0.0, 1.0):
        Weights.of(flat, shape).gain.fill_(gain)
        ranks.append(torch.linalg.matrix_rank(forward(Weights.of(flat, shape), x, features)[0][0]).item())
    assert ranks[0] <= 9
    assert ranks[1] == 64


def test_initial_weights_are_uniform_by_fan_in_and_differ_between_models(stream: Stream) -> None:
    shape = NetworkShape(dim=16, width=64, depth=2, embedding=32)
    flat = initialise(shape, 2, stream(0))
    fan_in = {"time1": 17, "time1_bias": 17, "time2": 32, "embedding_bias": 32, "project": 16, "widen": 32}
    for name, view in Weights.of(flat, shape)._asdict().items():
        used = view[:, :17] if name == "time1" else view
        if name == "trunk_bias":  # its first row belongs to `widen`
            assert 0.8 / math.sqrt(32) < used[:, 0].abs().max() <= 1 / math.sqrt(32)
            used = used[:, 1:]
        if name == "gain":
            continue
        bound = 1 / math.sqrt(fan_in.get(name, 64))
        assert used.abs().max() <= bound, name
        assert used.abs().max() > 0.8 * bound, name
    assert not torch.equal(flat[0], flat[1])
    assert torch.equal(flat, initialise(shape, 2, stream(0)))
    assert not torch.equal(flat, initialise(shape, 2, stream(1)))


@pytest.mark.parametrize("shape", SHAPES[::2])
def test_bfloat16_stays_close_to_float64(shape: NetworkShape, stream: Stream) -> None:
    rng = stream(0)
    flat = _weights(shape, 2, rng)
    x, features = _inputs(shape, 2, 50, rng)
    exact, _ = forward(Weights.of(flat, shape), x, features)
    rough, kept = forward(Weights.of(flat.bfloat16(), shape), x.bfloat16(), features.bfloat16())
    assert rough.dtype == torch.bfloat16
    assert (rough.double() - exact).abs().mean() < 0.02 * exact.abs().mean()
    gradient = torch.zeros_like(flat, dtype=torch.bfloat16)
    assert kept is not None
    backward(Weights.of(flat.bfloat16(), shape), kept, torch.ones_like(rough), Weights.of(gradient, shape))
    assert gradient.isfinite().all()
