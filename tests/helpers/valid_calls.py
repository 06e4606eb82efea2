"""A valid call of every door of the library, with the domain of each argument (`tests.helpers.bad_calls`).

A name is a function's or a class's; after a dot stands a method, called on what `on` makes. A bad value that `but`
takes out is right for that argument; the reason stands beside the call.
"""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import (
    attention,
    autoregression,
    bag_of_words,
    bert,
    bpe,
    bptt,
    functional,
    generate,
    gpt,
    linear_attention,
    llama,
    lora,
    lstm_gru,
    metrics,
    ngram,
    optim,
    positional,
    pretrained,
    quantization,
    recurrent_models,
    rnn,
    seq2seq,
    text,
    train,
    transformer,
    transformer_models,
    translation,
    utils,
)
from course_lib.cost import formulas, measure
from course_lib.datasets import real, synthetic
from course_lib.utils import device
from course_lib.utils.llama_checkpoint import LLAMA_3_2
from tests.helpers.bad_calls import (
    NAN,
    a_module,
    choice,
    fixed,
    floats,
    function,
    generator,
    ids,
    index,
    mask,
    number,
    of_values,
    prob,
    real_number,
    size,
    whole_numbers,
    words,
)
from tests.helpers.bad_calls import (
    text as a_text,
)

CALLS = {}  # name -> (function of the object's maker and the arguments, or the function itself; domains)


def call(function, /, on=None, **domains):
    """Add a valid call of a function or class, or of a method of what `on` makes."""
    name = f"{function.__module__.removeprefix('course_lib.')}.{function.__qualname__}"
    assert name not in CALLS, f"{name} is there twice"
    CALLS[name] = (function, on, domains)


