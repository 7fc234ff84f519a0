"""Real and synthetic rows in one tensor."""

import numpy as np
import pytest
import torch

from synther_replay.replay.mixed_rows import MixedRows

SETS, BEGIN, SYNTHETIC = 3, 30, 20


def numbered(sets=SETS):
    """Rows that hold their own place in the memory."""
    places = torch.arange(sets * (BEGIN + SYNTHETIC), dtype=torch.float32)
    return places.view(sets, -1, 1)


@pytest.mark.parametrize("sets", [1, SETS])
@pytest.mark.parametrize("count", [None, 7, torch.tensor(7.0, dtype=torch.float64)])
def test_every_batch_is_made_of_one_stream_of_uniform_numbers(sets, count):
    """Pins the draws: results of learners depend on them."""
    mixed = MixedRows(numbered(sets), BEGIN, 0.25)
    drawn = mixed.draw((sets, 5, 8), torch.Generator().manual_seed(4), count=count)
    uniform = torch.rand(sets, 5, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64).numpy()
    expected = np.floor(uniform * (BEGIN if count is None else 7))
    expected[..., 2:] = BEGIN + np.floor(uniform[..., 2:] * SYNTHETIC)
    expected += np.arange(sets)[:, None, None] * (BEGIN + SYNTHETIC)
    np.testing.assert_array_equal(drawn.squeeze(-1).numpy(), expected)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_a_batch_of_one_set_may_have_any_shape(ratio):
    rows = MixedRows(numbered(1), BEGIN, ratio).draw((4, 3, 2, 10), torch.Generator().manual_seed(0))
    assert rows.shape == (4, 3, 2, 10, 1)
    assert ((rows < BEGIN).sum(-2) == 10 * ratio).all()


def test_batches_are_real_while_there_are_no_synthetic_rows():
    rows = MixedRows(numbered(1), BEGIN, 0.0).draw((4, 10), torch.Generator().manual_seed(0), has_synthetic=False)
    assert (rows < BEGIN).all()


def test_rows_are_written_in_place():
    memory = numbered()
    mixed = MixedRows(memory, BEGIN, 0.5)
    mixed.synthetic.fill_(-1)
    mixed.real.fill_(1)
    assert (memory[:, :BEGIN] == 1).all()
    assert (memory[:, BEGIN:] == -1).all()
    assert mixed.draw((SETS, 2, 4), torch.Generator()).squeeze(-1).tolist() == [[[1, 1, -1, -1]] * 2] * SETS


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_outside_its_range_is_refused(ratio):
    with pytest.raises(ValueError, match="real_ratio"):
        MixedRows(numbered(), BEGIN, ratio)
