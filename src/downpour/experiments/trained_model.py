"""Uses a trained model: builds it as a torch module, measures it, predicts, and exports it.

We build it in the same way as for training. We bring examples that a user gives into the form of
the training examples, and normalize them in the same way.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from downpour.base.errors import OtherCode, SpecError, StoreError
from downpour.base.names import checked_call
from downpour.base.states import Evaluation
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.experiments.client import Asked, spec_of
from downpour.experiments.locating import FIELD, Source, TrainedModel, find, own_datasets
from downpour.experiments.surroundings import shared_path
from downpour.files.store import FINAL_NAME, SPEC_NAME, encode
from downpour.files.store.directory import read_regular
from downpour.files.store.model_files import read_model
from downpour.host.paths import empty_folder, open_user_file, path_of
from downpour.learning import datasets, numerics
from downpour.learning.accelerators import devices_here
from downpour.learning.blame import describe_error
from downpour.learning.datasets import SOURCES, Examples, PreparedDataset, open_prepared
from downpour.learning.datasets.array_folder import FACTS_FILE, parsed_facts, read_facts
from downpour.learning.datasets.arrays import Npz, naming
from downpour.learning.datasets.images import (
    IMAGE_SUFFIXES,
    decoded_images,
    entries,
    has_test_part,
    is_image,
)
from downpour.learning.datasets.prepared import without_examples
from downpour.learning.tasks import ExampleList, resemble
from downpour.learning.tasks.agreement import Data, TaskData, prepare_data
from downpour.learning.tasks.batches import batch_of
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.loaded import load as load_task
from downpour.learning.tasks.own import examples_of, limited, own_task, sketched, theirs
from downpour.learning.training import parameters
from downpour.learning.training.evaluation import evaluate, examples_together
from downpour.learning.user_code import check_code

log = logging.getLogger(__name__)

_NO_DATA = TaskData(
    facts=DatasetFacts(
        train_samples=0, test_samples=0, sample_shape=(), classes=0, targets_per_sample=0
    ),
    labels=None,
    sketches={"train": {}, "test": {}},
)
"""The facts about a task's examples before anyone has looked at one."""


@checked_call()
def load_model(
    source: Source, *, shared: str | os.PathLike[str] | None = None, spec: Asked | None = None
) -> nn.Module:
    """Return a trained network with its parameters, on the CPU and in eval mode.

    Args:
        source: A result, the ID of an experiment, or a path: a model's file, an experiment's
            folder or one of `downpour export`. If an experiment has not ended, this loads its
            newest model. `ID@best` is the best model that it has kept, and `ID/FILE` another file
            of its folder.
        shared: The shared directory; by default DOWNPOUR_SHARED, or else ./shared_dir.
        spec: The spec that the file was trained with, if no `spec.toml` is next to it, in the forms
            that `run` takes.

    Raises:
        SpecError: the model does not exist, or its network cannot be built. Your own code must be
            on the allow-list, DOWNPOUR_ALLOW.
    """
    known = spec_of(spec) if spec is not None else None
    return load(find(source, shared_path(shared), known))


def load(trained: TrainedModel) -> nn.Module:
    """Return the network of a model that `find` returned; see `load_model`."""
    _warn_of_other_code(trained.spec)
    model = task_of(trained).network()
    _fill(model, trained)
    return model.eval()


def _fill(model: nn.Module, trained: TrainedModel) -> None:
    """Copy a trained model's parameters into its network."""
    tensors = read_model(trained.file, trained.name, None, field=FIELD).tensors
    for remark in parameters.begin_from(model, tensors, trained.name, field=FIELD):
        log.warning("%s", remark)
    if missing := parameters.lacking(model, {*tensors, *parameters.frozen_of(model)}):
        raise SpecError(FIELD, trained.name, f"lacks {missing[0]}, which the network trains")


def task_of(trained: TrainedModel, data: Data | None = None) -> LoadedTask:
    """Make the task of a trained model, on this machine; by default without any examples."""
    spec = trained.spec.replace(device=devices_here().nearest(trained.spec.device))
    if data is None:
        data = _known_data(trained) if spec.task is None else _NO_DATA
    return load_task(spec, data)


