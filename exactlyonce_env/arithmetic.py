"""Logarithm, exponential and normal quantile with the same bits on every machine.

The C library's ``log``, ``exp`` and ``pow`` differ between platforms in their last bit, and a world
drawn through them would too.  These use additions, multiplications, divisions and square roots
only, which IEEE 754 fixes exactly.  Errors against the true value stay within a few units in the
last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from exactlyonce_env.compiled import inlined

LN2_HIGH = 0.693147180369123816490  # the upper 33 bits of ln 2, so that k * LN2_HIGH is exact
LN2_LOW = 1.90821492927058770002e-10  # ln 2 - LN2_HIGH
SQRT_HALF = 0.7071067811865476
EXPONENT_BIAS = 1023
MANTISSA_BITS = 52
MANTISSA_MASK = (1 << 52) - 1
ONE_BITS = 1023 << 52


@inlined
def _atanh_series(s: float) -> float:
    """2 atanh(s) for |s| <= 0.1716, by its power series."""
    z = s * s
    total = 1.0 / 23.0
    total = total * z + 1.0 / 21.0
    total = total * z + 1.0 / 19.0
    total = total * z + 1.0 / 17.0
    total = total * z + 1.0 / 15.0
    total = total * z + 1.0 / 13.0
    total = total * z + 1.0 / 11.0
    total = total * z + 1.0 / 9.0
    total = total * z + 1.0 / 7.0
    total = total * z + 1.0 / 5.0
    total = total * z + 1.0 / 3.0
    return 2.0 * s + 2.0 * s * z * total


@inlined
def _split(x: float) -> tuple[Any, Any]:
    """Split a normal positive ``x`` into (m, k) with x = m 2^k and m in [sqrt 1/2, sqrt 2)."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits >> MANTISSA_BITS) - EXPONENT_BIAS
    mantissa = np.int64((bits & MANTISSA_MASK) | ONE_BITS).view(np.float64)
    if mantissa > 2.0 * SQRT_HALF:
        mantissa *= 0.5
        exponent += 1
    return mantissa, exponent


@inlined
def log(x: float) -> float:
    """Natural logarithm of a normal positive float."""
    mantissa, exponent = _split(x)
    return exponent * LN2_HIGH + (
        _atanh_series((mantissa - 1.0) / (mantissa + 1.0)) + exponent * LN2_LOW
    )


@inlined
def log1p(x: float) -> float:
    """log(1 + x), accurate near 0, for x > -1."""
    if -0.25 < x < 0.25:
        return _atanh_series(x / (2.0 + x))
    return log(1.0 + x)


@inlined
def log1p_coarse(x: float) -> float:
    """log(1 + x) for x >= 0 to about 1e-7: the observation is stored in single precision."""
    mantissa, exponent = _split(1.0 + x)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    return exponent * 0.6931471805599453 + 2.0 * s * (
        1.0 + z * (1.0 / 3.0 + z * (0.2 + z * (1.0 / 7.0 + z * (1.0 / 9.0))))
    )


@inlined
def _exp_series(r: float) -> float:
    """(e^r - 1) / r for |r| <= 0.35, by its power series."""
    total = 1.0 / 87178291200.0
    total = total * r + 1.0 / 6227020800.0
    total = total * r + 1.0 / 479001600.0
    total = total * r + 1.0 / 39916800.0
    total = total * r + 1.0 / 3628800.0
    total = total * r + 1.0 / 362880.0
    total = total * r + 1.0 / 40320.0
    total = total * r + 1.0 / 5040.0
    total = total * r + 1.0 / 720.0
    total = total * r + 1.0 / 120.0
    total = total * r + 1.0 / 24.0
    total = total * r + 1.0 / 6.0
    total = total * r + 0.5
    return total * r + 1.0


@inlined
def exp(x: float) -> float:
    """e^x; infinity above 709 and 0 below -708."""
    if x > 709.0:
        return math.inf
    if x < -708.0:
        return 0.0
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    scale = np.int64((np.int64(k) + EXPONENT_BIAS) << MANTISSA_BITS).view(np.float64)
    return scale * (1.0 + r * _exp_series(r))


