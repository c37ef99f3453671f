"""The parts of examples/demo.py: two tasks, three ways to train, and what shows the result."""
