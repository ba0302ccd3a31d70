"""The files that an experiment begins from, which the manager alone reads.

Beside the parameters these are the states of the outer optimizer and of the shards' optimizers, if
the experiment goes on with another one that had the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

import xxhash

from downpour.base.errors import SpecError
from downpour.base.values import AttemptId, PublishedFile
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.aggregators import first_state, is_state_of
from downpour.files.spec_file import read_spec
from downpour.files.store import Array, SharedDirectory, Store, layout
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.named_model import NamedModel, find_model, read_model

_STATES_DEPEND_ON = (
    "task",
    "task_options",
    "model",
    "model_options",
    "code",
    "shards",
    "optimizer",
    "optimizer_state",
    "compression",
)
"""The fields that decide what a shard's state holds, and of which shard."""


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
        SpecError: `init_from` names no safetensors file, or the spec names other checksums.
        SharedDirectoryError: the shared directory cannot be read.
    """
    if spec.init_from is None:
        return spec
    model = spec.init_checksum if known else start_of(spec, shared).checksum
    outer, states = _outer_beside(spec, shared), _checksum(_states_beside(spec, shared))
    _check_same(spec, "outer_checksum", outer.checksum if outer else None)
    _check_same(spec, "states_checksum", states)
    return spec.replace(
        init_checksum=model,
        outer_checksum=outer.checksum if outer else None,
        states_checksum=states,
    )


def _check_same(spec: Spec, field: str, found: str | None) -> None:
    """Refuse what a spec goes on from if it is not what it was when the spec was submitted."""
    stated = getattr(spec, field)
    if stated not in {None, found}:
        accepted = f"{spec.init_from} has {'none now' if found is None else f'another: {found}'}"
        raise SpecError(field, stated, accepted)


def first_outer_state(
    spec: Spec, shared: SharedDirectory, model: Mapping[str, Array], trained: Collection[str]
) -> Mapping[str, Array]:
    """Return the state with which the outer optimizer begins, or goes on.

    Raises:
        SpecError: the state has changed since it was submitted, or is of another network.
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
        raise SpecError("init_from", spec.init_from, "its outer state is of another network")
    return found.tensors


def first_states(spec: Spec, shared: SharedDirectory, store: Store) -> dict[int, PublishedFile]:
    """Publish the states with which the shards' optimizers go on; returns their files by shard.

    Raises:
        SpecError: they have changed since the experiment was submitted.
        StoreError: they cannot be read or published.
    """
    if spec.states_checksum is None:
        return {}
    paths = _states_beside(spec, shared)
    _check_same(spec, "states_checksum", _checksum(paths))
    return {shard: _adopted(store, shard, path) for shard, path in paths.items()}


def _adopted(store: Store, shard: int, path: Path) -> PublishedFile:
    """Publish a shard's state anew, named as if its first round had left it."""
    begun = AttemptId(experiment="", round=0, shard=shard, attempt=0)
    name = layout.attempt_name("optimizer", begun, secrets.token_hex(3))
    return store.put_new(name, [read_regular(path)])


def _checksum(states: Mapping[int, Path]) -> str | None:
    """Return the checksum of shards' states, of their numbers and files in order; None of none."""
    digest = xxhash.xxh3_128()
    for shard, path in sorted(states.items()):
        digest.update(f"{shard} ".encode())
        digest.update(read_regular(path))
    return digest.hexdigest() if states else None


def _version_of(spec: Spec, shared: SharedDirectory) -> tuple[Path, layout.ModelName] | None:
    """Return the model version that a spec goes on from, and its name; None if it is no version."""
    if not (spec.rounds_before and spec.init_from):
        return None
    model = find_model(spec.init_from, shared, field="init_from")
    parsed = layout.parse_name(model.name)
    return (model, parsed) if isinstance(parsed, layout.ModelName) else None


def _states_beside(spec: Spec, shared: SharedDirectory) -> dict[int, Path]:
    """Return the optimizer states beside the model version that a spec goes on from, by shard.

    Where something differs that they depend on, such as the number of shards, all begin anew.
    """
    found = _version_of(spec, shared) if spec.hands_on else None
    if found is None:
        return {}
    model, version = found
    former = read_spec(model.with_name(layout.SPEC_NAME))
    if any(getattr(former, name) != getattr(spec, name) for name in _STATES_DEPEND_ON):
        return {}
    names = layout.last_states(names_in(model.parent), version.version)
    return {shard: model.with_name(name) for shard, name in names.items()}


def _outer_beside(spec: Spec, shared: SharedDirectory) -> NamedModel | None:
    """Return the outer optimizer's state beside the model version that a spec goes on from.

    Another optimizer, which keeps something else, begins anew.
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
