"""Tests of paces, of timing programs and environments, and of `cwm bench-speed`."""

import json
import re
import signal
import time
from io import StringIO

import gymnasium
import numpy as np
import pytest
from rich.console import Console

from cwm_cli.bench.asking import LanguageModelPredictor, PromptWriter
from cwm_cli.bench.speed import SpeedRatio, bench_speed, paces, walks_of
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Setting
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.registry import environment
from cwm_cli.views.speed import ratio_words, seconds_words, speed_parts
from cwm_cli.worlds.confined_timing import TIMED_FORMS
from cwm_cli.worlds.remote import ProgramFailed
from cwm_cli.worlds.timing import BETWEEN, OTHERWISE, Timer
from cwm_litellm.backend import LiteLLM
from openai_server import UNKNOWN_MODEL, WRONG_KEY, OpenAIServer, answer, hang, holds
from recordings import FROZEN_LAKE, cartpole, record


class TestPaces:
    def walk(self, seconds, calls, lanes=1):
        def walked(steps):
            calls.append(steps)
            return steps * lanes, steps * lanes * seconds

        return walked

    def test_rounds_of_walks_alternate_after_a_warm_up(self):
        order = []
        walks = {
            name: lambda steps, name=name: order.append(name) or (steps, steps * 0.02)
            for name in "ab"
        }
        found = paces(walks)
        assert order[-80:] == ["a", "b"] * 40
        assert found["a"].rounds == found["b"].rounds == 40

    def test_rounds_have_enough_steps_for_the_clock(self):
        calls = []
        found = paces({"fast": self.walk(1e-6, calls)})["fast"]
        assert calls[-40:] == [2**14] * 40
        assert found.median == pytest.approx(1e-6)
        assert found.transitions == 40 * 2**14

    def test_slow_walks_have_few_rounds(self):
        calls = []
        found = paces({"slow": self.walk(5.0, calls)})["slow"]
        assert (found.rounds, found.median) == (3, 5.0)

    def test_paces_are_seconds_per_transition_not_per_step(self):
        assert paces({"many": self.walk(1e-3, [], lanes=100)})["many"].median == pytest.approx(1e-3)

    def test_walk_without_transitions_has_no_pace(self):
        assert paces({"none": lambda steps: (0, 0.0)}) == {}

    def test_paces_have_quantiles_and_a_warm_up(self):
        seconds = iter([0.1, 0.1, *np.linspace(0.1, 0.2, 21).tolist()])
        found = paces({"noisy": lambda steps: (1, next(seconds))})["noisy"]
        assert found.low < found.median < found.high
        assert found.warm_up == 0.1


class TestWords:
    @pytest.mark.parametrize(
        ("times", "words"),
        [
            (0.963, "0.963 times as fast"),
            (101.2, "101 times as fast"),
            (1_393_000, "1,390,000 times as fast"),
        ],
    )
    def test_ratios_have_three_digits(self, times, words):
        assert ratio_words(SpeedRatio(times)) == words

    @pytest.mark.parametrize(
        ("seconds", "words"), [(999.6e-9, "1 µs"), (2.5e-10, "0.25 ns"), (0.4239, "424 ms")]
    )
    def test_seconds_have_a_fitting_unit(self, seconds, words):
        assert seconds_words(seconds) == words


MEDDLING = """
import os, struct, sys
import numpy as np

frame = sys._getframe()
while frame and not hasattr(frame.f_locals.get("self"), "job_class"):
    frame = frame.f_back
timed = frame is not None and type(frame.f_locals["self"]).__name__ == "TimingHandler"
confined = sys.modules.get("cwm_cli.worlds.confined_timing")
"""
"""Sets `timed` to whether the program is being timed."""

