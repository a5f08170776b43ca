"""What a program predicts wrongly, in words that help to correct it."""

from cwm_cli.problems.feedback.examples import counterexample, documented_names, worst
from cwm_cli.problems.feedback.report import report

__all__ = ["counterexample", "documented_names", "report", "worst"]