def randn(*shape):
    """A maker of random numbers."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def tokens(*shape, high=9, low=2):
    """A maker of random tokens."""
    return lambda: torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0))


def ones(*shape):
    """A maker of masks that are all True."""
    return lambda: torch.ones(*shape, dtype=torch.bool)


def optional(domain):
    """The same where None is right too."""
    return domain.but("none")


REAL = optional(mask(ones(2, 4)))  # (B, T): which tokens are real
IDS = ids(tokens(2, 4), 9)

# --- autoregression, ngram, metrics -------------------------------------------------

# Longer series, counts and yes or no are series too; what is missing in one is missing in a plain forecast.
SERIES = floats(randn(20)).but("wider", "int64", "bool", "nan", "inf")
call(autoregression.lagged, series=SERIES, order=size(3))
call(
    autoregression.fit_autoregression,
    series=floats(randn(20)).but("wider", "int64", "bool"),
    order=size(3),
    ridge=number(0.1, zero=True),
)
call(
    autoregression.forecast,
    series=SERIES,
    weights=floats(randn(3)).but("wider", "nan", "inf"),
    bias=floats(lambda: torch.tensor(0.5)).but(
        "fewer axes", "more axes", "wider", "empty", "number", "int64", "bool", "list", "nan", "inf"
    ),
    horizon=size(4),
)
call(autoregression.naive_last, series=SERIES, horizon=size(4))
call(autoregression.naive_mean, series=SERIES, horizon=size(4))
call(autoregression.naive_seasonal, series=SERIES, horizon=size(4), period=size(3))
call(
    autoregression.errors_by_horizon,
    forecaster=function(autoregression.naive_last),
    series=SERIES,
    start=size(10),
    horizon=size(4),
)
TEXT_IDS = ids(tokens(30), 9).but("wider", "too large")  # nobody knows how many tokens there are
call(ngram.unigram_entropy, ids=TEXT_IDS.but("huge"))
call(ngram.bigram_entropy, ids=TEXT_IDS.but("huge"))


def ngram_model():
    """A fitted trigram model of nine tokens."""
    return ngram.NgramModel(3, 9).fit(tokens(30)())


def window_lm():
    """A window network of nine tokens."""
    return ngram.WindowLM(9, 3, 4, 5).eval()


LONG = ids(tokens(30), 9).but("wider")
call(ngram.NgramModel, order=size(3), vocab_size=size(9), add=number(1.0, zero=True), interpolate=fixed(False))
call(ngram.NgramModel.fit, on=lambda: ngram.NgramModel(3, 9), ids=LONG)
call(ngram.NgramModel.counts, on=ngram_model, ids=LONG)
call(ngram.NgramModel.nll, on=ngram_model, ids=LONG)
call(ngram.NgramModel.probs, on=ngram_model, context=ids(tokens(2), 9).but("wider", "empty", "list", "array"))
call(ngram.WindowLM, vocab_size=size(9), window=size(3), d_model=size(4), hidden=size(5), dropout=prob(0.1))
call(ngram.WindowLM.forward, on=window_lm, ids=IDS.but("wider", "empty"))
call(
    metrics.cross_entropy,
    logits=floats(randn(2, 4, 9)).but("wider", "nan", "inf"),
    targets=IDS,
    real=optional(mask(ones(2, 4))),
)
NATS = real_number(1.5).but("inf", "nan", "list")  # of a model that gave a token no chance; of one that is broken
call(metrics.perplexity, nats=NATS)
call(metrics.bits, nats=NATS)
SENTENCES = of_values(
    lambda: [["a", "b", "c", "d", "e"]] * 2, none=None, number=3, empty=[], strings=["a b", "c d"], numbers=[[1], [2]]
)
REFERENCES = of_values(
    lambda: [[sentence] for sentence in SENTENCES.make()],
    none=None,
    number=3,
    empty=[],
    strings=["a b", "c d"],
    lists=[["a", "b"], ["c", "d"]],
    too_few=[[["a", "b"]]],
)
SENTENCES = SENTENCES.but("numbers")  # ids are tokens too
call(metrics.bleu, hypotheses=SENTENCES, references=REFERENCES, max_n=size(4))
call(metrics.modified_precision, hypotheses=SENTENCES, references=REFERENCES, n=size(2))
call(  # only their lengths count
    metrics.closest_length,
    hypothesis=words("abc").but("text", "numbers", "hole"),
    references=SENTENCES.but("strings"),
)
call(metrics.brevity_penalty, c=size(3, 0).but("fraction"), r=size(4, 0).but("fraction"))

# --- text, bpe, bag_of_words --------------------------------------------------------

SMALL = text.build_vocab([["a", "b", "c"], ["a", "b"], ["d"]])
LISTS = of_values(
    lambda: [["a", "b"], ["c"]], none=None, number=3, text="ab c", strings=["a b", "c"], numbers=[[1, 2], [3]]
)
ROWS = of_values(
    lambda: [[2, 3, 4], [5, 6], [7], [8, 2]], none=None, number=3, text="text", fractions=[[1.5], [2.0]],
    strings=[["a"], ["b"]], empty=[], negative=[[-1, 2], [3]],
)  # fmt: skip
call(text.tokenize, string=a_text("Not bad."))
call(text.characters, string=a_text("Not bad."))
call(
    text.build_vocab,
    token_lists=LISTS,
    max_size=optional(size(5)),
    min_freq=size(1),
    specials=words(["<unk>", "<pad>"]),
)
call(text.numericalize, tokens=words("ab"), vocab=a_module(lambda: SMALL), sos=fixed(False), eos=fixed(False))
call(
    text.denumericalize,
    ids=of_values(lambda: [0, 1, 4], none=None, number=3, text="text", fractions=[1.5], negative=[-1], too_large=[99]),
    vocab=a_module(lambda: SMALL),
)
LENGTHS = whole_numbers([3, 1, 2]).also(negative=[-1, 2], empty=[])
call(text.length_mask, lengths=LENGTHS, T=optional(size(4)))
call(text.pad_batch, sequences=ROWS.but("negative"), length=optional(size(3)))
call(text.padding_share, real=mask(ones(2, 4)).but("wider", "more axes", "fewer axes", "float", "int"))
call(
    text.bucket_batches,
    lengths=LENGTHS.but("fractions", "negative"),  # they are only compared
    batch_size=size(2),
    generator=generator(),
    shuffle=fixed(True),
)
call(
    text.batches,
    sequences=ROWS.but("negative"),
    labels=whole_numbers([0, 1, 1, 0])
    .but("fractions")  # targets of a regression
    .also(too_few=[1], strings=list("abba"), ragged=[[1], [0, 1], [1], [0]], nan=torch.tensor([0, 1, NAN, 0])),
    batch_size=size(2),
    max_len=optional(size(3)),
)
call(
    text.contiguous_batches,
    ids=ids(tokens(30), 9).but("wider", "too large", "negative", "huge"),
    batch_size=size(2),
    length=size(4),
)
call(
    text.random_windows,
    ids=ids(tokens(30), 9).but("wider", "too large", "negative", "huge"),
    batch_size=size(2),
    length=size(4),
    generator=generator(),
)
call(
    bpe.train_bpe,
    word_counts=of_values(
        lambda: {"low": 5, "lower": 2},
        none=None,
        number=3,
        text="low",
        list=["low"],
        numbers={1: 2},
        counts={"low": "a"},
    ),
    num_merges=size(3, 0),
)
MERGES = of_values(lambda: [("l", "o"), ("lo", "w")], none=None, number=3, text="text", triples=[("a", "b", "c")])
call(bpe.bpe_tokenize, word=a_text("lower").but("list", "bytes"), merges=MERGES.but("triples"))  # of any symbols
call(
    bag_of_words.bag_of_words,
    ids=IDS,
    real=REAL,
    vocab_size=size(9),
    binary=fixed(True),
)
call(bag_of_words.add_bigrams, tokens=words("abc"))
call(bag_of_words.BagOfWords, vocab_size=size(9), binary=fixed(True), num_classes=size(2, 2))
call(bag_of_words.BagOfWords.forward, on=lambda: bag_of_words.BagOfWords(9), ids=IDS, real=REAL)
call(bag_of_words.AveragedEmbeddings, vocab_size=size(9), d_model=size(4), num_classes=size(2), dropout=prob(0.1))
call(bag_of_words.AveragedEmbeddings.forward, on=lambda: bag_of_words.AveragedEmbeddings(9, 4), ids=IDS, real=REAL)
LABELS = whole_numbers([0, 1, 1, 0]).also(too_few=[1], negative=[0, 1, -1, 0], classes=[0, 1, 2, 0], empty=[])
call(
    bag_of_words.fit_bag_of_words,
    model=a_module(lambda: bag_of_words.BagOfWords(9)),
    rows=ROWS.also(too_large=[[99], [1], [1], [1]]),
    labels=LABELS,
    l2=number(0.1, zero=True),
    steps=size(2),
)
call(bag_of_words.log_count_ratio, rows=ROWS.also(too_large=[[99], [1], [1], [1]]), labels=LABELS, vocab_size=size(9))

# --- rnn, bptt, lstm_gru, recurrent_models ------------------------------------------

X = floats(randn(2, 4, 3)).but("nan", "inf", "empty")  # what goes in comes out; a batch may be empty
STATE = floats(randn(2, 5)).but("nan", "inf", "empty", "fewer axes", "more axes", "int64", "bool")


BROADCASTS = ("nan", "inf", "empty", "fewer axes", "more axes", "int64", "bool")  # as in torch's arithmetic


def input_part(gates):
    """What the input gives to `gates` gates of five units."""
    return floats(randn(2, 5 * gates)).but(*BROADCASTS)


def weight(gates):
    """A recurrent matrix of `gates` gates of five units."""
    return floats(randn(5 * gates, 5)).but("nan", "inf", "empty")


call(rnn.rnn_step, from_input=input_part(1), h=STATE, weight_hh=weight(1), nonlinearity=choice("tanh"))
LAYER = {
    "input_size": size(3),
    "hidden_size": size(5),
    "num_layers": size(2),
    "dropout": prob(0.1),
    "bidirectional": fixed(False),
}
for cls in (rnn.RNN, lstm_gru.LSTM, lstm_gru.GRU, lstm_gru.ResetBeforeGRU):
    extra = {"nonlinearity": choice("tanh")} if cls is rnn.RNN else {}
    CALLS[f"{cls.__module__.removeprefix('course_lib.')}.{cls.__name__}"] = (cls, None, LAYER | extra)
STATE_OF = {
    rnn.RNN: floats(randn(1, 2, 5)).but("nan", "inf"),
    lstm_gru.GRU: floats(randn(1, 2, 5)).but("nan", "inf"),
    lstm_gru.LSTM: a_module(lambda: (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))).also(tensor=torch.zeros(1, 2, 5)),
}
for cls, state in STATE_OF.items():
    name = f"{cls.__module__.removeprefix('course_lib.')}.{cls.__name__}"
    make = functools.partial(cls, 3, 5)
    arguments = {
        "x": X,
        "state": optional(state),
        "lengths": optional(whole_numbers([4, 2]).also(zero=[0, 4], long=[9, 1])),
    }
    CALLS[f"{name}.forward"] = (cls.forward, make, arguments | {"backend": choice("fused")})
    step = {"x": floats(randn(2, 3)).but("nan", "inf", "empty"), "state": optional(state), "backend": choice("fused")}
    CALLS[f"{name}.step"] = (cls.step, make, step)
call(lstm_gru.lstm_gates, from_input=input_part(4), h=STATE, weight_hh=weight(4))
call(lstm_gru.lstm_step, from_input=input_part(4), h=STATE, c=STATE.but("number", "array"), weight_hh=weight(4))
call(lstm_gru.gru_gates, from_input=input_part(3), h=STATE, weight_hh=weight(3))
call(lstm_gru.gru_step, from_input=input_part(3), h=STATE, weight_hh=weight(3))
call(lstm_gru.set_forget_bias, lstm=a_module(lambda: lstm_gru.LSTM(3, 5)), value=real_number(1.0))
call(lstm_gru.LSTM.gate_values, on=lambda: lstm_gru.LSTM(3, 5), x=X)
call(lstm_gru.GRU.gate_values, on=lambda: lstm_gru.GRU(3, 5), x=X)
call(
    lstm_gru.unrolled_weights,
    z=floats(randn(2, 4, 5)).but("nan", "inf", "fewer axes", "more axes", "wider", "empty", "int64"),
)

MATRIX = floats(randn(4, 4))
FORWARD = {
    "x": floats(randn(2, 6, 3)).but("nan", "inf", "empty"),
    "W_ih": floats(randn(4, 3)).but("nan", "inf"),
    "W_hh": floats(randn(4, 4)).but("nan", "inf"),
    "W_ho": floats(randn(2, 4)).but("nan", "inf", "empty"),
}
call(bptt.forward_pass, **FORWARD, nonlinearity=choice("linear"), window=optional(size(3)))
call(
    bptt.backward_pass,
    do=floats(randn(2, 6, 2)).but("nan", "inf", "empty", "int64"),
    cache=a_module(lambda: bptt.forward_pass(*(FORWARD[name].make() for name in FORWARD))),
    W_hh=FORWARD["W_hh"],
    W_ho=FORWARD["W_ho"],
    nonlinearity=choice("linear"),
    window=optional(size(3)),
)
call(
    bptt.squared_loss,
    o=floats(randn(2, 6, 2)).but("nan", "inf", "empty", "int64"),
    y=floats(randn(2, 6, 2)).but("nan", "inf", "empty", "int64"),
)
call(bptt.spectral_radius, W=MATRIX)
call(bptt.scale_to_radius, W=MATRIX, radius=number(0.9, zero=True))
call(bptt.random_orthogonal, D=size(4), generator=generator(), gain=real_number(1.0))
call(
    bptt.step_jacobians,
    h=floats(randn(2, 6, 4)).but(*BROADCASTS),
    W_hh=floats(randn(4, 4)).but("nan", "inf", "int64", "bool"),
    nonlinearity=choice("linear"),
)
call(
    bptt.jacobian_product,
    jacobians=floats(randn(2, 6, 4, 4)).but("nan", "inf", "empty", "int64"),
    s=index(1, 6).but("too_large"),
    t=index(4, 99).but("too_large"),
)
call(bptt.detached, state=a_module(lambda: torch.zeros(1, 2, 5)).but("none"))  # None is the state before the first step
LOSS = function(lambda outputs, y: (outputs - y).square().sum())
WITH_TARGET = {"x": X, "y": floats(randn(2, 4, 5)).but("nan", "inf", "empty", "int64")}
call(
    bptt.truncated_backward,
    layer=a_module(lambda: rnn.RNN(3, 5)),
    loss_fn=LOSS,
    **WITH_TARGET,
    window=size(2),
)
call(
    bptt.truncation_bias,
    layer=a_module(lambda: rnn.RNN(3, 5)),
    loss_fn=LOSS,
    **WITH_TARGET,
    windows=whole_numbers([1, 2]).also(zero=[0]),
)
call(
    bptt.gradient_norm_by_lag,
    layer=a_module(lambda: rnn.RNN(3, 5)),
    x=X,
    loss_fn=function(lambda h: h.sum()),
    wrt=choice("state"),
)
call(
    bptt.finite_differences,
    function=function(lambda at: at.square().sum()),
    at=floats(lambda: torch.ones(3, dtype=torch.float64)).but(
        "nan", "inf", "wider", "more axes", "fewer axes", "empty"
    ),
    eps=number(1e-3),
)
call(
    bptt.clip_norm,
    parameters=of_values(lambda: list(with_gradients(rnn.RNN(3, 5)).parameters()), none=None, text="text", number=3),
    max_norm=number(1.0).but("inf"),  # measures and clips nothing
)


def with_gradients(model):
    """The model with a gradient of ones."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


