r"""Recurrent networks: one small function, applied again at every step to its own result.

Read `rnn_step`, the equation; then `scan`, the loop; then `rnn_loop`, the loop written so that it is
fast; then `RNN`, a layer of the same parameters as `torch.nn.RNN` with two paths through them:

    impl="loop"    the equation at each step, in Python
    impl="fused"   torch's kernel (cuDNN on a GPU), the default

Both compute the same function and the same gradients. `Recurrent` is what `RNN` shares with the `LSTM`
and the `GRU` of `course_lib.gated`: stacking, two directions, lengths, checks of the input.

Notebooks: 03, and 04 to 06, which build on it.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from course_lib.text import length_mask


def dropout(x, p, training=True):
    r"""Set a share p of the entries to zero and enlarge the others, so that the expectation stays.

    $$ y = x \odot m / (1 - p), \quad P(m = 0) = p $$

    Args:
        x: tensor of any shape.
        p: share set to zero, from 0 to below 1.
        training: False gives x back.

    Returns:
        Tensor like x.

    Raises:
        ValueError: if p is outside [0, 1).

    Differs: `torch.nn.functional.dropout` draws with another generator on an Intel CPU than on an AMD or
    an Apple one; `keep_mask` draws the same numbers on all of them, and faster.

    Example:
        >>> dropout(torch.ones(6), 0.5, training=False)
        tensor([1., 1., 1., 1., 1., 1.])
        >>> sorted(set(dropout(torch.ones(100), 0.75).tolist()))
        [0.0, 4.0]

    Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov (2014), "Dropout", section 4.
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout must be from 0 to below 1, got {p}")
    if not training or p == 0:
        return x
    keep = keep_mask(x.shape, p, x.device).to(x.dtype)
    return x * keep.mul_(1 / (1 - p))  # scaling the constant saves a pass over x, and one in the backward pass


def keep_mask(shape, p, device=None):
    """Which entries dropout keeps: True with probability 1 - p, p to the nearest 1 / 65,536.

    Raw integers of the generator are compared with a threshold. They are the same on every processor, and one draw
    of 64 bits gives four entries.

    Args:
        shape: of the mask.
        p: share that is dropped, from 0 to below 1.
        device: where the mask shall be.

    Returns:
        bool tensor of that shape.

    Example:
        >>> keep_mask((2, 3), p=0.0).all()
        tensor(True)

    Notebook: 07.
    """
    count = torch.Size(shape).numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64, device=device).random_(-(2**63), None)
    threshold = min(round(p * 2**16), 2**16 - 1) - 2**15
    return (draws.view(torch.int16)[:count] >= threshold).view(shape)


def rnn_step(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None, nonlinearity="tanh"):
    r"""One step of the Elman network: a new state from the input and the state before.

    $$ h_t = \tanh(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}) $$

    Vectors are rows, as everywhere in torch; books with column vectors write $W_{ih} x_t$.

    Args:
        x: (B, I) the input of this step.
        h: (B, D) the state before.
        weight_ih: (D, I) from input to state.
        weight_hh: (D, D) from state to state.
        bias_ih: (D,) or None.
        bias_hh: (D,) or None. The two biases only ever occur as their sum; cuDNN has both, hence torch.
        nonlinearity: "tanh" or "relu".

    Returns:
        (B, D) the new state, which is also the output.

    Raises:
        ValueError: if the nonlinearity is unknown.

    Example:
        >>> x, h = torch.tensor([[2.0, 1.0]]), torch.tensor([[0.5]])
        >>> rnn_step(x, h, weight_ih=torch.tensor([[0.1, 0.2]]), weight_hh=torch.tensor([[0.6]]))
        tensor([[0.6044]])
        >>> torch.tanh(torch.tensor(2.0 * 0.1 + 1.0 * 0.2 + 0.5 * 0.6))
        tensor(0.6044)

    Source: Elman (1990), "Finding Structure in Time", figure 2; the letters are those of torch.nn.RNN.
    Notebook: 03.
    """
    return _activation(nonlinearity)(F.linear(x, weight_ih, bias_ih) + F.linear(h, weight_hh, bias_hh))


NONLINEARITIES = {"tanh": torch.tanh, "relu": torch.relu}


