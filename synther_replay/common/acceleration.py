"""What makes the same code fast on CUDA: fused element-wise functions and captured graphs."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from synther_replay.errors import is_out_of_memory

P = ParamSpec("P")
R = TypeVar("R")

# Every stack size, batch size and chunk size is a shape of its own; the default limit of 8 suits one training script.
_SHAPES_PER_FUNCTION = 64


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of element-wise operations and sums into few kernels when its first argument is on a GPU.

    On the CPU, and where it cannot be compiled, the function runs as it is written.
    """
    compiled: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        first = args[0]
        if not (isinstance(first, torch.Tensor) and first.is_cuda and has_triton()):
            return function(*args, **kwargs)
        if compiled is None:
            compiled = torch.compile(function, fullgraph=True, dynamic=False)
        try:
            with torch._dynamo.config.patch(recompile_limit=_SHAPES_PER_FUNCTION):
                return compiled(*args, **kwargs)
        except Exception as error:
            if compiled is function or is_out_of_memory(error):
                raise
            # A machine may have Triton but no C compiler; slow is better than not at all.
            warnings.warn(f"{function.__name__} cannot be compiled and runs slower: {error}", stacklevel=2)
            compiled = function
            return function(*args, **kwargs)

    return call


@functools.cache
def has_triton() -> bool:
    """Whether kernels can be compiled at all."""
    return importlib.util.find_spec("triton") is not None


def capture(function: Callable[[], None], rng: torch.Generator) -> Callable[[], None]:
    """Record the CUDA kernels of `function` once and return a function that replays them.

    `function` must read and write the same memory each time, and draw random numbers from `rng` alone, whose seed and
    offset are read at every replay. It is run twice here before it is recorded, so that nothing is compiled or
    allocated during the recording; the caller restores whatever state that changed.
    """
    with torch.cuda.device(rng.device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(rng)
        # "thread_local": another thread's allocations or copies to the device are no business of this recording
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            function()
    return graph.replay
