"""What users hold: tensors of four kinds, and functions of them under their Array API names."""