def scan(step, inputs, state, mask=None, reverse=False):
    """Apply a step again and again, each time to its own result: the loop inside every recurrent layer.

    Args:
        step: `step(inputs[t], *state) -> state`, a tuple of (B, D) tensors; the first is the output.
        inputs: (T, B, ...) one slice a step; time comes first, so that each slice is contiguous.
        state: tuple of (B, D) tensors before the first step.
        mask: (T, B, 1) bool, True = real step; at the others the state stays and the output is 0. None: all are real.
        reverse: True goes from the last step to the first.

    Returns:
        output: (T, B, D), output[t] belongs to inputs[t] in both directions.
        state: tuple of (B, D), after the last step taken.

    Example:
        >>> running_sum = lambda x, h: (h + x,)
        >>> numbers = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
        >>> scan(running_sum, numbers, (torch.zeros(1, 1),))[0].flatten()
        tensor([1., 3., 6.])
        >>> scan(running_sum, numbers, (torch.zeros(1, 1),), reverse=True)[0].flatten()
        tensor([6., 5., 3.])

    Notebook: 03.
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
    """`rnn_step` at every step. What the input adds needs no state, so it is one product for all steps at once.

    Args:
        x: (T, B, I) inputs, time first.
        state: tuple of one (B, D) tensor.
        weights: weight_ih (D, I), weight_hh (D, D) and, if there are biases, bias_ih and bias_hh (D,).
        mask: (T, B, 1) bool, True = real step, or None.
        reverse: True goes from the last step to the first.
        nonlinearity: "tanh" or "relu".

    Returns:
        output: (T, B, D); state: tuple of one (B, D) tensor.

    Notebook: 03.
    """
    weight_ih, weight_hh, *biases = weights
    from_input = F.linear(x, weight_ih, sum(biases) if biases else None)  # (T, B, D)
    activation, weight = _activation(nonlinearity), weight_hh.t()

    def step(from_input, h):
        return (activation(torch.addmm(from_input, h, weight)),)

    return scan(step, from_input, state, mask, reverse)


class Recurrent(nn.RNNBase):
    """What RNN, LSTM and GRU have in common; the parameters come from torch's own base class.

    Parameters carry torch's names and shapes: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`,
    then `_l1`, ... for higher layers and `_reverse` for the backward direction, so a `state_dict` of
    torch.nn.RNN, LSTM or GRU loads as it is. Unlike there, tensors are always batch first.

    A subclass gives `kernel`, torch's function for whole stacks; `_loop`, one layer in one direction in
    Python; and `_cell`, one step of one layer.
    """

    def forward(self, x, state=None, lengths=None, impl="fused"):
        """Run the layer, or the stack of layers, over a batch of sequences.

        Args:
            x: (B, T, I) inputs.
            state: (N * directions, B, D) the state before the first step, for the LSTM a pair (h, c) of
                them; layer by layer, forward before backward. None is zeros.
            lengths: (B,) how many steps of each sequence are real, from 1 to T; the real ones come first.
                None: all are.
            impl: "fused" or "loop". They agree to rounding, 1e-10 in float64, forward and backward.

        Returns:
            output: (B, T, directions * D) states of the top layer, forward and backward side by side; 0 at padding.
            state: like `state`: after each sequence's own last step, backward after its first.

        Raises:
            ValueError: if a shape, a dtype, a device, a length or `impl` does not fit; names what came and what
                was wanted.
        """
        _check_impl(impl)
        check_input(self, x, wanted=f"(B, T, {self.input_size})", ndim=3)
        state = _checked_state(self, x, state)
        lengths = None if lengths is None else _checked_lengths(x, lengths)
        if impl == "fused" and not self._draws_dropout(x):
            output, state = self._fused(x, state, self.all_weights, self.num_layers, self.dropout, lengths)
        else:
            output, state = self._layer_by_layer(x, state, lengths, impl)
        return output, state[0] if len(state) == 1 else tuple(state)

    def step(self, x, state=None, impl="fused"):
        """Take one step in time: what a decoder needs, whose next input is made from its output.

        Args:
            x: (B, I) the input.
            state: (N, B, D), for the LSTM a pair of them; None is zeros.
            impl: "fused" takes torch's cell, "loop" the equation.

        Returns:
            output: (B, D) the new state of the top layer.
            state: like `state`.

        Raises:
            ValueError: if the layer runs in both directions, or as `forward`.
        """
        if self.bidirectional:
            raise ValueError("a bidirectional layer has no single step: its backward half starts at the end")
        _check_impl(impl)
        check_input(self, x, wanted=f"(B, {self.input_size})", ndim=2)
        state = _checked_state(self, x, state)
        layers, new = [part.unbind(0) for part in state], []
        for layer, weights in enumerate(self.all_weights):
            if layer > 0:
                x = dropout(x, self.dropout, self.training)
            new.append(self._cell(x, [part[layer] for part in layers], weights, impl))
            x = new[-1][0]
        # A single layer, the usual decoder, is spared the copy.
        state = [torch.stack(parts) if len(parts) > 1 else parts[0].unsqueeze(0) for parts in zip(*new, strict=True)]
        return x, state[0] if len(state) == 1 else tuple(state)

    def _draws_dropout(self, x):
        """Whether dropout between layers is ours; on a GPU the kernel draws it, which is faster."""
        return self.training and self.dropout > 0 and self.num_layers > 1 and not x.is_cuda

    def _layer_by_layer(self, x, state, lengths, impl):
        """The stack in plain sight: each layer reads the output of the one below."""
        directions, states = 2 if self.bidirectional else 1, []
        for layer in range(self.num_layers):
            rows = slice(layer * directions, (layer + 1) * directions)
            if layer > 0:
                x = dropout(x, self.dropout, self.training)
            before, weights = [part[rows] for part in state], self.all_weights[rows]
            if impl == "fused":
                x, after = self._fused(x, before, weights, 1, 0.0, lengths)
            else:
                x, after = self._looped(x, before, weights, lengths)
            states.append(after)
        return x, [torch.cat(parts) for parts in zip(*states, strict=True)]

    def _looped(self, x, state, weights, lengths):
        """One layer by the loop: one direction, or both side by side."""
        x = x.transpose(0, 1).contiguous()  # (T, B, I)
        mask = None if lengths is None else length_mask(lengths, len(x)).t().unsqueeze(2).to(x.device)  # (T, B, 1)
        outputs, states = [], []
        for direction, own in enumerate(weights):
            before = tuple(part[direction] for part in state)
            output, after = self._loop(x, before, own, mask, reverse=direction == 1)
            outputs.append(output)
            states.append(after)
        return torch.cat(outputs, -1).transpose(0, 1), [torch.stack(parts) for parts in zip(*states, strict=True)]

    def _fused(self, x, state, weights, num_layers, p, lengths):
        """One or more layers by torch's kernel; sequences of unequal lengths are packed for it."""
        flat = [weight for own in weights for weight in own]
        options = (flat, self.bias, num_layers, p, self.training, self.bidirectional)
        if lengths is None:
            output, *state = self.kernel(x, self._hidden(state), *options, True)
            return output, state
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        state = [part.index_select(1, packed.sorted_indices) for part in state]
        data, *state = self.kernel(packed.data, packed.batch_sizes, self._hidden(state), *options)
        packed = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        output, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        return output, [part.index_select(1, packed.unsorted_indices) for part in state]

    def _hidden(self, state):
        """The state in the form that torch's kernels want: a pair for the LSTM, else a tensor."""
        return state if len(state) > 1 else state[0]


