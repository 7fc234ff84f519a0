"""Transitions to codes and back."""

import warnings
import weakref

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        *map(values, spec.field("observations").leaves),
        *map(values, spec.field("actions").leaves),
        rng.normal(3, 2, (stack, n, 1)),
        *map(values, spec.field("observations").leaves),
        rng.random((stack, n, 1)) < 0.1,
    ]
    return torch.from_numpy(np.concatenate(parts, axis=-1)).float()


def fitted(spec, rows, **options):
    codec = TransitionCodec(spec, **options)
    codec.fit(rows)
    return codec


def restored(codec, codes):
    """Decoded rows as the generator returns them, and which are finite."""
    rows, valid = codec.decode(codes)
    codec.restore_terminal_rewards(rows)
    return rows, valid


def kinds(spec):
    """Kind of each column of a row."""
    observation = [leaf.kind for leaf in spec.field("observations").leaves for _ in range(leaf.size)]
    action = [leaf.kind for leaf in spec.field("actions").leaves for _ in range(leaf.size)]
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
    decoded, valid = restored(codec, codes)
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
    rows[..., spec.terminated] = 0  # of terminated rows they are shifted
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
    assert torch.allclose(restored(codec, codec.encode(rows))[0], rows, rtol=1e-5, atol=1e-4)


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
    happened = codec.layout.features(codec.encode(rows))
    assert happened.shape[-1] == codec.code_dim - 2
    for column in range(spec.dim):
        changed = rows.clone()
        changed[..., column] = changed[..., column].flip(1)
        consequence = column in (spec.rewards.start, spec.terminated.start)
        assert torch.equal(codec.layout.features(codec.encode(changed)), happened) == consequence


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


def test_an_action_far_beyond_its_bounds_does_not_squeeze_the_rest():
    spec = spec_of()
    rows = random_rows(spec)
    rows[0, 3, spec.actions.start] = 1e30
    codes = fitted(spec, rows).encode(rows)
    assert codes.abs().max() < 150
    assert codes[0, 4:, spec.actions.start].std() > 0.4


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
        codec = fitted(spec, rows, find_limits=find, exact=False)
        codes = codec.encode(rows)
        torch.testing.assert_close(restored(codec, codes)[0], rows, rtol=1e-5, atol=1e-5)
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
    decoded, valid = restored(codec, codec.encode(rows))
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


@pytest.mark.parametrize("start", [0, -2])
def test_values_that_the_data_lack_become_the_nearest_ones_that_they_have(start):
    spec = spec_of(action=spaces.MultiDiscrete([6, 3, 5_000], start=[start] * 3))
    rows = random_rows(spec, 200).repeat(2, 1, 1)
    columns = range(spec.actions.start, spec.actions.stop)
    rows[0, :, columns[0]] = start + torch.arange(200) % 2 * 4  # 0 and 4
    rows[1, :, columns[0]] = start + torch.arange(200) % 3 + 1  # 1, 2 and 3
    rows[..., columns[2]] = start + torch.arange(200) * 7
    codec = TransitionCodec(spec)
    codec.fit(rows)
    codes = torch.randn(2, 400, codec.code_dim)
    decoded = codec.decode(codes)[0]
    found = [decoded[model, :, columns[0]] - start for model in (0, 1)]
    digits = codes[:, :, codec.layout.codes_of(slice(columns[0], columns[0] + 1))]
    for model, values in enumerate(([0, 4], [1, 2, 3])):
        patterns = torch.tensor([[value >> place & 1 for place in range(3)] for value in values]) * 2.0 - 1
        nearest = torch.cdist(digits[model], patterns).argmin(1)
        assert torch.equal(found[model], torch.tensor(values, dtype=torch.float32)[nearest])
    assert set(decoded[..., columns[1]].flatten().tolist()) == {start + value for value in range(3)}
    others = set(decoded[..., columns[2]].flatten().tolist()) - set(rows[..., columns[2]].flatten().tolist())
    assert others, "of so many values it is not remembered which ones there are"
    assert torch.equal(loaded_codec(codec, spec).decode(codes)[0], decoded)
    inexact = TransitionCodec(spec, exact=False)
    inexact.fit(rows)
    assert start in inexact.decode(codes)[0][1, :, columns[0]].tolist()


