#!/bin/sh
# The demo, in the environment that `make demo` has prepared.
exec "$(dirname "$0")/../.venv/bin/python" "$(dirname "$0")/demo.py"
