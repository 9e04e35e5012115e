"""The reason why an evaluation waits, as a sentence."""

from __future__ import annotations

from typing import Any

import msgspec


def waiting_text(reason: dict[str, Any] | None) -> str | None:
    """The sentence for a waiting reason; None when it does not wait."""
    if reason is None:
        return None
    kind = reason.get("kind")
    if kind == "no_cache":
        return "the project has no cache to write to: gradient project subscribe <project> <cache>"
    if kind == "eval_workers":
        return (
            f"no connected worker can {reason.get('capability', 'eval')} "
            f"({reason.get('connected_workers', 0)} connected)"
        )
    if kind == "workers":
        unmet = ", ".join(_unmet(item) for item in reason.get("unmet", []))
        return f"no connected worker fits: {unmet or 'none is connected'}"
    if kind == "graph_stuck":
        return f"{reason.get('pending_shared_builds', '?')} builds are pending and none can start"
    if kind == "draining":
        return "the servers are draining"
    return msgspec.json.encode(reason).decode()


def _unmet(item: dict[str, Any]) -> str:
    features = " ".join(item.get("required_features") or [])
    needs = f" with {features}" if features else ""
    return f"{item.get('build_count', '?')} builds for {item.get('architecture', '?')}{needs}"
