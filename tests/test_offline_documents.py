"""What README and results say of the offline benchmark is what its published files hold."""

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import offline_d4rl
import plot_offline
from aggregate import REFERENCES, mean_estimate
from offline_data import DIGEST
from reporting import mean_and_spread

from synther_replay import GeneratorConfig

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LINES = ROOT / "benchmarks" / "offline_tables.txt"
OFFLINE, SHORT, PAPER, EARLIER, SECOND, PREDICTED, LIMITS, EDAC = (
    RESULTS / f"offline{of}" for of in ("", "-short", "-paper", "-earlier", "-second", "-predicted", "-limits", "-edac")
)
MEDIUM_REPLAY = [f"{task}-medium-replay-regen" for task in ("halfcheetah", "hopper", "walker2d")]
BEFORE_THE_FAULT, WITH_THE_FAULT = ("17c5c4e", "032ed04"), ("ae681bb", "fbb605b", "61a1411", "d32647f", "e0d8e5a")
USUAL = [f"{algo}-{data}" for algo in ("iql", "td3bc") for data in ("real", "synther")]
ALL_THREE = {"find_limits": True, "predict_terminated": True, "batch_size": 4096, "large_batch_size": 4096}
WITH_ALL_THREE = f"`offline({', '.join(f'{name}={value}' for name, value in ALL_THREE.items())})`"
REDUCED = [f"real-15pct{of}" for of in ("", "-additive", "-dynamics", "-multiplicative")]


def sentences(name):
    """A document without its line breaks."""
    return " ".join((ROOT / name).read_text().split())


README, DOCS = sentences("README.md"), sentences("docs/results.md")


def read(dataset, cell, folder=OFFLINE):
    return json.loads((folder / dataset / f"{cell}.json").read_text())


def curve(dataset, cell, folder=OFFLINE):
    """Means of the seeds at each evaluation."""
    return np.array([np.mean(point["scores"]) for point in read(dataset, cell, folder)["curve"]])


def mean(datasets, cell, folder=OFFLINE, *, evaluations=1):
    """Over data sets, and over the last evaluations."""
    return np.mean([curve(dataset, cell, folder)[-evaluations:].mean() for dataset in datasets])


def locomotion(cell, count, without=()):
    """The sets that an algorithm has run on."""
    names = sorted(path.parent.name for path in OFFLINE.glob(f"*/{cell}.json"))
    found = [name for name in names if not any(part in name for part in ("maze2d", *without))]
    assert len(found) == count
    return found


def interval(datasets, cell, folder=OFFLINE, *, evaluations=1):
    """Of that mean."""
    return interval_of([read(dataset, cell, folder) for dataset in datasets], evaluations)


def interval_of(contents, evaluations):
    points = [content["curve"][-evaluations:] for content in contents]
    return mean_estimate([np.mean([point["scores"] for point in own], axis=0) for own in points])


def bracketed(estimate):
    return f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"


def apart(one, other):
    """Whether intervals are, and then which is higher: -1 or 1."""
    return int(other.low > one.high) - int(other.high < one.low)


def spread(seconds):
    return f"{min(seconds):.0f} to {max(seconds):.0f} s"


@pytest.mark.parametrize("folder", [OFFLINE, SHORT, PAPER, EARLIER, SECOND, PREDICTED], ids=lambda folder: folder.name)
def test_the_published_table_is_that_of_the_published_results(folder):
    assert (folder / "table.md").read_text() == plot_offline.table(plot_offline.read_results(folder))


def tables(text):
    """Rows by the line that heads them; tables with the same head count as one."""
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, *rows = block.splitlines()
        found.setdefault(head, []).extend(rows)
    return found


@pytest.mark.parametrize(("name", "count"), [("README.md", 2), ("docs/results.md", 12)])
def test_documents_have_the_rows_of_the_published_tables(name, count):
    def published(*folders):
        return re.sub(r" \(\d+ seeds\)", "", "\n".join((folder / "table.md").read_text() for folder in folders))

    text, current = (ROOT / name).read_text(), published(OFFLINE, SHORT, PAPER, SECOND)
    ours = {head: rows for head, rows in tables(text).items() if any("-regen |" in row for row in rows)}
    assert len(ours) == count
    for head, rows in ours.items():
        assert [row for row in rows if row not in tables(current)[head]] == [], head
    of_offline = " ".join(re.split(r"\n##+ Offline\n", text)[1].split())
    for part in (r"### Where episodes end.*?### Mixtures", r"What was tried on walker2d medium.*?in no table\."):
        of_offline = re.sub(part, "", of_offline)  # they have tests of their own
    intervals = re.findall(r"(earlier run, with )?(\d+\.\d \[-?\d+\.\d, -?\d+\.\d\])", of_offline)
    assert [one for then, one in intervals if not then and one not in current] == []


def test_the_lines_that_are_there_to_make_the_tables_again_ask_for_all_of_their_cells(monkeypatch):
    monkeypatch.setattr(offline_d4rl, "resolve_device", lambda _: torch.device("cuda"))  # whose defaults count

    def cells_of(line):
        monkeypatch.setattr(sys, "argv", ["offline_d4rl.py", *line.split()])
        return offline_d4rl.parse().cells

    asked = [cell for line in LINES.read_text().splitlines() for cell in cells_of(line)]
    published = {path.relative_to(OFFLINE): json.loads(path.read_text()) for path in OFFLINE.glob("*/*.json")}
    assert {Path(cell.dataset, f"{cell.name}.json"): cell.to_json() for cell in asked} == {
        path: content["settings"] for path, content in published.items()
    }
    assert len(asked) == len(published)
    for text in (README, DOCS):
        assert f"python benchmarks/offline_d4rl.py --workers 4 < {LINES.relative_to(ROOT)}" in text


def test_the_readme_sums_up_the_published_table():
    blocks = {block.split(" | ")[0].lstrip("| "): block for block in (OFFLINE / "table.md").read_text().split("\n\n")}
    titles = {"TD3+BC": "td3bc", "IQL": "iql", "EDAC": "edac", "TD3+BC, larger networks": "td3bc-large"}
    head = "| | sets | real | synthetic | real, all evaluations | synthetic, all evaluations |"
    rows = [line.strip("| ").split(" | ") for line in tables((ROOT / "README.md").read_text())[head][1:]]
    assert len(rows) == 7
    for name, sets, *scores in rows:
        count, kind = sets.split(", ")
        label = f"mean of {count}, {kind.replace('medium-replay', 'locomotion')}, regenerated"
        title = "networks" if (name, kind) == ("TD3+BC", "medium-replay") else titles[name]
        found = []
        for row in (label, f"{label}, all evaluations"):
            (line,) = (line for line in blocks[title].splitlines() if line.startswith(f"| {row} |"))
            found += line.strip("| ").split(" | ")[1:3]
        assert scores == found, name


def printed(dataset, cell, of=""):
    """Scores by the number of updates, of a run that broke off."""
    text = (RESULTS / "offline-unfinished" / dataset / f"{cell}{of}.txt").read_text()
    lines = re.findall(rf"^{dataset} {cell} update ([\d,]+) of 1,000,000: score (\S+ \+- \S+),", text, re.M)
    assert len(lines) == len(text.splitlines())
    return {int(step.replace(",", "")): score for step, score in lines}


