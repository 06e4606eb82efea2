"""Tokens, vocabulary, padding, buckets, batches; against torchtext and torch."""

import itertools
import random
from collections import Counter

import pytest
import torch

from course_lib import text
from course_lib.notebook import torchtext_tour

WORDS = "the cat sat on a mat and the dog sat on the cat".split()


@pytest.fixture
def vocab():
    """Ids: the four specials, then the 4, cat 5, on 6, sat 7, a 8, and 9, dog 10, mat 11."""
    return text.build_vocab([WORDS])


def random_lengths(n, seed=0):
    """Lengths from 1 to 200, most of them small."""
    rng = random.Random(seed)
    return [int(1 + 200 * rng.random() ** 3) for _ in range(n)]


# --- tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("string", "want"),
    [
        ("Not terrible, it's GREAT!", ["not", "terrible", ",", "it's", "great", "!"]),
        ("a<br /><br />b", ["a", "b"]),
        ("He said 'no' -- twice...", ["he", "said", "'", "no", "'", "-", "-", "twice", ".", ".", "."]),
        ("(8/10) well-made", ["(", "8", "/", "10", ")", "well", "-", "made"]),
        ("\tGrün,\nja ", ["grün", ",", "ja"]),
        ("  \n", []),
    ],
)
def test_tokenize_by_hand(string, want):
    """Fails if case, punctuation, apostrophes, HTML breaks or white space are treated otherwise."""
    assert text.tokenize(string) == want


def test_tokenize_agrees_with_torchtext_where_the_rules_agree():
    """Fails if a token is lost or invented. Torchtext keeps no quotation marks and splits at apostrophes."""
    from torchtext.data import get_tokenizer

    string = "A film (long, slow!) that I liked. Why? It has <br /> 2 actors."
    assert text.tokenize(string) == get_tokenizer("basic_english")(string)


def test_tokenize_again_changes_nothing():
    """Fails if tokens are not stable: joined and cut again they must be the same."""
    rng = random.Random(3)
    for _ in range(200):
        string = "".join(rng.choice('ab AB,.!?"-') for _ in range(30)) + " don't 'x'"
        tokens = text.tokenize(string)
        assert text.tokenize(" ".join(tokens)) == tokens


@pytest.mark.parametrize("cut", [text.tokenize, text.characters])
def test_tokens_of_a_list_is_an_error(cut):
    """Fails if a list of texts, the usual slip, is taken for a text."""
    with pytest.raises(ValueError, match="string must be one string, got list"):
        cut(["a text", "another"])


def test_characters_join_to_the_string():
    """Fails if a character is lost, the blank for instance."""
    assert text.characters("a b\n") == ["a", " ", "b", "\n"]


# --- vocabulary and ids ----------------------------------------------------------------------


def test_vocabulary_order_and_specials(vocab):
    """Fails if ids are not: specials, then frequency, then alphabet."""
    assert vocab.itos == [*text.SPECIALS, "the", "cat", "on", "sat", "a", "and", "dog", "mat"]
    assert [vocab[token] for token in text.SPECIALS] == [text.UNK, text.PAD, text.SOS, text.EOS] == [0, 1, 2, 3]


def test_vocabulary_limits_do_not_count_the_specials():
    """Fails if max_size counts the specials or min_freq is exclusive."""
    assert text.build_vocab([WORDS], max_size=2).itos[4:] == ["the", "cat"]
    assert text.build_vocab([WORDS], min_freq=2).itos[4:] == ["the", "cat", "on", "sat"]
    assert text.build_vocab([["<eos>", "x", "<eos>"]]).itos == [*text.SPECIALS, "x"]


def test_numericalize_there_and_back(vocab):
    """Fails if an id is off by one or the ends are not marked."""
    ids = text.numericalize(WORDS, vocab, sos=True, eos=True)
    assert ids[0] == text.SOS
    assert ids[-1] == text.EOS
    assert text.denumericalize(ids, vocab) == WORDS
    assert text.numericalize(["cat", "cow"], vocab) == [5, text.UNK]


