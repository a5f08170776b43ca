"""The benchmark of model types counts the recordings whose type is right."""

import pytest

from benchmarks.contracts import CHANCE, MEMORY, PLAIN, cases, main


def test_each_case_has_another_name_and_each_type_has_several():
    found = list(cases())
    assert len({case.name for case in found}) == len(found)
    for kind in (PLAIN, CHANCE, MEMORY):
        assert sum(case.expected == kind for case in found) >= 10


def test_command_prints_a_line_per_recording_and_totals(capsys):
    main(["Blackjack-v1", "CliffWalking-v1", "CartPole-v1 noisy", "--rows", "80", "--seeds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["Blackjack-v1", "0", "chance"],
        ["CliffWalking-v1", "0", "plain"],
    ]
    assert sum(line.startswith("CartPole-v1 noisy") for line in lines) == 2
    assert "plain: 1 of 1 right" in lines


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_component_with_constant_errors_causes_no_warning(capsys):
    main(["Tram-v0", "--seeds", "1"])
    assert "plain: 1 of 1 right" in capsys.readouterr().out


def test_command_refuses_an_unknown_system(capsys):
    with pytest.raises(SystemExit):
        main(["Klin-v0"])
    assert "unknown system Klin-v0; choose from" in capsys.readouterr().err
