"""Every call to a model and every episode, in one SQLite file that no kill can harm.

A call is found again by its place (which episode), its step there and its request.  A run that
goes on therefore replays what it has paid for and asks only what is new; two episodes that begin
with the same request are still two draws.

Keys of providers never come in here: what looks like one of the secrets is blotted out first.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from exactlyonce_env.errors import UserError

__all__ = ["FILE", "Spent", "Store", "open_store"]

FILE = "llm.sqlite"
FORMAT = "exactlyonce-llm/1"

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS texts(sha TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls(
  id INTEGER PRIMARY KEY, place TEXT NOT NULL, step INTEGER NOT NULL, request_sha TEXT NOT NULL,
  constant TEXT NOT NULL, kept INTEGER NOT NULL, messages BLOB NOT NULL, response BLOB NOT NULL,
  tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, usd REAL NOT NULL,
  seconds REAL NOT NULL, at_utc TEXT NOT NULL, UNIQUE(place, step, request_sha));
CREATE TABLE IF NOT EXISTS trouble(
  id INTEGER PRIMARY KEY, place TEXT NOT NULL, step INTEGER NOT NULL, kind TEXT NOT NULL,
  message TEXT NOT NULL, at_utc TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS trouble_place ON trouble(place);
CREATE TABLE IF NOT EXISTS episodes(
  place TEXT PRIMARY KEY, kind TEXT NOT NULL, policy TEXT NOT NULL, repeat INTEGER NOT NULL,
  fault TEXT NOT NULL, status TEXT NOT NULL, document BLOB NOT NULL);
"""

NUMBERS = ("tokens_in", "tokens_out", "usd", "seconds", "at_utc")

HISTORY = ("messages", "input")
"""Fields of a request that grow with an episode."""

SHORT = ("calls", "answers", "timeline", "actions", "reported")
"""Fields of a document that a list of episodes leaves out."""


class Spent(NamedTuple):
    """What calls have cost.

    Attributes
    ----------
    n_calls, tokens_in, tokens_out, usd
        Of the answered calls.
    trouble
        Requests that got no answer.
    """

    n_calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    trouble: int


@dataclass(frozen=True)
class Stored:
    """A call that was answered before."""

    response: dict[str, Any]
    tokens_in: int
    tokens_out: int
    usd: float


