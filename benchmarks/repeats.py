"""Whether learners and generator repeat: the same updates in two processes, compared bit by bit.

    python benchmarks/repeats.py --updates 5000
    python benchmarks/repeats.py --of edac --updates 200 --per-call 2

Both processes run at the same time and with empty caches of compiled kernels, so that whatever is chosen by timing may
be chosen differently. After each call of `learn` they note a checksum of every tensor of the state. A line per learner
says that all are equal, or names the first update and the tensors that differ there; the exit status is then 1. A
small `--per-call` finds the update, a long run finds rare causes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions
from synther_replay.benchmarks.agents.networks.matmul import choose_precision
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.common.command_line import exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.offline.settings import ALGORITHMS, NETWORKS
from synther_replay.benchmarks.speed.first_use import toy_rows
from synther_replay.common.checks import resolve_device, whole_number

GENERATOR = "generator"
ONLINE = {
    "sac": Hyperparameters(),
    "sac-layernorm": Hyperparameters(layer_norm=True),
    "redq": Hyperparameters(critics=10),
}
OFFLINE = (*ALGORITHMS, *(f"td3bc-{network}" for network in NETWORKS))
NAMES = (*OFFLINE, *ONLINE, GENERATOR)
_SIZES = 17, 6  # of HalfCheetah
_ROWS = 20_000
_ODD = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB  # of a checksum, to mix bits
_NOTES = "notes"  # file with the checksums of a process
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes

Checksums = dict[str, int]


@dataclass(frozen=True)
class Work:
    """What both processes do.

    Attributes:
        name: One of `NAMES`.
        device: Device of the learner.
        agents: Agents per learner; models of the generator.
        updates: Updates; environment steps of an online learner, training steps of the generator.
        per_call: Updates between checksums; None: as in a run.
        hidden: Width of the networks; None: as in a run.
    """

    name: str
    device: str
    agents: int = 4
    updates: int = 5_000
    per_call: int | None = None
    hidden: int | None = None

    def records(self) -> Iterator[tuple[int, Checksums]]:
        """Updates so far and checksums after each call."""
        device = torch.device(self.device)
        choose_precision(device)
        rows = toy_rows(*_SIZES, torch.device("cpu"), rows=_ROWS)
        work = _generator if self.name == GENERATOR else _online if self.name in ONLINE else _offline
        for updates, tensors in work(self, rows, device):
            yield updates, {name: checksum(tensor) for name, tensor in sorted(tensors.items())}


def _offline(work: Work, rows: Transitions, device: torch.device) -> Iterator[tuple[int, dict[str, Tensor]]]:
    algo, _, network = work.name.partition("-")
    build, kind = ALGORITHMS[algo]
    changes = {"updates_per_call": work.per_call, "hidden": work.hidden}
    settings = kind(**{**NETWORKS.get(network, {}), **{k: value for k, value in changes.items() if value is not None}})
    learner = build(SharedRows(rows, device=device), work.agents, settings, seed=0)
    yield 0, learner.state_dict() | {"rows": learner.rows.rows}
    yield from _learn(learner, range(0, work.updates, settings.updates_per_call), settings.updates_per_call)


def _online(work: Work, rows: Transitions, device: torch.device) -> Iterator[tuple[int, dict[str, Tensor]]]:
    replay = StackedReplay(rows.spec, work.agents, capacity=len(rows), device=device)
    replay.load_state_dict({"real": rows.rows.expand(work.agents, -1, -1), "synthetic": None})
    settings = ONLINE[work.name]
    if work.hidden is not None:
        settings = replace(settings, hidden=work.hidden)
    learner = StackedSAC(replay, -float(rows.spec.action_dim), settings, seed=0)
    yield 0, learner.state_dict()
    yield from _learn(learner, range(work.updates), 1)


def _learn(learner: Any, starts: range, per_call: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
    learner.prepare()
    for start in starts:
        learner.reseed(start)
        learner.learn()
        yield start + per_call, learner.state_dict()


def _generator(work: Work, rows: Transitions, device: torch.device) -> Iterator[tuple[int, dict[str, Tensor]]]:
    config = GeneratorConfig.offline() if device.type == "cuda" else GeneratorConfig.tiny(max_seconds=None)
    if work.hidden is not None:
        config = replace(config, width=work.hidden)
    generator = DiffusionGenerator(rows.spec, config, device=device, seed=0)
    generator.fit(Transitions(rows.spec, rows.rows.to(device)), steps=work.updates, progress=False)
    yield work.updates, {**_tensors(generator.state_dict()), "rows": generator.sample(100_000).rows}


def _tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    """All tensors of a nested state, by path."""
    if isinstance(state, Tensor):
        return {name: state}
    parts = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {path: tensor for key, part in parts for path, tensor in _tensors(part, f"{name}.{key}".strip(".")).items()}


def checksum(tensor: Tensor) -> int:
    """A number that depends on every bit of a tensor and its place; exact, because it is a sum of integers."""
    bits = tensor.detach().contiguous().view(-1)
    bits = (bits.to(torch.uint8) if bits.dtype == torch.bool else bits).view(_INTEGERS[bits.element_size()]).long()
    mixed = (bits + torch.arange(len(bits), device=bits.device) * _ODD[0]) * _ODD[1]  # modulo 2^64
    return int(((mixed ^ (mixed >> 31)) * _ODD[2]).sum())


def compare(work: Work) -> dict[str, Any]:
    """Do the same work in two processes; returns the `updates` made and what `differs`, None if nothing does."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        both = [stack.enter_context(_process(work, folder)) for folder in folders]
        if failed := [status for process in both if (status := process.wait())]:
            raise RuntimeError(f"{work.name}: a process ended with status {failed[0]}")
        notes = [map(json.loads, (folder / _NOTES).read_text().splitlines()) for folder in folders]
        updates = 0
        for (updates, one), (_, other) in zip(*notes, strict=True):
            if tensors := [name for name in one if one[name] != other.get(name)]:
                return {"updates": updates, "differs": tensors}
    return {"updates": updates, "differs": None}


