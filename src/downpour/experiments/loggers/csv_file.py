"""Epochs as rows of a CSV file, which several experiments may share."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from downpour.base.errors import SpecError
from downpour.experiments.loggers.base import LoggedRun, scalars_of
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult
from downpour.files.store.os_errors import explain
from downpour.host.paths import path_of

_KEYS = ["experiment", "epoch", "round"]
Row = dict[str, str]


class CsvFile:
    """Appends a row for each epoch; rows of other experiments stay.

    The first columns are `experiment`, `epoch` and `round`. A resumed experiment keeps the rows of
    earlier experiments, and replaces the rows of rounds that it trains again.

    Args:
        target: The file; made if it is missing.

    Raises:
        SpecError: the target is missing, or the file cannot be used.
    """

    def __init__(self, target: str) -> None:
        if not target:
            raise SpecError("log", "csv", "needs a file: csv:FILE")
        self._path = path_of("log", target)
        self._columns: list[str] = []
        self._read()
        try:
            with self._path.open("a"):
                pass  # check now, because later errors only reach the log
        except OSError as error:
            raise self._refusal(explain(error)) from None

    def begin(self, run: LoggedRun) -> None:
        """Keep the rows that count."""
        self._run = run
        rows = self._read()
        kept = [row for row in rows if not self._is_again(row)]
        if len(kept) < len(rows):
            self._write(kept)

    def log(self, epoch: RoundResult) -> None:
        """Append a row; if it has new columns, add them to all rows."""
        keys = self._run.experiment, epoch.epoch, epoch.round
        scalars = scalars_of(self._run, epoch)
        row = dict(zip(_KEYS, map(str, keys), strict=True))
        row |= {name: f"{value:.10g}" for name, value in scalars.items()}
        rows = self._read()
        if columns := [name for name in row if name not in self._columns]:
            self._columns += columns
            self._write([*rows, row])
        else:
            with self._path.open("a", newline="", encoding="utf-8") as file:
                file.write(self._text([row]))

    def end(self, result: Result) -> None:
        """Leave the file as it is."""

    def _is_again(self, row: Row) -> bool:
        """Whether a row is about a round that this experiment trains again."""
        if row["experiment"] == self._run.experiment:
            return True
        return row["experiment"] in self._run.resumes and int(row["round"]) > (
            self._run.rounds_before
        )

    def _read(self) -> list[Row]:
        """Return all rows, and note the columns."""
        try:
            with self._path.open(newline="", encoding="utf-8") as file:
                table = csv.DictReader(file, strict=True)
                self._columns = list(table.fieldnames or [])
                rows = list(table)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refusal(explain(error)) from None
        except (csv.Error, UnicodeDecodeError):
            raise self._refusal("is not a CSV file") from None
        is_ours = not self._columns or self._columns[: len(_KEYS)] == _KEYS
        if not is_ours or any(not (row["round"] or "").isdecimal() for row in rows):
            raise self._refusal(f"its columns must begin with {', '.join(_KEYS)}; name a new file")
        return rows

    def _write(self, rows: list[Row]) -> None:
        """Replace the whole file; a crash leaves the old file or the new one."""
        header = dict(zip(self._columns, self._columns, strict=True))
        beside = self._path.with_name(f".{self._path.name}.new")
        beside.write_text(self._text([header, *rows]), encoding="utf-8", newline="")
        beside.replace(self._path)

    def _text(self, rows: list[Row]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def _refusal(self, why: str) -> SpecError:
        return SpecError("log", f"csv:{Path(self._path)}", why)
