"""Lets YAML files of rl_zoo3 name our buffers.

Usage: ``python -m rl_zoo3.train --gym-packages synther_replay.adapters.sb3.zoo ...``, and in the YAML file
``replay_buffer_class: SynthERBuffer``. rl_zoo3 looks up this name where it looks up ``HerReplayBuffer``: in the
namespace of its module `exp_manager`. Importing this module puts the names there.
"""

from rl_zoo3 import exp_manager

from synther_replay.adapters.sb3.buffer import SynthERBuffer
from synther_replay.adapters.sb3.her import SynthERHerBuffer

exp_manager.SynthERBuffer = SynthERBuffer
exp_manager.SynthERHerBuffer = SynthERHerBuffer