def test_what_unfinished_runs_printed_is_told_as_it_is():
    walker = "walker2d-medium-regen"
    first = [printed(walker, f"edac-{data}") for data in ("real", "synther")]
    second = [printed(walker, f"edac-{data}", of) for data, of in (("real", "-again"), ("synther", "-again"))]
    second.append(printed(walker, "edac-synther", "-predicted"))
    assert (min(map(max, first)), min(map(max, second))) == (850_000, 700_000)
    (real, synthetic), then = (one[850_000] for one in first), [one[700_000] for one in second]
    assert (
        f"The first has {real} with real rows and {synthetic} with synthetic ones after 850,000 updates, the second "
        f"{then[0]} and {then[1]} after 700,000, and {then[2]} with synthetic ones whose ends are right"
    ) in DOCS
    cheetah = [printed("halfcheetah-medium-regen", f"edac-{data}")[850_000] for data in ("real", "synther")]
    assert f"halfcheetah medium, {cheetah[0]} and {cheetah[1]}, which is in no table." in DOCS
    assert not list((OFFLINE / "halfcheetah-medium-regen").glob("edac-*.json"))


WALKER = "walker2d-medium-regen"
SIMULATED = (
    "the same, with a million rows and the simulator's word on what follows them (`--data simulated --rows 1000000`)"
)
MIXED = "`offline()`, half real rows and half of a million synthetic ones (`--data mixed`)"
FEW = "`paper()`, with a million rows (`--rows 1000000`)"
LONG = "`offline(predict_terminated=True, steps=100_000)`"
LONG_FEW = f"{LONG}, with a million rows"
SQUASHED, SQUASHED_LONG = (
    f"`offline(predict_terminated=True, steps={steps}, learning_rate=3e-4, unsquash_actions=False)`"
    for steps in ("100_000", "200_000")
)
TRIED = {
    "real rows": ("edac-real", OFFLINE),
    "`offline()`": ("edac-synther", OFFLINE),
    "`offline(predict_terminated=True)`": ("edac-synther", PREDICTED),
    LONG: ("edac-synther", EDAC / "long"),
    SQUASHED: ("edac-synther", EDAC / "squashed"),
    SQUASHED_LONG: ("edac-synther", EDAC / "squashed-long"),
    "`paper()`": ("edac-synther", EDAC / "paper"),
    WITH_ALL_THREE: ("edac-synther", LIMITS),
    SIMULATED: ("edac-simulated", EDAC / "simulated"),
    MIXED: ("edac-mixed", EDAC / "mixed"),
    FEW: ("edac-synther", EDAC / "paper-few"),
    LONG_FEW: ("edac-synther", EDAC / "long-few"),
}
AGAIN = {  # with four other seeds
    "real rows": ("edac-real", EDAC / "real-again"),
    FEW: ("edac-synther", EDAC / "paper-few-again"),
    LONG_FEW: ("edac-synther", EDAC / "long-few-again"),
}


@pytest.fixture(scope="module")
def tried():
    """Results of EDAC on walker2d medium."""
    return {name: read(WALKER, *run) for name, run in TRIED.items()}


@pytest.fixture(scope="module")
def again():
    """Some of them with other seeds and another fit of the generator."""
    return {name: read(WALKER, *run) for name, run in AGAIN.items()}


def scores_of(content):
    """By evaluation and seed."""
    return np.array([point["scores"] for point in content["curve"]])


def compared(one, other, *, evaluations):
    """Whether what was tried there is apart, and then which is higher: -1 or 1."""
    return apart(*(interval([WALKER], *TRIED[name], evaluations=evaluations) for name in (one, other)))


def test_documents_say_what_was_tried_for_edac_on_walker2d_medium(tried):
    assert {*EDAC.glob("*/*/*.json")} == {
        folder / WALKER / f"{cell}.json" for cell, folder in (*TRIED.values(), *AGAIN.values()) if folder.parent == EDAC
    }
    for name, content in tried.items():
        last, along = (interval([WALKER], *TRIED[name], evaluations=n) for n in (1, 20))
        last = f"{mean_and_spread(content['final'], 1)} [{last.low:.1f}, {last.high:.1f}]"
        learnt = sum(scores_of(content).max(0) > 10)
        assert f"| {name} | {last} | {bracketed(along)} | {learnt} |" in DOCS
    assert {(len(one["seeds"]), one["steps"], one[DIGEST]) for one in tried.values()} == {
        (4, 10**6, tried["real rows"][DIGEST])
    }
    assert [one["commit"] for one in tried.values()] == ["4431c5b"] * 4 + ["07f1bd9"] * 3 + ["4e358ef"] * 4 + [
        "7ccfd08"
    ]
    made = {name: one["synthetic_rows"] for name, one in tried.items() if name != "real rows"}
    assert {name: rows for name, rows in made.items() if rows != 5_000_000} == {
        SIMULATED: 10**6,
        MIXED: tried["real rows"]["real_rows"],
        FEW: 10**6,
        LONG_FEW: 10**6,
    }


def test_what_was_tried_for_edac_had_the_generators_that_it_names(tried):
    generators = {name: one["settings"]["generator"] for name, one in tried.items() if name != "real rows"}
    plain, *changed, paper = [*generators.values()][:6]
    assert GeneratorConfig.from_json(paper) == GeneratorConfig.paper()
    assert generators[FEW] == paper
    assert generators[LONG_FEW] == generators[LONG]
    assert generators[MIXED] == plain
    assert generators[SIMULATED] == generators[WITH_ALL_THREE] == {**plain, **ALL_THREE}
    for of_step, now in zip(
        (
            {"predict_terminated": True},
            {"steps": 100_000},
            {"learning_rate": 3e-4, "unsquash_actions": False},
            {"steps": 200_000},
        ),
        changed,
        strict=True,
    ):
        plain = {**plain, **of_step}
        assert now == plain


def test_documents_say_what_edac_learns_on_walker2d_medium(tried):
    scores = {name: scores_of(one) for name, one in tried.items()}
    steps = range(50_000, 1_050_000, 50_000)
    real = dict(zip(steps, scores["real rows"].mean(1), strict=True))
    assert f"to {real[400_000]:.1f} after 400,000 updates and {real[900_000]:.1f} after 900,000." in DOCS
    at_the_end = scores["`offline()`"][-1]
    assert sum(at_the_end > 50) == 1 and sum(at_the_end < 0) == 3
    for n in (1, 20):
        assert not compared("`offline()`", "`offline(predict_terminated=True)`", evaluations=n)
        assert compared("`paper()`", FEW, evaluations=n) == 1
        assert not compared(FEW, SIMULATED, evaluations=n)
    walking = {name: sum(scores[name][-1] > 30) for name in (FEW, SIMULATED, MIXED)}
    assert walking == {FEW: 3, SIMULATED: 2, MIXED: 0}
    assert scores[MIXED][-1].max() < 0
    assert f"has an answer to {tried[SIMULATED]['simulated_rows']:,} of the million only" in DOCS
    *synthetic, best = sorted(set(scores) - {"real rows"}, key=lambda name: scores[name][-1].mean())
    assert (len(synthetic), best) == (10, FEW)
    assert "the best at the last evaluation of the eleven kinds of synthetic rows that came to their end" in DOCS
    walked = tried["`paper()`"]["curve"][-1]["returns"]
    assert f"rows all four learn something and none gets further than a return of {max(walked):.0f} at the end" in DOCS
    assert min(walked) > 250
    *fallen, _ = sorted(tried["`offline()`"]["curve"][-1]["returns"])
    told = "have returns of {:.0f}, {:.0f} and {:.0f} at the end, where a random one has {:.0f},"
    assert told.format(*fallen, REFERENCES["Walker2d-v5"][0]) in DOCS
    finals = {name: mean_and_spread(tried[name]["final"], 1) for name in ("`offline()`", "real rows")}
    assert (
        f"on walker2d medium they are not ({finals['`offline()`']} against {finals['real rows']}, 4 seeds each)"
        in README
    )


