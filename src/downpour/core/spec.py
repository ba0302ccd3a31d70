"""The spec of an experiment: one frozen, validated value, read from TOML and written back to it.

A spec is the whole input of an experiment: in synchronous mode, the bytes of every model version
follow from the resolved spec alone (within one numeric class). So every setting that changes a
result must be in the spec. Nothing here may depend on the machine or touch a file
(`files/spec_file.py` does that). `core/families.py` has the names of splitters, modes, policies and
others; each module imports their code when it uses them. A spec refuses an invalid field in one
line (`spec_refusals.py`).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import FunctionType
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from downpour.base.errors import SpecError
from downpour.base.names import AUTO, DEVICE_PATTERN
from downpour.base.states import LOSS, Goal
from downpour.core.families import CODECS
from downpour.core.spec_fields import Inside, Outer, SpecFields
from downpour.core.spec_refusals import ACCEPTED, Fields, not_default, refusal


def batches_in(samples: int, batch_size: int, last_batch: str = "even") -> int:
    """Return the number of batches of a shard, at least one if it has examples."""
    whole, rest = divmod(samples, batch_size)
    has_rest = (rest > 1 and last_batch != "drop") or (rest and not whole)
    return whole + 1 if has_rest else whole


@dataclass(frozen=True, slots=True)
class Meetings:
    """An experiment's `epochs`, the rounds in `each` epoch, and the rounds `before` it.

    An experiment counts its own rounds, from 0. Epochs are those of the whole training, from 0, and
    include the epochs of experiments that this one continues. So rounds before it have negative
    numbers here. It may begin in the middle of an epoch, which is then its first epoch.
    """

    epochs: int
    each: int = 1
    before: int = 0

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the meetings of a record's spec; of no spec, there are none.

        While `meet` is `auto`, before the shards are cut, an epoch has at least one.
        """
        each = fields.get("meet", AUTO)
        numbers = (
            fields.get("epochs", 0),
            1 if each == AUTO else each,
            fields.get("rounds_before", 0),
        )
        return cls(*map(int, numbers))

    @property
    def rounds(self) -> int:
        """How many rounds the experiment has."""
        return self.epochs * self.each - self.before % self.each

    @property
    def epochs_in_all(self) -> int:
        """How many epochs the whole training has, including earlier ones."""
        return self.epochs_before + self.epochs

    @property
    def epochs_before(self) -> int:
        """How many epochs had ended before this experiment."""
        return self.before // self.each

    def named(self, number: int) -> str:
        """Name a round in words: its epoch, and the round itself if the epoch has several."""
        which = f"epoch {self.epoch_of(number) + 1}"
        return which if self.each == 1 else f"{which}, round {number + 1}"

    def epoch_of(self, number: int) -> int:
        """Return the epoch of a round, of the whole training; both count from 0."""
        return (self.before + number) // self.each

    def ends_epoch(self, number: int) -> bool:
        """Whether an epoch ends with this round."""
        return (self.before + number + 1) % self.each == 0

    def last_of(self, epochs: int) -> int:
        """Return the round with which the training's first `epochs` epochs end."""
        return epochs * self.each - 1 - self.before


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
    if spec.precision == "float16" and spec.inside != Inside():
        raise refusal("precision", spec.precision, "needs inside = 'data' with one process")
    if spec.inside.processes > spec.batch_size:
        accepted = f"a batch of {spec.batch_size} has fewer examples"
        raise refusal("inside.processes", spec.inside.processes, accepted)


def _data_fits(spec: SpecFields) -> None:
    if spec.task is None and spec.task_options:
        raise refusal("task_options", spec.task_options, "only a task has them")
    if spec.order in {"blocks", "given"} and spec.batches != "shuffled":
        raise refusal("order", spec.order, "needs batches = 'shuffled'")
    for field, value in not_default(spec, _OF_THE_BUILT_IN_TASK if spec.task else ()).items():
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
        fit = ["none", *(other for other, codec in CODECS.items() if codec.feedback is None)]
        accepted = f"sends some numbers only later, but models must be complete: {', '.join(fit)}"
        raise refusal("model_compression", name, accepted)


