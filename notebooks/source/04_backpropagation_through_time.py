# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 270
#     needs: chapter 03, the chain rule, matrix products
# ---

# %% [markdown]
# # 04 · Backpropagation through time
#
# Two copies of one network read an endless stream of five symbols. At every step they must output the symbol of **six steps ago**. They start with the same weights and read the
# same symbols. The first learns from windows of 24 steps: it reads 24 steps, updates its weights, and reads on. The second does so every 6 steps. From window to window both hand on their state with `.detach()`, as you did in chapter 03:
# the numbers go on, their history does not, and the forward pass stays the same. Guessing is right one time in five. **How often will the second network be right?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("two_windows")

# %% tags=["setup", "fold"]
# @title Imports
import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import bptt
from course_lib.exercises import ch04
from course_lib.experiments.gradients_through_time import stacked
from course_lib.notebook import claim, diagrams, ledger, predict, table
from course_lib.notebook.figures import ch04 as figures
from course_lib.rnn import RNN

torch.set_printoptions(precision=2, sci_mode=False)
_ = torch.manual_seed(0)


def draw(*shape, seed=0):
    """Random float64 numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

# %% tags=["fold"]
# @title The test: a new stream that is never cut
SYMBOLS, UNITS, LAG = 5, 64, 6


def on_a_new_stream(layer, head):
    """Fraction of right answers on 64 streams of 200 steps."""
    test = torch.randint(SYMBOLS, (64, LAG + 200), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        states, _ = layer(F.one_hot(test[:, LAG:], SYMBOLS).float())
    right = head(states).argmax(-1) == test[:, :-LAG]
    return right[:, LAG:].float().mean().item()


# %%
guess_six = predict("the accuracy with windows of 6 steps, from 0 to 1", ...)


# %%
def repeat_after(window, symbols=9600, batch=16):
    torch.manual_seed(1)
    layer, head = RNN(SYMBOLS, UNITS), nn.Linear(UNITS, SYMBOLS)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=4e-3)
    stream = torch.randint(SYMBOLS, (batch, LAG + symbols))
    state = None
    for start in tqdm(range(0, symbols, window), leave=False):
        symbols_in = stream[:, LAG + start : LAG + start + window]
        inputs = F.one_hot(symbols_in, SYMBOLS).float()
        answers = stream[:, start : start + window]  # the symbol of six steps ago
        state = None if state is None else state.detach()  # the cut
        output, state = layer(inputs, state)
        loss = F.cross_entropy(head(output).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return on_a_new_stream(layer, head)


accuracy_24, accuracy_6 = repeat_after(window=24), repeat_after(window=6)

# %% tags=["fold", "reveal"]
# @title Right answers after windows of 24 and of 6 steps
claim(
    "With windows of 24 steps the network is right more than 9 times in 10; with windows of 6, fewer than 4 in 10.",
    accuracy_24 > 0.9 and accuracy_6 < 0.4,
    **{"windows of 24": accuracy_24, "windows of 6": accuracy_6},
)
guess_six.compare(round(accuracy_6, 1))

# %% [markdown]
# No error, no warning, and the state was handed on without a gap; the second network even made four times as many updates. What it lacked is invisible in the forward pass: the path along which the loss could
# have told the network, six steps earlier, what to keep.
#
# In this chapter you walk that path. You compute every gradient of a small network, one line at a time. Then you follow a gradient over many steps and see it fade or explode, and you see what truncation and clipping do to it.
#
# *Reading takes nearly an hour and a half, the exercises three hours. First sitting: sections 1 to 3 in three quarters of an hour, and exercises 4.1 to 4.3, 80 minutes. Second sitting: the rest.*
#
# ### You will be able to
#
# 1. write the backward pass of a recurrent network, and show that it is right (exercises 4.1, 4.3);
# 2. expand a gradient into a sum over all later steps (4.2), and predict how fast it fades or grows (4.7);
# 3. truncate without losing the state, and say what a window can teach (4.4, 4.5);
# 4. put a whole training step together by hand, with clipping (4.6).

# %% [markdown]
# ## 1 · Forward: every number gets a name
#
# How does a loss tell an earlier step what to keep? Make the network of the opening so small that every number gets a name. Two streams, *caebd* and *bdaac*; three steps; six units. At every step the network must output the symbol of **two** steps ago. Each symbol comes in as a one-hot row:

# %%
stream = torch.tensor([[2, 0, 4, 1, 3], [1, 3, 0, 0, 2]])  # c a e b d, and b d a a c
B, T, V, D = 2, 3, 5, 6  # streams, steps, symbols, units

x = F.one_hot(stream[:, 2:], V).double()  # (B, T, V): what the network reads
y = stream[:, :-2]  # (B, T): what it must output
print("x", tuple(x.shape), " y", tuple(y.shape))

# %% [markdown]
# In the first stream it reads *e*, *b*, *d* and must output *c*, *a*, *e*. *c* and *a* came before its first step, but *e* came in at step 1. To learn that answer, the loss of step 3 must reach back to step 1.
#
# One step of the network has three lines (chapter 03; we leave out the biases). $x_t$, $h_t$ and $o_t$ have a row for each stream:
#
# $$ a_t = x_t W_{ih}^\top + h_{t-1} W_{hh}^\top, \qquad h_t = \tanh(a_t), \qquad o_t = h_t W_{ho}^\top. $$
#
# $W_{ih}$ has the shape (D, I), where I is the width of an input, here V; $W_{hh}$ is (D, D) and $W_{ho}$ (V, D). Steps count from 1, and the initial state $h_0$ is 0. The loss $L_t$ of a step is its cross-entropy, averaged over the streams, and $L$ is the mean of $L_1$, $L_2$ and $L_3$. In the picture, follow the black arrows:

# %% tags=["fold"]
# @title Diagram: three steps, forward and backward
diagrams.show("bptt_graph")

# %% [markdown]
# The code takes the same arrows, one by one. `draw` gives random numbers in double precision, the same at every run:

# %%
W_ih = (0.5 * draw(D, V, seed=7)).requires_grad_()
W_hh = (0.5 * draw(D, D, seed=8)).requires_grad_()
W_ho = (0.5 * draw(V, D, seed=9)).requires_grad_()
h0 = torch.zeros(B, D, dtype=torch.float64, requires_grad=True)

a1 = x[:, 0] @ W_ih.T + h0 @ W_hh.T  # (B, D)
h1 = torch.tanh(a1)  # (B, D)
o1 = h1 @ W_ho.T  # (B, V)

a2 = x[:, 1] @ W_ih.T + h1 @ W_hh.T
h2 = torch.tanh(a2)
o2 = h2 @ W_ho.T

a3 = x[:, 2] @ W_ih.T + h2 @ W_hh.T
h3 = torch.tanh(a3)
o3 = h3 @ W_ho.T

# %%
L1 = F.cross_entropy(o1, y[:, 0])
L2 = F.cross_entropy(o2, y[:, 1])
L3 = F.cross_entropy(o3, y[:, 2])
L = (L1 + L2 + L3) / 3

print("h3", tuple(h3.shape), h3[0].detach())  # of the first stream
print("o3", tuple(o3.shape), o3[0].detach())
print(f"L = {L.item():.2f}; guessing among five symbols costs {math.log(5):.2f}")

# %% [markdown]
# To improve, the network must know how $L$ changes with each of its 96 weights. We could move one weight a little, run the forward pass again, and see how $L$ changes; for a million weights, a million runs.
# There is a shorter way: we go through the same lines *once*, in reverse order, and find out for each named number how the loss depends on it.

# %% [markdown]
# ## 2 · Backward: line by line
#
# How does the loss depend on each named number? Follow the orange-red arrows of the diagram, from the loss down and to the left. In code, `dh3` is short for $\partial L / \partial h_3$. **A gradient always has the shape of what it belongs to.** Torch can compute all these gradients itself, by *autograd*, so we check each line against it right away:


# %%
def compare(label, mine, tensor):
    """Print whether `mine` equals autograd's gradient of L with respect to `tensor`."""
    wanted = torch.autograd.grad(L, tensor, retain_graph=True)[0]
    equal = mine.shape == wanted.shape and (mine - wanted).abs().max() < 1e-12
    print(f"{label:20} {tuple(mine.shape)}", "correct" if equal else "WRONG")


# %% [markdown]
# **Outputs.** The gradient of a cross-entropy with respect to its logits has a simple formula: the predicted probabilities, minus 1 at the right symbol. (For one stream at one step, $L_t = \log \sum_j e^{o_j} - o_y$: the first term's slopes are the probabilities, the second's is -1 at $y$.) The loss is a mean over B streams and T steps, so each of these gradients carries a factor $1/(BT)$:

