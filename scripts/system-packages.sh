#!/bin/sh
# The tests use ripgrep and bubblewrap, zsh and fish for completion, and a PostgreSQL server. As root on Debian they are
# installed here; elsewhere their tests skip with a reason, except under CI=true, where a missing one is a failure.
set -eu
missing=""
command -v rg >/dev/null 2>&1 || missing="$missing ripgrep"
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v zsh >/dev/null 2>&1 || missing="$missing zsh"
command -v fish >/dev/null 2>&1 || missing="$missing fish"
# Debian keeps the programs of the server out of PATH.
server() { command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }
server || missing="$missing postgresql"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing ..."
    # shellcheck disable=SC2086 # the list is split on purpose
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
        >/dev/null || echo "could not install$missing" >&2
fi
for tool in rg bwrap zsh fish; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "'$tool' is missing: its tests skip" >&2
        if [ "${CI:-}" = true ]; then exit 1; fi
    fi
done
if ! server; then
    echo "'postgresql' is missing: its tests skip" >&2
    if [ "${CI:-}" = true ]; then exit 1; fi
fi