def test_documents_say_what_edac_learns_there_with_other_seeds_and_another_fit(tried, again):
    both, last, along = {}, {}, {}
    for name, second in again.items():
        first = tried[name]
        assert (first["seeds"], second["seeds"]) == ([0, 1, 2, 3], [4, 5, 6, 7])
        assert {**first["settings"], "first_seed": 4} == second["settings"]
        assert (first[DIGEST], second["commit"]) == (second[DIGEST], "7ccfd08")
        both[name] = np.hstack([scores_of(first), scores_of(second)])
        last[name], along[name] = mean_estimate([both[name][-1]]), mean_estimate([both[name].mean(0)])
        fours = " | ".join(mean_and_spread(one["final"], 1) for one in (first, second))
        whole = f"{mean_and_spread(both[name][-1], 1)} [{last[name].low:.1f}, {last[name].high:.1f}]"
        assert f"| {name} | {fours} | {whole} | {bracketed(along[name])} |" in DOCS
    fresh = [np.mean(again[name]["final"]) for name in (FEW, "real rows")]
    assert "which no choice flatters, have {:.1f} where those of real rows have {:.1f}.".format(*fresh) in DOCS
    for n in (1, 20):
        of_fresh, of_many = (interval([WALKER], *run, evaluations=n) for run in (AGAIN[FEW], TRIED["`paper()`"]))
        assert not apart(of_fresh, of_many)
    long = scores_of(tried[LONG]).mean()
    assert f"have less than its five million, {both[LONG_FEW].mean():.1f} against {long:.1f}." in DOCS

    real, few, long_few = both.values()
    for name in (FEW, LONG_FEW):
        assert (apart(last[name], last["real rows"]), apart(along[name], along["real rows"])) == (0, 1)
    told = "to have {:.1f} and {:.1f} after 500,000 updates, where real rows have {:.1f}, and stays below:"
    assert told.format(*(scores[9].mean() for scores in (few, long_few, real))) in DOCS
    told = "from 750,000 on it has {:.1f} and {:.1f} against {:.1f}."
    assert told.format(*(scores[14:].mean() for scores in (few, long_few, real))) in DOCS
    assert [sum(scores.max(0) > 30) for scores in (few, long_few, real)] == [6, 6, 8]
    assert [sum(scores[-1] > 30) for scores in (few, long_few, real)] == [4, 3, 5]
    assert (
        "six of eight seeds walk at some evaluation, four and three at the last, with real rows eight and five" in DOCS
    )
    told = "those of the second four from {:.1f} after 850,000 updates to {:.1f} after 900,000,"
    assert told.format(*scores_of(again["real rows"])[16:18].mean(1)) in DOCS
    of_offline = [interval([WALKER], *TRIED["`offline()`"], evaluations=n) for n in (1, 20)]
    assert (apart(of_offline[0], last["real rows"]), apart(of_offline[1], along["real rows"])) == (0, 1)
    assert "its intervals on walker2d medium overlap at the last evaluation." in DOCS

    ours, theirs, first = (mean_and_spread(one["final"], 1) for one in (again[FEW], again["real rows"], tried[FEW]))
    broken = printed(WALKER, "edac-synther", "-paper-few-seeds-4-to-7")[850_000]
    for told in (
        f"the best of eleven tries with {first}, have {ours} with four other seeds and another fit, and had {broken} "
        "after 850,000 updates in a run of these that broke off;",
        f"real rows have {theirs} with four other seeds.",
        f"Over all evaluations these million have {few.mean():.1f} with all eight seeds, real rows {real.mean():.1f}:",
    ):
        assert told in README


def test_documents_say_where_runs_of_the_same_commands_broke_off(tried, again):
    def broken(of, data="synther"):
        found = [score for _, score in sorted(printed(WALKER, f"edac-{data}", of).items())][:17]
        return f"{found[16]} and {np.mean([float(score.split()[0]) for score in found]):.1f}"

    def finished(content):
        scores = scores_of(content)[:17]
        return f"{mean_and_spread(scores[16], 1)} and {scores.mean():.1f}"

    for told in (
        f"real rows with seeds 4 to 7 have {broken('-seeds-4-to-7', 'real')} in the run that broke off, and "
        f"{finished(again['real rows'])} in the other;",
        f"`paper()` with these seeds {broken('-paper-few-seeds-4-to-7')}, and {finished(again[FEW])};",
        f"{LONG} with seeds 0 to 3 {broken('-long-few')}, and {finished(tried[LONG_FEW])}.",
        f"A million rows of `offline()` have {broken('-few')}.",
        f"(a twelfth, a million rows of `offline()`, broke off, with {broken('-few').split(' and ')[0]} after 850,000",
    ):
        assert told in DOCS


def test_documents_say_what_critics_of_edac_believe_on_walker2d_medium(tried, again):
    def median(content):
        return np.median([of["value"] for of in content["beliefs"] if of["step"] >= 500_000])

    of_many = [median(one) for one in tried.values() if one.get("synthetic_rows") == 5_000_000]
    assert f"they believe in {min(of_many):.0f} to {max(of_many):.0f} with five million rows of any generator" in DOCS
    real, paper, long = (f"{median(tried[name]):.0f} and {median(again[name]):.0f}" for name in AGAIN)
    told = f"in {real} if they are real, in {median(tried[SIMULATED]):.0f} if simulated, in {paper} if of `paper()`"
    assert f"{told} and in {long} if of {LONG} (medians" in DOCS
    assert f"beside as many real ones they believe in {median(tried[MIXED]):.0f}, and all four seeds" in DOCS


