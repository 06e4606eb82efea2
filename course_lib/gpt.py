r"""GPT: a decoder-only Transformer that predicts the next token.

Read `Block`, whose `forward` is its figure (its attention: `course_lib.attention.MultiHeadAttention`), and `GPT`, which
stacks blocks between a table of embeddings and an output layer. `GPT.from_pretrained` takes the weights of GPT-2 and
computes the same numbers; `course_lib.generate` writes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import KVCache, MultiHeadAttention
from course_lib.functional import Dropout
from course_lib.positional import PositionScheme, in_attention
from course_lib.transformer import init_weights
from course_lib.utils import gpt2_checkpoint, huggingface
from course_lib.utils.validate import (
    check_choice,
    check_ids,
    check_instance,
    check_positive,
    check_probability,
    check_sizes,
)


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT, and what may differ from GPT-2; as they stand, those of the smallest GPT-2.

    Args:
        max_len: the context, most tokens of a text; with another `position` than the table, the scheme decides.
        dim_feedforward: F; None: 4 D.
        dropout: dropout probability of embeddings, sublayers and attention weights.
        activation: one of ACTIVATIONS; "swiglu" gates the feed-forward network.
        norm: "layernorm" or "rmsnorm".
        norm_eps: what the norm adds to the variance.
        bias: whether linear layers and norms have biases.
        tied: whether the table of embeddings is the output layer too.

    >>> GPTConfig.from_name("gpt2-xl").num_layers
    48

    Source: Radford et al. (2019), "Language Models are Unsupervised Multitask Learners", table 2.
    """

    vocab_size: int = 50257
    max_len: int = 1024
    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    dim_feedforward: int | None = None
    dropout: float = 0.1
    activation: str = "gelu_tanh"
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    bias: bool = True
    tied: bool = True

    def __post_init__(self):
        check_sizes(vocab_size=self.vocab_size, max_len=self.max_len, d_model=self.d_model)
        check_sizes(num_layers=self.num_layers, num_heads=self.num_heads)
        check_sizes(dim_feedforward=4 if self.dim_feedforward is None else self.dim_feedforward)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("norm", self.norm, ("layernorm", "rmsnorm"))
        check_probability(dropout=self.dropout)
        check_positive(norm_eps=self.norm_eps)

    @classmethod
    def from_name(cls, name):
        """The sizes of "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl"."""
        check_choice("name", name, SIZES)
        d_model, num_layers, num_heads = SIZES[name]
        return cls(d_model=d_model, num_layers=num_layers, num_heads=num_heads)


