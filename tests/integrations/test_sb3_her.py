"""SynthERHerBuffer: hindsight relabelling of Stable-Baselines3, with synthetic rows."""

import copy
import pickle
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer, SynthERCallback, SynthERHerBuffer, transition_spec
from synther_replay.adapters.sb3 import her as _her

SIZES = {"width": 16, "depth": 1, "embedding": 16, "steps": 20, "refit_steps": 10, "batch_size": 32}
OPTIONS = {
    "generator": GeneratorConfig.tiny(**SIZES, sampling_steps=4),
    "schedule": RetrainSchedule(every=40, rows=64, start=40),
}
SMALL = {
    "buffer_size": 500,
    "learning_starts": 20,
    "batch_size": 16,
    "policy_kwargs": {"net_arch": [16]},
    "device": "cpu",
    "seed": 0,
}
LENGTH = 10  # steps of an episode
NEAR = 0.1


class Point(gym.Env):
    """A point in the plane moves by its action; the reward is 0 near the goal, otherwise -1."""

    def __init__(self):
        plane = spaces.Box(-2, 2, (2,), np.float32)
        self.action_space = spaces.Box(-0.5, 0.5, (2,), np.float32)
        self.observation_space = spaces.Dict(
            observation=spaces.Box(-2, 2, (3,), np.float32), achieved_goal=plane, desired_goal=plane
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.taken = self.np_random.uniform(-1, 1, 2), 0
        self.goal = self.np_random.uniform(-1, 1, 2)
        return self.observe(), {}

    def step(self, action):
        self.place, self.taken = np.clip(self.place + action, -2, 2), self.taken + 1
        found, info = self.observe(), {"taken": self.taken}
        reward = self.compute_reward(found["achieved_goal"], found["desired_goal"], info)
        return found, float(reward), False, self.taken == LENGTH, info

    def observe(self):
        place, goal = self.place.astype(np.float32), self.goal.astype(np.float32)
        observation = np.append(place, np.float32(self.taken / LENGTH))
        return {"observation": observation, "achieved_goal": place, "desired_goal": goal}

    def compute_reward(self, achieved, desired, info):
        return (np.linalg.norm(achieved - desired, axis=-1) < NEAR).astype(np.float32) - 1


def points(n_envs=1):
    env = DummyVecEnv([Point] * n_envs)
    env.seed(0)
    return env


def make(n_envs=1, buffer_class=SynthERHerBuffer, size=400, **options):
    env = points(n_envs)
    own = {**OPTIONS, "seed": 0} if buffer_class is SynthERHerBuffer else {}
    space = env.observation_space, env.action_space
    return buffer_class(size, *space, env=env, device="cpu", n_envs=n_envs, **{**own, **options})


def fill(buffer, steps, env=None):
    """Add steps of the environment with random actions; actions are stored scaled."""
    env = env or buffer.env
    rng = np.random.default_rng(0)
    observation = env.reset()
    for _ in range(steps):
        actions = rng.uniform(-1, 1, (env.num_envs, 2)).astype(np.float32)
        following, rewards, dones, infos = env.step(actions / 2)
        stored = copy.deepcopy(following)
        for k, info in enumerate(infos):
            if dones[k]:
                for key, value in info["terminal_observation"].items():
                    stored[key][k] = value
        buffer.add(observation, stored, actions, rewards, dones, infos)
        observation = following
    return buffer


def model(algorithm=SAC, env=None, options=OPTIONS, buffer_class=SynthERHerBuffer, **changes):
    kwargs = {"replay_buffer_class": buffer_class, "replay_buffer_kwargs": dict(options)}
    env = gym.wrappers.TimeLimit(Point(), LENGTH) if env is None else env
    return algorithm("MultiInputPolicy", env, **copy.deepcopy(SMALL) | kwargs | changes)


def parameters(trained):
    return torch.cat([value.detach().reshape(-1).double() for value in trained.policy.state_dict().values()])


def assert_same(first, second):
    for name in ("actions", "rewards", "dones"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    for name in ("observations", "next_observations"):
        ours, theirs = getattr(first, name), getattr(second, name)
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert ours[key].dtype == theirs[key].dtype
            assert torch.equal(ours[key], theirs[key]), key


def rewards_of(batch):
    """The rewards that the environment gives to the rows of a batch."""
    goal, achieved = batch.observations["desired_goal"], batch.next_observations["achieved_goal"]
    return torch.from_numpy(Point().compute_reward(achieved.numpy(), goal.numpy(), {}))[:, None]


def among(values, held):
    """Whether each row of `values` is one of the rows held, up to rounding."""
    return ((values[:, None] - held[None]).abs() < 1e-6).all(-1).any(1)


def goals_of(rows):
    """Goals of rows, which have them as offsets from the next achieved goals."""
    return rows.next_observations["achieved_goal"] + rows.field("goal_offset")


# --- real_ratio=1 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_real_rows_alone_are_those_of_sb3(strategy, n_envs):
    options = {"goal_selection_strategy": strategy, "n_sampled_goal": 3, "size": 60}
    ours = fill(make(n_envs, real_ratio=1.0, **options), 90)  # wraps around
    theirs = fill(make(n_envs, HerReplayBuffer, **options), 90)
    for size in (1, 7, 64):
        state = np.random.get_state()
        batch = ours.sample(size)
        np.random.set_state(state)
        assert_same(batch, theirs.sample(size))


@pytest.mark.slow
def test_whole_run_with_real_rows_only_is_bit_identical():
    ours = model(options={**OPTIONS, "real_ratio": 1.0}).learn(80)
    theirs = model(buffer_class=HerReplayBuffer, options={}).learn(80)
    assert torch.equal(parameters(ours), parameters(theirs))


# --- relabelled rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("goals", [0, 1, 4])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_real_part_of_a_batch_has_virtual_goals_in_their_share(strategy, goals, n_envs):
    buffer = fill(make(n_envs, goal_selection_strategy=strategy, n_sampled_goal=goals), 30)
    buffer.source.schedule = RetrainSchedule(every=10**6, start=10**6)
    batch = buffer.sample(50)
    assert torch.equal(batch.rewards, rewards_of(batch))
    assert torch.equal(batch.observations["desired_goal"], batch.next_observations["desired_goal"])
    stored = torch.from_numpy(buffer.observations["desired_goal"][:30].reshape(-1, 2))
    own = among(batch.observations["desired_goal"], stored)
    assert (~own).sum() == int(goals / (goals + 1) * 50)
    achieved = torch.from_numpy(buffer.next_observations["achieved_goal"][:30].reshape(-1, 2))
    assert among(batch.observations["desired_goal"][~own], achieved).all()


def test_virtual_goals_may_lie_where_no_goal_is_drawn(monkeypatch):
    class Narrow(Point):
        def __init__(self):
            super().__init__()
            self.observation_space["desired_goal"] = spaces.Box(-0.2, 0.2, (2,), np.float32)

    monkeypatch.setattr(sys.modules[__name__], "Point", Narrow)
    buffer = fill(make(n_sampled_goal=4), 60)
    buffer.source.schedule = RetrainSchedule(every=10**6, start=10**6)
    batch = buffer.sample(200)
    assert (batch.observations["desired_goal"].abs() > 0.2).any()
    assert torch.equal(batch.rewards, rewards_of(batch))


@pytest.mark.parametrize(("strategy", "allowed"), [("future", "from it on"), ("final", "last"), ("episode", "any")])
@pytest.mark.parametrize("steps", [40, 75])  # partly full, wrapped around
def test_virtual_goals_are_those_that_the_strategy_allows(strategy, allowed, steps):
    buffer = fill(make(size=60, goal_selection_strategy=strategy), steps)
    buffer.her_ratio = 1.0  # no real goals
    buffer.source.schedule = RetrainSchedule(every=10**6, start=10**6)
    batch = buffer.sample(400)
    achieved = torch.from_numpy(buffer.next_observations["achieved_goal"][:, 0])
    seen = set()
    for place, goal in zip(batch.next_observations["achieved_goal"], batch.observations["desired_goal"], strict=True):
        taken, of_goal = ((one - achieved).abs().amax(1).argmin().item() for one in (place, goal))
        start = int(buffer.ep_start[taken, 0])
        number, chosen = ((one - start) % 60 for one in (taken, of_goal))
        assert chosen < LENGTH
        assert chosen in {"from it on": range(number, LENGTH), "last": (LENGTH - 1,), "any": range(LENGTH)}[allowed]
        seen.add((number, chosen))
    expected = {"from it on": 55, "last": 10, "any": 100}[allowed]
    assert 0.9 * expected <= len(seen) <= expected


def test_the_generator_gets_every_complete_transition_once_and_relabelled():
    buffer = fill(make(n_envs=2, real_ratio=0.5), 25)  # two complete episodes and a half in each environment
    assert len(buffer.source.real) == 40
    rows = buffer.source.real.transitions()
    assert rows.spec == transition_spec(buffer.observation_space, buffer.action_space, goals=True)
    assert sorted(rows.spec.observation_space.spaces) == ["achieved_goal", "observation"]
    stored = torch.from_numpy(buffer.observations["observation"][:20].reshape(-1, 3))
    assert sorted(rows.observations["observation"].tolist()) == sorted(stored.tolist())
    goals = torch.from_numpy(buffer.observations["desired_goal"][:20].reshape(-1, 2))
    own = among(goals_of(rows), goals)
    assert own.sum() == 8
    expected = Point().compute_reward(rows.next_observations["achieved_goal"].numpy(), goals_of(rows).numpy(), {})
    assert torch.equal(rows.rewards, torch.from_numpy(expected))
    assert torch.equal(rows.rows, buffer.source.real.transitions().rows)


def test_synthetic_rows_have_one_goal_before_and_after_the_step():
    buffer = fill(make(real_ratio=0.0), 60)
    batch = buffer.sample(64)
    assert buffer.source.refits == 1
    assert torch.equal(batch.observations["desired_goal"], batch.next_observations["desired_goal"])
    assert {key: value.shape for key, value in batch.observations.items()} == {
        "observation": (64, 3),
        "achieved_goal": (64, 2),
        "desired_goal": (64, 2),
    }
    assert set(batch.rewards.unique().tolist()) <= {-1.0, 0.0}


def test_info_reaches_the_rewards():
    class Counting(Point):
        def compute_reward(self, achieved, desired, info):
            return np.array([one["taken"] for one in info], np.float32) if len(np.shape(achieved)) > 1 else 0.0

    env = DummyVecEnv([Counting])
    spaces_of = env.observation_space, env.action_space
    buffer = SynthERHerBuffer(100, *spaces_of, env=env, device="cpu", copy_info_dict=True, n_sampled_goal=1, **OPTIONS)
    rows = fill(buffer, 30).source.real.transitions()
    virtual = rows.rewards > 0
    assert virtual.sum() == 15
    steps = rows.observations["observation"][:, 2] * LENGTH + 1
    assert torch.allclose(rows.rewards[virtual], steps[virtual])


@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_nothing_can_be_sampled_before_the_first_episode_ends(real_ratio):
    buffer = fill(make(real_ratio=real_ratio), LENGTH - 1)
    with pytest.raises(RuntimeError, match="episode"):
        buffer.sample(4)
    assert len(fill(make(real_ratio=real_ratio), LENGTH).sample(4).rewards) == 4


def test_drawing_leaves_the_global_generator_alone_and_follows_the_seed():
    first, again, other = (fill(make(seed=seed), 39) for seed in (1, 1, 2))
    np.random.seed(3)
    state = pickle.dumps(np.random.get_state())
    batch = first.sample(32)
    first.source.real.transitions()
    assert pickle.dumps(np.random.get_state()) == state
    np.random.seed(4)
    assert_same(batch, again.sample(32))
    assert_same(first.sample(32), again.sample(32))
    assert not torch.equal(batch.observations["desired_goal"], other.sample(32).observations["desired_goal"])


@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_rows_are_normalised_as_the_environment_does(real_ratio):
    env = VecNormalize(points(), norm_obs_keys=["observation", "desired_goal"], clip_reward=0.5)
    buffer = fill(make(real_ratio=real_ratio), 60, env.venv)
    env.reset()
    for _ in range(20):
        env.step(np.zeros((1, 2), np.float32))
    env.training = False
    plain = copy.deepcopy(buffer)
    plain.set_env(buffer.env)
    raw, batch = plain.sample(16), buffer.sample(16, env)
    for name in ("observations", "next_observations"):
        expected = env.normalize_obs({key: value.numpy() for key, value in getattr(raw, name).items()})
        for key, value in getattr(batch, name).items():
            assert np.array_equal(value.numpy(), expected[key])
    assert np.array_equal(batch.rewards.numpy(), env.normalize_reward(raw.rewards.numpy()).astype(np.float32))


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [SAC, TD3, DQN, FastSAC])
def test_algorithms_learn_across_refits(algorithm):
    env = BitFlippingEnv(n_bits=4, max_steps=5) if algorithm is DQN else None
    changes = {"gradient_steps": 2, "policy_delay": 2} if algorithm is FastSAC else {}
    trained = model(algorithm, env, **changes)
    before = parameters(trained)
    trained.learn(100, callback=SynthERCallback())
    assert trained.replay_buffer.source.refits == 2
    assert len(trained.replay_buffer.source.store) == 64
    assert parameters(trained).isfinite().all()
    assert not torch.equal(parameters(trained), before)


def test_a_run_with_one_seed_repeats_itself_exactly():
    runs = [model().learn(60) for _ in range(2)]
    assert torch.equal(*map(parameters, runs))
    assert torch.equal(*(run.replay_buffer.source.store.rows for run in runs))


def test_batches_drawn_at_once_are_those_drawn_one_by_one():
    first, second = (fill(make(n_envs=2), 60) for _ in range(2))
    together = first.sample_batches(3, 16)
    for k in range(3):
        alone = second.sample(16)
        assert torch.equal(together.rewards[16 * k : 16 * (k + 1)], alone.rewards)
        goals = together.observations["desired_goal"][16 * k : 16 * (k + 1)]
        assert torch.equal(goals, alone.observations["desired_goal"])


# --- saving, resetting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncated", [False, True])
def test_loaded_buffer_goes_on_as_if_it_was_never_saved(tmp_path, truncated):
    trained = model().learn(45)
    buffer = trained.replay_buffer
    trained.save(tmp_path / "model")
    trained.save_replay_buffer(tmp_path / "buffer")
    loaded = SAC.load(tmp_path / "model", env=trained.get_env(), device="cpu")
    assert type(loaded.replay_buffer) is SynthERHerBuffer
    loaded.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=truncated)
    again = loaded.replay_buffer
    if truncated:
        assert len(again.source.real) == 45
        again.sample(16)
    else:
        for steps in (0, 10, 40):
            for each in (buffer, again):
                fill(each, steps, points())
            assert_same(buffer.sample(16), again.sample(16))
        assert again.source.refits == buffer.source.refits == 2
    loaded.learn(10, reset_num_timesteps=False)


