"""FastSAC against SB3's SAC: equal without delay, delayed updates, and equal results with CUDA graphs."""

import copy
import doctest
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("stable_baselines3")

from stable_baselines3 import SAC
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.adapters.sb3 import FastSAC, LayerNormMlpPolicy, SynthERBuffer, fast_sac, graphs
from synther_replay.adapters.sb3.critics import Critics

SMALL = {
    "buffer_size": 200,
    "learning_starts": 20,
    "batch_size": 8,
    "train_freq": 10,
    "gradient_steps": 7,
    "device": "cpu",
    "seed": 0,
}
SPACES = {
    "Box": spaces.Box(-2, 2, (3,)),
    "Dict": spaces.Dict(place=spaces.Box(-2, 2, (2,)), time=spaces.Box(0, 1, (1,))),
    "Discrete": spaces.Discrete(5),
}
FORCE = spaces.Box(-2, 2, (2,))
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Toy(gym.Env):
    """Random observations of any space; every seventh step ends an episode."""

    def __init__(self, observation_space=SPACES["Box"]):
        self.observation_space, self.action_space = copy.deepcopy((observation_space, FORCE))
        self.taken = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.taken += 1
        return self.observation_space.sample(), float(np.sin(self.taken)), self.taken % 7 == 0, False, {}


def model(algorithm=FastSAC, env=None, policy="MlpPolicy", policy_kwargs=None, **changes):
    policy_kwargs = {"net_arch": [32, 32]} | (policy_kwargs or {})
    return algorithm(policy, env or Toy(), policy_kwargs=policy_kwargs, **SMALL | changes)


def filled(algorithm=FastSAC, **changes):
    """A model with 40 collected steps and no updates."""
    return model(algorithm, **changes | {"learning_starts": 40}).learn(40)


def parameters(trained):
    return torch.cat([value.detach().reshape(-1).double().cpu() for value in trained.policy.state_dict().values()])


def everything(trained):
    """Parameters, entropy coefficient and moments of the optimisers."""
    ent_coef = trained.ent_coef_tensor if trained.log_ent_coef is None else trained.log_ent_coef
    optimizers = [trained.actor.optimizer, trained.critic.optimizer, trained.ent_coef_optimizer]
    moments = [
        value.detach().reshape(-1).double().cpu()
        for optimizer in optimizers
        if optimizer
        for state in optimizer.state_dict()["state"].values()
        for _, value in sorted(state.items())
    ]
    return torch.cat([parameters(trained), ent_coef.detach().reshape(-1).double().cpu(), *moments])


def logged(trained):
    return {name: value for name, value in trained.logger.name_to_value.items() if name.startswith("train/")}


def assert_close(first, second, tolerance=1e-5):
    torch.testing.assert_close(everything(first), everything(second), rtol=tolerance, atol=tolerance)
    assert logged(first) == pytest.approx(logged(second), rel=1e-4, abs=1e-5)


