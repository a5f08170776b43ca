"""Texts for prompts: what the recorded steps show, and which predictions are wrong."""

from cwm_cli.envs.documented import documented_names
from cwm_cli.problems.feedback.choices import failing_steps, right_steps
from cwm_cli.problems.feedback.description import trim_description
from cwm_cli.problems.feedback.diagnosis import Diagnosis, diagnose
from cwm_cli.problems.feedback.evidence import evidence
from cwm_cli.problems.feedback.examples import counterexample, worst
from cwm_cli.problems.feedback.other_reports import on_chance, uncertain_report
from cwm_cli.problems.feedback.report import report

__all__ = [
    "Diagnosis",
    "counterexample",
    "diagnose",
    "documented_names",
    "evidence",
    "failing_steps",
    "on_chance",
    "report",
    "right_steps",
    "trim_description",
    "uncertain_report",
    "worst",
]
