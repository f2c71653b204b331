"""Models in the worlds of a preset: the same rules, rows and resumption as any other policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.llm.calling import Limits, Prices
from evaluation.llm.models import ModelOptions, agreement, pooled
from evaluation.llm.store import open_store
from evaluation.runner import evaluate
from evaluation.summary import summarise
from exactlyonce_env.episode import replay
from exactlyonce_env.errors import UserError
from exactlyonce_env.plan import Plan
from exactlyonce_env.presets import load_plan
from policies.llm.endpoint import Patience, ProviderError
from policies.llm.policy import LLMPolicy
from policies.llm.prompts import Variant

from .llm_toys import Toy, answer, chat, patient, patient_script

QUICK = ModelOptions(concurrency=7, patience=Patience(retries=2, first_s=0.0, longest_s=0.0))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_plan("late-tail")


def run(
    plan: Plan,
    toy: Toy,
    worlds: int = 30,
    out: Path | None = None,
    options: ModelOptions = QUICK,
    variant: Variant | None = None,
) -> dict[str, Any]:
    policy = LLMPolicy("toy", variant, endpoint=toy)
    found = evaluate(plan, ["wait:300", policy], worlds=worlds, out=out, models=options)
    return summarise(found, "wait:300")[1]


def test_a_model_is_graded_like_any_policy(plan: Plan) -> None:
    # Read at once, wait 300 s, read, re-issue: what `replay` says of it, world by world.
    toy = Toy(patient_script)
    policy = LLMPolicy("toy", endpoint=toy)
    found = evaluate(plan, [policy], worlds=25, models=QUICK)
    columns = found.episodes["llm:toy"]
    for world in range(25):
        words: list[str] = []
        while not (told := replay(plan, 0, world, words)).ended:
            words.append(patient(told.steps[-1].view.text))
        for name, value in told.outcome.items():
            assert columns[name][world] == value, (world, name)
        assert columns["reward"][world] == told.reward
    (row,) = summarise(found)
    assert (row["planned"], row["returned"], row["missing"], row["invalid"]) == (25, 25, 0, 0)
    assert row["tokens"] == 110 * row["model_calls"]
    assert row["model_calls"] == toy.asked - 1  # and one trial of schemas
    assert row["exactly_once_range"] == [row["exactly_once"]] * 2


def test_an_invalid_answer_is_asked_anew_with_what_was_wrong(plan: Plan) -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        if len(messages) == 2 and "reads 0" in messages[1]["content"]:
            return chat("```json\n" + answer("read") + "\n```")
        if len(messages) == 4:
            assert messages[2]["content"].startswith("```")
            assert "code fence" in messages[3]["content"]
            return chat(answer("finish"))
        return chat("Hello.")

    row = run(plan, Toy(script), worlds=5)
    assert (row["invalid"], row["invalid_episodes"], row["returned"]) == (5, 5, 5)
    assert row["unresolved"] == 0.0


def test_the_third_invalid_answer_ends_the_episode_uncertain(plan: Plan) -> None:
    row = run(plan, Toy(lambda path, body: chat("I would wait.")), worlds=5)
    assert (row["invalid"], row["returned"]) == (15, 5)
    assert row["unresolved"] == 1.0
    assert row["steps"] == 1.0


def test_a_finished_run_asks_nothing(plan: Plan, tmp_path: Path) -> None:
    first = Toy(patient_script)
    row = run(plan, first, out=tmp_path)
    again = Toy(patient_script)
    assert run(plan, again, out=tmp_path) == row
    assert again.asked == 0


def test_a_run_that_was_cut_off_pays_for_nothing_twice(plan: Plan, tmp_path: Path) -> None:
    class CutError(Exception):
        pass

    whole = Toy(patient_script)
    row = run(plan, whole, out=tmp_path / "whole")

    def cut(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if broken.asked > 40:
            raise CutError
        return patient_script(path, body)

    broken = Toy(cut)
    with pytest.raises(CutError):
        run(plan, broken, out=tmp_path / "cut")
    rest = Toy(patient_script)
    assert run(plan, rest, out=tmp_path / "cut") == row
    # At most the calls in flight are lost.
    assert 0 <= rest.asked - (whole.asked - 40) <= QUICK.concurrency
    with open_store(tmp_path / "cut", readonly=True) as store:
        assert store.spent().n_calls == whole.asked


def test_more_worlds_go_on_from_those_that_are_there(plan: Plan, tmp_path: Path) -> None:
    run(plan, Toy(patient_script), worlds=10, out=tmp_path)
    more = Toy(patient_script)
    row = run(plan, more, worlds=20, out=tmp_path)
    assert row == run(plan, Toy(patient_script), worlds=20)
    assert 0 < more.asked < row["model_calls"]


def test_worlds_without_an_answer_are_missing_and_scored_nowhere(plan: Plan) -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][-1]["content"]
        if "waits 1" in text:
            raise ProviderError("http_400", "context_length_exceeded", retry=False)
        return patient_script(path, body)

    found = evaluate(
        plan, ["wait:300", LLMPolicy("toy", endpoint=Toy(script))], worlds=40, models=QUICK
    )
    baseline, row = summarise(found, "wait:300")
    assert 0 < row["missing"] < 40
    assert row["returned"] == 40 - row["missing"] == row["episodes"]
    assert row["missing_reasons"] == {"http_400: context_length_exceeded": row["missing"]}
    assert row["exactly_once"] == 1.0  # those left had committed before the first read
    low, high = row["exactly_once_range"]
    assert (low, high) == (row["returned"] / 40, 1.0)
    # Compared on the worlds that came to an end only.
    assert row["versus"]["exactly_once"] == 0.0
    assert baseline["episodes"] == 40


def test_a_bad_request_stays_missing_but_passing_trouble_is_tried_again(
    plan: Plan, tmp_path: Path
) -> None:
    def script(kind: str, retry: bool) -> Any:
        def say(path: str, body: dict[str, Any]) -> dict[str, Any]:
            if "waits 1" in body["messages"][-1]["content"]:
                raise ProviderError(kind, "no", retry)
            return patient_script(path, body)

        return say

    bad = run(plan, Toy(script("http_400", False)), out=tmp_path / "bad")
    again = Toy(patient_script)
    assert run(plan, again, out=tmp_path / "bad") == bad
    assert again.asked == 0

    out = tmp_path / "passing"
    row = run(plan, Toy(script("http_503", True)), out=out)
    assert row["missing"] > 0
    assert row["provider_errors"] == 3 * row["missing"]
    healed = run(plan, Toy(patient_script), out=out)
    assert healed["missing"] == 0
    whole = run(plan, Toy(patient_script))
    counted = ("provider_errors",)
    assert {k: v for k, v in healed.items() if k not in counted} == {
        k: v for k, v in whole.items() if k not in counted
    }


def test_nothing_came_back(plan: Plan) -> None:
    def script(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "hello" in body["messages"][-1]["content"]:
            return chat("Hello.")
        raise ProviderError("http_400", "no", retry=False)

    found = evaluate(plan, [LLMPolicy("toy", endpoint=Toy(script))], worlds=3, models=QUICK)
    (row,) = summarise(found)
    assert (row["episodes"], row["missing"], row["exactly_once"]) == (0, 3, None)
    assert row["exactly_once_range"] == [0.0, 1.0]


def test_a_budget_ends_the_run_and_a_higher_one_goes_on(plan: Plan, tmp_path: Path) -> None:
    def options(tokens: int) -> ModelOptions:
        return ModelOptions(concurrency=4, limits=Limits(tokens=tokens))

    row = run(plan, Toy(patient_script), out=tmp_path, options=options(8000))
    assert row["stopped"] == "max_tokens"
    assert 0 < row["missing"] < 30
    assert row["missing_reasons"] == {"not run: max_tokens": row["missing"]}
    with open_store(tmp_path, readonly=True) as store:
        assert store.spent().tokens_in + store.spent().tokens_out <= 8000
    rest = run(plan, Toy(patient_script), out=tmp_path, options=options(10**9))
    assert rest == run(plan, Toy(patient_script))


def test_repeats_are_separate_draws_with_their_agreement(plan: Plan) -> None:
    toy = Toy(patient_script)
    options = ModelOptions(repeats=3, concurrency=5)
    row = run(plan, toy, worlds=20, options=options)
    assert (row["planned"], row["repeats"]) == (60, 3)
    assert row["model_calls"] == toy.asked - 1
    # A model that always answers alike agrees with itself.
    assert row["agreement"] == row["kappa"] == 1.0
    assert row["pass_hat_k"] == row["exactly_once"]


def columns_of(*hits: int) -> dict[str, Any]:
    return {"world": np.arange(len(hits)), "exactly_once": np.array(hits, dtype=bool)}


def test_agreement_by_hand() -> None:
    # Cohen (1960): p_o = .7, p_e = .5 * .6 + .5 * .4 = .5, kappa = .4.
    one = columns_of(1, 1, 1, 1, 0, 0, 0, 0, 1, 0)
    other = columns_of(1, 1, 1, 1, 0, 0, 0, 1, 0, 1)
    found = agreement([one, other])
    assert found["agreement"] == pytest.approx(0.7)
    assert found["kappa"] == pytest.approx(0.4)
    assert found["pass_hat_k"] == pytest.approx(0.4)
    assert agreement([columns_of(1, 1), columns_of(1, 1)])["kappa"] is None
    apart = {"world": np.array([70]), "exactly_once": np.array([True])}
    assert agreement([one, apart])["pass_hat_k"] is None


def test_pooling_means_over_the_runs_that_came_to_an_end(plan: Plan) -> None:
    found = evaluate(plan, ["wait:300"], worlds=4).episodes["wait:300"]
    first = {name: values[:3] for name, values in found.items()}
    second = {name: values[1:] for name, values in found.items()}
    both = pooled([first, second])
    assert both["world"].tolist() == [0, 1, 2, 3]
    assert np.array_equal(both["reward"], found["reward"])


def test_a_limit_in_dollars_needs_prices() -> None:
    with pytest.raises(UserError, match="--price"):
        ModelOptions(limits=Limits(usd=1.0))
    ModelOptions(limits=Limits(usd=1.0), prices=Prices(1.0, 1.0))
    for bad in ({"repeats": 0}, {"concurrency": 0}):
        with pytest.raises(UserError, match="must lie in"):
            ModelOptions(**bad)  # type: ignore[arg-type]
