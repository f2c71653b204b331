"""Naming policies."""

from __future__ import annotations

import sys

import pytest

from exactlyonce_env.errors import UserError
from policies.base import Bound, Policy, PrivilegedPolicy
from policies.spec import LINEUP, POLICY_NAMES, REGISTRY, Entry, parse_policy


@pytest.mark.parametrize("spec", LINEUP)
def test_a_shipped_spec_is_canonical(spec: str) -> None:
    policy = parse_policy(spec)
    assert policy.spec == spec
    assert isinstance(policy, Policy | PrivilegedPolicy | Bound)


def test_the_line_up_holds_every_name_once() -> None:
    # A choice of networks, a programme that takes longer, and models that must be paid for.
    apart = ("learned", "bayes-optimal", "llm")
    compared = tuple(name for name in POLICY_NAMES if name not in apart)
    assert tuple(spec.partition(":")[0] for spec in LINEUP) == compared


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        (" guard ", "guard"),
        ("wait: 300", "wait:300"),
        ("wait:300.0", "wait:300"),
        ("wait:0.5", "wait:0.5"),
        ("poll:1e3", "poll:1000"),
        ("wait:1234567.25", "wait:1234567.25"),
        ("wait:-0", "wait:0"),
    ],
)
def test_other_spellings_become_canonical(written: str, canonical: str) -> None:
    assert parse_policy(written).spec == canonical
    assert parse_policy(canonical).spec == canonical


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("gaurd", "did you mean guard?"),
        ("Blind_Retry", "did you mean blind-retry?"),
        ("zzz", "choose from never-retry, "),
        ("", "wait:SECONDS"),
        ("wait", "needs a number of seconds >= 0, for instance wait:300"),
        ("wait:", "needs a number of seconds >= 0"),
        ("poll:soon", "not 'soon'"),
        ("wait:-1", "not '-1'"),
        ("wait:nan", "not 'nan'"),
        ("poll:inf", "not 'inf'"),
        ("guard:5", "takes no argument"),
        ("same-key:", "takes no argument"),
        ("outcome-oracle:1", "takes no argument"),
    ],
)
def test_a_bad_spec_is_one_line_that_names_the_mend(written: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_policy(written)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_own_entry_extends_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(Policy):
        def __init__(self, name: str, argument: str | None) -> None:
            self.made_of = (name, argument)

        def act(self, batch):  # type: ignore[no-untyped-def]
            raise NotImplementedError

    monkeypatch.setattr(sys.modules[__name__], "Named", Named, raising=False)
    monkeypatch.setitem(REGISTRY, "mine", Entry(f"{__name__}:Named", "text", "an own policy"))
    policy = parse_policy("mine:some:text")
    assert isinstance(policy, Named)
    assert policy.made_of == ("mine", "some:text")


def test_naming_needs_no_compiler(run_python) -> None:  # type: ignore[no-untyped-def]
    code = "import sys, policies.spec; sys.exit('numba' in sys.modules)"
    assert run_python("-c", code).returncode == 0
