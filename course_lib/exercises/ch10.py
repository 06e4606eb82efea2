"""Checks of chapter 10's exercises: operations and parameters counted by hand, and what an output depends on.

Each check asks for the right answer first; if it fails, it looks for the usual mistakes and names the one it
recognises. Right counts are measured on running layers, not taken from the formulas. Notebook: 10.
"""

import contextlib
import itertools
import math
import numbers

import torch
from torch.utils import flop_counter

from course_lib.attention import MultiHeadAttention, attention_backend
from course_lib.cost import formulas, measure
from course_lib.cost.measure import count_operations
from course_lib.exercises import Written, Wrong, check, close, expect_number, expect_numbers, expect_tensor, near
from course_lib.exercises.ready_made import called
from course_lib.transformer import DecoderLayer, EncoderLayer
from course_lib.utils import number_of_parameters

# torch loads its counter at the first use, for seconds: not on a student's time.
count_operations(torch.nn.Linear(1, 1), torch.ones(1, 1))


def _forbid(student, sizes, what="the count is right, but"):
    """Refuse a count that is not the answer's own. The sizes are new: an answer may remember what it counted."""
    if name := called(student, [(sizes, {})], [formulas, measure, flop_counter]):
        whose = "torch's" if hasattr(flop_counter, name) else "the library's"
        raise Wrong(f"{what} your code calls {whose} `{name}`: add up the products yourself")


def _count(student, sizes):
    """Return the answer's count. If it fails, say first that it calls what is not allowed: that may be why."""

    def even_if_it_fails(*sizes):
        with contextlib.suppress(Exception):
            student(*sizes)

    try:
        return student(*sizes)
    except Exception:
        _forbid(even_if_it_fails, sizes, "before anything is counted:")
        raise


# --- exercise 10.1: the operations of self-attention --------------------------------------

# First five heads: with two or three, parts of one head and halves of the whole are the same number.
SIZES = ((3, 7, 23, 5, 6), (4, 5, 12, 3, 7), (1, 11, 6, 2, 9))


def _of_own_width(H, K):
    """The products of a self-attention whose heads have a width of their own."""

    def layer(x):
        (B, T, D), width = x.shape, H * K
        q, k, v = (x @ x.new_ones(D, width) for _ in range(3))
        q, k, v = (each.view(B, T, H, K).transpose(1, 2) for each in (q, k, v))  # (B, H, T, K)
        h = (q @ k.mT).softmax(-1) @ v
        return h.transpose(1, 2).reshape(B, T, width) @ x.new_ones(width, D)

    return layer


@check(
    hints=(
        "A product of (n, m) and (m, p) has n p entries, each a sum of m products: 2 n m p FLOPs.",
        "Six products: three projections, (B T, D) times (D, H K) each; the scores, for each of B H pairs (T, K) times "
        "(K, T); the weighted mean, (T, T) times (T, K); the output's projection, (B T, H K) times (H K, D).",
        "The scores take B H (2 T K T), the weighted mean the same. Add 4 (2 B T D H K): all four projections cost the "
        "same.",
    )
)
def attention_operations(student):
    """Exercise 10.1: operations of multi-head self-attention whose heads have a width of their own."""
    for B, T, D, H, K in SIZES:
        answer = _count(student, (B, T, D, H, K))
        got = expect_number(answer, "the count")
        wanted = count_operations(_of_own_width(H, K), torch.ones(B, T, D))
        if got != wanted:
            where = f" (B={B}, T={T}, D={D}, H={H}, K={K}: torch counts {wanted:,})"
            raise Wrong(_operations_diagnosis(got, B, T, D, H, K) + where)
        if isinstance(answer, float):
            raise Wrong(f"the count is right, but {answer!r} is a float; wanted an int: divide with //, or not at all")
        if not isinstance(answer, numbers.Integral):  # NumPy's whole numbers are
            raise Wrong(f"the count is right, but it is a {type(answer).__name__}; wanted an int")
    _forbid(student, (2, 9, 8, 4, 3))


