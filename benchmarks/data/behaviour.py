"""Behaviour policies of regenerated data sets: snapshots taken from runs of online_dmc.py.

    python benchmarks/online_dmc.py --env Hopper-v5 --algo sac --keep-policies policies ...
    python -m synther_replay.benchmarks.data.behaviour pick --result results/online/Hopper-v5/sac.json \
        --policies policies --agent 0 --medium-return 1100
    python -m synther_replay.benchmarks.data.behaviour pick --result longer/Hopper-v5/sac.json \
        --policies policies --agent 0 --expert

The first `pick` stores the first snapshot that reaches the given return as `medium` and the snapshots before it as
`replay`. The second stores the best snapshot as `expert` and leaves the others unchanged. ``policies/<task>`` has one
file per policy and a manifest with the origin of each, its return in the run and its return with sampled actions.
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
_ORIGIN = ("command", "commit", "machine", "versions")  # keys of a result that are copied to the manifest


@dataclass(frozen=True)
class Snapshot:
    """One policy.

    Attributes:
        file: File name, in the folder of the manifest.
        sha256: Digest of the file.
        step: Environment steps after which it was saved.
        seed: Seed of its agent in the run.
        run_return: Mean return of the deterministic policy, as evaluated in the run.
        mean_return: Mean return with sampled actions, as in the data sets.
        std_return: Standard deviation of that return.
        episodes: Number of episodes of that measurement.
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
    """The behaviour policies of a task.

    Attributes:
        task: Name of the task.
        folder: Folder of the files.
        random_steps: Random steps at the start of the run of `replay`.
        medium: A partially trained policy.
        expert: The best policy of its run.
        replay: Snapshots up to `medium`, which is the last one.
        runs: Command, commit, machine and versions of the runs of "medium" and "expert", and the `pick` command.
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
        """Read the manifest of a task; without a manifest, there are no policies.

        Raises:
            ValueError: The manifest is damaged.
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
            raise ValueError(f"{path}: manifest is damaged: {error!r}") from error

    def write(self) -> None:
        """Write the manifest and remove policy files that it does not list."""
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
        """Load the policy of a snapshot.

        Raises:
            ValueError: The file is missing, or its digest differs from the manifest.
        """
        path = self.folder / snapshot.file
        if not path.is_file():
            raise ValueError(f"{path}: file is missing, but {_MANIFEST} lists it")
        if (found := _digest(path)) != snapshot.sha256:
            raise ValueError(
                f"{path}: damaged or replaced (got sha256 {found}, expected {snapshot.sha256} from {_MANIFEST})"
            )
        return load_policies(path)[0]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Run:
    """One agent of a finished run and its saved policies.

    Args:
        result: Result file of the run.
        policies: Folder given to ``--keep-policies``.
        agent: Index of the agent.
    """

    def __init__(self, result: Path, policies: Path, agent: int) -> None:
        """Find the saved policies."""
        self.result, self.agent = result, agent
        try:
            content = json.loads(result.read_text())
            self.task: str = content["env"]
            self.algorithm: str = content["algo"]
            self.random_steps: int = content["settings"]["random_steps"]
            seeds, curve = content["seeds"], content["curve"]
            self.origin = {key: content[key] for key in _ORIGIN}
            if not 0 <= agent < len(seeds):
                raise ValueError(f"--agent: expected 0 to {len(seeds) - 1}, got {agent}")
            self.seed: int = seeds[agent]
            returns = {point["step"]: point["returns"][agent] for point in curve}
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{result}: not a result file of online_dmc.py: {error!r}") from error
        self._folder: Path = policies / self.task / result.stem
        # The return of a failed agent is None or NaN.
        self.returns: dict[int, float] = {
            step: value
            for step, value in sorted(returns.items())
            if value is not None and math.isfinite(value) and self._file(step).is_file()
        }
        if not self.returns:
            raise ValueError(f"--policies: no policies of {result} in {self._folder}")

    def _file(self, step: int) -> Path:
        return self._folder / f"{step}.safetensors"

    def first_reaching(self, target: float) -> int:
        """Step of the first snapshot whose return is at least `target`."""
        for step, value in self.returns.items():
            if value >= target:
                return step
        best = max(self.returns.values())
        raise ValueError(
            f"--medium-return: expected at most {best}, the best return of agent {self.agent} in {self.result}, "
            f"got {target}"
        )

    def best(self) -> int:
        """Step of the snapshot with the highest return."""
        return max(self.returns, key=self.returns.__getitem__)

    def keep(self, step: int, folder: Path, episodes: int) -> Snapshot:
        """Copy a policy to `folder` and measure its return with sampled actions."""
        policies = load_policies(self._file(step))
        if self.agent >= len(policies):
            raise ValueError(f"--agent: {self._file(step)} has {len(policies)} agents, got agent {self.agent}")
        chosen = policies[self.agent].layers
        layers = Layers({name: torch.from_numpy(part).unsqueeze(0) for name, part in chosen.items()})
        path = folder / f"{self.algorithm}-{self.seed}-{step}.safetensors"
        save_policies(path, layers)
        returns = sampled_returns(self.task, load_policies(path)[0], episodes)
        mean, deviation = (round(float(number), 2) for number in (returns.mean(), returns.std()))
        return Snapshot(path.name, _digest(path), step, self.seed, self.returns[step], mean, deviation, episodes)


