"""Hidden tests of chapter 11: norms and Pre-LN against torch's, schedules by interpolation, a loop by whole batches."""

import math

import numpy as np
import torch
from torch import nn

from classroom.hidden import Hidden, on_paper
from classroom.own_code import BY_AUTOGRAD
from course_lib.exercises import Wrong


def draw_layer_norm_backward(draw):
    """Small and large vectors; one of equal numbers, whose variance is 0."""
    B, T, D = draw.sizes(3, low=3)
    size = torch.tensor([0.01, 1.0, 30.0][:B] + [3.0] * (B - 3), dtype=torch.float64)
    x = size[:, None, None] * (draw.normal(B, T, D) + draw.uniform(-2, 2))
    x[1, draw.randrange(T)] = draw.uniform(-2, 2)
    eps = draw.choice(((), (1e-3,), (0.2,)))  # or the default
    return x, draw.normal(B, T, D), *eps


def right_layer_norm_backward(x, gradient, eps=1e-5):
    x = x.requires_grad_()
    return torch.autograd.grad(nn.functional.layer_norm(x, x.shape[-1:], eps=eps), x, gradient)[0]


def right_radam_by_hand():
    def samples(t):
        """Numbers in a plain mean with the centre of mass of the moving average."""
        weights = [0.9**age for age in range(t)]
        return 2 * sum((age + 1) * weight for age, weight in enumerate(weights)) / sum(weights) - 1

    def variance(rho):
        return rho / (2 * (rho - 2) * (rho - 4))

    m = v = 0.0
    adam, radam, factors = [], [], []
    for t in range(1, 7):
        m, v = 0.9 * m + 0.1 * 4, 0.9 * v + 0.1 * 4**2
        mean, root = m / (1 - 0.9**t), math.sqrt(v / (1 - 0.9**t))
        adaptive = samples(t) > 5
        factors.append(math.sqrt(variance(samples(1000)) / variance(samples(t))) if adaptive else 0.0)
        adam.append(0.1 * mean / root)
        radam.append(factors[-1] * adam[-1] if adaptive else 0.1 * mean)
    return adam[0], samples(1000), samples(1), radam[0], factors[5], radam[5]


def draw_warmup_stable_decay(draw):
    """Three trainings, each to be asked for all its steps: with a long plateau, with none, with the shortest lines."""
    found = []
    for warmup, plateau, decay in (
        (draw.randint(2, 6), draw.randint(3, 9), draw.randint(2, 6)),
        (draw.randint(1, 6), 0, draw.randint(1, 6)),
        draw.choice(((1, draw.randint(1, 9), 7), (5, draw.randint(1, 9), 1))),
    ):
        found.append((warmup, warmup + plateau + decay, decay))
    return (found,)


def probe_warmup_stable_decay(answer, trainings):
    return [[answer(step, *sizes) for step in range(sizes[1] + 4)] for sizes in trainings]


def right_warmup_stable_decay(trainings):
    return [
        np.interp(range(total + 4), [-1, warmup - 1, total - decay, total], [0.0, 1.0, 1.0, 0.0]).tolist()
        for warmup, total, decay in trainings
    ]


def draw_pre_ln_block(draw):
    B, T, K, F = draw.sizes(4)
    H = draw.choice((1, 2, 3))
    layer = nn.TransformerEncoderLayer(H * K, H, F)
    return draw.normal(B, T, H * K), H, F, {n: draw.normal(*p.shape) for n, p in layer.named_parameters()}


def probe_pre_ln_block(answer, x, H, F, state):
    from torch import nn

    layer = nn.TransformerEncoderLayer(x.shape[-1], H, F, dropout=0.0, batch_first=True, dtype=x.dtype)
    layer.load_state_dict(state)
    return answer(
        x,
        lambda z: layer.self_attn(z, z, z, need_weights=False)[0],
        lambda z: layer.linear2(layer.linear1(z).relu()),
        layer.norm1,
        layer.norm2,
    )


def right_pre_ln_block(x, H, F, state):
    layer = nn.TransformerEncoderLayer(x.shape[-1], H, F, dropout=0.0, batch_first=True, norm_first=True, dtype=x.dtype)
    layer.dropout = layer.dropout1 = layer.dropout2 = nn.Identity()
    layer.load_state_dict(state)
    return layer(x)


def draw_decaying_names(draw):
    """Parts under names that say nothing of what they are; "head" shares the table of "table"."""
    kinds = ["norm", "embedding", "attention", "conv", "gru", "number", "matrix", "linear", "table", "head", "copy"]
    names = ["embedding", "output", "norm", "bias", "table", "alpha", "inner.weights", "inner.embedding", "inner.norm",
             "inner.bias", "inner.x"]  # fmt: skip
    V, D = draw.sizes(2, low=3)
    return list(zip(draw.sample(names, 11), draw.sample(kinds, 11), strict=True)), V, D


def probe_decaying_names(answer, parts, V, D):
    import torch
    from torch import nn

    make = {
        "norm": lambda: nn.LayerNorm(D),
        "embedding": lambda: nn.Embedding(V, D),
        "attention": lambda: nn.MultiheadAttention(D, 1),
        "conv": lambda: nn.Conv1d(D, D, 2),
        "gru": lambda: nn.GRU(D, D),
        "number": lambda: nn.Parameter(torch.ones(())),
        "matrix": lambda: nn.Parameter(torch.ones(D, V)),
        "linear": lambda: nn.Linear(D, D),
        "table": lambda: nn.Embedding(V, D),
        "head": lambda: nn.Linear(D, V, bias=False),
        "copy": lambda: nn.Linear(D, V),
    }
    model, made = nn.Module(), {}
    model.inner = nn.Module()
    for name, kind in parts:
        made[kind] = make[kind]()
        setattr(model.inner if name.startswith("inner.") else model, name.split(".")[-1], made[kind])
    made["head"].weight = made["table"].weight
    made["copy"].weight.data.copy_(made["embedding"].weight.data)  # the same numbers, but a matrix of its own
    return answer(model)


