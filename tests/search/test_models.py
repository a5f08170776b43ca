"""Several models in one search: names, choice and improvements."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cwm_cli.commands.choices import choose_backend
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    START,
    AnswerLength,
    Backend,
    Completion,
    Message,
    Move,
    Problem,
    Request,
    Strategy,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Pending, Search
from cwm_cli.search.models import (
    BackendWrapper,
    ModelPool,
    model_gains,
    model_uses,
    models_text,
    one_model,
    read_models,
)
from cwm_cli.views.search import in_flight
from openai_server import OpenAIServer
from recordings import cartpole, record

WRONG = f"```python\n{cartpole(gravity=5)}```\n"
DEAR, CHEAP = "openai/gpt-4o", "openai/gpt-4o-mini"


def test_only_a_number_after_the_last_equals_sign_is_a_weight(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run=3,x").mkdir()
    cases = {
        ("a",): "a",
        ("a=3",): "a",
        ("a=3", "b"): "a=3,b",
        ("a=3,b", "c"): "a=3,b,c",
        ("a, b=0.5",): "a,b=0.5",
        ("a", "b", "a"): "a,b",
        ("a=1,b",): "a,b",
        ("hosted/x=y=2,b",): "hosted/x=y=2,b",
        ("hosted/x=y,b",): "hosted/x=y,b",
        ("ollama/llama3:8b,b",): "ollama/llama3:8b,b",
        ("run=3,x",): "run=3,x",  # the folder of a run, to be replayed
    }
    assert {given: models_text(read_models(given)) for given in cases} == cases
    assert [*read_models(["hosted/x=y=2"])] == [("hosted/x=y", 2.0)]
    refused = {
        "a=0,b": "the weight of a is 0",
        "a=-1": "the weight of a is -1",
        "a=nan": "the weight of a is nan",
        "a,,b": "has no model name",
        "=3": "has no model name",
        "a=2,a=3": "a has two weights",
    }
    for text, words in refused.items():
        with pytest.raises(CwmError, match=words):
            read_models([text])
    assert one_model("") == ""
    with pytest.raises(CwmError, match=r"several models are given \(a,b\)"):
        one_model("a,b")
    monkeypatch.setenv("CWM_MODEL", "a=3,b")
    chosen = choose_backend(None)
    assert (chosen.models, chosen.model) == (("a=3,b",), "a=3,b")
    chosen = choose_backend(None, ["c,d", "e"])  # jobs of a benchmark, or one search
    assert (chosen.models, chosen.model) == (("c,d", "e"), "c,d,e")


class Numbers(Problem):
    """A candidate is a number, which is its score."""

    moves = (GENERATE, IMPROVE)

    def messages(self, move):
        return (Message(role="user", content=f"{move.action} {move.program}"),)

    def read(self, text, move):
        return text

    def judge(self, candidate):
        return Verdict(score=float(candidate))


class Best(Strategy):
    """Betters the best candidate."""

    moves = (GENERATE, IMPROVE)
    repeats = True

    def __init__(self):
        self.best = None

    def select(self, rng, pending):
        best = self.best
        return Move(IMPROVE, best.id, best.program, best.verdict) if best else Move(GENERATE)

    def update(self, node):
        if self.best is None or node.verdict.score > self.best.verdict.score:
            self.best = node


class Closing(Backend):
    """Closes a fraction of the remaining gap with a probability, at a cost."""

    def __init__(self, chance, part=0.1, cost=0.0):
        self.chance, self.part, self.cost = chance, part, cost

    def complete(self, request):
        score = float(request.move.program or 0)
        if random.Random(request.seed).random() < self.chance:
            score += (1 - score) * self.part
        return Completion(repr(score), Usage(10, 10, self.cost))

    def worst_cost(self, request):
        return self.cost

    def answer_length(self):
        return AnswerLength(round(100 * (self.cost or 0)), round(200 * (self.cost or 0)), True)

    def price(self, prompt_tokens, completion_tokens):
        return self.cost


def pool(choosing="alternate", weights=None, **members):
    return ModelPool(members, weights, choosing)


def searched(backend, budget, *, seed=0, parallel=1, nodes=()):
    search = Search(Numbers(), Best(), backend, seed=seed, parallel=parallel)
    search.resume(nodes)
    for _ in search.run(budget):
        pass
    return search.nodes


@pytest.mark.parametrize(
    ("move", "message"),
    [
        ("hello", "Choosing.select returned str; it must return a Move"),
        (Move("improvve"), "the move 'improvve': choose one of generate, improve"),
        (Move(IMPROVE, 99), "a move for node 99, but there are 0 nodes"),
    ],
)
def test_a_search_refuses_a_wrong_move_of_a_strategy(move, message):
    class Choosing(Best):
        def select(self, rng, pending):
            return move

    search = Search(Numbers(), Choosing(), Closing(0.5))
    with pytest.raises(CwmError, match=message):
        list(search.run(1))


def counts(nodes):
    return {use.model: use.completions for use in model_uses(nodes)}


def test_models_take_turns_by_weight_evenly_spread():
    a, b, c = (Closing(0.5) for _ in range(3))
    nodes = searched(pool(weights={"a": 5}, a=a, b=b, c=c), 70)
    assert "".join(node.model for node in nodes[:14]) == "aabacaaaabacaa"
    assert counts(nodes) == {"a": 50, "b": 10, "c": 10}
    nodes = searched(pool(weights={"a": 3}, a=a, b=b), 40, parallel=8)
    assert counts(nodes) == {"a": 30, "b": 10}
    unassigned = pool(weights={"a": 3}, a=Closing(0, cost=1.0), b=Closing(0, cost=2.0))
    request = Request((), 0, Move(GENERATE), None)
    costs = [unassigned.complete(request).usage.cost for _ in range(8)]
    assert (costs.count(1.0), costs.count(2.0)) == (6, 2)
    assert unassigned.worst_cost(request) == 2.0
    assert unassigned.worst_cost(request._replace(model="a")) == 1.0
    assert unassigned.price(1, 1) == 1.25
    assert unassigned.answer_length() == (125, 400, True)
    assert pool(a=Closing(0, cost=1.0), b=Closing(0, cost=None)).price(1, 1) is None


@pytest.mark.parametrize("choosing", ["alternate", "bandit"])
def test_a_resumed_search_chooses_the_same_models(choosing):
    def made():
        members = {"a": Closing(0.6, cost=0.02), "b": Closing(0.3, cost=0.001)}
        return pool(choosing, {"a": 2}, **members)

    whole = searched(made(), 30, seed=3)
    for stop in (1, 2, 3, 7, 19):
        assert searched(made(), 30, seed=3, nodes=whole[:stop]) == whole
    assert len(counts(whole)) == 2
    paid = [replace(n, usage=replace(n.usage, cost=0.0, reused=1)) for n in whole]
    went_on = searched(made(), 30, seed=3, nodes=paid[:15])
    assert [node.model for node in went_on] == [node.model for node in whole]
    again = made().fresh(made())
    assert searched(again, 30, seed=3) == whole


@pytest.mark.parametrize("name", [name for name in dir(Backend) if not name.startswith("_")])
def test_a_wrapper_delegates_every_attribute_of_a_backend(name):
    inner = SimpleNamespace(**{name: object()})
    assert getattr(BackendWrapper(inner), name) is getattr(inner, name)


def test_the_live_view_names_the_models_in_flight():
    def pending(*models):
        return {n: Pending(n, Move(GENERATE), 0.0, model=model) for n, model in enumerate(models)}

    assert in_flight(pending("a", "b", "a")) == "3 in flight (a 2, b 1)"
    assert in_flight(pending("", "")) == "2 in flight"


def test_the_live_view_counts_completions_and_refiners_separately():
    start = Pending(-1, Move(START), asked=False)
    refiner = Pending(0, Move("calibrate", 0), asked=False)
    completion = Pending(1, Move(IMPROVE, 0))
    assert in_flight({0: refiner, 1: completion}) == "1 in flight, 1 refining"
    assert in_flight({-1: start}) == ""


def shares(members, budget=60, runs=10, **weights):
    """Return which share of the completions the model `a` gets of a bandit, over some searches."""
    asked = [
        counts(searched(pool("bandit", weights, **members), budget, seed=n)) for n in range(runs)
    ]
    return sum(each["a"] for each in asked) / (budget * runs)


def test_a_bandit_prefers_the_largest_improvement_per_dollar():
    found = {
        "expensive and no better": shares(
            {"a": Closing(0.5, cost=0.02), "b": Closing(0.5, cost=0.001)}
        ),
        "expensive and better": shares(
            {"a": Closing(0.5, cost=0.02), "b": Closing(0.0, cost=0.0002)}
        ),
        "alike": shares({"a": Closing(0.3, cost=0.01), "b": Closing(0.3, cost=0.01)}),
        "unknown prices": shares({"a": Closing(0.6, cost=None), "b": Closing(0.1, cost=0.001)}),
        "free": shares({"a": Closing(0.6, cost=0.0), "b": Closing(0.1, cost=0.0)}),
    }
    assert found["expensive and no better"] < 0.2, found
    assert found["expensive and better"] > 0.45, found
    assert 0.4 < found["alike"] < 0.6, found
    assert found["unknown prices"] > 0.65, found
    assert found["free"] > 0.65, found


def test_refinements_count_for_the_model_of_the_answer():
    whole = searched(pool(a=Closing(1.0, 0.5), b=Closing(0.0)), 4)
    made = replace(whole[1], id=4, asked=False, model="", verdict=Verdict(score=0.9))
    uses = {use.model: use for use in model_uses([*whole, made])}
    assert [(use.completions, use.improved) for use in uses.values()] == [(2, 2), (2, 1)]
    assert uses["a"].gain == pytest.approx(0.75)
    assert uses["b"].gain == pytest.approx(0.15)
    gains = model_gains([*whole, made])
    assert gains["a"] == {1: 0.5, 2: 0.0, 3: 0.25, 4: 0.0}
    assert gains["b"] == {1: 0.0, 2: 0.0, 3: 0.0, 4: pytest.approx(0.15)}
    [alone] = model_uses([replace(node, model="") for node in whole], "usual")
    assert (alone.model, alone.completions) == ("usual", 4)


@pytest.fixture
def ask(cwm):
    """Give arguments of `cwm synthesize` with two models of a server."""
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    record("CartPole-v1", episodes=4)[0].save(cwm.folder / "rows.npz")

    def arguments(server, *more):
        fixed = ["--env", "CartPole-v1", "--api-base", server.url, "--start", "none"]
        fixed += ["--dataset", "rows.npz"]
        fixed += [
            "-o",
            "refine=none",
            "-o",
            "simplify=0",
            "-o",
            "backoff=0.01",
            "--strategy",
            "zero-shot",
            *more,
        ]
        return ["synthesize", "--model", f"{DEAR}=3", "--model", CHEAP, *fixed]

    cwm.arguments = arguments
    return cwm


@pytest.mark.slow
def test_every_view_of_a_run_separates_its_models(ask):
    def script(body):
        return WRONG if body["model"] == "gpt-4o" else "I do not know."

    with OpenAIServer(script) as server:
        run = ask.inside(*ask.arguments(server, "--json", "--run", "r", "--budget", "4"))
        assert run.returncode == 0, run.stderr
        asked = [request.body["model"] for request in server.requests]
        more = ask.arguments(server, "--json", "--run", "r", "--budget", "8")
        whole = ask.inside(*more)
        otherwise = ask.inside(*more, "-o", "models=bandit")
        went_on = [request.body["model"] for request in server.requests]
    assert asked == ["gpt-4o", "gpt-4o", "gpt-4o-mini", "gpt-4o"]
    assert went_on == asked * 2
    assert otherwise.returncode == 1
    assert "models" in otherwise.stderr
    dear, cheap = json.loads(whole.stdout)["models"]
    assert (dear["model"], dear["completions"], dear["improved"]) == (DEAR, 6, 1)
    assert (cheap["model"], cheap["completions"], cheap["gain"]) == (CHEAP, 2, 0.0)
    assert dear["cost"] / 6 > 10 * cheap["cost"] / 2 > 0
    shown = json.loads(ask.inside("runs", "show", "r", "--json").stdout)
    assert shown["models"] == [dear, cheap]
    assert shown["header"]["config"]["model"] == f"{DEAR}=3,{CHEAP}"
    assert shown["header"]["config"]["options"]["search"] == {"models": "alternate"}
    text = ask.inside("runs", "show", "r").stdout
    assert "new bests" in text
    node = json.loads(ask.inside("runs", "show", "r", "--node", "2", "--json").stdout)
    assert node["model"] == CHEAP
    assert CHEAP in ask.inside("runs", "show", "r", "--node", "2").stdout
    replayed = ["synthesize", "--backend", "replay", "--model", "r", "--env", "CartPole-v1"]
    replayed += ["--dataset", "rows.npz"]
    replayed += ["--strategy", "zero-shot", "--budget", "8", "--run", "again", "--json"]
    again = json.loads(ask.inside(*replayed).stdout)["models"]
    figures = [(each["model"], each["completions"], each["gain"]) for each in again]
    assert figures == [(DEAR, 6, dear["gain"]), (CHEAP, 2, 0.0)]
    differences = json.loads(ask.inside("runs", "diff", "r", "again", "--json").stdout)
    assert differences["settings"]["model"] == [f"{DEAR}=3,{CHEAP}", "r"]
    page = ask.inside("runs", "report", "r", "--html", "r.html")
    assert page.returncode == 0, page.stderr
    drawn = (ask.folder / "r.html").read_text()
    titles = ('"Models"', "Cost of each model")
    assert all(title in drawn for title in titles)
