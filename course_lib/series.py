r"""Forecasting a series: linear autoregression, and the guesses that it has to beat.

Read in this order: `lagged` turns a series into rows of past values and what came next,
`fit_autoregression` finds the weights by least squares, `forecast` feeds predictions back to look
further ahead than one step. `naive_last`, `naive_mean` and `naive_seasonal` need no training;
`errors_by_horizon` compares them all, for each number of steps ahead.

Notebook: 01.
"""

import torch


def lagged(series, order):
    r"""Every value of a series beside the values just before it.

    $$ X_{n} = (x_{t-1}, x_{t-2}, \dots, x_{t-K}), \quad y_n = x_t, \quad t = n + K $$

    with K the order. Rows overlap, so they are not independent examples; but whoever predicts
    y from X never sees the future.

    Args:
        series: (T,) values at equal steps of time.
        order: K, how many past values, at least 1 and below T.

    Returns:
        X: (T - K, K), the most recent value first.
        y: (T - K,).

    Raises:
        ValueError: if the series is not one-dimensional, or the order is below 1 or not below T.

    Example:
        >>> X, y = lagged(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), 2)
        >>> X.tolist(), y.tolist()
        ([[2.0, 1.0], [4.0, 2.0], [8.0, 4.0]], [4.0, 8.0, 16.0])

    Notebook: 01.
    """
    _check_series(series, least=1)
    if not 1 <= order < len(series):
        raise ValueError(f"order must be from 1 to {len(series) - 1} for {len(series)} values, got {order}")
    windows = series.unfold(0, order + 1, 1)  # (T - K, K + 1), oldest value first
    return windows[:, :-1].flip(1), windows[:, -1]


def fit_autoregression(series, order, ridge=0.0):
    r"""Weights and bias of a linear autoregression, by least squares.

    $$ \min_{w, b} \sum_t \Big(x_t - b - \sum_{j=1}^{K} w_j x_{t-j}\Big)^2 + \text{ridge} \sum_j w_j^2 $$

    Solved directly: no learning rate, no epochs. If several solutions are equally good (a constant
    series), it is the one with the smallest weights.

    Args:
        series: (T,) floating-point values.
        order: K; at least as many equations as unknowns are wanted, so T must be at least 2 K + 1.
        ridge: penalty on the weights, not on the bias, at least 0; 0 is plain least squares.

    Returns:
        weights: (K,), `weights[0]` belongs to the most recent value.
        bias: tensor ().

    Raises:
        ValueError: if the series is not one-dimensional and floating-point, is too short for the order,
            the order is below 1, or ridge is negative.

    Example:
        >>> halved = 10 * 0.5 ** torch.arange(6, dtype=torch.float64) + 3  # x_t = 0.5 x_{t-1} + 1.5
        >>> weights, bias = fit_autoregression(halved, order=1)
        >>> round(weights.item(), 6), round(bias.item(), 6)
        (0.5, 1.5)

    Source: Box and Jenkins 1970, "Time Series Analysis"; the penalty is Hoerl and Kennard 1970,
    "Ridge Regression". Notebook: 01.
    """
    X, y = lagged(series, order)
    if not series.is_floating_point():
        raise ValueError(f"the series must hold floating-point numbers, got {series.dtype}")
    if len(y) < order + 1:
        raise ValueError(f"order {order} has {order + 1} unknowns and needs {2 * order + 1} values, got {len(series)}")
    if ridge < 0:
        raise ValueError(f"ridge must be at least 0, got {ridge}")
    penalty = torch.eye(order, order + 1).to(X) * ridge**0.5  # K more equations sqrt(ridge) w_j = 0; none for the bias
    A = torch.cat([torch.cat([X, torch.ones_like(X[:, :1])], dim=1), penalty])  # (T - K + K, K + 1)
    solution = torch.linalg.lstsq(A, torch.cat([y, y.new_zeros(order)])).solution
    return solution[:-1], solution[-1]


def forecast(series, weights, bias, horizon):
    r"""Forecast several steps ahead by feeding each prediction back.

    $$ \hat x_t = b + \sum_{j=1}^{K} w_j \hat x_{t-j}, \quad \hat x_t = x_t \text{ where it is known} $$

    Errors are fed back too: the further ahead, the less the past that was seen matters.

    Args:
        series: (T,) floating-point values that are known, at least K of them.
        weights: (K,), `weights[0]` belongs to the most recent value.
        bias: number or tensor ().
        horizon: steps ahead, at least 1.

    Returns:
        (horizon,) predictions of x_T, x_{T+1}, ...

    Raises:
        ValueError: if the series is not one-dimensional, has fewer values than there are weights, or
            the horizon is below 1.

    Example:
        >>> forecast(torch.tensor([8.0, 4.0]), torch.tensor([0.5]), 0.0, horizon=3).tolist()
        [2.0, 1.0, 0.5]

    Notebook: 01.
    """
    K = len(weights)
    _check_series(series, least=K)
    _check_horizon(horizon)
    path = torch.cat([series[len(series) - K :], series.new_zeros(horizon)])  # what is known, then the predictions
    oldest_first = weights.flip(0)
    for t in range(horizon):
        path[K + t] = bias + oldest_first @ path[t : t + K]
    return path[K:]