call(recurrent_models.word_embedding, vocab_size=size(9), width=size(4), std=number(1.0, zero=True))
call(recurrent_models.LanguageModel, vocab_size=size(9), layer=a_module(lambda: rnn.RNN(3, 5)), dropout=prob(0.1))
call(
    recurrent_models.LanguageModel.forward,
    on=lambda: recurrent_models.LanguageModel(9, rnn.RNN(3, 5)),
    ids=IDS.but("wider", "empty"),
)
call(
    recurrent_models.SequenceClassifier,
    vocab_size=size(9),
    layer=a_module(lambda: rnn.RNN(3, 5)),
    num_classes=size(2),
    pool=choice("last"),
    dropout=prob(0.1),
)
call(
    recurrent_models.SequenceClassifier.forward,
    on=lambda: recurrent_models.SequenceClassifier(9, rnn.RNN(3, 5)),
    ids=IDS,
    real=REAL.also(none_real=torch.zeros(2, 4, dtype=torch.bool)),
)

# --- seq2seq, translation, generate -------------------------------------------------


def seq2seq_model():
    """An encoder and a decoder with attention, of nine tokens."""
    encoder = seq2seq.Encoder(9, rnn.RNN(3, 5))
    return seq2seq.Seq2Seq(encoder, seq2seq.AttentionDecoder(9, rnn.RNN(3 + 5, 5), 5, 4)).eval()


