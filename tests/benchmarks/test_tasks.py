"""Tasks by name, their episodes, and the way back into one: on Pendulum everywhere, on MuJoCo where it is installed."""

import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from synther_replay.benchmarks.environments import tasks
from synther_replay.benchmarks.environments.parallel import EpisodeStream
from synther_replay.benchmarks.environments.tasks import Task, make_environment

PENDULUM = "Pendulum-v1"
MAZES = {"maze2d-umaze": 300, "maze2d-medium": 600, "maze2d-large": 800}  # with the steps of an episode
ANTS = ("ant-goal", "antmaze-umaze", "antmaze-medium", "antmaze-large")
MUJOCO = ("HalfCheetah-v5", "Hopper-v5", *MAZES, *ANTS)
CONTROL_SUITE = ("cheetah-run", "quadruped-walk", "reacher-hard")


def need(name):
    """Skip a test where the simulator of the task is not installed."""
    if name in MUJOCO:
        pytest.importorskip("mujoco")
    if name in CONTROL_SUITE:
        pytest.importorskip("dm_control")


def random_actions(count, dim, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, dim)).astype(np.float32)


def episode(environment, seed, steps=20):
    """Everything that is seen in the first steps of an episode."""
    seen = [environment.reset(seed)]
    for action in random_actions(steps, environment.action_dim):
        after = environment.step(action)
        seen += [after.observation, np.array([after.reward])]
    return np.concatenate(seen)


class TestNames:
    def test_gymnasium(self):
        assert Task.named(PENDULUM) == Task(PENDULUM, "gym", 3, 1, -1.0)

    def test_a_suffix_repeats_actions(self):
        assert Task.named(f"{PENDULUM}-repeat2") == Task(f"{PENDULUM}-repeat2", "gym", 3, 1, -1.0)

    def test_control_suite(self):
        pytest.importorskip("dm_control")
        assert Task.named("cheetah-run") == Task("cheetah-run", "dmc", 17, 6, -6.0)

    @pytest.mark.parametrize("name", MAZES)
    def test_mazes(self, name):
        need(name)
        assert Task.named(name) == Task(name, "gym", 4, 2, -2.0)

    @pytest.mark.parametrize(("name", "seen"), [(name, 28 if name == "ant-goal" else 29) for name in ANTS])
    def test_ants(self, name, seen):
        need(name)
        assert Task.named(name) == Task(name, "gym", seen, 8, -8.0)

    @pytest.mark.parametrize("maze", ["maze2d", "antmaze"])
    def test_a_maze_of_another_size_is_refused_with_those_there_are(self, maze):
        need("maze2d-umaze")
        with pytest.raises(ValueError, match="size: expected one of umaze, medium, large, got 'huge'"):
            Task.named(f"{maze}-huge")

    def test_an_unknown_task_is_refused_with_suggestions(self):
        with pytest.raises(ValueError, match=r"env: unknown task 'Pendulun-v1'; did you mean .*Pendulum-v1"):
            Task.named("Pendulun-v1")

    def test_suggestions_include_the_control_suite(self):
        pytest.importorskip("dm_control")
        with pytest.raises(ValueError, match=r"did you mean .*cheetah-run"):
            Task.named("cheetah-rum")

    @pytest.mark.parametrize("name", ["", "nothing like it", "../.."])
    def test_without_suggestions_examples_are_listed(self, name):
        with pytest.raises(ValueError, match="examples: cheetah-run"):
            Task.named(name)

    def test_where_dm_control_is_missing_the_error_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "dm_control", None)
        with pytest.raises(ValueError, match=r"unknown task 'cheetah-run'.*dm_control.* is not installed"):
            Task.named("cheetah-run")
        assert Task.named(PENDULUM).observation_dim == 3

    def test_where_a_simulator_is_missing_the_error_names_it(self, monkeypatch):
        def missing(name):
            raise gym.error.DependencyNotInstalled("MuJoCo is not installed")

        monkeypatch.setattr(gym, "make", missing)
        with pytest.raises(ValueError, match=r"env: HalfCheetah-v5 requires .*MuJoCo is not installed"):
            Task.named("HalfCheetah-v5")

    def test_a_maze_where_its_simulator_is_missing(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "synther_replay.benchmarks.environments.maze2d", raising=False)
        monkeypatch.setitem(sys.modules, "mujoco", None)
        with pytest.raises(ValueError, match=r"env: maze2d-umaze requires .*mujoco"):
            Task.named("maze2d-umaze")

    def test_discrete_actions_are_refused(self):
        with pytest.raises(ValueError, match=r"env: expected .* got .*Discrete\(2\) from CartPole-v1"):
            Task.named("CartPole-v1")

    @pytest.mark.parametrize(
        ("observations", "actions"),
        [
            (gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-np.inf, 1, (1,))),
            (gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,))), gym.spaces.Box(-1, 1, (1,))),
        ],
    )
    def test_unbounded_actions_and_structured_observations_are_refused(self, monkeypatch, observations, actions):
        spaces = SimpleNamespace(observation_space=observations, action_space=actions)
        monkeypatch.setattr(gym, "make", lambda name: spaces)
        with pytest.raises(ValueError, match="env: expected Box observations and bounded Box actions"):
            Task.named(PENDULUM)

    def test_a_task_without_an_end_is_refused(self):
        pytest.importorskip("dm_control")
        with pytest.raises(ValueError, match="env: lqr-lqr_2_1 has no time limit"):
            Task.named("lqr-lqr_2_1")


