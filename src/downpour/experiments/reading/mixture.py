"""Warns if processes have several numeric classes, because bytes repeat only within one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from downpour.network.rpc.messages import Status

MANAGER = "manager"
_NAMES_MAX = 3
_MIXED = (
    "the workers have different numeric classes, so another run of this spec may give "
    "different bytes:"
)


def mixture_of(who_by_class: Mapping[str, Iterable[str]]) -> str:
    """List the processes of each numeric class if there are several; else return nothing."""
    if len(who_by_class) < 2:
        return ""
    lines = [f"{_listed(list(who))}: {name}" for name, who in who_by_class.items()]
    return "\n  ".join([_MIXED, *lines])


def mixture_now(status: Status) -> str:
    """Return the warning for the current workers, and the manager if they train on its device."""
    who_by_class: dict[str, list[str]] = {}
    classes = [worker.numeric_class for worker in status.workers]
    own = status.numeric_class
    if own is not None and any(one is not None and one.device == own.device for one in classes):
        who_by_class[str(own)] = [MANAGER]
    for worker, its in zip(status.workers, classes, strict=True):
        if its is not None:
            who_by_class.setdefault(str(its), []).append(worker.worker)
    return mixture_of(who_by_class)


def _listed(names: list[str]) -> str:
    rest = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")
