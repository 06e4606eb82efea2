"""How a reader sees the names that code uses: RNN for rnn, "time (s)" for seconds; in claims, tables, figures."""

import re

NAMES = {  # anywhere: words, and the names of what is measured
    "rnn": "RNN",
    "lstm": "LSTM",
    "gru": "GRU",
    "gpt": "GPT",
    "bert": "BERT",
    "bleu": "BLEU",
    "bpe": "BPE",
    "imdb": "IMDB",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "rope": "RoPE",
    "alibi": "ALiBi",
    "sdpa": "SDPA",
    "adam": "Adam",
    "radam": "RAdam",
    "mlm": "MLM",
    "nsp": "NSP",
    "relu": "ReLU",
    "cnn": "CNN",
    "kv": "KV",
    "ids": "ids",
    "noam": "Noam",
    "sgd": "SGD",
    "xavier": "Xavier",
    "layernorm": "LayerNorm",
    "post-ln": "Post-LN",
    "pre-ln": "Pre-LN",
    "rezero": "ReZero",
    "nanogpt": "nanoGPT",
    "accuracy_unseen": "accuracy on reviews whose text is not in the training set",
    "valid_accuracy": "validation accuracy",
    "train_loss": "training loss (nats)",
    "valid_loss": "validation loss (nats)",
    "valid_estimate": "validation loss, estimated (nats)",
    "valid_nats": "validation loss (nats)",
    "valid_perplexity": "validation perplexity",
    "valid_bleu": "validation BLEU",
    "valid_mae": "validation error (mean absolute)",
    "valid_mae_one_step": "validation error one step ahead",
    "mae_one_step": "mean absolute error one step ahead",
    "final_loss": "loss at the end (nats)",
    "worst_loss": "greatest loss (nats)",
    "best_epoch": "best epoch",
    "seconds": "time (s)",
    "cpu_seconds": "processor time (s)",
    "train_seconds": "training time (s)",
    "train_cpu_seconds": "processor time of training (s)",
    "cache_seconds": "time with a cache (s)",
    "no_cache_seconds": "time without a cache (s)",
    "seconds_per_epoch": "time of an epoch (s)",
    "seconds_per_step": "time of a step (s)",
    "time_share": "time of all steps, relative to nanoGPT",
    "peak_mb": "memory (MB)",
    "learning_rate": "learning rate",
    "hidden_size": "width of the state D",
    "padding": "padding (share of all entries)",
    "tokens_lost": "tokens cut off (share)",
    "entries_per_review": "entries a review",
    "logit_praise": "logit of the praise",
    "logit_blame": "logit of the blame",
    "perplexity_word": "perplexity a word",
    "piece_accuracy": "accuracy a piece",
    "bleu_tokens": "BLEU, on tokens",
    "bleu_beam": "BLEU with a beam",
    "bleu_beam_2": "BLEU, beam of 2",
    "bleu_beam_5": "BLEU, beam of 5",
    "exact_beam_2": "sentences right, beam of 2",
    "exact_beam_5": "sentences right, beam of 5",
    "forced_accuracy": "accuracy, fed true words",
    "forced_perplexity": "perplexity, fed true words",
    "free_accuracy": "accuracy, fed own words",
    "free_perplexity": "perplexity, fed own words",
    "alignment_best": "words aligned rightly by the best head",
    "one_before": "looks one word too early",
    "one_after": "looks one word too late",
    "both_twins": "both twins right",
    "head_at_referent": "a head looks at the referent",
    "any_head_at_referent": "any head looks at the referent",
    "head_at_adjective": "a head looks at the adjective",
    "accuracy_padded_to_150": "accuracy, padded to 150 tokens",
    "math_over_sdpa": "SDPA: times faster than math",
    "attention_over_RNN": "time of attention, relative to the RNN",
    "first_over_last": "gradient of the first layer, relative to the last",
    "query_over_value": "gradient of queries, relative to values",
    "key_over_value": "gradient of keys, relative to values",
    "norm_max": "greatest gradient norm",
    "norm_median": "median gradient norm",
    "mean_slope": "mean slope of the nonlinearity",
    "distinct_3": "distinct 3-grams (share)",
    "distinct_4": "distinct 4-grams (share)",
    "known_words": "known words (share)",
    "ms_after_fused": "time, reset after, fused (ms)",
    "ms_after_loop": "time, reset after, loop (ms)",
    "ms_before_loop": "time, reset before, loop (ms)",
    "non_embedding": "parameters without embeddings",
    "without_positions": "parameters without positions",
}
COLUMNS = {  # only over a column of the ledger, where a word has one meaning
    "accuracy_unseen": "accuracy, texts not in the training set",
    "loss": "loss (nats)",
    "nats": "loss (nats)",
    "bits": "bits a token",
    "exact": "sentences right (share)",
    "alignment": "words aligned rightly (share)",
    "weight": "weight on the right word",
    "exponent": "time grows like T to the power",
    "rare": "rare words (share)",
    "words": "words in the vocabulary",
    "unseen": "unseen n-grams (share)",
    "uniform": "a look at random",
    "norms": "norm of the gradient",
    "nll": "surprise (nats a character)",
    "repetition": "repeated 8-grams (share)",
    "stuck": "stuck (share of seeds)",
    "reached": "solved (share of seeds)",
    "diverged": "diverged (share of seeds)",
    "steps": "steps to solve it",
    "seen": "test texts also in the training set",
    "copy": "copied (share)",
    "reverse": "reversed (share)",
    "sort": "sorted (share)",
    "chance": "by guessing",
    "rate": "learning rate",
    "window": "window (steps)",
    "order": "order n",
    "speedup": "times faster with a cache",
}
VARIANTS = {  # only before a row of the ledger
    "cls": "class token",
    "std 1": "start of size 1",
    "std 0.1": "start of size 0.1",
}


def display_name(name):
    """The name for a reader: from the list, else its words, those of the list in their spelling.

    >>> display_name("lstm_at_lag_60"), display_name("valid_accuracy"), display_name("post-ln, adam")
    ('LSTM at lag 60', 'validation accuracy', 'Post-LN, Adam')
    """
    if name in NAMES:
        return NAMES[name]
    return re.sub(r"[A-Za-z][\w-]*", _spelt, name.replace("_", " "))


def column_name(metric):
    """The name of a measured quantity over a column of the ledger, with its unit.

    >>> column_name("loss"), column_name("valid_bleu")
    ('loss (nats)', 'validation BLEU')
    """
    return COLUMNS.get(metric) or display_name(metric)


def row_name(variant):
    """The name of what was compared, before a row of the ledger.

    >>> row_name("pre-ln, no warm-up, RAdam, 12 layers"), row_name("cls")
    ('Pre-LN, no warm-up, RAdam, 12 layers', 'class token')
    """
    return VARIANTS.get(variant) or display_name(variant)


def _spelt(word):
    """A word in the list's spelling; what the list explains with more than one word stays as it is."""
    found = NAMES.get(word[0], word[0])
    return word[0] if " " in found else found
