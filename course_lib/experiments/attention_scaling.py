"""The softmax over the width, with and without its scale: random queries and keys, nothing trained (chapter 07)."""

import torch
import torch.nn.functional as F

from course_lib.attention import attention_scores, attention_weights
from course_lib.experiments import experiment


@experiment("attention-scaling", "Random queries and keys: scores, weights and slope of the softmax over the width.")
def attention_scaling(seed, widths=(4, 16, 64, 256, 1024), queries=500, keys=32):
    """Two rows of lists, one entry a width; nothing is trained."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [softmax_by_width(width, queries, keys, generator) for width in widths]
    results = {}
    for name in ("with the root", "without"):
        rows = [measured[name] for measured in drawn]
        results[name] = {"width": list(widths), **{key: [row[key] for row in rows] for key in rows[0]}}
    return {"results": results}


def softmax_by_width(width, queries, keys, generator):
    r"""What the softmax makes of random scores, with and without the division by sqrt(K).

    Args:
        width: K. Queries and keys have independent standard normal entries.

    Returns:
        dict of "with the root" and "without", each a dict of numbers: "cosine_std" and "score_std" (standard
        deviations), "largest" (mean largest weight), "choices" (mean exp of the entropy: as many equal weights would
        be as undecided), "slope" (mean Frobenius norm of the softmax's Jacobian), "flat" (fraction of queries whose
        Jacobian is below 1/100 of the norm that uniform weights have); and of the norm of the gradient that reaches a
        query, if each key's value has a standard normal part in the direction that the loss wants: its mean
        ("gradient_mean") and its quartiles ("gradient_low", "gradient_median", "gradient_high").

    >>> found = softmax_by_width(64, 9, 5, torch.Generator().manual_seed(0))
    >>> found["with the root"]["largest"] < found["without"]["largest"]
    True
    """
    q = torch.randn(queries, 1, width, generator=generator)
    k = torch.randn(queries, keys, width, generator=generator)
    scaled = attention_scores(q, k).squeeze(1)  # (queries, S)
    cosine_std = F.cosine_similarity(q, k, dim=-1).std().item()
    wanted = torch.randn(queries, keys, generator=generator)
    both = {"with the root": (scaled, width**-0.5), "without": (scaled * width**0.5, 1.0)}
    return {
        name: {"cosine_std": cosine_std, **_of_softmax(scores), **_of_gradient(scores, k, wanted, factor)}
        for name, (scores, factor) in both.items()
    }


def _of_softmax(scores):
    """Measures of weights (queries, S) and of their Jacobian."""
    w = attention_weights(scores)
    slope = softmax_jacobian(w).flatten(1).norm(dim=1)
    uniform = softmax_jacobian(torch.full_like(w[:1], 1 / w.shape[1])).norm()
    return {
        "score_std": scores.std().item(),
        "largest": w.amax(1).mean().item(),
        "choices": torch.special.entr(w).sum(1).exp().mean().item(),
        "slope": slope.mean().item(),
        "flat": (slope < uniform / 100).float().mean().item(),
    }


def _of_gradient(scores, k, wanted, factor):
    """Norms of the queries' gradients, of sum_s w_s wanted_s with respect to q; the scores are factor * q k^T."""
    w = attention_weights(scores)
    along = w * (wanted - (w * wanted).sum(1, keepdim=True))  # (queries, S): J^T wanted
    norms = (factor * along.unsqueeze(1) @ k).squeeze(1).norm(dim=1)  # (queries,)
    low, median, high = norms.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    return {
        "gradient_mean": norms.mean().item(),
        "gradient_low": low,
        "gradient_median": median,
        "gradient_high": high,
    }


def softmax_jacobian(w):
    r"""How weights answer to scores.

    $$ J_{ij} = \frac{\partial w_i}{\partial a_j} = w_i\, (\delta_{ij} - w_j) $$

    Args:
        w: (..., S) weights, a softmax's output.

    Returns:
        (..., S, S).

    >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """
    return torch.diag_embed(w) - w.unsqueeze(-1) * w.unsqueeze(-2)
