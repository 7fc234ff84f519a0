"""Doctests of the adapters.

`pytest --doctest-modules` would import the folder as plain `adapters`, which raises ImportError.
"""

import doctest
import importlib
from pathlib import Path

import pytest

ADAPTERS = Path(__file__).parents[2] / "adapters"


@pytest.mark.parametrize(("name", "framework"), [("sb3", "stable_baselines3"), ("torchrl", "torchrl"), ("corl", None)])
def test_docstring_examples_of_an_adapter(name, framework):
    if framework:
        pytest.importorskip(framework)
    result = doctest.testmod(importlib.import_module(f"synther_replay.adapters.{name}.buffer"))
    assert result.attempted >= 3
    assert result.failed == 0


def test_no_adapter_is_left_out():
    assert {path.parent.name for path in ADAPTERS.glob("*/__init__.py")} == {"sb3", "torchrl", "corl"}