def test_a_sample_of_the_rows_does_not_tell_which_values_the_data_lack():
    spec = spec_of(action=spaces.Discrete(4))
    rows = random_rows(spec, 200)
    rows[..., spec.actions] = rows[..., spec.actions].clamp(max=1) * 3
    rare = rows[:, :1].clone()
    rare[..., spec.actions] = 2
    for extremes, expected in ((None, {0, 3}), (rare, {0, 1, 2, 3})):
        codec = TransitionCodec(spec)
        codec.fit(rows, extremes)
        assert set(codec.decode(bad_codes(codec, rows))[0][..., spec.actions].flatten().tolist()) == expected


def loaded_codec(codec, spec):
    other = TransitionCodec(spec)
    other.load_state_dict(codec.state_dict(), torch.device("cpu"))
    return other


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
    decoded = restored(codec, codes)[0][0, :, spec.rewards.start]
    torch.testing.assert_close(decoded, rewards, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("period", [2, 5, 50])
def test_periodic_rows_come_back(period):
    """Periodic data (interleaved environments, episodes of equal length) must not bias the statistics."""
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, 100_000)
    phase = torch.arange(100_000) % period
    rows[0, :, 0] = rows[0, :, 0] * 0.1 + phase * 100.0
    codec = fitted(spec, rows)
    decoded, _ = restored(codec, codec.encode(rows))
    torch.testing.assert_close(decoded, rows, rtol=1e-4, atol=1e-3)
    assert codec.encode(rows)[0, :, 0].std() == pytest.approx(1, abs=0.01)


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
    decoded = restored(codec, codes)[0]
    torch.testing.assert_close(decoded[0, 3:, spec.rewards.start], rows[0, 3:, spec.rewards.start])


# --- actions before a tanh --------------------------------------------------------------------------------------------


def squashed(spec, n=2_000, spread=3.0, seed=0):
    """Rows with actions of a tanh policy, concentrated near their bounds."""
    rows = random_rows(spec, n, seed=seed)
    leaf = spec.field("actions").leaves[0]
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
    decoded, valid = restored(codec, codec.encode(rows))
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


# --- columns with few values ------------------------------------------------------------------------------------------


def with_few_values(spec, n=2_000, stack=1):
    """Rows with a switch, a grid position, actions of three kinds and a sparse reward, all stored as real numbers."""
    rows = random_rows(spec, n, stack)
    rng = torch.Generator().manual_seed(5)
    rows[..., 0] = torch.randint(2, rows.shape[:2], generator=rng).float()
    rows[..., spec.next_observations.start] = torch.randint(7, rows.shape[:2], generator=rng) * 0.1
    rows[..., spec.actions.start] = torch.randint(3, rows.shape[:2], generator=rng).float() - 1
    rows[..., spec.rewards.start] = torch.randint(5, rows.shape[:2], generator=rng).float()
    return rows, [0, spec.next_observations.start, spec.actions.start, spec.rewards.start]


@pytest.mark.parametrize("options", [{}, {"unsquash_actions": True}, {"normalise_rewards": False, "find_limits": True}])
@pytest.mark.parametrize("scale", [0.3, 30.0])
def test_columns_with_few_values_come_back_as_those(scale, options):
    """Regression: rewards of 0 and 1 were generated as anything up to 1.8."""
    spec = spec_of(UNBOUNDED)
    rows, columns = with_few_values(spec, stack=2)
    codec = fitted(spec, rows, **options)
    decoded, valid = restored(codec, codec.encode(rows) + bad_codes(codec, rows, scale))
    assert valid.all()
    for column in range(spec.dim - 1):
        support = torch.isin(decoded[..., column], rows[..., column].unique())
        assert bool(support.all()) == (column in columns), column
    assert torch.equal(restored(codec, codec.encode(rows))[0][..., columns], rows[..., columns])
    assert codec.reward_levels[:, :5].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert not codec.is_discrete


