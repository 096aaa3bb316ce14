"""`make results`: the thesis's experiments, run, audited, judged, and written into docs/results.md."""
