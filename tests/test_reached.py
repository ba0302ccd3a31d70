"""Which tests a change reaches: `scripts/reached.py`, which `make test CHANGED=yes` asks."""

import pytest
from reached import ROOT, SHARES, Source, reached, share

from tests.test_tidy import SRC

TESTS = [Source(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
SOURCES = [Source(path) for path in sorted(SRC.rglob("*.py"))] + TESTS


def names(*changes: str) -> set[str]:
    """Return the tests that changed files reach, from `tests/`."""
    files = {ROOT / change for change in changes}
    found = reached(files, TESTS, SOURCES)
    return {path.relative_to(ROOT / "tests").as_posix() for path in found}


@pytest.mark.slow
def test_a_change_reaches_what_imports_it_directly_or_through_others() -> None:
    """What folds updates reads them with the store; tests of values read no file."""
    found = names("src/downpour/files/store/header.py")
    assert {"files/store/test_updates.py", "files/aggregators/test_fold.py"} <= found
    assert "base/test_values.py" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "folder"),
    [
        ("docs/how-to/inside.md", "docs"),
        ("src/downpour/files/compression/codecs.py", "files/compression"),
        ("src/downpour/show/dashboard/page/page.css", "show/dashboard"),
    ],
)
def test_a_change_reaches_the_tests_of_its_folder(change: str, folder: str) -> None:
    """Nothing imports a page or a codec, but their tests are in the folder of the same name."""
    tests = (ROOT / "tests" / folder).rglob("test_*.py")
    assert {path.relative_to(ROOT / "tests").as_posix() for path in tests} <= names(change)


@pytest.mark.slow
def test_a_conftest_reaches_its_folder_alone() -> None:
    """Nothing imports it but pytest."""
    found = names("tests/learning/training/conftest.py")
    assert "learning/training/test_loop.py" in found
    assert not any(name.startswith(("base/", "core/")) for name in found)
    assert len(names("tests/conftest.py")) == len(TESTS)


def test_a_change_to_how_tests_run_reaches_all_of_them() -> None:
    """Nobody can say which of them it breaks."""
    assert len(names("Makefile")) == len(TESTS)


def test_the_shares_of_all_commits_run_every_test() -> None:
    """They are disjoint, and nothing is left out."""
    paths = {test.path for test in TESTS}
    shares = {frozenset(share(paths, str(commit))) for commit in range(200)}
    assert len(shares) == SHARES
    assert sum(map(len, shares)) == len(paths)
    assert frozenset().union(*shares) == paths
