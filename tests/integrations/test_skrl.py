"""The memory of skrl: batches, refits, and real agents that learn with it."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("skrl")

from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed

from synther_replay import GeneratorConfig, Transitions, TransitionSpec
from synther_replay.adapters.skrl import SynthERMemory
from synther_replay.errors import CheckpointError

TINY = {"preset": "tiny", "width": 16, "depth": 1, "steps": 20, "batch_size": 32, "sampling_steps": 2}
PLACE, FORCE = spaces.Box(-2, 2, (3,)), spaces.Box(-1, 1, (2,))
NAMES = ["observations", "states", "actions", "rewards", "next_observations", "next_states", "terminated"]


class Marked:
    """Generates the first real row with a negative reward."""

    def __init__(self):
        self.fits = 0

    def fit(self, transitions):
        self.fits += 1
        self.real = transitions

    def sample(self, n):
        rows = self.real.rows[:1].repeat(n, 1)
        rows[:, self.real.spec.rewards] = -1.0
        return Transitions(self.real.spec, rows)


def created(memory, *, states=None, observations=PLACE, actions=FORCE, integer=False, dtype=torch.float32):
    """Create the tensors of an off-policy agent."""
    for name, size in (("observations", observations), ("states", states)):
        memory.create_tensor(name=name, size=size, dtype=dtype)
        memory.create_tensor(name=f"next_{name}", size=size, dtype=dtype)
    memory.create_tensor(name="actions", size=actions, dtype=torch.int64 if integer else dtype)
    memory.create_tensor(name="rewards", size=1, dtype=torch.float32)
    memory.create_tensor(name="terminated", size=1, dtype=torch.bool)
    return memory


def filled(memory, steps, first=0):
    """Add numbered transitions: the reward is the number, every fifth terminates."""
    n = memory.num_envs
    for step in range(first, first + steps):
        number = torch.arange(step * n, (step + 1) * n, dtype=torch.float32)[:, None]
        tensors = {name: torch.sin(number + torch.arange(tensor.shape[-1])) for name, tensor in memory.tensors.items()}
        tensors |= {"rewards": number, "terminated": number % 5 == 0}
        if not memory.tensors["actions"].is_floating_point():
            tensors["actions"] = number.long() % 3
        memory.add_samples(**tensors)
    return memory


def make(steps=20, *, size=50, num_envs=1, states=None, **options):
    settings = {"generator": Marked(), "schedule": {"start": 10, "rows": 40}, "seed": 0, "replacement": True} | options
    return filled(
        created(SynthERMemory(memory_size=size, num_envs=num_envs, device="cpu", **settings), states=states), steps
    )


def is_real(batch):
    return batch[3][:, 0] >= 0


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 2])
def test_transitions_are_the_oldest_first(num_envs):
    for steps in (30, 50, 70):
        memory = make(steps, num_envs=num_envs)
        first = max(0, steps - 50) * num_envs
        assert memory.transitions().rewards.tolist() == list(range(first, steps * num_envs))


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("real_ratio", "real"), [(0.0, 0), (0.25, 4), (0.5, 8)])
def test_a_batch_holds_exactly_the_share_of_real_rows(real_ratio, real, num_envs):
    memory = make(num_envs=num_envs, real_ratio=real_ratio)
    (batch,) = memory.sample(NAMES, batch_size=16)
    assert int(is_real(batch).sum()) == real
    assert memory.source.refits == 1
    assert memory.source.steps == 20 * num_envs


def test_the_share_of_real_rows_can_be_changed_during_a_run():
    memory = make()
    for ratio, real in ((0.5, 8), (1.0, 16), (0.25, 4)):
        memory.real_ratio = ratio
        (batch,) = memory.sample(NAMES, batch_size=16)
        assert (memory.real_ratio, int(is_real(batch).sum())) == (ratio, real)
    memory = SynthERMemory(memory_size=50, num_envs=1, device="cpu", generator=Marked())
    for ratio in (1, 0.75):
        memory.real_ratio = ratio
    assert filled(created(memory), 20).source.real_ratio == 0.75
    with pytest.raises(ValueError, match="real_ratio: this buffer was made with 1"):
        make(real_ratio=1).real_ratio = 0.5


def test_the_schedule_can_be_changed_during_a_run():
    memory = SynthERMemory(memory_size=50, num_envs=1, device="cpu", generator=Marked())
    memory.schedule = 33
    with pytest.raises(ValueError, match="schedule"):
        memory.schedule = -1
    assert filled(created(memory), 20).source.schedule.every == 33
    memory.schedule = 44
    assert memory.source.schedule.every == memory.schedule.every == 44


def test_before_the_first_refit_all_rows_are_real():
    (batch,) = make(schedule={"start": 100}).sample(NAMES, batch_size=16)
    assert is_real(batch).all()


@pytest.mark.parametrize("states", [None, spaces.Box(-1, 1, (4,))], ids=["plain", "states"])
@pytest.mark.parametrize("start", [10, 1_000])
def test_shapes_and_types_are_those_of_skrl(states, start):
    ours = make(states=states, schedule={"start": start, "rows": 40})
    theirs = filled(created(RandomMemory(memory_size=50, device="cpu", replacement=True), states=states), 20)
    for found, expected in zip(
        ours.sample(NAMES, batch_size=16)[0], theirs.sample(NAMES, batch_size=16)[0], strict=True
    ):
        assert (found is None) == (expected is None)
        if found is not None:
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            found += 1 if found.dtype != torch.bool else True  # tensors of their own, as in skrl


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_tensors_of_other_types_keep_them(dtype):
    memory = SynthERMemory(memory_size=50, device="cpu", generator=Marked(), schedule={"start": 10, "rows": 40}, seed=0)
    (batch,) = filled(created(memory, dtype=dtype), 20).sample(NAMES, batch_size=8)
    assert memory.source.refits == 1
    assert {part.dtype for part in (batch[0], batch[2], batch[4])} == {dtype}


def test_real_rows_are_whole_and_all_of_them_come():
    memory, seen = make(75), set()  # has wrapped around
    for _ in range(100):
        (batch,) = memory.sample(NAMES, batch_size=16)
        numbers = batch[3][is_real(batch)]
        seen |= set(numbers[:, 0].tolist())
        assert torch.equal(batch[0][is_real(batch)], torch.sin(numbers + torch.arange(3)))
        assert torch.equal(batch[6][is_real(batch)], numbers % 5 == 0)
    assert seen == set(range(25, 75))


@pytest.mark.parametrize("start", [10, 1_000])
def test_the_marks_can_be_asked_for(start):
    memory = make(schedule={"start": start, "rows": 40})
    marks, rewards = memory.sample(["is_synthetic", "rewards"], batch_size=16)[0]
    assert (marks.shape, marks.dtype) == ((16, 1), torch.bool)
    assert torch.equal(marks, rewards < 0)


def test_mini_batches_split_the_batch():
    batches = make().sample(NAMES, batch_size=16, mini_batches=3)
    assert [len(batch[3]) for batch in batches] == [6, 5, 5]
    assert sum(int(is_real(batch).sum()) for batch in batches) == 8


def test_indices_of_real_rows_are_told():
    memory = make()
    (batch,) = memory.sample(NAMES, batch_size=16)
    index = memory.get_sampling_indexes()
    assert torch.equal(index >= 0, is_real(batch))
    assert torch.equal(index[index >= 0].float(), batch[3][is_real(batch), 0])


def test_without_replacement_synthetic_rows_fill_what_a_small_memory_lacks():
    (batch,) = make(steps=12, replacement=False).sample(NAMES, batch_size=64)
    assert len(batch[3]) == 64
    assert sorted(batch[3][is_real(batch), 0].tolist()) == list(range(12))


def test_with_real_ratio_one_it_is_the_memory_of_skrl():
    ours = make(real_ratio=1.0, generator=None)
    theirs = filled(created(RandomMemory(memory_size=50, device="cpu", replacement=True)), 20)
    for options in ({}, {"mini_batches": 2}, {"sequence_length": 2}):
        batches = []
        for memory in (ours, theirs):
            torch.manual_seed(0)
            batches.append(memory.sample(NAMES, batch_size=16, **options))
        for found, expected in zip(*batches, strict=True):
            assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_integer_actions_and_nested_observations_keep_their_places():
    nested = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Box(-1, 1, (1,))})
    memory = SynthERMemory(memory_size=200, device="cpu", generator=TINY, schedule={"start": 40, "rows": 200}, seed=0)
    filled(created(memory, observations=nested, actions=spaces.Discrete(3), integer=True), 60)
    (batch,) = memory.sample(NAMES, batch_size=64)
    assert memory.source.refits == 1
    assert [leaf.path for leaf in memory.source.spec.field("observations").leaves] == [("a",), ("b",)]
    assert set(batch[2][:, 0].tolist()) <= {0, 1, 2}
    assert batch[0].abs().max() <= 1


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"real_ratio": 1.5}, ValueError),
        ({"generator": "best"}, ValueError),
        ({"schedule": "often"}, ValueError),
        ({"synthetic_capacity": 0}, ValueError),
        ({"seed": -1}, ValueError),
        ({"unheard": 1}, TypeError),
    ],
)
def test_wrong_options_are_named(options, error):
    with pytest.raises(error, match=next(iter(options))):
        SynthERMemory(memory_size=10, device="cpu", **options)


def test_an_empty_memory_is_refused():
    with pytest.raises(ValueError, match="empty"):
        created(SynthERMemory(memory_size=10, device="cpu")).sample(NAMES, batch_size=4)


def test_sequences_and_other_tensors_are_refused_with_the_way_out():
    memory = created(SynthERMemory(memory_size=50, device="cpu", generator=Marked()))
    memory.create_tensor(name="log_prob", size=1, dtype=torch.float32)
    filled(memory, 20)
    with pytest.raises(ValueError, match=r"sequence_length.*real_ratio=1"):
        memory.sample(NAMES, batch_size=4, sequence_length=2)
    with pytest.raises(ValueError, match=r"log_prob.*real_ratio=1"):
        memory.sample([*NAMES, "log_prob"], batch_size=4)
    assert memory.sample([*NAMES, "unknown"], batch_size=4)[0][-1] is None  # as in skrl


def test_tensors_of_an_on_policy_agent_are_refused():
    memory = SynthERMemory(memory_size=50, device="cpu")
    memory.create_tensor(name="observations", size=PLACE, dtype=torch.float32)
    memory.create_tensor(name="actions", size=FORCE, dtype=torch.float32)
    with pytest.raises(ValueError, match="next_observations"):
        memory.add_samples(observations=torch.zeros(1, 3), actions=torch.zeros(1, 2))


# --- state ------------------------------------------------------------------------------------------------------------


def test_same_seed_same_rows_and_another_seed_others():
    batches = []
    for seed in (3, 3, 4):
        memory = make(60, size=100, generator=TINY, schedule={"start": 40, "rows": 100}, seed=seed, real_ratio=0.0)
        batches.append(memory.sample(["observations"], batch_size=32)[0][0])
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_the_default_seed_is_that_of_skrl():
    set_seed(5)
    assert SynthERMemory(memory_size=10, device="cpu")._options.seed == 5


def test_a_state_continues_exactly():
    options = {"size": 100, "generator": TINY, "schedule": {"start": 40, "every": 30, "rows": 100}}
    first = make(60, **options)
    first.sample(NAMES, batch_size=8)
    state = copy.deepcopy(first.state_dict())
    second = make(0, **options)
    second.load_state_dict(state)
    batches = []
    for memory in (first, second):
        torch.manual_seed(1)
        filled(memory, 40, first=60)
        batches.append(memory.sample(NAMES, batch_size=32)[0])
        assert memory.source.refits == 2
    assert all(a is None or torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_the_state_of_plain_replay_holds_no_generator():
    memory = make(20, real_ratio=1.0, generator=None)
    state = memory.state_dict()
    assert state["source"] is None
    memory.reset()
    memory.load_state_dict(state)
    assert len(memory) == 20


def test_the_state_of_plain_replay_removes_synthetic_rows_of_other_real_rows():
    plain, memory = make(30, real_ratio=1.0, generator=None), make(20)
    memory.sample(NAMES, batch_size=4)
    assert len(memory.source.store)
    memory.load_state_dict(plain.state_dict())
    assert (len(memory), len(memory.source.store), memory.source.steps) == (30, 0, 30)


def test_a_state_of_other_tensors_is_refused_and_changes_nothing():
    memory, other = (make(20, size=size, generator=TINY) for size in (50, 60))
    before = memory.tensors["rewards"].clone()
    with pytest.raises(CheckpointError, match="tensors"):
        memory.load_state_dict(other.state_dict())
    assert torch.equal(memory.tensors["rewards"].nan_to_num(), before.nan_to_num())


def test_a_memory_without_tensors_loads_no_state():
    memory = SynthERMemory(memory_size=50, device="cpu")
    with pytest.raises(CheckpointError, match="no tensors yet; make the agent"):
        memory.load_state_dict(make(20, generator=TINY).state_dict())
    memory.load_state_dict(memory.state_dict())  # without tensors, too


def test_reset_removes_all_rows_and_keeps_the_model():
    memory = make()
    memory.sample(NAMES, batch_size=4)
    memory.reset()
    assert (len(memory), len(memory.source.store)) == (0, 0)
    (batch,) = filled(memory, 5).sample(NAMES, batch_size=8)
    assert is_real(batch).all()


def test_refits_are_those_of_the_schedule_and_are_reported():
    generator, reports = Marked(), []
    schedule = {"start": 10, "every": 20, "rows": 10}
    memory = make(0, size=100, generator=generator, schedule=schedule, on_refit=reports.append)
    for step in range(60):
        filled(memory, 1, first=step)
        memory.sample(NAMES, batch_size=4)
    assert generator.fits == 3
    assert [report.steps for report in reports] == [10, 30, 50]


def test_generation_can_be_guided():
    small = {"width": 16, "depth": 1, "steps": 20, "batch_size": 32, "sampling_steps": 3}
    schedule = {"start": 40, "every": 20, "rows": 30}
    options = {"size": 100, "generator": small, "schedule": schedule, "relevance": {"name": "reward", "top": 0.1}}
    one, two = make(50, **options), make(0, **options)
    one.sample(NAMES, batch_size=16)
    report = one.source.last_refit.relevance
    assert (report.real, report.chosen, report.share) == (24.5, 47.0, 1.0)
    two.load_state_dict(one.state_dict())
    assert two.source.relevance is not None
    with pytest.raises(ValueError, match="did you mean 'reward'"):
        make(0, generator=small, relevance="rewards")


# --- agents -----------------------------------------------------------------------------------------------------------


class Actor(GaussianMixin, Model):
    """A policy of two layers."""

    def __init__(self, **spaces_and_device):
        Model.__init__(self, **spaces_and_device)
        GaussianMixin.__init__(self, clip_actions=True, clip_log_std=True, min_log_std=-5, max_log_std=2)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(self.num_observations, 8), torch.nn.ReLU(), torch.nn.Linear(8, self.num_actions)
        )
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs, role):
        return 2 * torch.tanh(self.net(inputs["observations"])), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    """A value of observation and action, or one for each action."""

    def __init__(self, *, of_actions=False, **spaces_and_device):
        Model.__init__(self, **spaces_and_device)
        DeterministicMixin.__init__(self)
        self.of_actions = of_actions
        inputs, outputs = (
            (self.num_observations, self.num_actions) if of_actions else (self.num_observations + self.num_actions, 1)
        )
        self.net = torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.ReLU(), torch.nn.Linear(8, outputs))

    def compute(self, inputs, role):
        parts = [inputs["observations"]] if self.of_actions else [inputs["observations"], inputs["taken_actions"]]
        return self.net(torch.cat(parts, 1)), {}


def trained(agent_type, config, env_name, models, memory, steps, num_envs=2):
    env = wrap_env(gym.make_vec(env_name, num_envs=num_envs), verbose=False)
    shared = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    agent = agent_type(models=models(shared), memory=memory(env), cfg=config, state_space=env.state_space, **shared)
    trainer = {"timesteps": steps, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    SequentialTrainer(cfg=trainer, env=env, agents=agent).train()
    env.close()
    return agent


def our_memory(env):
    return SynthERMemory(
        memory_size=500, num_envs=env.num_envs, device=env.device, generator=TINY, schedule={"start": 60, "rows": 200}
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sac_learns_with_it(tmp_path):
    set_seed(0)
    config = SAC_CFG(batch_size=32, learning_starts=20)
    config.experiment.directory = str(tmp_path)

    def models(shared):
        critics = {name: Critic(**shared) for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2")}
        return {"policy": Actor(**shared), **critics}

    agent = trained(SAC, config, "Pendulum-v1", models, our_memory, 50)
    source = agent.memory.source
    assert (source.refits, source.steps, len(agent.memory)) == (1, 100, 100)
    assert source.generator.config == GeneratorConfig.of(TINY)
    assert isinstance(source.spec, TransitionSpec)
    assert np.array_equal(source.spec.action_space.high, [2.0])
    assert torch.isfinite(torch.cat([value.reshape(-1) for value in agent.policy.state_dict().values()])).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dqn_learns_with_it_and_saves_it(tmp_path):
    set_seed(0)
    config = DQN_CFG(batch_size=32, learning_starts=20)
    config.experiment.directory = str(tmp_path)

    def models(shared):
        return {name: Critic(of_actions=True, **shared) for name in ("q_network", "target_q_network")}

    agent = trained(DQN, config, "CartPole-v1", models, our_memory, 50)
    assert agent.memory.source.refits == 1
    agent.checkpoint_modules["memory"] = agent.memory
    agent.save(str(tmp_path / "agent.pt"))
    before = agent.memory.state_dict()["tensors"]["observations"]
    agent.memory.reset()
    agent.load(str(tmp_path / "agent.pt"))
    assert len(agent.memory) == 100
    assert torch.equal(agent.memory.tensors["observations"].nan_to_num(), before.nan_to_num())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_on_policy_agent_is_refused(tmp_path):
    config = PPO_CFG(rollouts=8)
    config.experiment.directory = str(tmp_path)

    def models(shared):
        return {"policy": Actor(**shared), "value": Actor(**shared)}

    with pytest.raises(ValueError, match="off-policy"):
        trained(PPO, config, "Pendulum-v1", models, our_memory, 20)
