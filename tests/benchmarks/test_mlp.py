"""Networks with fp16 products compute nearly the same as with fp32."""

from dataclasses import replace

import pytest
import torch

from synther_replay.benchmarks.agents.networks import mlp
from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.critics import TorchCritics
from synther_replay.benchmarks.agents.networks.matmul import choose_precision, uses_fp16
from synther_replay.benchmarks.agents.networks.mlp import (
    Layers,
    MlpShape,
    add_double_backward,
    backward,
    backward_to_inputs,
    forward,
    initialise_like_torch,
    layer_gradients,
    operands,
    padded,
)
from synther_replay.benchmarks.agents.networks.residual import ResidualShape
from synther_replay.benchmarks.agents.networks.torch_networks import passes_of

BATCH, STACK = 64, 3


@pytest.fixture
def normal():
    """Draws normal numbers."""
    rng = torch.Generator().manual_seed(0)
    return lambda *size: torch.randn(size, generator=rng)


def drawn(outputs, layers):
    shape = MlpShape(11, outputs, 32, layers)
    return shape, initialise_like_torch(shape, STACK, torch.Generator().manual_seed(1))


def near(found, expected, share=0.01):
    """Relative distance of whole tensors: fp16 has eleven bits."""
    assert found.dtype == expected.dtype == torch.float32
    return torch.linalg.norm(found - expected) < share * torch.linalg.norm(expected)


