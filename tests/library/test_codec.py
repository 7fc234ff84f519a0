"""Transitions to codes and back."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from synther_replay.data.codec import TransitionCodec
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError

BOX = spaces.Box(-1, 1, (2,))
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,))

# --- spaces and data --------------------------------------------------------------------------------------------------

SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])
BOXES = st.builds(
    lambda shape, bounds, dtype: spaces.Box(*bounds, shape, dtype),
    SHAPES,
    st.sampled_from([(-1, 1), (-0.1, 0.7), (0, np.inf), (-np.inf, 5), (-np.inf, np.inf), (1e6, 1e6 + 8)]),
    st.sampled_from([np.float32, np.float64]),
)
INTEGER_BOXES = st.builds(
    lambda shape, kind: spaces.Box(*kind[:2], shape, kind[2]),
    SHAPES,
    st.sampled_from([(0, 255, np.uint8), (-5, 9, np.int64), (-3_000, 30_000, np.int16), (0, 1, np.int8)]),
)
DISCRETES = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 20), st.integers(-5, 5))
MULTI_DISCRETES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(spaces.MultiDiscrete)
MULTI_BINARIES = st.integers(1, 4).map(spaces.MultiBinary)
LEAVES = st.one_of(BOXES, INTEGER_BOXES, DISCRETES, MULTI_DISCRETES, MULTI_BINARIES)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
    ),
    max_leaves=4,
)


def spec_of(observation=BOX, action=BOX):
    return TransitionSpec.from_spaces(observation, action)


def random_rows(spec, n=500, stack=1, seed=0):
    """Rows ``(stack, n, dim)`` uniform over each space, with a different offset and width per model."""
    rng = np.random.default_rng(seed)

    def values(leaf):
        low, high = leaf.low.clip(-50, 1e9), leaf.high.clip(-1e9, np.maximum(50, leaf.low + 60))
        if leaf.kind != "real":
            return rng.integers(low, high, (stack, n, leaf.size), endpoint=True)
        edges = np.sort(rng.uniform(low, high, (2, stack, 1, leaf.size)), axis=0)
        return rng.uniform(edges[0], edges[1], (stack, n, leaf.size))

    parts = [
        *map(values, spec.observation_leaves),
        *map(values, spec.action_leaves),
        rng.normal(3, 7, (stack, n, 1)),
        *map(values, spec.observation_leaves),
        rng.random((stack, n, 1)) < 0.1,
    ]
    return torch.from_numpy(np.concatenate(parts, axis=-1)).float()


def fitted(spec, rows, **options):
    codec = TransitionCodec(spec, **options)
    codec.fit(rows)
    return codec


def kinds(spec):
    """Kind of each column of a row."""
    observation = [leaf.kind for leaf in spec.observation_leaves for _ in range(leaf.size)]
    action = [leaf.kind for leaf in spec.action_leaves for _ in range(leaf.size)]
    return np.array([*observation, *action, "real", *observation, "terminated"])


def codes_of_column(codec, rows, column):
    """Which codes hold a column of a row, found by changing that column."""
    changed = rows.clone()
    changed[..., column] = changed[..., column].roll(1, 1)
    return (codec.encode(rows) != codec.encode(changed)).any(0).any(0).nonzero().flatten().tolist()


def bad_codes(codec, rows, scale=1e4, seed=0):
    """Codes of an untrained generator."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*rows.shape[:2], codec.code_dim, generator=rng) * scale


# --- there and back ---------------------------------------------------------------------------------------------------


