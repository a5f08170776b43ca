"""Programs for observations of words, from transitions alone."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import environment
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.worlds import ProgramModel
from cwm_induction.backend import Induction
from cwm_induction.vocabulary import MAX_WORDS, Vocabulary

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


class Garden(gym.Env):
    """A board of words in a dict; a walk into the pond ends the episode without the walker."""

    word = spaces.Text(8, charset="abcdefghijklmnopqrstuvwxyz")
    row = spaces.Tuple([word] * 5)
    observation_space = spaces.Dict({"garden": spaces.Tuple([row] * 4), "season": word})
    action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        places = [divmod(int(place), 5) for place in self.np_random.choice(20, 3, replace=False)]
        self.walker, self.pond, self.tree = places
        return self._seen(), {}

    def step(self, action):
        down, right = MOVES[action]
        row, column = self.walker[0] + down, self.walker[1] + right
        if 0 <= row < 4 and 0 <= column < 5 and (row, column) != self.tree:
            self.walker = row, column
        return self._seen(), 0.0, self.walker == self.pond, False, {}

    def _seen(self):
        words = {self.walker: "walker", self.tree: "tree", self.pond: "pond"}
        garden = (
            tuple(words.get((row, column), "grass") for column in range(5)) for row in range(4)
        )
        return {"garden": tuple(garden), "season": "spring"}


def record(env, episodes, seed=0):
    """Return the transitions of random episodes of at most 25 steps."""
    rows, valid = [], None
    for episode in range(episodes):
        observation, info = env.reset(seed=seed + episode)
        for _ in range(25):
            choices = info.get("valid_actions", range(env.action_space.n))
            action = int(env.np_random.choice(choices))
            following, reward, done, _, info = env.step(action)
            valid = info.get("valid_actions")
            row = Transition(observation, action, following, reward, done, episode=episode)
            rows.append(row._replace(valid=valid))
            observation = following
            if done:
                break
    found = space_of(env.observation_space), space_of(env.action_space, "actions")
    return Dataset.of(rows, observation_space=found[0], action_space=found[1])


def induced(data, sandbox):
    """Return the program that induction writes for a dataset."""
    problem = WorldModelProblem("", data, sandbox, AccuracyMetric.of(data))
    answer = Induction().complete(Request((), 0, Move(GENERATE), problem))
    return problem.read(answer.text, Move(GENERATE))


@pytest.mark.parametrize("make", [Garden, lambda: environment("RTFM-v0").make()])
def test_rules_of_a_board_of_words_hold_for_new_episodes(make, sandbox):
    program = induced(record(make(), 40), sandbox)
    new = record(make(), 10, seed=1000)
    score = evaluate(ProgramModel(program, sandbox), new, AccuracyMetric.of(new)).score
    assert score.observation > 0.99 and score.exact > 0.9, program


def test_text_that_never_differs_is_no_number():
    words = Vocabulary.of(record(Garden(), 40))
    assert set(words.words) == {"grass", "tree", "pond", "walker"}
    assert words.words[0] == "grass"
    assert len(words.places) == 20 and ("season",) not in words.places


def test_place_with_one_word_in_few_rows_is_a_number_if_others_have_the_word():
    data = record(Garden(), 40)
    visited = data[data.columns["episodes"] < 2]
    leaves = [leaf.name for leaf in data.observation_space.leaves("observations")]
    words = {name: set(visited.columns[name].tolist()) for name in leaves}
    assert len([name for name in leaves if words[name] == {"grass"}]) > 1
    assert len([name for name in leaves if words[name] == {"tree"}]) == 1
    assert len(Vocabulary.of(visited).places) == 19


def test_observations_with_numbers_or_many_words_have_no_vocabulary():
    numbers = space_of(spaces.Tuple([spaces.Discrete(3), Garden.word]))
    actions = space_of(Garden.action_space, "actions")
    rows = [Transition((n % 3, "ab"), 0, (0, "cd"), 0.0, False) for n in range(9)]
    data = Dataset.of(rows, observation_space=numbers, action_space=actions)
    assert Vocabulary.of(data) is None
    names = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(MAX_WORDS + 1)]
    rows = [Transition(name, 0, name, 0.0, False) for name in names]
    texts = space_of(Garden.word)
    assert Vocabulary.of(Dataset.of(rows, observation_space=texts, action_space=actions)) is None
    some = Dataset.of(rows[1:], observation_space=texts, action_space=actions)
    assert len(Vocabulary.of(some).words) == MAX_WORDS


def test_unknown_words_stay_as_they_are(sandbox):
    data = record(Garden(), 40)
    namespace = {}
    exec(induced(data, sandbox), namespace)
    model = namespace["Environment"]()
    garden = [["grass"] * 5 for _ in range(4)]
    garden[0][0], garden[3][4] = "walker", "statue"
    model.set_state({"garden": tuple(map(tuple, garden)), "season": "winter"})
    observation, *_ = model.step(np.int64(4))
    assert observation["garden"][0][:2] == ("grass", "walker")
    assert observation["garden"][3][4] == "statue" and observation["season"] == "winter"
