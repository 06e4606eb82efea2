"""Checks of chapter 02's exercises: BPE, padded batches, masked means, BLEU.

Each check asks for the properties of a right answer first; if one fails, it looks
for the usual mistakes and names the one it recognises. Notebook: 02.
"""

import copy
import itertools
import math
import numbers
import re
from collections import Counter

import torch

from course_lib.exercises import Written, Wrong, check, close, expect_numbers, expect_tensor, near


def _pieces(symbols):
    """The symbols of a word, written with spaces between them."""
    return " ".join(symbols)


def _words(table):
    """{"s e a": 9} -> {("s", "e", "a"): 9}."""
    return {tuple(word.split()): count for word, count in table.items()}


def _bpe_step(student, table):
    """Call the student's bpe_step on a table of words; its pair and its words, of the right types."""
    words = _words(table)
    before = copy.deepcopy(words)
    got = student(words)
    if words != before:
        raise Wrong("your function changed the dictionary it was given: build a new one and leave the input alone")
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"expected a tuple (pair, words), got {type(got).__name__}")
    pair, merged = got
    pair = tuple(pair) if isinstance(pair, list) else pair
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(symbol, str) for symbol in pair)):
        raise Wrong(f"the pair must be a tuple of two strings, got {pair!r}")
    if not isinstance(merged, dict) or not all(isinstance(word, tuple) for word in merged):
        raise Wrong("the words must be a dictionary from tuples of symbols to counts, like the input")
    return pair, merged


def _same_spelling(table, merged):
    """The merge must neither lose words nor change their letters or their counts."""
    want = {"".join(word.split()): count for word, count in table.items()}
    got = {"".join(word): count for word, count in merged.items()}
    if set(got) != set(want):
        raise Wrong(f"after the merge the words spell {sorted(got)}, before it {sorted(want)}: no letter may be lost")
    if got != want:
        raise Wrong(f"the counts of the words changed from {want} to {got}: merging moves symbols, not counts")


