"""A process that replaces the records of a unit as fast as it can, until it is killed.

Usage: python record_writer.py FOLDER. Prints the number of each write that returned.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dsh.state.storage import UnitDescriptor
from dsh.state.storage.json_files import JsonFiles


async def main(folder: str) -> None:
    unit = await JsonFiles(Path(folder)).open(UnitDescriptor("notes", 1, ("items",)))
    found = await unit.load_all()
    number = max((int(key) for key in found.tables["items"]), default=0)
    while True:
        number += 1
        await unit.put_record("items", str(number), "x" * 2000)
        await unit.delete_record("items", str(number - 5))
        print(number, flush=True)


asyncio.run(main(sys.argv[1]))
