"""Our offline agents against CORL's classes, update by update; requires CORL_DIR, a checkout of CORL.

Both start from the same networks and use the same batches and noise, in double precision.
"""

import inspect
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.agents.cql import CQLSettings, StackedCQL
from synther_replay.benchmarks.agents.edac import EDACSettings, StackedEDAC
from synther_replay.benchmarks.agents.iql import IQLSettings, StackedIQL
from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.td3bc import StackedTD3BC, TD3BCSettings
from synther_replay.benchmarks.peers.corl_scripts import FILES, import_script

CORL = os.environ.get("CORL_DIR")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not CORL, reason="CORL_DIR does not name a checkout of CORL"),
]
STATES, ACTIONS, HIDDEN, BATCH, ROUNDS = 5, 2, 256, 64, 6  # CORL's TD3+BC has no other width
SPEC = TransitionSpec.from_spaces(Box(-np.inf, np.inf, (STATES,)), Box(-1, 1, (ACTIONS,)))


@pytest.fixture(autouse=True)
def double():
    """Double precision: equal computations give equal results."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def rows(rng):
    made = 2 * torch.randn(300, SPEC.dim, generator=rng)
    made[:, SPEC.actions] = made[:, SPEC.actions].tanh()
    made[:, SPEC.terminated] = (torch.rand(300, 1, generator=rng) < 0.2).double()
    shared = SharedRows(Transitions(SPEC, made), device=torch.device("cpu"))
    shared.rows, shared.mean, shared.std = (part.double() for part in (shared.rows, shared.mean, shared.std))
    return shared


def script(algo):
    dataset = SimpleNamespace(observations=np.zeros((1, STATES)), actions=np.zeros((1, ACTIONS)), name="none")
    return import_script(Path(CORL) / "algorithms" / "offline" / f"{FILES.get(algo, algo)}.py", dataset)


def pairs(flat, shape, module):
    """Pairs of weights and biases: our network, and a module with the same linear layers."""
    ours = Layers.of(flat[None], shape)
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert len(linear) == ours.last
    for k, layer in enumerate(linear, 1):
        yield ours[f"w{k}"][0, : layer.in_features].T, layer.weight
        yield (ours["w1"][0, shape.inputs] if k == 1 else ours[f"b{k}"][0, 0]), layer.bias


def copied(flat, shape, module):
    """Return the module with the weights of our network."""
    with torch.no_grad():
        for ours, theirs in pairs(flat, shape, module):
            theirs.copy_(ours)
    return module.double()


def assert_same(flat, shape, module, before, *, atol=1e-6):
    """Compare parameters; the default tolerance covers CORL's single-precision constants (an Adam step is 3e-4)."""
    for (ours, theirs), (first, _) in zip(pairs(flat, shape, module), pairs(before, shape, module), strict=True):
        assert not torch.equal(theirs, first)  # parameters have changed
        torch.testing.assert_close(ours, theirs.data, rtol=0, atol=atol)


