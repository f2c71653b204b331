"""The viewer: what its lists and pages hold, and that nothing a model wrote can do harm."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from evaluation.cases.data import case_named
from evaluation.cases.run import case_policy, run_scripted
from evaluation.llm.store import open_store
from evaluation.viewer.data import Transcripts
from evaluation.viewer.index import FACETS, PAGE, Query
from evaluation.viewer.server import HEADERS, Viewer
from evaluation.viewer.short import OF_KIND, OUTCOMES, outcomes_of
from evaluation.viewer.talk import talk_of
from exactlyonce_env.cli import main
from exactlyonce_env.errors import UserError

from .viewer_run import (
    CANARY,
    acted,
    agent_document,
    asks,
    desk,
    keep,
    played,
    policy_document,
    probed,
    said,
    slow_down,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A run in which every outcome occurs."""
    p, a = policy_document, agent_document
    documents = [
        p(0),
        p(1, fault="timeout_post", exactly_once=False, duplicates=2, overclaim=True),
        p(2, exactly_once=False, omissions=1, unresolved=True, invalid=1, rationale="Nobody knows"),
        p(3, policy="llm:other", reason="http_429: slow down"),
        p(4, policy="llm:other", fault="timeout_post", unresolved=True),
        a("cross_post", "x", "timeout_pre", triggered=False),
        a("cross_post", "x", "ok", triggered=False),
        a("invoice_batch", "mail", "timeout_pre", wrapper="guard", behaviour="escalate"),
    ]
    return keep(tmp_path / "run", {f"place {k}": document for k, document in enumerate(documents)})


@pytest.fixture
def serve() -> Iterator[Callable[..., Viewer]]:
    """Serve a run folder until the test is over."""
    open_: list[Viewer] = []

    def start(folder: Path, **options: Any) -> Viewer:
        viewer = Viewer(Transcripts(folder), **options)
        open_.append(viewer)
        threading.Thread(target=viewer.serve_forever, args=(0.02,), daemon=True).start()
        return viewer

    yield start
    for viewer in open_:
        viewer.shutdown()
        viewer.server_close()
        viewer.transcripts.close()


def get(viewer: Viewer, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
    connection = HTTPConnection(*viewer.server_address[:2], timeout=30)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def found(viewer: Viewer, path: str, **asked: Any) -> Any:
    return json.loads(get(viewer, f"{path}?{urlencode(asked, doseq=True)}").read())


def listed(folder: Path, **fields: Any) -> dict[str, Any]:
    with Transcripts(folder) as transcripts:
        return transcripts.episodes(Query(**fields))


def places(page: dict[str, Any]) -> list[str]:
    return [row["place"].removeprefix("place ") for row in page["rows"]]


def counts(page: dict[str, Any], facet: str) -> dict[str, int]:
    (one,) = [entry for entry in page["facets"] if entry["facet"] == facet]
    return {value["value"]: value["count"] for value in one["values"]}


def opened(folder: Path, place: str | None = None) -> dict[str, Any]:
    """An episode as the page gets it; the only one where none is named."""
    with Transcripts(folder) as transcripts:
        if place is None:
            (row,) = transcripts.episodes(Query())["rows"]
            place = row["place"]
        return transcripts.episode(place, Query())


# --- the list -------------------------------------------------------------------------------------


def test_each_filter_value_says_how_many_episodes_it_leaves(mixed: Path) -> None:
    page = listed(mixed)
    assert counts(page, "outcome") == {
        "exactly_once": 4,
        "duplicated": 1,
        "omitted": 1,
        "unresolved": 2,
        "overclaim": 1,
        "missing": 1,
        "not_triggered": 1,
    }
    assert counts(page, "policy") == {"agent:gpt-x": 3, "llm:gpt-x": 3, "llm:other": 2}
    assert counts(page, "fault") == {"ok": 1, "timeout_post": 2, "timeout_pre": 5}
    assert counts(page, "task") == {"cross_post": 2, "invoice_batch": 1}
    assert counts(page, "signs") == {"invalid": 1, "trouble": 0}
    assert page["totals"]["episodes"] == 8
    assert page["totals"]["tokens_in"] == 5 * 100 + 10


def test_values_of_one_filter_add_up_and_filters_narrow_each_other(mixed: Path) -> None:
    chosen = {"outcome": ("duplicated", "unresolved")}
    assert places(listed(mixed, chosen=chosen)) == ["1", "2", "4"]
    page = listed(mixed, chosen=chosen | {"fault": ("timeout_post",)})
    assert places(page) == ["1", "4"]
    # The counts of a filter leave out what it chose itself, so that one sees what else there is.
    assert counts(page, "fault") == {"ok": 0, "timeout_post": 2, "timeout_pre": 1}
    assert counts(page, "outcome") | {"overclaim": 1, "exactly_once": 1} == counts(page, "outcome")
    assert counts(page, "policy") == {"agent:gpt-x": 0, "llm:gpt-x": 1, "llm:other": 1}


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("NOBODY knows", ["2"]),
        ("nobody look", []),
        ("slow", ["3"]),
        ("cross_post", ["5", "6"]),
        ("escalate", ["7"]),
        ("%", []),
        ("  ", ["5", "6", "7", "0", "1", "2", "3", "4"]),
    ],
)
def test_the_search_wants_all_words(mixed: Path, search: str, expected: list[str]) -> None:
    assert sorted(places(listed(mixed, search=search))) == sorted(expected)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (policy_document(0, unresolved=True), ["exactly_once", "unresolved"]),
        # What was graded of an episode that was cut short is none of its outcomes.
        (policy_document(0, reason="timeout"), ["missing"]),
        (agent_document("t", "w", "ok", status="missing", duplicates=1), ["missing"]),
        (agent_document("t", "w", "ok", triggered=False), ["exactly_once"]),
        (agent_document("t", "w", "timeout_pre", triggered=False), ["not_triggered"]),
    ],
)
def test_outcomes(document: dict[str, Any], expected: list[str]) -> None:
    assert outcomes_of(document) == expected


