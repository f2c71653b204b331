"""The running average of weights, by hand."""

from __future__ import annotations

import pytest
import torch

from training.average import Average


class Model:
    """As much of a model as the average looks at: one weight and one counter."""

    def __init__(self, weight):
        self.policy = torch.nn.Linear(1, 1, bias=False)
        self.policy.register_buffer("seen", torch.tensor(0))
        self.set(weight, 0)

    def set(self, weight, seen):
        with torch.no_grad():
            self.policy.weight.fill_(weight)
            self.policy.seen.fill_(seen)

    @property
    def weight(self):
        return self.policy.weight.item()


def test_by_hand():
    model = Model(0.0)
    average = Average(model, 0.5)
    model.set(1.0, 7)
    average.update(model)  # keeps min(0.5, 1/10)
    assert average.weights["weight"].item() == pytest.approx(0.9)
    assert average.weights["seen"].item() == 7
    model.set(2.0, 8)
    average.update(model)  # keeps min(0.5, 2/11)
    assert average.weights["weight"].item() == pytest.approx(0.9 * 2 / 11 + 2.0 * 9 / 11)
    for _ in range(20):
        average.update(model)
    before = average.weights["weight"].item()
    model.set(3.0, 9)
    average.update(model)  # by now it keeps a half
    assert average.weights["weight"].item() == pytest.approx((before + 3.0) / 2)


def test_without_decay_it_is_the_last():
    model = Model(0.0)
    average = Average(model, 0.0)
    for weight in (0.1, 0.7, 0.3):
        model.set(weight, 0)
        average.update(model)
        assert average.weights["weight"].item() == model.weight


def test_it_is_applied_for_a_while():
    model = Model(1.0)
    average = Average(model, 0.9)
    model.set(5.0, 0)
    with average.applied(model):
        assert model.weight == 1.0
    assert model.weight == 5.0
    with pytest.raises(RuntimeError), average.applied(model):
        raise RuntimeError
    assert model.weight == 5.0


def test_it_goes_on_from_a_state():
    model = Model(1.0)
    first, second = Average(model, 0.9), Average(Model(9.0), 0.9)
    model.set(2.0, 1)
    first.update(model)
    second.restore(first.state())
    model.set(3.0, 1)
    for average in (first, second):
        average.update(model)
    assert torch.equal(first.weights["weight"], second.weights["weight"])
