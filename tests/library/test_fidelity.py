"""What `fidelity` says: names, terminations, levels, bounds, baselines and the verdict."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import Transitions, TransitionSpec
from synther_replay.metrics import Fidelity, Thresholds, fidelity, ks_complement

OBSERVATIONS, ACTIONS = 8, 2
SPEC = TransitionSpec.from_spaces(
    gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,)), gym.spaces.Box(-1, 1, (ACTIONS,), np.float64)
)
REWARD, TERMINATED = SPEC.rewards.start, SPEC.terminated.start


def rows(n: int, seed: int, kind: str = "dense", rate: float = 0.01) -> Transitions:
    """Correlated transitions; "heavy" tails, or "sparse" rewards, whole-number columns and rarely set ones."""
    rng = np.random.default_rng([seed, n])
    x = rng.normal(size=(n, SPEC.dim)) @ (np.eye(SPEC.dim) + 0.3 * np.tri(SPEC.dim))
    if kind == "heavy":
        x = rng.standard_t(3, size=(n, SPEC.dim))
    x[:, SPEC.actions] = x[:, SPEC.actions].clip(-1, 1)
    x[:, TERMINATED] = rng.random(n) < rate
    if kind == "sparse":
        x[:, :3] = np.round(x[:, :3])
        x[:, 3] *= rng.random(n) < 0.02  # up to 1,000 rows it has few values, most of them only once
        x[:, REWARD] = rng.choice([0, 1, 4], p=[0.9, 0.0999, 0.0001], size=n)
        x[:, TERMINATED] = (x[:, REWARD] > 0) | (rng.random(n) < rate)
    return Transitions(SPEC, torch.tensor(x, dtype=torch.float32))


def changed(transitions: Transitions, column: int, values: Any) -> Transitions:
    matrix = transitions.rows.clone()
    matrix[:, column] = torch.as_tensor(values, dtype=torch.float32)
    return Transitions(transitions.spec, matrix)


def judged(real: Transitions, synthetic: Transitions, **options: Any) -> Fidelity:
    """The report on rows that must fail, and with a warning."""
    with pytest.warns(RuntimeWarning, match="fidelity"):
        report = fidelity(real, synthetic, **options)
    assert not report.passed
    return report


def column(report: Fidelity, name: str) -> Any:
    (found,) = [column for column in report.columns if column.name == name]
    return found


# --- equal distributions


@pytest.mark.parametrize("kind", ["dense", "heavy", "sparse"])
@pytest.mark.parametrize(
    ("n", "m"), [(2, 2), (5, 20), (20, 20), (50, 5_000), (100, 100), (300, 1_000), (1_000, 1_000), (10_000, 10_000)]
)
def test_rows_of_equal_distribution_pass_without_a_warning(kind: str, n: int, m: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(5 if max(n, m) < 5_000 else 2):
            held_out = rows(n, seed + 200, kind) if n <= 1_000 else None  # distances take long
            report = fidelity(rows(n, seed, kind), rows(m, seed + 100, kind), held_out=held_out)
            assert report.passed
            assert all(column.passed for column in report.columns)
            assert report.failures == ()


def test_the_baseline_is_real_against_real_of_the_same_size() -> None:
    real, few = rows(2_000, 0), rows(50, 1)
    report = fidelity(real, few)
    # 50 of 2,000 rows are compared, as in the comparison with 50 synthetic rows
    assert report.marginal_baseline == pytest.approx(report.marginal, abs=0.03)
    assert report.correlation_baseline == pytest.approx(report.correlation, abs=0.03)
    many = fidelity(real, rows(2_000, 2))
    assert many.marginal_baseline == pytest.approx(float(ks_complement(real[::2], real[1::2]).mean()), abs=0.01)
    assert many.marginal_baseline > report.marginal_baseline + 0.05
    assert fidelity(real, few).marginal_baseline == report.marginal_baseline
    assert fidelity(real, few, seed=1).marginal_baseline != report.marginal_baseline


# --- what must be noticed


def test_wrong_terminations_do_not_hide_behind_a_column_number() -> None:
    # Most columns are a little off: the mean marginal is 0.91, and the worst column is number 19, the flag.
    real, synthetic = rows(4_000, 0, rate=0.002), rows(4_000, 1)
    for fields in (SPEC.observations, SPEC.next_observations):
        synthetic.rows[:, fields] += 0.225 * synthetic.rows[:, fields].std(0)
    synthetic = changed(synthetic, TERMINATED, np.random.default_rng(0).random(4_000) < 0.25)
    report = judged(real, synthetic)
    assert report.marginal == pytest.approx(0.91, abs=0.005)
    assert int(report.marginal_by_column.argmin()) == 19
    assert report.termination_rate_real == pytest.approx(0.002, abs=0.002)
    assert report.termination_rate_synthetic == pytest.approx(0.25, abs=0.02)
    assert report.worst.name == "terminated"
    assert report.failures[0].startswith("terminated: ")
    text = str(report)
    rates = f"{100 * report.termination_rate_real:.3g} %", f"{100 * report.termination_rate_synthetic:.3g} %"
    assert all(rate in line for rate in rates for line in text.splitlines() if line.startswith("terminated"))


def test_a_termination_rate_of_twice_the_real_one_fails() -> None:
    assert fidelity(rows(20_000, 0, rate=0.005), rows(20_000, 1, rate=0.005)).passed
    report = judged(rows(20_000, 0, rate=0.005), rows(20_000, 1, rate=0.012))
    assert report.failures[0].startswith("terminated: ")
    assert column(report, "terminated").marginal > 0.99  # which is why the marginal does not tell


def test_terminations_that_are_missing_or_new_fail() -> None:
    some, none = rows(5_000, 0, rate=0.02), rows(5_000, 1, rate=0)
    assert [column.name for column in judged(some, none).columns if not column.passed] == ["terminated"]
    assert [column.name for column in judged(none, some).columns if not column.passed] == ["terminated"]


def test_wrong_terminations_are_not_blamed_on_an_extra_field() -> None:
    spec = TransitionSpec.from_spaces(SPEC.observation_space, SPEC.action_space, discount=True)
    sets = [rows(2_000, seed, rate=rate) for seed, rate in enumerate((0.05, 0.3))]
    real, synthetic = (Transitions(spec, torch.nn.functional.pad(part.rows, (0, 1), value=0.9)) for part in sets)
    assert [column.name for column in judged(real, synthetic).columns if not column.passed] == ["terminated"]


def test_a_shifted_column_fails_alone() -> None:
    real, synthetic = rows(2_000, 0), rows(2_000, 1)
    report = judged(real, changed(synthetic, 5, synthetic.rows[:, 5] + 0.5 * synthetic.rows[:, 5].std()))
    assert [column.name for column in report.columns if not column.passed] == ["observation[5]"]
    assert report.worst.name == "observation[5]"
    assert "observation[5]" in report.failures[0]


@pytest.mark.parametrize(("real_values", "spread"), [([0, 1], 0.3), ([-1, 0], 0.3), ([0, 1, 2, 3, 4], 1.0)])
def test_rewards_out_of_their_support_fail(real_values: list[int], spread: float) -> None:
    rng = np.random.default_rng(0)
    real = changed(rows(2_000, 0), REWARD, rng.choice(real_values, size=2_000))
    same = changed(rows(2_000, 1), REWARD, rng.choice(real_values, size=2_000))
    good = column(fidelity(real, same), "reward")
    assert (good.levels, good.out_of_support) == (len(real_values), 0)
    assert good.level_distance < 0.1
    report = judged(real, changed(same, REWARD, same.rows[:, REWARD].numpy() + spread * rng.normal(size=2_000)))
    bad = column(report, "reward")
    assert (bad.out_of_support, bad.level_distance) == (1, 1)
    assert report.worst.name == "reward"


def test_some_rewards_out_of_their_support_are_enough() -> None:
    real = changed(rows(5_000, 0), REWARD, torch.arange(5_000) % 2)
    assert not fidelity(
        real, changed(real, REWARD, torch.arange(5_000) % 2 + 0.1 * (torch.arange(5_000) < 50)), warn=False
    ).passed
    assert fidelity(
        real, changed(real, REWARD, torch.arange(5_000) % 2 + 0.1 * (torch.arange(5_000) < 1)), warn=False
    ).passed


def test_wrong_shares_of_levels_fail_where_the_order_hides_them() -> None:
    # 0 and 2 exchange half of their share with 1: the cumulative distributions differ by 0.15 only.
    rng = np.random.default_rng(0)
    real = changed(rows(2_000, 0), 0, rng.choice(4, p=[0.25, 0.25, 0.25, 0.25], size=2_000))
    synthetic = changed(rows(2_000, 1), 0, rng.choice(4, p=[0.1, 0.4, 0.1, 0.4], size=2_000))
    found = column(judged(real, synthetic), "observation[0]")
    assert found.marginal == pytest.approx(0.85, abs=0.03)
    assert found.level_distance == pytest.approx(0.3, abs=0.03)
    assert not found.passed


def test_a_constant_that_varies_fails() -> None:
    real = changed(rows(500, 0), 2, 0.1)
    assert fidelity(real, changed(rows(500, 1), 2, 0.1)).passed
    noisy = changed(rows(500, 1), 2, 0.1 + 1e-3 * torch.randn(500, generator=torch.Generator().manual_seed(0)))
    assert judged(real, noisy).worst.name == "observation[2]"


def test_terminations_that_ignore_the_reward_fail() -> None:
    rng = np.random.default_rng(0)
    parts = []
    for seed, agreement in ((0, 0.996), (1, 0.996), (2, 0.753)):
        goal = rng.random(8_000) < 0.2
        ended = (goal & (rng.random(8_000) < agreement)) | (
            ~goal & (rng.random(8_000) < 0.2 * (0.996 - agreement) / 0.8)
        )
        parts.append(changed(changed(rows(8_000, seed), REWARD, goal), TERMINATED, ended))
    real, same, other = parts
    assert fidelity(real, same).passed
    report = judged(real, other)
    assert report.termination_rate_synthetic == pytest.approx(report.termination_rate_real, rel=0.1)
    failed, reached = report.reward_levels
    assert (failed.value, reached.value) == (0, 1)
    assert reached.terminated_real == pytest.approx(0.996, abs=0.01)
    assert reached.terminated_synthetic == pytest.approx(0.753, abs=0.03)
    assert reached.share_real == pytest.approx(0.2, abs=0.02)
    assert report.worst.name == "terminated"
    assert "reward 1" in report.failures[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_are_found_in_every_precision(dtype: torch.dtype) -> None:
    goal = torch.arange(1_000) % 4 == 0
    matrix = rows(1_000, 0).rows.to(dtype)
    matrix[:, REWARD] = torch.where(goal, torch.tensor(0.3, dtype=dtype), torch.tensor(-0.1, dtype=dtype))
    matrix[:, TERMINATED] = goal.to(dtype)
    report = fidelity(Transitions(SPEC, matrix), Transitions(SPEC, matrix.flip(0)))
    assert [level.share_synthetic for level in report.reward_levels] == [0.75, 0.25]
    assert [level.terminated_synthetic for level in report.reward_levels] == [0, 1]


def test_mixed_up_rows_fail_by_their_correlation() -> None:
    real, synthetic = rows(5_000, 0), rows(5_000, 1)
    order = torch.stack([torch.randperm(5_000, generator=torch.Generator().manual_seed(k)) for k in range(SPEC.dim)], 1)
    report = judged(real, Transitions(SPEC, synthetic.rows.gather(0, order)))
    assert all(column.passed for column in report.columns)
    assert len(report.failures) == 2
    assert all("correlation" in failure for failure in report.failures)


@pytest.mark.parametrize("field", ["rewards", "next_observations"])
def test_a_field_of_other_rows_fails_though_marginals_and_mean_correlation_pass(field: str) -> None:
    """Most pairs of many columns do not depend on each other, so their mean hardly falls."""
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (17,)), gym.spaces.Box(-1, 1, (6,)))

    def consistent(seed: int) -> Transitions:
        matrix = torch.randn(2_000, spec.dim, generator=torch.Generator().manual_seed(seed))
        following = matrix[:, spec.observations] + 0.1 * matrix[:, spec.next_observations]
        matrix[:, spec.next_observations] = following
        matrix[:, spec.rewards] = following[:, :1]
        matrix[:, spec.actions] = matrix[:, spec.actions].tanh()
        matrix[:, spec.terminated] = 0.0
        return Transitions(spec, matrix)

    real, synthetic = consistent(0), consistent(1)
    assert fidelity(real, synthetic).passed
    mixed = synthetic.rows.clone()
    mixed[:, getattr(spec, field)] = mixed[:, getattr(spec, field)].roll(1, 0)
    report = judged(real, Transitions(spec, mixed))
    assert report.correlation > report.correlation_baseline - 0.02
    assert len(report.failures) == 1
    assert report.worst_pair is not None
    assert report.worst_pair.real > 0.95 and abs(report.worst_pair.synthetic) < 0.1
    assert " and ".join(report.worst_pair.names) in report.failures[0]


def test_no_pair_fails_by_its_outliers() -> None:
    """Pearson's correlation of a heavy-tailed column and its square can be anything; that of their ranks cannot."""
    losses = []
    for seed in range(10):
        samples = []
        for part in range(2):
            x = np.random.default_rng([seed, part]).standard_t(3, 2_000)
            samples.append(torch.tensor(np.stack([x, x + 0.3 * x**2, np.maximum(x, 0) ** 1.5], 1)))
        report = fidelity(*samples, warn=False)
        assert not any(failure.startswith("correlation of") for failure in report.failures)
        assert report.worst_pair is not None
        losses.append(report.worst_pair.baseline - report.worst_pair.similarity)
    assert max(losses) > Thresholds().pair


