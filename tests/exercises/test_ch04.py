"""The checks of chapter 04: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from course_lib import bptt
from course_lib.exercises import ch04
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("expanded_gradient", "leaky_backward", "window_backward", "training_step")
VALUES = {"three_steps": "on_paper", "kept_pairs": "shares"}  # check: the name of the student's answer


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def expanded(power=None, first=0, last=0, shift=0):
    """The sum over the outputs with one thing wrong."""
    power = power or (lambda W, k, t, T: torch.linalg.matrix_power(W, k - t))

    def gradient(do, W_hh, W_ho, t):
        T = do.shape[1]
        start, stop = t + first, T + last
        terms = [
            do[:, min(k + shift, T) - 1] @ W_ho @ power(W_hh, k, t, T) for k in range(start, stop + 1) if k + shift <= T
        ]
        return sum(terms, do.new_zeros(len(do), len(W_hh)))

    return gradient


def power_of(exponent):
    return lambda W, k, t, T: torch.linalg.matrix_power(W, exponent(k, t, T))


def last_term(do, W_hh, W_ho, t):
    return do[:, -1] @ W_ho @ torch.linalg.matrix_power(W_hh, do.shape[1] - t)


def first_two_terms(do, W_hh, W_ho, t):
    later = do[:, t] @ W_ho @ W_hh if t < do.shape[1] else 0
    return do[:, t - 1] @ W_ho + later


def leaky(
    straight="alpha", inside=1.0, slope="c", back=lambda W: W, seen=slice(None, -1), db=lambda da: da.sum((0, 1))
):
    """The backward pass of the leaky network with one thing wrong."""

    def backward(do, x, h, c, W_hh, W_ho, alpha):
        from_next, da = torch.zeros_like(h[:, 0]), torch.zeros_like(c)
        for t in range(x.shape[1] - 1, -1, -1):
            dh = do[:, t] @ W_ho + from_next
            tanh = {"c": c[:, t], "h": h[:, t + 1], None: torch.zeros_like(dh)}[slope]
            da[:, t] = (alpha if inside is None else inside * alpha) * dh * (1 - tanh**2)
            if inside == 0:
                da[:, t] = dh * (1 - tanh**2)
            from_next = da[:, t] @ back(W_hh) + (1 - alpha if straight == "alpha" else straight) * dh
        sums = [torch.einsum("btd,bti->di", a, b) for a, b in ((da, x), (da, h[:, seen]), (do, h[:, 1:]))]
        return (*sums, db(da))

    return backward


def right_leaky(*arguments):
    return solution("04", "leaky_backward")(*arguments)


def windows(
    between=lambda s: s.detach(),
    inside=lambda s: s,
    scale=lambda n: 1.0,
    stop=lambda T, w: T,
    clear=False,
    give=None,
    late=0,
    mean=None,
):
    """The window loop with one thing wrong."""

    def backward(layer, loss_fn, x, y, window):
        T, total, state = x.shape[1], 0.0, None
        losses = []
        for start in range(0, stop(T, window), window):
            outputs = []
            state = None if state is None else between(state)
            for t in range(start, min(start + window, T)):
                if late and t and (t - late) % window == 0:
                    state = state.detach()
                output, state = layer(x[:, t : t + 1], state if state is None else inside(state))
                outputs.append(output)
            losses.append(loss_fn(torch.cat(outputs, 1), y[:, start : start + window]) * scale(-(-T // window)))
            losses[-1] = losses[-1] / {None: 1, "window": window, "steps": len(outputs)}[mean]
            total = total + losses[-1]
            if clear:
                layer.zero_grad()
                losses[-1].backward(retain_graph=True)
        if not clear:
            sum(losses).backward()
        return give(total) if give else total.item()

    return backward


def never_detached(layer, loss_fn, x, y, window):
    """One backward a window and no cut: torch refuses the second."""
    state = None
    for start in range(0, x.shape[1], window):
        output, state = layer(x[:, start : start + window], state)
        loss_fn(output, y[:, start : start + window]).backward()


def right_step(*arguments):
    return solution("04", "training_step")(*arguments)


def step(give=None, **switches):
    """The training step with one thing wrong: `give` changes what is returned, the others are the check's switches."""

    def training_step(weights, h_0, x, y, alpha, rate, max_norm):
        new, h_T, loss = ch04._step(weights, h_0, x, y, alpha, rate, max_norm, **switches)
        return give(new, h_T, loss.item(), h_0) if give else (new, h_T, loss.item())

    return training_step


