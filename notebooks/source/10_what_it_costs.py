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
# Three layers read the same text, all with vectors of $D = 512$ numbers: a recurrent layer (RNN), a convolution of kernel 3 (CNN), and chapter 07's multi-head self-attention, with 8 heads and all its learned matrices. The text is first a sentence of 20 words, then an article of 2,000.
# A **FLOP** is a floating-point operation: one multiplication or one addition. **Which layer needs the fewest FLOPs for the sentence?**

# %% tags=["fold"]
# @title The three layers in a picture
from course_lib.notebook import diagrams

diagrams.show("three_layers")

# %% tags=["setup", "fold"]
# @title Imports
import math

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from course_lib.attention import KVCache, MultiHeadAttention, attention, attention_backend
from course_lib.cost import formulas, measure
from course_lib.cost.measure import CausalCNN
from course_lib.exercises import ch10
from course_lib.experiments.measured_cost import crossing
from course_lib.lstm_gru import LSTM, set_forget_bias
from course_lib.notebook import claim, diagrams, ledger, predict, show_source, table
from course_lib.notebook.figures import ch10 as figures
from course_lib.positional import ALiBi, LearnedPositions, RelativeBias, Sinusoidal
from course_lib.rnn import RNN
from course_lib.transformer import EncoderLayer, TransformerEncoder
from course_lib.transformer_models import TransformerClassifier
from course_lib.utils import number_of_parameters

_ = torch.manual_seed(0)

# %%
# "RNN", "CNN" or "attention":
guess_1 = predict("the layer with the fewest FLOPs for 20 words", ...)

# %% [markdown]
# Torch has a counter that adds up the FLOPs of matrix products. A fused routine hides its products from it, so we ask for unfused versions, `"math"` for attention and `"loop"` for the RNN (section 8, error 2):


# %%
def count_flops(layer, x):
    """FLOPs of one run of a layer, by torch's own counter."""
    how = {"backend": "loop"} if isinstance(layer, RNN) else {}
    with attention_backend("math"), FlopCounterMode(display=False) as counter:
        layer(x, **how)
    return counter.get_total_flops()


layers = {
    "RNN": RNN(512, 512),
    "CNN": CausalCNN(512, 3),
    "attention": MultiHeadAttention(512, 8),
}
sentence, article = torch.randn(1, 20, 512), torch.randn(1, 2000, 512)
for_sentence = [count_flops(layer, sentence) for layer in layers.values()]
for_article = [count_flops(layer, article) for layer in layers.values()]

# %% tags=["fold", "reveal"]
# @title The bill
lines = {  # of the bill, each with the section that counts it
    "FLOPs, 20 words": 1,
    "FLOPs, 2,000 words": 1,
    "numbers saved for the backward pass, 2,000 words": 2,
    "length at which the quadratic part is half of an encoder layer's FLOPs": 3,
    "parameters": 4,
    "products in a row, 2,000 words": 5,
    "products from the first word to the last output": 6,
    "numbers carried on to write word 2,001": 7,
}
bill = {"FLOPs, 20 words": for_sentence, "FLOPs, 2,000 words": for_article}


def show_bill(section, whole=False):
    """Show this section's line and the next question, or the whole bill so far."""
    unknown = ("?", "?", "?")
    rows = [[n, line, *(bill.get(line, unknown) if n <= section else unknown)] for line, n in lines.items()]
    table(["section", "one layer, D = 512", *layers], [row for row in rows if whole or row[0] in (section, section + 1)])


guess_1.compare(min(layers, key=dict(zip(layers, for_sentence, strict=True)).get))
show_bill(1)
claim(
    "The RNN needs the fewest FLOPs, for the sentence and for the article; attention needs about twice as many, and then about six times as many.",
    all(rnn < min(cnn, of_attention) for rnn, cnn, of_attention in (for_sentence, for_article))
    and round(for_sentence[2] / for_sentence[0]) == 2
    and round(for_article[2] / for_article[0]) == 6,
)

# %% [markdown]
# If you guessed attention, you are in good company: *Attention Is All You Need* calls it faster than recurrence as long as the text is shorter than the vectors are wide. If you guessed the RNN because attention is quadratic: right layer, wrong reason. The square makes 0.8 of attention's 42.8 million FLOPs. Why then does it take twice the RNN's?
#
# And FLOPs are only the first two lines of the **bill**. Every section asks one question, counts, and fills in its line.
#
# If you have only an hour, read sections 1 and 3, and do exercises 10.1 and 10.2, which wait at the first pause.
#
# ### You will be able to
#
# 1. count the FLOPs of an attention layer and check the count against torch's own (exercises 10.1, 10.3);
# 2. say beyond which length attention costs more than a recurrent layer (10.2);
# 3. count the parameters of a whole Transformer by hand (10.4);
# 4. measure which inputs an output depends on (10.5);
# 5. decide, with numbers, when an RNN is still the better choice (10.6).
#
# **Letters.** `B` sequences of `T` words (`S` if keys come from elsewhere), width `D`, `H` heads of width `K = D / H`, feed-forward width `F`, `N` layers, kernel `k`.

# %% [markdown]
# ## 1 · Work: how many FLOPs?
#
# All three layers take T words, vectors of D numbers, and let them learn about one another: RNN and CNN only look back, attention here both ways.
#
# **RNN: a note goes down a row of people.** Each person reads it, adds something and hands it on. Each step multiplies the word by one D × D matrix and the state by another.
#
# **CNN: everyone hears a few neighbours, all at the same time.** A kernel of k places multiplies each word and the k − 1 before it by a D × D matrix each.
#
# **Attention: everyone hears everyone, all at the same time.** Each pair of words meets twice: once for a score, once in a weighted mean. So T people hold T · T conversations. We call this the **quadratic part**.

# %%
diagrams.show("two_kinds_of_matrices")

# %% [markdown]
# **From here on there are two attentions.** Attention that consists only of the quadratic part has no parameters: call it **bare attention**. **Real attention**, the opening's multi-head layer, also learns what to ask and what to say. Its **projections**, four learned D × D matrices, make queries, keys, values and the output.
#
# ### On paper
#
# Take a text short enough to count: T = 3 words of D = 2 numbers, and bare attention, where each word is query, key and value at once (chapter 07, section 1). The score of two words is a dot product, and every pair has one. Here is the matrix product with plain loops, each multiplication printed. Each is followed by an addition (the sum starts at 0): **2 FLOPs**.


# %%
def product_by_hand(name, left, right):
    """left @ right, every multiplication printed, every FLOP counted."""
    result = torch.zeros(left.shape[0], right.shape[1])
    work = 0  # FLOPs
    for i in range(left.shape[0]):  # rows
        for j in range(right.shape[1]):  # columns
            terms = []
            for n in range(right.shape[0]):  # inner
                a, b = left[i, n], right[n, j]
                result[i, j] += a * b
                work += 2  # a multiplication and an addition
                terms.append(f"{a:.3g} · {b:.3g}")
            print(f"{name}[{i}, {j}] = {' + '.join(terms)} = {result[i, j]:.2f}")
    print(f"{tuple(left.shape)} @ {tuple(right.shape)}: {work} FLOPs")
    return result


# %%
x = torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]])  # (T, D)
scores = product_by_hand("scores", x, x.T)  # (T, D) @ (D, T) -> (T, T)

# %% [markdown]
# Nine scores of two multiplications and additions each: $2 \cdot T \cdot T \cdot D = 36$ FLOPs. The softmax turns scores into weights without any matrix product. Then each output is the weighted mean of all three words:

# %%
weights = (scores / math.sqrt(2)).softmax(dim=-1)  # (T, T)
h = product_by_hand("h", weights, x)  # (T, T) @ (T, D) -> (T, D)

# %% [markdown]
# Six numbers of three multiplications and additions each: 36 again, so $4T^2D = 72$ in all. Now the RNN reads the same words:

# %%
torch.manual_seed(0)
W_ih, W_hh = torch.randn(2, 2, 2)  # (D, D) each
state, work = torch.zeros(2), 0
for t in range(3):
    state = torch.tanh(x[t] @ W_ih.T + state @ W_hh.T)  # (D,)
    work += 2 * (W_ih.numel() + W_hh.numel())  # each entry is used once
    print(f"t = {t}: {work:2} FLOPs, h = {state.numpy().round(2)}")

# %% [markdown]
# T steps use the same $2D^2$ numbers: $4TD^2 = 48$. You have used one rule, the only one that you need:
#
# $$ \text{FLOPs of } (\text{rows} \times \text{inner}) \text{ times } (\text{inner} \times \text{columns}) \;=\; 2 \cdot \text{rows} \cdot \text{inner} \cdot \text{columns}. $$
#
# Added biases, scaling, softmax and norms are left out: at real widths they are few beside the products.
#
# ### Back to the puzzle
#
# Here is the rule for the three layers, at any T and D:


# %%
def rnn_flops(T, D):
    return T * 2 * (2 * D * D)  # each step: two learned matrices


def cnn_flops(T, D, k=3):
    return T * k * (2 * D * D)  # each word: k learned matrices


def attention_flops(T, D):
    projections = 4 * (2 * T * D * D)  # queries, keys, values, output
    scores = 2 * T * D * T  # (T, D) @ (D, T)
    weighted_mean = 2 * T * T * D  # (T, T) @ (T, D)
    return projections, scores + weighted_mean


for T in (20, 2000):
    projections, quadratic_part = attention_flops(T, 512)
    print(f"T = {T}, in millions of FLOPs:")
    print(f"  RNN                       {rnn_flops(T, 512) / 1e6:7,.1f}")
    print(f"  CNN                       {cnn_flops(T, 512) / 1e6:7,.1f}")
    print(f"  attention, projections    {projections / 1e6:7,.1f}")
    print(f"  attention, quadratic part {quadratic_part / 1e6:7,.1f}")

# %% [markdown]
# In formulas: $4TD^2$ for the RNN, $2kTD^2$ for the CNN, $8TD^2 + 4T^2D$ for real attention.
#
# For the sentence the quadratic part is almost nothing. On its own, as bare attention, it would win easily; that is the comparison *Attention Is All You Need* makes. The opening's layer loses because of its projections: four learned matrices against the RNN's two. For the article the quadratic part is most of the work. **The price of hearing everyone is $T^2$.**
#
# Does torch count the same? On the three words it should find 72, 48 and $72 + 8TD^2 = 168$:

# %%
three_words = x.unsqueeze(0)  # (1, T, D)
print("bare attention:", count_flops(lambda x: attention(x, x, x), three_words))
print("RNN:           ", count_flops(RNN(2, 2), three_words))
print("real attention:", count_flops(MultiHeadAttention(2, 1), three_words))  # one head

# %% [markdown]
# Torch counts the same; more heads change nothing: four heads of width D / 4 cost what one of width D does. But what is computed must also be kept.

# %% tags=["fold"]
# @title The formulas beside torch's counts
claim(
    "Two, three and four learned matrices, and real attention's quadratic part, make up the bill's first two lines to the last digit.",
    all(
        found == [rnn_flops(T, 512), cnn_flops(T, 512), sum(attention_flops(T, 512))]
        for T, found in ((20, for_sentence), (2000, for_article))
    ),
)
layer_64, by_length = MultiHeadAttention(64, 4), []
for T in (16, 64, 256):
    inputs = torch.randn(1, T, 64)
    all_flops, bare_part = count_flops(layer_64, inputs), count_flops(lambda x: attention(x, x, x), inputs)
    by_length.append([T, number_of_parameters(layer_64), all_flops - bare_part, bare_part])
claim(
    "Four heads, D = 64, T = 16, 64 and 256: $4 D^2$ weights and $4 D$ biases at every length; by torch's counter the projections take exactly $8 T D^2$ FLOPs, the quadratic part exactly $4 T^2 D$.",
    all(row[1:] == [4 * 64**2 + 4 * 64, 8 * row[0] * 64**2, 4 * row[0] ** 2 * 64] for row in by_length),
)

# %% [markdown]
# ## 2 · Memory: what must be kept?
#
# The backward pass uses numbers from the forward pass, and these must be kept until then: the **saved activations**. How many are they for the article? Ask of each operation what its gradient needs.
#
# - The gradient of a product $AB$ with respect to A contains B, and the other way round: it keeps **both factors**.
# - The slope of a softmax is made of its weights (chapter 07, section 3): it keeps **its result**. So does a tanh or a ReLU.
#
# Line by line, for real attention with one head, on the same three words:

# %%
torch.manual_seed(0)
W_q, W_k, W_v, W_o = (nn.Parameter(torch.randn(2, 2)) for _ in range(4))


def one_head(x):  # keeps:
    q, k, v = x @ W_q, x @ W_k, x @ W_v  # x, once for all three: T D
    scores = q @ k.T / math.sqrt(2)  # q and k: 2 T D
    weights = scores.softmax(dim=-1)  # its result: T T
    h = weights @ v  # the weights (they are there already) and v: T D
    return h @ W_o  # h: T D


