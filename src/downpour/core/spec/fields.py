"""The base of a spec and its tables: frozen, strict, and with one line for every mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from downpour.base.errors import SpecError
from downpour.core.spec.refusals import as_spec_error


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
