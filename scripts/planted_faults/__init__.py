"""Plant known faults in a copy of the fork and see that the named tests turn red."""
