"""The wire between worker and server: every message, and how frames are read and written.

One WebSocket per worker at ``/proto``, subprotocol ``gradient.v1``. Control goes in JSON text
frames, one tagged message each; build logs go in binary frames (:class:`LogFrame`); everything
bulky goes over HTTP, as a standard Nix binary cache, below the job's ``cache_path``.

How a session runs::

    worker                                server
    InitConnection                  ->
                                    <-    InitAck | Reject (then the socket closes)
    WorkerCapabilities              ->
    RunningJobs                     ->
                                    <-    ResumeAck
    RequestJobList                  ->
                                    <-    JobOffer ...
    JobScores                       ->
    RequestJob (one per free slot)  ->
                                    <-    AssignJob
    AssignJobResponse               ->
    Report ... (numbered)           ->
                                    <-    ReportAck | StaleAssignment | AbortJob

Every report carries the assignment that it belongs to and a number that counts up within the
assignment. The server acknowledges a report after its transaction has committed; the worker keeps
unacknowledged reports and sends them again, in order, on its next connection. Messages are
idempotent, so a report that arrives twice changes nothing the second time.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, Literal, TypeVar

import msgspec

SUBPROTOCOL: Final = "gradient.v1"
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
MAX_HANDSHAKE_BYTES: Final = 64 * 1024
HANDSHAKE_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 10.0
BATCH_DERIVATIONS: Final = 50
MAX_LOG_FRAME_BYTES: Final = 256 * 1024
LOG_FRAMES_IN_FLIGHT: Final = 4
OFFER_CHUNK: Final = 1000

_T = TypeVar("_T")

JobKind = Literal["evaluation", "build"]
BuildKind = Literal["build", "substitute", "download"]
Step = Literal["fetch_flake", "evaluate_flake", "evaluate_derivations"]
WalkMode = Literal["pruned", "full"]
MessageLevel = Literal["error", "warning", "notice"]

Id = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
DrvName = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9a-df-np-sv-z]{32}-[a-zA-Z0-9+._?=-]{1,207}\.drv$")
]
StorePath = Annotated[
    str, msgspec.Meta(pattern=r"^/nix/store/[0-9a-df-np-sv-z]{32}-[a-zA-Z0-9+._?=-]{1,211}$")
]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """A control frame. Unknown fields are ignored, so that a newer peer may say more."""


# Values ---------------------------------------------------------------------------------------


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message."""


class Output(Value, frozen=True, kw_only=True):
    """One output of a derivation: its name (``out``) and its store path."""

    name: Name
    path: str


class DiscoveredDerivation(Value, frozen=True, kw_only=True):
    """A derivation read by the walk, with everything that its ``.drv`` says.

    ``drv`` and ``dependencies`` are ``.drv`` base names (``<hash>-<name>.drv``); the limits are in
    seconds, None means the server's default and 0 no limit. Paths are checked where they are
    recorded: a malformed one fails its batch, and so its evaluation, with the path named.
    """

    drv: str
    outputs: list[Output]
    dependencies: list[str]
    input_sources: list[str]
    architecture: str
    required_features: list[str] = []
    timeout_secs: Count | None = None
    max_silent_secs: Count | None = None
    prefer_local_build: bool = False
    is_fixed_output: bool = False
    allow_substitutes: bool = True
    pname: str | None = None
    ifd: bool = False


class EntryPoint(Value, frozen=True, kw_only=True):
    """An attribute of the flake and the derivation it names."""

    attribute: Name
    drv: str


class EvaluationMessage(Value, frozen=True, kw_only=True):
    """Something the evaluation said; an error makes the evaluation Failed in the end."""

    level: MessageLevel
    message: str
    attribute: str | None = None


class RepositorySource(Value, frozen=True, kw_only=True, tag="repository", tag_field="kind"):
    """A git repository; ``revision`` is a commit, a branch or a tag, None the default branch."""

    url: str
    revision: str | None = None


