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

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook.figures import ch01 as figures

figures.puzzle()

# %% tags=["setup", "fold"]
# @title Imports
import math
import re
from collections import Counter
from itertools import pairwise

import torch
from tqdm import tqdm

from course_lib import autoregression, datasets, generate, metrics, ngram, train
from course_lib.datasets import synthetic
from course_lib.exercises import ch01
from course_lib.notebook import claim, diagrams, ledger, predict, run_size, show_source, table
from course_lib.notebook.figures import ch01 as figures
from course_lib.utils import device

# %% [markdown]
# Letters become numbers: the *ids* 0 to 26, 0 for the blank. The last tenth of the text is held out.

# %%
ALPHABET = " abcdefghijklmnopqrstuvwxyz"  # 27 symbols; every non-letter becomes a blank
V = len(ALPHABET)


def encode(text):
    """Ids (T,) of the letters and blanks of a text."""
    letters = re.sub("[^a-z]+", " ", text.lower())
    return torch.tensor([ALPHABET.index(c) for c in letters])


def decode(ids):
    """The text of ids."""
    return "".join(ALPHABET[i] for i in ids)


corpus = encode(datasets.docstrings(run_size.pick(350_000, None)))
cut = len(corpus) * 9 // 10
train_ids, valid_ids = corpus[:cut], corpus[cut:]  # in this order: section 11 says why

# %%
line = encode("the order of the letters is what makes a text of them")
shuffled = line[torch.randperm(len(line), generator=torch.Generator().manual_seed(4))]
print(decode(line), decode(shuffled), sep="\n")

iid = ngram.NgramModel(1, V, add=1.0).fit(train_ids)  # the frequency of each letter
pair = ngram.NgramModel(2, V, add=1.0).fit(train_ids)  # given the one before

# %%
more_probable = predict("which line the first model finds more probable", ...)

# %% tags=["fold", "reveal"]
# @title What the two models say
iid_bits = [metrics.bits(iid.nll(ids).mean().item()) for ids in (line, shuffled)]
pair_bits = [metrics.bits(pair.nll(ids).mean().item()) for ids in (line, shuffled)]
claim(
    "The model without order finds both lines exactly as probable as each other.",
    math.isclose(*iid_bits),
    **{"bits per letter, line and shuffled": iid_bits},
)
claim(
    "A model that looks one letter back is surprised by the shuffled line.",
    pair_bits[1] > pair_bits[0] + 1,
    **{"bits per letter, line and shuffled": pair_bits},
)
more_probable.compare("neither of the two")

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
# A product does not change when its factors change places. That is all the puzzle above was: no training and no larger model can fix it, because the assumption itself throws the order away.
#
# Numbers suffer as letters do. What does shuffling leave of a seasonal series, and what does it destroy?

# %%
wave = synthetic.seasonal_series(240, period=12, trend=0.0, noise=0.3, seed=1)
mixed = wave[torch.randperm(240, generator=torch.Generator().manual_seed(1))]


def autocorrelation(x, lag):
    """Correlation of each value with the value `lag` steps before it."""
    return torch.corrcoef(torch.stack([x[lag:], x[:-lag]]))[0, 1].item()


correlations = {
    name: [autocorrelation(x, lag) for lag in range(1, 31)]
    for name, x in (("series", wave), ("shuffled", mixed))
}
figures.series_and_shuffle(wave, mixed, correlations)

# %% tags=["fold"]
# @title What shuffling keeps, and what it destroys
claim(
    "The shuffled series has the same mean and the same spread.",
    math.isclose(wave.mean(), mixed.mean(), abs_tol=1e-12)
    and math.isclose(wave.std(), mixed.std(), rel_tol=1e-12),
)
claim(
    "A season back, the series resembles itself; its shuffled twin does not.",
    correlations["series"][11] > 0.7 and abs(correlations["shuffled"][11]) < 0.3,
    **{f"correlation at lag 12, {name}": c[11] for name, c in correlations.items()},
)

# %% [markdown]
# ## 2 · The forms of a sequence task
#
# Before choosing a model, ask two questions: *where do inputs come in*, and *where do outputs come out*?

# %%
diagrams.show("task_forms")

# %% [markdown]
# **Question.** Name the form of each: (a) is this review positive? (b) English to another language; (c) tomorrow's temperature, for every day of a year; (d) a caption for a photo; (e) the next letter, after every letter of a text.
# The toy data of this course has examples of four of them; look at the lengths.
#
# | task | in | out | length in → out | form |
# |---|---|---|---|---|
# | (a) sentiment | *critics called the acting brilliant , but i found it awful .* | negative | 12 → 1 | many to one |
# | (b) translation | *the big horse did not help a strange farmer* | *lo ekvo grando uno agro miro judis ne* | 9 → 8 | many to many |
# | (c) forecast | `wave[0:239]` | `wave[1:240]` | 239 → 239 | many to many, in step |
# | (e) next letter | *the order of* | *he order of·* | 12 → 12 | many to many, in step |
#
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
show_source(autoregression.lagged, autoregression.fit_autoregression)

