"""Hidden tests of chapter 12: masking and cosines with loops, a step worked out token by token, torch's layers."""

import itertools
import math
import re

import torch
from torch import nn

from classroom.hidden import Hidden, agree
from classroom.own_code import BY_BUILDING
from course_lib.exercises import Wrong


def judge_types_too(got, wanted):
    """Several tensors, with the dtypes that the exercise names."""
    agree(got, wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        if mine.dtype != theirs.dtype:  # agree has seen that both are tensors
            raise Wrong(f"got dtype {mine.dtype}, wanted {theirs.dtype}")


def draw_hide(draw):
    """One row where nothing may be chosen; one where all may, with draws on the bounds and beside them."""
    B, T = draw.sizes(2, low=8, high=14)
    maskable = draw.share(B, T) < 0.8
    maskable[0], maskable[1] = False, True
    choose, fate = draw.share(B, T) / 3, draw.share(B, T)  # many are chosen
    bounds = [(0, 0), (0, 0.7999), (0, 0.8), (0, 0.8999), (0, 0.9), (0.1499, 0), (0.15, 0), (0.15, 0.85)]
    choose[1, :8], fate[1, :8] = torch.tensor(bounds, dtype=torch.float64).T
    return draw.ids(50, B, T), maskable, choose, fate, draw.ids(100, B, T, low=50), draw.randint(100, 200)


def right_hide(ids, maskable, choose, fate, others, mask_id):
    inputs, targets = ids.tolist(), ids.tolist()
    for b, t in itertools.product(*map(range, ids.shape)):
        if not maskable[b, t] or choose[b, t].item() >= 0.15:
            targets[b][t] = -100
        elif fate[b, t].item() < 0.8:
            inputs[b][t] = mask_id
        elif fate[b, t].item() >= 0.9:
            inputs[b][t] = others[b, t].item()
    return torch.tensor(inputs), torch.tensor(targets)


def draw_chosen_loss(draw):
    """Some rows ask nothing; token 0 is asked."""
    B, T, V = draw.sizes(3)
    targets = draw.ids(V, B, T)
    targets[draw.share(B, T) > draw.choice((0.2, 0.6))] = -100
    targets[0], targets[1, draw.randrange(T)] = -100, 0
    return draw.choice((1.0, 10.0)) * draw.normal(B, T, V), targets


def probe_chosen_loss(answer, logits, targets):
    """The loss, and its gradient: the exercise asks for a tensor to learn from."""
    import torch

    logits.requires_grad_()
    loss = answer(logits, targets)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.item(), gradient


def right_chosen_loss(logits, targets):
    """Row by row; the gradient is softmax less one-hot, over the number of targets."""
    gradient, losses = torch.zeros_like(logits), []
    asked = (targets != -100).nonzero().tolist()
    for b, t in asked:
        row, target = logits[b, t], targets[b, t]
        losses.append((row.exp().sum().log() - row[target]).item())
        gradient[b, t] = row.exp() / row.exp().sum()
        gradient[b, t, target] -= 1
    return sum(losses) / len(losses), gradient / len(asked)


def draw_pretraining_step(draw):
    """Rows of [CLS], words, [SEP] and padding; draws on the bounds; weights of a small network; a rate."""
    B, T = draw.sizes(2, low=3, high=9)
    T, V, D = T + 9, draw.randint(12, 30), draw.randint(3, 6)
    lengths = torch.tensor([T, *(draw.randint(4, T) for _ in range(B - 1))])
    real = torch.arange(T) < lengths[:, None]
    ids = draw.ids(V, B, T, low=5)
    ids[:, 0], ids[~real] = 2, 1
    ids[torch.arange(B), lengths - 1] = 3
    choose, fate = draw.share(B, T) / 3, draw.share(B, T)
    bounds = [(0, 0), (0, 0.7999), (0, 0.8), (0, 0.8999), (0, 0.9), (0.1499, 0), (0.15, 0), (0.15, 0.85)]
    choose[0, 1:9], fate[0, 1:9] = torch.tensor(bounds, dtype=torch.float64).T
    weights = draw.normal(V, D), draw.normal(D, V)
    return ids, real, choose, fate, draw.ids(V, B, T, low=5), *weights, draw.choice((0.1, 1.0))


def probe_pretraining_step(answer, ids, real, choose, fate, others, table, out, rate):
    """Two steps; what the loss was before each, whether it kept its graph, and the weights in the end."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = torch.nn.Parameter(table.clone()), torch.nn.Parameter(out.clone())

        def forward(self, ids, real):
            x = self.table[ids]
            mean = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
            return torch.tanh(x + mean[:, None]) @ self.out

    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    answers = [answer(network, optimizer, ids, real, choose, fate, others) for _ in range(2)]
    losses = [torch.as_tensor(loss).item() for loss in answers]
    graphs = [getattr(loss, "requires_grad", False) for loss in answers]
    return losses, graphs, network.table.detach(), network.out.detach()


def right_pretraining_step(ids, real, choose, fate, others, table, out, rate):
    """Hidden token by token, and the mean of what each chosen token costs."""
    inputs, answers = right_hide(ids, real & (ids > 4), choose, fate, others, 4)
    losses = []
    for _ in range(2):
        table, out = table.detach().requires_grad_(), out.detach().requires_grad_()
        nats = []
        for row, there, wanted in zip(inputs, real, answers.tolist(), strict=True):
            mean = table[row[there]].mean(0)
            for token, answer in zip(row, wanted, strict=True):
                if answer != -100:
                    logits = (table[token] + mean).tanh() @ out
                    nats.append(logits.logsumexp(0) - logits[answer])
        loss = torch.stack(nats).mean()
        slopes = torch.autograd.grad(loss, (table, out))
        losses.append(loss.item())
        table, out = (weight.detach() - rate * slope for weight, slope in zip((table, out), slopes, strict=True))
    return losses, [False, False], table, out  # a float was asked for


def draw_wordpiece(draw):
    """Random pieces of three letters, and four letters that lead greed into a dead end."""

    def letters(longest):
        return "".join(draw.choices("abc", k=draw.randint(1, longest)))

    a, b, c, d = draw.sample("defghi", 4)
    vocab = {a + b, a + b + c, f"##{c}{d}", "[UNK]"}
    first, inside = [letters(3) for _ in range(6)], [letters(3) for _ in range(9)]
    vocab |= {*first, *(f"##{piece}" for piece in inside)}
    words = [a + b + c + d, letters(1), letters(2) + "z", *(letters(8) for _ in range(20))]
    words += [draw.choice(first).upper(), *inside, *(draw.choice(inside) + draw.choice(first) for _ in range(6))]
    words += [draw.choice(first) + "".join(draw.choices(inside, k=k)) for k in range(1, 25)]
    return words, sorted(vocab)


def probe_wordpiece(answer, words, vocab):
    found = [answer(word, set(vocab)) for word in words]
    return [[type(pieces).__name__, pieces] for pieces in found]  # a list was asked for


def right_wordpiece(words, vocab):
    vocab = sorted(vocab, key=len, reverse=True)
    inside = re.compile("|".join(piece[2:] for piece in vocab if piece.startswith("##")))
    first = re.compile("|".join(re.escape(piece) for piece in vocab if not piece.startswith("##")))
    found = []
    for word in words:
        pieces, match = [], first.match(word)
        while match:
            pieces.append(match[0] if match.start() == 0 else f"##{match[0]}")
            start, match = match.end(), inside.match(word, match.end())
        found.append(["list", pieces if pieces and start == len(word) else ["[UNK]"]])
    return found


def draw_bert_parameters(draw):
    V, L, D, F = draw.sizes(4, low=5, high=60)
    return V, L, D, draw.randint(1, 5), F


def probe_bert_parameters(answer, *sizes):
    number = answer(*sizes)
    return isinstance(number, float), int(number)  # an int was asked for


def right_bert_parameters(V, L, D, N, F):
    layers = [nn.TransformerEncoderLayer(D, 1, F) for _ in range(N)]
    tables = [nn.Embedding(size, D) for size in (V, L, 2)]
    model = nn.ModuleList([*tables, nn.LayerNorm(D), *layers, nn.Linear(D, D)])
    return False, sum(parameter.numel() for parameter in model.parameters())


def draw_similarities(draw):
    """Rows of 1 to T real tokens; what stands at padding is large."""
    B, M, T, S, D = draw.sizes(5, low=2, high=9)

    def texts(B, T):
        real = torch.arange(T) < torch.tensor([draw.randint(1, T) for _ in range(B)])[:, None]
        x = draw.normal(B, T, D) + draw.choice((0.0, 1.0))
        return torch.where(real[..., None], x, 9 * draw.normal(B, T, D)), real

    return *texts(B, T), *texts(M, S)


def right_similarities(queries, real_queries, documents, real_documents):
    """With lists: the cosine of each pair by its definition."""

    def means(x, real):
        kept = [[v for v, there in zip(*row, strict=True) if there] for row in zip(x.tolist(), real, strict=True)]
        return [[sum(column) / len(row) for column in zip(*row, strict=True)] for row in kept]

    def cosine(a, b):
        return sum(p * q for p, q in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    found = means(documents, real_documents)
    return torch.tensor([[cosine(a, b) for b in found] for a in means(queries, real_queries)], dtype=torch.float64)


TESTS = [
    Hidden("ex12-1-hide-check", "hide", draw_hide, right_hide, judge=judge_types_too),
    Hidden("ex12-2-blank-loss-check", "chosen_loss", draw_chosen_loss, right_chosen_loss, probe_chosen_loss,
           without=("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss")),
    Hidden("ex12-3-pretraining-step-check", "pretraining_step", draw_pretraining_step, right_pretraining_step,
           probe_pretraining_step, without=("mask_tokens", "masked_lm_loss", "pretraining_loss")),
    Hidden("ex12-4-wordpiece-check", "wordpiece", draw_wordpiece, right_wordpiece, probe_wordpiece,
           without=("tokenizers", "transformers", "tokenizer", "WordPiece", "WordpieceTokenizer")),
    Hidden("ex12-6-bert-parameters-check", "bert_parameters", draw_bert_parameters, right_bert_parameters,
           probe_bert_parameters, without=(*BY_BUILDING, "BERT", "BERTConfig", "BERTEmbedding")),
    Hidden("ex12-7-similarities-check", "similarities", draw_similarities, right_similarities),
]  # fmt: skip
