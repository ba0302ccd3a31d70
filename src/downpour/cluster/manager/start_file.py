"""The files that an experiment begins from, which the manager alone reads.

Beside the parameters that is the state of the outer optimizer, if the experiment goes on with
another one that had the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from downpour.base.errors import SpecError
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.aggregators import first_state, is_state_of
from downpour.files.store import Array, SharedDirectory, layout
from downpour.files.store.named_model import NamedModel, find_model, read_model


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


def with_checksums(spec: ResolvedSpec, shared: SharedDirectory, *, known: bool) -> ResolvedSpec:
    """Fix which files an experiment begins from, when it is submitted.

    The model is not read if its checksum is `known`.

    Raises:
        SpecError: `init_from` names no safetensors file.
        SharedDirectoryError: the shared directory cannot be read.
    """
    if spec.init_from is None:
        return spec
    model = spec.init_checksum if known else start_of(spec, shared).checksum
    outer = _outer_beside(spec, shared)
    return spec.replace(init_checksum=model, outer_checksum=outer.checksum if outer else None)


def first_outer_state(
    spec: Spec, shared: SharedDirectory, model: Mapping[str, Array], trained: Collection[str]
) -> Mapping[str, Array]:
    """Return the state with which the outer optimizer begins, or goes on.

    Raises:
        SpecError: the state has changed since the experiment was submitted, or is another model's.
        SharedDirectoryError: the shared directory cannot be read.
    """
    begun = first_state(spec.outer, model, trained)
    if spec.outer_checksum is None:
        return begun
    found = _outer_beside(spec, shared)
    if found is None or found.checksum != spec.outer_checksum:
        accepted = f"its outer optimizer's state is not {spec.outer_checksum} any more"
        raise SpecError("init_from", spec.init_from, accepted)
    shapes = ({n: (a.shape, a.dtype) for n, a in one.items()} for one in (begun, found.tensors))
    if next(shapes) != next(shapes):
        raise SpecError("init_from", spec.init_from, "its outer state is of another network")
    return found.tensors


def _outer_beside(spec: Spec, shared: SharedDirectory) -> NamedModel | None:
    """Return the outer optimizer's state beside the model version that a spec goes on from.

    Another optimizer, which keeps something else, begins anew.
    """
    if not (spec.outer.keeps_state and spec.rounds_before and spec.init_from):
        return None
    model = find_model(spec.init_from, shared, field="init_from")
    parsed = layout.parse_name(model.name)
    if not isinstance(parsed, layout.ModelName):
        return None
    state = model.with_name(layout.outer_name(parsed.version, parsed.token))
    if not state.is_file():
        return None
    found = read_model(state, spec.init_from, shared, field="init_from")
    return found if is_state_of(spec.outer, found.tensors) else None