# %%
do1 = (torch.softmax(o1, dim=1) - F.one_hot(y[:, 0], V)) / (B * T)
do2 = (torch.softmax(o2, dim=1) - F.one_hot(y[:, 1], V)) / (B * T)
do3 = (torch.softmax(o3, dim=1) - F.one_hot(y[:, 2], V)) / (B * T)
compare("do1", do1, o1)
compare("do2", do2, o2)
compare("do3", do3, o3)

# %% [markdown]
# **Output weights.** $o_t = h_t W_{ho}^\top$ uses $W_{ho}$ at every step, so its gradient has one term for each step. A single weight links one unit to one logit: its term is the logit's gradient times the unit's value, summed
# over the streams. That is the matrix product $\mathrm{d}o_t^\top h_t$, (V, B) times (B, D):

# %%
dW_ho = do1.T @ h1 + do2.T @ h2 + do3.T @ h3
compare("dW_ho", dW_ho, W_ho)

# %% [markdown]
# **The last state** is read by its own output only. A logit's gradient goes back through the same weights that made the logit:

# %%
dh3 = do3 @ W_ho
compare("dh3", dh3, h3)

# %% [markdown]
# **Inside tanh.** The derivative of $\tanh(a)$ is $1 - \tanh^2(a)$. We have $h = \tanh(a)$ already, so it is $1 - h^2$, entry by entry:

# %%
da3 = dh3 * (1 - h3**2)
compare("da3", da3, a3)

# %% [markdown]
# **One state earlier.** By analogy with $h_3$, the gradient of $h_2$ should be `do2 @ W_ho`:

# %%
compare("dh2, first try", do2 @ W_ho, h2)

# %% [markdown]
# **Before you read on:** look at the diagram. How many orange-red arrows arrive at $h_2$?
#
# Two. $h_2$ was used twice in the forward pass, for its own output and for the next state, and moving it changes the loss along both paths. Gradients that arrive along different paths are *added*:

# %%
dh2 = do2 @ W_ho + da3 @ W_hh
compare("dh2", dh2, h2)

# %% [markdown]
# This line is backpropagation through time. Once you have it, the rest is repetition, back to $h_0$, which has no output of its own. **Cover the next cell, and write its first four lines on paper.**

# %%
da2 = dh2 * (1 - h2**2)
dh1 = do1 @ W_ho + da2 @ W_hh
da1 = dh1 * (1 - h1**2)
dh0 = da1 @ W_hh
compare("da2", da2, a2)
compare("dh1", dh1, h1)
compare("da1", da1, a1)
compare("dh0", dh0, h0)

# %% [markdown]
# **Hidden weights.** $W_{ih}$ and $W_{hh}$ are used at every step as well. At step 3, $W_{hh}$ was multiplied by the state *before*, $h_2$:

# %%
dW_ih = da1.T @ x[:, 0] + da2.T @ x[:, 1] + da3.T @ x[:, 2]
dW_hh = da1.T @ h0 + da2.T @ h1 + da3.T @ h2
compare("dW_ih", dW_ih, W_ih)
compare("dW_hh", dW_hh, W_hh)

# %% [markdown]
# Thirteen gradients, all of them equal to autograd's. And there is the path we looked for: from the loss of step 3 through `do3`, `dh3`, `da3`, `dh2`, `da2`, `dh1` and `da1` to the weights that read *e* at step 1.

# %% [markdown]
# ## 3 · A loop, and a network that learns
#
# Three steps took some twenty lines; what of a hundred steps? Every step repeats the same lines, so we write a loop.


# %%
def forward(x, W_ih, W_hh, W_ho, h_0):
    states = [h_0]  # (B, D) each
    for t in range(1, x.shape[1] + 1):
        a = x[:, t - 1] @ W_ih.T + states[t - 1] @ W_hh.T  # x[:, t - 1] is x_t
        states.append(torch.tanh(a))
    h = torch.stack(states, dim=1)  # (B, T + 1, D), and h[:, t] is h_t
    o = h[:, 1:] @ W_ho.T  # (B, T, V)
    return h, o


# %% [markdown]
# And backwards, from $T$ to 1. These are the lines of section 2 for any $t$. What comes back from the next step is called `from_next` in the code; at $t = T$ no step follows, so it starts at 0.
#
# $$ \frac{\partial L}{\partial h_t} = \frac{\partial L}{\partial o_t} W_{ho} + \frac{\partial L}{\partial a_{t+1}} W_{hh}, \qquad \frac{\partial L}{\partial a_t} = \frac{\partial L}{\partial h_t} \odot (1 - h_t^2), $$
#
# $$ \frac{\partial L}{\partial W_{ih}} = \sum_{t=1}^{T} \Big( \frac{\partial L}{\partial a_t} \Big)^{\!\top} x_t, \qquad \frac{\partial L}{\partial W_{hh}} = \sum_{t=1}^{T} \Big( \frac{\partial L}{\partial a_t} \Big)^{\!\top} h_{t-1}, \qquad \frac{\partial L}{\partial W_{ho}} = \sum_{t=1}^{T} \Big( \frac{\partial L}{\partial o_t} \Big)^{\!\top} h_t. $$


# %%
def backward(do, x, h, W_hh, W_ho):
    dW_ih = dW_hh = dW_ho = 0.0
    from_next = 0.0  # what comes back from the next step: nothing, at T
    for t in range(x.shape[1], 0, -1):
        dh = do[:, t - 1] @ W_ho + from_next  # (B, D)
        da = dh * (1 - h[:, t] ** 2)  # (B, D)
        dW_ih = dW_ih + da.T @ x[:, t - 1]  # (D, I)
        dW_hh = dW_hh + da.T @ h[:, t - 1]  # (D, D)
        dW_ho = dW_ho + do[:, t - 1].T @ h[:, t]  # (V, D)
        from_next = da @ W_hh  # (B, D)
    return dW_ih, dW_hh, dW_ho


# %%
h, o = forward(x, W_ih, W_hh, W_ho, h0)
do = (torch.softmax(o, dim=2) - F.one_hot(y, V)) / (B * T)
dW_ih, dW_hh, dW_ho = backward(do, x, h, W_hh, W_ho)
compare("dW_ih", dW_ih, W_ih)
compare("dW_hh", dW_hh, W_hh)
compare("dW_ho", dW_ho, W_ho)

# %% [markdown]
# Does it learn? The task is the same, with 32 streams, 32 units and sequences of 10 steps. Weights, loop, gradients and updates are all yours; autograd takes no part.

# %%
data = torch.Generator().manual_seed(0)
# small starting weights; those that read the state are about 1 / sqrt(units)
weights = [draw(32, 5, seed=1) / 3, draw(32, 32, seed=2) / 6, draw(5, 32, seed=3) / 6]
zeros = torch.zeros(32, 32, dtype=torch.float64)  # (B, D)
for step in range(1, 101):
    symbols = torch.randint(5, (32, 12), generator=data)
    inputs = F.one_hot(symbols[:, 2:], 5).double()
    answers = symbols[:, :-2]
    h, o = forward(inputs, *weights, zeros)
    do = (torch.softmax(o, dim=2) - F.one_hot(answers, 5)) / answers.numel()
    gradients = backward(do, inputs, h, *weights[1:])
    for W, dW in zip(weights, gradients):
        W -= 1.0 * dW  # plain gradient descent, learning rate 1
    if step in (1, 20, 100):
        right = (o.argmax(dim=2) == answers)[:, 2:].double().mean()
        print(f"step {step}: {right:.1f} right from the third symbol on")

# %% [markdown]
# It does. (Nobody can know the first two answers, so they are not counted.)
#
# ### What the second network was not told
#
# Why, then, did the second network of the opening *not* learn? Go back to the small network, let its first stream go on to six steps, and follow the loss of step 6 alone. No other output counts, so the step back from $h_t$ to $h_{t-1}$ is one line, `dh = (dh * (1 - h_t**2)) @ W_hh`.
#
# We walk back twice: the whole way, and with a cut, as if the state had been detached between two windows of 3 steps. How long is the gradient (its norm) that arrives at each state, from $h_6$ back to $h_0$?

# %%
six = torch.tensor([[4, 1, 3, 0, 2, 1]])  # e b d a c b; at step 6 the answer is a
states, logits = forward(F.one_hot(six, V).double(), W_ih, W_hh, W_ho, h0[:1])

dh_6 = (torch.softmax(logits[:, 5], dim=1) - F.one_hot(six[:, 3], V)) @ W_ho  # at h_6

for cut in (None, 3):
    dh = dh_6
    lengths = [dh.norm().item()]
    for t in range(6, 0, -1):
        dh = (dh * (1 - states[:, t] ** 2)) @ W_hh  # one step back, to h_(t-1)
        if t - 1 == cut:
            dh = torch.zeros_like(dh)  # the state was detached here
        lengths.append(dh.norm().item())
    print("whole" if cut is None else "cut  ", torch.tensor(lengths))

