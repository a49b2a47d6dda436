"""Code Mode: the model writes a program that calls the tools, in place of one call a tool.

Nothing here is loaded as long as every agent's tools are presented natively.
"""
