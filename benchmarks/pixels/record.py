"""Stage record: episodes of state policies, rendered in several processes and kept one by one until all are there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther_replay.benchmarks.agents.policy import Policy
from synther_replay.benchmarks.common.files import write_json
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.resumable import differences, read_result
from synther_replay.benchmarks.data.behaviour import FOLDER, Behaviour, Snapshot
from synther_replay.benchmarks.environments.tasks import environment_seed
from synther_replay.benchmarks.pixels.archive import Archive
from synther_replay.benchmarks.pixels.codec import decode, encode, signal_to_noise
from synther_replay.benchmarks.pixels.rendering import ACTION_REPEAT, choose_renderer, pixel_task
from synther_replay.benchmarks.pixels.settings import RecordSettings, archive_path
from synther_replay.common.seeding import derive_seed


def record(
    settings: RecordSettings, *, work: Path, policies: Path | None, workers: int, report: Callable[[str], None] = print
) -> Path:
    """Record a data set, or what is missing of it.

    Args:
        settings: What to record.
        work: Folder of all files.
        policies: Folder of the behaviour policies; None for that of `data.behaviour`.
        workers: Processes.
        report: Called with each line of progress.

    Returns:
        Path of the archive.

    Raises:
        ValueError: Nothing can be rendered, a policy is missing, or files of other settings exist.
    """
    path = archive_path(work, settings.dataset)
    chosen = behaviour_snapshots(settings, policies or FOLDER)
    wanted = {"settings": settings.to_json(), "policies": [asdict(snapshot) for _, snapshot in chosen]}
    if path.exists():
        _check_same(path, Archive.read(path).about, wanted)
        report(f"{path}: already exists")
        return path
    choose_renderer()
    folder = path.with_suffix(".parts")
    _begin(folder, wanted)
    started = time.perf_counter()
    with WorkerPool(workers) as pool:
        parts = [folder / f"{number:05d}.npz" for number in range(settings.episodes)]
        missing = {number: part for number, part in enumerate(parts) if not part.exists()}
        episodes = {
            pool.submit(_record_episode, part, settings, *chosen[number % len(chosen)], number): number
            for number, part in missing.items()
        }
        _wait(episodes, report)
    spent = time.perf_counter() - started
    archive = _joined(parts, wanted, spent, len(missing))
    archive.write(path)
    shutil.rmtree(folder)
    report(summary(path, archive))
    return path


def behaviour_snapshots(settings: RecordSettings, policies: Path) -> list[tuple[Policy, Snapshot]]:
    """The policies that collect a data set, in turn."""
    behaviour = Behaviour.read(f"{settings.task}-repeat{ACTION_REPEAT}", policies)
    of_level = {"medium": (behaviour.medium,), "expert": (behaviour.expert,), "mixed": behaviour.replay}
    chosen = [snapshot for snapshot in of_level[settings.level] if snapshot is not None]
    if not chosen:
        raise ValueError(f"level: no {settings.level} policy in {behaviour.folder}; see data/behaviour.py")
    return [(behaviour.policy(snapshot), snapshot) for snapshot in chosen]


def summary(path: Path, archive: Archive) -> str:
    """Size, quality and returns of an archive in a line."""
    size, returns, about = path.stat().st_size, archive.returns(), archive.about
    return (
        f"{path}: {len(archive):,} frames, {size / 2**20:.1f} MiB, {size / len(archive):.0f} bytes per frame, "
        f"{about['signal_to_noise']:.1f} dB, return {returns.mean():.1f} +- {returns.std():.1f} "
        f"in {len(returns)} episodes, {about['frames_per_second']:.1f} frames/s"
    )


def _check_same(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if mismatch := "; ".join(filter(None, (differences(found.get(key), wanted[key], key) for key in wanted))):
        raise ValueError(f"{path}: recorded with other settings ({mismatch}); remove it or choose another --work")


def _begin(folder: Path, wanted: dict[str, Any]) -> None:
    """Make the folder of the episodes, or check that the one there is for these settings."""
    settings = folder / "settings.json"
    if settings.exists():
        _check_same(settings, read_result(settings), wanted)
    else:
        write_json(settings, wanted)


def _wait(episodes: dict[Future[None], int], report: Callable[[str], None]) -> None:
    """Wait for all episodes; report now and then."""
    started = reported = time.perf_counter()
    for done, future in enumerate(episodes, 1):
        future.result()
        now = time.perf_counter()
        if now - reported > 30:
            reported, left = now, (now - started) / done * (len(episodes) - done)
            report(f"{done} of {len(episodes)} episodes, about {left:.0f} s left")


def _joined(parts: list[Path], wanted: dict[str, Any], spent: float, recorded: int) -> Archive:
    """All episodes; `recorded` of them were recorded in this call, in `spent` seconds."""
    episodes = [Archive.read(part) for part in parts]
    noise = [episode.about["signal_to_noise"] for episode in episodes]
    frames = sum(len(episode) for episode in episodes) * recorded / len(episodes)
    about = {
        **wanted,
        "action_repeat": ACTION_REPEAT,
        "signal_to_noise": float(np.mean(noise)),
        "frames_per_second": frames / spent,  # of all processes
        **origin(torch.device("cpu")),
    }
    return Archive.joined(episodes, about)


def _record_episode(path: Path, settings: RecordSettings, policy: Policy, snapshot: Snapshot, number: int) -> None:
    """Record one episode with sampled actions; it depends on its arguments only."""
    task, seed = pixel_task(settings.task, settings.render), derive_seed(settings.seed, number)
    rng = np.random.default_rng(derive_seed(seed, 1))
    state, over, terminated = task.reset(environment_seed(seed, 0)), False, False
    frames, actions, rewards = [task.frame()], [], []
    while not over:
        action = policy.sampled_action(state, rng.standard_normal(task.action_dim, np.float32)).astype(np.float32)
        state, reward, terminated, truncated = task.step(action)
        if not np.isfinite(reward):
            raise ValueError(f"{snapshot.file}: the simulation diverged in episode {number}")
        frames.append(task.frame())
        actions.append(action)
        rewards.append(reward)
        over = terminated or truncated or len(actions) == settings.steps
    images = np.array(frames)
    content = encode(images, settings.codec)
    about = {"policy": snapshot.file, "signal_to_noise": signal_to_noise(images, decode(content))}
    Archive.of_episode(content, np.array(actions), np.array(rewards, np.float32), terminated, about).write(path)
