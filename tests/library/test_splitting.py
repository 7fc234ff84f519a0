"""The split into training and held-out rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from synther_replay.data.splitting import held_out_last, row_hash


def make_rows(n: int, seed: int = 0, stack: int = 1, dim: int = 4) -> Tensor:
    return torch.randn(stack, n, dim, generator=torch.Generator().manual_seed(seed))


def indices(rows: Tensor, share: float, seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    """Numbers of the rows trained on and held out, per model."""
    order, count = held_out_last(rows, share, seed)
    assert order is not None
    return order[:, :-count].tolist(), order[:, -count:].tolist()


@pytest.mark.parametrize(("n", "share", "count"), [(1000, 0.05, 50), (1001, 0.1, 100), (333, 0.05, 17), (40, 0.5, 20)])
def test_the_counts_are_exact_and_the_parts_are_disjoint_and_complete(n: int, share: float, count: int) -> None:
    for train, held_out in zip(*indices(make_rows(n, stack=2), share), strict=True):
        assert len(held_out) == count
        assert sorted(train + held_out) == list(range(n))


@pytest.mark.parametrize(("n", "share"), [(100, 0.05), (300, 0.05), (1000, 0.0), (32, 0.45)])
def test_too_few_rows_to_measure_on_are_not_held_out(n: int, share: float) -> None:
    assert held_out_last(make_rows(n), share, 0) == (None, 0)


def test_sixteen_rows_are_enough() -> None:
    (_, [held_out]) = indices(make_rows(320), 0.05)
    assert len(held_out) == 16


def test_another_seed_holds_out_other_rows() -> None:
    """Regression: the same rows were held out in every run of an experiment."""
    rows = make_rows(2000)
    sets = [set(indices(rows, 0.1, seed)[1][0]) for seed in (0, 0, 1, 2, 10**30)]
    assert sets[0] == sets[1]
    for k, one in enumerate(sets[1:]):
        assert all(len(one & other) < 50 for other in sets[k + 2 :])  # 20 expected


def test_rows_once_held_out_stay_so_when_others_are_added() -> None:
    rows = make_rows(3000)
    (_, [before]) = indices(rows[:, :2000], 0.1)
    (_, [after]) = indices(rows, 0.1)
    assert len(set(before) & set(after)) > 0.85 * len(before)  # two random splits would share a tenth


def test_rows_once_trained_on_are_seldom_held_out_later() -> None:
    rows = make_rows(3000)
    ([trained], _) = indices(rows[:, :2000], 0.1)
    (_, [after]) = indices(rows, 0.1)
    assert len(set(trained) & set(after)) < 0.15 * len(after)


def test_the_order_of_the_rows_plays_no_part() -> None:
    rows = make_rows(1000)
    shuffle = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    (_, [before]) = indices(rows, 0.1)
    (_, [after]) = indices(rows[:, shuffle], 0.1)
    assert sorted(before) == sorted(shuffle[after].tolist())


def test_training_rows_keep_their_order() -> None:
    ([train], _) = indices(make_rows(1000), 0.1)
    assert train == sorted(train)


@pytest.mark.parametrize("seed", [0, 1])
def test_of_frequent_transitions_a_share_is_held_out_not_all_or_none(seed: int) -> None:
    """Regression: 9 of 147 transitions of CliffWalking were never trained on, in every run."""
    rows = make_rows(10, stack=2)[:, torch.arange(10_000) % 10]
    for held_out in indices(rows, 0.1, seed)[1]:
        per_transition = torch.tensor(held_out).remainder(10).bincount(minlength=10)
        assert 60 <= per_transition.min() <= per_transition.max() <= 140  # 100 expected


def test_copies_once_held_out_stay_so_when_others_are_added() -> None:
    rows = make_rows(10)[:, torch.arange(6_000) % 10]
    (_, [before]), (_, [after]) = (indices(part, 0.1) for part in (rows[:, :4_000], rows))
    assert len(set(before) & set(after)) > 0.85 * len(before)


def test_each_model_of_a_stack_is_split_by_its_own_rows() -> None:
    rows = make_rows(500, stack=3)
    train, held_out = indices(rows, 0.1)
    assert held_out[0] != held_out[1] != held_out[2]
    for m in range(3):
        ([alone_train], [alone_held_out]) = indices(rows[m : m + 1], 0.1)
        assert (train[m], held_out[m]) == (alone_train, alone_held_out)


@pytest.mark.parametrize("column", [0, 3])
@pytest.mark.parametrize("kind", ["integers", "line"])
def test_rows_that_differ_in_one_column_are_held_out_evenly(column: int, kind: str) -> None:
    """Low bits of round numbers are zero; a weak hash would hold out one region of them."""
    n = 4000
    rows = torch.zeros(1, n, 4)
    rows[0, :, column] = torch.arange(n).float() if kind == "integers" else torch.linspace(-1, 1, n)
    (_, [held_out]) = indices(rows, 0.1)
    per_tenth = torch.tensor(held_out).mul(10).div(n, rounding_mode="floor").bincount(minlength=10)
    assert per_tenth.min() >= 20  # 40 expected
    assert per_tenth.max() <= 65


def test_the_hash_depends_on_every_column_and_its_place() -> None:
    row = torch.tensor([[1.0, 2.0, 3.0]])
    others = torch.tensor([[2.0, 1.0, 3.0], [1.0, 3.0, 2.0], [1.5, 2.0, 3.0], [1.0, 2.5, 3.0], [1.0, 2.0, 3.5]])
    hashes = row_hash(torch.cat((row, others)))
    assert len(hashes.unique()) == 6
    assert hashes.min() >= 0


def test_the_hash_does_not_change_between_releases() -> None:
    """A warm-started model that is loaded by a later release must hold out the same rows."""
    assert row_hash(torch.tensor([[0.5, -1.0, 3.25], [0.0, 0.0, 1.0]])).tolist() == [
        3306001455554602624,
        4359226098261207133,
    ]


def test_the_hash_of_a_row_does_not_depend_on_the_number_of_others() -> None:
    rows = make_rows(20_000, stack=2)
    hashes = row_hash(rows)
    assert hashes.shape == (2, 20_000)
    assert torch.equal(row_hash(rows[1, 12_345]), hashes[1, 12_345])
    assert torch.equal(row_hash(rows[:1, 8_000:9_000]), hashes[:1, 8_000:9_000])


def test_rows_need_not_lie_together_in_memory() -> None:
    rows = make_rows(500, dim=8)
    assert torch.equal(row_hash(rows[..., ::2]), row_hash(rows[..., ::2].contiguous()))
