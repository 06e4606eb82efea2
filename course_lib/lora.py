r"""LoRA: teach a trained model something new by small updates; its own weights stay as they are.

Read `LowRankUpdate`, which is the idea; `LoRALinear` and `LoRAAttention`, the layers that have one; `add_lora`, which
puts them into a model; `merge_lora`, which adds the updates to the weights, so that the model is as fast as before.
`save_lora` and `load_lora` keep an adapter alone: a few megabytes for a model of gigabytes.

Source: Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685, section 4.
"""

import torch
from torch import nn

from course_lib.attention import MultiHeadAttention, split_heads
from course_lib.utils import huggingface
from course_lib.utils.validate import check_instance, check_positive, check_sizes, check_tensor, check_tokens

PROJECTIONS = ("q_proj", "k_proj", "v_proj")  # to queries, keys and values

# --- layers ---------------------------------------------------------------------


class LowRankUpdate(nn.Module):
    r"""What is added to a linear layer: a product of two thin matrices.

    $$ \Delta W = \frac{\alpha}{r} B A, \qquad A: (r, \text{in}), \quad B: (\text{out}, r) $$

    It has r (in + out) parameters in the place of in * out. B starts at zero, so the model starts as it was; A starts
    random, or no gradient would reach either. Divided by r, the update is of a similar size for every rank.

    >>> update = LowRankUpdate(torch.rand(5, 3), rank=2, alpha=4)
    >>> update.A.shape, update.B.shape, update.matrix().shape
    (torch.Size([2, 3]), torch.Size([5, 2]), torch.Size([5, 3]))

    Source: Hu et al. (2021), equation 3. The paper does not say how wide the normal numbers of A are: ours have the
    variance 1 / in, which keeps that of the input.
    """

    def __init__(self, weight, rank, alpha):
        super().__init__()
        check_tensor("weight", weight, ("out", "in"), "float")
        check_sizes(rank=rank)
        check_positive(alpha=alpha)
        self.scale = alpha / rank
        out_features, in_features = weight.shape
        self.A = nn.Parameter(torch.randn(rank, in_features).to(weight) * in_features**-0.5)
        self.B = nn.Parameter(torch.zeros(out_features, rank).to(weight))

    def forward(self, x):
        """(..., in) to (..., out), through the r numbers between: the matrix of the update is never built."""
        return self.scale * (x @ self.A.T @ self.B.T)

    def matrix(self):
        """The update as one matrix (out, in), the shape of the weight."""
        return self.scale * self.B @ self.A


class LoRALinear(nn.Module):
    """A linear layer, frozen, and what is added to it."""

    def __init__(self, linear, rank, alpha):
        super().__init__()
        check_instance("linear", linear, nn.Linear)
        self.linear = linear.requires_grad_(False)
        self.update = LowRankUpdate(linear.weight, rank, alpha)

    def forward(self, x):
        """(..., in) to (..., out)."""
        return self.linear(x) + self.update(x)

    def merged(self):
        """The linear layer with the update in its weight."""
        self.linear.weight += self.update.matrix()
        return self.linear


class LoRAAttention(MultiHeadAttention):
    """A `MultiHeadAttention` with updates of some of its `PROJECTIONS`.

    These three lie in one matrix (3 D, D), so they cannot be replaced one by one as linear layers are.
    """

    def __init__(self, attention, rank, alpha, parts=("q_proj", "v_proj")):
        check_instance("attention", attention, MultiHeadAttention)
        nn.Module.__init__(self)  # it takes over the parts of the other, and needs none of its own
        take_over(self, attention)
        self.in_proj_weight.requires_grad_(False)
        weights = dict(zip(PROJECTIONS, self.in_proj_weight.chunk(3), strict=True))  # (D, D) each
        self.updates = nn.ModuleDict({part: LowRankUpdate(weights[part], rank, alpha) for part in parts})

    def project(self, query, key=None, value=None):
        """The heads' queries (B, H, T, K), keys and values (B, H, S, K)."""
        heads = dict(zip(PROJECTIONS, super().project(query, key, value), strict=True))
        key = query if key is None else key
        inputs = dict(zip(PROJECTIONS, (query, key, key if value is None else value), strict=True))
        for part, update in self.updates.items():
            heads[part] = heads[part] + split_heads(update(inputs[part]), self.num_heads)
        return list(heads.values())

    def merged(self):
        """A plain `MultiHeadAttention` with the updates in its weights."""
        weights = dict(zip(PROJECTIONS, self.in_proj_weight.chunk(3), strict=True))  # views: what is added reaches all
        for part, update in self.updates.items():
            weights[part] += update.matrix()
        plain = MultiHeadAttention(self.d_model, self.num_heads, bias=self.in_proj_bias is not None)
        return take_over(plain, self)


