"""Labels of workers."""

from __future__ import annotations

import pytest

from downpour.base.errors import SpecError
from downpour.base.values import checked_labels


def test_labels_are_keys_and_values() -> None:
    """A value may be empty, or hold what it likes."""
    labels = ["rack=3", "gpu.kind=H200 = fast", "spare="]
    assert checked_labels(labels) == tuple(labels)
    assert checked_labels([]) == ()


@pytest.mark.parametrize(
    "labels",
    [["rack"], ["=3"], ["a b=3"], ["a=\x1b[2J"], ["a=" + "x" * 63], ["a=1", "a=2"], ["a=1"] * 17],
)
def test_a_malformed_label_is_refused(labels: list[str]) -> None:
    """Nor may a key come twice, or a hundred of them."""
    with pytest.raises(SpecError, match="label = "):
        checked_labels(labels)
