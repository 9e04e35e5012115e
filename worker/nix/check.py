"""Whether this machine can be a worker: what `gradient-worker check` tells.

The proof is a build: a derivation of one second, through the same store process that builds for
the server. Everything else here explains why that would fail, or what would fail later.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from worker.nix import processes
from worker.nix.building import BuildLimits, BuildSlot
from worker.nix.derivation import parse_derivation
from worker.nix.errors import NixError, StoreFaultError
from worker.nix.serve import BuildRequest
from worker.nix.settings import NixInstallation, NixSettings, detect

_BUILD = """
  derivation {
    name = "gradient-worker-check-WORD";
    system = builtins.currentSystem;
    builder = "/bin/sh";
    PATH = "/bin:/usr/bin";
    args = [ "-c" ''
      sleep 1
      echo "the builder runs"
      echo WORD > $out
    '' ];
  }
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check.

    Attributes:
        problem: whether the machine is unfit because of it; else it is a fact.
        text: what was found, and for a problem what to do.
    """

    problem: bool
    text: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the check found; `installation` is None when there is no usable Nix."""

    installation: NixInstallation | None
    findings: tuple[Finding, ...]

    @property
    def fit(self) -> bool:
        """Whether the machine can be a worker."""
        return not any(finding.problem for finding in self.findings)


async def check(settings: NixSettings) -> CheckReport:
    """Look at Nix, git and the store, and build a derivation of one second. Raises nothing."""
    findings: list[Finding] = []
    if shutil.which("git") is None:
        findings.append(
            Finding(problem=True, text="git is not installed: evaluations fetch with it")
        )
    try:
        installation = await detect(settings)
    except NixError as error:
        return CheckReport(None, (*findings, Finding(problem=True, text=str(error))))
    findings.append(
        Finding(
            problem=False,
            text=f"Nix {installation.version}, {installation.system}, features "
            f"{', '.join(sorted(installation.features)) or 'none'}, "
            f"sandbox {installation.sandbox}",
        )
    )
    findings.append(await _store_access(settings, installation))
    findings.append(await _build(settings))
    return CheckReport(installation, tuple(findings))


async def _store_access(settings: NixSettings, installation: NixInstallation) -> Finding:
    if not installation.uses_daemon:
        return Finding(problem=False, text="the store is used directly")
    done = await processes.run(["nix", "show-config"], env=settings.environment(), seconds=60)
    trusted = re.search(rb"^trusted-users = (.*)$", done.stdout, re.MULTILINE)
    names = trusted[1].decode().split() if trusted else []
    return Finding(
        problem=False,
        text="the store is reached through the Nix daemon; this user must be one of its "
        f"trusted-users (it lists: {' '.join(names) or 'nobody'})",
    )


async def _build(settings: NixSettings) -> Finding:
    """Build, through a slot, without the `.drv` in the request's inputs as the server's jobs do."""
    expression = _BUILD.replace("WORD", secrets.token_hex(8))
    done = await processes.run(
        ["nix-instantiate", "-E", expression], env=settings.environment(), seconds=60
    )
    if done.returncode != 0:
        return Finding(
            problem=True,
            text=f"Nix cannot write to its store: {done.error_text}",
        )
    drv_path = done.stdout.decode().strip()
    derivation = parse_derivation(await asyncio.to_thread(Path(drv_path).read_bytes))
    slot = BuildSlot(settings)
    log = bytearray()
    try:
        serve = await slot.serve()
        await serve.valid_paths([drv_path])
        report = await slot.build(
            BuildRequest.of(drv_path, derivation, derivation.input_srcs),
            BuildLimits(total=60),
            log.extend,
        )
    except StoreFaultError as fault:
        return Finding(problem=True, text=f"the store process does not work: {fault}")
    finally:
        await slot.close()
    if report.success:
        return Finding(problem=False, text="a build of one second succeeded")
    advice = ""
    if (
        "not trusted" in report.reason
        or "trusted user" in report.reason
        or (settings.uses_daemon and report.outcome == "worker_fault")
    ):
        advice = (
            "; building for a server needs a trusted user: add this one to trusted-users "
            "in the daemon's nix.conf and restart the daemon"
        )
    said = log.decode("utf-8", "replace").strip()
    return Finding(
        problem=True,
        text=f"a build of one second failed ({report.outcome}): {report.reason}"
        + (f"\n{said}" if said else "")
        + advice,
    )
