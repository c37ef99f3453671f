"""One file per way of training. It shows how that way is used, and nothing about how it is measured."""