# %% [markdown]
# Together $5TD + T^2 = 30 + 9 = 39$ numbers. The library's recorder asks autograd what it keeps. It should find 39, and the 16 of the four learned matrices, which exist anyway:

# %%
T, D = x.shape
by_rule = 5 * T * D + T * T
print(measure.count_activations(one_head, x), "=", by_rule, "+", 4 * W_q.numel())

# %% [markdown]
# With H heads there are H matrices of T × T. Now the article, for all three layers:

# %%
T, D, H = 2000, 512, 8
bill["numbers saved for the backward pass, 2,000 words"] = saved = [
    T * D + (T + 1) * D,  # RNN: the words; the first state and every new one
    (T + 2) * D + T * D,  # CNN: two rows of zeros, the words; results (a ReLU follows)
    5 * T * D + H * T * T,  # real attention
]
for name, count in zip(layers, saved, strict=True):
    print(f"{name:20}{count:11,}")
print(f"H matrices of T × T {H * T * T:11,}, {4 * H * T * T / 1e6:.0f} MB")

# %% [markdown]
# What fills the memory is neither what is learned nor the words, but *who looks at whom*: 32 of attention's 37.1 million numbers are attention weights, 128 MB for one layer and one article.
#
# Must they be kept? No. The backward pass can compute them again, block by block, from queries, keys and, for each row of each head, the one number that normalises its softmax. *FlashAttention* does this, and never writes a whole T × T matrix to memory. It is a *fused kernel*: one compiled routine in place of several products. In torch such kernels stand behind `scaled_dot_product_attention`, our backend `"sdpa"`; `"math"` means plain products. The kernel keeps $5TD + HT$ numbers, 5.1 million for the article.
#
# The **peak** is higher still, since the backward pass adds the gradients of weights and scores; the kernel saves most of that too. Does it save time, although it computes the weights twice? Recorded runs of a training step with a causal mask:

# %%
figures.time_and_memory("attention-time")

# %% tags=["fold"]
# @title The next line, and the kernel's time and peak
show_bill(2)
articles, recorded = torch.randn(2, 2000, 512), []
for name, each in layers.items():
    how = {"backend": "loop"} if name == "RNN" else {}
    with attention_backend("math"):
        recorded.append(measure.count_activations(each, articles, **how) / 2)  # for each of two: see Going deeper
claim(
    "The recorder finds the same in all three layers. For the article attention saves more than 30 times as many numbers as it has parameters, and 18 times as many as the RNN saves.",
    recorded == bill["numbers saved for the backward pass, 2,000 words"]
    and recorded[2] > 30 * number_of_parameters(layers["attention"])
    and recorded[2] > 18 * recorded[0],
)
faster = ledger.values("attention-time", "at the longest", "math_over_sdpa")
math_peak, sdpa_peak = (
    [run[-1] for run in ledger.values("attention-time", backend, "peak_mb")] for backend in ("math", "sdpa")
)
claim(
    "On this machine, at T = 2048 with a causal mask, sdpa is more than twice as fast, and its peak less than a tenth, in every run.",
    min(faster) > 2 and all(10 * sdpa < plain for plain, sdpa in zip(math_peak, sdpa_peak, strict=True)),
    peak_math=f"{max(math_peak):.0f} MB",
    peak_sdpa=f"{max(sdpa_peak):.0f} MB",
)

# %% [markdown]
# The kernel saves time too. Part of its lead is the mask's: the kernel skips what is hidden, our plain path pays for it (*Going deeper*).
#
# So memory has a way out of $T^2$. For work, exact attention, computed pair by pair, has none; one can only give something up, for example let each word see just a **window** of the words before it. When does the square begin to hurt?

# %% [markdown]
# ## 3 · The border: when does the square matter?
#
# Vaswani et al. (section 4) compare $T^2D$ with $TD^2$, and conclude that attention is faster below T = D. That is bare attention. Real attention needs more FLOPs than a plain RNN at every T. But an LSTM does four times the RNN's work (chapter 05): $16TD^2$. Take D = 512. Beyond which T does real attention need more FLOPs than an LSTM?

# %%
guess_2 = predict("the first T where real attention has more FLOPs than the LSTM", ...)

# %% tags=["reveal"]
T, D = 1, 512
while sum(attention_flops(T, D)) <= 4 * rnn_flops(T, D):
    T += 1
guess_2.compare(T)

# %% [markdown]
# Real attention has four learned matrices, the LSTM eight; the difference pays for the quadratic part up to T = 2D. A whole encoder layer has a feed-forward network as well, two matrices of D × F with F = 4D, which take $16TD^2$ FLOPs. So there the square begins to matter only later:
#
# $$ \text{FLOPs} = \underbrace{8TD^2}_{\text{projections}} + \underbrace{4T^2D}_{\text{quadratic part}} + \underbrace{16TD^2}_{\text{feed-forward}} $$
#
# Divide the quadratic part by the sum, and both by $4TD$, and its share is $T / (6D + T)$: less than one per cent for the sentence, 39 per cent for the article:

# %%
D, quadratic = 512, {}  # T: the quadratic part's share of an encoder layer's FLOPs
for T in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
    projections, quadratic_part = attention_flops(T, D)
    feed_forward = 2 * (2 * T * D * (4 * D))  # two matrices of D x F
    quadratic[T] = quadratic_part / (projections + quadratic_part + feed_forward)
figures.operation_shares(quadratic, D=512)

# %% tags=["fold"]
# @title The next line, and the borders
bill["length at which the quadratic part is half of an encoder layer's FLOPs"] = ["no such part", "no such part", 6 * 512]
show_bill(3)
flops = {  # of one sequence of T words
    "bare attention": lambda T, D=512: attention_flops(T, D)[1],
    "RNN": lambda T, D=512: rnn_flops(T, D),
    "real attention": lambda T, D=512: sum(attention_flops(T, D)),
    "LSTM": lambda T, D=512: 4 * rnn_flops(T, D),
}
every = range(1, 8 * 512 + 1)
flops_at = {name: [count(T) for T in every] for name, count in flops.items()}
of_library = {
    "bare attention": lambda T: formulas.attention_cost(1, T, 512),
    "RNN": lambda T: formulas.rnn_cost(1, T, 512),
    "real attention": lambda T: formulas.multi_head_cost(1, T, 512, 8),
    "LSTM": lambda T: formulas.lstm_cost(1, T, 512),
}
claim(
    "Bare attention has more FLOPs than the RNN above T = D and as many at T = D; real attention more than the RNN at every T, and more than the LSTM above T = 2 D.",
    all((a > b) == (T > 512) for T, a, b in zip(every, flops_at["bare attention"], flops_at["RNN"], strict=True))
    and flops["bare attention"](512) == flops["RNN"](512)
    and all(count(T) == of_library[name](T).operations for name, count in flops.items() for T in every)
    and all(a > b for a, b in zip(flops_at["real attention"], flops_at["RNN"], strict=True))
    and all((a > b) == (T > 2 * 512) for T, a, b in zip(every, flops_at["real attention"], flops_at["LSTM"], strict=True)),
)
by_formula = {
    T: formulas.attention_cost(1, T, 512).operations / formulas.encoder_layer_cost(1, T, 512, 8, 2048).operations
    for T in quadratic
}
claim(
    "The quadratic part is one seventh of the layer at T = D, as much as the feed-forward network at T = 4D, and half of the layer at T = 6D.",
    abs(quadratic[512] - 1 / 7) < 1e-12
    and all(abs(quadratic[T] - by_formula[T]) < 1e-12 for T in quadratic)
    and formulas.attention_cost(1, 2048, 512).operations == formulas.feed_forward_cost(1, 2048, 512, 2048).operations
    and 2 * formulas.attention_cost(1, 3072, 512).operations == formulas.encoder_layer_cost(1, 3072, 512, 8, 2048).operations,
)

# %% [markdown]
# So the border depends on what you compare:
#
# | this | equals this | at |
# |---|---|---|
# | bare attention, $4T^2D$ | a plain RNN, $4TD^2$ | T = D |
# | real attention, $8TD^2 + 4T^2D$ | a plain RNN | never: it needs more at every T |
# | real attention | an LSTM, $16TD^2$ | T = 2D |
# | the quadratic part, $4T^2D$ | the feed-forward network, $16TD^2$ | T = 4D |
# | the quadratic part | all the rest of an encoder layer, $24TD^2$ | T = 6D |
#
# Well below 6D the square can be left out of the FLOPs, as Kaplan et al. (2020) do. What is left uses each weight once per token, in a multiplication and an addition:
#
# - **The rule:** a forward pass costs **2 FLOPs per parameter and token**. An encoder layer has $12D^2$ weights: at D = 512 they take 6.3 million FLOPs a token.
# - **The exception:** a look-up in a table of embeddings is no product and costs nothing. But an output layer over the vocabulary is a product and does cost: for 10,000 words 10.2 million FLOPs a token.
# - **In training:** the backward pass costs twice that, since a product $AB$ needs two more, for the gradients of A and of B. That makes 6 FLOPs in all, and 18.9 million a token for the encoder layer.
#
# So how many parameters are there?

# %% [markdown]
# ## 4 · Size: how many parameters?
#
# The RNN learns two matrices of D × D, the CNN three, real attention four. Each has biases besides:

# %%
D = 512
bill["parameters"] = [
    2 * (D * D + D),  # RNN: a bias for each matrix
    3 * D * D + D,  # CNN: one bias for all three
    4 * (D * D + D),  # real attention
]
for name, parameters in zip(layers, bill["parameters"], strict=True):
    print(f"{name:10}{parameters:10,}")

# %% [markdown]
# T is nowhere: a longer text costs no parameter. Around attention a Transformer builds the encoder layer (`linear1` and `linear2` are the feed-forward network), and below it a table of embeddings, here for 10,000 words, with D = 64 and F = 256:

# %%
encoder_layer = EncoderLayer(64, 4, 256)  # D, H, F
for name, part in encoder_layer.named_children():
    print(f"{name:15}{number_of_parameters(part):8,}")
print(f"{'whole layer':15}{number_of_parameters(encoder_layer):8,}")
print(f"{'table of words':15}{number_of_parameters(nn.Embedding(10_000, 64)):8,}")

# %% [markdown]
# The feed-forward network learns two linear maps, a norm a gain and a shift for each of D numbers. The $12D^2 = 49{,}152$ weights of a layer are nearly everything, a third of them attention's, two thirds the feed-forward network's. A table of V words has $VD$ parameters more. So a stack of N layers with its table has about $12ND^2 + VD$.
#
# Here the table outweighs 12 layers. At D = 512 the same table outweighs only one: it grows like D, the layers like $D^2$.
#
# **The first pause.** Work, memory, border and size are counted. Exercises 10.1 to 10.4 take about 75 minutes. After them comes the question that no FLOP answers: how long must one wait?

# %% tags=["fold"]
# @title The bill so far, and the layers' sizes
show_bill(4, whole=True)
claim(
    "The three layers have exactly these parameters.",
    bill["parameters"] == [number_of_parameters(layer) for layer in layers.values()],
)
size_of_layer = number_of_parameters(encoder_layer)
claim(
    "The $12 D^2$ weights are more than 98 % of the layer's parameters; a table of 10,000 words has more than 12 such layers at D = 64, and more than one, but less than two, at D = 512.",
    0.98 * size_of_layer < 12 * 64**2 < size_of_layer
    and 10_000 * 64 > 12 * size_of_layer
    and 1 < 10_000 * 512 / formulas.encoder_layer_cost(1, 1, 512, 8, 2048).parameters < 2,
)

# %% [markdown]
# ### Exercise 10.1 · Implement: the FLOPs of self-attention
#
# Difficulty ●●○○○ · 15 minutes · needs section 1
#
# So far all heads together were as wide as the words: H · K = D. Some models choose the heads' width K freely. Then queries, keys and values have H · K numbers a word, all heads together, and the output projection leads from H · K numbers back to D. Count the FLOPs of such a layer for a batch of B sequences, each of which attends to itself.
#
# Do what the counter does: go from product to product and add up, without torch's counter, without ours, and without `course_lib.cost`. The check compares with torch's counter at several sizes.


# %% nbgrader={"grade": false, "grade_id": "ex10-1-attention-operations", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attention_operations(B, T, D, H, K):
    """FLOPs of the matrix products of multi-head self-attention; a multiplication with its addition is 2.

    Args:
        B: batch.
        T: positions.
        D: width of input and output.
        H: heads.
        K: width of each head; H K need not be D.

    Returns:
        int.
    """
    ### BEGIN SOLUTION

    def product(rows, inner, columns):
        return 2 * rows * inner * columns

    queries_keys_values = 3 * product(B * T, D, H * K)
    scores = B * H * product(T, K, T)
    weighted_mean = B * H * product(T, T, K)
    output = product(B * T, H * K, D)
    return queries_keys_values + scores + weighted_mean + output
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex10-1-attention-operations-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch10.attention_operations(attention_operations)

