"""What recorded steps show, and what a program predicts wrongly: words that help to write it."""

from cwm_cli.envs.documented import documented_names
from cwm_cli.problems.feedback.description import About, needed
from cwm_cli.problems.feedback.diagnosis import Diagnosis, diagnose
from cwm_cli.problems.feedback.evidence import evidence
from cwm_cli.problems.feedback.examples import counterexample, worst
from cwm_cli.problems.feedback.report import report
from cwm_cli.problems.feedback.uncertain import hidden_examples, on_chance, uncertain_report

__all__ = [
    "About",
    "Diagnosis",
    "counterexample",
    "diagnose",
    "documented_names",
    "evidence",
    "hidden_examples",
    "needed",
    "on_chance",
    "report",
    "uncertain_report",
    "worst",
]
