"""The pipeline of `course_lib.text` with torchtext's `Field` and `BucketIterator`, for chapter 02.

torchtext is imported here and nowhere else, on first use.
"""

import random
import warnings

from course_lib.text import SPECIALS, tokenize
from course_lib.utils.validate import check_sizes


def review_fields(max_len=None):
    """The description, for torchtext, of a labelled review: how to cut the text, that the label is a number.

    Args:
        max_len: cut or pad every review to this many tokens; None pads to the longest of a batch.

    Returns:
        text_field: torchtext.data.Field, whose batches are (ids (B, T), lengths (B,)).
        label_field: torchtext.data.LabelField, whose batches are (B,) int64.

    >>> text_field, label_field = review_fields()
    >>> text_field.preprocess("Great, really.")
    ['great', ',', 'really', '.']
    """
    check_sizes(max_len=1 if max_len is None else max_len)
    data = torchtext_data()
    text = data.Field(tokenize=tokenize, batch_first=True, include_lengths=True, fix_length=max_len)
    return text, data.LabelField(use_vocab=False)


def review_iterators(pairs_by_split, batch_size, *, max_len=None, max_size=None, min_freq=1, seed=0):
    """The whole pipeline in torchtext: fields, examples, vocabulary from the training split, bucketed batches.

    The training split is shuffled, the others are sorted by length; in every batch the longest review stands first.
    A trap that stays: `Field` looks tokens up in `vocab.stoi`, which grows with every unknown token.

    Args:
        pairs_by_split: dict of split to list of (text, label 0 or 1); has a split "train".
        batch_size: B.
        max_len: as in `review_fields`.
        max_size: most tokens to keep, as in `text.build_vocab`.
        min_freq: tokens seen less often become "<unk>".
        seed: of the training split's order.

    Returns:
        iterators: dict of split to torchtext.data.BucketIterator; `batch.text` is (ids (B, T), lengths (B,)),
            `batch.label` is (B,).
        vocab: torchtext.vocab.Vocab with the ids of `text.build_vocab`.

    >>> pairs = [("Great!", 1), ("A bad, bad film.", 0)]
    >>> iterators, vocab = review_iterators({"train": pairs}, batch_size=2)
    >>> batch = next(iter(iterators["train"]))
    >>> batch.text[0].shape, batch.text[1], batch.label
    (torch.Size([2, 6]), tensor([6, 2]), tensor([0, 1]))
    """
    if "train" not in pairs_by_split:
        raise ValueError(f"the vocabulary comes from the split 'train', got only {sorted(pairs_by_split)}")
    text, label = review_fields(max_len)
    fields = [("text", text), ("label", label)]
    data = torchtext_data()
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


def torchtext_data():
    """The package torchtext.data; its sources hold old escape sequences, about which newer Pythons complain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchtext.data
    return torchtext.data