# %%
X, y = autoregression.lagged(torch.tensor([10.0, 11.0, 12.0, 13.0, 14.0]), 3)
print("X", tuple(X.shape), X.tolist())
print("y", tuple(y.shape), y.tolist())

# %% [markdown]
# Our series has a season of 12 steps, a slow trend, and noise of standard deviation 0.2. We fit orders $K = 1$ to 24 on the first 240 steps and measure one-step errors on the 120 that follow. At which $K$ does the error stop falling? Could any $K$ reach an error of 0?

# %%
NOISE, START = 0.2, 240
seasonal = synthetic.seasonal_series(360, period=12, noise=NOISE, seed=2)


def one_step_error(order):
    """Mean absolute error of one-step forecasts on the steps from START on."""
    weights, bias = autoregression.fit_autoregression(seasonal[:START], order)
    X, y = autoregression.lagged(seasonal[START - order :], order)
    return (X @ weights + bias - y).abs().mean().item()


errors = [one_step_error(k) for k in range(1, 25)]
floor = NOISE * math.sqrt(2 / math.pi)  # mean |noise|: all but the noise is known

# %%
enough = predict("the order K at which the error stops falling", ...)

# %% tags=["reveal"]
figures.error_by_order(errors, floor)

# %% tags=["fold", "reveal"]
# @title The errors of orders 1, 13 and 24
claim(
    "An order of 13, a season and one step, has less than half the error of order 1; going on to 24 gains nothing here.",
    errors[12] < errors[0] / 2 and errors[23] > 0.97 * errors[12],
    **{f"order {k}": errors[k - 1] for k in (1, 13, 24)},
)
claim("No order gets below the noise.", min(errors) > floor, best=min(errors), noise=floor)
enough.compare("about 13")

# %% [markdown]
# More values would average the noise further, but each additional weight has to be estimated from the same 240 steps.
#
# That is the first horizon: the model looks **$K$ steps back**, and whatever lies further back cannot matter. The second horizon lies ahead. To forecast $h$ steps, the model must use its own forecasts in place of values nobody knows yet:

# %%
show_source(autoregression.forecast)

# %%
weights, bias = autoregression.fit_autoregression(seasonal[:START], 13)
ahead = autoregression.forecast(seasonal[:START], weights, bias, 36)
naive = {
    "last season": autoregression.naive_seasonal(seasonal[:START], 36, 12),
    "last value": autoregression.naive_last(seasonal[:START], 36),
}
figures.forecasts(seasonal, START, ahead, naive)

# %% [markdown]
# One forecast can be lucky. So we forecast from **every** possible origin after step 240 and average the error at each distance. A forecast without such naive rivals beside it says nothing.

# %%
rivals = {  # each is a function of the past and the number of steps
    "autoregression": lambda past, h: autoregression.forecast(past, weights, bias, h),
    "last season": lambda past, h: autoregression.naive_seasonal(past, h, 12),
    "last value": autoregression.naive_last,
}
by_horizon = {
    name: autoregression.errors_by_horizon(rival, seasonal, START, 24)
    for name, rival in rivals.items()
}
figures.error_by_horizon(by_horizon)

# %% tags=["fold"]
# @title Is it ahead at every distance?
claim(
    "The autoregression beats both naive forecasts at every distance, up to two seasons ahead.",
    all(
        bool((by_horizon["autoregression"] < e).all())
        for name, e in by_horizon.items()
        if name != "autoregression"
    ),
    **{f"{name}, 24 steps ahead": e[-1].item() for name, e in by_horizon.items()},
)

# %% [markdown]
# ### On real series
#
# Monthly sunspot numbers from 1749 on, with a rhythm of about 11 years, and ten years of daily minimum temperatures in Melbourne. These runs were recorded beforehand: the order is chosen on validation years, and the figure shows errors on the last years, on which nothing was chosen. Every number is read from the ledger, `results/`. (Yule, 1927, fitted the first autoregression, to yearly sunspot numbers.)
#
# Which order is best for sunspots one month ahead? And on average over the next eleven years?

# %% tags=["fold", "reveal"]
# @title Which order is best? Errors on validation years
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
table(
    ["order", "error 1 day ahead (°C)", "mean of 1 to 60 days"],
    by_order("temperatures-ar", (1, 2, 7, 30, 120, 365)),
)
near = [recorded("sunspots-ar", f"order {k}", "valid_mae_one_step") for k in (2, 96)]
far = [recorded("sunspots-ar", f"order {k}", "valid_mae") for k in (2, 96)]
year = [recorded("temperatures-ar", f"order {k}", "valid_mae") for k in (120, 365)]
claim(
    "One month ahead, 2 months of sunspots tell nearly as much as 96; averaged over the next 11 years, 96 months tell far more.",
    near[0] < 1.05 * near[1] and far[1] < 0.7 * far[0],
    **{"one month, orders 2 and 96": near, "11 years, orders 2 and 96": far},
)
claim(
    "Of the temperatures, a window of a whole year of days is worse than one of 120.",
    year[1] > year[0],
    **{"°C, orders 120 and 365": year},
)

