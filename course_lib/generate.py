r"""How a model writes: drawing the next token, and searching for a likely text. One protocol for every model.

    state = model.start(batch_size)             a language model; a translator: model.start(source, source_real)
    logits, state = model.step(tokens, state)   tokens (B, T) that the model has not read; logits (B, V) of the next

The prompt is the first step's tokens, then each step reads one. `model.vocab_size` is V, `model.max_len` the longest
text that the model's positions allow, or None.

Read `draw`, `top_k_top_p` and `sample_tokens`, how one token is chosen; `generate`, which writes; `greedy` and
`beam_search_one`, which look for the most probable text; `beam_hypotheses` does the latter for a batch.
"""

import functools
import math
import numbers
from typing import NamedTuple

import torch
from torch import nn

from course_lib.text import EOS, PAD, SOS
from course_lib.utils import eval_mode
from course_lib.utils.validate import (
    check_floats,
    check_ids,
    check_index,
    check_instance,
    check_positive,
    check_sizes,
    check_tensor,
)


def without_training(write):
    """Let a function of a model run without dropout and without gradients."""

    @functools.wraps(write)
    def wrapped(model, *args, **options):
        with torch.inference_mode(), eval_mode(model):
            return write(model, *args, **options)

    return wrapped


# --- one token ------------------------------------------------------------------


def draw(probs, generator=None):
    """Draw a token (B,) from each row of (B, V), with its probability.

    Pieces as long as the probabilities are laid side by side, and a random number falls into one of them. The same
    generator gives the same tokens on every CPU.

    >>> draw(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    tensor([1, 2])
    """
    ends = probs.cumsum(-1)  # (B, V), where each piece ends
    u = torch.rand(len(ends), 1, generator=generator, dtype=torch.float64).to(ends)
    return torch.searchsorted(ends, u * ends[:, -1:], right=True).squeeze(-1)


def top_k_top_p(logits, top_k=None, top_p=None):
    r"""Leave only the likeliest tokens: the others get minus infinity.

    $$ \text{top-k: the k largest} \qquad
       \text{top-p: the fewest tokens with } \textstyle\sum_i p_i \ge p, \text{ likeliest first} $$

    of logits (..., V). With both, top-p chooses among the k. Equals of the k-th stay too; at least one token is left.

    >>> top_k_top_p(torch.tensor([0.5, 0.3, 0.2]).log(), top_p=0.6).exp()
    tensor([0.5000, 0.3000, 0.0000])

    Source: top-k: Fan, Lewis and Dauphin (2018), arXiv:1805.04833, section 5; top-p: Holtzman et al. (2020),
    "The Curious Case of Neural Text Degeneration", arXiv:1904.09751, section 3.1.
    """
    check_filters(logits, top_k, top_p)
    if top_k is not None:
        smallest = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p is not None and top_p < 1:
        sorted_logits, order = logits.sort(-1, descending=True)
        p = sorted_logits.softmax(-1)
        cut = p.cumsum(-1) - p >= top_p  # what comes before reaches p already
        cut[..., 0] = False
        logits = logits.masked_fill(cut.gather(-1, order.argsort(-1)), -torch.inf)
    return logits


def sample_tokens(logits, generator=None, *, temperature=1.0, top_k=None, top_p=None):
    r"""Draw a token (B,) for each row of logits (B, V).

    $$ P(i) = \text{softmax}(\text{logits} / \tau)_i \quad \text{among the tokens that top-k and top-p leave} $$

    A temperature below 1 prefers what is likely, one above 1 evens out. top_k = 1 takes the likeliest token (greedy
    decoding) and draws nothing. The generator is one of the CPU; None: torch's own.

    >>> sample_tokens(torch.tensor([[0.1, 0.7, 0.2]]).log(), top_k=1)
    tensor([1])
    """
    check_tensor("logits", logits, ("B", "V"))
    check_positive(temperature=temperature)
    if generator is not None:
        check_instance("generator", generator, torch.Generator)
    if top_k == 1:
        check_filters(logits, top_k, top_p)
        largest, tokens = logits.max(-1)
    else:
        wide = logits.cpu() if logits.device.type == "mps" else logits  # which has no float64
        probs = top_k_top_p(wide.double() / temperature, top_k, top_p).softmax(-1)  # (B, V)
        largest, tokens = probs, draw(probs, generator).to(logits.device)
    check_possible(largest)
    return tokens


