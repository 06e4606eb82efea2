"""Forecasts on tiny series: what they record, and that nobody peeks at the test."""

import json
import random

import pytest

from course_lib import datasets
from course_lib.autoregression import errors_by_horizon, fit_autoregression, forecast
from course_lib.datasets.synthetic import seasonal_series
from course_lib.experiments import forecasting


def plain_words(count, seed):
    return random.Random(seed).choices(["a", "a", "b", "c", "d", "<unk>", "<eos>"], k=count)


@pytest.fixture
def tiny(monkeypatch):
    """Loaders that give little and need no files."""
    text = "".join(random.Random(0).choices("aabbc d", k=900))
    splits = {"train": 800, "valid": 150, "test": 140}
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: text)
    monkeypatch.setattr(datasets, "wikitext2", lambda split: plain_words(splits[split], split))
    monkeypatch.setattr(datasets, "sunspots", lambda: ([], seasonal_series(200, period=11)))
    monkeypatch.setattr(datasets, "temperatures", lambda: ([], seasonal_series(160, period=12)))


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (forecasting.sunspots_ar, {"horizon": 6, "period": 11, "orders": (1, 3, 12)}),
        (forecasting.temperatures_ar, {"horizon": 5, "period": 12, "orders": (1, 2, 13)}),
    ],
)
def test_forecasts_record_every_row(tiny, function, settings):
    """Fails if a row is missing, an order is tested although it was not chosen, or the best was not chosen."""
    rows = function(0, **settings)["results"]
    json.dumps(rows, allow_nan=False)
    orders = [f"order {order}" for order in settings["orders"]]
    assert list(rows) == [*orders, "last", "mean", "seasonal", "autoregression"]
    assert all("mae" not in rows[name] for name in orders)
    assert rows["autoregression"]["valid_mae"] == min(rows[name]["valid_mae"] for name in orders)
    for name in ("last", "mean", "seasonal", "autoregression"):
        errors = rows[name]["mae_by_horizon"]
        assert len(errors) == settings["horizon"]
        assert rows[name]["mae"] == pytest.approx(sum(errors) / len(errors))
        assert rows[name]["mae_one_step"] == errors[0]
    assert rows["autoregression"]["mae"] < rows["seasonal"]["mae"]  # the series has a trend, a season's copy has none


def test_the_test_part_reaches_neither_the_choice_nor_the_weights(tiny):
    """Fails if weights are fitted to what they forecast: the errors are computed again from the first 170 values."""
    row = forecasting.sunspots_ar(0, horizon=6, period=11, orders=(12,))["results"]["autoregression"]
    series = seasonal_series(200, period=11)
    weights, bias = fit_autoregression(series[:170], 12)
    wanted = errors_by_horizon(lambda known, steps: forecast(known, weights, bias, steps), series, 170, 6)
    assert row["mae_by_horizon"] == pytest.approx(wanted.tolist())
