"""Instrumented programs record values, and try changes on single rows."""

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_induction.refining.laws import vote
from cwm_induction.refining.targets import TracedRows, find_targets
from cwm_induction.refining.tracing import ProgramTracer, Site, SourceChange, TracedSource, rename

CART = '''class Environment:
    """A cart with the class Environment in its docstring."""

    def set_state(self, observation):
        self.x, self.v = observation

    def step(self, action):
        push = action - 1
        v = self.v + 0.5 * push
        if v > 1:
            v = 1.0
        x = self.x + v
        return [x, v], 0.0, False
'''


def predict(program, rows):
    """Run a program in this process."""
    names = {}
    exec(program, names)
    environment, results = names["Environment"](), []
    for row in rows:
        environment.set_state(row.observation)
        results.append(environment.step(row.action))
    after, rewards, ends = zip(*results, strict=True)
    columns = rows.observation_space.pack("next_observations", after)
    return columns | {"rewards": np.array(rewards, float), "terminations": np.array(ends)}


def record(program, count=60):
    """Return rows of a program from random states."""
    names, rng, rows = {}, np.random.default_rng(0), []
    exec(program, names)
    environment = names["Environment"]()
    for n in range(count):
        before, action = rng.uniform(-1, 1, 2), int(rng.integers(3))
        environment.set_state(before)
        after, reward, end = environment.step(action)
        rows.append(Transition(before, action, np.array(after), reward, end, False, n))
    space = Space("box", "float64", (2,), (-np.inf,) * 2, (np.inf,) * 2)
    actions = Space("discrete", low=(0,), high=(2,))
    return Dataset.of(rows, observation_space=space, action_space=actions)


def test_sites_are_the_places_that_a_statement_reads():
    source = TracedSource(CART)
    assert [each.line for each in source.statements] == [8, 9, 10, 11, 12, 13]
    assert Site(1, "push") in source.sites
    assert Site(2, "v") in source.sites
    assert "    x = 0\n        x = self.x + v" in source.with_lines(4, ["x = 0"])


def test_values_are_recorded_and_changed_in_single_rows():
    data = record(CART)
    tracer = ProgramTracer(TracedSource(CART), data, predict, lambda units: True)
    traced = TracedRows.of(tracer)
    assert traced.losses == 0
    push = traced.values(Site(1, "push"))
    assert (push == data.columns["actions"] - 1).all()
    site = tracer.source.sites.index(Site(1, "push"))
    rows = np.flatnonzero(push == 0)
    [result] = tracer.run([SourceChange(rows, site=site, values=0.25)])
    change = result.predicted[:, :2] - data.columns["next_observations"][rows]
    assert np.allclose(change[data.columns["next_observations"][rows, 1] < 0.8], 0.125)


def test_targets_are_the_values_that_correct_wrong_rows():
    data = record(CART.replace("0.5 * push", "0.8 * push"))
    traced = TracedRows.of(ProgramTracer(TracedSource(CART), data, predict, lambda units: True))
    target = next(each for each in find_targets(traced) if each.place == "push")
    solved = target.tolerance > 0
    wanted = 1.6 * target.current[target.rows]
    assert solved.mean() > 0.8
    # In the other rows the limit of `v` hides the value.
    assert np.isclose(target.wanted[solved], wanted[solved]).mean() > 0.6


def test_most_rows_vote_for_a_number():
    values = np.linspace(1, 2, 20)
    wanted = 0.3 * values
    wanted[:8] += 1.0
    assert vote(wanted, values, np.full(20, 1e-9)) == 0.3
    assert vote(np.arange(20.0) ** 2, np.ones(20), np.full(20, 1e-9)) is None


def test_attributes_and_strings_are_not_renamed():
    text = rename("a = b.a + 'a'  # a\n", {"a": "c"})
    assert text == "c = b.a + 'a'  # a\n"
