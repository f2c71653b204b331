"""Learned policies: the network of a checkpoint over the observation, in the base install.

``learned:NAME`` is a checkpoint that ships, ``learned:PATH`` one of your own: an ``.npz`` file or
the folder of a training run that holds ``checkpoint.npz``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exactlyonce_env.actions import ACTION_NAMES, KINDS, N_ACTIONS, SECONDS, mask_views
from exactlyonce_env.errors import UserError, did_you_mean
from exactlyonce_env.observation import FEATURES, N_FEATURES, N_STATIC, observe_views, write_static
from exactlyonce_env.vocabulary import Action
from policies.base import ActionBatch, Policy, ViewBatch
from policies.checkpoint import Checkpoint, load_checkpoint
from policies.network import Floats, Network, best_allowed

__all__ = ["ALIASES", "LearnedPolicy", "learned", "open_checkpoint", "shipped_names"]

ALIASES: dict[str, str] = {"recovery": "contextual"}
"""Further names of shipped checkpoints."""

IN_RUN = "checkpoint.npz"
"""Name of the checkpoint in the folder of a training run."""

FEATURE_NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES)

_READ = ACTION_NAMES.index("read")
_SHORT_WAITS = np.isin(ACTION_NAMES, ("wait:15", "wait:60"))
SAME_MOMENT_S = 1e-3
"""Reads within this of each other [s] show the same."""

_ALWAYS_ALLOWED = tuple(
    name
    for name, kind in zip(ACTION_NAMES, KINDS.tolist(), strict=True)
    if kind in (Action.FINISH, Action.FINISH_UNCERTAIN)
)
_DIGEST = re.compile(r"(?P<path>.+)@(?P<digest>[0-9a-f]{8})")


class LearnedPolicy(Policy):
    """The action with the highest score of a trained network, among those that are possible.

    Features and actions are matched by name, so a checkpoint outlives entries that are added to
    the observation or to the actions later, and serves every preset: all have the same views.

    Attributes
    ----------
    checkpoint
        Where the network comes from.

    Raises
    ------
    UserError
        For a checkpoint that needs a feature or an action that this version does not have, or that
        could be left without a possible action.
    """

    def __init__(self, spec: str, checkpoint: Checkpoint) -> None:
        self._spec = spec
        self.checkpoint = checkpoint
        self._features = _positions("feature", checkpoint.features, FEATURE_NAMES)
        self._actions = _positions("action", checkpoint.actions, ACTION_NAMES)
        if not set(checkpoint.actions) & set(_ALWAYS_ALLOWED):
            raise UserError(
                f"the checkpoint has none of the actions {', '.join(_ALWAYS_ALLOWED)}, which alone "
                "are always possible"
            )
        self._network = Network(checkpoint)

    @property
    def spec(self) -> str:
        """``learned:NAME``, or ``learned:PATH@DIGEST`` with eight digits of the content's hash."""
        return self._spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._spec!r})"

    def observe(self, batch: ViewBatch) -> Floats:
        """The entries of the observation that the network takes, (n, features) float32."""
        views, contracts = batch.views, batch.contracts
        if len(views) < len(contracts):  # the static part of a whole catalogue would cost more
            contracts, views = batch.own_contracts, views.copy()
            views["context"] = np.arange(len(views))
        static = np.empty((len(contracts), N_STATIC), dtype=np.float32)
        for k in range(len(contracts)):
            write_static(contracts[k], static[k])
        whole = np.zeros((len(views), N_FEATURES), dtype=np.float32)
        observe_views(views, contracts, static, whole)
        return np.ascontiguousarray(whole[:, self._features])

    def masks(self, batch: ViewBatch) -> npt.NDArray[np.int8]:
        """Which of the checkpoint's actions are possible, (n, actions) int8."""
        whole = np.zeros((len(batch), N_ACTIONS), dtype=np.int8)
        mask_views(batch.views, batch.contracts, whole)
        return np.ascontiguousarray(whole[:, self._actions])

    def choices(self, batch: ViewBatch) -> npt.NDArray[np.int8]:
        """Those of the `masks` that are no idling, (n, actions) int8.

        A network that was never taught a view may repeat a step that changes nothing until the
        calls run out. So the shortest waits are left out once half of the calls are used up, and a
        read right after another one always: it would show the same.
        """
        views, contracts = batch.views, batch.own_contracts
        late = 2 * views["n_steps"] >= contracts["max_steps"]
        since_s = views["clock_s"] - views["read_at_s"] - contracts["latency_s"]
        just_read = (views["reads_since_attempt"] > 0) & (since_s <= SAME_MOMENT_S)
        idle = late[:, None] & _SHORT_WAITS
        idle[just_read, _READ] = True
        return np.where(idle[:, self._actions], np.int8(0), self.masks(batch))

    def scores(self, batch: ViewBatch) -> Floats:
        """Scores of the checkpoint's actions, the impossible ones among them, (n, actions)."""
        return self._network.scores(self.observe(batch))

    def act(self, batch: ViewBatch) -> ActionBatch:
        """One decision for each view of the batch."""
        best = np.empty(len(batch), dtype=np.int64)
        best_allowed(self.scores(batch), self.choices(batch), best)
        chosen = self._actions[best]
        return ActionBatch(KINDS[chosen], SECONDS[chosen])


