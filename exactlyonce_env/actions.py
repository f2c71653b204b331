"""Discrete actions and their mask."""

from __future__ import annotations

import numpy as np

from exactlyonce_env.compiled import Array, Record, compiled
from exactlyonce_env.vocabulary import Action, Readback

WAITS_S: tuple[float, ...] = (15.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds of the five discrete waits."""

MAX_WAIT_S = 604800.0
"""Longest single wait of the parametric actions: one week [s]."""

ACTION_NAMES: tuple[str, ...] = (
    "read",
    *(f"wait:{seconds:g}" for seconds in WAITS_S),
    "retry",
    "keyed_retry",
    "escalate",
    "finish",
    "finish_uncertain",
)
"""Names of the discrete actions, in the order of `Discrete(11)`."""

N_ACTIONS = len(ACTION_NAMES)
KINDS = np.array(
    [
        Action.READ,
        *(Action.WAIT for _ in WAITS_S),
        Action.RETRY,
        Action.KEYED_RETRY,
        Action.ESCALATE,
        Action.FINISH,
        Action.FINISH_UNCERTAIN,
    ],
    dtype=np.int8,
)
"""Kind of each discrete action (11,)."""
SECONDS = np.array([0.0, *WAITS_S, 0.0, 0.0, 0.0, 0.0, 0.0])
"""Seconds of each discrete action (11,)."""

N_WAITS = len(WAITS_S)
NO_READBACK = int(Readback.NONE)


@compiled
def write_mask(seen: Record, contract: Record, out: Array) -> None:
    """Write 1 for every discrete action that is not answered with an error, (11,) int8."""
    for k in range(N_ACTIONS):
        out[k] = 1
    if contract.readback == NO_READBACK:
        out[0] = 0
    sendable = seen.n_attempts < contract.max_attempts
    if not sendable:
        out[N_WAITS + 1] = 0
    if not sendable or not contract.accepts_key:
        out[N_WAITS + 2] = 0


@compiled
def mask_views(views: Array, contracts: Array, out: Array) -> None:
    """Write the mask of each of ``views`` (n,) VIEW into ``out`` (n, 11) int8.

    View i works under ``contracts[views[i].context]``, of ``contracts`` (C,) CONTRACT records.
    """
    for i in range(len(views)):
        write_mask(views[i], contracts[views[i].context], out[i])