# %% [markdown]
# ### Exercise 10.2 · Derive: three crossovers
#
# Difficulty ●●○○○ · 15 minutes · needs section 3
#
# D = 512. With pencil and paper, and with all projections and the factor 2 counted, at which T are these equal?
# (a) Real (multi-head) attention and a GRU of the same width (three times an RNN's products). (b) *Within* real attention: the quadratic part (scores and weighted mean) and the four projections; derive it, then check it in section 3's figure.
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
# ### Exercise 10.3 · Find the bugs: the FLOPs of a layer with cross-attention
#
# Difficulty ●●●○○ · 20 minutes · needs exercise 10.1
#
# A colleague counts the FLOPs of an attention from T queries to S keys, followed by a feed-forward network. The count is wrong in **three** places: one does not show when T = S, another not when H = 1, and the third is a constant factor. Fix it, without torch's counter and without `course_lib.cost`.
#
# ```python
# projections = 4 * (2 * B * T * D * D)
# scores_and_mean = 2 * (2 * B * H * T * S * D)
# feed_forward = 2 * (B * T * D * F)
# return projections + scores_and_mean + feed_forward
# ```


# %% nbgrader={"grade": false, "grade_id": "ex10-3-cross-operations", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cross_operations(B, T, S, D, H, F):
    """FLOPs of a multi-head cross-attention and a feed-forward network; a multiplication with its addition is 2.

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
# ### Exercise 10.4 · Derive: the original model, by hand
#
# Difficulty ●●●○○ · 25 minutes · needs section 4
#
# The base model of Vaswani et al. (2017): D = 512, H = 8, F = 2048, 6 encoder and 6 decoder layers, Post-LN, no norm at the end. Every linear map has a bias; the positions are sinusoids, without parameters. With paper and pencil (or Python as a pocket calculator) find the parameters of
# (a) one encoder layer, (b) one decoder layer, (c) all twelve layers, (d) the whole model with **one** table of embeddings for 37,000 subwords, which serves the encoder's input, the decoder's input and, transposed, the output layer, whose bias is left out. (*Going deeper* puts your sum beside the paper's.)

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
# ## 5 · Waiting: how many products in a row?
#
# When a note is passed down a row, a hundred helpers do not make it any faster. How many matrix products must come one after the other, on however many processors? Say for each result when it is ready: one after the latest of its inputs. The words are there at 0.


# %%
def rnn_wait(T):
    ready = 0  # the state before the first word
    for _ in range(T):
        from_word, from_state = 1, ready + 1  # x[t] @ W_ih.T, state @ W_hh.T
        ready = max(from_word, from_state)
    return ready


def attention_wait():
    q = k = v = 1  # three projections, side by side
    scores = max(q, k) + 1
    h = max(scores, v) + 1  # the weighted mean
    return h + 1  # the output's projection


bill["products in a row, 2,000 words"] = [rnn_wait(2000), 1, attention_wait()]
print(dict(zip(layers, bill["products in a row, 2,000 words"], strict=True)))

# %% [markdown]
# Everyone in the RNN waits for the person before, since a tanh stands between them. Attention's four are the same at any length. (Inside them the sums over T take about log T rounds of additions; a *linear* recurrence needs about as many rounds.)

# %% tags=["fold"]
# @title The next line, and autograd's longest chains
show_bill(5)
chains = {}
with attention_backend("math"):
    for T in (7, 27):
        batch = torch.randn(2, T, 16)
        rnn_chain = measure.sequential_steps(RNN(16, 16)(batch, backend="loop")[0])
        chains[T] = rnn_chain, measure.sequential_steps(CausalCNN(16, 3)(batch)), measure.sequential_steps(MultiHeadAttention(16, 4)(batch))
claim(
    "The longest chain of products in autograd's graph is as long: T in the RNN, 1 in the CNN, 4 in real attention, at T = 7 and 27.",
    all(found == (rnn_wait(T), 1, attention_wait()) for T, found in chains.items()),
)

# %% [markdown]
# ### And by the clock?
#
# On one core there is no waiting to save: this measures arithmetic, kernels and memory. A long chain means many small products in place of a few large ones, and plain attention moves $T^2$ numbers per head in and out of the memory.
#
# We recorded three runs of a training step at D = 64, forward and backward pass: real attention on both backends, and torch's own LSTM. By FLOPs attention passes the LSTM between T = 116 and 117 (not at 2D = 128: this step needs no gradient of the words, which spares the LSTM more than attention). And by the clock?

# %%
guess_3 = predict("T at which real attention, sdpa, takes as long as the LSTM", ...)

# %% tags=["fold", "reveal"]
# @title The crossover in time
lstm_runs = ledger.values("layer-cost", "time, LSTM, fused", "seconds")
timed_at = ledger.values("layer-cost", "time, LSTM, fused", "T")[0]
attention_over_lstm = {  # backend: for each run the ratio of the times at each length
    backend: [
        [a / b for a, b in zip(*run, strict=True)]
        for run in zip(ledger.values("layer-cost", f"time, attention, {backend}", "seconds"), lstm_runs, strict=True)
    ]
    for backend in ("math", "sdpa")
}
in_time = {backend: [crossing(timed_at, run) for run in runs] for backend, runs in attention_over_lstm.items()}
guess_3.compare(", ".join(f"{T:.0f}" for T in in_time["sdpa"]) + " (three runs)")
figures.time_by_length("layer-cost")
def step_flops(layer, T, **how):
    """FLOPs of the recorded step: forward and backward, without a gradient of the words."""
    with attention_backend("math"), FlopCounterMode(display=False) as counter:
        output = layer(torch.randn(8, T, 64), **how)
        (output[0] if isinstance(output, tuple) else output).sum().backward()
    return counter.get_total_flops()


of_step = {T: (step_flops(MultiHeadAttention(64, 4), T), step_flops(LSTM(64, 64), T, backend="loop")) for T in (116, 117, 1024)}
beside = []  # FLOPs and seconds of attention, as multiples of each baseline's
with torch.random.fork_rng():
    for name, baseline in (("LSTM", LSTM(64, 64)), ("RNN", RNN(64, 64))):
        baseline_runs = ledger.values("layer-cost", f"time, {name}, fused", "seconds")
        for T in (16, 128, 1024):
            with_kernel = step_flops(MultiHeadAttention(64, 4), T) + 8 * (2 * T * 64 * T)
            multiple = with_kernel / step_flops(baseline, T, backend="loop")
            i = timed_at.index(T)
            longer = [a[i] / b[i] for a, b in zip(ledger.values("layer-cost", "time, attention, sdpa", "seconds"), baseline_runs, strict=True)]
            beside.append([name, T, f"{multiple:.2f}", f"{min(longer):.2f} to {max(longer):.2f}"])
table(["attention (sdpa) over the fused", "T", "times the FLOPs (scores twice)", "times the seconds, three runs"], beside)
step_ratio = {T: of_attention_step / of_lstm_step for T, (of_attention_step, of_lstm_step) in of_step.items()}
scores_again = 8 * (2 * 1024 * 64 * 1024)  # B times Q K^T, at T = 1024
claim(
    "On this machine, in every run, attention takes less time than the LSTM up to T = 64, and more from T = 128 on, with either backend. By torch's counter the same step has fewer FLOPs at T = 116, and more from T = 117 on.",
    all((ratio > 1) == (T >= 128) for runs in attention_over_lstm.values() for run in runs for T, ratio in zip(timed_at, run, strict=True))
    and step_ratio[116] < 1 < step_ratio[117],
    sdpa=", ".join(f"{T:.0f}" for T in in_time["sdpa"]),
    math=", ".join(f"{T:.0f}" for T in in_time["math"]),
)
at_1024 = {backend: [run[-1] for run in runs] for backend, runs in attention_over_lstm.items()}
claim(
    "On this machine, at T = 1024, in every run, attention takes 5.5 to 7 times as long as the LSTM with sdpa, and 16 to 19 times with math; by torch's counter the step has 5.25 times the FLOPs, and 6.05 times if the scores count twice, as with the kernel.",
    all(5.5 < ratio < 7 for ratio in at_1024["sdpa"])
    and all(16 < ratio < 19 for ratio in at_1024["math"])
    and round(step_ratio[1024], 2) == 5.25
    and round((of_step[1024][0] + scores_again) / of_step[1024][1], 2) == 6.05,
    **at_1024,
)

# %% [markdown]
# **Do seconds follow FLOPs?** Against the LSTM with the kernel roughly, if the scores, which it computes again, count twice; that puts the crossover near T = 100, the clock at about 97. With plain products not: the clock says 74, and at T = 1,024 this step has 5.25 times the FLOPs and takes 16 to 19 times as long. Nor, even with the kernel, against the fused RNN: there 24 times the FLOPs take less than four times as long. "Faster" is a fact about machines and kernels, not about T and D alone.
#
# (One core of one machine, its model not recorded; B = 8, four heads, no mask; crossovers interpolated between T = 64 and 128. What a shorter wait saves on many processors was not measured.)
#
# Work, memory, size, waiting: that is the price. What does attention buy for it?

# %% [markdown]
# ## 6 · Distance: how far must news travel?
#
# A word that matters may stand far back: "the **books** that I lent to my neighbour last summer **were**...". To learn this, a gradient must travel from the output back to that word. The fewer factors multiply it on its way, the less chance it has to vanish (chapter 04). The opening's picture shows the way in red. Through how many products does it lead? (We count products only; gates and slopes, factors too, are measured afterwards.)
#
# In the RNN the first person's news passes through all T hands. In bare attention it arrives in one product; in real attention it passes value, weighted mean and output. In a convolution news moves only k − 1 places a layer, so layers must be stacked until the last output sees the first word:

# %%
cnn_layers, sees = 0, 1
while sees < 2000:
    cnn_layers, sees = cnn_layers + 1, sees + 3 - 1
bill["products from the first word to the last output"] = path = [
    2000,  # RNN: one matrix at each step
    f"one layer sees 3 words; {cnn_layers:,} layers: {cnn_layers:,}",
    3,  # real attention
]
print(dict(zip(layers, path, strict=True)))

# %% [markdown]
# Those 1,000 layers take 250 times the work of real attention. So of our three only attention sees all T words with a short wait *and* over a short distance. (Dilated kernels, which leave gaps, come close with seven layers.)
#
# The LSTM's path is 1: once a word is in the cell, its gradient passes a gate at each step, but no further matrix. So path length alone does not decide: look at the gradient. Change one word slightly, d steps before the end: by how much does the last output move along some random direction? One backward pass answers for every d:


# %%
def gradient_by_distance(layer, x):
    """How strongly the last output depends on the input d steps before it: (T,)."""
    x = x.detach().requires_grad_()  # (B, T, D)
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y  # RNN, LSTM: with the last state
    direction = torch.randn(y[:, -1].shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((y[:, -1] * direction).sum(), x)  # (B, T, D)
    return gradient.norm(dim=-1).mean(0).flip(0)  # (T,): d = 0, 1, ...


# %% [markdown]
# We try untrained layers of each kind, with 128 steps and three seeds; the LSTM also with a forget bias of 3, which opens its gates (chapter 05). A gradient can be **faded**, the smaller the farther back its word stands, or **divided** among all words, near or far:

# %%
by_seed = {}  # layer: one list of T norms for each seed
for seed in range(3):
    torch.manual_seed(seed)
    x128 = torch.randn(8, 128, 64)
    fresh = {
        "RNN": RNN(64, 64),
        "LSTM": LSTM(64, 64),
        "CNN, 8 layers": CausalCNN(64, 3, 8),
        "attention": MultiHeadAttention(64, 4),
        "LSTM, forget bias 3": set_forget_bias(LSTM(64, 64), 3),
    }
    for name, fresh_layer in fresh.items():
        norms = gradient_by_distance(fresh_layer, x128)
        by_seed.setdefault(name, []).append(norms.tolist())
figures.gradient_by_distance(by_seed)

# %% tags=["fold"]
# @title How far each reaches, and the next line
show_bill(6)
shares = {name: [[norm / max(run) for norm in run] for run in runs] for name, runs in by_seed.items()}
lost = {  # the first d at which less than a millionth of the largest gradient is left, for each seed
    name: [next(d for d, share in enumerate(run) if share < 1e-6) for run in shares[name]] for name in ("RNN", "LSTM")
}
claim(
    "As torch initialises them, in all three seeds, less than a millionth of the largest gradient is left from about 18 steps back in the RNN, and from about 27 in the LSTM. With a forget bias of 3 more than a tenth arrives from each of the 128 steps.",
    all(16 <= d <= 20 for d in lost["RNN"])
    and all(25 <= d <= 29 for d in lost["LSTM"])
    and all(max(run[d:]) < 1e-6 for name in lost for run, d in zip(shares[name], lost[name], strict=True))
    and all(min(run) > 0.1 for run in shares["LSTM, forget bias 3"]),
    RNN_first_at=lost["RNN"],
    LSTM_first_at=lost["LSTM"],
    LSTM_keeps_at_each_step=[(run[63] / run[10]) ** (1 / 53) for run in shares["LSTM"]],
)
claim(
    "8 CNN layers of kernel 3 reach back 16 steps; beyond, the gradient is 0 exactly. Attention, d = 0 left out: the faintest input has over a fifth of the strongest.",
    all(min(run[:17]) > 0 and max(run[17:]) == 0 for run in by_seed["CNN, 8 layers"])
    and all(min(run[1:]) > 0.2 * max(run[1:]) for run in by_seed["attention"]),
)

# %% [markdown]
# **RNN and LSTM**, as torch initialises them, forget exponentially. The LSTM keeps about 0.6 at each step, and $0.6^{27}$ is about a millionth. Its gates can be set to stay open (dashed): then more than a tenth of the largest gradient arrives from each of these 128 steps. **The CNN** is blind beyond its window.
#
# From d = 1 on **real attention's** line is level, on average, by symmetry: without positions and without a mask, one layer cannot tell one earlier place from another, so none can count less for being far away. **But level is not large.** Untrained weights are of the order of 1/T, so every earlier input has only such a share in the *one* output. And as the text gets longer?

# %% tags=["fold"]
# @title An earlier input's gradient by length
by_length_T = {}  # T: mean norm over all earlier inputs, d = 0 left out
for T in (16, 64, 256, 1024):
    torch.manual_seed(0)
    attention_layer = MultiHeadAttention(64, 4)
    norms = gradient_by_distance(attention_layer, torch.randn(8, T, 64))
    by_length_T[T] = norms[1:].mean().item()
table(
    ["T", "mean gradient from an earlier input", "times T"],
    [[T, f"{norm:.2g}", f"{T * norm:.1f}"] for T, norm in by_length_T.items()],
)
times_T = [T * norm for T, norm in by_length_T.items()]
claim(
    "In this untrained attention layer (D = 64) an earlier input's gradient falls like 1 / T: it is 4 / T within a quarter, from T = 16 to 1024.",
    all(3 < each < 5 for each in times_T),
)
rnn_runs, attention_runs = by_seed["RNN"], by_seed["attention"]
claim(
    "At T = 128, in each of the three seeds: 1 step back the RNN passes on more than 10 times as much as attention, 10 steps back less than a fifth.",
    all(a[1] > 10 * b[1] and a[10] < b[10] / 5 for a, b in zip(rnn_runs, attention_runs, strict=True)),
)

# %% [markdown]
# So this is what attention buys, in one untrained layer at least: its gradient does not fade with *distance*, and no gate has to be opened for it; it is divided among all T inputs. A softmax that has learned where to look can undo the division: it gives one input nearly all the weight, however far away. That was not measured here. And at T = 128 opened gates pass on more, at T = 512 less from the far end (*Going deeper*).

# %% [markdown]
# ## 7 · After training: what must be carried on?
#
# Short paths and short waits: is there a catch besides the $T^2$? In this section attention is **causal**: no position sees a later one. In training all words are known; a model that *writes* knows none before it has chosen it. The RNN goes on from its state; a plain Transformer rereads everything. Yet keys and values of earlier tokens never change: the **key-value cache** keeps them (chapter 13).
#
# Let a Transformer and an RNN, of four layers each, write the article. **First the FLOPs.** A new token takes section 3's formula, divided by T: $24D^2$ a layer for the matrices, and $4tD$ for the quadratic part, against t keys.

# %%
N, T, D = 4, 2000, 512
one_pass = N * (24 * T * D**2 + 4 * T**2 * D)  # as in training
all_anew, with_cache = 0, 0
for t in range(1, T + 1):  # token by token
    all_anew += N * (24 * t * D**2 + 4 * t**2 * D)  # the whole text once more
    with_cache += N * (24 * D**2 + 4 * t * D)  # one token, t keys
by_rnn = N * 4 * T * D**2  # in training and in generation

# %% [markdown]
# **Then the waits.** Over a known text the Transformer takes six products in a row a layer, four in attention and two in the feed-forward network. The RNN's layers run *staggered*, layer 2 reading word 1 while layer 1 reads word 2. 2 layers and 3 words take 4 rounds, since layer 2 starts one round late; in general $N + T - 1$ products in a row, not NT. When they write, each word waits until all layers have finished the one before:

# %%
N, T = 4, 2000
one_wait, rnn_one_wait = N * (4 + 2), N + T - 1  # over a known text
writing_wait, rnn_writing_wait = T * one_wait, T * N

# %% tags=["fold"]
# @title Training and generation
transformer_of_4 = formulas.encoder_cost(1, 2000, D=512, H=8, F=2048, N=4, causal=True)
one_rnn_layer = formulas.rnn_cost(1, 2000, 512)
sizes_of_both = transformer_of_4.parameters, 4 * one_rnn_layer.parameters
table(
    ["2,000 tokens, four layers each, no output layer", "parameters", "products in a row", "FLOPs (billions)"],
    [
        ["Transformer, one forward pass, as in training", sizes_of_both[0], one_wait, round(one_pass / 1e9, 1)],
        ["Transformer, generation, all anew for each token", sizes_of_both[0], writing_wait, round(all_anew / 1e9, 1)],
        ["Transformer, generation with a cache", sizes_of_both[0], writing_wait, round(with_cache / 1e9, 1)],
        ["RNN, one forward pass, as in training", sizes_of_both[1], rnn_one_wait, round(by_rnn / 1e9, 1)],
        ["RNN, generation", sizes_of_both[1], rnn_writing_wait, round(by_rnn / 1e9, 1)],
    ],
)
claim(
    "Generating 2,000 tokens, each from the whole text so far, takes over 800 times the FLOPs of one forward pass over the finished text.",
    all_anew > 800 * one_pass
    and (one_pass, by_rnn, one_wait) == (transformer_of_4.operations, 4 * one_rnn_layer.operations, transformer_of_4.steps),
    times=all_anew / one_pass,
)

# %% [markdown]
# When they write, the Transformer waits 2,000 times for its 24 products, the RNN 2,000 times for four. The RNN has a sixth of the parameters, so compare their waits, not their FLOPs. The cache brings the FLOPs down to even less than those of one pass, which also multiplies the pairs that the causal mask hides. But the wait stays, and so does what each layer must carry on: the RNN its state, the CNN its last two words, attention all keys and values.

# %% tags=["fold"]
# @title The whole bill
T, D = 2000, 512
bill["numbers carried on to write word 2,001"] = [D, 2 * D, 2 * T * D]
show_bill(7, whole=True)

# %% [markdown]
# The RNN's four layers carry on 2,048 numbers, after ten steps and after ten million; the cache of the Transformer's four has 8.2 million after the article. That is the catch. The RNN pays otherwise: its 2,048 numbers must stand for all 2,000 words.
#
# **The second pause.** Exercises 10.5 and 10.6 take about 45 minutes.

# %% [markdown]
# ### Exercise 10.5 · Implement: what does the last output depend on?
#
# Difficulty ●●●○○ · 20 minutes · needs section 6, and chapter 04 for autograd
#
# Section 6 measures how much arrives. Now measure the window of any model: on which positions of the input does the last output depend at all? Ask its gradient, not a small step: a step also moves what has slope 0. A batch of random inputs is given, since a ReLU may be closed for one of them and open for another; a small gradient is a gradient, and a plain sum over the entries of an output may hide one. The caller's `x` stays as it was: afterwards it must neither require a gradient nor have one.


# %% nbgrader={"grade": false, "grade_id": "ex10-5-positions-seen", "locked": false, "schema_version": 3, "solution": true, "task": false}
def positions_seen(model, x):
    """Which input positions the last output depends on: where its gradient is not 0.

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
# ### Exercise 10.6 · Explore and explain: when would you still choose an RNN?
#
# Difficulty ●●●○○ · 25 minutes · needs sections 2, 3 and 5 to 7, and chapter 04
#
# The cell compares an LSTM and an encoder layer of the same width, at sizes that you choose. Try three cases: a hearing aid that must answer after every sample, 16,000 times a second; sentences of 30 words; a genome of a million letters.

