"""RayGenerator with a real cluster: what it computes, and where it fits in."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_cluster import CONFIG, ON_SECOND, SPEC, transitions

from synther_replay import DiffusionGenerator, RetrainSchedule, RingBuffer, SyntheticReplayBuffer
from synther_replay.distributed import RayGenerator, RayWorker
from synther_replay.distributed import worker as remote
from synther_replay.distributed.actor import GeneratorActor, Origin, SampleRequest
from synther_replay.errors import NotFittedError

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def generator(worker):
    return RayGenerator(SPEC, CONFIG, seed=3, worker=worker)


def test_it_gives_the_rows_of_a_generator_in_this_process(generator, cluster):
    import ray

    local = DiffusionGenerator(SPEC, CONFIG, device="cpu", seed=3)
    for _ in range(2):
        assert generator.fit(transitions()).losses == local.fit(transitions()).losses
        assert torch.equal(generator.sample(300).rows, local.sample(300).rows)
    assert torch.equal(generator.sample(50, seed=9).rows, local.sample(50, seed=9).rows)
    actor = ray.get_actor(generator.worker.name, namespace="synther_replay")
    there = ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    assert there != ray.get_runtime_context().get_node_id()


def test_rows_come_in_chunks(generator):
    generator.fit(transitions())
    *chunks, _ = generator.worker.sample(SampleRequest(generator.origin(generator._model), 700_000, 0))
    assert len(chunks) == 2
    assert np.concatenate(chunks).shape == (700_000, SPEC.dim)


def test_few_chunks_wait_for_a_slow_reader(cluster, monkeypatch):
    import ray

    class Counting(GeneratorActor):
        """Makes many chunks; `ahead` is the largest number of them that were made and not read."""

        made = done = ahead = 0

        def sample(self, request):
            for number in range(request.n):
                self.made += 1
                self.ahead = max(self.ahead, self.made - self.done)
                yield np.full(1, number)

        def tell(self):
            self.done += 1
            return self.ahead

    monkeypatch.setattr(remote, "GeneratorActor", Counting)
    worker = RayWorker(**ON_SECOND).start()
    actor = ray.get_actor(worker.name, namespace="synther_replay")
    ahead = [ray.get(actor.tell.remote()) for _ in worker.sample(SampleRequest(Origin("", "", 0), 100, 0))]
    assert len(ahead) == 100
    assert ahead[-1] <= 2 * remote._CHUNKS


def test_its_files_are_those_of_the_generator_in_this_process(generator, tmp_path):
    generator.fit(transitions())
    generator.save(tmp_path / "model.safetensors")
    local = DiffusionGenerator.load(tmp_path / "model.safetensors", device="cpu")
    again = RayGenerator(SPEC, CONFIG, worker=generator.worker)
    again.load_state_dict(local.state_dict())
    expected = local.sample(100).rows
    for one in (again, pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)):
        assert torch.equal(one.sample(100).rows, expected)


def test_conditions_and_jobs(generator):
    returns = torch.linspace(0, 1, 600)
    job = generator.begin(transitions(), condition=returns, weights=torch.ones(600))
    assert not generator.is_fitted
    job.run()
    assert len(job.sample(10, condition=0.5, guidance=2.0)) == 10
    generator.commit(job)
    assert len(generator.sample(10, condition=0.5)) == 10
    generator.revert(job)
    assert not generator.is_fitted


def test_errors_of_the_generator_are_its_own(generator):
    with pytest.raises(ValueError, match="at least 32"):
        generator.fit(transitions(10))
    with pytest.raises(NotFittedError):
        generator.sample(10)


def test_refits_in_the_background(generator):
    schedule = RetrainSchedule(every=100, start=100, rows=200)
    buffer = SyntheticReplayBuffer(
        RingBuffer(SPEC, 10_000), generator, schedule=schedule, refit="background", lag=20, device="cpu"
    )
    buffer.add(transitions(100))
    assert not buffer.sample(32).is_synthetic.any()
    assert buffer.refits == 0
    buffer.add(transitions(20, seed=1))
    assert buffer.sample(32).is_synthetic.sum() == 16
    assert buffer.refits == 1


def test_a_job_that_is_dropped_holds_neither_learner_nor_actor(worker):
    endless = replace(CONFIG, steps=100_000_000, max_seconds=None, patience=None)
    buffer = SyntheticReplayBuffer(
        RingBuffer(SPEC, 10_000),
        RayGenerator(SPEC, endless, worker=worker),
        schedule=RetrainSchedule(every=100, start=100, rows=200),
        refit="background",
        lag=50,
        device="cpu",
    )
    buffer.add(transitions(100))
    buffer.sample(32)
    assert buffer._pending is not None
    thread = buffer._pending._thread
    buffer.clear()
    buffer.add(transitions(10))
    with pytest.warns(RuntimeWarning, match="discarded: another refit, a load or a removal"):
        buffer.sample(5)
    thread.join(60)
    assert not thread.is_alive()
    assert RayGenerator(SPEC, CONFIG, worker=worker).fit(transitions()).steps == CONFIG.steps


def test_learners_in_other_processes_share_the_actor(cluster):
    import ray

    worker = RayWorker(learners=2, wait=120.0, **ON_SECOND).start()
    generators = [RayGenerator(SPEC, CONFIG, seed=seed, worker=worker) for seed in range(2)]

    @ray.remote(num_cpus=0)
    def learn(generator, rows):
        report = generator.fit(rows)
        return report.losses, generator.sample(10).rows.numpy(), generator

    found = ray.get([learn.remote(one, transitions(seed=seed)) for seed, one in enumerate(generators)])
    assert found[0][0] != found[1][0]
    actor = ray.get_actor(worker.name, namespace="synther_replay")
    sizes = ray.get(actor.__ray_call__.remote(lambda own: [stack for _, _, stack in own._generators]))
    assert sizes == [2, 1]  # one stack for the fits, and a single one for the draws
    assert len(found[0][2].sample(10)) == 10


def test_learners_in_threads_share_the_actor(cluster):
    worker = RayWorker(learners=4, wait=120.0, **ON_SECOND).start()
    generators = [RayGenerator(SPEC, CONFIG, seed=seed, worker=worker) for seed in range(4)]

    def learn(generator):
        return [generator.fit(transitions(seed=generator.seed)).losses for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(learn, generators))
    assert len({losses for own in found for losses in own}) == 20


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stable_baselines3(worker):
    sb3 = pytest.importorskip("stable_baselines3")
    import gymnasium as gym

    from synther_replay.adapters.sb3 import SynthERBuffer, transition_spec

    env = gym.make("Pendulum-v1")
    spec = transition_spec(env.observation_space, env.action_space)
    options = {"generator": RayGenerator(spec, CONFIG, worker=worker), "schedule": {"every": 60, "start": 60}}
    model = sb3.SAC(
        "MlpPolicy", env, learning_starts=50, replay_buffer_class=SynthERBuffer, replay_buffer_kwargs=options
    )
    model.learn(200)
    source = model.replay_buffer.source
    assert source.refits == 3
    assert len(source.store) > 0
    again = pickle.loads(pickle.dumps(model.replay_buffer))
    assert torch.equal(again.source.generator.sample(5).rows, source.generator.sample(5).rows)


def test_a_run_that_nobody_connected_to_ray_survives_its_refits(tmp_path):
    """The cluster that the first refit starts must not end with the thread of that refit."""
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time, warnings
            warnings.simplefilter("ignore")
            from small_cluster import CONFIG, SPEC, transitions
            from synther_replay import RetrainSchedule, RingBuffer, SyntheticReplayBuffer
            from synther_replay.distributed import RayGenerator

            generator = RayGenerator(SPEC, CONFIG, num_gpus=0)
            schedule = RetrainSchedule(every=100, start=100, rows=200)
            options = {"refit": "background", "lag": 50, "device": "cpu"}
            buffer = SyntheticReplayBuffer(RingBuffer(SPEC, 10_000), generator, schedule=schedule, **options)
            for number in range(20):
                buffer.add(transitions(25, seed=number))
                buffer.sample(32)
                time.sleep(0.5)
            print("refits", buffer.refits)
            """
        )
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_ADDRESS"] = "local"  # a cluster of its own
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["refits 4"]), done.stderr[-2_000:]
