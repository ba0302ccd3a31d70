"""A project with its bundle, in an experiment's files, and a machine that lacks it."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from downpour.core.resolve import resolve
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.store import SharedDirectory, Store, layout
from downpour.learning import user_code
from downpour.learning.allowlist import FOLDERS
from downpour.learning.shipping import Bundle, leave
from downpour.learning.user_code import digest_of
from tests.conftest import Allow

TOP_LEVEL = {"shipped_lab", "shipped_helpers"}
PROJECT = {
    "shipped_lab/__init__.py": b"",
    "shipped_lab/nets.py": b"from shipped_lab import layers\nimport shipped_helpers\n"
    b"def build():\n    return layers.WIDTH, shipped_helpers.DEPTH\n",
    "shipped_lab/layers.py": b"WIDTH = 1\n",
    "shipped_helpers.py": b"DEPTH = 1\r\n# \xc3\xa9\n",
}
FACTORY = "shipped_lab.nets:build"


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def forget_modules() -> None:
    """Be as a process that has imported nothing of the project."""
    for name in [name for name in sys.modules if name.partition(".")[0] in TOP_LEVEL]:
        del sys.modules[name]
    importlib.invalidate_caches()
    user_code.forget()


class Shipment:
    """An experiment's files, in which its bundle lies, on a machine that imports nothing yet."""

    def __init__(self, tmp_path: Path) -> None:
        shared = SharedDirectory.open(tmp_path / "shared", create=True)
        self._shared = replace(shared, patience_seconds=0.0)
        self.own = tmp_path / "own" / "code"
        self._count = 0

    def of(self, files: Mapping[str, bytes]) -> tuple[ResolvedSpec, Store]:
        """Return the spec of an experiment with these files, and its store."""
        bundle = Bundle.of(files)
        return self.named(bundle.digest, bundle.packed(), files)

    def named(
        self, digest: str, packed: bytes | None, files: Mapping[str, bytes]
    ) -> tuple[ResolvedSpec, Store]:
        """Return a spec that names a bundle, and the store where some bytes have its name."""
        self._count += 1
        store = self._shared.create_experiment(f"any-{self._count}")
        if packed is not None:
            store.put_new(layout.bundle_name(digest), [packed])
        spec = resolve(Spec(model=FACTORY), 1)
        code = {path: digest_of(content) for path, content in files.items()}
        return spec.replace(code=code, code_bundle=digest), store


@pytest.fixture
def shipment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowing: Allow
) -> Iterator[Shipment]:
    """Experiments of a project that this machine allows and does not have."""
    allowing(tmp_path, "shipped_lab")
    monkeypatch.delenv(FOLDERS)
    monkeypatch.setenv("DOWNPOUR_LOCAL", str(tmp_path / "own"))
    forget_modules()
    yield Shipment(tmp_path)
    leave()
    forget_modules()