def step_in_place(weights, *rest):
    new, h_T, loss = right_step(weights, *rest)
    for weight, value in zip(weights, new, strict=True):
        weight.copy_(value)
    return weights, h_T, loss


def section_3(do, x, h, c, W_hh, W_ho, alpha):
    """The loop of section 3, copied, with a bias: right for a network that is not leaky."""
    from_next, sums = 0.0, [0.0] * 4
    for t in range(x.shape[1], 0, -1):
        dh = do[:, t - 1] @ W_ho + from_next
        da = dh * (1 - h[:, t] ** 2)
        terms = da.T @ x[:, t - 1], da.T @ h[:, t - 1], do[:, t - 1].T @ h[:, t], da.sum(0)
        sums = [total + term for total, term in zip(sums, terms, strict=True)]
        from_next = da @ W_hh
    return tuple(sums)


def clips_the_update(weights, h_0, x, y, alpha, rate, max_norm):
    """Multiplies by the rate first, and shortens then."""
    moved, h_T, loss = right_step(weights, h_0, x, y, alpha, rate, math.inf)
    moves = [a - b for a, b in zip(moved, weights, strict=True)]
    norm = torch.cat([move.flatten() for move in moves]).norm()
    factor = min(1.0, max_norm / norm.item())
    return [b + factor * move for b, move in zip(weights, moves, strict=True)], h_T, loss


def norm_is(measure, bias=True):
    """The training step with another number in the place of the common norm; `bias`: is it shortened, too?"""

    def training_step(weights, h_0, x, y, alpha, rate, max_norm):
        moved, h_T, loss = right_step(weights, h_0, x, y, alpha, 1.0, math.inf)
        gradients = [b - a for a, b in zip(moved, weights, strict=True)]
        factor = min(1.0, max_norm / float(measure(gradients)))
        factors = (factor, factor, factor, factor if bias else 1.0)
        new = [w - rate * f * g for w, f, g in zip(weights, factors, gradients, strict=True)]
        return new, h_T, loss

    return training_step


def without_bias(gradients):
    return sum(g.square().sum() for g in gradients[:3]) ** 0.5


def swapped_loss(layer, loss_fn, x, y, window):
    return windows()(layer, lambda output, targets: loss_fn(targets, output), x, y, window)


def leaky_by_autograd(how):
    """Right numbers that autograd computes: W_ih and b are unknown, so zeros are added to what stood inside tanh."""

    def backward(do, x, h, c, W_hh, W_ho, alpha):
        zeros = torch.zeros(len(W_hh), x.shape[2], dtype=x.dtype), torch.zeros(len(W_hh), dtype=x.dtype)
        weights = [w.detach().clone().requires_grad_() for w in (zeros[0], W_hh, W_ho, zeros[1])]
        rest = torch.atanh(c) - h[:, :-1] @ W_hh.T

        def loss(W_ih, W_hh, W_ho, b):
            state, total = h[:, 0], 0.0
            for t in range(x.shape[1]):
                inside = torch.tanh(rest[:, t] + x[:, t] @ W_ih.T + state @ W_hh.T + b)
                state = (1 - alpha) * state + alpha * inside
                total = total + (do[:, t] * (state @ W_ho.T)).sum()
            return total

        return how(loss, weights)

    return backward


def by_grad(loss, weights):
    return torch.autograd.grad(loss(*weights), weights)


def by_backward(loss, weights):
    loss(*weights).backward()
    return tuple(weight.grad for weight in weights)


def by_func(loss, weights):
    return torch.func.grad(loss, argnums=(0, 1, 2, 3))(*weights)


