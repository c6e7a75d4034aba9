"""YAML to plain data with positions: what is read, what is refused, and where the refusal points."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.documents import MOST_BYTES, read_document, read_file
from sim.errors import Problem, ScenarioError
from sim.render.export import to_yaml


def refusal(content: bytes | str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read_document(content, "f.yaml")
    return str(caught.value)


def complaints(content: str) -> list[str]:
    return [str(problem) for problem in read_document(content, "f.yaml").problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("900e9", 900e9),
        ("012", 12),
        ("1:30", "1:30"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("0x10", 16),
        ("2024-01-01", "2024-01-01"),
        ("32k", "32k"),
        ("[1, {b: 2}]", [1, {"b": 2}]),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_scalars_mean_what_they_look_like(text, value):
    assert read_document(f"a: {text}", "f.yaml").data == {"a": value}


def test_byte_order_mark_and_windows_line_ends_are_read():
    assert read_document(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f.yaml").data == {"a": 1, "b": 2}


def test_a_problem_is_placed_at_its_key_or_at_the_nearest_key_around_it():
    document = read_document("a: 1\nlayouts:\n  - {tp: 8}\n  - strategy: dcp\n    kvp: 4\n", "f.yaml")
    places = {
        key: document.place(Problem("wrong", key)).where
        for key in ("layouts.1.kvp", "layouts.1.missing", "layouts.0.tp", "b", "", "layouts.7.x.y")
    }
    assert places == {
        "layouts.1.kvp": "f.yaml:5:5",
        "layouts.1.missing": "f.yaml:4:5",
        "layouts.0.tp": "f.yaml:3:6",
        "b": "f.yaml:1:1",
        "": "f.yaml:1:1",
        "layouts.7.x.y": "f.yaml:2:1",
    }


def test_a_problem_of_another_file_keeps_its_place():
    document = read_document("a: 1", "f.yaml")
    assert document.place(Problem("wrong", "a", "config.json")).where == "config.json"


def test_aliases_are_followed_and_point_at_their_anchor():
    document = read_document("a: &x\n  b: 1\nc: *x\n", "f.yaml")
    assert document.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert document.positions["c.b"] == (2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "f.yaml:2:1: a: is written twice; first on line 1"),
        ("a: {b: 1, b: 2}", "f.yaml:1:11: a.b: is written twice; first on line 1"),
        ("8: 1", "f.yaml:1:1: 8: the key 8 is not text; put it in quotes"),
        ("true: 1", "f.yaml:1:1: true: the key true is not text; put it in quotes"),
        ("? [x]\n: 2", "f.yaml:1:3: a key must be one word, not a list or a mapping"),
        ("<<: {a: 1}", "f.yaml:1:1: <<: merge keys ('<<') are not read; write the keys out"),
        ("a: !!python/object:os.system ls", "f.yaml:1:4: a: the tag !!python/object:os.system is not read; remove it"),
        ("a: !mine [1]", "f.yaml:1:4: a: the tag !mine is not read; remove it"),
        ("a: " + "9" * 5000, f"f.yaml:1:4: a: '{'9' * 40}' is not a number that can be read"),
    ],
)
def test_what_leaves_the_rest_readable_is_noted(text, message):
    assert complaints(text) == [message]


def test_of_duplicate_keys_the_first_one_counts():
    assert read_document("a: 1\na: 2\nb: 3", "f.yaml").data == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: is empty; a scenario has keys such as model, gpu and layouts"),
        ("# only a comment\n", "f.yaml: is empty; a scenario has keys such as model, gpu and layouts"),
        ("- a\n- b", "f.yaml:1:1: must hold keys such as model, gpu and layouts, not a list"),
        ("\nword", "f.yaml:2:1: must hold keys such as model, gpu and layouts, not one value"),
        ("a:\n\tb: 1", "f.yaml:2:1: a tab cannot indent YAML; use spaces"),
        ("name: X: y", "f.yaml:1:8: a second ': ' on one line; put a text that contains ': ' in quotes"),
        (
            "a:1\nb: 2",
            "f.yaml:2:2: a key does not fit here; is a space missing after a ':' above, or is the indentation off?",
        ),
        ("a: 1\nb\nc: 2", "f.yaml:2:1: this line is not a 'key: value'"),
        ("a:\n  b: 1\n c: 2", "f.yaml:3:2: the indentation does not fit the lines above"),
        ("a: [1, 2", "f.yaml:1:9: a bracket is not closed, or a comma is missing"),
        ("a: 'x", "f.yaml:1:6: a quote or a bracket is never closed"),
        ("a: }", "f.yaml:1:4: a value is missing, or a bracket closes what was never opened"),
        ("a: @x", "f.yaml:1:4: a value cannot start with '@'; put it in quotes"),
        ("a: *x", "f.yaml:1:4: the alias has no anchor above it"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: starts a second YAML document; a file is one, so remove the '---'"),
        ("a: \x00", "f.yaml:1:1: holds a control character; is it a text file?"),
        (b"a: 1\nb: \xff", "f.yaml:2:1: is not UTF-8 text (byte 0xff)"),
        ("a: &x [*x]", "f.yaml:1:4: is nested more than 32 levels deep, or refers to itself"),
        ("[" * 5000, "f.yaml: is nested more than 32 levels deep"),
        ("".join(f"{' ' * i}a:\n" for i in range(600)), "f.yaml: is nested more than 32 levels deep"),
        ("a: " + "x" * MOST_BYTES, "f.yaml: is larger than 1,048,576 bytes; is it a scenario?"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    assert refusal(text) == message


def test_an_alias_bomb_is_refused_before_it_goes_off():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "holds more than 100,000 values once its aliases are written out" in refusal("\n".join(lines))


def test_files_that_cannot_be_opened(tmp_path):
    for path, reason in ((tmp_path / "no.yaml", "no such file or directory"), (tmp_path, "is a directory")):
        with pytest.raises(ScenarioError) as caught:
            read_file(path)
        assert str(caught.value) == f"{path}: cannot be read: {reason}"


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_text_raises_anything_but_a_scenario_error(content):
    with contextlib.suppress(ScenarioError):
        read_document(content, "f.yaml")


PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=12)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | PRINTABLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(PRINTABLE, PLAIN, min_size=1, max_size=4))
def test_what_is_written_reads_back_equal(data):
    document = read_document(to_yaml(data), "f.yaml")
    assert document.problems == []
    assert document.data == data
