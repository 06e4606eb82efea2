# ---
# jupyter:
#   course:
#     minutes: 270
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
# As you read a line of text, you know at every letter whether a quotation is open. Two networks learn to do the same, from strings of 10 symbols, where 1 is a quotation mark and 0 any other character:
#
# ```text
# read:    0 1 0 0 0 1 1 0 1 0
# answer:  0 1 1 1 1 0 1 1 0 0      1: a quotation is open
# ```
#
# The window network of chapter 01 sees the last 10 symbols. The other network reads one symbol at a time and keeps 16 numbers as its memory.
# Then both are tested on strings of 1,000 symbols. **How often is each of them right?**

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

from course_lib import datasets, metrics, ngram, recurrent_models, text, train, utils
from course_lib.datasets import synthetic
from course_lib.exercises import ch03
from course_lib.generate import generate
from course_lib.notebook import claim, diagrams, ledger, predict, run_size, show_source, table
from course_lib.notebook.figures import ch03 as figures
from course_lib.rnn import RNN, rnn_loop, rnn_step, scan

torch.set_printoptions(precision=2, sci_mode=False)
_ = torch.manual_seed(0)

# %%
long_guess = predict("the two accuracies on 1,000 symbols, in percent", ...)

# %% tags=["fold", "reveal"]
# @title Train both on strings of 10, then test both
def quotations(batch, length, generator):
    """Symbols (B, T), 1 = a quotation mark; answers (B, T), 1 = a quotation is open."""
    symbols = (torch.rand(batch, length, generator=generator) < 0.5).long()
    return symbols, symbols.cumsum(dim=1) % 2


def train_both(seed):
    """Both networks after 400 batches of strings of 10, and new strings of 10 and of 1,000."""
    train.set_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    short = [quotations(64, 10, generator) for _ in range(400)]
    # Two symbols in, two answers out: closed or open.
    window = ngram.WindowLM(vocab_size=2, window=10, d_model=4, hidden=64)
    carrier = recurrent_models.LanguageModel(2, RNN(input_size=4, hidden_size=16))
    for network in (window, carrier):
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        train.train_epoch(network, short, train.language_model_loss, optimizer)
    new_short = [quotations(64, 10, generator) for _ in range(50)]
    return window, carrier, new_short, [quotations(20, 1000, generator)]


def accuracies(network, *tests):
    """The fraction of right answers in each test."""
    return [train.evaluate(network, part, train.language_model_loss)["accuracy"] for part in tests]


trainings = [train_both(seed) for seed in tqdm(range(4), leave=False)]
scores = {
    "window": [accuracies(window, *tests) for window, _, *tests in trainings],
    "state": [accuracies(carrier, *tests) for _, carrier, *tests in trainings],
}
_, carrier, _, new_long = trainings[0]  # looked at again in Going deeper
claim(
    "In each of four trainings, on other strings and from other weights, the window network is right on more than 95 % of the symbols in new strings of 10, and on about half in strings of 1,000: it guesses.",
    all(short > 0.95 and abs(long - 0.5) < 0.1 for short, long in scores["window"]),
    short=[short for short, _ in scores["window"]],
    long=[long for _, long in scores["window"]],
)
claim(
    "In each of the four the network that carries a state is right on more than 99 % of both.",
    min(min(pair) for pair in scores["state"]) > 0.99,
    short=[short for short, _ in scores["state"]],
    long=[long for _, long in scores["state"]],
)
long_guess.compare(
    [f"{100 * sum(long for _, long in pairs) / 4:.3g}" for pairs in scores.values()]
)

# %% [markdown]
# A quotation mark looks the same whether it opens or closes. To know which, you must know how many came before, back to the first symbol, and however wide a window is, some string is longer. There are only 1,024 strings of 10 symbols, so the window could perhaps learn their answers like a table.
# Yet one bit is enough, if it is kept up to date: a memory that is carried from symbol to symbol.
#
# A network with such a memory is called *recurrent*. This chapter builds one, and teaches it to write:
#
# - **Sections 1 to 3:** one step, a loop, and a language model, all without torch's recurrent layers. *With exercise 3.1 this is a sitting of about an hour.*
# - **Sections 4 to 8:** the same with torch's layer, a text of any length, how good the model is, more layers and directions, and what is hard.
# - **Exercises 3.2 to 3.7**, some three hours, and four errors to look up.
#
# ### You will be able to
#
# 1. write a recurrent layer as a loop, from tensors (exercise 3.1), and set weights that hold a bit (3.2);
# 2. train a language model, carry its state, write with it (3.3), and judge how wide the state should be (3.4);
# 3. read the parameters and shapes of `nn.RNN` (3.5), and take the right state out of a padded batch (3.6);
# 4. assemble a bidirectional layer for padded rows out of your own parts (3.7).

# %% [markdown]
# ## 1 · One step, and the next
#
# How does a network carry a memory? It reads one input at a time, and each step also gets what the step before has left, as in the picture at the top:
#
# $$ h_t = f(x_t, h_{t-1}), \qquad y_t = g(h_t). $$
#
# Whatever it will need later of $x_1, \dots, x_t$ must be in the **state** $h_t$, also called the *hidden* state, as it is neither an input nor an output. In the picture, on the right, $f$ flips one bit. A network must *learn* what to keep, so its $f$ is made of weights. Elman (1990) chose one layer of a neural network, which sees the input *and its own previous result*. With tanh, as is usual today:
#
# $$ h_t = \tanh\big(x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b\big). $$
#
# The first term is what the new input adds, the second is what the past has to say, and the tanh keeps every number of the state between -1 and 1. Here are four steps, side by side, with an output $y_t$ for each:

# %% tags=["fold"]
# @title Diagram: the loop, unrolled over four steps
diagrams.show("rnn_unrolled")

# %% [markdown]
# **Shapes.** A batch has `B` sequences of `T` steps. An input has `I` numbers, a state has `D`, one for each *unit* of the layer. Vectors are rows, as in torch: $x_t$ is (B, I), $h_t$ is (B, D). So $W_{ih}$, "from input to hidden", is (D, I), $W_{hh}$ is (D, D), and $b$ is (D).
#
# We read two words, *set* and *sit*. A letter enters as its *one-hot* vector: a 1 at its place in the alphabet *e i s t*, 0 elsewhere, so I = 4. The weights are random, the state starts at zero, and each step is one line of code:

# %%
ids = torch.tensor([[2, 0, 3], [2, 1, 3]])  # s e t, s i t
x = F.one_hot(ids, 4).float()  # (B, T, I)
B, T, I = x.shape  # 2, 3, 4
D = 5
_ = torch.manual_seed(1)
W_ih, W_hh, b = torch.randn(D, I) / 2, torch.randn(D, D) / 2, torch.zeros(D)

h_0 = torch.zeros(B, D)
h_1 = torch.tanh(x[:, 0] @ W_ih.T + h_0 @ W_hh.T + b)  # has read s, s
h_2 = torch.tanh(x[:, 1] @ W_ih.T + h_1 @ W_hh.T + b)  # se, si
h_3 = torch.tanh(x[:, 2] @ W_ih.T + h_2 @ W_hh.T + b)  # set, sit
for t, h in enumerate((h_1, h_2, h_3), start=1):
    print(f"h_{t}", tuple(h.shape), h, sep="\n")

# %% [markdown]
# One row for each word, one column for each unit. In `h_1` the rows are equal: the same letter, read from the same state. Look at `h_3`: both words have just read a *t*, and yet the rows differ. The state still carries a trace of the *e* or the *i*.
#
# The weights have no index $t$: they are **shared** by all steps. So there are $D(I + D + 1)$ parameters whether $T$ is 3 or 3,000, the same weights run on lengths that they have never seen, and what is learned about a letter at one place can be used at every place.
#
# The three lines differ only in $t$. That calls for a loop, and this one is yours.

# %% [markdown]
# ### Exercise 3.1 · The recurrent layer from tensors
#
# Difficulty ●●○○○ · 20 minutes · needs section 1
#
# Turn the three lines into a loop over any number of steps, with `@`, `torch.tanh` and `torch.stack`, without `nn.RNN` and without the library. Inputs are float64, and five digits are compared. Gradients must flow back through all steps. The next section shows one solution: try first.


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
# ## 2 · A loop, and a layer
#
# The loop works on tensors that we hand to it. Where do the weights live when they are trained? In a module: its constructor makes the three parameters, its `forward` is the loop. It returns all states, and the last one separately, so that you can continue from it.
#
# How large should random weights be at the start? A one-hot input picks a single column of $W_{ih}$, so these may be as large as 1. In `h @ W_hh.T` each result is a sum over the D numbers of the state; the scale $1/\sqrt{D}$ keeps it moderate. As a test the layer then gets the weights of section 1: it must give the states of section 1.


# %%
class RNNLayer(nn.Module):
    def __init__(self, I, D):
        super().__init__()
        scale = D**-0.5
        self.W_ih = nn.Parameter(torch.empty(D, I).uniform_(-1, 1))
        self.W_hh = nn.Parameter(torch.empty(D, D).uniform_(-scale, scale))
        self.b = nn.Parameter(torch.zeros(D))

    def forward(self, x, h=None):  # (B, T, I), (B, D)
        if h is None:
            h = torch.zeros(len(x), len(self.b))
        outputs = []
        for x_t in x.unbind(1):  # (B, I), one step after the other
            h = torch.tanh(x_t @ self.W_ih.T + h @ self.W_hh.T + self.b)
            outputs.append(h)
        return torch.stack(outputs, 1), h  # (B, T, D), (B, D)


