"""What the pages promise is so, and what readers copy from them is accepted."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import downpour
from downpour import Spec
from downpour.base.errors import SpecError
from downpour.base.names import Family
from downpour.cluster.launchers import LAUNCHERS
from downpour.core import families
from downpour.experiments.studies.grid import Grid
from downpour.experiments.studies.search import Search
from downpour.files.spec_file import read_spec
from downpour_lab.policylab.planning import read_machines
from tests.docs.pages import EVERY, ROOT, Fence

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
    read = Search.from_file if "[search]" in example.read_text("utf-8") else read_spec
    assert read(example).name == example.stem


def test_the_search_in_the_docs_is_the_example() -> None:
    """What the page shows is accepted, and searches what the example does."""
    page = (ROOT / "docs" / "how-to" / "tuning.md").read_text("utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert Search.from_toml(block) == Search.from_file(ROOT / "examples" / "tune.toml")


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples" / "papers").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_paper_is_a_grid(example: Path) -> None:
    """The TOML files under examples/papers/ are accepted as they are, and so is the page's."""
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


SHIPPED = {path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")}
"""Files that pages show whole, which tests of their own run."""

NOT_RUN = {
    "README.md": "runs in test_promises.py, in a process of its own as a newcomer's does",
    "docs/how-to/compose.md": "needs Docker, as tests/cluster/docker has it",
    "docs/how-to/lab-pcs.md": "needs hosts with ssh, as tests/cluster/ssh has them",
    "docs/how-to/ray.md": "needs a Ray cluster, as tests/cluster/ray_cluster has it",
    "docs/how-to/slurm.md": "needs Slurm, as tests/cluster/slurm has it",
    "docs/internals/lab.md": "makes network namespaces, as root",
}
"""Pages whose Python does not run here, and why."""


def fences(*languages: str) -> list[Fence]:
    """Return the blocks of all pages in one of these languages."""
    return [fence for page in EVERY for fence in page.fences(*languages)]


PYTHON = fences("python")

# The cells of a lesson need each other; tests/lessons run them as one notebook.
TO_RUN = [one for one in PYTHON if one.page not in NOT_RUN and "/lessons/" not in one.page]


@pytest.mark.parametrize("fence", PYTHON, ids=str)
def test_every_python_snippet_compiles(fence: Fence) -> None:
    """Each on its own, under the interpreter that runs this."""
    ast.parse(fence.text)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_clusters")
@pytest.mark.parametrize("fence", [one for one in TO_RUN if one.text not in SHIPPED], ids=str)
def test_every_python_snippet_runs(
    fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder, and with a small spec where the page has made one before."""
    monkeypatch.chdir(tmp_path)
    spec = Spec(epochs=1, train_limit=200, test_limit=100, model="mlp", shards=2)
    names = {"__name__": "__main__", "downpour": downpour, "spec": spec}
    exec(compile(fence.text, str(fence), "exec"), names)  # noqa: S102 - pages are ours


@pytest.mark.parametrize("fence", fences("toml"), ids=str)
def test_every_toml_snippet_is_accepted(fence: Fence, tmp_path: Path) -> None:
    """As fields of a spec, a grid or a search, as machines or as entry points of a project."""
    table = tomllib.loads(fence.text)
    table.pop("launch", None)  # where it is trained; the tests of launchers read that
    if "project" in table:
        groups = {one.group for one in vars(families).values() if isinstance(one, Family)}
        assert set(table["project"]["entry-points"]) <= {*groups, LAUNCHERS.group}
    elif fence.text.startswith("# machines.toml"):
        (tmp_path / "machines.toml").write_text(fence.text)
        assert read_machines(tmp_path / "machines.toml")
    elif "search" in table:
        assert Search.from_toml(fence.text)
    else:
        accept(table)


def accept(fields: dict[str, Any]) -> None:
    """Take fields of a spec, any of which may have several values in a grid."""
    try:
        Spec.make(fields)
    except SpecError:
        assert Grid.make({"name": "page", "workers": 2, **fields}).runs


@pytest.mark.parametrize("fence", fences("json", "yaml"), ids=str)
def test_every_json_and_yaml_snippet_reads(fence: Fence) -> None:
    """It has no typing errors."""
    assert json.loads(fence.text) if fence.language == "json" else yaml.safe_load(fence.text)
