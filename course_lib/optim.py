r"""The optimizer's side of training: how large each step is, and on what it acts.

Read the schedules first (`linear`, `cosine`, `noam`, `inverse_sqrt`, `constant`): plain functions from a step's number,
counted from 0, to a factor of the learning rate, for torch's LambdaLR:

    schedule = functools.partial(cosine, warmup=100, total=2000)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)    # scheduler.step() after each optimizer.step()

Then `RAdam`, Adam with a warm-up of its own, and `rectification`, which is that warm-up; `clip_grad_norm` and
`decay_groups`.

Step 0 already gets 1 / warmup of the learning rate, so no step is lost; the last step of the warm-up has all of it.
`transformers` counts one less: its first step has the factor 0 and changes nothing.

Notebook: 11.
"""

import math

import torch

# --- schedules: step -> factor --------------------------------------------------


def linear(step, warmup, total):
    r"""Rise on a line for `warmup` steps, then fall on a line to 0 at step `total`.

    $$ f(s) = \begin{cases} (s + 1) / w & s < w \\ (n - s) / (n - w) & w \le s < n \\ 0 & s \ge n \end{cases} $$

    with w = warmup, n = total.

    Args:
        step: number of the optimizer step, from 0.
        warmup: steps of the rise; 0: none.
        total: steps of the whole training; later ones get 0.

    Returns:
        float from 0 to 1.

    Raises:
        ValueError: if `step` is negative, `total` below 1 or `warmup` outside 0 to `total`.

    Example:
        >>> [linear(step, warmup=2, total=6) for step in range(7)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    Source: Devlin et al. (2019), "BERT", arXiv:1810.04805, appendix A.2. Notebook: 11.
    """
    return _rise(step, warmup, total) if step < warmup else 1 - _progress(step, warmup, total)


def cosine(step, warmup, total, floor=0.0):
    r"""Rise on a line for `warmup` steps, then fall along half a cosine to `floor` at step `total`.

    $$ f(s) = \begin{cases} (s + 1) / w & s < w \\
       c + (1 - c) \tfrac12 \big(1 + \cos \pi \tfrac{s - w}{n - w}\big) & w \le s < n \\ c & s \ge n \end{cases} $$

    with w = warmup, n = total, c = floor.

    Args:
        step: number of the optimizer step, from 0.
        warmup: steps of the rise; 0: none.
        total: steps of the whole training; later ones get `floor`.
        floor: factor at the end, from 0 to 1.

    Returns:
        float from 0 to 1.

    Raises:
        ValueError: as `linear`, and if `floor` is outside 0 to 1.

    Example:
        >>> [round(cosine(step, warmup=2, total=6, floor=0.1), 3) for step in range(7)]
        [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]

    Source: Loshchilov and Hutter (2017), "SGDR", arXiv:1608.03983, equation 5, one period. Notebook: 11.
    """
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be from 0 to 1, got {floor}")
    if step < warmup:
        return _rise(step, warmup, total)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * _progress(step, warmup, total)))


def noam(step, d_model, warmup):
    r"""The original Transformer's learning rate: a linear rise, then the inverse square root of the step.

    $$ \eta(s) = D^{-1/2} \min\big((s + 1)^{-1/2},\ (s + 1)\, w^{-3/2}\big) $$

    with w = warmup. It is a learning rate, not a share of one: give the optimizer lr=1. Its highest value is
    $(D w)^{-1/2}$, at the last step of the warm-up.

    Args:
        step: number of the optimizer step, from 0.
        d_model: D.
        warmup: steps of the rise; 0: none, which is the same as 1.

    Returns:
        float, the learning rate.

    Raises:
        ValueError: if `step` or `warmup` is negative, or D below 1.

    Example:
        >>> [noam(step, d_model=4, warmup=4) for step in (0, 1, 3, 15)]
        [0.0625, 0.125, 0.25, 0.125]

    Source: Vaswani et al. (2017), arXiv:1706.03762, equation 3, whose step is our step + 1; "Noam" after the author of
    its first code. Notebook: 11.
    """
    if d_model < 1:
        raise ValueError(f"d_model must be at least 1, got {d_model}")
    return (d_model * max(warmup, 1)) ** -0.5 * inverse_sqrt(step, warmup)