def _audit_fits(spec: SpecFields) -> None:
    if spec.audit and not spec.repeatable:
        raise refusal("audit", spec.audit, "needs repeatable = true: it compares bytes")
    if spec.stop_if_wrong and not spec.audit:
        raise refusal("stop_if_wrong", value=True, accepted="has no effect without audit")
    if spec.stop_if_wrong and spec.overlap:
        raise refusal("stop_if_wrong", value=True, accepted="needs overlap = 0")


def _needs_fit(spec: SpecFields) -> None:
    beyond = [number for number in spec.shard_needs if int(number) >= (spec.shards or inf)]
    if beyond:
        accepted = f"the spec has {spec.shards} shards, numbered from 0"
        raise refusal("shard_needs", beyond[0], accepted)


TABLES: dict[str, type[Fields]] = {"inside": Inside, "outer": Outer}
"""The fields that are tables, and the class of each."""
_FIRST = {"inside": "how", "outer": "optimizer"}
"""The field that a word sets if it replaces the whole table, as in outer = "none"."""


class Spec(SpecFields):
    """An experiment's spec: the training, its data, and its settings; every field has a default.

    Raises:
        SpecError: a field is invalid, however you make the spec. The error names the field and the
            accepted values.
    """

    @field_validator("data_path", "init_from", mode="before")
    @classmethod
    def _text_from_path(cls, value: object) -> object:
        return value.__fspath__() if hasattr(value, "__fspath__") else value

    @field_validator("task", "model", "dataset", mode="before")
    @classmethod
    def _named(cls, value: object, field: ValidationInfo) -> object:
        """Name a class or function of an importable module, because a spec holds only text."""
        if not isinstance(value, type | FunctionType):
            return value
        module, name = value.__module__, getattr(value, "__qualname__", "")
        if module == "__main__" or "." in name or not name.isidentifier():
            accepted = (
                "must be importable by other processes: move it to a file lab.py, and write "
                f'Spec({field.field_name}="lab:{name.rpartition(".")[2] or "NAME"}")'
            )
            raise refusal(str(field.field_name), f"{module}:{name}", accepted)
        return f"{module}:{name}"

    @field_validator(*TABLES, mode="before")
    @classmethod
    def _from_table(cls, value: object, field: ValidationInfo) -> object:
        name = str(field.field_name)
        value = {_FIRST[name]: value} if isinstance(value, str) else value
        if not isinstance(value, TABLES[name] | Mapping):
            raise refusal(name, value, f"must be {ACCEPTED[name]}")
        return TABLES[name].make(value) if isinstance(value, Mapping) else value

    def _check_together(self) -> None:
        """Refuse fields that contradict each other, or have no effect."""
        _optimizer_fits(self)
        _inside_fits(self)
        _data_fits(self)
        _start_fits(self)
        _goal_fits(self)
        _steps_fit(self)
        _audit_fits(self)
        _needs_fit(self)

    @field_validator("keep_best")
    @classmethod
    def _keep_best_is_a_goal(cls, value: str | None) -> str | None:
        try:
            return value if value is None else str(Goal.of(value))
        except ValueError:
            raise refusal("keep_best", value, f"must be {ACCEPTED['keep_best']}") from None

    @property
    def parts(self) -> int:
        """The number of parts of a batch, for any number of processes.

        The bytes depend on this number. They also depend on whether each part has its own random
        seed, as it does if `inside.processes` is above 1.
        """
        return max(self.accumulate, self.inside.processes)

    @property
    def hands_on(self) -> bool:
        """Whether a shard's task leaves a state for the shard's next task.

        The state is the optimizer's, or the part of the update that its codec did not send.
        """
        keeps_error = self.compression != "none" and CODECS[self.compression].feedback is not None
        return self.optimizer_state == "keep" or keeps_error

    @property
    def shards_go_on(self) -> bool:
        """Whether a shard's next task needs a file from its last one."""
        return self.hands_on or self.overlap > 0

    @property
    def update_codec(self) -> str:
        """The codec of updates; an overlapping shard continues from the difference that it made."""
        return "float32" if self.overlap and self.compression == "none" else self.compression

    @property
    def publishes_steps(self) -> bool:
        """Whether the manager publishes model versions as steps from the versions before them."""
        return self.model_compression != "none"

    @property
    def in_step(self) -> bool:
        """Whether all shards go through rounds together, as in modes that are not asynchronous."""
        return self.mode in {"sync", "k-sync"}

    @property
    def looks_ahead(self) -> bool:
        """Whether versions are ahead of the model that they lead to, the mean of a round."""
        return self.outer.optimizer == "nesterov" and self.in_step and not self.overlap

    @property
    def trains_own_code(self) -> bool:
        """Whether the training uses code that is neither Downpour's nor torchvision's."""
        return self.task is not None or ":" in self.model

    @property
    def trained_code(self) -> tuple[str, str]:
        """The field that names the code to train, and its value."""
        return ("model", self.model) if self.task is None else ("task", self.task)

    @property
    def factories(self) -> dict[str, str]:
        """The user's factories and tasks that the spec names, by field."""
        if self.task is not None:
            return {"task": self.task}
        named = {"dataset": self.dataset, "model": self.model}
        return {field: name for field, name in named.items() if ":" in name}

    @property
    def meetings(self) -> Meetings:
        """How rounds and epochs belong together; while `meet` is `auto`, see `Meetings.of`."""
        each = self.meet if isinstance(self.meet, int) else 1
        return Meetings(self.epochs, each, self.rounds_before)

    @property
    def rounds(self) -> int:
        """How many rounds the experiment trains; only this property says so."""
        return self.meetings.rounds

    @property
    def evaluated_before(self) -> int:
        """The last round that was due for an evaluation before the experiment's first one."""
        epochs = self.meetings.epochs_before
        return self.meetings.last_of(epochs - epochs % max(1, self.evaluate_every))

    @property
    def images_channels_last(self) -> bool:
        """Whether images are channels_last in training.

        The default is off for a user's factory, whose code may depend on the plain layout.
        """
        return not self.trains_own_code if self.channels_last is None else self.channels_last

    @property
    def goal(self) -> Goal | None:
        """The measure for comparing model versions, if the spec uses it."""
        if self.keep_best is None and self.stop_after is None:
            return None
        return Goal.of(self.keep_best or LOSS)

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a spec from TOML text."""
        return cls.make(toml_fields(text))

    def replace(self, **changes: Any) -> Self:
        """Return a spec with some fields changed, validated again."""
        return type(self).make({**self.model_dump(exclude_unset=True), **changes})

    def to_toml(self, *, without_defaults: bool = False, only_named: bool = False) -> str:
        """Write the spec as TOML that `from_toml` reads back to an equal value.

        `without_defaults` leaves out fields with the defaults of `Spec`. `only_named` leaves out
        fields that the user did not name, because a task's own code may say these.
        """
        whole = Spec.make(self.model_dump(exclude_unset=True))
        dumped = whole.model_dump(exclude_defaults=without_defaults, exclude_unset=only_named)
        fields = {key: value for key, value in dumped.items() if value is not None}
        scalars = {key: value for key, value in fields.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in fields.items() if isinstance(value, dict) and value}
        return tomli_w.dumps({**scalars, **tables})


class ResolvedSpec(Spec):
    """A spec without `auto`, and with a number of shards, as every submitted spec is.

    `downpour.core.resolve` makes it from a spec and the number of workers. Only `meet` may still be
    `auto`: it becomes a number once the shards are cut (`resolve.with_meetings`).
    """

    shards: int = Field(ge=1, le=100_000)
    last_batch: Literal["even", "rest", "drop"]
    optimizer_state: Literal["reset", "keep"]
    outer: Outer
    device: Annotated[str, StringConstraints(pattern=DEVICE_PATTERN)]

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a stored spec."""
        return cls.make(stored_fields(text))

    def _check_together(self) -> None:
        super()._check_together()
        if self.outer.optimizer == "auto":
            raise refusal("outer", "auto", "is decided once the number of shards is known")


REQUIRED = [name for name, field in ResolvedSpec.model_fields.items() if field.is_required()]
"""The fields that every resolved spec states."""


def stored_fields(text: str) -> dict[str, Any]:
    """Parse the TOML of a spec that Downpour stored."""
    fields = toml_fields(text)
    lacking = [name for name in REQUIRED if name not in fields and name != "shards"]
    if lacking:
        raise SpecError(lacking[0], None, "is missing: an older build of Downpour wrote this spec")
    return fields


def toml_fields(text: str, file: str = "") -> dict[str, Any]:
    """Parse TOML text; an error names the `file` or, without one, the beginning of the text."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # deep nesting causes the latter
        where = ("FILE", file) if file else ("TOML", text.strip()[:40])
        raise SpecError(*where, f"cannot be read: {error}") from None
