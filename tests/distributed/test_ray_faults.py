"""What a learner sees when the actor, its node, the object store or the cluster fails: one warning, and old rows."""

from __future__ import annotations

import os
import signal
import sys
import warnings

import pytest
from small_cluster import CONFIG, ON_SECOND, SPEC, killed_after_submitting, process_of, transitions

import synther_replay
from synther_replay import RetrainSchedule, RingBuffer, SyntheticReplayBuffer
from synther_replay.distributed import RayGenerator, RayWorker, RemoteError

pytest.importorskip("ray")
EVERY = 50


@pytest.fixture(scope="module")
def worker(cluster):
    return RayWorker(**ON_SECOND)


@pytest.fixture
def buffer(worker):
    """A buffer that is refitted at every call of `grow`, and was once."""
    buffer = buffer_of(worker)
    grow(buffer)
    assert (buffer.refits, len(buffer.store)) == (1, 200)
    return buffer


def buffer_of(worker):
    schedule = RetrainSchedule(every=EVERY, start=EVERY, rows=200)
    return SyntheticReplayBuffer(RingBuffer(SPEC, 10_000), RayGenerator(SPEC, CONFIG, worker=worker), schedule=schedule)


def grow(buffer) -> list[str]:
    """Add rows and draw a batch; returns the warnings."""
    buffer.add(transitions(EVERY, seed=len(buffer)))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        assert len(buffer.sample(32)) == 32
    return [str(warning.message) for warning in given if issubclass(warning.category, RuntimeWarning)]


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"synther-replay\[ray\]"):
        RayGenerator(SPEC, CONFIG)


@pytest.mark.slow
def test_an_actor_that_was_killed_between_two_refits_is_waited_for(buffer):
    os.kill(process_of(buffer.generator.worker), signal.SIGKILL)
    assert grow(buffer) == []
    assert buffer.refits == 2


@pytest.mark.slow
def test_an_actor_that_is_killed_in_a_refit_costs_this_refit(buffer):
    rows = buffer.store.state_dict()["rows"]
    with killed_after_submitting(buffer.generator.worker):
        given = grow(buffer)
    assert len(given) == 1
    assert "starts again" in given[0]
    assert (buffer.refits, len(buffer.store)) == (1, 200)
    assert (buffer.store.state_dict()["rows"] == rows).all()
    assert grow(buffer) == []
    assert buffer.refits == 2


@pytest.mark.slow
def test_a_node_that_leaves_costs_one_warning_until_another_comes(cluster):
    node = cluster.add_node(num_cpus=1, resources={"third": 1})
    worker = RayWorker(num_gpus=0, resources={"third": 1}, start_seconds=30)
    buffer = buffer_of(worker)
    assert grow(buffer) == []
    worker._start_seconds = 1.0
    cluster.remove_node(node)
    given = [warning for _ in range(4) for warning in grow(buffer)]
    assert len(given) == 1
    assert (buffer.refits, len(buffer.store)) == (1, 200)
    worker._start_seconds, worker._was_late = 60.0, False
    node = cluster.add_node(num_cpus=1, resources={"third": 1})
    assert grow(buffer) == []
    assert buffer.refits == 2
    cluster.remove_node(node)


@pytest.mark.slow
def test_an_actor_without_a_place_is_an_error_that_says_so(cluster):
    generator = RayGenerator(SPEC, CONFIG, worker=RayWorker(num_gpus=64, start_seconds=0.5))
    with pytest.raises(RemoteError, match="64"):
        generator.fit(transitions())


@pytest.mark.slow
def test_a_full_object_store_costs_one_warning(buffer, monkeypatch):
    import ray

    def full(_):
        raise ray.exceptions.ObjectStoreFullError("full")

    with monkeypatch.context() as patched:
        patched.setattr(ray, "put", full)
        assert len([warning for _ in range(3) for warning in grow(buffer)]) == 1
    assert grow(buffer) == []
    assert buffer.refits == 2


@pytest.mark.slow
def test_another_version_there_is_one_warning(buffer, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(synther_replay, "__version__", "99.0")
        given = [warning for _ in range(3) for warning in grow(buffer)]
    assert len(given) == 1
    assert "99.0" in given[0]
    assert synther_replay.__version__ in given[0]
    assert grow(buffer) == []


@pytest.mark.slow
def test_the_next_connection_has_another_actor(buffer, cluster):
    import ray

    ray.shutdown()
    ray.init(address=cluster.address, log_to_driver=False)
    assert grow(buffer) == []
    assert buffer.refits == 2


@pytest.mark.slow
def test_an_actor_that_was_ended_is_replaced(buffer):
    import ray

    ray.kill(ray.get_actor(buffer.generator.worker.name, namespace="synther_replay"))
    assert grow(buffer) == []
    assert buffer.refits == 2


@pytest.mark.soak
def test_a_hundred_kills(buffer):
    refits = buffer.refits
    for number in range(100):
        if number % 2:
            os.kill(process_of(buffer.generator.worker), signal.SIGKILL)
            grow(buffer)
        else:
            with killed_after_submitting(buffer.generator.worker):
                grow(buffer)
        assert len(buffer.store) == 200
    assert buffer.refits >= refits + 50
