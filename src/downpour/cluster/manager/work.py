"""The work on one experiment's parameters: from the first model version to the result.

`prepare` makes the dataset, the shards and the first version. `aggregate` and `measure` follow each
round. All are plain functions of a workspace, called by `command_runner.py`.

Functions import torch only when they need it. So a manager that takes over continues the round
without torch, and its workers do not wait 1 to 3 s for the import.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from downpour.base.errors import DownpourError, StoreError, size_in_words
from downpour.base.options import loaders_of
from downpour.base.states import Evaluation
from downpour.base.values import PublishedFile
from downpour.cluster.manager.aggregation import Aggregation, contribution
from downpour.cluster.manager.rehearsal import Rehearsal
from downpour.cluster.manager.start_file import first_outer_state, handed_on, start_of
from downpour.cluster.manager.workspace import Beginning, PreparedExperiment, Workspace
from downpour.cluster.options import ManagerOptions
from downpour.core.resolve import oddities, with_meetings
from downpour.core.scheduler.outputs import Aggregate, Evaluate, Prepare, Publish, Push
from downpour.core.spec import Spec
from downpour.core.splitters import count_classes, divide
from downpour.files import store as files
from downpour.files.aggregators import Contribution, Move, weigh
from downpour.files.store.shared_directory import send_dataset
from downpour.learning.tasks import agreement
from downpour.learning.tasks.agreement import Data, Reading
from downpour.learning.training.epoch_order import batch_order, check_meetings
from downpour.learning.user_code import check_code, variables_read
from downpour.network.rpc.messages import IndexArray
from downpour.record.record_lines import SHARD_CLASSES_MAX

if TYPE_CHECKING:
    from downpour.cluster.manager.global_model import GlobalModel
    from downpour.learning.training.step import StepCost

log = logging.getLogger(__name__)


def prepare(
    space: Workspace, data_dir: Path | None, command: Prepare, cost: StepCost | None = None
) -> PreparedExperiment:
    """Decode the dataset, cut it into shards, try the network, publish the first model version.

    If another process has tried the network, `cost` is that of a step.

    If the experiment continues, the command names the dataset that it began with, and its newest
    model version. This then opens that dataset, and neither tries nor publishes anything.
    """
    spec, began = space.spec, time.perf_counter()
    for what, name in spec.factories.items():
        if what != "dataset" or command.dataset is None:  # else the dataset is there
            check_code(what, name, spec.code)
    retry_policy, folder = space.shared.retry_policy, space.shared.datasets
    key = retry_policy.call_through_outage(
        partial(agreement.prepare_data, spec, folder, data_dir, command.dataset)
    )
    retry_policy.call_through_outage(partial(send_dataset, space.shared, key))
    agreement.check_same_data(spec, folder, key)
    dataset = retry_policy.call_through_outage(partial(agreement.open_data, spec, folder, key))
    facts = dataset.facts
    decoded = time.perf_counter()
    shards, held_out = divide(
        spec, dataset.labels, facts.train_samples, spec.shards, dataset.block_ends
    )
    cut, samples = time.perf_counter(), [len(shard) for shard in shards]
    space.settle(with_meetings(spec, samples))
    spec = space.spec
    check_meetings(spec, samples)
    # Try an order that may be impossible for every shard. Otherwise it would fail on the workers,
    # retry after retry, instead of here with the name of the field.
    for shard, indices in enumerate(shards if spec.batches == "balanced" else ()):
        batch_order(spec, indices, dataset.labels, 0, shard)
    warnings = oddities(spec, samples)
    for warning in warnings if command.model is None else ():
        log.warning("%s: %s", space.experiment, warning)
    if command.model is None:
        begun = _begin(space, dataset, shards, cost)
    else:  # an earlier manager made the beginning
        begun = Beginning(
            model=command.model, frozen=command.frozen, outer=command.outer, trial=command.trial
        )
    return PreparedExperiment(
        dataset_key=key,
        dataset=dataset,
        shards=tuple(shards),
        held_out=held_out,
        begun=begun,
        prepare_seconds=decoded - began,
        split_seconds=cut - decoded,
        remarks=dataset.remarks + begun.remarks,
        warnings=warnings + begun.warnings,
        shard_classes=_shard_classes(shards, dataset),
    )


def prepare_after_rehearsal(
    options: ManagerOptions, space: Workspace, command: Prepare
) -> PreparedExperiment:
    """Prepare an experiment; in a cluster that stays, a child process tries a user's code first."""
    data_dir = Path(options.data_dir) if options.data_dir else None
    loaders = loaders_of(options.loaders)
    if options.embedded or not space.spec.factories or command.model is not None:
        return replace(prepare(space, data_dir, command), loaders=loaders)
    rehearsal = Rehearsal(space.spec, space.shared.datasets, data_dir)
    rehearsal.rehearse()
    made = prepare(space, data_dir, command, rehearsal.cost)
    agrees, trial = rehearsal.agrees(made.dataset_key, made.begun.drawn), made.begun.trial
    begun = replace(made.begun, trial=replace(trial, rehearsed=agrees) if trial else None)
    return replace(made, begun=begun, rehearsed=agrees, loaders=loaders)