# %%
layer = RNNLayer(I=4, D=5)
layer.W_ih.data, layer.W_hh.data, layer.b.data = W_ih, W_hh, b
states, h = layer(x)
print("states", tuple(states.shape), " last", tuple(h.shape))
print("as before:", torch.allclose(states, torch.stack([h_1, h_2, h_3], dim=1)))

# %% [markdown]
# ## 3 · A language model from scratch
#
# The layer turns any sequence into states. What can be done with them? Let it write: read a character, predict the next. What is missing is an output layer: logits from every state. The rest of the program is text, loss, clipping, training and writing.
#
# Chapter 01's n-grams looked back $n - 1$ characters. Mikolov et al. (2010) put a recurrent network in their place, which in principle looks back to the start of the text. With `V` characters in the alphabet:
#
# $$ p(x_{t+1} \mid x_1, \dots, x_t) = \mathrm{softmax}(h_t W_{ho}^\top + b_o), \qquad W_{ho}: (V, D), \quad b_o: (V). $$
#
# **The text** is already on your machine: the docstrings of your Python. `run_size.pick` gives its first value on a CPU; its second, here all of the text, where there is a GPU.

# %%
corpus = datasets.docstrings(run_size.pick(300_000, None))
alphabet = sorted(set(corpus))
number = {character: i for i, character in enumerate(alphabet)}
V = len(alphabet)


def encode(string):
    """Ids (T,) of a string."""
    return torch.tensor([number[character] for character in string])


corpus_ids = encode(corpus)
cut = len(corpus_ids) * 9 // 10
train_ids, valid_ids = corpus_ids[:cut], corpus_ids[cut:]  # 9 : 1

# %% [markdown]
# **The model** is the layer with two more parameters. Now a one-hot vector has V numbers, so I = V:


# %%
class CharModel(nn.Module):
    def __init__(self, V, D):
        super().__init__()
        scale = D**-0.5
        self.rnn = RNNLayer(V, D)
        self.W_ho = nn.Parameter(torch.empty(V, D).uniform_(-scale, scale))
        self.b_o = nn.Parameter(torch.zeros(V))

    def forward(self, ids, h=None):  # (B, T)
        x = F.one_hot(ids, len(self.b_o)).float()  # (B, T, V)
        states, h = self.rnn(x, h)  # (B, T, D), (B, D)
        return states @ self.W_ho.T + self.b_o, h  # logits (B, T, V)


# %% [markdown]
# **The loss.** At every step the target is the character that comes next: for the piece *Return* the inputs are *R e t u r* and the targets *e t u r n*. So `piece` has $T + 1$ characters, and the loss is the mean over all steps. Before training it should be near that of guessing evenly among V characters, $\ln V$:

# %% tags=["fold"]
# @title Diagram: inputs, targets and losses of one piece
diagrams.show("rnn_next_character")


# %% tags=["nbval-ignore-output"]
def next_character_loss(model, piece):
    """Mean nats per character of pieces (B, T + 1), each read from a state of zeros."""
    inputs, targets = piece[:, :-1], piece[:, 1:]  # (B, T) each
    logits, _ = model(inputs)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


train.set_seed(0)
scratch = CharModel(V, D=128)
first_loss = next_character_loss(scratch, train_ids[:33][None])
print(f"before training {first_loss.item():.2f}, ln V {math.log(V):.2f}")

# %% [markdown]
# **Clipping.** Unrolled over 32 steps, the network is 32 layers deep, and the gradient of a deep network is sometimes very large. In plain gradient descent a single step along it can ruin the weights. So the gradient, taken as one long vector, is shortened to length 1 if it is longer. Its direction does not change. Adam, which we use, limits its steps by itself, so we count how often clipping acts. (More often the gradient becomes very small: section 8.)


# %%
def clip(parameters, largest=1.0):
    """Shorten the gradient if it is longer than `largest`; return how long it was."""
    norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters))
    if norm > largest:
        for p in parameters:
            p.grad *= largest / norm
    return norm


# %% [markdown]
# **Training.** Each step reads 32 pieces of 32 characters from anywhere in the text. *Perplexity* is $e^{\text{loss}}$: at 6 the model is as unsure as among 6 equally likely characters.

# %% tags=["nbval-ignore-output"]
parameters = list(scratch.parameters())
optimizer = torch.optim.Adam(parameters, lr=0.005)
clipped = 0
for step in tqdm(range(1, 601), leave=False):
    starts = torch.randint(len(train_ids) - 32, (32, 1))
    # positions: (32, 1) + (33,) -> (32, 33)
    piece = train_ids[starts + torch.arange(33)]
    loss = next_character_loss(scratch, piece)
    optimizer.zero_grad()
    loss.backward()  # through all 32 steps
    clipped += int(clip(parameters) > 1.0)
    optimizer.step()
    if step in (1, 100, 300, 600):
        print(f"step {step}: loss {loss.item():.1f}, perplexity {loss.exp():.0f}")
print(f"clipped: {clipped} of 600 gradients")

# %% [markdown]
# The loss has fallen a lot. Can the model write now?
#
# **Writing.** Read the prompt; draw the next character from the model's distribution; read it; draw the next. The state holds all that the model uses of the past, so each new character costs one step. The logits are first divided by a *temperature*: below 1, it makes likely characters likelier still.


# %%
@torch.no_grad()
def write(model, prompt, length, temperature, generator):
    logits, h = model(encode(prompt)[None])
    for _ in range(length):
        probabilities = F.softmax(logits[0, -1] / temperature, dim=0)  # (V,)
        new = torch.multinomial(probabilities, 1, generator=generator)  # (1,)
        prompt += alphabet[new]
        logits, h = model(new[None], h)  # one step
    return prompt


# %% tags=["nbval-ignore-output"]
print(write(scratch, "Return the ", 240, 0.5, torch.Generator().manual_seed(0)))

# %% tags=["fold"]
# @title Two checks: the loss before training, and the words
def known(written):
    """The fraction of the words of a text, its last left out, that occur in the training text."""
    known_words, written_words = set(corpus[:cut].split()), written.split()[:-1]
    return sum(word in known_words for word in written_words) / len(written_words)


prompt = "Return the "
trigram = ngram.NgramModel(3, V, add=2.0, interpolate=True).fit(train_ids)
new_ids = generate(
    trigram, [encode(prompt).tolist()], 600, torch.Generator().manual_seed(0), temperature=0.5
)[0]
of_trigram = known(prompt + "".join(alphabet[i] for i in new_ids))
of_network = known(write(scratch, prompt, 600, 0.5, torch.Generator().manual_seed(0)))
claim(
    "Before training the loss is near ln V, that of guessing evenly among V characters.",
    abs(first_loss.item() - math.log(V)) < 0.5,
    loss=first_loss,
    ln_V=math.log(V),
)
claim(
    "In one sample of 600 characters, more than three quarters of the words occur in the training text; in a trigram's, at the same temperature, fewer.",
    of_network > 0.75 and of_network > of_trigram,
    network=of_network,
    trigram=of_trigram,
)

# %% [markdown]
# Words and half-words, but no sense yet. Your text differs with your Python. Nearly every neural language model in this course has these parts; what differs is mostly the layer.
#
# *A good place to stop for today.* You have built it all: a step, a loop, a layer, training, writing. If you like a puzzle, take exercise 3.2 along, the first of those below. Next, torch supplies the layer.

# %% [markdown]
# ## 4 · The same with torch's layer
#
# Which of these parts does torch already have? `nn.RNN` is the same function in compiled code. It has two biases, $b_{ih}$ and $b_{hh}$, of which only the sum counts, so a layer has $D(I + D + 2)$ parameters. Without `batch_first=True` torch wants time first. An `nn.Embedding` replaces the one-hot vectors by learned ones, of any width. And `nn.utils.clip_grad_norm_` is `clip`.


# %%
class CharRNN(nn.Module):
    def __init__(self, V, width, units):  # I = width, D = units
        super().__init__()
        self.embed = nn.Embedding(V, width)  # id -> x_t, learned
        self.rnn = nn.RNN(width, units, batch_first=True)
        self.readout = nn.Linear(units, V)  # W_ho and b_o

    def forward(self, ids, h=None):  # (B, T); h None: zeros
        states, h = self.rnn(self.embed(ids), h)  # (B, T, D), (1, B, D)
        return self.readout(states), h  # (B, T, V)


for name, parameter in nn.RNN(input_size=3, hidden_size=5).named_parameters():
    print(f"{name:13}", tuple(parameter.shape))

# %% tags=["fold"]
# @title Copy your weights into it: the same function
same = CharRNN(V, width=V, units=128)
with torch.no_grad():
    same.embed.weight.copy_(torch.eye(V))  # one-hot vectors
    same.rnn.weight_ih_l0.copy_(scratch.rnn.W_ih)
    same.rnn.weight_hh_l0.copy_(scratch.rnn.W_hh)
    same.rnn.bias_ih_l0.copy_(scratch.rnn.b)
    same.rnn.bias_hh_l0.zero_()
    same.readout.weight.copy_(scratch.W_ho)
    same.readout.bias.copy_(scratch.b_o)
    some_ids = valid_ids[:400].view(8, 50)
    mine, my_last = scratch(some_ids)
    theirs, their_last = same(some_ids)
