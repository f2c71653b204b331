"""Checking the arguments of a call against the tool's JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import fastjsonschema

from exactlyonce_env.sandbox.contracts import paths_of
from exactlyonce_env.sandbox.tools import TOOLS, schema_of

__all__ = ["checker"]

Checker = Callable[[Mapping[str, Any]], str | None]


@cache
def checker(contract: str, tool: str) -> Checker:
    """A function that says what is wrong with the arguments of a call; None where nothing is."""
    validate = fastjsonschema.compile(schema_of(TOOLS[tool], paths_of(contract)))

    def check(arguments: Mapping[str, Any]) -> str | None:
        try:
            validate(arguments)
        except fastjsonschema.JsonSchemaValueException as error:
            return str(error.message).replace("data.", "", 1).replace("data ", "arguments ", 1)
        return None

    return check
