"""The stacked learner against a plain one: modules, automatic differentiation and PyTorch's own Adam."""

import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, initialise, padded
from synther_replay.benchmarks.agents.networks.residual import ResidualShape
from synther_replay.benchmarks.agents.policy import policies_of
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC

OBSERVATIONS, ACTIONS, HIDDEN, BATCH, UPDATES = 5, 2, 16, 12, 4
TARGET_ENTROPY = -1.5
SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))


def random_rows(*lead, seed=0):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(*lead, SPEC.dim, generator=rng)
    rows[..., SPEC.actions] = rows[..., SPEC.actions].tanh()
    rows[..., SPEC.terminated] = (rows[..., SPEC.terminated] > 1).float()
    return rows


def stacked(agents=1, critics=2, seed=0, **changes):
    replay = StackedReplay(SPEC, agents, capacity=50, device=torch.device("cpu"))
    settings = Hyperparameters(critics=critics, updates=UPDATES, batch_size=BATCH, hidden=HIDDEN, **changes)
    return StackedSAC(replay, TARGET_ENTROPY, settings, seed=seed)


def randomness(agents, critics, seed=1):
    rng = torch.Generator().manual_seed(seed)
    next_noise = torch.randn(agents, UPDATES, BATCH, ACTIONS, generator=rng)
    policy_noise = torch.randn(agents, BATCH, ACTIONS, generator=rng)
    order = torch.rand(UPDATES, agents, critics, generator=rng).argsort(-1).argsort(-1)
    return next_noise, torch.where(order < 2, 0.0, torch.inf), policy_noise


class Residual(nn.Module):
    """Residual blocks with layer norm, and one more at the end."""

    def __init__(self, shape):
        super().__init__()
        norm = nn.LayerNorm(HIDDEN, elementwise_affine=False)
        self.first, self.last = nn.Linear(shape.inputs, HIDDEN), nn.Sequential(norm, nn.Linear(HIDDEN, shape.outputs))
        wide = 4 * HIDDEN
        self.blocks = nn.ModuleList(
            nn.Sequential(norm, nn.Linear(HIDDEN, wide), nn.ReLU(), nn.Linear(wide, HIDDEN))
            for _ in range(shape.blocks)
        )
        self.order = nn.ModuleList((self.first, *self.blocks, self.last))  # of the parameters
        del self.first, self.last, self.blocks

    def forward(self, x):
        first, *blocks, last = self.order
        x = first(x)
        for block in blocks:
            x = x + block(x)
        return last(x)


class UnitFeatures(nn.Module):
    """Features divided by their root mean square."""

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def mlp_modules(shape, number):
    is_normalised = shape.layer_norm and not (shape.alternating and number % 2)
    norm = [nn.LayerNorm(HIDDEN, elementwise_affine=False)] if is_normalised else []
    features = [UnitFeatures()] if shape.feature_norm else []
    first, second, last = (
        nn.Linear(a, b) for a, b in ((shape.inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, shape.outputs))
    )
    return nn.Sequential(first, *norm, nn.ReLU(), second, *norm, nn.ReLU(), *features, last)


