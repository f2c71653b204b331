"""Models in the contract cases: budgets, malformed answers, missing episodes, runs that go on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluation.cases.data import all_cases, case_named
from evaluation.cases.grading import OBSERVATIONS
from evaluation.cases.policies import POLICIES, Ask, Play, Policy, careful
from evaluation.cases.run import CaseModel, case_policy, place_of, play_policy, run_model
from evaluation.cases.summary import case_row
from evaluation.cases.world import MAX_ROUNDS
from evaluation.llm.calling import Limits
from evaluation.llm.models import ModelOptions
from evaluation.llm.store import open_store
from evaluation.viewer.data import Transcripts
from evaluation.viewer.index import Query
from exactlyonce_env.cli.commands import COMMANDS, LazyCommand
from exactlyonce_env.errors import UserError
from exactlyonce_env.sandbox.carrying_out import first_arguments
from exactlyonce_env.sandbox.session import Session
from policies.llm.asking import Settings
from policies.llm.endpoint import Patience, ProviderError
from policies.wrappers import WRAPPERS, wrap

from .llm_toys import Script, Toy, chat, responses

CASES = all_cases()
QUICK = Patience(retries=1, first_s=0.0, longest_s=0.0)

MALFORMED = ("", "```json\n{}\n```", "I am done.", '{"status": "unkn', "null", "{" * 9000)


def play_of(body: dict[str, Any]) -> Play:
    """What the careful policy does in the case that a request is about."""
    history = body.get("messages") or body["input"]
    case = next(c for c in CASES if c.operation.id in history[1]["content"].split("Operation (")[1])
    return careful(case.operation)


def follow(say: Any) -> Script:
    """A model that acts as the careful policy."""

    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        play = play_of(body)
        history = body.get("messages") or body["input"]
        replies = [m.get("content") or m.get("output") for m in history if is_result(m)]
        try:
            ask = next(play)
            for reply in replies:
                ask = play.send(json.loads(reply))
        except StopIteration as over:
            return dict(say(over.value))
        return dict(say(None, [(ask.tool, json.dumps(ask.arguments))]))

    return script


def is_result(message: dict[str, Any]) -> bool:
    return message.get("role") == "tool" or message.get("type") == "function_call_output"


CAREFUL = follow(chat)


def run(
    script: Script,
    out: Path | None = None,
    names: tuple[str, ...] = (),
    protocol: str = "chat",
    **options: Any,
) -> tuple[list[dict[str, Any]], Toy]:
    toy = Toy(script)
    chosen = [case_named(name) for name in names] or CASES
    given: dict[str, Any] = {"concurrency": 5, "patience": QUICK} | options
    model = CaseModel("toy", protocol=protocol, endpoint=toy)
    documents, _ = run_model(model, chosen, out, ModelOptions(**given))
    return documents, toy


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_a_careful_model_passes_all_cases(protocol: str) -> None:
    say = chat if protocol == "chat" else responses
    documents, toy = run(follow(say), protocol=protocol)
    row = case_row("toy", documents)
    assert (row["n"], row["strict"]) == (24, 24)
    assert toy.asked == row["n_calls"]
    # The same calls as the policy that it follows.
    for case, document in zip(CASES, documents, strict=True):
        world, answer = play_policy(case, POLICIES["careful"])
        assert document["calls"] == [one.to_dict() for one in world.log]
        assert document["answer"] == answer


def test_six_rounds_and_no_more() -> None:
    read = ("read_operation", "{}")
    documents, toy = run(lambda path, body: chat(None, [read]), names=("lost-ticket",))
    (document,) = documents
    assert toy.asked == MAX_ROUNDS == 6
    assert (document["status"], document["answer"], len(document["calls"])) == ("returned", None, 6)
    assert document["observed"]["faults"]["final_delivery"] == ["there is no final answer"]


def test_twelve_requests_and_no_more() -> None:
    case = case_named("new-ticket")
    create = json.dumps(
        {
            "operation_id": case.operation.id,
            "target": dict(case.operation.target),
            "payload": dict(case.operation.payload),
        }
    )

    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        said = sum(m["role"] == "assistant" for m in body["messages"])
        return chat("done") if said else chat(None, [("create_operation", create)] * 40)

    (document,), toy = run(script, names=(case.id,))
    assert toy.asked == 2
    assert sum(entry["cause"] == "client" for entry in document["ledger"]) == 12
    errors = Counter(call["error"] for call in document["calls"])
    assert errors == {"": 12, "budget_exhausted": 28}
    # Every call has its answer, so that the protocol holds.
    assert sum(m["role"] == "tool" for m in toy.bodies[1]["messages"]) == 40


def test_a_script_that_never_ends_is_stopped() -> None:
    def endless(operation: Any) -> Play:
        while True:
            yield Ask("read_operation", {})

    world, answer = play_policy(CASES[0], Policy("endless", "", endless))
    assert (len(world.log), answer) == (MAX_ROUNDS, None)


# --- a malformed answer is never evidence that a write failed ------------------------------------


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:8])
def test_a_malformed_answer_leads_to_no_further_request(text: str) -> None:
    """The episode is over: the model is not asked again, and nothing is sent on its behalf."""

    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = CAREFUL(path, body)
        message = found["choices"][0]["message"]
        return found if message.get("tool_calls") else chat(text)

    whole, asked = run(CAREFUL)
    documents, toy = run(script)
    assert toy.asked == asked.asked
    for document, usual in zip(documents, whole, strict=True):
        assert document["calls"] == usual["calls"]
        assert document["ledger"] == usual["ledger"]
        observed = document["observed"]
        assert [name for name in OBSERVATIONS if not observed[name]] == ["final_delivery"]
        assert document["status"] == "returned"


@pytest.mark.parametrize("name", ["wait:0" if name == "wait" else name for name in WRAPPERS])
@pytest.mark.parametrize("fault", ["timeout_pre", "timeout_post", "http500_post"])
def test_no_wrapper_dispatches_after_a_malformed_answer(name: str, fault: str) -> None:
    session = Session("invoice_batch", fault=fault)
    caller = wrap(session, name)
    for step in session.task.steps:
        caller.call(step.tool, first_arguments(session, step, "plain"))
    made = len(session.calls)
    assert made
    for text in MALFORMED:
        caller.say(text)
    assert session.ended
    assert len(session.calls) == made
    # The same where the malformed answer is a call of the tool that ends the task.
    session = Session("invoice_batch", fault=fault)
    caller = wrap(session, name)
    for step in session.task.steps:
        caller.call(step.tool, first_arguments(session, step, "plain"))
    made = len(session.calls)
    for text in MALFORMED:
        caller.call("finish", text)
    assert {call.tool for call in session.calls[made:]} == {"finish"}


# --- missing, budgets, runs that go on -----------------------------------------------------------


def test_missing_episodes_are_never_scored_and_asked_again(tmp_path: Path) -> None:
    def failing(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "op-ap-" in body["messages"][1]["content"]:
            raise ProviderError("http_503", "overloaded", retry=True)
        if "op-iv-1290" in body["messages"][1]["content"]:
            raise ProviderError("http_400", "too long", retry=False)
        return CAREFUL(path, body)

    documents, _ = run(failing, tmp_path)
    row = case_row("toy", documents)
    assert (row["planned"], row["n"], row["missing"], row["strict"]) == (24, 17, 7, 17)
    assert row["missing_reasons"] == {"http_503: overloaded": 6, "http_400: too long": 1}
    assert all(d["observed"] is None for d in documents if d["status"] == "missing")
    # What would fail again stays missing; the rest is asked anew.
    again, toy = run(CAREFUL, tmp_path)
    assert case_row("toy", again)["n"] == 23
    contents = [body["messages"][1]["content"] for body in toy.bodies]
    assert all("op-ap-" in content for content in contents)
    idle, nothing = run(CAREFUL, tmp_path)
    assert nothing.asked == 0
    assert idle == again


def test_a_run_that_was_cut_off_asks_nothing_twice(tmp_path: Path) -> None:
    class CutError(Exception):
        pass

    whole, all_asked = run(CAREFUL)
    toy = Toy(lambda path, body: CAREFUL(path, body))

    def cut(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if toy.asked > 20:
            raise CutError
        return CAREFUL(path, body)

    toy.script = cut
    options = ModelOptions(concurrency=1, patience=QUICK)
    with pytest.raises(CutError):
        run_model(CaseModel("toy", endpoint=toy), CASES, tmp_path, options)
    documents, rest = run(CAREFUL, tmp_path)
    assert documents == whole
    # An episode that was under way goes on with the answers that it has got.
    assert rest.asked == all_asked.asked - 20


def test_a_budget_ends_the_run_and_the_rest_is_missing(tmp_path: Path) -> None:
    documents, toy = run(CAREFUL, tmp_path, limits=Limits(tokens=6000), concurrency=1)
    row = case_row("toy", documents)
    assert toy.asked > 0
    assert 0 < row["n"] < 24
    assert set(row["missing_reasons"]) == {"not run: max_tokens"}
    assert case_row("toy", run(CAREFUL, tmp_path)[0])["strict"] == 24


def test_repeats_are_episodes_of_their_own(tmp_path: Path) -> None:
    documents, toy = run(CAREFUL, tmp_path, names=("lost-ticket", "new-ticket"), repeats=3)
    assert [(d["case"], d["repeat"]) for d in documents] == [
        (name, k) for name in ("lost-ticket", "new-ticket") for k in range(3)
    ]
    assert toy.asked == 3 * (3 + 3)
    assert case_row("toy", documents)["warnings"]
    with open_store(tmp_path, readonly=True) as store:
        place = place_of("llm:toy", case_named("lost-ticket"), 2)
        assert len(store.calls(place)) == 3
        assert store.document(place) == documents[2]


def test_a_folder_keeps_to_one_way_of_asking(tmp_path: Path) -> None:
    run(CAREFUL, tmp_path, names=("lost-ticket",))
    hot = CaseModel("toy", Settings(temperature=1.0), endpoint=Toy(CAREFUL))
    with pytest.raises(UserError, match="asked otherwise"):
        run_model(hot, CASES, tmp_path, ModelOptions())


def test_hostile_turns_end_in_an_episode(tmp_path: Path) -> None:
    """Calls that are none, names that are none, arguments that are no JSON."""
    turns: list[dict[str, Any]] = [
        chat(None, [("create_operation", "{"), ("\ud800", '{"a": NaN}'), ("", "")]),
        chat(None, [("read_operation", '{"a":' * 5000), ("recover_operation", "[" * 9000)]),
        {"choices": [{"message": {"tool_calls": [None, {"function": 7}], "content": ["x"]}}]},
    ]

    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return turns[sum(m["role"] == "assistant" for m in body["messages"])]

    (document,), _ = run(script, tmp_path, names=("lost-ticket",))
    assert (document["status"], document["answer"]) == ("returned", "")
    assert [entry["cause"] for entry in document["ledger"]] == ["before"]
    errors = [call["error"] for call in document["calls"]]
    assert errors.count("invalid_arguments") == 3
    assert errors.count("unknown_tool") == 2
    with open_store(tmp_path, readonly=True) as store:
        assert store.document(place_of("llm:toy", case_named("lost-ticket"), 0)) == document


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("llm:", "needs the name of a model"),
        ("llm:x+aware", "the cases have their own prompt; write llm:x"),
        ("nobody", "unknown policy 'nobody'"),
    ],
)
def test_policies_that_are_refused(spec: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong.replace("+", r"\+")):
        case_policy(spec)
    with pytest.raises(UserError, match="unknown --protocol 'smoke'"):
        case_policy("llm:x", protocol="smoke")


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "cases", LazyCommand("cases", "cases", "Play the cases."))


def test_the_command_prints_cases_calibration_and_rows(printed: Any) -> None:
    found = json.loads(printed("cases", "--policies", "careful,fence-answer", "--json", "-"))
    assert len(found["cases"]) == 24
    assert {"id", "family", "requires_progress", "domain"} <= set(found["cases"][0])
    assert sum(case["requires_progress"] for case in found["cases"]) == 17
    for row in found["calibration"]:
        assert {"case", "trajectory", "expected", "observed"} <= set(row)
        assert row["expected"] == row["observed"]
    strict, fenced = found["rows"]
    assert (strict["policy"], strict["strict"], strict["n"]) == ("careful", 24, 24)
    assert (fenced["strict"], fenced["format_set_aside"], fenced["final_delivery"]) == (0, 24, 0)
    table = printed("cases")
    assert all(name in table for name in POLICIES)
    assert "trajectories come out as expected" in table


def test_the_command_keeps_a_run_and_the_viewer_opens_it(printed: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for _ in range(2):
        printed("cases", "--policies", "careful,always-defer", "--out", str(out))
    summary = json.loads((out / "summary.json").read_text())
    assert [row["strict"] for row in summary["rows"]] == [24, 5]
    with Transcripts(out) as transcripts:
        found = transcripts.episodes(Query())
        assert found["totals"]["episodes"] == 48
        transcripts.episode(found["rows"][0]["place"], Query())


def test_the_command_grades_a_trajectory(printed: Any, tmp_path: Path) -> None:
    world, answer = play_policy(case_named("other-tenant"), POLICIES["careful"])
    calls = [{"tool": one.tool, "arguments": one.arguments} for one in world.log]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"calls": calls, "answer": answer}))
    args = ("cases", "--answer", str(path), "--case", "other-tenant")
    found = json.loads(printed(*args, "--json", "-"))
    assert found["strict"] is found["format_set_aside"] is True
    assert [call["error"] for call in found["calls"]] == ["target_mismatch", ""]
    assert "strict: pass" in printed(*args)
    path.write_text(json.dumps({"calls": calls, "answer": f"```\n{answer}\n```"}))
    assert "strict: fail; with the format set aside: pass" in printed(*args)
    # Words that a terminal could not show are escaped.
    odd = [{"tool": "\ud800\x1b[2J", "arguments": {"\ud800": 1}}]
    path.write_text(json.dumps({"calls": odd, "answer": '{"status": "\\ud800"}'}))
    assert "\x1b" not in printed(*args)


def test_the_command_shows_a_case(printed: Any) -> None:
    found = json.loads(printed("cases", "--case", "lost-ticket", "--json", "-"))
    assert len(found["tools"]) == 5
    assert "linden-school" in found["user"]
    assert "linden-school" in printed("cases", "--case", "lost-ticket")
    one = json.loads(
        printed("cases", "--case", "lost-ticket", "--policies", "careful", "--json", "-")
    )
    assert one["rows"][0]["n"] == len(one["cases"]) == 1


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (("--policies", "carefull"), "did you mean careful"),
        (("--policies", "careful,careful"), "twice"),
        (("--policies", "careful", "--repeats", "2"), "--repeats is an option of language models"),
        (("--answer", "x.json"), "--answer needs --case ID"),
        (("--answer", "x.json", "--case", "lost-ticket"), "x.json cannot be read"),
        (("--answer", "x.json", "--policies", "careful"), "--policies has no meaning with"),
        (("--case", "lost-ticket", "--out", "run"), "--out has no meaning with --case alone"),
        (("--case", "lost"), "unknown case 'lost'"),
        (("--case", ""), "unknown case ''"),
        (("--policies", "llm:x", "--protocol", "smoke"), "unknown --protocol 'smoke'"),
    ],
)
def test_the_command_refuses(refusal: Any, args: tuple[str, ...], wrong: str) -> None:
    assert wrong in refusal("cases", *args)


def test_the_command_refuses_the_folder_of_another_run(refusal: Any, tmp_path: Path) -> None:
    from evaluation.manifest import new_manifest, write_manifest

    manifest = new_manifest(
        preset="sandbox",
        config={"kind": "agent"},
        seed=0,
        worlds=[],
        policies=["x"],
        command=["exactlyonce"],
    )
    write_manifest(manifest, tmp_path / "manifest.json")
    assert "none of cases" in refusal("cases", "--out", str(tmp_path))
    (tmp_path / "file").write_text("")
    assert "is a file" in refusal("cases", "--out", str(tmp_path / "file"))
