"""What to run: one frozen, validated value, read from TOML and written back to it.

A spec is the whole input of an experiment: in synchronous mode the bytes of every model version
follow from the resolved spec alone (within one numeric class). Hence nothing that changes a result
may live anywhere else, and nothing here may depend on the machine. This module knows the names of
the families (splitters, aggregators, ...) but not their code.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic import field_validator, model_validator

from downpour.errors import SpecError

Option = bool | int | float | str | list[int] | list[float] | list[str]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_SPLIT = r"^(random|class|equal|dirichlet\([0-9.eE+-]+\))$"


class Spec(BaseModel):
    """What an experiment trains, on what, and how; every field has a default but none is hidden.

    Raises:
        SpecError: from `make`, `from_toml` and `read`; names the field and what is accepted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: Annotated[str, StringConstraints(pattern=_NAME)] = Field(
        "experiment", description="What to call the experiment: letters, digits, . _ -"
    )
    seed: int = Field(
        0, ge=0, lt=2**63, description="The seed that every random choice follows from"
    )

    dataset: str = Field(
        "digits",
        min_length=1,
        description="digits, mnist, fashion-mnist, kmnist, cifar10, npz, folder or package.module:factory",
    )
    data_path: str | None = Field(
        None, description="The file or folder of an npz or folder dataset"
    )
    image_size: int | None = Field(
        None, ge=1, le=4096, description="Resize images to a square of this many pixels, once"
    )
    flip: bool = Field(
        default=False, description="Mirror each training image with even chance (seeded)"
    )
    train_limit: int | None = Field(
        None, ge=1, description="Use only the first so many training examples"
    )
    test_limit: int | None = Field(
        None, ge=1, description="Use only the first so many test examples"
    )
    dataset_options: dict[str, Option] = Field(
        default_factory=dict, description="Arguments of a dataset factory"
    )

    model: str = Field(
        "digits-cnn",
        min_length=1,
        description="digits-cnn, mnist-cnn, mlp, a torchvision.models name or a factory",
    )
    model_options: dict[str, Option] = Field(
        default_factory=dict, description="Arguments of the model, such as dropout"
    )
    loss: Literal["cross_entropy", "binary_cross_entropy"] = Field(
        "cross_entropy", description="What training minimises"
    )

    mode: Literal["sync"] = Field(
        "sync", description="sync: every round is a barrier (local SGD; FedAvg once an epoch)"
    )
    shards: int | None = Field(
        None, ge=1, le=100_000, description="Parts the training set is cut into"
    )
    split: Annotated[str, StringConstraints(pattern=_SPLIT)] = Field(
        "random", description="random, class, equal or dirichlet(ALPHA)"
    )
    batches: Literal["shuffled", "balanced"] = Field(
        "shuffled", description="balanced: every batch holds the shard's classes evenly"
    )
    batch_size: int = Field(64, ge=1, le=1_000_000, description="Examples in a batch")
    epochs: int = Field(5, ge=1, le=1_000_000, description="Rounds, each one pass over every shard")
    local_steps: int | None = Field(
        None, ge=0, description="Batches a task trains at most; absent: the whole shard"
    )
    aggregate: Literal["average", "weighted", "samples", "first"] = Field(
        "average",
        description="How updates become the next model: average, weighted (by loss), "
        "samples (FedAvg) or first (shard 0's, as the ECE751 code did)",
    )
    policy: Literal["wait"] = Field("wait", description="What is done about stragglers")
    retries: int = Field(3, ge=0, le=1000, description="Failed attempts that a task survives")
    evaluate_every: int = Field(1, ge=0, description="Rounds between evaluations; 0: none at all")
    keep_models: int = Field(3, ge=1, description="Model versions kept, counted from the last")

    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="sgd, adam or adamw")
    learning_rate: float = Field(0.01, gt=0, description="The optimizer's step size")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of sgd")
    nesterov: bool = Field(default=False, description="Nesterov's form of momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty (decoupled in adamw)")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Decay rates of adam's averages")
    epsilon: float = Field(1e-8, gt=0, description="Added to adam's denominator")
    optimizer_state: Literal["reset", "keep"] = Field(
        "reset", description="What happens to it between rounds; kept per shard"
    )

    threads: int = Field(1, ge=1, le=1024, description="Torch threads of a worker; changes bytes")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: automatic mixed precision"
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where workers train")
    channels_last: bool = Field(default=True, description="Memory layout of images in training")

    @field_validator("betas", mode="before")
    @classmethod
    def _betas_from_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        alpha = self.dirichlet_alpha
        if alpha is not None and not 0 < alpha < 1e9:
            raise _refusal("split", self.split, "dirichlet(ALPHA) needs an ALPHA above 0")
        if any(not 0 <= beta < 1 for beta in self.betas):
            raise _refusal("betas", self.betas, "two numbers, each at least 0 and below 1")
        if self.nesterov and self.momentum == 0:
            raise _refusal("nesterov", value=True, accepted="needs a momentum above 0")
        if self.dataset in {"npz", "folder"} and not self.data_path:
            raise _refusal("data_path", self.data_path, f"dataset '{self.dataset}' needs one")
        return self

    @property
    def dirichlet_alpha(self) -> float | None:
        """The concentration in `split = "dirichlet(ALPHA)"`; None for other splits."""
        if not self.split.startswith("dirichlet("):
            return None
        try:
            return float(self.split[len("dirichlet(") : -1])
        except ValueError:
            return float("nan")

    @classmethod
    def make(cls, fields: Mapping[str, Any]) -> Spec:
        """Validate fields into a spec; raises SpecError for the first that does not fit."""
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            raise _first_refusal(error) from None

    @classmethod
    def from_toml(cls, text: str, overrides: Mapping[str, Any] | None = None) -> Spec:
        """Read a spec from TOML text; `overrides` win over what stands there."""
        try:
            fields = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SpecError("TOML", text.strip()[:40], f"cannot be read: {error}") from None
        return cls.make({**fields, **(overrides or {})})

    @classmethod
    def read(cls, path: Path, overrides: Mapping[str, Any] | None = None) -> Spec:
        """Read a spec from a TOML file; raises SpecError where there is no such file, too."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(
                "FILE", str(path), f"a readable TOML file is needed ({_why(error)})"
            ) from None
        return cls.from_toml(text, overrides)

    def replace(self, **changes: Any) -> Spec:
        """Return a spec with some fields changed, validated again."""
        return type(self).make({**self.model_dump(), **changes})

    def to_toml(self) -> str:
        """Write the spec as TOML that `from_toml` reads back to an equal value."""
        fields = {key: value for key, value in self.model_dump().items() if value is not None}
        scalars = {key: value for key, value in fields.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in fields.items() if isinstance(value, dict) and value}
        return tomli_w.dumps({**scalars, **tables})


class _Misfit(ValueError):
    """Carries a SpecError through pydantic, which lets only ValueError pass."""

    def __init__(self, error: SpecError) -> None:
        super().__init__(str(error))
        self.error = error


def _refusal(field: str, value: object, accepted: str) -> _Misfit:
    return _Misfit(SpecError(field, value, accepted))


def _first_refusal(error: ValidationError) -> SpecError:
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, _Misfit):
        return cause.error
    field = ".".join(str(part) for part in first["loc"][:2]) or "spec"
    if first["type"] == "extra_forbidden":
        known = ", ".join(Spec.model_fields)
        return SpecError(field, first["input"], f"no such field; known are {known}")
    info = Spec.model_fields.get(str(first["loc"][0])) if first["loc"] else None
    hint = f" ({info.description})" if info and "pattern" in first["type"] else ""
    message = re.sub(r"^Input should be", "must be", first["msg"])
    return SpecError(field, first["input"], message + hint)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