def test_documents_say_where_rows_of_walker2d_medium_begin_and_end(tried, again):
    ends, of_replay = (read(name, "iql-synther", PREDICTED)["terminals"]["real"] for name in (WALKER, MEDIUM_REPLAY[2]))
    told = f"{ends['terminated']} of a million are `terminated`, where walker2d medium-replay has"
    assert f"{told} {of_replay['terminated']:,} among {of_replay['rows'] / 1_000:.0f} thousand" in DOCS
    for name in ("`paper()`", SQUASHED, SQUASHED_LONG):
        starts, terminals = tried[name]["starts"], tried[name]["terminals"]
        real, found, rows = starts["real"], starts["synthetic"], starts["synthetic"]["rows"]
        assert len({real[f"within {margin}"] for margin in (0, 0.03, 0.1, 0.3)}) == 1  # all begin there
        expected = (real["within 0.03"], terminals["real"]["terminated"])
        told = "{:,.0f} of five million rows would begin where episodes do, and {:,.0f} end."
        assert told.format(*(count * rows / real["rows"] for count in expected)) in DOCS
        counts = [f"{found[f'within {margin}']:,}" for margin in (0.3, 0.1, 0.03)]
        counts += [f"{terminals['synthetic']['terminated']:,}", *shares(terminals["synthetic"])]
        assert f"| {name} | {' | '.join(counts)} |" in DOCS
    (begun, ended), (of_many, ends_of_many) = (
        (tried[name]["starts"]["synthetic"], tried[name]["terminals"]["synthetic"]["terminated"])
        for name in (FEW, "`paper()`")
    )
    wide, near, at = (begun[f"within {margin}"] for margin in (0.3, 0.1, 0.03))
    assert f"{wide:,} beginnings within 0.3, {near} within 0.1 and {at} within 0.03, and {ended} ends" in DOCS
    assert 5 * near / of_many["within 0.1"] == pytest.approx(4 / 3, abs=0.02)
    assert 5 * ended / ends_of_many == pytest.approx(4 / 5, abs=0.03)
    assert "by their share a third more within 0.1 than its five million, and a fifth fewer ends;" in DOCS
    begun, ended = again[FEW]["starts"]["synthetic"], again[FEW]["terminals"]["synthetic"]["terminated"]
    wide, near, at = (begun[f"within {margin}"] for margin in (0.3, 0.1, 0.03))
    assert f"those of its second fit have {wide:,}, {near} and {at}, and {ended} ends." in DOCS


def test_documents_say_what_limits_and_larger_batches_change():
    cells = {"TD3+BC": "td3bc-synther", "IQL": "iql-synther"}
    found = {path.relative_to(LIMITS) for path in LIMITS.glob("*/*.json")}
    assert found == {Path(WALKER, f"{cell}.json") for cell in (*cells.values(), "edac-synther")}
    for title, cell in cells.items():
        content = read(WALKER, cell, LIMITS)
        assert (content["commit"], len(content["seeds"])) == ("4e358ef", 8)
        assert content["settings"]["generator"] == {**read(WALKER, cell)["settings"]["generator"], **ALL_THREE}
        scores = [interval([WALKER], cell, folder, evaluations=n) for n in (1, 20) for folder in (OFFLINE, LIMITS)]
        assert f"| {title}, walker2d medium | {' | '.join(map(bracketed, scores))} |" in DOCS
        assert not apart(*scores[:2])
        assert not apart(*scores[2:])
    assert " ".join(f"--set {name}={value}" for name, value in ALL_THREE.items()) in DOCS


def shares(rows):
    """Of the ends that are by the task's rule, and of those by the rule that are ends."""
    return [f"{100 * rows['both'] / rows[of]:.0f} %" for of in ("terminated", "by_rule")]


def ends_of(label, content):
    """The row that says it."""
    real, rows = content["terminals"]["real"], content["terminals"]["synthetic"]
    expected = real["terminated"] * rows["rows"] / real["rows"]
    return f"| {label} | {expected:,.0f} | {rows['terminated']:,} | {' | '.join(shares(rows))} |"


def test_documents_say_where_predicted_episodes_end_and_what_that_changes():
    names = {
        "walker2d medium": ("walker2d-medium-regen", "synther"),
        "walker2d medium-replay": ("walker2d-medium-replay-regen", "synther"),
        "15 % of walker2d medium-replay": ("walker2d-medium-replay-regen", "synther-15pct"),
        "hopper medium-replay": ("hopper-medium-replay-regen", "synther"),
    }
    cells = {
        (algo, label): (dataset, f"{of}-{data}")
        for algo, of in (("TD3+BC", "td3bc"), ("IQL", "iql"))
        for label, (dataset, data) in names.items()
    }
    del cells["IQL", "hopper medium-replay"]
    found = {(path.parent.name, path.stem) for path in PREDICTED.glob("*/*.json")}
    assert found == {*cells.values(), ("walker2d-medium-regen", "edac-synther")}  # which has a test of its own
    for (algo, label), cell in cells.items():
        content = read(*cell, PREDICTED)
        generator = content["settings"]["generator"]
        assert generator.pop("predict_terminated")
        assert (content["commit"], generator) == ("516211a", read(*cell)["settings"]["generator"])
        assert ends_of(label, content) in DOCS
        folders = OFFLINE, PREDICTED
        scores = [interval([cell[0]], cell[1], folder, evaluations=n) for n in (1, 20) for folder in folders]
        assert f"| {algo}, {label} | {' | '.join(map(bracketed, scores))} |" in DOCS
        assert not apart(*scores[:2])
        assert not apart(*scores[2:])
    for label, folder in (
        ("walker2d medium, 4431c5b", PREDICTED),
        ("walker2d medium, 4431c5b, 100,000 steps", EDAC / "long"),
    ):
        assert ends_of(label, read("walker2d-medium-regen", "edac-synther", folder)) in DOCS
    terminals = read("walker2d-medium-regen", "edac-synther")["terminals"]
    made, (fallen, end) = terminals["synthetic"]["terminated"], shares(terminals["synthetic"])
    assert f"{made:,} on walker2d medium, of which {fallen} have fallen, and of the fallen {end} end" in DOCS
    assert f"on walker2d medium {100 - int(fallen.split()[0])} % of those that do;" in README
    real = terminals["real"]
    assert f"{real['terminated']} of the {real['rows']:,} of walker2d medium" in DOCS


def test_the_ablation_in_the_documents_is_that_of_its_files():
    dataset = "halfcheetah-medium-expert-regen"

    def scores(folder, cell="iql-synther", *, updates=200_000):
        content = read(dataset, cell, RESULTS / folder)
        assert content["steps"] == updates
        return {point["step"]: point["scores"] for point in content["curve"]}[200_000]

    variants = {
        "`offline()`, with its 30,000 steps": "plain",
        "`offline(width=2048)`": "wide",
        "`offline(unsquash_actions=False)`": "squashed",
        "`offline(steps=100_000)`": "long",
        "`offline(steps=100_000, width=2048)`": "long-wide",
    }
    cells = (("offline-short",), ("offline",), ("offline", "iql-real"))
    on_the_way = [np.mean(scores(*cell, updates=1_000_000)) for cell in cells]
    sentence = "`offline()` has {:.1f} there, `offline(steps=100_000)` {:.1f} and real rows {:.1f}"
    assert sentence.format(*on_the_way) in DOCS
    found = {name: scores(f"offline-ablation/{variant}") for name, variant in variants.items()}
    for name, of_seeds in {**found, "real rows": scores("offline-ablation/real", "iql-real")}.items():
        assert f"| {name} | {mean_and_spread(of_seeds, 1)} |" in DOCS