def test_a_list_is_cut_into_pages_and_an_episode_knows_its_neighbours(tmp_path: Path) -> None:
    n = 2 * PAGE + 50
    # Ended in another order than that of the list, as concurrent episodes do.
    keep(tmp_path, {f"place {w}": policy_document(w) for w in reversed(range(n))})
    with Transcripts(tmp_path) as transcripts:
        pages = [transcripts.episodes(Query(offset=k * PAGE)) for k in range(4)]
        assert [len(page["rows"]) for page in pages] == [PAGE, PAGE, 50, 50]
        assert [w for page in pages[:3] for w in places(page)] == [str(w) for w in range(n)]
        assert pages[3]["offset"] == 2 * PAGE  # beyond the end: the last page
        around = transcripts.episode(f"place {PAGE}", Query())["around"]
        assert around == {
            "of": n,
            "position": PAGE + 1,
            "before": f"place {PAGE - 1}",
            "after": f"place {PAGE + 1}",
            "offset": PAGE,
        }
        newest = transcripts.episodes(Query(sort="latest"))
        assert places(newest)[:2] == ["0", "1"]
        most = transcripts.episode("place 7", Query(sort="tokens"))["around"]
        assert (most["before"], most["after"]) == ("place 8", "place 6")
        outside = transcripts.episode("place 7", Query(search="place 249"))["around"]
        assert (outside["position"], outside["of"]) == (None, 1)


def test_a_run_that_goes_on_is_followed(tmp_path: Path) -> None:
    keep(tmp_path, {"a": policy_document(0, reason="timeout"), "b": policy_document(1)})
    with Transcripts(tmp_path) as transcripts:
        assert counts(transcripts.episodes(Query()), "outcome")["missing"] == 1
        before = transcripts.state()
        assert transcripts.state() == before
        # An episode is run again, and another one ends.
        keep(tmp_path, {"a": policy_document(0), "c": policy_document(2, policy="llm:new")})
        state = transcripts.state()
        assert state["version"] > before["version"]
        assert (state["indexed"], state["total"]) == (3, 3)
        page = transcripts.episodes(Query())
        assert counts(page, "outcome")["missing"] == 0
        assert [row["place"] for row in page["rows"]] == ["a", "b", "c"]
        assert counts(transcripts.episodes(Query(search="timeout_pre")), "policy") == {
            "llm:gpt-x": 0,
            "llm:new": 0,
        }


def test_a_question_reads_a_large_run_a_slice_at_a_time(tmp_path: Path) -> None:
    keep(tmp_path, {str(w): policy_document(w) for w in range(450)})
    with Transcripts(tmp_path) as transcripts:
        seen = []
        while not seen or seen[-1]["indexed"] < seen[-1]["total"]:
            seen.append(transcripts._index.catch_up(slice_s=0.0))
    assert [state["indexed"] for state in seen] == [200, 400, 450]
    assert {state["total"] for state in seen} == {450}


# --- an episode of a policy -----------------------------------------------------------------------

READ = '{"action": "read", "rationale": "I look"}'


def choose(action: str, rationale: str = "so") -> str:
    return json.dumps({"action": action, "rationale": rationale})


def roles(episode: dict[str, Any]) -> list[str]:
    return [entry["role"] for entry in episode["talk"]]


def test_the_conversation_of_a_policy(tmp_path: Path) -> None:
    place = played(
        tmp_path, ["Let me read.", slow_down(), READ, choose("wait:600"), choose("finish")]
    )
    episode = opened(tmp_path, place)
    assert roles(episode) == [
        *("system", "view", "model", "nudge", "trouble", "model"),
        *("view", "model", "view", "model"),
    ]
    by_role = {role: [e for e in episode["talk"] if e["role"] == role] for role in roles(episode)}
    invalid, read, wait, finish = by_role["model"]
    assert invalid["answer"]["invalid"] == "it is not one JSON object"
    assert invalid["text"] == "Let me read."
    assert (read["answer"]["action"], read["answer"]["rationale"]) == ("read", "I look")
    assert (read["tokens_in"], read["tokens_out"], read["usd"]) == (100, 7, 114e-6)
    assert by_role["nudge"][0]["text"].startswith("This answer is invalid: it is not one JSON")
    assert by_role["trouble"][0]["kind"] == "http_429"
    # Each answer is tied to the view that it answers, and the view to its moment.
    assert [entry["time_s"] for entry in by_role["view"]] == [30.0, 31.0, 631.0]
    assert [e["link"] for e in (invalid, read, wait, finish)] == [0, 0, 1, 2]
    # The contract is told apart from the history, and later views from what they add.
    first, second, _ = by_role["view"]
    assert first["fixed"].startswith("Operation:")
    assert first["new"].startswith("History:\n")
    assert first["fixed"] + first["new"] == first["text"]
    assert "- clock: 31 s" in second["new"]
    assert "read-back" not in second["new"]
    assert "read-back" in second["text"]


