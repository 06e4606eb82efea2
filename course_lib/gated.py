r"""LSTM and GRU: recurrent networks whose state is changed by addition, under the control of gates.

Read `lstm_gates` and `lstm_step`, then `gru_step`: they are the equations. `LSTM` and `GRU` are layers with
the parameters of torch.nn.LSTM and torch.nn.GRU and the two paths of `course_lib.rnn`. `ResetBeforeGRU` is
the GRU as the paper has it. `unrolled_weights` writes a GRU's state as a weighted sum of all its candidates.

Torch's order of the gates, in which their weights lie in one matrix: input, forget, cell, output for the
LSTM; reset, update, new for the GRU.

Notebooks: 05 and 06; 07 starts from `unrolled_weights`.
"""

import torch
import torch.nn.functional as F

from course_lib.rnn import Recurrent, check_input, check_sizes, scan

# --- LSTM -----------------------------------------------------------------------


def lstm_gates(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    r"""The three gates of the LSTM and its candidate, from the input and the state before.

    $$ i, f, o = \sigma(x_t W_{i\cdot}^\top + b_{i\cdot} + h_{t-1} W_{h\cdot}^\top + b_{h\cdot}), \quad
       g = \tanh(x_t W_{ig}^\top + b_{ig} + h_{t-1} W_{hg}^\top + b_{hg}) $$

    All four have one form and own rows of the same matrices, so one product serves them.

    Args:
        x: (B, I) the input of this step.
        h: (B, D) the visible state before.
        weight_ih: (4 D, I) rows for i, f, g, o in this order.
        weight_hh: (4 D, D) likewise.
        bias_ih: (4 D,) or None.
        bias_hh: (4 D,) or None.

    Returns:
        i: (B, D) input gate, from 0 to 1: how much of the candidate is written.
        f: (B, D) forget gate: how much of the cell is kept.
        g: (B, D) candidate, from -1 to 1. Books write it as a c with a tilde.
        o: (B, D) output gate: how much of the cell is shown.

    Example:
        >>> x, h = torch.ones(1, 1), torch.zeros(1, 1)
        >>> gates = lstm_gates(x, h, torch.tensor([[0.0], [9.0], [9.0], [-9.0]]), torch.zeros(4, 1))
        >>> [round(gate.item(), 2) for gate in gates]
        [0.5, 1.0, 1.0, 0.0]

    Source: Hochreiter and Schmidhuber (1997), "Long Short-Term Memory", section 4; the forget gate: Gers,
    Schmidhuber and Cummins (2000), "Learning to Forget", equation 3. Notebook: 05.
    """
    i, f, g, o = (F.linear(x, weight_ih, bias_ih) + F.linear(h, weight_hh, bias_hh)).chunk(4, dim=-1)
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


def lstm_step(x, h, c, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    r"""One step of the LSTM: forget some of the cell, add some of the candidate, show some of the result.

    $$ c_t = f \odot c_{t-1} + i \odot g, \qquad h_t = o \odot \tanh(c_t) $$

    Args:
        x: (B, I) the input of this step.
        h: (B, D) the visible state before.
        c: (B, D) the memory cell before.
        weight_ih: (4 D, I) rows for i, f, g, o in this order; see `lstm_gates`.
        weight_hh: (4 D, D).
        bias_ih: (4 D,) or None.
        bias_hh: (4 D,) or None.

    Returns:
        h: (B, D) the new visible state, which is also the output.
        c: (B, D) the new memory cell.

    Example:
        >>> x, h, c = torch.ones(1, 1), torch.zeros(1, 1), torch.tensor([[3.0]])
        >>> keep = torch.tensor([[-99.0], [99.0], [0.0], [99.0]])  # write nothing, forget nothing, show all
        >>> h, c = lstm_step(x, h, c, keep, torch.zeros(4, 1))
        >>> c, torch.equal(h, c.tanh())
        (tensor([[3.]]), True)

    Source: Gers, Schmidhuber and Cummins (2000), "Learning to Forget", equations 3 to 6; torch.nn.LSTM.
    Notebook: 05.
    """
    i, f, g, o = lstm_gates(x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    c = f * c + i * g
    return o * c.tanh(), c


def lstm_loop(x, state, weights, mask=None, reverse=False):
    """`lstm_step` at every step, with the part that needs no state computed once for all steps.

    Args:
        x: (T, B, I) inputs, time first.
        state: (h, c), each (B, D).
        weights: weight_ih (4 D, I), weight_hh (4 D, D) and, if there are biases, bias_ih and bias_hh (4 D,).
        mask: (T, B, 1) bool, True = real step, or None.
        reverse: True goes from the last step to the first.

    Returns:
        output: (T, B, D); state: (h, c).

    Notebook: 05.
    """
    weight_ih, weight_hh, *biases = weights
    from_input = F.linear(x, weight_ih, sum(biases) if biases else None)  # (T, B, 4 D)
    weight = weight_hh.t()

    def step(from_input, h, c):
        i, f, g, o = torch.addmm(from_input, h, weight).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    return scan(step, from_input, state, mask, reverse)


class LSTM(Recurrent):
    r"""Long short-term memory, in one or more layers and one or two directions.

    $$ c_t = f \odot c_{t-1} + i \odot g, \qquad h_t = o \odot \tanh(c_t) $$

    The state is a pair: h, which the outside sees, and the memory cell c.

    Args:
        input_size: I, width of the input.
        hidden_size: D, width of h and of c.
        num_layers: N, layers; each reads the h of the one below.
        bias: False leaves all biases out.
        dropout: share of the entries set to zero between layers, in training; see `course_lib.rnn.dropout`.
        bidirectional: True runs a second network from the end to the beginning; outputs stand side by side.
        proj_size: 0; torch's projection of h is not part of this layer.
        device: where the parameters are made.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, `dropout` outside [0, 1) or `proj_size` not 0.

    Fast path: `impl="fused"` in the call, the default: torch's kernel on these parameters, bit-equal to torch.nn.LSTM.

    Example:
        >>> layer = LSTM(input_size=3, hidden_size=5, bidirectional=True)
        >>> output, (h_n, c_n) = layer(torch.zeros(4, 7, 3), lengths=[7, 2, 5, 1])
        >>> output.shape, h_n.shape, c_n.shape
        (torch.Size([4, 7, 10]), torch.Size([2, 4, 5]), torch.Size([2, 4, 5]))

    Source: Hochreiter and Schmidhuber (1997), "Long Short-Term Memory"; Gers, Schmidhuber and Cummins (2000),
    equations 3 to 6. Differs from both: one cell a block, trained by the full gradient. Notebook: 05.
    """

    kernel = torch.lstm

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        *,
        bias=True,
        dropout=0.0,
        bidirectional=False,
        proj_size=0,
        device=None,
        dtype=None,
    ):
        if proj_size != 0:
            raise ValueError(f"proj_size={proj_size}: projections are not built here; use torch.nn.LSTM for them")
        check_sizes(input_size, hidden_size, num_layers, dropout)
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, True, dropout, bidirectional, device=device, dtype=dtype
        )

    def _loop(self, x, state, weights, mask, reverse):
        return lstm_loop(x, state, weights, mask, reverse)

    def _cell(self, x, state, weights, impl):
        return lstm_step(x, *state, *weights) if impl == "loop" else torch.lstm_cell(x, state, *weights)

    def trace(self, x):
        """What goes on inside, at every step: for looking at, not for training.

        Args:
            x: (B, T, I) inputs. The layer must have one layer and one direction.

        Returns:
            dict of (B, T, D) tensors: gates "i", "f", "o", candidate "g", cell "c", state "h".

        Raises:
            ValueError: if there are more layers or directions than one, or x does not fit.

        Example:
            >>> layer = LSTM(3, 5)
            >>> trace = layer.trace(torch.rand(2, 7, 3))
            >>> torch.allclose(trace["c"][:, 1], (trace["f"] * trace["c"].roll(1, 1) + trace["i"] * trace["g"])[:, 1])
            True
        """
        h, c = _single(self, x)
        steps = []
        for x_t in x.unbind(1):
            i, f, g, o = lstm_gates(x_t, h, *self.all_weights[0])
            c = f * c + i * g
            h = o * c.tanh()
            steps.append((i, f, g, o, c, h))
        return dict(zip("ifgoch", (torch.stack(part, 1) for part in zip(*steps, strict=True)), strict=True))


def set_forget_bias(lstm, value):
    """Set the bias of all forget gates, so that an untrained LSTM keeps what it has: the trick for long lags.

    At a bias of 0 a gate starts at 1/2 and halves the cell at every step; at 1 it starts at 0.73, at 5 at 0.993.

    Args:
        lstm: `LSTM` or torch.nn.LSTM with biases, any number of layers and directions.
        value: the sum of both biases; all of it goes into bias_ih, bias_hh's part becomes 0.

    Returns:
        The same layer.

    Raises:
        ValueError: if the layer has no biases.

    Example:
        >>> layer = set_forget_bias(LSTM(3, 2), 1.0)
        >>> (layer.bias_ih_l0 + layer.bias_hh_l0)[2:4].tolist()
        [1.0, 1.0]

    Source: Gers, Schmidhuber and Cummins (2000), section 4; Jozefowicz, Zaremba and Sutskever (2015), "An Empirical
    Exploration of Recurrent Network Architectures", section 2.2. Notebook: 05.
    """
    if not lstm.bias:
        raise ValueError("this LSTM was made with bias=False: it has no forget bias to set")
    forget = slice(lstm.hidden_size, 2 * lstm.hidden_size)
    with torch.no_grad():
        for _, _, bias_ih, bias_hh, *_ in lstm.all_weights:  # with proj_size a fifth
            bias_ih[forget] = value
            bias_hh[forget] = 0
    return lstm


# --- GRU ------------------------------------------------------------------------


def gru_step(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    r"""One step of the GRU, reset after: blend the state with a candidate.

    $$ r, z = \sigma(x_t W_{i\cdot}^\top + b_{i\cdot} + h_{t-1} W_{h\cdot}^\top + b_{h\cdot}), \quad
       n = \tanh(x_t W_{in}^\top + b_{in} + r \odot (h_{t-1} W_{hn}^\top + b_{hn})), \quad
       h_t = (1 - z) \odot n + z \odot h_{t-1} $$

    The reset gate r acts after the product with the state, so all three products are one: this is what cuDNN
    and torch compute. z = 1 keeps the state; in Cho et al. (2014) and here, but some texts swap z and 1 - z.

    Args:
        x: (B, I) the input of this step.
        h: (B, D) the state before.
        weight_ih: (3 D, I) rows for r, z, n in this order.
        weight_hh: (3 D, D) likewise.
        bias_ih: (3 D,) or None.
        bias_hh: (3 D,) or None. Its part for n is scaled by r, so the two biases are not one sum.

    Returns:
        (B, D) the new state, which is also the output.

    Example:
        >>> x, h = torch.ones(1, 1), torch.tensor([[0.25]])
        >>> gru_step(x, h, torch.tensor([[0.0], [99.0], [0.0]]), torch.zeros(3, 1))  # z = 1
        tensor([[0.2500]])

    Source: Chung, Gulcehre, Cho and Bengio (2014), arXiv:1412.3555, section 3.2, in the form of torch.nn.GRU.
    Notebook: 05.
    """
    _, z, n = gru_gates(x, h, weight_ih, weight_hh, bias_ih, bias_hh)  # r is already in n
    return (1 - z) * n + z * h


def gru_gates(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    """The gates and the candidate of `gru_step`: r, z and n, each (B, D); arguments as there."""
    from_input = F.linear(x, weight_ih, bias_ih).chunk(3, dim=-1)
    from_state = F.linear(h, weight_hh, bias_hh).chunk(3, dim=-1)
    r = torch.sigmoid(from_input[0] + from_state[0])
    z = torch.sigmoid(from_input[1] + from_state[1])
    return r, z, torch.tanh(from_input[2] + r * from_state[2])


def gru_step_reset_before(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    r"""One step of the GRU as the paper has it: the reset gate acts on the state before the product.

    $$ n = \tanh(x_t W_{in}^\top + b_{in} + (r \odot h_{t-1}) W_{hn}^\top + b_{hn}) $$

    The rest is as in `gru_step`. The candidate's product must wait for r, so a step has two products with
    the state instead of one. With the same weights the result differs from `gru_step`'s.

    Args:
        x: (B, I) the input of this step.
        h: (B, D) the state before.
        weight_ih: (3 D, I) rows for r, z, n in this order.
        weight_hh: (3 D, D) likewise.
        bias_ih: (3 D,) or None.
        bias_hh: (3 D,) or None.

    Returns:
        (B, D) the new state, which is also the output.

    Example:
        >>> x, h, weights = torch.ones(1, 1), torch.tensor([[0.5]]), (torch.zeros(3, 1), torch.ones(3, 1))
        >>> torch.equal(gru_step_reset_before(x, h, *weights), gru_step(x, h, *weights))  # 1-d, no bias: the same
        True

    Source: Cho et al. (2014), "Learning Phrase Representations using RNN Encoder-Decoder", arXiv:1406.1078,
    equations 5 to 8. Notebook: 05.
    """
    D = h.shape[-1]
    from_input = F.linear(x, weight_ih, bias_ih).chunk(3, dim=-1)
    gates = F.linear(h, weight_hh[: 2 * D], None if bias_hh is None else bias_hh[: 2 * D]).chunk(2, dim=-1)
    r, z = (from_input[0] + gates[0]).sigmoid(), (from_input[1] + gates[1]).sigmoid()
    n = torch.tanh(from_input[2] + F.linear(r * h, weight_hh[2 * D :], None if bias_hh is None else bias_hh[2 * D :]))
    return (1 - z) * n + z * h


def gru_loop(x, state, weights, mask=None, reverse=False):
    """`gru_step` at every step, with the part that needs no state computed once for all steps.

    Args:
        x: (T, B, I) inputs, time first.
        state: tuple of one (B, D) tensor.
        weights: weight_ih (3 D, I), weight_hh (3 D, D) and, if there are biases, bias_ih and bias_hh (3 D,).
        mask: (T, B, 1) bool, True = real step, or None.
        reverse: True goes from the last step to the first.

    Returns:
        output: (T, B, D); state: tuple of one (B, D) tensor.

    Notebook: 05.
    """
    weight_ih, weight_hh, *biases = weights
    bias_ih, bias_hh = biases or (None, None)
    from_input = F.linear(x, weight_ih, bias_ih)  # (T, B, 3 D)

    def step(from_input, h):
        r_x, z_x, n_x = from_input.chunk(3, dim=1)
        r_h, z_h, n_h = F.linear(h, weight_hh, bias_hh).chunk(3, dim=1)
        r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
        n = (n_x + r * n_h).tanh()
        return (n + z * (h - n),)

    return scan(step, from_input, state, mask, reverse)


class GRU(Recurrent):
    r"""Gated recurrent unit (reset after, as cuDNN has it), in one or more layers and one or two directions.

    $$ h_t = (1 - z) \odot n + z \odot h_{t-1} $$

    One state instead of the LSTM's two, three products instead of four; see `gru_step`.

    Args:
        input_size: I, width of the input.
        hidden_size: D, width of the state.
        num_layers: N, layers; each reads the states of the one below.
        bias: False leaves all biases out.
        dropout: share of the entries set to zero between layers, in training; see `course_lib.rnn.dropout`.
        bidirectional: True runs a second network from the end to the beginning; outputs stand side by side.
        device: where the parameters are made.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1 or `dropout` outside [0, 1).

    Fast path: `impl="fused"` in the call, the default: torch's kernel on these parameters, bit-equal to torch.nn.GRU.

    Example:
        >>> layer = GRU(input_size=3, hidden_size=5)
        >>> output, h_n = layer(torch.zeros(4, 7, 3))
        >>> torch.equal(output[:, -1], h_n[0])
        True

    Source: Cho et al. (2014), arXiv:1406.1078, equations 5 to 8. Differs: the reset gate acts after the product
    with the state. Notebook: 05.
    """

    kernel = torch.gru

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        *,
        bias=True,
        dropout=0.0,
        bidirectional=False,
        device=None,
        dtype=None,
    ):
        check_sizes(input_size, hidden_size, num_layers, dropout)
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, True, dropout, bidirectional, device=device, dtype=dtype
        )

    def _loop(self, x, state, weights, mask, reverse):
        return gru_loop(x, state, weights, mask, reverse)

    def _cell(self, x, state, weights, impl):
        return ((gru_step if impl == "loop" else torch.gru_cell)(x, *state, *weights),)

    def trace(self, x):
        """What goes on inside, at every step: for looking at, not for training.

        Args:
            x: (B, T, I) inputs. The layer must have one layer and one direction.

        Returns:
            dict of (B, T, D) tensors: gates "r" and "z", candidate "n", state "h".

        Raises:
            ValueError: if there are more layers or directions than one, or x does not fit.

        Example:
            >>> trace = GRU(3, 5).trace(torch.rand(2, 7, 3))
            >>> torch.allclose(trace["h"][:, 0], ((1 - trace["z"]) * trace["n"])[:, 0])  # h_0 is 0
            True
        """
        (h,) = _single(self, x)
        steps = []
        for x_t in x.unbind(1):
            r, z, n = gru_gates(x_t, h, *self.all_weights[0])
            h = (1 - z) * n + z * h
            steps.append((r, z, n, h))
        return dict(zip("rznh", (torch.stack(part, 1) for part in zip(*steps, strict=True)), strict=True))


class ResetBeforeGRU(GRU):
    """The GRU of the paper, whose reset gate acts before the product; parameters as in `GRU`.

    There is no kernel for it, so `forward` and `step` know the loop path only.

    Args:
        input_size: I, width of the input.
        hidden_size: D, width of the state.
        num_layers: N, layers; further arguments as in `GRU`.

    Example:
        >>> layer = ResetBeforeGRU(3, 5)
        >>> layer(torch.zeros(4, 7, 3))[0].shape
        torch.Size([4, 7, 5])

    Source: Cho et al. (2014), arXiv:1406.1078, equations 5 to 8. Notebook: 05.
    """

    def forward(self, x, state=None, lengths=None, impl="loop"):
        """As `GRU.forward`, by the loop.

        Raises:
            ValueError: if `impl` is not "loop", or as `Recurrent.forward`.
        """
        return super().forward(x, state, lengths, _only_loop(impl))

    def step(self, x, state=None, impl="loop"):
        """As `GRU.step`, by the equation.

        Raises:
            ValueError: if `impl` is not "loop", or as `Recurrent.step`.
        """
        return super().step(x, state, _only_loop(impl))

    def trace(self, x):
        """Not there: `GRU.trace` follows the other equation.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("trace follows the reset-after equation; use GRU")

    def _loop(self, x, state, weights, mask, reverse):
        return scan(lambda x, h: (gru_step_reset_before(x, h, *weights),), x, state, mask, reverse)

    def _cell(self, x, state, weights, impl):
        return (gru_step_reset_before(x, *state, *weights),)


def unrolled_weights(z):
    r"""A GRU's state as a weighted sum of its first state and all candidates: the weights.

    $$ h_t = \sum_{i=0}^{t} w_{ti} \odot n_i, \quad w_{ti} = (1 - z_i) \odot \prod_{j=i+1}^{t} z_j, \quad
       w_{t0} = \prod_{j=1}^{t} z_j, \quad n_0 = h_0 $$

    Each unit has its own weights; from 0 to t they sum to 1. A weight is a product, so each depends on all
    update gates since: attention (chapter 07) will free them from that.

    Args:
        z: (B, T, D) update gates, each from 0 to 1; z[:, 0] is that of step 1.

    Returns:
        (B, T, T + 1, D): [:, t - 1, i] is w_ti, what step t holds of n_i; 0 for i > t.

    Raises:
        ValueError: if z does not have three dimensions, or no steps.

    Example:
        >>> unrolled_weights(torch.tensor([0.5, 0.25]).view(1, 2, 1)).squeeze()
        tensor([[0.5000, 0.5000, 0.0000],
                [0.1250, 0.1250, 0.7500]])

    Source: unrolled from Cho et al. (2014), arXiv:1406.1078, equation 7. Notebooks: 05, 07.
    """
    if z.ndim != 3 or z.shape[1] == 0:
        raise ValueError(f"z has shape {tuple(z.shape)}, wanted (B, T, D) with T of at least 1")
    B, T, D = z.shape
    weights = z.new_zeros(B, 1, T + 1, D)
    weights[:, 0, 0] = 1  # before the first step all that is there is h_0
    rows = []
    for t in range(T):
        weights = weights * z[:, t, None, None]
        weights[:, 0, t + 1] = 1 - z[:, t]
        rows.append(weights)
    return torch.cat(rows, 1)


# --- shared ---------------------------------------------------------------------


def _single(layer, x):
    """A zero state for each part of the state, (B, D), if the layer has one layer and one direction."""
    if layer.num_layers > 1 or layer.bidirectional:
        raise ValueError(
            f"trace needs one layer in one direction, got num_layers={layer.num_layers}, "
            f"bidirectional={layer.bidirectional}"
        )
    check_input(layer, x, wanted=f"(B, T, {layer.input_size})", ndim=3)
    return [x.new_zeros(len(x), layer.hidden_size) for _ in range(2 if layer.mode == "LSTM" else 1)]


def _only_loop(impl):
    if impl != "loop":
        raise ValueError(f"impl={impl!r}: no kernel computes the reset-before GRU, use impl='loop' or the class GRU")
    return impl