FORGERIES = {
    "invented numbers": """
if timed:
    confined._single_pass = lambda *_: lambda inputs, weights: np.zeros(6)
""",
    "an answer before the question": """
if timed:
    os.write(5, struct.pack("<B400s", 1, b"") + bytes(8 * 6 * 5))
""",
    "answers by action": """
if timed:
    real, known = confined._single_pass, {}

    def alone(stand, step, job, counter):
        def once(action):
            return known[action] if action in known else known.setdefault(action, step(action))
        return real(stand, once, job, counter)

    confined._single_pass = alone
""",
    "answers by row number, in a loop of its own": """
if timed:
    def alone(stand, step, job, counter):
        known = {}

        def take(inputs, weights):
            states = confined._observations(job, inputs)
            for row, state in zip(inputs.rows.tolist(), states):
                if row not in known:
                    stand(state)
                    known[row] = step(job.actions[0][row])
            answers = [known[row] for row in inputs.rows.tolist()]
            return confined.sum_columns(confined._columns(job, answers), weights)

        return take

    confined._single_pass = alone
""",
    "answers to rounded observations": """
known, plain = {}, Environment

class Environment(plain):
    def step(self, action):
        key = (*np.round(self.state, 2).tolist(), action)
        if timed and key in known:
            return known[key]
        known[key] = super().step(action)
        return known[key]
""",
    "a table of the recorded rows": """
if timed:
    job, plain = frame.f_locals["self"].job, Environment
    recorded, after = job.observations[0], {}

    class Environment(plain):
        def step(self, action):
            row = int(np.abs(recorded - self.state).sum(axis=1).argmin())
            if (row, action) not in after:
                self.state = recorded[row]
                after[row, action] = super().step(action)
            return after[row, action]
""",
    "interpolation between its own answers": """
if timed:
    recorded, known = frame.f_locals["self"].job.observations[0], {}
    plain = Environment

    class Environment(plain):
        def step(self, action):
            row, place = int(np.abs(recorded - self.state).sum(axis=1).argmin()), self.state[1]
            found = known.setdefault((row, action), [])
            if len(found) < 5:
                found.append((place, super().step(action)))
                return found[-1][1]
            places, answers = zip(*found)
            apart = [[1.0 if a is b else (place - b) / (a - b) for b in places] for a in places]
            after = np.prod(apart, axis=1) @ np.array([answer[0] for answer in answers])
            return after, 1.0, bool(abs(after[0]) > 2.4 or abs(after[2]) > 0.20943951023931953)
""",
    "half of the inputs counted twice": """
if timed:
    real = confined._single_pass

    def alone(*arguments):
        take = real(*arguments)

        def some(inputs, weights):
            half = len(weights) // 2
            first = inputs._replace(
                rows=inputs.rows[:half], leaves=[leaf[:half] for leaf in inputs.leaves]
            )
            return 2 * take(first, weights[:half])

        return some

    confined._single_pass = alone
""",
    "one pass for all": """
if timed:
    real = confined._take_passes

    def passed(take, inputs, weights, reason):
        every = list(inputs)
        answer = real(take, every[:1], weights, reason)
        size = confined.PASSED.size
        return answer[:size] + answer[size:] * len(every)

    confined._take_passes = passed
""",
    "no scalar form": """
if timed:
    confined._take_passes = lambda *_: confined.PASSED.pack(False, b"there is no such form")
""",
}
"""Programs that seem faster than they are, because they patch the timing loop around them."""

MEMORISING = """
known, plain = {}, Environment

class Environment(plain):
    def step(self, action):
        key = (self.state.tobytes(), action)
        if timed and key in known:
            return known[key][0] + 1, *known[key][1:]
        known[key] = super().step(action)
        return known[key]
"""
"""Caches all predictions, and returns a wrong one if it receives an input twice."""


