"""The loop inside the shipped profile."""

from __future__ import annotations

import sys

from dsh.model.messages import create_user_message
from shipped import booted
from spine import Mark, Model, create


class Adapter:
    name = "dsh, profile headless"

    async def run(self, steps: int) -> list[Mark]:
        """Run one task in so many steps; return the time of each request for the model."""
        model = Model(steps)
        async with booted(model) as (root, cwd):
            agent = (await create(root, cwd=cwd)).agent
            agent.followup(create_user_message("go"))
            await agent.when_idle()
            ends = [event["data"] for event in agent.session.events if event["type"] == "turn/end"]
        if len(model.marks) != steps + 1:
            sys.exit(f"the profile's turn ended early: {ends}")
        return model.marks