# %% tags=["fold"]
# @title Recorded errors on the test years
FORECASTS = {
    "autoregression": "autoregression",
    "last season": "seasonal",
    "last value": "last",
    "mean": "mean",
}
PLOTTED = {
    "sunspots": ("sunspots-ar", "months", "sunspots"),
    "temperatures": ("temperatures-ar", "days", "°C"),
}
real_errors = {
    series: (
        step,
        unit,
        {
            shown: ledger.values(name, variant, "mae_by_horizon")[0]
            for shown, variant in FORECASTS.items()
        },
    )
    for series, (name, step, unit) in PLOTTED.items()
}

# %%
figures.real_series(real_errors)

# %% tags=["fold"]
# @title Ahead of all three?
claim(
    "On the test years the autoregression beats all three at every distance, on both series.",
    all(
        own < rival
        for _, _, curves in real_errors.values()
        for name, curve in curves.items()
        if name != "autoregression"
        for own, rival in zip(curves["autoregression"], curve, strict=True)
    ),
)

# %% [markdown]
# ### Exercise 1.1 · Forecast from your own forecasts
#
# Difficulty ●●○○○ · 15 minutes · needs section 3 · *implement*
#
# Continue a series by a linear autoregression, without `autoregression.forecast`. The cell after yours checks it and says what is wrong. Stuck? `ch01.ar_forecast.hint(1)`, then `hint(2)` and `hint(3)`; every exercise has them.


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
# In 1913 A. A. Markov counted vowels and consonants in 20,000 letters of Pushkin's *Eugene Onegin*. Vowels were 43 % of all letters. If letters were independent, how often would a vowel follow a vowel? How often do you expect it? We repeat his count on your Python's documentation.

# %%
letters = train_ids[train_ids > 0]  # without blanks, as Markov counted
vowel = torch.isin(letters, encode("aeiou"))
after_vowel = vowel[1:][vowel[:-1]].double().mean().item()
after_consonant = vowel[1:][~vowel[:-1]].double().mean().item()

# %%
vowels = predict("how often a vowel follows a vowel, in per cent", ...)

# %% tags=["fold", "reveal"]
# @title Vowels after vowels, and after consonants
claim(
    "A vowel is rarer after a vowel than after a consonant, by a factor of more than two: letters are not independent.",
    after_vowel < after_consonant / 2,
    **{
        "share of vowels": vowel.double().mean().item(),
        "after a vowel": after_vowel,
        "after a consonant": after_consonant,
    },
)
vowels.compare("less than half as often as after a consonant")

# %% [markdown]
# In Russian verse Markov counted 13 %.

# %% [markdown]
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
after_a = {after: n for (before, after), n in pairs.items() if before == "a"}
p = {letter: n / sum(after_a.values()) for letter, n in after_a.items()}
print("counts after a:", after_a)
print("divided by their sum:", p, "sum", sum(p.values()))

# %% [markdown]
# The library's model does the same for any $n$. A table of $V^n$ counts would be nearly empty, so it keeps a sorted list of the n-grams that occurred: `keys` number them, and one pass for each length $m = 1, \dots, n$ builds on the pass before. At a first reading, see in it only the counting of pairs above.

# %%
show_source(ngram.NgramModel.fit)

# %%
bigram = ngram.NgramModel(2, V, add=0.0).fit(train_ids)
next_letter = torch.stack([bigram.probs([u]) for u in range(V)])  # row u: p(next | u)
figures.letter_pairs(next_letter, ["·", *ALPHABET[1:]])  # the dot stands for the blank

# %% tags=["fold"]
# @title Rows that sum to 1; u after q
q, u = encode("qu")
claim(
    "Each row sums to 1.", torch.allclose(next_letter.sum(1), torch.ones(V, dtype=next_letter.dtype))
)
claim(
    "After q, the letter u takes most of the probability.",
    bool(next_letter[q, u] > 0.7),
    after_q=next_letter[q, u].item(),
    without_order=iid.probs([])[u].item(),
)

# %% [markdown]
# A model that can score can also **write**: draw a letter from $p(\cdot \mid \text{context})$, append it, repeat. To draw, cut the interval $[0, 1)$ into pieces as long as the probabilities and see into which piece a random number falls:

# %%
show_source(generate.draw)

# %% [markdown]
# Shannon (1948) printed such samples for $n = 1, 2, 3$ and words. How far back must the model look before you can read whole words?

# %% tags=["nbval-ignore-output", "reveal"]
for n in tqdm((1, 2, 3, 5, 7), leave=False):
    model_n = ngram.NgramModel(n, V, interpolate=True).fit(train_ids)
    generator = torch.Generator().manual_seed(5)
    written = generate.generate(model_n, encode("the ")[None], 70, generator)[0]
    print(f"n = {n}:  the {decode(written)}")

# %% [markdown]
# Longer contexts read better and better. Do they also *predict* better, on text they have not seen? For that we need a score.

