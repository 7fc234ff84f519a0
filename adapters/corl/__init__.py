"""CORL: its replay buffer with the same constructor and methods, and `upsample`."""

from synther_replay.adapters.corl.buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
