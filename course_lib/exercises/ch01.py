r"""Checks of the exercises of chapter 01, sequences and language models.

In the notebook's order: `ar_forecast`, `sine_weights` (autoregression), `bigram_probs`
(n-grams), `perplexity_of_four`, `corpus_perplexity` (perplexity), `causal_conv` (the
fixed-window network) and `fair_comparison` (baselines and units). Each compares with an answer
worked out here by plain loops, on small tensors whose sizes are pairwise different, then looks
for the usual wrong turnings.

Notebook: 01.
"""

import math

import torch

from course_lib.exercises import Wrong, check, close, expect_number, expect_tensor

# --- autoregression -------------------------------------------------------------


@check(
    hints=(
        "A forecast two steps ahead needs a value that nobody has seen yet. Which number can stand in for it?",
        "window = the last `order` values of past, newest first; repeat horizon times: "
        "predict = bias + sum(weights * window); put the prediction in front of the window and drop the oldest value.",
        "Before the loop: window = past[-len(weights):].flip(0). In it, after each prediction: "
        "window = torch.cat([prediction.reshape(1), window[:-1]]). Return only the stacked predictions.",
    )
)
def ar_forecast(student):
    """Check a K-step forecast of a linear autoregression."""
    series = torch.tensor([2.0, -1.0, 4.0, 0.5, 3.0, 1.0], dtype=torch.float64)
    weights = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
    bias, horizon = 0.7, 4
    newest_first = series[-3:].flip(0).tolist()
    wanted = _roll(newest_first, weights.tolist(), bias, horizon)

    got = student(series, weights, bias, horizon)
    if isinstance(got, torch.Tensor) and got.shape == (len(series) + horizon,):
        raise Wrong("the history is in the result; return only the horizon new values")
    expect_tensor(got, shape=(horizon,), name="the forecast")
    if close(got, wanted):
        _check_other_sizes(student, series, weights[:2], bias)
        return
    if close(got, torch.zeros(horizon)):
        raise Wrong("the forecast is all zeros; is the result ever filled?")
    if close(got[0], wanted[0]) and close(got, got[0].expand(horizon)):
        raise Wrong("every step repeats the first prediction; feed each prediction back into the window")
    if close(got, _roll(newest_first, weights.flip(0).tolist(), bias, horizon)):
        raise Wrong(
            "weights[0] belongs to the newest value, and you gave it the oldest: the window is the wrong way round"
        )
    if close(got, _roll(newest_first, weights.tolist(), 0.0, horizon)):
        raise Wrong("the bias is missing from the prediction")
    if close(got, _roll(series[:3].flip(0).tolist(), weights.tolist(), bias, horizon)):
        raise Wrong("the window starts from the first values of the series; a forecast continues from its last values")
    if close(got[0], wanted[0]):
        raise Wrong(
            f"the first step is right, step 2 is not: yours {float(got[1]):.4g}, wanted {wanted[1]:.4g}. "
            "After each step the prediction becomes the newest value and the oldest value leaves"
        )
    raise Wrong(
        f"the first prediction is {float(got[0]):.4g}; bias + sum of weights times the last values is {wanted[0]:.4g}"
    )


def _check_other_sizes(student, series, weights, bias):
    """The same series continued by a shorter window and over a longer horizon."""
    order, horizon = len(weights), 5
    got = student(series, weights, bias, horizon)
    expect_tensor(got, shape=(horizon,), name="the forecast of 5 values after one of 4")
    if not close(got, _roll(series[-order:].flip(0).tolist(), weights.tolist(), bias, horizon)):
        raise Wrong("right for 3 weights, wrong for 2: is the order written as a number in your code?")


def _roll(window, weights, bias, horizon):
    """Iterate x = bias + sum_j weights[j] * window[j], newest value first."""
    out = []
    for _ in range(horizon):
        out.append(bias + sum(w * x for w, x in zip(weights, window, strict=True)))
        window = [out[-1], *window[:-1]]
    return out


