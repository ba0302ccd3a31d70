"""Folds the lines of a record into the tables that the page draws; pure.

Every row knows the line that changed it last, so `since` can tell what has changed after any line.
"""

import math
from typing import Any

from downpour.base.states import BLAMELESS, ExperimentState
from downpour.core.spec import Meetings
from downpour.record import record_lines as told
from downpour.record.result_parts import NOT_VERIFIED, first_of
from downpour.record.rows import state_of
from downpour.record.tables import Tables
from downpour.record.timeline import decision
from downpour.record.view import dated
from downpour.show.dashboard.columns import Fields, RowTable
from downpour.show.dashboard.results import Results, WorkerTable
from downpour.show.dashboard.rounds import Rounds, Task

Frame = dict[str, Any]
DECISIONS_MAX = 20_000
_WAITED_SHARE = 0.2
"""The share of a round's time below which a wait is not worth a line."""
_CLOCK_SECONDS = 0.02
"""Smaller errors of the clock are not worth reporting."""
_LATEST_COUNTS = told.ForeseenLine, told.PhaseLine, told.SavedLine, told.ResourcesUsedLine
"""Lines of which the page keeps only the last one, so its tables lack them."""
_STEPPING = {"sync", "k-sync"}


class RecordTables:
    """The tables of one experiment. In rows, rounds count from 1 and times from its submission."""

    def __init__(self) -> None:
        self.line = 0
        self.state: str = ExperimentState.WAITING
        """Its state; "paused" if a user paused it."""
        self._start: float | None = None
        self.last_at = 0.0
        """The time of the last line, in seconds since the experiment's submission."""
        self._about: dict[str, Any] = {}
        self._about_line = 0
        self._shard_classes: tuple[tuple[int, ...], ...] = ()
        self._unknown: dict[str, None] = {}
        self._meetings = Meetings(0)
        self._workers = WorkerTable()
        self._tables = Tables()
        self._verified: bool | None = None
        self._rounds = Rounds(self._tables, self._stopped)
        self._results = Results()
        self._decisions: RowTable[int] = RowTable(DECISIONS_MAX)
        self._decided = 0

    def take(self, fields: Fields) -> None:
        """Fold the next line; it counts even if this refuses it."""
        self.line += 1
        try:
            at, line = dated(fields)
        except ValueError as error:
            raise ValueError(f"line {self.line} is not a fact of an experiment") from error
        if self._start is None or isinstance(line, told.SubmittedLine):
            self._start = at
        self.last_at = round(at - self._start, 3)
        if line is not None:
            self._take(self.last_at, line)
        elif fields["kind"] not in self._unknown and len(self._unknown) < 10:
            self._unknown[fields["kind"][:40]] = None
            self._about_line = self.line

    def set_clock(self, begins: float) -> None:
        """Set where the record's clock begins, in seconds of unix time."""
        start = begins + self.start
        # Without its first line, which may be damaged, a record does not say when it starts.
        known = self._about.get("start", math.inf)
        if self._about and abs(start - known) >= _CLOCK_SECONDS:
            self._about["start"] = round(start, 3)
            self._about_line = self.line

    def since(self, after: int, upto: int) -> Frame:
        """Return what changed after line `after`, up to line `upto`, which is the frame's `seq`.

        If a later line has changed a row again, we leave the row out; it comes with that line.
        """
        attempts, ends, forecasts = self._rounds.attempts.since(after, upto)
        tables = {
            "workers": list(self._workers.since(after, upto)),
            "attempts": attempts,
            "ends": ends,
            "forecasts": forecasts,
            "rounds": self._rounds.rows.since(after, upto),
            "versions": self._results.versions.since(after, upto),
            "evaluations": self._results.evaluations.since(after, upto),
            "decisions": self._decisions.since(after, upto),
        }
        frame: Frame = {"seq": upto}
        # A new viewer must know from the first frame on which experiment it looks at.
        if self._about and (after == 0 or after < self._about_line <= upto):
            frame["experiment"] = self.about()
        if upto > after:
            frame["totals"] = self.totals()
        return frame | {name: rows for name, rows in tables.items() if rows}

    def about(self) -> dict[str, Any]:
        """Return the facts about the experiment as a whole."""
        warnings = [*self._about.get("warnings", ())]
        if self._tables.verified is False:
            warnings.append(NOT_VERIFIED)
        if unknown := ", ".join(self._unknown):
            warnings.append(f"lines that this version does not know are left out: {unknown}")
        return {
            **self._about,
            "state": str(self.state),
            "metrics": self._results.measures(),
            "splits": bool(self._shard_classes),
            "warnings": warnings,
        }

    def totals(self) -> dict[str, Any]:
        """Return the sums; the remaining seconds count from `last_line_at`."""
        rounds, left = self._rounds, None
        in_step = (self._about.get("mode") or "sync") in _STEPPING and not self._results.has_parts
        if self.state == ExperimentState.RUNNING:
            left = rounds.times.left(self._meetings.rounds, self.last_at)
        return {
            "bytes_read": self._results.bytes_read,
            "bytes_written": self._results.bytes_written,
            "queue": rounds.waiting(in_step=in_step) if self._tables.ended is None else 0,
            "left": left and dict(zip(("q10", "q50", "q90"), left, strict=True)),
            "last_line_at": self.last_at,
        }

    def summary(self, experiment: str, changed_at: float) -> dict[str, Any]:
        """Sum up the experiment for a list, as far as its record was folded.

        `experiment` is its ID in the list, `changed_at` its record's last change in unix time.
        """
        done, rounds = self._rounds.reached, self._meetings.rounds
        if self.state == ExperimentState.FINISHED and not self._about.get("reason"):
            done = rounds
        last = self._results.last
        best = first_of(last.metrics, last.loss) if last else None
        return {
            "id": experiment,
            "name": self._about.get("name", experiment),
            "state": str(self.state),
            "rounds_done": done,
            "rounds": rounds,
            "measure": {"words": best[0].words, "text": best[0].text(best[1])} if best else None,
            "changed_at": round(changed_at, 3),
            "running": self.state in {ExperimentState.PREPARING, ExperimentState.RUNNING},
        }

    @property
    def start(self) -> float:
        """When the user submitted the experiment, by the record's clock."""
        return self._start or 0.0

    def splits(self) -> dict[str, Any] | None:
        """Return how many examples of each class each shard has; None if we don't know."""
        counts = self._shard_classes
        if not counts:
            return None
        names = [str(number) for number in range(max(map(len, counts)))]
        return {"classes": names, "shards": [list(shard) for shard in counts]}

    def _take(self, at: float, line: told.RecordLine) -> None:  # noqa: C901, PLR0912 - an arm a line
        if not isinstance(line, _LATEST_COUNTS):
            self._tables.take(at, line)
            is_paused = self._tables.paused and self._tables.ended is None
            state = "paused" if is_paused else state_of(self._tables)
            if state != self.state:
                self.state, self._about_line = state, self.line
        match line:
            case told.ForeseenLine():
                self._foresee(line, line.elapsed_seconds, line.done)
            case told.AssignedLine():
                self._assigned(at, line)
            case told.PhaseLine():
                self._workers.works(line, self.line)
            case told.SavedLine():
                self._results.bytes_written += line.bytes
            case told.UpdatedLine():
                self._updated(at, line)
            case told.WithheldLine():
                self._rounds.ended(at, line, self.line)
            case told.ResourcesUsedLine():
                self._workers.used(line, self.line)
            case told.AttemptFailedLine():
                self._attempt_failed(at, line)
            case told.SubmittedLine():
                self._submitted(line)
            case told.PreparedLine():
                self._prepared(line)
            case told.WorkerJoinedLine() | told.WorkerLeftLine():
                self._worker(at, line)
            case told.AggregatedLine():
                self._aggregated(at, line)
            case told.EvaluatedLine():
                self._evaluated(at, line)
            case told.FinishedLine() | told.FailedLine() | told.CancelledLine():
                self._ended(at, line)
                self._decided_in(at, line)
            case _:
                self._decided_in(at, line)

    def _decided_in(self, at: float, line: told.RecordLine) -> None:
        made = decision(line)
        if made is not None:
            attempt = (
                self._rounds.number_of(_task(line)) if isinstance(line, told.AttemptLine) else None
            )
            self._decide(at, made.kind, str(made), attempt)

    def _assigned(self, at: float, line: told.AssignedLine) -> None:
        worker = self._workers.named(line.worker)
        attempt, is_copy = self._rounds.assigned(at, line, worker.number, self.line)
        self._foresee(line, 0.0, 0.0)
        self._workers.began(worker.number, attempt, self.line)
        self._results.began()
        if is_copy:
            where = f"round {line.round + 1} shard {line.shard}"
            self._decide(at, "copy", f"{where} also to {line.worker}: {line.reason}", attempt)

    def _foresee(
        self, line: told.AssignedLine | told.ForeseenLine, elapsed: float, done: float
    ) -> None:
        low, middle, high = line.q10_seconds, line.q50_seconds, line.q90_seconds
        if low is not None and middle is not None and high is not None:
            forecast = elapsed, done, low, middle, high
            self._rounds.foreseen(_task(line), forecast, self.line)

    def _updated(self, at: float, line: told.UpdatedLine) -> None:
        worker = self._workers.named(line.worker)
        worker.trained(line, self.line)
        self._rounds.ended(at, line, self.line)
        self._results.updated(line.bytes)
        if line.trial and self._tables.verified is not self._verified:
            self._verified, self._about_line = self._tables.verified, self.line

    def _attempt_failed(self, at: float, line: told.AttemptFailedLine) -> None:
        attempt = self._rounds.ended(at, line, self.line)
        if line.failure not in BLAMELESS:
            where = f"{line.worker} failed at round {line.round + 1} shard {line.shard}"
            self._decide(at, "fail", f"{where}: {line.failure}: {line.reason}", attempt)

    def _submitted(self, line: told.SubmittedLine) -> None:
        spec = line.spec
        self._about |= {
            "id": line.experiment,
            "name": line.name,
            "reason": None,
            "start": self._start,
            "ended_at": None,
            "mode": spec.get("mode", "sync"),
            "policy": spec.get("policy"),
            "aggregator": spec.get("aggregate"),
            "splitter": spec.get("split"),
            "shards": line.shards,
            "dataset": spec.get("dataset"),
            "warnings": [],
        }
        self._count_meetings()
        self._about_line = self.line

    def _count_meetings(self) -> None:
        """Say how rounds make up epochs, which may be open until the shards are cut."""
        meetings = self._meetings = self._tables.meetings
        self._about |= {
            "rounds": meetings.rounds,
            "rounds_before": meetings.before,
            "epochs": meetings.epochs_in_all,
            "rounds_per_epoch": meetings.each,
        }

    def _prepared(self, line: told.PreparedLine) -> None:
        warnings = [*line.warnings, *line.remarks]
        self._about |= {"parameters": line.parameters, "warnings": warnings}
        self._count_meetings()
        self._shard_classes = line.shard_classes
        self._verified = self._tables.verified
        self._results.prepared(line.bytes)
        self._about_line = self.line

    def _worker(self, at: float, line: told.WorkerJoinedLine | told.WorkerLeftLine) -> None:
        worker = self._workers.named(line.worker)
        worker.changed = self.line
        if isinstance(line, told.WorkerJoinedLine):
            worker.state, worker.joined, worker.left = "idle", at, None
            worker.doing = ""  # another manager reports only what it saw begin
            worker.numeric_class = line.class_for(self._tables.spec.get("device"))
            worker.address = line.address
            if self.state == ExperimentState.RUNNING:
                self._decide(at, "worker", f"{line.worker} joined", None)
            return
        worker.state, worker.left = "lost" if line.lost else "left", at
        how = "was lost" if line.lost else "left"
        self._decide(at, "worker", f"{line.worker} {how}: {line.reason}", None)

    def _aggregated(self, at: float, line: told.AggregatedLine) -> None:
        waited = self._rounds.aggregated(at, line, self.line)
        self._results.aggregated(at, line, self.line)
        if waited is not None and waited.seconds >= _WAITED_SHARE * waited.training_seconds > 0:
            value = self._rounds.attempts.value
            name = self._workers.at(value(waited.attempt, "worker")).name
            shard = value(waited.attempt, "shard")
            said = f"round {line.round + 1} waited {waited.seconds:.1f} s for shard {shard}"
            self._decide(at, "wait", f"{said} at {name}", waited.attempt)

    def _evaluated(self, at: float, line: told.EvaluatedLine) -> None:
        known = len(self._results.metrics)
        self._results.evaluated(at, line, self.line)
        if len(self._results.metrics) > known:
            self._about_line = self.line

    def _ended(self, at: float, line: told.EndLine) -> None:
        self._about |= {"ended_at": at, "reason": line.reason or None}
        self._rounds.stop_all(at, self.line)
        self._about_line = self.line

    def _decide(self, at: float, kind: str, said: str, attempt: int | None) -> None:
        self._decided += 1
        self._decisions.put(self._decided, (self._decided, at, kind, said, attempt), self.line)

    def _stopped(self, attempt: int, line: int) -> None:
        self._workers.stopped(self._rounds.attempts.value(attempt, "worker"), attempt, line)


def _task(line: told.AttemptLine) -> Task:
    return line.round, line.shard, line.attempt
