"""States of a generator: what must agree, what may differ, and what a forged or foreign one cannot do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

from synther_replay import (
    CheckpointError,
    DiffusionGenerator,
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay import config as config_module
from synther_replay import generator as generator_module
from synther_replay.generator import KIND
from synther_replay.model import engine
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

SPEC = TransitionSpec.from_spaces(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=16, steps=20, refit_steps=10, batch_size=32, sampling_steps=4)
MEANING = [
    {"unsquash_actions": True},
    {"normalise_rewards": False},
    {"find_limits": True},
    {"solver": "heun"},
    {"sampling_steps": 24},
    {"sigma_min": 0.1},
    {"sigma_max": 10.0},
    {"rho": 5.0},
    {"churn": 3.0},
    {"eta": 0.5},
    {"solver": "heun", "sampling_steps": 9},
]
NETWORK = [{"width": 24}, {"depth": 2}, {"embedding": 24}, {"fourier": 8}]
FREE = [
    {"steps": 30, "refit_steps": 11, "warm_start": False, "batch_size": 16, "learning_rate": 0.1, "betas": (0.5, 0.6)},
    {"gradient_clip": 2.0, "average_decay": 0.5, "average_every": 5, "noise_mean": 0.0, "noise_std": 1.0},
    {"held_out": 0.1, "evaluate_every": 7, "patience": None, "max_seconds": 9.0, "large_batch_size": 8},
    {"precision": "fp32", "chunk": 50},
]


def rows(n: int = 100) -> Transitions:
    made = torch.rand(n, SPEC.dim, generator=torch.Generator().manual_seed(0)) * 2 - 1
    made[:, -1] = (made[:, -1] > 0.5).float()
    return Transitions(SPEC, made)


def fitted(seed: int = 0, **changes: Any) -> DiffusionGenerator:
    generator = DiffusionGenerator(SPEC, replace(TINY, **changes), device="cpu", seed=seed)
    generator.fit(rows())
    return generator


# --- settings ---------------------------------------------------------------------------------------------------------


def test_every_setting_that_may_differ_exists() -> None:
    names = {field.name for field in fields(GeneratorConfig)}
    groups = config_module._NETWORK, config_module._TRAINING, config_module._MACHINE
    assert set.union(*groups) <= names
    assert sum(map(len, groups)) == len(set.union(*groups))


@pytest.mark.parametrize("changes", [*MEANING, *NETWORK], ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_state_with_another_meaning_is_refused_with_both_sides_and_changes_nothing(
    same: Any, changes: dict[str, Any], swapped: bool
) -> None:
    target, saved = fitted(1), fitted(**changes)
    if swapped:
        target, saved = saved, target
    before = target.state_dict()
    with pytest.raises(CheckpointError) as caught:
        target.load_state_dict(saved.state_dict())
    for name in changes:
        for side in (target, saved):
            assert f"{getattr(side.config, name)}" in str(caught.value)
        assert name in str(caught.value)
    assert same(target.state_dict(), before)


@pytest.mark.parametrize("changes", FREE, ids=str)
def test_settings_of_training_and_machine_may_differ_and_those_of_the_object_stay(
    same: Any, changes: dict[str, Any]
) -> None:
    target, saved = fitted(1, **changes), fitted()
    target.load_state_dict(saved.state_dict())
    assert target.config == replace(TINY, **changes)
    expected, found = saved.state_dict(), target.state_dict()
    assert found.pop("config") != expected.pop("config")
    assert same(found, expected)
    assert torch.equal(target.sample(20).rows, saved.sample(20).rows)


def test_network_settings_may_differ_if_they_give_the_same_network() -> None:
    target, saved = fitted(1, squeeze_rows=True), fitted()
    target.load_state_dict(saved.state_dict())
    assert torch.equal(target.sample(20).rows, saved.sample(20).rows)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [({"unsquash_actions": True}, {}), ({"sampling_steps": 24}, {"solver": "heun", "sampling_steps": 4})],
    ids=str,
)
def test_buffer_refuses_a_file_with_another_meaning(tmp_path: Path, same: Any, theirs: Any, ours: Any) -> None:
    def make(changes: dict[str, Any]) -> SyntheticReplayBuffer:
        generator = DiffusionGenerator(SPEC, replace(TINY, **changes), device="cpu")
        schedule = RetrainSchedule(every=50, rows=20, start=50)
        buffer = SyntheticReplayBuffer(RingBuffer(SPEC, 100, device="cpu"), generator, schedule=schedule)
        buffer.add(rows())
        buffer.sample(8)
        return buffer

    saved, target = make(theirs), make(ours)
    saved.save(tmp_path / "file")
    before = target.state_dict()
    with pytest.raises(CheckpointError, match=next(iter(theirs))):
        target.load(tmp_path / "file")
    assert same(target.state_dict(), before)


# --- all or nothing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["checked", "weights"])
def test_interrupted_load_changes_nothing(same: Any, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    target, saved = fitted(1), fitted()
    before = target.state_dict()
    whole = getattr(target._engine, function)

    def interrupted(*arguments: Any) -> None:
        whole(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(target._engine, function, interrupted)
        target.load_state_dict(saved.state_dict())
    assert same(target.state_dict(), before)
    assert torch.equal(target.sample(20).rows, fitted(1).sample(20).rows)


def test_failed_move_changes_nothing(same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, twin = fitted(), fitted()
    before = generator.state_dict()
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(generator_module, "resolve_device", lambda _: torch.device("meta"))
        patch.setattr(generator, "_new_engine", lambda device: (_ for _ in ()).throw(MemoryError))
        generator.to("elsewhere")
    assert generator.device == torch.device("cpu")
    assert same(generator.state_dict(), before)
    assert torch.equal(generator.sample(20).rows, twin.sample(20).rows)


# --- forged files -----------------------------------------------------------------------------------------------------

HUGE = 10**10
FORGED = {
    "width": ("config", "width", 2**20),
    "depth": ("config", "depth", HUGE),
    "embedding": ("config", "embedding", 2**30),
    "fourier": ("config", "fourier", HUGE),
    "stack": ("stack", None, HUGE),
    "no number": ("stack", None, "1"),
    "no stack": ("stack", None, [1]),
    "seed": ("seed", None, -1),
    "large seed": ("seed", None, 1.5),
    "no config": ("config", None, []),
    "no weights": ("trainer", None, {}),
    "weights": ("trainer", "average", torch.zeros(1, 7)),
    "statistics": ("codec", "mean", torch.zeros(2, 1, 9)),
    "no statistics": ("codec", None, {}),
    "observations": ("spec", "observation_space", {"type": "Box", "shape": [HUGE], "low": 0, "high": 1}),
    "nested": (
        "spec",
        "action_space",
        {"type": "Tuple", "spaces": [{"type": "MultiBinary", "shape": [2**15]}] * 3},
    ),
    "conditions": ("conditions", None, {"mean": torch.zeros(1, 1, 10**5), "scale": torch.ones(1, 1, 10**5)}),
    "images": ("spec", "observation_space", {"type": "Box", "shape": [2**9, 2**8], "low": 0, "high": 1}),
}


@pytest.mark.parametrize(("part", "key", "value"), FORGED.values(), ids=FORGED)
def test_forged_file_is_refused_before_memory_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, key: str | None, value: Any
) -> None:
    fitted().save(tmp_path / "file")
    state = load_checkpoint(tmp_path / "file", KIND)
    if part == "spec":
        value = {"dtype": "float32", **value}
    if key is None:
        state[part] = value
    else:
        state[part][key] = value
    save_checkpoint(tmp_path / "file", KIND, state)
    built, genuine = [], engine.StackTrainer
    monkeypatch.setattr(engine, "StackTrainer", lambda *a, **o: (built.append(a), genuine(*a, **o))[1])
    with pytest.raises(CheckpointError):
        DiffusionGenerator.load(tmp_path / "file", device="cpu")
    assert all(shape.parameters * stack < 10**6 for shape, stack, *_ in built)


# --- pickles ----------------------------------------------------------------------------------------------------------


def test_pickle_made_on_a_gpu_is_read_without_one(on_gpu: Any, same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = fitted()
    state = generator.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(DiffusionGenerator, "state_dict", lambda _: on_gpu(state))
        generator.device = torch.device("cuda", 99)
        pickled = pickle.dumps(generator)
        copied = copy.deepcopy(generator)
    for loaded in (pickle.loads(pickled), copied):
        assert loaded.device == torch.device("cpu")
        assert same(loaded.state_dict(), state)


def test_transitions_pickled_on_a_gpu_are_read_without_one(on_gpu: Any) -> None:
    held = Transitions(SPEC, on_gpu(rows().rows))
    assert torch.equal(pickle.loads(pickle.dumps(held)).rows, rows().rows)


def test_copies_of_transitions_are_equal_and_apart() -> None:
    held = rows()
    for copied in (pickle.loads(pickle.dumps(held)), copy.deepcopy(held)):
        assert copied.spec == SPEC
        assert torch.equal(copied.rows, held.rows)
        copied.rows.zero_()
    assert held.rows.any()
