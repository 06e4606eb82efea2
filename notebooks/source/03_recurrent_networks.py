# ---
# jupyter:
#   course:
#     minutes: 220
#     needs: chapters 01 and 02
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
# # 03 · Recurrent networks
#
# Reading a line of text, you know at every letter whether a quotation is open. Two networks learn to say so, on strings of 10 symbols.
# One looks at the last 10 symbols through a window, which is all there is. The other reads one symbol at a time and carries 16 numbers along.
# Then both get strings of 1,000 symbols. **Which of them fails, and how badly?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("rnn_loop")

# %% tags=["setup", "fold"]
# @title Imports
import math
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from tqdm import tqdm

from course_lib import datasets, generate, metrics, ngram, recurrent_models, text, train, utils
from course_lib.datasets import synthetic
from course_lib.exercises import ch03
from course_lib.notebook import claim, diagrams, ledger, predict, run_size, show_source, table
from course_lib.notebook.figures import ch03 as figures
from course_lib.rnn import RNN, rnn_loop, rnn_step, scan

_ = torch.manual_seed(0)

# %% [markdown]
# The task as tensors: a string is a row of zeros and ones, 1 for a quotation mark, and the answer to every symbol is 1 while a quotation is open.
# Every second symbol of the short strings is a mark; of the long ones, every tenth.

# %%
def quotations(batch, length, share, generator):
    """Symbols (B, T), 1 = a quotation mark; answers (B, T), 1 = a quotation is open."""
    symbols = (torch.rand(batch, length, generator=generator) < share).long()
    return symbols, symbols.cumsum(1) % 2


train.set_seed(0)
generator = torch.Generator().manual_seed(0)
short = [quotations(64, 10, 0.5, generator) for _ in range(400)]
long = [quotations(20, 1000, 0.1, generator)]

# Two symbols in, two answers out: closed or open.
window = ngram.WindowLM(vocab_size=2, window=10, d_model=4, hidden=64)
carrier = recurrent_models.LanguageModel(2, RNN(input_size=4, hidden_size=16))
loss = train.language_model_loss
for network in (window, carrier):
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    train.train_epoch(network, tqdm(short, leave=False), loss, optimizer)

# %%
failing = predict("which network fails, and how often it is right there", ...)

# %% tags=["fold", "reveal"]
# @title What the two networks say
unseen = [quotations(64, 10, 0.5, generator) for _ in range(50)]
scores = {
    name: [
        train.evaluate(network, part, train.language_model_loss)["accuracy"]
        for part in (unseen, long)
    ]
    for name, network in {"window": window, "state": carrier}.items()
}
claim(
    "The window network is right on more than 95 % of 10 symbols, and on about half of 1,000: it guesses.",
    scores["window"][0] > 0.95 and scores["window"][1] < 0.6,
    on_10_symbols=scores["window"][0],
    on_1000_symbols=scores["window"][1],
)
claim(
    "The network that carries a state is right on more than 99 % of both.",
    min(scores["state"]) > 0.99,
    on_10_symbols=scores["state"][0],
    on_1000_symbols=scores["state"][1],
)
failing.compare("the window network, right on about half")

# %% [markdown]
# A quotation mark looks the same whether it opens or closes. To know which, you must know how many came before, back to the first symbol. No window reaches that far, however well it is trained;
# yet one bit, kept up to date, is enough. This chapter is about networks that keep something up to date.
#
# ## You will be able to
#
# | after this chapter you can | you prove it in |
# |---|---|
# | write a recurrent layer as a loop, from tensors, and say what each of its shapes is | exercise 3.1 |
# | say what a state must hold for a task, and build a network that holds it, weight by weight | exercise 3.2 |
# | read `nn.RNN`: parameters, shapes and names of stacked and bidirectional layers, by hand | exercise 3.3 |
# | take the right state out of a padded batch, in both directions | exercise 3.4 |
# | train a language model that carries its state, sample from it, and measure what the state buys | exercises 3.5 and 3.6 |
#
# Letters: $B$ sequences in a batch, $T$ steps, $I$ numbers in an input, $D$ numbers in the state, $N$ layers, $V$ tokens in the vocabulary. Batch first.

# %% [markdown]
# ## 1 · A function as a loop
#
# A function from a sequence to a sequence can be built in two ways. The *direct* way takes $x_1, \dots, x_t$ all at once and returns $y_t$: a window does, and so will attention (chapter 07). The other way is a **loop**, the one in the picture at the top:
#
# $$ h_t = f(x_t, h_{t-1}), \qquad y_t = g(h_t). $$
#
# It takes one input at a time. Whatever it will need later of $x_1, \dots, x_t$ must be in the **state** $h_t$, also called *latent* or *hidden*, since it is neither input nor output.
#
# The loop needs no neural network. Here it is in plain Python, with two functions to put into it.

# %%
def loop(f, state, sequence):
    """The state after every element."""
    states = []
    for x in sequence:
        state = f(x, state)
        states.append(state)
    return states


def flip(x, is_open):
    """The state is one bit: is a quotation open?"""
    return is_open ^ (x == '"')


def add(x, state):
    """The state is a sum and a count, from which any mean so far can be had."""
    total, count = state
    return total + x, count + 1

# %%
said = 'say "ah" or "oh"'
print(said)
print("".join("^" if is_open else "." for is_open in loop(flip, False, said)))
print([total / count for total, count in loop(add, (0, 0), [4, 8, 3])])

# %% [markdown]
# **Question.** What is the smallest state for each of these, whatever the length? (a) *is a quotation open*; (b) the mean so far; (c) the longest word so far; (d) *have the letters so far been a palindrome?*
#
# (a) needs one bit. (b) needs two numbers: the mean alone is not enough. (c) needs the word and the letters of the present one. (d) needs all letters: no state of fixed size will do. A recurrent network has a state of fixed size and *learns* what to put into it.
# That is its strength and, in section 9, its first weakness.

# %% [markdown]
# ## 2 · The Elman network
#
# Elman (1990) let $f$ be one layer of a neural network that sees the input and its own previous result (his units went from 0 to 1; tanh, from -1 to 1, is today's choice):
#
# $$ h_t = \tanh\big(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}\big), \qquad y_t = h_t W_{ho}^\top + b_{o} . $$
#
# | symbol | shape | |
# |---|---|---|
# | $x_t$ | (B, I) | input of step $t$ |
# | $h_t$ | (B, D) | state; $h_0$ is zero unless you carry one in |
# | $W_{ih}$ | (D, I) | from input to state |
# | $W_{hh}$ | (D, D) | from state to state |
# | $b_{ih}$, $b_{hh}$ | (D,) | biases: only their sum matters; torch has two because the GPU library has two |
# | $y_t$ | (B, V) | output, here logits: $W_{ho}$ is (V, D), $b_o$ (V,) |
#
# Vectors are rows here, as in torch; a book with column vectors writes $W_{ih} x_t$ with the same matrix. In code the sum is made of two parts. `from_input` is all that does not depend on the state, $x_t W_{ih}^\top + b_{ih} + b_{hh}$; the rest, `torch.addmm(a, h, W)`, is `a + h @ W` in one call:

# %%
show_source(rnn_step)

# %%
x_1, h_0 = torch.tensor([[2.0, 1.0]]), torch.tensor([[0.5]])
weight_ih, weight_hh = torch.tensor([[0.1, 0.2]]), torch.tensor([[0.6]])
h_1 = rnn_step(F.linear(x_1, weight_ih), h_0, weight_hh)  # F.linear(x, W) is x @ W.T
print("h_1", tuple(h_1.shape), round(h_1.item(), 4))

# %% tags=["fold"]
# @title Check by hand
claim(
    "That is tanh(2.0 x 0.1 + 1.0 x 0.2 + 0.5 x 0.6).",
    math.isclose(h_1.item(), math.tanh(0.7), rel_tol=1e-6),
    by_hand=math.tanh(0.7),
)

