"""Checks of chapter 12's exercises: masking, a loss, a step of pre-training, WordPiece, parameters, search.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names the
one it recognises. The references are written with loops. Notebook: 12.
"""

import math

import torch
import torch.nn.functional as F

from course_lib.exercises import (
    Written,
    Wrong,
    _StudentError,
    check,
    close,
    expect_number,
    expect_tensor,
    expect_type,
    ready_made,
)


def _two(answer, names):
    """An answer of two things."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Wrong(f"wanted a tuple ({', '.join(names)}), got {type(answer).__name__}")
    return answer


# --- exercise 12.1: masking -----------------------------------------------------------------

IGNORE, MASK = -100, 4


def _masked(
    ids, maskable, choose, fate, others, every=False, below=0.8, since=0.9, swap=False, early=False, mask_id=MASK
):
    """The reference with a loop, and the mistakes that change a bound."""
    inputs, targets = ids.clone(), torch.full_like(ids, IGNORE)
    for place in torch.cartesian_prod(*map(torch.arange, ids.shape)).tolist():
        b, t = place
        if (maskable[b, t] or every) and choose[b, t] < 0.15:
            targets[b, t] = ids[b, t]
            if fate[b, t] < below:
                inputs[b, t] = others[b, t] if swap else mask_id
            elif (fate[b, t] < 0.9) if early else (fate[b, t] >= since):
                inputs[b, t] = mask_id if swap else others[b, t]
    return inputs, targets


@check(
    hints=(
        "First decide which positions are chosen, then what becomes of each; the targets need only the first.",
        "chosen = maskable and choose < 0.15; of these: fate < 0.8 the mask, >= 0.9 the other token, else unchanged",
        "torch.where(condition, a, b) twice for the inputs; ids.masked_fill(~chosen, -100) for the targets",
    )
)
def hide(student):
    """Exercise 12.1: 80 % mask, 10 % another token, 10 % unchanged, from given draws."""
    g = torch.Generator().manual_seed(0)
    B, T = 5, 40
    ids = torch.randint(5, 30, (B, T), generator=g)
    maskable = torch.arange(T).expand(B, T) < torch.tensor([40, 31, 22, 13, 35])[:, None]
    ids[:, 0], ids[~maskable] = 2, 1
    maskable = maskable & (ids > 4)
    choose, fate = torch.rand(2, B, T, generator=g)
    choose = choose / 3  # many places are chosen: every case occurs
    others = torch.randint(30, 50, (B, T), generator=g)
    answer = _two(student(ids, maskable, choose, fate, others, MASK), ("inputs", "targets"))
    inputs = expect_tensor(answer[0], (B, T), torch.int64, "inputs")
    targets = expect_tensor(answer[1], (B, T), torch.int64, "targets")
    draws = (ids, maskable, choose, fate, others)
    wanted, wanted_targets = _masked(*draws)
    if torch.equal(inputs, wanted) and torch.equal(targets, wanted_targets):
        _on_the_bounds(student)
        return
    _explain_hidden(inputs, targets, draws)


def _on_the_bounds(student):
    """Draws that stand on a bound or a little below it, and another id of [MASK]."""
    ids, others = torch.arange(10, 22).view(2, 6), torch.arange(30, 42).view(2, 6)
    choose = torch.tensor([[0.15, 0.1499, 0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1, 0.1499, 0.15]]).double()
    choose[0, 0] = choose[1, 5] = 0.15  # as Python writes it
    fate = torch.tensor([0.0, 0.0, 0.8, 0.799, 0.9, 0.899], dtype=torch.float64).expand(2, 6)
    draws = (ids, torch.ones(2, 6, dtype=torch.bool), choose, fate, others)
    inputs, targets = student(*draws, 3)
    wanted, wanted_targets = _masked(*draws, mask_id=3)
    if torch.equal(inputs, _masked(*draws)[0]):
        raise Wrong("called with mask_id = 3, the inputs hold 4: use the id that was passed")
    if not torch.equal(inputs, wanted) or not torch.equal(targets, wanted_targets):
        raise Wrong("right for most draws, wrong for some on a bound or near it: a token is chosen below 0.15, not at "
                    "0.15, and so with 0.8 and 0.9")  # fmt: skip


def _explain_hidden(inputs, targets, draws):
    """Say which usual mistake was made."""
    ids, maskable, choose, fate, _ = draws
    wanted, wanted_targets = _masked(*draws)
    chosen = maskable & (choose < 0.15)
    anywhere = _masked(*draws, every=True)
    if torch.equal(inputs, ids):
        raise Wrong("nothing is hidden: the inputs are the ids")
    if torch.equal(inputs, anywhere[0]) or torch.equal(targets, anywhere[1]):
        raise Wrong("positions that are not maskable were chosen: special tokens and padding are never hidden")
    target_mistakes = {
        "the targets are the ids everywhere; outside the chosen positions they must be -100": ids,
        "the targets are what the network reads, so the mask itself is to be predicted; they must be the old tokens": (
            wanted.masked_fill(~chosen, IGNORE)
        ),
        "only the masked positions have a target; those with another or the same token count as well": (
            ids.masked_fill(~(chosen & (fate < 0.8)), IGNORE)
        ),
        "a chosen token that stays as it is has no target; it must be predicted like the others": (
            ids.masked_fill(~(chosen & ((fate < 0.8) | (fate >= 0.9))), IGNORE)
        ),
        "the targets outside the chosen positions are 0, which is a token; F.cross_entropy leaves out -100": (
            ids.masked_fill(~chosen, 0)
        ),
    }
    for message, wrong in target_mistakes.items():
        if torch.equal(targets, wrong):
            raise Wrong(message)
    input_mistakes = {
        "all chosen tokens became the mask: 10 % should become another token, 10 % stay": _masked(*draws, below=1.1),
        "no chosen token stays as it is: between 0.8 and 0.9 nothing changes, and yours has the token of `others`": (
            _masked(*draws, since=0.8)
        ),
        "no chosen token stays as it is: between 0.8 and 0.9 nothing changes, and yours has the mask": (
            _masked(*draws, below=0.9)
        ),
        "no token becomes another one: from 0.9 on stands the token of `others`": _masked(*draws, since=1.1),
        "masks and other tokens have changed places: below 0.8 the mask": _masked(*draws, swap=True),
        "no chosen token became the mask: below 0.9 stand the tokens of `others`, over the masks too; they belong "
        "where fate is at least 0.9": _masked(*draws, below=0, early=True),
        "no chosen token became the mask: the tokens of `others` stand everywhere, written over the masks too; they "
        "belong where fate is at least 0.9": _masked(*draws, below=0, since=0),
        "the last two tenths have changed places: the token of `others` stands from 0.9 on, and between 0.8 and 0.9 "
        "nothing changes": _masked(*draws, early=True),
    }
    for message, wrong in input_mistakes.items():
        if torch.equal(inputs, wrong[0]):
            raise Wrong(message)
    if not torch.equal(targets, wanted_targets):
        raise Wrong("the targets are wrong: the old token where maskable and choose < 0.15, and -100 elsewhere")
    b, t = (inputs != wanted).nonzero()[0].tolist()
    place = (
        f"row {b}, position {t}: fate {fate[b, t]:.2f}, chosen: {bool(chosen[b, t])}, and the input is {inputs[b, t]}"
    )
    if _by_other_draws(inputs, draws):
        place += (
            "; each chosen token became the mask, the token of `others` or stayed, but not as its `fate` says: decide "
            "by `fate`, not by `choose` or a draw of your own"
        )
    raise Wrong(place)


def _by_other_draws(inputs, draws):
    """Whether each chosen position holds one of three things, the others their ids, and `fate` parts them nowhere."""
    ids, maskable, choose, fate, others = draws
    chosen = maskable & (choose < 0.15)
    kinds = {"mask": inputs == MASK, "other": inputs == others, "same": inputs == ids}
    if not (kinds["mask"] | kinds["other"] | kinds["same"])[chosen].all() or (inputs != ids)[~chosen].any():
        return False
    spans = [fate[chosen & kind] for kind in kinds.values()]
    if any(len(span) == 0 for span in spans):
        return False
    overlaps = [a.min() < b.max() and b.min() < a.max() for a, b in ((spans[0], spans[1]), (spans[0], spans[2]))]
    return all(overlaps)


# --- exercise 12.2: the loss ----------------------------------------------------------------


@check(
    hints=(
        "Which positions have a target? Only these count, in the sum and in the number that it is divided by.",
        "where = targets != -100; minus log_softmax of logits[where] (n, V) at targets[where] (n,); their mean",
        "boolean indexing (B, T, V)[(B, T)] gives (n, V); minus log_softmax at the targets, mean over n",
    )
)
def chosen_loss(student):
    """Exercise 12.2: the mean cross-entropy over the chosen positions alone."""
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 7, 11, generator=g, dtype=torch.float64)
    ids = torch.randint(0, 11, (3, 7), generator=g)
    chosen = torch.zeros(3, 7, dtype=torch.bool)
    chosen[[0, 0, 0, 0, 1, 2, 2], [1, 4, 5, 6, 2, 0, 5]] = True
    ids[0, 4] = 0  # token 0 is a token like others
    targets = ids.masked_fill(~chosen, IGNORE)
    try:
        answer = student(logits, targets)
    except _StudentError as error:
        cause = f"{type(error.__cause__).__name__}: {error.__cause__}".removesuffix(".")
        if "-100" not in cause:
            raise
        raise Wrong(f"{cause}. -100 was used as the id of a token; it says that nothing is asked here, "
                    "so leave these positions out (0 is a token like others)") from None  # fmt: skip
    got = expect_number(answer, "the loss")
    each = F.cross_entropy(logits.transpose(1, 2), targets.clamp(min=0), reduction="none")  # (B, T)
    wanted = each[chosen].mean().item()
    if close(got, wanted):
        small = expect_number(student(logits[1:2], targets[1:2]), "the loss of one row")
        if not close(small, each[1][chosen[1]].mean()):
            raise Wrong("right for 3 rows, wrong for 1: a size is written into the code")
        _can_be_learned_from(student, logits, targets)
        _stays_finite(student)
        name = ready_made.called(student, [((logits, targets), {})], torchs=("cross_entropy", "nll_loss"))
        if name:
            raise Wrong(f"right, but torch's {name} is used: write it from log-probabilities")
        return
    rows = torch.stack([e[c].mean() for e, c in zip(each, chosen, strict=True)])
    mistakes = {
        "the mean runs over all positions, those without target counted as token 0": each.mean(),
        "the right sum, divided by all positions: divide by the number of chosen positions, or the loss falls with "
        "their share": (each * chosen).mean(),
        "the number of chosen positions is right, the sum is not: it has those without target too, as token 0": (
            each.sum() / chosen.sum()
        ),
        "that is the sum; wanted is the mean over the chosen positions": each[chosen].sum(),
        "the mean of the rows' means: a row with one chosen position counts as much as one with four": rows.mean(),
        "a softmax was applied before F.cross_entropy, which applies its own: it wants logits, not probabilities": (
            F.cross_entropy(logits[chosen].softmax(-1), targets[chosen])
        ),
        "the sign is wrong: the loss is minus the log-probability": -each[chosen].mean(),
        "that is the mean of the logits at the targets, not of log-probabilities: a softmax is missing": (
            -logits[chosen].gather(1, targets[chosen][:, None]).mean()
        ),
        "the loss is divided by the number of rows": each[chosen].sum() / 3,
        "token 0 is left out where it is the answer: only -100 means that nothing is asked": each[targets > 0].mean(),
    }
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)
    raise Wrong(f"got {got:.4f}, wanted {wanted:.4f}: the mean of -log softmax at the targets, where they are not -100")


def _can_be_learned_from(student, logits, targets):
    """The loss must be a tensor from which gradients reach the logits, and the right ones."""
    logits = logits.clone().requires_grad_()
    loss = student(logits, targets)
    if not isinstance(loss, torch.Tensor):
        raise Wrong(f"the number is right, but it is a {type(loss).__name__}; a tensor is wanted, with its gradient")
    if not loss.requires_grad:
        raise Wrong("the number is right, but the loss is cut off from the logits (detach, item or no_grad): no "
                    "gradient can reach the network")  # fmt: skip
    right = F.cross_entropy(logits.transpose(1, 2), targets)
    wanted, got = (torch.autograd.grad(x.sum(), logits)[0] for x in (right, loss))
    if not close(got, wanted):
        raise Wrong("the loss is right, its gradient is not: is a part of it detached?")


def _stays_finite(student):
    """Logits 200 apart, in float32: exp(-200) is 0 there, and the loss is 200."""
    logits = torch.zeros(1, 2, 5)
    logits[0, 1, 3] = -200.0
    got = expect_number(student(logits, torch.tensor([[IGNORE, 3]])), "the loss of a logit of -200 beside zeros")
    if not close(got, math.log(4) + 200):
        raise Wrong(f"right for small logits; where the answer has the logit -200 and four others 0, the loss is {got} "
                    "and should be 201.4: the logarithm of a softmax, taken in two steps, rounds to log 0")  # fmt: skip


# --- exercise 12.3: a step of pre-training --------------------------------------------------

FIRST = 5  # id of the first word


class _Reader(torch.nn.Module):
    """A stand-in for a masked language model, which remembers what it read: tokens, and the mean of the real ones."""

    def __init__(self, V, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.table = torch.nn.Parameter(torch.randn(V, 6, generator=g, dtype=torch.float64))
        self.out = torch.nn.Parameter(torch.randn(6, V, generator=g, dtype=torch.float64))
        self.read, self.modes = [], []

    def forward(self, ids, real):
        """Logits (B, T, V)."""
        self.read.append((ids.clone(), real.clone()))
        self.modes.append(self.training)
        x = self.table[ids]
        mean = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return torch.tanh(x + mean[:, None]) @ self.out


class _Descent:
    """Plain gradient descent: torch's SGD imports much at its first step, and the check has two seconds."""

    def __init__(self, parameters, rate):
        self.param_groups = [{"params": list(parameters), "lr": rate}]
        self.rate = rate

    def zero_grad(self, set_to_none=True):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None if set_to_none else torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter -= self.rate * parameter.grad


