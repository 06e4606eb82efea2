# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 200
#     needs: chapters 04, 07 and 09
# ---

# %% [markdown]
# # 10 · What it costs
#
# Two lecture notes print the same table and disagree in one entry: how many parameters has a self-attention layer of width $d$ on a sequence of length $T$?
# The first says $T^2 d$, the second $d^2$. **Which one is right, and what is the other one?** Vote, then let the layer
# decide: take the same layer to ever longer sequences and count what it has and what it does.

# %% tags=["setup"]
import math

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib import cost, diagrams, ledger, plots
from course_lib.attention import MultiHeadAttention, attention
from course_lib.checks import ch10
from course_lib.claims import claim
from course_lib.cost import CausalCNN
from course_lib.display import markdown, show, show_source, table
from course_lib.gated import LSTM
from course_lib.positions import Learned
from course_lib.rnn import RNN
from course_lib.tasks import number_of_parameters
from course_lib.transformer import EncoderLayer, TransformerClassifier, TransformerEncoder

_ = torch.manual_seed(0)

# %%
d = 64
layer = MultiHeadAttention(d, 4)
rows = []
for T in (16, 64, 256):
    x = torch.randn(1, T, d)
    operations = cost.count_operations(layer, x, impl="math")
    scores_and_values = cost.count_operations(lambda q: attention(q, q, q, impl="math"), x)
    rows.append([T, number_of_parameters(layer), operations, scores_and_values])
table(
    ["T", "parameters", "operations", "of which scores and weighted mean"],
    [[f"{number:,}" for number in row] for row in rows],
)
claim(
    "The parameters do not know T: 4 d^2 weights and 4 d biases at every length",
    all(row[1] == 4 * d**2 + 4 * d for row in rows),
)
claim(
    "T^2 d is an operation count: scores and weighted mean take exactly 4 T^2 d",
    all(row[3] == 4 * row[0] ** 2 * d for row in rows),
)

# %% [markdown]
# So $d^2$ is right for the parameters, and $T^2 d$ stands in the wrong column: it counts *operations*. The mistake is easy to make, because
# attention has two kinds of matrices. One kind is learned and has the size of a vector; the other is computed and
# has the size of the sequence. (From the wrong entry one would conclude that the parameters are few only while $T < \sqrt d$. They are what they are at any T.) This chapter takes every entry of that table, derives it, and then measures it on a layer that runs.
#
# ## You will be able to
#
# 1. count the operations of an attention layer and check the count against torch's own (exercises 10.1, 10.3);
# 2. say from which length attention costs more than a recurrent layer, in operations and in seconds (exercise 10.2);
# 3. count the parameters of a whole Transformer by hand (exercise 10.4);
# 4. measure what a position depends on, and so how far a gradient can reach (exercise 10.5);
# 5. decide, with numbers, when an RNN is still the better choice (exercise 10.6).
#
# `B` sequences, `T` positions (`S` for keys that come from elsewhere), width `D`, `H` heads of width `K = D / H`, feed-forward width `F`, `N` layers, a
# convolution's kernel `k`. Papers write $n$ for our `T`, and $d$ or $d_{model}$ for `D`.

# %%
diagrams.show("two_kinds_of_matrices")

# %% [markdown]
# ## 1 · The table, derived
#
# Three layers turn T vectors into T vectors of the same width D. Five questions to each: how many numbers does it *learn*, how many operations does it *do*, how much must it
# *remember* for the backward pass, how many operations must *wait* for one another, and how *far* is it from the first input to the last output? **Predict:** for which layer does which of the five grow with T, and for which faster than T?
#
# **RNN.** One step multiplies a vector of D numbers by $W_{ih}$ and one by $W_{hh}$, D × D both: $2D^2$ multiplications, each with an addition. T steps
# do it with the same weights. Each step waits for the state of the one before: T sequential steps, and the first input passes T products before it is in the last state.
#
# **CNN.** A causal convolution with kernel k computes each output from k inputs: k matrices of D × D. No output needs another
# output of the same layer, so a layer is **one** sequential step, whatever T is. But it sees k places only. To bring the first of T inputs to the last output, layers must be stacked.
#
# **Self-attention.** T queries times T keys are $T^2$ scores, each a dot product of D numbers (all heads together), and the weighted mean of the values costs the same again.
# Everything at once, and every input one product away from every output.

# %%
diagrams.show("path_length")

# %% [markdown]
# In the notation that forgets constants (Vaswani et al. 2017, table 1, with the parameters added):
#
# | layer | parameters | operations | sequential steps | path length |
# |---|---|---|---|---|
# | RNN | $D^2$ | $T D^2$ | $T$ | $T$ |
# | CNN, one layer | $k D^2$ | $k T D^2$ | $1$ | (sees k places) |
# | CNN, stacked until it sees T | $k D^2 \cdot T/k$ | $k T D^2 \cdot T/k$ | $T/k$ | $T/k$ |
# | CNN, dilated until it sees T | $k D^2 \log_k T$ | $k T D^2 \log_k T$ | $\log_k T$ | $\log_k T$ |
# | self-attention (with projections) | $D^2$ | $T^2 D$ (and $T D^2$) | $1$ | $1$ |
#
# You may meet this table with sequential steps $T$ and path $T$ for the CNN, with the reason that overlapping kernels would have to wait for one another. They overlap in what they *read*; none reads what another of
# its layer *writes*, so a convolution over any T is one step. What grows with T is the number of *layers*: with kernel k, $\lceil (T-1)/(k-1) \rceil$ of them, or $\lceil \log_k T \rceil$ if layer n = 0, 1, … takes every $k^n$-th place only (WaveNet's dilation).

# %%
show_source(cost.rnn, cost._recurrent, cost.cnn, cost.attention)

# %% [markdown]
# Here are the constants. `operations` counts a multiplication and its addition as **2**, as torch does and as most papers since 2020 do; Vaswani's table writes "$T D^2$" for our $4 B T D^2$. `activations` are numbers kept for the backward pass. We come to them in section 6.
#
# ## 2 · ... and then measured
#
# A formula is a promise. Each of the five columns can be read off a running layer, by code that knows nothing of the formula:
#
# - **operations:** torch's `FlopCounterMode` watches every matrix product and convolution go by and multiplies their sizes (sums, softmax and norms do not count, here and in the formulas);
# - **activations:** a hook on every tensor that autograd saves;
# - **sequential steps:** the longest chain of matrix products in autograd's graph;
# - **path length:** the fewest products from the first input to the last output. The trick: shrink the gradient by a factor $\varepsilon$ at every product it passes; what arrives is $\approx c\,\varepsilon^n$, and n is the shortest path.

# %%
show_source(cost.measure, cost.sequential_steps, cost.path_length)

