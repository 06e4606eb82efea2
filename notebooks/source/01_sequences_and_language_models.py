# ---
# jupyter:
#   course:
#     minutes: 180
#     needs: Python, PyTorch tensors, probability
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · Sequences and language models
#
# Here is a model that has read a few hundred thousand letters of Python's own documentation. It knows exactly how often each letter occurs.
# We show it a line of English, and the same letters shuffled. **Which of the two does it find more probable?** Guess before you read on.

# %% tags=["setup"]
import math
import re
from collections import Counter
from itertools import pairwise

import torch

from course_lib import data, diagrams, language, ledger, metrics, plots, profile, series, toy, train
from course_lib.checks import ch01
from course_lib.claims import claim
from course_lib.display import show, show_source, table

# %%
ALPHABET = " abcdefghijklmnopqrstuvwxyz"  # 27 symbols; everything that is no letter becomes a blank
V = len(ALPHABET)


def encode(text):
    """Ids (T,) of the letters and blanks of a text."""
    letters = re.sub("[^a-z]+", " ", text.lower())
    return torch.tensor([ALPHABET.index(c) for c in letters])


def decode(ids):
    """The text of ids."""
    return "".join(ALPHABET[i] for i in ids)


corpus = encode(data.docstrings(profile.pick(350_000, None)))
cut = len(corpus) * 9 // 10
train_ids, valid_ids = corpus[:cut], corpus[cut:]  # in this order: section 11 says why

line = encode("the order of the letters is what makes a text of them")
shuffled = line[torch.randperm(len(line), generator=torch.Generator().manual_seed(4))]
print(decode(line), decode(shuffled), sep="\n")

# %%
iid = language.NgramModel(1, V, add=1.0).fit(train_ids)  # each letter by its frequency, whatever stands around it
pair = language.NgramModel(2, V, add=1.0).fit(train_ids)  # each letter, given the one before
iid_bits = [metrics.bits(iid.nll(ids).mean().item()) for ids in (line, shuffled)]
pair_bits = [metrics.bits(pair.nll(ids).mean().item()) for ids in (line, shuffled)]
claim(
    "The model without order finds both lines exactly as probable as each other.",
    math.isclose(*iid_bits),
    bits_per_letter=iid_bits,
)
claim(
    "A model that looks one letter back is surprised by the shuffled line.",
    pair_bits[1] > pair_bits[0] + 1,
    bits_per_letter=pair_bits,
)

# %% [markdown]
# The first model is blind: to it, every text is a bag of letters. One letter of context is enough to notice that something is wrong.
# So order carries information, and it can be **measured in bits**. How many bits is it worth in all? That question runs through this chapter, and a figure in section 10 answers it.
#
# ## You will be able to
#
# | after this chapter you can | you prove it in |
# |---|---|
# | forecast a series from its own past, and say how far back and how far ahead such a model sees | exercises 1.1 and 1.2 |
# | compute a perplexity by hand and over a padded batch, and compare two of them fairly | exercises 1.3, 1.4 and 1.7 |
# | turn a text into a smoothed n-gram model | exercise 1.5 |
# | build the layer of a neural language model that looks through a fixed window and never sees the future | exercise 1.6 |
# | read a loss against its baselines, and explain what more context buys | exercises 1.7 and 1.8 |
#
# Letters used throughout: $B$ batch, $T$ time steps, $V$ vocabulary size, $D$ width, $F$ feed-forward (hidden) width. Batch first. $\log$ is the natural logarithm; a loss is in **nats** unless bits are named.

# %% [markdown]
# ## 1 · Data with order
#
# Most of machine learning assumes that examples are **i.i.d.**: independent, and identically distributed. For a sequence $x_1, \dots, x_T$ that assumption says
#
# $$p(x_1, \dots, x_T) = \prod_{t=1}^{T} p(x_t).$$
#
# A product does not change when its factors change places. That is all the puzzle above was: no training and no larger model can mend it, because the assumption itself throws the order away.
#
# Numbers suffer as letters do. What does shuffling leave of a seasonal series, and what does it destroy?

# %%
wave = toy.seasonal_series(240, period=12, trend=0.0, noise=0.3, seed=1)
mixed = wave[torch.randperm(240, generator=torch.Generator().manual_seed(1))]


def autocorrelation(x, lag):
    """Correlation of each value with the value `lag` steps before it."""
    return torch.corrcoef(torch.stack([x[lag:], x[:-lag]]))[0, 1].item()


lags = range(1, 31)
left, middle, right = plots.grid(1, 3, height=2.7, width_ratios=[1, 1, 1.3])[0]
plots.lines(left, {"series": (range(60), wave[:60])}, "time step", "value", {"series": "input"})
plots.lines(middle, {"shuffled": (range(60), mixed[:60])}, "time step", "", {"shuffled": "muted"})
left.set(title="the series")
middle.set(title="shuffled", ylim=left.get_ylim())
correlations = {name: [autocorrelation(x, k) for k in lags] for name, x in (("series", wave), ("shuffled", mixed))}
plots.lines(
    right,
    {name: (lags, c) for name, c in correlations.items()},
    "lag (steps)",
    "correlation with the past",
    {"series": "input", "shuffled": "muted"},
)
right.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.2))
show(
    left,
    "The first 60 of 240 steps of a seasonal series; of its shuffled twin, which is jagged; and their correlation with past values, which "
    "swings with period 12 for the series and stays near zero for the twin.",
    "Shuffling keeps every value and so mean, spread and histogram; it destroys the relation to the past, "
    "here a season of 12 steps. (The first 60 of 240 steps are shown.)",
)

# %%
same = math.isclose(wave.mean(), mixed.mean(), abs_tol=1e-12) and math.isclose(wave.std(), mixed.std(), rel_tol=1e-12)
claim("The shuffled series has the same mean and the same spread.", same)
claim(
    "A season back, the series resembles itself; its shuffled twin does not.",
    correlations["series"][11] > 0.7 and abs(correlations["shuffled"][11]) < 0.3,
    series=correlations["series"][11],
    shuffled=correlations["shuffled"][11],
)

# %% [markdown]
# ## 2 · The forms of a sequence task
#
# Before choosing a model, ask two questions: *where do inputs come in*, and *where do outputs come out*?

# %%
diagrams.show("task_forms")

# %% [markdown]
# **Question.** Name the form of each: (a) is this review positive? (b) English to another language; (c) tomorrow's temperature, for every day of a year; (d) a caption for a photo; (e) the next letter, after every letter of a text.
# The toy data of this course has examples; look at the lengths.

# %%
review, sentiment = toy.reviews(2, seed=8)[0]
translated = toy.translation_pairs(1, seed=9)[0]
table(
    ["task", "in", "out", "length in → out", "form"],
    [
        ["sentiment", review, "positive" if sentiment else "negative", f"{len(review.split())} → 1", "many to one"],
        [
            "translation",
            " ".join(translated.source),
            " ".join(translated.target),
            f"{len(translated.source)} → {len(translated.target)}",
            "many to many",
        ],
        ["forecast", "wave[0:239]", "wave[1:240]", "239 → 239", "many to many, in step"],
        ["next letter", decode(line[:12]), decode(line[1:13]), "12 → 12", "many to many, in step"],
    ],
)

# %% [markdown]
# (d) is one to many. Forms (c) and (e) are special: the output is the input, **shifted by one step**. No label has to be made by hand, because the data labels itself. The price is a rule that the rest of the course obeys:
#
# > The output at time $t$ may depend on $x_1, \dots, x_t$, never on $x_{t+1}$. A model that obeys is **causal**.
#
# Section 9 shows how easily that rule is broken, and how well a model that breaks it seems to do.

# %% [markdown]
# ## 3 · Linear autoregression
#
# The plainest causal model predicts the next value by a weighted sum of the last few:
#
# $$\hat x_t = b + \sum_{j=1}^{K} w_j\, x_{t-j}, \qquad \mathbf{w} \in \mathbb{R}^K .$$
#
# $K$ is the **order**. (*Auto*-regression: the series is regressed on itself.)

# %%
diagrams.show("autoregressive_window")

# %% [markdown]
# Fitting is ordinary least squares, once the windows stand in a matrix: row $i$ of `X` holds the $K$ values before `y[i]`, **newest first**, so column $j-1$ belongs to $w_j$. Books differ on that order; check it before you copy weights.

# %%
show_source(series.lagged, series.fit_autoregression)

