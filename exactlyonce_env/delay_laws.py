"""The distributions of in-flight delays: frozen, validated records with their exact mathematics.

Times are seconds; parameters carry scipy's names and conventions: ``scipy.stats.lomax(c, loc,
scale)`` is ``Lomax(c=..., loc=..., scale=...)``.  The formulas are closed forms rather than calls
of `scipy.stats`: they keep the hazard exact far in the tail, where ``pdf / sf`` is 0 / 0, and
spare the commands an import of half a second.  The tests hold each against `scipy.stats` to 1e-10.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

FloatArray = npt.NDArray[np.float64]

ALIASES = {"exponential": "expon", "weibull": "weibull_min", "lognormal": "lognorm"}
"""Names that are taken for a family besides scipy's own."""

Shape = Annotated[float, Field(gt=0, description="shape parameter, > 0")]
Location = Annotated[float, Field(ge=0, description="start of the law [s], >= 0")]
Scale = Annotated[float, Field(gt=0, description="scale [s], > 0")]


class Law(BaseModel, ABC):
    """A distribution of a delay T >= 0 in seconds.

    Every method takes a number or an array of any shape and returns float64 of the same shape.
    Where a law has atoms (`Fixed`, `Empirical`, mixtures of them) the cdf is the right-continuous
    step function P(T <= t), and the quantile is the smallest t with cdf(t) >= u.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        # `Empirical` calls its steps "cdf" outside, where no method stands in the way.
        serialize_by_alias=True,
    )

    @field_validator("family", mode="before", check_fields=False)
    @classmethod
    def _scipy_name(cls, family: Any) -> Any:
        return ALIASES.get(family, family) if isinstance(family, str) else family

    def quantile(self, u: npt.ArrayLike) -> FloatArray:
        """Smallest t [s] with cdf(t) >= u; inf where none is known, nan for u outside [0, 1]."""
        x = np.asarray(u, dtype=np.float64)
        with np.errstate(all="ignore"):
            return like(np.where((x >= 0.0) & (x <= 1.0), self._quantile(x), np.nan))

    def cdf(self, t: npt.ArrayLike) -> FloatArray:
        """P(T <= t)."""
        with np.errstate(all="ignore"):
            return like(self._cdf(np.asarray(t, dtype=np.float64)))

    def survival(self, t: npt.ArrayLike) -> FloatArray:
        """P(T > t), exact in the tail where 1 - cdf(t) would cancel."""
        with np.errstate(all="ignore"):
            return like(self._survival(np.asarray(t, dtype=np.float64)))

    def density(self, t: npt.ArrayLike) -> FloatArray:
        """Density [1/s]: 0 outside the support, inf at an atom, nan where nothing was measured."""
        with np.errstate(all="ignore"):
            return like(self._density(np.asarray(t, dtype=np.float64)))

    def hazard(self, t: npt.ArrayLike) -> FloatArray:
        """Rate of landing at t given that it has not landed before: density / survival [1/s].

        0 below the support, inf at an atom, nan where nothing survives (at and past the end of a
        bounded support) and where nothing is known (past the last event of a measured law).
        """
        x = np.asarray(t, dtype=np.float64)
        with np.errstate(all="ignore"):
            return like(self._hazard(x))

    @property
    @abstractmethod
    def support_s(self) -> tuple[float, float]:
        """Least and greatest possible delay [s]; the second may be inf."""

    @property
    def median_s(self) -> float:
        """Median [s]; inf where a measured law never reached it."""
        return float(self.quantile(0.5))

    @property
    def p99_s(self) -> float:
        """99th percentile [s]; inf where a measured law never reached it."""
        return float(self.quantile(0.99))

    @abstractmethod
    def _quantile(self, u: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _cdf(self, t: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _survival(self, t: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _density(self, t: FloatArray) -> FloatArray: ...

    def _hazard(self, t: FloatArray) -> FloatArray:
        survival = self._survival(t)
        density = self._density(t)
        atom_or_end = np.where(np.isinf(density), np.inf, np.nan)
        return np.where(survival > 0.0, density / survival, atom_or_end)


class Fixed(Law):
    """Always the same delay."""

    family: Literal["fixed"] = "fixed"
    value_s: Location

    @property
    def support_s(self) -> tuple[float, float]:
        """The one delay, twice."""
        return self.value_s, self.value_s

    def _quantile(self, u: FloatArray) -> FloatArray:
        return np.full(u.shape, self.value_s)

    def _cdf(self, t: FloatArray) -> FloatArray:
        return np.where(t >= self.value_s, 1.0, 0.0)

    def _survival(self, t: FloatArray) -> FloatArray:
        return np.where(t >= self.value_s, 0.0, 1.0)

    def _density(self, t: FloatArray) -> FloatArray:
        return np.where(t == self.value_s, np.inf, 0.0)


class Uniform(Law):
    """Uniform on [loc, loc + scale]."""

    family: Literal["uniform"] = "uniform"
    loc: Location = 0.0
    scale: Scale = 1.0

    @property
    def support_s(self) -> tuple[float, float]:
        """``loc`` and ``loc + scale``."""
        return self.loc, self.loc + self.scale

    def _quantile(self, u: FloatArray) -> FloatArray:
        return self.loc + self.scale * u

    def _cdf(self, t: FloatArray) -> FloatArray:
        return np.clip((t - self.loc) / self.scale, 0.0, 1.0)

    def _survival(self, t: FloatArray) -> FloatArray:
        return np.clip((self.loc + self.scale - t) / self.scale, 0.0, 1.0)

    def _density(self, t: FloatArray) -> FloatArray:
        low, high = self.support_s
        return np.where((t >= low) & (t <= high), 1.0 / self.scale, 0.0)


class LogUniform(Law):
    """Uniform in the logarithm on [a, b]; its hazard falls until b/e and rises from there."""

    family: Literal["loguniform"] = "loguniform"
    a: Scale
    b: Scale

    @model_validator(mode="after")
    def _ordered(self) -> LogUniform:
        if self.a >= self.b:
            raise ValueError(f"a must be less than b, not a={self.a:g} and b={self.b:g}")
        return self

    @property
    def support_s(self) -> tuple[float, float]:
        """``a`` and ``b``."""
        return self.a, self.b

    @property
    def _width(self) -> float:
        return float(np.log(self.b) - np.log(self.a))

    def _quantile(self, u: FloatArray) -> FloatArray:
        return np.asarray(np.clip(np.exp(np.log(self.a) + self._width * u), self.a, self.b))

    def _cdf(self, t: FloatArray) -> FloatArray:
        return np.log(np.clip(t, self.a, self.b) / self.a) / self._width

    def _survival(self, t: FloatArray) -> FloatArray:
        return np.log(self.b / np.clip(t, self.a, self.b)) / self._width

    def _density(self, t: FloatArray) -> FloatArray:
        return np.where((t >= self.a) & (t <= self.b), 1.0 / (t * self._width), 0.0)


class _Hazardous(Law):
    """Laws given by a cumulative hazard H: survival exp(-H(x)) for x = (t - loc) / scale."""

    loc: Location = 0.0
    scale: Scale = 1.0

    @property
    def support_s(self) -> tuple[float, float]:
        """``loc`` and inf."""
        return self.loc, np.inf

    @abstractmethod
    def _cumulative(self, x: FloatArray) -> FloatArray:
        """H(x) for x >= the least possible x."""

    @abstractmethod
    def _rate(self, x: FloatArray) -> FloatArray:
        """dH/dx."""

    @abstractmethod
    def _inverse(self, hazard: FloatArray) -> FloatArray:
        """Solve H(x) = ``hazard`` for x."""

    def _standard(self, t: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        low = self.support_s[0]
        return np.asarray((np.maximum(t, low) - self.loc) / self.scale), t >= low

    def _quantile(self, u: FloatArray) -> FloatArray:
        return self.loc + self.scale * self._inverse(-np.log1p(-u))

    def _cdf(self, t: FloatArray) -> FloatArray:
        x, _ = self._standard(t)
        return -np.expm1(-self._cumulative(x))

    def _survival(self, t: FloatArray) -> FloatArray:
        x, _ = self._standard(t)
        return np.exp(-self._cumulative(x))

    def _hazard(self, t: FloatArray) -> FloatArray:
        x, inside = self._standard(t)
        return np.where(inside, self._rate(x) / self.scale, 0.0)

    def _density(self, t: FloatArray) -> FloatArray:
        return self._hazard(t) * self._survival(t)


class Exponential(_Hazardous):
    """Exponential: constant hazard 1 / scale, H(x) = x."""

    family: Literal["expon"] = "expon"

    def _cumulative(self, x: FloatArray) -> FloatArray:
        return x

    def _rate(self, x: FloatArray) -> FloatArray:
        return np.ones(x.shape)

    def _inverse(self, hazard: FloatArray) -> FloatArray:
        return hazard


class Weibull(_Hazardous):
    """Weibull: H(x) = x^c; falling hazard for c < 1."""

    family: Literal["weibull_min"] = "weibull_min"
    c: Shape

    def _cumulative(self, x: FloatArray) -> FloatArray:
        return np.power(x, self.c)

    def _rate(self, x: FloatArray) -> FloatArray:
        return self.c * np.power(x, self.c - 1.0)

    def _inverse(self, hazard: FloatArray) -> FloatArray:
        return np.power(hazard, 1.0 / self.c)


class Lomax(_Hazardous):
    """Lomax (Pareto II): H(x) = c log(1 + x); infinite mean for c <= 1."""

    family: Literal["lomax"] = "lomax"
    c: Shape

    def _cumulative(self, x: FloatArray) -> FloatArray:
        return self.c * np.log1p(x)

    def _rate(self, x: FloatArray) -> FloatArray:
        return self.c / (1.0 + x)

    def _inverse(self, hazard: FloatArray) -> FloatArray:
        return np.expm1(hazard / self.c)


class Pareto(_Hazardous):
    """Pareto on x >= 1: H(x) = b log x; infinite mean for b <= 1."""

    family: Literal["pareto"] = "pareto"
    b: Shape

    @property
    def support_s(self) -> tuple[float, float]:
        """``loc + scale`` and inf."""
        return self.loc + self.scale, np.inf

    def _cumulative(self, x: FloatArray) -> FloatArray:
        return self.b * np.log(np.maximum(x, 1.0))

    def _rate(self, x: FloatArray) -> FloatArray:
        return self.b / x

    def _inverse(self, hazard: FloatArray) -> FloatArray:
        return np.exp(hazard / self.b)


class LogNormal(Law):
    """Lognormal: log((t - loc) / scale) is normal with mean 0 and standard deviation s."""

    family: Literal["lognorm"] = "lognorm"
    s: Shape
    loc: Location = 0.0
    scale: Scale = 1.0

    @property
    def support_s(self) -> tuple[float, float]:
        """``loc`` and inf."""
        return self.loc, np.inf

    def _z(self, t: FloatArray) -> FloatArray:
        return np.asarray(np.log(np.maximum(t - self.loc, 0.0) / self.scale) / self.s)

    def _quantile(self, u: FloatArray) -> FloatArray:
        from scipy.special import ndtri

        return np.asarray(self.loc + self.scale * np.exp(self.s * ndtri(u)))

    def _cdf(self, t: FloatArray) -> FloatArray:
        from scipy.special import ndtr

        return np.asarray(ndtr(self._z(t)))

    def _survival(self, t: FloatArray) -> FloatArray:
        from scipy.special import ndtr

        return np.asarray(ndtr(-self._z(t)))

    def _log_density(self, t: FloatArray) -> FloatArray:
        z = self._z(t)
        return np.asarray(-0.5 * z * z - np.log(self.s * np.sqrt(2.0 * np.pi) * (t - self.loc)))

    def _density(self, t: FloatArray) -> FloatArray:
        return np.where(t > self.loc, np.exp(self._log_density(t)), 0.0)

    def _hazard(self, t: FloatArray) -> FloatArray:
        from scipy.special import log_ndtr

        log_rate = self._log_density(t) - log_ndtr(-self._z(t))
        return np.where(t > self.loc, np.exp(log_rate), 0.0)


def like(values: FloatArray) -> FloatArray:
    """Scalars in, scalars out: a 0-d result becomes a NumPy float."""
    result: FloatArray = np.asarray(values, dtype=np.float64)[()]
    return result
