"""Categories: discrete values <-> the binary digits that the generator models, "analog bits" (Chen et al. 2022).

A value among n is encoded by its ceil(log2 n) binary digits as -1 and +1. If n is not a power of two, digit patterns
beyond the highest value decode to the highest value. Patterns of values that the data do not have, which a model that
was trained for a short time makes, can be decoded to the nearest pattern of a value that they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

# Of columns with more values it is not remembered which ones the data have.
MOST_REMEMBERED = 4_096
_SCORES = 2**24  # compared at once


class Categories:
    """Codes of some columns of rows; of a stack of M models.

    Args:
        columns: Column of the rows, lowest and highest value of each.

    Attributes:
        columns: Columns of the rows, ``(C,)``.
        owners: Which of them each code is a digit of, ``(digits,)``.
        remembered: Number of values that `present` has a place for.
    """

    def __init__(self, columns: Sequence[tuple[int, float, float]]) -> None:
        """Lay out the digits, on the CPU."""
        counts = [int(high - low) + 1 for _, low, high in columns]
        digits = [(count - 1).bit_length() for count in counts]
        self.columns = torch.tensor([column for column, _, _ in columns], dtype=torch.long, device="cpu")
        self._low = torch.tensor([low for _, low, _ in columns], dtype=torch.float32, device="cpu")
        self._high = torch.tensor([high for _, _, high in columns], dtype=torch.float32, device="cpu")
        owners = [owner for owner, number in enumerate(digits) for _ in range(number)]
        self.owners = torch.tensor(owners, dtype=torch.long, device="cpu")
        self._value = torch.tensor(
            [2.0**place for number in digits for place in range(number)], dtype=torch.float32, device="cpu"
        )
        is_remembered = [count <= MOST_REMEMBERED for count in counts]
        self._is_remembered = torch.tensor(is_remembered, dtype=torch.bool, device="cpu")
        self.remembered = max((count for count in counts if count <= MOST_REMEMBERED), default=1)

    def move_to(self, device: torch.device) -> None:
        """Move all tensors to a device."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))

    def encode(self, rows: Tensor) -> Tensor:
        """Digits of rows ``(M, n, dim)`` as -1 and 1, ``(M, n, digits)``."""
        values = (rows[..., self.columns] - self._low)[..., self.owners]
        return torch.floor(values / self._value) % 2 * 2 - 1

    def decode(self, codes: Tensor, present: Tensor | None = None) -> Tensor:
        """Values of codes ``(M, n, digits)``: ``(M, n, C)``, of each model only those that are `present`, if given."""
        values = self._low.expand(*codes.shape[:-1], -1).clone()
        values.index_add_(-1, self.owners, (codes > 0).float() * self._value)
        values = values.minimum(self._high)
        if present is None:
            return values
        place = (values - self._low).long().clamp(max=self.remembered - 1)
        is_absent = ~present.gather(2, place.mT).mT
        if bool(is_absent.any()):
            for column in is_absent.flatten(0, 1).any(0).nonzero().flatten().tolist():
                model, row = is_absent[..., column].nonzero(as_tuple=True)
                nearest = self._nearest(codes[model, row], present[:, column], model, column)
                values[model, row, column] = self._low[column] + nearest
        return values

    def present(self, stack: int, blocks: Iterable[Tensor]) -> Tensor:
        """Which values the columns of rows have, bool ``(M, C, remembered)``, counted from the lowest.

        A column of more than `MOST_REMEMBERED` values counts as having all.

        Args:
            stack: M, the number of models.
            blocks: The rows, ``(M, n, dim)`` each.
        """
        found = ~self._is_remembered[:, None].expand(stack, -1, self.remembered)
        for rows in blocks:
            place = (rows[..., self.columns] - self._low).long().clamp(0, self.remembered - 1)
            found.scatter_(2, place.mT, True)
        return found

    def all_present(self, stack: int) -> Tensor:
        """All values, as of data that have all."""
        return torch.ones(stack, len(self.columns), self.remembered, dtype=torch.bool, device=self.columns.device)

    def _nearest(self, codes: Tensor, present: Tensor, model: Tensor, column: int) -> Tensor:
        """The present value, counted from the lowest, whose digits are nearest to codes ``(k, digits)`` of a column."""
        own, values = self.owners == column, present.any(0).nonzero()
        digits = torch.floor(values / self._value[own]) % 2 * 2 - 1
        size = max(1, _SCORES // len(values))
        found = [
            (some @ digits.mT).masked_fill(~present[of][:, values.flatten()], -torch.inf).argmax(1)
            for some, of in zip(codes[:, own].split(size), model.split(size), strict=True)
        ]
        return values.flatten()[torch.cat(found)]
