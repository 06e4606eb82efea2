r"""From strings to tensors: tokens, vocabulary, ids, padding with a mask, bucketing.

Read from top to bottom: `tokenize` and `characters` cut a string, `build_vocab` numbers the
tokens, `numericalize` and `denumericalize` go there and back, `pad_batch` makes a rectangle of
unequal rows and a mask that says which entries are real, `bucket_batches` keeps the padding
small, `train_bpe` and `bpe_tokenize` cut words into learned pieces. At the end stands the same
road with torchtext's `Field` and `BucketIterator`.

torchtext is imported by the functions that use it, so that importing the course stays fast.

Notebook: 02.
"""

import itertools
import random
import string as _string
import warnings
from collections import Counter, defaultdict

import numpy as np
import torch

UNK, PAD, SOS, EOS = 0, 1, 2, 3
SPECIALS = ("<unk>", "<pad>", "<sos>", "<eos>")
END_OF_WORD = "</w>"

_MARKS = [(mark, f" {mark} ") for mark in _string.punctuation if mark != "'"]


def tokenize(string):
    """Lower-cased words and punctuation marks of a string.

    Every ASCII punctuation mark is a token of its own, except an apostrophe inside a word
    ("it's" is one token). HTML line breaks, frequent in IMDB's reviews, count as spaces.
    A chain of `str.replace` does this three times as fast as a regular expression.

    Args:
        string: str.

    Returns:
        list of str; empty for a blank string.

    Raises:
        TypeError: if `string` is not a str (a list of strings, for instance).

    Example:
        >>> tokenize("Not terrible, it's GREAT!<br />See 'Alien'.")
        ['not', 'terrible', ',', "it's", 'great', '!', 'see', "'", 'alien', "'", '.']

    Notebook: 02.
    """
    if not isinstance(string, str):
        raise TypeError(f"tokenize wants one string, got {type(string).__name__}")
    string = string.lower().replace("<br />", " ")
    for mark, spaced in _MARKS:
        if mark in string:  # most marks are absent, and looking is cheaper than replacing nothing
            string = string.replace(mark, spaced)
    # Apostrophes at the edge of a word are quotation marks.
    return f" {string} ".replace(" '", " ' ").replace("' ", " ' ").split()


def characters(string):
    """The characters of a string, the smallest vocabulary and the longest sequences.

    Args:
        string: str.

    Returns:
        list of str of length 1.

    Raises:
        TypeError: if `string` is not a str.

    Example:
        >>> characters("to be")
        ['t', 'o', ' ', 'b', 'e']

    Notebook: 02.
    """
    if not isinstance(string, str):
        raise TypeError(f"characters wants one string, got {type(string).__name__}")
    return list(string)


