"""CSV files of measurements."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a file as dictionaries; none if it does not exist."""
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
