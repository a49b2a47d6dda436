"""Adapters: one package a provider, each a plugin of its own."""
