"""The ant mazes: maps, walls, episodes and rewards; and the goal-reaching task that trains the ant."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("mujoco")
from synther_replay.benchmarks.environments.ant import Ant, seen_from_ant, upright
from synther_replay.benchmarks.environments.ant_goal import AntGoal
from synther_replay.benchmarks.environments.ant_maps import ANT_MAPS, AntMap, at_goal, centre, draw_goal
from synther_replay.benchmarks.environments.antmaze import AntMaze, ant_in
from synther_replay.benchmarks.environments.mazes import MAZES, Routes

PUSH = 2.0  # metres per second, faster than the ant walks


def standing(x=0.0, y=0.0, seed=0):
    return Ant().stand(x, y, np.random.default_rng(seed))


def turned(state, angle):
    """The same ant after a turn of the whole world about the vertical."""
    cosine, sine = math.cos(angle), math.sin(angle)
    turn = np.array([[cosine, -sine], [sine, cosine]])
    (w, x, y, z), half = state[3:7], angle / 2
    after = state.copy()
    after[:2], after[15:17] = turn @ state[:2], turn @ state[15:17]
    c, s = math.cos(half), math.sin(half)
    after[3:7] = c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w
    return after, turn


class TestMaps:
    def test_walls_are_those_of_the_ball(self):
        assert {size: ant_map.maze for size, ant_map in ANT_MAPS.items()} == MAZES

    @pytest.mark.parametrize(
        ("size", "limit", "goal", "starts"),
        [("umaze", 700, (0, 8), 1), ("medium", 1000, (20, 20), 23), ("large", 1000, (32, 24), 39)],
    )
    def test_limits_goals_and_starts_are_those_of_d4rl(self, size, limit, goal, starts):
        ant_map = AntMap.named(size)
        assert (ant_map.limit, tuple(centre(ant_map.goal)), len(ant_map.start_cells)) == (limit, goal, starts)
        assert {*ant_map.goals, ant_map.goal} <= set(ant_map.maze.open_cells)

    @pytest.mark.parametrize("size", ANT_MAPS)
    def test_starts_and_goals_of_a_data_set_lie_in_their_cells(self, size):
        ant_map, rng = AntMap.named(size), np.random.default_rng(0)
        starts = np.array([ant_map.draw_start(rng) for _ in range(300)])
        from_centre = np.array([starts - centre(cell) for cell in ant_map.start_cells])
        nearest = np.abs(from_centre).max(2).argmin(0)
        assert len(set(nearest.tolist())) == len(ant_map.start_cells)
        assert np.abs(from_centre[nearest, np.arange(300)]).max() <= 1
        goals = np.array([draw_goal(ant_map.goal, rng) for _ in range(500)]) - centre(ant_map.goal)
        assert goals.min() > 0
        assert 1.3 < goals.max() < 1.5
        assert np.allclose(goals.mean(0), ant_map.reward_goal - centre(ant_map.goal), atol=0.05)

    def test_an_unknown_size_is_refused(self):
        with pytest.raises(ValueError, match="size: expected one of umaze, medium, large, got 'huge'"):
            AntMaze("huge")


class TestPhysics:
    def test_a_step_takes_a_tenth_of_a_second(self):
        ant = Ant()
        state = np.zeros(29)
        state[2], state[3], state[15] = 50.0, 1.0, 3.0  # thrown high up, where nothing is touched
        state[8:15:2] = 0.9, -0.9, -0.9, 0.9  # ankles within their limits, which would push else
        ant.place(state)
        after = ant.step(np.zeros(8))
        assert after[0] == pytest.approx(0.3, abs=1e-3)
        assert after[17] == pytest.approx(-0.981, abs=1e-3)

    @pytest.mark.parametrize("size", ["umaze", "large"])
    def test_walls_stop_the_ant(self, size):
        maze = MAZES[size]
        ant, open_cells, rng = ant_in(maze), set(maze.open_cells), np.random.default_rng(1)
        touched = 0
        for cell in maze.open_cells[:: len(maze.open_cells) // 4]:
            for angle in (0.0, math.pi / 2, math.pi, -math.pi / 2):
                state = ant.stand(*centre(cell), rng)
                for _ in range(20):
                    before = state[:2]
                    state[15:17] = PUSH * math.cos(angle), PUSH * math.sin(angle)
                    ant.place(state)
                    state = ant.step(np.zeros(8))
                    touched += math.hypot(*(state[:2] - before)) < 0.05 * PUSH
                    column, row = np.round(state[:2] / 4).astype(int) + 1
                    assert (row, column) in open_cells
        assert touched > 20

    def test_nothing_stops_it_in_the_open_plane(self):
        ant = Ant()
        state = standing()
        for _ in range(20):
            state[15] = PUSH
            ant.place(state)
            state = ant.step(np.zeros(8))
        assert state[0] > 2.5

    def test_motors_are_clipped_to_one(self):
        ant, results = Ant(), []
        for size in (1.0, 50.0):
            ant.place(standing())
            results.append(ant.step(np.full(8, size)).tolist())
        assert results[0] == results[1]

    def test_a_step_depends_on_the_state_alone(self):
        ant, state, action = ant_in(MAZES["umaze"]), standing(1.2, 0.5), np.linspace(-1, 1, 8)
        ant.place(state)
        first = ant.step(action)
        for _ in range(30):
            ant.step(-action)
        ant.place(state)
        assert np.array_equal(ant.step(action), first)


class TestView:
    def test_is_the_same_wherever_the_ant_stands_and_looks(self):
        rng = np.random.default_rng(0)
        state = standing()
        state[3:7] = (quaternion := rng.normal(size=4)) / np.linalg.norm(quaternion)
        state[15:] = rng.normal(size=14)
        target = np.array([2.0, -1.0])
        expected = seen_from_ant(state, target)
        assert (expected.shape, expected.dtype) == ((28,), np.float32)
        for angle in (0.7, -2.5):
            after, turn = turned(state, angle)
            after[:2] += 5.0
            np.testing.assert_allclose(seen_from_ant(after, turn @ target + 5.0), expected, atol=1e-5)

    def test_shows_the_direction_and_not_the_distance(self):
        state = standing()
        state[3:7] = math.cos(math.pi / 4), 0, 0, math.sin(math.pi / 4)  # looks along y
        for distance in (0.1, 30.0):
            np.testing.assert_allclose(seen_from_ant(state, np.array([0.0, distance]))[-2:], (1, 0), atol=1e-6)
        assert np.isfinite(seen_from_ant(state, state[:2])).all()

    def test_of_an_ant_on_its_back(self):
        state = standing()
        state[3:7] = 0, 1, 0, 0
        assert upright(state) == -1
        np.testing.assert_allclose(seen_from_ant(state, np.ones(2))[1:4], (0, 0, -1), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*infinity")
@pytest.mark.parametrize("make", [lambda: AntMaze("umaze"), AntGoal], ids=["maze", "goal"])
class TestEnvironments:
    def test_is_a_gymnasium_environment(self, make):
        check_env(make(), skip_render_check=True)

    def test_follows_its_seed(self, make):
        def episode(env, seed):
            actions = np.random.default_rng(3).uniform(-1, 1, (40, 8))
            return np.array([env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)])

        one, other = make(), make()
        first, different = episode(one, 7), episode(one, 8)
        assert np.array_equal(first, episode(one, 7))
        assert np.array_equal(first, episode(other, 7))
        assert not np.array_equal(first, different)

    @pytest.mark.parametrize("action", [np.zeros(3), np.full(8, np.nan)], ids=repr)
    def test_a_bad_action_is_refused(self, make, action):
        env = make()
        with pytest.raises(gym.error.ResetNeeded):
            env.step(np.zeros(8))
        env.reset(seed=0)
        with pytest.raises(ValueError, match="action: expected 8 finite numbers"):
            env.step(action)


class TestMaze:
    def test_episodes_start_at_the_origin_with_goals_of_their_own(self):
        env = AntMaze("medium")
        starts, goals = [], []
        for seed in range(40):
            starts.append(env.reset(seed=seed)[0])
            goals.append(env.goal)
        assert 0.05 < np.abs(np.array(starts)[:, :2]).max() <= 0.1
        assert np.allclose(np.linalg.norm(np.array(starts)[:, 3:7], axis=1), 1)
        assert len({tuple(goal) for goal in goals}) == 40
        assert np.min(goals) >= 20
        assert np.max(goals) < 21.5

    def test_only_the_goal_is_rewarded_and_terminates(self):
        env = AntMaze("umaze")
        goal = np.array([0.9, 8.3])
        for offset, expected in ((0.3, True), (0.7, False)):
            env.set_state(standing(goal[0] - offset, goal[1]), goal)
            _, reward, terminated, truncated, _ = env.step(np.zeros(8))
            assert (reward, terminated, truncated) == (float(expected), expected, False)

    def test_the_limit_truncates(self):
        env = AntMaze("umaze")
        env.reset(seed=0)
        ends = [env.step(np.zeros(8))[2:4] for _ in range(700)]
        assert set(ends[:-1]) == {(False, False)}
        assert ends[-1] == (False, True)

    def test_near_is_within_half_a_metre(self):
        rows = np.zeros((2, 29))
        rows[:, 0], rows[:, 1] = (1.49, 1.51), 2.0
        assert at_goal(np.array([1.0, 2.0]), rows).tolist() == [True, False]

    @pytest.mark.parametrize(("name", "wrong"), [("state", 28), ("goal", 3)])
    def test_a_bad_state_or_goal_is_refused(self, name, wrong):
        arguments = {"state": standing(), "goal": np.zeros(2), name: np.zeros(wrong)}
        with pytest.raises(ValueError, match=f"{name}: expected"):
            AntMaze("umaze").set_state(**arguments)


class TestGoalTask:
    def test_the_reward_is_one_and_the_speed_towards_the_goal(self):
        env = AntGoal()
        env.reset(seed=1)
        goal = env._goal
        before = env._ant.state
        _, reward, terminated, truncated, _ = env.step(np.ones(8))
        moved = np.hypot(*(goal - before[:2])) - np.hypot(*(goal - env._ant.state[:2]))
        assert reward == pytest.approx(1 + 10 * moved)
        assert (terminated, truncated) == (False, False)

    def test_a_hundred_steps_later_there_is_a_new_goal_around_the_ant(self):
        env = AntGoal()
        env.reset(seed=1)
        first = env._goal
        for _ in range(99):
            env.step(np.zeros(8))
            assert env._goal is first
        observation, *_ = env.step(np.zeros(8))
        assert not np.array_equal(env._goal, first)
        assert np.hypot(*(env._goal - env._ant.state[:2])) < 10
        assert np.array_equal(observation, seen_from_ant(env._ant.state, env._goal))
        assert abs(env.step(np.zeros(8))[1] - 1) < 5  # the way to the new goal is no speed

    def test_an_ant_on_its_back_has_lost(self):
        env = AntGoal()
        env.reset(seed=0)
        state = standing()
        state[2:7] = 0.3, 0, 1, 0, 0
        env._ant.place(state)
        assert env.step(np.zeros(8))[2]


def test_routes_lead_around_walls():
    assert Routes(MAZES["umaze"]).path((1, 1), (3, 1)) == [(1, 2), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1)]
    assert Routes(MAZES["umaze"]).following((3, 1), (3, 1)) == (3, 1)