class Block(nn.Module):
    """Attention to itself and what stands before, then a feed-forward network; each joins the residual stream x."""

    def __init__(self, config, position=None):
        super().__init__()
        D, hidden, bias = config.d_model, config.dim_feedforward or 4 * config.d_model, config.bias
        self.ln1 = make_norm(config)
        self.attn = MultiHeadAttention(D, config.num_heads, config.dropout, bias, position)
        self.ln2 = make_norm(config)
        self.mlp = nn.Sequential(
            nn.Linear(D, 2 * hidden if config.activation == "swiglu" else hidden, bias),
            ACTIVATIONS[config.activation](),
            nn.Linear(hidden, D, bias),
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, x, cache=None):
        """(B, T, D) to (B, T, D); with a `KVCache` x comes after the tokens in it."""
        x = x + self.dropout(self.attn(self.ln1(x), causal=True, cache=cache))
        return x + self.dropout(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    r"""The next token's logits at every position.

    $$ \text{logits}_t = \text{norm}(y_t) E^\top, \qquad y = \text{blocks}(E[\text{id}] + P) $$

    Weights start from N(0, 0.02^2), and those that write into the residual stream, of which there are 2 N, are divided
    by the root of 2 N, so that what all branches add does not depend on the depth, at the start.

    Args:
        config: `GPTConfig`.
        position: a scheme of `course_lib.positional`; None: a learned table P, as in GPT-2.

    >>> model = GPT(GPTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, num_heads=3))
    >>> model(torch.tensor([[1, 7, 8, 2]])).shape
    torch.Size([1, 4, 11])

    Source: Radford et al. (2018), "Improving Language Understanding by Generative Pre-Training", sections 3.1 and 4.1;
    Radford et al. (2019), section 2.3.
    """

    def __init__(self, config, position=None):
        super().__init__()
        V, L, D, N = config.vocab_size, config.max_len, config.d_model, config.num_layers
        self.config, self.position, self.vocab_size = config, position, V
        check_instance("position", PositionScheme() if position is None else position, PositionScheme)
        self.max_len = L if position is None else position.max_len  # the longest text; None: any length
        scheme = position if in_attention(position) else None
        self.blocks = nn.ModuleList(Block(config, scheme) for _ in range(N))
        self.positions = nn.Parameter(0.02 * torch.randn(L, D)) if position is None else None
        self.embedding = nn.Embedding(V, D)
        self.dropout = Dropout(config.dropout)
        self.norm = make_norm(config)
        self.head = nn.Linear(D, V, bias=False)
        init_weights(self.embedding)
        init_weights(self.blocks)
        if not config.tied:
            init_weights(self.head)
        tie(self)
        self.register_load_state_dict_post_hook(tie)
        with torch.no_grad():
            for block in self.blocks:
                block.attn.out_proj.weight /= (2 * N) ** 0.5
                block.mlp[-1].weight /= (2 * N) ** 0.5

    def forward(self, ids, kv_caches=None):
        """Logits (B, T, V) of the token after each of `ids` (B, T), which come after the tokens in the caches."""
        return self.head(self.features(ids, kv_caches))

    def features(self, ids, kv_caches=None):
        """What the blocks make of the tokens, ready for the output layer: (B, T, D)."""
        past = 0 if kv_caches is None else kv_caches[0].length
        x = self.embed(ids, past)  # (B, T, D)
        caches = [None] * len(self.blocks) if kv_caches is None else kv_caches
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)  # (B, T, D)
        return self.norm(x)

    def embed(self, ids, past=0):
        """Tokens (B, T) as vectors (B, T, D) that know their positions, of which the first is `past`."""
        try:
            x, end = self.embedding(ids), past + ids.shape[1]  # (B, T, D)
        except Exception:
            check_ids("ids", ids, ("B", "T"), self.vocab_size)  # says what is wrong with them
            raise
        if self.position is not None:
            return self.dropout(self.position.add(x, past))
        if end > self.max_len:
            raise ValueError(f"{end} tokens are more than the context of {self.max_len}")
        return self.dropout(x + self.positions[past:end])

    def start(self, batch_size, room=None):
        """The state before the first token: an empty `KVCache` for each block, with room for the context or `room`."""
        config, weight = self.config, self.embedding.weight
        sizes = batch_size, config.num_heads, room or config.max_len, config.d_model // config.num_heads
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
    def from_pretrained(cls, source, dropout=None):
        """A checkpoint of GPT-2 in Hugging Face's form, in evaluation mode.

        Args:
            source: a folder, or a name on Hugging Face's hub: "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl".
            dropout: in place of the checkpoint's; needed where that has several.
        """
        config, tensors = huggingface.read(source)
        model = cls(GPTConfig(**gpt2_checkpoint.read_settings(config, dropout)))
        tensors = gpt2_checkpoint.read_tensors(tensors, model.state_dict(), model.config.tied, source)
        huggingface.load(model, tensors, source)
        return model.eval()

    def save_pretrained(self, folder):
        """Write a checkpoint that Hugging Face's GPT2LMHeadModel and `from_pretrained` read."""
        if self.position is not None:
            raise ValueError(f"GPT-2 has a learned table of positions, this model {type(self.position).__name__}")
        tensors = gpt2_checkpoint.write_tensors(self.state_dict(), self.config.tied)
        huggingface.save(folder, gpt2_checkpoint.write_settings(self.config), tensors)


# --- parts ----------------------------------------------------------------------


def tie(model, _=None):
    """One tensor under both names again where config says so: `load_state_dict(..., assign=True)` makes them two."""
    if model.config.tied:
        model.head.weight = model.embedding.weight


def make_norm(config):
    """A LayerNorm or an RMSNorm of the model's width."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.d_model, config.norm_eps)
    return nn.LayerNorm(config.d_model, config.norm_eps, bias=config.bias)


class SquaredReLU(nn.Module):
    """max(0, x)^2. Source: So et al. (2021), "Primer", arXiv:2109.08668."""

    def forward(self, x):
        """The same shape."""
        return F.relu(x).square()


class SwiGLU(nn.Module):
    """Half of the features, let through as far as the other half says. Source: Shazeer (2020), arXiv:2002.05202."""

    def forward(self, x):
        """(..., 2 F) to (..., F)."""
        x, gate = x.chunk(2, -1)
        return x * F.silu(gate)


ACTIVATIONS = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU("tanh"),  # the approximation that GPT-2 was trained with
    "relu": nn.ReLU,
    "relu_squared": SquaredReLU,
    "swiglu": SwiGLU,
}

# of the published models: d_model, num_layers, num_heads
SIZES = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-large": (1280, 36, 20), "gpt2-xl": (1600, 48, 25)}
