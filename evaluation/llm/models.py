"""Language models among the policies of an evaluation: run them, and account for every answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.columns import MEASURE_NAMES
from evaluation.llm.calling import Calls, Limits, Prices
from evaluation.llm.policy_run import documents_of, run_worlds, stored_worlds
from evaluation.llm.spending import spending
from evaluation.llm.store import Store, open_store
from evaluation.llm.trial import trial_place
from exactlyonce_env.errors import UserError, check_range
from exactlyonce_env.plan import Plan
from policies.llm.endpoint import Patience
from policies.llm.policy import LLMPolicy
from policies.llm.prompts import describe

__all__ = ["Account", "ModelOptions", "account_of", "pooled", "run_models", "way_asked"]

MAX_REPEATS = 1000
MAX_CONCURRENCY = 4096

Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ModelOptions:
    """How the language models of an evaluation are run.

    Attributes
    ----------
    repeats
        How often each world is played.
    concurrency
        Episodes at the same time.
    prices, limits
        What tokens cost, and what the run may spend.
    patience
        How long a provider's trouble is borne.

    Raises
    ------
    UserError
        For numbers out of range, and a limit in dollars without prices.
    """

    repeats: int = 1
    concurrency: int = 8
    prices: Prices = field(default_factory=Prices)
    limits: Limits = field(default_factory=Limits)
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        check_range("--repeats", self.repeats, 1, MAX_REPEATS)
        check_range("--concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        if self.limits.usd is not None and self.prices == Prices():
            raise UserError("--max-usd needs --price IN,OUT: dollars per million tokens")


@dataclass(frozen=True)
class Account:
    """What came of a model's planned episodes.

    Attributes
    ----------
    runs
        For each repeat the columns of the worlds that came to an end.
    planned, returned, missing
        Episodes of all repeats together.
    reasons
        Why episodes are missing, with their number.
    invalid, invalid_episodes
        Invalid answers, and episodes with at least one.
    provider_errors
        Requests that got no answer, each try counted.
    n_calls, tokens_in, tokens_out, usd
        What the answers cost.
    stopped
        The budget that ended the run; empty: none did.
    spent
        All calls by use, as `evaluation.llm.spending.spending`.
    addresses
        Endpoints that answered, those of earlier commands included.
    documents
        Of each episode that was begun: world, actions, and the answers with a stated belief.
    """

    runs: tuple[dict[str, npt.NDArray[Any]], ...]
    planned: int
    returned: int
    missing: int
    reasons: Mapping[str, int]
    invalid: int
    invalid_episodes: int
    provider_errors: int
    n_calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    stopped: str
    spent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    documents: tuple[dict[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields of a row."""
        found: dict[str, Any] = {
            "planned": self.planned,
            "returned": self.returned,
            "missing": self.missing,
            "missing_reasons": dict(self.reasons),
            "invalid": self.invalid,
            "invalid_episodes": self.invalid_episodes,
            "provider_errors": self.provider_errors,
            "model_calls": self.n_calls,
            "tokens": self.tokens_in + self.tokens_out,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "usd": self.usd,
            "repeats": len(self.runs),
            "exactly_once_range": self._range(),
        }
        if self.stopped:
            found["stopped"] = self.stopped
        if len(self.runs) > 1:
            found |= agreement(self.runs)
        return found

    def _range(self) -> list[float]:
        """Share exactly once over all planned episodes, were all missing ones failures or none."""
        hits = int(sum(run["exactly_once"].sum() for run in self.runs))
        return [hits / self.planned, (hits + self.missing) / self.planned]


def run_models(
    plan: Plan,
    policies: Mapping[str, LLMPolicy],
    *,
    seed: int,
    worlds: Sequence[int],
    folder: Path | None,
    options: ModelOptions,
    done: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Account]:
    """Run models in the worlds of a plan, each with every repeat.

    Parameters
    ----------
    plan, seed, worlds
        The worlds.
    policies
        Models by spec.
    folder
        The run folder, where every call is kept; None: in memory only.
    options
        How they are run.
    done
        Called with the spec and the document of each episode.

    Raises
    ------
    UserError
        Where every request of a model would fail, or the folder holds another way of asking.
    """
    found = {}
    tried: set[str] = set()
    for spec, policy in policies.items():
        endpoint = policy.connect()
        with open_store(folder, secrets=getattr(endpoint, "secrets", ())) as store:
            store.same_way(spec, way_asked(policy))
            calls = Calls(
                endpoint,
                store,
                patience=options.patience,
                prices=options.prices,
                limits=options.limits,
            )
            run_worlds(
                plan,
                policy,
                calls,
                seed=seed,
                worlds=worlds,
                repeats=options.repeats,
                concurrency=options.concurrency,
                done=None if done is None else lambda d, s=spec: done(s, d),  # type: ignore[misc]
            )
            account = account_of(store, spec, worlds, options.repeats, calls.stopped)
            # Variants of one model share the trial, which counts once.
            trial = "" if policy.model in tried else trial_place(policy.model)
            found[spec] = replace(
                account,
                spent=spending(store, spec, trial),
                addresses=tuple(store.addresses),
            )
            tried.add(policy.model)
    return found


