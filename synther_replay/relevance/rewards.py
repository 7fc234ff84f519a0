"""Reward and Return: relevance by what the environment paid."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.common.stacks import add_rows
from synther_replay.data.transitions import Transitions

_MOST_ENVIRONMENTS = 256  # that take turns in one buffer
_SEEN_AT_ONCE = 20_000  # rows that the number of environments is found in
_LEAST_SHARE = 0.2  # of rows that are followed by their next observation


class Reward:
    """The reward of each row."""

    is_self_contained = True

    def score(self, transitions: Transitions) -> Tensor:
        """Return the rewards."""
        return transitions.rewards


class Return:
    """The undiscounted return of the episode that a row belongs to, as far as the buffer holds it.

    All rows of an episode count the same: a return-to-go would be highest for first steps wherever rewards are
    positive. An episode that is not finished yet counts what it has so far.

    Episodes are found in the order of the rows: the observation that follows a row is the next observation of it.
    Parallel environments that take turns are told apart by their number, the first distance at which most rows follow
    each other, or else the one at which the most do. A row of n steps is followed by the row n steps later, so the
    episode then counts every n-th row, and the rewards in them are discounted within the n steps.

    Raises:
        ValueError: No order is found in the rows, for example because they are shuffled.
    """

    is_self_contained = True

    def score(self, transitions: Transitions) -> Tensor:
        """Return the return of each row's episode."""
        rows = transitions.rows
        stacked = rows[None] if rows.ndim == 2 else rows
        scores = torch.stack([_episode_returns(Transitions(transitions.spec, own)) for own in stacked])
        return scores[0] if rows.ndim == 2 else scores


def _episode_returns(transitions: Transitions) -> Tensor:
    """Return of each row's episode, ``(n,)``."""
    n, device = len(transitions), transitions.rows.device
    turns = _environments(transitions)
    # Rows of one environment one after another: their number modulo `turns` is the environment.
    number = torch.arange(n, device=device)
    order = (number % turns * n + number).argsort()
    starts = torch.ones(n, dtype=torch.bool, device=device)
    if n > 1:
        starts[1:] = ~_follows(transitions[order], 1)
    episode = starts.long().cumsum(0) - 1
    returns = torch.zeros(n, dtype=torch.float64, device=device)
    add_rows(returns, episode, transitions.rewards[order].double())
    scores = torch.empty(n, dtype=torch.float64, device=device)
    scores[order] = returns[episode]
    return scores


def _environments(transitions: Transitions) -> int:
    """Number of environments whose rows take turns: the first that fits more than half of the rows, else the best.

    No other number fits better than one that fits more than half, unless observations repeat.
    """
    seen = transitions[: min(len(transitions), _SEEN_AT_ONCE)]
    best, share = 1, 0.0
    for turns in range(1, min(_MOST_ENVIRONMENTS, len(seen) - 1) + 1):
        found = float(_follows(seen, turns).double().mean())
        if found > share:
            best, share = turns, found
        if share > 0.5:
            return best
    # Where every episode has one step, rows are in order without any of them following another.
    if share == 0.0 and bool(transitions.terminated.all()):
        return 1
    if share < _LEAST_SHARE:
        raise ValueError(
            f"relevance: no episodes found: only {share:.0%} of the rows are followed by their next observation. "
            "Return needs rows in the order of their steps"
        )
    return best


def _follows(transitions: Transitions, turns: int) -> Tensor:
    """Whether row ``i + turns`` goes on where row i ended, ``(n - turns,)``."""
    spec, rows = transitions.spec, transitions.rows
    same = (rows[:-turns, spec.next_observations] == rows[turns:, spec.observations]).all(1)
    return same & ~transitions.terminated[:-turns]
