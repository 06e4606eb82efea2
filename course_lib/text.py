"""From strings to tensors: tokens, vocabulary, ids, padding, batches.

Read from top to bottom. (`bpe` cuts words into learned pieces, `notebook.torchtext_tour` does all this with torchtext.)
"""

import itertools
import string as ascii_text
from collections import Counter

import numpy as np
import torch

from course_lib.utils.validate import (
    as_numbers,
    check_ids,
    check_length,
    check_lengths,
    check_sizes,
    check_text,
    check_tokens,
)

UNK, PAD, SOS, EOS = 0, 1, 2, 3
SPECIALS = ("<unk>", "<pad>", "<sos>", "<eos>")
MARKS = [(mark, f" {mark} ") for mark in ascii_text.punctuation if mark != "'"]


# --- strings to tokens, tokens to ids -------------------------------------------


def tokenize(string):
    """Lower-cased words and punctuation marks; an apostrophe inside a word stays there.

    >>> tokenize("Not terrible, it's GREAT!<br />See 'Alien'.")
    ['not', 'terrible', ',', "it's", 'great', '!', 'see', "'", 'alien', "'", '.']
    """
    check_text("string", string)
    string = string.lower().replace("<br />", " ")  # IMDB's reviews are full of HTML's line breaks
    for mark, spaced in MARKS:  # three times as fast as a regular expression
        if mark in string:  # most marks are absent, and looking is cheaper than replacing nothing
            string = string.replace(mark, spaced)
    # Apostrophes at the edge of a word are quotation marks.
    return f" {string} ".replace(" '", " ' ").replace("' ", " ' ").split()


def characters(string):
    """The characters of a string: the smallest vocabulary and the longest sequences."""
    check_text("string", string)
    return list(string)


class Vocab:
    """Tokens and their ids: `itos` lists the tokens, `stoi` is the dict back, `freqs` counts all tokens that were seen.

    Differs: torchtext's has the same attributes, but its `stoi` stores whatever is looked up in it.
    """

    def __init__(self, tokens, freqs):
        self.itos = list(tokens)
        self.stoi = {token: i for i, token in enumerate(self.itos)}
        self.freqs = freqs

    def __len__(self):
        return len(self.itos)

    def __contains__(self, token):
        return token in self.stoi

    def __getitem__(self, token):
        return numericalize([token], self)[0]


def build_vocab(token_lists, max_size=None, min_freq=1, specials=SPECIALS):
    """A vocabulary: the specials first, then the tokens by falling frequency, ties in alphabetical order.

    `max_size` tokens are kept besides the specials (None: all), of those that occur `min_freq` times. The others become
    "<unk>"; if that is not among the specials, `numericalize` refuses them.

    >>> vocab = build_vocab([["the", "cat"], ["the", "dog"]])
    >>> vocab.itos, vocab["the"], vocab["cow"]
    (['<unk>', '<pad>', '<sos>', '<eos>', 'the', 'cat', 'dog'], 4, 0)
    """
    check_sizes(min_freq=min_freq, max_size=1 if max_size is None else max_size)
    check_tokens("specials", specials)
    if len(set(specials)) < len(specials):
        raise ValueError(f"specials must not repeat a token, got {list(specials)}")
    freqs = Counter()
    for tokens in token_lists:
        freqs.update(check_tokens("token_lists", tokens))
    frequent = [token for token, n in freqs.items() if n >= min_freq and token not in specials]
    frequent.sort(key=lambda token: (-freqs[token], token))
    return Vocab([*specials, *frequent[:max_size]], freqs)


def numericalize(tokens, vocab, sos=False, eos=False):
    """The ids of tokens, on demand between `<sos>` and `<eos>`; unknown tokens become `<unk>`.

    >>> vocab = build_vocab([["the", "cat", "sat"]])
    >>> numericalize(["the", "cow", "sat"], vocab, eos=True)
    [6, 0, 5, 3]
    """
    tokens = check_tokens("tokens", tokens)
    get, unknown = vocab.stoi.get, vocab.stoi.get("<unk>")
    ids = [get(token, unknown) for token in tokens]
    if unknown is None and None in ids:
        raise ValueError(f"token {tokens[ids.index(None)]!r} is unknown and the vocabulary has no '<unk>'")
    for special, wanted in (("<sos>", sos), ("<eos>", eos)):
        if wanted and special not in vocab.stoi:
            raise ValueError(f"the vocabulary has no {special!r}: give it among build_vocab's specials")
    start, end = [vocab.stoi["<sos>"]] if sos else [], [vocab.stoi["<eos>"]] if eos else []
    return start + ids + end


def denumericalize(ids, vocab):
    """The tokens of ids: stops before the first `<eos>`, leaves `<pad>` and `<sos>` out."""
    ids = torch.as_tensor(ids)
    if ids.numel():
        check_ids("ids", ids, ("T",), len(vocab))
    tokens = itertools.takewhile(lambda token: token != "<eos>", (vocab.itos[i] for i in ids.tolist()))
    return [token for token in tokens if token not in ("<pad>", "<sos>")]


# --- rows of unequal length -----------------------------------------------------


def length_mask(lengths, T=None):
    """Which entries of padded rows are real tokens: (B, T) bool, from the rows' lengths (B,).

    >>> length_mask([1, 3], T=4).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 1, 0]], dtype=torch.int32)
    """
    lengths = torch.as_tensor(lengths)
    check_lengths("lengths", lengths, T)
    T = lengths.max().item() if T is None else T
    return torch.arange(T, device=lengths.device) < lengths[:, None]  # (T,) < (B, 1) -> (B, T)