# %%
B, T, D, H = 1, 1000, 64, 4  # your turn
how = {"causal": True, "backend": "sdpa"}
costs = {
    "LSTM": formulas.lstm_cost(B, T, D),
    "encoder layer (sdpa)": formulas.encoder_layer_cost(B, T, D, H, 4 * D, **how),
}
names = "parameters", "FLOPs", "saved activations", "sequential steps"
rows = [[name, *pair] for name, *pair in zip(names, *costs.values())]
rows.append(["numbers carried on to the next step", 2 * B * D, 2 * B * T * D])
one_more = formulas.lstm_cost(B, 1, D).operations, B * (24 * D * D + 4 * T * D)
rows.append(["FLOPs for one more token", *one_more])
table(["", *costs], rows)

# %% [markdown]
# Explain in a few sentences: (a) Which row decides for the hearing aid, and what do you choose? (b) Which decides for *training* on sentences of 30 words, on a GPU? (c) A million letters: which entry forbids plain attention, and which the plain RNN? Name a way out for each.
# (d) "The RNN has infinite context, attention only T." In which sense is it true, in which is it not?
#
# Stuck? `ch10.when_an_rnn.hint(1)`, then `hint(2)` and `hint(3)`.

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex10-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) What is carried on, and the FLOPs for one more token (here a sample): for the LSTM both are constant, for attention both grow with all that was heard. The time for one sample is fixed, so only a cost that does not grow will do: the LSTM, or attention over a short, fixed window.
#
# (b) The sequential steps. In training all positions are known; the encoder layer's six products serve all of them at once, the LSTM waits thirty times a layer. The quadratic part hardly counts: T / (6D + T) is 7 % at T = 30 and D = 64.
#
# (c) Attention: the FLOPs and, on the math path, the memory for $10^{12}$ pairs. The RNN: a million steps in a row, and a gradient that has vanished long before. Ways out: for attention a window or another sparse pattern (a kernel that keeps no weights helps the memory only); dilated convolutions with log T layers; for the RNN truncation, at the price of its bias, or a recurrence that can be computed in parallel.
#
# (d) True of the forward pass: the state may depend on everything read before, and costs nothing more to carry. Not true of what is learned: the state has D numbers, the gradient fades, and truncation cuts it at the edge of the chunk. Attention sees only T, but nothing is harder to see for being far away (unless positions make it so).
# ### END SOLUTION

# %% [markdown]
# When you have written your answer, paste it in place of the three dots. Nobody marks it: from 20 words on you are told what a good answer contains, and you compare.

# %%
ch10.when_an_rnn.compare(...)

# %% [markdown]
# ### The bill in formulas
#
# For any length:
#
# | | RNN | CNN, kernel k | real attention |
# |---|---|---|---|
# | FLOPs | $4TD^2$ | $2kTD^2$ | $8TD^2 + 4T^2D$ |
# | numbers saved | about $2TD$ | about $2TD$ | $5TD + HT^2$, with a kernel $5TD + HT$ |
# | parameters, without biases | $2D^2$ | $kD^2$ | $4D^2$ |
# | products in a row, forward pass over a known text | T | 1 | 4 |
# | products from the first word to the last output | T | one layer sees k words; $(T - 1)/(k - 1)$ layers: $(T - 1)/(k - 1)$ | 3 |
# | gradient over distance d | fades or explodes (gates can learn, or be set, to hold it) | 0 beyond the window | one layer without positions: does not fade with d; before training proportional to 1/T |
# | FLOPs for one more word | $4D^2$ | $2kD^2$ | $8D^2 + 4TD$ |
# | numbers carried on | D | $(k - 1)D$ | $2TD$ |
#
# The CNN's other rows are of one layer; seeing all T words takes $(T - 1)/(k - 1)$ times its FLOPs, parameters and waits.
#
# Two things no line counts: the order of the words, which is built into RNN and CNN and must be added to attention (chapter 08), and how well a layer does on texts longer than those it learned from.

# %% [markdown]
# ## 8 · Errors you will meet
#
# **1 · FLOPs or multiply-adds?** One tool reports half of what another does: [fvcore](https://github.com/facebookresearch/fvcore/blob/main/fvcore/nn/flop_count.py) counts a multiplication and its addition as *one* FLOP, torch as two. Test a tool on a layer that you can count by hand:

# %%
with FlopCounterMode(display=False) as of_linear:
    nn.Linear(3, 5, bias=False)(torch.randn(7, 3))
print("multiply-adds:", 7 * 3 * 5, "FLOPs by torch:", of_linear.get_total_flops())

# %% [markdown]
# **2 · The counter does not see the fast path.** A fused kernel does its products inside one operation. Where the counter has no formula for it, as here on a CPU, it silently counts 0: of attention only the projections are left. Count with `math` (attention) and `loop` (a Python loop over an RNN's steps); time the fast ones.

# %% tags=["nbval-ignore-output"]
sample = torch.randn(2, 27, 16)
lstm, four_heads = LSTM(16, 16), MultiHeadAttention(16, 4)
for backend in ("sdpa", "math"):
    with attention_backend(backend), FlopCounterMode(display=False) as counter:
        four_heads(sample)
    print(f"attention, {backend:5} {counter.get_total_flops():8,} FLOPs")