def test_the_moments_of_a_policy_is_tied_to_its_decisions(tmp_path: Path) -> None:
    episode = opened(tmp_path, played(tmp_path, [READ, choose("retry"), choose("finish")]))
    rows = episode["timeline"]
    assert (rows[0]["time_s"], rows[0]["seen"], rows[0]["link"]) == (0.0, "sends attempt 0", 0)
    assert [r["link"] for r in rows if r["seen"].startswith("reads:")] == [0]
    assert [r["link"] for r in rows if r["seen"] == "sends attempt 1"] == [1]
    assert [r["link"] for r in rows if r["seen"] == "claims completion"] == [2]
    times = [row["time_s"] for row in rows]
    assert times == sorted(times)
    doubled = [r["happened"] for r in rows if r["again"]]
    duplicates = episode["header"]["measures"]["duplicates"]
    assert len(doubled) == duplicates
    assert episode["header"]["outcomes"][0] == ("duplicated" if duplicates else "exactly_once")


def test_a_duplicate_stands_out(tmp_path: Path) -> None:
    row = {"time_s": 9.0, "seen": "", "happened": "attempt 1 takes effect again"}
    charge = row | {"happened": "charge ch-1 by call #12, a DUPLICATE"}
    once = row | {"happened": "attempt 1 takes effect"}
    keep(tmp_path, {"a": policy_document(0) | {"timeline": [once, row]}})
    keep(tmp_path, {"b": agent_document("t", "w", "ok", timeline=[charge])})
    assert [r["again"] for r in opened(tmp_path, "a")["timeline"]] == [False, True]
    (told,) = opened(tmp_path, "b")["timeline"]
    assert (told["again"], told["link"]) == (True, 12)


def test_stated_beliefs_are_shown(tmp_path: Path) -> None:
    belief = {"absent": 0.5, "committed": 0.25, "in_flight": 0.25}
    answer = json.dumps({"action": "finish_uncertain", "rationale": "", "belief": belief})
    episode = opened(tmp_path, played(tmp_path, [answer], belief=True))
    assert episode["talk"][-1]["answer"]["belief"] == belief


def test_a_third_invalid_answer_is_said_to_end_the_episode(tmp_path: Path) -> None:
    episode = opened(tmp_path, played(tmp_path, ["a", "b", "c"]))
    assert roles(episode)[-3:] == ["nudge", "model", "note"]
    assert episode["talk"][-1]["text"] == "After this the episode ends as finish_uncertain."


def test_an_episode_without_an_answer_says_why_and_has_no_measures(tmp_path: Path) -> None:
    episode = opened(tmp_path, played(tmp_path, [READ, slow_down(), slow_down()]))
    header = episode["header"]
    assert (header["outcomes"], header["measures"]) == (["missing"], None)
    assert header["reason"] == "http_429: slow down"
    # A request that nobody answered is not among the calls; its trouble is.
    assert roles(episode) == ["system", "view", "model", "trouble", "trouble"]


# --- an episode of an agent -----------------------------------------------------------------------

CHARGE = {"customer": "cust-3693", "amount": 1.0, "description": "x"}
DONE = ("finish", {"status": "completed", "summary": "done"})