class PlainAgent:
    """SAC and REDQ as a textbook writes them, one agent, one network at a time."""

    def __init__(self, learner, agent, critics):
        self.learner, self.critics, self.caution = learner, critics, learner.critics.caution[agent]
        self.rewards = learner.replay.real[agent, : learner.replay.count, SPEC.rewards.start]
        first = agent * critics
        shape = learner.critic_shape
        self.values = [self.network(learner.critic.parameters[first + n], shape, n) for n in range(critics)]
        self.targets = [self.network(learner.target[first + n], shape, n) for n in range(critics)]
        self.policy = self.network(learner.policy.parameters[agent], learner.policy_shape)
        settings = learner.settings
        self.log_alpha = torch.full((1,), math.log(settings.temperature), requires_grad=True)
        values = [p for q in self.values for p in q.parameters()]
        self.optimisers = [
            torch.optim.AdamW(values, lr=settings.learning_rate, weight_decay=settings.weight_decay),
            torch.optim.Adam(self.policy.parameters(), lr=settings.learning_rate),
            torch.optim.Adam([self.log_alpha], lr=settings.temperature_rate or settings.learning_rate),
        ]

    @staticmethod
    def network(flat, shape, number=0):
        net = Residual(shape) if isinstance(shape, ResidualShape) else mlp_modules(shape, number)
        linears = [module for module in net.modules() if isinstance(module, nn.Linear)]
        w = Layers.of(flat.clone()[None], shape)
        with torch.no_grad():
            linears[0].weight.copy_(w["w1"][0, : shape.inputs].T)
            linears[0].bias.copy_(w["w1"][0, shape.inputs])
            for k, linear in enumerate(linears[1:], 2):
                linear.weight.copy_(w[f"w{k}"][0].T)
                linear.bias.copy_(w[f"b{k}"][0, 0])
        return net

    def act(self, observations, noise):
        mean, log_std = self.policy(observations).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = mean + normal.stddev * noise
        log_prob = normal.log_prob(u) - torch.log(1 - u.tanh() ** 2 + 1e-12)
        return u.tanh(), log_prob.sum(-1, keepdim=True)

    def bounded(self, target, entropy):
        temperature, rewards = self.log_alpha.exp(), self.rewards
        least = min(rewards.min(), 0) + temperature * min(entropy, 0)
        most = max(rewards.max(), 0) + temperature * ACTIONS * math.log(2)
        inside = target.clamp(100 * least, 100 * most)
        self.clamped = not torch.equal(inside, target)
        return inside

    def update(self, rows, next_noise, excluded, policy_noise):
        critic_optimiser, policy_optimiser, alpha_optimiser = self.optimisers
        with torch.no_grad():
            entropy = -self.act(rows[..., -OBSERVATIONS - 1 : -1], next_noise)[1].mean()  # of all next actions
        for k in range(len(rows)):
            observations, actions, rewards, following, terminated = rows[k].split(
                (OBSERVATIONS, ACTIONS, 1, OBSERVATIONS, 1), -1
            )
            with torch.no_grad():
                next_actions, log_prob = self.act(following, next_noise[k])
                chosen = [n for n in range(self.critics) if excluded[k, n] == 0]
                x = torch.cat((following, next_actions), -1)
                seen = torch.stack([self.targets[n](x) for n in chosen])
                cautious = seen.min(0).values - self.caution * (seen.max(0).values - seen.min(0).values)
                value = cautious - self.log_alpha.exp() * log_prob
                target = rewards + 0.99 * (1 - terminated) * value
                if self.learner.settings.bounded:
                    target = self.bounded(target, entropy)
            x = torch.cat((observations, actions), -1)
            loss = sum(nn.functional.mse_loss(q(x), target) for q in self.values)
            critic_optimiser.zero_grad()
            loss.backward()
            critic_optimiser.step()
            with torch.no_grad():
                for q, t in zip(self.values, self.targets, strict=True):
                    for p, followed in zip(q.parameters(), t.parameters(), strict=True):
                        followed.copy_(0.995 * followed + 0.005 * p)
        actions, log_prob = self.act(observations, policy_noise)
        x = torch.cat((observations, actions), -1)
        q = torch.stack([q(x) for q in self.values]).mean(0)
        policy_optimiser.zero_grad()
        (self.log_alpha.exp().detach() * log_prob - q).mean().backward()
        policy_optimiser.step()
        alpha_optimiser.zero_grad()
        (-self.log_alpha * (log_prob.detach() + self.learner.target_entropy)).mean().backward()
        alpha_optimiser.step()

    def same_as(self, learner, agent, atol=1e-8):
        expected = [*self.values, *self.targets, self.policy]
        first = agent * self.critics
        found = [learner.critic.parameters[first + n] for n in range(self.critics)]
        found += [learner.target[first + n] for n in range(self.critics)]
        found = [self.network(flat, learner.critic_shape) for flat in found]
        found.append(self.network(learner.policy.parameters[agent], learner.policy_shape))
        for theirs, ours in zip(expected, found, strict=True):
            for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
                torch.testing.assert_close(b, a, rtol=1e-6, atol=atol)
        torch.testing.assert_close(learner.log_alpha.parameters[agent], self.log_alpha, rtol=1e-6, atol=1e-8)


