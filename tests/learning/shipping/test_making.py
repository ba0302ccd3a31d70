"""What the manager ships of a project, and what it does not."""

import sys
from pathlib import Path

import pytest

from downpour.core.spec import Spec
from downpour.learning.shipping import BadBundle, Bundle, bundle_of
from downpour.learning.user_code import fixed_code
from tests.conftest import Allow
from tests.learning.shipping.conftest import FACTORY, PROJECT, forget_modules, written


@pytest.fixture(autouse=True)
def _nothing_is_imported() -> None:
    forget_modules()


def fixed(**fields: str) -> Spec:
    """Return a spec with the digests of its code."""
    spec = Spec.make(fields)
    return spec.replace(code=fixed_code(spec.factories, {}))


def test_a_project_is_shipped_to_the_byte(tmp_path: Path, allowing: Allow) -> None:
    """What the factory imports of it, and no stranger beside it; a dataset's code as well."""
    files = {**PROJECT, "strangers.py": b"", "shipped_data.py": b"import shipped_helpers\n"}
    allowing(written(tmp_path, files), "shipped_lab", "shipped_data")
    assert bundle_of(fixed(model=FACTORY)) == Bundle.of(PROJECT)
    both = bundle_of(fixed(model=FACTORY, dataset="shipped_data:make"))
    assert both is not None
    assert both.files.keys() == PROJECT.keys() | {"shipped_data.py"}


def test_installed_code_is_not_shipped(tmp_path: Path, allowing: Allow) -> None:
    """Each machine has it, or has to install it."""
    assert bundle_of(fixed(model="digits-cnn")) is None
    allowing(written(tmp_path / "site-packages", PROJECT), "shipped_lab")
    assert bundle_of(fixed(model=FACTORY)) is None


def test_an_unshippable_file_is_named(tmp_path: Path, allowing: Allow) -> None:
    """One line says why; workers then need the files."""
    allowing(tmp_path, "shipped_lab")
    for extra, content, why in (
        ("shipped_helpers.py", b"# coding: latin-1\n# \xe9\n", "shipped_helpers.py is not UTF-8"),
        ("shipped_helpers.py", b"#" * 9 * 2**20, "more than 8 MiB"),
        ("shipped_helpers.py", b"import select\n", "'select.py' would replace a module"),
    ):
        written(tmp_path, {**PROJECT, "select.py": b"", extra: content})
        forget_modules()
        with pytest.raises(BadBundle, match=why):
            bundle_of(fixed(model=FACTORY))


def test_a_module_with_the_name_of_an_installed_package_is_not_shipped(
    tmp_path: Path, allowing: Allow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the two a machine imports depends on its folders: none is to replace the other."""
    allowing(written(tmp_path / "project", PROJECT), "shipped_lab")
    installed = written(tmp_path / "site-packages", {"shipped_helpers.py": b""})
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    with pytest.raises(BadBundle, match="shipped_helpers is also an installed package"):
        bundle_of(fixed(model=FACTORY))


def test_a_file_that_changes_meanwhile_is_not_shipped(tmp_path: Path, allowing: Allow) -> None:
    """The bundle would not be what the digests say."""
    allowing(written(tmp_path, PROJECT), "shipped_lab")
    spec = fixed(model=FACTORY)
    written(tmp_path, {"shipped_lab/layers.py": b"WIDTH = 9"})
    with pytest.raises(BadBundle, match=r"shipped_lab/layers\.py has changed"):
        bundle_of(spec)