for backend in ("fused", "loop"):
    with FlopCounterMode(display=False) as counter:
        lstm(sample, backend=backend)
    print(f"LSTM,      {backend:5} {counter.get_total_flops():8,} FLOPs")

# %% [markdown]
# The library's `measure_cost` refuses such a run:

# %%
try:
    measure.measure_cost(four_heads, sample)
except ValueError as error:
    print(error)

# %% tags=["fold"]
# @title On the plain path
with attention_backend("math"):
    plain_count = measure.count_operations(four_heads, sample)
claim(
    "On the plain path torch's counter finds what the formula says.",
    plain_count == formulas.multi_head_cost(2, 27, 16, 4).operations,
)

# %% [markdown]
# **3 · One position more than the table holds.** No parameter of attention depends on T, but a learned table of positions ends. A longer table accepts the text, but its new rows have still to be trained.

# %% tags=["raises-exception"]
LearnedPositions(64, 50).add(torch.zeros(1, 51, 64))

# %%
print(tuple(LearnedPositions(64, 51).add(torch.zeros(1, 51, 64)).shape))  # fixed

# %% [markdown]
# ## Summary
#
# 1. A product costs 2 · rows · inner · columns FLOPs. Real attention has $4D^2$ parameters and some biases, takes $8TD^2 + 4T^2D$ FLOPs, and keeps $HT^2$ weights, which fill the memory.
# 2. Bare attention has fewer FLOPs than a plain RNN of the same width below T = D, real attention never has; but it has fewer than an LSTM below T = 2D. In an encoder layer (F = 4D) the square is half of the FLOPs at T = 6D, half of what is saved already at 12D/H. Against the LSTM, seconds here followed FLOPs roughly with a kernel, with plain products not.
# 3. In a forward pass over a known text a layer of an RNN waits for T products in a row, a convolution for one, real attention for four. A model that writes waits for each token; attention carries on all keys and values, the RNN D numbers.
# 4. The shortest path is T products in a plain RNN, about T/(k − 1) in a stack of convolutions, $\log_k T$ in a dilated one, 1 in bare and 3 in real attention. Without positions one layer's gradient does not fade with distance, but before training each earlier input gets only a share proportional to 1/T.
# 5. A fused kernel keeps BHT numbers instead of BHT² (apart from the 5BTD that both keep); on this CPU not with attention dropout or a learned bias. Here it also took less time.
#
# ## Where next
#
# *Chapter 11* turns to depth, the distance that attention does not shorten. *Chapter 12* re-derives BERT's 110 and 340 million with this chapter's formulas; *chapter 13* builds the cache.
#
# ## References
#
# - A. Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, arXiv 1706.03762: section 4 and table 1 (FLOPs, sequential steps, path length), table 3 (65 and 213 million parameters), sections 3.4 and 5.1 (shared table, about 37,000 tokens).
# - J. Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, arXiv 2001.08361: section 2.1 and table 1 (parameters and FLOPs of each part; 2N FLOPs a token, 6N in training, where their N is the number of parameters without those of the embeddings; their count of the quadratic part is half of ours, so their border is 12D, not 6D).
# - A. van den Oord et al., *WaveNet*, 2016, arXiv 1609.03499: section 2.1 and figure 3 (dilated causal convolutions). N. Kalchbrenner et al., *Neural Machine Translation in Linear Time*, 2016, arXiv 1610.10099: path lengths of convolutions and recurrences.
# - T. Dao et al., *FlashAttention*, NeurIPS 2022, arXiv 2205.14135: section 3.1, algorithm 1 (tiles, recomputation, the kept normalisers). M. Rabe, C. Staats, *Self-attention Does Not Need O(n²) Memory*, 2021, arXiv 2112.05682.
# - Y. Tay et al., *Efficient Transformers: A Survey*, 2020, arXiv 2009.06732: ways to make attention cheaper than T². R. Child et al., *Generating Long Sequences with Sparse Transformers*, 2019, arXiv 1904.10509. I. Beltagy et al., *Longformer*, 2020, arXiv 2004.05150. M. Zaheer et al., *Big Bird*, NeurIPS 2020, arXiv 2007.14062.
# - Z. Dai et al., *Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context*, ACL 2019, arXiv 1901.02860: section 3.2.
# - A. Luccioni et al., *Estimating the Carbon Footprint of BLOOM*, JMLR 2023, arXiv 2211.02001: GPU hours and power. T. Le Scao et al., *BLOOM*, 2022, arXiv 2211.05100: the tokens.
# - Video: *LSTM is dead. Long live Transformers!*, https://www.youtube.com/watch?v=S27pHKBEp30: recurrence and attention compared.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts.
#
# **The tools.** *How does torch's counter see the products?* · *How can one see what autograd keeps?* · *How high is the peak?* · *Do formulas and layers agree?* · *How can one measure a path length?*
#
# **Memory and size.** *What do more heads cost?* · *How much of the kernel's lead is the mask's?* · *When does the kernel not save memory?* · *Where is the border in memory?* · *Does the count give the published sizes, and where are a model's parameters?*
#
# **The tables, and cheaper layers.** *What does the paper's table say, row by row?* · *What does restricted attention look like?* · *Where does attention pass a convolution?*
#
# **The clock.** *How do the times grow, and where do they cross?*
#
# **Gradients.** *Do opened gates hold on a longer text?* · *Does attention's line stay level once there are positions?* · *Why does d = 0 stand out in attention?* · *Why does the CNN's gradient have a hump?*
#
# **Long texts, in chunks.** *What is lost when a text is read in chunks?* · *What is T on a long text, and what does the bargain cost?*

# %% [markdown] tags=["deeper"]
# ### How does torch's counter see the products?
#
# All that a count needs is the shapes. If one writes every product oneself, a function can carry it out and note its FLOPs:


# %%
counted = []  # the FLOPs of each product, in order


def product(left, right):
    """left @ right, its FLOPs noted."""
    result = left @ right
    inner = left.shape[-1]
    counted.append(2 * inner * result.numel())  # numel: rows · columns
    return result


def attention_by_products(x):
    """Bare self-attention; x is (T, D)."""
    scores = product(x, x.T) / math.sqrt(x.shape[-1])  # (T, T)
    return product(scores.softmax(dim=-1), x)  # (T, D)


# %%
counted.clear()
attention_by_products(x)
print("attention:", counted, "together", sum(counted))
counted.clear()
state = torch.zeros(1, 2)  # (1, D)
for t in range(3):
    state = torch.tanh(product(x[t : t + 1], W_ih.T) + product(state, W_hh.T))
print("RNN:", counted, "together", sum(counted))

# %% [markdown]
# To count a finished layer, one must watch it. Everything that torch computes ends in basic operations, such as `mm` (a product of two matrices) and `bmm` (a batch of them). A `TorchDispatchMode` is called for each one inside its `with` block: `args` are the tensors that go in. An operation has variants for different arguments; `overloadpacket` is what all of them belong to, and its name is the name we want.

# %%
class FlopCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))  # do what was asked for
        name = operation.overloadpacket.__name__  # mm: a matrix product, bmm: a batch
        if name in ("mm", "bmm"):  # left @ right
            inner = args[0].shape[-1]
            self.flops += 2 * inner * result.numel()  # rows · columns entries
        if name in ("addmm", "baddbmm"):  # bias + left @ right
            inner = args[1].shape[-1]
            self.flops += 2 * inner * result.numel()
        return result

# %%
by_both, by_products = [], []  # (ours, torch's) for the whole layer; for bare attention
for T in (16, 64, 256):
    inputs = torch.randn(1, T, 64)
    with attention_backend("math"):
        with FlopCounter() as ours:
            layer_64(inputs)
        by_both.append((ours.flops, measure.count_operations(layer_64, inputs)))
        bare_found = measure.count_operations(lambda x: attention(x, x, x), inputs)
    counted.clear()
    attention_by_products(inputs[0])
    by_products.append((sum(counted), bare_found))

# %% tags=["fold"]
# @title The counters
claim(
    "A whole layer of four heads at T = 16, 64 and 256: our counter finds the same totals as torch's.",
    all(ours == theirs > 0 for ours, theirs in by_both),
)
claim(
    "Bare attention at the same lengths: the products that note their FLOPs find the same as torch's counter.",
    all(ours == theirs > 0 for ours, theirs in by_products),
)

# %% [markdown]
# torch's counter can also follow a layer that generates word by word with a cache. Does it find what section 7's formula says?

# %% tags=["fold"]
# @title The FLOPs of generation with a cache
with torch.no_grad(), attention_backend("math"), FlopCounterMode(display=False) as of_cached:
    layer_of_4, cache = EncoderLayer(64, 4, 256), KVCache(1, 4, 256, 16)
    for token in torch.randn(256, 1, 1, 64):
        layer_of_4(token, causal=True, cache=cache)
claim(
    "One layer of D = 64 generates 256 tokens with a cache: torch's counter finds the FLOPs that section 7's formula says.",
    of_cached.get_total_flops() == sum(24 * 64**2 + 4 * t * 64 for t in range(1, 257)),
)

# %% [markdown] tags=["deeper"]
# ### How can one see what autograd keeps?
#
# torch calls a function of ours, `pack`, for each tensor that it saves. Several may share a block of memory, so we count blocks, by address. Here is section 2's `one_head`, on three words. (torch will not list $W_q$, $W_k$ and $W_v$: they would serve only the gradient of x, which nobody asks for here.)

# %%
blocks, passed, notes = {}, 0, []  # blocks: {address: numbers in it}


def pack(tensor):
    global passed
    block = tensor.untyped_storage()
    passed += block.nbytes() // 4  # float32: 4 bytes a number
    if block.data_ptr() == W_o.untyped_storage().data_ptr():
        note = "a parameter: exists anyway"
    elif block.data_ptr() in blocks:
        note = "a block that we have"
    else:
        blocks[block.data_ptr()] = block.nbytes() // 4
        note = "new"
    notes.append(f"{tuple(tensor.shape)} {note}")
    return tensor


with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    one_head(x)
total = f"saved: {sum(blocks.values())} numbers (all that passed: {passed})"
print("\n".join([*notes, total]))

# %% tags=["fold"]
# @title Counted by blocks, and by all that passed
kept_by_hand = sum(blocks.values())
with attention_backend("math"):
    kept_of_one, kept_of_two = (
        measure.count_activations(layers["attention"], sentence.expand(B, 20, 512).contiguous()) for B in (1, 2)
    )
claim(
    "Each block once, without parameters, makes $5TD + T^2$ numbers; adding up all that passed gives over one and a half times as many.",
    kept_by_hand == 5 * 3 * 2 + 3**2 and passed > 1.5 * kept_by_hand,
)
claim(
    "For one sentence in the batch the opening's layer keeps $5TD + HT^2$ numbers and once more $TD$, for each of two sentences only $5TD + HT^2$.",
    [kept_of_one, kept_of_two] == [6 * 20 * 512 + 8 * 20**2, 2 * (5 * 20 * 512 + 8 * 20**2)],
)

# %% [markdown]
# That is why section 2's check counts two articles: for a batch of one, the library's layer also keeps the queries from before the division by the root. So count each block once, and no parameter. The library's recorder does the same:

# %%
show_source(measure.count_activations)

# %% [markdown] tags=["deeper"]
# ### How high is the peak?
#
# It is measured in a fresh process for each backend:

# %%
setup = """
from course_lib.attention import attention
def step(backend):
    q, k, v = torch.randn(3, 1, 4, 1024, 64).requires_grad_()
    attention(q, k, v, backend=backend).sum().backward()
"""
peaks = {}
for path in tqdm(("math", "sdpa"), leave=False):  # each in a process of its own
    (peaks[path],) = measure.peak_memory([f"step('{path}')"], setup)

# %% tags=["fold"]
# @title The two peaks
if None in peaks.values():
    print("This system does not tell a process' peak memory: see the recorded curve below.")
else:
    claim(
        "At T = 1024 the math path's peak is more than 3 times that of sdpa.",
        peaks["math"] > 3 * peaks["sdpa"],
        math=f"{peaks['math'] / 1e6:.0f} MB",
        sdpa=f"{peaks['sdpa'] / 1e6:.0f} MB",
    )

# %% [markdown] tags=["deeper"]
# ### Do formulas and layers agree?
#
# The library holds this chapter's formulas with all constants. For N convolutions, for example: $N(kD^2 + D)$ parameters (D biases a layer), $2NBTkD^2$ FLOPs, N steps, and a path of N if the stack reaches back to the first input. And this measures any layer with code that knows nothing of a formula (FLOPs are called `operations` in the library):

# %%
show_source(measure.measure_cost)

# %% [markdown]
# Seven layers read 27 steps. The stacks of convolutions are just deep enough for the last output to see the first input.

