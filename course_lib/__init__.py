"""The library behind the course *Sequence models from the RNN to GPT*.

One module teaches one concept. Read them in this order; each imports only from
those before it:

`profile`, `progress`, `text`, `toy`, `data`, `metrics`, `series`, `language`, `bag`,
`rnn`, `bptt`, `gated`, `tasks`, `attention`, `seq2seq`, `positions`, `transformer`, `cost`,
`train`, `optim`, `pretrained`, `bert`, `gpt`, `parallel`, `ledger`, `plots`, `display`, `explorer`,
`diagrams`, `claims`, `checks`, `experiments`.

Letters for shapes, the same in every module and every notebook:

    B  batch                       K  head width, D / H
    T  query or target length      F  feed-forward width
    S  key or source length        V  vocabulary size
    D  width of a vector           N  number of layers
    H  heads

Tensors are batch first. Masks are boolean and True = may attend (a real token).
"""

__version__ = "0.1.0"
