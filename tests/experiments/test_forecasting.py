"""Forecasts on tiny series: what they record, and that nobody peeks at the test."""

import json
import random

import pytest
import torch

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


TINY_GAPS = {"fractions": (0.0, 0.5), "orders": (1, 3, 12), "width": 4, "learning_rates": (1e-2,), "steps": 40,
             "length": 20, "streams": 4}  # fmt: skip


def test_gaps_record_what_the_chapter_draws(monkeypatch):
    """Fails if a row or fraction is missing, or without holes the inputs do not agree."""
    monkeypatch.setattr(datasets, "sunspots", lambda: ([], seasonal_series(200, period=11).abs()))
    rows = forecasting.sunspots_gaps(0, **TINY_GAPS)["results"]
    json.dumps(rows, allow_nan=False)
    linear, networks = (
        ["AR, filled", "AR, filled and mask"],
        ["RNN, zeros and mask", "RNN, filled", "RNN, filled and mask"],
    )
    assert list(rows) == ["last value", *linear, *networks]
    for row in rows.values():
        assert row["fractions"] == [0.0, 0.5]
        assert len(row["mae"]) == 2
    assert all(set(rows[name]["order"]) <= {1, 3, 12} for name in linear)
    assert all(set(rows[name]["steps"]) <= {20, 40} for name in networks)
    full, same = (rows[name]["mae"][0] for name in ("RNN, zeros and mask", "RNN, filled and mask"))
    assert full == pytest.approx(same)
    assert rows["AR, filled"]["mae"][0] == pytest.approx(rows["AR, filled and mask"]["mae"][0], rel=1e-3)


def test_missing_months_reach_nobody(monkeypatch):
    """Fails if a forecast depends on a month that was not seen: before the test part, these change places."""
    series = seasonal_series(200, period=11).abs()
    seen = torch.rand(200, generator=torch.Generator().manual_seed(0)).double() >= 0.5
    seen[0] = True
    (hidden,) = torch.where(~seen[:140])
    reordered = series.clone()
    reordered[hidden] = series[hidden.flip(0)]
    both = []
    for values in (series, reordered):
        monkeypatch.setattr(datasets, "sunspots", lambda values=values: ([], values))
        rows = forecasting.sunspots_gaps(0, **TINY_GAPS | {"fractions": (0.5,)})["results"]
        both.append([row["mae"][0] for row in rows.values()])
    assert not torch.equal(series, reordered)
    assert both[0] == pytest.approx(both[1], rel=1e-4)