NO_REAL = torch.zeros(2, 4, dtype=torch.bool)
SOURCE = {"source": IDS, "source_real": REAL.also(none_real=NO_REAL)}
TARGET_IN = ids(tokens(2, 4), 9).but("wider")
call(seq2seq.Encoder, vocab_size=size(9), layer=a_module(lambda: rnn.RNN(3, 5)), dropout=prob(0.1), pool=choice("last"))
call(seq2seq.Encoder.forward, on=lambda: seq2seq.Encoder(9, rnn.RNN(3, 5)), **SOURCE)
call(
    seq2seq.Decoder,
    vocab_size=size(9),
    layer=a_module(lambda: rnn.RNN(3, 5)),
    context_size=size(5),
    feed_context=fixed(False),
    dropout=prob(0.1),
)
call(
    seq2seq.AttentionDecoder,
    vocab_size=size(9),
    layer=a_module(lambda: rnn.RNN(8, 5)),
    context_size=size(5),
    attention_size=size(4),
    dropout=prob(0.1),
)
call(
    seq2seq.Seq2Seq,
    encoder=a_module(lambda: seq2seq_model().encoder),
    decoder=a_module(lambda: seq2seq_model().decoder),
)
call(seq2seq.Seq2Seq.forward, on=seq2seq_model, **SOURCE, target_in=TARGET_IN)
call(seq2seq.Seq2Seq.start, on=seq2seq_model, **SOURCE)
PAIRS = of_values(
    lambda: [[2, 3, 4], [5, 6], [7]], none=None, number=3, text="text", fractions=[[1.5], [2.0], [3.0]], too_few=[[2]]
)
call(translation.translation_batches, sources=PAIRS, targets=PAIRS, batch_size=size(2))


def translation_batch():
    """A batch of three pairs."""
    rows = [[2, 3, 4], [5, 6], [7]]
    return next(iter(translation.translation_batches(rows, rows, 3)))


call(
    translation.translation_loss,
    model=a_module(seq2seq_model),
    batch=a_module(translation_batch),
    label_smoothing=prob(0.1),
    teacher_forcing=prob(1.0),
)
call(
    translation.scheduled_sampling,
    model=a_module(seq2seq_model),
    **SOURCE,
    target_in=TARGET_IN,
    teacher_forcing=prob(0.5),
    generator=generator(),
)
call(
    translation.translate,
    model=a_module(seq2seq_model),
    sources=PAIRS.but("too_few").also(too_large=[[99]]),
    batch_size=size(2),
    max_new_tokens=size(3),
)
call(translation.alignment, model=a_module(seq2seq_model), **SOURCE, target_in=TARGET_IN)
call(
    translation.alignment_accuracy,
    weights=floats(lambda: torch.rand(3, 4).softmax(-1)).but("inf", "wider"),
    truth=of_values([0, 3, 1], none=None, number=3, text="text", fractions=[0.5, 1.0, 2.0], few=[0], outside=[0, 4, 1]),
)


def language_model():
    """A recurrent language model of nine tokens."""
    return recurrent_models.LanguageModel(9, rnn.RNN(3, 5)).eval()


LOGITS = floats(randn(2, 9)).but("wider", "more axes", "fewer axes", "empty", "int64", "bool")
call(
    generate.sample_tokens,
    logits=LOGITS,
    generator=generator(),
    temperature=number(1.0),
    top_k=optional(size(3)),
    top_p=optional(prob(0.9)),
)
call(generate.top_k_top_p, logits=LOGITS.but("nan", "inf"), top_k=optional(size(3)), top_p=optional(prob(0.9)))
PROMPTS = of_values(
    lambda: [[2, 3], [4]], none=None, number=3, text="text", one=[1, 2, 3], fractions=[[1.5]], empty=[[]], nothing=[],
    too_large=[[99]], negative=[[-1]],
)  # fmt: skip
SEARCH = {
    "max_new_tokens": size(3, 0),
    "eos_id": optional(index(3, 9)),
    "suppress_tokens": of_values(
        (0, 1), none=None, number=3, text="text", fractions=(1.5,), too_large=(99,), negative=(-1,)
    ),
}
call(
    generate.generate,
    model=a_module(language_model),
    prompts=PROMPTS,
    **SEARCH,
    generator=generator(),
    temperature=number(1.0),
    top_k=optional(size(3)),
    top_p=optional(prob(0.9)),
)
call(generate.greedy, model=a_module(seq2seq_model), **SOURCE, **SEARCH)
BEAM = {"beam_size": size(2), "length_penalty": number(0.6, zero=True)}
call(generate.beam_search, model=a_module(seq2seq_model), **SOURCE, **SEARCH, **BEAM)

# --- functional, attention, positional ----------------------------------------------

