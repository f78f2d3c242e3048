"""One recording per arm: what a server answered to every scenario, and how it drafted.

`arms` says what an arm is and starts it, `scenarios` what it is asked, `disturbances`
what is done to it meanwhile, `recording` runs all that once and keeps the results,
`compare` lines two recordings up.
"""
