"""The shell around the commands: exit codes, error lines, JSON, and foreign packages nearby."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from exactlyonce_env.cli import main, origin
from exactlyonce_env.cli.commands import COMMANDS
from exactlyonce_env.cli.output import JsonTarget, human_console, to_jsonable, write_json
from exactlyonce_env.errors import UserError

SIBLINGS = ("policies", "training", "evaluation")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], None]:
    """Make a function the command `probe`."""

    def put(function: Callable[..., None]) -> None:
        monkeypatch.setitem(
            COMMANDS, "probe", SimpleNamespace(help="A probe.", load=lambda: function)
        )

    return put


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    """A user's project that has packages of our names, none of which may be imported."""
    for name in SIBLINGS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('foreign {name}')\n")
    return tmp_path


def script(command: str, start: str = "sys.exit(main())") -> str:
    """Return a program whose command `probe` runs the given statements."""
    body = textwrap.indent(textwrap.dedent(command), "    ")
    return (
        "import sys, types\n"
        "from exactlyonce_env.cli import main\n"
        "from exactlyonce_env.cli.commands import COMMANDS\n"
        f"def probe() -> None:\n{body}\n"
        "COMMANDS['probe'] = types.SimpleNamespace(help='', load=lambda: probe)\n"
        f"{start}\n"
    )


def the_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on stderr, having seen that stdout is empty."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("\n")
    (line,) = captured.err.splitlines()
    return line


# --- the list of commands -------------------------------------------------------------------------


def test_help_lists_every_command_and_imports_none(run_python) -> None:
    code = (
        "import sys; from exactlyonce_env.cli import main; code = main(['--help']);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = run_python("-c", code)
    assert done.returncode == 0
    for name, command in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert command.help in done.stdout
    loaded = set(done.stderr.split())
    assert not loaded & {f"exactlyonce_env.cli.{command.module}" for command in COMMANDS.values()}
    assert not loaded & {"numba", "rich", "pandas", "matplotlib", "pyarrow", *SIBLINGS}


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_no_command_is_a_request_for_help(args: tuple[str, ...], capsys) -> None:
    assert main(args) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: exactlyonce [OPTIONS] COMMAND")
    assert captured.err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys) -> None:
    assert main([name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"Usage: exactlyonce {name} ")
    assert "--json PATH" in captured.out
    assert captured.err == ""


def test_version_is_the_distributions(repo_root: Path, capsys, monkeypatch) -> None:
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    monkeypatch.setattr("importlib.metadata.version", {project["name"]: project["version"]}.get)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"exactlyonce-env {project['version']}\n"


# --- bad input ------------------------------------------------------------------------------------


def counted(
    place: Annotated[str, typer.Argument(metavar="PLACE")],
    worlds: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    print(f"{place} {worlds}")


def test_arguments_reach_the_function(install, capsys) -> None:
    install(counted)
    assert main(["probe", "here", "--worlds", "7"]) == 0
    assert capsys.readouterr().out == "here 7\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["evalute"], ["error: no command 'evalute'", "did you mean 'evaluate'?", "sweep"]),
        (["xyzzy"], ["error: no command 'xyzzy'", "commands: ", "evaluate"]),
        (["--frobnicate"], ["error: no such option: --frobnicate", "'exactlyonce --help'"]),
        (["--frobnicate", "probe"], ["error: no such option: --frobnicate"]),
        (["probe"], ["error: missing argument 'PLACE'", "'exactlyonce probe --help'"]),
        (["probe", "here", "--world", "3"], ["error: no such option: --world", "--worlds"]),
        (["probe", "here", "--worlds", "many"], ["error: invalid value for '--worlds'", "many"]),
        (["probe", "here", "--worlds", "0"], ["error: invalid value for '--worlds'"]),
        (["probe", "here", "--worlds"], ["error: ", "--worlds"]),
        (["probe", "here", "there"], ["error: ", "there"]),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    args: list[str], words: list[str], install, capsys
) -> None:
    install(counted)
    assert main(args) == 2
    line = the_line(capsys)
    for word in words:
        assert word in line


def test_user_error_is_one_printable_line(install, capsys) -> None:
    def refuse() -> None:
        raise UserError("preset 'x\x1b[31m'\n is unknown;\n\n choose from a, Δ")

    install(refuse)
    assert main(["probe"]) == 2
    assert the_line(capsys) == "error: preset 'x\\x1b[31m' is unknown; choose from a, Δ"


def test_file_that_cannot_be_opened_is_bad_input(install, tmp_path: Path, capsys) -> None:
    install((tmp_path / "nowhere.csv").read_text)
    assert main(["probe"]) == 2
    line = the_line(capsys)
    assert "nowhere.csv" in line
    assert "No such file" in line


def test_defects_are_not_dressed_up_as_bad_input(install) -> None:
    install(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["probe"])


def test_warnings_do_not_reach_stderr(run_python) -> None:
    code = script("import warnings; warnings.warn('noise'); print('done')")
    done = run_python("-c", code, "probe")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert "noise" in run_python("-W", "always", "-c", code, "probe").stderr


# --- interruption ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "args", "line"),
    [
        ((), ["--out", "runs/a"], "interrupted; finished work is kept in runs/a, run the same"),
        ((), ["--out=runs/a"], "interrupted; finished work is kept in runs/a, run the same"),
        ((), [], "interrupted; nothing is kept without --out RUN"),
        (("3 of 9 policies are kept",), [], "3 of 9 policies are kept"),
    ],
)
def test_interrupt_says_what_is_kept(
    raised: tuple[str, ...], args: list[str], line: str, install, capsys
) -> None:
    def stop(out: str = "") -> None:
        raise KeyboardInterrupt(*raised)

    install(stop)
    assert main(["probe", *args]) == 130
    assert the_line(capsys).startswith(line)


