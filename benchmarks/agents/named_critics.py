"""Critics by name: hyper-parameters that differ from the plain critic of the REDQ code base."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from synther_replay.benchmarks.agents.sac import Hyperparameters

PLAIN = "plain"
CRITICS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "layernorm": {"layer_norm": True},
    "features": {"feature_norm": True},
    "cautious": {"layer_norm": True, "critics": 4, "target_critics": 4},
    "wary": {"layer_norm": True, "caution": 1.0},
    "ensemble": {"layer_norm": True, "critics": 10},
    "residual": {"blocks": 2, "weight_decay": 1e-2, "learning_rate": 1e-4, "normalise_observations": True},
}
_OPTIONS = [field.name for field in fields(Hyperparameters) if field.name != "updates"]


def critic_options(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of the critic `name`, with some of them changed.

    Raises:
        ValueError: There is no such critic, or no such hyper-parameter; the message has similar names.
    """
    if name not in CRITICS:
        raise ValueError(f"critic: unknown critic {name!r}; {_hint(name, CRITICS)}")
    for option in changes:
        if option not in _OPTIONS:
            raise ValueError(f"agent: unknown option {option!r}; {_hint(option, _OPTIONS)}")
    return {**CRITICS[name], **changes}


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {', '.join(near)}?" if near else f"expected one of {', '.join(known)}"
