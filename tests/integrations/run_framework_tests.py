"""Runs the test suite of a framework with our buffers in place of its own.

    python tests/integrations/run_framework_tests.py sb3 path/to/stable-baselines3 --real-ratio 1.0

The tests come from a checkout; they run against the installed framework. Unknown arguments are passed to pytest. Tests
that cannot apply are listed with a reason and must fail. README.md in this folder has the results. Do not use it with
pytest-xdist, whose workers would use the framework's own buffers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from abc import ABCMeta
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from synther_replay import GeneratorConfig, RetrainSchedule

# Small and early enough for synthetic rows in tests of a hundred steps.
GENERATOR = GeneratorConfig.tiny(
    width=16, depth=1, embedding=16, steps=10, refit_steps=10, batch_size=32, sampling_steps=4
)
SCHEDULE = RetrainSchedule(every=100, rows=200, start=32)


@dataclass
class Record:
    """Options of our buffers in the current test, and what happened in it.

    Attributes:
        real_ratio: Real ratio of every buffer.
        options: Further options of the buffers in the current test.
        ours: Whether the current test has built one of our buffers.
        mixed: Whether one of them returned a batch with synthetic rows.
    """

    real_ratio: float
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False
    mixed: bool = False

    def buffer_options(self) -> dict[str, Any]:
        """Return the options of a new buffer."""
        self.ours = True
        return {"real_ratio": self.real_ratio, "generator": GENERATOR, "schedule": SCHEDULE, **self.options}


@dataclass(frozen=True)
class CannotApply:
    """Tests that must fail with our buffers.

    Attributes:
        test: Prefix of their names: ``test_file.py::test_name[parameters]``.
        reason: The reason.
        when_mixed: Whether this applies only with synthetic rows.
        without_gpu: Whether this applies only without a GPU.
    """

    test: str
    reason: str
    when_mixed: bool = True
    without_gpu: bool = False


@dataclass(frozen=True)
class Framework:
    """Description of a framework.

    Attributes:
        distribution: Name of the installed distribution.
        folder: Where its tests are in a checkout.
        files: The test files, each with options that our buffers need there.
        substitute: Puts our classes in the place of the framework's; called before its tests are imported.
        leave_out: Tests with one of these in their name have nothing to do with replay buffers.
        cannot_apply: Tests that have to fail.
    """

    distribution: str
    folder: str
    files: Mapping[str, Mapping[str, Any]]
    substitute: Callable[[Record], None]
    leave_out: tuple[str, ...] = ()
    cannot_apply: tuple[CannotApply, ...] = ()


class Plugin:
    """Pytest plugin: makes the tests of a framework use our buffers and counts the outcomes."""

    def __init__(self, framework: Framework, record: Record) -> None:
        self.framework, self.record = framework, record
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if any(part in item.name for part in self.framework.leave_out)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        for item in items:
            for known in self.framework.cannot_apply:
                spared = (known.when_mixed and self.record.real_ratio == 1) or (
                    known.without_gpu and torch.cuda.is_available()
                )
                if not spared and f"{item.path.name}::{item.name}".startswith(known.test):
                    item.add_marker(pytest.mark.xfail(reason=known.reason, strict=True))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.record.options = self.framework.files[item.path.name]
        self.record.ours = self.record.mixed = False
        done = yield
        self.counts[item.path.name] += Counter({"ours": self.record.ours, "mixed": self.record.mixed})
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            expected = "cannot apply" if hasattr(report, "wasxfail") else report.outcome
            self.counts[Path(report.location[0]).name][expected] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        columns = ("passed", "cannot apply", "failed", "skipped", "ours", "mixed")
        version = importlib.metadata.version(self.framework.distribution)
        terminalreporter.section(f"{self.framework.distribution} {version}, real_ratio={self.record.real_ratio}")
        terminalreporter.line("| file | " + " | ".join(columns) + " |")
        for name, counts in self.counts.items():
            terminalreporter.line(f"| {name} | " + " | ".join(str(counts[column]) for column in columns) + " |")


def substitute_sb3(record: Record) -> None:
    """Replace Stable-Baselines3's three replay buffers by subclasses of `SynthERBuffer`."""
    import stable_baselines3  # noqa: F401  # imports all modules that refer to the buffers
    from stable_baselines3 import common
    from stable_baselines3.common import buffers

    from synther_replay.adapters.sb3 import SynthERBuffer, SynthERDictBuffer

    class Substitute(ABCMeta):
        """Instances of the original count as instances of the substitute, as `HerReplayBuffer` expects."""

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, originals[cls.__name__])

    def make(name: str, base: type, **defaults: Any) -> type:
        def build(self: Any, *args: Any, **options: Any) -> None:
            base.__init__(self, *args, **{**defaults, **record.buffer_options(), **options})  # type: ignore[misc]

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
    }
    originals = {name: getattr(buffers, name) for name in substitutes}
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "stable_baselines3"]:
        for name, substitute in substitutes.items():
            if module is not buffers and getattr(module, name, None) is originals[name]:
                setattr(module, name, substitute)
    # The classes refer to each other by name, so the names are replaced in a copy of the module.
    copied = ModuleType(buffers.__name__)
    vars(copied).update({**vars(buffers), **substitutes})
    sys.modules[buffers.__name__] = common.buffers = copied


SB3 = Framework(
    distribution="stable-baselines3",
    folder="tests",
    files={
        # these two store actions in the units of the environment
        "test_buffers.py": {"scaled_actions": False},
        "test_n_step_replay.py": {"scaled_actions": False},
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
    substitute=substitute_sb3,
    leave_out=("A2C", "PPO", "a2c", "ppo", "RolloutBuffer", "large_model"),
    cannot_apply=(
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

FRAMEWORKS = {"sb3": SB3}


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("checkout", type=Path, help="repository of the framework")
    parser.add_argument("--real-ratio", type=float, default=1.0, help="real ratio of every buffer (default: 1.0)")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="some of the test files (default: all listed)")
    options, for_pytest = parser.parse_known_args(arguments)
    framework = FRAMEWORKS[options.framework]
    folder = options.checkout.resolve() / framework.folder
    if not folder.is_dir():
        parser.error(f"checkout: there is no folder {folder}")
    files = options.files or list(framework.files)
    if unknown := set(files) - set(framework.files):
        parser.error(f"--files: expected some of {sorted(framework.files)}, got {sorted(unknown)}")
    torch.set_num_threads(1)  # more threads are slower for small networks
    record = Record(options.real_ratio)
    framework.substitute(record)
    paths = [str(folder / name) for name in files]
    return pytest.main([*paths, "-p", "no:cacheprovider", *for_pytest], plugins=[Plugin(framework, record)])


if __name__ == "__main__":
    sys.exit(main())