def _shard_classes(shards: Sequence[IndexArray], dataset: Data) -> tuple[tuple[int, ...], ...]:
    """Count each shard's examples of each class; empty if there are too many for a record."""
    if len(shards) * dataset.facts.classes > SHARD_CLASSES_MAX:
        return ()
    counts = count_classes(shards, dataset.labels, dataset.facts.classes)
    return tuple(map(tuple, counts.tolist())) if counts.size else ()


def _begin(
    space: Workspace, dataset: Data, shards: Sequence[IndexArray], cost: StepCost | None
) -> Beginning:
    """Draw or read the network, try it, and publish the files that the first round begins from."""
    spec, drawn, remarks = space.spec, _global_model(space.spec, dataset), tuple[str, ...]()
    if spec.init_from is not None:
        remarks = drawn.begin_from(start_of(spec, space.shared).tensors)
    step, warnings = drawn.check_trains(shards, cost=cost), drawn.without_effect()
    warnings += (step.in_parts,) if step is not None and step.in_parts else ()

    def as_version(tensors: Mapping[str, files.Array]) -> Sequence[files.Buffer]:
        return files.encode({name: tensors[name] for name in drawn.parameters()}, drawn.metadata())

    handed = handed_on(spec, space.shared, space.store, as_version)
    model, frozen, outer = _first_model(space, drawn)
    remarks += _begun_anew(spec) + variables_read(spec)
    warnings += _short_of_room(space, model)
    for remark in (*remarks, *warnings):
        log.warning("%s: %s", space.experiment, remark)
    if step is not None:
        log.info("%s: %s", space.experiment, step)
    return Beginning(
        model=model,
        frozen=frozen,
        outer=outer,
        trial=drawn.trial,
        handed_on=handed,
        drawn=drawn,
        step=step,
        remarks=remarks,
        warnings=warnings,
    )


def _short_of_room(space: Workspace, model: PublishedFile) -> tuple[str, ...]:
    """Warn if the shared directory may be too full for a round's files."""
    if space.shared.bucket is not None:
        return ()
    # Four versions and, of each shard, an update; a state has two numbers a parameter at most.
    count = 4 + space.spec.shards * (3 if space.spec.hands_on else 1)
    free, needed = shutil.disk_usage(space.shared.root).free, count * model.size_bytes
    if free > needed:
        return ()
    room = f"{size_in_words(free)} free, and the experiment may need {size_in_words(needed)}"
    return (f"{space.shared.root} has {room}; see `downpour du`",)


def _begun_anew(spec: Spec) -> tuple[str, ...]:
    """Say what an experiment does not take over from the one that it continues."""
    lines = []
    if spec.rounds_before and spec.shards_go_on and spec.states_checksum is None:
        lines += [f"shards start without optimizer states: those of {spec.init_from} do not fit"]
    if spec.rounds_before and spec.outer.keeps_state and spec.outer_checksum is None:
        lines += [f"no outer state so far: that of {spec.init_from} does not fit or is gone"]
    if spec.rounds_before and spec.goal is not None and spec.best_checksum is None:
        lines += [f"no best model so far: that of {spec.init_from} cannot be compared or is gone"]
    return tuple(lines)