def naive_last(series, horizon):
    """Forecast that nothing changes: the last value, repeated.

    Args:
        series: (T,) known values, at least one.
        horizon: steps ahead, at least 1.

    Returns:
        (horizon,).

    Raises:
        ValueError: if the series is not one-dimensional or is empty, or the horizon is below 1.

    Example:
        >>> naive_last(torch.tensor([1.0, 5.0]), 3).tolist()
        [5.0, 5.0, 5.0]

    Notebook: 01.
    """
    _check_series(series, least=1)
    _check_horizon(horizon)
    return series[-1].repeat(horizon)


def naive_mean(series, horizon):
    """Forecast that the future is like the average past: the mean of all known values, repeated.

    Args:
        series: (T,) known floating-point values, at least one.
        horizon: steps ahead, at least 1.

    Returns:
        (horizon,).

    Raises:
        ValueError: if the series is not one-dimensional or is empty, or the horizon is below 1.

    Example:
        >>> naive_mean(torch.tensor([1.0, 5.0]), 3).tolist()
        [3.0, 3.0, 3.0]

    Notebook: 01.
    """
    _check_series(series, least=1)
    _check_horizon(horizon)
    return series.mean().repeat(horizon)


def naive_seasonal(series, horizon, period):
    r"""Forecast that the last season comes again.

    $$ \hat x_{T+h} = x_{T-P+(h \bmod P)}, \quad h = 0, 1, \dots $$

    Args:
        series: (T,) known values, at least one period of them.
        horizon: steps ahead, at least 1.
        period: P, steps in a season, at least 1.

    Returns:
        (horizon,).

    Raises:
        ValueError: if the series is not one-dimensional or shorter than a period, the period is below 1,
            or the horizon is below 1.

    Example:
        >>> naive_seasonal(torch.tensor([9.0, 1.0, 2.0, 3.0]), 5, period=3).tolist()
        [1.0, 2.0, 3.0, 1.0, 2.0]

    Notebook: 01.
    """
    if period < 1:
        raise ValueError(f"period must be at least 1, got {period}")
    _check_series(series, least=period)
    _check_horizon(horizon)
    steps = torch.arange(horizon, device=series.device)
    return series[len(series) - period + steps % period]


def errors_by_horizon(forecaster, series, start, horizon):
    r"""Mean absolute error of a forecaster for each number of steps ahead.

    $$ e_h = \frac{1}{M} \sum_{o=start}^{T-horizon} |\hat x_{o+h} - x_{o+h}|, \quad h = 0, \dots, horizon - 1 $$

    The origin o rolls through the series; at each of the M origins the forecaster sees the o values
    before it and nothing else. All steps ahead are averaged over the same origins.

    Args:
        forecaster: `forecaster(history (o,), horizon) -> (horizon,)`, such as `naive_last`.
        series: (T,) values; those from `start` on are what is forecast.
        start: the first origin, at least 1: how many values are known there.
        horizon: steps ahead, at least 1; `start + horizon` must not exceed T.

    Returns:
        (horizon,), in the units of the series; entry 0 is one step ahead.

    Raises:
        ValueError: if the series is not one-dimensional, the horizon or start is below 1, no origin has
            `horizon` values after it, or the forecaster returns another shape.

    Example:
        >>> errors_by_horizon(naive_last, torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), start=2, horizon=2).tolist()
        [1.0, 2.0]

    Source: Tashman 2000, "Out-of-sample tests of forecasting accuracy". Notebook: 01.
    """
    _check_series(series, least=1)
    _check_horizon(horizon)
    if not 1 <= start <= len(series) - horizon:
        raise ValueError(
            f"start must be from 1 to {len(series) - horizon}: {len(series)} values, {horizon} of them after the "
            f"last origin; got {start}"
        )
    total = torch.zeros(horizon).to(series)
    origins = range(start, len(series) - horizon + 1)
    for origin in origins:
        predicted = forecaster(series[:origin], horizon)
        if predicted.shape != (horizon,):
            raise ValueError(f"the forecaster returned shape {tuple(predicted.shape)}, wanted ({horizon},)")
        total += (predicted - series[origin : origin + horizon]).abs()
    return total / len(origins)


def _check_series(series, least):
    """Raise unless it is a vector of at least so many values."""
    if series.ndim != 1 or len(series) < least:
        raise ValueError(
            f"the series must be one-dimensional with at least {least} values, got shape {tuple(series.shape)}"
        )


def _check_horizon(horizon):
    """Raise unless there is a step to forecast."""
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