# %%
diagrams.show("rnn_unrolled")

# %% [markdown]
# Look at the purple letters: they have no index $t$. The weights are **shared** by all steps, so a layer has $D(I + D + 2)$ parameters whether $T$ is 5 or 5,000, and it runs on lengths it has never seen. Whatever it learns about a quotation mark it knows at every place.
#
# Two readings of a picture, then. *Rolled up*, a small network with a memory. *Unrolled*, a network as deep as the sequence is long, whose layers are all alike: that is what backpropagation sees (chapter 04).
#
# How many parameters does `RNN(input_size=3, hidden_size=5)` have? And a feed-forward layer from all 40 inputs of a sequence to all 40 states?

# %%
small = RNN(input_size=3, hidden_size=5)
for steps in (7, 40):
    outputs, h_last = small(torch.zeros(2, steps, 3))
    print(f"T = {steps:2}: output {tuple(outputs.shape)}, h_n {tuple(h_last.shape)}")

# %% tags=["fold"]
# @title Parameters, counted
recurrent, direct = map(utils.number_of_parameters, (small, nn.Linear(40 * 3, 40 * 5)))
claim(
    "The recurrent layer has 5 (3 + 5 + 2) parameters at any length; the feed-forward one is made for 40 steps only, and has 484 times as many.",
    recurrent == 5 * (3 + 5 + 2) == 50 and direct == 24_200 == 484 * recurrent,
    recurrent=recurrent,
    feed_forward=direct,
)

# %% [markdown]
# ### The loop, and the fast path
#
# The layer is that step in a loop. Two things make the loop fast enough to teach with: time goes first, so that each step's slice lies together in memory, and what the *input* contributes needs no state, so it is one matrix product for all steps at once.

# %%
show_source(scan, rnn_loop)

# %% [markdown]
# `mask` and `reverse` wait for sections 5 and 6. What remains is $h_{t-1} W_{hh}^\top$, one step after another. `RNN` can run this loop, or torch's *fused* kernel, which does the same in compiled code. Same parameters, same function: we check outputs and gradients in float64, and against `nn.RNN` too.

# %% tags=["fold"]
# @title Check: loop, fused kernel and nn.RNN agree
ours = RNN(3, 5, num_layers=2, bidirectional=True, dtype=torch.float64)
theirs = nn.RNN(3, 5, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64)
theirs.load_state_dict(ours.state_dict())  # the names and shapes are torch's
x_check = torch.randn(4, 7, 3, dtype=torch.float64)


def output_and_gradients(layer, **options):
    """The outputs, and the gradient of the sum of their squares with respect to every parameter."""
    output, h_n = layer(x_check, **options)
    return [output, h_n, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))]


def agree(first, second):
    """Whether two lists of tensors are equal up to rounding in float64."""
    return all(
        torch.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in zip(first, second, strict=True)
    )


looped = output_and_gradients(ours, backend="loop")
claim(
    "Loop, fused kernel and `nn.RNN` agree, forward and backward.",
    agree(looped, output_and_gradients(ours, backend="fused"))
    and agree(looped, output_and_gradients(theirs)),
)

# %% [markdown]
# **Common mistake · feeding the wrong thing back.** Some slides call the sum *before* the tanh $h_t$, name its tanh $a_t$, and write $W_{hh} h_{t-1}$ in the next step. Read to the letter, that feeds the **pre-activation** back:
#
# $$ h_t = x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b, \qquad a_t = \tanh(h_t). $$
#
# The only non-linearity then stands outside the loop. The recurrence itself is linear, with nothing to bound it. Shapes and types are fine. We put the weights that solved the quotations into this loop, and run it over the long strings again. How often will it be right?

# %%
def run_with(feed_back):
    """Answers (B, T) and last state, with `feed_back(z)` handed to the next step."""
    symbols, _ = long[0]
    w_ih, w_hh, b_ih, b_hh = (p.detach() for p in carrier.layer.parameters())
    from_input = carrier.embedding(symbols).detach() @ w_ih.T + b_ih + b_hh
    state, answers = torch.zeros(len(symbols), 16), []
    for t in range(symbols.shape[1]):
        z = from_input[:, t] + state @ w_hh.T  # the pre-activation, (B, D)
        state = feed_back(z)
        answers.append(carrier.output(torch.tanh(z)).argmax(-1))
    return torch.stack(answers, dim=1), state

# %% tags=["fold", "reveal"]
# @title Accuracy with the pre-activation fed back
score = {}
for name, feed_back in (("wrong", lambda z: z), ("repaired", torch.tanh)):
    answers, state = run_with(feed_back)
    score[name] = (answers == long[0][1]).float().mean().item()
    score[f"{name}_state"] = state.nan_to_num(math.inf).abs().max().item()
claim(
    "With the pre-activation fed back, accuracy falls below 75 % and the state is beyond all bounds.",
    score["wrong"] < 0.75 and score["wrong_state"] > 1e6,
    accuracy=score["wrong"],
    largest_state=score["wrong_state"],
)
claim(
    "Repair: feed tanh's result back. The state stays within -1 and 1; more than 99 % are right.",
    score["repaired"] > 0.99 and score["repaired_state"] <= 1,
    accuracy=score["repaired"],
    largest_state=score["repaired_state"],
)

# %% [markdown]
# ### Exercise 3.1 · The recurrent layer from tensors
#
# Difficulty ●●○○○ · 20 minutes · needs section 2 · *implement*
#
# Write the loop yourself, with `@`, `torch.tanh` and `torch.stack`. `bias` is the sum of both biases.


# %% nbgrader={"grade": false, "grade_id": "ex03-1-rnn-forward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rnn_forward(x, h, weight_ih, weight_hh, bias):
    """An Elman layer over a batch of sequences.

    Args:
        x: (B, T, I) inputs.
        h: (B, D) the state before the first step.
        weight_ih: (D, I).
        weight_hh: (D, D).
        bias: (D,).

    Returns:
        output: (B, T, D), the state after every step.
        h_n: (B, D), the state after the last step.
    """
    ### BEGIN SOLUTION
    states = []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] @ weight_ih.T + h @ weight_hh.T + bias)
        states.append(h)
    return torch.stack(states, dim=1), h
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex03-1-rnn-forward-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch03.rnn_forward(rnn_forward)

# %% [markdown]
# ## 3 · Looking into a state
#
# What did the network of the opening put into its 16 numbers? Nobody told it to keep a bit. We run it over a real line and draw the state after every character.

# %%
line = 'she said "wait" and then "go" and left'
is_mark = torch.tensor([[c == '"' for c in line]]).long()
states = carrier.layer(carrier.embedding(is_mark))[0][0].detach()  # (T, D)
inside = (is_mark[0].cumsum(0) % 2).bool()
contrast = states[inside].mean(0) - states[~inside].mean(0)  # (D,)
figures.state_over_text(states, line, order=contrast.argsort(descending=True))

# %% tags=["fold"]
# @title How clear is the bit?
letters = is_mark[0] == 0
share_agreeing = ((states > 0) == inside[:, None])[letters].float().mean(0)  # (D,)
claim(
    "Between the marks, one unit's sign alone tells at every letter whether a quotation is open.",
    share_agreeing.sub(0.5).abs().max() == 0.5,
)

# %% [markdown]
# How does a tanh layer hold a bit? Two ingredients. **Holding:** a unit with a strong weight to itself, $h' = \tanh(w\,h)$ with $w > 1$, has two stable values, one positive and one negative, and returns to them if disturbed. (With $|w| \le 1$ it forgets: every value decays to 0.)
# **Deciding:** each unit can test one threshold of a weighted sum.
#
# Nobody has to ask for quotations in particular: Karpathy (2015) found a unit that turns on inside quotation marks in a network that was only trained to predict the next character.

# %%
kept = {
    w: [0.5, *loop(lambda _, h, w=w: math.tanh(w * h), 0.5, range(25))]
    for w in (0.9, 1.0, 2.0)
}
figures.self_weight(kept)

