"""Checks of chapter 11's exercises: LayerNorm backwards, RAdam by hand, a schedule, Pre-LN, decay, a training loop.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names the
one it recognises. Notebook: 11.
"""

import math
import tracemalloc
import weakref

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.exercises import (
    Written,
    Wrong,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    expect_type,
    near,
    precision,
)
from course_lib.transformer import EncoderLayer


def _draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


# --- exercise 11.1: LayerNorm backwards ---------------------------------------------


def _backward(x, gradient, eps=1e-5, *, mean=1, along=1, size=1, unbiased=False, root=1, normalised=1):
    """The right answer, or one with a part left out (0), turned (-1) or, with size=2, taken twice."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (x.shape[-1] - unbiased)
    sigma = (variance + eps).sqrt() if root else variance + eps
    hat = centred / sigma if normalised else centred
    out = gradient - mean * gradient.mean(-1, keepdim=True)
    out = out - along * hat * (gradient * hat).mean(-1, keepdim=True)
    return out / sigma**size


class _Watch(TorchDispatchMode):
    """What an answer lets torch do: whether it differentiates, and how large its largest tensor is."""

    def __init__(self):
        super().__init__()
        self.differentiates, self.ready_made, self.largest = False, False, 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # True would load torch's compiler, which would take the 2 s

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.differentiates |= torch._C._current_graph_task_id() != -1 or forward_ad._current_level >= 0
        self.ready_made |= "layer_norm_backward" in operation.__name__
        result = operation(*args, **(kwargs or {}))
        for part in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(part, torch.Tensor):
                self.largest = max(self.largest, part.numel())
        return result


def _look_how(student, D=256):
    """Refuse a right answer by autograd, or with a matrix of D x D numbers: of torch's, NumPy's or Python's."""
    x, gradient, tracing = _draw(1, 2, D), _draw(1, 2, D, seed=1), tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with _Watch() as watch:
            student(x, gradient)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
    if watch.differentiates:
        raise Wrong("the numbers are right, but torch differentiates for you (autograd): write the product with J out")
    if watch.ready_made:
        raise Wrong("the numbers are right, but they come from torch's ready-made backward pass: write it out")
    if watch.largest >= D * D or taken > 3 * D * D:
        raise Wrong("the numbers are right, but a D x D matrix is built on the way: J times the gradient needs only "
                    "means over each vector")  # fmt: skip


