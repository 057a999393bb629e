"""Benches, one file per question. Run them from the checkout: `python -m bench.NAME`."""