def test_copies_fail_by_their_memorisation() -> None:
    real, held_out = rows(1_000, 0), rows(1_000, 1)
    report = judged(real, real, held_out=held_out)
    assert len(report.failures) == 1
    assert "closer to training" in report.failures[0]


# --- bounds and ranges


def test_values_out_of_bounds_and_out_of_range_are_counted_by_row_and_column() -> None:
    real, synthetic = rows(1_000, 0), rows(1_000, 1)
    wrong = synthetic.rows.clone()
    low, high = real.rows.amin(0), real.rows.amax(0)
    wrong = torch.minimum(torch.maximum(wrong, low), high)
    wrong[:100, SPEC.actions.start] = 1.5
    wrong[50:150, SPEC.actions.start + 1] = -1.5
    wrong[200:210, 0] = high[0] + 1
    report = judged(real, Transitions(SPEC, wrong))
    assert report.out_of_bounds == 0.15
    assert report.out_of_bounds_baseline == 0
    assert report.out_of_range == pytest.approx(0.16)
    assert [column(report, f"action[{k}]").out_of_bounds for k in (0, 1)] == [0.1, 0.1]
    assert column(report, "observation[0]").out_of_bounds == 0
    assert column(report, "observation[0]").out_of_range == pytest.approx(0.01)
    assert not column(report, "action[0]").passed
    assert column(report, "observation[0]").passed


