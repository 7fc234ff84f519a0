"""RayWorker: the actor that computes for one learner or several, and what happens when it is lost."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import synther_replay
from synther_replay.common.cancelling import check_cancelled
from synther_replay.common.checks import whole_number
from synther_replay.common.locking import Lock
from synther_replay.common.requests import in_learners_thread
from synther_replay.distributed.actor import GeneratorActor

_NAMESPACE = "synther_replay"
_SHORT_WAIT = 1.0  # seconds, for an actor that did not start in time before
_LOOKS_EVERY = 0.2  # seconds, for a job that was dropped
_CHUNKS = 4  # of rows that may wait in the object store for a learner that reads slowly


class RemoteError(RuntimeError):
    """The actor, its node or the object store failed; the next call starts the actor again."""


class RayWorker:
    """An actor of Ray that fits and samples. Learners that share one are fitted as a stack.

    Every learner has its own `RayGenerator` and may run in another process: a copy of this object by pickle, or another
    one with the same `name`, means the same actor. The actor starts when it is first needed, and ends with the process
    that needed it first; `start` makes that this process. After a failure it starts again, wherever there is room.

    >>> worker = RayWorker(num_gpus=1, learners=4).start()  # doctest: +SKIP
    >>> generators = [RayGenerator(spec, "fast", seed=seed, worker=worker) for seed in range(4)]  # doctest: +SKIP

    Args:
        num_gpus: GPUs of the actor; a share such as 0.5 is one GPU that others may use, too. 0: it computes on the CPU.
        learners: How many learners share it. A fit begins when as many have asked for one.
        wait: Most seconds that the first waits for the others. Those that come later are fitted later.
        start_seconds: Most seconds to wait for the actor to start, for example for a free GPU.
        name: Name of the actor in the cluster. None: a new one.
        options: Other options of Ray actors, for example ``num_cpus=4`` or ``resources={"fast": 1}``.

    Raises:
        ImportError: Ray is not installed.
    """

    def __init__(
        self,
        *,
        num_gpus: float = 1,
        learners: int = 1,
        wait: float = 30.0,
        start_seconds: float = 60.0,
        name: str | None = None,
        **options: Any,
    ) -> None:
        """Check the arguments; nothing is started yet."""
        ray()
        for key, value in (("num_gpus", num_gpus), ("wait", wait), ("start_seconds", start_seconds)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"{key}: expected a number of at least 0, got {value!r}")
        self.num_gpus, self.learners, self.wait = num_gpus, whole_number("learners", learners), wait
        self.name = name or f"generator-{uuid.uuid4().hex}"
        self._options, self._start_seconds = options, start_seconds
        self._actor: Any = None
        self._session = ""  # of the actor
        self._greeting: Any = None  # reference of the answer that shows that the actor has started
        self._was_late = False
        self._starting = Lock()  # learners may be threads

    def start(self) -> RayWorker:
        """Start the actor now, so that it lives as long as this process; returns self."""
        with self._reported("start"):
            self.session()
            with self._starting:
                self._started()
        return self

    @staticmethod
    def session() -> str:
        """Name of the connection to a cluster, outside of which references and actors mean nothing.

        Without a connection Ray makes one by its own rules: to the cluster of ``RAY_ADDRESS``, or a new one here. A
        cluster that is started here ends with the thread that starts it, so that is the learner's, not that of a refit.
        """
        if not ray().is_initialized():
            in_learners_thread(ray().init)
        name: str = ray().get_runtime_context().get_worker_id()
        return name

    def fit(self, request: Any, arrays: list[Any]) -> Any:
        """Call `GeneratorActor.fit` with references of the arrays."""
        with self._reported("fit"):
            self.session()  # before the lock: the learner's thread may be waiting for that
            with self._starting:
                actor = self._started()
            with _dropped_on_exit(actor, request.key):
                result = actor.fit.remote(request, *arrays)
                _wait_for(result)
                return ray().get(result)

    def sample(self, request: Any) -> Iterator[Any]:
        """Call `GeneratorActor.sample`; a few chunks are on their way while others are read."""
        with self._reported("sample"):
            self.session()
            with self._starting:
                actor = self._started()
            with _dropped_on_exit(actor, request.key):
                chunks = actor.sample.options(_generator_backpressure_num_objects=_CHUNKS).remote(request)
                while _wait_for(chunks) and (chunk := next(chunks, None)) is not None:
                    yield ray().get(chunk)

    def put(self, value: Any) -> Any:
        """Copy a value to the object store and return its reference."""
        with self._reported("put"):
            self.session()  # `ray.put` would start Ray in this thread
            return ray().put(value)

    def __repr__(self) -> str:
        """Name and sizes."""
        return f"RayWorker(name={self.name!r}, num_gpus={self.num_gpus}, learners={self.learners})"

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle: the name stands for the actor, which a file may outlive."""
        return {**vars(self), "_actor": None, "_greeting": None}

    def _started(self) -> Any:
        """Return the actor after it has answered, or raise RemoteError.

        An actor that Ray is starting again is waited for. One that is gone for good, for example with the process that
        needed it first, is replaced.
        """
        errors, session = ray().exceptions, self.session()
        if session != self._session:
            self._actor, self._session = None, session
        is_new = self._actor is None
        deadline = time.monotonic() + (_SHORT_WAIT if self._was_late else self._start_seconds)
        while True:
            try:
                if self._actor is None:
                    self._actor, self._greeting = self._new_actor(), None
                answer = self._greeted(deadline)
                break
            except errors.ActorUnavailableError:
                if time.monotonic() > deadline:
                    self._was_late = True
                    raise self._late() from None
            except errors.ActorDiedError:
                self._actor = None
                if is_new:
                    raise
                is_new = True
        if answer != (here := synther_replay.__version__):
            raise RemoteError(f"worker: got synther_replay {answer} on the actor's node, expected {here} as here")
        return self._actor

    def _greeted(self, deadline: float) -> str:
        """Version of the library where the actor is."""
        if self._greeting is None:
            self._greeting = self._actor.greet.remote()
        self._was_late = not _wait_for(self._greeting, deadline)
        if self._was_late:
            raise self._late()
        greeting, self._greeting = self._greeting, None
        answer: str = ray().get(greeting)
        return answer

    def _late(self) -> RemoteError:
        total = ray().cluster_resources()
        there = {name: total.get(name, 0) for name in ("CPU", "GPU", *self._options.get("resources", {}))}
        needed = {"num_gpus": self.num_gpus, **self._options}
        return RemoteError(f"worker: the actor did not start in time; it needs {needed} on one node, of {there} in all")

    def _new_actor(self) -> Any:
        remote = ray().remote(GeneratorActor)
        remote = remote.options(
            num_gpus=self.num_gpus,
            name=self.name,
            namespace=_NAMESPACE,
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=2 * self.learners + 2,  # those that wait for others, and those that sample
            **self._options,
        )
        return remote.remote("cuda" if self.num_gpus else "cpu", learners=self.learners, wait=self.wait)

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn errors of Ray into `RemoteError`; those of the generator stay what they are."""
        errors = ray().exceptions
        try:
            yield
        except errors.RayTaskError as error:
            if not isinstance(error.cause, errors.RayError):
                raise error.cause from None
            raise RemoteError(f"worker: {what} failed ({_kind(error.cause)})") from error
        except errors.RayError as error:
            raise RemoteError(f"worker: {what} failed ({_kind(error)}); the actor starts again") from error


def ray() -> Any:
    """Import Ray, or say how to install it."""
    try:
        import ray as module
    except ImportError as error:
        raise ImportError("synther_replay.distributed needs Ray: pip install 'synther-replay[ray]'") from error
    return module


def _wait_for(reference: Any, deadline: float = math.inf) -> bool:
    """Wait for an object, or the next one of a stream; whether it is there in time.

    Raises:
        CancelledError: The work of this thread was dropped.
    """
    while True:
        left = deadline - time.monotonic()
        done, _ = ray().wait([reference], timeout=max(0.0, min(left, _LOOKS_EVERY)))
        if done or left <= 0:
            return bool(done)
        check_cancelled()


@contextmanager
def _dropped_on_exit(actor: Any, key: str) -> Iterator[None]:
    """Have the actor drop a request that this thread stops waiting for: it was cancelled or interrupted."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            with suppress(Exception):  # the cluster may be gone
                actor.drop.remote(key)
        raise


def _kind(error: Exception) -> str:
    """Describe an error without names and addresses, so that the same failure is reported once."""
    return type(error).__name__
