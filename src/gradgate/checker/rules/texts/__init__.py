"""What findings say, by topic: the one place where the checker's sentences stand."""
