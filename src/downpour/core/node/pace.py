"""How often a worker sends a heartbeat: the shorter its task, the more often.

A manager notices a straggler only by its heartbeats. With one report per second, a task of three
seconds has three. A shard on a worker with a quarter of the speed is then late before a policy can
act. A worker that is idle, or at a long task, keeps to the manager's interval, so that the
heartbeats of many workers cost no more than before. With more than some hundreds of workers, the
manager's answer sets a minimum interval.
"""

from __future__ import annotations

# We measured one heartbeat per second: five rounds of 3 s, with one of eight workers at a quarter
# of its speed. The target accuracy then took 1.18 times as long as without a straggler.
_BEATS_A_TASK = 20
# A minimum, because every heartbeat is an event for the manager's one thread.
_SHORTEST_SECONDS = 0.1


def until_next_beat(
    usual_seconds: float, task_seconds: float | None, least_seconds: float = 0.0
) -> float:
    """Return the seconds until a worker's next heartbeat.

    Args:
        usual_seconds: the interval that the manager wants.
        task_seconds: the expected length of the worker's task, or its time so far; None if the
            worker is idle.
        least_seconds: the manager's minimum when many workers send heartbeats.
    """
    wanted = usual_seconds
    if task_seconds is not None:
        wanted = min(usual_seconds, max(_SHORTEST_SECONDS, task_seconds / _BEATS_A_TASK))
    return max(least_seconds, wanted)
