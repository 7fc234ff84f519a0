"""Two processes agree bit by bit, and `repeats` finds where they do not."""

import os

import pytest
import torch

pytest.importorskip("h5py")
pytest.importorskip("mujoco")
from synther_replay.benchmarks import repeats
from synther_replay.benchmarks.repeats import GENERATOR, NAMES, OFFLINE, ONLINE, Work, checksum, compare, main

STARTUP = """
import os
if os.environ.get("SPOILT") == "2":
    from synther_replay.benchmarks.agents.td3bc import StackedTD3BC
    genuine = StackedTD3BC.learn
    def learn(self):
        genuine(self)
        if int(self.updates) == 6:
            self.policy.mean[1, 3] += 1
    StackedTD3BC.learn = learn
"""


def small(name):
    updates, per_call = (8, 4) if name in OFFLINE else (2, None)
    return Work(name, "cpu", agents=2, updates=updates, per_call=per_call, hidden=16)


@pytest.mark.parametrize("name", [*OFFLINE, *ONLINE])
def test_all_tensors_are_noted_after_each_call_and_repeat(name):
    notes = list(small(name).records())
    assert notes == list(small(name).records())
    assert [updates for updates, _ in notes] == ([0, 4, 8] if name in OFFLINE else [0, 1, 2])
    assert {"policy.parameters", "critic.mean", "target"} <= notes[-1][1].keys()
    assert [tensor for tensor, value in notes[-1][1].items() if value == notes[-2][1][tensor]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3bc", "iql", "edac", "cql", "sac", GENERATOR])
def test_two_processes_on_a_cpu_agree(name):
    work = small(name)
    assert compare(work) == {"updates": work.updates, "differs": None}


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# Few and many networks use different kernels.
@pytest.mark.parametrize(("name", "agents"), [(GENERATOR, 1), *((name, n) for name in NAMES[:-1] for n in (1, 8))])
def test_two_processes_on_a_gpu_agree_after_thousands_of_updates(name, agents):
    found = compare(Work(name, "cuda", agents=agents, updates=500 if name in ONLINE else 3_000))
    assert found["differs"] is None, found


@pytest.mark.slow
def test_the_first_update_and_the_tensors_that_differ_are_named(monkeypatch, tmp_path, capsys):
    (tmp_path / "sitecustomize.py").write_text(STARTUP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    genuine, started = repeats._process, []

    def process(work, folder):
        started.append(work)
        monkeypatch.setenv("SPOILT", str(len(started)))
        return genuine(work, folder)

    monkeypatch.setattr(repeats, "_process", process)
    options = ["--updates", "8", "--per-call", "2", "--hidden", "16", "--agents", "2", "--device", "cpu"]
    assert main(["--of", "td3bc", *options]) == 1
    assert capsys.readouterr().out == "td3bc: differs after 6 updates, in policy.mean\n"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool])
def test_a_checksum_tells_values_and_places_apart(dtype):
    tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    others = [tensor.flip(0), tensor.roll(1), torch.zeros_like(tensor)]
    others += [-tensor, tensor.nextafter(2 * tensor)] if dtype in (torch.float32, torch.float64) else []
    assert checksum(tensor) == checksum(tensor.clone().t())
    assert checksum(tensor) not in map(checksum, others)


@pytest.mark.parametrize(("option", "value"), [("--updates", "0"), ("--agents", "-1"), ("--of", "sacc")])
def test_invalid_arguments_are_refused(option, value, capsys):
    with pytest.raises(SystemExit):
        main([option, value, "--device", "cpu"])
    assert value in capsys.readouterr().err
