"""Build and call a megatron-core model."""
