r"""Recurrent networks: one small function, applied again at every step to its own result.

Read `rnn_step`, the equation; `scan`, the loop; `rnn_loop`, both together; then `RNN`, a layer with the parameters of
torch.nn.RNN that can run through them in two ways, equal in value and gradient:

    backend="loop"    the equation at each step, in Python
    backend="fused"   torch's kernel (cuDNN on a GPU), the default

`Recurrent` is what `RNN` shares with the `LSTM` and the `GRU` of `course_lib.lstm_gru`: layers, directions, lengths.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from course_lib.functional import dropout
from course_lib.text import length_mask
from course_lib.utils.validate import check_choice, check_probability, check_sizes, check_tensor, dtype_of

NONLINEARITIES = {"tanh": torch.tanh, "relu": torch.relu}


def rnn_step(from_input, h, weight_hh, nonlinearity="tanh"):
    r"""One step of the Elman network: a new state from the input and the state before.

    $$ h_t = \tanh(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}) $$

    Args:
        from_input: (B, D) what the input and the biases add, $x_t W_{ih}^\top + b_{ih} + b_{hh}$.
        h: (B, D) the state before; the new one has the same shape and is also the output.

    >>> x, h, weight_ih = torch.tensor([[2.0, 1.0]]), torch.tensor([[0.5]]), torch.tensor([[0.1, 0.2]])
    >>> rnn_step(F.linear(x, weight_ih), h, weight_hh=torch.tensor([[0.6]]))  # tanh(2 * 0.1 + 1 * 0.2 + 0.5 * 0.6)
    tensor([[0.6044]])
    """
    activation = NONLINEARITIES[nonlinearity]
    return activation(torch.addmm(from_input, h, weight_hh.t()))  # from_input + h @ weight_hh.t(), in one call


def scan(step, inputs, state, mask=None, reverse=False):
    """Apply a step again and again, each time to its own result: the loop inside every recurrent layer.

    Args:
        step: `step(inputs[t], *state) -> state`, a tuple of (B, D) tensors; the first is the output.
        inputs: (T, B, ...) one slice a step; time comes first, so that each slice is contiguous.
        state: tuple of (B, D) tensors before the first step.
        mask: (T, B, 1) bool, True = real step; at the others the state stays and the output is 0. None: all are real.
        reverse: True goes from the last step to the first.

    Returns the output (T, B, D), output[t] belongs to inputs[t] in both directions, and the state after the last step.

    >>> running_sum = lambda x, h: (h + x,)
    >>> numbers = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    >>> scan(running_sum, numbers, (torch.zeros(1, 1),))[0].flatten()
    tensor([1., 3., 6.])
    """
    steps, outputs = inputs.unbind(0), [None] * len(inputs)
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        new = step(steps[t], *state)
        if mask is not None:
            new = tuple(torch.where(mask[t], after, before) for after, before in zip(new, state, strict=True))
        outputs[t], state = new[0], new
    output = torch.stack(outputs)
    return (output if mask is None else output * mask), state


def rnn_loop(x, state, weights, mask=None, reverse=False, nonlinearity="tanh"):
    """`rnn_step` at every step of x (T, B, I), `state` a tuple of one (B, D) tensor; the rest and the result as `scan`.

    What the input adds needs no state, so it is one product for all steps at once.
    """
    weight_ih, weight_hh, *biases = weights
    from_input = F.linear(x, weight_ih, sum(biases) if biases else None)  # (T, B, D)

    def step(from_input, h):
        return (rnn_step(from_input, h, weight_hh, nonlinearity),)

    return scan(step, from_input, state, mask, reverse)


class Recurrent(nn.RNNBase):
    """What RNN, LSTM and GRU have in common: layers, directions, lengths and two backends. Tensors are batch first.

    The parameters are torch's, by name and shape, so a `state_dict` of torch.nn.RNN, LSTM or GRU loads as it is. A
    subclass gives `loop`, its equations over time for one layer in one direction; `kernel`, torch's function for whole
    stacks; and `cell`, torch's function for one step.

    Args:
        input_size, hidden_size: I and D.
        num_layers: N; each layer reads the states of the one below.
        bias: False leaves all biases out.
        dropout: dropout probability between layers.
        bidirectional: True runs a second network from the end to the beginning; outputs stand side by side.
    """

    backends = ("fused", "loop")

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
        check_sizes(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_probability(dropout=dropout)
        options = {"bias": bias, "dropout": dropout, "bidirectional": bidirectional, "device": device, "dtype": dtype}
        super().__init__(self.mode, input_size, hidden_size, num_layers, batch_first=True, **options)

    def forward(self, x, state=None, lengths=None, backend="fused"):
        """Run the layer, or the stack of layers, over a batch of sequences.

        Args:
            x: (B, T, I) inputs.
            state: (N * directions, B, D) the state before the first step, for the LSTM a pair (h, c) of them; layer
                by layer, forward before backward. None is zeros.
            lengths: (B,) how many steps of each sequence are real, from 1 to T; they come first. None: all are.
            backend: "fused" or "loop". They agree to rounding, forward and backward; dropout on a GPU differs.

        Returns:
            output: (B, T, directions * D) states of the top layer, forward and backward side by side; 0 at padding.
            state: like `state`: after each sequence's own last step, backward after its first.
        """
        check_choice("backend", backend, self.backends)
        self._check_input(x, ("B", "T", self.input_size))
        state, lengths = self._checked_state(x, state), _checked_lengths(x, lengths)
        if backend == "fused" and torch.compiler.is_compiling() and self._kernel_defies_compiler(x, lengths):
            backend = "loop"
        run = self._run_kernel if backend == "fused" else self._run_loop
        if backend == "fused" and (x.is_cuda or not self.training or self.dropout == 0):
            x, state = run(x, state, self.all_weights, lengths)  # the kernel takes all layers in one call
            return x, as_state(state)
        directions, states = 2 if self.bidirectional else 1, []
        for layer in range(self.num_layers):
            if layer > 0:
                x = dropout(x, self.dropout, self.training)
            rows = slice(layer * directions, (layer + 1) * directions)
            x, after = run(x, [part[rows] for part in state], self.all_weights[rows], lengths)
            states.append(after)
        return x, as_state([torch.cat(parts) for parts in zip(*states, strict=True)])

    def step(self, x, state=None, backend="fused"):
        """Take one step in time, x (B, I): what a decoder needs, whose next input is made from its output.

        Gives the new state of the top layer, (B, D), and the state of all layers, in the form that `forward` has.
        """
        if self.bidirectional:
            raise ValueError("a bidirectional layer has no single step: its backward half starts at the end")
        check_choice("backend", backend, self.backends)
        self._check_input(x, ("B", self.input_size))
        state, new = self._checked_state(x, state), []
        for layer, weights in enumerate(self.all_weights):
            if layer > 0:
                x = dropout(x, self.dropout, self.training)
            before = tuple(part[layer] for part in state)  # (B, D) each
            if backend == "fused":
                new.append(as_parts(self.cell(x, as_state(before), *weights)))
            else:
                new.append(self.loop(x.unsqueeze(0), before, weights)[1])
            x = new[-1][0]
        return x, as_state([torch.stack(parts) for parts in zip(*new, strict=True)])

    def zero_state(self, batch_size, like=None):
        """The state before the first step, as `forward` takes it; device and dtype as the weights, or as `like`."""
        shape = (len(self.all_weights), batch_size, self.hidden_size)
        zeros = (self.weight_ih_l0 if like is None else like).new_zeros(shape)
        return (zeros, zeros) if self.mode == "LSTM" else zeros

    def _run_loop(self, x, state, weights, lengths):
        """One layer by the loop: one direction, or both side by side."""
        x = x.transpose(0, 1).contiguous()  # (T, B, I)
        mask = None if lengths is None else length_mask(lengths, len(x)).t().unsqueeze(2).to(x.device)  # (T, B, 1)
        outputs, states = [], []
        for direction, own in enumerate(weights):
            before = tuple(part[direction] for part in state)
            output, after = self.loop(x, before, own, mask, reverse=direction == 1)
            outputs.append(output)
            states.append(after)
        return torch.cat(outputs, -1).transpose(0, 1), [torch.stack(parts) for parts in zip(*states, strict=True)]

    def _run_kernel(self, x, state, weights, lengths):
        """One or more layers by torch's kernel; sequences of unequal lengths are packed for it."""
        flat, num_layers = [weight for own in weights for weight in own], len(weights) // (1 + self.bidirectional)
        options = (flat, self.bias, num_layers, self.dropout if num_layers > 1 else 0.0, self.training)
        if lengths is None:
            output, *state = self.kernel(x, as_state(state), *options, self.bidirectional, True)
            return output, state
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        state = [part.index_select(1, packed.sorted_indices) for part in state]
        data, *state = self.kernel(packed.data, packed.batch_sizes, as_state(state), *options, self.bidirectional)
        packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        output, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        return output, [part.index_select(1, packed.unsorted_indices) for part in state]

    def _kernel_defies_compiler(self, x, lengths):
        """torch.compile knows no packed sequences; of the LSTM's kernel, it takes the one without a backward pass."""
        return lengths is not None or (self.mode == "LSTM" and not x.requires_grad and torch.is_grad_enabled())

    def _check_input(self, x, shape):
        check_tensor("x", x, shape, dtype_of(self.weight_ih_l0), like=self.weight_ih_l0)
        if x.numel() == 0:
            raise ValueError(f"x has shape {tuple(x.shape)}: an empty batch or no steps")

    def _checked_state(self, x, state):
        """The state as a list of tensors, for the LSTM two; zeros if it is None."""
        zeros = as_parts(self.zero_state(len(x), like=x))
        if state is None:
            return zeros
        state, shape = as_parts(state), tuple(zeros[0].shape)
        if len(state) != len(zeros):
            form = "a pair (h, c) of tensors" if self.mode == "LSTM" else "one tensor"
            raise ValueError(f"state must be {form} {shape}, got {', '.join(type(part).__name__ for part in state)}")
        for part in state:
            check_tensor("state", part, shape, dtype_of(x), like=x)
        return state

    def extra_repr(self):
        """What the constructor was given; batch_first, which torch adds, is always so."""
        return super().extra_repr().replace(", batch_first=True", "")


