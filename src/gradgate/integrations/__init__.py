"""Callbacks that watch the runs of trainers: one module for each trainer, the only one that imports it."""

__all__: list[str] = []
