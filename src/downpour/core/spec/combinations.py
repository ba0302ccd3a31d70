"""Checks that the fields of a spec fit together, after each of them has proved valid alone."""

from __future__ import annotations

from math import inf

from downpour.base.evaluations import LOSS, Goal
from downpour.core.families import CODECS
from downpour.core.spec.refusals import ACCEPTED, refusal
from downpour.core.spec.spec_fields import SpecFields

_MEASURED = {LOSS, "accuracy"}
_WITH_PATH = {
    "npz": "--data-path FILE.npz, with the arrays x and y, and optionally x_test and y_test",
    "folder": "--data-path FOLDER, with one folder of images per class",
}
_OF_THE_BUILT_IN_TASK = (
    "dataset",
    "data_path",
    "image_size",
    "flip",
    "dataset_options",
    "model",
    "model_options",
    "loss",
    "channels_last",
)


def check_together(spec: SpecFields) -> None:
    """Refuse fields that contradict each other, or have no effect.

    Raises:
        InvalidField: names the first such field.
    """
    _optimizer_fits(spec)
    _inside_fits(spec)
    _data_fits(spec)
    _start_fits(spec)
    _goal_fits(spec)
    _steps_fit(spec)
    _needs_fit(spec)


def _optimizer_fits(spec: SpecFields) -> None:
    if any(not 0 <= beta < 1 for beta in spec.betas):
        raise refusal("betas", list(spec.betas), f"must be {ACCEPTED['betas']}")
    if spec.nesterov and (spec.momentum == 0 or spec.optimizer != "sgd"):
        sgd = f"is an option of sgd, not of {spec.optimizer}"
        accepted = "needs a momentum above 0" if spec.optimizer == "sgd" else sgd
        raise refusal("nesterov", value=True, accepted=accepted)


def _inside_fits(spec: SpecFields) -> None:
    if spec.inside.processes > 1 and spec.device not in {"cpu", "auto"}:
        raise refusal("inside.processes", spec.inside.processes, "needs device = 'cpu'")
    if spec.inside.how == "hybrid" and spec.precision != "float32":
        raise refusal("inside.how", spec.inside.how, "needs precision = 'float32'")
    if spec.inside.processes > spec.batch_size:
        accepted = f"a batch of {spec.batch_size} has fewer examples"
        raise refusal("inside.processes", spec.inside.processes, accepted)


def _data_fits(spec: SpecFields) -> None:
    if spec.task is None and spec.task_options:
        raise refusal("task_options", spec.task_options, "only a task has them")
    for field in _OF_THE_BUILT_IN_TASK if spec.task is not None else ():
        value = getattr(spec, field)
        if value != type(spec).model_fields[field].get_default(call_default_factory=True):
            raise refusal(field, value, "has no effect with a task, which has its own")
    if (spec.data_path is not None) != (spec.dataset in _WITH_PATH) or spec.data_path == "":
        accepted = f"dataset '{spec.dataset}' has no path; npz and folder do"
        if spec.dataset in _WITH_PATH:
            accepted = f"dataset '{spec.dataset}' needs a path: {_WITH_PATH[spec.dataset]}"
        raise refusal("data_path", spec.data_path, accepted)


def _start_fits(spec: SpecFields) -> None:
    if spec.init_from == "":
        raise refusal("init_from", "", "must be an experiment's ID, or a safetensors file")
    for field, what in (
        ("rounds_before", "which had them"),
        ("init_checksum", "whose file it is"),
        ("outer_checksum", "whose outer optimizer's state it is"),
        ("states_checksum", "whose optimizer states they are"),
        ("best_checksum", "whose best model it is"),
    ):
        value = getattr(spec, field)
        if value and spec.init_from is None:
            raise refusal(field, value, f"needs init_from, {what}")


def _goal_fits(spec: SpecFields) -> None:
    fields = ("keep_best", "stop_after", "validation")
    field = next((name for name in fields if getattr(spec, name)), None)
    if field is not None and not spec.evaluate_every:
        accepted = "needs evaluations, but evaluate_every = 0 turns them off"
        raise refusal(field, getattr(spec, field), accepted)
    if spec.keep_best and spec.task is None and Goal.of(spec.keep_best).metric not in _MEASURED:
        accepted = "must be accuracy or loss; only a task has other metrics"
        raise refusal("keep_best", spec.keep_best, accepted)


def _steps_fit(spec: SpecFields) -> None:
    name = spec.model_compression
    if name != "none" and CODECS[name].feedback is not None:
        fit = ["none", *(one for one, codec in CODECS.items() if codec.feedback is None)]
        accepted = f"sends some numbers only later, but models must be complete: {', '.join(fit)}"
        raise refusal("model_compression", name, accepted)


def _needs_fit(spec: SpecFields) -> None:
    beyond = [number for number in spec.shard_needs if int(number) >= (spec.shards or inf)]
    if beyond:
        accepted = f"the spec has {spec.shards} shards, numbered from 0"
        raise refusal("shard_needs", beyond[0], accepted)