def stir(learner, rng):
    """Move away from the initial weights, with which the critics nearly agree."""
    for part in (learner.policy.parameters, learner.critic.parameters):
        part.add_(0.03 * torch.randn(part.shape, generator=rng))
    learner.values[len(learner.values) // 2 :] = learner.critic.parameters


def fields(batch):
    return batch.split((STATES, ACTIONS, 1, STATES, 1), -1)


def test_td3bc(rows, rng, monkeypatch):
    corl = script("td3bc")
    learner = StackedTD3BC(rows, 1, TD3BCSettings(batch_size=BATCH, hidden=HIDDEN))
    first = [learner.policy.parameters[0].clone(), *learner.critic.parameters.clone()]
    actor = copied(first[0], learner.policy_shape, corl.Actor(STATES, ACTIONS, 1.0))
    critics = [copied(flat, learner.critic_shape, corl.Critic(STATES, ACTIONS)) for flat in first[1:]]
    actor_adam, *adams = (torch.optim.Adam(module.parameters(), lr=3e-4) for module in (actor, *critics))
    theirs = corl.TD3_BC(1.0, actor, actor_adam, *itertools.chain.from_iterable(zip(critics, adams, strict=True)))
    batches = rows.draw(ROUNDS, 1, 2, BATCH, rng=rng)
    noise = torch.randn(ROUNDS, 1, 2, BATCH, ACTIONS, generator=rng)
    learner.update(batches, noise)
    for batch, unit in zip(batches.flatten(0, 2), noise.flatten(0, 2), strict=True):
        monkeypatch.setattr(torch, "randn_like", lambda like, unit=unit: unit)
        theirs.train(fields(batch))
    assert_same(learner.policy.parameters[0], learner.policy_shape, actor, first[0])
    assert_same(learner.target_policy[0], learner.policy_shape, theirs.actor_target, first[0])
    targets = theirs.critic_1_target, theirs.critic_2_target
    for flat, module, before in zip(learner.values, (*critics, *targets), (*first[1:], *first[1:]), strict=True):
        assert_same(flat, learner.critic_shape, module, before)


@pytest.mark.parametrize("deterministic", [False, True])
def test_iql(deterministic, rows, rng):
    corl = script("iql")
    settings = IQLSettings(batch_size=BATCH, hidden=HIDDEN, deterministic=deterministic, steps=3 * ROUNDS)
    learner = StackedIQL(rows, 1, settings)
    first = [part.parameters[0].clone() for part in (learner.policy, learner.value)] + [
        *learner.critic.parameters.clone()
    ]
    kind = corl.DeterministicPolicy if deterministic else corl.GaussianPolicy
    actor = copied(first[0], learner.policy_shape, kind(STATES, ACTIONS, 1.0))
    value = copied(first[1], learner.value_shape, corl.ValueFunction(STATES))
    critics = corl.TwinQ(STATES, ACTIONS).double()
    for flat, one in zip(first[2:], (critics.q1, critics.q2), strict=True):
        copied(flat, learner.critic_shape, one)
    adam, value_adam = (torch.optim.Adam(module.parameters(), lr=3e-4) for module in (actor, value))
    # CORL halves the critic loss, which affects Adam only through its epsilon.
    critic_adam = torch.optim.Adam(critics.parameters(), lr=3e-4, eps=0.5e-8)
    theirs = corl.ImplicitQLearning(1.0, actor, adam, critics, critic_adam, value, value_adam, max_steps=3 * ROUNDS)
    batches = rows.draw(2 * ROUNDS, 1, BATCH, rng=rng)
    learner.update(batches)
    for batch in batches.flatten(0, 1):
        theirs.train(fields(batch))
    assert_same(learner.policy.parameters[0], learner.policy_shape, actor, first[0])
    assert_same(learner.value.parameters[0], learner.value_shape, value, first[1])
    modules = critics.q1, critics.q2, theirs.q_target.q1, theirs.q_target.q2
    for flat, module, before in zip(learner.values, modules, (*first[2:], *first[2:]), strict=True):
        assert_same(flat, learner.critic_shape, module, before)
    if not deterministic:
        torch.testing.assert_close(learner.log_std.parameters[0], actor.log_std.data, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("eta", [1.0, 5.0])
def test_edac(eta, rows, rng, monkeypatch):
    corl, count = script("edac"), 4
    learner = StackedEDAC(rows, 1, EDACSettings(batch_size=BATCH, hidden=HIDDEN, critics=count, eta=eta))
    stir(learner, rng)
    policy, first = learner.policy.parameters.clone(), learner.values.clone()
    actor = corl.Actor(STATES, ACTIONS, HIDDEN).double()
    critic = corl.VectorizedCritic(STATES, ACTIONS, HIDDEN, count).double()

    def all_pairs():
        """Pairs of parameters; their policy has separate layers for mean and standard deviation."""
        ours = Layers.of(learner.policy.parameters, learner.policy_shape)
        *trunk, means, spreads = (layer for layer in actor.modules() if isinstance(layer, nn.Linear))
        for k, layer in enumerate(trunk, 1):
            yield ours[f"w{k}"][0, : layer.in_features].T, layer.weight
            yield (ours["w1"][0, STATES] if k == 1 else ours[f"b{k}"][0, 0]), layer.bias
        for layer, part in ((means, slice(0, ACTIONS)), (spreads, slice(ACTIONS, None))):
            yield ours["w4"][0, :, part].T, layer.weight
            yield ours["b4"][0, 0, part], layer.bias
        for flat, ensemble in ((learner.values[:count], theirs.critic), (learner.values[count:], theirs.target_critic)):
            ours = Layers.of(flat, learner.critic_shape)
            for k, layer in enumerate(ensemble.critic[::2], 1):
                yield ours[f"w{k}"][:, : layer.in_features], layer.weight
                yield (ours["w1"][:, STATES + ACTIONS, None] if k == 1 else ours[f"b{k}"]), layer.bias

    adams = [torch.optim.Adam(module.parameters(), lr=3e-4) for module in (actor, critic)]
    theirs = corl.EDAC(actor, adams[0], critic, adams[1], eta=eta, alpha_learning_rate=3e-4)
    with torch.no_grad():
        for ours, other in all_pairs():
            other.copy_(ours)
    batches = rows.draw(ROUNDS, 1, BATCH, rng=rng)
    noise = torch.randn(ROUNDS, 1, 3, BATCH, ACTIONS, generator=rng)
    units = iter(noise.flatten(0, 2))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: next(units))
    logarithm = torch.log
    for batch, unit in zip(batches, noise, strict=True):
        learner.update(batch, unit)
        with monkeypatch.context() as without:  # what CORL adds to keep it from zero
            without.setattr(torch, "log", lambda x: logarithm(x - 1e-6))
            theirs.update(fields(batch[0]))
    assert not torch.equal(learner.policy.parameters, policy)
    assert not torch.equal(learner.values, first)
    for ours, other in all_pairs():
        torch.testing.assert_close(ours, other.data, rtol=0, atol=1e-6)
    torch.testing.assert_close(learner.log_alpha.parameters[0], theirs.log_alpha.data.double(), rtol=0, atol=1e-6)


def test_cql(rows, rng, monkeypatch):
    corl, settings = script("cql"), CQLSettings(batch_size=BATCH, hidden=HIDDEN)
    learner = StackedCQL(rows, 1, settings)
    stir(learner, rng)
    first = [learner.policy.parameters[0].clone(), *learner.critic.parameters.clone()]
    # CORL adds an offset to the logarithms of deviations, which is in our last bias from the beginning. Where it also
    # learns this offset and a factor, here they stay, because ours learns by the last layer alone.
    actor = copied(first[0], learner.policy_shape, corl.TanhGaussianPolicy(STATES, ACTIONS, 1.0, log_std_offset=0.0))
    critics = [copied(flat, learner.critic_shape, corl.FullyConnectedQFunction(STATES, ACTIONS)) for flat in first[1:]]
    config = corl.TrainConfig(device="cpu")  # these defaults are what CORL has for locomotion
    adams = [torch.optim.Adam(module.parameters(), config.qf_lr) for module in critics]
    adams.append(torch.optim.Adam(actor.base_network.parameters(), config.policy_lr))
    parts = itertools.chain.from_iterable(zip((*critics, actor), adams, strict=True))
    taken = inspect.signature(corl.ContinuousCQL).parameters
    options = {name: value for name, value in vars(config).items() if name in taken}
    theirs = corl.ContinuousCQL(*parts, target_entropy=-float(ACTIONS), **options)
    theirs.log_alpha.double()
    batches, asked = rows.draw(ROUNDS, 1, BATCH, rng=rng), settings.asked
    noise = torch.randn(ROUNDS, 1, 2 + 2 * asked, BATCH, ACTIONS, generator=rng)
    chance = 2 * torch.rand(ROUNDS, 1, asked, BATCH, ACTIONS, generator=rng) - 1
    # CORL has the actions of a state side by side.
    units = (part.transpose(0, 1).squeeze(1) for one in noise[:, 0] for part in one.split((1, 1, asked, asked)))
    uniform = iter(chance[:, 0].transpose(1, 2))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: next(units))
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda like, *_: like.copy_(next(uniform)))
    for batch, *drawn in zip(batches, noise, chance, strict=True):
        learner.update(batch, *drawn)
        theirs.train(fields(batch[0]))
    exactly = {"atol": 1e-11}  # the temperature, whose steps are small, tells by as little whether it came first
    assert_same(learner.policy.parameters[0], learner.policy_shape, actor, first[0], **exactly)
    modules = *critics, theirs.target_critic_1, theirs.target_critic_2
    for flat, module, before in zip(learner.values, modules, (*first[1:], *first[1:]), strict=True):
        assert_same(flat, learner.critic_shape, module, before, **exactly)
    log_alpha = theirs.log_alpha.constant.data
    torch.testing.assert_close(learner.log_alpha.parameters[0, 0], log_alpha, rtol=0, **exactly)
