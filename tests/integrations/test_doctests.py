"""Doctests of the adapters.

`pytest --doctest-modules` would import the folder as plain `adapters`, which raises ImportError.
"""

import doctest
import importlib
from pathlib import Path

import pytest

ADAPTERS = Path(__file__).parents[2] / "adapters"


@pytest.mark.parametrize(
    ("module", "framework", "least"),
    [
        ("sb3.buffer", "stable_baselines3", 3),
        ("torchrl.buffer", "torchrl", 3),
        ("corl.buffer", None, 3),
        ("skrl.memory", "skrl", 2),
    ],
)
def test_docstring_examples_of_an_adapter(module, framework, least):
    if framework:
        pytest.importorskip(framework)
    result = doctest.testmod(importlib.import_module(f"synther_replay.adapters.{module}"))
    assert result.attempted >= least
    assert result.failed == 0


def test_no_adapter_is_left_out():
    assert {path.parent.name for path in ADAPTERS.glob("*/__init__.py")} == {"sb3", "torchrl", "corl", "skrl"}