claim(
    "With your weights, `nn.RNN` gives your logits and your last state.",
    torch.allclose(mine, theirs, atol=1e-4) and torch.allclose(my_last, their_last[0], atol=1e-4),
)

# %% [markdown]
# So the layer is torch's now, and the function is the same. The `l0` in the names is the first layer, here the only one. The last state comes back as (1, B, D), one entry for each layer, so that you can hand it in again. Your `write` did so after every character; your training did not. Can training carry the state too?

# %% [markdown]
# ## 5 · A text longer than a piece: carry the state
#
# Section 3 read pieces of 32 characters, each from a state of zeros. But the text goes on, and the state is there to remember what came before. Could we unroll the whole text instead? That gives a single update per pass, and memory grows with the text.
#
# The way out is to pass on the *value* of the last state without its history. We read several streams of text side by side, piece after piece. Here the numbers 0 to 10 stand for a text, in 2 streams and pieces of at most 3:

# %%
numbers = torch.arange(11)
for inputs, targets in text.contiguous_batches(numbers, batch_size=2, length=3):
    print("inputs", inputs.tolist(), " targets", targets.tolist())

# %% [markdown]
# Row $b$ goes on where row $b$ of the piece before ended, so the last state of each row is the right one to start with. `detach` drops the history of that state, and gradients stay inside a piece. This is *truncated backpropagation*. The real text goes into 16 streams and pieces of 32. In the loop the two lines marked *new* carry the state; the rest is that of section 3. The optimizer is Adam again, with a learning rate that first rises and then falls, so that two passes go further.

# %% tags=["fold"]
# @title Adam, with a rate that rises, then falls
def adam_one_cycle(parameters, rate, steps):
    """Adam whose learning rate rises to `rate` in a tenth of the steps, then falls."""
    optimizer = torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


# %%
def train_on_streams(model, ids, epochs, rate=8e-3):
    """Truncated backpropagation; the state is carried from piece to piece."""
    pieces = text.contiguous_batches(ids, batch_size=16, length=32)
    parameters = list(model.parameters())
    optimizer = adam_one_cycle(parameters, rate, steps=epochs * len(pieces))
    for _ in range(epochs):
        h = None  # a new pass starts at the beginning of the text: zeros
        for inputs, targets in tqdm(pieces, leave=False):  # (16, 32) each
            logits, h = model(inputs, h)  # new: from where the last piece ended
            h = h.detach()  # new: the value goes on, the graph does not
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            clip(parameters)
            optimizer.step()
    return model


# %% [markdown]
# After training the model reads the held-out text once, the state carried throughout. From here we count in *bits* per character, nats divided by $\ln 2$: a perplexity of 6 is 2.6 bits.


# %%
@torch.no_grad()
def nats(model, ids):
    """Nats (T - 1,) for every character but the first, the state carried throughout."""
    logits, _ = model(ids[None, :-1])
    return F.cross_entropy(logits[0], ids[1:], reduction="none")


# %% tags=["nbval-ignore-output"]
train.set_seed(0)
torch_model = CharRNN(V, width=32, units=run_size.pick(128, 512))
train_on_streams(torch_model, train_ids, epochs=run_size.pick(2, 8))
mean = nats(torch_model, valid_ids).mean().item()
print(f"held-out perplexity {math.exp(mean):.1f}, bits {mean / math.log(2):.2f}")

# %% [markdown]
# **What does a start from zeros cost this network?** To find out, it reads the held-out text once more, now in pieces of 64 characters, each from a state of zeros.