@check(
    hints=(
        "Of the gradient, two parts are lost: its mean, and what points along the normalised x. The rest is divided.",
        "hat = (x - mean) / sigma; result = (g - mean of g - hat * mean of (g * hat)) / sigma; means over each vector",
        "hat * (gradient * hat).mean(-1, keepdim=True) is the second of the two projections",
    )
)
def layer_norm_backward(student):
    """Exercise 11.1: the product of the gradient with LayerNorm's Jacobian."""
    x, gradient = 3 * _draw(2, 5, 6) + 1, _draw(2, 5, 6, seed=1)
    got = expect_tensor(student(x, gradient), (2, 5, 6), name="the gradient")
    most, got = precision(got, 1e-6), got.double()
    if close(got, _backward(x, gradient), most):
        small = 1e-3 * x
        if not close(student(small, gradient, 1e-2), _backward(small, gradient, 1e-2), most):
            raise Wrong("right for eps = 1e-5, wrong for eps = 0.01: is it written into the code, or left out? It "
                        "belongs to the variance, before the root")  # fmt: skip
        _look_how(student)
        return
    if close(got, _backward(x, gradient), 1e-4):
        raise Wrong("nearly right: is eps added to the root, or left out? It is added to the variance")
    mistakes = {
        "the gradient comes back as it went in": gradient,
        "it is only divided by sigma; two directions must be taken out of it first": (
            _backward(x, gradient, mean=0, along=0)
        ),
        "the mean of the gradient is still in it: adding a constant to x changes nothing": (
            _backward(x, gradient, mean=0)
        ),
        "the part along the normalised x is still in it: stretching x changes nothing": (
            _backward(x, gradient, along=0)
        ),
        "the two projections are right; the division by sigma is missing": _backward(x, gradient, size=0),
        "the sign of the whole is turned": -_backward(x, gradient),
        "both projections are added; they must be taken out": _backward(x, gradient, mean=-1, along=-1),
        "the mean of the gradient is added; it must be taken out": _backward(x, gradient, mean=-1),
        "what points along the normalised x is added; it must be taken out": _backward(x, gradient, along=-1),
        "the second projection uses x - mean; it needs the normalised x, which is divided by sigma": (
            _backward(x, gradient, normalised=0)
        ),
        "the result is multiplied by sigma: divide by sigma, do not multiply": _backward(x, gradient, size=-1),
        "the result is divided by the variance; it should be divided by sigma, its root": (
            _backward(x, gradient, size=2)
        ),
        "the variance stands everywhere in place of sigma: the root is missing": _backward(x, gradient, root=0),
        "sums stand in place of the two means; each must be divided by D": _backward(x, gradient, mean=6, along=6),
        "the sum of gradient * hat must be divided by D: a mean, as in the first projection": (
            _backward(x, gradient, along=6)
        ),
        "the variance is divided by D - 1; LayerNorm divides by D": _backward(x, gradient, unbiased=True),
        "means are taken over the batch (axis 0); LayerNorm works within each vector (the last axis)": (
            _backward(x.transpose(0, 2), gradient.transpose(0, 2)).transpose(0, 2)
        ),
        "that is LayerNorm itself; its backward pass is asked for": nn.functional.layer_norm(x, (6,)),
    }  # fmt: skip
    for message, wrong in mistakes.items():
        if close(got, wrong, 1e-4):
            raise Wrong(message)
    if got.sum(-1).abs().max() > most:
        raise Wrong("each vector of the result must sum to 0, since a constant added to x changes nothing")
    hat = _backward(x, x, along=0)  # x without its mean, over sigma
    if (got * hat).mean(-1).abs().max() > 1e-3:
        raise Wrong("each vector of the result must be at right angles to the normalised x, since stretching x changes "
                    "nothing (but for eps); yours sums to 0, as it should, and is not")  # fmt: skip
    raise Wrong("both directions are taken out, as they should be; what is left is not the gradient's rest over sigma")


# --- exercise 11.2: RAdam by hand -----------------------------------------------------

NUMBERS = ("(a) Adam's first step", "(b) rho_inf", "(c) rho_1", "(d) RAdam's first step", "(e) r_6", "(f) sixth step")


def _rho(t):
    """rho_t for beta2 = 0.9."""
    return 19 - 2 * t * 0.9**t / (1 - 0.9**t)


def _r(rho):
    """The factor r for this rho, for beta2 = 0.9."""
    return math.sqrt((rho - 4) * (rho - 2) * 19 / (15 * 17 * rho))


@check(
    hints=(
        "Which of the two steps divides by the root of v? Adam always; RAdam once rho_t is above 5.",
        "(a) lr g / |g|; (b) 2 / (1 - beta2) - 1; (c) t = 1 in rho_t; (d) lr g; (e) rho_6 into r; (f) lr r_6 g / |g|",
        "rho_6 = 19 - 12 * 0.531441 / 0.468559; r_6 = sqrt((rho_6 - 4)(rho_6 - 2) 19 / (15 * 17 * rho_6))",
    )
)
def radam_by_hand(student):
    """Exercise 11.2: both branches of RAdam with a constant gradient of 4."""
    got = expect_numbers(student, NUMBERS)
    r = _r(_rho(6))
    wanted = (0.1, 19.0, 1.0, 0.4, r, 0.1 * r)
    mistakes = {
        0: {0.4: "Adam divides by the root of v, here 4: the gradient's size cancels"},
        1: {
            10.0: "that is 1 / (1 - beta2); rho_inf is 2 / (1 - beta2) - 1",
            20.0: "the - 1 is missing",
            18.0: "the 1 is subtracted twice",
        },
        2: {
            19.0: "that is rho_inf; the second term is missing",
            -17.0: "1 - beta2^t stands under the fraction",
            10.0: "the factor 2 is missing",
        },
        3: {
            0.1: "rho_1 is 1: this step is not adaptive, so it is not divided by the root of v",
            0.04: "m is 0.4 after one step; divided by 1 - beta1^t it is 4",
            0.0: "RAdam does not wait: it makes a step without the adaptive rate",
        },
        4: {
            r**2: "the root is missing",
            1 / r: "numerator and denominator have changed places",
            0.0: "rho_6 is 5.39, above 5",
            _r(_rho(7)): "that is r_7",
        },
        5: {
            0.4 * r: "in the adaptive branch the gradient is divided by the root of v, which is 4",
            0.1: "the factor r_6 is missing",
            0.4: "rho_6 is above 5: this step is adaptive",
        },
    }
    where = (
        "put m = g and v = g^2 (both corrected) into the step of section 3",
        "put beta2 = 0.9 into step 1 of RAdam",
        "put t = 1 into rho_t: 0.9^1 over 1 - 0.9^1 is 9",
        "is rho_1 above 5? If not, RAdam's step is lr times the corrected m",
        "put your rho_6 and rho_inf into step 3 of RAdam, with the variances of step 2",
        "rho_6 is above 5: Adam's step times r_6",
    )
    for place, (name, value, right) in enumerate(zip(NUMBERS, got, wanted, strict=True)):
        if near(value, right):
            continue
        if near(value, -right):
            raise Wrong(f"{name}: a length is not negative")
        for wrong, message in mistakes[place].items():
            if near(value, wrong):
                raise Wrong(f"{name}: {message}")
        if math.isclose(value, right, rel_tol=0.05):
            raise Wrong(f"{name}: {value:.4g} is close, but not right to three digits; round at the very end only")
        raise Wrong(f"{name} is not {value:.4g}: {where[place]}")


