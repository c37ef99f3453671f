"""One file per way of training: it shows how that way is used, and nothing of how it is measured."""
