"""A light index of the episodes of a run: what the list shows, filters, searches and sorts.

It lies in a temporary database that spills to the disk, so that 20,000 episodes take little memory,
and it is filled a slice at a time, so that a large run is shown at once and a running one grows.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evaluation.llm.store import Store
from evaluation.viewer.short import OF_KIND, OUTCOMES, SIGNS, searched, short_of
from exactlyonce_env.errors import unknown

__all__ = ["FACETS", "PAGE", "SORTS", "Index", "Query"]

FACTORS = (
    "policy",
    "fault",
    "family",
    "domain",
    "task",
    "wrapper",
    "design",
    "label",
    "key",
    "decision",
    "kind",
)
TEXTS = (*FACTORS, "title")
"""Fields that the list can be filtered or sorted by; an episode has one value of each."""

FLAGS = {"outcome": OUTCOMES, "signs": SIGNS}
"""What else it can be filtered by: of these an episode may have several, or none."""

FACETS = ("outcome", *FACTORS, "signs")
"""All filters, in the order in which they are shown."""

SORTS = {
    "order": "policy, wrapper, task, number, title, label, key, fault, repeat, n",
    "latest": "n DESC",
    "calls": "calls DESC, n",
    "tokens": "tokens_in + tokens_out DESC, n",
    "cost": "usd DESC, n",
}
"""Orders of the list by name; ``latest``: the episode that ended last comes first."""

PAGE = 100
"""Rows of a page."""

SLICE_S = 0.3
"""How long one question may read on before it is answered [s]."""

BATCH = 200
"""Episodes that are read between two looks at the clock."""

NUMBERS = ("number", "repeat", "calls", "tokens_in", "tokens_out", "usd")
SINGLE = tuple(name for names in FLAGS.values() for name in names)

SCHEMA = f"""
CREATE TABLE found(
  n INTEGER PRIMARY KEY, place TEXT NOT NULL UNIQUE,
  {", ".join(f"{name} TEXT NOT NULL" for name in TEXTS)},
  {", ".join(f"{name} NUMERIC NOT NULL" for name in NUMBERS)},
  {", ".join(f"is_{name} INTEGER NOT NULL" for name in SINGLE)});