def _first_model(
    space: Workspace, drawn: GlobalModel
) -> tuple[PublishedFile, PublishedFile | None, PublishedFile | None]:
    """Publish the first model version, and before it the frozen parameters and the outer state.

    The frozen parameters are never trained, so their file is separate from all versions. Its
    metadata has the further names of tied parameters, as safetensors has it.
    """
    store, arrays, ties = space.store, drawn.frozen(), drawn.ties()
    frozen, outer, token = None, None, space.token(3)
    if arrays or ties:
        frozen = store.put_new(files.layout.frozen_name(space.token(3)), files.encode(arrays, ties))
    if space.spec.outer.keeps_state:
        state = first_outer_state(space.spec, space.shared, drawn.parameters(), drawn.trained())
        outer = _put_outer(space, 0, token, state)
    name = str(files.layout.ModelName(0, token))
    return store.put_new(name, files.encode(drawn.parameters(), drawn.metadata())), frozen, outer


def _put_outer(
    space: Workspace, version: int, token: str, state: Mapping[str, files.Array]
) -> PublishedFile:
    name, packs = str(files.layout.OuterName(version, token)), space.spec.publishes_steps
    return space.store.put_new(name, files.encode(state, {}), packs=packs)


def in_one_file(
    space: Workspace, model: PublishedFile, leading: Sequence[PublishedFile]
) -> PublishedFile:
    """Publish, as a whole, a version that is a step from others; returns the file."""
    if model not in space.copies:
        content = _whole(space, model, leading, frozen=None)
        parsed = files.layout.parse_name(model.name)
        version = parsed.version if isinstance(parsed, files.layout.ModelName) else 0
        name = str(files.layout.WholeName(version, space.token(3)))
        log.warning("%s: %s is published whole, as %s", space.experiment, model.name, name)
        space.copies[model] = space.store.put_new(name, content)
    return space.copies[model]


class NewVersion(NamedTuple):
    """A model version, the outer optimizer's state, the shards' own parameters, and the mean."""

    model: PublishedFile
    outer: PublishedFile | None
    own: tuple[PublishedFile, ...]
    mean: PublishedFile | None = None


def aggregate(space: Workspace, command: Aggregate) -> NewVersion:
    """Make the next model version from updates, and the files that belong to it.

    This folds a round's updates or, in an asynchronous mode, moves the newest version by some.
    """
    contributions = list(map(contribution, command.shards, command.updates))
    weights = weigh(space.spec.aggregate, contributions)
    store, model, sums = space.store, command.model, space.aggregation
    versions = sums.versions
    versions.follow(command.versions)
    if _is_sole(space.spec, command):
        return _linked(space, command, contributions[0])
    moves: list[Move] = []
    if command.in_step or callable(weights):
        arrays, about = sums.mean(model, command.pushes)
    else:
        moves = [
            Move(
                shard=push.shard,
                file=push.update.file,
                base=model if command.mixes else push.base,
                factor=weight * push.weight,
            )
            for push, weight in zip(command.pushes, weights, strict=True)
        ]
        arrays, about = sums.moved(model, moves)
    # The name has a token because an earlier manager may have published this version and ended
    # before it journaled that. We never use a name twice.
    version, token, outer, mean = command.round + 1, space.token(3), None, None
    if command.keeps_mean:  # before the outer step, which changes the arrays
        shown, content = _rounded(space, command, arrays, about)
        name = str(files.layout.MeanName(version, token))
        mean = store.put_new(name, content, packs=not command.whole)
        versions.keep(mean, {name: array.copy() for name, array in shown.items()}, about)
    if command.outer is not None:
        kept = command.versions or (model,)
        state = sums.outer_at(kept, command.outer, command.since_outer)
        after = sums.outer_step(versions.read(model).tensors, arrays, state)
        # Publish it before the model, so that a manager that finds a version can continue from it.
        if command.whole or not command.in_step or _holds_much(command, after):
            outer = _put_outer(space, version, token, after)
    arrays, content = _rounded(space, command, arrays, about)
    own = []
    for move in moves if command.elastic else ():
        tensors = sums.own_after(model, move)
        name = str(files.layout.OwnName(version, move.shard, token))
        own.append(store.put_new(name, files.encode(tensors, about)))
        versions.keep(own[-1], tensors, about)
    name = str(files.layout.ModelName(version, token))
    made = store.put_new(name, content, packs=not command.whole)
    if command.in_step:  # no task begins from these any more
        versions.forget(file for file in (model, command.outer) if file is not None)
    if outer is not None:
        versions.keep(outer, after, {})
    sums.outer = (made, after) if command.outer is not None and outer is None else None
    versions.keep(made, arrays, about)
    return NewVersion(made, outer, tuple(own), mean)


