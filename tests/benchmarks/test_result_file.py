"""Files of results that are measured once."""

import json

from benchmarks.result_file import ResultFile


def test_saved_results_are_not_measured_again_and_incomplete_lines_are_removed(tmp_path):
    path = tmp_path / "runs" / "results.jsonl"
    measured = []

    def scores(results: ResultFile, number: int) -> list[float]:
        def measure():
            measured.append(number)
            return {"scores": [0.5, number]}

        return results.measure_once(["a", number], measure)["scores"]

    results = ResultFile(path)
    assert [scores(results, n) for n in (0, 1, 1)] == [[0.5, 0], [0.5, 1], [0.5, 1]]
    assert measured == [0, 1]
    with path.open("a") as file:
        file.write('{"key": ["a", 2], "sco')  # as if the process was killed
    results = ResultFile(path)
    assert [scores(results, n) for n in (0, 1, 2)] == [[0.5, 0], [0.5, 1], [0.5, 2]]
    assert measured == [0, 1, 2]
    assert results.get(["a", 2]) == {"scores": [0.5, 2]} and results.get(["a", 3]) is None
    assert [json.loads(line)["key"][1] for line in path.read_text().splitlines()] == [0, 1, 2]
