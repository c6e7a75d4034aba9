"""Streams of requests through engines: workloads and traces, the scheduler, paged caches, pools, and what comes out."""
