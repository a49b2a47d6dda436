"""This project's loop: one turn, one small tool a step."""

from __future__ import annotations

from dsh.model.messages import create_user_message
from spine import Mark, Model, create, mounted


class Adapter:
    name = "dsh"

    async def run(self, steps: int) -> list[Mark]:
        """Run one task in so many steps; return the time of each request for the model."""
        model = Model(steps)
        root = await mounted(model)
        agent = (await create(root)).agent
        agent.followup(create_user_message("go"))
        await agent.when_idle()
        await root.dispose()
        return model.marks
