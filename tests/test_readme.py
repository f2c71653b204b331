"""The README tells the truth: every command and snippet in it runs, and its table is today's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from exactlyonce_env.presets import load_plan

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


CONSOLE = [
    line.removeprefix("$ ")
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("$ ")
]


def test_every_console_command_runs(run_cli, tmp_path):
    """In their order, in one folder: later ones use what earlier ones wrote."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    assert len(CONSOLE) >= 8
    for line in CONSOLE:
        program, *args = shlex.split(line)
        assert program == "exactlyonce"
        done = run_cli(*args, cwd=tmp_path, timeout_s=300)
        assert done.returncode == 0, (line, done.stderr)
        assert done.stderr == "", line


@pytest.mark.parametrize("code", blocks("python"))
def test_every_snippet_runs(run_python, tmp_path, code):
    done = run_python("-c", code, cwd=tmp_path, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_configuration_is_taken():
    import yaml

    (block,) = blocks("yaml")
    plan = load_plan("stale-tail", config={**yaml.safe_load(block), "lags_s": None})
    assert plan.contracts["lag_s"].tolist() == [45.0]
    assert plan.contracts["costs"]["duplicate"].tolist() == [3.0]


def test_every_trait_of_a_service_is_listed():
    from exactlyonce_env.sandbox.options import Options

    listed = re.findall(r"^\| `(\w+)=", README, re.MULTILINE)
    assert listed == list(Options.model_fields)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (first, *_) = blocks("")
    targets = re.findall(r"^make (\w+)", first, re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_table_is_what_the_demo_prints(run_cli, tmp_path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    policies = re.search(r"^DEMO_POLICIES := (.*)$", makefile, re.MULTILINE)
    demo = re.search(r"^DEMO \?= (.*)$", makefile, re.MULTILINE)
    assert policies is not None
    assert demo is not None
    command = demo[1].replace("$(DEMO_POLICIES)", policies[1])
    done = run_cli(*shlex.split(command), cwd=tmp_path, timeout_s=300)
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"<!-- demo -->\n```\n(.*?)```\n<!-- /demo -->", README, re.DOTALL)
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    for line in shown.splitlines():
        assert line.rstrip() in printed
    assert len(shown.splitlines()) > 20
    for name in ("manifest.json", "frontier.png", "frontier.svg", "summary.json", "sweep.json"):
        assert (tmp_path / "runs" / "demo" / name).is_file()
