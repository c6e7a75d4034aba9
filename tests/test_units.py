"""Quantities as people write them, and as they read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UnitError
from sim.units import (
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("32k", 32_768),
        ("32K", 32_768),
        ("32 Ki", 32_768),
        ("1M", 1_048_576),
        ("1m", 1_048_576),
        ("1e6", 1_000_000),
        ("1_000_003", 1_000_003),
        ("1,000,003", 1_000_003),
        ("0.5k", 512),
        (3.0, 3),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_counts(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("80 GB", 80 * 10**9), ("1 MiB", 2**20), ("1.5 KiB", 1536), ("141e9", 141 * 10**9), ("0.5TB", 5 * 10**11)],
)
def test_bytes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("900 GB/s", 900e9), ("400 Gb/s", 50e9), ("400Gbps", 50e9), ("900e9", 900e9), ("1 TiB/s", 2**40), (5, 5.0)],
)
def test_rates(text, value):
    assert parse_rate(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("5 us", 5e-6), ("5µs", 5e-6), ("20 ms", 0.02), ("2e-6", 2e-6), ("1 ns", 1e-9)]
)
def test_seconds(text, value):
    assert parse_seconds(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (parse_count, "many", "'many' is not a count; write for example 4096, 32k or 1M"),
        (parse_count, True, "true is not a count; write for example 4096, 32k or 1M"),
        (parse_count, 1.5, "1.5 is not a whole number; write for example 4096, 32k or 1M"),
        (
            parse_count,
            "32 kB",
            "'32 kB' has the unit 'kB', which is not one of a count (k, K, M, G, m, Ki, Mi, Gi)",
        ),
        (parse_count, float("inf"), "inf is not a finite number; write for example 4096, 32k or 1M"),
        (
            parse_bytes,
            "80 G",
            "'80 G' has the unit 'G', which is not one of an amount of memory "
            "(B, kB, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB)",
        ),
        (parse_rate, "fast", "'fast' is not a bandwidth; write for example 900 GB/s, 400 Gb/s or 900e9"),
        (
            parse_seconds,
            "5 minutes",
            "'5 minutes' has the unit 'minutes', which is not one of a time (s, ms, us, µs, μs, ns)",
        ),
        (parse_seconds, None, "empty is not a time; write for example 5 us, 20 ms or 2e-6"),
    ],
)
def test_what_cannot_be_read_is_said(read, text, message):
    with pytest.raises(UnitError) as error:
        read(text)
    assert str(error.value) == message


def test_bytes_are_not_a_rate():
    with pytest.raises(UnitError, match=r"^'900 GB' has the unit 'GB', which is not one of a bandwidth \(B/s, kB/s,"):
        parse_rate("900 GB")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (11.75 * 2**30, "11.8 GiB"),
        (999 * 2**30, "999 GiB"),
        (1001 * 2**40, "1,001 TiB"),
        (2**40, "1 TiB"),
    ],
)
def test_bytes_for_people(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 us"), (2.0, "2 s"), (5e-9, "5 ns"), (1234.0, "1,234 s")],
)
def test_times_for_people(value, text):
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(32_768, "32k"), (2**20, "1M"), (1_000_003, "1,000,003"), (5, "5"), (3 * 2**20, "3M")]
)
def test_counts_for_people(value, text):
    assert format_count(value) == text


@given(st.integers(1, 2**50))
def test_written_counts_read_back(value):
    assert parse_count(format_count(value)) == value