def _operations_diagnosis(got, B, T, D, H, K):
    """What a wrong count of self-attention looks like."""
    projection, quadratic, scores = 2 * B * T * D * H * K, 2 * B * T * T * H * K, B * H * T * T
    square, of_width = 2 * B * T * D * D, 2 * B * T * T * D  # what they would be for H K = D
    surplus, rest = divmod(got - 4 * projection - 2 * quadratic, scores)
    known = {
        0: "0 FLOPs: nothing was added up",
        2 * projection + quadratic: "a multiplication and its addition are 2 FLOPs; you counted them as 1",
        4 * projection: "the scores and the weighted mean are missing: only the projections are there",
        2 * quadratic: "the four projections are missing: they have weights, and are products too",
        3 * projection + 2 * quadratic: "one projection is missing: queries, keys, values, and the output's",
        4 * projection + quadratic: "two products have T^2, scores and weighted mean, 2 B T^2 H K FLOPs each; "
        "one of them, or its factor 2, is missing",
        2 * projection + 2 * quadratic: "four projections of 2 B T D H K FLOPs each; you have half of that",
        4 * square
        + 2 * of_width: "that is section 1's layer, whose heads are together as wide as the words; here they "
        "have H K numbers",
        4 * square + 2 * quadratic: "all four projections are D by H K, not D by D",
        3 * projection + square + 2 * quadratic: "the output's projection leads from H K numbers to D, not from D to D",
        3 * square + projection + 2 * quadratic: "queries, keys and values have H K numbers a word, not D; of the "
        "projections only the output's is right",
        4 * projection + 2 * of_width: "scores and weighted mean are made of heads of width K, not D / H",
        4 * projection
        + 2 * of_width * H: "each head has K numbers, not D: the scores, and the weighted mean, of a head "
        "take 2 B T^2 K FLOPs",
        4 * projection + 2 * quadratic * H: "K is the width of one head, not of all: you count the quadratic part H "
        "times",
        4 * projection + 2 * quadratic // H: "there are H heads of width K: you count the quadratic part of one",
        4 * projection * H + 2 * quadratic: "H K numbers are all heads together: you count the projections H times",
        4 * projection // H + 2 * quadratic: "the projections are D by H K, not D by K: they serve all heads",
        3 * projection // H + projection + 2 * quadratic: "queries, keys and values have width K in each of H "
        "heads: you count their projections for one head",
        3 * projection // H + projection + 2 * quadratic // H: "queries, keys and values have width K in each of "
        "H heads: you count their projections, scores and weighted mean for one head",
        (4 * projection + 2 * quadratic) // H: "there are H heads of width K: you count everything for one of them",
        (3 * H + 1) * projection + 2 * quadratic: "queries, keys and values have width K in each head, not H K: you "
        "count their projections H times",
        (3 * H + 1) * projection + 2 * quadratic * H: "queries, keys and values have width K in each head, not H K: "
        "you count their projections and the quadratic part H times",
        (4 * projection + 2 * quadratic) * H: "you count everything H times, but H K numbers are all heads together",
        4 * projection + 2 * quadratic + B * T * (3 * H * K + D): "adding a bias is no matrix product: it does not "
        "count here",
        4 * projection + 2 * quadratic + 2 * B * T * (3 * H * K + D): "adding a bias is no matrix product: it does not "
        "count here",
        4 * D * H * K + 3 * H * K + D: "that is the number of parameters",
        4 * D * H * K: "that is the number of weights",
        (4 * projection + 2 * quadratic) // B: "the batch is missing: every sequence is computed",
        4 * projection // B + 2 * quadratic: "the projections work on B T vectors, not on T",
        4 * projection + 2 * quadratic // B: "every sequence of the batch has scores of its own: B is missing there",
        4 * projection + 2 * quadratic * B: "sequences of a batch do not meet: there are B T^2 pairs, not (B T)^2",
    }
    if got in known:
        return known[got]
    if rest == 0 and 1 <= surplus <= 6:
        return (
            f"beside the six products you count {surplus:.0f} B H T^2 more, {surplus:.0f} a score: softmax and scaling "
            "are no matrix products, they do not count here"
        )
    return f"{got:,.0f} is not the count of this layer's six products"


# --- exercise 10.2: three crossovers ------------------------------------------------------


