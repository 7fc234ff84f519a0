"""How long the learner of Stable-Baselines3 stands still for refits, inline and in the background.

    python -m synther_replay.benchmarks.speed.background --out background-cpu.json

SAC learns until the rows of the last refit are taken, and some steps on. A step is everything between two calls of the
environment: acting, the environment itself, the gradient step and whatever the refit asks of the learner.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from synther_replay.adapters.sb3 import SynthERBuffer
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.common.checks import resolve_device
from synther_replay.replay.background import REFIT_MODES
from synther_replay.replay.refitting import RefitReport

_STEPS_AFTER = 100  # steps after the rows were taken
_FIRST_STEPS = 50  # of training, which warm up


class Clock(BaseCallback):
    """Times every step, and whether a refit was under way at its end."""

    def __init__(self, start: int, every: int, lag: int) -> None:
        """Start without any step, for refits that begin at `start` and then every so many steps."""
        super().__init__()
        self.seconds: list[float] = []
        self.in_refit: list[bool] = []
        self._start, self._every, self._lag = start, every, lag
        self._last: float | None = None

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if self._last is not None:
            since = self.num_timesteps - 1 - self._start
            self.seconds.append(now - self._last)
            self.in_refit.append(since >= 0 and since % self._every < self._lag)
        self._last = now
        return True


def measure(args: argparse.Namespace, refit: str) -> dict[str, Any]:
    """Learn with one mode."""
    lag = args.lag if refit == "background" else 0
    every = lag + _STEPS_AFTER
    pauses, seconds = list[float](), list[float]()

    def note(report: RefitReport) -> None:
        pauses.append(round(report.pause_seconds or 0.0, 5))
        seconds.append(round(report.fit_seconds + report.sample_seconds, 4))

    source_options = {
        "generator": {
            "preset": args.preset,
            "max_seconds": None,
            **({"steps": args.fit_steps, "refit_steps": args.fit_steps} if args.fit_steps else {}),
        },
        "schedule": {"start": args.start, "every": every, "growth": 0.0, "rows": args.rows},
        "refit": refit,
        "lag": lag or None,
        "seed": args.seed,
        "on_refit": note,
    }
    model = SAC(
        "MlpPolicy",
        args.env,
        replay_buffer_class=SynthERBuffer,
        replay_buffer_kwargs=source_options,
        buffer_size=100_000,
        learning_starts=100,
        device=args.device,
        seed=args.seed,
    )
    clock = Clock(args.start, every, lag)
    model.learn(args.start + args.refits * every - 1, callback=clock)
    if len(pauses) != args.refits:
        raise RuntimeError(f"{len(pauses)} of {args.refits} refits were completed")
    first = model.learning_starts + _FIRST_STEPS
    others = [s for s, begun in zip(clock.seconds[first:], clock.in_refit[first:], strict=True) if not begun]
    during = [s for s, begun in zip(clock.seconds[first:], clock.in_refit[first:], strict=True) if begun]
    found = {
        "refit_seconds": seconds[0],
        "pause_seconds": pauses[0],  # of the first refit, which also compiles and captures on a GPU
        "later_pauses": pauses[1:],
        "longest_step": max(clock.seconds[first:]),
        "longest_step_before_refit": max(clock.seconds[first : args.start - 1]),  # what the machine alone makes of it
        "median_step": statistics.median(others),
        "median_step_during_refit": statistics.median(during) if refit == "background" else None,
        "steps": len(clock.seconds),
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Humanoid-v5")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--modes", nargs="+", choices=REFIT_MODES, default=list(REFIT_MODES))
    parser.add_argument("--preset", default="tiny", help="preset of the generator")
    parser.add_argument("--fit-steps", type=int, help="gradient steps of the fit; default: those of the preset")
    parser.add_argument("--start", type=int, default=1_000, help="environment steps before the refit")
    parser.add_argument("--lag", type=int, default=2_500, help="environment steps until its rows are taken")
    parser.add_argument("--rows", type=int, default=20_000, help="rows to generate")
    parser.add_argument("--refits", type=int, default=1, help="number of refits (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", help="kept in the result, for example what else the machine was doing")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    device = resolve_device(args.device)
    if args.out:
        make_folder_of(args.out)
    results = {refit: measure(args, refit) for refit in args.modes}
    names = list(results[args.modes[0]])
    print(
        markdown_table(("seconds", *results), [[name, *(found[name] for found in results.values())] for name in names])
    )
    if args.out:
        settings = {
            name: getattr(args, name)
            for name in ("env", "preset", "fit_steps", "start", "lag", "rows", "refits", "seed")
        }
        write_json(args.out, {"settings": settings, "results": results, "note": args.note, **origin(device)})


if __name__ == "__main__":
    main()
