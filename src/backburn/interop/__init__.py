"""Registration of tensors with other libraries, one module for each; importing the module registers them."""
