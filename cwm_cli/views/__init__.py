"""What people see on the terminal: a search while it runs and when it is over, and scores."""

from cwm_cli.views.live import live
from cwm_cli.views.pictures import finished_tree
from cwm_cli.views.tables import PARTS, score_table, titled

__all__ = ["PARTS", "finished_tree", "live", "score_table", "titled"]
