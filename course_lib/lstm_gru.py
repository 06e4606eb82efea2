r"""LSTM and GRU: recurrent networks whose state is changed by addition, under the control of gates.

Read `lstm_gates` and `lstm_step`, then `gru_gates` and `gru_step`: they are the equations, each written once. `LSTM`
and `GRU` are layers with the parameters of torch.nn.LSTM and torch.nn.GRU and the two backends of `course_lib.rnn`.
"""

import torch
import torch.nn.functional as F

from course_lib.rnn import Recurrent, scan
from course_lib.utils.validate import check_finite, check_tensor

# --- LSTM -----------------------------------------------------------------------


def lstm_gates(from_input, h, weight_hh):
    r"""How much is written (input gate i), kept (forget gate f) and shown (output gate o), and the candidate g.

    $$ i_t, f_t, o_t = \sigma(x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b), \quad
       g_t = \tanh(x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b) $$

    each with its own rows of the weights, in the order i, f, g, o: one product with weight_hh (4 D, D) serves all four.
    `from_input` (B, 4 D) is what the input and the biases add, $x_t W_{ih}^\top + b$; h is (B, D).
    """
    i, f, g, o = torch.addmm(from_input, h, weight_hh.t()).chunk(4, dim=-1)  # of from_input + h @ weight_hh.t()
    return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


def lstm_step(from_input, h, c, weight_hh):
    r"""One step of the LSTM: forget some of the cell c, add some of the candidate, show some of the result.

    $$ c_t = f_t \odot c_{t-1} + i_t \odot g_t, \qquad h_t = o_t \odot \tanh c_t $$

    Returns h_t, which is also the output, and c_t, each (B, D); see `lstm_gates` for the arguments.

    >>> keep = torch.tensor([[-99.0, 99.0, 0.0, 99.0]])  # write nothing, forget nothing, show all
    >>> lstm_step(keep, torch.zeros(1, 1), torch.tensor([[3.0]]), torch.zeros(4, 1))[1]
    tensor([[3.]])
    """
    i, f, g, o = lstm_gates(from_input, h, weight_hh)
    c = f * c + i * g
    return o * c.tanh(), c


class LSTM(Recurrent):
    """Long short-term memory: the state is a pair of h, which the outside sees, and the memory cell c.

    Arguments as `course_lib.rnn.Recurrent`; there is no projection of h.

    >>> output, (h_n, c_n) = LSTM(3, 5, bidirectional=True)(torch.zeros(4, 7, 3), lengths=[7, 2, 5, 1])
    >>> output.shape, h_n.shape, c_n.shape
    (torch.Size([4, 7, 10]), torch.Size([2, 4, 5]), torch.Size([2, 4, 5]))

    Source: Hochreiter and Schmidhuber (1997), "Long Short-Term Memory", section 4; the forget gate: Gers, Schmidhuber
    and Cummins (2000), "Learning to Forget", equations 3 to 6. Differs: one cell a block, trained by the full gradient.
    """

    mode, kernel, cell = "LSTM", torch.lstm, torch.lstm_cell

    def loop(self, x, state, weights, mask=None, reverse=False):
        """`lstm_step` at every step of x (T, B, I), from the state (h, c), each (B, D); see `scan` for the rest."""
        weight_ih, weight_hh, *biases = weights
        from_input = F.linear(x, weight_ih, sum(biases) if biases else None)  # (T, B, 4 D)
        return scan(lambda from_input, h, c: lstm_step(from_input, h, c, weight_hh), from_input, state, mask, reverse)

    def gate_values(self, x):
        """What goes on inside at each step of x (B, T, I): a dict of "i", "f", "g", "o", "c", "h", each (B, T, D)."""
        h = c = zero_state(self, x)
        weight_ih, weight_hh, *biases = self.all_weights[0]
        steps = []
        for from_input in F.linear(x, weight_ih, sum(biases) if biases else None).unbind(1):  # (B, 4 D) each
            gates = lstm_gates(from_input, h, weight_hh)
            h, c = lstm_step(from_input, h, c, weight_hh)
            steps.append((*gates, c, h))
        return dict(zip("ifgoch", (torch.stack(part, 1) for part in zip(*steps, strict=True)), strict=True))


def set_forget_bias(lstm, value):
    """Set the bias of all forget gates, so that an untrained LSTM keeps what it has: the trick for long lags.

    At a bias of 0 a gate starts at 1/2 and halves the cell at every step; at 1 it starts at 0.73, at 5 at 0.993.
    Takes an `LSTM` or torch.nn.LSTM, and gives it back.

    Source: Gers et al. (2000), section 4; Jozefowicz, Zaremba and Sutskever (2015), section 2.2.
    """
    if not lstm.bias:
        raise ValueError("this LSTM was made with bias=False: it has no forget bias to set")
    check_finite("value", torch.as_tensor(value, dtype=torch.float64))
    forget = slice(lstm.hidden_size, 2 * lstm.hidden_size)
    with torch.no_grad():
        for _, _, bias_ih, bias_hh, *_ in lstm.all_weights:  # torch's LSTM may have a fifth
            bias_ih[forget], bias_hh[forget] = value, 0  # only their sum counts
    return lstm


# --- GRU ------------------------------------------------------------------------


