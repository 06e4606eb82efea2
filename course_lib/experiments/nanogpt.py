r"""A well-known small GPT and its training, typed anew: the baseline that chapter 13's model is measured against.

`NanoGPT` computes what nanoGPT's model does, operation by operation and with the same draws of random numbers, so
equal seeds give equal weights, losses, gradients and texts. `nanogpt_optimizer` and `nanogpt_rate` are its training.
It is a baseline and is left as it was: `nn.Dropout`, a table of learned positions, an optimizer that is not fused on
a CPU, and no cache of keys and values. The course's own model is `course_lib.gpt.GPT`.

Source: Karpathy (2022), nanoGPT, MIT licence.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class NanoBlock(nn.Module):
    """Causal attention, then a feed-forward network; each reads a normalised copy of x and is added to x."""

    def __init__(self, n_head, n_embd, dropout, bias):
        super().__init__()
        self.n_head, self.p = n_head, dropout
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.attn_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.gelu = nn.GELU()
        self.mlp_proj = nn.Linear(4 * n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        """(B, T, D) to (B, T, D)."""
        x = x + self.dropout(self.attn_proj(self._heads(self.ln_1(x))))
        return x + self.dropout(self.mlp_proj(self.gelu(self.c_fc(self.ln_2(x)))))

    def _heads(self, x):
        """(B, T, D): what the heads gather, side by side."""
        q, k, v = (part.unflatten(2, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        p = self.p if self.training else 0.0
        gathered = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # (B, H, T, K)
        return gathered.transpose(1, 2).contiguous().flatten(2)


class NanoGPT(nn.Module):
    """nanoGPT's language model.

    Args:
        block_size: most tokens it can read at once, rows of the table of positions.
        dropout: fraction of the entries set to zero in training.
        bias: True gives linear layers and norms a bias, as in GPT-2; False is nanoGPT's own setting.

    Source: Karpathy (2022), nanoGPT, `model.py`.
    """

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, dropout, bias=False):
        super().__init__()
        self.block_size = block_size
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(NanoBlock(n_head, n_embd, dropout, bias) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd, bias=bias)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self._initialise()

    def _initialise(self):
        """N(0, 0.02) for all weights, less for what is added to x; biases 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for projection in (block.attn_proj, block.mlp_proj):
                nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * len(self.blocks)))

    def forward(self, ids, targets=None):
        """Logits, and the mean loss if there is something to compare with.

        Args:
            ids: (B, T) int64 tokens, T at most `block_size`.
            targets: (B, T) int64, the tokens that follow; None to predict only the token after the last.

        Returns:
            logits: (B, T, V); (B, 1, V) without targets.
            loss: mean cross-entropy in nats; None without targets.
        """
        T = ids.shape[1]
        if T > self.block_size:
            raise ValueError(f"{T} tokens are more than the {self.block_size} that the table of positions holds")
        x = self.dropout(self.wte(ids) + self.wpe(torch.arange(T, device=ids.device)))
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, -1:]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    @torch.no_grad()
    def generate(self, ids, steps, temperature=1.0, top_k=None, generator=None):
        """Continue texts of equal length; every new token costs a pass over the last `block_size` tokens.

        Args:
            ids: (B, T) int64, T at least 1.
            temperature: what the logits are divided by.
            top_k: draw from so many of the likeliest tokens; None: from all.

        Returns:
            (B, T + steps) int64. With dropout, call `eval()` before.
        """
        for _ in range(steps):
            logits = self(ids[:, -self.block_size :])[0][:, -1] / temperature  # (B, V)
            if top_k is not None:
                least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
                logits[logits < least] = -torch.inf
            new = torch.multinomial(F.softmax(logits, dim=-1), 1, generator=generator)
            ids = torch.cat([ids, new], dim=1)
        return ids


def nanogpt_optimizer(model, learning_rate=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
    """The AdamW of nanoGPT: matrices and tables decay, biases and norms do not; fused only on a GPU.

    Args:
        learning_rate: set again before each step, see `nanogpt_rate`.
        weight_decay: of the tensors with two axes.

    Source: Karpathy (2022), nanoGPT, `model.py` and `config/train_shakespeare_char.py`.
    """
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    extra = {"fused": True} if parameters[0].device.type == "cuda" else {}
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, **extra)


def nanogpt_rate(step, learning_rate=1e-3, min_lr=1e-4, warmup=100, total=2000):
    r"""The learning rate of nanoGPT: up in a line, then half a cosine down to `min_lr`.

    $$ \eta_i = \eta\,\frac{i + 1}{w + 1} \;(i < w), \qquad
       \eta_i = \eta_\text{min} + \frac{\eta - \eta_\text{min}}{2} \left(1 + \cos \pi \frac{i - w}{n - w}\right) $$

    Args:
        min_lr: the last, and the one of all steps after `total`.

    >>> [round(nanogpt_rate(step, 1.0, 0.1, warmup=1, total=3), 2) for step in range(5)]
    [0.5, 1.0, 0.55, 0.1, 0.1]

    Source: Karpathy (2022), nanoGPT, `train.py`.
    """
    if step < warmup:
        return learning_rate * (step + 1) / (warmup + 1)
    share = min(1.0, (step - warmup) / (total - warmup))
    return min_lr + (learning_rate - min_lr) * 0.5 * (1 + math.cos(math.pi * share))