def test_columns_with_few_values_are_continuous_where_exactness_is_off():
    spec = spec_of(UNBOUNDED)
    rows, columns = with_few_values(spec)
    codec = fitted(spec, rows, exact=False)
    decoded, _ = restored(codec, codec.encode(rows) + bad_codes(codec, rows, 0.3))
    assert not any(torch.isin(decoded[..., column], rows[..., column]).all() for column in columns)
    assert codec.reward_levels is None
    assert not codec.is_discrete


def test_few_rows_of_a_continuous_column_are_not_its_only_values():
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, 32)
    codec = fitted(spec, rows)
    decoded, _ = codec.decode(codec.encode(rows) + bad_codes(codec, rows, 0.1))
    assert not torch.isin(decoded[..., 0], rows[..., 0]).any()


@pytest.mark.parametrize("stack", [1, 2])
def test_data_without_continuous_columns_is_discrete(stack):
    spec = spec_of(spaces.Tuple((spaces.Discrete(50), UNBOUNDED)), spaces.Discrete(4))
    rows = random_rows(spec, 1_000, stack)
    rows[..., spec.rewards] = rows[..., spec.rewards].sign()
    assert not fitted(spec, rows).is_discrete
    rows[..., [1, 2, -3, -2]] = rows[..., [1, 2, -3, -2]].sign()
    assert fitted(spec, rows).is_discrete
    assert not fitted(spec, rows, exact=False).is_discrete
    if stack == 2:
        rows[1, :, 1] = torch.linspace(0, 1, 1_000)
        assert not fitted(spec, rows).is_discrete


def test_spaces_of_one_value_leave_no_features():
    spec = spec_of(spaces.Discrete(1), spaces.Discrete(1))
    rows = random_rows(spec, 50)
    codec = fitted(spec, rows)
    assert codec.layout.features(codec.encode(rows)).shape == (1, 50, 0)


# --- rewards of terminated rows ---------------------------------------------------------------------------------------


def with_bonus(spec, n=2_000, bonus=-50.0, stack=1):
    """Rows whose reward is continuous and drops when the episode ends."""
    rows = random_rows(spec, n, stack)
    rows[..., spec.rewards] += bonus * rows[..., spec.terminated]
    return rows, rows[..., spec.terminated.start] > 0.5


@pytest.mark.parametrize("bonus", [-50.0, 1.0, 3e4])
def test_a_bonus_at_the_end_goes_with_the_end(bonus):
    spec = spec_of(UNBOUNDED)
    rows, ended = with_bonus(spec, bonus=bonus)
    codec = fitted(spec, rows)
    (code,) = codes_of_column(codec, rows, spec.rewards.start)
    codes = codec.encode(rows)
    for part in (codes[ended], codes[~ended]):  # the code does not tell them apart
        assert abs(part[:, code].mean()) < 0.1
        assert part[:, code].std() == pytest.approx(1, abs=0.1)
    flipped = codes.clone()
    flipped[..., -1] = 1 - flipped[..., -1]
    rewards = restored(codec, flipped)[0][..., spec.rewards.start]
    assert rewards[ended].mean() == pytest.approx(float(rows[~ended][:, spec.rewards].mean()), abs=0.5)
    assert rewards[~ended].mean() == pytest.approx(float(rows[ended][:, spec.rewards].mean()), abs=0.5)
    wild = restored(codec, bad_codes(codec, rows))[0]
    wildly = wild[..., spec.rewards][wild[..., -1] > 0.5]
    assert wildly.min() == rows[ended][:, spec.rewards].min()
    assert wildly.max() == rows[ended][:, spec.rewards].max()


@pytest.mark.parametrize(("scale", "others"), [(1e-32, 1.0), (1e-25, 1e25), (1e32, 1.0)])
def test_rewards_of_terminated_rows_may_have_any_scale(scale, others):
    spec = spec_of(UNBOUNDED)
    rows, ended = with_bonus(spec)
    rows[..., spec.rewards] *= torch.where(ended, scale, others)[..., None]
    codec = fitted(spec, rows)
    codes = codec.encode(rows)
    assert codes.isfinite().all()
    found = restored(codec, codes)[0]
    torch.testing.assert_close(found[..., spec.rewards], rows[..., spec.rewards], rtol=1e-5, atol=1e-5 * others)


