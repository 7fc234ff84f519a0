"""GeneratorActor: fits and samples for the learners, wherever Ray places it.

It keeps no model that a learner could lose: every request brings the state that it starts from, and a fit returns the
new one. A restarted actor therefore goes on as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import synther_replay
from synther_replay.common.cancelling import CancelledError, cancelled_when, check_cancelled
from synther_replay.common.seeding import derive_seed
from synther_replay.common.trees import on_cpu
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.distributed.gathering import Gathering
from synther_replay.distributed.stacking import State, as_arrays, as_tensors, member, signature, stacked
from synther_replay.errors import DivergedError, is_out_of_memory
from synther_replay.generator import DiffusionGenerator, FitReport

_KEPT = 2  # generators with their trainers and samplers: usually a single one and a stack
_STATES = 3  # kept for each learner: its own, that of a job, and one on the way
_DROPPED = 8  # requests, remembered for each learner
_CHUNK_BYTES = 2**24  # of the rows that are sent at once


@dataclass(frozen=True, eq=False)
class Origin:
    """What a model is made from.

    Attributes:
        spec: Layout of the transitions, as JSON.
        config: Settings, as JSON.
        seed: Seed of the learner.
        key: Name of the state.
        state: The state with arrays, as a reference in a list, which Ray does not read before it is needed; None: not
            fitted.
    """

    spec: str
    config: str
    seed: int
    key: str = ""
    state: list[Any] | None = None


@dataclass(frozen=True, eq=False)
class FitRequest:
    """Arguments of a fit.

    Attributes:
        origin: State to start from.
        rows: Real rows ``(n, dim)``.
        condition: Their conditions, if any.
        weights: Their weights, if any.
        options: Other arguments of `DiffusionGenerator.begin`.
        key: Name of the request, and of the new state.
    """

    origin: Origin
    key: str
    rows: np.ndarray
    condition: np.ndarray | None = None
    weights: np.ndarray | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """Arguments of a draw; `draws` counts those before it, `key` names it."""

    origin: Origin
    n: int
    draws: int
    condition: np.ndarray | None = None
    guidance: float = 1.0
    seed: int | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


Fitted = tuple[State, FitReport]


class GeneratorActor:
    """Computes for one learner or several, one request at a time; fits that are alike are one fit of a stack.

    Args:
        device: Torch device.
        learners: Number of fits to wait for.
        wait: Most seconds that a fit waits for others.
    """

    def __init__(self, device: str, *, learners: int = 1, wait: float = 0.0) -> None:
        """Start without generators."""
        self._device = device
        self._fits: Gathering[FitRequest, Fitted] = Gathering(
            self._fit_all, size=learners, wait=wait, is_wanted=lambda request: request.key not in self._dropped
        )
        self._generators: OrderedDict[tuple[str, str, int], tuple[DiffusionGenerator, State]] = OrderedDict()
        self._states: OrderedDict[str, State] = OrderedDict()
        self._most_states = _STATES * learners
        self._dropped: deque[str] = deque(maxlen=_DROPPED * learners)
        self._computing = threading.Lock()

    def greet(self) -> str:
        """Version of the library here."""
        return synther_replay.__version__

    def fit(self, request: FitRequest, rows: np.ndarray, condition: Any, weights: Any) -> Fitted:
        """Fit, perhaps together with other learners; returns the new state with arrays, and the report.

        The arrays are arguments of their own, because Ray passes those by reference.
        """
        return self._fits.submit(replace(request, rows=rows, condition=condition, weights=weights))

    def drop(self, key: str) -> None:
        """End a request soon, because nobody waits for its result any more."""
        self._dropped.append(key)

    def sample(self, request: SampleRequest) -> Iterator[Any]:
        """Yield generated rows in chunks; then the number of draws, and of rejected rows."""
        origin = request.origin
        with self._computing, self._until_dropped(request.key):
            generator, _ = self._generator(origin, 1)
            state = self._state(origin)
            assert state is not None  # the learner asks nothing before its first fit
            generator.load_state_dict(state | {"seed": origin.seed, "draws": request.draws, "rejected": 0})
            drawn = generator.sample(
                request.n, condition=request.condition, guidance=request.guidance, seed=request.seed
            )
            rows, counts = drawn.rows.cpu(), (generator.state_dict()["draws"], generator.rejected)
        for chunk in rows.split(max(1, _CHUNK_BYTES // (4 * rows.shape[1]))):
            yield chunk.numpy()
        yield counts

    def _fit_all(self, requests: Sequence[FitRequest]) -> list[Fitted | BaseException]:
        """Fit requests that are alike as a stack, the others apart."""
        groups: dict[str, list[int]] = {}
        results: dict[int, Fitted | BaseException] = {}
        with self._computing:
            for number, request in enumerate(requests):
                try:
                    with self._until_dropped(request.key):
                        groups.setdefault(self._kind(request), []).append(number)
                except Exception as error:  # its state is lost, for example; the others need not fail with it
                    results[number] = error
            for numbers in groups.values():
                numbers.sort(key=lambda number: _place(requests[number]))  # not in the order of their arrival
                results.update(zip(numbers, self._fit_group([requests[number] for number in numbers]), strict=True))
        return [results[number] for number in range(len(requests))]

    def _fit_group(self, requests: Sequence[FitRequest]) -> Sequence[Fitted | BaseException]:
        try:
            with self._until_dropped(*(request.key for request in requests)):
                return self._fit_stack(requests)
        except Exception as error:
            if len(requests) == 1 or not (isinstance(error, DivergedError | ValueError) or is_out_of_memory(error)):
                return [error] * len(requests)
        # One diverged, or has invalid rows, or the stack is too large: the others need not fail with it.
        return [result for request in requests for result in self._fit_group([request])]

    def _fit_stack(self, requests: Sequence[FitRequest]) -> list[Fitted]:
        first, count = requests[0], len(requests)
        generator, blank = self._generator(first.origin, count)
        seeds = [request.origin.seed for request in requests]
        seed = seeds[0] if count == 1 else derive_seed(*seeds)
        states = [state for request in requests if (state := self._state(request.origin)) is not None]
        generator.load_state_dict(stacked(states, seed) if states else blank | {"seed": seed})

        def joined(arrays: Sequence[np.ndarray | None]) -> torch.Tensor | None:
            given = [torch.tensor(array, device="cpu") for array in arrays if array is not None]
            return None if not given else given[0] if count == 1 else torch.stack(given)

        rows = joined([request.rows for request in requests])
        assert rows is not None
        report = generator.fit(
            Transitions(generator.spec, rows),
            condition=joined([request.condition for request in requests]),
            weights=joined([request.weights for request in requests]),
            progress=False,
            **first.options,
        )
        state = on_cpu(generator.state_dict())
        return [self._result(request, member(state, i), report, i) for i, request in enumerate(requests)]

    @contextmanager
    def _until_dropped(self, *keys: str) -> Iterator[None]:
        """End the work within by an error, once nobody waits for any of these requests."""
        try:
            with cancelled_when(lambda: all(key in self._dropped for key in keys)):
                check_cancelled()
                yield
        except CancelledError as error:
            raise RuntimeError("the request was dropped") from error  # an `Exception`: others would end the actor

    def _result(self, request: FitRequest, state: State, report: FitReport, number: int) -> Fitted:
        state["seed"] = request.origin.seed
        self._keep(request.key, state)
        losses, held_out = report.losses[number : number + 1], report.held_out_losses
        held_out = None if held_out is None else held_out[number : number + 1]
        own = replace(
            report,
            loss=losses[0],
            held_out_loss=None if held_out is None else held_out[0],
            losses=losses,
            held_out_losses=held_out,
        )
        return as_arrays(state), own

    def _kind(self, request: FitRequest) -> str:
        """Describe a fit; those of one kind can be one stack."""
        arrays = [
            None if array is None else array.shape for array in (request.rows, request.condition, request.weights)
        ]
        origin = request.origin
        state = signature(self._state(origin))
        return json.dumps([origin.spec, origin.config, arrays, sorted(request.options.items()), state])

    def _generator(self, origin: Origin, stack: int) -> tuple[DiffusionGenerator, State]:
        """A generator of that size, whose state is to be loaded, and its state before the first fit."""
        key = origin.spec, origin.config, stack
        if key not in self._generators:
            while len(self._generators) >= _KEPT:  # before memory for the next is allocated
                self._generators.popitem(last=False)
            spec = TransitionSpec.from_json(json.loads(origin.spec))
            config = GeneratorConfig.from_json(json.loads(origin.config))
            generator = DiffusionGenerator(spec, config, device=self._device, stack=stack)
            self._generators[key] = generator, on_cpu(generator.state_dict())
        self._generators.move_to_end(key)
        return self._generators[key]

    def _state(self, origin: Origin) -> State | None:
        if origin.state is None:
            return None
        if origin.key not in self._states:
            import ray  # type: ignore[import-untyped, unused-ignore]

            self._keep(origin.key, as_tensors(ray.get(origin.state[0])))
        self._states.move_to_end(origin.key)
        return self._states[origin.key]

    def _keep(self, key: str, state: State) -> None:
        self._states[key] = state
        while len(self._states) > self._most_states:
            self._states.popitem(last=False)


def _place(request: FitRequest) -> tuple[int, bytes]:
    """Place of a fit in a stack: by seed, and by its rows where seeds are equal."""
    return request.origin.seed, hashlib.sha256(np.ascontiguousarray(request.rows).data).digest()
