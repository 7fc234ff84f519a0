"""CodeLayout: which column of a row becomes which code.

Codes are in this order: continuous and ordinal columns ("plain" ones), a code each; the binary digits of discrete
columns, see `categories`; and ``terminated``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.categories import Categories
from synther_replay.data.squashing import squash, unsquashed
from synther_replay.data.transitions import TransitionSpec

_WIDEST = 1e4  # wider action ranges are not treated as the output of a tanh


class CodeLayout:
    """Codes of the columns of a spec; depends on the spec alone, not on data.

    Args:
        spec: Layout of the rows.
        unsquash_actions: Whether bounded continuous actions are mapped through atanh.

    Attributes:
        plain: Continuous and ordinal columns, ``(columns,)``.
        ordinal: Which of these are ordinal, bool ``(columns,)``.
        is_action: Which of these are actions, bool ``(columns,)``.
        low: Their lower bounds, ``(columns,)``.
        high: Their upper bounds, ``(columns,)``.
        reward: Number of the reward among them.
        categories: Digits of the discrete columns.
        dim: Number of codes.
    """

    def __init__(self, spec: TransitionSpec, *, unsquash_actions: bool = False) -> None:
        """Give each column its codes."""
        plain: list[int] = []
        ordinal: list[bool] = []
        categories: list[tuple[int, float, float]] = []  # column, lowest value, highest value
        for leaf, columns in (placed for field in spec.fields for placed in field.leaf_columns()):
            for column, low, high in zip(range(columns.start, columns.stop), leaf.low, leaf.high, strict=True):
                if leaf.kind == "category":
                    categories.append((column, low, high))
                elif leaf.kind != "flag":
                    plain.append(column)
                    ordinal.append(leaf.kind == "ordinal")
        self.spec = spec
        self.plain = torch.tensor(plain, dtype=torch.long, device="cpu")
        self.ordinal = torch.tensor(ordinal, dtype=torch.bool, device="cpu")
        self.low, self.high = (bound[self.plain] for bound in _column_bounds(spec))
        self.is_action = (self.plain >= spec.actions.start) & (self.plain < spec.actions.stop)
        width = self.high.double() - self.low.double()
        squashed = self.is_action & (width > 0) & (width <= _WIDEST) & ~self.ordinal & unsquash_actions
        self._squashed = squashed.nonzero().flatten()
        self.categories = Categories(categories)
        self.reward = plain.index(spec.rewards.start)
        digits = self.categories.columns[self.categories.owners].tolist()
        coded = [*plain, *digits, spec.terminated.start]
        self.dim = len(coded)
        self._coded = torch.tensor(coded, dtype=torch.long, device="cpu")  # the column of each code
        self._features = torch.tensor(
            [code for code in range(self.dim - 1) if code != self.reward], dtype=torch.long, device="cpu"
        )

    @property
    def feature_dim(self) -> int:
        """Number of codes that `features` returns."""
        return len(self._features)

    def features(self, codes: Tensor) -> Tensor:
        """Return the codes of all columns but reward and `terminated`, ``(M, n, feature_dim)``."""
        return codes[..., self._features]

    def codes_of(self, *parts: slice) -> Tensor:
        """Numbers of the codes of some columns of rows, in the order of the codes."""
        wanted = torch.zeros(self.spec.dim, dtype=torch.bool, device=self._coded.device)
        for columns in parts:
            wanted[columns] = True
        return wanted[self._coded].nonzero().flatten()

    def plain_codes(self, columns: Tensor) -> Tensor:
        """Number of the code of each of some plain columns of rows."""
        return torch.searchsorted(self.plain, columns)

    def unsquashed(self, plain: Tensor) -> Tensor:
        """Plain values with actions before their tanh, a copy."""
        return unsquashed(plain, self._squashed, self.low, self.high)

    def squash(self, plain: Tensor) -> Tensor:
        """Inverse of `unsquashed`, in place."""
        return squash(plain, self._squashed, self.low, self.high)

    def digits(self, rows: Tensor) -> Tensor:
        """Codes of discrete columns and of the termination flag, ``(M, n, digits + 1)``."""
        return torch.cat((self.categories.encode(rows), rows[..., self.spec.terminated]), dim=-1)

    def outcomes(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards and termination flags of rows, ``(M, n)`` each."""
        return rows[..., self.spec.rewards.start], rows[..., self.spec.terminated.start] > 0.5

    def move_to(self, device: torch.device) -> None:
        """Move all tensors to a device."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        self.categories.move_to(device)


def _column_bounds(spec: TransitionSpec) -> tuple[Tensor, Tensor]:
    """Bounds of each column in float32, rounded inwards so that they never exceed the bounds of the space."""
    low, high = spec.bounds()
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 become infinite, then the largest float32
        low32, high32 = low.astype(np.float32), high.astype(np.float32)
    low32 = np.where(low32 < low, np.nextafter(low32, np.float32(np.inf)), low32)
    high32 = np.where(high32 > high, np.nextafter(high32, np.float32(-np.inf)), high32)
    return torch.from_numpy(low32), torch.from_numpy(high32)
