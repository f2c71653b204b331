"""Asking within budgets, patiently, and never twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evaluation.llm.calling import BudgetError, Calls, Limits, NoAnswerError, Prices
from evaluation.llm.store import open_store
from exactlyonce_env.errors import UserError
from policies.llm.endpoint import CHAT, Patience, ProviderError, patiently, retry_after_s

QUICK = Patience(retries=3, first_s=0.0, longest_s=0.0)


class Scripted:
    """Answers, or raises, what it was given, in order; then answers for ever."""

    def __init__(self, *script: ProviderError | None, tokens: tuple[int, int] = (10, 5)) -> None:
        self.script = list(script)
        self.tokens = tokens
        self.asked = 0
        self.open = 0
        self.most_open = 0

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        trouble = self.script.pop(0) if self.script else None
        if trouble is not None:
            raise trouble
        read, written = self.tokens
        return {"usage": {"prompt_tokens": read, "completion_tokens": written}}


def trouble(kind: str = "http_500", retry: bool = True, fatal: bool = False) -> ProviderError:
    return ProviderError(kind, "no", retry, fatal=fatal)


def body(text: str = "x", most: int = 10) -> dict[str, Any]:
    return {"model": "m", "max_tokens": most, "messages": [{"role": "user", "content": text}]}


def test_what_was_answered_is_never_asked_again() -> None:
    endpoint = Scripted()
    with open_store(None) as store:
        calls = Calls(endpoint, store)
        first = asyncio.run(calls.ask("a", 0, CHAT, body()))
        assert asyncio.run(calls.ask("a", 0, CHAT, body())) == first
        assert endpoint.asked == 1
        asyncio.run(calls.ask("b", 0, CHAT, body()))
        assert endpoint.asked == 2


def test_trouble_is_counted_and_borne() -> None:
    endpoint = Scripted(trouble(), trouble("http_429"), trouble("timeout"))
    with open_store(None) as store:
        calls = Calls(endpoint, store, patience=QUICK)
        asyncio.run(calls.ask("a", 0, CHAT, body()))
        assert endpoint.asked == 4
        assert dict(calls.trouble) == {"http_500": 1, "http_429": 1, "timeout": 1}
        assert store.spent("a").trouble == 3


def test_patience_ends() -> None:
    endpoint = Scripted(*[trouble()] * 9)
    with open_store(None) as store:
        calls = Calls(endpoint, store, patience=QUICK)
        with pytest.raises(NoAnswerError) as found:
            asyncio.run(calls.ask("a", 0, CHAT, body()))
    assert endpoint.asked == 1 + QUICK.retries
    assert not found.value.final  # another run may have more luck


def test_a_bad_request_is_not_repeated() -> None:
    endpoint = Scripted(trouble("http_400", retry=False))
    with open_store(None) as store:
        calls = Calls(endpoint, store, patience=QUICK)
        with pytest.raises(NoAnswerError) as found:
            asyncio.run(calls.ask("a", 0, CHAT, body()))
    assert endpoint.asked == 1
    assert found.value.final


def test_a_wrong_key_ends_the_run() -> None:
    endpoint = Scripted(trouble("http_401", retry=False, fatal=True))
    with open_store(None) as store:
        calls = Calls(endpoint, store, patience=QUICK)
        with pytest.raises(UserError, match="http_401"):
            asyncio.run(calls.ask("a", 0, CHAT, body()))


def test_the_budget_of_tokens_is_never_exceeded() -> None:
    endpoint = Scripted(tokens=(60, 10))

    async def run(calls: Calls) -> int:
        async def one(place: str) -> bool:
            try:
                await calls.ask(place, 0, CHAT, body("x" * 100))
            except BudgetError:
                return False
            return True

        return sum(await asyncio.gather(*(one(str(k)) for k in range(50))))

    with open_store(None) as store:
        calls = Calls(endpoint, store, limits=Limits(tokens=1000))
        done = asyncio.run(run(calls))
        spent = store.spent()
    assert calls.stopped == "max_tokens"
    assert done == spent.n_calls == endpoint.asked
    assert 700 <= spent.tokens_in + spent.tokens_out <= 1000


def test_the_budget_in_dollars_counts_what_earlier_commands_spent() -> None:
    with open_store(None) as store:
        store.add("old", 0, CHAT, body(), {}, (0, 0), 0.99, 0.0)
        calls = Calls(Scripted(), store, prices=Prices(1e4, 1e4), limits=Limits(usd=1.0))
        with pytest.raises(BudgetError, match="max_usd"):
            asyncio.run(calls.ask("a", 0, CHAT, body()))


def test_a_call_costs_what_its_tokens_cost() -> None:
    assert Prices(2.0, 8.0).usd((1_000_000, 500_000)) == 6.0


def test_a_pause_doubles_and_obeys_the_provider() -> None:
    patience = Patience(first_s=1.0, longest_s=5.0, obeyed_s=60.0)
    for tries, low, high in ((1, 1.0, 1.25), (2, 2.0, 2.5), (9, 5.0, 6.25)):
        assert low <= patience.pause_s(tries, 0.0) <= high
    assert patience.pause_s(1, 20.0) == 20.0
    assert patience.pause_s(1, 1e9) == 60.0


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("soon", 0.0), ("", 0.0)]
)
def test_retry_after_is_read(header: str, seconds: float) -> None:
    assert retry_after_s({"retry-after": header}) == seconds


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_s({"retry-after": "Fri, 01 Jan 2100 00:00:00 GMT"}) > 1e6
    assert retry_after_s({"retry-after": "Fri, 01 Jan 2021 00:00:00 GMT"}) == 0.0


def test_patiently_raises_the_last_failure() -> None:
    endpoint = Scripted(trouble("http_500"), trouble("http_503", retry=False))
    with pytest.raises(ProviderError, match="http_503"):
        asyncio.run(patiently(endpoint, CHAT, body(), QUICK))


def test_a_provider_that_tells_no_usage_does_not_escape_the_budget() -> None:
    endpoint = Scripted(tokens=(0, 0))
    with open_store(None) as store:
        calls = Calls(endpoint, store, limits=Limits(tokens=500))

        async def run() -> None:
            for k in range(100):
                await calls.ask(str(k), 0, CHAT, body())

        with pytest.raises(BudgetError):
            asyncio.run(run())
    assert 0 < endpoint.asked < 20


def test_a_retry_after_beyond_the_calendar_is_none() -> None:
    date = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"
    assert retry_after_s({"retry-after": date}) == 0.0
