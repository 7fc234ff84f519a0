"""Transitions: packing, unpacking and validation."""

import json
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from synther_replay.data.transitions import Transitions, TransitionSpec

SHAPES = st.sampled_from([(), (1,), (3,), (2, 2)])


def spec_of(observation=None, action=None):
    return TransitionSpec.from_spaces(observation or spaces.Box(-1, 1, (3,)), action or spaces.Discrete(2))


def pack(spec, **changes):
    """One valid transition of the default spec, some fields replaced."""
    fields = {
        "observations": [0.1, 0.2, 0.3],
        "actions": 1,
        "rewards": -0.5,
        "next_observations": [0.2, 0.3, 0.4],
        "terminated": False,
    }
    return Transitions.from_arrays(spec, **(fields | changes))


# --- a spec -----------------------------------------------------------------------------------------------------------


def test_columns_of_a_spec_follow_each_other():
    spec = spec_of(spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.Discrete(3)), spaces.MultiBinary(2))
    assert (spec.observation_dim, spec.action_dim, spec.dim) == (5, 2, 14)
    assert spec.observations == slice(0, 5)
    assert spec.actions == slice(5, 7)
    assert spec.rewards == slice(7, 8)
    assert spec.next_observations == slice(8, 13)
    assert spec.terminated == slice(13, 14)


def test_specs_of_equal_spaces_are_equal():
    assert spec_of() == spec_of()
    assert hash(spec_of()) == hash(spec_of())
    assert pickle.loads(pickle.dumps(spec_of())) == spec_of()
    assert spec_of() != "spec"


@pytest.mark.parametrize(
    "other",
    [
        spaces.Box(-1, 1, (4,)),
        spaces.Box(-1, 1, (3, 1)),
        spaces.Box(-1, 2, (3,)),
        spaces.Box(-1, np.inf, (3,)),
        spaces.Box(-1, 1, (3,), np.float64),
        spaces.Box(-1, 1, (3,), np.int8),
        spaces.MultiBinary(3),
        spaces.Tuple([spaces.Box(-1, 1, (3,))]),
        spaces.Dict(a=spaces.Box(-1, 1, (3,))),
    ],
    ids=str,
)
def test_specs_of_other_spaces_differ(other):
    assert spec_of(other) != spec_of()


def test_spec_depends_on_discrete_start_and_key_order():
    assert spec_of(action=spaces.Discrete(2, start=1)) != spec_of()
    pair = [("b", spaces.Discrete(2)), ("a", spaces.Discrete(2))]
    assert spec_of(spaces.Dict(pair)) != spec_of(spaces.Dict(pair[::-1]))


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_unsupported_space_is_refused_by_argument(name):
    arguments = {"observation_space": spaces.Discrete(2), "action_space": spaces.Discrete(2)}
    with pytest.raises(TypeError, match=f"{name}: Text is not supported"):
        TransitionSpec.from_spaces(**(arguments | {name: spaces.Text(3)}))
    with pytest.raises(ValueError, match=f"{name}: integers beyond"):
        TransitionSpec.from_spaces(**(arguments | {name: spaces.Discrete(2**30)}))


# --- any space, there and back ----------------------------------------------------------------------------------------


@st.composite
def boxes(draw):
    dtype = draw(st.sampled_from([np.float32, np.float64, np.float16, np.uint8, np.int16, np.int64, np.bool_]))
    if np.issubdtype(dtype, np.floating) and draw(st.booleans()):
        return spaces.Box(-np.inf, np.inf, draw(SHAPES), dtype)
    low = 0 if dtype in (np.uint8, np.bool_) else draw(st.integers(-100, 100))
    return spaces.Box(low, low + (1 if dtype is np.bool_ else draw(st.integers(1, 100))), draw(SHAPES), dtype)


@st.composite
def multi_discretes(draw):
    shape = draw(SHAPES.filter(bool))
    count = int(np.prod(shape))
    nvec, start = (
        np.reshape(draw(st.lists(st.integers(low, 9), min_size=count, max_size=count)), shape) for low in (1, -9)
    )
    return spaces.MultiDiscrete(nvec, start=start, dtype=draw(st.sampled_from([np.int64, np.int32])))


