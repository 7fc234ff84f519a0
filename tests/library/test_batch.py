"""Batches of the core say which rows are synthetic."""

import copy
import pickle

import pytest
import torch
from gymnasium import spaces

from synther_replay import Batch, RingBuffer, SyntheticReplayBuffer, Transitions, TransitionSpec

SPEC = TransitionSpec.from_spaces(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))


class Negative:
    """Generates rows of reward -1; real ones have reward 1."""

    def fit(self, transitions):
        self.row = transitions.rows[:1].clone()

    def sample(self, n):
        rows = self.row.repeat(n, 1)
        rows[:, SPEC.rewards] = -1.0
        return Transitions(SPEC, rows)


def filled(real_ratio=0.25, start=10):
    real = RingBuffer(SPEC, 100, device="cpu")
    schedule = {"start": start, "rows": 50}
    buffer = SyntheticReplayBuffer(real, Negative(), real_ratio=real_ratio, schedule=schedule, device="cpu")
    for _ in range(30):
        buffer.add([0.1, 0.2], [0.3], 1.0, [0.2, 0.3], False)
    return buffer


@pytest.mark.parametrize(("real_ratio", "synthetic"), [(0.0, 16), (0.25, 12), (1.0, 0)])
def test_synthetic_rows_are_marked(real_ratio, synthetic):
    batch = filled(real_ratio).sample(16)
    assert isinstance(batch, Batch)
    assert (batch.is_synthetic.dtype, batch.is_synthetic.shape) == (torch.bool, (16,))
    assert int(batch.is_synthetic.sum()) == synthetic
    assert torch.equal(batch.is_synthetic, batch.rewards < 0)


def test_nothing_is_marked_before_the_first_refit():
    assert not filled(start=1_000).sample(16).is_synthetic.any()


@pytest.mark.parametrize(
    "index", [slice(3, 9), slice(None, None, 2), [3, 3, 0], [], torch.tensor([5, 1]), torch.arange(16) % 3 == 0]
)
@pytest.mark.parametrize("real_ratio", [0.5, 1.0])
def test_chosen_rows_keep_their_marks(index, real_ratio):
    chosen = filled(real_ratio).sample(16)[index]
    assert torch.equal(chosen.is_synthetic, chosen.rewards < 0)


def test_copied_and_pickled_batches_keep_their_marks():
    for real_ratio in (0.5, 1.0):
        batch = filled(real_ratio).sample(16)
        for twin in (batch.to("cpu"), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
            assert torch.equal(twin.rows, batch.rows)
            assert torch.equal(twin.is_synthetic, batch.is_synthetic)
