"""The fields of a spec, each with a default, its accepted values, and a sentence for users.

The command line takes its options and their help from these fields, and so does the page
`docs/reference/cli.md`. `spec.py` says what a spec is, and which fields fit together.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo

from downpour.base.errors import SpecError
from downpour.base.names import DEVICE_PATTERN, Family
from downpour.base.values import LABELS_MAX, checked_need
from downpour.core.families import AGGREGATORS, CODECS, MODES, POLICIES, SPLITTERS
from downpour.core.spec_refusals import ACCEPTED, Fields, InvalidField, not_default, refusal

FROM_LIST = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""TOML has lists where a spec has tuples."""


class Inside(Fields):
    """The processes of a worker, and the share of a batch that each of them computes.

    The worker cuts a batch into parts, at least one per process. Each part has its own random seed
    if `processes` is above 1. With `data`, each process computes the gradients of some parts. With
    `pipeline`, each process has a run of the network's layers, and all parts pass through all
    processes. With `hybrid`, each process computes parts up to the first dense layer. From there
    on, it computes a slice of each dense layer's outputs for the whole batch. With `auto`, a run on
    this machine first measures which way is the fastest; several threads are among the candidates.
    The result's bytes follow from the parts, the seeds and, with `hybrid`, the slices, one for each
    of the `processes`. They do not depend on which process computes a part.

    Raises:
        SpecError: a field is invalid.
    """

    table: ClassVar[str] = "inside"

    processes: int = Field(
        default=1, ge=1, le=256, description="Processes in which a worker trains each batch"
    )
    how: Literal["data", "pipeline", "hybrid", "auto"] = Field(
        default="data",
        description="How to divide the work: parts of the batch, layers, or parts and then slices "
        "of dense layers; auto: the fastest in a measurement, which includes one process",
    )
    cut: Annotated[tuple[str, ...], FROM_LIST] = Field(
        default=(),
        description="The first module of each process of a pipeline, except the first process; "
        "empty: by measured time",
    )

    def _check_together(self) -> None:
        if self.how == "auto" and self.processes > 1:
            raise refusal("processes", self.processes, "has no effect with how = 'auto'")
        if self.how not in {"data", "auto"} and self.processes == 1:
            raise refusal("how", self.how, "needs processes above 1")
        if self.cut and self.how != "pipeline":
            raise refusal("cut", list(self.cut), "works only with how = 'pipeline'")
        if self.cut and len(self.cut) != self.processes - 1:
            accepted = f"{self.processes} processes need {self.processes - 1} first modules"
            raise refusal("cut", list(self.cut), accepted)


_BY_MOMENTUM = {"nesterov", "delayed-nesterov", "heloco"}


class Outer(Fields):
    """The optimizer of the rounds; the spec's own `optimizer` field is for the local steps.

    Its gradient is the model minus the aggregate. So sgd with learning_rate = 1 and without
    momentum takes the aggregate as the next model. `none` takes it exactly, and keeps no state.
    Pass it as `Spec(outer=Outer(optimizer="nesterov", momentum=0.6))`, or pass a dictionary.

    Raises:
        SpecError: a field is invalid.
    """

    table: ClassVar[str] = "outer"

    optimizer: Literal[
        "auto", "none", "sgd", "nesterov", "delayed-nesterov", "heloco", "adagrad", "adam", "yogi"
    ] = Field(
        default="auto",
        description="The outer optimizer; auto: nesterov in settings in which it trained better, "
        "else none",
    )
    learning_rate: float = Field(default=1.0, gt=0, description="Its step size")
    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="Momentum of sgd, both nesterovs and heloco"
    )
    every: int = Field(
        default=0,
        ge=0,
        description="Versions between changes of delayed-nesterov's momentum; 0: one update of "
        "every shard",
    )
    betas: Annotated[tuple[float, float], FROM_LIST] = Field(
        default=(0.9, 0.99), description="Decay rates of adagrad's, adam's and yogi's averages"
    )
    epsilon: float = Field(
        default=1e-3, gt=0, description="Added to the denominator of adagrad, adam and yogi"
    )

    def _check_together(self) -> None:
        if any(not 0 <= beta < 1 for beta in self.betas):
            raise refusal("betas", list(self.betas), f"must be {ACCEPTED['betas']}")
        if self.optimizer == "auto":
            for name, value in not_default(self, type(self).model_fields).items():
                accepted = "optimizer = 'auto' chooses it; name an optimizer to set it"
                raise refusal(name, list(value) if name == "betas" else value, accepted)
        if self.optimizer in _BY_MOMENTUM and self.momentum == 0:
            accepted = f"{self.optimizer} needs a momentum above 0; sgd does not"
            raise refusal("momentum", 0, accepted)
        if self.every and self.optimizer != "delayed-nesterov":
            raise refusal("every", self.every, "works only with optimizer = 'delayed-nesterov'")

    @property
    def keeps_state(self) -> bool:
        """Whether there is an optimizer, and with it a state from round to round."""
        return self.optimizer not in {"auto", "none"}


