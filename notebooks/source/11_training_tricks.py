# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 200
#     needs: chapters 04 and 09
# ---

# %% [markdown]
# # 11 · Training tricks
#
# A Transformer of 12 layers has to write 8 letters backwards. Three runs get the same data in the same order and the same learning rate. One of them
# learns nothing at all. The other two differ from it by one line each. **What do a few small first steps, or a LayerNorm in another place, change?**

# %% tags=["setup"]
import functools
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from course_lib import diagrams, ledger, optim, plots
from course_lib.checks import ch11
from course_lib.claims import claim
from course_lib.display import markdown, show, show_source, table
from course_lib.experiments import ch11 as tricks
from course_lib.optim import RAdam, clip_grad_norm, decay_groups, rectification
from course_lib.positions import Sinusoidal
from course_lib.train import language_model_loss, set_seed, train_epoch
from course_lib.transformer import (
    EncoderLayer,
    TokenEmbedding,
    TransformerEncoder,
    post_ln,
    pre_ln,
    rezero,
)

set_seed(0)

# %%
LETTERS, T, D, LAYERS = 16, 8, 32, 12


def reverser(residual):
    """A Transformer from 8 letters to 8 letters, with the same matrices for each kind of residual."""
    set_seed(0)
    layers = [EncoderLayer(D, 4, 4 * D, 0.0, residual=residual) for _ in range(LAYERS)]
    encoder = TransformerEncoder(layers, norm=nn.LayerNorm(D) if residual == "pre-ln" else None)
    return nn.Sequential(TokenEmbedding(LETTERS, D, Sinusoidal(D)), encoder, nn.Linear(D, LETTERS))


def examples(generator, size=32):
    """Random letters, and the same backwards."""
    x = torch.randint(LETTERS, (size, T), generator=generator)
    return x, x.flip(1)


def train(residual, warmup, look=None, steps=120, looks=(0, 1, 2, 3, 5, 10, 20, 40)):
    """The loss of every step, and what `look(model)` saw before some of them."""
    model, generator = reverser(residual), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    scheduler = LambdaLR(optimizer, functools.partial(optim.constant, warmup=warmup))
    losses, seen = [], {}
    for step in range(steps):
        if look and step in looks:
            seen[step] = look(model)
        batch = [examples(generator)]
        losses.append(
            train_epoch(model, batch, language_model_loss, optimizer, scheduler=scheduler)["loss"]
        )
    return losses, seen


# %% [markdown]
# Post-LN has a norm behind each addition, Pre-LN in front of each sublayer (chapter 09; section 6 draws both). While they train, we look inside before some of the steps. What is measured there is explained in section 2.


# %%
def inside(model):
    """Four numbers of a model on one fixed batch, see section 2."""
    x, y = examples(torch.Generator().manual_seed(99))
    encoder, sums = model[1], []
    hook = encoder.layers[-1].norm2.register_forward_pre_hook(
        lambda norm, args: sums.append(args[0])
    )
    model.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    hook.remove()
    with torch.no_grad():
        out = encoder(model[0](x))  # (B, T, D)
        alike = out.mean((0, 1)).square().sum() / out.square().sum(-1).mean()
    return {
        "gradient, first layer": encoder.layers[0].linear2.weight.grad.norm().item(),
        "gradient, last layer": encoder.layers[-1].linear2.weight.grad.norm().item(),
        "size of what the last norm reads": sums[0].std(-1).mean().item(),
        "share that all outputs have in common": alike.item(),
    }


losses, seen = {}, {}
losses["Post-LN"], seen["Post-LN"] = train("post-ln", 0, look=inside)

# %%
name = "Post-LN, warm-up of 60 steps"
losses[name], seen[name] = train("post-ln", 60, look=inside)

# %%
losses["Pre-LN"], seen["Pre-LN"] = train("pre-ln", 0, look=inside)

# %% tags=["nbval-ignore-output"]
ax = plots.axes(height=3.0)
plots.lines(
    ax,
    {name: (range(1, 121), curve) for name, curve in losses.items()},
    "optimizer step",
    "training loss (nats a letter)",
    colors={"Post-LN": "gradient", "Post-LN, warm-up of 60 steps": "output", "Pre-LN": "attention"},
)
ax.axhline(math.log(LETTERS), color=plots.COLORS["muted"], linestyle="--", linewidth=1)
show(
    ax,
    alt="Three loss curves over 120 steps. Post-LN stays on the dashed line at ln 16. Post-LN with warm-up falls slowly below it. Pre-LN falls fastest.",
    caption="Which of the three learns? Post-LN without warm-up stays at ln 16 (dashed), a guess among 16 letters; with a warm-up it learns, slowly; Pre-LN learns without one.",
)

# %%
end = {name: sum(curve[-20:]) / 20 for name, curve in losses.items()}
claim(
    "Post-LN without warm-up ends within 0.05 nats of a blind guess among 16 letters",
    abs(end["Post-LN"] - math.log(LETTERS)) < 0.05,
    loss=end["Post-LN"],
)
claim(
    "With a warm-up of 60 steps the same model is at least 0.2 nats better",
    end["Post-LN, warm-up of 60 steps"] < math.log(LETTERS) - 0.2,
    loss=end["Post-LN, warm-up of 60 steps"],
)
claim(
    "Pre-LN is more than 1 nat better, without a warm-up",
    end["Pre-LN"] < math.log(LETTERS) - 1,
    loss=end["Pre-LN"],
)

# %% [markdown]
# ## You will be able to
#
# 1. derive what LayerNorm does to a gradient, and write its backward pass (exercise 11.1);
# 2. say what Adam's first steps look like, and compute RAdam's by hand (exercise 11.2);
# 3. write a learning-rate schedule, and a training loop in which accumulation, clipping and schedule do not disturb each other (exercises 11.3, 11.7);
# 4. place a norm, tell Pre-LN from code that only looks like it, and choose what decays (exercises 11.4, 11.5);
# 5. read a grid of measured settings, and say which trick it supports and which not (exercise 11.6).
#
# Lists of tricks are copied more often than measured. Here each trick has its reason, its line of code and its number. Where a number contradicts the reason, you see both.
#
# ## 1 · What LayerNorm does to a gradient
#
# Take one vector $x$ of $D$ numbers (the model's width) with mean $\bar x$. LayerNorm, without its gain and bias, gives
#
# $$ \hat x = \frac{x - \bar x}{\sigma}, \qquad \sigma = \sqrt{\tfrac1D \textstyle\sum_i (x_i - \bar x)^2} = \frac{\lVert x - \bar x \rVert}{\sqrt D} . $$
#
# Its derivative needs no algebra. **Predict, then run:** how far does $\hat x$ move when $x$ makes a small step (a) by the same number in all entries, (b) along $x - \bar x$, which stretches it, (c) at right angles to both?

# %%
generator = torch.Generator().manual_seed(0)
x = 3 * torch.randn(D, generator=generator, dtype=torch.float64) + 1
hat, sigma = F.layer_norm(x, (D,)), x.std(correction=0)
across = torch.randn(D, generator=generator, dtype=torch.float64)
across = across - across.mean() - hat * (across * hat).mean()
steps = {"(a)": torch.ones_like(x), "(b)": hat, "(c)": across}
moved = {
    name: ((F.layer_norm(x + 1e-4 * step, (D,)) - hat).norm() / (1e-4 * step.norm())).item()
    for name, step in steps.items()
}
claim("(a), (b) Not at all", moved["(a)"] < 1e-6 and moved["(b)"] < 1e-5)
claim("(c) By the step divided by sigma, within 0.1 %", abs(moved["(c)"] * sigma - 1) < 1e-3)

# %% [markdown]
# So the derivative $J$ removes the directions $(1, \ldots, 1)$ and $\hat x$, and divides all others by $\sigma$:
#
# $$ J = \frac{\partial \hat x}{\partial x} = \frac1\sigma \Big( I - \tfrac1D \mathbf 1 \mathbf 1^\top - \tfrac1D \hat x \hat x^\top \Big), \qquad
#    \lVert J \rVert = \frac1\sigma = \frac{\sqrt D}{\lVert x - \bar x \rVert} . $$
#
# Its norm (largest singular value) is exactly $1/\sigma$: the larger what LayerNorm reads, the smaller the gradient that it hands back. Papers write this as $O(\sqrt D / \lVert x \rVert)$. **Predict, then run:** which of the two, $\lVert x \rVert$ or $\lVert x - \bar x \rVert$, does a vector with a large mean obey?

# %%
show_source(tricks.layer_norm_gain)
lengths = (0.5, 1, 2, 4, 8, 16, 32, 64)
centred = [tricks.layer_norm_gain(64, length, seed=0) for length in lengths]
shifted = [tricks.layer_norm_gain(64, length, seed=0, centred=False) for length in lengths]
claim(
    "For x with mean 0 the largest singular value is sqrt(D) / |x|, at every length from 0.5 to 64",
    all(abs(gain["largest"] / gain["law"] - 1) < 0.01 for gain in centred),
)
claim(
    "For x with another mean it is larger: LayerNorm does not see the mean, so |x - mean| counts",
    all(gain["largest"] / gain["law"] > 1.2 for gain in shifted),
    times_the_law=shifted[4]["largest"] / shifted[4]["law"],
)

# %%
ax = plots.axes(height=3.0)
gains = {
    "law: sqrt(D) / |x|": (lengths, [gain["law"] for gain in centred]),
    "x with mean 0": (lengths, [gain["largest"] for gain in centred]),
    "x with entries around 1": (lengths, [gain["largest"] for gain in shifted]),
}
for (name, (x, y)), style in zip(gains.items(), ("-", "o", "s"), strict=True):
    color = "muted" if style == "-" else "attention" if style == "o" else "output"
    plots.lines(
        ax,
        {name: (x, y)},
        "length |x|",
        "norm of the Jacobian",
        {name: color},
        marker=style if style != "-" else "",
        linestyle="-" if style == "-" else "",
    )
ax.legend()
ax.set(xscale="log", yscale="log")
show(
    ax,
    alt="Norm of LayerNorm's Jacobian against the length of x on logarithmic axes. Dots for x with mean 0 lie on the falling line of the law; squares for x with another mean lie above it, parallel.",
    caption="Does the law hold? On the line for x with mean 0. With another mean the gain is larger: the part of |x| that is mean does not count.",
)