# --- a text ---------------------------------------------------------------------


@without_training
def generate(
    model, prompts, max_new_tokens, generator=None, *, source=None, source_real=None, temperature=1.0, top_k=None,
    top_p=None, eos_id=None, suppress_tokens=(), use_cache=True,
):  # fmt: skip
    """Continue texts, token by token, a batch together.

    The rows advance together, from the end of the shortest prompt on: a row whose prompt is longer is given its own
    tokens until it ends. So no row needs padding, and all stand at the same position.

    `prompts` are B lists of ids, of any lengths from 1 on; a text ends with `eos_id`, if there is one, or after
    `max_new_tokens`; `suppress_tokens` are never written; generator, `temperature`, `top_k` and `top_p` are those of
    `sample_tokens`. A translator reads `source` (B, S) with its real tokens `source_real`, and its prompts begin with
    `<sos>`. Without `use_cache` the whole text is computed again for every token: the same tokens, slower.

    Returns a list of B lists of new ids, without the prompts; an `eos_id` that ended one is its last.

    >>> from course_lib.gpt import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, num_heads=3))
    >>> [len(text) for text in generate(model, [[1, 7], [4, 2, 3]], max_new_tokens=5)]
    [5, 5]
    """
    given, lengths = read_prompts(model, prompts, max_new_tokens, eos_id, suppress_tokens)  # (B, longest), (B,)
    state = begin(model, len(given), source, source_real)
    finished = torch.zeros_like(lengths, dtype=torch.bool)
    shortest, longest = int(lengths.min()), given.shape[1]
    text = unread = given[:, :shortest]
    for t in range(shortest, longest + max_new_tokens):
        logits, state = model.step(unread, state)  # (B, V)
        logits = without_tokens(logits, suppress_tokens)
        new = sample_tokens(logits, generator, temperature=temperature, top_k=top_k, top_p=top_p)
        if t < longest:
            new = torch.where(t < lengths, given[:, t], new)
        unread = new.unsqueeze(1)  # (B, 1)
        text = torch.cat([text, unread], 1)  # (B, t + 1)
        if not use_cache:
            unread, state = text, begin(model, len(text), source, source_real)
        if eos_id is not None:
            finished |= (t >= lengths) & (new == eos_id)
            if finished.all():
                break
    texts = [row[n : n + max_new_tokens] for row, n in zip(text.tolist(), lengths.tolist(), strict=True)]
    return [row[: row.index(eos_id) + 1] if eos_id in row else row for row in texts]


class Hypothesis(NamedTuple):
    """What a search found for one sentence."""

    tokens: list  # of int, without the prompt and `<eos>`
    score: float  # the log-probability in nats, that of `<eos>` included; a beam divides it by `length_factor`
    finished: bool  # whether `<eos>` was reached; False if the sentence was cut
    weights: torch.Tensor | None  # (len(tokens), S) attention over the real source tokens, if the model has any


@without_training
def greedy(
    model, source=None, source_real=None, *, prompt=None, max_new_tokens=60, eos_id=EOS, suppress_tokens=(PAD, SOS)
):
    r"""Take the most probable token at every step until `<eos>`.

    $$ \hat y_t = \arg\max_y\; p(y \mid \hat y_1, \dots, \hat y_{t-1}, x) $$

    Args:
        model: translator or language model.
        source: (B, S) int64 ids; None for a language model.
        source_real: (B, S) bool, True = a real token; None: all.
        prompt: (B, T) int64, where to begin; None: `<sos>`.
        max_new_tokens: most tokens of a sentence, `<eos>` included; fewer where the model's positions end.
        eos_id: the token that ends a sentence; None: none does.
        suppress_tokens: ids that are never chosen; their probability counts in the scores as it is.

    Returns a list of B `Hypothesis`, each what the sentence alone would give; its score is the log-probability.
    """
    tokens, state, steps = begin_search(model, source, source_real, prompt, max_new_tokens, eos_id, suppress_tokens)
    score, finished = 0.0, torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    text, weights = tokens[:, :0], []
    for _ in range(steps):
        logits, state = model.step(tokens, state)  # (B, V)
        best, new = log_probabilities(logits, suppress_tokens).max(-1)  # (B,)
        best = best.masked_fill(finished, 0.0)
        check_possible(best)
        score = score + best
        finished = finished | is_eos(new, eos_id)
        tokens = new.unsqueeze(1)
        text = torch.cat([text, tokens], 1)
        if "weights" in state:
            weights.append(state["weights"][:, -1])
        if finished.all():
            break
    weights = torch.stack(weights, 1) if weights else [None] * len(text)  # (B, T, S)
    rows = zip(text, score, finished, weights, real_rows(source_real, text), strict=True)
    return [hypothesis(eos_id, *row) for row in rows]


