"""``synther report``: two data sets in, a page that judges the synthetic one out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from gymnasium import spaces

from synther_replay.cli import options
from synther_replay.cli.output import Output
from synther_replay.data.mismatch import differing
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.files.reading import FileError, TransitionFile, open_file
from synther_replay.files.table import SPEC
from synther_replay.report import QualityReport
from synther_replay.report import report as quality_report

_PAGE = Path("report.html")


def report(
    real: Annotated[str, typer.Argument(metavar="REAL", help="The real transitions.")],
    synthetic: Annotated[str, typer.Argument(metavar="SYNTHETIC", help="The transitions to judge.")],
    page: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page to write.", show_default="report.html"),
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Real transitions that the generator was not trained on.")
    ] = None,
    env: Annotated[
        str | None, typer.Option(metavar="ID", help="Task for the error of the dynamics, such as HalfCheetah-v5.")
    ] = None,
    names: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Names of the observation's columns, or of all columns.")
    ] = None,
    rows: Annotated[
        int,
        typer.Option(parser=options.count, metavar="N", help="Compare at most N evenly spaced rows of each file."),
    ] = "200K",  # type: ignore[assignment]  # it is parsed, too
    check: Annotated[bool, typer.Option("--check", help="Exit with status 1 if the verdict is failed.")] = False,
    seed: options.Seed = 0,
    episode_steps: options.EpisodeSteps = None,
    as_json: options.Json = False,
) -> None:
    """Compare SYNTHETIC with REAL on one HTML page: verdict, columns, correlations, copies, dynamics.

    An existing page is replaced. With --json a page is written only if it is named.

    Examples:
        synther report hopper_medium-v2.hdf5 more.hdf5
        synther report real.npz synthetic.npz -o quality.html --env HalfCheetah-v5 --held-out test.npz
        synther report pendulum.npz more.npz --names cosine,sine,speed --check --json
    """
    output = Output(as_json=as_json, always=True)
    target = page or (None if as_json else _PAGE)
    if target is not None and not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: folder {target.parent} does not exist")
    if target is not None and target.exists() and (target.is_dir() or target.suffix.lower() not in (".html", ".htm")):
        raise FileExistsError(f"{target}: exists and is no page (.html); not replaced")
    given = {"real": real, "synthetic": synthetic} | ({"held out": held_out} if held_out else {})
    files = {path: open_file(path, episode_steps=episode_steps) for path in given.values()}
    spec = files[real].spec if files[real].about.get(SPEC) else _without_bounds(files[real].spec)
    sets = {path: _read(file, spec, rows, output) for path, file in files.items()}
    with output.step("comparing"):
        made = quality_report(
            sets[real],
            sets[synthetic],
            held_out=None if held_out is None else sets[held_out],
            names=None if names is None else names.split(","),
            env=env,
            settings=_settings(given, files, sets),
            title=f"Quality of {Path(synthetic).name or synthetic}",
            seed=seed,
        )
        if target is not None:
            made.save(target)
    output.result({"output": None if target is None else str(target), **made.to_json()}, _verdict(made, target))
    if check and not made.passed:
        reason, *rest = made.fidelity.failures
        raise ValueError(f"{synthetic}: {reason}{f' (and {len(rest)} more)' if rest else ''}")


def _read(file: TransitionFile, spec: TransitionSpec, most: int, output: Output) -> Transitions:
    """Read evenly spaced transitions, at most `most`; a file that holds no spec takes that of the real rows."""
    count = file.count()  # in a raw file, rows are more than transitions
    step, seen, parts = max(1, -(-count // most)), 0, []
    with output.step(f"reading {file.path.name}", count) as advance:
        for block in file.blocks():
            parts.append(block.rows[-seen % step :: step].clone())  # a view would keep the whole block
            seen += len(block)
            advance(len(block))
    if not parts:
        raise FileError(f"{file.path}: observations: no transitions in {file.rows} rows")
    if not _same_fields(file.spec, spec):
        got, expected = differing(file.spec, spec, bounds=False)
        raise FileError(f"{file.path}: got spec ({got}), expected that of the real rows ({expected})")
    return Transitions(spec, torch.cat(parts))


def _without_bounds(spec: TransitionSpec) -> TransitionSpec:
    """The spec without bounds of real actions: inferred ones are the range of the data, which others may exceed."""
    action_space = spec.action_space
    if isinstance(action_space, spaces.Box):
        action_space = spaces.Box(-np.inf, np.inf, action_space.shape, np.float32)
    return TransitionSpec.from_spaces(spec.observation_space, action_space, extra=spec.extra)


def _same_fields(one: TransitionSpec, other: TransitionSpec) -> bool:
    """Whether columns mean the same. Inferred bounds, which depend on the rows of a file, may differ."""
    layouts = [
        [(field.name, [(leaf.path, leaf.shape, leaf.kind) for leaf in field.leaves]) for field in spec.fields]
        for spec in (one, other)
    ]
    return layouts[0] == layouts[1]


def _settings(
    given: Mapping[str, str], files: Mapping[str, TransitionFile], sets: Mapping[str, Transitions]
) -> dict[str, Any]:
    """What the files tell of themselves, for the end of the page, by their part: names of two files may be equal."""
    told: dict[str, Any] = {}
    for part, path in given.items():
        file = files[path]
        about = {key: value for key, value in file.about.items() if key != SPEC}
        inner = {key: about.pop(key) for key in list(about) if isinstance(about[key], Mapping)}
        counts = {"rows": f"{file.rows:,}", "rows compared": f"{len(sets[path]):,}"}
        told[part] = {"file": str(file.path), "format": file.format, **counts, **about}
        told |= {f"{part}: {key}": value for key, value in inner.items()}
    return told


def _verdict(made: QualityReport, target: Path | None) -> str:
    place = "" if target is None else f"{target}: "
    verdict = f"passed, all {len(made.fidelity.columns)} columns" if made.passed else "failed"
    reasons = [f"  {reason}" for reason in made.fidelity.failures[:5]]
    notes = [f"  not part of the verdict: {remark}" for remark in made.remarks]
    return "\n".join([f"{place}{verdict}", *reasons, *notes])