# %% [markdown]
# A residual stream adds the output of a sublayer to its input, so it grows, and $\sigma > 1$ behind every addition. In a stack of $N$ layers there are $2N$ norms. From this it is often concluded: *Post-LN divides the gradient by more than 1 at each of 2N norms, so it vanishes in the lower layers.*
# The law is exact. Is the conclusion? A gradient that comes down passes the norm, *and then the addition*, where the sublayer's own gradient is added to it. Here are both factors, at initialisation, for our reverser:


# %%
def factors(encoder, x):
    """For each sublayer of a Post-LN encoder: what its norm and what its addition multiply a gradient's length by."""
    stream, found = x.requires_grad_(), []
    points = [stream]  # x, sum, x, sum, ...
    for layer in encoder.layers:
        for sublayer, norm in ((layer.self_attn, layer.norm1), (layer.feed_forward, layer.norm2)):
            total = stream + sublayer(stream)
            stream = norm(total)
            points += [total, stream]
    for point in points[1:]:
        point.retain_grad()
    generator = torch.Generator().manual_seed(1)
    stream.backward(torch.randn(stream.shape, generator=generator))
    lengths = [point.grad.norm().item() for point in points]
    for before, total, after in zip(lengths[::2], lengths[1::2], lengths[2::2], strict=False):
        found.append((total / after, before / total))
    return found


model = reverser("post-ln")
x, _ = examples(torch.Generator().manual_seed(0))
through_norm, through_sum = zip(*factors(model[1], model[0](x).detach()), strict=True)
claim(
    "24 norms alone would make the gradient shorter",
    math.prod(through_norm) < 0.9,
    factor=math.prod(through_norm),
)
claim(
    "24 additions make it longer",
    math.prod(through_sum) > 1.1,
    factor=math.prod(through_sum),
)
claim(
    "Together: from top to bottom the gradient keeps its order of magnitude",
    0.2 < math.prod(through_norm) * math.prod(through_sum) < 5,
    factor=math.prod(through_norm) * math.prod(through_sum),
)

# %% [markdown]
# So the law describes one of two factors, and at initialisation the other one makes up for it. Why? Let a sublayer's output have $s$ times the squared length of the stream, at right angles to it. Then $\sigma^2$ grows to $1 + s$, and the norm divides the squared gradient by $1 + s$. A random sublayer stretches gradients about as much as inputs, so the addition multiplies by about $1 + s$ again. What the ledger holds for three depths, mean over seeds of the gradient of the feed-forward output matrix, first layer relative to last, with two ways of drawing the matrices:


# %%
def first_over_last(residual, values, layers):
    """Mean, least and greatest over the seeds."""
    row = f"gradients, {residual}, {values}, {layers} layers"
    return ledger.summary("gradient-norms", row, "first_over_last")[:3]


ratio = {
    (residual, values): [first_over_last(residual, values, layers) for layers in (6, 12, 24)]
    for residual in ("post-ln", "pre-ln")
    for values in ("torch", "xavier")
}
table(
    ["first layer over last", "6 layers", "12 layers", "24 layers"],
    [
        [
            f"{residual}, {values}",
            *(f"{mean:.2f} ({low:.2f}..{high:.2f})" for mean, low, high in cells),
        ]
        for (residual, values), cells in ratio.items()
    ],
)
claim(
    "Post-LN at initialisation: at no depth is the first layer's gradient, in the mean over seeds, below half of the last one's",
    all(
        0.5 < mean < 2 for values in ("torch", "xavier") for mean, _, _ in ratio["post-ln", values]
    ),
)
claim(
    "But with Xavier's values and 24 layers one seed in three has a first layer with less than a tenth, another with more than 1.5 times",
    ratio["post-ln", "xavier"][2][1] < 0.1 and ratio["post-ln", "xavier"][2][2] > 1.5,
)
claim(
    "In Pre-LN it is the first layers that get more, and the more so the deeper the network",
    all(
        1 < ratio["pre-ln", values][0][0] < ratio["pre-ln", values][2][0]
        for values in ("torch", "xavier")
    ),
)

# %% [markdown]
# This contradicts what many tutorials print. What did Xiong et al. (2020) prove? Their theorem 1 bounds the gradient of the *last* layer: $O(D \sqrt{\ln D})$ in Post-LN at any depth, $O(D \sqrt{\ln D / N})$ in Pre-LN. Large gradients near the output are their reason for small first steps. The ledger, with Xavier's values as in their theory:

# %%
last = {
    residual: [
        ledger.values(
            "gradient-norms", f"gradients, {residual}, xavier, {layers} layers", "feed-forward"
        )
        for layers in (6, 12, 24)
    ]
    for residual in ("post-ln", "pre-ln")
}
last = {
    residual: [sum(norms[-1] for norms in runs) / len(runs) for runs in found]
    for residual, found in last.items()
}
table(
    ["gradient of the last layer", "6 layers", "12 layers", "24 layers"],
    [[residual, *(f"{value:.2f}" for value in found)] for residual, found in last.items()],
)
claim(
    "From 6 to 24 layers it falls in Pre-LN to 0.5 to 0.65 of its size (theory: 1/2); in Post-LN it does not fall",
    0.5 < last["pre-ln"][2] / last["pre-ln"][0] < 0.65 and last["post-ln"][2] > last["post-ln"][0],
)

# %% [markdown]
# The theorem holds here. What does not is the step from it to the lower layers: in their figures Post-LN's gradients grow from bottom to top, in ours they do not. Task, size and initial values differ; which of them matters we did not measure. Do not conclude that Post-LN is harmless: section 2 shows what training makes of it.

# %% [markdown]
# ### Exercise 11.1 · LayerNorm backwards
#
# Difficulty ●●●○○ · 25 minutes · needs section 1
#
# Write the backward pass of LayerNorm (without gain and bias) from the Jacobian above, for a whole batch, without autograd and without building a D × D matrix. $J$ is symmetric, so $\partial L / \partial x = J\, \partial L / \partial \hat x$: subtract two projections, divide by $\sigma$.
# LayerNorm adds `eps` to the variance before the root.


# %% nbgrader={"grade": false, "grade_id": "ex11-1-layer-norm-backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_norm_backward(x, gradient, eps=1e-5):
    """The gradient of a loss with respect to LayerNorm's input.

    Args:
        x: (B, T, D), what the norm read.
        gradient: (B, T, D), of the loss with respect to the norm's output.
        eps: added to the variance.

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    centred = x - x.mean(-1, keepdim=True)
    sigma = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    hat = centred / sigma
    along = hat * (gradient * hat).mean(-1, keepdim=True)
    return (gradient - gradient.mean(-1, keepdim=True) - along) / sigma
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex11-1-layer-norm-backward-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch11.layer_norm_backward(layer_norm_backward)

# %% [markdown]
# ## 2 · What breaks, and when
#
# The failing model of the first screen has healthy gradients at the start, then. So look at what the run recorded before its first steps, on one fixed batch:
#
# - the norm of the gradient of the first layer's feed-forward output matrix;
# - the mean $\sigma$ of the vectors that the last layer's second LayerNorm reads;
# - how alike the outputs $h$ of all places of all sentences are: $\lVert \bar h \rVert^2$, squared length of their mean, divided by the mean of $\lVert h \rVert^2$. It is 1 if all are equal.
#
# **Predict:** after how many steps is the gradient of the first layer dead?

# %%
steps = list(seen["Post-LN"])
titles = {
    "gradient, first layer": "gradient norm,\nfirst layer",
    "size of what the last norm reads": "size of what\nthe last norm reads",
    "share that all outputs have in common": "share common\nto all outputs",
}
lines = {
    "Post-LN": ("gradient", "Post-LN"),
    "Post-LN, warm-up of 60 steps": ("output", "with warm-up"),
    "Pre-LN": ("attention", "Pre-LN"),
}
panels = plots.grid(1, 3, width=7.0, height=2.9)[0]
for ax, (key, title) in zip(panels, titles.items(), strict=True):
    for name, (color, label) in lines.items():
        values = [seen[name][step][key] for step in steps]
        ax.plot(steps, values, "o-", markersize=3, color=plots.COLORS[color], label=label)
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xticks([0, 1, 3, 10, 40], ["0", "1", "3", "10", "40"])
    ax.set(xlabel="steps taken", title=title)
panels[0].set_yscale("log")
panels[1].set_yscale("log")
panels[0].legend(fontsize=7.5, loc="lower left")
show(
    panels[0],
    alt="Three panels over the first 40 steps. Left: the gradient of the first layer falls by many orders of magnitude for Post-LN without warm-up, and stays near its start for the other two. Middle: what the last norm reads grows for Post-LN without warm-up and for Pre-LN, not with warm-up. Right: the share that all outputs have in common jumps to 1 after one step for Post-LN without warm-up.",
    caption="When does the gradient vanish? Not at the start: the first steps kill it. One step makes all outputs alike; what the norms read grows; the gradient of the first layer falls by orders of magnitude.",
)

# %%
failing, warmed, pre = seen.values()
claim(
    "At initialisation the first layer's gradient is as large as the last one's, within a factor of 2",
    0.5 < failing[0]["gradient, first layer"] / failing[0]["gradient, last layer"] < 2,
)
claim(
    "One step of Adam without warm-up makes the outputs of all letters at all places alike: more than 95 % of their squared length is common",
    failing[1]["share that all outputs have in common"] > 0.95,
    before=failing[0]["share that all outputs have in common"],
    after=failing[1]["share that all outputs have in common"],
)
claim(
    "After 10 steps the first layer's gradient is less than a hundredth of what it was",
    failing[10]["gradient, first layer"] < 0.01 * failing[0]["gradient, first layer"],
    before=failing[0]["gradient, first layer"],
    after=failing[10]["gradient, first layer"],
)
claim(
    "What the last norm reads has more than doubled by step 40, so its backward pass shrinks the gradient more than before",
    failing[40]["size of what the last norm reads"]
    > 2 * failing[0]["size of what the last norm reads"],
)
claim(
    "With the warm-up the outputs get alike for a while too, but the gradient lives, and at step 40 they differ again",
    warmed[40]["gradient, first layer"] > 0.1 * warmed[0]["gradient, first layer"]
    and warmed[40]["share that all outputs have in common"] < 0.7,
)
claim(
    "In Pre-LN the outputs get alike and the stream grows as well; the gradient comes through, in the first layer as in the last",
    max(entry["share that all outputs have in common"] for entry in pre.values()) > 0.8
    and min(
        entry["gradient, first layer"] / entry["gradient, last layer"] for entry in pre.values()
    )
    > 0.3,
)

# %% [markdown]
# A vicious circle of this kind is described by Huang et al. (2020), with one more turn: $v$ remembers the large gradients, so Adam's steps become tiny as well. The order matters:
#
# 1. Adam's first step moves *every* weight by the learning rate $\eta$ (section 4). With 12 layers and a large $\eta$ the outputs change so much that all places look alike.
# 2. Where all places look alike, attention has nothing to choose from: mixing equal values changes nothing, and no gradient tells queries and keys what to do (section 3).
# 3. The sums that the norms read grow with the steps, and each norm divides the gradient by the size of what it reads.
# 4. In Post-LN every path from the loss to the first layer leads through 2N norms. In Pre-LN one path leads through none of them: the same accident happens, and the gradient survives it.
#
# How much does a deep stack amplify a small change of its weights? Liu et al. (2020a) hold this amplification, not unbalanced gradients, to be the root of the trouble. Change every matrix by 1 % of its size and compare the outputs:


# %%
def amplification(residual, layers, seed):
    """Squared relative change of an encoder's output when each matrix changes by 1 %."""
    torch.manual_seed(seed)
    norm = nn.LayerNorm(D) if residual == "pre-ln" else None
    layers = [EncoderLayer(D, 4, 4 * D, 0.0, residual=residual) for _ in range(layers)]
    encoder, x = TransformerEncoder(layers, norm), torch.randn(4, 16, D)
    with torch.no_grad():
        before = encoder(x)
        for p in encoder.parameters():
            if p.ndim >= 2:
                p += 0.01 * p.std() * torch.randn_like(p)
        return ((encoder(x) - before).norm() / before.norm()).square().item()


