"""What one assignment has to say to the server, kept until the server has it.

Reports are numbered from 1 and stay here until they are acknowledged; log bytes stay in their
file. A new connection starts again behind the last acknowledged report and byte, so whatever was
on its way when a socket broke is sent a second time, in order; the server takes it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gradient.protocol import (
    LOG_FRAMES_IN_FLIGHT,
    MAX_LOG_FRAME_BYTES,
    LogFrame,
    Report,
    ReportEvent,
    encode,
    encode_log,
)
from worker.build_log import BuildLog
from worker.changes import Changes

# A frame that is not full is sent at most this often, so that a chatty builder does not cost a
# stored object for each of its lines.
PARTIAL_FRAME_SECONDS: Final = 0.2
# A log that the server does not take is given up after this time, with a warning.
LOG_FLUSH_SECONDS: Final = 10.0
# Reports that may wait for their acknowledgement before whoever makes more has to wait.
UNACKNOWLEDGED_REPORTS: Final = 8


class Channel:
    """The reports and the log of one assignment.

    Attributes:
        wake: called whenever there may be something to send.
    """

    def __init__(self, job: str, assignment: int, wake: Callable[[], None]) -> None:
        self.job = job
        self.assignment = assignment
        self.wake = wake
        self.log: BuildLog | None = None
        self._reports: deque[Report] = deque()
        self._next_number = 1
        self._sent_number = 0
        self._changes = Changes()
        self._log_sent = 0
        self._log_acknowledged = 0
        self._log_frames: deque[int] = deque()
        self._partial_at = 0.0
        self._connected = False
        self.closed = False

    # -- the job's side ------------------------------------------------------------------------

    async def report(self, event: ReportEvent) -> None:
        """Queue a report; waits while the server is far behind."""
        await self._changes.until(
            lambda: self.closed or len(self._reports) < UNACKNOWLEDGED_REPORTS
        )
        self.report_now(event)

    def report_now(self, event: ReportEvent) -> None:
        """Queue a report without waiting: for the last words of a job."""
        if self.closed:
            return
        self._reports.append(
            Report(assignment=self.assignment, number=self._next_number, event=event)
        )
        self._next_number += 1
        self.wake()

    def open_log(self, log: BuildLog) -> Callable[[bytes], None]:
        """Attach the build's log; returns where the builder's bytes go."""
        self.log = log

        def write(data: bytes) -> None:
            log.write(data)
            self.wake()

        return write

    def finish_log(self) -> None:
        """The builder says no more: let the end of its log go, while something else is done."""
        if self.log is not None:
            self.log.finish()
            self.wake()

    async def flush_log(self) -> bool:
        """Finish the log and wait until the server has stored it.

        While there is no connection this waits, too; with one, at most ten seconds without
        progress.

        Returns:
            Whether all of it is stored.
        """
        log = self.log
        if log is None:
            return True
        self.finish_log()

        def stored() -> bool:
            return self.closed or self._log_acknowledged >= log.size

        while not stored():
            acknowledged, connected = self._log_acknowledged, self._connected
            try:
                async with asyncio.timeout(LOG_FLUSH_SECONDS):
                    await self._log_moves(acknowledged, connected)
            except TimeoutError:
                if connected:
                    return False
        return log.lost is None

    async def _log_moves(self, acknowledged: int, connected: bool) -> None:
        await self._changes.until(
            lambda: (
                self.closed or self._log_acknowledged > acknowledged or self._connected != connected
            )
        )

    async def wait_acknowledged(self) -> None:
        """Wait until the server has every report."""
        await self._changes.until(lambda: self.closed or not self._reports)

    @property
    def finished(self) -> bool:
        """Whether nothing is left that the server does not have."""
        return not self._reports

    def close(self) -> None:
        """Drop whatever was not sent: the assignment is over."""
        self.closed = True
        self._reports.clear()
        if self.log is not None:
            self.log.close()
        self._changes.happened()

    # -- the session's side --------------------------------------------------------------------

    def connected(self) -> None:
        """A new connection serves this assignment: send everything unacknowledged again."""
        self._connected = True
        self._sent_number = self._reports[0].number - 1 if self._reports else self._next_number - 1
        self._log_sent = self._log_acknowledged
        self._log_frames.clear()
        self._partial_at = 0.0
        self._changes.happened()

    def disconnected(self) -> None:
        """The connection is gone; what comes now waits for the next one."""
        self._connected = False
        self._changes.happened()

    def next_report(self) -> str | None:
        """The text frame of the next report that this connection has not carried."""
        for report in self._reports:
            if report.number > self._sent_number:
                self._sent_number = report.number
                return encode(report)
        return None

    def next_log_frame(self, now: float) -> tuple[bytes | None, float | None]:
        """The next binary frame of log.

        Parameters:
            now: the event loop's time in seconds.

        Returns:
            The frame or None, and with None the time at which to ask again, if that is known.
        """
        log = self.log
        if log is None or self.closed or len(self._log_frames) >= LOG_FRAMES_IN_FLIGHT:
            return None, None
        pending = log.size - self._log_sent
        if pending <= 0:
            return None, None
        if pending < MAX_LOG_FRAME_BYTES and not log.finished:
            due = self._partial_at + PARTIAL_FRAME_SECONDS
            if now < due:
                return None, due
            self._partial_at = now
        data = log.read(self._log_sent, MAX_LOG_FRAME_BYTES)
        frame = LogFrame(assignment=self.assignment, offset=self._log_sent, data=data)
        self._log_sent += len(data)
        self._log_frames.append(self._log_sent)
        return encode_log(frame), None

    def acknowledge(self, number: int) -> None:
        """The server has committed the reports up to `number`."""
        while self._reports and self._reports[0].number <= number:
            self._reports.popleft()
        self._changes.happened()

    def acknowledge_log(self, offset: int) -> None:
        """The server has stored the log up to `offset` bytes."""
        self._log_acknowledged = max(self._log_acknowledged, offset)
        self._log_sent = max(self._log_sent, self._log_acknowledged)
        while self._log_frames and self._log_frames[0] <= offset:
            self._log_frames.popleft()
        self._changes.happened()
        self.wake()
