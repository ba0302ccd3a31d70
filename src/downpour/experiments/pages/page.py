"""One HTML page that needs nothing else: figures and style inside, no network, no script.

The template escapes all text but the SVG of figures, which matplotlib has escaped, and the style's
own colors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downpour.experiments.figures.figures import Part
from downpour.experiments.figures.style import DARK, LIGHT, variables
from downpour.experiments.pages.summary import facts_of
from downpour.experiments.reading.study_result import StudyResult, label
from downpour.experiments.tables.report_tables import setting_of
from downpour.experiments.tables.run_tables import WORKERS_NAME
from downpour.experiments.tables.table import Column, Table

_BESIDE = ("-epochs", "-shards")
"""The endings of the names of tables that stand next to a single experiment's figures."""
_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure for a page: its SVG, what it shows, and the URL of its run's replay, if any."""

    caption: str
    svg: str
    subgrid: str
    part: Part
    live: str = ""


def html_page(study: StudyResult, tables: Sequence[Table], figures: Sequence[Drawn]) -> str:
    """Put a study's tables and figures on a page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = [
        {**dataclasses.asdict(figure), "svg": Markup(figure.svg)}  # noqa: S704
        for figure in figures
    ]
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        study=study,
        headline=_headline(study),
        failures=_failures(study),
        light=Markup(variables(LIGHT)),  # noqa: S704
        dark=Markup(variables(DARK)),  # noqa: S704
        sections=_sections(study, tables, shown),
        timelines=[figure for figure in shown if figure["part"] == "timeline"],
        resources=[figure for figure in shown if figure["part"] == "resources"],
        facts=facts_of(study.subgrids[0].runs[0]) if _is_one_run(study) else [],
        workers=next((table for table in tables if table.name == WORKERS_NAME), None),
        runs=tables[-1],
        fields=_fields(study),
    )


def _sections(
    study: StudyResult, tables: Sequence[Table], figures: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    is_one_run = _is_one_run(study)
    is_titled_already = [subgrid.name for subgrid in study.subgrids] == [study.name]
    sections = []
    for subgrid in study.subgrids:
        own = [table for table in tables if table.subgrid == subgrid.name and table.rows]
        # The page of a single experiment begins with the content of its first table.
        first, *more = own
        beside = [one for one in more if one.name.endswith(_BESIDE)] if is_one_run else []
        sections.append(
            {
                "title": "" if is_titled_already else subgrid.name,
                "first": None if is_one_run else first,
                "beside": beside,
                "more": [one for one in (own if is_one_run else more) if one not in beside],
                "figures": [
                    f for f in figures if f["subgrid"] == subgrid.name and f["part"] == "outcome"
                ],
            }
        )
    return sections


def _is_one_run(study: StudyResult) -> bool:
    return study.is_single and bool(study.subgrids[0].runs)


def _headline(study: StudyResult) -> str:
    if study.is_single:
        run = study.subgrids[0].runs[0] if study.subgrids[0].runs else None
        state = run.result.state if run else "not run yet"
        reason = f": {run.result.reason}" if run and run.result.reason else "."
        return f"One experiment, {state}{reason}"
    repetitions = study.subgrids[0].repetitions
    each = f"{repetitions} repetition{'s' if repetitions > 1 else ''} each"
    headline = f"{study.done} of {study.asked} runs, {each}."
    if repetitions == 1:
        return headline
    return f"{headline} Intervals are 95\u00a0% intervals of the mean, by Student's t."


def _failures(study: StudyResult) -> list[str]:
    """Name the settings of the runs that failed, each run once, with the reason."""
    repetitions: dict[tuple[str, str], list[int]] = {}
    seen: set[str] = set()
    for subgrid in study.subgrids:
        for run in sorted(subgrid.failed, key=lambda run: run.repetition):
            if run.result.experiment not in seen:
                where = ", ".join(filter(None, (subgrid.name, setting_of(subgrid, run.values))))
                why = run.result.reason or run.result.state
                repetitions.setdefault((where, why), []).append(run.repetition)
                seen.add(run.result.experiment)
    return [
        f"{where}, repetition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {why}"
        for (where, why), numbers in repetitions.items()
    ]


def _fields(study: StudyResult) -> Table:
    """List the fields that all specs share, and name the fields that vary."""
    specs = [r.result.spec for subgrid in study.subgrids for r in (*subgrid.runs, *subgrid.failed)]
    names = list(dict.fromkeys(name for spec in specs for name in spec))
    rows = []
    for name in names:
        values = list(dict.fromkeys(label(spec.get(name)) for spec in specs))
        rows.append((name, values[0] if len(values) == 1 else f"varies: {', '.join(values)}"))
    columns = (Column("field", "field"), Column("value", "value"))
    return Table("fields", "The fields of the spec", columns, tuple(rows))