class CachedSource(Value, frozen=True, kw_only=True, tag="cached", tag_field="kind"):
    """A source that lies in the cache; ``revision`` is the commit it was exported from."""

    path: StorePath
    revision: str | None = None


class FlakeJob(Value, frozen=True, kw_only=True, tag="flake", tag_field="kind"):
    """Fetch and evaluate a flake. Times in seconds, memory in MiB."""

    evaluation: Id
    steps: list[Step]
    source: RepositorySource | CachedSource
    wildcard: str
    walk_mode: WalkMode = "pruned"
    input_overrides: dict[str, str | None] = {}
    timeout_secs: Count = 3600
    memory_mb: Count = 8192
    allow_import_from_derivation: bool = False


class BuildJob(Value, frozen=True, kw_only=True, tag="build", tag_field="kind"):
    """Build one derivation. Limits in seconds, 0 is none; ``log_limit`` in bytes."""

    build: Id
    drv: DrvName
    build_kind: BuildKind
    outputs: list[Output]
    is_fixed_output: bool
    timeout_secs: Count
    max_silent_secs: Count
    log_limit: Count


class JobCandidate(Value, frozen=True, kw_only=True):
    """A job that the worker may be given: it scores it, it does not own it."""

    job: str
    kind: JobKind
    architecture: str = "builtin"
    required_features: list[str] = []
    drv: DrvName | None = None
    outputs: list[StorePath] = []


class JobScore(Value, frozen=True, kw_only=True):
    """What a worker knows of a candidate: how much it would have to fetch first."""

    job: str
    missing_count: Count = 0
    missing_nar_size: Count | None = None
    outputs_present: bool = False


class RunningJob(Value, frozen=True, kw_only=True):
    """A job that the worker is running while it reconnects."""

    job: str
    assignment: Id


class Span(Value, frozen=True, kw_only=True):
    """How long one phase of a job took, in milliseconds."""

    phase: Name
    milliseconds: Count


class BuildMetrics(Value, frozen=True, kw_only=True):
    """What one build used: milliseconds, MiB, bytes."""

    build_time_ms: Count
    peak_ram_mb: Count | None = None
    cpu_time_ms: Count | None = None
    output_bytes: Count | None = None


# Worker to server -----------------------------------------------------------------------------


class InitConnection(Message, frozen=True, kw_only=True, tag="init_connection"):
    """The first frame: who is calling, with every token it holds, and what it can do."""

    worker_id: Name
    tokens: list[str]
    version: str
    can_fetch: bool
    can_eval: bool
    can_build: bool


class WorkerCapabilities(Message, frozen=True, kw_only=True, tag="worker_capabilities"):
    """What the worker can build, how much at once. Sent again it replaces the former."""

    architectures: list[str]
    system_features: list[str]
    build_slots: Count
    eval_slots: Count
    cpu_count: Count | None = None
    ram_total_mb: Count | None = None
    zone: str | None = None
    endpoint: str | None = None


class RunningJobs(Message, frozen=True, kw_only=True, tag="running_jobs"):
    """The jobs that go on from before this connection; sent once, empty after a fresh start."""

    jobs: list[RunningJob]


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """The worker's heartbeat, every 10 s, with its live metrics."""

    number: Count
    cpu_usage_pct: float | None = None
    ram_free_mb: Count | None = None
    disk_free_mb: Count | None = None


class RequestJobList(Message, frozen=True, kw_only=True, tag="request_job_list"):
    """Asks for every candidate anew, as if none had been offered."""


class JobScores(Message, frozen=True, kw_only=True, tag="job_scores"):
    """The worker's answer to offers; at most 1000 scores a frame."""

    scores: list[JobScore]


class RequestJob(Message, frozen=True, kw_only=True, tag="request_job"):
    """``slots`` free slots of a kind; stands until served; a later one replaces it, 0 withdraws."""

    kind: JobKind
    slots: Count


class AssignJobResponse(Message, frozen=True, kw_only=True, tag="assign_job_response"):
    """Whether the worker takes the job; a refused one goes back to the queue at once."""

    assignment: Id
    accepted: bool
    reason: str | None = None


