"""Checks of chapter 04's exercises: backpropagation through time, truncation, clipping.

Each check asks for the properties of a right answer first; if one fails, it looks
for the usual mistakes and names the one it recognises. Notebook: 04.
"""

import itertools

import torch
from torch.autograd import forward_ad
from torch.nn import utils

from course_lib import bptt
from course_lib.exercises import Written, Wrong, check, close, expect_number, expect_numbers, expect_tensor, near
from course_lib.exercises.ready_made import called

AUTOGRAD = (torch.autograd.grad, torch.autograd.backward, forward_ad.make_dual)  # backward() and torch.func call these
CLIPPING = (utils.clip_grad_norm_, utils.clip_grads_with_norm_, bptt.clip_norm)


def _draw(*shape, seed=0):
    """Random float64 numbers, the same every time."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _by_hand(student, given):
    """Refuse a right answer whose gradients torch computes, or that is clipped by a ready-made function."""
    if called(student, [(given, {})], AUTOGRAD):
        raise Wrong("the numbers are right, but torch differentiates for you (autograd): walk from T to 1 yourself")
    if name := called(student, [(given, {})], CLIPPING):
        raise Wrong(
            f"the numbers are right, but `{name}` clips for you: compute the common norm and the factor yourself"
        )


# --- 4.1 ------------------------------------------------------------------------


@check(
    hints=(
        "Forward first: h_1, h_2, h_3, then the three outputs, then dL/do_t = (o_t - y_t) / 3.",
        "From the last step back: dL/dh_3 = 2 dL/do_3; then dL/dh_t = 0.5 dL/dh_(t+1) + 2 dL/do_t. Each weight's "
        "gradient is a sum over the three steps of (gradient of what it makes) times (what it reads).",
        "h = 2, 1, 1.5 and dL/do = 1, 0, 1. So dL/dh_3 = 2 and dL/dh_2 = 1. w_hh reads h_0 = 0, h_1 = 2, h_2 = 1.",
    )
)
def three_steps(answer):
    """Exercise 4.1: backpropagation through three steps with pencil and paper."""
    dh1, dw_ih, dw_hh, dw_ho = got = expect_numbers(answer, ("dL/dh_1", "dL/dw_ih", "dL/dw_hh", "dL/dw_ho"))
    want = (2.5, 7.0, 4.0, 3.5)
    if all(near(a, b) for a, b in zip(got, want, strict=True)):
        return
    if all(near(a, 3 * b) for a, b in zip(got, want, strict=True)):
        raise Wrong("every number is 3 times too large: the loss is a mean over the steps, so dL/do_t carries a 1/T")
    if all(near(a, -b) for a, b in zip(got, want, strict=True)):
        raise Wrong("every sign is the wrong way round: the slope of (o_t - y_t)^2 / 2 is o_t - y_t, not y_t - o_t")
    if near(dh1, 2.0):
        raise Wrong("dL/dh_1: only the path through o_1. h_1 also goes into h_2, and through it into o_2 and o_3")
    if near(dh1, 0.5):
        raise Wrong("dL/dh_1: only the path through h_2. h_1 also makes o_1, which is in the loss")
    if near(dh1, 3.0):
        raise Wrong("dL/dh_1: from h_3 back to h_1 are two steps, each with its factor w_hh = 1/2; yours has one")
    if not near(dh1, 2.5):
        raise Wrong(f"dL/dh_1 is not {dh1:g}; work from dL/dh_3 = w_ho dL/do_3 back, one step at a time")
    if near(dw_ih, 2.0):
        raise Wrong("dL/dw_ih: this is the last step's term alone; the weight is used at every step, so sum over t")
    if not near(dw_ih, 7.0):
        raise Wrong(f"dL/dw_ih is not {dw_ih:g}: sum dL/dh_t times x_t over the three steps")
    if near(dw_hh, 9.0):
        raise Wrong("dL/dw_hh: you multiplied dL/dh_t by h_t; what w_hh reads at step t is the state before, h_(t-1)")
    if not near(dw_hh, 4.0):
        raise Wrong(f"dL/dw_hh is not {dw_hh:g}: sum dL/dh_t times h_(t-1) over the three steps; h_0 = 0")
    raise Wrong(f"dL/dw_ho is not {dw_ho:g}: sum dL/do_t times h_t over the three steps")


# --- 4.2 ------------------------------------------------------------------------


def _expanded(do, W_hh, W_ho, t, first=0, last=0, power=None):
    """The sum over k from t + first to T + last, with the power of W_hh as a function of (k, t, T)."""
    T = do.shape[1]
    power = power or (lambda k, t, T: torch.linalg.matrix_power(W_hh, k - t))
    total = do.new_zeros(len(do), len(W_hh))
    for k in range(t + first, T + last + 1):
        total = total + do[:, k - 1] @ W_ho @ power(k, t, T)
    return total


@check(
    hints=(
        "Write the recursion for dL/dh_T, dL/dh_(T-1), dL/dh_(T-2) and put each into the next. Which power of "
        "W_hh stands beside dL/do_k?",
        "For k = t ... T: the row dL/do_k, times W_ho, times W_hh as often as there are steps from k back to t; sum. "
        "do[:, k - 1] is step k.",
        "total = total + do[:, k - 1] @ W_ho @ torch.linalg.matrix_power(W_hh, k - t), for k in range(t, T + 1)",
    )
)
def expanded_gradient(student):
    """Exercise 4.2: the expanded sum of dL/dh_t."""
    B, T, D, Q = 2, 5, 3, 4
    do, W_hh, W_ho = _draw(B, T, Q), _draw(D, D), _draw(Q, D)
    for t in (2, T, 1):
        got = expect_tensor(student(do, W_hh, W_ho, t), shape=(B, D))
        got = got.double()
        if close(got, _expanded(do, W_hh, W_ho, t)):
            continue
        powers = {
            "W_hh is transposed: with rows the gradient is multiplied by W_hh itself from the right, with columns by "
            "its transpose from the left": lambda k, t, T: torch.linalg.matrix_power(W_hh.T, k - t),
            "W_hh ** n raises every entry to the power n; wanted is the matrix multiplied with itself n times": (
                lambda k, t, T: W_hh ** (k - t)
            ),
            "the powers run the wrong way: step t's own output stands right at h_t, so it comes with power 0, and the "
            "last one with power T - t": lambda k, t, T: torch.linalg.matrix_power(W_hh, T - k),
            "every power is one too high: the term of step t itself has no factor W_hh": (
                lambda k, t, T: torch.linalg.matrix_power(W_hh, k - t + 1)
            ),
            "every term has the factor W_hh once: a gradient that comes from k - t steps ahead passes it k - t times": (
                lambda k, t, T: W_hh if k > t else torch.eye(D, dtype=W_hh.dtype)
            ),
            "the powers are missing: a gradient from a later step passes W_hh once a step": (
                lambda k, t, T: torch.eye(D, dtype=W_hh.dtype)
            ),
        }
        for message, power in powers.items():
            if close(got, _expanded(do, W_hh, W_ho, t, power=power)):
                raise Wrong(message)
        if t < T and close(got, do[:, t - 1] @ W_ho):
            raise Wrong("this is step t's own term alone; every later output depends on h_t, too")
        if t < T - 2 and close(got, _expanded(do, W_hh, W_ho, t, last=t + 1 - T)):
            raise Wrong("you stopped at t + 1: these are the first two terms; every output from t to T has one")
        if t < T and close(got, _expanded(do, W_hh, W_ho, t, first=T - t)):
            raise Wrong("this is the last step's term alone; every output from t to T has one")
        if close(got, _expanded(do, W_hh, W_ho, t, first=1)):
            raise Wrong("the term of step t itself is missing: the sum begins at k = t")
        if close(got, _expanded(do, W_hh, W_ho, t, last=-1)):
            raise Wrong("the term of the last step is missing: the sum runs up to k = T")
        if t < T and close(got, _expanded(do, W_hh, W_ho, t + 1)):
            raise Wrong("this is dL/dh of the step after: steps count from 1, so step t is do[:, t - 1]")
        raise Wrong(
            f"for t = {t} of T = {T} the result differs from the recursion; compare them for t = T - 1 on paper"
        )


# --- 4.3 ------------------------------------------------------------------------


def _leaky_forward(x, h_0, W_ih, W_hh, b, alpha):
    """States (B, T + 1, D) and candidates (B, T, D) of the leaky network."""
    h, c = [h_0], []
    for t in range(x.shape[1]):
        c.append(torch.tanh(x[:, t] @ W_ih.T + h[-1] @ W_hh.T + b))
        h.append((1 - alpha) * h[-1] + alpha * c[-1])
    return torch.stack(h, 1), torch.stack(c, 1)


def _leaky(do, x, h, c, W_hh, W_ho, alpha, keep=True, scale=True, slope=True, back=None, before=True):
    """The backward pass with its usual mistakes as switches."""
    back = W_hh if back is None else back
    straight = {True: 1 - alpha, "whole": 1, False: 0, "alpha": alpha}[keep]
    entering = {True: alpha, False: 1, "rest": 1 - alpha}[scale]
    carried, da = torch.zeros_like(h[:, 0]), torch.zeros_like(c)
    for t in range(x.shape[1] - 1, -1, -1):
        dh = do[:, t] @ W_ho + carried
        inside = {True: c[:, t], "h": h[:, t + 1]}.get(slope)
        da[:, t] = entering * dh * (1 if inside is None else 1 - inside**2)
        carried = da[:, t] @ back + straight * dh
    seen = h[:, :-1] if before else h[:, 1:]
    sums = [torch.einsum("btd,bti->di", g, v) for g, v in ((da, x), (da, seen), (do, h[:, 1:]))]
    return (*sums, da.sum((0, 1)))


@check(
    hints=(
        "h_t goes to three places: o_t, the next candidate c_(t+1), and straight to h_(t+1). So three gradients "
        "meet in it.",
        "Walk from t = T to 1 with the gradient that comes from the next step: dh = do_t W_ho + from_next; da = "
        "alpha * dh * (1 - c_t^2); from_next = da W_hh + (1 - alpha) dh. Then sum da^T x_t, da^T h_(t-1), do^T h_t.",
        "Store every da in a (B, T, D) tensor; then torch.einsum('btd,bti->di', da, x), the same with h[:, :-1], "
        "the same with do and h[:, 1:], and da.sum((0, 1)).",
    )
)
def leaky_backward(student):
    """Exercise 4.3: the backward pass of a leaky network."""
    B, T, inputs, D, Q, alpha = 3, 6, 2, 4, 5, 0.3
    x, h_0, do = _draw(B, T, inputs), _draw(B, D), _draw(B, T, Q)
    weights = [_draw(D, inputs).requires_grad_(), _draw(D, D).requires_grad_(), _draw(D).requires_grad_()]
    W_hh, W_ho = weights[1].detach(), _draw(Q, D).requires_grad_()
    h, c = _leaky_forward(x, h_0, *weights, alpha)
    loss = (do * (h[:, 1:] @ W_ho.T)).sum()
    dW_ih, dW_hh, db, dW_ho = torch.autograd.grad(loss, [*weights, W_ho])
    arguments = (do, x, h.detach(), c.detach(), W_hh, W_ho.detach(), alpha)
    got = student(*arguments)
    names = ("dW_ih", "dW_hh", "dW_ho", "db")
    if not isinstance(got, (tuple, list)) or len(got) != 4:
        raise Wrong(f"expected a tuple of four gradients ({', '.join(names)}), got {type(got).__name__}")
    want = (dW_ih, dW_hh, dW_ho, db)
    for name, g, w in zip(names, got, want, strict=True):
        expect_tensor(g, shape=w.shape, name=name)
    if all(close(g, w) for g, w in zip(got, want, strict=True)):
        _by_hand(student, arguments)
        return

    def is_like(**switches):
        return all(close(g, w) for g, w in zip(got, _leaky(*arguments, **switches), strict=True))

    if is_like(slope="h", scale=False, keep=False):
        raise Wrong(
            "this is section 3's loop. Here tanh makes the candidate c_t, not the state; only the fraction alpha of it "
            "enters the state; and h_t also reaches h_(t+1) past tanh"
        )
    if is_like(keep="alpha", scale="rest"):
        raise Wrong("alpha and 1 - alpha are swapped: the candidate enters with alpha, 1 - alpha of the state stays")
    usual = {
        "the straight path has the factor alpha; it must have 1 - alpha, the fraction of h_t that stays": {
            "keep": "alpha"
        },
        "the candidate's gradient has the factor 1 - alpha; it must have alpha, the fraction that is replaced": {
            "scale": "rest"
        },
        "the straight path is missing: h_t also reaches h_(t+1) with the factor 1 - alpha, past tanh": {"keep": False},
        "the straight path lacks its factor: h_(t+1) takes over 1 - alpha of h_t, not the whole": {"keep": "whole"},
        "the candidate enters the state with the factor alpha, so its gradient carries it, too": {"scale": False},
        "tanh' is 1 - c_t^2, with the candidate c_t, which is the value of tanh; you took the state h_t": {
            "slope": "h"
        },
        "tanh' is missing: the gradient of what stands inside tanh is that of c_t times 1 - c_t^2": {"slope": None},
        "W_hh is transposed on the way back: with rows, da @ W_hh": {"back": W_hh.T},
        "dW_hh: W_hh reads the state before, h_(t-1), which is h[:, :-1]; you took h_t": {"before": False},
        "no gradient comes back from the next step: each step sees its own output only": {
            "back": 0 * W_hh,
            "keep": False,
        },
    }
    for message, switches in usual.items():
        if is_like(**switches):
            raise Wrong(message)
    for (one, first), (other, second) in itertools.combinations(usual.items(), 2):
        if not first.keys() & second.keys() and is_like(**first, **second):
            raise Wrong(f"two things at once. First: {one}. Second: {other}")
    if all(close(g, w / B) for g, w in zip(got, want, strict=True)):
        raise Wrong("you average over the batch; what the loss divides by is in `do` already, so only sum")
    if all(close(g, w) for g, w in zip(got[:3], want[:3], strict=True)):
        raise Wrong(
            "the three matrices are right; the bias is used at every step of every sequence, so db sums da over both"
        )
    wrong = [name for name, g, w in zip(names, got, want, strict=True) if not close(g, w)]
    raise Wrong(f"these differ from autograd's: {', '.join(wrong)}; follow one number by hand for T = 2")


# --- 4.4 ------------------------------------------------------------------------


@check(
    hints=(
        "Draw 12 steps with a bar after the 4th and the 8th. For lag 1, how many arrows t -> t - 1 are there? How many "
        "cross a bar?",
        "All pairs of lag k: 12 - k. Within one window of 4 steps: 4 - k (0 if k is 4 or more); there are 3 windows.",
        "Lag 1: 3 * 3 of 11.",
    )
)
def kept_pairs(answer):
    """Exercise 4.4: what fraction of the dependencies a window keeps."""
    got = expect_numbers(answer, ("lag 1", "lag 3", "lag 4"))
    want = (9 / 11, 1 / 3, 0.0)
    if all(near(a, b) for a, b in zip(got, want, strict=True)):
        return
    readings = {
        "these are numbers of pairs; divide by all the pairs of that lag": (9, 3, 0),
        "these are percentages: give fractions between 0 and 1": tuple(100 * share for share in want),
        "these are the fractions that are cut; asked are those that are kept": tuple(1 - share for share in want),
        "you divided by 12, but a lag of k leaves only 12 - k pairs: the first k steps have no partner": (
            9 / 12,
            3 / 12,
            0,
        ),
        "a window of 4 steps holds 4 - k pairs of lag k, not 4 - k + 1: steps 1 and 4 are 3 apart": (
            12 / 11,
            6 / 9,
            3 / 8,
        ),
    }
    for message, values in readings.items():
        if all(near(a, b) for a, b in zip(got, values, strict=True)):
            raise Wrong(message)
    if all(abs(a - b) <= 0.006 for a, b in zip(got, want, strict=True)):
        raise Wrong("right up to rounding: give three digits at least, or let Python divide")
    for name, a, b in zip(("1", "3", "4"), got, want, strict=True):
        if not near(a, b):
            raise Wrong(
                f"lag {name}: {a:.3g} is not the fraction; count the pairs that do not cross the bars after 4 and 8"
            )


# --- 4.5 ------------------------------------------------------------------------


def _window_gradient(
    layer, loss_fn, x, y, window, carry=True, inside=False, detach=True, whole=False, last=False, weight=None, late=0
):
    """The gradient of the layer's parameters as one vector, with the usual mistakes as switches.

    `weight` is a function of the steps in a window; `late` says by how many steps the cut misses a window's edge.
    """
    T, state, total = x.shape[1], None, 0.0
    stop = T - T % window if whole else T
    for start in range(0, stop, window):
        outputs, state = [], (state if carry else None)
        for t in range(start, min(start + window, T)):
            cut = inside or (detach and t > 0 and (t - late) % window == 0)
            output, state = layer(x[:, t : t + 1], state.detach() if cut and state is not None else state)
            outputs.append(output)
        loss = loss_fn(torch.cat(outputs, 1), y[:, start : start + window])
        total = (0.0 if last else total) + (weight(len(outputs)) if weight else 1.0) * loss
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(layer.parameters()))])


@check(
    hints=(
        "Print the gradient for window = 1, 5 and 20. Should they be equal? What does the inner loop do?",
        "Within a window the state must keep its history; between two windows it must lose it and keep its numbers.",
        "Move the detach from the inner loop to the outer one: before a window's first step, if state is not None, "
        "state = state.detach().",
    )
)
def window_backward(student):
    """Exercise 4.5: truncated backpropagation, window by window."""
    B, T, inputs, D, window = 2, 10, 3, 5, 4  # three windows, of 4, 4 and 2 steps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        layer = torch.nn.RNN(inputs, D, batch_first=True, dtype=torch.float64)
    x, y = _draw(B, T, inputs), _draw(B, T, D)

    def loss_fn(output, targets):
        return (2 * output - targets).square().sum()  # not symmetric

    try:
        loss = student(layer, loss_fn, x, y, window)
    except Exception as error:
        if "backward through the graph a second time" in str(error.__cause__):
            raise Wrong(
                "the state is not detached before a window's first step: the window's backward walks into the graph of "
                "the window before, which is gone. Cut it there; retain_graph=True, which torch proposes, cuts nothing"
            ) from error
        raise
    if any(parameter.grad is None for parameter in layer.parameters()):
        raise Wrong("after your function the layer's parameters have no .grad: call backward on each window's loss")
    got = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])

    def is_like(**switches):
        return close(got, _window_gradient(layer, loss_fn, x, y, window, **switches))

    if not is_like():
        usual = {
            "the state is still detached inside the window: every gradient goes back one step only": {"inside": True},
            "nothing is cut: this is the full gradient; the state must be detached between windows": {"detach": False},
            "every window starts from zeros: the state's numbers must go on, only its history must not": {
                "carry": False
            },
            "the last window, which is shorter, is missing": {"whole": True},
            "only the last window's gradient is left: those of all windows add up, so nothing in here may set .grad to "
            "zero": {"last": True},
            "you divide by the number of windows: the loss is a sum over the steps, so the windows add up": {
                "weight": lambda steps: 1 / 3
            },
            "you divide each window's loss by the window's length: the loss is a sum over the steps": {
                "weight": lambda steps: 1 / window
            },
            "you divide each window's loss by the number of its steps: the loss is a sum over the steps": {
                "weight": lambda steps: 1 / steps
            },
            "the cut comes one step late: after a window's first step instead of before it": {"late": 1},
            "the cut comes one step early: before a window's last step instead of after it": {"late": -1},
        }
        for message, switches in usual.items():
            if is_like(**switches):
                raise Wrong(message)
        if close(got, _window_gradient(layer, lambda output, targets: loss_fn(targets, output), x, y, window)):
            raise Wrong("loss_fn got its arguments in the wrong order: first the output, then the targets")
        raise Wrong(
            f"with T = {T} and window = {window} the gradients differ from those of the windows 1-4, 5-8 and 9-10"
        )
    with torch.no_grad():
        want = loss_fn(layer(x)[0], y)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        raise Wrong("the returned loss still holds its graph, and with it all activations: return loss.item() sums")
    if not close(expect_number(loss, "the returned loss"), want):
        raise Wrong(
            f"the gradients are right, but the returned loss is {float(loss):.4g}; its sum over the windows is wanted"
        )
    before = [_draw(*parameter.shape) for parameter in layer.parameters()]  # what another loss may have left in .grad
    for parameter, gradient in zip(layer.parameters(), before, strict=True):
        parameter.grad = gradient.clone()
    loss = student(layer, loss_fn, x, y, 1)
    got = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])
    added, want_added = got - torch.cat([g.flatten() for g in before]), _window_gradient(layer, loss_fn, x, y, 1)
    if close(got, want_added):
        raise Wrong(
            "what stood in .grad before the call is gone: the gradients are added to it, so set nothing to zero"
        )
    if not close(added, want_added) or not close(expect_number(loss), want):
        raise Wrong(f"right for T = {T} and window = {window}, wrong for window = 1: is every step in one window?")


# --- 4.6 ------------------------------------------------------------------------


CLIPPED_BY = {  # what is compared with max_norm, from the norms of the four gradients and the rate
    "all": lambda norms, rate: norms.norm(),
    "update": lambda norms, rate: rate * norms.norm(),
    "sum": lambda norms, rate: norms.sum(),
    "square": lambda norms, rate: norms.square().sum(),
    "no bias": lambda norms, rate: norms[:3].norm(),
    "matrices": lambda norms, rate: norms[:3].norm(),  # and the bias stays as it is
}


def _step(
    weights, h_0, x, y, alpha, rate, max_norm, targets=True, mean=True, back=None, clip="all", sign=1, carry=True
):
    """The training step, with its usual mistakes as switches: new weights, last state, loss."""
    W_ih, W_hh, W_ho, b = weights
    h, c = _leaky_forward(x, h_0 if carry else 0 * h_0, W_ih, W_hh, b, alpha)
    logits = h[:, 1:] @ W_ho.T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    do = logits.softmax(-1) - (torch.nn.functional.one_hot(y, len(W_ho)) if targets else 0)
    do = do / {True: y.numel(), "batch": len(y), "steps": y.shape[1], False: 1}[mean]
    dW_ih, dW_hh, dW_ho, db = _leaky(do, x, h, c, W_hh, W_ho, alpha, **(back or {}))
    gradients = [dW_ih, dW_hh, dW_ho, db]
    if clip in CLIPPED_BY:
        norm = CLIPPED_BY[clip](torch.stack([g.norm() for g in gradients]), rate)
        shorter = [g * min(1.0, (max_norm / norm).item()) for g in gradients]
        gradients = [*shorter[:3], gradients[3]] if clip == "matrices" else shorter
    elif clip == "each":
        gradients = [g * min(1.0, (max_norm / g.norm()).item()) for g in gradients]
    elif clip == "value":
        gradients = [g.clamp(-max_norm, max_norm) for g in gradients]
    elif clip == "always":
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        gradients = [g * max_norm / norm for g in gradients]
    elif clip == "unit":
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        gradients = [g / norm if norm > max_norm else g for g in gradients]
    return [W - sign * rate * g for W, g in zip(weights, gradients, strict=True)], h[:, -1], loss


@check(
    hints=(
        "Write it in five parts, and test each: forward with all states kept; loss and do; the walk back; one factor "
        "for all gradients; new weights.",
        "do = (softmax(logits) - one_hot(y)) / (B T). The walk is that of exercise 4.3. norm = the root of the sum of "
        "all squares over all four gradients; factor = max_norm / norm if norm > max_norm, else 1; each new weight is "
        "the old one minus rate * factor * gradient.",
        "dW_ih, dW_hh, dW_ho, db = leaky_backward(do, x, h, c, W_hh, W_ho, alpha), with h (B, T + 1, D) and c "
        "(B, T, D) stacked along dim=1; return [W_ih - rate * factor * dW_ih, ...], h[:, -1] and loss.item().",
    )
)
def training_step(student):
    """Exercise 4.6: forward, backward by hand, clipping and update in one step."""
    B, T, inputs, D, V = 3, 5, 2, 4, 6
    weights = [_draw(D, inputs), _draw(D, D), _draw(V, D), _draw(D)]
    y = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(3))
    given = (_draw(B, D), _draw(B, T, inputs), y, 0.3, 0.5)
    for max_norm in (100.0, 0.1):  # first without clipping, so that what is wrong before it is not taken for it
        got = student([weight.clone() for weight in weights], *given, max_norm)
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            raise Wrong(f"expected a tuple (new_weights, h_T, loss), got {type(got).__name__}")
        new, h_T, loss = got
        if not isinstance(new, (tuple, list)) or len(new) != 4:
            raise Wrong("the first result must be a list of four tensors: W_ih, W_hh, W_ho, b")
        names = ("W_ih", "W_hh", "W_ho", "b")
        new = [
            expect_tensor(n, shape=w.shape, name=f"the new {k}") for k, n, w in zip(names, new, weights, strict=True)
        ]
        _forward_is_right(expect_tensor(h_T, shape=(B, D), name="h_T"), expect_number(loss, "the loss"), weights, given)
        _update_is_right(new, weights, given, max_norm)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            raise Wrong("the loss holds its graph; the number alone is wanted: loss.item()")
    _by_hand(student, ([weight.clone() for weight in weights], *given, max_norm))


def _forward_is_right(h_T, loss, weights, given):
    _, want_h, want_loss = _step(weights, *given, 1.0)
    _, zero_h, zero_loss = _step(weights, *given, 1.0, carry=False)
    if not close(h_T, want_h):
        if close(h_T, zero_h):
            raise Wrong("the window starts from zeros; it must start from h_0, the state after the window before")
        if close(h_T, given[0]):
            raise Wrong("the returned state is h_0; the next window starts from the state after the last step, h_T")
        raise Wrong("the forward pass: h_T differs; h_t = (1 - alpha) h_(t-1) + alpha c_t, with the bias inside tanh")
    if not close(loss, want_loss):
        steps, rows = given[2].shape[1], given[2].shape[0]
        sums = {"sum over steps and sequences": steps * rows, "sum over the steps": steps, "sum over sequences": rows}
        for what, factor in sums.items():
            if close(loss, factor * want_loss):
                raise Wrong(f"the loss is a {what}; wanted is the mean over all steps and sequences")
        if close(loss, zero_loss):
            raise Wrong("h_T is right, but the loss belongs to a window that starts from zeros")
        raise Wrong(f"h_T is right, but the loss is {float(loss):.4g}; it is the cross-entropy of h_t W_ho^T against y")


def _update_is_right(new, weights, given, max_norm):
    def is_like(**switches):
        want, _, _ = _step(weights, *given, max_norm, **switches)
        return all(close(a, b) for a, b in zip(new, want, strict=True))

    if is_like():
        return
    if all(close(a, b) for a, b in zip(new, weights, strict=True)):
        raise Wrong("the weights have not moved")
    usual = {
        "the step goes uphill: subtract the gradient": {"sign": -1},
        "the learning rate is missing in the update": {"sign": 1 / given[4]},
        "the right symbols are missing in do: it is the probabilities minus 1 at the right symbol": {"targets": False},
        "do is not divided by B T, but the loss is a mean over all steps and sequences": {"mean": False},
        "do is divided by B only; the loss is a mean over steps and sequences": {"mean": "batch"},
        "do is divided by T only; the loss is a mean over steps and sequences": {"mean": "steps"},
        "the straight path is missing in the walk: h_t also reaches h_(t+1) with the factor 1 - alpha": {
            "back": {"keep": False}
        },
        "the candidate's factor alpha is missing in the walk": {"back": {"scale": False}},
        "tanh' is missing in the walk": {"back": {"slope": None}},
        "tanh' is 1 - c_t^2, with the candidate; you took the state h_t": {"back": {"slope": "h"}},
        "W_hh is transposed on the way back: with rows, da @ W_hh": {"back": {"back": weights[1].T}},
        "dW_hh: W_hh reads the state before, h_(t-1); you took h_t": {"back": {"before": False}},
    }
    clips = {
        "nothing is clipped, though all gradients together are longer than max_norm": {"clip": None},
        "you clip rate * g instead of g: the gradient is shortened first, then multiplied by the rate": {
            "clip": "update"
        },
        "the common norm is not the sum of the four norms: it is the root of the sum of their squares": {"clip": "sum"},
        "the root is missing: you compare the squared norm with max_norm": {"clip": "square"},
        "the bias is missing in the norm: all four gradients together are one long vector": {"clip": "no bias"},
        "the bias is neither in the norm nor shortened: one norm and one factor for all four gradients": {
            "clip": "matrices"
        },
        "each gradient is clipped by its own norm, which turns the whole: one factor for all four": {"clip": "each"},
        "you limit every entry, which turns the gradient: one factor for all entries": {"clip": "value"},
        "a gradient that is shorter than max_norm was changed: it must stay as it is": {"clip": "always"},
        "the clipped gradients have norm 1: multiply by max_norm, too": {"clip": "unit"},
    }
    for message, switches in (clips | usual).items():
        if is_like(**switches) or (switches.keys() & {"back", "mean"} and is_like(**switches, clip=None)):
            raise Wrong(message)
    (clipped, *_), shown = _step(weights, *given, max_norm), []
    for name, a, b, old in zip(("W_ih", "W_hh", "W_ho", "b"), new, clipped, weights, strict=True):
        moved, want = (a - old).norm().item(), (b - old).norm().item()
        shown += [f"{name} moved by {moved:.3g} instead of {want:.3g}"] if not close(a, b) else []
    raise Wrong(f"with max_norm = {max_norm:g} the update differs: {', '.join(shown)}")


# --- 4.7 ------------------------------------------------------------------------

what_decides = Written(
    hints=(
        "Change one thing at a time, and write down horizon and mean slope. First without tanh.",
        "(a) Solve rho^k = 0.01 for k. (b) Watch mean_slope while you raise input_scale. (c) With inputs of 0, what is "
        "the state, and so tanh'? Try radius 0.9, 0.99 and 1, and compare with (a). (d) What do the Jacobians depend "
        "on, besides the radius?",
        "(a) ln 0.01 / ln rho. (b) Where is tanh flat? (c) A state that stays 0 makes tanh' equal to 1. (d) Training "
        "changes W_hh and the states at every step; compute 0.99^100.",
    ),
    good_answer=(
        "(a) k = ln 0.01 / ln rho, rounded up: 44 steps at 0.9, 459 at 0.99, and no end from 1 on. (b) Large inputs "
        "push the states towards -1 and 1, where 1 - h^2 is small, and this factor multiplies the gradient at every "
        "step, although a rotation keeps its length; with your own numbers for mean_slope. (c) The state stays 0, "
        "tanh' is exactly 1, and the network behaves like one without tanh: the horizon is that of (a) below radius "
        "1, longer and longer towards it, and has no end from 1 on. (d) The product depends on the states, so on the "
        "data, and on weights that training moves; one per cent off in each factor is a factor of e after 100 steps; "
        "and directions differ. What is wanted is a path whose factor the network can set near 1 and hold there."
    ),
)
