"""Recorded programs: native programs, epilogues of products, and state that a replay updates in place.

A native program computes many calls (formulas, sums, small products, views, stacks, concatenations) in one kernel call.
Its intermediate values have fixed places in an arena; values with disjoint lifetimes share one. Views are addresses,
and the parts of a stack are computed in the stack's memory.
"""
