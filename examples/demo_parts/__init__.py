"""The parts of examples/demo.py: two tasks, three ways to train, and the output."""
