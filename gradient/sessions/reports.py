"""Which report is which graph message: a table, so that each report is one SQL function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gradient.db.call import document
from gradient.protocol import (
    Building,
    BuildOutput,
    EvaluatingDerivations,
    EvaluatingFlake,
    Fetching,
    FetchResult,
    JobCompleted,
    JobFailed,
    JobKind,
    ReportEvent,
)


class GraphMessage(msgspec.Struct, frozen=True):
    """A graph message: its function, its arguments after (assignment, worker), and whether it
    ends the assignment.
    """

    function: str
    arguments: Callable[[Any], tuple[Any, ...]] = lambda _: ()
    ends: bool = False


def _text(words: str | None) -> str | None:
    """What a builder or a commit said, as PostgreSQL can keep it: without NUL."""
    return None if words is None else words.replace("\0", "\N{REPLACEMENT CHARACTER}")


_EVALUATION: Final[Mapping[type, GraphMessage]] = {
    Fetching: GraphMessage("graph.fetch_started"),
    FetchResult: GraphMessage(
        "graph.fetch_completed",
        lambda event: (
            event.flake_source,
            event.commit,
            _text(event.commit_message),
            _text(event.commit_author),
        ),
    ),
    EvaluatingFlake: GraphMessage("graph.evaluating_flake"),
    EvaluatingDerivations: GraphMessage("graph.evaluating_derivations"),
    JobCompleted: GraphMessage("graph.stream_completed", ends=True),
    JobFailed: GraphMessage(
        "graph.evaluation_failed",
        lambda event: (event.outcome_class, _text(event.error)),
        ends=True,
    ),
}

_BUILD: Final[Mapping[type, GraphMessage]] = {
    Building: GraphMessage("graph.build_started", lambda event: (event.builder_started,)),
    BuildOutput: GraphMessage(
        "graph.build_output",
        lambda event: (
            event.substituted,
            None if event.metrics is None else document(event.metrics),
        ),
    ),
    JobCompleted: GraphMessage("graph.build_completed", ends=True),
    JobFailed: GraphMessage(
        "graph.build_failed",
        lambda event: (event.outcome_class, _text(event.error), event.missing_paths),
        ends=True,
    ),
}

_MESSAGES: Final[Mapping[JobKind, Mapping[type, GraphMessage]]] = {
    "evaluation": _EVALUATION,
    "build": _BUILD,
}


def graph_message(kind: JobKind, event: ReportEvent) -> GraphMessage | None:
    """The message of an event; None when a job of that kind has no such event.

    An EvalResult is none of these: it is a batch of `graph.record`.
    """
    return _MESSAGES[kind].get(type(event))
