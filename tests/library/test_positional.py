"""Positional schemes against their formulas written with loops, and against the properties that define them."""

import copy
import math
import pickle

import pytest
import torch

from course_lib import positional
from course_lib.positional import ALiBi, LearnedPositions, PositionScheme, RelativeBias, RoPE, Sinusoidal, in_attention

EXACT = {"rtol": 1e-10, "atol": 1e-10}
B, H, T, S, K, D = 2, 3, 5, 7, 4, 6


def draw(*shape, seed=0):
    """Normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def schemes():
    """One of each, with numbers in place of the zeros with which a relative bias starts."""
    relative = RelativeBias(H, max_distance=3)
    torch.nn.init.normal_(relative.weight, generator=torch.Generator().manual_seed(1))
    return [PositionScheme(), Sinusoidal(D, 11), LearnedPositions(D, 11), relative, RoPE(K), ALiBi(H)]


# ---- the three points ----


def test_each_scheme_enters_at_exactly_one_point():
    """Fails if a scheme touches a second point, or none: the methods it does not own must do nothing."""
    points = {Sinusoidal: "add", LearnedPositions: "add", RelativeBias: "bias", RoPE: "rotate", ALiBi: "bias"}
    for scheme in schemes():
        own = points.get(type(scheme))
        embeddings, queries = draw(B, T, D).float(), draw(B, H, T, K).float()
        assert torch.equal(scheme.add(embeddings), embeddings) == (own != "add"), scheme
        assert torch.equal(scheme.rotate(queries), queries) == (own != "rotate"), scheme
        assert (scheme.bias(T, S) is None) == (own != "bias"), scheme


def test_shapes_and_types_follow_the_module_and_the_input():
    """Fails if a table stays in float32 when the module is moved to float64, or x loses its type."""
    for scheme in schemes():
        scheme.double()
        assert scheme.add(draw(B, T, D)).dtype == torch.float64
        assert scheme.add(draw(B, T, D)).shape == (B, T, D)
        assert scheme.rotate(draw(B, H, T, K)).dtype == torch.float64
        assert scheme.rotate(draw(B, H, T, K)).shape == (B, H, T, K)
        bias = scheme.bias(T, S)
        assert bias is None or (bias.dtype == torch.float64 and bias.shape == (H, T, S))
        assert scheme.rotate(draw(B, H, T, K).bfloat16()).dtype == torch.bfloat16


def test_tables_are_buffers_that_move_with_the_module_and_are_not_saved():
    """Fails if a table is a plain attribute (it would stay on the CPU), or fills the checkpoint."""
    for scheme in schemes():
        scheme.to("meta")
        assert all(tensor.is_meta for tensor in [*scheme.parameters(), *scheme.buffers()])
        assert not any(isinstance(value, torch.Tensor) for value in vars(scheme).values()), "a plain attribute"
        assert scheme.add(torch.empty(B, T, D, device="meta")).is_meta
        assert scheme.rotate(torch.empty(B, H, T, K, device="meta")).is_meta
        bias = scheme.bias(T, S)
        assert bias is None or bias.is_meta
    saved = {type(scheme).__name__: list(scheme.state_dict()) for scheme in schemes() if scheme.state_dict()}
    assert saved == {"LearnedPositions": ["weight"], "RelativeBias": ["weight"]}


@pytest.mark.gpu
def test_the_schemes_run_on_a_gpu():
    """Fails if an angle, a distance or a table is made on the CPU while the module is on the GPU."""
    for scheme in schemes():
        here = [scheme.add(draw(B, T, D).float()), scheme.rotate(draw(B, H, T, K).float()), scheme.bias(T, S)]
        scheme.cuda()
        there = [
            scheme.add(draw(B, T, D).float().cuda()),
            scheme.rotate(draw(B, H, T, K).float().cuda()),
            scheme.bias(T, S),
        ]
        for one, other in zip(here, there, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other.cpu())


def test_a_position_counted_from_an_offset_is_that_of_the_whole_sequence():
    """Fails if a cache's second part starts again at position 0, in any scheme."""
    for scheme in schemes():
        scheme.double()
        embeddings, queries, t = draw(B, T, D), draw(B, H, T, K), 2
        torch.testing.assert_close(scheme.add(embeddings[:, t:], t), scheme.add(embeddings)[:, t:], **EXACT)
        torch.testing.assert_close(scheme.rotate(queries[:, :, t:], t), scheme.rotate(queries)[:, :, t:], **EXACT)
        if scheme.bias(T, S) is not None:
            torch.testing.assert_close(scheme.bias(T, S), scheme.bias(S, S)[:, -T:], **EXACT)
            assert scheme.bias(1, S).shape == (H, 1, S)


