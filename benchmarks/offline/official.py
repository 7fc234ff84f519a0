"""D4RL's own data sets: which are on this machine, and results on them beside the paper's.

The published scores are those of "Synthetic Experience Replay" (Lu et al., 2023), tables 1 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.data.download import D4RL_FOLDER_VARIABLE, d4rl_folders, file_name, locate
from synther_replay.benchmarks.data.registry import has_d4rl
from synther_replay.benchmarks.offline.results import Column, Result, column, read_results, tasks
from synther_replay.benchmarks.offline.tables import check_comparable, final_scores, mean_cell, score_cell

_ALGORITHMS = ("td3bc", "iql", "edac")
# Mean and standard deviation on real and on synthetic rows, for TD3+BC, IQL and EDAC.
_PUBLISHED = """
halfcheetah-random-v2         11.3 0.8    12.2 1.1    15.2 1.2   17.2 3.4
halfcheetah-medium-replay-v2  44.8 0.7    45.9 0.9    43.5 0.4   46.6 0.2    62.1 1.3    63.0 1.3
halfcheetah-medium-v2         48.1 0.2    49.9 1.2    48.3 0.1   49.6 0.3    67.7 1.2    65.1 1.3
halfcheetah-medium-expert-v2  90.8 7.0    87.2 11.1   94.6 0.2   93.3 2.6    104.8 0.7   94.1 10.1
walker2d-random-v2            0.6 0.3     2.3 1.9     4.1 0.8    4.2 0.3
walker2d-medium-replay-v2     85.6 4.6    90.5 4.3    82.6 8.0   83.3 5.9    87.1 3.2    89.8 1.5
walker2d-medium-v2            82.7 5.5    84.8 1.4    84.0 5.4   84.7 5.5    93.4 1.6    93.4 2.4
walker2d-medium-expert-v2     110.0 0.4   110.2 0.5   111.7 0.6  111.4 0.7   114.8 0.9   114.7 1.2
hopper-random-v2              8.6 0.3     14.6 9.4    7.2 0.2    7.7 0.1
hopper-medium-replay-v2       64.4 24.8   53.4 15.5   84.6 13.5  103.2 0.4   99.7 0.9    101.4 0.8
hopper-medium-v2              60.4 4.0    63.4 4.2    62.8 6.0   72.0 4.5    101.7 0.3   102.4 0.5
hopper-medium-expert-v2       101.1 10.5  105.4 9.7   106.2 6.1  90.8 17.9   105.2 11.6  109.7 0.2
maze2d-umaze-v1               29.4 14.2   37.6 14.4   37.7 2.0   41.0 0.7    95.3 7.4    99.1 18.6
maze2d-medium-v1              59.5 41.9   65.2 36.1   35.5 1.0   35.1 2.6    57.0 4.0    66.4 10.9
maze2d-large-v1               97.1 29.3   92.5 38.5   49.6 22.0  60.8 5.3    95.6 26.5   143.3 21.7
"""
# The same for TD3+BC with larger networks.
_PUBLISHED_LARGE = """
halfcheetah-random-v2         11.0 0.7    12.8 0.8
halfcheetah-medium-replay-v2  44.8 1.1    48.0 0.5
halfcheetah-medium-v2         50.2 1.8    53.3 0.4
halfcheetah-medium-expert-v2  95.5 5.4    100.1 2.7
walker2d-random-v2            2.6 2.1     4.3 1.7
walker2d-medium-replay-v2     76.4 9.9    93.6 3.6
walker2d-medium-v2            84.5 1.7    87.2 1.2
walker2d-medium-expert-v2     110.3 0.5   110.2 0.3
hopper-random-v2              10.3 5.6    19.5 11.2
hopper-medium-replay-v2       62.4 21.6   86.8 12.8
hopper-medium-v2              61.9 5.9    65.1 4.7
hopper-medium-expert-v2       104.6 9.4   109.7 4.1
"""
_VARIANTS = {"real": "real rows", "synther": "synthetic rows"}


def _published() -> dict[tuple[str, str, str], tuple[float, float]]:
    found = {}
    for text, algorithms in ((_PUBLISHED, _ALGORITHMS), (_PUBLISHED_LARGE, ("td3bc-large",))):
        for line in text.strip().splitlines():
            name, *numbers = line.split()
            pairs = zip(map(float, numbers[::2]), map(float, numbers[1::2]), strict=True)
            keys = [(name, algo, variant) for algo in algorithms for variant in _VARIANTS]
            found |= dict(zip(keys, pairs, strict=False))  # there is no EDAC on the random sets
    return found


PUBLISHED = _published()
"""Mean and standard deviation by data set, algorithm and kind of rows."""
NAMES = tuple(dict.fromkeys(name for name, _, _ in PUBLISHED))
"""The data sets of the paper."""


def available(folder: Path | None = None) -> list[str]:
    """The data sets of the paper that D4RL, or a folder with its files, has here.

    Raises:
        FileNotFoundError: There are none. The message lists the folders.
    """
    if folder is None and has_d4rl():
        return list(NAMES)
    found = [name for name in NAMES if _is_here(name, folder)]
    if not found:
        searched = " and ".join(map(str, [*([folder] if folder else []), *d4rl_folders()]))
        raise FileNotFoundError(
            f"--official: no file of D4RL in {searched}; expected {file_name(NAMES[0])} or another of the paper's "
            f"{len(NAMES)}; name their folder by --folder or {D4RL_FOLDER_VARIABLE}"
        )
    return found


def _is_here(name: str, folder: Path | None) -> bool:
    try:
        locate(name, folder, download=False)
    except FileNotFoundError:
        return False
    return True


def table(folder: Path) -> str:
    """Results on official data sets beside the paper's, a table per algorithm.

    Args:
        folder: Folder of the results; those on other data sets are left out.
    """
    results = [result for result in read_results(folder) if result.dataset in NAMES and not result.regenerated]
    whole = [result for result in results if result.share is None]
    return "\n\n".join(_of_algorithm(algo, whole) for algo in sorted({result.algo for result in whole})) + "\n"


def _of_algorithm(algo: str, results: Sequence[Result]) -> str:
    columns = {variant: column(results, algo, variant) for variant in _VARIANTS}
    check_comparable(algo, {variant: own for variant, own in columns.items() if own})
    names = [name for name in NAMES if any(name in own for own in columns.values())]
    rows: list[list[Any]] = []
    for name in names:
        cells = ((score_cell(own.get(name)), _paper_cell(name, algo, variant)) for variant, own in columns.items())
        rows.append([name, *(cell for pair in cells for cell in pair)])
    for family in ("locomotion", "mazes"):
        common = [name for name in names if tasks(name) == family and all(name in own for own in columns.values())]
        if len(common) > 1:
            rows.append([f"mean of {len(common)}, {family}", *_means(algo, columns, common)])
    (steps,) = {result.steps for own in columns.values() for result in own.values()}
    heads = (head for text in _VARIANTS.values() for head in (text, f"{text}, paper"))
    return markdown_table((f"{algo}, {steps:,} updates", *heads), rows)


def _means(algo: str, columns: Mapping[str, Column], names: Sequence[str]) -> list[str | None]:
    cells: list[str | None] = []
    for variant, own in columns.items():
        published = [PUBLISHED.get((name, algo, variant)) for name in names]
        means = [pair[0] for pair in published if pair is not None]
        paper = f"{sum(means) / len(means):.1f}" if len(means) == len(names) else None
        cells += [mean_cell(own, names, final_scores), paper]
    return cells


def _paper_cell(name: str, algo: str, variant: str) -> str | None:
    found = PUBLISHED.get((name, algo, variant))
    return found and f"{found[0]:.1f} +- {found[1]:.1f}"
