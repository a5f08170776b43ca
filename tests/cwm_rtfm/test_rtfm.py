"""Read to Fight Monsters: board, rules, texts, restoring, and evaluation of programs."""

import json
import re
import subprocess
import sys
from collections import Counter, deque
from itertools import pairwise, permutations, product

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cwm_benchmark.configuration import environments_of
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.simulators import simulator
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.worlds import ProgramModel
from cwm_rtfm import cwm_environments
from rtfm_program import AXE, BOW, DEMON, DRAGON, GOAL, MANUAL, PROGRAM

PLAIN, SHUFFLED = "RTFM-v0", "RTFM-shuffled-v0"
BOTH = pytest.mark.parametrize("name", [PLAIN, SHUFFLED])

STAY, UP, DOWN, LEFT, RIGHT = range(5)
INNER = list(product(range(1, 5), repeat=2))
FOES = {(4, 1): DRAGON, (4, 4): DEMON}
MONSTERS = ("demon", "dragon", "jinn")


def spec_of(name):
    return cwm_environments()[name]()


def make_game(name=PLAIN, **arguments):
    env = spec_of(name).make(**arguments)
    env.reset(seed=0)
    return env


def board_of(words):
    """Return a board with these words by cell."""
    return tuple(
        tuple(
            (words.get((row, column), "empty") if (row, column) in INNER else "wall", "empty")
            for column in range(6)
        )
        for row in range(6)
    )


def game_at(words, held="empty", **arguments):
    """Return a game with these words by cell and this held item."""
    env = make_game(**arguments)
    assert spec_of(PLAIN).restore(env, (board_of(words), held))
    return env


def words_of(board):
    return {cell: board[cell[0]][cell[1]][0] for cell in INNER}


def place_of(board, word):
    return next((cell for cell, there in words_of(board).items() if there == word), None)


