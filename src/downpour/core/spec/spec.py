"""What to run: one frozen, validated value, made from TOML text and written back to it.

A spec is the whole input of an experiment: in synchronous mode the bytes of every model version
follow from the resolved spec alone (within one numeric class). So no setting that changes a result
may be anywhere else, and nothing here may depend on the machine or touch a file
(`spec_file.py` does that). This module knows the names of the families (splitters,
aggregators, ...) but not their code. An invalid field is refused in one line (`refusals.py`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from types import FunctionType
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from downpour import devices
from downpour.errors import SpecError, did_you_mean
from downpour.spec.choices import WITH_ERROR_MEMORY, Compression, Policy
from downpour.spec.combinations import check_together
from downpour.spec.fields import Fields
from downpour.spec.inside import Inside
from downpour.spec.meetings import Meetings
from downpour.spec.outer import Outer
from downpour.spec.refusals import ACCEPTED, InvalidField, refusal
from downpour.values import LOSS, Goal

Option = bool | int | float | str | list[int] | list[float] | list[str]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


TABLES: dict[str, type[Fields]] = {"inside": Inside, "outer": Outer}
"""The fields that are tables with fields of their own, and what each is read into."""


class Spec(Fields):
    """What an experiment trains, on which data, and how; every field has a default.

    Raises:
        SpecError: from every way of making one; names the field and what is accepted.
    """

    name: Annotated[str, StringConstraints(pattern=_NAME)] = Field(
        default="experiment", description="The experiment's name: letters, digits, . _ -"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="The seed of every random choice")

    task: str | None = Field(
        default=None,
        min_length=1,
        description="package.module:Class, a training of your own (docs/your-own-training.md)",
    )
    task_options: dict[str, Option] = Field(
        default_factory=dict, description="Arguments of the task's class"
    )

    dataset: str = Field(
        default="digits",
        min_length=1,
        description="digits, mnist, fashion-mnist, kmnist, cifar10, npz, folder or "
        "package.module:factory",
    )
    data_path: str | None = Field(
        default=None,
        description="The file or folder of an npz or folder dataset, or its URL (s3, gs, az)",
    )
    image_size: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Resize images to squares with sides of this many pixels, once",
    )
    flip: bool = Field(
        default=False, description="Mirror each training image with probability 1/2 (seeded)"
    )
    train_limit: int | None = Field(
        default=None, ge=1, description="Use only the first N training examples"
    )
    test_limit: int | None = Field(
        default=None, ge=1, description="Use only the first N test examples"
    )
    dataset_options: dict[str, Option] = Field(
        default_factory=dict, description="Arguments of a dataset factory"
    )

    model: str = Field(
        default="digits-cnn",
        min_length=1,
        description="digits-cnn, mnist-cnn, mlp, xray-cnn, conv-lstm, a torchvision.models name "
        "or a factory",
    )
    model_options: dict[str, Option] = Field(
        default_factory=dict, description="Arguments of the model, such as dropout"
    )
    init_from: str | None = Field(
        default=None,
        description="Begin from an experiment (its ID, or ID@best for its best model) or from a "
        "safetensors file, as the manager sees it",
    )
    init_checksum: str | None = Field(
        default=None, description="That file's checksum, fixed at submission; another is refused"
    )
    outer_checksum: str | None = Field(
        default=None,
        description="Checksum of the outer optimizer's state beside that file, fixed at submission",
    )
    code: dict[str, str] = Field(
        default_factory=dict,
        description="Digests of the factories' files, fixed at submission; other code is refused",
    )
    data_key: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9-]+$")] | None = Field(
        default=None, description="Key of the data, set by --resume; other examples are refused"
    )
    loss: Literal["cross_entropy", "binary_cross_entropy"] = Field(
        default="cross_entropy", description="What training minimises"
    )

    mode: Literal[
        "sync", "k-sync", "downpour", "ssp", "easgd", "fedasync", "fedbuff", "k-async", "quorum"
    ] = Field(
        default="sync",
        description="sync: every round is a barrier (local SGD; FedAvg once an epoch); k-sync: a "
        "round ends with its first k updates; downpour, ssp, easgd, fedasync, fedbuff, k-async, "
        "quorum: shards train on while others do",
    )
    mode_options: dict[str, Option] = Field(
        default_factory=dict, description="Parameters of the mode"
    )
    shards: int | None = Field(
        default=None, ge=1, le=100_000, description="Parts the training set is cut into"
    )
    split: str = Field(default="random", description="How examples are divided among the shards")
    batches: Literal["shuffled", "balanced"] = Field(
        default="shuffled",
        description="balanced: every batch has the shard's classes in proportion",
    )
    batch_size: int = Field(default=32, ge=1, le=1_000_000, description="Examples in a batch")
    epochs: int = Field(
        default=5, ge=1, le=1_000_000, description="Passes over the training examples"
    )
    meet: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["auto"] = Field(
        default=1,
        description="Meetings an epoch, each the end of a round in which every shard trains its "
        "next part of the epoch; auto: as many as there are shards",
    )
    rounds_before: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Rounds (meetings) that init_from's parameters have had; seeds, orders and "
        "schedule go on after them",
    )
    local_steps: int | None = Field(
        default=None,
        ge=1,
        description="Batches that a task trains at most; absent: all of its part of the shard",
    )
    aggregate: Literal["average", "weighted", "samples", "first"] = Field(
        default="average",
        description="How updates become the next model: average, weighted (by loss), "
        "samples (FedAvg) or first (shard 0's, as the ECE751 code did)",
    )
    outer: Outer = Field(
        default_factory=Outer,
        description="The step from a model to the next along the aggregate: optimizer (none, sgd, "
        "nesterov, delayed-nesterov, heloco, adagrad, adam or yogi), learning_rate, momentum, "
        "every, betas, epsilon",
    )
    policy: Policy = Field(
        default="handoff",
        description="The straggler policy: wait, drop, backup, blacklist, late, clone, "
        "grass, mantri, wrangler, rebalance, replace, handoff or dylu (docs/stragglers.md)",
    )
    policy_options: dict[str, Option] = Field(
        default_factory=dict, description="Parameters of the policy"
    )
    standbys: int = Field(
        default=0, ge=0, description="Workers kept idle, to take over from those that fall behind"
    )
    retries: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Failed attempts of a task that do not fail the run",
    )
    snapshot_every: float = Field(
        default=10.0,
        ge=0,
        description="Seconds between snapshots of a task, from which other workers can go on; "
        "more if a snapshot takes long; 0: no snapshots",
    )
    evaluate_every: int = Field(
        default=1, ge=0, description="Epochs between evaluations; 0: no evaluations"
    )
    evaluate_batch: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Examples that are evaluated together; absent: batch_size with a task, else as "
        "many as memory allows",
    )
    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the training examples that are set apart, and evaluated after epochs "
        "instead of the test examples, which are then evaluated once, at the end",
    )
    keep_models: int = Field(
        default=3, ge=1, description="How many of the latest model versions are kept"
    )
    keep_best: str | None = Field(
        default=None,
        description="Also keep the best model, as best.safetensors: by loss, or by a metric as "
        "accuracy; min:NAME or max:NAME where the name does not say which is better",
    )
    stop_after: int | None = Field(
        default=None,
        ge=1,
        description="End training after this many epochs without a better model, by keep_best or "
        "else by the loss",
    )

    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="The optimizer of the local steps"
    )
    learning_rate: float = Field(default=0.05, gt=0, description="The optimizer's step size")
    scale_rate: bool = Field(
        default=False,
        description="Multiply the learning rate by the number of shards, and warm up to that",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of sgd")
    nesterov: bool = Field(default=False, description="Nesterov's form of momentum")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty (decoupled in adamw)")
    betas: tuple[float, float] = Field(
        default=(0.9, 0.999), description="Decay rates of adam's averages"
    )
    epsilon: float = Field(default=1e-8, gt=0, description="Added to adam's denominator")
    schedule: Literal["constant", "cosine", "linear", "step"] = Field(
        default="constant", description="How the learning rate falls over the training"
    )
    warmup: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of all steps over which the learning rate rises, linearly: from 0, or "
        "with scale_rate from learning_rate",
    )
    final_rate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="What cosine and linear end at, as a share of learning_rate",
    )
    decay: float = Field(
        default=0.1, gt=0, le=1, description="What step multiplies the learning rate by"
    )
    decay_every: int = Field(
        default=1, ge=1, description="Epochs after which step does so, again and again"
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="The largest norm of a step's gradient; absent: any"
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="Parts in which a batch is trained, one after the other: the same step in less "
        "memory",
    )
    inside: Inside = Field(
        default_factory=Inside,
        description="How a worker trains a batch inside its machine: processes, how, cut; auto: "
        "as it is measured to be fastest",
    )
    optimizer_state: Literal["reset", "keep"] = Field(
        default="reset",
        description="What happens to the optimizer's state between rounds; kept per shard",
    )
    compression: Compression = Field(
        default="none",
        description="How updates are written: none (whole), or in fewer bytes, how far they moved",
    )

    repeatable: bool = Field(
        default=True,
        description="false: accept a training that gives other bytes each time; nothing is then "
        "handed over",
    )
    threads: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Torch threads of a worker; changes the model's bytes",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="bfloat16: automatic mixed precision"
    )
    device: Annotated[str, StringConstraints(pattern=devices.PATTERN)] = Field(
        default="cpu",
        description="Where workers train: cpu, cuda, mps or xpu, one of several by its number as "
        "cuda:1, or auto, which is the best that each worker has",
    )
    channels_last: bool | None = Field(
        default=None,
        description="Memory layout of images in training; absent: on for Downpour's own networks "
        "and torchvision's",
    )

    @field_validator("data_path", "init_from", mode="before")
    @classmethod
    def _text_from_path(cls, value: object) -> object:
        return value.__fspath__() if hasattr(value, "__fspath__") else value

    @field_validator("task", "model", "dataset", mode="before")
    @classmethod
    def _named(cls, value: object, field: ValidationInfo) -> object:
        """Name a class or function of an importable module, as a spec holds text alone."""
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

    @field_validator("betas", mode="before")
    @classmethod
    def _betas_from_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator(*TABLES, mode="before")
    @classmethod
    def _from_table(cls, value: object, field: ValidationInfo) -> object:
        name = str(field.field_name)
        value = {"how": "auto"} if (name, value) == ("inside", "auto") else value
        if not isinstance(value, TABLES[name] | Mapping):
            raise refusal(name, value, f"must be {ACCEPTED[name]}")
        return TABLES[name].make(value) if isinstance(value, Mapping) else value

    @field_validator("split")
    @classmethod
    def _split_is_known(cls, value: str) -> str:
        try:
            parse_split(value)
        except SpecError as error:
            raise InvalidField(error) from None
        return value

    def _check_together(self) -> None:
        check_together(self)

    @field_validator("keep_best")
    @classmethod
    def _keep_best_is_a_goal(cls, value: str | None) -> str | None:
        try:
            return value if value is None else str(Goal.of(value))
        except ValueError:
            raise refusal("keep_best", value, f"must be {ACCEPTED['keep_best']}") from None

    @property
    def parts(self) -> int:
        """In how many parts a batch is trained, whichever process computes which.

        The bytes depend on it, and on whether each part draws from a random seed of its own, as it
        does where `inside.processes` is above 1.
        """
        return max(self.accumulate, self.inside.processes)

    @property
    def hands_on(self) -> bool:
        """Whether a shard's task leaves a state for the shard's next one."""
        return self.optimizer_state == "keep" or self.compression in WITH_ERROR_MEMORY

    @property
    def in_step(self) -> bool:
        """Whether all shards go through rounds together, as in every mode but asynchronous ones."""
        return self.mode in {"sync", "k-sync"}

    @property
    def trains_own_code(self) -> bool:
        """Whether what is trained is code that is neither Downpour's nor torchvision's."""
        return self.task is not None or ":" in self.model

    @property
    def trained_code(self) -> tuple[str, str]:
        """The field that names the code which is trained, and its value."""
        return ("model", self.model) if self.task is None else ("task", self.task)

    @property
    def factories(self) -> dict[str, str]:
        """The factories and tasks that the spec names, by field: code that is not Downpour's."""
        if self.task is not None:
            return {"task": self.task}
        named = {"dataset": self.dataset, "model": self.model}
        return {field: name for field, name in named.items() if ":" in name}

    @property
    def meetings(self) -> Meetings:
        """How rounds and epochs belong together, once `meet` is a number: in a resolved spec."""
        if not isinstance(self.meet, int):
            raise SpecError("meet", self.meet, "is a number only once the shards are counted")
        return Meetings(self.epochs, self.meet, self.rounds_before)

    @property
    def rounds(self) -> int:
        """How many rounds are trained: the one place that says so."""
        return self.meetings.rounds

    @property
    def images_channels_last(self) -> bool:
        """Whether images are channels_last in training.

        Off by default for a user's factory, whose code may depend on the plain layout.
        """
        return not self.trains_own_code if self.channels_last is None else self.channels_last

    @property
    def goal(self) -> Goal | None:
        """What model versions are compared by, if anything follows from it."""
        if self.keep_best is None and self.stop_after is None:
            return None
        return Goal.of(self.keep_best or LOSS)

    @property
    def dirichlet_alpha(self) -> float | None:
        """The concentration in `split = "dirichlet(ALPHA)"`; None for other splits."""
        return parse_split(self.split)[1]

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a spec from TOML text."""
        return cls.make(toml_fields(text))

    def replace(self, **changes: Any) -> Self:
        """Return a spec with some fields changed, validated again."""
        return type(self).make({**self.model_dump(), **changes})

    def to_toml(self, *, without_defaults: bool = False) -> str:
        """Write the spec as TOML that `from_toml` reads back to an equal value."""
        dumped = self.model_dump(exclude_defaults=without_defaults)
        fields = {key: value for key, value in dumped.items() if value is not None}
        scalars = {key: value for key, value in fields.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in fields.items() if isinstance(value, dict) and value}
        return tomli_w.dumps({**scalars, **tables})


class ResolvedSpec(Spec):
    """A spec with a number of shards and of meetings, as every submitted spec has.

    `downpour.resolve` makes it from a spec and the number of workers.
    """

    shards: int = Field(ge=1, le=100_000, description="Parts the training set is cut into")
    meet: int = Field(default=1, ge=1, le=1_000_000, description="Meetings an epoch")


def toml_fields(text: str, file: str = "") -> dict[str, Any]:
    """Parse TOML text; an error names the `file` or, without one, the beginning of the text.

    Raises:
        SpecError: the text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter from deep nesting
        where = ("FILE", file) if file else ("TOML", text.strip()[:40])
        raise SpecError(*where, f"cannot be read: {error}") from None


def parse_split(text: str) -> tuple[str, float | None]:
    """Parse a split into its name and its number: "dirichlet(0.5)" → ("dirichlet", 0.5).

    Raises:
        SpecError: there is no such split, or the concentration is not a positive number.
    """
    plain = ("random", "class", "equal")
    if text in plain:
        return text, None
    number = re.fullmatch(r"dirichlet\(([0-9.eE+-]+)\)", text)
    if number is None:
        meant = did_you_mean(text, plain) or did_you_mean(text, ["dirichlet(0.5)"])
        raise SpecError("split", text, f"must be {ACCEPTED['split']}{meant}")
    try:
        alpha = float(number[1])
    except ValueError:
        alpha = 0.0
    if not 0 < alpha < 1e9:
        raise SpecError("split", text, "must be dirichlet(ALPHA), ALPHA above 0 and below 1e9")
    return "dirichlet", alpha