def test_the_conversation_of_an_agent(tmp_path: Path) -> None:
    acted(
        tmp_path,
        [
            said("Let me think.", reasoning_content="a charge comes first"),
            asks(("billing_charge", CHARGE), ("billing_list_charges", {}), text="Both."),
            asks(("wait", "{seconds"), ("finish", DONE[1]), ("wait", {"seconds": 5})),
        ],
    )
    episode = opened(tmp_path)
    assert roles(episode) == [
        *("system", "task", "model", "nudge"),
        *("model", "call", "call", "result", "result"),
        *("model", "call", "call", "call", "result", "result"),
    ]
    talk = episode["talk"]
    assert talk[0]["tools"][0].keys() == {"name", "description"}
    assert talk[2]["reasoning"] == "a charge comes first"
    assert talk[3]["text"].startswith("Go on with the task")
    calls = [entry for entry in talk if entry["role"] == "call"]
    assert [(c["tool"], c["done"], c.get("link")) for c in calls] == [
        ("billing_charge", True, 0),
        ("billing_list_charges", True, 1),
        ("wait", True, 2),
        ("finish", True, 3),
        ("wait", False, None),  # the episode was over
    ]
    assert json.loads(calls[0]["text"]) == CHARGE
    assert calls[2]["text"] == "{seconds"  # as it was written
    results = [entry for entry in talk if entry["role"] == "result"]
    assert [r["link"] for r in results] == [0, 1, 2, 3]
    assert [r["error"] for r in results] == [False, False, True, False]
    # No request told the model the last two; they come from the log of the episode.
    assert results[2]["text"] == "HTTP 400: arguments must be a JSON object"
    assert results[3]["text"] == '{"ok": true}'
    rows = episode["timeline"]
    assert rows[0]["seen"].startswith("#0 billing_charge")
    assert [r["link"] for r in rows if r["seen"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [r["link"] for r in rows if "by call #0" in r["happened"]] == [0]


def test_an_agent_by_the_responses_protocol(tmp_path: Path) -> None:
    def items(*calls: tuple[str, Any]) -> dict[str, Any]:
        asked = [
            {
                "type": "function_call",
                "call_id": f"c{k}",
                "name": name,
                "arguments": json.dumps(arguments),
            }
            for k, (name, arguments) in enumerate(calls)
        ]
        thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
        text = {"type": "message", "content": [{"type": "output_text", "text": "I go on."}]}
        return {"output": [thought, text, *asked], "status": "completed"}

    acted(tmp_path, [items(("wait", {"seconds": 5})), items(DONE)], protocol="responses")
    episode = opened(tmp_path)
    assert roles(episode) == [
        *("system", "task", "model", "call", "result", "model", "call", "result")
    ]
    model = episode["talk"][2]
    assert (model["text"], model["reasoning"]) == ("I go on.", "hm")
    assert episode["talk"][4]["link"] == 0
    assert episode["talk"][-1]["text"] == '{"ok": true}'


def test_calls_inside_a_wrapper_are_not_guessed(tmp_path: Path) -> None:
    # The guard calls tools of its own accord, so the model's second call need not be the second.
    acted(tmp_path, [asks(("billing_charge", CHARGE)), asks(DONE)], wrapper="guard")
    episode = opened(tmp_path)
    calls = [entry for entry in episode["talk"] if entry["role"] == "call"]
    assert [set(call) for call in calls] == [{"role", "tool", "text"}] * 2
    assert episode["talk"][-1]["role"] == "result"
    assert episode["talk"][-1]["text"] == '{"ok": true}'
    assert episode["header"]["wrapper"] == "guard"


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"choices": None},
        {"choices": ["x"]},
        {"choices": [{"message": "x"}]},
        {"choices": [{"message": {"content": 3, "tool_calls": ["x", {"function": 1}]}}]},
        {"choices": [{"message": {"content": [{"type": "text", "text": "y"}, {"image": "z"}]}}]},
        {"choices": [{"logprobs": {"content": [{"top_logprobs": [{"logprob": "x"}]}]}}]},
        {"output": ["x", {"type": "message", "content": None}, {"type": "function_call"}]},
        {"output": [{"type": "reasoning", "summary": "s"}]},
    ],
)
@pytest.mark.parametrize("document", [policy_document(0), agent_document("t", "w", "ok")])
def test_whatever_a_provider_sends_is_shown(
    response: dict[str, Any], document: dict[str, Any]
) -> None:
    call = {
        "step": 0,
        "body": {"model": "m", "messages": [{"role": "user", "content": None}, "x"]},
        "response": response,
        "usd": 0.0,
        "seconds": 0.0,
        "at_utc": "",
    }
    talk = talk_of(document, [call], [])
    assert [entry["role"] for entry in talk].count("model") == 1
    json.dumps(talk)


def test_scores_come_likeliest_first() -> None:
    response = {"choices": [{"option_logprobs": {"read": -2.0, "finish": -0.5, "retry": None}}]}
    call = {"step": 0, "body": {}, "response": response, "usd": 0, "seconds": 0, "at_utc": ""}
    assert talk_of(policy_document(0), [call], [])[-1]["scores"] == [
        ("finish", -0.5),
        ("read", -2.0),
    ]


# --- a contract case ------------------------------------------------------------------------------

OPERATION = {
    "operation_id": "op-iv-1290",
    "target": {
        "service": "stock",
        "tenant": "orchard-kitchens",
        "environment": "production",
        "version": "v4",
    },
    "payload": {"item": "hinge-35mm", "quantity": 240, "bin": "A-07"},
}
"""That of the case running-deduction: accepted work that is under way."""

READ_IT = {name: OPERATION[name] for name in ("operation_id", "target")}


def report(status: str, reference: str | None = None) -> str:
    return json.dumps(
        {
            "status": status,
            "operation_id": "op-iv-1290",
            "reference": reference,
            "summary": "so it is",
        }
    )


def outline(episode: dict[str, Any]) -> list[tuple[str, str, bool, int | None]]:
    """The rows of what the services did."""
    return [
        (row["label"], row["seen"] or row["happened"], row["again"], row["link"])
        for row in episode["timeline"]
    ]


