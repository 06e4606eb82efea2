r"""GPT: a decoder-only Transformer that predicts the next token, and writes with a memory of what it has read.

Read `GPT`, whose `forward` is a few lines over the blocks of `course_lib.transformer`; then `filter_logits` and
`next_tokens`, how a token is drawn; `KVCache`, what is kept between tokens; `generate`, which puts them together.
`GPT.from_pretrained` takes the weights of GPT-2 and computes the same numbers.

Notebook: 13.
"""

import re
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import pretrained
from course_lib.positions import Learned
from course_lib.train import evaluating
from course_lib.transformer import EncoderLayer, TokenEmbedding, TransformerEncoder, normal_start

# --- the network ----------------------------------------------------------------

ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT; as they stand, those of the smallest GPT-2.

    Args:
        vocab_size: V.
        max_len: most tokens of a text, the context.
        d_model: D.
        num_layers: N.
        nhead: H.
        dim_feedforward: F; None: 4 D.
        dropout: share of the entries set to zero in training, attention weights included.
        activation: "gelu_tanh", the approximation that GPT-2 was trained with, or "gelu", which is faster on a CPU.
        layer_norm_eps: what LayerNorm adds to the variance.

    Example:
        >>> GPTConfig.from_name("gpt2-xl").num_layers
        48

    Source: Radford et al. (2019), "Language Models are Unsupervised Multitask Learners", table 2. Notebook: 13.
    """

    vocab_size: int = 50257
    max_len: int = 1024
    d_model: int = 768
    num_layers: int = 12
    nhead: int = 12
    dim_feedforward: int | None = None
    dropout: float = 0.1
    activation: str = "gelu_tanh"
    layer_norm_eps: float = 1e-5

    @classmethod
    def from_name(cls, name):
        """The sizes of a published model.

        Args:
            name: "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl".

        Returns:
            GPTConfig.

        Raises:
            ValueError: if the name is another one.
        """
        sizes = {
            "gpt2": (768, 12, 12),
            "gpt2-medium": (1024, 24, 16),
            "gpt2-large": (1280, 36, 20),
            "gpt2-xl": (1600, 48, 25),
        }
        if name not in sizes:
            raise ValueError(f"name must be one of {', '.join(sizes)}, got {name!r}")
        d_model, num_layers, nhead = sizes[name]
        return cls(d_model=d_model, num_layers=num_layers, nhead=nhead)

    @classmethod
    def from_huggingface(cls, config):
        """The sizes that a checkpoint's config.json gives.

        Args:
            config: dict.

        Returns:
            GPTConfig.

        Raises:
            ValueError: if it is not a GPT-2 that this module can compute.
        """
        kinds = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
        pretrained.expect(
            config,
            *("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
            model_type="gpt2",
            activation_function=tuple(kinds),
            scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False,
            add_cross_attention=False,
        )
        return cls(
            vocab_size=config["vocab_size"],
            max_len=config["n_positions"],
            d_model=config["n_embd"],
            num_layers=config["n_layer"],
            nhead=config["n_head"],
            dim_feedforward=config.get("n_inner"),
            dropout=config.get("resid_pdrop", 0.1),
            activation=kinds[config.get("activation_function", "gelu_new")],
            layer_norm_eps=config.get("layer_norm_epsilon", 1e-5),
        )

    def to_huggingface(self):
        """The same sizes in the words of a checkpoint's config.json.

        Returns:
            dict.
        """
        return {
            "model_type": "gpt2",
            "vocab_size": self.vocab_size,
            "n_positions": self.max_len,
            "n_embd": self.d_model,
            "n_layer": self.num_layers,
            "n_head": self.nhead,
            "n_inner": self.dim_feedforward,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), self.dropout),
            "activation_function": {"gelu_tanh": "gelu_new"}.get(self.activation, self.activation),
            "layer_norm_epsilon": self.layer_norm_eps,
        }


class GPT(nn.Module):
    r"""The next token's logits at every position.

    $$ \text{logits}_t = \text{norm}(y_t) E^\top, \qquad y = \text{layers}(E[\text{id}] + P) $$

    Pre-LN layers with a causal mask; learned positions P; the table of embeddings E is the output layer too. Weights
    start from N(0, 0.02^2), and those that write into the residual stream, of which there are 2 N, are divided by
    the root of 2 N, so that the stream's variance does not grow with the depth.

    Args:
        config: `GPTConfig`.
        position: of `course_lib.positions`; None: `Learned`, as in GPT-2.

    Raises:
        ValueError: if D is not a multiple of H, a size is below 1, or the activation unknown.

    Example:
        >>> model = GPT(GPTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, nhead=3))
        >>> model(torch.tensor([[1, 7, 8, 2]])).shape
        torch.Size([1, 4, 11])

    Source: Radford et al. (2018), "Improving Language Understanding by Generative Pre-Training", section 3.1 and 4.1;
    Radford et al. (2019), section 2.3. Notebook: 13.
    """

    def __init__(self, config, position=None):
        super().__init__()
        if config.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {config.activation!r}")
        self.config = config
        D, N = config.d_model, config.num_layers
        layers = [
            EncoderLayer(
                D,
                config.nhead,
                4 * D if config.dim_feedforward is None else config.dim_feedforward,
                config.dropout,
                hidden_dropout=0.0,
                residual="pre-ln",
                activation=ACTIVATIONS[config.activation],
            )
            for _ in range(N)
        ]
        position = Learned(config.max_len, D) if position is None else position
        self.embedding = TokenEmbedding(config.vocab_size, D, position, config.dropout, scale=1.0)
        self.encoder = TransformerEncoder(layers, nn.LayerNorm(D))
        normal_start(self)
        with torch.no_grad():
            for layer in layers:
                layer.self_attn.out_proj.weight /= (2 * N) ** 0.5
                layer.linear2.weight /= (2 * N) ** 0.5
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = config.layer_norm_eps

    def forward(self, ids, caches=None, impl="sdpa"):
        """Logits of the token after each.

        Args:
            ids: (B, T) int64 tokens.
            caches: from `caches`: the tokens come after those that were given with them before; None: from the start.
            impl: "sdpa" or "math", see `course_lib.attention.attention`.

        Returns:
            (B, T, V).

        Raises:
            ValueError: if the ids are not (B, T) int64, or the text is longer than the context.
        """
        return self._logits(self._read(ids, caches, impl))

    def next_logits(self, ids, caches=None):
        """Logits of the token after the last: the only ones that writing needs.

        Args:
            ids: (B, T) int64 tokens.
            caches: as in `forward`.

        Returns:
            (B, V).
        """
        return self._logits(self._read(ids, caches, "sdpa")[:, -1])

    def weights(self, ids):
        """Where each head of each layer looks.

        Args:
            ids: (B, T) int64 tokens.

        Returns:
            list of N tensors (B, H, T, T).
        """
        return self.encoder.weights(self.embedding(ids), causal=True, position=self.embedding.position)

    def caches(self, batch_size, max_len=None):
        """An empty cache for each layer; for writing, without gradients: what is kept is overwritten in place.

        Args:
            batch_size: B.
            max_len: most tokens; None: the context.

        Returns:
            list of N `KVCache`.
        """
        config, table = self.config, self.embedding.embedding.weight
        max_len = config.max_len if max_len is None else max_len
        shape = batch_size, config.nhead, max_len, config.d_model // config.nhead
        return [KVCache(*shape, table.dtype, table.device) for _ in range(config.num_layers)]

    def _read(self, ids, caches, impl):
        """(B, T) to the last layer's (B, T, D)."""
        past = caches[0].length if caches else 0
        if ids.ndim == 2 and past + ids.shape[1] > self.config.max_len:
            raise ValueError(f"{past + ids.shape[1]} tokens are more than the context of {self.config.max_len}")
        x = self.embedding(ids, past)
        return self.encoder(x, causal=True, position=self.embedding.position, impl=impl, caches=caches)

    def _logits(self, x):
        return F.linear(x, self.embedding.embedding.weight)

    @classmethod
    def from_pretrained(cls, source):
        """A checkpoint of GPT-2 in Hugging Face's form, in evaluation mode.

        Args:
            source: a folder, or a name on Hugging Face's hub: "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl".

        Returns:
            GPT.

        Raises:
            ValueError: if tensors are missing, superfluous or of another shape (all are named), or the checkpoint is
                not a GPT-2; and as `pretrained.read`.
        """
        config, tensors = pretrained.read(source)
        model, tensors = cls(GPTConfig.from_huggingface(config)), _tidied(tensors)
        state = {}
        for name in model.state_dict():
            theirs = pretrained.renamed(name, _NAMES)
            if theirs in tensors:
                state[name] = _transposed(theirs, tensors.pop(theirs))
        pretrained.load(model, state | tensors, source)
        return model.eval()

    def save_pretrained(self, folder):
        """Write a checkpoint that Hugging Face's GPT2LMHeadModel and `from_pretrained` read.

        Args:
            folder: path; made if it is not there.

        Raises:
            ValueError: if the positions are not learned: GPT-2 has no others.
        """
        if not isinstance(self.embedding.position, Learned):
            raise ValueError(f"GPT-2 has learned positions, this model {type(self.embedding.position).__name__}")
        tensors = {f"transformer.{pretrained.renamed(name, _NAMES)}": x for name, x in self.state_dict().items()}
        tensors = {name: _transposed(name, x).contiguous() for name, x in tensors.items()}
        pretrained.save(folder, self.config.to_huggingface(), tensors)


# --- what is kept between tokens --------------------------------------------------


class KVCache:
    """The keys and values of one layer for all tokens so far, in tensors that are made once.

    A token's key and value do not depend on later tokens, so they are computed once. Memory for one layer:
    2 B H S K numbers, S the most tokens.

    Args:
        batch_size: B.
        nhead: H.
        max_len: S, most tokens.
        head_dim: K.
        dtype: of the numbers; None: torch's default.
        device: where they are.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> cache = KVCache(2, 3, max_len=7, head_dim=4)
        >>> k, v = cache.append(torch.rand(2, 3, 5, 4), torch.rand(2, 3, 5, 4))
        >>> k.shape, cache.length
        (torch.Size([2, 3, 5, 4]), 5)

    Source: Pope et al. (2022), "Efficiently Scaling Transformer Inference", arXiv:2211.05102, section 2. Notebook: 13.
    """

    def __init__(self, batch_size, nhead, max_len, head_dim, dtype=None, device=None):
        shape = batch_size, nhead, max_len, head_dim
        if min(shape) < 1:
            raise ValueError(f"sizes must be at least 1, got {batch_size=}, {nhead=}, {max_len=}, {head_dim=}")
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0

    def append(self, k, v):
        """Put the keys and values of new tokens behind those that are there.

        Args:
            k: (B, H, T, K).
            v: (B, H, T, K).

        Returns:
            (keys, values): (B, H, length, K) each, views of all that is there now.

        Raises:
            ValueError: if the shape does not fit, or the cache is too short.
        """
        B, H, S, K = self.keys.shape
        end = self.length + k.shape[2]
        if k.shape != (B, H, k.shape[2], K) or v.shape != k.shape or end > S:
            raise ValueError(
                f"keys {tuple(k.shape)} and values {tuple(v.shape)} do not fit after {self.length} tokens "
                f"in a cache of {(B, H, S, K)}"
            )
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


