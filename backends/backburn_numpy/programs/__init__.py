"""Recorded programs: passes after products, and state that a replay updates in place."""
