"""`easgd`: each shard keeps its own parameters; the model is the center that they share.

Asynchronous EASGD (Zhang, Choromanska, LeCun 2015, "Deep learning with Elastic Averaging SGD",
alg. 1). When a shard with parameters x meets the center c, both move by the same distance:

    e = a (x - c)        c ← c + e        x ← x - e

a is `beta` over the number of shards, as in the paper. The manager publishes the shard's x beside
the version, as the base of the shard's next task. So attempts, snapshots and hand-overs work as in
any other mode. The paper's communication period is the number of steps in a task.
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
