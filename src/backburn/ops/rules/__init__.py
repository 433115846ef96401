"""Rules of operations: shapes of results, gradients, tangents."""
