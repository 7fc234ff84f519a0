"""Updates of a Stable-Baselines3 model as CUDA graphs: recorded once, replayed with other batches."""

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

_CAPTURABLE = {"capturable": True, "fused": True, "foreach": False}  # options of Adam inside a graph


class UpdateGraphs:
    """The recorded updates of one model; copies and files leave them behind."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self.refused = False  # whether recording has failed
        self._recorded: dict[Any, tuple[Any, Callable[[], None]]] = {}
        self._valid_for: Any = None
        self._rates: list[Tensor] = []  # learning rates, one per group of parameters

    def __reduce__(self) -> tuple[type[UpdateGraphs], tuple[()]]:
        """What pickle and deepcopy take along: nothing."""
        return UpdateGraphs, ()

    def names(self) -> list[Any]:
        """Of the updates that are recorded."""
        return [name for name, *_ in self._recorded]

    def run(
        self,
        name: Any,
        update: Callable[[Any], None],
        batch: Any,
        optimizers: list[Optimizer],
        learnt: Callable[[], list[Tensor]],
        settings: Any,
    ) -> bool:
        """Do what ``update(batch)`` does; where that cannot be recorded, warn, do nothing and return False.

        Args:
            name: What tells one update from another.
            update: Takes a batch and changes what `learnt` returns, by `optimizers` and SB3's random numbers.
            batch: Of any type of SB3.
            optimizers: That `update` uses; their learning rates may change from call to call.
            learnt: Returns all tensors that `update` reads or changes.
            settings: Numbers that `update` uses. When they change, or those of the optimisers, or when tensors are
                replaced, as by loading, everything is recorded anew.
        """
        try:
            self._prepare(optimizers)
            settings = settings, [{**group, "params": None, "lr": None} for o in optimizers for group in o.param_groups]
            self._check(learnt, settings)
            key = (name, *((field.shape, field.dtype) for field in tensors_of(batch)))
            if key not in self._recorded:
                self._recorded[key] = _record(update, batch, learnt)
                self._valid_for = settings, _addresses(learnt)  # the first update makes the state of the optimisers
        except RuntimeError as error:
            self._give_up(optimizers)
            warnings.warn(f"the updates cannot be recorded as a CUDA graph and run slower: {error}", stacklevel=4)
            return False
        static, replay = self._recorded[key]
        torch._foreach_copy_(tensors_of(static), tensors_of(batch))
        replay()
        return True

    def _check(self, learnt: Callable[[], list[Tensor]], settings: Any) -> None:
        valid_for = settings, _addresses(learnt)
        if self._valid_for != valid_for:
            self._recorded.clear()
            self._valid_for = valid_for

    def _prepare(self, optimizers: list[Optimizer]) -> None:
        """Make optimisers fit for recording; the learning rates that SB3 has set go where the graphs read them."""
        for optimizer in optimizers:
            if not isinstance(optimizer, Adam | AdamW) or optimizer.defaults["differentiable"]:
                raise RuntimeError(f"optimizer_class: expected Adam or AdamW, got {type(optimizer).__name__}")
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        if len(self._rates) != len(groups):
            self._rates = [torch.zeros((), device=group["params"][0].device) for group in groups]
            self._recorded.clear()
        for group, rate in zip(groups, self._rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
            group.update(_CAPTURABLE, lr=rate)
        for optimizer in optimizers:
            _move_steps(optimizer, self._rates[0].device)

    def _give_up(self, optimizers: list[Optimizer]) -> None:
        """Leave the optimisers as SB3 made them."""
        self.refused = True
        self._recorded.clear()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group.update(_own_options(optimizer), lr=float(group["lr"]))
            _move_steps(optimizer, torch.device("cpu"))


def plain_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The `state_dict` of an optimiser as if it had never been part of a graph: for files that anyone can load."""
    groups = [{**group, **_own_options(optimizer), "lr": float(group["lr"])} for group in state["param_groups"]]
    kept = {
        key: {name: value.cpu() if name == "step" else value for name, value in one.items()}
        for key, one in state["state"].items()
    }
    return {**state, "state": kept, "param_groups": groups}


def _record(
    update: Callable[[Any], None], batch: Any, learnt: Callable[[], list[Tensor]]
) -> tuple[Any, Callable[[], None]]:
    """A batch to fill and the function that learns from it; `learnt` and the random state are left as they are."""
    static = map_tensors(torch.clone, batch)
    call = functools.partial(update, static)
    rng = _default_generator(batch.rewards.device)
    state, before = rng.get_state(), [(tensor, tensor.detach().clone()) for tensor in learnt()]
    try:
        with _unchecked_distributions():
            call()
            with _no_synchronisation(rng.device):  # an error here can be undone, one while recording cannot always
                call()
            replay = capture(call, rng)
    finally:
        rng.set_state(state)
        known = {id(tensor) for tensor, _ in before}
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
            for tensor in learnt():
                if id(tensor) not in known:  # Adam's, made by the first update
                    tensor.zero_()
    logger.info("recorded updates with %d rows", len(batch.rewards))
    return static, replay


def _addresses(learnt: Callable[[], list[Tensor]]) -> list[tuple[int, bool]]:
    return [(tensor.data_ptr(), tensor.requires_grad) for tensor in learnt()]


def _own_options(optimizer: Optimizer) -> dict[str, Any]:
    """The options that the optimiser was made with, of those that a graph changes."""
    return {name: optimizer.defaults[name] for name in _CAPTURABLE if name in optimizer.defaults}


def _move_steps(optimizer: Optimizer, device: torch.device) -> None:
    """Adam counts its steps on the host unless it is part of a graph."""
    for state in optimizer.state.values():
        if "step" in state and state["step"].device.type != device.type:
            state["step"] = state["step"].to(device, torch.float32)


def _default_generator(device: torch.device) -> torch.Generator:
    """The one that SB3 draws actions with."""
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[resolve_device(device).index or 0]


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Distributions check their arguments on the host, which no graph can."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _no_synchronisation(device: torch.device) -> Iterator[None]:
    """Make it an error to wait for the GPU."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not notice everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
