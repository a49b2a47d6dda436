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
    numbers = sorted(int(key) for key in found.tables["items"])
    number = numbers[-1] if numbers else 0
    # A kill between the two writes of a round leaves a record more than five.
    for late in numbers[:-5]:
        await unit.delete_record("items", str(late))
    while True:
        number += 1
        await unit.put_record("items", str(number), "x" * 2000)
        await unit.delete_record("items", str(number - 5))
        print(number, flush=True)


asyncio.run(main(sys.argv[1]))