@check(
    hints=(
        "Write x_t and x_{t-2} as sines of (x_{t-1}'s angle plus or minus one step), and add them.",
        "sin(a + b) + sin(a - b) = 2 sin(a) cos(b), with b the angle of one step. Solve for sin(a + b).",
        "The angle of one step is 2 pi / 12, a twelfth of a turn. One weight is 2 cos of it; the other does not depend "
        "on the period.",
    )
)
def sine_weights(answer):
    """Check the two weights that continue every sine of period 12."""
    if isinstance(answer, (list, tuple)) and len(answer) == 2:
        answer = torch.tensor([expect_number(v, "a weight") for v in answer], dtype=torch.float64)
    got = expect_tensor(answer, shape=(2,), name="the answer").double()
    w1 = 2 * math.cos(2 * math.pi / 12)
    if close(got, [w1, -1.0], tolerance=1e-3):
        return
    if close(got, [-1.0, w1], tolerance=1e-3):
        raise Wrong(
            "these are the right two numbers in the other order: w_1 multiplies x_{t-1}, w_2 multiplies x_{t-2}"
        )
    if close(got, [w1, 1.0], tolerance=1e-3):
        raise Wrong(
            "w_2 has the wrong sign: x_t + x_{t-2} = w_1 x_{t-1}, so what happens to x_{t-2} when you solve for x_t?"
        )
    if close(got, [w1 / 2, -1.0], tolerance=1e-3):
        raise Wrong("a factor 2 is lost in w_1: sin(a + b) + sin(a - b) holds sin(a) cos(b) twice")
    if close(got[0], 2 * math.cos(12), tolerance=1e-3) or close(got[0], 2 * math.cos(1 / 12), tolerance=1e-3):
        raise Wrong("the angle of one step is not 12 and not 1/12 but a twelfth of a turn; a turn is 2 pi radians")
    if close(got[0], 2 * math.cos(30), tolerance=1e-3):
        raise Wrong("torch and math count angles in radians: one step is 2 pi / 12, not 30")
    x = torch.sin(2 * math.pi * torch.arange(3, dtype=torch.float64) / 12 + 0.4)
    guess = float(got[0] * x[1] + got[1] * x[0])
    raise Wrong(
        f"for the sine {x[0]:.4f}, {x[1]:.4f}, ... your weights continue with {guess:.4f}; it goes on with {x[2]:.4f}"
    )


# --- n-grams ----------------------------------------------------------------------


