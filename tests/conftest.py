"""Every run of the tests sees the same examples: nothing here depends on a clock or on a random seed."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("shardwise", derandomize=True, deadline=None, database=None, print_blob=False)
settings.load_profile("shardwise")


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch):
    """Nothing depends on how wide the terminal of whoever runs the tests is."""
    monkeypatch.delenv("COLUMNS", raising=False)
