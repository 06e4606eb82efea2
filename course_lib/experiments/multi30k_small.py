"""Recorded run of the translator that comes with the course (chapter 09): small, trained on Multi30k.

The protocol of `course_lib.experiments.multi30k`, with fewer merges, narrower layers and more epochs. The weights are
rounded to float16 before they are scored, so the scores are those of the file. Each seed writes its weights and
vocabularies to `translator-SEED` in `checkpoints.checkpoint_folder()`; the two files of seed 0 are in
`course_lib/weights/translator`, where `course_lib.pretrained` reads them.
"""

from course_lib import datasets
from course_lib.experiments import experiment
from course_lib.experiments.checkpoints import checkpoint_folder
from course_lib.experiments.multi30k import learn, run
from course_lib.pretrained import Subwords, build_translator, round_to_half, save_translator
from course_lib.text import tokenize


@experiment("multi30k-small", "German to English captions: the small Transformer whose weights come with the course.")
def multi30k_small(
    seed,
    merges=(3000, 2000),
    width=128,
    heads=4,
    layers=3,
    feedforward=384,
    dropout=0.1,
    label_smoothing=0.1,
    learning_rate=2e-3,
    warm_up=1000,
    batch_size=64,
    epochs=14,
    bf16=True,
):
    """Test scores of the epoch with the lowest validation loss."""
    sizes = {"d_model": width, "num_heads": heads, "num_layers": layers, "dim_feedforward": feedforward}
    folder = checkpoint_folder()
    folder.mkdir(parents=True, exist_ok=True)  # fails now, not after the training

    def build(source_size, target_size):
        return build_translator(source_size, target_size, **sizes, dropout=dropout)

    def keep(model, vocabs):
        sides = zip(*datasets.multi30k("train"), strict=True)
        learned = [learn(map(tokenize, side), count) for side, count in zip(sides, merges, strict=True)]
        german, english = (Subwords(vocab.itos, pairs) for vocab, pairs in zip(vocabs, learned, strict=True))
        save_translator(folder / f"translator-{seed}", round_to_half(model), german, english, sizes)

    protocol = (merges, label_smoothing, learning_rate, warm_up, batch_size, epochs, bf16, (0.9, 0.98))
    checkpoint = folder / f"multi30k-small-{seed}.pt"
    outcome = run(seed, "small Transformer", build, *protocol, checkpoint, keep)
    checkpoint.unlink(missing_ok=True)
    return outcome
