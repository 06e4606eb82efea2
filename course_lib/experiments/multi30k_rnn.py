"""Recorded runs of chapter 06 on Multi30k: German captions into English, with one vector and with attention.

Three models under one protocol: lower-cased text, ten epochs, greedy decoding, the test set of 2016. The encoder, the
sizes, the dropout and the learning rate are the same in all of them. In `multi30k_lstm` and `multi30k_gru` the
decoder gets the mean of the encoder's states at every step; in `multi30k_attention` it gets their weighted mean, with
weights of its own for every step. Sizes and epoch were chosen for the model with one vector, by its validation loss.
How words are cut into pieces, models trained and BLEU computed: `course_lib.experiments.multi30k`.
"""

from course_lib.experiments import experiment
from course_lib.experiments.checkpoints import checkpoint_folder
from course_lib.experiments.multi30k import run
from course_lib.lstm_gru import GRU, LSTM
from course_lib.seq2seq import AttentionDecoder, Decoder, Encoder, Seq2Seq


@experiment(
    "multi30k-lstm", "German to English captions: an LSTM reads, an LSTM writes and sees one vector at every step."
)
def multi30k_lstm(
    seed,
    merges=(4000, 2500),
    embedding=256,
    encoder=320,
    decoder=512,
    pool="mean",
    dropout=0.15,
    label_smoothing=0.1,
    learning_rate=2e-3,
    warm_up=300,
    batch_size=64,
    epochs=10,
    bf16=True,
):
    """Test scores of the epoch with the lowest validation loss."""
    build = _one_vector(LSTM, embedding, encoder, decoder, pool, dropout)
    protocol = (merges, label_smoothing, learning_rate, warm_up, batch_size, epochs, bf16)
    return _run_and_go_on("multi30k-lstm", seed, "LSTM", build, *protocol)


@experiment("multi30k-gru", "German to English captions: a GRU reads, a GRU writes and sees one vector at every step.")
def multi30k_gru(
    seed,
    merges=(4000, 2500),
    embedding=256,
    encoder=320,
    decoder=512,
    pool="mean",
    dropout=0.15,
    label_smoothing=0.1,
    learning_rate=2e-3,
    warm_up=300,
    batch_size=64,
    epochs=10,
    bf16=True,
):
    """Test scores of the epoch with the lowest validation loss."""
    build = _one_vector(GRU, embedding, encoder, decoder, pool, dropout)
    protocol = (merges, label_smoothing, learning_rate, warm_up, batch_size, epochs, bf16)
    return _run_and_go_on("multi30k-gru", seed, "GRU", build, *protocol)


@experiment("multi30k-attention", "German to English captions: a GRU reads, a GRU with additive attention writes.")
def multi30k_attention(
    seed,
    merges=(4000, 2500),
    embedding=256,
    encoder=320,
    decoder=512,
    attention=128,
    pool="mean",
    dropout=0.15,
    label_smoothing=0.1,
    learning_rate=2e-3,
    warm_up=300,
    batch_size=64,
    epochs=10,
    bf16=True,
):
    """Test scores of the epoch with the lowest validation loss."""

    def build(source_size, target_size):
        reader = Encoder(source_size, GRU(embedding, encoder, bidirectional=True), dropout, pool)
        layer = GRU(embedding + reader.output_size, decoder)
        return Seq2Seq(reader, AttentionDecoder(target_size, layer, reader.output_size, attention, dropout=dropout))

    protocol = (merges, label_smoothing, learning_rate, warm_up, batch_size, epochs, bf16)
    return _run_and_go_on("multi30k-attention", seed, "attention", build, *protocol)


def _run_and_go_on(experiment_name, seed, *arguments):
    """`run`, which keeps every finished epoch in a file until it has ended: a run that was stopped goes on."""
    folder = checkpoint_folder()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / f"{experiment_name}-{seed}.pt"
    outcome = run(seed, *arguments, checkpoint=checkpoint)
    checkpoint.unlink(missing_ok=True)
    return outcome


def _one_vector(kind, embedding, encoder, decoder, pool, dropout):
    """A function of the vocabularies' sizes that builds a model whose writer gets one vector."""

    def build(source_size, target_size):
        reader = Encoder(source_size, kind(embedding, encoder, bidirectional=True), dropout, pool)
        layer = kind(embedding + reader.output_size, decoder)
        return Seq2Seq(reader, Decoder(target_size, layer, reader.output_size, feed_context=True, dropout=dropout))

    return build