def test_documents_say_what_larger_networks_and_synthetic_rows_bring_together():
    def gain(over, evaluations=1, folder=OFFLINE):
        together = mean(MEDIUM_REPLAY, "td3bc-synther-large", evaluations=evaluations)
        return f"{100 * (together / mean(MEDIUM_REPLAY, over, folder, evaluations=evaluations) - 1):.1f} %"

    last, along = gain("td3bc-real"), gain("td3bc-real", 20)
    assert f"at the last evaluation, {last} above the usual ones on real rows" in DOCS
    before = bracketed(interval(MEDIUM_REPLAY, "td3bc-real", EARLIER))
    assert f"earlier run, with {before}, it is {gain('td3bc-real', folder=EARLIER)}." in DOCS
    for evaluations in (1, 20):
        cells = (
            interval(MEDIUM_REPLAY, cell, evaluations=evaluations) for cell in ("td3bc-real", "td3bc-synther-large")
        )
        assert apart(*cells) == 1
    assert f"Over all 20 evaluations it is {along}, again outside" in DOCS
    assert f"and {gain('td3bc-synther', 20)} above the usual networks on synthetic rows." in DOCS
    hopper = [curve(MEDIUM_REPLAY[1], f"td3bc-{of}").mean() for of in ("synther-large", "synther", "real-large")]
    told = "with {:.1f} against {:.1f} of the usual ones and {:.1f} of larger ones on real rows."
    assert told.format(*hopper) in DOCS
    assert (
        f"together are {last} above having neither, much of it by one seed, and over all evaluations {along}." in README
    )


def test_documents_say_how_larger_networks_do_with_floats():
    dataset = "walker2d-medium-replay-regen"
    floats = curve(dataset, "td3bc-real-large-precise", RESULTS / "offline-precise")
    halves = curve(dataset, "td3bc-real-large")[: len(floats)]
    told = ["{:.1f}, {:.1f}, {:.1f} and {:.1f}".format(*means) for means in (floats, halves)]
    assert f"means of {told[0]} at 50,000, 100,000, 150,000 and 200,000 updates" in DOCS
    assert f"where halves have {told[1]}, and at" in DOCS


def test_documents_say_what_became_of_scores_without_the_fault():
    again = [(path.parent.name, path.stem) for path in sorted(EARLIER.glob("*/*.json"))]
    without = [cell for cell in again if read(*cell, EARLIER)["commit"] in BEFORE_THE_FAULT]
    had = [cell for cell in again if cell not in without]
    hopper, walker, medium = "hopper-medium-expert-regen", MEDIUM_REPLAY[2], "walker2d-medium-regen"
    plain = {"td3bc-real", "iql-real", *(f"td3bc-{cell}" for cell in REDUCED)}
    assert set(without) == {(walker, cell) for cell in plain}
    reduced = {"td3bc-synther-15pct", "iql-synther-15pct", *(f"iql-{cell}" for cell in REDUCED)}
    of_replay = set(itertools.product(MEDIUM_REPLAY, USUAL)) - set(without)
    others = {(hopper, "td3bc-real"), (hopper, "td3bc-synther"), (medium, "td3bc-real"), (medium, "iql-real")}
    assert set(had) == of_replay | {(walker, c) for c in reduced} | others
    assert all(read(*cell)["commit"] in ("aa1b53d", "e4bd0d4", "4431c5b") for cell in again)
    for evaluations, differ in ((1, [(walker, "td3bc-real-15pct")]), (20, [])):
        pairs = {(d, c): [interval([d], c, f, evaluations=evaluations) for f in (EARLIER, OFFLINE)] for d, c in again}
        assert [cell for cell, pair in pairs.items() if apart(*pair)] == differ
    change = np.array([curve(*cell) - curve(*cell, EARLIER) for cell in had])
    assert (len(had), np.sum(change[:, -1] < 0), np.sum(change.mean(1) < 0)) == (20, 14, 8)
    along, last = f"the mean change is {change.mean():.2f}", f"by {-change[:, -1].mean():.1f} in the mean of all"
    assert f"8 of the 20 are lower than before, and {along}. At the last evaluation 14 are, {last}, so" in DOCS
    assert "The 20 cells that ran again without it differ within their intervals." in README
    commits = [(path.stem, json.loads(path.read_text())["commit"]) for path in OFFLINE.glob("*/*.json")]
    have = [c for c, commit in commits if commit in WITH_THE_FAULT and "edac" not in c and "large" not in c]
    assert len(have) == 36
    assert "those of the 36 cells that still have it may be a little high there" in DOCS
    assert "In 36 of the cells policies learnt by a GPU kernel with a fault" in README
    now, then = ([mean(MEDIUM_REPLAY, cell, f, evaluations=20) for cell in USUAL] for f in (OFFLINE, EARLIER))
    assert "{:.1f} and {:.1f} with IQL and {:.1f} and {:.1f} with TD3+BC;".format(*now) in DOCS
    assert "before that was {:.1f} and {:.1f}, and {:.1f} and {:.1f}.".format(*then) in DOCS


def test_documents_say_how_long_cells_take():
    def content(pattern, folder=OFFLINE):
        return [json.loads(path.read_text()) for path in folder.glob(pattern)]

    def duration(one):
        return one["wall_seconds"]["total"] - one["wall_seconds"]["data"]

    def of_cells(algo):
        found = [one for one in content(f"[!m]*/{algo}-*.json") if len(one["seeds"]) == 8]
        return spread([duration(one) for one in found if (one["dataset"], one["data"]) != (walker, "real")])

    def to_make_rows(folder, steps):
        made = [one for one in content("*/*-synther*.json", folder) if one["fit_steps"] == steps]
        return spread([one["fit_seconds"] + one["generate_seconds"] for one in made])

    walker = "walker2d-medium-regen"  # whose real rows had the GPU for themselves
    alone = (walker, "td3bc-real"), ("maze2d-medium-regen", "td3bc-real"), (walker, "iql-real")
    alone = [f"{duration(read(*cell)):.0f} s" for cell in alone]
    td3bc, iql = of_cells("td3bc"), of_cells("iql")
    usual, longer = to_make_rows(OFFLINE, 30_000), to_make_rows(OFFLINE, 100_000)
    assert f"cell of TD3+BC, 8 seeds, takes {alone[0]} on real rows of walker2d medium and {alone[1]} on those" in DOCS
    assert f"and one of IQL {alone[2]} on walker2d medium" in DOCS
    assert f"one of TD3+BC on a locomotion set takes {td3bc}, one of IQL {iql}." in DOCS
    assert f"draw five million rows takes {usual}, with 100,000 steps {longer}," in DOCS
    assert f"in {usual} beside other cells, where `paper()` took {to_make_rows(PAPER, 100_000)};" in DOCS
    told = f"alone on one H200 (walker2d medium, real rows; IQL {alone[2]}), and on locomotion sets {td3bc} beside"
    assert f"Eight seeds of TD3+BC take {alone[0]} for a million updates {told}" in README
    made = read("walker2d-medium-replay-regen", "td3bc-synther", RESULTS / "offline-alone")
    fit, drawn = made["fit_seconds"], made["generate_seconds"]
    assert f"draw five million rows takes {fit:.1f} and {drawn:.1f} s," in DOCS
    assert f"draw five million rows takes {fit + drawn:.0f} s alone" in README