# --- exercise 11.3: warm up, hold, cool down --------------------------------------------


def _trapezoid(step, warmup, total, decay, first=1, end=0):
    """The factor; `first` and `end` move the two lines."""
    return max(0.0, min((step + first) / warmup, 1.0, (total - end - step) / decay))


@check(
    hints=(
        "Three lines: one rises, one is flat, one falls. Which of the three counts at a step?",
        "the smallest of (step + 1) / warmup, 1 and (what is left) / decay; nothing below 0",
        "(total - step) / decay is the line that reaches 0 at step total and 1 at step total - decay",
    )
)
def warmup_stable_decay(student):
    """Exercise 11.3: a trapezoid of factors."""
    sizes = {"warmup": 4, "total": 20, "decay": 8}
    got = [expect_number(student(step, 4, 20, 8), f"the factor of step {step}") for step in range(24)]

    def like(factor):
        return close(got, [factor(step) for step in range(24)], 1e-6)

    if like(lambda step: _trapezoid(step, **sizes)):
        other = [expect_number(student(step, 5, 30, 3)) for step in range(34)]
        if not close(other, [_trapezoid(step, warmup=5, total=30, decay=3) for step in range(34)], 1e-6):
            raise Wrong("right for warmup 4, total 20, decay 8; wrong for 5, 30, 3: is a size written into the code?")
        return
    rise, fall = (lambda s: (s + 1) / 4), (lambda s: (20 - s) / 8)
    for up, down in ((math.floor, math.floor), (math.floor, float), (float, math.floor)):
        if like(lambda s, up=up, down=down: max(0.0, min(up(rise(s)), 1.0, down(fall(s))))):
            raise Wrong("// cuts off what stands after the decimal point, so that a line becomes a jump: divide with /")
    if got[0] == 0:
        raise Wrong("step 0 has the factor 0, so it changes nothing: step 0 is the first of the steps that rise")
    mistakes = {
        "there is no fall: the last `decay` steps go down to 0": lambda s: min((s + 1) / 4, 1.0),
        "there is no rise: the first `warmup` steps go up from 1 / warmup": lambda s: max(0.0, min(1.0, (20 - s) / 8)),
        "it falls from the end of the warm-up on; in between, the factor stays 1": (
            lambda s: max(0.0, min((s + 1) / 4, (20 - s) / 16))
        ),
        "after step total the factor is negative: the weights would climb the loss": (
            lambda s: min((s + 1) / 4, 1.0, (20 - s) / 8)
        ),
        "it is 0 one step early: 0 belongs to step total, the step after the last one": (
            lambda s: _trapezoid(s, **sizes, end=1)
        ),
        "the fall starts one step early: at step total - decay the factor is still 1": (
            lambda s: max(0.0, min((s + 1) / 4, 1.0, (20 - s) / 9))
        ),
        "the fall is a step, not a line": lambda s: min((s + 1) / 4, 1.0) if s < 12 else 0.0,
        "the factor is 1 at every step": lambda s: 1.0,
        "the factor is larger than 1 after the warm-up: the rise must end": lambda s: max(0.0, (s + 1) / 4),
    }  # fmt: skip
    for message, factor in mistakes.items():
        if like(factor):
            raise Wrong(message)
    step = next(s for s in range(24) if not close(got[s], _trapezoid(s, **sizes), 1e-6))
    raise Wrong(
        f"with warmup 4, total 20, decay 8 the factor of step {step} is {_trapezoid(step, **sizes):.4g}, "
        f"yours is {got[step]:.4g}"
    )