call(functional.padding_mask, real=REAL.but("wider", "empty"))
call(functional.causal_mask, T=size(3, 0), S=optional(size(4, 0)))
call(
    functional.dropout,
    x=floats(randn(2, 4)).but("nan", "inf", "empty", "fewer axes", "more axes", "wider"),
    p=prob(0.1),
    training=fixed(True),
)
call(functional.Dropout, p=prob(0.1))
Q, K, V = (floats(randn(2, 2, 4, 3)).but(*BROADCASTS) for _ in range(3))
ATTEND = optional(mask(ones(4, 4)))
call(attention.attention_scores, q=Q, k=K)
call(
    attention.attention_weights,
    scores=floats(randn(2, 4, 4)).but("nan", "inf", "empty", "fewer axes", "more axes", "wider"),
)
ATTENTION = {
    "q": Q,
    "k": K,
    "v": V.but("wider"),  # values may have a width of their own
    "mask": ATTEND.but("more axes", "fewer axes", "empty").also(wrong=torch.ones(3, 5, dtype=torch.bool)),
}
call(attention.attention, **ATTENTION, dropout_p=prob(0.0), backend=optional(choice("sdpa")))
call(
    attention.hard_attention,
    **{k: v.also(nan=torch.full((2, 2, 4, 3), NAN)) if k == "q" else v for k, v in ATTENTION.items()},
)
call(attention.attention_backend, backend=choice("math"))
call(
    attention.split_heads,
    x=floats(randn(2, 4, 6)).but("nan", "inf", "empty", "fewer axes", "more axes", "int64", "bool"),
    num_heads=size(2),
)
call(
    attention.merge_heads,
    x=floats(randn(2, 2, 4, 3)).but("nan", "inf", "empty", "fewer axes", "more axes", "wider", "int64", "bool"),
)
call(
    attention.MultiHeadAttention,
    d_model=size(6),
    num_heads=size(2),
    dropout=prob(0.1),
    position=optional(a_module(lambda: None).also(scheme="rope")),
)
STREAM = floats(randn(2, 4, 6)).but("nan", "inf", "empty", "fewer axes", "more axes")  # leading axes are free
MHA = {"query": STREAM, "key": optional(STREAM), "mask": ATTENTION["mask"]}
call(attention.MultiHeadAttention.forward, on=lambda: attention.MultiHeadAttention(6, 2), **MHA)
call(attention.MultiHeadAttention.attention_weights, on=lambda: attention.MultiHeadAttention(6, 2), **MHA)
call(attention.AdditiveAttention, query_size=size(4), key_size=size(3), hidden_size=size(5))
call(attention.record_attention, model=a_module(lambda: attention.MultiHeadAttention(6, 2)).also(another=nn.LSTM(2, 3)))
call(attention.KVCache, batch_size=size(2), num_heads=size(2), max_len=size(4), head_dim=size(3))
call(
    attention.KVCache.append,
    on=lambda: attention.KVCache(2, 2, 4, 3),
    k=floats(randn(2, 2, 3, 3)).but("nan", "inf", "int64", "bool"),
    v=floats(randn(2, 2, 3, 3)).but("nan", "inf", "int64", "bool"),
)
OFFSET = size(1, 0)
call(positional.Sinusoidal, d_model=size(6), max_len=size(10))
call(positional.LearnedPositions, d_model=size(6), max_len=size(10), std=number(0.02, zero=True))
call(positional.RoPE, head_dim=size(6), base=number(10_000.0))
call(positional.RelativeBias, num_heads=size(2), max_distance=size(3))
call(positional.ALiBi, num_heads=size(2))
call(positional.Sinusoidal.add, on=lambda: positional.Sinusoidal(6), x=STREAM.but("int64", "bool"), offset=OFFSET)
call(
    positional.LearnedPositions.add,
    on=lambda: positional.LearnedPositions(6, 10),
    x=STREAM.but("int64", "bool"),
    offset=OFFSET,
)
call(
    positional.RoPE.rotate,
    on=lambda: positional.RoPE(6),
    x=floats(randn(2, 2, 4, 6)).but(*BROADCASTS),
    offset=OFFSET,
)
call(positional.RelativeBias.bias, on=lambda: positional.RelativeBias(2, 3), T=size(3, 0), S=size(4, 0))
call(positional.ALiBi.bias, on=lambda: positional.ALiBi(2), T=size(3, 0), S=size(4, 0))
call(positional.sinusoidal_table, length=size(4, 0), width=size(6), base=number(10_000.0))
call(positional.relative_positions, T=size(3, 0), S=size(4, 0))
call(positional.alibi_slopes, num_heads=size(4))

# --- transformer, transformer_models ------------------------------------------------


def encoder(causal=False):
    """Two layers of width 6."""
    del causal
    return transformer.TransformerEncoder([transformer.EncoderLayer(6, 2, 8, 0.0) for _ in range(2)])


def decoder():
    """One layer of width 6."""
    return transformer.TransformerDecoder([transformer.DecoderLayer(6, 2, 8, 0.0)])


ENCODER_LAYER = {
    "d_model": size(6),
    "num_heads": size(2),
    "dim_feedforward": size(8),
    "dropout": prob(0.1),
    "residual": choice("pre-ln"),
    "activation": function(F.relu).also(cls=nn.GELU),
    "norm": of_values(lambda: nn.RMSNorm, none=None, text="rmsnorm", number=3, module=nn.LayerNorm(6)),
}
call(transformer.EncoderLayer, **ENCODER_LAYER)
call(transformer.DecoderLayer, **ENCODER_LAYER)
SELF = {"x": STREAM, "mask": ATTENTION["mask"]}
MEMORY = floats(randn(2, 4, 6)).but("nan", "inf")
call(transformer.EncoderLayer.forward, on=lambda: transformer.EncoderLayer(6, 2, 8, 0.0), **SELF)
call(transformer.DecoderLayer.forward, on=lambda: transformer.DecoderLayer(6, 2, 8, 0.0), memory=MEMORY, **SELF)
LAYERS = of_values(lambda: [transformer.EncoderLayer(6, 2, 8)], none=None, number=3, text="text", empty=[], wrong=[3])
call(transformer.TransformerEncoder, layers=LAYERS)
call(transformer.TransformerDecoder, layers=LAYERS)
call(transformer.TransformerEncoder.forward, on=encoder, **SELF)
call(transformer.TransformerDecoder.forward, on=decoder, memory=MEMORY, **SELF)
call(transformer.Transformer, encoder=a_module(encoder), decoder=a_module(decoder))
call(transformer.init_weights, model=a_module(encoder), std=number(0.02, zero=True))
SCHEME = optional(of_values(lambda: positional.Sinusoidal(6), none=None, text="rope", number=3))
call(
    transformer_models.TokenEmbedding,
    vocab_size=size(9),
    d_model=size(6),
    position=SCHEME,
    dropout=prob(0.1),
    scale=optional(number(2.0)),
)
call(
    transformer_models.TransformerClassifier,
    vocab_size=size(9),
    encoder=a_module(encoder),
    num_classes=size(2),
    position=SCHEME,
    pool=choice("mean"),
    dropout=prob(0.1),
)
call(
    transformer_models.TransformerLM, vocab_size=size(9), encoder=a_module(encoder), position=SCHEME, dropout=prob(0.1)
)
TOKENS = {"ids": IDS, "real": REAL.also(none_real=NO_REAL)}
call(
    transformer_models.TransformerClassifier.forward,
    on=lambda: transformer_models.TransformerClassifier(9, encoder()),
    **TOKENS,
)
call(transformer_models.TransformerLM.forward, on=lambda: transformer_models.TransformerLM(9, encoder()), **TOKENS)
CALLS["transformer_models.TransformerClassifier.forward, learned"] = (
    transformer_models.TransformerClassifier.forward,
    lambda: transformer_models.TransformerClassifier(9, encoder(), position=positional.LearnedPositions(6, 4)),
    {"ids": IDS, "real": REAL.also(left=torch.tensor([[False, False, True, True]] * 2))},
)


def translator():
    """A Transformer that translates between nine tokens."""
    return transformer_models.Translator(9, 9, transformer.Transformer(encoder(), decoder())).eval()