_HELD_STATES = 16
"""After updates of how many times its bytes we publish the outer optimizer's state again. They take
room in the directory, and a manager that takes over reads them all."""


def _holds_much(command: Aggregate, state: Mapping[str, files.Array]) -> bool:
    pushes = chain(command.pushes, *command.since_outer)
    held = sum(push.update.file.size_bytes for push in pushes)
    return held > _HELD_STATES * sum(array.nbytes for array in state.values())


def _is_sole(spec: Spec, command: Aggregate) -> bool:
    """Whether the next version is a round's only update, and nothing is left to compute."""
    is_whole = spec.update_codec == files.WHOLE and not spec.publishes_steps
    changes = command.outer is not None or command.elastic
    return command.in_step and len(command.pushes) == 1 and is_whole and not changes


def _linked(space: Workspace, command: Aggregate, contribution: Contribution) -> NewVersion:
    """Publish a round's only update under the name of the next version."""
    space.aggregation.check_sole(command.model, command.pushes[0].base, contribution)
    name = str(files.layout.ModelName(command.round + 1, space.token(3)))
    made = space.store.link(contribution.file, name)
    space.aggregation.versions.forget([command.model])
    return NewVersion(made, None, ())


def _rounded(
    space: Workspace, command: Aggregate, arrays: dict[str, files.Array], about: Mapping[str, str]
) -> tuple[dict[str, files.Array], Sequence[files.Buffer]]:
    """Return the version to publish for some tensors, and the content of its file.

    If versions are differences, the version has the precision of a difference, even if we write it
    whole. So the parameters do not depend on which versions are whole.
    """
    if not space.spec.publishes_steps:
        return arrays, files.encode(arrays, about)
    base = space.aggregation.versions.read(command.model)
    made, step = files.step_to(arrays, base, command.model, space.spec.model_compression)
    return made.tensors, files.encode(made.tensors, about) if command.whole else step


def measure(space: Workspace, command: Evaluate) -> Evaluation:
    """Evaluate a model version on the test examples, or on those set apart for validation."""
    if space.global_model is None:
        drawn = _global_model(space.spec, ready(space).dataset)
        if (frozen := ready(space).begun.frozen) is not None:
            drawn.load_frozen(_tensors(space.store, frozen))
        space.global_model = drawn
    held_out = ready(space).held_out if command.part == "validation" else None
    model = space.aggregation.versions.read_after(command.leading, command.model)
    reading = Reading(space.shared.datasets, ready(space).dataset_key, ready(space).loaders)
    evaluation = space.global_model.evaluate(model.tensors, held_out, reading)
    if not math.isfinite(evaluation.loss):  # perhaps only for a while; the experiment goes on
        line = "%s: the loss of %s on the %s examples is NaN or infinite"
        log.warning(line, space.experiment, command.model.name, command.part)
    return evaluation


