"""Labels: how users group workers, and which groups an experiment needs.

A label is KEY=VALUE. A need is KEY=VALUE, or just KEY for any value; a worker's labels must contain
it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from downpour.base.errors import SpecError

LABELS_MAX, CHARACTERS_MAX = 16, 64
_KEY = r"[A-Za-z0-9][\w.-]*"
_LABEL = re.compile(f"{_KEY}=.*")
_NEED = re.compile(f"{_KEY}(=.+)?")


def checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return labels if they are valid.

    Raises:
        SpecError: there are too many, two have the same key, or one is not a short, printable
            KEY=VALUE.
    """
    if len(labels) > LABELS_MAX:
        raise SpecError("label", len(labels), f"at most {LABELS_MAX} labels are possible")
    for label in labels:
        fits = label.isprintable() and len(label) <= CHARACTERS_MAX
        if not fits or not _LABEL.fullmatch(label):
            accepted = f"must be KEY=VALUE, at most {CHARACTERS_MAX} printable characters"
            raise SpecError("label", label, accepted)
    keys = [label.partition("=")[0] for label in labels]
    for key in keys:
        if keys.count(key) > 1:
            raise SpecError("label", key, "is given twice")
    return tuple(labels)


def merged(labels: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
    """Merge labels; if two have the same key, the later one counts."""
    return tuple({label.partition("=")[0]: label for label in (*labels, *own)}.values())


def checked_need(text: str) -> str:
    """Return a need if it is valid.

    Raises:
        ValueError: it is not KEY or KEY=VALUE, short and printable.
    """
    if not (text.isprintable() and len(text) <= CHARACTERS_MAX and _NEED.fullmatch(text)):
        raise ValueError(text)
    return text


def has(labels: Collection[str], need: str) -> bool:
    """Say whether labels meet a need."""
    if "=" in need:
        return need in labels
    return any(label.startswith(f"{need}=") for label in labels)


def missing(labels: Collection[str], needs: Iterable[str]) -> tuple[str, ...]:
    """Return the needs that labels do not meet."""
    return tuple(need for need in needs if not has(labels, need))