@check(
    hints=(
        "Write both sides with their constants; B, D and a factor T cancel, and T stands alone on one side.",
        "Projections 8 T D^2, quadratic part 4 T^2 D, a GRU 3 (4 T D^2), feed-forward 4 T D F.",
        "(a) 8 D + 4 T = 12 D.  (b) 4 T = 8 D.  (c) 4 T = 8 D + 4 F, and F = 2 D.",
    )
)
def crossovers(answer):
    """Exercise 10.2: where attention equals a GRU, its own projections, and the rest of its layer (D = 512)."""
    D = 512
    a, b, c = expect_numbers(answer, ("a", "b", "c"))
    usual = {
        "a": (D, {
            3 * D: "(a) that leaves attention's projections out: 8 T D^2 beside 4 T^2 D",
            4 * D: "(a) the factor 2 is on one side only: 8 T D^2 + 4 T^2 D against 12 T D^2",
            2 * D: "(a) that comes from four gates (an LSTM's), not three, or from one T^2 product instead of two",
            D / 2: "(a) so it would be with 8 T^2 D for the quadratic part; scores and weighted mean take 2 T^2 D "
            "each, 4 T^2 D in all",
            1.5 * D: "(a) a projection is missing: with the output's they are four products of 2 T D^2, not three",
        }),
        "b": (2 * D, {
            D: "(b) 4 T D^2 for the projections is two of the four, or a factor 2 is counted on one side only",
            4 * D: "(b) the quadratic part has two products, scores and weighted mean: 4 T^2 D, not 2 T^2 D",
            1.5 * D: "(b) the output projection is missing: four projections, not three",
        }),
        "c": (4 * D, {
            6 * D: "(c) that is for F = 4 D; here F = 2 D",
            2 * D: "(c) the rest has two parts, projections and feed-forward; one of them is missing, or the quadratic "
            "part is there twice",
            3.5 * D: "(c) a projection is missing: with the output's they are four",
            8 * D: "(c) the quadratic part has two products, scores and weighted mean: 4 T^2 D, not 2 T^2 D",
            3 * D: "(c) the feed-forward network has two matrices: 2 (2 T D F) = 4 T D F",
        }),
    }  # fmt: skip
    sides = {
        "a": ("attention", "the GRU"),
        "b": ("the quadratic part", "the projections"),
        "c": ("the quadratic part", "all the rest"),
    }
    for (name, (wanted, mistakes)), got in zip(usual.items(), (a, b, c), strict=True):
        if not close(got, wanted):  # whole numbers: nothing is rounded
            for value, message in mistakes.items():
                if near(got, value):
                    raise Wrong(message)
            if near(got, wanted / D):
                raise Wrong(f"({name}) that is T / D; put in D = {D}")
            if got <= 0:
                raise Wrong(f"({name}) at T = 0 nothing is computed on either side; wanted is the T > 0 of equality")
            left, right = sides[name]
            if got == wanted + 1:
                raise Wrong(
                    f"({name}) from T = {got:g} on {left} has more FLOPs than {right}; at which T are they equal?"
                )
            than = "fewer FLOPs" if got < wanted else "more FLOPs"
            raise Wrong(f"({name}) at T = {got:g} {left} has {than} than {right}: compute both sides there")


# --- exercise 10.3: the operations of cross-attention and a feed-forward network ------------


