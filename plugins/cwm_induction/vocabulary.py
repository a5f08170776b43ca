"""Encode words as whole numbers, for observations that consist of texts.

A board whose cells are words, such as "empty" and "key", then has the same rules as one of
numbers. Texts that never differ in the data, such as walls, are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pprint import pformat

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.flattening import FIELDS

MAX_WORDS = 64
"""Largest number of different words; with more, texts are sentences or names."""

Place = tuple[str | int, ...]
"""The keys of a leaf, from the outermost part of an observation inwards."""

_PROGRAM = '''

WORDS = {words}
CODES = {{word: code for code, word in enumerate(WORDS)}}
PLACES = {places}  # of the words that are numbers, in order


def word_at(observation, place):
    """Return the word at a place of an observation."""
    for key in place:
        observation = observation[key]
    return observation


def replaced(observation, place, word):
    """Return an observation with another word at a place."""
    if not place:
        return word
    key, *inner = place
    parts = dict(observation) if isinstance(observation, dict) else list(observation)
    parts[key] = replaced(parts[key], inner, word)
    return parts if isinstance(observation, dict) else tuple(parts)


class Environment(Numbers):
    """Converts observations between words and numbers; unknown words never change."""

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.given = observation
        self.codes = [CODES.get(word_at(observation, place), -1) for place in PLACES]
        super().set_state(np.array(self.codes))

    def step(self, action):
        """Predict the outcome of an action."""
        numbers, reward, terminated = super().step(action)
        observation = self.given
        for place, code, number in zip(PLACES, self.codes, numbers):
            if number != code and 0 <= number < len(WORDS):
                observation = replaced(observation, place, WORDS[number])
        return observation, reward, terminated
'''


@dataclass(frozen=True)
class Vocabulary:
    """The words of a dataset, the most frequent first, and the leaves that they are in.

    `places` has the keys of each leaf, and `suffixes` the ends of the names of its columns.
    """

    words: tuple[str, ...]
    places: tuple[Place, ...]
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, data: Dataset) -> Vocabulary | None:
        """Return the words of a dataset, or None unless all leaves are texts of few words."""
        leaves = list(data.observation_space.leaves(""))
        if not len(data) or any(leaf.space.kind != "text" for leaf in leaves):
            return None
        places = dict(
            zip([leaf.name for leaf in leaves], _places(data.observation_space), strict=True)
        )
        found = {
            suffix: Counter(
                str(word) for name in FIELDS for word in data.columns[name + suffix].tolist()
            )
            for suffix in places
        }
        varying = [suffix for suffix, words in found.items() if len(words) > 1]
        words = sum((found[suffix] for suffix in varying), Counter[str]())
        if not 1 < len(words) <= MAX_WORDS:
            return None
        # A cell that few rows visit has one word, which varying cells at similar places have too.
        kinds = {(len(places[suffix]), places[suffix][-1:]) for suffix in varying}
        chosen = [
            suffix
            for suffix, place in places.items()
            if (len(place), place[-1:]) in kinds and found[suffix].keys() <= words.keys()
        ]
        by_frequency = tuple(word for word, _ in words.most_common())
        return cls(by_frequency, tuple(places[suffix] for suffix in chosen), tuple(chosen))

    def numbers(self, data: Dataset) -> Dataset:
        """Return the transitions with the number of each word instead of the word."""
        codes = {word: code for code, word in enumerate(self.words)}
        columns = {
            name: column
            for name, column in data.columns.items()
            if name.partition(".")[0] not in FIELDS
        }
        for name in FIELDS:
            texts = [data.columns[name + suffix].tolist() for suffix in self.suffixes]
            columns[name] = np.array([[codes[str(word)] for word in text] for text in texts]).T
        size, last = len(self.places), float(len(self.words) - 1)
        space = Space("multidiscrete", "int64", (size,), (0.0,) * size, (last,) * size)
        return replace(data, columns=columns, observation_space=space)

    def program(self, program: str) -> str:
        """Extend a program on numbers by the conversion from and to words."""
        if not program:
            return ""
        text = program.replace("class Environment:", "class Numbers:", 1).rstrip() + "\n"
        text += _PROGRAM.format(words=_listed(self.words), places=_listed(self.places))
        return text if "import numpy as np" in text else f"import numpy as np\n\n\n{text}"


def _listed(values: tuple[object, ...]) -> str:
    return pformat(values, width=92, compact=True, sort_dicts=False)


def _places(space: Space, place: Place = ()) -> list[Place]:
    """Return the keys of every leaf, in the order of the leaves."""
    if space.kind not in ("tuple", "dict"):
        return [place]
    keys: Iterable[str | int] = space.keys or range(len(space.children))
    pairs = zip(keys, space.children, strict=True)
    return [leaf for key, child in pairs for leaf in _places(child, (*place, key))]
