"""What a program predicts wrongly, in words that help to correct it."""

from cwm_cli.problems.feedback.documented import documented_names
from cwm_cli.problems.feedback.examples import counterexample, worst
from cwm_cli.problems.feedback.report import report

__all__ = ["counterexample", "documented_names", "report", "worst"]
