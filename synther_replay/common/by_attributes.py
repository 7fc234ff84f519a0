"""ByAttributes: isinstance with a protocol, decided by the attributes that an object answers with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from abc import ABCMeta as ProtocolMeta
else:
    ProtocolMeta = type(Protocol)


class ByAttributes(ProtocolMeta):
    """Metaclass of protocols that hold for an object whose ``__getattr__`` passes their methods on, too.

    From Python 3.12 on, isinstance with a protocol does not ask ``__getattr__``: a wrapper around a generator would be
    no generator. Before, it did.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        """Return whether an object is an instance, or has all members of the protocol; a class has them for others."""
        if isinstance(instance, type):
            return False
        if super().__instancecheck__(instance):
            return True
        members = vars(cls).get("__protocol_attrs__", ())  # since Python 3.12; classes that are no protocols have none
        return bool(members) and all(getattr(instance, member, None) is not None for member in members)
