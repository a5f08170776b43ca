"""Searches of the learning agent that run inside the confined process of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cwm_cli.worlds.confined import ImaginingHandler
from cwm_cli.worlds.imagining import Imagination
from cwm_cli.worlds.messages import ImaginingJob
from cwm_learn.search import cells, missions, policies, reachable, rollouts


@dataclass(frozen=True, kw_only=True)
class ImaginedSearchJob(ImaginingJob):
    """A program that searches, tables and policies step inside its process."""

    handler: ClassVar[str] = "cwm_learn.imagination:ImaginedSearchHandler"


class ImaginedSearchHandler(ImaginingHandler):
    """Calls searches with the model, on request."""

    job_class = ImaginedSearchJob
    modules: ClassVar = {
        "cells": cells,
        "missions": missions,
        "policies": policies,
        "reachable": reachable,
        "rollouts": rollouts,
    }


class SearchImagination(Imagination):
    """A program in a confined process that also runs the searches of the learning agent."""

    job_class = ImaginedSearchJob

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # time limits of a process that searches, as a multiple of the limits for a program alone
        time_factor = 3
        self.limits = self.limits.scaled(time_factor)