depths = (2, 4, 8, 16, 32)
change = {
    residual: [
        sum(amplification(residual, depth, seed) for seed in range(5)) / 5 for depth in depths
    ]
    for residual in ("post-ln", "pre-ln")
}
ax = plots.axes(height=2.8)
plots.lines(
    ax,
    {"Post-LN": (depths, change["post-ln"]), "Pre-LN": (depths, change["pre-ln"])},
    "layers N",
    "squared relative change",
    {"Post-LN": "gradient", "Pre-LN": "attention"},
    marker="o",
)
ax.set(xscale="log", yscale="log")
ax.set_xticks(depths, map(str, depths))
ax.minorticks_off()
show(
    ax,
    alt="Squared relative change of the output against depth on logarithmic axes. Both rise from the same value at 2 layers; Post-LN rises faster, and is about three times as high at 32 layers.",
    caption="Which placement amplifies a change of the weights more? Equal at 2 layers; with depth Post-LN grows faster than N, Pre-LN slower.",
)
claim(
    "At 2 layers the two placements amplify a change alike, within 20 %",
    abs(change["post-ln"][0] / change["pre-ln"][0] - 1) < 0.2,
)
claim(
    "From 2 to 32 layers, 16 times as deep, Post-LN's squared change grows by more than 16, Pre-LN's by less",
    change["post-ln"][-1] / change["post-ln"][0] > 20
    and change["pre-ln"][-1] / change["pre-ln"][0] < 16,
    post_ln=change["post-ln"][-1] / change["post-ln"][0],
    pre_ln=change["pre-ln"][-1] / change["pre-ln"][0],
)

# %% [markdown]
# Their theory says $O(N)$ for Post-LN and $O(\log N)$ for Pre-LN, in their model of a layer. Our layers, with torch's initial values, grow faster than either; the order of the two is theirs.
#
# ## 3 · Queries and keys against values
#
# Inside one attention layer the gradients are unequal. Values enter the output as a weighted mean: $o_i = \sum_j a_{ij} v_j$, so the gradient $g_i$ of output $i$ reaches $v_j$ as $a_{ij}\, g_i$. Queries and keys act through the softmax, whose Jacobian is $\mathrm{diag}(a) - a a^\top$. For the score $e_{ij}$:
#
# $$ \frac{\partial L}{\partial e_{ij}} = a_{ij} \Big( g_i \cdot v_j - \sum_k a_{ik}\, g_i \cdot v_k \Big) = a_{ij}\; g_i \cdot (v_j - o_i) . $$
#
# Read the last factor: what counts is how much a value *differs from the mean* that the query got. If all values are alike, queries and keys get nothing, whatever $g$ is. **Predict:** we mix a common vector into all places, with share $c$ of the squared length. What happens to the gradient of $W_q$ relative to that of $W_v$ as $c$ goes to 1?


# %%
def query_over_value(share, seeds=5):
    """Norm of the gradient of W_q relative to that of W_v, for inputs with a common part."""
    found = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        layer = EncoderLayer(D, 4, 4 * D, 0.0).self_attn
        common, own = torch.randn(1, 1, D), torch.randn(8, 16, D)
        x = share**0.5 * common + (1 - share) ** 0.5 * own
        (layer(x) * torch.randn(8, 16, D)).sum().backward()
        query, _, value = layer.in_proj_weight.grad.chunk(3)
        found.append((query.norm() / value.norm()).item())
    return sum(found) / seeds


shares = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
ratios = [query_over_value(share) for share in shares]
table(
    ["share in common", *map(str, shares)],
    [["gradient of W_q over W_v", *(f"{ratio:.1g}" for ratio in ratios)]],
)
claim(
    "The more the places have in common, the smaller the gradient of the queries beside that of the values",
    ratios == sorted(ratios, reverse=True) and ratios[-1] < 0.05 * ratios[0],
)
claim(
    "With half of the length in common it is less than a fifth as large",
    ratios[2] < 0.2,
    ratio=ratios[2],
)

# %% [markdown]
# And in a whole model? The ledger's six layers, before and after 150 steps of training (Post-LN and Pre-LN; ReZero's matrices have no gradient at all before its first step, see section 6):

# %%
projections = {
    (residual, steps): ledger.summary(
        "gradient-norms", f"projections, {residual}, {steps} steps", "query_over_value"
    )[:3]
    for residual, steps in (
        ("post-ln", 0),
        ("pre-ln", 0),
        ("post-ln", 150),
        ("pre-ln", 150),
        ("rezero", 150),
    )
}
table(
    ["placement", "steps taken", "gradient of W_q over W_v"],
    [
        [residual, steps, f"{mean:.2f} ({low:.2f}..{high:.2f})"]
        for (residual, steps), (mean, low, high) in projections.items()
    ],
)
claim(
    "Before training the queries get between a tenth and a fifth of what the values get",
    all(
        0.1 < bound < 0.2
        for residual in ("post-ln", "pre-ln")
        for bound in projections[residual, 0][1:]
    ),
)
claim(
    "After 150 steps the ratio has at least doubled; with ReZero it is above 1: the imbalance is no law",
    all(
        projections[residual, 150][1] > 2 * projections[residual, 0][0]
        for residual in ("post-ln", "pre-ln")
    )
    and projections["rezero", 150][1] > 1,
)

# %% [markdown]
# So the imbalance is real. Is it the reason for failure? Liu et al. (2020a, section 3) say no: an optimizer that divides each gradient by its own size evens it out. This is one reason why Transformers are trained with Adam and hardly ever with plain gradient descent: **in Adam's first step $W_q$, $W_k$ and $W_v$ move equally far**, though their gradients do not have the same size.

# %%
model = reverser("post-ln")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x, y = examples(torch.Generator().manual_seed(0))
F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
packed = model[1].layers[0].self_attn.in_proj_weight
before, sizes = packed.detach().clone(), [part.norm().item() for part in packed.grad.chunk(3)]
optimizer.step()
moved = [part.norm().item() for part in (packed.detach() - before).chunk(3)]
claim(
    "The gradient of W_v is more than three times those of W_q and W_k",
    sizes[2] > 3 * max(sizes[:2]),
    queries_keys_values=sizes,
)
claim(
    "Adam's first step moves each of the three by lr in every entry, within 1 %",
    all(abs(step / (0.01 * D) - 1) < 0.01 for step in moved),
)

# %% [markdown]
# ## 4 · Adam's first steps, and RAdam
#
# Adam keeps two moving averages of each weight's gradient $g$: $m$ of $g$ with $\beta_1$, $v$ of $g^2$ with $\beta_2$. Divided by $1 - \beta^t$ after $t$ gradients, because they start at 0, they are called $\hat m$ and $\hat v$. The step is $\eta\, \hat m / (\sqrt{\hat v} + \epsilon)$. At $t = 1$ both averages hold one sample: $\hat m = g$, $\hat v = g^2$. So the first step is
#
# $$ \eta\, \frac{g}{|g|} = \pm \eta, \quad \text{whatever } g \text{ is.} $$
#
# The gradient's size is lost, and with it every sign that it was noise. Weights whose gradient is near 0, which should not move, move as far as all others. This is what one step without warm-up does in section 2.
#
# What is missing are samples. Let $\psi = 1/\sqrt{\hat v}$ be the adaptive rate. If gradients are noise with variance 1, $\psi$ should be 1. Let 4,000 weights see such noise, and watch how $\psi$ scatters:

