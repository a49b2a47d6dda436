"""Command line of the scripted provider."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dsh.model.rehearsal import Play, Script, ScriptError, load_script
from dsh.testing.provider.server import ScriptedServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the provider until it is told to stop; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        script = load_script(options.script)
        variables = dict(_variable(text) for text in options.var)
    except ScriptError as error:
        print(f"provider: {error.message}", file=sys.stderr)
        return 1
    return asyncio.run(_run(script, variables, options))


async def _run(script: Script, variables: dict[str, str], options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(options.log.open("a")) if options.log else None
        if options.bodies:
            options.bodies.mkdir(parents=True, exist_ok=True)
        provider = ScriptedServer(Play(script, variables), log, options.bodies)
        try:
            server = await provider.start(options.port)
        except OSError as error:
            print(f"provider: cannot listen on port {options.port}: {error}", file=sys.stderr)
            return 1
        async with server:
            port = server.sockets[0].getsockname()[1]
            print(f"listening on http://127.0.0.1:{port}", flush=True)
            ends = [asyncio.create_task(stop.wait())]
            if options.once:
                ends.append(asyncio.create_task(provider.finished.wait()))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        provider.note("end", unplayed=provider.play.unplayed, mismatches=provider.mismatches)
        return 1 if provider.mismatches else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dsh.testing.provider",
        description="A model provider on loopback that plays a script (see docs/rehearsal.md).",
    )
    parser.add_argument("--script", type=Path, required=True, help="YAML or JSON script")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one")
    parser.add_argument("--log", type=Path, help="file that gets a JSON line for each event")
    parser.add_argument("--bodies", type=Path, help="folder that gets each request body")
    parser.add_argument(
        "--var", action="append", default=[], metavar="NAME=VALUE", help="value for a slot"
    )
    parser.add_argument(
        "--once", action="store_true", help="end when every reply of the script was given"
    )
    return parser


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ScriptError("--var", f"must look like NAME=VALUE, not {text!r}")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
