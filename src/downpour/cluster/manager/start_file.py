"""The files that an experiment starts from; only the manager reads them.

One file has the parameters. If the experiment continues another one, further files have the states
of that one's shards (`left_behind.py`) and its best model (`best_before.py`). If both have the same
outer optimizer, a file has its state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from downpour.base.errors import SpecError
from downpour.cluster.manager.best_before import AsVersion, BestBefore, best_before
from downpour.cluster.manager.left_behind import LeftBehind, left_behind
from downpour.core.scheduler.events import NOTHING_HANDED_ON, HandedOn
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.aggregators import first_state, is_state_of
from downpour.files.store import Array, SharedDirectory, Store, layout
from downpour.files.store.named_model import NamedModel, find_model, read_model


def start_of(spec: Spec, shared: SharedDirectory | None) -> NamedModel:
    """Return the parameters that an experiment begins from; without `shared`, only paths work.

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
        accepted = (
            f"must have checksum {spec.init_checksum}, not {found.checksum}: it is a different file"
        )
        raise SpecError(field, name, accepted)
    return found


def with_checksums(spec: ResolvedSpec, shared: SharedDirectory, *, known: bool) -> ResolvedSpec:
    """Fix which files an experiment begins from, at its submission.

    This does not read the model if its checksum is `known`.

    Raises:
        SpecError: `init_from` names no safetensors file, or the spec names other checksums.
        SharedDirectoryError: the shared directory cannot be read.
    """
    if spec.init_from is None:
        return spec
    model = spec.init_checksum if known else start_of(spec, shared).checksum
    outer, states = _outer_beside(spec, shared), _left_beside(spec, shared).checksum()
    _check_same(spec, "outer_checksum", outer.checksum if outer else None)
    _check_same(spec, "states_checksum", states)
    best = _best_before(spec, shared)
    _check_same(spec, "best_checksum", best.checksum() if best else None)
    return spec.replace(
        init_checksum=model,
        outer_checksum=outer.checksum if outer else None,
        states_checksum=states,
        best_checksum=best.checksum() if best else None,
    )


def _check_same(spec: Spec, field: str, found: str | None) -> None:
    """Refuse a file that a spec continues from if it has changed since the submission."""
    stated = getattr(spec, field)
    if stated not in {None, found}:
        accepted = f"{spec.init_from} has {'none now' if found is None else f'another: {found}'}"
        raise SpecError(field, stated, accepted)


def first_outer_state(
    spec: Spec, shared: SharedDirectory, model: Mapping[str, Array], trained: Collection[str]
) -> Mapping[str, Array]:
    """Return the state with which the outer optimizer begins or continues.

    Raises:
        SpecError: the state has changed since the submission, or belongs to another network.
        SharedDirectoryError: the shared directory cannot be read.
    """
    begun = first_state(spec.outer, model, trained)
    if spec.outer_checksum is None:
        return begun
    found = _outer_beside(spec, shared)
    _check_same(spec, "outer_checksum", found.checksum if found else None)
    if found is None:
        return begun
    shapes = ({n: (a.shape, a.dtype) for n, a in one.items()} for one in (begun, found.tensors))
    if next(shapes) != next(shapes):
        raise SpecError("init_from", spec.init_from, "its outer state belongs to another network")
    return found.tensors


def handed_on(
    spec: ResolvedSpec, shared: SharedDirectory, store: Store, as_version: AsVersion
) -> HandedOn:
    """Publish what an ended experiment leaves, see `left_behind` and `best_before`.

    Raises:
        SpecError: a file has changed since the experiment was submitted.
        StoreError: a file cannot be read or published.
    """
    handed = NOTHING_HANDED_ON
    if spec.states_checksum is not None:
        left = _left_beside(spec, shared)
        _check_same(spec, "states_checksum", left.checksum())
        handed = left.publish(store)
    if spec.best_checksum is None:
        return handed
    best = _best_before(spec, shared)
    _check_same(spec, "best_checksum", best.checksum() if best else None)
    compared = best.publish(store, as_version) if best else handed
    return replace(handed, best=compared.best, unevaluated=compared.unevaluated)


def _version_of(spec: Spec, shared: SharedDirectory) -> tuple[Path, layout.ModelName] | None:
    """Return the model version that a spec continues from, and its name; None if it is none."""
    if not (spec.rounds_before and spec.init_from):
        return None
    model = find_model(spec.init_from, shared, field="init_from")
    parsed = layout.parse_name(model.name)
    return (model, parsed) if isinstance(parsed, layout.ModelName) else None


def _left_beside(spec: Spec, shared: SharedDirectory) -> LeftBehind:
    """Return the states next to the model version that a spec continues from."""
    found = _version_of(spec, shared) if spec.shards_go_on else None
    return left_behind(spec, found[0], found[1].version) if found is not None else LeftBehind()


def _best_before(spec: ResolvedSpec, shared: SharedDirectory) -> BestBefore | None:
    """Return what the experiment that a spec continues has compared; None if it can't serve."""
    found = _version_of(spec, shared) if spec.goal is not None else None
    return best_before(spec, found[0], found[1].version) if found is not None else None


def _outer_beside(spec: Spec, shared: SharedDirectory) -> NamedModel | None:
    """Return the outer optimizer's state beside the model version that a spec continues from.

    Another optimizer, with a different state, starts without one.
    """
    found = _version_of(spec, shared) if spec.outer.keeps_state else None
    if found is None:
        return None
    model, version = found
    path = model.with_name(layout.outer_name(version.version, version.token))
    if not path.is_file():
        return None
    state = read_model(path, str(spec.init_from), shared, field="init_from")
    return state if is_state_of(spec.outer, state.tensors) else None