class RNN(Recurrent):
    r"""Elman's recurrent network, in one or more layers and one or two directions.

    $$ h_t = \tanh(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}) $$

    The same weights serve every step, so the layer takes sequences of any length.

    Args:
        input_size: I, width of the input.
        hidden_size: D, width of the state.
        num_layers: N, layers; each reads the states of the one below.
        nonlinearity: "tanh" or "relu".
        bias: False leaves both biases out.
        dropout: share of the entries set to zero between layers, in training; see `dropout`. On a GPU the
            fused path lets the kernel draw the masks.
        bidirectional: True runs a second network from the end to the beginning; outputs stand side by side.
        device: where the parameters are made.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, `dropout` outside [0, 1) or `nonlinearity` unknown.

    Fast path: `impl="fused"` in the call, the default: torch's kernel on these parameters, bit-equal to torch.nn.RNN.

    Example:
        >>> layer = RNN(input_size=3, hidden_size=5, num_layers=2)
        >>> output, h_n = layer(torch.zeros(4, 7, 3))
        >>> output.shape, h_n.shape
        (torch.Size([4, 7, 5]), torch.Size([2, 4, 5]))
        >>> _ = layer.load_state_dict(torch.nn.RNN(3, 5, num_layers=2).state_dict())

    Source: Elman (1990), "Finding Structure in Time"; two directions: Schuster and Paliwal (1997),
    "Bidirectional Recurrent Neural Networks", section II. Notebook: 03.
    """

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        *,
        nonlinearity="tanh",
        bias=True,
        dropout=0.0,
        bidirectional=False,
        device=None,
        dtype=None,
    ):
        _activation(nonlinearity)  # refuses what is unknown
        check_sizes(input_size, hidden_size, num_layers, dropout)
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(
            mode, input_size, hidden_size, num_layers, bias, True, dropout, bidirectional, device=device, dtype=dtype
        )
        self.nonlinearity = nonlinearity

    @property
    def kernel(self):
        """The function of torch that runs a whole stack."""
        return torch.rnn_tanh if self.nonlinearity == "tanh" else torch.rnn_relu

    def _loop(self, x, state, weights, mask, reverse):
        return rnn_loop(x, state, weights, mask, reverse, self.nonlinearity)

    def _cell(self, x, state, weights, impl):
        if impl == "loop":
            return (rnn_step(x, *state, *weights, nonlinearity=self.nonlinearity),)
        cell = torch.rnn_tanh_cell if self.nonlinearity == "tanh" else torch.rnn_relu_cell
        return (cell(x, *state, *weights),)