@check(
    hints=(
        "Two loops over the words: one to count neighbouring pairs, one to rewrite each word with the winner merged.",
        "Count: for each word, for each pair in zip(word, word[1:]), add the word's count. Choose the largest count, "
        "on a tie the smallest pair. Rewrite: walk through the symbols with an index i; where symbols i and i+1 are "
        "the pair, append their concatenation and move on by 2, else append symbol i and move on by 1.",
        "best = min(counts, key=lambda pair: (-counts[pair], pair)); then, per word: out, i = [], 0; while i < "
        "len(word): step = 2 if word[i:i + 2] == best else 1; out.append(''.join(word[i:i + step])); i += step.",
    )
)
def bpe_step(student):
    """Exercise 2.2: one merge of byte-pair encoding, on small tables of words."""
    table = {"p i a n o": 3, "c a n o e": 2, "l o a n": 4, "n o a h": 9}
    pair, merged = _bpe_step(student, table)
    if pair == ("a", "n"):
        raise Wrong(
            "you merged ('a', 'n'). It stands in as many different words as ('n', 'o'), but in running text ('n', 'o') "
            "occurs more often (14 times against 9): weight each pair by the count of its word"
        )
    if pair != ("n", "o"):
        counts = Counter()
        for word, count in table.items():
            symbols = word.split()
            for neighbours in itertools.pairwise(symbols):
                counts[neighbours] += count
        if pair not in counts:
            raise Wrong(f"{pair} are never neighbours inside one word: a merge does not reach across words")
        raise Wrong(f"you merged {pair}, which occurs {counts[pair]} times; another pair occurs more often")
    if merged == _words(table):
        raise Wrong("the pair is right, but the words came back unmerged: ('n', 'o') must become the symbol 'no'")
    _same_spelling(table, merged)
    if merged != _words({"p i a no": 3, "c a no e": 2, "l o a n": 4, "no a h": 9}):
        shown = ", ".join(_pieces(word) for word in merged)
        raise Wrong(f"the pair is right, but the words became: {shown}. Merge 'n' with 'o' only where 'o' follows 'n'")

    table = {"n a n a": 7, "a n t": 2}
    pair, merged = _bpe_step(student, table)
    _same_spelling(table, merged)
    if ("na", "n", "a") in merged:
        raise Wrong("'n a n a' became 'na n a': merge every occurrence of the pair in a word, not only the first")
    if pair == ("a", "n"):
        raise Wrong(
            "you merged ('a', 'n'), which occurs 9 times; ('n', 'a') stands at two places of 'n a n a', so it occurs "
            "14 times: count a pair at every place in a word, not once for each word"
        )
    if pair != ("n", "a") or merged != _words({"na na": 7, "a n t": 2}):
        raise Wrong(f"in 'n a n a' (7 times) the pair ('n', 'a') occurs 14 times; you merged {pair}")

    table = {"o o o": 5, "x o": 3}
    pair, merged = _bpe_step(student, table)
    if ("oo", "oo") in merged:
        raise Wrong("'o o o' became 'oo oo': the middle symbol was used twice. After a merge move on by two symbols")
    _same_spelling(table, merged)
    if ("o", "oo") in merged:
        raise Wrong("'o o o' became 'o oo': merge from left to right")

    table = {"b c": 6, "ab c": 2, "d b c": 3}
    pair, merged = _bpe_step(student, table)
    _same_spelling(table, merged)
    if ("abc",) in merged:
        raise Wrong(
            "'ab c' became 'abc', but the pair is ('b', 'c') and 'ab' is another symbol: compare whole symbols, "
            "do not replace inside the joined string"
        )
    if pair != ("b", "c") or merged != _words({"bc": 6, "ab c": 2, "d bc": 3}):
        raise Wrong(f"with symbols of several letters you merged {pair}; ('b', 'c') occurs 9 times")

    pair, _ = _bpe_step(student, {"th e": 5, "th at": 4, "e a": 6})
    if pair == ("t", "h"):
        raise Wrong(
            "you merged ('t', 'h'), but 'th' is one symbol already: count neighbouring symbols, not the letters of the "
            "joined word"
        )
    if pair != ("e", "a"):
        raise Wrong(f"with symbols of several letters you merged {pair}; ('e', 'a') occurs 6 times, ('th', 'e') 5")
    pair, _ = _bpe_step(student, {"b c": 4, "ab c": 3, "x y": 6})
    if pair == ("b", "c"):
        raise Wrong(
            "you counted ('b', 'c') in 'ab c' too, where the symbols are 'ab' and 'c': a pair is two whole symbols, "
            "not a piece of the word's text"
        )
    if pair != ("x", "y"):
        raise Wrong(f"among 'b c' (4 times), 'ab c' (3) and 'x y' (6) you merged {pair}")

    pair, _ = _bpe_step(student, {"s t": 4, "p q": 4, "m n": 3})
    if pair != ("p", "q"):
        raise Wrong(f"('p', 'q') and ('s', 't') both occur 4 times and you took {pair}: on a tie take the smaller pair")
    pair, _ = _bpe_step(student, {"p z": 4, "p q": 4, "m n": 3})
    if pair != ("p", "q"):
        raise Wrong(
            f"('p', 'q') and ('p', 'z') both occur 4 times and you took {pair}: compare the whole pairs, their first "
            "symbols are equal"
        )
    pair, _ = _bpe_step(student, {"a bc": 4, "ab a": 4, "m n": 3})
    if pair != ("a", "bc"):
        raise Wrong(
            f"('a', 'bc') and ('ab', 'a') both occur 4 times and you took {pair}: compare the pairs as tuples, first "
            "symbol with first symbol, not their joined texts"
        )
    pair, _ = _bpe_step(student, {"a a a": 3, "b c": 4})
    if pair == ("b", "c"):
        raise Wrong(
            "you merged ('b', 'c'), which occurs 4 times; in 'a a a' (3 times) the pair ('a', 'a') stands at two "
            "places, so it occurs 6 times: count overlapping places too. Only the merge uses each symbol once"
        )
    if pair != ("a", "a"):
        raise Wrong(f"among 'a a a' (3 times) and 'b c' (4 times) you merged {pair}; ('a', 'a') occurs 6 times")


# --- 2.3 ------------------------------------------------------------------------


