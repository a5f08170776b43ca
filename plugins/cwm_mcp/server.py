"""The tools of `cwm mcp`, as a server of the Model Context Protocol.

The descriptions of the tools are for agents. Calls run one after the other, in worker threads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, ParamSpec

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from cwm_cli._version import __version__
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import ROOT
from cwm_cli.text import clean
from cwm_mcp.answers import (
    CheckResult,
    EvidencePage,
    FittedProgram,
    NodeComparison,
    NodeRollouts,
    PlannedEpisodes,
    RunDescription,
    SubmissionResult,
    ToolAnswer,
)
from cwm_mcp.session import AgentSession
from cwm_mcp.shown import EvidenceKind
from cwm_mcp.submissions import Submission

P = ParamSpec("P")

INSTRUCTIONS = (
    "You write a Python program that predicts an environment exactly. Call `describe` first. Look "
    "at recorded steps with `evidence`, test a program on them with `check` as often as you like, "
    "and hand it in with `submit`, which costs one submission and also counts hidden rows. Call "
    "`finish` at the end. All programs are texts: no tool reads or writes a file of yours."
)

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

MAX_PROGRAM = 100_000
"""Maximum number of characters of a program."""

ProgramText = Annotated[
    str,
    Field(min_length=1, max_length=MAX_PROGRAM, description="The whole program, as Python source."),
]
NodeNumber = Annotated[int, Field(ge=0, description="Number of a node.")]
RowNumber = Annotated[int, Field(ge=0, le=10**9)]
PageSize = Annotated[int, Field(ge=1, le=100, description="Maximum number of rows.")]


def make_server(session: AgentSession) -> MCPServer[Any]:
    """Return the server with all tools."""
    server: MCPServer[Any] = MCPServer(
        "cwm",
        title="Code world models",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
    )
    tools = AgentTools(session)
    for function, hints in (
        (tools.describe, READS),
        (tools.evidence, READS),
        (tools.check, READS),
        (tools.submit, CHANGES),
        (tools.compare, READS),
        (tools.calibrate, READS),
        (tools.rollouts, READS),
        (tools.plan, CHANGES),
        (tools.finish, CHANGES),
    ):
        server.add_tool(function, annotations=hints)
    return server


def one_at_a_time(method: Callable[P, ToolAnswer | dict[str, Any]]) -> Callable[P, CallToolResult]:
    """Make a tool of a method: it waits for earlier calls, and errors of the client are one line.

    The text of a result is compact JSON, since agents pay for each token.
    """

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        tools: Any = args[0]
        with tools.lock:
            try:
                answer = method(*args, **kwargs)
            except CwmError as error:
                raise ToolError(clean(str(error))) from error
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise ToolError(f"the run cannot be written ({reason}): tell the user") from error
        found = answer if isinstance(answer, dict) else answer.model_dump(mode="json")
        text = TextContent(type="text", text=json.dumps(found, ensure_ascii=False))
        return CallToolResult(content=[text], structured_content=found)

    return called


class AgentTools:
    """The tools of one session."""

    def __init__(self, session: AgentSession) -> None:
        self.session, self.lock = session, threading.Lock()

    @one_at_a_time
    def describe(self) -> RunDescription:
        """Describe the task and the state of the run. Call this first.

        Returns the environment, the interface that a program must have, facts about the recorded
        steps, the scoring, the remaining submissions, and the nodes (submitted programs).
        """
        return self.session.describe()

    @one_at_a_time
    def evidence(
        self,
        kind: EvidenceKind = "steps",
        *,
        node: Annotated[int | None, Field(ge=0, description="Node, for `mistakes`.")] = None,
        component: Annotated[
            int | None, Field(ge=0, description="Component of the observation, for `changes`.")
        ] = None,
        episode: Annotated[
            RowNumber | None, Field(description="Only rows of this episode.")
        ] = None,
        rows: Annotated[
            list[RowNumber] | None,
            Field(max_length=100, description="Only rows with these numbers."),
        ] = None,
        offset: Annotated[int, Field(ge=0, description="Number of rows to skip.")] = 0,
        limit: PageSize = 20,
    ) -> EvidencePage:
        """Return recorded steps: observation, action, and the recorded result.

        Kinds: `steps` (in order), `ends` (the episode terminates), `rewards` (unusual rewards, the
        rarest first), `changes` (a component changes, the largest change first), `mistakes` (a
        node is wrong, the worst first, with its predictions), `ranges` (values of each component).
        """
        return self.session.evidence(
            kind,
            node=node,
            component=component,
            episode=episode,
            rows=rows,
            offset=offset,
            limit=limit,
        )

    @one_at_a_time
    def check(self, program: ProgramText) -> CheckResult:
        """Test a program on the shown rows. This costs no submission and makes no node.

        Returns the score on shown rows, and a diagnosis of the wrong predictions.
        """
        return self.session.check(program)

    @one_at_a_time
    def submit(
        self,
        program: ProgramText,
        parent: Annotated[
            int | None, Field(ge=0, description="The node that this program improves.")
        ] = None,
        contract: Annotated[
            Literal["plain", "chance", "memory"] | None,
            Field(description="Ask that programs of another form are judged from now on."),
        ] = None,
    ) -> SubmissionResult:
        """Hand in a program: it becomes a node of the run. This costs one submission.

        Returns its score on all train rows, also hidden ones, and a diagnosis. After a program
        that explains all train rows (`solved`), a shorter one that is as good becomes the best.
        """
        submission = Submission(program, ROOT if parent is None else parent, contract or "")
        return self.session.submit(submission)

    @one_at_a_time
    def compare(self, first: NodeNumber, second: NodeNumber, limit: PageSize = 5) -> NodeComparison:
        """Compare two nodes: the shown rows that only one node predicts."""
        return self.session.compare(first, second, limit)

    @one_at_a_time
    def calibrate(self, node: NodeNumber) -> FittedProgram:
        """Fit the constants of a node to the shown rows. Takes up to a minute.

        Returns the fitted program as a text, which becomes a node only if you submit it.
        """
        return self.session.calibrate(node)

    @one_at_a_time
    def rollouts(
        self,
        node: NodeNumber,
        episodes: Annotated[int, Field(ge=1, le=20)] = 5,
        steps: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> NodeRollouts:
        """Predict shown episodes step by step, each from the predictions before.

        Returns the error after some numbers of steps, and the first wrong step of each episode.
        """
        return self.session.rollouts(node, episodes, steps)

    @one_at_a_time
    def plan(
        self,
        node: Annotated[int | None, Field(ge=0, description="Default: the best node.")] = None,
        episodes: Annotated[int, Field(ge=1, le=5)] = 1,
        max_steps: Annotated[int | None, Field(ge=1, le=10_000)] = None,
    ) -> PlannedEpisodes:
        """Plan with a node and act in the true environment. Takes up to ten minutes.

        Each episode counts against a budget. Returns the returns, also of random actions, and the
        number of wrong predictions in play.
        """
        return self.session.plan(node, episodes, max_steps)

    @one_at_a_time
    def finish(self) -> dict[str, Any]:
        """End the run: score the best program on held-out rows. No submission is taken afterwards.

        Returns the scores on train rows and on held-out rows, and whether the task is solved.
        """
        return self.session.finish()
