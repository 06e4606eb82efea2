# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 220
#     needs: chapter 03, the chain rule, matrix products
# ---

# %% [markdown]
# # 04 · Backpropagation through time
#
# Two copies of one network read an endless stream of five symbols. At every step they must output the symbol of **six steps
# ago**. Initial weights, data, loss and optimizer are the same. They differ in one thing:
# the first cuts the stream into windows of 24 steps, the second into windows of 6 (so its weights move four times as often). At the end of a window both carry the state over
# with `.detach()`, the cut that you find in nearly every training script; it changes no number of a forward pass. **How often is each right**, after the same number of symbols? Guessing gives 1 in 5.

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("gradient_path")

# %% tags=["setup", "fold"]
# @title Imports
import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import bptt
from course_lib.datasets import synthetic
from course_lib.exercises import ch04
from course_lib.experiments.gradients_through_time import stacked
from course_lib.notebook import claim, diagrams, ledger, predict, show_source, table
from course_lib.notebook.figures import ch04 as figures
from course_lib.rnn import RNN

_ = torch.manual_seed(0)


def draw(*shape, seed=0):
    """Random float64 numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

# %% tags=["fold"]
# @title The test: a new stream, never cut
V, D, LAG = 5, 64, 6  # symbols, width of the state, steps to remember


def on_a_new_stream(layer, head):
    """Fraction of right answers on 64 streams of 200 steps."""
    test = torch.randint(V, (64, LAG + 200))
    with torch.no_grad():
        right = head(layer(F.one_hot(test[:, LAG:], V).float())[0]).argmax(-1) == test[:, :-LAG]
    return right[:, LAG:].float().mean().item()


# %%
guess_six = predict("the accuracy with windows of 6 steps, from 0 to 1", ...)


# %%
def repeat_after(window, symbols=9600, B=16):
    torch.manual_seed(1)
    layer, head = RNN(V, D), nn.Linear(D, V)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=4e-3)
    stream, state = torch.randint(V, (B, LAG + symbols)), None
    for start in tqdm(range(0, symbols, window), leave=False):
        x = F.one_hot(stream[:, LAG + start :][:, :window], V).float()
        y = stream[:, start : start + window]  # the symbol of six steps ago
        output, state = layer(x, bptt.detached(state))  # the one line
        loss = F.cross_entropy(head(output).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return on_a_new_stream(layer, head)


accuracy_24, accuracy_6 = repeat_after(window=24), repeat_after(window=6)

# %% tags=["fold", "reveal"]
# @title Right answers after windows of 24 and of 6 steps
guess_six.compare(round(accuracy_6, 2))
claim(
    "With windows of 24 steps the network is right more than 9 times in 10; with windows of 6, fewer than 4 in 10.",
    accuracy_24 > 0.9 and accuracy_6 < 0.4,
    **{"accuracy with windows of 24": accuracy_24, "of 6": accuracy_6},
)

# %% [markdown]
# No error, no warning, and a state that was carried on without a gap. What was missing is invisible in a forward pass: the
# path on which the loss could have told the network, six steps before, what to remember. This chapter walks that path, with
# pencil, code and measurements: how a gradient goes back through time, why it shrinks or explodes on its way, and what two
# common cures, truncation and clipping, do to it.
#
# ## You will be able to
#
# 1. derive the gradients of a recurrent network, step by step and as one expanded sum (exercises 4.1, 4.2);
# 2. write its backward pass yourself, for a network that torch does not have, and show that it is right (exercise 4.3);
# 3. predict from a matrix' eigenvalues and from tanh' how fast gradients vanish or explode, and measure it (exercise 4.7);
# 4. truncate without losing the state, and say which dependencies a window cannot learn (exercises 4.4, 4.5);
# 5. clip a gradient without turning it (exercise 4.6).
#
# `B` sequences, `T` steps, `I` numbers in an input, `D` in a state, `Q` in an output. Steps count from 1 and $h_0$ is the initial state. In
# tensors, `h[:, t]` is $h_t$ (its index 0 is $h_0$), while `x[:, t - 1]` is $x_t$: inputs and outputs have no index 0.

# %% [markdown]
# ## 1 · Three steps, forward
#
# We begin with a network that is *linear*: no tanh and no bias. What we find will hold with tanh, with one factor more.

# %%
diagrams.show("bptt_graph")

# %% [markdown]
# With $x_t$ of shape (B, I), $h_t$ (B, D), $o_t$ (B, Q), and weights $W_{hx}$ (D, I), $W_{hh}$ (D, D), $W_{qh}$ (Q, D):
#
# $$ h_t = x_t W_{hx}^T + h_{t-1} W_{hh}^T, \qquad o_t = h_t W_{qh}^T, \qquad L = \frac1{BT} \sum_{b=1}^B \sum_{t=1}^T \ell(o_{bt}, y_{bt}). $$
#
# $\ell$ is the loss of one output $o_{bt}$ (row b of $o_t$) against its target; here it is $\frac12 \lVert o_{bt} - y_{bt} \rVert^2$.
#
# **Rows or columns?** Here, as in torch, an example is a *row* and is multiplied from the left. Many books, and the tutorial
# behind this chapter, write it as a column: $h_t = W_{hx} x_t + W_{hh} h_{t-1}$. The weights are the same matrices. In the gradients the transposes change places: our
# $g\,W_{hh}$ (a row) is their $W_{hh}^T g$ (a column).

# %%
show_source(bptt.forward_pass)

# %% [markdown]
# It returns a *cache*: inputs, states and outputs of all steps. Why it keeps them is a question for section 3. Here is a
# network so small that you can check it in your head: every size is 1, $w_{hx} = 1$, $w_{hh} = \frac12$, $w_{qh} = 2$, all inputs 1, all targets 0.

# %%
w_hx, w_hh, w_qh = torch.ones(1, 1), torch.tensor([[0.5]]), torch.tensor([[2.0]])
tiny = bptt.forward_pass(torch.ones(1, 3, 1), w_hx, w_hh, w_qh)
tiny_loss, tiny_do = bptt.squared_loss(tiny.o, torch.zeros(1, 3, 1))
print("h_0 to h_3:", tiny.h.flatten().tolist())
print("o_1 to o_3:", tiny.o.flatten().tolist(), "  L:", round(tiny_loss.item(), 3))
print("dL/do_1 to dL/do_3:", [round(v, 3) for v in tiny_do.flatten().tolist()])

# %% [markdown]
# ## 2 · Three steps, backward
#
# Follow the vermilion arrows of the diagram. Each gradient has the shape of what it belongs to.
#
# **Outputs.** $o_t$ meets the loss once, so row b of $\frac{\partial L}{\partial o_t}$, of shape (B, Q), is $\frac1{BT} \frac{\partial \ell(o_{bt}, y_{bt})}{\partial o_{bt}}$; here $\frac1{BT} (o_{bt} - y_{bt})$.
#
# **Output weights.** $W_{qh}$ is used at every step, so its gradient has one term a step:
# $\frac{\partial L}{\partial W_{qh}} = \sum_{t=1}^T \big(\frac{\partial L}{\partial o_t}\big)^T h_t$.
#
# **The last state** is read by its output only: $\frac{\partial L}{\partial h_T} = \frac{\partial L}{\partial o_T} W_{qh}$.
#
# **Every other state** is read twice, by its output and by the next state. Two gradients meet in it, and add:
#
# $$ \frac{\partial L}{\partial h_t} = \frac{\partial L}{\partial h_{t+1}} W_{hh} + \frac{\partial L}{\partial o_t} W_{qh}, \qquad t = T-1, \ldots, 1. $$
#
# ($h_0$ makes no output: its gradient is the first term alone.)
#
# **Hidden weights.** Step t multiplies $x_t$ and $h_{t-1}$; all steps add up:
#
# $$ \frac{\partial L}{\partial W_{hx}} = \sum_{t=1}^T \Big(\frac{\partial L}{\partial h_t}\Big)^T x_t, \qquad
#    \frac{\partial L}{\partial W_{hh}} = \sum_{t=1}^T \Big(\frac{\partial L}{\partial h_t}\Big)^T h_{t-1}. $$
#
# (You may meet these two sums with "i = t" under the sign and t inside. It is t that runs, from 1 to T: the weights have no time.)

# %%
show_source(bptt.backward_pass)

# %% [markdown]
# One walk from T to 1; `slope` is 1 for a linear network, and `einsum` writes the sums of products $g^T v$ over sequences (b) and steps (t). The
# lines on `window` are for section 6.
#
# **Before you trust it:** on the small network, compute $\partial L / \partial h_3$, then $\partial L / \partial h_2$ by hand. The outputs'
# gradients stand above.

# %% tags=["reveal"]
tiny_found = bptt.backward_pass(tiny_do, tiny, w_hh, w_qh)
print("dL/dh_0 to dL/dh_3:", [round(v, 3) for v in tiny_found.h.flatten().tolist()])
print("dL/dW_hx, dL/dW_hh, dL/dW_qh:", *[round(g.item(), 3) for g in tiny_found[:3]])

# %% [markdown]
# ### By hand = autograd = finite differences
#
# Three ways to one gradient that share only the forward pass: our walk; torch's autograd; and *finite differences*, which know no calculus at all but
# move one weight a little and watch the loss. In float64 they must agree to some 10 digits, or one of them is wrong.


# %%
def loss_of(*weights, nonlinearity):
    cache = bptt.forward_pass(draw(3, 7, 2), *weights, nonlinearity=nonlinearity)
    loss, do = bptt.squared_loss(cache.o, draw(3, 7, 5, seed=1))
    return loss, do, cache


def by_hand(*weights, nonlinearity):
    _, do, cache = loss_of(*weights, nonlinearity=nonlinearity)
    walk = bptt.backward_pass(do, cache, *weights[1:3], nonlinearity=nonlinearity)
    return [*walk[:3], walk.h[:, 0]]


def by_autograd(*weights, nonlinearity):
    leaves = [w.clone().requires_grad_() for w in weights]
    return torch.autograd.grad(loss_of(*leaves, nonlinearity=nonlinearity)[0], leaves)


# %%
def by_differences(*weights, nonlinearity):
    def loss_at(i, w):  # the loss with the weight i in the place of its own
        moved = [*weights[:i], w, *weights[i + 1 :]]
        return loss_of(*moved, nonlinearity=nonlinearity)[0]

    return [
        bptt.finite_differences(lambda w, i=i: loss_at(i, w), weights[i])
        for i in range(4)
    ]


# %% tags=["fold"]
# @title Checked: three ways to the gradients
def largest_gap(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


four = [0.4 * draw(*shape, seed=3) for shape in ((4, 2), (4, 4), (5, 4))] + [draw(3, 4, seed=2)]
for kind in ("linear", "tanh"):
    hand, auto, moved_a_little = (way(*four, nonlinearity=kind) for way in (by_hand, by_autograd, by_differences))
    claim(
        f"{kind}: by hand, autograd and finite differences agree within 1e-10.",
        max(largest_gap(hand, auto), largest_gap(hand, moved_a_little)) < 1e-10,
        **{"difference to autograd": largest_gap(hand, auto)},
        to_finite_differences=largest_gap(hand, moved_a_little),
    )

# %% [markdown]
# Keep `bptt.finite_differences` at hand: slowly, but surely, it checks the gradient of any smooth function, as long as the numbers are float64.

# %% [markdown]
# ### Exercise 4.1 · Derive: three steps on paper
#
# Difficulty ●●○○○ · 15 minutes · needs section 2
#
# All sizes are 1, $w_{hx} = 1$, $w_{hh} = \frac12$, $w_{qh} = 2$, $h_0 = 0$. Inputs 2, 0, 1; targets 1, 2, 0; $\ell = \frac12 (o - y)^2$ and $L$ is the
# mean over the three steps. With pencil and paper, find $\partial L/\partial h_1$ and the gradients of $w_{hx}$, $w_{hh}$ and $w_{qh}$.

# %% nbgrader={"grade": false, "grade_id": "ex04-1-three-steps", "locked": false, "schema_version": 3, "solution": true, "task": false}
on_paper = ...  # (dL/dh_1, dL/dw_hx, dL/dw_hh, dL/dw_qh)
### BEGIN SOLUTION
# h = 2, 1, 1.5; o = 4, 2, 3; dL/do = 1, 0, 1; dL/dh_3 = 2, dL/dh_2 = 1, dL/dh_1 = 2.5
on_paper = (2.5, 2.5 * 2 + 1 * 0 + 2 * 1, 2.5 * 0 + 1 * 2 + 2 * 1, 1 * 2 + 0 * 1 + 1 * 1.5)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex04-1-three-steps-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch04.three_steps(on_paper)

# %% [markdown]
# ## 3 · What is cached, and why
#
# Look at the formulas again: which numbers of the forward pass do they need? $x_t$ for $W_{hx}$, $h_{t-1}$ for $W_{hh}$, $h_t$ for $W_{qh}$ (and for tanh', in section
# 5). The walk goes backwards, so it needs the *last* states first, when all have been computed. Either all states are kept, or
# they are computed again.
#
# A sequence has 1,000 steps. Without any cache, every state that the backward pass needs is computed anew from the
# beginning. How many more steps of the network is that?

# %%
guess_steps = predict("the additional steps, for a sequence of 1,000", ...)

# %% tags=["fold", "reveal"]
# @title Steps with and without a cache
guess_steps.compare(1000 * 999 // 2)
table(
    ["steps T", "forward, states kept", "additional, if each state is computed again from $h_0$"],
    [[T, T, T * (T - 1) // 2] for T in (10, 100, 1000)],
)

# %% tags=["fold"]
# @title How many numbers autograd keeps
def kept(T, B=2, D=8):
    """How many numbers autograd keeps for the backward pass of T steps (each storage counted once)."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    weights = [draw(*shape).requires_grad_() for shape in ((D, 3), (D, D), (4, D))]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        bptt.forward_pass(draw(B, T, 3), *weights, nonlinearity="tanh").o.square().sum()
    return sum(t.untyped_storage().nbytes() // t.element_size() for t in storages.values())


kept_numbers = {f"numbers kept at T = {T}": kept(T) for T in (50, 100, 200, 400)}
claim(
    "Twice as many steps, twice as many numbers kept (within 10 %).",
    all(1.8 < b / a < 2.1 for a, b in pairwise(kept_numbers.values())),
    **kept_numbers,
)

# %% [markdown]
# So the memory of backpropagation through time grows like T, and for long sequences memory often runs out first. (There is a road in
# between, *checkpointing*: keep every 30th state of 1,000, compute the others again from there, once.) Also $\partial L / \partial h_t$ is
# stored, since two sums and the next step of the walk use it.

# %% [markdown]
# ## 4 · The expanded sum: powers of a matrix
#
# Put the recursion into itself, until only outputs are left. For $t = T$ there is one term, for $t = T-1$ there are two:
#
# $$ \frac{\partial L}{\partial h_{T-1}} = \frac{\partial L}{\partial o_{T-1}} W_{qh} + \frac{\partial L}{\partial o_T} W_{qh} W_{hh}. $$
#
# Now you: what is it for any $t$? The answer is the most important formula of this chapter. It shows what each later output
# contributes to a state's gradient, and how often it has passed $W_{hh}$ on its way.

# %% [markdown]
# ### Exercise 4.2 · Derive: expand the recursion, and check it numerically
#
# Difficulty ●●●○○ · 25 minutes · needs section 2
#
# Write $\partial L/\partial h_t$ as a sum over the outputs $k = t \ldots T$ that contains no other $\partial L/\partial h$. Then turn the sum into code, without
# the recursion. The check compares it with the recursion at several t.


# %% nbgrader={"grade": false, "grade_id": "ex04-2-expanded-gradient", "locked": false, "schema_version": 3, "solution": true, "task": false}
def expanded_gradient(do, W_hh, W_qh, t):
    """Gradient with respect to h_t of a linear network, as a sum over the outputs from t to T.

    Args:
        do: (B, T, Q) gradient of the loss with respect to the outputs; do[:, k - 1] belongs to step k.
        W_hh: (D, D).
        W_qh: (Q, D).
        t: the step, 1 to T.

    Returns:
        (B, D).
    """
    ### BEGIN SOLUTION
    # dL/dh_t = sum over k = t ... T of dL/do_k W_qh W_hh^(k - t)
    total = torch.zeros(len(do), len(W_hh), dtype=do.dtype)
    for k in range(t, do.shape[1] + 1):
        total = total + do[:, k - 1] @ W_qh @ torch.linalg.matrix_power(W_hh, k - t)
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex04-2-expanded-gradient-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch04.expanded_gradient(expanded_gradient)

# %% [markdown]
# Books with columns print the sum as $\sum_{i=t}^{T} (W_{hh}^T)^{T-i}\, W_{qh}^T\, \partial L / \partial o_{T+t-i}$. Put $k = T + t - i$ and transpose: is it yours? A sum
# like this is for understanding, not for computing: all gradients need T(T+1)/2 of its terms, the recursion T steps.
#
# In it, the loss of step $T$ reaches $h_t$ through $W_{hh}$ to the power $T - t$. What do high powers of a matrix do? Let $\lambda_i$ be its
# *eigenvalues*. In the eigenvectors' directions the power is $\lambda_i^{T-t}$: it shrinks if $|\lambda_i| < 1$ and grows if $|\lambda_i| > 1$ (the absolute value
# counts; eigenvalues may be negative or complex). The largest $|\lambda_i|$, the *spectral radius* $\rho$, wins in the long run. Below we take a random *orthogonal* matrix
# (a rotation, perhaps with a reflection: it keeps all lengths, and all its $|\lambda_i|$ are 1) times $\rho$.
#
# $0.9^{100}$, $1^{100}$, $1.1^{100}$: which powers of ten?


# %%
guess_growth = predict("the factor of growth over 100 steps at radius 1.1", ...)


# %%
def norms_by_lag(W_hh, x, nonlinearity):
    """Norms of d L_T / d h_(T-k), k = 0 ... T - 1, relative to k = 0."""
    eye = torch.eye(len(W_hh), dtype=x.dtype)  # W_hx and W_qh are the identity
    cache = bptt.forward_pass(x, eye, W_hh, eye, nonlinearity=nonlinearity)
    do = torch.zeros_like(cache.o)
    do[:, -1] = 1.0  # only the last step has a loss, the sum of its output
    walk = bptt.backward_pass(do, cache, W_hh, eye, nonlinearity=nonlinearity)
    norms = walk.h[:, 1:].norm(dim=-1)
    return (norms / norms[:, -1:]).mean(0).flip(0)


# %%
noise = 0.1 * draw(8, 101, 32)  # (B, T, D)
generator = torch.Generator().manual_seed(3)
rotation = bptt.random_orthogonal(32, generator, dtype=torch.float64)
at_100 = {
    rho: norms_by_lag(rho * rotation, noise, "linear")[100].item()
    for rho in (0.9, 1.0, 1.1)
}

# %% tags=["fold", "reveal"]
# @title What arrives 100 steps earlier
table(["spectral radius", "gradient that arrives 100 steps earlier"], [[rho, norm] for rho, norm in at_100.items()])
guess_growth.compare(round(at_100[1.1]))
claim(
    "With a rotation times $\\rho$, what arrives is $\\rho$ to the power 100, to 9 digits; between 0.9 and 1.1 lie more "
    "than eight powers of ten.",
    all(math.isclose(norm, rho**100, rel_tol=1e-9) for rho, norm in at_100.items())
    and at_100[1.1] > 1e8 * at_100[0.9],
)

# %% [markdown]
# At 0.9 the loss tells $h_{T-100}$ next to nothing: that is a *vanishing* gradient. At 1.1 it is shouting: an *exploding*
# one. Both are there in the plainest network there is, and no data were involved.
#
# Two fine points. First, what arrives is what the state 100 steps ago hears of *this* loss. The total gradient of $W_{hh}$ need not be small: the near
# terms are there. Learning does not stop, it becomes short-sighted. Second, $\rho$ rules the *long run*. What a *single* step can do is a matter of the *singular values*:
# the length to which $W_{hh}$ takes a vector of length 1 lies between the smallest and the largest. A rotation has them all equal. A matrix with random entries has not, so its first powers do not follow $\rho$:

# %%
gaussian = bptt.scale_to_radius(draw(32, 32, seed=7), 1.0)
first_lags = norms_by_lag(gaussian, noise, "linear")[1:6]
print("lags 1 to 5:", [round(v, 2) for v in first_lags.tolist()])

# %% tags=["fold"]
# @title Checked: radius 1, and singular values far from 1
singular = torch.linalg.svdvals(gaussian)
claim(
    "Radius 1 by eigenvalues, and yet one step can stretch a vector by more than 1.3 or shrink it to less than half.",
    bptt.spectral_radius(gaussian) < 1.0001 and (singular.max() > 1.3).item() and (singular.min() < 0.5).item(),
    largest_singular_value=singular.max(),
    smallest=singular.min(),
)

# %% [markdown]
# ## 5 · With tanh: a product of Jacobians
#
# With $h_t = \tanh(a_t)$, $a_t = x_t W_{hx}^T + h_{t-1} W_{hh}^T$, every step back passes tanh' as well. The derivative of one state with respect to the one before
# is a (D, D) matrix, the *Jacobian*, and over several steps they multiply:
#
# $$ J_t = \frac{\partial h_t}{\partial h_{t-1}} = \mathrm{diag}(1 - h_t^2)\, W_{hh}, \qquad \frac{\partial h_t}{\partial h_s} = J_t J_{t-1} \cdots J_{s+1}. $$
#
# The factors $1 - h_t^2$ lie between 0 and 1, and are 1 only where the state is 0. So at each step tanh shrinks the gradient, number by number, before $W_{hh}$ multiplies it. That is also why
# the walk needs the states: tanh' comes from its value. In the backward pass it is one factor more, $\frac{\partial L}{\partial a_t} = \frac{\partial L}{\partial h_t} \odot (1 - h_t^2)$, and it is
# $\frac{\partial L}{\partial a_t}$ that goes on through $W_{hh}$ and into the sums for $W_{hx}$ and $W_{hh}$: the line with `slope` that you have seen. The picture at the beginning of the chapter shows one path of a gradient, with a Jacobian on every arrow.

# %%
show_source(bptt.step_jacobians, bptt.jacobian_product)

# %%
eye = torch.eye(32, dtype=torch.float64)
states = bptt.forward_pass(noise, eye, rotation, eye, nonlinearity="tanh").h
jacobians = bptt.step_jacobians(states, rotation, nonlinearity="tanh")
over_100 = bptt.jacobian_product(jacobians, 1, 101)  # (B, D, D)

# %% tags=["fold"]
# @title Checked: what tanh takes off the gradient
most_kept = torch.linalg.matrix_norm(bptt.jacobian_product(jacobians, 0, 100), ord=2)
claim(
    "With a rotation (all singular values 1) and tanh, even the best preserved direction keeps less than 1/20 after 100 steps.",
    most_kept.max() < 0.05,
    kept=most_kept.max(),
    **{"smallest tanh'": (1 - states[:, 1:].square()).min()},
)
ones = torch.ones(32, dtype=torch.float64)
by_product = (ones @ over_100).norm(dim=-1) / ones.norm()
claim(
    "The backward pass, which never forms a Jacobian, finds what their product says.",
    torch.allclose(norms_by_lag(rotation, noise, "tanh")[100], by_product.mean(), rtol=1e-9, atol=0),
)

# %% [markdown]
# The backward pass multiplies a *row* by one matrix after the other, about $D^2$ multiplications a step and sequence; the product of matrices costs $D^3$.
#
# So is tanh a protection against explosions? For rotations times 0.9, 1.0, 1.1 and 1.5 and small random inputs: in which of the four does a
# tanh network's gradient vanish, in which does it explode? The curves come from the ledger (`bptt-lag`, three seeds).

# %%
guess_radius = predict("the largest of the four radii at which it still vanishes", ...)

# %% tags=["reveal"]
figures.gradient_by_lag()

# %% tags=["fold", "reveal"]
# @title Checked: the factor a step, in every recorded run
def rates(nonlinearity, radius):
    """Recorded factors a step, from lag 50 to the last."""
    return ledger.values("bptt-lag", f"{nonlinearity}, orthogonal, radius {radius}", "rate")


guess_radius.compare(max(radius for radius in figures.RADII if max(rates("tanh", radius)) < 1))
claim(
    "Linear: the factor per step is the radius. Tanh: it is smaller in every run, at radius 1.0 and 1.1 below 1.",
    all(abs(rate - radius) < 1e-6 for radius in figures.RADII for rate in rates("linear", radius))
    and all(rate < radius for radius in figures.RADII for rate in rates("tanh", radius))
    and max(rates("tanh", 1.0) + rates("tanh", 1.1)) < 1,
    **{"factors with tanh at radius 1.0": rates("tanh", 1.0), "at 1.1": rates("tanh", 1.1)},
)
claim(
    "Tanh is no protection: at radius 1.5 the gradient grows in every run.",
    min(rates("tanh", 1.5)) > 1,
    factors=rates("tanh", 1.5),
)

# %% [markdown]
# The bound that holds always: one step back multiplies a gradient by at most $\max_i (1 - h_{t,i}^2)$ times the largest singular value of
# $W_{hh}$ (Pascanu et al. 2013, section 2.1). If that stays below some number smaller than 1 at all steps, the gradient must vanish. The converse is not true:
# values above 1 *may* explode, and more in some directions than in others.
#
# ### On a real layer, live
#
# `gradient_norm_by_lag` measures any recurrent layer, torch's or ours, through autograd. torch draws the weights of an `nn.RNN` uniformly
# from $\pm 1/\sqrt D$. How far back does a loss reach in such a layer, fresh from the constructor?

# %%
show_source(bptt.gradient_map, bptt.gradient_norm_by_lag)

# %%
guess_arrives = predict("what arrives 20 steps back, as a fraction of lag 0", ...)

# %%
torch.manual_seed(0)
layer, noisy = RNN(16, 64), torch.randn(8, 60, 16)
fresh = bptt.gradient_norm_by_lag(layer, noisy, torch.sum)
layer.weight_hh_l0.data = bptt.random_orthogonal(64, torch.Generator().manual_seed(0))
orthogonal = bptt.gradient_norm_by_lag(layer, noisy, torch.sum)

# %% tags=["fold", "reveal"]
# @title The gradient by lag, for two initialisations
LAGS = (0, 1, 5, 10, 20, 40)
table(
    ["initialisation of $W_{hh}$", *(f"lag {k}" for k in LAGS)],
    [
        ["torch's default", *(fresh[k].item() for k in LAGS)],
        ["orthogonal", *(orthogonal[k].item() for k in LAGS)],
    ],
)
guess_arrives.compare((fresh[20] / fresh[0]).item())
claim(
    "Fresh from the constructor, less than a thousandth arrives 20 steps back; with an orthogonal initialisation, more "
    "than a hundredth.",
    (fresh[20] < 1e-3 * fresh[0]).item() and (orthogonal[20] > 1e-2 * orthogonal[0]).item(),
)

# %% [markdown]
# A network that starts with a horizon of some ten steps is told next to nothing of what lies before. That is the case for orthogonal initialisation, and for the gates of chapter 05.
#
# ### By time and by depth
#
# Stacked layers (chapter 03) add a second direction: a gradient goes back in time *and* down. Here are four layers and 40 steps, with a loss at
# the last step of the top layer only. At which step is the gradient largest in the top layer's row, at which in the lowest? How does it fade to the left?

# %%
maps = {}
for way in ("default", "orthogonal"):
    generator = torch.Generator().manual_seed(5)
    stack = stacked(4, 16, 64, way, generator)  # four one-layer RNNs
    below = torch.randn(16, 40, 16, generator=generator)
    maps[way] = bptt.gradient_map(stack, below, lambda h: h[:, -1].sum())  # (layers, T)

# %% tags=["reveal"]
figures.gradient_by_time_and_depth(maps)

# %% tags=["fold", "reveal"]
# @title Checked: what is left after 39 steps
default_left, orthogonal_left = (
    ledger.values("bptt-map", f"{way} start", "first_over_last") for way in ("default", "orthogonal")
)  # norm at step 1 over norm at step 40, for each seed and layer
claim(
    "In every recorded run and layer the default initialisation leaves less than 1e-6 of the gradient after 39 steps.",
    all(fraction < 1e-6 for run in default_left for fraction in run),
)
claim(
    "With the orthogonal one more than a thousandth is left, most in the lowest layer.",
    all(min(run) > 1e-3 and run[0] == max(run) for run in orthogonal_left),
    fraction_left_from_bottom_to_top=orthogonal_left[0],
)

# %% [markdown]
# ### Exercise 4.3 · Implement: the backward pass of a leaky network
#
# Difficulty ●●●●○ · 40 minutes · needs section 5
#
# A *leaky* network moves only a share $\alpha$ of its state at each step:
#
# $$ c_t = \tanh(x_t W_{hx}^T + h_{t-1} W_{hh}^T + b), \qquad h_t = (1 - \alpha)\, h_{t-1} + \alpha\, c_t, \qquad o_t = h_t W_{qh}^T. $$
#
# Draw its three steps first. From how many places does a gradient come to $h_t$? The check compares your gradients with autograd's; before that, do so yourself.


# %% nbgrader={"grade": false, "grade_id": "ex04-3-leaky-backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def leaky_backward(do, x, h, c, W_hh, W_qh, alpha):
    """All gradients of a leaky network, without autograd.

    Args:
        do: (B, T, Q) gradient of the loss with respect to the outputs.
        x: (B, T, I) inputs; x[:, t - 1] is step t.
        h: (B, T + 1, D) states, h[:, 0] the initial one.
        c: (B, T, D) the candidates, values of tanh; c[:, t - 1] is step t.
        W_hh: (D, D).
        W_qh: (Q, D).
        alpha: the share that moves, 0 to 1.

    Returns:
        dW_hx (D, I), dW_hh (D, D), dW_qh (Q, D), db (D,).
    """
    ### BEGIN SOLUTION
    from_next = torch.zeros_like(h[:, 0])
    da = torch.zeros_like(c)
    for t in range(x.shape[1], 0, -1):
        dh = do[:, t - 1] @ W_qh + from_next
        da[:, t - 1] = alpha * dh * (1 - c[:, t - 1] ** 2)
        from_next = da[:, t - 1] @ W_hh + (1 - alpha) * dh  # through the candidate, and straight
    dW_hx = torch.einsum("btd,bti->di", da, x)
    dW_hh = torch.einsum("btd,bte->de", da, h[:, :-1])
    dW_qh = torch.einsum("btq,btd->qd", do, h[:, 1:])
    return dW_hx, dW_hh, dW_qh, da.sum(dim=(0, 1))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex04-3-leaky-backward-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch04.leaky_backward(leaky_backward)

# %% [markdown]
# You have written more than an exercise: the straight path with its factor $1 - \alpha$ is the idea behind the gated networks of chapter 05. A gradient on it passes no
# matrix and no tanh. There the network itself chooses $\alpha$ at every step.

# %% [markdown]
# ## 6 · Truncation
#
# A stream has no end, so the full gradient has no beginning. *Truncated* backpropagation through time cuts the stream into windows of $w$ steps. The
# **numbers** of the state go on; its **gradient** stops at the edge (the scissors in the picture at the beginning). In torch the cut is one word, `detach`. In
# the recursion it is one term less: where $t$ is a multiple of $w$, nothing comes back from $h_{t+1}$.

# %%
show_source(bptt.detached, bptt.truncated_backward)

# %%
x, y = draw(3, 12, 2), draw(3, 12, 5, seed=1)
W_hx, W_hh, W_qh = draw(4, 2, seed=3), 0.5 * draw(4, 4, seed=4), draw(5, 4, seed=5)
cache = bptt.forward_pass(x, W_hx, W_hh, W_qh, nonlinearity="tanh")
_, do = bptt.squared_loss(cache.o, y)
walked = bptt.backward_pass(do, cache, W_hh, W_qh, nonlinearity="tanh", window=4)

leaves = [w.clone().requires_grad_() for w in (W_hx, W_hh, W_qh)]
cut = bptt.forward_pass(x, *leaves, nonlinearity="tanh", window=4)  # after 4 and 8
from_torch = torch.autograd.grad(bptt.squared_loss(cut.o, y)[0], leaves)

# %% tags=["fold"]
# @title Checked: truncation by hand and by detach
claim(
    "Truncated by hand (window=4) is autograd with detach, within 1e-10; the forward pass with the cuts gives the same numbers.",
    all((a - b).abs().max() < 1e-10 for a, b in zip(walked[:3], from_torch, strict=True))
    and torch.allclose(cut.o, cache.o, rtol=1e-12),
)
claim(
    "A window of 40 steps keeps a tenth of what all 400 do (within a fifth).",
    0.08 < kept(40) / kept(400) < 0.12,
    numbers_kept_by_a_window=kept(40),
    by_all_steps=kept(400),
)

# %% [markdown]
# Windows pay off for long streams: memory is that of one window, and the weights move after each. (Williams and Peng's original goes back $w$ steps from *every* step, with
# windows that overlap: each loss then sees the same distance, at more cost.)
#
# ### What a window cannot see
#
# What does the cut take away? A loss at step $t$ and the state at $t - k$ are in one window, or they are not. If not, the gradient says nothing about the pair.

# %% [markdown]
# ### Exercise 4.4 · Derive: what a window keeps
#
# Difficulty ●●○○○ · 10 minutes · needs section 6
#
# A sequence has 12 steps, each with a loss, and is cut into windows of 4 (steps 1 to 4, 5 to 8, 9 to 12). Take all pairs (t, t - k) of steps. What share of them lies within
# one window for lag k = 1, for k = 3 and for k = 4? Give three fractions (let Python divide: `1 / 2`).

# %% nbgrader={"grade": false, "grade_id": "ex04-4-kept-pairs", "locked": false, "schema_version": 3, "solution": true, "task": false}
shares = ...  # (lag 1, lag 3, lag 4)
### BEGIN SOLUTION
# lag k: 12 - k pairs in all, 4 - k in each of the three windows
shares = (9 / 11, 3 / 9, 0)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex04-4-kept-pairs-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch04.kept_pairs(shares)

# %% [markdown]
# So near pairs are kept and far ones are not: the truncated gradient is not a noisy version of the full one, it *leans towards what is near*. In the
# language of statistics it is **biased**, and no amount of data averages a bias away (Tallec and Ollivier 2017).
#
# How large is it? Compare the truncated gradient $g_w$ with the full one $g$: the cosine of the angle between them, and the ratio of their lengths. The
# network is the one of this chapter's beginning, with a lag of 8. Take windows of 4 steps. For which network is the angle larger, for an untrained one, or for one that has learned the task
# (with windows of 32)?

# %% tags=["reveal"]
figures.truncation_bias()

# %% tags=["fold", "reveal"]
# @title Checked: the cosine at windows of 4 steps
cosine_at_4 = {
    name: [
        cosines[which.index(4)]
        for which, cosines in zip(
            ledger.values("bptt-truncation", f"bias, {name}", "windows"),
            ledger.values("bptt-truncation", f"bias, {name}", "cosine"),
            strict=True,
        )
    ]
    for name in ("untrained", "trained")
}
claim(
    "At w = 4 the cosine is above 0.9 in every untrained network and below 0.7 in every trained one.",
    min(cosine_at_4["untrained"]) > 0.9 and max(cosine_at_4["trained"]) < 0.7,
    **{f"cosine, {name}": values for name, values in cosine_at_4.items()},
)

# %% [markdown]
# Beware of the grey curve. "Truncated and full gradients nearly agree, so truncation is harmless" is measured on a network that has nothing to
# lose. The small difference is the very part that would teach it to remember.
#
# A live version, on an untrained layer that does remember, for its weights are a rotation:

# %%
torch.manual_seed(2)
reader, output_layer = RNN(V, 32), nn.Linear(32, V)
ids = torch.randint(V, (16, LAG + 96))
symbols, targets = F.one_hot(ids[:, LAG:], V).float(), ids[:, :-LAG]


def summed_loss(output, targets):  # summed, so that windows add up
    logits = output_layer(output).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), reduction="sum")


