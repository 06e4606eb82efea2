# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 250
#     needs: chapters 04 and 09
# ---

# %% [markdown]
# # 11 · Training tricks
#
# A small Transformer of 2 layers learns within seconds to write 8 letters backwards. You would like a better one, so you make it deeper: 12 layers. Nothing else changes, neither the data nor the optimizer nor the learning rate. **How low will its loss be?**
#
# *In a hurry? Go to section 9, *the recipe*: one training loop with all parts, and then a table of what to use when. (Run all cells above it first.)*

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook.figures import ch11 as figures

figures.deeper()

# %% tags=["setup", "fold"]
# @title Imports
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from course_lib import optim
from course_lib.attention import MultiHeadAttention
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
from course_lib.optim import radam_update, rectification
from course_lib.positional import Sinusoidal
from course_lib.train import set_seed
from course_lib.transformer import EncoderLayer, TransformerEncoder
from course_lib.transformer_models import TokenEmbedding

set_seed(0)

# %% [markdown]
# A reminder from chapter 09: one layer, or *block*, is attention and a feed-forward network. Each adds its result to what it reads, and a LayerNorm, *norm* for short, normalises the sum. This is **Post-LN**, the original Transformer's way:

# %%
ALPHABET, T, D = "abcdefghijklmnop", 8, 32  # 16 letters; width D


class PostLNBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = MultiHeadAttention(D, 4)
        self.feed_forward = nn.Sequential(
            nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)
        )
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):  # (B, T, D)
        x = self.norm1(x + self.attend(x))  # add, then normalise
        return self.norm2(x + self.feed_forward(x))

# %% [markdown]
# The model is an embedding, a stack of such blocks, and an output layer:

# %%
class PostLN(nn.Module):
    block = PostLNBlock

    def __init__(self, layers=12):
        super().__init__()
        self.embedding = TokenEmbedding(len(ALPHABET), D, Sinusoidal(D))
        self.blocks = nn.Sequential(*(self.block() for _ in range(layers)))
        self.output = nn.Linear(D, len(ALPHABET))

    def forward(self, letters):  # (B, T)
        x = self.embedding(letters)  # (B, T, D)
        return self.output(self.blocks(x))  # logits (B, T, 16)

# %% [markdown]
# The data are random letters, and the same letters backwards. The loss is the cross-entropy:

# %%
def examples(draws, size=32):
    letters = torch.randint(len(ALPHABET), (size, T), generator=draws)
    return letters, letters.flip(1)  # (B, T) each


def loss_on(model, letters, backwards):
    return F.cross_entropy(model(letters).flatten(0, 1), backwards.flatten())

# %% [markdown]
# One training loop serves the whole chapter. It is the usual one, with Adam. In step `s` the learning rate is `rate` times `schedule(s)`; torch's `LambdaLR` sees to that. For now the schedule is constant: its factor is always 1.

# %%
def constant(s):
    return 1.0


def train(model_class, schedule=constant, rate=0.01, layers=12, steps=120, seed=0):
    torch.manual_seed(seed)
    model, draws = model_class(layers), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    scheduler = LambdaLR(optimizer, schedule)
    losses = []
    for _ in tqdm(range(steps), leave=False):
        loss = loss_on(model, *examples(draws))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()  # the rate of the next step
        losses.append(loss.item())
    return model, losses

# %% [markdown]
# Train two layers, and let them write a word backwards:

# %% tags=["nbval-ignore-output"]
def spell(model, word):
    letters = torch.tensor([[ALPHABET.index(c) for c in word]])  # (1, T)
    return "".join(ALPHABET[i] for i in model(letters).argmax(-1)[0])


small, small_losses = train(PostLN, layers=2)
for s in (0, 29, 59, 119):
    print(f"step {s + 1:3}: loss {small_losses[s]:.2f}")
print("champion ->", spell(small, "champion"))

# %% [markdown]
# Two layers can do it. Now twelve, with the same call. A blind guess among 16 letters costs $\ln 16 = 2.77$ nats per letter.

# %%
guess_1 = predict("the loss of 12 layers after 120 steps, in nats", ...)

# %%
def final_loss(losses):
    return sum(losses[-20:]) / 20  # mean of the last 20 steps


deep, deep_losses = train(PostLN, layers=12)

# %% tags=["fold", "reveal"]
# @title Twelve layers after 120 steps
guess_1.compare(f"{final_loss(deep_losses):.2f} nats")
claim(
    "Twelve layers end within 0.05 nats of a blind guess: they learn nothing at all.",
    abs(final_loss(deep_losses) - math.log(16)) < 0.05,
    loss=f"{final_loss(deep_losses):.3f} nats",
)

# %% tags=["nbval-ignore-output", "reveal"]
print("champion ->", spell(deep, "champion"))

# %% [markdown]
# Whatever it reads, it writes the same letter eight times. A deeper model should be able to do what a shallow one can, so it is the *training* that fails.
#
# ### Three cures
#
# Try three things. The first is a **lower rate**, a tenth of it. The second is a **warm-up**: the rate rises gradually to its full value, here over the first 60 steps, and then stays. In code that is another **schedule**, a function from the number of the step to a factor of the rate:

# %%
def warm_up(s, w=60):
    return min(1.0, (s + 1) / w)


for s in (0, 1, 29, 58, 59, 60):
    print(f"step {s:2}: rate {0.01 * warm_up(s):.5f}")

# %% [markdown]
# The third moves the norms. In **Pre-LN** a norm prepares what a sublayer *reads*, and the sum stays as it is; one *last* norm stands before the output:

# %%
class PreLNBlock(PostLNBlock):
    def forward(self, x):  # (B, T, D)
        x = x + self.attend(self.norm1(x))  # normalise, then attend and add
        return x + self.feed_forward(self.norm2(x))


class PreLN(PostLN):
    block = PreLNBlock

    def __init__(self, layers=12):
        super().__init__(layers)
        self.output = nn.Sequential(nn.LayerNorm(D), self.output)  # the last norm

# %% [markdown]
# All else is as before.

# %% tags=["nbval-ignore-output"]
slow, slow_losses = train(PostLN, rate=0.001)
warm, warm_losses = train(PostLN, warm_up)
pre_ln, pre_losses = train(PreLN)
for name, trained in {"low rate": slow, "warm-up": warm, "Pre-LN": pre_ln}.items():
    print(f"{name:8}: champion ->", spell(trained, "champion"))

# %%
curves = {
    "unchanged": deep_losses,
    "a tenth of the rate": slow_losses,
    "a warm-up": warm_losses,
    "Pre-LN": pre_losses,
}
figures.cures(curves, blind=math.log(16))

# %% tags=["fold"]
# @title In five recorded seeds
def recorded_losses(row, experiment="deep-jumps"):
    """Loss of the last 20 of 120 steps, one for each seed."""
    return ledger.values(experiment, row, "loss")


by_cure = {
    "unchanged": recorded_losses("high first, 120 steps"),
    "a tenth of the rate": recorded_losses("low first, 120 steps"),
    "a warm-up": recorded_losses("rise, 60 steps"),
    "Pre-LN": recorded_losses("pre-ln, high rate", "deep-controls"),
}
claim(
    "Here and in each of five recorded seeds: unchanged, 12 layers stay within 0.05 nats of a blind guess; with a warm-up they get at least 0.3 nats below it, with Pre-LN at least 1.5.",
    all(abs(loss - math.log(16)) < 0.05 for loss in (final_loss(deep_losses), *by_cure["unchanged"]))
    and max(final_loss(warm_losses), *by_cure["a warm-up"]) < math.log(16) - 0.3
    and max(final_loss(pre_losses), *by_cure["Pre-LN"]) < math.log(16) - 1.5
    and all(len(losses) == 5 for losses in by_cure.values()),
    **by_cure,
)
claim(
    "Here and in each of five recorded seeds a tenth of the rate gets at least as far as the warm-up.",
    final_loss(slow_losses) <= final_loss(warm_losses)
    and all(
        low <= high
        for low, high in zip(by_cure["a tenth of the rate"], by_cure["a warm-up"], strict=True)
    ),
)

# %% [markdown]
# All three get the model going, so the trouble is the *high* rate, reached abruptly, in Post-LN; but only Pre-LN nearly solves the task in 120 steps. The low rate is slow, and the warm-up gets no further; its loss even rises again where its rate nears the full value.
#
# **What breaks, and when does each cure pay?** Sections 1 to 3 find out what breaks, section 4 that a gradual rise prevents it, and how gradual it must be, sections 5 and 6 why Pre-LN survives it. Section 7 tries the cures on another task. Sections 8 and 9 add what else a training loop needs.
#
# ### You will be able to
#
# 1. find out what breaks in a training, and when;
# 2. write LayerNorm's backward pass (exercise 11.1), and compute RAdam's first steps by hand (11.2);
# 3. write a schedule (11.3) and place a norm (11.4);
# 4. say which trick a grid of runs supports (11.5);
# 5. choose what decays (11.6), and write a loop that has all parts (11.7).

# %% [markdown]
# ## 1 · Before training: is the gradient too small?
#
# When a deep model does not learn, the first suspect is a vanishing gradient (chapter 04): the layers far from the loss hear nothing of it. So measure, before training, the size of the gradient, its *length*, in each layer's last matrix, `feed_forward[2]`. One random model says little; take 20.

# %%
def gradient_by_layer(seed):
    torch.manual_seed(seed)
    model = PostLN()
    loss_on(model, *examples(torch.Generator().manual_seed(seed))).backward()
    return [block.feed_forward[2].weight.grad.norm().item() for block in model.blocks]


lengths = [gradient_by_layer(seed) for seed in range(20)]  # (20, 12)
figures.gradient_by_layer({"Post-LN": lengths})

# %% tags=["fold"]
# @title Before training, nothing is wrong
ratios_1 = sorted(run[0] / run[-1] for run in lengths)
claim(
    "Before training the first layer's gradient is as long as the last one's, within a factor of 2, in the median of 20 models.",
    0.5 < (ratios_1[9] + ratios_1[10]) / 2 < 2,
    median=(ratios_1[9] + ratios_1[10]) / 2,
    quartiles=[ratios_1[5], ratios_1[14]],
)

# %% [markdown]
# Not guilty: the model that learns nothing starts with a healthy gradient in every layer, in the matrix measured. So something must happen *after* the start.

# %% [markdown]
# ## 2 · What breaks, and when?
#
# The failing model writes one letter, whatever it reads. So measure how *alike* its outputs are: the squared length of the mean vector, over the mean of the squared lengths. 1 means that the vectors of all letters are the same, 0 that they cancel. Beside it, measure the first layer's gradient, both on one fixed batch:

# %%
fixed = examples(torch.Generator().manual_seed(99))  # letters, backwards


def how_alike(h):  # (B, T, D)
    common = h.mean((0, 1))  # (D,), the mean vector
    return (common.square().sum() / h.square().sum(-1).mean()).item()


def measure(model):
    letters, backwards = fixed
    alike = how_alike(model.blocks(model.embedding(letters)))
    model.zero_grad()
    loss_on(model, letters, backwards).backward()
    gradient = model.blocks[0].feed_forward[2].weight.grad.norm().item()
    return {"alike": alike, "gradient": gradient}

# %% [markdown]
# Now train for no step, for one, for three and so on, and measure. The seed fixes everything, so each training is the same one, stopped later. Three seeds; the first is printed:

# %% tags=["nbval-ignore-output"]
def first_steps(model_class, schedule=constant, seed=0):
    measured = {}
    for steps in (0, 1, 3, 10, 40):
        model, _ = train(model_class, schedule, steps=steps, seed=seed)
        measured[steps] = measure(model)
    return measured


post_ln_runs = [first_steps(PostLN, seed=seed) for seed in range(3)]
for steps, measured in post_ln_runs[0].items():
    alike, gradient = measured["alike"], measured["gradient"]
    print(f"after {steps:2} steps: alike {alike:.2f}, gradient {gradient:.1g}")

# %% tags=["fold"]
# @title In three seeds
claim(
    "In each of three seeds less than 0.75 of the outputs' squared length is common before training; after one step more than 0.95, and at each later measurement.",
    all(
        run[0]["alike"] < 0.75 and min(run[steps]["alike"] for steps in run if steps > 0) > 0.95
        for run in post_ln_runs
    ),
    before=[run[0]["alike"] for run in post_ln_runs],
    after_one_step=[run[1]["alike"] for run in post_ln_runs],
)
claim(
    "In each of three seeds the first layer's gradient is less than a hundredth of its start after 10 steps.",
    all(run[10]["gradient"] < 0.01 * run[0]["gradient"] for run in post_ln_runs),
    before=[run[0]["gradient"] for run in post_ln_runs],
    after_10_steps=[run[10]["gradient"] for run in post_ln_runs],
)

# %% [markdown]
# A *single* step makes all outputs alike; hence, while that lasts, the one letter. Call this *the accident*. Later steps could make them differ again, but the first layer has hardly any gradient: within 10 steps it falls below a hundredth of its start.
#
# Two questions are left. Why can a step do so much damage? And why does the gradient die?

# %% [markdown]
# ## 3 · Adam's first step
#
# On an unknown road you drive slowly until you know its bumps. Adam starts at full speed. Give four weights very different gradients, and let it make one step with the rate 0.01:

# %%
weights = nn.Parameter(torch.zeros(4))
weights.grad = torch.tensor([100.0, 1.0, 0.0001, 0.0])
torch.optim.Adam([weights], lr=0.01).step()
print([round(w, 4) for w in weights.tolist()])

# %% [markdown]
# A gradient of 100 and one of 0.0001 move their weights equally far: by the whole rate. Why? Adam divides each weight's gradient $g$ by the size that it usually has. Follow one weight, whose first three gradients are 2, 2 and -1. Adam keeps two moving averages, $m$ of $g$ and $v$ of $g^2$:

# %%
m = v = 0.0
for t, g in enumerate((2.0, 2.0, -1.0), start=1):
    m = 0.9 * m + 0.1 * g  # mean of the gradients: forgets a tenth a step
    v = 0.999 * v + 0.001 * g**2  # mean of their squares: a thousandth
    m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
    move = 0.01 * m_hat / (math.sqrt(v_hat) + 1e-8)
    print(f"{t}: g {g:4}, m {m:.3f}, v {v:.4f}", end=", ")
    print(f"m_hat {m_hat:.2f}, v_hat {v_hat:.2f}, step {move:.4f}")

