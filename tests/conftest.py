"""Every run of the tests sees the same examples: nothing here depends on a clock or on a random seed."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shardwise", derandomize=True, deadline=None, database=None, print_blob=False)
settings.load_profile("shardwise")