# %%
sizes, k = (2, 27, 16), 3  # (B, T, D), and the kernel
n, m = formulas.layers_to_cover(27, k), formulas.layers_to_cover(27, k, dilated=True)
torch.manual_seed(0)
steps_27 = torch.randn(*sizes)
stacked_cnn, dilated_cnn = CausalCNN(16, k, n), CausalCNN(16, k, m, dilated=True)
for conv in [*stacked_cnn.layers, *dilated_cnn.layers]:
    nn.init.constant_(conv.bias, 3.0)  # all ReLUs open: no path is blocked

# %%
cases = {  # name: (layer, formula)
    "RNN": (RNN(16, 16), formulas.rnn_cost(*sizes)),
    "LSTM": (LSTM(16, 16), formulas.lstm_cost(*sizes)),
    "CNN, 1 layer": (CausalCNN(16, k), formulas.cnn_cost(*sizes, k)),
    f"CNN, {n} layers": (stacked_cnn, formulas.cnn_cost(*sizes, k, n)),
    f"CNN, {m} layers, dilated": (
        dilated_cnn,
        formulas.cnn_cost(*sizes, k, m, dilated=True),
    ),
    "bare attention": (lambda q: attention(q, q, q), formulas.attention_cost(*sizes)),
    "real attention, 4 heads": (
        MultiHeadAttention(16, 4),
        formulas.multi_head_cost(*sizes, 4),
    ),
}

# %%
measured = {}
for name, (measured_layer, _) in cases.items():
    options = {"backend": "loop"} if name in ("RNN", "LSTM") else {}
    with attention_backend("math"):
        measured[name] = measure.measure_cost(measured_layer, steps_27, **options)

# %% tags=["fold"]
# @title Formula / measurement, for every layer and column
pairs = {name: (formula, measured[name]) for name, (_, formula) in cases.items()}
rows = [
    [name, *(f"{a:,} / {b:,}" if a is not None else "does not reach" for a, b in zip(*both, strict=True))]
    for name, both in pairs.items()
]
table(["layer (formula / measured)", "parameters", "FLOPs", "saved activations", "sequential steps", "path length"], rows)
claim(
    "Formula and measurement agree in every column of every layer, to the last digit.",
    all(formula == measured for formula, measured in pairs.values()),
)
claim(
    "27 steps: a stack of kernel 3 needs 13 layers, a dilated one 3, the RNN 27 products, bare attention 1.",
    [both[1].path for name, both in pairs.items() if name not in ("LSTM", "real attention, 4 heads")]
    == [27, None, 13, 3, 1],
)

# %% [markdown]
# **Real attention's** path is 3 (value projection, weighted mean, output projection) at every length. The **LSTM's** path is 1, though it takes T sequential steps: the additive update is chapter 05's shortcut, seen from outside. The GRU's is 1 too. This is where our definition parts from the paper's: counted in steps, the LSTM's path is T.
#
# **Several layers of an RNN** need not wait for one another. Section 7 counts them staggered, each one word after the layer below:

# %% tags=["fold"]
# @title Four layers of an RNN on 2,000 words
rnn_stack, words_2000 = [RNN(4, 4) for _ in range(4)], torch.randn(1, 2000, 4)
after_one_another = words_2000
for rnn_layer in rnn_stack:
    after_one_another = rnn_layer(after_one_another, backend="loop")[0]
states = [torch.zeros(1, 4)] * 4
for t in range(2000):
    staggered = words_2000[:, t]
    for n, rnn_layer in enumerate(rnn_stack):
        from_below, from_before = staggered @ rnn_layer.weight_ih_l0.T, states[n] @ rnn_layer.weight_hh_l0.T
        states[n] = staggered = torch.tanh(from_below + from_before)
claim(
    "The longest chain of products in autograd's graph of the RNN's forward pass: 8,000 layer after layer, 2,003 staggered.",
    (measure.sequential_steps(after_one_another), measure.sequential_steps(staggered)) == (8000, 2003),
)

# %% [markdown] tags=["deeper"]
# ### How can one measure a path length?
#
# Shrink the gradient by a factor $\varepsilon$ at every matrix product that it passes. A path through n products then brings $\varepsilon^n$ times what it brought before; for a small $\varepsilon$ the shortest paths remain, and what arrives is $\approx c\,\varepsilon^n$. Halve $\varepsilon$, and the result is divided by $2^n$: so n can be read off. The sequential steps are simpler: the longest chain of products in autograd's graph.

# %%
show_source(measure.sequential_steps, measure.path_length)

# %% tags=["fold"]
# @title The paths on the opening's seven words
seven = torch.randn(2, 7, 16)
with attention_backend("math"):
    paths = [
        measure.path_length(RNN(16, 16), seven, backend="loop"),
        measure.path_length(CausalCNN(16, 3, 3), seven),
        measure.path_length(lambda x: attention(x, x, x), seven),
        measure.path_length(MultiHeadAttention(16, 4), seven),
    ]
claim(
    "Measured on the picture's seven words: 7 products in the RNN, 3 in a CNN of 3 layers, 1 in bare and 3 in real attention.",
    paths == [7, 3, 1, 3],
)

# %% [markdown]
# How large the gradient is, and not only through how many products it comes, is what section 6's `gradient_by_distance` says. The recorded runs, made with the library's own, agree with its three seeds:

# %% tags=["fold"]
# @title The same in every recorded run
far_end = [run[-1] for name in ("RNN", "LSTM") for run in ledger.values("layer-cost", f"gradient, {name}", "by_distance")]
reached = ledger.values("layer-cost", "gradient, CNN, 8 layers", "reached")
least = ledger.values("layer-cost", "gradient, attention", "least")
claim(
    "In every recorded run, as fractions of the largest: RNN and LSTM, as torch initialises them, keep less than a millionth at the far end, the CNN nothing beyond 16, attention more than a hundredth everywhere.",
    max(far_end) < 1e-6 and set(reached) == {16} and min(least) > 0.01,
    attention_at_least=least,
)

# %% [markdown] tags=["deeper"]
# ### What do more heads cost?
#
# Section 2 says $HT^2$. Nothing else grows:

# %% tags=["fold"]
# @title From 2 heads to 16
costs_by_heads = {H: formulas.multi_head_cost(2, 50, 64, H) for H in (2, 4, 8, 16)}
claim(
    "From 2 heads to 16, by the formulas, parameters and FLOPs stay as they are; 14 more matrices of weights are kept for each sequence.",
    len({(cost.parameters, cost.operations) for cost in costs_by_heads.values()}) == 1
    and costs_by_heads[16].activations - costs_by_heads[2].activations == 14 * 2 * 50**2,
)

# %% [markdown] tags=["deeper"]
# ### How much of the kernel's lead is the mask's?
#
# Section 2's times are with a causal mask. A second record takes the same attention at T = 2048 with the mask and without it, the four cases in turns. It comes from other runs, so compare its times with one another only.

# %% tags=["fold"]
# @title At T = 2048, with the causal mask and without
masked, unmasked = (
    {what: ledger.values("attention-mask-time", mask, what) for what in ("math", "sdpa", "math_over_sdpa")}
    for mask in ("causal", "not causal")
)
table(
    ["seconds of a training step, mean of three runs", "math", "sdpa", "math / sdpa"],
    [
        [name, *(f"{sum(runs) / 3:.2f}" for runs in each.values())]
        for name, each in {"with the mask": masked, "without": unmasked}.items()
    ],
)
slowed, skipped = (
    [a / b for a, b in zip(masked[backend], unmasked[backend], strict=True)] for backend in ("math", "sdpa")
)
claim(
    "In every run of this record: with the mask sdpa is more than 4 times as fast as math, without it between 1.5 and 3 times. The mask makes math take 1.5 to 1.7 times as long; sdpa without it takes 1.5 to 1.7 times as long as with it.",
    min(masked["math_over_sdpa"]) > 4
    and 1.5 < min(unmasked["math_over_sdpa"])
    and max(unmasked["math_over_sdpa"]) < 3
    and all(1.5 < math_with < 1.7 and 1.5 < 1 / sdpa_with < 1.7 for math_with, sdpa_with in zip(slowed, skipped, strict=True)),
    with_mask=masked["math_over_sdpa"],
    without=unmasked["math_over_sdpa"],
    math_with_over_without=slowed,
    sdpa_with_over_without=skipped,
)

# %% [markdown]
# So the kernel is ahead without a mask too; the mask widens the gap from both sides, by about as much on each. The kernel skips the blocks that are hidden. Our plain path computes all pairs and then hides half of them, and it fills the T × T matrix **twice**: the scores before the softmax, and the weights after it, so that a row in which everything is hidden becomes zeros and not NaN. The usual plain implementation fills once, and so pays less for its mask; how much less was not recorded.

# %% [markdown] tags=["deeper"]
# ### When does the kernel not save memory?
#
# Apart from the $5BTD$ numbers that both keep, plain products keep $BHT^2$, the kernel $BHT$. Not so when the layer has dropout on its weights, or a learned bias on its scores. The same layer at T = 512:

# %%
layers_512 = {
    "kernel": MultiHeadAttention(64, 4),
    "kernel, dropout on the weights": MultiHeadAttention(64, 4, dropout=0.1),
    "kernel, learned bias": MultiHeadAttention(64, 4, position=RelativeBias(4, 16)),
}
x512 = torch.randn(2, 512, 64)
saved_512 = {
    name: measure.count_activations(each, x512) for name, each in layers_512.items()
}

# %% tags=["fold", "nbval-ignore-output"]
# @title The kernel; with dropout; with a learned bias
kept, expected = {}, {}  # T: saved activations on the math path, and by the kernel
four_heads_64 = MultiHeadAttention(64, 4)
for T in (64, 256, 1024):
    counts = []
    for backend in ("math", "sdpa"):
        with attention_backend(backend):
            batch = torch.randn(2, T, 64)
            counts.append(measure.count_activations(four_heads_64, batch))
    kept[T] = counts
    expected[T] = [formulas.multi_head_cost(2, T, 64, 4, backend=backend).activations for backend in ("math", "sdpa")]
claim(
    "Four heads, D = 64, T = 64, 256 and 1024: apart from the $5 B T D$ numbers that both keep, $B H T^2$ with plain products, $B H T$ with the kernel, to the last number.",
    kept == expected
    and all([plain, fused] == [2 * (5 * T * 64 + 4 * T * n) for n in (T, 1)] for T, (plain, fused) in kept.items()),
)
table(["layer", "saved activations"], [[name, f"{found:,}"] for name, found in saved_512.items()])
one_matrix = 2 * 4 * 512**2  # B H T^2
claim(
    "The kernel alone keeps less than a quarter of $B H T^2$ numbers; with attention dropout, or with a learned bias, more than $B H T^2$.",
    saved_512["kernel"] < one_matrix / 4
    and min(found for name, found in saved_512.items() if name != "kernel") > one_matrix,
)

# %% [markdown]
# So with either of them, training on this CPU keeps $T^2$ numbers a head after all. (GPU kernels have conditions of their own: count.)

# %% [markdown] tags=["deeper"]
# ### Where is the border in memory?
#
# Earlier than in FLOPs. With plain products and without dropout an encoder layer keeps about $12TD + HT^2$ numbers: $7TD$ more, in norms and feed-forward network, than attention. The weights are half of them at T = 12D / H: with D = 512 and 8 heads at T = 768, long before 6D = 3,072. A fused kernel removes this border.

# %% tags=["fold"]
# @title What an encoder layer keeps at T = 768
with attention_backend("math"):
    kept_at_border = measure.count_activations(EncoderLayer(512, 8, 2048, dropout=0.0), torch.randn(2, 768, 512)) / 2
claim(
    "By the recorder the weights are half of what an encoder layer (F = 4D, without dropout) keeps at T = 768, within one per cent.",
    abs(8 * 768**2 / kept_at_border - 1 / 2) < 0.005,
)

# %% [markdown] tags=["deeper"]
# ### Does the count give the published sizes, and where are a model's parameters?
#
# The paper's table 3 gives 65 million for the base model of exercise 10.4 and 213 million for the big one (D = 1024, H = 16, F = 4096). How far does our formula miss them? And what would three separate tables cost?

# %%
published_rows = []
for name, width, heads, inner_width, published in (
    ("base", 512, 8, 2048, 65e6),
    ("big", 1024, 16, 4096, 213e6),
):
    body = formulas.transformer_cost(1, 1, 1, width, heads, inner_width, 6).parameters
    table_size = 37_000 * width
    counts_of_one = [name, body, body + table_size, body + 3 * table_size, published]
    published_rows.append(counts_of_one)

# %% tags=["fold"]
# @title The formula beside the paper's table 3
table(
    ["model", "layers", "with one shared table", "with three tables", "table 3 of the paper"],
    [[row[0], *(f"{count / 1e6:.1f} M" for count in row[1:])] for row in published_rows],
)
claim(
    "The formula with one shared table is within 3 % of the paper for both models; three tables miss it by more than a third.",
    all(abs(one / wanted - 1) < 0.03 and three / wanted > 4 / 3 for _, _, one, three, wanted in published_rows),
)