def _warn_of_other_code(spec: Spec) -> None:
    """Log which files of the user's code have changed since the model's training."""
    for field, name in spec.factories.items():
        try:
            check_code(field, name, spec.code)
        except OtherCode as error:
            log.warning("%s: the code has changed since this model was trained: %s", name, error)


def _known_data(trained: TrainedModel) -> PreparedDataset:
    """Return the dataset that a model was trained on, with its facts but without its examples."""
    try:
        return without_examples(_stated_facts(trained), trained.name)
    except StoreError as error:
        raise SpecError(FIELD, trained.name, f"its data cannot be read: {error}") from None


def _stated_facts(trained: TrainedModel) -> Mapping[str, Any]:
    """Return what `facts.json` says about the data that a model was trained on."""
    beside = trained.file.parent / FACTS_FILE
    if not beside.is_file():
        return read_facts(trained.data_root / data_key(trained))
    return parsed_facts(read_regular(beside), FACTS_FILE)


def data_key(trained: TrainedModel, data_dir: Path | None = None) -> str:
    """Return the key of the data that a model was trained on; prepare the data again if gone."""
    root, key = trained.data_root, trained.data_key
    try:
        if root == own_datasets():
            root.mkdir(parents=True, exist_ok=True)
        return prepare_data(trained.spec, root, data_dir, key or None)
    except (StoreError, OSError) as error:
        raise SpecError(FIELD, trained.name, f"its data cannot be read: {error}") from None


PRETRAINED = "pretrained"


def export(trained: TrainedModel, folder: Path) -> list[Path]:
    """Write a trained model into a new or empty folder; return the written files.

    The folder holds the `state_dict` as safetensors, the spec, and the facts about the data that a
    program needs to build the network again. If the network has its own `save_pretrained`, the
    folder also holds the files that it writes.
    """
    model = load(trained)
    # Read this before writing anything: if the file is unreadable, no part of a folder stays.
    facts = None if trained.spec.task is not None else json.dumps(_stated_facts(trained))
    empty_folder("to", folder)
    try:
        with (folder / FINAL_NAME).open("wb") as file:
            arrays = {**parameters.parameters_of(model), **parameters.frozen_of(model)}
            ties = {tied: arrays[name] for tied, name in parameters.ties_of(model).items()}
            file.writelines(encode({**arrays, **ties}, {}))
        (folder / SPEC_NAME).write_text(trained.spec.to_toml(), encoding="utf-8")
        if facts is not None:
            (folder / FACTS_FILE).write_text(facts, encoding="utf-8")
        save = getattr(model, "save_pretrained", None)
        if callable(save):
            _save_pretrained(save, folder / PRETRAINED, trained)
    except OSError as error:
        raise SpecError("to", str(folder), f"cannot be written: {error.strerror}") from None
    return sorted(folder.iterdir())


def _save_pretrained(save: Callable[[str], Any], folder: Path, trained: TrainedModel) -> None:
    try:
        save(str(folder))
    except Exception as error:
        accepted = f"its save_pretrained() fails: {describe_error(error)}"
        raise SpecError(FIELD, trained.name, accepted) from error


_NAMED = 5
"""How many of the files that it leaves out a line names."""
_X = ("x", "x_test", "test_images")


def read_labelled(path: Path, dataset: PreparedDataset, spec: Spec, *, field: str) -> Examples:
    """Read examples to measure a model on: the test part if there is one, else all.

    The path is a .npz file, or a folder of images by class. `field` is the user's name for it.
    """
    kind = "folder" if path.is_dir() else "npz"
    given = Spec(dataset=kind, data_path=str(path), image_size=spec.image_size)
    with _named(field, path):
        x, y = _of_folder(given, path) if path.is_dir() else Npz().read_labelled(given)
        return Examples(
            x=datasets.examples_like(x, dataset, given), y=datasets.targets_like(y, dataset, given)
        )


