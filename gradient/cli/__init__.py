"""The command `gradient`: one module a group of commands, loaded when it is called."""

from gradient.cli.root import main

__all__ = ["main"]