# %%
noise = torch.randn(4000, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
beta2, v, scatter = 0.999, torch.zeros(4000, dtype=torch.float64), []
for t in range(1, 201):
    v = beta2 * v + (1 - beta2) * noise[:, t - 1] ** 2
    scatter.append(((1 - beta2**t) / v).sqrt().var().item())


def samples(t, beta2):
    """rho_t: how many equally weighted samples the moving average is worth."""
    return 2 / (1 - beta2) - 1 - 2 * t * beta2**t / (1 - beta2**t)


def predicted(rho):
    """The paper's approximation of the variance of psi, for more than 4 samples."""
    return rho / (2 * (rho - 2) * (rho - 4))


claim(
    "With one sample the adaptive rate scatters more than a thousand times as much as with 10",
    scatter[0] > 1000 * scatter[9],
    variance_1=scatter[0],
    variance_10=scatter[9],
    variance_100=scatter[99],
)
claim(
    "From 20 gradients on the paper's approximation is right within 40 %, and always on the safe side",
    all(1 < predicted(samples(t, beta2)) / scatter[t - 1] < 1.4 for t in range(20, 201)),
)

# %% [markdown]
# Are samples all that is missing? Liu et al. (2020b) tested it: for the first 2,000 gradients they only filled $v$ and held weights and momentum; from then on their translation model trained without a warm-up. **Predict:** does holding our Post-LN reverser for 60 gradients save it at its high rate?


# %%
def train_held(hold, steps=60):
    """Post-LN without warm-up; for `hold` gradients the rate is 0, and Adam only fills m and v."""
    model, generator = reverser("post-ln"), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    scheduler = LambdaLR(optimizer, lambda step: float(step >= hold))
    batches = ([examples(generator)] for _ in range(hold + steps))
    return [
        train_epoch(model, batch, language_model_loss, optimizer, scheduler=scheduler)["loss"]
        for batch in batches
    ][hold:]


held = sum(train_held(60)[-20:]) / 20
claim(
    "With v from 60 gradients Post-LN is still no better than a blind guess after 60 steps",
    held > math.log(LETTERS) - 0.05,
    loss=held,
)

# %% [markdown]
# No. At this rate well-estimated steps are too large as well. A warm-up makes the first steps small whatever the reason; the next method acts on one reason.
#
# **RAdam** (Liu et al. 2020b) turns the scatter into a factor. Three steps:
#
# 1. *How many samples are in $v$?* A moving average of $t$ numbers with weights $\beta_2^{t-i}$ has its centre of mass, counted from the newest number as 1, at $\frac{1}{1-\beta_2} - \frac{t \beta_2^t}{1 - \beta_2^t}$. A plain mean of $\rho$ numbers has it at $(\rho + 1)/2$. Set equal: $\rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}$ with $\rho_\infty = \frac{2}{1-\beta_2} - 1$.
# 2. *How much does $\psi$ scatter with $\rho$ samples?* For normal gradients, $\psi^2$ is one over a $\chi^2_\rho$ variable, times $\rho$. Its variance is finite for $\rho > 4$ only, and to first order $\mathrm{Var}[\psi] \approx \frac{\mathrm{Var}[\psi^2]}{4\,\mathrm{E}[\psi^2]} = \frac{\rho}{2(\rho-2)(\rho-4)}$.
# 3. *Scale the step so that it scatters no more than it will in the end:* $r_t = \sqrt{\mathrm{Var}[\psi](\rho_\infty) / \mathrm{Var}[\psi](\rho_t)}$. While $\rho_t$ is too small, make a step without the adaptive rate, $\eta\, \hat m$.

# %%
show_source(rectification, RAdam._update)
counts = range(1, 10001)
ax = plots.axes(height=3.0)
plots.lines(
    ax,
    {f"beta2 = {b}": (counts, [rectification(t, b) for t in counts]) for b in (0.9, 0.98, 0.999)},
    "gradients seen t",
    "rectification r",
    {"beta2 = 0.9": "output", "beta2 = 0.98": "hidden", "beta2 = 0.999": "attention"},
)
ax.plot(
    counts,
    [min(t / 2000, 1) for t in counts],
    "--",
    color=plots.COLORS["muted"],
    label="linear warm-up of 2000 steps",
)
ax.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
ax.set(xscale="log")
show(
    ax,
    alt="RAdam's factor against the number of gradients on a logarithmic axis, for three values of beta2. Each is 0 up to 5 gradients and rises to 1; the larger beta2, the later. A dashed linear warm-up of 2000 steps starts below the curve of 0.999 and reaches 1 before it.",
    caption="How long is RAdam's own warm-up? As long as the memory of v: some tens of steps for 0.9, some thousands for 0.999, about as long as a linear warm-up of 2 / (1 - beta2) = 2000 steps (dashed).",
)
first = {b: next(t for t in counts if rectification(t, b) > 0) for b in (0.9, 0.98, 0.999)}
half = {b: next(t for t in counts if rectification(t, b) > 0.5) for b in (0.9, 0.98, 0.999)}
claim("The first adaptive step is the 6th, for all three", set(first.values()) == {6})
claim("r passes one half after 11, 33 and 556 gradients", list(half.values()) == [11, 33, 556])

# %% [markdown]
# Two details that are easy to miss. The paper's algorithm takes the adaptive branch for $\rho_t > 4$; its authors' code and torch take 5. And the first five steps are *gradient descent with momentum at Adam's learning rate*: with gradients of size 0.001 they hardly move, with gradients of size 100 they may jump. A factor that starts at 0 does not make all first steps small.
#
# Ma and Yarats (2021) found a plain linear warm-up of $2/(1-\beta_2)$ steps to do as well. RAdam is then a way to choose the length of a warm-up: by the optimizer's memory, not by the model.
#
# ### Exercise 11.2 · RAdam by hand
#
# Difficulty ●●●○○ · 20 minutes · needs section 4
#
# One weight; its gradient is 4 in every step. $\eta = 0.1$, $\beta_1 = \beta_2 = 0.9$, $\epsilon = 0$. With a constant gradient $\hat m = 4$ and $\hat v = 16$ at every $t$. Give six numbers, to three digits:
#
# (a) the length of *Adam's* first step; (b) $\rho_\infty$; (c) $\rho_1$; (d) the length of *RAdam's* first step; (e) $r_6$; (f) the length of RAdam's sixth step.

# %% nbgrader={"grade": false, "grade_id": "ex11-2-radam-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
by_hand = ...  # (adam_first, rho_inf, rho_1, radam_first, r_6, radam_sixth)
### BEGIN SOLUTION
power = 0.9**6
rho_6 = 19 - 12 * power / (1 - power)
r_6 = math.sqrt((rho_6 - 4) * (rho_6 - 2) * 19 / (15 * 17 * rho_6))
by_hand = (0.1, 19.0, 1.0, 0.1 * 4, r_6, 0.1 * r_6)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex11-2-radam-by-hand-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch11.radam_by_hand(by_hand)

# %% [markdown]
# ## 5 · Warm-up and schedules
#
# The plain remedy: make the first steps small until $v$ has samples and the network has left its start. Xiong et al. (2020, section 3) find it essential for Adam *and for SGD*, which has no $v$, and their results change with its length: one more number to choose. A schedule is a function from the step $s$ = 0, 1, … to a factor; torch's `LambdaLR` multiplies the learning rate by it. All five of ours rise on the same line.

# %%
show_source(optim.cosine, optim.noam, optim.inverse_sqrt)
WARMUP, TOTAL, PEAK = 4000, 20000, 7e-4
s = range(0, TOTAL, 50)
curves = {
    "constant": [PEAK * optim.constant(i, WARMUP) for i in s],
    "linear": [PEAK * optim.linear(i, WARMUP, TOTAL) for i in s],
    "cosine": [PEAK * optim.cosine(i, WARMUP, TOTAL) for i in s],
    "inverse square root": [PEAK * optim.inverse_sqrt(i, WARMUP) for i in s],
}
ax = plots.axes(height=3.2)
plots.lines(
    ax,
    {name: (s, curve) for name, curve in curves.items()},
    "optimizer step s",
    "learning rate",
    {
        "constant": "muted",
        "linear": "output",
        "cosine": "attention",
        "inverse square root": "hidden",
    },
)
ax.plot(
    s,
    [optim.noam(i, 512, WARMUP) for i in s],
    ":",
    color=plots.COLORS["ink"],
    linewidth=2.5,
    label="Noam, D = 512",
)
ax.legend()
ax.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
show(
    ax,
    alt="Learning rate over 20,000 steps for five schedules. All rise on a line for 4,000 steps to 0.0007. Then one stays, one falls on a line to 0, one along a cosine to 0, and inverse square root and Noam fall together to less than half.",
    caption="How do the schedules differ? Not in the warm-up, only in the fall: constant, linear and cosine to 0 at the last step, inverse square root without an end. Noam (dotted) is inverse square root with a height that follows from D and the warm-up.",
)
claim(
    "Noam is the inverse square root times (D warm-up)^-1/2, at every step",
    all(
        math.isclose(
            optim.noam(i, 512, WARMUP), (512 * WARMUP) ** -0.5 * optim.inverse_sqrt(i, WARMUP)
        )
        for i in s
    ),
)
claim(
    "The paper's base model has its highest rate, 0.0007, at the last step of the warm-up",
    round(optim.noam(WARMUP - 1, 512, WARMUP), 4) == 0.0007,
)

# %% [markdown]
# The unit of all these numbers is the *optimizer step*. Original settings: 4,000 of 100,000 steps (Vaswani et al. 2017), 10,000 of 1,000,000 (BERT). "A warm-up of 4,000" says little without the batch size and the length of the training.
#
# **Common mistake · a warm-up that starts at exactly 0.** With the factor $s / w$ in place of $(s+1)/w$ the first step does nothing: data read, gradient computed, nothing learned. It costs one step (`transformers` does it too), and it hides mistakes: *does one training step change the weights?* is the first test that one writes for a loop.
#
# **Common mistake · the cosine that multiplies the warm-up.** A class found in tutorials computes the cosine over the whole training and multiplies it by $s/w$ during the warm-up. **What is its highest factor?**


# %%
def multiplied(step, warmup, total):
    """The tutorials' factor: a cosine from the first step on, times a rise from 0."""
    return 0.5 * (1 + math.cos(math.pi * step / total)) * min(1, step / warmup)


def first_change(schedule):
    """How far a weight moves in the first step."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    LambdaLR(optimizer, schedule)
    weight.grad = torch.ones(1)
    optimizer.step()
    return 1 - weight.item()


highest = {
    share: max(multiplied(i, 1000 * share, 1000) for i in range(1000))
    for share in (0.06, 0.25, 0.5)
}
table(
    ["warm-up, share of the training", "highest factor", "ours"],
    [[f"{share:.0%}", value, 1.0] for share, value in highest.items()],
)
claim(
    "It never reaches 1: the longer the warm-up, the lower the peak",
    highest[0.06] < 1 and highest[0.5] < 0.6,
)
claim("Its first step changes nothing", first_change(lambda i: multiplied(i, 60, 1000)) == 0)
claim(
    "Ours moves by 1/60 of the learning rate",
    math.isclose(first_change(lambda i: optim.cosine(i, 60, 1000)), 0.1 / 60, rel_tol=1e-3),
)

# %% [markdown]
# With the usual 6 % the loss is one part in a hundred of the rate: harmless, until somebody lengthens the warm-up and wonders.
#
# ### Exercise 11.3 · Warm up, hold, cool down
#
# Difficulty ●●○○○ · 15 minutes · needs section 5
#
# A newer schedule (warm-up, stable, decay; Hu et al. 2024) keeps the rate constant and lets it fall only in the last steps, so that one can train on from before the fall. Write it as one factor: rise as above, then 1, then a line from 1 at step `total - decay` to 0 at step `total`. Assume that warm-up and fall do not overlap. Later steps get 0.


# %% nbgrader={"grade": false, "grade_id": "ex11-3-warmup-stable-decay", "locked": false, "schema_version": 3, "solution": true, "task": false}
def warmup_stable_decay(step, warmup, total, decay):
    """The factor of the learning rate.

    Args:
        step: number of the optimizer step, from 0.
        warmup: steps of the rise, at least 1; the last of them has the factor 1.
        total: steps of the training.
        decay: steps of the fall, at least 1.

    Returns:
        float from 0 to 1.
    """
    ### BEGIN SOLUTION
    return max(0.0, min((step + 1) / warmup, 1.0, (total - step) / decay))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex11-3-warmup-stable-decay-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch11.warmup_stable_decay(warmup_stable_decay)

# %% [markdown]
# ## 6 · Where the norm stands
#
# Three ways to add a sublayer $f$ to the stream, two lines of code apart:

# %%
diagrams.show("norm_placement")

# %%
show_source(post_ln, pre_ln, rezero)

# %% [markdown]
# **Pre-LN** moves the norm into the branch. The stream itself is a sum, $x_N = x_0 + f_1 + f_2 + \ldots$, and the gradient of the loss reaches $x_0$ through the first term unchanged. Two prices: the stream grows with depth, so that a *last* norm is needed before the output; and late layers add little to a large stream.
#
# **ReZero** has no norm. Each layer has one learned number $\alpha$ that starts at 0: $x \leftarrow x + \alpha f(x)$. The network starts as the identity, whatever its depth. **Predict:** which weights have a gradient in the first step?

# %%
model = reverser("rezero")
x, y = examples(torch.Generator().manual_seed(0))
encoder = model[1]
with torch.no_grad():
    stream = model[0](x)
    claim(
        "Twelve layers of ReZero start as the identity, exactly",
        torch.equal(encoder(stream), stream),
    )
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def gradient_of(kind):
    """Largest gradient of the layers' matrices, or of their alphas."""
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    chosen = [p for p in encoder.parameters() if (p.ndim == 0) == (kind == "alphas")]
    found = max(p.grad.abs().max().item() for p in chosen)
    model.zero_grad()
    return found


first_step = {kind: gradient_of(kind) for kind in ("alphas", "matrices")}
F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
optimizer.step()
second_step = {kind: gradient_of(kind) for kind in ("alphas", "matrices")}
claim(
    "In the first step only the alphas have a gradient; every matrix of the 12 layers has exactly 0",
    first_step["matrices"] == 0 < first_step["alphas"],
)
claim("After one step the matrices have one too", second_step["matrices"] > 0)

# %% [markdown]
# The reason: the gradient of $f$'s weights is $\alpha$ times something, the gradient of $\alpha$ is $f(x)$ times something. Adam moves each $\alpha$ by $\pm\eta$, and the layers fade in. On the reverser this works very well:

# %%
losses["ReZero"], _ = train("rezero", 0)
end["ReZero"] = sum(losses["ReZero"][-20:]) / 20
claim(
    "ReZero learns to reverse without warm-up and without a norm, and ends below 0.5 nats",
    end["ReZero"] < 0.5,
    loss=end["ReZero"],
    pre_ln=end["Pre-LN"],
)

# %% [markdown]
# **T-Fixup** (Huang et al. 2020) removes norms *and* warm-up and repairs the initial values instead: Xavier's values for all matrices but the embeddings, which are normal; then those of values, output projections and feed-forward networks times $0.67\, N^{-1/4}$ in the encoder and $(9N)^{-1/4}$ in the decoder, and all embeddings times $(9N)^{-1/4}$. The factor is chosen so that one step of Adam changes the output by about the same amount at every depth.
# A Transformer without norms is ReZero with $\alpha = 1$ from the start. Its stream, from bottom to top:


# %%
def stream_growth(layers, scaled):
    """Length of an encoder's output relative to its input: no norms, alpha = 1, Xavier's matrices."""
    torch.manual_seed(0)
    stack = [EncoderLayer(D, 4, 4 * D, 0.0, residual="rezero") for _ in range(layers)]
    factor = 0.67 * layers**-0.25 if scaled else 1.0
    with torch.no_grad():
        for layer in stack:
            nn.init.ones_(layer.norm1.alpha)
            queries, keys, values = layer.self_attn.in_proj_weight.chunk(3)
            matrices = [
                values,
                layer.self_attn.out_proj.weight,
                layer.linear1.weight,
                layer.linear2.weight,
            ]
            for matrix in (queries, keys, *matrices):
                nn.init.xavier_uniform_(matrix)
            for matrix in matrices:
                matrix *= factor
        x = torch.randn(4, 16, D)
        return (TransformerEncoder(stack)(x).norm() / x.norm()).item()


depths = (4, 8, 16, 32)
growth = {scaled: [stream_growth(depth, scaled) for depth in depths] for scaled in (False, True)}
table(
    ["layers", *map(str, depths)],
    [
        [name, *(f"{value:.1g}" if value > 9 else f"{value:.1f}" for value in growth[scaled])]
        for name, scaled in (("Xavier", False), ("Xavier, T-Fixup's factor", True))
    ],
)
claim(
    "Without norms and without the factor the stream of 32 layers grows a thousandfold",
    growth[False][-1] > 1000,
)
claim("With the factor it grows by less than a fifth, at every depth", max(growth[True]) < 1.2)

# %% [markdown]
# **Common mistake · "Pre-LN" that normalises the stream.** This block stands in tutorials under the name Pre-LN:
#
# ```python
# x = norm(x)
# x = x + attention(x)
# ```
#
# It is nearly `x = x + attention(norm(x))`, but here $x$ itself is replaced, *the residual too*. Is it still Pre-LN? Write two such sublayers after each other: norm, add, norm, add. And Post-LN: add, norm, add, norm. It is **Post-LN, shifted by one norm**:


# %%
def misplaced(x, sublayer, norm):
    """The norm in place of the residual."""
    x = norm(x)
    return x + sublayer(x)


def stack_of(residual, seed=0):
    """Twelve layers of the same matrices with this residual function."""
    torch.manual_seed(seed)
    layers = [EncoderLayer(D, 4, 4 * D, 0.0) for _ in range(LAYERS)]
    for layer in layers:
        layer.residual = residual
    return TransformerEncoder(layers)


def survives(residual):
    """Gradient of the input over that of the output, when what enters is 10 times as large as usual."""
    x = 10 * torch.randn(8, T, D, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    out = stack_of(residual)(x)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)))
    return x.grad.norm().item() / out.numel() ** 0.5