@pytest.fixture
def double_precision():
    """Where a gradient is nearly zero Adam divides rounding errors by rounding errors; so round less."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("agents", "critics"), [(1, 2), (1, 10), (3, 2), (2, 5)])
def test_updates_are_those_of_a_plain_agent(agents, critics):
    learner = stacked(agents, critics)
    learner.critics.caution.copy_(torch.arange(agents) / 2)
    plain = [PlainAgent(learner, agent, critics) for agent in range(agents)]
    before = learner.critic.parameters.clone()
    for block in range(3):
        rows = random_rows(agents, UPDATES, BATCH, seed=block)
        next_noise, excluded, policy_noise = randomness(agents, critics, seed=block + 10)
        learner.update(rows, next_noise, excluded, policy_noise)
        for agent, reference in enumerate(plain):
            reference.update(rows[agent], next_noise[agent], excluded[:, agent], policy_noise[agent])
    assert not torch.equal(learner.critic.parameters, before)
    for agent, reference in enumerate(plain):
        reference.same_as(learner, agent)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    "options",
    [
        {"layer_norm": True},
        {"layer_norm": True, "critics": 5, "weight_decay": 0.1, "learning_rate": 1e-3},
        {"layer_norm": True, "alternating": True},
        {"layer_norm": True, "alternating": True, "critics": 4, "target_critics": 4},
        {"feature_norm": True, "temperature": 0.1, "temperature_rate": 3e-3},
        {"layer_norm": True, "feature_norm": True},
        {"blocks": 1, "weight_decay": 0.1},
        {"blocks": 2},
    ],
)
def test_other_critics_are_updated_like_those_of_a_plain_agent(options):
    options = {"critics": 2, **options}
    learner = stacked(2, **options)
    plain = [PlainAgent(learner, agent, options["critics"]) for agent in range(2)]
    for block in range(3):
        rows = random_rows(2, UPDATES, BATCH, seed=block)
        noise = randomness(2, options["critics"], seed=block + 10)
        learner.update(rows, *noise)
        for agent, reference in enumerate(plain):
            reference.update(rows[agent], noise[0][agent], noise[1][:, agent], noise[2][agent])
    for agent, reference in enumerate(plain):
        reference.same_as(learner, agent, atol=1e-7)  # layer norm leaves gradients that are zero but for rounding


@pytest.mark.usefixtures("double_precision")
def test_targets_are_bounded_by_the_rewards_so_far():
    learner = stacked(2, bounded=True, temperature=0.1)
    for step in range(3):
        learner.replay.add(random_rows(2, seed=step) * torch.tensor([[0.01], [1.0]]))
    learner.prepare()
    plain = [PlainAgent(learner, agent, 2) for agent in range(2)]
    rows = random_rows(2, UPDATES, BATCH)
    rows[..., SPEC.rewards] *= 500  # beyond those so far
    noise = randomness(2, 2)
    learner.update(rows, *noise)
    assert (learner.critics.bounds[1] > learner.critics.bounds[0]).all()
    for agent, reference in enumerate(plain):
        reference.update(rows[agent], noise[0][agent], noise[1][:, agent], noise[2][agent])
        reference.same_as(learner, agent)
    assert reference.clamped


@pytest.mark.usefixtures("double_precision")
def test_the_plain_critic_computes_what_it_always_did():
    learner = stacked(2, 3)
    for block in range(3):
        learner.update(random_rows(2, UPDATES, BATCH, seed=block), *randomness(2, 3, seed=block + 10))
    sizes = {name: tensor.abs().sum().item() for name, tensor in learner.state_dict().items() if tensor.ndim == 2}
    expected = {
        "policy.parameters": 189.1298725435031,
        "policy.mean": 22.66986108694937,
        "critic.parameters": 533.5080175905101,
        "critic.mean": 102.97721201488945,
        "critic.square": 1.477351907466785,
        "log_alpha.parameters": 0.001779744988300433,
        "target": 533.2595441169074,
    }
    assert {name: sizes[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_normalised_observations_are_those_of_all_real_rows():
    raw, scaled = stacked(2), stacked(2, normalise_observations=True)
    factor, offset = torch.linspace(1, 50, OBSERVATIONS), torch.arange(OBSERVATIONS) - 3.0
    rows = random_rows(2, 50)
    seen = rows[..., SPEC.observations]
    rows[..., SPEC.observations] = (seen - seen.mean(1, keepdim=True)) / seen.std(1, correction=0, keepdim=True)
    shifted = rows.clone()
    for columns in (SPEC.observations, SPEC.next_observations):
        shifted[..., columns] = rows[..., columns] * factor + offset
    for learner, own in ((raw, rows), (scaled, shifted)):
        for k in range(50):
            learner.replay.add(own[:, k])
        learner.prepare()
        learner.reseed(1)
        learner.learn()
        learner.observations.copy_(own[:, 0, SPEC.observations])
        learner.act()
    torch.testing.assert_close(scaled.actions, raw.actions, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(scaled.critic.parameters, raw.critic.parameters, rtol=1e-3, atol=1e-3)
    ours, theirs = (
        policies_of(learner.policy_weights())[1].mean_action(own[1, 7, SPEC.observations].numpy())
        for learner, own in ((scaled, shifted), (raw, rows))
    )
    assert ours == pytest.approx(theirs, abs=1e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critics": 0}, "critics"),
        ({"blocks": -1}, "blocks"),
        ({"reset_at": -1}, "reset_at"),
        ({"reset_share": 0.0}, "reset_share"),
        ({"reset_share": 1.5}, "reset_share: expected at most 1"),
        ({"reset_share": 0.5}, "reset_share: nothing is reset"),
        ({"reset_share": None}, "reset_share"),
        ({"blocks": 1, "layer_norm": True}, "blocks"),
        ({"layer_norm": 1}, "layer_norm"),
        ({"alternating": True}, "alternating: expected layer_norm"),
        ({"alternating": True, "layer_norm": True, "critics": 3}, "even number"),
        ({"temperature": 0.0}, "temperature"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"temperature_rate": 0.0}, "temperature_rate"),
        ({"temperature_rate": True}, "temperature_rate"),
        ({"gamma": 1.0}, "gamma"),
        ({"target_critics": 3}, "target_critics"),
        ({"max_caution": 1.0, "target_critics": 1}, "max_caution"),
        ({"bounded": 1}, "bounded"),
        ({"learning_rate": "1"}, "learning_rate"),
    ],
)
def test_invalid_hyperparameters_are_refused_with_their_name(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Hyperparameters(**options)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("critics", [2, 5])
def test_value_estimates_match_a_plain_agent_and_change_nothing(critics):
    learner = stacked(2, critics)
    learner.log_alpha.parameters.copy_(torch.tensor([[0.5], [-1.0]]))
    rows, before, stream = random_rows(2, BATCH), learner.state_dict(), learner.rng.get_state()
    value_estimates = learner.value_estimates(rows)
    for agent in range(2):
        plain = PlainAgent(learner, agent, critics)
        with torch.no_grad():
            values = torch.stack([q(rows[agent, :, : OBSERVATIONS + ACTIONS]) for q in plain.values])
            noise = torch.randn(20_000, BATCH, ACTIONS, generator=torch.Generator().manual_seed(1))
            _, log_prob = plain.act(rows[agent, :, :OBSERVATIONS], noise)
        torch.testing.assert_close(value_estimates["value"][agent], values.mean())
        torch.testing.assert_close(value_estimates["reward"][agent], rows[agent, :, OBSERVATIONS + ACTIONS].mean())
        drawn = log_prob.mean((1, 2)).std()  # of a mean over as many actions as there are rows
        assert abs(value_estimates["entropy"][agent] + log_prob.mean()) < 4 * drawn
    torch.testing.assert_close(value_estimates["temperature"], torch.tensor([0.5, -1.0]).exp())
    assert torch.equal(learner.rng.get_state(), stream)
    torch.testing.assert_close(learner.state_dict(), before, rtol=0, atol=0)


def test_an_agent_does_not_depend_on_its_neighbours_rows():
    rows, noise = random_rows(2, UPDATES, BATCH), randomness(2, 2)
    one, other = stacked(2), stacked(2)
    one.update(rows, *noise)
    changed = rows.clone()
    changed[1] = math.nan
    other.update(changed, *noise)
    torch.testing.assert_close(one.critic.parameters[:2], other.critic.parameters[:2], rtol=0, atol=0)
    torch.testing.assert_close(one.policy.parameters[0], other.policy.parameters[0], rtol=0, atol=0)
    assert not torch.isfinite(other.critic.parameters[2:]).all()


def test_large_pre_activations_give_finite_log_probabilities():
    learner = stacked()
    Layers.of(learner.policy.parameters, learner.policy_shape)["b3"][..., :ACTIONS] = 40.0
    learner.update(random_rows(1, UPDATES, BATCH), *randomness(1, 2))
    for tensor in learner.state_dict().values():
        assert torch.isfinite(tensor).all()


def test_initial_weights_are_xavier_and_padding_is_zero():
    shape = MlpShape(inputs=5, outputs=3, hidden=64)
    layers = Layers.of(initialise(shape, 4, torch.Generator().manual_seed(0)), shape)
    bound = math.sqrt(6 / (5 + 64))
    assert 0.9 * bound < layers["w1"][:, :5].abs().max() <= bound
    assert layers["w1"][:, 5:].count_nonzero() == layers["b2"].count_nonzero() == layers["b3"].count_nonzero() == 0
    assert len(torch.unique(layers["w2"].flatten(1)[:, 0])) == 4


def test_padded_inputs_have_a_one_after_the_parts():
    x = padded(torch.full((2, 3), 7.0), torch.full((2, 1), 8.0), columns=8)
    assert x.tolist() == [[7, 7, 7, 8, 1, 0, 0, 0]] * 2


def test_actions_follow_the_policy_and_its_seed():
    one, same, other = stacked(2), stacked(2), stacked(2, seed=1)
    for learner in (one, same, other):
        learner.observations.copy_(torch.ones(2, OBSERVATIONS))
        learner.act()
    assert torch.equal(one.actions, same.actions)
    assert not torch.equal(one.actions, other.actions)
    assert one.actions.abs().max() < 1
    first = one.actions.clone()
    one.act()
    assert not torch.equal(one.actions, first)
    one.reseed(0)
    one.act()
    assert torch.equal(one.actions, first)


def test_a_restored_learner_continues_identically():
    one, other = stacked(2), stacked(2, seed=5)
    for learner in (one, other):
        for k in range(50):
            learner.replay.add(random_rows(2, seed=k))
    one.learn()
    other.seed = one.seed
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        learner.reseed(3)
        learner.learn()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


class TestReplay:
    def make(self, agents=2, ratio=0.25):
        replay = StackedReplay(SPEC, agents, capacity=30, synthetic=20, real_ratio=ratio, device=torch.device("cpu"))
        for k in range(10):
            replay.add(torch.full((agents, SPEC.dim), float(k)) + 100 * torch.arange(agents)[:, None])
        return replay

    def test_draws_only_what_was_added_and_each_agent_its_own(self):
        rows = self.make().draw(50, 8, torch.Generator().manual_seed(0))
        assert rows.shape == (2, 50, 8, SPEC.dim)
        assert set(rows[0].flatten().tolist()) == set(range(10))
        assert set(rows[1].flatten().tolist()) == set(range(100, 110))

    def test_batches_hold_exactly_the_share_of_real_rows(self):
        replay = self.make()
        replay.replace_synthetic(Transitions(SPEC, torch.full((2, 20, SPEC.dim), -1.0)))
        rows = replay.draw(5, 8, torch.Generator().manual_seed(0))
        assert ((rows[..., 0] == -1).sum(2) == 6).all()

    def test_transitions_are_all_that_was_added(self):
        assert self.make().transitions().rows.shape == (2, 10, SPEC.dim)
        assert self.make(agents=1).transitions().rows.shape == (10, SPEC.dim)

    def test_state_comes_back(self):
        replay, fresh = (
            self.make(),
            StackedReplay(SPEC, 2, capacity=30, synthetic=20, real_ratio=0.25, device=torch.device("cpu")),
        )
        replay.replace_synthetic(Transitions(SPEC, torch.rand(2, 20, SPEC.dim)))
        fresh.load_state_dict(replay.state_dict())
        drawn = [r.draw(3, 8, torch.Generator().manual_seed(1)) for r in (replay, fresh)]
        assert torch.equal(*drawn)
        assert fresh.count == 10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("tensor_cores")
class TestOnGpu:
    def test_a_captured_block_is_the_block_itself(self):
        device = torch.device("cuda", 0)
        learners = []
        for _ in range(2):
            replay = StackedReplay(SPEC, 2, capacity=50, device=device)
            for k in range(50):
                replay.add(random_rows(2, seed=k))
            settings = Hyperparameters(critics=2, updates=3, batch_size=64, hidden=64)
            learners.append(StackedSAC(replay, TARGET_ENTROPY, settings))
        captured, eager = learners
        captured.prepare()
        for learner in learners:
            learner.reseed(1)
        for _ in range(3):
            captured.learn()
            eager._draw_and_update()
        for name, tensor in eager.state_dict().items():
            torch.testing.assert_close(captured.state_dict()[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("critics", "used"), [(2, 2), (5, 3), (4, 4), (1, 1)])
def test_targets_are_the_minimum_over_so_many_critics(critics, used, monkeypatch):
    learner = stacked(agents=3, critics=critics, target_critics=max(used, 2))
    learner.replay.load_state_dict({"real": random_rows(3, 50), "synthetic": None})
    drawn = []
    monkeypatch.setattr(learner, "update", lambda rows, noise, excluded, policy_noise: drawn.append(excluded))
    for _ in range(5):
        learner.learn()
    in_use = torch.stack(drawn) == 0
    assert (in_use.sum(-1) == used).all()
    assert in_use.flatten(0, 2).any(0).all()  # each critic in turn


def test_the_number_of_target_critics_is_checked():
    with pytest.raises(ValueError, match="target_critics"):
        Hyperparameters(target_critics=0)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_reset_moves_weights_towards_new_ones_and_forgets_moments(share, monkeypatch):
    options = {"agents": 2, "seed": 3, "temperature": 0.5, "layer_norm": True}
    used, fresh = stacked(**options, reset_at=1, reset_share=share), stacked(**options)
    used.update(random_rows(2, UPDATES, BATCH), *randomness(2, 2))
    before = used.state_dict()
    fresh.reset(100)  # all weights are new ones
    new = fresh.state_dict()
    refreshed = []
    monkeypatch.setattr(used.critics, "refresh", lambda: refreshed.append(used.values.clone()))
    used.reset(100)
    assert refreshed[-1].equal(used.values)  # copies in fp16 follow
    state = used.state_dict()
    assert state.keys() == new.keys()
    weights = {"critic.parameters", "policy.parameters", "target"}
    for name in weights:
        torch.testing.assert_close(state[name], before[name].lerp(new[name], share), rtol=0, atol=0)
    kept = "log_alpha.parameters"
    assert state[kept].equal(new[kept] if share == 1 else before[kept])
    assert not before[kept].equal(new[kept])
    others = state.keys() - weights - {kept}
    assert len(others) > 5 and all(not state[name].any() for name in others)


def test_a_reset_to_new_weights_cures_a_learner_that_is_not_finite():
    learner = stacked()
    learner.values.fill_(math.nan)
    learner.policy.parameters.fill_(math.inf)
    learner.reset(100)
    assert all(tensor.isfinite().all() for tensor in learner.state_dict().values())


def test_each_reset_draws_other_weights():
    learner = stacked(agents=2, seed=3)
    drawn = [learner.policy.parameters.clone()]
    for step in (100, 200, 100):
        learner.reset(step)
        drawn.append(learner.policy.parameters.clone())
    assert drawn[1].equal(drawn[3])
    assert not any(a.equal(b) for a, b in itertools.combinations(drawn[:3], 2))


@pytest.mark.parametrize(("first", "expected"), [(0, []), (500, [500, 1000, 2000, 4000]), (1250, [1250, 2500])])
def test_resets_come_each_time_that_the_steps_have_doubled(first, expected):
    settings = Hyperparameters(reset_at=first)
    assert [step for step in range(0, 5000, 10) if settings.is_reset_at(step)] == expected
