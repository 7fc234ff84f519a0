"""The offline algorithms of many seeds against plain ones of one seed: modules, autograd and torch's Adam."""

import copy
import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.agents.augment import AUGMENTATIONS
from synther_replay.benchmarks.agents.cql import CQLSettings, StackedCQL
from synther_replay.benchmarks.agents.edac import EDACSettings, StackedEDAC
from synther_replay.benchmarks.agents.iql import IQLSettings, StackedIQL
from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.policy import policies_of
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.td3bc import StackedTD3BC, TD3BCSettings
from synther_replay.benchmarks.offline.settings import NETWORKS

OBSERVATIONS, ACTIONS, HIDDEN, BATCH, AGENTS = 5, 2, 16, 12, 3
CPU = torch.device("cpu")
SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))
WIDTHS = (OBSERVATIONS, ACTIONS, 1, OBSERVATIONS, 1)


@pytest.fixture(autouse=True)
def double():
    """In double precision what is equal is equal."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def transitions(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    rows = 3 * torch.randn(count, SPEC.dim, generator=rng) + 1
    rows[:, SPEC.actions] = rows[:, SPEC.actions].clamp(-1, 1)
    rows[:, SPEC.terminated] = (torch.rand(count, 1, generator=rng) < 0.2).to(rows.dtype)
    return Transitions(SPEC, rows)


def shared_rows(count=200, **options):
    made = SharedRows(transitions(count), device=CPU, **options)
    made.rows, made.mean, made.std = (part.double() for part in (made.rows, made.mean, made.std))
    return made


def network(flat, shape, *last):
    """The same network as modules."""
    w = Layers.of(flat.clone()[None], shape)
    widths = [shape.inputs, *[HIDDEN] * shape.hidden_layers, shape.outputs]
    linear = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    with torch.no_grad():
        linear[0].bias.copy_(w["w1"][0, shape.inputs])
        for k, layer in enumerate(linear, 1):
            layer.weight.copy_(w[f"w{k}"][0, : layer.in_features].T)
            if k > 1:
                layer.bias.copy_(w[f"b{k}"][0, 0])
    activated = [part for layer in linear[:-1] for part in (layer, nn.ReLU())]
    return nn.Sequential(*activated, linear[-1], *last)


def follow(target, source, speed):
    with torch.no_grad():
        for followed, parameter in zip(target.parameters(), source.parameters(), strict=True):
            followed.lerp_(parameter, speed)


def step(optimiser, loss):
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


class PlainTD3BC:
    """One agent, as the paper describes it."""

    def __init__(self, learner, agent):
        self.policy = network(learner.policy.parameters[agent], learner.policy_shape, nn.Tanh())
        self.critics = [network(learner.critic.parameters[2 * agent + k], learner.critic_shape) for k in range(2)]
        self.target_policy, self.targets = copy.deepcopy(self.policy), copy.deepcopy(self.critics)
        self.policy_optimiser = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.critic_optimisers = [torch.optim.Adam(critic.parameters(), lr=3e-4) for critic in self.critics]

    def update(self, rows, noise):
        for batch, unit in zip(rows, noise, strict=True):
            states, actions, rewards, following, terminated = batch.split(WIDTHS, -1)
            with torch.no_grad():
                next_actions = (self.target_policy(following) + (0.2 * unit).clamp(-0.5, 0.5)).clamp(-1, 1)
                there = torch.cat((following, next_actions), -1)
                smallest = torch.minimum(*(target(there) for target in self.targets))
                wanted = rewards + 0.99 * (1 - terminated) * smallest
            for critic, optimiser in zip(self.critics, self.critic_optimisers, strict=True):
                step(optimiser, nn.functional.mse_loss(critic(torch.cat((states, actions), -1)), wanted))
        chosen = self.policy(states)
        value = self.critics[0](torch.cat((states, chosen), -1))
        weight = 2.5 / value.abs().mean().detach()
        step(self.policy_optimiser, -weight * value.mean() + nn.functional.mse_loss(chosen, actions))
        for target, source in ((self.target_policy, self.policy), *zip(self.targets, self.critics, strict=True)):
            follow(target, source, 0.005)


class PlainIQL:
    """One agent, as the paper describes it."""

    def __init__(self, learner, agent):
        self.settings = learner.settings
        self.policy = network(learner.policy.parameters[agent], learner.policy_shape, nn.Tanh())
        self.log_std = nn.Parameter(learner.log_std.parameters[agent].clone())
        self.value = network(learner.value.parameters[agent], learner.value_shape)
        self.critics = [network(learner.critic.parameters[2 * agent + k], learner.critic_shape) for k in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.critic_optimiser = torch.optim.Adam([p for q in self.critics for p in q.parameters()], lr=3e-4)
        self.value_optimiser = torch.optim.Adam(self.value.parameters(), lr=3e-4)
        self.policy_optimiser = torch.optim.Adam([*self.policy.parameters(), self.log_std], lr=3e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.policy_optimiser, self.settings.steps)

    def update(self, batch):
        states, actions, rewards, following, terminated = batch.split(WIDTHS, -1)
        pairs = torch.cat((states, actions), -1)
        with torch.no_grad():
            next_value = self.value(following)
            smallest = torch.minimum(*(target(pairs) for target in self.targets))
        advantage = smallest - self.value(states)
        weight = torch.where(advantage < 0, 1 - self.settings.expectile, self.settings.expectile)
        step(self.value_optimiser, (weight * advantage.square()).mean())
        wanted = rewards + 0.99 * (1 - terminated) * next_value
        losses = [nn.functional.mse_loss(critic(pairs), wanted) for critic in self.critics]
        step(self.critic_optimiser, sum(losses))  # the paper's code halves it: with Adam the same but for its epsilon
        for target, source in zip(self.targets, self.critics, strict=True):
            follow(target, source, self.settings.target_speed)
        emphasis = (self.settings.beta * advantage.detach()).exp().clamp(max=100)[:, 0]
        mean = self.policy(states)
        if self.settings.deterministic:
            loss = (mean - actions).square().sum(-1)
        else:
            loss = -torch.distributions.Normal(mean, self.log_std.exp()).log_prob(actions).sum(-1)
        step(self.policy_optimiser, (emphasis * loss).mean())
        self.schedule.step()


class PlainEDAC:
    """One agent, as the paper describes it."""

    def __init__(self, learner, agent):
        self.eta, count = learner.settings.eta, learner.settings.critics
        self.policy = network(learner.policy.parameters[agent], learner.policy_shape)
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.critics = [
            network(learner.critic.parameters[count * agent + k], learner.critic_shape) for k in range(count)
        ]
        self.targets = copy.deepcopy(self.critics)
        critics = [parameter for critic in self.critics for parameter in critic.parameters()]
        parts = (self.policy.parameters(), critics, [self.log_alpha])
        self.policy_optimiser, self.critic_optimiser, self.alpha_optimiser = (
            torch.optim.Adam(part, lr=3e-4) for part in parts
        )

    def act(self, states, unit):
        mean, log_std = self.policy(states).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        u = mean + normal.stddev * unit
        return u.tanh(), (normal.log_prob(u) - torch.log(1 - u.tanh() ** 2)).sum(-1, keepdim=True)

    def update(self, batch, noise):
        states, actions, rewards, following, terminated = batch.split(WIDTHS, -1)
        _, log_prob = self.act(states, noise[0])
        step(self.alpha_optimiser, -(self.log_alpha * (log_prob.detach() - ACTIONS)).mean())
        alpha = self.log_alpha.exp().detach()
        chosen, log_prob = self.act(states, noise[1])
        pairs = torch.cat((states, chosen), -1)
        smallest = torch.stack([critic(pairs) for critic in self.critics]).amin(0)
        step(self.policy_optimiser, (alpha * log_prob - smallest).mean())
        with torch.no_grad():
            next_actions, log_prob = self.act(following, noise[2])
            pairs = torch.cat((following, next_actions), -1)
            smallest = torch.stack([target(pairs) for target in self.targets]).amin(0)
            wanted = rewards + 0.99 * (1 - terminated) * (smallest - alpha * log_prob)
        loss, units = 0.0, []
        for critic in self.critics:
            asked = actions.clone().requires_grad_()
            value = critic(torch.cat((states, asked), -1))
            loss = loss + nn.functional.mse_loss(value, wanted)
            (slope,) = torch.autograd.grad(value.sum(), asked, create_graph=True)
            units.append(slope / (slope.norm(dim=-1, keepdim=True) + 1e-10))
        alignment = sum((one * other).sum(-1) for one, other in itertools.permutations(units, 2))
        step(self.critic_optimiser, loss + self.eta * alignment.mean() / (len(units) - 1))
        for target, source in zip(self.targets, self.critics, strict=True):
            follow(target, source, 0.005)


class PlainCQL(PlainEDAC):
    """One agent, as the paper describes it, with importance sampling and without a Lagrange multiplier."""

    def __init__(self, learner, agent):
        self.weight = learner.settings.weight
        self.policy = network(learner.policy.parameters[agent], learner.policy_shape)
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.critics = [network(learner.critic.parameters[2 * agent + k], learner.critic_shape) for k in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.policy_optimiser = torch.optim.Adam(self.policy.parameters(), lr=3e-5)
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], lr=3e-5)
        self.critic_optimiser = torch.optim.Adam([p for q in self.critics for p in q.parameters()], lr=3e-4)

    def act(self, states, unit):
        mean, log_std = self.policy(states).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = mean + normal.stddev * unit
        return u.tanh(), (normal.log_prob(u) - torch.log(1 - u.tanh() ** 2)).sum(-1, keepdim=True)

    def update(self, batch, noise, chance):
        states, actions, rewards, following, terminated = batch.split(WIDTHS, -1)
        asked = len(chance)
        chosen, log_prob = self.act(states, noise[0])
        alpha = self.log_alpha.exp().detach()
        pairs = torch.cat((states, chosen), -1)
        value = torch.minimum(*(critic(pairs) for critic in self.critics))
        policy_gradient = torch.autograd.grad((alpha * log_prob - value).mean(), list(self.policy.parameters()))
        with torch.no_grad():
            pairs = torch.cat((following, self.act(following, noise[1])[0]), -1)
            smallest = torch.minimum(*(target(pairs) for target in self.targets))
            wanted = rewards + 0.99 * (1 - terminated) * smallest
            others = [(action, torch.full((BATCH, 1), ACTIONS * math.log(0.5))) for action in chance]
            others += [self.act(states, unit) for unit in noise[2 : 2 + asked]]
            others += [self.act(following, unit) for unit in noise[2 + asked :]]
        loss = 0.0
        for critic in self.critics:
            said = critic(torch.cat((states, actions), -1))
            elsewhere = [critic(torch.cat((states, action), -1)) - density for action, density in others]
            gap = torch.logsumexp(torch.cat(elsewhere, -1), -1, keepdim=True) - said
            loss = loss + nn.functional.mse_loss(said, wanted) + self.weight * gap.mean()
        step(self.critic_optimiser, loss)
        step(self.alpha_optimiser, -(self.log_alpha * (log_prob.detach() - ACTIONS)).mean())
        for parameter, gradient in zip(self.policy.parameters(), policy_gradient, strict=True):
            parameter.grad = gradient
        self.policy_optimiser.step()
        for target, source in zip(self.targets, self.critics, strict=True):
            follow(target, source, 0.005)


def assert_same(flat, shape, plain):
    mine = network(flat, shape)
    for one, other in zip(mine.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def td3bc(agents=AGENTS, *, seed=0, **options):
    settings = TD3BCSettings(batch_size=BATCH, hidden=HIDDEN, updates_per_call=4, **options)
    return StackedTD3BC(shared_rows(), agents, settings, seed=seed)


def iql(agents=AGENTS, *, seed=0, **options):
    settings = IQLSettings(batch_size=BATCH, hidden=HIDDEN, updates_per_call=4, steps=50, **options)
    return StackedIQL(shared_rows(), agents, settings, seed=seed)


@pytest.mark.parametrize(("agents", "hidden_layers"), [(1, 2), (3, 2), (2, 3)])
def test_td3bc_learns_as_a_plain_agent(agents, hidden_layers):
    learner = td3bc(agents, hidden_layers=hidden_layers)
    plain = [PlainTD3BC(learner, agent) for agent in range(agents)]
    rng = torch.Generator().manual_seed(5)
    for rounds in (1, 3, 2):
        rows = learner.rows.draw(rounds, agents, 2, BATCH, rng=rng)
        noise = 2 * torch.randn(rounds, agents, 2, BATCH, ACTIONS, generator=rng)
        learner.update(rows, noise)
        for k, agent in itertools.product(range(rounds), range(agents)):
            plain[agent].update(rows[k, agent], noise[k, agent])
    for agent, one in enumerate(plain):
        assert_same(learner.policy.parameters[agent], learner.policy_shape, one.policy)
        assert_same(learner.target_policy[agent], learner.policy_shape, one.target_policy)
        for k in range(2):
            assert_same(learner.critic.parameters[2 * agent + k], learner.critic_shape, one.critics[k])
            place = len(learner.values) // 2 + 2 * agent + k
            assert_same(learner.values[place], learner.critic_shape, one.targets[k])


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("agents", "hidden_layers"), [(1, 2), (3, 2), (2, 3)])
def test_iql_learns_as_a_plain_agent(agents, hidden_layers, deterministic):
    learner = iql(agents, hidden_layers=hidden_layers, deterministic=deterministic, target_speed=0.01)
    plain = [PlainIQL(learner, agent) for agent in range(agents)]
    rng = torch.Generator().manual_seed(5)
    for count in (1, 5, 6):
        rows = learner.rows.draw(count, agents, BATCH, rng=rng)
        learner.update(rows)
        for batch in rows:
            for agent in range(agents):
                plain[agent].update(batch[agent])
    for agent, one in enumerate(plain):
        assert_same(learner.policy.parameters[agent], learner.policy_shape, one.policy)
        assert_same(learner.value.parameters[agent], learner.value_shape, one.value)
        torch.testing.assert_close(learner.log_std.parameters[agent], one.log_std.data, rtol=1e-6, atol=1e-9)
        for k in range(2):
            assert_same(learner.critic.parameters[2 * agent + k], learner.critic_shape, one.critics[k])
            place = len(learner.values) // 2 + 2 * agent + k
            assert_same(learner.values[place], learner.critic_shape, one.targets[k])


def edac(agents=AGENTS, *, seed=0, **options):
    settings = EDACSettings(**{"batch_size": BATCH, "hidden": HIDDEN, "updates_per_call": 4, "critics": 4, **options})
    return StackedEDAC(shared_rows(), agents, settings, seed=seed)


@pytest.mark.parametrize(("agents", "hidden_layers", "eta"), [(1, 3, 1.0), (3, 3, 5.0), (2, 2, 1.0)])
def test_edac_learns_as_a_plain_agent(agents, hidden_layers, eta):
    learner = edac(agents, hidden_layers=hidden_layers, eta=eta)
    # With their first weights critics all but agree and hardly slope.
    learner.values.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    learner.values[learner.stack :] = learner.values[: learner.stack]
    plain = [PlainEDAC(learner, agent) for agent in range(agents)]
    rng = torch.Generator().manual_seed(5)
    for _ in range(8):
        rows = learner.rows.draw(agents, BATCH, rng=rng)
        noise = torch.randn(agents, 3, BATCH, ACTIONS, generator=rng)
        learner.update(rows, noise)
        for agent in range(agents):
            plain[agent].update(rows[agent], noise[agent])
    for agent, one in enumerate(plain):
        assert_same(learner.policy.parameters[agent], learner.policy_shape, one.policy)
        torch.testing.assert_close(learner.log_alpha.parameters[agent], one.log_alpha.data, rtol=1e-6, atol=1e-9)
        for k in range(4):
            assert_same(learner.critic.parameters[4 * agent + k], learner.critic_shape, one.critics[k])
            assert_same(learner.values[learner.stack + 4 * agent + k], learner.critic_shape, one.targets[k])


def test_edac_begins_as_published():
    learner = edac(hidden_layers=3)
    critic, policy = (
        Layers.of(part.parameters, shape)
        for part, shape in ((learner.critic, learner.critic_shape), (learner.policy, learner.policy_shape))
    )
    for layers, bound in ((critic, 3e-3), (policy, 1e-3)):
        assert 0.8 * bound < layers["w4"].abs().max() <= bound
        assert layers["b4"].abs().max() <= bound
        assert (layers["b2"] == 0.1).all() and (layers["b3"] == 0.1).all()
    assert (critic["w1"][:, OBSERVATIONS + ACTIONS] == 0.1).all()
    assert (policy["w1"][:, OBSERVATIONS] == 0.1).all()
    # CORL's ensembles are drawn by the units that weights lead to, its policy by those that they come from.
    for drawn, bound in ((critic["w1"][:, :-1], HIDDEN**-0.5), (policy["w1"][:, :OBSERVATIONS], OBSERVATIONS**-0.5)):
        assert 0.8 * bound < drawn[:, :OBSERVATIONS].abs().max() <= bound
    assert torch.equal(learner.values[: learner.stack], learner.values[learner.stack :])


def cql(agents=AGENTS, *, seed=0, **options):
    settings = CQLSettings(batch_size=BATCH, hidden=HIDDEN, updates_per_call=4, asked=3, **options)
    return StackedCQL(shared_rows(), agents, settings, seed=seed)


@pytest.mark.parametrize(("agents", "hidden_layers", "weight"), [(1, 3, 10.0), (3, 3, 0.5), (2, 2, 10.0)])
def test_cql_learns_as_a_plain_agent(agents, hidden_layers, weight):
    learner = cql(agents, hidden_layers=hidden_layers, weight=weight)
    plain = [PlainCQL(learner, agent) for agent in range(agents)]
    rng = torch.Generator().manual_seed(5)
    for _ in range(8):
        rows = learner.rows.draw(agents, BATCH, rng=rng)
        noise = torch.randn(agents, 2 + 2 * 3, BATCH, ACTIONS, generator=rng)
        chance = 2 * torch.rand(agents, 3, BATCH, ACTIONS, generator=rng) - 1
        learner.update(rows, noise, chance)
        for agent in range(agents):
            plain[agent].update(rows[agent], noise[agent], chance[agent])
    for agent, one in enumerate(plain):
        assert_same(learner.policy.parameters[agent], learner.policy_shape, one.policy)
        torch.testing.assert_close(learner.log_alpha.parameters[agent], one.log_alpha.data, rtol=1e-6, atol=1e-9)
        for k in range(2):
            assert_same(learner.critic.parameters[2 * agent + k], learner.critic_shape, one.critics[k])
            assert_same(learner.values[learner.stack + 2 * agent + k], learner.critic_shape, one.targets[k])


def test_cql_begins_as_published():
    learner = cql()
    critic, policy = (
        Layers.of(part.parameters, shape)
        for part, shape in ((learner.critic, learner.critic_shape), (learner.policy, learner.policy_shape))
    )
    twice = 2 * torch.eye(HIDDEN).expand(2 * AGENTS, -1, -1)
    torch.testing.assert_close(critic["w2"] @ critic["w2"].mT, twice)  # orthogonal, with a gain of the root of two
    torch.testing.assert_close(critic["w4"].norm(dim=(1, 2)), torch.full((2 * AGENTS,), 1e-2))
    assert all(critic[name].count_nonzero() == 0 for name in ("b2", "b3", "b4"))
    assert critic["w1"][:, OBSERVATIONS + ACTIONS :].count_nonzero() == 0
    bound = 1e-2 * math.sqrt(6 / (HIDDEN + 2 * ACTIONS))
    assert 0.8 * bound < policy["w4"].abs().max() <= bound
    assert (policy["b4"][..., :ACTIONS] == 0).all() and (policy["b4"][..., ACTIONS:] == -1).all()


def test_edac_needs_critics_to_differ():
    with pytest.raises(ValueError, match="critics: expected at least 2, got 1"):
        EDACSettings(critics=1)


@pytest.mark.parametrize("build", [td3bc, iql, edac, cql])
class TestEachLearner:
    def test_learn_makes_its_updates_and_counts_them(self, build):
        learner = build()
        before = learner.policy.parameters.clone()
        learner.learn()
        assert int(learner.updates) == 4
        assert (learner.policy.parameters != before).any(1).all()

    def test_the_same_seed_gives_the_same_agents_and_another_does_not(self, build):
        one, same, other = build(), build(), build(seed=1)
        for learner in (one, same, other):
            learner.learn()
        assert torch.equal(one.policy.parameters, same.policy.parameters)
        assert not torch.equal(one.policy.parameters, other.policy.parameters)

    def test_agents_differ(self, build):
        learner = build()
        learner.learn()
        assert len(learner.policy.parameters.unique(dim=0)) == AGENTS

    def test_value_estimates_match_plain_networks_and_change_nothing(self, build):
        learner = build()
        learner.learn()
        before, rng = learner.state_dict(), learner.rng.get_state()
        value_estimates = learner.value_estimates()
        assert all(torch.equal(part, before[name]) for name, part in learner.state_dict().items())
        assert torch.equal(learner.rng.get_state(), rng)
        places = [round(k * (len(learner.rows) - 1) / (BATCH - 1)) for k in range(BATCH)]
        states, actions, *_ = learner.rows.rows[places].split(WIDTHS, -1)
        critics = len(learner.critic.parameters) // AGENTS
        for agent in range(AGENTS):
            own = network(learner.policy.parameters[agent], learner.policy_shape)(states)[:, :ACTIONS].tanh()
            judges = [
                network(learner.critic.parameters[critics * agent + k], learner.critic_shape) for k in range(critics)
            ]
            for name, chosen in (("value", actions), ("value_of_own", own)):
                smallest = torch.stack([judge(torch.cat((states, chosen), -1)) for judge in judges]).amin(0)
                torch.testing.assert_close(value_estimates[name][agent], smallest.mean())

    def test_a_restored_learner_continues_identically(self, build):
        whole, stopped, goes_on = build(), build(), build(seed=9)
        goes_on.seed = 0
        for learner in (whole, stopped):
            learner.learn()
        goes_on.load_state_dict(stopped.state_dict())
        for learner in (whole, goes_on):
            learner.reseed(1)
            learner.learn()
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, goes_on.state_dict()[name]), name

    def test_policies_act_on_observations_as_the_task_gives_them(self, build):
        learner = build()
        for _ in range(5):
            learner.learn()
        raw = transitions(4).observations.double()
        scaled = (raw - learner.rows.mean) / learner.rows.std
        out = learner._policy_outputs(scaled.expand(AGENTS, -1, -1))
        actions = out[..., :ACTIONS].tanh()
        for policy, expected in zip(policies_of(learner.policy_weights()), actions, strict=True):
            found = np.stack([policy.mean_action(row) for row in raw.numpy()])
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-9)


def test_td3bc_calls_end_with_the_policy():
    with pytest.raises(ValueError, match=r"updates_per_call.*policy_delay=2.*7"):
        TD3BCSettings(updates_per_call=7)


@pytest.mark.slow
def test_td3bc_learns_what_pays():
    """One state, reward minus the squared distance of the action from 0.5; the data act around 0."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.zeros(2_000, SPEC.dim, dtype=torch.float32)
    actions = (0.6 * torch.randn(2_000, ACTIONS, generator=rng)).clamp(-1, 1).float()
    rows[:, SPEC.actions] = actions
    rows[:, SPEC.rewards] = -(actions - 0.5).square().sum(1, keepdim=True)
    rows[:, SPEC.terminated] = 1
    torch.set_default_dtype(torch.float32)
    data = SharedRows(Transitions(SPEC, rows), device=CPU)
    learner = StackedTD3BC(data, 2, TD3BCSettings(hidden=32, learning_rate=3e-3, updates_per_call=100), seed=0)
    for _ in range(6):
        learner.learn()
    for policy in policies_of(learner.policy_weights()):
        action = policy.mean_action(np.zeros(OBSERVATIONS, np.float32))
        assert (action > 0.2).all()


