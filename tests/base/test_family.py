"""Families of things that users name: Downpour's own members, and those of installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.base.names import Family
from downpour.cluster.launchers import LAUNCHERS
from downpour.core.families import FAMILIES, SPLITTERS
from downpour.core.modes import MODES, ModeKind
from downpour.core.stragglers.base import POLICIES, Policy
from downpour.files.aggregators import AGGREGATORS
from downpour.files.compression import CODECS
from downpour.launchers import LauncherKind

ALL = [*FAMILIES.values(), SPLITTERS, LAUNCHERS]

ENTRY_POINTS = """
[downpour.policies]
latest-first = others:LATEST_FIRST
gone = no_such_module:GONE

[downpour.codecs]
halves = others:HALVES

[downpour.launchers]
here = others:HERE

[downpour.commands]
hello = others:HELLO
gone = no_such_module:GONE
"""

CODE = '''
"""A policy, a codec, a launcher and a command that Downpour does not bring."""

import os
from dataclasses import dataclass

import numpy as np

from downpour.extending import Assignment, Policy
from downpour.launchers import InlineCluster, LauncherKind, option


def latest_first(view):
    pairs = zip(sorted(view.idle), [task.shard for task in reversed(view.pending)])
    return [Assignment(shard=shard, worker=name, reason="latest first") for name, shard in pairs]


LATEST_FIRST = Policy(decide=latest_first)


class Halves:
    """Half-precision numbers."""

    feedback = None

    def size(self, count):
        return 2 * count

    def encode(self, numbers):
        return numbers.astype("<f2").view(np.uint8)

    def decode(self, encoded, out):
        out[:] = encoded.view("<f2")


HALVES = Halves()


@dataclass(frozen=True)
class HereOptions:
    greeting: str = option("", "What it says first.", "TEXT")
    times: int = option(1, "How often.", "N")


def make(options):
    print("\\n".join([options.greeting] * options.times), flush=True)
    return InlineCluster


HERE = LauncherKind(title="Here", options=HereOptions, make=make)


def hello():
    """Say hello."""
    print("hello")


HELLO = hello
'''

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def downpour(tmp_path: Path) -> Command:
    """Run a command where a package is installed that Downpour knows nothing of."""
    package = tmp_path / "site"
    (package / "others-1.0.dist-info").mkdir(parents=True)
    (package / "others-1.0.dist-info" / "METADATA").write_text("Name: others\nVersion: 1.0\n")
    (package / "others-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    (package / "others.py").write_text(CODE)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "downpour.cli", *words]
        environment = {**os.environ, "PYTHONPATH": str(package), "COLUMNS": "200"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
        )

    return run


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.field)
def test_a_name_is_all_that_a_member_needs(family: Family) -> None:
    """Each can be imported, and is what its family is made of."""
    kinds = {id(MODES): ModeKind, id(POLICIES): Policy, id(LAUNCHERS): LauncherKind}
    for name in family.built_in:
        assert family.check(name) == name
        assert isinstance(family[name], kinds.get(id(family), object))
    assert "nothing" not in family
    with pytest.raises(KeyError):
        family["nothing"]


def test_a_close_member_is_suggested() -> None:
    """One line says what the field accepts."""
    with pytest.raises(
        SpecError, match=r"^policy = 'wiat': must be wait, .*; did you mean wait\?$"
    ):
        FAMILIES["policy"].check("wiat")


def test_names_are_known_before_anything_is_imported() -> None:
    """Help and a spec's checks must not import numpy codecs, or launchers' libraries."""
    code = "import sys; from downpour.core import families; list(families.CODECS); "
    code += "print('downpour.files.compression' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


@pytest.mark.slow
def test_a_package_brings_a_policy_a_codec_and_a_launcher(
    downpour: Command, tmp_path: Path
) -> None:
    """Named like Downpour's own, with options on the command line, in a training to its end."""
    words = ("--epochs", "1", "--policy", "latest-first", "--compression", "halves")
    ran = downpour("run", *words, "--on", "here", "--greeting", "hello", "--times", "2", "--json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("hello\nhello\n")
    assert '"policy": "latest-first"' in ran.stdout
    assert "updates (halves): " in ran.stdout
    (record,) = tmp_path.rglob("record.jsonl")
    assert '"reason":"latest first"' in record.read_text().replace('": ', '":')


@pytest.mark.slow
def test_help_and_errors_name_what_a_package_brings(downpour: Command) -> None:
    """As they name all other members."""
    told = downpour("run", "--help-all").stdout
    assert "compose (containers of a compose file) or here" in " ".join(told.split())
    assert "--greeting TEXT" in " ".join(told.split())
    wrong = downpour("run", "--policy", "latest-frist")
    assert wrong.stderr.rstrip().endswith("or latest-first; did you mean latest-first?")


def test_a_package_that_cannot_be_imported_costs_one_line(downpour: Command) -> None:
    """It says which module, and why."""
    wrong = downpour("run", "--policy", "gone")
    assert wrong.returncode == 2
    reason = "(ModuleNotFoundError: No module named 'no_such_module')"
    gone = f"policy = 'gone': cannot be imported from no_such_module:GONE {reason}"
    assert wrong.stderr == f"downpour: {gone}\n"


@pytest.mark.slow
def test_a_package_brings_a_command(downpour: Command) -> None:
    """The help lists it, and a command that cannot be imported with the reason; others work."""
    assert downpour("hello").stdout == "hello\n"
    listed = " ".join(downpour("--help").stdout.split())
    assert "hello Say hello." in listed
    assert "gone cannot be imported from no_such_module:GONE" in listed
    assert downpour("gone").returncode == 2
    assert downpour("gone").stderr.startswith("downpour: command = 'gone': cannot be imported")


def test_families_are_also_what_their_rooms_hand_out() -> None:
    """One mapping for all who ask."""
    assert FAMILIES["policy"] is POLICIES
    assert FAMILIES["mode"] is MODES
    assert FAMILIES["aggregate"] is AGGREGATORS
    assert FAMILIES["compression"] is CODECS