def test_values_on_a_bound_that_float32_rounds_up_are_within_it() -> None:
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-0.1, 0.1, (1,), np.float64), gym.spaces.Discrete(2))
    matrix = torch.zeros(20, spec.dim)
    matrix[:10, 0] = 0.1
    assert fidelity(Transitions(spec, matrix), Transitions(spec, matrix)).out_of_bounds == 0


def test_fractions_of_whole_numbers_are_out_of_bounds() -> None:
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(3, start=1))
    matrix = torch.zeros(100, spec.dim)
    matrix[:, 0] = torch.linspace(-1, 1, 100)
    matrix[:, 1] = 1 + torch.arange(100) % 3
    wrong = matrix.clone()
    wrong[:30, 1] = 1.5  # no action
    wrong[30:60, -1] = 0.3  # no flag
    report = fidelity(Transitions(spec, matrix), Transitions(spec, wrong), warn=False)
    assert report.out_of_bounds == pytest.approx(0.6)
    assert not column(report, "action").passed
    assert not column(report, "terminated").passed
    assert report.termination_rate_synthetic == 0


def test_real_rows_beyond_their_bounds_are_the_baseline() -> None:
    real, synthetic = (Transitions(SPEC, part.rows * 2) for part in (rows(1_000, 0, rate=0), rows(1_000, 1, rate=0)))
    report = fidelity(real, synthetic)
    assert report.out_of_bounds > 0.3
    assert report.passed