x = torch.randn(8, T, D, generator=torch.Generator().manual_seed(0))
unit = functools.partial(F.layer_norm, normalized_shape=(D,))
with torch.no_grad():
    claim(
        "norm, then the misplaced stack, then norm = norm, then Post-LN: to the last digits",
        torch.allclose(unit(stack_of(misplaced)(x)), stack_of(post_ln)(unit(x)), atol=1e-4),
    )
kept = {f.__name__: survives(f) for f in (post_ln, misplaced, pre_ln)}
table(
    ["residual", "gradient at the input over that at the output"],
    [[name, f"{value:.1g}"] for name, value in kept.items()],
)
claim(
    "Behind a large input Post-LN and the misplaced norm hand back less than half of the gradient; Pre-LN hands back all that came",
    max(kept["post_ln"], kept["misplaced"]) < 0.5 and kept["pre_ln"] > 0.9,
)

# %% [markdown]
# So it has Post-LN's gradient. The tutorials' block does so in its first sublayer only, the second is a true Pre-LN; but one norm on the stream in each layer suffices to cut the path. To see it in code, ask: *is there a way from the output to the input that passes additions only?*
#
# ### Exercise 11.4 · Find the bugs in a Pre-LN block
#
# Difficulty ●●○○○ · 15 minutes · needs section 6
#
# This block runs and trains. It should be Pre-LN. Find what is wrong, then write it right.
#
# ```python
# def pre_ln_block(x, attend, feed_forward, norm1, norm2):
#     x = norm1(x)
#     y = x + attend(x)
#     return y + norm2(feed_forward(y))
# ```