# %%
B, T, D, k = 2, 27, 16, 3
x = torch.randn(B, T, D)
covering = cost.layers_to_cover(T, k), cost.layers_to_cover(T, k, dilated=True)
torch.manual_seed(0)
stack, dilated = CausalCNN(D, k, covering[0]), CausalCNN(D, k, covering[1], dilated=True)
for conv in [*stack.layers, *dilated.layers]:
    nn.init.constant_(
        conv.bias, 3.0
    )  # no ReLU closes: nothing is lost on the way but by the window
pairs = {
    "RNN": (cost.rnn(B, T, D), cost.measure(RNN(D, D), x, impl="loop")),
    "LSTM": (cost.lstm(B, T, D), cost.measure(LSTM(D, D), x, impl="loop")),
    "CNN, 1 layer": (cost.cnn(B, T, D, k), cost.measure(CausalCNN(D, k), x)),
    f"CNN, {covering[0]} layers": (cost.cnn(B, T, D, k, covering[0]), cost.measure(stack, x)),
    f"CNN, {covering[1]} layers, dilated": (
        cost.cnn(B, T, D, k, covering[1], dilated=True),
        cost.measure(dilated, x),
    ),
    "attention, bare": (
        cost.attention(B, T, D),
        cost.measure(lambda q: attention(q, q, q, impl="math"), x),
    ),
    "attention, 4 heads": (
        cost.multi_head(B, T, D, 4),
        cost.measure(MultiHeadAttention(D, 4), x, impl="math"),
    ),
}
table(
    ["layer (formula / measured)", *cost.Cost._fields],
    [
        [
            name,
            *(
                f"{a:,} / {b:,}" if a is not None else f"{a} / {b}"
                for a, b in zip(*both, strict=True)
            ),
        ]
        for name, both in pairs.items()
    ],
)
claim(
    "Formula and measurement agree in every column of every layer, to the last digit",
    all(formula == measured for formula, measured in pairs.values()),
)
claim(
    "27 steps: a stack of kernel 3 needs 13 layers, a dilated one 3, the RNN 27 products, bare attention 1",
    [both[1].path for name, both in pairs.items() if name not in ("LSTM", "attention, 4 heads")]
    == [27, None, 13, 3, 1],
)

# %% [markdown]
# Two entries deserve a second look. The **multi-head layer's** path is 3: value projection, weighted mean, output projection. It is a constant, and that is all that matters. And the **LSTM's** path
# is 1, though it takes T sequential steps! Once an input is in the cell, the additive update carries it on, past gates but through no further matrix: chapter 05's shortcut, seen from outside. The GRU's is 1 too. So "path length T" is a statement about the plain RNN.
# In a gated network the gates still multiply the signal entry by entry at each step, by numbers below 1, as section 5 will show.
#
# **Count before you trust a counter.** What does it say of the fast paths?

# %%
lstm, attending = LSTM(D, D), MultiHeadAttention(D, 4)
counted = {}
for name, run in {
    "attention, math": lambda: attending(x, impl="math"),
    "attention, sdpa": lambda: attending(x, impl="sdpa"),
    "LSTM, loop": lambda: lstm(x, impl="loop"),
    "LSTM, fused": lambda: lstm(x, impl="fused"),
}.items():
    with FlopCounterMode(display=False) as counter:
        run()
    counted[name] = counter.get_total_flops()

# %% tags=["nbval-ignore-output"]
table(
    ["path", "operations that the counter saw"], [[name, f"{n:,}"] for name, n in counted.items()]
)

# %% [markdown]
# The fast paths do the same products, inside kernels for which the counter (on a CPU) has no formula: what it does not know, it counts as 0, without a word (of the attention only the projections are left). That
# is why `cost.measure` refuses such a run, and why one counts on the `math` and `loop` paths and times the fast ones. With a causal mask the products of whole matrices compute the masked half too; a kernel may skip it.

# %%
try:
    cost.measure(attending, x)
except ValueError as error:
    print(error)

# %% [markdown]
# ### Exercise 10.1 · Implement: the operations of self-attention
#
# Difficulty ●●○○○ · 15 minutes · needs sections 1 and 2
#
# Count the operations of a whole multi-head self-attention (three projections, scores, weighted mean, output projection) from its sizes. Without torch's counter and without `cost`, do what the counter does: go from product to product and add up. The check compares with torch's counter at several sizes.


# %% nbgrader={"grade": false, "grade_id": "ex10-1-attention-operations", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attention_operations(B, T, D, H):
    """Operations of the matrix products of multi-head self-attention; a multiplication with its addition is 2.

    Args:
        B: batch.
        T: positions.
        D: width of input and output.
        H: heads, each of width D / H.

    Returns:
        int.
    """
    ### BEGIN SOLUTION

    def product(rows, inner, columns):
        return 2 * rows * inner * columns

    K = D // H
    projections = 4 * product(B * T, D, D)  # queries, keys, values, output
    scores = B * H * product(T, K, T)
    weighted_mean = B * H * product(T, T, K)
    return projections + scores + weighted_mean
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex10-1-attention-operations-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch10.attention_operations(attention_operations)

# %% [markdown]
# ## 3 · Where T = D stands, and where it does not
#
# $T^2 D$ against $T D^2$: they are equal at $T = D$. So attention has fewer operations than an RNN while the sequence is shorter than the width, as one often reads. **Predict:** does it survive once constants and projections are counted? For which T has a real multi-head layer fewer operations than an RNN of the same width? Than a GRU, than an LSTM?


# %%
def crossover(attention_like, other, D, longest=20):
    """First T, up to so many times D, at which the left formula has more operations; None if there is none."""
    return next(
        (T for T in range(1, longest * D + 1) if attention_like(T) > other(T)),
        None,
    )


D, H = 128, 4


def bare(T):
    return cost.attention(1, T, D, H).operations


def whole(T):
    return cost.multi_head(1, T, D, H).operations


others = {
    "RNN": lambda T: cost.rnn(1, T, D).operations,
    "GRU": lambda T: cost.gru(1, T, D).operations,
    "LSTM": lambda T: cost.lstm(1, T, D).operations,
    "CNN, kernel 3": lambda T: cost.cnn(1, T, D, 3).operations,
    "CNN, kernel 9": lambda T: cost.cnn(1, T, D, 9).operations,
}
found = {
    name: [crossover(left, other, D) for left in (bare, whole)] for name, other in others.items()
}
table(
    [f"D = {D}: more operations than", "bare attention from T =", "multi-head from T ="],
    [[name, *row] for name, row in found.items()],
)
every = range(1, 20 * D + 1)
claim(
    "Bare attention has fewer operations than the RNN below T = D, as many at T = D, more above",
    all((bare(T) > others["RNN"](T)) == (T > D) for T in every) and bare(D) == others["RNN"](D),
)
claim(
    "With its projections, attention has more operations than the RNN at every T",
    all(whole(T) > others["RNN"](T) for T in every),
)
claim(
    "With its projections, it crosses the GRU after T = D and the LSTM after T = 2 D",
    (found["GRU"][1], found["LSTM"][1]) == (D + 1, 2 * D + 1),
)

