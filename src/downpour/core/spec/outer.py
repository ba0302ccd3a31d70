"""The table `[outer]` of a spec: the step from a model toward the aggregate of its updates."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from downpour.core.spec.fields import Fields
from downpour.core.spec.refusals import ACCEPTED, refusal

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
    betas: tuple[float, float] = Field(
        default=(0.9, 0.99), description="Decay rates of adagrad's, adam's and yogi's averages"
    )
    epsilon: float = Field(
        default=1e-3, gt=0, description="Added to the denominator of adagrad, adam and yogi"
    )

    @field_validator("betas", mode="before")
    @classmethod
    def _betas_from_list(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    def _check_together(self) -> None:
        if any(not 0 <= beta < 1 for beta in self.betas):
            raise refusal("betas", list(self.betas), f"must be {ACCEPTED['betas']}")
        if self.optimizer == "auto":
            self._check_open()
        if self.optimizer in _BY_MOMENTUM and self.momentum == 0:
            accepted = f"{self.optimizer} needs a momentum above 0; sgd does not"
            raise refusal("momentum", 0, accepted)
        if self.every and self.optimizer != "delayed-nesterov":
            raise refusal("every", self.every, "works only with optimizer = 'delayed-nesterov'")

    def _check_open(self) -> None:
        """Refuse a field besides `auto`, which decides on all of them."""
        for name, field in type(self).model_fields.items():
            if name != "optimizer" and (value := getattr(self, name)) != field.default:
                accepted = "optimizer = 'auto' chooses it; name an optimizer to set it"
                raise refusal(name, list(value) if name == "betas" else value, accepted)

    @property
    def keeps_state(self) -> bool:
        """Whether there is an optimizer, and with it a state from round to round."""
        return self.optimizer not in {"auto", "none"}