@check(
    hints=(
        "Two stages: a (V, V) table of how often v follows u, then a division that makes each row a distribution.",
        "counts = zeros(V, V); for each neighbouring pair: counts[u, v] += 1; counts += k; divide each row by its sum.",
        "The pairs are ids[:-1] and ids[1:]. With index_put_ use accumulate=True, or repeated pairs count once. "
        "sum(dim=1, keepdim=True) is what each row is divided by.",
    )
)
def bigram_probs(student):
    """Check add-k smoothed bigram probabilities."""
    ids, V = torch.tensor([0, 1, 2, 1, 3, 1, 2, 0, 0, 1, 2, 4]), 6  # 4 is never a context, 5 never occurs
    counts = torch.zeros(V, V, dtype=torch.float64)
    for i, j in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
        counts[i, j] += 1

    def smooth(table, k):
        return (table + k) / (table + k).sum(dim=1, keepdim=True)

    k = 0.5
    wanted = smooth(counts, k)
    got = student(ids, V, k)
    if isinstance(got, torch.Tensor) and got.shape == (5, 5):  # as many as there are different tokens in ids
        raise Wrong(
            "the table has shape (5, 5): the text lacks a token of the vocabulary, which needs its row and column too; "
            "take V from vocab_size, not from ids"
        )
    expect_tensor(got, shape=(V, V), name="the table of probabilities")
    if not got.is_floating_point():
        raise Wrong(f"the table has dtype {got.dtype}: probabilities are floating-point numbers")
    if got.dtype in (torch.float16, torch.bfloat16):
        most = 2048 if got.dtype == torch.float16 else 256
        raise Wrong(
            f"the table has dtype {got.dtype}, which cannot count far: from {most} on, "
            "adding 1 changes nothing. Count in float32 or float64"
        )
    if close(got, wanted):
        if close(student(ids, V, 2.0), smooth(counts, 2.0)):
            return
        raise Wrong("right for k = 0.5, wrong for k = 2: is k written as a number in your code?")
    if close(got, torch.zeros(V, V)):
        raise Wrong("the table is all zeros; are the pairs ever counted?")
    if got.isnan().any():
        raise Wrong(
            f"row {int(got.isnan().any(1).nonzero()[0])} is nan: its token is never followed by another; "
            "add k before you divide"
        )
    if close(got, wanted.T):
        raise Wrong("rows and columns are swapped: row u is the distribution of what FOLLOWS token u")
    if close(got, counts) or close(got, counts + k):
        raise Wrong("these are counts; divide each row by its sum")
    if close(got, (counts + k) / (counts + k).sum()):
        raise Wrong(
            "the whole table sums to 1: that is p(u, v) of the pair; divide each row by its own sum to get p(v | u)"
        )
    if close(got, (counts + k) / (counts + k).sum(dim=0, keepdim=True)):
        raise Wrong("each column sums to 1: that is which token came BEFORE v; divide along the other axis")
    once = (counts > 0).double()
    if close(got, smooth(once, k)):
        raise Wrong(
            "every pair counts at most once: `counts[u, v] += 1` with tensors u and v ignores repeats; "
            "use index_put_ with accumulate=True, or a loop"
        )
    circle = counts.clone()
    circle[ids[-1], ids[0]] += 1
    if close(got, smooth(circle, k)):
        raise Wrong("the last token is paired with the first: a text does not wrap around (torch.roll does)")
    if close(got, smooth(counts, 1.0)):
        raise Wrong("this is smoothing with k = 1; use the k that is passed in")
    if close(got, counts / counts.sum(dim=1, keepdim=True).clamp(min=1)):
        raise Wrong(
            "k has no effect: a pair that was never seen still has probability 0, "
            "and one such pair makes the loss infinite"
        )
    if close(got, (counts + k) / (counts + k).sum(dim=1)) or close(got, (counts + k) / (counts.sum(dim=1) + k * V)):
        raise Wrong(
            "column v was divided by the sum of row v: without its axis, the (V,) vector of sums is laid along the "
            "columns. Keep the axis: sum(dim=1, keepdim=True)"
        )
    occurrences = torch.bincount(ids, minlength=V).double()[:, None]
    if close(got, (counts + k) / (occurrences + k * V)):
        raise Wrong(
            "the divisor of row 4 counts the last token of the text too, but nothing follows it: "
            "divide by the sum of the row of pairs"
        )
    sums = got.double().sum(dim=1)
    if not close(sums, torch.ones(V)):
        row = int((sums - 1).abs().argmax())
        raise Wrong(
            f"row {row} sums to {float(sums[row]):.4g}, not to 1: k is added to each of the V entries, "
            "so the divisor grows by k times V"
        )
    raise Wrong(
        f"the rows sum to 1, but p(1 | 0) is {float(got[0, 1]):.4g}; "
        f"it should be (2 + k) / (3 + 6 k) = {float(wanted[0, 1]):.4g}"
    )


# --- perplexity -------------------------------------------------------------------


@check(
    hints=(
        "Perplexity is the exponential of a mean of logarithms. In which base are these logarithms whole numbers?",
        "-log2 of the four probabilities is 1, 2, 3, 3. Take their mean, then undo the logarithm in the same base.",
        "The mean is 9/4 bits for each token. Among how many equally likely tokens is one choice worth that many bits?",
    )
)
def perplexity_of_four(answer):
    """Check the perplexity of four tokens with probabilities 1/2, 1/4, 1/8, 1/8."""
    got = expect_number(answer, "the answer")
    wanted = 2.0**2.25
    if math.isclose(got, wanted, rel_tol=2e-3):
        return
    for wrong, why in (
        (5.5, "this is the arithmetic mean of the choices 2, 4, 8, 8; perplexity averages their logarithms"),
        (
            4.0,
            "this is the harmonic mean of the choices 2, 4, 8, 8 (1 over the mean probability); "
            "perplexity is their geometric mean",
        ),
        (2.25, "this is the mean in bits for each token; perplexity is 2 to that power"),
        (2.25 * math.log(2), "this is the mean in nats for each token; perplexity is e to that power"),
        (math.exp(2.25), "bits were raised as a power of e; undo a logarithm in its own base (2 for bits, e for nats)"),
        (
            2 ** (2.25 * math.log(2)),
            "nats were raised as a power of 2; undo a logarithm in its own base (2 for bits, e for nats)",
        ),
        (512.0, "this is 1 over the probability of the whole text; take the fourth root, one factor for each token"),
        (
            1 / 512,
            "this is the probability of the whole text; perplexity is 1 over it, and then one factor for each token",
        ),
        (1 / wanted, "this is the geometric mean of the probabilities; perplexity is 1 over it"),
    ):
        if math.isclose(got, wrong, rel_tol=2e-3):
            raise Wrong(why)
    if got < 1:
        raise Wrong(f"{got:.4g} is below 1: one choice is the least there can be, so a perplexity is never below 1")
    raise Wrong(
        f"{got:.4g} to the fourth power is {got**4:.4g}, and 1 over the probability of the four tokens is 512: "
        "they should agree"
    )


