"""Packed rows to the tensors that one rank feeds to the model."""