# %% [markdown]
# ## 6 · Perplexity
#
# Give the model a text it was not trained on and average the surprise for each token, $-\log p$. That mean is the **cross-entropy**, and its exponential the **perplexity** (Jelinek et al., 1977, to compare tasks of speech recognition):
#
# $$\text{nats} = \frac1T \sum_{t=1}^{T} -\log p(x_t \mid x_{<t}), \qquad \text{perplexity} = e^{\text{nats}} = \Big(\prod_{t=1}^{T} p(x_t \mid x_{<t})\Big)^{-1/T}.$$

# %%
show_source(metrics.cross_entropy, metrics.perplexity, metrics.bits)

# %% [markdown]
# What is the perplexity of three models: one that always knows the next token; one that gives the same probability to each of $V = 27$; one that gives probability 0 to a token that then comes?

# %%
targets = torch.tensor([3, 1, 4, 1, 5])
knows = torch.full((5, V), -math.inf).scatter(1, targets[:, None], 0.0)  # certain
uniform = torch.zeros(5, V)
excludes = torch.zeros(5, V)
excludes[2, 4] = -math.inf  # probability 0 for the third target

# %% tags=["fold", "reveal"]
# @title The three cases in numbers
cases = {"always right": knows, "uniform": uniform, "one zero": excludes}
case_nats = {name: metrics.cross_entropy(logits, targets).item() for name, logits in cases.items()}
table(
    ["model", "nats per token", "bits per token", "perplexity"],
    [[name, nats, metrics.bits(nats), metrics.perplexity(nats)] for name, nats in case_nats.items()],
)

# %% [markdown]
# The three cases are worth remembering as marks on a ruler: **1** is perfect, **$V$** is what knowing nothing costs, and a single impossible token costs **infinity**, however good the rest is. A trained model below $V$ has learnt something; one above $V$ is *confidently wrong*.
#
# Perplexity is also an **effective number of choices**: a model with perplexity 8 is as surprised, on average, as one that picks among 8 equally likely tokens. In bits that is $\log_2 8 = 3$: three yes-no questions. And $\text{bits} = \text{nats} / \log 2$. On tokens drawn from $p$ itself the mean surprise tends to the **entropy** of $p$, $-\sum_v p(v) \log p(v)$; its exponential counts the choices in a distribution:

# %%
shapes = {
    "uniform": torch.ones(8),
    "fading": 0.6 ** torch.arange(8),
    "one favourite": torch.tensor([20.0] + [1.0] * 7),
}
distributions = {name: shape / shape.sum() for name, shape in shapes.items()}
choices = {
    name: metrics.perplexity(-(p * p.log()).sum().item())
    for name, p in distributions.items()
}
figures.effective_choices(distributions, choices)

