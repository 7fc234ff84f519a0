"""Relevance of real rows, and generation that is guided by it."""

from synther_replay.relevance.critics import TDError, Value
from synther_replay.relevance.curiosity import Curiosity
from synther_replay.relevance.guidance import Guidance
from synther_replay.relevance.protocol import Relevance
from synther_replay.relevance.rewards import Return, Reward

__all__ = ["Curiosity", "Guidance", "Relevance", "Return", "Reward", "TDError", "Value"]
