"""What other libraries need to know of tensors, one module for each; importing a module tells its library."""
