"""The kernels compute what the PyTorch functions compute that they replace.

They run on a GPU, or with ``TRITON_INTERPRET=1`` where Triton is installed on any machine.
"""

import importlib
import importlib.util
import inspect
import math
import os

import pytest
import torch

from synther_replay.common import acceleration
from synther_replay.diffusion import edm, network, optimiser
from synther_replay.diffusion.network import LIMITS, NetworkShape, Weights
from synther_replay.diffusion.optimiser import StackAdam

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
launchers = importlib.import_module("synther_replay.diffusion.launchers")
REPLACED = {
    name.lstrip("_"): inspect.unwrap(getattr(module, name))
    for module in (edm, network, optimiser)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and hasattr(function, "__wrapped__") and function.__module__ == module.__name__
}
# Rows, columns and padded columns that fill tiles, and that do not.
SIZES = [(2, 16, 64, 64), (1, 37, 42, 48), (3, 5, 129, 136)]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


@pytest.fixture
def normal():
    """Draws normal numbers."""
    rng = torch.Generator(DEVICE).manual_seed(0)
    return lambda *size, dtype=torch.float32: torch.randn(size, generator=rng, device=DEVICE).to(dtype)


def assert_near(found, expected):
    assert found.dtype == expected.dtype
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def both(name, *arguments):
    """Result of the kernel and of PyTorch, each followed by the arguments, which some change."""
    results = []
    for function in (getattr(launchers, name), REPLACED[name]):
        copies = [one.clone() if isinstance(one, torch.Tensor) else one for one in arguments]
        result = function(*copies)
        result = result if isinstance(result, tuple) else () if result is None else (result,)
        results.append([*result, *(one for one in copies if isinstance(one, torch.Tensor))])
    return zip(*results, strict=True)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request):
    return request.param


@pytest.fixture(params=SIZES, ids=lambda size: "x".join(map(str, size)))
def size(request):
    return request.param


def test_every_replaced_function_has_a_kernel_with_its_arguments():
    assert len(REPLACED) == 12, REPLACED
    for name, function in REPLACED.items():
        assert inspect.signature(getattr(launchers, name)) == inspect.signature(function), name


def test_noise_features_and_targets(normal, size, dtype):
    models, rows, dim, width = size
    x, noise = normal(2, models, rows, dim), normal(2, models, rows, dim)
    sigma = (normal(2, models, rows, 1) * 1.2 - 1.2).exp()
    for found, expected in both("corrupt", x, sigma, noise, 3 * normal(models, 1, 8), width, 24, dtype):
        assert_near(found, expected)


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("sigma", [0.002, 1.0, 80.0])
def test_features_of_one_level(normal, models, sigma, dtype):
    level = torch.full((1, 1, 1), sigma, device=DEVICE)
    for found, expected in both("level_features", level, 3 * normal(models, 1, 8), 24, dtype):
        assert_near(found, expected)


def test_squared_error_and_its_gradient(normal, size, dtype):
    models, rows, dim, width = size
    y, target = normal(models, rows, width, dtype=dtype), normal(models, rows, dim)
    for found, expected in both("squared_error", y, target, normal(models)):
        assert_near(found, expected)


def test_scaled_inputs_and_denoised_rows(normal, size, dtype):
    models, rows, dim, width = size
    x, y, sigma = normal(models, rows, dim), normal(models, rows, width, dtype=dtype), normal(1, 1, 1).exp()
    for found, expected in both("scaled_input", x, sigma, width, dtype):
        assert_near(found, expected)
    for found, expected in both("denoised", x, y, sigma):
        assert_near(found, expected)


def test_layers(normal, size, dtype):
    models, rows, _, width = size
    h, through, unit = (normal(models, rows, width, dtype=dtype) for _ in range(3))
    biases = normal(models, 5 * width, dtype=dtype)[:, width : 4 * width].unflatten(1, (3, width))  # strided
    for found, expected in both("biased_silu", h, biases[:, :1]):
        assert_near(found, expected)
    for found, expected in both("add_through_relu", h, through, unit.relu(), torch.empty_like(h)):
        assert_near(found, expected)
    # `clone` in `both` makes copies contiguous: called directly with what is strided
    assert_near(launchers.running_sum(biases), REPLACED["running_sum"](biases))
    for k in range(3):
        found, expected = torch.empty_like(h), torch.empty_like(h)
        launchers.shifted_relu(h, biases[:, k : k + 1], found)
        REPLACED["shifted_relu"](h, biases[:, k : k + 1], expected)
        assert_near(found, expected)
    for found, expected in zip(
        launchers.biased_silu(h, biases[:, 1:2]), REPLACED["biased_silu"](h, biases[:, 1:2]), strict=True
    ):
        assert_near(found, expected)


