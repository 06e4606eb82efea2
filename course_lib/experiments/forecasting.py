"""Autoregression on real series against naive forecasts (chapter 01).

The order is chosen on data that the reported error does not come from.
"""

from course_lib import datasets
from course_lib.autoregression import (
    errors_by_horizon,
    fit_autoregression,
    forecast,
    naive_last,
    naive_mean,
    naive_seasonal,
)
from course_lib.experiments import experiment


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
