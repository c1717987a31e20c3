"""Steps of the multimodal packed stream."""
