"""Decides, on a worker, whether to run its own files or the experiment's bundle.

The worker's own files count where they are the ones that were submitted. Else it takes the bundle,
if it accepts code. In either case, `check_code` compares the files with the experiment's digests
before the worker imports any.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, UnfitWorker
from downpour.core.spec import Spec
from downpour.files.store import Store, layout
from downpour.learning.factory_code import code_of
from downpour.learning.shipping.bundle import PACKED_BYTES_MAX, BadBundle, Bundle
from downpour.learning.shipping.in_use import folder_in_use, leave, use
from downpour.learning.shipping.making import check_fits, refuse_installed
from downpour.learning.shipping.unpacking import unpacked_folder

log = logging.getLogger(__name__)

_REFUSED = "this worker cannot use the experiment's code"
_NAMES_MAX = 3
REMEDY = "; start this worker with --accept-code to use the manager's code"


def settle_code(spec: Spec, store: Store, *, accepts: bool) -> str:
    """Have this process find the code that an experiment was submitted with.

    Args:
        spec: the experiment's.
        store: the experiment's files.
        accepts: whether this worker takes a bundle.

    Returns:
        What to say in addition if its own code turns out to be another; usually nothing.

    Raises:
        UnfitWorker: the bundle is missing, refused, or cannot be unpacked here.
        StoreError: the shared directory is away.
    """
    former = folder_in_use()
    if former is not None and former.name != spec.code_bundle:
        leave()
    if spec.code_bundle is None or folder_in_use() is not None or not _needs_bundle(spec):
        return ""
    if not accepts:
        return REMEDY
    try:
        use(_folder_of(spec, spec.code_bundle, store))
    except (BadBundle, FileMissing, FileCorrupt) as error:
        raise UnfitWorker(f"{_REFUSED}: {error}") from error
    except OSError as error:
        raise UnfitWorker(f"{_REFUSED}: no copy here: {error.strerror or error}") from error
    log.warning("uses the code that the experiment brought: %s", _listed(sorted(spec.code)))
    return ""


def _needs_bundle(spec: Spec) -> bool:
    """Whether this machine lacks a file that the experiment was submitted with.

    False where a factory is not allowed: then nothing is read, and the import says so. A dataset
    matters only where its code can be looked at, because the worker reads what it has made.
    """
    here: dict[str, str] = {}
    for field, name in spec.factories.items():
        try:
            here |= code_of(field, name)
        except SpecError:
            if field != "dataset":
                return False
    return any(here.get(file) != digest for file, digest in spec.code.items())


def _folder_of(spec: Spec, digest: str, store: Store) -> Path:
    """Return the folder of an experiment's bundle, checked against all that is known of it."""

    def read() -> Bundle:
        name = layout.bundle_name(digest)
        return Bundle.unpacked(store.read_unchecked(name, limit_bytes=PACKED_BYTES_MAX + 1), digest)

    def check(bundle: Bundle) -> None:
        check_fits(bundle, spec.code)
        refuse_installed(bundle.top_level)

    return unpacked_folder(digest, read, check)


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")
