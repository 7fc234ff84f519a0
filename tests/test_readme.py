"""The README's code runs as it is printed."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["buffer"].refits == 1
    assert len(names["synthetic"]) == 2_560
    assert (tmp_path / "run.safetensors").is_file()


def test_files_that_the_readme_names_exist():
    root = Path(__file__).parents[1]
    for name in re.findall(r"`((?:synther_replay|benchmarks|examples|tests)/[\w./-]+)`", README):
        assert (root / name).exists(), name
