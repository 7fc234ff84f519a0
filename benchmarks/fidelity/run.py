"""The measurements behind `generator_fidelity.py`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.benchmarks.common.command_line import generator_of, setting
from synther_replay.benchmarks.common.files import write_json
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.benchmarks.fidelity.dynamics import with_noise
from synther_replay.benchmarks.fidelity.measures import BINS, Judge
from synther_replay.benchmarks.fidelity.rows import choose_simulator, description, draw, read_set
from synther_replay.benchmarks.peers.tabular import TabularPeer
from synther_replay.common.seeding import derive_seed


class Model(Protocol):
    """What is compared."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""

    def fit(self, transitions: Transitions) -> Any:
        """Learn from transitions."""

    def sample(self, n: int) -> Transitions:
        """Generate `n` transitions."""


Maker = Callable[[], tuple[Model, dict[str, Any]]]
"""Makes a model, and says its settings as JSON values."""


class Results:
    """A result that grows by one source of rows after the other, and is written to a file each time.

    Args:
        path: The file, which may hold some of it already; None for no file.
        about: What all of it is about; a file about anything else is refused.
        device: It is measured on.
    """

    def __init__(self, path: Path | None, about: dict[str, Any], device: torch.device) -> None:
        """Read what there is."""
        self.about = about
        self._path, self._device = path, device
        self.sources: dict[str, dict[str, Any]] = {}
        if path is None or not path.is_file():
            return
        try:
            content = json.loads(path.read_text())
            differing = [key for key in about if content[key] != about[key]]
            found = {name: entry for name, entry in content["sources"].items() if "failed" not in entry}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: is no result of this program ({error!r}); give another --out") from error
        if differing:
            key = differing[0]
            raise ValueError(f"{path}: is about {key} {content[key]!r}, not {about[key]!r}; give another --out")
        self.sources = found

    def add(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure a source, unless it is there already."""
        if name in self.sources:
            return
        print(f"{name} ...", flush=True)
        self.sources[name] = {**measure(), "origin": origin(self._device)}
        if self._path is not None:
            write_json(self._path, self.content())

    def content(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {**self.about, "sources": self.sources, **origin(self._device)}


def our_own(args: argparse.Namespace, device: torch.device) -> tuple[str, GeneratorConfig]:
    """Settings of our generator, under a name that says what is not as usual."""
    preset = args.preset or ("offline" if device.type == "cuda" else "tiny")
    changes = dict(setting(text) for text in args.set)
    config = generator_of(preset, changes, args.dataset)
    return "-".join([f"synther-{preset}", *(f"{key}-{value}" for key, value in changes.items())]), config


def wanted(args: argparse.Namespace, spec: TransitionSpec, device: torch.device) -> dict[str, Maker]:
    """The models that are asked for."""
    name, config = args.our_own

    def ours() -> tuple[Model, dict[str, Any]]:
        return DiffusionGenerator(spec, config, device=device, seed=args.seed), config.to_json()

    def peer(kind: str) -> tuple[Model, dict[str, Any]]:
        model = TabularPeer(kind, epochs=args.peer_epochs, device=device, seed=args.seed)
        return model, model.settings

    epochs = "" if args.peer_epochs is None else f"-epochs-{args.peer_epochs}"
    return {name: ours, **{kind + epochs: partial(peer, kind) for kind in args.peers}}


def trial(make: Maker, judge: Judge, about: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Fit a model, generate as many rows as it was fitted to, and judge them.

    Args:
        make: Makes the model.
        judge: Knows the real rows.
        about: Sizes of the data, for the compression.
        device: It works on.
    """
    model, settings = make()
    begun = time.perf_counter()
    report = model.fit(judge.real)
    synchronise(device)
    fitted = time.perf_counter()
    model.sample(len(judge.real))  # not counted: the first call may have to compile
    synchronise(device)
    warm = time.perf_counter()
    rows = model.sample(len(judge.real))
    synchronise(device)
    # the paper counts the whole set, though a model that was fitted to a part of it does not hold the rest
    floats = {"fitted": about["rows"] * about["row_size"], "whole_set": about["set_rows"] * about["row_size"]}
    return {
        "settings": settings,
        "steps": getattr(report, "steps", None),
        "fit_seconds": fitted - begun,
        "sample_seconds": time.perf_counter() - warm,
        "parameters": model.parameters,
        "compression": {data: count / model.parameters for data, count in floats.items()},
        **judge.verdict(rows),
    }


def attempt(one: Callable[[], dict[str, Any]], name: str) -> dict[str, Any]:
    """The trial of someone else's model, which may fail without spoiling the others."""
    try:
        return one()
    except Exception as error:
        print(f"{name} failed: {error!r}")
        return {"failed": repr(error)}


def prepare(args: argparse.Namespace, device: torch.device) -> tuple[Judge, Results]:
    """Read the data and the file to add to; whatever is wrong with what was asked for shows here.

    Args:
        args: Of the command line.
        device: To work on.
    """
    dataset = read_set(args.dataset)
    simulator = choose_simulator(args.simulator, dataset)
    real, held_out = draw(dataset, args.rows, args.seed, device)
    judge = Judge(real, held_out, simulator, dynamics_rows=args.dynamics_rows, seed=args.seed)
    about = {
        **description(dataset, real, held_out),
        "seed": args.seed,
        "simulator": None if simulator is None else simulator.name,
        "dynamics_rows": args.dynamics_rows,
        "histogram": {"columns": list(judge.columns), "bins": BINS, "spans": judge.spans},
    }
    return judge, Results(args.out, about, device)


def measure(args: argparse.Namespace, device: torch.device, judge: Judge, results: Results) -> None:
    """Everything that is asked for and not there yet; the real rows and those with noise come first.

    Args:
        args: Of the command line.
        device: To work on.
        judge: Knows the real rows.
        results: To add to.
    """
    real, held_out = judge.real, judge.held_out
    results.add("real", lambda: judge.look(real))
    if held_out is not None:
        results.add("held-out", lambda: judge.verdict(held_out, fresh=True))
    results.add("noise", lambda: judge.verdict(with_noise(real, derive_seed(args.seed, 1))))
    for name, make in wanted(args, real.spec, device).items():
        one = partial(trial, make, judge, results.about, device)
        results.add(name, one if name.startswith("synther") else partial(attempt, one, name))


def draw_figures(content: dict[str, Any], path: Path) -> None:
    """Figures beside the file at `path`, where there is matplotlib to draw them."""
    try:
        figures = import_module("synther_replay.benchmarks.fidelity.figures")
    except ImportError as error:
        print(f"no figures were drawn: {error}")
        return
    figures.draw(content, path)
