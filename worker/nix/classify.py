"""What the end of a build means: one table from Nix's answer to an outcome class.

Only `builder_failed`, `timeout_total`, `timeout_silent` and `log_limit` are verdicts on the build;
everything else says something about this machine, the network or the inputs, and the build is
tried again. The consequences of each class are decided by the server.

Nix's own message and the end of the builder's log are read separately: in Nix's words "Killed" is
the operating system's doing, while a builder may print it about anything. So the log counts only
when the builder failed, and only by phrases that compilers, linkers and downloaders use for a full
disk, too little memory or a broken network.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from worker.nix.serve import BuildResult, BuildStatus


class Outcome(enum.StrEnum):
    """Outcome classes that an attempt on this worker can end with."""

    BUILT = "built"
    ALREADY_VALID = "already_valid"
    ABORTED = "aborted"
    WORKER_STOPPING = "worker_stopping"
    WORKER_FAULT = "worker_fault"
    MISSING_INPUT = "missing_input"
    NETWORK = "network"
    TIMEOUT_TOTAL = "timeout_total"
    TIMEOUT_SILENT = "timeout_silent"
    LOG_LIMIT = "log_limit"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    BUILDER_FAILED = "builder_failed"

    @property
    def success(self) -> bool:
        """Whether the outputs are in the store."""
        return self in (Outcome.BUILT, Outcome.ALREADY_VALID)


class Stop(enum.StrEnum):
    """Why the worker itself ended a build."""

    TOTAL = "timeout_total"
    SILENT = "timeout_silent"
    ABORTED = "aborted"
    WORKER_STOPPING = "worker_stopping"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of an ended build.

    Attributes:
        reason: one or a few lines for people: what happened.
        missing_paths: the inputs that are gone, for `missing_input`, where Nix names them.
    """

    outcome: Outcome
    reason: str = ""
    missing_paths: frozenset[str] = frozenset()


_STORE_PATH = re.compile(r"/nix/store/[0-9a-z]{32}-[0-9A-Za-z+\-._?=]+")

# Nix's own words, lower case, by the F.7 list; the first match wins.
_IN_MESSAGE: Final = (
    (re.compile(r"no space left on device|disk quota exceeded|disk full"), Outcome.DISK_FULL),
    (
        re.compile(
            r"out of memory|cannot allocate memory|oom-killer|\bkilled\b|std::bad_alloc"
            r"|failed with exit code 137\b"
        ),
        Outcome.OUT_OF_MEMORY,
    ),
    (
        re.compile(
            r"cannot connect to daemon|unexpected end-of-file|input/output error"
            r"|connection reset by peer|broken pipe"
        ),
        Outcome.WORKER_FAULT,
    ),
)
_MISSING: Final = re.compile(
    r"is not valid|does not exist in the store|does not exist, and substitution is disabled"
    r"|is missing and cannot be substituted|required, but there is no substituter"
)
_INPUT_NAMED: Final = (
    re.compile(r"dependency '(/nix/store/[^']+)'"),
    re.compile(r"path '(/nix/store/[^']+)' (?:is not valid|does not exist|is required)"),
)

# A failed builder's last words.
_IN_LOG: Final = (
    (re.compile(r"no space left on device|disk quota exceeded"), Outcome.DISK_FULL),
    (
        re.compile(
            r"out of memory|cannot allocate memory|oom-killer|killed signal terminated program"
            r"|virtual memory exhausted|std::bad_alloc|terminated with signal 9 \[killed\]"
        ),
        Outcome.OUT_OF_MEMORY,
    ),
)
_NETWORK_IN_LOG: Final = re.compile(
    r"could not resolve host|temporary failure in name resolution|connection reset by peer"
    r"|connection timed out|connection refused|operation timed out|network is unreachable"
    r"|no route to host|tls handshake|ssl connect error|unable to access 'https?://"
    r"|error: 5\d\d|unable to download"
)


def classify(
    result: BuildResult,
    *,
    log_tail: bytes = b"",
    is_fixed_output: bool = False,
) -> Verdict:
    """Class an answer of Nix.

    Parameters:
        result: the answer.
        log_tail: the end of the builder's log.
        is_fixed_output: such a builder may use the network, so its network errors are no verdict.
    """
    message = result.message.removeprefix("error: ")
    words = message.lower()
    log = log_tail.decode("utf-8", "replace").lower()
    match result.status:
        case BuildStatus.BUILT:
            return Verdict(Outcome.BUILT)
        case (
            BuildStatus.ALREADY_VALID
            | BuildStatus.SUBSTITUTED
            | BuildStatus.RESOLVES_TO_ALREADY_VALID
        ):
            return Verdict(Outcome.ALREADY_VALID)
        case BuildStatus.TIMED_OUT:
            silent = "of silence" in words
            return Verdict(Outcome.TIMEOUT_SILENT if silent else Outcome.TIMEOUT_TOTAL, message)
        case BuildStatus.LOG_LIMIT_EXCEEDED:
            return Verdict(Outcome.LOG_LIMIT, message)
        case BuildStatus.OUTPUT_REJECTED | BuildStatus.NOT_DETERMINISTIC:
            return Verdict(Outcome.BUILDER_FAILED, message)
        case BuildStatus.PERMANENT_FAILURE | BuildStatus.TRANSIENT_FAILURE:
            return Verdict(_of_failed_builder(words, log, is_fixed_output), message)
        case _:
            return _of_refusal(result, message, words)


def stopped(reason: Stop, limit: float | None = None) -> Verdict:
    """The class of a build that the worker's own clock or the server ended.

    Parameters:
        limit: the time limit in seconds, for the message.
    """
    match reason:
        case Stop.TOTAL:
            return Verdict(Outcome.TIMEOUT_TOTAL, f"the build took longer than {limit:g} s")
        case Stop.SILENT:
            return Verdict(
                Outcome.TIMEOUT_SILENT, f"the build wrote nothing to its log for {limit:g} s"
            )
        case Stop.ABORTED:
            return Verdict(Outcome.ABORTED, "the build was aborted")
        case Stop.WORKER_STOPPING:
            return Verdict(Outcome.WORKER_STOPPING, "the worker was stopped")


def _of_failed_builder(words: str, log: str, is_fixed_output: bool) -> Outcome:
    for pattern, outcome in _IN_MESSAGE:
        if pattern.search(words):
            return outcome
    for pattern, outcome in _IN_LOG:
        if pattern.search(log):
            return outcome
    if is_fixed_output and _NETWORK_IN_LOG.search(log):
        return Outcome.NETWORK
    return Outcome.BUILDER_FAILED


def _of_refusal(result: BuildResult, message: str, words: str) -> Verdict:
    """Statuses 4, 7, 9, 10, 14: Nix could not do its part, mostly before a builder ran."""
    if _MISSING.search(words):
        named = {path for pattern in _INPUT_NAMED for path in pattern.findall(message)}
        inputs = {path for path in named if not path.endswith(".drv")}
        return Verdict(Outcome.MISSING_INPUT, message, frozenset(inputs))
    for pattern, outcome in _IN_MESSAGE:
        if pattern.search(words):
            return Verdict(outcome, message)
    if result.times_built == 0:
        return Verdict(Outcome.WORKER_FAULT, message)
    return Verdict(Outcome.BUILDER_FAILED, message)
