"""The top of the page: the verdict in words, its reasons, and every check with its threshold."""

from __future__ import annotations

from synther_replay.metrics.report import ColumnFidelity
from synther_replay.metrics.verdict import overall_checks
from synther_replay.report.measures import Measures
from synther_replay.report.text import cell, escaped, number, percent, table

_REASONS = 5  # shown at once; the others unfold


def verdict_section(measures: Measures) -> str:
    """Verdict, reasons, and the table of checks."""
    fidelity = measures.fidelity
    failed = [column for column in fidelity.columns if not column.passed]
    overall = {name for name, check in overall_checks(fidelity, measures.thresholds).items() if check.severity > 1}
    if fidelity.passed:
        title = "Passed"
        words = "No column and no overall score differs from the real rows by more than its threshold."
    else:
        title = "Failed"
        parts = []
        if failed:
            verb = "differs" if len(failed) == 1 else "differ"
            parts.append(f"{len(failed)} of {len(fidelity.columns)} columns {verb} from the real rows")
        if overall:
            parts.append(f"{len(overall)} overall {'check' if len(overall) == 1 else 'checks'} failed")
        words = f"{' and '.join(parts)}, by more than the threshold and by more than chance explains."
    kind = "good" if fidelity.passed else "bad"
    return (
        f'<section class="verdict {kind}" id="verdict"><h2><span class="badge {kind}">{title}</span></h2>'
        f"<p>{escaped(words)}</p>{_reasons(list(fidelity.failures))}</section>"
        f"{_tiles(measures)}{_checks(measures, failed)}"
    )


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
        error = dynamics.next_observation
        real = f"median; real rows {number(error.real['median'], 2)}"
        tiles.append(("Dynamics error", number(error.synthetic["median"], 2), real))
    cells = "".join(f"<div><dt>{title}</dt><dd>{value}<small>{note}</small></dd></div>" for title, value, note in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _checks(measures: Measures, failed: list[ColumnFidelity]) -> str:
    """All checks with what they measure and what they allow."""
    fidelity, limits = measures.fidelity, measures.thresholds
    found = {name: check.severity for name, check in overall_checks(fidelity, limits).items()}
    worst = fidelity.worst
    lines = [
        _line(
            "Mean of the marginals",
            f"{fidelity.marginal:.3f}",
            f"{fidelity.marginal_baseline:.3f}",
            f"at most {limits.marginal:g} less",
            found["marginal"],
        ),
        _line(
            "Mean of the correlations",
            _score(fidelity.correlation),
            _score(fidelity.correlation_baseline),
            f"at most {limits.correlation:g} less",
            found["correlation"],
        ),
        _line(
            f"Every column; worst: {escaped(worst.name)}",
            f"{worst.marginal:.3f}",
            f"{worst.marginal_baseline:.3f}",
            f"at most {limits.column:g} less; {percent(limits.out_of_bounds)} out of bounds; in a column of few values "
            f"{percent(limits.out_of_support)} others",
            worst.severity,
            f"{len(failed)} failed" if failed else "",
        ),
    ]
    if fidelity.termination_rate_real is not None:
        lines.append(
            _line(
                "Terminated rows",
                percent(fidelity.termination_rate_synthetic),
                percent(fidelity.termination_rate_real),
                f"{percent(limits.termination)} of the real rate; {percent(limits.termination_by_reward)} of the rows "
                "at each level of the reward",
                measures.termination_severity,
            )
        )
    rejected = fidelity.rejected_synthetic, fidelity.rejected_real
    lines.append(
        _line(
            "Rows with NaN or infinity, left out",
            *map(number, rejected),
            f"{percent(limits.out_of_bounds)} of the rows more",
            found["finite"],
        )
    )
    if (memory := fidelity.memorisation) is not None:
        lines.append(
            _line(
                "Closer to training than to held-out rows",
                percent(memory.share_closer),
                "50 %",
                f"at most {percent(limits.memorisation)} of the rows more",
                found["memorisation"],
            )
        )
    chance = (
        f"<p class='note'>A check fails only if the loss also exceeds what two samples of the same distribution show "
        f"with a probability of {limits.false_alarm:g}.</p>"
    )
    header = ["check", "synthetic", "real", "allowed", "result"]
    return (
        f"<details class='checks' open><summary>Checks and thresholds</summary>{table(header, lines)}{chance}</details>"
    )


def _line(title: str, synthetic: str, real: str, allowed: str, severity: float, note: str = "") -> list[str]:
    kind = "bad" if severity > 1 else "good"
    result = note or ("failed" if severity > 1 else "passed")
    return [cell(title), cell(synthetic, "num"), cell(real, "num"), cell(allowed), cell(result, kind)]


def _score(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