@inlined
def expm1(x: float) -> float:
    """e^x - 1, accurate near 0."""
    if -0.34 < x < 0.34:
        return x * _exp_series(x)
    return exp(x) - 1.0


@inlined
def normal_quantile(u: float) -> float:
    """Quantile of the standard normal law for 0 < u < 1.

    Rational approximations PPND16 of Wichura, "Algorithm AS 241: The percentage points of the
    normal distribution", Applied Statistics 37 (1988), 477-484; relative error about 1e-16.
    """
    q = u - 0.5
    if -0.425 <= q <= 0.425:
        r = 0.180625 - q * q
        top = 2509.0809287301226727
        top = top * r + 33430.575583588128105
        top = top * r + 67265.770927008700853
        top = top * r + 45921.953931549871457
        top = top * r + 13731.693765509461125
        top = top * r + 1971.5909503065514427
        top = top * r + 133.14166789178437745
        top = top * r + 3.3871328727963666080
        bottom = 5226.4952788528545610
        bottom = bottom * r + 28729.085735721942674
        bottom = bottom * r + 39307.895800092710610
        bottom = bottom * r + 21213.794301586595867
        bottom = bottom * r + 5394.1960214247511077
        bottom = bottom * r + 687.18700749205790830
        bottom = bottom * r + 42.313330701600911252
        bottom = bottom * r + 1.0
        return q * top / bottom
    tail = u if q < 0.0 else 1.0 - u
    r = math.sqrt(-log(tail))
    if r <= 5.0:
        r -= 1.6
        top = 7.74545014278341407640e-4
        top = top * r + 0.0227238449892691845833
        top = top * r + 0.241780725177450611770
        top = top * r + 1.27045825245236838258
        top = top * r + 3.64784832476320460504
        top = top * r + 5.76949722146069140550
        top = top * r + 4.63033784615654529590
        top = top * r + 1.42343711074968357734
        bottom = 1.05075007164441684324e-9
        bottom = bottom * r + 5.47593808499534494600e-4
        bottom = bottom * r + 0.0151986665636164571966
        bottom = bottom * r + 0.148103976427480074590
        bottom = bottom * r + 0.689767334985100004550
        bottom = bottom * r + 1.67638483018380384940
        bottom = bottom * r + 2.05319162663775882187
        bottom = bottom * r + 1.0
    else:
        r -= 5.0
        top = 2.01033439929228813265e-7
        top = top * r + 2.71155556874348757815e-5
        top = top * r + 0.00124266094738807843860
        top = top * r + 0.0265321895265761230930
        top = top * r + 0.296560571828504891230
        top = top * r + 1.78482653991729133580
        top = top * r + 5.46378491116411436990
        top = top * r + 6.65790464350110377720
        bottom = 2.04426310338993978564e-15
        bottom = bottom * r + 1.42151175831644588870e-7
        bottom = bottom * r + 1.84631831751005468180e-5
        bottom = bottom * r + 7.86869131145613259100e-4
        bottom = bottom * r + 0.0148753612908506148525
        bottom = bottom * r + 0.136929880922735805310
        bottom = bottom * r + 0.599832206555887937690
        bottom = bottom * r + 1.0
    return -top / bottom if q < 0.0 else top / bottom


@inlined
def normal_survival(z: float) -> float:
    """P(Z > z) of a standard normal Z, with a relative error of some 1e-13.

    The power series of the normal integral up to 3 and Laplace's continued fraction beyond
    (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.11 and 26.2.14).
    """
    x = abs(z)
    density = 0.3989422804014327 * exp(-0.5 * x * x) if x < 38.0 else 0.0
    if x < 3.0:
        term = x
        total = x
        k = 1.0
        while term > 1e-18 * total:
            k += 2.0
            term *= x * x / k
            total += term
        upper = 0.5 - density * total
    else:
        fraction = x
        for k in range(80, 0, -1):
            fraction = x + k / fraction
        upper = density / fraction
    return upper if z >= 0.0 else 1.0 - upper
