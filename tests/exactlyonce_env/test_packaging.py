"""The distribution: what it asks for, what it ships, and which package may import which."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("exactlyonce_env", "policies", "training", "evaluation")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
APART = {"openenv", "verifiers"}  # each installed alone: they contradict the pins, and each other
EXTRAS = APART | {
    "train", "export", "llm", "local-llm", "mcp", "inspect", "trl", "ray", "report", "dev",
}  # fmt: skip

MAY_IMPORT = {
    "exactlyonce_env": {"exactlyonce_env"},
    "policies": {"exactlyonce_env", "policies"},
    "training": {"exactlyonce_env", "policies", "training"},
    "evaluation": {"exactlyonce_env", "policies", "evaluation"},
}
SOURCES = sorted(
    path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py")
)
OPTIONAL_MODULES = {
    "gguf", "inspect_ai", "jinja2", "mcp", "onnx", "onnxruntime", "openai", "openenv",
    "ray", "regex", "safetensors", "stable_baselines3", "tokenizers", "torch", "transformers",
    "verifiers",
}  # fmt: skip


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found = {}
    for requirement in requirements:
        (exact,) = requirement.specifier
        assert exact.operator == "==", requirement
        found[canonicalize_name(requirement.name)] = Version(exact.version)
    assert len(found) == len(requirements)
    return found


def requirements_of(*extras: str) -> list[Requirement]:
    groups = PROJECT["optional-dependencies"]
    return [Requirement(line) for extra in extras for line in groups[extra]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("exactlyonce_env-*.whl")
    return zipfile.ZipFile(built)


@pytest.mark.parametrize(
    ("version", "supported"),
    [("3.10", False), ("3.11", True), ("3.12", True), ("3.13", True), ("3.14", False)],
)
def test_python_range(version: str, supported: bool) -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains(version) is supported


def test_extras_are_the_documented_ones() -> None:
    assert set(PROJECT["optional-dependencies"]) == EXTRAS


def test_base_install_stays_light() -> None:
    base = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    heavy = {canonicalize_name(requirement.name) for requirement in requirements_of(*EXTRAS)}
    assert not base & heavy
    assert base == {
        "fastjsonschema", "gymnasium", "matplotlib", "numba", "numpy", "openpyxl", "pyarrow",
        "pydantic", "pyyaml", "rich", "scipy", "statsmodels", "typer",
    }  # fmt: skip


def test_constraints_pin_every_direct_dependency_within_its_range() -> None:
    pinned = pins()
    direct = [Requirement(line) for line in PROJECT["dependencies"]] + requirements_of(
        *(EXTRAS - APART)
    )
    for requirement in direct:
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    assert pinned["torch"] == Version("2.13.0")


def test_wheel_ships_exactly_the_four_packages(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in shipped} == set(PACKAGES)
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".json", ".yaml"} or path.name == "py.typed"
    }
    assert sources <= shipped
    assert {f"{package}/py.typed" for package in PACKAGES} <= shipped
    assert not [name for name in shipped if "__pycache__" in name or "/tests/" in name]


def test_wheel_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "exactlyonce-env"
    assert metadata["Version"] == PROJECT["version"] == "0.1.0"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(">=3.11,<3.14")
    assert set(metadata.get_all("Provides-Extra")) == EXTRAS
    scripts = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "exactlyonce = exactlyonce_env.cli:main" in scripts
    assert name.replace("METADATA", "licenses/LICENSE") in wheel.namelist()


def test_importing_the_package_imports_nothing_slow_and_no_sibling(run_python) -> None:
    code = "import sys, exactlyonce_env; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    loaded = set(run_python("-c", code).stdout.split())
    assert "exactlyonce_env" in loaded
    slow = {"matplotlib", "pandas", "pyarrow", "rich", "statsmodels", "torch", "typer"}
    assert not loaded & (slow | set(PACKAGES[1:]))


@pytest.mark.parametrize("source", SOURCES)
def test_arrows_point_one_way(source: str) -> None:
    package = source.partition("/")[0]
    if source.startswith("exactlyonce_env/cli/"):
        return
    allowed = MAY_IMPORT[package]
    for node in ast.walk(ast.parse((ROOT / source).read_text())):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported = [node.module or ""]
        else:
            continue
        ours = {name.partition(".")[0] for name in imported} & set(PACKAGES)
        assert ours <= allowed, f"{source}:{node.lineno}"


@pytest.mark.parametrize("source", [name for name in SOURCES if not name.endswith("__main__.py")])
def test_docstring_examples(source: str) -> None:
    name = source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL_MODULES:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