# --- exercise 11.4: a Pre-LN block --------------------------------------------------------


@check(
    hints=(
        "What does each sublayer of the block above read? In Pre-LN a norm stands before it, and each has its own.",
        "x plus attention of norm1 of x; then that plus feed-forward of norm2 of that",
        "y = x + attend(norm1(x)), and the same again with the other two",
    )
)
def pre_ln_block(student):
    """Exercise 11.4: norms in the branches, nothing on the stream."""
    x = _draw(2, 3, 5)
    attend, forward = (lambda z: torch.tanh(z.cumsum(1))), (lambda z: z**3 + 1)
    norm1, norm2 = (lambda z: 2 * nn.functional.layer_norm(z, (5,))), (lambda z: nn.functional.layer_norm(z, (5,)) - 1)
    got = expect_tensor(student(x, attend, forward, norm1, norm2), (2, 3, 5), name="the result")
    most, got = precision(got, 1e-9), got.double()
    y = x + attend(norm1(x))
    if close(got, y + forward(norm2(y)), most):
        return
    n, post = norm1(x), norm1(x + attend(x))
    shifted, behind = n + attend(n), x + norm1(attend(x))
    mistakes = {
        "the block returns x": x,
        "that is the block as it stands above": behind + forward(norm1(behind)),
        "the attention's output is normalised; norm1 belongs before it": behind + forward(norm2(behind)),
        "both norms stand after their sublayers; they belong before them": behind + norm2(forward(behind)),
        "the stream is replaced by norm1 of x, and norm2 stands after its sublayer": shifted + norm2(forward(shifted)),
        "norm1 stands in place of the residual: x itself must be added, not norm1 of x": (
            shifted + forward(norm2(shifted))
        ),
        "the feed-forward network's output is normalised; norm2 belongs before it": y + norm2(forward(y)),
        "that is Post-LN: the norms stand on the stream, after the additions": norm2(post + forward(post)),
        "norm1 is used twice; the feed-forward network has its own": y + forward(norm1(y)),
        "both norms stand in place of the residual: that is Post-LN, shifted": norm2(shifted) + forward(norm2(shifted)),
        "the feed-forward network reads x: it must read what the attention has added to": y + forward(norm2(x)),
        "the residual of the feed-forward network is missing": forward(norm2(y)),
        "the residual of the attention is missing": attend(n) + forward(norm2(attend(n))),
        "the second residual adds x again in place of the sum": x + forward(norm2(y)),
        "there are no norms": (x + attend(x)) + forward(x + attend(x)),
        "norm1 and norm2 have changed places": (
            x + attend(norm2(x)) + forward(norm1(x + attend(norm2(x))))
        ),
        "the branches are right, but norm2 also stands on the stream, at the end": norm2(y + forward(norm2(y))),
        "the branches are right, but norm1 also stands on the stream, at the end": norm1(y + forward(norm2(y))),
        "the result is 0 everywhere": torch.zeros_like(x),
    }  # fmt: skip
    for message, wrong in mistakes.items():
        if close(got, wrong, most):
            raise Wrong(message)
    zero = expect_tensor(student(x, torch.zeros_like, torch.zeros_like, norm1, norm2), (2, 3, 5)).double()
    if not close(zero, x, most):
        what = {"norm1 of x": norm1(x), "norm2 of x": norm2(x), "norm2 of norm1 of x": norm2(norm1(x)), "0": 0 * x}
        found = next((name for name, value in what.items() if close(zero, value, most)), "something else")
        raise Wrong(f"when both sublayers give 0, the block must return x; yours returns {found}")
    reads = {}

    def noting(name, sublayer):
        def noted(z):
            reads.setdefault(name, z.detach().double())
            return sublayer(z)

        return noted

    student(x, noting("attention", attend), noting("the feed-forward network", forward), norm1, norm2)
    for name, right in (("attention", norm1(x)), ("the feed-forward network", norm2(y))):
        if name not in reads:
            raise Wrong(f"{name} is never called")
        if not close(reads[name], right, most):
            known = {"x": x, "norm1 of x": norm1(x), "norm2 of x": norm2(x), "the sum without a norm": y}
            found = next((of for of, value in known.items() if close(reads[name], value, most)), None)
            raise Wrong(f"the stream is right when both sublayers give 0, but {name} does not read the norm of what is "
                        f"on the stream: it reads {found or 'something else'}")  # fmt: skip
    raise Wrong("both sublayers read what they should; what is added to the stream is not their outputs")


