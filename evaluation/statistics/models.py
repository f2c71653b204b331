"""Models of success over tasks and factors, fitted by statsmodels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.errors import UserError

__all__ = ["Effect", "MixedFit", "gee", "mixed_model", "shapley_shares"]


DECISIVE = 10.0
"""A deviation of random intercepts [log odds] from which on they leave nothing to chance."""

NO_SPREAD = 1e-6
"""Standard errors below this are rounding: all clusters say the same."""


@dataclass(frozen=True)
class Effect:
    """A coefficient on the logit scale.

    Attributes
    ----------
    name
        Factor and level, as ``policy=guard``, or ``intercept``.
    value, error
        Estimate and its standard error.
    low, high
        95 % limits.
    p
        Two-sided; NaN for a posterior, which has none.
    """

    name: str
    value: float
    error: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class MixedFit:
    """A binomial mixed model.

    Attributes
    ----------
    effects
        Posterior means of the fixed effects, with their deviations and 95 % limits.
    sd
        Posterior median of the standard deviation of the random intercepts, by grouping.
    """

    effects: tuple[Effect, ...]
    sd: Mapping[str, float]


def design(factors: Mapping[str, Sequence[Any]]) -> tuple[npt.NDArray[np.float64], list[str]]:
    """An intercept and, for each factor, an indicator of every level but the first seen.

    Raises
    ------
    UserError
        For factors of other lengths, or none.
    """
    lengths = {len(values) for values in factors.values()}
    if len(lengths) != 1 or not min(lengths, default=0):
        raise UserError("factors must be lists of one length, with one response or more")
    (n,) = lengths
    columns, names = [np.ones(n)], ["intercept"]
    for name, values in factors.items():
        for level in list(dict.fromkeys(values))[1:]:
            columns.append(np.array([value == level for value in values], dtype=np.float64))
            names.append(f"{name}={level}")
    return np.column_stack(columns), names


def gee(
    success: npt.ArrayLike, factors: Mapping[str, Sequence[Any]], clusters: Sequence[Any]
) -> list[Effect]:
    """Logistic GEE clustered by task, with bias-reduced errors and t on G - 1 degrees.

    Parameters
    ----------
    success
        (n,) flags.
    factors
        Levels of each factor, (n,) each; the first level seen is the reference.
    clusters
        (n,) labels of the clusters.

    The working correlation is independence.

    Source: K.-Y. Liang and S. L. Zeger (1986), Biometrika 73:13-22; errors of L. A. Mancl and T. A.
    DeRouen (2001), Biometrics 57:126-134, computed by statsmodels (``bias_reduced``).

    Raises
    ------
    UserError
        For lists of other lengths, success that never or always comes, fewer than three clusters,
        a fit that does not exist since a factor decides success, and clusters that all show the
        same effect.
    """
    import statsmodels.api as sm
    from scipy.stats import t

    flags = _flags(success)
    matrix, names = design(factors)
    codes = np.unique(np.asarray(clusters), return_inverse=True)[1]
    if len(flags) != len(matrix) or len(codes) != len(flags):
        raise UserError("success, factors and clusters must be of one length")
    groups = int(codes.max()) + 1
    if groups < 3:
        raise UserError(f"a clustered model needs three clusters or more, not {groups}")
    order = np.argsort(codes, kind="stable")
    model = sm.GEE(flags[order], matrix[order], groups=codes[order], family=sm.families.Binomial())
    try:
        fit = _quietly(lambda: model.fit(cov_type="bias_reduced"))
    except (np.linalg.LinAlgError, ValueError) as error:
        raise UserError(f"the model has no finite fit: {error}") from None
    values = np.asarray(fit.params)
    if not (np.isfinite(values).all() and np.abs(values).max() < 15.0):
        raise UserError("the model has no finite fit: some factor decides success")
    errors = _quietly(lambda: np.asarray(fit.bse))
    if not (errors >= NO_SPREAD).all():
        raise UserError("no cluster differs from another in some effect, which then has no error")
    half = t.ppf(0.975, groups - 1) * errors
    ps = 2.0 * t.sf(np.abs(values / errors), groups - 1)
    return [
        Effect(name, float(v), float(e), float(v - h), float(v + h), float(p))
        for name, v, e, h, p in zip(names, values, errors, half, ps, strict=True)
    ]


def mixed_model(
    success: npt.ArrayLike,
    factors: Mapping[str, Sequence[Any]],
    tasks: Sequence[Any],
    instances: Sequence[Any],
) -> MixedFit:
    """Binomial mixed model with random intercepts for task and for task x instance.

    Parameters
    ----------
    success
        (n,) flags.
    factors
        Levels of each factor, (n,) each; the first level seen is the reference.
    tasks, instances
        (n,) labels.

    Fitted by variational Bayes with a normal prior on the fixed effects (standard deviation 2) and
    a log-normal one on the deviations, so that it exists where a factor decides success.  Its
    factors are independent, which makes its limits too narrow: docs/statistics.md says how far.

    Source: statsmodels' BinomialBayesMixedGLM, after T. S. Jaakkola and M. I. Jordan (2000), Stat.
    Comput. 10:25-37.

    Raises
    ------
    UserError
        For lists of other lengths, success that never or always comes, and a fit that does not
        settle, as where tasks or instances decide success.
    """
    from scipy import sparse
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    flags = _flags(success)
    matrix, names = design(factors)
    if len({len(flags), len(matrix), len(tasks), len(instances)}) != 1:
        raise UserError("success, factors, tasks and instances must be of one length")
    pairs = [f"{task}\x00{instance}" for task, instance in zip(tasks, instances, strict=True)]
    rows = np.arange(len(flags))
    blocks, kinds = [], []
    for kind, labels in enumerate((list(map(str, tasks)), pairs)):
        codes = np.unique(np.asarray(labels), return_inverse=True)[1]
        blocks.append(sparse.csr_matrix((np.ones(len(flags)), (rows, codes))))
        kinds += [kind] * blocks[-1].shape[1]
    model = BinomialBayesMixedGLM(
        flags, matrix, sparse.hstack(blocks, "csr"), np.array(kinds), vcp_p=1.0, fe_p=2.0
    )
    # statsmodels draws a start anew every time, and its BFGS keeps a square matrix and may diverge.
    start = np.zeros(matrix.shape[1] + 2 + len(kinds))
    begin = {"mean": start, "sd": np.full(len(start), 0.6)}
    fit = _quietly(lambda: model.fit_vb(**begin, fit_method="L-BFGS-B"))
    deviations = np.exp(np.asarray(fit.vcp_mean))
    settled = fit.optim_retvals.success and np.isfinite([*fit.fe_mean, *fit.fe_sd]).all()
    if not (settled and deviations.max() < DECISIVE):
        raise UserError("the mixed model does not settle: tasks or instances decide success")
    effects = tuple(
        Effect(name, float(m), float(s), float(m - 1.96 * s), float(m + 1.96 * s), math.nan)
        for name, m, s in zip(names, fit.fe_mean, fit.fe_sd, strict=True)
    )
    return MixedFit(
        effects, dict(zip(("task", "task x instance"), map(float, deviations), strict=True))
    )


def shapley_shares(
    success: npt.ArrayLike, factors: Mapping[str, Sequence[Any]]
) -> dict[str, float]:
    """How much of McFadden's pseudo-R squared each factor explains, shared out by Shapley's rule.

    Parameters
    ----------
    success
        (n,) flags.
    factors
        Levels of each factor, (n,) each.

    Returns
    -------
    One number a factor; they sum to the pseudo-R squared of the logistic model with all of them,
    without interactions.

    Source: D. McFadden (1974), in Frontiers in Econometrics; the shares of L. S. Shapley (1953) as
    in S. Lipovetsky and M. Conklin (2001), Appl. Stoch. Models 17:319-330.

    Raises
    ------
    UserError
        For lists of other lengths, success that never or always comes, and more than ten factors.
    """
    flags = _flags(success)
    names = list(factors)
    if not names:
        raise UserError("no factor has two levels, so that there is nothing to share out")
    if len(names) > 10:
        raise UserError(f"up to ten factors can be told apart, not {len(names)}")
    if any(len(values) != len(flags) for values in factors.values()):
        raise UserError("success and factors must be of one length")
    share = flags.mean()
    null = len(flags) * (share * math.log(share) + (1.0 - share) * math.log(1.0 - share))
    worth = {
        subset: 1.0 - _log_likelihood(flags, {name: factors[name] for name in subset}) / null
        for size in range(len(names) + 1)
        for subset in combinations(names, size)
    }
    k = len(names)
    found = {}
    for name in names:
        others = [other for other in names if other != name]
        total = 0.0
        for size in range(k):
            weight = math.factorial(size) * math.factorial(k - size - 1) / math.factorial(k)
            for subset in combinations(others, size):
                joined = tuple(n for n in names if n in subset or n == name)
                total += weight * (worth[joined] - worth[subset])
        found[name] = float(total)
    return found


def _log_likelihood(flags: npt.NDArray[np.float64], factors: Mapping[str, Sequence[Any]]) -> float:
    """Largest log-likelihood of a logistic model; 0 at best where factors decide success."""
    import statsmodels.api as sm
    from scipy.special import xlogy

    if not factors:
        share = flags.mean()
        return float(len(flags) * (share * math.log(share) + (1.0 - share) * math.log(1.0 - share)))
    # Responses with the same levels make one binomial count: as few rows as there are combinations.
    kinds = dict.fromkeys(zip(*factors.values(), strict=True))
    place = {kind: k for k, kind in enumerate(kinds)}
    codes = [place[kind] for kind in zip(*factors.values(), strict=True)]
    hits = np.bincount(codes, flags, len(kinds))
    misses = np.bincount(codes, 1.0 - flags, len(kinds))
    levels = dict(zip(factors, zip(*kinds, strict=True), strict=True))
    matrix, _ = design(levels)
    model = sm.GLM(np.column_stack([hits, misses]), matrix, family=sm.families.Binomial())
    fitted = np.asarray(_quietly(lambda: model.fit(maxiter=200)).fittedvalues)
    return float(np.sum(xlogy(hits, fitted) + xlogy(misses, 1.0 - fitted)))


def _flags(success: npt.ArrayLike) -> npt.NDArray[np.float64]:
    values = np.asarray(success)
    if values.ndim != 1 or not values.size:
        raise UserError(f"success must be a list of flags, not of shape {values.shape}")
    if not np.isin(values, (0, 1)).all():
        raise UserError("success must hold 0 and 1, or false and true, only")
    if values.min() == values.max():
        raise UserError("success never varies, so that there is nothing to explain")
    return values.astype(np.float64)


def _quietly(fit: Any) -> Any:
    """A fit without warnings of separation, which the callers look for themselves."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return fit()