def test_documents_say_where_mixtures_lie():
    mixtures = [(path.parent.name, path.stem.partition("-")[0]) for path in sorted(OFFLINE.glob("*/*-mixed.json"))]
    assert mixtures == list(itertools.product(MEDIUM_REPLAY, ("iql", "td3bc")))

    def order(dataset, algo, evaluations):
        kinds = ("real", "mixed", "synther")
        return sorted(kinds, key=lambda data: mean([dataset], f"{algo}-{data}", evaluations=evaluations))

    assert [order(*cell, 1)[1] for cell in mixtures] == ["mixed"] * 6
    highest = {cell: order(*cell, 20)[2] for cell in mixtures}
    assert [cell for cell, data in highest.items() if data == "mixed"] == [
        (name, "td3bc") for name in MEDIUM_REPLAY[:2]
    ]
    assert [order(*cell, 20)[1] for cell, data in highest.items() if data != "mixed"] == ["mixed"] * 4
    told = """At the last evaluation the mixture lies between the other two on each set, over all evaluations so on all
        three with IQL and with TD3+BC on walker2d; on halfcheetah and hopper it is above both. Outside the intervals of
        the means it is above real rows only with IQL over all evaluations, and below synthetic ones only with IQL."""
    assert " ".join(told.split()) in DOCS
    found = {}
    for algo, evaluations in itertools.product(("td3bc", "iql"), (1, 20)):
        cells = (f"{algo}-{data}" for data in ("real", "mixed", "synther"))
        real, mixed, synthetic = (interval(MEDIUM_REPLAY, cell, evaluations=evaluations) for cell in cells)
        found[algo, evaluations] = apart(real, mixed), apart(mixed, synthetic)
    assert found == {("td3bc", 1): (0, 0), ("td3bc", 20): (0, 0), ("iql", 1): (0, 1), ("iql", 20): (1, 1)}
    iql, td3bc = (bracketed(interval(MEDIUM_REPLAY, f"{algo}-mixed")) for algo in ("iql", "td3bc"))
    assert f"(`--data mixed`) give IQL {iql} and TD3+BC {td3bc} on medium-replay, between the other two." in README


def test_documents_say_how_scores_in_the_mazes_jump():
    told = []
    for size, data in itertools.product(("medium", "large"), ("real", "synther")):
        *means, last = (f"{score:.0f}" for score in curve(f"maze2d-{size}-regen", f"td3bc-{data}")[-5:])
        told.append(f"{', '.join(means)} and {last}")
    on_medium = "at the last five evaluations are {} with real rows and {} with synthetic ones".format(*told)
    assert "{}, on the large maze {} and {}.".format(on_medium, *told[2:]) in DOCS

    def over_all(size, algo):
        pair = (curve(f"maze2d-{size}-regen", f"{algo}-{data}").mean() for data in ("real", "synther"))
        return "{:.1f} and {:.1f} on {}".format(*pair, size)

    umaze, medium, large = (over_all(size, "td3bc") for size in ("umaze", "medium", "large"))
    assert f"{umaze}, {medium} and {large}; IQL" in DOCS
    umaze, medium, large = (over_all(size, "iql") for size in ("umaze", "medium", "large"))
    assert f"; IQL {umaze}, {medium} and {large}." in DOCS
    for size, better in (("umaze", 1), ("medium", 1), ("large", -1)):
        real, synthetic = (curve(f"maze2d-{size}-regen", f"iql-{data}") for data in ("real", "synther"))
        assert len(real) == 10 and all(better * synthetic > better * real)
    assert "With IQL synthetic rows are better at each of the ten evaluations on umaze and on medium" in DOCS

    large = "maze2d-large-regen"
    real, synthetic = (curve(large, f"iql-{data}") for data in ("real", "synther"))
    assert f"worse at each evaluation, with {synthetic.mean():.1f} against {real.mean():.1f} over all." in DOCS
    assert not apart(*(interval([large], f"iql-{data}", evaluations=10) for data in ("real", "synther")))
    assert real.argmax() == 0 and f"what they have at the first evaluation, {real[0]:.0f}." in DOCS
    of_real, of_synthetic = (np.sort(read(large, f"iql-{data}")["final"]) for data in ("real", "synther"))
    ends = "six of eight have {:.0f} to {:.0f}, one {:.0f} and one {:.0f}".format(*of_synthetic[[0, 5, 6, 7]])
    assert f"at the end {ends}, where all with real rows have {of_real[0]:.0f} to {of_real[-1]:.0f}." in DOCS
    assert of_synthetic[5] < of_real[0]
    told = f"six of eight seeds end below all with real rows and one with {of_synthetic[-1]:.0f} lifts the mean."
    assert f"worse in the large one, where {told}" in README


def test_documents_say_where_intervals_are_apart():
    found = {}
    for path in sorted(OFFLINE.glob("*/*-synther.json")):
        dataset, algo = path.parent.name, path.stem.partition("-")[0]
        for evaluations in (1, 20):
            pair = [interval([dataset], f"{algo}-{data}", evaluations=evaluations) for data in ("real", "synther")]
            if "maze2d" not in dataset and (which := apart(*pair)):
                found.setdefault((evaluations, which, algo), []).append(dataset.removesuffix("-regen"))
    replay = ["halfcheetah-medium-replay", "hopper-medium-replay", "walker2d-medium-replay"]
    assert found == {
        (1, 1, "iql"): ["halfcheetah-medium", replay[0], "halfcheetah-random", "hopper-medium-expert", replay[2]],
        (1, 1, "td3bc"): [replay[0], "hopper-random"],
        (1, 1, "edac"): [replay[0]],
        (1, -1, "edac"): ["walker2d-medium"],
        (1, -1, "iql"): ["hopper-random"],
        (1, -1, "td3bc"): ["halfcheetah-random"],
        (20, 1, "iql"): ["halfcheetah-medium", replay[0], "halfcheetah-random", *replay[1:]],
        (20, 1, "td3bc"): ["halfcheetah-medium", "hopper-medium-expert"],
        (20, 1, "edac"): [replay[0]],
        (20, -1, "edac"): ["walker2d-medium"],
        (20, -1, "iql"): ["halfcheetah-medium-expert", "hopper-random"],
        (20, -1, "td3bc"): ["halfcheetah-medium-expert", replay[0], "halfcheetah-random", "walker2d-medium"],
    }
    told = """By set and outside the intervals, synthetic rows are at the last evaluation better with IQL on halfcheetah
        random, medium and medium-replay, walker2d medium-replay and, by 0.2, hopper medium-expert, with TD3+BC on
        halfcheetah medium-replay and hopper random, and with EDAC on halfcheetah; they are worse with EDAC on walker2d
        medium, with TD3+BC on halfcheetah random and, by 0.4, with IQL on hopper random. Over all evaluations they are
        better with IQL on halfcheetah random and medium and all of medium-replay, with TD3+BC on halfcheetah medium and
        hopper medium-expert, and with EDAC on halfcheetah; they are worse with EDAC on walker2d medium, with the other
        two on halfcheetah medium-expert, with TD3+BC on halfcheetah medium-replay and random and walker2d medium, and
        with IQL on hopper random."""
    assert " ".join(told.split()) in DOCS
    hopper = (curve("hopper-random-regen", f"td3bc-{data}").mean() for data in ("synther", "real"))
    assert (
        "On hopper random TD3+BC's scores jump: over all evaluations it is {:.1f} against {:.1f}.".format(*hopper)
        in DOCS
    )


