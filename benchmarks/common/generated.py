"""Generated parts of Markdown pages, between `<!-- generated: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PART = re.compile(r"(<!-- generated: ([\w-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)


def fill(text: str, parts: Mapping[str, str]) -> str:
    """Return a page with its generated parts updated.

    A part that begins on the line of its marker stays on that line; other parts get lines of their own.

    Args:
        text: Text of the page.
        parts: Generated text by name.

    Raises:
        ValueError: If a marker names an unknown part.

    >>> fill("x <!-- generated: a --> old <!-- end --> y", {"a": "new"})
    'x <!-- generated: a --> new <!-- end --> y'
    """

    def replace(match: re.Match[str]) -> str:
        opening, name, before, closing = match.groups()
        if name not in parts:
            raise ValueError(f"generated: expected one of {', '.join(sorted(parts))}, got {name!r}")
        space = "\n\n" if before.startswith("\n") else " "
        body = parts[name].strip().replace(" +- ", " ± ")
        return f"{opening}{space}{body}{space if body else ''}{closing}"

    return _PART.sub(replace, text)


def stale(text: str, parts: Mapping[str, str]) -> list[str]:
    """Names of the parts of a page that are out of date."""
    pairs = zip(_PART.finditer(text), _PART.finditer(fill(text, parts)), strict=True)
    return [old[2] for old, new in pairs if old[0] != new[0]]
