"""The runner: any number of policies on literally the same worlds.

Work is cut into parts of consecutive worlds, policy by policy.  With a run folder each part is
stored as soon as it is done, so an interruption costs one part at most and the same command goes on
from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evaluation.columns import MEASURE_NAMES
from evaluation.manifest import new_manifest
from evaluation.store import RunWriter, open_run, open_writer
from evaluation.world_ranges import WorldRange
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import MAX_WORLD, checked_seed
from exactlyonce_env.records import MEASURES
from exactlyonce_env.vocabulary import MODE_NAMES
from policies.base import AnyPolicy
from policies.rollout import Episodes, run_policy
from policies.spec import parse_policy

if TYPE_CHECKING:
    from evaluation.llm.models import Account, ModelOptions
    from exactlyonce_env.plan import Plan

PART_SIZE = 20_000  # worlds a part
CLAIRVOYANT = "clairvoyant"
MODEL = "llm:"
"""How the specs of language models begin."""

Columns = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[str, int], None]
"""Called after each part with the policy, running figures behind it, and the number of worlds."""


@dataclass(frozen=True)
class Evaluation:
    """Episodes of several policies on the same worlds.

    Attributes
    ----------
    plan, seed, worlds
        The worlds: ids ``worlds[0]`` up to, not including, ``worlds[1]``.
    policies
        The policies by spec string, in the order asked for.
    episodes
        For each policy its columns: ``world`` (n,) int64 and every name of
        `evaluation.columns.MEASURE_NAMES`, aligned by world.
    best_rewards
        (n,) float64, the reward of `clairvoyant` on each world.
    accounts
        What came of the planned episodes of each language model; its ``episodes`` are those of the
        first repeat that came to an end.
    """

    plan: Plan
    seed: int
    worlds: WorldRange
    policies: Mapping[str, AnyPolicy]
    episodes: Mapping[str, Columns]
    best_rewards: npt.NDArray[np.float64]
    out: Path | None = field(default=None)
    accounts: Mapping[str, Account] = field(default_factory=dict)


def evaluate(
    plan: Plan,
    policies: Sequence[str | AnyPolicy],
    *,
    worlds: int | WorldRange,
    seed: int = 0,
    out: str | Path | None = None,
    command: Sequence[str] = (),
    progress: Progress | None = None,
    models: ModelOptions | None = None,
) -> Evaluation:
    """Run policies on the same worlds.

    Parameters
    ----------
    plan
        The compiled preset.
    policies
        Spec strings such as ``wait:300``, or policy objects.
    worlds
        How many worlds from id 0, or a half-open range of ids.
    seed
        Key of the worlds.
    out
        Run folder; a folder of the same run is continued.  None keeps everything in memory.
    command
        Command line for the manifest.
    progress
        Called after every finished part.
    models
        How language models are run; None: `ModelOptions` as it stands.

    Raises
    ------
    UserError
        For an unknown policy, one named twice, an empty range, or a folder that holds another run.
    """
    seed = checked_seed(seed)
    span = _checked_range(worlds)
    chosen = resolve_policies(policies)
    accounts: dict[str, Account] = {}
    if out is None:
        asked = _run_models(plan, chosen, span, seed, None, progress, models)
        accounts.update(asked)
        episodes = {
            spec: _joined(
                [
                    as_columns(plan, seed, part, run_policy(plan, policy, seed, np.arange(*part)))
                    for part in _reported(_parts(span), spec, progress)
                ]
            )
            if spec not in asked
            else asked[spec].runs[0]
            for spec, policy in chosen.items()
        }
    else:
        episodes = _stored(plan, chosen, span, seed, Path(out), command, progress, models, accounts)
    best = episodes.get(CLAIRVOYANT)
    best_rewards = best["reward"] if best is not None else clairvoyant_rewards(plan, span, seed)
    return Evaluation(
        plan,
        seed,
        span,
        chosen,
        episodes,
        best_rewards,
        None if out is None else Path(out),
        accounts,
    )


def resolve_policies(policies: Sequence[str | AnyPolicy]) -> dict[str, AnyPolicy]:
    """Policies by their canonical spec.

    Raises
    ------
    UserError
        For none at all, an unknown one, or one named twice.
    """
    chosen: dict[str, AnyPolicy] = {}
    for entry in policies:
        policy = parse_policy(entry) if isinstance(entry, str) else entry
        if policy.spec in chosen:
            raise UserError(f"policy {policy.spec!r} is named twice")
        chosen[policy.spec] = policy
    if not chosen:
        raise UserError("name at least one policy, for instance wait:300")
    return chosen


def clairvoyant_rewards(plan: Plan, span: WorldRange, seed: int) -> npt.NDArray[np.float64]:
    """Best reachable reward of every world of the range, (n,) float64."""
    from policies.clairvoyant import best_episodes

    return best_episodes(plan, seed, np.arange(*span))[0]


def as_columns(plan: Plan, seed: int, part: WorldRange, episodes: Episodes) -> Columns:
    """The store's columns of one part."""
    outcomes = episodes.outcomes
    columns = {name: np.ascontiguousarray(outcomes[name]) for name in MEASURES}
    columns["world"] = np.arange(*part)
    columns["reward"] = episodes.rewards
    columns["cost"] = outcomes["duplicates"].astype(np.float64)
    columns["context"] = episodes.contexts
    columns["mode"] = np.array(MODE_NAMES)[episodes.modes]
    for name in _FLAGS:
        columns[name] = columns[name].astype(np.bool_)
    return columns


