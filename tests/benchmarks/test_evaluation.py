"""Deterministic policies in NumPy against the learner's own network, and how their returns are collected."""

import math
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import TransitionSpec
from synther_replay.benchmarks.agents import evaluation
from synther_replay.benchmarks.agents.evaluation import Evaluator, mean_return, tasks_of
from synther_replay.benchmarks.agents.policy import Policy, load_policies, policies_of, save_policies
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.common.seeding import derive_seed
from synther_replay.errors import CheckpointError
from synther_replay.persistence.checkpoint import save_checkpoint

PENDULUM = "Pendulum-v1"


def learner_of(agents, observations=3, actions=1, hidden=16):
    spec = TransitionSpec.from_spaces(
        gym.spaces.Box(-np.inf, np.inf, (observations,)), gym.spaces.Box(-1, 1, (actions,))
    )
    replay = StackedReplay(spec, agents, capacity=2, device=torch.device("cpu"))
    learner = StackedSAC(replay, -1.0, Hyperparameters(hidden=hidden, updates=1))
    # biases start as zeros, which would hide where they are added
    learner.policy.parameters.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return learner


def constant_policy(value):
    """Always the same action, whatever is seen."""
    shapes = {"w1": (4, 2), "w2": (2, 2), "w3": (2, 2), "b2": (1, 2), "b3": (1, 2)}
    layers = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    layers["b3"][0, 0] = value
    return Policy(**layers)


@pytest.mark.parametrize(("observations", "actions"), [(3, 1), (7, 2), (8, 6)])
def test_mean_actions_are_those_of_the_learner(observations, actions):
    learner = learner_of(3, observations, actions)
    seen = torch.randn(3, 5, observations, generator=torch.Generator().manual_seed(0))
    out, _ = learner.policy_forward(seen)
    expected = out.chunk(2, -1)[0].tanh()
    policies = policies_of(learner.policy_weights())
    assert len(policies) == 3
    found = [[policy.mean_action(row.numpy()) for row in rows] for policy, rows in zip(policies, seen, strict=True)]
    assert np.shape(found) == (3, 5, actions)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_policies_come_back_from_a_file_in_half_precision(tmp_path):
    weights = learner_of(2).policy_weights()
    save_policies(tmp_path / "new" / "p.safetensors", weights)
    for written, read in zip(policies_of(weights), load_policies(tmp_path / "new" / "p.safetensors"), strict=True):
        for name, one in written.layers.items():
            assert read.layers[name].dtype == np.float32
            np.testing.assert_array_equal(read.layers[name], one.astype(np.float16))


def test_a_file_of_something_else_is_no_policy(tmp_path):
    save_checkpoint(tmp_path / "p", "buffer", {})
    with pytest.raises(CheckpointError):
        load_policies(tmp_path / "p")


def test_weights_are_a_copy_that_goes_on_unchanged():
    learner = learner_of(1)
    (policy,) = policies_of(learner.policy_weights())
    before = policy.mean_action(np.ones(3, np.float32))
    learner.policy.parameters.zero_()
    assert np.array_equal(policy.mean_action(np.ones(3, np.float32)), before)


class TestMeanReturn:
    def test_is_the_mean_over_episodes(self):
        env, returns = gym.make(PENDULUM), []
        policy = constant_policy(0.4)
        for episode in range(2):
            env.reset(seed=derive_seed(5, 77, episode) % 2**31)
            steps = [env.step(np.array([2 * math.tanh(0.4)], np.float32)) for _ in range(200)]
            returns.append(sum(float(step[1]) for step in steps))
        assert mean_return(PENDULUM, policy, 5, 2) == pytest.approx(np.mean(returns), rel=1e-5)

    def test_depends_on_policy_seed_and_number_of_episodes_alone(self):
        policy, other = policies_of(learner_of(2).policy_weights())
        first = mean_return(PENDULUM, policy, 5, 2)
        values = [first, mean_return(PENDULUM, other, 5, 2), mean_return(PENDULUM, policy, 6, 2)]
        assert len(set(values)) == 3
        assert mean_return(PENDULUM, policy, 5, 2) == first

    def test_each_policy_meets_the_same_episodes(self, monkeypatch):
        started = []
        environment = evaluation._environments.setdefault(PENDULUM, evaluation.make_environment(PENDULUM))
        reset = environment.reset
        monkeypatch.setattr(environment, "reset", lambda seed: (started.append(seed), reset(seed))[1])
        for value in (0.0, 0.3):
            mean_return(PENDULUM, constant_policy(value), 9, 3)
        assert started[:3] == started[3:]
        assert len(set(started)) == 3

    @pytest.mark.filterwarnings("ignore:invalid value")
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_non_finite_policy_has_no_return(self, bad):
        policy = constant_policy(0.0)
        policy.layers["w1"][:] = bad
        assert math.isnan(mean_return(PENDULUM, policy, 0, 1))

    @pytest.mark.parametrize("field", ["reward", "observation"])
    def test_a_non_finite_task_gives_no_return(self, monkeypatch, field):
        environment = evaluation._environments.setdefault(PENDULUM, evaluation.make_environment(PENDULUM))
        step = environment.step
        bad = {"reward": math.nan, "observation": np.full(3, np.nan, np.float32)}[field]
        monkeypatch.setattr(environment, "step", lambda action: step(action)._replace(**{field: bad}))
        (policy,) = policies_of(learner_of(1).policy_weights())
        assert math.isnan(mean_return(PENDULUM, policy, 0, 1))


