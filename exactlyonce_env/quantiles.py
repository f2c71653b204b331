"""In-flight delays, compiled: the sampler (one uniform number in, seconds out) and the survival.

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

from exactlyonce_env.arithmetic import (
    exp,
    expm1,
    log,
    log1p,
    normal_quantile,
    normal_survival,
)
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


@compiled
def delay_survival(table: Array, offset: int, t_s: float) -> float:
    """P(delay > ``t_s``) of the law at ``offset`` as it is sampled: 0 from `BEYOND_S` on."""
    if t_s >= BEYOND_S:
        return 0.0
    family = int(table[offset])
    if family == MIXTURE:
        n = int(table[offset + 1])
        below = 0.0
        total = 0.0
        for k in range(n):
            share = table[offset + 2 + k] - below
            below = table[offset + 2 + k]
            total += share * delay_survival(table, int(table[offset + 2 + n + k]), t_s)
        return total
    first = table[offset + 1]
    if family == FIXED:
        return 1.0 if t_s < first else 0.0
    if family == EMPIRICAL:
        return _step_survival(table, offset + 2, int(first), t_s)
    second = table[offset + 2]
    if family == UNIFORM:
        return min(max((first + second - t_s) / second, 0.0), 1.0)
    if family == LOGUNIFORM:
        low_s, high_s = table[offset + 3], table[offset + 4]
        if t_s <= low_s:
            return 1.0
        return (first + second - log(t_s)) / second if t_s < high_s else 0.0
    x = t_s - first
    if x <= 0.0:
        return 1.0
    if family == LOGNORM:
        return normal_survival((log(x) - second) / table[offset + 3])
    x /= second
    if family == EXPON:
        return exp(-x)
    shape = 1.0 / table[offset + 3]
    if family == WEIBULL:
        return exp(-exp(shape * log(x)))
    if family == PARETO:
        return exp(-shape * log(x)) if x > 1.0 else 1.0
    return exp(-shape * log1p(x))  # LOMAX


@compiled
def _step_survival(table: Array, start: int, n: int, t_s: float) -> float:
    """1 - cdf of the measured steps at ``t_s``."""
    low = 0
    high = n
    while low < high:  # number of times at or before t_s
        middle = (low + high) // 2
        if table[start + middle] <= t_s:
            low = middle + 1
        else:
            high = middle
    return 1.0 if low == 0 else 1.0 - table[start + n + low - 1]
