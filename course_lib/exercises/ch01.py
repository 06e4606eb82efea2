r"""Checks of the exercises of chapter 01, sequences and language models.

In the notebook's order: `ar_forecast`, `sine_weights` (autoregression), `perplexity_of_four` (perplexity),
`language_model` (count, smooth, evaluate, sample), `how_long` (in words), `causal_conv` (the fixed-window network) and
`fair_comparison` (units and baselines). Each compares with an answer worked out here by plain loops, on small inputs
whose sizes are pairwise different, then looks for the usual wrong turnings.

Notebook: 01.
"""

import math

import torch

from course_lib.exercises import Written, Wrong, check, close, expect_number, expect_tensor, guarded

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
        for other in (weights[:2], torch.tensor([0.5, -0.3, 0.2, -0.4, 0.6], dtype=torch.float64)):
            _check_other_sizes(student, series, other, bias)
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
    if close(got, [bias + value for value in _roll(newest_first, weights.tolist(), 0.0, horizon)]):
        raise Wrong("the bias reaches the results, but not the values that are fed back into the window")
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
    """The same series continued by a window of another length and over a longer horizon."""
    order, horizon = len(weights), 6
    got = student(series, weights, bias, horizon)
    expect_tensor(got, shape=(horizon,), name="the forecast of 6 values after one of 4")
    if not close(got, _roll(series[-order:].flip(0).tolist(), weights.tolist(), bias, horizon)):
        raise Wrong(f"right for 3 weights, wrong for {order}: is the order written as a number in your code?")


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
    rounded = torch.is_tensor(answer) and answer.dtype == torch.bfloat16  # keeps two digits
    if abs(got - wanted) <= (0.01 if rounded else 0.005):
        return
    if abs(got - wanted) <= 0.01:
        raise Wrong(f"{got:.4g} is close, but more than 0.005 away: round to two decimals, at the end and not before")
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


# --- a language model from its parts ------------------------------------------------

_SYMBOLS = "abcd "  # the space, a symbol like any other, never occurs
_TEXT = "abacabadabcabbacabd"  # "bd" stands at the end only: nothing follows it
_ASKED = [(s, c) for c in ("", "a", "b", "ab", "ca", "d", "bd", " ", "  ", "b ", "cab") for s in _SYMBOLS]
_NEW = "bcabbad "
_NUMBERS = (0.05, 0.93, 0.4, 0.62, 0.999, 0.21, 0.0, 0.75)


class _Counted:
    """An interpolated n-gram model by brute force; each option is a usual mistake."""

    def __init__(self, n, symbols, k, text, whole_context=False, drop="oldest", unseen="shorter", base=None,
                 many="different", evenly=False, ends=False, from_n=False, spaces=None, stop=None):  # fmt: skip
        self.n, self.symbols, self.k, self.text = n, symbols, k, text
        self.whole_context, self.drop, self.unseen, self.many = whole_context, drop, unseen, many
        self.stop = stop  # below one shorter context: its "plain" counts, or "base", mixed with 1 / V
        self.evenly, self.ends, self.from_n = evenly, ends, from_n or spaces in ("text", "context")
        self.spaces = spaces  # before the text: in the "text" only, before each "context" too, or "counted" as well
        if spaces:
            self.text = " " * (n - 1) + text
        self.base = 1 / len(symbols) if base is None else base

    def seen(self, context):
        """All symbols that follow a context, in the order of the text."""
        least = self.n - 1 if self.from_n else 0
        starts = range(max(len(context), least), len(self.text))
        return [self.text[i] for i in starts if self.text[i - len(context) : i] == context]

    def p(self, symbol, context):
        if self.spaces == "context":
            context = context.rjust(self.n - 1)
        if not self.whole_context:
            context = context[-(self.n - 1) :] if self.n > 1 else ""
        return self._p(symbol, context)

    def _p(self, symbol, context, deep=0):
        after = self.seen(context)
        if deep and self.stop == "plain":
            return after.count(symbol) / len(after) if after else self.base
        if not context or (deep and self.stop == "base"):
            lower = self.base
        else:
            lower = self._p(symbol, context[1:] if self.drop == "oldest" else context[:-1], deep + 1)
        if self.evenly:
            lower, extra = 1 / len(self.symbols), self.k * len(self.symbols)
        else:
            number = {"different": len(set(after)), "all": len(after), "symbols": len(self.symbols), "one": 1}[
                self.many
            ]
            extra = self.k * number
        total = len(after)
        if self.ends and context:
            total = sum(self.text.startswith(context, i) for i in range(len(self.text)))
        if total + extra == 0:
            return lower if self.unseen == "shorter" else self.base
        if not after and self.unseen != "shorter":
            return self.base
        return (after.count(symbol) + extra * lower) / (total + extra)

    def choices(self, text, skip=0):
        """1 / p of each symbol of a text."""
        return [1 / self.p(s, text[:i]) for i, s in enumerate(text)][skip:]

    def drawn(self, numbers, context, grow=True, order=None):
        """What the numbers choose."""
        new = ""
        for u in numbers:
            given = context + new if grow else context
            shown = sorted(self.symbols, key=lambda s: -self.p(s, given)) if order else self.symbols
            total, chosen = 0.0, shown[-1]
            for symbol in shown:
                total += self.p(symbol, given)
                if total > u:
                    chosen = symbol
                    break
            new += chosen
        return new


