"""CORL's own TD3+BC and IQL on a data set of offline_d4rl.py: a check on our learners.

    python benchmarks/offline_corl.py --corl path/to/CORL --dataset hopper-medium-regen --algo td3bc iql --seeds 4

writes ``results/offline/<dataset>/corl-<algo>.json``, to be held against ``<algo>-real.json`` of as many
updates. CORL's file runs as it is, with its settings for the data set; stand-ins replace the packages that it imports
and few have installed, and our code judges the policies, in the episodes that ours are judged in. Each seed has a
process of its own on one CPU core. Stopped, the same command goes on with the seeds that are missing.
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
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.common.provenance import origin, record_origin
from synther_replay.benchmarks.common.resumable import checkpoint_beside, is_done, save_result
from synther_replay.benchmarks.data.registry import Dataset, load, normalised_score
from synther_replay.benchmarks.environments.tasks import agent_seed
from synther_replay.benchmarks.offline.rows import DataSource
from synther_replay.benchmarks.offline.settings import RESULTS, OfflineConfig
from synther_replay.common.checks import whole_number

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core per seed

FILES = {"td3bc": "td3_bc", "iql": "iql"}  # of CORL, by our names
_CPU = torch.device("cpu")
# Of a config: what the result depends on, and what is at the top of it beside these.
_SETTINGS = ("dataset", "algo", "seeds", "steps", "first_seed", "episodes", "evaluate_every")
_SHOWN = ("dataset", "data", "preset", "steps", "subsample", "augment", "network", "task")


@dataclass(frozen=True)
class Check:
    """What to run: data set, algorithm and sizes of `config` with the files of the checkout `corl`."""

    config: OfflineConfig
    corl: Path

    def __post_init__(self) -> None:
        """Refuse what cannot work, by name and value."""
        if not self.script.is_file():
            raise ValueError(f"corl: {self.corl} is not a checkout of CORL, there is no {self.script}")
        self.published()
        steps, every = self.config.steps, self.config.evaluate_every
        if steps % every:  # CORL would not judge at the end
            raise ValueError(f"steps: expected a multiple of evaluate_every={every}, got {steps}")

    @property
    def script(self) -> Path:
        """The algorithm's file."""
        return self.corl / "algorithms" / "offline" / f"{FILES[self.config.algo]}.py"

    def published(self) -> dict[str, str]:
        """CORL's settings for the official namesake of the data set, as its flat YAML file has them."""
        task, _, kind = self.config.dataset.rpartition("-")[0].partition("-")
        folder = self.corl / "configs" / "offline" / FILES[self.config.algo] / task
        found = sorted(folder.glob(f"{kind.replace('-', '_')}_v*.yaml"))
        if not found:
            raise ValueError(f"corl: {folder} has no settings for {self.config.dataset}")
        pairs = [line.partition(":") for line in found[-1].read_text().splitlines()]
        return {name.strip(): value.strip() for name, _, value in pairs if value}

    def to_json(self) -> dict[str, Any]:
        """Everything that the result depends on; the commit is unknown where the checkout has no history."""
        command = ["git", f"--git-dir={self.corl / '.git'}", f"--work-tree={self.corl}"]
        command += ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        commit = "unknown"
        with contextlib.suppress(OSError):  # there may be no git
            commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or commit
        sizes = {name: getattr(self.config, name) for name in _SETTINGS}
        return {**sizes, "published": self.published(), "corl_commit": commit}


def import_script(path: Path, dataset: Dataset) -> ModuleType:
    """Import an algorithm's file with stand-ins for the packages around it, which are gone again afterwards."""
    observations, actions = (Box(-1, 1, rows.shape[1:]) for rows in (dataset.observations, dataset.actions))
    env = SimpleNamespace(observation_space=observations, action_space=actions, seed=lambda seed: None)
    env.get_normalized_score = lambda value: normalised_score(dataset.name, value) / 100
    # Nobody acts in this environment, but it has to know how observations are scaled.
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
    """Train one agent; its return at each evaluation, None where the policy became non-finite."""
    torch.set_num_threads(1)
    config, published, returns = check.config, check.published(), []
    dataset = load(config.dataset, folder=folder)
    script = import_script(check.script, dataset)

    def judge(env: Any, actor: Any, device: str, n_episodes: int, seed: int) -> np.ndarray:
        actor.eval()
        policy = SimpleNamespace(mean_action=lambda observation: actor.act(env.scale(observation), device))
        value = mean_return(config.task, policy, agent_seed(seed), n_episodes)
        actor.train()
        returns.append(round(value, 2) if np.isfinite(value) else None)
        return np.array([value])

    script.eval_actor = judge
    numbers = [field.name for field in fields(script.TrainConfig) if isinstance(field.default, int | float)]
    settings = {name: json.loads(published[name]) for name in numbers if name in published}
    settings |= {"max_timesteps": config.steps, "eval_freq": config.evaluate_every, "n_episodes": config.episodes}
    settings |= {"device": "cpu", "env": config.dataset, "seed": seed}
    settings["buffer_size"] = len(dataset)  # what CORL has is more, and would stay empty
    with contextlib.redirect_stdout(io.StringIO()):
        script.train(script.TrainConfig(**settings))
    return returns


def run_to_file(path: Path, check: Check, source: DataSource, workers: int) -> dict[str, Any]:
    """Run the seeds that are missing, noting the returns of each beside `path`, then write and return the result."""
    config, begun = check.config, time.monotonic()
    rows, about = source.rows(config)
    make_folder_of(path)
    checkpoint = checkpoint_beside(path)
    state = {"settings": check.to_json(), "rows": rows.fingerprint(), "made_on": [], "seconds": 0.0, "returns": {}}
    if is_done(checkpoint, check):
        state = json.loads(checkpoint.read_text())
        if state["rows"] != rows.fingerprint():
            raise ValueError(f"{checkpoint} is of a run with other rows; remove it to begin again")
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
            state["seconds"] = round(before + time.monotonic() - begun, 2)
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
    parser.add_argument("--dataset", required=True, help="such as halfcheetah-medium-replay-regen")
    parser.add_argument("--algo", required=True, nargs="+", choices=FILES)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000, help="updates of each")
    parser.add_argument("--evaluate-every", type=int, default=10_000, help="updates between two evaluations")
    parser.add_argument("--episodes", type=int, help="per evaluation (10, in mazes 100)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="seeds at a time (one per core)")
    parser.add_argument("--folder", type=folder, help="where to look for data sets first")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in _SETTINGS if name not in ("dataset", "algo")}
    source = DataSource(args.folder, _CPU)
    try:
        whole_number("workers", args.workers)
        for check in [Check(OfflineConfig(args.dataset, algo, "real", **sizes), args.corl) for algo in args.algo]:
            path = args.out / args.dataset / f"corl-{check.config.algo}.json"
            if is_done(path, check):
                source.check_same(path, check.config)
                print(f"{path} is there already")
            else:
                print(run_to_file(path, check, source, args.workers)["final"])
    except (ValueError, OSError, ImportError) as error:
        return exit_with_error(2, error)
    except KeyboardInterrupt:
        return exit_with_error(130, "interrupted; the same command goes on with the seeds that are missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
