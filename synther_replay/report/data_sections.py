"""Sections about the rows as a whole, from correlations to cost and settings."""

from __future__ import annotations

from collections.abc import Mapping

from synther_replay.report.charts import HEAT_MAP_COLUMNS, heat_map_columns
from synther_replay.report.comparison import Comparison
from synther_replay.report.measures import Measures
from synther_replay.report.nearest import QUERIES
from synther_replay.report.projection import POINTS
from synther_replay.report.text import cell, escaped, number, percent, table

_MISMATCH = 1e-3  # median squared error of real rows above which they are probably not rows of the simulator
_LEVELS = 32


def correlation_section(measures: Measures) -> str:
    """Heat maps, and the pairs that differ most."""
    chosen = heat_map_columns(measures)
    if not chosen:
        return ""
    note = ""
    if len(chosen) < len(measures.fidelity.columns):
        note = " Constant columns are left out."
    if note and len(chosen) == HEAT_MAP_COLUMNS:
        note = f" The {len(chosen)} columns with the largest differences, of {len(measures.fidelity.columns)}."
    charts = "".join(
        f"<figure><figcaption>{title}</figcaption>"
        f'<div class="chart square" id="chart-correlation_{name}"></div></figure>'
        for name, title in (("real", "Real"), ("synthetic", "Synthetic"), ("difference", "Synthetic minus real"))
    )
    return (
        '<section id="correlations"><h2>Correlations</h2>'
        f"<p>How columns vary together, by Pearson's correlation.{note}</p>"
        f'<div class="three">{charts}</div>{_pairs(measures)}</section>'
    )


def _pairs(measures: Measures, count: int = 5) -> str:
    real, synthetic = measures.correlation_real, measures.correlation_synthetic
    difference = (synthetic - real).nan_to_num().abs().triu(diagonal=1)
    best = difference.flatten().topk(min(count, difference.numel())).indices.tolist()
    dim, names = len(real), [column.name for column in measures.fidelity.columns]
    lines = [
        [
            cell(f"{escaped(names[place // dim])} and {escaped(names[place % dim])}"),
            cell(f"{float(real.flatten()[place]):.2f}", "num"),
            cell(f"{float(synthetic.flatten()[place]):.2f}", "num"),
        ]
        for place in best
        if difference.flatten()[place] > 0
    ]
    return table(["pairs that differ most", "real", "synthetic"], lines) if lines else ""


def projection_section(measures: Measures) -> str:
    """Points of both sets on the plane of the real rows, and where they are more or less frequent."""
    plane = measures.projection
    if plane is None:
        return ""
    return (
        '<section id="projection"><h2>Projection</h2>'
        f"<p>The first two principal components of the standardised real rows. Synthetic rows reach the cells of "
        f"{percent(plane.covered)} of the real rows; other real rows, those of {percent(plane.covered_baseline)}.</p>"
        '<div class="two"><figure><figcaption>Rows</figcaption><div class="chart square" id="chart-projection"></div>'
        f'<p class="note">At most {POINTS:,} rows of each set, drawn with seed {measures.seed}.</p></figure>'
        '<figure><figcaption>Coverage</figcaption><div class="chart square" id="chart-coverage"></div>'
        '<p class="note">All rows. Blue: too few synthetic rows; red: too many.</p></figure></div>'
        "</section>"
    )


def outcome_section(measures: Measures) -> str:
    """Reward levels, termination rates, and values out of bounds."""
    fidelity = measures.fidelity
    if fidelity.termination_rate_real is None:
        return ""
    rates = percent(fidelity.termination_rate_real), percent(fidelity.termination_rate_synthetic)
    text = f"<p>The task ended the episode in {rates[0]} of the real rows and {rates[1]} of the synthetic ones.</p>"
    lines = [
        [
            cell(f"{level.value:g}", "num"),
            *(cell(percent(share), "num") for share in (level.share_real, level.share_synthetic)),
            *(cell(percent(share), "num") for share in (level.terminated_real, level.terminated_synthetic)),
        ]
        for level in fidelity.reward_levels[:_LEVELS]
    ]
    header = ["reward", "real rows", "synthetic rows", "terminated, real", "terminated, synthetic"]
    levels = table(header, lines) if lines else "<p>The reward has many values: see its column.</p>"
    outside = [
        [
            cell(escaped(column.name)),
            *(cell(percent(share), "num") for share in (column.out_of_bounds, column.out_of_bounds_baseline)),
        ]
        for column in sorted(fidelity.columns, key=lambda column: -(column.out_of_bounds or 0))[:10]
        if column.out_of_bounds
    ]
    bounds = (
        f"<p>{percent(fidelity.out_of_bounds)} of the synthetic rows have a value that the spaces do not allow "
        f"({percent(fidelity.out_of_bounds_baseline)} of the real rows), and {percent(fidelity.out_of_range)} one "
        "beyond the smallest or largest real value.</p>"
    )
    worst = table(["column", "synthetic", "real"], outside) if outside else ""
    return (
        f'<section id="outcomes"><h2>Rewards and terminations</h2>{text}{levels}</section>'
        f'<section id="bounds"><h2>Out of bounds</h2>{bounds}{worst}</section>'
    )


