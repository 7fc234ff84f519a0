"""CUDA acceleration: compiled and hand-written kernels, and CUDA graphs."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from synther_replay.common.requests import in_learners_thread
from synther_replay.errors import is_out_of_memory

P = ParamSpec("P")
R = TypeVar("R")

# Every stack, batch and chunk size needs a compilation of its own; torch's default limit is 8.
_SHAPES_PER_FUNCTION = 64


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of element-wise operations and sums into few kernels if its first argument is on a GPU.

    On the CPU, and if compilation fails, the function runs uncompiled. Equal calls give equal results, bit for bit, in
    all processes on one kind of GPU: see `_compile_options`.
    """
    return _faster_on_gpu(function, lambda: _compiled(function))


def by_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """If the first argument is on a GPU, call the function of the same name in the module `launchers` beside this one.

    That module starts hand-written Triton kernels. They take a fraction of a second to compile, where `torch.compile`
    takes seconds for each function and shape. It is imported at the first call on a GPU. On the CPU, and if a kernel
    does not compile, the function itself runs.
    """

    def prepare() -> Callable[P, R]:
        module = importlib.import_module(f"{function.__module__.rpartition('.')[0]}.launchers")
        launcher: Callable[P, R] = getattr(module, function.__name__.lstrip("_"))
        return launcher

    return _faster_on_gpu(function, prepare)


@functools.cache
def _compile_options() -> dict[str, Any]:
    """Options of `torch.compile` that keep it from choosing the order of sums by timing.

    By default Inductor times several tile sizes of a reduction at its first call and takes the fastest. The order of
    the sum depends on the tile, so that two processes disagree in the last bits, and a long run amplifies that.
    """
    known = importlib.import_module("torch._inductor.config").get_config_copy()
    # "deterministic": PyTorch 2.10 and newer. Before, tiles of reductions are fixed together with all others.
    return {"deterministic": True} if "deterministic" in known else {"triton.autotune_pointwise": False}


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    compiled = torch.compile(function, fullgraph=True, dynamic=False, options=_compile_options())

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._dynamo.config.patch(recompile_limit=_SHAPES_PER_FUNCTION):
            return compiled(*args, **kwargs)

    return call


def _faster_on_gpu(function: Callable[P, R], prepare: Callable[[], Callable[P, R]]) -> Callable[P, R]:
    """Call what `prepare` returns instead of `function` for tensors on a GPU, unless that fails."""
    faster: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal faster
        first = args[0]
        if not (isinstance(first, torch.Tensor) and first.is_cuda and has_triton()):
            return function(*args, **kwargs)
        try:
            if faster is None:
                faster = prepare()
            with torch.cuda.device(first.device):  # Triton starts kernels on the current device
                return faster(*args, **kwargs)
        except Exception as error:
            if faster is function or is_out_of_memory(error):
                raise
            # For example Triton without a C compiler: run uncompiled.
            warnings.warn(
                f"{function.__name__} could not be compiled, using the slower uncompiled version: {error}", stacklevel=2
            )
            faster = function
            return function(*args, **kwargs)

    return call


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed, which `torch.compile` needs on a GPU."""
    return importlib.util.find_spec("triton") is not None


def refit_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all refits in the background on a device; memory that one frees is for the next."""
    return _refit_stream(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _refit_stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream to capture on. PyTorch has 32 of them, which come round again, so it can be given that of the refits.

    What a refit computes on a stream meanwhile would become part of the graph, whichever thread captures.
    """
    streams = (torch.cuda.Stream(device) for _ in range(2))
    return next(stream for stream in streams if stream != refit_stream(device))


def capture(function: Callable[[], None], rng: torch.Generator) -> Callable[[], None]:
    """Capture `function` as a CUDA graph and return a function that replays it.

    `function` must read and write the same memory in every call and draw random numbers only from `rng`, whose seed and
    offset are read at every replay. It runs twice before the capture, because nothing may be compiled or allocated
    during one. The caller restores the state that these calls change.
    """
    with torch.cuda.device(rng.device):
        stream = capture_stream(rng.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(rng)
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cuda")

        def record() -> None:
            with (
                torch.inference_mode(modes[0]),
                torch.set_grad_enabled(modes[1]),
                torch.autocast("cuda", enabled=modes[2]),
                torch.cuda.device(rng.device),
                # "thread_local": CUDA calls of other threads must not invalidate the capture
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                function()

        # A capture takes the default generator of the device, too: a learner that draws from it meanwhile would fail.
        in_learners_thread(record)
    return graph.replay
