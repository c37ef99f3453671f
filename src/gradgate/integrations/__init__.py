"""Exact accumulation in trainers, and callbacks that watch their runs: one module for each trainer."""

__all__: list[str] = []
