"""The household environments: rules, missions, observations and induction on them."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cwm_cli.commands.recording import record
from cwm_cli.envs.simulators import Opening
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_household import TASKS
from cwm_household.house import (
    ACTIONS,
    CHORES,
    PLACES,
    SUITABLE,
    Chore,
    Household,
    HouseholdItem,
    State,
)
from cwm_induction.objects.inducing import induce

FAMILIES = TASKS["Household-v0"]
FRIDGE, MICROWAVE, SINK, TABLE, DESK = map(
    PLACES.index, ("fridge", "microwave", "sink", "table", "desk")
)


def make_house(chore, place, *items, opened=(), lit=False):
    """Return a household in a given state."""
    house = Household(FAMILIES, render_mode="ansi")
    assert chore.words in CHORES
    house.chore, house.state = chore, State(place, frozenset(opened), lit, items)
    return house


def execute(house, *sentences):
    """Execute sentences, and return reward and termination of each step."""
    return [house.step(ACTIONS.index(sentence))[1:3] for sentence in sentences]


def solution(house):
    """Return a shortest plan for the mission, by breadth-first search.

    The plan uses only actions that concern the thing of the mission.
    """
    kind, family = house.chore.kind, house.chore.family
    verbs = {"go", "open", "put", "take", "use" if family == "examine" else family}
    usable = {
        number
        for number, sentence in enumerate(ACTIONS)
        if (verb := sentence.split()[0]) in verbs and (verb != "take" or sentence.endswith(kind))
    }
    start = house.state
    paths, waiting = {start: []}, [start]
    for here in waiting:
        house.state = here
        for action in set(house.valid_actions()) & usable:
            there = here.after(action)
            if there in paths:
                continue
            paths[there] = [*paths[here], action]
            if house.is_fulfilled(there):
                house.state = start
                return paths[there]
            waiting.append(there)
    raise AssertionError(f"no plan for: {house.chore.words}")


APPLE, MUG, BOOK = (
    HouseholdItem("apple", TABLE),
    HouseholdItem("mug", TABLE),
    HouseholdItem("book", TABLE),
)
NOTHING = (0.0, False)


class TestRules:
    def test_agent_carries_one_thing_at_a_time(self):
        house = make_house(Chore("pick", "apple", "desk"), TABLE, APPLE, MUG)
        answers = execute(house, "take the apple", "take the mug", "go to the desk", "put it down")
        assert answers == [NOTHING] * 3 + [(1.0, True)]
        assert house.state.items == (APPLE._replace(place=DESK), MUG)

    def test_closed_place_shows_things_but_rejects_take_and_put(self):
        inside = HouseholdItem("apple", FRIDGE)
        house = make_house(Chore("pick", "apple", "table"), FRIDGE, inside, MUG)
        assert "(closed): the apple" in house.render()
        execute(house, "take the apple")
        assert house.state.held is None
        execute(house, "open the fridge", "take the apple", "close the fridge", "put it down")
        assert house.state.held is not None

    @pytest.mark.parametrize(
        ("family", "thing", "place", "sentence"),
        [
            ("heat", APPLE, "microwave", "heat it"),
            ("cool", APPLE, "fridge", "cool it"),
            ("clean", MUG, "sink", "clean it"),
        ],
    )
    def test_things_are_heated_cooled_and_cleaned_only_at_the_work_place(
        self, family, thing, place, sentence
    ):
        house = make_house(Chore(family, thing.kind, "desk"), TABLE, thing)
        assert execute(
            house, f"take the {thing.kind}", sentence, "go to the desk", "put it down"
        ) == ([NOTHING] * 4)
        opening = [] if place == "sink" else [f"open the {place}"]
        plan = [f"take the {thing.kind}", f"go to the {place}", *opening, sentence]
        assert execute(house, *plan, "go to the desk", "put it down")[-1] == (1.0, True)

    def test_heated_thing_is_no_longer_cool(self):
        house = make_house(
            Chore("cool", "apple", "desk"),
            MICROWAVE,
            HouseholdItem("apple", MICROWAVE, "cool", held=True),
            opened=["microwave"],
        )
        assert execute(house, "heat it", "go to the desk", "put it down")[-1] == NOTHING
        assert house.state.items[0].temperature == "hot"

    def test_examining_needs_a_held_thing_at_the_desk_and_the_lamp_on(self):
        house = make_house(Chore("examine", "book"), TABLE, BOOK)
        assert execute(house, "use the lamp", "go to the desk", "use the lamp") == [NOTHING] * 3
        assert execute(house, "go to the table", "take the book") == [NOTHING] * 2
        assert execute(house, "go to the desk") == [(1.0, True)]

    def test_valid_actions_change_the_state(self):
        env = environment("Household-v0").make()
        env.reset(seed=1)
        house, rng = env.unwrapped, np.random.default_rng(0)
        for _ in range(60):
            before, valid = house.state, house.valid_actions()
            action = int(rng.integers(len(ACTIONS)))
            info = env.step(action)[4]
            assert (action in valid) == (house.state != before) or ACTIONS[action].endswith("it")
            assert info["valid_actions"] == house.valid_actions()

    def test_valid_actions_are_complete(self):
        house = make_house(Chore("pick", "apple", "desk"), TABLE, APPLE)
        valid = {ACTIONS[action] for action in house.valid_actions()}
        going = {f"go to the {place}" for place in PLACES if place != "table"}
        assert valid == {*going, "take the apple"}


class TestTasks:
    @pytest.mark.parametrize("name", TASKS)
    def test_every_mission_can_be_fulfilled_with_reward_one(self, name):
        env = environment(name).make()
        for seed in range(4):
            env.reset(seed=seed)
            house = env.unwrapped
            assert house.chore.family in TASKS[name] and not house.is_fulfilled(house.state)
            *before, last = [env.step(action)[1:4] for action in solution(house)]
            assert set(before) <= {(0.0, False, False)} and last == (1.0, True, False)

    def test_missions_are_unique_and_name_suitable_things(self):
        assert len(CHORES) == len(set(CHORES.values())) > 150
        assert all(chore.kind in SUITABLE[chore.family] for chore in CHORES.values())
        env, families = environment("Household-v0").make(), set()
        for seed in range(60):
            env.reset(seed=seed)
            families.add(env.unwrapped.chore.family)
        assert families == set(FAMILIES)


class TestEnvironment:
    def test_observations_are_in_the_space(self):
        env = environment("Household-v0").make()
        check_env(env.unwrapped, skip_render_check=True)
        observation, _ = env.reset(seed=0)
        kinds = [
            thing.kind
            for thing in environment("Household-v0").objects(env).decode(observation["objects"])
        ]
        assert kinds[:-4] == ["agent", *PLACES, "lamp"] and len(set(kinds[-4:])) == 4

    def test_household_is_restored_exactly_from_observations(self):
        spec = environment("Household-v0")
        rows = record(spec, episodes=2, test_episodes=1, max_steps=40, policy="random")
        answers = EnvironmentModel(spec).predict(rows)
        assert answers.answered.all()
        for column, values in answers.columns.items():
            if column.startswith(("next_observations", "rewards", "terminations", "valid")):
                np.testing.assert_array_equal(values, rows.columns[column])

    def test_opening_detects_a_deterministic_fully_observed_household(self):
        opening = Opening.of(environment("Household-v0"), {})
        assert opening.deterministic and opening.observed

    def test_shift_moves_work_places_and_the_guide_does_not_reveal_them(self):
        spec = environment("Household-Heat-v0")
        standard, shifted = spec.make(), spec.make(shift=1)
        assert shifted.unwrapped.work_places != standard.unwrapped.work_places
        assert "at the microwave, the fridge or the sink" in spec.describe(standard)
        assert "different from most households" in spec.describe(shifted)
        shifted.reset(seed=0)
        assert solution(shifted.unwrapped)

    def test_household_renders_as_text(self):
        house = make_house(Chore("heat", "apple", "table"), FRIDGE, APPLE._replace(held=True), MUG)
        text = house.render()
        assert "Mission: put the hot apple on the table." in text
        assert "the fridge (closed) <- you are here" in text
        assert "You hold the apple." in text

    def test_unknown_argument_is_an_error(self):
        with pytest.raises(CwmError, match="unknown argument of Household-v0"):
            environment("Household-v0").make(rooms=3)

    def test_induction_finds_the_rules_without_rows_of_movement(self):
        spec = environment("Household-v0")
        rows = record(spec, episodes=3, test_episodes=1, max_steps=30, policy="random").train
        rows = rows[np.flatnonzero(rows.columns["actions"] >= len(PLACES))]
        program = {}
        exec(induce(rows), program)
        world = program["Environment"]()
        for row in rows:
            world.set_state(row.observation)
            following, reward, terminated = world.step(row.action)[:3]
            np.testing.assert_array_equal(following["objects"], row.next_observation["objects"])
            assert (reward, terminated) == (row.reward, row.terminated)
