"""Autoregression on real series against naive forecasts (chapter 01), and forecasts with missing values (chapter 03).

Orders and learning rates are chosen on data that the reported error does not come from.
"""

import torch
from torch import nn

from course_lib import datasets
from course_lib.autoregression import (
    errors_by_horizon,
    fit_autoregression,
    forecast,
    lagged,
    naive_last,
    naive_mean,
    naive_seasonal,
)
from course_lib.experiments import experiment
from course_lib.rnn import RNN


@experiment("sunspots-ar", "Error of autoregressions of several orders on monthly sunspots, up to 11 years ahead.")
def sunspots_ar(seed, horizon=132, period=132, orders=(1, 2, 3, 6, 12, 24, 48, 96, 132, 264)):
    """The last 15 % of the months are the test, the 15 % before them choose the order; nothing is random."""
    _, series = datasets.sunspots()
    cuts = int(0.7 * len(series)), int(0.85 * len(series))
    return {"results": _compare_forecasts(series, *cuts, horizon, period, orders)}


@experiment("temperatures-ar", "Error of autoregressions of several orders on daily temperatures, up to 60 days ahead.")
def temperatures_ar(seed, horizon=60, period=365, orders=(1, 2, 3, 7, 14, 30, 60, 120, 365)):
    """The last two years are the test, the two before them choose the order; nothing is random."""
    _, series = datasets.temperatures()
    return {
        "results": _compare_forecasts(
            series, len(series) - 4 * period, len(series) - 2 * period, horizon, period, orders
        )
    }


def _compare_forecasts(series, valid_start, test_start, horizon, period, orders):
    """Errors of all orders on the validation part; of the best order and the naive forecasts on both parts."""
    forecasters = {
        "last": naive_last,
        "mean": naive_mean,
        "seasonal": lambda history, steps: naive_seasonal(history, steps, period),
    }
    results = {}
    for order in orders:
        fitted = _autoregression(series[:valid_start], order)
        row = _errors(fitted, series[:test_start], valid_start, horizon, "valid_")
        results[f"order {order}"] = {"order": order, **row}
    best = min(orders, key=lambda order: results[f"order {order}"]["valid_mae"])
    for name, forecaster in forecasters.items():
        valid = _errors(forecaster, series[:test_start], valid_start, horizon, "valid_")
        results[name] = valid | _errors(forecaster, series, test_start, horizon, "")
    final = _autoregression(series[:test_start], best)
    results["autoregression"] = results[f"order {best}"] | _errors(final, series, test_start, horizon, "")
    return results


def _autoregression(series, order):
    """A forecaster with weights fitted to the series."""
    weights, bias = fit_autoregression(series, order)
    return lambda history, steps: forecast(history, weights, bias, steps)


def _errors(forecaster, series, start, horizon, prefix):
    """Mean absolute error over all steps ahead, one step ahead, and for each."""
    errors = errors_by_horizon(forecaster, series, start, horizon)
    return {
        f"{prefix}mae": errors.mean().item(),
        f"{prefix}mae_one_step": errors[0].item(),
        f"{prefix}mae_by_horizon": errors.tolist(),
    }


# --- missing values ---------------------------------------------------------------