# %% [markdown]
# Before the cut there is exactly nothing: $h_3$ to $h_0$ never hear of the loss at step 6. In the opening, with windows of 6 and a lag of 6, no window ever held both a symbol and the answer that depends on it. So no answer could reach the step at which its symbol came in, and teach the network there what to store. That is what the second network lacked.

# %% [markdown]
# *A good place to stop for today.* You can derive every gradient of a recurrent network, and you know why the second network of the opening could not learn. Exercises 4.1 to 4.3 follow, 80 minutes in all; section 4 needs none of them. The second half asks how far a gradient reaches, and what you can do about it.
#
# ---

# %% [markdown]
# ### Exercise 4.1 · Derive: three steps on paper
#
# Difficulty ●●○○○ · 15 minutes · needs section 2
#
# Without tanh a pencil is enough: $h_t = w_{ih} x_t + w_{hh} h_{t-1}$ and $o_t = w_{ho} h_t$, where all sizes are 1, $w_{ih} = 1$, $w_{hh} = \frac12$, $w_{ho} = 2$ and $h_0 = 0$. Inputs 2, 0, 1; targets 1, 2, 0. The loss of a step is
# $\frac12 (o_t - y_t)^2$, and $L$ is the mean over the three steps. Find $\partial L/\partial h_1$ and the gradients of $w_{ih}$, $w_{hh}$ and $w_{ho}$.

# %% nbgrader={"grade": false, "grade_id": "ex04-1-three-steps", "locked": false, "schema_version": 3, "solution": true, "task": false}
on_paper = ...  # (dL/dh_1, dL/dw_ih, dL/dw_hh, dL/dw_ho)
### BEGIN SOLUTION
# h = 2, 1, 1.5; o = 4, 2, 3; dL/do = 1, 0, 1; dL/dh_3 = 2, dL/dh_2 = 1, dL/dh_1 = 2.5
on_paper = (2.5, 2.5 * 2 + 1 * 0 + 2 * 1, 2.5 * 0 + 1 * 2 + 2 * 1, 1 * 2 + 0 * 1 + 1 * 1.5)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex04-1-three-steps-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch04.three_steps(on_paper)

# %% [markdown]
# ### Exercise 4.2 · Derive: expand the recursion, and check it numerically
#
# Difficulty ●●●○○ · 25 minutes · needs section 3
#
# $L$ is again the loss of all steps. Take tanh away, so that $a_t = h_t$, and substitute the recursion of section 3 into itself. For $t = T - 1$ it gives two terms:
#
# $$ \frac{\partial L}{\partial h_{T-1}} = \frac{\partial L}{\partial o_{T-1}} W_{ho} + \frac{\partial L}{\partial o_T} W_{ho} W_{hh}. $$
#
# And for any $t$? Write $\partial L/\partial h_t$ as a sum over the outputs $k = t \ldots T$ that contains no other $\partial L/\partial h$. Then turn that sum into code.
# Inputs are float64, and the check compares your result with the recursion at several t, to five digits. It sees numbers only: the recursion itself would pass, and prove nothing about your sum. The sum is for understanding, not for computing: for all t it needs T(T+1)/2 terms, the walk T steps.


# %% nbgrader={"grade": false, "grade_id": "ex04-2-expanded-gradient", "locked": false, "schema_version": 3, "solution": true, "task": false}
def expanded_gradient(do, W_hh, W_ho, t):
    """Gradient with respect to h_t of a network without tanh, as a sum over the outputs from t to T.

    Args:
        do: (B, T, V) gradient of the loss with respect to the outputs; do[:, k - 1] belongs to step k.
        W_hh: (D, D).
        W_ho: (V, D).
        t: the step, 1 to T.

    Returns:
        (B, D).
    """
    ### BEGIN SOLUTION
    # dL/dh_t = sum over k = t ... T of dL/do_k W_ho W_hh^(k - t)
    total = torch.zeros(len(do), len(W_hh), dtype=do.dtype)
    for k in range(t, do.shape[1] + 1):
        total = total + do[:, k - 1] @ W_ho @ torch.linalg.matrix_power(W_hh, k - t)
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex04-2-expanded-gradient-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch04.expanded_gradient(expanded_gradient)

# %% [markdown]
# ### Exercise 4.3 · Implement: the backward pass of a leaky network
#
# Difficulty ●●●●○ · 40 minutes · needs sections 2 and 3
#
# A *leaky* network replaces only a fraction $\alpha$ of its state at each step, and keeps the rest:
#
# $$ c_t = \tanh(x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b), \qquad h_t = (1 - \alpha)\, h_{t-1} + \alpha\, c_t, \qquad o_t = h_t W_{ho}^\top. $$
#
# Draw three steps first. From how many places does a gradient arrive at $h_t$? Inputs are float64, five digits are compared, and your function may not use autograd. To find a mistake, do compare your result with autograd's, as in section 2.


# %% nbgrader={"grade": false, "grade_id": "ex04-3-leaky-backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def leaky_backward(do, x, h, c, W_hh, W_ho, alpha):
    """All gradients of a leaky network, without autograd.

    Args:
        do: (B, T, V) gradient of the loss with respect to the outputs.
        x: (B, T, I) inputs; x[:, t - 1] is step t.
        h: (B, T + 1, D) states, h[:, 0] the initial one.
        c: (B, T, D) the candidates, values of tanh; c[:, t - 1] is step t.
        W_hh: (D, D).
        W_ho: (V, D).
        alpha: the fraction that is replaced, 0 to 1.

    Returns:
        dW_ih (D, I), dW_hh (D, D), dW_ho (V, D), db (D,).
    """
    ### BEGIN SOLUTION
    from_later = torch.zeros_like(h[:, 0])
    da = torch.zeros_like(c)
    for t in range(x.shape[1], 0, -1):
        dh = do[:, t - 1] @ W_ho + from_later
        da[:, t - 1] = alpha * dh * (1 - c[:, t - 1] ** 2)
        from_later = da[:, t - 1] @ W_hh + (1 - alpha) * dh  # through the candidate, and straight
    dW_ih = torch.einsum("btd,bti->di", da, x)
    dW_hh = torch.einsum("btd,bte->de", da, h[:, :-1])
    dW_ho = torch.einsum("btv,btd->vd", do, h[:, 1:])
    return dW_ih, dW_hh, dW_ho, da.sum(dim=(0, 1))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex04-3-leaky-backward-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch04.leaky_backward(leaky_backward)

# %% [markdown]
# ## 4 · How far back? Products of Jacobians
#
# On the whole way of section 3 the gradient reached $h_0$, but over six steps it shrank to less than a tenth. What shrank it, and what is left after a hundred steps?
#
# Our line for a step back, `dh = (dh * (1 - h_t**2)) @ W_hh`, multiplies the row `dh` by a (D, D) matrix, the *Jacobian* of the step. It holds the derivatives of all entries of $h_t$ with respect to all entries of $h_{t-1}$:
#
# $$ J_t = \frac{\partial h_t}{\partial h_{t-1}} = \mathrm{diag}(1 - h_t^2)\, W_{hh}. $$
#
# The line never builds that matrix: it is a **vector-Jacobian product**. Autograd has one for every operation, and `L.backward()` calls them in reverse order. Here are both walks of section 3 once more, with their Jacobians:

# %% tags=["fold"]
# @title Diagram: one gradient's way back, whole and cut
diagrams.show("gradient_path")

# %% [markdown]
# Each step back brings one more factor, so over $t - s$ steps the Jacobians multiply:
#
# $$ \frac{\partial h_t}{\partial h_s} = J_t\, J_{t-1} \cdots J_{s+1} \quad (s < t). $$
#
# To see what such a product does, leave tanh out for a moment. Then every $J_t$ is $W_{hh}$, and $k$ steps back multiply the gradient by its power $W_{hh}^k$. If $\lambda$ is an *eigenvalue* of $W_{hh}$, the power multiplies its eigenvector (as a row) by $\lambda^k$: that shrinks when $|\lambda| < 1$, and grows when $|\lambda| > 1$. In the long run, almost always, the largest
# $|\lambda|$ wins. It is called the *spectral radius*, $\rho$.
#
# The cleanest example is an orthogonal matrix, which we call a *rotation* for short, though it may also reflect. It keeps every length, and all its $|\lambda|$ are 1. Multiplied by $\rho$, it changes every length by the factor $\rho$. We take a random one (`torch.linalg.qr` makes it from a random matrix), scale it to a radius a little below 1, of 1, and a little above, and send a gradient 100 steps back:

