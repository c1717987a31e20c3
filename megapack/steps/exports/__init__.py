"""Packed rows written out for other trainers: one file a format, and what they share."""