def test_restoring_the_rewards_of_terminated_rows_leaves_everything_else():
    spec = spec_of(UNBOUNDED)
    rows, ended = with_bonus(spec)
    codec = fitted(spec, rows)
    decoded, _ = codec.decode(codec.encode(rows))
    before = decoded.clone()
    codec.restore_terminal_rewards(decoded)
    changed = decoded != before
    assert changed[..., spec.rewards.start][ended].all()
    assert changed.sum() == ended.sum()


@pytest.mark.parametrize("outlier", ["ended", "other"])
def test_an_outlier_does_not_displace_the_rewards_of_terminated_rows(outlier):
    spec = spec_of(UNBOUNDED)
    rows, ended = with_bonus(spec)
    row = int((ended if outlier == "ended" else ~ended)[0].nonzero()[7])
    rows[0, row, spec.rewards.start] = 1e20
    codec = fitted(spec, rows)
    (code,) = codes_of_column(codec, rows, spec.rewards.start)
    codes = codec.encode(rows)
    assert codes.isfinite().all()
    others = torch.arange(rows.shape[1]) != row
    for part in (codes[0, ended[0] & others, code], codes[0, ~ended[0] & others, code]):
        assert abs(part.mean()) < 0.2
        assert 0.3 < part.std() < 1.2
    decoded = restored(codec, codes)[0]
    torch.testing.assert_close(decoded[:, others], rows[:, others], rtol=1e-4, atol=1e-3)


def test_rounding_errors_of_a_constant_bonus_are_not_magnified():
    spec = spec_of(UNBOUNDED)
    rows, ended = with_bonus(spec)
    bonus = torch.tensor(-50.1)
    rows[..., spec.rewards.start][ended] = bonus
    row = int(ended[0].nonzero()[3])
    rows[0, row, spec.rewards.start] = torch.nextafter(bonus, torch.tensor(0.0))
    codec = fitted(spec, rows)
    (code,) = codes_of_column(codec, rows, spec.rewards.start)
    assert codec.encode(rows)[..., code].abs().max() < 5


@pytest.mark.parametrize("ends", [0, 9, 10])
def test_few_terminated_rows_have_no_mean_reward_of_their_own(ends):
    spec = spec_of(UNBOUNDED)
    rows = random_rows(spec, 1_000)
    rows[..., spec.terminated] = 0
    rows[:, :ends, spec.terminated] = 1
    rows[:, :ends, spec.rewards] -= 50
    codec = fitted(spec, rows)
    assert bool((codec.statistics["terminal"][0, 0, 1] == 0).item()) == (ends < 10)
    torch.testing.assert_close(restored(codec, codec.encode(rows))[0], rows, rtol=1e-5, atol=1e-4)


def test_models_of_a_stack_may_differ_in_their_terminated_rows():
    spec = spec_of(UNBOUNDED)
    rows, _ = with_bonus(spec, stack=3)
    rows[1, :, spec.terminated] = 0
    rows[2, :, spec.terminated] = 1
    codec = fitted(spec, rows)
    for m in range(3):
        alone = fitted(spec, rows[m : m + 1])
        assert torch.equal(alone.statistics["terminal"], codec.statistics["terminal"][m : m + 1])
    torch.testing.assert_close(restored(codec, codec.encode(rows))[0], rows, rtol=1e-5, atol=1e-4)


def test_statistics_of_an_earlier_version_decode_as_they_did():
    spec = spec_of(UNBOUNDED)
    rows, _ = with_few_values(spec)
    codec = fitted(spec, rows, exact=False)
    state = {name: value for name, value in codec.state_dict().items() if name not in ("levels", "terminal")}
    other = TransitionCodec(spec, exact=False)
    other.load_state_dict(state, torch.device("cpu"))
    codes = codec.encode(rows) + bad_codes(codec, rows, 0.3)
    for a, b in zip(restored(codec, codes), restored(other, codes), strict=True):
        assert torch.equal(a, b)