some_windows = [2, 6, 24, 96]
default_bias = bptt.truncation_bias(reader, summed_loss, symbols, targets, some_windows)
reader.weight_hh_l0.data = bptt.random_orthogonal(32, torch.Generator().manual_seed(2))
rotated_bias = bptt.truncation_bias(reader, summed_loss, symbols, targets, some_windows)

# %% tags=["fold"]
# @title The cosine by window, for two initialisations
table(
    ["window", "cosine, default initialisation", "cosine, orthogonal initialisation"],
    [[w, default_bias[w][0], rotated_bias[w][0]] for w in some_windows],
)
claim(
    "With windows of 2 steps the network that remembers has the worse gradient; a window of all steps is the full one.",
    rotated_bias[2][0] < default_bias[2][0] and abs(rotated_bias[96][0] - 1) < 1e-5,
)

# %% [markdown]
# ### What is learned, then
#
# Back to the task: output the symbol of 8 steps ago, with windows of 2 to 32 steps, equally many symbols for all (so the longer the window, the fewer updates). Beside the usual truncation (the state is *carried*)
# runs a mistake that is easy to make: the state is set to *zero* at the beginning of every window. All are tested on one long stream, never cut.
#
# What accuracy do you expect for windows of 4, 8, 10 and 32: carried, and zeroed?

