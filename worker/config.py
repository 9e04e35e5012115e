"""The worker's configuration: what the command line, the environment and the file said."""

from __future__ import annotations

import os
import platform
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DEFAULT_SERVER: Final = "http://127.0.0.1:8420"
SYSTEM_CONFIG: Final = Path("/etc/gradient/worker.toml")


# Flags whose value the program knows under another name.
_OTHER_NAMES: Final = {
    "id": "worker_id",
    "token": "tokens",
    "architecture": "architectures",
    "feature": "features",
    "nix_option": "nix_options",
}


class ConfigError(Exception):
    """The configuration cannot be used; the text says which part and what to do."""


@dataclass(frozen=True)
class WorkerConfig:
    """How this worker runs.

    Attributes:
        server: `http(s)://host[:port]`.
        tokens: every token that the worker presents.
        build_slots, eval_slots: jobs at once; 0 switches the kind off. Evaluation slots fetch, too.
        architectures: what to announce instead of what Nix builds for here; empty for Nix's own.
        system_features: the same for system features; None for Nix's own.
        state_dir: the worker's own folder.
        zone, endpoint: labels for clusters.
        nix_options: lines for `nix.conf`, which win over the worker's own.
    """

    server: str
    worker_id: str
    tokens: Sequence[str]
    build_slots: int
    eval_slots: int
    state_dir: Path
    architectures: Sequence[str] = ()
    system_features: Sequence[str] | None = None
    zone: str | None = None
    endpoint: str | None = None
    nix_options: dict[str, str] = field(default_factory=dict)


def default_state_dir() -> Path:
    """Where the worker keeps its id and its temporary files unless told otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/gradient-worker")
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "gradient-worker"


def read_file(path: Path) -> dict[str, Any]:
    """The options of a TOML file, named like the flags, under the names that the program uses.

    Raises:
        ConfigError: it cannot be read or is not TOML.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    options = {name.replace("-", "_"): value for name, value in content.items()}
    return {_OTHER_NAMES.get(name, name): value for name, value in options.items()}


def read_tokens(path: Path) -> list[str]:
    """The tokens of a file, one a line; empty lines and lines after `#` do not count.

    Raises:
        ConfigError: it cannot be read or holds none.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}") from None
    tokens = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not tokens:
        raise ConfigError(f"the token file {path} holds no token")
    return tokens


def own_worker_id(state_dir: Path) -> str:
    """The id this worker gave itself; made at the first call and kept in the state folder.

    Raises:
        ConfigError: the folder cannot be written.
    """
    file = state_dir / "worker-id"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        if file.exists() and (known := file.read_text().strip()):
            return known
        made = f"{platform.node() or 'worker'}-{secrets.token_hex(4)}"
        file.write_text(made + "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot keep the worker's id in {file}: {error.strerror}; "
            "give another folder with --state-dir"
        ) from None
    return made