def test_documents_say_what_the_means_rest_on():
    def pair(algo, count, *without, evaluations=1):
        sets = locomotion(f"{algo}-real", count, without)
        return [mean(sets, f"{algo}-{data}", evaluations=evaluations) for data in ("synther", "real")]

    last = [*pair("td3bc", 12), *pair("iql", 12)]
    told = "{:.1f} against {:.1f} with TD3+BC and {:.1f} against {:.1f} with IQL, the latter outside the intervals."
    assert f"at the last evaluation {told}".format(*last) in DOCS

    def whole(algo, evaluations):
        sets = locomotion(f"{algo}-real", 12)
        return [interval(sets, f"{algo}-{data}", evaluations=evaluations) for data in ("real", "synther")]

    assert (apart(*whole("td3bc", 1)), apart(*whole("iql", 1)), apart(*whole("iql", 20))) == (0, 1, 0)
    real, synthetic = whole("td3bc", 20)
    assert abs(synthetic.low - real.high) < 0.1
    told = "TD3+BC is ahead with them, with intervals that touch, and IQL behind, with intervals that overlap."
    assert f"Over all evaluations {told}" in DOCS

    hopper = [curve("hopper-medium-expert-regen", f"td3bc-{data}").mean() for data in ("synther", "real")]
    synthetic, real = (f"{one:.1f}" for one in pair("td3bc", 11, "hopper-medium-expert", evaluations=20))
    assert synthetic == real
    told = "{:.1f} against {:.1f}; without it both have {}.".format(*hopper, real)
    assert f"Over all evaluations TD3+BC's lead is that on hopper medium-expert, {told}" in DOCS
    assert f"TD3+BC's lead over all evaluations is that on hopper medium-expert; without it both have {real}." in README
    without = ("hopper-medium-expert", "hopper-random", "walker2d-medium-replay")
    found = [*pair("td3bc", 9, *without), *pair("td3bc", 9, *without, evaluations=20)]
    assert "{:.1f} against {:.1f} at the last evaluation and {:.1f} against {:.1f} over all.".format(*found) in DOCS

    late = (curve("halfcheetah-medium-expert-regen", f"iql-{data}").mean() for data in ("synther", "real"))
    others = pair("iql", 11, "halfcheetah-medium-expert", evaluations=20)
    told = "{:.1f} against {:.1f} over all evaluations; on the other eleven sets it has {:.1f} and {:.1f}."
    assert f"later from synthetic rows, {told}".format(*late, *others) in DOCS
    assert "on the other eleven sets it has {:.1f} against {:.1f}.".format(*others) in README
    without = ("medium-replay", "halfcheetah-random")
    found = [*pair("iql", 8, *without), *pair("iql", 8, *without, evaluations=20)]
    told = "{:.1f} against {:.1f} at the last evaluation and {:.1f} against {:.1f} over all."
    assert f"on the other eight sets it has {told}".format(*found) in DOCS
    replay = [mean(MEDIUM_REPLAY, f"iql-{data}", evaluations=n) for n in (1, 20) for data in ("synther", "real")]
    told = "({:.1f} against {:.1f}, over all evaluations {:.1f} against {:.1f})"
    assert f"With IQL synthetic rows are better on medium-replay {told}".format(*replay) in README

    short = {path.parent.name for path in SHORT.glob("*/iql-synther.json")}
    assert len(short) == 3
    sets = locomotion("iql-synther", 12)
    contents = [read(name, "iql-synther", SHORT if name in short else OFFLINE) for name in sets]
    last, along = (interval_of(contents, evaluations) for evaluations in (1, 20))
    assert (apart(interval(sets, "iql-real"), last), apart(interval(sets, "iql-real", evaluations=20), along)) == (
        0,
        -1,
    )
    told = """IQL has {:.1f} at the last evaluation, in {:.1f} to {:.1f}, which overlaps with real rows, and {:.1f} over
        all, in {:.1f} to {:.1f}, which is below them and outside the intervals."""
    assert " ".join(told.format(*last, *along).split()) in DOCS
    told = "IQL has {:.1f} at the last evaluation, about as with real rows, and {:.1f} over all, below them."
    assert told.format(last.value, along.value) in README


def test_documents_say_what_the_papers_preset_gives():
    def against_offline(dataset, cell, evaluations):
        return apart(*(interval([dataset], cell, folder, evaluations=evaluations) for folder in (OFFLINE, PAPER)))

    cells = [(path.parent.name, path.stem) for path in sorted(PAPER.glob("*/*.json"))]
    assert [cell for cell in cells if against_offline(*cell, 1) > 0] == []
    hopper = "hopper-medium-replay-regen", "td3bc-synther"
    assert {cell: which for cell in cells if (which := against_offline(*cell, 20))} == {hopper: 1}
    means = [curve(*hopper, folder).mean() for folder in (PAPER, OFFLINE)]
    told = """At the last evaluation none is better than `offline()` outside the intervals; over all evaluations TD3+BC
        on hopper is, with {:.1f} against {:.1f}."""
    assert " ".join(told.format(*means).split()) in DOCS


def test_documents_say_how_our_learners_stand_against_corls():
    check = RESULTS / "offline-check"
    for dataset, (algo, name) in itertools.product(MEDIUM_REPLAY, (("td3bc", "TD3+BC"), ("iql", "IQL"))):
        both = [read(dataset, cell, check) for cell in (f"corl-{algo}", f"{algo}-real")]
        (updates,) = {one["steps"] for one in both}
        corl, here = (mean_and_spread(one["final"], 1) for one in both)
        assert f"| {dataset}, {name} | {updates:,} | {corl} | {here} |" in DOCS
    points = read("walker2d-medium-replay-regen", "td3bc-real")["curve"]
    (scores,) = (point["scores"] for point in points if point["step"] == 100_000)
    assert f"without it TD3+BC has {mean_and_spread(scores, 1)} after as many" in DOCS


def test_documents_say_what_all_real_rows_give_beside_the_15_percent():
    dataset = "walker2d-medium-replay-regen"

    def scores(algo, folder):
        return mean_and_spread(read(dataset, f"{algo}-real", folder)["final"], 1)

    ends = [
        curve(dataset, f"td3bc-{of}-15pct", f)[-1] for f in (OFFLINE, EARLIER, SECOND) for of in ("real", "synther")
    ]
    told = (
        "from {:.1f} to {:.1f} (in an earlier run from {:.1f} to {:.1f}), and with another draw of the 15 % from {:.1f}"
    )
    assert f"it takes TD3+BC {told} to {{:.1f}}, about what all of the set gives".format(*ends) in README
    now, then = ([scores(algo, folder) for algo in ("td3bc", "iql")] for folder in (OFFLINE, EARLIER))
    assert f"TD3+BC has {now[0]} (in an earlier run {then[0]}) and IQL {now[1]} ({then[1]})." in README
    assert f"({now[0]}, in the earlier run {then[0]})" in DOCS
    assert f"({now[1]}, earlier {then[1]})" in DOCS


