"""The NumPy records of the world, declared once with units.

A *context* is what all worlds of one contract share: the visible `CONTRACT` and the hidden `LAW`.
A running world is a `VIEW` (all that the client has seen) beside a `TRUTH` (what really happened).
Policies and observations receive views and contracts; only the kernel and types marked privileged
touch laws and truths.

Item sets are bit masks: bit j stands for item j.  Times run from t = 0, the sending of the
original. Records are ``numpy.record`` types, so that ``view.clock_s`` works compiled and
interpreted alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exactlyonce_env.vocabulary import Mode, Term

MAX_ATTEMPTS = 8  # capacity of a record; a contract's own `max_attempts` may be lower
MAX_ITEMS = 30  # items of a batch must fit into the bits of an int32
N_MODES = len(Mode)
N_TERMS = len(Term)
N_QUANTILES = 4
DOCUMENTED_QUANTILES: tuple[float, ...] = (0.1, 0.5, 0.9, 0.99)
UNKNOWN = -1.0
"""Stands in a contract for a number that the service does not document."""


def _record(fields: list[Any]) -> np.dtype[np.record]:
    """A record type whose fields lie on their natural boundaries without hidden padding."""
    dtype: np.dtype[Any] = np.dtype(fields)
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        scalar = field.base
        alignment = 8 if scalar.names else scalar.itemsize
        if offset % alignment:
            raise TypeError(f"field {name} lies at {offset}, not on a multiple of {alignment}")
    if dtype.itemsize % 8:
        raise TypeError(f"record of {dtype.itemsize} bytes is not a multiple of 8")
    record: np.dtype[np.record] = np.dtype((np.record, dtype))  # type: ignore[assignment]
    return record


COSTS = _record(
    [
        ("success", "f8"),
        ("duplicate", "f8"),  # each duplicate effect
        ("omission", "f8"),  # each omitted item
        ("unresolved", "f8"),
        ("overclaim", "f8"),
        ("time_per_hour", "f8"),
        ("read", "f8"),
        ("reissue", "f8"),
        ("escalation", "f8"),
    ]
)

CONTRACT = _record(
    [
        ("lag_s", "f8"),  # [s] visibility lag; UNKNOWN where it is not documented
        ("key_retention_s", "f8"),  # [s] infinity: for ever
        ("in_flight_bound_s", "f8"),  # [s] from sending; infinity: not documented
        ("client_timeout_s", "f8"),  # [s]
        ("latency_s", "f8"),  # [s]
        ("operator_delay_s", "f8"),  # [s]
        ("operator_answer_rate", "f8"),  # probability that the operator answers at all
        ("documented_delay_s", "f8", (N_QUANTILES,)),  # [s] of late writes; UNKNOWN
        ("documented_late_share", "f8"),  # P(late | timeout); UNKNOWN
        ("documented_absent_share", "f8"),  # P(absent | timeout); UNKNOWN
        ("documented_commit_share", "f8"),  # P(something committed | HTTP 500); UNKNOWN
        ("documented_retry_fault_rate", "f8"),  # UNKNOWN
        ("costs", COSTS),
        ("n_items", "i4"),
        ("max_steps", "i4"),
        ("max_attempts", "i4"),
        ("readback", "i1"),  # Readback
        ("accepts_key", "i1"),
        ("in_flight_same_key", "i1"),  # InFlightSameKey
        ("idempotent", "i1"),
        ("irreversible", "i1"),
        ("original_key", "i1"),  # OriginalKey
        ("candidate_key", "i1"),  # CandidateKey
        ("operator_sees_in_flight", "i1"),
        ("start", "i1"),  # Start
        ("dispatch_claims", "i1"),  # an acknowledged re-issue ends the episode as a claim
        ("pad", "i1", (2,)),
    ]
)

LAW = _record(
    [
        ("lag_s", "f8"),  # [s] the lag that really acts
        ("copy_delay_s", "f8"),  # [s] a redelivered copy runs this long after the first execution
        ("retry_after_s", "f8"),  # [s] told by 429 and 503
        ("outage_s", "f8"),  # [s]
        ("late_fixed_s", "f8"),  # [s] delay of timeout_late, from sending
        ("queued_share", "f8"),  # P(a late request is queued | late); the others are in transit
        ("first_cdf", "f8", (N_MODES,)),  # cumulative probabilities of the original's mode
        ("retry_cdf", "f8", (N_MODES,)),  # the same for every further attempt
        ("tail_offset", "i8"),  # where the law of timeout_late_tail lies in the table
        ("shown_as", "i8"),  # first context with the same contract: what views may name
    ]
)

CONTEXT = _record([("contract", CONTRACT), ("law", LAW)])

FATE = _record(
    [
        ("commit_delay_s", "f8"),  # [s] from sending to execution; infinity: never
        ("copy_delay_s", "f8"),  # [s] from execution to the copy's; infinity: no copy
        ("n_commit", "i4"),  # how many of the items sent are executed
        ("mode", "i1"),  # Mode
        ("queued", "i1"),  # reaches the service at once although it executes late
        ("pad", "i1", (2,)),
    ]
)

WORLD = _record(
    [
        ("seed", "u8"),
        ("world", "i8"),
        ("context", "i4"),
        ("operator_answers", "i1"),
        ("pad", "i1", (3,)),
        ("fates", FATE, (MAX_ATTEMPTS,)),
    ]
)
"""A world written out; the kernel draws the same numbers attempt by attempt.  Privileged."""

VIEW_ATTEMPT = _record(
    [
        ("sent_s", "f8"),  # [s]
        ("answered_s", "f8"),  # [s] when the response or the timeout came
        ("payload", "i4"),  # items sent
        ("clear", "i4"),  # items known to be terminal and effect-free for this attempt
        ("response", "i1"),  # Response
        ("key", "i1"),  # Key
        ("authority", "i1"),  # Authority
        ("pad", "i1", (5,)),
    ]
)

VIEW = _record(
    [
        ("clock_s", "f8"),  # [s]
        ("decided_from_s", "f8"),  # [s] clock of the first decision
        ("read_at_s", "f8"),  # [s] moment that the last informative report shows; -1: none yet
        ("retry_at_s", "f8"),  # [s] end of the last Retry-After; 0: none
        ("operator_at_s", "f8"),  # [s] end of the last escalation; -1: none
        ("context", "i4"),  # a context with this contract; the law is not told by it
        ("n_attempts", "i4"),
        ("n_steps", "i4"),
        ("n_reads", "i4"),
        ("reads_since_attempt", "i4"),
        ("n_waits", "i4"),
        ("n_reissues", "i4"),
        ("n_escalations", "i4"),
        ("n_client_errors", "i4"),
        ("shown", "i4"),  # items in the last informative report
        ("ever_shown", "i4"),
        ("pinned_payload", "i4"),  # payload bound to the pinned key; 0: not used yet
        ("other_payload", "i4"),
        ("read_error", "i1"),  # ReadError of the latest read
        ("operator_status", "i1"),  # OperatorStatus
        ("ending", "i1"),  # Ending
        ("pad", "i1"),
        ("attempts", VIEW_ATTEMPT, (MAX_ATTEMPTS,)),
    ]
)

TRUTH_ATTEMPT = _record(
    [
        ("arrival_s", "f8"),  # [s] when the request reached the service; infinity: lost
        ("execution_s", "f8"),  # [s] when its effects happen
        ("wanted", "i4"),  # items it executes unless suppressed
        ("effect", "i4"),  # items it did (or, queued, will) execute
        ("copy_effect", "i4"),  # items that its redelivered copy executes
        ("mode", "i1"),  # Mode, or OUTAGE for an attempt sent into one
        ("in_transit", "i1"),  # still on its way: suppression is decided on arrival
        ("copy_due", "i1"),  # a redelivered copy is still to arrive
        ("pad", "i1"),
    ]
)

TRUTH = _record(
    [
        ("seed", "u8"),
        ("world", "i8"),
        ("outage_until_s", "f8"),  # [s]
        ("context", "i4"),  # the context that the world was drawn from
        ("false_permissions", "i2"),  # re-issues that section 5 of the design does not permit
        ("operator_answers", "i1"),
        ("pad", "i1"),
        ("attempts", TRUTH_ATTEMPT, (MAX_ATTEMPTS,)),
    ]
)
"""Privileged: what really happened."""

OUTCOME = _record(
    [
        ("elapsed_s", "f8"),  # [s] from t = 0
        ("operator_s", "f8"),  # [s] spent waiting for the operator
        ("duplicates", "i4"),
        ("residual_duplicates", "i4"),
        ("omissions", "i4"),
        ("false_retry_permissions", "i4"),
        ("reads", "i4"),
        ("waits", "i4"),
        ("reissues", "i4"),
        ("escalations", "i4"),
        ("steps", "i4"),
        ("task_success", "i1"),
        ("exactly_once", "i1"),
        ("unresolved", "i1"),
        ("resolved_exact", "i1"),
        ("overclaim", "i1"),
        ("pad", "i1", (7,)),
    ]
)
"""The measures of one episode, from the ledger after settlement."""

MEASURES: tuple[str, ...] = (
    "task_success",
    "exactly_once",
    "duplicates",
    "residual_duplicates",
    "omissions",
    "unresolved",
    "resolved_exact",
    "overclaim",
    "false_retry_permissions",
    "elapsed_s",
    "reads",
    "waits",
    "reissues",
    "escalations",
    "operator_s",
    "steps",
)
"""Names of the measures in the order of every table."""