@given(SPACES, SPACES, st.sampled_from([1, 2]), st.booleans(), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_rows_come_back_as_they_were(observation, action, stack, normalise_rewards, seed):
    spec = spec_of(observation, action)
    rows = random_rows(spec, 60, stack, seed)
    codec = fitted(spec, rows, normalise_rewards=normalise_rewards)
    codes = codec.encode(rows)
    assert codes.shape == (stack, 60, codec.code_dim)
    assert codes.dtype == torch.float32
    decoded, valid = codec.decode(codes)
    assert valid.shape == (stack, 60)
    assert valid.all()
    real = torch.from_numpy(kinds(spec) == "real")
    assert torch.equal(decoded[..., ~real], rows[..., ~real])
    assert torch.allclose(decoded[..., real], rows[..., real], rtol=3e-7, atol=3e-5)


@given(SPACES, st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_decoded_finite_rows_are_in_the_action_space(action, seed):
    spec = spec_of(action=action)
    rows = random_rows(spec, 40, seed=seed)
    codec = fitted(spec, rows)
    for scale in (1.0, 30.0):
        decoded, valid = codec.decode(bad_codes(codec, rows, scale, seed))
        generated = Transitions(spec, decoded[0, valid[0]])
        for k in range(len(generated)):
            assert action.contains(element(generated.actions, k, action))


def element(values, k, space):
    """One value of a batch in the form that Gymnasium's `contains` takes."""
    if isinstance(space, spaces.Dict):
        return {key: element(values[key], k, space[key]) for key in space.spaces}
    if isinstance(space, spaces.Tuple):
        return tuple(element(part, k, sub) for part, sub in zip(values, space.spaces, strict=True))
    return values[k].numpy()[()] if isinstance(space, spaces.Discrete) else values[k].numpy()


def test_each_model_of_a_stack_has_its_own_statistics():
    spec = spec_of(spaces.Dict(a=UNBOUNDED, b=spaces.Box(0, 255, (2,), np.uint8)), spaces.Discrete(5))
    rows = random_rows(spec, stack=3)
    rows[1] *= 7
    rows[1, :, spec.terminated] /= 7
    rows[1, :, spec.actions] = 4
    together = fitted(spec, rows)
    codes = bad_codes(together, rows, 2.0)
    for m in range(3):
        alone = fitted(spec, rows[m : m + 1])
        assert torch.equal(alone.encode(rows[m : m + 1])[0], together.encode(rows)[m])
        assert torch.equal(alone.decode(codes[m : m + 1])[0][0], together.decode(codes)[0][m])


def test_rows_are_not_changed_by_coding_them():
    spec = spec_of(UNBOUNDED, spaces.MultiDiscrete([3, 4]))
    rows = random_rows(spec)
    before = rows.clone()
    codec = fitted(spec, rows)
    codes = codec.encode(rows)
    kept = codes.clone()
    codec.decode(codes)
    assert torch.equal(rows, before)
    assert torch.equal(codes, kept)


def test_codec_continues_from_a_state():
    spec = spec_of(UNBOUNDED, spaces.MultiDiscrete([3, 4]))
    rows = random_rows(spec, stack=2)
    codec, other = fitted(spec, rows), TransitionCodec(spec)
    state = codec.state_dict()
    other.load_state_dict(state, torch.device("cpu"))
    codes = bad_codes(codec, rows, 3.0)
    expected = codec.encode(rows), *codec.decode(codes)
    codec.fit(random_rows(spec, stack=2, seed=1))  # the state is a copy
    for value in codec.statistics.values():
        value.fill_(99)
    for a, b in zip(expected, (other.encode(rows), *other.decode(codes)), strict=True):
        assert torch.equal(a, b)


def test_statistics_of_another_codec_are_refused_and_change_nothing():
    codec = fitted(spec_of(UNBOUNDED), random_rows(spec_of(UNBOUNDED)))
    before = codec.state_dict()
    missing = {name: tensor for name, tensor in before.items() if name != "constant"}
    narrow = {**before, "constant": before["constant"][..., :-1]}
    for state, message in (
        (missing, "expected the statistics"),
        ({**before, "median": before["mean"]}, "expected the statistics"),
        (narrow, "constant: got shape"),
        ({**before, "mean": before["mean"][0]}, "mean: got shape"),
    ):
        with pytest.raises(CheckpointError, match=message):
            codec.load_state_dict(state, torch.device("cpu"))
        torch.testing.assert_close(codec.state_dict(), before, rtol=0, atol=0, equal_nan=True)


# --- standardised columns ---------------------------------------------------------------------------------------------


def test_codes_of_continuous_and_ordinal_columns_have_mean_zero_and_deviation_one():
    spec = spec_of(spaces.Tuple([UNBOUNDED, spaces.Box(0, 255, (2,), np.uint8)]), spaces.Box(-2, 2, (1,)))
    rows = random_rows(spec, 3_000, stack=2)
    rows[..., 2:4] += 1  # off the bound
    rows[..., -3:-1] += 1
    codes = fitted(spec, rows).encode(rows)[..., :-1]
    assert codes.shape[-1] == 10
    assert torch.allclose(codes.mean(1), torch.zeros(2, 10), atol=1e-5)
    assert torch.allclose(codes.std(1, correction=0), torch.ones(2, 10), atol=1e-5)


def test_rewards_are_left_alone_when_their_normalisation_is_off():
    spec = spec_of()
    rows = random_rows(spec, 2_000)
    codec = fitted(spec, rows, normalise_rewards=False)
    (code,) = codes_of_column(codec, rows, spec.rewards.start)
    assert torch.equal(codec.encode(rows)[..., code], rows[..., spec.rewards.start])
    assert torch.equal(codec.decode(codec.encode(rows))[0][..., spec.rewards], rows[..., spec.rewards])


def test_other_columns_do_not_depend_on_the_normalisation_of_rewards():
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec)
    on, off = (fitted(spec, rows, normalise_rewards=choice).encode(rows) for choice in (True, False))
    assert (on != off).any(1).sum() == 1


def test_column_with_a_large_offset_keeps_its_precision():
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, 4_000)
    rng = torch.Generator().manual_seed(0)
    rows[..., 0] = 1e6 + torch.randn(rows.shape[:2], generator=rng)
    codec = fitted(spec, rows)
    code, *_ = codes_of_column(codec, rows, 0)
    codes = codec.encode(rows)
    assert abs(codes[..., code].mean()) < 0.05
    assert abs(codes[..., code].std() - 1) < 0.05
    step = 2.0**-4  # spacing of float32 numbers there
    assert (codec.decode(codes)[0] - rows)[..., 0].abs().max() <= step
    codes[..., code] = torch.randn(rows.shape[:2], generator=rng)
    assert abs(codec.decode(codes)[0][..., 0].std() - 1) < 0.05


