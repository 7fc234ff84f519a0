"""TorchRL: a wrapper that mixes synthetic transitions into the batches of any of its replay buffers."""

from synther_replay.adapters.torchrl.buffer import SynthERReplayBuffer

__all__ = ["SynthERReplayBuffer"]
