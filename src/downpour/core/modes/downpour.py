"""`downpour`: every update becomes a version at once (Downpour SGD, Dean et al. 2012, sec. 4.1).

A worker fetches the newest version when a task begins, and pushes its step when the task ends. So
the paper's `n_fetch` and `n_push` are both the number of steps in a task, which `meet` sets. The
outer optimizer is the server's optimizer: SGD, or Adagrad as in the paper.
"""

from __future__ import annotations

from downpour.core.modes.base import Mode, ModeKind, Options
from downpour.core.modes.staleness import STALENESS, STEP, staleness_of, step_of


def _make(options: Options, shards: int) -> Mode:
    step, weight = step_of(options, shards), staleness_of(options)
    return Mode(together=1, ahead=None, weight=lambda staleness: step * weight(staleness))


DOWNPOUR = ModeKind(make=_make, options={**STEP, **STALENESS})