# %%
guess_ten = predict("the accuracy with windows of 10 steps, state carried (lag 8)", ...)

# %% tags=["reveal"]
figures.learned_by_window()

# %% tags=["fold", "reveal"]
# @title Checked: windows up to the lag, and two steps more
echo = {
    name: {w: ledger.values("bptt-truncation", f"{name}, window {w}", "accuracy") for w in figures.WINDOWS}
    for name in ("carried", "zeroed")
}
up_to_lag = [value for w in (2, 4, 8) for value in echo["carried"][w]]
guess_ten.compare(round(sum(echo["carried"][10]) / len(echo["carried"][10]), 2))
claim(
    "Windows up to the lag, state carried: below 0.35 in every run, and still a little better than guessing (above 0.21).",
    max(up_to_lag) < 0.35 and min(up_to_lag) > 0.21,
    **{f"accuracy at w = {w}": echo["carried"][w] for w in (2, 4, 8)},
)
claim(
    "Two steps more: above 0.85 in every run; with the same 10 steps and the state zeroed, below 0.4 in every run.",
    min(echo["carried"][10]) > 0.85 and max(echo["zeroed"][10]) < 0.4,
    accuracy_carried=echo["carried"][10],
    zeroed=echo["zeroed"][10],
)

# %% [markdown]
# Two remarks. With short windows the carried state is a little better than guessing: even an untrained recurrence holds traces of the past, and the output layer can
# read them (the idea of *reservoir computing*). And the rule "no lag beyond the window" is about what the gradient can *teach*: how long
# a state can *hold* something is not limited by the window, since its numbers go on.