# %% tags=["fold"]
# @title torch takes the same three steps
by_torch = nn.Parameter(torch.zeros(1, dtype=torch.float64))
optimizer = torch.optim.Adam([by_torch], lr=0.01)
for gradient in (2.0, 2.0, -1.0):
    before = by_torch.item()
    by_torch.grad = torch.tensor([gradient], dtype=torch.float64)
    optimizer.step()
claim(
    "torch's Adam, given these gradients, takes the same third step, to 1 part in a million.",
    math.isclose(before - by_torch.item(), move, rel_tol=1e-6),
)

# %% [markdown]
# Both averages start at 0, so after one gradient $m$ holds only a tenth of it, and $v$ a thousandth of its square. Divided by $1 - 0.9^t$ and $1 - 0.999^t$ they become proper means: $\hat m = 2$, $\hat v = 4$. The weight moves by $0.01 \cdot 2 / \sqrt 4$, the whole rate. When the third gradient points back, $\hat m$ falls to less than half, but $\hat v$ only to 3, and so the step becomes shorter. In general, with the rate $\eta$, the memories $\beta_1$ (0.9) and $\beta_2$ (0.999) and a tiny $\epsilon$ a weight moves by
#
# $$ \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \qquad \hat m = \frac{m}{1 - \beta_1^t}, \quad \hat v = \frac{v}{1 - \beta_2^t}. $$
#
# While the gradients agree the step is $\eta$ long, as above in steps 1 and 2. A first gradient always agrees with itself: $\hat m = g$, $\hat v = g^2$, and the step is $\eta\, g / |g| = \pm\eta$, *however small $g$ is*, as long as it is well above $\epsilon$ ($10^{-8}$ in torch).
#
# ### Is that too far?
#
# So every such weight of our model moves by about 0.01 at once, and the entries of our blocks' matrices are only 0.04 to 0.11 in size, on average. A gradient is a slope, and a slope holds only where you stand: a long step walks past that place. Take the first step at several rates, and measure what it changes in the loss on 500 other words:

# %%
others = examples(torch.Generator().manual_seed(99), size=500)
change_by_rate = {rate: [] for rate in (1e-5, 1e-4, 3e-4, 0.001, 0.003, 0.01)}
for seed in range(5):
    start, _ = train(PostLN, steps=0, seed=seed)
    before = loss_on(start, *others).item()
    for rate in change_by_rate:
        stepped, _ = train(PostLN, rate=rate, steps=1, seed=seed)
        change = loss_on(stepped, *others).item() - before
        change_by_rate[rate].append(change)
figures.one_step(change_by_rate)

# %% tags=["fold"]
# @title Too short, and too long
claim(
    "In each of five seeds one step at the full rate, 0.01, raises the loss on other words.",
    min(change_by_rate[0.01]) > 0,
    change=change_by_rate[0.01],
)
claim(
    "In each of five seeds one step at a tenth of it lowers the loss by more than 0.01 nats, at a thousandth by less.",
    max(change_by_rate[0.001]) < -0.01 and all(-0.01 < change < 0 for change in change_by_rate[1e-5]),
    **{f"rate {rate:g}": change_by_rate[rate] for rate in (0.001, 1e-5)},
)

# %% [markdown]
# At the full rate it is too far: one step raises the loss. But Pre-LN's loss rises too, and it trains: a rise alone does not decide.

# %% [markdown]
# ## 4 · How gradual must a rise be?
#
# Is one such step enough to break the model? And do short first steps protect it? Take 60 at a tenth of the rate, then jump:

# %% tags=["nbval-ignore-output"]
def jump(s):
    return 0.1 if s < 60 else 1.0


_, jump_losses = train(PostLN, jump)
for s in (0, 29, 59, 69, 119):
    print(f"step {s + 1:3}: loss {jump_losses[s]:.2f}")

# %% [markdown]
# The jump throws it back to a blind guess. Here are more such runs, recorded in five seeds: the rate jumps down or up, or rises on a line. Their loss at the end, least to greatest:

# %% tags=["fold"]
# @title The ledger: a rate that jumps, and a rate that rises
def least_to_greatest(losses):
    """The range over the seeds."""
    return f"{min(losses):.2f} to {max(losses):.2f}"


SCHEDULES = {
    "0.01 throughout": "high first, 120 steps",
    "0.001 throughout": "low first, 120 steps",
    "1 step at 0.01, then 0.001": "high first, 1 steps",
    "2 steps at 0.01, then 0.001": "high first, 2 steps",
    "5 steps at 0.01, then 0.001": "high first, 5 steps",
    "3 steps at 0.001, then 0.01": "low first, 3 steps",
    "60 steps at 0.001, then 0.01": "low first, 60 steps",
    "a rise over 5 steps to 0.01": "rise, 5 steps",
    "a rise over 20 steps to 0.01": "rise, 20 steps",
    "a rise over 60 steps to 0.01": "rise, 60 steps",
}
jumped = {row: recorded_losses(row) for row in SCHEDULES.values()}
table(
    ["rate of the 120 steps", "loss (a blind guess: 2.77)"],
    [[name, least_to_greatest(jumped[row])] for name, row in SCHEDULES.items()],
)
before_the_jump = [run[5] for run in ledger.curves("deep-jumps", "low first, 60 steps", "loss")]
claim(
    "In each of five seeds one step at 0.01 is survived: the loss ends more than 0.3 nats below a blind guess. After two steps it does so in some seeds, and in others it ends within 0.06. Five steps are not survived: it ends within 0.06. Nor is a jump to 0.01 after 3 or after 60 low steps: the same, though after the 60 it had been more than 0.4 below.",
    max(jumped["high first, 1 steps"]) < math.log(16) - 0.3
    and min(jumped["high first, 2 steps"]) < math.log(16) - 0.3
    and any(abs(loss - math.log(16)) < 0.06 for loss in jumped["high first, 2 steps"])
    and all(
        abs(loss - math.log(16)) < 0.06
        for row in ("high first, 5 steps", "low first, 3 steps", "low first, 60 steps")
        for loss in jumped[row]
    )
    and max(before_the_jump) < math.log(16) - 0.4,
    just_before_the_jump_at_60=before_the_jump,
)
claim(
    "In each of five seeds a rise over 5 steps ends within 0.05 nats of a blind guess, one over 20 steps at least 0.1 below it, one over 60 at least 0.3.",
    max(abs(loss - math.log(16)) for loss in jumped["rise, 5 steps"]) < 0.05
    and max(jumped["rise, 20 steps"]) < math.log(16) - 0.1
    and max(jumped["rise, 60 steps"]) < math.log(16) - 0.3,
)

# %% [markdown]
# One step alone is survived. **What breaks deep Post-LN here is a few steps in a row at the high rate right at the start: two can, five do. So does an abrupt rise.** Short first steps alone protect nothing; a gradual rise does. Over five steps it is too abrupt; over 20 it helps, and over 60 more, although fewer steps at 0.01 are then left. *Why* a gradual rise helps we have not shown. It is not only that $v$ fills: 60 low steps fill it as far as the rise of 60 does. (The original Transformer's rise took 4,000 of 100,000 steps.)
#
# Nor is Adam special: a first step of the same total length along the plain gradient also makes the outputs alike and the gradient short (*Going deeper*).

# %% [markdown]
# ## 5 · What a norm does to a gradient
#
# Section 2's other question: why does the gradient die? On its way back from the loss to the embedding it passes two norms in each of 12 layers. What does one of them do?
#
# A norm makes a whisper and a shout equally loud. So a small change in a shout is hardly heard. In numbers: LayerNorm takes a vector $x$ of $D$ numbers. It subtracts their mean, then divides by their standard deviation $\sigma$ (gain and bias left out). For $x = (1, 1, 3, 3)$ the mean is 2 and $\sigma = 1$, so $\hat x = (-1, -1, 1, 1)$ comes out. For $10\,x$ the mean is 20 and $\sigma = 10$: the same comes out.
#
# Now push each a little. How much of the push comes out?
#
# - *All up:* all entries.
# - *Stretch:* along $\hat x$.
# - *Across:* the first entry up, the second down.

# %%
pushes = {"all up": [1, 1, 1, 1], "stretch": [-1, -1, 1, 1], "across": [1, -1, 0, 0]}
for scale in (1, 10):
    x = scale * torch.tensor([1.0, 1.0, 3.0, 3.0])  # sigma = scale
    for name, push in pushes.items():
        pushed = x + 0.01 * torch.tensor(push)
        out = F.layer_norm(pushed, (4,)) - F.layer_norm(x, (4,))
        print(f"sigma {scale:2}, {name:8}", [round(o, 3) + 0.0 for o in out.tolist()])

# %% [markdown]
# A constant is subtracted again, and a stretched vector is shrunk again. All else is divided by $\sigma$. To see this for any $x$, move it by a small $\delta$, and let a bar stand for the mean over the $D$ entries:
#
# 1. the mean $\bar x$ moves by $\bar\delta$;
# 2. $\sigma$, the root of the mean of $(x - \bar x)^2$, moves by $\overline{\hat x \delta}$;
# 3. so $\hat x = (x - \bar x) / \sigma$ moves, by the quotient rule, by $\frac1\sigma \big( \delta - \bar\delta - \hat x\, \overline{\hat x \delta} \big)$.
#
# As a matrix, with the identity $I$ and a column $\mathbf 1$ of $D$ ones:
#
# $$ J = \frac{\partial \hat x}{\partial x} = \frac1\sigma \Big( I - \tfrac1D \mathbf 1 \mathbf 1^\top - \tfrac1D \hat x \hat x^\top \Big). $$
#
# In the backward pass the gradient is multiplied by the same $J$, since $J$ is symmetric. **The larger the spread $\sigma$ of what a norm reads, the smaller the gradient that it hands back.**
#
# Is that what killed our gradient? Follow it down through the failing model. `retain_grad` keeps the gradient at a point inside a model:

# %%
def way_down(model):
    letters, backwards = fixed
    points = [model.embedding(letters)]  # on the way up
    for block in model.blocks:
        points.append(points[-1] + block.attend(points[-1]))  # an addition
        points.append(block.norm1(points[-1]))  # a norm
        points.append(points[-1] + block.feed_forward(points[-1]))
        points.append(block.norm2(points[-1]))
    for point in points:
        point.retain_grad()
    logits = model.output(points[-1]).flatten(0, 1)
    F.cross_entropy(logits, backwards.flatten()).backward()
    return [point.grad.norm().item() for point in reversed(points)]


ways_down = {}
for steps in (0, 1, 5, 40):
    ways_down[steps] = way_down(train(PostLN, steps=steps)[0])
figures.way_down(ways_down)

# %% tags=["fold"]
# @title Where the gradient dies
def kept(seed, steps):
    """What norms (and additions) leave of the gradient; the last layer's; how alike layers 7 to 12 find their inputs."""
    model, _ = train(PostLN, steps=steps, seed=seed)
    model.zero_grad()
    way = way_down(model)
    read = [how_alike(model.blocks[:layer](model.embedding(fixed[0]))) for layer in range(6, 12)]
    return {
        "norms": math.prod(way[i + 1] / way[i] for i in range(0, 48, 2)),
        "together": way[-1] / way[0],
        "top": model.blocks[-1].feed_forward[2].weight.grad.norm().item(),
        "alike": min(read),
    }


kept_by_seed = [{steps: kept(seed, steps) for steps in (0, 1, 40)} for seed in range(3)]
claim(
    "In each of three seeds the 24 norms leave, after one step, less than a tenth of what they left before training; after 40 steps norms and additions together leave less than a thousandth.",
    all(run[1]["norms"] < run[0]["norms"] / 10 and run[40]["together"] < 1e-3 for run in kept_by_seed),
    before_training=[run[0]["norms"] for run in kept_by_seed],
    after_one_step=[run[1]["norms"] for run in kept_by_seed],
)
claim(
    "In each of three seeds, after 40 steps, the last layer's gradient (`feed_forward[2]`) has more than a tenth of its first length; but of what each of the layers 7 to 12 reads more than 0.99 is common.",
    all(run[40]["top"] > 0.1 * run[0]["top"] and run[40]["alike"] > 0.99 for run in kept_by_seed),
    common_at_layers_7_to_12=[run[40]["alike"] for run in kept_by_seed],
)

# %% [markdown]
# There it shrinks: at the top the gradient has its usual length, at the bottom hardly any. One step makes the $\sigma$ on average only 10 to 20 % larger. But 24 such factors multiply ($1.15^{24}$ is 29): together the norms leave less than a tenth of what they left before. The additions, where a sublayer's own gradient joins, no longer make up for that.
#
# The top layers still have a gradient. But from the seventh on, more than 99 % of what a layer reads is common to all letters, so it has little by which to tell them apart.
#
# This fits: 2 layers, with 4 norms, survive the same steps (*Going deeper*).

# %% [markdown]
# ## 6 · Why Pre-LN survives
#
# So the 24 norms on the gradient's way are our suspects. Where do Pre-LN's stand? A vector runs from the input $x$ to the output $h$, and every sublayer $f$ reads it and adds something to it. This line is the **residual stream**, green in the picture (its third column waits for section 7):

# %%
diagrams.show("norm_placement")

# %% [markdown]
# In Post-LN, $x \leftarrow \mathrm{norm}(x + f(x))$, the norms stand *on* the stream. In Pre-LN, $x \leftarrow x + f(\mathrm{norm}(x))$, they stand in the branches. So the stream after $n$ sublayers is a plain sum,
#
# $$ x_n = x_0 + f_1 + f_2 + \ldots + f_n, $$
#
# and through its first term one part of the gradient at $x_n$ reaches $x_0$ *unchanged*, whatever the sublayers do. The price: a sum can grow with every block, so the model needs one *last* norm before its output. One norm on the path, and not 24.
#
# Does Pre-LN avoid the accident, then, or survive it? Measure all three trainings as in section 2:

# %%
by_training = {
    "Post-LN": post_ln_runs,
    "Post-LN, warm-up": [first_steps(PostLN, warm_up, seed=i) for i in range(3)],
    "Pre-LN": [first_steps(PreLN, seed=i) for i in range(3)],
}
figures.first_steps(by_training)

