"""Hypothesis profiles: ``pytest test/property --hypothesis-profile=quick``."""

from hypothesis import HealthCheck, settings

# Every example holds 32 rows: 3 tests x 2000 examples x 32 rows are 192,000 rows.
_COMMON = dict(
    deadline=None,
    print_blob=True,
    # Each example runs many small torch operations.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("default", max_examples=2000, **_COMMON)
# 38,400 rows, while working on the code.
settings.register_profile("quick", max_examples=400, **_COMMON)
settings.load_profile("default")