def test_column_of_the_smallest_numbers_gives_finite_codes():
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec)
    rows[..., 0] *= 1e-42
    codec = fitted(spec, rows)
    assert codec.encode(rows).isfinite().all()
    assert (codec.decode(codec.encode(rows))[0] - rows)[..., 0].abs().max() < 1e-36


# --- outliers and rare values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [100, 800, 2_000, 50_000])
@pytest.mark.parametrize("outlier", [1e30, -1e30, 3e38, -3e38, 1e4])
@pytest.mark.parametrize("field", ["observations", "rewards"])
def test_one_outlier_does_not_squeeze_the_rest(field, outlier, n):
    spec = spec_of(UNBOUNDED)
    column = getattr(spec, field).start
    rows = random_rows(spec, n)
    plain = fitted(spec, rows).encode(rows)
    spoilt = rows.clone()
    spoilt[0, n // 2, column] = outlier
    codec = fitted(spec, spoilt)
    codes = codec.encode(spoilt)
    assert codes.isfinite().all()
    code, *_ = codes_of_column(codec, rows, column)
    others = torch.arange(n) != n // 2
    assert 0.4 < codes[0, others, code].std() < 1.1
    assert abs(codes[0, others, code].mean()) < 0.5
    assert codes[..., code].abs().max() < 150
    other_codes = torch.arange(codec.code_dim) != code
    assert torch.equal(codes[..., other_codes], plain[..., other_codes])


def test_ordinary_tails_are_not_taken_for_outliers():
    spec = spec_of(UNBOUNDED)
    rng = torch.Generator().manual_seed(0)
    rows = random_rows(spec, 20_000)
    rows[..., 0] = torch.randn(rows.shape[:2], generator=rng)
    rows[..., 1] = torch.rand(rows.shape[:2], generator=rng).clamp(min=1e-6).log()
    codec = fitted(spec, rows)
    assert torch.allclose(codec.decode(codec.encode(rows))[0], rows, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("normalise_rewards", [True, False])
@pytest.mark.parametrize("n", [100, 5_000, 50_000])
@pytest.mark.parametrize("common", [0.0, -1.0])
def test_sparse_rewards_survive(n, common, normalise_rewards):
    spec = spec_of()
    rows = random_rows(spec, n)
    rows[..., spec.rewards] = common
    rows[:, 17::5_000, spec.rewards] = 1.0
    codec = fitted(spec, rows, normalise_rewards=normalise_rewards)
    codes = codec.encode(rows)
    assert codes.isfinite().all()
    decoded = codec.decode(codes)[0][..., spec.rewards]
    assert torch.allclose(decoded, rows[..., spec.rewards], atol=1e-4)


# --- constant columns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 0.1, -123.456, 1e-30, 3e38, 16_777_217.0])
@pytest.mark.parametrize("normalise_rewards", [True, False])
def test_constant_continuous_columns_come_back_exactly(value, normalise_rewards):
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec)
    columns = [0, spec.rewards.start, spec.next_observations.start + 1]
    rows[..., columns] = value
    codec = fitted(spec, rows, normalise_rewards=normalise_rewards)
    decoded, valid = codec.decode(bad_codes(codec, rows))
    assert valid.all()
    assert (decoded[..., columns] == torch.tensor(value)).all()
    assert decoded[..., 1].unique().numel() > 1  # a column that is not constant stays so


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(7), 5),
        (spaces.Discrete(7, start=-3), -2),
        (spaces.MultiDiscrete([4, 4]), [3, 0]),
        (spaces.MultiBinary(3), [1, 0, 1]),
        (spaces.Box(0, 255, (2,), np.uint8), [255, 17]),
        (spaces.Box(-1, 1, (2,)), [1.0, -0.3]),
    ],
    ids=str,
)
def test_constant_actions_come_back_exactly(space, value):
    spec = spec_of(action=space)
    rows = random_rows(spec)
    rows[..., spec.actions] = torch.tensor(value).float()
    codec = fitted(spec, rows)
    decoded, valid = codec.decode(bad_codes(codec, rows))
    assert valid.all()
    assert (decoded[..., spec.actions] == torch.tensor(value).float()).all()