@pytest.mark.parametrize(
    ("name", "actions", "entropy"),
    [
        ("Hopper-v5", 3, -1.0),
        ("HalfCheetah-v4", 6, -3.0),
        ("Walker2d-v5", 6, -3.0),
        ("Ant-v5", 8, -4.0),
        ("Humanoid-v5", 17, -2.0),
        ("HumanoidStandup-v5", 17, -17.0),
        ("Reacher-v5", 2, -2.0),
    ],
)
def test_target_entropies_are_those_of_mbpo_else_minus_the_actions(monkeypatch, name, actions, entropy):
    stand_in = SimpleNamespace(observation_dim=4, action_dim=actions)
    monkeypatch.setattr(tasks, "make_environment", lambda name: stand_in)
    assert Task.named(name).target_entropy == entropy


class TestGymnasium:
    def test_actions_are_scaled_to_the_bounds(self, monkeypatch):
        environment = make_environment(PENDULUM)
        environment.reset(0)
        taken = []
        step = environment._env.step
        monkeypatch.setattr(environment._env, "step", lambda action: (taken.append(action), step(action))[1])
        for action in (-1.0, 0.0, 0.25, 1.0):
            environment.step(np.array([action], np.float32))
        assert np.concatenate(taken).tolist() == [-2.0, 0.0, 0.5, 2.0]

    def test_bounds_need_not_be_symmetric_nor_actions_flat(self, monkeypatch):
        taken = []
        spaces = SimpleNamespace(
            observation_space=gym.spaces.Box(-1, 1, (2, 2)),
            action_space=gym.spaces.Box(np.array([[0.0, -3.0]], np.float32), np.array([[4.0, 1.0]], np.float32)),
            step=lambda action: (taken.append(action), (np.ones((2, 2)), 1, False, False, {}))[1],
        )
        monkeypatch.setattr(gym, "make", lambda name: spaces)
        environment = make_environment(PENDULUM)
        after = environment.step(np.array([-1.0, 1.0], np.float32))
        assert (environment.observation_dim, environment.action_dim) == (4, 2)
        assert taken[0].tolist() == [[0.0, 1.0]]
        assert after.observation.shape == (4,)
        assert after.observation.dtype == np.float32

    def test_the_time_limit_truncates_and_does_not_terminate(self):
        environment = make_environment(PENDULUM)
        environment.reset(0)
        ends = [environment.step(np.zeros(1, np.float32))[2:] for _ in range(200)]
        assert set(ends[:-1]) == {(False, False)}
        assert ends[-1] == (False, True)

    @pytest.mark.parametrize("name", MAZES)
    def test_a_maze_is_left_at_its_time_limit_with_what_was_earned(self, name):
        need(name)
        environment = make_environment(name)
        environment.reset(0)
        steps = [environment.step(action) for action in random_actions(MAZES[name], 2)]
        assert {step[2:] for step in steps[:-1]} == {(False, False)}
        assert steps[-1][2:] == (False, True)
        assert {step.reward for step in steps} <= {0.0, 1.0}

    def test_a_fall_terminates(self):
        pytest.importorskip("mujoco")
        environment = make_environment("Hopper-v5")
        environment.reset(0)
        ends = [environment.step(action)[2:] for action in random_actions(200, 3)]
        assert (True, False) in ends


