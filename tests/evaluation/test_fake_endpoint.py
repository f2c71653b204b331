"""The fake endpoint itself: what it says on the wire, and the trouble it makes."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from evaluation.llm.conversation import open_conversation
from evaluation.llm.fake import Answer, FakeEndpoint, FakeProcess, Faults, Request
from exactlyonce_env.episode import Walk
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.sandbox.session import Session
from policies.llm.answers import parse_answer
from policies.llm.asking import Question, Settings
from policies.llm.prompts import Variant

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def connected(fake: FakeEndpoint | FakeProcess) -> Iterator[http.client.HTTPConnection]:
    host = fake.base_url.removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(host, timeout=5.0)
    try:
        yield connection
    finally:
        connection.close()


def post(
    connection: http.client.HTTPConnection, body: Any = BODY, path: str = CHAT
) -> tuple[int, Mapping[str, str], Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Authorization": "Bearer k"})
    answer = connection.getresponse()
    return answer.status, answer.headers, json.loads(answer.read())


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, Any]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def hello(request: Request) -> Answer:
    return Answer(f"hello {request.number}")


# --- the protocol ---------------------------------------------------------------------------------


def test_an_answer_in_chat_completions() -> None:
    seen: list[Request] = []

    def script(request: Request) -> Answer:
        seen.append(request)
        return Answer("hello")

    with FakeEndpoint(script) as fake, connected(fake) as line:
        status, _, found = post(line)
    read = len(json.dumps(BODY)) // 4
    assert status == 200
    assert found == {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": read, "completion_tokens": 1, "total_tokens": read + 1},
    }
    assert (seen[0].path, dict(seen[0].body), seen[0].number) == ("/chat/completions", BODY, 0)
    assert seen[0].headers["authorization"] == "Bearer k"


def test_many_requests_on_one_connection_are_numbered_and_counted() -> None:
    with FakeEndpoint(hello) as fake, connected(fake) as line:
        line.connect()
        before = line.sock
        texts = [post(line)[2]["choices"][0]["message"]["content"] for _ in range(50)]
        assert line.sock is before  # kept alive
        assert texts == [f"hello {k}" for k in range(50)]
        assert dict(fake.counts) == {"/chat/completions": 50}
        assert fake.most_open == 1


def test_tool_calls_in_both_protocols() -> None:
    answer = Answer("so", [("read", '{"id": "7"}'), ("finish", "{}")])
    with FakeEndpoint(lambda _: answer) as fake, connected(fake) as line:
        chat = post(line)[2]["choices"][0]
        responses = post(line, {"model": "m", "input": []}, RESPONSES)[2]
    assert chat["finish_reason"] == "tool_calls"
    assert [call["id"] for call in chat["message"]["tool_calls"]] == ["call_0_0", "call_0_1"]
    assert chat["message"]["tool_calls"][0]["function"] == {
        "name": "read",
        "arguments": '{"id": "7"}',
    }
    assert [item["type"] for item in responses["output"]] == [
        "message",
        "function_call",
        "function_call",
    ]
    assert responses["output"][0]["content"][0]["text"] == "so"
    assert responses["output"][1]["call_id"] == "call_1_0"
    assert responses["status"] == "completed"


def test_log_probabilities_are_as_many_as_asked_likeliest_first() -> None:
    answer = Answer(logprobs={"B": -2.0, "A": -0.25, "C": -3.0})
    with FakeEndpoint(lambda _: answer) as fake, connected(fake) as line:
        asked = post(line, BODY | {"logprobs": True, "top_logprobs": 2})[2]["choices"][0]
        unasked = post(line)[2]["choices"][0]
    (token,) = asked["logprobs"]["content"]
    assert asked["message"]["content"] == token["token"] == "A"
    assert [(t["token"], t["logprob"]) for t in token["top_logprobs"]] == [("A", -0.25), ("B", -2)]
    assert "logprobs" not in unasked


def test_models_counts_and_unknown_paths() -> None:
    with FakeEndpoint(hello) as fake, connected(fake) as line:
        assert get(line, "/v1/models")[1]["data"][0]["id"] == "fake"
        assert get(line, "/v1/nothing")[0] == 404
        assert post(line, path="/v1/nothing")[0] == 404
        post(line)
        assert get(line, "/v1/_counts") == (
            200,
            {"counts": {"/chat/completions": 1}, "most_open": 1},
        )


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b""])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with FakeEndpoint(hello) as fake, connected(fake) as line:
        status, _, found = post(line, body)
        assert (status, found["error"]["code"]) == (400, "invalid_request_error")
        assert post(line)[0] == 200


@pytest.mark.parametrize(
    "data",
    [b"nonsense\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
)
def test_what_is_no_request_harms_nobody(data: bytes) -> None:
    with FakeEndpoint(hello) as fake:
        port = int(fake.base_url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as raw:
            raw.sendall(data)
            assert raw.recv(100).startswith(b"HTTP/1.1 4")
        with connected(fake) as line:
            assert post(line)[0] == 200


def test_open_requests_are_counted_at_their_most() -> None:
    def ask() -> None:
        with connected(fake) as line:
            post(line)

    with FakeEndpoint(lambda _: Answer("x", delay_s=0.5)) as fake:
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fake.most_open == 5


def test_fields_that_are_ignored_never_reach_the_script() -> None:
    seen: list[Mapping[str, Any]] = []

    def script(request: Request) -> Answer:
        seen.append(request.body)
        return Answer("x")

    body = BODY | {"response_format": {"type": "json_schema"}}
    with FakeEndpoint(script, ignores=["response_format"]) as fake, connected(fake) as line:
        post(line, body)
    with FakeEndpoint(script) as fake, connected(fake) as line:
        post(line, body)
    assert [dict(found) for found in seen] == [BODY, body]


# --- trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "context_length_exceeded"),
        (401, "invalid_api_key"),
        (404, "not_found"),
        (429, "rate_limit_exceeded"),
        (500, "server_error"),
        (503, "overloaded"),
    ],
)
def test_statuses_come_with_their_code_and_once(status: int, code: str) -> None:
    with FakeEndpoint(hello, Faults([f"http_{status}"])) as fake, connected(fake) as line:
        found, headers, answer = post(line)
        assert (found, answer["error"]["code"]) == (status, code)
        assert headers.get("retry-after") == ("0.01" if status == 429 else None)
        assert post(line)[2]["choices"][0]["message"]["content"] == "hello 1"
        assert dict(fake.counts) == {"/chat/completions": 2, f"http_{status}": 1}


def test_a_slow_answer_comes_late() -> None:
    with FakeEndpoint(hello, Faults(["slow"], slow_s=0.3)) as fake, connected(fake) as line:
        began_s = time.monotonic()
        assert post(line)[0] == 200
        assert time.monotonic() - began_s >= 0.3


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("reset", ConnectionError),
        ("malformed", ValueError),
        ("truncated", http.client.IncompleteRead),
    ],
)
def test_no_answer_can_be_read(kind: str, error: type[Exception]) -> None:
    with FakeEndpoint(hello, Faults([kind])) as fake:
        with connected(fake) as line, pytest.raises(error):
            post(line)
        with connected(fake) as line:
            assert post(line)[0] == 200


def test_connections_are_refused_for_a_while_at_the_same_address() -> None:
    with FakeEndpoint(hello, Faults(["refused"], refused_s=0.5)) as fake:
        with connected(fake) as line, pytest.raises(ConnectionError):
            post(line)
        with connected(fake) as line, pytest.raises(ConnectionRefusedError):
            post(line)
        deadline = time.monotonic() + 5.0
        while True:
            try:
                with connected(fake) as line:
                    assert post(line)[0] == 200
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_answers_that_ignore_what_was_asked() -> None:
    faults = Faults(["bad_arguments", "fence", "prose", "fence"])
    answers = [
        Answer(None, [("choose", '{"action": "read"}')]),
        Answer('{"a": 1}'),
        Answer('{"a": 1}'),
        Answer(None, [("choose", '{"action": "read"}')]),
    ]
    with FakeEndpoint(lambda r: answers[r.number], faults) as fake, connected(fake) as line:
        cut, fenced, prose, tool = (post(line)[2]["choices"][0]["message"] for _ in answers)
    arguments = cut["tool_calls"][0]["function"]["arguments"]
    with pytest.raises(ValueError, match="line 1 column"):
        json.loads(arguments)
    assert fenced["content"] == '```json\n{"a": 1}\n```'
    assert prose["content"] == 'Sure! This is what I would do: {"a": 1}'
    assert (tool["content"], "tool_calls" in tool) == ('```json\n{"action": "read"}\n```', False)


def test_drawn_trouble_depends_on_seed_and_number_alone() -> None:
    faults = Faults(["", "reset"], rate=0.3, kinds=("http_429", "http_500"), seed=4)
    drawn = [faults.kind_of(k) for k in range(2000)]
    assert drawn == [Faults(**vars(faults)).kind_of(k) for k in range(2000)]
    assert drawn[:2] == ["", "reset"]
    assert set(drawn[2:]) == {"", "http_429", "http_500"}
    # 1998 draws at 0.3: five standard deviations are 102.
    assert abs(sum(map(bool, drawn[2:])) - 599) < 102
    assert drawn != [
        Faults(["", "reset"], 0.3, ("http_429", "http_500"), 5).kind_of(k) for k in range(2000)
    ]


def test_unknown_names_are_told() -> None:
    with pytest.raises(UserError, match="unknown trouble 'http_42'"):
        Faults(["http_42"])
    with pytest.raises(UserError, match="unknown script 'patent'"):
        FakeEndpoint("patent")
    with pytest.raises(UserError, match="the calls 'x' are not"):
        FakeEndpoint("calling:x")


# --- its life -------------------------------------------------------------------------------------


def test_a_script_that_fails_is_refused_at_once_and_raised_at_the_end() -> None:
    def script(request: Request) -> Answer:
        raise AssertionError("not what was expected")

    def run() -> None:
        with FakeEndpoint(script) as fake, connected(fake) as line:
            status, _, found = post(line)
            assert (status, found["error"]["code"]) == (400, "script_failed")

    with pytest.raises(AssertionError, match="not what was expected"):
        run()


def test_a_port_that_is_taken_is_told() -> None:
    with FakeEndpoint(hello) as fake:
        port = int(fake.base_url.split(":")[2].split("/")[0])
        with pytest.raises(OSError, match="in use"), FakeEndpoint(hello, port=port):
            pass


def test_it_ends_without_a_word_while_connections_are_open(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        FakeEndpoint(hello, Faults(["", "refused"], refused_s=60.0)) as fake,
        connected(fake) as idle,
        connected(fake) as other,
    ):
        post(idle)
        with pytest.raises(ConnectionError):
            post(other)
    with (
        FakeEndpoint(lambda _: Answer("x", delay_s=60.0)) as fake,
        connected(fake) as slow,
    ):
        slow.request("POST", CHAT, json.dumps(BODY))
        while not fake.counts:
            time.sleep(0.005)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_process_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with FakeProcess("fixed:yes", Faults(["http_500"])) as fake, connected(fake) as line:
        assert post(line)[0] == 500
        assert post(line)[2]["choices"][0]["message"]["content"] == "yes"
        assert fake.counts == {"/chat/completions": 2, "http_500": 1}
        assert fake.most_open == 1
    assert capfd.readouterr() == ("", "")


# --- scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", ["text", "schema", "tools"])
@pytest.mark.parametrize("belief", [False, True])
def test_the_patient_policy_plays_an_episode_validly(answers: str, belief: bool) -> None:
    variant = Variant(belief=belief)
    walk = Walk(load_plan("late-tail"), 0, 0)
    words = []
    with FakeEndpoint("patient") as fake, connected(fake) as line:
        while not walk.ended and len(words) < 20:
            question = Question(walk.view.seen, walk.view.contract, variant, answers)
            found = post(line, question.body("m", Settings()))[2]
            message = found["choices"][0]["message"]
            text = message["content"] or message["tool_calls"][0]["function"]["arguments"]
            answer = parse_answer(text, question.words, variant)
            assert (answer.belief is not None) == belief
            words.append(answer.word)
            walk.act(answer.action, answer.seconds, answer.word)
    assert words[0] == "read"
    assert words[-1] == "finish"


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_an_agent_that_makes_its_calls_in_order(protocol: str) -> None:
    calls = [["no_such_tool", {"id": "7"}], ["wait", {"seconds": 60}]]
    session = Session("invoice_batch")
    talk = open_conversation(protocol, "system", session.instructions, session.tools)
    made = []
    with FakeEndpoint("calling:" + json.dumps(calls)) as fake, connected(fake) as line:
        while not session.ended and len(made) < 10:
            turn = talk.take(post(line, talk.body("m", Settings()), f"/v1{talk.path}")[2])
            for call in turn.calls:
                made.append([call.name, call.arguments])
                talk.add_result(call, session.call(call.name, call.arguments).text)
    assert made[:2] == calls
    assert [name for name, _ in made[2:]] == ["finish"]
    assert session.ended


def test_the_sdk_understands_every_answer() -> None:
    openai = pytest.importorskip("openai", reason="the extra llm is not installed")
    answer = Answer("hello", [("read", "{}")], {"A": -0.5, "B": -1.0})
    with FakeEndpoint(lambda _: answer, Faults(["", "", "", "http_429", "http_401"])) as fake:
        client = openai.OpenAI(base_url=fake.base_url, api_key="k", max_retries=0, timeout=5.0)
        with client:
            chat = client.chat.completions.create(**BODY)
            assert chat.choices[0].message.content == "hello"
            assert chat.choices[0].message.tool_calls[0].function.name == "read"
            assert chat.usage.completion_tokens == 21
            told = client.chat.completions.create(**BODY, logprobs=True, top_logprobs=2)
            tokens = told.choices[0].logprobs.content[0].top_logprobs
            assert [(t.token, t.logprob) for t in tokens] == [("A", -0.5), ("B", -1.0)]
            response = client.responses.create(model="m", input="hi")
            assert response.output_text == "hello"
            assert response.output[1].call_id == "call_2_0"
            with pytest.raises(openai.RateLimitError):
                client.chat.completions.create(**BODY)
            with pytest.raises(openai.AuthenticationError):
                client.chat.completions.create(**BODY)
            assert [model.id for model in client.models.list()] == ["fake"]
