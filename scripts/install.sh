#!/bin/sh
# Install this checkout into a virtual environment with the pinned versions. Usage: install.sh FOLDER TARGET
set -eu
venv=$1
target=$2
echo "installing dsh into $venv ..."
PIP_CONSTRAINT=constraints.txt "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$target"
