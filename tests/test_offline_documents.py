"""What README and results say of the offline benchmark is what its published files hold."""

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import plot_offline
from aggregate import mean_estimate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OFFLINE, SHORT, PAPER, EARLIER = (RESULTS / f"offline{of}" for of in ("", "-short", "-paper", "-earlier"))
MEDIUM_REPLAY = [f"{task}-medium-replay-regen" for task in ("halfcheetah", "hopper", "walker2d")]
USUAL = [f"{algo}-{data}" for algo in ("td3bc", "iql") for data in ("real", "synther")]


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


def interval(dataset, cell, folder=OFFLINE):
    return mean_estimate([np.array(read(dataset, cell, folder)["final"])])


def spread(seconds):
    return f"{min(seconds):.0f} to {max(seconds):.0f} s"


@pytest.mark.parametrize("folder", [OFFLINE, SHORT, PAPER, EARLIER], ids=lambda folder: folder.name)
def test_the_published_table_is_that_of_the_published_results(folder):
    assert (folder / "table.md").read_text() == plot_offline.table(plot_offline.read_results(folder))


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_documents_have_the_rows_of_the_published_table(name):
    def lines(*folders):
        tables = "".join((folder / "table.md").read_text() for folder in folders)
        return re.sub(r" \(\d seeds\)", "", tables).splitlines()

    text, published = (ROOT / name).read_text(), lines(OFFLINE, SHORT, PAPER)
    rows = [line for line in text.splitlines() if line.startswith("|") and "regen" in line]
    rows = [line for line in rows if not any(algo in line for algo in ("TD3+BC", "IQL"))]  # against CORL
    assert rows
    assert [row for row in rows if row not in published] == []
    of_offline = " ".join(re.split(r"\n##+ Offline\n", text)[1].split())
    intervals = re.findall(r"(earlier run, with )?(\d+\.\d \[-?\d+\.\d, -?\d+\.\d\])", of_offline)
    wrong = [one for then, one in intervals if not any(one in line for line in (lines(EARLIER) if then else published))]
    assert wrong == []  # also those in sentences


