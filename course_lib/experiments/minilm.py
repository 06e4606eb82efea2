r"""Recorded runs of chapter 12 with a model that others have trained: all-MiniLM-L6-v2, of BERT's architecture.

Read `embed`, texts to vectors, and `minilm_search`, which finds texts by meaning. `imdb_minilm` fine-tunes the model on
few labelled reviews, `minilm_bag` gives the same reviews to a bag of words, `minilm_probe` asks its frozen layers. The
reviews are those of `imdb_bert.imdb_bert_curves`, to learn from and to be tested on, and nothing was chosen on a test.

The model (6 layers, D 384, 22.7 million parameters) descends from a network that learned to imitate a larger one of
BERT's kind; it learned from more than a billion pairs of texts that belong together to give such texts similar vectors.

Source: Wang et al. (2020), "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained
Transformers", arXiv:2002.10957; Reimers and Gurevych (2019), "Sentence-BERT", arXiv:1908.10084; the model's page,
https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
"""

import time

import torch
import torch.nn.functional as F

from course_lib import datasets
from course_lib.bag_of_words import BagOfWords, add_bigrams, bag_of_words, fit_bag_of_words, log_count_ratio
from course_lib.bert import BERT, BERTForSequenceClassification
from course_lib.experiments import experiment
from course_lib.experiments.imdb import accuracy_of
from course_lib.experiments.imdb_bags import bag_logits
from course_lib.experiments.toy_bert import probe
from course_lib.notebook import ledger
from course_lib.optim import linear_schedule
from course_lib.text import batches, build_vocab, numericalize, pad_batch, tokenize
from course_lib.train import classification_loss, set_seed, train_epoch
from course_lib.utils import eval_mode, huggingface, number_of_parameters
from course_lib.utils.device import device_of

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def find_minilm():
    """The model's folder on this machine, for `from_pretrained` and `huggingface.tokenizer`; a DataError if none."""
    return huggingface.cached(MINILM, "minilm")


# --- search by meaning --------------------------------------------------------------

DOCUMENTS = (
    "Refunds reach your account within two weeks of your return.",
    "Parcels are delivered on weekdays between nine and six.",
    "The museum is closed on Mondays and on public holidays.",
    "Dogs and cats may travel in the cabin in a small carrier.",
    "A fever above 39 degrees that lasts three days needs a doctor.",
    "Keep your receipt: the guarantee covers repairs for two years.",
    "Bread turns stale more slowly in a cloth bag than in the fridge.",
    "To change your password, open the settings and choose security.",
    "The last bus to the harbour leaves at a quarter past eleven.",
    "Tomatoes want full sun, and water at the root in the morning.",
    "Children under six swim for free when an adult pays.",
    "Money can be exchanged at the counter beside the exit.",
)
QUERIES = {  # query: the number of the document that answers it
    "How do I get my money back?": 0,
    "Can I bring my pet on the plane?": 3,
    "My son is hot and has been ill since Sunday.": 4,
    "I forgot how to log in.": 7,
}


def embed(bert, tokenizer, texts):
    """Texts to vectors of length 1, (B, D): the mean over the vectors of the real tokens, normalised."""
    ids, real = pad_batch([pieces.ids for pieces in tokenizer.encode_batch(list(texts))])
    with eval_mode(bert), torch.no_grad():
        x = bert(ids, real)  # (B, T, D), 0 at padding
    return F.normalize(x.sum(1) / real.sum(1, keepdim=True), dim=1)


def tf_idf(documents, queries):
    r"""Texts to vectors of length 1 by their words: how often each occurs, times how few of the documents have it.

    $$ \text{tf}_{b,v} \, \Big( \ln \frac{1 + N}{1 + N_v} + 1 \Big) $$

    N_v of the N documents hold word v; the weights come from the documents alone. Returns two tensors (B, V).

    Source: Spärck Jones (1972), "A statistical interpretation of term specificity and its application in retrieval";
    with the smoothing of scikit-learn's `TfidfVectorizer`.
    """
    tokens = [tokenize(text) for text in (*documents, *queries)]
    vocab = build_vocab(tokens)
    counts = bag_of_words(*pad_batch([numericalize(row, vocab) for row in tokens]), len(vocab), binary=False)
    N = len(documents)
    idf = ((1 + N) / (1 + (counts[:N] > 0).sum(0))).log() + 1  # (V,)
    return F.normalize(counts * idf, dim=1).split([N, len(queries)])


