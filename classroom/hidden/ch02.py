"""Hidden tests of chapter 02: merges by regular expression, means row by row, n-grams ticked off one by one."""

import math
import re
from itertools import pairwise

import torch
from torch.nn.utils.rnn import pad_sequence

from classroom.hidden import Hidden, agree, on_paper
from course_lib.exercises import Wrong


def draw_bpe_step(draw):
    while True:
        symbols = draw.sample(["a", "b", "c", "ab", "ba", "bc"], draw.randint(2, 4))
        lengths = [draw.randint(1, 6) for _ in range(draw.randint(2, 8))]
        words = {tuple(draw.choices(symbols, k=length)): draw.randint(1, 4) for length in lengths}
        if any(len(word) > 1 for word in words) and is_decided(words):
            return ([[list(word), count] for word, count in words.items()],)


def is_decided(words):
    """Say whether the text decides: no two words become one."""
    pair = most_frequent(words)
    return len({merged(word, pair) for word in words}) == len(words)


def most_frequent(words):
    """Return the pair that occurs most often, on a tie the smallest; places that overlap count, each of them."""

    def times(word, pair):
        return sum(word[i : i + 2] == pair for i in range(len(word) - 1))

    pairs = sorted({pair for word in words for pair in pairwise(word)})
    return max(pairs, key=lambda pair: sum(count * times(word, pair) for word, count in words.items()))


def merged(word, pair):
    """Return a word with the pair joined, as in the paper's own code: a regular expression on the spaced word."""
    pattern = r"(?<!\S)" + re.escape(" ".join(pair)) + r"(?!\S)"
    return tuple(re.sub(pattern, "".join(pair), " ".join(word)).split())


def probe_bpe_step(answer, words):
    def rows(table):
        return sorted([list(word), count] for word, count in table.items())

    table = {tuple(word): count for word, count in words}
    pair, joined = answer(table)
    return pair, rows(joined), rows(table)


def right_bpe_step(words):
    pair = most_frequent({tuple(word): count for word, count in words})
    return pair, sorted([list(merged(word, pair)), count] for word, count in words), sorted(words)


def draw_padded_batches(draw):
    tokens = ["<pad>", *"abcdefg"][: draw.randint(3, 8)]
    names = draw.sample(range(20), len(tokens) + 1)
    stoi = dict(zip(["<unk>", *tokens], names, strict=True))
    count, batch_size = draw.sizes(2, low=2, high=9)
    texts = [" ".join(draw.choices([*tokens, "unheard"], k=draw.randint(1, 7))) for _ in range(count)]
    if draw.random() < 0.5:
        texts[draw.randrange(count)] = ""  # a row without a token; never alone in its batch
    else:
        batch_size = draw.choice([batch_size, 1])
    return texts, stoi, batch_size, draw.randint(2, 8)


def probe_padded_batches(answer, texts, stoi, batch_size, max_len):
    found = answer(texts, stoi, batch_size, max_len)
    return [[ids, real, [int(i) for i in where]] for ids, real, where in found]


def right_padded_batches(texts, stoi, batch_size, max_len):
    """By pad_sequence, with the texts of each length picked in turn."""
    tokens = [text.split()[:max_len] for text in texts]
    rows = [torch.tensor([stoi[t] if t in stoi else stoi["<unk>"] for t in row], dtype=torch.int64) for row in tokens]
    waiting = [i for length in range(max_len + 1) for i, row in enumerate(rows) if len(row) == length]
    found = []
    while waiting:
        where, waiting = waiting[:batch_size], waiting[batch_size:]
        ids = pad_sequence([rows[i] for i in where], batch_first=True, padding_value=stoi["<pad>"])
        real = pad_sequence([torch.ones_like(rows[i], dtype=torch.bool) for i in where], batch_first=True)
        found.append([ids, real, where])
    return found


def judge_padded_batches(got, wanted):
    """Compare the numbers, and the types as well."""
    agree(got, wanted)
    for ids, _, _ in got:
        if ids.dtype != torch.int64:
            raise Wrong(f"ids has dtype {ids.dtype}; wanted torch.int64")