def test_documents_say_how_additive_noise_compares_with_synthetic_rows_on_15_percent():
    dataset, cells = "walker2d-medium-replay-regen", ("iql-real-15pct-additive", "iql-synther-15pct")
    noise, rows = (interval([dataset], cell, evaluations=20) for cell in cells)
    assert apart(noise, rows) == 1
    assert f"ahead by {rows.value:.1f} to {noise.value:.1f}, outside the intervals" in DOCS
    noise, rows = (interval([dataset], cell) for cell in cells)
    assert not apart(noise, rows)
    assert f"at the last by {rows.value:.1f} to {noise.value:.1f}, and these overlap" in DOCS
    additive, synthetic = (np.array(read(dataset, cell)["final"]) for cell in cells)
    assert len(synthetic) == len(additive) == 16 and synthetic.min() > 66
    assert sum(additive < 60) == sum(additive[8:] < 60) == 2
    told = f"seeds spread by {additive.std(ddof=1):.1f} at the end, and two of the 16 are below 60"
    assert f"{told}, both among those that were added, where with synthetic rows all are above 66." in DOCS


def test_documents_say_what_td3bc_does_on_15_percent_without_synthetic_rows():
    dataset = "walker2d-medium-replay-regen"
    of_seeds = [read(dataset, f"td3bc-{cell}")["final"] for cell in REDUCED]
    ends = (min(of_seeds[0]), max(of_seeds[0]), np.min(of_seeds[1:]), np.max(of_seeds[1:]))
    told = "at the end are between {:.1f} and {:.0f}, with one between {:.1f} and {:.0f}, and they jump"
    assert told.format(*ends) in DOCS

    then, now = ({cell: read(dataset, f"td3bc-{cell}", f)["final"] for cell in REDUCED} for f in (EARLIER, OFFLINE))
    plain, *augmented = (np.mean(scores) for scores in then.values())
    assert sum(plain > np.array(augmented)) == 2
    told = (
        f"TD3+BC on real rows had {mean_and_spread(then['real-15pct'], 1)}, outside the interval of now and above two"
    )
    assert f"{told} of the augmentations" in DOCS
    dynamics = (np.mean(scores["real-15pct-dynamics"]) for scores in (then, now))
    assert "and dynamics had {:.1f} where it has {:.1f} now.".format(*dynamics) in DOCS
    plain, *augmented = (interval([dataset], f"td3bc-{cell}", evaluations=20) for cell in REDUCED)
    assert [apart(plain, one) for one in augmented] == [1, 0, 0]
    assert "of the augmentations of TD3+BC only additive noise is above plain rows outside the intervals" in DOCS


def test_documents_say_what_another_draw_of_the_15_percent_gives():
    dataset, cells = "walker2d-medium-replay-regen", [f"td3bc-{cell}" for cell in (*REDUCED, "synther-15pct")]
    assert {path.relative_to(SECOND) for path in SECOND.glob("*/*.json")} == {
        Path(dataset, f"{cell}.json") for cell in cells
    }
    contents = {cell: read(dataset, cell, SECOND) for cell in cells}
    for cell, content in contents.items():
        first = read(dataset, cell)
        assert content["settings"] == {**first["settings"], "first_seed": 8}
        assert (content["commit"], content[DIGEST]) == ("7ccfd08", first[DIGEST])
        for n in (1, 20):
            assert not apart(*(interval([dataset], cell, folder, evaluations=n) for folder in (OFFLINE, SECOND)))
    assert "intervals overlap with those above in all ten numbers." in DOCS
    *others, synthetic = (np.array(content["final"]) for content in contents.values())
    assert synthetic.min() > 67 and np.max(others) < 62
    assert "On this draw all seeds on synthetic rows end above 67, and all others below 62." in DOCS
    for n, outside in ((1, [1, 1, 1]), (20, [1, 1, 0])):
        plain, *augmented = (interval([dataset], cell, SECOND, evaluations=n) for cell in cells[:-1])
        assert [apart(plain, one) for one in augmented] == outside
    assert augmented[2].value < plain.value
    told = "additive noise and dynamics are, and multiplicative is below, within them. IQL has not run on this draw."
    assert f"all three augmentations are above plain rows outside the intervals, over all evaluations {told}" in DOCS
    real, made = (mean_and_spread(one, 1) for one in (others[0], synthetic))
    low, high = (of([one.mean() for one in others[1:]]) for of in (min, max))
    assert f"has {real} on real rows, {low:.1f} to {high:.1f} with the augmentations, and {made} on synthetic" in README
    along = [interval([dataset], cell, SECOND, evaluations=20).value for cell in cells]
    told = (
        f"over all evaluations {along[0]:.1f}, {min(along[1:-1]):.1f} to {max(along[1:-1]):.1f}, and {along[-1]:.1f}."
    )
    assert told in README


def test_documents_say_what_cql_has_run():
    content = read("walker2d-medium-replay-regen", "cql-real", RESULTS / "offline-cql")
    assert (content["steps"], len(content["seeds"])) == (250_000, 4)
    told = f"has {mean_and_spread(content['final'], 1)} with 4 seeds after a quarter of its million updates"
    assert f"{told}, which took {content['wall_seconds']['total']:.0f} s beside" in DOCS


def test_documents_say_which_commit_ran_which_cells():
    told = """Real rows of walker2d medium and EDAC there ran at 4431c5b, the 15 %, IQL on random sets and the large
        maze, and TD3+BC on hopper medium-expert and its mixture on hopper ran at e4bd0d4, TD3+BC and IQL with the
        usual networks on medium-replay, its other mixtures and EDAC on halfcheetah at aa1b53d, TD3+BC on random
        sets and the large maze, EDAC on walker2d and IQL on the medium maze at e0d8e5a, the other mazes and larger
        networks on synthetic rows at d32647f, larger networks on real rows and other rows of generators with
        100,000 steps at 61a1411, other synthetic rows and the other real ones of medium-expert at fbb605b, real
        ones of medium at ae681bb."""
    assert " ".join(told.split()) in DOCS
    rules = (  # in the order of the sentence: the first that fits
        (r"walker2d-medium/(\w+-real|edac-)", "4431c5b"),
        (r".*-15pct|(.*-random|maze2d-large)/iql-|hopper-medium-(expert/td3bc-|replay/td3bc-mixed)", "e4bd0d4"),
        (r".*-medium-replay/(td3bc|iql)-\w+$|halfcheetah-medium-replay/edac-", "aa1b53d"),
        (r"(.*-random|maze2d-large)/td3bc-|walker2d-medium-replay/edac-|maze2d-medium/iql-", "e0d8e5a"),
        (r"maze2d-|.*-synther-large", "d32647f"),
        (r".*-real-large|(halfcheetah-medium-expert|hopper-medium|hopper-medium-expert)/\w+-synther", "61a1411"),
        (r".*-synther|.*-medium-expert/", "fbb605b"),
        (r".*-medium/", "ae681bb"),
    )
    paths = list(OFFLINE.glob("*/*.json"))
    assert paths
    for path in paths:
        name = f"{path.parent.name.removesuffix('-regen')}/{path.stem}"
        fitting = [commit for rule, commit in rules if re.match(rule, name)]
        assert fitting[:1] == [json.loads(path.read_text())["commit"]], name
