"""Official D4RL files, if present: `load` returns the same transitions as D4RL, row by row."""

import numpy as np
import pytest

from synther_replay.benchmarks.data.download import ADDRESSES, locate
from synther_replay.benchmarks.data.registry import load

h5py = pytest.importorskip("h5py")

COUNTS = {"kitchen-complete-v0": (3_679, 60, 9, 19)}  # transitions, columns of observations and actions, episodes


def files():
    found = {}
    for name in sorted(ADDRESSES):
        try:
            found[name] = locate(name, download=False)
        except FileNotFoundError:
            continue
    return found


FILES = files()


@pytest.mark.skipif(not FILES, reason="there are no files of D4RL in D4RL_DATASET_DIR or ~/.d4rl/datasets")
@pytest.mark.parametrize("name", FILES)
def test_an_official_file_gives_the_transitions_that_d4rl_pairs(name):
    found = load(name)
    assert found.origin == "official"
    with h5py.File(FILES[name]) as file:
        keys = ("observations", "actions", "rewards", "terminals", "timeouts")
        observations, actions, rewards, terminals, timeouts = (file[key][()] for key in keys)
        following = file["next_observations"][()] if "next_observations" in file else observations[1:]
    rows = [row for row in range(len(rewards) - 1) if not timeouts[row]]  # what follows the others is not in the file
    assert len(found) == len(rows)
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(found.observations[place], observations[row])
        np.testing.assert_array_equal(found.actions[place], actions[row])
        np.testing.assert_array_equal(found.next_observations[place], following[row])
        assert (found.rewards[place], found.terminals[place]) == (rewards[row], terminals[row])
    if name in COUNTS:
        columns = found.observations.shape[1], found.actions.shape[1]
        assert (len(found), *columns, len(found.returns())) == COUNTS[name]