def inverse_sqrt(step, warmup):
    r"""Rise on a line for `warmup` steps, then fall as the inverse square root of the step; it has no end.

    $$ f(s) = \min\big((s + 1) / w,\ \sqrt{w / (s + 1)}\big) $$

    with w = warmup. `noam` is the same curve at its own height.

    Args:
        step: number of the optimizer step, from 0.
        warmup: steps of the rise; 0: none, which is the same as 1.

    Returns:
        float from 0 to 1.

    Raises:
        ValueError: if `step` or `warmup` is negative.

    Example:
        >>> [inverse_sqrt(step, warmup=4) for step in (0, 1, 3, 15)]
        [0.25, 0.5, 1.0, 0.5]

    Source: Vaswani et al. (2017), arXiv:1706.03762, equation 3. Notebook: 11.
    """
    _check_steps(step, warmup)
    peak = max(warmup, 1)
    return min((step + 1) / peak, (peak / (step + 1)) ** 0.5)


def constant(step, warmup):
    r"""Rise on a line for `warmup` steps, then stay: $\min((s + 1) / w, 1)$.

    Args:
        step: number of the optimizer step, from 0.
        warmup: steps of the rise; 0: none.

    Returns:
        float from 0 to 1.

    Raises:
        ValueError: if `step` or `warmup` is negative.

    Example:
        >>> [constant(step, warmup=4) for step in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]

    Source: Goyal et al. (2017), "Accurate, Large Minibatch SGD", arXiv:1706.02677, section 2.2 (gradual warm-up).
    Notebook: 11.
    """
    return _rise(step, warmup)


# --- optimizer ------------------------------------------------------------------


def rectification(step, beta2):
    r"""RAdam's factor r for one step: how far the adaptive learning rate may be trusted.

    $$ \rho_\infty = \frac{2}{1 - \beta_2} - 1, \qquad
       \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \qquad
       r_t = \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\,\rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\,\rho_t}} $$

    $\rho_t$ says how many equally weighted squared gradients the moving average is worth. Up to 5 of them are too few:
    r is 0, and RAdam takes a step without the adaptive rate.

    Args:
        step: t, from 1: the number of gradients seen, as in the paper.
        beta2: decay of the squared gradients, in [0, 1).

    Returns:
        float from 0 to 1, growing with t; 0 at every step if beta2 <= 2/3, since then $\rho_\infty \le 5$.

    Raises:
        ValueError: if `step` is below 1 or beta2 outside [0, 1).

    Example:
        >>> [round(rectification(step, 0.999), 3) for step in (5, 6, 100, 1000, 10000)]
        [0.0, 0.026, 0.215, 0.645, 1.0]

    Source: Liu et al. (2020), arXiv:1908.03265, section 4 and algorithm 2. Differs: the paper rectifies from
    $\rho_t > 4$ on; 5 is the bound in the authors' code and in torch. Notebook: 11.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1 (gradients seen), got {step}")
    if not 0 <= beta2 < 1:
        raise ValueError(f"beta2 must be in [0, 1), got {beta2}")
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 5:
        return 0.0
    return ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5


class RAdam(torch.optim.Optimizer):
    r"""Adam whose adaptive learning rate is held back while its estimate is young.

    $$ m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2, \qquad
       \hat m_t = \frac{m_t}{1 - \beta_1^t} $$
    $$ \theta \leftarrow \theta - \eta \cdot
       \begin{cases} r_t\, \hat m_t \sqrt{1 - \beta_2^t} \,/\, (\sqrt{v_t} + \epsilon) & r_t > 0 \\
       \hat m_t & \text{otherwise} \end{cases} $$

    with r of `rectification`. The first steps are those of gradient descent with momentum: their size depends on the
    gradient's, which Adam's does not. The same numbers as torch.optim.RAdam, which can read its state and be read.

    Args:
        params: iterable of parameters, or of dicts that make groups.
        lr: eta, the learning rate.
        betas: decay of the mean and of the squares, both in [0, 1).
        eps: added to the root of v.
        weight_decay: times the parameter, added to its gradient (an L2 penalty, torch.optim.RAdam's default; not
            AdamW's decay).

    Raises:
        ValueError: if lr, eps or weight_decay is negative, or a beta outside [0, 1).

    Example:
        >>> w = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = RAdam([w], lr=0.1)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     w.square().sum().backward()
        ...     optimizer.step()
        >>> w.item() < 0.5
        True

    Source: Liu et al. (2020), "On the Variance of the Adaptive Learning Rate and Beyond", arXiv:1908.03265, algorithm
    2. Differs: as `rectification`; epsilon and the penalty, which the algorithm leaves out, as in torch. Notebook: 11.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Change every parameter that has a gradient.

        Args:
            closure: function that computes the loss and its gradients again, or None.

        Returns:
            What the closure returns, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter, group):
        """One step of one parameter: algorithm 2 of the paper."""
        gradient, state = parameter.grad, self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * parameter
        beta1, beta2 = group["betas"]
        state["step"] += 1
        step, m, v = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
        m.mul_(beta1).add_(gradient, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = group["lr"] / (1 - beta1**step)
        r = rectification(step, beta2)
        if r > 0:
            parameter.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-size * r * (1 - beta2**step) ** 0.5)
        else:
            parameter.add_(m, alpha=-size)


