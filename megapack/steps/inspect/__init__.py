"""Look at what will be trained: rows and documents decoded, with the supervised tokens marked."""