def operands_in(dtype, parameters, shape):
    """Operands of this type, whatever the device uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlp, "uses_fp16", lambda device: dtype == torch.half)
        return operands(parameters, shape)


def both_ways(shape, parameters, act):
    """Results of `act` with fp32 and with fp16 operands."""
    return [act(operands_in(dtype, parameters, shape)) for dtype in (torch.float32, torch.half)]


def same_units_open(shape, parameters, x):
    """One for rows with the same active units in both, zero for others, which cannot be compared."""
    (_, floats), (_, halves) = both_ways(shape, parameters, lambda w: forward(w, x))
    alike = [
        ((one > 0) == (two > 0)).all(-1, keepdim=True) for one, two in zip(floats.hidden, halves.hidden, strict=True)
    ]
    alike = torch.stack(alike).all(0)
    assert alike.float().mean() > 0.8
    return alike.float()


def test_fp32_operands_are_the_parameters_themselves():
    shape, parameters = drawn(1, 2)
    layers = operands(parameters, shape)
    assert {name: part.data_ptr() for name, part in layers.items()} == {
        name: part.data_ptr() for name, part in Layers.of(parameters, shape).items()
    }
    halves = operands_in(torch.half, parameters, shape)
    assert {part.dtype for name, part in halves.items() if name != "b3"} == {torch.half}
    assert halves["b3"].data_ptr() == layers["b3"].data_ptr()


@pytest.mark.usefixtures("precision_restored")
def test_precision_is_chosen_for_gpus_only():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    for precise in (True, False):
        choose_precision(gpu, precise=precise)
        choose_precision(cpu, precise=not precise)
        assert uses_fp16(gpu) is not precise


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [("cuda", "high", True), ("cuda", "medium", True), ("cuda", "highest", False), ("cpu", "high", False)],
)
@pytest.mark.usefixtures("precision_restored")
def test_fp16_is_for_gpus_without_full_precision(device, precision, expected):
    torch.set_float32_matmul_precision(precision)
    assert uses_fp16(torch.device(device)) is expected


@pytest.mark.parametrize(("outputs", "layers"), [(1, 2), (1, 3), (6, 3)])
def test_outputs_and_gradients_are_nearly_the_same(outputs, layers, normal):
    shape, parameters = drawn(outputs, layers)
    x = padded(normal(STACK, BATCH, 11), columns=shape.padded_inputs)
    d_y = normal(STACK, BATCH, outputs) * 1e-5 * same_units_open(shape, parameters, x)  # which halves hardly know

    def act(w):
        y, kept = forward(w, x)
        gradient = torch.zeros_like(parameters)
        backward(w, kept, d_y, Layers.of(gradient, shape))
        return y, gradient, backward_to_inputs(w, kept, d_y)

    floats, halves = both_ways(shape, parameters, act)
    for expected, found in zip(floats, halves, strict=True):
        assert near(found, expected)


@pytest.mark.parametrize(
    "shape",
    [
        MlpShape(11, 1, 32, layer_norm=True),
        MlpShape(11, 1, 32, layer_norm=True, alternating=True),
        MlpShape(11, 3, 32, feature_norm=True),
        MlpShape(11, 1, 32, layer_norm=True, feature_norm=True),
        ResidualShape(11, 1, 32, blocks=2),
    ],
    ids=["layer norm", "alternating", "features", "both", "residual"],
)
def test_normalised_networks_are_nearly_the_same(shape, normal):
    passes = passes_of(shape)
    parameters = initialise_like_torch(shape, STACK, torch.Generator().manual_seed(1))
    x = padded(normal(STACK, 4 * BATCH, 11), columns=shape.padded_inputs)
    d_y = normal(STACK, 4 * BATCH, shape.outputs)

    def act(w):
        y, kept = passes.forward(w, x)
        gradient = torch.zeros_like(parameters)
        passes.backward(w, kept, d_y, Layers.of(gradient, shape))
        return y, gradient, passes.backward_to_inputs(w, kept, d_y)

    floats, halves = both_ways(shape, parameters, act)
    for expected, found in zip(floats, halves, strict=True):
        assert near(found, expected, share=0.05)  # some units are active on one side only


@pytest.mark.parametrize("size", [1e-6, 1e-3, 10.0])
@pytest.mark.parametrize("layers", [2, 3])
def test_layer_gradients_and_double_backward_are_nearly_the_same(layers, size, normal):
    shape, parameters = drawn(1, layers)
    x = padded(normal(STACK, BATCH, 11), columns=shape.padded_inputs)
    alike = same_units_open(shape, parameters, x)
    d_input_gradient = normal(STACK, BATCH, shape.padded_inputs) * size * alike

    def act(w):
        _, kept = forward(w, x)
        found = layer_gradients(w, kept)
        gradient = torch.full_like(parameters, size)  # that is added to
        add_double_backward(w, kept, found, d_input_gradient, Layers.of(gradient, shape))
        return found[-1] * alike, gradient

    floats, halves = both_ways(shape, parameters, act)
    for expected, found in zip(floats, halves, strict=True):
        assert near(found, expected)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.half])
def test_gradients_of_a_single_output_are_multiples_of_those_by_the_layers(dtype, layers, normal):
    shape, parameters = drawn(1, layers)
    x = padded(normal(STACK, BATCH, 11), columns=shape.padded_inputs)
    w = operands_in(dtype, parameters, shape)
    _, kept = forward(w, x)
    gradients = torch.zeros(2, *parameters.shape)
    d_y = normal(STACK, BATCH, 1)
    for gradient, known in zip(gradients, (None, layer_gradients(w, kept)), strict=True):
        backward(w, kept, d_y, Layers.of(gradient, shape), found=known)
    assert near(gradients[1], gradients[0], share=1e-6 if dtype == torch.float32 else 0.01)


def test_values_beyond_fp16_are_clamped(normal):
    shape, parameters = drawn(1, 3)
    x = padded(normal(STACK, BATCH, 11), columns=shape.padded_inputs)
    w = operands_in(torch.half, parameters, shape)
    _, kept = forward(w, x)
    gradient = torch.zeros_like(parameters)
    backward(w, kept, torch.full((STACK, BATCH, 1), 1e9), Layers.of(gradient, shape))
    assert gradient.isfinite().all()
    y, kept = forward(w, x * 1e6)
    assert all(part.isfinite().all() for part in (y, kept.x, *kept.hidden))
    assert kept.hidden[0].max() == 65504


def test_the_first_critic_of_every_agent_has_layer_norm_if_they_alternate(normal):
    shape = MlpShape(11, 1, 32, layer_norm=True, alternating=True)
    values = initialise_like_torch(shape, 8, torch.Generator().manual_seed(1))
    critics = TorchCritics(values, Adam(values[:4], 3e-4), shape, critics=2, target_speed=0.005)
    x = padded(normal(2, BATCH, 11), columns=shape.padded_inputs)
    expected = forward(Layers.of(values[[0, 2]], replace(shape, alternating=False)), x)[0]
    assert torch.equal(critics.first.forward(x), expected)
    assert not torch.equal(expected, forward(Layers.of(values[[0, 2]], shape), x)[0])
