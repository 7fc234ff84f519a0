"""CORL: a drop-in `ReplayBuffer` with the additional method `upsample`."""

from synther_replay.adapters.corl.buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
