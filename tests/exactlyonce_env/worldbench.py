"""A bench for the kernel: worlds of one contract with forced fates, played action by action.

``bench`` makes a plan of one context, ``play`` runs a list of actions in one of its worlds, and the
`Episode` it returns holds copies of everything that a test may want to look at.  ``run`` does both
in a world whose attempts meet the wanted modes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from exactlyonce_env import kernel
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import PRESET_NAMES, load_plan
from exactlyonce_env.records import MEASURES, N_TERMS, OUTCOME, TRUTH, VIEW
from exactlyonce_env.settlement import settle, write_outcome
from exactlyonce_env.vocabulary import MODE_NAMES, TERM_NAMES, Action, Key, Mode, Response

LATE_MODES = (Mode.TIMEOUT_LATE, Mode.TIMEOUT_LATE_TAIL)
SEARCHED, CHUNK = 4096, 32
"""So many worlds are searched for the wanted fates, so many at a time."""


class Effect(NamedTuple):
    """One line of the ledger."""

    time_s: float
    attempt: int
    item: int
    is_copy: bool = False


def bench(
    *modes: str,
    start: str = "fault",
    costs: Mapping[str, float] | None = None,
    faults: Mapping[str, Any] | None = None,
    documented: Mapping[str, bool] | None = None,
    **contract: Any,
) -> Plan:
    """A plan of one context in which attempt j may meet ``modes[j]``.

    Attempts beyond those named are fine if no re-issue is to fail, else they meet one of its modes.
    Late requests are in transit unless ``faults`` says otherwise. Other keywords are contract
    fields.
    """
    original, *retries = modes or ("ok",)
    faulty = sorted({mode for mode in retries if mode != "ok"})
    fine = "ok" in retries
    return load_plan(
        {
            "name": "bench",
            "start": start,
            "contract": contract,
            "costs": dict(costs or {}),
            "faults": {
                "original": {original: 1},
                "retry": dict.fromkeys(faulty, 1) or "fit",
                "retry_fault_rate": (0.5 if fine else 1.0) if faulty else 0.0,
                "queued_share": 0.0,
                **(faults or {}),
            },
            "documented": dict(documented or {}),
        }
    )


@cache
def shipped(name: str) -> Plan:
    """The plan of a shipped preset; ``empirical`` with the delays of ``late-lomax``."""
    return load_plan(name, delays="lomax:c=0.8,scale=120" if name == "empirical" else None)


def opened(plan: Plan, world: int, seed: int = 0) -> tuple[np.record, np.record]:
    """(view, truth) of a world that has just begun."""
    seen, truth = np.zeros(1, VIEW), np.zeros(1, TRUTH)
    kernel.begin(
        plan.contexts, plan.context_cdf, plan.table, np.uint64(seed), world, seen[0], truth[0]
    )
    return seen[0], truth[0]


def decide(plan: Plan, seen: np.record, truth: np.record, action: str) -> float:
    """Take one action in an open world; the answer is the reward."""
    kind, seconds = parse(action)
    terms = np.zeros(N_TERMS)
    return float(kernel.act(plan.contexts, plan.table, seen, truth, kind, seconds, terms))


@dataclass(frozen=True)
class Episode:
    """What happened: views after each action (``views[0]`` before the first), terms, truth."""

    plan: Plan
    actions: tuple[str, ...]
    views: tuple[np.record, ...]
    terms: np.ndarray  # (n_actions, 9)
    rewards: tuple[float, ...]
    truth: np.record
    outcome: np.record

    @property
    def view(self) -> np.record:
        """The view after the last action."""
        return self.views[-1]

    @property
    def clocks(self) -> list[float]:
        """Clock [s] before the first action and after each."""
        return [float(view["clock_s"]) for view in self.views]

    @property
    def responses(self) -> list[str]:
        """Responses of the attempts sent, in lower case."""
        sent = self.view["attempts"][: self.view["n_attempts"]]
        return [Response(int(code)).name.lower() for code in sent["response"]]

    @property
    def answers(self) -> list[float]:
        """When each attempt was answered or given up [s]."""
        return [float(t) for t in self.view["attempts"]["answered_s"][: self.view["n_attempts"]]]

    @property
    def payloads(self) -> list[int]:
        """Item masks sent."""
        return [int(m) for m in self.view["attempts"]["payload"][: self.view["n_attempts"]]]

    @property
    def keys(self) -> list[str]:
        """Keys sent, in lower case."""
        sent = self.view["attempts"]["key"][: self.view["n_attempts"]]
        return [Key(int(code)).name.lower() for code in sent]

    @property
    def shown(self) -> int:
        """Items in the last informative report, as a mask."""
        return int(self.view["shown"])

    @property
    def ledger(self) -> list[Effect]:
        """Every effect, by time."""
        return ledger_of(self.plan, self.view, self.truth)

    @property
    def times(self) -> list[float]:
        """Times of the effects [s]."""
        return [effect.time_s for effect in self.ledger]

    @property
    def false_permissions(self) -> int:
        """Re-issues that were not permitted."""
        return int(self.truth["false_permissions"])

    @property
    def reward(self) -> float:
        """Sum of the rewards."""
        return float(sum(self.rewards))

    def term(self, name: str, step: int = -1) -> float:
        """One reward term of one action."""
        return float(self.terms[step, TERM_NAMES.index(name)])

    def measure(self, name: str) -> float:
        """One measure of the outcome."""
        return float(self.outcome[name])

    def measures(self) -> dict[str, float]:
        """All measures of the outcome."""
        return {name: float(self.outcome[name]) for name in MEASURES}


def ledger_of(plan: Plan, view: np.record, truth: np.record) -> list[Effect]:
    """The effects that a truth record tells of, by (time, attempt, item)."""
    copy_delay_s = float(plan.contexts[view["context"]]["law"]["copy_delay_s"])
    lines = []
    for j in range(int(view["n_attempts"])):
        happened = truth["attempts"][j]
        for item in items_of(happened["effect"]):
            lines.append(Effect(float(happened["execution_s"]), j, item))
        for item in items_of(happened["copy_effect"]):
            lines.append(Effect(float(happened["execution_s"]) + copy_delay_s, j, item, True))
    return sorted(lines)


def items_of(mask: int) -> list[int]:
    """Numbers of the items in a mask."""
    return [item for item in range(31) if int(mask) >> item & 1]


def find_world(
    plan: Plan,
    modes: Sequence[str],
    *,
    queued: Sequence[bool | None] = (),
    seed: int = 0,
) -> int:
    """The first world in which the attempts meet ``modes`` and, where told, are queued or not."""
    for first in range(0, SEARCHED, CHUNK):
        worlds = plan.worlds(seed, range(first, first + CHUNK))
        fits = np.ones(len(worlds), dtype=bool)
        for j, mode in enumerate(modes):
            fits &= worlds["fates"]["mode"][:, j] == MODE_NAMES.index(mode)
        for j, wanted in enumerate(queued):
            if wanted is not None:
                fits &= (worlds["fates"]["queued"][:, j] != 0) == wanted
        if fits.any():
            return first + int(np.argmax(fits))
    raise LookupError(f"none of {SEARCHED} worlds has the fates {list(modes)}")


def parse(action: str) -> tuple[int, float]:
    """Kind and seconds of an action such as ``read`` or ``wait:60``."""
    name, _, seconds = action.partition(":")
    return int(Action[name.upper()]), float(seconds or 0.0)


def play(plan: Plan, actions: Iterable[str], *, world: int = 0, seed: int = 0) -> Episode:
    """Run ``actions`` in one world; one that none of them ends is settled and graded as well."""
    actions = tuple(actions)
    seen, truth = opened(plan, world, seed)
    out = np.zeros(1, OUTCOME)
    views, rewards = [seen.copy()], []
    terms = np.zeros((len(actions), N_TERMS))
    for k, action in enumerate(actions):
        if seen["ending"]:
            raise AssertionError(f"the episode was over before action {k}, {action}")
        kind, seconds = parse(action)
        rewards.append(
            float(kernel.act(plan.contexts, plan.table, seen, truth, kind, seconds, terms[k]))
        )
        views.append(seen.copy())
    context = plan.contexts[int(truth["context"])]
    contract = context["contract"]
    settle(context, seen, truth)
    write_outcome(contract, seen, truth, out[0])
    return Episode(plan, actions, tuple(views), terms, tuple(rewards), truth.copy(), out[0])


def run(
    modes: Sequence[str] | str,
    actions: Sequence[str] | str,
    *,
    queued: Sequence[bool | None] | bool = (),
    faults: Mapping[str, Any] | None = None,
    **options: Any,
) -> Episode:
    """``bench`` and ``play`` in one call; ``queued=True`` queues every late request.

    Names may be given as one string with blanks between them.
    """
    modes = modes.split() if isinstance(modes, str) else list(modes)
    actions = actions.split() if isinstance(actions, str) else list(actions)
    share: dict[str, Any] = {}
    if isinstance(queued, bool):
        share, queued = {"queued_share": float(queued)}, ()
    elif queued:
        share = {"queued_share": 0.5}
    plan = bench(*modes, faults={**share, **(faults or {})}, **options)
    world = find_world(plan, modes, queued=queued) if len(modes) > 1 or queued else 0
    return play(plan, actions, world=world)


def fingerprints(
    names: Sequence[str] = PRESET_NAMES, n_worlds: int = 6, n_actions: int = 14
) -> dict[str, str]:
    """SHA-256 of everything that the kernel computes in random episodes, by preset.

    Run as a script, this module prints them: compiled or not, the same numbers must come out.
    ``contextual`` is cut to 64 contexts, because making 4,096 takes long without compilation; its
    name changes with its size, so that neither is ever met in a cache in place of the other.
    """
    from exactlyonce_env import catalogue, observation
    from exactlyonce_env.actions import N_ACTIONS, write_mask
    from exactlyonce_env.plan import compile_preset
    from exactlyonce_env.presets import preset

    prints = {}
    for name in names:
        sizes = catalogue.N_TRAIN, catalogue.N_TEST
        try:
            catalogue.N_TRAIN, catalogue.N_TEST = 64, 0
            delays = "lognorm:s=1.5,scale=90" if name == "empirical" else None
            cut = {"name": f"{name}-64"} if name == "contextual" else None
            plan = compile_preset(preset(name, config=cut, delays=delays))
        finally:
            catalogue.N_TRAIN, catalogue.N_TEST = sizes
        digest = hashlib.sha256(plan.static.tobytes() + plan.contexts.tobytes())
        digest.update(plan.worlds(1, range(10 * n_worlds)).tobytes())
        rng = np.random.default_rng(0)
        for world in range(n_worlds):
            seen, truth = opened(plan, world, seed=2**63 + 1)
            out, mask = np.zeros(1, OUTCOME), np.zeros(N_ACTIONS, np.int8)
            features = np.zeros(observation.N_FEATURES, np.float32)
            contract = plan.contexts[int(seen["context"])]["contract"]
            for _ in range(n_actions):
                kind, seconds = (
                    int(rng.choice([0, 0, 1, 1, 2, 3, 3, 4])),
                    float(rng.exponential(99)),
                )
                terms = np.zeros(N_TERMS)
                reward = kernel.act(plan.contexts, plan.table, seen, truth, kind, seconds, terms)
                observation.write_observation(seen, plan.contexts, plan.static, features)
                write_mask(seen, contract, mask)
                for array in (seen, truth, terms, np.float64(reward), features, mask):
                    digest.update(array.tobytes())
                if seen["ending"]:
                    break
            settle(plan.contexts[int(truth["context"])], seen, truth)
            write_outcome(contract, seen, truth, out[0])
            digest.update(truth.tobytes() + out.tobytes())
        prints[name] = digest.hexdigest()
    return prints


def sampler_fingerprint() -> str:
    """SHA-256 of delays of every family, of which the arithmetic is a part."""
    from exactlyonce_env.delays import delays_from_spec, encode
    from exactlyonce_env.quantiles import delay_quantile

    specs: list[Any] = [
        "fixed:90",
        "uniform:loc=5,scale=50",
        "loguniform:a=40,b=7200",
        "expon:scale=80",
        "weibull_min:c=0.7,scale=80",
        "lognorm:s=1.2,scale=80",
        "pareto:b=0.9,scale=30",
        "lomax:c=0.8,scale=120",
        {"family": "empirical", "times_s": [1, 2, 5], "cdf": [0.2, 0.6, 0.9]},
    ]
    parts = [{"weight": w, "law": {"family": "expon", "scale": 9 / w}} for w in (0.3, 0.7)]
    specs.append({"family": "mixture", "components": parts})
    table, offsets = encode([delays_from_spec(spec) for spec in specs])
    shares = np.concatenate(
        [np.linspace(0.0, 1.0, 200, endpoint=False), 10.0 ** -np.arange(1.0, 17)]
    )
    delays = [delay_quantile(table, offset, u) for offset in offsets for u in shares]
    return hashlib.sha256(table.tobytes() + np.array(delays).tobytes()).hexdigest()


if __name__ == "__main__":
    print(json.dumps({**fingerprints(), "sampler": sampler_fingerprint()}))
