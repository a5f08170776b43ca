"""Reading the file formats of APPS, and the shipped problems."""

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import shipped_problems
from cwm_apps.judging import LIMITS, judge
from cwm_apps.reading import Malformed, chosen, read, shipped
from cwm_apps.tasks import CodingTask, TaskTest, digest, from_record, to_record
from cwm_cli.errors import CwmError
from cwm_cli.sandbox import Sandbox

TESTS = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]}
CALLS = {"fn_name": "double", "inputs": [[1], [2]], "outputs": [2, [4]]}
HUGE = "1" * 5000
GREATEST_KB = 200


def record(number: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a record as the hub writes it."""
    made = {
        "id": number,
        "question": "Double it.",
        "solutions": json.dumps(["print(2 * int(input()))"]),
        "input_output": json.dumps(TESTS),
        "difficulty": "interview",
        "url": "https://example.org",
        "starter_code": "",
    }
    return made | fields


def lines(path: Path, *records: Any) -> Path:
    """Write one record per line; bytes are written unchanged."""
    made = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in records]
    path.write_bytes(b"\n".join(made) + b"\n")
    return path


def folder(path: Path, **files: str | bytes | None) -> Path:
    """Write a problem as a folder; dots in names are given as underscores."""
    named = {
        "question.txt": "Double it.",
        "input_output.json": json.dumps(TESTS),
        "metadata.json": json.dumps({"difficulty": "competition", "url": "u"}),
    }
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        named[f"{stem}.{ending}"] = content
    path.mkdir(parents=True)
    for name, content in named.items():
        if content is not None:
            made = content if isinstance(content, bytes) else content.encode()
            (path / name).write_bytes(made)
    return path


def only(source: Path) -> CodingTask | Malformed:
    """Return the single problem of a source."""
    [task] = read(source)
    return task


class TestForms:
    def test_folders_are_ordered_by_number(self, tmp_path) -> None:
        for name in ("0010", "0002", "0100"):
            folder(tmp_path / name)
        (tmp_path / "notes").mkdir()
        tasks = read(tmp_path)
        assert tasks.ids == [(2, "competition"), (10, "competition"), (100, "competition")]
        assert [task.id for task in tasks] == [2, 10, 100]
        assert len(tasks) == 3
        assert tasks[1].url == "u"
        assert tasks[1].tests == (TaskTest("1\n", "2\n"), TaskTest("2\n", "4\n"))

    def test_split_folder_is_found_and_two_splits_are_distinguished(self, tmp_path) -> None:
        folder(tmp_path / "test" / "3999", metadata_json=None)
        folder(tmp_path / "train" / "0007", metadata_json=None)
        assert read(tmp_path).ids == [(7, "unknown"), (3999, "competition")]
        folder(tmp_path / "train" / "3999")
        with pytest.raises(CwmError, match=r"contains problem 3999 2 times: give a single split"):
            read(tmp_path)
        assert len(read(tmp_path / "train")) == 2

    @pytest.mark.parametrize("name", ["any.jsonl", "any.jsonl.gz"])
    def test_lines_keep_their_order_and_allow_random_access(self, tmp_path, name) -> None:
        path = lines(tmp_path / name, *(record(n, question=f"Q{n}") for n in (7, 3, 5)))
        if name.endswith("gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
        for source in (path, tmp_path):
            tasks = read(source)
            assert tasks.ids == [(7, "interview"), (3, "interview"), (5, "interview")]
            assert [tasks[n].question for n in (2, 0, 1, 2)] == ["Q5", "Q7", "Q3", "Q5"]

    def test_folder_with_both_splits_uses_test_split(self, tmp_path) -> None:
        lines(tmp_path / "train.jsonl", record(1))
        lines(tmp_path / "test.jsonl", record(2))
        assert [number for number, _ in read(tmp_path).ids] == [2]

    def test_missing_difficulties_follow_numbers_of_test_split(self, tmp_path) -> None:
        numbers = (0, 2999, 3000, 3999, 4000, 4999, 5000)
        records = [record(n, difficulty="") for n in numbers]
        levels = ["interview"] * 2 + ["competition"] * 2 + ["introductory"] * 2 + ["unknown"]
        tasks = read(lines(tmp_path / "test.jsonl", *records))
        assert tasks.ids == list(zip(numbers, levels, strict=True))
        assert [task.difficulty for task in tasks] == levels
        assert {level for _, level in read(lines(tmp_path / "x.jsonl", *records)).ids} == {
            "unknown"
        }

    def test_difficulty_cannot_control_a_terminal(self, tmp_path) -> None:
        made = record(1, difficulty=" \x1b]0;title\x07very\nhard" + "!" * 100)
        [(_, level)] = read(lines(tmp_path / "x.jsonl", made)).ids
        assert level == "\ufffd]0;title\ufffdvery hard" + "!" * 20 + "…"

    def test_ids_may_be_texts_or_missing(self, tmp_path) -> None:
        nameless = {name: value for name, value in record().items() if name != "id"}
        records = [nameless, record("12"), nameless | {"problem_id": 1}, nameless, b"", nameless]
        tasks = read(lines(tmp_path / "x.jsonl", *records))
        assert [task.id for task in tasks] == [0, 12, 1, 3, 4]

    def test_nested_keys_do_not_name_the_record(self, tmp_path) -> None:
        said = 'Print {"id": 5, "difficulty": "competition"} and "id": 6'
        args = {"fn_name": "f", "inputs": [[{"id": 7, "difficulty": "none"}]], "outputs": ["id"]}
        records = [
            record(1, question=said),
            record(2, input_output=args),
            record(3, input_output=json.dumps(args), url="id"),
            record(4, solutions="difficulty", question='\\"id": 8'),
        ]
        tasks = read(lines(tmp_path / "x.jsonl", *records))
        assert tasks.ids == [(n, "interview") for n in (1, 2, 3, 4)]
        assert [task.id for task in tasks] == [1, 2, 3, 4]

    def test_byte_order_marks_and_windows_line_ends_are_accepted(self, tmp_path) -> None:
        made = b"\xef\xbb\xbf" + json.dumps(record(4)).encode() + b"\r\n\r\n"
        (tmp_path / "x.jsonl").write_bytes(made + json.dumps(record(5)).encode())
        assert [task.id for task in read(tmp_path / "x.jsonl")] == [4, 5]
        folder(tmp_path / "f" / "1", question_txt=b"\xef\xbb\xbfOne\r\nTwo\r\n")
        assert only(tmp_path / "f").question == "One\nTwo\n"

    def test_memory_is_bounded_by_one_problem(self, tmp_path) -> None:
        large = {"inputs": ["1\n", "7 " * 500_000], "outputs": ["2", "4"]}
        records = [record(n, input_output=json.dumps(large)) for n in range(40)]
        path = lines(tmp_path / "x.jsonl", *records)
        del records
        tracemalloc.start()
        tasks = read(path)
        assert sum(len(task.tests[1].input) for task in tasks) == 40_000_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 12e6


class TestTasks:
    def test_function_is_called_with_its_arguments(self, tmp_path) -> None:
        starter = "def double(n):\n\t"
        made = record(input_output=json.dumps(CALLS), starter_code=starter)
        task = only(lines(tmp_path / "x.jsonl", made))
        assert task.function == "double"
        assert task.starter_code == starter
        assert task.tests == (TaskTest([1], 2), TaskTest([2], [4]))

    def test_tests_may_be_an_object_and_texts_lists_of_lines(self, tmp_path) -> None:
        tests = {"inputs": [["1", "2"], "3"], "outputs": [["a", "b"], "c"], "fn_name": None}
        task = only(lines(tmp_path / "x.jsonl", record(input_output=tests)))
        assert task.tests == (TaskTest("1\n2", "a\nb"), TaskTest("3", "c"))

    def test_blank_or_unreadable_optional_fields_are_left_out(self, tmp_path) -> None:
        made = record(starter_code=" \n\t", solutions="[broken", url=None)
        task = only(lines(tmp_path / "x.jsonl", made))
        assert (task.starter_code, task.solutions, task.url) == ("", (), "")
        assert only(lines(tmp_path / "x.jsonl", record(solutions=""))).solutions == ()
        assert only(lines(tmp_path / "x.jsonl", record())).solutions == ("print(2 * int(input()))",)

    def test_nan_and_infinity_are_kept(self, tmp_path) -> None:
        tests = '{"fn_name": "f", "inputs": [[NaN], [-Infinity]], "outputs": [Infinity, NaN]}'
        task = only(lines(tmp_path / "x.jsonl", record(input_output=tests)))
        assert repr(from_record(to_record(task)).tests) == repr(task.tests)
        assert "TaskTest(input=[nan], output=inf)" in repr(task.tests)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"input_output": ""}, "it has no tests"),
            ({"input_output": None}, "it has no tests"),
            ({"input_output": {"inputs": [], "outputs": []}}, "it has no tests"),
            ({"input_output": "{"}, "input_output is not JSON"),
            ({"input_output": "[1]"}, "input_output is not an object"),
            ({"input_output": {"inputs": "1"}}, "inputs and outputs are not both lists"),
            ({"input_output": {"inputs": ["1"], "outputs": []}}, "it has 1 inputs and 0 outputs"),
            ({"input_output": {"inputs": [1], "outputs": ["1"]}}, "input 1 is neither a text"),
            ({"input_output": {"inputs": ["\ud800"], "outputs": ["1"]}}, "input 1 is not Unicode"),
            ({"input_output": CALLS | {"inputs": [[1], 2]}}, "input 2 is not a list of arguments"),
            ({"input_output": CALLS | {"inputs": [[1], ["\ud800"]]}}, "test 2 is not Unicode"),
            ({"input_output": CALLS | {"fn_name": 3}}, "fn_name is not a text"),
            ({"input_output": f'{{"inputs": [[{HUGE}]]}}'}, "a number with too many digits"),
            ({"input_output": "[" * 10**5}, "nested too deeply"),
            ({"question": " \n"}, "it has no question"),
            ({"question": 5}, "question is not a text"),
            ({"question": "\udc00"}, "question is not Unicode"),
        ],
    )
    def test_malformed_record_is_described_in_one_line_without_affecting_others(
        self, tmp_path, fields, reason
    ) -> None:
        path = lines(tmp_path / "x.jsonl", record(8), record(9, **fields), record(10))
        before, found, after = read(path)
        assert isinstance(found, Malformed)
        assert found.id == 9
        assert reason in found.reason
        assert "\n" not in found.reason
        assert (before.id, after.id) == (8, 10)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b'{"id": 1, "question": ', "the line is not JSON"),
            (b'{"id": 1, "question": "\xff"}', "the line is not UTF-8"),
            (b'{"id": ' + HUGE.encode() + b"}", "the line contains a number with too many digits"),
            (b"[1, 2]", "the line is not a JSON object"),
            (b"[" * 10**5, "the line is nested too deeply"),
        ],
    )
    def test_unreadable_line_gets_a_free_id(self, tmp_path, line, reason) -> None:
        path = lines(tmp_path / "x.jsonl", record(2), record(1), line)
        *_, found = read(path)
        assert isinstance(found, Malformed)
        assert found.id == 3
        assert found.reason.startswith(reason)

    @pytest.mark.parametrize(
        ("files", "reason"),
        [
            ({"question_txt": None}, "it has no question"),
            ({"question_txt": b"\xff\xfe"}, "question.txt is not UTF-8"),
            ({"input_output_json": None}, "it has no tests"),
            ({"input_output_json": b"{\xff}"}, "input_output.json is not UTF-8"),
            ({"input_output_json": "oops"}, "input_output is not JSON"),
        ],
    )
    def test_incomplete_folder_is_described_in_one_line(self, tmp_path, files, reason) -> None:
        folder(tmp_path / "0005", **files)
        found = only(tmp_path)
        assert isinstance(found, Malformed)
        assert found.id == 5
        assert found.reason.startswith(reason)

    def test_broken_metadata_are_ignored(self, tmp_path) -> None:
        folder(tmp_path / "0005", metadata_json="{")
        assert (only(tmp_path).difficulty, only(tmp_path).url) == ("unknown", "")


class TestSources:
    def test_invalid_source_is_rejected_in_one_line(self, tmp_path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty.jsonl").write_text("")
        (tmp_path / "prose.jsonl").write_text("This is no data.\nNor is this.\n")
        (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1}\n' * 99)[:-9])
        (tmp_path / "false.jsonl.gz").write_text("not packed")
        for name in ("missing", "empty", "empty.jsonl", "prose.jsonl", "cut.jsonl.gz"):
            with pytest.raises(CwmError, match=r"[^\n]+: give a folder of numbered folders"):
                read(tmp_path / name)
        with pytest.raises(CwmError, match=r"cannot be read \(not a gzipped file[^\n]*: give a "):
            read(tmp_path / "false.jsonl.gz")

    def test_range_counts_within_a_difficulty(self, tmp_path) -> None:
        levels = ["interview", "competition", "interview", "introductory", "interview"]
        made = [record(10 + n, difficulty=level) for n, level in enumerate(levels)]
        tasks = read(lines(tmp_path / "x.jsonl", *made))
        assert chosen(tasks, 1, 3) == [1, 2, 3]
        assert chosen(tasks, 3, 100, "all") == [3, 4]
        assert chosen(tasks, 1, 9, "interview") == [2, 4]
        with pytest.raises(CwmError, match=r"no problems 5 to 6: there are 5, counted from 0"):
            chosen(tasks, 5, 2)
        with pytest.raises(CwmError, match=r"of difficulty competition: there are 1,"):
            chosen(tasks, 1, 1, "competition")
        with pytest.raises(CwmError, match="did you mean interview"):
            chosen(tasks, 0, 1, "intervew")
        for idx, total in ((-1, 2), (0, 0)):
            with pytest.raises(CwmError, match="there are 5"):
                chosen(tasks, idx, total)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
STDIN = st.builds(TaskTest, st.text(), st.text())
CALLED = st.builds(TaskTest, st.lists(VALUES, max_size=3), VALUES)


def visible(text: str) -> str:
    """Return a text, or nothing if it is blank."""
    return text if text.strip() else ""


@st.composite
def tasks(draw: st.DrawFn) -> CodingTask:
    """Draw a task as it could have been read."""
    function = draw(st.sampled_from(["", "solve"]))
    return CodingTask(
        id=draw(st.integers(0, 10**6)),
        question=draw(st.text().filter(str.strip)),
        difficulty=draw(st.text(min_size=1)),
        tests=tuple(draw(st.lists(CALLED if function else STDIN, min_size=1, max_size=4))),
        function=function,
        starter_code=visible(draw(st.text())),
        url=draw(st.text()),
        solutions=tuple(draw(st.lists(st.text(), max_size=3))),
    )


@pytest.mark.slow
@given(tasks())
def test_record_round_trip_keeps_the_task(task: CodingTask) -> None:
    kept = json.loads(json.dumps(to_record(task)))
    again = from_record(kept)
    assert again == task
    assert repr(again) == repr(task)
    assert digest(again) == digest(task)


def test_checksum_depends_on_the_question_but_not_on_solutions() -> None:
    first = digest(from_record(record()))
    assert digest(from_record(record(solutions=""))) == first
    changes = [{"number": 1}, {"question": "Halve it."}, {"difficulty": "competition"}]
    changes += [{"starter_code": "x"}, {"input_output": TESTS | {"outputs": ["2\n", "5\n"]}}]
    changes += [{"input_output": CALLS}]
    others = {digest(from_record(record(**change))) for change in changes}
    assert len(others | {first}) == 7


def test_record_without_id_is_rejected() -> None:
    with pytest.raises(CwmError, match="it has no id"):
        from_record({"question": "?"})


class TestShipped:
    def test_bundled_problems_cover_three_difficulties_and_both_kinds(self) -> None:
        ids = read(shipped()).ids
        assert [number for number, _ in ids] == list(range(12))
        levels = [level for _, level in ids]
        assert [levels.count(level) for level in ("introductory", "interview", "competition")] == [
            4,
            5,
            3,
        ]
        assert sum(bool(task.function) for task in read(shipped())) == 5

    def test_bundled_problems_are_small_with_short_tests(self) -> None:
        for task in read(shipped()):
            place = shipped() / f"{task.id:04}"
            size = sum(file.stat().st_size for file in place.iterdir())
            assert size < GREATEST_KB * 1000
            assert 12 <= len(task.tests) <= 30
            assert all(len(json.dumps(case)) < 1000 for case in task.public)
            assert len(task.solutions) >= 2
            assert len(wrong(task)) >= 3
            assert bool(task.starter_code) == bool(task.function)

    @pytest.mark.long
    def test_script_writes_identical_bytes(self, tmp_path, capsys) -> None:
        shipped_problems.main(["--folder", str(tmp_path)])
        assert capsys.readouterr().out.count("kB") == 12
        made, kept = (
            {path.relative_to(root): path.read_bytes() for path in root.rglob("*.*")}
            for root in (tmp_path, shipped())
        )
        assert made == kept


def wrong(task: CodingTask) -> list[str]:
    """Return the wrong programs of a shipped problem."""
    return json.loads((shipped() / f"{task.id:04}" / "wrong_solutions.json").read_text())


@pytest.fixture(scope="module")
def sandbox():
    """One sandbox for all."""
    with Sandbox(LIMITS) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12))
def test_right_solutions_pass_every_test(sandbox, number) -> None:
    task = read(shipped())[number]
    for program in task.solutions:
        judgement = judge(program, task, task.tests, sandbox)
        assert judgement.failure is None
        assert judgement.passed == (True,) * len(task.tests)


ENDLESS = (4, 5, 6, 7, 8, 9, 10, 11)


@pytest.fixture(scope="module")
def hasty():
    limits = replace(LIMITS, cpu_seconds=1.0, stall_seconds=1.0)
    with Sandbox(limits) as sandbox:
        yield sandbox


def lasting(number):
    """Some have programs that run out of time, on three tests each."""
    return pytest.param(number, marks=pytest.mark.long if number in ENDLESS else pytest.mark.slow)


@pytest.mark.parametrize("number", [lasting(number) for number in range(12)])
def test_wrong_solutions_fail_a_test(hasty, number) -> None:
    """Within a second per test: the slow programs take far longer."""
    task = read(shipped())[number]
    for program in wrong(task):
        judgement = judge(program, task, task.tests, hasty)
        assert not all(judgement.passed), program
        assert judgement.failure is not None
