"""Environments with a known contract: plain, with chance, or with memory.

Their ids and attributes do not reveal the kind. They were written without knowledge of the
detector in `cwm_cli.evaluation.finding`, and the detector should not be tuned on them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import gymnasium

PLAIN, CHANCE, MEMORY = frozenset({"plain"}), frozenset({"chance"}), frozenset({"memory"})

EXPECTED = {
    "plain": PLAIN,
    "chance": CHANCE,
    "memory": MEMORY,
    "delay": MEMORY,
    "hidden item": MEMORY,
}


class System(NamedTuple):
    """The kind of an environment, the acceptable contracts, and the reason in one sentence."""

    kind: str
    expected: frozenset[str]
    reason: str


class _Entry(NamedTuple):
    """How an environment is registered, and its kind."""

    module: str
    max_steps: int
    kind: str
    reason: str
    expected: frozenset[str] | None = None


_ENTRIES = {
    "Thermostat": _Entry(
        "plants", 100, "plain", "The hysteresis depends on the relay, which is shown."
    ),
    "Sluice": _Entry(
        "plants", 120, "plain", "Saturation, dead band and rate limit depend on the shown levels."
    ),
    "Boiler": _Entry(
        "plants", 80, "plain", "The lags have states, which are shown, as is the last action."
    ),
    "Turntable": _Entry(
        "machines", 100, "plain", "Angles wrap and the speed saturates, but all are shown."
    ),
    "Loom": _Entry("machines", 150, "plain", "All counters are shown."),
    "Belfry": _Entry(
        "machines", 200, "plain", "The bell strikes rarely, but the wheels determine when."
    ),
    "Belt": _Entry("machines", 100, "plain", "Parts leave late, but the whole belt is shown."),
    "Courtyard": _Entry("boards", 150, "plain", "Walls, coins and wells never change."),
    "Bazaar": _Entry("markets", 60, "plain", "The prices are chaotic but deterministic."),
    "Puck": _Entry("vehicles", 120, "plain", "Contacts depend on place and velocity only."),
    "Fuse": _Entry("plants", 60, "chance", "The end of the episode is random."),
    "Press": _Entry("machines", 100, "chance", "The press breaks at random, at 1 stroke in 20."),
    "Ladder": _Entry("boards", 100, "chance", "The moves are dice rolls."),
    "Catacomb": _Entry("boards", 100, "chance", "In 3 steps of 100 the target is random."),
    "Rink": _Entry("boards", 60, "chance", "In 15 steps of 100 the skater slips."),
    "Stall": _Entry("markets", 50, "chance", "The reward of a throw is random."),
    "Buoy": _Entry("vehicles", 100, "chance", "The speed has small additive noise."),
    "Glider": _Entry("vehicles", 150, "chance", "Below altitude 2 the altitude has noise."),
    "Toaster": _Entry("machines", 60, "memory", "A hidden timer raises the lever."),
    "Lathe": _Entry("machines", 100, "memory", "The cut depends on the hidden wear."),
    "Expedition": _Entry(
        "boards", 80, "memory", "Steps in the wood depend on a lamp taken long before."
    ),
    "Shuttle": _Entry("markets", 40, "memory", "The bus has a hidden phase of period 6."),
    "Trolley": _Entry("vehicles", 80, "memory", "The direction depends on a hidden gear."),
    "Swing": _Entry("vehicles", 100, "memory", "The angular velocity is hidden."),
    "Kiln": _Entry("plants", 100, "delay", "The action takes effect three steps later."),
    "Tank": _Entry("plants", 100, "delay", "The shown level is a filtered hidden level."),
    "Crane": _Entry("machines", 100, "delay", "Commands wait in a hidden queue."),
    "Lift": _Entry("machines", 60, "delay", "The action takes effect two steps later."),
    "Vineyard": _Entry("markets", 40, "delay", "The reward is paid three steps later."),
    "Ledger": _Entry("markets", 50, "delay", "One of eight balances is shown one step late."),
    "Rover": _Entry("vehicles", 60, "delay", "The action takes effect one step later."),
    "Barge": _Entry("vehicles", 100, "delay", "Place and speed are shown two steps late."),
    "Manor": _Entry("boards", 100, "hidden item", "A hidden key opens the gate."),
    "Safe": _Entry(
        "boards",
        30,
        "hidden item",
        "The code is drawn at each reset: random at first, known after the safe was open.",
        CHANCE | MEMORY,
    ),
    "Locker": _Entry("boards", 60, "hidden item", "The contents of the lockers are hidden."),
    "Tug": _Entry(
        "vehicles", 80, "hidden item", "Hidden cargo slows the tug and pays at the ship."
    ),
}

SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        f"{name}-v0": System(entry.kind, entry.expected or EXPECTED[entry.kind], entry.reason)
        for name, entry in _ENTRIES.items()
    }
)

for _name, _entry in _ENTRIES.items():
    gymnasium.register(
        id=f"{_name}-v0",
        entry_point=f"{__name__}.{_entry.module}:{_name}",
        max_episode_steps=_entry.max_steps,
    )