# %% [markdown]
# So one table fits, and three do not; the paper says itself that it shares one (section 3.4).
#
# But the count misses the base model by 3 %, the big one by less than 1 %. The paper says "about 37,000" and not what its table counts. Could another number of rows explain both?

# %%
vocabularies = {}  # rows of the table that would fit the paper's number, as rounded
for name, body, *_, published in published_rows:
    width = {"base": 512, "big": 1024}[name]
    ends = published - 0.5e6, published + 0.5e6
    vocabularies[name] = [round((end - body) / width) for end in ends]

# %% tags=["fold"]
# @title The rows that each would need
claim(
    "No single vocabulary gives both published numbers, even within their rounding: base needs over 39,000 rows, big under 37,000.",
    vocabularies["base"][0] > 39_000 and vocabularies["big"][1] < 37_000,
    base=f"{vocabularies['base'][0]:,} to {vocabularies['base'][1]:,} rows",
    big=f"{vocabularies['big'][0]:,} to {vocabularies['big'][1]:,} rows",
)

# %% [markdown]
# So the differences stay unexplained.
#
# **And in a small model?** Take a classifier of film reviews as in chapter 09: one encoder layer of width 32, and a table of 50,002 words.

# %%
of_tutorial = {"B": 128, "T": 200, "D": 32, "H": 2, "F": 128}
whole_classifier = formulas.classifier_cost(**of_tutorial, V=50_002, N=1)
one_layer = formulas.encoder_layer_cost(**of_tutorial)

# %% tags=["fold"]
# @title The classifier, and its encoder layer
table(
    ["part", "parameters", "FLOPs per batch", "saved activations (math)"],
    [
        [name, cost.parameters, cost.operations, cost.activations]
        for name, cost in {"whole classifier": whole_classifier, "its encoder layer": one_layer}.items()
    ],
)
claim(
    "Less than 1 % of the classifier's parameters, but more than 99 % of its FLOPs, are in the encoder layer.",
    one_layer.parameters < 0.01 * whole_classifier.parameters
    and one_layer.operations > 0.99 * whole_classifier.operations,
)

# %% [markdown]
# A learned table of positions adds a row of D numbers for each position it can hold. And torch's own Transformer has the formula's parameters, but for two norms:

# %%
classifier_sizes = []
for position in (None, LearnedPositions(32, 200), LearnedPositions(32, 400)):
    encoder = TransformerEncoder([EncoderLayer(32, 2, 128)])
    classifier = TransformerClassifier(1000, encoder, position=position)
    classifier_sizes.append(number_of_parameters(classifier))

# %% tags=["fold"]
# @title With and without positions; nn.Transformer
kinds_of_position = ["none, or any scheme without weights", "learned, up to 200", "learned, up to 400"]
table(["positions", "parameters of the classifier"], list(map(list, zip(kinds_of_position, classifier_sizes, strict=True))))
claim(
    "A learned table adds D parameters for each position it can hold.",
    [size - classifier_sizes[0] for size in classifier_sizes] == [0, 200 * 32, 400 * 32],
)
of_torch_model = number_of_parameters(nn.Transformer(12, 4, 2, 2, 20, batch_first=True))
claim(
    "torch's `nn.Transformer` has the formula's parameters, and one norm more at the end of each stack.",
    of_torch_model == formulas.transformer_cost(1, 1, 1, 12, 4, 20, 2).parameters + 2 * (2 * 12),
    parameters=of_torch_model,
)

# %% [markdown] tags=["deeper"]
# ### What does the paper's table say, row by row?
#
# Table 1 of *Attention Is All You Need* (Vaswani et al. 2017), in the notation that forgets constant factors. (It writes $n$ for our `T`, and $d$ for `D`.) We add the parameters, and a few rows.
#
# **Self-attention.** $T^2D$ for the quadratic part: the paper's row is bare attention. The projections of real attention add an amount of the order of $TD^2$, and hold all of its parameters.
#
# **Recurrent layer.** $TD^2$, and T steps.
#
# **Convolution.** No output needs another output of its layer (neighbouring kernels share only what they *read*), so one layer is one step. But an output sees only k places, and each further layer reaches $k - 1$ places further back: to see all takes $\lceil (T-1)/(k-1) \rceil$ layers, of the order of $T/k$. With gaps that grow by the factor k from layer to layer (*dilation*, as in WaveNet), $\lceil \log_k T \rceil$ layers are enough:

# %%
diagrams.show("path_length")

# %% tags=["fold"]
# @title Both stacks on the article of 2,000 words
stack_short = measure.count_operations(CausalCNN(512, 3, 10), sentence)
claim(
    "To see all words the stack needs 10 layers for the sentence and 1,000 for the article, and each adds the FLOPs of one: for the article, over 250 times those of real attention.",
    stack_short == 10 * for_sentence[1] == 2 * 157_286_400
    and 1000 * for_article[1] == 2 * 1_572_864_000_000
    and 1000 * for_article[1] > 250 * for_article[2]
    and [formulas.layers_to_cover(T, 3) for T in (20, 2000)] == [10, 1000],
)
claim(
    "With kernel 3 and growing gaps 7 layers see all 2,000 words; they take more FLOPs than real attention, but less than twice as many.",
    formulas.layers_to_cover(2000, 3, dilated=True) == 7
    and for_article[2] < 7 * for_article[1] < 2 * for_article[2],
)

# %% [markdown]
# **Restricted self-attention.** A query looks at r neighbours only: $TrD$. But then it shares the convolution's problem and needs about $T/r$ layers. It is one of many attempts to make attention cheaper; Tay et al. (*Efficient Transformers: A Survey*, arXiv:2009.06732) put them in order.
#
# | layer | parameters | FLOPs | sequential steps | path length |
# |---|---|---|---|---|
# | real attention | $D^2$ | $T^2 D$ (and $T D^2$) | $1$ | $1$ |
# | recurrent | $D^2$ | $T D^2$ | $T$ | $T$ |
# | convolution, one layer | $k D^2$ | $k T D^2$ | $1$ | (sees k places) |
# | convolution, stacked until it sees T | $k D^2 \cdot T/k$ | $k T D^2 \cdot T/k$ | $T/k$ | $T/k$ |
# | convolution, dilated until it sees T | $k D^2 \log_k T$ | $k T D^2 \log_k T$ | $\log_k T$ | $\log_k T$ |
# | bare attention restricted to r, one layer | $0$ | $T r D$ | $1$ | (sees r places) |
#
# Two things differ from the paper's table. It gives convolutions and restricted attention the FLOPs and steps of *one* layer but the path of a *stack* ($\log_k T$, $T/r$); the table above keeps the two apart. And **path length is defined differently**: the paper counts the steps a signal takes through the network, so every recurrent network has T, gated or not. We count *matrix products on the shortest path*, because that can be measured. For the rows above both give the same order; for a network with gates they do not (*Do formulas and layers agree?*).

# %% [markdown] tags=["deeper"]
# ### What does restricted attention look like?
#
# Each query sees a window of r inputs, itself the last. `unfold` lays the windows side by side without copying. (For brevity the first queries also look at padding.)


# %%
def restricted_attention(x, r):
    """Each query looks at itself and the r - 1 inputs before it; x is (T, D)."""
    padded = nn.functional.pad(x, (0, 0, r - 1, 0))  # (r - 1 + T, D)
    near = padded.unfold(0, r, 1)  # (T, D, r)
    scores = x.unsqueeze(1) @ near / x.shape[-1] ** 0.5  # (T, 1, r)
    return (scores.softmax(dim=-1) @ near.mT).squeeze(1)  # (T, D)


for T in (64, 128):
    words = torch.randn(T, 16)
    flops_of_windows = measure.count_operations(
        lambda x: restricted_attention(x, r=8), words
    )
    print(f"T = {T}: {flops_of_windows} FLOPs; 4 T r D is {4 * T * 8 * 16}")

# %% [markdown]
# Twice the text, twice the FLOPs. A window is the simplest of the **sparse** patterns, and others need fewer layers until everything has met. A *strided* one also looks at every $r$-th place before it: for $r \approx \sqrt T$ this costs of the order of $T\sqrt T D$, and two layers lead from any place to any later one (Sparse Transformer, Child et al. 2019). *Global tokens*, a few that see all and are seen by all, pass news on from anywhere to anywhere in two layers, beside a window (Longformer, Beltagy et al. 2020). *Block-sparse* attention keeps or drops whole blocks of the T × T matrix, so that what is left is made of dense products, which machines like; BigBird (Zaheer et al. 2020) combines a window, global and random blocks. Each of these could be written as a mask (chapter 07), but it saves work only if the hidden scores are never computed.

# %% [markdown] tags=["deeper"]
# ### Where does attention pass a convolution?
#
# By FLOPs, as in section 3, with D = 512:

# %%
compared = {
    "RNN": flops["RNN"],
    "LSTM": flops["LSTM"],
    "CNN, kernel 3": lambda T: formulas.cnn_cost(1, T, 512, 3).operations,
    "CNN, kernel 9": lambda T: formulas.cnn_cost(1, T, 512, 9).operations,
}


def crossover(left, right):
    """First T, up to 20 D, at which the left layer has more FLOPs; or None."""
    return next((T for T in range(1, 20 * 512 + 1) if left(T) > right(T)), None)


first = {}  # against each: [bare attention, real attention]
for name, each in compared.items():
    bare_first = crossover(flops["bare attention"], each)
    first[name] = [bare_first, crossover(flops["real attention"], each)]

# %% tags=["fold"]
# @title Where each of them is crossed (D = 512)
table(
    ["D = 512: more FLOPs than", "bare attention from T =", "real attention from T ="],
    [[name, *found] for name, found in first.items()],
)

# %% [markdown] tags=["deeper"]
# ### How do the times grow, and where do they cross?
#
# We make the text eight times as long, from T = 128 to 1024. How many times longer do an RNN, a convolution and attention take, on your machine?

# %%
timed = {
    "RNN": RNN(64, 64),
    "CNN": CausalCNN(64, 3),
    "attention, math": MultiHeadAttention(64, 4),
    "attention, sdpa": MultiHeadAttention(64, 4),
}


def training_step(name, x):
    """A function of nothing: forward and backward."""

    def step():
        with attention_backend("math" if "math" in name else "sdpa"):
            output = timed[name](x)
            (output[0] if isinstance(output, tuple) else output).sum().backward()

    return step

# %%
guess_4 = predict("how many times as long attention, math, takes at T = 1024", ...)

# %%
taken = []
for T in tqdm((128, 1024), leave=False):
    long_input = torch.randn(2, T, 64, requires_grad=True)
    steps = {name: training_step(name, long_input) for name in timed}
    taken.append(measure.seconds(steps, rounds=3))
times_longer = {name: taken[1][name] / taken[0][name] for name in timed}

# %% tags=["fold", "reveal", "nbval-ignore-output"]
# @title Times on this machine
guess_4.compare(times_longer["attention, math"])
table(
    ["layer", "T = 128 (ms)", "T = 1024 (ms)", "times longer"],
    [[name, *(1000 * found[name] for found in taken), times_longer[name]] for name in timed],
)

# %% tags=["fold", "reveal"]
# @title What grows faster than the length
claim(
    "Eight times as long: the time of attention's math path grows by at least a third more than the RNN's and the CNN's.",
    times_longer["attention, math"] > 4 / 3 * max(times_longer["RNN"], times_longer["CNN"]),
    **times_longer,
)
by_count = [formulas.multi_head_cost(2, T, 64, 4).operations for T in (128, 1024)]
claim(
    "By FLOPs alone attention would take 36 times as long: its projections 8 times, its quadratic part 64 times.",
    by_count[1] == 36 * by_count[0],
)

# %% [markdown]
# (The count leaves out the softmax and all traffic with the memory; the clock does not.) Section 5's records hold more layers than its figure. *Fused* is torch's own routine for all steps, *loop* our Python loop. Compare these times with one another, not with yours:

# %%
figures.time_of_all("layer-cost")

# %% tags=["fold"]
# @title The power of T in the longer half of the lengths
powers = {name: ledger.values("layer-cost", f"time, {name}", "exponent") for name in figures.TIMED}
table(
    ["time grows like T to the power", "mean", "lowest and highest of three runs"],
    [[name, sum(found) / len(found), f"{min(found):.2f} to {max(found):.2f}"] for name, found in powers.items()],
)
claim(
    "On this machine recurrent layers and CNN grow about like T (power below 1.4), attention's math path like T squared (above 1.6).",
    max(power for name in ("RNN, loop", "RNN, fused", "LSTM, fused", "CNN") for power in powers[name]) < 1.4 and min(powers["attention, math"]) > 1.6,
)

# %% [markdown]
# From T = 32 on the fused LSTM does four times the FLOPs of the fused RNN in less time. Nothing is wrong with either count: torch calls another kernel for it. So a crossover in seconds is one of two *kernels*, and attention (sdpa, 4 heads) should be compared with the best recurrent one:

