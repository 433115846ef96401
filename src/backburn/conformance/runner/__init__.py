"""Runs checks: targets, worker processes, time limits, shrinking of failures, and their probable causes."""