# --- exercise 11.6: what decays -------------------------------------------------------------


class _Tied(nn.Module):
    """Two tables, a layer, and an output layer that shares the first table."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(6, 9, bias=False)
        self.embedding = nn.Embedding(9, 6)
        self.places = nn.Embedding(4, 6)
        self.layer = EncoderLayer(6, 2, 10, residual="pre-ln")
        self.alpha = nn.Parameter(torch.zeros(()))
        self.output.weight = self.embedding.weight


def _nested():
    """A table deep inside, a layer with the same numbers, and a convolution, whose weight has three axes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Conv1d(4, 3, 2))
    inner[1].weight.data.copy_(inner[0].weight.data)
    return nn.Sequential(inner, nn.LayerNorm(4))


class _Named(nn.Module):
    """Two tables, one of which is called an embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.words = nn.Embedding(5, 4), nn.Embedding(7, 4)


def _asked(student, model):
    """The answer; two tensors compared with `in` or `==` get their own words."""
    try:
        return student(model)
    except Exception as error:
        said = str(error.__cause__)
        if "Boolean value of Tensor" in said or "must match the size of tensor" in said:
            raise Wrong("your code raised RuntimeError: `in` compares entries, as == does; use `is`, or id(), to ask "
                        "whether two are the same tensor") from None  # fmt: skip
        raise


@check(
    hints=(
        "Two questions to each tensor: how many axes has it, and is it the table of an nn.Embedding?",
        "collect the identities of the tables of all nn.Embedding modules; then go over model.named_parameters()",
        "tables = {id(module.weight) for module in model.modules() if it is an nn.Embedding}",
    )
)
def decaying_names(student):
    """Exercise 11.6: matrices, but no embedding tables."""
    model = _Tied()
    named = dict(model.named_parameters())
    found = _asked(student, model)
    if isinstance(found, (list, tuple, frozenset)):
        found = set(found)
    found = expect_type(found, set, "the answer")
    if not all(isinstance(name, str) for name in found):
        raise Wrong("the set must hold names (strings), as in model.named_parameters()")
    unknown = found - named.keys()
    if unknown:
        raise Wrong(f"there is no parameter {min(unknown)!r} in model.named_parameters()")
    matrices = {name for name, p in named.items() if p.ndim >= 2}
    tables = {"output.weight", "places.weight"}  # the shared one goes by its first name
    if found == matrices - tables:
        other = set(_asked(student, _nested()))
        if other != {"0.1.weight", "0.2.weight"}:
            raise Wrong("right for one model; in another, nn.Sequential(nn.Sequential(Embedding(5, 4), Linear(4, 5), "
                        f"Conv1d(4, 3, 2)), LayerNorm(4)), you find {sorted(other)}: 0.1.weight and 0.2.weight should "
                        "decay. Ask each module what it is, and each tensor how many axes it has")  # fmt: skip
        return
    if found == named.keys():
        raise Wrong("everything decays, the norms' gains and the biases too")
    if not found:
        raise Wrong("nothing decays")
    if found & tables and set(_asked(student, _Named())) == {"words.weight"}:
        raise Wrong("a table need not be called embedding: ask the module whether it is an nn.Embedding")
    if found == matrices:
        raise Wrong("the embedding tables are in it; they have two axes, but should not decay")
    if "layer.norm1.weight" in found:
        raise Wrong("the norms' gains are in it: they are called weight, but have one axis")
    if "alpha" in found:
        raise Wrong("alpha, a single number, is in it; it has no axis at all")
    if found & tables == {"output.weight"} and "layer.self_attn.in_proj_weight" not in found:
        raise Wrong("attention's in_proj_weight is missing: it is a matrix, though outside every nn.Linear. And "
                    "output.weight is in it, though the same tensor is also the table of an embedding")  # fmt: skip
    if found & tables == {"output.weight"}:
        raise Wrong("output.weight is also the table of an embedding: compare the tensors, not their names")
    if "layer.self_attn.in_proj_weight" not in found:
        raise Wrong("attention's in_proj_weight is missing: it has two axes and belongs to no nn.Linear")
    if any(named[name].ndim < 2 for name in found):
        raise Wrong(f"{min(name for name in found if named[name].ndim < 2)} has one axis and should not decay")
    missing = matrices - tables - found
    raise Wrong(f"{min(missing)} should decay" if missing else f"{min(found & tables)} is an embedding's table")


# --- exercise 11.5: the grid, in words ---------------------------------------------------------

explain_the_grid = Written(
    hints=(
        "(a) Compare the same row in both maps. (b) Put 0.9 into rho_inf first: how large can rho_t become at all? "
        "(c) Which settings could go faster, if they were allowed to?",
        "(a) Is the difference between two fields larger than the difference between two seeds of one? And what does "
        "a warm-up allow, besides what it prevents? (b) RAdam's figure in Going deeper has 0.9 in it; beta2 also "
        "decides over how many gradients v is averaged, in every step. (c) A conclusion of the form 'A is behind B at "
        "this rate' is in danger; 'A fails where B trains, at the same rate' is not.",
        "(a) At 4 layers it changes less than the seeds do; at 12 Post-LN fails without it: measure the highest rate "
        "at which each trains, by depth. (b) r passes one half after 11 gradients in place of 556; the fair "
        "comparison is Adam at beta2 = 0.9. (c) ReZero behind Pre-LN could turn; the failing setting could not.",
    ),
    good_answer=(
        "(a) For the colleague: at 4 layers the seeds change the accuracy more than the warm-up does. Against: at "
        "12 layers the same model fails without it, so the conclusion holds for this depth and this rate. To measure: "
        "the highest rate at which each trains, with and without warm-up, as a function of the depth. (b) r passes "
        "one half after 11 gradients in place of 556, so RAdam is nearly Adam after some tens of steps: at 4 layers "
        "about as fast as Adam, at 12 layers perhaps protected too briefly. But beta2 = 0.9 also makes v noisier for "
        "the whole training, so compare with Adam at 0.9. (c) Could turn: ReZero is behind Pre-LN; no trick helps at "
        "4 layers (a warm-up may allow a higher rate). Could not: Post-LN without warm-up fails at this rate and "
        "depth, where others train. Each with what was equal in the comparison and what was not."
    ),
)


# --- exercise 11.7: a training loop -----------------------------------------------------------


def _loop(
    micro,
    accumulate,
    norm,
    *,
    divide="total",
    clip="step",
    schedule="step",
    emptied=("gradients", "count"),
    order="after",
    first=1,
    bias=False,
):
    """Weights and number of schedule steps after a loop, right or with one of the usual mistakes.

    `emptied` says what is emptied when a step begins; "each" stands for gradients emptied in every micro-batch. With
    first=0 the micro-batches are counted from 0 in `i % accumulate == 0`.
    """
    model, optimizer, scheduler = _training(bias)
    starts = True
    for i, batch in enumerate(micro, first):
        if "each" in emptied or (starts and "gradients" in emptied):
            optimizer.zero_grad()
        if i == first or (starts and "count" in emptied):
            total = 0
        loss, count = _squares(model, batch)
        total += count
        shares = {
            "total": 1,
            "none": 1,
            "running": total,
            "micro": count,
            "micro and number": count * accumulate,
            "number": accumulate,
        }
        (loss / shares[divide]).backward()
        if clip == "micro":
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        if schedule == "micro":
            scheduler.step()
        starts = i % accumulate == 0
        if starts:
            if clip == "before division":
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            for p in model.parameters():
                p.grad /= total if divide == "total" else 1
            if clip == "step":
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            if clip == "alone":
                for p in model.parameters():
                    nn.utils.clip_grad_norm_(p, norm)
            if clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), norm)
            if schedule == "step" and order == "before":
                scheduler.step()
            optimizer.step()
            if schedule == "step" and order == "after":
                scheduler.step()
    return model.weight.detach().clone(), scheduler.last_epoch


class _Descent:
    """Plain gradient descent with torch's names; torch's own loads its compiler first, which would take the 2 s."""

    def __init__(self, parameters, lr):
        self.param_groups = [{"params": list(parameters), "lr": lr}]

    def zero_grad(self, set_to_none=True):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter -= self.param_groups[0]["lr"] * parameter.grad


class _Schedule:
    """A schedule with torch's names, which lowers the rate at every step."""

    def __init__(self, optimizer):
        self.optimizer, self.last_epoch = optimizer, 0

    def step(self):
        self.optimizer.param_groups[0]["lr"] *= 0.8
        self.last_epoch += 1