def length_factor(length, alpha):
    r"""What a log-probability is divided by, so that longer sentences are not put at a disadvantage.

    $$ lp(Y) = \left(\frac{5 + |Y|}{6}\right)^{\alpha} $$

    with |Y| tokens, `<eos>` included. Every further token lowers the log-probability of a sentence, so the likeliest
    one is often too short. An alpha of 0 leaves log-probabilities as they are; 0.6 to 1 is usual.

    >>> length_factor(1, 0.6), length_factor(7, 1.0)
    (1.0, 2.0)

    Source: Wu et al. (2016), arXiv:1609.08144, equation 14, without the coverage penalty.
    """
    return ((5 + length) / 6) ** alpha


@without_training
def beam_search_one(
    model, source=None, *, prompt=None, beam_size=4, length_penalty=0.0, max_new_tokens=60, eos_id=EOS,
    suppress_tokens=(PAD, SOS),
):  # fmt: skip
    """Beam search for one sentence, to be read first: `beam_hypotheses` does the same for a batch.

    The source is (1, S), or the prompt (1, T). Gives a list of at most `beam_size` `Hypothesis` without weights.
    """
    check_beam(beam_size, length_penalty)
    tokens, state, steps = begin_search(model, source, None, prompt, max_new_tokens, eos_id, suppress_tokens)
    check_tensor("the sentence", tokens, (1, "T"))
    text, score, found = tokens[:, :0], torch.zeros(1, device=tokens.device), []  # one beginning, nothing written yet
    for _ in range(steps):
        logits, state = model.step(tokens, state)  # (k, V) for k beginnings
        V = logits.shape[1]
        total = score.unsqueeze(1) + log_probabilities(logits, suppress_tokens)  # every beginning with every token
        places = min(beam_size - len(found), total.numel())  # what is finished keeps its place
        score, index = total.flatten().topk(places)  # the best of all together
        rows, new = index // V, index % V  # which beginning, and which token behind it
        text = torch.cat([text[rows], new.unsqueeze(1)], 1)
        possible, ended = score > -math.inf, is_eos(new, eos_id)
        found += [hypothesis(eos_id, text[i], score[i], True) for i in (possible & ended).nonzero().flatten()]
        left = (possible & ~ended).nonzero().flatten()
        text, score, tokens, state = text[left], score[left], new[left].unsqueeze(1), reorder(state, rows[left])
        if len(left) == 0:
            break
    found += [hypothesis(eos_id, *row, False) for row in zip(text, score, strict=True)]  # cut
    return ranked(found, length_penalty)


