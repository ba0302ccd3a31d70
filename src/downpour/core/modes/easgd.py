"""`easgd`: each shard keeps its own parameters, besides the center, which is the model.

Asynchronous EASGD (Zhang, Choromanska, LeCun 2015, "Deep learning with Elastic Averaging SGD",
alg. 1). When a shard with parameters x meets the center c, both move by the same distance:

    e = a (x - c)        c ← c + e        x ← x - e

a is `beta` over the number of shards, as in the paper. The shard's next task begins from its own x,
which the manager publishes beside the version: it is the task's base. So attempts, snapshots and
hand-over need to know nothing of it. The paper's communication period is the steps of a task.
"""

from __future__ import annotations

from downpour.base.errors import SpecError
from downpour.core.modes.base import Mode, ModeKind, Options
from downpour.core.modes.staleness import number


def _make(options: Options, shards: int) -> Mode:
    beta = number(options, "beta")
    if not 0 < beta <= 1:
        raise SpecError("mode_options.beta", beta, "must be above 0 and at most 1")
    return Mode(together=1, ahead=None, weight=lambda _: beta / shards, mixes=True, elastic=True)


EASGD = ModeKind(make=_make, options={"beta": 0.9})