@check(
    hints=(
        "Begin with fit and the method probability for an empty context: counts of single symbols, and 1/V below them. "
        "Then let a context of one symbol ask that model, and so on.",
        "fit: for every place i and every length m from 0 to min(n - 1, i): follows[text[i-m:i]][text[i]] += 1. "
        "probability: cut the context to its last n - 1 symbols; p = 1 / V; for m = 0, 1, ..., its length: take the "
        "counts after its last m symbols, if there are any, and replace p by (count + k N p) / (total + k N).",
        "N is len(counts) of a Counter, the total counts.total(). perplexity is exp of the mean of -log "
        "probability(text[i], text[:i]). sample: for each u add up probability(s, context + new) over s in symbols, "
        "and stop at the first s where the sum is above u.",
    )
)
def language_model(student):
    """Check an interpolated n-gram model: its probabilities, its perplexity, and what it draws."""
    n, k = 3, 0.5
    model = _fitted(student, n, _SYMBOLS, k, _TEXT)
    right = _Counted(n, _SYMBOLS, k, _TEXT)
    alone = [_probability(model, right, symbol, "ab") for symbol in _SYMBOLS]
    _fitted(student, n, _SYMBOLS, k, "ab ab ")
    if not close([_probability(model, right, symbol, "ab") for symbol in _SYMBOLS], alone):
        raise Wrong("a second model changes the first: make the counts in __init__, not in the class")
    _check_probabilities(model, right)
    for other_n, symbols, other_k, text in (
        (1, "xyz", 2.0, "xyyx"),
        (2, "xyz", 1.0, "xyyxy"),
        (5, "xyz", 3.0, "yxxyx"),
    ):
        other = _Counted(other_n, symbols, other_k, text)
        another = _fitted(student, other_n, symbols, other_k, text)
        for symbol, context in (("x", ""), ("y", "x"), ("z", "y"), ("x", "zy"), ("y", "xyxx")):
            if not close(_probability(another, other, symbol, context), other.p(symbol, context)):
                raise Wrong(f"right for n = 3 and k = 0.5, wrong for n = {other_n} and k = {other_k:g}: "
                            f"p({symbol!r} | {context!r}) after fit({text!r})")  # fmt: skip
    _check_perplexity(model, right)
    _check_sample(model, right)
    _check_tie(student)


def _fitted(student, n, symbols, k, text):
    """A model that has read a text."""
    model = student(n, symbols, k)
    for name in ("fit", "probability", "perplexity", "sample"):
        if not callable(getattr(model, name, None)):
            raise Wrong(f"LanguageModel(...) has no method {name}")
    guarded(model.fit)(text)
    return model


