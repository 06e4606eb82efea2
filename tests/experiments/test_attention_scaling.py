"""The softmax over the width: measures by hand and against autograd."""

import math

import pytest
import torch

from course_lib.experiments import attention_scaling


def test_softmax_measures_against_autograd_and_by_hand():
    """Fails if the Jacobian is not that of torch's softmax, or a measure is of the other scores."""
    scores = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian = torch.autograd.functional.jacobian(lambda a: a.softmax(0), scores)
    torch.testing.assert_close(attention_scaling.softmax_jacobian(scores.softmax(0)), jacobian)
    one = attention_scaling._of_softmax(torch.zeros(3, 4))
    assert one["largest"] == pytest.approx(0.25)
    assert one["choices"] == pytest.approx(4)
    assert one["slope"] == pytest.approx(math.sqrt(4 * (3 / 16) ** 2 + 12 / 256))
    assert one["flat"] == 0
    assert attention_scaling._of_softmax(torch.tensor([[0.0, 99.0]]))["flat"] == 1
    found = attention_scaling.softmax_by_width(256, 300, 7, torch.Generator().manual_seed(0))
    assert found["without"]["score_std"] == pytest.approx(16, rel=0.1)
    assert found["with the root"]["score_std"] == pytest.approx(1, rel=0.1)
    assert found["without"]["cosine_std"] == pytest.approx(1 / 16, rel=0.1)


def test_the_gradients_of_the_queries_are_autograds():
    """Fails if the gradient is not that of the weighted sum with respect to the query, with and without the root."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(9, 1, 6, generator=generator), torch.randn(9, 4, 6, generator=generator)
    wanted = torch.randn(9, 4, generator=generator)
    for factor in (1.0, 6**-0.5):
        leaf = q.clone().requires_grad_()
        scores = factor * (leaf @ k.mT).squeeze(1)
        (scores.softmax(1) * wanted).sum().backward()
        norms = leaf.grad.squeeze(1).norm(dim=1)
        found = attention_scaling._of_gradient(scores.detach(), k, wanted, factor)
        assert found["gradient_mean"] == pytest.approx(norms.mean().item(), rel=1e-5)
        assert found["gradient_median"] == pytest.approx(norms.median().item(), rel=1e-5)
        assert found["gradient_low"] < found["gradient_median"] < found["gradient_high"]
