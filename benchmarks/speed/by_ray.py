"""What an actor of Ray costs against a generator in this process, and what learners that share one wait for a refit.

    python -m synther_replay.benchmarks.speed.by_ray --out ray-cpu.json
    python -m synther_replay.benchmarks.speed.by_ray --num-gpus 1 --preset fast --rows 1000000 --out ray-h200.json

The overhead is that of a refit as buffers do it: fit, generate, and have the rows here. Both ways give the same rows.
The learners of the second part are threads that ask for a refit at the same moment; each gets a model and rows of its
own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.distributed import RayGenerator, RayWorker

_OBSERVATION, _ACTION = 17, 6  # sizes of HalfCheetah


def real_rows(count: int, seed: int) -> Transitions:
    """Rows with the sizes of HalfCheetah: observations that follow from each other, no terminations."""
    spec = TransitionSpec.from_spaces(
        spaces.Box(-float("inf"), float("inf"), (_OBSERVATION,)), spaces.Box(-1, 1, (_ACTION,))
    )
    rng = torch.Generator().manual_seed(seed)
    now = torch.randn(count, _OBSERVATION, generator=rng)
    action = torch.rand(count, _ACTION, generator=rng) * 2 - 1
    following = 0.9 * now + 0.1 * action.repeat(1, 3)[:, :_OBSERVATION]
    reward = now[:, :1] - 0.1 * action.square().sum(1, keepdim=True)
    return Transitions(spec, torch.cat((now, action, reward, following, torch.zeros(count, 1)), dim=1))


def config_of(args: argparse.Namespace) -> GeneratorConfig:
    """Settings without a time limit, which would hide differences."""
    return GeneratorConfig.of({"preset": args.preset, "max_seconds": None, **args.set})


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    begun = time.perf_counter()
    result = function()
    return time.perf_counter() - begun, result


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Compare the two ways in turns; the first refit of both warms up."""
    real, config = real_rows(args.real, 0), config_of(args)
    here = DiffusionGenerator(real.spec, config, device="cuda" if args.num_gpus else "cpu", seed=0)
    worker = RayWorker(num_gpus=args.num_gpus).start()
    there = RayGenerator(real.spec, config, seed=0, worker=worker)
    seconds: dict[str, list[dict[str, float]]] = {"in_process": [], "ray": []}
    are_equal = True
    for number in range(args.repeats + 1):
        rows = []
        for name, generator in (("in_process", here), ("ray", there)):
            fit, _ = timed(lambda generator=generator: generator.fit(real))
            draw, drawn = timed(lambda generator=generator: generator.sample(args.rows).rows.cpu())
            rows.append(drawn)
            if number:
                seconds[name].append({"fit": round(fit, 3), "sample": round(draw, 3)})
        are_equal = are_equal and torch.equal(*rows)
    extra = [
        {part: round(far[part] - near[part], 3) for part in ("fit", "sample")}
        for near, far in zip(seconds["in_process"], seconds["ray"], strict=True)
    ]
    return {
        "real_rows": args.real,
        "rows": args.rows,
        "columns": real.spec.dim,
        "seconds": seconds,
        "overhead_seconds": {part: statistics.median(one[part] for one in extra) for part in ("fit", "sample")},
        "equal_rows": are_equal,
    }


def shared(args: argparse.Namespace, learners: int) -> dict[str, Any]:
    """Seconds until all learners have their rows, for refits that they ask for at the same moment."""
    real, config = [real_rows(args.shared_real, seed) for seed in range(learners)], config_of(args)
    worker = RayWorker(num_gpus=args.num_gpus, learners=learners, wait=600.0).start()
    generators = [RayGenerator(real[0].spec, config, seed=seed, worker=worker) for seed in range(learners)]

    def refit(number: int) -> None:
        generators[number].fit(real[number])
        generators[number].sample(args.shared_rows)

    with ThreadPoolExecutor(learners) as pool:
        rounds = [timed(lambda: list(pool.map(refit, range(learners))))[0] for _ in range(args.repeats + 1)][1:]
    return {
        "learners": learners,
        "seconds": [round(value, 3) for value in rounds],
        "median_seconds": round(statistics.median(rounds), 3),
    }


def _compared(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add how many times as long as the first each takes."""
    for one in found:
        one["times_one"] = round(one["median_seconds"] / found[0]["median_seconds"], 2)
    return found


def main() -> None:
    """Measure both, print tables and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-gpus", type=float, default=0.0)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--set", type=json.loads, default={}, help='settings as JSON, for example {"steps": 100}')
    parser.add_argument("--note", help="kept in the result, for example what else the machine was doing")
    parser.add_argument("--real", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--learners", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--shared-real", type=int, default=2_000)
    parser.add_argument("--shared-rows", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if args.out is not None:
        make_folder_of(args.out)
    device = torch.device("cuda" if args.num_gpus else "cpu")
    result: dict[str, Any] = {"settings": {key: value for key, value in vars(args).items() if key != "out"}}
    result["overhead"] = overhead(args)
    print(markdown_table(("part", "overhead in s"), list(result["overhead"]["overhead_seconds"].items())))
    result["shared"] = [shared(args, learners) for learners in args.learners]
    rows = [(one["learners"], one["median_seconds"], one["times_one"]) for one in _compared(result["shared"])]
    print(markdown_table(("learners", "s per refit of all", "times that of one"), rows))
    if args.out is not None:
        made = origin(device)
        made["versions"]["ray"] = metadata.version("ray")
        write_json(args.out, {**made, **result})


if __name__ == "__main__":
    main()