def _training(bias=False):
    """A small model, its optimizer and its schedule."""
    model = nn.Linear(3, 2, bias=bias).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(_draw(*parameter.shape))
    optimizer = _Descent(model.parameters(), lr=0.3)
    return model, optimizer, _Schedule(optimizer)


def _squares(model, batch):
    """Sum of squares, and the number of examples."""
    x, y = batch
    return (model(x) - y).square().sum(), len(x)


LOOPS = {
    "the gradients of the step before are still there: empty them when a new step begins": {"emptied": ("count",)},
    "neither the gradients nor the count of the step before are emptied when a new step begins": {"emptied": ()},
    "the count of the step before is not emptied: the sum is divided by a running total of all examples so far": (
        {"emptied": ("gradients",)}
    ),
    "each micro-batch is divided by a running total, which is complete only at the last one: divide at the end": (
        {"divide": "running"}
    ),
    "the schedule goes on with every micro-batch; it counts optimizer steps": {"schedule": "micro"},
    "the schedule is never stepped": {"schedule": "never"},
    "the schedule goes on before the optimizer, so that the first rate is skipped": {"order": "before"},
    "each micro-batch is clipped; clip the sum of a step, once": {"clip": "micro"},
    "the gradient is clipped before it is divided by the count": {"clip": "before division"},
    "the gradient that the optimizer uses is not clipped: clip between the division and optimizer.step()": (
        {"clip": "never"}
    ),
    "each entry is clipped by itself (clip_grad_value_); wanted is the length of the whole gradient, clip_grad_norm_": (
        {"clip": "value"}
    ),
    "nothing is divided: the step is that of the sum, not of the mean over the examples": {"divide": "none"},
    "each micro-batch is divided by its own count, so means are added": {"divide": "micro"},
    "means of micro-batches are averaged: examples in small ones count more; divide by the total count": (
        {"divide": "micro and number"}
    ),
    "the sum is divided by the number of micro-batches, not of examples": {"divide": "number"},
    "that is the loop as it stands above": {"divide": "micro", "clip": "micro", "schedule": "micro", "emptied": ()},
}  # fmt: skip
DIVISIONS = ("total", "micro", "micro and number", "number", "none")
MISTAKES = [
    *LOOPS.items(),
    *(("the gradients are emptied in every micro-batch, so only the last of a step counts; empty them once a step",
       {"divide": divide, "emptied": ("each", "count")}) for divide in DIVISIONS),
    *(("the first step is made after a single micro-batch, and the last micro-batches make none: "
       "`i % accumulate == 0` needs a count from 1", {"divide": divide, "first": 0}) for divide in DIVISIONS),
]  # fmt: skip


