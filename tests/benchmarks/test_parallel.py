"""Episode streams in one process, with injected faults, and in worker processes."""

import math
import os
import signal

import numpy as np
import pytest

from synther_replay.benchmarks.environments.parallel import EnvGroup, Environments, EpisodeStream, WorkerDiedError
from synther_replay.benchmarks.environments.tasks import Task

TASK = Task("Pendulum-v1", "gym", 3, 1, -1.0)
SEEDS = [11, 12, 13]


def actions_at(step, count=3):
    return np.random.default_rng(step).uniform(-1, 1, (count, 1)).astype(np.float32)


def same_steps(found, expected):
    for name, array in expected._asdict().items():
        assert getattr(found, name).dtype == array.dtype, name
        assert np.array_equal(getattr(found, name), array), name


def spoil(stream, **fields):
    """Let the next step of a stream give other values than it would."""
    step = stream.environment.step

    def spoilt(action):
        after = step(action)
        stream.environment.step = step
        return after._replace(**fields)

    stream.environment.step = spoilt


class TestEnvGroup:
    def test_steps_match_the_streams(self):
        group, streams = EnvGroup(TASK.name, SEEDS), [EpisodeStream(TASK.name, seed) for seed in SEEDS]
        assert np.array_equal(group.observations(), [stream.observation for stream in streams])
        for k in range(205):  # beyond the end of an episode
            after = group.step(actions_at(k))
            for agent, stream in enumerate(streams):
                expected = stream.step(actions_at(k)[agent])
                assert np.array_equal(after.next_observations[agent], expected.observation)
                assert np.array_equal(after.observations[agent], stream.observation)
                assert after.rewards[agent] == np.float32(expected.reward)
                assert after.terminated[agent] == expected.terminated
            assert after.episodes.tolist() == [stream.episode for stream in streams] == [k >= 199] * 3
            assert np.array_equal(after.next_observations, after.observations) == (k != 199)
            assert not after.failed.any()

    @pytest.mark.filterwarnings("ignore:overflow encountered")
    def test_a_reward_that_overflows_float32_is_non_finite(self):
        group = EnvGroup(TASK.name, SEEDS)
        spoil(group.streams[1], reward=1e39)
        after = group.step(actions_at(0))
        assert after.failed.tolist() == [False, True, False]
        assert np.isfinite(after.rewards).all()

    def test_a_diverged_simulation_fails_its_stream_only(self):
        pytest.importorskip("dm_control")
        group = EnvGroup("cheetah-run", SEEDS)
        group.streams[1].environment._env.physics.data.qvel[:] = 1e12
        after = group.step(np.zeros((3, 6), np.float32))
        assert after.failed.tolist() == [False, True, False]
        assert group.step(np.zeros((3, 6), np.float32)).failed.tolist() == [False, True, False]

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("what", ["action", "reward", "observation"])
    def test_a_non_finite_stream_stops_and_others_continue(self, what, bad):
        group, healthy = EnvGroup(TASK.name, SEEDS), EnvGroup(TASK.name, SEEDS)
        before = actions_at(0)
        same_steps(group.step(before), healthy.step(before))
        actions = actions_at(1)
        if what == "action":
            actions[1] = bad
        else:
            spoil(group.streams[1], **{what: bad if what == "reward" else np.array([0, bad, 0], np.float32)})
        found, expected = group.step(actions), healthy.step(actions_at(1))
        stood = group.streams[1].observation.copy()
        for k in range(2, 6):
            assert found.failed.tolist() == [False, True, False]
            for name, values in expected._asdict().items():
                others = np.delete(getattr(found, name), 1, 0)
                assert np.array_equal(others, np.delete(values, 1, 0)), name
                assert np.isfinite(getattr(found, name)).all(), name
            for name in ("next_observations", "observations", "rewards", "terminated"):
                assert not getattr(found, name)[1].any(), name
            found, expected = group.step(actions_at(k)), healthy.step(actions_at(k))
        assert np.array_equal(group.streams[1].observation, stood, equal_nan=True)

    def test_what_was_returned_does_not_change_later(self):
        group = EnvGroup(TASK.name, SEEDS)
        first = group.step(actions_at(0))
        actions = actions_at(1)
        actions[2] = math.nan
        group.step(actions)
        assert not first.failed.any()

    def test_all_may_fail(self):
        group = EnvGroup(TASK.name, SEEDS)
        after = group.step(np.full((3, 1), np.nan, np.float32))
        assert after.failed.all()
        assert group.step(actions_at(0)).failed.all()

    def test_replaying_actions_restores_the_streams(self):
        group, other = EnvGroup(TASK.name, SEEDS), EnvGroup(TASK.name, SEEDS)
        for k in range(230):
            after = group.step(actions_at(k))
        taken = [np.stack([actions_at(k)[agent] for k in range(200, 230)]) for agent in range(3)]
        found = other.replay_to([1, 1, 1], taken, [False] * 3)
        assert np.array_equal(found, after.observations)
        same_steps(other.step(actions_at(230)), group.step(actions_at(230)))

    def test_a_failed_stream_stays_failed_after_replay(self):
        group = EnvGroup(TASK.name, SEEDS)
        group.replay_to([0, 0, 0], [np.zeros((1, 1), np.float32)] * 3, [False, True, False])
        assert group.step(actions_at(0)).failed.tolist() == [False, True, False]


class TestEnvironments:
    def test_worker_processes_match_one_process_replay_and_exit(self):
        group = EnvGroup(TASK.name, SEEDS)
        with Environments(TASK, SEEDS, workers=2) as environments:
            processes = list(environments._processes)
            assert len(processes) == 2
            assert np.array_equal(environments.observations(), group.observations())
            for k in range(210):
                actions = actions_at(k)
                actions[1] = math.nan if k > 205 else actions[1]
                environments.begin_step(actions)
                same_steps(environments.end_step(), group.step(actions))
            taken = [np.stack([actions_at(k)[agent] for k in range(200, 205)]) for agent in range(3)]
            back = [[1, 1, 1], taken, [False, False, True]]
            expected = group.replay_to(*back)
            assert np.array_equal(environments.replay_to(*back)[:2], expected[:2])
            environments.begin_step(actions_at(300))
            same_steps(environments.end_step(), group.step(actions_at(300)))
        for process in processes:
            process.join(timeout=5)
            assert not process.is_alive()

    def test_a_worker_that_died_between_steps_is_an_error(self):
        with Environments(TASK, SEEDS, workers=1) as environments:
            environments.observations()
            (process,) = environments._processes
            os.kill(process.pid, signal.SIGKILL)
            process.join(timeout=5)
            with pytest.raises(WorkerDiedError, match="worker process died"):
                environments.begin_step(actions_at(0))
                environments.end_step()

    def test_a_worker_that_dies_is_an_error_and_does_not_hang(self):
        with Environments(TASK, SEEDS, workers=1) as environments:
            environments.observations()
            (process,) = environments._processes
            os.kill(process.pid, signal.SIGSTOP)  # so that it cannot have answered before it dies
            environments.begin_step(actions_at(0))
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="worker process died"):
                environments.end_step()
        assert not process.is_alive()