def search_now():
    """The cosines of all queries and documents, one row (N,) a query, with the model on this machine."""
    source = find_minilm()
    bert, tokenizer = BERT.from_pretrained(source), huggingface.tokenizer(source)
    return embed(bert, tokenizer, QUERIES) @ embed(bert, tokenizer, DOCUMENTS).T


def search():
    """`search_now` where the model is in the cache, else the same numbers as they are recorded: (4, 12)."""
    try:
        return search_now()
    except datasets.DataError:
        return torch.tensor(ledger.values("minilm-search", "MiniLM", "cosines")[0])


@experiment("minilm-search", "Four questions and twelve short texts: cosines by a published model and by common words.")
def minilm_search(seed):
    """No seed changes anything. The texts were written before the model saw them, and all that was tried is here."""
    words, queries = tf_idf(DOCUMENTS, QUERIES)
    answers = torch.tensor(list(QUERIES.values()))
    results = {"texts": {"documents": list(DOCUMENTS), "queries": list(QUERIES), "answers": answers}}
    for name, cosines in (("MiniLM", search_now()), ("tf-idf", queries @ words.T)):
        best = cosines.argmax(1)
        results[name] = {"cosines": cosines, "best": best, "right": (best == answers).sum().item()}
    return {"results": results}


# --- reviews ------------------------------------------------------------------------


def draw_reviews(seed, size, tested):
    """`size` training reviews, another draw for each seed, and `tested` test reviews, always the same: (texts, labels).

    They are those of `imdb_bert.imdb_bert_curves`: a smaller size has the first of a larger one's.
    """
    return _draw("train", 1_000_000 * seed + 3, size), _draw("test", 2, tested)


def _draw(split, seed, size):
    """The first of a split's reviews in random order."""
    texts, labels = datasets.imdb(split)
    drawn = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))[:size].tolist()
    return [texts[i] for i in drawn], [labels[i] for i in drawn]


def review_rows(texts, tokenizer, length):
    """Rows of ids, `[CLS] ... [SEP]`: of a long review the last `length - 2` pieces."""
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    texts = [text.replace("<br />", " ") for text in texts]
    found = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [[cls, *pieces.ids[-(length - 2) :], sep] for pieces in found]


# --- fine-tuning --------------------------------------------------------------------


