"""Critics by name: hyper-parameters that differ from the plain critic of the REDQ code base; agents in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from synther_replay.benchmarks.agents.sac import Hyperparameters

PLAIN = "plain"
CRITICS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "four": {"critics": 4, "target_critics": 4},
    "layernorm": {"layer_norm": True},
    "pair": {"layer_norm": True, "alternating": True},
    "steady": {
        "layer_norm": True,
        "alternating": True,
        "bounded": True,
        "normalise_observations": True,
        "temperature": 0.01,
        "reset_at": 12_500,
        "reset_share": 0.5,
    },
    "features": {"feature_norm": True},
    "cautious": {"layer_norm": True, "critics": 4, "target_critics": 4},
    "wary": {"layer_norm": True, "max_caution": 1.0},
    "ensemble": {"layer_norm": True, "critics": 10},
    "residual": {"blocks": 2, "weight_decay": 1e-2, "learning_rate": 1e-4, "normalise_observations": True},
}
_DEFAULTS = asdict(Hyperparameters())
_OPTIONS = [name for name in _DEFAULTS if name != "updates"]
_WORDS = {
    "critics": "{} critics",
    "target_critics": "minimum of {}",
    "temperature": "temperature from {}",
    "temperature_rate": "temperature's rate {}",
    "weight_decay": "weight decay {}",
    "learning_rate": "learning rate {}",
    "gamma": "discount {}",
    "reset_at": "resets from step {}",
    "reset_share": "by {:.0%} each",
    "alternating": "every second without layer norm",
    "bounded": "bounded",  # True, as below
    "normalise_observations": "normalised",  # True: without it an agent lacks an option of the critics that have it
}


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


def agent_in_words(options: Mapping[str, Any]) -> str:
    """The critic whose options an agent has, the one with the most, and what else differs from the defaults.

    Args:
        options: Hyper-parameters of the agent. They may have names that `Hyperparameters` no longer has.
    """
    chosen = {**_DEFAULTS, **options}
    name = max((name for name, own in CRITICS.items() if own.items() <= chosen.items()), key=lambda n: len(CRITICS[n]))
    usual = {**_DEFAULTS, **CRITICS[name]}
    changes = {option: value for option, value in options.items() if option not in usual or value != usual[option]}
    words = [text.format(changes.pop(option)) for option, text in _WORDS.items() if option in changes]
    return ", ".join((name, *words, *(f"{option}={value}" for option, value in sorted(changes.items()))))


def place_of(agent: str) -> int:
    """Place in a table of an agent in words: that of its critic in `CRITICS`."""
    return list(CRITICS).index(agent.partition(",")[0])


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {', '.join(near)}?" if near else f"expected one of {', '.join(known)}"
