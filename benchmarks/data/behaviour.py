"""Behaviour policies: snapshots of runs of our own, of SAC as a rule, that regenerated data sets are played with.

    python benchmarks/online_dmc.py --env Hopper-v5 --algo sac --keep-policies policies ...
    python -m synther_replay.benchmarks.data.behaviour pick --result results/online/Hopper-v5/sac.json \
        --policies policies --agent 0 --medium-return 1100
    python -m synther_replay.benchmarks.data.behaviour pick --result longer/Hopper-v5/sac.json \
        --policies policies --agent 0 --expert

The first pick takes the first snapshot that reaches a return as `medium`, and those on the way to it as `replay`; the
second takes the best one as `expert` and leaves the others as they are. ``policies/<task>`` has one file
per policy and a manifest: where each comes from, what it earned there, and what it earns where actions are drawn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.policy import Policy, load_policies, save_policies
from synther_replay.benchmarks.common.files import write_json
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.data.rollouts import Episodes
from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import derive_seed
from synther_replay.errors import CheckpointError

FOLDER = Path(__file__).parent / "policies"
_MANIFEST = "manifest.json"
_ORIGIN = ("command", "commit", "machine", "versions")  # what a result says of its run, and the manifest repeats


@dataclass(frozen=True)
class Snapshot:
    """One policy.

    Attributes:
        file: Its name, beside the manifest.
        sha256: Of the file.
        step: Environment steps after which it was kept.
        seed: Of its agent in the run.
        run_return: Mean of deterministic episodes, as the run found it.
        mean_return: Mean of `episodes` with actions that are drawn, as data have them.
        std_return: Their standard deviation.
        episodes: Their number.
    """

    file: str
    sha256: str
    step: int
    seed: int
    run_return: float
    mean_return: float
    std_return: float
    episodes: int


@dataclass(frozen=True)
class Behaviour:
    """What there is of a task.

    Attributes:
        task: Its name.
        folder: Of the files.
        random_steps: With which the run of `replay` began.
        medium: A policy on the way to an expert.
        expert: As good as the run got.
        replay: Snapshots on the way to `medium`, which is the last one.
        runs: Command, commit, machine and versions of the runs behind "medium" and "expert", and how they were picked.
    """

    task: str
    folder: Path
    random_steps: int = 0
    medium: Snapshot | None = None
    expert: Snapshot | None = None
    replay: tuple[Snapshot, ...] = ()
    runs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, task: str, root: Path = FOLDER) -> Behaviour:
        """What the manifest of a task says; without a manifest there is nothing.

        Raises:
            ValueError: It is damaged.
        """
        folder = root / task
        path = folder / _MANIFEST
        try:
            content = json.loads(path.read_text())
            known = {name: Snapshot(**entry) for name, entry in content["policies"].items()}
            named = {role: known[content[role]] if content[role] else None for role in ("medium", "expert")}
            replay = tuple(known[name] for name in content["replay"])
            return cls(task, folder, content["random_steps"], **named, replay=replay, runs=content["runs"])
        except FileNotFoundError:
            return cls(task, folder)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: is damaged: {error!r}") from error

    def write(self) -> None:
        """Write the manifest, and remove policies that it does not name."""
        used = {s.file: s for s in (*self.replay, self.medium, self.expert) if s is not None}
        content = {
            "task": self.task,
            "random_steps": self.random_steps,
            "medium": self.medium and self.medium.file,
            "expert": self.expert and self.expert.file,
            "replay": [snapshot.file for snapshot in self.replay],
            "policies": {name: asdict(snapshot) for name, snapshot in used.items()},
            "runs": self.runs,
        }
        write_json(self.folder / _MANIFEST, content)
        for path in self.folder.glob("*.safetensors"):
            if path.name not in used:
                path.unlink()

    def policy(self, snapshot: Snapshot) -> Policy:
        """Load one of its policies.

        Raises:
            ValueError: The file is missing, damaged, or another one than the manifest describes.
        """
        path = self.folder / snapshot.file
        if not path.is_file():
            raise ValueError(f"{path}: {_MANIFEST} names it, but there is no such file")
        if _digest(path) != snapshot.sha256:
            raise ValueError(f"{path}: is damaged, or not the policy that {_MANIFEST} describes")
        return load_policies(path)[0]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Run:
    """One agent of a finished run with its kept policies.

    Args:
        result: JSON file of the run.
        policies: Folder that was given to ``--keep-policies``.
        agent: Its number, from 0.
    """

    def __init__(self, result: Path, policies: Path, agent: int) -> None:
        """Find what was kept."""
        self.result, self.agent = result, agent
        try:
            content = json.loads(result.read_text())
            self.task: str = content["env"]
            self.algorithm: str = content["algo"]
            self.random_steps: int = content["settings"]["random_steps"]
            seeds, curve = content["seeds"], content["curve"]
            self.origin = {key: content[key] for key in _ORIGIN}
            if not 0 <= agent < len(seeds):
                raise ValueError(f"agent: expected 0 to {len(seeds) - 1}, got {agent}")
            self.seed: int = seeds[agent]
            returns = {point["step"]: point["returns"][agent] for point in curve}
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{result}: is not a result of online_dmc.py: {error!r}") from error
        self._folder: Path = policies / self.task / result.stem
        # An agent that failed has none, or NaN.
        self.returns: dict[int, float] = {
            step: value
            for step, value in sorted(returns.items())
            if value is not None and math.isfinite(value) and self._file(step).is_file()
        }
        if not self.returns:
            raise ValueError(f"policies: {self._folder} has none of the policies of {result}")

    def _file(self, step: int) -> Path:
        return self._folder / f"{step}.safetensors"

    def first_reaching(self, wanted: float) -> int:
        """The step of the first snapshot with such a return."""
        for step, value in self.returns.items():
            if value >= wanted:
                return step
        best = max(self.returns.values())
        raise ValueError(f"medium-return: agent {self.agent} of {self.result} reaches {best}, not {wanted}")

    def best(self) -> int:
        """The step of the snapshot with the greatest return."""
        return max(self.returns, key=self.returns.__getitem__)

    def keep(self, step: int, folder: Path, episodes: int) -> Snapshot:
        """Copy a policy, and measure it with actions that are drawn."""
        policies = load_policies(self._file(step))
        if self.agent >= len(policies):
            raise ValueError(f"agent: {self._file(step)} has the policies of {len(policies)} agents, got {self.agent}")
        chosen = policies[self.agent].layers
        layers = Layers({name: torch.from_numpy(part).unsqueeze(0) for name, part in chosen.items()})
        path = folder / f"{self.algorithm}-{self.seed}-{step}.safetensors"
        save_policies(path, layers)
        returns = drawn_returns(self.task, load_policies(path)[0], episodes)
        mean, deviation = (round(float(number), 2) for number in (returns.mean(), returns.std()))
        return Snapshot(path.name, _digest(path), step, self.seed, self.returns[step], mean, deviation, episodes)


def drawn_returns(task: str, policy: Policy, episodes: int) -> np.ndarray:
    """Returns ``(episodes,)`` of a policy whose actions are drawn, always in the same episodes."""
    player = Episodes(task, policy)
    return np.array([player.play(derive_seed(0, k))["rewards"].sum(dtype=np.float64) for k in range(episodes)])


def evenly_spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of some steps with about the same distances between them, the first and the last among them."""
    wanted = np.linspace(steps[0], steps[-1], max(count, 2))
    return sorted({min(steps, key=lambda step: abs(step - goal)) for goal in wanted})


