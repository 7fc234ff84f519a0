"""Stable-Baselines3's own tests with our replay buffers in place of its own; see run_framework_tests.py."""

from __future__ import annotations

import sys
from abc import ABCMeta
from types import ModuleType
from typing import Any

from substitution import CannotApply, Framework, Record

from synther_replay import GeneratorConfig

# Parts of the names of tests that sample from no replay buffer.
OTHERS = ("A2C", "PPO", "a2c", "ppo", "RolloutBuffer", "large_model")


def substitute(record: Record) -> None:
    """Replace Stable-Baselines3's three replay buffers by subclasses of `SynthERBuffer`."""
    import stable_baselines3  # noqa: F401  # imports all modules that refer to the buffers
    from stable_baselines3 import HerReplayBuffer, common
    from stable_baselines3.common import buffers

    from synther_replay.adapters.sb3 import SynthERBuffer, SynthERDictBuffer, SynthERHerBuffer, transition_spec

    class Substitute(ABCMeta):
        """Instances of the original count as instances of the substitute, as `HerReplayBuffer` expects."""

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, originals[cls.__name__])

    def make(name: str, base: type, **defaults: Any) -> type:
        def build(
            self: Any, buffer_size: int, observation_space: Any, action_space: Any, *args: Any, **options: Any
        ) -> None:
            ours = record.buffer_options(transition_spec(observation_space, action_space).dim)
            base.__init__(  # type: ignore[misc]
                self, buffer_size, observation_space, action_space, *args, **{**defaults, **ours, **options}
            )

        def sample(self: Any, *args: Any, **options: Any) -> Any:
            batch = base.sample(self, *args, **options)  # type: ignore[attr-defined]
            record.mixed |= len(self.source.store) > 0
            return batch

        # pickle finds a class by module and name
        return Substitute(name, (base,), {"__init__": build, "sample": sample, "__module__": buffers.__name__})

    substitutes = {
        "ReplayBuffer": make("ReplayBuffer", SynthERBuffer),
        "DictReplayBuffer": make("DictReplayBuffer", SynthERDictBuffer),
        "NStepReplayBuffer": make("NStepReplayBuffer", SynthERBuffer, n_steps=3),
        "HerReplayBuffer": make("HerReplayBuffer", SynthERHerBuffer),
    }
    originals = {name: getattr(buffers, name, HerReplayBuffer) for name in substitutes}
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "stable_baselines3"]:
        for name, substitute in substitutes.items():
            if module is not buffers and getattr(module, name, None) is originals[name]:
                setattr(module, name, substitute)
    # The classes refer to each other by name, so the names are replaced in a copy of the module.
    copied = ModuleType(buffers.__name__)
    vars(copied).update({**vars(buffers), **substitutes})
    sys.modules[buffers.__name__] = common.buffers = copied


FRAMEWORK = Framework(
    distribution="stable-baselines3",
    folder="tests",
    files={
        # these two store actions in the units of the environment
        "test_buffers.py": {"scaled_actions": False},
        "test_n_step_replay.py": {"scaled_actions": False},
        "test_her.py": {},
        "test_run.py": {},
        "test_save_load.py": {},
        "test_spaces.py": {},
        "test_dict_env.py": {},
        "test_vec_normalize.py": {},
        "test_deterministic.py": {},
        "test_callbacks.py": {},
        "test_cnn.py": {},
        # must solve its tasks: needs a trained generator
        "test_identity.py": {"generator": GeneratorConfig.tiny()},
        "test_predict.py": {},
        "test_sde.py": {},
        "test_train_eval_mode.py": {},
        "test_custom_policy.py": {},
        "test_gae.py": {},
    },
    substitute=substitute,
    mixed=140,
    leaves_out=lambda item, real_ratio: any(part in item.name for part in OTHERS),
    on_pypi=True,
    cannot_apply=(
        CannotApply(
            "test_n_step_replay.py::test_n_steps_warns_with_custom_replay_buffer_class[",
            "n_steps of the model is not ignored: our buffer takes it",
            when_mixed=False,
        ),
        *(
            CannotApply(
                f"test_n_step_replay.py::test_n_steps_with_dict_obs[{name}]",
                "n_steps of the model is refused where SB3 ignores it with a warning",
                when_mixed=False,
            )
            for name in ("DictReplayBuffer", "HerReplayBuffer")
        ),
        CannotApply(
            "test_her.py::test_performance_her[",
            "must flip 10 bits in 1,500 steps: rows without a continuous column are copies, made every 100 steps",
        ),
        CannotApply(
            "test_save_load.py::test_warn_buffer[True-",
            "optimize_memory_usage overwrites observations that the generator has to learn, so it is refused",
        ),
        CannotApply(
            "test_save_load.py::test_save_load_replay_buffer[",
            "assigns a GPU that is not there: SB3 only remembers it, our rows would have to move",
            when_mixed=False,
            without_gpu=True,
        ),
    ),
)
