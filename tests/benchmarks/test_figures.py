"""README and docs have the numbers of the published result files, and these are complete."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
from synther_replay.benchmarks import figures, offline_d4rl
from synther_replay.benchmarks.common.generated import fill, stale
from synther_replay.benchmarks.speed import docs_tables as speed_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = sorted(RESULTS.rglob("*.json"))


@pytest.fixture(scope="module")
def parts():
    """All generated tables by name."""
    return figures.docs_tables(RESULTS)


def test_generated_tables_match_the_result_files(parts):
    differing = {page.name: stale(page.read_text(encoding="utf-8"), parts) for page in figures.pages(ROOT)}
    assert {page: old for page, old in differing.items() if old} == {}, "run python benchmarks/figures.py docs"


@pytest.mark.parametrize(
    "page", ["README", "docs/results/online", "docs/results/offline", "docs/results/fidelity", "docs/results/speed"]
)
def test_a_page_has_all_of_its_tables(parts, page):
    own = [name for name in parts if name.startswith(f"{Path(page).name.lower()}-")]
    assert len(own) >= 4
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- generated: ([\w-]+) -->", text)) == sorted(own)


def test_figures_of_the_docs_exist():
    for page in (ROOT / "docs" / "results").glob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("!["):
                assert (page.parent / line.partition("](")[2].rstrip(")")).is_file(), line


def test_docs_command_checks_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "docs_tables", lambda _: {"a": "new", "b": "| x +- y |"})
    for part in (figures.online_figures, figures.offline_figures, figures.fidelity_figures):
        monkeypatch.setattr(part, "draw_for_docs", lambda *_: None)
    (tmp_path / "docs").mkdir()
    readme, page = tmp_path / "README.md", tmp_path / "docs" / "page.md"
    readme.write_text("- <!-- generated: a --> old <!-- end -->\n")
    page.write_text("# T\n\n<!-- generated: b -->\n<!-- end -->\n")
    before = readme.read_text()
    assert figures.main(["docs", "--root", str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == ["README.md: a differs", "docs/page.md: b differs"]
    assert readme.read_text() == before
    assert figures.main(["docs", "--root", str(tmp_path)]) == 0
    assert readme.read_text() == "- <!-- generated: a --> new <!-- end -->\n"
    assert page.read_text() == "# T\n\n<!-- generated: b -->\n\n| x ± y |\n\n<!-- end -->\n"
    assert figures.main(["docs", "--root", str(tmp_path), "--check"]) == 0


def test_an_unknown_marker_is_refused():
    with pytest.raises(ValueError, match="expected one of a, b, got 'c'"):
        fill("<!-- generated: c --> <!-- end -->", {"a": "", "b": ""})


@pytest.mark.parametrize("key", ["machine", "versions", "command", "commit"])
def test_result_files_have_their_origin(key):
    assert len(FILES) > 100
    assert [str(path.relative_to(RESULTS)) for path in FILES if not json.loads(path.read_text()).get(key)] == []


def test_tables_txt_lists_exactly_the_published_cells(monkeypatch):
    asked = [cell for _, cell in cells_of("tables.txt", monkeypatch)]
    main = RESULTS / "offline" / "main"
    published = {path.relative_to(main): json.loads(path.read_text())["settings"] for path in main.glob("*/*.json")}
    cells = {Path(cell.dataset, f"{cell.name}.json"): cell.to_json() for cell in asked}
    assert len(cells) == len(asked)
    assert cells == published


def cells_of(name, monkeypatch):
    """The cells that a list of the offline benchmark asks for, with the options of a run on a GPU."""
    monkeypatch.setattr(offline_d4rl, "resolve_device", lambda _: torch.device("cuda"))
    found = []
    for line in (ROOT / "benchmarks" / "offline" / name).read_text().splitlines():
        monkeypatch.setattr(sys, "argv", ["offline_d4rl.py", *line.split()])
        args = offline_d4rl.parse()
        found += [(args.out, config) for config in args.configs]
    return found


def write_cell(path, config, template):
    """A result of a cell, like a published one but for its settings."""
    steps = range(config.evaluate_every, config.steps + 1, config.evaluate_every)
    curve = [{"step": step, "scores": [1.0 * step / config.steps] * config.seeds} for step in steps]
    shown = {key: getattr(config, key) for key in ("dataset", "algo", "data", "steps", "preset", "network", "worsen")}
    content = {**template, **shown, "seeds": list(range(config.seeds)), "settings": config.to_json()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, "curve": curve, "final": curve[-1]["scores"]}))


def test_the_further_cells_are_those_of_the_paper_and_appear_in_the_tables(tmp_path, monkeypatch):
    shutil.copytree(RESULTS / "offline", tmp_path / "offline")
    main = tmp_path / "offline" / "main"
    cells = cells_of("further.txt", monkeypatch)
    assert (
        len({(cell.dataset, cell.name) for _, cell in cells})
        == len(cells)
        == 3 * 2 + 12 * 2 + 9 * 2 + 3 * 2 + 3 + (3 * 4 - 2)  # TD3+BC on antmaze umaze is in tables.txt
    )
    for _, cell in cells:
        known = main / cell.dataset / "td3bc-real.json"  # none in two ant mazes yet
        template = json.loads((known if known.exists() else main / "maze2d-umaze-regen" / known.name).read_text())
        write_cell(main / cell.dataset / f"{cell.name}.json", cell, template)
    worse = cells_of("worsened.txt", monkeypatch)
    for out, cell in worse:
        assert out == Path("results", "offline-worsened")
        template = json.loads((main / cell.dataset / "edac-real.json").read_text())
        write_cell(tmp_path / "offline" / "worsened" / cell.dataset / f"{cell.name}.json", cell, template)
    tables = figures.offline_tables.tables(tmp_path)
    count = {name: len(table.splitlines()) for name, table in tables.items()}
    assert (count["offline-cql"], count["offline-networks"]) == (2 + 3 + 2, 2 + 12 + 2)
    assert count["offline-edac"] == 2 + 12 + 2
    assert count["offline-ant-mazes"] == 2 * (2 + 3 + 2) + 1
    assert count["offline-worsened"] == 2 + 1 + len(worse) + 1
    assert tables["offline-mixed"].count("| EDAC | real rows | half of each | synthetic rows |") == 1
    assert "| EDAC | real rows | synthetic rows |" in tables["offline-mazes"]
    for row in (
        "EDAC | 9 locomotion",
        "CQL | 3 medium-replay",
        "TD3+BC, larger networks | 12 locomotion",
        "EDAC | 3 mazes",
        "IQL | 3 ant mazes",
    ):
        assert f"| {row} | " in tables["offline-means"]
    assert "real rows without the last 20 steps before a termination" in tables["offline-worsened"]


def test_missing_cells_are_empty_and_left_out_of_means(tmp_path):
    shutil.copytree(RESULTS / "offline", tmp_path / "offline")
    main = tmp_path / "offline" / "main"
    for path in (main / "hopper-medium-replay-regen" / "iql-mixed.json", *main.glob("walker2d*/edac-*.json")):
        path.unlink()
    for path in main.glob("maze2d-*/*.json"):
        path.unlink()
    tables = figures.offline_tables.tables(tmp_path)
    (row,) = (line for line in tables["offline-mixed"].splitlines() if " - " in line)
    assert row.startswith("| hopper medium-replay | ")
    assert "**mean of 2 sets that all columns have**" in tables["offline-mixed"]
    assert len(tables["offline-edac"].splitlines()) == 3  # one set has no mean
    assert "| EDAC | halfcheetah medium-replay | " in tables["offline-means"]
    assert tables["offline-mazes"] == ""
    assert "mazes" not in tables["offline-means"]


STEP, ROWS, AGENT = "training step, M = 1, batch 256", "generation, paper", "published agent"
OURS = {STEP: {"ratio": 28.0, "published_ms": 3.6}, ROWS: {"ratio": 9.7, "published_s": 72.0}}
THEIRS = {
    AGENT: {
        "train_s": 0.0720,
        "environment_step_s": 0.0036,
        "insert_1m_rows_s": 36.0,
        "insert_note": "scaled up from 20000 rows",
    }
}


def test_published_run_table_lists_parts():
    table = speed_tables.published_run_table(OURS | THEIRS)
    rows = [line.strip("| ").split(" | ")[:3] for line in table.splitlines()[2:]]
    assert [row[1:] for row in rows] == [
        ["1.00", "30%"],
        ["0.20", "6%"],
        ["0.10", "3%"],
        ["1.90", "58%"],
        ["0.10", "3%"],
        ["**3.30**", "100%"],
    ]
    assert "20,000 rows" in table


def test_published_run_table_is_empty_without_all_parts():
    assert speed_tables.published_run_table(OURS) == ""
    assert speed_tables.published_run_table(THEIRS) == ""


def test_upsampling_table_has_both_runs():
    first, second = (
        {"rows": 1_000_000, "columns": 42, "wall_seconds": whole, "fit": {"seconds": fit}}
        for whole, fit in ((9, 4), (5, 2))
    )
    runs = [run | {"generate_seconds": 0.52, "write_seconds": 0.25} for run in (first, second)]
    head, _, *rows = speed_tables.upsampling_table({"runs": runs}).splitlines()
    assert "1,000,000 rows of 42 columns" in head
    assert [row.strip("| ").split(" | ")[1:] for row in rows[:3]] == [
        ["9.0 s", "5.0 s"],
        ["4.0 s", "2.0 s"],
        ["0.5 s"] * 2,
    ]


def test_readme_sentence_about_speed_has_the_numbers_of_the_files():
    online = {"seeds": [0, 1], "steps": 100, "env": "HalfCheetah-v5", "wall_seconds": {"total": 36.0}}
    numbers = ("28 times", "10 times", "2 seeds of 100 steps on HalfCheetah-v5", "36 s")
    for agent, more in (({}, ()), (THEIRS, ("3.3 hours",))):
        text = speed_tables.sentences(OURS | agent, online)
        assert [number for number in (*numbers, *more) if number not in text] == []
    assert "hours" not in speed_tables.sentences(OURS, online)
