"""`exactlyonce export`: a learned policy for clients in other languages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, write_json
from exactlyonce_env.errors import UserError
from exactlyonce_env.files import write_atomically

if TYPE_CHECKING:
    from policies.learned import LearnedPolicy


def export(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="learned:NAME, or learned:PATH of a checkpoint or a training run.",
        ),
    ],
    onnx: Annotated[
        str, typer.Option("--onnx", metavar="OUT", help="File to write; its name ends in .onnx.")
    ],
    json_target: JsonTarget = None,
) -> None:
    """Write a learned policy as an ONNX model.

    Inputs: observation (N, features) float32 and mask (N, actions) bool, true where the action is
    possible. Outputs: scores (N, actions) and action (N,), the best possible one. Names of features
    and actions and the manifest stand in the model's metadata. The model is checked and compared
    with the policy before it is written. Needs the extra: pip install 'exactlyonce-env[export]'.
    """
    target = _checked_target(onnx)
    chosen = _network_policy(policy)
    from policies.onnx_model import compare, require_packages, to_onnx

    require_packages()
    content = to_onnx(chosen).SerializeToString(deterministic=True)
    agreement = compare(chosen, content)
    try:
        write_atomically(target, lambda neighbour: neighbour.write_bytes(content))
    except OSError as error:
        raise UserError(f"--onnx {onnx!r} cannot be written: {error.strerror}") from error
    checkpoint = chosen.checkpoint
    report = {
        "path": str(target),
        "bytes": len(content),
        "policy": chosen.spec,
        "features": list(checkpoint.features),
        "actions": list(checkpoint.actions),
        "manifest": checkpoint.manifest,
        "comparison": agreement.to_json(),
    }
    if json_target is not None:
        write_json(report, json_target)
    console = human_console(json_target)
    console.print(
        f"{target}: {chosen.spec}, {checkpoint.n_parameters:,} parameters, {len(content):,} bytes"
    )
    console.print(
        f"inputs observation (N, {len(checkpoint.features)}) float32, "
        f"mask (N, {len(checkpoint.actions)}) bool; outputs scores, action"
    )
    console.print(
        f"checked on {agreement.observations:,} observations: {agreement.equal_actions:,} equal "
        f"actions, {agreement.near_ties} near ties, scores within "
        f"{agreement.max_score_difference:.1g}"
    )


def _checked_target(onnx: str) -> Path:
    """The file to write, refused before any work where nothing can be written there."""
    target = Path(onnx)
    if target.suffix != ".onnx" or target.is_dir():
        raise UserError(f"--onnx {onnx!r} must name a file that ends in .onnx")
    if not target.parent.is_dir():
        raise UserError(f"--onnx {onnx!r}: there is no folder {str(target.parent)!r}")
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"--onnx {onnx!r} cannot be written: permission denied")
    return target


def _network_policy(spec: str) -> LearnedPolicy:
    from policies.learned import LearnedPolicy
    from policies.spec import parse_policy

    policy = parse_policy(spec)
    if not isinstance(policy, LearnedPolicy):
        raise UserError(
            f"policy {spec!r} has no network to export; name learned:NAME or learned:PATH"
        )
    return policy
