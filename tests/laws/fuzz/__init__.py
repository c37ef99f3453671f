"""Drawn training loops, compared with whole batches in plain float64 autograd.

A :class:`~tests.laws.fuzz.scenario.Scenario` describes one loop and prints as the line that makes it again.
``draw`` makes scenarios, ``loop`` runs one with gradgate, ``whole`` is the slow truth, ``verdict`` compares the
two after every window. ``python -m tests.laws.fuzz --minutes 60`` searches for long and keeps what it finds.
"""
