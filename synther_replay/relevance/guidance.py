"""Guidance: which relevance guides generation, and how strongly; its short forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from synther_replay.common.checks import check_function, received
from synther_replay.common.short_forms import checked_fields, expected_names
from synther_replay.relevance.critics import TDError, Value
from synther_replay.relevance.curiosity import Curiosity
from synther_replay.relevance.function import OfFunction
from synther_replay.relevance.protocol import Relevance
from synther_replay.relevance.rewards import Return, Reward

NAMES: dict[str, Callable[[], Relevance]] = {
    "curiosity": Curiosity,
    "return": Return,
    "reward": Reward,
    "td_error": TDError,
    "value": Value,
}
_NUMBERS = ("top", "guidance", "share")


@dataclass(frozen=True)
class Guidance:
    """How generation is guided.

    >>> Guidance.of("curiosity").top, Guidance.of({"name": "reward", "top": 0.1}).top
    (0.25, 0.1)

    Attributes:
        relevance: What the real rows are scored by: one of `NAMES`, or an object with the method `score`.
        top: Share of the real rows, those with the highest scores, whose conditions rows are generated for.
        guidance: Weight of the condition, see `DiffusionGenerator.sample`. 2 is the value of prioritised generative
            replay, which has the same convention: ``without + 2 (with - without)``.
        share: Share of the generated rows that are guided; the others are generated as without relevance.
    """

    relevance: str | Relevance
    top: float = 0.25
    guidance: float = 2.0
    share: float = 1.0

    def __post_init__(self) -> None:
        """Validate all fields."""
        if isinstance(self.relevance, str):
            if self.relevance not in NAMES:
                near = expected_names(self.relevance, NAMES)
                raise ValueError(f"relevance: unknown name {self.relevance!r}; {near}")
        elif not isinstance(self.relevance, Relevance):
            raise TypeError(
                f"relevance: expected a name or an object with the method score, {received(self.relevance)}"
            )
        for name, most in (("top", 1.0), ("share", 1.0), ("guidance", float("inf"))):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value <= most or value == float("inf"):
                limit = f" of at most {most:g}" if most == 1.0 else ""
                raise ValueError(f"relevance: {name}: expected a positive number{limit}, got {value!r}")
            object.__setattr__(self, name, float(value))

    @classmethod
    def of(cls, value: Any, *, name: str = "relevance") -> Guidance | None:
        """Return the guidance of a short form; None stays None.

        Args:
            value: A guidance, the name of a relevance, a mapping of fields with the key ``"name"``, an object with the
                method `score`, or a function from transitions to scores.
            name: Name of the argument, for errors.

        Raises:
            TypeError: `value` is none of these.
            ValueError: An unknown name or field, or a bad value.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            fields = dict(value)
            if "name" not in fields:
                raise ValueError(f"{name}: expected the key 'name' with one of {', '.join(NAMES)}, got {fields!r}")
            relevance = _relevance(fields.pop("name"), name)
            return cls(relevance, **checked_fields(cls, fields, name, _NUMBERS))
        return cls(_relevance(value, name))

    @property
    def name(self) -> str:
        """Name of the relevance."""
        return self.relevance if isinstance(self.relevance, str) else type(self.relevance).__name__

    def new_relevance(self, seed: int) -> Relevance:
        """The relevance: the object that was given, or one of the given name with this seed."""
        if not isinstance(self.relevance, str):
            return self.relevance
        made = NAMES[self.relevance]()
        if hasattr(made, "reseed"):
            made.reseed(seed)
        return made

    def to_json(self) -> dict[str, Any]:
        """The short form as a mapping."""
        return {"name": self.name, **{key: getattr(self, key) for key in _NUMBERS}}


def _relevance(value: Any, name: str) -> str | Relevance:
    """A name, an object, or a function as an object."""
    if isinstance(value, str | Relevance):
        return value
    expected = (
        f"{name}: expected one of {', '.join(NAMES)}, a mapping with a name, an object with the method score, or a "
        "function of transitions"
    )
    check_function(expected, value, None)
    return OfFunction(value)