# --- thresholds, names, forms


def test_thresholds_can_be_changed() -> None:
    real, synthetic = rows(2_000, 0), rows(2_000, 1)
    shifted = changed(synthetic, 5, synthetic.rows[:, 5] + 0.5 * synthetic.rows[:, 5].std())
    assert fidelity(real, shifted, thresholds=Thresholds(column=0.3)).passed
    assert not fidelity(real, shifted, warn=False).passed
    with pytest.raises(ValueError, match=r"column: .* got -1"):
        Thresholds(column=-1)
    with pytest.raises(ValueError, match=r"termination: .* got 'a tenth'"):
        Thresholds(termination="a tenth")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"false_alarm: .* got 0"):
        Thresholds(false_alarm=0)


def test_one_warning_points_at_the_caller_and_can_be_left_out() -> None:
    real, other = rows(500, 0), Transitions(SPEC, rows(500, 1).rows + 5)
    with pytest.warns(RuntimeWarning) as caught:
        fidelity(real, other)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not fidelity(real, other, warn=False).passed


def test_columns_have_names() -> None:
    real, synthetic = rows(100, 0), rows(100, 1)
    assert [column.name for column in fidelity(real, synthetic).columns][7:12] == [
        "observation[7]",
        "action[0]",
        "action[1]",
        "reward",
        "next_observation[0]",
    ]
    joints = [f"joint {k}" for k in range(OBSERVATIONS)]
    own = [column.name for column in fidelity(real, synthetic, names=joints).columns]
    assert own[:OBSERVATIONS] == joints
    assert own[11:19] == [f"next {name}" for name in joints]
    plain = fidelity(real.rows, synthetic.rows)
    assert plain.columns[3].name == "column 3"
    assert plain.termination_rate_real is None
    assert plain.out_of_bounds is None
    assert fidelity(real.rows, synthetic.rows, names=[f"c{k}" for k in range(SPEC.dim)]).columns[3].name == "c3"
    with pytest.raises(ValueError, match=r"names: expected 20 .*, got 2"):
        fidelity(real.rows, synthetic.rows, names=["a", "b"])


