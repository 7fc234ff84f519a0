"""Every Python block of the documentation and the README runs as it is printed.

Blocks of a page run in order and share their names. Blocks opened by ```py instead of ```python are not run: they show
signatures only.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from synther_replay import SyntheticReplayBuffer

pytest.importorskip("stable_baselines3")
pytest.importorskip("torchrl")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> Iterator[str]:
    """Source of each block, on the lines that it has in the page, so that a traceback points there."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        yield "\n" * text.count("\n", 0, found.start(2)) + textwrap.dedent(found[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(blocks_of(page))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    if page.stem == "skrl":
        pytest.importorskip("skrl")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "synther_replay_docs"}  # warnings that point at a page are errors, too
    for block in blocks_of(page):
        exec(compile(block, str(page), "exec"), names)


def test_a_block_is_found_wherever_it_stands(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '```python\na = 1\n```\n\n!!! tip\n    ```python title="x"\n    b = 2\n    ```\n\n```py\nc(...)\n```\n'
    )
    first, second = blocks_of(page)
    assert (first.strip(), second.strip()) == ("a = 1", "b = 2")
    assert second.count("\n", 0, second.index("b")) == 6


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_options_of_an_own_loop_are_those_of_the_buffer():
    _, _, table = (ROOT / "docs" / "own-loop.md").read_text().partition("\n## Options\n")
    rows = re.findall(r"^\| (`[^|]*) \|", table.partition("\n## ")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(set(inspect.signature(SyntheticReplayBuffer).parameters) - {"real"})
