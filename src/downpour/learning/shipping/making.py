"""Collects a spec's own project files into a bundle when a user submits an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from downpour.core.spec import Spec
from downpour.learning.allowlist import in_installed_folder
from downpour.learning.factory_code import digest_of, project_of
from downpour.learning.shipping.bundle import BadBundle, Bundle


def bundle_of(spec: Spec) -> Bundle | None:
    """Return the bundle of a spec's projects; None if it names no code of a project.

    Args:
        spec: with the digests of its code, as they were fixed.

    Raises:
        BadBundle: the files cannot be shipped; says why.
        SpecError: a factory is not on the allow-list.
    """
    projects = (project_of(field, name) for field, name in spec.factories.items())
    files: dict[str, bytes] = {}
    for project in projects:
        files |= {} if project.is_installed else project.files
    if not files:
        return None
    bundle = Bundle.of(files)
    check_fits(bundle, spec.code)
    refuse_installed(bundle.top_level)
    return bundle


def check_fits(bundle: Bundle, code: Mapping[str, str]) -> None:
    """Check that every file of a bundle is one that an experiment was submitted with.

    Raises:
        BadBundle: names the first that is not.
    """
    for path, content in bundle.files.items():
        if code.get(path) != digest_of(content):
            raise BadBundle(f"{path} has changed since the submission")


def refuse_installed(names: Iterable[str]) -> None:
    """Check that no top-level name is that of a package that is installed here.

    Raises:
        BadBundle: names the first that is.
    """
    for name in sorted(names):
        if in_installed_folder(name):
            raise BadBundle(f"{name} is also an installed package, which a bundle never replaces")