# %% tags=["fold"]
# @title The crossover in time against each baseline
of_attention = ledger.values("layer-cost", "time, attention, sdpa", "seconds")
against = {}  # baseline: T of the crossover, three runs
for name in ("LSTM, fused", "RNN, loop", "RNN, fused"):
    runs = zip(of_attention, ledger.values("layer-cost", f"time, {name}", "seconds"), strict=True)
    against[name] = [crossing(timed_at, [a / b for a, b in zip(*run, strict=True)]) for run in runs]
table(
    ["D = 64, against", "crossover in time, three runs (T)"],
    [[name, ", ".join(f"{T:.0f}" for T in found)] for name, found in against.items()],
)
fused, loop, lstm_fused = (
    ledger.values("layer-cost", f"time, {name}", "seconds") for name in ("RNN, fused", "RNN, loop", "LSTM, fused")
)
claim(
    "On this machine, in every run, at every length from T = 32 on, the LSTM is the fastest of the three and the fused RNN the slowest.",
    all(
        a > b > c
        for runs in zip(fused, loop, lstm_fused, strict=True)
        for T, a, b, c in zip(timed_at, *runs, strict=True)
        if T >= 32
    ),
)
claim(
    "On this machine, in every run, the crossover comes first against the LSTM, then against the RNN's loop, and last against the fused RNN.",
    max(against["LSTM, fused"]) < min(against["RNN, loop"])
    and max(against["RNN, loop"]) < min(against["RNN, fused"]),
)

# %% [markdown]
# Against the fastest of the three, the LSTM, attention is ahead up to about T = 97; against the slowest, the fused RNN, up to about 200 or 230.

# %% [markdown]
# **Does this crossover move with the width?** By FLOPs bare attention meets the RNN at T = D in a forward pass, and real attention never does, nor in this step: so the count promises no crossover, and the clock has one. It was recorded at three widths, timed anew (so D = 64 does not repeat the numbers above), against the fused RNN only (the slowest of the three):

# %% tags=["fold"]
# @title The crossover with the fused RNN at three widths
crossings = {width: ledger.values("layer-cost", f"crossover, width {width}", "crossover") for width in (32, 64, 128)}
table(
    ["D", "crossover with the fused RNN, three runs (T)", "T / D"],
    [
        [width, ", ".join(f"{T:.0f}" for T in found), f"{min(found) / width:.1f} to {max(found) / width:.1f}"]
        for width, found in crossings.items()
    ],
)
against_rnn = [
    run for width in crossings for run in ledger.values("layer-cost", f"crossover, width {width}", "attention_over_RNN")
]
measured_at = ledger.values("layer-cost", "crossover, width 32", "T")[0]
claim(
    "On this machine, at every width and in every run, attention is ahead of the fused RNN at T = 32 and behind it at T = 512.",
    all(run[measured_at.index(32)] < 1 < run[measured_at.index(512)] for run in against_rnn),
)
claim(
    "This crossover does not follow T = D: from D = 32 to D = 128, T / D falls to less than a half.",
    max(crossings[128]) / 128 < 0.5 * min(crossings[32]) / 32,
)

# %% [markdown]
# Section 2's recorded runs of attention alone say how the time grows from T = 512 on:

# %% tags=["fold"]
# @title The power of T in the time of a training step
time_powers = {backend: ledger.summary("attention-time", backend, "exponent") for backend in ("math", "sdpa")}
table(
    ["time grows like T to the power", "mean", "lowest and highest of three runs"],
    [[backend, mean, f"{low:.2f} to {high:.2f}"] for backend, (mean, low, high, _) in time_powers.items()],
)

# %% [markdown] tags=["deeper"]
# ### Do opened gates hold on a longer text?
#
# Section 6's LSTM with a forget bias of 3, on four times as many steps:

# %%
opened, divided = [], []
for seed in range(3):
    torch.manual_seed(seed)
    steps_512 = torch.randn(8, 512, 64)
    layer = set_forget_bias(LSTM(64, 64), 3)
    opened.append(gradient_by_distance(layer, steps_512).tolist())
    norms = gradient_by_distance(MultiHeadAttention(64, 4), steps_512)
    divided.append(norms[1:].mean().item())  # an earlier input's mean

# %% tags=["fold"]
# @title Where the opened LSTM falls below attention
below = [next((d for d, norm in enumerate(run) if norm < level), None) for run, level in zip(opened, divided, strict=True)]
claim(
    "T = 512, in all three seeds: between 300 and 500 steps back the opened LSTM first passes on less than attention does from an earlier input on average. At T = 128, in all three seeds, it passes on more from every step.",
    all(d is not None and 300 < d < 500 for d in below)
    and all(
        min(run) > sum(level[1:]) / 127
        for run, level in zip(by_seed["LSTM, forget bias 3"], by_seed["attention"], strict=True)
    ),
    first_below_at=below,
)

# %% [markdown]
# So gates that are open enough for 128 steps need not be for 512.

# %% [markdown] tags=["deeper"]
# ### Does attention's line stay level once there are positions?
#
# Section 6's layer, with sinusoids added to its inputs, and another with ALiBi (chapter 08):

# %%
with_sinusoids, with_alibi, sinusoids = [], [], Sinusoidal(64)
for seed in range(3):
    torch.manual_seed(seed)
    x128, layer = torch.randn(8, 128, 64), MultiHeadAttention(64, 4)
    norms = gradient_by_distance(lambda x: layer(sinusoids.add(x)), x128)
    with_sinusoids.append(norms.tolist())
    alibi_layer = MultiHeadAttention(64, 4, position=ALiBi(4))
    with_alibi.append(gradient_by_distance(alibi_layer, x128).tolist())

# %% tags=["fold"]
# @title With sinusoids, and with ALiBi
claim(
    "With sinusoids still level, in all three seeds: the 10 farthest inputs have, on average, between two thirds and one and a half of the gradient of the 10 nearest (d = 0 left out).",
    all(2 / 3 < sum(run[-10:]) / sum(run[1:11]) < 3 / 2 for run in with_sinusoids),
)
claim(
    "With ALiBi the gradient falls, but slowly, in all three seeds: what arrives from 127 steps back is less than a tenth, and more than a hundredth, of what arrives from 1 step back.",
    all(run[1] / 100 < run[127] < run[1] / 10 for run in with_alibi),
)

# %% [markdown]
# With sinusoids, yes: here they blur the symmetry without favouring a place. ALiBi lets the near words count for more.

# %% [markdown] tags=["deeper"]
# ### Why does d = 0 stand out in attention?
#
# The last input is also the query, which moves all weights at once. Stop the gradient there, and the step is gone:

# %%
torch.manual_seed(0)
untrained, probe = MultiHeadAttention(32, 4), torch.randn(8, 64, 32)


def without_query(x):
    """The layer with no gradient through the queries."""
    return untrained(x.detach(), x, x)


with_query = gradient_by_distance(untrained, probe)
query_closed = gradient_by_distance(without_query, probe)

ratios = [(norms[0] / norms[1:].mean()).item() for norms in (with_query, query_closed)]

# %% tags=["fold"]
# @title d = 0, with and without the query's gradient
claim(
    "The last input counts over 3 times as much as the mean of the others, but less than 1.5 times without the query's gradient.",
    ratios[0] > 3 and ratios[1] < 1.5,
    with_query=f"{ratios[0]:.2f} times",
    without=f"{ratios[1]:.2f} times",
)

# %% [markdown] tags=["deeper"]
# ### Why does the CNN's gradient have a hump?
#
# It is a matter of counting. From either end of the window a single way leads through the 8 layers to the output, from the middle many ways do. They come with random signs and partly cancel, so what grows is about the root of their number:

# %%
ways = torch.ones(1, dtype=torch.int64)
for _ in range(8):  # each layer offers three ways
    ways = sum(nn.functional.pad(ways, (shift, 2 - shift)) for shift in range(3))
humps = [max(run) / ((run[0] + run[16]) / 2) for run in by_seed["CNN, 8 layers"]]
print("ways from end, middle, end:", ways[[0, 8, 16]].tolist())
print(f"root of the middle: {ways[8].sqrt():.0f}")

# %% tags=["fold"]
# @title How high the hump is
claim(
    "In each of the three seeds the hump is between 20 and 60 times as high as the mean of its two ends.",
    all(20 < hump < 60 for hump in humps),
    times=humps,
)

# %% [markdown] tags=["deeper"]
# ### What is lost when a text is read in chunks?
#
# An RNN carries its state from one chunk to the next. Attention has only the tokens that it is given. Both layers now read a sequence of 64 in chunks of 16. Which outputs change?

# %%
torch.manual_seed(0)
stream = torch.randn(1, 64, 32)
chunks = stream.split(16, dim=1)
reader, attender = RNN(32, 32), MultiHeadAttention(32, 4)
with torch.no_grad():
    state, pieces = None, []
    for chunk in chunks:
        output, state = reader(chunk, state)
        pieces.append(output)
    rnn_gap = (torch.cat(pieces, 1) - reader(stream)[0]).abs().amax((0, 2))
    pieces = [attender(chunk, causal=True) for chunk in chunks]
    attention_gap = torch.cat(pieces, 1) - attender(stream, causal=True)
    attention_gap = attention_gap.abs().amax((0, 2))  # (T,): of each position

# %% tags=["fold"]
# @title Which outputs change, and what is carried on
claim("RNN: reading in chunks, its state carried on, changes no output.", rnn_gap.max() < 1e-5)
claim(
    "Attention: the first chunk is the same; every later position has lost what came before its chunk.",
    attention_gap[:16].max() < 1e-5 and attention_gap[16:].min() > 1e-3,
)
table(
    ["tokens read so far", "an RNN layer carries on (numbers)", "an attention layer carries on: keys, values (numbers)"],
    [[T, 32, 2 * T * 32] for T in (100, 10_000, 1_000_000)],
)

# %% [markdown]
# So is the RNN the better bargain? Its unbounded reach is seldom *learned*: truncation (chapter 04) cuts the gradient at the edge of each chunk, and most of it has usually vanished before that.
#
# And attention can carry something over, too. In **Transformer-XL** (Dai et al. 2019) each layer keeps the vectors that it read in the chunk before, and makes further keys and values of them; no gradient flows back into them, so this is truncation again. One layer then sees one chunk more, and a stack of N layers up to N chunks more. Its positions must be relative (chapter 08): counted from the start of each chunk, an old and a new token would have the same number.

# %% [markdown] tags=["deeper"]
# ### What is T on a long text, and what does the bargain cost?
#
# On a long text an RNN is trained by truncated backpropagation (chapter 04): the text comes in chunks; the state's numbers cross from one to the next, its gradient does not. A Transformer reads chunks as well. So the T of our table is the
# length of a *chunk*. Take chunks of T = 64 at D = 256, well below T = D. One RNN layer waits for its 64 steps; how many encoder layers can run in as many?

# %%
chunk_rnn = formulas.rnn_cost(1, 64, 256)  # T = 64, D = 256
chunk_attention = formulas.attention_cost(1, 64, 256)
encoders = {N: formulas.encoder_cost(1, 64, 256, 4, 4 * 256, N) for N in range(1, 99)}
deepest = max(N for N, cost in encoders.items() if cost.steps <= chunk_rnn.steps)

# %% tags=["fold"]
# @title On a chunk of 64 tokens at width 256
claim(
    "On such a chunk, bare attention has a quarter of the RNN's FLOPs: T / D.",
    chunk_attention.operations / chunk_rnn.operations == 0.25,
)
claim(
    "10 encoder layers fit in the 64 sequential steps of one RNN layer, with 60 times its parameters.",
    (deepest, round(encoders[deepest].parameters / chunk_rnn.parameters)) == (10, 60),
    parameters=encoders[deepest].parameters,
    times_the_flops=encoders[deepest].operations / chunk_rnn.operations,
)

# %% [markdown]
# That is attention's bargain: where parallel hardware is plentiful, and so a wide product waits no longer than a narrow one, the *same waiting time* buys a far bigger model, or more data. The FLOPs are paid for all the same, in machines and in energy. BLOOM, with 176 billion parameters, read 366 billion tokens in 1,082,990 hours of A100 GPUs, each of which draws at most 400 watts (Luccioni et al. 2023). With section 3's rule you can see whether that is plausible:

# %%
training_flops = 6 * 176e9 * 366e9  # a parameter and token: 2 forward, 4 backward
gpu_hours = 1_082_990
a_second = training_flops / (gpu_hours * 3600)
print(f"{training_flops / 1e21:.0f} · 10²¹ FLOPs,", end=" ")
print(f"{a_second / 1e12:.0f} · 10¹² a second on each GPU")
print(f"energy: {gpu_hours * 0.4 / 1000:.0f} megawatt hours at 400 W, cooling left out")

# %% [markdown]
# That is a little less than a third of the $312 \cdot 10^{12}$ a second that an A100's data sheet promises for 16-bit products. One GPU alone would have taken 124 years.