@pytest.mark.parametrize("one_level", [False, True])
def test_gains(normal, size, dtype, one_level):
    models, rows, _, width = size
    y, x = normal(models, rows, width, dtype=dtype), 2 * normal(models, rows, width, dtype=dtype)
    gains = normal(models, 1 if one_level else rows, 2 * width, dtype=dtype)
    found, expected = y.clone(), y.float()
    launchers.add_gained(found, gains, x, LIMITS)
    REPLACED["add_gained"](expected, gains.float(), x.float(), LIMITS)  # in bf16 it would round in between
    assert_near(found, expected.to(dtype))
    for found, expected in both("gained_gradient", y, x, LIMITS):
        assert_near(found, expected)


@pytest.mark.parametrize("models", [1, 2])
def test_adam(normal, dtype, models):
    parameters, gradient = normal(models, 1_096), normal(models, 1_096, dtype=dtype)
    gradient[0] *= 0.01  # below the limit of the norm
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True, dtype=torch.float32)
    rates = torch.tensor([3e-3, 1.2], device=DEVICE)
    moments = normal(models, 1_096), normal(models, 1_096).square()
    state = (parameters, parameters.to(dtype), gradient, *moments)
    for found, expected in both("adam", *state, norm, rates, 1.0, 0.9, 0.99):
        assert_near(found, expected)


def test_nan_stays_nan(normal):
    bad = normal(1, 16, 64)
    bad[0, 3, 5] = math.nan
    out = torch.empty_like(bad)
    launchers.shifted_relu(bad, torch.zeros(1, 1, 64, device=DEVICE), out)
    assert out.isnan().sum() == 1
    launchers.add_through_relu(torch.zeros_like(bad), torch.ones_like(bad), bad, out)
    total = torch.zeros(1, device=DEVICE)
    launchers.squared_error(bad, torch.zeros_like(bad), total)
    assert total.isnan().all()
    y = torch.zeros_like(bad)
    launchers.add_gained(y, torch.ones(1, 16, 128, device=DEVICE), bad, LIMITS)
    assert y.isnan().sum() == 1


@pytest.mark.parametrize("direct", [False, True])
def test_a_training_step_by_kernels_equals_one_by_pytorch(normal, direct, monkeypatch):
    shape = NetworkShape(dim=42, width=24, depth=2, embedding=16, fourier=6, direct=direct)
    initial = network.initialise(shape, 2, torch.Generator().manual_seed(0)).to(DEVICE)
    x, noise, sigma = normal(2, 9, 42), normal(2, 9, 42), normal(2, 9, 1).exp()
    frequencies, ran = normal(2, 1, 3), []

    def step():
        adam = StackAdam(initial.clone(), torch.float32, betas=(0.9, 0.99), clip=1.0)
        total = torch.zeros(2, device=DEVICE)
        weights, gradient = (Weights.of(flat, shape) for flat in (adam.working, adam.gradient))
        for _ in range(3):
            inputs, features, target = edm.corrupt(
                x, sigma, noise, frequencies, shape.padded_dim, shape.padded_features, torch.float32
            )
            y, kept = network.forward(weights, inputs, features)
            network.backward(weights, kept, edm.squared_error(y, target, total), gradient)
            adam.step(torch.tensor([1e-3, 1.0], device=DEVICE))
        return adam.parameters, total, edm.denoise(weights, shape, frequencies, x, 0.7)

    def use(launched):
        for module in (edm, network, optimiser):
            for name in list(vars(module)):
                if (short := name.lstrip("_")) in REPLACED and inspect.isfunction(vars(module)[name]):
                    function = getattr(launchers, short) if launched else REPLACED[short]
                    patch.setattr(module, name, _noted(function, ran) if launched else function)

    results = []
    for launched in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            use(launched)
            results.append(step())
    assert set(ran) == REPLACED.keys() - (set() if direct else {"add_gained", "gained_gradient"})
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def _noted(function, ran):
    def call(*arguments):
        ran.append(function.__name__)
        return function(*arguments)

    return call


@pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
def test_a_kernel_that_does_not_compile_is_replaced_by_pytorch(normal, monkeypatch):
    def fail(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(launchers, "running_sum", fail)
    function = acceleration.by_kernel(REPLACED["running_sum"])
    biases = normal(1, 3, 8)
    with pytest.warns(UserWarning, match="no C compiler"):
        assert torch.equal(function(biases), biases.cumsum(1))
    assert torch.equal(function(biases), biases.cumsum(1))
