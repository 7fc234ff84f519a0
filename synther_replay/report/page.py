"""Page: all sections, style, script and data in one file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from synther_replay.report.charts import charts, column_chart
from synther_replay.report.column_section import column_section
from synther_replay.report.data_sections import (
    correlation_section,
    critic_section,
    dynamics_section,
    nearest_section,
    outcome_section,
    projection_section,
    settings_section,
)
from synther_replay.report.measures import Measures
from synther_replay.report.text import escaped, json_for_script
from synther_replay.report.verdict_section import verdict_section

INSTALL = "the quality report needs plotly: pip install 'synther-replay[report]'"


def page(measures: Measures, title: str, settings: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page as HTML.

    Raises:
        ImportError: Plotly is not installed.
    """
    fidelity = measures.fidelity
    packed, library_hash = _plotly()
    script = "\n".join(_file(name) for name in ("draw.js", "page.js"))
    # Only these two scripts may run, and nothing may be loaded: a name that were not escaped could still do no harm.
    allowed = f"'sha256-{_sha256(script)}' 'sha256-{library_hash}'"
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    data = {
        "charts": charts(measures),
        "columns": [
            column_chart(histogram, column.name) | {"reason": column.failure or f"{column.name}: passed"}
            for histogram, column in zip(measures.histograms, fidelity.columns, strict=True)
        ],
    }
    sizes = f"{fidelity.rows_synthetic:,} synthetic rows against {fidelity.rows_real:,} real ones"
    sections = [
        verdict_section(measures),
        column_section(measures),
        correlation_section(measures),
        projection_section(measures),
        outcome_section(measures),
        nearest_section(measures),
        dynamics_section(measures),
        critic_section(measures),
        settings_section(settings, measures),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escaped(title)}</title>'
        f"<style>\n{_file('page.css')}</style></head>\n<body><main><header><h1>{escaped(title)}</h1>"
        f"<p>{sizes}, {len(fidelity.columns)} columns.</p></header>\n"
        + "\n".join([sections[0], _contents(sections), *sections[1:]])
        + f'\n</main><script type="application/json" id="data">{json_for_script(data)}</script>\n'
        f'<script type="text/plain" id="plotly">{packed}</script>\n<script>{script}</script></body></html>\n'
    )


def _contents(sections: list[str]) -> str:
    """Links to the sections that are there."""
    found = re.findall(r'<section id="(\w+)"><h2>(.*?)</h2>', "".join(sections))
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in found)
    return f'<nav aria-label="Sections">{links}</nav>'


@cache
def _plotly() -> tuple[str, str]:
    """Plotly's script, compressed, and its hash.

    Plotly is the library that people know for this. Its full script is 4.8 MB, which the page unpacks from 2 MB.
    Its smaller bundles are not in the Python package, and Vega comes to Python in a package of 33 MB.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(INSTALL) from error
    source = get_plotlyjs().replace("\r\n", "\n")  # as the browser hashes it
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode(), _sha256(source)


@cache
def _file(name: str) -> str:
    return resources.files("synther_replay.report").joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