PLAIN_SPACES = st.one_of(
    boxes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-9, 9)),
    multi_discretes(),
    st.builds(spaces.MultiBinary, st.sampled_from([1, 3, (2, 2)])),
)
ANY_SPACE = st.recursive(
    PLAIN_SPACES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abxy", min_size=1, max_size=2), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def batch_of(space, lead):
    """Random values of a space as arrays ``(*lead, *shape)``, nested as the space is."""
    if isinstance(space, spaces.Dict):
        return {key: batch_of(sub, lead) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of(sub, lead) for sub in space.spaces)
    count = int(np.prod(lead, dtype=int))
    values = [space.sample() for _ in range(count)]
    return np.array(values, dtype=space.dtype).reshape((*lead, *space.shape))


def assert_same(space, lead, unpacked, expected):
    if isinstance(space, spaces.Dict):
        assert list(unpacked) == list(space.spaces)
        for key, sub in space.spaces.items():
            assert_same(sub, lead, unpacked[key], expected[key])
    elif isinstance(space, spaces.Tuple):
        assert isinstance(unpacked, tuple)
        for sub, one, other in zip(space.spaces, unpacked, expected, strict=True):
            assert_same(sub, lead, one, other)
    else:
        assert unpacked.dtype == torch.from_numpy(np.empty(0, space.dtype)).dtype
        assert unpacked.shape == (*lead, *space.shape)
        # Rows are float32, which is all that a float64 space may lose.
        exact = expected.astype(np.float32).astype(space.dtype).reshape(unpacked.shape)
        np.testing.assert_array_equal(unpacked.numpy(), exact)


@settings(deadline=None, max_examples=60)
@given(ANY_SPACE, ANY_SPACE, st.sampled_from([(), (0,), (1,), (4,), (2, 3)]), st.integers(0, 2**16))
def test_pack_and_unpack_round_trip(observation_space, action_space, lead, seed):
    observation_space.seed(seed)
    action_space.seed(seed)
    spec = TransitionSpec.from_spaces(observation_space, action_space)
    rng = np.random.default_rng(seed)
    observations, next_observations = batch_of(observation_space, lead), batch_of(observation_space, lead)
    actions, rewards, terminated = batch_of(action_space, lead), rng.normal(size=lead), rng.random(size=lead) < 0.5

    packed = Transitions.from_arrays(spec, observations, actions, rewards, next_observations, terminated)
    lead = lead or (1,)  # a single step is a batch of one
    assert packed.rows.shape == (*lead, spec.dim)
    assert packed.rows.dtype == torch.float32
    assert len(packed) == lead[-1]
    assert_same(observation_space, lead, packed.observations, observations)
    assert_same(action_space, lead, packed.actions, actions)
    assert_same(observation_space, lead, packed.next_observations, next_observations)
    np.testing.assert_array_equal(packed.rewards.numpy(), np.float32(rewards).reshape(lead))
    assert packed.terminated.dtype == torch.bool
    np.testing.assert_array_equal(packed.terminated.numpy(), np.reshape(terminated, lead))


@settings(deadline=None, max_examples=60)
@given(ANY_SPACE, ANY_SPACE)
def test_spec_survives_json(observation_space, action_space):
    spec = TransitionSpec.from_spaces(observation_space, action_space)
    rebuilt = TransitionSpec.from_json(json.loads(json.dumps(spec.to_json(), allow_nan=False)))
    assert rebuilt == spec
    assert hash(rebuilt) == hash(spec)


# --- forms of input ---------------------------------------------------------------------------------------------------


def test_step_batch_and_stack_hold_the_same_rows():
    spec = spec_of()
    step = pack(spec)
    fields = (np.array([0.1, 0.2, 0.3]), np.array(1), np.array(-0.5), np.array([0.2, 0.3, 0.4]), np.array(False))
    batch = Transitions.from_arrays(spec, *(np.stack([field] * 4) for field in fields))
    stack = Transitions.from_arrays(spec, *(np.stack([np.stack([field] * 4)] * 2) for field in fields))
    assert (len(step), len(batch), len(stack)) == (1, 4, 4)
    assert (step.rows.shape, batch.rows.shape, stack.rows.shape) == ((1, 9), (4, 9), (2, 4, 9))
    assert torch.equal(step.rows.expand(2, 4, 9), stack.rows)
    assert torch.equal(stack.rows[1], batch.rows)
    assert stack.observations.shape == (2, 4, 3)
    assert stack.rewards.shape == stack.terminated.shape == (2, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8])