# %%
X, y = series.lagged(torch.tensor([10.0, 11.0, 12.0, 13.0, 14.0]), 3)
print("X", tuple(X.shape), X.tolist())
print("y", tuple(y.shape), y.tolist())

# %% [markdown]
# **Predict.** Our series has a season of 12 steps, a slow trend, and noise of standard deviation 0.2. We fit orders $K = 1$ to 24 on the first 240 steps and measure one-step errors on the 120 that follow. At which $K$ does the error stop falling? Could any $K$ reach an error of 0?

# %%
NOISE, START = 0.2, 240
seasonal = toy.seasonal_series(360, period=12, noise=NOISE, seed=2)


def one_step_error(order):
    """Mean absolute error of one-step forecasts on the steps from START on."""
    weights, bias = series.fit_autoregression(seasonal[:START], order)
    X, y = series.lagged(seasonal[START - order :], order)
    return (X @ weights + bias - y).abs().mean().item()


orders = range(1, 25)
errors = [one_step_error(k) for k in orders]
floor = NOISE * math.sqrt(2 / math.pi)  # mean |noise|: what would be left if everything but the noise were known
ax = plots.lines(
    plots.axes(height=2.9),
    {"autoregression": (orders, errors), "noise alone": (orders, [floor] * 24)},
    "order $K$ (steps back)",
    "mean absolute error",
    {"autoregression": "output", "noise alone": "muted"},
)
show(
    ax,
    "One-step error against the order: it falls in steps until an order of about 13, then stays flat, a "
    "little above a grey line for the noise.",
    "Looking further back helps until the window holds a whole season and one step; what is left is noise, "
    "which no order can predict.",
)
claim(
    "An order of 13, a season and one step, has less than half the error of order 1.",
    errors[12] < errors[0] / 2,
    order_1=errors[0],
    order_13=errors[12],
)
claim(
    "Going from 13 to 24 gains nothing here.",
    errors[23] > 0.97 * errors[12],
    order_13=errors[12],
    order_24=errors[23],
)
claim("No order gets below the noise.", min(errors) > floor, best=min(errors), noise=floor)

# %% [markdown]
# More values would average the noise further, but each weight more has to be estimated from the same 240 steps.
#
# That is the first horizon: the model looks **$K$ steps back**, and whatever lies further back cannot matter. The second horizon lies ahead. To forecast $h$ steps, the model must use its own forecasts in place of values nobody knows yet:

# %%
show_source(series.forecast)

# %%
order = 13
weights, bias = series.fit_autoregression(seasonal[:START], order)
ahead = series.forecast(seasonal[:START], weights, bias, 36)
steps = range(START, START + 36)
known = {
    "the past": (range(START - 36, START), seasonal[START - 36 : START]),
    "what came": (steps, seasonal[START : START + 36]),
}
ax = plots.lines(plots.axes(), known, "time step", "value", {"the past": "input", "what came": "ink"})
plots.lines(ax, {"autoregression": (steps, ahead)}, "time step", "value", {"autoregression": "output"})
naive = {
    "last season": series.naive_seasonal(seasonal[:START], 36, 12),
    "last value": series.naive_last(seasonal[:START], 36),
}
for (name, values), dashes in zip(naive.items(), ("--", ":"), strict=True):
    plots.lines(ax, {name: (steps, values)}, "time step", "value", {name: "muted"}, linestyle=dashes)
ax.legend(ncols=3, loc="upper left")
ax.set_ylim(2, 7.8)
show(
    ax,
    "36 steps of past, then forecasts: the autoregression follows season and trend, last season repeats "
    "without the trend, last value is flat.",
    "Fed with its own forecasts, the autoregression keeps season and trend for three seasons; repeating the "
    "last season misses the trend, repeating the last value misses both.",
)

# %% [markdown]
# One forecast can be lucky. So we forecast from **every** possible origin after step 240 and average the error at each distance. A forecast without such naive rivals beside it says nothing.

# %%
horizon = 24
rivals = {  # each is a function of the past and the number of steps
    "autoregression": lambda past, h: series.forecast(past, weights, bias, h),
    "last season": lambda past, h: series.naive_seasonal(past, h, 12),
    "last value": series.naive_last,
}
by_horizon = {name: series.errors_by_horizon(rival, seasonal, START, horizon) for name, rival in rivals.items()}
ax = plots.axes()
for (name, e), dashes in zip(by_horizon.items(), ("-", "--", ":"), strict=True):
    color = "output" if name == "autoregression" else "muted"
    plots.lines(
        ax, {name: (range(1, horizon + 1), e)}, "steps ahead", "mean absolute error", {name: color}, linestyle=dashes
    )
ax.legend(ncols=3, loc="upper left")
ax.set_ylim(0, 1.6)
show(
    ax,
    "Error against steps ahead: the autoregression stays near 0.2, last season near 0.3 and then 0.5, last "
    "value swings between 0.3 and 1.3 with the season.",
    "The autoregression is ahead at every distance. Its error grows slowly, because each step inherits the "
    "errors of those before.",
)
ar = by_horizon["autoregression"]
claim(
    "The autoregression beats both naive forecasts at every distance, up to two seasons ahead.",
    all(bool((ar < e).all()) for name, e in by_horizon.items() if name != "autoregression"),
    **{f"{name.replace(' ', '_')}_24_ahead": e[-1].item() for name, e in by_horizon.items()},
)

# %% [markdown]
# ### On real series
#
# Monthly sunspot numbers from 1749 on, with a rhythm of about 11 years, and ten years of daily minimum temperatures in Melbourne. These runs were recorded beforehand: the order is chosen on validation years, and the figure shows errors on the last years, on which nothing was chosen. Every number is read from the ledger, `results/`. (Yule, 1927, fitted the first autoregression, to yearly sunspot numbers.)
#
# **Predict.** Which order is best for sunspots one month ahead? And on average over the next eleven years?


# %%
def recorded(name, variant, metric):
    """One number of the ledger: the mean over its seeds."""
    return ledger.summary(name, variant, metric)[0]


def by_order(name, orders):
    """Rows for a table: order, error one step ahead, error averaged over all steps ahead."""
    columns = ("valid_mae_one_step", "valid_mae")
    return [[k, *(recorded(name, f"order {k}", column) for column in columns)] for k in orders]


table(
    ["order", "error 1 month ahead (sunspots)", "mean of 1 to 132 months"],
    by_order("sunspots-ar", (1, 2, 12, 24, 96, 264)),
)
table(["order", "error 1 day ahead (°C)", "mean of 1 to 60 days"], by_order("temperatures-ar", (1, 2, 7, 30, 120, 365)))

near = [recorded("sunspots-ar", f"order {k}", "valid_mae_one_step") for k in (2, 96)]
far = [recorded("sunspots-ar", f"order {k}", "valid_mae") for k in (2, 96)]
days = [recorded("temperatures-ar", f"order {k}", "valid_mae") for k in (120, 365)]
claim(
    "One month ahead, 2 months of sunspots tell nearly as much as 96.",
    near[0] < 1.05 * near[1],
    order_2=near[0],
    order_96=near[1],
)
claim(
    "Averaged over the next 11 years, 96 months tell far more.", far[1] < 0.7 * far[0], order_2=far[0], order_96=far[1]
)
claim(
    "A window of a whole year of days is worse than one of 120.",
    days[1] > days[0],
    order_120=days[0],
    order_365=days[1],
)

# %%
panels = plots.grid(1, 2, height=3.0)[0]
plotted = (("sunspots-ar", "months", "sunspots"), ("temperatures-ar", "days", "°C"))
for ax, (name, step, unit) in zip(panels, plotted, strict=True):
    for variant, dashes in (("autoregression", "-"), ("seasonal", "--"), ("last", ":"), ("mean", "-.")):
        curve = ledger.values(name, variant, "mae_by_horizon")[0]
        color = "output" if variant == "autoregression" else "muted"
        label = {"seasonal": "last season", "last": "last value"}.get(variant, variant)
        points = {label: (range(1, len(curve) + 1), curve)}
        plots.lines(ax, points, f"{step} ahead", f"mean absolute error ({unit})", {label: color}, linestyle=dashes)
    ax.set_ylim(0)