# %% [markdown]
# ### Exercise 4.5 · Find the bug: a window that forgets
#
# Difficulty ●●●○○ · 20 minutes · needs section 6
#
# This function runs a layer step by step, as you must when a step's input depends on the output before. It was tested: the losses are right, the state is carried, memory stays
# small. The cell below it compares gradients for three windows. Something is odd.


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
def squares(h, y):
    return (h - y).square().sum()


for window in (1, 5, 20):
    torch.manual_seed(3)
    small = nn.RNN(2, 3, batch_first=True, dtype=torch.float64)
    x, y = draw(4, 20, 2), draw(4, 20, 3, seed=1)
    loss = buggy_window_backward(small, squares, x, y, window)
    norm_hh = small.weight_hh_l0.grad.norm()
    print(f"window {window:2}: loss {loss:.4f}, norm of dL/dW_hh {norm_hh:.4f}")

# %% [markdown]
# Which of the two numbers should change from line to line, and which should not? Repair the function, without `bptt.truncated_backward`.


# %% nbgrader={"grade": false, "grade_id": "ex04-5-window-backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def window_backward(layer, loss_fn, x, y, window):
    """Truncated backpropagation through time, one step of the layer at a time.

    Args:
        layer: recurrent layer, batch first, whose state is one tensor: layer(x (B, 1, I), state) -> (output (B, 1, D), state).
        loss_fn: loss_fn(output (B, C, D), targets (B, C, ...)) -> scalar, summed over the steps.
        x: (B, T, I).
        y: (B, T, ...).
        window: steps a window; the last one may be shorter.

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
# ## 7 · Clipping
#
# The opposite trouble: a gradient that explodes makes a step so large that the weights land somewhere senseless, and hours of training are gone. Its direction
# may still be of use; its *length* is not. So *clipping by norm* (Pascanu et al. 2013, algorithm 1) shortens it. With $g$ all gradients of all
# parameters as one vector and $c$ the largest length allowed:
#
# $$ g \leftarrow g \cdot \min\Big(1, \frac{c}{\lVert g \rVert}\Big), \qquad \lVert g \rVert = \sqrt{\textstyle\sum_p \lVert g_p \rVert^2}. $$

# %%
show_source(bptt.clip_norm)

# %%
torch.manual_seed(0)
ours, theirs = RNN(3, 5), RNN(3, 5)
theirs.load_state_dict(ours.state_dict())
for each in (ours, theirs):
    (100 * each(torch.ones(2, 7, 3))[0].sum()).backward()
before = torch.cat([p.grad.flatten() for p in ours.parameters()])
norm = bptt.clip_norm(ours.parameters(), 1.0)
wanted = nn.utils.clip_grad_norm_(theirs.parameters(), 1.0).item()
after = torch.cat([p.grad.flatten() for p in ours.parameters()])
limited = before.clamp(-1.0, 1.0)  # every entry for itself: clip_grad_value_

# %% tags=["fold"]
# @title Checked: the same as torch's, and the direction
claim(
    "bptt.clip_norm is torch's `clip_grad_norm_`: the same norm is returned, the same gradients are left.",
    math.isclose(norm, wanted, rel_tol=1e-5)
    and all(
        torch.allclose(a.grad, b.grad, rtol=1e-4)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    ),
    norm_before_clipping=norm,
)
cosine_by_norm, cosine_by_value = (F.cosine_similarity(before, each, dim=0).item() for each in (after, limited))
claim(
    "Clipping by norm keeps the direction; clipping every entry to -1 ... 1 (`clip_grad_value_`) turns it.",
    cosine_by_norm > 0.9999 and cosine_by_value < 0.95,
    cosine_by_norm=cosine_by_norm,
    by_value=cosine_by_value,
)

# %% [markdown]
# ### Where it decides
#
# A tanh network starts from a rotation and must recall a token after 20 steps. Plain SGD, 600 steps, five learning rates, five seeds each; the only difference is
# clipping at $c = 1$. Which learning rates work without clipping? Which with it? Guessing is right 1 time in 5.

# %% tags=["reveal"]
figures.clipping()

# %% tags=["fold", "reveal"]
# @title Checked: accuracy and losses, in every recorded run
recalled, worst = (
    {
        (name, rate): ledger.values("bptt-clipping", f"{name}, rate {rate:g}", metric)
        for name in ("not clipped", "clipped at 1")
        for rate in figures.RATES
    }
    for metric in ("accuracy", "worst_loss")
)
claim(
    "At rate 0.3 every clipped run recalls (above 0.95); no unclipped run does (below 0.6). After the first tenth of the "
    "steps every unclipped loss still spikes above 4 nats; every clipped one stays below 2.5.",
    min(recalled["clipped at 1", 0.3]) > 0.95
    and max(recalled["not clipped", 0.3]) < 0.6
    and min(worst["not clipped", 0.3]) > 4
    and max(worst["clipped at 1", 0.3]) < 2.5,
    accuracy_clipped=recalled["clipped at 1", 0.3],
    not_clipped=recalled["not clipped", 0.3],
    largest_loss_clipped=worst["clipped at 1", 0.3],
    largest_loss_not_clipped=worst["not clipped", 0.3],
)
claim(
    "It is no cure for a rate that is too large (1.0) nor for one that is too small (0.01): below 0.7 in every run.",
    max(recalled["clipped at 1", 1.0] + recalled["clipped at 1", 0.01]) < 0.7,
    **{"accuracy at rate 1": recalled["clipped at 1", 1.0], "at rate 0.01": recalled["clipped at 1", 0.01]},
)

# %% [markdown]
# The same live and smaller, with a lag of 12 and 300 steps:

# %%
def train_recall(max_norm, lag=12, steps=300, rate=0.4):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    layer, head = RNN(6, 40), nn.Linear(40, 6)
    layer.weight_hh_l0.data = bptt.random_orthogonal(40, generator)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, rate)
    losses = []
    for _ in tqdm(range(steps), leave=False):
        x, y = synthetic.recall_task(32, lag, 6, generator)
        output, _ = layer(F.one_hot(x, 6).float())
        loss = F.cross_entropy(head(output[:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        bptt.clip_norm(parameters, max_norm)  # between backward and step
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% tags=["fold"]
# @title The last 30 losses, without and with clipping
unclipped_losses, clipped_losses = train_recall(math.inf), train_recall(1.0)
at_end = {name: sum(each[-30:]) / 30 for name, each in (("not", unclipped_losses), ("yes", clipped_losses))}
claim(
    "Live, lag 12: clipped, the loss ends below 0.1 nats; unclipped, above 1 nat (guessing: 1.61).",
    at_end["yes"] < 0.1 and at_end["not"] > 1,
    **{
        "mean of the last 30 losses in nats, clipped": at_end["yes"],
        "not clipped": at_end["not"],
        "largest after step 30, clipped": max(clipped_losses[30:]),
        "largest, not clipped": max(unclipped_losses[30:]),
    },
)

# %% [markdown]
# Choosing $c$: log the norm for a while and take a value that clips rarely in quiet times. And remember what clipping cannot do: it shortens long gradients. For *vanished* ones there is
# nothing to shorten; they need another architecture (chapters 05 to 07).

# %% [markdown]
# ### Exercise 4.6 · Implement: clip by the common norm
#
# Difficulty ●●○○○ · 15 minutes · needs section 7
#
# Write it as a function that returns new tensors and leaves its input alone. Use torch only, without its own clipping.


# %% nbgrader={"grade": false, "grade_id": "ex04-6-clip-gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
def clip_gradients(gradients, max_norm):
    """Shorten all gradients by one factor, if together they are longer than max_norm.

    Args:
        gradients: tuple of tensors of any shapes.
        max_norm: largest 2-norm of all of them together.

    Returns:
        clipped: list of new tensors; all zeros stay zeros.
        norm: the 2-norm of all gradients together, before clipping.
    """
    ### BEGIN SOLUTION
    norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
    factor = max_norm / norm if norm > max_norm else 1.0
    return [gradient * factor for gradient in gradients], norm
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex04-6-clip-gradients-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch04.clip_gradients(clip_gradients)

# %% [markdown]
# ## 8 · Common mistakes
#
# **Mistake 1 · no detach at all.** The state goes from window to window with its whole history. What happens at the second `backward`?

# %%
twelve_steps = torch.randn(1, 12, 2, generator=torch.Generator().manual_seed(0))


def two_windows(between, **backward):
    """Two windows, a step each; between treats the state; the error, if any."""
    torch.manual_seed(0)
    layer, state = RNN(2, 3), None
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    try:
        for x in twelve_steps.split(6, dim=1):
            output, state = layer(x, between(state))
            optimizer.zero_grad()
            output.square().sum().backward(**backward)
            optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


# %%
print(two_windows(between=lambda state: state).split(".")[0])

# %% [markdown]
# The rest of the error's text proposes `retain_graph=True`. **Do not take the advice.** It keeps every window's graph alive, so memory and time grow with each window; and here it
# does not even run:

# %%
print(two_windows(between=lambda state: state, retain_graph=True).split(":")[0])

# %% tags=["fold"]
# @title Checked: three ways to carry a state
claim(
    "Without detach the second backward fails: 'backward through the graph a second time'. With retain_graph=True it "
    "fails too: the optimizer has changed weights that the old graph needs.",
    "backward through the graph a second time" in two_windows(between=lambda state: state)
    and "modified by an inplace operation" in two_windows(between=lambda state: state, retain_graph=True),
)


def graph_size(tensor):
    """Number of operations that a backward pass from here would visit."""
    visited, front = set(), [tensor.grad_fn]
    while front:
        node = front.pop()
        if node is not None and node not in visited:
            visited.add(node)
            front += [after for after, _ in node.next_functions]
    return len(visited)


def sizes_by_window(between):
    """The size of the graph after each of six windows."""
    small_layer, carried, sizes = RNN(2, 3), None, []
    for part in twelve_steps.split(2, dim=1):
        _, carried = small_layer(part, between(carried))
        sizes.append(graph_size(carried))
    return sizes


kept_sizes, detached_sizes = sizes_by_window(lambda s: s), sizes_by_window(bptt.detached)
claim(
    "Without detach each window makes the graph larger; the sixth walks through more than 4 times the first.",
    all(a < b for a, b in pairwise(kept_sizes)) and kept_sizes[5] > 4 * kept_sizes[0],
    operations_by_window=kept_sizes,
)
claim(
    "The fix is detach: no error, and a graph that does not grow.",
    two_windows(between=bptt.detached) == "" and len(set(detached_sizes)) == 1,
    operations_by_window=detached_sizes,
)

# %% [markdown]
# **Mistake 2 · clipping in the wrong place.** Clip after `optimizer.step()` and nothing is clipped; clip before `backward()` and you clip the gradients of the step before, or none. (With a gradient
# scaler for 16-bit training there is a third wrong place: before `scaler.unscale_`, when all gradients are still multiplied by the scale.)


# %%
def one_step(order):
    """The weights after one step of SGD; order is a list of "clip" and "step"."""
    torch.manual_seed(0)
    layer = RNN(3, 5)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    (100 * layer(torch.ones(2, 7, 3))[0].sum()).backward()
    for what in order:
        bptt.clip_norm(layer.parameters(), 1.0) if what == "clip" else optimizer.step()
    return torch.cat([p.detach().flatten() for p in layer.parameters()])


for order in (["step"], ["step", "clip"], ["clip", "step"]):
    print(*order, round((one_step(order) - one_step([])).norm().item(), 1))

# %% tags=["fold"]
# @title Checked: before and after the step
claim(
    "Clipping after the step is no clipping at all; clipped before the step, the weights move by rate times max_norm = 0.1.",
    torch.equal(one_step(["step", "clip"]), one_step(["step"]))
    and abs((one_step(["clip", "step"]) - one_step([])).norm().item() - 0.1) < 1e-4,
)

# %% [markdown]
# **Mistake 3 · logging the norm after clipping.** It can never exceed $c$, so the one number that would have warned you looks healthy. Log what `clip_norm` *returns*.

# %% tags=["fold"]
# @title Three losses of different size
logged = []
for factor in (0.001, 1, 1000):
    torch.manual_seed(0)
    loud = RNN(3, 5)
    (factor * loud(torch.ones(2, 7, 3))[0].sum()).backward()
    returned = bptt.clip_norm(loud.parameters(), 1.0)
    logged.append([factor, returned, torch.cat([p.grad.flatten() for p in loud.parameters()]).norm().item()])
table(["loss times", "norm that is returned", "norm afterwards"], logged)
claim("Afterwards, 1 and 1000 times the loss look the same.", abs(logged[1][2] - logged[2][2]) < 1e-5)

# %% [markdown]
# **Mistake 4 · zeroing the state at every window**, by forgetting to pass it on: it raises no error, and its price stands in section 6. If two windows do *not* follow each other (shuffled batches), zeros are right.
#
# **Mistake 5 · detaching inside the window** is exercise 4.5.

# %% [markdown]
# ### Exercise 4.7 · Explore and explain: what decides the horizon?
#
# Difficulty ●●●○○ · 30 minutes · needs section 5
#
# The cell measures how many steps back the gradient of a tanh network first falls below a hundredth. Change the `radius` (0.8 to 1.5), the `input_scale` (0 to 3) and `nonlinearity`. `mean_slope` is the mean of tanh'.


# %%
def horizon(radius, input_scale, nonlinearity="tanh", steps=200):
    """First lag at which less than 1/100 arrives (else `steps`), mean of tanh'."""
    W_hh = radius * bptt.random_orthogonal(
        32, torch.Generator().manual_seed(1), dtype=torch.float64
    )
    x, eye = input_scale * draw(8, steps + 1, 32), torch.eye(32, dtype=torch.float64)
    norms = norms_by_lag(W_hh, x, nonlinearity)
    h = bptt.forward_pass(x, eye, W_hh, eye, nonlinearity=nonlinearity).h[:, 1:]
    below = [k for k, norm in enumerate(norms.tolist()) if norm < 0.01]
    slope = (1 - h.square()).mean().item() if nonlinearity == "tanh" else 1.0
    return (below or [steps])[0], slope


radius, input_scale, nonlinearity = 0.9, 0.3, "tanh"  # your turn
lag, mean_slope = horizon(radius, input_scale, nonlinearity)
table(
    ["radius", "input_scale", "horizon (steps)", "mean_slope"],
    [[radius, input_scale, lag, mean_slope]],
)

# %% [markdown]
# Explain in a few sentences: (a) What horizon does the radius alone predict for a linear network, as a formula? (b) Why do larger inputs shorten the horizon of a tanh network, though they do not touch $W_{hh}$?
# (c) With inputs of 0, how does the horizon behave around radius 1, and why? (d) You must learn a lag of 100. Why is a radius tuned to make the product of Jacobians about 1 not a lasting solution?

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex04-7-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) $\rho^k < 0.01$ first holds at $k = \ln 0.01 / \ln \rho$, rounded up: about 44 steps for 0.9, 21 for 0.8; never for $\rho \ge 1$.
#
# (b) Large inputs push the states towards $\pm 1$, where tanh is flat: $1 - h^2$ is small in every step and multiplies the gradient. The product of 100 such factors is tiny even if $W_{hh}$ preserves lengths.
#
# (c) With no input and $h_0 = 0$ the state stays 0, tanh' is exactly 1 and the network behaves like a linear one: the horizon is $\ln 0.01/\ln\rho$ below 1 and has no end from 1 on.
#
# (d) The product depends on the states, so on the data and on weights that training changes at every step; one per cent off in each factor is a factor of $e$ after 100 steps. And directions differ: a product may preserve some and lose others.
# What is wanted is a path whose factor the network can set near 1 and hold there: the LSTM's cell.
# ### END SOLUTION

# %% [markdown]
# ## Summary
#
# 1. A recurrent network unrolled is a deep network with shared weights: one walk from T to 1 gives all gradients, and each weight's gradient is a sum over the steps.
# 2. Expanded, the loss of step k reaches $h_t$ through $W_{hh}^{k-t}$ (linear) or through a product of $k - t$ Jacobians (tanh): as a rule it vanishes or explodes exponentially in the lag.
# 3. The backward pass needs the states of the forward pass, so memory grows with T. Truncation bounds it: carry the state's numbers, detach its gradient.
# 4. Truncation is biased towards near dependencies: no gradient teaches the recurrence what does not fit into a window, and more data does not help.
# 5. Clipping by the common norm bounds a step without turning it. It stops explosions; it does nothing for what has vanished.
#
# ## Where next
#
# *Chapter 05* builds a state with a path on which the gradient passes no matrix and no tanh, and gates that decide when. *Chapter 07* goes further: with attention every step is one step away from every other, and there is nothing to go
# back through. Chapter 10 counts what each costs.
#
# ## References
#
# - P. Werbos, *Backpropagation through time: what it does and how to do it*, Proceedings of the IEEE 78(10), 1990: section III for the walk backwards through time.
# - R. Williams, J. Peng, *An efficient gradient-based algorithm for on-line training of recurrent network trajectories*, Neural Computation 2, 1990: truncated BPTT, their BPTT(h), in which every step looks h steps back, and BPTT(h; h'), which walks back only every h' steps. Ours is h = h' = w.
# - Y. Bengio, P. Simard, P. Frasconi, *Learning long-term dependencies with gradient descent is difficult*, IEEE Transactions on Neural Networks 5(2), 1994: a network that stores robustly must have vanishing gradients.
# - R. Pascanu, T. Mikolov, Y. Bengio, *On the difficulty of training recurrent neural networks*, ICML 2013, arXiv 1211.5063: equations 3 to 5 (the sum and the product of Jacobians; its state is the value before tanh), section 2.1 (the bound), algorithm 1 (clipping).
# - C. Tallec, Y. Ollivier, *Unbiasing truncated backpropagation through time*, 2017, arXiv 1705.08209: why truncation is biased, and random windows that are not.
# - A. Saxe, J. McClelland, S. Ganguli, *Exact solutions to the nonlinear dynamics of learning in deep linear neural networks*, 2014, arXiv 1312.6120: orthogonal starts.
# - Video: *Recurrent Neural Networks*, MIT 6.S191, https://www.youtube.com/watch?v=SEnXr6v2ifU: unrolling, backpropagation through time and its troubles in pictures.
# - Video: *Illustrated Guide to LSTM's and GRU's*, https://www.youtube.com/watch?v=8HyCNIVRbSU: opens with short memory and vanishing gradients, then the gates of the next chapter.
