"""The example around a real HTTP call, in a process in which Gymnasium cannot be imported."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.checkpoint import save_checkpoint

from .toy_network import patient_reader

Run = Callable[..., Any]

WITHOUT_GYMNASIUM = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "gymnasium":
            raise {error}
sys.meta_path.insert(0, Missing())
"""
MISSING = 'ModuleNotFoundError("No module named \'gymnasium\'", name="gymnasium")'


def test_the_example_needs_no_gymnasium(run_python: Run, repo_root: Path, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "toy.npz", patient_reader())
    script = repo_root / "examples" / "recover_http.py"
    code = WITHOUT_GYMNASIUM.format(error=MISSING) + (
        f"sys.argv = ['recover_http.py', 'learned:{path}']\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "assert 'gymnasium' not in sys.modules and 'torch' not in sys.modules\n"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" s  ")[-1].strip() for line in done.stdout.splitlines()]
    assert lines[:2] == ["read", "wait 60 s"]
    assert lines[-3:] == ["finish", "ended with finish", "orders at the service: 1"]


@pytest.mark.parametrize("error", [MISSING, 'ImportError("no")'])
def test_an_environment_says_what_is_missing(run_python: Run, error: str) -> None:
    code = WITHOUT_GYMNASIUM.format(error=error) + (
        "import exactlyonce_env\n"
        "exactlyonce_env.register_all()\n"
        "assert exactlyonce_env.load_plan('late-tail').preset.name == 'late-tail'\n"
        "from exactlyonce_env import RecoveryEnv\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: RecoveryEnv needs Gymnasium, which is not installed: pip install gymnasium"
    )


def test_a_gymnasium_that_is_broken_is_not_passed_over(run_python: Run) -> None:
    broken = 'ModuleNotFoundError("No module named \'cloudpickle\'", name="cloudpickle")'
    done = run_python("-c", WITHOUT_GYMNASIUM.format(error=broken) + "import exactlyonce_env")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'cloudpickle'"


def test_the_client_is_short(repo_root: Path) -> None:
    source = (repo_root / "examples" / "recover_http.py").read_text()
    (client,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "recover"
    ]
    assert client.end_lineno is not None
    lines = source.splitlines()[client.lineno : client.end_lineno]
    assert len([line for line in lines if line.strip()]) <= 28
