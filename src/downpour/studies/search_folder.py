"""The folder of a search's results, and the only place that spells what lies in it.

    tune.toml        what was asked for, resolved; itself a file that can be run
    trials/0001/     spec.toml, record.jsonl and summary.json of one trial
    best.toml        the spec of the best trial that has finished
    search.png, .svg the figure of the search
    run.lock         held by whoever runs the search (`lock.py`)
    log.txt          what a detached run had to say
    request.json     what a manager elsewhere is training (`submission.py`)

A trial's folder appears whole, by renaming, once the trial has ended: finished, pruned or failed.
It is all that a search remembers, so what was cut off costs that trial alone. One that failed
through no fault of its values is run again with the same, and replaced. A folder that holds
anything else is refused, and left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from downpour.errors import SpecError
from downpour.reports.tuned import Trial, TrialState, Tuned
from downpour.runtime.record import RECORD_NAME
from downpour.store.trouble import explain
from downpour.studies.grid import Cell
from downpour.studies.lock import HOLD_NAMES
from downpour.studies.run_folder import (
    keep,
    kept_in,
    make_folder,
    read_kept,
    read_spec_kept,
    read_summary,
    refusal,
    remove_unfinished,
    replace_file,
    stranger,
)
from downpour.studies.search import Search
from downpour.studies.submission import REQUEST_NAME
from downpour.studies.summary import Summary
from downpour.values import FailureKind

TUNE_NAME = "tune.toml"
BEST_NAME = "best.toml"
FIGURE_STEM = "search"
_FIGURES = f"{FIGURE_STEM}.png", f"{FIGURE_STEM}.svg"
_TRIALS = "trials"
_STATES: dict[str, TrialState] = {
    "finished": "finished",
    "cancelled": "pruned",
    "failed": "failed",
}
_BAD_LUCK = {FailureKind.LOST, FailureKind.STORE}
"""What ends attempts whatever is trained: workers that die, files that cannot be read."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the results of one search lie.

    Raises:
        SpecError: from everything that reads: what lies there does not belong to the search, or is
            not whole; from everything that writes: the folder cannot be written.
    """

    path: Path
    search: Search

    @property
    def asked(self) -> Path:
        """The file of what was asked for, which is there once the folder was begun."""
        return self.path / TUNE_NAME

    @property
    def request(self) -> Path:
        """The file in which it is written down what a manager elsewhere is training."""
        return self.path / REQUEST_NAME

    def check(self) -> None:
        """See that the folder can take this search's results; changes nothing.

        It can where it is missing or empty, where it holds trials of this search, or none of one of
        this name; each trial is looked at in full.
        """
        try:
            others = {p.name for p in self.path.iterdir() if not p.name.startswith(".")}
        except FileNotFoundError:
            return
        except OSError as error:
            raise refusal(self.path, explain(error)) from None
        if not others - set(HOLD_NAMES):
            return
        before = self._before()
        trials = kept_in(self.path / _TRIALS)
        if before.name != self.search.name or (trials and not before.is_continued_by(self.search)):
            raise refusal(self.path, "holds another search; choose another folder")
        for trial in self.tuned().trials:
            read_kept(self._place(trial.number), self.search.workers)

    def make(self) -> None:
        """Make the folder where it is missing."""
        make_folder(self.path)

    def begin(self) -> None:
        """Write down the search and remove what was cut off; only for who holds the folder."""
        try:
            (self.path / _TRIALS).mkdir(exist_ok=True)
            replace_file(self.asked, self.search.to_toml().encode())
            remove_unfinished(self.path / _TRIALS)
        except OSError as error:
            raise refusal(self.path, explain(error)) from None

    def keep(self, number: int, cell: Cell, record: bytes, summary: Summary) -> Trial:
        """Keep what a trial came to; whole, or not at all."""
        keep(self._place(number), cell.spec, record, summary)
        return self._trial(number)

    def missing(self) -> list[int]:
        """Return the numbers of the trials that have not ended, or are to be repeated."""
        ended = {trial.number for trial in self.tuned().trials if not trial.to_repeat}
        return [number for number in range(1, self.search.trials + 1) if number not in ended]

    def tuned(self) -> Tuned:
        """Read all trials that have ended."""
        return Tuned(
            name=self.search.name,
            fields=self.search.shown,
            asked=self.search.trials,
            trials=tuple(map(self._trial, self._numbers())),
        )

    def records(self) -> list[Path]:
        """Name the records of the trials that have ended, each in a folder of its trial's name."""
        return [self.record(number) for number in self._numbers()]

    def record(self, number: int) -> Path:
        """Name the record of a trial, which is there once it has ended."""
        return self._place(number) / RECORD_NAME

    def draw(self) -> None:
        """Draw the search as far as it has come, if some trial has an accuracy."""
        from downpour.reports.drawing import to_png, to_svg
        from downpour.reports.search_figure import search_figure

        tuned = self.tuned()
        if all(trial.accuracy is None for trial in tuned.trials):
            return
        figure = search_figure(tuned)
        contents = to_png(figure), to_svg(figure, FIGURE_STEM).encode()
        try:
            for name, content in zip(_FIGURES, contents, strict=True):
                replace_file(self.path / name, content)
        except OSError as error:
            raise refusal(self.path, explain(error)) from None

    def files(self) -> list[Path]:
        """Name the files of what came of it, as far as they are there: best spec and figure."""
        return [path for name in (BEST_NAME, *_FIGURES) if (path := self.path / name).exists()]

    @property
    def best(self) -> Path:
        """The file of the best trial's spec, which is there once one has finished."""
        return self.path / BEST_NAME

    def crown(self, trial: Trial) -> None:
        """Write down the spec of the best trial."""
        spec = read_spec_kept(self._place(trial.number))
        try:
            replace_file(self.best, spec.to_toml().encode())
        except OSError as error:
            raise refusal(self.path, explain(error)) from None

    def _before(self) -> Search:
        try:
            return Search.from_toml(self.asked.read_text("utf-8"))
        except FileNotFoundError:
            raise refusal(self.path, f"is not empty, and has no {TUNE_NAME}") from None
        except (OSError, ValueError) as error:
            raise refusal(self.path, f"{TUNE_NAME} cannot be read: {error}") from None
        except SpecError as error:
            raise refusal(self.path, f"{TUNE_NAME} is not what was written: {error}") from None

    def _numbers(self) -> list[int]:
        names = kept_in(self.path / _TRIALS)
        if strange := [n for n in names if not n.isdecimal() or n != self._place(int(n)).name]:
            raise refusal(self.path / _TRIALS / strange[0], "is no trial")
        return sorted(map(int, names))

    def _place(self, number: int) -> Path:
        return self.path / _TRIALS / f"{number:04d}"

    def _trial(self, number: int) -> Trial:
        """Read a trial's files, and see that they tell of a trial of this search."""
        place = self._place(number)
        spec, summary = read_spec_kept(place), read_summary(place)
        values = self.search.values_of(spec)
        if not self.search.has(values) or self.search.cell(values).spec != spec:
            raise stranger(place)
        if summary.state not in _STATES:
            raise refusal(place, f"has not ended: {summary.state}")
        return Trial(
            number=number,
            values=values,
            state=_STATES[summary.state],
            reason=summary.reason,
            accuracy=summary.accuracy,
            epoch_accuracy=summary.epoch_accuracy,
            train_seconds=summary.train_seconds,
            wall_seconds=summary.wall_seconds,
            experiment=summary.experiment,
            to_repeat=summary.state == "failed" and summary.failure in _BAD_LUCK,
        )
