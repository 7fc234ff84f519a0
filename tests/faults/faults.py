"""Faults in the middle of saving and loading: interrupts, kills, a full disk, damaged and forged files.

    python faults.py CASE FAULT=TRIALS ...

does some trials of each fault to one kind of file. The moment of an interrupt or a kill is a bytecode instruction,
counted by a trace function; it is the same in every run. The program fails if a file is lost or mixed, if another file
is left behind, if an object changes although its load failed, or if it crashes.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import (
    CheckpointError,
    DiffusionGenerator,
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.adapters.corl import ReplayBuffer, d4rl
from synther_replay.persistence import checkpoint

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (2,)))
TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=8, steps=20, batch_size=32, sampling_steps=4)
MOST_MEMORY = 2**30  # bytes that a load may ask for


def rows(seed: int, n: int = 100) -> Transitions:
    made = torch.rand(n, SPEC.dim, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    made[:, -1] = (made[:, -1] > 0.8).float()
    return Transitions(SPEC, made)


class Generator:
    """A saved `DiffusionGenerator`; loading makes a new object."""

    name = "generator.safetensors"

    def __init__(self) -> None:
        self.prototypes: dict[int, Any] = {}

    def made(self, seed: int) -> Any:
        """An object whose contents are a function of the seed."""
        if seed not in self.prototypes:
            self.prototypes[seed] = self.prototype(seed)
        return copy.deepcopy(self.prototypes[seed])

    def prototype(self, seed: int) -> Any:
        generator = DiffusionGenerator(SPEC, TINY, device="cpu", seed=seed)
        generator.fit(rows(seed))
        return generator

    def save(self, saved: Any, path: Path) -> None:
        saved.save(path)

    def load(self, target: Any, path: Path) -> Any:
        return DiffusionGenerator.load(path, device="cpu")

    def state(self, of: Any) -> Any:
        return of.state_dict()


class Table(Generator):
    """A generator whose rows are all discrete: it holds a table of them."""

    spec = TransitionSpec.from_spaces(gym.spaces.Discrete(6), gym.spaces.Discrete(3))

    def prototype(self, seed: int) -> Any:
        generator = DiffusionGenerator(self.spec, TINY, device="cpu", seed=seed)
        made = torch.rand(100, self.spec.dim, generator=torch.Generator().manual_seed(seed))
        sizes = torch.tensor([6.0, 3.0, 2.0, 6.0, 2.0])
        generator.fit(Transitions(self.spec, (made * sizes).floor()))
        return generator


class Buffer(Generator):
    """A saved `SyntheticReplayBuffer`; loading changes it in place."""

    name = "buffer.safetensors"

    def prototype(self, seed: int) -> Any:
        generator = DiffusionGenerator(SPEC, TINY, device="cpu", seed=seed)
        schedule = RetrainSchedule(every=50, rows=200, start=40)
        buffer = SyntheticReplayBuffer(
            RingBuffer(SPEC, 300, seed=seed, device="cpu"), generator, capacity=200, schedule=schedule, seed=seed
        )
        buffer.add(rows(seed))
        buffer.sample(16)
        return buffer

    def load(self, target: Any, path: Path) -> Any:
        target.load(path)
        return target


class Rows:
    """The generator of the CORL adapter's buffer: rows are functions of the seed and their number."""

    spec = SPEC

    def __init__(self, seed: int) -> None:
        self.seed, self.drawn = seed, 0

    def fit(self, transitions: Transitions) -> None:
        self.drawn = 0

    def sample(self, n: int) -> Transitions:
        self.drawn += 1
        return rows(1_000 * self.seed + self.drawn, n)


class Corl(Generator):
    """Rows of the CORL adapter in memory."""

    name = "rows.npz"
    count = 15_000

    def prototype(self, seed: int) -> Any:
        buffer = ReplayBuffer(3, 2, 1_000, generator=Rows(seed), max_action=1.0, synthetic_capacity=20_000)
        real = rows(seed)
        fields = real.observations, real.actions, real.rewards, real.next_observations, real.terminated
        buffer.load_d4rl_dataset(dict(zip(d4rl.KEYS, map(np.asarray, fields), strict=True)))
        buffer.upsample(self.count)
        return buffer

    def load(self, target: Any, path: Path) -> Any:
        target.load(path)
        return target

    def state(self, of: Any) -> Any:
        return {"rows": of.synthetic.rows}