# %% tags=["fold"]
# @title Pre-LN in five recorded seeds
slow_pre = recorded_losses("pre-ln, low rate", "deep-controls")
claim(
    "At a tenth of the rate Pre-LN ends within 0.15 nats of Post-LN, in each of five seeds.",
    all(abs(a - b) < 0.15 for a, b in zip(slow_pre, by_cure["a tenth of the rate"], strict=True)),
    **{"Pre-LN at a tenth of the rate": slow_pre},
)

# %% [markdown]
# It survives. Its outputs become alike as well, but its gradient (blue) falls only about ten- to twentyfold, about as much as one division, by the last norm's $\sigma$, explains (*Going deeper*). Then it begins to recover. At a tenth of the rate Pre-LN gets no further than Post-LN, within 0.15 nats: what it buys here is the high rate.
#
# To judge a block that you find in code, ask: *is there a way from the last block's sum back to the input that passes additions only, and does the sum stay moderate?*

# %% [markdown]
# ## 7 · Does each trick help? A grid
#
# A warm-up and Pre-LN each saved one small model at one rate. Do they help elsewhere? Take another task, the toy translation of chapter 06, with a causal model of width 32 and 240 steps. Four factors are combined:
#
# - *Placement:* Post-LN, Pre-LN or **ReZero** (the picture's third column). It has no norms. Each branch is multiplied by a learned number $\alpha$, which starts at 0, so the branch fades in.
# - *Warm-up:* none, or 50 steps.
# - *Optimizer:* Adam or **RAdam** (Liu et al. 2020b), which has a warm-up inside. It asks how far $v$ can be trusted yet, and counts the gradients that $v$ has seen. In its first five steps (with the usual $\beta_2$) it does not use $v$: it moves by $\eta\, \hat m$, undivided. Then it moves as Adam does, times a factor $r_t$ that grows to 1 as $v$ fills.
# - *Depth:* 4 layers or 12.
#
# That makes 24 settings, in three recorded seeds each. All else is equal: data, order, matrices at the start, and the rate. It is 0.005, the lowest tried at which Post-LN with 12 layers fails without a warm-up. The score is the fraction of words in new sentences that are predicted right. A table of word pairs, which never looks at the source, gets three in ten.

# %% tags=["fold"]
# @title The baseline: a table of word pairs
def word_pair_accuracy(task):
    """Accuracy on new sentences if each word is followed by what followed it most often in training."""
    (inputs, targets), (new_inputs, new_targets) = task.train, task.valid
    asked, new_asked = targets != -100, new_targets != -100
    counts = torch.zeros(len(task.words), len(task.words))
    counts.index_put_((inputs[asked], targets[asked]), torch.ones(1), accumulate=True)
    predicted = counts.argmax(1)[new_inputs[new_asked]]
    return (predicted == new_targets[new_asked]).float().mean().item()


baseline = [word_pair_accuracy(tricks.translation_task(seed=seed)) for seed in range(3)]
claim(
    "In each of three seeds the table predicts between 27 and 33 % of the words right.",
    all(0.27 < accuracy < 0.33 for accuracy in baseline),
    accuracy=baseline,
)

# %%
guess_2 = predict(
    "how many of the 24 settings get half of the words wrong or more", ...
)

# %% tags=["reveal"]
figures.grid_map("training-grid")

# %% tags=["fold", "reveal"]
# @title Which fails, and what fixes it
def mean(values):
    """Mean over the seeds."""
    return sum(values) / len(values)