call(
    transformer_models.Translator,
    source_size=size(9),
    target_size=size(9),
    transformer=a_module(lambda: transformer.Transformer(encoder(), decoder())),
    position=SCHEME,
    dropout=prob(0.1),
)
call(transformer_models.Translator.forward, on=translator, **SOURCE, target_in=TARGET_IN)
call(transformer_models.Translator.start, on=translator, **SOURCE)

# --- cost ---------------------------------------------------------------------------

B, T, D, H = size(2), size(4), size(6), size(2)
for f in (formulas.rnn_cost, formulas.gru_cost, formulas.lstm_cost):
    call(f, B=B, T=T, D=D, input_size=optional(size(3)))
call(formulas.cnn_cost, B=B, T=T, D=D, kernel=size(3), layers=size(2))
call(formulas.layers_to_cover, T=T, kernel=size(3, 2))
BACKEND = choice("math")
call(formulas.attention_cost, B=B, T=T, D=D, H=H, backend=BACKEND)
call(formulas.multi_head_cost, B=B, T=T, D=D, H=H, S=optional(size(5)), backend=BACKEND)
call(formulas.feed_forward_cost, B=B, T=T, D=D, F=size(8))
call(formulas.encoder_layer_cost, B=B, T=T, D=D, H=H, F=size(8), backend=BACKEND)
call(formulas.decoder_layer_cost, B=B, T=T, S=size(5), D=D, H=H, F=size(8), backend=BACKEND)
call(formulas.encoder_cost, B=B, T=T, D=D, H=H, F=size(8), N=size(2), backend=BACKEND)
call(formulas.transformer_cost, B=B, S=size(5), T=T, D=D, H=H, F=size(8), N=size(2), backend=BACKEND)
call(
    formulas.classifier_cost, B=B, T=T, V=size(9), D=D, H=H, F=size(8), N=size(2), num_classes=size(2), backend=BACKEND
)
call(measure.CausalCNN, d_model=size(4), kernel=size(3), layers=size(2))
call(measure.CausalCNN.forward, on=lambda: measure.CausalCNN(4, 3), x=floats(randn(2, 4, 4)).but("nan", "inf", "empty"))
INPUT = floats(randn(2, 4, 4)).but("nan", "inf", "empty")
for f in (measure.measure_cost, measure.count_operations, measure.count_activations, measure.path_length):
    CALLS[f"cost.measure.{f.__name__}"] = (
        lambda model, x, f=f: f(model, x),
        None,
        {"model": a_module(lambda: measure.CausalCNN(4, 3)).but("function"), "x": INPUT},  # what maps x is a model
    )
call(
    measure.sequential_steps,
    output=floats(lambda: measure.CausalCNN(4, 3)(randn(2, 4, 4)())).but(
        "nan", "inf", "empty", "fewer axes", "more axes", "wider"
    ),
)
call(
    measure.time_rounds,
    functions=of_values(lambda: {"a": lambda: None}, none=None, number=3, text="text", values={"a": 3}),
    rounds=size(2).but("huge"),
    least=number(1e-4, zero=True).but("inf"),
)
call(
    measure.peak_memory,
    statements=of_values(lambda: ["x = 3"], none=None, number=3, text="text", wrong=["x = ("]),
)
call(
    measure.gradient_by_distance,
    model=a_module(lambda: measure.CausalCNN(4, 3)),
    x=floats(randn(2, 4, 4)).but("nan", "inf"),
)
call(
    measure.seconds,
    functions=of_values(lambda: {"a": lambda: None}, none=None, number=3, text="text", values={"a": 3}),
    rounds=size(2).but("huge"),  # a long measurement is what was asked for
    least=number(1e-4, zero=True).but("inf"),
)
NUMBERS = of_values(
    lambda: [1.0, 2.0, 4.0], none=None, number=3, text="text", nan=[1.0, NAN, 2.0], zero=[0.0, 1.0, 2.0], few=[1.0]
)
call(measure.growth_exponent, sizes=NUMBERS, values=NUMBERS)

# --- optim, train -------------------------------------------------------------------

# A fraction is a step between two, or a share of all steps that is no whole number.
STEP, WARMUP, TOTAL = (
    size(3, 0).but("fraction", "huge"),
    size(2, 0).but("fraction", "huge"),
    size(9).but("fraction", "huge"),
)
call(optim.linear_schedule, step=STEP, warmup=WARMUP, total=TOTAL)
call(optim.cosine_schedule, step=STEP, warmup=WARMUP, total=TOTAL, floor=prob(0.1))
call(optim.noam_schedule, step=STEP, d_model=size(8), warmup=size(2, 0).but("fraction"))
call(optim.inverse_sqrt_schedule, step=STEP, warmup=size(2, 0).but("fraction"))
call(optim.constant_schedule, step=STEP, warmup=WARMUP)
call(optim.rectification, step=size(3).but("huge"), beta2=prob(0.9))
PARAMS = of_values(lambda: list(nn.Linear(2, 2).parameters()), none=None, number=3, text="text", empty=[])
call(
    optim.RAdam,
    params=PARAMS,
    lr=number(1e-3, zero=True),
    betas=of_values(
        (0.9, 0.99), none=None, number=0.9, one=(0.9, 1.0), negative=(-0.1, 0.9), nan=(NAN, 0.9), few=(0.9,)
    ),
    eps=number(1e-8, zero=True),
    weight_decay=number(0.1, zero=True),
)
call(optim.decay_groups, model=a_module(lambda: nn.Linear(2, 2)), weight_decay=number(0.1, zero=True))


def task():
    """A classifier of two classes."""
    return transformer_models.TransformerClassifier(9, encoder())


BATCH = (tokens(2, 4)(), torch.ones(2, 4, dtype=torch.bool), torch.tensor([0, 1]))


def fit(model=None, lr=0.01, **options):
    """`train.fit` with an optimizer of the model's own."""
    model = model or task()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    return train.fit(model, lambda epoch: [BATCH], train.classification_loss, optimizer, **options)


CALLS["train.fit"] = (
    fit,
    None,
    {
        "epochs": size(1).but("huge"),
        "monitor": choice("loss"),
        "valid_batches": of_values(lambda: [BATCH], number=3, text="text"),
        "clip_norm": optional(number(1.0).but("inf")),
        "grad_accumulation_steps": size(1),
    },
)


