"""The door and the playground: their rules, their words, and what `cwm` does with them."""

import pytest
from gymnasium.utils.env_checker import check_env

from cwm_cli.data.dataset import Transition
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.worlds.statistician import text_transitions
from cwm_playground.door import ATTRIBUTES, ITEMS, RULES, Door


def opened(**env_args):
    """Return the items to which a door opens, as its steps have it."""
    env = environment("Door-v0").make(**env_args)
    found = []
    for action, item in enumerate(ITEMS):
        assert env.reset(seed=action)[0] == 0
        observation, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (float(observation), True, False)
        found += [item] * observation
    return found


class TestDoor:
    @pytest.mark.parametrize(
        ("rule", "count"),
        [
            ("not blue", 18),
            ("not a blue key", 24),
            ("neither green nor large", 12),
            ("always", 27),
            ("never", 0),
        ],
    )
    def test_it_opens_by_the_rule_that_it_was_given(self, rule, count):
        assert len(opened(rule=rule)) == count
        assert opened(rule=rule) == [item for item in ITEMS if RULES[rule](item)]

    def test_a_random_rule_fixes_as_many_attributes_and_stays_the_same(self):
        for fixed in range(4):
            drawn = [opened(fixed=fixed, rule_seed=seed) for seed in range(6)]
            assert {len(items) for items in drawn} == {27 // 3**fixed}
            assert drawn[2] == opened(fixed=fixed, rule_seed=2)
            assert len({tuple(items) for items in drawn}) > 1 or not fixed
        assert len(opened()) == 3

    def test_it_is_an_environment_as_gymnasium_has_it(self):
        check_env(Door(render_mode="ansi"), skip_render_check=False)

    @pytest.mark.parametrize(
        ("env_args", "words"),
        [
            ({"rule": "not blu"}, "did you mean"),
            ({"fixed": 4}, "from 0 to 3"),
            ({"colour": "red"}, "argument"),
        ],
    )
    def test_arguments_that_it_does_not_have_are_refused_in_one_line(self, env_args, words):
        with pytest.raises(CwmError, match=words) as refused:
            environment("Door-v0").make(**env_args)
        assert len(str(refused.value).splitlines()) == 1

    def test_its_words_tell_the_item_and_what_followed_and_never_the_rule(self):
        spec = environment("Door-v0")
        env = spec.make(rule="not a blue key")
        view = spec.text(env)
        rows = [Transition(0, action, *_step(env, action)) for action in view.legal(0)]
        transitions = text_transitions(view, rows)
        assert [each.change.kind for each in transitions].count("closed") == 3
        assert all(each.facts.keys() == ATTRIBUTES.keys() for each in transitions)
        blue = ITEMS.index(("small", "blue", "key"))
        assert transitions[blue].action == "You hold the small blue key before the door."
        assert transitions[blue].change.text == "The door stays closed."
        told = view.guide() + spec.describe(env)
        assert "rule" not in told
        assert told == spec.text(spec.make(rule="never")).guide() + spec.describe(spec.make())
        assert ITEMS[view.solution(0, view.goals[0])[0]] in opened(rule="not a blue key")
        never = spec.text(spec.make(rule="never"))
        assert never.reachable(0) == (True, False)
        with pytest.raises(CwmError, match="opens to nothing"):
            never.solution(0, never.goals[0])


def _step(env, action):
    env.reset(seed=0)
    return env.step(action)[:3]