def test_a_case_is_shown_with_its_observations_and_its_ledger(tmp_path: Path) -> None:
    place = desk(
        tmp_path,
        "running-deduction",
        [
            asks(("create_operation", OPERATION), text="I send it"),
            asks(("destroy", "{"), ("read_operation", {"operation_id": 3})),
            "It is done. " + report("confirmed", "NEW-765999"),
        ],
    )
    episode = opened(tmp_path, place)
    assert roles(episode) == [
        *("system", "task", "model", "call", "result"),
        *("model", "call", "call", "result", "result", "model"),
    ]
    calls = [entry for entry in episode["talk"] if entry["role"] == "call"]
    assert [(c["tool"], c["link"], c["error"], bool(c["violation"])) for c in calls] == [
        ("create_operation", 0, False, False),
        ("destroy", 1, True, True),
        ("read_operation", 2, True, True),
    ]
    header = episode["header"]
    assert (header["title"], header["group"]) == ("running-deduction", "running-operation")
    assert header["outcomes"] == [
        *("duplicated", "business_effects", "final_delivery"),
        *("authorisation_binding", "recovery"),
    ]
    checks = {check["name"]: check for check in header["checks"]}
    assert [check["holds"] for check in checks.values()] == [False] * 4
    assert checks["final_delivery"]["faults"] == ["it is not one JSON object"]
    assert header["measures"] == {"duplicates": 1, "strays": 0, "confirmed": True}
    assert header["did"] == "create → destroy → read → confirmed"
    where = "is executed at stock/orchard-kitchens/production/v4, reference"
    assert outline(episode) == [
        ("request 0", "#0 create_operation: state committed, reference NEW-765999", False, 0),
        ("request 0", f"op-iv-1290 {where} NEW-765999", False, 0),
        ("request 1", "#1 destroy: unknown tool", False, 1),
        ("request 1", "this was not permitted: there is no such tool", True, 1),
        (
            "request 2",
            "#2 read_operation: invalid arguments, detail arguments must contain ['target'] "
            "properties",
            False,
            2,
        ),
        (
            "request 2",
            "this was not permitted: it reads an operation that the task is not about",
            True,
            2,
        ),
        # The work that was under way is completed all the same.
        ("after the end", f"op-iv-1290 {where} PST-30117, a DUPLICATE", True, None),
    ]


def test_a_case_that_is_brought_to_its_end_is_strict(tmp_path: Path) -> None:
    again = asks(("recover_operation", OPERATION))
    place = desk(tmp_path, "running-deduction", [again, again, report("confirmed", "PST-30117")])
    episode = opened(tmp_path, place)
    assert episode["header"]["outcomes"] == ["strict"]
    rows = outline(episode)
    assert [row[0] for row in rows] == ["request 0", "request 1", "request 1"]
    assert rows[2][1:] == (
        "op-iv-1290 is executed at stock/orchard-kitchens/production/v4, reference PST-30117",
        False,
        1,
    )


def test_a_case_by_the_responses_protocol(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "read_operation"}
    read = {"output": [call | {"arguments": json.dumps(READ_IT)}], "status": "completed"}
    text = {"type": "message", "content": [{"type": "output_text", "text": report("unknown")}]}
    place = desk(tmp_path, "running-deduction", [read, {"output": [text]}], protocol="responses")
    episode = opened(tmp_path, place)
    assert roles(episode) == ["system", "task", "model", "call", "result", "model"]
    assert episode["talk"][3]["link"] == 0
    assert json.loads(episode["talk"][4]["text"])["state"] == "running"


def test_a_case_whose_turns_are_used_up_says_so(tmp_path: Path) -> None:
    place = desk(tmp_path, "running-deduction", [asks(("read_operation", READ_IT))] * 6)
    episode = opened(tmp_path, place)
    # The last result reached nobody; it comes from the log of the episode.
    assert roles(episode)[-3:] == ["call", "result", "note"]
    assert "no final answer" in episode["talk"][-1]["text"]
    assert episode["header"]["did"].endswith("read → no final answer")


def test_a_case_without_an_answer_of_the_provider_is_missing(tmp_path: Path) -> None:
    place = desk(tmp_path, "running-deduction", [asks(("read_operation", READ_IT)), slow_down()])
    episode = opened(tmp_path, place)
    header = episode["header"]
    assert (header["outcomes"], header["checks"]) == (["missing"], None)
    assert header["reason"] == "http_429: slow down"
    assert roles(episode)[-2:] == ["result", "trouble"]


def test_a_scripted_case_shows_what_it_did(tmp_path: Path) -> None:
    document = run_scripted(case_policy("careful"), [case_named("running-deduction")])[0]
    keep(tmp_path, {"a": document})
    episode = opened(tmp_path, "a")
    assert roles(episode) == [
        *("note", "call", "result", "call", "result", "call", "result", "model")
    ]
    assert [entry.get("link") for entry in episode["talk"][1:-1]] == [0, 0, 1, 1, 2, 2]
    assert json.loads(episode["talk"][-1]["text"])["status"] == "confirmed"


# --- a decision of the probe ----------------------------------------------------------------------


def worlds(episode: dict[str, Any]) -> dict[str, list[str]]:
    """How each of the hidden worlds ended."""
    return {r["heading"]: r["outcomes"] for r in episode["timeline"] if "heading" in r}


LOST, LATE, DONE_ALREADY = (
    "Where the request was lost",
    "Where the request executes late",
    "Where it was executed, and the read-back does not show it yet",
)


