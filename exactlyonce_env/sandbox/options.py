"""Traits of real services beyond the reference contracts, each off unless asked for.

Every one stands for a kind of incident; the documentation lists them from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from exactlyonce_env.errors import invalid

__all__ = ["Options", "make_options"]


class Options(BaseModel):
    """The traits; the defaults are the reference.

    Those that change a contract hold for every write path of the episode.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    key_retention_s: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="life of a key record [s]; one shorter than a write's time in flight lets the "
        "retry and the original both take effect",
    )
    in_flight_same_key: Literal["coalesce", "conflict"] = Field(
        "coalesce",
        description="conflict: a call whose key is in progress is answered 409 instead of with the "
        "first call's result",
    )
    key_mismatch: Literal["reject", "conflict", "ignore"] = Field(
        "reject",
        description="a key that comes back with other arguments: 422, 409, or taken as a new write",
    )
    cached_failures: bool = Field(
        False, description="an HTTP 500 is kept under its key and replayed to every retry"
    )
    unique: bool = Field(
        False,
        description="a write whose like exists already is refused with 409: the client's own "
        "earlier one, or a stranger's",
    )
    stranger: bool = Field(
        False, description="somebody else's record of the same name is there from the start"
    )
    stale_every: int = Field(
        0,
        ge=0,
        le=40,
        description="every n-th read comes from a replica that is 300 s behind: seen, then not",
    )
    page_size: int = Field(0, ge=0, le=1000, description="entries of a list's page; 0: no pages")
    misleading_errors: bool = Field(
        False, description="a timeout and an HTTP 500 claim that nothing was processed"
    )
    item_failures: bool = Field(
        False,
        description="the first batch is acknowledged, but the answer lists half of its items as "
        "failed",
    )


def make_options(fields: Mapping[str, Any] | Options | None) -> Options:
    """The traits from a mapping.

    Raises
    ------
    UserError
        For an unknown trait or a value out of range.
    """
    if isinstance(fields, Options):
        return fields
    try:
        return Options.model_validate(dict(fields or {}))
    except ValidationError as error:
        raise invalid("sandbox options", error, sorted(Options.model_fields)) from None