@check(
    hints=(
        "Put in sizes that are all different and compare part by part: which sequence does each projection read?",
        "Queries and output: T rows. Keys and values: S rows. A head's vectors: D / H numbers. Every product: twice.",
        "2 (2 B T D D) + 2 (2 B S D D) + 2 (2 B T S D) + 2 (2 B T D F).",
    )
)
def cross_operations(student):
    """Exercise 10.3: a wrong count of cross-attention and feed-forward, repaired."""
    # First sizes at which no two of the explanations below, or sums of them, are the same number.
    for B, T, S, D, H, F in ((2, 4, 7, 15, 5, 29), (3, 8, 4, 10, 2, 9)):
        got = expect_number(_count(student, (B, T, S, D, H, F)), "the count")
        layer, x, memory = MultiHeadAttention(D, H), torch.ones(B, T, D), torch.ones(B, S, D)
        linear = torch.nn.Sequential(torch.nn.Linear(D, F), torch.nn.Linear(F, D))
        with attention_backend("math"):
            wanted = count_operations(layer, x, memory) + count_operations(linear, x)
        if got == wanted:
            continue
        bugs = {  # what the colleague does in each part of the count
            4 * B * (T - S) * D * D: "keys and values are made from S vectors, not T",
            4 * B * T * S * D * (H - 1): "a head has width D / H: all heads together cost what one of width D does",
            -2 * B * T * D * F: "in the feed-forward network a multiplication with its addition is 2 FLOPs too",
        }
        each, all_heads = 2 * B * T * S * D, 4 * B * T * S * D
        others = (  # and what else goes wrong there
            {
                2 * B * (T - S) * D * D: "one of keys and values is still made from T vectors; both are made from S",
                2 * B * (S - T) * D * D: "three projections read the S vectors; only keys and values do",
                4 * B * (S - T) * D * D: "all projections read the S vectors; queries and output have T rows",
            },
            {
                -each: "two products have T S, scores and weighted mean; you have half of their operations",
                each * (H - 1): "one of scores and weighted mean still has width D in each head; both have D / H",
                all_heads // H - all_heads: "there are H heads of width D / H: you count scores and weighted mean of "
                "one",
                4 * B * S * (S - T) * D: "scores and weights are T by S, each query with each key; you count S by S",
                4 * B * T * (T - S) * D: "scores and weights are T by S, each query with each key; you count T by T",
            },
            {
                4 * B * T * D * F: "in the feed-forward network there are two products of 2 B T D F, not four",
                4 * B * (S - T) * D * F: "the feed-forward network works on the T outputs, not on the S keys",
            },
        )
        if got == wanted // B:
            raise Wrong("the batch is missing")
        parts = [[bug, *other.items()] for bug, other in zip(bugs.items(), others, strict=True)]
        for number in (1, 2, 3):  # as few things as explain the count, at most one in each part
            found = [
                faults
                for chosen in itertools.combinations(parts, number)
                for faults in itertools.product(*chosen)
                if got - wanted == sum(gap for gap, _ in faults)
            ]
            if len(found) == 1:
                new = [message for gap, message in found[0] if gap not in bugs]
                if not new:
                    raise Wrong(f"{number} of the 3 bugs left; look here: {found[0][0][1]}")
                raise Wrong(new[0] if number == 1 else f"{number} things are still wrong; look here: {new[0]}")
            if found:
                break
        raise Wrong(f"with B={B}, T={T}, S={S}, D={D}, H={H}, F={F} torch counts {wanted:,}, you count {got:,.0f}")
    _forbid(student, (2, 9, 6, 8, 4, 5))


# --- exercise 10.4: the parameters of the original model ------------------------------------


