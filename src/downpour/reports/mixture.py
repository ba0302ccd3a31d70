"""Who computes how, where not all compute alike: bytes repeat within one numeric class only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from downpour.rpc.messages import Status

MANAGER = "manager"
_NAMES_MAX = 3
_MIXED = "not all compute alike, so another run of this spec may give other bytes:"


def mixture_of(who_by_class: Mapping[str, Iterable[str]]) -> str:
    """Say who computes how, where there is more than one numeric class; else nothing."""
    if len(who_by_class) < 2:
        return ""
    told = [f"{_listed(list(who))}: {name}" for name, who in who_by_class.items()]
    return "\n  ".join([_MIXED, *told])


def mixture_now(status: Status) -> str:
    """Say so of the workers that are there, and of the manager where they train on its device."""
    found: dict[str, list[str]] = {}
    classes = [worker.numeric_class for worker in status.workers]
    own = status.numeric_class
    if own is not None and any(one is not None and one.device == own.device for one in classes):
        found[str(own)] = [MANAGER]
    for worker, its in zip(status.workers, classes, strict=True):
        if its is not None:
            found.setdefault(str(its), []).append(worker.worker)
    return mixture_of(found)


def _listed(names: list[str]) -> str:
    rest = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")
