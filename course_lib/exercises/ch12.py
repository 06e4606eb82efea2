"""Checks of chapter 12's exercises: masking, its shares, pairs of texts, a loss, parameters, WordPiece, search.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names the
one it recognises. The references are written with loops. Notebook: 12.
"""

import math

import torch
import torch.nn.functional as F

from course_lib.exercises import (
    Written,
    Wrong,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    expect_type,
    near,
)


def _two(answer, names):
    """An answer of two things."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Wrong(f"wanted a tuple ({', '.join(names)}), got {type(answer).__name__}")
    return answer


# --- exercise 12.1: masking -----------------------------------------------------------------

IGNORE, MASK = -100, 4


def _masked(
    ids, maskable, choose, fate, others, every=False, below=0.8, upto=0.9, swap=False, late=False, mask_id=MASK
):
    """The reference with a loop, and the mistakes that change a bound."""
    inputs, targets = ids.clone(), torch.full_like(ids, IGNORE)
    for place in torch.cartesian_prod(*map(torch.arange, ids.shape)).tolist():
        b, t = place
        if (maskable[b, t] or every) and choose[b, t] < 0.15:
            targets[b, t] = ids[b, t]
            if fate[b, t] < below:
                inputs[b, t] = others[b, t] if swap else mask_id
            elif (fate[b, t] >= upto) if late else (fate[b, t] < upto):
                inputs[b, t] = mask_id if swap else others[b, t]
    return inputs, targets


@check(
    hints=(
        "First decide which positions are chosen, then what becomes of each; the targets need only the first.",
        "chosen = maskable and choose < 0.15; of these: fate < 0.8 the mask, < 0.9 the other token, else unchanged",
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
        raise Wrong("positions that are not maskable were chosen: special tokens and padding are no blanks")
    target_mistakes = {
        "the targets are the ids everywhere; outside the chosen positions they must be -100": ids,
        "the targets are what the network reads, so the mask itself is to be predicted; they must be the old tokens": (
            wanted.masked_fill(~chosen, IGNORE)
        ),
        "only the masked positions have a target; those with another or the same token count as well": (
            ids.masked_fill(~(chosen & (fate < 0.8)), IGNORE)
        ),
        "a chosen token that stays as it is has no target; it must be predicted like the others": (
            ids.masked_fill(~(chosen & (fate < 0.9)), IGNORE)
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
        "no chosen token stays as it is: above 0.9 nothing changes": _masked(*draws, upto=1.1),
        "no token becomes another one: between 0.8 and 0.9 stands the token of `others`": _masked(*draws, upto=0.8),
        "masks and other tokens have changed places: below 0.8 the mask": _masked(*draws, swap=True),
        "no chosen token became the mask: `fate < 0.9` holds for the masked ones too, so the tokens of `others` were "
        "written over the masks; they belong where fate is at least 0.8 and below 0.9": _masked(*draws, below=0),
        "the token of `others` stands above 0.9; here it stands between 0.8 and 0.9, and above nothing changes": (
            _masked(*draws, late=True)
        ),
    }
    for message, wrong in input_mistakes.items():
        if torch.equal(inputs, wrong[0]):
            raise Wrong(message)
    if not torch.equal(targets, wanted_targets):
        raise Wrong("the targets are wrong: the old token where maskable and choose < 0.15, and -100 elsewhere")
    b, t = (inputs != wanted).nonzero()[0].tolist()
    raise Wrong(
        f"row {b}, position {t}: fate {fate[b, t]:.2f}, chosen: {bool(chosen[b, t])}, and the input is {inputs[b, t]}"
    )


# --- exercise 12.2: shares ------------------------------------------------------------------


@check(
    hints=(
        "A random token is drawn from all V words: with which probability is it the old one?",
        "changed = 0.15 (0.8 + 0.1 (1 - 1/V)); looks the same and chosen = 0.15 (0.1 + 0.1 / V); then Bayes' rule",
        "for V = 4: 0.15 times 0.875, then 0.15 times 0.125 divided by 0.85 plus itself",
    )
)
def shares(student):
    """Exercise 12.2: how many inputs differ from the text, and how suspect a word that looks normal is."""
    changed, suspect = expect_numbers(student, ("changed", "suspect"))
    chosen, V = 0.15, 4
    same = chosen * (0.1 + 0.1 / V)
    share = chosen * (0.8 + 0.1 * (1 - 1 / V))
    if not near(changed, share):
        if changed > 1:
            raise Wrong(f"changed is {changed:.4g}: a share between 0 and 1 is wanted, not a percentage")
        if math.isclose(changed, round(share, 2)):
            raise Wrong("changed: right, but rounded to two digits; three significant digits are wanted")
        if near(changed, chosen):
            raise Wrong("changed: that is the share of chosen tokens; some of them stay as they are")
        if near(changed, chosen * 0.9):
            raise Wrong("changed: nearly; the random token is sometimes the old one, with probability 1 / V")
        if near(changed, chosen * 0.8):
            raise Wrong("changed: that counts the masks alone; random tokens change the text too")
        if near(changed, 0.8 + 0.1 * (1 - 1 / V)):
            raise Wrong("changed: that is a share of the chosen tokens; wanted is a share of all tokens")
        raise Wrong(f"changed is {changed:.4g}: add 80 % of 15 %, and of 10 % of 15 % what is really another token")
    share = same / (1 - chosen + same)
    if not math.isclose(suspect, share, rel_tol=4e-3):  # three digits, though it is small
        if suspect > 1:
            raise Wrong(f"suspect is {suspect:.4g}: a share between 0 and 1 is wanted, not a percentage")
        if any(math.isclose(suspect, round(share, digits)) for digits in (2, 3)):
            raise Wrong("suspect: right, but rounded too far; three significant digits are wanted, zeros in front not "
                        "counted")  # fmt: skip
        if near(suspect, chosen * 0.1 / (1 - chosen + chosen * 0.1)):
            raise Wrong("suspect: nearly; a random token that happens to be the old one looks the same too")
        if near(suspect, same) or near(suspect, chosen * 0.1):
            raise Wrong("suspect: that is a share of all tokens; divide by the share of tokens that look the same")
        if near(suspect, chosen):
            raise Wrong("suspect: that is the probability before anything is seen; a word that shows is rarely a blank")
        raise Wrong(f"suspect is {suspect:.4g}: P(chosen and same) / P(same), where same has two ways to come about")


# --- exercise 12.4: a batch of pairs --------------------------------------------------------


def _pairs(pairs, cls, sep, pad, early=False, flat=False, one_sep=False, pad_segment=0):
    """The reference: [CLS] a [SEP] b [SEP], padded on the right."""
    rows = [[cls, *a, sep, *b] + ([] if one_sep else [sep]) for a, b in pairs]
    T = max(map(len, rows))
    ids, segments = torch.full((len(pairs), T), pad), torch.full((len(pairs), T), pad_segment)
    mask = torch.zeros(len(pairs), T, dtype=torch.bool)
    for i, (row, (a, _)) in enumerate(zip(rows, pairs, strict=True)):
        n = len(a) + (1 if early else 2)
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), True
        segments[i, :n], segments[i, n : len(row)] = 0, 0 if flat else 1
    return ids, mask, segments


@check(
    hints=(
        "Write one row as a list first; its segments are as many 0 and 1 as its two parts have tokens.",
        "row = [cls, *a, sep, *b, sep]; segments = [0] * (len(a) + 2) + [1] * (len(b) + 1); pad both to the longest",
        "ids = torch.full((B, T), pad); fill ids[i, :len(row)]; mask and segments the same way, from zeros",
    )
)
def pair_batch(student):
    """Exercise 12.4: pairs of texts as ids, mask and segments."""
    pairs, CLS, SEP, PAD = [([7, 8, 9], [11, 12]), ([13], [14]), ([15, 16], [17, 18, 19, 20])], 2, 3, 1
    answer = student(pairs, CLS, SEP, PAD)
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise Wrong(f"wanted a tuple (ids, mask, segments), got {type(answer).__name__}")
    ids, mask, segments = (expect_tensor(x, name=n) for x, n in zip(answer, ("ids", "mask", "segments"), strict=True))
    wanted = _pairs(pairs, CLS, SEP, PAD)
    if not (ids == CLS).any():
        raise Wrong("[CLS] is missing: every row begins with it")
    if torch.equal(ids.long(), _pairs(pairs, CLS, SEP, PAD, one_sep=True)[0]):
        raise Wrong("the last [SEP] is missing: both texts end with one")
    expect_tensor(ids, wanted[0].shape, torch.int64, "ids")
    expect_tensor(mask, wanted[1].shape, torch.bool, "the mask")
    expect_tensor(segments, wanted[2].shape, torch.int64, "segments")
    if not torch.equal(ids, wanted[0]):
        if torch.equal(ids.masked_fill(~wanted[1], PAD), wanted[0]):
            raise Wrong("padding is not `pad_id`")
        if torch.equal(ids.sort(1).values, wanted[0].sort(1).values):
            raise Wrong("the tokens are right, their order is not: [CLS] first [SEP] second [SEP], then padding")
        b, t = (ids != wanted[0]).nonzero()[0].tolist()
        raise Wrong(f"row {b}, position {t} holds {ids[b, t]}; wanted {wanted[0][b, t]}")
    if not torch.equal(mask, wanted[1]):
        if torch.equal(mask, ~wanted[1]):
            raise Wrong("the mask is the wrong way round: True = real token")
        if mask.all():
            raise Wrong("the mask is True at padding too, so padding would be attended to")
        raise Wrong("the mask is not True at exactly the real tokens; special tokens are real")
    if torch.equal(segments, wanted[2]):
        return
    mistakes = {
        "the second text's segments are 0: the network cannot tell the texts apart but by [SEP]": {"flat": True},
        "the first [SEP] has segment 1; it belongs to the first text": {"early": True},
        "padding has segment 1; give it 0, as everybody does": {"pad_segment": 1},
    }
    for message, options in mistakes.items():
        if torch.equal(segments, _pairs(pairs, CLS, SEP, PAD, **options)[2]):
            raise Wrong(message)
    raise Wrong("segments: 0 from [CLS] to the first [SEP], 1 from there to the last [SEP], 0 at padding")


# --- exercise 12.3: the loss ----------------------------------------------------------------


@check(
    hints=(
        "Which positions have a target? Only these count, in the sum and in the number that it is divided by.",
        "where = targets != -100; cross-entropy of logits[where] (n, V) with targets[where] (n,); their mean",
        "boolean indexing (B, T, V)[(B, T)] gives (n, V); minus log_softmax at the targets, mean over n",
    )
)
def blank_loss(student):
    """Exercise 12.3: the mean cross-entropy over the chosen positions alone."""
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 7, 11, generator=g, dtype=torch.float64)
    ids = torch.randint(0, 11, (3, 7), generator=g)
    chosen = torch.zeros(3, 7, dtype=torch.bool)
    chosen[[0, 0, 0, 0, 1, 2, 2], [1, 4, 5, 6, 2, 0, 5]] = True
    targets = ids.masked_fill(~chosen, IGNORE)
    got = expect_number(student(logits, targets), "the loss")
    each = F.cross_entropy(logits.transpose(1, 2), targets.clamp(min=0), reduction="none")  # (B, T)
    wanted = each[chosen].mean().item()
    if close(got, wanted):
        small = expect_number(student(logits[1:2], targets[1:2]), "the loss of one row")
        if not close(small, each[1][chosen[1]].mean()):
            raise Wrong("right for 3 rows, wrong for 1: a size is written into the code")
        return
    rows = torch.stack([e[c].mean() for e, c in zip(each, chosen, strict=True)])
    mistakes = {
        "the mean runs over all positions, those without target counted as token 0": each.mean(),
        "the right sum, divided by all positions: divide by the number of chosen positions, or the loss falls with the "
        "share of blanks": (each * chosen).mean(),
        "the number of chosen positions is right, the sum is not: it has those without target too, as token 0": (
            each.sum() / chosen.sum()
        ),
        "that is the sum; wanted is the mean over the chosen positions": each[chosen].sum(),
        "the mean of the rows' means: a row with one blank counts as much as one with four": rows.mean(),
        "the sign is wrong: the loss is minus the log-probability": -each[chosen].mean(),
        "that is the mean of the logits at the targets, not of log-probabilities: a softmax is missing": (
            -logits[chosen].gather(1, targets[chosen][:, None]).mean()
        ),
        "the loss is divided by the number of rows": each[chosen].sum() / 3,
    }
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)
    raise Wrong(f"got {got:.4f}, wanted {wanted:.4f}: the mean of -log softmax at the targets, where they are not -100")


# --- exercise 12.6: in words -------------------------------------------------------------------

what_tuning_adds = Written(
    hints=(
        "(a) Which two facts about an adjective make the verdict? (b) Which of the two does the verdict need? (c) "
        "Change one thing at a time, and try more than one seed. (d) Compared with what?",
        "(a) How many good and how many bad adjectives has a review, and what is left of them in a mean? (b) Probe "
        "the network before and after. (c) steps=950, learning_rate=0.001 and 0.003, seed=0, 1, 2. (d) The controls "
        "of the probing part.",
        "(a) Held good and denied bad are both praise: a product of role and polarity, which no linear layer computes "
        "from a mean. (b) Nobody asks for the thing. (c) Compare with the pre-trained network's 800 + 150 steps. (d) "
        "An untrained network, a control task, a linear probe.",
    ),
    good_answer=(
        "(a) Role and polarity enter as a product (exclusive or), while the mean of a review always holds one good and "
        "one bad adjective, one held and one denied; each factor is linearly readable, the product is not. (b) Your "
        "own numbers: the role stays readable, the thing stays absent, since the verdict does not depend on it; "
        "fine-tuning mostly combines what is there and moves it to where the new layer reads. (c) Your own numbers, "
        "best of several seeds: with as many steps in all the gap is smaller, and differs much between seeds; so "
        "pre-training saves steps on each new task, and here some labels too. (d) The same probe on an untrained "
        "network and on the embeddings; its score on a control task (selectivity); a linear probe, a majority "
        "baseline, held-out sentences."
    ),
)


# --- exercise 12.7: parameters --------------------------------------------------------------


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
        "Go through the diagram: three tables and a norm; N times attention, feed-forward and two norms; the pooler.",
        "tables (V + L + 2) D; attention 4 matrices D x D with biases; feed-forward D x F and F x D; a norm has 2 D",
        "a layer has 4 D (D + 1) + 2 D F + F + D + 4 D parameters; the pooler D (D + 1)",
    )
)
def bert_parameters(student):
    """Exercise 12.7: the formula, checked on both published sizes and on odd ones."""
    sizes = {"V": 11, "L": 13, "D": 8, "N": 5, "F": 14}
    got, wanted = expect_number(student(*sizes.values()), "the number"), _parameters(**sizes)
    if got == wanted:
        base = expect_number(student(30522, 512, 768, 12, 3072), "the number for BERT-base")
        if base != _parameters(30522, 512, 768, 12, 3072):
            raise Wrong("right for a small BERT, wrong for BERT-base: F need not be 4 D, or a size is in the code")
        return
    D, F_, N = sizes["D"], sizes["F"], sizes["N"]
    mistakes = {
        "the pooler is missing: D x D and D biases": wanted - D * D - D,
        "the segments' table or the LayerNorm of the embeddings is missing: 2 D each": wanted - 2 * D,
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
    }
    for message, wrong in mistakes.items():
        if got == wrong:
            raise Wrong(message)
    raise Wrong(f"for V = 11, L = 13, D = 8, N = 5, F = 14 you count {got:,.0f}; there are {wanted}")


# --- exercise 12.5: WordPiece ---------------------------------------------------------------


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
    """Exercise 12.5: greedy longest match first, ## inside a word, [UNK] for the whole word."""
    words = ("play", "playing", "unplay", "unables", "able", "plays", "playz", "zplay", "b", "seaside")
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
        if wanted == ["[UNK]"]:
            raise Wrong(f"{word!r} cannot be cut to its end, so it is one ['[UNK]']; yours is {got}")
        raise Wrong(f"{word!r} became {got}; wanted another cut: the longest known piece from the left, then the next")


# --- exercise 12.8: search ------------------------------------------------------------------


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
    """Exercise 12.8: cosines between the means over the real tokens of queries and documents."""
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
    raise Wrong("cosines in shape, but of other vectors: each text's is the mean over its real tokens, of length 1")