def nearest_section(measures: Measures) -> str:
    """Distances to the nearest real row."""
    closest = measures.nearest
    if closest is None:
        return ""
    memory = closest.memorisation
    other = "held-out real rows" if closest.held_out else "other real rows"
    text = (
        f"<p>The median distance of a synthetic row to the nearest real row is {number(memory.synthetic_distance)} "
        f"standard deviations, that of {other} {number(memory.held_out_distance)}. {percent(closest.copies)} of the "
        f"synthetic rows equal a real row ({other}: {percent(closest.copies_baseline)}); {percent(closest.near)} are "
        f"closer to one than 99 % of the {other} are (1 % by chance).</p>"
    )
    if closest.held_out:
        text += (
            f"<p>{percent(memory.share_closer)} of the synthetic rows are closer to the training rows than to as many "
            "held-out ones. Without memorisation it is 50 %.</p>"
        )
    else:
        text += "<p>A verdict on memorisation needs real rows that the generator was not trained on (held_out).</p>"
    note = (
        f'<p class="note">{min(QUERIES, measures.fidelity.rows_synthetic):,} synthetic rows, drawn with seed '
        f"{measures.seed}, against {closest.records:,} real ones.</p>"
    )
    chart = '<div class="chart" id="chart-nearest"></div>'
    return f'<section id="nearest"><h2>Copies of real rows</h2>{text}{chart}{note}</section>'


def dynamics_section(measures: Measures) -> str:
    """Errors against the simulator."""
    found = measures.dynamics
    if found is None:
        return ""
    error = found.next_observation
    header = ["median squared error", "synthetic", "real", "of a constant guess"]
    lines = [
        [
            cell(title),
            *(cell(number(share, 2), "num") for share in (part.synthetic["median"], part.real["median"], guess)),
        ]
        for title, part, guess in (
            ("next observation, mean over columns", error, found.variance_next_observation),
            ("reward", found.reward, found.variance_reward),
        )
    ]
    warning = ""
    if error.real["median"] > _MISMATCH:
        warning = (
            "<p class='bad'>The real rows do not agree with this simulator, so its errors say little: are they rows of "
            "another task or version, or are the actions scaled?</p>"
        )
    return (
        f'<section id="dynamics"><h2>Dynamics of {escaped(found.simulator)}</h2>'
        f"<p>Every row is put into the simulator, which takes one step.</p>{table(header, lines)}{warning}"
        '<div class="two"><div class="chart" id="chart-dynamics"></div>'
        '<div class="chart" id="chart-dynamics_reward"></div></div>'
        f'<p class="note">{sum(error.rows):,} evenly spaced rows of both sets; the simulator could not answer '
        f"{found.unanswered:,} more.</p></section>"
    )


def critic_section(measures: Measures) -> str:
    """Values and TD errors."""
    if not measures.critics:
        return ""
    titles = {"value": "Value of the observation", "td_error": "TD error"}
    lines = [_quantiles(titles[name], compared) for name, compared in measures.critics.items()]
    header = ["median (5 % to 95 %)", "real", "synthetic"]
    places = "".join(f'<div class="chart" id="chart-{name}"></div>' for name in measures.critics)
    return (
        '<section id="critics"><h2>Value and TD error</h2><p>By the critic that was given.</p>'
        f'{table(header, lines)}<div class="two">{places}</div></section>'
    )


def _quantiles(title: str, compared: Comparison) -> list[str]:
    spans = [
        f"{number(part['median'])} ({number(part['p05'])} to {number(part['p95'])})"
        for part in (compared.real, compared.synthetic)
    ]
    return [cell(title), *(cell(span, "num") for span in spans)]


def settings_section(settings: Mapping[str, Mapping[str, str]], measures: Measures) -> str:
    """Cost and settings as they were given, and how the rows were compared."""
    groups = {**settings, "This report": {"seed": str(measures.seed), **_sizes(measures)}}
    tables = "".join(
        f"<h3>{escaped(title)}</h3>"
        + table(["", ""], [[cell(escaped(name)), cell(escaped(value))] for name, value in group.items()], kind="plain")
        for title, group in groups.items()
    )
    return f'<section id="settings"><h2>Cost and settings</h2>{tables}</section>'


def _sizes(measures: Measures) -> dict[str, str]:
    fidelity = measures.fidelity
    sizes = {"real rows": fidelity.rows_real, "synthetic rows": fidelity.rows_synthetic}
    return {name: f"{count:,}" for name, count in (sizes | {"columns": len(fidelity.columns)}).items()}
