"""Hidden tests of chapter 06: a loss, greedy and beam search on small random languages, one sentence at a time."""

import heapq
import itertools
import math

import torch

from classroom.hidden import Hidden, on_paper
from course_lib.exercises import Wrong, close, expect_number

# --- 6.1 ------------------------------------------------------------------------


def draw_shifted_loss(draw):
    B, S, T = draw.sizes(3, low=4)
    V = 6
    pad, sos, eos = draw.sample(range(V), 3)
    words = sorted(set(range(V)) - {pad, sos, eos})
    source, target = torch.full((B, S), pad), torch.full((B, T + 1), pad)
    for row in range(B):
        long = draw.randint(1, S)
        source[row, :long] = torch.tensor(draw.choices(words, k=long))
        long = (0, T - 1)[row] if row < 2 else draw.randint(0, T - 1)  # words: none, as many as fit, or any number
        target[row, : long + 2] = torch.tensor([sos, *draw.choices(words, k=long), eos])
    return draw.normal(V, V), draw.normal(V, V), source, source != pad, target, pad


def probe_shifted_loss(answer, of_source, of_inputs, source, mask, target, pad):
    """The loss and its gradient; what the model says depends on the real source tokens and on all inputs so far."""
    import torch

    of_inputs.requires_grad_()

    def model(source, mask, inputs):
        read = (of_source[source] * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return read.unsqueeze(1) + of_inputs[inputs].cumsum(1)  # (B, T, V)

    loss = answer(model, source, mask, target, pad)
    (gradient,) = torch.autograd.grad(loss, of_inputs)
    return loss.item(), gradient


def right_shifted_loss(of_source, of_inputs, source, mask, target, pad):
    """Token by token."""
    of_inputs.requires_grad_()
    nats = []
    for row, told, asked in zip(source, mask, target.tolist(), strict=True):
        logits = of_source[row[told]].mean(0)
        for before, wanted in itertools.pairwise(asked):
            logits = logits + of_inputs[before]
            if wanted != pad:
                nats.append(logits.logsumexp(0) - logits[wanted])
    loss = sum(nats) / len(nats)
    (gradient,) = torch.autograd.grad(loss, of_inputs)
    return loss.item(), gradient


# --- 6.2 ------------------------------------------------------------------------


def draw_greedy_decode(draw):
    """A recurrent decoder whose rows end at different times, one at once; in half of the cases one never does."""
    never_ends = draw.random() < 0.5
    while True:
        B, D, V = draw.randint(4, 6), 3, draw.randint(5, 8)
        sos, eos = draw.sample(range(V), 2)
        given = (
            draw.normal(B, D), 2 * draw.normal(D, D), 2 * draw.normal(V, D), draw.normal(D, V),
            sos, eos, draw.randint(4, 6) if never_ends else 20,
        )  # fmt: skip
        rows, ended = right_greedy_decode(*given)
        lengths = {len(row) for row in rows}
        if min(lengths) == 0 and len(lengths) >= 3 and ended != never_ends and not any(sos in row for row in rows):
            return given


def probe_greedy_decode(answer, state, recur, embed, out, sos, eos, max_length):
    """What was said, and how often the decoder was asked."""
    calls = []

    def step(tokens, state):
        calls.append(tokens)
        if len(calls) > 60:
            raise TimeoutError("step is called again and again")
        state = (state @ recur + embed[tokens]).tanh()
        return state @ out, state

    rows = answer(step, state, sos, eos, max_length)
    return rows, len(calls)


def right_greedy_decode(state, recur, embed, out, sos, eos, max_length):
    """Each row alone; and whether all of them ended."""
    rows, ended = [], True
    for now in state:
        row, token = [], sos
        while len(row) < max_length:
            now = (now @ recur + embed[token]).tanh()
            token = (now @ out).argmax().item()
            if token == eos:
                break
            row.append(token)
        rows.append(row)
        ended = ended and token == eos
    return rows, ended


def judge_greedy_decode(got, wanted):
    (rows, calls), (right, ended) = parts(got, 2), wanted
    if not isinstance(rows, list) or len(rows) != len(right):
        raise Wrong(f"wanted a list of {len(right)} lists")
    for number, (row, wanted_row) in enumerate(zip(rows, right, strict=True)):
        if isinstance(row, torch.Tensor):
            raise Wrong(f"row {number} is a tensor, wanted a list of ids")
        if ids(row) != wanted_row:
            raise Wrong(f"row {number} is {ids(row)}, wanted {wanted_row}")
    needed = max(map(len, right)) + 1
    if ended and expect_number(calls, "the number of steps") > needed:
        raise Wrong(f"all rows had ended after {needed} steps, and you called step {calls} times")


def ids(row):
    """The ids of a list or a tensor, as numbers."""
    row = row.tolist() if isinstance(row, torch.Tensor) else row
    if not isinstance(row, list):
        raise Wrong(f"wanted a list of ids, got a {type(row).__name__}")
    return [expect_number(token, "a token") for token in row]


def parts(got, number):
    """Return what came back if it is a list of so many parts."""
    if not isinstance(got, list) or len(got) != number:
        raise Wrong(f"what came back is a {type(got).__name__}; wanted a list of {number} parts")
    return got


# --- 6.3 ------------------------------------------------------------------------


def draw_additive_weights(draw):
    B, S, D, E, A = draw.sizes(5)
    mask = draw.share(B, S) < 0.6
    mask[:, draw.randrange(S)] = True
    mask[0], mask[1] = True, torch.arange(S) == draw.randrange(S)  # a row without padding, a row with a single key
    return draw.normal(B, D), draw.normal(B, S, E), draw.normal(A, D), draw.normal(A, E), draw.normal(A), mask


def probe_additive_weights(answer, query, keys, W_q, W_k, v, mask):
    """The weights, and those of very large scores."""
    return [answer(query, keys, W_q, W_k, scale * v, mask) for scale in (1, 1000)]


def right_additive_weights(query, keys, W_q, W_k, v, mask):
    """Key by key; only those that may be attended to are scored."""
    both = []
    for scale in (1, 1000):
        weights = torch.zeros_like(keys[..., 0])
        for b, s in enumerate(row.nonzero()[:, 0] for row in mask):
            scores = torch.stack([v.dot((W_q.mv(query[b]) + W_k.mv(key)).tanh()) for key in keys[b, s]])
            weights[b, s] = torch.softmax(scale * scores, 0)
        both.append(weights)
    return both


# --- 6.4 ------------------------------------------------------------------------


def right_search_by_hand():
    """Greedy by walking, the best by opening the most probable beginning first, the tie by bisection."""
    after = {
        "": {"a": 0.55, "b": 0.45}, "a": {".": 0.4, "a": 0.3, "b": 0.3}, "b": {"a": 0.9, ".": 0.1},
        "ba": {".": 0.8, "a": 0.1, "b": 0.1}, "aa": {".": 0.5, "a": 0.5}, "ab": {".": 0.5, "a": 0.5},
    }  # fmt: skip
    text, greedy = "", 1.0
    while not text.endswith("."):
        word = max(after[text], key=after[text].get)
        text, greedy = text + word, greedy * after[text][word]
    beginnings = [(-1.0, "")]
    while not beginnings[0][1].endswith("."):
        minus, text = heapq.heappop(beginnings)
        for word, share in after[text].items():
            heapq.heappush(beginnings, (minus * share, text + word))

    def score(log_p, length, alpha):
        return log_p / math.exp(alpha * (math.log(5 + length) - math.log(6)))

    low, high = 0.0, 5.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        y_wins = score(-1.6, 6, middle) > score(-1.2, 2, middle)
        low, high = (low, middle) if y_wins else (middle, high)
    return greedy, -beginnings[0][0], score(-1.6, 6, 1.0), low


# --- 6.5 ------------------------------------------------------------------------


def draw_beam_search(draw):
    """Searches, each in a language of its own; in the last the beam is wide enough for every hypothesis."""
    searches = []
    for _ in range(20):
        V, size = draw.sample(range(2, 6), 2)
        max_length = draw.choice((3, 4, 4, 5, 5))
        searches.append((V, draw.choice((1, size, size)), max_length, draw.choice((0.0, 0.6, 1.0, 1.5))))
    searches.append((3, 40, 3, 0.0))
    return ([(_language(draw, V), draw.randrange(V), *rest) for V, *rest in searches],)


def _language(draw, V):
    """Log-probabilities of the next token for each of 251 states."""
    return (1.5 * draw.normal(251, V)).log_softmax(1)


def probe_beam_search(answer, searches):
    """Tokens, score, and how many beginnings were continued, at most, of one length."""
    found = []
    for table, eos, size, max_length, alpha in searches:
        asked = [set() for _ in range(max_length)]

        def step(prefix, table=table, eos=eos, asked=asked):
            prefix, state = tuple(int(token) for token in prefix), 0
            if eos in prefix:
                raise ValueError(f"{prefix} holds <eos>: it is finished and is not to be continued")
            if len(prefix) >= len(asked):
                raise ValueError(f"max_length is {len(asked)}, and step was asked to continue {prefix}")
            asked[len(prefix)].add(prefix)
            for token in prefix:
                state = (7 * state + 3 * token + 1) % len(table)
            return table[state].clone()

        tokens, score = answer(step, eos, size, max_length, alpha)
        found.append((tokens, score, max(len(prefixes) for prefixes in asked)))
    return found


def right_beam_search(searches):
    """The probability of every hypothesis from scratch; the wide beam by trying all sentences. And the size."""
    found = []
    for table, eos, size, max_length, alpha in searches:
        words, log_p = range(table.shape[1]), _log_p(table.tolist())

        def score(tokens, log_p=log_p, alpha=alpha):
            return log_p(tokens) * (6 / (5 + len(tokens))) ** alpha

        if size > len(words) ** max_length:
            beginnings = (p for n in range(max_length) for p in itertools.product(words, repeat=n) if eos not in p)
            best = max(((*beginning, eos) for beginning in beginnings), key=log_p)
        else:
            best = max(_last_beam(words, log_p, eos, size, max_length), key=lambda t: (t[-1] == eos, score(t)))
        found.append((list(best), score(best), size))
    return found


def _log_p(table):
    def log_p(tokens):
        state, total = 0, 0.0
        for token in tokens:
            total, state = total + table[state][token], (7 * state + 3 * token + 1) % len(table)
        return total

    return log_p


def _last_beam(words, log_p, eos, size, max_length):
    """The beam after the last step: the finished hypotheses keep their places, the best of the others get the rest."""
    beam = [()]
    for _ in range(max_length):
        done = [tokens for tokens in beam if tokens[-1:] == (eos,)]
        longer = [(*tokens, word) for tokens in beam if tokens not in done for word in words]
        beam = done + heapq.nlargest(size - len(done), longer, key=log_p)
    return beam


def judge_beam_search(got, wanted):
    for search, (right, right_score, size) in zip(parts(got, len(wanted)), wanted, strict=True):
        tokens, score, asked = parts(search, 3)
        if ids(tokens) != right:
            raise Wrong(f"with size = {size} the tokens are {ids(tokens)}, wanted {right}")
        if not close(expect_number(score, "the score"), right_score, 1e-4):
            raise Wrong(f"the score of {right} is {expect_number(score):.4f}, wanted {right_score:.4f}")
        if expect_number(asked, "the number of hypotheses") > size:
            raise Wrong(f"with size = {size} you continued {asked} hypotheses of one length")


# --- 6.7 ------------------------------------------------------------------------


def draw_own_translator(draw):
    Vs, V, inputs, D, A = sizes = draw.sizes(5, low=3, high=8)
    shapes = {"source_embedding.weight": (Vs, inputs), "target_embedding.weight": (V, inputs)}
    shapes |= {"encoder.weight_ih_l0": (3 * D, inputs), "encoder.weight_hh_l0": (3 * D, D)}
    shapes |= {"encoder.bias_ih_l0": (3 * D,), "encoder.bias_hh_l0": (3 * D,)}
    shapes |= {"W_q.weight": (A, D), "W_k.weight": (A, D), "v.weight": (1, A)}
    shapes |= {"decoder.weight_ih": (3 * D, inputs + D), "decoder.weight_hh": (3 * D, D)}
    shapes |= {"decoder.bias_ih": (3 * D,), "decoder.bias_hh": (3 * D,)}
    shapes |= {"output.weight": (V, D), "output.bias": (V,)}
    weights = {name: draw.normal(*shape) for name, shape in shapes.items()}
    B, S, T = 3, draw.randint(4, 6), draw.randint(3, 5)
    lengths, words = draw.sample(range(1, S + 1), B), draw.sample(range(1, T + 1), B)
    lengths[0], words[1] = S, T  # a row without padding on either side
    source, target = draw.ids(Vs, B, S), draw.ids(V - 1, B, T + 1, low=0)
    for row, long in enumerate(words):
        target[row, long + 1 :] = V - 1  # the id of the padding
    mask = torch.arange(S) < torch.tensor(lengths)[:, None]
    return list(sizes), weights, source, mask, target, V - 1


def probe_own_translator(answer, sizes, weights, source, mask, target, pad):
    """Logits, one step from another state, then the loss and the weights of two updates."""
    import torch

    model = answer(*sizes).double()
    model.load_state_dict(weights)
    with torch.no_grad():
        logits = model(source, mask, target[:, :-1])
        states, h = model.read(source, mask)
        one = model.step(target[:, 1], h.flip(1), states, mask)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = [float(model.learn(optimizer, source, mask, target, pad)) for _ in range(2)]
    return logits, list(one), losses, {name: value.clone() for name, value in model.state_dict().items()}


def right_own_translator(sizes, weights, source, mask, target, pad):
    """Row by row, without any padding, the weights of attention key by key."""
    weights = {name: value.clone() for name, value in weights.items()}

    def cell(x, h, name, end=""):
        W_ih, W_hh, b_ih, b_hh = (
            weights[f"{name}.{part}{end}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        (i_r, i_z, i_n), (h_r, h_z, h_n) = (W_ih.mv(x) + b_ih).chunk(3), (W_hh.mv(h) + b_hh).chunk(3)
        z = (i_z + h_z).sigmoid()
        return (1 - z) * (i_n + (i_r + h_r).sigmoid() * h_n).tanh() + z * h

    def read(row):
        h, states = torch.zeros(sizes[3], dtype=torch.float64), []
        for token in row:
            h = cell(weights["source_embedding.weight"][token], h, "encoder", "_l0")
            states.append(h)
        return states

    def step(token, h, states):
        asks = weights["W_q.weight"].mv(h)
        scores = torch.stack([weights["v.weight"][0].dot((asks + weights["W_k.weight"].mv(k)).tanh()) for k in states])
        context = sum(share * state for share, state in zip(scores.softmax(0), states, strict=True))
        h = cell(torch.cat([weights["target_embedding.weight"][token], context]), h, "decoder")
        return weights["output.weight"].mv(h) + weights["output.bias"], h

    def logits_of_all():
        rows = []
        for row, told, asked in zip(source, mask, target, strict=True):
            states, outputs = read(row[told]), []
            h = states[-1]
            for token in asked[:-1]:
                output, h = step(token, h, states)
                outputs.append(output)
            rows.append(torch.stack(outputs))
        return torch.stack(rows)

    logits = logits_of_all()
    reading = [read(row[told]) for row, told in zip(source, mask, strict=True)]
    one = [step(token, s[-1].flip(0), s) for token, s in zip(target[:, 1], reading, strict=True)]
    one = [torch.stack([row[k] for row in one]) for k in (0, 1)]
    losses = []
    for _ in range(2):
        for value in weights.values():
            value.requires_grad_()
        wanted = target[:, 1:]
        nats = logits_of_all().log_softmax(-1).gather(2, wanted[..., None])[..., 0]
        loss = -nats[wanted != pad].mean()
        slopes = torch.autograd.grad(loss, list(weights.values()))
        losses.append(loss.item())
        weights.update(
            {name: (v - 0.05 * g).detach() for (name, v), g in zip(list(weights.items()), slopes, strict=True)}
        )
    return logits, one, losses, weights


TESTS = [
    Hidden("ex06-1-shifted-loss-check", "shifted_loss", draw_shifted_loss, right_shifted_loss, probe_shifted_loss),
    Hidden(
        "ex06-2-greedy-decode-check", "greedy_decode", draw_greedy_decode, right_greedy_decode, probe_greedy_decode,
        judge=judge_greedy_decode,
    ),
    Hidden(
        "ex06-3-additive-weights-check", "additive_weights", draw_additive_weights, right_additive_weights,
        probe_additive_weights, without=("AdditiveAttention",),
    ),
    on_paper("ex06-4-search-by-hand-check", "found", right_search_by_hand),
    Hidden(
        "ex06-5-beam-search-check", "beam_search", draw_beam_search, right_beam_search, probe_beam_search,
        judge=judge_beam_search,
    ),
    Hidden(
        "ex06-7-own-translator-check", "OwnTranslator", draw_own_translator, right_own_translator,
        probe_own_translator, without=("AdditiveAttention", "Seq2Seq", "AttentionDecoder"),
    ),
]  # fmt: skip
