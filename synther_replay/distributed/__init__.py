"""Generators on other GPUs and hosts, by Ray."""

from synther_replay.distributed.generator import RayGenerator
from synther_replay.distributed.worker import RayWorker, RemoteError

__all__ = ["RayGenerator", "RayWorker", "RemoteError"]
