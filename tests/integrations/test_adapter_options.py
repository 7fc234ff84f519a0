"""Options that can have no effect, through every adapter."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_buffers import (
    ACTIONS,
    MAKERS,
    OBSERVATIONS,
    corl_buffer,
    corl_step,
    sb3_buffer,
    skrl_memory,
    skrl_step,
    torchrl_buffer,
    torchrl_step,
)

from synther_replay import RetrainSchedule

SCHEDULE = RetrainSchedule(every=60, rows=100, start=60)


@pytest.mark.parametrize("make", MAKERS)
def test_a_lag_without_refits_in_the_background_is_refused(make: Callable[..., Any]):
    with pytest.raises(ValueError, match=r"lag: applies to refit='background' only, got 20"):
        make(lag=20, schedule=SCHEDULE)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (sb3_buffer, "SynthERBuffer"),
        (torchrl_buffer, "SynthERReplayBuffer"),
        (skrl_memory, "SynthERMemory"),
        (corl_buffer, "ReplayBuffer"),
    ],
)
def test_a_misspelt_option_is_named_with_the_right_one(make: Callable[..., Any], name: str):
    with pytest.raises(TypeError, match=f"^{name}: unknown option 'real_ration'; did you mean 'real_ratio'"):
        make(real_ration=0.3)


def test_refits_of_corl_in_the_background_need_a_schedule():
    with pytest.raises(ValueError, match="refit: 'background' requires a schedule"):
        corl_buffer(refit="background")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"action_spec": ACTIONS}, "action_spec: expected a spec of TorchRL .* got Box"),
        ({"observation_spec": OBSERVATIONS}, "observation_spec: expected a spec of TorchRL"),
        ({"device": "toaster"}, "device: .*toaster"),
        ({"observation_keys": 3}, "observation_keys: .*got 3"),
    ],
)
def test_torchrl_refuses_what_the_first_rows_would_tell(options: dict[str, Any], match: str):
    with pytest.raises((TypeError, ValueError), match=match):
        torchrl_buffer(**options)


@pytest.mark.parametrize("device", ["toaster", "meta"])
@pytest.mark.parametrize("real_ratio", [0.5, 1.0])
def test_stable_baselines3_refuses_devices_that_do_not_exist(device: str, real_ratio: float):
    pytest.importorskip("stable_baselines3")
    from synther_replay.adapters.sb3 import SynthERBuffer

    with pytest.raises(ValueError, match=f"device: .*{device}"):
        SynthERBuffer(100, OBSERVATIONS, ACTIONS, device, real_ratio=real_ratio)


class WithoutRows:
    """Its `fit` takes no transitions."""

    def fit(self) -> None:
        """Nothing."""

    def sample(self, n: int) -> None:
        """Nothing."""


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("real_ratio", [0.5, 1.0])  # the buffer of CORL may get less than 1 later
def test_a_generator_that_cannot_be_fitted_is_refused_at_once(make: Callable[..., Any], real_ratio: float):
    with pytest.raises(TypeError, match=r"generator: expected fit\(transitions\)"):
        make(generator=WithoutRows(), schedule=SCHEDULE, real_ratio=real_ratio)


def sb3(capacity: int, **options: Any) -> None:
    sb3_buffer(capacity, **options)


def torchrl(capacity: int, **options: Any) -> None:
    torchrl_step(torchrl_buffer(capacity, **options))


def skrl(capacity: int, **options: Any) -> None:
    skrl_step(skrl_memory(capacity, **options))


def corl(capacity: int, **options: Any) -> None:
    corl_step(corl_buffer(capacity, **options), np.random.default_rng(0))


@pytest.mark.parametrize("use", [sb3, torchrl, skrl, corl])
def test_a_buffer_that_is_too_small_for_a_refit_is_warned_of(use: Callable[..., None]):
    options = {"generator": "tiny", "schedule": SCHEDULE}
    with pytest.warns(RuntimeWarning, match="real: holds at most 31 transitions, .* at least 32"):
        use(31, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="real: holds")
        use(32, **options)
        use(31, **options, real_ratio=1.0)
