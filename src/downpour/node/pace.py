"""How often a worker says that it lives: the shorter its task, the more often.

A straggler is relieved only after it was noticed, and it is noticed only when it is heard of. A
worker that reports once a second is heard of three times in a task of three seconds; then a shard
on a worker with a quarter of its speed is late before anything can be done about it. A worker that
is idle, or at a long task, keeps to the manager's interval, so that many of them cost no more.
"""

from __future__ import annotations

_BEATS_A_TASK = 20
_SHORTEST_SECONDS = 0.1


def until_next_beat(usual_seconds: float, task_seconds: float | None) -> float:
    """Return the seconds until a worker's next heartbeat.

    Args:
        usual_seconds: the interval that the manager wants.
        task_seconds: how long the worker's task takes, as far as that is known, or has taken yet;
            None where it has none.
    """
    if task_seconds is None:
        return usual_seconds
    return min(usual_seconds, max(_SHORTEST_SECONDS, task_seconds / _BEATS_A_TASK))
