"""The top of the page: the verdict in words, its reasons, and every check with its threshold."""

from __future__ import annotations

from synther_replay.metrics.report import ColumnFidelity
from synther_replay.metrics.verdict import overall_checks
from synther_replay.report.measures import Measures
from synther_replay.report.remarks import remarks
from synther_replay.report.text import cell, escaped, number, percent, table

_REASONS = 5  # shown at once; the others unfold
_OVERALL = {
    "marginal": "the mean of the marginals",
    "correlation": "the mean of the correlations",
    "pair": "the correlation of a pair of columns",
    "finite": "rows that are not finite",
    "memorisation": "memorisation",
}
_MEANING = (
    "<p class='note'>A marginal compares the distributions of one column: 1 is equal, 0.9 means that somewhere the "
    "shares of smaller values differ by a tenth of the rows. Real against real is the best to expect.</p>"
)


def verdict_section(measures: Measures) -> str:
    """Verdict, reasons, and the table of checks."""
    fidelity = measures.fidelity
    failed = [column for column in fidelity.columns if not column.passed]
    checks = overall_checks(fidelity, measures.thresholds)
    kind, title = ("good", "Passed") if fidelity.passed else ("bad", "Failed")
    words = "No column and no overall score differs from the real rows by more than its threshold."
    if not fidelity.passed:
        parts = [f"{len(failed)} of {len(fidelity.columns)} columns"] if failed else []
        parts += [_OVERALL[name] for name, check in checks.items() if check.severity > 1]
        words = f"Too far from the real rows, by more than chance explains: {', '.join(parts)}."
    return (
        f'<section class="verdict {kind}" id="verdict"><h2><span class="badge {kind}">{title}</span></h2>'
        f"<p>{escaped(words)}</p>{_reasons(list(fidelity.failures))}{_remarks(measures)}{_MEANING}</section>"
        f"{_tiles(measures)}{_checks(measures, failed)}"
    )


def _remarks(measures: Measures) -> str:
    return "".join(f"<p>Not part of the verdict: {escaped(remark)}</p>" for remark in remarks(measures))


def _reasons(failures: list[str]) -> str:
    items = [f"<li>{escaped(reason)}</li>" for reason in failures]
    shown, rest = items[:_REASONS], items[_REASONS:]
    more = f"<details><summary>{len(rest)} more</summary><ul>{''.join(rest)}</ul></details>" if rest else ""
    return f"<ul>{''.join(shown)}</ul>{more}" if shown else ""


def _tiles(measures: Measures) -> str:
    """The main numbers, each with what to compare it with."""
    fidelity = measures.fidelity
    tiles = [
        ("Marginals", f"{fidelity.marginal:.3f}", f"real against real {fidelity.marginal_baseline:.3f}"),
        ("Correlations", _score(fidelity.correlation), f"real against real {_score(fidelity.correlation_baseline)}"),
    ]
    if fidelity.termination_rate_real is not None:
        real = percent(fidelity.termination_rate_real)
        tiles.append(("Terminated", percent(fidelity.termination_rate_synthetic), f"real rows {real}"))
    if fidelity.out_of_bounds is not None:
        real = percent(fidelity.out_of_bounds_baseline)
        tiles.append(("Out of bounds", percent(fidelity.out_of_bounds), f"real rows {real}"))
    if (closest := measures.nearest) is not None:
        tiles.append(("Exact copies", percent(closest.copies), f"other real rows {percent(closest.copies_baseline)}"))
    if (dynamics := measures.dynamics) is not None:
        guess = f"median; a constant guess {number(dynamics.variance_next_observation, 2)}"
        tiles.append(("Dynamics error", number(dynamics.next_observation.synthetic["median"], 2), guess))
    cells = "".join(f"<div><dt>{title}</dt><dd>{value}<small>{note}</small></dd></div>" for title, value, note in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _checks(measures: Measures, failed: list[ColumnFidelity]) -> str:
    """All checks with what they measure and what they allow."""
    fidelity, limits = measures.fidelity, measures.thresholds
    overall = overall_checks(fidelity, limits)
    worst, lines = fidelity.worst, []
    means = (
        ("marginal", fidelity.marginal, fidelity.marginal_baseline, limits.marginal),
        ("correlation", fidelity.correlation, fidelity.correlation_baseline, limits.correlation),
    )
    for name, score, baseline, limit in means:
        result = _result(overall[name].severity, missed=baseline - score > limit)
        lines.append([f"Mean of the {name}s", _score(score), _score(baseline), f"at most {limit:g} less", result])
    allowed = (
        f"at most {limits.column:g} less; {percent(limits.out_of_bounds)} out of bounds; "
        f"in a column of few values {percent(limits.out_of_support)} others"
    )
    missed = any(column.marginal_baseline - column.marginal > limits.column for column in fidelity.columns)
    result = f"{len(failed)} failed" if failed else _result(worst.severity, missed=missed)
    scores = _score(worst.marginal), _score(worst.marginal_baseline)
    lines.append([f"Every column; worst: {escaped(worst.name)}", *scores, allowed, result])
    if (pair := fidelity.worst_pair) is not None:
        title = f"Every pair of columns; worst: {escaped(' and '.join(pair.names))}"
        result = _result(overall["pair"].severity, missed=pair.loss > limits.pair)
        lines.append([title, _score(pair.similarity), _score(pair.baseline), f"at most {limits.pair:g} less", result])
    if fidelity.termination_rate_real is not None:
        rates = percent(fidelity.termination_rate_synthetic), percent(fidelity.termination_rate_real)
        allowed = (
            f"{percent(limits.termination)} of the real rate more or less; at each level of the reward "
            f"{percent(limits.termination_by_reward)} of the rows"
        )
        lines.append(["Terminated rows", *rates, allowed, _result(measures.termination_severity)])
    counts = number(fidelity.rejected_synthetic), number(fidelity.rejected_real)
    allowed = f"{percent(limits.out_of_bounds)} of the rows more"
    lines.append(["Rows with NaN or infinity, left out", *counts, allowed, _result(overall["finite"].severity)])
    if (memory := fidelity.memorisation) is not None:
        allowed = f"at most {percent(limits.memorisation)} of the rows more"
        result = _result(overall["memorisation"].severity, missed=memory.share_closer - 0.5 > limits.memorisation)
        share = percent(memory.share_closer)
        lines.append(["Closer to training than to held-out rows", share, "50 %", allowed, result])
    header = ["check", "synthetic", "real", "allowed", "result"]
    return (
        "<details open><summary>Checks and thresholds</summary>"
        f"{table(header, [_cells(line) for line in lines], kind='checks')}"
        "<p class='note'>Real: two parts of the real rows against each other. A check fails only if the loss also "
        "exceeds what two samples of the same distribution show by chance, with a probability of "
        f"{limits.false_alarm:g} at these numbers of rows.</p></details>"
    )


def _cells(line: list[str]) -> list[str]:
    title, synthetic, real, allowed, result = line
    kind = "bad" if "failed" in result else "good"
    return [cell(title), cell(synthetic, "num"), cell(real, "num"), cell(allowed), cell(result, kind)]


def _result(severity: float, *, missed: bool = False) -> str:
    """What came of a check; `missed`: the threshold is missed, but perhaps by chance."""
    return "failed" if severity > 1 else "within chance" if missed else "passed"


def _score(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
