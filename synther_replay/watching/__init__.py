"""Watching a run: what every refit made, as scalars, histograms, one line, a history file and a page.

The names of all values are those of `RefitRecord`, whatever they are written to.
"""

from synther_replay.watching.log import RefitLog
from synther_replay.watching.record import PREFIX, RefitRecord
from synther_replay.watching.run_folder import RunFolder, read_history
from synther_replay.watching.writers import RefitWriter, TensorBoardWriter, WandbWriter

__all__ = [
    "PREFIX",
    "RefitLog",
    "RefitRecord",
    "RefitWriter",
    "RunFolder",
    "TensorBoardWriter",
    "WandbWriter",
    "read_history",
]
