"""Frames of experiments that never ran: as many workers and rounds as a test asks for."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

Row = list[Any]
FrameDict = dict[str, Any]
START = 1_790_000_000.0
_CLASSES = 10


@dataclass(slots=True)
class MadeRun:
    """The rows of a run, by table, in order of time; `frames` packs them."""

    workers: int
    rounds: int
    names: list[str]
    seed: int = 1
    task_seconds: float = 10.0
    name: str = "digits by class"
    metrics_words: str = "test accuracy"
    rows: dict[str, list[Row]] = field(default_factory=dict)
    at: float = 2.0

    def _add(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)

    def build(self, *, open_round: bool = False) -> MadeRun:
        """Make every row: rounds follow each other, and the last one may still go on."""
        draw = random.Random(self.seed)
        speeds = [draw.uniform(0.8, 1.2) for _ in range(self.workers)]
        if self.workers > 3:
            speeds[2] = 0.35
        for number in range(1, self.rounds + 1):
            self._round(number, draw, speeds, still_open=open_round and number == self.rounds)
        for worker, name in enumerate(self.names):
            state = "training" if open_round else "idle"
            speed = 180.0 * speeds[worker]
            row = [worker, name, state, 0.2 * (worker % 9), None, "x86_64 torch 2.9"]
            self._add("workers", [*row, self.rounds, speed, 0.9, 3.1e8, f"10.0.0.{worker % 250}"])
        return self

    def _round(
        self, number: int, draw: random.Random, speeds: list[float], *, still_open: bool
    ) -> None:
        begin, ends = self.at, []
        for worker in range(self.workers):
            i = len(self.rows.get("attempts", []))
            seconds = self.task_seconds / speeds[worker] * draw.uniform(0.92, 1.1)
            row = [i, worker, number, worker, 0, round(begin + 0.02 * (worker % 10), 3), 0]
            self._add("attempts", row)
            quantiles = [seconds * share for share in (0.9, 1.0, 1.25)]
            self._add("forecasts", [i, 0.0, 0.0, *quantiles])
            ends.append((begin + seconds, i, worker))
        slowest = max(ends)
        if still_open:
            for end, i, _ in ends:
                if end < begin + 0.8 * self.task_seconds:
                    self._add("ends", [i, round(end, 3), "trained"])
            self._add("rounds", [number, begin, None])
            self.at = begin + 0.9 * self.task_seconds
            return
        self._close(number, begin, ends, slowest, draw)

    def _close(
        self,
        number: int,
        begin: float,
        ends: list[tuple[float, int, int]],
        slowest: tuple[float, int, int],
        draw: random.Random,
    ) -> None:
        last = slowest[0]
        for each in ends:
            end, i, worker = each
            outcome = "last" if each == slowest else "trained"
            if self.workers > 3 and outcome == "last":
                outcome, end, last = self._hand_over(number, begin, ends, slowest)
            if draw.random() < 0.002 or (self.workers < 100 and number == 3 and worker == 1):
                outcome = "failed"
            self._add("ends", [i, round(end, 3), outcome])
        second = max(end for end, i, _ in ends if i != slowest[1]) if len(ends) > 1 else last
        closed = max(second, last) + 0.3
        self._add("rounds", [number, begin, round(closed, 3)])
        loss, accuracy = 2.2 * 0.93**number, 1 - 0.8 * 0.95**number
        self._add("versions", [number, round(closed + 0.2, 3), number, loss, [0, 0, 0]])
        by_class = [min(1.0, accuracy + 0.02 * (place - 5) / 5) for place in range(_CLASSES)]
        metrics = {"accuracy": accuracy}
        self._add(
            "evaluations",
            [number, "test", closed + 0.5, loss * 1.1, metrics, by_class, 4_000_000 * number],
        )
        self.at = round(closed + 0.3, 3)

    def _hand_over(
        self,
        number: int,
        begin: float,
        ends: list[tuple[float, int, int]],
        slowest: tuple[float, int, int],
    ) -> tuple[str, float, float]:
        (end, _, worker), (free, _, helper) = slowest, min(ends)
        asked = max(free, begin + 1.1 * self.task_seconds)
        if asked >= end:
            return "last", end, end
        other = len(self.rows["attempts"])
        self._add("attempts", [other, helper, number, worker, 1, round(asked + 0.2, 3), 40])
        done = round(asked + 0.5 * self.task_seconds, 3)
        self._add("ends", [other, done, "last"])
        text = (
            f"shard {worker} goes on with {self.names[helper]}: {self.names[worker]} "
            f"would need 14.2 s more, {self.names[helper]} 5.1 s"
        )
        self._add("decisions", [number, round(asked, 3), "hand-over", text, other])
        return "moved", asked + 0.1, done

    def experiment(self, *, running: bool) -> dict[str, Any]:
        """Return the object that says what is run."""
        return {
            "id": "20260101-digits-ab12", "name": self.name, "reason": None, "start": START,
            "state": "running" if running else "finished",
            "ended_at": None if running else self.at, "mode": "average", "policy": "handoff",
            "aggregator": "mean", "splitter": "class", "shards": self.workers,
            "rounds": self.rounds, "epochs": self.rounds, "rounds_per_epoch": 1,
            "parameters": 421_642, "dataset": "mnist", "warnings": [], "splits": True,
            "metrics": [{"name": "accuracy", "words": self.metrics_words, "percent": True}],
        }  # fmt: skip

    def frames(self, *, running: bool = False, rows_most: int = 20_000) -> list[FrameDict]:
        """Pack the rows into frames of at most so many rows, the first one with everything else."""
        parts: list[FrameDict] = [{}]
        room = rows_most
        tables = ("workers", "rounds", "versions", "evaluations", "decisions", "attempts", "ends")
        for table in (*tables, "forecasts"):
            for row in self.rows.get(table, []):
                if room == 0:
                    parts.append({})
                    room = rows_most
                parts[-1].setdefault(table, []).append(row)
                room -= 1
        totals = {
            "bytes_read": 51_200_000, "bytes_written": 48_100_000, "queue": 0,
            "left": {"q10": 40.0, "q50": 55.0, "q90": 80.0} if running else None,
            "last_line_at": self.at,
        }  # fmt: skip
        parts[0] |= {"experiment": self.experiment(running=running), "totals": totals}
        return [
            {"seq": place + 1, "clock": START + self.at, **part} for place, part in enumerate(parts)
        ]


def made_run(workers: int, rounds: int, *, open_round: bool = False, **options: Any) -> MadeRun:
    """Return a run of workers with plain names."""
    names = options.pop("names", None) or [f"worker-{place + 1}" for place in range(workers)]
    return MadeRun(workers, rounds, names, **options).build(open_round=open_round)
