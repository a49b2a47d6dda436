"""Deadlines of tool calls."""
