"""The library behind the course *Sequence models from the RNN to GPT*.

What is taught stands here, one module a concept, in the order of the chapters:

    01  autoregression, ngram, metrics        08  positional
    02  text, bpe, bag_of_words               09  transformer, transformer_models, pretrained
    03  rnn                                   10  cost
    04  bptt                                  11  optim
    05  lstm_gru, recurrent_models            12  bert
    06  seq2seq, translation                  13  gpt
    07  attention                             14  llama, lora, quantization,
                                              linear_attention

`generate` writes texts with a language model or a translator (01, 06, 13, 14), `train` trains any model (03 to 13),
`functional` holds the masks and the dropout that several share. Of the folders only `cost` is taught; there are
`datasets`, `utils`, `notebook` (what dresses a page), `exercises` (their checks) and `experiments` (the recorded runs).
Each module imports only from those before it:

`datasets`, `utils`, `functional`, `text`, `bpe`, `bag_of_words`, `autoregression`, `ngram`, `metrics`, `generate`,
`rnn`, `bptt`, `lstm_gru`, `recurrent_models`, `positional`, `attention`, `seq2seq`, `translation`, `transformer`,
`transformer_models`, `cost`, `train`, `optim`, `bert`, `gpt`, `pretrained`, `llama`, `lora`, `quantization`,
`linear_attention`, `notebook`, `exercises`, `experiments`.

Letters for shapes, the same in every module and every notebook:

    B  batch                       K  head width, D / H
    T  query or target length      F  feed-forward width
    S  key or source length        V  vocabulary size
    D  width of a vector           N  number of layers
    H  heads

Tensors are batch first. Masks are boolean and True = may attend (a real token).
"""

__version__ = "0.1.0"