def _batches(texts, stoi, batch_size, max_len, order="kept", T="batch", last=True, cut="first", unknown="<unk>",
             pad="<pad>", left=False, mask="lengths", where="texts", split=str.split):  # fmt: skip
    """The right batches, or those of a usual mistake: [(rows of ids, rows of the mask, positions), ...]."""
    pieces = [split(string) for string in texts]
    kept = [{"first": row[:max_len], "last": row[-max_len:], "none": row}[cut] for row in pieces]
    if unknown is None:
        kept = [[token for token in row if token in stoi] for row in kept]
    unknown, pad = stoi.get(unknown, unknown), stoi.get(pad, pad)
    rows = [[stoi.get(token, unknown) for token in row] for row in kept]
    key = {
        "kept": lambda i: len(rows[i]),
        "none": lambda i: 0,
        "full": lambda i: len(pieces[i]),
        "longest": lambda i: -len(rows[i]),
        "ties": lambda i: (len(rows[i]), -i),
        "text": lambda i: (len(rows[i]), rows[i]),
    }[order]
    indices, found = sorted(range(len(rows)), key=key), []
    for start in range(0, len(rows), batch_size):
        chunk = indices[start : start + batch_size]
        if len(chunk) < batch_size and not last:
            continue
        width = {"batch": max(len(rows[i]) for i in chunk), "all": max(map(len, rows)), "max_len": max_len}[T]
        ids, real = [], []
        for i in chunk:
            fill = [pad] * (width - len(rows[i]))
            ids.append(fill + rows[i] if left else rows[i] + fill)
            true = [True] * len(rows[i])
            real.append([False] * len(fill) + true if left else true + [False] * len(fill))
        real = {
            "lengths": real,
            "inverse": [[not entry for entry in row] for row in real],
            "all": [[True] * width for _ in ids],
            "ids": [[entry != pad for entry in row] for row in ids],
        }[mask]
        positions = {
            "texts": chunk,
            "batch": list(range(len(chunk))),
            "sorted": list(range(start, start + len(chunk))),
            "looked up": [texts.index(texts[i]) for i in chunk],
        }
        found.append((ids, real, positions[where]))
    return found


def _read_batches(got, texts):
    """What came back, as nested lists of numbers; `Wrong` if a type is not right."""
    note = " (one text is empty, and torch.tensor([]) holds floats)" if "" in texts else ""
    if isinstance(got, (torch.Tensor, dict, str)) or not hasattr(got, "__iter__"):
        raise Wrong(f"expected a list of batches, got {type(got).__name__}; is a return missing?")
    if hasattr(got, "__next__"):
        raise Wrong(f"you return a {type(got).__name__}, which can be read only once: return a list, it is read again "
                    "in every epoch")  # fmt: skip
    found = []
    for batch in got:
        if not isinstance(batch, (tuple, list)) or len(batch) != 3:
            shown = f"{len(batch)} entries" if isinstance(batch, (tuple, list)) else type(batch).__name__
            raise Wrong(f"each batch must be a tuple (ids, real, where), got {shown}")
        ids, real, where = batch
        for name, tensor, dtype in (("ids", ids, torch.int64), ("real", real, torch.bool)):
            expect_tensor(tensor, name=name)
            if tensor.dtype != dtype:
                raise Wrong(f"{name} has dtype {tensor.dtype}; wanted {dtype}{note}")
            if tensor.ndim != 2:
                raise Wrong(f"{name} has shape {tuple(tensor.shape)}; wanted two axes, (B, T)")
        if ids.shape != real.shape:
            raise Wrong(f"ids has shape {tuple(ids.shape)} and real {tuple(real.shape)}; both are (B, T)")
        if not hasattr(where, "__iter__"):
            raise Wrong(f"where is a {type(where).__name__}; wanted the B positions of the rows in `texts`")
        where = where.tolist() if hasattr(where, "tolist") else list(where)
        if any(isinstance(i, (float, list)) for i in where):
            raise Wrong(f"where holds {where}; wanted the positions in `texts`, B integers")
        found.append((ids.tolist(), real.tolist(), [int(i) for i in where]))
    return found


_BATCH_MISTAKES = {
    "your batches follow the order of `texts`: sort by length first, so that a batch has rows of similar length": {
        "order": "none"
    },
    "you sort by the full length and cut afterwards: sort by the length that is kept": {"order": "full"},
    "your first batch holds the longest texts; wanted the shortest first": {"order": "longest"},
    "texts of equal length changed their order: of equal lengths, the one that comes first in `texts` comes first": {
        "order": "ties"
    },
    "texts of equal length are sorted by their ids: sort by the length alone": {"order": "text"},
    "every batch is padded to the longest text of all: T is the longest row of its own batch": {"T": "all"},
    "every batch is padded to max_len: T is the longest row of its own batch": {"T": "max_len"},
    "texts are missing: the last batch has fewer than batch_size, but it must not be dropped": {"last": False},
    "you keep the last max_len tokens of a long text; wanted the first": {"cut": "last"},
    "max_len is not used: a text keeps its first max_len tokens only": {"cut": "none"},
    "a token that stoi does not know is left out: it becomes <unk>": {"unknown": None},
    "a token that stoi does not know became padding: it becomes <unk>": {"unknown": "<pad>"},
    "the free places hold the id of <unk>: fill them with that of <pad>": {"pad": "<unk>"},
    "the padding stands before the tokens; this course pads on the right": {"left": True},
    "your mask is True at the padding. Here True = a real token": {"mask": "inverse"},
    "your mask is True everywhere, so the padding counts as text": {"mask": "all"},
    "the text 'b <pad> a' has three real tokens, and your mask hides one: it was read off the ids. Take it from the "
    "lengths": {"mask": "ids"},
    "`where` counts the rows of the batch: wanted the positions of these texts in `texts`": {"where": "batch"},
    "`where` counts the texts after sorting: wanted their positions in `texts`": {"where": "sorted"},
    "two texts are equal, and `where` names the position of the first for both: look no text up, keep its position": {
        "where": "looked up"
    },
    "'B' and 'b' are two tokens, and you lower-case the text: look a token up as it stands": {
        "split": lambda string: string.lower().split()
    },
    "'a!' is one token, and you cut the mark off: tokens are separated by spaces, and by nothing else": {
        "split": lambda string: re.findall(r"\w+|[^\w\s]", string)
    },
    "an empty text became one <unk>: it has no token, so its row is all padding. ''.split(' ') is a list with one "
    "empty string, ''.split() an empty list": {"split": lambda string: string.split(" ")},
}


