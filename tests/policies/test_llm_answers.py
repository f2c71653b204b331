"""Answers of models: valid as they stand, or invalid with a reason."""

from __future__ import annotations

import json

import pytest

from exactlyonce_env.episode import Walk
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import load_plan
from exactlyonce_env.vocabulary import Action
from policies.llm.answers import InvalidAnswerError, parse_answer
from policies.llm.asking import Question, Settings, enforces_schema, tokens_of
from policies.llm.policy import llm
from policies.llm.prompts import Variant, allowed, split_spec, system_text

PLAIN = Variant()
WORDS = ["read", "wait:SECONDS", "retry", "escalate", "finish", "finish_uncertain"]


def answer(text: str, variant: Variant = PLAIN) -> tuple[str, float]:
    found = parse_answer(text, WORDS, variant)
    return found.action.name, found.seconds


@pytest.mark.parametrize(
    ("text", "action", "seconds"),
    [
        ('{"action": "read", "rationale": "look"}', "READ", 0.0),
        ('  {"rationale": "", "action": "wait:300"}\n', "WAIT", 300.0),
        ('{"action": "wait:7.5", "rationale": "x"}', "WAIT", 7.5),
        ('{"action": "finish_uncertain", "rationale": "\\ud800"}', "FINISH_UNCERTAIN", 0.0),
    ],
)
def test_a_valid_answer_is_read_as_it_stands(text: str, action: str, seconds: float) -> None:
    assert answer(text) == (action, seconds)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ('```json\n{"action": "read", "rationale": "x"}\n```', "code fence"),
        ('Sure: {"action": "read", "rationale": "x"}', "not one JSON object"),
        ('{"action": "read", "rationale": "x"} {"action": "read"}', "not one JSON object"),
        ('["read"]', "not a JSON object"),
        ('{"action": "read"}', "'rationale' is missing"),
        ('{"rationale": "x"}', "'action' is missing"),
        ('{"action": "read", "rationale": "x", "confidence": 1}', "no field 'confidence'"),
        ('{"action": "read", "action": "retry", "rationale": "x"}', "twice"),
        ('{"action": "READ", "rationale": "x"}', "no action 'READ'"),
        ('{"action": " read", "rationale": "x"}', "no action ' read'"),
        ('{"action": "wait", "rationale": "x"}', "no action 'wait'"),
        ('{"action": "wait: 5", "rationale": "x"}', "no action 'wait: 5'"),
        ('{"action": "wait:1e3", "rationale": "x"}', "no action 'wait:1e3'"),
        ('{"action": "wait:-5", "rationale": "x"}', "no action 'wait:-5'"),
        ('{"action": "wait:٣", "rationale": "x"}', "no action"),
        ('{"action": "wait:9999999", "rationale": "x"}', "no action 'wait:9999999'"),
        ('{"action": "keyed_retry", "rationale": "x"}', "not allowed now"),
        ('{"action": 3, "rationale": "x"}', "action is no text"),
        ('{"action": "read", "rationale": null}', "rationale is no text"),
        ('{"action": "read", "rationale": NaN}', "NaN"),
        ("[" * 100_000, "not one JSON object"),
        ('{"action": "read", "rationale": "x", "belief": {}}', "no field 'belief'"),
    ],
)
def test_every_other_answer_is_invalid_and_says_why(text: str, reason: str) -> None:
    with pytest.raises(InvalidAnswerError, match=reason):
        answer(text)


def with_belief(belief: object) -> str:
    return json.dumps({"action": "read", "rationale": "x", "belief": belief})


def test_a_belief_is_scaled_to_one() -> None:
    text = with_belief({"absent": 0.33, "committed": 0.33, "in_flight": 0.33})
    found = parse_answer(text, WORDS, Variant(belief=True)).belief
    assert found is not None
    assert found["absent"] == pytest.approx(1 / 3)
    assert sum(found.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("last", "valid"), [(0.30, True), (0.34, True), (0.29, False), (0.35, False)]
)
def test_a_belief_may_be_off_by_two_hundredths(last: float, valid: bool) -> None:
    text = with_belief({"absent": 0.34, "committed": 0.34, "in_flight": last})
    if valid:
        assert parse_answer(text, WORDS, Variant(belief=True)).belief is not None
    else:
        with pytest.raises(InvalidAnswerError, match="sums to"):
            parse_answer(text, WORDS, Variant(belief=True))


@pytest.mark.parametrize(
    "belief",
    [
        None,
        {"absent": 1.0},
        {"absent": 0.5, "committed": 0.5, "in_flight": 0.5},
        {"absent": 1.5, "committed": -0.5, "in_flight": 0.0},
        {"absent": True, "committed": 0, "in_flight": 0},
        {"absent": "1", "committed": 0, "in_flight": 0},
        {"absent": 1, "committed": 0, "in_flight": 0, "other": 0},
    ],
)
def test_a_belief_that_is_none_makes_the_answer_invalid(belief: object) -> None:
    with pytest.raises(InvalidAnswerError, match="belief"):
        parse_answer(with_belief(belief), WORDS, Variant(belief=True))


def question(
    variant: Variant = PLAIN, answers: str = "text", preset: str = "late-tail"
) -> Question:
    view = Walk(load_plan(preset), 0, 0).view
    return Question(view.seen, view.contract, variant, answers)


def test_the_menu_holds_what_the_mask_allows() -> None:
    view = Walk(load_plan("late-tail"), 0, 0).view
    assert allowed(view.seen, view.contract) == WORDS
    assert allowed(view.seen, view.contract, "reversed") == WORDS[::-1]


def test_the_fixed_text_comes_first_and_the_history_last() -> None:
    first, last = question().body("m", Settings())["messages"]
    assert (first["role"], last["role"]) == ("system", "user")
    assert first["content"] == system_text(PLAIN)
    assert last["content"].rstrip().endswith("Allowed now: " + ", ".join(WORDS))


def test_variants_change_what_they_name_and_nothing_else() -> None:
    plain = system_text(PLAIN)
    assert "Rules of reliable clients" not in plain
    assert "Rules of reliable clients" in system_text(Variant(condition="aware"))
    assert "look at the service's read-back" not in system_text(Variant(labels=False))
    assert '"belief"' in system_text(Variant(belief=True))
    backwards = system_text(Variant(order="reversed"))
    assert sorted(backwards.split("\n")) == sorted(plain.split("\n"))
    assert backwards != plain


def test_a_schema_is_asked_for_in_the_field_that_servers_know() -> None:
    body = question(answers="schema").body("m", Settings())
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["action", "rationale"]
    assert schema["additionalProperties"] is False
    assert "keyed_retry" not in schema["properties"]["action"]["pattern"]


def test_a_tool_call_is_an_answer_where_tools_are_asked_for() -> None:
    asked = question(answers="tools")
    assert asked.body("m", Settings())["tool_choice"]["function"]["name"] == "choose"
    arguments = '{"action": "read", "rationale": "x"}'
    call = {"function": {"name": "choose", "arguments": arguments}}
    response = {"choices": [{"message": {"tool_calls": [call]}}]}
    assert asked.read(response).action == Action.READ


def test_the_likeliest_letter_decides() -> None:
    asked = question(Variant(scoring="likelihood"), "letters")
    body = asked.body("m", Settings())
    assert body["top_logprobs"] == 20
    assert "A. read\nB. wait:15\n" in body["messages"][-1]["content"]
    top = [{"token": " G", "logprob": -0.5}, {"token": "A", "logprob": -2.0}]
    content = [{"token": " G", "logprob": -0.5, "top_logprobs": top}]
    response = {"choices": [{"message": {"content": "G"}, "logprobs": {"content": content}}]}
    assert asked.read(response).word == "retry"
    assert asked.likelihoods(response)["read"] == -2.0
    with pytest.raises(InvalidAnswerError, match="no option"):
        asked.read({"choices": [{"message": {"content": "G"}}]})


@pytest.mark.parametrize(
    "response", [{}, {"choices": []}, {"choices": [None]}, {"choices": [{"message": "x"}]}]
)
def test_a_response_of_any_shape_is_an_empty_answer(response: dict[str, object]) -> None:
    with pytest.raises(InvalidAnswerError, match="empty"):
        question().read(response)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4)),
        ({"input_tokens": 3, "output_tokens": 4}, (3, 4)),
        ({"prompt_tokens": "3", "completion_tokens": None}, (0, 0)),
        ({"prompt_tokens": -3, "completion_tokens": float("nan")}, (0, 0)),
        ({"prompt_tokens": 10**400, "completion_tokens": float("inf")}, (10**12, 10**12)),
        ({"prompt_tokens": True}, (0, 0)),
        ([], (0, 0)),
        (None, (0, 0)),
    ],
)
def test_tokens_are_counted_by_the_providers_account(
    usage: object, tokens: tuple[int, int]
) -> None:
    assert tokens_of({"usage": usage}) == tokens


def test_only_an_answer_by_the_schema_shows_that_schemas_are_kept() -> None:
    def said(text: str) -> dict[str, object]:
        return {"choices": [{"message": {"content": text}}]}

    assert enforces_schema(said('{"colour": "blue"}'))
    assert not enforces_schema(said("Hello!"))
    assert not enforces_schema(said('{"colour": "red"}'))


@pytest.mark.parametrize(
    ("spec", "model", "words"),
    [
        ("gpt-x", "gpt-x", ()),
        ("gpt-x+aware", "gpt-x", ("aware",)),
        ("a+b+reversed+aware", "a+b", ("aware", "reversed")),
        ("a+aware+b", "a+aware+b", ()),
        ("aware", "aware", ()),
    ],
)
def test_a_spec_ends_in_the_words_of_its_variant(
    spec: str, model: str, words: tuple[str, ...]
) -> None:
    name, variant = split_spec(spec)
    assert (name, variant.words) == (model, words)


def test_the_spec_of_a_policy_names_it_again() -> None:
    for spec in ("llm:gpt-x", "llm:gpt-x+aware+belief", "llm:local", "llm:local+aware+sampled"):
        assert llm("llm", spec.removeprefix("llm:")).spec == spec


def test_the_local_model_is_scored_by_likelihood() -> None:
    assert llm("llm", "local").variant.scoring == "likelihood"
    assert llm("llm", "local+sampled").variant.scoring == "sampled"


def test_bad_choices_are_refused() -> None:
    with pytest.raises(UserError, match="name of a model"):
        llm("llm", None)
    with pytest.raises(UserError, match="--scoring sampled"):
        Variant(belief=True, scoring="likelihood")
    with pytest.raises(UserError, match="--answers"):
        Settings(answers="magic")