class FakeControl:
    """What a task of DeepMind Control looks like from outside; `ending` is what its third step gives."""

    _step_limit = 3.0

    def __init__(self, ending):
        self.ending, self.steps, self.taken = ending, 0, []
        self.task = SimpleNamespace(_random=None)

    def action_spec(self):
        return SimpleNamespace(shape=(2,), minimum=np.array([-1.0, 0.0]), maximum=np.array([1.0, 10.0]))

    def observation_spec(self):
        return {"position": SimpleNamespace(shape=(2,)), "height": SimpleNamespace(shape=())}

    def reset(self):
        self.steps = 0
        return self._after(None, 1.0, False)

    def step(self, action):
        self.taken.append(action)
        self.steps += 1
        return self._after(0.5, *self.ending) if self.steps == 3 else self._after(0.5, 1.0, False)

    def _after(self, reward, discount, last):
        observation = {"position": self.task._random.uniform(size=2), "height": self.steps}
        return SimpleNamespace(observation=observation, reward=reward, discount=discount, last=lambda: last)


class TestControlSuite:
    def make(self, ending=(1.0, True)):
        return tasks._ControlSuite("fake", FakeControl(ending), FloatingPointError)

    def test_parts_of_an_observation_lie_side_by_side(self):
        environment = self.make()
        assert (environment.observation_dim, environment.action_dim) == (3, 2)
        found = environment.reset(0)
        assert (found.shape, found.dtype, found[2]) == ((3,), np.float32, 0.0)

    def test_actions_are_scaled_to_the_bounds(self):
        environment = self.make()
        environment.reset(0)
        environment.step(np.array([-1.0, -1.0], np.float32))
        environment.step(np.array([0.5, 1.0], np.float32))
        assert [action.tolist() for action in environment._env.taken] == [[-1.0, 0.0], [0.5, 10.0]]

    @pytest.mark.parametrize(
        ("ending", "terminated", "truncated"),
        [((1.0, True), False, True), ((0.0, True), True, False), ((0.0, False), False, False)],
    )
    def test_only_an_end_without_a_future_terminates(self, ending, terminated, truncated):
        environment = self.make(ending)
        environment.reset(0)
        ends = [environment.step(np.zeros(2, np.float32))[2:] for _ in range(3)]
        assert ends == [(False, False), (False, False), (terminated, truncated)]

    def test_a_diverged_simulation_gives_nan(self, monkeypatch):
        def blow_up(action):
            raise FloatingPointError

        environment = self.make()
        environment.reset(0)
        monkeypatch.setattr(environment._env, "step", blow_up)
        after = environment.step(np.zeros(2, np.float32))
        assert (after.observation.shape, after.observation.dtype) == ((3,), np.float32)
        assert np.isnan(after.observation).all()
        assert np.isnan(after.reward)
        assert after[2:] == (False, False)

    def test_episodes_follow_their_seed(self):
        environment = self.make()
        first, other, again = (environment.reset(seed) for seed in (2**31 - 1, 1, 2**31 - 1))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_the_time_limit_truncates_and_does_not_terminate(self):
        pytest.importorskip("dm_control")
        environment = make_environment("reacher-hard")
        environment.reset(0)
        ends = [environment.step(np.zeros(2, np.float32))[2:] for _ in range(1000)]
        assert set(ends[:-1]) == {(False, False)}
        assert ends[-1] == (False, True)