@check(
    hints=(
        "Go step by step: tokens, cut, ids, then sort the positions 0 .. N - 1 by length, then cut that list into "
        "chunks, then pad each chunk.",
        "rows = the ids of each text, at most max_len; order = the positions sorted by len(rows[i]); for each chunk of "
        "batch_size positions: T = the longest row of the chunk; ids = a (B, T) tensor full of <pad>, real = (B, T) "
        "False; write each row's ids and as many True.",
        "sorted(range(len(rows)), key=lambda i: len(rows[i])) keeps the order of equal lengths; "
        "order[start:start + batch_size] is a chunk, for start in range(0, len(rows), batch_size).",
    )
)
def padded_batches(student):
    """Exercise 2.3: texts to padded batches, on seven, on five, on four and on three short texts, one of them empty."""
    tokens = ("<unk>", "<pad>", "a", "b", "c", "d", "e", "B", "a!")
    plain_ids = {token: i for i, token in enumerate(tokens)}
    other_ids = {token: 3 * i + 5 for i, token in enumerate(reversed(tokens))}
    texts = ["e d c b a", "c", "b <pad> a", "b zzz", "d d d a b c e", "a a a", "c a a"]
    for arguments in (
        (texts, plain_ids, 4, 9),
        (["a b c d e", "e d c b", "b", "a what <pad>", "d c"], other_ids, 2, 4),
        (["B a", "e a! c", "b a", "b a"], plain_ids, 3, 5),
        (["b a", "", "c"], plain_ids, 2, 5),
    ):
        got, want = _read_batches(student(*arguments), arguments[0]), _batches(*arguments)
        if got == want:
            continue
        for message, change in _BATCH_MISTAKES.items():
            wrong = _batches(*arguments, **change)
            if got == wrong:
                raise Wrong(message)
        _explain_batches(got, want, arguments)


def _explain_batches(got, want, arguments):
    """Say where batches begin to differ from the right ones."""
    texts, stoi, batch_size, _ = arguments
    if len(got) != len(want):
        raise Wrong(f"{len(texts)} texts with batch_size {batch_size} make {len(want)} batches; you return {len(got)}")
    for number, ((ids, real, where), (right_ids, right_real, right_where)) in enumerate(zip(got, want, strict=True)):
        if where != right_where:
            raise Wrong(f"batch {number} holds the texts {where}; by length it should hold {right_where}")
        if (len(ids), len(ids[0])) != (len(right_ids), len(right_ids[0])):
            shape = (len(right_ids), len(right_ids[0]))
            raise Wrong(f"batch {number} has shape {(len(ids), len(ids[0]))}; wanted {shape}")
        for row, right, true, right_true, i in zip(ids, right_ids, real, right_real, where, strict=True):
            n = sum(right_true)
            if row[:n] != right[:n]:
                raise Wrong(
                    f"the text {texts[i]!r} has the ids {right[:n]}, with stoi as given; your row begins {row[:n]}"
                )
            if row[n:] != right[n:]:
                raise Wrong(f"the free places hold {sorted(set(row[n:]))}; stoi['<pad>'] is {stoi['<pad>']}")
            if true != right_true:
                raise Wrong(f"the mask of {texts[i]!r} has {sum(true)} real tokens; the text keeps {n}")


