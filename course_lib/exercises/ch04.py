"""Checks of chapter 04's exercises: backpropagation through time, truncation, clipping.

Each check asks for the properties of a right answer first; if one fails, it looks
for the usual mistakes and names the one it recognises. Notebook: 04.
"""

import torch

from course_lib.exercises import Wrong, check, close, expect_number, expect_numbers, expect_tensor, near


def _draw(*shape, seed=0):
    """Random float64 numbers, the same every time."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


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
    dh1, dw_hx, dw_hh, dw_qh = got = expect_numbers(answer, ("dL/dh_1", "dL/dw_hx", "dL/dw_hh", "dL/dw_qh"))
    want = (2.5, 7.0, 4.0, 3.5)
    if all(near(a, b) for a, b in zip(got, want, strict=True)):
        return
    if all(near(a, 3 * b) for a, b in zip(got, want, strict=True)):
        raise Wrong("every number is 3 times too large: the loss is a mean over the steps, so dL/do_t carries a 1/T")
    if near(dh1, 2.0):
        raise Wrong("dL/dh_1: only the path through o_1. h_1 also goes into h_2, and through it into o_2 and o_3")
    if near(dh1, 0.5):
        raise Wrong("dL/dh_1: only the path through h_2. h_1 also makes o_1, which is in the loss")
    if near(dh1, 3.0):
        raise Wrong("dL/dh_1: from h_3 back to h_1 are two steps, each with its factor w_hh = 1/2; yours has one")
    if not near(dh1, 2.5):
        raise Wrong(f"dL/dh_1 is not {dh1:g}; work from dL/dh_3 = w_qh dL/do_3 back, one step at a time")
    if near(dw_hx, 2.0):
        raise Wrong("dL/dw_hx: this is the last step's term alone; the weight is used at every step, so sum over t")
    if not near(dw_hx, 7.0):
        raise Wrong(f"dL/dw_hx is not {dw_hx:g}: sum dL/dh_t times x_t over the three steps")
    if near(dw_hh, 9.0):
        raise Wrong("dL/dw_hh: you multiplied dL/dh_t by h_t; what w_hh reads at step t is the state before, h_(t-1)")
    if not near(dw_hh, 4.0):
        raise Wrong(f"dL/dw_hh is not {dw_hh:g}: sum dL/dh_t times h_(t-1) over the three steps; h_0 = 0")
    raise Wrong(f"dL/dw_qh is not {dw_qh:g}: sum dL/do_t times h_t over the three steps")


# --- 4.2 ------------------------------------------------------------------------


def _expanded(do, W_hh, W_qh, t, first=0, last=0, power=None):
    """The sum over k from t + first to T + last, with the power of W_hh as a function of (k, t, T)."""
    T = do.shape[1]
    power = power or (lambda k, t, T: torch.linalg.matrix_power(W_hh, k - t))
    total = do.new_zeros(len(do), len(W_hh))
    for k in range(t + first, T + last + 1):
        total = total + do[:, k - 1] @ W_qh @ power(k, t, T)
    return total


@check(
    hints=(
        "Write the recursion for dL/dh_T, dL/dh_(T-1), dL/dh_(T-2) and put each into the next. Which power of "
        "W_hh stands beside dL/do_k?",
        "For k = t ... T: the row dL/do_k, times W_qh, times W_hh as often as there are steps from k back to t; sum. "
        "do[:, k - 1] is step k.",
        "total = total + do[:, k - 1] @ W_qh @ torch.linalg.matrix_power(W_hh, k - t), for k in range(t, T + 1)",
    )
)
def expanded_gradient(student):
    """Exercise 4.2: the expanded sum of dL/dh_t."""
    B, T, D, Q = 2, 5, 3, 4
    do, W_hh, W_qh = _draw(B, T, Q), _draw(D, D), _draw(Q, D)
    for t in (3, T, 1):
        got = expect_tensor(student(do, W_hh, W_qh, t), shape=(B, D))
        got = got.double()
        if close(got, _expanded(do, W_hh, W_qh, t)):
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
            if close(got, _expanded(do, W_hh, W_qh, t, power=power)):
                raise Wrong(message)
        if t < T and close(got, do[:, t - 1] @ W_qh):
            raise Wrong("this is step t's own term alone; every later output depends on h_t, too")
        if t < T and close(got, _expanded(do, W_hh, W_qh, t, first=T - t)):
            raise Wrong("this is the last step's term alone; every output from t to T has one")
        if close(got, _expanded(do, W_hh, W_qh, t, first=1)):
            raise Wrong("the term of step t itself is missing: the sum begins at k = t")
        if close(got, _expanded(do, W_hh, W_qh, t, last=-1)):
            raise Wrong("the term of the last step is missing: the sum runs up to k = T")
        if t < T and close(got, _expanded(do, W_hh, W_qh, t + 1)):
            raise Wrong("this is dL/dh of the step after: steps count from 1, so step t is do[:, t - 1]")
        raise Wrong(
            f"for t = {t} of T = {T} the result differs from the recursion; compare them for t = T - 1 on paper"
        )


# --- 4.3 ------------------------------------------------------------------------


def _leaky_forward(x, h_0, W_hx, W_hh, b, alpha):
    """States (B, T + 1, D) and candidates (B, T, D) of the leaky network."""
    h, c = [h_0], []
    for t in range(x.shape[1]):
        c.append(torch.tanh(x[:, t] @ W_hx.T + h[-1] @ W_hh.T + b))
        h.append((1 - alpha) * h[-1] + alpha * c[-1])
    return torch.stack(h, 1), torch.stack(c, 1)


def _leaky(do, x, h, c, W_hh, W_qh, alpha, keep=True, scale=True, slope=True, back=None, before=True):
    """The backward pass with its usual mistakes as switches."""
    back = W_hh if back is None else back
    carried, da = torch.zeros_like(h[:, 0]), torch.zeros_like(c)
    for t in range(x.shape[1] - 1, -1, -1):
        dh = do[:, t] @ W_qh + carried
        inside = {True: c[:, t], "h": h[:, t + 1]}.get(slope)
        da[:, t] = (alpha if scale else 1) * dh * (1 if inside is None else 1 - inside**2)
        carried = da[:, t] @ back + ((1 - alpha) * dh if keep else 0)
    seen = h[:, :-1] if before else h[:, 1:]
    sums = [torch.einsum("btd,bti->di", g, v) for g, v in ((da, x), (da, seen), (do, h[:, 1:]))]
    return (*sums, da.sum((0, 1)))


@check(
    hints=(
        "h_t goes to three places: o_t, the next candidate c_(t+1), and straight to h_(t+1). So three gradients "
        "meet in it.",
        "Walk from t = T to 1 with the gradient that comes from the next step: dh = do_t W_qh + from_next; da = "
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
    W_hh, W_qh = weights[1].detach(), _draw(Q, D).requires_grad_()
    h, c = _leaky_forward(x, h_0, *weights, alpha)
    loss = (do * (h[:, 1:] @ W_qh.T)).sum()
    dW_hx, dW_hh, db, dW_qh = torch.autograd.grad(loss, [*weights, W_qh])
    arguments = (do, x, h.detach(), c.detach(), W_hh, W_qh.detach(), alpha)
    got = student(*arguments)
    names = ("dW_hx", "dW_hh", "dW_qh", "db")
    if not isinstance(got, (tuple, list)) or len(got) != 4:
        raise Wrong(f"expected a tuple of four gradients ({', '.join(names)}), got {type(got).__name__}")
    want = (dW_hx, dW_hh, dW_qh, db)
    for name, g, w in zip(names, got, want, strict=True):
        expect_tensor(g, shape=w.shape, name=name)
    if all(close(g, w) for g, w in zip(got, want, strict=True)):
        return

    def is_like(**switches):
        return all(close(g, w) for g, w in zip(got, _leaky(*arguments, **switches), strict=True))

    usual = {
        "the straight path is missing: h_t also reaches h_(t+1) with the factor 1 - alpha, past tanh": {"keep": False},
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
    """Exercise 4.4: which share of the dependencies a window keeps."""
    got = expect_numbers(answer, ("lag 1", "lag 3", "lag 4"))
    want = (9 / 11, 1 / 3, 0.0)
    if all(near(a, b) for a, b in zip(got, want, strict=True)):
        return
    readings = {
        "these are numbers of pairs; divide by all the pairs of that lag": (9, 3, 0),
        "these are percentages: give fractions between 0 and 1": tuple(100 * share for share in want),
        "these are the shares that are cut; asked are those that are kept": tuple(1 - share for share in want),
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
    for name, a, b in zip(("1", "3", "4"), got, want, strict=True):
        if not near(a, b):
            raise Wrong(
                f"lag {name}: {a:.3g} is not the share; count the pairs that do not cross the bars after 4 and 8"
            )


# --- 4.5 ------------------------------------------------------------------------


def _window_gradient(
    layer, loss_fn, x, y, window, carry=True, inside=False, detach=True, whole=False, last=False, weight=1.0
):
    """The gradient of the layer's parameters as one vector, with the usual mistakes as switches."""
    T, state, total = x.shape[1], None, 0.0
    stop = T - T % window if whole else T
    for start in range(0, stop, window):
        outputs, state = [], (state if carry else None)
        if detach and state is not None:
            state = state.detach()
        for t in range(start, min(start + window, T)):
            output, state = layer(x[:, t : t + 1], state.detach() if inside and state is not None else state)
            outputs.append(output)
        total = (0.0 if last else total) + weight * loss_fn(torch.cat(outputs, 1), y[:, start : start + window])
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
    B, T, inputs, D, window = 2, 8, 3, 4, 3
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
                "the state is never detached: the second window's backward walks into the graph of the first, which is "
                "gone. Cut the state between two windows; retain_graph=True, which torch proposes, does not cut it"
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
                "weight": 1 / 3
            },
        }
        for message, switches in usual.items():
            if is_like(**switches):
                raise Wrong(message)
        if close(got, _window_gradient(layer, lambda output, targets: loss_fn(targets, output), x, y, window)):
            raise Wrong("loss_fn got its arguments in the wrong order: first the output, then the targets")
        raise Wrong(
            f"with T = {T} and window = {window} the gradients differ from those of the windows 1-3, 4-6 and 7-8"
        )
    with torch.no_grad():
        want = loss_fn(layer(x)[0], y)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        raise Wrong("the returned loss still holds its graph, and with it all activations: return loss.item() sums")
    if not close(expect_number(loss, "the returned loss"), want):
        raise Wrong(
            f"the gradients are right, but the returned loss is {float(loss):.4g}; its sum over the windows is wanted"
        )
    layer.zero_grad()
    loss = student(layer, loss_fn, x, y, 1)
    got = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])
    if not close(got, _window_gradient(layer, loss_fn, x, y, 1)) or not close(expect_number(loss), want):
        raise Wrong(f"right for T = {T} and window = {window}, wrong for window = 1: is every step in one window?")


