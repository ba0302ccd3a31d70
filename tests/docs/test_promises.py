"""What the README and the pages promise is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_two_commands_run_the_main_job_and_the_tests() -> None:
    """A reader of the README needs no third command, and finds the demo after these two."""
    (block,) = re.findall(r"## Two commands\n+```sh\n(.*?)```", README, re.DOTALL)
    assert [line.partition("#")[0].strip() for line in block.splitlines()] == [
        "make run",
        "make test",
    ]
    before, _, after = README.partition(block)
    assert ("downpour demo" in before, "downpour demo" in after) == (False, True)


def test_every_function_that_the_tour_names_in_a_file_is_there() -> None:
    """As `file.py` · `function`."""
    text = (ROOT / "docs" / "internals" / "tour.md").read_text("utf-8")
    for path, function in re.findall(r"`([\w/]+\.py)` · `(\w+)`", text):
        code = (ROOT / "src" / "downpour" / path).read_text("utf-8")
        assert re.search(rf"^ *(?:def|class) {function}\b", code, re.MULTILINE), (path, function)


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_example_is_a_spec_or_a_search(example: Path) -> None:
    """The TOML files under examples/ are accepted as they are."""
    from downpour.experiments.studies.search import Search
    from downpour.files.spec_file import read_spec

    read = Search.from_file if "[search]" in example.read_text("utf-8") else read_spec
    assert read(example).name == example.stem


def test_the_search_in_the_docs_is_the_example() -> None:
    """What the page shows is accepted, and searches what the example does."""
    from downpour.experiments.studies.search import Search

    page = (ROOT / "docs" / "how-to" / "tuning.md").read_text("utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert Search.from_toml(block) == Search.from_file(ROOT / "examples" / "tune.toml")


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples" / "papers").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_paper_is_a_grid(example: Path) -> None:
    """The TOML files under examples/papers/ are accepted as they are, and so is the page's."""
    from downpour.experiments.studies.grid import Grid

    assert Grid.from_file(example).name == example.stem
    page = (ROOT / "docs" / "how-to" / "experiments.md").read_text("utf-8")
    blocks = re.findall(r"```toml\n(name = .*?)```", page, re.DOTALL)
    assert blocks
    assert all(Grid.from_toml(block).runs for block in blocks)


@pytest.mark.slow
def test_the_python_in_the_readme_runs(tmp_path: Path) -> None:
    """The example is what a newcomer copies first."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert code
    for block in code:
        ran = subprocess.run(
            [sys.executable, "-c", block],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert ran.returncode == 0, ran.stderr
        assert "model.safetensors" in ran.stdout