class QueryKnownDerivations(Message, frozen=True, kw_only=True, tag="query_known_derivations"):
    """Which of these ``.drv`` names hold a recorded subtree, so that the walk may prune."""

    query: Count
    assignment: Id
    drvs: list[DrvName]


class Fetching(Value, frozen=True, kw_only=True, tag="fetching", tag_field="event"):
    """The fetch step began."""


class FetchResult(Value, frozen=True, kw_only=True, tag="fetch_result", tag_field="event"):
    """The commit was exported to ``flake_source``, which lies in the cache."""

    flake_source: StorePath
    commit: str | None = None
    commit_message: str = ""
    commit_author: str | None = None


class EvaluatingFlake(Value, frozen=True, kw_only=True, tag="evaluating_flake", tag_field="event"):
    """Attributes are being listed and evaluated."""


class EvaluatingDerivations(
    Value, frozen=True, kw_only=True, tag="evaluating_derivations", tag_field="event"
):
    """The walk began."""


class EvalResult(Value, frozen=True, kw_only=True, tag="eval_result", tag_field="event"):
    """One batch of the walk: its ``.drv`` files and sources are in the cache already."""

    derivations: list[DiscoveredDerivation]
    entry_points: list[EntryPoint] = []
    messages: list[EvaluationMessage] = []


class Building(Value, frozen=True, kw_only=True, tag="building", tag_field="event"):
    """The inputs are being fetched or the builder runs; ``builder_started`` tells which."""

    builder_started: bool = False


class BuildOutput(Value, frozen=True, kw_only=True, tag="build_output", tag_field="event"):
    """The outputs exist on the worker; their upload follows. ``substituted``: nothing was built."""

    substituted: bool = False
    metrics: BuildMetrics | None = None


class JobCompleted(Value, frozen=True, kw_only=True, tag="job_completed", tag_field="event"):
    """The job succeeded; every upload that belongs to it has been answered."""

    spans: list[Span] = []


class JobFailed(Value, frozen=True, kw_only=True, tag="job_failed", tag_field="event"):
    """The job ended without success. ``outcome_class`` is a name of gradient.outcome_class."""

    outcome_class: Name
    error: str
    missing_paths: list[StorePath] = []
    spans: list[Span] = []


ReportEvent = (
    Fetching
    | FetchResult
    | EvaluatingFlake
    | EvaluatingDerivations
    | EvalResult
    | Building
    | BuildOutput
    | JobCompleted
    | JobFailed
)


class Report(Message, frozen=True, kw_only=True, tag="report"):
    """Something happened to an assignment; ``number`` counts up from 1 within it."""

    assignment: Id
    number: Id
    event: ReportEvent


class Draining(Message, frozen=True, kw_only=True, tag="draining"):
    """Either side is about to stop: no new jobs."""

    reason: str = ""


WorkerMessage = (
    InitConnection
    | WorkerCapabilities
    | RunningJobs
    | Ping
    | RequestJobList
    | JobScores
    | RequestJob
    | AssignJobResponse
    | QueryKnownDerivations
    | Report
    | Draining
)


# Server to worker -----------------------------------------------------------------------------


class InitAck(Message, frozen=True, kw_only=True, tag="init_ack"):
    """Welcome: the capabilities as clamped by the registrations, and the projects served."""

    projects: list[str]
    can_fetch: bool
    can_eval: bool
    can_build: bool
    worker_grace_secs: Count
    server: str = ""


class Reject(Message, frozen=True, kw_only=True, tag="reject"):
    """Not welcome; the socket closes after it.

    400 unexpected message, 401 no valid token, 403 unknown or deactivated registration,
    495 no project with a cache, 503 draining or no database.
    """

    code: int
    reason: str


class ResumeAck(Message, frozen=True, kw_only=True, tag="resume_ack"):
    """Which running assignments are still the worker's own; it stops the others."""

    keep: list[Id]
    stop: list[Id]


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """Answers the heartbeat."""

    number: Count


