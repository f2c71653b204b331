"""How often each interval holds the truth it is about, over a grid of sizes and shares.

Where the outcomes can be counted the coverage is exact: the probability of every outcome whose
interval holds the truth.  Elsewhere outcomes are drawn and the coverage has a Monte Carlo error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.intervals import mean_interval, paired_share_interval
from evaluation.statistics.clusters import cluster_bootstrap, intraclass_correlation
from evaluation.statistics.exact_tests import tost_paired
from evaluation.statistics.models import gee, mixed_model
from evaluation.statistics.seeds import interquartile_mean, iqm_interval
from evaluation.statistics.shares import Arm, clopper_pearson, mover_interaction, newcombe, wilson
from exactlyonce_env.errors import UserError

__all__ = ["REPETITIONS", "Study", "coverage", "studies"]

REPETITIONS = 1000

Limits = tuple[float, float]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """One interval under one law of the data.

    Attributes
    ----------
    interval
        The interval's name.
    setting
        Sizes and shares, in words.
    truth
        What the interval is about.
    outcomes
        Limits and probability of every outcome, where they can be counted.
    draw
        Else the limits of one drawn experiment; raises `UserError` where they are not defined.
    nominal
        The level it is meant to have.
    effort
        Share of the repetitions that are made; below 1 for what takes long.
    """

    interval: str
    setting: str
    truth: float
    outcomes: Callable[[], Iterable[tuple[Limits, float]]] | None = None
    draw: Callable[[np.random.Generator], Limits] | None = None
    nominal: float = 0.95
    effort: float = 1.0


def coverage(
    repetitions: int = REPETITIONS, progress: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Carry out every study.

    Parameters
    ----------
    repetitions
        Experiments drawn where outcomes cannot be counted.
    progress
        Is told each study before it starts.

    Returns
    -------
    Of each ``interval`` and ``setting`` the ``nominal`` and the found ``coverage``, its Monte Carlo
    ``error`` (0: exact), the ``repetitions`` (0: exact), the ``mean_width``, and ``undefined``, the
    share of experiments that have no such interval; these count neither way.

    Raises
    ------
    UserError
        For fewer than ten repetitions.
    """
    if repetitions < 10:
        raise UserError(f"--repetitions must be at least 10, not {repetitions}")
    rows = []
    for number, study in enumerate(studies()):
        if progress is not None:
            progress(f"{study.interval}, {study.setting}")
        found = (
            _counted(study)
            if study.outcomes is not None
            else _drawn(study, max(10, round(repetitions * study.effort)), number)
        )
        rows.append(
            {
                "interval": study.interval,
                "setting": study.setting,
                "nominal": study.nominal,
                **found,
            }
        )
    return rows


def _counted(study: Study) -> dict[str, Any]:
    assert study.outcomes is not None
    inside = width = total = 0.0
    for (low, high), probability in study.outcomes():
        inside += probability * _holds(low, high, study.truth)
        width += probability * (high - low)
        total += probability
    return {
        "coverage": inside / total,
        "error": 0.0,
        "repetitions": 0,
        "mean_width": width / total,
        "undefined": 0.0,
    }


def _drawn(study: Study, repetitions: int, number: int) -> dict[str, Any]:
    assert study.draw is not None
    inside, widths = 0, []
    for k in range(repetitions):
        try:
            low, high = study.draw(np.random.default_rng((number, k)))
        except UserError:
            continue
        inside += _holds(low, high, study.truth)
        widths.append(high - low)
    n = len(widths)
    share = inside / n if n else math.nan
    return {
        "coverage": share,
        "error": math.sqrt(share * (1.0 - share) / n) if n else math.nan,
        "repetitions": repetitions,
        "mean_width": float(np.mean(widths)) if n else math.nan,
        "undefined": 1.0 - n / repetitions,
    }


def _holds(low: float, high: float, truth: float) -> bool:
    return low - 1e-12 <= truth <= high + 1e-12


def studies() -> Iterator[Study]:
    """Every study, in the order of the table."""
    yield from _shares()
    yield from _differences()
    yield from _interactions()
    yield from _pairs()
    yield from _clustered_shares()
    yield from _clustered_differences()
    yield from _models()
    yield from _seeds()


# --- one share, two shares, four shares -----------------------------------------------------------