def play(env, steps, seed=0, *, past_the_end=False):
    """Yield the transitions of random valid actions over several episodes."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    episode = 0
    for _ in range(steps):
        action = int(rng.choice(info["valid_actions"]))
        following, reward, terminated, truncated, info = env.step(action)
        valid = info["valid_actions"]
        yield Transition(
            observation, action, following, reward, terminated, truncated, episode, valid=valid
        )
        observation = following
        if terminated and not (past_the_end and rng.random() < 0.5):
            observation, info = env.reset()
            episode += 1


def deviates(counts, expected, deviations=5):
    """Return whether counts deviate from their expectations significantly."""
    freedom = len(counts) - 1
    return np.sum((counts - expected) ** 2) / expected > freedom + deviations * np.sqrt(2 * freedom)


class TestBoard:
    @BOTH
    def test_observation_is_a_board_of_texts_with_walls_and_empty_second_slots(self, name):
        env = make_game(name)
        for transition in play(env, 300):
            seen = transition.next_observation
            assert env.observation_space.contains(seen)
            board, inventory = seen[:2]
            assert board == board_of(words_of(board)) and isinstance(inventory, str)
            assert len(seen) == (2 if name == PLAIN else 4)

    def test_episode_starts_with_five_things_in_different_cells(self):
        env = make_game()
        for seed in range(50):
            (board, inventory), info = env.reset(seed=seed)
            words = Counter(words_of(board).values())
            assert words == {"empty": 11, "you": 1, DRAGON: 1, DEMON: 1, AXE: 1, BOW: 1}
            assert inventory == "empty"
            assert info["valid_actions"] == env.valid_actions()

    def test_placements_are_uniform(self):
        env, resets = make_game(), 6000
        names = ("you", DRAGON, AXE, BOW, DEMON)
        boards = [env.reset()[0][0] for _ in range(resets)]
        cells = [[place_of(board, name) for name in names] for board in boards]
        for column in zip(*cells, strict=True):
            counts = Counter(column)
            assert not deviates(np.array([counts[cell] for cell in INNER]), resets / 16)
        for one, other in permutations(range(5), 2):
            counts = Counter((row[one], row[other]) for row in cells)
            pairs = np.array([counts[pair] for pair in permutations(INNER, 2)])
            assert pairs.sum() == resets and not deviates(pairs, resets / 240)

    @pytest.mark.parametrize(
        ("action", "cell"),
        [(STAY, (2, 2)), (UP, (1, 2)), (DOWN, (3, 2)), (LEFT, (2, 1)), (RIGHT, (2, 3))],
    )
    def test_player_moves_by_one_cell(self, action, cell):
        others = {(4, 4): DRAGON, (4, 1): DEMON, (1, 4): AXE}
        env = game_at({(2, 2): "you", **others})
        (board, _), reward, terminated, truncated, _ = env.step(action)
        assert board == board_of({cell: "you", **others})
        assert (reward, terminated, truncated) == (0.0, False, False)

    @pytest.mark.parametrize(
        ("cell", "actions"), [((1, 1), (UP, LEFT)), ((4, 4), (DOWN, RIGHT)), ((1, 3), (UP,))]
    )
    def test_wall_stops_the_player(self, cell, actions):
        words = {cell: "you", (2, 2): DRAGON, (3, 3): DEMON}
        for action in actions:
            seen, reward, terminated, _, _ = game_at(words).step(action)
            assert seen == (board_of(words), "empty") and (reward, terminated) == (0.0, False)


class TestRules:
    def test_new_item_replaces_the_held_item(self):
        env = game_at({(1, 1): "you", (1, 2): AXE, (1, 3): BOW, **FOES})
        assert env.step(RIGHT)[0] == (board_of({(1, 2): "you", (1, 3): BOW, **FOES}), AXE)
        assert env.step(RIGHT)[0] == (board_of({(1, 3): "you", **FOES}), BOW)
        assert env.step(LEFT)[0] == (board_of({(1, 2): "you", **FOES}), BOW)

    @pytest.mark.parametrize(
        ("held", "foe", "wins", "reward"),
        [
            ("empty", DRAGON, False, -1),
            ("empty", DEMON, False, -1),
            (BOW, DRAGON, False, -1),
            (AXE, DEMON, False, -1),
            (AXE, DRAGON, True, 1),
            (BOW, DEMON, True, -1),
            ("shimmering shield", DRAGON, True, 1),
            ("blessed axe", DRAGON, False, -1),
        ],
    )
    def test_modifier_decides_a_fight_and_goal_decides_the_reward(self, held, foe, wins, reward):
        other = DEMON if foe == DRAGON else DRAGON
        env = game_at({(2, 2): "you", (2, 3): foe, (4, 4): other}, held)
        seen, *rest = env.step(RIGHT)
        words = {(2, 3): "you"} if wins else {(2, 3): foe}
        assert seen == (board_of({**words, (4, 4): other}), held)
        assert rest[:3] == [reward, True, False]

    def test_player_survives_next_to_monsters(self):
        words = {(2, 2): "you", (2, 3): DRAGON, (3, 2): DEMON}
        env = game_at(words)
        for _ in range(5):
            assert env.step(STAY)[:3] == ((board_of(words), "empty"), 0.0, False)

    def test_step_1000_loses(self):
        env = game_at({(1, 1): "you", **FOES})
        before = [env.step(action)[1:4] for action in [STAY, UP, DOWN] * 333]
        assert set(before) == {(0.0, False, False)}
        assert env.step(STAY)[1:4] == (-1.0, True, False)
        assert env.step(STAY)[1:4] == (-1.0, True, False)

    def test_victory_in_step_1000_wins(self):
        env = game_at({(3, 1): "you", **FOES}, AXE)
        for _ in range(999):
            env.step(STAY)
        assert env.step(DOWN)[1:4] == (1.0, True, False)

    def test_reset_restarts_the_step_count(self):
        env = make_game()
        for _ in range(2):
            env.reset()
            ends = [env.step(STAY)[2] for _ in range(1000)]
            assert ends == [False] * 999 + [True]

    def test_step_without_an_end_has_the_penalty(self):
        env = game_at({(3, 1): "you", **FOES}, AXE, time_penalty=-0.02)
        assert [env.step(STAY)[1], env.step(LEFT)[1], env.step(DOWN)[1]] == [-0.02, -0.02, 1.0]

    @pytest.mark.parametrize("cell", INNER)
    def test_valid_actions_are_stay_and_directions_without_a_wall(self, cell):
        env = game_at({cell: "you"})
        row, column = cell
        ahead = [cell, (row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        valid = tuple(action for action in range(5) if ahead[action] in INNER)
        assert env.valid_actions() == valid == spec_of(PLAIN).valid_actions(env)
        assert env.step(STAY)[4]["valid_actions"] == valid

    def test_all_actions_are_valid_next_to_monsters_and_after_death(self):
        env = game_at({(2, 2): "you", (2, 3): DRAGON, (3, 2): DEMON})
        assert env.valid_actions() == (0, 1, 2, 3, 4)
        corner = game_at({(1, 1): "you", (1, 2): DRAGON, (3, 2): DEMON})
        assert corner.valid_actions() == (STAY, DOWN, RIGHT)
        assert corner.step(RIGHT)[4]["valid_actions"] == (0, 1, 2, 3, 4)

    def test_dead_player_stays_dead_after_the_end(self):
        env = game_at({(2, 2): "you", (2, 3): DRAGON, (4, 4): DEMON, (1, 2): AXE})
        dead = env.step(RIGHT)
        for action in range(5):
            assert env.step(action) == dead

    def test_winner_can_move_after_the_end_and_stays_winner(self):
        env = game_at({(3, 1): "you", (3, 2): BOW, **FOES}, AXE)
        assert env.step(DOWN)[1:3] == (1.0, True)
        seen, *rest = env.step(RIGHT)
        assert seen == (board_of({(4, 2): "you", (3, 2): BOW, (4, 4): DEMON}), AXE)
        assert rest[:2] == [1.0, True]

    def test_winner_who_dies_after_the_end_loses(self):
        env = game_at({(4, 2): "you", (4, 1): DRAGON, (4, 3): DEMON}, AXE)
        assert [env.step(action)[1:3] for action in (LEFT, RIGHT)] == [(1.0, True)] * 2
        assert env.step(RIGHT) == (
            (board_of({(4, 3): DEMON}), AXE),
            -1.0,
            True,
            False,
            {"valid_actions": (0, 1, 2, 3, 4)},
        )

    def test_random_valid_actions_win_one_episode_in_eight(self):
        env, returns = make_game(), []
        rng = np.random.default_rng(0)
        for seed in range(1000):
            _, info = env.reset(seed=seed)
            total, terminated, steps = 0.0, False, 0
            while not terminated and steps < 100:
                action = int(rng.choice(info["valid_actions"]))
                _, reward, terminated, _, info = env.step(action)
                total, steps = total + reward, steps + 1
            returns.append(total)
        assert 0.09 < returns.count(1.0) / 1000 < 0.15
        assert 0.82 < returns.count(-1.0) / 1000 < 0.90
        assert returns.count(0.0) < 20


class TestTexts:
    def test_manual_and_goal_of_the_paper_never_change(self):
        env = make_game()
        for seed in range(20):
            env.reset(seed=seed)
            assert (env.manual, env.goal) == (MANUAL, GOAL)

    def test_shuffled_game_shows_manual_and_goal(self):
        env = make_game(SHUFFLED)
        for transition in play(env, 100):
            assert transition.observation[2:] == transition.next_observation[2:]
            assert env.observation()[2:] == (env.manual, env.goal)

    def test_shuffled_game_draws_rules_monsters_and_items_uniformly(self):
        env, resets = make_game(SHUFFLED), 3000
        seen = [env.reset()[0] for _ in range(resets)]
        read = [parse_rules(manual, goal) for _, _, manual, goal in seen]
        casts = [find_cast(*observation) for observation in seen]
        groups = [{who: of for of, who in members.items()} for _, members, _ in read]
        columns = [
            (24, [tuple(beating.items()) for beating, _, _ in read]),
            (6, [tuple(members.items()) for _, members, _ in read]),
            (3, [group for _, _, group in read]),
            (12, [target for target, *_ in casts]),
            (8, [right.split()[1] for _, right, *_ in casts]),
            (
                6,
                [
                    (goal, of[cast[3].split()[1]])
                    for (_, _, goal), of, cast in zip(read, groups, casts, strict=True)
                ],
            ),
        ]
        for kinds, column in columns:
            counts = np.array(list(Counter(column).values()))
            assert len(counts) == kinds and not deviates(counts, resets / kinds)
        assert all(wrong.split()[1] != right.split()[1] for _, right, wrong, _ in casts)

    def test_shuffled_episode_is_consistent_with_its_manual(self):
        env = make_game(SHUFFLED)
        for seed in range(300):
            board, inventory, manual, goal = env.reset(seed=seed)[0]
            beating, members, group = parse_rules(manual, goal)
            assert list(members) == ["order of the forest", "rebel enclave", "star alliance"]
            assert list(beating) == ["cold", "fire", "lightning", "poison"]
            target, right, wrong, other = find_cast(board, inventory, manual, goal)
            assert target.split()[1] == members[group] != other.split()[1]
            assert target.split()[0] != other.split()[0]
            assert right.split()[0] == beating[target.split()[0]]
            assert wrong.split()[0] == beating[other.split()[0]]

    def test_player_with_the_manual_wins_almost_always(self):
        manual, goal = re.search(
            r"^Manual: (.*)\nGoal: (.*)$", spec_of(PLAIN).describe(make_game()), re.M
        ).groups()
        assert win_rate(make_game(), lambda texts: (manual, goal)) > 0.97
        assert win_rate(make_game(SHUFFLED), lambda texts: texts) > 0.97

    def test_player_with_a_wrong_manual_loses_the_shuffled_game(self):
        assert win_rate(make_game(SHUFFLED), lambda texts: (MANUAL, GOAL)) < 0.5

    def test_game_renders_as_text(self):
        env = make_game(render_mode="ansi")
        words = {(1, 1): "you", (2, 3): DRAGON, (4, 4): DEMON}
        assert env.restore((board_of(words), AXE))
        assert env.render().splitlines() == [
            "wall  wall  wall  wall         wall        wall",
            "wall  you   .     .            .           wall",
            "wall  .     .     cold dragon  .           wall",
            "wall  .     .     .            .           wall",
            "wall  .     .     .            fire demon  wall",
            "wall  wall  wall  wall         wall        wall",
            "",
            f"inventory: {AXE}",
            f"manual: {MANUAL}",
            f"goal: {GOAL}",
        ]
        assert make_game().render() is None

    def test_description_contains_the_fixed_manual_and_goal(self):
        described = spec_of(PLAIN).describe(make_game(time_penalty=-0.02))
        assert f"Manual: {MANUAL}\nGoal: {GOAL}\n" in described
        assert "A tuple `(board, inventory)`." in described
        assert "Every other step rewards -0.02." in described
        assert not re.search(r"[{}]|RTFM|Rtfm", described)

    def test_description_of_the_shuffled_game_explains_the_manual(self):
        spec = spec_of(SHUFFLED)
        env = spec.make()
        before = spec.describe(env)
        env.reset(seed=3)
        assert spec.describe(env) == before
        assert "A tuple `(board, inventory, manual, goal)`." in before
        assert env.manual not in before and "drawn for each episode" in before


def parse_rules(manual, goal):
    """Return the modifier by element, the monster by group, and the group to defeat."""
    facts = re.findall(r"(\w+) (beat|are) ([\w ]+)\.", manual)
    beating = {element: modifier for modifier, verb, element in facts if verb == "beat"}
    members = {group: monster for monster, verb, group in facts if verb == "are"}
    assert len(beating) == len(set(beating.values())) == 4
    assert sorted(members.values()) == sorted(MONSTERS)
    return beating, members, goal.removeprefix("defeat the ")


def find_cast(board, inventory, manual, goal):
    """Return target, right item, wrong item and the other monster according to the manual."""
    beating, members, group = parse_rules(manual, goal)
    things = [word for word in words_of(board).values() if " " in word]
    foes = [thing for thing in things if thing.split()[1] in MONSTERS]
    items = [thing for thing in things if thing not in foes]
    foes.sort(key=lambda foe: foe.split()[1] != members.get(group))
    items.sort(key=lambda item: item.split()[0] != beating[foes[0].split()[0]])
    return foes[0], *items, foes[1]


def win_rate(env, book, episodes=200):
    """Return the win rate of a player; `book` returns manual and goal, given those observed."""
    won = 0
    for seed in range(episodes):
        (board, inventory, *texts), _ = env.reset(seed=seed)
        target, right, wrong, other = find_cast(board, inventory, *book(texts))
        for goal, avoided in ((right, {target, other}), (target, {wrong, other})):
            for action in find_path(board, goal, avoided):
                (board, *_), reward, *_ = env.step(action)
        won += reward == 1
    return won / episodes


def find_path(board, goal, avoided):
    """Return a shortest path to a thing around things to avoid; `[STAY]` if there is none."""
    words = words_of(board)
    start = place_of(board, "you")
    queue, paths = deque([start]), {start: []}
    while queue:
        row, column = cell = queue.popleft()
        if words[cell] == goal:
            return paths[cell]
        for action, (y, x) in {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}.items():
            there = row + y, column + x
            if there in words and there not in paths and words[there] not in avoided:
                paths[there] = [*paths[cell], action]
                queue.append(there)
    return [STAY]


class TestEnvironment:
    @BOTH
    @pytest.mark.filterwarnings("ignore:.*alternative render modes")
    @pytest.mark.filterwarnings("error")
    def test_game_passes_the_environment_checker(self, name):
        check_env(spec_of(name).make(render_mode="ansi"))

    @BOTH
    def test_seed_determines_all_episodes(self, name):
        one, other = make_game(name), make_game(name)
        first = list(play(one, 200, seed=1))
        assert first == list(play(other, 200, seed=1)) == list(play(one, 200, seed=1))
        assert first != list(play(one, 200, seed=2))
        starts = [one.reset()[0] for _ in range(5)]
        assert len(set(starts)) == 5

    def test_step_before_reset_is_an_error(self):
        with pytest.raises(gym.error.ResetNeeded):
            spec_of(PLAIN).make().step(0)

    @pytest.mark.parametrize("action", [5, -1, "up", 1.0])
    def test_invalid_action_is_an_error(self, action):
        with pytest.raises(ValueError, match="there is no action"):
            make_game().step(action)

    @BOTH
    def test_observation_space_converts_to_json(self, name):
        space = space_of(make_game(name).observation_space)
        assert Space.from_json(json.loads(json.dumps(space.to_json()))) == space
        leaves = [leaf for _, leaf in space.leaves("observations")]
        assert len(leaves) == (73 if name == PLAIN else 75)
        assert {leaf.kind for leaf in leaves} == {"text"}
        assert [leaf.max_length for leaf in leaves[:73]] == [len("grandmasters polearm")] * 73
        assert [leaf.max_length for leaf in leaves[73:]] in ([], [len(MANUAL), len(GOAL)])

    @BOTH
    def test_simulator_equals_the_environment(self, name):
        spec = spec_of(name)
        model, twin = simulator(spec, {}, seed=7), spec.make()
        assert model.deterministic and model.rewinder.how == "attributes"
        rng = np.random.default_rng(0)
        observation, info = twin.reset(seed=5)
        for _ in range(200):
            state = model.state_of(twin, observation)
            action = int(rng.choice(info["valid_actions"]))
            observation, reward, terminated, _, info = twin.step(action)
            for _ in range(2):
                model.stand(state)
                answer = (observation, reward, terminated, info["valid_actions"])
                assert model.step(action) == answer
            if terminated:
                observation, info = twin.reset()

    @BOTH
    def test_saved_game_keeps_random_state_and_step_count(self, name):
        spec = spec_of(name)
        rewinder, other = simulator(spec, {}, seed=7).rewinder, spec.make()
        other_rewinder = type(rewinder)(other)
        other.reset(seed=4)
        for _ in range(995):
            other.step(STAY)
        state = other_rewinder.save()
        truth = [other.step(STAY)[:3] for _ in range(6)]
        start = other.reset()[0]
        assert truth[4][1:] == (-1.0, True) and truth[3][1:] == (0.0, False)
        other_rewinder.load(state)
        assert [other.step(STAY)[:3] for _ in range(6)] == truth
        assert other.reset()[0] == start

    @BOTH
    def test_restored_game_repeats_recorded_transitions(self, name):
        spec, env = spec_of(name), make_game(name)
        fresh = make_game(name)
        walk = list(play(env, 400, past_the_end=True))
        assert any(a.terminated and b.terminated for a, b in pairwise(walk))
        for transition in reversed(walk):
            assert spec.restore(fresh, transition.observation)
            assert fresh.observation() == transition.observation
            result = fresh.step(transition.action)
            assert result[:3] == transition[2:5]
            assert result[4]["valid_actions"] == transition.valid

    def test_restore_resets_the_step_count(self):
        env = make_game()
        start = env.observation()
        for _ in range(500):
            env.step(STAY)
        assert spec_of(PLAIN).restore(env, start)
        assert [env.step(STAY)[2] for _ in range(1000)] == [False] * 999 + [True]

    @pytest.mark.parametrize(
        "observation",
        [
            (board_of({(1, 1): "you", (2, 2): "you"}), "empty"),
            (board_of({(1, 1): "you", (2, 2): "wall"}), "empty"),
            (board_of({(1, 1): "you", (2, 2): "cold axe"}), "empty"),
            (board_of({(1, 1): "you"}), "axe"),
            (board_of({(1, 1): "you"}), DRAGON),
            (board_of({(1, 1): "you"})[1:], "empty"),
            (board_of({(1, 1): "you"}), "empty", MANUAL, GOAL),
            ((*board_of({})[:5], board_of({})[1]), "empty"),
            (tuple(tuple(cell[::-1] for cell in row) for row in board_of({})), "empty"),
            "empty",
            None,
        ],
    )
    def test_invalid_observation_is_rejected_without_changes(self, observation):
        env = make_game()
        before = env.observation()
        assert spec_of(PLAIN).restore(env, observation) is False
        assert env.observation() == before

    def test_invalid_manual_is_rejected(self):
        env = make_game(SHUFFLED)
        board = board_of({(1, 1): "you"})
        assert env.restore((board, "empty", MANUAL, GOAL))
        for manual, goal in (
            (MANUAL.replace("dragon", "goblin"), GOAL),
            (MANUAL.replace("shimmering", "gleaming"), GOAL),
            (MANUAL, "defeat the dragon"),
        ):
            assert env.restore((board, "empty", manual, goal)) is False
        assert env.observation() == (board, "empty", MANUAL, GOAL)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"time_penality": 1}, "did you mean time_penalty?"),
            ({"shuffled": True}, "unknown argument of RTFM-v0 'shuffled'"),
            ({"time_penalty": "high"}, "RTFM-v0 cannot be made with time_penalty='high'"),
            ({"time_penalty": float("nan")}, "is not a finite number"),
            ({"render_mode": "human"}, "unknown render mode 'human': choose 'ansi'"),
        ],
    )
    def test_invalid_arguments_are_reported_on_one_line(self, arguments, message):
        with pytest.raises(CwmError) as caught:
            spec_of(PLAIN).make(**arguments)
        assert message in str(caught.value) and "\n" not in str(caught.value)

    def test_plugin_imports_no_heavy_packages(self):
        code = (
            "import sys, cwm_rtfm; print(*cwm_rtfm.cwm_environments()); "
            "assert not {'numpy', 'gymnasium', 'pydantic'} & sys.modules.keys()"
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert answer.stderr == "" and answer.stdout.split() == [PLAIN, SHUFFLED, "rtfm"]

    def test_versions_contain_the_relevant_packages(self):
        assert {"rtfm", "gymnasium", "numpy"} == set(spec_of(PLAIN).versions())


@pytest.mark.slow
@BOTH
def test_program_needs_the_manual_of_the_shuffled_game(sandbox, name):
    env = make_game(name)
    spaces = [space_of(env.observation_space), space_of(env.action_space, "actions")]
    rows = list(play(env, 300))
    data = Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1])
    program = PROGRAM.replace("TOLD", repr((MANUAL, GOAL)), 1)
    assert (
        evaluate(ProgramModel(program, sandbox), data, AccuracyMetric.of(data)).score.exact == 1.0
    )
    unread = program.replace("self.told or ", "")
    score = evaluate(ProgramModel(unread, sandbox), data, AccuracyMetric.of(data)).score
    assert (score.exact == 1.0) == (name == PLAIN)


class TestWords:
    """The text view of the game."""

    HERE = {(1, 1): "you", (1, 2): DRAGON, (2, 1): DEMON}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("held", "action", "kind", "beats"),
        [
            (AXE, RIGHT, "won", "cold"),
            (AXE, DOWN, "died", "cold"),
            (BOW, DOWN, "missed", "fire"),
            ("empty", RIGHT, "died", "none"),
            (AXE, STAY, "stayed", "cold"),
        ],
    )
    def test_facts_of_a_step_contain_facts_of_the_manual(self, held, action, kind, beats):
        env = game_at(self.HERE, held)
        view = spec_of(PLAIN).text(env)
        seen = env.unwrapped.observation()
        row = Transition(seen, action, *env.step(action)[:3])
        assert view.change(row).kind == kind
        facts = view.facts(seen, action)
        assert facts["element that it beats"] == beats
        assert (
            facts["group ahead"]
            == {
                RIGHT: "order of the forest",
                DOWN: "rebel enclave",
                STAY: "none",
            }[action]
        )
        assert view.consequence(seen, action, view.change(row)) == row[2:5]
        likely = dict(
            zip([each.kind for each in view.candidates(seen)], view.reachable(seen), strict=True)
        )
        assert likely[kind] and not likely["ran out of time"]

    def test_change_names_the_taken_item(self):
        env = game_at({(1, 1): "you", (1, 2): AXE, **FOES})
        view, seen = spec_of(PLAIN).text(env), env.unwrapped.observation()
        row = Transition(seen, RIGHT, *env.step(RIGHT)[:3])
        assert view.change(row).fields == {"modifier": "shimmering", "item": "axe"}
        assert "You hold the shimmering axe." in view.state(row.next_observation)
        assert LEFT not in view.legal(seen)
        assert "beat cold" not in view.guide()


def test_alias_is_stored_as_the_id_and_counts_as_the_same_environment(cwm):
    collected = cwm.inside("collect", "--env", "rtfm", "--policy", "random", "--out", "rows.npz")
    assert collected.returncode == 0, collected.stderr
    assert Dataset.load(cwm.folder / "rows.npz").metadata["env"] == PLAIN
    assert environments_of("cwmb", [PLAIN, "rtfm"]) == (PLAIN,)