def gru_gates(from_input, h, weight_hh, bias_hh=None):
    r"""The reset gate r, the update gate z and the candidate n of the GRU, each (B, D).

    $$ r_t, z_t = \sigma(x_t W_{ih}^\top + h_{t-1} W_{hh}^\top + b), \quad
       n_t = \tanh(x_t W_{ih}^\top + b_{ih} + r_t \odot (h_{t-1} W_{hh}^\top + b_{hh})) $$

    The reset gate acts after the product, so all three products are one, as in cuDNN and torch; rows stand in the order
    r, z, n. `from_input` (B, 3 D) is $x_t W_{ih}^\top + b_{ih}$; bias_hh, scaled by r for n, cannot be added to it.
    """
    x_r, x_z, x_n = from_input.chunk(3, dim=-1)
    h_r, h_z, h_n = F.linear(h, weight_hh, bias_hh).chunk(3, dim=-1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    return r, z, (x_n + r * h_n).tanh()


def gru_gates_reset_before(from_input, h, weight_hh, bias_hh=None):
    """The same as its paper has it: the reset gate acts on the state before the product, which must wait for it."""
    sizes = [2 * h.shape[-1], h.shape[-1]]
    (x_rz, x_n), (weight_rz, weight_n) = from_input.split(sizes, dim=-1), weight_hh.split(sizes)
    bias_rz, bias_n = (None, None) if bias_hh is None else bias_hh.split(sizes)
    r, z = (x_rz + F.linear(h, weight_rz, bias_rz)).sigmoid().chunk(2, dim=-1)
    return r, z, (x_n + F.linear(r * h, weight_n, bias_n)).tanh()


def gru_step(from_input, h, weight_hh, bias_hh=None, gates=gru_gates):
    """One step of the GRU, (1 - z) n + z h: blend the state with a candidate. See `gru_gates` for the arguments.

    z = 1 keeps the state; so in Cho et al. (2014) and here, but some texts swap z and 1 - z.

    >>> gru_step(torch.tensor([[0.0, 99.0, 0.0]]), torch.tensor([[0.25]]), torch.zeros(3, 1))  # z = 1
    tensor([[0.2500]])
    """
    _, z, n = gates(from_input, h, weight_hh, bias_hh)  # r is already in n
    return n + z * (h - n)  # (1 - z) * n + z * h, with one product fewer


class GRU(Recurrent):
    """Gated recurrent unit: one state instead of the LSTM's two, three products instead of four.

    Arguments as `course_lib.rnn.Recurrent`.

    Source: Cho et al. (2014), "Learning Phrase Representations using RNN Encoder-Decoder", arXiv:1406.1078, equations 5
    to 8, where the reset gate acts before the product (`ResetBeforeGRU`); after it, as here, in torch and cuDNN.
    """

    mode, kernel, cell, gates = "GRU", torch.gru, torch.gru_cell, staticmethod(gru_gates)

    def loop(self, x, state, weights, mask=None, reverse=False):
        """`gru_step` at every step of x (T, B, I), from the state (h,), h (B, D); see `scan` for the rest."""
        weight_ih, weight_hh, *biases = weights
        bias_ih, bias_hh = biases or (None, None)
        step = lambda from_input, h: (gru_step(from_input, h, weight_hh, bias_hh, self.gates),)  # noqa: E731
        return scan(step, F.linear(x, weight_ih, bias_ih), state, mask, reverse)

    def gate_values(self, x):
        """What goes on inside at each step of x (B, T, I): a dict of "r", "z", "n", "h", each (B, T, D)."""
        h = zero_state(self, x)
        weight_ih, weight_hh, *biases = self.all_weights[0]
        bias_ih, bias_hh = biases or (None, None)
        steps = []
        for from_input in F.linear(x, weight_ih, bias_ih).unbind(1):  # (B, 3 D) each
            gates = self.gates(from_input, h, weight_hh, bias_hh)
            h = gru_step(from_input, h, weight_hh, bias_hh, self.gates)
            steps.append((*gates, h))
        return dict(zip("rznh", (torch.stack(part, 1) for part in zip(*steps, strict=True)), strict=True))


class ResetBeforeGRU(GRU):
    """The GRU of the paper, whose reset gate acts before the product. No kernel computes it, so it has only "loop"."""

    backends, gates = ("loop",), staticmethod(gru_gates_reset_before)

    def forward(self, x, state=None, lengths=None, backend="loop"):
        """As `GRU`, by the loop."""
        return super().forward(x, state, lengths, backend)

    def step(self, x, state=None, backend="loop"):
        """As `GRU`, by the equation."""
        return super().step(x, state, backend)


def unrolled_weights(z):
    r"""A GRU's state as a weighted sum of its first state and all candidates: the weights.

    $$ h_t = \sum_{i=0}^{t} w_{ti} \odot n_i, \quad w_{ti} = (1 - z_i) \odot \prod_{j=i+1}^{t} z_j, \quad
       w_{t0} = \prod_{j=1}^{t} z_j, \quad n_0 = h_0 $$

    Each unit has its own weights; from 0 to t they sum to 1. z is (B, T, D), z[:, 0] that of step 1; the result
    (B, T, T + 1, D) holds w_ti at [:, t - 1, i], and 0 for i > t.

    >>> unrolled_weights(torch.tensor([0.5, 0.25]).view(1, 2, 1)).squeeze()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.1250, 0.1250, 0.7500]])
    """
    check_tensor("z", z, ("B", "T", "D"))
    B, T, D = z.shape
    weights = z.new_zeros(B, 1, T + 1, D)
    weights[:, 0, 0] = 1  # before the first step all that is there is h_0
    rows = []
    for t in range(T):
        weights = weights * z[:, t, None, None]
        weights[:, 0, t + 1] = 1 - z[:, t]
        rows.append(weights)
    return torch.cat(rows, 1)


def zero_state(layer, x):
    """(B, D) zeros for the inputs x (B, T, I) of a layer whose gates are looked at: one layer in one direction."""
    if len(layer.all_weights) > 1:
        raise ValueError(f"gate_values needs one layer in one direction, got {layer}")
    layer._check_input(x, ("B", "T", layer.input_size))
    return x.new_zeros(len(x), layer.hidden_size)