panels[0].set_title("sunspots")
panels[1].set_title("temperatures")
panels[1].legend(ncols=2, loc="lower center")
show(
    panels[0],
    "Test error against steps ahead. Sunspots: the autoregression rises from 13 to about 34, below last "
    "season and the mean everywhere. Temperatures: it rises from 1.8 to 2.1 within days, then "
    "stays level below the others.",
    "On both series the autoregression beats the naive forecasts at every distance. Weather "
    "forgets within days, so its curve is soon flat; sunspots remember for years.",
)
beaten = []
for name, *_ in plotted:
    by_variant = {
        v: torch.tensor(ledger.values(name, v, "mae_by_horizon")[0])
        for v in ("autoregression", "seasonal", "last", "mean")
    }
    own = by_variant.pop("autoregression")
    beaten += [bool((own < rival).all()) for rival in by_variant.values()]
claim("On the test years the autoregression beats all three at every distance, on both series.", all(beaten))

# %% [markdown]
# ### Exercise 1.1 · Forecast from your own forecasts
#
# Difficulty ●●○○○ · 15 minutes · needs section 3 · *implement*
#
# Continue a series by a linear autoregression, without `series.forecast`. The cell after yours checks it and says what is wrong. Stuck? `ch01.ar_forecast.hint(1)`, then `hint(2)` and `hint(3)`; every exercise has them.


# %% nbgrader={"grade": false, "grade_id": "ex01-1-ar-forecast", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ar_forecast(past, weights, bias, horizon):
    """Continue `past` (T,) by `horizon` values.

    weights (order,), weights[0] multiplies the newest value; bias a number.
    Returns the new values only, (horizon,).
    """
    ### BEGIN SOLUTION
    window = past[-len(weights) :].flip(0)  # newest first
    new = []
    for _ in range(horizon):
        new.append(bias + weights @ window)
        window = torch.cat([new[-1].reshape(1), window[:-1]])
    return torch.stack(new)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex01-1-ar-forecast-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch01.ar_forecast(ar_forecast)

# %% [markdown]
# ### Exercise 1.2 · How much past does a sine need?
#
# Difficulty ●●●○○ · 15 minutes · needs section 3 · *derive*
#
# "It looks only $K$ steps back" sounds like a verdict on slow rhythms. Not always: **two** weights continue *every* sine of period 12, whatever its height and phase, with no error and no bias. Derive $w_1$ and $w_2$ in $x_t = w_1 x_{t-1} + w_2 x_{t-2}$, and give them as a tensor of two numbers.
# (The series above holds two sines, a trend and noise. Without the noise, 2 + 2 weights for the sines, one for the trend and a bias would forecast it exactly; the longer window is there to average the noise away.)

# %% nbgrader={"grade": false, "grade_id": "ex01-2-sine-weights", "locked": false, "schema_version": 3, "solution": true, "task": false}
sine_weights = ...  # torch.tensor([w_1, w_2])
### BEGIN SOLUTION
# sin(a + b) + sin(a - b) = 2 sin(a) cos(b), with b = 2 pi / 12 the angle of one step
sine_weights = torch.tensor([2 * math.cos(2 * math.pi / 12), -1.0])
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex01-2-sine-weights-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch01.sine_weights(sine_weights)

# %% [markdown]
# ## 4 · One probability for a whole text
#
# For text, a single best guess of the next letter is not enough: after `th`, both `e` and `i` are fine. A **language model** gives a probability to every continuation, and so to every text. The chain rule of probability says how, and it holds for *any* distribution:
#
# $$p(x_1, \dots, x_T) = \prod_{t=1}^{T} p(x_t \mid x_1, \dots, x_{t-1}).$$
#
# Nothing is assumed yet. But the condition grows with $t$: after 10 letters there are $27^{10} \approx 2 \times 10^{14}$ different pasts, and almost none was ever seen. The **Markov assumption** of order $n-1$ cuts the past off:
#
# $$p(x_t \mid x_1, \dots, x_{t-1}) \approx p(x_t \mid x_{t-n+1}, \dots, x_{t-1}).$$

# %%
diagrams.show("language_model_chain")

# %% [markdown]
# $n = 1$ is the i.i.d. model (*unigram*), $n = 2$ a *bigram* model, $n = 3$ a *trigram* model. It is linear autoregression's idea again: a window of fixed length that slides along.
#
# **Predict.** In 1913 A. A. Markov counted vowels and consonants in 20,000 letters of Pushkin's *Eugene Onegin*. Vowels were 43 % of all letters. If letters were independent, how often would a vowel follow a vowel? How often do you expect it? We repeat his count on your Python's documentation.

# %%
letters = train_ids[train_ids > 0]  # without blanks, as Markov counted
vowel = torch.isin(letters, encode("aeiou"))
after_vowel = vowel[1:][vowel[:-1]].double().mean().item()
after_consonant = vowel[1:][~vowel[:-1]].double().mean().item()
claim(
    "A vowel is rarer after a vowel than after a consonant: letters are not independent.",
    after_vowel < after_consonant / 2,
    vowels=vowel.double().mean().item(),
    after_vowel=after_vowel,
    after_consonant=after_consonant,
)

# %% [markdown]
# In Russian verse Markov counted 13 %.
#
# ## 5 · n-grams: count, divide, sample
#
# How do we get these probabilities? Count. With $c(\cdot)$ for how often a string of tokens occurs in the training text, the maximum-likelihood bigram model is
#
# $$p(x_t = v \mid x_{t-1} = u) = \frac{c(u\,v)}{\sum_{v'} c(u\,v')}.$$
#
# On one word, that is four lines:

# %%
word = "abracadabra"
pairs = Counter(pairwise(word))
row = {after: count for (before, after), count in pairs.items() if before == "a"}  # what followed an a
p = {letter: count / sum(row.values()) for letter, count in row.items()}
print("counts after a:", row)
print("divided by their sum:", p, "sum", sum(p.values()))

# %% [markdown]
# The library's model does the same for any $n$. A table of $V^n$ counts would be nearly empty, so it keeps a sorted list of the n-grams that occurred: `keys` number them, and one pass for each length $m = 1, \dots, n$ builds on the pass before. At a first reading, see in it only the counting of pairs above.

# %%
show_source(language.NgramModel.fit)

# %%
bigram = language.NgramModel(2, V, add=0.0).fit(train_ids)
rows = torch.stack([bigram.probs([u]) for u in range(V)])  # (V, V): row u is p(next | u)
names = ["·", *ALPHABET[1:]]  # the dot stands for the blank
ax = plots.heatmap(
    plots.axes(height=6.2),
    rows,
    names,
    names,
    "probability of the next letter",
    xlabel="next letter",
    ylabel="letter before (· = blank)",
)
show(
    ax,
    "Heat map of 27 by 27 letters: q is almost always followed by u; many words end in y, s, d, e; vowels "
    "follow consonants.",
    "Each row is a distribution. Dark cells are habits of the text: u after q, e after many consonants, a "
    "blank after y and s.",
)
claim("Each row sums to 1.", torch.allclose(rows.sum(1), torch.ones(V, dtype=rows.dtype)))
q, u = encode("qu")
claim(
    "After q, the letter u takes most of the probability.",
    bool(rows[q, u] > 0.7),
    probability=rows[q, u].item(),
    without_order=iid.probs([])[u].item(),
)

# %% [markdown]
# A model that can score can also **write**: draw a letter from $p(\cdot \mid \text{context})$, append it, repeat. To draw, cut the interval $[0, 1)$ into pieces as long as the probabilities and see into which piece a random number falls:

# %%
show_source(language.sample)

# %% [markdown]
# **Predict.** Shannon (1948) printed such samples for $n = 1, 2, 3$ and words. How far back must the model look before you can read whole words?

# %% tags=["nbval-ignore-output"]
models = {n: language.NgramModel(n, V, interpolate=True).fit(train_ids) for n in (1, 2, 3, 5, 7)}
for n, model in models.items():
    written = language.sample(model.probs, encode("the "), 70, torch.Generator().manual_seed(5))
    print(f"n = {n}:  the {decode(written)}")

# %% [markdown]
# Longer contexts read better and better. Do they also *predict* better, on text they have not seen? For that we need a score.
#
# ## 6 · Perplexity
#
# Give the model a text it was not trained on and average the surprise for each token, $-\log p$. That mean is the **cross-entropy**, and its exponential the **perplexity** (Jelinek et al., 1977, to compare tasks of speech recognition):
#
# $$\text{nats} = \frac1T \sum_{t=1}^{T} -\log p(x_t \mid x_{<t}), \qquad \text{perplexity} = e^{\text{nats}} = \Big(\prod_{t=1}^{T} p(x_t \mid x_{<t})\Big)^{-1/T}.$$
#
# **Predict** the perplexity of three models: one that always knows the next token; one that gives the same probability to each of $V = 27$; one that gives probability 0 to a token that then comes.