# ---- sinusoidal ----


def test_sinusoidal_table_equals_the_papers_formula_written_as_two_loops():
    """Fails if sines and cosines change places or stand in two halves, or the exponent is off by one clock."""
    wanted = torch.empty(T, D, dtype=torch.float64)
    for i in range(T):
        for j in range(D // 2):
            angle = i / 10000 ** (2 * j / D)
            wanted[i, 2 * j], wanted[i, 2 * j + 1] = math.sin(angle), math.cos(angle)
    torch.testing.assert_close(positional.sinusoidal_table(T, D, dtype=torch.float64), wanted, **EXACT)
    torch.testing.assert_close(positional.sinusoidal_table(T, D), wanted.float(), rtol=0, atol=1e-7)
    torch.testing.assert_close(Sinusoidal(D, max_len=S).add(torch.ones(B, T, D)), 1 + wanted.float().expand(B, T, D))


def test_far_down_the_float32_table_is_rounded_once():
    """Fails if angles are multiplied in float32: at position 4999 their error would reach the fourth digit."""
    wanted = [math.sin(4999 / 10000 ** (2 / 512)), math.cos(4999 / 10000 ** (2 / 512))]
    assert Sinusoidal(512).table[4999, 2:4].tolist() == pytest.approx(wanted, abs=1e-7)


def test_a_shift_of_the_sinusoidal_table_is_one_matrix_for_all_positions():
    """Fails if a pair mixes two clocks, or a clock's speed changes along the sequence."""
    table = positional.sinusoidal_table(40, D, dtype=torch.float64)
    for k in (1, 3, 17):
        shift = torch.zeros(D, D, dtype=torch.float64)
        for j in range(0, D, 2):
            angle = k / 10000 ** (j / D)
            cos, sin = math.cos(angle), math.sin(angle)
            shift[j : j + 2, j : j + 2] = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
        torch.testing.assert_close(table[:-k] @ shift, table[k:], **EXACT)


def test_products_of_sinusoidal_rows_depend_on_the_distance_alone():
    """Fails if a row's length or a clock depends on the position; the product at distance 0 is D / 2."""
    table = positional.sinusoidal_table(30, D, dtype=torch.float64)
    products = table @ table.T
    for k in range(30):
        diagonal = products.diagonal(k)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), **EXACT)
    assert products[0, 0].item() == pytest.approx(D / 2)


# ---- learned ----


def test_learned_adds_rows_and_those_alone_get_a_gradient():
    """Fails if rows are shifted, or the gradient of the batch does not add up in them."""
    scheme = LearnedPositions(D, S).double()
    out = scheme.add(torch.zeros(B, T, D, dtype=torch.float64), offset=1)
    torch.testing.assert_close(out, scheme.weight[1 : 1 + T].expand(B, T, D), **EXACT)
    out.sum().backward()
    wanted = torch.zeros(S, D, dtype=torch.float64)
    wanted[1 : 1 + T] = B
    torch.testing.assert_close(scheme.weight.grad, wanted, **EXACT)


