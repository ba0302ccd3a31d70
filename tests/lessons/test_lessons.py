"""The lessons: their pages are of the code beside them, they run, and they can fail."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="jupytext is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
import lessons  # noqa: E402

LESSONS = lessons.all_lessons()
BREAKING = {
    "0_first_run": (
        'KILL = "worker-2@600s"',
        "No worker died: KILL = 'worker-2@600s' killed none.",
    ),
    "1_averaging": ('SPLIT = "random"', "so its examples are mixed: SPLIT = 'random'."),
    "3_asynchrony": ("WORKERS = 1", "The updates were hardly stale"),
}
"""For some lessons, a control with which its claim does not hold, and what the check says."""

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda one: one.name)


@each_lesson
def test_a_page_holds_the_cells_of_its_lesson(lesson: lessons.Lesson) -> None:
    """All of them, in order, with nothing but outputs in between: `make lessons` writes it anew."""
    page = lesson.page.read_text("utf-8")
    at = 0
    for cell in lesson.notebook().cells:
        shown = lessons.shown_source(cell)
        assert page.startswith(shown, at), f"{lesson.page.name} has not this cell here:\n{shown}"
        at += len(shown)
        if cell.cell_type == "code":
            at = lessons.OUTPUTS.match(page, at).end()  # type: ignore[union-attr]
        at += len("\n\n")
    assert page.startswith("---\n", at)


@each_lesson
def test_a_page_has_the_figures_of_one_run(lesson: lessons.Lesson) -> None:
    """Those that it names are there, and no others; and it names no folder of the run."""
    page = lesson.page.read_text("utf-8")
    named = re.findall(rf"\(figures/({lesson.name}-\d+\.png)\)", page)
    there = sorted(path.name for path in lesson.page.parent.glob(f"figures/{lesson.name}-*"))
    assert sorted(named) == there
    assert not re.search(r"downpour-lesson-|127\.0\.0\.1|localhost:\d", page)


@each_lesson
def test_a_lesson_has_one_control_and_a_check(lesson: lessons.Lesson) -> None:
    """And says in its first cell what it asks, how long it takes and what it needs."""
    cells = lesson.notebook().cells
    tags = [tag for cell in cells for tag in lessons.tags_of(cell)]
    assert tags.count("parameters") == 1
    assert "check" in tags
    words = ("# Lesson ", "**Question**", "**Time**", "**Before**", "**You need**")
    assert all(word in cells[0].source for word in words)
    assert "prediction" in "".join(cell.source for cell in cells).lower()


def test_the_index_lists_all_lessons() -> None:
    """With a link to each page."""
    index = (lessons.LESSONS / "index.md").read_text("utf-8")
    assert re.findall(r"\]\((\d_\w+)\.md\)", index) == [lesson.name for lesson in LESSONS]


def test_new_text_leaves_outputs_alone(tmp_path: Path) -> None:
    """Text can be corrected without training anything; other code cannot."""
    source = tmp_path / "9_short.py"
    source.write_text("# %% [markdown]\n# Old.\n\n# %%\nprint(1)\n\n# %%\n2\n", "utf-8")
    lesson = lessons.Lesson(source)
    before = "Old.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\n2\n```"
    lesson.page.write_text(before + "\n\n```text\n2\n```\n\n---\n\n*[made]*\n", "utf-8")
    after = lesson.page.read_text("utf-8").replace("Old.", "New.")
    source.write_text(source.read_text("utf-8").replace("Old.", "New."), "utf-8")
    lessons.reword(lesson)
    assert lesson.page.read_text("utf-8") == after
    source.write_text(source.read_text("utf-8").replace("print(1)", "print(3)"), "utf-8")
    with pytest.raises(SystemExit, match="run it without --text"):
        lessons.reword(lesson)


def test_without_a_kernel_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Instead of a traceback through three libraries."""
    monkeypatch.setattr(lessons, "KERNEL", "none")
    with pytest.raises(SystemExit, match=r"no kernel none.*: pip install ipykernel"):
        lessons.execute(LESSONS[0].notebook(), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@each_lesson
def test_a_lesson_runs(lesson: lessons.Lesson, tmp_path: Path) -> None:
    """Its check cell finds that what it claims is so here, too.

    A check that other programs can spoil tells readers to run the lesson again, and so do we, once.
    """
    try:
        lessons.execute(lesson.notebook(), tmp_path)
    except nbclient.exceptions.CellExecutionError as failed:
        if "run the lesson again" not in str(failed):
            raise
        lessons.execute(lesson.notebook(), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BREAKING)
def test_a_check_names_what_broke_the_lesson(name: str, tmp_path: Path) -> None:
    """Where the control is set so that the claim does not hold, the check fails, and says why."""
    control, cause = BREAKING[name]
    (lesson,) = (one for one in LESSONS if one.name == name)
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="AssertionError") as failed:
        lessons.execute(lesson.notebook(control), tmp_path)
    assert cause in str(failed.value)


@each_lesson
def test_a_lesson_without_its_libraries_says_what_to_install(
    lesson: lessons.Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line of its first code cell, before anything is trained."""
    first = next(cell for cell in lesson.notebook().cells if cell.cell_type == "code")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(SystemExit, match=r"^sklearn is not installed\. Run: pip install '"):
        exec(first.source, {})  # noqa: S102 - lessons are ours