def fine_tune(model, rows, labels, seed, epochs, batch_size, learning_rate, bf16):
    """Train all weights, the rate rising for a tenth of the steps and then falling to 0: the history."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    total = epochs * -(-len(rows) // batch_size)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: linear_schedule(step, warmup=total // 10, total=total)
    )
    generator, history = torch.Generator().manual_seed(seed), []
    for epoch in range(1, epochs + 1):
        start, steps = time.process_time(), batches(rows, labels, batch_size, generator=generator)
        means = train_epoch(model, steps, classification_loss, optimizer, scheduler=scheduler, clip_norm=1.0, bf16=bf16)
        seconds = time.process_time() - start
        history.append({"epoch": epoch, "seconds": seconds} | {f"train_{key}": value for key, value in means.items()})
    return history


@torch.no_grad()
def margins(model, rows, bf16):
    """How far the logit of "positive" is above that of "negative", for all rows in their order."""
    model.eval()
    found, device = torch.empty(len(rows)), device_of(model)
    for ids, real, where in batches(rows, range(len(rows)), 64, shuffle=False):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            found[where] = model(ids.to(device), real.to(device)).float().diff(dim=1)[:, 0].cpu()
    return found


def tuned_minilm(source, rows, labels, seed, epochs, batch_size, learning_rate, bf16, device="cpu"):
    """A classifier made of the published model and trained on these reviews, its row of results and its history."""
    set_seed(seed)
    model = BERTForSequenceClassification(BERT.from_pretrained(source), pool="mean")
    for layer in model.bert.encoder.layers:
        layer.self_attn.dropout.p = 0.0  # half the time on a CPU; the dropout of the vectors, 0.1, stays
    history = fine_tune(model.to(device), rows, labels, seed, epochs, batch_size, learning_rate, bf16)
    seconds = sum(entry["seconds"] for entry in history)
    row = {"labels": len(rows), "epochs": epochs, "parameters": number_of_parameters(model), "train_seconds": seconds}
    return model, row, history


@experiment("imdb-minilm", "A published model fine-tuned on few of IMDB's reviews.")
def imdb_minilm(
    seed,
    sizes=(100, 400, 1600),
    epochs=(8, 4, 2),
    tested=2000,
    length=256,
    batch_size=16,
    learning_rate=5e-5,
    bf16=True,
):
    """One seed's curve: which labelled reviews, the classifier at the start, the order; all from the published weights.

    A review is its last 256 tokens, its vector the mean over them. Accuracy is on 2,000 of the test reviews, the same
    for all. The rate is one that Devlin et al. (2019), appendix A.3, recommend, and nothing else was tried; they train
    for 2 to 4 epochs, here 100 labels get 8, that there be 50 steps.
    """
    source = find_minilm()
    tokenizer = huggingface.tokenizer(source)
    (texts, labels), (test, wanted) = draw_reviews(seed, max(sizes), tested)
    rows, test = (review_rows(part, tokenizer, length) for part in (texts, test))
    results, history = {}, {}
    for size, passes in zip(sizes, epochs, strict=True):
        name, known = f"{size} labels", (rows[:size], labels[:size])
        model, row, history[name] = tuned_minilm(source, *known, seed, passes, batch_size, learning_rate, bf16)
        results[name] = row | {"accuracy": accuracy_of(margins(model, test, bf16), torch.tensor(wanted))}
    return {"results": results, "history": history}


@experiment("imdb-minilm-all", "A published model fine-tuned on all of IMDB's labelled reviews.")
def imdb_minilm_all(
    seed,
    size=25_000,
    epochs=3,
    tested=25_000,
    length=512,
    batch_size=32,
    learning_rate=5e-5,
    bf16=True,
    device="cpu",
):
    """As `imdb_minilm`, with every label, three passes over the last 512 tokens, and every test review.

    On a GPU with `--set device=cuda`. "accuracy_2000" is on the 2,000 reviews that `imdb_minilm` is tested on. The
    settings were set beforehand and nothing else was tried.
    """
    source = find_minilm()
    tokenizer = huggingface.tokenizer(source)
    (texts, labels), (test, wanted) = draw_reviews(seed, size, tested)
    rows, test = (review_rows(part, tokenizer, length) for part in (texts, test))
    model, row, history = tuned_minilm(source, rows, labels, seed, epochs, batch_size, learning_rate, bf16, device)
    logits, wanted = margins(model, test, bf16), torch.tensor(wanted)
    row |= {"accuracy": accuracy_of(logits, wanted), "accuracy_2000": accuracy_of(logits[:2000], wanted[:2000])}
    return {"results": {f"{size} labels": row}, "history": {f"{size} labels": history}}


JUDGED = {  # a short review: 1 = positive, 0 = negative
    "The plot was not boring, it was wonderful.": 1,
    "The plot was boring, it was not wonderful.": 0,
    "A superb film: moving, funny and beautifully acted.": 1,
    "Two hours of my life that nobody will give me back.": 0,
    "Fine actors, lovely pictures, and yet I could not wait for it to end.": 0,
}


@experiment("minilm-judge", "Five short reviews, judged by a published model after a hundred of IMDB's reviews.")
def minilm_judge(seed, size=100, epochs=8, tested=200, length=256, batch_size=16, learning_rate=5e-5, bf16=True):
    """The judge of `imdb_minilm` with 100 labels: its probability that each of `JUDGED` is positive.

    The five were written before any judge saw them, and all that was tried is here.
    """
    source = find_minilm()
    tokenizer = huggingface.tokenizer(source)
    (texts, labels), (test, wanted) = draw_reviews(seed, size, tested)
    rows, test, short = (review_rows(part, tokenizer, length) for part in (texts, test, JUDGED))
    model, row, history = tuned_minilm(source, rows, labels, seed, epochs, batch_size, learning_rate, bf16)
    row["accuracy"] = accuracy_of(margins(model, test, bf16), torch.tensor(wanted))
    row |= {"texts": list(JUDGED), "wanted": list(JUDGED.values())}
    row["positive"] = margins(model, short, bf16=False).sigmoid()
    return {"results": {f"{size} labels": row}, "history": {f"{size} labels": history}}


def recorded_judge(seed=0, size=100):
    """The lines that the chapter's judge prints as it learns and judges, of a recorded run of `minilm_judge`.

    Returns:
        list of str: the loss of every second pass and the one before it, the accuracy on new reviews, the verdicts.
    """
    record = ledger.load("minilm-judge")
    name, batch_size = f"{size} labels", record["config"]["batch_size"]
    run = next(run for run in record["runs"] if run["seed"] == seed)
    steps, losses = -(-size // batch_size), [entry["train_loss"] for entry in run["history"][name]]
    lines = [f"step {steps * n}, loss {(losses[n - 2] + losses[n - 1]) / 2:.2f}" for n in range(2, len(losses) + 1, 2)]
    row = run["results"][name]
    lines.append(f"new reviews {row['accuracy']:.2f}")
    for text, p in zip(row["texts"], row["positive"], strict=True):
        lines.append(f"{'positive' if p > 0.5 else 'negative'} {max(p, 1 - p):.2f}  {text}")
    return lines


# --- the same reviews for others ----------------------------------------------------


@experiment("minilm-bag", "A bag of words, and of pairs too, on the few reviews that the published model learned from.")
def minilm_bag(seed, sizes=(100, 400, 1600), tested=2000, strengths=(1e-4, 1e-3, 1e-2), folds=5, steps=30):
    """Chapter 02's scaled bag on whole reviews; the penalty is chosen by cross-validation on the labelled reviews."""
    (texts, labels), (test, wanted) = draw_reviews(seed, max(sizes), tested)
    results = {}
    for features, cut in (("words", list), ("words and pairs", add_bigrams)):
        train, held_out = ([cut(tokenize(text)) for text in part] for part in (texts, test))
        for size in sizes:
            known = train[:size], labels[:size]
            scores = {l2: _cross_validated(*known, l2, folds, steps) for l2 in strengths}
            l2 = max(scores, key=scores.get)
            logits = _fit_bag(*known, held_out, l2, steps)
            accuracy = accuracy_of(logits, torch.tensor(wanted))
            results[f"{features}, {size} labels"] = {"labels": size, "l2": l2, "accuracy": accuracy}
    return {"results": results}


