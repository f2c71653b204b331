"""The compiled sampler of in-flight delays: one uniform number in, seconds out.

Laws lie in a flat float64 arena, written by `exactlyonce_env.delays.encode`.  A law at offset
``o``:

========== =====================================================================
FIXED      ``[0, value_s]``
UNIFORM    ``[1, loc, scale]``
LOGUNIFORM ``[2, log a, log b - log a, a, b]``
EXPON      ``[3, loc, scale]``
WEIBULL    ``[4, loc, scale, 1/c]``
LOGNORM    ``[5, loc, log scale, s]``
PARETO     ``[6, loc, scale, 1/b]``
LOMAX      ``[7, loc, scale, 1/c]``
MIXTURE    ``[8, m, cumulative weight 1..m, offset of component 1..m]``
EMPIRICAL  ``[9, n, time 1..n [s], cdf 1..n]``
========== =====================================================================
"""

from __future__ import annotations

from exactlyonce_env.arithmetic import exp, expm1, log, log1p, normal_quantile
from exactlyonce_env.compiled import Array, compiled

FIXED = 0
UNIFORM = 1
LOGUNIFORM = 2
EXPON = 3
WEIBULL = 4
LOGNORM = 5
PARETO = 6
LOMAX = 7
MIXTURE = 8
EMPIRICAL = 9

BEYOND_S = 1.0e8
"""Where a measured law puts what it never saw land: later than any client can wait [s]."""

LEAST_U = 1.1102230246251565e-16  # 2**-53: keeps the logarithms finite


@compiled
def delay_quantile(table: Array, offset: int, u: float) -> float:
    """Delay [s] of the law at ``offset`` for a uniform ``u`` in [0, 1), never above `BEYOND_S`.

    For every family but the mixture this is the law's quantile.  A mixture spends the leading part
    of ``u`` on choosing its component and the rest inside it, so it samples correctly but is not
    monotone.
    """
    while int(table[offset]) == MIXTURE:
        n = int(table[offset + 1])
        below = 0.0
        component = 0
        while component < n - 1 and u >= table[offset + 2 + component]:
            below = table[offset + 2 + component]
            component += 1
        u = (u - below) / (table[offset + 2 + component] - below)
        offset = int(table[offset + 2 + n + component])
    if u < LEAST_U:
        u = LEAST_U
    if u > 1.0 - LEAST_U:
        u = 1.0 - LEAST_U
    return min(_component_quantile(table, offset, u), BEYOND_S)


@compiled
def _component_quantile(table: Array, offset: int, u: float) -> float:
    """`delay_quantile` of a law that is not a mixture, for LEAST_U <= u <= 1 - LEAST_U."""
    family = int(table[offset])
    first = table[offset + 1]
    if family == FIXED:
        return first
    if family == EMPIRICAL:
        return _step_quantile(table, offset + 2, int(first), u)
    second = table[offset + 2]
    if family == UNIFORM:
        return first + second * u
    if family == LOGUNIFORM:
        return min(max(exp(first + second * u), table[offset + 3]), table[offset + 4])
    if family == LOGNORM:
        return first + exp(second + table[offset + 3] * normal_quantile(u))
    hazard = -log1p(-u)  # the cumulative hazard at the wanted quantile
    if family == EXPON:
        return first + second * hazard
    power = table[offset + 3]
    if family == WEIBULL:
        return first + second * exp(power * log(hazard))
    if family == PARETO:
        return first + second * exp(power * hazard)
    return first + second * expm1(power * hazard)  # LOMAX


@compiled
def _step_quantile(table: Array, start: int, n: int, u: float) -> float:
    """Smallest measured time whose estimated cdf reaches ``u``; `BEYOND_S` where none does."""
    if u > table[start + 2 * n - 1]:
        return BEYOND_S
    low = 0
    high = n - 1
    while low < high:
        middle = (low + high) // 2
        if table[start + n + middle] >= u:
            high = middle
        else:
            low = middle + 1
    return table[start + low]
