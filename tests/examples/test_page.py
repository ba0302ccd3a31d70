"""The page on training of one's own shows the files that ship, and what refusals say."""

import re
from pathlib import Path

import numpy as np
import pytest

from downpour import DownpourError, Spec
from downpour.learning.training.trial import check_trains
from tests.examples.conftest import FOLDER
from tests.learning.tasks.conftest import lab, loaded

__all__ = ["lab"]

PAGE = (FOLDER.parents[1] / "docs" / "how-to" / "your-own-training.md").read_text("utf-8")


def test_the_page_shows_the_files_that_ship() -> None:
    """The first example is there whole, and the others by name; any other block is one method."""
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL)
    whole = [block for block in blocks if not block.startswith("def ")]
    assert whole == [(FOLDER / f"diabetes.{kind}").read_text("utf-8") for kind in ("py", "toml")]
    named = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## More examples")[2], re.MULTILINE)
    assert {path.stem for path in FOLDER.glob("*.toml")} <= set(named)


def test_the_page_names_fields_that_there_are() -> None:
    """Whatever it says that a spec sets."""
    named = set(re.findall(r"`(\w+) = ", PAGE))
    assert {"batch_size", "task"} <= named
    assert named <= set(Spec.model_fields)


WRONG = [
    *("Several", "Number", "Detached", "Endless", "Failing", "Forgetful", "Double", "Remembering"),
    *("Worded", "Listed", "Other", "Lacking", "Strange", "Mislabeled", "Shifting", "Ragged"),
    *("Missing", "Shadowed", "Scheduled"),
]


def submit(name: str, folder: Path) -> None:
    """Submit a task of `tests/learning/tasks/own_tasks.py`."""
    task = loaded(folder, name)
    task.network()
    check_trains(task, [np.arange(task.count("train"))])


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("name", WRONG)
def test_printed_lines_are_on_the_page(name: str, tmp_path: Path) -> None:
    """A user who searches the page for the words of a refusal finds what to do."""
    section = PAGE.partition("## Troubleshooting")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    words = [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]
    patterns = [re.escape(quoted).replace("…", ".*") for quoted in words]
    with pytest.raises(DownpourError, match="|".join(patterns)):
        submit(name, tmp_path)
