"""CORL's own TD3+BC and IQL on a data set of offline_d4rl.py, to check our learners.

    python -m synther_replay.benchmarks.peers.corl_scripts --corl path/to/CORL --dataset hopper-medium-regen \
        --algo td3bc iql --seeds 4

Writes ``results/offline/<dataset>/corl-<algo>.json``, to compare with ``<algo>-real.json`` of the same number of
updates. CORL's script runs unchanged, with its settings for the data set. Stubs replace packages that it imports (gym,
d4rl, pyrallis, wandb). Policies are evaluated by our code, in the same episodes as ours. Each seed runs in its own
process on one CPU core. If interrupted, the same command runs the missing seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import time
from concurrent.futures import as_completed
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.common.command_line import exit_with_error, folder
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import finite
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.common.provenance import origin, record_origin
from synther_replay.benchmarks.common.resumable import checkpoint_path, is_done, save_result
from synther_replay.benchmarks.data.registry import Dataset, load, normalised_score
from synther_replay.benchmarks.environments.tasks import agent_seed
from synther_replay.benchmarks.offline.rows import DataSource
from synther_replay.benchmarks.offline.settings import RESULTS, OfflineConfig
from synther_replay.common.checks import whole_number

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core per seed

FILES = {"td3bc": "td3_bc", "iql": "iql"}  # CORL's script names, by our names
_CPU = torch.device("cpu")
# Settings of a config that the result depends on, and those repeated at the top level of the result.
_SETTINGS = ("dataset", "algo", "seeds", "steps", "first_seed", "episodes", "evaluate_every")
_SHOWN = ("dataset", "data", "preset", "steps", "subsample", "augment", "network", "task")


@dataclass(frozen=True)
class Check:
    """A run of CORL's script.

    Attributes:
        config: Data set, algorithm, seeds and steps.
        corl: Checkout of CORL.
    """

    config: OfflineConfig
    corl: Path

    def __post_init__(self) -> None:
        """Validate all values."""
        if not self.script.is_file():
            raise ValueError(f"--corl: {self.corl} is not a checkout of CORL: no {self.script}")
        self.published()
        steps, every = self.config.steps, self.config.evaluate_every
        if steps % every:  # CORL would not evaluate the final policy
            raise ValueError(f"steps: expected a multiple of evaluate_every={every}, got {steps}")

    @property
    def script(self) -> Path:
        """CORL's script of the algorithm."""
        return self.corl / "algorithms" / "offline" / f"{FILES[self.config.algo]}.py"

    def published(self) -> dict[str, str]:
        """CORL's settings for the official version of the data set, from its YAML file (which is not nested)."""
        task, _, kind = self.config.dataset.rpartition("-")[0].partition("-")
        folder = self.corl / "configs" / "offline" / FILES[self.config.algo] / task
        found = sorted(folder.glob(f"{kind.replace('-', '_')}_v*.yaml"))
        if not found:
            raise ValueError(f"--corl: no settings for {self.config.dataset} in {folder}")
        pairs = [line.partition(":") for line in found[-1].read_text().splitlines()]
        return {name.strip(): value.strip() for name, _, value in pairs if value}

    def to_json(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON values; the commit is "unknown" without git history."""
        command = ["git", f"--git-dir={self.corl / '.git'}", f"--work-tree={self.corl}"]
        command += ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        commit = "unknown"
        with contextlib.suppress(OSError):  # git may not be installed
            commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or commit
        sizes = {name: getattr(self.config, name) for name in _SETTINGS}
        return {**sizes, "published": self.published(), "corl_commit": commit}


def import_script(path: Path, dataset: Dataset) -> ModuleType:
    """Import a script of CORL with stubs in place of the packages that it imports; the stubs are removed afterwards."""
    observations, actions = (Box(-1, 1, rows.shape[1:]) for rows in (dataset.observations, dataset.actions))
    env = SimpleNamespace(observation_space=observations, action_space=actions, seed=lambda seed: None)
    env.get_normalized_score = lambda value: normalised_score(dataset.name, value) / 100
    # No one steps this environment; the evaluation reads the scaling of observations from it.
    wrappers = SimpleNamespace(TransformObservation=lambda env, scale: SimpleNamespace(**vars(env), scale=scale))
    saved = SimpleNamespace(save=lambda: None)
    modules = {
        "gym": SimpleNamespace(Env=object, make=lambda name: env, wrappers=wrappers),
        "d4rl": SimpleNamespace(qlearning_dataset=lambda env: dataset.to_qlearning()),
        "pyrallis": SimpleNamespace(wrap=lambda: lambda function: function),
        "wandb": SimpleNamespace(init=lambda **_: None, log=lambda values, step: None, run=saved),
    }
    spec = importlib.util.spec_from_file_location(f"corl_{path.stem}", path)
    script = importlib.util.module_from_spec(spec)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        spec.loader.exec_module(script)
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    return script


def run(check: Check, folder: Path | None, seed: int) -> list[float | None]:
    """Train one agent; returns its return at each evaluation, or None for a non-finite policy."""
    torch.set_num_threads(1)
    config, published, returns = check.config, check.published(), []
    dataset = load(config.dataset, folder=folder)
    script = import_script(check.script, dataset)

    def evaluate(env: Any, actor: Any, device: str, n_episodes: int, seed: int) -> np.ndarray:
        actor.eval()
        policy = SimpleNamespace(mean_action=lambda observation: actor.act(env.scale(observation), device))
        value = mean_return(config.task, policy, agent_seed(seed), n_episodes)
        actor.train()
        returns.append(finite(value, ".2f"))
        return np.array([value])

    script.eval_actor = evaluate
    numbers = [field.name for field in fields(script.TrainConfig) if isinstance(field.default, int | float)]
    settings = {name: json.loads(published[name]) for name in numbers if name in published}
    settings |= {"max_timesteps": config.steps, "eval_freq": config.evaluate_every, "n_episodes": config.episodes}
    settings |= {"device": "cpu", "env": config.dataset, "seed": seed}
    settings["buffer_size"] = len(dataset)  # CORL's default is larger, and the rest would stay empty
    with contextlib.redirect_stdout(io.StringIO()):
        script.train(script.TrainConfig(**settings))
    return returns


def run_to_file(path: Path, check: Check, source: DataSource, workers: int) -> dict[str, Any]:
    """Run the missing seeds, save the returns of each in the checkpoint, then write and return the result."""
    config, started = check.config, time.monotonic()
    rows, about = source.rows(config)
    make_folder_of(path)
    checkpoint = checkpoint_path(path)
    state = {"settings": check.to_json(), "rows": rows.fingerprint(), "made_on": [], "seconds": 0.0, "returns": {}}
    if is_done(checkpoint, check):
        state = json.loads(checkpoint.read_text())
        if state["rows"] != rows.fingerprint():
            raise ValueError(
                f"{checkpoint}: checkpoint was saved with other rows (got fingerprint {state['rows']}, expected "
                f"{rows.fingerprint()}); remove the file to start over"
            )
    record_origin(state["made_on"], _CPU)
    seeds, before, returns = (
        range(config.first_seed, config.first_seed + config.seeds),
        state["seconds"],
        state["returns"],
    )
    with WorkerPool(workers) as pool:
        missing = [seed for seed in seeds if str(seed) not in returns]
        futures = {pool.submit(run, check, source.folder, seed): str(seed) for seed in missing}
        for future in as_completed(futures):
            returns[futures[future]] = future.result()
            state["seconds"] = round(before + time.monotonic() - started, 2)
            write_json(checkpoint, state)
            print(f"{config.dataset} {path.stem} seed {futures[future]}: returns {future.result()}", flush=True)
    curve = []
    for k, now in enumerate(zip(*(returns[str(seed)] for seed in seeds), strict=True), 1):
        scores = [None if value is None else round(normalised_score(config.dataset, value), 2) for value in now]
        curve.append({"step": k * config.evaluate_every, "returns": list(now), "scores": scores})
    result = {**{name: getattr(config, name) for name in _SHOWN}, "algo": path.stem, "seeds": list(seeds), **about}
    result |= {"curve": curve, "final": curve[-1]["scores"], "wall_seconds": {"total": state["seconds"]}}
    result |= {name: state[name] for name in ("made_on", "settings")}
    save_result(path, {**result, **origin(_CPU)})
    return result


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corl", required=True, type=Path, help="checkout of CORL")
    parser.add_argument("--dataset", required=True, help="for example halfcheetah-medium-replay-regen")
    parser.add_argument("--algo", required=True, nargs="+", choices=FILES)
    parser.add_argument("--seeds", type=int, default=4, help="number of agents (4)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first agent; the others count up (0)")
    parser.add_argument("--steps", type=int, default=50_000, help="updates per agent (50,000)")
    parser.add_argument("--evaluate-every", type=int, default=10_000, help="updates between evaluations (10,000)")
    parser.add_argument("--episodes", type=int, help="episodes per evaluation (10; mazes: 100)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="parallel seeds (one per core)")
    parser.add_argument("--folder", type=folder, help="folder to search for data sets first")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (%(default)s)")
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in _SETTINGS if name not in ("dataset", "algo")}
    source = DataSource(args.folder, _CPU)
    try:
        whole_number("workers", args.workers)
        for check in [Check(OfflineConfig(args.dataset, algo, "real", **sizes), args.corl) for algo in args.algo]:
            path = args.out / args.dataset / f"corl-{check.config.algo}.json"
            if is_done(path, check):
                source.check_same(path, check.config)
                print(f"{path}: already exists")
            else:
                print(run_to_file(path, check, source, args.workers)["final"])
    except (ValueError, OSError, ImportError) as error:
        return exit_with_error(2, error)
    except KeyboardInterrupt:
        return exit_with_error(130, "interrupted; run the same command for the missing seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
