"""The decorator ``Capture``, which records steps of any backend."""
