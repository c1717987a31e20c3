"""Multimodal samples: plans, sizes, positions, masks, and rows. No torch."""