@check(
    hints=(
        "Look at a short row: by how many numbers does it add up, and by how many does it divide?",
        "Zero the padded vectors, sum over the steps, divide by the number of real tokens of that row; "
        "a row with no token has nothing to divide by, so keep its divisor at least 1.",
        "total = (vectors * mask.unsqueeze(-1)).sum(1); count = mask.sum(1, keepdim=True).clamp(min=1); total / count",
    )
)
def masked_mean(student):
    """Exercise 2.1: the mean over the real tokens, and over nothing else."""
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]).bool()
    vectors[1, 3] = 0.0  # a real token whose vector is zero
    got = student(vectors, mask)
    expect_tensor(got, shape=(3, 4))
    real = mask.unsqueeze(-1)
    total = (vectors * real).sum(1)
    count = mask.sum(1, keepdim=True)
    if not close(got, total / count):
        if close(got, total / 5):
            raise Wrong(
                "the padded vectors are zero but still counted: the row with 2 tokens of 5 comes out 2/5 of its mean. "
                "Divide by the number of real tokens, not by T"
            )
        if close(got, total / (vectors.ne(0).any(2) & mask).sum(1, keepdim=True)):
            raise Wrong(
                "row 1 has 5 real tokens, one of them with the vector zero, and you divide by 4: a token counts "
                "because the mask says so, whatever its vector is"
            )
        if close(got, vectors.mean(1)):
            raise Wrong("the padding takes part in your mean: the mask is not used")
        if close(got, vectors.sum(1) / count):
            raise Wrong(
                "you divide by the number of real tokens, but the sum still holds the padding's vectors: mask the "
                "vectors too"
            )
        if close(got, total):
            raise Wrong("this is the sum over the real tokens: long texts come out larger than short ones")
        if close(got, total / mask.sum()):
            raise Wrong("you divide every row by the 8 real tokens of the whole batch: count them per row")
        if close(got, (vectors * ~real).sum(1) / (~mask).sum(1, keepdim=True).clamp(min=1)):
            raise Wrong("you averaged the padding and left out the tokens: True = real token")
        if close(got, vectors.masked_fill(~real, -math.inf).amax(1)):
            raise Wrong("this is the largest value over the real tokens, not their mean")
        if close(got, torch.zeros_like(got)):
            raise Wrong("every mean is zero, though the tokens' vectors are not")
        if close(got[:2], (total / count)[:2]):
            raise Wrong("the row with a single token is wrong: its mean is this token's vector")
        raise Wrong(
            f"row 0 has two real tokens whose first features are {vectors[0, 0, 0]:.3f} and {vectors[0, 1, 0]:.3f}; "
            f"you return {got[0, 0]:.3f}, which is not their mean"
        )
    holes = mask[:, [4, 0, 3, 1, 2]]  # the same counts, the real tokens in other places
    if not close(student(vectors, holes), (vectors * holes.unsqueeze(-1)).sum(1) / count):
        raise Wrong(
            "right while the padding stands at the end, wrong for a row whose first entry is not a token: use the mask "
            "itself, which says where the real tokens are, not only how many True it has"
        )
    longer = torch.cat([vectors, torch.full((3, 2, 4), 50.0, dtype=torch.float64)], dim=1)
    if not close(student(longer, torch.cat([mask, torch.zeros(3, 2, dtype=torch.bool)], dim=1)), total / count):
        raise Wrong("two more steps of padding change the result: it must not depend on how far a batch is padded")
    empty = student(vectors, torch.zeros(3, 5, dtype=torch.bool))
    expect_tensor(empty, shape=(3, 4))
    if empty.isnan().any():
        raise Wrong("a row without any real token gives nan (0 / 0), and one nan spoils the whole batch: return zeros")
    if not close(empty, torch.zeros_like(empty)):
        raise Wrong("a row without any real token must give zeros")
    slow = vectors.clone().requires_grad_()
    with_empty = mask.clone()
    with_empty[2] = False
    slope = None
    if student(slow, with_empty).requires_grad:
        found = getattr(student, "__wrapped__", student)(slow, with_empty)  # not guarded: that hands over a copy
        (slope,) = torch.autograd.grad(found.sum(), slow, allow_unused=True)
    if slope is None:
        raise Wrong("no gradient flows through your mean (is there a detach, or .data?): a network could not learn")
    if not slope.isfinite().all():
        raise Wrong(
            "the values are right, but with a row without tokens the gradients are nan: 0 / 0 was computed and then "
            "replaced. Do not divide by zero in the first place"
        )
    weights = with_empty / with_empty.sum(1, keepdim=True).clamp(min=1)  # (B, T)
    if not close(slope, weights[..., None].expand_as(slope)):
        raise Wrong("the values are right, the gradients are not: each real token's is 1 / (number of real tokens)")


def _expect_three_digits(got, want):
    """A right answer that was rounded too far gets a message of its own."""
    pairs = list(zip(got, want, strict=True))
    if all(math.isclose(a, b, rel_tol=2e-2) for a, b in pairs) and not all(near(a, b) for a, b in pairs):
        raise Wrong("right to two digits: give three digits of each number")