@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_constant_termination_comes_back_exactly(flag):
    spec = spec_of()
    rows = random_rows(spec)
    rows[..., spec.terminated] = flag
    codec = fitted(spec, rows)
    assert (codec.decode(bad_codes(codec, rows))[0][..., spec.terminated] == flag).all()


# --- termination ------------------------------------------------------------------------------------------------------


def test_features_are_all_codes_but_reward_and_termination():
    spec = spec_of(spaces.Tuple((spaces.Discrete(5), BOX)), spaces.Tuple((BOX, spaces.MultiBinary(2))))
    rows = random_rows(spec)
    codec = fitted(spec, rows)
    happened = codec.features(codec.encode(rows))
    assert happened.shape[-1] == codec.code_dim - 2
    for column in range(spec.dim):
        changed = rows.clone()
        changed[..., column] = changed[..., column].flip(1)
        consequence = column in (spec.rewards.start, spec.terminated.start)
        assert torch.equal(codec.features(codec.encode(changed)), happened) == consequence


def test_termination_is_coded_as_it_is():
    spec = spec_of()
    rows = random_rows(spec)
    assert torch.equal(fitted(spec, rows).encode(rows)[..., -1:], rows[..., spec.terminated])


def test_termination_is_thresholded_at_one_half():
    spec = spec_of()
    rows = random_rows(spec, 8)
    rows[0, :2, spec.terminated] = torch.tensor([[0.0], [1.0]])
    codec = fitted(spec, rows)
    codes = codec.encode(rows)
    codes[0, :, -1] = torch.tensor([-30.0, -0.1, 0.0, 0.49, 0.51, 1.0, 1.2, 30.0])
    assert codec.decode(codes)[0][0, :, -1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("bounds", [(-1, 1), (-0.1, 0.1), (0.1, 0.7), (-2 / 3, 1 / 3), (-1e-3, 12_345.678)])
def test_actions_are_clipped_to_their_bounds(bounds, dtype):
    space = spaces.Box(*bounds, (2,), dtype)
    spec = spec_of(action=space)
    rows = random_rows(spec)
    rows[0, 0, spec.actions] = torch.from_numpy(space.high).float()  # float32 rounding may exceed the bound
    rows[0, 1, spec.actions] = torch.from_numpy(space.low).float()
    codec = fitted(spec, rows)
    decoded, valid = codec.decode(torch.cat([bad_codes(codec, rows), codec.encode(rows)], 1))
    actions = Transitions(spec, decoded[0, valid[0]]).actions.numpy()
    assert actions.dtype == dtype
    assert all(space.contains(action) for action in actions)
    np.testing.assert_allclose(actions.min(0), space.low, rtol=1e-6)
    np.testing.assert_allclose(actions.max(0), space.high, rtol=1e-6)


@pytest.mark.parametrize("find_limits", [False, True])
@pytest.mark.parametrize("beyond", [1, 100])
def test_actions_beyond_their_bounds_in_the_data_do_not_widen_them(beyond, find_limits):
    spec = spec_of()
    rows = random_rows(spec)
    rows[0, :beyond, spec.actions] = 3.0
    codec = fitted(spec, rows, find_limits=find_limits)
    for codes in (codec.encode(rows), bad_codes(codec, rows)):
        assert codec.decode(codes)[0][..., spec.actions].abs().max() <= 1


def test_limits_are_not_sought_among_actions_and_values_that_are_often_the_same():
    spec = spec_of(observation=spaces.Box(0, 255, (3,), np.int64))
    rows = random_rows(spec, 2_000)
    rows[..., :3] = 100 + torch.arange(2_000)[:, None] % 20  # a tenth and more of their range
    rows[..., spec.actions] = rows[..., spec.actions].clamp(-0.1, 0.1)
    usual, sought = (fitted(spec, rows, find_limits=find).statistics for find in (False, True))
    assert all(torch.equal(usual[name].nan_to_num(), sought[name].nan_to_num()) for name in usual)


def test_observations_are_clipped_to_their_bounds_widened_to_the_data():
    spec = spec_of()
    rows = random_rows(spec)
    rows[0, 0, 0] = 2.5  # simulators may exceed their declared bounds
    codec = fitted(spec, rows)
    decoded = codec.decode(bad_codes(codec, rows))[0]
    for columns in (spec.observations, spec.next_observations):
        high = torch.tensor([2.5 if column == 0 else 1.0 for column in range(columns.start, columns.stop)])
        least, most = decoded[..., columns].amin((0, 1)), decoded[..., columns].amax((0, 1))
        assert least.tolist() == [-1, -1]
        assert torch.equal(most, high)


def test_unbounded_columns_stay_within_the_observed_or_plausible_range():
    spec = spec_of(UNBOUNDED, spaces.Box(0, np.inf, (1,)))
    rows = random_rows(spec)
    rows[..., 0] = torch.randn(rows.shape[:2], generator=torch.Generator().manual_seed(3))
    rows[0, 5, 0] = 1e6
    codec = fitted(spec, rows)
    decoded, valid = codec.decode(bad_codes(codec, rows, 1e6))
    assert valid.all()
    assert decoded.isfinite().all()
    assert decoded[..., 0].amax() == pytest.approx(1e6)  # an observed value
    assert 3 < -decoded[..., 0].amin() < 50
    assert decoded[..., spec.actions].amin() == 0


def test_bounds_beyond_float32_are_taken_without_a_warning():
    space = spaces.Box(-1e300, 1e300, (2,), np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = spec_of(space, space)
        rows = random_rows(spec)
        codec = fitted(spec, rows)
        decoded, valid = codec.decode(bad_codes(codec, rows))
    assert valid.all()
    assert decoded.isfinite().all()


def test_pile_on_a_bound_stays_there_when_the_generator_is_not_exact():
    spec = spec_of(action=spaces.Box(-2, 2, (2,)))
    rows = random_rows(spec, 2_000)
    rows[0, :600, spec.actions] = torch.tensor([2.0, -2.0])
    codec = fitted(spec, rows)
    codes = codec.encode(rows)
    noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(0)) * 0.1
    decoded = codec.decode(codes + noise)[0][..., spec.actions]
    assert torch.equal(decoded[0, :600], rows[0, :600, spec.actions])
    assert torch.equal(codec.decode(codes)[0][0, :600, spec.actions], rows[0, :600, spec.actions])
    beyond = decoded[0, 600:].abs() == 2
    assert beyond.float().mean() < 0.1  # other values are not moved to the bound


def clipped_rows(spec, n=2_000):
    """Rows with a column that the simulator clips at undeclared limits, in about 20 % and 3 % of the rows."""
    rows = random_rows(spec, n)
    speed = torch.randn(n, generator=torch.Generator().manual_seed(1))
    rows[0, :, 1] = speed.clamp(-0.84, 1.88)
    return rows


def test_frequent_extreme_values_are_limits_with_find_limits():
    spec = spec_of(observation=spaces.Box(-np.inf, np.inf, (3,)))
    rows = clipped_rows(spec)
    at_limit = (rows[0, :, 1] == rows[0, :, 1].min()) | (rows[0, :, 1] == rows[0, :, 1].max())
    found = {}
    for find in (False, True):
        codec = fitted(spec, rows, find_limits=find)
        codes = codec.encode(rows)
        torch.testing.assert_close(codec.decode(codes)[0], rows, rtol=1e-5, atol=1e-5)
        noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(0)) * 0.1
        found[find] = codec.decode(codes + noise)[0][0, :, 1], codec.decode(bad_codes(codec, rows))[0][0, :, 1], codes
    there, anything, codes = found[True]
    assert torch.equal(there[at_limit], rows[0, at_limit, 1])
    assert (there[~at_limit] != rows[0, ~at_limit, 1]).float().mean() > 0.9  # other values are not moved to it
    assert (anything.min(), anything.max()) == (rows[0, :, 1].min(), rows[0, :, 1].max())
    smeared, beyond, usual = found[False]
    assert (smeared[at_limit] == rows[0, at_limit, 1]).float().mean() < 0.01
    assert beyond.max() > rows[0, :, 1].max() + 1
    others = [k for k in range(codec.code_dim) if k != 1]
    assert torch.equal(codes[..., others], usual[..., others])


