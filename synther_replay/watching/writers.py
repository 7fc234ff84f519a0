"""Writers of refits: TensorBoard and Weights & Biases; adapters have those of their frameworks."""

from __future__ import annotations

import importlib
import os
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from synther_replay.common.by_attributes import ByAttributes
from synther_replay.watching.record import PREFIX, RefitRecord


@runtime_checkable
class RefitWriter(Protocol, metaclass=ByAttributes):
    """Writes refits somewhere, under the names of `RefitRecord.scalars` and `RefitRecord.histograms`."""

    def write(self, record: RefitRecord) -> None:
        """Write one refit."""


class TensorBoardWriter:
    """Writes scalars and histograms to TensorBoard, by environment steps.

    A pickled or copied one opens the same folder again when it writes first; one for an object without the attribute
    ``log_dir`` keeps the object.

    Args:
        writer: The ``SummaryWriter`` of the run, or a folder to make one for, which needs the package ``tensorboard``.
    """

    def __init__(self, writer: Any) -> None:
        """Keep or make the writer."""
        if isinstance(writer, str | os.PathLike):
            self._folder: str | None = os.fspath(writer)
            writer = self.writer  # now, so that a missing package is noticed before the run
        if not callable(getattr(writer, "add_scalar", None)) or not callable(getattr(writer, "add_histogram", None)):
            raise TypeError(f"writer: expected a folder or a SummaryWriter, got {writer!r}")
        self._folder, self.writer = getattr(writer, "log_dir", None), writer

    @cached_property
    def writer(self) -> Any:
        """The ``SummaryWriter``."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self._folder)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the open writer, which has a thread and a file."""
        return {name: value for name, value in vars(self).items() if name != "writer" or self._folder is None}

    def write(self, record: RefitRecord) -> None:
        """Write one refit."""
        for name, value in record.scalars().items():
            self.writer.add_scalar(name, value, record.step)
        for name, values in record.histograms().items():
            self.writer.add_histogram(name, values, record.step)
        self.writer.flush()


class WandbWriter:
    """Writes scalars and histograms to Weights & Biases, with the environment steps as ``synther/step``.

    The run's own steps stay as they are: W&B drops values whose step is behind the last one. A pickled or copied one
    writes to the run that ``wandb.init`` started where it is loaded, because a run belongs to its process.

    Args:
        run: The run; None: the one that ``wandb.init`` started, when the first refit is written.
    """

    def __init__(self, run: Any = None) -> None:
        """Keep the run."""
        self._wandb  # noqa: B018  now, so that a missing package is noticed before the run
        self.run, self._defined = run, False

    @cached_property
    def _wandb(self) -> Any:
        return importlib.import_module("wandb")  # optional

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the run."""
        rest = {name: value for name, value in vars(self).items() if name != "_wandb"}
        return {**rest, "run": None, "_defined": False}

    def write(self, record: RefitRecord) -> None:
        """Write one refit."""
        run = self._wandb.run if self.run is None else self.run
        if run is None:
            raise RuntimeError("no run of W&B is active; call wandb.init before the first refit")
        if not self._defined:
            run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
            self._defined = True
        histograms = {name: self._wandb.Histogram(values.numpy()) for name, values in record.histograms().items()}
        run.log({f"{PREFIX}step": record.step, **record.scalars(), **histograms})