def by_dual_numbers(loss, weights):
    """Forward mode, one entry after the other."""
    weights = [weight.detach() for weight in weights]
    gradients = [torch.zeros_like(weight) for weight in weights]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, when it loads what it needs
        for number, gradient in enumerate(gradients):
            for entry in range(gradient.numel()):
                direction = torch.zeros_like(gradient)
                direction.view(-1)[entry] = 1.0
                with forward_ad.dual_level():
                    moved = list(weights)
                    moved[number] = forward_ad.make_dual(weights[number], direction)
                    gradient.view(-1)[entry] = forward_ad.unpack_dual(loss(*moved)).tangent
    return tuple(gradients)


def step_by_autograd(weights, h_0, x, y, alpha, rate, max_norm):
    leaves = [weight.clone().requires_grad_() for weight in weights]
    h, _ = ch04._leaky_forward(x, h_0, leaves[0], leaves[1], leaves[3], alpha)
    loss = torch.nn.functional.cross_entropy((h[:, 1:] @ leaves[2].T).flatten(0, 1), y.flatten())
    loss.backward()
    norm = math.sqrt(sum(leaf.grad.square().sum().item() for leaf in leaves))
    factor = min(1.0, max_norm / norm)
    new = [old - rate * factor * leaf.grad for old, leaf in zip(weights, leaves, strict=True)]
    return new, h[:, -1].detach(), loss.item()


def step_clipped_by(clip):
    """The gradients by hand, and a ready-made function that clips them."""

    def training_step(weights, h_0, x, y, alpha, rate, max_norm):
        moved, h_T, loss = right_step(weights, h_0, x, y, alpha, 1.0, math.inf)
        leaves = [torch.nn.Parameter(weight.clone()) for weight in weights]
        for leaf, weight, target in zip(leaves, weights, moved, strict=True):
            leaf.grad = weight - target
        clip(leaves, max_norm)
        return [w - rate * leaf.grad for w, leaf in zip(weights, leaves, strict=True)], h_T, loss

    return training_step


def clears_first(layer, *rest):
    layer.zero_grad()
    return windows()(layer, *rest)


