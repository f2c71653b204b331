"""Delay laws together: mixtures, laws by name or file, and the arena of the compiled sampler."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
)

from exactlyonce_env import quantiles
from exactlyonce_env.arithmetic import log  # the same bits on every machine, so the same worlds
from exactlyonce_env.delay_laws import (
    ALIASES,
    Exponential,
    Fixed,
    FloatArray,
    Law,
    LogNormal,
    LogUniform,
    Lomax,
    Pareto,
    Uniform,
    Weibull,
)
from exactlyonce_env.delay_steps import Empirical, Landed
from exactlyonce_env.errors import UserError, did_you_mean, invalid

__all__ = [
    "ALIASES",
    "FAMILIES",
    "REFERENCE_TAIL",
    "Component",
    "DelayLaw",
    "Empirical",
    "Exponential",
    "Fixed",
    "Landed",
    "Law",
    "LogNormal",
    "LogUniform",
    "Lomax",
    "Mixture",
    "Pareto",
    "Uniform",
    "Weibull",
    "delays_from_spec",
    "dump",
    "encode",
]


class Component(BaseModel):
    """One part of a mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weight: float = Field(gt=0, le=1, description="share of this component, in (0, 1]")
    law: DelayLaw


class Mixture(Law):
    """A mixture: with chance ``weight`` the delay follows that component's law."""

    family: Literal["mixture"] = "mixture"
    components: tuple[Component, ...] = Field(min_length=1)

    @field_validator("components")
    @classmethod
    def _weights_sum_to_one(cls, components: tuple[Component, ...]) -> tuple[Component, ...]:
        total = sum(part.weight for part in components)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"the weights must sum to 1, not {total:.10g}")
        return components

    @property
    def support_s(self) -> tuple[float, float]:
        """The hull of the components' supports."""
        lows, highs = zip(*(part.law.support_s for part in self.components), strict=True)
        return min(lows), max(highs)

    def _weighted(self, values: list[FloatArray]) -> FloatArray:
        total = np.zeros(values[0].shape)
        for part, value in zip(self.components, values, strict=True):
            total = total + part.weight * value
        return total

    def _cdf(self, t: FloatArray) -> FloatArray:
        return np.minimum(self._weighted([part.law._cdf(t) for part in self.components]), 1.0)

    def _survival(self, t: FloatArray) -> FloatArray:
        return self._weighted([part.law._survival(t) for part in self.components])

    def _density(self, t: FloatArray) -> FloatArray:
        return self._weighted([part.law._density(t) for part in self.components])

    def _quantile(self, u: FloatArray) -> FloatArray:
        """Bisection to neighbouring floats, so that an atom's quantile is the atom itself.

        A mixture's quantile lies between the least and the greatest of its components' quantiles.
        """
        quantiles = np.stack([part.law._quantile(u) for part in self.components])
        low, high = quantiles.min(axis=0), quantiles.max(axis=0)
        largest = np.finfo(np.float64).max
        reachable = self._cdf(np.full(u.shape, largest)) >= u
        high = np.minimum(high, largest)
        high = np.where(self._cdf(low) >= u, low, high)
        while True:
            # The geometric mean halves the exponent where the bracket spans many magnitudes.
            wide = (low > 0.0) & (high > 4.0 * low)
            middle = np.where(wide, np.sqrt(low) * np.sqrt(high), low + 0.5 * (high - low))
            moving = (middle > low) & (middle < high)
            if not moving.any():
                break
            enough = self._cdf(middle) >= u
            high = np.where(moving & enough, middle, high)
            low = np.where(moving & ~enough, middle, low)
        return np.where(u < 1.0, np.where(reachable, high, np.inf), self.support_s[1])


def _family(value: Any) -> str | None:
    family = value.get("family") if isinstance(value, dict) else getattr(value, "family", None)
    return ALIASES.get(family, family) if isinstance(family, str) else None


