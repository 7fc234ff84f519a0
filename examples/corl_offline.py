"""Offline RL in the style of CORL, on a small data set and on its upsampled version.

Collects 500 transitions of Pendulum-v1 with a noisy controller and trains TD3+BC (Fujimoto and Gu, 2021) twice: on the
real rows, and on synthetic rows only. The second run differs by one line, `buffer.upsample(...)`. This is a usage
example, not a benchmark: one easy task, one seed, CPU budgets.

    python examples/corl_offline.py
"""

from __future__ import annotations

import argparse
import copy

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from synther_replay import GeneratorConfig
from synther_replay.adapters.corl import ReplayBuffer

MAX_ACTION, DISCOUNT, TAU, ALPHA = 2.0, 0.99, 0.005, 2.5


def collect(env: gym.Env, count: int, seed: int) -> dict[str, np.ndarray]:
    """Collect a data set in the format of `d4rl.qlearning_dataset` with a noisy energy-pumping controller."""
    rng, rows = np.random.default_rng(seed), []
    state, _ = env.reset(seed=seed)
    for _ in range(count):
        cos, sin, speed = state
        push = -10.0 * np.arctan2(sin, cos) - 2.0 * speed if cos > 0.9 else speed * (5.0 - 5.0 * cos - speed**2 / 6.0)
        action = np.clip([rng.normal(push, 1.5)], -MAX_ACTION, MAX_ACTION).astype(np.float32)
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((state, action, reward, following, terminated))
        state = env.reset()[0] if terminated or truncated else following
    keys = ("observations", "actions", "rewards", "next_observations", "terminals")
    return dict(zip(keys, map(np.stack, zip(*rows, strict=True)), strict=True))


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Make a network with two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


def act(actor: nn.Module, states: Tensor) -> Tensor:
    """Return actions, ``(n, 1)``."""
    return MAX_ACTION * torch.tanh(actor(states))


def train(buffer: ReplayBuffer, updates: int) -> nn.Module:
    """Train TD3+BC and return the actor."""
    actor, *critics = online = nn.ModuleList([mlp(3, 1), mlp(4, 1), mlp(4, 1)])
    target_actor, *target_critics = targets = copy.deepcopy(online)
    actor_optimiser = torch.optim.Adam(actor.parameters(), 1e-3)
    critic_optimiser = torch.optim.Adam([p for critic in critics for p in critic.parameters()], 1e-3)
    for step in range(updates):
        states, actions, rewards, next_states, dones = buffer.sample(256)
        with torch.no_grad():
            noise = MAX_ACTION * (0.2 * torch.randn_like(actions)).clamp(-0.5, 0.5)
            next_actions = (act(target_actor, next_states) + noise).clamp(-MAX_ACTION, MAX_ACTION)
            following = torch.cat([next_states, next_actions], 1)
            values = torch.minimum(*(critic(following) for critic in target_critics))
            target = rewards + DISCOUNT * (1 - dones) * values
        present = torch.cat([states, actions], 1)
        critic_optimiser.zero_grad()
        sum(nn.functional.mse_loss(critic(present), target) for critic in critics).backward()
        critic_optimiser.step()
        if step % 2 == 0:
            chosen = act(actor, states)
            values = critics[0](torch.cat([states, chosen], 1))
            gain = values.mean() / values.abs().mean().detach()
            actor_optimiser.zero_grad()
            (nn.functional.mse_loss(chosen, actions) - ALPHA * gain).backward()
            actor_optimiser.step()
            for slow, fast in zip(targets.parameters(), online.parameters(), strict=True):
                slow.data.lerp_(fast.data, TAU)
    return actor


@torch.no_grad()
def evaluate(env: gym.Env, actor: nn.Module, mean: np.ndarray, std: np.ndarray) -> float:
    """Return the mean return of ten episodes."""
    total = 0.0
    for episode in range(10):
        (state, _), over = env.reset(seed=1_000 + episode), False
        while not over:
            action = act(actor, torch.as_tensor((state - mean) / std))
            state, reward, terminated, truncated, _ = env.step(action.numpy())
            total, over = total + float(reward), terminated or truncated
    return total / 10


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500, help="real transitions to collect")
    parser.add_argument("--upsample", type=int, default=20_000, help="synthetic transitions to generate from them")
    parser.add_argument("--steps", type=int, default=8_000, help="training steps of the generator")
    parser.add_argument("--updates", type=int, default=2_000, help="gradient steps of the agent")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # more threads are slower for small networks
    env = gym.make("Pendulum-v1")
    data = collect(env, args.rows, args.seed)
    for name in ("real", "upsampled"):
        torch.manual_seed(args.seed)
        np.random.seed(args.seed)
        tiny = GeneratorConfig.tiny(steps=args.steps)
        buffer = ReplayBuffer(3, 1, args.rows, generator=tiny, max_action=MAX_ACTION, seed=args.seed)
        buffer.load_d4rl_dataset(data)
        if name == "upsampled":
            buffer.upsample(args.upsample)  # the added line
        mean, std = buffer.normalise_states()
        actor = train(buffer, args.updates)
        print(f"{name + ' data':15} return {evaluate(env, actor, mean, std):.0f}")


if __name__ == "__main__":
    main()
