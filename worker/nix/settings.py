"""What we tell Nix, and what this machine's Nix is.

Every process of Nix gets an environment made here: nothing of what the worker relies on is left to
`nix.conf`, and nothing of the worker's own environment leaks into Nix but the names listed below.
The sandbox, the build users and the substituters stay as the machine is configured.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from worker.nix import processes
from worker.nix.errors import NixError

OLDEST_NIX: Final = (2, 8)
# What Nix 2.8 ends an evaluation error with: advice for a command line that nobody typed.
TRACE_HINT: Final = "(use '--show-trace' to show detailed location information)"

_INHERITED: Final = (
    "PATH",
    "TMPDIR",
    "TZDIR",
    "LOCALE_ARCHIVE",
    "NIX_REMOTE",
    "NIX_STORE_DIR",
    "NIX_STATE_DIR",
    "NIX_CONF_DIR",
    "NIX_SSL_CERT_FILE",
    "SSL_CERT_FILE",
    "SSH_AUTH_SOCK",
    "GIT_SSL_CAINFO",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
)

# What holds for every process. Narinfos are never remembered: a cache changes under the worker.
_ALWAYS: Final[Mapping[str, str]] = {
    "extra-experimental-features": "nix-command flakes",
    "accept-flake-config": "false",
    "use-registries": "false",
    "warn-dirty": "false",
    "eval-cache": "false",
    "narinfo-cache-positive-ttl": "0",
    "narinfo-cache-negative-ttl": "0",
    "log-lines": "25",
}

# A build is this machine's own work: inputs are already there, and nothing is passed on.
_BUILDING: Final[Mapping[str, str]] = {
    "substitute": "false",
    "builders": "",
    "max-jobs": "1",
    "keep-failed": "false",
    "timeout": "0",
    "max-silent-time": "0",
    "max-build-log-size": "0",
}


@dataclass(frozen=True)
class NixSettings:
    """How this worker runs Nix.

    Attributes:
        state_dir: a folder of the worker's own; HOME and the caches of Nix and git live below it.
        options: further lines of `nix.conf`, which win over what this module sets.
        environment_extra: further environment variables.
    """

    state_dir: Path
    options: Mapping[str, str] = field(default_factory=dict)
    environment_extra: Mapping[str, str] = field(default_factory=dict)

    def environment(self, *layers: Mapping[str, str]) -> dict[str, str]:
        """The environment of one Nix or git process.

        Parameters:
            layers: further options for this process; later ones win, `options` wins over all.
        """
        home = self.state_dir / "home"
        cache = self.state_dir / "cache"
        config = self.state_dir / "config"
        for folder in (home, cache, config):
            folder.mkdir(parents=True, exist_ok=True)
        merged: dict[str, str] = dict(_ALWAYS)
        for layer in (*layers, self.options):
            merged.update(layer)
        return {
            **{name: os.environ[name] for name in _INHERITED if name in os.environ},
            "HOME": str(home),
            "XDG_CACHE_HOME": str(cache),
            "XDG_CONFIG_HOME": str(config),
            "LC_ALL": "C.UTF-8",
            "NIX_PATH": "",
            "NIX_CONFIG": "".join(f"{name} = {value}\n" for name, value in merged.items()),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            **self.environment_extra,
        }

    @property
    def uses_daemon(self) -> bool:
        """Whether Nix reaches the store through a daemon, by Nix's own rule for the store `auto`:
        direct where the state folder can be written."""
        env = {**os.environ, **self.environment_extra}
        remote = env.get("NIX_REMOTE", "")
        if remote in ("", "auto"):
            state = env.get("NIX_STATE_DIR", "/nix/var/nix")
            return (
                not os.access(state, os.R_OK | os.W_OK)
                and Path(state, "daemon-socket", "socket").exists()
            )
        return remote == "daemon" or remote.startswith("unix:")

    def build_environment(self) -> dict[str, str]:
        """The environment of a process that builds or answers for the store."""
        return self.environment(_BUILDING)


@dataclass(frozen=True)
class NixInstallation:
    """What this machine's Nix is.

    Attributes:
        version: as Nix prints it.
        system: what it builds for by itself, such as `x86_64-linux`.
        systems: that and every `extra-platforms`.
        features: its system features.
        uses_daemon: whether the store is reached through a daemon.
        sandbox: the setting, `true`, `false` or `relaxed`.
    """

    version: str
    system: str
    systems: frozenset[str]
    features: frozenset[str]
    uses_daemon: bool
    sandbox: str

    @property
    def version_tuple(self) -> tuple[int, ...]:
        """The version as numbers, to compare."""
        return parse_version(self.version)


def parse_version(text: str) -> tuple[int, ...]:
    """Read `2.8.0` or `2.19pre20231023` as numbers; an empty tuple where there are none."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


async def detect(settings: NixSettings) -> NixInstallation:
    """Ask this machine's Nix what it is.

    Raises:
        NixError: there is none, it is older than 2.8, or it does not answer.
    """
    env = settings.environment()
    version = await _answer(["nix", "--version"], env)
    number = version.rpartition(" ")[2].strip()
    if parse_version(number) < OLDEST_NIX:
        raise NixError(
            f"this machine has Nix {number}; the worker needs 2.8 or newer: "
            "install it from https://nixos.org/download or your distribution"
        )
    config: dict[str, Any] = json.loads(await _answer(["nix", "show-config", "--json"], env))

    def value(name: str) -> Any:
        return config.get(name, {}).get("value")

    system = str(value("system"))
    return NixInstallation(
        version=number,
        system=system,
        systems=frozenset([system, *(value("extra-platforms") or [])]),
        features=frozenset(value("system-features") or []),
        uses_daemon=settings.uses_daemon,
        sandbox=str(value("sandbox")).lower(),
    )


async def _answer(argv: list[str], env: Mapping[str, str]) -> str:
    done = await processes.run(argv, env=env, seconds=60)
    if done.returncode == 127:
        raise NixError(
            "Nix is not installed here (no `nix` in PATH): install the package nix-bin "
            "or see https://nixos.org/download"
        )
    if done.returncode != 0:
        raise NixError(f"`{' '.join(argv)}` failed: {done.error_text}")
    return done.stdout.decode("utf-8", "replace").strip()
