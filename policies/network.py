"""A small network in single precision whose scores depend on nothing but its input and weights.

Each row is computed by itself, sums run in one fixed order and the hyperbolic tangent is made of
IEEE 754's exact operations, so the same observation has the same scores, to the last bit, alone, in
a batch of any size and on any machine.  A matrix product of BLAS promises none of the three.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from exactlyonce_env.compiled import Array, compiled, inlined
from policies.checkpoint import Activation, Checkpoint

__all__ = ["Network", "best_allowed"]

Floats: TypeAlias = npt.NDArray[np.float32]

LINEAR, TANH, RELU = 0, 1, 2
_CODES: dict[Activation, int] = {"tanh": TANH, "relu": RELU}

# Single precision throughout: a Python float would turn the arithmetic into double.
S_0, S_HALF, S_1 = np.float32(0.0), np.float32(0.5), np.float32(1.0)
S_SATURATED = np.float32(9.1)  # tanh rounds to 1 from here on
S_LOG2_E_TWICE = np.float32(2.0 / math.log(2.0))
S_LN_2 = np.float32(math.log(2.0))
S_INVERSE_FACTORIALS = tuple(np.float32(1.0 / math.factorial(k)) for k in range(2, 8))
S_2, S_3, S_4, S_5, S_6, S_7 = S_INVERSE_FACTORIALS
MANTISSA_BITS, ONE_BITS = np.int32(23), np.int32(127 << 23)


@inlined
def tanh(x: np.float32) -> np.float32:
    """Hyperbolic tangent in single precision, to an absolute error below 3e-7.

    e^2x = 2^k e^r with |r| <= ln(2)/2, by its power series.  No branch, so that eight of them fit
    into one instruction.
    """
    exponent = min(max(x, -S_SATURATED), S_SATURATED) * S_LOG2_E_TWICE
    k = np.floor(exponent + S_HALF)
    r = (exponent - k) * S_LN_2
    series = S_1 + r * (S_1 + r * (S_2 + r * (S_3 + r * (S_4 + r * (S_5 + r * (S_6 + r * S_7))))))
    scale = np.int32((np.int32(k) << MANTISSA_BITS) + ONE_BITS).view(np.float32)
    e = series * scale
    return (e - S_1) / (e + S_1)


@compiled
def dense(inputs: Array, weight: Array, bias: Array, activation: int, out: Array) -> None:
    """One layer: ``inputs`` (n, k) times ``weight`` (k, m) plus ``bias`` (m,) into ``out`` (n, m).

    All float32.  The sum over k is the outer loop: its order is fixed, and the inner loop over the
    outputs has no sum whose order a vector unit could change.
    """
    n_inputs, n_outputs = weight.shape
    for i in range(len(inputs)):
        row = out[i]
        for m in range(n_outputs):
            row[m] = bias[m]
        for k in range(n_inputs):
            value = inputs[i, k]
            column = weight[k]
            for m in range(n_outputs):
                row[m] += value * column[m]
        if activation == TANH:
            for m in range(n_outputs):
                row[m] = tanh(row[m])
        elif activation == RELU:
            for m in range(n_outputs):
                row[m] = max(row[m], S_0)


@compiled
def best_allowed(scores: Array, mask: Array, out: Array) -> None:
    """The column of the highest score among those allowed, the first of equals, into ``out`` (n,).

    ``scores`` (n, m) float32, ``mask`` (n, m) int8, ``out`` int64.  At least one column of every
    row is allowed; a score that is not a number never wins over one that came before.
    """
    for i in range(len(scores)):
        best = -1
        for m in range(scores.shape[1]):
            if mask[i, m] != 0 and (best < 0 or scores[i, m] > scores[i, best]):
                best = m
        out[i] = best


class Network:
    """The layers of a checkpoint, ready to score observations."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        last = len(checkpoint.layers) - 1
        between = _CODES[checkpoint.activation]
        self._layers = [
            (weight.T.copy(), bias.copy(), LINEAR if k == last else between)
            for k, (weight, bias) in enumerate(checkpoint.layers)
        ]

    def scores(self, observations: Floats) -> Floats:
        """Scores (n, actions) float32 of observations (n, features) float32."""
        values = np.ascontiguousarray(observations, dtype=np.float32)
        for weight, bias, activation in self._layers:
            out = np.empty((len(values), len(bias)), dtype=np.float32)
            dense(values, weight, bias, activation, out)
            values = out
        return values
