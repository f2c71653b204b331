"""Without the extra `train` there is nothing to test here but the line that says so."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDED = ("torch", "stable_baselines3", "sb3_contrib", "tensorboard")
_WITHOUT = {"test_cli_train.py", "test_settings.py"}


def pytest_ignore_collect(collection_path):
    """Leave out what cannot be imported; None leaves it to pytest."""
    lacks = any(find_spec(name) is None for name in _NEEDED)
    needs = collection_path.suffix == ".py" and collection_path.name not in _WITHOUT
    return True if lacks and needs and collection_path.name.startswith("test_") else None
