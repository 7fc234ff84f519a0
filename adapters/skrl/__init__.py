"""skrl: `SynthERMemory`, a memory for off-policy agents."""

from synther_replay.adapters.skrl.memory import SynthERMemory

__all__ = ["SynthERMemory"]