def take_over(new, old):
    """Give an attention layer the sizes and the parameters of another."""
    new.d_model, new.num_heads, new.position, new.training = old.d_model, old.num_heads, old.position, old.training
    new.in_proj_weight, new.in_proj_bias = old.in_proj_weight, old.in_proj_bias
    new.out_proj, new.dropout = old.out_proj, old.dropout
    return new


# --- a whole model --------------------------------------------------------------


def add_lora(model, rank, alpha, targets=("q_proj", "v_proj")):
    """Freeze a model, and give an update to each linear layer whose name ends with one of the targets.

    The projections of a `MultiHeadAttention` called `attn` count as the layers `attn.q_proj`, `attn.k_proj` and
    `attn.v_proj`; the paper adapts those of queries and values. Names are compared by whole parts: "0" fits `mlp.0`,
    not `mlp.10`. What else is to be trained, such as a new classifier, gets `requires_grad_(True)` afterwards. Returns
    the model, which is changed.

    >>> from course_lib.gpt import GPT, GPTConfig
    >>> model = add_lora(GPT(GPTConfig(11, 9, d_model=12, num_layers=2, num_heads=3)), rank=2, alpha=4)
    >>> sum(x.numel() for x in lora_parameters(model).values())  # 2 layers, 2 projections in each, 2 (12 + 12) numbers
    192
    """
    check_instance("model", model, nn.Module)
    check_sizes(rank=rank)
    check_positive(alpha=alpha)
    targets = check_tokens("targets", targets)
    if lora_parameters(model):
        raise ValueError("the model must have no LoRA yet: call merge_lora first, or start from the model as it was")
    found = {}  # the layer's name -> which of its projections; None for a linear layer
    for name, layer in model.named_modules():
        if type(layer) is nn.Linear and fits(name, targets):
            found[name] = None
            check_own_weight(model, name, layer.weight)
        if type(layer) is MultiHeadAttention and name:
            parts = [part for part in PROJECTIONS if fits(f"{name}.{part}", targets)]
            found |= {name: parts} if parts else {}
    if not found:
        known = [name for name, layer in model.named_modules() if type(layer) in (nn.Linear, MultiHeadAttention)]
        raise ValueError(f"targets must fit the name of a layer, got {targets}; there are {', '.join(known) or 'none'}")
    model.requires_grad_(False)
    for name, parts in found.items():  # an attention comes before the layer inside it
        layer = model.get_submodule(name)
        new = LoRAAttention(layer, rank, alpha, parts) if parts else LoRALinear(layer, rank, alpha)
        model.set_submodule(name, new.train(layer.training))
    model.lora = {"rank": rank, "alpha": alpha, "targets": targets}
    return model


@torch.no_grad()
def merge_lora(model):
    """Add each update to its weight: the layers are plain again, all trainable, and the output is the same."""
    if not lora_parameters(model):
        raise ValueError("the model must have LoRA's updates, and has none")
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoRALinear | LoRAAttention):
            model.set_submodule(name, layer.merged())
    del model.lora
    return model.requires_grad_(True)


def lora_parameters(model):
    """The A and B of all updates, by name."""
    check_instance("model", model, nn.Module)
    updates = [(name, part) for name, part in model.named_modules() if isinstance(part, LowRankUpdate)]
    return {f"{name}.{key}": x for name, part in updates for key, x in part.named_parameters()}


def save_lora(model, folder):
    """Write what was trained, and nothing else: the updates, and what was made trainable beside them."""
    if not lora_parameters(model):
        raise ValueError("the model must have LoRA's updates, and has none")
    huggingface.save(folder, model.lora, {name: x for name, x in model.named_parameters() if x.requires_grad})


def load_lora(model, folder):
    """Give a model, as it was before `add_lora`, the adapter that `save_lora` wrote."""
    settings, tensors = huggingface.read(folder)
    add_lora(model, **settings)
    frozen = {name: x for name, x in model.state_dict().items() if name not in lora_parameters(model)}
    huggingface.load(model, frozen | tensors, folder)  # it names what is missing or does not fit
    for name in tensors:
        model.get_parameter(name).requires_grad_(True)
    return model


def fits(name, endings):
    """Whether a dotted name ends with one of the endings: "mlp.0" and "0" fit "blocks.1.mlp.0"."""
    return any(f".{name}".endswith(f".{ending}") for ending in endings)


def check_own_weight(model, name, weight):
    """A tied weight cannot be changed in one of its places alone."""
    names = [other for other, x in model.named_parameters(remove_duplicate=False) if x is weight]
    if len(names) > 1:
        raise ValueError(f"{name} must have a weight of its own, but it is tied: {', '.join(names)}")