# %% tags=["fold"]
# @title Measure it: at each place, from zeros and carried
rows = valid_ids[: len(valid_ids) // 65 * 65].view(-1, 65)
with torch.no_grad():
    logits, _ = torch_model(rows[:, :-1])  # (B, 64, V), from zeros
    by_place = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
edges = [0, 1, 2, 4, 8, 16, 32, 64]
spans = ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64"]
binned = [metrics.bits(by_place[:, a:b].mean().item()) for a, b in pairwise(edges)]
carried = F.pad(nats(torch_model, rows.flatten()), (0, 1))
carried = carried.view(-1, 65)[:, :-1]  # the same places
carried_binned = [metrics.bits(carried[:, a:b].mean().item()) for a, b in pairwise(edges)]
figures.catching_up(spans, binned, carried_binned)
claim(
    "The first character costs more than 1 bit extra; after 8 characters less than 0.05 are left.",
    binned[0] - carried_binned[0] > 1
    and all(abs(a - b) < 0.05 for a, b in zip(binned[4:], carried_binned[4:])),
    extra=[a - b for a, b in zip(binned, carried_binned)],
)

# %% [markdown]
# For this network, which was trained with a carried state, a start from zeros costs a lot, but only at first. After eight characters the difference is gone on average: one run, after two passes, makes little use of anything further back, though a state of this size could hold more. The rule: **carry the state exactly where the text goes on. Same text, next piece: carry. Another text: reset.** And with every perplexity, say how the state was treated. About half of the first character's cost is not lost context: see *Going deeper*.

# %% [markdown]
# ## 6 · How good is it?
#
# The model carries its state and writes. Is it any good? In chapter 01 plain counts, n-grams, were hard to beat. We count n-grams on the same training text and score both on the same held-out tenth. **Which n-gram comes nearest to this RNN after two passes?**

# %%
order_guess = predict("the order n of the n-gram nearest to this RNN", ...)

# %% tags=["reveal"]
ngrams = {
    n: ngram.NgramModel(n, V, add=2.0, interpolate=True).fit(train_ids)
    for n in tqdm(range(1, 7), leave=False)
}
ngram_nats = {n: model.nll(valid_ids).mean().item() for n, model in ngrams.items()}
ngram_bits = {n: metrics.bits(value) for n, value in ngram_nats.items()}
rnn_bits = metrics.bits(nats(torch_model, valid_ids).mean().item())
nearest = min(ngram_bits, key=lambda n: abs(ngram_bits[n] - rnn_bits))
figures.against_ngrams(ngram_bits, rnn_bits, nearest)

# %% tags=["fold", "reveal"]
# @title Bits per character, and sizes
claim(
    "After two passes the RNN is better than the 3-gram by more than a tenth of a bit, but not as good as the best n-gram. It has fewer parameters than the 4-gram has counts.",
    min(ngram_bits.values()) < rnn_bits < ngram_bits[3] - 0.1
    and utils.number_of_parameters(torch_model) < sum(ngrams[4].num_ngrams),
    rnn=rnn_bits,
    **{"3-gram": ngram_bits[3], "best n-gram": min(ngram_bits.values())},
    parameters=utils.number_of_parameters(torch_model),
    counts=sum(ngrams[4].num_ngrams),
)
order_guess.compare(
    f"{nearest} ({rnn_bits:.2f} bits; the {nearest}-gram {ngram_bits[nearest]:.2f})"
)

# %% [markdown]
# So plain counts are still ahead. A likely reason: a table of counts learns in one pass, while a network needs many. A larger RNN, trained longer on Shakespeare, catches up, as *Going deeper* shows. What can be made larger? The width of the state, which you try in exercise 3.4; and the number of layers.

# %% [markdown]
# ## 7 · Several layers, two directions
#
# More layers first. They are **stacked**: the states of one are the inputs of the next, and each has its own weights, shared over time as before.

# %% tags=["fold"]
# @title Diagram: two layers over three steps
diagrams.show("rnn_stacked")

# %% [markdown]
# So far each layer has only seen the past. To write, a model must not see more; but other tasks have the whole sequence before they answer:
#
# > *The ____ is a flightless bird that lives in Antarctica.*
#
# At the blank a forward network has read one word: *The*. So run a second network **from the end to the beginning** and put both states side by side (Schuster and Paliwal 1997):
#
# $$ \overrightarrow{h}_t = f(x_t, \overrightarrow{h}_{t-1}), \qquad \overleftarrow{h}_t = f'(x_t, \overleftarrow{h}_{t+1}), \qquad \text{output}_t = [\overrightarrow{h}_t \,;\, \overleftarrow{h}_t] \in \mathbb{R}^{2D}. $$

# %% tags=["fold"]
# @title Diagram: a bidirectional layer
diagrams.show("rnn_bidirectional")

# %% [markdown]
# Such a layer has read the future. As a language model it would learn to copy the character that it should predict, and it cannot read a live stream, which has not ended yet.
#
# In torch both are arguments, `num_layers` and `bidirectional=True`. Two things come back: `output` has the *top layer* after *every step*, `h_n` has *all layers*, in both directions, after *the last*:

# %%
stack = nn.RNN(7, 5, num_layers=2, bidirectional=True, batch_first=True)
output, h_n = stack(torch.zeros(3, 4, 7))
print("output", tuple(output.shape), "h_n", tuple(h_n.shape))
for name, parameter in stack.named_parameters():
    if name.startswith("weight"):
        print(f"{name:21}", tuple(parameter.shape))

# %% [markdown]
# `_l0` and `_l1` name the layers from below, `_reverse` the backward direction. Layer 1 reads both directions of layer 0, side by side. The rows of `h_n` go layer by layer, forward before backward.

# %% [markdown]
# ### Which state should an answer read?
#
# A language model answers at every step and reads every state. If a whole text has one answer (is a review positive?), only a state that has read *all* of it will do: forward, the last one. But in a batch the rows are padded to the longest, and a layer goes on changing its state while it reads padding. So read each row at its own last step, `lengths - 1`.
#
# The test of every such model: *pad further, and nothing should change.* Here are two rows, with 5 and 3 real steps, and then the same rows with four more columns of padding. We print the first unit of two states of each row, that in the last column, `states[:, -1]`, and that at `lengths - 1`:

# %%
_ = torch.manual_seed(0)
reader = nn.RNN(4, 6, batch_first=True)
padded = torch.randn(2, 5, 4)  # (B, T, I)
padded[1, 3:] = 0  # the second row ends after 3 steps
lengths = torch.tensor([5, 3])
for batch in (padded, F.pad(padded, (0, 0, 0, 4))):  # T = 5, then 9
    states = reader(batch)[0].detach()  # (B, T, D)
    last = states[torch.arange(2), lengths - 1]  # (B, D)
    print(f"T = {batch.shape[1]}")
    print("  [:, -1]     ", states[:, -1, 0])
    print("  lengths - 1 ", last[:, 0])

# %% [markdown]
# The state in the last column changes in both rows, the one at `lengths - 1` does not. A backward half meets the padding *first*, so it must be told the lengths. Nothing warns you if you forget. *Going deeper* trains a network on the reviews that chapter 02 left open, and reads it at both places.

# %% [markdown]
# ## 8 · What is hard for a recurrent network
#
# Wider, deeper, both ways: the step stays the same, and so do its limits. The state in the opening held a bit for 1,000 steps. Yet the character model gained almost nothing from what lay beyond some eight characters. What keeps it from *learning* to use the rest of its past?
#
# **The gradient usually vanishes.** Beyond 32 characters `detach` cut it in training; that leaves those within a piece. Unrolled, the network is as deep as the text is long. To learn that a character matters 20 steps later, training needs a gradient that reaches back through 20 layers: that of the last step's loss with respect to the input 20 steps before. We take its norm in the character model, before and after training. **Before training, by what factor is it smaller at lag 20 than at lag 0?**

# %%
lag_guess = predict("the factor at lag 20, before training", ...)

# %% tags=["fold"]
# @title Measure it: the gradient at each lag
def gradient_by_lag(embed, layer, readout, ids, last_targets):
    """Mean norm of the gradient of the last step's loss with respect to the input k steps before."""
    inputs = embed(ids).detach().requires_grad_()
    states, _ = layer(inputs)
    F.cross_entropy(readout(states[:, -1]), last_targets, reduction="sum").backward()
    norms = inputs.grad.norm(dim=2).mean(0).flip(0)
    return norms / norms[0]


torch.manual_seed(0)
untrained = CharRNN(V, width=32, units=torch_model.rnn.hidden_size)
streams = valid_ids[: 64 * 61].view(64, 61)
relative = {
    name: gradient_by_lag(model.embed, model.rnn, model.readout, streams[:, :-1], streams[:, -1])
    for name, model in {"untrained": untrained, "trained": torch_model}.items()
}

# %% tags=["reveal"]
figures.gradient_by_lag(relative)

# %% tags=["fold", "reveal"]
# @title Lags 20 and 50
claim(
    "Before training the gradient is more than 10,000 times smaller at lag 20 than at lag 0. After training it is more than 100 times smaller at lag 20, and more than 10,000 times at lag 50.",
    relative["untrained"][20] < 1e-4
    and relative["trained"][20] < 1e-2
    and relative["trained"][50] < 1e-4,
    untrained=f"{1 / relative['untrained'][20].item():,.0f}",
    trained=[f"{1 / relative['trained'][lag].item():,.0f}" for lag in (20, 50)],
)
lag_guess.compare(f"{1 / relative['untrained'][20].item():,.0f}")

# %% [markdown]
# So training starts with a gradient more than ten thousand times smaller at lag 20 than at lag 0: input from that far back can contribute little to the update. A small gradient need not mean that nothing is held. What it hinders is *learning* what to hold. These are the curves of one model; *Going deeper* has the quotation network's, which holds its bit with a smaller gradient still.
#
# Two more difficulties come with the loop itself. **The state has a fixed size:** all that a layer will ever know of the past is in its $D$ numbers. One bit tells whether a quotation is open. No fixed number of bits can tell, at every length, whether the letters so far form a palindrome. **And one step must wait for another:** $h_t$ needs $h_{t-1}$, so the loop takes $T$ steps in a row, however many processors you have. A window network computes all positions at once. This is the first reason that the authors of the Transformer give for dropping recurrence (Vaswani et al. 2017, section 1).
#
# Size and order come with the loop; but must the gradient vanish? On the figure's scale a straight line means the same factor at every step: each step back multiplies by a matrix, and the product of many is usually tiny or, with other weights, huge. Why, and what helps? Chapter 04 finds out.

# %% [markdown]
# ## Exercises
#
# Now put it to work, in some three hours: 3.2 is a puzzle about one step (45 minutes); 3.3 and 3.4 are on the language model (an hour), 3.5 to 3.7 on layers and directions (70 minutes).

# %% [markdown]
# ### Exercise 3.2 · Derive: a quotation bit in two units
#
# Difficulty ●●●●○ · 45 minutes · needs section 1
#
# One number comes in at each step: $x_t = 1$ at a quotation mark, else 0. Find weights for **two** tanh units, $h_0 = 0$, such that
#
# $$ h_t = \tanh(x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b), \qquad y_t = h_t \cdot w_o + c $$
#
# has $y_t > 0$ exactly while a quotation is open, at every length. Let $s \in \{0, 1\}$ be the bit. The next bit is 1 if $s + x_t$ is 1; 0 (closed, no mark) and 2 (open, a mark) both give 0. A tanh unit with large weights decides: if $k$ is large, $\tanh(k(z - \theta))$ is near 1 when the sum $z$ of what it reads is above a threshold $\theta$, and near -1 below it. One threshold cannot say *exactly 1*; two can: *at least 1*, and not *at least 2*. Note that a unit answers -1 or 1, while $s$ is 0 or 1.

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
# ### Exercise 3.3 · Find the bug: a writer without a past
#
# Difficulty ●●●○○ · 20 minutes · needs sections 3 and 5
#
# This function continues a prompt, each time with the most probable character. Its author found the texts "a little repetitive". The prompts below end in the same letter.


# %%
@torch.no_grad()
def forgetful_writer(run, prompt, steps):
    """run(ids (1, T), state) -> (logits (1, T, V), state); prompt: list of ids."""
    ids = list(prompt)
    for _ in range(steps):
        logits, _ = run(torch.tensor([ids[-1:]]), None)  # one new character a step
        ids.append(logits[0, -1].argmax().item())
    return ids[len(prompt) :]


prompts = ["Return the name", "import a module from a file", "class Queue"]
continued = [forgetful_writer(torch_model, encode(p).tolist(), 40) for p in prompts]

# %% tags=["fold"]
# @title What it wrote
followed = set(pairwise(continued[0]))
claim(
    "All three prompts are continued in the same way, and in it each character is always followed by the same one: the text goes in circles.",
    continued[0] == continued[1] == continued[2]
    and len(followed) == len({first for first, _ in followed}),
    continuation=f"`{''.join(alphabet[i] for i in continued[0])!r}`",
)

# %% [markdown]
# Two things are lost: one at the start, the other at every step. Write the version that reads every character of the prompt and every new one, each **once**; the last new one need not be read. It must work with any such `run`.


# %% nbgrader={"grade": false, "grade_id": "ex03-3-continue-text", "locked": false, "schema_version": 3, "solution": true, "task": false}
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


# %% nbgrader={"grade": true, "grade_id": "ex03-3-continue-text-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch03.continue_text(continue_text)

# %% [markdown]
# ### Exercise 3.4 · How wide should the state be?
#
# Difficulty ●●●○○ · 40 minutes · needs sections 5 and 6 · *explore and explain*
#
# The function below trains one width, and returns perplexities on text that it learned from and on held-out text. Try widths from 4 to 256, with 100,000 and with all characters, with one and with several epochs. (The two texts are not equally hard, so the gap need not start at 0: look at how it changes.)


# %%
def perplexities(width, characters, epochs=1):
    """(on text it learned from, on held-out text) of an RNN of this width."""
    train.set_seed(1)
    model = CharRNN(V, 32, width)
    train_on_streams(model, train_ids[:characters], epochs)
    learned = train_ids[: min(characters, 20_000)]
    texts = (learned, valid_ids[:20_000])
    return [nats(model, ids).mean().exp().item() for ids in texts]


# %% tags=["nbval-ignore-output"]
for units in (8, 32, 128):  # your turn
    print(units, [round(value, 1) for value in perplexities(units, 100_000)])
four_gram = ngram.NgramModel(4, V, add=2.0, interpolate=True).fit(train_ids[:100_000])
print("4-gram", round(math.exp(four_gram.nll(valid_ids[:20_000]).mean()), 1))

# %% [markdown]
# Then answer in a few sentences. (a) How does the held-out perplexity change each time the width doubles, and does it go on falling? Try 256. (b) Where does the gap between the two perplexities open, and what narrows it? (c) What does twice the width cost in parameters? (d) The 4-gram needs no width. What would you choose with little text, and why?

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex03-4-width", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (Measured with one seed, so these are examples.) (a) With 100,000 characters and one pass: 22.8 with 4 units, 19.0 with 8, 15.3 with 16, 12.3 with 32, 11.3 with 64, 9.5 with 128, 9.6 with 256. At first it falls with every doubling, in the end not at all. First the state has too little room for what the last few characters say; then room is not what is lacking. With one pass over little text, and one learning rate for all, the larger states are not even trained to use what they have: with 256 units the perplexity on the text that they learned from is no better either (9.9, with 128 units 9.8), so this is not over-fitting.
#
# (b) The gap opens with width and with epochs on the small text: after 8 epochs it is 10.2 against 10.4 with 16 units, and 4.0 against 6.0 with 128. A large state can store peculiarities of the text that it learned from. More text narrows it and lowers the held-out perplexity (4.8 against 5.3 with all characters and 3 epochs). Fewer epochs and dropout narrow it by *raising* the perplexity on the learned text; they need not lower the other: dropout of 0.3 gave 6.4 against 7.4 after the same 8 epochs.
#
# (c) Parameters grow with D squared through weight_hh, and with D through weight_ih and the output: four times the weights at large D. (The time grows more slowly at first, since at small widths each step costs its overhead whatever it computes.)
#
# (d) Counts: they are right after one look at a context, while gradient descent moves the weights a little at each. After one pass over 100,000 characters the 4-gram (6.1) is far ahead; 128 units need eight passes to draw level. With much text a network can win, since it shares what it learns between contexts and is not limited to n - 1 characters.
# ### END SOLUTION

# %% [markdown]
# When you have written your answer, paste it in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch03.how_wide.compare(...)

# %% [markdown]
# ### Exercise 3.5 · Derive: sizes of a stack
#
# Difficulty ●●○○○ · 10 minutes · needs sections 4 and 7
#
# For `nn.RNN(input_size=12, hidden_size=5, num_layers=3, bidirectional=True)`, with pencil and paper:
# (1) the number of parameters; (2) the number of columns of `weight_ih_l2_reverse`; (3) the first dimension of `h_n`; (4) the last dimension of `output`.

# %% nbgrader={"grade": false, "grade_id": "ex03-5-stack-sizes", "locked": false, "schema_version": 3, "solution": true, "task": false}
stack_sizes = ...  # (parameters, columns, first dimension of h_n, last dimension of output)
### BEGIN SOLUTION
# layer 0: 2 (5 * 12 + 5 * 5 + 2 * 5) = 190; layers 1 and 2: 2 (5 * 10 + 5 * 5 + 2 * 5) = 170 each
stack_sizes = (190 + 2 * 170, 10, 6, 10)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex03-5-stack-sizes-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch03.stack_sizes(stack_sizes)

# %% [markdown]
# ### Exercise 3.6 · The summary of a padded, bidirectional batch
#
# Difficulty ●●●○○ · 20 minutes · needs section 7
#
# `output` comes from a bidirectional layer that was told the lengths: its backward half started at each row's own last token. Pick, for each row and each direction, the state that has read *all* of the row. Whatever numbers stand at the padding must not matter.


# %% nbgrader={"grade": false, "grade_id": "ex03-6-summaries", "locked": false, "schema_version": 3, "solution": true, "task": false}
def summaries(output, lengths):
    """The states that have read all of each sequence.

    Args:
        output: (B, T, 2D), forward states in the first D columns, backward states in the last D.
        lengths: (B,) int64, the number of real steps of each row, from 1 to T.

    Returns:
        (B, 2D): the forward summary, then the backward summary. Inputs are float64; five digits are compared.
    """
    ### BEGIN SOLUTION
    D = output.shape[2] // 2
    forward_half = output[torch.arange(len(output)), lengths - 1, :D]
    return torch.cat([forward_half, output[:, 0, D:]], dim=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex03-6-summaries-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch03.summaries(summaries)

# %% [markdown]
# ### Exercise 3.7 · Assemble: two directions over padded rows
#
# Difficulty ●●●●○ · 40 minutes · needs sections 1 and 7; exercises 3.1 and 3.6
#
# A bidirectional layer out of your own parts, without `nn.RNN` and without the library. Each direction has weights of its own and starts from zeros; the backward one starts at each row's own last real step. You may call `rnn_forward`. Inputs are float64, and five digits are compared, the gradients too.


# %% nbgrader={"grade": false, "grade_id": "ex03-7-two-directions", "locked": false, "schema_version": 3, "solution": true, "task": false}
def two_directions(x, lengths, forward_weights, backward_weights):
    """A bidirectional Elman layer over padded rows.

    Args:
        x: (B, T, I) inputs; after a row's real steps any finite numbers may stand.
        lengths: (B,) int64, the number of real steps of each row, from 1 to T.
        forward_weights: weight_ih (D, I), weight_hh (D, D), bias (D,).
        backward_weights: the same of the other direction.

    Returns:
        output: (B, T, 2D), forward state, then backward state of each real step; 0 at padding.
        summary: (B, 2D), of each direction the state that has read all of the row.
    """
    ### BEGIN SOLUTION
    def states_of(row, weight_ih, weight_hh, bias):
        """The states (n, D) after each step of a row (n, I)."""
        h, states = torch.zeros_like(bias), []
        for x_t in row:
            h = torch.tanh(x_t @ weight_ih.T + h @ weight_hh.T + bias)
            states.append(h)
        return torch.stack(states)

    outputs, summaries_of_rows = [], []
    for row, n in zip(x, lengths.tolist(), strict=True):
        there = states_of(row[:n], *forward_weights)
        back = states_of(row[:n].flip(0), *backward_weights).flip(0)
        both = torch.cat([there, back], dim=1)  # (n, 2D)
        outputs.append(F.pad(both, (0, 0, 0, len(row) - n)))
        summaries_of_rows.append(torch.cat([there[-1], back[0]]))
    return torch.stack(outputs), torch.stack(summaries_of_rows)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex03-7-two-directions-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch03.two_directions(two_directions)

# %% [markdown]
# ## Errors you will meet
#
# What if a network misbehaves, and nothing says why? Skim this list now and come back when you need it: three of its four errors raise no exception.
#
# **`batch_first` forgotten.** The default of torch is time first: (T, B, I). If you pass (B, T, I), torch cannot know: there is no error, and `output` has the shape that you expect. The test: change one sequence, and no other should change.

# %%
five = torch.randn(5, 7, 3)  # B = 5 sequences of T = 7 steps
edited = five.clone()
edited[0] = 0.0  # another first sequence
_ = torch.manual_seed(0)
for batch_first in (False, True):
    checked = nn.RNN(3, 4, batch_first=batch_first)
    (outputs, h_last), (outputs_edited, _) = checked(five), checked(edited)
    leak = (outputs_edited[1:] - outputs[1:]).abs().max()
    print(f"batch_first={batch_first}: output {tuple(outputs.shape)},", end=" ")
    print(f"h_n {tuple(h_last.shape)}, other rows change: {bool(leak > 1e-3)}")

# %% [markdown]
# Torch took the 5 sequences for 5 time steps, so the state ran from one *sequence* to the next. The only other trace is `h_n`: its middle dimension is 7, not 5.
#
# **A state that is not detached.** Carried into the next piece, it brings along the graph of the piece before, which `backward` has already freed.

# %% tags=["raises-exception"]
h = None
for start in (0, 32):
    ids = valid_ids[None, start : start + 33]
    logits, h = torch_model(ids[:, :-1], h)  # wrong: no h.detach()
    F.cross_entropy(logits[0], ids[0, 1:]).backward()

# %%
h = None
for start in (0, 32):
    ids = valid_ids[None, start : start + 33]
    logits, h = torch_model(ids[:, :-1], None if h is None else h.detach())
    F.cross_entropy(logits[0], ids[0, 1:]).backward()
print("detached: two pieces, no error")

# %% [markdown]
# **A state left over.** The opposite of forgetting to carry: a new text starts from the old state. We give the quotation network new strings, but start from the state left by an unfinished quotation. Every answer should come out the wrong way round.

# %%
new_symbols, new_open = quotations(20, 500, torch.Generator().manual_seed(3))
with torch.no_grad():
    _, left_over = carrier.run(torch.tensor([[0, 0, 1, 0, 0]]))  # opened, never closed
    leaking, _ = carrier.run(new_symbols, left_over.expand(1, 20, 16).contiguous())
    fresh, _ = carrier.run(new_symbols)
for name, logits in {"left over": leaking, "reset": fresh}.items():
    print(f"{name}: right on {(logits.argmax(-1) == new_open).float().mean():.1f}")

# %% [markdown]
# **`output[:, -1]` of a bidirectional layer.** The forward half has read all $T$ steps. The backward half has taken *one* step: it has read the last token only. The test: replace all tokens but the last, and see which half notices.

# %%
two_way = nn.RNN(4, 6, bidirectional=True, batch_first=True)
read = torch.randn(2, 9, 4)
other = torch.cat([torch.randn(2, 8, 4), read[:, -1:]], dim=1)  # last input kept
(both, h_both), (both_other, h_other) = two_way(read), two_way(other)
unchanged = torch.equal(both[:, -1, 6:], both_other[:, -1, 6:])
print("backward half of output[:, -1] did not notice:", unchanged)
print("h_n[1] noticed:", not torch.allclose(h_both[1], h_other[1]))  # repaired

# %% [markdown]
# ## Summary
#
# 1. A recurrent network is a loop with a state: one set of weights, any length; whatever it needs of the past must pass through $D$ numbers.
# 2. A language model is that loop, an output layer, cross-entropy on the next token, clipping, and sampling one step at a time.
# 3. Carry the state exactly where the text goes on, detached; reset it where another begins.
# 4. Three weaknesses: a state of fixed size, a gradient that usually vanishes with the lag, and steps that must wait for each other.
# 5. What differs between tasks is which states you read: all of them, each row's own last one, or both ends of a bidirectional layer. In padded batches read by length.
#
# ## Where next
#
# *Chapter 04* walks backward through the unrolled network and finds out why the gradient vanishes. *Chapter 05* builds a cell that lets it through.
#
# ## References
#
# - J. L. Elman, *Finding structure in time*, Cognitive Science 14, 1990: figure 2 (units between 0 and 1 instead of tanh).
# - M. Schuster, K. K. Paliwal, *Bidirectional recurrent neural networks*, IEEE Transactions on Signal Processing 45(11), 1997: section II, figure 3.
# - T. Mikolov et al., *Recurrent neural network based language model*, Interspeech 2010: section 2, equations 1 to 5 (over words, with the logistic function instead of tanh).
# - A. Graves, *Generating sequences with recurrent neural networks*, 2013, arXiv 1308.0850: section 2, for stacked layers and generation.
# - A. Karpathy, *The unreasonable effectiveness of recurrent neural networks*, 2015, karpathy.github.io: forms of output; a unit that keeps track of quotations.
# - A. Vaswani et al., *Attention is all you need*, 2017, arXiv 1706.03762: section 1.
# - Video: *Recurrent neural networks, MIT 6.S191*, https://www.youtube.com/watch?v=SEnXr6v2ifU.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts; each answers one question.

# %% [markdown] tags=["deeper"]
# ### What does the state hold?
#
# Training tells a network what to answer, not what to keep. So let us look inside `carrier`, the network from the opening that carries a state. We run it over a real line and draw its 16 numbers after every character. Its `embedding` turns each 0 or 1 into a vector, and its `layer` returns the states after every step, and the last one.

# %%
line = 'she said "wait" and then "go" and left'
is_mark = torch.tensor([[c == '"' for c in line]]).long()  # (1, T)
output, _ = carrier.layer(carrier.embedding(is_mark))  # (1, T, D), the last state
line_states = output[0].detach()  # (T, D)
figures.state_over_text(line_states, line)

# %% tags=["fold"]
# @title How clear is the bit?
telling, at_marks = (figures.telling_units(line_states, line, at_marks=m) for m in (False, True))
claim(
    "At every character of this line but the marks, the sign of an outlined unit alone tells whether a quotation is open; at the marks another unit's does. The output layer, which reads all 16, is right at every character.",
    len(telling) > 0
    and len(set(at_marks) - set(telling)) > 0
    and torch.equal(carrier.output(line_states).argmax(-1), is_mark[0].cumsum(0) % 2),
    outlined=telling,
    at_marks=at_marks,
)

# %% [markdown]
# **How can a tanh layer hold a bit?** Take a single unit that reads only itself, $h' = \tanh(w\,h)$, and start it somewhere:

# %%
kept = []
for w, h in [(0.9, 0.5), (1.0, 0.5), (2.0, 0.5), (2.0, 0.2), (2.0, -0.5)]:
    states = [h]
    for _ in range(25):
        states.append(math.tanh(w * states[-1]))
    kept.append((w, states))
figures.self_weight(kept)

# %% [markdown]
# With $w > 1$ there are two stable values, one positive and one negative: the unit returns to the nearer one when it is disturbed. So it is a switch that *holds* a bit. To *change* the bit, a unit must react to its inputs, which is what exercise 3.2 asks of two units.
#
# The gradient of section 8 does not show such a bit: in this network it is smaller still, and yet the bit stays.

# %% tags=["fold"]
# @title The gradient of the quotation network
some_symbols, some_open = quotations(64, 60, torch.Generator().manual_seed(1))
of_carrier = gradient_by_lag(
    carrier.embedding, carrier.layer, carrier.output, some_symbols, some_open[:, -1]
)
claim(
    "The trained quotation network, which holds its bit, has a gradient more than a million times smaller at lag 20, and smaller than that of the trained character model.",
    of_carrier[20] < 1e-6 and of_carrier[20] < relative["trained"][20],
    at_lag_20=of_carrier[20],
)

# %% [markdown] tags=["deeper"]
# ### Why does a start from zeros cost so much?
#
# Not only because context is lost. Section 5 measured what the first character of a piece costs; we compare a bigram, which sees just as much.

# %% tags=["fold"]
# @title The RNN from zeros, and a bigram
bigram = ngram.NgramModel(2, V, add=2.0, interpolate=True).fit(train_ids)
after_one = metrics.bits(bigram.nll(rows.flatten()).view(-1, 65)[:, 1].mean().item())
claim(
    "After one character from zeros the RNN needs over half a bit more than a bigram, which sees just as much: over a third of the extra.",
    binned[0] - after_one > max(0.5, (binned[0] - carried_binned[0]) / 3),
    rnn=binned[0],
    bigram=after_one,
    part_of_extra=(binned[0] - after_one) / (binned[0] - carried_binned[0]),
)
with torch.no_grad():
    scratch_logits, _ = scratch(rows[:, :-1])  # (B, 64, V), from zeros
    scratch_first = F.cross_entropy(scratch_logits[:, 0], rows[:, 1]).item()
scratch_carried = F.pad(nats(scratch, rows.flatten()), (0, 1)).view(-1, 65)[:, 0].mean().item()
scratch_extra = metrics.bits(scratch_first - scratch_carried)
claim(
    "The model of section 3, which in training started every piece from zeros, pays less than two thirds of that extra for its own first character.",
    0 < scratch_extra < (binned[0] - carried_binned[0]) * 2 / 3,
    from_zeros=scratch_extra,
    carried=binned[0] - carried_binned[0],
)

# %% [markdown]
# So about half of the cost is not context. Probably it comes from the state itself: in training the network has hardly ever met a state of zeros. The model of section 3 met it in every piece, and pays less; it differs in other things too, such as its input and its training.

# %% [markdown] tags=["deeper"]
# ### Does it matter at which state a review is read?
#
# The reviews are the puzzle left open in chapter 02: *not terrible, it's great* against *not great, it's terrible*. Each stands beside its mirror, with the same words and the opposite label, so any bag of words is right on exactly half. They differ in length, so a batch is padded to its longest row, and the last real word stands at a different step in every row. `lengths - 1` picks it:


# %%
class ReviewRNN(nn.Module):
    def __init__(self, tokens, width, units):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.rnn = nn.RNN(width, units, batch_first=True)
        self.readout = nn.Linear(units, 2)

    def forward(self, ids, lengths):  # (B, T) padded, (B,)
        states, _ = self.rnn(self.embed(ids))  # (B, T, D)
        last = states[torch.arange(len(ids)), lengths - 1]  # (B, D): own last word
        return self.readout(last)  # (B, 2): negative, positive


# %% tags=["fold"]
# @title The reviews, tokenised and numbered
reviews = synthetic.reviews(2000, seed=1)
review_tokens = [text.tokenize(review) for review, _ in reviews]
vocab = text.build_vocab(review_tokens[:1600])
review_ids = [text.numericalize(words, vocab) for words in review_tokens]
labels = [label for _, label in reviews]

# %% tags=["fold"]
# @title Train it on 1,600 reviews
train.set_seed(0)
judge = ReviewRNN(len(vocab), width=16, units=32)
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=5e-3)
for epoch in tqdm(range(6), leave=False):
    order = torch.Generator().manual_seed(epoch)
    for ids, real, answers in text.batches(
        review_ids[:1600], labels[:1600], 32, generator=order
    ):  # real (B, T): True for words, False for padding
        review_loss = F.cross_entropy(judge(ids, real.sum(1)), answers)
        judge_optimizer.zero_grad()
        review_loss.backward()
        nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
        judge_optimizer.step()

# %% [markdown]
# We train it on 1,600 reviews and test on 400 others. Then, with the same weights, we read the state at the last *column* of the batch, `states[:, -1]`, which in most rows is padding. **How often is it right now?**

# %%
padded_guess = predict("its accuracy, read after the padding, from 0 to 1", ...)

test_ids, test_real = text.pad_batch(review_ids[1600:])  # (400, T)
test_lengths = test_real.sum(1)  # (400,)
test_labels = torch.tensor(labels[1600:])
with torch.no_grad():
    states, _ = judge.rnn(judge.embed(test_ids))  # (400, T, D)
    own_end = judge.readout(states[torch.arange(400), test_lengths - 1]).argmax(1)
    last_column = judge.readout(states[:, -1]).argmax(1)
at_own_end = (own_end == test_labels).float().mean().item()
at_last_column = (last_column == test_labels).float().mean().item()

# %% tags=["fold", "reveal"]
# @title Where to read
claim(
    "If the state is read at each row's own last word, more than 95 % of the new reviews are judged correctly: word order can be learned.",
    at_own_end > 0.95,
    accuracy=at_own_end,
)
claim(
    "If it is read at the last column, more than a fifth of them are judged wrongly.",
    at_last_column < 0.8,
    accuracy=at_last_column,
)
padded_guess.compare(f"about {at_last_column:.1f}")

# %% [markdown]
# At the last column it does little better than guessing. The state goes on changing while the layer reads padding, and what it held is overwritten, or no longer where the output layer looks. So read each row at `lengths - 1`; or see that no padding is read at all, with `pack_padded_sequence`, or with `lengths=` in the course's `RNN`.

# %% [markdown] tags=["deeper"]
# ### How are padded rows packed?
#
# `pack_padded_sequence` stores only the real steps: first step 0 of all rows, then step 1 of those that go on, and so on, with the number of rows left at each step. No padding is read, and `h_n` is each row's own last state.

# %%
batch_ids, batch_real = text.pad_batch(
    [review_ids[0][:2], review_ids[1][:6], review_ids[2][:4]]
)
batch_lengths = batch_real.sum(1)  # (B,)
embedded = judge.embed(batch_ids).detach()  # (B, T, I)
packed = pack_padded_sequence(
    embedded, batch_lengths, batch_first=True, enforce_sorted=False
)
print("padded", tuple(embedded.shape), " lengths", batch_lengths.tolist())
print("packed", tuple(packed.data.shape), " rows left", packed.batch_sizes.tolist())

# %% [markdown]
# `enforce_sorted=False` lets torch sort the rows by length and put them back. The course's `RNN`, which has the parameters of `nn.RNN`, packs by itself when it is called with `lengths`.

# %% tags=["fold"]
# @title Check: picked, packed, told the lengths
told = RNN(16, 32)  # the course's layer packs when it is given lengths
told.load_state_dict(judge.rnn.state_dict())
with torch.no_grad():
    picked = judge.rnn(embedded)[0][torch.arange(3), batch_lengths - 1]
    by_packing = judge.rnn(packed)[1][0]
    by_lengths = told(embedded, lengths=batch_lengths)[1][0]
    further = F.pad(embedded, (0, 0, 0, 30), value=9.0)  # 30 more steps of anything at all
    padded_further = told(further, lengths=batch_lengths)[1][0]
claim(
    "Picked, packed, or with `lengths=` of the course's layer: the same states. Pad further, and nothing changes.",
    all(
        torch.allclose(picked, other, atol=1e-5)
        for other in (by_packing, by_lengths, padded_further)
    ),
)

# %% [markdown] tags=["deeper"]
# ### What can each direction fill in?
#
# Section 7's blank can be measured. We take four animals and four forms of sentence, such as *the ____ is a flightless bird that lives in antarctica* and *which talking bird lives in brazil ? the ____*. In two of the forms the deciding words come after the blank, in two before it.

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
real_words = sentence_mask.sum(1)  # (B,)
blank = (sentence_ids == words.stoi["____"]).int().argmax(1)  # (B,) where it stands


# %%
class FillIn(nn.Module):
    """Which animal stands at the blank?"""

    def __init__(self, bidirectional):
        super().__init__()
        self.embed = nn.Embedding(len(words), 8)
        self.layer = RNN(8, 16, bidirectional=bidirectional)
        self.readout = nn.Linear(32 if bidirectional else 16, 4)

    def forward(self, ids, lengths, blank):  # (B, T), (B,), (B,): where it stands
        states, _ = self.layer(self.embed(ids), lengths=lengths)  # (B, T, 16 or 32)
        return self.readout(states[torch.arange(len(ids)), blank])  # (B, 4)


# %%
early_guess = predict("forward network: accuracy on the early blanks, in percent", ...)

# %% tags=["fold", "reveal"]
# @title Train both for 400 steps; blanks filled
filled = {}
for name in ("forward", "bidirectional"):
    train.set_seed(0)
    filler = FillIn(bidirectional=name == "bidirectional")
    filler_optimizer = torch.optim.Adam(filler.parameters(), lr=0.01)
    for _ in tqdm(range(400), leave=False):
        filler_loss = F.cross_entropy(filler(sentence_ids, real_words, blank), animal)
        filler_optimizer.zero_grad()
        filler_loss.backward()
        filler_optimizer.step()
    right = (filler(sentence_ids, real_words, blank).argmax(1) == animal).float()
    filled[name] = [right[:8].mean().item(), right[8:].mean().item()]
claim(
    "The forward network can only guess the early blank, one of four; the bidirectional one fills every blank. Both fill the late ones.",
    abs(filled["forward"][0] - 0.25) < 0.13
    and filled["forward"][1] == 1.0
    and filled["bidirectional"] == [1.0, 1.0],
    forward=filled["forward"],
    bidirectional=filled["bidirectional"],
)
early_guess.compare(f"{100 * filled['forward'][0]:.0f}, a guess among four")

# %% [markdown]
# Both are tested on the sentences that they were trained on: the point is not what is learned, but what a network *can* see.

# %% [markdown] tags=["deeper"]
# ### How much of the past fits into D numbers?
#
# We drive an untrained layer with independent random numbers $x_t$ and ask how well a *linear* read-out of $h_t$ can rebuild the input of $k$ steps ago: the fraction of its variance that is explained, $R^2_k$ (1 is perfect, 0 is nothing). Summed over all lags, it cannot exceed $D$ for any weights (Jaeger 2001). This is a bound for linear read-outs; a read-out that is not linear can get more out of the same numbers. How near one comes to it depends on the weights.
# We take a random rotation, shrunk so that old inputs fade, and small inputs, so that tanh hardly bends: kinder to memory than most weights. The shrinking factor is chosen for each $D$ from a short list, by the total.

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
by_shrink = {
    D: {shrink: memory(D, shrink) for shrink in (0.7, 0.9, 0.97)}
    for D in tqdm((8, 32, 128), leave=False)
}
remembered = {
    D: max(rows.values(), key=lambda r2: r2.sum()) for D, rows in by_shrink.items()
}
figures.memory_by_lag(remembered)

# %% tags=["fold", "reveal"]
# @title Totals, and what another factor does
halves = {
    D: [int((r2 < 0.5).int().argmax()) for r2 in rows.values()] for D, rows in by_shrink.items()
}
totals = {D: [r2.sum().item() for r2 in rows.values()] for D, rows in by_shrink.items()}
claim(
    "For none of the three factors does a state rebuild more inputs than it has numbers (within 3 %, as the sample is finite).",
    all(max(sums) < 1.03 * D for D, sums in totals.items()),
    **{f"D = {D}: totals": sums for D, sums in totals.items()},
)
claim(
    "With the best factor the curve falls below one half near lag D; with a bad one, much earlier: for D = 128, before lag 40.",
    all(0.7 * D < max(lags) < 1.3 * D for D, lags in halves.items()) and min(halves[128]) < 40,
    **{f"D = {D}: lags": lags for D, lags in halves.items()},
)

# %% [markdown]
# On paper, with numbers of as many digits as it needs, a recurrent network can compute whatever any computer can (Siegelmann and Sontag 1995, with a piecewise linear function instead of tanh); in practice it has $D$ rounded ones.
#
# Sources: H. Jaeger, *Short term memory in echo state networks*, GMD Report 152, 2001. H. T. Siegelmann, E. D. Sontag, *On the computational power of neural nets*, Journal of Computer and System Sciences 50, 1995.

# %% [markdown] tags=["deeper"]
# ### What happens if the sum before the tanh is fed back?
#
# One may write the step as $a_t = x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b$, $h_t = \tanh(a_t)$. A slip in an index, $a_{t-1} W_{hh}^\top$ instead of $h_{t-1} W_{hh}^\top$, leaves all shapes right. Then the only non-linearity stands outside the loop: the recurrence itself is linear, with nothing to bound it. We put the weights that solved the quotations into this loop and run it over the long strings again.

# %% tags=["fold"]
# @title Run both loops over the long strings
def run_with(feed_back):
    """Accuracy and largest state, with `feed_back(a)` handed to the next step."""
    symbols, answers = new_long[0]
    w_ih, w_hh, b_ih, b_hh = (p.detach() for p in carrier.layer.parameters())
    from_input = carrier.embedding(symbols).detach() @ w_ih.T + b_ih + b_hh
    state, found = torch.zeros(len(symbols), 16), []
    for t in range(symbols.shape[1]):
        a = from_input[:, t] + state @ w_hh.T  # before the tanh, (B, D)
        state = feed_back(a)
        found.append(carrier.output(torch.tanh(a)).argmax(-1))
    right = (torch.stack(found, dim=1) == answers).float().mean().item()
    return right, state.nan_to_num(math.inf).abs().max().item()


wrong_loop, right_loop = run_with(lambda a: a), run_with(torch.tanh)
claim(
    "With the sum fed back, accuracy falls below 75 % and the state is beyond all bounds; with the tanh fed back, more than 99 % are right and the state stays within -1 and 1.",
    wrong_loop[0] < 0.75 and wrong_loop[1] > 1e6 and right_loop[0] > 0.99 and right_loop[1] <= 1,
    wrong=wrong_loop,
    right=right_loop,
)

# %% [markdown] tags=["deeper"]
# ### How is the loop made fast, and what does the library add?
#
# Two things help a loop in Python: time goes first, so that each step's slice lies together in memory; and what the *input* contributes needs no state, so it is one matrix product for all steps at once, `from_input` $= x_t W_{ih}^\top + b_{ih} + b_{hh}$. What remains is $h_{t-1} W_{hh}^\top$, one step after another. (`torch.addmm(a, h, W)` is `a + h @ W` in one call.)

# %% tags=["fold"]
# @title The step and the loop of course_lib.rnn
show_source(rnn_step, scan, rnn_loop)

# %% [markdown]
# `mask` freezes rows that have ended, `reverse` is the backward direction. The course's `RNN` runs this loop with `backend="loop"`, or torch's kernel, which does the same in compiled code.

# %% tags=["fold"]
# @title Check: loop, fused kernel and nn.RNN agree
ours = RNN(3, 5, num_layers=2, bidirectional=True, dtype=torch.float64)
torchs = nn.RNN(3, 5, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64)
torchs.load_state_dict(ours.state_dict())  # the names and shapes are torch's
x_check = torch.randn(4, 7, 3, dtype=torch.float64)


def output_and_gradients(layer, **options):
    """The outputs, and the gradient of the sum of their squares with respect to every parameter."""
    output, h_n = layer(x_check, **options)
    return [output, h_n, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))]