# %%
rotation, _ = torch.linalg.qr(draw(32, 32, seed=3))  # (D, D)
growth = {}
for rho in (0.9, 1.0, 1.1):
    dh = start = draw(1, 32, seed=4)  # the gradient at the last step
    for _ in range(100):
        dh = dh @ (rho * rotation)  # one step back, without tanh
    growth[rho] = (dh.norm() / start.norm()).item()
    print(f"radius {rho}: length times {growth[rho]:,.5f}")

# %% tags=["fold"]
# @title Is that the 100th power of the radius?
claim(
    "What arrives is $\\rho$ to the power 100, to nine digits.",
    all(math.isclose(length, rho**100, rel_tol=1e-9) for rho, length in growth.items()),
)

# %% [markdown]
# At 0.9 the last loss tells a state 100 steps before next to nothing: a *vanishing* gradient. At 1.1 it shouts: an *exploding* one. For a rotation without tanh, only radius 1 lies between the two.
#
# What vanishes is the part that concerns *far* states. The total gradient with respect to $W_{hh}$ need not be small, since the terms of the near steps remain. So learning does not stop; it becomes short-sighted.
#
# And the small network, whose $W_{hh}$ is no rotation? Its radius is a line away:

# %%
eigenvalues = torch.linalg.eigvals(W_hh)  # (D,), complex numbers
print(f"radius of the small network's W_hh: {eigenvalues.abs().max():.2f}")

# %% [markdown]
# $0.92^{100}$ is less than a thousandth. So after a hundred steps next to nothing of its gradient would be left, even without tanh.

# %% [markdown]
# ## 5 · Does tanh protect?
#
# With tanh, each Jacobian also contains tanh's slopes, $1 - h_t^2$. They lie between 0 and 1, and are 1 only where the state is 0. So tanh never lengthens the gradient, and usually shortens it, before $W_{hh}$ multiplies it. Here is section 3's walk from $h_6$ to $h_0$ once more, without the slopes:

# %%
dh = dh_6
for _ in range(6):
    dh = dh @ W_hh  # no tanh
print(f"at h_6 {dh_6.norm().item():.2f}, at h_0 {dh.norm().item():.2f}")

# %% [markdown]
# With them 0.11 was left: most of the shrinking was tanh's. Does that protect against explosions?
#
# We repeat the experiment of section 4 with tanh, and with a rotation times 2. A network of 64 untrained units reads 16 streams of 60 small random inputs and keeps its states. Then a gradient goes back over the last 40 steps, and we divide the length that arrives by the length at the start; the 40th root of that ratio is the average factor per step. Without tanh that would be 2. **And with tanh?**

# %%
guess_factor = predict("the factor for each step back, with tanh at radius 2", ...)

# %% tags=["reveal"]
rotation_64, _ = torch.linalg.qr(draw(64, 64, seed=3))
W = 2 * rotation_64  # W_hh, of radius 2

h_t = torch.zeros(16, 64, dtype=torch.float64)  # (B, D)
kept = []
for t in range(60):
    h_t = torch.tanh(0.1 * draw(16, 64, seed=t) + h_t @ W.T)  # a small random input
    kept.append(h_t)

dh = start = draw(16, 64, seed=99)  # the gradient at the last state
for h_t in reversed(kept[20:]):
    dh = (dh * (1 - h_t**2)) @ W  # one step back
factor = (dh.norm() / start.norm()) ** (1 / 40)
guess_factor.compare(round(factor.item(), 2))

# %% [markdown]
# With inputs as small as these, tanh protects only in part. It lowers the factor from 2 to about 1.17, but that is still above 1, and over 40 steps the gradient grows several hundredfold.
#
# Would another function do better? The sigmoid's slope is at most 1/4, ReLU's is 0 or 1. Here are recorded measurements of this kind for all three, at four radii, in three seeds each:

# %%
figures.activations()

# %% tags=["fold"]
# @title In numbers: the factor for each step back
factors = {
    (name, radius): ledger.values("bptt-activations", f"{name}, radius {radius}", "rate")
    for name in ("tanh", "sigmoid", "ReLU")
    for radius in (0.9, 1.5, 2.0, 4.0)
}
claim(
    "In each of three seeds, at radius 0.9 the gradient vanishes with all three; at 1.5, 2 and 4 it explodes with tanh and, faster, with ReLU; with the sigmoid it vanishes even at 4.",
    all(max(factors[name, 0.9]) < 1 for name in ("tanh", "sigmoid", "ReLU"))
    and all(
        1 < max(factors["tanh", radius]) < min(factors["ReLU", radius]) and min(factors["tanh", radius]) > 1
        for radius in (1.5, 2.0, 4.0)
    )
    and all(max(factors["sigmoid", radius]) < 1 for radius in (1.5, 2.0, 4.0)),
    **{f"{name}, radius {radius}": values for (name, radius), values in factors.items() if radius in (0.9, 2.0)},
)

# %% [markdown]
# ReLU explodes faster than tanh. The sigmoid errs on the other side: with a slope of at most 1/4 and a rotation times $\rho$, each step back multiplies the gradient's length by at most $\rho/4$, and up to radius 4 it cannot explode. It vanishes instead.
#
# ### Where does a network start?
#
# Torch draws the weights of an `nn.RNN` uniformly between $-1/\sqrt D$ and $1/\sqrt D$. Such random numbers give $W_{hh}$ a radius of only about $1/\sqrt 3 \approx 0.6$, and $0.6^{10}$ is less than a hundredth: before training, the gradient reaches back some ten steps. Starting from a rotation is one remedy, but nothing keeps a trained $W_{hh}$ there.
#
# Another is a path on which the gradient meets *no* matrix and no tanh. The leaky network of exercise 4.3 replaces only a fraction $\alpha$ of its state at each step; through the part that stays, a gradient comes back with the fixed factor $1 - \alpha$. In chapter 05 the network learns the factor.

# %% [markdown]
# ## 6 · Truncation
#
# However far a gradient could reach, the walk back starts at the last step, and a stream has none. And it needs the states of all steps, the last ones first, so **memory grows with every step that is kept**. *Truncated* backpropagation through time therefore cuts the stream into windows of $w$ steps. The **numbers** of the state go on; its **gradient** stops at the edge.
#
# You have seen the cut in torch: it is the line `state.detach()` in the opening's function. In the walk of section 3 it would be two lines at the loop's end:
#
# ```python
# if (t - 1) % window == 0:  # step t is the first of its window
#     from_next = 0.0
# ```
#
# How long must a window be? In the opening, 24 steps were enough for a lag of 6, and 6 were not. Take 8. Then only the last two answers of a window share it with the symbols that they repeat. **How often will the network be right now?**

# %%
guess_eight = predict("the accuracy with windows of 8 steps, from 0 to 1", ...)

# %% tags=["reveal", "nbval-ignore-output"]
accuracy_8 = repeat_after(window=8)
guess_eight.compare(round(accuracy_8, 2))

# %% tags=["fold", "reveal"]
# @title Right answers after windows of 8 steps
claim(
    "With windows of 8 steps the network is right more than 9 times in 10.",
    accuracy_8 > 0.9,
    **{"windows of 6": accuracy_6, "windows of 8": accuracy_8, "windows of 24": accuracy_24},
)

# %% [markdown]
# Here two steps more than the lag are enough. Those two answers send a gradient to the steps at which their symbols came in, and the weights are the same at every step.
#
# That was one run. Here are recorded ones with a longer lag, 8, so that a window of 8 is now too short: windows of 2 to 32 steps, three seeds each. All read equally many symbols, so longer windows mean fewer updates. The second curve shows a common mistake: the state is not *carried* from window to window, but set to *zero* at the start of each.

# %%
figures.learned_by_window()

# %% tags=["fold"]
# @title In numbers: up to the lag, and two steps more
echo = {
    name: {w: ledger.values("bptt-truncation", f"{name}, window {w}", "accuracy") for w in figures.WINDOWS}
    for name in ("carried", "zeroed")
}
claim(
    "Windows up to the lag, state carried: below 0.35 in each of three seeds. Two steps more: above 0.85 in each; with the same 10 steps and the state zeroed, below 0.4 in each.",
    max(value for w in (2, 4, 8) for value in echo["carried"][w]) < 0.35
    and min(echo["carried"][10]) > 0.85
    and max(echo["zeroed"][10]) < 0.4,
    carried=echo["carried"][10],
    zeroed=echo["zeroed"][10],
)

# %% [markdown]
# Again two steps more than the lag suffice, but only if the state is carried. With windows up to the lag, each answer's gradient stopped before the step at which its symbol came in.
#
# So the truncated gradient is not a noisy version of the full one: it *leans towards what is near*. It is **biased**, and no amount of data averages a bias away. Cuts at random places, with the terms reweighted, remove it at the price of more variance (Tallec and Ollivier 2017).
#
# What the state still happens to hold can be read all the same: *Going deeper*.

