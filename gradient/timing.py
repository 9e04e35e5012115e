"""Everything that a server does by the clock, in one place; tests shorten it."""

from __future__ import annotations

import msgspec

from gradient.db.transaction import BUDGET_SECONDS
from gradient.protocol import HANDSHAKE_SECONDS


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. What SQL decides by time stands in gradient.setting instead.

    `tick`: a pass runs at least this often. `renewal`: workers seen, the instance and the pass
    records are written at most this often. `pause`: least time between two runs of one pass, and
    between two looks of one session at its offers. `handshake`: for the whole greeting. `drain`:
    how long a stopping server waits for its sessions to become idle. `collection`: between two
    collections of objects without a row. `graph_budget`: GRAPH_TX_BUDGET. `probe`: between two
    looks at the instance's lock. `takeover`: how long a server that starts again waits for the
    lock of its former process.
    """

    tick: float = 5.0
    renewal: float = 10.0
    pause: float = 1.0
    handshake: float = HANDSHAKE_SECONDS
    drain: float = 20.0
    collection: float = 3600.0
    graph_budget: float = BUDGET_SECONDS
    probe: float = 5.0
    takeover: float = 45.0
