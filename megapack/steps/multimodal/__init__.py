"""Steps of the multimodal stream: reading groups, packing, writing, looking."""
