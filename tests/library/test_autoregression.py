"""Autoregression against numpy, hand-worked values and processes whose weights are known."""

import math

import numpy as np
import pytest
import torch

from course_lib import autoregression as S

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def noise(length, seed=0):
    """A series that no autoregression fits exactly."""
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def process(weights, bias, start, length):
    """Values that obey an autoregression exactly; `start` holds the first ones, oldest first."""
    values = list(start)
    while len(values) < length:
        values.append(bias + sum(w * values[-1 - j] for j, w in enumerate(weights)))
    return torch.tensor(values, dtype=torch.float64)


# --- lagged -----------------------------------------------------------------------


def test_lagged_rows_by_hand():
    """Fails if the oldest value comes first, if y is shifted, or if the last row is lost."""
    X, y = S.lagged(torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 7.0]), 3)
    assert X.tolist() == [[4.0, 1.0, 5.0], [2.0, 4.0, 1.0], [3.0, 2.0, 4.0]]
    assert y.tolist() == [2.0, 3.0, 7.0]


@pytest.mark.parametrize("order", [0, -1, 5, 6])
def test_lagged_refuses_orders_without_a_row(order):
    """Fails if an order without any row is accepted."""
    with pytest.raises(
        ValueError,
        match="at least 1, got" if order < 1 else f"series must have a length of at least {order + 1}, got 5",
    ):
        S.lagged(torch.zeros(5), order)


def test_lagged_refuses_two_axes():
    """Fails if a (T, 1) column is taken for a series."""
    with pytest.raises(ValueError, match=r"series must be a tensor \(T,\), got one of shape \(5, 1\)"):
        S.lagged(torch.zeros(5, 1), 2)


# --- fit --------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 4])
def test_weights_equal_numpys_least_squares(order):
    """Fails if a column is missing or misplaced, or the bias is not fitted."""
    x = noise(29) + 3
    rows = [[x[t - 1 - j].item() for j in range(order)] + [1.0] for t in range(order, 29)]
    wanted = np.linalg.lstsq(np.array(rows), x[order:].numpy(), rcond=None)[0]
    weights, bias = S.fit_autoregression(x, order)
    torch.testing.assert_close(torch.cat([weights, bias[None]]), torch.from_numpy(wanted), **EXACT)


def test_ridge_solves_the_penalised_normal_equations():
    """Fails if the bias is penalised too, or if ridge is used as its root or square."""
    x, ridge = noise(23, seed=1) + 2, 0.7
    X, y = S.lagged(x, 3)
    A = torch.cat([X, torch.ones(20, 1)], dim=1)
    penalty = ridge * torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    wanted = torch.linalg.solve(A.T @ A + penalty, A.T @ y)
    weights, bias = S.fit_autoregression(x, 3, ridge=ridge)
    torch.testing.assert_close(torch.cat([weights, bias[None]]), wanted, **EXACT)


def test_an_exact_process_gives_its_weights_back():
    """Fails if weights are in the wrong order: the two differ."""
    x = process([1.2, -0.7, 0.3], 0.4, [1.0, -2.0, 3.0], 40)
    weights, bias = S.fit_autoregression(x, 3)
    torch.testing.assert_close(weights, torch.tensor([1.2, -0.7, 0.3], dtype=torch.float64), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(bias.item(), 0.4, rtol=1e-7, atol=1e-7)


def test_two_weights_continue_every_sine():
    """x_t = 2 cos(2 pi / P) x_{t-1} - x_{t-2}: fails if weight and lag do not belong together."""
    x = torch.sin(2 * math.pi * torch.arange(31, dtype=torch.float64) / 12 + 0.3)
    weights, bias = S.fit_autoregression(x, 2)
    wanted = torch.tensor([2 * math.cos(2 * math.pi / 12), -1.0], dtype=torch.float64)
    torch.testing.assert_close(weights, wanted, rtol=1e-8, atol=1e-8)
    assert abs(bias.item()) < 1e-8


def test_a_constant_series_is_forecast():
    """Fails if the solver needs full rank."""
    x = torch.full((12,), 4.0, dtype=torch.float64)
    predicted = S.forecast(x, *S.fit_autoregression(x, 2), horizon=3)
    torch.testing.assert_close(predicted, torch.full((3,), 4.0, dtype=torch.float64), **EXACT)


def test_float32_stays_float32():
    """Fails if a float64 constant creeps in."""
    weights, bias = S.fit_autoregression(noise(20).float(), 2, ridge=0.1)
    assert weights.dtype == bias.dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "order", "ridge", "message"),
    [
        (torch.arange(9), 2, 0.0, "series must be floating, got torch.int64"),
        (torch.zeros(6), 3, 0.0, "series must have a length of at least 7, got 6"),
        (torch.zeros(9), 2, -1.0, "ridge must be a finite number from 0 on, got -1.0"),
        (torch.zeros(9), 0, 0.0, "order must be a whole number of at least 1, got 0"),
        (torch.zeros(3, 3), 1, 0.0, r"series must be a tensor \(T,\), got one of shape \(3, 3\)"),
    ],
)
def test_fit_says_what_is_wrong(values, order, ridge, message):
    """Fails if bad input is fitted silently, or the message names something else."""
    with pytest.raises(ValueError, match=message):
        S.fit_autoregression(values, order, ridge)


# --- forecasts --------------------------------------------------------------------