def test_torch_numpy_and_list_agree(dtype):
    tensors = {
        "observations": torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=dtype),
        "actions": torch.tensor([0, 1], dtype=dtype),
        "rewards": torch.tensor([7, 8], dtype=dtype),
        "next_observations": torch.tensor([[4, 5, 6], [7, 8, 9]], dtype=dtype),
        "terminated": torch.tensor([0, 1], dtype=dtype),
    }
    expected = [[1, 2, 3, 0, 7, 4, 5, 6, 0], [4, 5, 6, 1, 8, 7, 8, 9, 1]]
    for form in (lambda t: t, lambda t: t.numpy(), lambda t: t.tolist()):
        rows = Transitions.from_arrays(spec_of(), **{name: form(field) for name, field in tensors.items()}).rows
        assert rows.dtype == torch.float32
        assert rows.tolist() == expected


@pytest.mark.filterwarnings("error")
def test_unusual_arrays_are_read():
    """Regression: reversed and big-endian arrays were "not numbers", read-only ones made torch warn."""
    spec = spec_of(spaces.Box(-9, 9, (2,)))
    plain, read_only = np.arange(2.0), np.ones(2, np.float32)
    read_only.flags.writeable = False
    for array in (read_only, plain[::-1], plain.astype(">f4"), [np.float16(1), np.int8(2)]):
        packed = pack(spec, observations=array, next_observations=array)
        assert packed.observations[0].tolist() == list(array)


def test_tensors_that_need_a_gradient_are_detached():
    assert not pack(spec_of(), observations=torch.zeros(3, requires_grad=True)).rows.requires_grad


def test_rows_do_not_share_memory_with_the_input():
    observation = np.zeros(3, np.float32)
    packed = pack(spec_of(), observations=observation)
    observation[:] = 9
    assert packed.observations.tolist() == [[0, 0, 0]]


def test_no_transitions_at_all():
    """Regression: a batch of zero rows could not be packed."""
    empty = Transitions.from_arrays(spec_of(), np.zeros((0, 3)), np.zeros(0, int), [], np.zeros((0, 3)), [])
    assert len(empty) == 0
    assert empty.rows.shape == (0, 9)
    assert empty.observations.shape == (0, 3)


def test_device_argument_places_the_rows():
    packed = pack(spec_of(), device="cpu")
    assert packed.rows.device == torch.device("cpu")
    assert pack(spec_of(), observations=torch.zeros(3, device="cpu")).rows.device == torch.device("cpu")
    assert packed.to("cpu").rows.device == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_argument_places_the_rows_on_a_gpu():
    assert pack(spec_of(), device="cuda").rows.is_cuda
    assert pack(spec_of(), observations=torch.zeros(3, device="cuda")).rows.is_cuda
    assert not pack(spec_of(), observations=torch.zeros(3, device="cuda"), device="cpu").rows.is_cuda
    assert pack(spec_of()).to("cuda").actions.is_cuda


