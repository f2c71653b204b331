"""Presets as data: what a user can print, copy, edit and pass back.

A preset is a base contract with costs and faults, and optionally *variants*: weighted overrides,
one context each.  Fields have the names of the design; times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from exactlyonce_env.delays import REFERENCE_TAIL, DelayLaw, Law, delays_from_spec
from exactlyonce_env.errors import invalid
from exactlyonce_env.records import MAX_ATTEMPTS, MAX_ITEMS
from exactlyonce_env.vocabulary import MODE_NAMES, Mode

Attempt = Literal["original", "retry"]


class _Part(BaseModel):
    """Frozen, closed to unknown fields, finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Costs(_Part):
    """Weights of the reward; all in units of one success.

    ``success`` to ``overclaim`` act at settlement, the others as they occur.
    """

    success: float = Field(1.0, ge=0, le=1e6)
    duplicate: float = Field(1.0, ge=0, le=1e6, description="each duplicate effect")
    omission: float = Field(0.5, ge=0, le=1e6, description="each omitted item")
    unresolved: float = Field(0.3, ge=0, le=1e6)
    overclaim: float = Field(0.2, ge=0, le=1e6)
    time_per_hour: float = Field(
        0.12, ge=0, le=1e6, description="each hour from the first decision"
    )
    read: float = Field(0.002, ge=0, le=1e6, description="each read")
    reissue: float = Field(0.002, ge=0, le=1e6, description="each re-issue")
    escalation: float = Field(0.15, ge=0, le=1e6, description="each question to the operator")


class Contract(_Part):
    """What the service promises and the client may know, and the limits of the episode."""

    readback: Literal["none", "strong", "eventual", "authoritative"] = "strong"
    lag_s: float = Field(0.0, ge=0, le=1e9, description="visibility lag of an eventual read")
    lag_documented: bool = True
    accepts_key: bool = False
    key_retention_s: float | None = Field(
        86400.0, gt=0, le=1e9, description="life of a key record; null: for ever"
    )
    in_flight_same_key: Literal["coalesce", "conflict"] = "coalesce"
    idempotent: bool = False
    irreversible: bool = False
    n_items: int = Field(1, ge=1, le=MAX_ITEMS)
    in_flight_bound_s: float | None = Field(
        None, gt=0, le=1e9, description="documented bound on processing; null: unknown"
    )
    client_timeout_s: float = Field(30.0, gt=0, le=86400)
    original_key: Literal["omitted", "sent"] = "omitted"
    candidate_key: Literal["same", "different"] = "same"
    latency_s: float = Field(1.0, ge=0, le=86400, description="time of an ordinary call")
    operator_delay_s: float = Field(900.0, ge=0, le=1e7)
    operator_answer_rate: float = Field(
        1.0, ge=0, le=1, description="0: the unresponsive condition"
    )
    operator_sees_in_flight: bool = False
    max_steps: int = Field(40, ge=1, le=100000, description="call budget")
    max_attempts: int = Field(6, ge=1, le=MAX_ATTEMPTS)
    dispatch_claims: bool = Field(
        False, description="an acknowledged re-issue ends the episode and claims completion"
    )

    @field_validator("key_retention_s", "in_flight_bound_s", mode="before")
    @classmethod
    def _infinity_is_none(cls, seconds: Any) -> Any:
        return None if seconds == math.inf else seconds  # TOML has no null

    @model_validator(mode="after")
    def _possible(self) -> Contract:
        if self.lag_s > 0 and self.readback != "eventual":
            raise ValueError(
                f"lag_s={self.lag_s:g} needs readback=eventual; a {self.readback} read has no lag"
            )
        if self.original_key == "sent" and not self.accepts_key:
            raise ValueError(
                "original_key=sent needs accepts_key=true; else use original_key=omitted"
            )
        if self.latency_s >= self.client_timeout_s:
            raise ValueError(
                f"latency_s={self.latency_s:g} must lie below "
                f"client_timeout_s={self.client_timeout_s:g}"
            )
        return self


