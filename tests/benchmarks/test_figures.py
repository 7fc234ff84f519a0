"""Documents have the numbers of the published result files, and these are complete."""

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
from synther_replay.benchmarks.speed import documented as speed_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = sorted(RESULTS.rglob("*.json"))
PARTS = {
    "10 fits of 100,000 steps": 1.75,
    "10 times generating 1M rows": 0.2,
    "95,000 steps of learning": 3.0,
    "100,000 steps of the environment": 0.01,
}


@pytest.fixture(scope="module")
def parts():
    """All generated tables by name."""
    return figures.documented(RESULTS)


def test_generated_tables_are_those_of_the_result_files(parts):
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


def test_figures_that_documents_show_are_there():
    for page in (ROOT / "docs" / "results").glob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("!["):
                assert (page.parent / line.partition("](")[2].rstrip(")")).is_file(), line


def test_the_command_checks_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "documented", lambda _: {"a": "new", "b": "| x +- y |"})
    for part in (figures.online_figures, figures.offline_figures, figures.fidelity_figures):
        monkeypatch.setattr(part, "draw_documented", lambda *_: None)
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


def test_a_marker_of_an_unknown_table_is_named():
    with pytest.raises(ValueError, match="expected one of a, b, got 'c'"):
        fill("<!-- generated: c --> <!-- end -->", {"a": "", "b": ""})


@pytest.mark.parametrize("key", ["machine", "versions", "command", "commit"])
def test_result_files_say_where_they_come_from(key):
    assert len(FILES) > 100
    assert [str(path.relative_to(RESULTS)) for path in FILES if not json.loads(path.read_text()).get(key)] == []


def test_the_lines_to_make_the_offline_tables_again_ask_for_exactly_the_published_cells(monkeypatch):
    monkeypatch.setattr(offline_d4rl, "resolve_device", lambda _: torch.device("cuda"))  # whose defaults count

    def asked_by(line):
        monkeypatch.setattr(sys, "argv", ["offline_d4rl.py", *line.split()])
        return offline_d4rl.parse().configs

    lines = (ROOT / "benchmarks" / "offline" / "tables.txt").read_text().splitlines()
    asked = [cell for line in lines for cell in asked_by(line)]
    main = RESULTS / "offline" / "main"
    published = {path.relative_to(main): json.loads(path.read_text())["settings"] for path in main.glob("*/*.json")}
    assert {Path(cell.dataset, f"{cell.name}.json"): cell.to_json() for cell in asked} == published
    assert len(asked) == len(published)


def test_cells_that_are_missing_leave_their_place_empty_and_the_mean_is_over_the_rest(tmp_path):
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
    assert "| EDAC | 1 locomotion | " in tables["offline-means"]
    assert tables["offline-mazes"] == ""
    assert "mazes" not in tables["offline-means"]


def test_the_published_run_is_told_in_its_parts_where_it_was_measured():
    run = {"hours": 4.96, "note": "counted up"}
    run |= {f"{name}, hours": hours for name, hours in PARTS.items()}
    run |= {f"{name}, share": hours / 4.96 for name, hours in PARTS.items()}
    step, rows = "training step, M = 1, batch 256", "generation, paper"
    gpu = {step: {"ratio": 28.0}, rows: {"ratio": 9.7}}
    earlier = {step: {"ratio": 20.0, "published_ms": 3.6}, rows: {"ratio": 10.1, "published_s": 36.0}}
    assert speed_tables.published_run_table(gpu, earlier) == ""
    assert speed_tables.published_run_table({speed_tables.RUN: run}, earlier).splitlines()[2:] == [
        "| 10 fits of 100,000 steps | 1.75 | 35% |",
        "| 10 times generating 1M rows | 0.20 | 4% |",
        "| 95,000 steps of learning | 3.00 | 60% |",
        "| 100,000 steps of the environment | 0.01 | 0% |",
        "| **total** | **4.96** | 100% |",
        "| total, fits and generation as in the earlier run | 4.11 | - |",
    ]
    online = {"seeds": [0, 1], "steps": 100, "env": "HalfCheetah-v5", "wall_seconds": {"total": 36.0}}
    told = speed_tables.sentences(gpu, {}, online)
    assert told.startswith("On one H200 a training step is 28 times and generation 10 times as fast as")
    assert told.endswith("2 seeds of 100 steps on HalfCheetah-v5 take 36 s together.")
    told = speed_tables.sentences({**gpu, speed_tables.RUN: run}, earlier, online)
    assert "a training step is 20 to 28 times and generation 10 times as fast" in told
    assert "one seed of the published agent takes 4.1 to 5.0 hours" in told
    assert told.endswith("Per seed that is at least 800 times as long.")