# %% tags=["fold"]
# @title Effective numbers of choices
claim(
    "Only the uniform distribution has as many effective choices as tokens.",
    choices["uniform"] > 7.999 and max(choices["fading"], choices["one favourite"]) < 7,
    **choices,
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
# Now the score can judge the n-grams: with plain counts, what is the perplexity of the trigram model on the held-out tenth of the text?

# %%
trigram = predict("the perplexity of plain trigram counts on held-out text", ...)

# %%
plain = ngram.NgramModel(3, V, add=0.0).fit(train_ids)
surprise = plain.nll(valid_ids)

# %% tags=["fold", "reveal"]
# @title The perplexity, and how many letters decide it
zeros = surprise.isinf().double().mean().item()
claim(
    "Plain trigram counts give the held-out text infinite perplexity, and fewer than 1 letter in 50 did that.",
    metrics.perplexity(surprise.mean().item()) == math.inf and 0 < zeros < 0.02,
    letters_with_probability_0=f"{100 * zeros:.2g} %",
)
trigram.compare(math.inf)

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
show_source(ngram.NgramModel.smooth)

# %% [markdown]
# ### Exercise 1.5 · A smoothed bigram model
#
# Difficulty ●●○○○ · 15 minutes · needs sections 5 and 7 · *implement*
#
# Turn a text into a table of add-$k$ smoothed bigram probabilities, without `ngram.NgramModel`. Every row must be a distribution, also that of a token which never has a successor.


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
# With smoothing, every order gets a finite score. How will the two curves run, bits for each letter against $n$, on the training text and on held-out text? Together?

# %%
settings = {"add 0.1": {"add": 0.1}, "interpolated": {"interpolate": True}}
held_out, seen = {name: [] for name in settings}, {name: [] for name in settings}
for n in tqdm(range(1, 8), leave=False):
    for name, setting in settings.items():
        fitted = ngram.NgramModel(n, V, **setting).fit(train_ids)
        held_out[name].append(metrics.bits(fitted.nll(valid_ids).mean().item()))
        on_seen = fitted.nll(train_ids[: len(valid_ids)]).mean().item()
        seen[name].append(metrics.bits(on_seen))

# %% tags=["reveal"]
figures.two_smoothings(held_out, seen)

# %% tags=["fold", "reveal"]
# @title The best n, and what is lost after it
best_i = min(range(7), key=lambda i: held_out["add 0.1"][i])
new_contexts = (ngram.NgramModel(5, V).fit(train_ids).counts(valid_ids) == 0).double().mean().item()
lost = {name: bits[-1] - min(bits) for name, bits in held_out.items()}
claim(
    "With add-k smoothing the best n for held-out text is neither the shortest nor the longest; on its training text the longest model looks best.",
    0 < best_i < 6 and min(seen["add 0.1"]) == seen["add 0.1"][-1],
    best_n=best_i + 1,
)
claim(
    "At n = 6 its loss has risen again, although fewer than 1 in 5 contexts are new; from its best n to n = 7 interpolation loses less than half of what adding a constant loses.",
    held_out["add 0.1"][5] > held_out["add 0.1"][best_i]
    and new_contexts < 0.2
    and lost["interpolated"] < lost["add 0.1"] / 2,
    new_contexts=f"{100 * new_contexts:.0f} %",
    **{f"bits lost, {name}": bits for name, bits in lost.items()},
)

# %% [markdown]
# Why does add-$k$ lose so much where few contexts are new? A context seen twice gets 2.7 invented counts (0.1 × 27).

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
show_source(ngram.unigram_entropy, ngram.bigram_entropy)

# %% [markdown]
# Both are measured on the text that is to be predicted: each is the loss of the best model of its kind *for that text*. In which order will they stand? Can one token of context make the entropy larger?

# %%
marks = {
    "uniform, log V": math.log(V),
    "unigram entropy": float(ngram.unigram_entropy(valid_ids)),
    "bigram entropy": float(ngram.bigram_entropy(valid_ids)),
}

# %% tags=["fold", "reveal"]
# @title The marks of this text, in nats per letter
claim(
    "Each mark lies below the one before: on average, knowing more cannot hurt.",
    marks["bigram entropy"] < marks["unigram entropy"] < marks["uniform, log V"],
    **marks,
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
show_source(ngram.WindowLM)

# %% [markdown]
# What does looking further back cost now? A table of counts has a row for each of the $V^{n}$ contexts; the network pays $DF$ weights for each further token.


# %% tags=["fold"]
# @title Sizes: a table of counts, and the network
def parameters(model):
    """Number of trainable numbers."""
    return sum(p.numel() for p in model.parameters())


table(
    [
        "tokens of context",
        "numbers in a table of counts",
        "parameters of the network (D = 24, F = 96)",
    ],
    [[n, V ** (n + 1), parameters(ngram.WindowLM(V, n, 24, 96))] for n in (1, 2, 4, 7)],
)

# %% [markdown]
# What will the loss be before the first update? And at the end: above or below the bigram entropy? The network is trained on stretches of 64 letters; the targets are the inputs shifted by one, and every position counts in the loss:

# %%
show_source(train.language_model_loss)


# %%
def windows(ids, batch, length, generator):
    """Random stretches: inputs (B, T) and targets (B, T), the inputs shifted by one."""
    starts = torch.randint(len(ids) - length, (batch, 1), generator=generator)
    stretch = ids[starts + torch.arange(length + 1)]
    return stretch[:, :-1], stretch[:, 1:]


CONTEXT, ROUNDS, STEPS = 7, run_size.pick(20, 200), 25
held_out_batches = [
    windows(valid_ids, 64, 64, torch.Generator().manual_seed(i)) for i in range(4)
]


def stretches(epoch):
    """The batches of one round, drawn afresh."""
    generator = torch.Generator().manual_seed(epoch)
    return (windows(train_ids, 32, 64, generator) for _ in range(STEPS))

# %%
train.set_seed(1)
net = ngram.WindowLM(V, CONTEXT, 24, 96)
start = train.evaluate(net, held_out_batches, train.language_model_loss)["loss"]
history = train.fit(
    net.to(run_size.pick("cpu", device.pick_device())),
    stretches,
    train.language_model_loss,
    torch.optim.AdamW(net.parameters(), lr=4e-3),
    epochs=ROUNDS,
    valid_batches=held_out_batches,
)
net.cpu()
losses = [start] + [epoch["valid_loss"] for epoch in history]

# %% tags=["reveal"]
figures.loss_and_marks([STEPS * i for i in range(ROUNDS + 1)], losses, marks)

# %% tags=["fold", "reveal"]
# @title Its first loss and its last
claim(
    "Before training the network knows as much as a uniform guess.",
    abs(start - math.log(V)) < 0.15,
    loss=f"{start:.3g} nats",
    uniform_guess=f"{math.log(V):.3g} nats",
)
claim(
    "It ends below the bigram entropy, so it uses more than one letter of context.",
    losses[-1] < marks["bigram entropy"],
    loss=f"{losses[-1]:.3g} nats",
    bigram_entropy=f"{marks['bigram entropy']:.3g} nats",
)

# %% [markdown]
# A start far from $\log V$ is a bug or a bad initialisation: with vocabulary 27 the first loss must be near 3.3 nats, and you can say so before you run anything.
#
# ### The bound
#
# Whatever the training, the network cannot use what lies before its window. We change one letter and watch the prediction many positions later.

# %%
sequence = valid_ids[:40][None]
effect = []
with torch.no_grad():
    reference = net(sequence)[0, -1]
    for distance in range(16):
        changed = sequence.clone()
        changed[0, -1 - distance] = (changed[0, -1 - distance] + 7) % V
        effect.append((net(changed)[0, -1] - reference).abs().max().item())
figures.reach_of_a_window(effect, CONTEXT)

# %% tags=["fold"]
# @title Inside the window and beyond
claim(
    "Every letter in the window counts, and none beyond it.",
    min(effect[:CONTEXT]) > 0 and max(effect[CONTEXT:]) == 0.0,
)

# %% [markdown]
# Does that matter? In the task below, the answer is the token seen `lag` steps before a question mark, and the tokens between are noise.
# The lag is 6, and there are five possible answers. How often will a window of 4 tokens be right, and one of 8?

# %%
def recall_accuracy(window, lag, answers=5, steps=150):
    """Train a window network to answer at the end; accuracy on fresh sequences."""
    train.set_seed(0)
    model = ngram.WindowLM(answers + 1, window, 16, 64)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in tqdm(range(steps), leave=False):
        x, y = synthetic.recall_task(64, lag, answers + 1, generator)
        loss = torch.nn.functional.cross_entropy(model(x)[:, -1], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = synthetic.recall_task(1000, lag, answers + 1, generator)
    return (model(x)[:, -1].argmax(1) == y).double().mean().item()

# %%
recalled = predict("the accuracies of the windows of 4 and of 8, in per cent", ...)

# %% tags=["fold", "reveal"]
# @title Windows of 4 and of 8 tokens
accuracy = {window: recall_accuracy(window, lag=6) for window in (4, 8)}
claim(
    "A window that reaches the answer learns the task; one that does not reach it guesses, one in five.",
    accuracy[8] > 0.95 and abs(accuracy[4] - 0.2) < 0.06,
    **{f"window of {window}": value for window, value in accuracy.items()},
)
recalled.compare("near 20 and near 100 %")

# %% [markdown]
# Text is full of such lags: a name in the first line of a page, a bracket to be closed, "the **keys** that he had left on the table **were**". Widening the window helps until the next longer lag. A memory without a fixed reach is what chapter 03 is about.
#
# ### A result too good to be true
#
# A colleague "improves" the network with one word: `padding="same"`, a well-known option of convolutions. Nothing else changes.


# %%
class SameLM(ngram.WindowLM):
    """The window network with the padding that image models use."""

    def features(self, ids):
        x = self.embedding(ids).transpose(1, 2)  # (B, D, T)
        weight, bias = self.conv.weight, self.conv.bias
        x = torch.nn.functional.conv1d(x, weight, bias, padding="same")
        return x.relu().transpose(1, 2)

# %% tags=["fold"]
# @title Train it for four rounds, as the network above
train.set_seed(1)
same_net = SameLM(V, CONTEXT, 24, 96)
train.fit(
    same_net.to(run_size.pick("cpu", device.pick_device())),
    stretches,
    train.language_model_loss,
    torch.optim.AdamW(same_net.parameters(), lr=4e-3),
    epochs=4,
)
same_net.cpu()
same_loss = train.evaluate(same_net, held_out_batches, train.language_model_loss)["loss"]
claim(
    "After four rounds of training its held-out perplexity is almost 1.",
    metrics.perplexity(same_loss) < 1.5,
    perplexity=metrics.perplexity(same_loss),
    honest_network=metrics.perplexity(losses[-1]),
)

# %% [markdown]
# Held-out text, so it is not over-fitting. What is it? Let both networks *write*: there the future does not exist yet.

# %% tags=["nbval-ignore-output"]
for name, network in (("honest", net), ("same", same_net)):
    generator = torch.Generator().manual_seed(3)
    written = generate.generate(network, encode("return the ")[None], 70, generator)[0]
    print(f"{name:>6}:  return the {decode(written)}")

# %%
def sees_future(model):
    """Does the output at position 9 change when only positions 10 and later do?"""
    a = valid_ids[:20][None]
    b = torch.cat([a[:, :10], (a[:, 10:] + 1) % V], dim=1)
    return not torch.allclose(model(a)[:, 9], model(b)[:, 9])

# %% tags=["fold"]
# @title Which of the two sees the future?
claim(
    "The network with same padding sees the future; the library's does not.",
    sees_future(same_net) and not sees_future(net),
)

# %% [markdown]
# `same` padding puts half of the zeros after the text, so 3 of the 7 letters in each window lie in the future, and the target is the very next token: the network reads the answer off its input. A held-out set does not catch this. Two things do: **change the future and see whether the past moves**, and **generate**.
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
    "no order (n = 1)": held_out["interpolated"][0],
    "1 letter (n = 2)": held_out["interpolated"][1],
    "2 letters (n = 3)": held_out["interpolated"][2],
    "best n-gram": min(held_out["interpolated"]),
    "window network": metrics.bits(min(losses)),
}
figures.worth_of_order(ladder)

# %% tags=["fold"]
# @title Halved, and by whom
claim(
    "Knowing the order halves the cost of a letter, or nearly so.",
    ladder["best n-gram"] < 0.6 * ladder["no order (n = 1)"],
    **{"bits without order": ladder["no order (n = 1)"], "with": ladder["best n-gram"]},
)
claim(
    "On this text the best n-gram beats the network.",
    ladder["best n-gram"] < ladder["window network"],
    **{"bits, n-gram": ladder["best n-gram"], "network": ladder["window network"]},
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
# WikiText-2 has 33,278 different words. What fraction of the 5-grams in its test text never occurred in two million words of training text? And which model will win there?

# %%
never_seen = predict("how many 5-grams of the test text are new, in per cent", ...)

# %% tags=["fold"]
# @title Recorded scores on both texts
TEXTS = {
    "Shakespeare, characters": ("shakespeare-lm", range(1, 8)),
    "WikiText-2, words": ("wikitext2-lm", range(1, 6)),
}
recorded_bits = {
    title: {
        kind: [recorded(name, f"{n}-gram {kind}", "bits") for n in orders]
        for kind in ("add-k", "interpolated")
    }
    for title, (name, orders) in TEXTS.items()
}
network_bits = {
    title: recorded(name, "window network", "bits") for title, (name, _) in TEXTS.items()
}

# %% tags=["reveal"]
figures.two_texts(recorded_bits, network_bits)

# %% tags=["fold", "reveal"]
# @title WikiText-2, test text: the models in a table
WORD_MODELS = [f"{n}-gram interpolated" for n in range(1, 6)] + ["window network"]
table(
    ["WikiText-2, test", "perplexity", "bits per word", "counts or weights"],
    [
        [
            v,
            *(recorded("wikitext2-lm", v, m) for m in ("perplexity", "bits")),
            f"{recorded('wikitext2-lm', v, 'parameters'):,.0f}",
        ]
        for v in WORD_MODELS
    ],
)
of_words = {
    v: recorded("wikitext2-lm", v, "perplexity")
    for v in ("2-gram add-k", "3-gram add-k", "window network", "bigram entropy")
}
counting = min(
    recorded("wikitext2-lm", f"{n}-gram {kind}", "perplexity")
    for n in range(1, 6)
    for kind in ("add-k", "interpolated")
)
new_5_grams = recorded("wikitext2-lm", "5-gram interpolated", "unseen")
claim(
    "On words the network with its window of four beats every n-gram up to five.",
    of_words["window network"] < counting,
    **{"perplexity of the network": of_words["window network"], "of the best n-gram": counting},
)
claim(
    "Nine in ten 5-grams of the test text never occurred in the training text; with add-k, two words of context are worse than one, by more than a factor of two.",
    new_5_grams > 0.9 and of_words["3-gram add-k"] > 2 * of_words["2-gram add-k"],
    **{
        "new 5-grams": f"{100 * new_5_grams:.0f} %",
        "perplexity with one word": of_words["2-gram add-k"],
        "with two": of_words["3-gram add-k"],
    },
)
never_seen.compare("more than 90 %")

# %% [markdown]
# And the bigram entropy of the same test text, the mark of section 8? It is far below every one of these models, and that is a warning. An entropy that was *counted on the text itself* has seen the answers. With 27 symbols that matters little; with 33,278 words most pairs occur once, and their own count "predicts" them. It is a mark to know, not a goal.

# %% tags=["fold"]
# @title The bigram entropy, on words and on letters
own_pairs = metrics.bits(marks["bigram entropy"])
claim(
    "On words its perplexity is less than a quarter of the network's, which no n-gram beats.",
    of_words["bigram entropy"] < of_words["window network"] / 4
    and of_words["window network"] < counting,
    **{"perplexity, entropy": of_words["bigram entropy"], "network": of_words["window network"]},
)
claim(
    "With 27 symbols, the held-out text's own pairs predict it less than a tenth better than the training text's pairs.",
    0.9 * held_out["interpolated"][1] < own_pairs < held_out["interpolated"][1],
    **{"bits by its own pairs": own_pairs, "by training pairs": held_out["interpolated"][1]},
)

# %% tags=["fold"]
# @title Shakespeare's characters
counted = {n: recorded("shakespeare-lm", f"{n}-gram interpolated", "nats") for n in range(1, 8)}
best_n = min(counted, key=counted.get)
learnt = recorded("shakespeare-lm", "window network", "nats")
n_gram_size, network_size = (
    recorded("shakespeare-lm", v, "parameters")
    for v in (f"{best_n}-gram interpolated", "window network")
)
claim(
    "On characters the best n-gram and the network end within a tenth of a nat, and the network has fewer weights than the n-gram model has counts.",
    abs(counted[best_n] - learnt) < 0.1 and network_size < n_gram_size,
    best_n=best_n,
    **{"nats, n-gram": counted[best_n], "network": learnt},
    counts=n_gram_size,
    weights=network_size,
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
random_walk = torch.Generator().manual_seed(0)
walk = torch.randn(600, generator=random_walk, dtype=torch.float64).cumsum(0)


def copy_nearest(known, asked):
    """Mean absolute error of copying, for each day asked, the nearest known day."""
    nearest = known[(asked[:, None] - known[None]).abs().argmin(1)]
    return (walk[nearest] - walk[asked]).abs().mean().item()


days = torch.randperm(600, generator=torch.Generator().manual_seed(1))
at_random = copy_nearest(known=days[:480], asked=days[480:])
in_order = copy_nearest(known=torch.arange(480), asked=torch.arange(480, 600))

# %% tags=["fold"]
# @title Asked at random, and asked for the future
claim(
    "Split at random, copying the nearest day looks excellent; asked for the future, it is far worse.",
    in_order > 4 * at_random,
    **{"error at random": at_random, "in order": in_order},
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

# %% tags=["fold"]
# @title Four ways to average, one of them right
table(
    ["how", "perplexity"],
    [
        [
            "mean of the sentences' perplexities (wrong)",
            metrics.perplexity(sentence_means).mean().item(),
        ],
        [
            "exponential of the sentences' mean nats (wrong)",
            metrics.perplexity(sentence_means.mean()).item(),
        ],
        ["padding counted as well predicted (wrong)", metrics.perplexity(nll.mean()).item()],
        ["per token, padding left out (right)", metrics.perplexity(nll[mask].mean()).item()],
    ],
)

# %% [markdown]
# One short sentence out of two decides the first two; the padding flatters the third. **Repair:** add nats over *all real tokens*, divide once by their number, take the exponential last. A mean over batches of unequal size goes wrong in the same way, which is why `train.evaluate` adds sums.
#
# ### Comparing perplexities over different units
#
# A letter bigram model has a perplexity near 10, a word unigram model one of hundreds. Which is the better model of the same text?

# %% tags=["fold", "reveal"]
# @title Letters against words: by perplexity
train_words, valid_words = (decode(ids.tolist()).split() for ids in (train_ids, valid_ids))
vocabulary = sorted({*train_words, *valid_words})  # closed: no word is unknown


def word_perplexity(known):
    """Perplexity of a word unigram model in which all words outside `known` are one token."""
    ids = {word: i for i, word in enumerate(sorted(known))}
    learned, asked = (
        torch.tensor([ids.get(word, len(ids)) for word in words])
        for words in (train_words, valid_words)
    )
    model = ngram.NgramModel(1, len(ids) + 1, add=0.5).fit(learned)
    return metrics.perplexity(model.nll(asked).mean().item())


words_all = word_perplexity(vocabulary)
letters_per_word = len(valid_ids) / len(valid_words)  # blank included
word_bits = math.log2(words_all) / letters_per_word  # per letter
claim(
    "By perplexity the letter model looks far better.",
    2 ** held_out["interpolated"][1] < words_all / 10,
    **{"perplexity, letters": 2 ** held_out["interpolated"][1], "words": words_all},
)
claim(
    "In bits per letter the word model is better, here even than the best letter n-gram.",
    word_bits < min(held_out["interpolated"]),
    **{
        "bits per letter, letter bigram": held_out["interpolated"][1],
        "best letter n-gram": min(held_out["interpolated"]),
        "words": word_bits,
    },
)

# %% [markdown]
# A choice among thousands of words says more than one among 27 letters. **Repair:** convert to a unit of the text itself: bits per letter, per byte. The word model has an advantage that no conversion removes: its vocabulary was made from the test words too. That is one reason why it beats even the best letter n-gram of section 7 here.
# Which leads to the cheapest trick of all. What happens to the perplexity if all words but the 50 most frequent become one token, `<unk>`?

# %% tags=["fold", "reveal"]
# @title A vocabulary of 50 words
words_50 = word_perplexity([word for word, _ in Counter(train_words).most_common(50)])
claim(
    "A vocabulary of 50 words and `<unk>` makes the perplexity many times smaller, with no better model.",
    words_50 < words_all / 5,
    **{"perplexity with 50": words_50, "with all": words_all},
)

# %% [markdown]
# Predicting "some rare word" is easy and says little. **Repair:** state the vocabulary and the rate of `<unk>` beside every perplexity, and compare only models with the same of both.
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
    """Held-out bits for n = 1 to 7, of models of so many training letters."""
    bits = []
    for n in tqdm(range(1, 8), leave=False):
        fitted = ngram.NgramModel(n, V, **smoothing).fit(train_ids[-letters:])
        bits.append(round(metrics.bits(fitted.nll(valid_ids).mean().item()), 3))
    return bits


few, many = bits_by_n(3_000, add=0.1), bits_by_n(len(train_ids), add=0.1)

# %% tags=["fold"]
# @title Little text and all of it
claim(
    "The best context is longer when there is more text.",
    few.index(min(few)) < many.index(min(many)),
    **{"bits for n = 1 to 7, 3,000 letters": few, "all letters": many},
)
seven_gram = ngram.NgramModel(7, V).fit(train_ids)
gap = metrics.bits(history[-1]["valid_loss"] - history[-1]["train_loss"])
gap_of_counts = held_out["add 0.1"][-1] - seen["add 0.1"][-1]
claim(
    "Between training and held-out text the network loses less than half of what the add-0.1 7-gram loses.",
    gap < gap_of_counts / 2,
    **{"bits lost, network": gap, "7-gram": gap_of_counts},
    counts_stored=sum(seven_gram.num_ngrams),
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