# %% tags=["fold"]
# @title What is left after 25 steps
claim(
    "After 25 steps the unit with w = 2 is above 0.9; with w = 0.9 less than a tenth is left.",
    kept[2.0][-1] > 0.9 and kept[0.9][-1] < 0.05,
    **{f"w = {w:g}": values[-1] for w, values in kept.items()},
)

# %% [markdown]
# ### Exercise 3.2 · Derive: a quotation bit in two units
#
# Difficulty ●●●●○ · 30 minutes · needs sections 2 and 3 · *derive*
#
# One number comes in at each step: $x_t = 1$ at a quotation mark, else 0. Find weights for **two** tanh units, $h_0 = 0$, such that
#
# $$ h_t = \tanh(x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b), \qquad y_t = h_t \cdot w_o + c $$
#
# has $y_t > 0$ exactly while a quotation is open, at every length. Let $s \in \{0, 1\}$ be the bit. The next one is "$s + x_t$ is 1", since 0 and 2 both mean closed. One threshold cannot say that; two can: *at least 1*, and *at least 2*.

# %% nbgrader={"grade": false, "grade_id": "ex03-2-quotation-weights", "locked": false, "schema_version": 3, "solution": true, "task": false}
quotation_weights = ...  # (W_ih (2, 1), W_hh (2, 2), b (2,), w_o (2,), c): tensors, and a number
### BEGIN SOLUTION
# Unit 0 asks whether s + x is above 1/2, unit 1 whether it is above 3/2; s = (h[0] - h[1]) / 2, also for h_0 = 0.
gain = 6.0  # steep enough that both answers are close to -1 or 1
quotation_weights = (
    gain * torch.tensor([[1.0], [1.0]]),
    gain * torch.tensor([[0.5, -0.5], [0.5, -0.5]]),
    gain * torch.tensor([-0.5, -1.5]),
    torch.tensor([0.5, -0.5]),
    -0.5,
)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex03-2-quotation-weights-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch03.quotation_weights(quotation_weights)

# %% [markdown]
# ## 4 · One layer, several forms of output
#
# Chapter 01 sorted tasks by where inputs come in and outputs come out. A recurrent layer serves all forms with the same equation; they differ in what you feed and in which states you read.
#
# | form | you feed | you read | example |
# |---|---|---|---|
# | many to many, in step | $x_1 \dots x_T$ | every state | is a quotation open; next character |
# | many to one | $x_1 \dots x_T$ | the last state, or the mean or maximum over all | is this review positive? |
# | one to many | $x_1$, then its own outputs | every state | a text from a first word (section 8) |
# | many to many | first $x_1 \dots x_T$, then its own outputs | the states of the second part | translation (chapter 06) |
#
# The loss follows: a sum over all steps that are read. The opening was the first form. Now the second, on the puzzle that chapter 02 left: *not terrible, it's great* against *not great, it's terrible*. To a bag of words they are one and the same.
# Each review here stands beside its mirror: the same words with the opposite label.

# %%
reviews = synthetic.reviews(2000, seed=1)
review_tokens = [text.tokenize(review) for review, _ in reviews]
vocab = text.build_vocab(review_tokens[:1600])
review_ids = [text.numericalize(words, vocab) for words in review_tokens]
labels = [label for _, label in reviews]
held_out = list(text.batches(review_ids[1600:], labels[1600:], 64))


def review_batches(epoch):
    """The training reviews, padded, in batches of similar length."""
    order = torch.Generator().manual_seed(epoch)
    return text.batches(review_ids[:1600], labels[:1600], 32, generator=order)

# %%
train.set_seed(0)
# embedding_std: each of the 57 words is frequent here (chapter 05 comes back to it)
judge = recurrent_models.SequenceClassifier(
    len(vocab), RNN(input_size=16, hidden_size=32), pool="last", embedding_std=1.0
)
history = train.fit(
    judge,
    review_batches,
    train.classification_loss,
    torch.optim.Adam(judge.parameters(), lr=5e-3),
    epochs=6,
    clip_norm=1.0,
    valid_batches=held_out,
)

# %%
in_order = predict("how often the RNN is right on held-out reviews, in per cent", ...)

# %% tags=["reveal"]
figures.word_order([epoch["valid_accuracy"] for epoch in history])

# %% tags=["fold", "reveal"]
# @title Accuracy after the last epoch
claim(
    "The RNN is right on more than 95 % of held-out reviews that only word order decides.",
    history[-1]["valid_accuracy"] > 0.95,
    accuracy=history[-1]["valid_accuracy"],
)
in_order.compare("more than 95 %")

# %% [markdown]
# ## 5 · Sequences of different lengths
#
# The last state is the state after the last *word*. In a padded batch it stands at a different step in every row. **Common mistake:** `output[:, -1]`. What happens to the classifier's accuracy if the state is read there, in batches as they come, with rows of very different lengths?

# %%
@torch.inference_mode()
def accuracy_when_read(read):
    """Accuracy on held-out reviews, if `read(output, lengths)` chooses the state."""
    right = 0
    for ids, mask, label in text.batches(
        review_ids[1600:], labels[1600:], 50, bucket=False, shuffle=False
    ):
        output, _ = judge.layer(judge.embedding(ids))  # (B, T, D)
        answer = judge.output(read(output, mask.sum(1))).argmax(1)
        right += (answer == label).sum().item()
    return right / 400

# %%
at_padding = accuracy_when_read(lambda output, lengths: output[:, -1])
at_last_word = accuracy_when_read(
    lambda output, lengths: output[torch.arange(len(output)), lengths - 1]
)

# %% tags=["fold", "reveal"]
# @title Where to read
claim(
    "Read at the end of the padding, more than a fifth of the reviews are judged wrongly.",
    at_padding < 0.8,
    accuracy=at_padding,
)
claim(
    "Repair: read each row at its own last word, and more than 95 % are right.",
    at_last_word > 0.95,
    accuracy=at_last_word,
)

# %% [markdown]
# The state goes on changing while the layer reads padding, and what it held gets lost. Nothing warns you. A model can even be *trained* that way, and must then learn to carry its answer through the padding (chapter 05 measures how well); its results depend on the longest review of the batch.
#
# There are three ways to do it right, and they agree:
#
# 1. **mask:** run over the padding, but read each row at `lengths - 1` (as above). That works forward only: a layer that reads from the end meets the padding first;
# 2. **pack:** `pack_padded_sequence` lays the real steps of all rows into one long row, with the number of rows still running at each step; the kernel computes nothing else, and `h_n` is right;
# 3. `lengths=` of the course's layers, which packs for the fused path and freezes finished rows in the loop.

# %%
ids, mask = text.pad_batch(review_ids[:5])
lengths = mask.sum(1)  # (B,)
layer = RNN(4, 6, dtype=torch.float64)
packing = nn.RNN(4, 6, batch_first=True, dtype=torch.float64)
packing.load_state_dict(layer.state_dict())
x = torch.randn(*ids.shape, 4, dtype=torch.float64)

masked = layer(x)[0][torch.arange(5), lengths - 1]
rows_as_one = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
packed = packing(rows_as_one)[1][0]
by_lengths = layer(x, lengths=lengths)[1][0]
in_loop = layer(x, lengths=lengths, backend="loop")[1][0]
further = F.pad(x, (0, 0, 0, 30), value=9.0)  # 30 more steps of anything at all
padded_further = layer(further, lengths=lengths)[1][0]
print("lengths", lengths.tolist(), "in T =", ids.shape[1])

# %% tags=["fold"]
# @title Check: the same states each time
claim(
    "Masked, packed, with lengths, in the loop: four times the same states.",
    agree([masked] * 3, [packed, by_lengths, in_loop]),
)
claim("Pad further, and nothing changes.", agree([padded_further], [by_lengths]))

