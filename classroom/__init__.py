"""The classroom: assignments for nbgrader, grading in a process of its own, hidden tests, mutants of the solutions.

Nothing here is in the package that students install. INSTRUCTORS.md says how it is used.
"""
