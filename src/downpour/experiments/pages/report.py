"""Turns a study into a folder of tables, figures and a page, and replaces an earlier report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from downpour.base.errors import SpecError
from downpour.experiments.figures.export import for_page, to_png, to_svg
from downpour.experiments.figures.figures import Plot, plots_of
from downpour.experiments.pages.live_copy import write_live_copy
from downpour.experiments.pages.page import Drawn, html_page
from downpour.experiments.reading.study_result import StudyResult
from downpour.experiments.tables.report_tables import tables_of
from downpour.experiments.tables.table import Table
from downpour.experiments.tracing.writing import TRACE_NAME
from downpour.files.store.os_errors import explain
from downpour.host.extras import require

PAGE_NAME = "index.html"
GENERATOR = 'name="generator" content="downpour report"'
_TABLES = "tables"
_FIGURES = "figures"

OnProgress = Callable[[int, int], None]


def write_report(study: StudyResult, out: Path, on_progress: OnProgress = lambda *_: None) -> Path:
    """Write the report into a folder and return its page.

    Args:
        study: What to report.
        out: A folder; made if it is missing. Its `tables/`, `figures/` and pages are replaced.
        on_progress: Called with the number of finished figures, and with the number of all.

    Raises:
        MissingPackage: a library of the extra `report` is not installed.
        SpecError: the study has nothing to report yet, or the folder holds something else or cannot
            be written.
        StoreError: a record cannot be read.
    """
    require("a report", "report")
    if not any(subgrid.runs for subgrid in study.subgrids):
        raise SpecError("FOLDER", study.name, "has no finished run to report on")
    _check(out)
    tables, plots, page = tables_of(study), plots_of(study), out / PAGE_NAME
    try:
        for name in (_TABLES, _FIGURES):
            shutil.rmtree(out / name, ignore_errors=True)
            (out / name).mkdir(parents=True)
        for table in tables:
            _write_table(table, out / _TABLES)
        live = write_live_copy(study, out)
        drawn = []
        for done, plot in enumerate(plots):
            on_progress(done, len(plots))
            drawn.append(_draw(plot, out / _FIGURES, live.get(plot.experiment, "")))
        on_progress(len(plots), len(plots))
        page.write_text(html_page(study, tables, drawn), "utf-8")
    except OSError as error:
        raise SpecError("out", str(out), explain(error)) from None
    return page


def _write_table(table: Table, folder: Path) -> None:
    """Write a table in every format."""
    forms = {"md": table.to_markdown(), "csv": table.to_csv(), "json": table.to_json()}
    for suffix, text in forms.items():
        (folder / f"{table.name}.{suffix}").write_text(text, "utf-8")


def _draw(plot: Plot, folder: Path, live: str) -> Drawn:
    """Write a figure in both formats; return it for the page, with the URL of its replay."""
    svg = to_svg(plot.figure, plot.name)
    (folder / f"{plot.name}.svg").write_text(svg, "utf-8")
    (folder / f"{plot.name}.png").write_bytes(to_png(plot.figure))
    return Drawn(plot.caption, for_page(svg), plot.subgrid, plot.part, live)


def _check(out: Path) -> None:
    """Refuse to replace anything but a report; by default, a trace is in the same folder."""
    try:
        others = (file for file in out.iterdir() if file.name != TRACE_NAME)
        if not any(others) or GENERATOR in (out / PAGE_NAME).read_text("utf-8"):
            return
    except FileNotFoundError:
        if not out.exists():
            return
    except (OSError, ValueError) as error:
        reason = explain(error) if isinstance(error, OSError) else "not text"
        raise SpecError("out", str(out), reason) from None
    raise SpecError("out", str(out), "holds something other than a report; choose another folder")