def _process(work: Work, folder: Path) -> subprocess.Popen[str]:
    """A process that notes `Work.records` in a folder, with empty caches of compiled kernels."""
    caches = {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    command = [sys.executable, "-m", "synther_replay.benchmarks.repeats", "--child", json.dumps(vars(work))]
    with (folder / _NOTES).open("w") as notes:
        return subprocess.Popen(command, env={**os.environ, **caches}, stdout=notes, text=True)


def describe(name: str, found: dict[str, Any]) -> str:
    """One line about the result of `compare`."""
    if not found["differs"]:
        return f"{name}: all tensors are equal after {found['updates']:,} updates"
    return f"{name}: differs after {found['updates']:,} updates, in {', '.join(found['differs'])}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", nargs="+", default=NAMES, choices=NAMES, help="default: all")
    parser.add_argument(
        "--updates", type=int, default=5_000, help="updates, or environment steps of online learners (5000)"
    )
    parser.add_argument("--agents", type=int, default=4, help="agents per learner (4)")
    parser.add_argument("--per-call", type=int, help="updates between checksums of offline learners (100)")
    parser.add_argument("--hidden", type=int, help="width of the networks (default: as in a run)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    try:
        for option in ("updates", "agents", "per_call", "hidden"):
            if getattr(args, option) is not None:
                whole_number(option, getattr(args, option))
        args.device = resolve_device(args.device)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    args = parse(arguments)
    if args.child:
        for record in Work(**json.loads(args.child)).records():
            print(json.dumps(record), flush=True)
        return 0
    if args.out:
        make_folder_of(args.out)
    found = {}
    for name in args.of:
        try:
            found[name] = compare(Work(name, str(args.device), args.agents, args.updates, args.per_call, args.hidden))
        except RuntimeError as error:
            return exit_with_error(2, error)
        print(describe(name, found[name]), flush=True)
    if args.out:
        write_json(args.out, {"results": found, **origin(args.device)})
    return int(any(result["differs"] for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
