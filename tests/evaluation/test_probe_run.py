"""Models in the probe: asked once a draw, kept, gone on with; responses written and read again."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.llm.calling import Limits
from evaluation.llm.models import ModelOptions
from evaluation.llm.store import open_store
from evaluation.probe.designs import DESIGNS, Cell, Variant
from evaluation.probe.policies import named_policy
from evaluation.probe.prompts import CASES
from evaluation.probe.responses import (
    FILE,
    Response,
    merge_responses,
    read_responses,
    write_responses,
)
from evaluation.probe.run import Model, probe_policy, run_model, run_scripted
from evaluation.probe.summary import summarise
from evaluation.statistics.shares import wilson
from evaluation.viewer.data import Transcripts
from evaluation.viewer.index import Query
from exactlyonce_env.cli.commands import COMMANDS, LazyCommand
from exactlyonce_env.errors import UserError
from policies.llm.asking import Settings
from policies.llm.endpoint import Patience, ProviderError

from .llm_toys import Script, Toy, answer, chat

QUICK = ModelOptions(concurrency=5, patience=Patience(retries=1, first_s=0.0, longest_s=0.0))
SUPPLIED = DESIGNS["supplied-key"]
CUES = DESIGNS["cue-control"]


def cautious(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Retries with the transcript's key where the tasks are issues, else says it is unresolved."""
    asked = body["messages"][-1]["content"]
    if "Idempotency-Key: issue-" in asked:
        return chat(answer("retry_with_key", idempotency_key=CASES["issue"].key))
    return chat(answer("unresolved", idempotency_key=None))


def ask(
    script: Script, design: str = "supplied-key", out: Path | None = None, **options: Any
) -> tuple[list[Response], Toy]:
    toy = Toy(script)
    chosen: dict[str, Any] = {"concurrency": 5, "patience": QUICK.patience} | options
    model = Model("toy", endpoint=toy)
    return run_model(model, DESIGNS[design], out, ModelOptions(**chosen)).responses, toy


def total(responses: list[Response]) -> dict[str, dict[str, Any]]:
    return {row["original"]: row for row in summarise(responses)["totals"]}


def test_a_model_is_asked_once_a_draw() -> None:
    responses, toy = ask(cautious)
    assert toy.asked == len(responses) == SUPPLIED.planned == 80
    assert [(one.cell, one.draw) for one in responses] == list(SUPPLIED.units())
    rows = total(responses)
    # One task of four, two labels, five draws.
    assert (rows["sent"]["retries"], rows["sent"]["protected"]) == (10, 10)
    assert rows["sent"]["outcomes"]["ledger_correct"] == 10 * 3 + 30 * 2
    assert (rows["omitted"]["retries"], rows["omitted"]["unresolved"]) == (0, 40)
    body = toy.bodies[0]
    assert set(body) == {"model", "messages", "max_completion_tokens"}
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_schemas_and_temperature_reach_the_endpoint() -> None:
    toy = Toy(cautious)
    model = Model("toy", Settings(answers="schema", temperature=0.5), toy)
    run_model(model, SUPPLIED, None, QUICK)
    assert {body["temperature"] for body in toy.bodies} == {0.5}
    schema = toy.bodies[0]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["action", "rationale", "idempotency_key"]


def test_auto_tries_schemas_once_a_folder(tmp_path: Path) -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "hello" in body["messages"][-1]["content"]:
            return chat('{"colour": "blue"}')
        return cautious(path, body)

    for asked in (81, 0):
        toy = Toy(script)
        model = Model("toy", Settings(answers="auto"), toy)
        run_model(model, SUPPLIED, tmp_path, QUICK)
        assert toy.asked == asked
    assert "response_format" in Model("toy").body(SUPPLIED.cells[0], "schema")