@without_training
def beam_hypotheses(
    model, source=None, source_real=None, *, prompt=None, beam_size=4, length_penalty=0.0, max_new_tokens=60,
    eos_id=EOS, suppress_tokens=(PAD, SOS),
):  # fmt: skip
    r"""Keep the most probable beginnings at every step; all that are left at the end, best first.

    $$ \hat Y = \arg\max_{Y} \frac{\ln p(Y \mid x)}{lp(Y)} $$

    over the hypotheses in the beam. A hypothesis that takes `<eos>` is finished: it keeps its place in the beam and is
    not extended; the others share the places that are left. While searching, beginnings of equal length are compared,
    which needs no penalty. With a beam of 1 this is `greedy`, whose arguments it has; `beam_size` is the number of
    hypotheses kept a sentence, `length_penalty` the alpha of `length_factor`.

    Returns a list of B lists of at most `beam_size` `Hypothesis`, by falling score; those that were cut come last.

    Source: Sutskever et al. (2014), arXiv:1409.3215, section 3.2; Wu et al. (2016), arXiv:1609.08144, equation 14.
    """
    check_beam(beam_size, length_penalty)
    tokens, state, steps = begin_search(model, source, source_real, prompt, max_new_tokens, eos_id, suppress_tokens)
    B, k, device = len(tokens), beam_size, tokens.device
    sentence = torch.arange(B, device=device).repeat_interleave(k)  # (B k,): row b k + i is place i of sentence b
    tokens, state = tokens[sentence], reorder(state, sentence)
    score = torch.full((B, k), -math.inf, device=device)
    score[:, 0] = 0.0  # all places hold the same beginning: one of them counts
    text, weights, found = tokens[:, :0], None, [[] for _ in range(B)]
    reals = real_rows(source_real, found)

    def collect(places, finished):
        for b, i in places.nonzero().tolist():
            row = b * k + i
            looks = None if weights is None else weights[row]
            found[b].append(hypothesis(eos_id, text[row], score[b, i], finished, looks, reals[b]))

    for _ in range(steps):
        logits, state = model.step(tokens, state)  # (B k, V)
        V = logits.shape[1]
        log_probs = log_probabilities(logits, suppress_tokens)
        score, index = (score.unsqueeze(-1) + log_probs.view(B, k, V)).flatten(1).topk(k)  # (B, k), best first
        places = torch.tensor([[k - len(ended)] for ended in found], device=device)  # the finished keep theirs
        score = score.masked_fill(torch.arange(k, device=device) >= places, -math.inf)
        rows, tokens = sentence * k + (index // V).flatten(), (index % V).view(-1, 1)
        text, state = torch.cat([text[rows], tokens], 1), reorder(state, rows)
        if "weights" in state:
            new = state["weights"][:, -1:]  # (B k, 1, S)
            weights = new if weights is None else torch.cat([weights[rows], new], 1)
        ended = is_eos(tokens.view(B, k), eos_id) & (score > -math.inf)
        collect(ended, True)
        score = score.masked_fill(ended, -math.inf)
        if score.isinf().all():
            break
    collect(score > -math.inf, False)  # cut
    return [ranked(hypotheses, length_penalty) for hypotheses in found]


def beam_search(model, source=None, source_real=None, **options):
    """The best of `beam_hypotheses`, with its options, for each sentence: list of B `Hypothesis`."""
    found = beam_hypotheses(model, source, source_real, **options)
    if not all(found):
        raise ValueError("every beginning that the beam kept ends where no token is possible")
    return [hypotheses[0] for hypotheses in found]


# --- shared ---------------------------------------------------------------------


def begin(model, batch_size, source=None, source_real=None):
    """The state before the first token: of a language model, or of a translator that has read the source."""
    if source is not None and len(source) != batch_size:
        raise ValueError(f"the source holds {len(source)} sentences, the prompts {batch_size}")
    return model.start(batch_size) if source is None else model.start(source, source_real)


def reorder(state, rows):
    """The state whose row i is row rows[i] of the one given: a beginning may be continued twice, or not at all."""

    def pick(part):
        if isinstance(part, torch.Tensor):
            return part.index_select(0, rows)
        return [pick(each) for each in part] if isinstance(part, list) else part.reorder(rows)

    return {name: pick(part) for name, part in state.items()}


def without_tokens(logits, ids):
    """Logits, or log-probabilities, of minus infinity for the ids that may not be chosen."""
    return logits.index_fill(-1, torch.tensor(ids, device=logits.device), -torch.inf) if ids else logits


def log_probabilities(logits, suppress_tokens):
    """Of each next token; what is suppressed has none, and the others keep theirs."""
    log_probs = logits.log_softmax(-1)
    check_possible(log_probs.amax(-1))
    return without_tokens(log_probs, suppress_tokens)


def is_eos(tokens, eos_id):
    """Which tokens end a text."""
    return tokens == (-1 if eos_id is None else eos_id)  # no token is -1


def hypothesis(eos_id, tokens, score, finished, weights=None, real=None):
    """One row of a search: cut before `<eos>`, weights of the real source tokens alone."""
    tokens = tokens.tolist()
    end = tokens.index(eos_id) if finished else len(tokens)
    if weights is not None:
        weights = weights[:end] if real is None else weights[:end, real]
    return Hypothesis(tokens[:end], float(score), bool(finished), weights)


def real_rows(source_real, rows):
    """For each row which source tokens are real, or None."""
    return [None] * len(rows) if source_real is None else source_real


def ranked(found, alpha):
    """Scores divided by the length factor; the finished before the cut, then by falling score."""
    found = [h._replace(score=h.score / length_factor(len(h.tokens) + h.finished, alpha)) for h in found]
    return sorted(found, key=lambda h: (not h.finished, -h.score))


# --- doors ----------------------------------------------------------------------


def begin_search(model, source, source_real, prompt, max_new_tokens, eos_id, suppress_tokens):
    """What a search begins with: tokens (B, T), the state before them, and how many steps it may take."""
    check_sizes(max_new_tokens=max_new_tokens)
    check_ends(model, eos_id, suppress_tokens)
    if source is not None:
        check_ids("source", source, ("B", "S"))
    if prompt is not None:
        check_ids("prompt", prompt, ("B", "T"), model.vocab_size)
    given = source if prompt is None else prompt
    if given is None or given.numel() == 0:
        raise ValueError("wanted a source (B, S) to translate or a prompt (B, T) to continue, with at least one token")
    tokens = torch.full((len(source), 1), SOS, device=source.device) if prompt is None else prompt
    if model.max_len is not None:
        check_index("the length of the prompt", tokens.shape[1], model.max_len + 1)
        max_new_tokens = min(max_new_tokens, model.max_len - tokens.shape[1] + 1)  # the last one need not be read
    return tokens, begin(model, len(tokens), source, source_real), max_new_tokens


def read_prompts(model, prompts, max_new_tokens, eos_id, suppress_tokens):
    """The prompts as one tensor (B, longest) on the model's device, and their lengths (B,)."""
    rows = prompts if isinstance(prompts, list | tuple | torch.Tensor) else []
    rows = [row.tolist() if isinstance(row, torch.Tensor) else row for row in rows]
    if not rows or not all(isinstance(row, list | tuple) and row for row in rows):
        raise ValueError(f"prompts must be a list of lists of ids, none of them empty, got {prompts!r}")
    for id in (id for row in rows for id in row):
        check_index("an id of the prompts", id, model.vocab_size)
    check_sizes(least=0, max_new_tokens=max_new_tokens)
    check_ends(model, eos_id, suppress_tokens)
    longest = max(map(len, rows))
    if model.max_len is not None and longest + max_new_tokens > model.max_len:
        raise ValueError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones are more than the context of {model.max_len}"
        )
    device = next(iter(model.parameters())).device if isinstance(model, nn.Module) else "cpu"
    given = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return given.to(device), torch.tensor([len(row) for row in rows], device=device)


def check_ends(model, eos_id, suppress_tokens):
    """Ids of the model's vocabulary, and a text that can end."""
    for id in suppress_tokens:
        check_index("an id of suppress_tokens", id, model.vocab_size)
    if eos_id is not None:
        check_index("eos_id", eos_id, model.vocab_size)
        if eos_id in suppress_tokens:
            raise ValueError(f"eos_id {eos_id} is among suppress_tokens: no text could end")


def check_filters(logits, top_k, top_p):
    """Logits, a number of tokens and a probability, each of the last two or None."""
    check_floats(logits=logits)
    if top_k is not None:
        check_sizes(top_k=top_k)
    if top_p is not None and not (isinstance(top_p, numbers.Real) and 0 < top_p <= 1):
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p!r}")


def check_beam(beam_size, length_penalty):
    """Room for a hypothesis, and a penalty that does not favour short ones."""
    check_sizes(beam_size=beam_size)
    check_positive(zero=True, length_penalty=length_penalty)


def check_possible(largest):
    """Not finite where logits are NaN or plus infinity, or no token is possible: largest of a row, or probabilities."""
    if not math.isfinite(largest.sum()):
        raise ValueError("the logits hold NaN or plus infinity, or no token is possible: there is nothing to draw from")
