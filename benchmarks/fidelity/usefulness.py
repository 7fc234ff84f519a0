"""What rows are worth to an agent: SAC learns from the rows of a finished run, with generated ones among them or not.

    python benchmarks/online_dmc.py --env Ant-v4 --algo sac --utd 4 --critic layernorm --seeds 1 --keep-rows rows
    python -m synther_replay.benchmarks.fidelity.usefulness --env Ant-v4 --rows rows/Ant-v4-sac-layernorm-0.npz \
        --sources real again fast "fast consistent=True" "noise observations=0.1" --out usefulness.json

SAC is trained from nothing, on rows alone, and its policy then acts in the task. This takes minutes on a CPU and shows
what no distance between distributions does: which errors of a generator an agent can live with. Without new experience
the returns say nothing about how fast an agent learns; compare the sources of one command.

Sources, of which half of each batch comes:
    real                     none: all of the batch is real
    again                    real rows, drawn again with replacement; the difference to `real` is chance
    PRESET [NAME=VALUE ...]  a generator that is fitted to the rows, one for each seed
    noise [COLUMNS=SCALE]    real rows with noise of so many standard deviations in observations, actions, rewards or
                             next_observations; in `both`, the same in observation and next observation
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synther_replay import DiffusionGenerator, Transitions
from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.agents.named_critics import CRITICS, critic_options
from synther_replay.benchmarks.agents.policy import policies_of
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.benchmarks.common.command_line import setting
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.generator_settings import GENERATOR_PRESETS, build_generator_config
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.environments.tasks import Task
from synther_replay.benchmarks.fidelity.rows import read_dataset
from synther_replay.common.checks import resolve_device
from synther_replay.common.seeding import derive_seed, generator_for
from synther_replay.common.stacks import take_rows

_NOISY = ("observations", "actions", "rewards", "next_observations", "both")


def parsed(source: str) -> tuple[str, dict[str, Any]]:
    """Kind and options of a source; raises an error for an unknown one."""
    kind, *options = source.split() or [""]
    changes = dict(setting(option, "--sources") for option in options)
    if kind in GENERATOR_PRESETS:
        build_generator_config(kind, changes)
        return kind, changes
    scales = kind == "noise" and all(type(scale) in (int, float) and scale >= 0 for scale in changes.values())
    if kind not in ("real", "again", "noise") or (changes and not scales) or not changes.keys() <= set(_NOISY):
        known = ", ".join(("real", "again", "noise", *GENERATOR_PRESETS))
        raise ValueError(f"--sources: expected one of {known} with options, got {source!r}")
    return kind, changes


def rows_of(source: str, real: Transitions, count: int, seed: int) -> Transitions | None:
    """Rows ``(M, count)`` of a source, given real rows ``(M, n)``; None for `real`."""
    kind, changes = parsed(source)
    if kind in GENERATOR_PRESETS:
        config = build_generator_config(kind, changes)
        stack = len(real.rows)
        generator = DiffusionGenerator(real.spec, config, device=real.rows.device, seed=seed, stack=stack)
        generator.fit(real if stack > 1 else Transitions(real.spec, real.rows[0]))
        return Transitions(real.spec, generator.sample(count).rows.view(stack, count, -1))
    if kind == "real":
        return None
    rng = generator_for(real.rows.device, seed)
    chosen = torch.randint(real.rows.shape[1], (len(real.rows), count), generator=rng, device=rng.device)
    rows = take_rows(real.rows, chosen)
    for columns, scale in changes.items():
        _add_noise(rows, real, columns, scale, rng)
    return Transitions(real.spec, rows)


def _add_noise(rows: Tensor, real: Transitions, columns: str, scale: float, rng: torch.Generator) -> None:
    spec = real.spec
    places = [spec.observations, spec.next_observations] if columns == "both" else [getattr(spec, columns)]
    std = real.rows[..., places[0]].std(1, keepdim=True)
    noise = scale * std * torch.randn(rows[..., places[0]].shape, generator=rng, device=rng.device)
    for place in places:
        rows[..., place] += noise
    rows[..., spec.actions].clamp_(-1, 1)


def trained(
    task: Task,
    real: Transitions,
    synthetic: Transitions | None,
    settings: Hyperparameters,
    updates: int,
) -> StackedSAC:
    """Agents ``(M,)`` that have learnt from real rows ``(M, n)``, half of each batch synthetic if there are such.

    Args:
        task: The task that the rows are of.
        real: Real rows.
        synthetic: Synthetic rows, or None.
        settings: Of the agents.
        updates: Critic updates.
    """
    spec, device = real.spec, real.rows.device
    agents, count = real.rows.shape[:2]
    held = 0 if synthetic is None else synthetic.rows.shape[1]
    ratio = 1.0 if synthetic is None else 0.5
    replay = StackedReplay(spec, agents, capacity=count, synthetic=held, real_ratio=ratio, device=device)
    replay.load_state_dict({"real": real.rows, "synthetic": None if synthetic is None else synthetic.rows})
    learner = StackedSAC(replay, task.target_entropy, settings, seed=0)
    learner.prepare()
    learner.reseed(0)
    for _ in range(updates // settings.updates):
        learner.learn()
    return learner


def measure(args: argparse.Namespace, source: str, task: Task, real: Transitions) -> dict[str, Any]:
    """Returns of all seeds with rows of one source."""
    settings = Hyperparameters(**{**critic_options(args.critic, args.agent), "updates": args.utd})
    began = time.perf_counter()
    synthetic = rows_of(source, real, args.synthetic, derive_seed(0, 6))
    middle = time.perf_counter()
    policies = policies_of(trained(task, real, synthetic, settings, args.updates).policy_weights())
    end = time.perf_counter()
    returns = [mean_return(task.name, policy, seed, args.episodes) for seed, policy in enumerate(policies)]
    return {"returns": returns, "generator_seconds": middle - began, "learner_seconds": end - middle}


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="task, such as Ant-v4 or cheetah-run")
    parser.add_argument("--rows", type=Path, required=True, help="real rows, of online_dmc.py --keep-rows")
    parser.add_argument("--sources", nargs="+", default=["real", "again", "fast"])
    parser.add_argument("--seeds", type=int, default=3, help="agents per source, all on the same rows (3)")
    parser.add_argument("--updates", type=int, default=20_000, help="critic updates (20,000)")
    parser.add_argument("--utd", type=int, default=20, help="critic updates for one of the policy (20)")
    parser.add_argument("--synthetic", type=int, default=100_000, help="rows of a source (100,000)")
    parser.add_argument("--episodes", type=int, default=10, help="episodes per agent (10)")
    parser.add_argument("--critic", choices=tuple(CRITICS), default="layernorm")
    parser.add_argument("--agent", action="append", default=[], metavar="NAME=VALUE", help="as in online_dmc.py")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    try:  # before minutes of training
        args.agent = dict(setting(option, "--agent") for option in args.agent)
        for source in args.sources:
            parsed(source)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    if args.out:
        make_folder_of(args.out)
    device, task = resolve_device(args.device), Task.named(args.env)
    own = read_dataset(str(args.rows)).transitions().to(device)
    if (own.spec.observation_dim, own.spec.action_dim) != (task.observation_dim, task.action_dim):
        parser.error(f"--rows: {args.rows} has columns of another task than {args.env}")
    real = Transitions(own.spec, own.rows.expand(args.seeds, -1, -1))
    results: dict[str, dict[str, Any]] = {}
    for source in args.sources:
        results[source] = measure(args, source, task, real)
        print(markdown_table(("source", "return"), [[source, mean_and_spread(results[source]["returns"])]]), flush=True)
        if args.out:
            names = ("env", "seeds", "episodes", "updates", "utd", "synthetic", "critic", "agent")
            settings = {key: getattr(args, key) for key in names}
            write_json(args.out, {"settings": settings, "rows": len(own), "results": results, **origin(device)})


if __name__ == "__main__":
    main()
