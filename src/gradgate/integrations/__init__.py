"""Watching a run of a trainer: one module for each trainer, which alone imports it."""

__all__: list[str] = []