# %% [markdown]
# The famous crossover belongs to a comparison of the *bare* products with an RNN (two D × D products a step: $4TD^2$ against $4T^2D$). The projections alone cost as much as two RNNs, $8TD^2$. So you will find both "fewer operations
# than an RNN" and "more operations than an RNN" in print: it depends on what is counted, on the kind of RNN, and on T. What T = D does tell is *where the quadratic part begins to matter*. In a whole encoder layer with F = 4D:
#
# $$ \text{operations} = \underbrace{8BTD^2}_{\text{projections}} + \underbrace{4BT^2D}_{\text{scores, means}} + \underbrace{16BTD^2}_{\text{feed-forward}}, \qquad
#    \text{quadratic share} = \frac{T}{6D + T}. $$

# %%
D, H = 256, 8
lengths = [2**n for n in range(4, 14)]
quadratic = [
    cost.attention(1, T, D, H).operations / cost.encoder_layer(1, T, D, H, 4 * D).operations
    for T in lengths
]
ax = plots.lines(
    plots.axes(height=3.0),
    {
        "scores and weighted mean": (lengths, [100 * q for q in quadratic]),
        "projections": (lengths, [100 * (1 - q) / 3 for q in quadratic]),
        "feed-forward": (lengths, [100 * (1 - q) * 2 / 3 for q in quadratic]),
    },
    "length T (positions, log scale)",
    "share of the operations (%)",
    colors={
        "scores and weighted mean": "attention",
        "projections": "weight",
        "feed-forward": "hidden",
    },
    marker="o",
    markersize=4,
)
ax.set_xscale("log", base=2)
ax.set_ylim(0, 108)
ax.legend(loc="upper left")
ax.axvline(D, color=plots.COLORS["muted"], linestyle=":")
ax.annotate("T = D", (D, 98), xytext=(4, 0), textcoords="offset points", fontsize=9)
ax.axvline(6 * D, color=plots.COLORS["muted"], linestyle=":")
ax.annotate("T = 6 D", (6 * D, 98), xytext=(4, 0), textcoords="offset points", fontsize=9)
show(
    ax,
    alt="Shares of an encoder layer's operations against T from 16 to 8192 at D = 256. The quadratic part is near 0 at the left, 14 % at T = D, "
    "50 % at T = 6 D and 84 % at the right; feed-forward and projections fall, always two to one.",
    caption="Which part of an encoder layer does the work (D = 256, F = 4D)? Up to T = 4D mostly the feed-forward network, beyond it the quadratic part, which reaches a half at T = 6D.",
)
claim(
    "At T = D the quadratic part is one seventh of the layer",
    abs(quadratic[lengths.index(D)] - 1 / 7) < 1e-12,
)

# %% [markdown]
# Kaplan et al. (2020, section 2.1) draw the useful conclusion: leave the quadratic part out. A layer has about $12 D^2$ parameters (F = 4D), and each weight is used once per token, one multiplication
# and one addition: **a forward pass costs 2 operations per parameter and token**, as long as T is well below 12 D (they count the scores alone, and so find 12 where we, with the weighted mean, find 6). The backward pass costs twice that, so training costs 6.
#
# **Parameters do not depend on T**, but what a model *contains* may: a learned table of positions has a row for each.

# %%
D, H, F = 32, 2, 128
body = [
    number_of_parameters(
        TransformerClassifier(1000, TransformerEncoder([EncoderLayer(D, H, F)]), position=position)
    )
    for position in (None, Learned(200, D), Learned(400, D))
]
table(
    ["positions", "parameters of the classifier"],
    [
        ["none, or any scheme without weights", f"{body[0]:,}"],
        ["learned, up to 200", f"{body[1]:,}"],
        ["learned, up to 400", f"{body[2]:,}"],
    ],
)
claim(
    "A learned table adds D parameters for each position it can hold",
    (body[1] - body[0], body[2] - body[1]) == (200 * D, 200 * D),
)

# %% [markdown]
# ### Exercise 10.2 · Derive: three crossovers
#
# Difficulty ●●○○○ · 15 minutes · needs section 3
#
# D = 512. With pencil and paper, and with all projections and the factor 2 counted, at which T are these equal?
# (a) A multi-head attention and a GRU of the same width (three times an RNN's products). (b) *Within* a multi-head attention: the quadratic part (scores and weighted mean) and the four projections.
# (c) Within an encoder layer with F = 2D (not 4D!): the quadratic part, and all the rest.

# %% nbgrader={"grade": false, "grade_id": "ex10-2-crossovers", "locked": false, "schema_version": 3, "solution": true, "task": false}
lengths_of_equality = ...  # (a, b, c)
### BEGIN SOLUTION
# (a) 8 T D^2 + 4 T^2 D = 12 T D^2: T = D.  (b) 4 T^2 D = 8 T D^2: T = 2 D.
# (c) 4 T^2 D = 8 T D^2 + 4 T D F = 16 T D^2: T = 4 D.
lengths_of_equality = (512, 1024, 2048)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex10-2-crossovers-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch10.crossovers(lengths_of_equality)

# %% [markdown]
# ### Exercise 10.3 · Find the bugs: the operations of a layer with cross-attention
#
# Difficulty ●●●○○ · 20 minutes · needs section 3
#
# A colleague counts the operations of an attention from T queries to S keys, followed by a feed-forward network. The count is wrong in **three** places; each hides when T = S, or H = 1, or when only a ratio is looked at. Repair it, without torch's counter and without `cost`.
#
# ```python
# projections = 4 * (2 * B * T * D * D)
# scores_and_mean = 2 * (2 * B * H * T * S * D)
# feed_forward = 2 * (B * T * D * F)
# return projections + scores_and_mean + feed_forward
# ```