# %% nbgrader={"grade": false, "grade_id": "ex11-4-pre-ln-block", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pre_ln_block(x, attend, feed_forward, norm1, norm2):
    """One Pre-LN layer.

    Args:
        x: (B, T, D).
        attend: self-attention, a function from (B, T, D) to (B, T, D).
        feed_forward: the same of the feed-forward network.
        norm1: of what the attention reads, a function from (B, T, D) to (B, T, D).
        norm2: of what the feed-forward network reads.

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    x = x + attend(norm1(x))
    return x + feed_forward(norm2(x))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex11-4-pre-ln-block-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch11.pre_ln_block(pre_ln_block)

# %% [markdown]
# ## 7 · Clipping
#
# Chapter 04 met clipping as the cure for explosions: if the whole gradient is longer than $c$, shorten it to $c$. In front of plain descent that bounds the step. In front of Adam?
#
# **Predict, then run:** (a) all gradients of a training are longer than 1. You clip at 1, a colleague at 0.01. How much shorter are the colleague's steps? (b) One batch in a training gives a gradient 1000 times as long as the others, for instance through a damaged document. What does it do to Adam, without clipping, during the 300 steps after it?

# %%
show_source(clip_grad_norm)


def walk(max_norm, spike=None, steps=400):
    """Where one weight stands after each step of Adam; its gradients are 3 with noise."""
    weight, generator = (
        nn.Parameter(torch.zeros(1, dtype=torch.float64)),
        torch.Generator().manual_seed(0),
    )
    optimizer, places = torch.optim.Adam([weight], lr=1e-3), []
    for step in range(steps):
        weight.grad = 3 + torch.randn(1, generator=generator, dtype=torch.float64)
        weight.grad = weight.grad.clamp(min=1.5) * (1000 if step == spike else 1)
        if max_norm:
            clip_grad_norm([weight], max_norm)
        optimizer.step()
        places.append(-weight.item())
    return places


one, hundredth = walk(1.0), walk(0.01)
plain, spiked, clipped = walk(None), walk(None, spike=100), walk(5.0, spike=100)
claim(
    "(a) They are equally long: clipping at 0.01 and at 1 gives the same walk, to 1 part in 1000",
    max(abs(a / b - 1) for a, b in zip(one, hundredth, strict=True)) < 1e-3,
)
claim(
    "(b) After one spike Adam without clipping makes less than a tenth of its usual way in 300 steps",
    spiked[-1] - spiked[100] < 0.1 * (plain[-1] - plain[100]),
    with_spike=spiked[-1] - spiked[100],
    without=plain[-1] - plain[100],
)
claim(
    "With clipping at 5 the spike costs less than 5 % of the way",
    clipped[-1] - clipped[100] > 0.95 * (plain[-1] - plain[100]),
)

# %%
ax = plots.axes(height=2.8)
plots.lines(
    ax,
    {
        "no spike": (range(400), plain),
        "spike at step 100": (range(400), spiked),
        "spike, clipped at 5": (range(400), clipped),
    },
    "step",
    "distance travelled",
    {"no spike": "muted", "spike at step 100": "gradient", "spike, clipped at 5": "attention"},
)
ax.lines[-1].set_linestyle("--")
ax.legend()
show(
    ax,
    alt="Distance travelled by a weight over 400 steps. Without a spike it rises steadily. With a spike at step 100 it rises hardly any more from there on. With the spike clipped it rises nearly as without.",
    caption="What does one bad batch do to Adam? It does not throw the weight far; it fills v for a thousand steps, and every later step is small. Clipping keeps it out of v.",
)

# %% [markdown]
# (a) Adam divides by the gradient's own size, so a constant factor cancels. Clipping that is *always* active does not make Adam careful; the learning rate does. (b) Clipping that is *rarely* active protects $v$, whose memory is $1/(1-\beta_2)$ = 1000 steps long. So log the norm before clipping, and set $c$ above its usual values: 1.0, the number in most scripts, is a habit.
#
# **Common mistake · clipping at the wrong place.** The norm must be that of the gradient that the step will use. Clipped before the micro-batches are divided by their count, or before a mixed-precision scaler has removed its factor, the threshold means something else:

# %%
set_seed(0)
weight, targets = nn.Parameter(torch.randn(D)), torch.randn(64, D)


def gradient_norm(clip_first, scale=1.0):
    """The norm that reaches the optimizer, from a summed loss of 64 examples times a scaler's factor."""
    weight.grad = None
    (scale * (targets @ weight - 3).square().sum()).backward()
    if clip_first:
        clip_grad_norm([weight], 1.0)
    weight.grad /= 64 * scale
    if not clip_first:
        clip_grad_norm([weight], 1.0)
    return weight.grad.norm().item()


claim(
    "Divided, then clipped at 1: the norm is 1",
    math.isclose(gradient_norm(False), 1.0, rel_tol=1e-4),
)
claim(
    "Clipped at 1, then divided by 64 examples: 1/64",
    math.isclose(gradient_norm(True), 1 / 64, rel_tol=1e-4),
)
claim(
    "With a scaler's factor of 1024 as well: 1/65536",
    math.isclose(gradient_norm(True, 1024.0), 1 / 65536, rel_tol=1e-3),
)

# %% [markdown]
# With plain descent these steps would be 64 times too small. With Adam nothing seems to happen (see (a)), but every gradient is clipped in every step, and all batches weigh the same.
#
# ## 8 · Weight decay: how, and of what
#
# Weight decay pulls weights towards 0. For plain descent it is the same to add $\lambda \theta$ to the gradient (an L2 penalty) or to shrink $\theta$ by $\eta\lambda\theta$ beside the step. For Adam it is not: what enters the gradient is divided by $\sqrt{\hat v}$ like all of it. **Common mistake · `Adam(weight_decay=...)`.** Two weights, both 1; their gradients are pure noise, of size 1 and of size 0.01:


# %%
def decayed(kind, steps=500):
    """Two weights after steps on noise of size 1 and 0.01."""
    weights, generator = nn.Parameter(torch.ones(2)), torch.Generator().manual_seed(0)
    optimizer = kind([weights], lr=1e-3, weight_decay=0.1)
    for _ in range(steps):
        weights.grad = torch.tensor([1.0, 0.01]) * torch.randn(1, generator=generator)
        optimizer.step()
    return weights.tolist()


coupled, decoupled = decayed(torch.optim.Adam), decayed(torch.optim.AdamW)
table(
    ["after 500 steps", "noise of size 1", "noise of size 0.01"],
    [
        [name, *(f"{value:.2f}" for value in values)]
        for name, values in (
            ("Adam, L2 in the gradient", coupled),
            ("AdamW, decay beside it", decoupled),
            ("(1 - lr decay)^500", [0.9999**500] * 2),
        )
    ],
)
claim(
    "With L2 in Adam's gradient the weight with the small gradient decays more than five times as fast as the other",
    (1 - coupled[1]) > 5 * (1 - coupled[0]),
)
claim("AdamW treats both alike, within 1 %", abs(decoupled[0] - decoupled[1]) < 0.01)

# %% [markdown]
# So use AdamW, and mind that torch's `Adam`, `RAdam` and our `RAdam` mean the L2 penalty by `weight_decay`.
#
# **Of what?** When the matrix in front of a norm shrinks, the norm makes up for it. A LayerNorm's gain has nothing behind it that would; its size *is* its meaning: it should be 1 or what the data says, not 0. **Common mistake · everything decays.** The same training with and without groups; what becomes of the gains?

# %%
show_source(decay_groups)


def mean_gain(groups, steps=100):
    """Mean gain of the norms of a Pre-LN reverser of 2 layers after a training with strong decay."""
    set_seed(0)
    layers = [EncoderLayer(D, 4, 4 * D, 0.0, residual="pre-ln") for _ in range(2)]
    model = nn.Sequential(
        TokenEmbedding(LETTERS + 1, D, Sinusoidal(D)),
        TransformerEncoder(layers, nn.LayerNorm(D)),
        nn.Linear(D, LETTERS),
    )
    optimizer = torch.optim.AdamW(groups(model), lr=3e-3, weight_decay=1.0)
    generator, unseen = (
        torch.Generator().manual_seed(0),
        model[0].embedding.weight[LETTERS].norm().item(),
    )
    train_epoch(model, (examples(generator) for _ in range(steps)), language_model_loss, optimizer)
    gains = [m.weight.mean().item() for m in model.modules() if isinstance(m, nn.LayerNorm)]
    return sum(gains) / len(gains), model[0].embedding.weight[LETTERS].norm().item() / unseen


everything, everything_unseen = mean_gain(lambda model: model.parameters())
grouped, grouped_unseen = mean_gain(lambda model: decay_groups(model, 1.0))
claim(
    "When everything decays, the gains sink by more than a tenth in 100 steps",
    everything < 0.9,
    mean_gain=everything,
)
claim(
    "With groups they grow above 1: that is what the data ask for", grouped > 1, mean_gain=grouped
)
claim(
    "The embedding of a letter that never occurs shrinks all the same, by (1 - lr decay)^100: it is a matrix too",
    math.isclose(grouped_unseen, 0.997**100, rel_tol=1e-3),
    kept=grouped_unseen,
)

# %% [markdown]
# The last line is a choice. The rule "two axes or more decay" (GPT-style code) includes the embeddings, whose rare rows get many decays and few gradients. Others leave them out. With the usual decay, a tenth of ours at a tenth of the rate, it matters a hundredth as much.
#
# ### Exercise 11.5 · What decays
#
# Difficulty ●●○○○ · 20 minutes · needs section 8
#
# Write the other rule: all tensors with at least two axes decay, *but no embedding table does*, even when it is also the weight of an output layer. Mind attention's `in_proj_weight`, which belongs to no `nn.Linear`.


# %% nbgrader={"grade": false, "grade_id": "ex11-5-decaying-names", "locked": false, "schema_version": 3, "solution": true, "task": false}
def decaying_names(model):
    """The names of the parameters that should decay.

    Args:
        model: nn.Module.

    Returns:
        set of names as in `model.named_parameters()`.
    """
    ### BEGIN SOLUTION
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in tables}
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex11-5-decaying-names-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch11.decaying_names(decaying_names)

# %% [markdown]
# ## 9 · The grid: every trick with and without every other
#
# One trick in one setting proves little. The ledger holds {Post-LN, Pre-LN, ReZero} × {no warm-up, 50 steps} × {Adam, RAdam} × {4, 12 layers} × 3 seeds: 72 trainings of 240 steps on the toy translation of chapter 06, written as *source = target* for a causal model of width 32. Everything else is equal: data, order, matrices at the start, and the learning rate 0.005, the lowest tried at which Post-LN without warm-up fails. Scored is the share of right words in other sentences. **Predict before you scroll:** how many of the 24 settings fail? Which trick helps at 4 layers?

# %%
COLOR = {"Adam": "attention", "RAdam": "output"}
panels = plots.grid(2, 3, width=7.0, height=4.6, sharex=True, sharey=True)
for row, layers in zip(panels, (4, 12), strict=True):
    for ax, residual in zip(row, ("post-ln", "pre-ln", "rezero"), strict=True):
        for optimizer in ("Adam", "RAdam"):
            for warmup in ("no warm-up", "warm-up"):
                name = f"{residual}, {warmup}, {optimizer}, {layers} layers"
                x = ledger.curves("training-grid", name, "step")[0]
                runs = ledger.curves("training-grid", name, "accuracy")
                style = "-" if warmup == "no warm-up" else "--"
                plots.band(ax, x, runs, f"{optimizer}, {warmup}", COLOR[optimizer], linestyle=style)
        ax.set_title(f"{residual}, {layers} layers", fontsize=10)