# %% [markdown]
# `enforce_sorted=False` lets torch sort the rows and put them back; without it, rows must come longest first. And keep the last test, *pad further*, for every model of your own.

# %% [markdown]
# ## 6 · Two directions
#
# > *The ____ is a flightless bird that lives in Antarctica.*
#
# What decides the blank comes after it. At the blank, a forward state has read one word. If the whole sequence is there before you answer, run a second network **from the end to the beginning** and put both states side by side (Schuster and Paliwal 1997):
#
# $$ \overrightarrow{h}_t = f(x_t, \overrightarrow{h}_{t-1}), \qquad \overleftarrow{h}_t = f'(x_t, \overleftarrow{h}_{t+1}), \qquad \text{output}_t = [\overrightarrow{h}_t \,;\, \overleftarrow{h}_t] \in \mathbb{R}^{2D}. $$

# %%
diagrams.show("rnn_bidirectional")

# %% [markdown]
# Four animals, four forms of sentence, such as *the ____ is a flightless bird that lives in antarctica* and *which talking bird lives in brazil ? the ____*. In two of the forms the deciding words come after the blank, in two before it.

# %% tags=["fold"]
# @title The sentences as ids, and where the blank stands
ANIMALS = {
    "penguin": ("flightless", "bird", "antarctica"),
    "ostrich": ("flightless", "bird", "africa"),
    "parrot": ("talking", "bird", "brazil"),
    "walrus": ("heavy", "mammal", "greenland"),
}
EARLY = (
    "the ____ is a {} {} that lives in {}",
    "we call it ____ , the {} {} from {}",
)  # the blank comes early
LATE = ("in the end the {} {} from {} is the ____", "which {} {} lives in {} ? the ____")
sentences = [form.format(*facts).split() for form in EARLY + LATE for facts in ANIMALS.values()]
words = text.build_vocab(sentences)
sentence_ids, sentence_mask = text.pad_batch([text.numericalize(s, words) for s in sentences])
animal = torch.arange(len(sentences)) % 4
blank = (sentence_ids == words.stoi["____"]).int().argmax(1)  # (B,) where it stands

# %%
class FillIn(nn.Module):
    """Which animal stands at the blank?"""

    def __init__(self, bidirectional):
        super().__init__()
        self.embedding = nn.Embedding(len(words), 8)
        self.layer = RNN(8, 16, bidirectional=bidirectional)
        self.output = nn.Linear(32 if bidirectional else 16, 4)

    def forward(self, ids, mask):
        output, _ = self.layer(self.embedding(ids), lengths=mask.sum(1))
        return self.output(output[torch.arange(len(ids)), blank])  # at the blank

# %%
forward_early = predict("the forward accuracy where the words come later", ...)

# %%
filled = {}
passes = [(sentence_ids, sentence_mask, animal)] * 400
for name in ("forward", "bidirectional"):
    train.set_seed(0)
    filler = FillIn(bidirectional=name == "bidirectional")
    optimizer = torch.optim.Adam(filler.parameters(), lr=0.01)
    loss = train.classification_loss
    train.train_epoch(filler, tqdm(passes, leave=False), loss, optimizer)
    right = (filler(sentence_ids, sentence_mask).argmax(1) == animal).float()
    filled[name] = [right[:8].mean().item(), right[8:].mean().item()]

# %% tags=["fold", "reveal"]
# @title Blanks filled rightly
table(
    ["network", "decided by words after the blank", "by words before it"],
    [[name, *(f"{100 * value:.0f} %" for value in values)] for name, values in filled.items()],
)
claim(
    "Forward, the early blank is a guess among four, after 400 passes over these sentences; in both directions, every blank is filled.",
    abs(filled["forward"][0] - 0.25) < 0.13
    and filled["forward"][1] == 1.0
    and filled["bidirectional"] == [1.0, 1.0],
)
forward_early.compare("a guess among four")

# %% [markdown]
# (These are accuracies on the training sentences: the point is what a network *can* see, not how well it generalises.)
#
# **When not to use it.** A bidirectional layer has read the future. As a language model, it would be asked for a word that it has already read: it learns to copy, and its loss says nothing (the leak of chapter 01, section 9). `LanguageModel` refuses such a layer. It is of no use for a live stream either: before the end, its backward half has not begun.

# %%
try:
    recurrent_models.LanguageModel(9, RNN(4, 5, bidirectional=True))
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# **Common mistake · `output[:, -1]` of a bidirectional layer.** As a summary of the whole sequence, it holds the forward state after $T$ steps, fine, beside the backward state after **one**: it has read the last token only. The backward summary stands at the other end, in `output[:, 0, D:]`. The test: replace all tokens but the last, and see which half changes.

# %%
width = 6
two_way = RNN(4, width, bidirectional=True, dtype=torch.float64)
read = torch.randn(2, 9, 4, dtype=torch.float64)
start = torch.randn(2, 8, 4, dtype=torch.float64)
other = torch.cat([start, read[:, -1:]], dim=1)  # only the last input is kept
(both, h_both), (changed, _) = two_way(read), two_way(other)

# %% tags=["fold"]
# @title Which half changed?
claim(
    "The backward half of `output[:, -1]` does not notice: it knows one token.",
    agree([both[:, -1, width:]], [changed[:, -1, width:]]),
)
claim(
    "Repair: forward at the last step, backward at the first. That is `h_n`.",
    agree([both[:, -1, :width], both[:, 0, width:]], [h_both[0], h_both[1]])
    and not agree([both[:, 0, width:]], [changed[:, 0, width:]]),
)

# %% [markdown]
# ## 7 · Layers on layers, and how to read `nn.RNN`
#
# The states of one layer can be the inputs of the next. Each layer has its own weights; depth in layers is shared over time as before.

# %%
diagrams.show("rnn_stacked")

# %% [markdown]
# Take `nn.RNN(input_size=7, hidden_size=5, num_layers=2, bidirectional=True)`. How many parameter tensors does it have? What shape has the one through which layer 1 reads layer 0?

# %%
stacked = nn.RNN(7, 5, num_layers=2, bidirectional=True, batch_first=True)
top_states, last_states = stacked(torch.zeros(3, 4, 7))
print("output", tuple(top_states.shape), "= (B, T, 2D)")
print("h_n   ", tuple(last_states.shape), "= (N * 2, B, D)")

# %% tags=["fold"]
# @title Its parameters
table(
    ["parameter", "shape", "reads"],
    [
        [
            f"`{name}`",
            tuple(p.shape),
            {"weight_ih": "input, or layer below", "weight_hh": "own state"}.get(name[:9], ""),
        ]
        for name, p in stacked.named_parameters()
    ],
)
claim(
    "Layer 1 reads both directions of layer 0: `weight_ih_l1` is (D, 2D).",
    stacked.weight_ih_l1.shape == (5, 10),
)

# %% [markdown]
# `_l0`, `_l1` name the layers from below, `_reverse` the backward direction. The rows of `h_n` go layer by layer, forward before backward; `h_n.view(N, 2, B, D)` takes them apart. **Output or h_n?** `output` has the top layer at *all* steps, `h_n` has *all layers* at the end. They meet in one place, and two layers by hand, one on the other, are the stack:

# %%
x_stack = torch.randn(3, 4, 7)
top_states, last_states = stacked(x_stack)
by_layer = last_states.view(2, 2, 3, 5)  # (N, directions, B, D)

bottom, top = RNN(7, 5, bidirectional=True), RNN(10, 5, bidirectional=True)
named = stacked.state_dict().items()
bottom.load_state_dict({key: w for key, w in named if "_l0" in key})
top.load_state_dict({key.replace("_l1", "_l0"): w for key, w in named if "_l1" in key})
by_hand = top(bottom(x_stack)[0])[0]

# %% tags=["fold"]
# @title Check: where output and h_n meet
claim(
    "The top layer's `h_n` is `output` at the last step (forward) and at the first (backward).",
    torch.equal(by_layer[1, 0], top_states[:, -1, :5])
    and torch.equal(by_layer[1, 1], top_states[:, 0, 5:]),
)
claim(
    "Two layers by hand, one on the other, are the stack.",
    torch.allclose(by_hand, top_states, atol=1e-6),
)

