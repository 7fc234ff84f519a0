"""TVAE and CTGAN, the tabular generators that the paper compares with, behind our `fit` and `sample` interface.

Requires the package `ctgan`: pip install 'synther-replay[fidelity]'.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch

from synther_replay import Transitions
from synther_replay.common.checks import whole_number

PEERS = {"tvae": "TVAE", "ctgan": "CTGAN"}


def package() -> Any:
    """Import and return the package `ctgan`.

    Raises:
        ImportError: The package or one of its dependencies is not installed.
    """
    try:
        return import_module("ctgan")
    except ImportError as error:
        raise ImportError(f"TVAE and CTGAN require `pip install 'synther-replay[fidelity]'`: {error}") from error


class TabularPeer:
    """TVAE or CTGAN with the default settings of the package.

    Args:
        name: "tvae" or "ctgan".
        epochs: Training epochs; None for the package's default.
        device: Device of the model.
        seed: Random seed; results are reproducible on the same device.
    """

    def __init__(self, name: str, *, epochs: int | None = None, device: torch.device, seed: int = 0) -> None:
        """Build an untrained model."""
        if name not in PEERS:
            raise ValueError(f"name: expected one of {', '.join(PEERS)}, got {name!r}")
        module = package()
        kind = getattr(module, PEERS[name])
        self.device, self.seed = device, whole_number("seed", seed, least=0)
        changes: dict[str, Any] = {"enable_gpu": device.type == "cuda"}
        if epochs is not None:
            changes["epochs"] = whole_number("epochs", epochs)
        usual = {key: value.default for key, value in inspect.signature(kind).parameters.items()}
        self.settings = {"package": f"ctgan {module.__version__}", **usual, **changes}
        self._changes, self._kind = changes, kind
        self._model: Any = None

    @property
    def parameters(self) -> int:
        """Number of parameters needed for sampling, without encoder or discriminator."""
        networks = [value for value in vars(self._model).values() if isinstance(value, torch.nn.Module)]
        return sum(parameter.numel() for network in networks for parameter in network.parameters())

    def fit(self, transitions: Transitions) -> None:
        """Train from scratch; `terminated` is a discrete column, the others are continuous."""
        # float64, because Gaussian mixtures are fitted to every column
        table = import_module("pandas").DataFrame(transitions.rows.detach().cpu().double().numpy()).rename(columns=str)
        self._spec, flag = transitions.spec, str(transitions.spec.terminated.start)
        table[flag] = table[flag] > 0.5
        with self._randomness(self.seed):
            model = self._kind(**self._changes)
            model.set_random_state(self.seed % 2**32)
            model.fit(table, [flag])
        self._model, self._draws = model, 0

    def sample(self, n: int) -> Transitions:
        """Generate `n` transitions on the device."""
        self._draws += 1
        with self._randomness(self.seed + self._draws):
            table = self._model.sample(whole_number("n", n))
        rows = torch.from_numpy(table.to_numpy(np.float32))
        return Transitions(self._spec, rows.to(self.device))

    @contextlib.contextmanager
    def _randomness(self, seed: int) -> Iterator[None]:
        """Seed torch's global state: the package seeds NumPy and the CPU itself, but not the GPU."""
        gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if gpu else []):
            torch.manual_seed(seed)
            with torch.cuda.device(self.device) if gpu else contextlib.nullcontext():
                yield