def test_indexing_takes_rows_of_every_run():
    spec = spec_of()
    rows = torch.arange(2 * 4 * 9, dtype=torch.float32).reshape(2, 4, 9)
    stack = Transitions(spec, rows)
    assert torch.equal(stack[1:3].rows, rows[:, 1:3])
    for index in ([3, 0, 3], np.array([3, 0, 3]), torch.tensor([3, 0, 3])):
        assert torch.equal(stack[index].rows, rows[:, [3, 0, 3]])
    for mask in ([True, False, False, True], np.array([True, False, False, True])):
        assert torch.equal(stack[mask].rows, rows[:, [0, 3]])
    assert len(stack[[]]) == 0


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "got"),
    [
        ("observations", [0.1, 0.2], r"\(2,\)"),
        ("observations", 0.1, r"\(\)"),
        ("next_observations", [[0.1, 0.2, 0.3]], r"\(1, 3\)"),
        ("actions", [1], r"\(1,\)"),
    ],
)
def test_wrong_shape_is_refused(field, value, got):
    with pytest.raises(ValueError, match=rf"^{field}: expected shape \(.*\), got {got}"):
        pack(spec_of(), **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminated": [False, True]}, r"^terminated: expected shape \(\), got \(2,\)"),
        ({"rewards": [1.0]}, r"^rewards: expected shape \(\), got \(1,\)"),
        ({"rewards": [1.0], "terminated": [False]}, r"^rewards: expected shape \(\), got \(1,\)"),
        ({"rewards": [1.0], "observations": [0.1]}, r"^rewards and terminated: .* got \(1,\) and \(\)"),
    ],
)
def test_rewards_and_flags_of_different_shapes_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        pack(spec_of(), **changes)


@pytest.mark.parametrize("names", [("rewards",), ("terminated",), ("rewards", "terminated")])
@pytest.mark.parametrize("n", [1, 4])
def test_rewards_and_flags_in_a_column_are_named_not_the_observations(names, n):
    x = np.zeros((n, 3))
    fields = {"observations": x, "next_observations": x, "actions": np.zeros(n, int)}
    fields |= {name: np.zeros((n, 1) if name in names else n) for name in ("rewards", "terminated")}
    with pytest.raises(ValueError, match=rf"^{names[0]}: expected shape \({n},\), got \({n}, 1\)"):
        pack(spec_of(), **fields)


def test_number_of_rows_must_agree():
    with pytest.raises(ValueError, match=r"^observations: expected shape \(2, 3\), got \(3, 3\)"):
        Transitions.from_arrays(spec_of(), np.zeros((3, 3)), [0, 0], [0.0, 0.0], np.zeros((2, 3)), [0, 0])


@pytest.mark.parametrize("shape", [(9,), (2, 8), (2, 9, 1)])
def test_rows_of_another_width_are_refused(shape):
    with pytest.raises(ValueError, match=r"^rows: expected shape \(\.\.\., n, 9\), got "):
        Transitions(spec_of(), torch.zeros(shape))


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "next_observations", "terminated"])
@pytest.mark.parametrize(
    ("value", "got"),
    [("up", "str"), (None, "NoneType"), (object(), "object"), ([[1.0], [1.0, 2.0]], "list"), (1j, "complex")],
)
def test_non_numeric_values_are_refused(field, value, got):
    with pytest.raises(TypeError, match=f"^{field}: expected .*numbers, got .*{got}"):
        pack(spec_of(), **{field: value})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "next_observations"])
def test_nan_and_infinity_are_refused(field, bad):
    spec = spec_of(action=spaces.Box(-1, 1, (3,)))
    value = bad if field == "rewards" else [0.0, bad, 0.0]
    with pytest.raises(ValueError, match=rf"^{field}: 1 of 1 rows are non-finite in float32 \(found {bad}"):
        pack(spec, **({"actions": [0.0, 0.0, 0.0]} | {field: value}))


def test_non_finite_rows_are_counted_and_the_first_is_told():
    observations = np.zeros((2, 4, 3))
    observations[0, 1, 2] = observations[1, 2, 0] = np.nan
    with pytest.raises(ValueError, match=r"^observations: 2 of 8 rows are non-finite .* first in row 1, column 2"):
        Transitions.from_arrays(
            spec_of(), observations, np.zeros((2, 4)), np.zeros((2, 4)), np.zeros((2, 4, 3)), np.zeros((2, 4))
        )


def test_float64_beyond_float32_is_refused():
    with pytest.raises(ValueError, match=r"^rewards: 1 of 1 rows are non-finite in float32 \(found inf"):
        pack(spec_of(), rewards=1e300)
    with pytest.raises(ValueError, match=r"^next_observations: .* non-finite in float32 \(found -inf"):
        pack(spec_of(spaces.Box(-np.inf, np.inf, (3,), np.float64)), next_observations=[0.0, 0.0, -1e39])


