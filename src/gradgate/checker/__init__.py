"""The checker: watches how a training script handles its gradients, and reports mistakes."""

from gradgate.checker._watch import Watching, watch

__all__ = ["Watching", "watch"]