CREATE INDEX in_order ON found({SORTS["order"]});
CREATE TABLE shown(n INTEGER PRIMARY KEY, short TEXT NOT NULL);
CREATE TABLE said(n INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE hits(n INTEGER PRIMARY KEY);
"""

N_COLUMNS = 2 + len(TEXTS) + len(NUMBERS) + len(SINGLE)
INSERT = f"INSERT INTO found VALUES ({', '.join('?' * N_COLUMNS)})"


@dataclass(frozen=True)
class Query:
    """Which episodes are listed, and how.

    Attributes
    ----------
    chosen
        The values chosen of each of `FACETS`; of one facet any may hold, and all facets must.
    search
        Words that must all occur, in any case.
    sort
        One of `SORTS`.
    offset
        Rows that are passed over.

    Raises
    ------
    UserError
        For an unknown facet or order.
    """

    chosen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    search: str = ""
    sort: str = "order"
    offset: int = 0

    def __post_init__(self) -> None:
        for name in self.chosen:
            if name not in FACETS:
                raise unknown("filter", name, FACETS)
        if self.sort not in SORTS:
            raise unknown("order", self.sort, SORTS)


Condition = tuple[str, list[Any]]
"""Part of a WHERE clause, and its values."""


class Index:
    """The index of a store.

    Parameters
    ----------
    store
        Where documents come from.
    file
        Its file, which is looked at for what has come in since.
    """

    def __init__(self, store: Store, file: Path) -> None:
        self._store = store
        self._run = sqlite3.connect(
            f"file:{quote(str(file.resolve()))}?mode=ro", uri=True, check_same_thread=False
        )
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.executescript(SCHEMA)
        self._last = 0
        self._hits: tuple[str, int] = ("", 0)

    def close(self) -> None:
        """Close both files."""
        self._run.close()
        self._db.close()

    # -- filling ----------------------------------------------------------------------------------

    def catch_up(self, slice_s: float = SLICE_S) -> dict[str, int]:
        """Read on for a while.

        Returns
        -------
        dict
            ``version``, which grows with each episode that is read; ``indexed``, the number of
            those that are listed; ``total``, the number in the store.
        """
        until_s = time.monotonic() + slice_s
        while self._read_some() and time.monotonic() < until_s:
            pass
        (total,) = self._run.execute("SELECT COUNT(*) FROM episodes").fetchone()
        (indexed,) = self._db.execute("SELECT COUNT(*) FROM found").fetchone()
        return {"version": self._last, "indexed": indexed, "total": total}

    def _read_some(self) -> bool:
        """Read the next episodes; whether there may be more."""
        # An episode that is run again takes a new number, so what changed comes by again.
        places = self._run.execute(
            "SELECT rowid, place FROM episodes WHERE rowid > ? ORDER BY rowid LIMIT ?",
            (self._last, BATCH),
        ).fetchall()
        self._db.execute("BEGIN")
        for n, place in places:
            document = self._store.document(place)
            if document is not None:
                self._put(n, place, document)
            self._last = n
        self._db.execute("COMMIT")
        return len(places) == BATCH

    def _put(self, n: int, place: str, document: Mapping[str, Any]) -> None:
        known = self._db.execute("SELECT n FROM found WHERE place = ?", (place,)).fetchone()
        for table in ("found", "shown", "said") if known else ():
            self._db.execute(f"DELETE FROM {table} WHERE n = ?", known)
        short = short_of(place, document)
        held = {*short["outcomes"], *short["signs"]}
        row = [
            n,
            place,
            *(short[name] for name in (*TEXTS, *NUMBERS)),
            *(name in held for name in SINGLE),
        ]
        self._db.execute(INSERT, row)
        self._db.execute("INSERT INTO shown VALUES (?, ?)", (n, json.dumps(short)))
        text = searched(place, document, short)
        self._db.execute("INSERT INTO said VALUES (?, ?)", (n, text))

    # -- asking -----------------------------------------------------------------------------------

    def page(self, query: Query) -> dict[str, Any]:
        """One page: ``rows``, ``facets``, ``totals``, ``offset``."""
        where, values = self._where(query)
        n, tokens_in, tokens_out, usd = self._db.execute(
            "SELECT COUNT(*), COALESCE(SUM(tokens_in), 0), COALESCE(SUM(tokens_out), 0),"
            f" COALESCE(SUM(usd), 0.0) FROM found WHERE {where}",
            values,
        ).fetchone()
        offset = min(query.offset, max(n - 1, 0)) // PAGE * PAGE
        rows = self._db.execute(
            f"SELECT n FROM found WHERE {where} ORDER BY {SORTS[query.sort]} LIMIT ? OFFSET ?",
            [*values, PAGE, offset],
        ).fetchall()
        return {
            "rows": [self._short(n) for (n,) in rows],
            "offset": offset,
            "page": PAGE,
            "totals": {"episodes": n, "tokens_in": tokens_in, "tokens_out": tokens_out, "usd": usd},
            "facets": list(self._facets(query)),
        }

    def around(self, place: str, query: Query) -> dict[str, Any]:
        """Where an episode stands in a list.

        Returns
        -------
        dict
            ``position`` from 1 on, ``of``, the places ``before`` and ``after``, and the ``offset``
            of its page; all None but ``of`` where the filters leave the episode out.
        """
        where, values = self._where(query)
        rows = self._db.execute(
            f"SELECT place FROM found WHERE {where} ORDER BY {SORTS[query.sort]}", values
        )
        places = [one for (one,) in rows]
        found: dict[str, Any] = {"of": len(places)}
        if place not in places:
            return found | dict.fromkeys(("position", "before", "after", "offset"))
        k = places.index(place)
        return found | {
            "position": k + 1,
            "before": places[k - 1] if k else None,
            "after": places[k + 1] if k + 1 < len(places) else None,
            "offset": k // PAGE * PAGE,
        }

    def _short(self, n: int) -> Any:
        row = self._db.execute("SELECT short FROM shown WHERE n = ?", (n,)).fetchone()
        return json.loads(row[0])

    def _facets(self, query: Query) -> Iterator[dict[str, Any]]:
        """Each filter with its values, and how many episodes each would leave."""
        for facet in FACETS:
            where, values = self._where(query, but=facet)
            if facet in FLAGS:
                names = self._flags(facet)
                # The count keeps the row where there is no episode, or no flag.
                sums = "".join(f", COALESCE(SUM(is_{name}), 0)" for name in names)
                counts = self._db.execute(f"SELECT COUNT(*){sums} FROM found WHERE {where}", values)
                found = list(zip(names, names.values(), counts.fetchone()[1:], strict=True))
            else:
                # Values that the other filters leave nothing of are listed all the same.
                counts = self._db.execute(
                    f"SELECT {facet}, SUM({where}) FROM found GROUP BY {facet} ORDER BY {facet}",
                    values,
                )
                found = [(value, value, count) for value, count in counts if value]
            yield {
                "facet": facet,
                "values": [
                    {"value": value, "words": words, "count": count}
                    for value, words, count in found
                ],
            }

    def _flags(self, facet: str) -> dict[str, str]:
        """Those flags that episodes of the kinds in this run can have."""
        if facet != "outcome":
            return FLAGS[facet]
        kinds = [kind for (kind,) in self._db.execute("SELECT DISTINCT kind FROM found")]
        possible = frozenset().union(*(OF_KIND[kind] for kind in kinds))
        return {name: words for name, words in OUTCOMES.items() if name in possible}

    def _where(self, query: Query, but: str = "") -> Condition:
        """The condition of all filters but one."""
        parts: list[str] = ["1"]
        values: list[Any] = []
        for facet, chosen in query.chosen.items():
            if facet == but or not chosen:
                continue
            if facet in FLAGS:
                held = [f"is_{name}" for name in chosen if name in FLAGS[facet]]
                parts.append(f"({' OR '.join(held) or '0'})")
            else:
                parts.append(f"{facet} IN ({', '.join('?' * len(chosen))})")
                values += chosen
        if query.search.strip():
            self._search(query.search)
            parts.append("n IN (SELECT n FROM hits)")
        return " AND ".join(parts), values

    def _search(self, search: str) -> None:
        """Note which episodes hold all the words; the last search is remembered."""
        if self._hits == (search, self._last):
            return
        words = search.lower().split()
        self._db.execute("DELETE FROM hits")
        self._db.execute(
            "INSERT INTO hits SELECT n FROM said WHERE "
            + " AND ".join(["INSTR(text, ?) > 0"] * len(words)),
            words,
        )
        self._hits = (search, self._last)