# %% [markdown]
# ## 7 · Clipping
#
# A window limits how many Jacobians are multiplied. But what if their product explodes within a window? Then a single update can throw the weights far off, and undo hours of training. The direction of such a gradient
# may still be of use; its *length* is not. So *clipping by norm* (Pascanu et al. 2013) shortens it. Let $g$ be the gradients of *all* parameters together as one long vector, and $c$ the largest length that is allowed:
#
# $$ g \leftarrow g \cdot \min\Big(1, \frac{c}{\lVert g \rVert}\Big), \qquad \lVert g \rVert = \sqrt{\textstyle\sum_p \lVert g_p \rVert^2} \quad \text{over all parameters } p. $$
#
# Here is our small network once more, with a loss that is 100 times too large, and $c = 1$. `before` and `after` are $g$, `norm` is what `clip_grad_norm_` returns:

# %%
matrices = [W_ih, W_hh, W_ho]
for W in matrices:
    W.grad = None
(100 * L).backward(retain_graph=True)
before = torch.cat([W.grad.flatten() for W in matrices])

norm = nn.utils.clip_grad_norm_(matrices, max_norm=1.0)
after = torch.cat([W.grad.flatten() for W in matrices])

cosine = F.cosine_similarity(before, after, dim=0)
print(f"returned {norm:.1f}, length now {after.norm():.2f}, cosine {cosine:.2f}")

# %% [markdown]
# One factor for all parameters keeps the direction: the cosine is 1. (Limiting every entry by itself, `clip_grad_value_`, can turn the gradient.) Log the number that is *returned*, the norm before. The norm afterwards can never exceed $c$, so it would look healthy whatever happens.
#
# ### Where clipping decides
#
# Does it matter? A tanh network reads one of five symbols, then 19 more and a question mark, and must name the first. Guessing is right one time in five. $W_{hh}$ starts from a rotation, so that a gradient can reach the first step. We train twice with plain SGD. The two runs differ in one line, the one between `backward()` and `step()`:

# %%
def recall_the_first(clip, rate=0.3, steps=600):
    torch.manual_seed(0)
    layer, head = RNN(6, 50), nn.Linear(50, 5)  # five symbols and the question mark
    nn.init.orthogonal_(layer.weight_hh_l0)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=rate)
    for _ in tqdm(range(steps), leave=False):
        symbols = torch.randint(5, (32, 21))  # (B, T)
        answers = symbols[:, 0].clone()
        symbols[:, 20] = 5  # the question mark
        output, _ = layer(F.one_hot(symbols, 6).float())  # (B, T, D)
        logits = head(output[:, -1])  # (B, 5)
        loss = F.cross_entropy(logits, answers)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(parameters, max_norm=1.0)
        optimizer.step()
    return (logits.argmax(dim=1) == answers).double().mean().item()  # of the last 32


# %% tags=["nbval-ignore-output"]
recalled_clipped = recall_the_first(clip=True)
recalled_unclipped = recall_the_first(clip=False)
print(f"right with clipping {recalled_clipped:.2f}, without {recalled_unclipped:.2f}")

# %% tags=["fold"]
# @title One run with clipping, one without
claim(
    "With clipping more than 95 in 100 of the last answers are right, without it fewer than 80.",
    recalled_clipped > 0.95 and recalled_unclipped < 0.8,
)

# %% [markdown]
# That was one seed at one learning rate. The recorded runs train such a network at five rates, with five seeds each:

# %%
figures.clipping()

# %% tags=["fold"]
# @title In numbers, in every recorded run
recalled = {
    (name, rate): ledger.values("bptt-clipping", f"{name}, rate {rate:g}", "accuracy")
    for name in ("not clipped", "clipped at 1")
    for rate in figures.RATES
}
solved = {key: sum(accuracy > 0.95 for accuracy in values) for key, values in recalled.items()}
claim(
    "More than 95 % are recalled by 8 of the 25 clipped runs, and by 1 of the 25 others; at rate 0.3, by five of five, and by none.",
    sum(solved["clipped at 1", rate] for rate in figures.RATES) == 8
    and sum(solved["not clipped", rate] for rate in figures.RATES) == 1
    and solved["clipped at 1", 0.3] == 5
    and solved["not clipped", 0.3] == 0,
    **{f"{name}, rate {rate:g}": values for (name, rate), values in recalled.items()},
)
claim(
    "Clipping does not rescue a rate that is too large (1) or too small (0.01): below 0.7 in every run.",
    max(recalled["clipped at 1", 1.0] + recalled["clipped at 1", 0.01]) < 0.7,
)

# %% [markdown]
# On this task and with this budget, 8 of 25 clipped runs succeeded, against 1 of 25 without; at rate 0.3, five against none. A usual rule for $c$: log the norm for a while, and choose a value that is rarely exceeded while training is calm. Here, at rate 0.3, the largest norm of six steps nearly always exceeded $c = 1$ until the task was learned: by that rule 1 was too small, and it worked all the same. For *vanished* gradients clipping can do nothing.
#
# The runs of the last three sections' figures are `bptt_activations`, `bptt_truncation` and `bptt_clipping` in `course_lib/experiments/gradients_through_time.py`.

# %% [markdown]
# ## 8 · Errors you will meet
#
# What goes wrong in practice? **A state that is not detached** goes from window to window with its whole history. The second `backward` then runs into the graph of the first, which has been freed:

# %%
pieces = draw(1, 12, 2).float().split(6, dim=1)  # two windows of 6 steps


def train_on(pieces, cut, retain_graph=False):
    layer, state = nn.RNN(2, 3, batch_first=True), None
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for piece in pieces:
        if cut and state is not None:
            state = state.detach()
        output, state = layer(piece, state)
        optimizer.zero_grad()
        output.square().sum().backward(retain_graph=retain_graph)
        optimizer.step()
    return "trained"


for retain_graph in (False, True):
    try:
        train_on(pieces, cut=False, retain_graph=retain_graph)  # wrong
    except RuntimeError as error:
        print(str(error)[:72], "...")
print("with detach:", train_on(pieces, cut=True))  # repaired

# %% [markdown]
# The first message goes on to propose `retain_graph=True`. Do not use it: it keeps every window's graph, so memory and time grow, and here it fails as well, since the optimizer has changed weights that the old graph needs.
#
# **One transpose too many.** $W_{hh}$ is square, so `da @ W_hh.T` has the right shape and raises no error. A comparison with autograd finds it:

# %%
compare("dh2, W_hh.T", do2 @ W_ho + da3 @ W_hh.T, h2)  # wrong
compare("dh2, W_hh", do2 @ W_ho + da3 @ W_hh, h2)  # repaired

# %% [markdown]
# **Clipping in the wrong place.** Clip after `optimizer.step()`, and the step has already been taken with the full gradient; before `backward()`, and this step's gradients are not there yet. With plain SGD the weights should move by at most the rate times $c$, here $0.1 \cdot 1$:

# %%
for clip_first in (False, True):  # wrong, then repaired
    W = nn.Parameter(W_hh.detach().clone())
    W.grad = 500 * dW_hh.detach()  # a gradient that exploded
    optimizer = torch.optim.SGD([W], lr=0.1)
    if clip_first:
        nn.utils.clip_grad_norm_([W], max_norm=1.0)
    optimizer.step()
    if not clip_first:
        nn.utils.clip_grad_norm_([W], max_norm=1.0)
    print(f"clip first: {clip_first}, moved by {(W - W_hh).norm().item():.1f}")

# %% [markdown]
# *That was the last section. Exercises 4.4 to 4.7 follow, 105 minutes in all, and then the summary.*
#
# ---

# %% [markdown]
# ### Exercise 4.4 · Derive: what a window keeps
#
# Difficulty ●●○○○ · 10 minutes · needs section 6
#
# A sequence has 12 steps, each with a loss, and is cut into windows of 4 (steps 1 to 4, 5 to 8, 9 to 12). Take all pairs (t, t - k) of steps. What fraction of them lies within
# one window for lag k = 1, for k = 3 and for k = 4? Give three fractions, to three digits at least (let Python divide: `1 / 2`).

# %% nbgrader={"grade": false, "grade_id": "ex04-4-kept-pairs", "locked": false, "schema_version": 3, "solution": true, "task": false}
shares = ...  # (lag 1, lag 3, lag 4)
### BEGIN SOLUTION
# lag k: 12 - k pairs in all, 4 - k in each of the three windows
shares = (9 / 11, 3 / 9, 0)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex04-4-kept-pairs-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch04.kept_pairs(shares)

