"""BC and DrQ+BC: rows of an archive, latents through the encoder seam, heads on latents, runs that resume."""

import json
import time

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
from synther_replay import TransitionSpec
from synther_replay.benchmarks.common.resumable import checkpoint_path
from synther_replay.benchmarks.pixels.archive import Archive
from synther_replay.benchmarks.pixels.codec import CodecSettings, encode
from synther_replay.benchmarks.pixels.dataset import PixelRows
from synther_replay.benchmarks.pixels.learners import Learner, latents_as_they_are
from synther_replay.benchmarks.pixels.networks import FEATURES, Agent
from synther_replay.benchmarks.pixels.settings import LearnerSettings
from synther_replay.benchmarks.pixels.training import CHUNK, Limits, Training, load_weights, save_weights
from synther_replay.common.seeding import generator_for

CPU = torch.device("cpu")
GAMMA = 0.9


def archive(*lengths, terminated=False, side=84):
    """Episodes of so many actions with frames of noise."""
    rng, parts = np.random.default_rng(0), []
    for length in lengths:
        frames = rng.integers(0, 255, (length + 1, side, side, 3), np.uint8)
        actions, rewards = rng.uniform(-1, 1, (length, 2)).astype("f4"), rng.uniform(0, 1, length).astype("f4")
        parts.append(Archive.of_episode(encode(frames, CodecSettings(speed=10)), actions, rewards, terminated, {}))
    return Archive.joined(parts, {})


def pixel_rows(source, n_step=3):
    return PixelRows(source, n_step=n_step, gamma=GAMMA, device=CPU)


def settings(algo, **changes):
    return LearnerSettings(algo, **{"updates": 300, "batch_size": 64, "hidden": 32, "learning_rate": 3e-3, **changes})


