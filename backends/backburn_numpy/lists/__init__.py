"""Parts of a recorded program in one call of a kernel: formulas, sums, small products, views, stacks, concatenations.

What a list computes for itself alone lies in an arena, in places that are fixed when the list is made; values that are
not needed at the same time share one. Views are addresses. The parts of a stack are computed where they lie in it.
"""

from backburn_numpy.lists.lister import ProgramCompiler

__all__ = ["ProgramCompiler"]