class HostGraph(TorchDispatchMode):
    """Emulates a CUDA graph on a CPU: records operations and their memory, and replays only those."""

    WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation in self.WAITS:
            raise RuntimeError("it waits for the GPU")
        made = operation(*args, **kwargs or {})
        self.calls.append((operation, args, kwargs or {}, made))
        return made

    def replay(self):
        with torch.no_grad():
            for operation, args, kwargs, made in self.calls:
                for old, new in zip(tree_leaves(made), tree_leaves(operation(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@pytest.fixture
def recorder(monkeypatch):
    """Captures updates on a CPU with the emulated graph; counts the captures."""
    count = []

    def capture(function, rng):
        count.append(1)
        for _ in range(2):
            function()
        with HostGraph() as graph:
            function()
        return graph.replay

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(FastSAC, "_captures", lambda self: not self._graphs.failed)
    return count


@pytest.fixture
def without_noise(monkeypatch):
    """Actions are the mean of their distribution, so the order of the draws does not matter."""
    monkeypatch.setattr(torch.distributions.Normal, "rsample", lambda self, sample_shape=(): self.loc)


VARIANTS = {
    "plain": {},
    "entropy from 0.1": {"ent_coef": "auto_0.1"},
    "entropy fixed": {"ent_coef": 0.2},
    "targets": {"target_update_interval": 3, "tau": 0.2},
    "schedule": {"learning_rate": lambda left: 1e-2 * left},
    "three critics": {"policy_kwargs": {"n_critics": 3, "activation_fn": nn.Tanh}},
    "shared": {"policy_kwargs": {"net_arch": {"pi": [16], "qf": [32]}, "share_features_extractor": True}},
    "options of Adam": {"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.01, "amsgrad": True}}},
    "AdamW": {"policy_kwargs": {"optimizer_class": torch.optim.AdamW}},
    "Dict": {"env": lambda: Toy(SPACES["Dict"]), "policy": "MultiInputPolicy"},
    "Discrete": {"env": lambda: Toy(SPACES["Discrete"])},
    "layer norm": {"policy": LayerNormMlpPolicy, "policy_kwargs": {"net_arch": [32, 16]}},
    "VecNormalize": {"env": lambda: VecNormalize(DummyVecEnv([Toy, Toy]))},
    "n steps": {"n_steps": 3},
    "n steps here": {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": {"n_steps": 2, "real_ratio": 1.0}},
}


def arguments(name):
    variant = VARIANTS[name]
    return {key: value() if key == "env" else copy.deepcopy(value) for key, value in variant.items()}


# --- without a delay --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_delay_it_is_sac_bit_by_bit(variant):
    theirs, ours = (model(algorithm, **arguments(variant)).learn(60) for algorithm in (SAC, FastSAC))
    assert torch.equal(everything(theirs), everything(ours))
    assert logged(theirs) == logged(ours)


# on a CPU, one_hot reads the values
@pytest.mark.slow
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "Discrete"])
def test_captured_updates_without_delay_equal_sac(recorder, variant):
    theirs, ours = (model(algorithm, **arguments(variant)).learn(60) for algorithm in (SAC, FastSAC))
    assert len(recorder) == 1, "one graph of seven updates serves all calls"
    assert not ours._graphs.failed
    assert theirs._n_updates == ours._n_updates >= 14
    assert_close(theirs, ours)


def test_state_dependent_exploration_is_left_to_sac():
    theirs, ours = (model(algorithm, use_sde=True).learn(50) for algorithm in (SAC, FastSAC))
    assert torch.equal(everything(theirs), everything(ours))
    with pytest.raises(ValueError, match="policy_delay: expected 1 with use_sde=True, got 2"):
        model(use_sde=True, policy_delay=2)


# --- with a delay -----------------------------------------------------------------------------------------------------


def reference_train(self, gradient_steps, batch_size=64):
    """SAC.train step by step, with the delay of the REDQ code: the formulas in the order of SB3's file."""
    self.policy.set_training_mode(True)
    optimizers = [self.actor.optimizer, self.critic.optimizer, self.ent_coef_optimizer]
    self._update_learning_rate([optimizer for optimizer in optimizers if optimizer])
    logs = {"ent_coef": [], "actor_loss": [], "critic_loss": [], "ent_coef_loss": []}
    for i in range(gradient_steps):
        data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        discounts = self.gamma if data.discounts is None else data.discounts
        ent_coef = self.ent_coef_tensor if self.log_ent_coef is None else self.log_ent_coef.detach().exp()
        with torch.no_grad():
            actions, log_prob = self.actor.action_log_prob(data.next_observations)
            following = torch.min(*self.critic_target(data.next_observations, actions)) - ent_coef * log_prob[:, None]
            targets = data.rewards + (1 - data.dones) * discounts * following
        loss = 0.5 * sum(functional.mse_loss(q, targets) for q in self.critic(data.observations, data.actions))
        self.critic.optimizer.zero_grad()
        loss.backward()
        self.critic.optimizer.step()
        logs["critic_loss"].append(loss.item())
        if (i + 1) % self.policy_delay == 0 or i == gradient_steps - 1:
            actions, log_prob = self.actor.action_log_prob(data.observations)
            if self.log_ent_coef is not None:
                loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
                self.ent_coef_optimizer.zero_grad()
                loss.backward()
                self.ent_coef_optimizer.step()
                logs["ent_coef_loss"].append(loss.item())
            loss = (ent_coef * log_prob[:, None] - torch.min(*self.critic(data.observations, actions))).mean()
            self.actor.optimizer.zero_grad()
            loss.backward()
            self.actor.optimizer.step()
            logs["actor_loss"].append(loss.item())
            logs["ent_coef"].append(ent_coef.item())
        if i % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
    self._n_updates += gradient_steps
    self.logger.record("train/n_updates", self._n_updates)
    for name, values in logs.items():
        if values:
            self.logger.record(f"train/{name}", np.mean(values))


@pytest.mark.parametrize("delay", [2, 7, 30])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "three critics"])
def test_delayed_updates_are_those_of_a_plain_loop(monkeypatch, without_noise, variant, delay):
    ours = model(policy_delay=delay, **arguments(variant)).learn(60)
    monkeypatch.setattr(FastSAC, "train", reference_train)
    assert_close(ours, model(policy_delay=delay, **arguments(variant)).learn(60))


@pytest.mark.parametrize(("delay", "steps", "expected"), [(3, 7, [3, 6, 7]), (7, 7, [7]), (9, 4, [4]), (1, 2, [1, 2])])
def test_actor_is_updated_every_so_many_steps_and_at_the_end(monkeypatch, recorder, delay, steps, expected):
    trained = filled(policy_delay=delay)
    order, original = [], FastSAC._minimise

    def minimise(self, loss, optimizer, *gradient):
        names = {trained.actor.optimizer: "actor", trained.critic.optimizer: "critic"}
        order.append(names.get(optimizer, "entropy"))
        original(self, loss, optimizer, *gradient)

    monkeypatch.setattr(FastSAC, "_minimise", minimise)
    monkeypatch.setattr(graphs.UpdateGraphs, "run", lambda *arguments: False)
    trained.train(steps, 8)
    assert order.count("critic") == steps
    assert order.count("entropy") == len(expected)
    assert [order[: i + 1].count("critic") for i, name in enumerate(order) if name == "actor"] == expected


def test_call_cut_into_pieces_changes_nothing(monkeypatch, recorder, without_noise):
    whole = filled(policy_delay=3, target_update_interval=2)
    cut = filled(policy_delay=3, target_update_interval=2)
    for trained, most in ((whole, 64), (cut, 2)):  # pieces shorter than the policy delay
        monkeypatch.setattr(fast_sac, "_MOST_STEPS", most)
        np.random.seed(0)
        trained.train(10, 8)
    assert_close(whole, cut)
    assert len(recorder) == 1 + 4, "of the five pieces of two, the fourth is like the first"


def test_large_observations_are_drawn_in_small_pieces(monkeypatch):
    trained = filled(policy_delay=2)
    assert list(trained._pieces(130, 8)) == [(0, 64), (64, 128), (128, 130)]
    monkeypatch.setattr(fast_sac, "_MOST_BYTES", 5 * 8 * 2 * 3 * 4)  # five batches of observations
    assert list(trained._pieces(10, 8)) == [(0, 4), (4, 8), (8, 10)]


@pytest.mark.slow
def test_ever_new_numbers_of_updates_need_few_graphs(recorder):
    trained = filled(policy_delay=2)
    for steps in range(1, 40):
        trained.train(steps, 8)
    assert trained._n_updates == sum(range(1, 40))
    assert len(recorder) < 20


class Normalising(BaseFeaturesExtractor):
    """Batch normalisation of the observation."""

    def __init__(self, space):
        super().__init__(space, 3)
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3))

    def forward(self, observations):
        return self.layers(observations)