def _fit_bag(tokens, labels, others, l2, steps):
    """Fit a bag of the words of some texts; its logits of others."""
    vocab = build_vocab(tokens)
    rows, others = ([numericalize(row, vocab) for row in part] for part in (tokens, others))
    scale = log_count_ratio(rows, labels, len(vocab))
    scale[vocab.stoi["<unk>"]] = 0.0  # no labelled review has it
    model = BagOfWords(len(vocab)).double()
    fit_bag_of_words(model, rows, labels, l2, scale, steps)
    return bag_logits(model, others)


def _cross_validated(tokens, labels, l2, folds, steps):
    """Accuracy on each fold after fitting on the others; fold k holds the texts k, k + folds, ..."""
    logits = torch.empty(len(tokens), dtype=torch.float64)
    for k in range(folds):
        rest = [i for i in range(len(tokens)) if i % folds != k]
        kept = [tokens[i] for i in rest], [labels[i] for i in rest]
        logits[k::folds] = _fit_bag(*kept, tokens[k::folds], l2, steps)
    return accuracy_of(logits, torch.tensor(labels))


@experiment("minilm-probe", "A linear classifier of reviews on the frozen vectors of each layer of a published model.")
def minilm_probe(seed, size=400, tested=2000, length=256, decay=0.1):
    """Layer 0 is the embeddings. A review's vector is the mean of its last 256 tokens' vectors."""
    source = find_minilm()
    bert, tokenizer = BERT.from_pretrained(source), huggingface.tokenizer(source)
    (texts, labels), (test, wanted) = draw_reviews(seed, size, tested)
    layers = [mean_by_layer(bert, review_rows(part, tokenizer, length)) for part in (texts, test)]
    answers = torch.tensor(labels), torch.tensor(wanted)
    found = [probe(x, answers[0], y, answers[1], decay) for x, y in zip(*layers, strict=True)]
    return {"results": {"by layer": {key: [entry[key] for entry in found] for key in found[0]}}}


@torch.no_grad()
def mean_by_layer(bert, rows):
    """The mean over the real tokens after each layer, embeddings first: N + 1 tensors (len(rows), D)."""
    found = torch.empty(bert.config.num_layers + 1, len(rows), bert.config.d_model)
    for ids, real, where in batches(rows, range(len(rows)), 64, shuffle=False):
        weights = real / real.sum(1, keepdim=True)  # (B, T)
        for x, means in zip(bert.hidden(ids, real), found, strict=True):
            means[where] = torch.einsum("bt,btd->bd", weights, x)
    return list(found)
