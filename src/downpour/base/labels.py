"""What users call their workers by, beside names: each label is KEY=VALUE."""

from __future__ import annotations

import re
from collections.abc import Sequence

from downpour.base.errors import SpecError

LABELS_MAX, CHARACTERS_MAX = 16, 64
_LABEL = re.compile(r"[A-Za-z0-9][\w.-]*=.*")


def checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return labels if they are valid.

    Raises:
        SpecError: there are too many, two have a key, or one is not KEY=VALUE, short and printable.
    """
    if len(labels) > LABELS_MAX:
        raise SpecError("label", len(labels), f"there may be {LABELS_MAX} of them")
    for label in labels:
        fits = label.isprintable() and len(label) <= CHARACTERS_MAX
        if not fits or not _LABEL.fullmatch(label):
            accepted = f"must be KEY=VALUE, {CHARACTERS_MAX} printable characters at most"
            raise SpecError("label", label, accepted)
    keys = [label.partition("=")[0] for label in labels]
    for key in keys:
        if keys.count(key) > 1:
            raise SpecError("label", key, "is given twice")
    return tuple(labels)
