"""The namespace of NVIDIA's packages."""
