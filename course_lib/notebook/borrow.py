"""Chapter 09's parts with the weights of the trained translator, so that each can be tried as soon as it is built."""

import torch
from torch import nn


def matching(theirs, ours):
    """Pairs of tensors, the library's and the chapter's, that play the same part; they can be written to.

    Args:
        theirs: a part of the library's `Translator`, or the whole; of a stack, its embedding and the stack.
        ours: the same part in chapter 09's form.
    """
    if isinstance(ours, nn.Embedding):
        yield theirs.embedding.weight, ours.weight
    elif hasattr(ours, "heads"):  # attention: the library's q, k and v are packed into one tensor
        for i, linear in enumerate((ours.W_q, ours.W_k, ours.W_v)):
            yield theirs.in_proj_weight.chunk(3)[i], linear.weight
            yield theirs.in_proj_bias.chunk(3)[i], linear.bias
        yield from _linear(theirs.out_proj, ours.W_o)
    elif hasattr(ours, "think"):  # a block
        if hasattr(ours, "look_across"):  # the decoder's
            yield from matching(theirs.self_attn, ours.look_back)
            yield from matching(theirs.multihead_attn, ours.look_across)
            yield from _linear(theirs.norm3, ours.norm3)
        else:
            yield from matching(theirs.self_attn, ours.attend)
        for one, other in ((theirs.linear1, ours.think[0]), (theirs.linear2, ours.think[2])):
            yield from _linear(one, other)
        for one, other in ((theirs.norm1, ours.norm1), (theirs.norm2, ours.norm2)):
            yield from _linear(one, other)
    elif hasattr(ours, "blocks"):  # one side: the library keeps its embedding apart from its layers
        embedding, stack = theirs
        yield from matching(embedding, ours.embed)
        for layer, block in zip(stack.layers, ours.blocks, strict=True):
            yield from matching(layer, block)
    else:  # the whole
        yield from matching((theirs.source_embedding, theirs.transformer.encoder), ours.encoder)
        yield from matching((theirs.target_embedding, theirs.transformer.decoder), ours.decoder)


def _linear(theirs, ours):
    yield theirs.weight, ours.weight
    yield theirs.bias, ours.bias


def borrow(ours, theirs):
    """The chapter's part with the weights of the library's; they will not be trained."""
    ours.requires_grad_(False)
    with torch.no_grad():
        for trained, own in matching(theirs, ours):
            own.copy_(trained)
    return ours
