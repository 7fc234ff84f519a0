"""Parts of a buffer whose states a checkpoint holds."""

from __future__ import annotations

from synther_replay.protocols import Stateful


def stateful(part: object, name: str) -> Stateful:
    """Return the part if it has `state_dict` and `load_state_dict`, else raise TypeError."""
    if not isinstance(part, Stateful):
        raise TypeError(
            f"{name}: {type(part).__name__} cannot be saved, it lacks state_dict and load_state_dict"
            + ("; use include_real=False and save it separately" if name == "real" else "")
        )
    return part
