"""TorchRL: `SynthERReplayBuffer` wraps any replay buffer of transitions."""

from synther_replay.adapters.torchrl.buffer import SynthERReplayBuffer

__all__ = ["SynthERReplayBuffer"]
