"""A TCP proxy between worker and server that can be cut, as a network can."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttableProxy:
    """Forwards connections to a port of this machine; while cut there are none."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._cut = False
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The server's address through the proxy."""
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        with self._lock:
            self._cut = True
            self._break()

    def mend(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._cut = False

    def close(self) -> None:
        """End the proxy."""
        self._closed = True
        with self._lock:
            self._break()
        self._listener.close()

    def _break(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._cut:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
