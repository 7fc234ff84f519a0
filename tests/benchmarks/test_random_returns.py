"""Returns of the random policy, from which score ranges begin."""

import json
import sys

import numpy as np
import pytest

from synther_replay.benchmarks.online import random_returns


def test_returns_depend_on_the_episode_and_not_on_the_call(tmp_path, monkeypatch, capsys):
    path = tmp_path / "new" / "random.json"
    arguments = ["--envs", "Pendulum-v1", "--episodes", "2", "--out", str(path)]
    monkeypatch.setattr(sys, "argv", ["random_returns.py", *arguments])
    assert random_returns.main() == 0
    found = json.loads(path.read_text())
    first, second = found["returns"]["Pendulum-v1"]
    assert first != second
    assert random_returns.random_returns("Pendulum-v1", 2) == [first, second]
    assert found["settings"]["episodes"] == 2
    assert all(found[key] for key in ("machine", "versions", "command", "commit"))
    assert f"{np.mean([first, second]):.1f}" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--envs", "Ent-v4"], ["--episodes", "0"]])
def test_an_unknown_task_and_no_episodes_are_refused(tmp_path, monkeypatch, wrong):
    path = tmp_path / "random.json"
    monkeypatch.setattr(sys, "argv", ["random_returns.py", "--out", str(path), *wrong])
    with pytest.raises(SystemExit) as stopped:
        random_returns.main()
    assert stopped.value.code == 2
    assert not path.exists()