looped = output_and_gradients(ours, backend="loop")
claim(
    "In float64, two layers in two directions: loop, fused kernel and `nn.RNN` agree, forward and backward.",
    all(
        torch.allclose(a, b, rtol=1e-10, atol=1e-10)
        for others in (output_and_gradients(ours, backend="fused"), output_and_gradients(torchs))
        for a, b in zip(looped, others, strict=True)
    ),
)

# %% [markdown] tags=["deeper"]
# ### Which arguments does `nn.RNN` take?
#
# | argument | default | meaning |
# |---|---|---|
# | `input_size`, `hidden_size` | | $I$ and $D$ |
# | `num_layers` | 1 | $N$ |
# | `nonlinearity` | `"tanh"` | or `"relu"`, whose state has no upper bound and can explode |
# | `bias` | True | False leaves out both biases |
# | `batch_first` | **False** | True takes (B, T, I), as everywhere in this course |
# | `dropout` | 0 | fraction dropped between layers, in training; not after the last layer, not along time, so with one layer it does nothing |
# | `bidirectional` | False | a second direction with its own weights |
#
# Called as `layer(x, h_0)`; without `h_0` it is zero. All weights and biases start uniform in $\pm 1/\sqrt{D}$.

# %% [markdown] tags=["deeper"]
# ### How do other books write it?
#
# With rows, as here, but with the matrices transposed: *Dive into deep learning* has $H_t = \phi(X_t W_{xh} + H_{t-1} W_{hh} + b_h)$ and $O_t = H_t W_{hq} + b_q$, where its $W_{xh}$ is our $W_{ih}^\top$. With columns: $h_t = \tanh(W_{ih} x_t + W_{hh} h_{t-1} + b)$, with exactly our matrices. And some put $x_t$ and $h_{t-1}$ side by side and use one matrix $[W_{ih}, W_{hh}]$, which is the same sum. What differs as well is whether $h_t$ names the sum or its tanh: look at what goes back into the loop.