def test_denumericalize_stops_at_the_first_eos_and_keeps_unknowns(vocab):
    """Fails if padding shows, or if what stands after <eos> does."""
    ids = torch.tensor([text.SOS, 5, text.UNK, text.PAD, 7, text.EOS, 4, text.EOS])
    assert text.denumericalize(ids, vocab) == ["cat", "<unk>", "sat"]


def test_looking_up_does_not_grow_the_vocabulary(vocab):
    """Fails if an unknown token is stored: then it would look known, and the vocabulary would grow for ever."""
    size = len(vocab.stoi)
    text.numericalize(["cow", "pig"], vocab)
    assert vocab["cow"] == text.UNK
    assert "cow" not in vocab
    assert "cat" in vocab
    with pytest.raises(KeyError):
        vocab.stoi["cow"]
    assert len(vocab.stoi) == len(vocab.itos) == len(vocab) == size


@pytest.mark.parametrize("limits", [{}, {"max_size": 3}, {"min_freq": 2}, {"max_size": 30, "min_freq": 3}])
@pytest.mark.parametrize("specials", [text.SPECIALS, ("<unk>", "ab", "c")])
def test_the_vocabulary_is_that_of_torchtext(limits, specials):
    """Fails if tokens, ids or counts differ from torchtext's Vocab."""
    from torchtext.vocab import Vocab

    rng = random.Random(0)
    tokens = ["".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(300)]
    ours = text.build_vocab([tokens[:100], tokens[100:]], specials=specials, **limits)
    theirs = Vocab(Counter(tokens), specials=list(specials), **limits)
    assert (ours.itos, ours.stoi, ours.freqs) == (theirs.itos, dict(theirs.stoi), theirs.freqs)


def test_characters_vocabulary_without_specials():
    """Fails if a vocabulary without <unk> numbers an unknown character silently."""
    vocab = text.build_vocab([text.characters("banana")], specials=())
    assert vocab.itos == ["a", "n", "b"]
    assert text.numericalize("b a n".split(), vocab) == [2, 0, 1]
    with pytest.raises(ValueError, match="token 'x' is unknown and the vocabulary has no '<unk>'"):
        text.numericalize(["a", "x"], vocab)
    with pytest.raises(ValueError, match="no '<eos>'"):
        text.numericalize(["a"], vocab, eos=True)
    with pytest.raises(ValueError, match="no '<sos>'"):
        text.numericalize(["a"], vocab, sos=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_lists": ["the cat"]}, "token_lists must be a list of strings, got str 'the cat'"),
        ({"token_lists": [WORDS], "max_size": 0}, "max_size must be a whole number of at least 1, got 0"),
        ({"token_lists": [WORDS], "max_size": 1.5}, "max_size must be a whole number of at least 1, got 1.5"),
        ({"token_lists": [[1, 2]]}, r"token_lists must be a list of strings, got list '\[1, 2\]'"),
        ({"token_lists": [WORDS], "min_freq": 0}, "min_freq must be a whole number of at least 1, got 0"),
        ({"token_lists": [WORDS], "specials": ("<unk>", "<pad>", "<unk>")}, "must not repeat a token, got"),
    ],
)
def test_build_vocab_names_what_is_wrong(arguments, message):
    """Fails if bad input passes: torchtext alone would number characters of a string."""
    with pytest.raises(ValueError, match=message):
        text.build_vocab(**arguments)


def test_ids_out_of_range_and_strings_are_errors(vocab):
    """Fails if a negative id wraps around or a string is numbered character by character."""
    with pytest.raises(ValueError, match="ids must be from 0 to 11, got 4 to 12"):
        text.denumericalize([4, 12], vocab)
    with pytest.raises(ValueError, match="ids must be from 0 to 11, got -1 to -1"):
        text.denumericalize([-1], vocab)
    for tokens in ("the cat", [1, 2], ["the", None], torch.tensor([4, 5])):
        with pytest.raises(ValueError, match="tokens must be a list of strings, got "):
            text.numericalize(tokens, vocab)
    assert text.numericalize((token for token in WORDS[:2]), vocab) == [4, 5]
    assert text.denumericalize([], vocab) == []


# --- padding and masks -----------------------------------------------------------------------


