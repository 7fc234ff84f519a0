"""Stubs for an online run without processes and with small networks."""

import functools

from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.agents.policy import policies_of
from synther_replay.benchmarks.agents.sac import Hyperparameters
from synther_replay.benchmarks.environments.parallel import EnvGroup
from synther_replay.benchmarks.online import actors as online_actors
from synther_replay.benchmarks.online import run as online_run


class Environments:
    """The environments of all agents in this process."""

    def __init__(self, task, seeds, *, workers):
        self.group = EnvGroup(task.name, seeds)
        self.observations, self.replay_to = self.group.observations, self.group.replay_to

    def begin_step(self, actions):
        self.actions = actions.copy()

    def end_step(self):
        return self.group.step(self.actions)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Evaluator:
    """An evaluator whose results are ready only when waited for."""

    def __init__(self, task, seeds, *, episodes, workers):
        self.task, self.seeds, self.episodes = task, seeds, episodes
        self.results, self.pending = {}, {}

    def submit(self, step, weights):
        self.pending[step] = policies_of(weights)

    def collect(self, *, wait=False):
        ready = list(self.pending) if wait else []
        for step in ready:
            pairs = zip(self.pending.pop(step), self.seeds, strict=True)
            self.results[step] = [mean_return(self.task, policy, seed, self.episodes) for policy, seed in pairs]
        return ready

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def install(monkeypatch, *, chunk=50):
    """Let `OnlineRun` use these stubs, with short chunks and a fixed commit."""
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    monkeypatch.setattr(online_run, "Environments", Environments)
    monkeypatch.setattr(online_run, "Evaluator", Evaluator)
    monkeypatch.setattr(online_run, "CHUNK", chunk)
    monkeypatch.setattr(online_actors, "Hyperparameters", functools.partial(Hyperparameters, hidden=16, batch_size=32))
