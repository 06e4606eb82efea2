r"""Llama, the decoder that most open models are today: GPT with four parts exchanged.

    LayerNorm              `RMSNorm`                 no mean is subtracted, no bias is added
    GELU                   `SwiGLU`                  a second hidden layer gates the first
    a table of positions   `rotations`, `rotate`     RoPE turns the queries and keys of every block
    H keys and values      `GroupedQueryAttention`   H_kv of them, each shared by H / H_kv heads: a smaller cache

No linear layer has a bias. Read the parts in this order, then `LlamaBlock`, whose `forward` is its figure, and `Llama`.
`Llama.from_pretrained` takes the weights of published models and computes the same numbers.

Source of all: Touvron et al. (2023), "LLaMA", arXiv:2302.13971, section 2.2, and "Llama 2", arXiv:2307.09288, section
2.2; Dubey et al. (2024), "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.2.
"""

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import KVCache, attention_scores, attention_weights, merge_heads, split_heads
from course_lib.functional import causal_mask
from course_lib.gpt import tie
from course_lib.positional import check_frequencies, rope_angles
from course_lib.transformer import init_weights
from course_lib.utils import huggingface, llama_checkpoint
from course_lib.utils.validate import check_choice, check_ids, check_positive, check_sizes

# --- parts ----------------------------------------------------------------------


class RMSNorm(nn.Module):
    r"""Each vector (..., D) divided by its root mean square, then scaled entry by entry.

    $$ y = w \odot \frac{x}{\sqrt{\text{mean}(x^2) + \epsilon}} $$

    The same as nn.RMSNorm. Source: Zhang and Sennrich (2019), arXiv:1910.07467, equation 4.
    """

    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        check_sizes(d_model=d_model)
        check_positive(eps=eps)
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x):
        """The same shape."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # the squares of 16 bits may overflow
        mean_square = wide.square().mean(-1, keepdim=True)  # (..., 1)
        return (wide * torch.rsqrt(mean_square + self.eps)).type_as(x) * self.weight


class SwiGLU(nn.Module):
    r"""A feed-forward network whose hidden layer is multiplied by a gate: $W_d\,(\text{silu}(W_g x) \odot W_u x)$.

    With F = 8 D / 3 it has as many weights as GPT's with F = 4 D. Source: Shazeer (2020), arXiv:2002.05202, equation 6.
    """

    def __init__(self, d_model, dim_feedforward):
        super().__init__()
        check_sizes(d_model=d_model, dim_feedforward=dim_feedforward)
        self.gate_proj = nn.Linear(d_model, dim_feedforward, bias=False)
        self.up_proj = nn.Linear(d_model, dim_feedforward, bias=False)
        self.down_proj = nn.Linear(dim_feedforward, d_model, bias=False)

    def forward(self, x):
        """The same shape, (..., D); in between (..., F)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotations(positions, head_dim, base=10000.0, scaling=None):
    r"""What turns queries and keys at positions (T,): complex numbers $e^{i\theta}$, (T, K/2), the same in every block.

    The angles are those of `course_lib.positional.RoPE`; `scaling`, the arguments of `slow_down`, makes some smaller.
    """
    angles = rope_angles(positions, head_dim, base)  # (T, K/2)
    if scaling is not None:
        angles = angles * slow_down(head_dim, base, **scaling).to(angles)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, rotation):
    """Turn each pair of neighbouring entries of queries or keys (B, H, T, K), as `RoPE.rotate` does."""
    wide = x.to(rotation.real.dtype)  # complex numbers of 16 bits cannot be multiplied
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))  # (B, H, T, K/2)
    return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)  # (B, H, T, K)


