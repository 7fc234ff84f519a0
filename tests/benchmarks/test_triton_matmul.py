"""The kernel for products computes what the operations compute.

It runs on a GPU, or with ``TRITON_INTERPRET=1`` where Triton is installed on any machine.
"""

import importlib
import importlib.util
import os

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.agents.cql import CQLSettings, StackedCQL
from synther_replay.benchmarks.agents.edac import EDACSettings, StackedEDAC
from synther_replay.benchmarks.agents.iql import IQLSettings, StackedIQL
from synther_replay.benchmarks.agents.networks import matmul, mlp
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
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.td3bc import StackedTD3BC, TD3BCSettings

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
triton_matmul = importlib.import_module("synther_replay.benchmarks.agents.networks.triton_matmul")
product = triton_matmul.product
STACK = 2


@pytest.fixture
def normal():
    """Draws normal numbers."""
    rng = torch.Generator(DEVICE).manual_seed(0)
    return lambda *size: torch.randn(size, generator=rng, device=DEVICE)


def exact(a, b):
    return torch.bmm(a.double(), b.double()).float()


SIZES = [(64, 64, 64), (256, 128, 192), (40, 24, 130), (17, 1, 5), (130, 6, 256)]


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_operands_may_be_transposed(m, n, k, normal):
    a, b = normal(STACK, m, k).half(), normal(STACK, k, n).half()
    expected = exact(a, b)
    for left in (a, a.mT.contiguous().mT):
        for right in (b, b.mT.contiguous().mT):
            found = product(left, right, dtype=torch.float32)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tile", range(len(triton_matmul._TILES)))
@pytest.mark.parametrize(("m", "n"), [(256, 128), (150, 140)])
def test_all_tiles_give_the_same(tile, m, n, normal, monkeypatch):
    monkeypatch.setattr(triton_matmul, "_TILES", triton_matmul._TILES[tile:])
    monkeypatch.setattr(triton_matmul, "MULTIPROCESSORS", 1)  # the largest will do
    a, b = normal(STACK, m, triton_matmul._LONG).half(), normal(STACK, triton_matmul._LONG, n).half()
    torch.testing.assert_close(product(a, b, dtype=torch.float32), exact(a, b), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_bias_relu_mask_and_factor(m, n, k, normal):
    a, b, bias = normal(STACK, m, k).half(), normal(STACK, k, n).half(), normal(STACK, 1, n).half()
    unit = normal(STACK, m, n).relu().half()
    near = {"atol": 1e-4, "rtol": 1e-3}
    expected = (exact(a, b) + bias.float()).relu().half()
    torch.testing.assert_close(product(a, b, bias=bias, relu=True), expected, **near)
    expected = torch.where(unit > 0, exact(a, b), 0.0).half()
    torch.testing.assert_close(product(a, b, unit=unit), expected, **near)
    assert product(a, b, unit=unit).dtype == torch.half


@pytest.mark.parametrize("add", [False, True])
def test_only_the_output_is_written(add, normal):
    shape = MlpShape(11, 1, 64, 3)
    flat = normal(STACK, shape.parameters)
    before, layers = flat.clone(), Layers.of(flat, shape)
    a, b = normal(STACK, 32, 64).half(), normal(STACK, 32, 64).half()
    product(a.mT, b, factor=0.25, out=layers["w3"], add=add)
    expected = Layers.of(before.clone(), shape)
    expected["w3"].mul_(float(add)).add_(exact(a.mT, b), alpha=0.25)
    for name, part in layers.items():
        torch.testing.assert_close(part, expected[name], atol=1e-5, rtol=1e-5)


def test_values_beyond_fp16_are_clamped_and_nan_stays():
    large, wide = torch.full((1, 16, 16), 300.0, device=DEVICE).half(), torch.ones(1, 16, 16, device=DEVICE).half()
    assert product(large, 300 * wide).eq(65504).all()
    large[0, 0, 0] = torch.nan
    assert product(large, wide, relu=True)[0, 0].isnan().all()


def test_strided_outputs_are_refused(normal):
    a, b = normal(STACK, 16, 16).half(), normal(STACK, 16, 16).half()
    with pytest.raises(ValueError, match="contiguous rows"):
        product(a, b, out=normal(STACK, 16, 16).mT)
    with pytest.raises(ValueError, match="contiguous rows"):
        product(a, b, unit=normal(STACK, 16, 16).mT)


@pytest.mark.parametrize(("outputs", "layers"), [(1, 3), (6, 2), (1, 4)])
def test_networks_compute_the_same_with_and_without_it(outputs, layers, normal, monkeypatch):
    shape = MlpShape(11, outputs, 64, layers)
    parameters = initialise_like_torch(shape, STACK, torch.Generator().manual_seed(1)).to(DEVICE)
    x = padded(normal(STACK, 80, 11), columns=shape.padded_inputs)
    rows = 80 if outputs == 1 else 48  # that it learns from may be fewer than it was asked about
    d_y, d_input_gradient = normal(STACK, rows, outputs) / rows, normal(STACK, 80, shape.padded_inputs) / 80
    uses = []
    monkeypatch.setattr(mlp, "uses_fp16", lambda device: True)

    def act(kernel):
        monkeypatch.setattr(matmul, "_has_kernel", lambda a: (uses.append(kernel), kernel)[1])
        w = operands(parameters, shape)
        y, kept = forward(w, x)
        kept = kept.cut((slice(None), slice(rows)))
        gradient = torch.zeros_like(parameters)
        backward(w, kept, d_y, Layers.of(gradient, shape))
        found = [y, gradient.clone(), backward_to_inputs(w, kept, d_y)]
        if outputs == 1:
            steps = layer_gradients(w, kept)
            add_double_backward(w, kept, steps, d_input_gradient, Layers.of(gradient, shape))
            found += [steps[-1], gradient]
        return found

    for found, expected in zip(act(True), act(False), strict=True):
        assert found.dtype == expected.dtype == torch.float32
        assert torch.linalg.norm(found - expected) < 0.01 * torch.linalg.norm(expected)
    assert set(uses) == {True, False}


SMALL = {"batch_size": 64, "hidden": 64, "hidden_layers": 3, "updates_per_call": 2}
LEARNERS = {
    "td3bc": (StackedTD3BC, TD3BCSettings(**SMALL)),
    "iql": (StackedIQL, IQLSettings(**SMALL)),
    "edac": (StackedEDAC, EDACSettings(**SMALL, critics=3)),
    "cql": (StackedCQL, CQLSettings(**SMALL, asked=2)),
}


@pytest.mark.parametrize("algo", LEARNERS)
def test_learners_learn_the_same_with_and_without_it(algo, normal, monkeypatch):
    spec = TransitionSpec.from_spaces(Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,)))
    made = normal(300, spec.dim)
    made[:, spec.actions], made[:, spec.terminated] = made[:, spec.actions].tanh(), 0.0
    monkeypatch.setattr(mlp, "uses_fp16", lambda device: True)

    def learned(kernel):
        monkeypatch.setattr(matmul, "_has_kernel", lambda a: kernel and a.dtype == torch.half)
        build, settings = LEARNERS[algo]
        learner = build(SharedRows(Transitions(spec, made), device=DEVICE), 2, settings, seed=0)
        learner.learn()
        return learner

    found, expected = learned(True), learned(False)
    for one, other in ((found.policy, expected.policy), (found.critic, expected.critic)):
        assert torch.linalg.norm(one.mean - other.mean) < 0.01 * torch.linalg.norm(other.mean)
