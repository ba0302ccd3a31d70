"""Names of devices, and the device that serves a request, on any machine."""

from __future__ import annotations

import pytest

from downpour.base.errors import SpecError
from downpour.base.names import Devices, check_device, trained_on
from downpour.core.spec import Spec

BARE = Devices()
TWO_CARDS = Devices({"cuda": 2})
APPLE = Devices({"mps": 1})


@pytest.mark.parametrize(
    "name", ["cpu", "cuda", "cuda:0", "cuda:12", "mps", "xpu", "xpu:1", "auto"]
)
def test_a_spec_and_a_worker_take_what_people_type(name: str) -> None:
    """The names are torch's, and `auto`."""
    check_device(name)
    assert Spec.from_toml(Spec(device=name).to_toml()).device == name


@pytest.mark.parametrize(
    "name",
    ["", "gpu", "CUDA", "cuda:", "cuda:01", "cuda:-1", "cuda:100", "cpu:0", "mps:0", "auto:1"],
)
def test_an_unknown_device_is_refused_alike_everywhere(name: str) -> None:
    """A spec and a worker's option say the same."""
    with pytest.raises(SpecError) as of_option:
        check_device(name)
    with pytest.raises(SpecError) as of_spec:
        Spec(device=name)
    assert str(of_option.value) == str(of_spec.value)
    assert "must be cpu, cuda, mps, xpu or auto" in str(of_option.value)


@pytest.mark.parametrize(
    ("here", "best"), [(BARE, "cpu"), (TWO_CARDS, "cuda"), (APPLE, "mps")], ids=str
)
def test_auto_is_the_best_that_a_machine_has(here: Devices, best: str) -> None:
    """An accelerator where there is one."""
    assert here.chosen("auto") == here.nearest("auto") == best


@pytest.mark.parametrize(
    ("here", "asked"),
    [(BARE, "cpu"), (TWO_CARDS, "cpu"), (TWO_CARDS, "cuda"), (TWO_CARDS, "cuda:1"), (APPLE, "mps")],
    ids=str,
)
def test_a_machine_gives_what_it_has(here: Devices, asked: str) -> None:
    """Under the name that was asked for."""
    assert here.chosen(asked) == here.nearest(asked) == asked


@pytest.mark.parametrize(
    ("here", "asked", "has", "instead"),
    [
        (BARE, "cuda", "cpu", "cpu"),
        (BARE, "cuda:1", "cpu", "cpu"),
        (TWO_CARDS, "cuda:2", "cpu, cuda:0, cuda:1", "cuda"),
        (TWO_CARDS, "mps", "cpu, cuda:0, cuda:1", "cpu"),
        (APPLE, "xpu:0", "cpu, mps", "cpu"),
    ],
    ids=str,
)
def test_a_machine_names_what_it_has_instead(
    here: Devices, asked: str, has: str, instead: str
) -> None:
    """In one line; where any device will do, it is another of the kind, or the CPU."""
    with pytest.raises(SpecError) as refused:
        here.chosen(asked)
    line = f"device = '{asked}': torch finds no such device here, only {has}"
    assert str(refused.value) == line
    assert here.nearest(asked) == instead
    with pytest.raises(SpecError):
        here.spread(asked, 1)


@pytest.mark.parametrize(
    ("here", "asked", "taken"),
    [
        (TWO_CARDS, "cuda", ["cuda:0", "cuda:1", "cuda:0"]),
        (TWO_CARDS, "auto", ["cuda:0", "cuda:1", "cuda:0"]),
        (TWO_CARDS, "cuda:1", ["cuda:1"] * 3),
        (TWO_CARDS, "cpu", ["cpu"] * 3),
        (Devices({"cuda": 1}), "cuda", ["cuda"] * 3),
        (APPLE, "auto", ["mps"] * 3),
        (BARE, "auto", ["cpu"] * 3),
    ],
    ids=str,
)
def test_workers_of_one_machine_take_its_cards_in_turn(
    here: Devices, asked: str, taken: list[str]
) -> None:
    """Unless one is asked for; what they train is what a spec of the kind asks for."""
    assert [here.spread(asked, place) for place in range(3)] == taken
    assert all(trained_on(asked, one) == one for one in taken)


@pytest.mark.parametrize(
    ("here", "asked", "cards"),
    [
        (BARE, "auto", 0),
        (BARE, "cuda", 0),
        (TWO_CARDS, "auto", 2),
        (TWO_CARDS, "cuda", 2),
        (TWO_CARDS, "cuda:1", 1),
        (TWO_CARDS, "cpu", 0),
        (APPLE, "auto", 1),
        (Devices({"cuda": 1, "xpu": 3}), "auto", 1),
    ],
    ids=str,
)
def test_a_machine_counts_the_cards_that_serve(here: Devices, asked: str, cards: int) -> None:
    """Each can have a worker; without any, the cores decide."""
    assert here.cards(asked) == cards


@pytest.mark.parametrize(
    ("asked", "own", "there"),
    [
        ("cpu", "cpu", "cpu"),
        ("cpu", "cuda:1", "cpu"),
        ("cuda", "cuda", "cuda"),
        ("cuda", "cuda:1", "cuda:1"),
        ("cuda:0", "cuda", "cuda"),
        ("cuda:1", "cuda:1", "cuda:1"),
        ("auto", "cpu", "cpu"),
        ("auto", "mps", "mps"),
        ("auto", "xpu:1", "xpu:1"),
        ("cuda", "cpu", None),
        ("cuda:1", "cuda", None),
        ("cuda:1", "cuda:0", None),
        ("mps", "cuda", None),
        ("xpu", "cuda:1", None),
    ],
)
def test_a_worker_trains_on_its_own_device_or_not_at_all(
    asked: str, own: str, there: str | None
) -> None:
    """The one who starts a worker decides on its card; a spec may leave that open."""
    assert trained_on(asked, own) == there


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_processes_that_share_a_batch_need_the_cpu(device: str) -> None:
    """They share its cores; auto is resolved to it."""
    assert Spec.make({"inside": {"processes": 2}}).device == "auto"
    with pytest.raises(SpecError, match=r"inside.processes = 2: needs device = 'cpu'"):
        Spec.make({"device": device, "inside": {"processes": 2}})