@pytest.mark.parametrize("delay", [1, 3])
def test_statistics_of_batch_normalisation_are_those_of_sac(recorder, without_noise, delay):
    options = {"policy_kwargs": {"features_extractor_class": Normalising}}
    ours = model(policy_delay=delay, **options).learn(60)
    if delay == 1:  # SB3 has no delay
        assert_close(model(SAC, **options).learn(60), ours)
    seen, targets = (part.features_extractor.layers[1].running_mean for part in (ours.critic, ours.critic_target))
    assert torch.equal(seen, targets)
    batches = 28 + (28 if delay == 1 else 4 * 3)
    assert ours.actor.features_extractor.layers[1].num_batches_tracked == batches, "each batch counts by itself"


# --- watchdog of the values -------------------------------------------------------------------------------------------


def test_values_and_their_limit_are_logged(recorder):
    trained = filled(policy_delay=2, ent_coef=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trained.train(4, 8)
    rewards = np.abs(trained.replay_buffer.rewards[:40])
    found = trained.logger.name_to_value
    assert 0 < found["values/largest"] < found["values/limit"] <= rewards.max() * 100 * (1 + 1e-5)
    assert found["values/limit"] > rewards.min() * 100


@pytest.mark.parametrize(("spoilt", "calls"), [(1e6, 3), (float("nan"), 1)])  # NaN ends the next call, as in SAC
def test_values_beyond_their_limit_give_one_warning(spoilt, calls):
    trained = filled(policy_delay=2)
    with torch.no_grad():
        trained.critic.qf0[-1].bias.fill_(spoilt)
        trained.critic.qf1[-1].bias.fill_(spoilt)
    with pytest.warns(UserWarning, match="diverge") as told:
        for _ in range(calls):
            trained.train(2, 8)
    assert len([one for one in told if "diverge" in str(one.message)]) == 1


@pytest.mark.parametrize("gamma", [0.99, 1.0])
def test_rewards_of_zero_are_no_divergence(gamma):
    trained = filled(policy_delay=2, ent_coef=0.0, gamma=gamma)
    trained.replay_buffer.rewards[:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trained.train(4, 8)
    assert trained.logger.name_to_value["values/limit"] == 0


# --- the critics as one network ---------------------------------------------------------------------------------------


def batch_for(trained, rows=5):
    return torch.randn(rows, 3), torch.rand(rows, 2) * 2 - 1


@pytest.mark.parametrize("options", [{}, {"n_critics": 5}, {"net_arch": []}, {"activation_fn": nn.SiLU}], ids=str)
@pytest.mark.parametrize("policy", ["MlpPolicy", "LayerNormMlpPolicy"])
def test_stacked_critics_are_those_of_sb3(policy, options):
    critic = model(policy=policy, policy_kwargs=options).critic
    for norm in (module for module in critic.modules() if isinstance(module, nn.LayerNorm)):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    before, names = [p.detach().clone() for p in critic.parameters()], [name for name, _ in critic.named_parameters()]
    critics = Critics(critic)
    assert critics._layers
    assert [name for name, _ in critic.named_parameters()] == names
    assert all(map(torch.equal, before, critic.parameters()))
    batch = batch_for(critic)
    values, expected = critics(*batch), torch.cat(critic(*batch), dim=1)
    torch.testing.assert_close(values, expected)
    parameters = list(critic.parameters())[::-1]  # in any order
    gradients = torch.autograd.grad(expected.square().sum(), parameters)
    found = critics.gradients(values.square().sum(), parameters)
    for parameter, gradient, own in zip(parameters, gradients, found, strict=True):
        torch.testing.assert_close(gradient, own)
        assert own.stride() == parameter.stride()


def test_layer_norm_comes_before_each_activation_of_the_critics_only():
    trained = model(policy="LayerNormMlpPolicy", policy_kwargs={"net_arch": [32, 16]})
    expected = [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]
    for critic in (trained.critic, trained.critic_target):
        assert all([type(layer) for layer in network] == expected for network in critic.q_networks)
        assert [critic.qf0, critic.qf1] == list(critic.q_networks)
    assert not any(isinstance(module, nn.LayerNorm) for module in trained.actor.modules())
    optimised = {id(p) for group in trained.critic.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in trained.critic.parameters()}


def test_stacked_critics_follow_their_parameters():
    critic = model().critic
    critics, batch = Critics(critic), batch_for(critic)
    critic.load_state_dict({name: value + 1 for name, value in critic.state_dict().items()})
    torch.testing.assert_close(critics(*batch), torch.cat(critic(*batch), dim=1))
    assert critics.matches(critic)
    assert not critics.matches(copy.deepcopy(critic))
    critic.qf1[0].bias.data = critic.qf1[0].bias.data.clone()
    assert not critics.matches(critic)


class Extreme(nn.Module):
    """Not element-wise."""

    def forward(self, values):
        return values.softmax(1)


def other_class(critic):
    critic.__class__ = type("Other", (type(critic),), {})


@pytest.mark.parametrize(
    "change",
    [
        lambda critic: critic.qf0[0].weight.requires_grad_(False),
        lambda critic: critic.qf1.register_forward_hook(lambda module, given, made: made * 2),
        lambda critic: critic.qf0.append(nn.Tanh()),
        lambda critic: critic.qf0.__setitem__(1, nn.Tanh()),
        lambda critic: [network.__setitem__(1, Extreme()) for network in critic.q_networks],
        other_class,
    ],
    ids=["frozen", "hook", "longer", "activation", "own layer", "own class"],
)
def test_other_critics_are_called_as_they_are(without_noise, change):
    trained = filled(policy_delay=2)
    change(trained.critic)
    critics, batch = Critics(trained.critic), batch_for(trained.critic)
    assert not critics._layers
    assert torch.equal(critics(*batch), torch.cat(trained.critic(*batch), dim=1))
    trained._critics = critics
    before = copy.deepcopy(list(trained.critic.parameters()))
    trained.train(2, 8)
    for parameter, value in zip(trained.critic.parameters(), before, strict=True):
        assert torch.equal(parameter, value) != parameter.requires_grad


@pytest.mark.parametrize("replaced", ["data", "frozen"])
def test_parameters_may_be_replaced_while_it_learns(recorder, replaced):
    trained = filled(policy_delay=2)
    trained.train(2, 8)
    weight = trained.critic.qf1[0].weight
    if replaced == "data":
        weight.data = weight.data.clone()
    else:
        weight.requires_grad_(False)
    before = weight.detach().clone()
    trained.train(2, 8)
    assert torch.equal(before, weight) == (replaced == "frozen")
    assert len(recorder) == 2


# --- recording --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [1, 3])
def test_recording_leaves_no_trace(monkeypatch, recorder, delay):
    recorded = model(policy_delay=delay).learn(60)
    monkeypatch.setattr(graphs.UpdateGraphs, "run", lambda *arguments: False)
    assert_close(recorded, model(policy_delay=delay).learn(60))


def test_same_seed_same_run_and_other_seed_other_run(recorder):
    first, again, other = (model(policy_delay=3, seed=seed).learn(60) for seed in (1, 1, 2))
    assert torch.equal(everything(first), everything(again))
    assert not torch.equal(parameters(first), parameters(other))


def test_learning_rate_follows_the_schedule(recorder):
    trained = filled(learning_rate=lambda left: left, policy_delay=2)
    rates = []
    for left in (0.5, 0.25):
        trained._current_progress_remaining = left
        trained.train(4, 8)
        rates.append([float(o.param_groups[0]["lr"]) for o in trained._optimizers()])
    assert rates == [[0.5] * 3, [0.25] * 3]
    assert len(recorder) == 1
    trained._current_progress_remaining = 0.0
    before = parameters(trained)[: len(torch.cat([p.reshape(-1) for p in trained.actor.parameters()]))]
    trained.train(4, 8)
    assert torch.equal(before, parameters(trained)[: len(before)]), "a rate of zero changes nothing"


@pytest.mark.parametrize("changed", ["gamma", "tau", "betas", "parameters", "optimizer", "batch_size", "nothing"])
def test_captured_again_after_a_replacement(recorder, changed):
    trained = filled(policy_delay=2)
    for _ in range(2):
        trained.train(4, 8)
    batch_size = 8
    if changed in ("gamma", "tau"):
        setattr(trained, changed, 0.5)
    elif changed == "betas":
        trained.critic.optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    elif changed == "parameters":  # new tensors for all moments
        trained.set_parameters(copy.deepcopy(trained.get_parameters()))
    elif changed == "optimizer":
        trained.critic.optimizer.load_state_dict(copy.deepcopy(trained.critic.optimizer.state_dict()))
    elif changed == "batch_size":
        batch_size = 9
    trained.train(4, batch_size)
    assert len(recorder) == (1 if changed == "nothing" else 2)


def test_interrupted_recording_changes_nothing(monkeypatch, recorder):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # other libraries change it for all
    trained = filled(policy_delay=2)
    trained.train(4, 8)
    before, state = everything(trained), torch.get_rng_state()

    def interrupted(function, rng):
        function()
        raise KeyboardInterrupt

    monkeypatch.setattr(graphs, "capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained.train(6, 8)
    assert torch.equal(before, everything(trained))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.distributions.Distribution._validate_args


@pytest.mark.parametrize("delay", [1, 3])
def test_failed_capture_falls_back_with_one_warning(monkeypatch, recorder, delay):
    plain = model(policy_delay=delay)
    plain._graphs.failed = True
    plain.learn(60)

    def failing(function, rng):
        function()
        raise RuntimeError("not permitted")

    monkeypatch.setattr(graphs, "capture", failing)
    trained = model(policy_delay=delay)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained.learn(60)
    (message,) = (str(warning.message) for warning in caught if "CUDA graph" in str(warning.message))
    assert "not permitted" in message
    assert_close(plain, trained)
    assert trained.critic.optimizer.param_groups[0]["capturable"] is False


def test_other_optimisers_are_not_captured(recorder):
    with pytest.warns(UserWarning, match="expected Adam or AdamW, got RMSprop"):
        trained = model(policy_delay=2, policy_kwargs={"optimizer_class": torch.optim.RMSprop}).learn(60)
    assert not recorder
    assert parameters(trained).isfinite().all()


def test_frozen_parameters_stay(recorder):
    trained = filled(policy_delay=2)
    frozen = trained.actor.latent_pi[0].weight.requires_grad_(False)
    before, rest = frozen.clone(), trained.actor.latent_pi[2].weight.detach().clone()
    trained.train(4, 8)
    assert torch.equal(before, frozen)
    assert not torch.equal(rest, trained.actor.latent_pi[2].weight)


# --- files and copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["MlpPolicy", LayerNormMlpPolicy])
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize(("saves", "loads"), [(FastSAC, FastSAC), (FastSAC, SAC), (SAC, FastSAC)])
def test_sac_and_fast_sac_load_each_others_files(tmp_path, request, captured, saves, loads, policy):
    if captured:
        request.getfixturevalue("recorder")
    trained = model(saves, policy=policy, ent_coef="auto_0.5").learn(60)
    trained.save(tmp_path / "model")
    trained.save_replay_buffer(tmp_path / "buffer")
    loaded = loads.load(tmp_path / "model", env=Toy(), device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer")
    torch.testing.assert_close(everything(loaded), everything(trained), rtol=0, atol=0)
    groups = loaded.critic.optimizer.param_groups[0]
    assert (groups["capturable"], groups["fused"], type(groups["lr"])) == (False, None, float)
    for one in (trained, loaded):
        one.set_logger(trained.logger)
        torch.manual_seed(3)
        np.random.seed(3)
        one.train(7, 8)
    torch.testing.assert_close(everything(loaded), everything(trained), rtol=1e-5, atol=1e-6)


def test_delay_travels_with_the_model_and_can_be_changed(tmp_path):
    model(policy_delay=4).save(tmp_path / "model")
    assert FastSAC.load(tmp_path / "model", device="cpu").policy_delay == 4
    assert FastSAC.load(tmp_path / "model", device="cpu", policy_delay=2).policy_delay == 2
    with pytest.raises(ValueError, match="policy_delay"):
        FastSAC.load(tmp_path / "model", device="cpu", policy_delay=0)


def test_copies_leave_the_graphs_behind(recorder):
    trained = filled(policy_delay=2)
    trained.train(4, 8)
    assert trained._graphs.names()
    for twin in (copy.deepcopy(trained._graphs), pickle.loads(pickle.dumps(trained._graphs))):
        assert not twin.names()
    twin = copy.deepcopy(trained.policy)
    trained.train(4, 8)
    assert not torch.equal(twin.critic.qf0[0].weight, trained.critic.qf0[0].weight)


def test_environment_can_be_replaced(recorder):
    trained = model(policy_delay=3).learn(40)
    trained.set_env(Toy())
    trained.learn(40, reset_num_timesteps=False)
    assert parameters(trained).isfinite().all()
    assert len(recorder) == 1


def test_docstring_example():
    result = doctest.testmod(fast_sac)
    assert (result.attempted, result.failed) == (1, 0)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", None, True])
def test_delay_is_a_whole_number(bad):
    with pytest.raises((ValueError, TypeError), match=f"policy_delay.*{bad!r}"):
        model(policy_delay=bad)


# --- with a SynthERBuffer ---------------------------------------------------------------------------------------------

TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=16, steps=20, refit_steps=10, batch_size=32, sampling_steps=4)
OPTIONS = {"generator": TINY, "schedule": RetrainSchedule(every=40, rows=64, start=40)}


@pytest.mark.parametrize("variant", ["plain", "Dict", "VecNormalize"])
@pytest.mark.parametrize("options", [{}, {"real_ratio": 0.0}, {"real_ratio": 1.0}, {"n_steps": 2}], ids=str)
def test_several_batches_at_once_are_those_of_single_calls(variant, options):
    if variant == "Dict" and "n_steps" in options:
        pytest.skip("SB3 has no n-step returns of Dict observations")
    kwargs = {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": OPTIONS | options}
    trained = model(SAC, learning_starts=100, **kwargs, **arguments(variant)).learn(60)
    buffer, twin = trained.replay_buffer, copy.deepcopy(trained.replay_buffer)
    normalise = trained._vec_normalize_env
    for count in (1, 3, 40):
        np.random.seed(count)
        together = graphs.tensors_of(buffer.sample_batches(count, 5, normalise))
        np.random.seed(count)
        single = [graphs.tensors_of(twin.sample(5, normalise)) for _ in range(count)]
        for field, parts in zip(together, zip(*single, strict=True), strict=True):
            assert torch.equal(field, torch.cat(parts))
    assert buffer.source.refits == twin.source.refits == (0 if options.get("real_ratio") == 1 else 1)


def test_several_batches_before_there_are_synthetic_rows():
    kwargs = {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": OPTIONS}
    buffer = model(SAC, learning_starts=100, **kwargs).learn(30).replay_buffer
    twin = copy.deepcopy(buffer)
    together = buffer.sample_batches(3, 5)
    assert torch.equal(together.rewards, torch.cat([twin.sample(5).rewards for _ in range(3)]))
    with pytest.raises(ValueError, match="count"):
        buffer.sample_batches(0, 5)


def test_batches_of_an_empty_buffer_are_refused():
    buffer = SynthERBuffer(100, SPACES["Box"], FORCE, device="cpu")
    with pytest.raises(ValueError, match="empty"):
        buffer.sample_batches(2, 4)


def test_run_across_refits(recorder):
    kwargs = {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": OPTIONS}
    trained = model(policy_delay=7, **kwargs).learn(100)
    assert trained.replay_buffer.source.refits == 2
    assert len(recorder) == 1
    assert parameters(trained).isfinite().all()


# --- what only a GPU can show -----------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """Counts captured graphs."""
    count, capture = [], graphs.capture
    monkeypatch.setattr(graphs, "capture", lambda function, rng: count.append(1) or capture(function, rng))
    return count


def on_gpu(algorithm=FastSAC, **changes):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA graph.*")  # fail on the fallback
        return model(algorithm, device="cuda", **changes).learn(60)


@gpu
@pytest.mark.parametrize("delay", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_graph_equals_its_function(monkeypatch, counted, variant, delay):
    captured = on_gpu(policy_delay=delay, **arguments(variant))
    assert len(counted) == 1
    monkeypatch.setattr(graphs, "capture", lambda function, rng: function)
    assert_close(captured, on_gpu(policy_delay=delay, **arguments(variant)), tolerance=1e-4)


@gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_graph_without_delay_equals_sac(variant):
    theirs, ours = (on_gpu(algorithm, **arguments(variant)) for algorithm in (SAC, FastSAC))
    torch.testing.assert_close(parameters(theirs), parameters(ours), rtol=1e-2, atol=2e-3)
    assert logged(theirs) == pytest.approx(logged(ours), rel=1e-2, abs=1e-3)


@gpu
def test_same_seed_same_run_on_a_gpu():
    first, again, other = (on_gpu(policy_delay=3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(everything(first), everything(again))
    assert not torch.equal(parameters(first), parameters(other))


@gpu
def test_graph_draws_new_noise_at_every_replay():
    trained = on_gpu(policy_delay=7)
    trained.learning_rate = 0.0
    trained._setup_lr_schedule()
    losses = []
    for _ in range(2):
        np.random.seed(0)  # the same rows
        trained.train(7, 8)
        losses.append(logged(trained)["train/actor_loss"])
    assert losses[0] != losses[1]


@gpu
def test_learning_rate_in_the_graph_follows_the_schedule(counted):
    trained = on_gpu(policy_delay=7)
    before, recorded = parameters(trained), len(counted)
    trained.lr_schedule = lambda left: 0.0
    trained.train(7, 8)
    actor = len(torch.cat([p.reshape(-1) for p in trained.actor.parameters()]))
    assert torch.equal(before[:actor], parameters(trained)[:actor])
    trained.lr_schedule = lambda left: 1e-3
    trained.train(7, 8)
    moved = (before[:actor] - parameters(trained)[:actor]).abs()
    assert 0 < moved.max() < 5e-3
    assert len(counted) == recorded


@gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("saves", "loads"), [(FastSAC, FastSAC), (FastSAC, SAC), (SAC, FastSAC)])
def test_files_of_a_gpu_are_loaded_on_any_device(tmp_path, counted, device, saves, loads):
    trained = on_gpu(saves)
    trained.save(tmp_path / "model")
    trained.save_replay_buffer(tmp_path / "buffer")
    loaded = loads.load(tmp_path / "model", env=Toy(), device=device)
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert torch.equal(everything(loaded), everything(trained))
    before = len(counted)
    loaded.learn(30, reset_num_timesteps=False)
    assert parameters(loaded).isfinite().all()
    assert not torch.equal(parameters(loaded), parameters(trained))
    assert len(counted) - before == (loads is FastSAC and device == "cuda")


@gpu
def test_loaded_parameters_are_those_that_the_next_updates_start_from(counted):
    trained = on_gpu(policy_delay=3)
    state, recorded = copy.deepcopy(trained.get_parameters()), len(counted)
    log_ent_coef = trained.log_ent_coef.detach().clone()  # SB3 does not count it among the parameters
    results = []
    for _ in range(2):
        trained.set_parameters(copy.deepcopy(state))  # the optimiser keeps the given tensors
        trained.log_ent_coef.data.copy_(log_ent_coef)
        torch.cuda.manual_seed(5)
        np.random.seed(5)
        trained.train(7, 8)
        results.append(everything(trained))
    assert torch.equal(*results)
    assert len(counted) > recorded


class Waiting(BaseFeaturesExtractor):
    """Synchronises with the GPU, which is not allowed in a capture."""

    def __init__(self, space):
        super().__init__(space, 3)

    def forward(self, observations):
        return observations.flatten(1) * float(observations.abs().max() > 0)


@gpu
@pytest.mark.parametrize("delay", [1, 3])
def test_network_that_waits_for_the_gpu_learns_without_a_graph(delay):
    options = {"policy_kwargs": {"features_extractor_class": Waiting}, "device": "cuda"}
    with pytest.warns(UserWarning, match="CUDA graph"):
        trained = model(policy_delay=delay, **options).learn(60)
    assert trained._graphs.failed
    assert parameters(trained).isfinite().all()


@gpu
def test_images_are_captured():
    trained = on_gpu(env=Toy(spaces.Box(0, 255, (1, 36, 36), np.uint8)), policy="CnnPolicy", policy_delay=3)
    assert trained._graphs.names()
    assert parameters(trained).isfinite().all()


@gpu
def test_run_across_refits_on_a_gpu(counted):
    trained = on_gpu(policy_delay=7, replay_buffer_class=SynthERBuffer, replay_buffer_kwargs=OPTIONS)
    assert trained.replay_buffer.source.refits == 1
    assert len(counted) == 1
    assert parameters(trained).isfinite().all()


@pytest.mark.parametrize("change", ["hook", "activation", "linear"])
def test_a_critic_that_was_changed_is_computed_as_it_is(change):
    trained = filled(policy_delay=2)
    trained.train(4, 8)
    network, calls = trained.critic.qf0, []
    if change == "hook":
        network[0].register_forward_hook(lambda *_: calls.append(1))
    elif change == "activation":
        network[1] = torch.nn.Tanh()
    else:
        network[2] = torch.nn.Linear(32, 32)
        trained.critic.optimizer = torch.optim.Adam(trained.critic.parameters(), lr=3e-4)
    trained.train(4, 8)
    assert bool(calls) == (change == "hook")
    observations = torch.as_tensor(np.stack([Toy().observation_space.sample() for _ in range(5)]))
    actions = torch.zeros(5, *Toy().action_space.shape)
    expected = torch.cat(trained.critic(observations, actions), 1)
    torch.testing.assert_close(trained._critics(observations, actions), expected)


def test_a_buffer_that_samples_in_its_own_way_is_asked():
    class Own(SynthERBuffer):
        calls = 0

        def sample(self, *args, **kwargs):
            Own.calls += 1
            return super().sample(*args, **kwargs)

    trained = filled(policy_delay=2, replay_buffer_class=Own)
    trained.train(4, 8)
    assert Own.calls == 4


def test_a_delay_that_is_changed_to_nonsense_is_refused():
    trained = filled(policy_delay=2)
    trained.policy_delay = 0
    with pytest.raises(ValueError, match="policy_delay"):
        trained.train(4, 8)