_FLAGS = ("task_success", "exactly_once", "unresolved", "resolved_exact", "overclaim")


def _stored(
    plan: Plan,
    policies: Mapping[str, AnyPolicy],
    span: WorldRange,
    seed: int,
    out: Path,
    command: Sequence[str],
    progress: Progress | None,
    models: ModelOptions | None,
    accounts: dict[str, Account],
) -> dict[str, Columns]:
    manifest = new_manifest(
        preset=plan.preset.name,
        config=plan.preset.dump(),
        seed=seed,
        worlds=[span],
        policies=list(policies),
        command=command,
    )
    with open_writer(out, manifest) as writer:
        for spec, policy in policies.items():
            if spec.startswith(MODEL):
                found = _run_models(plan, {spec: policy}, span, seed, out, progress, models)
                accounts.update(found)
                _write_returned(writer, spec, found[spec].runs[0])
                continue
            missing = writer.missing_parts(spec, PART_SIZE)
            done = span[1] - span[0] - sum(stop - start for start, stop in missing)
            if progress is not None and done:
                progress(spec, done)
            for part in _reported(missing, spec, progress):
                episodes = run_policy(plan, policy, seed, np.arange(*part))
                writer.write_part(spec, as_columns(plan, seed, part, episodes))
    run = open_run(out)
    names = ["world", *MEASURE_NAMES, "context", "mode"]
    return {
        spec: dict(accounts[spec].runs[0])
        if spec in accounts
        else _within(run.arrays(spec, names), span)
        for spec in policies
    }


def _run_models(
    plan: Plan,
    policies: Mapping[str, AnyPolicy],
    span: WorldRange,
    seed: int,
    folder: Path | None,
    progress: Progress | None,
    options: ModelOptions | None,
) -> dict[str, Account]:
    """Run the language models among the policies."""
    if not any(spec.startswith(MODEL) for spec in policies):
        return {}
    from evaluation.llm.models import ModelOptions, run_models
    from policies.llm.policy import LLMPolicy

    found = {spec: p for spec, p in policies.items() if isinstance(p, LLMPolicy)}
    options = options or ModelOptions()
    figures = {spec: [0, 0, 0, 0] for spec in found}  # returned, exact, invalid, missing

    def done(spec: str, document: Mapping[str, Any]) -> None:
        figure = figures[spec]
        figure[2] += document["invalid"]
        if document["status"] == "returned":
            figure[0] += 1
            figure[1] += document["outcome"]["exactly_once"]
        else:
            figure[3] += 1
        if progress is not None and document["repeat"] == 0:
            share = f"{figure[1] / figure[0]:.0%} exact" if figure[0] else "none yet"
            progress(f"{spec}: {share}, {figure[2]} invalid, {figure[3]} missing", 1)

    return run_models(
        plan, found, seed=seed, worlds=range(*span), folder=folder, options=options, done=done
    )


def _write_returned(writer: RunWriter, spec: str, columns: Columns) -> None:
    """Add the worlds that came to an end and are not stored yet, a part for each unbroken range."""
    worlds = columns["world"]
    held = [range(*part) for part in writer.finished_parts(spec)]
    new = np.array([not any(w in part for part in held) for w in worlds.tolist()], dtype=bool)
    places = np.flatnonzero(new)
    if not len(places):
        return
    breaks = np.flatnonzero(np.diff(worlds[places]) != 1) + 1
    for part in np.split(places, breaks):
        writer.write_part(spec, {name: values[part] for name, values in columns.items()})


def _within(columns: Columns, span: WorldRange) -> Columns:
    """Only the worlds of the range: a run folder may hold more."""
    ids = columns["world"]
    if ids[0] == span[0] and ids[-1] == span[1] - 1:
        return columns
    kept = (ids >= span[0]) & (ids < span[1])
    return {name: values[kept] for name, values in columns.items()}


def _parts(span: WorldRange) -> list[WorldRange]:
    return [
        (start, min(start + PART_SIZE, span[1])) for start in range(span[0], span[1], PART_SIZE)
    ]


def _reported(
    parts: Iterable[WorldRange], spec: str, progress: Progress | None
) -> Iterable[WorldRange]:
    for part in parts:
        yield part
        if progress is not None:
            progress(spec, part[1] - part[0])


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _checked_range(worlds: int | WorldRange) -> WorldRange:
    span = (0, worlds) if isinstance(worlds, int) else worlds
    if not 0 <= span[0] < span[1] <= MAX_WORLD:
        raise UserError(
            f"worlds {span[0]}:{span[1]} is no range of ids; ask for at least one world"
        )
    return span
