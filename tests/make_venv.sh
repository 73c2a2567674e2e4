#!/bin/sh
# Make the virtual environment, or say in one sentence what is missing and the cure.
set -eu
if ! command -v "$PYTHON" >/dev/null 2>&1; then
    echo "missing: $PYTHON; cure: install Python 3.11 or newer, or set PYTHON=..." >&2
    exit 1
fi
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "too old: $("$PYTHON" --version); cure: Python 3.11 or newer, or PYTHON=..." >&2
    exit 1
fi
if ! "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing the Debian package python3-venv ..."
        apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
    else
        echo "missing: Python's ensurepip; cure: apt-get install python3-venv" >&2
        exit 1
    fi
fi
"$PYTHON" -m venv "$VENV"