class Faults(_Part):
    """The distribution of fates.

    ``original`` and ``retry`` weigh fault modes; ``fit`` stands for all twelve that fit the write,
    equally (``partial_batch`` fits batches only).  A mode of weight 0 never happens.
    """

    original: Literal["fit"] | dict[str, float] = "fit"
    original_ok_share: float | None = Field(
        None, ge=0, le=1, description="P(ok) of the original; null: as `original` weighs it"
    )
    retry: Literal["fit"] | dict[str, float] = "fit"
    retry_fault_rate: float = Field(
        0.0, ge=0, le=1, description="P(a further attempt meets a fault)"
    )
    late_fixed_s: float = Field(90.0, ge=0, le=1e8, description="delay of timeout_late")
    late_tail: DelayLaw = Field(REFERENCE_TAIL, description="law of timeout_late_tail")
    queued_share: float = Field(
        0.5, ge=0, le=1, description="P(a late request is queued, not in transit)"
    )
    copy_delay_s: float = Field(2.0, ge=0, le=1e8, description="delay of a redelivered copy")
    retry_after_s: float = Field(5.0, ge=0, le=86400)
    outage_s: float = Field(120.0, ge=0, le=1e7)

    @field_validator("original", "retry", mode="before")
    @classmethod
    def _known_modes(cls, weights: Any) -> Any:
        if weights == "fit":
            return weights
        if not isinstance(weights, Mapping):
            raise ValueError("must be 'fit' or a mapping of fault modes to weights")
        for name, weight in weights.items():
            if name not in MODE_NAMES:
                raise ValueError(
                    f"unknown fault mode {name!r}; choose from {', '.join(MODE_NAMES)}"
                )
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise ValueError(f"the weight of {name} must be a number, not {weight!r}")
            if not 0 <= weight < math.inf:
                raise ValueError(f"the weight of {name} must be finite and >= 0, not {weight:g}")
        if not sum(weights.values()) > 0:
            raise ValueError("at least one fault mode needs a weight above 0")
        return weights

    @field_validator("late_tail", mode="before")
    @classmethod
    def _law_in_any_form(cls, law: Any) -> Any:
        if not isinstance(law, Mapping | str | Law):
            raise ValueError("must be a delay law: a mapping with its family, or lomax:c=0.8,...")
        return delays_from_spec(law)

    @model_validator(mode="after")
    def _weights_count(self) -> Faults:
        if not isinstance(self.retry, str) and self.retry_fault_rate == 0.0:
            raise ValueError("retry weighs fault modes that never happen: retry_fault_rate is 0")
        return self

    def shares(self, attempt: Attempt, n_items: int) -> list[float]:
        """Probability of each mode (13,) for the original or for a further attempt."""
        weights = self.original if attempt == "original" else self.retry
        if isinstance(weights, str):
            raw = [float(m != Mode.PARTIAL_BATCH or n_items > 1) for m in Mode]
            raw[Mode.OK] = 0.0
        else:
            raw = [float(weights.get(name, 0.0)) for name in MODE_NAMES]
        ok_share = self.original_ok_share if attempt == "original" else 1.0 - self.retry_fault_rate
        if ok_share is not None:
            raw[Mode.OK] = 0.0
            faults = sum(raw)
            raw = [(1.0 - ok_share) * w / faults if faults else 0.0 for w in raw]
            raw[Mode.OK] = ok_share if faults else 1.0
        total = sum(raw)
        return [w / total for w in raw]

    def late_laws(self, shares: list[float]) -> Iterator[tuple[str, float]]:
        """(field, latest commit [s]) of each kind of late write that has a chance."""
        if shares[Mode.TIMEOUT_LATE] > 0:
            yield "late_fixed_s", self.late_fixed_s
        if shares[Mode.TIMEOUT_LATE_TAIL] > 0:
            yield "late_tail", self.late_tail.support_s[1]


class Documented(_Part):
    """What the documentation tells about faults; false means unknown to the client."""

    delays: bool = Field(False, description="quantiles of the delay of late writes")
    shares: bool = Field(False, description="shares of outcomes behind a timeout and an HTTP 500")
    retry_faults: bool = Field(False, description="how often a further attempt meets a fault")


class LagRange(_Part):
    """Equally likely visibility lags: low, low + step, ... up to high, one context each."""

    low: float = Field(ge=0, le=1e9)
    high: float = Field(ge=0, le=1e9)
    step: float = Field(1.0, gt=0, le=1e9)

    @model_validator(mode="after")
    def _ordered(self) -> LagRange:
        if self.high < self.low:
            raise ValueError(f"high={self.high:g} must be at least low={self.low:g}")
        if (self.high - self.low) / self.step > 10000:
            raise ValueError(
                f"step={self.step:g} makes more than 10,000 contexts; use a larger one"
            )
        return self

    def values(self) -> list[float]:
        """The lags [s]."""
        return [
            self.low + k * self.step for k in range(int((self.high - self.low) / self.step) + 1)
        ]


class Variant(_Part):
    """One context: a weight and the fields in which it differs from the base."""

    weight: float = Field(1.0, gt=0)
    name: str | None = None
    contract: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    faults: dict[str, Any] = {}
    documented: dict[str, Any] = {}


class Situation(_Part):
    """A contract with its costs, faults and documentation: one context, all fields resolved."""

    weight: float = Field(1.0, gt=0)
    name: str | None = None
    contract: Contract = Contract()
    costs: Costs = Costs()
    faults: Faults = Faults()
    documented: Documented = Documented()

    @model_validator(mode="after")
    def _possible(self) -> Situation:
        self.check()
        return self

    def check(self) -> None:
        """Refuse what no service could promise."""
        contract, faults = self.contract, self.faults
        attempts: tuple[Attempt, ...] = ("original", "retry")
        for attempt in attempts:
            shares = faults.shares(attempt, contract.n_items)
            if shares[Mode.PARTIAL_BATCH] > 0 and contract.n_items == 1:
                raise ValueError(
                    f"faults.{attempt}: partial_batch fits batches only; contract.n_items is 1, "
                    "use 2 or more"
                )
            bound_s = contract.in_flight_bound_s
            if bound_s is None:
                continue
            for field, latest_s in faults.late_laws(shares):
                if latest_s > bound_s:
                    raise ValueError(
                        f"contract.in_flight_bound_s={bound_s:g} is documented and must hold, but "
                        f"faults.{field} lands up to {latest_s:g} s after sending"
                    )
            if bound_s < contract.latency_s:
                raise ValueError(
                    f"contract.in_flight_bound_s={bound_s:g} must be at least "
                    f"latency_s={contract.latency_s:g}"
                )


