"""TorchRL's SAC on Pendulum-v1 with synthetic replay: wrap the buffer, keep the loop.

Prints the return of the deterministic policy during training.

    python examples/torchrl_sac.py
"""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ExplorationType, GymEnv, RewardSum, StepCounter, TransformedEnv, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

from synther_replay import RetrainSchedule
from synther_replay.adapters.torchrl import SynthERReplayBuffer


def make_env() -> TransformedEnv:
    """Make Pendulum-v1, which has a time limit of 200 steps."""
    return TransformedEnv(GymEnv("Pendulum-v1")).append_transform(StepCounter()).append_transform(RewardSum())


def make_agent(env: TransformedEnv) -> tuple[ProbabilisticActor, ValueOperator]:
    """Make actor and critic."""
    observations, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    body = nn.Sequential(
        MLP(in_features=observations, out_features=2 * actions, num_cells=[64, 64], activation_class=nn.ReLU),
        NormalParamExtractor(),
    )
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
    )
    critic = MLP(
        in_features=observations + actions,
        out_features=1,
        num_cells=[64, 64],
        activation_class=nn.ReLU,
        norm_class=nn.LayerNorm,  # keeps the critics from diverging at many updates per environment step
        norm_kwargs={"normalized_shape": 64},
    )
    return actor, ValueOperator(critic, in_keys=["observation", "action"])


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps")
    parser.add_argument("--updates", type=int, default=2, help="gradient steps per environment step")
    parser.add_argument("--refit", type=int, default=500, help="environment steps between refits")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # more threads are slower for small networks
    torch.manual_seed(args.seed)
    env = make_env()
    env.set_seed(args.seed)
    actor, critic = make_agent(env)
    loss = SACLoss(actor, critic)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, tau=0.005)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3)

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=128)
    buffer = SynthERReplayBuffer(  # the only change
        buffer,
        action_spec=env.action_spec,
        schedule=RetrainSchedule(start=args.refit, every=args.refit, rows=20_000),
    )

    frames = 50
    collector = Collector(env, actor, frames_per_batch=frames, total_frames=args.steps, init_random_frames=200)
    for k, data in enumerate(collector):
        buffer.extend(data.reshape(-1))
        if len(buffer) < 200:
            continue
        for _ in range(frames * args.updates):
            losses = loss(buffer.sample())
            total = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
            target.step()
        if (k + 1) % 10 == 0:
            with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
                returned = [env.rollout(200, actor)["next", "episode_reward"][-1].item() for _ in range(3)]
            print(f"step {(k + 1) * frames:6}  return {sum(returned) / 3:7.0f}  {buffer.source}", flush=True)
    collector.shutdown()


if __name__ == "__main__":
    main()