def build_vocab(token_lists, max_size=None, min_freq=1, specials=SPECIALS):
    """A vocabulary: the specials first, then the tokens by falling frequency, ties in alphabetical order.

    The result is torchtext's `Vocab`: `itos` is the list of tokens, `stoi` the dict back, `freqs`
    the counts. Two things to know about it:

    - `vocab.stoi` is a defaultdict: looking an unknown token up in it *stores* the token there,
      so it grows for ever and `token in vocab.stoi` becomes True. `vocab[token]` and
      `numericalize` do not store anything.
    - `max_size` does not count the specials.

    Args:
        token_lists: iterable of lists of tokens, one list per text.
        max_size: most tokens to keep besides the specials; None keeps all.
        min_freq: tokens seen less often are left out and become `<unk>`.
        specials: tokens that get the first ids; the default makes the ids UNK, PAD, SOS, EOS.
            Without "<unk>" an unknown token is an error in `numericalize`.

    Returns:
        torchtext.vocab.Vocab; len(vocab) is V.

    Raises:
        ValueError: if `token_lists` holds strings instead of lists, if max_size or min_freq is
            below 1, or if `specials` repeats a token.

    Example:
        >>> vocab = build_vocab([["the", "cat"], ["the", "dog"]])
        >>> vocab.itos
        ['<unk>', '<pad>', '<sos>', '<eos>', 'the', 'cat', 'dog']
        >>> vocab["the"], vocab["cow"]
        (4, 0)

    Notebook: 02.
    """
    for name, value in (("max_size", max_size), ("min_freq", min_freq)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if len(set(specials)) < len(specials):
        raise ValueError(f"specials must not repeat a token, got {list(specials)}")
    counts = Counter()
    for tokens in token_lists:
        if isinstance(tokens, str):
            raise ValueError(
                f"token_lists must hold lists of tokens, got the string {tokens[:40]!r}: tokenize it first"
            )
        counts.update(tokens)
    return _torchtext().vocab.Vocab(counts, max_size=max_size, min_freq=min_freq, specials=list(specials))


def numericalize(tokens, vocab, sos=False, eos=False):
    """The ids of tokens; what the vocabulary does not know becomes `<unk>`.

    Args:
        tokens: list of str.
        vocab: from `build_vocab`; it does not grow.
        sos: put `<sos>` in front.
        eos: put `<eos>` at the end.

    Returns:
        list of int.

    Raises:
        ValueError: if `tokens` is a string, if a token is unknown and the vocabulary has no
            `<unk>`, or if `<sos>` or `<eos>` is asked for and the vocabulary has none.

    Example:
        >>> vocab = build_vocab([["the", "cat", "sat"]])
        >>> numericalize(["the", "cow", "sat"], vocab, eos=True)
        [6, 0, 5, 3]

    Notebook: 02.
    """
    if isinstance(tokens, str):
        raise ValueError(f"numericalize wants a list of tokens, got the string {tokens[:40]!r}: tokenize it first")
    get, unknown = vocab.stoi.get, vocab.stoi.get("<unk>")
    ids = [get(token, unknown) for token in tokens]
    if unknown is None and None in ids:
        raise ValueError(f"token {tokens[ids.index(None)]!r} is unknown and the vocabulary has no '<unk>'")
    if sos:
        ids.insert(0, _special(vocab, "<sos>"))
    if eos:
        ids.append(_special(vocab, "<eos>"))
    return ids


def denumericalize(ids, vocab):
    """The tokens of ids: stops before the first `<eos>`, leaves `<pad>` and `<sos>` out.

    Args:
        ids: list of int or tensor (T,).
        vocab: from `build_vocab`.

    Returns:
        list of str.

    Raises:
        ValueError: if an id is below 0 or not below V.

    Example:
        >>> vocab = build_vocab([["the", "cat", "sat"]])
        >>> denumericalize(torch.tensor([SOS, 6, 0, 5, EOS, PAD]), vocab)
        ['the', '<unk>', 'sat']

    Notebook: 02.
    """
    tokens = []
    for i in torch.as_tensor(ids).tolist():
        if not 0 <= i < len(vocab):
            raise ValueError(f"id {i} is outside the vocabulary: ids go from 0 to {len(vocab) - 1}")
        token = vocab.itos[i]
        if token == "<eos>":
            break
        if token not in ("<pad>", "<sos>"):
            tokens.append(token)
    return tokens


def length_mask(lengths, T=None):
    """A boolean mask from lengths: True = may attend (a real token).

    $$ mask[b, t] = (t < lengths[b]) $$

    Args:
        lengths: (B,) tensor or list of int, real tokens in each row.
        T: width of the mask; None takes the longest length.

    Returns:
        (B, T) bool, on the device of `lengths`.

    Raises:
        ValueError: if there are no lengths, if one is negative, or if one exceeds T.

    Example:
        >>> length_mask([1, 3], T=4).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 1, 0]], dtype=torch.int32)

    Notebook: 02.
    """
    lengths = torch.as_tensor(lengths)
    if lengths.ndim != 1 or len(lengths) == 0:
        raise ValueError(f"lengths must be a list of at least one length, got shape {tuple(lengths.shape)}")
    shortest, longest = lengths.min().item(), lengths.max().item()
    if shortest < 0:
        raise ValueError(f"lengths must not be negative, got {shortest}")
    if T is not None and longest > T:
        raise ValueError(f"a sequence of {longest} tokens does not fit into length {T}")
    return torch.arange(longest if T is None else T, device=lengths.device) < lengths[:, None]


def pad_batch(sequences, length=None):
    """Sequences of unequal length as one rectangle of ids and the mask that undoes it.

    The rows are filled up with PAD on the right. `ids[mask]` is all the real tokens, row after row.

    Args:
        sequences: B lists of ids, or B tensors (T_b,) of ids.
        length: T, the width; None takes the longest sequence of the batch.

    Returns:
        ids: (B, T) int64.
        mask: (B, T) bool, True = may attend (a real token).

    Raises:
        ValueError: if there is no sequence, or if one is longer than `length`.

    Example:
        >>> ids, mask = pad_batch([[7, 8, 9], [5]])
        >>> ids
        tensor([[7, 8, 9],
                [5, 1, 1]])
        >>> mask.sum(1)
        tensor([3, 1])

    Notebook: 02.
    """
    if len(sequences) == 0:
        raise ValueError("pad_batch wants at least one sequence, got none")
    mask = length_mask([len(sequence) for sequence in sequences], length)
    if isinstance(sequences[0], torch.Tensor):
        real = torch.cat(list(sequences)).long()
    else:  # through numpy, several times as fast as torch.tensor of a long list
        real = torch.from_numpy(np.fromiter(itertools.chain.from_iterable(sequences), np.int64))
    ids = torch.full(mask.shape, PAD)
    ids[mask] = real
    return ids, mask


def padding_share(mask):
    """The share of a batch that is padding: work spent on nothing.

    Args:
        mask: (B, T) bool, True = may attend (a real token).

    Returns:
        float, a fraction from 0 to 1.

    Raises:
        ValueError: if the mask has no entries.

    Example:
        >>> padding_share(length_mask([1, 3]))
        0.333...

    Notebook: 02.
    """
    if mask.numel() == 0:
        raise ValueError(f"the mask has no entries: its shape is {tuple(mask.shape)}")
    return 1 - mask.sum().item() / mask.numel()


def bucket_batches(lengths, batch_size, generator=None, shuffle=True):
    """Batches of indices such that each batch holds similar lengths, and every index comes once.

    Shuffles all indices, sorts within pools of 100 batches, cuts the pools into batches and
    shuffles these: little padding, yet other batches each epoch. The work is done by
    `torchtext.data.pool`. Two traps of torchtext 0.6.0 are met here: with its default
    `sort_within_batch=False` it does not sort at all, and `random_shuffler` must return the
    shuffled list (`random.shuffle` returns None).

    Args:
        lengths: sequence of int, tokens in each item.
        batch_size: B; the last batch of a pool may be smaller.
        generator: torch.Generator that decides the order; None draws from torch's global one.
        shuffle: False gives the same batches in each call, for validation: sorted by length
            over all items, the least padding there can be.

    Returns:
        Iterator of lists of int.

    Raises:
        ValueError: if there are no lengths or batch_size is below 1.

    Example:
        >>> list(bucket_batches([9, 1, 8, 2], batch_size=2, shuffle=False))
        [[1, 3], [2, 0]]

    Notebook: 02.
    """
    _check_batching(lengths, batch_size)
    key = [int(length) for length in lengths].__getitem__
    if not shuffle:
        return iter(_chunks(sorted(range(len(lengths)), key=key), batch_size))

    def shuffled(items):
        return [items[i] for i in torch.randperm(len(items), generator=generator).tolist()]

    pool = _torchtext().data.pool
    indices = shuffled(range(len(lengths)))
    return pool(indices, batch_size, key, random_shuffler=shuffled, shuffle=True, sort_within_batch=True)


def batches(sequences, labels, batch_size, *, bucket=True, max_len=None, generator=None, shuffle=True):
    """Padded batches of labelled sequences, each padded to its own longest row.

    Args:
        sequences: N lists of ids or tensors (T_n,).
        labels: N labels, a list or a tensor (N,).
        batch_size: B; the last batch may be smaller.
        bucket: put similar lengths together (`bucket_batches`).
        max_len: keep only the first max_len tokens of each sequence; None keeps all.
        generator: torch.Generator that decides the order; None draws from torch's global one.
        shuffle: False gives the same batches in each call and draws nothing, for validation.

    Returns:
        Iterator of (ids (B, T) int64, mask (B, T) bool with True = may attend, labels (B,)).

    Raises:
        ValueError: if there are no sequences, if batch_size or max_len is below 1, or if there
            are not as many labels as sequences.

    Example:
        >>> for ids, mask, labels in batches([[7, 8], [5], [4, 6, 9]], [1, 0, 1], 2, shuffle=False):
        ...     print(ids.tolist(), labels.tolist())
        [[5, 1], [7, 8]] [0, 1]
        [[4, 6, 9]] [1]

    Notebook: 02.
    """
    _check_batching(sequences, batch_size)
    if len(labels) != len(sequences):
        raise ValueError(f"got {len(sequences)} sequences but {len(labels)} labels")
    if max_len is not None:
        if max_len < 1:
            raise ValueError(f"max_len must be at least 1, got {max_len}")
        sequences = [sequence[:max_len] for sequence in sequences]
    if bucket:
        order = bucket_batches([len(sequence) for sequence in sequences], batch_size, generator, shuffle)
    else:
        n = len(sequences)
        indices = torch.randperm(n, generator=generator).tolist() if shuffle else range(n)
        order = _chunks(indices, batch_size)
    labels = torch.as_tensor(labels)
    return ((*pad_batch([sequences[i] for i in chunk]), labels[list(chunk)]) for chunk in order)


def train_bpe(word_counts, num_merges):
    """Byte-pair encoding: the pairs of symbols to join, most frequent first.

    Each word starts as its characters and an end-of-word symbol. Again and again the most
    frequent pair of neighbouring symbols becomes one new symbol. Frequent words end up whole,
    rare ones in pieces, and no word is unknown. Ties go to the alphabetically smallest pair, so
    the result does not depend on the order of the words.

    Args:
        word_counts: dict of word to its count.
        num_merges: most merges to learn; fewer come back when every word is one symbol.

    Returns:
        list of (str, str), in the order learned.

    Raises:
        ValueError: if num_merges is negative or a count is below 1.

    Example:
        >>> train_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 4)
        [('e', 's'), ('es', 't'), ('est', '</w>'), ('l', 'o')]

    Source: Sennrich, Haddow and Birch 2016, "Neural Machine Translation of Rare Words with
    Subword Units", arXiv 1508.07909, algorithm 1. Differs: the tie rule is ours (the paper's
    code takes the pair that it met first), and only words that hold the pair are visited.
    Notebook: 02.
    """
    if num_merges < 0:
        raise ValueError(f"num_merges must not be negative, got {num_merges}")
    for word, count in word_counts.items():
        if count < 1:
            raise ValueError(f"counts must be at least 1, got {count} for {word!r}")
    words = [([*word, END_OF_WORD], count) for word, count in word_counts.items()]
    pair_counts, where = Counter(), defaultdict(set)  # where: the words that a pair stands in

    def add(index, sign):
        symbols, count = words[index]
        for pair in itertools.pairwise(symbols):
            pair_counts[pair] += sign * count
            where[pair].add(index)

    for index in range(len(words)):
        add(index, 1)
    merges = []
    while len(merges) < num_merges and (top := max(pair_counts.values(), default=0)) > 0:
        best = min(pair for pair, count in pair_counts.items() if count == top)
        merges.append(best)
        for index in where.pop(best):  # only these words change: take their pairs out, join, count again
            add(index, -1)
            symbols, count = words[index]
            words[index] = _merge(symbols, best), count
            add(index, 1)
    return merges


def bpe_tokenize(word, merges):
    """Cut a word into learned pieces: join the earliest-learned pair until none is left.

    Args:
        word: str, one word.
        merges: list of pairs from `train_bpe`.

    Returns:
        list of str; the last piece ends in "</w>", so that words can be told apart again.

    Raises:
        ValueError: if the word is empty.

    Example:
        >>> merges = train_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 10)
        >>> bpe_tokenize("lowest", merges)
        ['low', 'est</w>']

    Source: Sennrich, Haddow and Birch 2016, arXiv 1508.07909, section 3.2. Notebook: 02.
    """
    if not word:
        raise ValueError("bpe_tokenize wants a word, got an empty string")
    rank = {pair: i for i, pair in enumerate(merges)}
    symbols = [*word, END_OF_WORD]
    while len(symbols) > 1:
        best = min(itertools.pairwise(symbols), key=lambda pair: rank.get(pair, len(rank)))
        if best not in rank:
            break
        symbols = _merge(symbols, best)
    return symbols


def review_fields(max_len=None):
    """The description, for torchtext, of a labelled review: how to cut the text, that the label is a number.

    Args:
        max_len: cut or pad every review to this many tokens; None pads to the longest of a batch.

    Returns:
        text_field: torchtext.data.Field, whose batches are (ids (B, T), lengths (B,)).
        label_field: torchtext.data.LabelField, whose batches are (B,) int64.

    Raises:
        ValueError: if max_len is below 1.

    Example:
        >>> text_field, label_field = review_fields()
        >>> text_field.preprocess("Great, really.")
        ['great', ',', 'really', '.']

    Notebook: 02.
    """
    if max_len is not None and max_len < 1:
        raise ValueError(f"max_len must be at least 1, got {max_len}")
    data = _torchtext().data
    text = data.Field(tokenize=tokenize, batch_first=True, include_lengths=True, fix_length=max_len)
    return text, data.LabelField(use_vocab=False)


def review_iterators(pairs_by_split, batch_size, *, max_len=None, max_size=None, min_freq=1, seed=0):
    """The whole road in torchtext: fields, examples, vocabulary from the training split, bucketed batches.

    The training split is shuffled, the others are sorted by length; in every batch the longest
    review stands first. A trap that stays: `Field` looks tokens up in `vocab.stoi`, which grows
    with every unknown token of the other splits.

    Args:
        pairs_by_split: dict of split to list of (text, label 0 or 1); has a split "train".
        batch_size: B.
        max_len: as in `review_fields`.
        max_size: as in `build_vocab`.
        min_freq: as in `build_vocab`.
        seed: of the training split's order.

    Returns:
        iterators: dict of split to torchtext.data.BucketIterator; `batch.text` is (ids (B, T),
            lengths (B,)), `batch.label` is (B,).
        vocab: torchtext.vocab.Vocab with the ids of `build_vocab`.

    Raises:
        ValueError: if there is no split "train", or if a split is empty.

    Example:
        >>> pairs = [("Great!", 1), ("A bad, bad film.", 0)]
        >>> iterators, vocab = review_iterators({"train": pairs}, batch_size=2)
        >>> batch = next(iter(iterators["train"]))
        >>> batch.text[0].shape, batch.text[1], batch.label
        (torch.Size([2, 6]), tensor([6, 2]), tensor([0, 1]))

    Notebook: 02.
    """
    if "train" not in pairs_by_split:
        raise ValueError(f"the vocabulary comes from the split 'train', got only {sorted(pairs_by_split)}")
    for split, pairs in pairs_by_split.items():
        if len(pairs) == 0:
            raise ValueError(f"split {split!r} has no reviews")
    text, label = review_fields(max_len)
    fields = [("text", text), ("label", label)]
    data = _torchtext().data
    datasets = {
        split: data.Dataset([data.Example.fromlist(pair, fields) for pair in pairs], fields)
        for split, pairs in pairs_by_split.items()
    }
    text.build_vocab(datasets["train"], max_size=max_size, min_freq=min_freq, specials=list(SPECIALS[2:]))
    iterators = {
        split: data.BucketIterator(
            dataset,
            batch_size,
            sort_key=lambda review: len(review.text),
            train=split == "train",
            sort_within_batch=True,  # the default False would turn bucketing off for the training split
        )
        for split, dataset in datasets.items()
    }
    # Without this the order would come from Python's global generator.
    iterators["train"].random_shuffler.random_state = random.Random(seed).getstate()
    return iterators, text.vocab


def _torchtext():
    """The package torchtext, imported on first use."""
    with warnings.catch_warnings():
        # Its sources hold old escape sequences, which newer Pythons complain about when compiling them.
        warnings.simplefilter("ignore")
        import torchtext
        import torchtext.data
        import torchtext.vocab
    return torchtext


def _special(vocab, token):
    """The id of a special token; an error if the vocabulary was built without it."""
    if token not in vocab.stoi:
        raise ValueError(f"the vocabulary has no {token!r}: give it among build_vocab's specials")
    return vocab.stoi[token]


def _chunks(items, size):
    """The items in lists of `size`, the last one shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _check_batching(items, batch_size):
    """Something to batch, and a batch size that makes sense."""
    if len(items) == 0:
        raise ValueError("nothing to batch: got no sequences")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")


def _merge(symbols, pair):
    """The symbols with each occurrence of the pair joined, from left to right."""
    merged, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged
