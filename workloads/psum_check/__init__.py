"""The smallest SPMD program: is every device there, do they sum right, and how fast is a step?"""