def test_forecast_by_hand():
    """Fails if predictions are not fed back, if the bias is lost, or if the newest value is not weight 0's.

    Values 2, 6; x = 1 + 0.5 newest - 0.25 older: 1 + 3 - 0.5 = 3.5; 1 + 1.75 - 1.5 = 1.25; 1 + 0.625 - 0.875 = 0.75.
    """
    x = torch.tensor([9.0, 2.0, 6.0])
    got = S.forecast(x, torch.tensor([0.5, -0.25]), 1.0, 3)
    assert got.tolist() == [3.5, 1.25, 0.75]
    assert x.tolist() == [9.0, 2.0, 6.0]  # the known values are not written over


def test_forecast_of_first_order_is_a_geometric_approach_to_its_mean():
    """x_h = m + w^h (x - m) with m = b / (1 - w): fails if an error grows with the steps ahead."""
    w, b, x0, steps = 0.8, 0.5, 7.0, 25
    mean = b / (1 - w)
    wanted = [mean + w**h * (x0 - mean) for h in range(1, steps + 1)]
    got = S.forecast(torch.tensor([x0], dtype=torch.float64), torch.tensor([w], dtype=torch.float64), b, steps)
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), **EXACT)


def test_forecast_continues_an_exact_process():
    """Fails if the window does not move: order 3, 11 steps."""
    weights = [1.2, -0.7, 0.3]
    x = process(weights, 0.4, [1.0, -2.0, 3.0], 30)
    got = S.forecast(x[:19], torch.tensor(weights, dtype=torch.float64), 0.4, 11)
    torch.testing.assert_close(got, x[19:], **EXACT)


def test_naive_forecasts_by_hand():
    """Fails if the season starts at another place or the mean is of a part only."""
    x = torch.tensor([1.0, 2.0, 4.0, 8.0, 10.0])
    assert S.naive_last(x, 2).tolist() == [10.0, 10.0]
    assert S.naive_mean(x, 2).tolist() == [5.0, 5.0]
    assert S.naive_seasonal(x, 7, period=3).tolist() == [4.0, 8.0, 10.0, 4.0, 8.0, 10.0, 4.0]
    assert S.naive_seasonal(x, 2, period=1).tolist() == S.naive_last(x, 2).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: S.forecast(x, torch.ones(4), 0.0, 1), "series must have a length of at least 4, got 3"),
        (lambda x: S.forecast(x, torch.ones(2), 0.0, 0), "horizon must be a whole number of at least 1, got 0"),
        (lambda x: S.naive_last(x[:0], 1), "series must have a length of at least 1, got 0"),
        (lambda x: S.naive_last(x, 0), "horizon must be a whole number of at least 1, got 0"),
        (lambda x: S.naive_mean(x[:0], 1), "series must have a length of at least 1, got 0"),
        (lambda x: S.naive_mean(x, -2), "horizon must be a whole number of at least 1, got -2"),
        (lambda x: S.naive_seasonal(x, 1, 4), "series must have a length of at least 4, got 3"),
        (lambda x: S.naive_seasonal(x, 1, 0), "period must be a whole number of at least 1, got 0"),
        (lambda x: S.naive_seasonal(x, 0, 2), "horizon must be a whole number of at least 1, got 0"),
        (lambda x: S.errors_by_horizon(S.naive_last, x, 0, 2), "start must be a whole number of at least 1, got 0"),
        (lambda x: S.errors_by_horizon(S.naive_last, x, 2, 2), "series must have a length of at least 4, got 3"),
        (lambda x: S.errors_by_horizon(S.naive_last, x, 1, 0), "horizon must be a whole number of at least 1, got 0"),
        (lambda x: S.errors_by_horizon(S.naive_last, x[None], 1, 1), r"got one of shape \(1, 3\)"),
        (
            lambda x: S.errors_by_horizon(lambda h, n: h[:1], x, 1, 2),
            r"the forecast must be a tensor \(2,\), got one of shape \(1,\)",
        ),
    ],
)
def test_forecasts_say_what_is_wrong(call, message):
    """Fails if bad input gives numbers, or the message names something else."""
    with pytest.raises(ValueError, match=message):
        call(torch.tensor([1.0, 2.0, 3.0]))


# --- errors -----------------------------------------------------------------------


def test_errors_by_hand():
    """Fails if an origin is left out, if errors are squared, or if horizons mix.

    Last-value forecasts of 1, 3, 2, 7, 4 from origins 2 and 3: |3-2|, |3-7| and |2-7|, |2-4|.
    """
    got = S.errors_by_horizon(S.naive_last, torch.tensor([1.0, 3.0, 2.0, 7.0, 4.0]), start=2, horizon=2)
    assert got.tolist() == [3.0, 3.0]


def test_errors_equal_a_double_loop():
    """Fails if a forecaster is shown a value that it has to predict, or horizons have different origins."""
    x, start, horizon = noise(31, seed=2), 13, 5
    weights, bias = S.fit_autoregression(x[:start], 3)
    wanted = torch.zeros(horizon, dtype=torch.float64)
    for h in range(horizon):
        found = []
        for origin in range(start, 31 - horizon + 1):
            known = x[:origin].tolist()
            for _ in range(h + 1):
                known.append(bias.item() + sum(w * known[-1 - j] for j, w in enumerate(weights.tolist())))
            found.append(abs(known[-1] - x[origin + h].item()))
        wanted[h] = sum(found) / len(found)
    got = S.errors_by_horizon(lambda history, steps: S.forecast(history, weights, bias, steps), x, start, horizon)
    torch.testing.assert_close(got, wanted, **EXACT)