def _of_64_bits(value: object) -> object:
    """Refuse a whole number that TOML cannot hold."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise ValueError
    return value


Option = Annotated[
    bool | int | float | str | list[int] | list[float] | list[str], AfterValidator(_of_64_bits)
]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def _one_of(family: Family) -> BeforeValidator:
    """Accept the names of a family's installed members."""

    def checked(value: object, info: ValidationInfo) -> str:
        try:
            return family.check(value, info.field_name)
        except SpecError as error:
            raise InvalidField(error) from None

    return BeforeValidator(checked)


Needs = Annotated[
    tuple[Annotated[str, AfterValidator(checked_need)], ...],
    FROM_LIST,
    Field(max_length=LABELS_MAX),
]
ShardNumber = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,5})$")]


class SpecFields(Fields):
    """The fields of a spec."""

    name: Annotated[str, StringConstraints(pattern=_NAME)] = Field(
        default="experiment", description="The experiment's name: letters, digits, . _ -"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="The seed of every random choice")

    task: str | None = Field(
        default=None,
        min_length=1,
        description="package.module:Class, your own training (docs/how-to/your-own-training.md)",
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
        description="Resize images once, to squares with this side, in pixels",
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
        description="digits-cnn, mnist-cnn, mlp, xray-cnn, conv-lstm, a torchvision.models name, "
        "or a factory",
    )
    model_options: dict[str, Option] = Field(
        default_factory=dict, description="Arguments of the model, such as dropout"
    )
    init_from: str | None = Field(
        default=None,
        description="Start from an experiment (its ID, or ID@best for its best model) or from a "
        "safetensors file, as the manager sees it",
    )
    init_checksum: str | None = Field(
        default=None,
        description="That file's checksum, fixed at submission; the manager refuses any other file",
    )
    outer_checksum: str | None = Field(
        default=None,
        description="Checksum of the outer optimizer's state with that file, fixed at submission",
    )
    states_checksum: str | None = Field(
        default=None,
        description="Checksum of the shards' optimizer states with it, fixed at submission",
    )
    best_checksum: str | None = Field(
        default=None,
        description="Checksum of the best model so far and its value, fixed at submission",
    )
    code: dict[str, str] = Field(
        default_factory=dict,
        description="Digests of the factories' files, fixed at submission; workers accept no other",
    )
    code_bundle: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="SHA-256 of those files' content, set at submission: workers with "
        "--accept-code fetch the code by it",
    )
    packages: dict[str, str] = Field(
        default_factory=dict,
        description="Versions of the packages that those files import, noted at submission; "
        "workers report different ones",
    )
    data_key: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9-]+$")] | None = Field(
        default=None,
        description="Key of the data, set by --resume; the manager refuses other examples",
    )
    loss: Literal["cross_entropy", "binary_cross_entropy"] = Field(
        default="cross_entropy", description="The loss that training minimizes"
    )

    mode: Annotated[str, _one_of(MODES)] = Field(
        default="sync",
        description="When updates become a model version; in all modes but sync and k-sync, shards "
        "meanwhile continue training",
    )
    mode_options: dict[str, Option] = Field(
        default_factory=dict, description="Parameters of the mode"
    )
    shards: int | None = Field(
        default=None, ge=1, le=100_000, description="Parts of the training set"
    )
    split: Annotated[str, _one_of(SPLITTERS)] = Field(
        default="random", description="How to divide the examples among the shards"
    )
    batches: Literal["shuffled", "balanced"] = Field(
        default="shuffled",
        description="balanced: every batch has the same mix of classes as the shard",
    )
    order: Literal["auto", "random", "blocks", "given"] = Field(
        default="auto",
        description="blocks: shuffle blocks of examples that lie together, and the examples of a "
        "few blocks; given: the dataset's own order in every epoch; auto: blocks for "
        "downpour.data.Blocks, and otherwise random",
    )
    batch_size: int = Field(default=32, ge=1, le=1_000_000, description="Examples in a batch")
    last_batch: Literal["even", "rest", "drop"] = Field(
        default="even",
        description="even: an epoch's batches have nearly equal sizes; rest: all have batch_size, "
        "except a smaller last one; drop: without that one",
    )
    epochs: int = Field(
        default=5, ge=1, le=1_000_000, description="Passes over the training examples"
    )
    meet: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["auto"] = Field(
        default="auto",
        description="Rounds per epoch: in each, every shard trains its next part of the epoch, and "
        "then they average; auto: several if sgd gains from them (docs/concepts/rounds.md), else 1",
    )
    overlap: int = Field(
        default=0,
        ge=0,
        le=1,
        description="1: shards train their next part while the manager averages a round; each then "
        "gets the others' progress one round later",
    )
    rounds_before: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Rounds that init_from's parameters have trained; seeds, orders and schedule "
        "continue after them",
    )
    local_steps: int | None = Field(
        default=None,
        ge=1,
        description="The most batches that a task may train; absent: all in its part of the shard",
    )
    aggregate: Annotated[str, _one_of(AGGREGATORS)] = Field(
        default="average", description="How updates become the next model"
    )
    outer: Outer = Field(
        default_factory=Outer,
        description="The step from a model to the next along the aggregate: optimizer (auto, none, "
        "sgd, nesterov, delayed-nesterov, heloco, adagrad, adam or yogi), learning_rate, "
        "momentum, every, betas, epsilon",
    )
    policy: Annotated[str, _one_of(POLICIES)] = Field(
        default="handoff", description="The straggler policy (docs/how-to/stragglers.md)"
    )
    policy_options: dict[str, Option] = Field(
        default_factory=dict, description="Parameters of the policy"
    )
    needs: Needs = Field(
        default=(),
        description="Labels that a worker needs to train: KEY=VALUE, or KEY with any value",
    )
    prefers: Needs = Field(
        default=(), description="Labels of workers to prefer if several are idle"
    )
    shard_needs: dict[ShardNumber, Needs] = Field(
        default_factory=dict,
        description="Labels that single shards need, by number, for example because of the place "
        "of their data",
    )
    standbys: int = Field(
        default=0, ge=0, description="Idle workers that can take over from slow ones"
    )
    retries: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="How many attempts of a task may fail without failing the run; an attempt "
        "that published a snapshot does not count",
    )
    audit: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the tasks that a second worker trains again, to find workers that "
        "compute wrong (docs/how-to/wrong-machines.md)",
    )
    stop_if_wrong: bool = Field(
        default=False,
        description="End the experiment if an audit finds a wrong worker whose updates count; "
        "--resume continues from the last version without these",
    )
    snapshot_every: float = Field(
        default=10.0,
        ge=0,
        description="Seconds between snapshots of a task, from which other workers can continue; "
        "more if a snapshot takes long; 0: no snapshots",
    )
    evaluate_every: int = Field(
        default=1, ge=0, description="Epochs between evaluations; 0: no evaluations"
    )
    evaluate_batch: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Examples per batch in evaluations; absent: batch_size with a task, else as "
        "many as memory allows",
    )
    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the training examples to hold out. They replace the test examples "
        "after epochs; the test examples then count only once, at the end",
    )
    keep_models: int | None = Field(
        default=None,
        ge=1,
        description="How many of the latest model versions to keep; absent: three, and only the "
        "last once the experiment has finished",
    )
    keep_best: str | None = Field(
        default=None,
        description="Also keep the best model, as best.safetensors: by loss or by a metric such as "
        "accuracy; min:NAME or max:NAME if the name doesn't say which is better",
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
        description="Multiply the learning rate by the number of shards, after a warm-up",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of sgd")
    nesterov: bool = Field(default=False, description="Nesterov's form of momentum")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty (decoupled in adamw)")
    betas: Annotated[tuple[float, float], FROM_LIST] = Field(
        default=(0.9, 0.999), description="Decay rates of adam's averages"
    )
    epsilon: float = Field(default=1e-8, gt=0, description="Added to adam's denominator")
    schedule: Literal["constant", "cosine", "linear", "step"] = Field(
        default="constant", description="How the learning rate falls over the training"
    )
    warmup: Annotated[float, Field(ge=0, lt=1)] | Annotated[int, Field(ge=1)] = Field(
        default=0.0,
        description="Steps in which the learning rate rises linearly, from 0, or with scale_rate "
        "from learning_rate: a share of all steps below 1, or a whole number of a shard's steps",
    )
    final_rate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The final value of cosine and linear, as a share of learning_rate",
    )
    decay: float = Field(
        default=0.1, gt=0, le=1, description="The factor by which step multiplies the learning rate"
    )
    decay_every: int = Field(default=1, ge=1, description="Epochs between such steps")
    clip_norm: float | None = Field(
        default=None, gt=0, description="The largest norm of a step's gradient; absent: no limit"
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="Train a batch in this many parts, one after the other: the same step in less "
        "memory. The loss must be a mean over examples, or a sum and a count",
    )
    inside: Inside = Field(
        default_factory=Inside,
        description="How a worker trains a batch inside its machine: processes, how, cut; auto: "
        "the fastest in a measurement",
    )
    optimizer_state: Literal["auto", "reset", "keep"] = Field(
        default="auto",
        description="Keep or reset each shard's optimizer state between rounds; auto: keep it, "
        "except in settings in which that trained worse, and with compression, because states "
        "travel whole",
    )
    compression: Annotated[str, _one_of(CODECS)] = Field(
        default="none",
        description="How to write updates; every codec but none writes the differences, in fewer "
        "bytes",
    )
    model_compression: Annotated[str, _one_of(CODECS)] = Field(
        default="none",
        description="How to write model versions; none: each complete; a codec without a residual: "
        "only every 32nd is complete, and the others are differences",
    )

    repeatable: bool = Field(
        default=True,
        description="false: accept a training whose bytes differ each time; workers then hand "
        "nothing over",
    )
    threads: int = Field(
        default=1, ge=1, le=1024, description="Torch threads of a worker; changes the model's bytes"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="bfloat16, float16: automatic mixed precision; float16 scales the loss, and "
        "leaves out steps whose gradients overflow",
    )
    device: Annotated[str, StringConstraints(pattern=DEVICE_PATTERN)] = Field(
        default="auto",
        description="The device to train on: cpu, cuda, mps or xpu, one of several by its number "
        "such as cuda:1, or auto, the best that each worker has",
    )
    channels_last: bool | None = Field(
        default=None,
        description="Memory layout of images in training; absent: on for Downpour's networks and "
        "torchvision's",
    )
