r"""The optimizer's side of training: how large each step is, and on what it acts.

The schedules are plain functions from a step's number, counted from 0, to a factor of the learning rate, for torch's
LambdaLR:

    schedule = functools.partial(cosine_schedule, warmup=100, total=2000)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)    # scheduler.step() after each optimizer.step()

Step 0 already gets 1 / warmup of the learning rate, so no step is lost; the last step of the warm-up has all of it.
`transformers` counts one less: its first step has the factor 0 and changes nothing. warmup=0 is none.
"""

import math

import torch

from course_lib.utils.validate import check_length, check_positive, check_sizes

# --- schedules: step -> factor --------------------------------------------------


def linear_schedule(step, warmup, total):
    """Rise on a line for `warmup` steps, then fall on a line to 0 at step `total` (BERT: Devlin et al. 2019).

    >>> [linear_schedule(step, warmup=2, total=6) for step in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    check_steps(step, warmup, total)
    if step < warmup:
        return (step + 1) / warmup
    return 1 - decay_progress(step, warmup, total)


def cosine_schedule(step, warmup, total, floor=0.0):
    """Rise on a line for `warmup` steps, then fall along half a cosine to `floor` at step `total`, and stay.

    >>> [round(cosine_schedule(step, warmup=2, total=6, floor=0.1), 3) for step in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]

    Source: Loshchilov and Hutter (2017), "SGDR", arXiv:1608.03983, equation 5, one period.
    """
    check_steps(step, warmup, total)
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be from 0 to 1, got {floor}")
    if step < warmup:
        return (step + 1) / warmup
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * decay_progress(step, warmup, total)))


def decay_progress(step, warmup, total):
    """How far a step is from the end of the warm-up (0) to the end of the training (1, also later)."""
    return 1.0 if step >= total else (step - warmup) / (total - warmup)


def inverse_sqrt_schedule(step, warmup):
    """Rise on a line for `warmup` steps, then fall as the inverse square root of the step; it has no end."""
    check_steps(step, warmup)
    peak = max(warmup, 1)
    return min((step + 1) / peak, (peak / (step + 1)) ** 0.5)


def noam_schedule(step, d_model, warmup):
    r"""The original Transformer's learning rate: `inverse_sqrt_schedule`, at its own height.

    $$ \eta(s) = D^{-1/2} \min\big((s + 1)^{-1/2},\ (s + 1)\, w^{-3/2}\big) $$

    with w = warmup: a learning rate, not a factor of one. Give the optimizer lr=1. The highest is $(D w)^{-1/2}$.

    Source: Vaswani et al. (2017), arXiv:1706.03762, equation 3, whose step is our step + 1.
    """
    check_sizes(d_model=d_model)
    return (d_model * max(warmup, 1)) ** -0.5 * inverse_sqrt_schedule(step, warmup)


def constant_schedule(step, warmup):
    """Rise on a line for `warmup` steps, then stay (Goyal et al. 2017, arXiv:1706.02677, section 2.2)."""
    check_steps(step, warmup)
    return min((step + 1) / max(warmup, 1), 1.0)


def check_steps(step, warmup, total=None):
    """Refuse what no schedule can mean."""
    check_positive(zero=True, step=step, warmup=warmup, total=0 if total is None else total)
    if total is not None and total < max(warmup, 1):
        raise ValueError(f"total must be at least 1 and at least warmup ({warmup}), got {total}")


# --- RAdam ------------------------------------------------------------------------


def rectification(step, beta2):
    r"""RAdam's factor r for one step: how far the adaptive learning rate may be trusted, from 0 to 1, growing with t.

    `step` is t, from 1. $\rho_t$ says how many equally weighted squared gradients the moving average is worth. Up to 5
    are too few: r is 0, and RAdam takes a step without the adaptive rate (at every step if beta2 <= 2/3).

    >>> [round(rectification(step, 0.999), 3) for step in (5, 6, 100, 1000, 10000)]
    [0.0, 0.026, 0.215, 0.645, 1.0]

    Source: Liu et al. (2020), arXiv:1908.03265, section 4 and algorithm 2. Differs: the paper rectifies from
    $\rho_t > 4$ on; 5 is the bound in the authors' code and in torch.
    """
    check_sizes(step=step)
    check_betas(beta2)
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 5:
        return 0.0
    return ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5


def radam_update(parameter, gradient, m, v, step, lr, betas, eps):
    """One step of RAdam for one parameter; changes parameter, m and v in place. `step` counts from 1.

    Source: Liu et al. (2020), arXiv:1908.03265, algorithm 2; epsilon, which it leaves out, as in torch.
    """
    beta1, beta2 = betas
    m.mul_(beta1).add_(gradient, alpha=1 - beta1)  # mean of the gradients
    v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)  # mean of their squares
    size = lr / (1 - beta1**step)
    r = rectification(step, beta2)
    if r > 0:  # as Adam, rectified
        parameter.addcdiv_(m, v.sqrt().add_(eps), value=-size * r * (1 - beta2**step) ** 0.5)
    else:  # gradient descent with momentum
        parameter.add_(m, alpha=-size)


class RAdam(torch.optim.Optimizer):
    """Adam whose adaptive learning rate is held back while its estimate is young; each step is `radam_update`.

    The first steps are those of gradient descent with momentum: their size depends on the gradient's, which Adam's
    does not. The same results as torch.optim.RAdam, which can read its state and be read; `weight_decay` is an L2
    penalty as there, not AdamW's decay.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        check_positive(zero=True, lr=lr, eps=eps, weight_decay=weight_decay)
        check_length("betas", betas, 2)
        check_betas(*betas)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Change every parameter that has a gradient; a closure computes the loss and its gradients again."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient, state = parameter.grad, self.state[parameter]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
                if group["weight_decay"]:
                    gradient = gradient + group["weight_decay"] * parameter
                state["step"] += 1
                m, v, step = state["exp_avg"], state["exp_avg_sq"], int(state["step"])
                radam_update(parameter, gradient, m, v, step, group["lr"], group["betas"], group["eps"])
        return loss


def check_betas(*betas):
    """Refuse what is no decay."""
    if not betas or not all(isinstance(beta, float | int) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be in [0, 1), got {betas}")


# --- on what a step acts ------------------------------------------------------------


def decay_groups(model, weight_decay):
    """Two groups of parameters for AdamW: matrices decay; biases, gains of norms and ReZero's alphas do not.

    A matrix's size is free to shrink, since a norm behind it makes up for it. A gain's or bias's size is its meaning:
    pulling it to 0 fights what it has to learn. Frozen parameters are left out, shared ones count once.

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5))
    >>> [(len(group["params"]), group["weight_decay"]) for group in decay_groups(model, 0.1)]
    [(1, 0.1), (3, 0.0)]

    Source: Loshchilov and Hutter (2019), arXiv:1711.05101, algorithm 2; the groups are those of Brown et al.'s GPT-3.
    """
    check_positive(zero=True, weight_decay=weight_decay)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter that can be trained")
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
