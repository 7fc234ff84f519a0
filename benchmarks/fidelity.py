"""How like the real rows the generated ones are: our generator, TVAE and CTGAN, fitted to the same rows.

    python benchmarks/fidelity.py --dataset halfcheetah-medium-replay-regen --out benchmarks/results/fidelity/name.json

Each is fitted to rows drawn from the set and generates as many. Measured are marginal and correlation, memorisation,
seconds, compression, and the error in the dynamics against the distance to the data, which real rows with noise are
held against; the figures lie beside the file. What is finished is kept: the same command, also with another preset or
other peers, adds to the file what it does not hold yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from command_line import GENERATOR_PRESETS, failed, generator_of, setting
from dynamics_distance import with_noise
from fidelity_data import choose_simulator, description, draw, read_set
from fidelity_judge import BINS, Judge
from fidelity_tables import tables
from reporting import make_folder_of, origin, synchronise, write_json
from simulators import SIMULATORS
from tabular_peers import PEERS, TabularPeer, package

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.checks import resolve_device
from synther_replay.seeding import derive_seed


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
        figures = import_module("plot_fidelity")
    except ImportError as error:
        print(f"no figures were drawn: {error}")
        return
    figures.draw(content, path)


def parse(arguments: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The command line, and a parser to complain about it with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="a name that datasets.py knows, or an .npz of collect.py")
    parser.add_argument("--rows", type=int, default=100_000, help="rows to fit to, and to generate")
    parser.add_argument(
        "--preset", choices=GENERATOR_PRESETS, help="of our generator; by default offline on a GPU, tiny on a CPU"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the preset to change, any number"
    )
    parser.add_argument("--peers", nargs="+", choices=(*PEERS, "none"), default=[*PEERS], help="other generators")
    parser.add_argument("--peer-epochs", type=int, help="epochs of theirs instead of their own, for a quick look")
    parser.add_argument("--simulator", choices=("auto", "none", *SIMULATORS), default="auto")
    parser.add_argument("--dynamics-rows", type=int, default=10_000, help="rows that the simulator is asked about")
    parser.add_argument("--seed", type=int, default=0, help="of the draw, the models and the noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON to write, or to add to")
    args = parser.parse_args(arguments)
    for name in ("rows", "peer_epochs", "dynamics_rows"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a whole number of at least 1, got {value}")
    if args.seed < 0:
        parser.error(f"--seed: expected a whole number of at least 0, got {args.seed}")
    if "none" in args.peers and len(args.peers) > 1:
        parser.error(f"--peers: expected none or others, got {' '.join(args.peers)}")
    return parser, args


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser, args = parse(arguments)
    args.peers = [] if args.peers == ["none"] else args.peers
    if args.peers:
        try:
            package()
        except ImportError as error:
            print(f"{error}; going on without them, as with --peers none")
            args.peers = []
    try:
        device = resolve_device(args.device)
        args.our_own = our_own(args, device)
        judge, results = prepare(args, device)
        if args.out is not None:
            make_folder_of(args.out)
    except (ImportError, OSError, ValueError, TypeError) as error:  # the last is for settings of another type
        parser.error(str(error))
    fault = None
    try:
        measure(args, device, judge, results)
        if args.out is not None:
            draw_figures(results.content(), args.out)
    except OSError as error:  # such as that of a full disk; what is measured may have taken hours, and is shown
        fault = error
    print(tables(results.content()))
    if fault:
        sys.exit(failed(2, f"{fault}; once it can be written, the same command adds what is missing"))


if __name__ == "__main__":
    main()
