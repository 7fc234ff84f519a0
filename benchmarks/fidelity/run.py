"""The measurements of `generator_fidelity.py`: fit each model, generate rows, measure them, extend the result file."""

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
from synther_replay.benchmarks.common.command_line import setting
from synther_replay.benchmarks.common.files import write_json
from synther_replay.benchmarks.common.generator_settings import build_generator_config
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.benchmarks.fidelity.dynamics import with_noise
from synther_replay.benchmarks.fidelity.measures import BINS, RowMeasures
from synther_replay.benchmarks.fidelity.rows import choose_simulator, description, draw, read_dataset
from synther_replay.benchmarks.peers.tabular import TabularPeer
from synther_replay.common.seeding import derive_seed


class Model(Protocol):
    """A generative model to compare."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""

    def fit(self, transitions: Transitions) -> Any:
        """Train on transitions."""

    def sample(self, n: int) -> Transitions:
        """Generate `n` transitions."""


ModelFactory = Callable[[], tuple[Model, dict[str, Any]]]
"""Builds a model; returns it with its settings as JSON values."""


class Results:
    """A result file that is extended by one source of rows after the other and written after each.

    Args:
        path: The file, which may already have some sources; None for no file.
        about: Data set, rows and seed; a file with other values is refused.
        device: Device of the measurements.
    """

    def __init__(self, path: Path | None, about: dict[str, Any], device: torch.device) -> None:
        """Read the existing file."""
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
            raise ValueError(f"{path}: not a result file of this program ({error!r}); choose another --out") from error
        if differing:
            key = differing[0]
            mismatch = f"{key}: got {content[key]!r}, expected {about[key]!r}"
            raise ValueError(f"{path}: result has other settings ({mismatch}); choose another --out")
        self.sources = found

    def add(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure a source, unless the file has it already."""
        if name in self.sources:
            return
        print(f"{name} ...", flush=True)
        self.sources[name] = {**measure(), "origin": origin(self._device)}
        if self._path is not None:
            write_json(self._path, self.content())

    def content(self) -> dict[str, Any]:
        """The whole result as JSON values."""
        return {**self.about, "sources": self.sources, **origin(self._device)}


def our_config(args: argparse.Namespace, device: torch.device) -> tuple[str, GeneratorConfig]:
    """Name and options of our generator; the name lists the preset and the changed options."""
    preset = args.preset or ("offline" if device.type == "cuda" else "tiny")
    changes = dict(setting(text) for text in args.set)
    config = build_generator_config(preset, changes, args.dataset)
    return "-".join([f"synther-{preset}", *(f"{key}-{value}" for key, value in changes.items())]), config


def models(args: argparse.Namespace, spec: TransitionSpec, device: torch.device) -> dict[str, ModelFactory]:
    """The models to compare, by name."""
    name, config = args.our_config

    def ours() -> tuple[Model, dict[str, Any]]:
        return DiffusionGenerator(spec, config, device=device, seed=args.seed), config.to_json()

    def peer(kind: str) -> tuple[Model, dict[str, Any]]:
        model = TabularPeer(kind, epochs=args.peer_epochs, device=device, seed=args.seed)
        return model, model.settings

    epochs = "" if args.peer_epochs is None else f"-epochs-{args.peer_epochs}"
    return {name: ours, **{kind + epochs: partial(peer, kind) for kind in args.peers}}


def measure_model(
    build: ModelFactory, measures: RowMeasures, about: dict[str, Any], device: torch.device
) -> dict[str, Any]:
    """Fit a model, generate as many rows as it was fitted to, and measure them.

    Args:
        build: Builds the model.
        measures: Measures of rows against the real rows.
        about: Sizes of the data, for the compression.
        device: Device of the model.
    """
    model, settings = build()
    started = time.perf_counter()
    report = model.fit(measures.real)
    synchronise(device)
    fitted = time.perf_counter()
    model.sample(len(measures.real))  # warm-up, may compile
    synchronise(device)
    warm = time.perf_counter()
    rows = model.sample(len(measures.real))
    synchronise(device)
    # The paper counts the whole data set, although the model was fitted to a part of it.
    floats = {"fitted": about["rows"] * about["row_size"], "whole_set": about["set_rows"] * about["row_size"]}
    return {
        "settings": settings,
        "steps": getattr(report, "steps", None),
        "fit_seconds": fitted - started,
        "sample_seconds": time.perf_counter() - warm,
        "parameters": model.parameters,
        "compression": {data: count / model.parameters for data, count in floats.items()},
        **measures.all(rows),
    }


def measure_peer(measure: Callable[[], dict[str, Any]], name: str) -> dict[str, Any]:
    """Measure a model of another package; a failure is recorded and does not stop the program."""
    try:
        return measure()
    except Exception as error:
        print(f"{name} failed: {error!r}")
        return {"failed": repr(error)}


def prepare(args: argparse.Namespace, device: torch.device) -> tuple[RowMeasures, Results]:
    """Read the data and the existing result file; raises on any invalid argument.

    Args:
        args: Command line.
        device: Device of the measurements.
    """
    dataset = read_dataset(args.dataset)
    simulator = choose_simulator(args.simulator, dataset)
    real, held_out = draw(dataset, args.rows, args.seed, device)
    measures = RowMeasures(real, held_out, simulator, dynamics_rows=args.dynamics_rows, seed=args.seed)
    about = {
        **description(dataset, real, held_out),
        "seed": args.seed,
        "simulator": None if simulator is None else simulator.name,
        "dynamics_rows": args.dynamics_rows,
        "histogram": {"columns": list(measures.columns), "bins": BINS, "spans": measures.spans},
    }
    return measures, Results(args.out, about, device)


def measure(args: argparse.Namespace, device: torch.device, measures: RowMeasures, results: Results) -> None:
    """Measure everything that the result file does not have yet: real rows, noisy rows, then the models.

    Args:
        args: Command line.
        device: Device of the models.
        measures: Measures of rows against the real rows.
        results: Result to extend.
    """
    real, held_out = measures.real, measures.held_out
    results.add("real", lambda: measures.without_reference(real))
    if held_out is not None:
        results.add("held-out", lambda: measures.all(held_out, is_held_out=True))
    results.add("noise", lambda: measures.all(with_noise(real, derive_seed(args.seed, 1))))
    for name, build in models(args, real.spec, device).items():
        one = partial(measure_model, build, measures, results.about, device)
        results.add(name, one if name.startswith("synther") else partial(measure_peer, one, name))


def draw_figures(content: dict[str, Any], path: Path) -> None:
    """Write figures next to the file at `path`, if matplotlib is installed."""
    try:
        figures = import_module("synther_replay.benchmarks.fidelity.figures")
    except ImportError as error:
        print(f"figures not drawn: {error}")
        return
    figures.draw(content, path)
