"""Protocols: isinstance by attributes, the same with every Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from synther_replay import DiffusionGenerator, GeneratorConfig, RetrainSchedule, RingBuffer
from synther_replay.data.stream import ArrayRows, RowStream
from synther_replay.options import SourceOptions
from synther_replay.protocols import Generator, JobGenerator, RealBuffer, RealTransitions, Schedule, Stateful
from synther_replay.relevance import Curiosity
from synther_replay.relevance.protocol import Learner, Relevance
from synther_replay.watching.writers import RefitWriter


class PassesOn:
    """Has the attributes of another object."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Written:
    def write(self, record: Any) -> None:
        pass


@pytest.fixture(scope="module")
def parts(spec: Any) -> dict[str, Any]:
    return {
        "real": RingBuffer(spec, 10, device="cpu"),
        "generator": DiffusionGenerator(spec, GeneratorConfig.tiny(width=8, depth=1), device="cpu"),
        "schedule": RetrainSchedule(every=10, rows=10, start=10),
        "relevance": Curiosity(hidden=8),
        "stream": ArrayRows(spec, np.zeros((3, spec.dim))),
        "writer": Written(),
    }


FOLLOWED = [
    ("real", {RealTransitions, RealBuffer, Stateful}),
    ("generator", {Generator, JobGenerator, Stateful}),
    ("schedule", {Schedule}),
    ("relevance", {Relevance, Learner, Stateful}),
    ("stream", {RowStream}),
    ("writer", {RefitWriter}),
]


@pytest.mark.parametrize(("name", "followed"), FOLLOWED)
def test_what_passes_attributes_on_follows_the_same_protocols(parts, name, followed):
    protocols = set[Any]().union(*(each for _, each in FOLLOWED))
    for part in (parts[name], PassesOn(parts[name])):
        assert {protocol for protocol in protocols if isinstance(part, protocol)} == followed


def test_a_method_that_is_none_is_missing(parts):
    wrapper = PassesOn(parts["generator"])
    wrapper.begin = None
    assert isinstance(wrapper, Generator)
    assert not isinstance(wrapper, JobGenerator)


def test_classes_that_implement_a_protocol_are_told_apart(parts):
    class Mine(Generator):
        pass

    assert isinstance(Mine(), Mine)
    assert isinstance(Mine(), Generator)
    assert not isinstance(parts["generator"], Mine)
    assert not isinstance(PassesOn(Mine()), Mine)


def test_options_take_what_passes_attributes_on(parts):
    SourceOptions(generator=PassesOn(parts["generator"]), schedule=PassesOn(parts["schedule"]))
    options = SourceOptions(relevance=PassesOn(parts["relevance"]))
    assert options.relevance.relevance.inner is parts["relevance"]
