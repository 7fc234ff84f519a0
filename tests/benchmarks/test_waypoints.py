"""The waypoint controller and the data it collects."""

import math

import numpy as np
import pytest

pytest.importorskip("mujoco")
from synther_replay.benchmarks.data.waypoints import WaypointController, collect
from synther_replay.benchmarks.environments.maze2d import Ball, Maze2d, State, start
from synther_replay.benchmarks.environments.mazes import MAZES, Routes


def walk(maze, state, goal, seed=0):
    """Steps until the controller says that it has arrived, and where."""
    ball, controller = Ball(maze), WaypointController(maze, np.random.default_rng(seed))
    ball.place(state)
    controller.aim(state, goal)
    for step in range(maze.limit):
        along_x, along_y, arrived = controller.act(state)
        if arrived:
            return step, state
        state = ball.push(along_x, along_y)
    pytest.fail(f"did not come to {goal}")


def value_iteration(maze, goal):
    """Where D4RL's planner goes next from each cell: the goal is rewarded, with a discount of 0.99 and in 50 sweeps."""
    cells = maze.open_cells
    # to stay, and then the four moves, of which a tie takes the first
    targets = [[(i, j), (i, j - 1), (i, j + 1), (i - 1, j), (i + 1, j)] for i, j in cells]
    indices = np.array([[cells.index(cell if cell in cells else around[0]) for cell in around] for around in targets])
    q = np.zeros((len(cells), 5))
    for _ in range(50):
        q = (np.arange(len(cells)) == cells.index(goal))[:, None] + 0.99 * q.max(1)[indices]
    return {cell: cells[indices[k, q[k].argmax()]] for k, cell in enumerate(cells)}


