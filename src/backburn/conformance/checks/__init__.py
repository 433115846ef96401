"""Checks: the properties that a backend must have, each as a function of a :class:`Check`."""