def latent_rows(count=2_000, critic=True, **columns):
    """Rows of random latents with one action; columns are functions of latents and actions."""
    width = FEATURES * (1 + critic)
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (width,)), gym.spaces.Box(-1, 1, (1,)))
    rows = torch.rand(count, spec.dim, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows[:, spec.terminated] = 1.0
    for name, column in columns.items():
        rows[:, getattr(spec, name)] = column(rows[:, spec.observations], rows[:, spec.actions])
    return spec, rows


def heads(spec, rows, chosen):
    return Learner(rows, spec, latents_as_they_are, chosen, of_images=False)


def acts(learner, rows):
    """Actions of a policy for the latents of rows."""
    with torch.no_grad():
        return learner.agent.actions(rows[:, learner.spec.observations])


class TestRows:
    def test_span_three_steps_within_an_episode(self):
        source = archive(4, 5, side=16)
        rows = pixel_rows(source).buffer.transitions()
        assert rows.observations[:, 0].tolist() == [0, 1, 5, 6, 7]
        assert rows.next_observations[:, 0].tolist() == [3, 4, 8, 9, 10]
        np.testing.assert_array_equal(rows.actions.numpy(), source.action[[1, 2, 6, 7, 8]])
        expected = sum(GAMMA**k * source.reward[np.array([0, 1, 5, 6, 7]) + 1 + k] for k in range(3))
        np.testing.assert_allclose(rows.rewards.numpy(), expected, rtol=1e-6)
        assert not rows.terminated.any()

    def test_termination_is_that_of_the_last_step(self):
        rows = pixel_rows(archive(4, terminated=True, side=16)).buffer.transitions()
        assert rows.terminated.tolist() == [False, True]

    def test_episodes_that_are_too_short_are_refused(self):
        with pytest.raises(ValueError, match="n_step: no episode is longer than 3 steps"):
            pixel_rows(archive(2, side=16))


class TestLatents:
    @pytest.mark.parametrize(("algo", "trunks"), [("bc", 1), ("drqbc", 2)])
    def test_are_the_outputs_of_the_trunks_for_shifted_images(self, algo, trunks):
        rows = pixel_rows(archive(5))
        agent = Agent(2, 16, has_critic=algo == "drqbc", of_images=True)
        found, real = rows.latents(agent, seed=4), rows.buffer.transitions()
        assert found.spec.observation_dim == trunks * FEATURES and len(found) == len(real) == 3
        assert found.observations.abs().max() <= 1
        for name in ("actions", "rewards", "terminated"):
            assert torch.equal(getattr(found, name), getattr(real, name))
        rng = generator_for(CPU, 4, 2)
        rows.view(torch.zeros(1, 1), rng)  # the buffer encodes one observation to learn the width
        with torch.no_grad():
            images = rows.view(real.observations, rng)
            encoded = agent.encode(images)
            own = [agent.trunk, *([agent.critic.trunk] if agent.critic else [])]
            torch.testing.assert_close(found.observations, torch.cat([trunk(encoded) for trunk in own], 1))

    def test_heads_on_latents_act_as_the_agent_of_images(self):
        rows = pixel_rows(archive(5))
        whole = Agent(2, 16, has_critic=True, of_images=True, seed=1)
        of_latents = Agent(2, 16, has_critic=True, of_images=False, seed=2)
        of_latents.head.load_state_dict(whole.head.state_dict())
        of_latents.critic.heads.load_state_dict(whole.critic.heads.state_dict())
        seen, actions = rows.view(torch.arange(4)[:, None], torch.Generator().manual_seed(0)), torch.zeros(4, 2)
        with torch.no_grad():
            latents, encoded = whole.latents(seen), whole.encode(seen)
            torch.testing.assert_close(of_latents.actions(latents), whole.actions(encoded))
            torch.testing.assert_close(of_latents.critic(latents, actions), whole.critic(encoded, actions))


class TestLearners:
    @pytest.mark.parametrize("algo", ["bc", "drqbc"])
    def test_heads_clone_actions(self, algo):
        columns = {"actions": lambda latents, _: 0.8 * latents[:, :1], "rewards": lambda latents, _: 0 * latents[:, :1]}
        spec, rows = latent_rows(critic=algo == "drqbc", **columns)
        learner = heads(spec, rows, settings(algo, alpha=0.0))
        before = (acts(learner, rows) - rows[:, spec.actions]).square().mean()
        for _ in range(300):
            learner.learn()
        after = (acts(learner, rows) - rows[:, spec.actions]).square().mean()
        assert after < 0.2 * before and after < 0.05

    def test_drqbc_prefers_actions_of_higher_value(self):
        spec, rows = latent_rows(rewards=lambda _, actions: actions)  # data: uniform actions, the best is 1
        cloning, greedy = (heads(spec, rows, settings("drqbc", alpha=alpha)) for alpha in (0.0, 10.0))
        for learner in (cloning, greedy):
            for _ in range(300):
                learner.learn()
        assert abs(acts(cloning, rows).mean()) < 0.2
        assert acts(greedy, rows).mean() > 0.6

    def test_values_bootstrap_unless_the_episode_ended(self):
        means = {}
        for ended in (0.0, 1.0):
            spec, rows = latent_rows(rewards=lambda latents, _: 0 * latents[:, :1] + 1)
            rows[:, spec.terminated] = ended
            learner = heads(spec, rows, settings("drqbc", gamma=0.5, n_step=1, target_speed=0.2))
            for _ in range(300):
                learner.learn()
            with torch.no_grad():
                means[ended] = learner.agent.critic(rows[:, spec.observations], rows[:, spec.actions]).mean()
        assert means[1.0] == pytest.approx(1, abs=0.1) and means[0.0] == pytest.approx(2, abs=0.2)

    def test_the_policy_loss_leaves_encoder_and_critic_alone(self):
        rows = pixel_rows(archive(5))
        learner = Learner(
            rows.buffer.transitions().rows, rows.spec, rows.view, settings("drqbc", batch_size=2), of_images=True
        )
        before = learner.state_dict()
        encoded = learner.agent.encode(rows.view(torch.tensor([[1], [2]]), learner.rng)).detach()
        learner._update_policy(encoded, torch.zeros(2, 2))
        changed = {name for name, tensor in learner.state_dict().items() if not torch.equal(tensor, before[name])}
        assert not [name for name in changed if name.startswith(("agent.encoder", "agent.critic", "target", "critic"))]
        assert {"agent.trunk.0.weight", "agent.head.0.weight"} <= changed

    @pytest.mark.parametrize("algo", ["bc", "drqbc"])
    def test_an_update_on_images_changes_all_networks(self, algo):
        rows = pixel_rows(archive(5))
        learner = Learner(
            rows.buffer.transitions().rows, rows.spec, rows.view, settings(algo, batch_size=2), of_images=True
        )
        before = learner.state_dict()
        learner.learn()
        after = learner.state_dict()
        same = [name for name in before if name.endswith("weight") and torch.equal(before[name], after[name])]
        assert [name for name in same if not name.endswith("1.weight")] == []  # 1: layer norm, which moves little
        assert learner.updates == 1

    def test_noise_is_clipped_and_falls(self):
        spec, rows = latent_rows(critic=False)
        learner, actions = heads(spec, rows, settings("bc", updates=100)), torch.zeros(5_000, 1)
        first = learner.noisy(actions)
        learner.updates.fill_(45)
        last = learner.noisy(actions)
        learner.updates.fill_(100)
        assert first.abs().max() == pytest.approx(0.3) and first.abs().eq(first.abs().max()).float().mean() > 0.5
        assert last.std() == pytest.approx(0.1, rel=0.1)
        assert learner.noisy(actions).std() == pytest.approx(0.1, rel=0.1)
        assert learner.noisy(actions + 1).max() < 1

    def test_equal_seeds_agree_and_others_differ(self):
        spec, rows = latent_rows()
        trained = []
        for seed in (0, 0, 1):
            learner = heads(spec, rows, settings("drqbc", seed=seed))
            for _ in range(3):
                learner.learn()
            trained.append(acts(learner, rows[:5]))
        assert torch.equal(trained[0], trained[1]) and not torch.equal(trained[0], trained[2])

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("algo", ["bc", "drqbc"])
    def test_captured_updates_on_images_learn_and_repeat(self, algo):
        rows = PixelRows(archive(40), n_step=3, gamma=GAMMA, device=torch.device("cuda"))
        trained = []
        for _ in range(2):
            chosen = settings(algo, batch_size=16, learning_rate=3e-4, noise=(0.0, 0.0), alpha=0.0)
            learner = Learner(rows.buffer.transitions().rows, rows.spec, rows.view, chosen, of_images=True)
            losses = []
            for _ in range(200):
                learner.learn()
                losses.append(float(learner.losses["policy"]))
            trained.append(learner.state_dict())
            assert learner.updates == 200 and np.mean(losses[-20:]) < 0.7 * np.mean(losses[:20])
        assert [name for name in trained[0] if not torch.equal(trained[0][name], trained[1][name])] == []

    @pytest.mark.parametrize(("name", "value"), [("algo", "sac"), ("updates", 0), ("seed", -1)])
    def test_bad_settings_are_refused(self, name, value):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            LearnerSettings(**{"algo": "bc", name: value})


class TestTraining:
    def begun(self, path, chosen=None):
        spec, rows = latent_rows()
        chosen = chosen or settings("drqbc", updates=4 * CHUNK["cpu"])
        return Training(path, chosen, heads(spec, rows, chosen), lambda _: None)

    def test_a_run_that_was_stopped_goes_on_exactly(self, tmp_path):
        whole = self.begun(tmp_path / "whole" / "heads.json")
        assert whole.run(Limits())
        path = tmp_path / "parts" / "heads.json"
        first = self.begun(path)
        assert not first.run(Limits(deadline=time.monotonic() - 1))
        assert 0 < first.updates < whole.updates and checkpoint_path(path).exists()
        second = self.begun(path)
        assert second.updates == first.updates
        assert second.run(Limits())
        second.write({"rows": 5})
        assert not checkpoint_path(path).exists()
        result = json.loads(path.read_text())
        assert result["rows"] == 5 and result["losses"] == whole.losses and result["command"] and result["commit"]
        own, other = whole.learner.state_dict(), second.learner.state_dict()
        assert [name for name in own if not torch.equal(own[name], other[name])] == []

    def test_a_checkpoint_of_other_settings_is_refused(self, tmp_path):
        path = tmp_path / "heads.json"
        self.begun(path).run(Limits(deadline=time.monotonic() - 1))
        with pytest.raises(ValueError, match="batch_size: got 64, expected 32"):
            self.begun(path, settings("drqbc", updates=4 * CHUNK["cpu"], batch_size=32))

    def test_weights_travel_in_fp16(self, tmp_path):
        sent, received = (Agent(2, 16, has_critic=False, of_images=False, seed=seed) for seed in (1, 2))
        save_weights(tmp_path / "new" / "head.safetensors", sent.head, half=True)
        load_weights(tmp_path / "new" / "head.safetensors", received.head)
        for name, weights in sent.head.state_dict().items():
            torch.testing.assert_close(received.head.state_dict()[name], weights, rtol=1e-3, atol=1e-4)
