r"""`synther upsample` against upsampling by hand: seconds, lines to type and fidelity on the same file.

    python -m synther_replay.benchmarks.speed.by_hand real.npz --peer-python PEERS/bin/python --reference SynthER \
        --out by-hand-cpu.json

By hand means a script with SDV's TVAE and one with the published SynthER code, both in `peers/`. They run with a Python
of their own, with the packages `sdv`, `gin-config`, `einops`, `ema-pytorch`, `accelerate`, `torchdiffeq`, `gym` and
`wandb`, and a checkout of the published code with redq in ``synther/REDQ``. An empty module replaces `d4rl`, which new
Pythons cannot install; the published code imports it, but reads nothing by it here.

Every run is a process of its own: seconds include start, reading and writing. The published code takes hours on a CPU
and is cut short; its time in full is computed from a short run. Finished runs are kept: the same command
adds the missing ones to the file.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from synther_replay import Transitions
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import commit, origin
from synther_replay.benchmarks.peers.published_synther import check_reference
from synther_replay.files import read
from synther_replay.metrics import fidelity

ROWS = 100_000
COMPARED = 5_000  # generated rows whose fidelity is measured, of every way the same number
PUBLISHED_STEPS, CUT_STEPS = 100_000, 3_000
TIMED_STEPS, TIMED_ROWS = 100, 500  # of the run that times the published code
OURS, SDV, PUBLISHED = "synther upsample", "TVAE by hand", "published SynthER by hand"
_SCRIPTS = Path(__file__).parents[1] / "peers"
SCRIPTS = {SDV: _SCRIPTS / "upsample_with_sdv.py", PUBLISHED: _SCRIPTS / "upsample_with_synther.py"}
_PACKAGES = ("sdv", "ctgan", "torch", "numpy", "pandas", "accelerate", "ema-pytorch", "gin-config")


def lines_of_code(script: str) -> int:
    """Lines of a script with code on them: no blank lines, comments or docstring.

    >>> lines_of_code('"About."' + chr(10) + "# why" + chr(10) + chr(10) + "x = (1," + chr(10) + "     2)")
    2
    """
    body = ast.parse(script).body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    lines = script.splitlines()
    covered = {line for part in body for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)}
    return sum(1 for line in covered if (text := lines[line - 1].strip()) and not text.startswith("#"))


def timed(command: Sequence[object], *, folder: Path, variables: dict[str, str] | None = None) -> dict[str, float]:
    """Run a program in a folder; return its seconds and the processor's seconds of it and its children."""
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env={**os.environ, **(variables or {})}, capture_output=True, text=True
    )
    seconds, after = time.perf_counter() - started, os.times()
    if done.returncode:
        raise RuntimeError(f"{Path(str(command[1])).name} ended with {done.returncode}: {done.stderr[-2000:]}")
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "processor_seconds": processor}


def scores(real: Path, synthetic: Path, rows: int) -> dict[str, float]:
    """Marginal and correlation score of the first `rows` generated rows."""
    original = read(real)
    generated = Transitions(original.spec, read(synthetic).rows[:rows])  # bounds of actions are those of the real file
    found = fidelity(original, generated, warn=False, seed=0).to_json()
    return {"marginal": found["marginal"], "correlation": found["correlation"]}


def ours(real: Path, folder: Path, rows: int, seed: int) -> dict[str, Any]:
    """One run of the command."""
    target = folder / "synthetic.npz"
    arguments = [
        "upsample",
        real,
        target,
        "--rows",
        rows,
        "--preset",
        "tiny",
        "--set",
        "steps=2000",
        "--seed",
        seed,
        "--device",
        "cpu",
    ]
    return timed([sys.executable, "-m", "synther_replay", *arguments], folder=folder)


def with_sdv(python: Path, real: Path, folder: Path, rows: int, seed: int) -> dict[str, Any]:
    """One run of the script with TVAE, in the settings of its package."""
    return timed([python, SCRIPTS[SDV], real, folder / "synthetic.npz", rows, seed], folder=folder)


