"""The examples run with tiny budgets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here():
    programs = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")} - {
        "plotting.py"
    }
    assert all(f"examples/{name}" in Path(__file__).read_text() for name in programs), programs


def test_upsample_prints_fidelity_and_plots_marginals(tmp_path):
    figure = tmp_path / "marginals.png"
    printed = run("examples/upsample.py", "--rows", "300", "--steps", "30", "--out", str(figure))
    assert "generated 3,000 transitions" in printed
    assert "marginal" in printed
    assert "memorisation" in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_minari_set_is_upsampled(tmp_path):
    pytest.importorskip("minari")
    budget = ("--episodes", "2", "--rows", "50", "--steps", "20", "--folder", str(tmp_path))
    printed = run("examples/minari_upsample.py", *budget)
    assert "400 transitions" in printed
    assert "50 steps in 50 episodes" in printed


def test_a_raw_file_of_d4rl_is_upsampled(tmp_path):
    out = tmp_path / "synthetic.hdf5"
    printed = run("examples/d4rl_upsample.py", "--real", "450", "--rows", "300", "--steps", "20", "--out", str(out))
    assert "447 transitions in 450 rows" in printed
    assert "300 transitions read back" in printed


def test_the_demo_compares_both_buffers_and_plots(tmp_path):
    budget = ("--steps", "402", "--every", "201", "--seeds", "1", "--updates", "1", "--jobs", "1")
    printed = run("examples/sb3_pendulum.py", *budget, "--out", str(tmp_path))
    assert printed.count("SAC + SynthER  seed") == 2
    assert "| steps | SAC | SAC + SynthER |" in printed
    assert "| 402 | -" in printed
    assert "refit 1 | step 4" in printed
    assert "marginal " in printed
    for name in ("curves.png", "marginals.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_torchrl_loop_refits_and_learns():
    printed = run("examples/torchrl_sac.py", "--steps", "500", "--refit", "300", "--updates", "1")
    assert "step    500  return" in printed
    assert "500 real, 20000 synthetic" in printed
    assert "refits=1" in printed


def test_the_cleanrl_script_refits_and_learns():
    budget = ("--total-timesteps", "420", "--learning-starts", "390", "--first-refit", "395", "--updates", "1")
    printed = run("examples/cleanrl_sac.py", *budget)
    assert "global_step=400, episodic_return=-" in printed
    assert "SynthERBuffer(420 real, 20000 synthetic, real_ratio=0.5, refits=1)" in printed


def test_plain_sac_differs_in_the_marked_lines_only():
    marked = [line for line in (ROOT / "examples" / "cleanrl_sac.py").read_text().splitlines() if "# SynthER" in line]
    assert len(marked) == 3


def test_the_corl_loop_learns_from_real_and_from_upsampled_data():
    printed = run("examples/corl_offline.py", "--rows", "100", "--upsample", "200", "--steps", "20", "--updates", "5")
    assert printed.count("return") >= 2
    assert "real data" in printed
    assert "upsampled data" in printed


def test_sb3_pixels() -> None:
    printed = run("examples/sb3_pixels.py", "--steps", "350", "--refit", "250")
    assert "real rows only" in printed
    assert "half synthetic" in printed
    assert "refits=1" in printed


def test_the_goal_task_is_learnt_with_both_buffers(tmp_path):
    budget = ("--steps", "500", "--every", "250", "--seeds", "1", "--updates", "1", "--jobs", "1", "--episodes", "2")
    printed = run("examples/sb3_her.py", *budget, "--json", str(tmp_path / "goals.json"))
    assert "| steps | HER | HER + SynthER |" in printed
    runs = json.loads((tmp_path / "goals.json").read_text())["runs"]
    assert [one["variant"] for one in runs] == ["HER", "HER + SynthER"]
    assert all(len(one["success"]) == 2 for one in runs)


def test_the_notebook_runs_and_shows_a_report(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "examples/quickstart.ipynb", as_version=4)
    for cell in notebook.cells:  # a smaller budget
        cell.source = cell.source.replace("generator.fit(real)", "generator.fit(real, steps=200)")
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert len(pages) == 1
    assert "srcdoc" in pages[0]
    assert "refits=1" in shown[-1]["text/plain"]
