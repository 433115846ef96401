"""Programs: what a captured step computes, as calls that are rewritten, compiled and run."""
