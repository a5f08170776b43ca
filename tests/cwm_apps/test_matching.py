"""An answer is right when its tokens or values are the expected ones."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm_apps.judging import equals, matches

SAME = [
    ("1 2\n3\n", "1 2\n3"),
    ("1 2  \r\n3\r\n\r\n", "1 2\n3"),
    ("1\n2\n3", "1 2 3"),
    ("", " \n"),
    ("YES", "YES\n"),
    ("5.0", "5"),
    ("5", "5.0"),
    ("1e2", "100"),
    ("0.3333333", "0.33333333333"),
    ("1000000.1", "1000000.9"),
    ("-0.0", "0"),
    ("nan inf -inf", "nan inf -inf"),
    ("9" * 5000, "9" * 5000),
    ("9" * 5000 + ".0", "9" * 5000),
    ("007", "007"),
]
OTHER = [
    ("", "1"),
    ("1", ""),
    (" \n", "0"),
    ("1 2", "1 2 3"),
    ("1 2 3", "1 2"),
    ("2 1", "1 2"),
    ("yes", "YES"),
    ("5.0000001", "5"),
    ("4", "5"),
    ("7", "007"),
    ("+5", "5"),
    ("0.3334", "0.33333333333"),
    ("inf", "Infinity"),
    ("nan", "0.0"),
    ("1e400", "1e500"),
    ("1e999999999", "5"),
    ("1e9999999999999999999", "5"),
    ("1_0.0", "10"),
    ("\u0665.0", "5"),
    ("12", "1 2"),
    ("9" * 5000, "9" * 4999 + "8"),
    ("9" * 5000 + ".0", "9" * 4999 + "8"),
]


def test_text_matches_with_different_spaces_and_fractions() -> None:
    assert not [pair for pair in SAME if not matches(*pair)]


def test_text_with_different_token_does_not_match() -> None:
    assert not [pair for pair in OTHER if matches(*pair)]


EQUAL = [
    (1, 1),
    (1, [1]),
    ([1], [[1]]),
    ([], [[]]),
    ([1, 2], [1, 2]),
    (0.1 + 0.2, 0.3),
    ([{"a": 1 / 3}], [{"a": 0.33333333}]),
    (5.0, 5),
    (5, 5.0),
    (True, True),
    (None, None),
    (float("nan"), float("nan")),
    (float("inf"), float("inf")),
    (10**5000, 10**5000),
]
UNEQUAL = [
    (1, "1"),
    ("1", 1),
    (1, [1, 2]),
    ([1], 1),
    ([2, 1], [1, 2]),
    (5.0000001, 5),
    (0.31, 0.3),
    (10**5000, 0.5),
    (float("inf"), 1.0),
    (float("nan"), 1.0),
    (float("inf"), float("-inf")),
    (None, [[]]),
    (None, 0),
    ("", None),
    ([], 0),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ("A", "a"),
    (object(), 1),
]


def test_value_equals_itself_alone_and_in_a_list() -> None:
    assert not [pair for pair in EQUAL if not equals(*pair)]


def test_value_equals_no_different_value() -> None:
    assert not [pair for pair in UNEQUAL if equals(*pair)]


TOKENS = st.sampled_from(["1", "1.", ".5", "1e9", "1e-400", "9" * 5000, "nan", "-", "+1.5", "x"])
TEXTS = st.text() | st.lists(TOKENS | st.sampled_from(" \n\r\t")).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@pytest.mark.slow
@given(TEXTS, TEXTS)
def test_texts_match_themselves_and_never_the_empty_text(one: str, other: str) -> None:
    assert matches(one, one)
    assert matches(one, other) in (True, False)
    assert matches(one, "") == (not one.split()) == matches("", one)


@pytest.mark.slow
@given(JSON, JSON)
def test_values_equal_themselves_without_exceptions(one: Any, other: Any) -> None:
    assert equals(one, one)
    assert equals(one, [one])
    assert equals(one, other) in (True, False)


def test_too_deeply_nested_values_equal_nothing() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert not equals(value, value)


@pytest.mark.parametrize(
    "token",
    ["123456789 ", "0.25\n", "x" * 5_000_000 + " "],
    ids=("integers", "fractions", "long tokens"),
)
def test_ten_megabytes_are_compared_within_seconds(token: str) -> None:
    text = token * (10_000_000 // len(token))
    began = time.process_time()
    assert matches(text, text.replace(" ", "  "))
    assert not matches(text + "1", text)
    assert time.process_time() - began < 10
