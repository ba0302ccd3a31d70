"""The names of machines in certificates: what is one, and what its files are called."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.cluster.operations.certificates import parse_machine

LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10}[a-z0-9_])?", fullmatch=True)
DNS_NAMES = st.builds(
    lambda labels, last: ".".join([*labels, last]),
    st.lists(LABELS, max_size=4),
    LABELS.filter(lambda label: not label.isdigit()),
)
NAMES = DNS_NAMES | st.ip_addresses().map(str)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_names_are_kept_in_order_and_once(names: list[str]) -> None:
    """However they are spelled: in capitals, with spaces around, twice."""
    try:
        machine = parse_machine(" , ".join(name.upper() for name in names) + "," + names[0])
    except SpecError:
        assert names[0] in {"ca", "ca-key"}
    else:
        assert [str(name) for name in machine.names] == list(dict.fromkeys(names))


@given(st.text() | st.lists(NAMES | st.text(max_size=5)).map(",".join))
def test_any_text_is_refused_or_makes_a_bare_file_name(text: str) -> None:
    """Nothing in a name leads out of the folder, hides a file or looks like an option."""
    with suppress(SpecError):
        name = parse_machine(text).file_name
        assert PurePath(name).name == name
        assert name not in {"ca", "ca-key"}
        assert not set(name) & set("/\\:\0\n ")
        assert name[0] != "."


@pytest.mark.parametrize(
    ("text", "file_name", "shown"),
    [
        ("first", "first", "first"),
        ("First.Lab,10.0.0.5", "first.lab", "first.lab, 10.0.0.5"),
        ("project_worker_1", "project_worker_1", "project_worker_1"),
        ("2001:DB8:0:0::1,first", "2001-db8--1", "2001:db8::1, first"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_files_are_called_after_the_first_name(text: str, file_name: str, shown: str) -> None:
    """In the form in which names are compared, and without colons."""
    machine = parse_machine(text)
    assert (machine.file_name, str(machine)) == (file_name, shown)


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "first,", " ", "a b", "-first", "first-", "a..b", ".", "..", "../first"),
        *("a/b", "*.lab", "first:9090", "[::1]", "münchen", "10.0.0.300", "10.0.0", "x" * 64),
        *("fe80::1%eth0", ".".join(["x" * 60] * 5), "ca", "CA-key,first"),
    ],
)
def test_invalid_names_are_refused(text: str) -> None:
    """Also what is nearly an address, for nobody would ever find it; and the authority's own."""
    with pytest.raises(SpecError, match="NAME = "):
        parse_machine(text)


def test_the_authoritys_names_are_free_for_others_than_the_first() -> None:
    """Only files could clash."""
    assert parse_machine("first,ca").names == ("first", "ca")
    assert parse_machine("10.0.0.5").names == (ip_address("10.0.0.5"),)