# %%
show_source(metrics.cross_entropy, metrics.perplexity, metrics.bits)

# %%
targets = torch.tensor([3, 1, 4, 1, 5])
knows = torch.full((5, V), -math.inf).scatter(1, targets[:, None], 0.0)  # all probability on the truth
uniform = torch.zeros(5, V)
excludes = torch.zeros(5, V)
excludes[2, 4] = -math.inf  # probability 0 for the third target
rows = []
for name, logits in (("always right", knows), ("uniform", uniform), ("one zero", excludes)):
    nats = metrics.cross_entropy(logits, targets).item()
    rows.append([name, nats, metrics.bits(nats), metrics.perplexity(nats)])
table(["model", "nats per token", "bits per token", "perplexity"], rows)

# %% [markdown]
# The three cases are worth remembering as marks on a ruler: **1** is perfect, **$V$** is what knowing nothing costs, and a single impossible token costs **infinity**, however good the rest is. A trained model below $V$ has learnt something; one above $V$ is *confidently wrong*.
#
# Perplexity is also an **effective number of choices**: a model with perplexity 8 is as surprised, on average, as one that picks among 8 equally likely tokens. In bits that is $\log_2 8 = 3$: three yes-no questions. And $\text{bits} = \text{nats} / \log 2$. On tokens drawn from $p$ itself the mean surprise tends to the **entropy** of $p$, $-\sum_v p(v) \log p(v)$; its exponential counts the choices in a distribution:

# %%
k = torch.arange(8)
shapes = {"uniform": torch.ones(8), "fading": 0.6**k, "one favourite": torch.tensor([20.0] + [1.0] * 7)}
panels = plots.grid(1, 3, height=2.5, sharey=True)[0]
choices = {}
for ax, (name, weight) in zip(panels, shapes.items(), strict=True):
    p = weight / weight.sum()
    choices[name] = metrics.perplexity(-(p * p.log()).sum().item())
    ax.bar(k, p, color=plots.COLORS["attention"])
    ax.set(xticks=range(8), xlabel="token", title=f"{name}:\n{choices[name]:.3g} effective choices")
panels[0].set_ylabel("probability")
show(
    panels[0],
    "Three distributions over 8 tokens as bars: uniform, fading, one favourite; with 8, 4.93 and 2.94 "
    "effective choices.",
    "Eight tokens are eight choices only if they are equally likely; the more probability a few take, the "
    "fewer choices remain.",
)
claim(
    "Only the uniform distribution has as many effective choices as tokens.",
    choices["uniform"] > 7.999 and max(choices["fading"], choices["one favourite"]) < 7,
    **{n.replace(" ", "_"): c for n, c in choices.items()},
)

# %% [markdown]
# What kind of average is it? The number of choices at token $t$ is $1 / p(x_t \mid x_{<t})$, and perplexity is the **geometric** mean of these numbers, since the mean is taken over logarithms. (It is sometimes called the harmonic mean of the choices; the next exercise tells the two apart.)
#
# ### Exercise 1.3 · Perplexity by hand
#
# Difficulty ●○○○○ · 5 minutes · needs section 6 · *derive*
#
# A model gives the four tokens of a text the probabilities 1/2, 1/4, 1/8, 1/8. What is its perplexity? Work it out on paper: all logarithms to base 2 are whole numbers. Give it to two decimals. Then compare with the arithmetic and the harmonic mean of 2, 4, 8, 8.

# %% nbgrader={"grade": false, "grade_id": "ex01-3-perplexity-of-four", "locked": false, "schema_version": 3, "solution": true, "task": false}
perplexity_of_four = ...  # a number
### BEGIN SOLUTION
perplexity_of_four = 2 ** ((1 + 2 + 3 + 3) / 4)  # 4.76; the arithmetic mean is 5.5, the harmonic mean 4
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex01-3-perplexity-of-four-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
ch01.perplexity_of_four(perplexity_of_four)

# %% [markdown]
# ### Exercise 1.4 · Perplexity of a padded batch
#
# Difficulty ●●○○○ · 10 minutes · needs section 6 · *implement*
#
# Sentences of different lengths share a tensor by padding. Given each position's surprise and a mask of the real tokens, compute the perplexity **per token**. What stands at padded positions must not matter, even if it is `inf`.


# %% nbgrader={"grade": false, "grade_id": "ex01-4-corpus-perplexity", "locked": false, "schema_version": 3, "solution": true, "task": false}
def corpus_perplexity(nll, mask):
    """Perplexity over all real tokens of a batch.

    nll (B, T) nats for each position; mask (B, T) bool, True = real token.
    Returns one number.
    """
    ### BEGIN SOLUTION
    return nll[mask].mean().exp()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex01-4-corpus-perplexity-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch01.corpus_perplexity(corpus_perplexity)

# %% [markdown]
# ## 7 · What was never seen
#
# Now the score can judge the n-grams. **Predict:** with plain counts, what is the perplexity of the trigram model on the held-out tenth of the text?

# %%
plain = language.NgramModel(3, V, add=0.0).fit(train_ids)
surprise = plain.nll(valid_ids)
zeros = surprise.isinf().double().mean().item()
claim(
    "Plain trigram counts give the held-out text infinite perplexity.",
    metrics.perplexity(surprise.mean().item()) == math.inf,
    share_of_letters_with_probability_0=zeros,
)
claim("Fewer than 1 in 50 letters did that.", 0 < zeros < 0.02)

# %% [markdown]
# A handful of letter triples that the training text happens to lack, and the model calls the whole text impossible. To be absent from a sample is not to be impossible. **Smoothing** moves a little probability to what was never seen. The oldest way adds $k$ to every count (Laplace: $k = 1$):
#
# $$p(v \mid u) = \frac{c(u\,v) + k}{\sum_{v'} c(u\,v') + kV}.$$
#
# A better one **interpolates** (Jelinek and Mercer, 1980): it adds counts in proportion to the next shorter model's probability instead of evenly, and so asks the long context $\mathbf{u}$ as far as it was seen, and $\mathbf{u}'$, the same without its oldest token, for the rest:
#
# $$p_n(v \mid \mathbf{u}) = \frac{c(\mathbf{u}\,v) + k\,N(\mathbf{u})\; p_{n-1}(v \mid \mathbf{u}')}{\sum_{v'} c(\mathbf{u}\,v') + k\,N(\mathbf{u})}, \qquad p_0 = \frac1V .$$
#
# $N(\mathbf{u})$ is the number of *different* tokens that followed $\mathbf{u}$: where many new ones came, another is likely. $k = 1$ is method C of Witten and Bell (1991); the recorded runs of section 10 choose $k$ on validation data. Chen and Goodman (1998) compare the whole family. Both ways in one line each:

# %%
show_source(language.NgramModel._smooth)

# %% [markdown]
# ### Exercise 1.5 · A smoothed bigram model
#
# Difficulty ●●○○○ · 15 minutes · needs sections 5 and 7 · *implement*
#
# Turn a text into a table of add-$k$ smoothed bigram probabilities, without `language.NgramModel`. Every row must be a distribution, also that of a token which never has a successor.


# %% nbgrader={"grade": false, "grade_id": "ex01-5-bigram-probs", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bigram_probs(ids, vocab_size, k):
    """Smoothed bigram probabilities.

    ids (T,) int64 tokens of one text; vocab_size V; k > 0 is added to every count.
    Returns (V, V): row u holds p(next = v | u).
    """
    ### BEGIN SOLUTION
    counts = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    one = torch.ones(len(ids) - 1, dtype=torch.float64)
    counts.index_put_((ids[:-1], ids[1:]), one, accumulate=True)
    counts += k
    return counts / counts.sum(dim=1, keepdim=True)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex01-5-bigram-probs-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch01.bigram_probs(bigram_probs)

# %% [markdown]
# With smoothing, every order gets a finite score. **Predict** the two curves below: bits for each letter against $n$, on the training text and on held-out text. Do they run together?

# %%
ns = range(1, 8)
held_out, seen = {}, {}
for name, setting in (("add 0.1", {"add": 0.1}), ("interpolated", {"interpolate": True})):
    fitted = [language.NgramModel(n, V, **setting).fit(train_ids) for n in ns]
    held_out[name] = [metrics.bits(m.nll(valid_ids).mean().item()) for m in fitted]
    seen[name] = [metrics.bits(m.nll(train_ids[: len(valid_ids)]).mean().item()) for m in fitted]
