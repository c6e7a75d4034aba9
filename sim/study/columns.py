"""The columns of a study's rows."""

from __future__ import annotations

WORKLOAD = {
    "workload.batch": "batch",
    "workload.context": "context",
    "workload.query_tokens": "query_tokens",
}
"""Paths that one pass over arrays prices at once, and their columns."""
PLACE = {
    "strategy": "string",
    "layout": "string",
    "gpus": "int64",
    "batch": "int64",
    "context": "int64",
    "query_tokens": "int64",
}
"""Where a row stands beside what the study varies: the layout and the lengths of the step."""
FIGURES = {
    "feasible": "bool",
    "meets": "bool",
    "reason": "string",
    "error": "string",
    "step_seconds": "double",
    "tpot_seconds": "double",
    "tokens_per_s_per_user": "double",
    "output_tokens_per_s_per_gpu": "double",
    "kv_bytes": "int64",
    "total_bytes": "int64",
    "pieces": "int64",
}
"""What is found: whether it fits in memory, whether it meets the study's constraints, why not, and the figures. Bytes
are those of the fullest rank."""