@check(
    hints=(
        "Draw the two batches as rectangles and count: cells in all, cells that hold a token.",
        "Per way of batching: add up the cells (2 x longest length) of both batches, subtract the 17 tokens, and "
        "divide by the cells.",
        "As given: rectangles 2 x 10 and 2 x 4, so (28 - 17) / 28. Sorted: 1 with 2, 4 with 10. Fixed: 4 x 12 cells.",
    )
)
def padding_shares(answer):
    """Exercise 2.4: three fractions of padding, worked out by hand."""
    names = ("as given", "sorted by length", "fixed length 12")
    got = expect_numbers(answer, names)
    want = (11 / 28, 7 / 24, 31 / 48)
    if all(near(a, b) for a, b in zip(got, want, strict=True)):
        return
    _expect_three_digits(got, want)
    if all(near(a, 100 * b) for a, b in zip(got, want, strict=True)):
        raise Wrong("these are percentages: give fractions between 0 and 1")
    if all(near(a, 1 - b) for a, b in zip(got, want, strict=True)):
        raise Wrong("these are the fractions of real tokens: the padding is the rest")
    if all(near(a, b) for a, b in zip(got, (11, 7, 31), strict=True)):
        raise Wrong("these are counts of padding: divide each by the number of cells, tokens and padding")
    if all(near(a, b / 17) for a, b in zip(got, (11, 7, 31), strict=True)):
        raise Wrong("you divided the padding by the number of tokens: the fraction is of all cells, tokens and padding")
    if near(got[0], want[1]) and near(got[1], want[0]):
        raise Wrong("(a) and (b) are swapped: (a) is the order as given, (b) is sorted by length")
    if near(got[0], 0.35) or near(got[1], 0.275):
        raise Wrong(
            "you averaged the two batches' fractions, as if both batches had as many cells: add up the cells first, "
            "then divide once"
        )
    if near(got[0], want[0]) and near(got[1], want[0]):
        raise Wrong("(b) is the same as (a), which is right: did you sort? Then other reviews share a batch")
    for name, a, b in zip(names, got, want, strict=True):
        if near(a, 1 - b):
            raise Wrong(f"'{name}': {a:.3f} is the fraction of real tokens; the padding is the rest")
        if not near(a, b) and not 0 <= a <= 1:
            raise Wrong(f"'{name}': {a:g} cannot be a fraction of the cells, which lies between 0 and 1")
        if not near(a, b):
            raise Wrong(f"'{name}' is not right yet: {a:.3f} of the cells would be padding. Count its rectangles again")


ngrams_and_order = Written(
    hints=(
        "Write two patterns side by side, 1 and 5 for instance, and mark the words before and after YES and NO.",
        "(a) Look at the strongest n-grams for n = 2, then at the patterns that stay near one half: 3 with 4, 7 with "
        "8. Which neighbours does YES have in one, and NO in its twin? (b) Compare the features for n = 1, 2, 3 and 5, "
        "and the accuracy with 100 reviews. (c) How many words may stand between the deciding word and the judged one?",
        "(a) 'not NO' and 'be NO' against 'was YES' decide; in the twins the same bigram stands once beside YES and "
        "once beside NO, and a trigram reaches one word further. (b) A weight can only be learned from reviews that "
        "hold its n-gram. (c) Put 'nobody' more than n words before 'great', and nothing nearer that gives it away.",
    ),
    good_answer=(
        "(a) patterns 1, 2, 5 and 6, by the word before the judged one (not NO, be NO, was YES); in 3 and 4, 7 and 8 "
        "the bigrams vote for opposite labels in the two twins; trigrams such as 'YES , and' or 'found it YES' tell "
        "them apart. (b) The features grow from some 60 to thousands, most of them seen a few times, so fewer reviews "
        "teach less about each. (c) A review that keeps all its n-grams when the two judged words are swapped, or one "
        "whose deciding word is more than n words away with nothing nearer that gives it away; the model must carry "
        "that word along, or look back at every earlier word."
    ),
)


def _grams(tokens, n):
    """Counts of the n-grams of a sentence."""
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def _pair_of_counts(got):
    """(matches, total) as two whole numbers, or a message."""
    if isinstance(got, float):
        raise Wrong(
            "expected (matches, total), two whole numbers, got one float: do not divide yet, a corpus pools them"
        )
    if isinstance(got, torch.Tensor) and got.ndim:  # both numbers in one tensor
        got = got.tolist()
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"expected a tuple (matches, total), got {type(got).__name__}")
    pair = [value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value for value in got]
    if not all(isinstance(value, numbers.Integral) and not isinstance(value, bool) for value in pair):
        raise Wrong(f"matches and total must be whole numbers, got {got}")
    return int(pair[0]), int(pair[1])