def test_invalid_answers_stay_invalid_and_are_not_asked_anew(tmp_path: Path) -> None:
    def fenced(path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = cautious(path, body)
        if "Task: Open one issue" in body["messages"][-1]["content"]:
            found["choices"][0]["message"]["content"] = "```json\n{}\n```"
        return found

    responses, toy = ask(fenced, out=tmp_path)
    assert toy.asked == 80
    row = total(responses)["sent"]
    assert (row["planned"], row["returned"], row["invalid"], row["missing"]) == (40, 40, 10, 10)
    assert row["outcomes"]["rows"] == 90
    assert row["retries_bounds"] == row["unsupported_bounds"] == [0, 10]
    again, idle = ask(cautious, out=tmp_path)
    assert idle.asked == 0
    assert again == responses
    bad = next(one for one in responses if one.status == "invalid")
    assert (bad.action, bad.reason, bad.text) == (None, "it is in a code fence", "```json\n{}\n```")


def test_missing_responses_stay_missing(tmp_path: Path) -> None:
    def failing(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "Task: Publish" in body["messages"][-1]["content"]:
            raise ProviderError("http_503", "overloaded", retry=True)
        return cautious(path, body)

    responses, toy = ask(failing, out=tmp_path)
    assert toy.asked == 60 + 2 * 20
    row = total(responses)["omitted"]
    assert (row["planned"], row["returned"], row["invalid"], row["missing"]) == (40, 30, 0, 10)
    again, idle = ask(cautious, out=tmp_path)
    assert idle.asked == 0
    assert again == responses
    gone = [one for one in responses if one.status == "missing"]
    assert {one.reason for one in gone} == {"http_503: overloaded"}
    assert {one.text for one in gone} == {None}


def test_a_run_that_was_cut_off_asks_nothing_twice(tmp_path: Path) -> None:
    class CutError(Exception):
        pass

    whole, _ = ask(cautious)

    def cut(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if toy.asked > 30:
            raise CutError
        return cautious(path, body)

    toy = Toy(cut)
    with pytest.raises(CutError):
        run_model(Model("toy", endpoint=toy), SUPPLIED, tmp_path, QUICK)
    responses, rest = ask(cautious, out=tmp_path)
    assert responses == whole
    # At most the requests in flight are lost.
    assert 0 <= rest.asked - (80 - 30) < QUICK.concurrency
    with open_store(tmp_path, readonly=True) as store:
        assert store.spent().n_calls == 80
        assert len(store.episodes()) == 80
        calls = store.calls("llm:toy/probe/supplied-key/" + SUPPLIED.cells[0].name + "/3")
        assert len(calls) == 1


def test_a_budget_ends_the_run_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    whole, _ = ask(cautious)
    # A request may use its characters / 3 and 512 tokens; each call turns out to use 110.
    part, toy = ask(cautious, out=tmp_path, limits=Limits(tokens=5000), concurrency=1)
    assert 0 < toy.asked < 80
    missing = [one for one in part if one.status == "missing"]
    assert len(missing) == 80 - toy.asked
    assert {one.reason for one in missing} == {"not run: max_tokens"}
    rest, more = ask(cautious, out=tmp_path)
    assert rest == whole
    assert more.asked == 80 - toy.asked


def test_a_folder_keeps_to_one_way_of_asking_but_takes_many_designs(tmp_path: Path) -> None:
    ask(cautious, out=tmp_path)
    responses, toy = ask(lambda path, body: chat(answer("wait")), "cue-control", tmp_path)
    assert toy.asked == len(responses) == CUES.planned
    hot = Model("toy", Settings(answers="text", temperature=1.0), Toy(cautious))
    with pytest.raises(UserError, match="asked otherwise"):
        run_model(hot, SUPPLIED, tmp_path, QUICK)


def test_a_refused_key_ends_the_run() -> None:
    def refusing(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise ProviderError("http_401", "Incorrect key", retry=False, fatal=True)

    with pytest.raises(UserError, match="the endpoint refuses: http_401"):
        ask(refusing)


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("llm:", "needs the name of a model"),
        ("llm:x+aware", "the probe has its own prompts; write llm:x"),
    ],
)
def test_models_that_are_refused(spec: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong.replace("+", r"\+")):
        probe_policy(spec)
    with pytest.raises(UserError, match="not by tools"):
        probe_policy("llm:x", Settings(answers="tools"))


# --- responses -----------------------------------------------------------------------------------


def test_responses_survive_the_file(tmp_path: Path) -> None:
    def mixed(path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked = body["messages"][-1]["content"]
        if "Task: Publish" in asked:
            raise ProviderError("http_400", "too long", retry=False)
        return chat("Hm. \ud800") if "Task: Leave" in asked else cautious(path, body)

    responses, _ = ask(mixed)
    assert {one.status for one in responses} == {"valid", "invalid", "missing"}
    responses += run_scripted(named_policy("any-key-offered"), SUPPLIED)
    write_responses(tmp_path / FILE, responses)
    assert read_responses(tmp_path / FILE) == responses
    assert summarise(read_responses(tmp_path / FILE)) == summarise(responses)


def test_a_file_takes_several_policies_and_designs(tmp_path: Path) -> None:
    path = tmp_path / FILE
    one = run_scripted(named_policy("always-retry"), SUPPLIED)
    other = run_scripted(named_policy("always-defer"), SUPPLIED)
    cues = run_scripted(named_policy("always-retry"), CUES)
    for responses in (one, other, cues, one):
        merge_responses(path, responses)
    assert read_responses(path) == other + cues + one


def lines(path: Path, *entries: dict[str, Any]) -> list[Response]:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return read_responses(path)


def test_published_counts(tmp_path: Path) -> None:
    """0 of 80 with a valid key, 55 of 80 without: one line for many responses."""
    shared = {"policy": "published", "status": "valid", "design": "key-control"}
    found = lines(
        tmp_path / FILE,
        {**shared, "key": "valid", "action": "retry_with_key", "count": 80},
        {**shared, "key": "omitted", "action": "retry", "count": 50},
        {**shared, "key": "omitted", "action": "retry_with_key", "count": 5},
        {**shared, "key": "omitted", "action": "unresolved", "count": 20},
        {
            "policy": "published",
            "design": "key-control",
            "key": "omitted",
            "status": "missing",
            "count": 5,
        },
    )
    rows = {row["key"]: row for row in summarise(found)["totals"]}
    valid, omitted = rows["valid"], rows["omitted"]
    assert (valid["planned"], valid["unsupported"], valid["protected"]) == (80, 0, 80)
    assert [round(100 * end, 2) for end in valid["ci"]["unsupported"]] == [0.0, 4.51]
    assert (omitted["planned"], omitted["unsupported"], omitted["missing"]) == (80, 55, 5)
    assert omitted["unsupported_bounds"] == [55, 60]
    # Clopper and Pearson for 55/80: 57.41-78.65 %; the upper end is that of 60/80.
    low, high = omitted["ci"]["unsupported"]
    assert round(100 * low, 2) == 57.41
    assert high > 0.7865
    assert omitted["outcomes"]["false_retry_permissions"] == 165
    complete = lines(
        tmp_path / FILE,
        {**shared, "action": "retry", "count": 55},
        {**shared, "action": "stop", "count": 25},
    )
    (row,) = summarise(complete)["totals"]
    assert [round(100 * end, 2) for end in row["ci"]["unsupported"]] == [57.41, 78.65]
    assert row["stops"] == 25
    # A line of counts tells nothing of a correlation within prompts.
    assert "two prompts or more" in row["clustered"]["unsupported"]["why"]


def test_draws_of_one_prompt_count_by_their_correlation(tmp_path: Path) -> None:
    """One correlation for the policy, within prompts about their key condition's share."""
    shared = {"policy": "p", "status": "valid"}
    entries: list[dict[str, Any]] = []
    for key, counts in (("omitted", (4, 1, 3)), ("valid", (0, 2, 1))):
        for task, count in zip("abc", counts, strict=True):
            for action, n in (("retry", count), ("stop", 4 - count)):
                if n:
                    entries.append(
                        {**shared, "key": key, "task": task, "action": action, "count": n}
                    )
    rows = {row["key"]: row for row in summarise(lines(tmp_path / FILE, *entries))["totals"]}
    # By hand: shares 8/12 and 3/12; squares between and within prompts about them.
    means = [(4 / 4, 1 / 4, 3 / 4), (0 / 4, 2 / 4, 1 / 4)]
    shares = [8 / 12, 3 / 12]
    between = sum(4 * (m - s) ** 2 for ms, s in zip(means, shares, strict=True) for m in ms) / 5
    within = sum(4 * m * (1 - m) for ms in means for m in ms) / 18
    icc = (between - within) / (between + 3 * within)
    for key, count in (("omitted", 8), ("valid", 3)):
        found = rows[key]["clustered"]["retries"]
        assert found["icc"] == pytest.approx(icc)
        assert found["prompts"] == 3
        assert found["effective_n"] == pytest.approx(12 / (1 + 3 * icc))
        limits, _ = wilson(count, 12, icc=icc, mean_cluster_size=4)
        assert (found["low"], found["high"]) == pytest.approx((limits.low, limits.high))


def test_answers_that_never_vary_count_once_a_prompt(tmp_path: Path) -> None:
    shared = {"policy": "p", "status": "valid", "action": "retry", "key": "omitted"}
    found = lines(
        tmp_path / FILE,
        {**shared, "task": "a", "count": 5},
        {**shared, "task": "b", "count": 4},
        {"policy": "p", "status": "missing", "key": "omitted", "task": "b"},
    )
    (row,) = summarise(found)["totals"]
    clustered = row["clustered"]["retries"]
    assert (clustered["icc"], clustered["effective_n"]) == (1.0, 2.0)
    # The missing response may have gone either way.
    lower, _ = wilson(9, 10, icc=1.0, mean_cluster_size=5.0)
    upper, _ = wilson(10, 10, icc=1.0, mean_cluster_size=5.0)
    assert (clustered["low"], clustered["high"]) == (lower.low, upper.high)
    once = lines(
        tmp_path / FILE, {**shared, "task": "a"}, {**shared, "task": "b", "action": "stop"}
    )
    (row,) = summarise(once)["totals"]
    assert row["clustered"]["retries"]["effective_n"] == 2.0


def test_ranges_over_variants(tmp_path: Path) -> None:
    """Shares 3/4, 1/4 + 1 missing and 0/2, by hand."""
    found = lines(
        tmp_path / FILE,
        {"policy": "p", "status": "valid", "action": "retry", "count": 3, "order": 0},
        {"policy": "p", "status": "valid", "action": "wait", "count": 1, "order": 0},
        {"policy": "p", "status": "valid", "action": "retry", "count": 1, "order": 1},
        {"policy": "p", "status": "valid", "action": "stop", "count": 2, "order": 1},
        {"policy": "p", "status": "invalid", "count": 1, "order": 1},
        {"policy": "p", "status": "valid", "action": "stop", "count": 2, "order": 2, "task": "a"},
    )
    retries, unsupported = summarise(found)["ranges"]
    assert {k: v for k, v in retries.items() if k not in ("policy", "design")} == {
        "key": "none",
        "original": "omitted",
        "measure": "retries",
        "variants": 3,
        "weight": 1 / 3,
        "min": [0.0, 0.0],
        "max": [0.75, 0.75],
        "mean": [pytest.approx(1 / 3), pytest.approx((0.75 + 0.5) / 3)],
        "missing": 1,
    }
    assert unsupported | {"measure": "retries"} == retries


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"policy": None}, "policy cannot be None"),
        ({"policy": " "}, "policy is empty"),
        ({"status": "lost"}, "unknown status 'lost'"),
        ({"action": None}, "unknown action 'None'"),
        ({"action": "read"}, "unknown action 'read'"),
        ({"action": "retry_with_key"}, "not on the menu where key is none"),
        ({"status": "invalid"}, "a response that is invalid has no action"),
        ({"label": "strong"}, "unknown label 'strong'"),
        ({"labels": "weak"}, r"unknown field 'labels' \(did you mean label"),
        ({"count": 0}, "count must be at least 1"),
        ({"count": True}, "count cannot be True"),
        ({"count": 1.5}, "count cannot be 1.5"),
        ({"key": "valid", "original": "omitted"}, "key valid does not go with"),
        ({"key": "supplied"}, "key supplied needs original"),
        (
            {"key": "supplied", "original": "sent", "action": "retry_with_key"},
            "needs same_key: true or false",
        ),
        (
            {
                "key": "supplied",
                "original": "omitted",
                "action": "retry_with_key",
                "same_key": True,
            },
            "the original carried no key",
        ),
        ({"same_key": False}, "belong to a key that was supplied"),
        ({"text": "retry"}, "the text is no valid answer: it is not one JSON object"),
        ({"text": answer("stop")}, "the text answers stop, but action says retry"),
        ({"status": "invalid", "action": None, "text": answer("stop")}, "status says invalid"),
        ({"status": "missing", "action": None, "text": "x"}, "a missing response has no text"),
        (
            {
                "key": "supplied",
                "original": "sent",
                "task": "issue",
                "action": "retry_with_key",
                "idempotency_key": "mine",
                "same_key": True,
            },
            "same_key says True, but the idempotency_key says False",
        ),
    ],
)
def test_lines_that_are_refused(tmp_path: Path, entry: dict[str, Any], wrong: str) -> None:
    good = {"policy": "p", "status": "valid", "action": "retry"}
    with pytest.raises(UserError, match=r"responses.jsonl, line 2: .*" + wrong):
        lines(tmp_path / FILE, good, good | entry)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "holds no responses"),
        ("[]\n", "line 1: it is not a JSON object"),
        ("{}\n", "line 1: the field 'policy' is missing"),
        ('{"policy": "p"\n', "line 1: it is not JSON"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / FILE
    path.write_text(text)
    with pytest.raises(UserError, match=wrong):
        read_responses(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_responses(tmp_path / "none.jsonl")


def test_a_text_decides_in_codes(tmp_path: Path) -> None:
    shared = {"policy": "p", "status": "valid", "actions": "coded", "mapping": 1}
    (found,) = lines(tmp_path / FILE, {**shared, "action": "stop", "text": answer("A")})
    assert found.cell == Cell(Variant(actions="coded", mapping=1), "any")
    with pytest.raises(UserError, match="the text answers wait"):
        lines(tmp_path / FILE, {**shared, "action": "stop", "text": answer("B")})


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    command = LazyCommand("probe", "probe", "Ask for one decision after a timeout.")
    monkeypatch.setitem(COMMANDS, "probe", command)


def test_the_command_prints_cells_and_totals(printed: Any) -> None:
    found = json.loads(
        printed(
            "probe", "key-control", "--policies", "any-key-offered,label-follower", "--json", "-"
        )
    )
    assert found["planned_per_policy"] == 240
    assert len(found["cells"]) == 2 * 48
    cell = found["cells"][0]
    for name in ("label", "semantics", "key", "original", "actions", "mapping", "order", "task"):
        assert name in cell
    counts = ("planned", "returned", "invalid", "retries", "protected", "unsupported", "unresolved")
    assert [cell[name] for name in counts] == [5, 5, 0, 5, 0, 5, 0]
    assert cell["outcomes"] == {
        "rows": 15,
        "false_retry_permissions": 15,
        "duplicates": 10,
        "omissions": 0,
        "unresolved": 0,
        "ledger_correct": 5,
        "resolved_exact": 5,
    }
    keys = [(row["policy"], row["key"]) for row in found["totals"]]
    assert keys == [
        (policy, key)
        for policy in ("any-key-offered", "label-follower")
        for key in ("omitted", "valid", "changed")
    ]


def test_the_command_keeps_a_run(printed: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    text = printed("probe", "supplied-key", "--policies", "always-retry", "--out", out)
    assert "supplied, original's sent" in text
    printed("probe", "cue-control", "--policies", "label-follower", "--out", out)
    kept = read_responses(tmp_path / "run" / FILE)
    assert len(kept) == 80 + 256
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["design"] == "cue-control"
    assert manifest["status"] == "complete"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["totals"][0]["retries"] == 128


def test_the_command_shows_prompts_and_conformance(printed: Any) -> None:
    text = printed("probe", "cue-control", "--show", "20")
    assert "evidence label of this answer: weak" in text
    shown = json.loads(printed("probe", "supplied-key", "--show", "0", "--json", "-"))
    assert shown["messages"][1]["content"] in printed("probe", "supplied-key", "--show", "0")
    rows = json.loads(printed("probe", "conformance", "--json", "-"))["rows"]
    assert [row["effects"] for row in rows] == [0, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1]


def test_missing_responses_are_printed(
    printed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns = itertools.cycle([answer("retry")] * 3 + ["Retry!"])
    toy = Toy(lambda path, body: chat(next(turns)))
    monkeypatch.setattr("policies.llm.policy.OpenAIEndpoint", lambda *args, **kwargs: toy)
    out = tmp_path / "run"
    args = ("probe", "canonical-block", "--policies", "llm:toy", "--out", str(out))
    text = printed(*args)
    assert "192 +64 missing" in text
    assert "75.0–100.0 [69.2, 100.0]" in text
    assert "not scored, llm:toy: 64 x it is not one JSON object" in text
    (row,) = json.loads(printed(*args, "--json", "-"))["totals"]
    assert (row["retries"], row["invalid"], row["missing"]) == (192, 64, 64)
    assert toy.asked == 256
    assert "llm:toy: 256 answers now, 28,160 tokens and 0.00 USD in all, 0 requests failed" in text
    with Transcripts(out) as transcripts:
        found = transcripts.episodes(Query())
        assert found["totals"]["episodes"] == 256
        place = found["rows"][0]["place"]
        assert transcripts.episode(place, Query())["header"]["did"] == "retry"


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (("keycontrol",), "did you mean key-control"),
        (("key-control", "--policies", "nobody"), "unknown policy 'nobody'"),
        (("key-control", "--policies", "always-retry,always-retry"), "twice"),
        (("key-control", "--temperature", "1"), "--temperature is an option of language models"),
        (("key-control", "--show", "48"), "--show must lie in 0..47, not 48"),
        (("conformance", "--policies", "tenacity"), "unknown client 'tenacity'"),
        (("conformance", "--show", "1"), "--show has no meaning with conformance"),
    ],
)
def test_the_command_refuses(refusal: Any, args: tuple[str, ...], wrong: str) -> None:
    assert wrong in refusal("probe", *args)


def test_a_broken_file_is_refused_before_anybody_is_asked(refusal: Any, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}\n")
    line = refusal("probe", "key-control", "--policies", "always-retry", "--out", str(tmp_path))
    assert "line 1: the field 'policy' is missing" in line
