"""What an extraction would do, known before it starts: rows, documents, bytes, time, refusals."""
