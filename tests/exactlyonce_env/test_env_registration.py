"""The ids: registered by import, once, in every process, from plain data."""

from __future__ import annotations

import json
import sys
import textwrap
import warnings
from collections.abc import Callable
from importlib import reload
from pathlib import Path
from subprocess import CompletedProcess

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec, registry

import exactlyonce_env
from exactlyonce_env import registration
from exactlyonce_env.errors import UserError
from exactlyonce_env.presets import PRESET_NAMES

RunPython = Callable[..., CompletedProcess[str]]

IDS = [
    "ExactlyOnce/LateFixed-v0",
    "ExactlyOnce/LateTail-v0",
    "ExactlyOnce/LateLomax-v0",
    "ExactlyOnce/StaleTail-v0",
    "ExactlyOnce/Native-v0",
    "ExactlyOnce/KeysEverywhere-v0",
    "ExactlyOnce/FirstDecision-v0",
    "ExactlyOnce/Contextual-v0",
    "ExactlyOnce/Empirical-v0",
    "ExactlyOnce/Recovery-v0",
]


def test_the_ids_are_those_of_the_design() -> None:
    assert list(registration.ENV_IDS) == IDS
    presets = list(registration.ENV_IDS.values())
    assert presets[:-1] == list(PRESET_NAMES)
    assert presets[-1] == "contextual"
    for env_id, preset in zip(IDS[:-1], PRESET_NAMES, strict=True):
        assert env_id == f"ExactlyOnce/{preset.title().replace('-', '')}-v0"


@pytest.mark.parametrize("env_id", IDS)
def test_a_spec_is_plain_and_adds_no_limit(env_id: str) -> None:
    spec = gymnasium.spec(env_id)
    assert spec.kwargs == {"preset": registration.ENV_IDS[env_id]}
    assert isinstance(spec.entry_point, str)
    assert isinstance(spec.vector_entry_point, str)
    assert spec.max_episode_steps is None  # the call budget ends episodes, inside the dynamics
    assert spec.order_enforce
    assert not spec.nondeterministic
    assert EnvSpec.from_json(spec.to_json()) == spec


def test_registering_twice_neither_warns_nor_changes_anything() -> None:
    before = dict(registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registration.register_all()
        reload(exactlyonce_env)
        gymnasium.register_envs(exactlyonce_env)
    assert {k: id(v) for k, v in registry.items()} == {k: id(v) for k, v in before.items()}


def test_a_made_env_keeps_a_spec_that_makes_it_again() -> None:
    env = gymnasium.make("ExactlyOnce/LateTail-v0", costs={"duplicate": 3.0}, reveal=True)
    spec = EnvSpec.from_json(env.spec.to_json())
    again = gymnasium.make(spec)
    first, info = env.reset(seed=4)
    second, told = again.reset(seed=4)
    assert first.tobytes() == second.tobytes()
    assert info["truth"] == told["truth"]
    assert again.unwrapped.plan is env.unwrapped.plan


def test_a_vector_spec_is_plain_too() -> None:
    envs = gymnasium.make_vec("ExactlyOnce/LateTail-v0", num_envs=3, autoreset_mode="SameStep")
    spec = json.loads(envs.spec.to_json())
    assert spec["kwargs"]["num_envs"] == 3
    assert gymnasium.make_vec(EnvSpec.from_json(envs.spec.to_json())).num_envs == 3


def test_a_misspelt_id_is_answered_with_the_right_one() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="LateTail"):
        gymnasium.make("ExactlyOnce/LateTale-v0")


def test_empirical_names_what_it_needs() -> None:
    with pytest.raises(UserError, match="delays"):
        gymnasium.make("ExactlyOnce/Empirical-v0")
    with pytest.raises(UserError, match="delays"):
        gymnasium.make_vec("ExactlyOnce/Empirical-v0", num_envs=2)
    env = gymnasium.make("ExactlyOnce/Empirical-v0", delays="lomax:c=0.8,scale=120")
    assert env.unwrapped.plan.situations[0].faults.late_tail.family == "lomax"


def test_the_passive_checker_is_off_and_can_be_put_back() -> None:
    plain = gymnasium.make("ExactlyOnce/LateTail-v0")
    checked = gymnasium.make("ExactlyOnce/LateTail-v0", disable_env_checker=False)
    assert "PassiveEnvChecker" not in str(plain)
    assert "PassiveEnvChecker" in str(checked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked.reset(seed=0)
        checked.step(1)
        checked.step(0)


def test_importing_the_package_loads_nothing_heavy(run_python: RunPython) -> None:
    code = """
        import sys
        import exactlyonce_env
        heavy = ("numba", "pydantic", "scipy", "matplotlib", "pandas", "pyarrow", "torch", "yaml")
        print([name for name in heavy if name in sys.modules])
        print(exactlyonce_env.RecoveryEnv.__name__, "numba" in sys.modules)
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[]", "RecoveryEnv True"]


def test_every_public_name_is_there() -> None:
    assert len(set(exactlyonce_env.__all__)) == len(exactlyonce_env.__all__)
    for name in exactlyonce_env.__all__:
        if name != "__version__":  # known to an installed distribution only
            assert getattr(exactlyonce_env, name) is not None
        assert name in dir(exactlyonce_env)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        exactlyonce_env.nonsense  # noqa: B018


SPAWN = """
import multiprocessing
import sys

import gymnasium
import numpy as np

import exactlyonce_env


def play(seed):
    env = gymnasium.make("ExactlyOnce/LateTail-v0")
    observation, _ = env.reset(seed=seed)
    return observation.tobytes()


def prefixed(seed):
    env = gymnasium.make("exactlyonce_env:ExactlyOnce/LateTail-v0")
    observation, _ = env.reset(seed=seed)
    return observation.tobytes()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.map(play, [3, 4]) == [play(3), play(4)]
        assert pool.map(prefixed, [3]) == [play(3)]
    envs = gymnasium.make_vec(
        "ExactlyOnce/LateTail-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn"},
    )
    native = gymnasium.make_vec("ExactlyOnce/LateTail-v0", num_envs=2)
    assert envs.reset(seed=3)[0].tobytes() == native.reset(seed=3)[0].tobytes()
    for action in ([0, 6], [9, 0], [0, 0]):
        ours, theirs = native.step(np.array(action)), envs.step(np.array(action))
        for a, b in zip(ours[:4], theirs[:4]):
            assert a.tobytes() == b.tobytes()
    envs.close()
    print("same")
"""


def test_spawned_processes_know_the_ids(tmp_path: Path, run_python: RunPython) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    done = run_python(str(script), timeout_s=300)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def test_the_prefix_alone_is_enough(run_python: RunPython) -> None:
    code = (
        "import gymnasium;"
        "env = gymnasium.make('exactlyonce_env:ExactlyOnce/LateFixed-v0');"
        "print(env.unwrapped.plan.preset.name)"
    )
    done = run_python("-c", code)
    assert (done.returncode, done.stdout) == (0, "late-fixed\n"), done.stderr


def test_modules_stay_importable_by_entry_point() -> None:
    for env_id in IDS:
        spec = gymnasium.spec(env_id)
        for point in (spec.entry_point, spec.vector_entry_point):
            module, name = point.split(":")
            __import__(module)
            assert getattr(sys.modules[module], name).metadata["render_modes"]
