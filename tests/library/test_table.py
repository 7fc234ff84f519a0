"""RowTable: the distinct rows of discrete data, drawn as often as they occur."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from synther_replay.data.table import RowTable
from synther_replay.errors import CheckpointError

CPU = torch.device("cpu")


def make_rows(n: int = 1_000, stack: int = 1, seed: int = 0) -> Tensor:
    """Rows of 4 columns with values 0 to 2, of which 0 is frequent."""
    rng = torch.Generator().manual_seed(seed)
    return (torch.rand(stack, n, 4, generator=rng) * 1.7).square().floor()


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(rows: Tensor) -> dict[tuple[float, ...], float]:
    distinct, counts = rows.unique(dim=0, return_counts=True)
    return {tuple(row): count / len(rows) for row, count in zip(distinct.tolist(), counts.tolist(), strict=True)}


def test_rows_are_drawn_as_often_as_they_occur() -> None:
    rows = make_rows()
    drawn = RowTable.of(rows).draw(50_000, stream())
    assert drawn.shape == (1, 50_000, 4)
    assert drawn.dtype == torch.float32
    real, synthetic = shares(rows[0]), shares(drawn[0])
    assert real.keys() == synthetic.keys()
    for row, share in real.items():
        assert synthetic[row] == pytest.approx(share, abs=5 * (share / 50_000) ** 0.5)


def test_models_of_a_stack_draw_their_own_rows_and_never_the_padding() -> None:
    rows = make_rows(300, stack=2) + 1
    rows[1, :, 0] = 5.0
    rows[1, :, 1:] = 9.0
    drawn = RowTable.of(rows).draw(5_000, stream())
    assert (drawn[0] > 0).all()
    assert shares(drawn[0]).keys() <= shares(rows[0]).keys()
    assert shares(drawn[1]) == {(5.0, 9.0, 9.0, 9.0): 1.0}


def test_each_row_once_at_least() -> None:
    rows = torch.arange(50.0)[None, :, None].expand(1, 50, 3)
    table = RowTable.of(rows)
    assert table.counts.tolist() == [[1] * 50]
    assert len(table.draw(2_000, stream())[0].unique(dim=0)) == 50


def test_the_same_stream_gives_the_same_rows() -> None:
    table = RowTable.of(make_rows())
    assert torch.equal(table.draw(50, stream(1)), table.draw(50, stream(1)))
    assert not torch.equal(table.draw(50, stream(1)), table.draw(50, stream(2)))
    assert table.draw(1, stream()).shape == (1, 1, 4)


def test_the_default_dtype_plays_no_part() -> None:
    usual = RowTable.of(make_rows()).draw(50, stream())
    rows = make_rows()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(RowTable.of(rows).draw(50, stream()), usual)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_state_comes_back_as_it_was() -> None:
    table = RowTable.of(make_rows(stack=2))
    state = table.state_dict()
    again = RowTable.from_state(state, 2, 4, 0, CPU)
    for tensor in state.values():
        tensor.zero_()
    assert all(map(torch.equal, table, again))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {**s, "rows": s["rows"][:1]},
        lambda s: {**s, "rows": s["rows"][..., 1:]},
        lambda s: {**s, "rows": s["rows"][:, 1:]},
        lambda s: {**s, "rows": s["rows"][0]},
        lambda s: {**s, "rows": s["rows"] * torch.nan},
        lambda s: {**s, "counts": s["counts"] * 0},
        lambda s: {**s, "counts": -s["counts"]},
        lambda s: {"rows": s["rows"][:, :0], "counts": s["counts"][:, :0]},
    ],
    ids=["stack", "columns", "rows", "axes", "not finite", "no rows", "negative", "empty"],
)
def test_a_state_of_something_else_is_refused(change: Any) -> None:
    with pytest.raises(CheckpointError, match="state: table"):
        RowTable.from_state(change(RowTable.of(make_rows(stack=2)).state_dict()), 2, 4, 0, CPU)