def draw_masked_mean(draw):
    B, T, D = draw.sizes(3)
    lengths = draw.ids(T + 1, B, low=1)
    lengths[draw.randrange(B)] = 0  # a row without a real token
    vectors = draw.normal(B, T, D)
    vectors[lengths.argmax(), 0] = 0.0  # a real token whose vector is zero
    mask = torch.arange(T) < lengths[:, None]
    if draw.random() < 0.5:  # the mask says where the real tokens are, at the end of a row or anywhere
        mask = mask[:, draw.sample(range(T), T)]
    return vectors, mask


def probe_masked_mean(answer, vectors, mask):
    vectors.requires_grad_()
    means = answer(vectors, mask)
    means.square().sum().backward()
    return means.detach(), vectors.grad


def right_masked_mean(vectors, mask):
    means = torch.zeros(len(vectors), vectors.shape[2], dtype=vectors.dtype)
    slopes = torch.zeros_like(vectors)
    for b, row in enumerate(vectors.tolist()):
        kept = [vector for vector, keep in zip(row, mask[b].tolist(), strict=True) if keep]
        for d, column in enumerate(zip(*kept, strict=True)):
            means[b, d] = math.fsum(column) / len(kept)
            slopes[b, mask[b], d] = 2 * means[b, d] / len(kept)
    return means, slopes


def right_padding_shares():
    def share(*batches):
        cells = [cell for rows in batches for cell in pad_sequence([torch.ones(n) for n in rows]).flatten().tolist()]
        return cells.count(0.0) / len(cells)

    fixed = [cell for n in (1, 10, 2, 4) for cell in [1] * n + [0] * (12 - n)]
    return share((1, 10), (2, 4)), share((1, 2), (4, 10)), fixed.count(0) / len(fixed)


def draw_clipped_precision(draw):
    tokens = draw.sample(["a", "b", "ab", "ba"], 3)  # "a", "ba" is not "ab", "a"

    def sentence(*lengths):
        return draw.choices(tokens, k=draw.choice(lengths))

    n = draw.choice([1, 1, 2, 2, 3, 4])
    return sentence(2, 7, 9, 10), [sentence(1, 3, 4, 6) for _ in range(draw.randint(1, 4))], n


def right_clipped_precision(hypothesis, references, n):
    """The k-th time that an n-gram is said it matches if some reference says it k times."""
    said, matches = [], 0
    for piece in grams(hypothesis, n):
        said.append(piece)
        matches += any(grams(reference, n).count(piece) >= said.count(piece) for reference in references)
    return matches, len(said)


def grams(tokens, n):
    """Return the n-grams of a sentence, repeats included."""
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def right_bleu_by_hand():
    hypothesis = "the cast and the script were both weak".split()
    reference = "cast and script were very weak in the second half".split()
    counted = [right_clipped_precision(hypothesis, [reference], n) for n in (1, 2)]
    p1, p2 = (matches / total for matches, total in counted)
    brevity = math.exp(min(0, 1 - len(reference) / len(hypothesis)))
    return p1, p2, brevity, 100 * brevity * math.exp((math.log(p1) + math.log(p2)) / 2)


TESTS = [
    Hidden("ex02-1-masked-mean-check", "masked_mean", draw_masked_mean, right_masked_mean, probe_masked_mean),
    Hidden("ex02-2-bpe-step-check", "bpe_step", draw_bpe_step, right_bpe_step, probe_bpe_step, cases=40),
    Hidden(
        "ex02-3-padded-batches-check",
        "padded_batches",
        draw_padded_batches,
        right_padded_batches,
        probe_padded_batches,
        judge_padded_batches,
        without=("numericalize", "pad_batch", "length_mask", "bucket_batches"),
        cases=20,
    ),
    on_paper("ex02-4-padding-shares-check", "shares", right_padding_shares),
    Hidden(
        "ex02-6-clipped-precision-check",
        "clipped_precision",
        draw_clipped_precision,
        right_clipped_precision,
        without=("modified_precision",),
        cases=40,
    ),
    on_paper("ex02-7-bleu-by-hand-check", "parts", right_bleu_by_hand),
]