@pytest.mark.parametrize(
    ("n", "ties", "limit"), [(100, 9, False), (100, 10, True), (20_000, 19, False), (20_000, 20, True)]
)
def test_a_limit_has_enough_rows_and_a_share_of_all(n, ties, limit):
    """With 100 rows, one row is already a share of 1 %."""
    spec = spec_of(observation=spaces.Box(-np.inf, np.inf, (3,)))
    rows = torch.randn(1, n, spec.dim, generator=torch.Generator().manual_seed(0)).round(decimals=6)
    rows[..., spec.actions] = rows[..., spec.actions].clamp(-0.5, 0.5) * torch.linspace(0.5, 1, n)[:, None]
    rows[0, :ties, 2] = 4.5
    codec = fitted(spec, rows, find_limits=True)
    assert bool(codec.statistics["push_high"][0, 0, 2] > 0) == limit
    assert bool(codec.statistics["clip_high"][0, 0, 2] == 4.5) == limit
    assert codec.statistics["push_low"].count_nonzero() == 0
    assert codec.statistics["push_high"].count_nonzero() == limit


@given(SPACES, SPACES, st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_rows_come_back_as_they_were_where_limits_are_sought(observation, action, seed):
    spec = spec_of(observation, action)
    rows = random_rows(spec, 60, 2, seed)
    rows[:, :30] = rows[:, :1]  # a point mass at every extreme value of this row
    codec = fitted(spec, rows, find_limits=True)
    decoded, valid = codec.decode(codec.encode(rows))
    assert valid.all()
    assert torch.allclose(decoded, rows, rtol=3e-7, atol=3e-5)


def test_sparse_rewards_come_back_exactly_where_limits_are_sought():
    spec = spec_of()
    rows = random_rows(spec, 2_000)
    rows[..., spec.rewards] = (torch.rand(1, 2_000, 1, generator=torch.Generator().manual_seed(0)) < 0.03).float()
    codec = fitted(spec, rows, find_limits=True)
    codes = codec.encode(rows)
    noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(0)) * 0.1
    assert torch.equal(codec.decode(codes + noise)[0][..., spec.rewards], rows[..., spec.rewards])


