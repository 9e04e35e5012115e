"""The table from Nix's answer to an outcome class; real answers are in test_building."""

from __future__ import annotations

import pytest

from worker.nix.classify import Outcome, Stop, classify, stopped
from worker.nix.serve import BuildResult, BuildStatus

DRV = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-x.drv"
INPUT = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-input"
FAILED = f"builder for '{DRV}' failed with exit code 1"


def outcome(
    status: BuildStatus,
    message: str = "",
    *,
    times_built: int = 1,
    log: bytes = b"",
    fixed: bool = False,
) -> Outcome:
    """The class of an answer."""
    result = BuildResult(status, message, times_built)
    return classify(result, log_tail=log, is_fixed_output=fixed).outcome


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (BuildStatus.BUILT, "", Outcome.BUILT),
        (BuildStatus.SUBSTITUTED, "", Outcome.ALREADY_VALID),
        (BuildStatus.ALREADY_VALID, "", Outcome.ALREADY_VALID),
        (BuildStatus.RESOLVES_TO_ALREADY_VALID, "", Outcome.ALREADY_VALID),
        (BuildStatus.PERMANENT_FAILURE, FAILED, Outcome.BUILDER_FAILED),
        (BuildStatus.TRANSIENT_FAILURE, FAILED, Outcome.BUILDER_FAILED),
        (BuildStatus.OUTPUT_REJECTED, "hash mismatch", Outcome.BUILDER_FAILED),
        (BuildStatus.NOT_DETERMINISTIC, "may not be deterministic", Outcome.BUILDER_FAILED),
        (BuildStatus.TIMED_OUT, f"building of '{DRV}' timed out after 3 seconds", "timeout_total"),
        (
            BuildStatus.TIMED_OUT,
            f"building of '{DRV}' timed out after 3 seconds of silence",
            Outcome.TIMEOUT_SILENT,
        ),
        (BuildStatus.LOG_LIMIT_EXCEEDED, "killed after writing more than", Outcome.LOG_LIMIT),
        (
            BuildStatus.PERMANENT_FAILURE,
            f"builder for '{DRV}' failed due to signal 9 (Killed)",
            Outcome.OUT_OF_MEMORY,
        ),
        (
            BuildStatus.PERMANENT_FAILURE,
            f"builder for '{DRV}' failed due to signal 11 (Segmentation fault)",
            Outcome.BUILDER_FAILED,
        ),
        (
            BuildStatus.PERMANENT_FAILURE,
            f"builder for '{DRV}' failed with exit code 137",
            Outcome.OUT_OF_MEMORY,
        ),
        (
            BuildStatus.MISC_FAILURE,
            "error: writing to file: No space left on device",
            Outcome.DISK_FULL,
        ),
        (
            BuildStatus.MISC_FAILURE,
            "error: unable to fork: Cannot allocate memory",
            Outcome.OUT_OF_MEMORY,
        ),
        (
            BuildStatus.MISC_FAILURE,
            "error: cannot connect to daemon at '/nix/var/…': Connection refused",
            Outcome.WORKER_FAULT,
        ),
        (BuildStatus.MISC_FAILURE, "error: unexpected end-of-file", Outcome.WORKER_FAULT),
        (BuildStatus.MISC_FAILURE, "error: something else went wrong", Outcome.BUILDER_FAILED),
        (BuildStatus.INPUT_REJECTED, "error: odd input", Outcome.BUILDER_FAILED),
    ],
)
@pytest.mark.scenario(23)
def test_an_answer_has_this_class(status: BuildStatus, message: str, expected: str) -> None:
    assert outcome(status, message) == expected


@pytest.mark.parametrize("status", [BuildStatus.MISC_FAILURE, BuildStatus.INPUT_REJECTED])
def test_a_failure_before_any_builder_ran_is_the_workers(status: BuildStatus) -> None:
    assert outcome(status, "error: whatever", times_built=0) == Outcome.WORKER_FAULT


@pytest.mark.parametrize(
    "message",
    [
        f"error: dependency '{INPUT}' of '{DRV}' does not exist, and substitution is disabled",
        f"error: path '{INPUT}' is not valid",
        f"error: path '{INPUT}' does not exist in the store",
        f"error: path '{INPUT}' is required, but there is no substituter that can build it",
    ],
)
def test_a_missing_input_is_named(message: str) -> None:
    verdict = classify(BuildResult(BuildStatus.MISC_FAILURE, message))
    assert verdict.outcome == Outcome.MISSING_INPUT
    assert verdict.missing_paths == {INPUT}


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b"cc1plus: out of memory allocating 65536 bytes", Outcome.OUT_OF_MEMORY),
        (b"g++: fatal error: Killed signal terminated program cc1plus", Outcome.OUT_OF_MEMORY),
        (b"ld: final link failed: No space left on device", Outcome.DISK_FULL),
        (b"test 17 was killed", Outcome.BUILDER_FAILED),
        (b"path 'x' is not valid", Outcome.BUILDER_FAILED),
        (b"undefined reference to `main'", Outcome.BUILDER_FAILED),
        (b"\xff\xfe not text", Outcome.BUILDER_FAILED),
    ],
)
@pytest.mark.scenario(23)
def test_the_last_words_of_a_failed_builder_tell_a_short_machine_from_a_bad_build(
    log: bytes, expected: Outcome
) -> None:
    assert outcome(BuildStatus.PERMANENT_FAILURE, FAILED, log=log) == expected


def test_a_log_about_memory_is_no_failure_of_a_build_that_succeeded() -> None:
    assert outcome(BuildStatus.BUILT, log=b"out of memory") == Outcome.BUILT


@pytest.mark.parametrize(
    "log",
    [
        b"curl: (6) Could not resolve host: example.org",
        b"curl: (56) Recv failure: Connection reset by peer",
        b"The requested URL returned error: 503",
    ],
)
def test_a_network_error_is_no_verdict_on_a_fixed_output_and_one_on_any_other(
    log: bytes,
) -> None:
    status = BuildStatus.TRANSIENT_FAILURE
    assert outcome(status, FAILED, log=log, fixed=True) == Outcome.NETWORK
    assert outcome(status, FAILED, log=log, fixed=False) == Outcome.BUILDER_FAILED


def test_what_a_server_refuses_for_good_is_a_verdict_on_a_fixed_output() -> None:
    log = b"curl: (22) The requested URL returned error: 404"
    assert (
        outcome(BuildStatus.TRANSIENT_FAILURE, FAILED, log=log, fixed=True)
        == Outcome.BUILDER_FAILED
    )


@pytest.mark.parametrize("reason", list(Stop))
def test_a_build_that_the_worker_stopped_has_the_class_of_the_reason(reason: Stop) -> None:
    verdict = stopped(reason, 3)
    assert verdict.outcome == reason.value
    assert verdict.reason
    assert not verdict.outcome.success


def test_only_two_classes_are_a_success() -> None:
    assert {each for each in Outcome if each.success} == {Outcome.BUILT, Outcome.ALREADY_VALID}
