"""Numbers and names as HTML text."""

from __future__ import annotations

import html
import json
import math
from typing import Any

from synther_replay.metrics.report import percent

__all__ = ["cell", "escaped", "json_for_script", "number", "percent", "table"]


def escaped(value: object) -> str:
    """Text that is safe in HTML, in attributes too."""
    return html.escape(str(value), quote=True)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: 1,234 or 0.0123; a dash for none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def cell(text: str, kind: str = "") -> str:
    """One cell of a table; `text` is HTML."""
    return f'<td class="{kind}">{text}</td>' if kind else f"<td>{text}</td>"


def table(header: list[str], lines: list[list[str]], *, kind: str = "") -> str:
    """A table that scrolls by itself where the page is narrow; the cells are HTML."""
    head = "".join(f"<th>{title}</th>" for title in header)
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def json_for_script(value: Any) -> str:
    """JSON that no text in it can end the script element of: ``<`` becomes an escape."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
