from __future__ import annotations

import asyncio
from pathlib import Path

from loader_support import Shelf

from dsh.kernel import Context
from dsh.loader.compose import Composition, Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.profile import create_profile
from dsh.loader.rows import Row
from dsh.loader.trial import mounted


def composed(home: Path, *rows: Row) -> Composition:
    create_profile("mine", home, ())
    return compose_profile("mine", home, overlays=[Layer("test", [{"insert": list(rows)}])])


async def test_what_still_loads_after_the_patience_is_shown_and_disposed_of(
    tmp_path: Path, plugins: Shelf
) -> None:
    gone = asyncio.Event()

    async def slow(ctx: Context, config: object) -> None:
        await ctx.stop.wait()
        gone.set()

    name = plugins.module("shelf_slow", apply=slow)
    quick = plugins.recorder("shelf_quick")
    rows = composed(tmp_path, {"id": "slow", "name": name}, {"id": "quick", "name": quick})

    async with mounted(rows, tmp_path, LaunchEnvironment({}), settle_s=0.1) as trial:
        states = {row["id"]: row["state"] for row in trial.snapshot()["rows"]}
        assert (trial.settled, states) == (False, {"slow": "loading", "quick": "active"})

    assert gone.is_set()
    assert plugins.did() == ["shelf_quick up", "shelf_quick down"]


async def test_remarks_are_what_no_row_tells(tmp_path: Path, plugins: Shelf) -> None:
    def noisy(ctx: Context, config: object) -> None:
        ctx.report(ValueError("a side error"), None, "thing")

    bad = plugins.failing("shelf_bad", ValueError("the row's own"))
    rows = composed(
        tmp_path,
        {"id": "bad", "name": bad},
        {"id": "noisy", "name": plugins.module("shelf_noisy", apply=noisy)},
    )

    async with mounted(rows, tmp_path, LaunchEnvironment({})) as trial:
        assert [("a side error" in each) for each in trial.remarks()] == [True]


async def test_provenance_is_known_for_every_top_row(tmp_path: Path, plugins: Shelf) -> None:
    rows = composed(tmp_path, {"name": plugins.recorder("shelf_a")})

    async with mounted(rows, tmp_path, LaunchEnvironment({})) as trial:
        (row,) = trial.snapshot()["rows"]
        assert (row["origin"], row["patchedBy"]) == ("test", [])