PLACEMENTS = {"post-ln": "Post-LN", "pre-ln": "Pre-LN", "rezero": "ReZero"}
SETTINGS = [
    (residual, warmup, optimizer, layers)
    for layers in (4, 12)
    for residual in PLACEMENTS
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
guess_2.compare(sum(max(accuracies) < 0.5 for accuracies in grid.values()))
claim(
    "One of 24 settings fails: no seed of it predicts half of the words correctly; every seed of all others does.",
    max(grid[failed]) < 0.5 < min(min(accuracies) for key, accuracies in grid.items() if key != failed),
)
claim(
    "Each of four tricks alone fixes it: with a warm-up, RAdam, Pre-LN or ReZero every seed gets more than 3 of 4 words right.",
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
# At this rate 4 layers need no trick. At 12, two of three seeds of the setting that fails are no better than the table of word pairs; each of the four tricks saves them all. But one rate for all is the grid's weakness: a pale field may only need another rate. So here is Adam with 12 layers at four rates:

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
figures.accuracy_by_rate(RATES, by_rate)
best = {
    key: max((mean(accuracy), rate) for accuracy, rate in zip(accuracies, RATES, strict=True))
    for key, accuracies in by_rate.items()
}
claim(
    "Pre-LN trains at all four rates, with or without warm-up; Post-LN at the two lower ones, and with warm-up at a third.",
    [sum(min(accuracy) > 0.5 for accuracy in accuracies) for accuracies in by_rate.values()]
    == [2, 3, 4, 4],
)
claim(
    "Each at its best rate, the four lines end within 9 percentage points of one another (means of three seeds).",
    max(best.values())[0] - min(best.values())[0] < 0.09,
    **{", ".join((PLACEMENTS[key[0]], key[1])): accuracy for key, (accuracy, _) in best.items()},
)

# %% [markdown]
# **What the tricks buy here is mostly the *range* of rates that work and, for Pre-LN, some points of the peak.** The two Pre-LN lines work over the widest range, and their peaks cannot be told apart. But with each at its best rate, the four lines end within 9 percentage points of one another. And at the lowest rate a warm-up (50 of the 240 steps) *costs* either placement about 4 points.
#
# Where a setting trains, its seeds differ by up to 14 points. So read a difference of a few points as none, unless it has the same sign in all three seeds. Even that happens by chance in one case of four.
#
# And on a real text? At a rate chosen for that, a 12-layer model of Shakespeare's characters fails in the same way. A warm-up, RAdam or Pre-LN saves each of three seeds (*Going deeper*).

# %% [markdown]
# **A good place to stop.** A few steps in a row at a high rate, or an abrupt rise to it, break Post-LN. A lower rate or a warm-up prevents that; Pre-LN survives it. Exercises 11.1 to 11.5 (in section 12) take about two hours. Next come the rest of the recipe and the loop that holds it all (sections 8 and 9).

# %% [markdown]
# ## 8 · What else does a long training need?
#
# A warm-up or Pre-LN brings a training through its start. What can go wrong in the many steps that follow?
#
# ### The weights do not settle: let the rate fall
#
# At a high rate the weights keep jumping around a good place; small steps let them settle. So after the warm-up the rate falls: **linearly** to 0 (BERT), or along half a **cosine** wave, slow at both ends.

# %%
def cosine(s, w=20, total=240):
    if s < w:
        return (s + 1) / w
    p = (s - w) / (total - w)  # the share of the fall that is done
    return 0.5 * (1 + math.cos(math.pi * p))


at = range(240)
curves = {
    "constant": [optim.constant_schedule(s, 20) for s in at],
    "linear": [optim.linear_schedule(s, 20, 240) for s in at],
    "cosine": [cosine(s) for s in at],
}
figures.falls(at, curves)

# %% [markdown]
# What the fall is worth is not measured in this chapter.
#
# ### A bad batch comes: clip the gradient
#
# A damaged document may have a gradient a thousand times as long as usual. **Clipping** (chapter 04) shortens every gradient that is longer than $c$ to the length $c$. The length is that of *all* gradients together; torch's `clip_grad_norm_(parameters, c)` also returns it. What does a spike do to Adam, with and without it? Follow one weight; one of its 400 gradients is 1000 times as long as the others:

# %%
def walk(c, spike=None, steps=400):
    """Where a weight stands after each step of Adam; its gradients are 3 with noise."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    optimizer, places = torch.optim.Adam([weight], lr=1e-3), []
    for step in range(steps):
        weight.grad = 3 + torch.randn(1, generator=generator, dtype=torch.float64)
        weight.grad = weight.grad.clamp(min=1.5) * (1000 if step == spike else 1)
        if c:
            nn.utils.clip_grad_norm_([weight], c)
        optimizer.step()
        places.append(-weight.item())
    return places


plain, spiked, clipped = walk(None), walk(None, spike=100), walk(5.0, spike=100)
figures.spike(plain, spiked, clipped)

# %% tags=["fold"]
# @title The spike, and clipping that is always active
moved = {name: w[-1] - w[100] for name, w in (("no", plain), ("spike", spiked), ("clip", clipped))}
claim(
    "After one spike Adam without clipping moves less than a tenth of its usual distance in 300 steps; with clipping at 5 the spike costs less than 5 % of it.",
    moved["spike"] < 0.1 * moved["no"] and moved["clip"] > 0.95 * moved["no"],
    without_a_spike=moved["no"],
    with_a_spike=moved["spike"],
    clipped=moved["clip"],
)
one, hundredth = walk(1.0), walk(0.01)
claim(
    "Clipping all gradients, at 0.01 or at 1, gives the same walk, to 1 part in 1000.",
    max(abs(a / b - 1) for a, b in zip(one, hundredth, strict=True)) < 1e-3,
)

# %% [markdown]
# The spike does not throw the weight far. It fills $v$, which Adam divides by and which forgets only a thousandth per step, so thousands of steps become tiny. Clipping that is *rarely* active keeps it out. Clipping that is *always* active does not make Adam careful, because it divides a constant factor away: for this one weight, at 0.01 and at 1 the walk is the same. So log the gradient's length before clipping, and set $c$ above its usual values.
#
# ### Weights grow large: let them decay
#
# An old rule of thumb, not tested here, says that of two models that fit the data equally well the one with smaller weights generalises better. So **weight decay** pulls each weight $\theta$ a little towards 0 in every step. With a strength $\lambda$ you can add $\lambda\theta$ to the gradient (an L2 penalty), or shrink $\theta$ by $\eta\lambda\theta$ beside the step. For plain gradient descent the two are the same; not for Adam, which divides all that is in the gradient. Try two weights, both 1, whose gradients are pure noise of size 1 and of size 0.01:

# %%
def decayed(kind, steps=500):
    weights, generator = nn.Parameter(torch.ones(2)), torch.Generator().manual_seed(0)
    optimizer = kind([weights], lr=1e-3, weight_decay=0.1)
    for _ in range(steps):
        weights.grad = torch.tensor([1.0, 0.01]) * torch.randn(1, generator=generator)
        optimizer.step()
    return weights.tolist()


print("noise of size           1    0.01")
for kind in (torch.optim.Adam, torch.optim.AdamW):
    weight_1, weight_2 = decayed(kind)
    print(f"weight, by {kind.__name__:5}  {weight_1:.2f}   {weight_2:.2f}")

# %% tags=["fold"]
# @title The two weights after 500 steps
coupled, decoupled = decayed(torch.optim.Adam), decayed(torch.optim.AdamW)
claim(
    "With L2 in Adam's gradient the weight with the small gradient decays more than five times as fast as the other; AdamW treats both alike, within 1 %.",
    (1 - coupled[1]) > 5 * (1 - coupled[0]) and abs(decoupled[0] - decoupled[1]) < 0.01,
    shrinking_alone=0.9999**500,
)

# %% [markdown]
# The pull should depend on the weight, not on how noisy its gradient is. So use **AdamW** (Loshchilov and Hutter 2019), which shrinks beside the step. In torch, `Adam(weight_decay=...)` and `RAdam(weight_decay=...)` mean the L2 penalty.
#
# And which parameters? The matrices. By convention biases do not decay, nor does a norm's *gain* (the factor of each entry after normalising, at first 1); what that is worth is not measured here. So give torch the parameters in **groups**, each with its own settings:

# %%
def decay_groups(model, decay):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]  # gains and biases
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]


for group in decay_groups(PreLN(), 0.1):
    print(len(group["params"]), "tensors, decay", group["weight_decay"])

# %% tags=["fold"]
# @title The same training, with groups and without
def mean_gain(grouped, steps=100):
    """Mean gain of the norms after a training, and what is left of the letter p, which never occurs."""
    set_seed(0)
    model, draws = PreLN(layers=2), torch.Generator().manual_seed(0)
    groups = decay_groups(model, 1.0) if grouped else model.parameters()
    optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=1.0)
    never_read = model.embedding.embedding.weight[15]
    length = never_read.norm().item()
    for _ in range(steps):
        letters = torch.randint(15, (32, T), generator=draws)
        optimizer.zero_grad()
        loss_on(model, letters, letters.flip(1)).backward()
        optimizer.step()
    gains = [m.weight.mean().item() for m in model.modules() if isinstance(m, nn.LayerNorm)]
    return sum(gains) / len(gains), model.embedding.embedding.weight[15].norm().item() / length


everything, _ = mean_gain(grouped=False)
with_groups, unseen = mean_gain(grouped=True)
claim(
    "In this run the mean gain sinks by more than a tenth in 100 steps when everything decays; with groups it grows above 1.",
    everything < 0.9 and with_groups > 1,
    mean_gain_when_all_decays=everything,
    with_groups=with_groups,
)
claim(
    "The embedding of a letter that never occurs shrinks in spite of the groups, by (1 - rate · decay)¹⁰⁰: it is a row of a matrix.",
    math.isclose(unseen, 0.997**100, rel_tol=1e-3),
    kept=unseen,
)

# %% [markdown]
# ## 9 · The recipe: one loop with all parts
#
# Now put the parts together, on the 12 layers and the high rate. Compared with the loop at the top only the optimizer, the schedule and the line that clips are new. The order matters: clip *after* the gradients are complete and *before* they are used, and step the schedule once per optimizer step.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model, draws = PreLN(), torch.Generator().manual_seed(0)
optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=0.01, fused=True)
scheduler = LambdaLR(optimizer, cosine)  # 20 steps of warm-up, 240 in all
times_clipped = 0
for step in tqdm(range(240), leave=False):
    loss = loss_on(model, *examples(draws))
    optimizer.zero_grad()
    loss.backward()
    length = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    times_clipped += (length > 5.0).item()
    optimizer.step()
    scheduler.step()
    if step % 60 == 59:
        print(f"step {step + 1:3}: loss {loss:.3f}, gradient's length {length:.2f}")
print(f"clipped in {times_clipped} steps; champion ->", spell(model, "champion"))

# %% tags=["fold"]
# @title It reverses
with torch.no_grad():
    test_letters, test_backwards = examples(torch.Generator().manual_seed(7), size=500)
    right = (model(test_letters).argmax(-1) == test_backwards).float().mean()
claim(
    "In this run, with all parts and at the rate 0.01, twelve layers get more than 95 % of the letters of 500 new words right.",
    right > 0.95,
    right=right,
)
claim("In this run fewer than one step in ten is clipped.", times_clipped < 24)

# %% [markdown]
# Twelve layers reverse, and clipping is rarely active, as it should be. Pre-LN alone had come most of the way in 120 steps (in 240 it was not measured); the other parts are for longer trainings. (The library has `optim.cosine_schedule` and `optim.decay_groups`.)

# %% [markdown]
# ## 10 · What to use when
#
# Before any trick, try lower learning rates, and more than one. In section 7 Post-LN with 12 layers and no warm-up failed at 0.01, and still failed at half of it; 0.0025 sufficed. Then:
#
# | you have | begin with | why |
# |---|---|---|
# | few layers (ours: 4) | Post-LN or Pre-LN, Adam | no trick was needed at 0.005 (section 7) |
# | many layers (ours: 12) | Pre-LN, last norm, a warm-up | widest range of rates; a warm-up of 50 of 240 steps helps at 0.005 and 0.01 in every seed, and costs 4 points at 0.001 |
# | given Post-LN weights (BERT, chapter 12) | warm-up, and a lower rate | from random values 12 layers fail at a high rate without warm-up (sections 2, 7); trained weights were not tested |
# | a long training †, and no idea how long to warm up | RAdam, its rate chosen anew | it rescues Post-LN, but its own warm-up takes thousands of steps: in our 240 it was mostly behind Adam at the same rate; its first five steps may jump |
# | no norm wanted | ReZero | it trains at both depths; its speed depends on the task |
# | now and then a bad batch | clipping, above the usual lengths | a spike fills $v$ for thousands of steps (section 8) |
# | overfitting | dropout †; AdamW with groups † | L2 in Adam decays most where gradients are small (section 8) |
# | overconfident predictions | label smoothing | it lowers them, whether they were overconfident or not (*Going deeper*) |
# | a processor with fast bfloat16 | bfloat16, once a step is timed | as good here after 400 steps, at our size not faster (*Going deeper*) |
#
# † Not measured in this chapter: long trainings and overfitting.

# %% [markdown]
# ## 11 · Errors you will meet
#
# The loop runs. Is it right? Neither of these two errors stops it.
#
# A batch too large for the memory is cut into *micro-batches*; their gradients are added up before one step. This is called **accumulation** (exercise 11.7).
#
# **The schedule counts something else.** Three epochs of 40 micro-batches, 4 to a step, make 30 optimizer steps, so the schedule is a cosine with 6 steps of warm-up and 30 in all. Stepped in the wrong place it gives other rates:

# %%
ways = {
    "once an optimizer step": [optim.cosine_schedule(i, 6, 30) for i in range(30)],
    "once a micro-batch": [optim.cosine_schedule(4 * i, 6, 30) for i in range(30)],
    "once an epoch": [optim.cosine_schedule(i // 10, 6, 30) for i in range(30)],
}
figures.schedule_units(ways)

# %% tags=["fold"]
# @title What is left of the rate
claim(
    "Stepped per micro-batch, 22 of 30 steps have the factor 0; stepped per epoch, no step gets more than half of the rate.",
    sum(factor == 0 for factor in ways["once a micro-batch"]) == 22
    and max(ways["once an epoch"]) == 0.5,
)

# %% [markdown]
# **A norm in place of the residual.** `x = norm(x)`, then `x = x + f(x)`, looks like Pre-LN, but now the *stream* is normalised. Follow it: norm, add, norm, add. Post-LN is add, norm, add, norm. So this is Post-LN, shifted by one norm, and it fails as Post-LN does:

# %% tags=["nbval-ignore-output"]
class MisplacedBlock(PostLNBlock):
    def forward(self, x):
        x = self.norm1(x)  # wrong: this replaces the stream
        x = x + self.attend(x)
        x = self.norm2(x)  # wrong
        return x + self.feed_forward(x)


class Misplaced(PreLN):
    block = MisplacedBlock


_, misplaced_losses = train(Misplaced)
print(f"misplaced: {final_loss(misplaced_losses):.2f} nats")
print(f"Pre-LN:    {final_loss(pre_losses):.2f} nats")

# %% tags=["fold"]
# @title What it learns, and why: it is Post-LN, shifted
claim(
    "At the rate 0.01 the misplaced norms end within 0.05 nats of a blind guess; in the right place (Pre-LN) the same training ends below 1 nat. One seed each.",
    abs(final_loss(misplaced_losses) - math.log(16)) < 0.05 and final_loss(pre_losses) < 1,
    misplaced=f"{final_loss(misplaced_losses):.2f} nats",
    repaired=f"{final_loss(pre_losses):.2f} nats",
)
with torch.no_grad():
    sublayers = [nn.Linear(D, D) for _ in range(24)]
    shifted_stream = torch.randn(8, T, D)
    post = F.layer_norm(shifted_stream, (D,))
    for f in sublayers:
        shifted_stream = F.layer_norm(shifted_stream, (D,))
        shifted_stream = shifted_stream + f(shifted_stream)
        post = F.layer_norm(post + f(post), (D,))
    claim(
        "norm, then Post-LN = the misplaced stack, then norm: within 0.0001.",
        torch.allclose(F.layer_norm(shifted_stream, (D,)), post, atol=1e-4),
    )

# %% [markdown]
# ## 12 · Exercises
#
# 11.1 to 11.5 take about two hours, 11.6 and 11.7 another 45 minutes.
#
# ### Exercise 11.1 · LayerNorm backwards
#
# Difficulty ●●●○○ · 25 minutes · needs section 5
#
# Write the backward pass of LayerNorm (without gain and bias) from the matrix $J$ of section 5, for a whole batch, without autograd and without building a D × D matrix (the check looks for both). $J$ is symmetric, so with a loss $L$, $\partial L / \partial x = J\, \partial L / \partial \hat x$: subtract two projections, divide by $\sigma$.
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
# ### Exercise 11.2 · RAdam by hand
#
# Difficulty ●●●○○ · 20 minutes · needs section 7
#
# RAdam in three steps:
#
# 1. *Count the samples.* After $t$ gradients $v$ averages as much as $\rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}$ equally weighted gradients would, with $\rho_\infty = \frac{2}{1-\beta_2} - 1$ in the end. (This is the length of the plain mean whose numbers are on average as old as those in $v$; derived in *Going deeper*, "Are samples all that Adam lacks?".)
# 2. *How much does Adam's factor $1/\sqrt{\hat v}$ scatter then?* For normal gradients approximately $\mathrm{Var}(\rho) = \frac{\rho}{2(\rho-2)(\rho-4)}$, if $\rho > 4$.
# 3. *Scale the step* so that it scatters no more than it will in the end: $\eta\, r_t\, \hat m / \sqrt{\hat v}$ with $r_t = \sqrt{\mathrm{Var}(\rho_\infty) / \mathrm{Var}(\rho_t)}$. As long as $\rho_t \le 5$, step without the adaptive factor: $\eta\, \hat m$. (The paper adapts from $\rho_t > 4$ on; its authors' code and torch from 5, and so do we.)
#
# Now take one weight; its gradient is 4 in every step. $\eta = 0.1$, $\beta_1 = \beta_2 = 0.9$, $\epsilon = 0$. With a constant gradient $\hat m = 4$ and $\hat v = 16$ at every $t$. Give six numbers, to three digits:
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
# ### Exercise 11.3 · Warm up, hold, cool down
#
# Difficulty ●●○○○ · 15 minutes · needs section 4
#
# A newer schedule (warm-up, stable, decay; Hu et al. 2024) keeps the rate constant and lets it fall only in the last steps, so that a longer training can go on from the weights before the fall. Write it as one factor: rise as `warm_up` does, then 1, then a line from 1 at step `total - decay` to 0 at step `total`. Assume that warm-up and fall do not overlap. Later steps get 0.

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
# ### Exercise 11.4 · Find the bugs in a Pre-LN block
#
# Difficulty ●●○○○ · 15 minutes · needs section 6
#
# This block runs and trains. It should be Pre-LN. Find what is wrong, then write it right.
#
# ```python
# def pre_ln_block(x, attend, feed_forward, norm1, norm2):
#     x = x + norm1(attend(x))
#     return x + feed_forward(norm1(x))
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
# ### Exercise 11.5 · Explore and explain the grid
#
# Difficulty ●●●○○ · 40 minutes · needs section 7 and exercise 11.2
#
# Change the cell below (residual, warm-up, optimizer, layers, `learning_rate`, `steps`; `steps` must be a multiple of `every`, the steps between two measurements), then answer in words:
#
# (a) A colleague reads the first row of the left map in section 7 (Post-LN, 4 layers) and concludes that warm-up is superstition. What in the grid speaks for it, what against, and what would you measure?
#
# (b) RAdam with $\beta_2$ = 0.9 in place of 0.999: how does $r_t$ change, and what do you expect for 240 steps, at 4 and at 12 layers? $\beta_2$ sets both $r_t$ and how noisy $v$ is: which of the two could spoil the comparison with Adam?
#
# (c) Section 7 has other learning rates for 4 of the 24 settings only. Name a conclusion about the other 20 (another one than "RAdam is behind Adam") that might be reversed if each had its best rate, and a conclusion of section 7 that could not.
#
# Stuck? `ch11.explain_the_grid.hint(1)`, then `hint(2)` and `hint(3)`.

# %% tags=["nbval-ignore-output"]
explored, _ = tricks.train_one(
    "rezero", 0, "Adam", 4, seed=0, steps=40, every=10, learning_rate=0.01
)
print(f"loss {explored['loss']:.2f}, accuracy {explored['accuracy']:.2f}")

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex11-5-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
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
# When you have written your answer, paste it in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch11.explain_the_grid.compare(...)

# %% [markdown]
# ### Exercise 11.6 · What decays
#
# Difficulty ●●○○○ · 20 minutes · needs section 8
#
# Write the other rule: all tensors with at least two axes decay, *but no embedding table does*, even when it is also the weight of an output layer. Mind attention's `in_proj_weight`, which belongs to no `nn.Linear`.

# %% nbgrader={"grade": false, "grade_id": "ex11-6-decaying-names", "locked": false, "schema_version": 3, "solution": true, "task": false}
def decaying_names(model):
    """The names of the parameters that should decay.

    Args:
        model: nn.Module.

    Returns:
        set of names (a list will do) as in `model.named_parameters()`.
    """
    ### BEGIN SOLUTION
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in tables}
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex11-6-decaying-names-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch11.decaying_names(decaying_names)

# %% [markdown]
# ### Exercise 11.7 · Find the bugs in a training loop
#
# Difficulty ●●●○○ · 25 minutes · needs sections 8, 9 and 11
#
# A batch too large for the memory is cut into *micro-batches*. `backward()` adds to the gradients that are already there, so call it for each micro-batch and make one step at the end: this is called **accumulation**. The step should use the mean over all examples of its micro-batches, and these differ in size, as batches of real text do. (Why a mean of means is not that: *Going deeper*.)
#
# Four mistakes; none raises an error. Find them, then write the loop right, without the library's `train_epoch`.
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

    Each micro-batch goes through the model once, and has its own backward() before the next is computed: only one
    has to fit into the memory.

    Args:
        model: nn.Module; its gradients are None at first.
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
# The library's `train_epoch` is this loop, with checks around it: the same order, sums and counts.

# %% [markdown]
# ## Summary
#
# 1. A few steps in a row at a high rate, right at the start, break our 12 layers of Post-LN (two can, five do), and so does an abrupt rise: all outputs become alike, the gradient dies in the norms, and Adam's steps shrink (*Going deeper*). One such step is survived. At a lower rate, and with 2 layers, the model survives.
# 2. LayerNorm's backward pass removes two directions and divides by the standard deviation of what it reads.
# 3. Adam's first step is about $\pm\eta$ for every weight whose gradient is well above $\epsilon$, because a single gradient always agrees with itself. At our high rate that is too long: the loss rises. A warm-up raises the rate gradually; RAdam shortens the first *adaptive* steps, by counting samples.
# 4. Pre-LN and ReZero leave a path of additions only. Clipping protects Adam's $v$. Decay belongs beside the step (AdamW) and to matrices.
# 5. In our grid one of 24 settings fails, and each of four tricks fixes it; so does a lower rate (0.0025 for 0.005). What the tricks buy is mostly a wider range of rates and, for Pre-LN, some points of the peak: measure, at more than one.
#
# ## Where next
#
# *Chapter 12* is about BERT, a Post-LN model, whose recorded trainings use warm-up and linear decay; *chapter 13* trains GPT, a Pre-LN model, with a short warm-up, a cosine and clipping.
#
# ## References
#
# - R. Xiong et al., *On layer normalization in the Transformer architecture*, ICML 2020, arXiv:2002.04745: section 3 (gradients at initialisation, lemma on LayerNorm's Jacobian), section 4 (Pre-LN without warm-up).
# - L. Liu et al. (2020a), *Understanding the difficulty of training Transformers*, EMNLP 2020, arXiv:2004.08249: section 3 (unbalanced gradients are not the root cause), section 4 (amplification).
# - L. Liu et al. (2020b), *On the variance of the adaptive learning rate and beyond*, ICLR 2020, arXiv:1908.03265: section 4, algorithm 2 (RAdam).
# - J. Ma, D. Yarats, *On the adequacy of untuned warmup for adaptive optimization*, AAAI 2021, arXiv:1910.04209.
# - T. Bachlechner et al., *ReZero is all you need*, UAI 2021, arXiv:2003.04887: equation 2, section 5.
# - X. S. Huang et al., *Improving Transformer optimization through better initialization* (T-Fixup), ICML 2020: section 3 (shrinking updates, and the initial values).
# - A. Vaswani et al., *Attention is all you need*, NIPS 2017, arXiv:1706.03762: equation 3 (the schedule), section 5.4 (label smoothing).
# - X. Glorot, Y. Bengio, *Understanding the difficulty of training deep feedforward neural networks*, AISTATS 2010: section 4.2.1 (Xavier's initial values).
# - M. Popel, O. Bojar, *Training tips for the Transformer model*, 2018, arXiv:1804.00247. À. R. Atrio, A. Popescu-Belis, *Small batch sizes improve training of low-resource neural MT*, 2022, arXiv:2203.10579. (Batch sizes.)
# - P. Goyal et al., *Accurate, large minibatch SGD*, 2017, arXiv:1706.02677: sections 2.1 (the rate in proportion to the batch) and 2.2 (gradual warm-up).
# - I. Loshchilov, F. Hutter, *SGDR*, ICLR 2017, arXiv:1608.03983 (cosine); *Decoupled weight decay regularization*, ICLR 2019, arXiv:1711.05101 (AdamW).
# - R. Pascanu, T. Mikolov, Y. Bengio, *On the difficulty of training recurrent neural networks*, ICML 2013, arXiv:1211.5063: algorithm 1 (clipping).
# - P. Lippe, *Tutorial 6: Transformers and multi-head attention*, UvA deep learning tutorials, https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/tutorial6/Transformers_and_MHAttention.html (the cosine with warm-up).
# - S. Hu et al., *MiniCPM*, 2024, arXiv:2404.06395: section 4 (warm-up, stable, decay).
# - T. Brown et al., *Language models are few-shot learners* (GPT-3), NeurIPS 2020, arXiv:2005.14165: appendix B. H. Touvron et al., *LLaMA*, 2023, arXiv:2302.13971: section 2.3.
# - A. Henry et al., *Query-key normalization for Transformers*, Findings of EMNLP 2020, arXiv:2010.04245. M. Dehghani et al., *Scaling vision Transformers to 22 billion parameters*, ICML 2023, arXiv:2302.05442. OLMo team, *2 OLMo 2 Furious*, 2025, arXiv:2501.00656. Qwen team, *Qwen3 technical report*, 2025, arXiv:2505.09388.
# - K. Jordan et al., *Muon: an optimizer for hidden layers in neural networks*, 2024, https://kellerjordan.github.io/posts/muon/. J. Liu et al., *Muon is scalable for LLM training*, 2025, arXiv:2502.16982.
# - P. Xu, S. Prince, *Tricks for training Transformers*, Borealis AI, https://www.borealisai.com/research-blogs/tutorial-17-transformers-iii-training/, an overview of the tricks.
# - Video: *Attention and the Transformer*, practicum, https://www.youtube.com/watch?v=f01J0Dri-6k.

# %% [markdown]
# ## Going deeper
#
# Optional, in any order.
#
# - *What do the controls of sections 2 to 6 say?* A step in four ways, a tenth of the rate, sums and steps, two layers, a fresh Adam.
# - *How exact is the law of section 5, and what do the additions do?* LayerNorm backwards in full.
# - *Are queries and keys worse off than values?* Their gradients, and when they vanish.
# - *Are samples all that Adam lacks?* How Adam's factor scatters, where RAdam comes from, and a well-filled $v$.
# - *Which schedule did the original Transformer use?* Noam, an inverse square root.
# - *Why is the peak of my cosine too low?* An error in a scheduler.
# - *How do you train with a batch that does not fit?* Means, sums, and where to clip.
# - *How much does depth amplify a small change?* The explanation of Liu et al. (2020a).
# - *Can one do without norms?* ReZero and T-Fixup.
# - *Does the story hold on a real text?* Twelve layers on Shakespeare's characters.
# - *What else is in the grid?* All 24 settings in numbers, and RAdam at a higher rate.
# - *What do label smoothing and bfloat16 change?* Two options, measured.
# - *What do today's large models add?* A shorter memory, QK-norm, Muon.

# %% [markdown] tags=["deeper"]
# ### What do the controls of sections 2 to 6 say?
#
# The controls need a closer look into the model, one that measures each norm and each addition:

# %% tags=["fold"]
# @title The measurements, and a training that takes them
def measure_inside(model, letters, backwards):
    """Measure a model on a batch: outputs, last sum, gradient; in Post-LN also what each norm and addition does."""
    model.zero_grad()
    x = model.embedding(letters).detach().requires_grad_()
    points, sigmas = [x], []  # on the way up: x, sum, norm of it, sum, norm of it, ...
    for block in model.blocks:
        for sublayer, norm in ((block.attend, block.norm1), (block.feed_forward, block.norm2)):
            if isinstance(model, PreLN):
                total = x = x + sublayer(norm(x))
            else:
                total = x + sublayer(x)
                x = norm(total)
                points += [total, x]
                sigmas.append(total.detach().std(-1, correction=0).mean().item())
    for point in points:
        point.retain_grad()
    F.cross_entropy(model.output(x).flatten(0, 1), backwards.flatten()).backward()
    h = F.layer_norm(total.detach(), (D,))
    measured = {
        "alike": how_alike(h),
        "reads": total.detach().std(-1).mean().item(),
        "gradient": model.blocks[0].feed_forward[2].weight.grad.norm().item(),
    }
    if sigmas:
        size = [point.grad.norm().item() for point in points]  # of the gradient
        measured["top"], measured["bottom"] = size[-1], size[0]
        measured["norms"] = math.prod(size[i] / size[i + 1] for i in range(1, len(size), 2))
        measured["additions"] = math.prod(size[i] / size[i + 1] for i in range(0, len(size) - 1, 2))
        measured["1 / sigma"] = 1 / math.prod(sigmas)
    return measured


MEASURED_AT = (0, 1, 2, 3, 5, 10, 20, 40)  # steps taken


def train_and_measure(model_class, schedule=constant, rate=0.01, seed=0, layers=12):
    """Train for 41 steps as `train` does; return {steps taken: what was measured before the next step}."""
    torch.manual_seed(seed)
    model, draws = model_class(layers), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    scheduler = LambdaLR(optimizer, schedule)
    weight, inside = model.blocks[0].feed_forward[2].weight, {}
    for step in range(41):
        if step in MEASURED_AT:
            inside[step] = measure_inside(model, *fixed)
        before = weight.detach().clone()
        loss = loss_on(model, *examples(draws))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step in MEASURED_AT:
            inside[step]["step"] = (weight.detach() - before).abs().mean().item()
    return inside


failing = [train_and_measure(PostLN, seed=seed) for seed in range(3)]
warmed = [train_and_measure(PostLN, warm_up, seed=seed) for seed in range(3)]
pre = [train_and_measure(PreLN, seed=seed) for seed in range(3)]
inside_by_training = {"Post-LN": failing, "Post-LN, warm-up": warmed, "Pre-LN": pre}
claim(
    "With a warm-up, in each of three seeds, the gradient at step 40 has more than a tenth of its first length, and the outputs differ again.",
    all(run[40]["gradient"] > 0.1 * run[0]["gradient"] and run[40]["alike"] < 0.7 for run in warmed),
    common_at_step_40=[run[40]["alike"] for run in warmed],
)

# %% [markdown]
# **One step, four ways.** What is it in the first step that does the harm: its length, its direction, Adam's dividing, or the noise of a small batch? Make one step of the same total length in four ways:

# %% tags=["fold"]
# @title One step, four ways
def after_one_step(move, seed, size=32):
    """How alike Post-LN's outputs are when each weight has changed by `move`, and what is left of its gradient."""
    torch.manual_seed(seed)
    model = PostLN()
    loss_on(model, *examples(torch.Generator().manual_seed(seed), size)).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    usual = (gradient.norm() / len(gradient) ** 0.5).item()  # root mean square
    with torch.no_grad():
        for p in model.parameters():
            p += 0.01 * move(p, usual)
    stepped = measure_inside(model, *fixed)
    return stepped["alike"], stepped["gradient"] / failing[seed][0]["gradient"]


def against_sign(p, usual):
    return -p.grad.sign()


adam_way = [after_one_step(against_sign, seed) for seed in range(3)]
large_batch = [after_one_step(against_sign, seed, size=2048) for seed in range(3)]
plain_way = [after_one_step(lambda p, usual: -p.grad / usual, seed) for seed in range(3)]
random_way = [after_one_step(lambda p, usual: torch.randn_like(p).sign(), seed) for seed in range(3)]
table(
    ["one step, in three seeds", "how alike the outputs are", "first layer's gradient, of its start"],
    [
        [name, *(", ".join(f"{value:.2f}" for value in values) for values in zip(*seeds, strict=True))]
        for name, seeds in (
            ("before it", [(run[0]["alike"], 1.0) for run in failing]),
            ("each weight by 0.01 against its gradient's sign (as Adam)", adam_way),
            ("the same, gradient of 2,048 words in place of 32", large_batch),
            ("along the plain gradient", plain_way),
            ("each weight by 0.01, random signs", random_way),
        )
    ],
)
claim(
    "In each of three seeds, and in each of the three ways along the gradient: more than 0.95 of the outputs is common after one step, and the first layer's gradient is less than a fifth of its start. With random signs less than 0.75 is common, and the gradient keeps more than four fifths.",
    all(alike > 0.95 and left < 0.2 for alike, left in adam_way + large_batch + plain_way)
    and all(alike < 0.75 and left > 0.8 for alike, left in random_way),
)

# %% [markdown]
# Not the noise, and not the dividing: all three steps along the gradient make the outputs alike and shorten the gradient. Not the length alone: random signs do neither, because such moves cancel one another.
#
# **A tenth of the rate.** The measurements of section 2, at both rates:

# %% tags=["fold", "nbval-ignore-output"]
# @title Post-LN at two rates, seed 0
tenth = [train_and_measure(PostLN, rate=0.001, seed=seed) for seed in range(3)]
table(
    ["steps taken", "rate", "how alike", "what the last norm reads", "gradient, of its start"],
    [
        [step, rate, f"{run[step]['alike']:.2f}", f"{run[step]['reads']:.1f}", f"{run[step]['gradient'] / run[0]['gradient']:.2g}"]
        for step in (1, 5, 40)
        for rate, run in (("0.01", failing[0]), ("0.001", tenth[0]))
    ],
)

# %% tags=["fold"]
# @title A tenth of the rate, in three seeds
claim(
    "In each of three seeds, at a tenth of the rate: what the last norm reads stays within a third of its start, and the gradient of the first layer keeps more than a tenth of its length, at every measurement; after 40 steps the outputs have less than 0.3 in common.",
    all(
        max(moment["reads"] for moment in run.values()) < 4 / 3 * run[0]["reads"]
        and min(moment["reads"] for moment in run.values()) > 2 / 3 * run[0]["reads"]
        and min(moment["gradient"] for moment in run.values()) > 0.1 * run[0]["gradient"]
        and run[40]["alike"] < 0.3
        for run in tenth
    ),
    common_after_5_steps=[run[5]["alike"] for run in tenth],
    common_after_40_steps=[run[40]["alike"] for run in tenth],
)

# %% [markdown]
# The outputs become alike here too, but over several steps and for a while. What the last norm reads hardly grows, the gradient survives, and later steps make the outputs differ again.
#
# **The loss after one step.** Is it the rise that kills? Pre-LN's loss rises as well, and it trains:

# %% tags=["fold"]
# @title Pre-LN's first step
pre_ln_first = []
for seed in range(5):
    start, one_step = (train(PreLN, steps=steps, seed=seed)[0] for steps in (0, 1))
    pre_ln_first.append((loss_on(one_step, *others) - loss_on(start, *others)).item())
claim(
    "At the full rate one step raises Pre-LN's loss too, in each of five seeds.",
    all(rise > 0 for rise in pre_ln_first),
    rise=pre_ln_first,
)

# %% [markdown]
# **Sums.** If norms kill the gradient, they must read larger and larger vectors. The standard deviation of what the last one reads:

# %%
figures.last_sums(inside_by_training)

# %% [markdown]
# In the failing runs (red) it grows, step by step. Pre-LN's last sum grows the most, but its gradient falls only about as many times, as *one* division by $\sigma$ would have it. This fits.
#
# **Steps.** How far does a weight move?

# %%
figures.step_sizes(inside_by_training)

# %% [markdown]
# The rate is unchanged, but $v$ remembers the first, long gradients ($\beta_2 = 0.999$: about 1,000 steps), so when the gradients shrink, the steps do too. After step 10 Pre-LN's about keep their size; only the red line keeps falling. (Huang et al. 2020 describe this end.) Sums and steps in each seed, and Pre-LN's accident:

# %% tags=["fold"]
# @title Sums, steps and Pre-LN, checked
sums_grow = [max(moment["reads"] for moment in run.values()) / run[0]["reads"] for run in pre]
shortest_in_pre = [min(moment["gradient"] for moment in run.values()) for run in pre]
claim(
    "Post-LN without warm-up, after 40 steps, in each seed: what the last norm reads has more than doubled, and a weight's step has shrunk more than twentyfold, at an unchanged learning rate.",
    all(
        run[40]["reads"] > 2 * run[0]["reads"] and run[40]["step"] < run[0]["step"] / 20
        for run in failing
    ),
    first_step=failing[0][0]["step"],
    step_40=failing[0][40]["step"],
    with_warm_up_step_40=warmed[0][40]["step"],
)
claim(
    "In Pre-LN, in each seed, the outputs become alike as well, and what the last norm reads grows more than fivefold. The first layer's gradient falls by about the same factor (within a factor of 2), but keeps more than a hundredth of its length at every measurement, and after 40 steps is more than twice as long as at its shortest.",
    all(
        max(moment["alike"] for moment in run.values()) > 0.8
        and grown > 5
        and grown / 2 < run[0]["gradient"] / shortest < 2 * grown
        and 0.01 * run[0]["gradient"] < shortest < run[40]["gradient"] / 2
        for run, grown, shortest in zip(pre, sums_grow, shortest_in_pre, strict=True)
    ),
    sums_grow_by=sums_grow,
    gradient_falls_by=[run[0]["gradient"] / short for run, short in zip(pre, shortest_in_pre, strict=True)],
)

# %% [markdown]
# **Two layers.** If the number of norms decides, 2 layers should survive the steps that break 12: their gradient passes 4 norms, not 24.

# %% tags=["fold", "nbval-ignore-output"]
# @title A control: two layers, same rate, seed 0
shallow = [train_and_measure(PostLN, seed=seed, layers=2) for seed in range(3)]
table(
    ["steps taken", "layers", "how alike", "what the last norm reads", "gradient, of its start"],
    [
        [step, layers, f"{run[step]['alike']:.2f}", f"{run[step]['reads']:.1f}", f"{run[step]['gradient'] / run[0]['gradient']:.2g}"]
        for step in (0, 5, 40)
        for layers, run in ((12, failing[0]), (2, shallow[0]))
    ],
)

# %% tags=["fold"]
# @title Two layers, in three seeds
claim(
    "In each of three seeds the outputs of 2 layers become alike too (more than 0.75 in common), and after 5 steps their last norm reads at least two thirds of what that of 12 layers reads. But the first layer's gradient keeps more than a tenth of its length at every measurement, and after 40 steps the outputs have less than 0.3 in common.",
    all(
        max(moment["alike"] for moment in run.values()) > 0.75
        and run[5]["reads"] > 2 / 3 * deep_run[5]["reads"]
        and min(moment["gradient"] for moment in run.values()) > 0.1 * run[0]["gradient"]
        and run[40]["alike"] < 0.3
        for run, deep_run in zip(shallow, failing, strict=True)
    ),
    least_of_the_gradient=[min(moment["gradient"] for moment in run.values()) / run[0]["gradient"] for run in shallow],
)

# %% [markdown]
# They do. Their outputs become alike too, their last norm reads nearly as much after 5 steps, but the gradient lives, and the outputs differ again.
#
# **A fresh Adam.** Is it the memory of $v$ that holds the failing model? The ledger has five seeds that get a new Adam after 40 steps, whose averages are empty, at the same rate:

# %% tags=["fold"]
# @title The ledger: a fresh Adam
claim(
    "In each of five seeds the loss is still within 0.05 nats of a blind guess after 160 steps with a fresh Adam at the rate 0.01.",
    max(abs(loss - math.log(16)) for loss in recorded_losses("post-ln, fresh Adam", "deep-controls")) < 0.05,
    losses=recorded_losses("post-ln, fresh Adam", "deep-controls"),
)
per_weight = [run[40]["gradient"] / (4 * D * D) ** 0.5 for run in failing]
claim(
    "After 40 steps a weight of the first layer has a gradient (root mean square) of less than twice $\\epsilon = 10^{-8}$, in each of three seeds.",
    max(per_weight) < 2e-8,
    gradient=per_weight,
)

# %% [markdown]
# It is not the memory alone. By then the first layer's gradients are about as small as $\epsilon$ or smaller, so near $\epsilon$ Adam's steps are short, memory or not.

# %% [markdown] tags=["deeper"]
# ### How exact is the law of section 5, and what do the additions do?
#
# First the three pushes of section 5 again, now with a random vector of 32 numbers:

# %% tags=["fold"]
# @title Three pushes of a random vector
def comes_out(x, push):
    """The part of a small push that is left after LayerNorm."""
    moved = F.layer_norm(x + 1e-4 * push, (D,)) - F.layer_norm(x, (D,))
    return (moved.norm() / (1e-4 * push.norm())).item()


draws_5 = torch.Generator().manual_seed(0)
vector = 3 * torch.randn(D, generator=draws_5, dtype=torch.float64) + 1
hat, spread = F.layer_norm(vector, (D,)), vector.std(correction=0)
across = torch.randn(D, generator=draws_5, dtype=torch.float64)
across = across - across.mean() - hat * (across * hat).mean()  # at right angles to both
claim(
    "All up, and along $\\hat x$: nothing comes out. At right angles to both: the push divided by $\\sigma$, within 0.1 %, for $x$ and for $10\\,x$.",
    all(
        comes_out(size * vector, torch.ones(D)) < 1e-5
        and comes_out(size * vector, hat) < 1e-5
        and abs(comes_out(size * vector, across) * size * spread - 1) < 1e-3
        for size in (1, 10)
    ),
)

# %% [markdown]
# The largest factor by which $J$ can stretch a gradient (its largest singular value) is exactly $1/\sigma = \sqrt D / \lVert x - \bar x \rVert$. Papers write $O(\sqrt D / \lVert x \rVert)$, which is the same where the mean is 0. And where it is not?

# %%
layer_norm_gain = gradient_norms.layer_norm_gain  # singular values of J
sizes = (0.5, 1, 2, 4, 8, 16, 32, 64)
centred = [layer_norm_gain(64, length, seed=0) for length in sizes]
off_centre = [layer_norm_gain(64, length, seed=0, centred=False) for length in sizes]
figures.jacobian_norm(sizes, centred, off_centre)

# %% tags=["fold"]
# @title The law at eight lengths
claim(
    "For x with mean 0 the largest singular value is $\\sqrt D / \\Vert x \\Vert$, within 1 %, at every length from 0.5 to 64.",
    all(abs(gain["largest"] / gain["law"] - 1) < 0.01 for gain in centred),
)
claim(
    "For x with another mean it is larger by more than a fifth: LayerNorm does not see the mean, so $\\Vert x - \\bar x \\Vert$ counts.",
    all(gain["largest"] / gain["law"] > 1.2 for gain in off_centre),
    times_the_law=off_centre[4]["largest"] / off_centre[4]["law"],
)

# %% [markdown]
# In Post-LN $\sigma > 1$ after every addition, and a stack of $N$ layers has $2N$ norms. From this one may conclude: *the gradient is divided by more than 1 at each of them, so it vanishes in the lower layers.* The law is exact; the conclusion forgets that a gradient which comes down passes the norm *and then the addition*, where the sublayer's own gradient is added to it. Section 5 measured both together; here they are apart, before training, in three seeds:

# %% tags=["fold"]
# @title Both factors, at initialisation
table(
    ["before training", "24 norms", "24 additions", "together"],
    [
        [f"seed {seed}", *(f"{value:.2f}" for value in (norms, additions, norms * additions))]
        for seed, (norms, additions) in enumerate((run[0]["norms"], run[0]["additions"]) for run in failing)
    ],
)
claim(
    "In each of three seeds the 24 norms alone would make the gradient shorter, the 24 additions make it longer; together it keeps its order of magnitude.",
    all(
        run[0]["norms"] < 0.9
        and run[0]["additions"] > 1.1
        and 0.2 < run[0]["norms"] * run[0]["additions"] < 5
        for run in failing
    ),
)

# %% [markdown]
# What happens in training? Section 5's figure, in three seeds:

# %% tags=["fold"]
# @title Where the gradient dies, checked
per_norm = [(run[1]["1 / sigma"] / run[0]["1 / sigma"]) ** (-1 / 24) for run in failing]
claim(
    "In each of three seeds the mean $\\sigma$ (geometric, over the 24 norms) grows in one step by 10 to 20 %. After it the norms leave less than a tenth of what they left before training, more than a tenth of the gradient; and after 40 steps less than half to the power of 24.",
    all(
        run[0]["norms"] > 0.1
        and run[1]["norms"] < run[0]["norms"] / 10
        and run[40]["norms"] < 0.5**24
        for run in failing
    )
    and 1.1 < min(per_norm) <= max(per_norm) < 1.2,
    mean_sigma_after_one_step_over_before=per_norm,
)
claim(
    "In each of three seeds the gradient at the top keeps its length, within a factor of 2; what the norms do is the product of 24 factors $1/\\sigma$, within a factor of 3, after 0, 1, 5 and 40 steps; and after 40 steps norms and additions together leave less than a thousandth.",
    all(0.5 < run[40]["top"] / run[0]["top"] < 2 for run in failing)
    and all(1 / 3 < run[step]["norms"] / run[step]["1 / sigma"] < 3 for run in failing for step in (0, 1, 5, 40))
    and all(run[40]["norms"] * run[40]["additions"] < 1e-3 for run in failing),
)

# %% [markdown]
# In numbers, the way down without a warm-up and with one. (In training the norms can let through a little more than $1/\sigma$: they have gains.)

# %% tags=["fold", "nbval-ignore-output"]
# @title The gradient's way down, seed 0
WAY = ["steps taken", "at the top", "× 24 norms", "× 24 additions", "= at the bottom", "for comparison: 24 factors 1/σ"]


def on_the_way(moment):
    """One row of the table, to two digits."""
    return [float(f"{moment[key]:.2g}") for key in ("top", "norms", "additions", "bottom", "1 / sigma")]


table(
    WAY,
    [
        [f"{name}, {step}", *on_the_way(run[step])]
        for name, run in (("failing", failing[0]), ("warm-up", warmed[0]))
        for step in (0, 1, 5, 40)
    ],
)
claim(
    "With a warm-up norms and additions together leave more than a tenth of the gradient after 40 steps, in each of three seeds.",
    all(run[40]["norms"] * run[40]["additions"] > 0.1 for run in warmed),
)
claim(
    "Without one, in each of three seeds: the norms leave less than a thousandth after 5 steps; after 40 the additions lengthen the gradient.",
    all(run[5]["norms"] < 1e-3 and run[40]["additions"] > 1 for run in failing),
)

# %% [markdown]
# Why do norms and additions balance before training? Let a sublayer's output have $q$ times the squared length of the stream, at right angles to it. Then $\sigma^2$ grows to $1 + q$, and the norm divides the squared gradient by $1 + q$. A random sublayer stretches gradients about as much as inputs, so the addition multiplies by about $1 + q$ again. How far does that carry? The ledger has twenty draws at three depths, with two ways of drawing the matrices: torch's, and Xavier's, whose entries have the variance 2 / (inputs + outputs) of their matrix (Glorot and Bengio 2010):

# %% tags=["fold"]
# @title The ledger: twenty draws at three depths
START = {"torch": "torch's initial values", "xavier": "Xavier's"}
DEPTHS = (12, 24, 48)
ratio = {
    (placement, values): [
        sorted(ledger.values("first-over-last", f"{placement}, {values}, {layers} layers", "ratio"))
        for layers in DEPTHS
    ]
    for placement in ("post-ln", "pre-ln")
    for values in START
}
table(
    ["first layer over last: median of 20 (5th to 16th)", *(f"{N} layers" for N in DEPTHS)],
    [
        [
            f"{PLACEMENTS[placement]}, {START[values]}",
            *(f"{(r[9] + r[10]) / 2:.2f} ({r[4]:.2f} to {r[15]:.2f})" for r in draws),
        ]
        for (placement, values), draws in ratio.items()
    ],
)
middles = {case: [(r[9] + r[10]) / 2 for r in draws] for case, draws in ratio.items()}
claim(
    "Post-LN with Xavier's values: the median is below 1 and falls with depth, by less than a factor of 5 from 12 to 48 layers; single draws scatter more, with 48 layers more than fivefold.",
    1 > middles["post-ln", "xavier"][0] > middles["post-ln", "xavier"][1] > middles["post-ln", "xavier"][2]
    and middles["post-ln", "xavier"][0] < 5 * middles["post-ln", "xavier"][2]
    and ratio["post-ln", "xavier"][2][-1] > 5 * ratio["post-ln", "xavier"][2][0],
)
claim(
    "In Pre-LN it is the first layers that get more, and the more so the deeper the network.",
    all(1 < middles["pre-ln", values][0] < middles["pre-ln", values][2] for values in START),
)

# %% [markdown]
# So Post-LN's gradient shrinks towards the first layer, mildly, and more with depth. It does not vanish. What did Xiong et al. (2020) prove? Their theorem 1 bounds the gradient of the *last* layer: $O(D \sqrt{\ln D})$ in Post-LN at any depth, $O(D \sqrt{\ln D / N})$ in Pre-LN. Large gradients near the output are their reason for small first steps. The ledger, with Xavier's values as in their theory:

# %% tags=["fold"]
# @title The ledger: the last layer's gradient by depth
def last_gradient(residual, layers):
    """Of the last layer's feed-forward matrix, mean over the seeds."""
    row = f"gradients, {residual}, xavier, {layers} layers"
    gradients = ledger.values("gradient-norms", row, "feed-forward")
    return sum(by_layer[-1] for by_layer in gradients) / len(gradients)


last = {
    residual: [last_gradient(residual, layers) for layers in (6, 12, 24)]
    for residual in ("post-ln", "pre-ln")
}
table(
    ["gradient of the last layer", "6 layers", "12 layers", "24 layers"],
    [[PLACEMENTS[name], *(f"{value:.2f}" for value in by_depth)] for name, by_depth in last.items()],
)
claim(
    "From 6 to 24 layers it falls in Pre-LN to 0.5 to 0.65 of its size (theory: 1/2); in Post-LN it does not fall.",
    0.5 < last["pre-ln"][2] / last["pre-ln"][0] < 0.65 and last["post-ln"][2] > last["post-ln"][0],
)

# %% [markdown]
# Our last layers behave as the theorem says. What does not carry over is the step from it to the lower layers: in their figures Post-LN's gradients grow strongly from bottom to top, in ours a little. Task and size differ.

# %% [markdown] tags=["deeper"]
# ### Are queries and keys worse off than values?
#
# Write $u_j$ for the values ($v$ is Adam's). They enter an output as a weighted mean: $o_i = \sum_j a_{ij} u_j$, so the gradient $g_i$ of output $i$ reaches $u_j$ as $a_{ij}\, g_i$. Queries and keys act through the softmax, whose Jacobian is $\mathrm{diag}(a) - a a^\top$. For the score $e_{ij}$:
#
# $$ \frac{\partial L}{\partial e_{ij}} = a_{ij} \Big( g_i \cdot u_j - \sum_k a_{ik}\, g_i \cdot u_k \Big) = a_{ij}\; g_i \cdot (u_j - o_i) . $$
#
# What counts is how much a value *differs from the mean* that the query got. If all values are alike, as in section 2 after one step, queries and keys get nothing, whatever $g$ is: attention has nothing to choose from, and the model cannot repair itself there. How sharp is this? Mix a common vector into all places, so that a share of the squared length is common. Where the share is 0, the gradient of $W_q$ is about 0.6 times as long as that of $W_v$:


# %%
def query_over_value(share, seed):
    """Gradient of W_q relative to that of W_v, for inputs with a common part."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(D, 4)
    common_part, own = torch.randn(1, 1, D), torch.randn(8, 16, D)
    mixed = share**0.5 * common_part + (1 - share) ** 0.5 * own
    (layer(mixed) * torch.randn(8, 16, D)).sum().backward()
    query, _, value = layer.in_proj_weight.grad.chunk(3)
    return (query.norm() / value.norm()).item()


shares = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
ratios = [sum(query_over_value(share, s) for s in range(5)) / 5 for share in shares]

# %% tags=["fold"]
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
# And in a whole model? The ledger's six layers, before and after 150 steps of training (ReZero's matrices have no gradient at all before its first step):

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
        [PLACEMENTS[residual], taken, f"{middle:.2f} ({low:.2f} to {high:.2f})"]
        for (residual, taken), (middle, low, high) in projections.items()
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
# So the imbalance is real. Is it the reason for failure? Liu et al. (2020a, section 3) say no: an optimizer that divides each gradient by its own size evens it out (section 3), in our model too. It is often given as one reason why Transformers are trained with Adam.

# %% tags=["fold"]
# @title Unequal gradients, equal steps
torch.manual_seed(0)
fresh = PostLN()
optimizer = torch.optim.Adam(fresh.parameters(), lr=0.01)
loss_on(fresh, *examples(torch.Generator().manual_seed(0))).backward()
packed = fresh.blocks[0].attend.in_proj_weight  # (3 D, D): queries, keys, values
before = packed.detach().clone()
optimizer.step()
grads = [part.abs().mean().item() for part in packed.grad.chunk(3)]
steps = [part.abs().mean().item() for part in (packed.detach() - before).chunk(3)]
claim(
    "In the first layer the gradients of the values' matrix are more than twice those of the queries' and the keys'; Adam's first step moves all three by the learning rate, within 1 %.",
    grads[2] > 2 * max(grads[:2]) and all(abs(size / 0.01 - 1) < 0.01 for size in steps),
    gradients=grads,
    steps=steps,
)

# %% [markdown] tags=["deeper"]
# ### Are samples all that Adam lacks?
#
# After one gradient $v$ is a guess from one sample. How bad a guess? Let $\psi = 1/\sqrt{\hat v}$ be the factor by which Adam multiplies. If gradients are noise of variance 1, $\psi$ should be 1. Let 4,000 weights see such noise:

# %%
noise = torch.randn(4000, 100, generator=torch.Generator().manual_seed(0)).double()
beta2, v, scatter = 0.999, torch.zeros(4000, dtype=torch.float64), {}
for t in range(1, 101):
    v = beta2 * v + (1 - beta2) * noise[:, t - 1] ** 2
    psi = ((1 - beta2**t) / v).sqrt()
    scatter[t] = psi.var().item()
for t in (1, 2, 5, 10, 100):
    print(f"after {t:3} gradients the variance of psi is {scatter[t]:.3g}")

# %% tags=["fold"]
# @title The scatter of the adaptive factor
claim(
    "After one gradient the adaptive factor scatters more than a thousand times as much as after 10.",
    scatter[1] > 1000 * scatter[10],
)

# %% [markdown]
# (After one or two gradients the true variance is infinite, because $v$ may be as small as it likes; those two numbers would be others in another draw.) RAdam turns this scatter into the factor $r_t$ of exercise 11.2: it shortens the step so that it scatters no more than it will in the end.

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
# So after its first five steps, which are not adaptive and may be long, RAdam is a warm-up whose length follows from the optimizer's memory. Ma and Yarats (2021) found a plain linear warm-up of $2/(1-\beta_2)$ steps to do as well (2,000 for 0.999; not measured here).
#
# **Where its three steps come from.** (1) A moving average of $t$ numbers with weights $\beta_2^{t-i}$ has its centre of mass, counted from the newest number as 1, at $\frac{1}{1-\beta_2} - \frac{t \beta_2^t}{1 - \beta_2^t}$. A plain mean of $\rho$ numbers has it at $(\rho + 1)/2$. Set equal, that is $\rho_t$. (2) For normal gradients $\psi^2$ is $\rho$ over a $\chi^2_\rho$ variable. Its variance is finite for $\rho > 4$ only, and to first order $\mathrm{Var}[\psi] \approx \frac{\mathrm{Var}[\psi^2]}{4\,\mathrm{E}[\psi^2]} = \frac{\rho}{2(\rho-2)(\rho-4)}$. (3) is as in exercise 11.2. In code:

# %%
show_source(rectification, radam_update)

# %% tags=["fold"]
# @title The formula against the measured scatter
def predicted(t, beta2=0.999):
    """The paper's variance of psi after t gradients."""
    rho = 2 / (1 - beta2) - 1 - 2 * t * beta2**t / (1 - beta2**t)
    return rho / (2 * (rho - 2) * (rho - 4))


claim(
    "From 20 gradients on the paper's approximation of this scatter is right within 40 %, and always on the safe side.",
    all(1 < predicted(t) / scatter[t] < 1.4 for t in range(20, 101)),
)

# %% [markdown]
# Mind the first five steps: they are *gradient descent with momentum at Adam's learning rate*. With gradients of size 0.001 they hardly move, with gradients of size 100 they may jump. A factor that starts at 0 does not make all first steps small.
#
# **Would a full $v$ be enough?** Liu et al. (2020b) tested it: for the first 2,000 gradients they only filled $v$ and held weights and momentum; from then on their translation model trained without a warm-up. We hold our Post-LN for 60 gradients, by a rate of 0, and then give it its high rate for 60 steps:

# %%
def held_back(s):
    return 0.0 if s < 60 else 1.0  # v is filled first


_, losses_held = train(PostLN, held_back)

# %% tags=["fold"]
# @title Does a well-filled v save it?
claim(
    "In this run, with $v$ from 60 gradients, Post-LN is still no better than a blind guess after 60 steps.",
    final_loss(losses_held) > math.log(16) - 0.05,
    loss=f"{final_loss(losses_held):.2f} nats",
)

# %% [markdown]
# No. At this rate well-estimated steps are too large as well, as after the jumps of section 4. (This is one seed, 60 gradients are not 2,000, the momentum fills too, and our model is not theirs.) And Xiong et al. (2020, section 3) found a warm-up essential for Adam *and for SGD*, which has no $v$.

# %% [markdown] tags=["deeper"]
# ### Which schedule did the original Transformer use?
#
# An **inverse square root**: after the warm-up the factor is $\sqrt{w/(s+1)}$, which needs no last step. *Noam*, as that schedule is called, has a height of its own: $(D w)^{-1/2}$, so 0.0007 for $D = 512$ and $w = 4000$. (The cosine is Loshchilov and Hutter's, 2017. Goyal et al. 2017 used the linear warm-up for large batches, whose rate they raised in proportion to the batch. What the fall is worth was not measured in this chapter, nor was the batch size varied. For large corpora Popel and Bojar 2018 found that larger batches learn faster and better; for small ones Atrio and Popescu-Belis 2022 found the opposite. The rate has to be chosen again for each.)

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

# %% [markdown] tags=["deeper"]
# ### Why is the peak of my cosine too low?
#
# The `CosineWarmupScheduler` of [P. Lippe's tutorial 6](https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/tutorial6/Transformers_and_MHAttention.html) computes the cosine over the whole training and multiplies it by $s/w$ during the warm-up. So the first step has the factor 0 and changes nothing (in `transformers` too), and the peak stays below 1:


# %%
def multiplied(step, warmup, total):
    wave = 0.5 * (1 + math.cos(math.pi * step / total))
    return wave * min(1, step / warmup)


for warmup in (60, 500):  # of 1000 steps
    for name, schedule in (("wrong", multiplied), ("repaired", optim.cosine_schedule)):
        factors = [schedule(step, warmup, 1000) for step in range(1000)]
        print(warmup, name, f"first {factors[0]:.3f}, highest {max(factors):.3f}")

# %% [markdown]
# With a short warm-up that is harmless, until somebody lengthens it and wonders.

# %% [markdown] tags=["deeper"]
# ### How do you train with a batch that does not fit?
#
# By accumulation, as in exercise 11.7: one `backward()` for each micro-batch, then one step. But what is divided by what? Two micro-batches, one with 6 losses and one with 2:

# %%
first_losses, second_losses = torch.tensor([1.0] * 6), torch.tensor([5.0] * 2)
print("mean of all 8:", torch.cat([first_losses, second_losses]).mean().item())
print("mean of the means:", ((first_losses.mean() + second_losses.mean()) / 2).item())

# %% [markdown]
# A mean of means gives the two examples of the small micro-batch three times the weight of the others. Micro-batches of real text differ in their number of tokens, so this happens in every step. Only sums can be added.
#
# **Clipping before the division** is the error that lives here. The length that is compared with $c$ must be that of the gradient that the step uses. If a sum is clipped first and divided by its count afterwards, or if a mixed-precision scaler has not yet taken out its factor, the threshold means something else:


# %%
def length_used(clip_first):
    weight = nn.Parameter(torch.ones(4))
    (weight * torch.arange(256.0).view(64, 4)).sum().backward()  # 64 examples
    if clip_first:  # wrong
        nn.utils.clip_grad_norm_([weight], 1.0)
    weight.grad /= 64
    if not clip_first:  # repaired
        nn.utils.clip_grad_norm_([weight], 1.0)
    return weight.grad.norm().item()


print(f"wrong: {length_used(True):.4f} (1/64), repaired: {length_used(False):.4f}")

# %% [markdown]
# With Adam nothing seems to happen (section 8), but every gradient is clipped, and all batches weigh the same.

# %% [markdown] tags=["deeper"]
# ### How much does depth amplify a small change?
#
# Liu et al. (2020a) hold this amplification, not unbalanced gradients, to be the root of the trouble. Change every matrix by 1 % of its size and compare the outputs:


# %%
def amplification(placement, depth, seed):
    """Squared relative change of the output when each matrix changes by 1 %."""
    torch.manual_seed(seed)
    model = {"post-ln": PostLN, "pre-ln": PreLN}[placement](depth)
    stream = torch.randn(4, 16, D)
    last_norm = model.output[0] if placement == "pre-ln" else nn.Identity()
    stack = nn.Sequential(model.blocks, last_norm)
    with torch.no_grad():
        before = stack(stream)
        for p in stack.parameters():
            if p.ndim >= 2:
                p += 0.01 * p.std() * torch.randn_like(p)
        return ((stack(stream) - before).norm() / before.norm()).square().item()


depths = (2, 4, 8, 16, 32)
change = {
    name: [sum(amplification(name, n, s) for s in range(5)) / 5 for n in depths]
    for name in ("post-ln", "pre-ln")
}
figures.change_by_depth(depths, change)

# %% tags=["fold"]
# @title How it grows with depth
grown = {placement: by_depth[-1] / by_depth[0] for placement, by_depth in change.items()}
claim(
    "At 2 layers the two placements amplify a change alike, within 20 %.",
    abs(change["post-ln"][0] / change["pre-ln"][0] - 1) < 0.2,
)
claim(
    "From 2 to 32 layers, 16 times as deep, Post-LN's squared change grows by more than 16, Pre-LN's by less.",
    grown["post-ln"] > 16 > grown["pre-ln"],
    **{"Post-LN": f"{grown['post-ln']:.0f} times", "Pre-LN": f"{grown['pre-ln']:.0f} times"},
)

# %% [markdown]
# Their theory says $O(N)$ for Post-LN and $O(\log N)$ for Pre-LN, in their model of a layer. Our layers, with torch's initial values, grow faster than either; the order of the two is theirs.

# %% [markdown] tags=["deeper"]
# ### Can one do without norms?
#
# **ReZero** (Bachlechner et al. 2021): $x \leftarrow x + \alpha f(x)$, with one learned $\alpha$ in each branch that starts at 0. The library's `EncoderLayer` has all three placements by name (`residual="pre-ln"` is your `PreLNBlock`, with dropout and masks). With $\alpha = 0$ everywhere, which weights have a gradient in the first step?

# %%
torch.manual_seed(0)
layers = [EncoderLayer(D, 4, 4 * D, 0.0, residual="rezero") for _ in range(12)]
encoder = TransformerEncoder(layers)
embedding = TokenEmbedding(16, D, Sinusoidal(D))
identity = nn.Sequential(embedding, encoder, nn.Linear(D, 16))
optimizer = torch.optim.Adam(identity.parameters(), lr=0.01, fused=True)
draws, rezero_losses, largest = torch.Generator().manual_seed(0), [], []
with torch.no_grad():
    unchanged = torch.equal(encoder(embedding(fixed[0])), embedding(fixed[0]))
for _ in tqdm(range(120), leave=False):
    loss = loss_on(identity, *examples(draws))
    optimizer.zero_grad()
    loss.backward()
    steepest = {"alphas": 0.0, "matrices": 0.0}
    for p in encoder.parameters():
        kind = "alphas" if p.ndim == 0 else "matrices"
        steepest[kind] = max(steepest[kind], p.grad.abs().max().item())
    largest.append(steepest)
    optimizer.step()
    rezero_losses.append(loss.item())

# %% tags=["fold"]
# @title What has a gradient, and where it ends
claim(
    "In this run twelve layers of ReZero start as the identity, exactly. In the first step only the alphas have a gradient, and every matrix has exactly 0; after one step the matrices have one too.",
    unchanged and largest[0]["matrices"] == 0 < largest[0]["alphas"] and largest[1]["matrices"] > 0,
)
claim(
    "In this run ReZero learns to reverse at the high rate, without warm-up and without a norm: below 0.5 nats after 120 steps.",
    final_loss(rezero_losses) < 0.5,
    **{"ReZero": f"{final_loss(rezero_losses):.2f} nats", "Pre-LN": f"{final_loss(pre_losses):.2f} nats"},
)

# %% [markdown]
# The reason: the gradient of $f$'s weights is $\alpha$ times something, the gradient of $\alpha$ is $f(x)$ times something. Adam moves each $\alpha$ by $\pm\eta$, and the layers fade in.
#
# **T-Fixup** (Huang et al. 2020) leaves out norms *and* warm-up, and makes the initial values smaller with depth. It takes Xavier's values for all matrices but the embeddings, which are normal; then those of values, output projections and feed-forward networks times $0.67\, N^{-1/4}$ in the encoder and $(9N)^{-1/4}$ in the decoder, and all embeddings times $(9N)^{-1/4}$. The factor is chosen so that one step of Adam changes the output by about the same amount at every depth. A Transformer without norms is ReZero with $\alpha = 1$ from the start. Its stream, from bottom to top:


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
        ["Xavier", *(f"{float(f'{value:.1g}'):,.0f}" for value in growth[False])],
        ["Xavier, T-Fixup's factor", *(f"{value:.1f}" for value in growth[True])],
    ],
)
claim(
    "In this draw, without norms and without the factor, the stream of 32 layers grows more than a thousandfold; with the factor it grows by less than a fifth, at every depth.",
    growth[False][-1] > 1000 and max(growth[True]) < 1.2,
)