class Store:
    """The file; made by `open_store`."""

    def __init__(
        self, connection: sqlite3.Connection, secrets: Sequence[str] = (), name: str = FILE
    ) -> None:
        self._db, self.name = connection, name
        # Texts are cleaned once they are JSON, in which quotes and backslashes are escaped.
        escaped = (json.dumps(secret)[1:-1] for secret in secrets)
        self.secrets = tuple(dict.fromkeys(s for s in (*escaped, *secrets) if s))
        self._texts: set[str] = set()
        self._before: dict[str, list[Any]] = {}

    # -- calls ------------------------------------------------------------------------------------

    def find(self, place: str, step: int, path: str, body: Mapping[str, Any]) -> Stored | None:
        """The answer that this request got at this place before."""
        row = self._db.execute(
            "SELECT response, tokens_in, tokens_out, usd FROM calls"
            " WHERE place = ? AND step = ? AND request_sha = ?",
            (place, step, self._sha(path, body)),
        ).fetchone()
        if row is None:
            return None
        self._remember(place, body)
        return Stored(_unpack(row[0]), *row[1:])

    def add(
        self,
        place: str,
        step: int,
        path: str,
        body: Mapping[str, Any],
        response: Mapping[str, Any],
        tokens: tuple[int, int],
        usd: float,
        seconds: float,
    ) -> None:
        """Keep an answered call; it is in the file when this returns."""
        name = _history_of(body)
        history = body.get(name, [])
        constant = {"path": path, **{k: v for k, v in body.items() if k != name}}
        text = self._pack(constant)
        sha = hashlib.sha256(text).hexdigest()
        before = self._before.get(place, [])
        kept = _common(before, history)
        with self._writing():
            if sha not in self._texts:
                self._db.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (sha, text))
                self._texts.add(sha)
            self._db.execute(
                "INSERT OR IGNORE INTO calls(place, step, request_sha, constant, kept, messages,"
                " response, tokens_in, tokens_out, usd, seconds, at_utc)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    place,
                    step,
                    self._sha(path, body),
                    sha,
                    kept,
                    self._pack(list(history[kept:])),
                    self._pack(response),
                    *tokens,
                    usd,
                    seconds,
                    _now(),
                ),
            )
        self._remember(place, body)

    def note(self, place: str, step: int, kind: str, message: str) -> None:
        """Keep a failure of the provider."""
        with self._writing():
            self._db.execute(
                "INSERT INTO trouble(place, step, kind, message, at_utc) VALUES (?, ?, ?, ?, ?)",
                (place, step, kind, self._clean(message), _now()),
            )

    def spent(self, place: str | None = None) -> Spent:
        """What the calls of a place, or of all of them, have cost."""
        where, values = ("", ()) if place is None else (" WHERE place = ?", (place,))
        calls = self._db.execute(
            "SELECT COUNT(*), COALESCE(SUM(tokens_in), 0), COALESCE(SUM(tokens_out), 0),"
            f" COALESCE(SUM(usd), 0.0) FROM calls{where}",
            values,
        ).fetchone()
        (trouble,) = self._db.execute(f"SELECT COUNT(*) FROM trouble{where}", values).fetchone()
        n_calls, tokens_in, tokens_out, usd = calls
        return Spent(n_calls, tokens_in, tokens_out, usd, trouble)

    def spent_by_place(self) -> Iterator[tuple[str, Spent, bool]]:
        """What the calls of each place have cost, and whether its episode is finished."""
        rows = self._db.execute(
            "SELECT asked.place, SUM(n), SUM(tokens_in), SUM(tokens_out), SUM(usd), SUM(trouble),"
            " EXISTS (SELECT 1 FROM episodes WHERE episodes.place = asked.place) FROM ("
            "SELECT place, 1 AS n, tokens_in, tokens_out, usd, 0 AS trouble FROM calls UNION ALL"
            " SELECT place, 0, 0, 0, 0.0, 1 FROM trouble) AS asked GROUP BY asked.place"
        )
        for place, *numbers, finished in rows:
            yield place, Spent(*numbers), bool(finished)

    def calls(self, place: str) -> list[dict[str, Any]]:
        """The calls of an episode in order, each with its whole request."""
        found: list[dict[str, Any]] = []
        history: list[Any] = []
        rows = self._db.execute(
            "SELECT step, body, kept, messages, response, tokens_in, tokens_out, usd, seconds,"
            " at_utc FROM calls JOIN texts ON calls.constant = texts.sha WHERE place = ?"
            " ORDER BY calls.id",
            (place,),
        )
        for step, constant, kept, messages, response, *rest in rows:
            body = _unpack(constant)
            path = body.pop("path")
            history = history[:kept] + _unpack(messages)
            body["input" if path.endswith("responses") else "messages"] = history
            numbers = zip(NUMBERS, rest, strict=True)
            found.append(
                {"step": step, "path": path, "body": body, "response": _unpack(response)}
                | dict(numbers)
            )
        return found

    def trouble(self, place: str) -> list[dict[str, Any]]:
        """The failures of an episode in order."""
        rows = self._db.execute(
            "SELECT step, kind, message, at_utc FROM trouble WHERE place = ? ORDER BY id", (place,)
        )
        return [dict(zip(("step", "kind", "message", "at_utc"), row, strict=True)) for row in rows]

    # -- episodes ---------------------------------------------------------------------------------

    def finish(self, place: str, document: Mapping[str, Any]) -> None:
        """Keep an episode that has come to its end; again replaces it."""
        with self._writing():
            self._db.execute(
                "INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    place,
                    document["kind"],
                    document["policy"],
                    document["repeat"],
                    document["fault"],
                    document["status"],
                    self._pack(document),
                ),
            )
        self._before.pop(place, None)

    def document(self, place: str) -> dict[str, Any] | None:
        """The whole of a finished episode."""
        row = self._db.execute("SELECT document FROM episodes WHERE place = ?", (place,)).fetchone()
        found: dict[str, Any] | None = None if row is None else _unpack(row[0])
        return found

    def documents(self, policy: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every finished episode with its place, one at a time."""
        where, values = ("", ()) if policy is None else (" WHERE policy = ?", (policy,))
        rows = self._db.execute(f"SELECT place, document FROM episodes{where}", values)
        for place, packed in rows:
            yield place, _unpack(packed)

    def episodes(self) -> list[dict[str, Any]]:
        """The short fields of every finished episode."""
        found = []
        for place, document in self.documents():
            short = {name: value for name, value in document.items() if name not in SHORT}
            found.append({"place": place, **short})
        return found

    # -- facts ------------------------------------------------------------------------------------

    def fact(self, name: str) -> str | None:
        """Something that was found out about an endpoint."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        """Keep it for the runs that go on here."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def came_from(self, address: str) -> None:
        """Keep where answers come from."""
        known = self.addresses
        if address not in known:
            self.set_fact("addresses", json.dumps([*known, address]))

    @property
    def addresses(self) -> list[str]:
        """Where the answers came from, in order of the first."""
        found: list[str] = json.loads(self.fact("addresses") or "[]")
        return found

    def same_way(self, spec: str, way: Mapping[str, Any]) -> None:
        """Refuse to mix answers that were asked for in different ways.

        Raises
        ------
        UserError
            Where the store holds the same name asked otherwise.
        """
        name, text = f"way of {spec}", json.dumps(way, sort_keys=True)
        known = self.fact(name)
        if known is not None and known != text:
            raise UserError(
                f"the folder holds {spec} asked otherwise ({known}); choose another folder"
            )
        self.set_fact(name, text)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- ------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction.

        Raises
        ------
        UserError
            Where the file takes no more, such as on a full disk.
        """
        try:
            with self._db:
                yield
        except sqlite3.Error as error:
            raise UserError(
                f"{self.name} cannot be written: {error}; what it holds already is kept"
            ) from None

    def _remember(self, place: str, body: Mapping[str, Any]) -> None:
        self._before[place] = list(body.get(_history_of(body), []))

    def _sha(self, path: str, body: Mapping[str, Any]) -> str:
        text = self._clean(json.dumps([path, body], sort_keys=True, ensure_ascii=False))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _pack(self, obj: object) -> bytes:
        # Lone surrogates, which a model may write, survive as JSON's own escapes.
        return zlib.compress(self._clean(json.dumps(obj)).encode(), 1)

    def _clean(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "[key]")
        return text


def open_store(
    folder: str | Path | None, *, readonly: bool = False, secrets: Sequence[str] = ()
) -> Store:
    """Open the store of a run folder, or one in memory where there is no folder.

    Parameters
    ----------
    folder
        The run folder, which must exist.
    readonly
        Only to look; another process may be writing.
    secrets
        Texts that must never be written.

    Raises
    ------
    UserError
        Where there is nothing to read, or the file is no store of this format.
    """
    if folder is None:
        return _made(sqlite3.connect(":memory:"), secrets, ":memory:")
    path = Path(folder) / FILE
    try:
        if readonly:
            if not path.is_file():
                raise UserError(
                    f"{folder} holds no transcripts: it has no {FILE}; `evaluate … --policies "
                    "llm:MODEL --out RUN` and `agent … --out RUN` make them"
                )
            connection = sqlite3.connect(
                f"file:{_quoted(path)}?mode=ro", uri=True, check_same_thread=False
            )
            store = Store(connection, secrets, str(path))
            if store.fact("format") != FORMAT:
                raise UserError(f"{path} is no store of this version ({FORMAT})")
            return store
        connection = sqlite3.connect(path, timeout=10.0)
        connection.execute("PRAGMA journal_mode=WAL")
        # A killed process loses nothing; only a machine that stops could lose the last calls.
        connection.execute("PRAGMA synchronous=NORMAL")
        return _made(connection, secrets, str(path))
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path} cannot be used: {error}") from None


def _made(connection: sqlite3.Connection, secrets: Sequence[str], name: str) -> Store:
    connection.executescript(SCHEMA)
    store = Store(connection, secrets, name)
    found = store.fact("format")
    if found is None:
        store.set_fact("format", FORMAT)
    elif found != FORMAT:
        raise UserError(f"{name} is of the format {found}, not {FORMAT}; choose another folder")
    return store


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.resolve()))


def _history_of(body: Mapping[str, Any]) -> str:
    return next((name for name in HISTORY if name in body), HISTORY[0])


def _common(before: Sequence[Any], after: Sequence[Any]) -> int:
    """Number of leading entries that are the same."""
    n = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            break
        n += 1
    return n


def _unpack(blob: bytes) -> Any:
    return json.loads(zlib.decompress(blob))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
