"""The handler of the server in the confined process of a program, and calls into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cwm_cli.worlds.confined import ImaginingHandler
from cwm_cli.worlds.imagining import Imagination
from cwm_cli.worlds.messages import ImaginingJob
from cwm_serve import batching


@dataclass(frozen=True, kw_only=True)
class ServedJob(ImaginingJob):
    """A program that steps batches of rows inside its process."""

    handler: ClassVar[str] = "cwm_serve.confined:ServedHandler"


class ServedHandler(ImaginingHandler):
    """Steps batches of rows, on request."""

    job_class = ServedJob
    modules: ClassVar[Any] = {"batching": batching}


class ServedProcess(Imagination):
    """A program in a confined process, which steps batches of rows for the server."""

    job_class = ServedJob
