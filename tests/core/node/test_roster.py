"""The names of registered workers, and which failed call shows that one is dead."""

from __future__ import annotations

from downpour.core.node.manager import Registry


def test_two_processes_of_one_name_are_told_apart() -> None:
    """The first process keeps the name; one that registers again keeps its own."""
    registry = Registry[object]()
    first, second, again = object(), object(), object()
    assert registry.enter("ann", 1, first) == ("ann", None)
    assert registry.enter("ann", 2, second) == ("ann-2", None)
    assert registry.enter("ann", 2, again) == ("ann-2", second)
    assert registry.names() == ("ann", "ann-2")
    assert registry.get("ann-2") is again


def test_a_failed_call_says_something_of_the_registration_that_it_was_made_for() -> None:
    """The worker may have registered anew meanwhile, or have left."""
    registry = Registry[object]()
    former, entry = object(), object()
    registry.enter("ann", 1, former)
    assert registry.is_dead("ann", former)
    assert not registry.is_dead("ann", former, refused=False)
    registry.enter("ann", 1, entry)
    assert not registry.is_dead("ann", former)
    assert registry.remove("ann") is entry
    assert registry.remove("ann") is None
    assert not registry.is_dead("ann", entry)