def fit_with(optimizer, scheduler):
    """`train.fit` with an optimizer and a scheduler that belongs to it; both are made of the model."""
    model = task()
    if callable(optimizer):
        optimizer = optimizer(model)
        scheduler = scheduler(optimizer)
    return train.fit(model, lambda epoch: [BATCH], train.classification_loss, optimizer, epochs=1, scheduler=scheduler)


CALLS["train.fit, optimizer"] = (
    fit_with,
    None,
    {
        "optimizer": of_values(lambda: lambda model: torch.optim.SGD(model.parameters(), 0.1), text="adam", none=None),
        "scheduler": of_values(
            lambda: torch.optim.lr_scheduler.ConstantLR,
            another=lambda _: torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(task().parameters(), 0.1)),
        ),
    },
)
CALLS["train.train_epoch"] = (
    lambda model, batches, clip_norm, grad_accumulation_steps: train.train_epoch(
        model,
        batches,
        train.classification_loss,
        torch.optim.SGD(task().parameters() if not isinstance(model, nn.Module) else model.parameters(), 0.1),
        clip_norm=clip_norm,
        grad_accumulation_steps=grad_accumulation_steps,
    ),
    None,
    {
        "model": a_module(task),
        "batches": a_module(lambda: [BATCH]).also(empty=[]),
        "clip_norm": optional(number(1.0).but("inf")),
        "grad_accumulation_steps": size(1),
    },
)
call(train.classification_loss, model=a_module(task), batch=a_module(lambda: BATCH).also(empty=()))
call(train.set_seed, seed=size(3, 0).but("negative", "huge"))
call(
    train.evaluate,
    model=a_module(task),
    batches=a_module(lambda: [BATCH]).also(empty=[]),
    loss_fn=function(train.classification_loss),
)
call(train.predict, model=a_module(task), batches=a_module(lambda: [BATCH[:2]]).also(empty=[]))


def binary_loss(labels):
    """`train.binary_loss` of a model with one number for each row."""
    return train.binary_loss(lambda ids, real: ids.float().mean(1), (*BATCH[:2], labels))


def classification_loss(labels):
    """`train.classification_loss` of three classes."""
    return train.classification_loss(lambda ids, real: torch.zeros(2, 3), (*BATCH[:2], labels))


def language_model_loss(targets):
    """`train.language_model_loss` of nine tokens."""
    return train.language_model_loss(lambda inputs: torch.zeros(2, 4, 9), (tokens(2, 4)(), targets))


CALLS["train.classification_loss, labels"] = (
    classification_loss,
    None,
    {"labels": ids(lambda: torch.tensor([0, 1]), 3).also(ignored=torch.tensor([-100, 1]))},
)
CALLS["train.language_model_loss"] = (
    language_model_loss,
    None,
    {"targets": ids(tokens(2, 4), 9).also(ignored=torch.full((2, 4), -100))},
)
CALLS["train.binary_loss"] = (
    binary_loss,
    None,
    {
        "labels": ids(lambda: torch.tensor([0, 1]), 2)
        .but("float", "bool")
        .also(signs=torch.tensor([-1, 1]), from_one=torch.tensor([1, 2]), nans=torch.tensor([NAN, 1.0]))
    },
)

# --- bert, gpt ----------------------------------------------------------------------

CONFIG = {"vocab_size": size(9), "max_len": size(8), "d_model": size(6), "num_layers": size(1), "num_heads": size(2)}
BERT = CONFIG | {
    "dim_feedforward": size(8),
    "dropout": prob(0.1),
    "num_segments": size(2),
    "residual": choice("pre-ln"),
}
call(bert.BERTConfig, **BERT, layer_norm_eps=number(1e-5))
call(
    gpt.GPTConfig,
    **CONFIG,
    dim_feedforward=optional(size(8)),
    dropout=prob(0.1),
    activation=choice("gelu"),
    norm=choice("rmsnorm"),
    norm_eps=number(1e-5),
)


def small_bert():
    """A BERT of nine tokens and eight positions."""
    return bert.BERT(bert.BERTConfig(9, 8, 6, 1, 2, 8, dropout=0.0))


def small_gpt():
    """A GPT of nine tokens and eight positions."""
    return gpt.GPT(gpt.GPTConfig(9, 8, 6, 1, 2, dropout=0.0)).eval()


READ = TOKENS | {"segment_ids": optional(ids(tokens(2, 4, high=2, low=0), 2)).also(wrong=torch.zeros(2, 5).long())}
LEFT = torch.tensor([[False, False, True, True], [True, True, True, True]])
call(bert.BERT, config=a_module(lambda: bert.BERTConfig(9, 8, 6, 1, 2, 8)))
call(bert.BERTForPreTraining, bert=a_module(small_bert))
call(bert.BERT.forward, on=small_bert, **READ)
call(
    bert.BERTForSequenceClassification.forward,
    on=lambda: bert.BERTForSequenceClassification(small_bert()),
    **READ | {"real": READ["real"].also(left=LEFT)},
)
call(bert.BERTForTokenClassification.forward, on=lambda: bert.BERTForTokenClassification(small_bert(), 3), **READ)
call(bert.BERTForPreTraining.forward, on=lambda: bert.BERTForPreTraining(small_bert()), **READ)
call(
    bert.BERTForSequenceClassification,
    bert=a_module(small_bert),
    num_classes=size(2),
    dropout=optional(prob(0.1)),
    pool=choice("cls"),
)
call(bert.BERTForTokenClassification, bert=a_module(small_bert), num_classes=size(2), dropout=optional(prob(0.1)))
call(
    bert.mask_tokens,
    ids=IDS,
    maskable=mask(ones(2, 4)),
    vocab_size=size(9).but("huge"),
    mask_id=index(1, 9).but("too_large", "huge"),
    generator=generator(),
    mask_prob=prob(0.5),
    first_regular_id=size(2, 0),
)
DOCUMENTS = of_values(
    lambda: [[[2, 3], [4]], [[5], [6, 7]]],
    none=None,
    number=3,
    text="text",
    one=[[[2], [3]]],
    sentences=["a", "b"],
    empty=[],
)
call(bert.sentence_pairs, documents=DOCUMENTS, generator=generator())
SEGMENT = of_values(lambda: [2, 3], none=None, number=3, text="text", fractions=[1.5], strings=["a"]).but(
    "fractions",
    "strings",  # tokens of any kind are joined
)
call(
    bert.join_pair,
    first=SEGMENT,
    second=optional(SEGMENT),
    cls_id=index(0, 99).but("too_large", "huge"),
    sep_id=index(1, 99).but("too_large", "huge"),
    max_len=optional(size(8)),
)
call(gpt.GPT, config=a_module(lambda: gpt.GPTConfig(9, 8, 6, 1, 2)), position=SCHEME)
call(gpt.GPT.forward, on=small_gpt, ids=IDS.but("wider", "empty"))

