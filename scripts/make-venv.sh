#!/bin/sh
# Make the virtual environment, or say in one sentence what is missing. Usage: make-venv.sh PYTHON FOLDER
set -eu
python=$1
venv=$2

if ! command -v "$python" >/dev/null 2>&1; then
    echo "dsh needs Python 3.11 or newer, and '$python' was not found: install it, or name one with make PYTHON=..." >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "dsh needs Python 3.11 or newer; '$python' is $("$python" -V 2>&1). Name a newer one with make PYTHON=..." >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    echo "Python's venv module is missing: install the system package $package (Debian: apt-get install $package)" >&2
    exit 1
fi
"$python" -m venv "$venv"
