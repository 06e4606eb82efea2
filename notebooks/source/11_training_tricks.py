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
# A Transformer of 12 layers has to write 8 letters backwards. Three runs get the same data in the same order and the same learning rate. The first is Post-LN, as in the original Transformer. The second takes small steps at first (a *warm-up*); the third, Pre-LN, has its LayerNorms in another place, and one more of them at the end. One of the three learns nothing at all. **Which one, and why?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("norm_placement")

# %% tags=["setup", "fold"]
# @title Imports
import functools
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from course_lib import optim
from course_lib.exercises import ch11
from course_lib.experiments import gradient_norms
from course_lib.experiments import training_tricks as tricks
from course_lib.notebook import (
    claim,
    diagrams,
    ledger,
    predict,
    show_source,
    table,
)
from course_lib.notebook.figures import ch11 as figures
from course_lib.optim import decay_groups, radam_update, rectification
from course_lib.positional import Sinusoidal
from course_lib.train import language_model_loss, set_seed, train_epoch
from course_lib.transformer import EncoderLayer, TransformerEncoder, post_ln, pre_ln, rezero
from course_lib.transformer_models import TokenEmbedding

set_seed(0)

# %%
guess_1 = predict("the run that learns nothing", ...)

# %%
LETTERS, T, D, LAYERS = 16, 8, 32, 12


def reverser(residual, depth=LAYERS, seed=0):
    """From 8 letters to 8 letters, with the same matrices for each kind of residual."""
    set_seed(seed)
    layers = [EncoderLayer(D, 4, 4 * D, 0.0, residual=residual) for _ in range(depth)]
    last_norm = nn.LayerNorm(D) if residual == "pre-ln" else None
    encoder = TransformerEncoder(layers, norm=last_norm)
    embedding = TokenEmbedding(LETTERS, D, Sinusoidal(D))
    return nn.Sequential(embedding, encoder, nn.Linear(D, LETTERS))


def examples(generator, size=32):
    """Random letters, and the same backwards."""
    letters = torch.randint(LETTERS, (size, T), generator=generator)
    return letters, letters.flip(1)

# %% [markdown]
# The training is the same for all: Adam with a rate of 0.01. With a warm-up of 60 steps the rate rises on a line from 1/60 of that to all of it. Section 2 will look inside the model before some of the steps; nothing looks yet.