# --- what else is done to a step --------------------------------------------------


def clip_grad_norm(parameters, max_norm):
    r"""Shrink the whole gradient, if it is longer than `max_norm`, without turning it.

    $$ g \leftarrow g \cdot \min\Big(1, \frac{\text{max\_norm}}{\lVert g \rVert + 10^{-6}}\Big), \qquad
       \lVert g \rVert = \sqrt{\sum_p \lVert g_p \rVert^2} $$

    All parameters count as one vector. Call it once a step: after the gradients of all micro-batches are added up and
    divided (and unscaled, with a GradScaler), before `optimizer.step`. The same numbers as
    torch.nn.utils.clip_grad_norm_, which lets a gradient that is not finite pass unless told otherwise.

    Args:
        parameters: iterable of tensors; their `.grad` are changed in place, those without are left out.
        max_norm: largest 2-norm of all gradients together, above 0; infinity only measures.

    Returns:
        tensor (), the norm before clipping: the one to log. 0 if there are no gradients.

    Raises:
        ValueError: if max_norm is not above 0.
        FloatingPointError: if a gradient is not finite: names the places of such parameters. No gradient is changed.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> w.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm([w], max_norm=1.0), w.grad
        (tensor(5.), tensor([0.6000, 0.8000]))

    Source: Pascanu, Mikolov and Bengio (2013), arXiv:1211.5063, algorithm 1. Differs: 1e-6 is added, as in torch.
    Notebook: 11.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm()
    if not norm.isfinite():
        places = [i for i, p in enumerate(parameters) if p.grad is not None and not p.grad.isfinite().all()]
        raise FloatingPointError(
            f"the gradient's norm is {norm.item()}; not finite are the gradients of parameters number "
            f"{', '.join(map(str, places)) or '(none: their squares overflow)'} of {len(parameters)}, counted from 0"
        )
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


def decay_groups(model, weight_decay):
    """Two groups of parameters for AdamW: matrices decay; biases, gains of norms and ReZero's alphas do not.

    A matrix's size is free to shrink, since a norm behind it makes up for it. A gain's or bias's size is
    its meaning: pulling it to 0 fights what it has to learn.

    Args:
        model: nn.Module. Frozen parameters (without requires_grad) are left out, shared ones count once.
        weight_decay: of all tensors with at least 2 axes (embeddings too); the others get 0.

    Returns:
        list of two dicts with "params" and "weight_decay", for any optimizer of torch; a group may be empty.

    Raises:
        ValueError: if weight_decay is negative, or nothing in the model can be trained.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5))
        >>> [(len(group["params"]), group["weight_decay"]) for group in decay_groups(model, 0.1)]
        [(1, 0.1), (3, 0.0)]

    Source: Loshchilov and Hutter (2019), "Decoupled Weight Decay Regularization", arXiv:1711.05101, algorithm 2
    (AdamW); the groups are those of Brown et al.'s and later GPTs. Notebook: 11.
    """
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter that can be trained")
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


# --- shared ---------------------------------------------------------------------


def _rise(step, warmup, total=None):
    """Factor of a step during the warm-up, 1 after it; refuses what no schedule can mean."""
    _check_steps(step, warmup, total)
    return min((step + 1) / max(warmup, 1), 1.0)


def _progress(step, warmup, total):
    """Share of the way from the end of the warm-up to the end of the training, 0 to 1."""
    _check_steps(step, warmup, total)
    return 1.0 if step >= total else (step - warmup) / (total - warmup)


def _check_steps(step, warmup, total=None):
    if not step >= 0:
        raise ValueError(f"step must not be negative, got {step}")
    if not warmup >= 0:
        raise ValueError(f"warmup must not be negative, got {warmup}")
    if total is not None and not total >= max(warmup, 1):
        raise ValueError(f"total must be at least 1 and at least warmup ({warmup}), got {total}")