class TestTimer:
    def test_timer_takes_the_requested_steps_in_every_form(self, sandbox, poles):
        rows = poles[0][np.arange(50)]
        with Timer(sandbox, cartpole(), rows) as timer:
            walked = [timer.walk(form, 3) for form in ("scalar", "arithmetic", "batched")]
        assert [each.transitions for each in walked] == [3, 3, 150]
        assert all(each.seconds > 0 for each in walked)

    def test_missing_form_has_no_transitions_but_a_note(self, sandbox, poles):
        program = cartpole(position="x + 0.02 * v + 0 * len(str(x))")
        with Timer(sandbox, program, poles[0][np.arange(9)]) as timer:
            assert timer.walk("batched", 2).transitions == 0
            assert timer.walk("scalar", 2).transitions == 2
        assert timer.notes["batched"]

    @pytest.mark.parametrize(
        ("step", "kind"),
        [
            ("1 / 0", "step_error"),
            ("__import__('os')._exit(0)", "early_exit"),
            ("[0 for _ in iter(int, 1)]", "timeout_cpu"),
        ],
    )
    def test_failing_program_reports_its_failure_and_the_sandbox_keeps_working(
        self, sandbox, poles, step, kind
    ):
        rows = poles[0][np.arange(9)]
        with (
            Timer(sandbox, cartpole(position=step), rows) as timer,
            pytest.raises(ProgramFailed) as broke,
        ):
            timer.walk("scalar", 1)
        assert broke.value.failure.kind == kind
        with Timer(sandbox, cartpole(), rows) as timer:
            assert timer.walk("scalar", 1).transitions == 1

    @pytest.mark.parametrize("meddling", FORGERIES.values(), ids=FORGERIES)
    def test_forged_times_are_detected(self, sandbox, poles, meddling):
        forging = cartpole() + MEDDLING + meddling
        rows = poles[0][np.arange(99)]
        with Timer(sandbox, forging, rows) as timer, pytest.raises(ProgramFailed) as broke:
            for _ in range(9):
                timer.walk("scalar", 400)
            timer.check()
        assert broke.value.failure == OTHERWISE

    def test_program_with_a_cache_never_receives_an_input_twice(self, sandbox, poles):
        rows = poles[0][np.arange(99)]
        with Timer(sandbox, cartpole() + MEDDLING + MEMORISING, rows) as timer:
            for _ in range(9):
                timer.walk("scalar", 400)
            timer.check()

    def test_answers_that_are_not_finite_are_confirmed(self, sandbox, poles):
        program = cartpole(position="x + (np.inf if v > 0 else np.nan if v > -0.5 else 0.02 * v)")
        with Timer(sandbox, program, poles[0][np.arange(99)]) as timer:
            assert timer.walk("scalar", 400).transitions >= 400
            timer.check()

    def test_observations_are_drawn_between_recorded_ones(self, sandbox, poles):
        rows = poles[0][np.arange(40)]
        ends = np.sort([rows.columns["observations"], rows.columns["next_observations"]], axis=0)
        low, high = ends.tolist()
        program = (
            cartpole()
            + MEDDLING
            + f"""
low, high, plain = np.array({low}), np.array({high}), Environment

class Environment(plain):
    def set_state(self, observation):
        super().set_state(observation)
        if timed:
            assert ((low <= self.state) & (self.state <= high)).all(axis=1).any()
            assert self.state.tolist() not in low.tolist() + high.tolist()
"""
        )
        with Timer(sandbox, program, rows) as timer:
            assert timer.walk("scalar", 400).transitions >= 400
            timer.check()

    def test_honest_program_passes_the_check_in_every_form(self, sandbox, poles):
        with Timer(sandbox, cartpole(), poles[0][np.arange(300)]) as timer:
            for form in TIMED_FORMS:
                assert all(timer.walk(form, steps).transitions for steps in (1, 500, 2))
            timer.check()


class TestEnvironments:
    def walks(self, name, **arguments):
        spec = environment(name)
        rows, _ = record(name, episodes=2, **arguments)
        env = spec.make(**arguments)
        task = Setting(name, arguments, 0, 100).task(spec)
        return walks_of(spec, env, task, rows), env

    def test_environment_walk_continues_in_the_next_episode(self):
        walks, _ = self.walks("CartPole-v1")
        assert walks.keys() == {"environment"}
        transitions, seconds = walks["environment"](300)
        assert transitions == 300
        assert seconds > 0

    def test_mujoco_steps_many_copies_in_parallel(self):
        walks, _ = self.walks("InvertedPendulum-v5")
        transitions, seconds = walks["environments"](1)
        assert 1000 <= transitions <= 10_000
        assert seconds > 0

    def test_environment_walk_replaces_disallowed_actions(self):
        spec = environment("RTFM-v0")
        with_env = spec.make()
        space = space_of(with_env.observation_space), space_of(with_env.action_space)
        observation, _ = with_env.reset(seed=0)
        steps = [Transition(observation, a, observation, 0.0, False, valid=(0,)) for a in range(5)]
        rows = Dataset.of(steps, observation_space=space[0], action_space=space[1])
        task = Setting("RTFM-v0", {}, 0, 100).task(spec)
        assert walks_of(spec, with_env, task, rows)["environment"](50)[0] == 50


class TestComparisons:
    @pytest.mark.slow
    def test_world_model_and_environment_are_scored_on_the_same_rows(self):
        stays = {"is_slippery": False}
        data, _ = record("FrozenLake-v1", episodes=20, **stays)
        found = bench_speed(
            program=FROZEN_LAKE, env="FrozenLake-v1", env_args=stays, dataset=data, rows=20
        )
        assert found.environment.exact == 1.0
        assert found.world_model.transitions == found.environment.transitions == 20
        assert {"scalar", "environment"} <= found.paces.keys()
        assert found.language_model is None
        console = Console(file=StringIO(), width=80)
        console.print(*speed_parts(found, 80))
        assert "add --model PROVIDER/NAME" in " ".join(console.file.getvalue().split())

    @pytest.mark.slow
    def test_failure_during_timing_is_reported_in_one_line(self, poles):
        recorded = "bool(np.float32(x) == x)"
        program = cartpole(position=f"x + 0.02 * v * (1 / ({recorded}))")
        found = bench_speed(program=program, env="CartPole-v1", dataset=poles[0], rows=9)
        assert found.world_model.accuracy == 1.0
        assert found.timed.failure.kind == "step_error"
        assert found.paces.keys() == {"environment"}
        console = Console(file=StringIO(), width=200)
        console.print(*speed_parts(found, 200))
        printed = console.file.getvalue()
        assert "world model: failed, step error: ZeroDivisionError" in printed
        assert f"world model: {BETWEEN}" in printed

    @pytest.mark.slow
    def test_environment_is_timed_if_the_program_fails(self, poles):
        broken = cartpole(position="1 / 0")
        found = bench_speed(program=broken, env="CartPole-v1", dataset=poles[0], rows=9)
        assert found.world_model.accuracy == 0.0
        assert found.timed.failure.kind == "step_error"
        assert found.paces.keys() == {"environment"}


