"""The kernels compute what the operations compute.

They run on a GPU, or with ``TRITON_INTERPRET=1`` where Triton is installed on any machine.
"""

import importlib
import importlib.util
import os

import pytest
import torch

from synther_replay.benchmarks.agents.networks import critics, torch_networks
from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.critics import TorchCritics
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, forward, initialise, padded
from synther_replay.benchmarks.agents.networks.torch_networks import LearningTorchNetwork

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
HIDDEN, BATCH = (64, 64) if INTERPRETED else (256, 256)
# The interpreter takes seconds for what a GPU does in microseconds. 16 critics use the tiles for many networks.
MANY = 3 if INTERPRETED else 40
CRITICS = [(1, 2, 23), (2, 8, 90)] if INTERPRETED else [(1, 2, 23), (8, 2, 23), (2, 10, 90)]
UPDATES = 3 if INTERPRETED else 5
_triton_networks = importlib.import_module("synther_replay.benchmarks.agents.networks.triton_networks")
LearningTritonNetwork, TritonCritics = _triton_networks.LearningTritonNetwork, _triton_networks.TritonCritics
policy_outputs = _triton_networks.policy_outputs


@pytest.fixture(autouse=True)
def floats(monkeypatch):
    """The PyTorch operations that kernels are compared with use fp32, also on a GPU."""
    for module in (critics, torch_networks):
        monkeypatch.setattr(module, "operands", Layers.of)


@pytest.fixture
def normal():
    """Draws normal numbers."""
    rng = torch.Generator(DEVICE).manual_seed(0)
    return lambda *size: torch.randn(size, generator=rng, device=DEVICE)


def drawn(shape, stack, normal):
    """Parameters whose biases are not zero."""
    parameters = initialise(shape, stack, torch.Generator().manual_seed(0)).to(DEVICE)
    layers = Layers.of(parameters, shape)
    for biases in (layers["b2"], layers["b3"], layers["w1"][:, shape.inputs]):
        biases.copy_(normal(*biases.shape))
    return parameters


def rates_of(adam, count):
    return adam.rates(torch.zeros((), dtype=torch.float64, device=DEVICE), count)


def assert_near(found, expected, share):
    """Compare results of fp16 products by the relative distance of whole tensors."""
    assert torch.linalg.norm(found - expected) < share * torch.linalg.norm(expected)


def assert_mostly_near(found, expected):
    """Compare row by row; in a few rows, a relu is active on one side only."""
    distance = torch.linalg.norm(found - expected, dim=-1) / torch.linalg.norm(expected, dim=-1)
    assert (distance < 0.01).float().mean() > 0.9


def test_targets_of_critics_follow_when_they_should_and_only_then(normal):
    shape = MlpShape(23, 1, HIDDEN)
    values = drawn(shape, 8, normal)
    updater = TritonCritics(values, Adam(values[:4], 3e-4), shape, critics=2, batch_size=BATCH, target_speed=0.005)
    inputs = padded(normal(2, 2, BATCH, 23), columns=shape.padded_inputs)
    bellman, excluded = normal(2, 2, BATCH), torch.zeros(2, 2, device=DEVICE)
    rates = rates_of(updater.adam, 2)
    before, copies = values.clone(), updater.layers.fp16.clone()
    updater.update(inputs, bellman, excluded, rates[0], update_targets=False)
    assert torch.equal(values[4:], before[4:])
    assert torch.equal(updater.layers.fp16[4:], copies[4:])
    assert not torch.equal(values[:4], before[:4])
    updater.update(inputs, bellman, excluded, rates[1])
    torch.testing.assert_close(values[4:], before[4:].lerp(values[:4], 0.005))
    assert torch.equal(updater.layers.fp16, values.half())


