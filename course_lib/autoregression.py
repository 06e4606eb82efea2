"""Forecasting a series: linear autoregression, and the naive forecasts that it has to beat."""

import torch

from course_lib.utils.validate import check_finite, check_length, check_positive, check_sizes, check_tensor


def lagged(series, order):
    """Every value of a series (T,) beside the K = `order` values before it, newest first: X (T - K, K), y (T - K,).

    >>> X, y = lagged(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), 2)
    >>> X.tolist(), y.tolist()
    ([[2.0, 1.0], [4.0, 2.0], [8.0, 4.0]], [4.0, 8.0, 16.0])
    """
    check_sizes(order=order)
    check_series(series, order + 1)
    windows = series.unfold(0, order + 1, 1)  # (T - K, K + 1), oldest value first
    return windows[:, :-1].flip(1), windows[:, -1]


def fit_autoregression(series, order, ridge=0.0):
    r"""Weights (K,) and bias () of a linear autoregression, by least squares; `weights[0]` is the most recent value's.

    $$ \min_{w, b} \sum_t \Big(x_t - b - \sum_{j=1}^{K} w_j x_{t-j}\Big)^2 + \text{ridge} \sum_j w_j^2 $$

    Of several solutions (a constant series) it is the smallest.

    >>> halved = 10 * 0.5 ** torch.arange(6, dtype=torch.float64) + 3  # x_t = 0.5 x_{t-1} + 1.5
    >>> [round(x.item(), 6) for x in fit_autoregression(halved, order=1)]
    [0.5, 1.5]

    Source: Box and Jenkins 1970, "Time Series Analysis"; the penalty is Hoerl and Kennard 1970, "Ridge Regression".
    """
    check_sizes(order=order)
    check_series(series, 2 * order + 1, "float")  # as many equations as unknowns
    check_finite("series", series)
    check_positive(zero=True, ridge=ridge)
    X, y = lagged(series, order)
    penalty = torch.eye(order, order + 1).to(X) * ridge**0.5  # K more equations sqrt(ridge) w_j = 0; none for the bias
    A = torch.cat([torch.cat([X, torch.ones_like(X[:, :1])], dim=1), penalty])  # (T - K + K, K + 1)
    solution = torch.linalg.lstsq(A, torch.cat([y, y.new_zeros(order)])).solution  # (K + 1,)
    return solution[:-1], solution[-1]


def forecast(series, weights, bias, horizon):
    r"""Forecast (horizon,) steps ahead by feeding each prediction back.

    $$ \hat x_t = b + \sum_{j=1}^{K} w_j \hat x_{t-j}, \quad \hat x_t = x_t \text{ where it is known} $$

    >>> forecast(torch.tensor([8.0, 4.0]), torch.tensor([0.5]), 0.0, horizon=3).tolist()
    [2.0, 1.0, 0.5]
    """
    K = len(weights)
    check_tensor("weights", weights, ("K",), "float")
    check_length("weights", weights)
    check_series(series, K, "float")
    check_sizes(horizon=horizon)
    path = torch.cat([series[len(series) - K :], series.new_zeros(horizon)])  # what is known, then the predictions
    oldest_first = weights.flip(0)
    for t in range(horizon):
        path[K + t] = bias + oldest_first @ path[t : t + K]
    return path[K:]


def naive_last(series, horizon):
    """Forecast that nothing changes: the last value, repeated (horizon,) times."""
    check_series(series, 1)
    check_sizes(horizon=horizon)
    return series[-1].repeat(horizon)


def naive_mean(series, horizon):
    """Forecast that the future is like the average past: the mean, repeated (horizon,) times."""
    check_series(series, 1, "float")
    check_sizes(horizon=horizon)
    return series.mean().repeat(horizon)


def naive_seasonal(series, horizon, period):
    """Forecast that the last season of `period` steps comes again, and again: (horizon,)."""
    check_sizes(horizon=horizon, period=period)
    check_series(series, period)
    steps = torch.arange(horizon, device=series.device)
    return series[len(series) - period + steps % period]


def errors_by_horizon(forecaster, series, start, horizon):
    """Mean absolute error (horizon,) of a forecaster for each number of steps ahead; entry 0 is one step.

    The origin rolls through the series from `start` on; at each, `forecaster(history, horizon) -> (horizon,)` sees the
    values before it and nothing else.

    Source: Tashman 2000, "Out-of-sample tests of forecasting accuracy".
    """
    check_sizes(horizon=horizon, start=start)
    check_series(series, start + horizon)
    total = torch.zeros(horizon).to(series)
    origins = range(start, len(series) - horizon + 1)
    for origin in origins:
        predicted = forecaster(series[:origin], horizon)
        check_tensor("the forecast", predicted, (horizon,))
        total += (predicted - series[origin : origin + horizon]).abs()
    return total / len(origins)


def check_series(series, least, dtype=None):
    """(T,) of at least so many values."""
    check_tensor("series", series, ("T",), dtype)
    check_length("series", series, least)
