"""Stable-Baselines3: `SynthERBuffer` and `SynthERHerBuffer`, `SynthERCallback` (logs refits) and `FastSAC`."""

from synther_replay.adapters.sb3.adoption import extend_files_of_buffers
from synther_replay.adapters.sb3.buffer import SynthERBuffer, SynthERDictBuffer, transition_spec
from synther_replay.adapters.sb3.callback import SynthERCallback
from synther_replay.adapters.sb3.fast_sac import FastSAC
from synther_replay.adapters.sb3.her import SynthERHerBuffer
from synther_replay.adapters.sb3.n_step import take_n_steps_of_models
from synther_replay.adapters.sb3.policies import LayerNormMlpPolicy
from synther_replay.adapters.sb3.relevance import attach_critics_of_models

extend_files_of_buffers(SynthERBuffer)
take_n_steps_of_models(SynthERBuffer)
attach_critics_of_models(SynthERBuffer)

__all__ = [
    "FastSAC",
    "LayerNormMlpPolicy",
    "SynthERBuffer",
    "SynthERCallback",
    "SynthERDictBuffer",
    "SynthERHerBuffer",
    "transition_spec",
]
