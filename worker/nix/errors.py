"""The errors of the Nix edge.

Every error that this package raises on purpose is a `NixError`; its text is written for the person
who reads the evaluation or the build, not for a developer.
"""

from __future__ import annotations


class NixError(Exception):
    """Nix, git or the store did not do what was asked; the text says what and for which path."""


class StoreFaultError(NixError):
    """The store process died or broke the protocol.

    Says nothing about the build that was running: the caller replaces the process and reports a
    worker fault, never a failed build.
    """
