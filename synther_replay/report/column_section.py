"""Columns, worst first: cards of the worst, one large chart, and a table of all."""

from __future__ import annotations

from synther_replay.metrics.report import ColumnFidelity
from synther_replay.report.charts import sparkline
from synther_replay.report.measures import Measures
from synther_replay.report.text import cell, escaped, percent, table

CARDS = 12


def worst_first(measures: Measures) -> list[int]:
    """Numbers of the columns, the worst against its threshold first; equal ones in the order of the row."""
    columns = measures.fidelity.columns
    return sorted(range(len(columns)), key=lambda place: (-columns[place].severity, columns[place].marginal))


def column_section(measures: Measures) -> str:
    """Cards, chart and table."""
    order, columns = worst_first(measures), measures.fidelity.columns
    cards = "".join(_card(place, columns[place], measures) for place in order[:CARDS])
    options = "".join(f'<option value="{place}">{escaped(columns[place].name)}</option>' for place in order)
    return (
        '<section id="columns"><h2>Columns, worst first</h2>'
        f"<p>{_legend()} Choose a column to see it large.</p>"
        f'<div class="cards">{cards}</div>'
        '<div class="panel"><p class="pick"><label>Column <select id="pick">'
        f"{options}</select></label> "
        '<button type="button" id="previous">previous</button> <button type="button" id="next">next</button></p>'
        '<p id="reason" class="note"></p><div class="chart" id="chart-column"></div>'
        "<p class='note'>Share of the rows in each bin; the outermost bins include everything beyond. The band, or the "
        "bar, lies between two random parts of the real rows: a difference of its size is chance.</p></div>"
        f"{_table(measures, order)}</section>"
    )


def _legend() -> str:
    return '<span class="key area"></span> real <span class="key line"></span> synthetic.'


def _breakable(name: str) -> str:
    return escaped(name).replace("[", "<wbr>[")


def _card(place: int, column: ColumnFidelity, measures: Measures) -> str:
    kind = "good" if column.passed else "bad"
    loss = column.marginal - column.marginal_baseline
    return (
        f'<button type="button" class="card {kind}" data-column="{place}"><strong>{_breakable(column.name)}</strong>'
        f"{sparkline(measures.histograms[place])}"
        f"<small>{column.marginal:.3f} <span class='{kind}'>({loss:+.3f})</span></small></button>"
    )


def _table(measures: Measures, order: list[int]) -> str:
    lines = []
    for place in order:
        column = measures.fidelity.columns[place]
        reason = "passed" if column.failure is None else column.failure.removeprefix(f"{column.name}: ")
        lines.append(
            [
                cell(f'<button type="button" class="link" data-column="{place}">{escaped(column.name)}</button>'),
                cell(f"{column.marginal:.3f}", "num"),
                cell(f"{column.marginal_baseline:.3f}", "num"),
                cell(percent(column.out_of_bounds), "num"),
                cell(percent(column.out_of_range), "num"),
                cell(escaped(reason), "good" if column.passed else "bad"),
            ]
        )
    header = ["column", "marginal", "real against real", "out of bounds", "out of range", "verdict"]
    return (
        f"<details><summary>All {len(order)} columns</summary>"
        '<p><label>Find <input type="search" id="find" autocomplete="off"></label></p>'
        f"{table(header, lines, kind='all')}"
        "<p class='note'>The marginal is 1 minus the Kolmogorov-Smirnov statistic: 1 is perfect. Out of bounds: not "
        "allowed by the space. Out of range: beyond the smallest and largest real value.</p></details>"
    )