def test_columns_without_a_pile_are_not_moved():
    spec = spec_of()
    rows = random_rows(spec, 2_000)
    plain = fitted(spec, rows).encode(rows)
    rows[0, 0, spec.actions] = torch.tensor([1.0, -1.0])  # a single row on the bound is not a point mass
    codec = fitted(spec, rows)
    assert (codec.encode(rows) - plain)[0, 1:].abs().max() < 0.01
    rows[..., 0] = 0.3  # nor is a constant off the bound
    codec = fitted(spec, rows)
    assert (codec.decode(bad_codes(codec, rows))[0][..., 0] == torch.tensor(0.3)).all()


def test_images_come_back_as_bytes():
    space = spaces.Box(0, 255, (3, 2, 1), np.uint8)
    spec = spec_of(space)
    rows = random_rows(spec)
    codec = fitted(spec, rows)
    exact = Transitions(spec, codec.decode(codec.encode(rows))[0])
    assert exact.observations.dtype == torch.uint8
    assert torch.equal(exact.observations, Transitions(spec, rows).observations)
    wild = codec.decode(bad_codes(codec, rows, 30.0))[0][..., spec.observations]
    assert torch.equal(wild, wild.round())
    assert wild.amin() == 0
    assert wild.amax() == 255


# --- discrete values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "digits"),
    [
        (spaces.Discrete(1), 0),
        (spaces.Discrete(2), 1),
        (spaces.Discrete(3), 2),
        (spaces.Discrete(4), 2),
        (spaces.Discrete(5, start=-2), 3),
        (spaces.Discrete(1_000), 10),
        (spaces.MultiDiscrete([3, 1, 9]), 6),
        (spaces.MultiBinary(3), 3),
    ],
    ids=str,
)
def test_discrete_value_takes_as_many_codes_as_it_has_binary_digits(space, digits):
    spec = spec_of(action=space)
    rows = random_rows(spec, 5_000)
    codec = fitted(spec, rows)
    assert codec.code_dim == 4 + digits + 1 + 1
    codes = codec.encode(rows)[..., 5:-1]
    assert codes.shape[-1] == digits
    assert set(codes.unique().tolist()) <= {-1.0, 1.0}
    assert torch.equal(codec.decode(codec.encode(rows))[0][..., spec.actions], rows[..., spec.actions])


def test_only_value_of_a_space_comes_back():
    spec = spec_of(spaces.Discrete(1, start=4), spaces.Discrete(1))
    rows = random_rows(spec, 50)
    codec = fitted(spec, rows)
    decoded, valid = codec.decode(bad_codes(codec, rows))
    assert valid.all()
    assert Transitions(spec, decoded).observations.unique().tolist() == [4]
    assert Transitions(spec, decoded).actions.unique().tolist() == [0]


