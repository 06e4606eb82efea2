"""Recorded run of chapter 09 on Multi30k: German captions into English with a Transformer.

The protocol of chapter 06's models, `course_lib.experiments.multi30k`: the same captions, pieces, batches and scores,
ten epochs, the epoch with the lowest validation loss. Sizes, dropout and learning rate were chosen by the validation
captions.
"""

from torch import nn

from course_lib.experiments import experiment
from course_lib.experiments.multi30k import run
from course_lib.positional import Sinusoidal
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import Translator


@experiment("multi30k-transformer", "German to English captions: a Transformer reads and writes.")
def multi30k_transformer(
    seed,
    merges=(4000, 2500),
    width=256,
    heads=4,
    layers=3,
    feedforward=1024,
    dropout=0.2,
    attention_dropout=0.1,
    residual="pre-ln",
    label_smoothing=0.1,
    learning_rate=2e-3,
    warm_up=400,
    batch_size=64,
    epochs=10,
    bf16=True,
):
    """Test scores of the epoch with the lowest validation loss."""

    def stack(kind, layer):
        sizes = (width, heads, feedforward, dropout)
        parts = [layer(*sizes, attention_dropout=attention_dropout, residual=residual) for _ in range(layers)]
        return kind(parts, nn.LayerNorm(width) if residual == "pre-ln" else None)

    def build(source_size, target_size):
        transformer = Transformer(stack(TransformerEncoder, EncoderLayer), stack(TransformerDecoder, DecoderLayer))
        return Translator(source_size, target_size, transformer, position=Sinusoidal(width), dropout=dropout)

    betas = (0.9, 0.98)
    protocol = (merges, label_smoothing, learning_rate, warm_up, batch_size, epochs, bf16, betas)
    return run(seed, "Transformer", build, *protocol)