def _shares() -> Iterator[Study]:
    for name, limits in (
        ("Wilson", lambda k, n: wilson(k, n)[0]),
        ("Clopper-Pearson", clopper_pearson),
    ):
        for n, p in product((10, 80, 400), (0.02, 0.1, 0.3, 0.5)):

            def outcomes(n: int = n, p: float = p, limits: Any = limits) -> Any:
                for k, probability in enumerate(_binomial(n, p)):
                    found = limits(k, n)
                    yield (found.low, found.high), probability

            yield Study(name, f"n {n}, p {p:g}", p, outcomes)


def _binomial(n: int, p: float) -> Floats:
    from scipy.stats import binom

    found: Floats = binom.pmf(np.arange(n + 1), n, p)
    return found


@cache
def _newcombe(k1: int, n1: int, k2: int, n2: int) -> Limits:
    found = newcombe(Arm(k1, n1), Arm(k2, n2))
    return found.low, found.high


def _differences() -> Iterator[Study]:
    for (n1, n2), (p1, p2) in product(
        ((20, 20), (40, 20), (60, 60)), ((0.1, 0.1), (0.5, 0.3), (0.95, 0.8))
    ):

        def outcomes(n1: int = n1, n2: int = n2, p1: float = p1, p2: float = p2) -> Any:
            one, other = _binomial(n1, p1), _binomial(n2, p2)
            for k1, k2 in product(range(n1 + 1), range(n2 + 1)):
                probability = float(one[k1] * other[k2])
                if probability > 1e-9:
                    yield _newcombe(k1, n1, k2, n2), probability

        yield Study("Newcombe", f"n {n1} and {n2}, p {p1:g} and {p2:g}", p1 - p2, outcomes)


def _interactions() -> Iterator[Study]:
    for n, ps in product((20, 64), ((0.1, 0.1, 0.1, 0.1), (0.3, 0.7, 0.4, 0.5), (0.9, 0.5, 1, 1))):

        def draw(rng: np.random.Generator, n: int = n, ps: Any = ps) -> Limits:
            arms = [Arm(int(k), n) for k in rng.binomial(n, ps)]
            found = mover_interaction(
                {"unlabeled": arms[0], "labeled": arms[1]},
                {"unlabeled": arms[2], "labeled": arms[3]},
            )
            return found.low, found.high

        truth = (ps[1] - ps[0]) - (ps[3] - ps[2])
        words = ", ".join(f"{p:g}" for p in ps)
        yield Study("Wilson-MOVER", f"n {n} each, p {words}", truth, draw=draw)


# --- pairs ----------------------------------------------------------------------------------------


def _pairs() -> Iterator[Study]:
    laws = ((0.05, 0.05), (0.2, 0.1), (0.3, 0.0))
    for n, (p_b, p_c) in product((30, 100), laws):

        def outcomes(n: int = n, p_b: float = p_b, p_c: float = p_c) -> Any:
            from scipy.stats import multinomial

            for b in range(n + 1):
                for c in range(n + 1 - b):
                    law = multinomial.pmf([b, c, n - b - c], n, [p_b, p_c, 1.0 - p_b - p_c])
                    if law > 1e-9:
                        found = tost_paired(b, c, n, 0.1)
                        yield (found.low, found.high), float(law)

        setting = f"n {n}, discordant {p_b:g} and {p_c:g}"
        yield Study("TOST, 90 % Wald", setting, p_b - p_c, outcomes, nominal=0.90)
    for n, (p_b, p_c) in product((30, 100, 1000), laws):

        def draw(
            rng: np.random.Generator, n: int = n, p_b: float = p_b, p_c: float = p_c
        ) -> Limits:
            both = 0.8 * (1.0 - p_b - p_c)
            law = [both, p_b, p_c, 1.0 - both - p_b - p_c]
            found = paired_share_interval(*(int(k) for k in rng.multinomial(n, law)))
            return found.low, found.high

        setting = f"n {n}, discordant {p_b:g} and {p_c:g}"
        yield Study("paired shares", setting, p_b - p_c, draw=draw)
    for n, law in product((10, 100), ("normal", "exponential")):

        def draw_means(rng: np.random.Generator, n: int = n, law: str = law) -> Limits:
            values = rng.normal(1.0, 1.0, n) if law == "normal" else rng.exponential(1.0, n)
            found = mean_interval(values)
            return found.low, found.high

        yield Study("paired means, t", f"n {n}, {law} differences", 1.0, draw=draw_means)


# --- clusters -------------------------------------------------------------------------------------


