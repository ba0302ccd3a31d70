"""The file that an experiment begins from, which the manager alone reads."""

from __future__ import annotations

from downpour.errors import SpecError
from downpour.spec import Spec
from downpour.store import SharedDirectory
from downpour.store.named_model import NamedModel, find_model, read_model


def start_of(spec: Spec, shared: SharedDirectory | None) -> NamedModel:
    """Return the parameters that an experiment begins from; without `shared`, from a path alone.

    Raises:
        SpecError: `init_from` names no safetensors file, or one that has changed since the
            experiment was submitted.
        SharedDirectoryError: the shared directory cannot be read.
    """
    name, field = spec.init_from or "", "init_from"

    def read() -> NamedModel:
        return read_model(find_model(name, shared, field=field), name, shared, field=field)

    found = shared.retry_policy.call_through_outage(read) if shared else read()
    if spec.init_checksum not in {None, found.checksum}:
        accepted = f"is another file than {spec.init_checksum}: its checksum is {found.checksum}"
        raise SpecError(field, name, accepted)
    return found