# %% [markdown] tags=["deeper"]
# ### Does the story hold on a real text?
#
# Reversed letters and a toy language are not much. The ledger has a model with 12 layers of width 64 that reads Shakespeare's characters, 300 steps at a rate of 0.002. (The rate was chosen on another seed, as one at which Post-LN fails without a warm-up.) Beside the loss it holds the length of Adam's steps: how far a weight moves on average, as a fraction of the rate.

# %%
figures.deep_start("deep-start")

# %% tags=["fold"]
# @title The ledger: the same story
TEXT_ROWS = ("Post-LN, Adam, warm-up", "Post-LN, RAdam", "Pre-LN, Adam")


def last_step_size(row):
    """Mean absolute change of a weight in the last ten steps over the rate, one for each seed."""
    return [run[-1] for run in ledger.curves("deep-start", row, "step_size")]


stuck_loss = ledger.values("deep-start", "Post-LN, Adam", "loss")
others_loss = [loss for row in TEXT_ROWS for loss in ledger.values("deep-start", row, "loss")]
claim(
    "In every recorded seed: with plain Adam Post-LN ends above 3.2 nats per character, and a step is then less than a fiftieth of the rate; with a warm-up, with RAdam or with Pre-LN it ends below 2.8, and a step has more than three hundredths.",
    min(stuck_loss) > 3.2
    and max(others_loss) < 2.8
    and max(last_step_size("Post-LN, Adam")) < 0.02
    and min(size for row in TEXT_ROWS for size in last_step_size(row)) > 0.03,
    seeds=len(stuck_loss),
)

