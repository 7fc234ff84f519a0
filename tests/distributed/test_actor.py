"""What the actor computes, without Ray: fits of several learners as a stack, and each apart where they differ."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest
import torch
from small_cluster import CONFIG, SPEC, transitions

from synther_replay import DiffusionGenerator
from synther_replay.distributed.actor import FitRequest, GeneratorActor, Origin, SampleRequest
from synther_replay.distributed.stacking import as_arrays, as_tensors, member, signature, stacked
from synther_replay.errors import DivergedError

SPEC_TEXT, CONFIG_TEXT = json.dumps(SPEC.to_json()), json.dumps(CONFIG.to_json())


def origin(seed: int, key: str | None = None) -> Origin:
    return Origin(SPEC_TEXT, CONFIG_TEXT, seed, key or "", None if key is None else ["the actor has it"])


def fit(actor, seed, rows, *, before=None, key=None, **options):
    request = FitRequest(origin(seed, before), key or f"fit-{seed}", np.empty(0), options=options)
    return actor.fit(request, rows.rows.numpy(), None, None)


def fit_together(actor, rows, **options):
    with ThreadPoolExecutor(len(rows)) as pool:
        fits = [pool.submit(fit, actor, seed, own, **options) for seed, own in enumerate(rows)]
        return [future.result() for future in fits]


def sampled(actor, seed, n=500):
    *chunks, counts = actor.sample(SampleRequest(origin(seed, f"fit-{seed}"), n, 0))
    return np.concatenate(chunks), counts


def stacks(spied) -> list[int]:
    return [(call.args[0].rows.ndim == 3 and len(call.args[0].rows)) or 1 for call in spied.call_args_list]


def test_alone_it_computes_what_a_generator_computes():
    actor, local = GeneratorActor("cpu"), DiffusionGenerator(SPEC, CONFIG, device="cpu", seed=5)
    _, report = fit(actor, 5, transitions())
    assert report.losses == local.fit(transitions()).losses
    rows, (draws, rejected) = sampled(actor, 5)
    assert (torch.from_numpy(rows) == local.sample(500).rows).all()
    assert (draws, rejected) == (1, 0)


def test_learners_that_come_together_are_one_stack():
    actor = GeneratorActor("cpu", learners=3, wait=60.0)
    with patch.object(DiffusionGenerator, "fit", autospec=True, side_effect=DiffusionGenerator.fit) as spied:
        results = fit_together(actor, [transitions(seed=seed) for seed in range(3)])
    assert [len(call.args[1].rows) for call in spied.call_args_list] == [3]
    assert [state["seed"] for state, _ in results] == [0, 1, 2]
    assert len({report.loss for _, report in results}) == 3
    rows = [sampled(actor, seed)[0] for seed in range(3)]
    assert not np.array_equal(rows[0], rows[1])


def test_the_order_of_arrival_does_not_matter():
    rows, found = [transitions(seed=seed) for seed in range(3)], []
    for order in ((0, 1, 2), (2, 0, 1)):
        actor = GeneratorActor("cpu", learners=3, wait=60.0)
        requests = [FitRequest(origin(seed), f"fit-{seed}", rows[seed].rows.numpy()) for seed in order]
        results = actor._fit_all(requests)
        found.append(dict(zip(order, [report.losses for _, report in results], strict=True)))
    assert found[0] == found[1]


def test_a_second_fit_goes_on_from_the_states_of_all():
    actor = GeneratorActor("cpu", learners=2, wait=60.0)
    rows = [transitions(seed=seed) for seed in range(2)]
    fit_together(actor, rows)
    with ThreadPoolExecutor(2) as pool:
        again = [pool.submit(fit, actor, seed, rows[seed], before=f"fit-{seed}", key=f"new-{seed}") for seed in (0, 1)]
        reports = [future.result()[1] for future in again]
    assert [report.from_scratch for report in reports] == [False, False]


def test_a_learner_that_missed_a_fit_is_in_the_stack_again():
    actor = GeneratorActor("cpu", learners=2, wait=5.0)
    rows = [transitions(seed=seed) for seed in range(2)]
    fit_together(actor, rows)
    fit(actor, 0, rows[0], before="fit-0", key="more")
    with (
        ThreadPoolExecutor(2) as pool,
        patch.object(DiffusionGenerator, "fit", autospec=True, side_effect=DiffusionGenerator.fit) as spied,
    ):
        again = [
            pool.submit(fit, actor, seed, rows[seed], before=before, key=f"new-{seed}")
            for seed, before in ((0, "more"), (1, "fit-1"))
        ]
        assert all(np.isfinite(future.result()[1].loss) for future in again)
    assert [len(call.args[1].rows) for call in spied.call_args_list] == [2]


def test_learners_with_other_numbers_of_rows_are_fitted_apart():
    actor = GeneratorActor("cpu", learners=2, wait=60.0)
    results = fit_together(actor, [transitions(600), transitions(700)])
    assert [report.rows for _, report in results] == [600, 700]


def test_one_that_diverges_does_not_take_the_others_along():
    actor = GeneratorActor("cpu", learners=2, wait=60.0)
    plain = DiffusionGenerator.fit

    def fit_or_diverge(self, rows, **options):
        if self.stack > 1 or float(rows.rows[0, 0]) == 0.5:
            raise DivergedError("training diverged")
        return plain(self, rows, **options)

    bad = transitions(seed=1)
    bad.rows[0, 0] = 0.5
    with patch.object(DiffusionGenerator, "fit", fit_or_diverge), ThreadPoolExecutor(2) as pool:
        good, diverged = (pool.submit(fit, actor, seed, rows) for seed, rows in enumerate((transitions(), bad)))
        assert good.result()[1].rows == 600
        with pytest.raises(DivergedError):
            diverged.result()


def test_states_of_a_stack_are_those_of_its_members():
    generator = DiffusionGenerator(SPEC, CONFIG, device="cpu", stack=2)
    generator.fit(type(transitions())(SPEC, torch.stack([transitions(seed=seed).rows for seed in range(2)])))
    state = generator.state_dict()
    parts = [as_tensors(as_arrays(member(state, number))) for number in range(2)]
    assert signature(parts[0]) == signature(parts[1]) != signature(state)
    again = stacked(parts, seed=state["seed"])
    other = DiffusionGenerator(SPEC, CONFIG, device="cpu", stack=2)
    other.load_state_dict(again)
    assert (other.sample(100).rows == generator.sample(100).rows).all()
    alone = DiffusionGenerator(SPEC, CONFIG, device="cpu")
    alone.load_state_dict(parts[1])
    assert len(alone.sample(100)) == 100


def test_equal_seeds_have_their_places_by_their_rows():
    """The result of a learner does not depend on who came first."""
    found = []
    for order in ((0, 1), (1, 0)):
        actor = GeneratorActor("cpu", learners=2)
        requests = [
            FitRequest(origin(0), f"fit-{number}", transitions(seed=number).rows.numpy(), options={})
            for number in order
        ]
        results = dict(zip(order, actor._fit_all(requests), strict=True))
        found.append([results[number][0]["trainer"]["average"] for number in (0, 1)])
    assert all(np.array_equal(one, two) for one, two in zip(*found, strict=True))
    assert not np.array_equal(*found[0])


def test_a_learner_whose_state_is_lost_fails_alone(monkeypatch):
    actor = GeneratorActor("cpu", learners=2)
    state = actor._state

    def lost(asked):
        if asked.seed == 1:
            raise RuntimeError("the object is lost")
        return state(asked)

    monkeypatch.setattr(actor, "_state", lost)
    requests = [FitRequest(origin(seed), f"fit-{seed}", transitions().rows.numpy(), options={}) for seed in (0, 1)]
    well, failed = actor._fit_all(requests)
    assert well[0]["seed"] == 0
    assert "lost" in str(failed)


def test_a_fit_that_is_dropped_ends_and_leaves_the_actor_free():
    actor, begun = GeneratorActor("cpu"), threading.Event()
    plain = DiffusionGenerator.fit

    def fit_and_tell(self, rows, **options):
        begun.set()
        return plain(self, rows, **options)

    with patch.object(DiffusionGenerator, "fit", fit_and_tell), ThreadPoolExecutor(1) as pool:
        endless = pool.submit(fit, actor, 0, transitions(), steps=10_000_000, max_seconds=1e9)
        begun.wait()
        actor.drop("fit-0")
        with pytest.raises(RuntimeError, match="dropped"):
            endless.result()
    assert fit(actor, 0, transitions(), key="next")[1].steps == CONFIG.steps


def test_a_dropped_fit_is_not_in_the_stack_of_the_others():
    requests = [FitRequest(origin(seed), f"fit-{seed}", transitions(seed=seed).rows.numpy()) for seed in (0, 1)]
    actor = GeneratorActor("cpu", learners=2)
    actor.drop("fit-0")
    failed, well = actor._fit_all(requests)
    assert "dropped" in str(failed)
    assert well[1].losses == fit(GeneratorActor("cpu"), 1, transitions(seed=1))[1].losses


def test_a_dropped_draw_is_not_computed():
    actor = GeneratorActor("cpu")
    fit(actor, 0, transitions())
    request = SampleRequest(origin(0, "fit-0"), 100, 0)
    actor.drop(request.key)
    with pytest.raises(RuntimeError, match="dropped"):
        list(actor.sample(request))