# %% [markdown]
# ### Exercise 4.5 · Find the bug: a window that forgets
#
# Difficulty ●●●○○ · 20 minutes · needs section 6
#
# This function runs a layer step by step, as you have to when a step's input depends on the previous output. It was tested: the losses are right, the state is carried, memory stays
# small. The cell after it compares gradients for three windows. Something is odd.


# %%
def buggy_window_backward(layer, loss_fn, x, y, window):
    """Truncated backpropagation; adds to .grad and returns the loss."""
    total, state = 0.0, None
    for start in range(0, x.shape[1], window):
        outputs = []
        for t in range(start, min(start + window, x.shape[1])):
            if state is not None:
                state = state.detach()  # keep the graph small
            output, state = layer(x[:, t : t + 1], state)
            outputs.append(output)
        loss = loss_fn(torch.cat(outputs, dim=1), y[:, start : start + window])
        loss.backward()
        total += loss.item()
    return total


# %%
def squares(output, targets):
    return (output - targets).square().sum()


for window in (1, 5, 20):
    torch.manual_seed(3)
    small = nn.RNN(2, 3, batch_first=True, dtype=torch.float64)
    series, wanted = draw(4, 20, 2), draw(4, 20, 3, seed=1)
    sums = buggy_window_backward(small, squares, series, wanted, window)
    norm_hh = small.weight_hh_l0.grad.norm()
    print(f"window {window:2}: loss {sums:.0f}, norm of dL/dW_hh {norm_hh:.1f}")

# %% [markdown]
# Which of the two numbers should change from line to line, and which should not? Repair the function (it may also read a whole window at once), without `bptt.truncated_backward`. Inputs are float64, and five digits are compared.


# %% nbgrader={"grade": false, "grade_id": "ex04-5-window-backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def window_backward(layer, loss_fn, x, y, window):
    """Truncated backpropagation through time, window by window.

    Args:
        layer: recurrent layer, batch first, whose state is one tensor: layer(x (B, C, I), state) -> (output (B, C, D), state).
        loss_fn: loss_fn(output (B, C, D), targets (B, C, ...)) -> scalar, summed over the C steps of a window.
        x: (B, T, I).
        y: (B, T, ...).
        window: steps in a window; the last one may be shorter.

    Returns:
        float, the loss summed over all windows. The gradients are added to the parameters' .grad.
    """
    ### BEGIN SOLUTION
    total, state = 0.0, None
    for start in range(0, x.shape[1], window):
        outputs = []
        if state is not None:
            state = state.detach()  # once a window, at its beginning
        for t in range(start, min(start + window, x.shape[1])):
            output, state = layer(x[:, t : t + 1], state)
            outputs.append(output)
        loss = loss_fn(torch.cat(outputs, dim=1), y[:, start : start + window])
        loss.backward()
        total += loss.item()
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex04-5-window-backward-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch04.window_backward(window_backward)

# %% [markdown]
# ### Exercise 4.6 · Assemble: a training step by hand
#
# Difficulty ●●●●○ · 45 minutes · needs exercise 4.3 and section 7
#
# Everything in one function, for the leaky network of exercise 4.3 and one window of a stream: forward, loss, backward by hand, clip by the common norm, update with plain gradient descent, hand on the state. You may call your `leaky_backward`. Neither autograd nor torch's
# clipping may be used. Inputs are float64, and five digits are compared.


# %% nbgrader={"grade": false, "grade_id": "ex04-6-training-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def training_step(weights, h_0, x, y, alpha, rate, max_norm):
    """One step of gradient descent on one window, without autograd.

    Args:
        weights: list of W_ih (D, I), W_hh (D, D), W_ho (V, D), b (D,); they stay as they are.
        h_0: (B, D) the state after the window before.
        x: (B, T, I) inputs.
        y: (B, T) int64, the right symbols; the loss is the mean cross-entropy over all steps and sequences.
        alpha: the fraction of the state that is replaced.
        rate: learning rate.
        max_norm: if all gradients together are longer than this, they are shortened to it.

    Returns:
        new_weights: list of four new tensors, in the same order.
        h_T: (B, D) the state to start the next window from.
        loss: float, before the update.
    """
    ### BEGIN SOLUTION
    W_ih, W_hh, W_ho, b = weights
    h, c = [h_0], []
    for x_t in x.unbind(dim=1):
        c.append(torch.tanh(x_t @ W_ih.T + h[-1] @ W_hh.T + b))
        h.append((1 - alpha) * h[-1] + alpha * c[-1])
    logits = torch.stack(h[1:], dim=1) @ W_ho.T  # (B, T, V)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()).item()

    do = (torch.softmax(logits, dim=2) - F.one_hot(y, len(W_ho))) / y.numel()
    gradients, from_later = [torch.zeros_like(weight) for weight in weights], 0.0
    for t in range(x.shape[1], 0, -1):
        dh = do[:, t - 1] @ W_ho + from_later
        da = alpha * dh * (1 - c[t - 1] ** 2)
        terms = da.T @ x[:, t - 1], da.T @ h[t - 1], do[:, t - 1].T @ h[t], da.sum(dim=0)
        gradients = [total + term for total, term in zip(gradients, terms, strict=True)]
        from_later = da @ W_hh + (1 - alpha) * dh

    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
    factor = max_norm / norm if norm > max_norm else 1.0
    new_weights = [W - rate * factor * dW for W, dW in zip(weights, gradients, strict=True)]
    return new_weights, h[-1], loss
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex04-6-training-step-check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
ch04.training_step(training_step)

# %% [markdown]
# When the check passes, let it learn: run `watch_it_learn(training_step)` in a cell of your own. It should be right on more than 95 % of a new stream, with a lag of 3.


# %% tags=["fold"]
# @title watch_it_learn: train with your function
def watch_it_learn(step, alpha=0.7, lag=3, windows=150, units=24):
    """Train on a stream in windows of 10 steps, then the accuracy in percent on ten windows more."""
    data = torch.Generator().manual_seed(0)
    weights = [draw(units, 5, seed=1) / 2, draw(units, units, seed=2) / units**0.5]
    weights += [draw(5, units, seed=3) / units**0.5, torch.zeros(units, dtype=torch.float64)]
    stream, right = torch.randint(5, (32, lag + 10 * (windows + 10)), generator=data), []
    state = torch.zeros(32, units, dtype=torch.float64)
    for k in tqdm(range(windows + 10), leave=False):
        inputs = F.one_hot(stream[:, lag + 10 * k :][:, :10], 5).double()
        answers = stream[:, 10 * k :][:, :10]
        if k >= windows:  # the test: run forward with the weights as they are
            h = state
            for t in range(10):
                c = torch.tanh(inputs[:, t] @ weights[0].T + h @ weights[1].T + weights[3])
                h = (1 - alpha) * h + alpha * c
                right.append((h @ weights[2].T).argmax(1) == answers[:, t])
        new_weights, state, loss = step(weights, state, inputs, answers, alpha, 1.0, 1.0)
        weights = new_weights if k < windows else weights
        if k in (0, 20, 60, windows - 1):
            print(f"window {k + 1}: loss {loss:.2f}")
    return 100 * torch.cat(right).double().mean().item()


# %% [markdown]
# ### Exercise 4.7 · Explore and explain: what decides the horizon?
#
# Difficulty ●●●○○ · 30 minutes · needs section 5
#
# `horizon` measures how many steps back the gradient first falls below a hundredth of its length at the last step (it looks 1,000 steps back, and gives 1000 if the gradient is still longer). Change the `radius` (0.8 to 1.5), the `input_scale` (0 to 3) and `nonlinearity` ("tanh" or "linear"). `mean_slope` is the mean of tanh's slope, $1 - h^2$.


# %% tags=["fold"]
# @title The measurement: horizon
def norms_by_lag(W_hh, inputs, nonlinearity):
    """Norms of d L_T / d h_(T-k), k = 0 ... T - 1, relative to k = 0."""
    eye = torch.eye(len(W_hh), dtype=inputs.dtype)  # W_ih and W_ho are the identity
    cache = bptt.forward_pass(inputs, eye, W_hh, eye, nonlinearity=nonlinearity)
    do = torch.zeros_like(cache.o)
    do[:, -1] = 1.0  # only the last step has a loss, the sum of its output
    walk = bptt.backward_pass(do, cache, W_hh, eye, nonlinearity=nonlinearity)
    norms = walk.h[:, 1:].norm(dim=-1)
    return (norms / norms[:, -1:]).mean(0).flip(0)


