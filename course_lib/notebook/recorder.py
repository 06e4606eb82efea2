"""What attention computes for one sentence, for the explorer: weights, the scores before the softmax, the width.

`record` runs a model once and keeps it for every layer; `explore_sentence` shows it. Nothing here is taught: the
chapters compute the same by hand.
"""

import copy
import inspect
from contextlib import ExitStack

import torch

from course_lib.attention import MultiHeadAttention, attention_scores
from course_lib.notebook.explorer import Looks, Sentence, explore
from course_lib.utils import eval_mode


def record(model, *inputs, **named):
    """Run `model(*inputs, **named)` on a batch of one; the name of each attention layer -> its `Looks`.

    >>> model = torch.nn.Sequential(MultiHeadAttention(d_model=12, num_heads=3))
    >>> looks = record(model, torch.rand(1, 5, 12))["0"]
    >>> looks.weights.shape, looks.scores.shape, looks.head_dim
    (torch.Size([3, 5, 5]), torch.Size([3, 5, 5]), 4)
    """
    found, names = {}, inspect.signature(MultiHeadAttention.forward)
    with torch.no_grad(), eval_mode(model), ExitStack() as hooks:
        for name, part in model.named_modules():
            if isinstance(part, MultiHeadAttention):

                def keep(layer, args, options, name=name):
                    given = names.bind(layer, *args, **options).arguments
                    q, k, v = layer.project(given["query"], given.get("key"), given.get("value"))
                    q, k, v, bias = layer.place(q, k, v, copy.copy(given.get("cache")))
                    scores, weights = attention_scores(q, k, bias), layer.attention_weights(*args, **options)
                    if len(weights) != 1:
                        raise ValueError(f"wanted one sentence, a batch of 1; layer {name!r} got {len(weights)}")
                    found[name] = Looks(weights[0], scores[0], q.shape[-1] if bias is None else None)

                hooks.callback(part.register_forward_pre_hook(keep, with_kwargs=True).remove)
        model(*inputs, **named)
    return found


def explore_sentence(
    model, tokenize, *texts, title=None, alt=None, caption="Change the sentence in the cell, and run it again.",
    part=None, layer=0, head=0, query=None, key=None,
):  # fmt: skip
    """Run a model on a sentence of your own, or on several to switch between, and explore where its heads look.

    Args:
        model: any model with `MultiHeadAttention` in it.
        tokenize: a function of the text that returns the tokens, and after them the arguments of the model for a batch
            of this one sentence: `return tokens, ids`.
        *texts: the sentences.
        query, key: as in `explore`; a token that the first sentence does not have is passed over.
        title, alt, caption, part, layer, head: as in `explore`. Layers of equal numbers of heads are layers of one
            part; otherwise each of them is a part, under its name in the model.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(256, 6), MultiHeadAttention(d_model=6, num_heads=2))
    >>> tokenize = lambda text: (list(text), torch.tensor([list(text.encode())]))
    >>> explore_sentence(model, tokenize, "abc", "abe")
    [attention explorer] Attention maps of a model on the sentences: abc | abe
    """
    if not texts:
        raise ValueError("wanted at least one sentence")
    sentences = []
    for text in texts:
        tokens, *inputs = tokenize(text)
        found = record(model, *inputs)
        if len({len(looks.weights) for looks in found.values()}) > 1:
            sentences.append(Sentence(dict.fromkeys(found, tokens), {name: [looks] for name, looks in found.items()}))
        else:
            sentences.append(Sentence(tokens, list(found.values())))
    read = [tokenize(text)[0] for text in texts]
    query, key = (None if isinstance(place, str) and place not in read[0] else place for place in (query, key))
    return explore(
        dict(zip(short_names(read), sentences, strict=True)),
        title=title or f"Where does {type(model).__name__} look?",
        alt=alt or f"Attention maps of a model on the {'sentences' if texts[1:] else 'sentence'}: {' | '.join(texts)}",
        caption=caption, part=part, layer=layer, head=head, query=0 if query is None else query, key=key,
    )  # fmt: skip


def short_names(sentences):
    """Return a name for each list of tokens, for the switch: the words in which they differ, if few; or a number.

    >>> short_names([["too", "tired"], ["too", "wide"]])
    ['tired', 'wide']
    """
    if len(sentences) == 1:
        return [""]
    least = min(map(len, sentences))
    same = [len({tuple(s[:n]) for s in sentences}) == 1 for n in range(least + 1)]
    first = max(n for n in range(least + 1) if same[n])
    last = max(n for n in range(least - first + 1) if len({tuple(s[len(s) - n :]) for s in sentences}) == 1)
    names = [" ".join(s[first : len(s) - last]) for s in sentences]
    good = all(names) and len(set(names)) == len(names) and max(map(len, names)) <= 24
    return names if good else [f"sentence {n}" for n in range(1, len(names) + 1)]