for ax in panels[1]:
    ax.set_xlabel("optimizer step")
for ax in panels[:, 0]:
    ax.set_ylabel("share of right words")
handles = panels[0, 0].get_legend_handles_labels()
ax.figure.legend(*handles, ncols=4, loc="outside lower center", fontsize=8)
show(
    ax,
    alt="Six panels of accuracy over 240 steps: Post-LN, Pre-LN and ReZero, with 4 and with 12 layers; four curves each, with bands over seeds. In the panel of Post-LN with 12 layers the curve of Adam without warm-up stays low; the other three rise. In all other panels Adam rises earlier than RAdam.",
    caption="Which settings fail? One: Post-LN with 12 layers, Adam and no warm-up. Everywhere else Adam without warm-up ends at most four words in a hundred behind the best line of its panel. Bands: least to greatest of 3 seeds.",
)


# %%
def score(residual, warmup, optimizer, layers):
    """Accuracy at the end, one for each seed."""
    name = f"{residual}, {warmup}, {optimizer}, {layers} layers"
    return ledger.values("training-grid", name, "accuracy")


def mean(values):
    """Mean over the seeds."""
    return sum(values) / len(values)


for layers in (4, 12):
    names = [
        f"{residual}, {warmup}, {optimizer}, {layers} layers"
        for residual in ("post-ln", "pre-ln", "rezero")
        for warmup in ("no warm-up", "warm-up")
        for optimizer in ("Adam", "RAdam")
    ]
    markdown(ledger.table("training-grid", ["accuracy", "loss", "stuck"], names))

# %% [markdown]
# ("stuck": share of the seeds that end no better than a table of word pairs, which never looks at the source.)

# %%
grid = {
    (residual, warmup, optimizer, layers): score(residual, warmup, optimizer, layers)
    for residual in ("post-ln", "pre-ln", "rezero")
    for warmup in ("no warm-up", "warm-up")
    for optimizer in ("Adam", "RAdam")
    for layers in (4, 12)
}
failed = ("post-ln", "no warm-up", "Adam", 12)
claim(
    "One of 24 settings fails: no seed of it is right on half of the words; every seed of all others is",
    max(grid[failed]) < 0.5 < min(min(found) for key, found in grid.items() if key != failed),
)
claim(
    "Each of three tricks alone repairs it, to more than 3 of 4 words in every seed: a warm-up, RAdam, Pre-LN",
    all(
        min(grid[key]) > 0.75
        for key in (
            ("post-ln", "warm-up", "Adam", 12),
            ("post-ln", "no warm-up", "RAdam", 12),
            ("pre-ln", "no warm-up", "Adam", 12),
        )
    ),
)
claim(
    "At 4 layers no trick helps: Post-LN with plain Adam has the best mean of all twelve settings",
    max((key for key in grid if key[3] == 4), key=lambda key: mean(grid[key]))
    == ("post-ln", "no warm-up", "Adam", 4),
)
claim(
    "In all other panels Adam without warm-up ends less than 4 % of the words behind the best mean",
    all(
        mean(grid[residual, "no warm-up", "Adam", layers])
        > max(mean(grid[key]) for key in grid if (key[0], key[3]) == (residual, layers)) - 0.04
        for residual in ("post-ln", "pre-ln", "rezero")
        for layers in (4, 12)
        if (residual, layers) != ("post-ln", 12)
    ),
)
claim(
    "Pre-LN does not need a warm-up, and yet gains from it at this rate and 12 layers, in every seed",
    all(
        with_it > without
        for with_it, without in zip(
            grid["pre-ln", "warm-up", "Adam", 12],
            grid["pre-ln", "no warm-up", "Adam", 12],
            strict=True,
        )
    ),
)
others = [key for key in grid if key[2] == "Adam" and key != failed]
claim(
    "RAdam is better than Adam in the failing setting only; in the eleven others it is not ahead by even 1 % of the words, and in ten it is behind by more than 5 %",
    all(mean(grid[key[0], key[1], "RAdam", key[3]]) < mean(grid[key]) + 0.01 for key in others)
    and sum(mean(grid[key[0], key[1], "RAdam", key[3]]) < mean(grid[key]) - 0.05 for key in others)
    == 10,
)
claim(
    "At step 240 RAdam takes about a third of Adam's step",
    0.3 < rectification(240, 0.999) < 0.36,
    r=rectification(240, 0.999),
)
claim(
    "ReZero trains at both depths without warm-up, but stays behind Pre-LN, and a warm-up makes it worse",
    all(
        mean(grid["rezero", "no warm-up", "Adam", layers])
        < mean(grid["pre-ln", "no warm-up", "Adam", layers])
        and mean(grid["rezero", "warm-up", "Adam", layers])
        < mean(grid["rezero", "no warm-up", "Adam", layers])
        for layers in (4, 12)
    ),
)

# %% [markdown]
# One rate for all is the grid's weakness: it was chosen so that Post-LN fails. The ledger therefore holds Adam with 12 layers at three more rates. **Predict:** which of the four lines has the highest peak, which is the widest?

# %%
RATES = (0.001, 0.0025, 0.005, 0.01)


def at_rate(residual, warmup, rate):
    """Accuracy at the end, one for each seed, of Adam with 12 layers at this learning rate."""
    if rate == 0.005:
        return grid[residual, warmup, "Adam", 12]
    return ledger.values("training-rates", f"{residual}, {warmup}, rate {rate:g}", "accuracy")


by_rate = {
    (residual, warmup): [at_rate(residual, warmup, rate) for rate in RATES]
    for residual in ("post-ln", "pre-ln")
    for warmup in ("no warm-up", "warm-up")
}
ax = plots.axes(height=3.2)
for (residual, warmup), found in by_rate.items():
    color = "gradient" if residual == "post-ln" else "attention"
    style = "o-" if warmup == "no warm-up" else "s--"
    runs = list(zip(*found, strict=True))
    plots.band(
        ax, RATES, runs, f"{residual}, {warmup}", color, linestyle=style[1:], marker=style[0]
    )
ax.set(xscale="log", xlabel="learning rate", ylabel="share of right words", ylim=(0, 1))
ax.set_xticks(RATES, map(str, RATES))
ax.minorticks_off()
ax.legend(loc="lower left")
show(
    ax,
    alt="Accuracy after 240 steps against four learning rates from 0.001 to 0.01, with bands over seeds. Up to 0.0025 all four lines lie above 0.8. At 0.005 Post-LN without warm-up has fallen to 0.27, at 0.01 Post-LN with warm-up to 0.14; both lines of Pre-LN stay above 0.75.",
    caption="Who needs what? At the rate of each that suits it best all four learn, Pre-LN a little better. Pre-LN stands a wider range of rates; a warm-up moves Post-LN's limit from below 0.005 to above it.",
)

# %%
best = {
    key: max((mean(accuracy), rate) for accuracy, rate in zip(found, RATES, strict=True))
    for key, found in by_rate.items()
}
table(
    [
        "Adam, 12 layers",
        "best rate",
        "mean accuracy there",
        "rates at which every seed exceeds 0.5",
    ],
    [
        [", ".join(key), rate, f"{accuracy:.3f}", f"{sum(min(f) > 0.5 for f in by_rate[key])} of 4"]
        for key, (accuracy, rate) in best.items()
    ],
)
claim(
    "Pre-LN trains at all four rates, with or without warm-up; Post-LN at the two lower ones, and with warm-up at a third",
    [sum(min(accuracy) > 0.5 for accuracy in found) for found in by_rate.values()] == [2, 3, 4, 4],
)
claim(
    "Each at its best rate, Post-LN with warm-up is behind Pre-LN with warm-up by less than 5 % of the words, at the grid's rate by more than 10 %",
    best["pre-ln", "warm-up"][0] - best["post-ln", "warm-up"][0] < 0.05
    and mean(by_rate["pre-ln", "warm-up"][2]) - mean(by_rate["post-ln", "warm-up"][2]) > 0.1,
)
claim(
    "Each at its best rate, a warm-up is worth less than 5 % of the words to Post-LN, and about 1 % to Pre-LN",
    0.03 < best["post-ln", "warm-up"][0] - best["post-ln", "no warm-up"][0] < 0.05
    and 0.005 < best["pre-ln", "warm-up"][0] - best["pre-ln", "no warm-up"][0] < 0.015,
)
claim(
    "At the lowest rate the warm-up costs all of them: it makes slow steps slower",
    all(
        mean(by_rate[residual, "warm-up"][0]) < mean(by_rate[residual, "no warm-up"][0])
        for residual in ("post-ln", "pre-ln")
    ),
)

# %% [markdown]
# The best rate of each was chosen on the same validation pairs, for all four alike, and where all three seeds train they differ by up to 14 % of the words. Read differences of one or two per cent as none.
#
# ### What agrees with the papers, and what does not
#
# - **Warm-up is essential** (Xiong et al. 2020): for deep Post-LN at a high rate, yes. At 4 layers, no. At half the grid's rate, no. *A lower rate is a trick too*, the cheapest.
# - **Pre-LN needs no warm-up:** right, at each of four rates. **Pre-LN is worse in the end** (often said): not here, not in 240 steps; its advantage is the range of rates more than the best result.
# - **RAdam makes warm-up superfluous:** right, it saves the failing setting. But it *is* a warm-up, one of thousands of steps with $\beta_2$ = 0.999, and in a short training that is a price: lower nearly everywhere.
# - **ReZero converges faster:** on the reverser it was the fastest of all (section 6); on translation it was behind. One task is not enough, and 240 steps are few: its curves still rise.
# - **Not shown:** long trainings, wide models, the best rate for RAdam, ReZero and 4 layers. One rate for all favours whoever likes that rate.
#
# The first 40 steps of two settings, live; the ledger's numbers were made by the same function:

# %%
for residual in ("post-ln", "pre-ln"):
    _, history = tricks.train_one(residual, 0, "Adam", 12, seed=0, steps=40, every=20)
    name = f"{residual}, no warm-up, Adam, 12 layers"
    recorded = ledger.curves("training-grid", name, "loss")[0][2]
    claim(
        f"{residual}: the live loss after 40 steps is the ledger's, within a tenth",
        abs(history[-1]["loss"] / recorded - 1) < 0.1,
        live=history[-1]["loss"],
        ledger=recorded,
    )