@check(
    hints=(
        "Each real token has one vote, whichever sentence it stands in. Where do padded positions vote in your code?",
        "keep = nll[mask]; mean over keep; exponential.",
        "nll[mask] is a vector of the real tokens' values, whatever the padding holds; .mean() and .exp() do the rest.",
    )
)
def corpus_perplexity(student):
    """Check the perplexity of a padded batch: per token, padding left out."""
    nll = torch.tensor(
        [[0.2, 1.5, 0.9, 2.4, 0.3], [3.1, 0.8, 9.0, 9.0, 9.0], [1.2, 0.7, 2.2, 9.0, 9.0]], dtype=torch.float64
    )
    mask = torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    wanted = nll[mask].mean().exp()
    got = student(nll, mask)
    if isinstance(got, torch.Tensor) and got.shape == (3,):
        raise Wrong("there are three numbers, one for each sentence; wanted one number for the whole batch")
    precise = _tolerance(got)
    got = expect_number(got, "the perplexity")
    if close(got, wanted, precise):
        holes = nll.masked_fill(~mask, math.inf)
        again = student(holes, mask)
        if isinstance(again, torch.Tensor) and again.numel() == 1 and again.isnan().all():
            raise Wrong(
                "with inf at the padded positions the result is no longer a number: inf times 0 is nan. "
                "Select the real tokens, do not multiply"
            )
        if not close(expect_number(again, "the perplexity of a batch with inf at its padding"), wanted, precise):
            raise Wrong("the result changes when the padded positions hold other numbers")
        impossible = nll.clone()
        impossible[1, 1] = math.inf  # a real token to which the model gave probability 0
        if expect_number(student(impossible, mask), "the perplexity of a text with an impossible token") != math.inf:
            raise Wrong(
                "one real token has probability 0, nll = inf, and your perplexity is finite: nan_to_num, or a limit on "
                "nll, hides that the model called the text impossible"
            )
        return
    real = mask.double()
    per_sentence = (nll * real).sum(1) / real.sum(1)
    for wrong, why in (
        (nll[mask].mean(), "this is nats for each token; perplexity is its exponential"),
        (nll.mean().exp(), "the padded positions are in the mean; the mask says which tokens are real"),
        (nll[~mask].mean().exp(), "these are the padded positions: in this course mask True means a real token"),
        (
            per_sentence.mean().exp(),
            "each sentence has the same weight here, so a word in a short one counts more; "
            "divide the sum of all tokens by their number",
        ),
        (
            per_sentence.exp().mean(),
            "this is the mean of the sentences' perplexities; "
            "average nats over all tokens first, take the exponential last",
        ),
        (
            (nll * real).mean().exp(),
            "padding is zeroed but still counted: divide by the number of real tokens, not by B times T",
        ),
        (
            nll[mask].exp().mean(),
            "the exponential comes after the mean, not before it: this is the arithmetic mean of the choices",
        ),
        (2 ** nll[mask].mean(), "nll is in nats, so undo it with e, not with 2"),
        (
            nll[mask].sum().exp(),
            "this is 1 over the probability of the whole batch; divide by the number of tokens before the exponential",
        ),
    ):
        if close(got, wrong):
            raise Wrong(why)
    raise Wrong(
        f"got {got:.4g}; the 10 real tokens have {float(nll[mask].sum()):.4g} nats together, "
        f"so exp(sum / 10) = {float(wanted):.4g} is wanted"
    )


