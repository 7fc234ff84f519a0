"""A single-file SAC in the style of CleanRL with synthetic replay. Three lines differ from plain SAC, marked SynthER.

Prints the return of each episode.

    python examples/cleanrl_sac.py --env-id Pendulum-v1
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from synther_replay.adapters.sb3 import SynthERBuffer  # SynthER 1: was stable_baselines3.common.buffers.ReplayBuffer


@dataclass
class Args:
    """Settings; each is an option of the command line."""

    env_id: str = "Pendulum-v1"
    seed: int = 1
    total_timesteps: int = 10_000
    buffer_size: int = 1_000_000
    gamma: float = 0.99
    tau: float = 0.005
    batch_size: int = 256
    learning_starts: int = 1_000
    updates: int = 4  # gradient steps per environment step; synthetic rows pay off above 1
    policy_lr: float = 3e-4
    q_lr: float = 1e-3
    hidden: int = 64
    first_refit: int = 2_500


class SoftQNetwork(nn.Module):
    """Value of an observation and an action."""

    def __init__(self, envs: gym.vector.VectorEnv, hidden: int) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape) + np.prod(envs.single_action_space.shape))
        self.fc1, self.fc2, self.fc3 = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        """Return values ``(batch, 1)``."""
        x = F.relu(self.fc1(torch.cat([x, a], 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Actor(nn.Module):
    """Squashed Gaussian policy in the units of the environment."""

    def __init__(self, envs: gym.vector.VectorEnv, hidden: int) -> None:
        super().__init__()
        observations = int(np.prod(envs.single_observation_space.shape))
        actions = int(np.prod(envs.single_action_space.shape))
        self.fc1, self.fc2 = nn.Linear(observations, hidden), nn.Linear(hidden, hidden)
        self.fc_mean, self.fc_logstd = nn.Linear(hidden, actions), nn.Linear(hidden, actions)
        low, high = envs.single_action_space.low, envs.single_action_space.high
        self.register_buffer("scale", torch.tensor((high - low) / 2, dtype=torch.float32))
        self.register_buffer("bias", torch.tensor((high + low) / 2, dtype=torch.float32))

    def get_action(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log probabilities ``(batch, 1)``."""
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        mean, log_std = self.fc_mean(x), -1.5 + 3.5 * torch.tanh(self.fc_logstd(x))  # from -5 to 2
        normal = torch.distributions.Normal(mean, log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        log_prob = normal.log_prob(x_t) - torch.log(self.scale * (1 - y_t.pow(2)) + 1e-6)
        return y_t * self.scale + self.bias, log_prob.sum(1, keepdim=True)


def parse_args() -> Args:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    args = parse_args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    envs.single_action_space.seed(args.seed)

    actor = Actor(envs, args.hidden).to(device)
    qf1, qf2, qf1_target, qf2_target = (SoftQNetwork(envs, args.hidden).to(device) for _ in range(4))
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=args.q_lr)
    actor_optimizer = optim.Adam(actor.parameters(), lr=args.policy_lr)
    target_entropy = -float(np.prod(envs.single_action_space.shape))
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    a_optimizer = optim.Adam([log_alpha], lr=args.q_lr)

    rb = SynthERBuffer(  # SynthER 2: was ReplayBuffer
        args.buffer_size,
        envs.single_observation_space,
        envs.single_action_space,
        device,
        handle_timeout_termination=False,
        **{"scaled_actions": False, "schedule": {"start": args.first_refit}},  # SynthER 3: new; actions are not scaled
    )

    obs, _ = envs.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        if global_step < args.learning_starts:
            actions = np.array([envs.single_action_space.sample() for _ in range(envs.num_envs)])
        else:
            with torch.no_grad():
                actions = actor.get_action(torch.tensor(obs, dtype=torch.float32, device=device))[0].cpu().numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)

        real_next_obs = next_obs.copy()
        for idx in np.flatnonzero(terminations | truncations):
            real_next_obs[idx] = infos["final_obs"][idx]
            episode_return = float(infos["final_info"]["episode"]["r"][idx])
            print(f"global_step={global_step + 1}, episodic_return={episode_return:.0f}")
        rb.add(obs, real_next_obs, actions, rewards, terminations, [{}] * envs.num_envs)
        obs = next_obs

        for _ in range(args.updates if global_step >= args.learning_starts else 0):
            data = rb.sample(args.batch_size)
            with torch.no_grad():
                next_actions, next_log_pi = actor.get_action(data.next_observations)
                min_qf_next = torch.min(
                    qf1_target(data.next_observations, next_actions), qf2_target(data.next_observations, next_actions)
                )
                min_qf_next = (min_qf_next - log_alpha.exp() * next_log_pi).view(-1)
                next_q_value = data.rewards.flatten() + (1 - data.dones.flatten()) * args.gamma * min_qf_next
            qf_loss = sum(F.mse_loss(qf(data.observations, data.actions).view(-1), next_q_value) for qf in (qf1, qf2))
            q_optimizer.zero_grad()
            qf_loss.backward()
            q_optimizer.step()

            pi, log_pi = actor.get_action(data.observations)
            min_qf_pi = torch.min(qf1(data.observations, pi), qf2(data.observations, pi))
            actor_loss = (log_alpha.exp().detach() * log_pi - min_qf_pi).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()

            alpha_loss = (-log_alpha.exp() * (log_pi.detach() + target_entropy)).mean()
            a_optimizer.zero_grad()
            alpha_loss.backward()
            a_optimizer.step()

            with torch.no_grad():
                for qf, target in ((qf1, qf1_target), (qf2, qf2_target)):
                    for param, target_param in zip(qf.parameters(), target.parameters(), strict=True):
                        target_param.lerp_(param, args.tau)

    print(rb)
    envs.close()