# %% [markdown]
# ### Exercise 11.6 · Explore and explain the grid
#
# Difficulty ●●●○○ · 40 minutes · needs section 9
#
# Change the cell below (residual, warm-up, optimizer, layers, `learning_rate`, `steps`), then answer in words:
#
# (a) A colleague reads the first panel (Post-LN, 4 layers) and concludes that warm-up is superstition. What in the grid speaks for it, what against, and what would you measure?
#
# (b) RAdam with $\beta_2$ = 0.9 in place of 0.999: how does $r_t$ change, and what do you expect for 240 steps, at 4 and at 12 layers? Which of the two effects of $\beta_2$ could spoil the comparison?
#
# (c) Other learning rates were measured for 4 of the 24 settings only. Name a conclusion about the other 20 that could turn around if each had its best rate, and a conclusion of section 9 that could not.

# %% tags=["nbval-ignore-output"]
explored, _ = tricks.train_one(
    "rezero", 0, "Adam", 4, seed=0, steps=40, every=20, learning_rate=0.01
)
table(["loss", "accuracy"], [[explored["loss"], explored["accuracy"]]])

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex11-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) For it: at 4 layers the warm-up changes the accuracy by less than the seeds do. Against: at 12 layers the same model fails without it. So "superstition" holds for this depth and this rate. To measure: the highest rate at which each trains, as a function of the depth, with and without warm-up.
#
# (b) With 0.9, r passes one half after 11 gradients, so RAdam is nearly Adam after some tens of steps. At 4 layers it should be as fast as Adam; at 12 layers its protection may end too early. But $\beta_2$ = 0.9 also makes $v$ itself noisier for the whole training: compare with Adam at $\beta_2$ = 0.9, not at 0.999.
#
# (c) Could turn: "RAdam is behind": it takes about a third of the step, so a higher rate may make up for it; "ReZero is behind Pre-LN"; "no trick helps at 4 layers" (with a warm-up a higher rate might be possible). Could not: that Post-LN without warm-up fails at this rate and depth while others train at the same one. Good arguments say what was equal and what was not.
# ### END SOLUTION

# %% [markdown]
# ## 10 · A loop in which the tricks do not disturb each other
#
# Accumulation, clipping, scaler, schedule: each is one line, and only one order is right. For every *optimizer step*: empty the gradients; add up those of the micro-batches; divide by the *total* count; (unscale;) clip; step; then the schedule, once.
#
# **Common mistake · the scheduler is stepped per micro-batch, or per epoch.** A schedule counts optimizer steps. Three epochs of 40 micro-batches, 4 to a step, make 30 steps; the schedule is `cosine(warmup=6, total=30)`. What learning rate does each step get?

# %%
cosine30 = functools.partial(optim.cosine, warmup=6, total=30)
optimizer_steps = range(30)
ways = {
    "once an optimizer step": [cosine30(i) for i in optimizer_steps],
    "once a micro-batch": [cosine30(4 * i) for i in optimizer_steps],
    "once an epoch": [cosine30(i // 10) for i in optimizer_steps],
}
ax = plots.axes(height=2.8)
plots.lines(
    ax,
    {name: (optimizer_steps, curve) for name, curve in ways.items()},
    "optimizer step",
    "factor of the learning rate",
    {
        "once an optimizer step": "attention",
        "once a micro-batch": "gradient",
        "once an epoch": "output",
    },
    drawstyle="steps-post",
)
show(
    ax,
    alt="Factor of the learning rate over 30 optimizer steps. Stepped once an optimizer step it rises for 6 steps and falls to near 0 at the end. Stepped once a micro-batch it is 0 from step 8 on. Stepped once an epoch it has three levels, all in the rise, at most one half.",
    caption="When does each schedule end? Stepped per micro-batch after a quarter of the training: the rest learns nothing. Stepped per epoch never: it does not leave the warm-up.",
)
claim(
    "Stepped per micro-batch, 22 of 30 steps have the factor 0",
    sum(factor == 0 for factor in ways["once a micro-batch"]) == 22,
)
claim(
    "Stepped per epoch, no step gets more than half of the rate", max(ways["once an epoch"]) == 0.5
)

# %%
show_source(train_epoch)

# %% [markdown]
# ### Exercise 11.7 · Find the bugs in a training loop
#
# Difficulty ●●●○○ · 25 minutes · needs sections 7 and 10
#
# Four mistakes; each lets the loss fall. Find them, then write the loop right, without `train_epoch`.
#
# ```python
# def train_steps(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
#     for i, batch in enumerate(micro_batches, 1):
#         loss, count = loss_fn(model, batch)
#         (loss / count).backward()
#         torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
#         scheduler.step()
#         if i % accumulate == 0:
#             optimizer.step()
# ```


# %% nbgrader={"grade": false, "grade_id": "ex11-7-train-steps", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train_steps(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
    """Train on micro-batches, `accumulate` of them to an optimizer step.

    Args:
        model: nn.Module.
        micro_batches: list of batches; its length is a multiple of `accumulate`. Their sizes differ.
        loss_fn: function of (model, batch) that returns (sum of the losses, a tensor (); number of examples).
        optimizer: of torch.
        scheduler: of torch, counting optimizer steps.
        accumulate: micro-batches in a step.
        max_norm: to which the gradient of a step, the mean over all its examples, is clipped.
    """
    ### BEGIN SOLUTION
    for first in range(0, len(micro_batches), accumulate):
        optimizer.zero_grad()
        total = 0
        for batch in micro_batches[first : first + accumulate]:
            loss, count = loss_fn(model, batch)
            loss.backward()
            total += count
        for parameter in model.parameters():
            parameter.grad /= total
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex11-7-train-steps-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch11.train_steps(train_steps)

# %% [markdown]
# ## 11 · What to use when
#
# | you have | begin with | why |
# |---|---|---|
# | few layers (ours: 4) | Post-LN or Pre-LN, Adam; a warm-up costs little | 4 layers: no trick helped (section 9) |
# | many layers (ours: 12) | Pre-LN, last norm, a short warm-up | best mean of the grid, widest range of rates |
# | given Post-LN weights (BERT, chapter 12) | warm-up, and a lower rate | fails without at 12 layers (sections 2, 9) |
# | no idea how long to warm up | RAdam, or $2/(1-\beta_2)$ steps | rescues Post-LN; too slow for short trainings |
# | a norm is not wanted | ReZero, or T-Fixup's initial values | ReZero trains at both depths; speed depends on the task |
# | now and then a bad batch | clipping, above the usual norms | a spike fills $v$ for 1000 steps (section 7) |
# | overfitting | dropout; AdamW with groups | L2 in Adam decays the wrong weights (section 8) |
# | overconfident classes | label smoothing: targets 0.9 and the rest shared | Vaswani et al. (2017), section 5.4; perplexity gets worse, BLEU better. Not measured here |
#
# And before all tricks: try half of the learning rate. In section 9 that alone repaired the one setting that failed.
#
# ## Summary
#
# 1. LayerNorm's backward pass divides by the standard deviation of what it reads, exactly. At initialisation the additions make up for it; in Post-LN the gradient dies through the *first steps*, not before them.
# 2. Adam's first step is $\pm\eta$ for every weight, because $v$ has one sample. RAdam waits for more samples; a warm-up makes the steps small until they are there.
# 3. Pre-LN and ReZero leave a path of additions alone. `x = norm(x); x = x + f(x)` does not: it is Post-LN, shifted.
# 4. Clipping bounds the step of plain descent; for Adam it protects $v$. Decay belongs beside the step (AdamW) and to matrices.
# 5. In our grid one of 24 settings fails, and three tricks repair it; so does half the rate. Elsewhere most of them cost more than they bring: measure, at more than one rate.
#
# ## Where next
#
# *Chapter 12* pre-trains BERT, a Post-LN model, with warm-up and linear decay; *chapter 13* GPT, a Pre-LN model, with cosine, clipping and decay groups.
#
# ## References
#
# - R. Xiong et al., *On layer normalization in the Transformer architecture*, ICML 2020, arXiv:2002.04745: section 3 (gradients at initialisation, lemma on LayerNorm's Jacobian), section 4 (Pre-LN without warm-up).
# - L. Liu et al. (2020a), *Understanding the difficulty of training Transformers*, EMNLP 2020, arXiv:2004.08249: section 3 (unbalanced gradients are not the root cause), section 4 (amplification).
# - L. Liu et al. (2020b), *On the variance of the adaptive learning rate and beyond*, ICLR 2020, arXiv:1908.03265: section 4, algorithm 2 (RAdam).
# - J. Ma, D. Yarats, *On the adequacy of untuned warmup for adaptive optimization*, AAAI 2021, arXiv:1910.04209.
# - T. Bachlechner et al., *ReZero is all you need*, UAI 2021, arXiv:2003.04887: equation 2, section 5.
# - X. S. Huang et al., *Improving Transformer optimization through better initialization* (T-Fixup), ICML 2020: section 3.
# - A. Vaswani et al., *Attention is all you need*, NIPS 2017, arXiv:1706.03762: equation 3 (the schedule), section 5.4 (label smoothing).
# - P. Goyal et al., *Accurate, large minibatch SGD*, 2017, arXiv:1706.02677: section 2.2 (gradual warm-up).
# - I. Loshchilov, F. Hutter, *SGDR*, ICLR 2017, arXiv:1608.03983 (cosine); *Decoupled weight decay regularization*, ICLR 2019, arXiv:1711.05101 (AdamW).
# - R. Pascanu, T. Mikolov, Y. Bengio, *On the difficulty of training recurrent neural networks*, ICML 2013, arXiv:1211.5063: algorithm 1 (clipping).
# - S. Hu et al., *MiniCPM*, 2024, arXiv:2404.06395: section 4 (warm-up, stable, decay).
# - P. Xu, S. Prince, *Tricks for training Transformers*, Borealis AI, https://www.borealisai.com/research-blogs/tutorial-17-transformers-iii-training/, the overview from which many lists come.
# - Video: *Attention and the Transformer*, practicum, https://www.youtube.com/watch?v=f01J0Dri-6k.