def _watched():
    """`_squares` as a loss, and what it sees: losses that wait for their backward pass, the passes' numbers, its calls.

    A mark lives as long as the graph of its loss, or until the backward pass comes by.
    """
    waiting, most, passes, calls = weakref.WeakSet(), [0], [], [0]

    class Mark:
        pass

    def loss_fn(model, batch):
        calls[0] += 1
        loss, count = _squares(model, batch)
        mark = Mark()

        def seen(gradient):
            waiting.discard(mark)
            passes.append(torch._C._current_graph_task_id())

        if loss.requires_grad:
            waiting.add(mark)
            loss.register_hook(seen)
            most[0] = max(most[0], len(waiting))
        return loss, count

    return loss_fn, most, passes, calls


@check(
    hints=(
        "What must happen once a micro-batch, and what once an optimizer step? Four lines are in the wrong group.",
        "per step: zero_grad; backward of each micro-batch's SUM; divide by the total count; clip; step; schedule",
        "keep a running total of the counts, and after the last micro-batch of a step: parameter.grad /= total",
    )
)
def train_steps(student):
    """Exercise 11.7: accumulation, clipping and schedule, in the right order and the right number."""
    micro = [[_draw(n, 3, seed=n), 3 * _draw(n, 2, seed=10 + n)] for n in (2, 5, 1, 3, 4, 6)]
    before, _ = _loop([], 1, 1.0)
    trainings = ((2, 0.7), (3, 100.0))  # every step is clipped, none is
    found, (loss_fn, most, passes, calls) = [], _watched()
    for accumulate, max_norm in trainings:
        model, optimizer, scheduler = _training()
        student(model, micro, loss_fn, optimizer, scheduler, accumulate, max_norm)
        found.append((model.weight.detach().clone(), scheduler.last_epoch, model.weight.grad))

    def like(**mistake):
        """Whether both trainings end as with this mistake."""
        wanted = [_loop(micro, *training, **mistake) for training in trainings]
        return all(
            close(weights, right, 1e-6) and steps == right_steps
            for (weights, steps, _), (right, right_steps) in zip(found, wanted, strict=True)
        )

    if like():
        if len(set(passes)) < len(passes):
            raise Wrong("the weights are right, but one backward() serves several micro-batches, whose graphs must all "
                        "be kept until then: call backward() once a micro-batch")  # fmt: skip
        if calls[0] > len(trainings) * len(micro):
            raise Wrong("the weights are right, but a micro-batch goes through the model more than once, which costs "
                        "time: keep a running total of the counts, and divide the gradients at the end")  # fmt: skip
        if most[0] > 2:  # 2: the one before may still have its name
            raise Wrong("the weights are right, but the losses of a step, and so their graphs, are kept until its end: "
                        "call backward() before the next micro-batch is computed")  # fmt: skip
        model, optimizer, scheduler = _training(bias=True)
        student(model, micro, _squares, optimizer, scheduler, 1, 0.7)
        if close(model.weight.detach(), _loop(micro, 1, 0.7, clip="alone", bias=True)[0], 1e-5):
            raise Wrong("right for one parameter; with two, a gradient is clipped by its own length alone: wanted is "
                        "that of all parameters together")  # fmt: skip
        if not close(model.weight.detach(), _loop(micro, 1, 0.7, bias=True)[0], 1e-5):
            raise Wrong("right for one parameter and 2 micro-batches a step; wrong for two parameters and 1 a step: is "
                        "every micro-batch used, and is every parameter's gradient divided before the length of all "
                        "of them is clipped?")  # fmt: skip
        return
    weights, steps, left = found[0]
    if like(clip="never") and left is not None and close(left.norm(), 0.7, 1e-5):
        raise Wrong("the gradient is clipped after optimizer.step(): the step has used it unclipped")
    for message, mistake in MISTAKES:
        if like(**mistake):
            raise Wrong(message)
    if close(weights, before, 1e-12):
        raise Wrong("the weights have not moved: is the optimizer stepped, with gradients that are not yet emptied?")
    if steps != 3:
        raise Wrong(f"6 micro-batches, 2 to a step, are 3 steps of the schedule; yours made {steps}")
    ends = [
        close(weights, _loop(micro, *training)[0], 1e-6)
        for (weights, _, _), training in zip(found, trainings, strict=True)
    ]
    if ends == [True, False]:
        raise Wrong("right where every step is clipped (2 micro-batches a step), wrong where none is (3 a step)")
    if ends == [False, True]:
        raise Wrong("right where no step is clipped (3 micro-batches a step), wrong where each is (2 a step)")
    raise Wrong(
        "the schedule is right, the weights are not: sum of the losses backward, divided by the total count of the "
        "step, then clipped once"
    )