# %%
def train(residual, warmup, rate=0.01, steps=120, look=None, looks=()):
    """The loss of every step, and what `look(model)` saw before some of them."""
    model, generator = reverser(residual), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    losses, seen = [], {}
    for step in tqdm(range(steps), leave=False):
        if step in looks:
            seen[step] = look(model)
        share = min((step + 1) / max(warmup, 1), 1.0)
        optimizer.param_groups[0]["lr"] = rate * share
        letters, backwards = examples(generator)
        loss = F.cross_entropy(model(letters).flatten(0, 1), backwards.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, seen

# %% [markdown]
# Post-LN has a norm after each addition, Pre-LN one before each sublayer and a last one at the end (chapter 09, and the picture above). In this chapter a *norm* is always a LayerNorm; of a vector or a gradient we say *length*.

# %%
losses = {
    "Post-LN": train("post-ln", warmup=0)[0],
    "Post-LN, warm-up": train("post-ln", warmup=60)[0],
    "Pre-LN": train("pre-ln", warmup=0)[0],
}

# %% tags=["nbval-ignore-output", "reveal"]
figures.three_losses(losses, blind=math.log(LETTERS))
guess_1.compare("Post-LN, no warm-up")

# %% tags=["fold", "reveal"]
# @title Where the three runs end
end = {name: sum(curve[-20:]) / 20 for name, curve in losses.items()}
in_nats = {name: f"{loss:.2f} nats" for name, loss in end.items()}
claim(
    "Post-LN without warm-up ends within 0.05 nats of a blind guess among 16 letters; with a warm-up of 60 steps the same model is at least 0.2 nats better.",
    abs(end["Post-LN"] - math.log(LETTERS)) < 0.05
    and end["Post-LN, warm-up"] < math.log(LETTERS) - 0.2,
    **{name: in_nats[name] for name in ("Post-LN", "Post-LN, warm-up")},
)
claim(
    "Pre-LN is more than 1 nat better than a guess, without a warm-up.",
    end["Pre-LN"] < math.log(LETTERS) - 1,
    **{"Pre-LN": in_nats["Pre-LN"]},
)

# %% [markdown]
# Look twice at the middle curve. The warm-up gets Post-LN going, but once the rate is whole the loss climbs again: 0.01 is too high for this model, with or without a warm-up. So before any trick, the plain question: what does a tenth of the rate do, without a warm-up?

# %%
slower, _ = train("post-ln", warmup=0, rate=0.001)

# %% tags=["fold", "reveal"]
# @title Post-LN at a tenth of the rate
middle = losses["Post-LN, warm-up"]
claim(
    "Post-LN at a tenth of the rate needs no warm-up: it ends at least 0.4 nats better than a blind guess, and better than with the warm-up at the high rate.",
    sum(slower[-20:]) / 20 < min(math.log(LETTERS) - 0.4, end["Post-LN, warm-up"]),
    slower=f"{sum(slower[-20:]) / 20:.2f} nats",
)
claim(
    "With the warm-up, at the high rate, the loss is higher in steps 61 to 80, after the warm-up, than in steps 21 to 40.",
    sum(middle[60:80]) > sum(middle[20:40]),
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
# The failure that this chapter takes apart is therefore one of a *high* rate. Each trick has its reason, its line of code and its number here. Where a number contradicts the reason, you see both.

# %% [markdown]
# ## 1 · What LayerNorm does to a gradient
#
# Take one vector $x$ of $D$ numbers (the model's width) with mean $\bar x$. LayerNorm, without its gain and bias, gives
#
# $$ \hat x = \frac{x - \bar x}{\sigma}, \qquad \sigma = \sqrt{\tfrac1D \textstyle\sum_i (x_i - \bar x)^2} = \frac{\lVert x - \bar x \rVert}{\sqrt D} . $$
#
# Its derivative needs no algebra. How far does $\hat x$ move when $x$ makes a small step (a) by the same number in all entries, (b) along $x - \bar x$, which stretches it, (c) at right angles to both? Think, then run.

# %%
draws = torch.Generator().manual_seed(0)
one_x = 3 * torch.randn(D, generator=draws, dtype=torch.float64) + 1
x_hat, sigma = F.layer_norm(one_x, (D,)), one_x.std(correction=0)
across = torch.randn(D, generator=draws, dtype=torch.float64)
across = across - across.mean() - x_hat * (across * x_hat).mean()  # at right angles
moves = {"(a)": torch.ones(D), "(b)": x_hat, "(c)": across}
moved_by = {}
for name, move in moves.items():
    moved = F.layer_norm(one_x + 1e-4 * move, (D,)) - x_hat
    moved_by[name] = moved.norm() / (1e-4 * move.norm())

# %% tags=["reveal"]
print(f"1 / sigma is {1 / sigma:.3f}")
for name, factor in moved_by.items():
    print(f"{name}: {factor:.3f} of the step")

# %% tags=["fold", "reveal"]
# @title What LayerNorm lets through
claim(
    "(a) and (b): not at all. (c): by the step divided by $\\sigma$, within 0.1 %.",
    moved_by["(a)"] < 1e-6
    and moved_by["(b)"] < 1e-5
    and abs(moved_by["(c)"] * sigma - 1) < 1e-3,
)

# %% [markdown]
# So the derivative $J$ removes the directions $(1, \ldots, 1)$ and $\hat x$, and divides all others by $\sigma$:
#
# $$ J = \frac{\partial \hat x}{\partial x} = \frac1\sigma \Big( I - \tfrac1D \mathbf 1 \mathbf 1^\top - \tfrac1D \hat x \hat x^\top \Big), \qquad
#    \lVert J \rVert = \frac1\sigma = \frac{\sqrt D}{\lVert x - \bar x \rVert} . $$
#
# Here $\lVert J \rVert$ is the largest singular value; it is exactly $1/\sigma$: the larger what LayerNorm reads, the smaller the gradient that it hands back. Papers write this as $O(\sqrt D / \lVert x \rVert)$, which is the same where the mean is 0. What happens where it is not?

# %%
layer_norm_gain = gradient_norms.layer_norm_gain  # singular values of the Jacobian
lengths = (0.5, 1, 2, 4, 8, 16, 32, 64)
centred = [layer_norm_gain(64, length, seed=0) for length in lengths]
shifted = [layer_norm_gain(64, length, seed=0, centred=False) for length in lengths]

# %%
figures.jacobian_norm(lengths, centred, shifted)

# %% tags=["fold"]
# @title The law at eight lengths
claim(
    "For x with mean 0 the largest singular value is $\\sqrt D / \\Vert x \\Vert$, within 1 %, at every length from 0.5 to 64.",
    all(abs(gain["largest"] / gain["law"] - 1) < 0.01 for gain in centred),
)
claim(
    "For x with another mean it is larger by more than a fifth: LayerNorm does not see the mean, so $\\Vert x - \\bar x \\Vert$ counts.",
    all(gain["largest"] / gain["law"] > 1.2 for gain in shifted),
    times_the_law=shifted[4]["largest"] / shifted[4]["law"],
)

# %% [markdown]
# A residual stream adds the output of a sublayer to its input, so it grows, and $\sigma > 1$ behind every addition. In a stack of $N$ layers there are $2N$ norms. From this one may conclude: *Post-LN divides the gradient by more than 1 at each of 2N norms, so it vanishes in the lower layers.*
# The law is exact. Is the conclusion? A gradient that comes down passes the norm, *and then the addition*, where the sublayer's own gradient is added to it. Here are both factors, at initialisation, for our reverser:


# %%
def factors(encoder, stream):
    """How each sublayer's norm and addition change a gradient's length (Post-LN)."""
    points = [stream.requires_grad_()]  # x, sum, x, sum, ...
    for layer in encoder.layers:
        for sublayer, norm in (
            (layer.self_attn, layer.norm1),
            (layer.feed_forward, layer.norm2),
        ):
            total = points[-1] + sublayer(points[-1])
            points += [total, norm(total)]
    for point in points[1:]:
        point.retain_grad()
    arriving = torch.randn(stream.shape, generator=torch.Generator().manual_seed(1))
    points[-1].backward(arriving)
    size = [point.grad.norm().item() for point in points]
    through_norm = math.prod(size[i] / size[i + 1] for i in range(1, len(size), 2))
    through_sum = math.prod(size[i] / size[i + 1] for i in range(0, len(size) - 1, 2))
    return through_norm, through_sum

# %%
twelve_layers = reverser("post-ln")
letters, _ = examples(torch.Generator().manual_seed(0))
embedded = twelve_layers[0](letters).detach()
through_norm, through_sum = factors(twelve_layers[1], embedded)
print(f"24 norms: {through_norm:.2f}   24 additions: {through_sum:.2f}")
print(f"together: {through_norm * through_sum:.2f}")

# %% tags=["fold"]
# @title Both factors, at initialisation
claim(
    "The 24 norms alone would make the gradient shorter, the 24 additions make it longer.",
    through_norm < 0.9 and through_sum > 1.1,
    norms=through_norm,
    additions=through_sum,
)
claim(
    "Together: from top to bottom the gradient keeps its order of magnitude.",
    0.2 < through_norm * through_sum < 5,
    factor=through_norm * through_sum,
)

# %% [markdown]
# So the law describes one of two factors, and at initialisation the other one makes up for it. Why? Let a sublayer's output have $s$ times the squared length of the stream, at right angles to it. Then $\sigma^2$ grows to $1 + s$, and the norm divides the squared gradient by $1 + s$. A random sublayer stretches gradients about as much as inputs, so the addition multiplies by about $1 + s$ again. How far does that carry with depth? Here is the gradient of the feed-forward output matrix, first layer relative to last, for untrained reversers with two ways of drawing the matrices. One draw says little, so look at the median of twenty (some 15 seconds):


# %%
def first_over_last(residual, values, layers, seed):
    """Length of the first layer's gradient over that of the last layer's."""
    model = reverser(residual, layers, seed)
    if values == "xavier":
        for layer in model[1].layers:
            matrices = [*layer.self_attn.in_proj_weight.data.chunk(3)]
            for linear in (layer.self_attn.out_proj, layer.linear1, layer.linear2):
                matrices.append(linear.weight)
            for matrix in matrices:
                nn.init.xavier_uniform_(matrix)
    letters, backwards = examples(torch.Generator().manual_seed(seed))
    F.cross_entropy(model(letters).flatten(0, 1), backwards.flatten()).backward()
    first, *_, last = (layer.linear2.weight.grad.norm() for layer in model[1].layers)
    return (first / last).item()

# %% tags=["fold"]
# @title Twenty draws at three depths
PLACEMENTS = {"post-ln": "Post-LN", "pre-ln": "Pre-LN", "rezero": "ReZero"}
START = {"torch": "torch's initial values", "xavier": "Xavier's"}
DEPTHS = (12, 24, 48)
cases = [(residual, values) for residual in ("post-ln", "pre-ln") for values in START]
ratio = {
    case: [
        sorted(first_over_last(*case, layers, seed) for seed in range(20)) for layers in DEPTHS
    ]
    for case in tqdm(cases, leave=False)
}
table(
    ["first layer over last: median of 20 (5th to 16th)", *(f"{N} layers" for N in DEPTHS)],
    [
        [
            f"{PLACEMENTS[residual]}, {START[values]}",
            *(f"{(r[9] + r[10]) / 2:.2f} ({r[4]:.2f} to {r[15]:.2f})" for r in found),
        ]
        for (residual, values), found in ratio.items()
    ],
)
middles = {case: [(r[9] + r[10]) / 2 for r in found] for case, found in ratio.items()}
claim(
    "Post-LN: the median is below 1 with Xavier's values and falls with depth, by less than a factor of 5 from 12 to 48 layers; with torch's it stays above a half.",
    1 > middles["post-ln", "xavier"][0] > middles["post-ln", "xavier"][2]
    and middles["post-ln", "xavier"][0] < 5 * middles["post-ln", "xavier"][2]
    and min(middles["post-ln", "torch"]) > 0.5,
)
claim(
    "Single draws scatter more than the medians: with 48 layers and Xavier's values more than tenfold.",
    ratio["post-ln", "xavier"][2][-1] > 10 * ratio["post-ln", "xavier"][2][0],
)
claim(
    "In Pre-LN it is the first layers that get more, and the more so the deeper the network.",
    all(1 < middles["pre-ln", values][0] < middles["pre-ln", values][2] for values in START),
)

# %% [markdown]
# So Post-LN's gradient does shrink towards the first layer with Xavier's values: mildly, and more with depth. It does not vanish. What did Xiong et al. (2020) prove? Their theorem 1 bounds the gradient of the *last* layer: $O(D \sqrt{\ln D})$ in Post-LN at any depth, $O(D \sqrt{\ln D / N})$ in Pre-LN. Large gradients near the output are their reason for small first steps. The ledger, with Xavier's values as in their theory:

# %% tags=["fold"]
# @title The ledger: the last layer's gradient by depth
def last_gradient(residual, layers):
    """Of the last layer's feed-forward matrix, mean over the seeds."""
    row = f"gradients, {residual}, xavier, {layers} layers"
    found = ledger.values("gradient-norms", row, "feed-forward")
    return sum(norms[-1] for norms in found) / len(found)


last = {
    residual: [last_gradient(residual, layers) for layers in (6, 12, 24)]
    for residual in ("post-ln", "pre-ln")
}
table(
    ["gradient of the last layer", "6 layers", "12 layers", "24 layers"],
    [[PLACEMENTS[name], *(f"{value:.2f}" for value in found)] for name, found in last.items()],
)
claim(
    "From 6 to 24 layers it falls in Pre-LN to 0.5 to 0.65 of its size (theory: 1/2); in Post-LN it does not fall.",
    0.5 < last["pre-ln"][2] / last["pre-ln"][0] < 0.65 and last["post-ln"][2] > last["post-ln"][0],
)

# %% [markdown]
# The theorem holds here. What does not is the step from it to the lower layers: in their figures Post-LN's gradients grow strongly from bottom to top, in ours a little. Task and size differ, and, in the first row of the table before, the initial values; of these only the initial values were varied here. Do not conclude that Post-LN is harmless: section 2 shows what training makes of it.

# %% [markdown]
# ### Exercise 11.1 · LayerNorm backwards
#
# Difficulty ●●●○○ · 25 minutes · needs section 1
#
# Write the backward pass of LayerNorm (without gain and bias) from the Jacobian above, for a whole batch, without autograd and without building a D × D matrix (the check looks for both). $J$ is symmetric, so $\partial L / \partial x = J\, \partial L / \partial \hat x$: subtract two projections, divide by $\sigma$.
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
# The failing model of the first screen has healthy gradients at the start, then. So train the three for 41 steps again, and look inside before some of them, on one fixed batch:
#
# - the length of the gradient of the first layer's feed-forward output matrix;
# - the mean $\sigma$ of the vectors that the last layer's second LayerNorm reads;
# - how alike the outputs $h$ of all places of all sentences are: $\lVert \bar h \rVert^2$, squared length of their mean, divided by the mean of $\lVert h \rVert^2$. It is 1 if all are equal.

# %% tags=["fold"]
# @title What is recorded before some of the steps
def inside(model):
    """Four numbers of a model on one fixed batch, as listed above, and the last layer's gradient."""
    letters, backwards = examples(torch.Generator().manual_seed(99))
    encoder, sums = model[1], []
    hook = encoder.layers[-1].norm2.register_forward_pre_hook(
        lambda norm, args: sums.append(args[0])
    )
    model.zero_grad()
    F.cross_entropy(model(letters).flatten(0, 1), backwards.flatten()).backward()
    hook.remove()
    with torch.no_grad():
        out = encoder(model[0](letters))  # (B, T, D)
        alike = out.mean((0, 1)).square().sum() / out.square().sum(-1).mean()
    return {
        "gradient, first layer": encoder.layers[0].linear2.weight.grad.norm().item(),
        "gradient, last layer": encoder.layers[-1].linear2.weight.grad.norm().item(),
        "size of what the last norm reads": sums[0].std(-1).mean().item(),
        "share that all outputs have in common": alike.item(),
    }

# %%
LOOKS = (0, 1, 2, 3, 5, 10, 20, 40)
seen = {
    name: train(residual, warmup, steps=41, look=inside, looks=LOOKS)[1]
    for name, residual, warmup in (
        ("Post-LN", "post-ln", 0),
        ("Post-LN, warm-up", "post-ln", 60),
        ("Pre-LN", "pre-ln", 0),
    )
}

# %%
guess_2 = predict("the steps until the gradient is a hundredth of its start", ...)

# %% tags=["reveal"]
figures.first_steps(seen)
looks = {step: look["gradient, first layer"] for step, look in seen["Post-LN"].items()}
dead = min(step for step, size in looks.items() if size < 0.01 * looks[0])
guess_2.compare(f"{dead} steps or fewer")

# %% tags=["fold", "reveal"]
# @title What the first steps do
failing, warmed, pre = seen.values()
first_grad, last_grad = "gradient, first layer", "gradient, last layer"
read, common = "size of what the last norm reads", "share that all outputs have in common"
claim(
    "At initialisation the first layer's gradient is as large as the last one's, within a factor of 2. One step of Adam without warm-up makes the outputs of all letters at all places alike: more than 95 % of their squared length is common. After 10 steps the gradient is less than a hundredth of what it was.",
    0.5 < failing[0][first_grad] / failing[0][last_grad] < 2
    and failing[1][common] > 0.95
    and failing[10][first_grad] < 0.01 * failing[0][first_grad],
    common_before=failing[0][common],
    common_after_one_step=failing[1][common],
    gradient_before=failing[0][first_grad],
    after_10_steps=failing[10][first_grad],
)
claim(
    "With the warm-up the outputs become alike for a while too, but the gradient keeps more than a tenth of its size, and at step 40 the outputs differ again.",
    warmed[40][first_grad] > 0.1 * warmed[0][first_grad] and warmed[40][common] < 0.7,
    common_at_step_40=warmed[40][common],
)

# %% [markdown]
# A vicious circle of this kind is described by Huang et al. (2020), with one more turn: $v$ remembers the large gradients, so Adam's steps become tiny as well. The order matters:
#
# 1. Adam's first step moves *every* weight by the learning rate $\eta$ (section 4). With 12 layers and a large $\eta$ the outputs change so much that all places look alike.
# 2. Where all places look alike, attention has nothing to choose from: mixing equal values changes nothing, and no gradient tells queries and keys what to do (section 3).
# 3. The sums that the norms read grow with the steps, and each norm divides the gradient by the size of what it reads.
# 4. In Post-LN every path from the loss to the first layer leads through 2N norms. In Pre-LN one path leads through none of them: the same accident happens, and the gradient survives it.

# %% tags=["fold"]
# @title Points 3 and 4, checked on the recorded runs
claim(
    "Post-LN without warm-up: what the last norm reads has more than doubled by step 40.",
    failing[40][read] > 2 * failing[0][read],
    before=failing[0][read],
    after=failing[40][read],
)
claim(
    "In Pre-LN the outputs become alike and the stream grows as well; the gradient comes through, in the first layer as in the last.",
    max(look[common] for look in pre.values()) > 0.8
    and pre[40][read] > pre[0][read]
    and min(look[first_grad] / look[last_grad] for look in pre.values()) > 0.3,
)

# %% [markdown]
# How much does a deep stack amplify a small change of its weights? Liu et al. (2020a) hold this amplification, not unbalanced gradients, to be the root of the trouble. Change every matrix by 1 % of its size and compare the outputs:

# %%
def amplification(residual, depth, seed):
    """Squared relative change of the output when each matrix changes by 1 %."""
    torch.manual_seed(seed)
    norm = nn.LayerNorm(D) if residual == "pre-ln" else None
    layers = [EncoderLayer(D, 4, 4 * D, 0.0, residual=residual) for _ in range(depth)]
    encoder, stream = TransformerEncoder(layers, norm), torch.randn(4, 16, D)
    with torch.no_grad():
        before = encoder(stream)
        for p in encoder.parameters():
            if p.ndim >= 2:
                p += 0.01 * p.std() * torch.randn_like(p)
        return ((encoder(stream) - before).norm() / before.norm()).square().item()


def mean_amplification(residual, depth):
    """Over five seeds."""
    return sum(amplification(residual, depth, seed) for seed in range(5)) / 5

# %%
depths = (2, 4, 8, 16, 32)
change = {
    residual: [mean_amplification(residual, depth) for depth in depths]
    for residual in ("post-ln", "pre-ln")
}
figures.change_by_depth(depths, change)

# %% tags=["fold"]
# @title How it grows with depth
grown = {residual: found[-1] / found[0] for residual, found in change.items()}
claim(
    "At 2 layers the two placements amplify a change alike, within 20 %.",
    abs(change["post-ln"][0] / change["pre-ln"][0] - 1) < 0.2,
)
claim(
    "From 2 to 32 layers, 16 times as deep, Post-LN's squared change grows by more than 16, Pre-LN's by less.",
    grown["post-ln"] > 20 and grown["pre-ln"] < 16,
    **{"Post-LN": f"{grown['post-ln']:.0f} times", "Pre-LN": f"{grown['pre-ln']:.0f} times"},
)

# %% [markdown]
# Their theory says $O(N)$ for Post-LN and $O(\log N)$ for Pre-LN, in their model of a layer. Our layers, with torch's initial values, grow faster than either; the order of the two is theirs.

# %% [markdown]
# ## 3 · Queries and keys against values
#
# Inside one attention layer the gradients are unequal. Values enter the output as a weighted mean: $o_i = \sum_j a_{ij} v_j$, so the gradient $g_i$ of output $i$ reaches $v_j$ as $a_{ij}\, g_i$. Queries and keys act through the softmax, whose Jacobian is $\mathrm{diag}(a) - a a^\top$. For the score $e_{ij}$:
#
# $$ \frac{\partial L}{\partial e_{ij}} = a_{ij} \Big( g_i \cdot v_j - \sum_k a_{ik}\, g_i \cdot v_k \Big) = a_{ij}\; g_i \cdot (v_j - o_i) . $$
#
# Read the last factor: what counts is how much a value *differs from the mean* that the query got. If all values are alike, queries and keys get nothing, whatever $g$ is. How sharp is this? Mix a common vector into all places, with share $c$ of the squared length. At $c = 0$ the gradient of $W_q$ is about half as long as that of $W_v$. How long is it when half of the squared length is in common?

# %%
def query_over_value(share, seed):
    """Gradient of W_q relative to that of W_v, for inputs with a common part."""
    torch.manual_seed(seed)
    layer = EncoderLayer(D, 4, 4 * D, 0.0).self_attn
    common_part, own = torch.randn(1, 1, D), torch.randn(8, 16, D)
    mixed = share**0.5 * common_part + (1 - share) ** 0.5 * own
    (layer(mixed) * torch.randn(8, 16, D)).sum().backward()
    query, _, value = layer.in_proj_weight.grad.chunk(3)
    return (query.norm() / value.norm()).item()


shares = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
ratios = [sum(query_over_value(share, s) for s in range(5)) / 5 for share in shares]

# %% tags=["fold", "reveal"]
# @title The queries' gradient beside the values'
table(
    ["share in common", *map(str, shares)],
    [["gradient of $W_q$ over that of $W_v$", *(f"{ratio:.1g}" for ratio in ratios)]],
)
claim(
    "The more the places have in common, the smaller the gradient of the queries beside that of the values; with half of the squared length in common it is less than a fifth as large.",
    ratios == sorted(ratios, reverse=True)
    and ratios[-1] < 0.05 * ratios[0]
    and ratios[2] < 0.2,
    half_in_common=ratios[2],
)

# %% [markdown]
# And in a whole model? The ledger's six layers, before and after 150 steps of training (Post-LN and Pre-LN; ReZero's matrices have no gradient at all before its first step, see section 6):

# %% tags=["fold"]
# @title The ledger: queries over values
CASES = (("post-ln", 0), ("pre-ln", 0), ("post-ln", 150), ("pre-ln", 150), ("rezero", 150))
projections = {
    (residual, taken): ledger.summary(
        "gradient-norms", f"projections, {residual}, {taken} steps", "query_over_value"
    )[:3]
    for residual, taken in CASES
}
table(
    ["placement", "steps taken", "gradient of $W_q$ over that of $W_v$"],
    [
        [PLACEMENTS[residual], taken, f"{mean:.2f} ({low:.2f} to {high:.2f})"]
        for (residual, taken), (mean, low, high) in projections.items()
    ],
)
claim(
    "Before training the queries get between a tenth and a fifth of what the values get.",
    all(
        0.1 < bound < 0.2
        for residual in ("post-ln", "pre-ln")
        for bound in projections[residual, 0][1:]
    ),
)
claim(
    "After 150 steps the ratio has at least doubled; with ReZero it is above 1: the imbalance is no law.",
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
letters, backwards = examples(torch.Generator().manual_seed(0))
F.cross_entropy(model(letters).flatten(0, 1), backwards.flatten()).backward()
packed = model[1].layers[0].self_attn.in_proj_weight  # queries, keys, values
before = packed.detach().clone()
optimizer.step()
for name, part, step in zip("qkv", packed.grad.chunk(3), (packed - before).chunk(3)):
    print(f"W_{name}: gradient {part.norm():.3f}, step {step.norm():.3f}")

# %% tags=["fold"]
# @title Unequal gradients, equal steps
sizes = [part.norm().item() for part in packed.grad.chunk(3)]
step_sizes = [part.norm().item() for part in (packed.detach() - before).chunk(3)]
claim(
    "The gradient of $W_v$ is more than three times those of $W_q$ and $W_k$.",
    sizes[2] > 3 * max(sizes[:2]),
    queries_keys_values=sizes,
)
claim(
    "Adam's first step moves each of the three by the learning rate in every entry, within 1 %.",
    all(abs(size / (0.01 * D) - 1) < 0.01 for size in step_sizes),
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
noise = torch.randn(4000, 200, generator=torch.Generator().manual_seed(0)).double()
beta2, v, scatter = 0.999, torch.zeros(4000, dtype=torch.float64), []
for t in range(1, 201):
    v = beta2 * v + (1 - beta2) * noise[:, t - 1] ** 2
    scatter.append(((1 - beta2**t) / v).sqrt().var().item())
for t in (1, 2, 5, 10, 100):
    print(f"after {t:3} gradients the variance of psi is {scatter[t - 1]:.3g}")

# %%
def samples(t, beta2):
    """rho_t: how many equally weighted samples the moving average is worth."""
    return 2 / (1 - beta2) - 1 - 2 * t * beta2**t / (1 - beta2**t)


def predicted(rho):
    """The paper's approximation of the variance of psi, for more than 4 samples."""
    return rho / (2 * (rho - 2) * (rho - 4))


# %% tags=["fold"]
# @title The scatter, and the paper's formula for it
claim(
    "With one sample the adaptive rate scatters more than a thousand times as much as with 10.",
    scatter[0] > 1000 * scatter[9],
    **{f"variance after {t}": scatter[t - 1] for t in (1, 10, 100)},
)
claim(
    "From 20 gradients on the paper's approximation is right within 40 %, and always on the safe side.",
    all(1 < predicted(samples(t, beta2)) / scatter[t - 1] < 1.4 for t in range(20, 201)),
)

# %% [markdown]
# Are samples all that is missing? Liu et al. (2020b) tested it: for the first 2,000 gradients they only filled $v$ and held weights and momentum; from then on their translation model trained without a warm-up. We hold our Post-LN reverser for 60 gradients, then give it its high rate for 60 steps. (torch's `LambdaLR` multiplies the learning rate by a function of the step; section 5 has more of them.) A blind guess has a loss of $\ln 16 = 2.77$ nats.

# %%
guess_3 = predict("the loss after these 60 steps, in nats", ...)

# %%
def train_held(hold, steps=60):
    """Post-LN; for `hold` gradients the rate is 0, and Adam only fills m and v."""
    model, generator = reverser("post-ln"), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    options = {"scheduler": LambdaLR(optimizer, lambda step: float(step >= hold))}
    losses = []
    for _ in tqdm(range(hold + steps), leave=False):
        batch = [examples(generator)]
        found = train_epoch(model, batch, language_model_loss, optimizer, **options)
        losses.append(found["loss"])
    return losses[hold:]


held = sum(train_held(60)[-20:]) / 20

# %% tags=["fold", "reveal"]
# @title Does a well-filled v save it?
guess_3.compare(f"{held:.3f} nats")
claim(
    "With $v$ from 60 gradients Post-LN is still no better than a blind guess after 60 steps.",
    held > math.log(LETTERS) - 0.05,
    loss=f"{held:.2f} nats",
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
show_source(rectification, radam_update)

# %%
figures.rectifications()

# %% tags=["fold"]
# @title When it starts, and when it is half way
counts = range(1, 10001)
first = {b: next(t for t in counts if rectification(t, b) > 0) for b in (0.9, 0.98, 0.999)}
half = {b: next(t for t in counts if rectification(t, b) > 0.5) for b in (0.9, 0.98, 0.999)}
claim(
    "The first adaptive step is the 6th for all three; r passes one half after 11, 33 and 556 gradients.",
    set(first.values()) == {6} and list(half.values()) == [11, 33, 556],
)

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
show_source(optim.cosine_schedule, optim.noam_schedule, optim.inverse_sqrt_schedule)

# %%
WARMUP, TOTAL, PEAK = 4000, 20000, 7e-4
at = range(0, TOTAL, 50)
inverse_sqrt = [optim.inverse_sqrt_schedule(s, WARMUP) for s in at]
curves = {
    "constant": [PEAK * optim.constant_schedule(s, WARMUP) for s in at],
    "linear": [PEAK * optim.linear_schedule(s, WARMUP, TOTAL) for s in at],
    "cosine": [PEAK * optim.cosine_schedule(s, WARMUP, TOTAL) for s in at],
    "inverse square root": [PEAK * factor for factor in inverse_sqrt],
}
noam = [optim.noam_schedule(s, 512, WARMUP) for s in at]
figures.schedules(at, curves, noam)

# %% tags=["fold"]
# @title Noam is an inverse square root
claim(
    "Noam is the inverse square root times (D · warm-up) to the power -1/2, at every step; the paper's base model has its highest rate, 0.0007, at the last step of the warm-up.",
    all(
        math.isclose(a, (512 * WARMUP) ** -0.5 * b)
        for a, b in zip(noam, inverse_sqrt, strict=True)
    )
    and round(optim.noam_schedule(WARMUP - 1, 512, WARMUP), 4) == 0.0007,
)

# %% [markdown]
# The unit of all these numbers is the *optimizer step*. Original settings: 4,000 of 100,000 steps (Vaswani et al. 2017), 10,000 of 1,000,000 (BERT). "A warm-up of 4,000" says little without the batch size and the length of the training.
#
# **Common mistake · a warm-up that starts at exactly 0.** With the factor $s / w$ in place of $(s+1)/w$ the first step does nothing: data read, gradient computed, nothing learned. It costs one step (`transformers` does it too), and it hides mistakes: *does one training step change the weights?* is the first test that one writes for a loop.
#
# **Common mistake · the cosine that multiplies the warm-up.** P. Lippe's tutorial 6 (University of Amsterdam), whose `CosineWarmupScheduler` has been copied into many projects, computes the cosine over the whole training and multiplies it by $s/w$ during the warm-up. What is its highest factor, and how far does the first step go?


# %%
def multiplied(step, warmup, total):
    """That factor: a cosine from the first step on, times a rise from 0."""
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

# %% tags=["fold", "reveal"]
# @title Its highest factor, and its first step
table(
    ["warm-up, share of the training", "highest factor", "ours"],
    [[f"{share:.0%}", value, 1.0] for share, value in highest.items()],
)
claim(
    "It never reaches 1: the longer the warm-up, the lower the peak.",
    highest[0.06] < 1 and highest[0.5] < 0.6,
)
claim(
    "Its first step changes nothing; ours moves by 1/60 of the learning rate.",
    first_change(lambda i: multiplied(i, 60, 1000)) == 0
    and math.isclose(
        first_change(lambda i: optim.cosine_schedule(i, 60, 1000)), 0.1 / 60, rel_tol=1e-3
    ),
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
# The picture at the head of the chapter shows the ways to add a sublayer $f$ to the stream. In code they are two lines apart:

# %%
show_source(post_ln, pre_ln, rezero)

# %% [markdown]
# **Pre-LN** moves the norm into the branch. The stream itself is a sum, $x_N = x_0 + f_1 + f_2 + \ldots$, and the gradient of the loss reaches $x_0$ through the first term unchanged. Two prices: the stream grows with depth, so that a *last* norm is needed before the output; and late layers add little to a large stream.
#
# **ReZero** has no norm. Each layer has one learned number $\alpha$ that starts at 0: $x \leftarrow x + \alpha f(x)$. The network starts as the identity, whatever its depth. Which weights have a gradient in the first step?

# %%
identity = reverser("rezero")
letters, backwards = examples(torch.Generator().manual_seed(0))
optimizer = torch.optim.Adam(identity.parameters(), lr=0.01)


def largest_gradients():
    """Of the layers' alphas and of their matrices; the gradients stay for a step."""
    identity.zero_grad()
    F.cross_entropy(identity(letters).flatten(0, 1), backwards.flatten()).backward()
    found = {"alphas": 0.0, "matrices": 0.0}
    for p in identity[1].parameters():
        kind = "alphas" if p.ndim == 0 else "matrices"
        found[kind] = max(found[kind], p.grad.abs().max().item())
    return found


with torch.no_grad():
    unchanged = torch.equal(identity[1](identity[0](letters)), identity[0](letters))
first_gradients = largest_gradients()
optimizer.step()
second_gradients = largest_gradients()

# %% tags=["fold", "reveal"]
# @title What has a gradient
claim("Twelve layers of ReZero start as the identity, exactly.", unchanged)
claim(
    "In the first step only the alphas have a gradient; every matrix of the 12 layers has exactly 0. After one step the matrices have one too.",
    first_gradients["matrices"] == 0 < first_gradients["alphas"]
    and second_gradients["matrices"] > 0,
)

# %% [markdown]
# The reason: the gradient of $f$'s weights is $\alpha$ times something, the gradient of $\alpha$ is $f(x)$ times something. Adam moves each $\alpha$ by $\pm\eta$, and the layers fade in. On the reverser this works very well:

# %%
rezero_losses, _ = train("rezero", warmup=0)

# %% tags=["fold"]
# @title Where ReZero ends
rezero_end = sum(rezero_losses[-20:]) / 20
claim(
    "ReZero learns to reverse without warm-up and without a norm, and ends below 0.5 nats.",
    rezero_end < 0.5,
    **{"ReZero": f"{rezero_end:.2f} nats", "Pre-LN": in_nats["Pre-LN"]},
)

# %% [markdown]
# **T-Fixup** (Huang et al. 2020) removes norms *and* warm-up and changes the initial values instead: Xavier's values for all matrices but the embeddings, which are normal; then those of values, output projections and feed-forward networks times $0.67\, N^{-1/4}$ in the encoder and $(9N)^{-1/4}$ in the decoder, and all embeddings times $(9N)^{-1/4}$. The factor is chosen so that one step of Adam changes the output by about the same amount at every depth.
# A Transformer without norms is ReZero with $\alpha = 1$ from the start. Its stream, from bottom to top:


# %%
@torch.no_grad()
def stream_growth(depth, factor):
    """Length of the output over that of the input: no norms, Xavier's matrices."""
    torch.manual_seed(0)
    stack = [EncoderLayer(D, 4, 4 * D, 0.0, residual="rezero") for _ in range(depth)]
    for layer in stack:
        nn.init.ones_(layer.norm1.alpha)
        queries, keys, values = layer.self_attn.in_proj_weight.chunk(3)
        scaled = [values, layer.self_attn.out_proj.weight]
        scaled += [layer.linear1.weight, layer.linear2.weight]
        for matrix in (queries, keys, *scaled):
            nn.init.xavier_uniform_(matrix)
        for matrix in scaled:
            matrix *= factor
    stream = torch.randn(4, 16, D)
    return (TransformerEncoder(stack)(stream).norm() / stream.norm()).item()


stack_depths = (4, 8, 16, 32)
growth = {False: [stream_growth(depth, 1.0) for depth in stack_depths]}
growth[True] = [stream_growth(depth, 0.67 * depth**-0.25) for depth in stack_depths]

# %% tags=["fold"]
# @title The stream of 4 to 32 layers without norms
table(
    ["length of the output over that of the input", *(f"{depth} layers" for depth in stack_depths)],
    [
        ["Xavier", *(f"{value:,.0f}" for value in growth[False])],
        ["Xavier, T-Fixup's factor", *(f"{value:.1f}" for value in growth[True])],
    ],
)
claim(
    "Without norms and without the factor the stream of 32 layers grows more than a thousandfold; with the factor it grows by less than a fifth, at every depth.",
    growth[False][-1] > 1000 and max(growth[True]) < 1.2,
)

# %% [markdown]
# **Common mistake · "Pre-LN" that normalises the stream.** The two lines of a Pre-LN sublayer are easily written so:
#
# ```python
# x = norm(x)
# x = x + attention(x)
# ```
#
# It is nearly `x = x + attention(norm(x))`, but here $x$ itself is replaced, *the residual too*. Is it still Pre-LN? Write two such sublayers after each other: norm, add, norm, add. And Post-LN: add, norm, add, norm. It is **Post-LN, shifted by one norm**:


# %%
def misplaced(x, sublayer, norm, **options):
    """The norm in place of the residual."""
    x = norm(x)
    return x + sublayer(x, **options)


def stack_of(residual):
    """Twelve layers of the same matrices with this residual function."""
    torch.manual_seed(0)
    layers = [EncoderLayer(D, 4, 4 * D, 0.0) for _ in range(LAYERS)]
    for layer in layers:
        layer.residual = residual
    return TransformerEncoder(layers)

# %%
def survives(residual, first_attention=True):
    """Gradient at the input over that at the output, for an input 10 times as large."""
    stack = stack_of(residual)
    if not first_attention:
        nn.init.zeros_(stack.layers[0].self_attn.out_proj.weight)
    large = 10 * torch.randn(8, T, D, generator=torch.Generator().manual_seed(0))
    large.requires_grad_()
    out = stack(large)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)))
    return large.grad.norm().item() / out.numel() ** 0.5


kept = {f.__name__: survives(f) for f in (post_ln, misplaced, pre_ln)}
without_first_attention = survives(post_ln, first_attention=False)

# %% tags=["fold"]
# @title Proof: the misplaced norm is Post-LN, shifted
usual = torch.randn(8, T, D, generator=torch.Generator().manual_seed(0))
unit = functools.partial(F.layer_norm, normalized_shape=(D,))
with torch.no_grad():
    claim(
        "norm, then the misplaced stack, then norm = norm, then Post-LN: to the last digits.",
        torch.allclose(unit(stack_of(misplaced)(usual)), stack_of(post_ln)(unit(usual)), atol=1e-4),
    )
table(
    ["residual", "gradient at the input over that at the output"],
    [[f"`{name}`", f"{value:.1g}"] for name, value in kept.items()],
)
claim(
    "After a large input Post-LN and the misplaced norm hand back less than half of the gradient; Pre-LN hands back all that came.",
    max(kept["post_ln"], kept["misplaced"]) < 0.5 and kept["pre_ln"] > 0.9,
)
claim(
    "Without the first layer's attention Post-LN hands back less than 0.6 of what it does with it.",
    without_first_attention < 0.6 * kept["post_ln"],
    without=without_first_attention,
)

# %% [markdown]
# So the path is cut, as in Post-LN. Why 0.3 in one and 0.1 in the other? The misplaced norm reads $x$ itself, which is ten times as large, and divides by 10. In Post-LN attention reads the large $x$ *before* the first norm; its own gradient grows with what it reads and is added below that norm. Without that first attention, Post-LN's number is near 0.1 too (the last claim).
#
# One such norm in each layer suffices to cut the path. To see it in code, ask: *is there a way from the output to the input that passes additions only?*
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
# Chapter 04 met clipping as the cure for explosions: if the whole gradient is longer than $c$, shorten it to $c$. Before a step of plain descent that bounds the step. Before one of Adam? Two questions. (a) All gradients of a training are longer than 1. You clip at 1, a colleague at 0.01. How long are the colleague's steps beside yours? (b) One batch in a training gives a gradient 1000 times as long as the others, for instance through a damaged document. What does it do to Adam, without clipping, during the 300 steps after it?

# %%
guess_4 = predict("the colleague's steps over yours, in (a)", ...)

# %%
def walk(max_norm, spike=None, steps=400):
    """Where a weight stands after each step of Adam; its gradients are 3 with noise."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    optimizer, places = torch.optim.Adam([weight], lr=1e-3), []
    for step in range(steps):
        weight.grad = 3 + torch.randn(1, generator=generator, dtype=torch.float64)
        weight.grad = weight.grad.clamp(min=1.5) * (1000 if step == spike else 1)
        if max_norm:
            nn.utils.clip_grad_norm_([weight], max_norm)
        optimizer.step()
        places.append(-weight.item())
    return places


one, hundredth = walk(1.0), walk(0.01)
plain, spiked, clipped = walk(None), walk(None, spike=100), walk(5.0, spike=100)

# %% tags=["reveal"]
guess_4.compare(f"{hundredth[-1] / one[-1]:.2f} of yours")
figures.spike(plain, spiked, clipped)

# %% tags=["fold", "reveal"]
# @title The two walks, and the spike
claim(
    "(a) They are equally long: clipping at 0.01 and at 1 gives the same walk, to 1 part in 1000.",
    max(abs(a / b - 1) for a, b in zip(one, hundredth, strict=True)) < 1e-3,
)
after = {name: w[-1] - w[100] for name, w in (("no", plain), ("spike", spiked), ("clip", clipped))}
claim(
    "(b) After one spike Adam without clipping moves less than a tenth of its usual distance in 300 steps; with clipping at 5 the spike costs less than 5 % of it.",
    after["spike"] < 0.1 * after["no"] and after["clip"] > 0.95 * after["no"],
    without_a_spike=after["no"],
    with_a_spike=after["spike"],
    clipped=after["clip"],
)

# %% [markdown]
# (a) Adam divides by the gradient's own size, so a constant factor cancels. Clipping that is *always* active does not make Adam careful; the learning rate does. (b) Clipping that is *rarely* active protects $v$, whose memory is $1/(1-\beta_2)$ = 1000 steps long. So log the gradient's length before clipping, and set $c$ above its usual values.
#
# **Common mistake · clipping at the wrong place.** The length that is compared with $c$ must be that of the gradient that the step will use. Clipped at the same $c$ before the micro-batches are divided by their count, or before a mixed-precision scaler has removed its factor, the threshold means something else:

# %%
set_seed(0)
weight, targets = nn.Parameter(torch.randn(D)), torch.randn(64, D)


def gradient_norm(clip_first, scale=1.0):
    """The length that the optimizer gets, from a summed, scaled loss of 64 examples."""
    weight.grad = None
    (scale * (targets @ weight - 3).square().sum()).backward()
    if clip_first:
        nn.utils.clip_grad_norm_([weight], 1.0)
    weight.grad /= 64 * scale
    if not clip_first:
        nn.utils.clip_grad_norm_([weight], 1.0)
    return weight.grad.norm().item()

# %% tags=["fold"]
# @title The length that reaches the optimizer
claim(
    "Divided, then clipped at 1: the length is 1. Clipped at 1, then divided by 64 examples: 1/64. With a scaler's factor of 1024 as well: 1/65536.",
    math.isclose(gradient_norm(False), 1.0, rel_tol=1e-4)
    and math.isclose(gradient_norm(True), 1 / 64, rel_tol=1e-4)
    and math.isclose(gradient_norm(True, 1024.0), 1 / 65536, rel_tol=1e-3),
)

# %% [markdown]
# With plain descent these steps would be 64 times too small. With Adam nothing seems to happen (see (a)), but every gradient is clipped in every step, and all batches weigh the same.

# %% [markdown]
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

# %% tags=["fold"]
# @title The two weights after 500 steps
table(
    ["after 500 steps", "noise of size 1", "noise of size 0.01"],
    [
        [name, *(f"{value:.2f}" for value in values)]
        for name, values in (
            ("Adam, L2 in the gradient", coupled),
            ("AdamW, decay beside it", decoupled),
            ("(1 - rate · decay)⁵⁰⁰", [0.9999**500] * 2),
        )
    ],
)
claim(
    "With L2 in Adam's gradient the weight with the small gradient decays more than five times as fast as the other; AdamW treats both alike, within 1 %.",
    (1 - coupled[1]) > 5 * (1 - coupled[0]) and abs(decoupled[0] - decoupled[1]) < 0.01,
)

# %% [markdown]
# So use AdamW, and mind that torch's `Adam`, `RAdam` and our `RAdam` mean the L2 penalty by `weight_decay`.
#
# **Of what?** When the matrix in front of a norm shrinks, the norm makes up for it. A LayerNorm's gain has nothing behind it that would; its size *is* its meaning: it should be 1 or what the data says, not 0. **Common mistake · everything decays.** The same training with and without groups; what becomes of the gains?

# %%
show_source(decay_groups)

# %%
def mean_gain(groups, steps=100):
    """Of the norms after a training; what is left of a letter that never occurs."""
    set_seed(0)
    layers = [EncoderLayer(D, 4, 4 * D, 0.0, residual="pre-ln") for _ in range(2)]
    embedding = TokenEmbedding(LETTERS + 1, D, Sinusoidal(D))
    encoder = TransformerEncoder(layers, nn.LayerNorm(D))
    model = nn.Sequential(embedding, encoder, nn.Linear(D, LETTERS))
    optimizer = torch.optim.AdamW(groups(model), lr=3e-3, weight_decay=1.0)
    generator = torch.Generator().manual_seed(0)
    never_read = embedding.embedding.weight[LETTERS]
    length = never_read.norm().item()
    batches = (examples(generator) for _ in range(steps))
    train_epoch(model, batches, language_model_loss, optimizer)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    gain = sum(norm.weight.mean().item() for norm in norms) / len(norms)
    return gain, embedding.embedding.weight[LETTERS].norm().item() / length


everything, _ = mean_gain(lambda model: model.parameters())
grouped, grouped_unseen = mean_gain(lambda model: decay_groups(model, 1.0))

# %% tags=["fold"]
# @title The same training, with groups and without
claim(
    "When everything decays, the gains sink by more than a tenth in 100 steps; with groups they grow above 1, and that is what the data ask for.",
    everything < 0.9 and grouped > 1,
    mean_gain_when_all_decays=everything,
    with_groups=grouped,
)
claim(
    "The embedding of a letter that never occurs shrinks all the same, by (1 - rate · decay)¹⁰⁰: it is a matrix too.",
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
# One trick in one setting proves little. The ledger holds {Post-LN, Pre-LN, ReZero} × {no warm-up, 50 steps} × {Adam, RAdam} × {4, 12 layers} × 3 seeds: 72 trainings of 240 steps on the toy translation of chapter 06, each pair written as one text (the source, a mark, the translation) for a causal model of width 32. Everything else is equal: data, order, matrices at the start, and the learning rate 0.005, the lowest tried at which Post-LN without warm-up fails. Scored is the share of right words in other sentences. Which trick helps at 4 layers? And:

# %%
guess_5 = predict(
    "how many of the 24 settings get half of the words wrong or more", ...
)

# %% tags=["fold"]
# @title The ledger's 24 settings
def mean(values):
    """Mean over the seeds."""
    return sum(values) / len(values)


SETTINGS = [
    (residual, warmup, optimizer, layers)
    for layers in (4, 12)
    for residual in ("post-ln", "pre-ln", "rezero")
    for warmup in ("no warm-up", "warm-up")
    for optimizer in ("Adam", "RAdam")
]


def recorded(setting, metric):
    """One number for each seed."""
    residual, warmup, optimizer, layers = setting
    row = f"{residual}, {warmup}, {optimizer}, {layers} layers"
    return ledger.values("training-grid", row, metric)


grid = {setting: recorded(setting, "accuracy") for setting in SETTINGS}
failed = ("post-ln", "no warm-up", "Adam", 12)

# %% tags=["reveal"]
figures.grid_of_settings("training-grid")
guess_5.compare(sum(max(accuracies) < 0.5 for accuracies in grid.values()))

# %% tags=["fold", "reveal"]
# @title Which fails, and what fixes it
claim(
    "One of 24 settings fails: no seed of it is right on half of the words; every seed of all others is.",
    max(grid[failed]) < 0.5 < min(min(found) for key, found in grid.items() if key != failed),
)
claim(
    "Each of four tricks alone fixes it, to more than 3 of 4 words in every seed: a warm-up, RAdam, Pre-LN, ReZero.",
    all(
        min(grid[key]) > 0.75
        for key in (
            ("post-ln", "warm-up", "Adam", 12),
            ("post-ln", "no warm-up", "RAdam", 12),
            ("pre-ln", "no warm-up", "Adam", 12),
            ("rezero", "no warm-up", "Adam", 12),
        )
    ),
)

# %% [markdown]
# The same in numbers: mean over three seeds, in brackets the least and the greatest. A seed is *stuck* when it ends no better than a table of word pairs, which never looks at the source.

# %% tags=["fold"]
# @title The grid in numbers
def with_range(values):
    """Mean, least and greatest."""
    return f"{mean(values):.3f} ({min(values):.2f} to {max(values):.2f})"


for layers in (4, 12):
    table(
        [f"{layers} layers", "optimizer", "warm-up", "share of right words", "loss (nats)", "stuck"],
        [
            [
                PLACEMENTS[key[0]],
                key[2],
                "50 steps" if key[1] == "warm-up" else "none",
                with_range(grid[key]),
                f"{mean(recorded(key, 'loss')):.2f}",
                f"{sum(recorded(key, 'stuck')):.0f} of 3",
            ]
            for key in SETTINGS
            if key[3] == layers
        ],
    )
claim(
    "At 4 layers no trick helps: Post-LN with plain Adam has the best mean of all twelve settings.",
    max((key for key in grid if key[3] == 4), key=lambda key: mean(grid[key]))
    == ("post-ln", "no warm-up", "Adam", 4),
)
claim(
    "In all panels but the failing one Adam without warm-up ends less than 4 % of the words behind the best mean.",
    all(
        mean(grid[residual, "no warm-up", "Adam", layers])
        > max(mean(grid[key]) for key in grid if (key[0], key[3]) == (residual, layers)) - 0.04
        for residual in ("post-ln", "pre-ln", "rezero")
        for layers in (4, 12)
        if (residual, layers) != ("post-ln", 12)
    ),
)

# %% [markdown]
# And what do RAdam, ReZero and a warm-up for Pre-LN cost or bring?

# %% tags=["fold"]
# @title RAdam, ReZero, and Pre-LN with a warm-up
claim(
    "Pre-LN does not need a warm-up, and yet gains from it at this rate and 12 layers, in every seed.",
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
behind = [mean(grid[key]) - mean(grid[key[0], key[1], "RAdam", key[3]]) for key in others]
claim(
    "At the grid's rate RAdam is better than Adam in the failing setting only; in the eleven others it is not ahead by even 1 % of the words, and in ten it is behind by more than 5 %. At step 240 it takes about a third of Adam's step.",
    min(behind) > -0.01
    and sum(words > 0.05 for words in behind) == 10
    and 0.3 < rectification(240, 0.999) < 0.36,
    share_of_the_step=rectification(240, 0.999),
)
claim(
    "ReZero trains at both depths without warm-up, but stays behind Pre-LN, and a warm-up makes it worse.",
    all(
        mean(grid["rezero", "no warm-up", "Adam", layers])
        < mean(grid["pre-ln", "no warm-up", "Adam", layers])
        and mean(grid["rezero", "warm-up", "Adam", layers])
        < mean(grid["rezero", "no warm-up", "Adam", layers])
        for layers in (4, 12)
    ),
)

# %% [markdown]
# A third of Adam's step: so is it RAdam that is slow, or its rate that is low? Give it three times the rate, in the setting where Adam was best, Post-LN with 4 layers, and train three seeds (some 20 seconds):

# %%
faster = [
    tricks.train_one("post-ln", 0, "RAdam", 4, seed, every=240, learning_rate=0.015)[0]
    for seed in tqdm(range(3), leave=False)
]

# %% tags=["fold"]
# @title RAdam at three times the rate
four = {kind: grid["post-ln", "no warm-up", kind, 4] for kind in ("Adam", "RAdam")}
tripled = [row["accuracy"] for row in faster]
claim(
    "With three times the rate every seed of RAdam beats every seed at the grid's rate by more than 5 % of the words, and the mean is within 8 % of Adam's.",
    min(tripled) > max(four["RAdam"]) + 0.05 and mean(tripled) > mean(four["Adam"]) - 0.08,
    RAdam_at_three_times_the_rate=mean(tripled),
    RAdam=mean(four["RAdam"]),
    Adam=mean(four["Adam"]),
)

# %% [markdown]
# So most of what RAdam loses in this grid is the rate, not the method. Adam's own best rate at 4 layers was not looked for, nor was RAdam's.
#
# One rate for all is the grid's weakness: it was chosen so that Post-LN fails. The ledger therefore holds Adam with 12 layers at three more rates. Which of the four lines has the highest peak, which is the widest?

# %% tags=["fold"]
# @title The ledger: Adam with 12 layers at four rates
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

# %% tags=["reveal"]
figures.accuracy_by_rate(RATES, by_rate)

# %% tags=["fold", "reveal"]
# @title At which rates each trains
claim(
    "Pre-LN trains at all four rates, with or without warm-up; Post-LN at the two lower ones, and with warm-up at a third.",
    [sum(min(accuracy) > 0.5 for accuracy in found) for found in by_rate.values()] == [2, 3, 4, 4],
)
claim(
    "At the lowest rate the warm-up costs all of them: it makes slow steps slower.",
    all(
        mean(by_rate[residual, "warm-up"][0]) < mean(by_rate[residual, "no warm-up"][0])
        for residual in ("post-ln", "pre-ln")
    ),
)

# %% tags=["fold", "reveal"]
# @title Each at its best rate
best = {
    key: max((mean(accuracy), rate) for accuracy, rate in zip(found, RATES, strict=True))
    for key, found in by_rate.items()
}
table(
    ["Adam, 12 layers", "best rate", "mean share of right words", "rates at which every seed trains"],
    [
        [
            f"{PLACEMENTS[key[0]]}, {key[1]}",
            f"{rate:g}",
            f"{accuracy:.3f}",
            f"{sum(min(f) > 0.5 for f in by_rate[key])} of 4",
        ]
        for key, (accuracy, rate) in best.items()
    ],
)
claim(
    "Each at its best rate, Post-LN with warm-up is behind Pre-LN with warm-up by less than 5 % of the words, at the grid's rate by more than 10 %.",
    best["pre-ln", "warm-up"][0] - best["post-ln", "warm-up"][0] < 0.05
    and mean(by_rate["pre-ln", "warm-up"][2]) - mean(by_rate["post-ln", "warm-up"][2]) > 0.1,
)
claim(
    "Each at its best rate, a warm-up is worth less than 5 % of the words to Post-LN, and about 1 % to Pre-LN.",
    0.03 < best["post-ln", "warm-up"][0] - best["post-ln", "no warm-up"][0] < 0.05
    and 0.005 < best["pre-ln", "warm-up"][0] - best["pre-ln", "no warm-up"][0] < 0.015,
)

# %% [markdown]
# The best rate of each was chosen on the same validation pairs, for all four alike, and where all three seeds train they differ by up to 14 % of the words. Read differences of one or two per cent as none.
#
# ### What agrees with the papers, and what does not
#
# - **Warm-up is essential** (Xiong et al. 2020): for deep Post-LN at a high rate, yes. At 4 layers, no. At half the grid's rate, no. *A lower rate is a trick too*, the cheapest.
# - **Pre-LN needs no warm-up:** right, at each of four rates. **Pre-LN is worse in the end** (Liu et al. 2020a): not here, not in 240 steps; its advantage is the range of rates more than the best result.
# - **RAdam makes warm-up superfluous:** right, it saves the failing setting. But it *is* a warm-up, one of thousands of steps with $\beta_2$ = 0.999. In a training of 240 steps it never takes the whole step, so at Adam's rate it is behind nearly everywhere; at three times the rate most of that is gone in the one setting tried.
# - **ReZero converges faster:** on the reverser it ended lowest of all (section 6); on translation it was behind. One task is not enough, and 240 steps are few: its curves still rise.
# - **Not shown:** long trainings, wide models, the best rate for RAdam, ReZero and 4 layers. One rate for all favours whoever likes that rate.
#
# The first 40 steps of two settings, live; the ledger's numbers were made by the same function:

# %%
live = {}
for residual in tqdm(("post-ln", "pre-ln"), leave=False):
    _, history = tricks.train_one(residual, 0, "Adam", 12, seed=0, steps=40, every=20)
    live[residual] = history[-1]["loss"]

# %% tags=["fold"]
# @title Live against the ledger
recorded_loss = {
    residual: ledger.curves("training-grid", f"{residual}, no warm-up, Adam, 12 layers", "loss")[0][2]
    for residual in live
}
claim(
    "Post-LN and Pre-LN: the live loss after 40 steps is the ledger's, within a tenth.",
    all(abs(live[residual] / recorded_loss[residual] - 1) < 0.1 for residual in live),
    **{
        "Post-LN live": f"{live['post-ln']:.2f} nats",
        "Post-LN recorded": f"{recorded_loss['post-ln']:.2f}",
        "Pre-LN live": f"{live['pre-ln']:.2f}",
        "Pre-LN recorded": f"{recorded_loss['pre-ln']:.2f}",
    },
)

# %% [markdown]
# ### Exercise 11.6 · Explore and explain the grid
#
# Difficulty ●●●○○ · 40 minutes · needs section 9
#
# Change the cell below (residual, warm-up, optimizer, layers, `learning_rate`, `steps`; `steps` must be a multiple of `every`, the steps between two measurements), then answer in words:
#
# (a) A colleague reads the first panel (Post-LN, 4 layers) and concludes that warm-up is superstition. What in the grid speaks for it, what against, and what would you measure?
#
# (b) RAdam with $\beta_2$ = 0.9 in place of 0.999: how does $r_t$ change, and what do you expect for 240 steps, at 4 and at 12 layers? Which of the two effects of $\beta_2$ could spoil the comparison?
#
# (c) Other learning rates were measured for 4 of the 24 settings only. Name a conclusion about the other 20, not the one on RAdam, that could turn around if each had its best rate, and a conclusion of section 9 that could not.

# %% tags=["nbval-ignore-output"]
explored, _ = tricks.train_one(
    "rezero", 0, "Adam", 4, seed=0, steps=40, every=10, learning_rate=0.01
)
print(f"loss {explored['loss']:.2f}, share of right words {explored['accuracy']:.2f}")

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex11-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) For it: at 4 layers the warm-up changes the accuracy by less than the seeds do. Against: at 12 layers the same model fails without it. So "superstition" holds for this depth and this rate. To measure: the highest rate at which each trains, as a function of the depth, with and without warm-up.
#
# (b) With 0.9, r passes one half after 11 gradients, so RAdam is nearly Adam after some tens of steps. At 4 layers it should be as fast as Adam; at 12 layers its protection may end too early. But $\beta_2$ = 0.9 also makes $v$ itself noisier for the whole training: compare with Adam at $\beta_2$ = 0.9, not at 0.999.
#
# (c) Could turn: "ReZero is behind Pre-LN"; "no trick helps at 4 layers" (with a warm-up a higher rate might be possible). Could not: that Post-LN without warm-up fails at this rate and depth while others train at the same one. Good arguments say what was equal and what was not.
# ### END SOLUTION

# %% [markdown]
# ## 10 · A loop in which the tricks do not disturb each other
#
# Accumulation, clipping, scaler, schedule: each is one line, and the order matters. For every *optimizer step*: empty the gradients; add up those of the micro-batches; divide by the *total* count; (unscale;) clip; step; then the schedule, once.
#
# **Common mistake · the scheduler is stepped per micro-batch, or per epoch.** A schedule counts optimizer steps. Three epochs of 40 micro-batches, 4 to a step, make 30 steps; the schedule is `cosine(warmup=6, total=30)`. What learning rate does each step get?

# %%
cosine30 = functools.partial(optim.cosine_schedule, warmup=6, total=30)
ways = {
    "once an optimizer step": [cosine30(i) for i in range(30)],
    "once a micro-batch": [cosine30(4 * i) for i in range(30)],
    "once an epoch": [cosine30(i // 10) for i in range(30)],
}

# %% tags=["reveal"]
figures.schedule_units(ways)

# %% tags=["fold", "reveal"]
# @title What is left of the rate
claim(
    "Stepped per micro-batch, 22 of 30 steps have the factor 0; stepped per epoch, no step gets more than half of the rate.",
    sum(factor == 0 for factor in ways["once a micro-batch"]) == 22
    and max(ways["once an epoch"]) == 0.5,
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
# | no idea how long to warm up | RAdam, or $2/(1-\beta_2)$ steps | rescues Post-LN; in short trainings it needs a higher rate |
# | a norm is not wanted | ReZero, or T-Fixup's initial values | ReZero trains at both depths; speed depends on the task |
# | now and then a bad batch | clipping, above the usual lengths | a spike fills $v$ for 1000 steps (section 7) |
# | overfitting | dropout; AdamW with groups | L2 in Adam decays the wrong weights (section 8) |
# | overconfident classes | label smoothing: targets 0.9 and the rest shared | Vaswani et al. (2017), section 5.4; perplexity gets worse, BLEU better. Not measured here |
#
# And before all tricks: try half of the learning rate. In section 9 that alone fixed the one setting that failed.

# %% [markdown]
# ## Summary
#
# 1. LayerNorm's backward pass divides by the standard deviation of what it reads, exactly. At initialisation the additions make up for most of it; in Post-LN at a high rate the gradient dies through the *first steps*, not before them.
# 2. Adam's first step is $\pm\eta$ for every weight, because $v$ has one sample. RAdam waits for more samples; a warm-up makes the steps small until they are there.
# 3. Pre-LN and ReZero leave a path of additions alone. `x = norm(x); x = x + f(x)` does not: it is Post-LN, shifted.
# 4. Clipping bounds the step of plain descent; for Adam it protects $v$. Decay belongs beside the step (AdamW) and to matrices.
# 5. In our grid one of 24 settings fails, and each of four tricks fixes it; so does half the rate. Elsewhere most of them help little or not at all at the grid's rate, and the rate decides much of the rest: measure, at more than one rate.
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
# - P. Lippe, *Tutorial 6: Transformers and multi-head attention*, UvA deep learning tutorials, https://uvadlc-notebooks.readthedocs.io (the cosine with warm-up).
# - S. Hu et al., *MiniCPM*, 2024, arXiv:2404.06395: section 4 (warm-up, stable, decay).
# - P. Xu, S. Prince, *Tricks for training Transformers*, Borealis AI, https://www.borealisai.com/research-blogs/tutorial-17-transformers-iii-training/, an overview of the tricks.
# - Video: *Attention and the Transformer*, practicum, https://www.youtube.com/watch?v=f01J0Dri-6k.