class TestSharedRows:
    def test_observations_are_scaled_and_rewards_too(self):
        data = transitions(300)
        made = SharedRows(data, reward_shift=-1.0, reward_scale=0.5, device=CPU)
        seen = made.rows[:, SPEC.observations]
        torch.testing.assert_close(seen.mean(0), torch.zeros(OBSERVATIONS, dtype=seen.dtype), atol=1e-5, rtol=0)
        torch.testing.assert_close(seen.std(0, correction=0), torch.ones_like(made.std), atol=2e-3, rtol=0)
        expected = (data.rows[:, SPEC.next_observations] - made.mean) / made.std
        torch.testing.assert_close(made.rows[:, SPEC.next_observations], expected)
        torch.testing.assert_close(made.rows[:, SPEC.rewards], 0.5 * (data.rows[:, SPEC.rewards] - 1))
        torch.testing.assert_close(made.rows[:, SPEC.actions], data.rows[:, SPEC.actions])
        assert len(made) == 300

    def test_observations_may_stay_as_they_are(self):
        data = transitions(30)
        made = SharedRows(data, scale_observations=False, device=CPU)
        assert torch.equal(made.rows, data.rows)
        assert (made.mean == 0).all() and (made.std == 1).all()

    def test_observations_may_be_scaled_like_others(self):
        data, other = transitions(30), transitions(40, seed=3)
        made = SharedRows(data, scale_like=other, device=CPU)
        torch.testing.assert_close(made.mean, other.rows[:, SPEC.observations].mean(0))
        assert not torch.allclose(made.mean, data.rows[:, SPEC.observations].mean(0))

    @pytest.mark.parametrize("place", [(0, 0), (7, 3), (29, 12)])
    def test_other_rows_have_another_fingerprint(self, place):
        one, same, other = (SharedRows(transitions(30), device=CPU) for _ in range(3))
        other.rows[place] += 1e-3
        assert one.fingerprint() == same.fingerprint() != other.fingerprint()
        swapped = SharedRows(transitions(30), device=CPU)
        swapped.rows[:, [0, 1]] = swapped.rows[:, [1, 0]]
        assert swapped.fingerprint() != one.fingerprint()

    def test_the_data_are_left_as_they_were(self):
        data = transitions(50)
        before = data.rows.clone()
        SharedRows(data, reward_scale=2.0, device=CPU)
        assert torch.equal(data.rows, before)

    @pytest.mark.parametrize(("ratio", "real"), [(0.5, 8), (0.25, 4), (1.0, 16), (0.0, 0)])
    def test_batches_are_mixed_exactly(self, ratio, real):
        made = SharedRows(transitions(40), transitions(60, seed=1), real_ratio=ratio, device=CPU)
        drawn = made.draw(3, 5, 16, rng=torch.Generator().manual_seed(0))
        is_real = (drawn.unsqueeze(-2) == made.rows[:40]).all(-1).any(-1)
        assert drawn.shape == (3, 5, 16, SPEC.dim)
        assert is_real[..., :real].all()
        assert not is_real[..., real:].any()

    @pytest.mark.parametrize("synthetic", [False, True])
    def test_one_kind_alone_fills_the_batches(self, synthetic):
        data = transitions(30)
        made = SharedRows(None, data, device=CPU) if synthetic else SharedRows(data, device=CPU)
        drawn = made.draw(2, 500, rng=torch.Generator().manual_seed(0))
        assert len(drawn.flatten(0, 1).unique(dim=0)) == 30

    @pytest.mark.parametrize("name", AUGMENTATIONS)
    def test_augmentation_changes_states_as_the_paper_says_and_nothing_else(self, name):
        plain, changed = (SharedRows(transitions(50), augmentation=a, device=CPU) for a in (None, AUGMENTATIONS[name]))
        before, after = (made.draw(4, 100, rng=torch.Generator().manual_seed(0)) for made in (plain, changed))
        same = [*range(SPEC.dim)[SPEC.actions], *range(SPEC.dim)[SPEC.rewards], *range(SPEC.dim)[SPEC.terminated]]
        assert torch.equal(after[..., same], before[..., same])
        (here, there), (was_here, was_there) = (
            (rows[..., SPEC.observations], rows[..., SPEC.next_observations]) for rows in (after, before)
        )
        if name == "additive":
            torch.testing.assert_close(here - was_here, there - was_there)
            assert 0.095 < (here - was_here).std() < 0.105
            return
        if name == "dynamics":
            assert torch.equal(here, was_here)
            factor, low, high = (there - here) / (was_there - was_here), 0.5, 1.5
        else:
            factor, low, high = torch.cat((here / was_here, there / was_there), -1), 0.8, 1.2
        torch.testing.assert_close(factor, factor[..., :1].expand_as(factor), rtol=1e-3, atol=1e-3)  # one per row
        assert low < factor.min() < low + 0.05
        assert high - 0.05 < factor.max() < high + 1e-3

    def test_constant_columns_stay_finite(self):
        data = transitions(30)
        data.rows[:, 0] = 7.0
        assert torch.isfinite(SharedRows(data, device=CPU).rows).all()

    def test_no_rows_are_refused(self):
        with pytest.raises(ValueError, match="real, synthetic: expected transitions"):
            SharedRows(None, None, device=CPU)

    @pytest.mark.parametrize("ratio", [-0.1, 1.1, math.nan])
    def test_a_ratio_that_is_none_is_refused(self, ratio):
        with pytest.raises(ValueError, match="real_ratio"):
            SharedRows(transitions(9), transitions(9), real_ratio=ratio, device=CPU)


