"""The values that cross a stage boundary: documents, rows, payloads, drops, references."""
