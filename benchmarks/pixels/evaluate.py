"""Stage evaluate: episodes of trained policies, which see rendered frames; on a machine that can render."""

from __future__ import annotations

import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch

from synther_replay.benchmarks.agents.evaluation import evaluation_seed
from synther_replay.benchmarks.common.files import write_json
from synther_replay.benchmarks.common.formatting import finite
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.resumable import differences, read_result
from synther_replay.benchmarks.environments.tasks import agent_seed
from synther_replay.benchmarks.pixels.archive import Archive
from synther_replay.benchmarks.pixels.frames import LiveStack
from synther_replay.benchmarks.pixels.networks import Agent
from synther_replay.benchmarks.pixels.rendering import RenderSettings, choose_renderer, pixel_task
from synther_replay.benchmarks.pixels.settings import POLICIES, Places
from synther_replay.benchmarks.pixels.training import load_weights


def evaluate(places: Places, *, episodes: int, workers: int) -> dict[str, Any]:
    """Evaluate all policies of a run that have not been evaluated; the result file is written after each.

    Args:
        places: Paths of the run.
        episodes: Episodes per policy; all policies of a seed have the same ones.
        workers: Processes.

    Raises:
        ValueError: Nothing can be rendered, or there is no policy or a result of other settings.
    """
    about = Archive.read(places.archive).about
    recorded, path = about["settings"], places.evaluated
    settings = {"episodes": episodes, "action_repeat": about["action_repeat"]}
    settings |= {name: recorded[name] for name in ("steps", "render")}
    found, encoder = _earlier(path, settings), places.policy("encoder")
    missing = {}
    for name in POLICIES:
        file = places.policy(name)
        if file.exists() and found.get(name, {}).get("sha256") != _digests(encoder, file):
            missing[name] = file
    if not missing:
        if not found:
            raise ValueError(f"{places.folder}: no policy; run the stage train first")
        print(f"{path}: already exists")
        return read_result(path)
    choose_renderer()
    render = RenderSettings(**recorded["render"])
    result: dict[str, Any] = {}
    with WorkerPool(workers) as pool:
        seeds = [evaluation_seed(agent_seed(places.seed), number) for number in range(episodes)]
        task = (recorded["task"], render, recorded["steps"])
        hidden = read_result(places.trained)["settings"]["hidden"]
        pending = {
            name: [pool.submit(run_episode, *task, seed, encoder, file, hidden) for seed in seeds]
            for name, file in missing.items()
        }
        for name, futures in pending.items():
            returns = [future.result() for future in futures]
            kept = [finite(value, ".2f") for value in returns]
            found[name] = {"sha256": _digests(encoder, missing[name]), "returns": kept}
            result = _result(places, settings, about, found)
            write_json(path, result)
            print(f"{path}: {name}: return {sum(returns) / episodes:.1f} in {episodes} episodes", flush=True)
    return result


def run_episode(
    task: str, render: RenderSettings, steps: int, seed: int, encoder: Path, head: Path, hidden: int
) -> float:
    """Return of one episode of the deterministic policy; NaN if the simulation diverges."""
    torch.set_num_threads(1)  # one process per core
    environment = pixel_task(task, render)
    agent = _agent(environment.action_dim, hidden, encoder, head)
    environment.reset(seed)
    stack, total = LiveStack(environment.frame()), 0.0
    for _ in range(steps):
        with torch.inference_mode():
            action = agent.actions(agent.encode(stack.image()))[0].numpy()
        _, reward, terminated, truncated = environment.step(action)
        total += reward
        if terminated or truncated or math.isnan(reward):
            break
        stack.add(environment.frame())
    return total


@cache
def _agent(action_dim: int, hidden: int, encoder: Path, head: Path) -> Agent:
    """The policy, without its critic."""
    agent = Agent(action_dim, hidden, has_critic=False, of_images=True)
    load_weights(encoder, agent.encoder, agent.trunk)
    load_weights(head, agent.head)
    return agent


def _earlier(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Policies that were evaluated before."""
    if not path.exists():
        return {}
    result = read_result(path)
    if mismatch := differences(result.get("settings"), settings):
        raise ValueError(f"{path}: result has other settings ({mismatch}); remove the file or choose another --work")
    return dict(result["policies"])


def _result(places: Places, settings: dict[str, Any], about: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The result file: returns, and what the stages before have written."""
    stages = {path.stem: read_result(path) for path in sorted(places.folder.glob("*.json"))}
    return {
        "dataset": places.dataset,
        "algo": places.algo,
        "seed": places.seed,
        "policies": found,
        "recorded": about,
        "stages": stages,
        "settings": settings,
        **origin(torch.device("cpu")),
    }


def _digests(*paths: Path) -> str:
    """Digest of several files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
