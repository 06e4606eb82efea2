"""The tutorial's Transformer as it was: torch's layer without some biases, and its size."""

import torch
from torch import nn

from course_lib.experiments import imdb_tutorial
from course_lib.positional import Sinusoidal
from course_lib.utils import number_of_parameters


def test_tutorial_layer_is_torchs_without_some_biases():
    """Fails if the layer's mathematics is not Post-LN attention and feed-forward: with torch, gradients too."""
    torch.manual_seed(0)
    ours = imdb_tutorial.TutorialEncoderLayer(12, 3, 20, dropout=0.0).double()
    torchs = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, layer_norm_eps=1e-6, batch_first=True).double()
    torchs.self_attn.in_proj_weight.data = torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]).data
    nn.init.zeros_(torchs.self_attn.in_proj_bias)
    torchs.self_attn.out_proj.load_state_dict(ours.out_proj.state_dict())
    for name in ("linear1", "linear2", "norm1", "norm2"):
        getattr(torchs, name).load_state_dict(getattr(ours, name).state_dict())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), torchs(x))
    for model in (ours, torchs):
        model(x).square().sum().backward()
    projections = [getattr(ours, f"{name}_proj").weight.grad for name in "qkv"]
    torch.testing.assert_close(torch.cat(projections), torchs.self_attn.in_proj_weight.grad)


def test_tutorial_classifier_is_made_of_its_parts():
    """Fails if positions, norm or maximum are other ones: the positions come from `course_lib.positional`."""
    torch.manual_seed(0)
    model = imdb_tutorial.TutorialClassifier(9, d_model=8, num_heads=2, dim_feedforward=16, dropout=0.4).eval()
    ids = torch.tensor([[2, 5, 7, 1, 1], [3, 3, 8, 4, 6]])
    x = model.norm(Sinusoidal(8).add(model.embedding(ids)))
    torch.testing.assert_close(model(ids), model.output(model.layer(x).max(1).values), rtol=1e-4, atol=1e-5)
    assert model.embedding.weight[1].eq(0).all()


def test_tutorial_classifier_has_the_tutorials_size():
    """Fails if a part is missing, too many or of another size: counted by hand."""
    embedding, attention = 50_002 * 32, 3 * 32 * 32 + (32 * 32 + 32)
    feedforward, norms, output = (32 * 128 + 128) + (128 * 32 + 32), 3 * 2 * 32, 32 * 2 + 2
    assert number_of_parameters(imdb_tutorial.TutorialClassifier(50_002)) == (
        embedding + attention + feedforward + norms + output
    )