class Pending(Future):
    """Says so where one would wait for ever."""

    def result(self, timeout=None):
        assert self.done(), "waited for what was not ready"
        return super().result(timeout)


class SlowPool:
    """Stands for processes: nothing is done until the test says so."""

    def __init__(self):
        self.futures, self.calls = [], []

    def submit(self, function, *arguments):
        self.calls.append((function, *arguments))
        self.futures.append(Pending())
        return self.futures[-1]


class TestEvaluator:
    def make(self, agents=2):
        evaluator = Evaluator(PENDULUM, [50, 51][:agents], episodes=3, workers=1)
        evaluator._pool = SlowPool()
        return evaluator, evaluator._pool

    def test_a_step_comes_in_when_all_its_agents_have(self):
        evaluator, pool = self.make()
        weights = learner_of(2).policy_weights()
        evaluator.submit(10, weights)
        evaluator.submit(20, weights)
        assert evaluator.collect() == []
        pool.futures[0].set_result(1.0)
        pool.futures[2].set_result(3.0)
        pool.futures[3].set_result(4.0)
        assert evaluator.collect() == [20]
        assert evaluator.results == {20: [3.0, 4.0]}
        pool.futures[1].set_result(2.0)
        assert evaluator.collect(wait=True) == [10]
        assert evaluator.results == {20: [3.0, 4.0], 10: [1.0, 2.0]}
        assert evaluator.collect(wait=True) == []

    def test_each_agent_is_evaluated_with_its_own_policy_and_seed(self):
        evaluator, pool = self.make()
        weights = learner_of(2).policy_weights()
        evaluator.submit(10, weights)
        assert [call[1:2] + call[3:] for call in pool.calls] == [(PENDULUM, 50, 3, 0), (PENDULUM, 51, 3, 0)]
        for call, policy in zip(pool.calls, policies_of(weights), strict=True):
            assert call[0] is mean_return
            assert np.array_equal(call[2].layers["w2"], policy.layers["w2"])

    def test_many_episodes_are_shared_between_processes(self):
        evaluator = Evaluator(PENDULUM, [50, 51], episodes=25, workers=1)
        pool = evaluator._pool = SlowPool()
        evaluator.submit(10, learner_of(2).policy_weights())
        assert [(call[3], call[4], call[5]) for call in pool.calls] == [
            (seed, *block) for seed in (50, 51) for block in ((10, 0), (10, 10), (5, 20))
        ]
        assert tasks_of(2, 25) == len(pool.calls)
        for future, value in zip(pool.futures, (1.0, 2.0, 3.0, 4.0, 4.0, math.nan), strict=True):
            future.set_result(value)
        assert evaluator.collect() == [10]
        assert evaluator.results[10][0] == pytest.approx(45 / 25)
        assert math.isnan(evaluator.results[10][1])  # a policy that failed in some episode has failed

    def test_blocks_of_episodes_are_those_of_the_whole(self):
        (policy,) = policies_of(learner_of(1).policy_weights())
        parts = [mean_return(PENDULUM, policy, 5, 1, first) for first in range(3)]
        assert np.mean(parts) == pytest.approx(mean_return(PENDULUM, policy, 5, 3))

    def test_an_error_in_a_worker_is_raised(self):
        evaluator, pool = self.make(agents=1)
        evaluator.submit(10, learner_of(1).policy_weights())
        pool.futures[0].set_exception(RuntimeError("the simulator broke"))
        with pytest.raises(RuntimeError, match="the simulator broke"):
            evaluator.collect()

    def test_seeds_and_policies_must_be_as_many(self):
        evaluator, _ = self.make(agents=1)
        with pytest.raises(ValueError):
            evaluator.submit(10, learner_of(2).policy_weights())

    @pytest.mark.slow
    def test_processes_find_what_this_one_finds(self):
        weights = learner_of(2).policy_weights()
        with Evaluator(PENDULUM, [50, 51], episodes=1, workers=1) as evaluator:
            evaluator.submit(10, weights)
            assert evaluator.collect(wait=True) == [10]
        expected = [mean_return(PENDULUM, p, s, 1) for p, s in zip(policies_of(weights), (50, 51), strict=True)]
        assert evaluator.results == {10: expected}

    def test_work_of_killed_processes_is_repeated(self):
        weights = learner_of(2).policy_weights()
        with Evaluator(PENDULUM, [50, 51], episodes=1, workers=1) as evaluator:
            evaluator.submit(10, weights)
            for process in list(evaluator._pool._processes.values()):
                process.kill()
                process.join()
            evaluator.submit(20, weights)
            assert sorted(evaluator.collect(wait=True)) == [10, 20]
        expected = [mean_return(PENDULUM, p, s, 1) for p, s in zip(policies_of(weights), (50, 51), strict=True)]
        assert evaluator.results == {10: expected, 20: expected}

    def test_processes_killed_repeatedly_are_an_error(self, monkeypatch):
        evaluator, pool = self.make(agents=1)
        pools = [SlowPool() for _ in range(evaluation._MAX_POOL_FAILURES)]
        for one in (pool, *pools):
            one.kill = lambda: None
        left = iter(pools)
        monkeypatch.setattr(evaluation, "WorkerPool", lambda _: next(left))
        evaluator.submit(10, learner_of(1).policy_weights())
        for one in (pool, *pools[:-1]):
            one.futures[0].set_exception(BrokenProcessPool("killed"))
            assert evaluator.collect() == []
        pools[-1].futures[0].set_exception(BrokenProcessPool("killed"))
        with pytest.raises(OSError, match=r"killed 4 times.*--workers"):
            evaluator.collect()
