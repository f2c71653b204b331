"""From an environment's keywords to the plan of its worlds.

A keyword such as ``costs`` is what the user asked for, so it acts on every context: on the
preset's base and on each of its variants alike.  A `config` only edits the preset, as ``--config``
does on the command line.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy.typing as npt
from pydantic import BaseModel

from exactlyonce_env.config import Variant, merged
from exactlyonce_env.delays import delays_from_spec, dump
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import DelaysLike, PresetLike, load_plan
from exactlyonce_env.presets import preset as load_preset

MAX_CACHED = 16
_cache: OrderedDict[str, Plan] = OrderedDict()
_guard = Lock()


def plan_of(
    preset: PresetLike,
    *,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    delays: DelaysLike | None = None,
    costs: Mapping[str, float] | None = None,
    contract: Mapping[str, Any] | None = None,
    faults: Mapping[str, Any] | None = None,
    variants: Iterable[Mapping[str, Any] | Variant] | None = None,
) -> Plan:
    """The plan that an environment's keywords ask for; equal keywords share one plan.

    Parameters
    ----------
    preset
        A preset's name, a mapping of its fields, or a `Preset`.
    config
        Edits of the preset: a mapping, or the path of a YAML, TOML or JSON file.
    delays
        Law of the late writes: anything that `exactlyonce_env.delays.delays_from_spec` takes.
    costs, contract, faults
        Fields that hold in every context, whatever the preset's variants say.
    variants
        The contexts of the mix, in place of the preset's own: weighted overrides of its base.

    Raises
    ------
    UserError
        For whatever `exactlyonce_env.presets.preset` refuses, an impossible context, or a field of
        the wrong type.
    """
    overrides = {
        part: dict(_mapping(part, fields))
        for part, fields in (("contract", contract), ("costs", costs), ("faults", faults))
        if fields
    }
    mix = None if variants is None else [_plain(_mapping("variants", v)) for v in variants]
    key = _canonical([preset, _stamped(config), _stamped(delays), overrides, mix])
    late_tail = overrides.get("faults", {}).get("late_tail")
    if delays is not None and late_tail is not None:
        raise UserError("delays and faults.late_tail are the same law: give one or the other")
    if config is not None or late_tail is not None or mix is not None:
        # any of these may name a file of delays that changes later; `load_plan` caches by content
        return _load(preset, config, delays, overrides, mix)
    with _guard:
        if key not in _cache:
            _cache[key] = _load(preset, config, delays, overrides, mix)
        _cache.move_to_end(key)
        while len(_cache) > MAX_CACHED:
            _cache.popitem(last=False)
        return _cache[key]


def chosen_plan(
    make_plan: Callable[..., Plan],
    plan: Plan | None,
    preset: PresetLike,
    keywords: Mapping[str, Any],
) -> Plan:
    """``plan`` if one is given, else what ``make_plan`` makes of the other keywords."""
    if plan is None:
        return make_plan(preset, **keywords)
    if not isinstance(plan, Plan):
        raise UserError(f"plan must be an exactlyonce_env.Plan, not {type(plan).__name__}")
    given = [name for name, value in keywords.items() if value is not None]
    if given:
        raise UserError(f"plan stands in place of {', '.join(given)}: give one or the other")
    return plan


def arrays_of(plan: Plan) -> tuple[npt.NDArray[Any], ...]:
    """Contexts, their cumulative probabilities, delay table and static features, read-only.

    A pickled plan comes back writable, which compiled code would take for another type.
    """
    arrays = (plan.contexts, plan.context_cdf, plan.table, plan.static)
    views = tuple(array.view() for array in arrays)
    for view in views:
        view.setflags(write=False)
    return views


def _load(
    preset: PresetLike,
    config: Mapping[str, Any] | str | os.PathLike[str] | None,
    delays: DelaysLike | None,
    overrides: dict[str, dict[str, Any]],
    mix: list[dict[str, Any]] | None,
) -> Plan:
    base = load_preset(preset, config=config, delays=delays)
    if delays is not None:
        law = dump(delays_from_spec(delays))
        overrides = merged(overrides, {"faults": {"late_tail": law}})
    if not overrides and mix is None:
        return load_plan(base)
    fields = base.dump()
    if mix is not None:
        fields |= {"variants": mix, "lags_s": None, "catalogue": None}
    if "lag_s" in overrides.get("contract", {}):
        fields["lags_s"] = None
    fields = merged(fields, overrides)
    fields["variants"] = [merged(variant, overrides) for variant in fields.get("variants", ())]
    return load_plan(fields)


def _mapping(name: str, fields: Any) -> Mapping[str, Any]:
    if isinstance(fields, BaseModel):
        return _dumped(fields)
    if not isinstance(fields, Mapping):
        raise UserError(f"{name} must be a mapping of field names to values, not {fields!r}")
    return fields


def _dumped(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)


def _plain(variant: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in variant.items() if value is not None}


def _stamped(source: Any) -> Any:
    """What a source says, for the cache: a file is told by its path, size and time of change."""
    if isinstance(source, str | os.PathLike) and Path(source).is_file():
        status = Path(source).stat()
        return [str(Path(source).resolve()), status.st_size, status.st_mtime_ns]
    return os.fspath(source) if isinstance(source, os.PathLike) else source


def _canonical(keywords: Any) -> str:
    try:
        return json.dumps(keywords, sort_keys=True, default=_jsonable)
    except (TypeError, ValueError) as error:
        raise UserError(f"an environment's keywords must be plain data: {error}") from None


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _dumped(value)
    if hasattr(value, "tolist"):  # a NumPy number or array
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not")
