"""Runs of the suite and of its ablations: prints the options of `online_dmc.py`, a run per line.

    python -m synther_replay.benchmarks.online.jobs suite --each="--critic layernorm" |
      xargs -L 1 -P 4 python benchmarks/online_dmc.py

Groups:
    suite    twelve tasks, one agent with and without synthetic rows
    parts    four tasks, every critic with and without synthetic rows, and with every relevance
    scaling  four tasks, one agent at 1 to 40 updates per step with and without synthetic rows, and other shares of them
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from synther_replay.benchmarks.agents.named_critics import CRITICS
from synther_replay.benchmarks.environments.scores import SUITE
from synther_replay.relevance.guidance import NAMES as RELEVANCES

ABLATION_TASKS = ("quadruped-walk", "reacher-hard", "Walker2d-v5", "Ant-v4")
GROUPS = {"suite": SUITE, "parts": ABLATION_TASKS, "scaling": ABLATION_TASKS}
UPDATES = (1, 5, 20, 40)
REAL_RATIOS = (0.25, 0.75)  # 0.5 is the default
FIRST_SEED = 300  # nothing was chosen on these seeds
_REAL, _SYNTHETIC = "--algo sac20", "--algo synther"


def variants(group: str, synthetic: str, critics: list[str], relevances: list[str]) -> Iterator[str]:
    """Options in which the runs of a task differ.

    Args:
        group: One of `GROUPS`.
        synthetic: More options of the runs with synthetic rows.
        critics: Critics of the group `parts`.
        relevances: Relevances of the group `parts`.
    """
    mixed = f"{_SYNTHETIC} {synthetic}".strip()
    if group == "suite":
        yield from (_REAL, mixed)
    elif group == "parts":
        for critic in critics:
            yield from (f"{algo} --critic {critic}" for algo in (_REAL, mixed))
            yield from (f"{mixed} --critic {critic} --relevance {relevance}" for relevance in relevances)
    else:
        yield from (f"{algo} --utd {utd} --tag utd-{utd}" for utd in UPDATES for algo in (_REAL, mixed))
        yield from (f"{mixed} --real-ratio {ratio} --tag real-{ratio * 100:.0f}" for ratio in REAL_RATIOS)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--envs", nargs="+", help="tasks (default: all of the group)")
    parser.add_argument("--each", default="", help='more options of every run, such as --each="--steps 50000"')
    parser.add_argument("--synthetic", default="", help="more options of the runs with synthetic rows")
    parser.add_argument("--critics", nargs="+", choices=CRITICS, default=list(CRITICS), help="of the group parts (all)")
    parser.add_argument("--relevances", nargs="*", default=list(RELEVANCES), help="of the group parts (all)")
    args = parser.parse_args()
    for task in args.envs or GROUPS[args.group]:
        for options in variants(args.group, args.synthetic, args.critics, args.relevances):
            shared = f"--first-seed {FIRST_SEED} --out results/online/{args.group} {args.each}".strip()
            print(f"--env {task} {options} {shared}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