FULL_SIZE = {
    "td3bc": (StackedTD3BC, TD3BCSettings(updates_per_call=10)),
    "iql": (StackedIQL, IQLSettings(updates_per_call=10)),
    "edac": (StackedEDAC, EDACSettings(updates_per_call=5)),
    "cql": (StackedCQL, CQLSettings(updates_per_call=5)),
    "td3bc-large": (StackedTD3BC, TD3BCSettings(updates_per_call=4, **NETWORKS["large"])),
    "iql-large": (StackedIQL, IQLSettings(updates_per_call=4, **NETWORKS["large"])),
    "edac-50": (StackedEDAC, EDACSettings(updates_per_call=2, critics=50)),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("tensor_cores")
class TestOnGpu:
    def learned(self, algo, calls=3, agents=2, augmentation=None, synthetic=None):
        torch.set_default_dtype(torch.float32)
        real, made = (data and Transitions(SPEC, data.rows.float()) for data in (transitions(5_000), synthetic))
        build, settings = FULL_SIZE[algo]
        rows = SharedRows(real, made, augmentation=augmentation, device=torch.device("cuda", 0))
        learner = build(rows, agents, settings, seed=0)
        learner.prepare()
        learner.reseed(0)
        before = learner.policy.parameters.clone()
        for _ in range(calls):
            learner.learn()
        torch.cuda.synchronize()
        return learner, before

    @pytest.mark.parametrize("augmentation", [None, *AUGMENTATIONS.values()])
    def test_mixtures_and_augmentations_are_captured(self, augmentation):
        options = {"agents": 8, "augmentation": augmentation, "synthetic": transitions(9_000, seed=1)}
        (one, before), (other, _) = self.learned("td3bc", **options), self.learned("td3bc", **options)
        assert (one.policy.parameters != before).any(1).all()
        assert torch.isfinite(one.policy.parameters).all()
        assert torch.equal(one.policy.parameters, other.policy.parameters)

    @pytest.mark.parametrize("algo", FULL_SIZE)
    def test_captured_updates_learn_and_repeat(self, algo):
        (one, before), (other, _) = self.learned(algo), self.learned(algo)
        assert int(one.updates) == 3 * one.hyper.updates_per_call
        assert (one.policy.parameters != before).any(1).all()
        for name, tensor in one.state_dict().items():
            assert torch.isfinite(tensor).all(), name
            assert torch.equal(tensor, other.state_dict()[name]), name

    @pytest.mark.parametrize("algo", ["td3bc", "iql", "edac", "td3bc-large"])
    def test_value_estimates_match_the_cpu(self, algo):
        learner, _ = self.learned(algo)
        state = learner.state_dict()
        found = learner.value_estimates()
        assert all(torch.equal(part, state[name]) for name, part in learner.state_dict().items())
        build, settings = FULL_SIZE[algo]
        rows = SharedRows(Transitions(SPEC, transitions(5_000).rows.float()), device=CPU)
        expected = build(rows, 2, settings, seed=0)
        expected.load_state_dict(state)
        for name, value in expected.value_estimates().items():
            torch.testing.assert_close(found[name].cpu(), value, rtol=0.01, atol=0.01)

    # IQL's policy weighs rows by the exponential of three times their advantage, which enlarges its error.
    @pytest.mark.parametrize("algo, of_policy", [("td3bc", 0.02), ("iql", 0.04), ("td3bc-large", 0.02)])
    def test_kernels_learn_as_operations_do(self, algo, of_policy):
        with_kernels, _ = self.learned(algo, calls=1)
        torch.set_float32_matmul_precision("highest")
        without, _ = self.learned(algo, calls=1)
        for name, most in (("policy", of_policy), ("critic", 0.02)):
            one, other = getattr(with_kernels, name), getattr(without, name)
            # Products of halves, and Adam divides small gradients by their own size: by their distance as a whole.
            moved = torch.linalg.norm(other.mean)
            assert 0 < torch.linalg.norm(one.mean - other.mean) < most * moved
