"""The lives of tasks, workers and experiments, as tables.

A *task* is pending until a worker is asked to train it. While it runs others may be asked as well,
and may drop out again; it can come back (the last attempt failed, its worker went away) or be
published. A published update may still be refused, when its file turns out to be unusable; then
the task is pending again. An applied one is past recall, and so is one that was dropped, because
the round was closed without it. Late answers are welcome: an attempt that was given up may still
publish its task. Once an update was refused, those made before may not: what they brought in the
meantime is removed already.

A *worker* is idle or busy with exactly one attempt, until it is gone. It never comes back from
there; who registers again begins a new life. Whatever ends an attempt, be it an answer, a failure
or a cancellation, makes its worker idle in the same step. Only one that still works at something
which it should not is stuck, until it works at nothing any more. One that only the journal knows is
awaited: it keeps what it held, and is asked for nothing, until it registers with this manager.

An *experiment* waits for its turn, is prepared, runs and ends, once.

A step that is not in its table raises `IllegalTransition` with the steps that led there.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.errors import IllegalTransition

Table = Mapping[tuple[str, str], str]

TASK: Table = {
    ("pending", "assign"): "running",
    ("pending", "publish"): "published",
    ("running", "assign"): "running",
    ("running", "lose"): "running",
    ("running", "publish"): "published",
    ("running", "give-up"): "pending",
    ("published", "refuse"): "pending",
    ("published", "apply"): "applied",
    ("pending", "drop"): "dropped",
    ("running", "drop"): "dropped",
}

WORKER: Table = {
    ("awaited", "register"): "busy",
    ("awaited", "go"): "gone",
    ("idle", "assign"): "busy",
    ("busy", "release"): "idle",
    ("idle", "stick"): "stuck",
    ("busy", "stick"): "stuck",
    ("stuck", "release"): "idle",
    ("idle", "go"): "gone",
    ("busy", "go"): "gone",
    ("stuck", "go"): "gone",
}

EXPERIMENT: Table = {
    ("waiting", "activate"): "preparing",
    ("preparing", "start"): "running",
    ("running", "finish"): "finished",
    ("waiting", "cancel"): "cancelled",
    ("preparing", "cancel"): "cancelled",
    ("running", "cancel"): "cancelled",
    ("preparing", "fail"): "failed",
    ("running", "fail"): "failed",
}

_STORY_LENGTH = 32


class Lifecycle:
    """A state that moves by a table, and remembers its last steps."""

    __slots__ = ("_story", "_table", "state", "who")

    def __init__(self, who: str, table: Table, state: str) -> None:
        self.who = who
        self.state = state
        self._table = table
        self._story: tuple[str, ...] = (state,)

    def step(self, name: str) -> None:
        """Take a step; raises IllegalTransition where the table does not have it."""
        after = self._table.get((self.state, name))
        if after is None:
            raise IllegalTransition(self.who, self.state, name, self._story)
        self._story = (*self._story[1 - _STORY_LENGTH :], f"{name} → {after}")
        self.state = after

    def may(self, name: str) -> bool:
        """Say whether the table has this step from here."""
        return (self.state, name) in self._table
