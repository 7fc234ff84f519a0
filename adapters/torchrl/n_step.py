"""n-step transitions, which TorchRL's `MultiStepTransform` and `MultiStep` make of single steps.

Their reward is the discounted sum of up to n rewards, and their next observation is that many steps away. The number of
steps is an entry of the data, from which losses compute the discount. It is modelled; the other entries follow from it.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor

STEPS = "steps_to_next_obs"
STEPS_SPACE = spaces.Box(1, 2**16, (), np.int64)
_GAMMA, _NONTERMINAL = "gamma", "nonterminal"


class StepEntries:
    """The entries that follow from the number of steps.

    Args:
        example: Stored n-step transitions, ``(n,)``.
    """

    def __init__(self, example: TensorDictBase) -> None:
        """Note which entries the data have."""
        self._shapes = {
            key: tuple(held.shape[1:]) for key in (_GAMMA, _NONTERMINAL) if (held := example.get(key, None)) is not None
        }
        self._gamma = 1.0
        if _GAMMA in self._shapes:
            discount, steps = (float(example.get(key)[0].double()) for key in (_GAMMA, STEPS))
            self._gamma = discount ** (1 / steps)

    def of(self, steps: Tensor) -> dict[str, Tensor]:
        """Return the entries for numbers of steps, ``(n,)``."""
        values = {_GAMMA: (self._gamma ** steps.double()).float(), _NONTERMINAL: steps != 1}
        return {key: values[key].reshape(-1, *shape) for key, shape in self._shapes.items()}
