"""`make ab`: dense and packed served in turn, measured, compared, and reported.

profile -> plan -> launch -> measure -> raw records -> summary -> verdict -> report
"""