@pytest.mark.parametrize(
    ("action_space", "value", "message"),
    [
        (spaces.Discrete(2), 0.5, "expected integers from 0 to 1, got 0.5"),
        (spaces.Discrete(2), 2, "expected integers from 0 to 1, got 2"),
        (spaces.Discrete(2), -1, "expected integers from 0 to 1, got -1"),
        (spaces.Discrete(2), np.nan, "expected integers from 0 to 1, got nan"),
        (spaces.Discrete(2), np.inf, "expected integers from 0 to 1, got inf"),
        (spaces.Discrete(2, start=5), 4, "expected integers from 5 to 6, got 4"),
        (spaces.MultiDiscrete([2, 9]), [2, 2], "expected integers from 0 to 8, got 2"),
        (spaces.MultiDiscrete([2, 9], start=[3, 0]), [2, 2], "expected integers from 0 to 8, got 2"),
        (spaces.MultiBinary(2), [0, 2], "expected integers from 0 to 1, got 2"),
        (spaces.Box(0, 5, (1,), np.int16), [0.5], "expected integers from -32768 to 32767, got 0.5"),
        (spaces.Box(0, 255, (1,), np.uint8), [300], "expected integers from 0 to 255, got 300"),
        (spaces.Box(0, 255, (1,), np.uint8), [-1], "expected integers from 0 to 255, got -1"),
        (spaces.Box(0, 1, (1,), np.bool_), [2], "expected integers from 0 to 1, got 2"),
    ],
)
def test_integers_that_do_not_exist_are_refused(action_space, value, message):
    with pytest.raises(ValueError, match=f"^actions: {message}$"):
        pack(spec_of(action=action_space), actions=value)


def test_values_outside_the_bounds_of_a_box_are_kept():
    """Environments may exceed the bounds of their observation space; only unrepresentable values are rejected."""
    packed = pack(
        spec_of(spaces.Box(-1, 1, (3,)), spaces.Box(0, 5, (), np.int16)), observations=[7, -7, 0], actions=300
    )
    assert packed.observations.tolist() == [[7, -7, 0]]
    assert packed.actions.tolist() == [300]


@pytest.mark.parametrize("bad", [0.5, 2, -1, np.nan, np.inf])
def test_fractional_terminated_is_refused(bad):
    with pytest.raises(ValueError, match=f"^terminated: expected True or False .*, got {bad}"):
        pack(spec_of(), terminated=bad)


@pytest.mark.parametrize("field", ["observations", "next_observations"])
def test_missing_dict_key_is_refused(field):
    spec = spec_of(spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])))
    whole = {"a": 0, "b": (0, 1)}
    fields = {"observations": whole, "next_observations": whole}
    assert pack(spec, **fields).observations["b"][1].tolist() == [1]
    for value, key in (({"b": (0, 1)}, "'a'"), ({"a": 0}, "'b'"), ({"a": 0, "b": (0,)}, "1"), (3.0, "'a'")):
        with pytest.raises(ValueError, match=f"^{field}: entry {key} of path .* is missing"):
            pack(spec, **(fields | {field: value}))


def test_an_error_inside_a_dict_names_the_entry():
    spec = spec_of(spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])))
    with pytest.raises(ValueError, match=r"^observations\['a'\]\[0\]: expected integers from 0 to 1, got 7"):
        pack(spec, observations={"a": (7,)}, next_observations={"a": (0,)})


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_large_integers_are_held_with_the_precision_of_float32(dtype):
    space = spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, (3,), dtype)
    values = np.array([2**24 + 1, -(2**30) - 1, np.iinfo(dtype).min], dtype)
    packed = pack(spec_of(space), observations=values, next_observations=values)
    packed.check()
    assert packed.observations.dtype == torch.from_numpy(values).dtype
    np.testing.assert_allclose(packed.observations[0].numpy(), values, rtol=2**-24)
