"""The classes of tensors, and the path of every call from tensors to backends."""