class TestController:
    @pytest.mark.parametrize("size", MAZES)
    def test_comes_to_every_cell(self, size):
        maze, rng = MAZES[size], np.random.default_rng(1)
        for goal in maze.open_cells:
            _, (x, y, _, _) = walk(maze, start(maze, rng), goal)
            assert math.hypot(x - goal[0], y - goal[1]) < 0.1

    @pytest.mark.parametrize("size", MAZES)
    def test_comes_from_every_corner_of_a_cell_at_any_speed(self, size):
        maze = MAZES[size]
        for k, (i, j) in enumerate(maze.open_cells):
            x, y = i + (-0.6, 0.2)[k % 2], j + (-0.6, 0.2)[k // 2 % 2]
            walk(maze, State(x, y, (-5, 5)[k // 4 % 2], (5, -5)[k // 8 % 2]), maze.goal)

    @pytest.mark.parametrize("size", MAZES)
    def test_ways_are_those_of_value_iteration(self, size):
        maze = MAZES[size]
        routes = Routes(maze)
        for goal in maze.open_cells:
            following = value_iteration(maze, goal)
            for cell in maze.open_cells:
                assert routes.path(cell, goal)[0] == following[cell]

    def test_waypoints_lie_on_the_free_side_of_their_cells_and_the_last_one_in_its_cell(self):
        maze = MAZES["umaze"]
        controller = WaypointController(maze, np.random.default_rng(0))
        offsets = []
        for _ in range(200):
            controller.aim(State(1, 1, 0, 0), (3, 1))
            *between, last = controller._waypoints
            assert last == (3, 1)
            offsets.append(np.array([(1, 2), (1, 3), (2, 3), (3, 3), (3, 2)]) - between)
        assert np.min(offsets) > 0
        assert 0.19 < np.max(offsets) < 0.2
        assert abs(np.mean(offsets) - 0.1) < 0.01

    def test_action_is_ten_times_the_way_left_minus_the_velocity_and_clipped(self):
        controller = WaypointController(MAZES["umaze"], np.random.default_rng(0))
        controller.aim(State(1, 1.2, 0, 0), (1, 1))
        assert controller.act(State(1.02, 1.13, 0.1, -0.6)) == (pytest.approx(-0.3), pytest.approx(-0.7), False)
        assert controller.act(State(1.02, 1.2, 3.0, -4.0)) == (-1.0, 1.0, False)
        assert controller.act(State(1.02, 1.03, 0.0, 0.0)) == (pytest.approx(-0.2), pytest.approx(-0.3), True)

    def test_once_there_it_does_not_go_back_to_a_waypoint_that_was_missed(self):
        controller = WaypointController(MAZES["umaze"], np.random.default_rng(0))
        controller.aim(State(1, 1, 0, 0), (1, 3))
        assert controller.act(State(1, 3, 0, 0))[2]
        assert controller.act(State(1, 2.8, 0, 0)) == (0.0, 1.0, False)

    @pytest.mark.parametrize("goal", [(0, 0), (2, 2), (9, 9)])
    def test_a_goal_in_a_wall_is_refused(self, goal):
        controller = WaypointController(MAZES["umaze"], np.random.default_rng(0))
        with pytest.raises(ValueError, match=rf"goal: expected an open cell of the maze, got \({goal[0]}, {goal[1]}\)"):
            controller.aim(State(1, 1, 0, 0), goal)

    def test_a_start_in_a_wall_is_refused(self):
        controller = WaypointController(MAZES["umaze"], np.random.default_rng(0))
        with pytest.raises(ValueError, match=r"state: expected a position in an open cell of the maze, got State\(x=2"):
            controller.aim(State(2.0, 1.0, 0.0, 0.0), (1, 1))


@pytest.fixture(scope="module", params=MAZES)
def walked(request):
    return request.param, collect(request.param, 20_000, 5)


class TestCollect:
    def test_keys_shapes_and_dtypes(self, walked):
        _, data = walked
        assert {key: (array.shape, array.dtype.name) for key, array in data.items()} == {
            "observations": ((20_000, 4), "float32"),
            "actions": ((20_000, 2), "float32"),
            "rewards": ((20_000,), "float32"),
            "next_observations": ((20_000, 4), "float32"),
            "terminals": ((20_000,), "bool"),
            "timeouts": ((20_000,), "bool"),
        }
        assert all(array.base is None for array in data.values())  # none changes when another one does

    def test_is_one_walk_that_never_ends(self, walked):
        _, data = walked
        assert np.array_equal(data["observations"][1:], data["next_observations"][:-1])
        assert np.abs(np.diff(data["observations"][:, :2], axis=0)).max() < 0.06
        assert not data["terminals"].any()

    def test_rows_are_steps_of_the_task(self, walked):
        size, data = walked
        env = Maze2d(size)
        for row in range(0, 20_000, 37):
            env.set_state(data["observations"][row])
            after = env.step(data["actions"][row])[0]
            assert np.abs(after - data["next_observations"][row]).max() < 1e-4  # what is rounded may meet a hard wall

    def test_rewards_are_those_of_the_goal_of_the_maze(self, walked):
        size, data = walked
        goal = {"umaze": (1, 1), "medium": (6, 6), "large": (7, 9)}[size]
        near = np.linalg.norm(data["observations"][:, :2] - goal, axis=1) <= 0.5
        assert np.array_equal(data["rewards"], near.astype(np.float32))
        assert 0 < data["rewards"].mean() < 0.2

    def test_timeouts_are_where_cells_are_reached(self, walked):
        size, data = walked
        ends = data["observations"][data["timeouts"], :2]
        cells = np.round(ends)
        assert np.linalg.norm(ends - cells, axis=1).max() < 0.1
        assert len(ends) > 50
        assert {tuple(cell) for cell in cells.astype(int).tolist()} <= set(MAZES[size].open_cells)

    def test_is_like_the_files_of_d4rl(self, walked):
        # Mean and deviation of the released version 1; without noise the actions of umaze deviate by 0.68 and 0.77.
        size, data = walked
        means = {"umaze": (1.9328, 2.3745), "medium": (3.5093, 3.4766), "large": (3.7296, 5.3047)}[size]
        velocities = {"umaze": (2.2129, 2.4682), "medium": (2.3408, 2.3694), "large": (2.4368, 2.6494)}[size]
        actions = {"umaze": (0.7043, 0.7506), "medium": (0.7398, 0.7459), "large": (0.7249, 0.7395)}[size]
        assert data["observations"][:, :2].mean(0) == pytest.approx(means, abs=0.45)
        assert data["observations"][:, 2:].std(0) == pytest.approx(velocities, abs=0.12)
        assert data["actions"].std(0) == pytest.approx(actions, abs=0.02)

    def test_without_noise_the_ball_touches_no_wall(self):
        data = collect("umaze", 5_000, 0, noise=0.0)
        assert data["observations"][:, :2].max() < 3.1
        assert collect("umaze", 5_000, 0)["observations"][:, :2].max() > 3.1

    def test_a_way_that_takes_too_long_is_given_up(self):
        data = collect("umaze", 2_000, 0, noise=50.0)  # the ball is thrown about
        ends = np.flatnonzero(data["timeouts"])
        assert np.diff(ends, prepend=-1).max() == 300

    def test_follows_its_seed(self):
        first, again, other = collect("medium", 500, 1), collect("medium", 500, 1), collect("medium", 500, 2)
        assert all(np.array_equal(first[key], again[key]) for key in first)
        assert not np.array_equal(first["observations"], other["observations"])

    def test_more_steps_continue_the_walk(self):
        short, long = collect("medium", 300, 1), collect("medium", 3_000, 1)
        assert all(np.array_equal(short[key], long[key][:300]) for key in short)

    def test_one_step(self):
        assert {len(array) for array in collect("large", 1, 0).values()} == {1}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"size": "open"}, "size: expected one of umaze, medium, large, got 'open'"),
            ({"steps": 0}, "steps: expected at least 1, got 0"),
            ({"steps": -5}, "steps: expected at least 1, got -5"),
            ({"noise": -0.1}, "noise: expected a finite standard deviation of at least 0, got -0.1"),
            ({"noise": math.nan}, "noise: expected a finite standard deviation of at least 0, got nan"),
        ],
    )
    def test_bad_arguments_are_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            collect(**{"size": "umaze", "steps": 10, "seed": 0, **arguments})