def sampled_returns(task: str, policy: Policy, episodes: int) -> np.ndarray:
    """Returns ``(episodes,)`` of a policy with sampled actions; the seeds of the episodes are fixed."""
    source = Episodes(task, policy)
    return np.array([source.rollout(derive_seed(0, k))["rewards"].sum(dtype=np.float64) for k in range(episodes)])


def evenly_spaced(steps: Sequence[int], count: int) -> list[int]:
    """Select at most `count` of the steps, about evenly spaced, including the first and the last."""
    wanted = np.linspace(steps[0], steps[-1], max(count, 2))
    return sorted({min(steps, key=lambda step: abs(step - goal)) for goal in wanted})


def pick_medium(behaviour: Behaviour, run: Run, wanted: float, *, count: int, episodes: int) -> Behaviour:
    """Store the first snapshot that reaches a return as medium, and at most `count` snapshots up to it as replay."""
    medium = run.first_reaching(wanted)
    steps = [step for step in run.returns if step <= medium]
    # All snapshots before training starts are equal; keep the last of them.
    begin = max((step for step in steps if step <= run.random_steps), default=steps[0])
    chosen = evenly_spaced([step for step in steps if step >= begin], count)
    replay = tuple(run.keep(step, behaviour.folder, episodes) for step in chosen)
    runs = {**behaviour.runs, "medium": run.origin}
    return replace(behaviour, random_steps=run.random_steps, medium=replay[-1], replay=replay, runs=runs)


def pick_expert(behaviour: Behaviour, run: Run, *, episodes: int) -> Behaviour:
    """Store the best snapshot as expert."""
    expert = run.keep(run.best(), behaviour.folder, episodes)
    return replace(behaviour, expert=expert, runs={**behaviour.runs, "expert": run.origin})


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pick = parser.add_subparsers(required=True).add_parser("pick", help="choose policies from a run")
    pick.add_argument("--result", type=Path, required=True, help="result file of the run")
    pick.add_argument("--policies", type=Path, required=True, help="folder given to online_dmc.py --keep-policies")
    pick.add_argument("--agent", type=int, default=0, help="index of the agent in the run (0)")
    role = pick.add_mutually_exclusive_group(required=True)
    role.add_argument("--medium-return", type=float, help="choose the first policy with at least this return as medium")
    role.add_argument("--expert", action="store_true", help="choose the best policy as expert")
    pick.add_argument("--snapshots", type=int, default=10, help="largest number of policies up to the medium one (10)")
    pick.add_argument("--episodes", type=int, default=20, help="episodes to measure each policy with (20)")
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
        sampled = f"{snapshot.mean_return:.0f} +- {snapshot.std_return:.0f}"
        print(f"{snapshot.file}: return {snapshot.run_return:.0f} in the run, {sampled} with sampled actions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