def test_learned_starts_small():
    """Fails if the table starts as large as the embeddings or at zero; 0.02 is BERT's and GPT-2's spread."""
    torch.manual_seed(0)
    assert LearnedPositions(40, 300).weight.std().item() == pytest.approx(
        0.02, rel=0.05
    )  # 12,000 numbers: error below 1 %
    assert LearnedPositions(40, 300, std=0.5).weight.std().item() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("scheme", [Sinusoidal(D, max_len=S), LearnedPositions(D, S)])
def test_a_table_refuses_a_longer_sequence_and_names_both_lengths(scheme):
    """Fails if the rows run out silently (broadcast of a short slice) or the error names one length only."""
    assert scheme.add(torch.zeros(B, S, D)).shape == (B, S, D)
    assert scheme.max_len == S
    with pytest.raises(ValueError, match=rf"positions 0 to {S} are wanted, the table has 0 to {S - 1}"):
        scheme.add(torch.zeros(B, S + 1, D))
    with pytest.raises(ValueError, match=rf"positions {S} to {S} are wanted, the table has 0 to {S - 1}"):
        scheme.add(torch.zeros(B, 1, D), offset=S)
    with pytest.raises(ValueError, match="offset must be a whole number of at least 0, got -1"):
        scheme.add(torch.zeros(B, 1, D), offset=-1)
    with pytest.raises(ValueError, match=rf"must have the positions' width {D}, got shape \(2, 5, 1\)"):
        scheme.add(torch.zeros(B, T, 1))  # would broadcast


# ---- RoPE ----


def test_rope_turns_a_pair_by_the_angle_of_its_position_worked_by_hand():
    """Fails if it turns the other way, starts at position 1, or pairs j with j + K/2.

    K = 4, base 100: the clocks turn by 1 and by 0.1 radians a token.
    """
    x = torch.tensor([[1.0, 0.0, 0.0, 2.0]], dtype=torch.float64)
    wanted = [math.cos(3.0), math.sin(3.0), -2 * math.sin(0.3), 2 * math.cos(0.3)]
    torch.testing.assert_close(
        RoPE(4, base=100.0).rotate(x, offset=3)[0], torch.tensor(wanted, dtype=torch.float64), **EXACT
    )


def test_rope_equals_the_papers_block_matrix():
    """Fails anywhere the product with the block diagonal rotation matrix (equation 15) is not met."""
    x = draw(B, H, T, K)
    wanted = torch.empty_like(x)
    for i in range(T):
        matrix = torch.zeros(K, K, dtype=torch.float64)
        for j in range(K // 2):
            angle = i * 10000 ** (-2 * j / K)
            matrix[2 * j, 2 * j], matrix[2 * j, 2 * j + 1] = math.cos(angle), -math.sin(angle)
            matrix[2 * j + 1, 2 * j], matrix[2 * j + 1, 2 * j + 1] = math.sin(angle), math.cos(angle)
        wanted[:, :, i] = x[:, :, i] @ matrix.T
    torch.testing.assert_close(RoPE(K).rotate(x), wanted, **EXACT)
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)  # as heads are split from (B, T, D)
    torch.testing.assert_close(RoPE(K).rotate(strided), wanted, **EXACT)
    odd = torch.cat((torch.zeros(B, H, T, 1), x), -1)[..., 1:]  # pairs that start at an odd place in memory
    torch.testing.assert_close(RoPE(K).rotate(odd), wanted, **EXACT)


def test_rope_scores_depend_on_the_distance_alone_and_lengths_stay():
    """Fails if queries and keys are turned by different clocks, or a turn stretches."""
    rope, query, key = RoPE(K), draw(1, 1, 1, K), draw(1, 1, 1, K, seed=1)
    queries = rope.rotate(query.expand(1, 1, 50, K))[0, 0]
    keys = rope.rotate(key.expand(1, 1, 50, K))[0, 0]
    scores = queries @ keys.T
    for k in range(-49, 50):
        diagonal = scores.diagonal(k)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), **EXACT)
    assert scores[0, 1] != scores[1, 0]  # the sign of the distance counts
    torch.testing.assert_close(queries.norm(dim=1), query.norm().expand(50), **EXACT)


def test_rope_has_no_longest_length_and_its_gradient_is_the_turn_back():
    """Fails if a far position is refused, or the gradient is not that of a rotation."""
    x = draw(1, H, 3, K).requires_grad_()
    out = RoPE(K).rotate(x, offset=100_000)
    out.backward(out.detach())
    torch.testing.assert_close(x.grad, x.detach(), **EXACT)  # R^T R x = x


def test_rope_turns_short_types_in_float32():
    """Fails if angles are rounded to bfloat16: at position 301 they would be off by a radian."""
    x = draw(1, 1, 1, K).bfloat16()
    torch.testing.assert_close(RoPE(K).rotate(x, 301), RoPE(K).rotate(x.float(), 301).bfloat16(), rtol=0, atol=0)


def test_rope_takes_the_positions_of_every_token():
    """Fails if positions of a batch are lined up with heads, or `offset` is added to those given."""
    rope, x = RoPE(K), draw(B, H, T, K)
    torch.testing.assert_close(rope.rotate(x, positions=torch.arange(3, 3 + T)), rope.rotate(x, 3), **EXACT)
    positions = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])  # two tokens of padding in front, and none
    out = rope.rotate(x, positions=positions)
    torch.testing.assert_close(out[0, :, 2:], rope.rotate(x[0, :, 2:]), **EXACT)
    torch.testing.assert_close(out[1], rope.rotate(x[1]), **EXACT)


def test_no_scheme_but_a_table_has_a_longest_sequence():
    """Fails if a model with RoPE is held back, or one with a table runs past its end."""
    assert [scheme.max_len for scheme in schemes()] == [None, 11, 11, None, None, None]
    assert [in_attention(scheme) for scheme in [None, *schemes()]] == [False, False, False, False, True, True, True]


def test_memory_without_numbers_is_filled_when_a_checkpoint_is_loaded():
    """Fails if a table that no checkpoint holds keeps what `to_empty` found in memory."""
    for scheme in schemes():
        model, saved = torch.nn.Sequential(scheme), torch.nn.Sequential(scheme).state_dict()
        wanted = [scheme.add(draw(B, T, D).float()), scheme.bias(T, S)]
        with torch.device("meta"):
            model = copy.deepcopy(model).to("meta")
        model.to_empty(device="cpu")
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.fill_(torch.nan)
        model.load_state_dict(saved)
        got = [model[0].add(draw(B, T, D).float()), model[0].bias(T, S)]
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
        pickle.loads(pickle.dumps(model))


# ---- relative bias ----


def test_relative_bias_is_the_tables_entry_of_the_clipped_distance():
    """Fails if i - j is taken for j - i, a distance beyond M is not clipped, or queries do not stand last."""
    scheme = RelativeBias(H, max_distance=2).double()
    with torch.no_grad():
        scheme.weight.copy_(draw(H, 5))
    bias = scheme.bias(T, S)
    for h in range(H):
        for i in range(T):
            for j in range(S):
                distance = max(-2, min(2, j - (S - T + i)))
                assert bias[h, i, j] == scheme.weight[h, distance + 2]


def test_only_the_distances_that_occur_get_a_gradient():
    """Fails if the table gets none, or entries that no pair used do: 3 positions have distances -2 to 2 of -4 to 4."""
    scheme = RelativeBias(H, max_distance=4).double()
    scheme.bias(3, 3).sum().backward()
    wanted = torch.tensor([0, 0, 1, 2, 3, 2, 1, 0, 0], dtype=torch.float64)  # number of pairs at each distance
    torch.testing.assert_close(scheme.weight.grad, wanted.expand(H, 9), **EXACT)


def test_a_relative_bias_starts_as_no_position():
    """Fails if the table does not start at zero."""
    assert (RelativeBias(H, 4).bias(T, S) == 0).all()


# ---- ALiBi ----


