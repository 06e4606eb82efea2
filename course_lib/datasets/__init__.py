"""Real data (the functions below, in `real`) and toy languages with known truth (`synthetic`)."""

from course_lib.datasets.cache import SOURCES, DataError, cache_folder
from course_lib.datasets.real import (
    airline_passengers,
    docstrings,
    imdb,
    multi30k,
    shakespeare_split,
    split_validation,
    sunspots,
    temperatures,
    tiny_shakespeare,
    wikitext2,
)

__all__ = [
    "SOURCES",
    "DataError",
    "airline_passengers",
    "cache_folder",
    "docstrings",
    "imdb",
    "multi30k",
    "shakespeare_split",
    "split_validation",
    "sunspots",
    "temperatures",
    "tiny_shakespeare",
    "wikitext2",
]