def test_columns_and_scores_agree() -> None:
    report = fidelity(rows(200, 0), rows(200, 1))
    assert [column.marginal for column in report.columns] == report.marginal_by_column.tolist()
    assert np.mean([column.marginal_baseline for column in report.columns]) == pytest.approx(report.marginal_baseline)


def test_the_summary_shows_the_worst_columns_first() -> None:
    real, synthetic = rows(2_000, 0, "sparse"), rows(2_000, 1, "sparse")
    report = judged(real, changed(changed(synthetic, 5, synthetic.rows[:, 5] + 1), 6, synthetic.rows[:, 6] + 9))
    table = report.summary(columns=2).split("\n\n")[-1].splitlines()
    assert [line.split()[0] for line in table[1:3]] == ["observation[6]", "observation[5]"]
    assert len(table) == 4  # with the header, and a line that says how many columns are left out
    assert str(report) == report.summary()
    assert [str(level.value)[0] for level in report.reward_levels] == ["0", "1"]


def test_a_report_is_json() -> None:
    real, synthetic = rows(300, 0, "sparse"), rows(300, 1, "sparse")
    constant = Transitions(SPEC, torch.zeros(20, SPEC.dim))
    for report in (fidelity(real, synthetic, held_out=rows(300, 2, "sparse")), fidelity(constant, constant)):
        values = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert values["marginal"] == report.marginal
        assert values["marginal_by_column"] == report.marginal_by_column.tolist()
        assert values["columns"][0]["name"] == "observation[0]"
        assert values["passed"] is report.passed
        assert len(values["reward_levels"]) == len(report.reward_levels)
        assert (values["memorisation"] is None) == (report.memorisation is None)
    assert values["correlation"] is None  # every column is constant
