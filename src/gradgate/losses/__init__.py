"""Losses that compare the items of a batch with one another, with memory that grows linearly with the batch."""

from gradgate.losses._contrastive import clip_loss, info_nce, siglip_loss

__all__ = ["clip_loss", "info_nce", "siglip_loss"]
