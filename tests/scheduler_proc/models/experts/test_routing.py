"""Router rules, one by one, against what they say."""

import numpy as np
import pytest
import torch

from scheduler_proc.models.config import Experts, RouterRule, check_experts
from scheduler_proc.models.experts.routing import choose
from srt.wire.errors import ConfigError

LOGITS = torch.tensor([[0.0, 2.0, 1.0, 3.0]])


def chosen(rule: RouterRule, used: int, **more: torch.Tensor) -> tuple[list[int], np.ndarray]:
    ids, weights = choose(rule, used, LOGITS, **more)
    return ids[0].tolist(), weights[0].numpy()


def softmax(*logits: float) -> np.ndarray:
    values = np.exp(np.array(logits))
    return np.asarray(values / values.sum())


def test_scores_of_all_experts() -> None:
    ids, weights = chosen(RouterRule(normalised=False), 2)
    assert ids == [1, 3]
    np.testing.assert_allclose(weights, softmax(0, 2, 1, 3)[[1, 3]], rtol=1e-6)
    ids, weights = chosen(RouterRule(), 2)
    np.testing.assert_allclose(weights, softmax(2, 3), rtol=1e-6)
    _, weights = chosen(RouterRule(scale=2.5), 2)
    np.testing.assert_allclose(weights, 2.5 * softmax(2, 3), rtol=1e-6)


def test_scores_among_the_chosen() -> None:
    ids, weights = chosen(RouterRule(chosen_by="logits", normalised=False), 3)
    assert ids == [1, 2, 3]
    np.testing.assert_allclose(weights, softmax(2, 1, 3), rtol=1e-6)


def test_sigmoids() -> None:
    ids, weights = chosen(RouterRule(scores="sigmoid", normalised=False), 2)
    assert ids == [1, 3]
    np.testing.assert_allclose(weights, 1 / (1 + np.exp(-np.array([2.0, 3.0]))), rtol=1e-6)


def test_a_correction_counts_for_choosing_only() -> None:
    rule = RouterRule(scores="sigmoid", normalised=False)
    ids, weights = chosen(rule, 2, correction=torch.tensor([9.0, 0.0, 9.0, 0.0]))
    assert ids == [0, 2]
    np.testing.assert_allclose(weights, 1 / (1 + np.exp(-np.array([0.0, 1.0]))), rtol=1e-6)


def test_ties_go_to_the_lowest_ids() -> None:
    """Of many equal logits, too, where an unstable sort would show."""
    ids, weights = choose(RouterRule(), 3, torch.zeros(50, 200))
    assert torch.equal(ids, torch.arange(3).expand(50, 3))
    assert torch.equal(weights, torch.full((50, 3), 1 / 3))


def test_groups() -> None:
    """The group of the best expert loses to one with a better pair, and to one with two equals."""
    logits = torch.tensor([[5.0, -9.0, -9.0, 3.0, 2.5, 0.0, 2.0, 3.5, -9.0]])
    rule = RouterRule(scores="sigmoid", groups=3, used_groups=1, normalised=False)
    ids, _ = choose(rule, 2, logits)
    assert ids.tolist() == [[3, 4]]
    ids, _ = choose(RouterRule(scores="sigmoid", groups=3, used_groups=2), 3, logits)
    assert ids.tolist() == [[3, 4, 7]]
    ids, _ = choose(RouterRule(scores="sigmoid"), 3, logits)
    assert ids.tolist() == [[0, 3, 7]]


def test_scores_that_are_all_zero() -> None:
    ids, weights = choose(RouterRule(scores="sigmoid"), 2, torch.full((1, 4), -1e9))
    assert ids.tolist() == [[0, 1]]
    assert weights.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (Experts(8, 9, 16), "a token uses 9 of 8 experts"),
        (Experts(8, 2, 16, RouterRule(groups=3)), "8 experts are not in 3 groups"),
        (Experts(8, 3, 16, RouterRule(groups=4)), "3 experts cannot be chosen from 1 of 4 groups"),
        (Experts(8, 2, 16, RouterRule(scale=0.0)), r"scale of experts' weights is 0\.0"),
        (Experts(8, 2, 16, dense=(True,)), "1 layers have an MLP or a mixture, the model has 2"),
        (Experts(8, 2, 16, shared_width=-1), "the shared expert's width is -1"),
    ],
)
def test_mixtures_that_no_model_can_have(experts: Experts, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_experts(experts, 2)