def test_a_decision_is_replayed_in_its_three_worlds(tmp_path: Path) -> None:
    episode = opened(tmp_path, probed(tmp_path, choose("retry", "it was lost")))
    assert roles(episode) == ["system", "task", "model"]
    assert (
        episode["talk"][2]["answer"] | {"action": "retry", "rationale": "it was lost"}
        == (episode["talk"][2]["answer"])
    )
    assert worlds(episode) == {
        LOST: ["exactly_once"],
        LATE: ["duplicated", "overclaim"],
        DONE_ALREADY: ["duplicated", "overclaim"],
    }
    assert sum(row["again"] for row in episode["timeline"]) == 2
    header = episode["header"]
    assert header["outcomes"] == ["duplicated", "overclaim", "not_permitted"]
    assert (header["duplicates"], header["elapsed_s"]) == (2, None)
    assert (header["title"], header["group"]) == ("issue", "label absent, key none")
    assert header["facts"]["action"] == "retry"
    assert "world" not in header["facts"]
    # All that happened before the decision is not tied to it.
    first = episode["timeline"][1]
    assert (first["time_s"], first["link"]) == (0.0, None)
    assert {r["link"] for r in episode["timeline"] if r["seen"] == "sends attempt 1"} == {0}


def test_a_supplied_key_is_shown_and_protects_where_it_is_the_same(tmp_path: Path) -> None:
    answer = json.dumps(
        {"action": "retry_with_key", "rationale": "", "idempotency_key": "issue-20d9e6a4"}
    )
    episode = opened(tmp_path, probed(tmp_path, answer, key="supplied", original="sent"))
    assert episode["talk"][2]["answer"]["key"] == "issue-20d9e6a4"
    assert episode["header"]["outcomes"] == ["exactly_once"]
    assert list(worlds(episode).values()) == [["exactly_once"]] * 3
    other = answer.replace("20d9e6a4", "0")
    episode = opened(tmp_path / "o", probed(tmp_path / "o", other, key="supplied", original="sent"))
    assert "not_permitted" in episode["header"]["outcomes"]


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        ("```json\n{}\n```", "unreadable", "it is in a code fence"),
        (slow_down(), "missing", "http_429: slow down"),
    ],
)
def test_without_a_decision_there_is_nothing_to_replay(
    tmp_path: Path, answer: Any, outcome: str, reason: str
) -> None:
    episode = opened(tmp_path, probed(tmp_path, answer))
    header = episode["header"]
    assert (header["outcomes"], header["reason"]) == ([outcome], reason)
    assert (header["measures"], episode["timeline"]) == (None, [])


def test_a_decision_of_another_version_is_not_replayed(tmp_path: Path) -> None:
    place = probed(tmp_path, choose("stop"))
    with open_store(tmp_path) as store:
        document = store.document(place)
        assert document is not None
        store.finish(place, document | {"cell": document["cell"] | {"label": "bold"}})
    episode = opened(tmp_path, place)
    assert list(worlds(episode)) == ["The decision cannot be replayed: another version recorded it"]


def test_filters_are_those_of_the_episodes_that_there_are(tmp_path: Path, mixed: Path) -> None:
    page = listed(mixed)
    assert counts(page, "kind") == {"agent": 3, "policy": 5}
    assert [counts(page, name) for name in ("family", "design", "decision")] == [{}, {}, {}]
    desk(tmp_path / "c", "running-deduction", [report("unknown")])
    page = listed(tmp_path / "c")
    assert counts(page, "outcome") == {
        "strict": 0,
        "duplicated": 0,
        "business_effects": 1,
        "final_delivery": 0,
        "authorisation_binding": 0,
        "recovery": 1,
        "missing": 0,
    }
    assert counts(page, "family") == {"running-operation": 1}
    assert counts(page, "fault") == {}
    probed(tmp_path / "p", choose("wait"), label="weak")
    page = listed(tmp_path / "p", chosen={"task": ("issue", "release")})
    assert page["totals"]["episodes"] == 2
    assert counts(page, "task") == {"ci-run": 1, "issue": 1, "release": 1, "review-comment": 1}
    assert (counts(page, "label"), counts(page, "decision")) == ({"weak": 2}, {"wait": 2})
    assert counts(page, "outcome")["unresolved"] == 2


def test_the_page_has_words_for_every_outcome_filter_and_role() -> None:
    script = files("evaluation.viewer").joinpath("page.js").read_text(encoding="utf-8")

    def keys(name: str) -> set[str]:
        (body,) = re.findall(rf"const {name} = \{{(.*?)\n\}};", script, re.DOTALL)
        return set(re.findall(r"(\w+):", re.sub(r'"[^"]*"', "", body)))

    assert keys("BADGES") == set(OUTCOMES)
    assert keys("FACETS") == set(FACETS)
    assert keys("TRUTHS") == set(OF_KIND)
    assert set().union(*OF_KIND.values()) == set(OUTCOMES)


def test_a_run_of_which_no_episode_has_ended_is_an_empty_list(tmp_path: Path) -> None:
    page = listed(keep(tmp_path, {}))
    assert (page["rows"], page["totals"]["episodes"]) == ([], 0)
    assert counts(page, "outcome") == counts(page, "policy") == {}
    assert counts(page, "signs") == {"invalid": 0, "trouble": 0}