# --- rewards that are not normalised ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("deviation", "warned"), [(0.1, False), (2.5, False), (3.5, True), (300.0, True)])
def test_raw_rewards_that_are_too_large_for_the_model_are_normalised_with_a_warning(deviation, warned):
    """Regression: of rewards with a standard deviation of 300 the generated ones had 5 % of it."""
    spec = spec_of()
    rows = random_rows(spec, 2_000)
    noise = torch.randn(1, 2_000, generator=torch.Generator().manual_seed(0))
    rows[..., spec.rewards.start] = (noise - noise.mean()) / noise.std() * deviation
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        codec = fitted(spec, rows, normalise_rewards=False)
    assert ["normalise_rewards" in str(warning.message) for warning in caught] == [True] * warned
    (code,) = codes_of_column(codec, rows, spec.rewards.start)
    codes = codec.encode(rows)
    assert codes[..., code].std() == pytest.approx(1 if warned else deviation, rel=0.05)
    torch.testing.assert_close(restored(codec, codes)[0], rows, rtol=1e-5, atol=1e-4)


# --- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [1, 2])
def test_rows_are_coded_in_blocks(stack, monkeypatch):
    spec = spec_of(spaces.Tuple((UNBOUNDED, spaces.Discrete(5))), spaces.Box(-1, 1, (2,)))
    rows, _ = with_bonus(spec, 1_000, stack=stack)
    rows[..., spec.actions] = (rows[..., spec.actions] * 3).clamp(-1, 1)  # a pile on the bounds
    rows[..., 0] = 0.3
    rows[0, 0, 1] = 1e6
    whole = fitted(spec, rows, find_limits=True)
    expected = whole.encode(rows)
    monkeypatch.setattr("synther_replay.data.codec._BLOCK", 64)
    assert torch.equal(whole.encode(rows), expected)
    parts = fitted(spec, rows, find_limits=True)  # statistics of a sample
    codes = parts.encode(rows)
    assert codes.abs().max() < 50
    assert codes[..., : spec.rewards.stop].std(1).max() < 2
    torch.testing.assert_close(restored(parts, codes)[0], rows, rtol=1e-4, atol=1e-4)
    assert torch.equal(parts.statistics["constant"].isnan(), whole.statistics["constant"].isnan())


def test_rows_can_be_encoded_in_another_order(monkeypatch):
    monkeypatch.setattr("synther_replay.data.codec._BLOCK", 100)
    spec = spec_of(UNBOUNDED, spaces.Discrete(5))
    rows = random_rows(spec, 333, stack=2)
    codec = fitted(spec, rows)
    order = torch.stack([torch.randperm(333, generator=torch.Generator().manual_seed(m)) for m in range(2)])
    expected = torch.stack([codes[index] for codes, index in zip(codec.encode(rows), order, strict=True)])
    assert torch.equal(codec.encode(rows, order), expected)


class Allocations(TorchDispatchMode):
    """Highest number of bytes in tensors that were made inside and are alive at the same time."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given | self.known:
                self.add(tensor.untyped_storage())
        return result

    def add(self, storage):
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def forget():
            self.known.discard(key)
            self.now -= size

        weakref.finalize(storage, forget)


def test_preprocessing_takes_little_memory_beyond_rows_and_codes(monkeypatch):
    """Regression: it took nine times the memory of the rows, in copies of float64."""
    monkeypatch.setattr("synther_replay.data.codec._BLOCK", 1_000, raising=False)
    spec = spec_of(spaces.Box(-np.inf, np.inf, (17,)), spaces.Box(-1, 1, (6,)))
    rows = random_rows(spec, 20_000)
    with Allocations() as memory:
        codec = fitted(spec, rows)
        codes = codec.encode(rows)
    assert memory.peak < 1.2 * codes.numel() * 4 + 0.2 * rows.numel() * 4
    assert memory.now < 1.01 * codes.numel() * 4
