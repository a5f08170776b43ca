"""What is found to be the cause of wrong predictions, and the faults that it is measured on."""

from benchmarks.faults import faults, wrong
from benchmarks.faults.generator import FEWEST, KINDS


class TestFaults:
    kinds = ("region 1", "clamp", "rule")

    def test_they_are_the_same_for_a_seed_and_others_for_another(self):
        one, again, other = (faults(seed, ["rule"]) for seed in (3, 3, 4))
        assert [fault.program for fault in one] == [fault.program for fault in again]
        assert [fault.dataset.digest for fault in one] == [fault.dataset.digest for fault in again]
        assert not {f.dataset.digest for f in one} & {f.dataset.digest for f in other}

    def test_each_shows_in_rows_of_every_part_where_its_guard_says_and_nowhere_else(self):
        drawn = faults(5, self.kinds)
        assert len({fault.name for fault in drawn}) == sum(KINDS[kind] for kind in self.kinds)
        for fault in drawn:
            train = fault.dataset.train
            for part in (train[train.fitted], fault.dataset.test):
                mistakes = wrong(fault.program, part)
                assert mistakes.sum() >= FEWEST, fault.name
                assert not (mistakes & ~fault.guard(part)).any(), fault.name
            assert fault.is_repaired_by(fault.truth)
            assert not fault.is_repaired_by(fault.program)