def test_discrete_codes_are_read_by_their_sign():
    spec = spec_of(action=spaces.Discrete(4, start=10))
    rows = random_rows(spec, 50)
    codec = fitted(spec, rows)
    codes = codec.encode(rows)[:, :4]
    codes[0, :, 5:7] = torch.tensor([[-0.1, -3.0], [0.1, -0.1], [-9.0, 0.4], [9.0, 0.01]])
    assert Transitions(spec, codec.decode(codes)[0]).actions.tolist() == [[10, 11, 12, 13]]


@pytest.mark.parametrize(("n", "start"), [(3, 0), (5, 0), (5, -2), (6, 100)])
def test_digits_of_no_value_become_the_highest_value(n, start):
    spec = spec_of(action=spaces.Discrete(n, start=start))
    rows = random_rows(spec, 200)
    codec = fitted(spec, rows)
    codes = bad_codes(codec, rows, 1.0)
    decoded, valid = codec.decode(codes)
    digits = (codes[..., 5:-1] > 0).long()
    values = start + (digits * 2 ** torch.arange(digits.shape[-1])).sum(-1)
    assert valid.all()
    assert (values >= start + n).any()
    assert torch.equal(Transitions(spec, decoded).actions, values.clamp(max=start + n - 1))


# --- codes that are not numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_codes_that_are_not_finite_are_not_valid_in_any_column(value):
    spec = spec_of(spaces.Tuple([BOX, spaces.Box(0, 255, (1,), np.uint8)]), spaces.MultiDiscrete([2, 3]))
    rows = random_rows(spec, 300)
    codec = fitted(spec, rows)
    for code in range(codec.code_dim):
        codes = codec.encode(rows)
        codes[0, 7, code] = value
        assert codec.decode(codes)[1][0].logical_not().nonzero().flatten().tolist() == [7], code


@pytest.mark.parametrize("observation", [BOX, UNBOUNDED], ids=str)
def test_codes_too_large_to_decode_are_clipped(observation):
    spec = spec_of(observation)
    rows = random_rows(spec, 300)
    rows[..., 0] *= 100
    codec = fitted(spec, rows)
    codes = codec.encode(rows)
    codes[0, 7, codes_of_column(codec, rows, 0)] = 3e38
    decoded, valid = codec.decode(codes)
    assert valid.all()
    assert decoded.isfinite().all()


# --- values that are rare, far out or periodic ------------------------------------------------------------------------


def test_rare_large_rewards_survive():
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, 5_000)
    rewards = -torch.rand(5_000, generator=torch.Generator().manual_seed(0))
    rewards[::1_250] = 100.0  # a bonus at the goal, in 0.08 % of the rows
    rows[..., spec.rewards.start] = rewards
    codec = fitted(spec, rows)
    codes = codec.encode(rows)
    assert codes.abs().amax() < 40
    assert codes[..., codes_of_column(codec, rows, spec.rewards.start)][0, 1:1_250].std() > 0.5
    decoded = codec.decode(codes)[0][0, :, spec.rewards.start]
    torch.testing.assert_close(decoded, rewards, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("period", [2, 5, 50])
def test_periodic_rows_come_back(period):
    """Periodic data (interleaved environments, episodes of equal length) must not bias the statistics."""
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, 100_000)
    phase = torch.arange(100_000) % period
    rows[0, :, 0] = rows[0, :, 0] * 0.1 + phase * 100.0
    codec = fitted(spec, rows)
    decoded, _ = codec.decode(codec.encode(rows))
    torch.testing.assert_close(decoded, rows, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("n", "outliers"), [(100, 2), (2_500, 5), (20_000, 15)])
def test_a_few_outliers_do_not_squeeze_the_rest(n, outliers):
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, n)
    rows[0, :outliers, 0] = 1e20
    codec = fitted(spec, rows)
    codes = codec.encode(rows)[0, :, codes_of_column(codec, rows, 0)]
    assert codes.isfinite().all()
    assert 0.3 < codes[outliers:].std() < 3
    assert codes[:outliers].abs().max() < 100


def test_large_ordinals_stay_within_their_dtype():
    spec = spec_of(spaces.Box(-(2**31), 2**31 - 1, (1,), np.int32))
    rows = random_rows(spec_of(UNBOUNDED), 300)[..., : spec.dim].clone()
    rows[..., [0, spec.next_observations.start]] = 16_000_000.0 * torch.rand(1, 300, 1).round()
    rows[..., spec.terminated] = 0
    codec = fitted(spec, rows)
    decoded, _ = codec.decode(bad_codes(codec, rows))
    assert decoded[..., 0].max().item() <= 2**31 - 1