# --- drawing tokens ---------------------------------------------------------------


def filter_logits(logits, top_k=None, top_p=None):
    r"""Leave only the likeliest tokens: the others get minus infinity.

    $$ \text{top-k: the k largest} \qquad
       \text{top-p: the fewest tokens with } \textstyle\sum_i p_i \ge p, \text{ likeliest first} $$

    With both, top-p chooses among the k.

    Args:
        logits: (..., V).
        top_k: number of tokens to leave, at least 1 (more than V leaves all); None: all. Equals of the k-th stay too.
        top_p: probability that what is left must reach, above 0, up to 1; None: all. At least one token is left.

    Returns:
        (..., V); the logits given are left as they are.

    Raises:
        ValueError: if top_k is below 1 or top_p outside (0, 1].

    Example:
        >>> filter_logits(torch.tensor([0.5, 0.3, 0.2]).log(), top_p=0.6).exp()
        tensor([0.5000, 0.3000, 0.0000])

    Source: top-k: Fan, Lewis and Dauphin (2018), arXiv:1805.04833, section 5; top-p: Holtzman et al. (2020),
    "The Curious Case of Neural Text Degeneration", arXiv:1904.09751, section 3.1. Notebook: 13.
    """
    if top_k is not None:
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        smallest = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p is not None:
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    if top_p is not None and top_p < 1:
        sorted_logits, order = logits.sort(-1, descending=True)
        p = sorted_logits.softmax(-1)
        cut = p.cumsum(-1) - p >= top_p  # what comes before reaches p already
        cut[..., 0] = False
        logits = logits.masked_fill(cut.gather(-1, order.argsort(-1)), -torch.inf)
    return logits


