"""Shared settings and fixtures."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from gymnasium import spaces

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.model import outcome_batches, outcomes

# The tests use small matrices, for which threads are slower, above all when tests run in parallel.
torch.set_num_threads(1)

# Shells start background jobs with SIGINT ignored, and processes inherit that: none that a test interrupts would end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def call_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Any, str, str]]:
    """Calls the `main` of a program with arguments; returns exit status, stdout and stderr."""

    def call(main: Callable[[], Any], script: str, *arguments: Any) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="no GPU")
            try:
                status = main()
            except SystemExit as stopped:
                status = stopped.code
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Simulates a full disk: atomic writes fail until it is called with `full=False`."""
    genuine = os.fsync

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda *, full=True: monkeypatch.setattr(os, "fsync", no_room if full else genuine)


@pytest.fixture(scope="module")  # not longer: its event loop would be that of other tests, too
def browser() -> Iterator[Any]:
    """A headless Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for found in map(shutil.which, names) if found), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # containers run as root
        yield started
        started.close()


@contextmanager
def _trained_outcomes(steps: int, batch_size: int = 256, evaluated: int = 4_096) -> Iterator[None]:
    """Sets the gradient steps of outcome models, their batches and the held-out rows of an evaluation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "_MOST_STEPS", steps)
        patch.setattr(outcomes, "_BLOCK", min(50, steps // 3))
        patch.setattr(outcome_batches, "_BATCH", batch_size)
        patch.setattr(outcome_batches, "_EVALUATED", evaluated)
        yield


@pytest.fixture(scope="module", autouse=True)
def brief_outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Trains outcome models briefly, except where results are compared with those of Ray's processes."""
    with nullcontext() if "distributed" in request.path.parts else _trained_outcomes(15, 32, 128):
        yield


@pytest.fixture(scope="session")
def longer_outcomes() -> Callable[..., Any]:
    """A context in which outcome models are trained for longer, for fixtures of tests that check their quality."""
    return _trained_outcomes


@pytest.fixture
def outcome_steps() -> Iterator[Callable[..., None]]:
    """Trains outcome models for longer, for tests that check their quality."""
    with ExitStack() as contexts:
        yield lambda *arguments, **options: contexts.enter_context(_trained_outcomes(*arguments, **options))


@pytest.fixture
def precision_restored() -> Iterator[None]:
    """Restores the float32 matmul precision after the test."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def tensor_cores(precision_restored: None) -> None:
    """Allows reduced matmul precision, as the benchmarks do on a GPU."""
    torch.set_float32_matmul_precision("high")


@pytest.fixture
def stream() -> Callable[[int], torch.Generator]:
    """Makes a random generator on the CPU from a seed."""
    return lambda seed: torch.Generator().manual_seed(seed)


@pytest.fixture(scope="session")
def spec() -> TransitionSpec:
    """Layout of the toy transitions."""
    return TransitionSpec.from_spaces(spaces.Box(-1, 1, (2,)), spaces.Discrete(3))


@pytest.fixture(scope="session")
def numbered(spec: TransitionSpec) -> Callable[..., Transitions]:
    """Makes n transitions whose rewards count up from `first`; the other fields are functions of the reward."""

    def make(n: int, first: int = 0) -> Transitions:
        x = torch.arange(first, first + n, dtype=torch.float32)
        observations, next_observations = (torch.stack([y.sin(), y.cos()], -1) for y in (x, x + 0.1))
        return Transitions.from_arrays(spec, observations, x % 3, x, next_observations, x % 5 == 0)

    return make


class FakeGenerator:
    """Fake generator: the reward of a row is minus the number of fits, column 0 is the number of the row."""

    def __init__(self, spec: TransitionSpec) -> None:
        self.spec = spec
        self.fits = self.drawn = 0
        self.learnt: list[int] = []  # rows of each fit
        self.during_fit: Callable[[], Any] = lambda: None  # called during `fit`
        self.during_sample: Callable[[], Any] = lambda: None

    def fit(self, transitions: Transitions) -> str:
        self.learnt.append(len(transitions))
        self.fits += 1
        self.during_fit()
        return f"fit {self.fits}"

    def sample(self, n: int) -> Transitions:
        rows = torch.zeros(n, self.spec.dim)
        rows[:, self.spec.rewards] = -self.fits
        rows[:, 0] = torch.arange(self.drawn, self.drawn + n)
        self.drawn += n
        self.during_sample()
        return Transitions(self.spec, rows)

    def state_dict(self) -> dict[str, Any]:
        return {"fits": self.fits, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fits, self.drawn = state["fits"], state["drawn"]


@pytest.fixture
def fake(spec: TransitionSpec) -> FakeGenerator:
    """A generator whose rows identify the fit that they come from."""
    return FakeGenerator(spec)


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Compares two trees of dicts, lists, tensors and plain values bit by bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(equal, a, b))
        return type(a) is type(b) and repr(a) == repr(b)

    return equal


class OnGPU(torch.Tensor):
    """A tensor as if on a GPU: a pickle that holds it could not be read without one."""

    def cpu(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()

    def __reduce_ex__(self, _: Any) -> Any:
        raise AssertionError("the pickle holds a GPU tensor")


@pytest.fixture(scope="session")
def on_gpu() -> Callable[[Any], Any]:
    """Makes the tensors of a tree act as if they were on a GPU."""

    def move(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: move(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return type(tree)(map(move, tree))
        return tree.as_subclass(OnGPU) if isinstance(tree, torch.Tensor) else tree

    return move


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