class Preset(Situation):
    """A named distribution of worlds: a base situation and its variants."""

    weight: float = Field(1.0, gt=0, exclude=True)
    name: str = "custom"
    description: str = ""
    start: Literal["fault", "send"] = "fault"
    variants: tuple[Variant, ...] = ()
    lags_s: LagRange | None = Field(None, description="one variant for each visibility lag")
    catalogue: Literal["contextual"] | None = Field(
        None, description="contexts that are generated instead of listed"
    )
    split: Literal["train", "test", "more"] = Field(
        "train", description="which part of the catalogue; more: train and 11,264 further contexts"
    )

    def check(self) -> None:
        """See `Situation.check`; a base that has variants need not be possible by itself."""
        if self.catalogue is not None and (self.variants or self.lags_s is not None):
            raise ValueError("catalogue brings its own contexts; it excludes variants and lags_s")
        if self.catalogue is None and self.split != "train":
            raise ValueError(
                f"split={self.split} needs a catalogue; the other presets are one whole"
            )
        if self.lags_s is not None and "lag_s" in self.contract.model_fields_set:
            raise ValueError("contract.lag_s and lags_s exclude each other; or set lags_s: null")
        if not self.variants and self.lags_s is None and self.catalogue is None:
            super().check()

    def situations(self) -> list[Situation]:
        """Every context of the preset with its weight, all fields resolved.

        Raises
        ------
        UserError
            For a variant with an unknown field or an impossible combination.
        """
        if self.catalogue == "contextual":
            from exactlyonce_env.catalogue import contextual_situations

            return contextual_situations(self)
        base = {part: getattr(self, part) for part in ("contract", "costs", "faults", "documented")}
        variants = self.variants or (Variant(name=self.name),)
        if self.lags_s is not None:
            variants = tuple(
                variant.model_copy(update={"contract": {**variant.contract, "lag_s": lag_s}})
                for variant in variants
                for lag_s in self.lags_s.values()
            )
        return [self._resolve(k, variant, base) for k, variant in enumerate(variants)]

    def _resolve(self, k: int, variant: Variant, base: Mapping[str, BaseModel]) -> Situation:
        fields: dict[str, Any] = {
            "weight": variant.weight,
            "name": variant.name or f"{self.name}/{k}",
        }
        for part, model in base.items():
            fields[part] = {**_stated(model), **getattr(variant, part)}
        try:
            return Situation.model_validate(fields)
        except ValidationError as error:
            raise invalid(f"preset {self.name}: variants.{k}", error, _choices(error)) from None

    def resolved(self) -> Preset:
        """Return the preset, after checking that each of its variants is possible."""
        self.situations()
        return self

    def dump(self) -> dict[str, Any]:
        """The preset in JSON's types; `make_preset` takes it back unchanged.

        All fields are there, but for those that a catalogue or ``lags_s`` sets for each context.
        """
        fields = self.model_dump(mode="json", by_alias=True, exclude_unset=bool(self.catalogue))
        if self.lags_s is not None:
            del fields["contract"]["lag_s"]
        return fields


def _stated(model: BaseModel) -> dict[str, Any]:
    """The fields that were stated, by name, nested models left as they are."""
    return {name: getattr(model, name) for name in model.model_fields_set}


def make_preset(fields: Mapping[str, Any], where: str) -> Preset:
    """Validate a mapping as a preset.

    Raises
    ------
    UserError
        Naming the field, the value and the allowed range.
    """
    try:
        return Preset.model_validate(dict(fields)).resolved()
    except ValidationError as error:
        raise invalid(where, error, _choices(error)) from None


def _choices(error: ValidationError) -> list[str]:
    """Field names of the model that the first complaint is about."""
    model: type[BaseModel] = Preset
    for part in error.errors(include_url=False)[0]["loc"][:-1]:
        model = _SECTIONS.get(str(part), model)
    return [name for name, field in model.model_fields.items() if not field.exclude]


_SECTIONS: dict[str, type[BaseModel]] = {
    "contract": Contract,
    "costs": Costs,
    "faults": Faults,
    "documented": Documented,
    "lags_s": LagRange,
    "variants": Variant,
}


def merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the fields of ``override`` put in, section by section.

    Fault weights and delay laws are replaced whole: half of an old law is never kept.
    """
    result = dict(base)
    for key, value in override.items():
        old = result.get(key)
        if key in ("contract", "costs", "faults", "documented") and isinstance(value, Mapping):
            result[key] = {**(old if isinstance(old, Mapping) else {}), **value}
        else:
            result[key] = value
    return result