ax = plots.lines(
    plots.axes(),
    {f"{name}, held out": (ns, b) for name, b in held_out.items()},
    "$n$ (the model looks $n-1$ letters back)",
    "bits per letter",
    {"add 0.1, held out": "muted", "interpolated, held out": "attention"},
    marker="o",
)
plots.lines(
    ax,
    {f"{name}, training text": (ns, b) for name, b in seen.items()},
    "$n$ (the model looks $n-1$ letters back)",
    "bits per letter",
    {"add 0.1, training text": "muted", "interpolated, training text": "attention"},
    marker="o",
    linestyle="--",
    alpha=0.5,
)
show(
    ax,
    "Bits per letter against n for two smoothings. On training text both fall; on held-out text the add-0.1 "
    "curve turns up steeply after n = 5, the interpolated one a little.",
    "Longer contexts fit the training text ever better. On new text add-$k$ turns up after $n = 5$, although few "
    "contexts are new: one seen twice gets 2.7 invented counts (0.1 × 27). Interpolation rises far less, because it "
    "fills the gap from the shorter context.",
)
best = min(range(len(ns)), key=lambda i: held_out["add 0.1"][i])
claim(
    "With add-k smoothing the best n for held-out text is neither the shortest nor the longest.",
    0 < best < len(ns) - 1,
    best_n=ns[best],
)
new = (language.NgramModel(5, V).fit(train_ids).counts(valid_ids) == 0).double().mean().item()
claim(
    "At n = 6 the loss has risen again, although fewer than 1 in 5 of its contexts are new.",
    held_out["add 0.1"][5] > held_out["add 0.1"][best] and new < 0.2,
    new_contexts=new,
)
claim("On its training text the longest model looks best.", min(seen["add 0.1"]) == seen["add 0.1"][-1])
claim(
    "From its best n to n = 7 interpolation loses less than half of what adding a constant loses.",
    held_out["interpolated"][-1] - min(held_out["interpolated"])
    < (held_out["add 0.1"][-1] - held_out["add 0.1"][best]) / 2,
    interpolated=held_out["interpolated"][-1] - min(held_out["interpolated"]),
    add=held_out["add 0.1"][-1] - held_out["add 0.1"][best],
)

# %% [markdown]
# This is the dilemma of counting. A short context drops what matters; a long one was too rarely seen to trust its counts. The table of contexts grows as $V^{n-1}$, and no smoothing tells the model that `return the` and `returns a` are alike.

# %% [markdown]
# ## 8 · Baselines: how to read a loss
#
# You will watch many losses fall in this course. A number such as 2.1 nats says little by itself; four marks give it meaning.
#
# | mark | formula | what a model must know to reach it |
# |---|---|---|
# | uniform | $\log V$ | nothing |
# | unigram entropy | $H_1 = -\sum_v p(v) \log p(v)$ | how often each token occurs |
# | bigram entropy | $H_2 = -\sum_{u} p(u) \sum_{v} p(v \mid u) \log p(v \mid u)$ | one token of context |
# | 0 | | everything |

# %%
show_source(language.unigram_entropy, language.bigram_entropy)

# %% [markdown]
# Both are measured on the text that is to be predicted: each is the loss of the best model of its kind *for that text*. **Predict** their order. Can one token of context make the entropy larger?

# %%
marks = {
    "uniform, log V": math.log(V),
    "unigram entropy": float(language.unigram_entropy(valid_ids)),
    "bigram entropy": float(language.bigram_entropy(valid_ids)),
}
claim(
    "Each mark lies below the one before: on average, knowing more cannot hurt.",
    marks["bigram entropy"] < marks["unigram entropy"] < marks["uniform, log V"],
    **{n.replace(" ", "_").replace(",", ""): b for n, b in marks.items()},
)

# %% [markdown]
# ## 9 · A neural language model with a fixed window
#
# Bengio et al. (2003) answered the dilemma: give each token a *learnt vector*, and compute the probabilities from the vectors of the last $n$ tokens. (Here $n$ counts the tokens that are *seen*: a window of $n$ corresponds to an $(n+1)$-gram.) Tokens used alike can get vectors alike, and what is learnt of one context carries over to others.
#
# $$\mathbf{e}_s = E[x_s] \in \mathbb{R}^{D}, \qquad \mathbf{h}_t = \mathrm{ReLU}\Big(\mathbf{b}_1 + \sum_{j=0}^{n-1} W_j\, \mathbf{e}_{t-j}\Big) \in \mathbb{R}^{F}, \qquad \text{logits}_t = U \mathbf{h}_t + \mathbf{b}_2 \in \mathbb{R}^{V}.$$
#
# $E$ is $(V, D)$, a row for each token; $U$ is $(V, F)$; the biases $\mathbf{b}_1$ and $\mathbf{b}_2$ are $(F,)$ and $(V,)$. The same $W_0, \dots, W_{n-1} \in \mathbb{R}^{F \times D}$ serve every position: that sum is a one-dimensional **convolution** over time, so all positions are computed at once. (`nn.Conv1d` stores them oldest first: `weight[:, :, n - 1 - j]` is $W_j$.)

# %%
diagrams.show("conv_language_model")

# %%
show_source(language.WindowLM)

# %% [markdown]
# What does looking further back cost now? A table of counts has a row for each of the $V^{n}$ contexts; the network pays $DF$ weights for each further token.


# %%
def parameters(model):
    """Number of trainable numbers."""
    return sum(p.numel() for p in model.parameters())


rows = [[n, f"{V ** (n + 1):,}", f"{parameters(language.WindowLM(V, n, 24, 96)):,}"] for n in (1, 2, 4, 7)]
table(["tokens of context", "numbers in a table of counts", "parameters of the network (D = 24, F = 96)"], rows)

# %% [markdown]
# **Predict.** What will the loss be before the first update? And at the end: above or below the bigram entropy? The network is trained on stretches of 64 letters; the targets are the inputs shifted by one, and every position counts in the loss:

# %%
show_source(train.language_model_loss)


# %%
def windows(ids, batch, length, generator):
    """A batch of random stretches: inputs (B, T) and targets (B, T), the inputs shifted by one."""
    starts = torch.randint(len(ids) - length, (batch, 1), generator=generator)
    stretch = ids[starts + torch.arange(length + 1)]
    return stretch[:, :-1], stretch[:, 1:]


CONTEXT, ROUNDS, STEPS = 7, profile.pick(20, 200), 25
train.set_seed(1)
net = language.WindowLM(V, CONTEXT, 24, 96)
held_out_batches = [windows(valid_ids, 64, 64, torch.Generator().manual_seed(i)) for i in range(4)]
start = train.evaluate(net, held_out_batches, train.language_model_loss)["loss"]


def stretches(epoch):
    """The batches of one round, drawn afresh."""
    generator = torch.Generator().manual_seed(epoch)
    return (windows(train_ids, 32, 64, generator) for _ in range(STEPS))


history = train.fit(
    net,
    stretches,
    train.language_model_loss,
    torch.optim.AdamW(net.parameters(), lr=4e-3),
    epochs=ROUNDS,
    valid_batches=held_out_batches,
    device=profile.pick("cpu", train.pick_device()),
)
net.cpu()
losses = [start] + [h["valid_loss"] for h in history]

# %%
updates = [STEPS * i for i in range(ROUNDS + 1)]
ax = plots.lines(
    plots.axes(),
    {"window network": (updates, losses)},
    "updates",
    "held-out loss (nats per letter)",
    {"window network": "output"},
)
for name, value in marks.items():
    ax.axhline(value, color=plots.COLORS["muted"], linestyle="--", linewidth=1.2)
    ax.annotate(name, (updates[-1], value), xytext=(0, 2), textcoords="offset points", ha="right", va="bottom")
ax.margins(y=0.1)
show(
    ax,
    "Held-out loss against updates: it starts at the uniform mark, passes the unigram entropy and then the "
    "bigram entropy, and flattens below it.",
    "The loss starts at $\\log V$ and ends below the bigram entropy: that needs more than one letter of context.",
)
claim(
    "Before training the network knows as much as a uniform guess.",
    abs(start - math.log(V)) < 0.15,
    loss=start,
    uniform=math.log(V),
)
claim(
    "It ends below the bigram entropy, so it uses more than one letter of context.",
    losses[-1] < marks["bigram entropy"],
    loss=losses[-1],
    bigram=marks["bigram entropy"],
)

# %% [markdown]
# A start far from $\log V$ is a bug or a bad initialisation: with vocabulary 27 the first loss must be near 3.3 nats, and you can say so before you run anything.
#
# ### The bound
#
# Whatever the training, the network cannot use what lies before its window. We change one letter and watch the prediction many positions later.

