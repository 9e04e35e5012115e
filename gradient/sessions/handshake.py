"""The greeting: who is calling, with which token, and what it may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import structlog
from psycopg_pool import PoolTimeout
from starlette.websockets import WebSocket, WebSocketDisconnect

from gradient.db.call import Rules, is_passing
from gradient.errors import GradientError
from gradient.protocol import (
    MAX_HANDSHAKE_BYTES,
    SUBPROTOCOL,
    InitAck,
    InitConnection,
    ProtocolError,
    Reject,
    decode_worker_message,
    encode,
)
from gradient.version import VERSION

CLOSE_NORMAL = 1000
CLOSE_PROTOCOL = 1002
CLOSE_TOO_LARGE = 1009
CLOSE_TRY_LATER = 1013

log = structlog.get_logger(__name__)


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was let in; `connection` is the number of this connection in SQL."""

    worker: str
    connection: int
    grace_seconds: int


class _RefusedError(Exception):
    def __init__(self, code: int, reason: str, close: int = CLOSE_NORMAL) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.close = close


async def greet(
    socket: WebSocket,
    rules: Rules,
    instance: str,
    *,
    refusal: Callable[[], str | None],
    seconds: float,
) -> Welcome | None:
    """Read the first frame and answer it; None when the caller was refused and is gone.

    `refusal` says why nobody is let in at present, None when one is. `seconds` limit the whole
    greeting.
    """
    offered = socket.scope.get("subprotocols", [])
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    try:
        if SUBPROTOCOL not in offered:
            raise _RefusedError(
                400, f"This server speaks the subprotocol {SUBPROTOCOL} only.", CLOSE_PROTOCOL
            )
        try:
            async with asyncio.timeout(seconds):
                hello = await _first_frame(socket)
                reason = refusal()
                if reason is not None:
                    raise _RefusedError(503, reason, CLOSE_TRY_LATER)
                welcome, ack = await _admit(rules, instance, hello)
                await socket.send_text(encode(ack))
        except TimeoutError:
            late = f"The greeting was not over after {seconds:g} seconds."
            raise _RefusedError(400, late, CLOSE_PROTOCOL) from None
    except _RefusedError as refused:
        log.info("worker refused", code=refused.code, reason=refused.reason)
        await socket.send_text(encode(Reject(code=refused.code, reason=refused.reason)))
        await socket.close(refused.close, _short(refused.reason))
        return None
    return welcome


async def _first_frame(socket: WebSocket) -> InitConnection:
    event = await socket.receive()
    if event["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(event.get("code", 1006))
    frame: str | bytes = event.get("text") or event.get("bytes") or ""
    if len(frame) > MAX_HANDSHAKE_BYTES:
        raise _RefusedError(
            400,
            f"The first frame has {len(frame)} bytes; at most {MAX_HANDSHAKE_BYTES} are taken.",
            CLOSE_TOO_LARGE,
        )
    try:
        message = decode_worker_message(frame)
    except ProtocolError as error:
        where = f" (field {error.field})" if error.field else ""
        raise _RefusedError(400, f"{error.message}{where}", CLOSE_PROTOCOL) from None
    if not isinstance(message, InitConnection):
        raise _RefusedError(400, "The first frame must be init_connection.", CLOSE_PROTOCOL)
    return message


async def _admit(rules: Rules, instance: str, hello: InitConnection) -> tuple[Welcome, InitAck]:
    try:
        answers = await rules.rows("scheduler.authenticate_worker", hello.worker_id, hello.tokens)
        answer: dict[str, Any] = answers[0] if answers else {"accepted": False}
        if not answer["accepted"]:
            raise _RefusedError(
                answer.get("code") or 401, answer.get("reason") or "No token is valid."
            )
        can_fetch = hello.can_fetch and answer["can_fetch"]
        can_eval = hello.can_eval and answer["can_eval"]
        can_build = hello.can_build and answer["can_build"]
        connection = await rules.value(
            "scheduler.worker_connected",
            hello.worker_id,
            instance,
            answer["projects"],
            can_fetch,
            can_eval,
            can_build,
            hello.version,
        )
        grace = await rules.value("gradient.setting_int", "worker_grace")
    except GradientError as error:
        raise _RefusedError(400, str(error)) from error
    except psycopg.DataError as error:
        raise _RefusedError(400, f"The greeting cannot be kept: {error}") from error
    except (psycopg.Error, PoolTimeout) as error:
        if not is_passing(error):
            raise
        raise _RefusedError(
            503, "The server has no database at the moment.", CLOSE_TRY_LATER
        ) from error
    welcome = Welcome(worker=hello.worker_id, connection=connection, grace_seconds=grace)
    ack = InitAck(
        projects=answer["project_names"],
        can_fetch=can_fetch,
        can_eval=can_eval,
        can_build=can_build,
        worker_grace_secs=grace,
        server=f"gradient {VERSION}",
    )
    return welcome, ack


def _short(reason: str) -> str:
    """A reason as a close frame may carry it: 123 bytes."""
    return reason.encode()[:120].decode(errors="ignore")