@pytest.mark.parametrize("as_tensor", [False, True])
def test_pad_batch_round_trip(as_tensor):
    """Fails if rows mix, if padding is not PAD, if the width is not the longest, or if PAD ids in the text are lost."""
    rng = random.Random(1)
    rows = [[rng.randrange(9) for _ in range(length)] for length in (3, 7, 0, 5)]
    ids, mask = text.pad_batch([torch.tensor(row, dtype=torch.int64) for row in rows] if as_tensor else rows)
    assert (ids.shape, ids.dtype, mask.dtype) == ((4, 7), torch.int64, torch.bool)
    assert [ids[b][mask[b]].tolist() for b in range(4)] == rows
    assert (ids[~mask] == text.PAD).all()


def test_pad_batch_equals_torch_pad_sequence():
    """Fails if our scatter differs from torch's own padding."""
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, 50, (length,), generator=generator) for length in (4, 1, 6, 2, 6)]
    want = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=text.PAD)
    assert torch.equal(text.pad_batch(rows)[0], want)


def test_pad_batch_to_a_length():
    """Fails if `length` is ignored or a longer sequence is cut silently."""
    ids, mask = text.pad_batch([[5, 6], [7]], length=4)
    assert ids.tolist() == [[5, 6, 1, 1], [7, 1, 1, 1]]
    assert mask.sum(1).tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"lengths must be .* from 0 to 2, got 1 to 3"):
        text.pad_batch([[5], [6, 7, 8]], length=2)


def test_length_mask_by_hand():
    """Fails if the comparison includes the length itself."""
    assert text.length_mask(torch.tensor([2, 0, 3])).tolist() == [
        [True, True, False],
        [False, False, False],
        [True, True, True],
    ]
    assert text.length_mask([1], T=2).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: text.pad_batch([]), "at least one whole number from 0, got torch.float32 of shape"),
        (lambda: text.pad_batch([[1.5]]), "sequences must hold ids, whole numbers, got torch.float64"),
        (lambda: text.pad_batch([torch.ones(3)]), "sequences must hold ids, whole numbers, got torch.float32"),
        (lambda: text.length_mask([]), r"at least one whole number from 0, got .* of shape \(0,\)"),
        (lambda: text.length_mask(torch.ones(2, 3)), r"of shape \(2, 3\)"),
        (lambda: text.length_mask([1.5]), r"whole number from 0, got torch.float32"),
        (lambda: text.length_mask([2, -1]), "from 0, got -1 to 2"),
        (lambda: text.length_mask([2, 5], T=4), "from 0 to 4, got 2 to 5"),
        (lambda: text.bucket_batches([], 2), "lengths must have a length of at least 1, got 0"),
        (lambda: text.bucket_batches([3], 0), "batch_size must be a whole number of at least 1, got 0"),
        (lambda: text.batches([], [], 2), "sequences must have a length of at least 1, got 0"),
        (lambda: text.batches([[4]], [1, 0], 2), "1 sequences but 2 labels"),
        (lambda: text.batches([[4], [5]], ["a", "b"], 2), r"labels must be numbers, .* got list \['a', 'b'\]"),
        (lambda: text.batches([[4], [5]], [1.0, float("nan")], 2), "labels must be finite, got NaN or infinity"),
        (lambda: text.batches([[4]], None, 2), "labels must be a list or a tensor, got NoneType"),
        (lambda: text.batches([[4]], [1], 2, max_len=0), "max_len must be a whole number of at least 1, got 0"),
        (lambda: torchtext_tour.review_fields(max_len=0), "max_len must be a whole number of at least 1, got 0"),
        (
            lambda: torchtext_tour.review_iterators({"test": [("a", 1)]}, 2),
            r"from the split 'train', got only \['test'\]",
        ),
        (
            lambda: text.contiguous_batches(torch.zeros(3, 7).long(), 2, 3),
            r"ids must be a tensor \(N,\), got one of shape",
        ),
        (
            lambda: text.contiguous_batches(torch.arange(7), 0, 3),
            "batch_size must be a whole number of at least 1, got 0",
        ),
        (lambda: text.contiguous_batches(torch.arange(7), 2, 0), "length must be a whole number of at least 1, got 0"),
        (lambda: text.contiguous_batches(torch.arange(7), 7, 3), "ids must have a length of at least 8, got 7"),
        (lambda: text.random_windows(torch.arange(7), 2, 7), "ids must have a length of at least 8, got 7"),
        (lambda: text.random_windows(torch.arange(7.0), 2, 3), "ids must be torch.int64, got torch.float32"),
    ],
)
def test_errors_name_what_is_wrong(call, message):
    """Fails if bad input passes, is only noticed at the first batch, or the message names another thing."""
    with pytest.raises(ValueError, match=message):
        call()