PLANTED = {
    "three_steps": [
        ("the loss is a mean", (7.5, 21, 12, 10.5)),
        ("only the path through o_1", (2.0, 6, 4, 3.5)),
        ("only the path through h_2", (0.5, 3, 4, 3.5)),
        ("two steps, each with its factor", (3.0, 8, 4, 3.5)),
        ("every sign is the wrong way round", (-2.5, -7, -4, -3.5)),
        ("dL/dh_1 is not 9", (9, 7, 4, 3.5)),
        ("the last step's term alone", (2.5, 2, 4, 3.5)),
        ("dL/dw_ih is not 8", (2.5, 8, 4, 3.5)),
        ("is the state before", (2.5, 7, 9, 3.5)),
        ("dL/dw_hh is not 2", (2.5, 7, 2, 3.5)),
        ("dL/dw_ho is not 4", (2.5, 7, 4, 4)),
        ("got 3", (2.5, 7, 4)),
        ("got float", 2.5),
        ("must be a number, got str", ("5/2", 7, 4, 3.5)),
    ],
    "expanded_gradient": [
        ("W_hh is transposed", expanded(lambda W, k, t, T: torch.linalg.matrix_power(W.T, k - t))),
        ("raises every entry", expanded(lambda W, k, t, T: W ** (k - t))),
        ("run the wrong way", expanded(power_of(lambda k, t, T: T - k))),
        ("one too high", expanded(power_of(lambda k, t, T: k - t + 1))),
        ("has the factor W_hh once", expanded(power_of(lambda k, t, T: min(k - t, 1)))),
        ("powers are missing", expanded(power_of(lambda k, t, T: 0))),
        ("own term alone", lambda do, W_hh, W_ho, t: do[:, t - 1] @ W_ho),
        ("the last step's term alone", last_term),
        ("you stopped at t + 1", first_two_terms),
        ("the sum begins at k = t", expanded(first=1)),
        ("runs up to k = T", expanded(last=-1)),
        ("steps count from 1", expanded(shift=1)),
        ("differs from the recursion", lambda do, W_hh, W_ho, t: 2 * do[:, t - 1] @ W_ho),
        ("has shape (2, 4)", lambda do, W_hh, W_ho, t: do[:, t - 1]),
        ("is a list", lambda do, W_hh, W_ho, t: [0.0]),
    ],
    "leaky_backward": [
        ("the straight path is missing", leaky(straight=False)),
        ("the straight path lacks its factor", leaky(straight=1)),
        ("this is section 3's loop", section_3),
        ("two things at once. First: the candidate enters", leaky(inside=0, slope="h")),
        ("two things at once. First: the straight path is missing", leaky(straight=False, inside=0)),
        ("First: the straight path lacks its factor", leaky(straight=1, inside=0)),
        ("Second: tanh' is 1 - c_t^2", leaky(straight=False, slope="h")),
        ("so its gradient carries it, too", leaky(inside=0)),
        ("you took the state h_t", leaky(slope="h")),
        ("tanh' is missing", leaky(slope=None)),
        ("W_hh is transposed", leaky(back=lambda W: W.T)),
        ("you took h_t", leaky(seen=slice(1, None))),
        ("own output only", leaky(straight=False, back=lambda W: 0 * W)),
        ("you average over the batch", lambda *a: tuple(g / 3 for g in right_leaky(*a))),
        ("so db sums da over both", leaky(db=lambda da: da.mean((0, 1)))),
        ("dW_ih, dW_ho", lambda *a: tuple(g * f for g, f in zip(right_leaky(*a), (2, 1, 2, 1), strict=True))),
        ("dW_ih has shape (2, 4)", lambda *a: (right_leaky(*a)[0].T, *right_leaky(*a)[1:])),
        ("tuple of four gradients", lambda *a: right_leaky(*a)[0]),
        ("alpha and 1 - alpha are swapped", lambda *a: right_leaky(*a[:-1], 1 - a[-1])),
        ("the straight path has the factor alpha", lambda *a: leaky(straight=a[-1])(*a)),
        ("the candidate's gradient has the factor 1 - alpha", lambda *a: leaky(inside=(1 - a[-1]) / a[-1])(*a)),
        ("torch differentiates for you", leaky_by_autograd(by_grad)),
    ],
    "kept_pairs": [
        ("numbers of pairs", (9, 3, 0)),
        ("are percentages", (900 / 11, 100 / 3, 0)),
        ("fractions that are cut", (2 / 11, 2 / 3, 1)),
        ("you divided by 12", (9 / 12, 3 / 12, 0)),
        ("not 4 - k + 1", (12 / 11, 6 / 9, 3 / 8)),
        ("right up to rounding", (0.82, 0.33, 0)),
        ("lag 4: 0.25", (9 / 11, 1 / 3, 0.25)),
        ("lag 3: 0.5", (9 / 11, 0.5, 0)),
        ("got 2", (9 / 11, 1 / 3)),
        ("got float", 0.8),
    ],
    "window_backward": [
        ("still detached inside", windows(inside=lambda s: s.detach())),
        ("nothing is cut", windows(between=lambda s: s)),
        ("starts from zeros", windows(between=lambda s: None)),
        ("wrong for window = 1", windows(stop=lambda T, w: T - 1)),
        ("its arguments in the wrong order", swapped_loss),
        ("which is shorter, is missing", windows(stop=lambda T, w: T - T % w)),
        ("number of windows", windows(scale=lambda n: 1 / n)),
        ("only the last window's gradient", windows(clear=True)),
        ("not detached before a window's first step", never_detached),
        ("one step late", windows(between=lambda s: s, late=1)),
        ("one step early", windows(between=lambda s: s, late=-1)),
        ("by the window's length", windows(mean="window")),
        ("by the number of its steps", windows(mean="steps")),
        ("those of the windows 1-4", windows(scale=lambda n: 2.0)),
        ("still holds its graph", windows(give=lambda total: total)),
        ("its sum over the windows", windows(give=lambda total: total.item() / 3)),
        ("what stood in .grad before the call is gone", clears_first),
        ("have no .grad", lambda layer, loss_fn, x, y, window: 0.0),
        ("is a return missing", windows(give=lambda total: None)),
    ],
    "training_step": [
        ("nothing is clipped", step(clip=None)),
        ("you clip rate * g", clips_the_update),
        ("not the sum of the four norms", norm_is(lambda gradients: sum(g.norm() for g in gradients))),
        ("the root is missing", norm_is(lambda gradients: sum(g.square().sum() for g in gradients))),
        ("the bias is missing in the norm", norm_is(without_bias)),
        ("neither in the norm nor shortened", norm_is(without_bias, bias=False)),
        ("by its own norm", step(clip="each")),
        ("you limit every entry", step(clip="value")),
        ("it must stay as it is", step(clip="always")),
        ("multiply by max_norm", step(clip="unit")),
        ("goes uphill", step(sign=-1)),
        ("learning rate is missing", step(sign=2)),
        ("have not moved", step(sign=0)),
        ("the right symbols are missing", step(targets=False)),
        ("not divided by B T", step(mean=False)),
        ("divided by B only", step(mean="batch")),
        ("divided by T only", step(mean="steps")),
        ("the straight path is missing", step(back={"keep": False})),
        ("factor alpha is missing", step(back={"scale": False})),
        ("tanh' is missing", step(back={"slope": None})),
        ("you took the state h_t", step(back={"slope": "h"})),
        ("W_hh is transposed", lambda w, *rest: step(back={"back": w[1].T})(w, *rest)),
        ("you took h_t", step(back={"before": False})),
        ("must start from h_0", step(carry=False)),
        ("the returned state is h_0", step(lambda new, h_T, loss, h_0: (new, h_0, loss))),
        ("the forward pass: h_T differs", step(lambda new, h_T, loss, h_0: (new, h_T + 0.1, loss))),
        ("sum over steps and sequences", step(lambda new, h_T, loss, h_0: (new, h_T, 15 * loss))),
        ("sum over the steps", step(lambda new, h_T, loss, h_0: (new, h_T, 5 * loss))),
        ("sum over sequences", step(lambda new, h_T, loss, h_0: (new, h_T, 3 * loss))),
        ("h_T is right, but the loss is", step(lambda new, h_T, loss, h_0: (new, h_T, loss + 1))),
        ("W_hh moved by", step(lambda new, h_T, loss, h_0: ([new[0], 2 * new[1], *new[2:]], h_T, loss))),
        ("changes its argument in place", step_in_place),
        ("expected a tuple", step(lambda new, h_T, loss, h_0: new)),
        ("a list of four tensors", step(lambda new, h_T, loss, h_0: (new[0], h_T, loss))),
        ("holds its graph", step(lambda new, h_T, loss, h_0: (new, h_T, torch.tensor(loss, requires_grad=True)))),
        ("torch differentiates for you", step_by_autograd),
        ("`clip_grad_norm_` clips for you", step_clipped_by(torch.nn.utils.clip_grad_norm_)),
        ("`clip_norm` clips for you", step_clipped_by(bptt.clip_norm)),
        ("the loss is None", step(lambda new, h_T, loss, h_0: (new, h_T, None))),
    ],
}
IDENTITY = {  # "returns its input"
    "three_steps": (2, 0, 1, 0),
    "expanded_gradient": lambda do, W_hh, W_ho, t: do,
    "leaky_backward": lambda do, x, h, c, W_hh, W_ho, alpha: (do, x, h, c),
    "kept_pairs": (1, 3, 4),
    "window_backward": lambda layer, loss_fn, x, y, window: x,
    "training_step": lambda weights, h_0, x, y, alpha, rate, max_norm: (weights, h_0, rate),
}
ZEROS = {
    "three_steps": (0, 0, 0, 0),
    "expanded_gradient": lambda do, W_hh, W_ho, t: do.new_zeros(len(do), len(W_hh)),
    "leaky_backward": lambda *a: tuple(torch.zeros_like(g) for g in right_leaky(*a)),
    "kept_pairs": (0, 0, 0),
    "window_backward": windows(scale=lambda n: 0.0),
    "training_step": lambda weights, h_0, *rest: ([torch.zeros_like(w) for w in weights], 0 * h_0, 0.0),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_reference_passes(name):
    assert verdict(getattr(ch04, name), solution("04", VALUES.get(name, name))) == f"passed: {name}"


@pytest.mark.parametrize("kind", [tuple, torch.tensor, np.array])
def test_numbers_of_any_kind_are_welcome(kind):
    """Fails when a check insists on Python's own numbers, or on more than three digits."""
    assert verdict(ch04.three_steps, kind(solution("04", "on_paper"))) == "passed: three_steps"
    assert verdict(ch04.kept_pairs, kind((0.818, 0.333, 0.0))) == "passed: kept_pairs"


def test_other_right_ways_pass():
    """Fails when a check insists on the reference's way: recursion for the sum, one backward for all windows."""

    def by_recursion(do, W_hh, W_ho, t):
        dh = do[:, -1] @ W_ho
        for k in range(do.shape[1] - 1, t - 1, -1):
            dh = do[:, k - 1] @ W_ho + dh @ W_hh
        return dh

    assert verdict(ch04.expanded_gradient, by_recursion) == "passed: expanded_gradient"
    assert verdict(ch04.window_backward, windows()) == "passed: window_backward"
    assert verdict(ch04.training_step, step()) == "passed: training_step"
    assert verdict(ch04.leaky_backward, leaky()) == "passed: leaky_backward"


def test_the_checks_own_mistakes_start_from_the_right_gradient():
    """Fails if a switch of `_leaky` or `_window_gradient` is wrong by default: they must agree with the reference."""
    x, do, W_hh, W_ho = ch04._draw(2, 4, 3), ch04._draw(2, 4, 6), ch04._draw(5, 5), ch04._draw(6, 5)
    h, c = ch04._leaky_forward(x, ch04._draw(2, 5), ch04._draw(5, 3), W_hh, ch04._draw(5), 0.4)
    for a, b in zip(ch04._leaky(do, x, h, c, W_hh, W_ho, 0.4), right_leaky(do, x, h, c, W_hh, W_ho, 0.4), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch04, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("how", [by_grad, by_backward, by_func, by_dual_numbers])
def test_autograd_is_refused_whatever_it_is_called(how):
    """Fails if a gradient that torch computes passes under another name, or is refused for its numbers."""
    said = verdict(ch04.leaky_backward, leaky_by_autograd(how))
    assert said.startswith("not yet: the numbers are right, but torch differentiates")


def test_autograd_works_after_the_checks():
    """Fails if a check leaves its watch on: students compare with autograd."""
    verdict(ch04.training_step, step_by_autograd)
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    assert x.grad.tolist() == [1, 1]


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    messages = [verdict(getattr(ch04, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    assert verdict(getattr(ch04, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    assert verdict(getattr(ch04, name), ...) == f"not attempted yet: {name}"


def test_the_bug_of_the_exercise_is_recognised():
    """Fails if the function printed in exercise 4.5 is not the mistake that its check names."""
    buggy = windows(inside=lambda s: s.detach(), between=lambda s: s.detach())
    assert "still detached inside" in verdict(ch04.window_backward, buggy)


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    messages = " ".join(verdict(getattr(ch04, name), wrong) for _, wrong in PLANTED[name])
    for line in ("matrix_power(", "einsum", "state.detach()", "max_norm / norm", "softmax("):
        assert line not in messages


def test_the_written_exercise_compares():
    """Fails if exercise 4.7 lacks a hint, or shows the model answer for an empty one."""
    assert len(ch04.what_decides.hints) == 3
    assert "ln 0.01" in ch04.what_decides.good_answer
