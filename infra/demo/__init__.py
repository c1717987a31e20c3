"""Demo content: real chat data and a small tokenizer, made from the standard library's own text.

`python -m infra.demo OUTDIR` writes `OUTDIR/data` (conversations in every supported shape, good and
flawed), `OUTDIR/tokenizer` (a Hugging Face style folder) and `OUTDIR/demo.json` (what was written).
Nothing is downloaded: the text is the documentation that every Python carries.
"""