def horizon(radius, input_scale, nonlinearity="tanh", steps=1000):
    """First lag at which less than 1/100 arrives (else `steps`), and the mean slope."""
    W_hh = radius * bptt.random_orthogonal(32, torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs, eye = input_scale * draw(8, steps + 1, 32), torch.eye(32, dtype=torch.float64)
    norms = norms_by_lag(W_hh, inputs, nonlinearity)
    h = bptt.forward_pass(inputs, eye, W_hh, eye, nonlinearity=nonlinearity).h[:, 1:]
    below = [k for k, norm in enumerate(norms.tolist()) if norm < 0.01]
    slope = (1 - h.square()).mean().item() if nonlinearity == "tanh" else 1.0
    return (below or [steps])[0], slope


# %%
radius, input_scale, nonlinearity = 0.9, 0.3, "tanh"  # your turn
steps_back, mean_slope = horizon(radius, input_scale, nonlinearity)
print(f"horizon {steps_back} steps, mean slope {mean_slope:.2f}")

# %% [markdown]
# Explain in a few sentences: (a) What horizon does the radius alone predict for a network without tanh, as a formula? (b) Why do larger inputs shorten the horizon of a tanh network, though they do not touch $W_{hh}$?
# (c) With inputs of 0, how does the horizon behave around radius 1, and why? (d) You must learn a lag of 100. Suppose you tune the radius so that the product of Jacobians is about 1. Why is that not a lasting solution?

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex04-7-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) $\rho^k < 0.01$ first holds at $k = \ln 0.01 / \ln \rho$, rounded up: 44 steps for 0.9, 21 for 0.8, 459 for 0.99; never for $\rho \ge 1$.
#
# (b) Large inputs push the states towards $\pm 1$, where tanh is flat: $1 - h^2$ is small in every step and multiplies the gradient. The product of 100 such factors is tiny even if $W_{hh}$ preserves lengths.
#
# (c) With no input and $h_0 = 0$ the state stays 0, tanh' is exactly 1 and the network behaves like a linear one: the horizon is $\ln 0.01/\ln\rho$ below 1, grows without bound towards 1, and has no end from 1 on.
#
# (d) The product depends on the states, so on the data and on weights that training changes at every step; one per cent off in each factor is a factor of $e$ after 100 steps. And directions differ: a product may preserve some and lose others.
# What is wanted is a path whose factor the network can set near 1 and hold there: the LSTM's cell.
# ### END SOLUTION

# %% [markdown]
# When you have written your answer, paste it in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch04.what_decides.compare(...)

# %% [markdown]
# ## Summary
#
# 1. Unrolled, a recurrent network is a deep network with shared weights. One walk from T to 1, one vector-Jacobian product per line, gives all gradients; each weight's gradient is a sum over the steps.
# 2. The loss of step k reaches $h_t$ through a product of $k - t$ Jacobians $\mathrm{diag}(1 - h^2)\, W_{hh}$. Unless the factor per step stays near 1, it vanishes or explodes exponentially with the lag.
# 3. The backward pass needs all states, so memory grows with T. Truncation bounds it: carry the state's numbers, detach its gradient.
# 4. Truncation is biased towards near dependencies: no gradient of an answer reaches the steps before its window.
# 5. Clipping by the common norm bounds a step without turning it. It limits the damage of an explosion; it does nothing for what has vanished.
#
# ## Where next
#
# *Chapter 05* builds a state with a path on which the gradient passes no matrix and no tanh, and gates that decide how much of it stays. *Chapter 07* goes further: with attention every step is one step away from every other.
#
# ## References
#
# - P. Werbos, *Backpropagation through time: what it does and how to do it*, Proceedings of the IEEE 78(10), 1990.
# - R. Williams, J. Peng, *An efficient gradient-based algorithm for on-line training of recurrent network trajectories*, Neural Computation 2, 1990: truncated BPTT. Ours is their BPTT(h; h') with h = h' = w.
# - Y. Bengio, P. Simard, P. Frasconi, *Learning long-term dependencies with gradient descent is difficult*, IEEE Transactions on Neural Networks 5(2), 1994.
# - R. Pascanu, T. Mikolov, Y. Bengio, *On the difficulty of training recurrent neural networks*, ICML 2013, arXiv 1211.5063: equations 3 to 5, section 2.1 (the bound), algorithm 1 (clipping).
# - C. Tallec, Y. Ollivier, *Unbiasing truncated backpropagation through time*, 2017, arXiv 1705.08209.
# - A. Saxe, J. McClelland, S. Ganguli, *Exact solutions to the nonlinear dynamics of learning in deep linear neural networks*, 2014, arXiv 1312.6120.
# - A. Zhang et al., *Dive into Deep Learning*, section 9.7, https://d2l.ai/chapter_recurrent-neural-networks/bptt.html; A. Karpathy, *Building makemore, part 4: becoming a backprop ninja*, https://www.youtube.com/watch?v=q8SA3rM6ckI.
# - Video: *Recurrent Neural Networks*, MIT 6.S191, https://www.youtube.com/watch?v=SEnXr6v2ifU.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts; each answers one question.

# %% [markdown] tags=["deeper"]
# ### How do other books write it?
#
# **Columns.** Many books write an example as a column: $h_t = W_{ih} x_t + W_{hh} h_{t-1}$. The weights are the same matrices. In the gradients the transposes change places: our row $g\, W_{hh}$ is their column $W_{hh}^\top g$, and the product of Jacobians reads from the other side. Some call the weights $W_{hx}$ and $W_{qh}$, or $U$, $W$ and $V$.
#
# **Indices.** The expanded sum of exercise 4.2 is also printed as
#
# $$ \frac{\partial L}{\partial h_t} = \sum_{i=t}^{T} (W_{hh}^\top)^{T-i}\, W_{ho}^\top\, \frac{\partial L}{\partial o_{T+t-i}} \quad \text{(columns)}. $$
#
# Put $k = T + t - i$, so that the power becomes $k - t$, and transpose: it is yours.
#
# **Truncation.** *Dive into Deep Learning* calls the bias of truncation desirable: it favours simpler and more stable models. The best-known variant of Williams and Peng goes back $w$ steps from *every* step, with windows that overlap. Every loss then sees the same distance, at a higher cost than with our separate windows.

# %% [markdown] tags=["deeper"]
# ### Is there a check that needs no calculus?
#
# Autograd and our walk share an idea, the chain rule. *Finite differences* do not use it: move one weight a little, in both directions, and see how the loss changes. It is slow (ours tries two distances in each direction, so four runs for each number), but it checks any smooth function, as long as the numbers are float64.


# %%
def loss_with(moved_W_hh):
    _, logits = forward(x, W_ih, moved_W_hh, W_ho, h0)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


by_differences = bptt.finite_differences(loss_with, W_hh.detach())
gap = (by_differences - dW_hh).abs().max().item()
print("differs from our walk by less than 1e-10:", gap < 1e-10)

# %% [markdown]
# The library has the same walk, tested: `bptt.forward_pass` and `bptt.backward_pass`. They can also leave out tanh, and cut the walk into windows.

# %%
cache = bptt.forward_pass(x, W_ih, W_hh, W_ho, nonlinearity="tanh")
do = (torch.softmax(cache.o, dim=2) - F.one_hot(y, V)) / (B * T)
walk = bptt.backward_pass(do, cache, W_hh, W_ho, nonlinearity="tanh")
compare("dW_hh, the library", walk.W_hh, W_hh)
compare("dh0, the library", walk.h[:, 0], h0)

# %% [markdown] tags=["deeper"]
# ### What is kept for the backward pass, and what would it cost not to?
#
# $W_{ih}$ needs $x_t$, $W_{hh}$ needs $h_{t-1}$, $W_{ho}$ and tanh' need $h_t$. The walk needs the *last* states first. Either all of them are kept, or they are computed again, each from $h_0$: how many more steps does that take for 1,000?

