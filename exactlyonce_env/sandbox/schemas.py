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
    schema = schema_of(TOOLS[tool], paths_of(contract))
    validate = fastjsonschema.compile(schema)

    def check(arguments: Mapping[str, Any]) -> str | None:
        try:
            validate(arguments)
        except fastjsonschema.JsonSchemaValueException as error:
            if error.rule == "additionalProperties":  # it names them in no fixed order
                unknown = sorted(set(arguments) - set(schema["properties"]))
                return f"unknown arguments: {', '.join(unknown)}"
            return str(error.message).replace("data.", "", 1).replace("data ", "arguments ", 1)
        return None

    return check
