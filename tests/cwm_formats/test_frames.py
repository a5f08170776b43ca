import numpy as np
import pytest

import cwm_cli as cwm
from cwm_formats.recorded import RecordedTable

pyarrow = pytest.importorskip("pyarrow")


class Frame:
    """A data frame with the methods of pandas that an import uses."""

    def __init__(self, columns, index=None):
        self.data, self.columns = columns, list(columns)
        if index is not None:
            self.index = index

    def __getitem__(self, name):
        return self.data[name]


class TimeIndex(np.ndarray):
    name = None


def columns(rows=120):
    steps = np.arange(rows)
    return {
        "level": np.round(np.sin(steps / 9), 3),
        "count": steps % 5,
        "valve": np.array(["shut", "open"], object)[steps // 3 % 2],
    }


@pytest.mark.parametrize("make", [dict, Frame, pyarrow.table])
def test_tables_in_memory_give_equal_datasets(make):
    rows = cwm.dataset(make(columns()), actions=["valve"])
    assert len(rows) == 119
    assert rows.metadata["env"] == "data/table"
    table = RecordedTable.of(rows.metadata["env_args"])
    assert table.acted[0].labels == ("open", "shut")
    assert [column.resolution for column in table.observed] == [0.001, 1.0]
    assert rows.digest == cwm.dataset(columns(), actions="valve").digest


def test_an_index_of_times_is_the_step():
    index = np.arange(120) * np.timedelta64(300, "s") + np.datetime64("1970-01-05")
    index = index.view(TimeIndex)
    rows = cwm.dataset(Frame(columns(), index), actions=["valve"])
    table = RecordedTable.of(rows.metadata["env_args"])
    assert table.step == "5 minutes"
    assert len(table.observed) == 2


def test_missing_objects_are_bad_cells():
    broken = columns()
    broken["valve"][7] = None
    broken["level"][9] = np.nan
    with pytest.raises(cwm.CwmError, match=r"row 7 .*valve: blank.*row 9 .*level: blank"):
        cwm.dataset(broken, actions=["valve"])
    assert len(cwm.dataset(broken, actions=["valve"], drop_missing=True)) == 116


def test_columns_of_different_lengths_are_rejected():
    with pytest.raises(cwm.CwmError, match="equal length"):
        cwm.dataset({"level": [1, 2, 3], "valve": [0, 1]}, actions=["valve"])
    with pytest.raises(cwm.CwmError, match="a list is not a table"):
        cwm.dataset([1, 2], actions=["valve"])
