"""Docstrings as they are written here, made readable for Markdown.

- Doctests and literal blocks (``::``) become code blocks.
- The comment behind a field of a dataclass becomes its description.
- Constructors are described by their class, so their own docstring is left out.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)  # up to the next empty line
_LITERAL = re.compile(r"::(?=\n\n {4})")
_COMMENT = re.compile(r"\s{2}#\s+(.+)$")


class ReadableDocstrings(griffe.Extension):
    """Rewrites docstrings after loading; no source file is changed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Visit every module, class, function and attribute."""
        if obj.name == "__init__":
            obj.docstring = None
        if obj.docstring is not None:
            obj.docstring.value = _readable(obj.docstring.value)
            return
        is_field = obj.is_attribute and obj.parent is not None and "dataclass" in obj.parent.labels
        if is_field and (found := _COMMENT.search("".join(obj.lines))):
            obj.docstring = griffe.Docstring(_sentence(found[1]), parent=obj)


def _readable(text: str) -> str:
    text = _LITERAL.sub(":", text)
    return _DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


def _sentence(comment: str) -> str:
    return comment[0].upper() + comment[1:].rstrip(".") + "."
