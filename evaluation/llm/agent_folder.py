"""The folder of a run of agents: one configuration, written down before the first request.

Agents, instances and repeats may be added by later commands; everything else stays as it is, so
that a finished folder holds every planned episode of every agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluation.llm.agent_run import Agent, agent_cells
from evaluation.manifest import (
    Manifest,
    continue_manifest,
    new_manifest,
    read_manifest,
    sha256_of,
    worlds_hash,
    write_manifest,
)
from evaluation.run_folder import manifest_path, require_run_or_empty
from evaluation.sandbox import Cell
from exactlyonce_env.errors import UserError

__all__ = ["begin_folder", "planned_cells"]

KIND = "agent"
GROWING = ("instances", "repeats")


def begin_folder(
    folder: Path, agents: Sequence[Agent], factors: Mapping[str, Any], command: Sequence[str]
) -> Manifest:
    """Write the manifest of a run that is about to begin, or to go on.

    Parameters
    ----------
    folder
        Where: a run, or an empty folder, that the caller has locked.
    agents
        Who acts.
    factors
        The arguments of `agent_cells`.
    command
        The command line.

    Raises
    ------
    UserError
        For another kind of run, another configuration, and where instances or repeats are
        added without all agents of the folder.
    """
    require_run_or_empty(folder)
    ways = {one.spec: one.way() for one in agents}
    path = manifest_path(folder)
    before: Manifest | None = None
    if path.exists():
        before = read_manifest(path)
        if before.config.get("kind") != KIND or not isinstance(before.config["agents"], dict):
            raise UserError(f"{folder} holds a run that is none of agents: choose another folder")
        _refuse_shrinking(folder, before, factors, ways)
        ways = {**before.config["agents"], **ways}
    manifest = new_manifest(
        preset="sandbox",
        config={"kind": KIND, **factors, "agents": ways},
        seed=0,
        worlds=[(k, k + 1) for k in factors["instances"]],
        policies=[one.spec for one in agents],
        command=command,
    )
    if before is not None:
        # What may be added is no other configuration.
        grown = {name: manifest.config[name] for name in (*GROWING, "agents")}
        config = {**before.config, **grown}
        known = replace(
            before,
            config=config,
            config_sha256=sha256_of(config),
            worlds_sha256=worlds_hash(config, 0, before.worlds),
        )
        manifest = continue_manifest(known, manifest, folder)
    write_manifest(manifest, path)
    return manifest


def _refuse_shrinking(
    folder: Path, before: Manifest, factors: Mapping[str, Any], ways: Mapping[str, Any]
) -> None:
    config = before.config
    if factors["repeats"] < config["repeats"]:
        raise UserError(
            f"{folder} holds {config['repeats']} repeats, asked for {factors['repeats']}: ask for "
            "at least those or choose another folder"
        )
    left_out = [spec for spec in config["agents"] if spec not in ways]
    if left_out and factors["repeats"] > config["repeats"]:
        raise UserError(
            f"{folder} also holds {left_out[0]!r}: further repeats need all its agents, "
            f"{', '.join(config['agents'])}"
        )


def planned_cells(manifest: Manifest) -> dict[str, list[Cell]]:
    """The episodes of a folder by agent, without the twins."""
    factors = {k: v for k, v in manifest.config.items() if k not in ("kind", "agents")}
    cells = agent_cells(Agent("any"), **factors)
    return {spec: [replace(cell, policy=spec) for cell in cells] for spec in manifest.policies}
