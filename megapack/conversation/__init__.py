"""Conversations to documents: parsing, prompt formats, tokenization with a loss mask."""
