"""Versions of installed packages, for manifests."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["version_of"]


def version_of(distribution: str) -> str:
    """The version of a distribution, or that it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