def test_reset_forgets_all_episodes():
    buffer = fill(make(), 60)
    buffer.sample(8)
    buffer.reset()
    assert len(buffer.source.real) == len(buffer.source.store) == 0
    with pytest.raises(RuntimeError, match="episode"):
        buffer.sample(4)
    assert len(fill(buffer, 20).source.real) == 20


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"n_sampled_goal": -1}, ValueError, "n_sampled_goal"),
        ({"n_sampled_goal": 1.5}, TypeError, "n_sampled_goal"),
        ({"goal_selection_strategy": "past"}, ValueError, "future"),
        ({"goal_selection_strategy": None}, ValueError, "future"),
        ({"real_ratio": 2}, ValueError, "real_ratio"),
        ({"n_steps": 2}, ValueError, "n_steps"),
        ({"unknown": 2}, TypeError, "unknown"),
    ],
)
def test_wrong_option_is_named(options, error, word):
    with pytest.raises(error, match=word):
        make(**options)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.Dict(observation=spaces.Box(-1, 1, (2,)))], ids=str)
def test_observations_without_goals_are_refused(space):
    with pytest.raises(ValueError, match="desired_goal"):
        SynthERHerBuffer(10, space, spaces.Box(-1, 1, (1,)), env=None, device="cpu")


def test_it_is_a_buffer_of_both_kinds():
    buffer = make()
    assert isinstance(buffer, SynthERBuffer)
    assert isinstance(buffer, HerReplayBuffer)
    assert isinstance(buffer.source.real, _her.RelabelledRows)
