"""Versions, parts and manifests on a local folder or S3, and Parquet in and out of records."""