def right_decaying_names(parts, V, D):
    matrices = {
        "attention": (".in_proj_weight", ".out_proj.weight"), "conv": (".weight",), "linear": (".weight",),
        "gru": (".weight_ih_l0", ".weight_hh_l0"), "matrix": ("",), "copy": (".weight",),
    }  # fmt: skip
    return sorted(name + matrix for name, kind in parts for matrix in matrices.get(kind, ()))


def judge_names(got, wanted):
    if not isinstance(got, list) or not all(isinstance(name, str) for name in got):
        raise Wrong("wanted a set of names")
    if set(got) != set(wanted):
        raise Wrong(f"{min(set(got) ^ set(wanted))!r} is there and should not, or should be and is not")


def draw_train_steps(draw):
    """Six micro-batches, and three trainings on them: two that clip every step or none, one of single batches."""
    inputs, width, outputs = draw.sizes(3)
    counts = draw.sample(range(1, 9), 6)
    micro = [[draw.normal(n, inputs), 3 * draw.normal(n, outputs)] for n in counts]
    weights = [draw.normal(width, inputs), draw.normal(width), draw.normal(outputs, width), draw.normal(outputs)]
    norms = draw.sample((draw.uniform(0.1, 0.8), 1e4), 2)
    return micro, weights, [(2, norms[0]), (3, norms[1]), (1, draw.uniform(1, 5))]


def probe_train_steps(answer, micro, weights, trainings):
    import weakref

    import torch
    from torch import nn

    class Descent:  # torch's own optimizers load a compiler first, for seconds
        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters), "lr": 0.2}]

        def zero_grad(self, set_to_none=True):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter -= self.param_groups[0]["lr"] * parameter.grad

    class Schedule:
        def __init__(self, optimizer):
            self.optimizer, self.last_epoch = optimizer, 0

        def step(self):
            self.optimizer.param_groups[0]["lr"] *= 0.8
            self.last_epoch += 1

    class Mark:  # lives as long as the graph of its loss, or until the backward pass comes by
        pass

    waiting, most, passes, calls = weakref.WeakSet(), [0], [], [0]

    def loss_fn(model, batch):
        calls[0] += 1
        x, y = batch
        loss, mark = (model(x) - y).square().sum(), Mark()

        def seen(gradient):
            waiting.discard(mark)
            passes.append(torch._C._current_graph_task_id())

        if loss.requires_grad:
            waiting.add(mark)
            loss.register_hook(seen)
            most[0] = max(most[0], len(waiting))
        return loss, len(x)

    found = []
    for accumulate, max_norm in trainings:
        model = nn.Sequential(nn.Linear(*weights[0].T.shape), nn.Tanh(), nn.Linear(*weights[2].T.shape)).double()
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.data.copy_(weight)
        optimizer = Descent(model.parameters())
        scheduler = Schedule(optimizer)
        answer(model, micro, loss_fn, optimizer, scheduler, accumulate, max_norm)
        found.append([list(model.parameters()), scheduler.last_epoch])
    own = len(set(passes)) == len(passes) and most[0] <= 2  # a backward pass for each micro-batch, before the next
    own = own and calls[0] == len(micro) * len(trainings)  # and one forward pass
    return [*found, own]


def right_train_steps(micro, weights, trainings):
    return [*(descended(micro, weights, *training) for training in trainings), True]


def descended(micro, weights, accumulate, max_norm):
    """The micro-batches of a step as one batch, and its mean loss."""
    for step in range(len(micro) // accumulate):
        here = micro[step * accumulate : (step + 1) * accumulate]
        x, y = (torch.cat(parts) for parts in zip(*here, strict=True))
        up, shift, down, last = weights = [weight.detach().requires_grad_() for weight in weights]
        loss = (torch.tanh(x @ up.T + shift) @ down.T + last - y).square().sum(1).mean()
        gradients = torch.autograd.grad(loss, weights)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        rate = 0.2 * 0.8**step * min(1.0, max_norm / norm)
        weights = [weight - rate * gradient for weight, gradient in zip(weights, gradients, strict=True)]
    return [weights, len(micro) // accumulate]


TESTS = [
    Hidden("ex11-1-layer-norm-backward-check", "layer_norm_backward", draw_layer_norm_backward,
           right_layer_norm_backward, without=(*BY_AUTOGRAD, "native_layer_norm_backward")),
    on_paper("ex11-2-radam-by-hand-check", "by_hand", right_radam_by_hand),
    Hidden("ex11-3-warmup-stable-decay-check", "warmup_stable_decay", draw_warmup_stable_decay,
           right_warmup_stable_decay, probe_warmup_stable_decay),
    Hidden("ex11-4-pre-ln-block-check", "pre_ln_block", draw_pre_ln_block, right_pre_ln_block, probe_pre_ln_block),
    Hidden("ex11-6-decaying-names-check", "decaying_names", draw_decaying_names, right_decaying_names,
           probe_decaying_names, judge_names),
    Hidden("ex11-7-train-steps-check", "train_steps", draw_train_steps, right_train_steps, probe_train_steps,
           without=("train_epoch",)),
]  # fmt: skip