def slow_down(head_dim, base, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """By what Llama 3.1 multiplies the angle of each pair, (K/2,), to read texts longer than those of its training.

    A pair that makes `high_freq_factor` full turns or more within the original length keeps its speed, one that makes
    at most `low_freq_factor` is slowed by `factor`, one in between partly. The names are those of config.json; the rule
    is that of the authors' code.
    """
    length = torch.tensor(original_max_position_embeddings, dtype=torch.float64)
    turns = rope_angles(length, head_dim, base) / (2 * math.pi)  # (K/2,)
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return kept + (1 - kept) / factor


class GroupedQueryAttention(nn.Module):
    """Causal attention of H heads with H_kv keys and values: those of one are shared by H / H_kv heads of queries.

    With H_kv = H it is multi-head attention, with H_kv = 1 multi-query attention. A cache shrinks by H / H_kv.

    >>> layer = GroupedQueryAttention(d_model=12, num_heads=6, num_kv_heads=2, head_dim=4)
    >>> layer(torch.rand(3, 5, 12), rotations(torch.arange(5), head_dim=4)).shape
    torch.Size([3, 5, 12])

    Source: Ainslie et al. (2023), "GQA", arXiv:2305.13245, section 2.2.
    """

    def __init__(self, d_model, num_heads, num_kv_heads, head_dim):
        super().__init__()
        check_sizes(d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads=} and {num_kv_heads=}")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.q_proj = nn.Linear(d_model, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(d_model, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(d_model, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, d_model, bias=False)

    def forward(self, x, rotation, cache=None):
        """(B, T, D) to (B, T, D), given the `rotations` of T positions; with a `KVCache` x comes after its tokens."""
        q = rotate(split_heads(self.q_proj(x), self.num_heads), rotation)  # (B, H, T, K)
        k = rotate(split_heads(self.k_proj(x), self.num_kv_heads), rotation)  # (B, H_kv, T, K)
        v = split_heads(self.v_proj(x), self.num_kv_heads)  # (B, H_kv, T, K)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H_kv, S, K)
        T, S = q.shape[2], k.shape[2]
        mask = causal_mask(T, S, x.device) if 1 < T < S else None  # a single query sees every key
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=T == S, enable_gqa=True)  # (B, H, T, K)
        return self.o_proj(merge_heads(out))  # (B, T, D)

    def attention_weights(self, x, rotation, cache=None):
        """Where each head looks, (B, H, T, S), for the arguments of `forward`; the cache stays as it was."""
        q = rotate(split_heads(self.q_proj(x), self.num_heads), rotation)  # (B, H, T, K)
        k = rotate(split_heads(self.k_proj(x), self.num_kv_heads), rotation)  # (B, H_kv, T, K)
        if cache is not None:
            k, _ = copy.copy(cache).append(k, k)  # (B, H_kv, S, K)
        scores = attention_scores(q, k.repeat_interleave(self.num_heads // self.num_kv_heads, 1))  # (B, H, T, S)
        return attention_weights(scores, causal_mask(*scores.shape[-2:], x.device))


# --- the model ------------------------------------------------------------------


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama, and what differs between its versions.

    Args:
        max_len: the context, most tokens of a text.
        num_kv_heads: H_kv, a divisor of H.
        dim_feedforward: F, of each of the two hidden layers; the authors take 8 D / 3 or more.
        head_dim: K, an even number; None: D / H.
        rope_base: of the angles; larger ones for longer contexts.
        rope_scaling: dict of the arguments of `slow_down` after the base; None: no pair is slowed.
        norm_eps: what the norm adds to the mean square.
        tied: whether the table of embeddings is the output layer too.

    >>> LlamaConfig.from_name("llama-3-8b").num_kv_heads
    8
    """

    vocab_size: int
    max_len: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    dim_feedforward: int
    head_dim: int | None = None
    rope_base: float = 10000.0
    rope_scaling: dict | None = None
    norm_eps: float = 1e-5
    tied: bool = False

    def __post_init__(self):
        sizes = ("vocab_size", "max_len", "d_model", "num_layers", "num_heads", "num_kv_heads", "dim_feedforward")
        check_sizes(**{name: getattr(self, name) for name in sizes})
        check_positive(norm_eps=self.norm_eps)
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ValueError(f"wanted a head_dim, or a d_model that {self.num_heads} heads divide, got {self.d_model}")
        check_frequencies(self.key_width, self.rope_base)
        if self.rope_scaling is not None:
            llama_checkpoint.check_scaling(self.rope_scaling)

    @property
    def key_width(self):
        """K, whether it was given or follows from D and H."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @classmethod
    def from_name(cls, name):
        """The sizes of a published model, such as "smollm2-135m", "llama-2-7b", "llama-3-8b" or "llama-3.2-1b"."""
        check_choice("name", name, llama_checkpoint.PUBLISHED)
        sizes, others = llama_checkpoint.PUBLISHED[name]
        return cls(*sizes, **others)


class LlamaBlock(nn.Module):
    """Attention to itself and what stands before, then a feed-forward network; each joins the residual stream x."""

    def __init__(self, config):
        super().__init__()
        D = config.d_model
        self.norm1 = RMSNorm(D, config.norm_eps)
        self.attn = GroupedQueryAttention(D, config.num_heads, config.num_kv_heads, config.key_width)
        self.norm2 = RMSNorm(D, config.norm_eps)
        self.mlp = SwiGLU(D, config.dim_feedforward)

    def forward(self, x, rotation, cache=None):
        """(B, T, D) to (B, T, D); with a `KVCache` x comes after the tokens in it."""
        x = x + self.attn(self.norm1(x), rotation, cache)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """The next token's logits at every position. Weights start as those of `course_lib.gpt.GPT`.

    >>> model = Llama(LlamaConfig(11, 9, d_model=12, num_layers=2, num_heads=6, num_kv_heads=2, dim_feedforward=32))
    >>> model(torch.tensor([[1, 7, 8, 2]])).shape
    torch.Size([1, 4, 11])
    """

    def __init__(self, config):
        super().__init__()
        V, D, N = config.vocab_size, config.d_model, config.num_layers
        self.config, self.vocab_size, self.max_len = config, V, config.max_len
        self.embedding = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(N))
        self.norm = RMSNorm(D, config.norm_eps)
        self.head = nn.Linear(D, V, bias=False)
        tie(self)
        self.register_load_state_dict_post_hook(tie)
        init_weights(self)
        with torch.no_grad():
            for block in self.blocks:  # what writes into the residual stream
                block.attn.o_proj.weight /= (2 * N) ** 0.5
                block.mlp.down_proj.weight /= (2 * N) ** 0.5

    def forward(self, ids, kv_caches=None):
        """Logits (B, T, V) of the token after each of `ids` (B, T), which come after the tokens in the caches."""
        return self.head(self.features(ids, kv_caches))

    def features(self, ids, kv_caches=None):
        """What the blocks make of the tokens, ready for the output layer: (B, T, D)."""
        past = 0 if kv_caches is None else kv_caches[0].length
        x, config = self.embed(ids, past), self.config  # (B, T, D)
        wide = torch.promote_types(x.dtype, torch.float32)
        positions = torch.arange(past, past + x.shape[1], dtype=wide, device=x.device)  # (T,)
        rotation = rotations(positions, config.key_width, config.rope_base, config.rope_scaling)  # (T, K/2)
        caches = [None] * len(self.blocks) if kv_caches is None else kv_caches
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, rotation, cache)  # (B, T, D)
        return self.norm(x)

    def embed(self, ids, past=0):
        """Tokens (B, T) as vectors (B, T, D), refused where text and `past` tokens before it pass the context."""
        try:
            x = self.embedding(ids)  # (B, T, D)
            _, T = ids.shape
        except Exception:
            check_ids("ids", ids, ("B", "T"), self.vocab_size)  # says what is wrong with them
            raise
        if past + T > self.max_len:
            raise ValueError(f"{past + T} tokens are more than the context of {self.max_len}")
        return x

    def start(self, batch_size, room=None):
        """The state before the first token: an empty `KVCache` for each block; without a `room` it grows as needed."""
        config, weight = self.config, self.embedding.weight
        sizes = batch_size, config.num_kv_heads, room or min(config.max_len, 1024), config.key_width
        return {"kv_caches": [KVCache(*sizes, weight.dtype, weight.device) for _ in self.blocks]}

    def step(self, tokens, state):
        """Read tokens (B, T) that come next: the logits (B, V) of the one after them, and the state."""
        return self.head(self.features(tokens, state["kv_caches"])[:, -1]), state

    def _apply(self, fn, recurse=True):
        """What `to` and `to_empty` go through; they may make two tensors of the one that is tied."""
        super()._apply(fn, recurse)
        tie(self)
        return self

    @classmethod
    def from_pretrained(cls, source):
        """A checkpoint of Hugging Face's LlamaForCausalLM, in evaluation mode: a folder, or a name on the hub."""
        config, tensors = huggingface.read(source)
        model = cls(LlamaConfig(**llama_checkpoint.read_settings(config)))
        tensors = llama_checkpoint.read_tensors(tensors, model.state_dict(), model.config, source)
        huggingface.load(model, tensors, source)
        return model.eval()

    def save_pretrained(self, folder):
        """Write a checkpoint that Hugging Face's LlamaForCausalLM and `from_pretrained` read."""
        tensors = llama_checkpoint.write_tensors(self.state_dict(), self.config)
        huggingface.save(folder, llama_checkpoint.write_settings(self.config), tensors)
