"""The door and the playground: rules, text views and use by `cwm`."""

from collections import Counter

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Transition
from cwm_cli.envs.simulators import Opening
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment, find
from cwm_theorize.playground.door import ATTRIBUTES, ITEMS, RULES, Door
from cwm_theorize.playground.playground import (
    ACTIONS,
    GOALS,
    GRASP,
    NAMES,
    RELEASE_ALL,
    WATER,
    Playground,
    PlaygroundState,
    product,
    scene_of,
)
from cwm_theorize.statistician import Statistician, text_transitions


def opened(**env_args):
    """Return the items that open a door."""
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
    def test_door_opens_by_its_rule(self, rule, count):
        assert len(opened(rule=rule)) == count
        assert opened(rule=rule) == [item for item in ITEMS if RULES[rule](item)]

    def test_random_rule_fixes_attributes_and_is_reproducible(self):
        for fixed in range(4):
            drawn = [opened(fixed=fixed, rule_seed=seed) for seed in range(6)]
            assert {len(items) for items in drawn} == {27 // 3**fixed}
            assert drawn[2] == opened(fixed=fixed, rule_seed=2)
            assert len({tuple(items) for items in drawn}) > 1 or not fixed
        assert len(opened()) == 3

    def test_door_passes_check_env(self):
        check_env(Door(render_mode="ansi"), skip_render_check=False)

    @pytest.mark.parametrize(
        ("env_args", "words"),
        [
            ({"rule": "not blu"}, "did you mean"),
            ({"fixed": 4}, "from 0 to 3"),
            ({"colour": "red"}, "argument"),
        ],
    )
    def test_invalid_arguments_give_one_line(self, env_args, words):
        with pytest.raises(CwmError, match=words) as refused:
            environment("Door-v0").make(**env_args)
        assert len(str(refused.value).splitlines()) == 1

    def test_text_has_item_and_change_but_not_the_rule(self):
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
        output = view.guide() + spec.describe(env)
        assert "rule" not in output
        assert output == spec.text(spec.make(rule="never")).guide() + spec.describe(spec.make())
        assert ITEMS[view.solution(0, view.goals[0])[0]] in opened(rule="not a blue key")
        never = spec.text(spec.make(rule="never"))
        assert never.reachable(0) == (True, False)
        with pytest.raises(CwmError, match="is to never open"):
            never.solution(0, never.goals[0])


def _step(env, action):
    env.reset(seed=0)
    return env.step(action)[:3]


NAME = "PlaygroundText-v0"
THING = {name: thing for thing, name in enumerate(NAMES)}
CARROT, PEA = THING["carrot seed"], THING["pea seed"]
START = ("carrot seed", "potato seed", "pea seed", "baby cow", "baby giraffe", *["water"] * 3)


def lying(*names, foot="nothing", held=()):
    """Return a state by the names of its things."""
    ground = tuple(sorted(THING[name] for name in names))
    return PlaygroundState(
        ground, THING[foot] if foot != "nothing" else 0, tuple(map(THING.get, held))
    )


def done(scene, *sentences):
    """Apply valid actions, and return the state after them."""
    for sentence in sentences:
        action = ACTIONS.index(sentence)
        assert action in scene.legal(), sentence
        scene = scene.after(action)
    return scene


def steps_of(env, policy, episodes):
    """Play episodes, and yield their transitions."""
    for number in range(episodes):
        observation, over = env.reset(seed=number)[0], False
        act = policy(observation, number)
        while not over:
            action = act(observation)
            after, reward, terminated, truncated, _ = env.step(action)
            yield Transition(observation, action, after, reward, terminated, episode=number)
            observation, over = after, terminated or truncated


class TestPlayground:
    def test_plant_grows_from_seed_and_water_in_any_order(self):
        scene = done(lying(*START), "go to the water", "grasp", "go to the pea seed")
        grown = done(scene, "release the first")
        assert grown == lying(*(set(START) - {"pea seed"}), "water", "pea", foot="pea")
        other = done(lying(*START), "go to the pea seed", "grasp", "go to the water")
        assert done(other, "release the first") == grown

    def test_small_animal_needs_one_plant_and_big_animal_two(self):
        small = lying("baby cow", foot="baby cow", held=["pea"])
        assert done(small, "release the first") == lying("cow", foot="cow")
        big = lying("baby giraffe", "pea", foot="pea", held=["carrot", "baby giraffe"])
        assert done(big, "release all") == lying(
            "baby giraffe", "giraffe", foot="giraffe"
        )._replace(ground=(THING["baby giraffe"], THING["giraffe"]))
        assert not product(THING["pea"], THING["baby giraffe"])
        assert not product(THING["pea"], THING["carrot"], THING["baby cow"])

    def test_release_must_grow_something_and_hands_hold_two_things(self):
        scene = done(lying(*START), "go to the water", "grasp", "go to the water", "grasp")
        assert scene.held == (WATER, WATER)
        there = done(scene, "go to the baby cow").legal()
        assert not {GRASP, RELEASE_ALL} & {*there}
        assert max(there) == WATER
        both = done(scene, "go to the pea seed").legal()
        assert [ACTIONS[action] for action in both[-2:]] == [
            "release the first",
            "release the second",
        ]

    def test_invalid_action_changes_nothing(self):
        env = Playground()
        before = env.reset(seed=1)[0]
        for action in set(range(env.action_space.n)) - set(env.valid_actions()):
            after, reward, terminated, *_ = env.step(action)
            assert (reward, terminated) == (0.0, False)
            np.testing.assert_array_equal(after, before)

    def test_playground_passes_check_env_and_restores_states(self):
        check_env(Playground(render_mode="ansi"), skip_render_check=False)
        spec = environment(NAME)
        env, other = spec.make(), spec.make()
        other.reset(seed=5)
        opening = Opening.of(spec, {})
        assert opening.deterministic and opening.observed
        for row in steps_of(
            env, lambda seen, number: lambda seen: env.unwrapped.valid_actions()[-1], 2
        ):
            assert spec.restore(other, row.observation)
            np.testing.assert_array_equal(other.unwrapped.step(row.action)[0], row.next_observation)
        broken = row.observation.copy()
        broken[-1], broken[-2] = CARROT, 0
        assert not spec.restore(other, broken)

    @pytest.mark.parametrize(("goal", "steps"), [("plant", 4), ("small", 7), ("big", 19)])
    def test_oracle_reaches_every_goal_in_fewest_steps(self, goal, steps):
        spec = environment(NAME)
        env = spec.make(goal=goal)
        view = spec.text(env)
        words = view.goals[[*GOALS].index(goal)]
        assert words in spec.describe(env)

        def oracle(observation, number):
            way = iter(view.solution(observation, words))
            return lambda seen: next(way)

        rows = [*steps_of(env, oracle, 20)]
        assert len(rows) == 20 * steps
        assert sum(row.terminated for row in rows) == sum(row.reward for row in rows) == 20

    def test_unreachable_goal_is_reported(self):
        view = environment(NAME).text(Playground())
        stuck = lying("baby cow", held=["water", "pea seed"]).numbers()
        with pytest.raises(CwmError, match="held or gone"):
            view.solution(stuck, view.goals[0])
        with pytest.raises(CwmError, match="unknown goal"):
            view.solution(stuck, "grow a whale")

    def test_kinds_of_change_are_as_frequent_as_published(self):
        """88.5 % standing, 4.4 and 3.9 % holding, 2.9 % plants, few animals."""
        spec = environment(NAME)
        env = spec.make()
        view, rng = spec.text(env), np.random.default_rng(0)
        rows = [*steps_of(env, lambda *_: lambda seen: rng.choice(view.legal(seen)), 100)]
        share = Counter(view.change(row).kind for row in rows)
        assert share.pop("standing") / len(rows) == pytest.approx(0.885, abs=0.015)
        assert [*dict(share.most_common(3))] == ["holding 2", "holding 1", "plant grown"]
        assert share["small animal grown"] + share["big animal grown"] < 0.01 * len(rows)
        seen = [row.observation for row in rows[::20]]
        sizes = [len(view.candidates(each)) for each in seen]
        assert (min(sizes) > 14, max(sizes) <= 47, 40 < np.mean(sizes) < 47) == (True,) * 3
        assert 5 < np.mean([sum(view.reachable(each)) for each in seen]) < 6.5
        assert all(view.features(each).sum() == len(scene_of(each).ground) + (each[-3:] > 0).sum()
                   for each in seen)  # fmt: skip

    def test_held_out_episodes_are_collected_as_published(self):
        """Nine episodes: three for each of the two hardest goals, and three random ones."""
        spec = environment(NAME)
        test = record(
            spec,
            policy="oracle",
            policy_options={"plan": "ideal"},
            episodes=1,
            test_episodes=9,
            min_test_rows=0,
        ).test
        lengths = Counter(np.unique(test.columns["episodes"], return_counts=True)[1].tolist())
        assert lengths == {7: 3, 19: 3, 30: 3}
        view = spec.text(spec.make())
        kinds = Counter(view.change(row).kind for row in test)
        assert kinds["big animal grown"] >= 3
        assert kinds["small animal grown"] >= 6
        assert kinds["plant grown"] >= 12

    def test_text_hides_rules_and_rejects_invalid_actions(self):
        spec = environment(NAME)
        view = spec.text(spec.make())
        scene = lying(*START, foot="water", held=["pea seed", "baby cow"])
        seen = scene.numbers()
        assert view.action(seen, ACTIONS.index("release the first")) == "You release the pea seed."
        facts = view.facts(seen, ACTIONS.index("release the first"))
        assert {facts["kind under foot"], facts["kind released"]} == {"water", "seed"}
        assert (facts["held"], facts["also held"]) == ("pea seed", "baby cow")
        with pytest.raises(CwmError, match="is not possible in"):
            view.change(Transition(seen, RELEASE_ALL, seen, 0.0, False))
        grown = next(each for each in view.candidates(seen) if each.text == "The carrot has grown.")
        output = view.consequence(seen, ACTIONS.index("release the first"), grown)
        assert "carrot" in view.state(output.observation)  # follows the words, not the rules
        assert view.consequence(seen, GRASP, grown) is None
        assert PEA in scene.held


def test_partially_observed_environment_has_no_text():
    spec = environment(NAME)
    with pytest.raises(CwmError, match="leave out"):
        spec.text(spec.make(hide=[28]))


SAID = {
    NAME: """
        If verb is go to, then standing with object the same as target.
        If verb is grasp and held is nothing, then holding 1 with object the same as under foot.
        If verb is grasp, then holding 2 with first the same as held and second the same as \
under foot.
        If verb is release and kind under foot is seed, then plant grown with species the same as \
species under foot.
        If verb is release and kind released is seed, then plant grown with species the same as \
species released.
        If verb is release, then small animal grown.
        Otherwise, big animal grown.""",
    "RTFM-shuffled-v0": """
        If way is stay, then stayed.
        If ahead is item, then took with modifier the same as modifier ahead and item the same as \
item ahead.
        If ahead is nothing, then moved.
        If element that it beats is not the same as element ahead, then died.
        If group ahead is the same as group to defeat, then won.
        Otherwise, missed.""",
    "MiniGrid-DoorKey-5x5-v0": """
        If action is turn left, then turned with to the left.
        If action is turn right, then turned with to the right.
        If action is move forward and front is nothing, then moved.
        If action is move forward and front is goal, then won with by moved.
        If action is move forward and state of front is open, then moved.
        If action is pick up and front is key, then picked up with thing key.
        If action is drop and front is nothing and carried is key, then dropped.
        If action is toggle and state of front is open, then closed.
        If action is toggle and state of front is closed, then opened.
        If action is toggle and color of front is the same as color of carried and \
front is door, then opened.
        Otherwise, stayed.""",
}


@pytest.mark.parametrize("name", SAID)
def test_vocabulary_can_express_the_rules_of_each_environment(name):
    spec = environment(name)
    view = spec.text(spec.make())
    how = {"policy": "oracle", "policy_options": {"plan": "ideal"}} if view.goals else {}
    few = {"policy": "random", "episodes": 6, "max_steps": 30, "min_rows": 0}
    rows = record(spec, **few | how, test_episodes=1, min_test_rows=0).train
    transitions = text_transitions(view, rows)
    weighed = Statistician(view, find("backend", "symbolic")()).of_candidates(
        SAID[name], transitions
    )
    for transition, weights in zip(transitions, weighed, strict=True):
        best = [transition.candidates[place] for place in np.flatnonzero(weights == weights.max())]
        assert best == [transition.change]