def _probability(model, right, symbol, context):
    """What a model answers; `right` knows whether the context was ever seen."""
    try:
        got = guarded(model.probability)(symbol, context)
    except Exception as error:
        cut = context[-(right.n - 1) :] if right.n > 1 else ""
        if isinstance(error.__cause__, ZeroDivisionError) and not right.seen(cut):
            raise Wrong(
                f"p({symbol!r} | {context!r}) divides by zero: a context that was never seen has no counts and N = 0. "
                "Return the probability of the shorter context there"
            ) from error
        raise
    return expect_number(got, f"p({symbol!r} | {context!r})")


def _check_probabilities(model, right):
    n, k = right.n, right.k
    got = [_probability(model, right, symbol, context) for symbol, context in _ASKED]
    if close(got, [right.p(s, c) for s, c in _ASKED]):
        return
    for options, message in (
        ({"evenly": True}, "this is add-k smoothing: the invented counts are spread evenly. Spread them as the shorter "
         "context would: k N(u) times its probability of the symbol"),
        ({"many": "all"}, "N(u) is the number of DIFFERENT symbols that followed u; yours counts all of them"),
        ({"many": "symbols"}, "N(u) is the number of different symbols that followed u; yours is always V"),
        ({"many": "one"}, "N(u), the number of different symbols that followed u, is missing: k counts are added "
         "whatever followed"),
        ({"drop": "newest"}, "the shorter context must lose its OLDEST symbol; yours loses the newest"),
        ({"whole_context": True}, "of a longer context only the last n - 1 symbols matter: p('a' | 'cab') must be "
         "p('a' | 'ab')"),
        ({"unseen": "uniform"}, "a context that was never seen must leave the answer to the shorter context; yours "
         "answers 1 / V"),
        ({"base": 0.0}, "a symbol that never occurred has probability 0: below the empty context stands 1 / V"),
        *(({"stop": where}, "only one shorter context is asked. Interpolate all the way down: one symbol less each "
           "time, to the empty context, and 1 / V below that") for where in ("plain", "base")),
        ({"ends": True}, "'bd' stands at the end of the text only, and nothing follows it, but you count it as a "
         "context that was seen: count pairs of a context and its next symbol"),
        ({"from_n": True}, "the counts of the shorter contexts lack the first n - 1 symbols of the text"),
        *(({"spaces": where}, "spaces were put before the text, but the space is a symbol like any other, and here it "
           "never occurs: at the start of the text count the shorter contexts only")
          for where in ("text", "context", "counted")),
    ):  # fmt: skip
        if close(got, [_Counted(n, _SYMBOLS, k, _TEXT, **options).p(s, c) for s, c in _ASKED]):
            raise Wrong(message)
    if close(got, [_Counted(n, _SYMBOLS, 1.0, _TEXT).p(s, c) for s, c in _ASKED]):
        raise Wrong("this is smoothing with k = 1; use the k that is passed in")
    for (symbol, context), mine in zip(_ASKED, got, strict=True):
        wanted = right.p(symbol, context)
        if not close(mine, wanted):
            raise Wrong(
                f"after fit({_TEXT!r}) with n = {n} and k = {k}: p({symbol!r} | {context!r}) is {mine:.5g}, wanted "
                f"{wanted:.5g}. All contexts that came before this one in the check are right: "
                f"{_before(context)}"
            )


def _before(context):
    """The contexts that are asked for before this one."""
    asked = list(dict.fromkeys(c for _, c in _ASKED))
    return ", ".join(repr(c) for c in asked[: asked.index(context)]) or "none yet"