def test_texts_without_end_are_cut(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    case = desk(
        tmp_path,
        "running-deduction",
        [asks(*[(f"{long}{k}", json.dumps({"a": long})) for k in range(3)], text=long), long],
    )
    probe = probed(tmp_path, choose("stop", long))
    policy = played(tmp_path, [choose("finish", long)])
    acted(tmp_path, [asks(("finish", {"status": "completed", "summary": long}))])
    page = listed(tmp_path)
    assert len(json.dumps(page)) < 20_000
    for row in page["rows"]:
        episode = opened(tmp_path, row["place"])
        assert len(json.dumps(episode)) < 1_500_000
    talk = opened(tmp_path, policy)["talk"]
    assert talk[-1]["answer"]["rationale"].endswith("x… (3,000,000 characters in all)")
    assert len(opened(tmp_path, probe)["talk"][-1]["answer"]["rationale"]) < 101_000
    call = next(e for e in opened(tmp_path, case)["talk"] if e["role"] == "call")
    assert len(call["tool"]) < 400


# --- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/", 200, "text/html; charset=utf-8"),
        ("/page.js", 200, "text/javascript; charset=utf-8"),
        ("/page.css", 200, "text/css; charset=utf-8"),
        ("/icon.svg", 200, "image/svg+xml"),
        ("/api/state", 200, "application/json"),
        ("/api/episodes", 200, "application/json"),
        ("/api/episodes?sort=bogus", 400, "application/json"),
        ("/api/episodes?offset=-1", 400, "application/json"),
        ("/api/episode?place=nowhere", 404, "application/json"),
        ("/api/call?place=place%200&number=0", 404, "application/json"),
        ("/data.py", 404, "application/json"),
        ("/../viewer/data.py", 404, "application/json"),
        ("/%2e%2e/llm.sqlite", 404, "application/json"),
        ("//evil.example/page.js", 404, "application/json"),
    ],
)
def test_every_answer_carries_the_headers(
    mixed: Path, serve: Callable[..., Viewer], path: str, status: int, kind: str
) -> None:
    response = get(serve(mixed), path)
    assert (response.status, response.headers["Content-Type"]) == (status, kind)
    assert {name: response.headers[name] for name in HEADERS} == HEADERS
    if status >= 400:
        assert set(json.loads(response.read())) == {"error"}


def test_the_policy_lets_no_other_script_run() -> None:
    rules = dict(
        rule.strip().split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split(";")
    )
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert HEADERS["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:{port}", True),
        ("localhost:{port}", True),
        ("LOCALHOST", True),
        ("[::1]:9000", True),  # forwarded from another port
        ("evil.example", False),
        ("evil.example:{port}", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:{port}", False),
        ("192.168.0.7", False),
        ("", False),
        ("[", False),
    ],
)
def test_names_that_anyone_can_point_here_are_refused(
    mixed: Path, serve: Callable[..., Viewer], host: str, answered: bool
) -> None:
    viewer = serve(mixed)
    for path in ("/", "/api/episodes"):
        response = get(viewer, path, Host=host.format(port=viewer.server_address[1]))
        assert response.status == (200 if answered else 421)
        assert answered or b"place" not in response.read()


def test_a_wider_address_answers_to_its_numbers_only(
    mixed: Path, serve: Callable[..., Viewer]
) -> None:
    viewer = serve(mixed, host="0.0.0.0")
    assert not viewer.local
    assert viewer.answers_to("192.168.0.7:80")
    assert not viewer.answers_to("evil.example")


def test_only_questions_are_answered(mixed: Path, serve: Callable[..., Viewer]) -> None:
    viewer = serve(mixed)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(viewer, "/api/episodes", method).status == 501
    head = get(viewer, "/api/state", "HEAD")
    assert (head.status, head.read()) == (200, b"")


def test_filters_come_from_the_address(mixed: Path, serve: Callable[..., Viewer]) -> None:
    viewer = serve(mixed)
    page = found(viewer, "/api/episodes", outcome=["duplicated", "missing"], q="", sort="latest")
    assert places(page) == ["3", "1"]
    assert page["run"]["name"] == "run"
    episode = found(viewer, "/api/episode", place="place 3", policy="llm:other")
    assert (episode["around"]["position"], episode["around"]["of"]) == (1, 2)


def test_a_call_can_be_seen_as_it_went(tmp_path: Path, serve: Callable[..., Viewer]) -> None:
    place = played(tmp_path, [READ, choose("finish")])
    call = found(serve(tmp_path), "/api/call", place=place, number=1)
    assert call["path"] == "/chat/completions"
    assert call["body"]["model"] == "toy"
    assert call["response"] == said(choose("finish"))


def test_numbers_that_json_lacks_and_halves_of_characters_arrive(
    tmp_path: Path, serve: Callable[..., Viewer]
) -> None:
    keep(tmp_path, {"a": policy_document(0, rationale="half \ud83d of it")})
    with open_store(tmp_path) as store:
        response = said("x") | {"odd": [float("nan"), float("-inf")]}
        store.add("a", 0, "/chat/completions", {"messages": []}, response, (0, 0), 0.0, 0.0)
    viewer = serve(tmp_path)
    assert found(viewer, "/api/call", place="a", number=0)["response"]["odd"] == [
        "NaN",
        "-Infinity",
    ]
    assert found(viewer, "/api/episodes", q="half")["totals"]["episodes"] == 1
    assert found(viewer, "/api/episode", place="a")["talk"][0]["answer"]["rationale"] == (
        "half \ud83d of it"
    )