def test_padding_share_by_hand():
    """Fails if it counts the real tokens, or weighs rows equally."""
    assert text.padding_share(text.length_mask([4, 1, 1])) == 0.5
    assert text.padding_share(text.length_mask([3, 3])) == 0


# --- batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "batch_size"), [(1, 4), (53, 5), (1003, 7)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_bucket_batches_hold_every_index_once(n, batch_size, shuffle):
    """Fails if an index is lost or repeated or a batch is too large; 1003 makes two pools."""
    got = list(text.bucket_batches(random_lengths(n), batch_size, torch.Generator().manual_seed(0), shuffle))
    assert sorted(i for batch in got for i in batch) == list(range(n))
    assert max(map(len, got)) <= batch_size


def test_bucket_batches_are_similar_in_length():
    """Fails if pool does not sort (torchtext's own default): then the waste stays that of a random order."""
    lengths, generator = random_lengths(2000), torch.Generator().manual_seed(0)

    def waste(order):
        masks = [text.length_mask([lengths[i] for i in batch]) for batch in order]
        return 1 - sum(lengths) / sum(mask.numel() for mask in masks)

    plain = [range(start, start + 20) for start in range(0, 2000, 20)]
    assert waste(plain) > 0.5
    assert waste(text.bucket_batches(lengths, 20, generator)) < 0.1
    assert waste(text.bucket_batches(lengths, 20, shuffle=False)) < 0.1


def test_the_default_of_torchtext_pool_does_not_sort():
    """The trap that bucket_batches avoids: fails once torchtext sorts without being asked."""
    from torchtext.data import pool

    assert list(pool([3, 1, 2, 1], 2, key=lambda x: x)) == [[3, 1], [2, 1]]
    assert list(pool([3, 1, 2, 1], 2, key=lambda x: x, sort_within_batch=True)) == [[1, 1], [2, 3]]


def test_bucket_batches_follow_their_generator_only():
    """Fails if Python's or torch's global state decides, or if two epochs get the same batches."""
    lengths = random_lengths(200)
    generator = torch.Generator().manual_seed(5)
    first, second = list(text.bucket_batches(lengths, 8, generator)), list(text.bucket_batches(lengths, 8, generator))
    random.seed(99)
    torch.manual_seed(99)
    again = list(text.bucket_batches(lengths, 8, torch.Generator().manual_seed(5)))
    assert again == first != second
    shortest_first = [min(lengths[i] for i in batch) for batch in first]
    assert shortest_first != sorted(shortest_first)


