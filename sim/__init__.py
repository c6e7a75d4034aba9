"""Shardwise: a discrete-event simulator of multi-GPU LLM inference.

>>> from sim import load, compare            # doctest: +SKIP
>>> report = compare(load("scenarios/qwen3_235b_8xh200.yaml"))
"""
