"""The committed stubs are those of the protocol."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "src/downpour/network/rpc/generated"


def version_of(compiler: str) -> str:
    """What a compiler says about itself."""
    command = [compiler, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_stubs_are_what_the_compiler_makes(tmp_path: Path) -> None:
    """Nobody edits them, and nobody changes the protocol without them."""
    compiler = shutil.which(os.environ.get("THRIFT", "thrift"))
    if compiler is None or " 0.24." not in version_of(compiler):
        pytest.skip("no Thrift compiler 0.24: name one in THRIFT, or put it on PATH")
    script = ROOT / "idl/generate.sh"
    environment = {**os.environ, "THRIFT": compiler}
    subprocess.run(["sh", script, tmp_path], check=True, env=environment)
    made = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert made == {path.name: path.read_text() for path in GENERATED.glob("*.py")}


def test_other_languages_get_a_namespace_of_their_own() -> None:
    """Without one, a language's classes land in no package, where Java cannot import them."""
    protocol = (ROOT / "idl/downpour.thrift").read_text(encoding="utf-8")
    assert re.findall(r"^namespace (\S+) ", protocol, re.MULTILINE) == ["py", "*", "java", "netstd"]
