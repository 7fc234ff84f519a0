"""What D4RL's names stand for: tasks, and the returns that its scores are measured by."""

from __future__ import annotations

# Where data are regenerated. D4RL's own versions of these tasks need a simulator that is no longer kept; these are
# their successors.
LOCOMOTION = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}

TASK_COLUMNS = {"halfcheetah": (17, 6), "hopper": (11, 3), "walker2d": (17, 6), "maze2d": (4, 2)}
"""Numbers in an observation and in an action, by the beginning of a data set's name."""

REFERENCE = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "antmaze": (0.0, 1.0),
    "kitchen": (0.0, 4.0),
}
"""Returns for the scores 0 and 100, of a random policy and an expert, by the beginning of a data set's name."""