# %% nbgrader={"grade": false, "grade_id": "ex10-3-cross-operations", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cross_operations(B, T, S, D, H, F):
    """Operations of a multi-head cross-attention and a feed-forward network; a multiplication with its addition is 2.

    Args:
        B: batch.
        T: queries.
        S: keys and values.
        D: width.
        H: heads.
        F: hidden width of the feed-forward network.

    Returns:
        int.
    """
    ### BEGIN SOLUTION
    queries_and_output = 2 * (2 * B * T * D * D)
    keys_and_values = 2 * (2 * B * S * D * D)  # there are S of them, not T
    scores_and_mean = 2 * (2 * B * H * T * S * (D // H))  # a head has width D / H: H cancels
    feed_forward = 2 * (2 * B * T * D * F)  # the factor 2 here too
    return queries_and_output + keys_and_values + scores_and_mean + feed_forward
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex10-3-cross-operations-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch10.cross_operations(cross_operations)

# %% [markdown]
# ## 4 · The parameters of a whole Transformer
#
# A Transformer is put together from four kinds of parts, and nothing else has parameters: linear maps with their biases, norms with a gain and a shift for each of D numbers, tables of embeddings, and (perhaps) positions.

# %%
show_source(cost.multi_head, cost.feed_forward, cost.encoder_layer)

# %% [markdown]
# ### Exercise 10.4 · Derive: the original model, by hand
#
# Difficulty ●●●○○ · 25 minutes · needs section 4
#
# The base model of Vaswani et al. (2017): D = 512, H = 8, F = 2048, 6 encoder and 6 decoder layers, Post-LN, no norm at the end. Every linear map has a bias. With paper and pencil (or Python as a pocket calculator) find the parameters of
# (a) one encoder layer, (b) one decoder layer, (c) all twelve layers, (d) the whole model with **one** table of embeddings for 37,000 subwords, which serves the encoder's input, the decoder's input and, transposed, the output layer, whose bias is left out.

# %% nbgrader={"grade": false, "grade_id": "ex10-4-parameters-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
by_hand = ...  # (encoder layer, decoder layer, twelve layers, whole model)
### BEGIN SOLUTION
attention_parameters = 4 * (512 * 512 + 512)  # 1,050,624
network = 512 * 2048 + 2048 + 2048 * 512 + 512  # 2,099,712
norm = 2 * 512
in_encoder = attention_parameters + network + 2 * norm  # 3,152,384
in_decoder = 2 * attention_parameters + network + 3 * norm  # 4,204,032
by_hand = (
    in_encoder,
    in_decoder,
    6 * (in_encoder + in_decoder),  # 44,138,496
    6 * (in_encoder + in_decoder) + 37_000 * 512,  # 63,082,496
)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex10-4-parameters-by-hand-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch10.parameters_by_hand(by_hand)

# %% [markdown]
# The paper's table 3 gives 65 million for the base model and 213 million for the big one (D = 1024, H = 16, F = 4096). **Predict before you run:** how far does our formula miss them? And what would three separate tables cost?

# %%
rows, vocabularies = [], {}
for name, D, H, F, published in (("base", 512, 8, 2048, 65e6), ("big", 1024, 16, 4096, 213e6)):
    layers = cost.transformer(1, 1, 1, D, H, F, 6).parameters
    rows.append([name, layers, layers + 37_000 * D, layers + 3 * 37_000 * D, published])
    vocabularies[name] = [
        round((published + rounding - layers) / D) for rounding in (-0.5e6, 0.5e6)
    ]
table(
    ["model", "layers", "with one shared table", "with three tables", "table 3 of the paper"],
    [[row[0], *(f"{n / 1e6:.1f} M" for n in row[1:])] for row in rows],
)
claim(
    "The formula with one shared table is within 3 % of the paper for both models; three tables miss it by more than a third",
    all(abs(row[2] / row[4] - 1) < 0.03 and row[3] / row[4] > 4 / 3 for row in rows),
)
claim(
    "No single vocabulary gives both published numbers, even within their rounding: base needs over 39,000 rows, big under 37,000",
    vocabularies["base"][0] > 39_000 and vocabularies["big"][1] < 37_000,
    **vocabularies,
)
theirs = nn.Transformer(12, 4, 2, 2, 20, batch_first=True)
claim(
    "torch's nn.Transformer has the formula's parameters, and one norm more at the end of each stack",
    number_of_parameters(theirs)
    == cost.transformer(1, 1, 1, 12, 4, 20, 2).parameters + 2 * (2 * 12),
)

# %% [markdown]
# The paper says "about 37,000" and not what its table counts, so the last 3 % stay open; that it has one table and not three does not.
#
# Small vocabularies of subwords and shared tables are no detail. Look at the sentiment classifier of the tutorial behind chapter 09: one layer of width 32, and a table of 50,002 words.

# %%
whole = cost.classifier(B=128, T=200, V=50_002, D=32, H=2, F=128, N=1)
inside = cost.encoder_layer(128, 200, 32, 2, 128)
table(
    ["part", "parameters", "operations a batch", "numbers kept (math)"],
    [
        [
            "whole classifier",
            f"{whole.parameters:,}",
            f"{whole.operations:,}",
            f"{whole.activations:,}",
        ],
        [
            "its encoder layer",
            f"{inside.parameters:,}",
            f"{inside.operations:,}",
            f"{inside.activations:,}",
        ],
    ],
)
claim(
    "Less than 1 % of the classifier's parameters, but more than 99 % of its operations, are in the encoder layer",
    inside.parameters < 0.01 * whole.parameters and inside.operations > 0.99 * whole.operations,
)

# %% [markdown]
# ## 5 · Gradient against distance
#
# Path length is a count. Does it matter? The gradient of the last output with respect to each input tells how much the output would be moved by what stood d steps before. Four untrained layers of equal width: RNN, LSTM, CNN, attention.
# **Predict** the four curves: where is each at d = 10, where at d = 60?

# %%
T, D = 64, 32
torch.manual_seed(0)
x = torch.randn(8, T, D)
reach = {
    "RNN": cost.gradient_by_distance(RNN(D, D), x),
    "LSTM": cost.gradient_by_distance(LSTM(D, D), x),
    "CNN, 4 layers of kernel 5": cost.gradient_by_distance(CausalCNN(D, 5, 4), x),
    "attention": cost.gradient_by_distance(MultiHeadAttention(D, 4), x),
}
shares = {name: norms / norms.max() for name, norms in reach.items()}
table(
    ["gradient, relative to the largest", *(f"d = {d}" for d in (0, 4, 16, 17, 63))],
    [[name, *(share[d].item() for d in (0, 4, 16, 17, 63))] for name, share in shares.items()],
)
claim("RNN: less than a millionth arrives from 32 steps back", shares["RNN"][32] < 1e-6)
claim(
    "CNN: 4 layers of kernel 5 reach back 16 steps; beyond, the gradient is 0 exactly",
    bool((reach["CNN, 4 layers of kernel 5"][:17] > 0).all())
    and reach["CNN, 4 layers of kernel 5"][17:].max() == 0,
)
claim(
    "Attention: the faintest of the 63 earlier inputs still has a fifth of the strongest",
    reach["attention"][1:].min() > 0.2 * reach["attention"][1:].max(),
)

# %% [markdown]
# Recorded, three seeds, D = 64 and 128 steps:

# %%
names = {"RNN": "gradient", "LSTM": "output", "CNN, 8 layers": "hidden", "attention": "attention"}
ax = plots.axes(height=3.6)
recorded = {name: ledger.values("layer-cost", f"gradient, {name}", "by_distance") for name in names}
for name, color in names.items():
    runs = [[value if value > 1e-9 else math.nan for value in run] for run in recorded[name]]
    length = min(next((i for i, v in enumerate(run) if v != v), len(run)) for run in runs)
    plots.band(ax, range(length), [run[:length] for run in runs], name, color)
ax.set_yscale("log")
ax.set(xlabel="distance d (steps)", ylabel="gradient (share of the largest)", ylim=(1e-9, 2))
ax.legend(loc="center right")
show(
    ax,
    alt="Gradient against distance on a log scale. RNN and LSTM fall steeply, to 1e-8 within 20 to 40 steps; the CNN of 8 layers rises, falls and ends at 16 steps; attention drops from 1 at d = 0 to a tenth at d = 1 and stays level to 127.",
    caption="How much arrives from d steps back in an untrained layer? The RNN and the LSTM forget exponentially, the CNN's window ends at 8 (3 - 1) = 16 steps, attention hears all earlier inputs alike. "
    "(The attention layer has no positions, so it cannot even tell them apart: chapter 08.)",
)
claim(
    "In every run: RNN and LSTM keep less than a millionth at the far end, the CNN nothing beyond 16, attention more than a hundredth everywhere",
    all(run[-1] < 1e-6 for name in ("RNN", "LSTM") for run in recorded[name])
    and ledger.values("layer-cost", "gradient, CNN, 8 layers", "reached")
    == [16] * len(recorded["RNN"])
    and min(ledger.values("layer-cost", "gradient, attention", "least")) > 0.01,
    attention=ledger.values("layer-cost", "gradient, attention", "least"),
)

# %% [markdown]
# Two shapes want a reason. The CNN is strongest in the middle of its window, since most ways through eight layers lead there. And in attention d = 0 stands out, since the last input is also the *query*, which
# moves all weights at once. Stop the gradient there, and the step is gone:


# %%
def without_query(x):
    """The layer with no gradient through the queries."""
    return attending(x.detach(), x, x)


torch.manual_seed(0)
attending, x = MultiHeadAttention(D, 4), torch.randn(8, T, D)
steps = [cost.gradient_by_distance(layer, x) for layer in (attending, without_query)]
ratios = [(norms[0] / norms[1:].mean()).item() for norms in steps]
claim(
    "The last input counts over 3 times as much as the mean of the others, but less than 1.5 times with the query's way closed",
    ratios[0] > 3 and ratios[1] < 1.5,
    with_query=ratios[0],
    without=ratios[1],
)

# %% [markdown]
# The LSTM is a warning against counting alone: its shortest path holds one product, and yet its gradient fades, because fresh gates stand near one half and the cell is halved at each step. The difference is that gates can *learn* to be 1
# (chapter 05), while a tanh network has no such way out. And "cannot vanish or explode", which you may read of attention, is true *along the sequence*, within one layer (as long as its softmax is not saturated: chapter 07). Along the depth, from layer to layer, a Transformer's gradients have troubles of their own: chapter 11.

# %% [markdown]
# ### Exercise 10.5 · Implement: what does the last output depend on?
#
# Difficulty ●●●○○ · 20 minutes · needs section 5
#
# Measure the window of any model: for which positions of the input is there any dependence at all? Use autograd. A batch of random inputs is given, since a ReLU may be closed for one of them and open for another; a small gradient is a gradient.


# %% nbgrader={"grade": false, "grade_id": "ex10-5-positions-seen", "locked": false, "schema_version": 3, "solution": true, "task": false}
def positions_seen(model, x):
    """Which input positions the last output depends on, by the support of its gradient.

    Args:
        model: function (B, T, D) to (B, T, E).
        x: (B, T, D) inputs.

    Returns:
        (T,) bool: True if the output at the last position depends on the input at this one, in any row of the batch.
    """
    ### BEGIN SOLUTION
    x = x.detach().requires_grad_()
    last = model(x)[:, -1]  # (B, E)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(last.shape, generator=generator, dtype=last.dtype)  # a sum could cancel
    (gradient,) = torch.autograd.grad((last * direction).sum(), x)  # (B, T, D)
    return (gradient != 0).any(-1).any(0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex10-5-positions-seen-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch10.positions_seen(positions_seen)

# %% [markdown]
# ## 6 · Time and memory, measured
#
# Operations are not seconds. An RNN's T small products wait for one another, and each is too small to keep a processor busy; attention does a few large ones. And attention must do something with $T^2$ numbers a head, which do not fit
# into a fast memory. **Predict:** we go from T = 128 to T = 1024, eight times as long. How many times longer do an RNN, a convolution and attention take?

# %%
D, B = 64, 2
lengths = [128, 1024]
layers = {
    "RNN": (RNN(D, D), {}),
    "CNN": (CausalCNN(D, 3), {}),
    "attention, math": (MultiHeadAttention(D, 4), {"impl": "math"}),
    "attention, sdpa": (MultiHeadAttention(D, 4), {"impl": "sdpa"}),
}


def training_step(layer, x, options):
    """A function of nothing: forward and backward."""

    def step():
        output = layer(x, **options)
        (output[0] if isinstance(output, tuple) else output).sum().backward()

    return step


taken = []
for T in lengths:
    x = torch.randn(B, T, D)
    taken.append(
        cost.seconds(
            {name: training_step(layer, x, options) for name, (layer, options) in layers.items()},
            rounds=3,
        )
    )
times_longer = {name: taken[1][name] / taken[0][name] for name in layers}

# %% tags=["nbval-ignore-output"]
table(
    ["layer", *(f"T = {T} (ms)" for T in lengths), "times longer"],
    [[name, *(1000 * found[name] for found in taken), times_longer[name]] for name in layers],
)

# %%
claim(
    "Eight times as long: RNN and CNN take less than 18 times as long, attention's math path more than 18 times",
    max(times_longer["RNN"], times_longer["CNN"]) < 18 < times_longer["attention, math"],
    **{name.replace(", ", "_"): value for name, value in times_longer.items()},
)

# %% [markdown]
# The whole sweep, recorded on one core of one machine (forward and backward, B = 8, D = 64). All recorded times below are of that machine; compare them with one another, not with yours:

# %%
kinds = {
    "RNN, loop": ("muted", "--"),
    "RNN, fused": ("gradient", "-"),
    "LSTM, fused": ("output", "-"),
    "CNN": ("hidden", "-"),
    "attention, math": ("attention", "--"),
    "attention, sdpa": ("attention", "-"),
}
ax = plots.axes(height=3.8)
for name, (color, linestyle) in kinds.items():
    lengths = ledger.values("layer-cost", f"time, {name}", "T")[0]
    runs = ledger.values("layer-cost", f"time, {name}", "seconds")
    plots.band(
        ax,
        lengths,
        [[1000 * s for s in run] for run in runs],
        name,
        color,
        linestyle=linestyle,
        marker="o",
        markersize=3,
    )
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.set_xticks(lengths, lengths)
ax.set(xlabel="length T (steps, log scale)", ylabel="time of a training step (ms)")
ax.legend(loc="upper left", ncols=2)
show(
    ax,
    alt="Time of a training step against T, both axes logarithmic. CNN lowest throughout; RNNs and LSTM rise in straight lines of slope 1, the LSTM below the RNN from T = 32 on; attention starts below them and rises towards slope 2, math above sdpa.",
    caption="Which layer is fastest on this machine? At every length the convolution, one layer that sees 3 places. Attention is ahead of the recurrent layers on short sequences and behind on long ones; where the lines cross is the crossover in time.",
)
markdown(ledger.table("layer-cost", ["exponent"], [f"time, {name}" for name in kinds]))


def exponents(name):
    """Powers of T in the longer half of the lengths, for each seed."""
    return ledger.values("layer-cost", f"time, {name}", "exponent")


claim(
    "On this machine recurrent layers and CNN grow about like T (power below 1.4), attention's math path like T squared (above 1.6)",
    max(value for name in list(kinds)[:4] for value in exponents(name)) < 1.4
    and min(exponents("attention, math")) > 1.6,
)

# %% [markdown]
# The fused LSTM does four times the operations of the fused RNN, in less time. Nothing is wrong with either count: torch calls another kernel for it. A crossover in seconds is one of two *kernels*.
#
# Where is it, on this machine, for attention (sdpa, 4 heads) and the RNN (fused) of the same width? **Predict:** does it move with D, as T = D says?

# %%
widths = (32, 64, 128)
crossings = {D: ledger.values("layer-cost", f"crossover, width {D}", "crossover") for D in widths}
table(
    ["D", "crossover in time, three runs (T)", "T / D"],
    [
        [D, ", ".join(f"{T:.0f}" for T in found), f"{min(found) / D:.1f} to {max(found) / D:.1f}"]
        for D, found in crossings.items()
    ],
)
ratios = {
    D: ledger.values("layer-cost", f"crossover, width {D}", "attention_over_RNN") for D in widths
}
at = {T: ledger.values("layer-cost", "crossover, width 32", "T")[0].index(T) for T in (32, 512)}
claim(
    "On this machine, at every width and in every run, attention is ahead at T = 32 and behind at T = 512",
    all(run[at[32]] < 1 < run[at[512]] for runs in ratios.values() for run in runs),
)
claim(
    "The crossover in time does not follow T = D: from D = 32 to D = 128, T / D falls to less than a half",
    max(crossings[128]) / 128 < 0.5 * min(crossings[32]) / 32,
)

# %% [markdown]
# By operations this attention is *never* cheaper than the RNN (section 3). By the clock of this machine it is, even on one core, as long as the sequence is short: the RNN's products are small and come one after the other, and each step costs some time whatever its size.
# So the clock's crossover is a fact about a machine and its kernels, not about T and D alone. On hardware with thousands of units in parallel expect it much further out (it is not measured here), for there the steps that must wait count most. Measure on yours.
#
# ### The memory of T² numbers a head
#
# For the backward pass the math path keeps $BHT^2$ weights, beside $5BTD$ numbers for input, queries, keys, values and outputs. The kernel keeps one number for each query and head, from which it computes the weights anew, block by block (FlashAttention's idea).

# %%
D, H, B = 64, 4, 2
lengths = [64, 256, 1024]
layer, rows = MultiHeadAttention(D, H), []
for T in lengths:
    x = torch.randn(B, T, D)
    counts = [cost.count_activations(layer, x, impl=impl) for impl in ("math", "sdpa")]
    formulas = [cost.multi_head(B, T, D, H, impl=impl).activations for impl in ("math", "sdpa")]
    rows.append([T, *counts, counts == formulas, counts[0] / counts[1]])
table(
    ["T", "kept, math", "kept, sdpa", "as the formulas say", "ratio"],
    [[T, f"{plain:,}", f"{fused:,}", *more] for T, plain, fused, *more in rows],
)
claim(
    "Kept: B H T^2 on the math path, B H T on the other, to the last number",
    all(row[3] and row[1] - row[2] == B * H * row[0] * (row[0] - 1) for row in rows),
)

# %% [markdown]
# That is what must be *kept*. The peak is higher, since scores and their gradients exist at the same time. It is measured in a fresh process:

# %%
setup = """
from course_lib.attention import attention
def step(impl):
    q, k, v = torch.randn(3, 1, 4, 1024, 64).requires_grad_()
    attention(q, k, v, impl=impl).sum().backward()
"""
peaks = cost.peak_memory(["step('math')", "step('sdpa')"], setup)
if None in peaks:
    print("This system does not tell a process' peak memory: see the recorded curve below.")
else:
    claim(
        "At T = 1024 the math path's peak is more than 3 times that of sdpa",
        peaks[0] > 3 * peaks[1],
        math_mb=peaks[0] / 1e6,
        sdpa_mb=peaks[1] / 1e6,
    )

# %%
panels = plots.grid(1, 2, height=3.3)[0]
metrics = {
    "seconds": ("time of a training step (ms)", 1000),
    "peak_mb": ("peak memory beside the inputs (MB)", 1),
}
for ax, (metric, (ylabel, unit)) in zip(panels, metrics.items(), strict=True):
    for impl, linestyle in {"math": "--", "sdpa": "-"}.items():
        lengths = ledger.values("attention-time", impl, "T")[0]
        runs = [
            [max(unit * v, 0.05) for v in run]
            for run in ledger.values("attention-time", impl, metric)
        ]
        style = {"linestyle": linestyle, "marker": "o", "markersize": 4}
        plots.band(ax, lengths, runs, impl, "attention", **style)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, lengths)
    ax.set(xlabel="length T (positions)", ylabel=ylabel)
panels[0].legend(loc="upper left")
show(
    panels[0],
    alt="Two log-log panels against T from 64 to 2048. Left, time: both rise, math ever steeper, sdpa several times below it at the right. Right, peak memory: math rises with slope 2 to several hundred megabytes, sdpa with slope 1 to about twenty.",
    caption="What does the kernel save on this machine (causal, B = 2, H = 4, K = 64, one core)? Time, and nearly all of the memory: the math path's peak grows like T squared.",
)
markdown(ledger.table("attention-time", ["exponent"], ["math", "sdpa"]))
faster = ledger.values("attention-time", "at the longest", "math_over_sdpa")
math_peak, sdpa_peak = (
    ledger.values("attention-time", impl, "peak_mb") for impl in ("math", "sdpa")
)
claim(
    "On this machine, at T = 2048, sdpa is more than twice as fast, and its peak less than a tenth, in every run",
    min(faster) > 2 and all(10 * s[-1] < m[-1] for m, s in zip(math_peak, sdpa_peak, strict=True)),
    times_faster=faster,
    math_mb=[m[-1] for m in math_peak],
    sdpa_mb=[s[-1] for s in sdpa_peak],
)

# %% [markdown]
# ## 7 · Steps: training, generation, chunks
#
# In training all targets are known, so a Transformer of N layers takes 6N sequential products at any length (four in each attention, two in each feed-forward network), and the RNN takes T a layer. **Predict:** both now *write* a text of 256 tokens. How many steps does each take?

# %%
D, H, N, T = 64, 4, 4, 256
one_pass = cost.encoder(1, T, D, H, 4 * D, N, causal=True)
again = sum(cost.encoder(1, t, D, H, 4 * D, N, causal=True).operations for t in range(1, T + 1))
recurrent = cost.rnn(1, T, D)
table(
    [f"{T} tokens", "sequential steps", "operations"],
    [
        ["Transformer (4 layers), training", one_pass.steps, f"{one_pass.operations:,}"],
        [
            "Transformer (4 layers), writing, all anew for each token",
            one_pass.steps * T,
            f"{again:,}",
        ],
        ["RNN (one layer), training", recurrent.steps, f"{recurrent.operations:,}"],
        ["RNN (one layer), writing", recurrent.steps, f"{recurrent.operations:,}"],
    ],
)
claim(
    "Writing 256 tokens, each from the whole text so far, takes over 100 times the operations of one training pass",
    again > 100 * one_pass.operations,
    ratio=again / one_pass.operations,
)

# %% [markdown]
# Writing is sequential for both: token t + 1 cannot be computed before token t is chosen. Parallelism over time is a gift to *training*. And while the RNN goes on from its state, the Transformer as we
# have it reads everything again. Keys and values of earlier tokens do not change, since no position sees a later one. Keep them, and each token costs one position instead of t: the *key-value cache* of chapter 13. It brings the total back to about one pass, and holds $2NTD$ numbers for it.
#
# ### T is the length of a chunk
#
# On a long text an RNN is trained by truncated backpropagation (chapter 04): the text comes in chunks; the state's numbers cross from one to the next, its gradient does not. A Transformer reads chunks as well. So the T of our table is the
# length of a *chunk*, and typical sizes in the days of that comparison were T = 64 with D of 256 and more: well below T = D. **Predict:** one RNN layer waits for its 64 steps; how many encoder layers can run in as many?

# %%
T, D = 64, 256
ratio = cost.attention(1, T, D, 4).operations / cost.rnn(1, T, D).operations
deep = max(N for N in range(1, 99) if cost.encoder(1, T, D, 4, 4 * D, N).steps <= T)
bigger = cost.encoder(1, T, D, 4, 4 * D, deep)
claim("On such a chunk, bare attention has a quarter of the RNN's operations: T / D", ratio == 0.25)
claim(
    "In the 64 sequential steps of one RNN layer fit 10 encoder layers, with 60 times its parameters",
    (deep, round(bigger.parameters / cost.rnn(1, T, D).parameters)) == (10, 60),
    parameters=bigger.parameters,
    times_the_operations=bigger.operations / cost.rnn(1, T, D).operations,
)

# %% [markdown]
# That is the bargain that changed the field: where parallel hardware is plentiful, the *same waiting time* buys a far bigger model, or more data. The operations are paid for all the same, in machines and in energy.
#
# ## 8 · A free lunch? Almost
#
# Attention gave up something that the RNN has. An RNN's state has D numbers after ten steps and after ten million: it can read a stream for ever, and what it needs does not grow. Attention has only what is in front of it. **Predict:** both layers read a sequence of 64 in chunks of 16. Which outputs change?

# %%
torch.manual_seed(0)
D, chunk = 32, 16
stream = torch.randn(1, 64, D)
recurrent, attending = RNN(D, D), MultiHeadAttention(D, 4)
state, pieces = None, []
with torch.no_grad():
    for part in stream.split(chunk, dim=1):
        output, state = recurrent(part, state)
        pieces.append(output)
    rnn_gap = (torch.cat(pieces, 1) - recurrent(stream)[0]).abs().amax((0, 2))
    pieces = [attending(part, causal=True) for part in stream.split(chunk, dim=1)]
    attention_gap = (torch.cat(pieces, 1) - attending(stream, causal=True)).abs().amax((0, 2))
claim("RNN: reading in chunks, its state carried on, changes no output", rnn_gap.max() < 1e-5)
claim(
    "Attention: the first chunk is the same; every later position has lost what came before its chunk",
    attention_gap[:chunk].max() < 1e-5 and attention_gap[chunk:].min() > 1e-3,
)
table(
    [
        "tokens read so far",
        "an RNN layer carries on",
        "an attention layer carries on: keys, values",
    ],
    [[f"{T:,}", D, f"{2 * T * D:,}"] for T in (100, 10_000, 1_000_000)],
)

# %% [markdown]
# So why "almost"? Because the RNN's unbounded memory is seldom *learned*: truncation takes the gradient at the edge of each chunk, and vanishing has taken it before. Both are taught within a chunk; attention uses all of it. The whole bill:
#
# | | RNN | self-attention |
# |---|---|---|
# | waits, in training | T steps a layer | a constant number a layer |
# | gradient over distance d | fades (gates can learn to hold it) | the same for all d |
# | operations a token | constant | grow with T |
# | kept for the backward pass | grows like T | like T², or T with a kernel that recomputes |
# | order of the inputs | built in | must be added (chapter 08) |
# | texts longer than in training | runs; how well is another matter | depends on the scheme of positions |
# | memory to go on writing | D numbers | all keys and values |
#
# ## 9 · Common mistakes
#
# **Mistake 1 · "more heads, more cost".** H heads are H times as many, but each is 1/H as wide.

# %%
rows = [[H, *cost.multi_head(2, 50, 64, H)[:3]] for H in (2, 4, 8, 16)]
table(
    ["heads", "parameters", "operations", "numbers kept (math)"],
    [[f"{number:,}" for number in row] for row in rows],
)
claim(
    "Heads change neither parameters nor operations; what they multiply is the weights that are kept",
    all(row[1:3] == rows[0][1:3] for row in rows) and rows[-1][3] - rows[0][3] == 14 * 2 * 50**2,
)

# %% [markdown]
# **Mistake 2 · counting views.** The hook sees every saved tensor. Some are views of one storage, some are parameters, which exist anyway. Add up what passes by, and the layer seems to keep far more than it does.

# %%
layer, x, seen = MultiHeadAttention(64, 4), torch.randn(2, 50, 64), []


def pack(tensor):
    seen.append(tensor.untyped_storage().nbytes() // 4)  # the mistake: whatever passes by
    return tensor


with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    layer(x)
right = cost.count_activations(layer, x)  # each storage once, parameters left out
claim(
    "Adding up what passes the hook gives more than one and a half times what is kept",
    sum(seen) > 1.5 * right,
    added_up=sum(seen),
    kept=right,
)
claim(
    "Repaired, each storage once and no parameters: the formula's number",
    right == cost.multi_head(2, 50, 64, 4, impl="sdpa").activations,
)

# %% [markdown]
# **Mistake 3 · one position more than the table holds.** No parameter of attention depends on T, but a learned table of positions ends:

# %% tags=["raises-exception"]
Learned(50, 64).add(torch.zeros(1, 51, 64))

# %%
repaired = Learned(51, 64).add(torch.zeros(1, 51, 64))
claim("Repaired: a table as long as the longest sequence", repaired.shape == (1, 51, 64))

# %% [markdown]
# **Mistake 4 · comparing $O(T^2 D)$ with $O(T D^2)$ as if they were numbers.** With the constants the order of two layers at your sizes may be the other way round: section 3.
#
# **Mistake 5 · taking a count for a time.** By count a multi-head layer is never cheaper than an RNN; by the clock it may be: section 6. And a fused LSTM may beat a fused RNN.

# %% [markdown]
# ### Exercise 10.6 · Explore and explain: when would you still choose an RNN?
#
# Difficulty ●●●○○ · 25 minutes · needs sections 6 to 8
#
# The cell compares an LSTM and an encoder layer of the same width at your sizes. Change them: a hearing aid that must answer after each of 16,000 samples a second; sentences of 30 words; a genome of a million letters.

# %%
B, T, D, H = 1, 1000, 64, 4  # your turn
recurrent = cost.lstm(B, T, D)
encoding = cost.encoder_layer(B, T, D, H, 4 * D, causal=True, impl="sdpa")
table(
    ["", "LSTM", "encoder layer (sdpa)"],
    [
        *(
            [name, f"{a:,}", f"{b:,}"]
            for name, a, b in zip(cost.Cost._fields, recurrent, encoding, strict=True)
        ),
        ["numbers carried on to the next step", f"{2 * B * D:,}", f"{2 * B * T * D:,}"],
        [
            "operations of one step more",
            f"{cost.lstm(B, 1, D).operations:,}",
            f"{B * (24 * D * D + 4 * T * D):,}",
        ],
    ],
)

# %% [markdown]
# Explain in a few sentences: (a) Which row decides for the hearing aid, and what do you choose? (b) Which decides for *training* on sentences of 30 words, on a GPU? (c) A million letters: which entry forbids plain attention, and which the plain RNN? Name a way out for each.
# (d) "The RNN has infinite context, attention only T." In which sense is it true, in which is it not?

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex10-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) What is carried on, and the operations of one step more: for the LSTM both are constant, for attention both grow with all that was heard. The time for one sample is fixed, so only a cost that does not grow will do: the LSTM, or attention over a short, fixed window.
#
# (b) The sequential steps. In training all positions are known; the encoder layer's six products serve all of them at once, the LSTM waits thirty times a layer. T is far below D, so the quadratic part hardly counts.
#
# (c) Attention: the operations and, on the math path, the memory for $10^{12}$ pairs. The RNN: a million steps in a row, and a gradient that has vanished long before. Ways out: for attention a window or another sparse pattern (a kernel that keeps no weights helps the memory only); dilated convolutions with log T layers; for the RNN truncation, at the price of its bias, or a recurrence that can be computed in parallel.
#
# (d) True of the forward pass: the state may depend on everything read before, and costs nothing more to carry. Not true of what is learned: the state has D numbers, the gradient fades, and truncation cuts it at the edge of the chunk. Attention sees T, but all of it equally well.
# ### END SOLUTION

# %% [markdown]
# ## Summary
#
# 1. Parameters sit in learned matrices of D × D ($4D^2$ in attention); $T^2 D$ counts operations, and $HT^2$ the numbers that exist in between. No parameter depends on T, but for a learned table of positions.
# 2. Bare attention and an RNN have equal operations at T = D exactly. With its projections attention never has fewer than the RNN; the quadratic part is half of an encoder layer at T = 6D.
# 3. Sequential steps: T for the RNN, one for a convolution, a constant for attention. That holds in training; writing waits for every token, in every model.
# 4. The shortest path is T products (RNN), about T/k or log T layers (CNN), a constant (attention). How much gradient arrives follows from it, unless gates change the picture.
# 5. A fused kernel does the same operations in less time and keeps BHT numbers instead of BHT². Count on the plain path, time the fast one, measure memory in a fresh process.
#
# ## Where next
#
# *Chapter 11* turns to the distance that attention does not shorten: the depth, where deep Transformers need tricks to be trained at all. *Chapter 12* re-derives BERT's 110 and 340 million with this chapter's counter; *chapter 13* builds the cache.
#
# ## References
#
# - A. Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, arXiv 1706.03762: section 4 and table 1 (operations, sequential steps, path length), table 3 (65 and 213 million parameters), sections 3.4 and 5.1 (shared table, about 37,000 tokens).
# - J. Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, arXiv 2001.08361: section 2.1 and table 1 (parameters and operations of each part; 2N operations a token, 6N in training).
# - A. van den Oord et al., *WaveNet*, 2016, arXiv 1609.03499: section 2.1 and figure 3 (dilated causal convolutions). N. Kalchbrenner et al., *Neural Machine Translation in Linear Time*, 2016, arXiv 1610.10099: path lengths of convolutions and recurrences.
# - T. Dao et al., *FlashAttention*, NeurIPS 2022, arXiv 2205.14135: section 3.1, algorithm 1 (tiles, recomputation, the kept normalisers). M. Rabe, C. Staats, *Self-attention Does Not Need O(n²) Memory*, 2021, arXiv 2112.05682.
# - R. Williams, J. Peng, Neural Computation 2, 1990: truncated backpropagation (chapter 04).
# - Video: *LSTM is dead. Long live Transformers!*, https://www.youtube.com/watch?v=S27pHKBEp30: recurrence and attention compared.
