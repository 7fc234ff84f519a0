"""Spaces as leaves and as JSON."""

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from synther_replay.data.spaces import MAX_EXACT_INTEGER, leaves_of, nest, pick, space_from_json, space_to_json

BOX = spaces.Box(-1.0, 1.0, (3,))
# The columns are: space, shape, dtype, kind, low, high.
PLAIN = {
    "scalar box": (spaces.Box(-2, 2, ()), (), torch.float32, "real", [-2], [2]),
    "shaped box": (spaces.Box(-1, 1, (2, 2)), (2, 2), torch.float32, "real", [-1] * 4, [1] * 4),
    "unbounded box": (spaces.Box(-np.inf, np.inf, (1,)), (1,), torch.float32, "real", [-np.inf], [np.inf]),
    "float64 box": (spaces.Box(0, 1, (2,), np.float64), (2,), torch.float64, "real", [0, 0], [1, 1]),
    "uneven box": (
        spaces.Box(np.array([0, -np.inf], np.float32), np.array([0.1, 3], np.float32)),
        (2,),
        torch.float32,
        "real",
        [0, -np.inf],
        [np.float32(0.1), 3],
    ),
    "image": (spaces.Box(0, 255, (2, 1, 1), np.uint8), (2, 1, 1), torch.uint8, "ordinal", [0, 0], [255, 255]),
    "integer box": (spaces.Box(-5, 9, (1,), np.int64), (1,), torch.int64, "ordinal", [-5], [9]),
    "discrete": (spaces.Discrete(4), (), torch.int64, "category", [0], [3]),
    "discrete with start": (spaces.Discrete(3, start=-1), (), torch.int64, "category", [-1], [1]),
    "multi-discrete": (spaces.MultiDiscrete([2, 5]), (2,), torch.int64, "category", [0, 0], [1, 4]),
    "multi-discrete, 2-D with start": (
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-2, 0]], dtype=np.int32),
        (2, 2),
        torch.int32,
        "category",
        [1, 0, -2, 0],
        [2, 2, 1, 4],
    ),
    "multi-binary": (spaces.MultiBinary(3), (3,), torch.int8, "category", [0] * 3, [1] * 3),
    "shaped multi-binary": (spaces.MultiBinary([2, 2]), (2, 2), torch.int8, "category", [0] * 4, [1] * 4),
}
NESTED = spaces.Dict(
    [("z", BOX), ("a", spaces.Tuple([spaces.Discrete(2), spaces.Dict({"deep": spaces.MultiBinary(2)})]))]
)


@pytest.mark.parametrize(("space", "shape", "dtype", "kind", "low", "high"), PLAIN.values(), ids=PLAIN)
def test_leaf_of_a_plain_space(space, shape, dtype, kind, low, high):
    (leaf,) = leaves_of(space, "space")
    assert (leaf.path, leaf.shape, leaf.dtype, leaf.kind) == ((), shape, dtype, kind)
    assert leaf.size == len(low)
    np.testing.assert_array_equal(leaf.low, low)
    np.testing.assert_array_equal(leaf.high, high)


def test_leaves_of_nested_spaces_keep_the_order_of_the_space():
    assert [leaf.path for leaf in leaves_of(NESTED, "space")] == [("z",), ("a", 0), ("a", 1, "deep")]


def test_pick_and_nest_are_inverse():
    values = ["box", "discrete", "binary"]
    nested = nest(NESTED, values)
    assert nested == {"z": "box", "a": ("discrete", {"deep": "binary"})}
    assert [pick(nested, leaf.path, "value") for leaf in leaves_of(NESTED, "space")] == values


@pytest.mark.parametrize("value", [{"z": 1}, {"z": 1, "a": (0,)}, {"z": 1, "a": (0, 1.5)}, None, [1, 2]])
def test_pick_names_the_missing_entry(value):
    with pytest.raises(ValueError, match=r"observations: entry .* is missing"):
        for leaf in leaves_of(NESTED, "space"):
            pick(value, leaf.path, "observations")


@pytest.mark.parametrize(
    "space",
    [spaces.Text(5), spaces.Sequence(BOX), spaces.Graph(BOX, None), spaces.OneOf([BOX, BOX])],
    ids=lambda space: type(space).__name__,
)
def test_unsupported_space_is_refused_by_name(space):
    with pytest.raises(TypeError, match=f"observation_space: {type(space).__name__} is not supported"):
        leaves_of(space, "observation_space")
    with pytest.raises(TypeError, match=rf"observation_space\['x'\]\[1\]: {type(space).__name__} is not supported"):
        leaves_of(spaces.Dict({"x": spaces.Tuple([BOX, space])}), "observation_space")
    with pytest.raises(TypeError, match=f"{type(space).__name__} is not supported"):
        space_to_json(space)


def test_a_box_of_a_type_unknown_to_torch_is_refused():
    with pytest.raises(TypeError, match=r"space: .* is not supported"):
        leaves_of(spaces.Box(-1, 1, (2,), np.longdouble), "space")


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Tuple([]), spaces.Box(0, 1, (0,))], ids=str)
def test_a_space_without_entries_is_refused(space):
    with pytest.raises(ValueError, match="space: the space has no entries"):
        leaves_of(space, "space")
    with pytest.raises(ValueError, match=r"space\[1\]: the space has no entries"):
        leaves_of(spaces.Tuple([BOX, space]), "space")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(MAX_EXACT_INTEGER + 2),
        spaces.Discrete(2, start=-MAX_EXACT_INTEGER - 1),
        spaces.MultiDiscrete([2, 2**40]),
    ],
    ids=str,
)
def test_more_categories_than_a_row_can_hold_are_refused(space):
    with pytest.raises(ValueError, match=f"action_space: integers beyond {MAX_EXACT_INTEGER}"):
        leaves_of(space, "action_space")


def test_the_largest_discrete_space_is_accepted():
    assert leaves_of(spaces.Discrete(MAX_EXACT_INTEGER + 1), "action_space")[0].high == MAX_EXACT_INTEGER


@pytest.mark.parametrize("space", [*(case[0] for case in PLAIN.values()), NESTED], ids=[*PLAIN, "nested"])
def test_json_round_trip(space):
    # Strict JSON: other readers know no Infinity.
    text = json.dumps(space_to_json(space), allow_nan=False)
    rebuilt = space_from_json(json.loads(text))
    assert type(rebuilt) is type(space)
    assert json.dumps(space_to_json(rebuilt)) == text
    for old, new in zip(leaves_of(space, "space"), leaves_of(rebuilt, "space"), strict=True):
        assert (old.path, old.shape, old.dtype, old.kind) == (new.path, new.shape, new.dtype, new.kind)
        np.testing.assert_array_equal(old.low, new.low)
        np.testing.assert_array_equal(old.high, new.high)


def test_json_keeps_dict_keys_in_order():
    assert list(space_from_json(space_to_json(NESTED)).spaces) == ["z", "a"]


def test_json_of_equal_bounds_is_short():
    description = space_to_json(spaces.Box(0, 255, (84, 84, 3), np.uint8))
    assert (description["low"], description["high"]) == (0, 255)


def test_json_of_a_subclass_is_that_of_the_space_it_extends():
    class MaskedDiscrete(spaces.Discrete):
        pass

    assert space_from_json(space_to_json(MaskedDiscrete(3))) == spaces.Discrete(3)


def test_json_of_an_unknown_type_is_refused():
    with pytest.raises(ValueError, match="unknown type 'Spiral'"):
        space_from_json({"type": "Spiral", "dtype": "float32"})
