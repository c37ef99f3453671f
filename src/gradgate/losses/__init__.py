"""Losses that compare the items of a batch with one another, in memory that does not grow with its square."""

from gradgate.losses._contrastive import clip_loss, info_nce, siglip_loss

__all__ = ["clip_loss", "info_nce", "siglip_loss"]