def _clustered_shares() -> Iterator[Study]:
    for clusters, size, icc in ((12, 20, 0.1), (12, 20, 0.3), (40, 8, 0.1), (100, 5, 0.3)):
        for kish in (False, True):

            def draw(
                rng: np.random.Generator,
                clusters: int = clusters,
                size: int = size,
                icc: float = icc,
                kish: bool = kish,
            ) -> Limits:
                flags = rng.random((clusters, size)) < _cluster_shares(rng, 0.3, icc, clusters)
                labels = np.repeat(np.arange(clusters), size)
                found, _ = wilson(
                    int(flags.sum()),
                    flags.size,
                    **(
                        {
                            "icc": max(intraclass_correlation(flags.ravel(), labels), 0.0),
                            "mean_cluster_size": float(size),
                        }
                        if kish
                        else {}
                    ),
                )
                return found.low, found.high

            name = "Wilson at Kish's n" if kish else "Wilson, clusters ignored"
            setting = f"{clusters} clusters of {size}, p 0.3, correlation {icc:g}"
            yield Study(name, setting, 0.3, draw=draw)


def _cluster_shares(rng: np.random.Generator, p: float, icc: float, clusters: int) -> Floats:
    """(clusters, 1) shares of a beta law with mean p and this correlation within clusters."""
    weight = (1.0 - icc) / icc
    return rng.beta(p * weight, (1.0 - p) * weight, (clusters, 1))


def _two_arms(
    rng: np.random.Generator, clusters: int, size: int, ps: tuple[float, float]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(clusters, size) successes of two arms; each cluster has a share of its own in either."""
    made = [rng.random((clusters, size)) < _cluster_shares(rng, p, 0.1, clusters) for p in ps]
    return made[0], made[1]


def _clustered_differences() -> Iterator[Study]:
    for clusters in (6, 12, 40, 100):

        def draw(rng: np.random.Generator, clusters: int = clusters) -> Limits:
            a, b = _two_arms(rng, clusters, 10, (0.4, 0.6))
            difference = b.astype(np.float64) - a
            labels = np.repeat(np.arange(clusters), 10)
            found = cluster_bootstrap(difference.ravel(), labels, resamples=500)
            return found.low, found.high

        setting = f"{clusters} clusters of 10 pairs, p 0.4 and 0.6"
        yield Study("cluster bootstrap", setting, 0.2, draw=draw, effort=0.5)


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))


def _models() -> Iterator[Study]:
    for clusters in (6, 12, 40):

        def draw(rng: np.random.Generator, clusters: int = clusters) -> Limits:
            a, b = _two_arms(rng, clusters, 10, (0.4, 0.6))
            labels = np.repeat(np.arange(clusters), 10)
            success = np.concatenate([a.ravel(), b.ravel()])
            arm = ["A"] * a.size + ["B"] * b.size
            effect = gee(success, {"arm": arm}, [*labels, *labels])[-1]
            return effect.low, effect.high

        setting = f"{clusters} clusters of 10 pairs, p 0.4 and 0.6"
        truth = _logit(0.6) - _logit(0.4)
        yield Study("GEE, Mancl-DeRouen, t", setting, truth, draw=draw, effort=0.4)

    def mixed(rng: np.random.Generator) -> Limits:
        tasks = np.repeat(np.arange(12), 10)
        shift = rng.normal(0.0, 1.0, 12)[tasks]
        arms = [rng.random(120) < 1.0 / (1.0 + np.exp(-shift - effect)) for effect in (0.0, 0.8)]
        arm = ["A"] * 120 + ["B"] * 120
        names = [*map(str, tasks), *map(str, tasks)]
        effect = mixed_model(np.concatenate(arms), {"arm": arm}, names, ["0"] * 240).effects[-1]
        return effect.low, effect.high

    setting = "12 tasks of 10 pairs, deviation 1, effect 0.8"
    yield Study("mixed model, posterior", setting, 0.8, draw=mixed, effort=0.1)


# --- training seeds -------------------------------------------------------------------------------


def _seeds() -> Iterator[Study]:
    centres = np.linspace(0.2, 0.9, 8)
    many = np.random.default_rng(0).normal(centres, 0.1, (200_000, 8))
    truth = interquartile_mean(many)
    for runs in (3, 5, 10):

        def draw(rng: np.random.Generator, runs: int = runs) -> Limits:
            scores = rng.normal(centres, 0.1, (runs, 8))
            found = iqm_interval(scores, resamples=1000, seed=int(rng.integers(2**31)))
            return found.low, found.high

        setting = f"{runs} seeds of 8 tasks"
        yield Study("interquartile mean", setting, truth, draw=draw)
