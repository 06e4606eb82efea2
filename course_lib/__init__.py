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

Letters for shapes, the same in every module; a chapter says where it needs a letter for something else:

    B  batch                       K  head width, D / H        I  width of an input (03 to 05)
    T  query or target length      F  feed-forward width       C  classes (05)
    S  key or source length        V  vocabulary size          A  hidden width of additive attention (06)
    D  width of a vector           N  number of layers         E  encoder's width (06), of a value (07)
    H  heads                       L  longest text (12, 13)    G  heads of keys and values (14)

In chapter 01 K is the window, H the hidden units and E the table of embeddings. A weight W_xy leads from x to y: i
input, h hidden, o output (03, 04, 06). In an LSTM or a GRU the second letter is the gate: W_ho is the output gate's
(05). Weights have shape (out, in), and rows are multiplied: x @ W.T.

Tensors are batch first. Masks are boolean and True = may attend (a real token).
"""

__version__ = "0.1.0"