# --- what a model wrote stays text ----------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, list[str]]:
    """Runs whose models write markup wherever they can, and the places in them."""
    folder = tmp_path / "hostile"
    policy = played(folder, [CANARY, choose("read", CANARY), choose("finish", CANARY)])
    acted(
        folder,
        [
            said(CANARY, reasoning_content=CANARY),
            asks((CANARY, {CANARY: CANARY}), ("wait", CANARY), text=CANARY),
            asks(("finish", {"status": "completed", "summary": CANARY})),
        ],
    )
    case = desk(
        folder,
        "running-deduction",
        [asks((CANARY, {CANARY: CANARY}), text=CANARY), asks(("read_operation", CANARY)), CANARY],
    )
    probe = probed(folder, choose("stop", CANARY))
    with Transcripts(folder) as transcripts:
        found = [row["place"] for row in transcripts.episodes(Query())["rows"]]
    assert {policy, case, probe} < set(found)
    return folder, found


def test_markup_travels_as_json_alone(
    hostile: tuple[Path, list[str]], serve: Callable[..., Viewer]
) -> None:
    folder, found_places = hostile
    viewer = serve(folder)
    for place in found_places:
        response = get(viewer, f"/api/episode?{urlencode({'place': place})}")
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert CANARY in json.dumps(json.loads(response.read())).replace('\\"', '"')
    for path in ("/", "/page.js", "/page.css"):
        assert b"owned" not in get(viewer, path).read()


def test_the_page_makes_text_of_everything() -> None:
    script = files("evaluation.viewer").joinpath("page.js").read_text(encoding="utf-8")
    for way in (
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "setHTML", "document.write"),
        *("DOMParser", "createContextualFragment", "srcdoc", "eval(", "Function(", "javascript:"),
        *("setTimeout(`", 'setTimeout("', "import("),
    ):
        assert way not in script
    page = files("evaluation.viewer").joinpath("page.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>", page) == ['<script src="/page.js" defer>']
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    for name in ("page.html", "page.css", "page.js"):
        text = files("evaluation.viewer").joinpath(name).read_text(encoding="utf-8")
        assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]", text)
    # Nodes come from one function, which sets no attribute that a browser runs or fetches.
    assert script.count("createElement(") == 1
    assert script.count("setAttribute(name") == 1
    (allowed,) = re.findall(r"ATTRIBUTES = new Set\(\[(.*?)\]\)", script, re.DOTALL)
    names = set(re.findall(r'"([^"]+)"', allowed))
    assert "href" in names
    assert not {n for n in names if n.startswith("on")} | names & {
        *("src", "style", "srcset", "action", "formaction", "data", "id", "name"),
    }
    assert '(name === "href" && !value.startsWith("#"))' in script


def test_without_scripts_the_page_says_so() -> None:
    page = files("evaluation.viewer").joinpath("page.html").read_text(encoding="utf-8")
    assert "needs JavaScript" in re.findall(r"<noscript>(.*?)</noscript>", page)[0]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_shows_markup_as_text(
    hostile: tuple[Path, list[str]], serve: Callable[..., Viewer], tmp_path: Path
) -> None:
    folder, found_places = hostile
    viewer = serve(folder)
    pages = {
        place: _dom(f"{viewer.url}/#{quote(place, safe='')}", tmp_path) for place in found_places
    }
    shown = CANARY.replace("<", "&lt;").replace(">", "&gt;")
    for place, dom in pages.items():
        assert shown in dom, place
        assert "owned</title>" not in dom
        assert re.findall(r"<script[^>]*>", dom) == ['<script src="/page.js" defer="">']
        assert "onerror=" not in re.sub(r">[^<]*<", "><", dom)
    listing = _dom(viewer.url, tmp_path)
    for place in found_places:
        assert f'data-place="{place}"' in listing


def _dom(url: str, tmp_path: Path) -> str:
    """The document as it stands once the page's script has run."""
    assert CHROMIUM is not None
    return subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            f"--user-data-dir={tmp_path / 'browser'}",
            "--virtual-time-budget=4000",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


# --- the command ----------------------------------------------------------------------------------


def test_a_folder_without_transcripts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["view", str(tmp_path), "--no-browser"]) == 2
    line = capsys.readouterr().err
    assert "holds no transcripts" in line
    assert "llm:MODEL" in line
    assert main(["view", str(tmp_path / "none"), "--no-browser"]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "llm.sqlite").write_text("no database at all, though it has the name of one")
    assert main(["view", str(tmp_path), "--no-browser"]) == 2
    assert "llm.sqlite" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(mixed: Path, serve: Callable[..., Viewer]) -> None:
    port = serve(mixed).server_address[1]
    with Transcripts(mixed) as transcripts, pytest.raises(UserError, match=f"127.0.0.1:{port}"):
        Viewer(transcripts, port=port)


def test_the_command_serves_until_it_is_interrupted(mixed: Path, repo_root: Path) -> None:
    command = [sys.executable, "-m", "exactlyonce_env", "view", str(mixed), "--no-browser"]
    process = subprocess.Popen(
        [*command, "--json", "-"], cwd=repo_root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["episodes"] == 8
        host, port = told["url"].removeprefix("http://").split(":")
        assert host == "127.0.0.1"
        connection = HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/api/state")
        assert json.loads(connection.getresponse().read())["total"] == 8
        # The connection is still open; it does not hold up the end.
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, b"", b"")
