"""A long series of programs, one in five hostile, leaves nothing behind."""

import pytest

from benchmarks.soak import HOSTILE, soak


@pytest.mark.long
def test_a_thousand_programs_leave_nothing_behind() -> None:
    found = soak(1000)
    assert found.wrong == []
    assert len(found.seconds) == 1000
    assert found.after.processes <= found.before.processes + 6, "at most, two more workers"
    assert found.after.files == 0
    assert found.after.descriptors <= found.before.descriptors + 20
    assert found.after.megabytes < found.before.megabytes + 20


@pytest.mark.slow
def test_every_hostile_program_is_detected() -> None:
    found = soak(5 * len(HOSTILE), hanging_every=0)
    assert found.wrong == []
    assert found.after.files == 0
