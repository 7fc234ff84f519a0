"""The mazes: physics against D4RL's own, walls, episodes and rewards."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("mujoco")
from synther_replay.benchmarks.environments.maze2d import Ball, Maze2d, State, at_goal
from synther_replay.benchmarks.environments.mazes import MAZES, Maze
from synther_replay.benchmarks.environments.parallel import EpisodeStream

# State, action and next state per line: float32 transitions of D4RL's own generator, away from walls. In 20,000 checked
# transitions the largest difference was 4.8e-7, the rounding error of float32 near 5.
FREE = {
    "umaze": """
        0.9893231 1.1338012 0.30250788 -3.197788  -0.19573842 1.0  0.99187475 1.1042811 0.2551696 -2.952008
        0.89219123 2.3425956 0.15284303 5.1262403  -0.057725463 0.0500636  0.8935785 2.3925958 0.1387309 5.0000153
        2.1279562 2.9055574 4.191951 -0.43152696  1.0 0.10605975  2.1721575 2.901505 4.420131 -0.40523964
        2.968383 1.4084877 0.5261842 -4.8731914  -0.21001561 0.788315  2.9731324 1.3617493 0.4749129 -4.6738367
        2.8136818 2.7224376 0.00333506 3.7121298  0.012744137 -1.0  2.8137455 2.757089 0.0063623097 3.4651248
        2.3860471 2.8509572 5.047702 0.2348053  -0.14920826 -0.09458125  2.4355726 2.8530743 4.9525557 0.21172024
        2.837287 2.272739 0.011445927 5.0782437  -0.0052921106 1.0  2.8373885 2.3250015 0.010158278 5.2262554
        0.99330205 1.8384905 0.11480629 -3.7047262  -0.047826696 -1.0  0.99433345 1.7991498 0.10314227 -3.9340665
        2.8158278 2.8009737 -0.22762057 1.9293158  -1.0 -1.0  2.8111753 2.8178394 -0.4652423 1.686557
    """,
    "medium": """
        4.6356792 5.915547 -5.104606 -0.7938432  -1.0 0.2496428  4.583417 5.908222 -5.2262554 -0.7324967
        3.401384 4.0101566 4.2122054 -0.87610346  0.21222469 0.07467538  3.4439113 4.001594 4.2527175 -0.8562319
        4.3542495 3.881297 -5.0592475 -0.0066573187  0.042066693 0.016563008  4.3044686 3.88127 -4.978073 -0.0026967537
        5.4088187 5.956678 5.012744 0.2806864  -0.31013465 -0.114702545  5.457961 5.9592047 4.914229 0.2526999
        4.002692 1.1147825 -0.014680003 -2.505747  -0.012242026 1.0  4.0025167 1.0921663 -0.017560648 -2.2616155
        2.990091 2.2794795 0.08370028 -4.869974  -0.047242414 0.7993077  2.9908135 2.2327993 0.0722495 -4.6680098
        1.6107013 0.90466714 -3.4449255 0.8434312  -1.0 0.109897465  1.5739524 0.9133431 -3.6748848 0.86759603
        2.469917 1.9656558 5.017103 -0.21938677  -0.23096004 0.09211819  2.519248 1.9636865 4.9330854 -0.19692506
        2.8226988 1.8138628 -0.9889971 -1.5710245  -1.0 1.0  2.8104508 1.8005717 -1.2248055 -1.3291191
    """,
}

# The same at walls, computed with D4RL's model in MuJoCo 2.2.0, the oldest version that pip installs: four with the
# ball at a wall, two at the edge of a wall, two at two walls. In 9,600 checked transitions the largest difference was
# 3e-13. D4RL's unchanged model differs by 0.06 on average in MuJoCo 3.
TOUCHING = {
    "umaze": """
        1.3707 3.1982 -5.0 -0.0002  -0.1495 0.2404  1.320463027 3.1981911555 -5.0236973021 -0.0008844452
        3.1981 2.3684 0.001 1.8268  0.2057 0.3102  3.1981104513 2.3873632765 0.0010451292 1.8963276462
        0.9746 3.1985 -5.0 -0.0006  -1.0 1.0  0.9223374435 3.1985008569 -5.2262556483 8.56873e-05
        2.6164 0.4015 1.7281 -0.0  0.2198 -0.8356  2.634163327 0.4015192005 1.7763327028 0.0019200536
        2.3526 2.3486 -4.7354 -5.0  0.5061 -0.1215  2.3628204373 2.3504079765 1.0220437336 0.1807976498
        1.2597 2.3815 0.3539 1.4656  0.7668 0.5785  1.2650568117 2.3974988725 0.535681171 1.5998872524
        3.1983 3.2001 -0.0 -0.0762  0.423 0.1381  3.1982923841 3.1995896537 -0.0007615884 -0.051034625
        3.1985 3.1985 -0.0 -0.0  1.0 1.0  3.1985008785 3.1985008785 8.78507e-05 8.78507e-05
    """,
    "medium": """
        5.2171 4.1865 -0.744 -0.3433  -0.0052 0.0586  5.2096653349 4.1832147402 -0.743466513 -0.3285259825
        6.1984 1.0377 -0.0005 -2.0764  0.6018 -0.0375  6.1983871035 1.0168961409 -0.0012896518 -2.08038591
        4.2073 5.124 -0.4038 5.0  0.9594 0.948  4.2050776667 5.1761387113 -0.222233327 5.2138711286
        0.4015 6.0917 0.0 -2.1236  -1.0 -1.0  0.4014991215 6.0681329381 -8.78507e-05 -2.356706193
        4.3707 3.3214 -5.0 1.1483  -0.1495 0.2404  4.370594534 3.3486023736 -0.0105465991 2.7202373621
        4.2242 4.2328 0.2125 -0.2703  1.0 1.0  4.22630848 4.2303634909 0.2108479957 -0.2436509116
        5.1981 4.1983 -0.0014 0.0014  0.0643 0.6265  5.1980869531 4.1983229228 -0.0013046883 0.0022922795
        0.4016 6.2034 -0.0004 -0.8039  -0.7269 -0.3748  0.4015956389 6.1944875079 -0.0004361073 -0.8912492083
    """,
    "large": """
        7.1985 8.0579 0.0 -1.1693  1.0 1.0  7.1985008785 8.0486164869 8.78507e-05 -0.9283513099
        5.1984 6.8336 -0.0013 -1.0829  0.5793 -0.8145  5.1983839343 6.8208569463 -0.0016065741 -1.2743053717
        5.0199 4.1985 -5.0 -0.0  -1.0 1.0  4.9676374435 4.1985008785 -5.2262556483 8.78507e-05
        3.1985 4.9867 0.0034 -0.8997  1.0 -1.0  3.1985010011 4.9753427892 0.0001001105 -1.1357210803
        2.3555 9.3076 2.5707 -0.8967  -1.0 -1.0  2.3787641368 9.2962727177 2.3264136818 -1.1327282252
        5.2371 6.2665 -0.7382 -1.8295  -0.1691 -0.6347  5.2293328462 6.2467369462 -0.7767153799 -1.976305382
        7.1994 2.1985 -0.0366 -0.0  1.0 1.0  7.1991309955 2.1985008785 -0.0269004512 8.78507e-05
        7.1981 2.1983 -0.0014 0.0014  0.0643 0.6265  7.1980869531 2.1983229228 -0.0013046883 0.0022922795
    """,
}


def steps_from(size, table, dtype):
    """Simulated and expected next states of a table of transitions."""
    rows = np.array(table.split(), dtype).astype(np.float64).reshape(-1, 10)
    env = Maze2d(size)
    found = []
    for row in rows:
        env.set_state(row[:4])
        found.append(env.step(row[4:6])[0])
    return np.array(found), rows[:, 6:]


def clearance(maze, state):
    """Distance from the centre of the ball (radius 0.1) to the nearest wall."""
    outside = np.abs(np.array(maze.where("#")) - 0.2 - state[:2]) - 0.5
    return np.hypot(*np.maximum(outside, 0).T).min()


class TestPhysics:
    @pytest.mark.parametrize("size", FREE)
    def test_rolls_as_in_d4rl(self, size):
        found, expected = steps_from(size, FREE[size], np.float32)
        assert np.abs(found - expected).max() < 5e-7

    @pytest.mark.parametrize("size", TOUCHING)
    def test_bounces_off_walls_as_in_d4rl(self, size):
        found, expected = steps_from(size, TOUCHING[size], np.float64)
        assert np.abs(found - expected).max() < 1e-9

    @pytest.mark.parametrize("size", MAZES)
    def test_no_wall_is_passed_through(self, size):
        maze, rng = MAZES[size], np.random.default_rng(0)
        ball, clearances = Ball(maze), []
        for cell in maze.open_cells:
            for angle in rng.uniform(0, 2 * math.pi, 6):
                along_x, along_y = math.cos(angle), math.sin(angle)
                ball.place(State(*cell, 5 * along_x, 5 * along_y))
                clearances += [clearance(maze, ball.push(along_x, along_y)) for _ in range(80)]
        assert min(clearances) > 0.04  # walls give way a bit
        assert np.mean(np.array(clearances) < 0.102) > 0.3  # the margin counts as touched

    def test_actions_are_clipped_to_one(self):
        env = Maze2d("umaze")
        results = []
        for action in ((1.0, -1.0), (7.0, -1e9)):
            env.set_state(np.array([1.0, 1.0, 0.0, 0.0]))
            results.append(env.step(np.array(action))[0].tolist())
        assert results[0] == results[1]

    def test_a_step_depends_on_the_state_alone(self):
        env = Maze2d("medium")
        state, action = np.array([4.37, 3.32, -5.0, 1.15]), np.array([-0.15, 0.24])  # into a wall
        env.set_state(state)
        first = env.step(action)[0]
        for _ in range(50):
            env.step(-action)
        env.set_state(state)
        assert np.array_equal(env.step(action)[0], first)


class TestMazes:
    @pytest.mark.parametrize(
        ("size", "goal", "cells", "limit"),
        [("umaze", (1, 1), 7, 300), ("medium", (6, 6), 26, 600), ("large", (7, 9), 46, 800)],
    )
    def test_goal_cells_and_limit(self, size, goal, cells, limit):
        maze = Maze.named(size)
        assert (maze.goal, len(maze.open_cells), maze.limit) == (goal, cells, limit)
        assert len({len(row) for row in maze.rows}) == 1

    @pytest.mark.parametrize("size", ["", "huge", "maze2d-umaze-v1"])
    def test_an_unknown_size_is_refused(self, size):
        with pytest.raises(ValueError, match=f"size: expected one of umaze, medium, large, got '{size}'"):
            Maze2d(size)


class TestEpisodes:
    @pytest.mark.filterwarnings("ignore:.*infinity")
    @pytest.mark.parametrize("size", MAZES)
    def test_is_a_gymnasium_environment(self, size):
        check_env(Maze2d(size), skip_render_check=True)

    @pytest.mark.parametrize("size", MAZES)
    def test_episodes_start_near_any_cell_almost_at_rest(self, size):
        env = Maze2d(size)
        started = np.array([env.reset(seed=seed)[0] for seed in range(600)])
        cells = np.round(started[:, :2])
        assert {tuple(cell) for cell in cells.astype(int).tolist()} == set(env.maze.open_cells)
        assert 0.09 < np.abs(started[:, :2] - cells).max() < 0.1
        assert 0.09 < started[:, 2:].std() < 0.11

    @pytest.mark.parametrize("size", MAZES)
    def test_the_limit_truncates_and_nothing_terminates(self, size):
        env = Maze2d(size)
        for _ in range(2):
            env.reset(seed=0)
            ends = [env.step(np.zeros(2))[2:4] for _ in range(MAZES[size].limit)]
            assert set(ends[:-1]) == {(False, False)}
            assert ends[-1] == (False, True)

    def test_follows_its_seed(self):
        def episode(env, seed):
            actions = np.random.default_rng(3).uniform(-1, 1, (150, 2))
            return np.array([env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)])

        one, other = Maze2d("umaze"), Maze2d("umaze")
        first, different = episode(one, 7), episode(one, 8)
        assert np.array_equal(first, episode(one, 7))
        assert np.array_equal(first, episode(other, 7))
        assert not np.array_equal(first, different)

    def test_is_a_task_once_it_is_registered(self):
        gym.register("test/umaze-v0", lambda: Maze2d("umaze"))
        try:
            stream, again = EpisodeStream("test/umaze-v0", 3), EpisodeStream("test/umaze-v0", 3)
            actions = np.random.default_rng(0).uniform(-1, 1, (310, 2)).astype(np.float32)
            for action in actions:
                stream.step(action)
            assert stream.episode == 1
            again.replay_to(1, actions[300:])
            assert again.observation.tobytes() == stream.observation.tobytes()
        finally:
            del gym.registry["test/umaze-v0"]

    @pytest.mark.parametrize(
        "action", [np.zeros(3), np.zeros((1, 2)), np.float64(0), np.array([np.nan, 0]), np.array([0, np.inf])], ids=repr
    )
    def test_a_bad_action_is_refused(self, action):
        env = Maze2d("umaze")
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"action: expected 2 finite numbers, got .*(0|nan|inf)"):
            env.step(action)

    def test_a_bad_state_is_refused(self):
        with pytest.raises(ValueError, match=r"state: expected 4 finite numbers, got .*nan"):
            Maze2d("umaze").set_state(np.array([1.0, 1.0, 0.0, np.nan]))

    def test_a_step_before_an_episode_is_refused(self):
        with pytest.raises(gym.error.ResetNeeded):
            Maze2d("umaze").step(np.zeros(2))


class TestRewards:
    @pytest.mark.parametrize("size", MAZES)
    def test_within_half_a_cell_of_the_goal(self, size):
        maze = MAZES[size]
        angles = np.linspace(0, 2 * np.pi, 9)
        circle = np.stack([np.cos(angles), np.sin(angles), angles, angles], -1)
        goal = np.array([*maze.goal, 0, 0])
        assert at_goal(maze, goal + circle * 0.499).all()
        assert not at_goal(maze, goal + circle * 0.501).any()
        assert at_goal(maze, goal + np.array([0, 0.5, 0, 0])).shape == ()

    def test_reward_depends_on_the_next_observation(self):
        env = Maze2d("umaze")
        into, out_of = np.array([1.0, 1.52, 0.0, -5.0]), np.array([1.0, 1.48, 0.0, 5.0])
        for state, reward in ((into, 1.0), (out_of, 0.0)):
            env.set_state(state)
            assert env.step(np.zeros(2))[1] == reward