def test_alibi_slopes_are_the_papers():
    """Fails if the sequence starts at 1, or other numbers of heads are not filled as in the paper's code."""
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    torch.testing.assert_close(positional.alibi_slopes(8), torch.tensor(eight))
    twelve = [*eight, 0.70710678, 0.35355339, 0.17677670, 0.08838835]  # the 1st, 3rd, 5th, 7th of sixteen
    torch.testing.assert_close(positional.alibi_slopes(12), torch.tensor(twelve))
    torch.testing.assert_close(positional.alibi_slopes(1), torch.tensor([1 / 256]))
    torch.testing.assert_close(positional.alibi_slopes(3), torch.tensor([1 / 16, 1 / 256, 1 / 4]))


def test_alibi_bias_is_minus_slope_times_distance():
    """Fails if the sign is lost, one side is left out, or queries do not stand last."""
    bias, slopes = ALiBi(H).double().bias(T, S), [1 / 16, 1 / 256, 1 / 4]
    for h in range(H):
        for i in range(T):
            for j in range(S):
                assert bias[h, i, j].item() == -slopes[h] * abs(j - (S - T + i))


# ---- bad input ----


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sinusoidal(5), "the width must be even, got 5"),
        (lambda: Sinusoidal(4, max_len=0), "max_len must be a whole number of at least 1, got 0"),
        (lambda: Sinusoidal(0), "d_model must be a whole number of at least 1, got 0"),
        (lambda: LearnedPositions(4, 0), "max_len must be a whole number of at least 1, got 0"),
        (lambda: LearnedPositions(4, 5, std=-1.0), r"std must be a finite number from 0 on, got -1\.0"),
        (lambda: positional.sinusoidal_table(-1, 4), "length must be a whole number of at least 0, got -1"),
        (lambda: positional.sinusoidal_table(3, 4, base=-1), "base must be a finite number above 0, got -1"),
        (lambda: positional.alibi_slopes(0), "num_heads must be a whole number of at least 1, got 0"),
        (lambda: LearnedPositions(4, None), "max_len must be a whole number of at least 1, got None"),
        (lambda: RoPE(3), "the width must be even, got 3"),
        (lambda: RoPE(0), "head_dim must be a whole number of at least 1, got 0"),
        (lambda: RoPE(4, base=0.0), r"base must be a finite number above 0, got 0\.0"),
        (lambda: RoPE(4, base=math.nan), r"base must be a finite number above 0, got nan"),
        (lambda: RoPE(4).rotate(torch.zeros(1, 1, 2, 4), offset=-2), "offset must be a whole number .*, got -2"),
        (lambda: RoPE(4).rotate(torch.zeros(1, 1, 2, 4), offset=1.5), "offset must be a whole number .*, got 1.5"),
        (
            lambda: RoPE(4).rotate(torch.zeros(2, 1, 3, 4), positions=torch.zeros(2, 2)),
            r"positions must be \(T,\) or \(B, T\) for T = 3 tokens, got shape \(2, 2\)",
        ),
        (lambda: RelativeBias(0, 4), "num_heads must be a whole number of at least 1, got 0"),
        (lambda: RelativeBias(2, 0), "max_distance must be a whole number of at least 1, got 0"),
        (lambda: RelativeBias(2, 3).bias(5, 4), "got T=5, S=4"),
        (lambda: ALiBi(0), "num_heads must be a whole number of at least 1, got 0"),
        (lambda: ALiBi(2).bias(5, 4), "got T=5, S=4"),
    ],
)
def test_bad_input_is_refused_with_what_came(call, message):
    """Fails if a size that cannot be used passes, or the message names another."""
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("head_dim", [2, 6])
def test_heads_of_another_width_are_refused(head_dim):
    """Fails if one frequency is broadcast over the pairs of a wider head."""
    with pytest.raises(RuntimeError, match="unflatten"):
        RoPE(head_dim).rotate(torch.zeros(2, 3, 5, 4))
