"""Linear algebra of tensors: products, decompositions, solutions, norms."""