class CorlHDF5(Corl):
    """The same in HDF5."""

    name = "rows.hdf5"


class CorlStream(Corl):
    """New rows, written to HDF5 in blocks."""

    name = "stream.hdf5"

    def save(self, saved: Any, path: Path) -> None:
        saved._options.generator.drawn = 0  # the same rows every time
        saved.save(path, rows=self.count)


CASES = {
    "generator": Generator,
    "table": Table,
    "buffer": Buffer,
    "corl-npz": Corl,
    "corl-hdf5": CorlHDF5,
    "corl-stream": CorlStream,
}


class Trial:
    """Two objects of one kind, and a file that holds one of them."""

    def __init__(self, case: Any, folder: Path) -> None:
        self.case, self.path, self.random = case, folder / case.name, random.Random(0)
        self.objects = [case.made(1), case.made(2)]
        self.sizes: list[int] = []  # of their files
        self.states = [self.saved_state(saved) for saved in self.objects]
        assert not same(*self.states)
        self.number = 1
        self.moments: dict[str, int] = {}
        self.trials = 0

    def saved_state(self, saved: Any) -> Any:
        self.case.save(saved, self.path)
        self.sizes.append(self.path.stat().st_size)
        return self.case.state(self.case.load(self.case.made(3), self.path))

    def held(self) -> int:
        """Number of the object that the file holds; neither is an error."""
        found = self.case.state(self.case.load(self.case.made(3), self.path))
        return next(number for number, state in enumerate(self.states) if same(found, state))

    def save_other(self) -> None:
        self.case.save(self.objects[1 - self.number], self.path)

    def alone(self) -> bool:
        return os.listdir(self.path.parent) == [self.path.name]

    # ---------------------------------------------------------------- faults

    def interrupted_save(self) -> str:
        fault, outcome = self.sometime(interrupt, self.save_other, WRITING), "saved"
        before = self.number
        try:
            with fault:
                self.save_other()
        except KeyboardInterrupt:
            outcome = "interrupted"
        assert self.alone(), os.listdir(self.path.parent)
        self.number = self.held()
        assert outcome == "interrupted" or self.number != before, "nothing raised, nothing saved"
        return outcome

    def interrupted_load(self) -> str:
        target, other = self.case.made(3), self.case.made(3)
        before, outcome = self.case.state(target), "loaded"
        fault = self.sometime(interrupt, lambda: self.case.load(other, self.path))
        try:
            with fault:
                target = self.case.load(target, self.path)
        except KeyboardInterrupt:
            outcome = "interrupted"
        after = self.case.state(target)
        assert same(after, self.states[self.number]) or (outcome == "interrupted" and same(after, before))
        return outcome

    def killed_save(self) -> str:
        fault = self.sometime(lambda: os.kill(os.getpid(), signal.SIGKILL), self.save_other, WRITING)
        child = os.fork()
        if child == 0:
            with fault:
                self.save_other()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.number = self.held()
        outcome = "saved" if status == 0 else "killed" if self.alone() else "killed with a file left"
        self.save_other()
        assert self.alone(), os.listdir(self.path.parent)
        self.number = 1 - self.number
        return outcome

    def full_disk(self) -> str:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = self.random.randrange(self.sizes[1 - self.number])  # less than the file needs
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            self.save_other()
        except OSError:
            pass
        else:
            raise AssertionError(f"saved {self.path.stat().st_size} bytes in {size}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert self.alone(), os.listdir(self.path.parent)
        assert self.held() == self.number
        return "refused"

    def damaged_file(self) -> str:
        return self._loaded(mutated(self.path.read_bytes(), self.random), must_be_same=True)

    def forged_file(self) -> str:
        """Other values in the header of a checkpoint, with a right checksum."""
        return self._loaded(forged(self.path.read_bytes(), self.random), must_be_same=False)

    def _loaded(self, content: bytes, *, must_be_same: bool) -> str:
        path, target = self.path.with_name(f"damaged-{self.path.name}"), self.case.made(3)
        before = self.case.state(target)
        path.write_bytes(content)
        outcome = "loaded"
        try:
            with limited_memory():
                target = self.case.load(target, path)
        except CheckpointError:
            outcome = "refused"
            assert same(self.case.state(target), before)
        finally:
            path.unlink()
        if must_be_same and outcome == "loaded":
            assert same(self.case.state(target), self.states[self.number]), "other values were loaded"
        return outcome

    def sometime(self, act: Callable[[], Any], in_what: Callable[[], Any], after: str = "") -> Any:
        """Context manager: calls `act` at a random instruction; every second time at one after the file `after`."""
        self.trials += 1
        after = after if self.trials % 2 else ""
        if after not in self.moments:
            in_what()  # imports and caches
            with acting_at(sys.maxsize, after, lambda: None) as count:
                in_what()
            self.moments[after] = count[0]
            self.number = self.held()
        return acting_at(self.random.randrange(self.moments[after]), after, act)


WRITING = "atomic.py"  # its function opens the file that will replace another


def interrupt() -> None:
    """As Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


@contextmanager
def acting_at(moment: int, after: str, act: Callable[[], Any]) -> Iterator[list[int]]:
    """Call `act` before an instruction of the block, given by its number; yields the count of instructions.

    The count begins with the first instruction of a file whose name ends in `after`.
    """
    count = [0]

    def trace(frame: Any, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and (count[0] or frame.f_code.co_filename.endswith(after)):
            count[0] += 1
            if count[0] == moment:
                act()
        return trace

    sys._getframe().f_trace_opcodes = True  # Python >= 3.12 traces opcodes only if a frame asked for it before settrace
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(None)


@contextmanager
def limited_memory() -> Iterator[None]:
    """A load that asks for much more memory than its file has raises MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def mutated(content: bytes, random: random.Random) -> bytes:
    """Change a few bits, bytes or spans. Half of the places are in the first or last 4,096 bytes, the descriptions."""
    damaged = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        size = len(damaged)
        place = random.randrange(size)
        if random.random() < 0.5:
            place = random.choice((random.randrange(min(size, 4_096)), size - 1 - random.randrange(min(size, 4_096))))
        span = random.choice((1, 4, 8, 100, 5_000))
        match random.randrange(6):
            case 0:
                damaged[place] ^= 1 << random.randrange(8)
            case 1:
                damaged[place : place + span] = random.randbytes(span)
            case 2:
                damaged[place : place + span] = bytes(span)
            case 3:
                del damaged[place:]
            case 4:
                del damaged[place : place + span]
            case 5:
                damaged[place:place] = damaged[random.randrange(size) :][:span]
        if not damaged:
            damaged = bytearray(1)
    return bytes(damaged)


VALUES = [None, True, -1, 0, 1, 7, 2**31, 10**10, 2**62, 10**30, 0.5, -1.0, 1e308, float("nan"), float("inf")]
VALUES += ["", "x", "heun", [], [1, 2], [[]], {}, {"every": 1}, [10**10], {"__tensor__": "0"}]


def forged(content: bytes, random: random.Random) -> bytes:
    """Replace or remove one to three values in the tree of a checkpoint; checksums are right."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    about = header["__metadata__"]
    tree = json.loads(about["tree"])
    for _ in range(random.choice((1, 1, 2, 3))):
        places = [(node, key) for node in nodes(tree) for key in (node if isinstance(node, dict) else range(len(node)))]
        node, key = random.choice(places)
        if isinstance(node, dict) and random.random() < 0.1:
            del node[key]
        elif isinstance(node[key], int) and random.random() < 0.3:
            node[key] += random.choice((-1, 1, 10**6, 10**10))
        else:
            node[key] = random.choice(VALUES)
    about["tree"] = json.dumps(tree)
    about["checksum"] = checkpoint._header_checksum(about)
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + content[8 + size :]


def nodes(tree: Any) -> Iterator[Any]:
    """All dicts and lists with entries, except the descriptions of tensors."""
    if isinstance(tree, dict | list) and tree and not (isinstance(tree, dict) and "__tensor__" in tree):
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from nodes(value)


def same(a: Any, b: Any) -> bool:
    """Compare two trees of tensors and plain values bit by bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def main() -> None:
    """Command line."""
    case, *faults = sys.argv[1:]
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores interrupts
    d4rl.BLOCK = 4_000  # several blocks
    for fault, trials in (text.split("=") for text in faults):
        outcomes: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(CASES[case](), Path(folder))
            for number in range(int(trials)):
                try:
                    outcomes[getattr(trial, fault)()] += 1
                except BaseException:
                    print(f"{case}, {fault}: trial {number} failed after {dict(outcomes)}", file=sys.stderr)
                    raise
        print(f"{case}, {fault}: {dict(outcomes)}", flush=True)


if __name__ == "__main__":
    main()
