"""What is computed from a model's output: losses, log-probs, teacher payloads."""
