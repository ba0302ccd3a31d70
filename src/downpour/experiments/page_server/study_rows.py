"""A grid or a search as one table: a row per run, with its settings and results."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from downpour.base.errors import DownpourError
from downpour.experiments.page_server.place import ResultsPlace
from downpour.experiments.studies.run_folder import read_spec, read_summary
from downpour.experiments.studies.summary import RunSummary

_ALWAYS = ("run", "state", "epochs", "result", "seconds")


def study_table(place: ResultsPlace, name: str) -> dict[str, Any] | None:
    """Return the ended runs of a study as a table; None if the study does not exist.

    Its columns are the spec's fields in which the runs differ, and the outcome of each run. We
    leave out runs whose files cannot be read.

    Raises:
        SharedDirectoryError: the folder cannot be listed.
    """
    if name not in place.studies():
        return None
    runs: list[tuple[str, dict[str, Any], RunSummary]] = []
    for found in place.runs_of(name):
        with suppress(DownpourError):
            summary = read_summary(found.folder)
            fields = read_spec(found.folder).model_dump(mode="json")
            runs.append((found.experiment, fields, summary))
    varied = _varied([fields for _, fields, _ in runs])
    rows = [
        [
            experiment.rpartition(":")[2],
            *(_cell(fields.get(field)) for field in varied),
            str(summary.state),
            len(summary.epochs),
            summary.in_words or None,
            round(summary.total_seconds, 1),
        ]
        for experiment, fields, summary in runs
    ]
    columns = [_ALWAYS[0], *varied, *_ALWAYS[1:]]
    return {"name": name, "columns": columns, "rows": rows, "runs": [one for one, _, _ in runs]}


def _varied(specs: list[dict[str, Any]]) -> list[str]:
    """Return the fields in which specs differ; names and code are no settings."""
    fields = dict.fromkeys(field for spec in specs for field in spec)
    return [
        field
        for field in fields
        if field not in {"name", "code"} and any(s.get(field) != specs[0].get(field) for s in specs)
    ]


def _cell(value: Any) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, str | int | float) else str(value)