# %%
sequence = valid_ids[:40][None]
with torch.no_grad():
    reference = net(sequence)[0, -1]
    effect = []
    for distance in range(16):
        changed = sequence.clone()
        changed[0, -1 - distance] = (changed[0, -1 - distance] + 7) % V
        effect.append((net(changed)[0, -1] - reference).abs().max().item())
ax = plots.bars(
    plots.axes(height=2.6),
    {str(d): round(e, 2) for d, e in enumerate(effect)},
    "largest change of a logit",
    {str(d): "input" if d < CONTEXT else "muted" for d in range(16)},
    digits=3,
)
ax.set_xlabel("distance of the changed letter (0 = the newest)")
show(
    ax,
    "Effect of changing one letter against its distance: large for distance 0, positive up to 6, exactly zero"
    " from 7 on.",
    f"A window of {CONTEXT} letters ends at distance {CONTEXT - 1}. Beyond it the effect is exactly zero: not "
    "small, zero.",
)
claim(
    "Every letter in the window counts, and none beyond it.", min(effect[:CONTEXT]) > 0 and max(effect[CONTEXT:]) == 0.0
)

# %% [markdown]
# Does that matter? In the task below, the answer is the token seen `lag` steps before a question mark, and the tokens between are noise.
# **Predict** the accuracy of a window of 4 tokens and of one of 8, for lag 6 and five possible answers.