@check(
    hints=(
        "collections.Counter counts n-grams; its operators & (smaller count) and | (larger count) do the clipping.",
        "Count the hypothesis's n-grams. For each n-gram find the most that any single reference has of it. A match "
        "counts at most that often. total = number of n-grams in the hypothesis.",
        "most = Counter(); for reference in references: most |= grams(reference); "
        "matches = sum((grams(hypothesis) & most).values())",
    )
)
def clipped_precision(student):
    """Exercise 2.6: matches and total of one sentence's modified n-gram precision."""
    hypothesis = "a a a d a b a a".split()
    references = ["a c d".split(), "b a b c c c a a c".split()]
    got = _pair_of_counts(student(list(hypothesis), [list(r) for r in references], 1))
    if got != (5, 8):
        matches, total = got
        if got == (8, 5):
            raise Wrong("you return (8, 5), which is (total, matches): swap them")
        if matches in (20, 38):
            raise Wrong(
                f"you count {matches} matches for 8 unigrams: you looped over every occurrence and added its whole "
                "count each time. Loop over the different n-grams"
            )
        if total == 7:
            raise Wrong("your total is 7, but the hypothesis has 8 unigrams: the last n-gram is missing. "
                        "T tokens have T - n + 1 n-grams")  # fmt: skip
        if total == 3:
            raise Wrong(
                "your total is 3, the number of different unigrams (or the first reference's length); the hypothesis "
                "has 8, repeats included"
            )
        if total in (9, 12):
            raise Wrong(f"your total is {total}, a length of references; precision counts the hypothesis's 8 unigrams")
        if matches == 8:
            raise Wrong(
                "every 'a' counted as a match, six of them, though no reference has more than three: clip each count"
            )
        if matches == 6:
            raise Wrong("you let 'a' match four times, once more than any single reference has it: take the maximum "
                        "over the references, not the sum")  # fmt: skip
        if matches == 1:
            raise Wrong(
                "you count 1 of 8: you took for each word the smallest count among the references. The cap is the "
                "maximum over the references, not the minimum"
            )
        if matches == 3:
            raise Wrong("you counted different words (a set): 'a' occurs six times and three of them match")
        if matches == 4 and _pair_of_counts(student(list(hypothesis), [list(r) for r in references[::-1]], 1)) == got:
            raise Wrong(
                "you scored each reference alone and kept the best: the maximum is taken n-gram by n-gram, so 'a' "
                "may match in one reference and 'd' in another"
            )
        if matches in (2, 4):
            missing = "'b', which only the second" if matches == 2 else "'d', which only the first"
            raise Wrong(f"{missing} reference has, counts as a miss: look at all references")
        raise Wrong(f"for 'a a a d a b a a' against 'a c d' and 'b a b c c c a a c' you count {matches} of {total}")

    hypothesis, references = "x y x y x y".split(), ["x y z x".split(), "w x y v".split()]
    got = _pair_of_counts(student(list(hypothesis), [list(r) for r in references], 2))
    if got == (1, 6):
        raise Wrong("'x y x y x y' has five bigrams and you counted six pieces: the last piece is shorter than n")
    if got[1] == 6:
        raise Wrong("asked for bigrams (n = 2) you counted single words: n is not used")
    if got[1] == 3:
        raise Wrong("'x y x y x y' has five bigrams, overlapping ones included; you counted three")
    if got != (1, 5):
        raise Wrong(f"for the bigrams of 'x y x y x y' you count {got[0]} of {got[1]} matches")

    if _pair_of_counts(student(["ab", "c"], [["a", "bc"]], 2)) != (0, 1):
        raise Wrong(
            "'ab c' matched 'a bc': their letters are the same, their tokens are not. An n-gram is a sequence of "
            "tokens, not one joined string"
        )
    for hypothesis, reference, n, want in (
        (["the"] * 3, ["then", "other", "the"], 1, (1, 3)),
        (["a", "b"], ["xa", "b"], 2, (0, 1)),
    ):
        got = _pair_of_counts(student(list(hypothesis), [list(reference)], n))
        if got != want:
            raise Wrong(
                f"'{' '.join(hypothesis)}' against '{' '.join(reference)}', n = {n}: you count {got[0]} of {got[1]}. "
                "Search among the reference's tokens, not in its joined text: 'the' is not a token of 'other'"
            )
    got = _pair_of_counts(student(["a", "b"], [["a", "b", "c", "d"]], 4))
    if got != (0, 0):
        raise Wrong(f"a sentence of 2 words has no 4-gram: (0, 0), not {got}")
    if _pair_of_counts(student(["a", "b"], [["c", "c", "a", "b"]], 1)) != (2, 2):
        raise Wrong(
            "'a b' against 'c c a b' has 2 matches of 2: count each reference to its own end, it may be longer than "
            "the hypothesis"
        )
    generator = torch.Generator().manual_seed(5)
    for n in (1, 2, 3):
        draw = [["a", "b", "c"][i] for i in torch.randint(3, (19,), generator=generator).tolist()]
        hypothesis, references = draw[:7], [draw[7:12], draw[12:]]
        most = _grams(references[0], n) | _grams(references[1], n)
        want = (sum((_grams(hypothesis, n) & most).values()), 8 - n)
        got = _pair_of_counts(student(list(hypothesis), [list(r) for r in references], n))
        if got != want:
            texts = " | ".join(" ".join(r) for r in references)
            raise Wrong(f"n = {n}, '{' '.join(hypothesis)}' against '{texts}': {got} cannot be right, count by hand")


