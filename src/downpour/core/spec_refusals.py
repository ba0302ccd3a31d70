"""The error for an invalid field: one line, composed from the field's own type and limits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.names import ACCEPTED_DEVICES, DEVICE_KINDS, nearest

_NEED = "KEY or KEY=VALUE, at most 64 printable characters, and at most 16 labels"
# The values that a field accepts if its type and limits do not show them.
ACCEPTED = {
    "name": "1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit",
    "code_bundle": "64 hexadecimal digits in lower case",
    "data_key": "the name of a folder of prepared data: letters, digits and hyphens",
    "task": "package.module:Class, the name of a class that inherits from downpour.Task or "
    "LightningModule, or of a Trainer",
    "keep_best": "loss or the name of a metric, alone or as min:NAME or max:NAME",
    "betas": "two numbers, each at least 0 and below 1",
    "outer": "a table (optimizer, learning_rate, momentum, every, betas, epsilon) or an optimizer",
    "inside": "a table (processes, how, cut) or just how",
    "device": ACCEPTED_DEVICES,
    "cut": "a list of module names",
    "needs": f"a list of labels: {_NEED}",
    "prefers": f"a list of labels: {_NEED}",
    "shard_needs": f"a table that gives shards, by number, lists of labels: {_NEED}",
    "warmup": "a number of at least 0 and below 1, or a whole number of steps",
    "meet": "a whole number of at least 1 and at most 1000000, or auto",
}
_NOUNS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "object": "a table",
}
_LIMITS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}

_BYTES = re.compile("[\ud800-\udfff]")
"""Python's stand-ins for bytes of a command line that are no UTF-8."""


class InvalidField(ValueError):
    """Carries a SpecError through pydantic, which lets only ValueError pass."""

    def __init__(self, error: SpecError) -> None:
        super().__init__(str(error))
        self.error = error


def refusal(field: str, value: object, accepted: str) -> InvalidField:
    """Refuse a value in a validator."""
    return InvalidField(SpecError(field, value, accepted))


def as_spec_error(
    spec: type[BaseModel], details: Sequence[Any], fields: Mapping[str, Any], *, table: str = ""
) -> SpecError:
    """Return an error that describes the first invalid field and names the others.

    The `details` are pydantic's. `table` is the name of the fields' table in a spec, if any.
    """
    invalid: dict[str, Any] = {}
    for detail in details:  # a union reports one error for each of its members
        # In a table of options, the name of the invalid field has the key.
        top, *inner = map(str, detail["loc"] or ("spec",))
        name = f"{top}.{inner[0]}" if inner and top.endswith("_options") else top
        invalid.setdefault(name, detail)
    (field, detail), *others = invalid.items()
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InvalidField):
        field, value, accepted = cause.error.args
    elif detail["type"] == "extra_forbidden":
        value, accepted = detail["input"], f"no such field; {nearest(field, spec.model_fields)}"
    else:
        # We show the user's value, not the value after an earlier validator.
        value = fields.get(field, None if detail["type"] == "missing" else detail["input"])
        accepted = f"must be {accepts(spec, field)}{_meant(spec, field, value)}"
        if detail["type"] == "finite_number":
            accepted = accepted.replace("a number", "a finite number", 1)
    if others:
        names = ", ".join(name for name, _ in others[:3]) + (", …" if len(others) > 3 else "")
        accepted += f" (and {len(others)} more: {names})"
    return SpecError(f"{table}.{field}" if table else field, value, accepted)


def accepts(spec: type[BaseModel], field: str) -> str:
    """Describe what a field accepts, from its type and limits: "sgd, adam or adamw"."""
    if "." in field:
        return "a number, text, true, false, or a list of numbers or strings"
    if field in ACCEPTED:
        return ACCEPTED[field]
    schema = _schema(spec)["properties"][field]
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind["type"] != "null"]
    return _accepted_by(kinds[0])


def _meant(spec: type[BaseModel], field: str, value: object) -> str:
    """Ask whether the user meant a choice that resembles the value."""
    schema = _schema(spec)["properties"].get(field, {})
    choices = [choice for kind in schema.get("anyOf", [schema]) for choice in kind.get("enum", [])]
    if field == "device":  # a pattern, which has no list of choices
        choices += DEVICE_KINDS
    return did_you_mean(value, choices) if isinstance(value, str) else ""


@cache
def _schema(spec: type[BaseModel]) -> dict[str, Any]:
    """Return a spec's JSON schema, which takes 20 ms to make and stays the same."""
    return spec.model_json_schema()


def _accepted_by(schema: Mapping[str, Any]) -> str:
    """Put one type of a field's JSON schema into words."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        *names, last = schema["enum"]
        return f"{', '.join(names)} or {last}" if names else str(last)
    if "minLength" in schema:
        return str(schema["description"])
    noun = _NOUNS[schema["type"]]
    limits = [f"{words} {schema[limit]}" for limit, words in _LIMITS.items() if limit in schema]
    return " ".join([noun, " and ".join(limits)]).rstrip()


class Fields(BaseModel):
    """Validated fields; if they form a table of a spec, `table` is its name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    table: ClassVar[str] = ""

    def __setattr__(self, field: str, value: object) -> None:
        if field in type(self).model_fields:
            accepted = f"specs are immutable; make a changed copy with spec.replace({field}=...)"
            raise SpecError(field, value, accepted)
        super().__setattr__(field, value)

    @classmethod
    def make(cls, fields: Mapping[str, Any]) -> Self:
        """Validate fields.

        Raises:
            SpecError: for the first invalid field; names the other invalid ones.
        """
        return cls.model_validate({str(key): value for key, value in fields.items()})

    def _check_together(self) -> None:
        """Raise `InvalidField` if fields are valid alone but do not fit together."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, value in self:
            if isinstance(value, str) and _BYTES.search(value):
                raise refusal(name, value, "must be UTF-8, because other machines read it")
        self._check_together()
        return self

    @model_validator(mode="wrap")  # the last validator, so that it wraps all others
    @classmethod
    def _in_one_line(cls, fields: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(fields)
        except ValidationError as error:
            given = fields if isinstance(fields, Mapping) else {}
            raise as_spec_error(cls, error.errors(), given, table=cls.table) from None


def not_default(spec: Fields, fields: Iterable[str]) -> dict[str, Any]:
    """Return those of some fields that have another value than their default."""
    known = type(spec).model_fields
    values = ((name, getattr(spec, name)) for name in fields)
    return {n: v for n, v in values if v != known[n].get_default(call_default_factory=True)}
