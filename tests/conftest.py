"""What all tests share: a quiet, reproducible process, and the command line as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before numba, torch or matplotlib read them. Two test processes share two cores.
for name, value in {
    "MPLBACKEND": "Agg",
    "NUMBA_NUM_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(name, value)

# Started in the background of a script, a process ignores Ctrl-C and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Solved contracts of the tests stay out of the user's cache; each process starts with none.
_SOLVED = tempfile.TemporaryDirectory(prefix="exactlyonce-tests-")
os.environ["EXACTLYONCE_CACHE_DIR"] = _SOLVED.name

# The first example of a property pays for compilation, so neither a deadline nor a slow start is a
# fault. In CI the same examples are tried each time; elsewhere new ones are.
settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

ROOT = Path(__file__).resolve().parents[1]

RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def no_terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the size that a test runner exports where it loads readline: tables follow it."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The folder that holds the four packages."""
    return ROOT


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run the interpreter in a process of its own: ``run_python("-c", code, cwd=folder)``.

    The packages are found whether or not they are installed. Nothing is raised on a non-zero exit.
    """

    def run(
        *args: str,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *args],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def run_cli(run_python: RunPython) -> RunPython:
    """Run the program as a user does: ``run_cli("presets", "--json", "-", cwd=folder)``."""

    def run(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
        return run_python("-m", "exactlyonce_env", *args, **options)

    return run


Run = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command that succeeds prints."""

    def run(*args: str) -> str:
        from exactlyonce_env.cli import main

        assert main(list(args)) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Run:
    """The one line of a command that refuses its input."""

    def run(*args: str) -> str:
        from exactlyonce_env.cli import main

        assert main(list(args)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    return run
