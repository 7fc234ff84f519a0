"""FastSAC: Stable-Baselines3's SAC for many updates per environment step.

`FastSAC.train` splits its updates into blocks that end with an actor update. The policy is constant within a block, so
next actions of all its batches are computed in one pass. On CUDA the updates run as CUDA graphs; see `graphs`.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor
from torch.optim import Optimizer

from synther_replay.adapters.sb3.batches import join_batches, rows_of
from synther_replay.adapters.sb3.critics import Critics
from synther_replay.adapters.sb3.graphs import UpdateGraphs, plain_state
from synther_replay.adapters.sb3.policies import LayerNormMlpPolicy
from synther_replay.common.checks import whole_number

_MOST_STEPS = 64  # updates per CUDA graph; more only increase the capture time
_MOST_BYTES = 2**28  # of observations drawn at once
_INITIAL_VALUE = 1.0  # size of the values of untrained critics, whatever the rewards
# With ``gradient_steps=-1`` every call may have another number of updates. After this many different numbers, further
# ones are split into powers of two.
_LENGTHS = 8


class FastSAC(SAC):
    """SB3's `SAC` with delayed actor updates, and with CUDA graphs on a GPU.

    `SAC` and `FastSAC` can load each other's files. With ``policy_delay=1`` on a CPU it is exactly `SAC`.

    >>> model = FastSAC("MlpPolicy", "Pendulum-v1", gradient_steps=20, policy_delay=20)

    ``"LayerNormMlpPolicy"`` has layer norm in the critics, which keeps them from diverging at many updates per step.

    Args:
        *args: As in `SAC`.
        policy_delay: Critic updates per update of actor and entropy coefficient. The last critic update of a call of
            `train` is always followed by an actor update.
        **kwargs: As in `SAC`. ``use_sde=True`` requires ``policy_delay=1`` and uses SB3's own loop.

    The logger also gets ``values/largest``, the size of the largest Q value, and ``values/limit``, the size that
    rewards, entropy and discount allow. The first value beyond it gives a warning: the critics diverge.

    On a GPU, hooks of the networks run only while a CUDA graph is captured, and non-finite parameters give NaN where
    `SAC` raises an error.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        **SAC.policy_aliases,
        "LayerNormMlpPolicy": LayerNormMlpPolicy,
    }

    def __init__(self, *args: Any, policy_delay: int = 1, **kwargs: Any) -> None:
        """Create the model."""
        self.policy_delay = policy_delay
        self._graphs = UpdateGraphs()
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        self.policy_delay = whole_number("policy_delay", self.policy_delay)
        if self.use_sde and self.policy_delay > 1:
            raise ValueError(f"policy_delay: expected 1 with use_sde=True, got {self.policy_delay!r}")
        super()._setup_model()
        # logged sums: entropy coefficient, and losses of actor, critics and entropy coefficient;
        # then two maxima: of the values' size, and of the size that rewards and discount allow
        self._sums = torch.zeros(6, dtype=torch.float32, device=self.device)
        self._value_limit, self._diverged = 0.0, False  # over all calls of `train`
        self._critics, self._target_critics = Critics(self.critic), Critics(self.critic_target)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Update the critics `gradient_steps` times and the actor every `policy_delay` updates; see `SAC`."""
        whole_number("policy_delay", self.policy_delay)  # it may have been changed
        if gradient_steps < 1 or self.use_sde or (self.policy_delay == 1 and not self._captures()):
            super().train(gradient_steps, batch_size)
            return
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._optimizers())
        if not (self._critics.matches(self.critic) and self._target_critics.matches(self.critic_target)):
            self._critics, self._target_critics = Critics(self.critic), Critics(self.critic_target)
            self._graphs = UpdateGraphs()  # captured graphs use the previous critics
        self._sums.zero_()
        for start, stop in self._pieces(gradient_steps, batch_size):
            with_actor = stop == gradient_steps or stop % self.policy_delay == 0
            self._run(self._draw(stop - start, batch_size), start, stop, with_actor)
        self._n_updates += gradient_steps
        self._record(gradient_steps)

    # ----------------------------------------------------------------- updates

    def _updates(self, batch: Any, start: int, stop: int, with_actor: bool) -> None:
        """Run the updates `start` to `stop` of a call of `train`.

        Args:
            batch: SB3 batch with the rows of all updates.
            start: Number of the first update.
            stop: Number after the last update.
            with_actor: Whether the last update includes the actor.
        """
        size, begun = len(batch.rewards) // (stop - start), start
        while start < stop:
            end = min(stop, (start // self.policy_delay + 1) * self.policy_delay)
            block = rows_of(batch, (start - begun) * size, (end - begun) * size)
            self._block(block, range(start, end), with_actor or end < stop)
            start = end

    def _block(self, block: Any, steps: range, actor_too: bool) -> None:
        """Run the updates of one block; with one update, operations and order are those of SB3."""
        size = len(block.rewards) // len(steps)
        batches = [rows_of(block, k * size, (k + 1) * size) for k in range(len(steps))]
        ent_coef = self.ent_coef_tensor if self.log_ent_coef is None else self.log_ent_coef.detach().exp()
        if actor_too:
            actions, log_prob = self.actor.action_log_prob(batches[-1].observations)
            self._update_ent_coef(log_prob)
        parts = [tensor.split(size) for tensor in self._act_on_next(block, batches, ent_coef)]
        errors = []
        for step, batch, following, known, weight in zip(steps, batches, *parts, strict=True):
            errors.append(self._update_critics(batch, following, known, weight))
            if actor_too and step == steps[-1]:
                self._update_actor(batch, actions, log_prob, ent_coef)
            if step % self.target_update_interval == 0:
                self._update_targets()
        self._sums[2].add_(torch.stack(errors).square().sum(), alpha=0.5 / size)

    def _update_ent_coef(self, log_prob: Tensor) -> None:
        if self.ent_coef_optimizer is not None:
            loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
            self._minimise(loss, self.ent_coef_optimizer)
            self._sums[3].add_(loss.detach())

    def _update_actor(self, batch: Any, actions: Tensor, log_prob: Tensor, ent_coef: Tensor) -> None:
        q_values = self._critics(batch.observations, actions)
        loss = (ent_coef * log_prob.reshape(-1, 1) - q_values.min(dim=1, keepdim=True).values).mean()
        self._minimise(loss, self.actor.optimizer)
        self._sums[:2].add_(torch.stack([ent_coef.reshape(()), loss.detach()]))
        self._note_largest(4, q_values.detach())

    @torch.no_grad()
    def _act_on_next(self, block: Any, batches: list[Any], ent_coef: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return next actions and the terms of the critic target ``known + weight * Q_target(next action)``."""
        if next(self.actor.buffers(), None) is None:
            following, log_prob = self.actor.action_log_prob(block.next_observations)
        else:  # batch normalisation, for example, needs the statistics of one batch
            each = [self.actor.action_log_prob(batch.next_observations) for batch in batches]
            following, log_prob = (torch.cat(part) for part in zip(*each, strict=True))
        discounts = getattr(block, "discounts", None)
        discounts = self.gamma if discounts is None else discounts
        weight = (1 - block.dones) * discounts
        known = block.rewards - weight * ent_coef * log_prob.reshape(-1, 1)
        self._note_largest(5, known / (1 - discounts + 1e-12))  # there is no limit without a discount
        return following, known, weight

    def _update_critics(self, batch: Any, following: Tensor, known: Tensor, weight: Tensor) -> Tensor:
        """Run one critic update and return the errors ``(batch, critics)``.

        SB3's loss is half the sum of the critics' mean squared errors, so its gradient with respect to the Q values is
        ``errors / batch``.
        """
        with torch.no_grad():
            values = self._target_critics(batch.next_observations, following)
            targets = torch.addcmul(known, weight, values.amin(dim=1, keepdim=True))
        q_values = self._critics(batch.observations, batch.actions)
        errors: Tensor = q_values.detach() - targets
        self._minimise(q_values, self.critic.optimizer, errors / len(errors))
        return errors

    @torch.no_grad()
    def _update_targets(self) -> None:
        torch._foreach_lerp_(list(self.critic_target.parameters()), list(self.critic.parameters()), self.tau)
        if self.batch_norm_stats:
            torch._foreach_copy_(self.batch_norm_stats_target, self.batch_norm_stats)

    @torch.no_grad()
    def _note_largest(self, place: int, values: Tensor) -> None:
        """Keep the largest size in `_sums`; NaN stays."""
        self._sums[place].copy_(torch.maximum(self._sums[place], values.abs().amax()))

    def _minimise(self, loss: Tensor, optimizer: Optimizer, gradient: Tensor | None = None) -> None:
        """Take one optimiser step; gradients are computed only for its own parameters.

        Args:
            loss: A scalar loss, or a tensor with a given `gradient`.
            optimizer: The optimiser.
            gradient: Gradient with respect to `loss`, of the same shape.
        """
        optimizer.zero_grad()  # includes parameters that were frozen meanwhile
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        for parameter, found in zip(parameters, self._critics.gradients(loss, parameters, gradient), strict=True):
            if found is not None and found.stride() != parameter.stride():
                found = torch.empty_like(parameter).copy_(found)  # fused Adam needs equal memory layouts
            parameter.grad = found
        optimizer.step()

    # ----------------------------------------------------------------- execution

    def _captures(self) -> bool:
        """Return whether updates run as CUDA graphs."""
        return bool(self.device.type == "cuda") and not self._graphs.failed

    def _run(self, batch: Any, start: int, stop: int, with_actor: bool) -> None:
        delay, interval = self.policy_delay, self.target_update_interval
        update = functools.partial(self._updates, start=start, stop=stop, with_actor=with_actor)
        key = stop - start, start % delay, start % interval, with_actor
        settings = self.gamma, self.tau, self.target_entropy, interval, delay
        if not (
            self._captures() and self._graphs.run(key, update, batch, self._optimizers(), self._state_tensors, settings)
        ):
            update(batch)

    def _pieces(self, gradient_steps: int, batch_size: int) -> Iterator[tuple[int, int]]:
        """Yield start and stop of the updates that run at once: whole blocks if they fit."""
        most = max(1, min(_MOST_STEPS, _MOST_BYTES // (batch_size * _bytes_of_row(self.observation_space))))
        delay = min(self.policy_delay, most)
        most -= most % delay
        start = 0
        while start < gradient_steps:
            steps = min(most, gradient_steps - start)
            if self._captures():
                lengths = {length for length, *_ in self._graphs.names()}
                if steps not in lengths and len(lengths) >= _LENGTHS and steps >= delay:
                    steps = delay << ((steps // delay).bit_length() - 1)
            yield start, start + steps
            start += steps

    def _draw(self, count: int, batch_size: int) -> Any:
        """Draw `count` batches as one."""
        buffer, env = self.replay_buffer, self._vec_normalize_env
        if hasattr(buffer, "sample_batches"):
            return buffer.sample_batches(count, batch_size, env)
        return join_batches([buffer.sample(batch_size, env=env) for _ in range(count)])

    def _record(self, gradient_steps: int) -> None:
        # the only synchronisation with the GPU
        ent_coef, actor_loss, critic_loss, ent_coef_loss, largest, limit = self._sums.tolist()
        of_actor = -(-gradient_steps // self.policy_delay)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/ent_coef", ent_coef / of_actor)
        self.logger.record("train/actor_loss", actor_loss / of_actor)
        self.logger.record("train/critic_loss", critic_loss / gradient_steps)
        if self.ent_coef_optimizer is not None:
            self.logger.record("train/ent_coef_loss", ent_coef_loss / of_actor)
        self._watch_values(largest, limit)

    def _watch_values(self, largest: float, limit: float) -> None:
        """Log the largest value and the limit that rewards, entropy and discount set; warn if it is exceeded."""
        self._value_limit = max(self._value_limit, limit)
        self.logger.record("values/largest", largest)
        self.logger.record("values/limit", self._value_limit)
        if not self._diverged and not largest <= self._value_limit + _INITIAL_VALUE:  # NaN included
            self._diverged = True
            warnings.warn(
                f"the critics diverge: values up to {largest:.3g}, where rewards and discount allow "
                f"{self._value_limit:.3g}; try 'LayerNormMlpPolicy', more critics or fewer gradient_steps",
                stacklevel=2,
            )

    def _optimizers(self) -> list[Optimizer]:
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        return optimizers if self.ent_coef_optimizer is None else [*optimizers, self.ent_coef_optimizer]

    def _state_tensors(self) -> list[Tensor]:
        """Return all tensors that an update reads or modifies, except the batch."""
        states = [state for optimizer in self._optimizers() for state in optimizer.state.values()]
        moments = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        ent_coef = self.ent_coef_tensor if self.log_ent_coef is None else self.log_ent_coef
        return [*self.policy.parameters(), *self.policy.buffers(), ent_coef, self._sums, *moments]

    # ----------------------------------------------------------------- files

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """As in `SAC`; optimiser states have their original options."""
        parameters: dict[str, dict[str, Any]] = super().get_parameters()
        names = ("actor.optimizer", "critic.optimizer", "ent_coef_optimizer")
        for name, optimizer in zip(names, self._optimizers(), strict=False):
            parameters[name] = plain_state(optimizer, parameters[name])
        return parameters

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_graphs", "_sums", "_critics", "_target_critics"]


def _bytes_of_row(space: spaces.Space[Any]) -> int:
    """Return the bytes of an observation and the next observation."""
    entries = space.spaces.values() if isinstance(space, spaces.Dict) else (space,)
    return 2 * sum(math.prod(entry.shape or ()) * np.dtype(entry.dtype).itemsize for entry in entries)