def _batch_to_hide(B, T, V, seed):
    """ids, real, choose, fate, others: each row [CLS], words, [SEP] and padding; some draws stand on a bound."""
    g = torch.Generator().manual_seed(seed)
    lengths = T - torch.arange(B) % 4
    real = torch.arange(T) < lengths[:, None]
    ids = torch.randint(FIRST, V, (B, T), generator=g)
    ids[:, 0], ids[~real] = 2, 1
    ids[torch.arange(B), lengths - 1] = 3
    choose, fate = torch.rand(2, B, T, generator=g, dtype=torch.float64)
    choose = choose / 3  # many places are chosen
    choose[0, 1:7] = torch.tensor([0.15, 0.1499, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    fate[0, 1:7] = torch.tensor([0.1, 0.1, 0.8, 0.7999, 0.9, 0.8999], dtype=torch.float64)
    return ids, real, choose, fate, torch.randint(FIRST, V, (B, T), generator=g)


@check(
    hints=(
        "Four things happen, in this order: hide, predict, measure, improve. The first and the third are your own "
        "functions; what may be hidden?",
        "maskable = real words alone; inputs, targets = hide(...); logits = network(inputs, real); the loss; then the "
        "three lines with which every training loop of the course ends",
        "a special token has an id below FIRST; loss = chosen_loss(logits, targets); zero_grad, backward, step; return "
        "loss.item()",
    )
)
def pretraining_step(student):
    """Exercise 12.3: hide, predict, loss, gradients, one step."""
    for B, T, V, seed in ((3, 11, 17, 0), (1, 8, 13, 1)):
        given = ids, real, choose, fate, others = _batch_to_hide(B, T, V, seed)
        network, twin = _Reader(V, seed), _Reader(V, seed)
        optimizer = _Descent(network.parameters(), 0.5)
        for parameter in network.parameters():
            parameter.grad = torch.full_like(parameter, 0.3)  # of an earlier step
        result = student(network, optimizer, *given)
        got = expect_number(result.detach() if isinstance(result, torch.Tensor) else result, "the loss")
        inputs, targets = _masked(ids, real & (ids >= FIRST), choose, fate, others)
        above_first = _masked(ids, real & (ids > FIRST), choose, fate, others)
        _has_read(network.read, ids, real, inputs, above_first[0])
        logits = twin(inputs, real)
        loss = F.cross_entropy(logits.transpose(1, 2), targets)
        if not close(got, loss):
            _explain_loss(got, logits.detach(), targets, ids, network, inputs, real, above_first[1])
        loss.backward()
        _has_stepped(network, twin)
        if not network.modes[0] or not network.training:
            raise Wrong("eval() was called: a network with dropout would learn without it; a step leaves the network "
                        "in training mode")  # fmt: skip
        if isinstance(result, torch.Tensor) and result.requires_grad:
            raise Wrong("all is right, but the loss is returned with its graph; wanted is a float, which keeps nothing "
                        "of the step in memory")  # fmt: skip


FIRST_IS_A_WORD = "the word with the id FIRST is never chosen: words have ids from FIRST on, FIRST included"


def _has_read(read, ids, real, inputs, above_first):
    """What the network was given to read, in its first call; `above_first`: if the word FIRST is never hidden."""
    if not read:
        raise Wrong("the network was never called: it must predict the hidden words")
    mine, told = read[0]
    if not torch.equal(told.bool(), real):
        raise Wrong("the network's second argument is not `real`: it must know which tokens are padding")
    if torch.equal(mine, ids):
        raise Wrong("the network reads the text with nothing hidden, so it can copy every answer")
    if mine.shape == ids.shape:
        places = {"special tokens": real & (ids < FIRST), "padding": ~real}
        hidden = [name for name, place in places.items() if (mine != ids)[place].any()]
        if hidden:
            raise Wrong(f"hidden too: {' and '.join(hidden)}; only words may be chosen, ids from FIRST on")
    if not torch.equal(mine, inputs):
        if torch.equal(mine, above_first):
            raise Wrong(FIRST_IS_A_WORD)
        raise Wrong("the network reads something else than the inputs that masking with these draws gives: is exercise "
                    "12.1 passed, and are the draws handed on in its order?")  # fmt: skip


def _explain_loss(got, logits, targets, ids, network, inputs, real, above_first):
    """Say what another loss is; `above_first` are the targets if the word FIRST is never chosen."""
    each = F.cross_entropy(logits.transpose(1, 2), targets.clamp(min=0), reduction="none")
    with torch.no_grad():
        after = F.cross_entropy(network(inputs, real).transpose(1, 2), targets)
    mistakes = {
        "the loss runs over all positions, with the text as targets: most of these answers can be read": (
            F.cross_entropy(logits.transpose(1, 2), ids)
        ),
        "the loss runs over the real positions, with the text as targets: most of these answers can be read": (
            F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")[real].mean()
        ),
        "the sum over the chosen positions is returned; wanted is the mean": each[targets != IGNORE].sum(),
        "positions without target are counted as token 0": each.mean(),
        "the sum is right, and divided by all positions: divide by the number of chosen ones": (
            each[targets != IGNORE].sum() / targets.numel()
        ),
        "that is the loss after the step; wanted is the one before, from which the gradients come": after,
        "only the masked positions count in the loss; chosen words that became another or stayed count as well": (
            each[inputs == MASK].mean()
        ),
        "chosen words that stay as they are do not count in the loss; they must be predicted like the others": (
            each[(targets != IGNORE) & (inputs != ids)].mean()
        ),
        FIRST_IS_A_WORD: F.cross_entropy(logits.transpose(1, 2), above_first),
    }
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)
    wanted = each[targets != IGNORE].mean().item()
    raise Wrong(f"the loss is {got:.4f}, wanted {wanted:.4f}: the mean over the chosen positions, before the step")


def _has_stepped(network, twin):
    """Plain gradient descent at rate 0.5 must have gone once along the gradient of the right loss."""
    now, before, slopes = [], [], []
    for mine, start in zip(network.parameters(), twin.parameters(), strict=True):
        now.append(mine.detach()), before.append(start.detach()), slopes.append(start.grad)

    def at(steps):
        return all(close(x, start + step) for x, start, step in zip(now, before, steps, strict=True))

    if at([-0.5 * slope for slope in slopes]):
        return
    if at([torch.zeros_like(slope) for slope in slopes]):
        raise Wrong("the loss is right, but the weights did not change: does the optimizer step while the gradients "
                    "are there?")  # fmt: skip
    if at([-0.5 * (slope + 0.3) for slope in slopes]):
        raise Wrong("the gradients of an earlier step were still there, and were added to this one's")
    if at([torch.full_like(slope, -0.15) for slope in slopes]):
        raise Wrong("the optimizer stepped along the gradients of an earlier step: those of this loss were never "
                    "computed")  # fmt: skip
    if at([0.5 * slope for slope in slopes]):
        raise Wrong("the step goes uphill: the sign of the loss is turned")
    moved = torch.cat([(x - start).flatten() for x, start in zip(now, before, strict=True)])
    slope = torch.cat([x.flatten() for x in slopes])
    times = (-2 * moved @ slope / (slope @ slope)).item()  # the rate is 0.5
    if times > 0 and close(moved, -0.5 * times * slope):
        raise Wrong(f"the step goes along the right gradient, but is {times:.2g} times as long as that of one plain "
                    "`optimizer.step()`; nothing is clipped or scaled here")  # fmt: skip
    raise Wrong("the loss is right, but the weights did not make one step along its gradient")


# --- exercise 12.5: in words -------------------------------------------------------------------

what_tuning_adds = Written(
    hints=(
        "(a) Change one thing at a time, and try more than one seed. (b) Which of the two had its best rate? (c) Which "
        "two facts about an adjective make the verdict? (d) Which of the two does the verdict need? (e) Compared with "
        "what?",
        "(a) Reading for 0, 50, 100, 200, 400, 800 steps: how far is the loss below the unigram entropy? (b) Reading "
        "for 0 steps, then toys.finetune with steps=400 and either learning_rate. (c) How many good and how many bad "
        "adjectives has a review, and what is left of them in a mean? (d) Probe the network before and after. (e) The "
        "controls of the probing part.",
        "(a) Which loss have the runs in which reading pays, and which have those where it does not? (b) Count the "
        "steps of both, and say how often reading has to be done. (c) Held good and denied bad are both praise: a "
        "product of role and polarity, which no linear layer computes from a mean. (d) Nobody asks for the thing. (e) "
        "An untrained network, a control task, a linear probe.",
    ),
    good_answer=(
        "(a) Your own numbers of more than one seed. In ours 200 steps help in two seeds of three, at a loss near 1.2, "
        "still far above the perfect reader's; 50 hardly help or harm, at a loss near 2.6, and with 100 seeds differ. "
        "(b) Your own numbers, at the better of both rates: with few steps in all reading usually gets further, but a "
        "run may go the other way; with many steps and many labels the other catches up, so reading usually saves "
        "steps on each new task, and here some labels. Optional: (c) Role and polarity enter as a product (exclusive "
        "or), while the mean of a review always holds one good and one bad adjective, one held and one denied; each "
        "factor is linearly readable, the product is not. (d) The role stays readable, the thing stays absent, since "
        "the verdict does not depend on it; fine-tuning mostly combines what is there and moves it to where the new "
        "layer reads. (e) The same probe on an untrained network and on the embeddings; its score on a control task "
        "(selectivity); a linear probe, a majority baseline, held-out sentences."
    ),
)


# --- exercise 12.6: parameters --------------------------------------------------------------


def _parameters(V, L, D, N, F, S=2, embeddings=True, norms=True, biases=True, pooler=True, qkv=4):
    """BERT's parameters, part by part."""
    norm = 2 * D if norms else 0
    layer = qkv * D * D + 2 * D * F + (qkv * D + F + D if biases else 0) + 2 * norm
    return (
        ((V + L + S) * D if embeddings else 0)
        + (norm if embeddings else 0)
        + N * layer
        + (D * D + (D if biases else 0) if pooler else 0)
    )


@check(
    hints=(
        "Go through section 2's network: three tables and a norm; N times attention, feed-forward and two norms. Then "
        "the pooler.",
        "tables (V + L + 2) D; attention 4 matrices D x D with biases; feed-forward D x F and F x D; a norm has 2 D",
        "a layer has 4 D (D + 1) + 2 D F + F + D + 4 D parameters; the pooler D (D + 1)",
    )
)
def bert_parameters(student):
    """Exercise 12.6: the formula, checked on both published sizes and on odd ones."""
    sizes = {"V": 11, "L": 13, "D": 8, "N": 5, "F": 14}
    answer = student(*sizes.values())
    got, wanted = expect_number(answer, "the number"), _parameters(**sizes)
    if got == wanted:
        if isinstance(answer, float):
            raise Wrong("the number is right, but it is a float; a count is an int (does a / or a 0.5 stand in it?)")
        base = expect_number(student(30522, 512, 768, 12, 3072), "the number for BERT-base")
        if base != _parameters(30522, 512, 768, 12, 3072):
            raise Wrong("right for a small BERT, wrong for BERT-base: F need not be 4 D, or a size is in the code")
        return
    D, F_, N = sizes["D"], sizes["F"], sizes["N"]
    mistakes = {
        "the pooler is missing: D x D and D biases": wanted - D * D - D,
        "the segments' table or the LayerNorm of the embeddings is missing: 2 D each": wanted - 2 * D,
        "D are missing: the segments' table has two rows, one for each text, and the pooler has D biases": wanted - D,
        "the pooler's bias is counted, those of the layers are not: a linear layer has one for each output": (
            wanted - N * (5 * D + F_)
        ),
        "2 D too many: a LayerNorm is surplus; each layer has two, the embeddings one, and none comes at the end": (
            wanted + 2 * D
        ),
        "the head for pairs is counted, a linear layer from D to 2; no head is asked for": wanted + 2 * D + 2,
        "the head of the masked language model is counted; no head is asked for": wanted + D * D + 3 * D + 11,
        "the positions' table is missing: L D": wanted - 13 * D,
        "3 D a layer are missing: the biases of query, key and value": wanted - N * 3 * D,
        "4 D a layer are missing: the biases of attention's four matrices, or two LayerNorms of 2 D each": (
            wanted - N * 4 * D
        ),
        "2 D a layer are missing: each has two LayerNorms, and each of these a scale and a shift": wanted - N * 2 * D,
        "a LayerNorm has a scale and a shift: 2 D": wanted - N * 2 * D - D,
        "F stands apart; it need not be 4 D": _parameters(**sizes | {"F": 4 * D}),
        "all LayerNorms are missing": _parameters(**sizes, norms=False),
        "the biases are missing": _parameters(**sizes, biases=False),
        "each layer has a fourth matrix in its attention, the one after the heads": _parameters(**sizes, qkv=3),
        "only one layer is counted": wanted - (N - 1) * (4 * D * D + 4 * D + 2 * D * F_ + F_ + D + 4 * D),
        "the embeddings are missing": _parameters(**sizes, embeddings=False),
        "the output layer is counted: it is the table of embeddings, and the heads are not asked for": wanted + 11 * D,
        "V too many: the bias of the output layer is counted, and it belongs to a head of pre-training": wanted + 11,
        "both heads of pre-training are counted; wanted is BERT with its pooler and no heads": (
            wanted + D * D + 5 * D + 11 + 2
        ),
    }
    for message, wrong in mistakes.items():
        if got == wrong:
            raise Wrong(message)
    raise Wrong(f"for V = 11, L = 13, D = 8, N = 5, F = 14 you count {got:,.0f}; there are {wanted:,}")


# --- exercise 12.4: WordPiece ---------------------------------------------------------------


def _pieces(word, vocab, longest=True, marks=True, unknown=True):
    """Greedy matching from the left; the options plant the usual mistakes."""
    found, start = [], 0
    while start < len(word):
        ends = range(len(word), start, -1) if longest else range(start + 1, len(word) + 1)
        for end in ends:
            piece = ("##" if start and marks else "") + word[start:end]
            if piece in vocab:
                found.append(piece)
                start = end
                break
        else:
            if unknown:
                return ["[UNK]"]
            found.append("[UNK]")
            start += 1
    return found


VOCAB = {"un", "unable", "a", "b", "able", "##a", "##b", "##able", "##ably", "##l", "##e", "##le", "##s", "play", "pla",
         "##y", "##ying", "##ing", "u", "##n", "##play", "p", "sea", "seas", "##side"}  # fmt: skip


@check(
    hints=(
        "At each place try the longest rest first; from the second piece on, look it up with ## in front.",
        "start = 0; for end from len(word) down to start + 1: piece in vocab? take it, start = end; none: [UNK]",
        "for ... else: the else branch runs when no piece was found, and there the whole word becomes ['[UNK]']",
    )
)
def wordpiece(student):
    """Exercise 12.4: greedy longest match first, ## inside a word, [UNK] for the whole word."""
    words = ("play", "playing", "unplay", "unables", "able", "plays", "playz", "zplay", "b", "seaside", "playun",
             "ingplay", "Play")  # fmt: skip
    for word in words:
        got, wanted = expect_type(student(word, set(VOCAB)), list, f"the pieces of {word!r}"), _pieces(word, VOCAB)
        if got == wanted:
            continue
        mistakes = {
            "the shortest piece is taken first; WordPiece takes the longest": {"longest": False},
            "pieces inside a word are looked up without ##: 'play' at the start and '##play' inside are two entries": {
                "marks": False
            },
            "a word that cannot be cut to its end becomes one [UNK], not its known pieces with [UNK] between": {
                "unknown": False
            },
        }
        for message, options in mistakes.items():
            if got == _pieces(word, VOCAB, **options):
                raise Wrong(f"{word!r}: {message}")
        if got == [piece.removeprefix("##") for piece in wanted]:
            raise Wrong(f"{word!r}: the pieces are right, but ## was lost: it belongs to the piece's name")
        if got == wanted[:-1] or got == []:
            raise Wrong(f"{word!r}: the last piece is missing")
        if got == ["sea", "##side"]:
            raise Wrong(
                "'seaside' begins with 'seas', the longest piece, and cannot go on: [UNK], no way back to 'sea'"
            )
        if word == "playun":
            raise Wrong(f"'playun' became {got}: 'un' is known at the start of a word only, '##un' is no piece here")
        if word == "ingplay":
            raise Wrong(f"'ingplay' became {got}: '##ing' is known inside a word only, 'ing' is no piece here")
        if word == "Play":
            raise Wrong(f"'Play' became {got}: a piece counts if it is known exactly as it is written, and 'Play' is "
                        "not; to make letters small is not this function's task")  # fmt: skip
        if wanted == ["[UNK]"]:
            raise Wrong(f"{word!r} cannot be cut to its end, so it is one ['[UNK]']; yours is {got}")
        raise Wrong(f"{word!r} became {got}; wanted another cut: the longest known piece from the left, then the next")


# --- exercise 12.7: search ------------------------------------------------------------------


def _text_vectors(x, real, pool="mean", padded=False):
    """One vector (D,) for each text, with a loop."""
    pools = {"mean": lambda row: row.mean(0), "max": lambda row: row.amax(0), "first": lambda row: row[0]}
    return torch.stack([pools[pool](row if padded else row[there]) for row, there in zip(x, real, strict=True)])


def _cosines(queries, real_queries, documents, real_documents, units=(True, True), axis=1, **pooling):
    """The reference: cosines of the texts' means; the options plant the usual mistakes."""
    texts = (queries, real_queries), (documents, real_documents)
    a, b = (_text_vectors(*text, **pooling) for text in texts)
    a, b = (F.normalize(v, dim=axis) if unit else v for v, unit in zip((a, b), units, strict=True))
    return a @ b.T


def _texts(seed, B, T, D):
    """Vectors (B, T, D) of different lengths, not 0 at padding; which are real, (B, T), each row another number."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, T, D, generator=g, dtype=torch.float64) * (1 + 3 * torch.rand(B, T, 1, generator=g))
    return x + 0.5, torch.arange(T) < (T - torch.arange(B))[:, None]


@check(
    hints=(
        "First one vector for each text: which positions may take part? Then the cosines of all pairs.",
        "0 at padding, sum over T, divide by the number of real tokens; divide each vector by its length; one product",
        "real[..., None] is (B, T, 1) and broadcasts over D; F.normalize(..., dim=1); (B, D) @ (D, M) is (B, M)",
    )
)
def similarities(student):
    """Exercise 12.7: cosines between the means over the real tokens of queries and documents."""
    given = (*_texts(0, 3, 6, 4), *_texts(1, 5, 7, 4))
    got, wanted = expect_tensor(student(*given)), _cosines(*given)
    if got.shape == wanted.T.shape and close(got, wanted.T):
        raise Wrong("the result is transposed: a row for each query, a column for each document")
    expect_tensor(got, wanted.shape)
    if close(got, wanted):
        single = (*_texts(2, 1, 2, 3), *_texts(3, 2, 9, 3))
        if not close(expect_tensor(student(*single), (1, 2)), _cosines(*single)):
            raise Wrong("right for 3 queries and 5 documents, wrong for 1 and 2: a size is written into the code")
        return
    tokens = (F.normalize(given[0], dim=2), given[1], F.normalize(given[2], dim=2), given[3])
    mistakes = {
        "padding is counted: the vectors there are not 0, and only those of real tokens may enter the mean": (
            _cosines(*given, padded=True)
        ),
        "padding is counted in the documents, and not in the queries: both have a mask of real tokens": (
            _cosines(*given[:3], torch.ones_like(given[3]))
        ),
        "padding is counted in the queries, and not in the documents: both have a mask of real tokens": (
            _cosines(given[0], torch.ones_like(given[1]), *given[2:])
        ),
        "nothing is normalised: those are dot products, which grow with the length of the vectors": (
            _cosines(*given, units=(False, False))
        ),
        "the documents' vectors are not brought to length 1": _cosines(*given, units=(True, False)),
        "the queries' vectors are not brought to length 1": _cosines(*given, units=(False, True)),
        "that is the maximum over the tokens; wanted is the mean": _cosines(*given, pool="max"),
        "that is the vector of the first token; wanted is the mean over all real ones": _cosines(*given, pool="first"),
        "the vectors are normalised over the batch, not each over its own D numbers": _cosines(*given, axis=0),
        "the tokens were normalised and not the mean of them: one vector for each text comes first": (
            _cosines(*tokens, units=(False, False))
        ),
        "the tokens were normalised before the mean: a token's length is part of what it says": _cosines(*tokens),
    }
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)
    if got.abs().max() > 1 + 1e-6:
        raise Wrong(
            f"a cosine lies between -1 and 1, and yours goes to {got.abs().max():.2f}: is each vector's length 1?"
        )
    right = _cosines(*given)
    for axis, over in ((1, "documents"), (0, "queries")):
        if any(close(got, (right / tau).softmax(axis)) for tau in (1, 0.1, 0.05)):
            raise Wrong(f"that is a softmax of the cosines over the {over}; wanted are the cosines themselves")
    raise Wrong("cosines in shape, but of other vectors: each text's is the mean over its real tokens, of length 1")