# %% [markdown]
# All the arguments of `nn.RNN`:
#
# | argument | default | meaning |
# |---|---|---|
# | `input_size`, `hidden_size` | | $I$ and $D$ |
# | `num_layers` | 1 | $N$ |
# | `nonlinearity` | `"tanh"` | or `"relu"`, whose state has no upper bound and can explode |
# | `bias` | True | False leaves out both biases |
# | `batch_first` | **False** | True takes `(B, T, I)`, as everywhere in this course |
# | `dropout` | 0 | fraction dropped between layers, in training; not after the last layer, not along time, so with one layer it does nothing |
# | `bidirectional` | False | a second direction with its own weights |
#
# Called as `layer(x, h_0)`; without `h_0` it is zero. (Never draw it at random, as some tutorials do: the same sequence would get another answer at every call.) All weights begin uniform in $\pm 1/\sqrt{D}$. The course's `RNN` takes the same, always batch first, and `lengths=`.
#
# **Common mistake · `batch_first` forgotten.** The default is time first: `(T, B, I)`. Given a batch `(B, T, I)`, torch cannot know. Which error message do you get, with $B = 5$ and $T = 7$?

# %%
message = predict("what torch says to a batch (5, 7, 3) without batch_first", ...)

# %%
time_first = nn.RNN(3, 4)  # batch_first=False
five = torch.randn(5, 7, 3)  # B = 5 sequences of T = 7 steps
outputs, h_last = time_first(five)

# %% tags=["fold", "reveal"]
# @title What torch says; change one sequence
print("output", tuple(outputs.shape), "  h_n", tuple(h_last.shape))
elsewhere = five.clone()
elsewhere[0] = 0.0  # another first sequence
leak = (time_first(elsewhere)[0][1:] - outputs[1:]).abs().max().item()
claim(
    "No error, and `output` has the right shape. But changing sequence 0 changes the others' outputs.",
    outputs.shape == (5, 7, 4) and leak > 1e-3,
    largest_change=leak,
)
right_way = nn.RNN(3, 4, batch_first=True)
right_way.load_state_dict(time_first.state_dict())
claim(
    "Repair: `batch_first=True`, and no sequence notices its neighbours. `h_n` stays (N, B, D).",
    torch.equal(right_way(elsewhere)[0][1:], right_way(five)[0][1:])
    and right_way(five)[1].shape == (1, 5, 4),
)
message.compare("nothing: there is no error")

# %% [markdown]
# With the two swapped, the state ran from one *sequence* to the next, each step for itself. The only visible trace is `h_n`: its middle size is 7, not 5. Test every sequence model so: change one row, and no other may change.

# %% [markdown]
# ### Exercise 3.3 · Derive: sizes of a stack
#
# Difficulty ●●○○○ · 10 minutes · needs sections 6 and 7 · *derive*
#
# For `nn.RNN(input_size=12, hidden_size=5, num_layers=3, bidirectional=True)`, with pencil and paper:
# (1) the number of parameters; (2) the number of columns of `weight_ih_l2_reverse`; (3) the first size of `h_n`; (4) the last size of `output`.

# %% nbgrader={"grade": false, "grade_id": "ex03-3-stack-sizes", "locked": false, "schema_version": 3, "solution": true, "task": false}
stack_sizes = ...  # (parameters, columns, first size of h_n, last size of output)
### BEGIN SOLUTION
# layer 0: 2 (5 * 12 + 5 * 5 + 2 * 5) = 190; layers 1 and 2: 2 (5 * 10 + 5 * 5 + 2 * 5) = 170 each
stack_sizes = (190 + 2 * 170, 10, 6, 10)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex03-3-stack-sizes-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch03.stack_sizes(stack_sizes)

# %% [markdown]
# ### Exercise 3.4 · The summary of a padded, bidirectional batch
#
# Difficulty ●●●○○ · 20 minutes · needs sections 5 to 7 · *implement*
#
# Both mistakes at once. `output` comes from a bidirectional layer that was told the lengths: the backward half started at each row's own last token. Whatever stands at the padding must not matter.