# --- llama --------------------------------------------------------------------------

LLAMA = CONFIG | {"num_kv_heads": size(1), "dim_feedforward": size(8)}
call(
    llama.LlamaConfig,
    **LLAMA,
    head_dim=optional(size(4)),
    rope_base=number(1e4),
    rope_scaling=optional(of_values(lambda: dict(LLAMA_3_2), none=None, number=3, text="text", empty={})),
    norm_eps=number(1e-5),
)


def small_llama():
    """A Llama of nine tokens and a context of eight."""
    return llama.Llama(llama.LlamaConfig(9, 8, 6, 1, 2, 1, 8, head_dim=4)).eval()


call(llama.Llama, config=a_module(lambda: llama.LlamaConfig(9, 8, 6, 1, 2, 1, 8, head_dim=4)))
call(llama.Llama.forward, on=small_llama, ids=IDS.but("wider", "empty"))
call(llama.GroupedQueryAttention, d_model=size(6), num_heads=size(2), num_kv_heads=size(1), head_dim=size(4))
call(llama.RMSNorm, d_model=size(6), eps=number(1e-5))
call(llama.SwiGLU, d_model=size(6), dim_feedforward=size(8))

# --- lora, quantization, linear_attention -------------------------------------------

MATRIX = floats(randn(5, 3)).but("wider")
call(lora.LowRankUpdate, weight=MATRIX.but("nan", "inf", "empty"), rank=size(2), alpha=number(4))  # its shape counts
call(
    lora.add_lora,
    model=a_module(small_gpt),
    rank=size(2),
    alpha=number(4),
    targets=words(["q_proj", "mlp.0"]).also(others=["query"], tied=["head"], empty=[]),
)
call(quantization.quantize_rows, weight=MATRIX.but("empty"))
call(
    quantization.dequantize,
    q=floats(lambda: torch.ones(5, 3, dtype=torch.int8)).but("wider", "nan", "inf"),
    scales=floats(randn(5)).but("nan", "inf"),
)
call(
    quantization.Int8Linear,
    weight=MATRIX.but("empty"),
    bias=optional(floats(randn(5))).but("nan", "inf"),
    activations=fixed(True),
)
call(
    quantization.quantize_model,
    model=a_module(small_gpt).also(nothing=nn.Sequential()),
    skip=words(["head"]).also(empty=[]),  # the head is tied
    activations=fixed(False),
)
call(quantization.size_in_bytes, model=a_module(lambda: nn.Linear(2, 2)))
HEADS = floats(randn(2, 3, 5, 4)).but("nan", "inf")
for f, more in (
    (linear_attention.linear_attention, {}),
    (linear_attention.linear_attention_chunked, {"chunk": size(2)}),
):
    call(f, q=HEADS, k=HEADS, v=HEADS.but("wider"), **more)
STEPS = floats(randn(2, 5, 4)).but("nan", "inf")
call(linear_attention.linear_scan, a=STEPS.but("fewer axes"), b=STEPS)  # one that broadcasts
call(linear_attention.LinearAttention, d_model=size(6), num_heads=size(2), bias=fixed(True), chunk=optional(size(4)))
for f, method in ((linear_attention.StateSpace, "fft"), (linear_attention.MinGRU, "loop")):
    call(f, d_model=size(6), d_state=optional(size(4)), method=choice(method))

NO_HUGE = {"d_model": 12, "num_heads": 3, "num_layers": 2, "dim_feedforward": 20, "source_size": 11, "target_size": 7}
call(
    pretrained.build_translator,
    **{name: size(value).but("huge") for name, value in NO_HUGE.items()},
    dropout=prob(0.1),
)
call(pretrained.load_translator, folder=of_values(lambda: None, number=3))
call(pretrained.load_shakespeare, folder=of_values(lambda: None, number=3))
call(pretrained.weights_by_layer, model=a_module(lambda: pretrained.build_translator(11, 7, 12, 3, 2, 20)))
SPECIAL_PIECES = ["<unk>", "<pad>", "<sos>", "<eos>", "a", "b"]
call(
    pretrained.Subwords,
    pieces=of_values(lambda: SPECIAL_PIECES, none=None, number=3, other=["a", "b"]),
    merges=of_values(lambda: [("a", "b")], none=None, number=3),
)

# --- utils, datasets ----------------------------------------------------------------

call(utils.number_of_parameters, model=a_module(lambda: nn.Linear(2, 2)))
call(device.pick_device, name=optional(of_values("cpu", none=None, unknown="no such", number=3.5)))
call(real.split_validation, n=size(20).but("huge"), fraction=prob(0.1), seed=size(0, 0).but("negative", "huge"))
call(real.shakespeare_split, text=a_text("To be, or not to be"))
SPLIT = choice("train").also(other="validation")  # refused before anything is read
for f in (real.imdb, real.wikitext2):
    call(f, split=of_values("train", **{k: v(None) for k, v in SPLIT.bad.items()}))
call(
    real.multi30k,
    split=of_values("train", unknown="no such", none=None, number=3),
    languages=of_values(("de", "en"), unknown=("no", "en"), number=3),
)
call(real.docstrings, limit=optional(size(100, 0)).but("huge"))
COUNT, SEED, GENERATOR = size(3).but("huge"), size(0, 0).but("huge"), generator()
for f in (synthetic.reviews, synthetic.review_pairs, synthetic.translation_pairs, synthetic.coreference):
    call(f, n=size(4, 0), seed=SEED)
call(synthetic.recall_task, batch=size(2), lag=size(3), vocab_size=size(9, 2), generator=GENERATOR)
call(synthetic.copy_task, batch=size(2), length=size(3), vocab_size=size(9, 3), generator=GENERATOR, delay=size(1, 0))
call(synthetic.adding_task, batch=size(2), length=size(4, 2), generator=GENERATOR)
call(
    synthetic.seasonal_series,
    length=size(20),
    period=size(12),
    seed=SEED,
    trend=real_number(0.02),
    noise=number(0.2, zero=True),
)
