"""Hugging Face model folders: what they are, and which of their weights goes where. No torch."""
