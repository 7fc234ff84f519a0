"""Short forms of settings: what a YAML file or a command line can say, turned into a dataclass with presets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from synther_replay.common.checks import received

_FEW = 8  # so many names are always listed


def default_preset(device: torch.device) -> str:
    """Return the name of the preset for a device: large networks and many rows only pay on a GPU."""
    return "fast" if device.type == "cuda" else "tiny"


def from_short_form(cls: type[Any], value: Any, *, presets: Sequence[str], default: str, name: str) -> Any:
    """Return an instance of the dataclass `cls`.

    Args:
        cls: A dataclass with a class method for each preset.
        value: An instance, the name of a preset, a mapping of fields with an optional key ``"preset"``, or None.
        presets: Names of the presets.
        default: The preset of None, and of a mapping without ``"preset"``.
        name: Name of the argument, for errors.

    Raises:
        TypeError: None of these.
        ValueError: An unknown preset or field; the error names the known ones.
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, str | Mapping | None):
        raise TypeError(
            f"{name}: expected a {cls.__name__}, a preset ({', '.join(presets)}) or a mapping of fields, "
            f"{received(value)}"
        )
    changes = dict(value) if isinstance(value, Mapping) else {}
    preset = changes.pop("preset", default) if not isinstance(value, str) else value
    if preset not in presets:
        raise ValueError(f"{name}: unknown preset {preset!r}; {expected_names(preset, presets)}")
    known = checked_fields(cls, changes, name)
    try:
        return replace(getattr(cls, preset)(), **known)
    except (TypeError, ValueError) as error:  # of the dataclass, which does not know the name of the argument
        raise type(error)(f"{name}: {error}") from error


def checked_fields(
    cls: type[Any], changes: Mapping[str, Any], name: str, allowed: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return values for fields of the dataclass `cls`, converted from what YAML makes of them.

    Args:
        cls: A dataclass.
        changes: The values by field.
        name: Name of the argument, for errors.
        allowed: Names of the fields that may be given. None: all.

    Raises:
        ValueError: An unknown field; the error names the known ones.
    """
    known = {field.name: str(field.type) for field in fields(cls) if allowed is None or field.name in allowed}
    for key in changes:
        if key not in known:
            raise ValueError(f"{name}: unknown setting {key!r} of {cls.__name__}; {expected_names(key, known)}")
    return {key: _as_field(item, known[key]) for key, item in changes.items()}


def expected_names(given: Any, known: Iterable[str]) -> str:
    """Name what is near to a misspelt word; all that is known if nothing is near, or if it is little."""
    known = list(known)
    near = difflib.get_close_matches(str(given), known, n=1)
    parts = [f"did you mean {near[0]!r}?"] if near else []
    if not near or len(known) <= _FEW:
        parts.append(f"expected one of {', '.join(known)}")
    return " ".join(parts)


def _as_field(value: Any, annotation: str) -> Any:
    """Convert what YAML makes of numbers and tuples: ``1e-3`` is text in YAML 1.1, ``1e4`` with a tag a float."""
    if isinstance(value, str) and annotation.startswith(("int", "float")):
        try:
            value = float(value)
        except ValueError:
            return value  # the dataclass refuses it and names the field
    if isinstance(value, float) and annotation.startswith("int") and value.is_integer():
        return int(value)
    return tuple(value) if isinstance(value, list) and annotation.startswith("tuple") else value