@pytest.mark.parametrize("norm", [{}, {"layer_norm": True}, {"layer_norm": True, "alternating": True}])
@pytest.mark.parametrize(("agents", "critics", "inputs"), CRITICS)
def test_critics_learn_as_those_of_the_operations(agents, critics, inputs, norm, normal):
    shape = MlpShape(inputs, 1, HIDDEN, **norm)
    start = drawn(shape, 2 * agents * critics, normal)
    problems = [
        (
            padded(normal(2, agents, BATCH, inputs), columns=shape.padded_inputs),
            normal(2, agents, BATCH),
            torch.where(normal(agents, critics).argsort(-1).argsort(-1) < 2, 0.0, torch.inf),
        )
        for _ in range(UPDATES)
    ]
    found, input_gradients = [], []
    for kind, options in ((TorchCritics, {}), (TritonCritics, {"batch_size": BATCH})):
        values = start.clone()
        adam = Adam(values[: agents * critics], 3e-4, weight_decay=10.0 if norm else 0.0)
        updater = kind(values, adam, shape, critics=critics, target_speed=0.005, **options)
        updater.caution.copy_(torch.arange(agents) / 2)
        updater.bounds[:, -1] = torch.tensor([-0.5, 0.8])  # of one agent; the others have none
        for problem, rates in zip(problems, rates_of(adam, len(problems)), strict=True):
            updater.update(*problem, rates)
        q = updater.first.forward(problems[0][0][0])
        input_gradients.append(updater.first.backward_to_inputs(torch.ones_like(q) / BATCH))
        found.append((adam.mean, adam.square, q, values - start))
    # Adam divides small gradients by their own size. Operations with halves are as far from those with floats: of one
    # agent's values 1.7e-3 in the median of 40 problems, 6.7e-3 at most.
    for ours, expected, share in zip(found[1], found[0], (0.01, 3e-3, 5e-3, 0.05), strict=True):
        assert_near(ours, expected, share)
    assert_mostly_near(input_gradients[1], input_gradients[0])


@pytest.mark.parametrize(("agents", "inputs", "outputs"), [(1, 17, 12), (8, 11, 6), (2, 78, 24)])
def test_next_actions_are_those_of_the_operations(agents, inputs, outputs, normal):
    shape = MlpShape(inputs, outputs, HIDDEN)
    policy = drawn(shape, agents, normal)
    rows = normal(agents, 640, inputs + 9)
    found = policy_outputs(policy, shape, rows, slice(5, 5 + inputs))
    expected, _ = forward(Layers.of(policy, shape), padded(rows[..., 5 : 5 + inputs], columns=shape.padded_inputs))
    assert_near(found, expected, 2e-3)
    with pytest.raises(ValueError, match="multiple of 64"):
        policy_outputs(policy, shape, rows[:, :630], slice(5, 5 + inputs))


@pytest.mark.parametrize(
    ("stack", "inputs", "outputs", "rows", "with_targets"),
    [(1, 17, 6, 1, False), (2, 17, 1, 2, True), (MANY, 27, 8, 1, False)],
)
def test_networks_learn_as_those_of_the_operations(stack, inputs, outputs, rows, with_targets, normal, monkeypatch):
    if INTERPRETED and stack == MANY:
        monkeypatch.setattr(_triton_networks, "MULTIPROCESSORS", 1)  # the tiles for many rows, on few
    shape = MlpShape(inputs, outputs, HIDDEN)
    start = drawn(shape, stack * (1 + with_targets), normal)
    # More rows than it learns from, and those of a network further apart than they are long.
    seen = [padded(normal(stack, 3 * BATCH, inputs), columns=shape.padded_inputs)[:, : rows * BATCH] for _ in range(4)]
    wanted = [normal(stack, BATCH, outputs) for _ in seen]
    found, input_gradients = [], []
    for kind, options in ((LearningTorchNetwork, {}), (LearningTritonNetwork, {"batch_size": BATCH})):
        parameters = start.clone()
        adam = Adam(parameters[:stack], 3e-4)
        network = kind(parameters, adam, shape, target_speed=0.005, **options)
        for k, rates in enumerate(rates_of(adam, len(seen))):
            out = network.forward(seen[k])
            d_out = 2 * (out[:, :BATCH] - wanted[k]) / BATCH
            network.learn(d_out, rates, update_targets=with_targets and k % 2 == 1)
        input_gradients.append(network.backward_to_inputs(d_out))
        found.append((adam.mean, adam.square, out, parameters - start))
    for ours, expected, share in zip(found[1], found[0], (0.01, 5e-3, 2e-3, 0.05), strict=True):
        assert_near(ours, expected, share)
    assert_mostly_near(input_gradients[1], input_gradients[0])
    assert torch.equal(network.layers.fp16, parameters.half())


def test_a_network_follows_parameters_from_outside(normal):
    shape = MlpShape(5, 2, HIDDEN)
    parameters = drawn(shape, 2, normal)
    network = LearningTritonNetwork(parameters, Adam(parameters, 3e-4), shape, batch_size=BATCH)
    parameters *= 0.5
    network.refresh()
    inputs = padded(normal(2, BATCH, 5), columns=shape.padded_inputs)
    assert_near(network.forward(inputs), forward(Layers.of(parameters, shape), inputs)[0], 2e-3)