def _check_perplexity(model, right):
    got = expect_number(guarded(model.perplexity)(_NEW), "the perplexity")
    choices = right.choices(_NEW)
    nats = [math.log(c) for c in choices]
    wanted = math.exp(sum(nats) / len(nats))
    if close(got, wanted):
        return
    skipped = [math.log(c) for c in right.choices(_NEW, skip=2)]
    alone = [-math.log(right.p(s, "")) for s in _NEW]
    for wrong, message in (
        (sum(nats) / len(nats), "this is the mean in nats; the perplexity is its exponential"),
        (sum(nats) / len(nats) / math.log(2), "this is the mean in bits; the perplexity is 2 to that power"),
        (2 ** (sum(nats) / len(nats)), "nats were raised as a power of 2; undo a logarithm in its own base"),
        (math.exp(sum(nats)), "this is 1 over the probability of the whole text; divide the nats by the number of "
         "symbols first"),
        (1 / wanted, "this is the geometric mean of the probabilities; the perplexity is 1 over it"),
        (sum(choices) / len(choices), "this is the arithmetic mean of the numbers 1 / p; average their logarithms"),
        (math.exp(sum(skipped) / len(skipped)), "the first n - 1 symbols of the text are left out; give them what "
         "context there is"),
        (math.exp(sum(skipped) / len(nats)), "the sum lacks the first n - 1 symbols, but the number of all "
         "symbols divides it; give them what context there is"),
        (math.exp(sum(alone) / len(alone)), "no symbol is given those before it: the context is empty every time"),
    ):  # fmt: skip
        if close(got, wrong):
            raise Wrong(message)
    raise Wrong(f"the probabilities are right, the perplexity of {_NEW!r} is {got:.5g}, wanted {wanted:.5g}")


def _check_sample(model, right):
    context = "ca"
    got = guarded(model.sample)(list(_NUMBERS), context)
    if isinstance(got, (list, tuple)) and all(isinstance(part, str) for part in got):
        raise Wrong("sample returns a list of symbols; wanted one string: ''.join does it")
    if not isinstance(got, str):
        raise Wrong(f"sample returns a {type(got).__name__}; wanted a string")
    wanted = right.drawn(_NUMBERS, context)
    best, likeliest = "", lambda given: max(_SYMBOLS, key=lambda s: right.p(s, given))
    for _ in _NUMBERS:
        best += likeliest(context + best)
    for wrong, message in (
        (context + wanted, "the context is in the result; return only the new symbols"),
        (best, "you take the most probable symbol each time; the numbers must choose"),
        (right.drawn(_NUMBERS, context, grow=False), "every symbol is drawn after the same context; append each new "
         "symbol to it"),
        (right.drawn(_NUMBERS, ""), "the text begins as if there were no context; use the one that is passed in"),
        (right.drawn(_NUMBERS, context, order="sorted"), "the pieces stand in the order of their probabilities; keep "
         "the order of `symbols`, or the numbers choose others"),
    ):  # fmt: skip
        if got == wrong and got != wanted:
            raise Wrong(message)
    if len(got) != len(_NUMBERS):
        raise Wrong(f"{len(_NUMBERS)} numbers gave {len(got)} symbols; wanted one for each")
    if got != wanted:
        raise Wrong(f"after {context!r} the numbers {_NUMBERS} must choose {wanted!r}; yours choose {got!r}")
    if guarded(model.sample)([0.1, 0.9]) != right.drawn((0.1, 0.9), ""):
        raise Wrong("without a context the sample is not right: the first symbol is given nothing")


def _check_tie(student):
    """Four symbols of probability 1/4, so that a running sum can equal u exactly."""
    got = guarded(_fitted(student, 1, "abcd", 1.0, "abcd").sample)([0.25])
    if got == "a":
        raise Wrong(
            "p('a') is 0.25 after fit('abcd') with n = 1, and u = 0.25 chooses 'a': the running sum must exceed u, not "
            "only reach it, so this u chooses 'b'"
        )
    if got != "b":
        raise Wrong(f"after fit('abcd') with n = 1 every symbol has 0.25, so u = 0.25 must choose 'b', not {got!r}")


# --- 1.5, in words ------------------------------------------------------------------