def publish(space: Workspace, command: Publish) -> PublishedFile:
    """Publish the whole final model under the plain name that users look for.

    If the spec keeps the best model, this publishes that first. If parameters were frozen, it also
    publishes an adapter with the trained ones, next to the final model.
    """
    if command.best is not None:
        _put_result(space, files.layout.BEST_NAME, command.best)
    model = partial(_put_result, space, file=command.model, leading=command.leading)
    frozen = ready(space).begun.frozen
    if frozen is not None and _tensors(space.store, frozen):
        model(files.layout.ADAPTER_NAME, with_frozen=False)
    return model(files.layout.FINAL_NAME)


def _put_result(
    space: Workspace,
    name: str,
    file: PublishedFile,
    leading: Sequence[PublishedFile] = (),
    *,
    with_frozen: bool = True,
) -> PublishedFile:
    """Publish a model version under a second name, as a link if nothing else belongs to it."""
    store, links = space.store, False
    frozen = ready(space).begun.frozen if with_frozen else None
    with suppress(StoreError):  # of a damaged file, this process may still hold the version
        # A step also names its base, and an update that was a round's only one describes its task.
        about = {} if frozen else files.decode(store.read(file), file.name).metadata
        links = frozen is None and about == files.about_model(about)
    chunks = () if links else _whole(space, file, leading, frozen)
    # An earlier manager may have published it, and ended before it journaled that.
    if name in store.list():
        published, digest = store.describe(name), xxhash.xxh3_128()
        for chunk in chunks:
            digest.update(chunk)
        if published.checksum == (file.checksum if links else digest.hexdigest()):
            return published
    return store.link(file, name) if links else store.put_new(name, chunks)


def _whole(
    space: Workspace,
    file: PublishedFile,
    leading: Sequence[PublishedFile],
    frozen: PublishedFile | None,
) -> Sequence[files.Buffer]:
    """Return a file's content: a model version, the frozen parameters, and all tied names."""
    model = space.aggregation.versions.read_after(leading, file)
    if frozen is None:
        return files.encode(model.tensors, files.about_model(model.metadata))
    apart = files.decode(space.store.read(frozen), frozen.name)
    whole = {**apart.tensors, **model.tensors}
    return files.encode(
        {**whole, **{tied: whole[name] for tied, name in apart.metadata.items()}}, {}
    )


def _tensors(store: files.Store, file: PublishedFile) -> Mapping[str, files.Array]:
    return files.decode(store.read(file), file.name).tensors


def last_versions(
    store: files.Store,
    sums: Aggregation,
    versions: tuple[PublishedFile, ...],
    since_outer: Sequence[Sequence[Push]],
) -> tuple[PublishedFile, ...]:
    """Return an ended experiment's versions, and the outer optimizer's state at the last one.

    Publish that state if no file has it: an experiment that continues this one begins with it.
    """
    if not since_outer:
        return versions
    *models, outer = versions
    name = files.layout.beside(models[-1].name, files.layout.OuterName)
    try:
        if name in store.list():
            return (*models, store.describe(name))
        state = sums.outer_at(models, outer, since_outer)
        return (*models, store.put_new(name, files.encode(state, {}), packs=True))
    except DownpourError as error:
        log.warning("%s is lost: %s", name, error)
        return versions


def sweep(
    store: files.Store,
    *,
    finished: bool,
    kept: Iterable[PublishedFile] = (),
    versions: Collection[PublishedFile] = (),
) -> None:
    """Remove files that only a running experiment needs, see `layout.left_over`."""
    names = files.layout.left_over(store.list(), finished=finished, kept=kept, versions=versions)
    remove(store, sorted(names))
    store.remove_leftovers()


def remove(store: files.Store, names: Iterable[str]) -> None:
    """Remove every file that can be removed."""
    errors = []
    for name in names:
        try:
            store.delete(name)
        except (StoreError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[0]


def ready(space: Workspace) -> PreparedExperiment:
    """Return what `prepare` made; the core gives no other command before that."""
    if space.prepared is None:
        raise RuntimeError(f"{space.experiment} has not been prepared")
    return space.prepared


def _global_model(spec: Spec, dataset: Data) -> GlobalModel:
    from downpour.cluster.manager.global_model import GlobalModel

    return GlobalModel(spec, dataset)
