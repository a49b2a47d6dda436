"""A profile that runs, with patch files that a test edits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsh.kernel import Context
from dsh.loader.boot import Launch, boot, launcher
from dsh.loader.bundle import Bundle
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.hmr.events import HMR_CONFIG_UPDATE_FAILED
from dsh.loader.hmr.service import Hmr
from dsh.loader.host import AppExit, CommandLine
from dsh.loader.journal import Journal
from dsh.loader.live import UserLayers
from dsh.loader.loader import Loader

Rows = list[dict[str, Any]]


class House:
    """A home folder with one profile, its tree, and what was said about both."""

    def __init__(self, home: Path, root: Context) -> None:
        self.home = home
        self.root = root
        self.said: list[str] = []
        self.failed: list[str] = []
        self.going = False
        self.layers: UserLayers
        self.launch: Launch
        self.profile_file = home / "profiles" / "p" / "cordis.patch.yml"
        self.home_file = home / "cordis.patch.yml"

    async def start(
        self, rows: Rows, *, upper: Sequence[Layer] = (), shipped: bool = True, watch: bool = True
    ) -> Loader:
        """Boot a profile whose bundle inserts these rows, and follow its patch files."""
        folder = self.profile_file.parent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "profile.json").write_text("{}")
        read = compose_profile("p", self.home, overlays=upper)
        composition = read._replace(
            bundles=(Bundle("bundle", folder, [], shipped=shipped),),
            lower=(Layer("bundle", [{"insert": rows}]),),
        ).with_files(read.files)
        self.launch = Launch(
            composition=composition,
            home=self.home,
            environment=LaunchEnvironment({"SOME_API_KEY": "hunter2-hunter2"}),
            cmdline=CommandLine(["word"], "parsed"),
            say=self.said.append,
        )
        root = self.root
        journal = Journal(self.home, self.said.append, redact=self.launch.environment.redact)
        root.set_reporter(journal._report)
        root.on(HMR_CONFIG_UPDATE_FAILED, lambda event: self.failed.append(event.filename))
        place = await root.plugin(launcher)
        left_out = await boot(root, self.launch, AppExit(lambda _: None))
        journal.booted(left_out)
        self.layers = UserLayers(
            place.ctx,
            root.require(Loader),
            composition,
            journal,
            left_out=left_out,
            tolerated=self.launch.tolerated,
            going=lambda: self.going,
        )
        if watch:
            await self.layers.watch()
            await self.settle()
        return root.require(Loader)

    async def edit(self, path: Path, text: str | Rows | None) -> list[str]:
        """Write or delete a file, wait for what comes of it, and return what was said."""
        _write(path, text if text is None or isinstance(text, str) else json.dumps(text))
        return await self.settle()

    async def settle(self) -> list[str]:
        """Wait until every change of the files is applied; returns what was said since."""
        hmr = self.root.get(Hmr)
        assert hmr is not None
        await hmr.scan()
        await hmr.quiesce()
        await self.layers.idle()
        said = [*self.said]
        self.said.clear()
        return said


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
