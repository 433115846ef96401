"""Recorded programs: native programs, passes after products, and state that a replay updates in place.

A native program computes many calls (formulas, sums, small products, views, stacks, concatenations) in one call of a
kernel. Its intermediate values lie in an arena, in places that are fixed when it is compiled; values that are not
needed at the same time share one. Views are addresses. The parts of a stack are computed in the memory of the stack.
"""