class RNN(Recurrent):
    """Elman's recurrent network: the same weights serve every step, so the layer takes sequences of any length.

    Arguments as `Recurrent`, and `nonlinearity`, "tanh" or "relu".

    >>> layer = RNN(input_size=3, hidden_size=5, num_layers=2)
    >>> output, h_n = layer(torch.zeros(4, 7, 3))
    >>> output.shape, h_n.shape
    (torch.Size([4, 7, 5]), torch.Size([2, 4, 5]))
    >>> _ = layer.load_state_dict(torch.nn.RNN(3, 5, num_layers=2).state_dict())

    Source: Elman (1990), "Finding Structure in Time", figure 2; two directions: Schuster and Paliwal (1997),
    "Bidirectional Recurrent Neural Networks", section II.
    """

    def __init__(self, input_size, hidden_size, num_layers=1, *, nonlinearity="tanh", **options):
        check_choice("nonlinearity", nonlinearity, NONLINEARITIES)
        self.mode, self.nonlinearity = f"RNN_{nonlinearity.upper()}", nonlinearity
        super().__init__(input_size, hidden_size, num_layers, **options)

    def loop(self, x, state, weights, mask=None, reverse=False):
        """One layer in one direction, see `rnn_loop`."""
        return rnn_loop(x, state, weights, mask, reverse, self.nonlinearity)

    @property
    def kernel(self):
        """The function of torch for a whole stack."""
        return torch.rnn_tanh if self.nonlinearity == "tanh" else torch.rnn_relu

    @property
    def cell(self):
        """The function of torch for one step."""
        return torch.rnn_tanh_cell if self.nonlinearity == "tanh" else torch.rnn_relu_cell

    def extra_repr(self):
        """As `Recurrent`, and the nonlinearity if it is not tanh."""
        return super().extra_repr() + (f", nonlinearity={self.nonlinearity!r}" if self.nonlinearity != "tanh" else "")


