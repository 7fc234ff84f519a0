"""RayGenerator: a generator whose work is done by an actor of Ray."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from synther_replay.common.checks import whole_number
from synther_replay.common.locking import Lock
from synther_replay.common.short_forms import default_preset
from synther_replay.common.trees import on_cpu
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.distributed.actor import FitRequest, Origin, SampleRequest
from synther_replay.distributed.stacking import State, as_arrays, as_tensors
from synther_replay.distributed.worker import RayWorker, RemoteError
from synther_replay.errors import NotFittedError
from synther_replay.generator import KIND, DiffusionGenerator, FitReport
from synther_replay.model.checks import check_base, check_transitions
from synther_replay.model.fitted import Draws
from synther_replay.persistence.checkpoint import save_checkpoint


class RayGenerator:
    """Fits and generates on another GPU or host, and is used like `DiffusionGenerator`.

    The learner keeps the model and sends it along, so it survives the actor, and files of `save` are those of
    `DiffusionGenerator`. With an actor of its own it gives the same rows as one on such a device, too. A failure of
    the actor, its node or the object store is a `RemoteError`; buffers turn it into one warning and go on with the
    rows they have.

    >>> generator = RayGenerator(spec, "fast", num_gpus=1)  # doctest: +SKIP
    >>> buffer = SyntheticReplayBuffer(RingBuffer(spec, 1_000_000), generator)  # doctest: +SKIP

    Args:
        spec: Layout of the transitions.
        config: Settings, or a short form of `GeneratorConfig.of`. None, and a mapping without a preset:
            `GeneratorConfig.fast()` on a GPU, `GeneratorConfig.tiny()` on a CPU.
        num_gpus: GPUs of its actor; 0: the actor computes on the CPU.
        seed: Random seed.
        worker: An actor to share with other learners, see `RayWorker`. None: one of its own.

    Raises:
        ImportError: Ray is not installed.
    """

    min_rows = DiffusionGenerator.min_rows
    stack = 1
    background = "thread"  # `refit="background"` only has to wait for the actor

    def __init__(
        self,
        spec: TransitionSpec,
        config: GeneratorConfig | Mapping[str, Any] | str | None = None,
        *,
        num_gpus: float = 1,
        seed: int = 0,
        worker: RayWorker | None = None,
    ) -> None:
        """Check the arguments; the actor starts when it is first needed."""
        if not isinstance(spec, TransitionSpec):
            raise TypeError(f"spec: expected a TransitionSpec, got {spec!r}")
        if worker is not None and not isinstance(worker, RayWorker):
            raise TypeError(f"worker: expected a RayWorker, got {worker!r}")
        self.worker = RayWorker(num_gpus=num_gpus) if worker is None else worker
        self.spec = spec
        preset = default_preset(torch.device("cuda" if self.worker.num_gpus else "cpu"))
        self.config = GeneratorConfig.of(config, default=preset, name="config")
        self.config.network(spec.dim)  # refuses rows that are too long
        self._draws = Draws(whole_number("seed", seed, least=0))
        self._model: _Model | None = None

    @property
    def seed(self) -> int:
        """Random seed."""
        return self._draws.seed

    @property
    def is_fitted(self) -> bool:
        """Whether `sample` can be called."""
        return self._model is not None

    @property
    def rejected(self) -> int:
        """Total number of generated rows rejected as non-finite."""
        return self._draws.rejected

    def fit(self, transitions: Transitions, **options: Any) -> FitReport:
        """Fit the model; arguments and errors are those of `DiffusionGenerator.fit`, and `RemoteError`."""
        return self.commit(self.begin(transitions, **options))

    def begin(
        self, transitions: Transitions, *, condition: Any = None, weights: Any = None, **options: Any
    ) -> RayFitJob:
        """Prepare a fit: copy the transitions to the object store. Arguments: see `DiffusionGenerator.fit`."""
        check_transitions(transitions, self.spec)
        options.pop("progress", None)  # nobody sees the terminal of the actor
        arrays = [None if values is None else _array(values) for values in (transitions.rows, condition, weights)]
        return RayFitJob(self, [None if array is None else self.worker.put(array) for array in arrays], options)

    def commit(self, job: RayFitJob) -> FitReport:
        """Make the result of a job the model of this generator; if it has not run yet, it runs now.

        Raises:
            TypeError: `job` is not a `RayFitJob`.
            ValueError: The job was begun by another generator, or before the last commit or load.
        """
        if not isinstance(job, RayFitJob):
            raise TypeError(f"job: expected a RayFitJob, got {job!r}")
        if job.generator is not self:
            raise ValueError("job: it was begun by another generator")
        check_base(job.base, self._model)
        report = job.run()
        self._model = job.model
        job.count_before, self._draws.count = self._draws.count, max(self._draws.count, job.draws.count)
        return report

    def revert(self, job: RayFitJob) -> None:
        """Undo the commit of a job, the last one.

        Raises:
            ValueError: The job is not the one that was committed last.
        """
        if job.generator is not self or job.model is None or job.model is not self._model:
            raise ValueError("job: it is not the one that was committed last")
        self._model, self._draws.count = job.base, job.count_before

    def sample(self, n: int, *, condition: Any = None, guidance: float = 1.0, seed: int | None = None) -> Transitions:
        """Generate `n` transitions, on the CPU; arguments and errors are those of `DiffusionGenerator.sample`."""
        n = whole_number("n", n)
        if self._model is None:
            raise NotFittedError("generator: call fit or load before sample")
        return self.draw(self._model, self._draws, n, condition, guidance, seed)

    def draw(
        self, model: _Model, draws: Draws, n: int, condition: Any, guidance: float, seed: int | None
    ) -> Transitions:
        """Generate rows with a model; `draws` advances if nothing fails."""
        request = SampleRequest(
            self.origin(model), n, draws.count, None if condition is None else _array(condition), guidance, seed
        )
        rows, done = torch.empty(n, self.spec.dim, dtype=torch.float32, device="cpu"), 0
        try:
            for part in self.worker.sample(request):
                if isinstance(part, tuple):
                    draws.count, rejected = part
                    draws.rejected += rejected
                else:
                    rows[done : done + len(part)] = torch.tensor(part, device="cpu")
                    done += len(part)
        except RemoteError:
            model.forget_reference()
            raise
        return Transitions(self.spec, rows)

    def origin(self, model: _Model | None) -> Origin:
        """Describe a model for the actor; None: the untrained one."""
        spec, config = json.dumps(self.spec.to_json()), json.dumps(self.config.to_json())
        if model is None:
            return Origin(spec, config, self.seed)
        return Origin(spec, config, self.seed, model.key, [model.reference(self.worker)])

    def reseed(self, seed: int) -> None:
        """Continue with another seed, so that copies in several workers fit and generate differently."""
        self._draws.seed = whole_number("seed", seed, least=0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, which `DiffusionGenerator.load` reads, too."""
        save_checkpoint(path, KIND, self.state_dict())

    def state_dict(self) -> State:
        """Return a copy of the complete state, that of a `DiffusionGenerator`."""
        own = {"seed": self.seed, "draws": self._draws.count, "rejected": self._draws.rejected}
        if self._model is None:
            return DiffusionGenerator(self.spec, self.config, device="cpu", seed=self.seed).state_dict() | own
        return as_tensors(as_arrays(self._model.state)) | own

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict` of this class or of `DiffusionGenerator`; see there for what must agree."""
        checked = DiffusionGenerator(self.spec, self.config, device="cpu", seed=self.seed)
        checked.load_state_dict(on_cpu(state))
        copied = checked.state_dict()
        self._model = _Model(copied) if checked.is_fitted else None
        self._draws = Draws(copied["seed"], copied["draws"], copied["rejected"])

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without references of a cluster that a file may outlive."""
        own = {"worker": self.worker, "spec": self.spec, "config": self.config, "draws": replace(self._draws)}
        return own | {"state": None if self._model is None else self._model.state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore."""
        self.worker, self.spec, self.config = pickled["worker"], pickled["spec"], pickled["config"]
        self._draws = pickled["draws"]
        self._model = None if pickled["state"] is None else _Model(pickled["state"])


class RayFitJob:
    """A fit that was begun; see `FitJob`.

    Attributes:
        generator: The generator that began it.
        base: Its model at that time.
        model: The fitted model after `run`, else None.
        report: The report after `run`, else None.
        draws: Number of the draws, with those of this job.
        count_before: The generator's draws when the job was committed.
    """

    def __init__(self, generator: RayGenerator, arrays: list[Any], options: dict[str, Any]) -> None:
        """Keep what `run` needs: references of rows, conditions and weights, and other arguments."""
        self.generator, self.base = generator, generator._model
        self.model: _Model | None = None
        self.report: FitReport | None = None
        self.draws = replace(generator._draws)
        self.count_before = self.draws.count
        self._arrays, self._options = arrays, options
        self._running = Lock()

    def run(self) -> FitReport:
        """Have it computed, once; another call waits for it and returns the same report."""
        with self._running:
            if self.report is None:
                self.model, self.report = self._run()
                self._arrays = []  # the object store may forget them
            return self.report

    def _run(self) -> tuple[_Model, FitReport]:
        generator = self.generator
        key = uuid.uuid4().hex
        try:
            request = FitRequest(generator.origin(self.base), key, np.empty(0), options=self._options)
            state, report = generator.worker.fit(request, self._arrays)
        except RemoteError:
            if self.base is not None:
                self.base.forget_reference()
            raise
        return _Model(as_tensors(state), key), report

    def sample(self, n: int, *, condition: Any = None, guidance: float = 1.0) -> Transitions:
        """Generate rows with the fitted model before it is committed; see `RayGenerator.sample`."""
        if self.model is None:
            raise NotFittedError("job: call run before sample")
        rejected = self.draws.rejected
        try:
            return self.generator.draw(self.model, self.draws, whole_number("n", n), condition, guidance, None)
        finally:
            self.generator._draws.rejected += self.draws.rejected - rejected


class _Model:
    """State of a fitted generator on the CPU, and its reference in the object store.

    Args:
        state: The state.
        key: Name by which the actor knows it.
    """

    def __init__(self, state: State, key: str = "") -> None:
        self.state, self.key = state, key or uuid.uuid4().hex
        self._reference: Any = None
        self._session = ""  # of the reference

    def reference(self, worker: RayWorker) -> Any:
        """Reference of the state with arrays; it is put into the object store if it is not there."""
        session = worker.session()
        if self._reference is None or self._session != session:
            self._reference, self._session = worker.put(as_arrays(self.state)), session
        return self._reference

    def forget_reference(self) -> None:
        """Put the state again for the next request: its node may have left with the object."""
        self._reference = None


def _array(values: Any) -> np.ndarray:
    """Return values as an array that the object store can hold."""
    array: np.ndarray = torch.as_tensor(values).detach().cpu().numpy()
    return array