def test_the_readme_sums_up_the_published_table():
    blocks = {block.split(" | ")[0].lstrip("| "): block for block in (OFFLINE / "table.md").read_text().split("\n\n")}
    titles = {"TD3+BC": "td3bc", "IQL": "iql", "EDAC": "edac", "TD3+BC, larger networks": "td3bc-large"}
    table = (ROOT / "README.md").read_text().split("| | sets | real | synthetic |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
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
        assert f"| {name} | {np.mean(of_seeds):.1f} +- {np.std(of_seeds, ddof=1):.1f} |" in DOCS


def test_documents_say_what_larger_networks_and_synthetic_rows_bring_together():
    def gain(over, evaluations=1, folder=OFFLINE):
        together = mean(MEDIUM_REPLAY, "td3bc-synther-large", evaluations=evaluations)
        return f"{100 * (together / mean(MEDIUM_REPLAY, over, folder, evaluations=evaluations) - 1):.1f} %"

    last, along = gain("td3bc-real"), gain("td3bc-real", 20)
    assert f"at the last evaluation, {last} above the usual ones on real rows" in DOCS
    assert f"with 46.7 [45.9, 47.3], it is {gain('td3bc-real', folder=EARLIER)}." in DOCS
    assert f"Over all 20 evaluations it is {along}, again outside" in DOCS
    assert f"and {gain('td3bc-synther', 20)} above the usual networks on synthetic rows." in DOCS
    hopper = [f"{curve(MEDIUM_REPLAY[1], f'td3bc-synther{size}').mean():.1f}" for size in ("-large", "")]
    assert "{} against {} over all evaluations.".format(*hopper) in DOCS
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
    for dataset, cell in itertools.product(MEDIUM_REPLAY, USUAL):
        now, then = interval(dataset, cell), interval(dataset, cell, EARLIER)
        assert now.low < then.high and then.low < now.high, (dataset, cell)
    assert "intervals of the last evaluation overlap in all." in DOCS
    cells = ("iql-real", "iql-synther", "td3bc-real", "td3bc-synther")
    now, then = ([mean(MEDIUM_REPLAY, cell, f, evaluations=20) for cell in cells] for f in (OFFLINE, EARLIER))
    assert "{:.1f} and {:.1f} with IQL and {:.1f} and {:.1f} with TD3+BC; before".format(*now) in DOCS
    assert "that was {:.1f} and {:.1f}, and {:.1f} and {:.1f}.".format(*then) in DOCS


def test_documents_say_how_long_cells_take():
    def content(pattern, folder=OFFLINE):
        return [json.loads(path.read_text()) for path in folder.glob(pattern)]

    def of_cells(pattern):
        took = [one["wall_seconds"] for one in content(pattern) if not one["network"]]
        return spread([seconds["total"] - seconds["data"] for seconds in took])

    def to_make_rows(folder, *steps):
        made = [one for one in content("*/*-synther*.json", folder) if one["fit_steps"] in steps]
        return spread([one["fit_seconds"] + one["generate_seconds"] for one in made])

    alone = read("maze2d-medium-regen", "td3bc-real")["wall_seconds"]
    alone = f"{alone['total'] - alone['data']:.0f} s"
    td3bc, iql = of_cells("[!m]*/td3bc-*.json"), of_cells("[!m]*/iql-*.json")
    usual, longer = to_make_rows(OFFLINE, 30_000), to_make_rows(OFFLINE, 100_000)
    assert f"Alone on the GPU a cell of TD3+BC, 8 seeds, takes {alone} (maze2d-medium" in DOCS
    assert f"one on a locomotion set takes {td3bc}, one of IQL {iql}." in DOCS
    assert f"draw five million rows takes {usual}, with 100,000 steps {longer}," in DOCS
    assert f"in {usual} beside other cells, where `paper()` took {to_make_rows(PAPER, 100_000)}." in DOCS
    assert f"Eight seeds of TD3+BC take {alone} for a million updates alone" in README
    assert f"and {td3bc} beside several others" in README


def test_documents_say_where_mixtures_lie():
    mixtures = [(path.parent.name, path.stem.partition("-")[0]) for path in sorted(OFFLINE.glob("*/*-mixed.json"))]
    assert sorted(mixtures) == sorted(
        (dataset, algo) for dataset, algo in itertools.product(MEDIUM_REPLAY, ("iql", "td3bc"))
        if (dataset, algo) != ("hopper-medium-replay-regen", "td3bc")
    )  # fmt: skip
    assert "Hopper with TD3+BC has not run." in DOCS

    def elsewhere(evaluations):
        found = []
        for dataset, algo in mixtures:
            of = {d: mean([dataset], f"{algo}-{d}", evaluations=evaluations) for d in ("real", "mixed", "synther")}
            if not of["real"] < of["mixed"] < of["synther"]:
                found.append((dataset, algo))
        return found

    assert elsewhere(evaluations=1) == []
    assert elsewhere(evaluations=20) == [("halfcheetah-medium-replay-regen", "td3bc")]
    told = "between the other two on each set, over all evaluations on all but halfcheetah with TD3+BC."
    assert f"At the last evaluation the mixture lies {told}" in DOCS


def test_documents_say_how_scores_in_the_mazes_jump():
    told = []
    for size, data in itertools.product(("medium", "large"), ("real", "synther")):
        *means, last = (f"{mean:.0f}" for mean in curve(f"maze2d-{size}-regen", f"td3bc-{data}")[-5:])
        told.append(f"{', '.join(means)} and {last}")
    on_medium = "at the last five evaluations are {} with real rows and {} with synthetic ones".format(*told)
    assert "{}, on the large maze {} and {}.".format(on_medium, *told[2:]) in DOCS

    def over_all(size, algo):
        pair = (curve(f"maze2d-{size}-regen", f"{algo}-{data}").mean() for data in ("real", "synther"))
        return "{:.1f} and {:.1f} on {}".format(*pair, size)

    umaze, medium, large = (over_all(size, "td3bc") for size in ("umaze", "medium", "large"))
    assert f"{umaze}, {medium} and {large}; IQL {over_all('umaze', 'iql')} and {over_all('medium', 'iql')}." in DOCS
    for size in ("umaze", "medium"):
        real, synthetic = (curve(f"maze2d-{size}-regen", f"iql-{data}") for data in ("real", "synther"))
        assert len(real) == 10 and all(synthetic > real)
    assert "With IQL synthetic rows are better at each of the ten evaluations" in DOCS


def test_documents_say_where_the_last_evaluation_is_not_the_whole_story():
    def pair(dataset, algo):
        return (curve(dataset, f"{algo}-{data}") for data in ("real", "synther"))

    real, synthetic = pair("hopper-random-regen", "td3bc")
    assert max(synthetic) == synthetic[-1]
    assert f"over all 20 they have {synthetic.mean():.1f}, and real ones {real.mean():.1f}." in DOCS
    real, synthetic = pair("halfcheetah-random-regen", "td3bc")
    assert len(real) == 20 and all(real > synthetic)
    assert "halfcheetah random with TD3+BC, where real rows are ahead at all 20 evaluations" in DOCS
    real, synthetic = pair("halfcheetah-medium-replay-regen", "td3bc")
    assert synthetic[-1] > real[-1]
    assert f"behind there over all evaluations, {synthetic.mean():.1f} against {real.mean():.1f};" in DOCS
    real, synthetic = pair("halfcheetah-medium-expert-regen", "iql")
    assert len(real) == 20 and all(real > synthetic)
    assert "on halfcheetah medium-expert it learns from synthetic rows later, and is behind at all 20." in DOCS
    others = locomotion("iql-real", 8, ["halfcheetah-medium-expert"])
    means = (mean(others, f"iql-{data}", evaluations=20) for data in ("synther", "real"))
    assert "On the other eight it has {:.1f} over all evaluations, and with real rows {:.1f}.".format(*means) in DOCS


def test_documents_say_what_the_means_would_be_without_the_sets_that_make_them():
    def td3bc(*without):
        return [mean(locomotion("td3bc-real", 9, without), f"td3bc-{data}") for data in ("synther", "real")]

    spreading = td3bc("hopper-random", "hopper-medium-expert", "walker2d-medium-replay")
    assert "without them it has {:.1f} and {:.1f} at the last evaluation.".format(*spreading) in README
    assert "on the other nine it is {:.1f} against {:.1f} at the last evaluation.".format(*spreading) in DOCS
    assert "({:.1f} against {:.1f} on the nine that IQL has run on)".format(*td3bc("random")) in DOCS
    others = locomotion("iql-real", 6, ["medium-replay"])
    means = (mean(others, f"iql-{data}") for data in ("real", "synther"))
    assert "on the other six sets real rows are ahead by {:.1f} to {:.1f}.".format(*means) in DOCS

    short = {path.parent.name for path in SHORT.glob("*/iql-synther.json")}
    assert len(short) == 3
    sets = locomotion("iql-synther", 9)
    everywhere = np.mean([mean([name], "iql-synther", SHORT if name in short else OFFLINE) for name in sets])
    assert f"without it the mean is {everywhere:.1f}." in README
    assert f"with 30,000 steps everywhere IQL's mean was {everywhere:.1f}." in DOCS


def test_documents_say_what_all_real_rows_give_beside_the_15_percent():
    def told(algo, folder):
        scores = read("walker2d-medium-replay-regen", f"{algo}-real", folder)["final"]
        return f"{np.mean(scores):.1f} +- {np.std(scores, ddof=1):.1f}"

    now, then = ([told(algo, folder) for algo in ("td3bc", "iql")] for folder in (OFFLINE, EARLIER))
    assert f"TD3+BC has {now[0]} (in an earlier run {then[0]}) and IQL {now[1]} ({then[1]})." in README
    assert f"({now[0]}, in the earlier run {then[0]})" in DOCS
    assert f"({now[1]}, earlier {then[1]})" in DOCS
    dataset = "walker2d-medium-replay-regen"
    synthetic, additive = (curve(dataset, f"iql-{of}") for of in ("synther-15pct", "real-15pct-additive"))
    assert f"ahead by {synthetic.mean():.1f} to {additive.mean():.1f}, outside the intervals" in DOCS
    assert f"at the last by {synthetic[-1]:.1f} to {additive[-1]:.1f}, and these overlap" in DOCS
