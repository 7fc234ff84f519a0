"""Synthetic experience replay: a diffusion model upsamples the replay buffer of an off-policy agent."""

from synther_replay.config import GeneratorConfig
from synther_replay.data.stream import ArrayRows, RowStream
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError, DivergedError, GenerationError, NotFittedError
from synther_replay.generator import DiffusionGenerator
from synther_replay.model.fitted import FittedModel
from synther_replay.model.fitting import FitJob, FitReport
from synther_replay.options import SourceOptions
from synther_replay.protocols import Generator, RealBuffer, RealTransitions
from synther_replay.replay.batch import Batch
from synther_replay.replay.buffer import SyntheticReplayBuffer
from synther_replay.replay.refitting import RefitJob, RefitReport
from synther_replay.replay.ring import RingBuffer
from synther_replay.replay.schedule import RetrainSchedule
from synther_replay.replay.source import SyntheticSource

__version__ = "0.2.0"

__all__ = [
    "ArrayRows",
    "Batch",
    "CheckpointError",
    "DiffusionGenerator",
    "DivergedError",
    "FitJob",
    "FitReport",
    "FittedModel",
    "GenerationError",
    "Generator",
    "GeneratorConfig",
    "NotFittedError",
    "RealBuffer",
    "RealTransitions",
    "RefitJob",
    "RefitReport",
    "RetrainSchedule",
    "RingBuffer",
    "RowStream",
    "SourceOptions",
    "SyntheticReplayBuffer",
    "SyntheticSource",
    "TransitionSpec",
    "Transitions",
]