def with_published(python: Path, checkout: Path, real: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Two runs of the script with the published code: a short one for its time, a longer one for its fidelity."""
    with tempfile.TemporaryDirectory() as other:
        short = published_run(python, checkout, real, Path(other), rows=TIMED_ROWS, steps=TIMED_STEPS, seed=seed)
    found = published_run(python, checkout, real, folder, rows=COMPARED, steps=CUT_STEPS, seed=seed)
    return {**found, "short": short, **in_full(short)}


def published_run(
    python: Path, checkout: Path, real: Path, folder: Path, *, rows: int, steps: int, seed: int
) -> dict[str, Any]:
    """One run of the script with the published code, with the seconds of a step, of all rows and of the rest."""
    half = steps // 2
    settings = {
        "Trainer.train_num_steps": steps,
        "Trainer.save_and_sample_every": half,
        "SimpleDiffusionGenerator.sample_batch_size": rows,  # it generates whole batches only
    }
    (folder / "d4rl.py").touch()
    paths = (checkout, checkout / "synther" / "REDQ", folder)
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "WANDB_SILENT": "true"}
    command = [python, SCRIPTS[PUBLISHED], real, folder / "synthetic.npz", rows, seed]
    command += [f"{name} = {value}" for name, value in settings.items()]
    started = time.time()
    found = timed(command, folder=checkout, variables=variables)
    # its own checkpoints tell when half and all of the training was done
    middle, trained = (folder.joinpath(f"model-{step}.pt").stat().st_mtime for step in (half, 2 * half))
    parts = {
        "step_seconds": (trained - middle) / half,
        "rows_seconds": started + found["seconds"] - trained,
        "other_seconds": max(0.0, 2 * middle - trained - started),
    }
    return {**found, "steps": steps, "rows": rows, **parts}


def in_full(short: dict[str, Any]) -> dict[str, float]:
    """Seconds of the published code with all steps and rows, computed from a short run."""
    rows_seconds = short["rows_seconds"] / short["rows"] * ROWS
    whole = short["other_seconds"] + PUBLISHED_STEPS * short["step_seconds"] + rows_seconds
    return {"whole_seconds": whole, "whole_processor_seconds": whole * short["processor_seconds"] / short["seconds"]}


def table(content: dict[str, Any]) -> str:
    """The comparison as a table, a line per way."""
    lines = []
    for name, way in content["ways"].items():
        runs, is_cut = way["runs"], "whole_seconds" in way["runs"][0]
        times = [
            _duration(statistics.fmean(run[f"whole_{key}" if is_cut else key] for run in runs))
            + (" (computed)" if is_cut else "")
            for key in ("seconds", "processor_seconds")
        ]
        figures = [_range([run[key] for run in runs]) for key in ("marginal", "correlation")]
        cut = f" (fidelity after {runs[0]['steps']:,} of {PUBLISHED_STEPS:,} steps)" if is_cut else ""
        lines.append([name + cut, way["lines"], *times, *figures, len(runs)])
    head = (f"{content['rows']:,} rows", "lines", "time", "processor time", "marginal", "correlation", "seeds")
    return markdown_table(head, lines)


def _duration(seconds: float) -> str:
    """Seconds for people.

    >>> _duration(30), _duration(1_800), _duration(9_000)
    ('30 s', '30 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _range(values: list[float]) -> str:
    """Smallest and largest value as text, or the only one."""
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"


def package_versions(python: Path) -> dict[str, str]:
    """Versions of the packages of the peers."""
    code = "import json, sys, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *_PACKAGES], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """All runs that the result file does not have yet, one after the other; it is written after each.

    Raises:
        ValueError: The file is of another comparison.
    """
    real, checkout, python = args.real.resolve(), args.reference.resolve(), args.peer_python.absolute()
    plan = {
        OURS: lambda folder, seed: ours(real, folder, ROWS, seed),
        SDV: lambda folder, seed: with_sdv(python, real, folder, ROWS, seed),
        PUBLISHED: lambda folder, seed: with_published(python, checkout, real, folder, seed),
    }
    about = {"real": real.name, "rows": ROWS, "compared_rows": COMPARED}
    content = json.loads(args.out.read_text()) if args.out and args.out.is_file() else {**about, "ways": {}}
    if any(content.get(key) != value for key, value in about.items()):
        raise ValueError(f"{args.out}: is of another comparison; choose another --out")
    content |= origin(torch.device("cpu"))
    content["versions"] |= {f"peers: {name}": version for name, version in package_versions(python).items()}
    for name in plan:
        lines = 1 + (lines_of_code(SCRIPTS[name].read_text()) if name in SCRIPTS else 0)  # 1: the command itself
        content["ways"].setdefault(name, {"runs": []})["lines"] = lines
    for seed, (name, way) in itertools.product(range(args.seeds), plan.items()):
        runs = content["ways"][name]["runs"]
        if any(run["seed"] == seed for run in runs) or (name == PUBLISHED and seed):
            continue
        print(f"{name}, seed {seed} ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = way(Path(folder), seed)
            found |= scores(real, Path(folder, "synthetic.npz"), COMPARED)
        runs.append({"seed": seed, **found, "commit": commit()})
        if args.out:
            write_json(args.out, content)
    return content


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", type=Path, help=".npz file of transitions")
    parser.add_argument("--peer-python", type=Path, required=True, help="Python with the packages of the peers")
    parser.add_argument("--reference", type=Path, required=True, help="checkout of the published SynthER code")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each way, except the published code: one (3)")
    parser.add_argument("--out", type=Path, help="JSON file to write or extend")
    args = parser.parse_args(arguments)
    try:
        check_reference(args.reference)
        if args.out:
            make_folder_of(args.out)
    except ValueError as error:
        parser.error(str(error))
    try:
        print(table(compare(args)))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
