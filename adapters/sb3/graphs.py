"""UpdateGraphs: gradient updates of a Stable-Baselines3 model as CUDA graphs."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.optim import Adam, AdamW, Optimizer

from synther_replay.adapters.sb3.batches import map_tensors, tensors_of
from synther_replay.common.acceleration import capture
from synther_replay.common.checks import resolve_device

logger = logging.getLogger(__name__)

_CAPTURABLE = {"capturable": True, "fused": True, "foreach": False}  # options of Adam inside a CUDA graph


class UpdateGraphs:
    """The captured updates of one model; they are not copied or pickled."""

    def __init__(self) -> None:
        """Start without captured updates."""
        self.failed = False  # whether a capture has failed
        self._captured: dict[Any, tuple[Any, Callable[[], None]]] = {}
        self._valid_for: Any = None
        self._rates: list[Tensor] = []  # learning rates, one per parameter group

    def __reduce__(self) -> tuple[type[UpdateGraphs], tuple[()]]:
        """Pickle and deepcopy as an empty object."""
        return UpdateGraphs, ()

    def names(self) -> list[Any]:
        """Return the names of the captured updates."""
        return [name for name, *_ in self._captured]

    def run(
        self,
        name: Any,
        update: Callable[[Any], None],
        batch: Any,
        optimizers: list[Optimizer],
        tensors: Callable[[], list[Tensor]],
        settings: Any,
    ) -> bool:
        """Run ``update(batch)`` as a CUDA graph. If the capture fails, warn and return False without an update.

        Args:
            name: Identifies the update.
            update: Takes a batch and modifies the tensors of ``tensors()``, using `optimizers` and the default random
                generator.
            batch: An SB3 batch.
            optimizers: Optimisers of `update`; their learning rates may change between calls.
            tensors: Returns all tensors that `update` reads or modifies.
            settings: Hyperparameters of `update`. All updates are captured again if these, or options of the
                optimisers, change, or if tensors are replaced (for example by loading a model).
        """
        try:
            self._prepare(optimizers)
            settings = settings, [{**group, "params": None, "lr": None} for o in optimizers for group in o.param_groups]
            self._check(tensors, settings)
            key = (name, *((field.shape, field.dtype) for field in tensors_of(batch)))
            if key not in self._captured:
                self._captured[key] = _capture(update, batch, tensors)
                self._valid_for = settings, _addresses(tensors)  # the first update creates the optimiser state
        except Exception as error:  # whatever fails here, the update itself may work
            self._give_up(optimizers)
            warnings.warn(f"CUDA graph capture of the updates failed, they run slower: {error}", stacklevel=4)
            return False
        static, replay = self._captured[key]
        torch._foreach_copy_(tensors_of(static), tensors_of(batch))
        replay()
        return True

    def _check(self, tensors: Callable[[], list[Tensor]], settings: Any) -> None:
        valid_for = settings, _addresses(tensors)
        if self._valid_for != valid_for:
            self._captured.clear()
            self._valid_for = valid_for

    def _prepare(self, optimizers: list[Optimizer]) -> None:
        """Make the optimisers capturable; copy the learning rates to the tensors that the graphs read."""
        for optimizer in optimizers:
            if not isinstance(optimizer, Adam | AdamW) or optimizer.defaults["differentiable"]:
                raise RuntimeError(f"optimizer_class: expected Adam or AdamW, got {type(optimizer).__name__}")
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        if len(self._rates) != len(groups):
            self._rates = [torch.zeros((), dtype=torch.float32, device=group["params"][0].device) for group in groups]
            self._captured.clear()
        for group, rate in zip(groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
            group.update(_CAPTURABLE, lr=rate)
        for optimizer in optimizers:
            _move_steps(optimizer, self._rates[0].device)

    def _give_up(self, optimizers: list[Optimizer]) -> None:
        """Disable capturing and restore the original options of the optimisers."""
        self.failed = True
        self._captured.clear()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group.update(_own_options(optimizer), lr=float(group["lr"]))
            _move_steps(optimizer, torch.device("cpu"))


def plain_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return the `state_dict` of an optimiser with its original options, so that SB3's `SAC` can load it."""
    groups = [{**group, **_own_options(optimizer), "lr": float(group["lr"])} for group in state["param_groups"]]
    kept = {
        key: {name: value.cpu() if name == "step" else value for name, value in one.items()}
        for key, one in state["state"].items()
    }
    return {**state, "state": kept, "param_groups": groups}


def _capture(
    update: Callable[[Any], None], batch: Any, tensors: Callable[[], list[Tensor]]
) -> tuple[Any, Callable[[], None]]:
    """Capture an update; return its static batch and replay function. Model and random state are unchanged."""
    static = map_tensors(torch.clone, batch)
    call = functools.partial(update, static)
    rng = _default_generator(batch.rewards.device)
    state, before = rng.get_state(), [(tensor, tensor.detach().clone()) for tensor in tensors()]
    try:
        with _unchecked_distributions():
            call()
            with _no_synchronisation(rng.device):  # fail here rather than during the capture
                call()
            replay = capture(call, rng)
    finally:
        rng.set_state(state)
        known = {id(tensor) for tensor, _ in before}
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
            for tensor in tensors():
                if id(tensor) not in known:  # state of Adam, created by the first update
                    tensor.zero_()
    logger.info("captured a CUDA graph of updates on %d rows", len(batch.rewards))
    return static, replay


def _addresses(tensors: Callable[[], list[Tensor]]) -> list[tuple[int, bool]]:
    return [(tensor.data_ptr(), tensor.requires_grad) for tensor in tensors()]


def _own_options(optimizer: Optimizer) -> dict[str, Any]:
    """Return the original values of the options that capturing changes."""
    return {name: optimizer.defaults[name] for name in _CAPTURABLE if name in optimizer.defaults}


def _move_steps(optimizer: Optimizer, device: torch.device) -> None:
    """Move Adam's step counters: to the GPU for a CUDA graph, otherwise to the CPU."""
    for state in optimizer.state.values():
        if "step" in state and state["step"].device.type != device.type:
            state["step"] = state["step"].to(device, torch.float32)


def _default_generator(device: torch.device) -> torch.Generator:
    """Return the random generator that SB3 samples actions with."""
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[resolve_device(device).index or 0]


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Disable argument checks of distributions, which synchronise with the host."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _no_synchronisation(device: torch.device) -> Iterator[None]:
    """Raise an error on synchronisation with the GPU."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
