"""The pages of docs/reference/ that follow from the code, and how they are made."""

import importlib
import re
from types import ModuleType
from typing import Any, get_args

import pytest

import downpour
from downpour import Spec
from downpour.base.values import AttemptId
from downpour.cli.commands import build
from downpour.core.spec import TABLES
from downpour.core.stragglers.base import POLICIES
from downpour.files.store import layout
from downpour.files.store.shared_directory import RUN_LOCK_NAME
from downpour.record.record_lines import KINDS
from tests.docs.pages import DOCS, ROOT, Page

GENERATED = ("cli", "python", "spec", "thrift")


@pytest.fixture(autouse=True)
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this import from scripts/reference/, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "reference"))


def generator(name: str) -> ModuleType:
    """Import the module that makes a page."""
    return importlib.import_module(f"{name}_page")


@pytest.mark.parametrize("name", GENERATED)
def test_the_page_says_what_the_code_says(name: str) -> None:
    """After a change of a command, a field, a docstring or the IDL, `make docs` writes it anew."""
    path = DOCS / "reference" / f"{name}.md"
    assert path.read_text("utf-8") == generator(name).page(), "write it anew: make docs"


def test_every_option_is_on_the_page_of_commands_or_of_the_spec() -> None:
    """The former says once what commands share, and the latter has the options that set fields."""
    pages = [(DOCS / "reference" / name).read_text("utf-8") for name in ("cli.md", "spec.md")]
    found = set(re.findall(r"`(?:-\w, )?(--[a-z-]+)", "".join(pages)))
    group: Any = build()
    waiting = list(group.commands.values())
    for command in waiting:
        waiting += getattr(command, "commands", {}).values()
        options = {name for param in command.params for name in param.opts}
        assert {name for name in options if name.startswith("--")} <= found, command.name


def test_every_field_and_every_name_has_a_heading() -> None:
    """Pages can link to a field of the spec, and to a name of the API."""
    spec = Page(DOCS / "reference" / "spec.md").anchors()
    assert set(Spec.model_fields) <= set(spec)
    for table, fields in TABLES.items():
        assert {f"{table}{field}" for field in fields.model_fields} <= set(spec)
    names = {name.lower() for name in downpour.__all__ if not name.startswith("_")}
    assert names <= set(Page(DOCS / "reference" / "python.md").anchors())


def test_types_that_an_extension_sees_have_a_heading() -> None:
    """Those of attributes, apart from Python's and numpy's."""
    page = Page(DOCS / "reference" / "python.md")
    annotations = re.findall(r"`\w+: ([^`]+)`", page.text.partition("## `downpour.extending`")[2])
    seen = set(re.findall(r"\b[A-Z]\w+", " ".join(annotations)))
    foreign = {"Any", "Callable", "Collection", "Generator", "Mapping", "None", "Path", "Sequence"}
    plain = {"BareName", "Checksum", "EventKind", "Option"}  # text of a form, and TOML's values
    assert {name.lower() for name in seen - foreign - plain} <= set(page.anchors())


def test_the_page_of_policies_has_every_option_and_its_default() -> None:
    """As `| `drop` `k` | 0.9 |`."""
    page = Page(DOCS / "reference" / "policies.md").text
    shown = re.findall(r"^\| `(\w+)` `(\w+)` \| ([\d.]+) \|", page, re.MULTILINE)
    found = [(policy, option, float(default)) for policy, option, default in shown]
    assert sorted(found) == sorted(
        (name, option, default)
        for name in POLICIES
        for option, default in POLICIES[name].options.items()
    )


def test_the_page_of_files_names_all_of_them() -> None:
    """Each kind of line in a record, and each kind of file in an experiment's folder."""
    page = Page(DOCS / "reference" / "files.md")
    record = page.text.partition("## The record")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", record, re.MULTILINE)) == sorted(KINDS)
    attempt = AttemptId(experiment="e", round=0, shard=0, attempt=0)
    names = [
        *(layout.attempt_name(kind, attempt, "0") for kind in get_args(layout.AttemptKind)),
        *(str(kind(0, "0")) for kind in (layout.ModelName, layout.OuterName, layout.WholeName)),
        *(str(layout.OwnName(0, 0, "0")), layout.indices_name(0, "0"), layout.frozen_name("0")),
        *(layout.bundle_name("0"), *layout.RESULT_NAMES, layout.SPEC_NAME, layout.RECORD_NAME),
        *("journal-1-1.jsonl", RUN_LOCK_NAME),
    ]
    assert {_stem(name) for name in names} <= {_stem(span) for span in page.spans()}


def _stem(name: str) -> str:
    return re.split("[-.]", name)[0]


IDL = """\
/**
 * First of all.
 */
namespace py somewhere

/** A number. */
const i32 PROTOCOL = 5

/** A file. */
struct File {
  1: required string name
  /** In bytes,
   * all of them. */
  2: optional list<i64> sizes = []
}

service Store {
  /** Returns it. */
  File open(1: string name)
    throws (1: Refusal refusal)
}
"""


def test_the_idl_is_read_with_its_comments() -> None:
    """Each comment belongs to the line below it, and a call may go on in the next line."""
    idl = importlib.import_module("idl").parse(IDL)
    assert idl.overview == "First of all."
    assert [(one.words, one.comment) for one in idl.constants] == [
        ("const i32 PROTOCOL = 5", "A number.")
    ]
    struct, service = idl.blocks
    assert (struct.kind, struct.name, struct.comment) == ("struct", "File", "A file.")
    assert [one.comment for one in struct.members] == ["", "In bytes,\nall of them."]
    (call,) = service.members
    assert call.words == "File open(1: string name) throws (1: Refusal refusal)"
    assert call.comment == "Returns it."


def test_a_block_without_an_end_is_no_idl() -> None:
    """Rather an error than a page that leaves half of the messages out."""
    with pytest.raises(ValueError, match="has no end"):
        importlib.import_module("idl").parse("struct File {\n  1: string name\n")
