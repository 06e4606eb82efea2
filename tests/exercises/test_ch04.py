"""The checks of chapter 04: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import numpy as np
import pytest
import torch

from course_lib.exercises import ch04
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("expanded_gradient", "leaky_backward", "window_backward", "clip_gradients")
VALUES = {"three_steps": "on_paper", "kept_pairs": "shares"}  # check: the name of the student's answer


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def expanded(power=None, first=0, last=0, shift=0):
    """The sum over the outputs with one thing wrong."""
    power = power or (lambda W, k, t, T: torch.linalg.matrix_power(W, k - t))

    def gradient(do, W_hh, W_qh, t):
        T = do.shape[1]
        start, stop = t + first, T + last
        terms = [
            do[:, min(k + shift, T) - 1] @ W_qh @ power(W_hh, k, t, T) for k in range(start, stop + 1) if k + shift <= T
        ]
        return sum(terms, do.new_zeros(len(do), len(W_hh)))

    return gradient


def power_of(exponent):
    return lambda W, k, t, T: torch.linalg.matrix_power(W, exponent(k, t, T))


def last_term(do, W_hh, W_qh, t):
    return do[:, -1] @ W_qh @ torch.linalg.matrix_power(W_hh, do.shape[1] - t)


def leaky(straight=True, inside=1.0, slope="c", back=lambda W: W, seen=slice(None, -1), db=lambda da: da.sum((0, 1))):
    """The backward pass of the leaky network with one thing wrong."""

    def backward(do, x, h, c, W_hh, W_qh, alpha):
        from_next, da = torch.zeros_like(h[:, 0]), torch.zeros_like(c)
        for t in range(x.shape[1] - 1, -1, -1):
            dh = do[:, t] @ W_qh + from_next
            tanh = {"c": c[:, t], "h": h[:, t + 1], None: torch.zeros_like(dh)}[slope]
            da[:, t] = (alpha if inside is None else inside * alpha) * dh * (1 - tanh**2)
            if inside == 0:
                da[:, t] = dh * (1 - tanh**2)
            from_next = da[:, t] @ back(W_hh) + (1 - alpha) * dh * straight
        sums = [torch.einsum("btd,bti->di", a, b) for a, b in ((da, x), (da, h[:, seen]), (do, h[:, 1:]))]
        return (*sums, db(da))

    return backward


def right_leaky(*arguments):
    return solution("04", "leaky_backward")(*arguments)


def windows(
    between=lambda s: s.detach(), inside=lambda s: s, scale=lambda n: 1.0, stop=lambda T, w: T, clear=False, give=None
):
    """The window loop with one thing wrong."""

    def backward(layer, loss_fn, x, y, window):
        T, total, state = x.shape[1], 0.0, None
        losses = []
        for start in range(0, stop(T, window), window):
            outputs = []
            state = None if state is None else between(state)
            for t in range(start, min(start + window, T)):
                output, state = layer(x[:, t : t + 1], state if state is None else inside(state))
                outputs.append(output)
            losses.append(loss_fn(torch.cat(outputs, 1), y[:, start : start + window]) * scale(-(-T // window)))
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


def clip(norm=lambda gs: torch.cat([g.flatten() for g in gs]).norm().item(), apply=None, report=None):
    """Clipping with one thing wrong."""

    def clipped(gradients, max_norm):
        n = norm(gradients)
        change = apply or (lambda g, n, c: g * min(1.0, c / max(n, 1e-9)))
        return [change(g, n, max_norm) for g in gradients], (report(n, max_norm) if report else n)

    return clipped


def in_place(gradients, max_norm):
    clipped, norm = clip()(gradients, max_norm)
    for gradient, new in zip(gradients, clipped, strict=True):
        gradient.copy_(new)
    return list(gradients), norm


def swapped_loss(layer, loss_fn, x, y, window):
    return windows()(layer, lambda output, targets: loss_fn(targets, output), x, y, window)


PLANTED = {
    "three_steps": [
        ("the loss is a mean", (7.5, 21, 12, 10.5)),
        ("only the path through o_1", (2.0, 6, 4, 3.5)),
        ("only the path through h_2", (0.5, 3, 4, 3.5)),
        ("two steps, each with its factor", (3.0, 8, 4, 3.5)),
        ("dL/dh_1 is not 9", (9, 7, 4, 3.5)),
        ("the last step's term alone", (2.5, 2, 4, 3.5)),
        ("dL/dw_hx is not 8", (2.5, 8, 4, 3.5)),
        ("is the state before", (2.5, 7, 9, 3.5)),
        ("dL/dw_hh is not 2", (2.5, 7, 2, 3.5)),
        ("dL/dw_qh is not 4", (2.5, 7, 4, 4)),
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
        ("own term alone", lambda do, W_hh, W_qh, t: do[:, t - 1] @ W_qh),
        ("the last step's term alone", last_term),
        ("the sum begins at k = t", expanded(first=1)),
        ("runs up to k = T", expanded(last=-1)),
        ("steps count from 1", expanded(shift=1)),
        ("differs from the recursion", lambda do, W_hh, W_qh, t: 2 * do[:, t - 1] @ W_qh),
        ("has shape (2, 4)", lambda do, W_hh, W_qh, t: do[:, t - 1]),
        ("is a list", lambda do, W_hh, W_qh, t: [0.0]),
    ],
    "leaky_backward": [
        ("the straight path is missing", leaky(straight=False)),
        ("so its gradient carries it, too", leaky(inside=0)),
        ("you took the state h_t", leaky(slope="h")),
        ("tanh' is missing", leaky(slope=None)),
        ("W_hh is transposed", leaky(back=lambda W: W.T)),
        ("you took h_t", leaky(seen=slice(1, None))),
        ("own output only", leaky(straight=False, back=lambda W: 0 * W)),
        ("you average over the batch", lambda *a: tuple(g / 3 for g in right_leaky(*a))),
        ("so db sums da over both", leaky(db=lambda da: da.mean((0, 1)))),
        ("dW_hx, dW_qh", lambda *a: tuple(g * f for g, f in zip(right_leaky(*a), (2, 1, 2, 1), strict=True))),
        ("dW_hx has shape (2, 4)", lambda *a: (right_leaky(*a)[0].T, *right_leaky(*a)[1:])),
        ("tuple of four gradients", lambda *a: right_leaky(*a)[0]),
    ],
    "kept_pairs": [
        ("numbers of pairs", (9, 3, 0)),
        ("are percentages", (900 / 11, 100 / 3, 0)),
        ("shares that are cut", (2 / 11, 2 / 3, 1)),
        ("you divided by 12", (9 / 12, 3 / 12, 0)),
        ("not 4 - k + 1", (12 / 11, 6 / 9, 3 / 8)),
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
        ("the state is never detached", never_detached),
        ("those of the windows 1-3", windows(scale=lambda n: 2.0)),
        ("still holds its graph", windows(give=lambda total: total)),
        ("its sum over the windows", windows(give=lambda total: total.item() / 3)),
        ("have no .grad", lambda layer, loss_fn, x, y, window: 0.0),
        ("is a return missing", windows(give=lambda total: None)),
    ],
    "clip_gradients": [
        ("by its own norm", clip(apply=lambda g, n, c: g * min(1.0, c / max(g.norm().item(), 1e-9)))),
        ("clipping by value", clip(apply=lambda g, n, c: g.clamp(-c, c))),
        ("nothing was clipped", clip(apply=lambda g, n, c: g.clone())),
        ("multiply by max_norm", clip(apply=lambda g, n, c: g / n)),
        ("not thrown away", clip(apply=lambda g, n, c: g * (n <= c))),
        ("must be divided by 4", clip(apply=lambda g, n, c: g / 3)),
        ("stays as it is", clip(apply=lambda g, n, c: g * c / max(n, 1e-9))),
        ("0 / 0", clip(apply=lambda g, n, c: g * torch.tensor(c / n if n else float("nan")).clamp(max=1))),
        ("norm after clipping", clip(report=min)),
        ("you added the norms", clip(norm=lambda gs: sum(g.norm().item() for g in gs))),
        ("the root is missing", clip(norm=lambda gs: sum(g.square().sum().item() for g in gs))),
        ("largest entry", clip(norm=lambda gs: max(g.abs().max().item() for g in gs))),
        ("have the root of", clip(norm=lambda gs: 7.0)),
        ("changes the gradients it was given", in_place),
        ("a tuple (clipped, norm)", lambda gradients, max_norm: clip()(gradients, max_norm)[0][0]),
        ("a list of tensors", lambda gradients, max_norm: (gradients[0], 13.0)),
        ("the norm is None", clip(report=lambda n, c: None)),
    ],
}
IDENTITY = {  # "returns its input"
    "three_steps": (2, 0, 1, 0),
    "expanded_gradient": lambda do, W_hh, W_qh, t: do,
    "leaky_backward": lambda do, x, h, c, W_hh, W_qh, alpha: (do, x, h, c),
    "kept_pairs": (1, 3, 4),
    "window_backward": lambda layer, loss_fn, x, y, window: x,
    "clip_gradients": lambda gradients, max_norm: (gradients, max_norm),
}
ZEROS = {
    "three_steps": (0, 0, 0, 0),
    "expanded_gradient": lambda do, W_hh, W_qh, t: do.new_zeros(len(do), len(W_hh)),
    "leaky_backward": lambda *a: tuple(torch.zeros_like(g) for g in right_leaky(*a)),
    "kept_pairs": (0, 0, 0),
    "window_backward": windows(scale=lambda n: 0.0),
    "clip_gradients": lambda gradients, max_norm: ([torch.zeros_like(g) for g in gradients], 0.0),
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

    def by_recursion(do, W_hh, W_qh, t):
        dh = do[:, -1] @ W_qh
        for k in range(do.shape[1] - 1, t - 1, -1):
            dh = do[:, k - 1] @ W_qh + dh @ W_hh
        return dh

    assert verdict(ch04.expanded_gradient, by_recursion) == "passed: expanded_gradient"
    assert verdict(ch04.window_backward, windows()) == "passed: window_backward"
    assert verdict(ch04.clip_gradients, clip()) == "passed: clip_gradients"
    assert verdict(ch04.leaky_backward, leaky()) == "passed: leaky_backward"


def test_the_checks_own_mistakes_start_from_the_right_gradient():
    """Fails if a switch of `_leaky` or `_window_gradient` is wrong by default: they must agree with the reference."""
    x, do, W_hh, W_qh = ch04._draw(2, 4, 3), ch04._draw(2, 4, 6), ch04._draw(5, 5), ch04._draw(6, 5)
    h, c = ch04._leaky_forward(x, ch04._draw(2, 5), ch04._draw(5, 3), W_hh, ch04._draw(5), 0.4)
    for a, b in zip(ch04._leaky(do, x, h, c, W_hh, W_qh, 0.4), right_leaky(do, x, h, c, W_hh, W_qh, 0.4), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch04, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


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
    for line in ("matrix_power(", "einsum", "state.detach()", "max_norm / norm"):
        assert line not in messages