def _read_inputs(
    path: Path, dataset: PreparedDataset, spec: Spec
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read examples to predict: an .npz or .npy file, an image, or a folder of images.

    Returns:
        The examples, and the name of each: a file, or the number of a row from 0.
    """
    given = Spec(image_size=spec.image_size)
    with _named(INPUT, path):
        if path.suffix in {".npz", ".npy"}:
            open_user_file(path).close()  # refuses one that a library would wait for
            x = _array(path)
            names = tuple(map(str, range(len(x))))
        else:
            files = _images(path)
            if not dataset.images:
                accepted = "must be a .npz or .npy file, because the model takes no images"
                raise SpecError("dataset", path.name, accepted)
            x = decoded_images(files, dataset.train.x.shape[-1], spec.image_size)
            names = tuple(file.name for file in files)
        return datasets.examples_like(x, dataset, given), names


def _of_folder(given: Spec, path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    arrays = SOURCES["folder"].find(given, None, Path()).read()
    for remark in arrays.remarks:
        if "held out" not in remark:  # all are measured
            log.warning("%s: %s", path.name, remark)
    if has_test_part(path):
        return arrays.test_x, arrays.test_y
    if not len(arrays.test_x):  # so few that none was held out
        return arrays.train_x, arrays.train_y
    both = (arrays.train_x, arrays.test_x), (arrays.train_y, arrays.test_y)
    return np.concatenate(both[0]), np.concatenate(both[1])


def _array(path: Path) -> NDArray[Any]:
    with naming(path):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            found = loaded
        else:
            with loaded as archive:
                found = np.asarray(archive[_name_in(archive.files)])  # a member may be no array
    if found.dtype.kind not in "biuf" or not found.ndim or not len(found):
        raise SpecError("dataset", path.name, "must hold numbers, one example per row")
    return found


def _name_in(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    known = [name for name in _X if name in names]
    if len(known) != 1:
        there = ", ".join(names) or "none"
        raise SpecError("dataset", "", f"must hold one array, or one called x; it holds {there}")
    return known[0]


def _images(path: Path) -> list[Path]:
    files = entries(path) if path.is_dir() else [path]
    images = [file for file in files if is_image(file) and file.is_file()]
    if not images:
        kinds = ", ".join(sorted(IMAGE_SUFFIXES))
        accepted = f"must be a .npz or .npy file, an image ({kinds}), or a folder of images"
        raise SpecError("dataset", path.name, accepted)
    others = sorted({*files} - {*images})
    names = [f"{other.name}/" if other.is_dir() else other.name for other in others]
    if len(names) > _NAMED:
        names[_NAMED:] = [f"{len(names) - _NAMED} more"]
    if names:
        log.warning("%s: left out, because no images: %s", path.name, ", ".join(names))
    return images


@contextmanager
def _named(field: str, path: Path) -> Iterator[None]:
    """Let errors about examples use the user's name for them."""
    try:
        path.stat()
        yield
    except SpecError as error:
        raise SpecError(field, str(path), error.accepted) from None
    except FileNotFoundError:
        raise SpecError(field, str(path), "no such file or folder") from None
    except OSError as error:
        raise SpecError(field, str(path), f"cannot be read: {error.strerror}") from None


INPUT = "INPUT"
_PARTS = ("train", "test")
Row = dict[str, Any]
"""Plain values by column."""


def predict(trained: TrainedModel, given: str) -> list[Row]:
    """Return a model's predictions for examples, a row each; its first column names the example.

    `given` is a file or folder for a built-in model (see `_read_inputs`), and a part of the
    examples of a task, such as "test".
    """
    _warn_of_other_code(trained.spec)
    if trained.spec.task is None:
        task, names = _built_in(trained, given)
        part = "test"
    else:
        task, part = task_of(trained), given
        examples = examples_of(task.task, trained.spec, part)
        with theirs(trained.spec, f'examples("{part}") fails'):
            names = tuple(map(str, range(len(examples))))
    if not names:
        raise SpecError(INPUT, given, "has no examples")
    if trained.spec.task is not None and part not in _PARTS:
        _refuse_unknown(task, part, examples)
    model = task.network()
    _fill(model, trained)
    return list(_rows(model, task, part, names))


def _refuse_unknown(task: LoadedTask, part: str, examples: ExampleList) -> None:
    """Refuse a part for which a task returns the examples of another, so that it isn't its own."""
    ends = 0, len(examples) - 1
    for known in _PARTS:
        others = examples_of(task.task, task.spec, known)
        with theirs(task.spec, f'cannot read an example of "{part}"'):
            is_same = len(others) == len(examples) and all(
                resemble(sketched(others, known, end), sketched(examples, part, end))
                for end in ends
            )
        if is_same:
            accepted = "must be a part that examples() knows, such as train or test; for this one "
            raise SpecError(INPUT, part, f'{accepted}it returns those of "{known}"')


def _built_in(trained: TrainedModel, given: str) -> tuple[LoadedTask, tuple[str, ...]]:
    dataset: PreparedDataset = _known_data(trained)
    x, names = _read_inputs(path_of(INPUT, given), dataset, trained.spec)
    known = dataset.train.y
    test = Examples(x=x, y=np.zeros((len(x), *known.shape[1:]), known.dtype))
    facts = replace(dataset.facts, test_samples=len(x))
    return task_of(trained, replace(dataset, facts=facts, test=test)), names


def _rows(model: nn.Module, task: LoadedTask, part: str, names: tuple[str, ...]) -> Iterator[Row]:
    spec = task.spec
    examples = examples_of(task.task, spec, part)
    numerics.place(model, spec, images=task.images)
    model.eval()
    with numerics.settings(spec), torch.no_grad(), numerics.seeded(spec.seed):
        size = spec.batch_size if spec.task else examples_together(model, task)
        for start in range(0, len(names), size):
            chosen = np.arange(start, min(start + size, len(names)))
            with theirs(spec, "predict() fails"), numerics.precision(spec):
                batch = batch_of(task.task, examples, part, chosen, spec.device)
                said = task.task.predict(model, batch)
                columns = _columns(said, len(chosen), task)
            for row, number in enumerate(chosen):
                values = {name: column[row] for name, column in columns.items()}
                yield {"example": names[number], **values}


def _columns(said: object, count: int, task: LoadedTask) -> dict[str, list[Any]]:
    """Return a task's predictions as lists by name; a lone tensor is called "output"."""
    named = said if isinstance(said, Mapping) else {"output": said}
    columns = {}
    for name, value in named.items():
        kind = f"{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        lone_number = isinstance(value, Tensor) and value.dim() == 0
        if not isinstance(value, Tensor | list) or lone_number or len(value) != count:
            accepted = f"predict() must return a row for each of {count} examples, not {kind}"
            raise SpecError(*task.spec.trained_code, accepted)
        if isinstance(value, Tensor):
            lone = value.dim() == 2 and value.shape[1] == 1
            value = (value[:, 0] if lone else value).tolist()  # noqa: PLW2901
        columns[str(name)] = value
    return columns


def measure(
    trained: TrainedModel,
    *,
    data: Path | None = None,
    data_dir: Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Measure a trained model as its experiment did, after training.

    `data` are examples for a built-in model, in place of its test examples. `data_dir` has the
    files of datasets, if Downpour must prepare them again. `options` are `task_options` that differ
    from the training's, such as the place of a task's examples.
    """
    _warn_of_other_code(trained.spec)
    if trained.spec.task is None:
        task = _classification(trained, data, data_dir, options or {})
    else:
        task = _own(trained, data, options or {})
    model = task.network()
    _fill(model, trained)
    return evaluate(model, task)


def _classification(
    trained: TrainedModel, data: Path | None, data_dir: Path | None, options: Mapping[str, Any]
) -> LoadedTask:
    if options:
        raise SpecError("task_options", dict(options), "only a task has them")
    if data is not None:
        known = _known_data(trained)
        examples = read_labelled(data, known, trained.spec, field="data")
        facts = replace(known.facts, test_samples=len(examples))
        return task_of(trained, replace(known, facts=facts, test=examples))
    try:
        return task_of(trained, open_prepared(trained.data_root, data_key(trained, data_dir)))
    except StoreError as error:
        raise SpecError(FIELD, trained.name, f"its data cannot be read: {error}") from None


def _own(trained: TrainedModel, data: Path | None, options: Mapping[str, Any]) -> LoadedTask:
    spec = trained.spec
    if data is not None:
        accepted = "is for built-in models; a task's options give the path of its examples"
        raise SpecError("data", str(data), accepted)
    spec = spec.replace(task_options={**spec.task_options, **options})
    with theirs(spec, 'examples("test") fails'):
        samples = limited(len(own_task(spec).examples("test")), spec, "test")
    if not samples:
        raise SpecError("task", spec.task, 'examples("test") has none to evaluate on')
    facts = replace(_NO_DATA.facts, test_samples=samples)
    return task_of(replace(trained, spec=spec), replace(_NO_DATA, facts=facts))