def account_of(
    store: Store, spec: str, worlds: Sequence[int], repeats: int, stopped: str = ""
) -> Account:
    """What the store says of a model's episodes."""
    runs, planned, missing = [], 0, 0
    reasons: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    usd = 0.0
    held = 0
    documents: list[dict[str, Any]] = []
    for repeat in range(repeats):
        found = stored_worlds(store, spec, worlds, repeat)
        runs.append(found.columns)
        planned += found.planned
        missing += found.missing
        reasons.update(found.reasons)
        for document in documents_of(store, spec, worlds, repeat):
            held += 1
            documents.append(
                {
                    "world": document["world"],
                    "actions": document["actions"],
                    "answers": [a for a in document["answers"] if a.get("belief")],
                }
            )
            sums["invalid_episodes"] += document["invalid"] > 0
            usd += document["usd"]
            for name in ("invalid", "provider_errors", "n_calls", "tokens_in", "tokens_out"):
                sums[name] += document[name]
    if planned > held:
        reasons[f"not run: {stopped}" if stopped else "not run"] += planned - held
    return Account(
        tuple(runs),
        planned,
        planned - missing,
        missing,
        dict(reasons),
        sums["invalid"],
        sums["invalid_episodes"],
        sums["provider_errors"],
        sums["n_calls"],
        sums["tokens_in"],
        sums["tokens_out"],
        usd,
        stopped,
        documents=tuple(documents),
    )


def pooled(runs: Sequence[Columns]) -> dict[str, npt.NDArray[Any]]:
    """One row a world: the mean over the repeats that came to an end; one repeat as it is."""
    if len(runs) == 1:
        return dict(runs[0])
    worlds = np.unique(np.concatenate([run["world"] for run in runs]))
    totals = {name: np.zeros(len(worlds)) for name in MEASURE_NAMES}
    counts = np.zeros(len(worlds))
    for run in runs:
        places = np.searchsorted(worlds, run["world"])
        counts[places] += 1
        for name, total in totals.items():
            total[places] += run[name]
    return {"world": worlds, **{name: total / counts for name, total in totals.items()}}


def agreement(runs: Sequence[Columns]) -> dict[str, Any]:
    """How far repeats of the same worlds agree on exactly-once success.

    Returns
    -------
    ``pass_hat_k`` (k in ``repeats``): share of the worlds in which all k runs were exactly once,
    over the worlds where all came to an end, ``pass_hat_k_worlds`` of them.  ``kappa``: Cohen's
    kappa, the mean over all pairs of repeats; None where it is not defined, since all runs came out
    the same.  ``agreement``: share of equal outcomes over all pairs.

    Source: S. Yao et al. (2024), tau-bench, for pass^k; J. Cohen (1960), Educ. Psychol. Meas.
    20:37-46.
    """
    common = runs[0]["world"]
    for run in runs[1:]:
        common = np.intersect1d(common, run["world"])
    return agreement_of(
        np.array(
            [run["exactly_once"][np.searchsorted(run["world"], common)] for run in runs],
            dtype=bool,
        )
    )


def agreement_of(hits: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """As `agreement`, from the successes (k, n) of k runs of the same n worlds."""
    if not hits.shape[-1]:
        return {"pass_hat_k": None, "pass_hat_k_worlds": 0, "kappa": None, "agreement": None}
    kappas, shares = [], []
    for one, other in combinations(hits, 2):
        table = np.zeros((2, 2))
        np.add.at(table, (one.astype(int), other.astype(int)), 1)
        shares.append(float((one == other).mean()))
        kappas.append(_kappa(table))
    known = [kappa for kappa in kappas if kappa is not None]
    return {
        "pass_hat_k": float(hits.all(axis=0).mean()),
        "pass_hat_k_worlds": hits.shape[1],
        "kappa": sum(known) / len(known) if known else None,
        "agreement": sum(shares) / len(shares),
    }


def _kappa(table: npt.NDArray[np.float64]) -> float | None:
    """Cohen's kappa of a 2 x 2 table; None where chance alone explains all of it."""
    from statsmodels.stats.inter_rater import cohens_kappa

    margins = table.sum(axis=0), table.sum(axis=1)
    if any((margin == 0).any() for margin in margins) and table.trace() == table.sum():
        return None
    return float(cohens_kappa(table, return_results=False))


def way_asked(policy: LLMPolicy) -> dict[str, Any]:
    """How a model is asked, in JSON types."""
    settings = policy.settings
    return {
        "prompt": describe(policy.variant),
        "answers": settings.answers,
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
    }
