"""HostedSynthERReplayBuffer: a buffer that lives, with its real rows and generator, in TorchRL's `RayReplayBuffer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrl.data import ReplayBuffer, TensorDictReplayBuffer

from synther_replay.adapters.torchrl.buffer import SynthERReplayBuffer


class HostedSynthERReplayBuffer(SynthERReplayBuffer):
    """A `SynthERReplayBuffer` that makes its real buffer itself, for ``RayReplayBuffer(replay_buffer_cls=...)``.

    Collectors and learners of a cluster then share one actor of Ray with real and synthetic rows::

        buffer = RayReplayBuffer(
            replay_buffer_cls=HostedSynthERReplayBuffer,
            real=functools.partial(TensorDictReplayBuffer, storage=LazyTensorStorage(1_000_000), batch_size=256),
            action_spec=env.action_spec,
            generator="fast",
            remote_config={"num_cpus": 1, "num_gpus": 1},
        )

    Args:
        real: Makes the real buffer, where this one is.
        delayed_init: Passed by `RayReplayBuffer`; of no meaning here.
        options: Arguments of `SynthERReplayBuffer`.
    """

    as_remote = vars(ReplayBuffer)["as_remote"]  # the class method itself, for this class

    def __init__(
        self, real: Callable[[], ReplayBuffer] = TensorDictReplayBuffer, *, delayed_init: bool = False, **options: Any
    ) -> None:
        """Make both buffers."""
        super().__init__(real(), **options)

    def _getattr(self, name: str) -> Any:
        """Return an attribute; an actor has methods only."""
        return getattr(self, name)

    def _setattr(self, name: str, value: Any) -> None:
        """Set an attribute."""
        setattr(self, name, value)