def _tolerance(value):
    """How far a right answer may be off: more for one that was computed in half precision."""
    return 2e-2 if getattr(value, "dtype", None) in (torch.float16, torch.bfloat16) else 1e-5


# --- the fixed-window network ------------------------------------------------------


@check(
    hints=(
        "The output at t may use x[t], x[t-1], ...: where must the zeros stand to give position 0 a full window?",
        "Put n - 1 zeros in front of the time axis, none behind; then convolve without further padding.",
        "x.transpose(1, 2) is (B, D, T); F.pad(that, (n - 1, 0)) pads on the left only; F.conv1d, then transpose back.",
    )
)
def causal_conv(student):
    """Check a convolution over time that never sees the future."""
    B, T, D, F, K = 2, 7, 3, 4, 5
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((B, T, D), (F, D, K), (F,)))
    wanted = _causal(x, weight, bias)
    got = student(x, weight, bias)
    if isinstance(got, torch.Tensor) and got.shape == (B, F, T):
        raise Wrong(
            f"the result has shape (B, F, T) = {(B, F, T)}; the course keeps time second: transpose back to (B, T, F)"
        )
    if isinstance(got, torch.Tensor) and got.shape == (B, T - K + 1, F):
        raise Wrong(f"the result has T - n + 1 = {T - K + 1} steps: without padding the first positions are lost")
    if isinstance(got, torch.Tensor) and got.ndim == 3 and got.shape[0] == B and got.shape[2] == F and got.shape[1] > T:
        raise Wrong(f"the result has {got.shape[1]} steps for {T} inputs: more zeros were added than the window needs")
    expect_tensor(got, shape=(B, T, F), name="the result")
    if close(got, wanted):
        for width in (1, 2):  # also an even window, and one that sees a single token
            if not close(student(x, weight[:, :, :width], bias), _causal(x, weight[:, :, :width], bias)):
                raise Wrong(
                    f"right for a window of 5 tokens, wrong for {width}: compute the padding from weight.shape[2]"
                )
        return
    if close(got, torch.zeros(B, T, F)):
        raise Wrong("the result is all zeros; does it depend on x?")
    seen = _sees(student, x, weight, bias)
    future = [(t, s) for t in range(T) for s in range(T) if s > t and seen[t, s]]
    if future:
        t, s = future[0]
        raise Wrong(f"the output at position {t} changes when x at position {s} does: it sees the future")
    if not any(seen[t, t] for t in range(T)):
        raise Wrong(
            "the output at position t does not depend on x[t]: the window is shifted one step too far into the past"
        )
    if close(got, _causal(x, weight.flip(2), bias)):
        raise Wrong(
            "the kernel is the wrong way round: "
            "weight[:, :, -1] multiplies the present, weight[:, :, 0] the oldest token"
        )
    if close(got, _causal(x, weight, torch.zeros(F))):
        raise Wrong("the bias is missing")
    reach = max(t - s for t in range(T) for s in range(T) if seen[t, s])
    if reach != K - 1:
        raise Wrong(f"the output reaches {reach} steps back; a window of {K} tokens reaches {K - 1}")
    raise Wrong(
        f"nothing sees the future, but the value at [0, 0, 0] is {float(got[0, 0, 0]):.4g}; "
        f"weight[0, :, -1] @ x[0, 0] + bias[0] is {float(wanted[0, 0, 0]):.4g}"
    )


def _causal(x, weight, bias):
    """y[:, t] = bias + sum_j weight[:, :, K-1-j] x[:, t-j], by a loop."""
    K = weight.shape[2]
    y = bias.repeat(x.shape[0], x.shape[1], 1)
    for t in range(x.shape[1]):
        for j in range(min(K, t + 1)):
            y[:, t] += x[:, t - j] @ weight[:, :, K - 1 - j].T
    return y


def _sees(student, x, weight, bias):
    """(T, T) bool: does the output at t change when the input at s does?"""
    T = x.shape[1]
    before = student(x, weight, bias)
    seen = torch.zeros(T, T, dtype=torch.bool)
    for s in range(T):
        other = x.clone()
        other[:, s] += 1.0
        seen[:, s] = ((student(other, weight, bias) - before).abs() > 1e-9).any(dim=2).any(dim=0)
    return seen


