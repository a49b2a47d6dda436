"""Floor 5: what an agent is. Agents and their loop, tools and their pipeline, the prompt."""