# %% [markdown] tags=["deeper"]
# ### What does the order alone cost?
#
# A loop takes its steps one after another, a window network all at once. To see what the order alone costs, we keep the number of multiplications equal: always 4,096 symbols, first as 256 sequences of 16 steps, finally as one of 4,096.

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
    for steps in tqdm(piece_lengths, leave=False):
        inputs = torch.randn(4096 // steps, steps, 64)
        past = F.pad(inputs.transpose(1, 2), (7, 0)).contiguous()
        taken["RNN"].append(milliseconds(lambda inputs=inputs: timed(inputs)))
        taken["window network"].append(milliseconds(lambda past=past: convolution(past)))
figures.time_by_length(piece_lengths, taken)
claim(
    "The RNN takes over 3 times as long for one sequence of 4,096 steps as for 256 of 16.",
    taken["RNN"][-1] > 3 * taken["RNN"][0],
    **{f"{name} (ms)": [taken[name][0], taken[name][-1]] for name in taken},
)

# %% [markdown] tags=["deeper"]
# ### What does a network read where a value is missing?
#
# A state is not only for text. Monthly sunspot numbers (chapter 01) come in one at a time, and the next is to be predicted. Now suppose that a fraction of the months was never observed. What does a network read in such a month? Two cheap answers:
#
# - **fill forward:** repeat the last value that was seen, and hope that it still holds;
# - **value and mask:** put a 0, and feed a second number that says *seen* or *missing*. What to do about it is learned (Che et al. 2018 build on the mask, and on the time since the last value).

# %%
seen_part = torch.tensor([True, True, False, False, True, False])
values_part = torch.tensor([9.1, 7.6, 8.0, 8.3, 6.2, 5.5])
last_seen = torch.where(seen_part, torch.arange(6), 0).cummax(dim=0).values
filled_part = values_part[last_seen]
value_and_mask = torch.stack([values_part * seen_part, seen_part.float()], dim=1)
print("filled forward:", filled_part)
print("value and mask", tuple(value_and_mask.shape), value_and_mask, sep="\n")

# %% [markdown]
# The two can be combined: fill forward, and say that it was filled. The rival is chapter 01's linear autoregression on the filled values. Its order is chosen on validation months, as are the RNN's learning rate and stopping time. The last 15 % of the series are forecast, one month ahead, with three draws of the holes. **With half of the months missing, which model forecasts best?**

# %%
gaps_guess = predict("who is best with half of the months missing", ...)

# %% tags=["reveal"]
figures.gaps()

# %% tags=["fold", "reveal"]
# @title The same in numbers
def gap_errors(row):
    """Test errors by seed at each fraction: a list of lists."""
    return [
        list(column) for column in zip(*ledger.values("sunspots-gaps", row, "mae"), strict=True)
    ]


def gap_means(row):
    """The mean test error over seeds at each fraction."""
    return [sum(errors) / len(errors) for errors in gap_errors(row)]


compared = ("AR, filled", "RNN, filled", "RNN, filled and mask", "RNN, zeros and mask")
smallest = [min(compared, key=lambda row: gap_means(row)[k]) for k in range(4)]
claim(
    "With up to half of the months missing, the linear model and the RNN, both on filled values, are better than repeating the last value that was seen, in each of three draws.",
    all(
        own < last
        for row in compared[:2]
        for errors, naive in list(zip(gap_errors(row), gap_errors("last value")))[:3]
        for own, last in zip(errors, naive)
    ),
    **{row: gap_means(row) for row in ("last value", *compared)},
)
claim(
    "With 0, 50 and 75 % missing the linear model has the smallest mean error; with 25 % it is the RNN that fills and gets the mask, ahead of the linear model in two draws of three.",
    smallest == ["AR, filled", "RNN, filled and mask", "AR, filled", "AR, filled"]
    and sum(a < b for a, b in zip(gap_errors("RNN, filled and mask")[1], gap_errors("AR, filled")[1])) == 2,
)
gaps_guess.compare(min(compared, key=lambda row: gap_means(row)[2]))

# %% [markdown]
# So do not reach for a network first: a linear forecast is as good here, one month ahead. Among the RNNs, zeros and mask had a larger mean error than filling with up to half of the months missing; at 75 % the draws disagree. Some 2,000 months with 600 training steps may be too little for learning what to do about a hole. Nor does this show that masks are useless: these holes were drawn at random, so *that* a month is missing says nothing.
# In a hospital it says something, and there Che et al. report a gain.
#
# Source: Z. Che et al., *Recurrent neural networks for multivariate time series with missing values*, Scientific Reports 8, 2018, arXiv 1606.01865: masks, and the time since the last value.

# %% [markdown] tags=["deeper"]
# ### Who is ahead with more text and more training?
#
# Recorded runs on tiny Shakespeare, all scored on the same last tenth of the text, on which no choice was made. The 7-gram is the longest of chapter 01's; the window network and the RNN have about as many weights as each other. In which order will they end?

# %% tags=["fold"]
# @title Look up the recorded runs
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
bits_of = {name: ledger.values(*place, "bits") for name, place in recorded.items()}
size_of = {name: ledger.summary(*place, "parameters")[0] for name, place in recorded.items()}

# %% tags=["reveal"]
figures.on_shakespeare(bits_of, size_of)

# %% tags=["fold", "reveal"]
# @title The same in numbers
table(
    ["tiny Shakespeare, last 10 %", "perplexity", "bits per character", "counts or weights", "seeds"],
    [
        [
            name,
            *(ledger.summary(*place, metric)[0] for metric in ("perplexity", "bits")),
            f"{size_of[name]:,.0f}",
            "-" if "gram" in name else ledger.summary(*place, "bits")[3],
        ]
        for name, place in recorded.items()
    ],
)
claim(
    "In every seed the RNN needs fewer bits than the window network and than the 7-gram, with about a quarter of the 7-gram's numbers.",
    max(bits_of["RNN"]) < min(bits_of["window network"] + bits_of[f"{best_n}-gram"])
    and size_of["RNN"] < 0.3 * size_of[f"{best_n}-gram"],
)

# %% [markdown]
# The lead over the 7-gram is small, smaller than the RNN's spread over seeds, and 7 is the largest $n$ that was recorded. The two networks were trained with settings of their own: 10 passes with dropout for the window, 4 without for the RNN. So the runs do not show what the state alone is worth.