class JobOffer(Message, frozen=True, kw_only=True, tag="job_offer"):
    """Candidates the worker has not been sent since they last became available."""

    candidates: list[JobCandidate]


class AssignJob(Message, frozen=True, kw_only=True, tag="assign_job"):
    """The worker's own from now on. Uploads and downloads go to ``cache_path`` with the token."""

    assignment: Id
    job: str
    spec: FlakeJob | BuildJob
    cache_path: str
    token: str


class ReportAck(Message, frozen=True, kw_only=True, tag="report_ack"):
    """Every report of the assignment up to ``number`` is committed."""

    assignment: Id
    number: Id


class LogAck(Message, frozen=True, kw_only=True, tag="log_ack"):
    """The log of the assignment is stored up to ``offset`` bytes."""

    assignment: Id
    offset: Count


class StaleAssignment(Message, frozen=True, kw_only=True, tag="stale_assignment"):
    """GR003: the assignment is not this worker's, or closed. Stop that job, drop its reports."""

    assignment: Id
    reason: str


class AbortJob(Message, frozen=True, kw_only=True, tag="abort_job"):
    """Stop the job and report it as failed with outcome class ``aborted``."""

    assignment: Id
    reason: str


class KnownDerivations(Message, frozen=True, kw_only=True, tag="known_derivations"):
    """Answers a query: the names whose subtree need not be walked."""

    query: Count
    known: list[str]


class Error(Message, frozen=True, kw_only=True, tag="error"):
    """A frame could not be taken; ``field`` is the path of the value at fault."""

    message: str
    field: str | None = None


ServerMessage = (
    InitAck
    | Reject
    | ResumeAck
    | Pong
    | JobOffer
    | AssignJob
    | ReportAck
    | LogAck
    | StaleAssignment
    | AbortJob
    | KnownDerivations
    | Draining
    | Error
)


# Frames ---------------------------------------------------------------------------------------


class ProtocolError(Exception):
    """A frame that is not a message: ``message`` for people, ``field`` where one is at fault."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class LogFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Log bytes as the builder wrote them; ``offset`` is their place in the log, in bytes."""

    assignment: int
    offset: int
    data: bytes


_LOG_HEADER: Final = struct.Struct("!QQ")
_encoder: Final = msgspec.json.Encoder()
_worker_decoder: Final = msgspec.json.Decoder(WorkerMessage)
_server_decoder: Final = msgspec.json.Decoder(ServerMessage)


def encode(message: WorkerMessage | ServerMessage) -> str:
    """The text frame of a message."""
    return _encoder.encode(message).decode()


def decode_worker_message(frame: str | bytes) -> WorkerMessage:
    """Reads a frame sent by a worker; raises ProtocolError."""
    return _decode(frame, _worker_decoder)


def decode_server_message(frame: str | bytes) -> ServerMessage:
    """Reads a frame sent by the server; raises ProtocolError."""
    return _decode(frame, _server_decoder)


def encode_log(frame: LogFrame) -> bytes:
    """The binary frame of a piece of log."""
    return _LOG_HEADER.pack(frame.assignment, frame.offset) + frame.data


def decode_log(frame: bytes) -> LogFrame:
    """Reads a binary frame; raises ProtocolError."""
    if len(frame) < _LOG_HEADER.size:
        raise ProtocolError(f"A log frame of {len(frame)} bytes has no header of 16 bytes.")
    if len(frame) > _LOG_HEADER.size + MAX_LOG_FRAME_BYTES:
        raise ProtocolError(
            f"A log frame of {len(frame)} bytes is over the limit of {MAX_LOG_FRAME_BYTES}."
        )
    assignment, offset = _LOG_HEADER.unpack_from(frame)
    return LogFrame(assignment=assignment, offset=offset, data=frame[_LOG_HEADER.size :])


def _decode(frame: str | bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"A frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}."
        )
    try:
        return decoder.decode(frame)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        raise ProtocolError(text, path.rstrip("`") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"The frame is not JSON: {error}") from None