def learned(name: str, argument: str | None) -> LearnedPolicy:
    """The policy ``learned:ARGUMENT``; the factory behind `policies.spec`.

    Raises
    ------
    UserError
        Without an argument, and for one that names no sound checkpoint.
    """
    if not argument:
        raise UserError(
            f"policy {name!r} needs a name or a path, for instance {name}:runs/mine; "
            f"{_shipped_list()}"
        )
    checkpoint, canonical = open_checkpoint(argument)
    try:
        return LearnedPolicy(f"{name}:{canonical}", checkpoint)
    except UserError as error:
        raise UserError(f"policy {name}:{argument}: {error}") from None


def open_checkpoint(argument: str) -> tuple[Checkpoint, str]:
    """A checkpoint by the name of a shipped one or by a path, and how to write it again.

    Of a path that is ``PATH@DIGEST``: a run that is resumed must not go on with other weights.

    Raises
    ------
    UserError
        For an unknown name, a path without a checkpoint, and a digest of another content.
    """
    if argument in shipped_names():
        return _shipped(ALIASES.get(argument, argument)), argument
    path, wanted = Path(argument), None
    stated = _DIGEST.fullmatch(argument)
    if stated and not path.exists():
        path, wanted = Path(stated["path"]), stated["digest"]
    if not path.exists():
        raise UserError(_unknown(argument))
    if path.is_dir():
        path /= IN_RUN
        if not path.exists():
            raise UserError(
                f"the folder {str(path.parent)!r} holds no {IN_RUN}; name the folder of a training "
                "run that has finished, or an .npz file"
            )
    checkpoint = load_checkpoint(path)
    digest = _digest(checkpoint)
    if wanted not in (None, digest):
        raise UserError(
            f"{str(path)!r} has changed: its digest is {digest}, not {wanted}; write "
            f"learned:{path} to take it as it is"
        )
    return checkpoint, f"{path}@{digest}"


def shipped_names() -> tuple[str, ...]:
    """Names of the checkpoints that ship, aliases included."""
    folder = files("policies") / "checkpoints"
    if not folder.is_dir():
        return ()
    stems = {
        file.name.removesuffix(".npz") for file in folder.iterdir() if file.name.endswith(".npz")
    }
    return tuple(sorted(stems | {name for name, stem in ALIASES.items() if stem in stems}))


@lru_cache(maxsize=16)
def _shipped(stem: str) -> Checkpoint:
    with as_file(files("policies") / "checkpoints" / f"{stem}.npz") as path:
        return load_checkpoint(path)


def _shipped_list() -> str:
    names = shipped_names()
    return f"shipped: {', '.join(names)}" if names else "no checkpoint ships with this version"


def _unknown(argument: str) -> str:
    hint = did_you_mean(argument, shipped_names())
    return f"no checkpoint {argument!r}{hint}: neither a shipped name nor a path; {_shipped_list()}"


def _digest(checkpoint: Checkpoint) -> str:
    """Eight hexadecimal digits of a hash of all that decides: weights, activation and names."""
    digest = hashlib.sha256(
        repr((checkpoint.activation, checkpoint.features, checkpoint.actions)).encode()
    )
    for weight, bias in checkpoint.layers:
        digest.update(repr(weight.shape).encode())
        digest.update(weight.astype("<f4").tobytes())
        digest.update(bias.astype("<f4").tobytes())
    return digest.hexdigest()[:8]


def _positions(what: str, names: Sequence[str], known: Sequence[str]) -> npt.NDArray[np.int64]:
    """Where each of the checkpoint's names stands in today's table."""
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f" (the nearest is {close[0]})" if close else ""
            raise UserError(
                f"the checkpoint needs the {what} {name!r}, which this version does not have{hint}"
            )
    return np.array([known.index(name) for name in names], dtype=np.int64)
