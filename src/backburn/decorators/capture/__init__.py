"""Recorded programs: what a capturing backend offers, the recorder of ``Capture``, and the fusion of its steps."""
