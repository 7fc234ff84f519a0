"""TorchRL: `SynthERReplayBuffer` wraps any replay buffer of transitions."""

from synther_replay.adapters.torchrl.buffer import SynthERReplayBuffer
from synther_replay.adapters.torchrl.hosted import HostedSynthERReplayBuffer

__all__ = ["HostedSynthERReplayBuffer", "SynthERReplayBuffer"]
