"""A checkpoint as an ONNX model, for clients that are not written in Python.

The model takes the observation and the mask of possible actions and gives a score for each action
and the number of the best possible one.  It needs the packages ``onnx`` and ``onnxruntime`` of the
extra ``export``, the latter to compare it with the policy that it was made of.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exactlyonce_env.errors import UserError
from exactlyonce_env.observation import observation_bounds
from policies.learned import FEATURE_NAMES, LearnedPolicy
from policies.network import Network, best_allowed

if TYPE_CHECKING:
    import onnx

    from policies.checkpoint import Checkpoint

__all__ = ["Agreement", "compare", "require_packages", "to_onnx"]

OPSET = 17
IR_VERSION = 8  # with opset 17 both are of 2022, so that older runtimes read the file too
N_COMPARED = 4096
TOLERANCE = 1e-4
"""Greatest difference of two scores, as a share of the greatest score's size or of 1.

Two actions whose scores lie closer than that may be chosen differently by another runtime.
"""

OBSERVATION, MASK, SCORES, ACTION = "observation", "mask", "scores", "action"


@dataclass(frozen=True)
class Agreement:
    """How well a model agrees with the policy that it was made of.

    Attributes
    ----------
    observations
        Number of observations compared, drawn from the whole range of each feature.
    max_score_difference
        Greatest difference of two scores.
    equal_actions
        How many of the actions are equal.
    near_ties
        How many of the others lie within `TOLERANCE` of the policy's best.
    """

    observations: int
    max_score_difference: float
    equal_actions: int
    near_ties: int

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def require_packages() -> None:
    """Refuse to go on without the packages of the extra ``export``.

    Raises
    ------
    UserError
        Naming the package and how to install it.
    """
    for package in ("onnx", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise UserError(
                f"exporting to ONNX needs the package {package}: "
                f"pip install 'exactlyonce-env[export]' ({error})"
            ) from error


def to_onnx(policy: LearnedPolicy) -> onnx.ModelProto:
    """The policy's network with the mask behind it, checked by ``onnx.checker``.

    Inputs: ``observation`` (N, features) float32 and ``mask`` (N, actions) bool, True where the
    action is possible. Outputs: ``scores`` (N, actions) float32, of the impossible ones too, and
    ``action`` (N,) int64, the possible action with the highest score. The names of features and
    actions and the manifest stand as JSON in the model's metadata.
    """
    import onnx
    from onnx import TensorProto, helper

    checkpoint = policy.checkpoint
    n_features, n_actions = len(checkpoint.features), len(checkpoint.actions)
    graph = helper.make_graph(
        _nodes(checkpoint),
        "recovery_policy",
        [
            helper.make_tensor_value_info(OBSERVATION, TensorProto.FLOAT, ["N", n_features]),
            helper.make_tensor_value_info(MASK, TensorProto.BOOL, ["N", n_actions]),
        ],
        [
            helper.make_tensor_value_info(SCORES, TensorProto.FLOAT, ["N", n_actions]),
            helper.make_tensor_value_info(ACTION, TensorProto.INT64, ["N"]),
        ],
        initializer=_weights(checkpoint),
        doc_string="observation and mask of possible actions to scores and the best action",
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="exactlyonce-env",
    )
    metadata = {
        "features": json.dumps(checkpoint.features),
        "actions": json.dumps(checkpoint.actions),
        "manifest": json.dumps(checkpoint.manifest, sort_keys=True),
    }
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def _nodes(checkpoint: Checkpoint) -> list[onnx.NodeProto]:
    from onnx import helper

    nodes, values, last = [], OBSERVATION, len(checkpoint.layers) - 1
    activation = {"tanh": "Tanh", "relu": "Relu"}[checkpoint.activation]
    for k in range(last + 1):
        out = SCORES if k == last else f"sums_{k}"
        inputs = [values, f"layer_{k}.weight", f"layer_{k}.bias"]
        nodes.append(helper.make_node("Gemm", inputs, [out], transB=1))
        if k < last:
            values = f"hidden_{k}"
            nodes.append(helper.make_node(activation, [out], [values]))
    nodes.append(helper.make_node("Where", [MASK, SCORES, "impossible"], ["allowed_scores"]))
    nodes.append(helper.make_node("ArgMax", ["allowed_scores"], [ACTION], axis=1, keepdims=0))
    return nodes


def _weights(checkpoint: Checkpoint) -> list[onnx.TensorProto]:
    from onnx import numpy_helper

    weights = [numpy_helper.from_array(np.array(-np.inf, dtype=np.float32), "impossible")]
    for k, (weight, bias) in enumerate(checkpoint.layers):
        weights.append(numpy_helper.from_array(weight, f"layer_{k}.weight"))
        weights.append(numpy_helper.from_array(bias, f"layer_{k}.bias"))
    return weights


def compare(policy: LearnedPolicy, model: bytes) -> Agreement:
    """Run a serialised model and the policy's network on the same observations and masks.

    Raises
    ------
    UserError
        If they differ by more than `TOLERANCE` anywhere: the model is then not worth keeping.
    """
    import onnxruntime

    observations, masks = _samples(policy.checkpoint)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # stderr belongs to the command
    session = onnxruntime.InferenceSession(
        model, sess_options=options, providers=["CPUExecutionProvider"]
    )
    given = {OBSERVATION: observations, MASK: masks.astype(bool)}
    scores, actions = session.run([SCORES, ACTION], given)
    own = Network(policy.checkpoint).scores(observations)
    best = np.empty(len(own), dtype=np.int64)
    best_allowed(own, masks, best)
    rows = np.arange(len(own))
    allowed = TOLERANCE * max(1.0, float(np.abs(own).max()))
    difference = float(np.abs(scores.astype(np.float64) - own).max())
    equal = actions == best
    tied = ~equal & (masks[rows, actions] != 0) & (own[rows, best] - own[rows, actions] <= allowed)
    if not (difference <= allowed and (equal | tied).all()):
        raise UserError(
            f"the ONNX model does not agree with {policy.spec}: scores differ by {difference:g}, "
            f"{int((~equal & ~tied).sum())} of {len(own)} actions differ"
        )
    return Agreement(len(own), difference, int(equal.sum()), int(tied.sum()))


def _samples(
    checkpoint: Checkpoint,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """Observations over the whole range of each feature and masks, the same ones each time."""
    generator = np.random.Generator(np.random.Philox(0))
    low, high = observation_bounds()
    columns = [FEATURE_NAMES.index(name) for name in checkpoint.features]
    shape = (N_COMPARED, len(columns))
    observations = generator.uniform(low[columns], high[columns], shape).astype(np.float32)
    masks = generator.integers(0, 2, (N_COMPARED, len(checkpoint.actions)), dtype=np.int8)
    masks[:, -1] |= masks.max(axis=1) == 0
    return observations, masks
