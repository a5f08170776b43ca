"""The choice of actors, and calls of actors whose program fails."""

from math import inf
from typing import Any

import gymnasium as gym
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_learn.acting import GuardedActor, choose_actor
from cwm_learn.actors.base import Actor, Intent, Knowledge


class SearchingActor(Actor):
    """An actor that runs the program for each call."""

    def _search(self, observation: Any) -> None:
        space = self.known.observation_space
        arrays = space.pack("observations", [observation])
        arrays["actions"] = self.known.action_space.pack("actions", [0])["actions"]
        self.known.imagination.ask("missions:predict_rows", arrays, space=space.to_json())

    def choose(self, observation: Any, left: int, aim: Any = None) -> None:
        self._search(observation)

    def predict(self, observation: Any, action: Any) -> None:
        self._search(observation)


def guarded(
    kind: type[Actor], known: Knowledge, env: gym.Env[Any, Any], sandbox: Sandbox, on_failure: Any
) -> GuardedActor:
    """Return a guarded actor without a time limit."""
    return GuardedActor(
        kind,
        known,
        env.action_space,
        sandbox,
        seconds_left=lambda: inf,
        on_failure=on_failure,
    )


def test_unbounded_actions_are_refused_with_the_spaces_that_can_be_learned() -> None:
    spaces = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-float("inf"), float("inf"), (1,))
    with pytest.raises(CwmError, match="bounded real-valued actions"):
        choose_actor(Knowledge(space_of(spaces[0]), space_of(spaces[1]), 10))


def test_failure_in_the_program_leads_to_a_valid_random_action() -> None:
    env, failures = gym.make("FrozenLake-v1"), list[Failure]()
    spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
    known = Knowledge(*spaces, 20)
    rows = Dataset.of([], observation_space=spaces[0], action_space=spaces[1])
    with Sandbox(Limits(), 2) as sandbox:
        actor = guarded(SearchingActor, known, env, sandbox, failures.append)
        assert actor.predict(0, 1) is None
        assert not failures  # there is no program yet
        actor.adopt("1 / 0", rows, is_stochastic=False)
        intent = actor.choose(0, 20, "exploit", (2,))
        assert (intent.action, intent.aim) == (2, "explore")
        assert actor.predict(0, 1) is None
        known.imagination.close()
    assert ["division by zero" in failure.message for failure in failures] == [True, True]


class PlayingActor(Actor):
    """An actor that plays action 3, and has no target without an aim."""

    def choose(self, observation: Any, left: int, aim: Any = None) -> Intent | None:
        return Intent(3, aim, "the plan") if aim else None


def test_play_is_random_while_it_was_worse_than_other_episodes() -> None:
    env = gym.make("FrozenLake-v1")
    known = Knowledge(space_of(env.observation_space), space_of(env.action_space, "actions"), 20)
    env.action_space.seed(0)
    with Sandbox(Limits(), 1) as sandbox:
        actor = guarded(PlayingActor, known, env, sandbox, pytest.fail)
        assert actor.choose(0, 20, "exploit", None) == (3, "exploit", "the plan", None)
        known.plays_badly = True
        chosen = [actor.choose(0, 20, "exploit", None) for _ in range(40)]
        assert {(intent.action, intent.aim) for intent in chosen} == {
            (action, "explore") for action in range(4)
        }
        assert actor.choose(0, 20, "probe", None).aim == "probe"
        assert actor.choose(0, 20, None, None) is None
