"""Batches of Stable-Baselines3 say which rows are synthetic, and are SB3's own in every other respect."""

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import SAC
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from synther_replay import Transitions
from synther_replay.adapters.sb3 import SynthERBuffer, transition_spec

PLACE, FORCE = spaces.Box(-2, 2, (3,)), spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict({"a": PLACE, "b": spaces.Box(-1, 1, (1,))})
SYNTHETIC_REWARD = -100.0


class Constant:
    """Generates rows of one reward, by which they are known."""

    def __init__(self, spec):
        self.spec = spec

    def fit(self, transitions):
        self.row = transitions.rows[:1].clone()

    def sample(self, n):
        rows = self.row.repeat(n, 1)
        rows[:, self.spec.rewards] = SYNTHETIC_REWARD
        return Transitions(self.spec, rows)


def filled(space=PLACE, real_ratio=0.25, start=10, **options):
    generator = Constant(transition_spec(space, FORCE, n_steps=options.get("n_steps", 1)))
    schedule = {"start": start, "rows": 50}
    buffer = SynthERBuffer(
        100, space, FORCE, "cpu", real_ratio=real_ratio, generator=generator, schedule=schedule, seed=0, **options
    )
    rng = np.random.default_rng(0)
    for step in range(30):
        place, following = rng.uniform(-1, 1, (2, 1, 3))
        if space is NESTED:
            place, following = ({"a": x, "b": x[:, :1]} for x in (place, following))
        buffer.add(place, following, rng.uniform(-1, 1, (1, 2)), np.ones(1), np.array([step % 10 == 9]), [{}])
    return buffer


def known(batch):
    return batch.rewards[:, 0] == SYNTHETIC_REWARD


@pytest.mark.parametrize("space", [PLACE, NESTED], ids=["box", "dict"])
@pytest.mark.parametrize(("real_ratio", "synthetic"), [(0.0, 16), (0.25, 12), (1.0, 0)])
def test_synthetic_rows_are_marked(space, real_ratio, synthetic):
    batch = filled(space, real_ratio).sample(16)
    assert batch.is_synthetic.dtype == torch.bool
    assert batch.is_synthetic.shape == (16,)
    assert int(batch.is_synthetic.sum()) == synthetic
    assert torch.equal(batch.is_synthetic, known(batch))


def test_nothing_is_marked_before_the_first_refit():
    assert not filled(start=1_000).sample(16).is_synthetic.any()


def test_n_step_rows_are_marked():
    batch = filled(n_steps=3).sample(16)
    assert torch.equal(batch.is_synthetic, known(batch))
    assert len(batch) == 6
    assert batch.discounts.shape == (16, 1)


@pytest.mark.parametrize("real_ratio", [0.0, 0.25, 1.0])
def test_the_rows_of_several_batches_are_marked(real_ratio):
    batch = filled(real_ratio=real_ratio).sample_batches(3, 16)
    assert batch.is_synthetic.shape == (48,)
    assert torch.equal(batch.is_synthetic, known(batch))


def test_a_subclass_with_a_sample_of_its_own_marks_the_rows_of_several_batches():
    class Louder(SynthERBuffer):
        def sample(self, batch_size, env=None):
            batch = super().sample(batch_size, env)
            return batch._replace(observations=2 * batch.observations)

    buffer = filled()
    buffer.__class__ = Louder
    batch = buffer.sample_batches(3, 16)
    assert torch.equal(batch.is_synthetic, known(batch))


@pytest.mark.parametrize(("space", "cls"), [(PLACE, ReplayBufferSamples), (NESTED, DictReplayBufferSamples)])
def test_as_a_tuple_a_batch_is_that_of_sb3(space, cls):
    batch = filled(space).sample(16)
    assert isinstance(batch, cls)
    assert batch._fields == cls._fields
    _observations, _actions, _following, _dones, rewards, discounts = batch
    assert discounts is None
    assert rewards is batch.rewards is batch[4]
    assert cls(*batch)._asdict().keys() == batch._asdict().keys()


def test_changed_copied_and_pickled_batches_keep_the_marks():
    batch = filled().sample(16)
    changed = batch._replace(rewards=torch.zeros(16, 1))
    assert float(changed.rewards.sum()) == 0
    for twin in (changed, copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert torch.equal(twin.is_synthetic, known(batch))


def test_an_algorithm_can_use_the_marks():
    shares = []

    class Watching(SAC):
        """Reads the marks in an update."""

        def train(self, gradient_steps, batch_size=64):
            shares.append(float(self.replay_buffer.sample(batch_size).is_synthetic.float().mean()))
            super().train(gradient_steps, batch_size)

    options = {"generator": {"steps": 5, "width": 16, "depth": 1}, "schedule": {"start": 40, "rows": 50}}
    model = Watching(
        "MlpPolicy",
        "Pendulum-v1",
        learning_starts=35,
        policy_kwargs={"net_arch": [8]},
        replay_buffer_class=SynthERBuffer,
        replay_buffer_kwargs=options,
        seed=0,
    )
    model.learn(45)
    assert (shares[0], shares[-1]) == (0.0, 0.5)
