"""The class's docstring is the documentation page, and it tells what the code does."""

from __future__ import annotations

import doctest
import inspect
import re

import gymnasium

from exactlyonce_env import FEATURES, RecoveryEnv, RecoveryVectorEnv
from exactlyonce_env.actions import ACTION_NAMES, WAITS_S
from exactlyonce_env.envs.page import action_table, filled, observation_table
from exactlyonce_env.observation import N_FEATURES
from exactlyonce_env.vocabulary import Action

PAGE = RecoveryEnv.__doc__ or ""
SECTIONS = [
    "Description",
    "Action Space",
    "Observation Space",
    "Rewards",
    "Starting State",
    "Episode End",
    "Info",
    "Arguments",
    "Version History",
]


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]


def test_the_page_has_gymnasiums_sections() -> None:
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == SECTIONS
    assert "{" not in PAGE.replace('{"world": k}', "").replace('{"duplicate": 3.0}', "")
    assert inspect.cleandoc(PAGE) == PAGE


def test_every_feature_stands_in_the_page() -> None:
    assert observation_table() in PAGE
    assert f"Box(-1, 2, ({N_FEATURES},), float32)" in PAGE
    head, _, *body = rows(observation_table())
    assert head == ["index", "name", "unit", "min", "max", "meaning"]
    told = []
    for index, name, unit, low, high, meaning in body:
        first, _, last = index.partition(" to ")
        span = range(int(first), int(last or first) + 1)
        told += list(span)
        names = name.split(" to ")
        assert names[0] == FEATURES[span[0]].name
        assert names[-1] == FEATURES[span[-1]].name
        for k in span:
            feature = FEATURES[k]
            assert (feature.unit, f"{feature.low:g}", f"{feature.high:g}") == (unit, low, high)
            assert len(feature.meaning) == len(meaning)  # "attempt j" for "attempt 0"
    assert told == list(range(N_FEATURES))


def test_every_action_stands_in_the_page() -> None:
    assert action_table() in PAGE
    _, _, *body = rows(action_table())
    assert [(int(k), name) for k, name, _ in body] == list(enumerate(ACTION_NAMES))
    for seconds in WAITS_S:
        assert f"lets {seconds:g} s pass" in action_table()
    kinds = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in Action)
    assert f"kinds {kinds}" in " ".join(PAGE.split())


def test_every_info_key_and_argument_is_documented() -> None:
    env = gymnasium.make("ExactlyOnce/LateTail-v0", reveal=True)
    for key in env.reset(seed=0)[1]:
        assert f"| `{key}` |" in PAGE
    parameters = inspect.signature(RecoveryEnv).parameters
    for name, parameter in parameters.items():
        default = f'"{parameter.default}"' if isinstance(parameter.default, str) else None
        assert f"| `{name}` | `{default or parameter.default}` |" in PAGE


def test_the_vector_env_takes_the_same_keywords_and_documents_its_own() -> None:
    single = inspect.signature(RecoveryEnv).parameters
    vector = inspect.signature(RecoveryVectorEnv).parameters
    assert [name for name in vector if name not in single] == ["num_envs", "autoreset_mode", "copy"]
    for name, parameter in single.items():
        assert vector[name] == parameter
    for name in ("num_envs", "autoreset_mode", "copy"):
        assert f"| `{name}` |" in (RecoveryVectorEnv.__doc__ or "")


def test_the_pages_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["observation"] in names["env"].observation_space  # type: ignore[attr-defined]
    assert doctest.script_from_examples(PAGE) is not None


def test_stripped_docstrings_do_no_harm() -> None:
    assert filled(None) == ""