def pad_batch(sequences, length=None):
    """B sequences of ids, lists or tensors, as one rectangle (B, T) filled up with PAD; and which entries are real.

    T is `length`, or the longest sequence's. `real` is (B, T) bool: `ids[real]` is all real tokens, row after row.

    >>> pad_batch([[7, 8, 9], [5]])[0]
    tensor([[7, 8, 9],
            [5, 1, 1]])
    """
    real = length_mask([len(sequence) for sequence in sequences], length)
    if isinstance(sequences[0], torch.Tensor):
        flat = torch.cat(list(sequences))
    else:  # through numpy, several times as fast as torch.tensor of a long list
        flat = torch.from_numpy(np.array(list(itertools.chain.from_iterable(sequences))))
    if len(flat) and (flat.is_floating_point() or flat.is_complex()):
        raise ValueError(f"sequences must hold ids, whole numbers, got {flat.dtype}")
    ids = torch.full(real.shape, PAD)
    ids[real] = flat.long()
    return ids, real


def padding_share(real):
    """Which part of a batch (B, T) is padding, work spent on nothing: from 0 to 1."""
    return 1 - real.sum().item() / real.numel()


# --- batches --------------------------------------------------------------------


def bucket_batches(lengths, batch_size, generator=None, shuffle=True):
    """Batches of indices (lists of int): similar lengths in each, every index once, another order in each epoch.

    `shuffle=False` sorts all items by length and draws nothing, for validation: the least padding there can be.

    >>> list(bucket_batches([9, 1, 8, 2], batch_size=2, shuffle=False))
    [[1, 3], [2, 0]]
    """
    check_sizes(batch_size=batch_size)
    check_length("lengths", lengths)
    lengths = [int(length) for length in lengths]
    by_length = lengths.__getitem__
    if not shuffle:
        return iter(_chunks(sorted(range(len(lengths)), key=by_length), batch_size))
    order = _shuffled(range(len(lengths)), generator)
    return (
        batch
        for pool in _chunks(order, 100 * batch_size)  # sorting within a pool leaves chance to each epoch
        for batch in _shuffled(_chunks(sorted(pool, key=by_length), batch_size), generator)
    )


def batches(sequences, labels, batch_size, *, bucket=True, max_len=None, generator=None, shuffle=True):
    """Padded batches of labelled sequences, each padded to its own longest row: (ids, real, labels).

    `bucket` puts similar lengths together, `max_len` keeps the first tokens of each sequence. `shuffle=False` gives the
    same batches in each call and draws nothing, for validation; else `generator` or torch's global one draws.

    >>> for ids, real, labels in batches([[7, 8], [5], [4, 6, 9]], [1, 0, 1], 2, shuffle=False):
    ...     print(ids.tolist(), labels.tolist())
    [[5, 1], [7, 8]] [0, 1]
    [[4, 6, 9]] [1]
    """
    check_sizes(batch_size=batch_size, max_len=1 if max_len is None else max_len)
    check_length("sequences", sequences)
    check_length("labels", labels)
    if len(labels) != len(sequences):
        raise ValueError(f"got {len(sequences)} sequences but {len(labels)} labels")
    labels = as_numbers("labels", labels)
    sequences = [sequence[:max_len] for sequence in sequences]
    if bucket:
        order = bucket_batches([len(sequence) for sequence in sequences], batch_size, generator, shuffle)
    else:
        indices = range(len(sequences))
        order = _chunks(_shuffled(indices, generator) if shuffle else indices, batch_size)
    return ((*pad_batch([sequences[i] for i in chunk]), labels[chunk]) for chunk in order)


def contiguous_batches(ids, batch_size, length):
    """Cut one long text (N,) into B streams, and these into batches that continue one another.

    Row b of each batch goes on where row b of the batch before ended, so the state after one batch is the right state
    to start the next with. Gives (inputs (B, T), targets (B, T)), the targets one token later. The last batch may be
    shorter; up to B - 1 last tokens are left out.

    >>> for inputs, targets in contiguous_batches(torch.arange(11), batch_size=2, length=3):
    ...     print(inputs.tolist(), targets.tolist())
    [[0, 1, 2], [5, 6, 7]] [[1, 2, 3], [6, 7, 8]]
    [[3, 4], [8, 9]] [[4, 5], [9, 10]]
    """
    check_ids("ids", ids, ("N",))
    check_sizes(batch_size=batch_size, length=length)
    check_length("ids", ids, batch_size + 1)
    steps = (len(ids) - 1) // batch_size
    inputs, targets = (ids[shift : shift + batch_size * steps].view(batch_size, steps) for shift in (0, 1))
    return list(zip(inputs.split(length, 1), targets.split(length, 1), strict=True))


def random_windows(ids, batch_size, length, generator=None):
    """Pieces from anywhere in one long text (N,): inputs (B, T) and targets (B, T), one token later."""
    check_ids("ids", ids, ("N",))
    check_sizes(batch_size=batch_size, length=length)
    check_length("ids", ids, length + 1)
    starts = torch.randint(len(ids) - length, (batch_size, 1), generator=generator)
    positions = starts + torch.arange(length)  # (B, 1) + (T,) -> (B, T)
    return ids[positions], ids[positions + 1]


def _shuffled(items, generator=None):
    """The items as a list in random order."""
    return [items[i] for i in torch.randperm(len(items), generator=generator).tolist()]


def _chunks(items, size):
    """The items in lists of `size`, the last one shorter."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