@check(
    hints=(
        "Write down the shapes first: four matrices D by D with biases; D by F and F by D with biases; norms.",
        "Attention 4 (D^2 + D); network 2 D F + F + D; a norm 2 D. Encoder layer: attention, network, two norms. "
        "Decoder layer: two attentions, network, three norms.",
        "In the encoder layer: 1,050,624 + 2,099,712 + 2,048. The table has 37,000 rows of 512, once.",
    )
)
def parameters_by_hand(answer):
    """Exercise 10.4: parameters of an encoder layer, a decoder layer, the layers, the whole base model."""
    names = ("encoder layer", "decoder layer", "twelve layers", "whole model")
    got = expect_numbers(answer, names)
    D, H, F, table = 512, 8, 2048, 37_000 * 512
    with torch.device("meta"):  # shapes without numbers: nothing is allocated
        in_encoder = number_of_parameters(EncoderLayer(D, H, F))
        in_decoder = number_of_parameters(DecoderLayer(D, H, F))
    layers = 6 * (in_encoder + in_decoder)
    attention, norm = 4 * D * D + 4 * D, 2 * D
    usual = [
        (in_encoder, {
            in_encoder - 4 * D - F - D: "the biases are missing: every linear map has one",
            in_encoder - 3 * D: "the biases of queries, keys and values are missing",
            in_encoder - F - D: "the biases of the feed-forward network are missing",
            in_encoder - 9 * D - F: "these are the large matrices; biases and norms are missing",
            in_encoder - norm: "there are two norms, one after each sublayer, each with a gain and a shift",
            in_encoder - 2 * norm: "4 D are missing: the norms' (each a gain and a shift), or the projections' biases",
            in_encoder + (H - 1) * attention: "heads have width D / H: eight of them need what one of width D needs",
            in_encoder - D * D - D: "an attention has four projections: queries, keys, values, output",
            in_encoder - D * F - D: "the feed-forward network has two matrices, D by F and F by D",
        }),
        (in_decoder, {
            in_encoder: "that is an encoder layer: the cross-attention and its norm are missing",
            in_decoder - norm: "a third sublayer needs a third norm",
            in_encoder + norm: "the third norm is there, but the cross-attention's own projections are missing",
            in_decoder - 4 * D: "4 D are missing: the biases of one of the two attentions, or two norms",
        }),
        (layers, {
            in_encoder + in_decoder: "that is one layer of each kind; there are six",
            12 * in_encoder: "the decoder's layers are larger than the encoder's",
            layers + norm: "1,024 too many, the size of one norm: this model has none at the end of a stack",
            layers + 2 * norm: "a norm at the end of each stack is in torch's nn.Transformer, not in the paper's model",
        }),
        (layers + table, {
            layers: "the table of embeddings is missing",
            layers + 2 * table: "the output layer and both inputs share one table: count it once",
            layers + 3 * table: "the output layer and both inputs share one table: count it once",
            layers + table + norm: "1,024 more than layers and table, the size of one norm: none is added here",
            layers + table + 37_000: "the output layer has no bias here",
        }),
    ]  # fmt: skip
    for name, value, (wanted, mistakes) in zip(names, got, usual, strict=True):
        if value != wanted:
            if math.isclose(1e6 * value, wanted, rel_tol=0.02):
                raise Wrong(f"{name}: {value:g} is in millions; say it in single parameters, all digits of it")
            off = 100 * abs(value / wanted - 1)
            message = mistakes.get(value, f"{value:,.0f} is {off:.3f} % off; all digits are wanted")
            raise Wrong(f"{name}: {message}")


# --- exercise 10.5: what the last output depends on -----------------------------------------


class _Reader:
    """A model whose last output reads the positions in `rows[b]` of sequence b; every other output reads its own.

    A sequence is known by its numbers, whichever row it stands in. With `split`, the first half of the last output's
    entries reads the first position alone, the other half the others. With `signs` (two places a row), the second
    place's gradient is the negative of a positive multiple of the first one's, whatever is made of the output.
    """

    def __init__(self, sequences, rows, scale, split=False, signs=False):
        self.sequences, self.rows, self.scale, self.split, self.signs = sequences, rows, scale, split, signs

    def __call__(self, x):
        weights = torch.zeros_like(x)
        for b, sequence in enumerate(x.detach()):
            places = self.rows[(self.sequences - sequence).abs().sum((1, 2)).argmin()]
            weights[b, list(places)] = self.scale
            if self.split:
                weights[b, min(places), 1], weights[b, list(places - {min(places)}), 0] = 0, 0
            if self.signs:
                weights[b, :, 1], weights[b, max(places), 0] = 0, -self.scale
        last = (weights * x.tanh()).sum(1)
        if self.signs:
            last = torch.stack([last[:, 0]] * 4, -1)
            return torch.cat([torch.cat([x, x], -1)[:, :-1].tanh(), last[:, None]], 1)  # (B, T, 4)
        # Like the output of a LayerNorm: its entries add up to 0, whatever x is.
        last = torch.stack([last[:, 0], -last[:, 0], last[:, 1], -last[:, 1]], -1)
        return torch.cat([torch.cat([x, x], -1)[:, :-1].tanh(), last[:, None]], 1)  # (B, T, 4)


def _special(sequences, slopes, kind):
    """A model whose last output depends, in sequence b, on x with the slopes (B, T, 2); the others read their own.

    Of kind "flat" the output depends on position 3 too, by the third power of the step from x: its slope there is 0.
    Of kind "turning" that output is a vector of length 1, whatever x is: it stands at an angle that x changes. Of kind
    "compared" rows are subtracted from one another, as by a BatchNorm, so that an input's gradients in all rows of
    a batch add up to 0.
    """

    def model(x):
        nearest = [(sequences - sequence).abs().sum((1, 2)).argmin() for sequence in x.detach()]
        own, slope = torch.stack([sequences[b] for b in nearest]), torch.stack([slopes[b] for b in nearest])
        angle = ((x - own) * slope).sum((1, 2))  # 0, exactly, where x is a sequence
        if kind == "flat":
            angle = angle + ((x - own)[:, 3] ** 3).sum(1)
        if kind == "compared" and len(x) > 1:
            angle = (angle - angle.flip(0)) * torch.arange(1, len(x) + 1)
        pair = (angle.cos(), angle.sin()) if kind == "turning" else (angle, 2 * angle)
        last = torch.stack([pair[0], pair[1], -pair[0], -pair[1]], -1) / 2**0.5  # adds up to 0
        return torch.cat([torch.cat([x, x], -1)[:, :-1].tanh(), last[:, None]], 1)  # (B, T, 4)

    return model


@check(
    hints=(
        "Let x require a gradient, take the output at the last position, make one number of it, and differentiate.",
        "last = model(x)[:, -1]; a random direction times last, summed; torch.autograd.grad gives (B, T, D). Where is "
        "anything of it not 0?",
        "(gradient != 0).any(-1).any(0), with gradient of (last * torch.randn(last.shape, dtype=last.dtype)).sum().",
    )
)
def positions_seen(student):
    """Exercise 10.5: the positions on which the last output depends."""
    T = 7
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, T, 2, generator=generator, dtype=torch.float64)
    pairs = [{0, 1}, {2, 3}, {4, 5}]
    for model, places, traps in (
        (_Reader(x, pairs, 1.0, signs=True), {0, 1, 2, 3, 4, 5}, False),
        (_Reader(x, [{1, 2, 5}] * 3, 1.0), {1, 2, 5}, True),
        (_Reader(x, [{0, 4}, {4}, {4, 6}], 1.0), {0, 4, 6}, False),
        (_Reader(x, [{2, 3}] * 3, 1e-30), {2, 3}, False),
        (_Reader(x, [{1, 2, 5}] * 3, 1.0, split=True), {1, 2, 5}, False),
        (_Reader(x, pairs, -1.0, signs=True), {0, 1, 2, 3, 4, 5}, False),
    ):
        got = expect_tensor(student(model, x), shape=(T,), name="the answer")
        if got.dtype != torch.bool:
            raise Wrong(f"the answer has dtype {got.dtype}; wanted bool, True where there is a dependence")
        seen = set(got.nonzero().flatten().tolist())
        if model.signs and len(seen) == 3 and all(len(seen & pair) == 1 for pair in pairs):
            raise Wrong("of two positions whose gradients have opposite signs you found one: a negative gradient is a "
                        "dependence too (did you ask for > 0?)")  # fmt: skip
        if seen == places or (model.signs and model.scale > 0):  # what else is wrong shows below, one thing at a time
            continue
        if traps and seen == {0}:
            raise Wrong("that is what the first output depends on: take the output at the last position, [:, -1]")
        if traps and seen >= set(range(T - 1)):
            raise Wrong("everything is seen: you differentiate all outputs at once, or compare with the wrong thing; "
                        "only the last one is asked for")  # fmt: skip
        if traps and seen == {T - 1 - place for place in places}:
            raise Wrong("the order is turned round: entry t is for position t, not for t steps before the end")
        if not seen and traps:
            raise Wrong("nothing is seen: the entries of this output always add up to 0, like a LayerNorm's, so their "
                        "plain sum has no gradient; take the sum in a random direction")  # fmt: skip
        if model.split and seen < places:
            raise Wrong("a dependence of any of the E entries of the output, on any of the D of the input, counts: you "
                        "looked at one entry, or asked for all of them")  # fmt: skip
        if 0 < model.scale < 1:
            raise Wrong("a gradient of 1e-30 is a gradient: ask whether it is 0, not whether it is small")
        if seen < places and not model.signs:
            raise Wrong("a dependence in any row of the batch counts: you looked at one row, or asked for all of them")
        raise Wrong(f"the last output depends on the positions {sorted(places)}, you found {sorted(seen)}")
    level, opposite = torch.zeros_like(x), torch.zeros_like(x)
    level[:, [1, 4]] = 1.0
    opposite[0, [2, 5]] = torch.tensor([1.0, -1.0], dtype=x.dtype)  # the entries cancel, and so do the rows
    opposite[1] = -opposite[0]
    for slopes, kind, message in (
        (level, "turning", "nothing is seen: this output turns, but its length is always 1, so its norm or the sum of "
         "its squares (or of its absolute values, here) has no gradient; take the sum in a random direction"),
        (opposite, "plain", "nothing is seen: slopes of opposite signs cancel when gradients are added up over entries "
         "or rows; ask of each entry of the gradient whether it is 0, and add up nothing before"),
        (level, "compared", "nothing is seen: this model compares the rows of a batch, as a BatchNorm does, so the "
         "mean of the gradients over the batch is 0; ask of each row, and average nothing before"),
        (level, "flat", "position 3 is seen, though its gradient is exactly 0 here, at a saddle: a small step (a "
         "finite difference) moves the output all the same; ask autograd for the gradient"),
    ):  # fmt: skip
        got = expect_tensor(student(_special(x, slopes, kind), x), shape=(T,), name="the answer")
        seen, places = (set(found.nonzero().flatten().tolist()) for found in (got, slopes.abs().sum((0, 2))))
        if kind == "flat" and seen == {1, 3, 4}:
            raise Wrong(message)
        if seen != places:
            found = f"the last output depends on the positions {sorted(places)}, you found {sorted(seen)}"
            raise Wrong(found if seen else message)
    _leaves_no_trace(student, x)


def _leaves_no_trace(student, x):
    """Refuse an answer that finds the positions but changes its caller's input."""
    gain = torch.ones((), dtype=x.dtype, requires_grad=True)  # the model's only parameter
    getattr(student, "__wrapped__", student)(lambda x: gain * x.cumsum(1), x)  # not guarded: that hands over a copy
    if x.requires_grad:
        also = "" if gain.grad is None else (
            "; and backward() fills the .grad of the model's parameters too, as torch.autograd.grad(number, x) does not"
        )  # fmt: skip
        raise Wrong("the positions are right, but your caller's x now requires a gradient; take x.detach(), a tensor "
                    "of your own, and let that require one" + also)  # fmt: skip
    if x.grad is not None:
        raise Wrong("the positions are right, but your caller's x now has a .grad; let x.detach(), a tensor of your "
                    "own, require the gradient")  # fmt: skip


# --- exercise 10.6: when an RNN is still the better choice ----------------------------------

when_an_rnn = Written(
    hints=(
        "For each of the three cases ask first what is scarce: time for one more step, time to train, or memory.",
        "(a) The last two rows of the table: which of them grow with what was heard so far? (b) Which row says how "
        "many products wait for one another? (c) Put T = 1,000,000 into the rows of both layers. (d) Ask once for the "
        "forward pass, once for what is learned.",
        "(a) A fixed time a sample wants a cost that does not grow. (b) Sequential steps: six against thirty. (c) T^2 "
        "pairs there, a million steps in a row here; windows, dilation, truncation. (d) The state is carried on for "
        "ever, but it has D numbers, and the gradient does not go as far.",
    ),
    good_answer=(
        "(a) What is carried on and the FLOPs for one more token: constant for the LSTM, growing for attention with "
        "all that was heard; so the LSTM, or attention over a short, fixed window. (b) The sequential steps: the "
        "encoder layer has six at any length, the LSTM thirty; at T far below 6D the quadratic part hardly counts. "
        "(c) Attention: FLOPs and, with stored weights, memory for 10^12 pairs; the RNN: a million steps in a row "
        "and a gradient that has vanished. Ways out: a window or a sparse pattern (a kernel that keeps no weights "
        "helps the memory only), dilated convolutions, truncation, or a recurrence computed in parallel. (d) True of "
        "the forward pass: the state may depend on all that was read, at no further cost. Not true of what is learned: "
        "D numbers, a fading gradient, truncation; attention sees T inputs, far ones as well as near ones."
    ),
)