@check(
    hints=(
        "Write the 8 unigrams and the 7 bigrams of the hypothesis in a column and tick those in the reference.",
        "p1 = ticked unigrams / 8, with 'the' ticked once only. p2 = ticked bigrams / 7. The hypothesis is shorter "
        "(8 against 10), so BP = exp(1 - 10/8). BLEU-2 = 100 BP sqrt(p1 p2).",
        "p1 = 6/8. The ticked bigrams are 'cast and' and 'script were'.",
    )
)
def bleu_by_hand(answer):
    """Exercise 2.7: p1, p2, brevity penalty and BLEU-2 of one pair, worked out by hand."""
    names = ("p1", "p2", "BP", "BLEU-2")
    p1, p2, bp, bleu = expect_numbers(answer, names)
    want_bp, product = math.exp(1 - 10 / 8), 6 / 8 * 2 / 7
    _expect_three_digits((p1, p2, bp, bleu), (6 / 8, 2 / 7, want_bp, 100 * want_bp * math.sqrt(product)))
    for name, value in (("p1", p1), ("p2", p2)):
        if not 0 <= value <= 1:
            raise Wrong(f"{name}: {value:g} is not a fraction between 0 and 1; only BLEU-2 is on the scale of 0 to 100")
    if near(p1, 7 / 8):
        raise Wrong("p1: the hypothesis says 'the' twice and the reference once, so the second is clipped")
    if near(p1, 6 / 10):
        raise Wrong("p1: you divided by the 10 words of the reference (that is recall); precision divides by 8")
    if not near(p1, 6 / 8):
        raise Wrong(f"p1: {p1:.3f} of the 8 unigrams would be {8 * p1:.1f} matches. Tick them again")
    if near(p2, 2 / 8):
        raise Wrong("p2: a sentence of 8 words has 7 bigrams, not 8")
    if not near(p2, 2 / 7):
        raise Wrong(f"p2: {p2:.3f} of the 7 bigrams would be {7 * p2:.1f} matches. Tick them again")
    if near(bp, 1.0):
        raise Wrong("BP: the hypothesis has 8 words and the reference 10, so there is a penalty")
    if near(bp, math.exp(1 - 8 / 10)):
        raise Wrong("BP: above 1 it would be a reward for being short; the ratio in the exponent is upside down")
    if near(bp, 8 / 10):
        raise Wrong("BP: this is the ratio of the lengths; the penalty is exp(1 - r/c)")
    if near(bp, 100 * want_bp):
        raise Wrong(f"BP: {bp:g} is a percentage; only BLEU-2 is on the scale of 0 to 100")
    if not near(bp, want_bp):
        raise Wrong(f"BP: {bp:.3f} is not exp(1 - r/c) for c = 8 and r = 10")
    if near(bleu, want_bp * math.sqrt(product)):
        raise Wrong("BLEU-2 is right as a fraction; the score is given on the scale of 0 to 100")
    if near(bleu, 100 * want_bp * (6 / 8 + 2 / 7) / 2):
        raise Wrong("BLEU-2: you took the arithmetic mean of p1 and p2; BLEU takes the geometric mean")
    if near(bleu, 100 * want_bp * product):
        raise Wrong("BLEU-2: you multiplied p1 and p2; the geometric mean also takes the square root")
    if near(bleu, 100 * math.sqrt(product)):
        raise Wrong("BLEU-2: the brevity penalty is missing from the product")
    if not near(bleu, 100 * want_bp * math.sqrt(product)):
        raise Wrong(f"BLEU-2: your p1, p2 and BP are right, but 100 BP sqrt(p1 p2) is not {bleu:.2f}")