# %%
def recall_accuracy(window, lag, answers=5, steps=150):
    """Train a window network to answer the question at the end; share of right answers on fresh sequences."""
    train.set_seed(0)
    model, generator = language.WindowLM(answers + 1, window, 16, 64), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x, y = toy.recall_task(64, lag, answers + 1, generator)
        loss = torch.nn.functional.cross_entropy(model(x)[:, -1], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = toy.recall_task(1000, lag, answers + 1, generator)
    return (model(x)[:, -1].argmax(1) == y).double().mean().item()


accuracy = {window: recall_accuracy(window, lag=6) for window in (4, 8)}
claim("A window that reaches the answer learns the task.", accuracy[8] > 0.95, window_8=accuracy[8])
claim("A window that does not reach it guesses, one in five.", abs(accuracy[4] - 0.2) < 0.06, window_4=accuracy[4])

# %% [markdown]
# Text is full of such lags: a name in the first line of a page, a bracket to be closed, "the **keys** that he had left on the table **were**". Widening the window helps until the next longer lag. A memory without a fixed reach is what chapter 03 is about.
#
# ### A result too good to be true
#
# A colleague "improves" the network with one word: `padding="same"`, a well-known option of convolutions. Nothing else changes.


# %%
class SameLM(language.WindowLM):
    """The window network with the padding that image models use."""

    def features(self, ids):
        x = self.embedding(ids).transpose(1, 2)  # (B, D, T)
        x = torch.nn.functional.conv1d(x, self.conv.weight, self.conv.bias, padding="same")
        return x.relu().transpose(1, 2)


train.set_seed(1)
same = SameLM(V, CONTEXT, 24, 96)
train.fit(
    same,
    stretches,
    train.language_model_loss,
    torch.optim.AdamW(same.parameters(), lr=4e-3),
    epochs=4,
    device=profile.pick("cpu", train.pick_device()),
)
same.cpu()
same_loss = train.evaluate(same, held_out_batches, train.language_model_loss)["loss"]
claim(
    "After four rounds of training its held-out perplexity is almost 1.",
    metrics.perplexity(same_loss) < 1.5,
    perplexity=metrics.perplexity(same_loss),
    honest_network=metrics.perplexity(losses[-1]),
)

# %% [markdown]
# Held-out text, so it is not over-fitting. What is it? Let both networks *write*: there the future does not exist yet.

# %% tags=["nbval-ignore-output"]
for name, model in (("honest", net), ("same", same)):
    written = language.sample(model.probs, encode("return the "), 70, torch.Generator().manual_seed(3))
    print(f"{name:>6}:  return the {decode(written)}")


# %%
def sees_future(model):
    """Does the output at position 9 change when only positions 10 and later do?"""
    a = valid_ids[:20][None]
    b = torch.cat([a[:, :10], (a[:, 10:] + 1) % V], dim=1)
    return not torch.allclose(model(a)[:, 9], model(b)[:, 9])


claim(
    "The network with same padding sees the future; the library's does not.", sees_future(same) and not sees_future(net)
)

# %% [markdown]
# `same` padding puts half of the zeros behind the text, so 3 of the 7 letters in each window lie in the future, and the target is the very next token: the network reads the answer off its input. A held-out set does not catch this. Two things do: **change the future and see whether the past moves**, and **generate**.
#
# ### Exercise 1.6 · Repair the convolution
#
# Difficulty ●●●○○ · 15 minutes · needs section 9 · *find the bug*
#
# Here is the colleague's line on its own: `torch.nn.functional.conv1d(x.transpose(1, 2), weight, bias, padding="same").transpose(1, 2)`.
# Write the causal version. `weight[:, :, -1]` multiplies the present, `weight[:, :, 0]` the oldest token in the window.


# %% nbgrader={"grade": false, "grade_id": "ex01-6-causal-conv", "locked": false, "schema_version": 3, "solution": true, "task": false}
def causal_conv(x, weight, bias):
    """Convolution over time in which position t sees x[:, t - n + 1 .. t].

    x (B, T, D); weight (F, D, n) for any window n >= 1; bias (F,).
    Returns (B, T, F).
    """
    ### BEGIN SOLUTION
    padded = torch.nn.functional.pad(x.transpose(1, 2), (weight.shape[2] - 1, 0))  # zeros before the text only
    return torch.nn.functional.conv1d(padded, weight, bias).transpose(1, 2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex01-6-causal-conv-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch01.causal_conv(causal_conv)

# %% [markdown]
# ## 10 · What is order worth?
#
# Back to the puzzle of the first screen. All models of this chapter, on the same held-out letters, in one unit:

# %%
ladder = {
    "uniform": metrics.bits(math.log(V)),
    "no order\n(n = 1)": held_out["interpolated"][0],
    "1 letter\n(n = 2)": held_out["interpolated"][1],
    "2 letters\n(n = 3)": held_out["interpolated"][2],
    "best n-gram": min(held_out["interpolated"]),
    "window\nnetwork": metrics.bits(min(losses)),
}
ax = plots.bars(plots.axes(), ladder, "held-out bits per letter", {"uniform": "muted", "window\nnetwork": "output"})
ax.axhspan(0.6, 1.3, color=plots.COLORS["hidden"], alpha=0.3, zorder=0)
ax.annotate("people,\nother English\n(Shannon, 1951)", (6.3, 1.36), ha="center", va="bottom")
ax.set_xlim(-0.6, 7.1)
show(
    ax,
    "Bars of bits per letter: uniform 4.75, without order about 4.1, falling with context to about half of that; "
    "a band from 0.6 to 1.3 bits marks people who guess English.",
    "Letters of context are worth bits: about half of what a letter seems to say without order is already said "
    "by the letters before it. Band: Shannon's bounds for people guessing other English, to scale only.",
)
claim(
    "Knowing the order halves the cost of a letter, or nearly so.",
    ladder["best n-gram"] < 0.6 * ladder["no order\n(n = 1)"],
    without=ladder["no order\n(n = 1)"],
    with_order=ladder["best n-gram"],
)
claim(
    "On this text the best n-gram beats the network.",
    ladder["best n-gram"] < ladder["window\nnetwork"],
    n_gram=ladder["best n-gram"],
    network=ladder["window\nnetwork"],
)

# %% [markdown]
# Bits are not a figure of speech. A model with 2 bits per letter can *compress* the text to 2 bits per letter (by arithmetic coding), where a file of bytes takes 8.
#
# Be fair to counting: here it beats the network. The text repeats its phrases, which a table of counts stores letter by letter, and the network is small and its training short. The larger networks below had more of both.
#
# ### On real text
#
# The runs below were recorded beforehand, on the characters of tiny Shakespeare and the words of WikiText-2. The network sees 10 characters or 4 words. Smoothing and training time were chosen on validation data; the scores are of text on which nothing was chosen.
#
# **Predict.** WikiText-2 has 33,278 different words. Which share of the 5-grams in its test text never occurred in two million words of training text? And which model will win there?

# %%
orders = {"shakespeare-lm": range(1, 8), "wikitext2-lm": range(1, 6)}
titles = {"shakespeare-lm": "Shakespeare, characters", "wikitext2-lm": "WikiText-2, words"}
panels = plots.grid(1, 2, height=3.2)[0]
for ax, (name, ns) in zip(panels, orders.items(), strict=True):
    for kind, color in (("add-k", "muted"), ("interpolated", "attention")):
        score = {kind: (ns, [recorded(name, f"{n}-gram {kind}", "bits") for n in ns])}
        plots.lines(ax, score, "$n$", "bits per token", {kind: color}, marker="o")
    network = recorded(name, "window network", "bits")
    ax.axhline(network, color=plots.COLORS["output"], linestyle="--", label="window network")
    ax.set_title(titles[name])
panels[1].legend()
show(
    panels[0],
    "Bits per token against n. Characters: add-k has its minimum near n = 5, interpolation falls on and "
    "flattens. "
    "Words: add-k "
    "rises steeply from n = 3 on, interpolation flattens at n = 4, and the network's line lies below both.",
    "The same two smoothings on two texts. Words are so many that add-$k$ fails from $n = 3$ on, while "
    "interpolation flattens; there the network, which shares what it learns between words, is best.",
)

# %%
table(
    ["WikiText-2, test", "perplexity", "bits per word", "counts or weights"],
    [
        [
            v,
            *(recorded("wikitext2-lm", v, m) for m in ("perplexity", "bits")),
            f"{recorded('wikitext2-lm', v, 'parameters'):,.0f}",
        ]
        for v in (
            "1-gram interpolated",
            "2-gram interpolated",
            "3-gram interpolated",
            "4-gram interpolated",
            "5-gram interpolated",
            "window network",
        )
    ],
)
words = {
    v: recorded("wikitext2-lm", v, "perplexity")
    for v in ("2-gram add-k", "3-gram add-k", "window network", "bigram entropy")
}
counting = min(
    recorded("wikitext2-lm", f"{n}-gram {kind}", "perplexity")
    for n in range(1, 6)
    for kind in ("add-k", "interpolated")
)
claim(
    "On words the network with its window of four beats every n-gram up to five.",
    words["window network"] < counting,
    network=words["window network"],
    best_n_gram=counting,
)
claim(
    "With add-k, two words of context are worse than one.",
    words["3-gram add-k"] > 2 * words["2-gram add-k"],
    one=words["2-gram add-k"],
    two=words["3-gram add-k"],
)
unseen = recorded("wikitext2-lm", "5-gram interpolated", "unseen")
claim("Nine in ten 5-grams of the test text never occurred in the training text.", unseen > 0.9, share=unseen)
claim(
    "The bigram entropy of the test text is far below every honest model.",
    words["bigram entropy"] < words["window network"] / 4,
    entropy_as_perplexity=words["bigram entropy"],
    network=words["window network"],
)

# %% [markdown]
# The last line is a warning about section 8. An entropy that was *counted on the text itself* has seen the answers. With 27 symbols that matters little, as the next cell shows; with 33,278 words most pairs occur once, and their own count "predicts" them. It is a mark to know, not a goal.

# %%
own_pairs = metrics.bits(marks["bigram entropy"])
claim(
    "With 27 symbols, the held-out text's own pairs predict it less than a tenth better than the training text's pairs.",
    0.9 * held_out["interpolated"][1] < own_pairs < held_out["interpolated"][1],
    bits_by_its_own_pairs=own_pairs,
    bits_by_training_pairs=held_out["interpolated"][1],
)
counted = {n: recorded("shakespeare-lm", f"{n}-gram interpolated", "nats") for n in range(1, 8)}
best = min(counted, key=counted.get)
learnt = recorded("shakespeare-lm", "window network", "nats")
claim(
    "On characters the best n-gram and the network end close together, within a tenth of a nat.",
    abs(counted[best] - learnt) < 0.1,
    best_n=best,
    n_gram_nats=counted[best],
    network_nats=learnt,
)
sizes = [recorded("shakespeare-lm", v, "parameters") for v in (f"{best}-gram interpolated", "window network")]
claim(
    "The network has fewer weights than the n-gram model has counts.",
    sizes[1] < sizes[0],
    n_gram=sizes[0],
    network=sizes[1],
)

# %% [markdown]
# With 65 symbols and a million characters, many contexts of five or six were seen, so sharing buys less than among words. "Best" means best of those tried: the 7-gram is the longest, and its $k$ the largest, among the candidates. Keep the loss on this text in mind as a mark to compare with in later chapters, with one caution: the models here learnt from the first 80 % of the text, those from 90 %.

# %% [markdown]
# ## 11 · Common mistakes
#
# Two you have met: a count of zero makes a perplexity infinite (section 7), and a window that sees the future makes it nearly 1 (section 9). Three more.
#
# ### Splitting a series at random
#
# A forecaster that has understood nothing copies the nearest day it knows. Tested on randomly chosen days of a random walk, it shines.

# %%
walk = torch.randn(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(0)


def copy_nearest(known, asked):
    """Mean absolute error of copying, for each day asked, the value of the nearest known day."""
    nearest = known[(asked[:, None] - known[None]).abs().argmin(1)]
    return (walk[nearest] - walk[asked]).abs().mean().item()


days = torch.randperm(600, generator=torch.Generator().manual_seed(1))
at_random = copy_nearest(known=days[:480], asked=days[480:])
in_order = copy_nearest(known=torch.arange(480), asked=torch.arange(480, 600))
claim(
    "Split at random, copying the nearest day looks excellent; asked for the future, it is far worse.",
    in_order > 4 * at_random,
    at_random=at_random,
    in_order=in_order,
)

# %% [markdown]
# The neighbours of almost every test day, tomorrow included, were in the training set. **Repair:** cut by time, train on the past, test on the future, as this chapter does with `train_ids` and `valid_ids`. For text the same holds for pieces of one document: functions of one Python module are described in the same words. So our corpus shuffles whole modules, and the held-out tenth comes from modules that the training text lacks. Shuffled docstring by docstring, the best n-gram would seem better than it is.
#
# ### Averaging perplexity over sentences
#
# A long sentence with 1 nat per token and a short, strange one with 6. What is the model's perplexity?

# %%
nll = torch.zeros(2, 100)
nll[0], nll[1, :2] = 1.0, 6.0
mask = torch.arange(100) < torch.tensor([100, 2])[:, None]
sentence_means = torch.stack([row[m].mean() for row, m in zip(nll, mask, strict=True)])
table(
    ["how", "perplexity"],
    [
        ["mean of the sentences' perplexities (wrong)", metrics.perplexity(sentence_means).mean().item()],
        ["exponential of the sentences' mean nats (wrong)", metrics.perplexity(sentence_means.mean()).item()],
        ["padding counted as well predicted (wrong)", metrics.perplexity(nll.mean()).item()],
        ["per token, padding left out (right)", metrics.perplexity(nll[mask].mean()).item()],
    ],
)

# %% [markdown]
# One short sentence out of two decides the first two; the padding flatters the third. **Repair:** add nats over *all real tokens*, divide once by their number, take the exponential last. A mean over batches of unequal size goes wrong in the same way, which is why `train.evaluate` adds sums.
#
# ### Comparing perplexities over different units
#
# **Predict:** a letter bigram model with perplexity near 10, a word unigram model with a perplexity of hundreds. Which is the better model of the same text?

# %%
train_words, valid_words = decode(train_ids).split(), decode(valid_ids).split()
vocabulary = {word: i for i, word in enumerate(sorted({*train_words, *valid_words}))}  # closed: no word is unknown


def word_perplexity(known):
    """Perplexity of a word unigram model in which all words outside `known` are one token."""
    ids = {word: i for i, word in enumerate(sorted(known))}
    to_ids = lambda words: torch.tensor([ids.get(w, len(ids)) for w in words])  # noqa: E731
    model = language.NgramModel(1, len(ids) + 1, add=0.5).fit(to_ids(train_words))
    return metrics.perplexity(model.nll(to_ids(valid_words)).mean().item())


words_all = word_perplexity(vocabulary)
letters_per_word = len(valid_ids) / len(valid_words)  # blank included
word_bits = math.log2(words_all) / letters_per_word  # per letter
claim(
    "By perplexity the letter model looks far better.",
    2 ** held_out["interpolated"][1] < words_all / 10,
    letters=2 ** held_out["interpolated"][1],
    words=words_all,
)
claim(
    "In bits per letter the word model is better, here even than the best letter n-gram.",
    word_bits < min(held_out["interpolated"]),
    letter_bigram=held_out["interpolated"][1],
    best_letter_n_gram=min(held_out["interpolated"]),
    words=word_bits,
)

# %% [markdown]
# A choice among thousands of words says more than one among 27 letters. **Repair:** convert to a unit of the text itself: bits per letter, per byte. The word model has an advantage that no conversion removes: its vocabulary was made from the test words too. That is one reason why it beats even the best letter n-gram of section 7 here.
# Which leads to the cheapest trick of all. **Predict:** what happens to the perplexity if all words but the 50 most frequent become one token, `<unk>`?

# %%
frequent = [word for word, _ in Counter(train_words).most_common(50)]
claim(
    "A vocabulary of 50 words and <unk> makes the perplexity many times smaller, with no better model.",
    word_perplexity(frequent) < words_all / 5,
    with_50=word_perplexity(frequent),
    with_all=words_all,
)

# %% [markdown]
# Predicting "some rare word" is easy and says little. **Repair:** state the vocabulary and the share of `<unk>` beside every perplexity, and compare only what shares both.
#
# ### Exercise 1.7 · Three losses, read fairly
#
# Difficulty ●●○○○ · 10 minutes · needs sections 8 and 11 · *derive*
#
# On one text, a word model has perplexity 692; a word is 5.7 letters long on average, its blank included. A letter model with $V = 27$ has perplexity 10.5 on the same text. Which is better? Give (1) the word model's and (2) the letter model's bits per letter.
# Another letter model with $V = 27$ has a loss of 5.1 nats before its first update. (3) How many times as many effective choices is that as a uniform guess has? What would you suspect? All three to two decimals.

# %% nbgrader={"grade": false, "grade_id": "ex01-7-fair-comparison", "locked": false, "schema_version": 3, "solution": true, "task": false}
fair_comparison = ...  # torch.tensor([bits of the word model, bits of the letter model, times uniform])
### BEGIN SOLUTION
# 1.66, 3.39, 6.07: the word model is better; 5.1 nats is confidently wrong, so a bug or a bad initialisation
fair_comparison = torch.tensor([math.log2(692) / 5.7, math.log2(10.5), math.exp(5.1) / 27])
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex01-7-fair-comparison-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch01.fair_comparison(fair_comparison)

# %% [markdown]
# ### Exercise 1.8 · How long should the context be?
#
# Difficulty ●●●○○ · 20 minutes · needs sections 7 to 10 · *explore and explain*
#
# The function below measures held-out bits for $n = 1$ to 7. Call it for 3,000, 30,000 and all training letters with `add=0.1`, then with `interpolate=True`. Then answer in a few sentences:
# (a) How does the best $n$ move with the amount of text, and why? (b) Compare the loss at $n = 7$ with the loss at the best $n$, for both smoothings. Why does interpolation lose less? What changes with `add=5, interpolate=True`? (c) The network sees 7 letters back, more than the 7-gram, yet its held-out loss is much closer to its training loss: name two reasons. (d) Which kind of dependency would none of these models learn, however much text they read?


# %%
def bits_by_n(letters, **smoothing):
    """Held-out bits for n = 1 to 7, of models of the last `letters` training letters."""
    models = [language.NgramModel(n, V, **smoothing).fit(train_ids[-letters:]) for n in range(1, 8)]
    return [round(metrics.bits(m.nll(valid_ids).mean().item()), 3) for m in models]


few, many = bits_by_n(3_000, add=0.1), bits_by_n(len(train_ids), add=0.1)
claim(
    "The best context is longer when there is more text.",
    few.index(min(few)) < many.index(min(many)),
    with_3000_letters=few,
    with_all=many,
)
fitted_counts = language.NgramModel(7, V).fit(train_ids)
gap = metrics.bits(history[-1]["valid_loss"] - history[-1]["train_loss"])
gap_of_counts = held_out["add 0.1"][-1] - seen["add 0.1"][-1]
claim(
    "Between training and held-out text the network loses less than half of what the add-0.1 7-gram loses.",
    gap < gap_of_counts / 2,
    network=gap,
    seven_gram=gap_of_counts,
    counts_stored=sum(fitted_counts.num_ngrams),
    weights=parameters(net),
)

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex01-8-context", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) The best n grows with the text. An n-gram table needs several sightings of each context, and there are 27^(n-1) contexts, so each further letter asks for many times more text. With little text, most long contexts are new or seen once, and add-k answers "nearly uniform" there.
#
# (b) Add-0.1 spends its invented counts evenly, so at n = 7 much of the probability goes to letters that hardly ever come. Interpolation spends them where the 6-gram, and so on down, expects them: a long context that says little costs little. It still rises, because at k = 1 it trusts contexts seen once or twice too much. With add=5 it leans on the shorter contexts more, and from 3,000 letters to all of them the curve falls or stays level up to n = 7.
#
# (c) The network has 19,491 weights where the 7-gram model stores more than ten times as many counts: its size grows by DF for each letter of context, not with every new context. And it shares them: the same vector for a letter in every context, the same weights at every time step, so that similar contexts give similar predictions. (Its training was short, too.)
#
# (d) Anything further back than the window: a bracket to be closed, a name mentioned a page ago, agreement across a long clause. More text does not help, because the model cannot see the cause (the recall task of section 9).
# ### END SOLUTION

# %% [markdown]
# ## Summary
#
# 1. I.i.d. models give a sequence and its shuffle the same probability; order is information, measurable in bits.
# 2. Linear autoregression and n-grams are the same idea: look at a window of fixed length, slide it along. What lies outside cannot matter.
# 3. The chain rule is exact, the Markov assumption is a choice; counting needs smoothing, since unseen is not impossible.
# 4. Perplexity is $e^{\text{nats per token}}$, the geometric mean of the number of choices: 1 is perfect, $V$ knows nothing, infinity called the truth impossible. Compare only per token, over the same tokens.
# 5. A network shares what it learns between contexts and grows linearly with the window; test that it is causal, and read its loss against $\log V$, $H_1$ and $H_2$.
#
# ## Where next
#
# Chapter 02 turns real text into tensors: words and subwords in place of our 27 symbols, padding and masks, and a score for translations. Chapter 03 replaces the window by a state that is carried along, so that nothing bounds the past but what the state can hold.
#
# ## References
#
# - A. A. Markov (1913), "An example of statistical investigation of the text *Eugene Onegin* concerning the connection of samples in chains"; English translation in *Science in Context* 19(4), 2006: the count of section 4.
# - C. E. Shannon (1948), "A Mathematical Theory of Communication", *Bell System Technical Journal* 27: sections 3 (samples of order 0 to 3) and 6 (entropy).
# - C. E. Shannon (1951), "Prediction and Entropy of Printed English", *Bell System Technical Journal* 30: 27 symbols, people guess letters; 0.6 to 1.3 bits with 100 letters of context.
# - F. Jelinek, R. L. Mercer, L. R. Bahl and J. K. Baker (1977), "Perplexity: a measure of the difficulty of speech recognition tasks", *Journal of the Acoustical Society of America* 62, S63.
# - F. Jelinek and R. L. Mercer (1980), "Interpolated estimation of Markov source parameters from sparse data", *Pattern Recognition in Practice*: interpolation.
# - S. F. Chen and J. Goodman (1998), "An Empirical Study of Smoothing Techniques for Language Modeling", Harvard TR-10-98, section 2: add-$k$, interpolation and their successors, compared.
# - I. H. Witten and T. C. Bell (1991), "The Zero-Frequency Problem", *IEEE Transactions on Information Theory* 37(4), method C: how many counts to add.
# - Y. Bengio, R. Ducharme, P. Vincent and C. Jauvin (2003), "A Neural Probabilistic Language Model", *JMLR* 3, section 2, equation 1. Ours has ReLU for tanh and no direct connections.
# - G. U. Yule (1927), "On a Method of Investigating Periodicities in Disturbed Series", *Phil. Trans. R. Soc. A* 226: the first autoregression, fitted to sunspots.
# - Video: *Deep Learning for Natural Language Processing*, [youtu.be/6D4EWKJgNn0](https://youtu.be/6D4EWKJgNn0): embeddings and neural language models.
# - Video: MIT 6.S191, *Recurrent Neural Networks*, [youtube.com/watch?v=SEnXr6v2ifU](https://www.youtube.com/watch?v=SEnXr6v2ifU): the first part, on sequence tasks, fits here; the rest belongs to chapter 03.