def test_ctrl_c_ends_the_process_with_130_and_one_line(repo_root: Path) -> None:
    code = script("import time; print('started', flush=True); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", code, "probe"],
        cwd=repo_root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that starts the tests in the background makes them ignore the signal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("lines", [1, 200_000])
def test_closed_pipe_is_quiet(lines: int, repo_root: Path) -> None:
    code = script(f"input(); [print(i) for i in range({lines})]")
    with subprocess.Popen(
        [sys.executable, "-c", code, "probe"],
        cwd=repo_root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


# --- JSON -----------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    where: Path


RECORDS = np.array([(1, 0.5), (2, np.nan)], dtype=[("id", "i4"), ("delay_s", "f8")])


@pytest.mark.parametrize(
    ("obj", "plain"),
    [
        ({"a": float("nan"), "b": [float("inf"), -float("inf")]}, {"a": None, "b": [None, None]}),
        (np.float64("nan"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (True, True),
        (np.array([[1, 2], [3, 4]], dtype=np.int8), [[1, 2], [3, 4]]),
        (np.array([0.5, np.nan]), [0.5, None]),
        (np.array(2.5), 2.5),
        (np.array([], dtype=np.float64), []),
        (RECORDS, [{"id": 1, "delay_s": 0.5}, {"id": 2, "delay_s": None}]),
        (RECORDS[0], {"id": 1, "delay_s": 0.5}),
        ({0.5: 1, np.int64(7): 2}, {"0.5": 1, "7": 2}),
        (Colour.RED, "red"),
        (Point(np.float64(1.5), Path("a/b")), {"x": 1.5, "where": "a/b"}),
        ({3, 1, 2}, [1, 2, 3]),
        ((1, "Δ", None), [1, "Δ", None]),
    ],
)
def test_values_become_plain(obj: object, plain: object, capsys) -> None:
    converted = to_jsonable(obj)
    assert converted == plain
    assert type(converted) is type(plain)
    write_json(obj, "-")
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == plain


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)  # fmt: skip
def test_plain_values_survive_unchanged(obj: object) -> None:
    assert json.loads(json.dumps(to_jsonable(obj))) == obj


@pytest.mark.parametrize("obj", [object(), {None: 1}, {True: 1}, [1 + 2j], b"x", np.void(b"x")])
def test_what_has_no_json_form_is_refused(obj: object) -> None:
    with pytest.raises(TypeError, match="JSON"):
        to_jsonable(obj)


def test_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_json([1], str(path))
    with pytest.raises(TypeError):
        write_json([1, object()], str(path))
    assert json.loads(path.read_text()) == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.json"]


def test_file_keeps_links_devices_and_the_usual_permissions(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    link = tmp_path / "link.json"
    link.symlink_to(real)
    write_json({"a": 1}, str(link), indent=None)
    assert link.is_symlink()
    assert real.read_text() == '{"a": 1}\n'
    plain = tmp_path / "plain"
    plain.touch()
    assert real.stat().st_mode == plain.stat().st_mode
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json([1], str(pipe), indent=None)
    assert os.read(reader, 100) == b"[1]\n"
    assert pipe.is_fifo()
    os.close(reader)


@pytest.mark.parametrize("target", ["missing/rows.json", ".", "", "file/rows.json"])
def test_json_target_is_refused_before_any_work(
    target: str, install, tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    started: list[str | None] = []

    def work(json_target: JsonTarget = None) -> None:
        started.append(json_target)

    install(work)
    assert main(["probe", "--json", target]) == 2
    assert "--json" in the_line(capsys)
    assert started == []
    assert main(["probe", "--json", "rows.json"]) == 0
    assert started == ["rows.json"]


def test_stdout_belongs_to_json_alone(install, tmp_path: Path, capsys) -> None:
    def both(json_target: JsonTarget = None) -> None:
        human_console(json_target).print("a table")
        if json_target is not None:
            write_json({"n": 1}, json_target)

    install(both)
    assert main(["probe", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 1}
    assert main(["probe", "--json", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out == "a table\n"


# --- foreign packages of the same names -----------------------------------------------------------

ORIGINS = """
import policies, training, evaluation
for module in (policies, training, evaluation):
    print(module.__file__)
"""
AS_MODULE = (
    "import runpy; sys.path.insert(0, '');"
    "runpy.run_module('exactlyonce_env', run_name='__main__', alter_sys=True)"
)


@pytest.mark.parametrize("start", ["sys.exit(main())", AS_MODULE])
@pytest.mark.parametrize("first_on_path", [False, True])
def test_program_uses_its_own_packages_in_a_foreign_folder(
    start: str, first_on_path: bool, foreign_folder: Path, run_python, repo_root: Path
) -> None:
    path = [str(repo_root)]
    path.insert(0 if first_on_path else 1, str(foreign_folder))
    done = run_python(
        "-c",
        script(ORIGINS, start),
        "probe",
        cwd=foreign_folder,
        env={"PYTHONPATH": os.pathsep.join(path)},
    )
    assert done.stderr == ""
    assert done.stdout.split() == [str(repo_root / name / "__init__.py") for name in SIBLINGS]


def test_module_form_starts_in_a_foreign_folder(foreign_folder: Path, run_cli) -> None:
    done = run_cli("--help", cwd=foreign_folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_gymnasium_make_works_in_a_foreign_folder(foreign_folder: Path, run_python) -> None:
    code = (
        "import gymnasium; e = gymnasium.make('exactlyonce_env:ExactlyOnce/LateTail-v0');"
        "print(e.reset(seed=1)[0].dtype)"
    )
    done = run_python("-c", code, cwd=foreign_folder)
    assert (done.returncode, done.stdout) == (0, "float32\n"), done.stderr


def test_foreign_package_imported_first_is_named(install, monkeypatch, capsys) -> None:
    foreign = ModuleType("training")
    foreign.__file__ = "elsewhere/training/__init__.py"
    monkeypatch.setitem(sys.modules, "training", foreign)
    install(lambda: None)
    assert main(["probe"]) == 2
    line = the_line(capsys)
    assert "'training'" in line
    assert "elsewhere/training/__init__.py" in line


def test_working_directory_leaves_the_path_unless_the_package_lives_there(
    tmp_path: Path, repo_root: Path, monkeypatch
) -> None:
    for folder, entry, kept in [
        (tmp_path, "", False),
        (tmp_path, str(tmp_path), False),
        (tmp_path, str(repo_root), True),
        (repo_root, "", True),
        (repo_root, str(repo_root), True),
    ]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [entry, "further"])
        origin.forget_working_directory()
        assert sys.path == ([entry, "further"] if kept else ["further"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("extra", [(), ("--json", "-")])
def test_full_disk_behind_stdout_is_one_line(extra: tuple[str, ...], repo_root: Path) -> None:
    command = [sys.executable, "-m", "exactlyonce_env", "presets", "late-tail", *extra]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=repo_root, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_a_locale_without_the_signs_of_a_table_is_no_error(repo_root: Path) -> None:
    command = [sys.executable, "-m", "exactlyonce_env", "presets"]
    done = subprocess.run(
        command,
        capture_output=True,
        cwd=repo_root,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"late-tail" in done.stdout