# %% nbgrader={"grade": false, "grade_id": "ex03-4-summaries", "locked": false, "schema_version": 3, "solution": true, "task": false}
def summaries(output, lengths):
    """The states that have read all of each sequence.

    Args:
        output: (B, T, 2D), forward states in the first D columns, backward states in the last D.
        lengths: (B,) int64, the number of real steps of each row, from 1 to T.

    Returns:
        (B, 2D): the forward summary, then the backward summary.
    """
    ### BEGIN SOLUTION
    D = output.shape[2] // 2
    forward = output[torch.arange(len(output)), lengths - 1, :D]
    return torch.cat([forward, output[:, 0, D:]], dim=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex03-4-summaries-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch03.summaries(summaries)

# %% [markdown]
# ## 8 · A language model that carries its past
#
# The form *many to many, in step*, with the next character as the target. Mikolov et al. (2010) put such a network, over words and with the logistic function for tanh, in the place of n-grams:
#
# $$ h_t = \tanh\big(e(x_t) W_{ih}^\top + h_{t-1} W_{hh}^\top + b\big), \qquad p(x_{t+1} \mid x_1, \dots, x_t) = \mathrm{softmax}(h_t W_{ho}^\top + b_o) $$
#
# with $e(x_t)$ the embedding of character $t$. On the right of the bar stands the **whole** past, not a window, as far as $h_t$ can hold it.

# %%
show_source(recurrent_models.LanguageModel.run)

# %% [markdown]
# We train it on real text that every machine has, the docstrings of your own Python, with all characters this time. The text is one sequence of hundreds of thousands of steps, far too long to unroll. So it is cut: $B$ streams side by side, read in pieces of $T$ steps. At the end of a piece the *value* of the state is carried into the next, but its history is cut off by `detach`, so that gradients stay inside a piece. (This is truncated backpropagation; chapter 04 says what it costs.) The loop is short enough to read:

# %%
def train_language_model(model, ids, epochs, rate=8e-3):
    """Truncated backpropagation; the state is carried from piece to piece."""
    pieces = text.contiguous_batches(ids, batch_size=16, length=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * len(pieces), pct_start=0.1
    )
    for _ in range(epochs):
        state = None  # a new pass: back to the beginning of the text, so back to zero
        for inputs, targets in tqdm(pieces, leave=False):
            logits, state = model.run(inputs, state)
            state = state.detach()  # the value goes on, the graph does not
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model

# %% tags=["fold"]
# @title The text as ids, and the score of a model
corpus = datasets.docstrings(run_size.pick(300_000, None))
alphabet = sorted(set(corpus))
number = {character: i for i, character in enumerate(alphabet)}
V = len(alphabet)


def encode(string):
    """Ids (T,) of a string."""
    return torch.tensor([number[character] for character in string])


corpus_ids = encode(corpus)
cut = len(corpus_ids) * 9 // 10
train_ids, valid_ids = corpus_ids[:cut], corpus_ids[cut:]


@torch.inference_mode()
def nats(model, ids):
    """Nats (T - 1,) of every character but the first, the state carried all the way."""
    return F.cross_entropy(model.run(ids[None, :-1])[0][0], ids[1:], reduction="none")

# %%
train.set_seed(0)
writer = recurrent_models.LanguageModel(V, RNN(32, hidden_size=run_size.pick(128, 512)))
untrained = recurrent_models.LanguageModel(V, RNN(32, 128))
train_language_model(writer, train_ids, epochs=run_size.pick(2, 8))
rnn_bits = metrics.bits(nats(writer, valid_ids).mean().item())

# %% [markdown]
# n-grams were strong in chapter 01. On the same text, with the same alphabet: which order of n-gram will this RNN match after two passes? And which of the two models is larger?

# %%
matched = predict("the order n of the n-gram that this RNN matches", ...)

# %% tags=["reveal"]
ngrams = {
    n: ngram.NgramModel(n, V, add=2.0, interpolate=True).fit(train_ids)
    for n in tqdm(range(1, 7), leave=False)
}
ngram_nats = {n: model.nll(valid_ids).mean().item() for n, model in ngrams.items()}
ngram_bits = {n: metrics.bits(nats_of_n) for n, nats_of_n in ngram_nats.items()}
figures.against_ngrams(ngram_bits, rnn_bits)

# %% tags=["fold", "reveal"]
# @title Bits per character, and sizes
claim(
    "After two passes the RNN is better than the 3-gram by more than a tenth of a bit, and behind the best n-gram.",
    min(ngram_bits.values()) < rnn_bits < ngram_bits[3] - 0.1,
    rnn=rnn_bits,
    **{"3-gram": ngram_bits[3], "best n-gram": min(ngram_bits.values())},
)
claim(
    "It has fewer parameters than the 4-gram has counts.",
    utils.number_of_parameters(writer) < sum(ngrams[4].num_ngrams),
    rnn=utils.number_of_parameters(writer),
    **{"4-gram": sum(ngrams[4].num_ngrams)},
)
matched.compare("better than the 3-gram, behind the best")

# %% [markdown]
# It has not seen enough yet: a table of counts learns in one pass, a network in many.

# %% [markdown]
# ### With more time: the ledger
#
# These runs on tiny Shakespeare were recorded beforehand (the table says with how many seeds), on the same split as chapter 01's, so the numbers can be compared. (The n-gram is the best of chapter 01's, chosen on validation text.) The RNN has about as many weights as the window network. In which order will the three end?

# %% tags=["fold"]
# @title Recorded runs on tiny Shakespeare
by_n = {
    n: ledger.summary("shakespeare-lm", f"{n}-gram interpolated", "valid_perplexity")[0]
    for n in range(1, 8)
}
best_n = min(by_n, key=by_n.get)
recorded = {
    "4-gram": ("shakespeare-lm", "4-gram interpolated"),
    f"{best_n}-gram": ("shakespeare-lm", f"{best_n}-gram interpolated"),
    "window network": ("shakespeare-lm", "window network"),
    "RNN": ("shakespeare-recurrent", "RNN"),
}
by_epoch = {
    name: [
        [metrics.bits(loss) for loss in run] for run in ledger.curves(*recorded[name], "valid_loss")
    ]
    for name in ("window network", "RNN")
}


def mean_of(name, metric):
    """The mean over seeds of one recorded number."""
    return ledger.summary(*recorded[name], metric)[0]

# %% tags=["reveal"]
figures.on_shakespeare(by_epoch, best_n, metrics.bits(math.log(by_n[best_n])))

# %% tags=["fold", "reveal"]
# @title The same models on the reported text
table(
    ["tiny Shakespeare, last 10 %", "perplexity", "bits per character", "counts or weights", "seeds"],
    [
        [
            name,
            *(mean_of(name, m) for m in ("perplexity", "bits")),
            f"{mean_of(name, 'parameters'):,.0f}",
            ledger.summary(*recorded[name], "bits")[3],
        ]
        for name in recorded
    ],
)
claim(
    "On the reported text the RNN is ahead of the window network by more than 0.03 bits.",
    mean_of("RNN", "bits") < mean_of("window network", "bits") - 0.03,
)
claim(
    "With a third of its numbers, or fewer, it is within a tenth of a bit of the best n-gram, or ahead.",
    mean_of("RNN", "bits") < mean_of(f"{best_n}-gram", "bits") + 0.1
    and mean_of("RNN", "parameters") < mean_of(f"{best_n}-gram", "parameters") / 3,
)

# %% [markdown]
# (The figure is of validation text, the table of the reported text, which is harder for all of them.)
#
# ### What the carried state is worth
#
# **Common mistake · forgetting to carry.** The text is cut into pieces of 64 characters and every piece begins with a zero state. How much worse is the first character of a piece? The tenth? After how many characters has the model caught up?

# %%
rows = valid_ids[: len(valid_ids) // 65 * 65].view(-1, 65)
with torch.inference_mode():
    logits = writer(rows[:, :-1]).transpose(1, 2)  # (B, V, 64), from a zero state
    by_row = F.cross_entropy(logits, rows[:, 1:], reduction="none")  # (B, 64)

# %% tags=["fold"]
# @title In bits, for the first, second and later characters
edges = [0, 1, 2, 4, 8, 16, 32, 64]
binned = [metrics.bits(by_row[:, a:b].mean().item()) for a, b in pairwise(edges)]
spans = ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64"]
with torch.inference_mode():
    sixteens = valid_ids[: len(valid_ids) // 17 * 17].view(-1, 17)
    logits = writer(sixteens[:, :-1]).transpose(1, 2)
    reset_bits = metrics.bits(F.cross_entropy(logits, sixteens[:, 1:]).item())

# %% tags=["reveal"]
figures.catching_up(spans, binned, carried=rnn_bits)

# %% tags=["fold", "reveal"]
# @title What a zero start costs
claim(
    "After 32 characters the zero start costs less than 0.15 bits; at the first, more than 1, and a 2-gram is ahead.",
    binned[-1] - rnn_bits < 0.15 and binned[0] - rnn_bits > 1 and binned[0] > ngram_bits[2],
    first_character=binned[0],
    **{"2-gram": ngram_bits[2], "after 32": binned[-1], "state carried": rnn_bits},
)
claim(
    "Reset every 16 characters, the same model scores more than 0.2 bits worse.",
    reset_bits > rnn_bits + 0.2,
    reset=reset_bits,
    carried=rnn_bits,
)

# %% [markdown]
# (At the first character the model is even worse than a 2-gram, which has read as much: a zero state is one that it hardly met in training.) Repair: hand `state` back to `run`, as the training loop does, and say beside every perplexity how the state was treated.
#
# **Common mistake · forgetting to reset.** The opposite error: the sequences have nothing to do with each other, and the state of one leaks into the next. We give the quotation network of the opening a new string with the state that an unfinished quotation left behind.

# %%
leaked = predict("its accuracy on the new string, in per cent", ...)

# %%
new_symbols, new_open = quotations(20, 500, 0.1, torch.Generator().manual_seed(3))
with torch.inference_mode():
    # A quotation opens and is never closed.
    _, left_over = carrier.run(torch.tensor([[0, 0, 1, 0, 0]]))
    left_over = left_over.expand(1, 20, 16).contiguous()  # the same for all 20
    leaking = carrier.run(new_symbols, left_over)[0].argmax(-1)
    fresh = carrier.run(new_symbols)[0].argmax(-1)

# %% tags=["fold", "reveal"]
# @title Accuracy with a left-over state
with_left_over, with_fresh = ((a == new_open).float().mean().item() for a in (leaking, fresh))
claim(
    "With a left-over state fewer than 1 % are right: all is upside down. Reset, more than 99 %.",
    with_left_over < 0.01 and with_fresh > 0.99,
    left_over=with_left_over,
    reset=with_fresh,
)
leaked.compare("below 1 %")

# %% [markdown]
# Rule: the state is carried exactly where the *text* goes on. Same text, next piece: carry. Another text, another pass: reset.
#
# ### Writing
#
# To write, the model needs one step at a time: read a character, draw the next, read that. `model.step` reads the new tokens, the prompt first and then one at a time; the state is all it needs of the past. A model without a state has to read its whole window again for every character (chapter 13 returns to this).

# %%
show_source(recurrent_models.LanguageModel.step)

# %%
prompt = encode("Return the ")
state, stepwise = writer.start(batch_size=1), []
with torch.inference_mode():
    for character in prompt:
        logits, state = writer.step(character.view(1, 1), state)  # (1, V)
        stepwise.append(logits[0].softmax(-1))
    at_once = writer(prompt[None])[0].softmax(-1)

# %% tags=["fold"]
# @title Check: step by step or all at once
claim(
    "Step by step or all at once: the same probabilities.",
    torch.allclose(torch.stack(stepwise), at_once, atol=1e-5),
)

# %% tags=["nbval-ignore-output"]
sampling = torch.Generator().manual_seed(1)
for temperature in (0.5, 1.0):
    new = generate.generate(
        writer, prompt[None], 240, sampling, temperature=temperature
    )
    written = "".join(alphabet[i] for i in [*prompt, *new[0]])
    print(f"--- temperature {temperature}\n{written}\n")

# %% [markdown]
# Words and half-words, indentation, sections that begin as docstrings do. No sense: there is little training behind it, and less memory, as section 9 shows. (Your text differs: your Python's docstrings, your machine's rounding.)

# %% [markdown]
# ### Exercise 3.5 · Find the bug: a writer without a past
#
# Difficulty ●●●○○ · 20 minutes · needs section 8 · *find the bug*
#
# This function continues a prompt, each time with the most probable character. It runs, and every character it writes is plausible after the one before. Its author found the texts "a little repetitive". The prompts below have nothing in common but their last letter.


# %%
@torch.inference_mode()
def forgetful_writer(run, prompt, steps):
    """run(ids (1, T), state) -> (logits (1, T, V), state); prompt: list of ids."""
    ids = list(prompt)
    for _ in range(steps):
        logits, _ = run(torch.tensor([ids[-1:]]))  # one new character a step
        ids.append(logits[0, -1].argmax().item())
    return ids[len(prompt) :]


prompts = ["Return the name", "import a module from a file", "class Queue"]
continued = [forgetful_writer(writer.run, encode(p).tolist(), 40) for p in prompts]

# %% tags=["fold"]
# @title What it wrote
claim(
    "All three prompts are continued in the same way.",
    continued[0] == continued[1] == continued[2],
    continuation=f"`{''.join(alphabet[i] for i in continued[0])!r}`",
)
followed = set(pairwise(continued[0]))
claim(
    "And each character is always followed by the same character: the text goes in circles.",
    len(followed) == len({first for first, _ in followed}),
)

# %% [markdown]
# Two things are lost, one at the start and one at every step. Write the version that reads every character of the prompt and every new one, each **once**. It is called with any function `run` of this kind.


# %% nbgrader={"grade": false, "grade_id": "ex03-5-continue-text", "locked": false, "schema_version": 3, "solution": true, "task": false}
def continue_text(run, prompt, steps):
    """Continue a prompt with the most probable token, again and again.

    Args:
        run: run(ids (1, T), state) -> (logits (1, T, V), state); state None is the beginning.
        prompt: list of P ids, at least one.
        steps: how many new tokens, at least one.

    Returns:
        list of `steps` ints, without the prompt.
    """
    ### BEGIN SOLUTION
    logits, state = run(torch.tensor([prompt]), None)
    new = [logits[0, -1].argmax().item()]
    while len(new) < steps:
        logits, state = run(torch.tensor([new[-1:]]), state)
        new.append(logits[0, -1].argmax().item())
    return new
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex03-5-continue-text-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch03.continue_text(continue_text)

# %% [markdown]
# ### Exercise 3.6 · How wide should the state be?
#
# Difficulty ●●●○○ · 30 minutes · needs section 8 · *explore and explain*
#
# The function below trains one width and returns perplexities on the text it learned from and on held-out text. Try widths from 4 to 256, with 100,000 and with all characters, with one and with several epochs. Then answer in a few sentences:
# (a) How does the held-out perplexity change each time the width doubles, and why does it not go on falling? (b) Where does the gap between the two perplexities open, and what closes it? (c) What does twice the width cost in parameters and in time? (d) The 4-gram needs no width. What would you choose with little text, and why?


# %%
def perplexities(width, characters, epochs=1):
    """(on text it learned from, on held-out text) of an RNN of this width."""
    train.set_seed(1)
    lm = recurrent_models.LanguageModel(V, RNN(32, width))
    train_language_model(lm, train_ids[:characters], epochs, rate=1e-2)
    learned = train_ids[: min(characters, 20_000)]
    return [math.exp(nats(lm, ids).mean()) for ids in (learned, valid_ids[:20_000])]


tried = {width: perplexities(width, 100_000) for width in (8, 32, 128)}

# %% tags=["fold"]
# @title Three widths, and the 4-gram
claim(
    "From a state of 8 numbers to one of 128, the held-out perplexity falls by more than a fifth.",
    tried[128][1] < 0.8 * tried[8][1],
    **{f"width {width} (learned, held out)": values for width, values in tried.items()},
)
counts = ngram.NgramModel(4, V, add=2.0, interpolate=True).fit(train_ids[:100_000])
four_gram = math.exp(counts.nll(valid_ids[:20_000]).mean())
claim(
    "A 4-gram of the same 100,000 characters is ahead of all three.",
    four_gram < min(held for _, held in tried.values()),
    **{"4-gram": four_gram},
)

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex03-6-width", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) At first it falls with every doubling, by less each time; the largest states are no better, or worse. First the state has too little room for what the last few characters say, then room is not what is lacking. With one pass over little text, and one learning rate for all, the larger states are not even trained to use what they have: the perplexity on the text they learned from is no better either, so it is not over-fitting.
#
# (b) The gap opens with width and with epochs on the small text: a large state can store peculiarities of the text it learned from. More text closes it, and so do fewer epochs or dropout, which lower the training score rather than raise the other.
#
# (c) Parameters grow with D squared through weight_hh, and with D through the embedding and the output; four times the weights at large D. The time grows more slowly at first, since at small widths each step costs its overhead whatever it computes, and later as D squared.
#
# (d) Counts: they are right after one look at a context, while gradient descent moves the weights a little at each. That is why the 4-gram is ahead on 100,000 characters. With much text the network wins, since it shares what it learns between contexts and is not limited to n - 1 letters.
# ### END SOLUTION

# %% [markdown]
# ## 9 · What is bad about it
#
# ### The state has a fixed size
#
# Everything the network will ever know of the past is in $D$ numbers. How much is that? We drive an untrained layer with independent random numbers $x_t$ and ask how well a linear read-out of $h_t$ can rebuild the input of $k$ steps ago: the fraction of its variance that is explained, $R^2_k$ (1 is perfect, 0 is nothing). Summed over all lags, it can never exceed $D$ (Jaeger 2001): a state of $D$ numbers rebuilds at most $D$ independent ones. (The recurrent weights are a random rotation, shrunk so that old inputs fade, and the inputs are small, so that tanh hardly bends: kinder to memory than most weights.) At which lag does each of $D = 8$, 32 and 128 fall below a half?

# %% tags=["fold"]
# @title How memory is measured
def memory(D, shrink, lags=160, steps=12_000):
    """R^2 (lags,) of the best linear read-out of the input k steps back, on steps that it was not fitted to."""
    generator = torch.Generator().manual_seed(D)
    layer = RNN(1, D, bias=False, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0]
    x = torch.rand(1, steps, 1, generator=generator, dtype=torch.float64) - 0.5
    with torch.no_grad():
        layer.weight_hh_l0.copy_(shrink * rotation)
        layer.weight_ih_l0.copy_(0.03 * torch.randn(D, 1, generator=generator, dtype=torch.float64))
        states = layer(x)[0][0]  # (steps, D)
    # past[t, k] is x[t - k]
    past = torch.stack([x[0, lags - k : steps - k, 0] for k in range(lags)], dim=1)
    states, fitted = states[lags:], (steps - lags) * 4 // 5
    readout = torch.linalg.lstsq(states[:fitted], past[:fitted]).solution
    error = (states[fitted:] @ readout - past[fitted:]).square().mean(0) / past[fitted:].var(0)
    return 1 - error

# %% tags=["reveal"]
remembered = {}
for D, shrink in tqdm(((8, 0.7), (32, 0.9), (128, 0.97)), leave=False):
    remembered[D] = memory(D, shrink)
figures.memory_by_lag(remembered)

# %% tags=["fold", "reveal"]
# @title Lags and totals
halves = {D: int((r2 < 0.5).int().argmax()) for D, r2 in remembered.items()}
totals = {D: r2.sum().item() for D, r2 in remembered.items()}
claim(
    "Each curve falls below a half between lag 0.75 D and lag 1.25 D.",
    all(0.75 * D < lag < 1.25 * D for D, lag in halves.items()),
    **{f"D = {D}: lag": lag for D, lag in halves.items()},
)
claim(
    "No state rebuilds more inputs than it has numbers (to 3 %, as the sample is finite).",
    all(total < 1.03 * D for D, total in totals.items()),
    **{f"D = {D}: inputs": total for D, total in totals.items()},
)

# %% [markdown]
# On paper, with numbers of as many digits as it needs, a recurrent network can compute whatever any computer can (Siegelmann and Sontag 1995, with a piecewise linear function for tanh); in practice it has $D$ rounded ones. Training can choose *what* is kept, as the bit of the opening shows, which needs no more room at step 1,000 than at step 1. It cannot make room. A translator that must press a sentence of any length into one state will feel it (chapter 06), and attention is the way out (chapter 07).

# %% [markdown]
# ### The gradient vanishes
#
# *The keys that I left on the table in the hall, under the coat my brother wore when it rained, **are** gone.* The first words decide *are*. To learn that a character matters 50 steps later, training must feel its influence: the gradient of the loss at the last step with respect to the input 50 steps before. We measure its norm, before and after training. By what factor is it smaller at lag 20 than at lag 0?

# %%
def gradient_by_lag(model, steps=60, rows=64):
    """Mean gradient norm of the last loss with respect to the input k steps before."""
    ids = valid_ids[: rows * (steps + 1)].view(rows, steps + 1)
    x = model.embedding(ids[:, :-1]).detach().requires_grad_()
    output, _ = model.layer(x)
    F.cross_entropy(model.output(output[:, -1]), ids[:, -1], reduction="sum").backward()
    return x.grad.norm(dim=2).mean(0).flip(0)


flow = {"untrained": gradient_by_lag(untrained), "trained": gradient_by_lag(writer)}
relative = {name: norms / norms[0] for name, norms in flow.items()}

# %% tags=["reveal"]
figures.gradient_by_lag(relative)

# %% tags=["fold", "reveal"]
# @title What is left at lags 20 and 50
claim(
    "Trained or not, less than 1 % of the gradient is left at lag 20, less than 0.01 % at lag 50.",
    all(norms[20] < 1e-2 and norms[50] < 1e-4 for norms in relative.values()),
    untrained=relative["untrained"][[20, 50]],
    trained=relative["trained"][[20, 50]],
)

# %% [markdown]
# A straight line on this scale is a power: each step back multiplies by a matrix, and the product of many is tiny or, with other weights, huge. Why, when, and what to do is chapter 04; a network built against it is chapter 05.
#
# ### One step after another
#
# $h_t$ needs $h_{t-1}$. However many processors you have, the loop takes $T$ steps in a row, while a window network computes all positions at once. To see the cost of *waiting* alone, keep the work equal: always 4,096 symbols, first as 256 sequences of 16 steps, at last as one sequence of 4,096. What will the two curves of time against $T$ look like?

# %% tags=["fold"]
# @title Take the times
def milliseconds(function, repeats=7):
    """The shortest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


piece_lengths = [16, 64, 256, 1024, 4096]
taken = {"RNN": [], "window network": []}
timed, convolution = RNN(64, 64), nn.Conv1d(64, 64, kernel_size=8)
with torch.inference_mode():
    for T in tqdm(piece_lengths, leave=False):
        inputs = torch.randn(4096 // T, T, 64)
        past = F.pad(inputs.transpose(1, 2), (7, 0)).contiguous()
        taken["RNN"].append(milliseconds(lambda inputs=inputs: timed(inputs)))
        taken["window network"].append(milliseconds(lambda past=past: convolution(past)))
steps_taken = []
scan(
    lambda x, h: (steps_taken.append(1) or torch.tanh(x + h),),
    torch.zeros(4096, 1, 1),
    (torch.zeros(1, 1),),
)

# %% tags=["reveal"]
figures.time_by_length(piece_lengths, taken)

# %% tags=["fold", "reveal"]
# @title Times, and steps that follow one another
claim(
    "The RNN takes over 3 times as long for one sequence of 4,096 steps as for 256 of 16.",
    taken["RNN"][-1] > 3 * taken["RNN"][0],
    **{f"{name} (ms)": [taken[name][0], taken[name][-1]] for name in taken},
)
claim("Sequential steps, counted: 4,096 in the loop.", len(steps_taken) == 4096)

# %% [markdown]
# That is on a processor with few cores. A GPU is fast only when thousands of numbers can be computed at once, so it has more to lose; chapter 10 measures. It is the first reason that the authors of the Transformer give for doing without recurrence (Vaswani et al. 2017, section 1; chapter 09).

# %% [markdown]
# ## Summary
#
# 1. A recurrent network is a loop with a state: one set of weights, any length; whatever it needs of the past must pass through $D$ numbers.
# 2. What differs between tasks is which states you read: all of them, each row's own last one, or both ends of a bidirectional layer.
# 3. In padded batches read by length, never `[:, -1]`; say `batch_first=True`; test that padding and neighbours change nothing.
# 4. Carry the state exactly where the text goes on, reset it where another begins; with a carried state, writing costs one step a character.
# 5. Three weaknesses: a state of fixed size, a gradient that vanishes with the lag, and steps that must wait for each other.
#
# ## Where next
#
# Chapter 04 walks backward through the unrolled network and finds out why the gradient vanishes. Chapter 05 builds a cell that lets it through.
#
# ## References
#
# - J. L. Elman (1990), "Finding Structure in Time", *Cognitive Science* 14: figure 2, the network with context units; ours has tanh in place of units from 0 to 1, and one more bias.
# - M. Schuster and K. K. Paliwal (1997), "Bidirectional Recurrent Neural Networks", *IEEE Transactions on Signal Processing* 45(11): section II, figure 3.
# - H. T. Siegelmann and E. D. Sontag (1995), "On the Computational Power of Neural Nets", *Journal of Computer and System Sciences* 50: what a recurrent network could compute if its numbers were exact.
# - H. Jaeger (2001), "Short Term Memory in Echo State Networks", GMD Report 152: the memory capacity for independent inputs is at most the number of units.
# - T. Mikolov, M. Karafiat, L. Burget, J. Cernocky and S. Khudanpur (2010), "Recurrent Neural Network Based Language Model", Interspeech: section 2, equations 1 to 5.
# - A. Graves (2013), "Generating Sequences With Recurrent Neural Networks", arXiv 1308.0850: section 2, equations 1 to 5, for stacked layers and generation.
# - A. Karpathy (2015), "The Unreasonable Effectiveness of Recurrent Neural Networks", karpathy.github.io: forms of output; a unit that keeps track of quotations, found in a trained network.
# - A. Vaswani et al. (2017), "Attention Is All You Need", arXiv 1706.03762: section 1, on steps that cannot be computed at once.
# - A. Zhang, Z. C. Lipton, M. Li and A. J. Smola, *Dive into Deep Learning*, chapter 9, d2l.ai.
# - Video: MIT 6.S191, *Recurrent Neural Networks*, [youtube.com/watch?v=SEnXr6v2ifU](https://www.youtube.com/watch?v=SEnXr6v2ifU): the first half is this chapter, the second chapters 04 and 05.
# - Video: *Deep Learning for Natural Language Processing*, [youtu.be/6D4EWKJgNn0](https://youtu.be/6D4EWKJgNn0): the part on recurrent networks.
