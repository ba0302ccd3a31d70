"""The table `[inside]` of a spec: how a worker trains a batch inside its machine."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from downpour.core.spec.fields import Fields
from downpour.core.spec.refusals import refusal


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
    cut: tuple[str, ...] = Field(
        default=(),
        description="The first module of each process of a pipeline, except the first process; "
        "empty: by measured time",
    )

    @field_validator("cut", mode="before")
    @classmethod
    def _cut_from_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

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
