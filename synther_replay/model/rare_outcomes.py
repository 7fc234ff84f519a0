"""RareOutcomes: real rows of outcomes that are too rare to be learned, such as the first goals that an agent reaches.

A few rows may not tell a classifier where in the space a reward is given: it gives the reward to other rows, and rows
at the goal go without. So generated rows have such an outcome only where it is more likely than not, or never if it has
hardly any rows, and rows in doubt are left out (see `OutcomeModel.assign`). Copies of the real rows fill its share up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.common.stacks import prefix_sums, take_rows
from synther_replay.errors import CheckpointError
from synther_replay.model.outcomes import Outcomes

FEWEST_ROWS = 64  # of an outcome that is learned
FEWEST_EXAMPLES = 8  # of an outcome that generated rows have; with fewer a classifier is sure of what is wrong
MORE_LIKELY = 0.5  # chance of the outcome for such a row: more likely than not
LARGEST_SHARE = 0.05  # of the real rows that may be rare: in small data every outcome has few rows


class RareOutcomes(NamedTuple):
    """All real rows of some outcomes of M models, padded to the same number."""

    rows: Tensor  # (M, R, dim)
    number: Tensor  # (M, R), of the row's outcome
    share: Tensor  # (M, R), of the row among all real rows; 0 for padding

    @classmethod
    def of(cls, rows: Tensor, number: Tensor, outcomes: Outcomes) -> RareOutcomes | None:
        """Real rows of outcomes with few rows; None if there are none.

        Args:
            rows: All real rows ``(M, n, dim)``.
            number: Number of each row's outcome, ``(M, n)``.
            outcomes: The outcomes.
        """
        few = (outcomes.shares * rows.shape[1]).round() < FEWEST_ROWS
        own = few.gather(1, number)
        size = own.sum(1)
        most = int(size.max())
        if not most:
            return None
        order = (~own).long().argsort(dim=1, stable=True)[:, :most]
        is_row = torch.arange(most, device=rows.device) < size[:, None]
        return cls(take_rows(rows, order), number.gather(1, order), is_row.float() / rows.shape[1])

    def limited(self, told: Tensor) -> RareOutcomes | None:
        """Those of the rarest outcomes, which are few rows together; None if nothing is left.

        Args:
            told: Outcomes that are known without a classifier, bool ``(M, K)``.
        """
        shares = self._counts(told.shape[1]).double() * self.share.amax(1, keepdim=True)
        ascending = shares.masked_fill((shares == 0) | told, torch.inf).sort(dim=1)
        taken = prefix_sums(ascending.values, 1) <= LARGEST_SHARE
        rare = torch.zeros_like(taken).scatter_(1, ascending.indices, taken)
        share = self.share * rare.gather(1, self.number)
        return self._replace(share=share) if bool(share.any()) else None

    def least_chance(self, count: int) -> Tensor:
        """How likely each of `count` outcomes must be for a generated row to have it, ``(M, count)``; 0: not rare."""
        rows = self._counts(count)
        return torch.where(rows == 0, 0.0, torch.where(rows < FEWEST_EXAMPLES, torch.inf, MORE_LIKELY))

    def insert(self, rows: Tensor, number: Tensor, kinds: int, rng: torch.Generator) -> None:
        """Fill the shares of the rare outcomes up with copies of the real rows, in place of rows of other outcomes.

        Args:
            rows: Generated rows ``(M, n, dim)``, changed in place.
            number: Number of each row's outcome, ``(M, n)``.
            kinds: Number of outcomes.
            rng: Random generator.
        """
        rare, n = self.least_chance(kinds) > 0, rows.shape[1]
        # float64: float32 has too few values between 0 and 1 for a place among many rows
        chance = torch.rand(len(rows), kinds, device=rows.device, generator=rng, dtype=torch.float64).cpu()
        for model, own in enumerate(rows):
            others = (~rare[model, number[model]]).nonzero().flatten()
            others = others[torch.randperm(len(others), device=rows.device, generator=rng)]
            have, is_row = torch.bincount(number[model], minlength=kinds).tolist(), self.share[model] > 0
            for outcome in rare[model].nonzero().flatten().tolist():
                known = (is_row & (self.number[model] == outcome)).nonzero().flatten()
                share = len(known) * float(self.share[model, known[0]])
                count = int(n * share + chance[model, outcome]) - have[outcome]  # rounds without bias
                place, others = others.tensor_split([max(0, count)])
                turn = known[torch.randperm(len(known), device=rows.device, generator=rng)]
                own[place] = self.rows[model, turn[torch.arange(len(place), device=rows.device) % len(turn)]]

    def _counts(self, kinds: int) -> Tensor:
        """Number of rows of each outcome, ``(M, kinds)``."""
        pairs = zip(self.number, self.share, strict=True)
        return torch.stack([torch.bincount(own[share > 0], minlength=kinds) for own, share in pairs])

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all tensors."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], shape: tuple[int, int, int], device: torch.device) -> RareOutcomes:
        """Inverse of `state_dict`; raises `CheckpointError` if something is impossible.

        Args:
            state: The tensors by name.
            shape: Numbers of models, columns of a row and outcomes.
            device: Where the tensors go.
        """
        stack, dim, outcomes = shape
        if not isinstance(state, dict) or state.keys() != set(cls._fields):
            raise CheckpointError(f"state: rare outcomes: got {state and sorted(state)}, expected {list(cls._fields)}")
        count = state["share"].shape[-1]
        for name, tensor in state.items():
            expected = (stack, count, dim) if name == "rows" else (stack, count)
            if tuple(tensor.shape) != expected or not bool(tensor.isfinite().all()):
                got = tuple(tensor.shape)
                raise CheckpointError(
                    f"state: rare outcomes: {name}: got shape {got}, expected finite values of shape {expected}"
                )
        share, number = state["share"], state["number"]
        if bool((share < 0).any()) or bool((share.sum(1) > 1).any()):
            raise CheckpointError("state: rare outcomes: shares are negative or add up to more than 1")
        if bool((number < 0).any()) or bool((number >= outcomes).any()):
            raise CheckpointError(f"state: rare outcomes: expected numbers of {outcomes} outcomes")
        types = {"rows": torch.float32, "number": torch.long, "share": torch.float32}
        return cls(**{name: tensor.to(device, types[name], copy=True) for name, tensor in state.items()})