# --- fair comparison ---------------------------------------------------------------


@check(
    hints=(
        "A perplexity counts choices for each token. How many letters does one token of each model stand for?",
        "log2(perplexity) is bits for each token; divide by the letters in a token (5.7 or 1). For the third: "
        "a loss of L nats is a perplexity of e^L; uniform has a perplexity of V.",
        "log2(692) is 9.43 and log2(10.5) is 3.39: only the first is divided. For the third number divide e^5.1 by 27.",
    )
)
def fair_comparison(answer):
    """Check bits per letter of a word model and of a letter model, and a first loss against log V."""
    if isinstance(answer, (list, tuple)) and len(answer) == 3:
        answer = torch.tensor([expect_number(v, "a number of the answer") for v in answer], dtype=torch.float64)
    words, letters, choices = expect_tensor(answer, shape=(3,), name="the answer").double().tolist()
    right = (math.log2(692) / 5.7, math.log2(10.5), math.exp(5.1) / 27)
    diagnoses = (
        _wrong_word_model(words, right),
        _wrong_letter_model(letters, right),
        _wrong_first_loss(choices, right),
    )
    for why in diagnoses:
        if why:
            raise Wrong(why)


def _near(got, wanted):
    """Equal to about two decimals, as the exercise asks."""
    return math.isclose(got, wanted, rel_tol=4e-3)


def _wrong_word_model(got, right):
    """What is wrong with the bits per letter of the word model; None if nothing is."""
    if _near(got, right[0]):
        return None
    for wrong, why in (
        (right[1], "the first number is the letter model's; the word model comes first"),
        (math.log2(692), "the first number is bits per WORD; spread them over the letters of a word"),
        (math.log2(692) * 5.7, "the first number is multiplied by 5.7; each letter carries a share of the word's bits"),
        (math.log(692) / 5.7, "the first number is in nats per letter; bits take the logarithm to base 2"),
        (math.log2(692 / 5.7), "the perplexity was divided by 5.7; a perplexity is a product of choices, and only its "
         "logarithm can be shared out by dividing"),
        (692 / 5.7, "the perplexity was divided by 5.7; take its logarithm first"),
        (math.log2(692) / 4.7, "the blank was taken off; the 5.7 letters of a word hold its blank already, which the "
         "letter model has to predict too"),
    ):  # fmt: skip
        if _near(got, wrong):
            return why
    return f"the first number is {got:.4g} bits per letter; times 5.7 and as a power of 2 that has to be 692 again"


def _wrong_letter_model(got, right):
    """What is wrong with the bits per letter of the letter model; None if nothing is."""
    if _near(got, right[1]):
        return None
    if _near(got, right[1] / 5.7):
        return "the second number is divided by 5.7; a token of this model is one letter already"
    if _near(got, math.log(10.5)):
        return "the second number is in nats; bits take the logarithm to base 2"
    if _near(got, 10.5):
        return "the second number is the perplexity; its logarithm to base 2 is bits"
    return (
        f"the second number is {got:.4g} bits; 2 to that power is {2 ** min(got, 1000):.4g} choices, and should be 10.5"
    )


def _wrong_first_loss(got, right):
    """What is wrong with the first loss, as a multiple of uniform's choices; None if nothing is."""
    if _near(got, right[2]):
        return None
    for wrong, why in (
        (math.exp(5.1), "the third number is the perplexity itself; compare it with that of uniform, V = 27"),
        (5.1 / math.log(27), "the third number compares nats; choices are their exponentials"),
        (5.1 - math.log(27), "the third number is the difference in nats; its exponential is the ratio of choices"),
        (2**5.1 / 27, "the third number was raised as a power of 2; the loss is in nats, so of e"),
        (5.1 / 27, "the third number divides nats by choices; take the exponential of the loss first"),
        (27 / math.exp(5.1), "the third number is upside down: a ratio below 1 would be better than uniform"),
    ):
        if _near(got, wrong):
            return why
    return f"the third number is {got:.4g}; times 27 that is a perplexity, and its logarithm should be 5.1 nats"