@pytest.mark.parametrize("name", [PENDULUM, *MUJOCO, *CONTROL_SUITE])
def test_an_episode_follows_its_seed_alone(name):
    need(name)
    one, other = make_environment(name), make_environment(name)
    first = episode(one, 7)
    different = episode(one, 8)  # leaves something behind that must not matter
    assert np.array_equal(first, episode(one, 7))
    assert np.array_equal(first, episode(other, 7))
    assert not np.array_equal(first[: one.observation_dim], different[: one.observation_dim])


class TestEpisodeStream:
    def test_the_next_episode_begins_by_itself(self):
        stream = EpisodeStream(PENDULUM, 3)
        for action in random_actions(199, 1):
            after = stream.step(action)
            assert stream.observation is after.observation
        assert stream.episode == 0
        last = stream.step(np.zeros(1, np.float32))
        assert (last.terminated, last.truncated, stream.episode) == (False, True, 1)
        # where the action led is no place to act from: the next episode has started elsewhere
        assert not np.array_equal(stream.observation, last.observation)
        started = stream.observation
        stream.replay_to(1, np.zeros((0, 1), np.float32))
        assert np.array_equal(stream.observation, started)

    def test_each_episode_begins_elsewhere_and_each_seed_too(self):
        started = []
        for seed in (0, 1):
            stream = EpisodeStream(PENDULUM, seed)
            for number in range(3):
                stream.replay_to(number, np.zeros((0, 1), np.float32))
                started.append(stream.observation.tobytes())
        assert len(set(started)) == 6

    @pytest.mark.parametrize(
        ("name", "steps"),
        [
            (PENDULUM, 450),
            ("HalfCheetah-v5", 60),
            ("Hopper-v5", 90),
            ("maze2d-umaze", 330),
            ("ant-goal", 40),
            ("antmaze-umaze", 40),
            *((name, 40) for name in CONTROL_SUITE),
        ],
    )
    def test_replay_restores_the_exact_state(self, name, steps):
        need(name)
        stream = EpisodeStream(name, 5)
        actions = random_actions(steps + 10, stream.environment.action_dim)
        started = 0
        for k in range(steps):
            before = stream.episode
            stream.step(actions[k])
            started = k + 1 if stream.episode > before else started
        assert name not in (PENDULUM, "Hopper-v5", "maze2d-umaze") or stream.episode > 0
        # the second one has already been elsewhere
        fresh, used = EpisodeStream(name, 5), EpisodeStream(name, 5)
        for action in actions[:7]:
            used.step(action)
        for other in (fresh, used):
            other.replay_to(stream.episode, actions[started:steps])
            assert other.observation.tobytes() == stream.observation.tobytes()
            assert other.episode == stream.episode
        for action in actions[steps:]:
            expected = stream.step(action)
            for other in (fresh, used):
                found = other.step(action)
                assert found.observation.tobytes() == expected.observation.tobytes()
                assert found[1:] == expected[1:]


class TestRepeated:
    def test_an_action_is_taken_twice_and_rewards_are_summed(self):
        twice, once = make_environment(f"{PENDULUM}-repeat2"), make_environment(PENDULUM)
        np.testing.assert_array_equal(twice.reset(3), once.reset(3))
        for action in random_actions(5, 1):
            first, second, both = once.step(action), once.step(action), twice.step(action)
            np.testing.assert_array_equal(both.observation, second.observation)
            assert both.reward == first.reward + second.reward

    def test_an_episode_ends_within_a_repetition(self):
        environment = make_environment(f"{PENDULUM}-repeat3")  # 200 steps
        environment.reset(0)
        ends = [environment.step(np.zeros(1)).truncated for _ in range(67)]
        assert ends == [False] * 66 + [True]