# --- 4.6 ------------------------------------------------------------------------


@check(
    hints=(
        "One factor for all tensors. Which length decides about it?",
        "norm = the root of the sum of all squares, over all tensors; factor = max_norm / norm if norm is larger "
        "than max_norm, else 1; return the tensors times the factor, and the norm.",
        "norm = torch.stack([g.norm() for g in gradients]).norm(); factor = min(1.0, max_norm / norm), careful with 0.",
    )
)
def clip_gradients(student):
    """Exercise 4.6: clip all gradients by their common norm."""
    gradients = (torch.tensor([[3.0, 0.0], [0.0, -4.0]]), torch.tensor([0.0, 12.0, 0.0]))
    kept = [gradient.clone() for gradient in gradients]
    got = student(gradients, 3.25)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"expected a tuple (clipped, norm), got {type(got).__name__}")
    if any(not torch.equal(a, b) for a, b in zip(kept, gradients, strict=True)):
        raise Wrong("your function changes the gradients it was given; return new tensors")
    clipped, norm = got
    if not isinstance(clipped, (tuple, list)) or len(clipped) != 2:
        raise Wrong("the first result must be a list of tensors, one for each gradient")
    for gradient, one in zip(kept, clipped, strict=True):
        expect_tensor(one, shape=gradient.shape, name="a clipped gradient")
    norm = expect_number(norm, "the norm")
    if not close(norm, 13.0):
        meanings = {
            3.25: "3.25 is the norm after clipping; return the one before: it says whether the training is healthy",
            17.0: "17 = 5 + 12: you added the norms of the tensors; add their squares, then take the root",
            169.0: "169 is the squared norm; the root is missing",
            12.0: "12 is the largest entry or the largest tensor's norm; the norm runs over all entries of all tensors",
        }
        for value, meaning in meanings.items():
            if close(norm, value):
                raise Wrong(f"the norm: {meaning}")
        raise Wrong(f"the norm is {norm:g}; the three entries 3, -4 and 12 have the root of 9 + 16 + 144")

    def is_like(change):
        return all(close(one, change(gradient)) for one, gradient in zip(clipped, kept, strict=True))

    if not is_like(lambda g: g / 4):
        if is_like(lambda g: g * min(1.0, 3.25 / g.norm().item())):
            raise Wrong("each tensor is clipped by its own norm: the whole gradient turns. One factor for all of them")
        if is_like(lambda g: g.clamp(-3.25, 3.25)):
            raise Wrong("you limit every entry (clipping by value), which turns the gradient; scale all entries alike")
        if is_like(lambda g: g):
            raise Wrong("nothing was clipped, though the norm 13 is larger than 3.25")
        if is_like(lambda g: g / 13):
            raise Wrong("the clipped gradients have norm 1: multiply by max_norm, too")
        if is_like(lambda g: 0 * g):
            raise Wrong("the clipped gradients are zero: too long a gradient is shortened, not thrown away")
        raise Wrong("with norm 13 and max_norm 3.25 every entry must be divided by 4; yours are not")
    clipped, _ = student(tuple(kept), 100.0)
    if not all(close(a, b) for a, b in zip(clipped, kept, strict=True)):
        raise Wrong("a gradient of norm 13 with max_norm 100 was changed: one that is short enough stays as it is")
    clipped, _ = student((torch.zeros(2), torch.zeros(3)), 1.0)
    if any(one.isnan().any() for one in clipped):
        raise Wrong("a zero gradient becomes nan (0 / 0): it must stay zero")