def pick_medium(behaviour: Behaviour, run: Run, wanted: float, *, count: int, episodes: int) -> Behaviour:
    """The first snapshot that reaches a return, and at most `count` up to it, from where learning begins."""
    medium = run.first_reaching(wanted)
    steps = [step for step in run.returns if step <= medium]
    # Before learning begins all snapshots are the same.
    begin = max((step for step in steps if step <= run.random_steps), default=steps[0])
    chosen = evenly_spaced([step for step in steps if step >= begin], count)
    replay = tuple(run.keep(step, behaviour.folder, episodes) for step in chosen)
    runs = {**behaviour.runs, "medium": run.origin}
    return replace(behaviour, random_steps=run.random_steps, medium=replay[-1], replay=replay, runs=runs)


def pick_expert(behaviour: Behaviour, run: Run, *, episodes: int) -> Behaviour:
    """The best snapshot."""
    expert = run.keep(run.best(), behaviour.folder, episodes)
    return replace(behaviour, expert=expert, runs={**behaviour.runs, "expert": run.origin})


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pick = parser.add_subparsers(required=True).add_parser("pick", help="choose policies from a run")
    pick.add_argument("--result", type=Path, required=True, help="JSON file of the run")
    pick.add_argument("--policies", type=Path, required=True, help="folder that was given to --keep-policies")
    pick.add_argument("--agent", type=int, default=0, help="number of the agent in the run, from 0")
    what = pick.add_mutually_exclusive_group(required=True)
    what.add_argument("--medium-return", type=float, help="that the medium policy is the first to reach")
    what.add_argument("--expert", action="store_true", help="choose the best policy as the expert")
    pick.add_argument("--snapshots", type=int, default=10, help="greatest number of policies up to the medium one")
    pick.add_argument("--episodes", type=int, default=20, help="to measure each policy with")
    pick.add_argument("--out", type=Path, default=FOLDER, help="folder of the behaviour policies")
    args = parser.parse_args()
    try:
        whole_number("snapshots", args.snapshots, least=2)
        whole_number("episodes", args.episodes)
    except ValueError as error:
        parser.error(str(error))
    return args


def main() -> int:
    """Command line."""
    args = parse()
    try:
        run = Run(args.result, args.policies, args.agent)
        run.origin["picked_by"] = origin(torch.device("cpu"))["command"]
        behaviour = Behaviour.read(run.task, args.out)
        if args.expert:
            behaviour = pick_expert(behaviour, run, episodes=args.episodes)
        else:
            limits = {"count": args.snapshots, "episodes": args.episodes}
            behaviour = pick_medium(behaviour, run, args.medium_return, **limits)
        behaviour.write()
    except (ValueError, OSError, CheckpointError) as error:
        print(f"behaviour.py: error: {error}", file=sys.stderr)
        return 2
    for snapshot in (behaviour.expert,) if args.expert else behaviour.replay:
        assert snapshot is not None
        drawn = f"{snapshot.mean_return:.0f} +- {snapshot.std_return:.0f}"
        print(f"{snapshot.file}: {snapshot.run_return:.0f} in the run, {drawn} with actions drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
