"""Multimodal demo content: rendered shapes with captions, questions, videos and edits.

`python -m infra.shapes OUTDIR` writes `OUTDIR/text_to_image` (Parquet), `OUTDIR/understanding`
(JSONL and image files), `OUTDIR/editing` (Parquet), `OUTDIR/held_out` (questions about pictures
that are nowhere else), `OUTDIR/tokenizer` and `OUTDIR/shapes.json` (what was written). All of it is
a function of the seed and the sizes. Nothing is downloaded.
"""