# --- checks ---------------------------------------------------------------------


def _activation(nonlinearity):
    """The function of that name."""
    if nonlinearity not in NONLINEARITIES:
        raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
    return NONLINEARITIES[nonlinearity]


def check_sizes(input_size, hidden_size, num_layers, dropout):
    """Refuse sizes that make no layer.

    Raises:
        ValueError: if a size is not an integer from 1 on, or dropout is outside [0, 1) or has no place to act.
    """
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {size!r}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be from 0 to below 1, got {dropout}")
    if dropout > 0 and num_layers == 1:
        raise ValueError(f"dropout={dropout} acts between layers, but num_layers is 1")


def _check_impl(impl):
    if impl not in ("fused", "loop"):
        raise ValueError(f"impl must be 'fused' or 'loop', got {impl!r}")


def check_input(layer, x, wanted, ndim):
    """Refuse an input that the layer cannot read.

    Raises:
        ValueError: if x is no tensor of `ndim` axes and width I, is empty, or has another dtype or device.
    """
    weight = layer.weight_ih_l0
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"x must be a tensor of shape {wanted}, got {type(x).__name__}")
    if x.ndim != ndim or x.shape[-1] != layer.input_size:
        raise ValueError(f"x has shape {tuple(x.shape)}, wanted {wanted}")
    if x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: an empty batch or no steps; wanted {wanted}, all at least 1")
    _check_kind("x", x, weight)


def _check_kind(name, tensor, like):
    """Device and dtype of x must be those of the weights, those of the state must be those of x."""
    other = "x" if name == "state" else "the layer's weights"
    if tensor.device != like.device:
        raise ValueError(f"{name} is on {tensor.device}, {other} on {like.device}")
    if tensor.dtype != like.dtype and not torch.is_autocast_enabled(tensor.device.type):
        raise ValueError(f"{name} is {tensor.dtype}, {other} {like.dtype}")


def _checked_state(layer, x, state):
    """The state as a list of tensors: one, for the LSTM two; zeros if it is None."""
    parts = 2 if layer.mode == "LSTM" else 1
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), x.shape[0], layer.hidden_size)
    if state is None:
        return [torch.zeros(shape, dtype=x.dtype, device=x.device)] * parts
    given = list(state) if isinstance(state, tuple | list) else [state]
    if len(given) != parts or not all(isinstance(part, torch.Tensor) for part in given):
        form = f"a pair (h, c) of tensors {shape}" if parts == 2 else f"one tensor {shape}"
        raise ValueError(f"state must be {form}, got {', '.join(type(part).__name__ for part in given) or 'nothing'}")
    for part in given:
        if part.shape != shape:
            raise ValueError(f"state has shape {tuple(part.shape)}, wanted (layers * directions, B, D) = {shape}")
        _check_kind("state", part, x)
    return given


def _checked_lengths(x, lengths):
    """The lengths as an int64 tensor."""
    batch, steps = x.shape[:2]
    lengths = torch.as_tensor(lengths)
    if lengths.is_floating_point() or lengths.dtype == torch.bool or lengths.shape != (batch,):
        raise ValueError(f"lengths must be {batch} integers, got {tuple(lengths.shape)} of {lengths.dtype}")
    if lengths.min() < 1 or lengths.max() > steps:
        raise ValueError(f"lengths must be from 1 to T = {steps}, got {lengths.min().item()} to {lengths.max().item()}")
    return lengths.long()