@experiment("sunspots-gaps", "Next month's sunspots from a series of which a fraction of the months is missing.")
def sunspots_gaps(
    seed,
    fractions=(0.0, 0.25, 0.5, 0.75),
    orders=(1, 2, 3, 6, 12, 24, 48, 96, 144),
    width=32,
    learning_rates=(1e-3, 3e-3, 1e-2),
    steps=600,
    length=96,
    streams=24,
):
    """An RNN and linear autoregressions, all on square roots; the months of `sunspots-ar` choose and test.

    A missing month is neither an input nor, in training and in the choice, a target; only the mean and the scale, the
    same for all, are those of the whole training part. The test error is that of all
    months of the last 15 %.
    """
    _, series = datasets.sunspots()
    cuts = int(0.7 * len(series)), int(0.85 * len(series))
    series, draw = series.sqrt(), torch.rand(len(series), generator=torch.Generator().manual_seed(seed)).double()
    center, scale = series[: cuts[0]].mean(), series[: cuts[0]].std()
    series = (series - center) / scale
    results = {}
    for fraction in fractions:
        seen = draw >= fraction
        seen[0] = True
        filled = fill_forward(series, seen)
        mask, nothing = seen.double(), torch.where(seen, series, 0.0)
        inputs = {
            "RNN, zeros and mask": torch.stack([nothing, mask], 1),
            "RNN, filled": filled[:, None],
            "RNN, filled and mask": torch.stack([filled, mask], 1),
        }
        predicted = {"last value": ({}, filled[:-1])}
        for name, columns in {"AR, filled": [filled], "AR, filled and mask": [filled, mask]}.items():
            predicted[name] = _best_order(columns, series, seen, cuts[0], cuts[1], orders)
        for name, x in inputs.items():
            options = (cuts[0], cuts[1], width, learning_rates, steps, length, streams, seed)
            predicted[name] = _best_rnn(x, series, seen, *options)
        for name, (chosen, guess) in predicted.items():
            back = lambda values: (values * scale + center).clamp(min=0).square()  # noqa: E731
            errors = (back(guess) - back(series[1:])).abs()  # errors[t] is that of month t + 1
            row = {"fractions": fraction, "mae": errors[cuts[1] - 1 :].mean().item(), **chosen}
            for key, value in row.items():
                results.setdefault(name, {}).setdefault(key, []).append(value)
    return {"results": results}


def fill_forward(series, seen):
    """Put the last value that was seen, if any, in the place of each missing one.

    >>> fill_forward(torch.tensor([5.0, 1.0, 2.0, 3.0]), torch.tensor([True, False, False, True])).tolist()
    [5.0, 5.0, 5.0, 3.0]
    """
    last_seen = torch.where(seen, torch.arange(len(series)), 0).cummax(0).values
    return series[last_seen]


def _best_order(columns, series, seen, valid_start, test_start, orders):
    """Least squares on the last K entries of each column; K by the error on the validation months that are seen."""
    best = None
    for order in orders:
        history = [torch.cat([column[:1].expand(order - 1), column]) for column in columns]
        X = torch.cat([lagged(column, order)[0] for column in history] + [torch.ones(len(series) - 1, 1)], 1).double()
        fit, choose = _seen_between(seen, 1, valid_start), _seen_between(seen, valid_start, test_start)
        weights = torch.linalg.lstsq(X[fit - 1], series[fit], driver="gelsd").solution
        guess = X @ weights
        error = (guess[choose - 1] - series[choose]).square().mean().item()
        if best is None or error < best[0]["valid_mse"]:
            best = {"valid_mse": error, "order": order}, guess
    return best


def _best_rnn(x, series, seen, valid_start, test_start, width, learning_rates, steps, length, streams, seed):
    """Train on random stretches; rate and stopping time by the error on the validation months that are seen."""
    x, y, best = x.float(), series.float(), None
    choose = _seen_between(seen, valid_start, test_start)
    for rate in learning_rates:
        torch.manual_seed(seed)
        layer, output = RNN(x.shape[1], width), nn.Linear(width, 1)
        parameters = [*layer.parameters(), *output.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=rate)
        for step in range(1, steps + 1):
            starts = torch.randint(0, valid_start - length, (streams, 1))
            rows = starts + torch.arange(length)  # (streams, length) months that are read
            error = output(layer(x[rows])[0])[..., 0] - y[rows + 1]
            loss = error[seen[rows + 1]].square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if step % 20 == 0:
                with torch.no_grad():
                    guess = output(layer(x[None, :-1])[0])[0, :, 0].double()
                error = (guess[choose - 1] - series[choose]).square().mean().item()
                if best is None or error < best[0]["valid_mse"]:
                    best = {"valid_mse": error, "learning_rate": rate, "steps": step}, guess
    return best


def _seen_between(seen, start, stop):
    """The places from start to stop at which a value was seen."""
    places = torch.arange(start, stop)
    return places[seen[start:stop]]
