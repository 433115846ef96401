"""The operations of the NumPy backend, one module per family of the contract."""
