"""Short right answers to the exercises of chapters 01 to 06: plain loops, one vectorised call, einsum, recursion.

Data for `right_answers.RIGHT`, so that each exercise there has three answers: (exercise, styles, answer).
"""

SHORT = [
    # --- 01 ---------------------------------------------------------------------------------
    ("ex01-1-ar-forecast", "Python loops", '''\
def ar_forecast(past, weights, bias, horizon):
    series = past.clone()
    for _ in range(horizon):
        new = bias
        for j in range(len(weights)):
            new = new + weights[j] * series[-1 - j]
        series = torch.cat([series, new.reshape(1)])
    return series[len(past) :]
'''),
    ("ex01-1-ar-forecast", "einsum", '''\
def ar_forecast(past, weights, bias, horizon):
    K = len(weights)
    series = torch.cat([past[-K:], past.new_zeros(horizon)])
    for t in range(K, K + horizon):
        series[t] = bias + torch.einsum("k,k->", weights.flip(0), series[t - K : t])
    return series[K:]
'''),
    ("ex01-2-sine-weights", "0-d tensors", '''\
sine_weights = torch.stack([2 * torch.cos(torch.tensor(math.pi / 6)), torch.tensor(-1.0)])
'''),
    ("ex01-2-sine-weights", "lambda", '''\
sine = lambda first: torch.sin(math.tau / 12 * torch.arange(first, first + 24, dtype=torch.float64))
sine_weights = torch.linalg.lstsq(torch.stack([sine(1), sine(0)], 1), sine(2)[:, None]).solution.flatten()
'''),
    ("ex01-6-causal-conv", "Python loops", '''\
def causal_conv(x, weight, bias):
    T, K = x.shape[1], weight.shape[2]
    out = bias.expand(len(x), T, -1).clone()
    for back in range(min(K, T)):
        out[:, back:] += x[:, : T - back] @ weight[:, :, K - 1 - back].T
    return out
'''),
    ("ex01-7-fair-comparison", "0-d tensors", '''\
word, letter = torch.tensor(692.0).log2() / 5.7, torch.tensor(10.5).log2()
fair_comparison = torch.stack([word, letter, torch.tensor(5.1 - math.log(27)).exp()])
'''),
    # --- 02 ---------------------------------------------------------------------------------
    ("ex02-2-bpe-step", "Python loops, lambda", '''\
def bpe_step(words):
    counts = {}
    for word, times in words.items():
        for i in range(len(word) - 1):
            pair = word[i], word[i + 1]
            counts[pair] = counts.get(pair, 0) + times
    best, new = sorted(counts, key=lambda pair: (-counts[pair], pair))[0], {}
    for word, times in words.items():
        out, i = [], 0
        while i < len(word):
            joined = word[i : i + 2] == best
            out.append(word[i] + word[i + 1] if joined else word[i])
            i += 2 if joined else 1
        new[tuple(out)] = times
    return best, new
'''),
    ("ex02-2-bpe-step", "generator, walrus", '''\
def bpe_step(words):
    counts = Counter(pair for word, times in words.items() for pair in zip(word, word[1:]) for _ in range(times))
    best = min(pair for pair in counts if counts[pair] == max(counts.values()))

    def symbols(word):
        rest = iter(word)
        kept = next(rest)
        while kept is not None:
            after = next(rest, None)
            if both := (kept, after) == best:
                yield kept + after
            else:
                yield kept
            kept = next(rest, None) if both else after

    return best, {tuple(symbols(word)): times for word, times in words.items()}
'''),
    ("ex02-4-padding-shares", "generator", '''\
shares = tuple(1 - 17 / places for places in (28, 24, 48))
'''),
    ("ex02-4-padding-shares", "0-d tensors, list for tuple", '''\
shares = [*(1 - 17 / torch.tensor([28.0, 24.0, 48.0]))]
'''),
    ("ex02-6-clipped-precision", "Python loops", '''\
def clipped_precision(hypothesis, references, n):
    grams = [tuple(hypothesis[i : i + n]) for i in range(len(hypothesis) - n + 1)]
    left, hits = {}, 0
    for gram in grams:
        left[gram] = max(sum(tuple(r[i : i + n]) == gram for i in range(len(r) - n + 1)) for r in references)
    for gram in grams:
        if left[gram] > 0:
            hits += 1
            left[gram] -= 1
    return hits, len(grams)
'''),
    ("ex02-7-bleu-by-hand", "0-d tensors", '''\
p = torch.tensor([6 / 8, 2 / 7], dtype=torch.float64)
penalty = torch.tensor(1 - 10 / 8, dtype=torch.float64).exp()
parts = (p[0], p[1], penalty, 100 * penalty * p.log().mean().exp())
'''),
    # --- 03 ---------------------------------------------------------------------------------
    ("ex03-1-rnn-forward", "einsum, walrus", '''\
def rnn_forward(x, h, weight_ih, weight_hh, bias):
    from_inputs = torch.einsum("bti,di->tbd", x, weight_ih) + bias
    states = [h := torch.tanh(u + torch.einsum("be,de->bd", h, weight_hh)) for u in from_inputs]
    return torch.stack(states, dim=1), h
'''),
    ("ex03-1-rnn-forward", "recursion", '''\
def rnn_forward(x, h, weight_ih, weight_hh, bias):
    if x.shape[1] == 0:
        return x.new_zeros(len(x), 0, len(bias)), h
    h = torch.tanh(x[:, 0] @ weight_ih.T + h @ weight_hh.T + bias)
    later, last = rnn_forward(x[:, 1:], h, weight_ih, weight_hh, bias)
    return torch.cat([h[:, None], later], dim=1), last
'''),
    ("ex03-2-quotation-weights", "list for tuple", '''\
k = 8.0  # unit 0: at least 2; unit 1: at least 1
quotation_weights = [torch.full((2, 1), k), torch.tensor([[-k / 2, k / 2]]).repeat(2, 1),
                     torch.tensor([-1.5 * k, -0.5 * k]), torch.tensor([-0.5, 0.5]), -0.5]
'''),
    ("ex03-3-continue-text", "recursion", '''\
def continue_text(run, prompt, steps):
    def after(ids, state, left):
        logits, state = run(torch.tensor([ids]), state)
        new = int(logits[0, -1].argmax())
        return [new] if left == 1 else [new, *after([new], state, left - 1)]

    return after(prompt, None, steps)
'''),
    ("ex03-3-continue-text", "Python loops", '''\
def continue_text(run, prompt, steps):
    """One token a step, the prompt's too."""
    ids, state = list(prompt), None
    for t in range(len(prompt) + steps - 1):
        logits, state = run(torch.tensor([[ids[t]]]), state)
        if t + 1 == len(ids):
            ids.append(logits[0, 0].argmax().item())
    return ids[len(prompt) :]
'''),
    ("ex03-5-stack-sizes", "Python loops", '''\
I, D, total, read = 12, 5, 0, 12
for layer in range(3):
    for direction in range(2):
        total += D * read + D * D + 2 * D
    read = 2 * D
stack_sizes = (total, read, 3 * 2, 2 * D)
'''),
    ("ex03-5-stack-sizes", "lambda, list for tuple", '''\
one = lambda read, D=5: D * (read + D + 2)
stack_sizes = [2 * one(12) + 4 * one(10), 10, 6, 10]
'''),
    ("ex03-6-summaries", "not contiguous", '''\
def summaries(output, lengths):
    ahead, back = output.chunk(2, dim=2)
    places = (lengths - 1)[:, None, None].expand(-1, 1, ahead.shape[2])
    return torch.cat([ahead.gather(1, places), back[:, :1]], dim=2)[:, 0]
'''),
    ("ex03-6-summaries", "lambda", '''\
half = lambda states, k: states.unflatten(1, (2, -1))[:, k]
summaries = lambda output, lengths: torch.hstack(
    [half(output[range(len(output)), lengths - 1], 0), half(output.select(1, 0), 1)]
)
'''),
    # --- 04 ---------------------------------------------------------------------------------
    ("ex04-1-three-steps", "Fraction", '''\
from fractions import Fraction
on_paper = (Fraction(5, 2), 7, 4, Fraction(7, 2))
'''),
    ("ex04-2-expanded-gradient", "recursion", '''\
def expanded_gradient(do, W_hh, W_ho, t):
    if t > do.shape[1]:
        return torch.zeros(len(do), len(W_hh), dtype=do.dtype)
    return do[:, t - 1] @ W_ho + expanded_gradient(do, W_hh, W_ho, t + 1) @ W_hh
'''),
    ("ex04-2-expanded-gradient", "einsum, Python loops", '''\
def expanded_gradient(do, W_hh, W_ho, t):
    powers = [torch.eye(len(W_hh), dtype=do.dtype)]
    for _ in range(do.shape[1] - t):
        powers.append(powers[-1] @ W_hh)
    return torch.einsum("bkv,ve,ked->bd", do[:, t - 1 :], W_ho, torch.stack(powers))
'''),
    ("ex04-3-leaky-backward", "Python loops", '''\
def leaky_backward(do, x, h, c, W_hh, W_ho, alpha):
    dW_ih, dW_hh, dW_ho, db, came = 0, 0, 0, 0, 0
    for t in reversed(range(x.shape[1])):
        dh = do[:, t] @ W_ho + came
        da = alpha * dh * (1 - c[:, t] ** 2)
        came = da @ W_hh + (1 - alpha) * dh
        dW_ih = dW_ih + da.T @ x[:, t]
        dW_hh = dW_hh + da.T @ h[:, t]
        dW_ho = dW_ho + do[:, t].T @ h[:, t + 1]
        db = db + da.sum(0)
    return dW_ih, dW_hh, dW_ho, db
'''),
    ("ex04-3-leaky-backward", "generator, list for tuple", '''\
def leaky_backward(do, x, h, c, W_hh, W_ho, alpha):
    def backwards():
        came = 0.0
        for slope, squashed in zip(reversed((do @ W_ho).unbind(1)), reversed(c.unbind(1))):
            dh = slope + came
            da = alpha * dh * (1 - squashed.square())
            yield da
            came = da @ W_hh + (1 - alpha) * dh

    da = torch.stack([*backwards()][::-1], dim=1).flatten(0, 1)  # (B T, D)
    rows = [part.flatten(0, 1) for part in (x, h[:, :-1], h[:, 1:], do)]
    return [da.T @ rows[0], da.T @ rows[1], rows[3].T @ rows[2], da.sum(0)]
'''),
    ("ex04-4-kept-pairs", "Fraction", '''\
from fractions import Fraction
shares = (Fraction(3 * 3, 11), Fraction(3 * 1, 9), Fraction(0, 8))
'''),
    ("ex04-5-window-backward", "Python loops", '''\
def window_backward(layer, loss_fn, x, y, window):
    losses, state = [], None
    for inputs, targets in zip(x.split(window, dim=1), y.split(window, dim=1)):
        output, state = layer(inputs, state)  # the whole window at once
        loss = loss_fn(output, targets)
        loss.backward()
        state = state.detach()
        losses.append(loss.item())
    return sum(losses)
'''),
    ("ex04-5-window-backward", "recursion, keyword-only", '''\
def window_backward(layer, loss_fn, x, y, window, *, state=None):
    if x.shape[1] == 0:
        return 0.0
    output, state = layer(x[:, :window], state)
    loss = loss_fn(output, y[:, :window])
    loss.backward()
    rest = window_backward(layer, loss_fn, x[:, window:], y[:, window:], window, state=state.detach())
    return float(loss.detach()) + rest
'''),
    # --- 05 ---------------------------------------------------------------------------------
    ("ex05-1-lstm-cell", "einsum, Python loops", '''\
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    D, sums = h.shape[1], []
    for k in range(4):
        rows = slice(k * D, (k + 1) * D)
        from_x, from_h = (torch.einsum("bi,di->bd", a, w[rows]) for a, w in ((x, weight_ih), (h, weight_hh)))
        sums.append(from_x + from_h + bias[rows])
    c = torch.sigmoid(sums[1]) * c + torch.sigmoid(sums[0]) * torch.tanh(sums[2])
    return torch.sigmoid(sums[3]) * torch.tanh(c), c
'''),
    ("ex05-2-along-the-cell", "0-d tensors", '''\
f = torch.tensor([0.8, 0.6, 0.7], dtype=torch.float64)
left = (f.prod(), f[1:].prod(), torch.tensor(0.5, dtype=torch.float64).pow(0.01).logit())
'''),
    ("ex05-3-gru-cell", "Python loops", '''\
def gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    from_x = [x @ w.T + b for w, b in zip(weight_ih.chunk(3), bias_ih.chunk(3))]
    from_h = [h @ w.T + b for w, b in zip(weight_hh.chunk(3), bias_hh.chunk(3))]
    r, z = (torch.sigmoid(from_x[k] + from_h[k]) for k in range(2))
    n = torch.tanh(from_x[2] + r * from_h[2])
    return (1 - z) * n + z * h
'''),
    ("ex05-3-gru-cell", "vmap", '''\
def gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    def row(x, h):
        a, b = (weight_ih @ x + bias_ih).view(3, -1), (weight_hh @ h + bias_hh).view(3, -1)
        r, z = torch.sigmoid(a[:2] + b[:2])
        return z * h + (1 - z) * torch.tanh(a[2] + r * b[2])

    return torch.func.vmap(row)(x, h)
'''),
    ("ex05-4-parameter-counts", "generator", '''\
def size(layer):
    return sum(p.numel() for p in layer.parameters())

numbers = (size(nn.LSTM(10, 20)), size(nn.GRU(10, 20)), size(nn.LSTM(10, 20, num_layers=2, bidirectional=True)),
           4 * 20, 2 * 20)
'''),
    ("ex05-4-parameter-counts", "lambda, list for tuple", '''\
block = lambda I, D=20: D * (I + D + 2)
numbers = [4 * block(10), 3 * block(10), 2 * 4 * block(10) + 2 * 4 * block(2 * 20), 80, 40]
'''),
    ("ex05-5-gru-weights", "Python loops", '''\
def gru_weights(z):
    T, D = z.shape
    weights = torch.ones(T + 1, D, dtype=z.dtype)
    for s in range(T + 1):
        if s > 0:
            weights[s] = 1 - z[s - 1]
        for t in range(s, T):
            weights[s] = weights[s] * z[t]
    return weights
'''),
    ("ex05-5-gru-weights", "not contiguous", '''\
def gru_weights(z):
    one = torch.ones_like(z[:1])
    kept = torch.cat([z, one]).flip(0).cumprod(0).flip(0)  # row s: the product from s on
    return torch.cat([one, 1 - z]) * kept
'''),
    # --- 06 ---------------------------------------------------------------------------------
    ("ex06-2-greedy-decode", "Python loops", '''\
def greedy_decode(step, state, sos, eos, max_length):
    tokens, rows = torch.full((len(state),), sos), [[] for _ in range(len(state))]
    for _ in range(max_length):
        logits, state = step(tokens, state)
        tokens = logits.argmax(dim=1)
        for b in range(len(rows)):
            rows[b].append(int(tokens[b]))
        if all(eos in row for row in rows):
            break
    return [row[: row.index(eos)] if eos in row else row for row in rows]
'''),
    ("ex06-3-additive-weights", "bool tensor", '''\
def additive_weights(query, keys, W_q, W_k, v, mask):
    scores = (torch.tanh(F.linear(query, W_q)[:, None] + F.linear(keys, W_k)) * v).sum(dim=2)
    largest = torch.where(mask, scores, scores.min()).max(dim=1, keepdim=True).values
    powers = torch.where(mask, (scores - largest).exp(), 0.0)
    return powers / powers.sum(dim=1, keepdim=True)
'''),
    ("ex06-4-search-by-hand", "Decimal", '''\
from decimal import Decimal
alpha = (Decimal("1.6") / Decimal("1.2")).ln() / (Decimal(11) / 7).ln()
found = (Decimal("0.22"), Decimal("0.324"), Decimal("-1.6") * 6 / 11, alpha)
'''),
    ("ex06-4-search-by-hand", "NumPy numbers, list for tuple", '''\
import numpy as np
found = [np.prod([0.55, 0.4]), np.prod([0.45, 0.9, 0.8]), -1.6 / np.divide(11, 6), np.log(4 / 3) / np.log(11 / 7)]
'''),
    ("ex06-5-beam-search", "recursion, lambda", '''\
def beam_search(step, eos, size, max_length, alpha):
    score = lambda found: found[1] / ((5 + len(found[0])) / 6) ** alpha

    def search(alive, done, left):
        if not alive or left == 0:
            return max(done or alive, key=score)
        longer = [((*tokens, i), p + float(q)) for tokens, p in alive for i, q in enumerate(step(tokens))]
        longer = sorted(longer, key=lambda found: found[1], reverse=True)[: size - len(done)]
        ended = [found for found in longer if found[0][-1] == eos]
        return search([found for found in longer if found not in ended], done + ended, left - 1)

    best = search([((), 0.0)], [], max_length)
    return best[0], score(best)
'''),
    ("ex06-5-beam-search", "0-d tensors, Python loops", '''\
def beam_search(step, eos, size, max_length, alpha):
    alive, done = [((), torch.tensor(0.0))], []
    for _ in range(max_length):
        total = torch.stack([p + step(tokens) for tokens, p in alive])  # (open, V)
        best, places = total.flatten().topk(min(size - len(done), total.numel()))
        rows, words = places // total.shape[1], places % total.shape[1]
        new = [((*alive[row][0], word), p) for row, word, p in zip(rows.tolist(), words.tolist(), best)]
        done += [one for one in new if one[0][-1] == eos]
        alive = [one for one in new if one[0][-1] != eos]
        if not alive:
            break
    scores = {tokens: p / ((5 + len(tokens)) / 6) ** alpha for tokens, p in done or alive}
    tokens = max(scores, key=scores.get)
    return tokens, scores[tokens].item()
'''),
    ("ex06-7-own-translator", "einsum, walrus", '''\
class OwnTranslator(nn.Module):
    def __init__(self, source_size, target_size, embedding_dim, hidden_size, attention_size):
        super().__init__()
        self.source_embedding = nn.Embedding(source_size, embedding_dim)
        self.target_embedding = nn.Embedding(target_size, embedding_dim)
        self.encoder = nn.GRU(embedding_dim, hidden_size, batch_first=True)
        for name in ("W_q", "W_k"):
            setattr(self, name, nn.Linear(hidden_size, attention_size, bias=False))
        self.v = nn.Linear(attention_size, 1, bias=False)
        self.decoder = nn.GRUCell(embedding_dim + hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, target_size)

    def read(self, source, mask):
        states = self.encoder(self.source_embedding(source))[0]
        ends = F.one_hot(mask.sum(1) - 1, source.shape[1]).to(states)
        return states, torch.einsum("bs,bsd->bd", ends, states)

    def step(self, tokens, h, states, mask):
        hidden = torch.tanh(torch.einsum("bd,ad->ba", h, self.W_q.weight)[:, None] + self.W_k(states))
        scores = torch.einsum("bsa,oa->bs", hidden, self.v.weight)
        w = torch.where(mask, scores, -math.inf).softmax(1)
        x = torch.cat([self.target_embedding(tokens), torch.einsum("bs,bsd->bd", w, states)], dim=1)
        return self.output(h := self.decoder(x, h)), h

    def forward(self, source, mask, inputs):
        states, h = self.read(source, mask)
        rows = []
        for words in inputs.T:
            row, h = self.step(words, h, states, mask)
            rows.append(row)
        return torch.stack(rows, dim=1)

    def learn(self, optimizer, source, mask, target, pad):
        wanted = target[:, 1:]
        nats = F.cross_entropy(self(source, mask, target[:, :-1]).mT, wanted, reduction="none")
        loss = (nats * (wanted != pad)).sum() / (wanted != pad).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())
'''),
]  # fmt: skip