def test_outliers_of_rewards_that_are_not_normalised_are_compressed_too():
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, 3_000)
    rows[0, :3, spec.rewards.start] = 1e25
    codec = fitted(spec, rows, normalise_rewards=False)
    codes = codec.encode(rows)
    assert codes.abs().max() < 400
    decoded = codec.decode(codes)[0]
    torch.testing.assert_close(decoded[0, 3:, spec.rewards.start], rows[0, 3:, spec.rewards.start])


# --- actions before a tanh --------------------------------------------------------------------------------------------


def squashed(spec, n=2_000, spread=3.0, seed=0):
    """Rows with actions of a tanh policy, concentrated near their bounds."""
    rows = random_rows(spec, n, seed=seed)
    leaf = spec.action_leaves[0]
    low, high = torch.from_numpy(leaf.low).float(), torch.from_numpy(leaf.high).float()
    before = torch.randn(1, n, spec.action_dim, generator=torch.Generator().manual_seed(seed)) * spread
    rows[..., spec.actions] = low + (before.tanh() + 1) / 2 * (high - low)
    return rows, before


def test_actions_can_be_modelled_before_the_tanh():
    spec = spec_of(action=spaces.Box(np.float32([-1, 0]), np.float32([1, 5])))
    rows, before = squashed(spec)
    codec = fitted(spec, rows, unsquash_actions=True)
    codes = codec.encode(rows)
    shown = codes[..., spec.actions] * codec.statistics["scale"][..., spec.actions]
    shown = shown + codec.statistics["mean"][..., spec.actions]
    inside = before.abs() < 5
    assert torch.allclose(shown[inside], before[inside], atol=0.01)
    others = [k for k in range(codec.code_dim) if not spec.actions.start <= k < spec.actions.stop]
    assert torch.equal(codes[..., others], fitted(spec, rows).encode(rows)[..., others])


@pytest.mark.slow
@given(SPACES, SPACES, st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_rows_with_unsquashed_actions_come_back_as_they_were(observation, action, seed):
    spec = spec_of(observation, action)
    rows = random_rows(spec, 60, seed=seed)
    codec = fitted(spec, rows, unsquash_actions=True)
    decoded, valid = codec.decode(codec.encode(rows))
    assert valid.all()
    real = torch.from_numpy(kinds(spec) == "real")
    assert torch.equal(decoded[..., ~real], rows[..., ~real])
    span = (rows[..., real].amax(1, keepdim=True) - rows[..., real].amin(1, keepdim=True)).clamp(min=1)
    assert ((decoded[..., real] - rows[..., real]).abs() / span).max() < 3e-5
    for scale in (1.0, 30.0):
        decoded, valid = codec.decode(bad_codes(codec, rows, scale, seed))
        generated = Transitions(spec, decoded[0, valid[0]])
        assert all(action.contains(element(generated.actions, k, action)) for k in range(len(generated)))


def test_unsquashed_actions_on_a_bound_come_back_exactly_there():
    spec = spec_of(action=spaces.Box(-0.4, 0.4, (2,)))
    rows, _ = squashed(spec)
    high = torch.tensor(np.float32(0.4))
    rows[:, ::3, spec.actions], rows[:, 1::3, spec.actions] = high, -high
    codec = fitted(spec, rows, unsquash_actions=True)
    decoded, _ = codec.decode(codec.encode(rows))
    for on_bound in (rows == high, rows == -high):
        assert torch.equal(decoded[on_bound], rows[on_bound])


def test_actions_without_bounds_and_ordinal_ones_are_not_unsquashed():
    for action in (spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(0, np.inf, (2,)), spaces.Box(0, 9, (2,), dtype=int)):
        spec = spec_of(action=action)
        rows = random_rows(spec, 60)
        assert torch.equal(fitted(spec, rows, unsquash_actions=True).encode(rows), fitted(spec, rows).encode(rows))


@pytest.mark.parametrize("high", [1e4, 1e10])
def test_far_away_bounds_cost_no_digits(high):
    spec = spec_of(action=spaces.Box(np.float32(0), np.float32(high), (1,)))
    rows = random_rows(spec, 200)
    rows[..., spec.actions] = torch.linspace(1, 2, 200)[None, :, None]
    codec = fitted(spec, rows, unsquash_actions=True)
    decoded, _ = codec.decode(codec.encode(rows))
    assert torch.allclose(decoded[..., spec.actions], rows[..., spec.actions], atol=1e-2)