def next_tokens(logits, generator=None, *, temperature=1.0, top_k=None, top_p=None):
    r"""Draw a token for each row.

    $$ P(i) = \text{softmax}(\text{logits} / \tau)_i \quad \text{among the tokens that top-k and top-p leave} $$

    A uniform number is looked up in the cumulative distribution, so that the same generator gives the same tokens
    on every processor. top_k=1 takes the likeliest token (greedy decoding) and draws nothing.

    Args:
        logits: (B, V).
        generator: torch.Generator on the CPU; None: torch's own.
        temperature: tau, above 0: below 1 prefers what is likely, above 1 evens out.
        top_k: see `filter_logits`.
        top_p: see `filter_logits`; cuts after the temperature.

    Returns:
        (B,) int64.

    Raises:
        ValueError: if the temperature is not above 0, or as `filter_logits`.

    Example:
        >>> next_tokens(torch.tensor([[0.1, 0.7, 0.2]]).log(), top_k=1)
        tensor([1])

    Notebook: 13.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(
            f"temperature must be above 0 and finite, got {temperature}; top_k=1 takes the likeliest token"
        )
    if top_k == 1:
        return filter_logits(logits, top_k, top_p).argmax(-1)
    wide = logits.cpu().double()  # in float32 a low temperature overflows, and some devices have nothing wider
    cdf = filter_logits(wide / temperature, top_k, top_p).softmax(-1).cumsum(-1)  # (B, V)
    u = torch.rand(len(cdf), 1, generator=generator, dtype=torch.float64) * cdf[:, -1:]
    return torch.searchsorted(cdf, u, right=True).squeeze(-1).to(logits.device)


@torch.no_grad()
def generate(
    model, prompts, steps, generator=None, *, temperature=1.0, top_k=None, top_p=None, stop=None, use_cache=True
):
    """Continue texts, token by token, a batch together.

    The rows advance together, from the end of the shortest prompt on: a row whose prompt is longer is given its own
    tokens until it ends. So no row needs padding, and all stand at the same position.

    Args:
        model: `GPT`; without dropout while this lasts.
        prompts: list of B lists of ids, of any lengths from 1 on.
        steps: tokens to write for each, at least 0.
        generator: torch.Generator on the CPU; None: torch's own.
        temperature: see `next_tokens`.
        top_k: see `next_tokens`; 1: greedy.
        top_p: see `next_tokens`.
        stop: id after which a text ends; None: none.
        use_cache: False computes the whole text again for every token: the same tokens, slower.

    Returns:
        list of B lists of new ids, without the prompts; `steps` of them, or fewer if `stop` came, which is the last.

    Raises:
        ValueError: if there are no prompts, one is empty, a prompt and its steps exceed the context, `steps` is
            negative; or as `next_tokens`.

    Example:
        >>> model = GPT(GPTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, nhead=3)).eval()
        >>> [len(text) for text in generate(model, [[1, 7], [4, 2, 3]], steps=5)]
        [5, 5]

    Notebook: 13.
    """
    lengths = _check_prompts(model, prompts, steps)
    device = model.embedding.embedding.weight.device
    total = max(lengths) + steps
    ids = torch.zeros(len(prompts), total, dtype=torch.int64)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.as_tensor(prompt)
    ids, ends = ids.to(device), torch.tensor(lengths, device=device)
    caches = model.caches(len(prompts), total) if use_cache else None
    done, start = torch.zeros(len(prompts), dtype=torch.bool, device=device), 0
    with evaluating(model):
        for t in range(min(lengths), total):
            logits = model.next_logits(ids[:, start:t], caches)
            drawn = next_tokens(logits, generator, temperature=temperature, top_k=top_k, top_p=top_p)
            writes = ends <= t
            ids[:, t] = torch.where(writes, drawn, ids[:, t])
            start = t if use_cache else 0
            if stop is not None:
                done |= writes & ((drawn == stop) | (t + 1 >= ends + steps))
                if done.all():
                    break
    texts = [row[n : n + steps] for row, n in zip(ids.tolist(), lengths, strict=True)]
    return [text[: text.index(stop) + 1] if stop in text else text for text in texts]


# --- shared ---------------------------------------------------------------------

# What our names become in Hugging Face's, one rule after the other.
_NAMES = (
    (r"^embedding\.embedding\.", "wte."),
    (r"^embedding\.position\.", "wpe."),
    (r"^encoder\.norm\.", "ln_f."),
    (r"^encoder\.layers\.", "h."),
    (r"self_attn\.in_proj_", "attn.c_attn."),
    (r"self_attn\.out_proj\.", "attn.c_proj."),
    (r"linear1\.", "mlp.c_fc."),
    (r"linear2\.", "mlp.c_proj."),
    (r"norm1\.", "ln_1."),
    (r"norm2\.", "ln_2."),
)


def _transposed(name, x):
    """GPT-2's linear layers keep their weights as (in, out), torch's as (out, in)."""
    return x.T if x.ndim == 2 and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name) else x


def _tidied(tensors):
    """The tensors under the names without "transformer.", without stored masks, the tied table once."""
    tensors = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    tensors = {name: x for name, x in tensors.items() if not re.search(r"\.attn\.(masked_)?bias$", name)}
    head, table = tensors.get("lm_head.weight"), tensors.get("wte.weight")
    if head is not None and table is not None and torch.equal(head, table):
        del tensors["lm_head.weight"]
    return tensors


def _check_prompts(model, prompts, steps):
    """The prompts' lengths."""
    lengths = [len(prompt) for prompt in prompts]
    if not lengths or min(lengths) == 0 or steps < 0:
        raise ValueError(f"wanted prompts of at least one token and steps from 0, got lengths {lengths} and {steps=}")
    if max(lengths) + steps > model.config.max_len:
        raise ValueError(
            f"a prompt of {max(lengths)} tokens and {steps} steps are more than the context of {model.config.max_len}"
        )
    return lengths