def physicist(body):
    """Predict the row of a CartPole prompt with the true dynamics."""
    prompt = body["messages"][1]["content"].rpartition("## The step to predict")[2]
    values = (re.search(rf"{name}: (.+)", prompt)[1] for name in ("observation", "action"))
    observation, action = map(json.loads, values)
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    env.state = tuple(observation)
    after, reward, terminated, *_ = env.step(action)
    found = {"next_observation": after.tolist(), "reward": reward, "terminated": terminated}
    return f"The pole falls so:\n```json\n{json.dumps(found)}\n```"


class TestLanguageModelPredictor:
    """Predictions by LiteLLM from a local server."""

    def predict(self, server, data, count=3, max_cost=None):
        rows = data[np.arange(count)]
        backend = LiteLLM(
            "openai/gpt-4o-mini", api_base=server.url, temperature=0.0, retries=1, backoff=0.01
        )
        prompts, metric = PromptWriter("A pole.", data), AccuracyMetric.of(data)
        return LanguageModelPredictor(backend, prompts, metric, max_cost).predict(rows)

    @pytest.fixture(autouse=True)
    def key(self, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")

    def test_correct_predictions_of_a_language_model_score_one(self, poles):
        with OpenAIServer(physicist) as server:
            found = self.predict(server, poles[0])
        assert (found.score.exact, found.score.transitions) == (1.0, 3)
        assert (len(found.usages), found.spent.tokens) == (3, 330)
        assert all(usage.seconds > 0 for usage in found.usages)
        assert len({request.prompt for request in server.requests}) == 3

    def test_completions_without_prediction_count_as_wrong(self, poles):
        with OpenAIServer(
            [answer("It will fall."), answer(None), answer('{"reward": 1}')]
        ) as server:
            found = self.predict(server, poles[0])
        assert found.unread.keys() == {0, 1, 2}
        assert found.answers[0] == "It will fall."
        assert found.score.accuracy == 0.0

    def test_withheld_and_truncated_completions_count_as_wrong(self, poles):
        script = [*[answer(None, finish="content_filter")] * 3, answer("{", finish="length")]
        with OpenAIServer(script) as server:
            found = self.predict(server, poles[0], count=2)
        withheld = "the provider's content filter withheld the completion"
        assert found.unread == {0: withheld, 1: "the answer was cut off after 10 tokens"}
        assert (found.score.accuracy, found.refused, found.stopped) == (0.0, {}, "")
        assert found.spent.tokens == 110 * len(server.requests)

    def test_examples_are_omitted_if_the_prompt_is_too_long(self, poles):
        sizes = []

        def respond(body):
            sizes.append(sum(len(message["content"]) for message in body["messages"]))
            return holds(sizes[0] // 4 - 5)(physicist(body))(body)

        with OpenAIServer(respond) as server:
            found = self.predict(server, poles[0])
        assert found.score.exact == 1.0
        [note] = found.notes
        assert note.startswith("the prompt is too long for openai/gpt-4o-mini: shortened from")
        assert len(server.requests) == 4
        shown = [received.prompt.count("next_observation: ") for received in server.requests]
        assert shown[0] == 3
        assert max(shown[1:]) < 3

    def test_invalid_key_stops_after_one_request(self, poles):
        with OpenAIServer([WRONG_KEY]) as server:
            found = self.predict(server, poles[0])
        assert len(server.requests) == 1
        assert "refused the key" in found.stopped
        assert (found.score, found.usages, found.answers) == (None, [], {})

    def test_single_failed_request_is_not_scored(self, poles):
        turns = iter([physicist, lambda body: UNKNOWN_MODEL, physicist])
        with OpenAIServer(lambda body: next(turns)(body)) as server:
            found = self.predict(server, poles[0])
        assert found.refused.keys() == {1}
        assert (found.score.exact, found.score.transitions, found.stopped) == (1.0, 2, "")

    def test_two_failed_requests_in_a_row_stop_the_predictions(self, poles):
        turns = iter([physicist, *[lambda body: UNKNOWN_MODEL] * 9])
        with OpenAIServer(lambda body: next(turns)(body)) as server:
            found = self.predict(server, poles[0], count=9)
        assert found.refused.keys() == {1, 2}
        assert "has no model" in found.stopped

    def test_cost_limit_stops_the_predictions(self, poles):
        with OpenAIServer(physicist) as server:
            found = self.predict(server, poles[0], max_cost=0.0001)
        assert "--max-cost" in found.stopped
        assert server.requests == []


@pytest.fixture
def bench(cwm):
    """Run `cwm bench-speed` on a program for CartPole."""
    (cwm.folder / "model.py").write_text(cartpole())
    (cwm.folder / "broken.py").write_text("class Environment(:")
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    return lambda program, *more: cwm.inside(*BENCH, "--program", program, *more)


BENCH = ("bench-speed", "--env", "CartPole-v1")


def model(server):
    """Return the options for a language model at a local server."""
    return ["--model", "openai/gpt-4o-mini", "--api-base", server.url]


@pytest.mark.slow
def test_bench_speed_times_and_scores_all_three_sides(bench):
    with OpenAIServer(physicist) as server:
        run = bench("model.py", "-n", "5", "--json", *model(server))
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    for side in ("world_model", "environment", "language_model"):
        assert result[side]["accuracy"] == 1.0, side
        assert result[side]["score"]["transitions"] == 5
        assert 0 < result[side]["low_seconds"] <= result[side]["median_seconds"]
    assert result["world_model"]["batched_median_seconds"] > 0
    found = result["language_model"]
    assert (found["answered"], found["unread"], found["tokens"]) == (5, [], 550)
    assert 0 < found["cost"] < 0.01
    speedup = result["speedup"]["language_model"]["scalar"]
    medians = [result[side]["median_seconds"] for side in ("language_model", "world_model")]
    assert speedup["ratio"] == pytest.approx(medians[0] / medians[1])
    assert "The world model in batches is" in run.stderr
    assert speedup["orders"] == pytest.approx(np.log10(speedup["ratio"]))
    prompts = [request.prompt for request in server.requests]
    assert all("A pole is attached by an un-actuated joint to a cart" in each for each in prompts)
    assert all(request.body["temperature"] == 0 for request in server.requests)


@pytest.mark.slow
def test_report_is_printed_on_an_ascii_terminal(bench, cwm):
    cwm.environment |= {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = cwm(*BENCH, "--program", "broken.py")
    assert run.returncode == 0, run.stderr
    assert "failed, load error" in run.stdout


@pytest.mark.slow
def test_failing_sides_are_reported_and_the_others_measured(bench):
    with OpenAIServer([WRONG_KEY]) as server:
        run = bench("broken.py", "--json", *model(server))
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["world_model"]["failure"]["kind"] == "load_error"
    assert (result["world_model"]["median_seconds"], result["world_model"]["accuracy"]) == (None, 0)
    assert result["environment"]["accuracy"] == 1.0
    assert "refused the key" in result["language_model"]["stopped"]
    assert result["speedup"]["language_model"] == {"scalar": None, "batched": None}
    assert "failed, load error" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "choose one world model: a run, --program FILE"),
        (["--program", "model.py", "-o", "top=1"], "unknown option"),
        (["--program", "model.py", "--backend", "litellm"], "needs a model: add --model"),
    ],
)
def test_user_errors_are_reported_in_one_line(bench, cwm, arguments, complaint):
    run = cwm.inside(*BENCH, *arguments)
    assert run.returncode == 1
    assert complaint in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.long
def test_interrupt_keeps_the_completed_predictions(bench, cwm):
    def script(body):
        return physicist(body) if len(server.requests) < 3 else hang

    with OpenAIServer(script) as server:
        process = cwm.start(*BENCH, "--program", "model.py", "--json", *model(server))
        while len(server.requests) < 3 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    found = json.loads(out)["language_model"]
    assert (found["answered"], found["stopped"]) == (2, "interrupted")


@pytest.mark.parametrize("extra", ["def outcomes(self, action): ...", "correct = None"])
def test_stochastic_programs_and_programs_with_memory_are_rejected(extra):
    text = f"class Environment:\n    def step(self, action): ...\n    {extra}\n"
    with pytest.raises(CwmError, match="bench-speed needs a deterministic program without memory"):
        bench_speed(program=text, env="FrozenLake-v1")