how_long = Written(
    hints=(
        "Make a small table: rows for the amount of text, columns for n. Mark the least number of each row.",
        "(a) How often has a context of 6 letters been seen in 3,000 letters of text? (b) At n = 7 and a context seen "
        "twice: how many counts does add 0.1 invent, and for which letters? And interpolation? (c) Think of two words "
        "that depend on each other although a line of text stands between them.",
        "(a) There are up to 27^(n-1) contexts, and each must be seen several times. (b) Add-k spreads its invented "
        "counts evenly; interpolation spreads them as the shorter context would, and a larger k gives that context "
        "more weight. (c) Nothing outside the last n - 1 letters can matter.",
    ),
    good_answer=(
        "(a) the best n grows with the text, in your own numbers (with add 0.1: about 3 for 3,000 letters, 5 for all), "
        "because the number of possible contexts grows 27-fold with each letter and most of the long ones were seen "
        "rarely or never. (b) At n = 7 add-k hands much of the probability to letters that hardly ever come; "
        "interpolation hands it to the letters that the shorter context expects, so a long context does less harm. "
        "With k = 1 it still trusts rare contexts too much; with 10 it leans on the shorter ones, and the curve falls "
        "or stays nearly level up to n = 7. (c) Whatever lies further back than the window: a bracket to be closed, a "
        "name from the page before, agreement across a clause; more text does not help. A very good answer gives a "
        "number for the gap between n = 7 and the best n in each case."
    ),
)


# --- the fixed-window network ------------------------------------------------------


@check(
    hints=(
        "The output at t may use x[t], x[t-1], ...: where must the zeros stand to give position 0 a full window?",
        "Put K - 1 zeros before the first time step, none after the last; then convolve without further padding.",
        "x.transpose(1, 2) is (B, D, T); F.pad(that, (K - 1, 0)) pads on the left only; F.conv1d, then transpose back.",
    )
)
def causal_conv(student):
    """Check a convolution over time that never sees the future."""
    B, T, D, H, K = 2, 7, 3, 4, 5
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((B, T, D), (H, D, K), (H,)))
    wanted = _causal(x, weight, bias)
    got = student(x, weight, bias)
    if isinstance(got, torch.Tensor) and got.shape == (B, H, T):
        raise Wrong(
            f"the result has shape (B, H, T) = {(B, H, T)}; the course keeps time second: transpose back to (B, T, H)"
        )
    if isinstance(got, torch.Tensor) and got.shape == (B, T - K + 1, H):
        raise Wrong(f"the result has T - K + 1 = {T - K + 1} steps: without padding the first positions are lost")
    if isinstance(got, torch.Tensor) and got.ndim == 3 and got.shape[0] == B and got.shape[2] == H and got.shape[1] > T:
        raise Wrong(f"the result has {got.shape[1]} steps for {T} inputs: more zeros were added than the window needs, "
                    "or the result was not cut to T steps")  # fmt: skip
    if isinstance(got, torch.Tensor) and got.shape[::2] == (B, H) and T - K + 1 < got.shape[1] < T:
        raise Wrong(f"the result has {got.shape[1]} steps for {T} inputs: too few zeros were added for a window of {K}")
    expect_tensor(got, shape=(B, T, H), name="the result")
    if close(got, wanted):
        wide = torch.randn(H, D, 8, generator=g, dtype=torch.float64)
        for width in (1, 2, 8):  # also an even window, one that sees a single token, and one longer than the text
            if not close(student(x, wide[:, :, :width], bias), _causal(x, wide[:, :, :width], bias)):
                raise Wrong(
                    f"right for a window of 5 tokens, wrong for {width}: compute the padding from weight.shape[2]"
                )
        return
    if close(got, torch.zeros(B, T, H)):
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
    if close(got, _causal(x, weight, torch.zeros(H))):
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
        (math.log2(692) * 5.7, "the first number is multiplied by 5.7; each letter carries a part of the word's bits"),
        (math.log(692) / 5.7, "the first number is in nats per letter; bits take the logarithm to base 2"),
        (math.log2(692 / 5.7), "the perplexity was divided by 5.7; a perplexity is a product of choices, and only its "
         "logarithm can be shared out by dividing"),
        (692 / 5.7, "the perplexity was divided by 5.7; take its logarithm first"),
        (math.log2(692) / 4.7, "the space was taken off; the 5.7 letters of a word hold its space already, which the "
         "letter model has to predict too"),
    ):  # fmt: skip
        if _near(got, wrong):
            return why
    return f"the first number is {got:.4g} bits per letter; times 5.7 and as a power of 2 that should be 692 again"


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
