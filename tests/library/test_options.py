"""The options that all adapters share."""

import copy
import pickle
from functools import partial

import pytest
import torch
from gymnasium import spaces

from synther_replay import (
    DiffusionGenerator,
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    TransitionSpec,
)
from synther_replay.options import SourceOptions
from synther_replay.relevance import Curiosity
from synther_replay.relevance.guidance import Guidance
from synther_replay.watching import RefitLog

CAMERA = TransitionSpec.from_spaces(spaces.Box(0, 255, (3, 96, 96), "uint8"), spaces.Box(-1, 1, (2,)))
TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=8, steps=10, batch_size=32, sampling_steps=2)


def test_images_are_refused_at_once_with_the_way_out():
    with pytest.raises(ValueError, match="features"):
        SourceOptions(generator=TINY).build(RingBuffer(CAMERA, 10, device="cpu"), CAMERA)


def test_plain_replay_takes_images_and_builds_no_generator(monkeypatch):
    monkeypatch.setattr(DiffusionGenerator, "__init__", lambda *_, **__: pytest.fail("not needed"))
    source = SourceOptions(real_ratio=1.0).build(RingBuffer(CAMERA, 10, device="cpu"), CAMERA)
    assert source.draw(4) is None
    for twin in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert twin.draw(4) is None


def test_a_generator_that_was_not_needed_at_first_is_made_with_the_same_settings(spec, numbered):
    sources = []
    for ratio in (0.5, 1.0):
        options = SourceOptions(real_ratio=ratio, generator=TINY, seed=3)
        source = options.build(RingBuffer(spec, 100, device="cpu"), spec)
        source.real.add(numbered(50))
        source.real_ratio = 0.5
        source.refit(20)
        sources.append(source)
    assert torch.equal(sources[0].store.rows, sources[1].store.rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator": DiffusionGenerator}, "generator: expected .*class"),
        ({"generator": GeneratorConfig}, "generator: expected"),
        ({"on_refit": RefitLog}, r"on_refit: .*the class RefitLog; pass an object: RefitLog\(\.\.\.\)"),
        ({"real_ratio": True}, "real_ratio: expected a number"),
        (
            {"generator": GeneratorConfig.tiny},
            r"generator: .* not called; pass what it returns: GeneratorConfig\.tiny\(",
        ),
        ({"schedule": RetrainSchedule.fast}, r"schedule: .* not called; pass what it returns: RetrainSchedule\.fast\("),
        ({"schedule": RetrainSchedule}, r"schedule: .*pass an object: RetrainSchedule\("),
        ({"relevance": Curiosity}, r"relevance: .*pass an object: Curiosity\("),
        ({"relevance": Guidance}, r"relevance: .*pass an object: Guidance\("),
        ({"relevance": {"name": Curiosity}}, r"relevance: .*pass an object: Curiosity\("),
        ({"relevance": lambda: Curiosity()}, "relevance: .* does not take that"),
        ({"on_refit": lambda: None}, "on_refit: .* does not take that"),
    ],
)
def test_a_class_or_factory_in_place_of_an_object_is_refused(options, message, spec):
    with pytest.raises((TypeError, ValueError), match=message):
        SourceOptions(**{"generator": TINY, **options})
    with pytest.raises((TypeError, ValueError), match=message):
        SyntheticReplayBuffer(RingBuffer(spec, 10, device="cpu"), **{"generator": TINY, **options})


class Own:
    """A generator without jobs."""

    def fit(self, transitions):
        """Nothing."""

    def sample(self, n):
        """Nothing."""


class WithoutRows(Own):
    """Its `fit` takes no transitions."""

    def fit(self):
        """Nothing."""


class NeverDue:
    """A schedule that does not ask for the last refit."""

    rows = 5

    def is_due(self, steps):
        return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator": Own(), "refit": "background"}, "refit|generator"),
        ({"generator": Own(), "relevance": "curiosity"}, "relevance: Own cannot be guided"),
        ({"generator": WithoutRows()}, r"generator: expected fit\(transitions\)"),
    ],
)
def test_what_a_generator_cannot_do_is_told_before_there_are_rows(options, message):
    for real_ratio in (0.5, 1.0):
        with pytest.raises(TypeError, match=message):
            SourceOptions(**options, real_ratio=real_ratio)


def test_a_stack_is_told_before_there_are_rows(spec):
    with pytest.raises(ValueError, match="stack=1, got 2"):
        SourceOptions(generator=DiffusionGenerator(spec, TINY, device="cpu", stack=2))


@pytest.mark.parametrize("seed", [-1, None, 1.5])
def test_a_wrong_seed_is_named(spec, seed):
    with pytest.raises((TypeError, ValueError), match="seed: expected a whole number"):
        SyntheticReplayBuffer(RingBuffer(spec, 100, device="cpu"), TINY, seed=seed)
    with pytest.raises((TypeError, ValueError), match="seed: expected a whole number"):
        RingBuffer(spec, 100, device="cpu", seed=seed)


def test_a_schedule_that_takes_other_arguments_is_refused(spec):
    for make in (SourceOptions, partial(SyntheticReplayBuffer, RingBuffer(spec, 100, device="cpu"))):
        with pytest.raises(TypeError, match=r"schedule: expected is_due\(steps, last_refit\)"):
            make(generator=TINY, schedule=NeverDue())
