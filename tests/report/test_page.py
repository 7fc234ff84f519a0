"""The page: what it says, and that no name or number breaks it. How it looks is tested in a browser."""

from __future__ import annotations

import json
import re
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import Transitions, TransitionSpec
from synther_replay.metrics import Thresholds
from synther_replay.report import QualityReport, report

pytest.importorskip("plotly")
LARGEST = 5_000_000  # bytes


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


def text_of(page: str) -> str:
    """The page without its scripts."""
    return re.sub("<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_verdict_comes_first_with_its_reasons(rows) -> None:
    good, bad = report(rows(500, 0), rows(500, 1)), report(rows(500, 0), rows(500, 1, shift=3))
    assert good.passed and not bad.passed
    page = text_of(bad.html)
    assert page.index("Failed") < page.index(bad.fidelity.failures[0]) < page.index('id="columns"')
    assert "Passed" in text_of(good.html)


def test_copies_are_remarked_on_without_held_out_rows(rows) -> None:
    real = rows(500, 0)
    remark = "of the synthetic rows equal a real row"
    copies = text_of(report(real, real).html)
    assert remark in copies[: copies.index('id="columns"')]
    fresh = text_of(report(real, rows(500, 1)).html)
    assert "Not part of the verdict" not in fresh


def test_rows_whose_columns_do_not_belong_together_are_remarked_on() -> None:
    rng = torch.Generator().manual_seed(0)
    state, action = torch.randn(2, 3_000, 3, generator=rng), torch.randn(2, 3_000, 1, generator=rng)
    real, other = torch.cat((state, action, state * action.sign()), 2)
    torn = torch.cat((other[:, :4], other[torch.randperm(3_000, generator=rng), 4:]), 1)  # no column correlates
    assert report(real, other).remarks == []
    found = report(real, torn)
    (remark,) = found.remarks
    assert "of another row" in remark and remark in text_of(found.html)
    assert found.passed and found.to_json()["remarks"] == found.remarks


def test_columns_are_listed_worst_first_and_all_can_be_chosen(rows) -> None:
    page = report(rows(500, 0), rows(500, 1, shift=3), names=["speed", "b", "c", "d"]).html
    options = re.findall(r'<option value="(\d+)">(.*?)</option>', page)
    assert options[0] == ("0", "speed")
    assert sorted(int(place) for place, _ in options) == list(range(len(data_of(page)["columns"])))


def test_the_same_rows_and_seed_give_the_same_bytes(rows) -> None:
    pages = [report(rows(400, 0), rows(400, 1), held_out=rows(400, 2), seed=seed).html for seed in (0, 0, 1)]
    assert pages[0] == pages[1] != pages[2]


def test_names_and_settings_are_text(rows) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    made = report(rows(300, 0), rows(300, 1, shift=3), names=[evil, "b", "c", "d"], title=evil, settings={evil: evil})
    page = made.html
    assert "<script>alert" not in page and "<img" not in page
    assert data_of(page)["columns"][0]["axis"] == evil
    assert len(re.findall("<script", page)) == 3  # data, Plotly, ours


def test_nothing_is_loaded_from_elsewhere(rows) -> None:
    page = text_of(report(rows(300, 0), rows(300, 1)).html)
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page


def test_hundreds_of_columns_stay_small() -> None:
    one, two = torch.randn(2, 500, 715, generator=torch.Generator().manual_seed(0))
    assert len(report(one, two).html.encode()) < LARGEST


def test_constant_columns_and_rows_that_are_all_equal() -> None:
    ones = torch.ones(50, 3)
    page = report(ones, ones).html
    assert "NaN" not in json.dumps(data_of(page))
    assert report(ones, 2 * ones).passed is False
    mixed = torch.cat((ones, torch.randn(50, 3)), dim=1)
    assert "correlation_real" in data_of(report(mixed, mixed).html)["charts"]


def test_few_rows() -> None:
    assert report(torch.randn(2, 3), torch.randn(2, 3)).html
    with pytest.raises(ValueError, match="synthetic: expected at least 2"):
        report(torch.randn(5, 3), torch.randn(1, 3))


def test_rows_that_are_not_finite_fail_and_are_counted(rows) -> None:
    synthetic = rows(500, 1)
    synthetic.rows[::10, 0] = torch.nan
    judged = report(rows(500, 0), synthetic)
    assert judged.fidelity.rejected_synthetic == 50
    assert any("not finite" in reason for reason in judged.fidelity.failures)
    synthetic.rows[:, 0] = torch.inf
    with pytest.raises(ValueError, match="synthetic"):
        report(rows(500, 0), synthetic)


def test_levels_of_the_reward_and_no_terminations(rows) -> None:
    made = report(rows(500, 0, rate=0), rows(500, 1, rate=0))
    page = made.html
    assert len(made.fidelity.reward_levels) == 2
    assert data_of(page)["columns"][made.measures.terminated]["levels"] == [0]
    assert 'id="outcomes"' in page


def test_other_specs_and_widths_are_refused_with_both_sides(rows) -> None:
    other = TransitionSpec.from_spaces(gym.spaces.Box(-9, 9, (4,)), gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match="equal specs"):
        report(rows(20, 0), Transitions(other, rows(20, 1).rows))
    with pytest.raises(ValueError, match="numbers of columns"):
        report(torch.randn(20, 3), torch.randn(20, 4))


def test_an_environment_needs_columns_that_mean_something(rows) -> None:
    with pytest.raises(TypeError, match="Transitions"):
        report(torch.randn(20, 3), torch.randn(20, 3), env="CartPole-v1")
    with pytest.raises(ValueError, match="CartPole-v1 has observations"):
        report(rows(20, 0), rows(20, 1), env="CartPole-v1")


def test_real_rows_of_another_task_are_pointed_out() -> None:
    env = gym.make("CartPole-v1")
    spec = TransitionSpec.from_spaces(env.observation_space, env.action_space)
    matrix = np.random.default_rng(0).normal(size=(50, spec.dim)).astype(np.float32)
    matrix[:, spec.actions], matrix[:, spec.terminated] = matrix[:, spec.actions] > 0, 0
    matrix[0, spec.observations] = env.reset(seed=0)[0]
    others, own = matrix, matrix[:10].copy()
    for k in range(len(own)):
        after, own[k, spec.rewards], own[k, spec.terminated], *_ = env.step(k % 2)
        own[k, spec.actions], own[k, spec.next_observations] = k % 2, after
        own[k + 1 : k + 2, spec.observations] = after

    def is_warned_of(rows) -> bool:
        some = Transitions(spec, torch.from_numpy(rows))
        page = report(some, some, env="CartPole-v1").html
        return "class='bad'" in page[page.index('id="dynamics"') :].partition("</section>")[0]

    assert is_warned_of(others) and not is_warned_of(own)


def test_settings_may_be_values_mappings_and_dataclasses(rows) -> None:
    settings = {"Fit": {"seconds": 1.23456789, "steps": 100}, "Limits": Thresholds(), "device": "cpu"}
    made = report(rows(50, 0), rows(50, 1), settings=settings)
    assert made.settings["Fit"] == {"seconds": "1.23457", "steps": "100"}
    assert made.settings["Limits"]["column"] == "0.05"
    assert made.settings["Settings"] == {"device": "cpu"}
    assert "1.23457" in made.html


def test_a_file_is_the_page(rows, tmp_path) -> None:
    made = report(rows(50, 0), rows(50, 1))
    assert made.save(tmp_path / "report.html").read_text(encoding="utf-8") == made.html
    with pytest.raises(FileNotFoundError):
        made.save(tmp_path / "missing" / "report.html")


def test_a_notebook_shows_it_in_a_frame(rows) -> None:
    made = report(rows(50, 0), rows(50, 1))
    frame = made._repr_html_()
    assert frame.startswith("<iframe") and '"<' not in frame
    assert isinstance(made, QualityReport) and "synthetic rows" in repr(made)


def test_without_plotly_numbers_remain_and_the_page_says_what_to_install(rows, monkeypatch) -> None:
    from synther_replay.report import page

    page._plotly.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    made = report(rows(50, 0), rows(50, 1))
    assert made.to_json()["rows_real"] == 50
    with pytest.raises(ImportError, match=r"pip install 'synther-replay\[report\]'"):
        _ = made.html
    page._plotly.cache_clear()
