"""The checker: records what a training script does to its gradients, and reports what is wrong with it."""

from gradgate.checker._watch import Watching, watch

__all__ = ["Watching", "watch"]