# %% [markdown]
# It holds. Plain Adam makes long steps at first, then hardly any: these are the shrinking updates of Huang et al. (2020), whose model did not recover either. With a warm-up they shrink too, and come back. RAdam's shrink nearly as far, and come back too. (One size and one rate; at half of it, on that other seed, Post-LN learned without help.)

# %% [markdown] tags=["deeper"]
# ### What else is in the grid?
#
# The curves and all numbers: mean over three seeds, in brackets the least and the greatest. A seed is *stuck* when it ends no better than a table of word pairs, which never looks at the source.

# %%
figures.grid_of_settings("training-grid")

# %% tags=["fold"]
# @title 4 layers in numbers
def with_range(values):
    """Mean, least and greatest."""
    return f"{mean(values):.3f} ({min(values):.2f} to {max(values):.2f})"


def numbers_of(layers):
    """The table of one depth."""
    table(
        [f"{layers} layers", "optimizer", "warm-up", "accuracy", "loss (nats)", "stuck"],
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


numbers_of(4)
claim(
    "At 4 layers no trick helps: Post-LN with plain Adam has the best mean of all twelve settings.",
    max((key for key in grid if key[3] == 4), key=lambda key: mean(grid[key]))
    == ("post-ln", "no warm-up", "Adam", 4),
)
claim(
    "With Adam, ReZero trains at both depths without warm-up, but stays behind Pre-LN, and a warm-up makes it worse (lower mean).",
    all(
        mean(grid["rezero", "no warm-up", "Adam", layers])
        < mean(grid["pre-ln", "no warm-up", "Adam", layers])
        and mean(grid["rezero", "warm-up", "Adam", layers])
        < mean(grid["rezero", "no warm-up", "Adam", layers])
        for layers in (4, 12)
    ),
)

# %% tags=["fold"]
# @title 12 layers in numbers
numbers_of(12)
claim(
    "With Adam and 12 layers Pre-LN does not need a warm-up, and yet gains from it at this rate and at twice this rate, in every seed.",
    min(grid["pre-ln", "no warm-up", "Adam", 12]) > 0.75
    and all(
        with_it > without
        for place in (2, 3)  # the rates 0.005 and 0.01
        for with_it, without in zip(
            by_rate["pre-ln", "warm-up"][place], by_rate["pre-ln", "no warm-up"][place], strict=True
        )
    ),
)
other_keys = [key for key in grid if key[2] == "Adam" and key != failed]
behind = [mean(grid[key]) - mean(grid[key[0], key[1], "RAdam", key[3]]) for key in other_keys]
claim(
    "At the grid's rate RAdam is better than Adam in the failing setting only; in the eleven others it is not ahead by even 1 percentage point, and in ten it is behind by more than 5. At step 240 it takes about a third of Adam's step.",
    min(behind) > -0.01
    and sum(words > 0.05 for words in behind) == 10
    and 0.3 < rectification(240, 0.999) < 0.36,
    part_of_the_step=rectification(240, 0.999),
)

# %% [markdown]
# And the four rates of section 7:

# %% tags=["fold"]
# @title Four rates, with and without a warm-up
ahead = [
    pre_ln - post_ln
    for post_ln, pre_ln in zip(
        by_rate["post-ln", "no warm-up"][1], by_rate["pre-ln", "no warm-up"][1], strict=True
    )
]
at_lowest = {
    residual: [
        without - with_it
        for without, with_it in zip(
            by_rate[residual, "no warm-up"][0], by_rate[residual, "warm-up"][0], strict=True
        )
    ]
    for residual in ("post-ln", "pre-ln")
}
claim(
    "Each at its best rate, a warm-up is worth less than 5 percentage points of accuracy to Post-LN and about 1, not in every seed, to Pre-LN; and Post-LN with warm-up is behind Pre-LN with warm-up by less than 5. Without warm-up, at 0.0025, Pre-LN is ahead of Post-LN in every seed, by 7 points on average.",
    0.03 < best["post-ln", "warm-up"][0] - best["post-ln", "no warm-up"][0] < 0.05
    and 0.005 < best["pre-ln", "warm-up"][0] - best["pre-ln", "no warm-up"][0] < 0.015
    and any(a < b for a, b in zip(by_rate["pre-ln", "warm-up"][2], by_rate["pre-ln", "no warm-up"][1], strict=True))
    and best["pre-ln", "warm-up"][1] == 0.005
    and best["pre-ln", "no warm-up"][1] == 0.0025
    and best["pre-ln", "warm-up"][0] - best["post-ln", "warm-up"][0] < 0.05
    and min(ahead) > 0
    and 0.065 < mean(ahead) < 0.075,
    ahead=ahead,
)
claim(
    "At the lowest rate a warm-up costs each placement 3 to 5 points on average, and lowers every seed.",
    all(min(costs) > 0 and 0.03 < mean(costs) < 0.05 for costs in at_lowest.values()),
    **{f"{PLACEMENTS[residual]}, cost at 0.001": costs for residual, costs in at_lowest.items()},
)

# %% [markdown]
# Is it RAdam that is slow, or its rate that is low? The ledger has three times the rate, in the setting where Adam was best at 4 layers, Post-LN without a warm-up:

# %% tags=["fold"]
# @title The ledger: RAdam at three times the rate
four = {kind: grid["post-ln", "no warm-up", kind, 4] for kind in ("Adam", "RAdam")}
tripled = ledger.values("training-radam", "post-ln, no warm-up, RAdam, 4 layers, rate 0.015", "accuracy")
claim(
    "With three times the rate every seed of RAdam beats every seed at the grid's rate by more than 5 percentage points, and the mean is less than 8 below Adam's.",
    min(tripled) > max(four["RAdam"]) + 0.05 and mean(tripled) > mean(four["Adam"]) - 0.08,
    RAdam_at_three_times_the_rate=mean(tripled),
    RAdam=mean(four["RAdam"]),
    Adam=mean(four["Adam"]),
)

# %% [markdown]
# So in this setting most of what RAdam loses is the rate, not the method; RAdam's other settings were not tried at a higher rate. Adam's own best rate at 4 layers was not looked for, nor was RAdam's.
#
# **What agrees with the papers, and what does not.**
#
# - *Warm-up is essential* (Xiong et al. 2020): for deep Post-LN at a high rate, yes. At 4 layers, no. At half the grid's rate, no.
# - *Pre-LN needs no warm-up:* right in that it trains at each of four rates; at the two higher ones it is better with one, at 0.01 by 12 percentage points, at the two lower ones worse on average. *Pre-LN is worse in the end* (Liu et al. 2020a): not here, not in 240 steps.
# - *RAdam makes warm-up superfluous:* right, it saves the failing setting. But it *is* a warm-up, one of thousands of steps with $\beta_2$ = 0.999.
# - *ReZero converges faster:* on reversed words it learned fast; on translation it was behind. One task is not enough, and 240 steps are few: its curves still rise.
#
# The first 20 steps of two settings, live; the ledger's numbers were made by the same function:

# %%
live = {}
for residual in tqdm(("post-ln", "pre-ln"), leave=False):
    _, history = tricks.train_one(residual, 0, "Adam", 12, seed=0, steps=20, every=20)
    live[residual] = history[-1]["loss"]

# %% tags=["fold"]
# @title Live against the ledger
recorded_loss = {
    residual: ledger.curves("training-grid", f"{residual}, no warm-up, Adam, 12 layers", "loss")[0][1]
    for residual in live
}
claim(
    "Post-LN and Pre-LN: the live loss after 20 steps is the ledger's, within a tenth.",
    all(abs(live[residual] / recorded_loss[residual] - 1) < 0.1 for residual in live),
    **{
        "Post-LN live": f"{live['post-ln']:.2f} nats",
        "Post-LN recorded": f"{recorded_loss['post-ln']:.2f}",
        "Pre-LN live": f"{live['pre-ln']:.2f}",
        "Pre-LN recorded": f"{recorded_loss['pre-ln']:.2f}",
    },
)

# %% [markdown] tags=["deeper"]
# ### What do label smoothing and bfloat16 change?
#
# Two options for the loop of section 9; each changes one line. **Label smoothing** does not ask for certainty: a part $\epsilon$ of the target, usually 0.1, is shared by all classes (Vaswani et al. 2017, section 5.4). With four classes the right one should get 0.925:

# %%
scores, right_class = torch.tensor([[4.0, 1.0, 1.0, 1.0]]), torch.tensor([0])
soft_target = 0.9 * F.one_hot(right_class, 4) + 0.1 / 4  # 0.925, 0.025, 0.025, 0.025
by_soft_target = -(soft_target * scores.log_softmax(-1)).sum()
by_torch = F.cross_entropy(scores, right_class, label_smoothing=0.1)
print(f"by hand: {by_soft_target:.3f}, torch: {by_torch:.3f}")

# %% [markdown]
# **bfloat16** is a number of 16 bits, with the range of float32 and fewer digits. Inside `torch.autocast("cpu", torch.bfloat16)` (or `"cuda"`) the matrix products use it; weights, gradients and Adam's averages stay as they are.
#
# What does each do? The ledger has a small GPT (4 layers, width 128) on Shakespeare's characters, 400 steps, all else equal. A model is *overconfident* if the probability of its first choice is on average higher than its accuracy. The loss is measured without smoothing:

# %% tags=["fold"]
# @title The ledger: smoothing and bfloat16
PRECISIONS, SMOOTHINGS = ("float32", "bfloat16"), ("0", "0.1")


def judged(precision, smoothing, metric):
    """One number for each seed."""
    return ledger.values("smoothing-bf16", f"{precision}, smoothing {smoothing}", metric)


def added(metric, before, after):
    """What a change adds, one number for each seed."""
    return [b - a for a, b in zip(judged(*before, metric), judged(*after, metric), strict=True)]


table(
    ["", "smoothing", "loss (nats)", "accuracy", "first choice's probability", "a step (ms)", "seeds"],
    [
        [
            precision,
            smoothing,
            f"{mean(judged(precision, smoothing, 'valid_loss')):.2f}",
            f"{mean(judged(precision, smoothing, 'accuracy')):.1%}",
            f"{mean(judged(precision, smoothing, 'confidence')):.1%}",
            f"{1000 * mean(judged(precision, smoothing, 'seconds_per_step')):.0f}",
            len(judged(precision, smoothing, "accuracy")),
        ]
        for precision in PRECISIONS
        for smoothing in SMOOTHINGS
    ],
)
smoothed = [((precision, "0"), (precision, "0.1")) for precision in PRECISIONS]
halved = [(("float32", smoothing), ("bfloat16", smoothing)) for smoothing in SMOOTHINGS]
claim(
    "In every recorded seed, with either precision: smoothing changes the accuracy by less than 1 point, makes the first choice's probability more than 2 points lower than the accuracy, and raises the loss by more than 0.02 nats.",
    all(abs(value) < 0.01 for pair in smoothed for value in added("accuracy", *pair))
    and all(max(judged(precision, "0.1", "overconfidence")) < -0.02 for precision in PRECISIONS)
    and all(value > 0.02 for pair in smoothed for value in added("valid_loss", *pair)),
)
claim(
    "bfloat16 changes accuracy by less than 1 point and loss by less than 0.03 nats; at this size in no seed is a step more than 10 % faster.",
    all(abs(value) < 0.01 for pair in halved for value in added("accuracy", *pair))
    and all(abs(value) < 0.03 for pair in halved for value in added("valid_loss", *pair))
    and all(
        fast > 0.9 * slow
        for pair in halved
        for slow, fast in zip(*(judged(*setting, "seconds_per_step") for setting in pair), strict=True)
    ),
)

# %% [markdown]
# Smoothing cures overconfidence, and this model had next to none: after 400 steps it has seen less than a third of the text once. So it becomes *under*confident, and the loss rises. bfloat16 is as good here, after 400 steps. Its time depends on the processor and on the sizes. This processor even has matrix units for it, but at width 128 nothing is gained. So time a step before you switch it on.

# %% [markdown] tags=["deeper"]
# ### What do today's large models add?
#
# Three things, none of which we have measured. Many shorten Adam's memory to $\beta_2 = 0.95$ (GPT-3: Brown et al. 2020, appendix B; LLaMA: Touvron et al. 2023, section 2.3): 20 steps instead of 1000, so that a spike is soon forgotten. Many normalise queries and keys before the dot product, so that the scores do not grow with their lengths (**QK-norm**: Henry et al. 2020; against divergence in a vision Transformer with 22 billion parameters, Dehghani et al. 2023; since then in OLMo 2 and Qwen3). And some replace Adam, for the hidden matrices, by **Muon** (Jordan et al. 2024): it keeps only a momentum, and makes each matrix's step nearly orthogonal, so that all directions move equally far. Embeddings, output layer, gains and biases stay with AdamW. Liu et al. (2025) report about half of AdamW's compute for the same loss. torch has `torch.optim.Muon`.