def test_bucket_batches_without_shuffling_draw_nothing():
    """Fails if validation moves the random state, which would change the training after it."""
    before = torch.get_rng_state()
    a, b = (list(text.bucket_batches(random_lengths(50), 4, shuffle=False)) for _ in range(2))
    assert a == b
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_keep_texts_and_labels_together(bucket, shuffle):
    """Fails if a label goes to another text, a text is cut at another place, or rows are padded beyond their batch."""
    lengths = random_lengths(61)
    sequences = [[n + 4] * length for n, length in enumerate(lengths)]
    labels = [3 * n for n in range(61)]
    seen = []
    generator = torch.Generator().manual_seed(0)
    for ids, mask, y in text.batches(
        sequences, labels, 8, bucket=bucket, max_len=50, generator=generator, shuffle=shuffle
    ):
        assert ids.shape == mask.shape == (len(y), mask.sum(1).max())
        assert torch.equal(ids[:, 0] - 4, y // 3)
        assert mask.sum(1).tolist() == [min(lengths[n], 50) for n in (y // 3).tolist()]
        seen += y.tolist()
    assert sorted(seen) == labels
    assert (seen == labels) == (not bucket and not shuffle)


# --- one long text --------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "streams", "length"), [*itertools.product((9, 23, 24), (1, 2, 4), (1, 3, 5, 30))])
def test_streams_hold_every_token_once_and_go_on(count, streams, length):
    """Fails if a token is lost, read twice or out of order, or a row does not go on where it ended."""
    ids = torch.arange(100, 100 + count)
    batches = text.contiguous_batches(ids, streams, length)
    inputs, targets = (torch.cat(part, 1) for part in zip(*batches, strict=True))
    steps = (count - 1) // streams
    assert inputs.flatten().tolist() == list(range(100, 100 + streams * steps))  # row after row is the text
    assert targets.flatten().tolist() == list(range(101, 101 + streams * steps))
    assert count - 1 - streams * steps < streams
    assert [batch[0].shape[1] for batch in batches] == [length] * (steps // length) + [steps % length] * (
        steps % length > 0
    )


def test_random_windows_are_pieces_of_the_text_from_anywhere():
    """Fails if a target is not the next token, a piece can never be drawn, or the generator does not decide."""
    ids = torch.arange(40, 49)
    inputs, targets = text.random_windows(ids, 500, 3, torch.Generator().manual_seed(0))
    assert (inputs.shape, targets.shape) == ((500, 3), (500, 3))
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(3))
    assert set(inputs[:, 0].tolist()) == set(range(40, 46))  # the last piece ends with the last target
    again, _ = text.random_windows(ids, 500, 3, torch.Generator().manual_seed(0))
    assert torch.equal(again, inputs)


# --- torchtext's own pipeline --------------------------------------------------------------------

REVIEWS = {
    "train": [(f"{'very ' * n}good film , number {n} !", n % 2) for n in range(30)],
    "valid": [("a film nobody knows", 0), ("good", 1), ("very very good , really", 1)],
}


@pytest.mark.parametrize("max_len", [None, 5])
def test_torchtext_gives_our_ids(max_len):
    """Fails if Field and our own path number, cut or pad differently in any batch of any split."""
    iterators, vocab = torchtext_tour.review_iterators(REVIEWS, batch_size=4, max_len=max_len)
    ours = text.build_vocab(text.tokenize(review) for review, _ in REVIEWS["train"])
    assert vocab.itos == ours.itos
    for split, pairs in REVIEWS.items():
        want = {(tuple(text.numericalize(text.tokenize(r), ours)[:max_len]), label) for r, label in pairs}
        got = set()
        for batch in iterators[split]:
            ids, lengths = batch.text
            rows = [row[:n] for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]
            padded, mask = text.pad_batch(rows, length=max_len)
            assert torch.equal(ids, padded)
            assert torch.equal(text.length_mask(lengths, ids.shape[1]), mask)
            got |= set(zip(map(tuple, rows), batch.label.tolist(), strict=True))
        assert got == want


def test_torchtext_iterators_bucket_and_follow_their_seed():
    """Fails if the training split is not bucketed (torchtext's default) or Python's global state decides."""

    def epoch(seed):
        random.seed(seed + 1)
        iterator = torchtext_tour.review_iterators(REVIEWS, batch_size=4, seed=seed)[0]["train"]
        return [batch.text[1].tolist() for batch in iterator]

    batches = epoch(0)
    assert all(lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 3 for lengths in batches)
    random.seed(50)
    assert [b.text[1].tolist() for b in torchtext_tour.review_iterators(REVIEWS, 4)[0]["train"]] == batches != epoch(1)


def test_torchtext_field_grows_stoi():
    """The trap in practice: fails if Field stopped storing the unknown words of the validation split."""
    iterators, vocab = torchtext_tour.review_iterators(REVIEWS, batch_size=4)
    before = len(vocab.stoi)
    list(iterators["valid"])
    assert set(list(vocab.stoi)[before:]) == {"a", "nobody", "knows", "really"}
    assert len(vocab.itos) == before
