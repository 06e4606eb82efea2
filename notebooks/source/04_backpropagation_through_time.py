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
# Two copies of one network read an endless stream of five symbols. At every step they must say the symbol of **six steps
# ago**. First weights, data, loss and optimizer are the same. They differ in one thing:
# the first cuts the stream into windows of 24 steps, the second into windows of 6 (so its weights move four times as often). At the end of a window both carry the state over
# with `.detach()`, the cut that you find in nearly every training script; it changes no number of a forward pass. **Predict:** how often is each right, after the same number of symbols? Guessing gives 1 in 5.

# %% tags=["setup"]
import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from course_lib import bptt, diagrams, ledger, plots, toy
from course_lib.checks import ch04
from course_lib.claims import claim
from course_lib.display import show, show_source, table
from course_lib.experiments.ch04 import stacked
from course_lib.rnn import RNN

_ = torch.manual_seed(0)


def draw(*shape, seed=0):
    """Random float64 numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# %%
V, D, LAG = 5, 64, 6


def repeat_after(window, symbols=9600, B=16):
    """Train on windows of a stream whose state is carried over and detached; accuracy on a new stream."""
    torch.manual_seed(1)
    layer, head = RNN(V, D), nn.Linear(D, V)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=4e-3)
    stream = torch.randint(V, (B, LAG + symbols))
    state = None
    for start in range(0, symbols, window):
        x, y = stream[:, LAG + start :][:, :window], stream[:, start : start + window]
        output, state = layer(F.one_hot(x, V).float(), bptt.detached(state))  # the one line
        loss = F.cross_entropy(head(output).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    test = torch.randint(V, (64, LAG + 200))
    with torch.no_grad():
        right = head(layer(F.one_hot(test[:, LAG:], V).float())[0]).argmax(-1) == test[:, :-LAG]
    return right[:, LAG:].float().mean().item()


accuracy_24, accuracy_6 = repeat_after(window=24), repeat_after(window=6)
claim(
    "With windows of 24 steps the network is right more than 9 times in 10; with windows of 6, fewer than 4 in 10",
    accuracy_24 > 0.9 and accuracy_6 < 0.4,
    window_24=accuracy_24,
    window_6=accuracy_6,
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
W_hx, W_hh, W_qh = torch.ones(1, 1), torch.tensor([[0.5]]), torch.tensor([[2.0]])
cache = bptt.forward_pass(torch.ones(1, 3, 1), W_hx, W_hh, W_qh)
loss, do = bptt.squared_loss(cache.o, torch.zeros(1, 3, 1))
print("h_0 to h_3:", cache.h.flatten().tolist())
print("o_1 to o_3:", cache.o.flatten().tolist())
print(
    "L:",
    round(loss.item(), 3),
    "  dL/do_1 to dL/do_3:",
    [round(v, 3) for v in do.flatten().tolist()],
)

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
# One walk from T to 1; `_slope` is 1 for a linear network, and `_outer` is the sum of products $g^T v$ over steps and sequences. The
# lines on `window` are for section 6.
#
# **Before you trust it:** on the small network, compute $\partial L / \partial h_3$, then $\partial L / \partial h_2$ by hand. The outputs'
# gradients stand above.

# %%
found = bptt.backward_pass(do, cache, W_hh, W_qh)
print("dL/dh_0 to dL/dh_3:", [round(v, 3) for v in found.h.flatten().tolist()])
print("dL/dW_hx, dL/dW_hh, dL/dW_qh:", *[round(g.item(), 3) for g in found[:3]])

# %% [markdown]
# ### By hand = autograd = finite differences
#
# Three ways to one gradient that share only the forward pass: our walk; torch's autograd; and *finite differences*, which know no calculus at all but
# move one weight a little and watch the loss. In float64 they must agree to some 10 digits, or one of them is wrong.


# %%
def three_ways(nonlinearity):
    """The largest difference between each two ways, over all weights and the initial state."""
    x, y, h_0 = draw(3, 7, 2), draw(3, 7, 5, seed=1), draw(3, 4, seed=2)
    weights = [0.4 * draw(*shape, seed=3) for shape in ((4, 2), (4, 4), (5, 4))] + [h_0]

    def loss_of(*weights):
        cache = bptt.forward_pass(x, *weights, nonlinearity=nonlinearity)
        return bptt.squared_loss(cache.o, y)[0]

    cache = bptt.forward_pass(x, *weights, nonlinearity=nonlinearity)
    _, do = bptt.squared_loss(cache.o, y)
    found = bptt.backward_pass(do, cache, *weights[1:3], nonlinearity=nonlinearity)
    by_hand = [*found[:3], found.h[:, 0]]
    leaves = [w.clone().requires_grad_() for w in weights]
    autograd = torch.autograd.grad(loss_of(*leaves), leaves)
    moved = [
        bptt.finite_differences(
            lambda w, i=i: loss_of(*weights[:i], w, *weights[i + 1 :]), weights[i]
        )
        for i in range(4)
    ]
    gaps = [(by_hand, autograd), (by_hand, moved)]
    return [max((a - b).abs().max().item() for a, b in zip(*pair, strict=True)) for pair in gaps]


for nonlinearity in ("linear", "tanh"):
    to_autograd, to_differences = three_ways(nonlinearity)
    claim(
        f"{nonlinearity}: by hand, autograd and finite differences agree within 1e-10",
        max(to_autograd, to_differences) < 1e-10,
        autograd=to_autograd,
        finite_differences=to_differences,
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
# **Predict:** a sequence has 1,000 steps. Without any cache, every state that the backward pass needs is computed anew from the
# beginning. How many more steps of the network is that?

# %%
table(
    ["steps T", "forward, states kept", "more, if each state is computed again from h_0"],
    [[f"{T:,}", f"{T:,}", f"{T * (T - 1) // 2:,}"] for T in (10, 100, 1000)],
)


# %%
def kept(T, B=2, D=8):
    """How many numbers autograd keeps for the backward pass of T steps (each storage counted once)."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = (
            tensor  # held, so that no address is used twice
        )
        return tensor

    weights = [draw(*shape).requires_grad_() for shape in ((D, 3), (D, D), (4, D))]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        bptt.forward_pass(draw(B, T, 3), *weights, nonlinearity="tanh").o.square().sum()
    return sum(t.untyped_storage().nbytes() // t.element_size() for t in storages.values())


lengths = [50, 100, 200, 400]
numbers = [kept(T) for T in lengths]
claim(
    "Twice as many steps, twice as many numbers kept (within 10 %)",
    all(1.8 < b / a < 2.1 for a, b in pairwise(numbers)),
    T=lengths,
    kept=numbers,
)

# %% [markdown]
# So the memory of backpropagation through time grows like T, and for long sequences memory is often what ends first. (There is a road in
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
# counts; eigenvalues may be negative or complex). The largest $|\lambda_i|$, the *spectral radius* $\rho$, wins in the long run. The next cell takes a random *orthogonal* matrix
# (a rotation, perhaps with a reflection: it keeps all lengths, and all its $|\lambda_i|$ are 1) times $\rho$.
#
# **Predict:** $0.9^{100}$, $1^{100}$, $1.1^{100}$: which powers of ten?


# %%
def norms_by_lag(W_hh, x, nonlinearity):
    """Norms of d L_T / d h_(T-k), k = 0 ... T - 1, relative to k = 0; L_T is the sum of the last output."""
    eye = torch.eye(len(W_hh), dtype=x.dtype)
    # W_hx and W_qh are the identity
    cache = bptt.forward_pass(x, eye, W_hh, eye, nonlinearity=nonlinearity)
    do = torch.zeros_like(cache.o)
    do[:, -1] = 1.0  # only the last step has a loss
    norms = (
        bptt.backward_pass(do, cache, W_hh, eye, nonlinearity=nonlinearity).h[:, 1:].norm(dim=-1)
    )
    return (norms / norms[:, -1:]).mean(0).flip(0)


x, rotation = (
    0.1 * draw(8, 101, 32),
    bptt.random_orthogonal(32, torch.Generator().manual_seed(3), dtype=torch.float64),
)
at_100 = {rho: norms_by_lag(rho * rotation, x, "linear")[100].item() for rho in (0.9, 1.0, 1.1)}
table(
    ["spectral radius", "gradient that arrives 100 steps earlier"],
    [[rho, norm] for rho, norm in at_100.items()],
)
claim(
    "With a rotation times rho, what arrives is rho to the power 100, to 9 digits",
    all(math.isclose(norm, rho**100, rel_tol=1e-9) for rho, norm in at_100.items()),
)
claim(
    "Between 0.9 and 1.1 lie more than eight powers of ten",
    at_100[1.1] > 1e8 * at_100[0.9],
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
of_gaussian = norms_by_lag(gaussian, x, "linear")
singular = torch.linalg.svdvals(gaussian)
claim(
    "Radius 1 by eigenvalues, and yet one step can stretch a vector by more than 1.3 or shrink it to less than half",
    bptt.spectral_radius(gaussian) < 1.0001 and singular.max() > 1.3 and singular.min() < 0.5,
    largest=singular.max(),
    smallest=singular.min(),
    first_lags=of_gaussian[1:6],
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
# $\frac{\partial L}{\partial a_t}$ that goes on through $W_{hh}$ and into the sums for $W_{hx}$ and $W_{hh}$: the line with `_slope` that you have seen.

# %%
diagrams.show("gradient_path")

# %%
show_source(bptt.step_jacobians, bptt.jacobian_product)

# %%
eye = torch.eye(32, dtype=torch.float64)
states = bptt.forward_pass(x, eye, rotation, eye, nonlinearity="tanh").h
jacobians = bptt.step_jacobians(states, rotation, nonlinearity="tanh")
largest = torch.linalg.matrix_norm(bptt.jacobian_product(jacobians, 0, 100), ord=2)
smallest_factor = (1 - states[:, 1:].square()).min()
claim(
    "With a rotation (all singular values 1) and tanh, even the best preserved direction keeps less than 1/20 after 100 steps",
    largest.max() < 0.05,
    kept=largest.max(),
    smallest_tanh_slope=smallest_factor,
)
v = torch.ones(32, dtype=torch.float64)
by_product = (v @ bptt.jacobian_product(jacobians, 1, 101)).norm(dim=-1) / v.norm()
claim(
    "The backward pass, which never forms a Jacobian, finds what their product says",
    torch.allclose(norms_by_lag(rotation, x, "tanh")[100], by_product.mean(), rtol=1e-9, atol=0),
)

# %% [markdown]
# It multiplies a *row* by one matrix after the other, about $D^2$ multiplications a step and sequence; the product of matrices costs $D^3$.
#
# So is tanh a protection against explosions? **Predict**, for rotations times 0.9, 1.0, 1.1 and 1.5 and small random inputs: in which of the four does a
# tanh network's gradient vanish, in which does it explode? The curves come from the ledger (`bptt-lag`, three seeds).

# %%
radii = {0.9: "input", 1.0: "hidden", 1.1: "output", 1.5: "gradient"}


def recorded_norms(nonlinearity, radius):
    """Norms by lag of each recorded seed."""
    return ledger.values("bptt-lag", f"{nonlinearity}, orthogonal, radius {radius}", "norms")


panels = plots.grid(1, 2, height=3.3, sharey=True)[0]
for ax, nonlinearity in zip(panels, ["linear", "tanh"], strict=True):
    for radius, color in radii.items():
        runs = recorded_norms(nonlinearity, radius)
        plots.band(ax, range(len(runs[0])), runs, f"radius {radius}", color)
    ax.set(yscale="log", title=nonlinearity, xlabel="lag (steps back)", ylim=(1e-7, 1e7))
panels[0].set_ylabel("norm / norm at lag 0 (log scale)")
panels[0].legend(loc="lower left", fontsize=9)
show(
    panels[0],
    alt="Gradient norm against lag on a log scale, for radii 0.9 to 1.5. Linear: four straight lines, falling for 0.9, level for 1.0, rising "
    "for 1.1 and 1.5. Tanh: all lines are lower; 0.9, 1.0 and 1.1 fall, 1.5 still rises.",
    caption="How much of a loss arrives k steps earlier? In a linear network the radius to the power k. Tanh takes its share at every "
    "step: at radius 1 and 1.1 the gradient now shrinks, and yet at 1.5 it still explodes. (The curves bend up at the end, which is the sequence's "
    "beginning: its states still grow from 0, where tanh' is 1.)",
)


def rates(nonlinearity, radius):
    """Recorded factors a step, from lag 50 to the last."""
    return ledger.values("bptt-lag", f"{nonlinearity}, orthogonal, radius {radius}", "rate")


claim(
    "Linear: the factor a step is the radius. Tanh: it is smaller in every run, at radius 1.0 and 1.1 below 1",
    all(abs(rate - radius) < 1e-6 for radius in radii for rate in rates("linear", radius))
    and all(rate < radius for radius in radii for rate in rates("tanh", radius))
    and max(rates("tanh", 1.0) + rates("tanh", 1.1)) < 1,
    tanh_1_0=rates("tanh", 1.0),
    tanh_1_1=rates("tanh", 1.1),
)
claim(
    "Tanh is no protection: at radius 1.5 the gradient grows in every run",
    min(rates("tanh", 1.5)) > 1,
    rates=rates("tanh", 1.5),
)

# %% [markdown]
# The bound that holds always: one step back multiplies a gradient by at most $\max_i (1 - h_{t,i}^2)$ times the largest singular value of
# $W_{hh}$ (Pascanu et al. 2013, section 2.1). If that stays below some number smaller than 1 at all steps, the gradient must vanish. The converse is not true:
# values above 1 *may* explode, and more in some directions than in others.
#
# ### On a real layer, live
#
# `gradient_norm_by_lag` measures any recurrent layer, torch's or ours, through autograd. torch draws the weights of an `nn.RNN` uniformly
# from $\pm 1/\sqrt D$. **Predict:** how far back does a loss reach in such a layer, fresh from the constructor?

# %%
show_source(bptt.gradient_map, bptt.gradient_norm_by_lag)

# %%
torch.manual_seed(0)
layer, inputs = RNN(16, 64), torch.randn(8, 60, 16)
fresh = bptt.gradient_norm_by_lag(layer, inputs, torch.sum)
layer.weight_hh_l0.data = bptt.random_orthogonal(64, torch.Generator().manual_seed(0))
rotated = bptt.gradient_norm_by_lag(layer, inputs, torch.sum)
table(
    ["start of W_hh", *(f"lag {k}" for k in (0, 1, 5, 10, 20, 40))],
    [
        ["torch's default", *(fresh[k].item() for k in (0, 1, 5, 10, 20, 40))],
        ["orthogonal", *(rotated[k].item() for k in (0, 1, 5, 10, 20, 40))],
    ],
)
claim(
    "Fresh from the constructor, less than a thousandth arrives 20 steps back; with an orthogonal start, more than a hundredth",
    fresh[20] < 1e-3 * fresh[0] and rotated[20] > 1e-2 * rotated[0],
)

# %% [markdown]
# A network that starts with a horizon of some ten steps is told next to nothing of what lies before. That is the case for orthogonal starts, and for the gates of chapter 05.
#
# ### By time and by depth
#
# Stacked layers (chapter 03) add a second direction: a gradient goes back in time *and* down. Here are four layers and 40 steps, with a loss at
# the last step of the top layer only. **Predict:** at which step is the gradient largest in the top layer's row, at which in the lowest? How does it fade to the left?

# %%
maps, T = {}, 40
for start in ("default", "orthogonal"):
    generator = torch.Generator().manual_seed(5)
    stack = stacked(4, 16, 64, start, generator)  # four one-layer RNNs
    inputs = torch.randn(16, T, 16, generator=generator)
    maps[start] = bptt.gradient_map(stack, inputs, lambda h: h[:, -1].sum())  # (layers, T)

panels = plots.grid(2, 1, height=4.6, sharex=True)[:, 0]
for ax, (start, norms) in zip(panels, maps.items(), strict=True):
    shares = (norms / norms.amax(dim=1, keepdim=True)).flip(0)  # top layer in the top row
    ticks = [str(t) if t % 5 == 0 else "" for t in range(1, T + 1)]
    plots.heatmap(
        ax, shares, ticks, ["4 (top)", "3", "2", "1"], "share of the row's largest", ylabel="layer"
    )
    ax.set_title(f"W_hh: {start} start")
panels[1].set_xlabel("step t (the loss is at step 40)")
show(
    panels[0],
    alt="Two heat maps of gradient norm, four layers by 40 steps. Default start: colour only in the last ten steps or so. Orthogonal "
    "start: colour fades slowly over 20 to 30 steps, and reaches further back in lower layers.",
    caption="Where does the loss of step 40 arrive? With the default start only in the last few steps, in every layer. With an orthogonal "
    "start it fades slowly, and lower layers hear it from further back (their largest lies some steps before 40): more paths lead there.",
)


def left_over(start):
    """Norm at step 1 over norm at step 40, for each seed and layer, from the ledger."""
    return ledger.values("bptt-map", f"{start} start", "first_over_last")


claim(
    "In every recorded run and layer the default start leaves less than 1e-6 of the gradient after 39 steps",
    all(share < 1e-6 for run in left_over("default") for share in run),
)
claim(
    "With the orthogonal start more than a thousandth is left, most in the lowest layer",
    all(min(run) > 1e-3 and run[0] == max(run) for run in left_over("orthogonal")),
    bottom_to_top=left_over("orthogonal")[0],
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
# **numbers** of the state go on; its **gradient** stops at the edge (the scissors in the diagram above). In torch the cut is one word, `detach`. In
# the recursion it is one term less: where $t$ is a multiple of $w$, nothing comes back from $h_{t+1}$.

# %%
show_source(bptt.detached, bptt.truncated_backward, bptt._windows)

# %%
x, y = draw(3, 12, 2), draw(3, 12, 5, seed=1)
W_hx, W_hh, W_qh = draw(4, 2, seed=3), 0.5 * draw(4, 4, seed=4), draw(5, 4, seed=5)
cache = bptt.forward_pass(x, W_hx, W_hh, W_qh, nonlinearity="tanh")
_, do = bptt.squared_loss(cache.o, y)
by_hand = bptt.backward_pass(do, cache, W_hh, W_qh, nonlinearity="tanh", window=4)
leaves = [w.clone().requires_grad_() for w in (W_hx, W_hh, W_qh)]
cut = bptt.forward_pass(x, *leaves, nonlinearity="tanh", window=4)  # detaches after steps 4 and 8
autograd = torch.autograd.grad(bptt.squared_loss(cut.o, y)[0], leaves)
claim(
    "Truncated by hand (window=4) is autograd with detach, within 1e-10",
    all((a - b).abs().max() < 1e-10 for a, b in zip(by_hand[:3], autograd, strict=True)),
)
claim(
    "The forward pass with the cuts gives the same numbers",
    torch.allclose(cut.o, cache.o, rtol=1e-12),
)
claim(
    "A window of 40 steps keeps a tenth of what all 400 do (within a fifth)",
    0.08 < kept(40) / kept(400) < 0.12,
    window=kept(40),
    all_steps=kept(400),
)

# %% [markdown]
# Windows pay for long streams: memory is that of one window, and the weights move after each. (Williams and Peng's original goes back $w$ steps from *every* step, with
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
# network is the one of this chapter's beginning, with a lag of 8. **Predict:** windows of 4 steps. For which network is the angle larger, for an untrained one, or for one that has learned the task
# (with windows of 32)?

# %%
panels = plots.grid(1, 2, height=3.0)[0]
biases = {}
for name, color in {"untrained": "muted", "trained": "gradient"}.items():
    for ax, metric in zip(panels, ["cosine", "norm_ratio"], strict=True):
        windows = ledger.values("bptt-truncation", f"bias, {name}", "windows")[0]
        biases[name, metric] = ledger.values("bptt-truncation", f"bias, {name}", metric)
        plots.band(ax, windows, biases[name, metric], name, color, marker="o", markersize=4)
for ax, ylabel in zip(
    panels, ["cosine with the full gradient", "norm ratio to the full gradient"], strict=True
):
    ax.set_xscale("log", base=2)
    ax.set(xlabel="window w (steps, log scale)", ylabel=ylabel, ylim=(0, 1.08))
    ax.set_xticks([2, 4, 8, 16, 32, 64], [2, 4, 8, 16, 32, 64])
panels[0].legend(loc="lower right")
show(
    panels[0],
    alt="Cosine and norm ratio against window, both rising to 1. The untrained network's curves are near 1 from the start; the trained one's "
    "begin at a cosine of about 0.25 and a ratio of about 0.1, and reach 1 at windows of 32 and 64.",
    caption="How far is a truncated gradient from the full one? In an untrained network hardly at all, since its far gradients have vanished "
    "anyway. In one that remembers, the gradients of short windows point elsewhere and are several times too short.",
)


def at_window(name, metric, window):
    """The recorded values of one window, one for each seed."""
    return [run[windows.index(window)] for run in biases[name, metric]]


claim(
    "At w = 4 the cosine is above 0.9 in every untrained network and below 0.7 in every trained one",
    min(at_window("untrained", "cosine", 4)) > 0.9 and max(at_window("trained", "cosine", 4)) < 0.7,
    untrained=at_window("untrained", "cosine", 4),
    trained=at_window("trained", "cosine", 4),
)

# %% [markdown]
# Beware of the grey curve. "Truncated and full gradients nearly agree, so truncation is harmless" is measured on a network that has nothing to
# lose. The small difference is the very part that would teach it to remember.
#
# A live version, on an untrained layer that does remember, for its weights are a rotation:

# %%
torch.manual_seed(2)
layer, head = RNN(V, 32), nn.Linear(32, V)
ids = torch.randint(V, (16, LAG + 96))


def summed_loss(output, targets):
    """Cross-entropy, summed over steps and sequences, so that windows add up."""
    return F.cross_entropy(head(output).flatten(0, 1), targets.flatten(), reduction="sum")


stream, targets = F.one_hot(ids[:, LAG:], V).float(), ids[:, :-LAG]
default = bptt.truncation_bias(layer, summed_loss, stream, targets, [2, 6, 24, 96])
layer.weight_hh_l0.data = bptt.random_orthogonal(32, torch.Generator().manual_seed(2))
rotated = bptt.truncation_bias(layer, summed_loss, stream, targets, [2, 6, 24, 96])
table(
    ["window", "cosine, default start", "cosine, orthogonal start"],
    [[w, round(default[w][0], 3), round(rotated[w][0], 3)] for w in default],
)
claim(
    "With windows of 2 steps the network that remembers has the worse gradient; a window of all steps is the full one",
    rotated[2][0] < default[2][0] and abs(rotated[96][0] - 1) < 1e-5,
)

# %% [markdown]
# ### What is learned, then
#
# Back to the task: say the symbol of 8 steps ago, with windows of 2 to 32 steps, equally many symbols for all (so the longer the window, the fewer updates). Beside the usual truncation (the state is *carried*)
# runs a mistake that is easy to make: the state is set to *zero* at the beginning of every window. All are tested on one long stream, never cut.
#
# **Predict** the accuracy for windows of 4, 8, 10 and 32: carried, and zeroed.

# %%
windows = [2, 4, 8, 10, 12, 16, 32]
ax = plots.axes(height=3.2)
echo = {}
for name, color in {"carried": "hidden", "zeroed": "gradient"}.items():
    echo[name] = {
        w: ledger.values("bptt-truncation", f"{name}, window {w}", "accuracy") for w in windows
    }
    plots.band(
        ax,
        windows,
        list(zip(*echo[name].values(), strict=True)),
        f"state {name}",
        color,
        marker="o",
    )
ax.axhline(1 / 5, color=plots.COLORS["muted"], linestyle="--")
ax.text(26, 0.225, "guessing", color=plots.COLORS["muted"])
ax.axvline(8, color=plots.COLORS["ink"], linestyle=":")
ax.text(8.2, 0.05, "lag 8", color=plots.COLORS["ink"])
ax.set_xscale("log", base=2)
ax.set_xticks(windows, windows)
ax.set(
    xlabel="window w (steps, log scale)", ylabel="accuracy on a stream without cuts", ylim=(0, 1.05)
)
ax.legend(loc="upper left")
show(
    ax,
    alt="Accuracy against window. Up to a window of 8, the lag, both curves lie near guessing. From 10 on the carried state is above 0.9. "
    "The zeroed state rises later and unevenly, and meets it at 32.",
    caption="Which lag can truncated training learn? One that fits into a window. With w of 8 or less the answer and its cause never share a window. "
    "Carrying the state lets two extra steps (w = 10) suffice; zeroing it wastes the first 8 answers of every window.",
)
claim(
    "Windows up to the lag: below 0.35 in every run. Two steps more, with the state carried: above 0.85 in every run",
    max(v for w in (2, 4, 8) for v in echo["carried"][w]) < 0.35
    and min(echo["carried"][10]) > 0.85,
    w_8=echo["carried"][8],
    w_10=echo["carried"][10],
)
claim(
    "Carried over windows up to the lag, every run is still a little better than guessing (above 0.21)",
    min(v for w in (2, 4, 8) for v in echo["carried"][w]) > 0.21,
    w_2=echo["carried"][2],
    w_4=echo["carried"][4],
)
claim(
    "With the same 10 steps and the state zeroed, the accuracy is below 0.4 in every run",
    max(echo["zeroed"][10]) < 0.4,
    w_10=echo["zeroed"][10],
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


for window in (1, 5, 20):
    torch.manual_seed(3)
    small = nn.RNN(2, 3, batch_first=True, dtype=torch.float64)
    x, y = draw(4, 20, 2), draw(4, 20, 3, seed=1)
    loss = buggy_window_backward(small, lambda h, y: (h - y).square().sum(), x, y, window)
    print(
        f"window {window:2}: loss {loss:.4f}, norm of dL/dW_hh {small.weight_hh_l0.grad.norm():.4f}"
    )

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
for model in (ours, theirs):
    (100 * model(torch.ones(2, 7, 3))[0].sum()).backward()
before = torch.cat([p.grad.flatten() for p in ours.parameters()])
norm = bptt.clip_norm(ours.parameters(), 1.0)
wanted = nn.utils.clip_grad_norm_(theirs.parameters(), 1.0).item()
after = torch.cat([p.grad.flatten() for p in ours.parameters()])
claim(
    "bptt.clip_norm is torch's clip_grad_norm_: the same norm is returned, the same gradients are left",
    math.isclose(norm, wanted, rel_tol=1e-5)
    and all(
        torch.allclose(a.grad, b.grad, rtol=1e-4)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    ),
    norm=norm,
)
limited = before.clamp(-1.0, 1.0)
claim(
    "Clipping by norm keeps the direction; clipping every entry to -1 ... 1 (clip_grad_value_) turns it",
    F.cosine_similarity(before, after, dim=0) > 0.9999
    and F.cosine_similarity(before, limited, dim=0) < 0.95,
    by_norm=F.cosine_similarity(before, after, dim=0),
    by_value=F.cosine_similarity(before, limited, dim=0),
)

# %% [markdown]
# ### Where it decides
#
# A tanh network starts from a rotation and must recall a token after 20 steps. Plain SGD, 600 steps, five learning rates, five seeds each; the only difference is
# clipping at $c = 1$. **Predict:** which learning rates work without clipping? Which with it? Guessing is right 1 time in 5.

# %%
learning_rates = [0.01, 0.03, 0.1, 0.3, 1.0]
panels = plots.grid(1, 2, height=3.2, width_ratios=[1, 1.15])[0]
ways = {"not clipped": "gradient", "clipped at 1": "attention"}
recalled = {}
for name, color in ways.items():
    recalled[name] = {
        r: ledger.values("bptt-clipping", f"{name}, rate {r:g}", "accuracy") for r in learning_rates
    }
    plots.band(
        panels[0],
        learning_rates,
        list(zip(*recalled[name].values(), strict=True)),
        name,
        color,
        marker="o",
    )
    steps = ledger.curves("bptt-clipping", f"{name}, rate 0.3", "step")[0]
    norms = ledger.curves("bptt-clipping", f"{name}, rate 0.3", "norm")[0]
    panels[1].plot(steps, norms, color=plots.COLORS[color], label=name, linewidth=1.3)
panels[0].axhline(1 / 5, color=plots.COLORS["muted"], linestyle="--")
panels[0].set(xscale="log", xlabel="learning rate (log scale)", ylabel="accuracy", ylim=(0, 1.05))
panels[1].axhline(1.0, color=plots.COLORS["ink"], linestyle=":")
panels[1].set(
    yscale="log", xlabel="step", ylabel="norm before clipping (log)", title="rate 0.3, first seed"
)
panels[1].legend(loc="upper right", fontsize=9)
show(
    panels[0],
    alt="Left: accuracy by learning rate. Clipped rises to 1 at 0.3 and falls at 1; not clipped stays below a half on average everywhere. "
    "Right: gradient norm over 600 steps at rate 0.3: without clipping it stays near 5 after early spikes, with clipping it falls a hundredfold.",
    caption="What does clipping buy? Learning rates ten times larger, at which the task is solved in time (left: mean and range of five seeds). The gradients before "
    "clipping still spike (right), but each spike moves the weights by a bounded step.",
)
claim(
    "At rate 0.3 every clipped run recalls (above 0.95); no unclipped run does (below 0.6)",
    min(recalled["clipped at 1"][0.3]) > 0.95 and max(recalled["not clipped"][0.3]) < 0.6,
    clipped=recalled["clipped at 1"][0.3],
    not_clipped=recalled["not clipped"][0.3],
)
worst = {name: ledger.values("bptt-clipping", f"{name}, rate 0.3", "worst_loss") for name in ways}
claim(
    "After the first tenth of the steps every unclipped loss still spikes above 4 nats; every clipped one stays below 2.5",
    min(worst["not clipped"]) > 4 and max(worst["clipped at 1"]) < 2.5,
    not_clipped=worst["not clipped"],
    clipped=worst["clipped at 1"],
)
claim(
    "It is no cure for a rate that is too large (1.0) nor for one that is too small (0.01): below 0.7 in every run",
    max(recalled["clipped at 1"][1.0] + recalled["clipped at 1"][0.01]) < 0.7,
    rate_1=recalled["clipped at 1"][1.0],
    rate_0_01=recalled["clipped at 1"][0.01],
)


# %%
def train_recall(max_norm, lag=12, steps=300, rate=0.4):
    """Live and smaller: largest norm on the way, largest loss after step 30, mean loss at the end."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    layer, head = RNN(6, 40), nn.Linear(40, 6)
    layer.weight_hh_l0.data = bptt.random_orthogonal(40, generator)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, rate)
    norms, losses = [], []
    for _ in range(steps):
        x, y = toy.recall_task(32, lag, 6, generator)
        output, _ = layer(F.one_hot(x, 6).float())
        loss = F.cross_entropy(head(output[:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(bptt.clip_norm(parameters, max_norm))  # the norm before clipping
        optimizer.step()
        losses.append(loss.item())
    return max(norms), max(losses[30:]), sum(losses[-30:]) / 30


runs = {"not clipped": train_recall(math.inf), "clipped at 1": train_recall(1.0)}
claim(
    "Live, lag 12: clipped, the loss ends below 0.1 nats; unclipped, above 1 nat (guessing: 1.61)",
    runs["clipped at 1"][2] < 0.1 and runs["not clipped"][2] > 1,
    clipped=runs["clipped at 1"],
    not_clipped=runs["not clipped"],
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
torch.manual_seed(0)
layer, stream = RNN(2, 3), torch.randn(1, 12, 2)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)


def two_windows(between, **backward):
    """Two windows with an optimizer step each; `between` treats the state; the error, if there is one."""
    state = None
    try:
        for x in stream.split(6, dim=1):
            output, state = layer(x, between(state))
            optimizer.zero_grad()
            output.square().sum().backward(**backward)
            optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


message = two_windows(between=lambda state: state)
claim(
    "Without detach the second backward fails: 'backward through the graph a second time'",
    "backward through the graph a second time" in message,
)

# %% [markdown]
# The error's text proposes `retain_graph=True`. **Do not take the advice.** It keeps every window's graph alive, so memory and time grow with each window; and here it
# does not even run:

# %%
message = two_windows(between=lambda state: state, retain_graph=True)
claim(
    "With retain_graph=True it fails too: the optimizer has changed weights that the old graph needs",
    "modified by an inplace operation" in message,
)


def graph_size(tensor):
    """Number of operations that a backward pass from here would visit."""
    seen, front = set(), [tensor.grad_fn]
    while front:
        node = front.pop()
        if node is not None and node not in seen:
            seen.add(node)
            front += [after for after, _ in node.next_functions]
    return len(seen)


sizes = {"state kept": [], "state detached": []}
for name, between in {"state kept": lambda s: s, "state detached": bptt.detached}.items():
    state = None
    for x in stream.split(2, dim=1):
        _, state = layer(x, between(state))
        sizes[name].append(graph_size(state))
kept_sizes, detached_sizes = sizes.values()
claim(
    "Without detach each window makes the graph larger; the sixth walks through more than 4 times the first",
    all(a < b for a, b in pairwise(kept_sizes)) and kept_sizes[5] > 4 * kept_sizes[0],
    operations=kept_sizes,
)
claim(
    "The repair is detach: no error, and a graph that does not grow",
    two_windows(between=bptt.detached) == "" and len(set(detached_sizes)) == 1,
    operations=detached_sizes,
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


claim(
    "Clipping after the step is no clipping at all",
    torch.equal(one_step(["step", "clip"]), one_step(["step"])),
)
moved = (one_step(["clip", "step"]) - one_step([])).norm()
claim(
    "Clipped before the step, the weights move by rate times max_norm = 0.1",
    abs(moved - 0.1) < 1e-4,
)

# %% [markdown]
# **Mistake 3 · logging the norm after clipping.** It can never exceed $c$, so the one number that would have warned you looks healthy. Log what `clip_norm` *returns*.

# %%
rows = []
for factor in (0.001, 1, 1000):
    torch.manual_seed(0)
    layer = RNN(3, 5)
    (factor * layer(torch.ones(2, 7, 3))[0].sum()).backward()
    returned = bptt.clip_norm(layer.parameters(), 1.0)
    rows.append(
        [factor, returned, torch.cat([p.grad.flatten() for p in layer.parameters()]).norm().item()]
    )
table(["loss times", "norm that is returned", "norm afterwards"], rows)
claim("Afterwards, 1 and 1000 times the loss look the same", abs(rows[1][2] - rows[2][2]) < 1e-5)

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
    """First lag at which less than 1/100 arrives (`steps` if none does), and the mean of tanh'."""
    W_hh = radius * bptt.random_orthogonal(
        32, torch.Generator().manual_seed(1), dtype=torch.float64
    )
    x, eye = input_scale * draw(8, steps + 1, 32), torch.eye(32, dtype=torch.float64)
    norms = norms_by_lag(W_hh, x, nonlinearity)
    h = bptt.forward_pass(x, eye, W_hh, eye, nonlinearity=nonlinearity).h[:, 1:]
    below = [k for k, norm in enumerate(norms.tolist()) if norm < 0.01]
    return (below or [steps])[0], (1 - h.square()).mean().item() if nonlinearity == "tanh" else 1.0


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
# 4. Truncation is biased towards near dependencies: no gradient teaches what does not fit into a window, and more data do not help.
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
