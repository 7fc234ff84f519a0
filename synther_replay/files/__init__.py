"""Files of transitions: D4RL's HDF5, NumPy, Parquet and Minari, read and written in blocks."""

from synther_replay.files.reading import FileError, TransitionFile, open_file, read
from synther_replay.files.writing import write, write_blocks

__all__ = ["FileError", "TransitionFile", "open_file", "read", "write", "write_blocks"]