# --- the forms of a state -------------------------------------------------------


def as_parts(state):
    """The state of a layer as a list of tensors: [h], for the LSTM [h, c]."""
    return list(state) if isinstance(state, tuple | list) else [state]


def as_state(parts):
    """The inverse of `as_parts`: h, for the LSTM the pair (h, c)."""
    return tuple(parts) if len(parts) > 1 else parts[0]


def by_row(state):
    """A layer's state, h (N, B, D) or (h, c), as a dict with the batch first: what decoding keeps and reorders."""
    return {name: part.transpose(0, 1) for name, part in zip("hc", as_parts(state), strict=False)}


def by_layer(state):
    """The inverse of `by_row`; entries under other names are left alone."""
    return as_state([state[name].transpose(0, 1).contiguous() for name in "hc" if name in state])


def _checked_lengths(x, lengths):
    """(B,) int64, or None where nothing is padding: torch is faster then."""
    if lengths is None:
        return None
    (batch, steps), given = x.shape[:2], torch.as_tensor(lengths)
    if given.shape != (batch,) or given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(f"lengths must be {batch} whole numbers, got {given.dtype} of shape {tuple(given.shape)}")
    if torch.compiler.is_compiling():
        return given.long()
    low, high = given.aminmax()
    if low < 1 or high > steps:
        raise ValueError(f"lengths must be from 1 to T = {steps}, got {low.item()} to {high.item()}")
    return None if low == steps else given.long()
