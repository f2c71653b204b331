"""The command line in the tests' own process: what it prints, and how it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from exactlyonce_env.cli import main

Run = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command that succeeds prints."""

    def run(*args: str) -> str:
        assert main(list(args)) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Run:
    """The one line of a command that refuses its input."""

    def run(*args: str) -> str:
        assert main(list(args)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    return run
