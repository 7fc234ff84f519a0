"""What a linear prediction leaves of the next observation, as codes and in a generator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from synther_replay.codec import TransitionCodec
from synther_replay.config import GeneratorConfig
from synther_replay.errors import CheckpointError
from synther_replay.generator import DiffusionGenerator
from synther_replay.transitions import Transitions, TransitionSpec

SPEC = TransitionSpec.from_spaces(spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (1,)))
POSITION, VELOCITY, GOAL = range(3)
DT = 0.02


def pushed_mass(n: int, stack: int = 1, seed: int = 0) -> Tensor:
    """Rows ``(stack, n, dim)`` of a mass on a line that moves little in a step, on the way to a goal of the episode."""
    rng = torch.Generator().manual_seed(seed)
    position, velocity, goal = torch.randn(3, stack, n, 1, generator=rng)
    push = torch.rand(stack, n, 1, generator=rng) * 2 - 1
    faster = velocity + DT * (push - position**3)
    moved = position + DT * faster
    reward, ended = -(moved - goal).abs(), torch.zeros_like(push)
    return torch.cat((position, velocity, goal, push, reward, moved, faster, goal, ended), dim=-1)


def codec_of(rows: Tensor, *, predict: bool = True, spec: TransitionSpec = SPEC) -> TransitionCodec:
    codec = TransitionCodec(spec, predict_linearly=predict)
    codec.fit(rows)
    return codec


def changes(rows: Tensor) -> Tensor:
    return rows[..., SPEC.next_observations] - rows[..., SPEC.observations]


# --- codes ------------------------------------------------------------------------------------------------------------


def test_what_is_left_has_the_root_of_its_share_as_spread_and_nothing_linear_in_it() -> None:
    rows = pushed_mass(5_000, stack=2)
    codes = codec_of(rows).encode(rows)
    left = codes[..., -4:-1]
    whole = codec_of(rows, predict=False).encode(rows)
    known, wanted = whole[..., :4], whole[..., -4:-1]
    share = (wanted - known @ torch.linalg.lstsq(known, wanted).solution).std(1)
    torch.testing.assert_close(left.std(1)[:, VELOCITY], share.sqrt()[:, VELOCITY], rtol=0.02, atol=0)
    assert (left.std(1)[:, [POSITION, GOAL]] < 0.05).all()
    together = torch.cat((codes[..., :4], left[..., [VELOCITY]]), dim=-1)
    for m in range(2):
        assert torch.corrcoef(together[m].T)[4, :4].abs().max() < 0.03


def test_errors_of_a_generator_become_small_beside_the_change() -> None:
    """The same relative error of the codes, once of the whole and once of what is left."""
    rows = pushed_mass(5_000)
    noise = 0.05 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    error = {}
    for predict in (False, True):
        codec = codec_of(rows, predict=predict)
        codes = codec.encode(rows)
        generated = codec.decode(codes + noise * codes.std(1, keepdim=True))[0]
        ideal = pushed_step(generated)
        error[predict] = (generated[..., SPEC.next_observations] - ideal).abs().mean((0, 1)) / changes(rows).std((0, 1))
    assert (error[False][:2] > 0.5).all()  # off by about as much as what happens in a step, or more
    assert (error[True][:2] < 0.05).all()


def pushed_step(rows: Tensor) -> Tensor:
    """The next observation that the mass really has after the observation and the action of `rows`."""
    position, velocity, goal = rows[..., SPEC.observations].split(1, dim=-1)
    faster = velocity + DT * (rows[..., SPEC.actions] - position**3)
    return torch.cat((position + DT * faster, faster, goal), dim=-1)


def test_what_stays_the_same_in_a_step_stays_so() -> None:
    rows = pushed_mass(5_000)
    codec = codec_of(rows)
    generated = codec.decode(torch.randn(1, 5_000, codec.code_dim, generator=torch.Generator().manual_seed(1)))[0]
    before, after = generated[..., GOAL], generated[..., SPEC.next_observations.start + GOAL]
    assert before.std() > 0.9
    assert (before - after).abs().max() < 0.01


def test_no_change_is_larger_than_was_seen() -> None:
    """Whatever is generated, an observation does not jump, where it is within the range of those that were seen."""
    rows = pushed_mass(5_000)
    codec = codec_of(rows)
    codes = codec.encode(rows)
    codes[..., -4:-1] = 1e3
    generated, valid = codec.decode(codes)
    assert valid.all()
    assert (changes(generated)[..., :2].abs().amax((0, 1)) < 2 * changes(rows)[..., :2].abs().amax((0, 1))).all()


def test_observations_that_say_the_same_do_not_cancel_each_other() -> None:
    """Generated observations differ where real ones are equal; a prediction must not rest on the difference."""
    rows = pushed_mass(5_000)
    rng = torch.Generator().manual_seed(1)
    rows[..., VELOCITY] = rows[..., POSITION] + 1e-4 * torch.randn(1, 5_000, generator=rng)
    rows[..., SPEC.next_observations.start] = 1e4 * (rows[..., VELOCITY] - rows[..., POSITION])
    weights = codec_of(rows).state_dict()["prediction_weights"]
    assert weights.abs().max() < 2


def test_a_step_like_a_jump_does_not_decide_the_prediction() -> None:
    rows = pushed_mass(5_000)
    spoilt = rows.clone()
    spoilt[0, 7, POSITION] = 1e6
    spoilt[0, 8, SPEC.next_observations.start] = -1e6
    expected, found = (codec_of(r).state_dict()["prediction_weights"] for r in (rows, spoilt))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


def test_few_rows_are_not_predicted() -> None:
    """A regression on as many rows as inputs leaves nothing of them, and everything of the next."""
    rows = pushed_mass(70)
    codec = codec_of(rows)
    assert not codec.state_dict()["prediction_weights"].any()
    torch.testing.assert_close(codec.encode(rows), codec_of(rows, predict=False).encode(rows), rtol=1e-4, atol=1e-4)
    assert codec_of(pushed_mass(100)).state_dict()["prediction_weights"].any()


def test_discrete_actions_are_inputs() -> None:
    spec = TransitionSpec.from_spaces(spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(2))
    rows = pushed_mass(5_000)
    rows[..., spec.actions] = (rows[..., SPEC.actions] > 0).float()
    rows[..., spec.next_observations.start] = rows[..., POSITION] + 0.5 * rows[..., spec.actions.start]
    codec = codec_of(rows, spec=spec)
    # nothing is left but what the caution of the regression costs
    assert codec.encode(rows)[..., 4].std() < 0.05
    assert torch.allclose(codec.decode(codec.encode(rows))[0], rows, atol=1e-4)


def test_many_rows_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pushed_mass(5_000, stack=2)
    whole = codec_of(rows)
    monkeypatch.setattr("synther_replay.prediction._CHUNK", 777)
    parts = codec_of(rows)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-4, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(parts.encode(rows), whole.encode(rows), rtol=1e-4, atol=1e-4)


def test_statistics_of_another_codec_are_refused() -> None:
    rows = pushed_mass(500)
    plain, predicting = codec_of(rows, predict=False), codec_of(rows)
    with pytest.raises(CheckpointError, match="prediction_weights"):
        plain.load_state_dict(predicting.state_dict(), torch.device("cpu"))
    with pytest.raises(CheckpointError, match="expected the statistics"):
        predicting.load_state_dict(plain.state_dict(), torch.device("cpu"))
    spoilt = predicting.state_dict()
    spoilt["prediction_weights"] = spoilt["prediction_weights"][:, :2]
    with pytest.raises(CheckpointError, match="prediction_weights"):
        predicting.load_state_dict(spoilt, torch.device("cpu"))


# --- generator --------------------------------------------------------------------------------------------------------

QUICK = GeneratorConfig.tiny(steps=400, refresh_steps=100, sampling_steps=12, predict_linearly=True)


def test_a_generator_comes_closer_to_the_dynamics() -> None:
    data = Transitions(SPEC, pushed_mass(4_000)[0])
    error = {}
    for predict in (False, True):
        generator = DiffusionGenerator(SPEC, replace(QUICK, predict_linearly=predict), device="cpu")
        generator.fit(data)
        rows = generator.sample(2_000).rows
        error[predict] = (rows[:, SPEC.next_observations] - pushed_step(rows)).abs().mean()
    assert error[True] < error[False] / 3


def test_a_generator_goes_on_from_its_file(tmp_path) -> None:
    config = replace(QUICK, steps=20, refresh_steps=20, sampling_steps=4)
    generator = DiffusionGenerator(SPEC, config, device="cpu", stack=2)
    generator.fit(Transitions(SPEC, pushed_mass(500, stack=2)))
    generator.save(tmp_path / "generator")
    again = DiffusionGenerator.load(tmp_path / "generator", device="cpu")
    assert again.config.predict_linearly
    assert torch.equal(again.sample(50).rows, generator.sample(50).rows)
    more = Transitions(SPEC, pushed_mass(600, stack=2, seed=1))
    again.fit(more)
    generator.fit(more)
    assert torch.equal(again.sample(50).rows, generator.sample(50).rows)


def test_a_state_without_the_setting_is_of_a_generator_that_models_all() -> None:
    """As in files of earlier releases."""
    values = GeneratorConfig.tiny().to_json()
    del values["predict_linearly"]
    assert not GeneratorConfig.from_json(values).predict_linearly


def test_the_paper_models_next_observations_as_they_are() -> None:
    assert not GeneratorConfig.paper().predict_linearly