DelayLaw = Annotated[
    Annotated[Fixed, Tag("fixed")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[LogUniform, Tag("loguniform")]
    | Annotated[Exponential, Tag("expon")]
    | Annotated[Weibull, Tag("weibull_min")]
    | Annotated[LogNormal, Tag("lognorm")]
    | Annotated[Pareto, Tag("pareto")]
    | Annotated[Lomax, Tag("lomax")]
    | Annotated[Mixture, Tag("mixture")]
    | Annotated[Empirical, Tag("empirical")],
    Discriminator(_family),
]
"""Any delay law, told apart by ``family``; for use as a field of other pydantic models."""

FAMILIES: dict[str, type[Law]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "loguniform": LogUniform,
    "expon": Exponential,
    "weibull_min": Weibull,
    "lognorm": LogNormal,
    "pareto": Pareto,
    "lomax": Lomax,
    "mixture": Mixture,
    "empirical": Empirical,
}

Component.model_rebuild()
Mixture.model_rebuild()


REFERENCE_TAIL = LogUniform(a=40.0, b=7200.0)
"""The heavy tail of the presets: 40 s to 2 h, median 536.7 s, one in eight beyond an hour."""


def encode(laws: Sequence[Law]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Write laws into one arena for `exactlyonce_env.quantiles.delay_quantile`.

    Returns the table, float64 (K,), in the layout described there, and the offset of each law in
    it, int64 (len(laws),).  A mixture's components stand in the same table, before it.
    """
    cells: list[float] = []
    offsets = [_write(law, cells) for law in laws]
    return np.array(cells, dtype=np.float64), np.array(offsets, dtype=np.int64)


def _write(law: Law, cells: list[float]) -> int:
    if isinstance(law, Mixture):
        parts = [_write(part.law, cells) for part in law.components]
        shares = np.cumsum([part.weight for part in law.components])
        shares[-1] = 1.0  # the sampler relies on it; the sum may be off by rounding
        record = [quantiles.MIXTURE, len(parts), *shares.tolist(), *parts]
    else:
        record = _record(law)
    offset = len(cells)
    cells.extend(record)
    return offset


def _record(law: Law) -> list[float]:
    match law:
        case Fixed():
            return [quantiles.FIXED, law.value_s]
        case Uniform():
            return [quantiles.UNIFORM, law.loc, law.scale]
        case LogUniform():
            log_a = log(law.a)
            return [quantiles.LOGUNIFORM, log_a, log(law.b) - log_a, law.a, law.b]
        case Exponential():
            return [quantiles.EXPON, law.loc, law.scale]
        case Weibull():
            return [quantiles.WEIBULL, law.loc, law.scale, 1.0 / law.c]
        case LogNormal():
            return [quantiles.LOGNORM, law.loc, log(law.scale), law.s]
        case Pareto():
            return [quantiles.PARETO, law.loc, law.scale, 1.0 / law.b]
        case Lomax():
            return [quantiles.LOMAX, law.loc, law.scale, 1.0 / law.c]
        case Empirical():
            return [quantiles.EMPIRICAL, len(law.times_s), *law.times_s, *law.cdf_steps]
    raise TypeError(f"{type(law).__name__} has no place in the arena")


def delays_from_spec(spec: Law | Mapping[str, Any] | str | os.PathLike[str]) -> Law:
    """Make a delay law of whatever a user writes.

    Parameters
    ----------
    spec
        A law; a mapping such as ``{"family": "lomax", "c": 0.8, "scale": 120}``; text such as
        ``"lomax:c=0.8,scale=120"`` or ``"fixed:90"``; or the path of a measured delay that
        ``exactlyonce fit --save`` wrote.

    Raises
    ------
    UserError
        For an unknown family, a missing, unknown or impossible parameter, or a file that holds no
        saved delay.
    """
    if isinstance(spec, Law):
        return spec
    if isinstance(spec, Mapping):
        return _law_from_mapping(spec, "delay")
    if not isinstance(spec, str | os.PathLike):
        raise UserError(
            f"delays must be a law, its mapping, its text or a file saved by `exactlyonce fit FILE "
            f"--save`, not {type(spec).__name__}; measured numbers go through fit first"
        )
    text = os.fspath(spec)
    name, colon, arguments = text.partition(":")
    family = ALIASES.get(name.strip(), name.strip())
    if family in FAMILIES and not Path(text).is_file():
        return _law_from_mapping(_parse(family, arguments, text), f"delay {text!r}")
    if Path(text).is_file():
        from exactlyonce_env.measured.saved import load_saved

        return load_saved(text).law
    looks_like_a_file = not colon and ("/" in text or "\\" in text or Path(text).suffix)
    if looks_like_a_file:
        raise UserError(f"delay file {text!r} does not exist")
    raise UserError(
        f"unknown delay {text!r}{_suggestion(name, FAMILIES)}; write family:name=value,... with "
        f"one of {', '.join(FAMILIES)}, or give a file saved by `exactlyonce fit FILE --save`"
    )


def _law_from_mapping(fields: Mapping[str, Any], what: str) -> Law:
    family = fields.get("family")
    name = ALIASES.get(family, family) if isinstance(family, str) else family
    if not isinstance(name, str) or name not in FAMILIES:
        fault = "has no family" if family is None else f"has the unknown family {family!r}"
        hint = _suggestion(family, FAMILIES) if isinstance(family, str) else ""
        raise UserError(f"{what} {fault}{hint}; choose from {', '.join(FAMILIES)}")
    law = FAMILIES[name]
    try:
        return law.model_validate(dict(fields))
    except ValidationError as error:
        raise invalid(f"{what} of family {name}", error, _parameters(law)) from None


def _parse(family: str, arguments: str, text: str) -> dict[str, Any]:
    """Read the fields of ``family:name=value,...``; ``fixed:90`` may leave its one name out."""
    names = _parameters(FAMILIES[family])
    if family in ("mixture", "empirical"):
        raise UserError(
            f"delay {text!r}: a {family} does not fit in one word; give it as a mapping with the "
            f"fields {', '.join(names)}"
        )
    fields: dict[str, Any] = {"family": family}
    for argument in filter(None, (part.strip() for part in arguments.split(","))):
        name, equals, value = argument.partition("=")
        if not equals and len(names) == 1:
            name, value = names[0], argument
        elif not equals:
            raise UserError(
                f"delay {text!r}: {argument!r} must read name=value, a name being one of "
                f"{', '.join(names)}"
            )
        name = name.strip()
        if name in fields:
            raise UserError(f"delay {text!r}: {name} is given twice")
        try:
            fields[name] = float(value)
        except ValueError:
            raise UserError(f"delay {text!r}: {name} must be a number, not {value!r}") from None
    return fields


def _parameters(law: type[Law]) -> list[str]:
    fields = law.model_fields.items()
    return [field.alias or name for name, field in fields if name != "family"]


def _suggestion(name: str, choices: Iterable[str]) -> str:
    return did_you_mean(name, [*choices, *ALIASES])


def dump(law: Law) -> dict[str, Any]:
    """Write a law as the mapping, made of JSON's types, that `delays_from_spec` reads back."""
    return law.model_dump(mode="json", by_alias=True, exclude_none=True)
