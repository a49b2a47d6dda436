"""Telling the model that it repeats a tool call. The plugin is `dsh.control.reminder.policy`."""
