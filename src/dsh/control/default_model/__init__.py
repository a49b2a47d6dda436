"""The default model: the route of agents that name none."""

from __future__ import annotations

from dsh.control.default_model.service import AgentDefaultModel, ModelSelection

__all__ = ["AgentDefaultModel", "ModelSelection"]
