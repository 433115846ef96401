"""Training the handwritten digits: configuration, model, loop, reports. Needs the extra ``train``."""