# %% tags=["fold", "reveal"]
# @title Steps and memory, with a cache and without
def kept(steps, batch=2, units=8):
    """How many numbers autograd keeps for the backward pass (each storage counted once)."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    weights = [draw(*shape).requires_grad_() for shape in ((units, 3), (units, units), (4, units))]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        bptt.forward_pass(draw(batch, steps, 3), *weights, nonlinearity="tanh").o.square().sum()
    return sum(t.untyped_storage().nbytes() // t.element_size() for t in storages.values())


table(
    ["steps T", "forward, states kept", "additional, if each state is computed again"],
    [[steps, steps, steps * (steps - 1) // 2] for steps in (10, 100, 1000)],
)
kept_numbers = {steps: kept(steps) for steps in (40, 50, 100, 200, 400)}
claim(
    "Twice as many steps, twice as many numbers kept (within 10 %); a window of 40 keeps a tenth of what 400 steps keep (within a fifth).",
    all(1.8 < kept_numbers[b] / kept_numbers[a] < 2.2 for a, b in pairwise((50, 100, 200, 400)))
    and 0.08 < kept_numbers[40] / kept_numbers[400] < 0.12,
    **{f"T = {steps}": number for steps, number in kept_numbers.items()},
)

# %% [markdown]
# There is a middle way, *checkpointing*: keep every 30th state of 1,000, and compute the others again from there, once. It costs about one more forward pass, and keeps some 60 states at a time instead of 1,000.

# %% [markdown] tags=["deeper"]
# ### How far is a truncated gradient from the full one?
#
# Compare the truncated gradient with the full one: by the cosine of the angle between them, and by the ratio of their lengths. The network is the chapter's, with a lag of 8. With windows of 4, which has the larger angle: an untrained network, or one that has learned the task with windows of 32?

# %% tags=["reveal"]
figures.truncation_bias()

# %% tags=["fold", "reveal"]
# @title In numbers: the cosine at windows of 2 and of 4
cosines = {
    (name, w): [
        run[which.index(w)]
        for which, run in zip(
            ledger.values("bptt-truncation", f"bias, {name}", "windows"),
            ledger.values("bptt-truncation", f"bias, {name}", "cosine"),
            strict=True,
        )
    ]
    for name in ("untrained", "trained")
    for w in (2, 4)
}
claim(
    "In each of three seeds the cosine of the untrained network is above 0.8 at w = 2 and above 0.9 at w = 4; that of the trained one is below 0.4 and below 0.7.",
    min(cosines["untrained", 2]) > 0.8
    and min(cosines["untrained", 4]) > 0.9
    and max(cosines["trained", 2]) < 0.4
    and max(cosines["trained", 4]) < 0.7,
    **{f"{name}, w = {w}": values for (name, w), values in cosines.items()},
)

# %% [markdown]
# If you read that truncation is harmless because truncated and full gradients nearly agree, ask whether the network was trained. In an untrained one the far gradients have vanished anyway. The far terms, which could teach it to remember, are part of that small difference.

# %% [markdown] tags=["deeper"]
# ### Is a lag that fits into no window out of reach?
#
# Only the gradient of the *recurrence* is cut; the output layer's is whole. So if a state happens to hold the past, the output layer can learn to read it, whatever the window.
#
# We test this with the lag of 6 and the windows of 6 of the opening. The recurrence starts as torch draws it, or as a rotation times 0.95, which keeps traces of many steps. Then either everything is trained, or the recurrence stays *frozen* and only the output layer learns. **Rank the four networks by accuracy, best first.**

# %% tags=["reveal"]
figures.readout()

# %% tags=["fold", "reveal"]
# @title In numbers: reading out, and training everything
readout = {
    name: ledger.values("bptt-readout", name, "accuracy")
    for name in ("default, frozen", "default, trained", "rotation, frozen", "rotation, trained")
}
claim(
    "In each of three seeds the frozen rotation is right more than 9 times in 10; trained with windows of 6, it ends below 0.35; and torch's recurrence, too, does better frozen than trained.",
    min(readout["rotation, frozen"]) > 0.9
    and max(readout["rotation, trained"]) < 0.35
    and min(readout["default, frozen"]) > max(readout["default, trained"]),
    **readout,
)

# %% [markdown]
# The frozen rotation won by far, and both frozen networks beat their trained twins. (Reading from a fixed recurrence is the idea of *reservoir computing*. And windows of 6 end a little above 0.2, in the opening too.) Training did worse than fail to build a memory: in these runs, training through windows of 6 destroyed the one that the rotation had. So, precisely: **no
# answer sends a gradient to the steps before its window. What the state still holds at the window's start can be used, by the output layer and by the recurrence.**

# %% [markdown] tags=["deeper"]
# ### Do the first powers of a matrix follow its radius?
#
# For a rotation they do. In general the radius rules the *long run*. What a single step can do depends on the singular values, which lie between the least and the most by which a matrix stretches a vector. A matrix with random entries, scaled to radius 1:

# %%
gaussian = bptt.scale_to_radius(draw(32, 32, seed=7), 1.0)
stretch = torch.linalg.svdvals(gaussian)
print(f"radius 1.0, one step stretches by {stretch.min():.2f} to {stretch.max():.2f}")

# %% [markdown]
# One bound always holds: a step back multiplies the length of a gradient by at most the largest slope times the largest singular value of $W_{hh}$ (Pascanu et al. 2013). If at every step this product is at most, say, 0.9, the gradient must vanish; above 1 it *may* explode, but need not. A single unit with weight 4 and no input settles near -1 or 1 from any start but 0, and there each step back multiplies the gradient by about 0.005.
#
# With tanh the two kinds of matrices differ near the border between vanishing and exploding. From the ledger (64 units, small inputs, three seeds), the factor for each step back, measured from lag 50 to the last:

# %% tags=["fold"]
# @title The factor for each step, two kinds of matrices
rates = {
    (kind, radius): ledger.values("bptt-lag", f"tanh, {kind}, radius {radius}", "rate")
    for kind in ("orthogonal", "gaussian")
    for radius in (0.9, 1.0, 1.1, 1.5)
}
table(
    ["radius", "rotation times the radius", "random entries"],
    [
        [radius, *(", ".join(f"{rate:.3f}" for rate in rates[kind, radius]) for kind in ("orthogonal", "gaussian"))]
        for radius in (0.9, 1.0, 1.1, 1.5)
    ],
)
claim(
    "At radius 1.1 the gradient shrinks with each of the three rotations, and with none of the three random matrices.",
    max(rates["orthogonal", 1.1]) < 1 <= min(rates["gaussian", 1.1]),
)

# %% [markdown]
# At 1.1 the random matrices sit almost exactly on the border: factors of 1.000 to 1.015. So at radius 1.1 the gradient fades with these rotations, and hardly changes, or slowly grows, with these random matrices.

# %% [markdown] tags=["deeper"]
# ### With torch's initialisation, how far back and down does the gradient reach?
#
# Stacked layers (chapter 03) add a second direction: a gradient goes back in time *and* down. Here are four layers and 40 steps, with a loss at the last step of the top layer only, once as torch initialises them,
# once with rotations for $W_{hh}$. **How far back does the gradient reach in the top layer of each, and does it reach further back in the lowest layer, or less far?**

# %% tags=["fold"]
# @title Measure: the gradient by time and by depth
maps = {}
for initial in ("default", "orthogonal"):
    generator = torch.Generator().manual_seed(5)
    stack = stacked(4, 16, 64, initial, generator)  # four one-layer RNNs
    below = torch.randn(16, 40, 16, generator=generator)
    maps[initial] = bptt.gradient_map(stack, below, lambda h: h[:, -1].sum())  # (layers, T)

# %% tags=["reveal"]
figures.gradient_by_time_and_depth(maps)

# %% tags=["fold", "reveal"]
# @title In numbers: what is left after 39 steps
default_left, orthogonal_left = (
    ledger.values("bptt-map", f"{initial} start", "first_over_last") for initial in ("default", "orthogonal")
)  # norm at step 1 over norm at step 40, for each seed and layer
claim(
    "In each of three seeds and in every layer, torch's initialisation leaves less than a millionth of the gradient after 39 steps, the orthogonal one more than a thousandth, most in the lowest layer.",
    all(fraction < 1e-6 for run in default_left for fraction in run)
    and all(min(run) > 1e-3 and run[0] == max(run) for run in orthogonal_left),
    orthogonal_from_bottom_to_top=orthogonal_left[0],
)
drawn = [(2 * torch.rand(64, 64, generator=torch.Generator().manual_seed(seed)) - 1) / 8 for seed in range(3)]
claim(
    "Drawn as torch draws it, $W_{hh}$ of 64 units has a radius between 0.5 and 0.7 and a largest singular value above 1, in each of three draws.",
    all(0.5 < torch.linalg.eigvals(W).abs().max() < 0.7 and torch.linalg.svdvals(W).max() > 1 for W in drawn),
    radius=[torch.linalg.eigvals(W).abs().max().item() for W in drawn],
)

# %% [markdown]
# The default network's gradient reaches back some ten steps. Its largest singular value is a little above 1, so the bound of the last part alone would not tell you.

# %% [markdown] tags=["deeper"]
# ### What do the slopes look like, and what becomes of the states?
#
# Section 5 compared three functions. These are the slopes that a step back multiplies by:

# %%
figures.slopes()

# %% [markdown]
# ReLU's slope is 0 or 1: a unit that is on passes the gradient on as it is. Tanh bounds the *state*, to between -1 and 1. With ReLU nothing does, and at a large radius the forward pass explodes along with the gradient:

# %% tags=["fold"]
# @title The ReLU states of section 5
largest = ledger.values("bptt-activations", "ReLU, radius 2.0", "largest_state")
claim(
    "At radius 2 the ReLU states themselves grow beyond a billion in 60 steps.",
    min(largest) > 1e9,
    largest_state=[f"{size:.1e}" for size in largest],
)
